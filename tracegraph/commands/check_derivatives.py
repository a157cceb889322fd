"""The dot-product test: forward and reverse mode of an entry, compared at random arguments.

Let J be the Jacobian of the results with respect to the arguments and the trainable Variables, v a
random direction of those, and w one of the results. Then <Jv, w> by forward mode must equal
<v, J'w> by reverse mode. The two use different rules and different graphs.

A custom gradient that is not linear, such as one that clips, has no forward mode, and none could
agree with it: it deliberately differs from the derivative. So the graph is tested with the plain
body in its place. The gradient with it is computed too, and must be finite and have the shapes of
the arguments; nothing more can be checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tracegraph.calls.call import Call
from tracegraph.commands.contents import Input, NamedGraph
from tracegraph.core.shapes import Dim, ShapeVariable, substitute_shape
from tracegraph.core.types import TOKEN, TensorType
from tracegraph.differentiation.accumulator import ForwardAccumulator
from tracegraph.differentiation.tape import GradientTape
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import (
    DTypeError,
    GradientError,
    LoweringError,
    Mismatch,
    ShapeError,
    TraceError,
    fact_of,
)
from tracegraph.ir.op import MissingRule, Op
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.variable import Variable

RIGHT, WRONG, NONE, UNTESTED = "right", "WRONG", "none", "not tested"
#: Sizes to try for open ones, one row after another: different sizes first.
_SIZES = ((3, 4, 5, 6), (4,), (2,), (1,), (16,), (64,))
#: Shapes to try for an open rank.
_SHAPES: tuple[tuple[int, ...], ...] = ((3, 2), (4,), (), (2, 3, 2), (2, 4, 4, 3))
#: Errors that an entry may raise for arguments that it does not accept.
_REFUSALS = (Mismatch, ShapeError, DTypeError, TraceError, LoweringError)


@dataclass(frozen=True)
class DerivativeCheck:
    """The result of the test. If `error` is None, nothing was compared, and `note` says why."""

    verdict: str
    note: str = ""
    sources: tuple[str, ...] = ()
    forward: float = 0.0
    reverse: float = 0.0
    error: float | None = None
    #: The largest accepted error, relative to the size of the compared values.
    limit: float = 0.0
    #: The functions that were tested as plain bodies, without their custom gradients.
    without: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        return self.verdict == WRONG


def check_derivatives(entry: NamedGraph) -> DerivativeCheck:
    """Tests the derivatives of an entry, if it can be run.

    Open sizes get small numbers. Arguments are drawn around 0, then between 0 and 1 if a value is
    not finite or an error occurs there. Variables keep their values.
    """
    if not any(y.dtype.is_differentiable for y in entry.outputs.values()):
        return DerivativeCheck(NONE, "no result is a floating number")
    kept = [(v, host_array(v.read_value())) for v in entry.variables.values()]
    strange = [
        name
        for name, (_, value) in zip(entry.variables, kept, strict=True)
        if value.dtype.kind in "fc" and not np.isfinite(value).all()
    ]
    if strange:
        return DerivativeCheck(
            NONE, f"{' and '.join(strange)} held no finite numbers when it was saved"
        )
    note = "it was not run"
    tested, without = _with_forward_mode(entry)
    try:
        for arguments in _candidates(entry):
            _restore(kept)
            try:
                check = _Test(tested, arguments, kept).check(entry, without)
            except GradientError as error:
                return DerivativeCheck(NONE, fact_of(error))
            except _REFUSALS as error:
                note = f"at random arguments: {fact_of(error)}"
                continue
            except Exception as error:  # an error the library should never raise is a finding
                return DerivativeCheck(WRONG, f"{type(error).__name__}: {fact_of(error)}")
            if isinstance(check, DerivativeCheck):
                return check
            note = f"at random arguments {check}"
    finally:
        _restore(kept)
    return DerivativeCheck(UNTESTED, note)


def _restore(kept: Sequence[tuple[Variable, np.ndarray]]) -> None:
    for variable, value in kept:
        variable.assign(value)


def _with_forward_mode(entry: NamedGraph) -> tuple[NamedGraph, tuple[str, ...]]:
    """The entry with plain calls in place of those whose custom gradient has no forward mode, and
    the names of their bodies; the entry itself if there are none."""
    names: list[str] = []

    def plain(_: Node, op: Any) -> Op:
        if not _lacks_forward_mode(op):
            return op
        names.append(op.inlined.name)
        return Call(op.inlined)

    graph = rewritten(entry.graph, plain)
    return (entry.computed_by(graph), tuple(dict.fromkeys(names))) if names else (entry, ())


def _lacks_forward_mode(op: Op) -> bool:
    try:
        return op.chosen_gradient is not None and not op.has_forward
    except (MissingRule, *_REFUSALS):  # the test itself will report it
        return False


class _Test:
    """An entry at given arguments, and the tensors to differentiate with respect to."""

    def __init__(
        self,
        entry: NamedGraph,
        arguments: list[np.ndarray],
        kept: list[tuple[Variable, np.ndarray]],
    ) -> None:
        self._entry = entry
        self._kept = kept
        self._rng = np.random.default_rng(1)
        self._arguments = [
            Variable(x) if own.is_variable else as_tensor(x)
            for own, x in zip(entry.inputs, arguments, strict=True)
        ]
        given = [(own.name, x) for own, x in zip(entry.inputs, self._arguments, strict=True)]
        given += [(name, v) for name, v in entry.variables.items() if v.trainable]
        sources = [(name, x) for name, x in given if x.dtype.is_differentiable]
        self._names = tuple(name for name, _ in sources)
        self._sources: list[Any] = [x for _, x in sources]

    def check(self, own: NamedGraph, without: tuple[str, ...]) -> DerivativeCheck | str:
        """The result here, or why there is none. `own` has the custom gradients that are not in the
        entry that is tested."""
        if not self._sources:
            return DerivativeCheck(NONE, "no argument is a floating number")
        directions = [self._random(x) for x in self._sources]
        pushed = self._pushed(directions)
        if any(0 in y.shape for y, _ in pushed):
            return "a result is empty"
        seeds = [self._random(y) for y, _ in pushed]
        pulled = self._pulled(self._entry, seeds)
        forward = sum(_dot(t, w) for (_, t), w in zip(pushed, seeds, strict=True))
        reverse = sum(_dot(v, g) for v, g in zip(directions, pulled, strict=True))
        tangents = _norm([t for _, t in pushed]) * _norm(seeds)
        size = max(tangents, _norm(pulled) * _norm(directions))
        values = [_array(y) for y, _ in pushed]
        if not all(np.isfinite(x).all() for x in [*values, np.array([forward, reverse, size])]):
            return "something is not finite"
        problem = self._problem(own, seeds) if without else None
        if problem is not None:
            return problem
        if without and not size:
            return DerivativeCheck(
                NONE, f"all of it is the custom gradient of {', '.join(without)}"
            )
        error = abs(forward - reverse) / size if size else 0.0
        limit = math.sqrt(_epsilon(self._entry))
        verdict = RIGHT if error <= limit else WRONG
        return DerivativeCheck(verdict, "", self._names, forward, reverse, error, limit, without)

    def _problem(self, own: NamedGraph, seeds: Sequence[Tensor]) -> DerivativeCheck | str | None:
        """What is wrong with the gradient through custom gradients, apart from its values."""
        pulled = self._pulled(own, seeds)
        for name, x, g in zip(self._names, self._sources, pulled, strict=True):
            type = TensorType(x.dtype, tuple(x.shape))
            if g.type != type:
                return DerivativeCheck(
                    WRONG, f"the custom gradient by {name} is {g.type}, and it is {type}"
                )
            if not np.isfinite(_array(g)).all():
                return "a custom gradient is not finite"
        return None

    def _pushed(self, directions: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The floating results, each with its tangent."""
        _restore(self._kept)
        with ForwardAccumulator(self._sources, list(directions)) as accumulator:
            results = self._results(self._entry)
        tangents = accumulator.jvp(results, "zero")
        return list(zip(results, tangents, strict=True))

    def _pulled(self, entry: NamedGraph, seeds: Sequence[Tensor]) -> list[Tensor]:
        """The cotangents of the sources."""
        _restore(self._kept)
        with GradientTape() as tape:
            tape.watch(self._sources)
            results = self._results(entry)
        return tape.gradient(
            results, self._sources, output_gradients=list(seeds), unconnected_gradients="zero"
        )

    def _results(self, entry: NamedGraph) -> list[Tensor]:
        found = entry.call(self._arguments)
        return [y for y in found if y.type is not TOKEN and y.dtype.is_differentiable]

    def _random(self, x: Any) -> Tensor:
        type = TensorType(x.dtype, tuple(x.shape))
        return as_tensor(_normal(self._rng, type))


