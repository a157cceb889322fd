"""Calls of Python functions: how traces record them, and how programs perform them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from tracegraph.core.settings import settings
from tracegraph.core.shapes import Dim, ShapeVariable, static_shape
from tracegraph.core.source import Source, sourced
from tracegraph.core.tensorshape import TensorShape, TensorSpec
from tracegraph.core.types import TensorType
from tracegraph.eager.pending import in_host_call
from tracegraph.eager.tensor_methods import host_array
from tracegraph.effects.printing import Template
from tracegraph.effects.record import recorded_call
from tracegraph.errors import InvalidArgumentError, TraceError, fail
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.ops.effect import HostCall, Loop, Made, set_host_runner, sizes_of_loops
from tracegraph.ops.elementwise import Cast
from tracegraph.tracing.trace import Trace, init_scope


def host_call(
    function: Callable[..., Any] | tuple[Any, ...],
    inputs: Sequence[Tensor],
    types: Sequence[TensorType],
    is_differentiable: bool = False,
) -> tuple[Tensor, ...]:
    """Appends a call of a Python function of arrays to the trace, ordered after earlier effects."""
    trace = current()
    # Nothing after a failed check may happen.
    gate = (trace.all_hold,) if isinstance(trace, Trace) and trace.all_hold is not None else ()
    op = HostCall(function, tuple(types), is_differentiable, bool(gate))
    if not isinstance(trace, Trace):
        fail(
            TraceError,
            f"{op.called} was called inside a gradient rule",
            fix="compute it outside of the rule",
        )
    if op.sees_variables:
        trace.store_state()
    found = op(trace.take_token(), *gate, *inputs)
    token, *outputs = found if isinstance(found, tuple) else (found,)
    trace.give_token(token)
    if op.sees_variables:
        trace.forget_state()
    return tuple(outputs)


class HostFunction:
    """A Python function of arrays that keeps what its derivatives need of a call."""

    def run(
        self, arrays: Sequence[np.ndarray], forward: Any = None, keeps: bool = False
    ) -> tuple[Sequence[Tensor], Any]:
        """The results for a run of the program and, if `keeps`, what derivatives need of it.
        `forward` is what the call kept that this one is a derivative of."""
        raise NotImplementedError


class _Plain(HostFunction):
    """A function without derivatives, or the data that names one of our functions."""

    def __init__(self, function: Callable[..., Any] | tuple[Any, ...]) -> None:
        is_ours = isinstance(function, tuple)
        self._function = _FUNCTIONS[function[0]](*function[1:]) if is_ours else function

    def run(
        self, arrays: Sequence[np.ndarray], forward: Any = None, keeps: bool = False
    ) -> tuple[Sequence[Tensor], None]:
        return self._function(*arrays), None


class _OfFirstProcess(HostFunction):
    """A function without results, in a process that leaves the call to the first process."""

    def run(
        self, arrays: Sequence[np.ndarray], forward: Any = None, keeps: bool = False
    ) -> tuple[Sequence[Tensor], None]:
        return (), None


class _Runner:
    """The callable behind a host call at the user's line `source`; see `ops.effect.HostRunner`."""

    def __init__(self, op: HostCall, source: Source) -> None:
        self._op = op
        self._source = source
        function = op.function
        is_ours = isinstance(function, HostFunction)
        self._function: HostFunction = function if is_ours else _Plain(function)
        if not op.types and not settings.makes_effects:
            self._function = _OfFirstProcess()

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        made = self.run(arrays)
        return () if made is None else tuple(made.results)

    def run(
        self,
        arrays: Sequence[np.ndarray],
        first: Made | None = None,
        forward: Made | None = None,
        keeps: bool = False,
    ) -> Made | None:
        iterations = _Iterations(self._op, self._function, self._source, first, forward, keeps)
        try:
            with _own_top_level(), sourced(self._source):
                results = iterations.run(self._op.loops, arrays)
        except Exception as error:
            place = f"{self._source.file}:{self._source.line}"
            error.add_note(f"in a Python function called at {place}")
            raise
        if results is None:
            return None
        return Made(results, tuple(iterations.kept), sizes_of_loops(self._op))