# Arguments.


def _candidates(entry: NamedGraph) -> Iterator[list[np.ndarray]]:
    """Arguments to try, one after another."""
    for types, is_positive in itertools.product(_types(entry.inputs), (False, True)):
        rng = np.random.default_rng(0)
        yield [_argument(rng, type, is_positive) for type in types]


def _types(inputs: Sequence[Input]) -> Iterator[list[TensorType]]:
    """The types of the arguments, with small numbers for open sizes."""
    names, shapes = _open_names([own.type for own in inputs])
    for numbers in _SIZES if names else _SIZES[:1]:
        for shape in _SHAPES if shapes else _SHAPES[:1]:
            sizes: dict[str, Any] = dict(zip(names, itertools.cycle(numbers)))
            sizes.update(dict.fromkeys(shapes, shape))
            found = [own.type.with_shape(substitute_shape(own.type.shape, sizes)) for own in inputs]
            if all(type.is_static and min(type.shape, default=1) >= 0 for type in found):
                yield found


def _open_names(types: Sequence[TensorType]) -> tuple[list[str], list[str]]:
    """The names of open sizes, and of open shapes."""
    shapes = [str(type.shape) for type in types if isinstance(type.shape, ShapeVariable)]
    sizes = [n for type in types if isinstance(type.shape, tuple) for n in type.shape]
    names = [name for size in sizes if isinstance(size, Dim) for name in sorted(size.names())]
    return list(dict.fromkeys(names)), list(dict.fromkeys(shapes))