class _Iterations:
    """The calls of a Python function in all iterations of the enclosing parallel loops, in order.

    The `first` calls may be known, those of the first iteration of the outer loops, and so may the
    calls that these are derivatives of.
    """

    def __init__(
        self,
        op: HostCall,
        function: HostFunction,
        source: Source,
        first: Made | None,
        forward: Made | None,
        keeps: bool,
    ) -> None:
        self._op = op
        self._function = function
        self._source = source
        self._first = first
        self._forward = forward
        self._keeps = keeps
        #: What each call kept for its derivatives.
        self.kept: list[Any] = []

    def run(
        self, loops: Sequence[Loop], arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...] | None:
        """The results; None if checks prevented all calls, so that open sizes remain unknown."""
        first = self._first
        if first is not None and first.sizes == tuple(size for size, _ in loops):
            self._first = None
            self.kept.extend(first.kept)
            return tuple(first.results)
        if not loops:
            return self._once(arrays)
        (count, flags), *inner = loops
        rows = [
            self.run(inner, [x[i] if flag else x for x, flag in zip(arrays, flags, strict=True)])
            for i in range(count)
        ]
        if rows:
            return self._stacked(rows)
        if not self._has_known_sizes:
            self._refuse("there are no iterations, and nothing else tells the sizes of its results")
        sizes = [n for n, _ in loops]
        return tuple(_zeros(t.with_shape((*sizes, *t.shape))) for t in self._op.types)

    @property
    def _has_known_sizes(self) -> bool:
        return all(t.is_static for t in self._op.types)

    def _stacked(
        self, rows: Sequence[tuple[np.ndarray, ...] | None]
    ) -> tuple[np.ndarray, ...] | None:
        """The results of the iterations, stacked; zeros for an iteration that made no call."""
        made = [row for row in rows if row is not None]
        if not made:
            return None
        for column in zip(*made, strict=True):
            shapes = list(dict.fromkeys(x.shape for x in column))
            if len(shapes) > 1:
                self._refuse(f"it returned the shapes {shapes[0]} and {shapes[1]}")
        zeros = tuple(map(np.zeros_like, made[0]))
        whole = [zeros if row is None else row for row in rows]
        return tuple(np.stack(column) for column in zip(*whole, strict=True))

    def _refuse(self, fact: str) -> NoReturn:
        fail(
            InvalidArgumentError,
            f"{self._op.called} is called in a parallel loop: {fact}",
            source=self._source,
            fix="return one shape in every iteration, and give it in Tout: "
            "tg.TensorSpec([3], tg.float32)",
        )

    def _once(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
        op = self._op
        if op.is_gated and not arrays[0]:
            self.kept.append(None)
            return tuple(map(_zeros, op.types)) if self._has_known_sizes else None
        forward = self._kept_by_forward()
        results, kept = self._function.run(arrays[op.is_gated :], forward, self._keeps)
        self.kept.append(kept)
        return tuple(
            # Where no rank is declared, the shape is compared after the call.
            host_array(y) if i in op.undeclared else _checked(y, type, self._source)
            for i, (y, type) in enumerate(zip(results, op.types, strict=True))
        )

    def _kept_by_forward(self) -> Any:
        """What the call kept that this one is a derivative of; None if unknown."""
        forward = self._forward
        if forward is None:
            return None
        if not forward.sizes and forward.kept:  # one call, differentiated inside a loop
            return forward.kept[0]
        place = len(self.kept)
        is_same_loop = forward.sizes == sizes_of_loops(self._op) and place < len(forward.kept)
        return forward.kept[place] if is_same_loop else None


@contextmanager
def _own_top_level() -> Iterator[None]:
    """A context for Python functions called by programs: they compute at their own top level, and
    no tape or accumulator outside sees them."""
    with in_host_call(), init_scope(), recorded_call():
        yield


def _zeros(type: TensorType) -> np.ndarray:
    return np.zeros(static_shape(type.shape), type.dtype.numpy_dtype)


def _checked(result: Tensor, type: TensorType, source: Source) -> np.ndarray:
    array = host_array(result)
    if not TensorShape(type.shape).is_compatible_with(TensorShape(array.shape)):
        fail(
            InvalidArgumentError,
            f"a Python function returned the shape {array.shape}, and {type} was traced",
            source=source,
            fix="return one shape always, or give the sizes that change as None in Tout: "
            "tg.TensorSpec([None], tg.float32)",
        )
    return array


#: Host functions that graphs store as data, by name.
_FUNCTIONS: dict[str, Callable[..., Callable[..., Any]]] = {
    "print": Template,
    "stop": lambda: tuple,
}


set_host_runner(_Runner)


def declared_type(spec: TensorSpec) -> TensorType:
    """The type that `Tout` declares; open parts get names, whose values each run determines."""
    if spec.shape.rank is None:
        return TensorType(spec.dtype, ShapeVariable(current().new_size_name()))
    sizes = [Dim.named(n) if isinstance(n, str) else n for n in spec.shape]
    sizes = [Dim.named(current().new_size_name()) if n is None else n for n in sizes]
    return TensorType(spec.dtype, tuple(sizes))


def declare_result(x: Tensor, shape: TensorShape) -> bool:
    """Declares the shape that `Tout` omitted of a Python function's result, or of a cast of it, if
    nothing has used it yet: each call checks it. Returns whether that was possible."""
    if not isinstance(x.type.shape, ShapeVariable) or shape.rank is None:
        return False
    return not current().is_top_level and _declared(x, shape, None)


def _declared(x: Tensor, shape: TensorShape, user: Node | None) -> bool:
    node, builder = x.node, current()
    if node is None or node.builder is not builder or not isinstance(node.op, (Cast, HostCall)):
        return False
    behind = builder.nodes[builder.nodes.index(node) + 1 :]
    if any(x is used for other in behind if other is not user for used in other.inputs):
        return False
    if isinstance(node.op, Cast):
        (operand,) = node.inputs
        if not _declared(operand, shape, node):
            return False
        x.type = operand.type.with_dtype(x.dtype)
        return True
    op = node.op
    declaring = getattr(op.function, "declaring", None)
    if declaring is None:
        return False
    place = next(i for i, y in enumerate(node.outputs[1:]) if y is x)
    spec = TensorSpec(shape, x.dtype)
    type_ = declared_type(spec)
    types = tuple(type_ if i == place else old for i, old in enumerate(op.types))
    node.op = HostCall(declaring(place, spec), types, *op.attributes[2:])
    x.type = type_
    return True


__all__ = ["HostFunction", "declare_result", "declared_type", "host_call"]