def _argument(rng: np.random.Generator, type: TensorType, is_positive: bool) -> np.ndarray:
    """Random values: integers are 0 or 1, so that they may be indices."""
    if not type.dtype.is_differentiable:
        return rng.integers(0, 2, type.shape).astype(type.dtype.numpy_dtype)  # type: ignore[arg-type]
    if is_positive:
        return np.asarray(rng.uniform(0.25, 0.75, type.shape), type.dtype.numpy_dtype)  # type: ignore[arg-type]
    return _normal(rng, type)


def _normal(rng: np.random.Generator, type: TensorType) -> np.ndarray:
    values = rng.normal(size=type.shape)  # type: ignore[arg-type]
    if type.dtype.is_complex:
        values = values + 1j * rng.normal(size=type.shape)  # type: ignore[arg-type]
    return np.asarray(values, type.dtype.numpy_dtype)


# Numbers.


def _array(x: Tensor) -> np.ndarray:
    array = host_array(x)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _dot(a: Tensor, b: Tensor) -> float:
    """The real part of the inner product: complex numbers as pairs of real ones."""
    return float(np.real(np.vdot(_array(a), _array(b))))


def _norm(values: Sequence[Tensor]) -> float:
    return math.sqrt(sum(_dot(x, x) for x in values))


def _epsilon(entry: NamedGraph) -> float:
    """The distance from 1 to the next number, in the narrowest dtype that the graph uses."""
    values = [y for node in entry.graph.all_nodes() for y in node.outputs]
    dtypes = {x.dtype for x in [*values, *entry.graph.inputs] if x.dtype.is_differentiable}
    return max(float(ml_dtypes.finfo(dtype.real.numpy_dtype).eps) for dtype in dtypes)
