"""State and effects as data: reads of variables, and ops that take a token and return the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from tracegraph.core.shapes import ShapeVariable, Size, static_shape
from tracegraph.core.source import Source
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TOKEN, TensorType, bool_
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import (
    Batched,
    Derivative,
    MissingRule,
    Op,
    Tangents,
    WithoutDerivative,
    check_same_dtype,
)
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import Sum, full
from tracegraph.ops.constant import Nullary
from tracegraph.ops.elementwise import KEPT, Elementwise, Factors
from tracegraph.ops.movement import no_flops
from tracegraph.ops.reduce import All


class Read(Elementwise):
    """The value of a variable: `value`, whose cotangent goes to `handle` alone.

    State stops gradients: nothing flows to what was assigned, and every read, before or after an
    assignment, counts towards the variable that `handle` stands for.
    """

    kinds = KEPT
    flops = no_flops

    def infer(self, value: TensorType, handle: TensorType) -> TensorType:
        check_same_dtype(self.name, value, handle)
        return value  # an open shape lets an assignment change the size

    def partials(self, y: Tensor, value: Tensor, handle: Tensor) -> Factors:
        return None, 1

    def depends(self, value: Pattern, handle: Pattern) -> Pattern:
        return handle

    def numpy(self, value: np.ndarray, handle: np.ndarray) -> np.ndarray:
        return value


class Check(WithoutDerivative):
    """Whether a condition holds; the program reports `message` and the operands if it does not."""

    message: str

    def infer(self, condition: TensorType, *operands: TensorType) -> TensorType:
        if not condition.dtype.is_bool or condition.shape != ():
            raise DTypeMismatch(f"the condition is {condition}, and it must be one truth value")
        return TensorType(bool_, ())

    def batch(
        self, n: Size, batched: tuple[bool, ...], condition: Tensor, *operands: Tensor
    ) -> Batched:
        return self(All(None)(condition) if batched[0] else condition, *operands), False

    def depends(self, *patterns: Pattern) -> Pattern:
        return patterns[0].emptied()

    def numpy(self, condition: np.ndarray, *operands: np.ndarray) -> np.ndarray:
        return condition


class Store(WithoutDerivative):
    """Gives a Variable a value before the effects that follow: `(token, handle, value) -> token`.

    Most assignments are outputs of a graph, stored when all of it has run. One that stands before
    the call of a Python function, which may read the Variable, is stored before that call.
    """

    @property
    def cuts_runs(self) -> bool:
        return True

    @property
    def has_effects(self) -> bool:
        return True

    def infer(self, token: TensorType, handle: TensorType, value: TensorType) -> TensorType:
        _check_token(token)
        check_same_dtype(self.name, handle, value)
        return TOKEN

    def batch(
        self, n: Size, batched: tuple[bool, ...], token: Tensor, handle: Tensor, value: Tensor
    ) -> Batched:
        raise Mismatch(
            "a Variable is assigned in every iteration of a parallel loop, and their order is "
            "not known",
            fix="return the values, and assign what they sum up to after the loop",
        )

    def depends(self, *patterns: Pattern) -> Pattern:
        return patterns[0]


class FirstToken(Nullary):
    """A token before which there are no effects: for what computes a body again without them"""

    def infer(self) -> TensorType:
        return TOKEN


class Load(WithoutDerivative):
    """The value of a Variable after the effects so far: `(token, handle) -> value`.

    It is read again after the call of a Python function, which may have assigned it. It stands
    under a `Read`, which connects it with the Variable.
    """

    @property
    def cuts_runs(self) -> bool:
        return True

    def infer(self, token: TensorType, handle: TensorType) -> TensorType:
        _check_token(token)
        return handle

    def batch(self, n: Size, batched: tuple[bool, ...], token: Tensor, handle: Tensor) -> Batched:
        return self(token, handle), batched[1]

    def depends(self, token: Pattern, handle: Pattern) -> Pattern:
        return handle.emptied()


def _check_token(type: TensorType) -> None:
    if type is not TOKEN:
        raise Mismatch(f"the first operand is {type}, and it must be a token")


#: One parallel loop around a host call: how many iterations it has, and for each input of the call
#: whether every iteration has its own.
Loop = tuple[Any, tuple[bool, ...]]


#: The function that does nothing, before calls of bodies with effects: those know of no check that
#: stands before them, so a run ends there where one has failed.
STOP = ("stop",)


class HostCall(Op):
    """Calls a Python function at run time: `(token, *xs) -> (token, *ys)`, in program order.

    `function` takes and returns NumPy arrays; where it is data, it is `(name, *arguments)` of one
    of our own functions, such as the one that prints. A function that is differentiable has
    `pullback(count, types)` and `pushforward(count, types)`: again such functions, of its `count`
    inputs and of cotangents or tangents, with results of these types. A gated call has a truth
    value after its token, and the function is called only where that holds.

    Inside parallel loops it is called once for each iteration, in order: `loops` has the loops
    around it, the outermost first, with the size of each and which of the inputs after the token
    have its axis. All results have all axes, in this order, before their own.
    """

    function: Callable[..., Any] | tuple[Any, ...]
    types: tuple[TensorType, ...]
    is_differentiable: bool = False
    is_gated: bool = False
    loops: tuple[Loop, ...] = ()

    takes_zero_cotangents = True

    @property
    def cuts_runs(self) -> bool:
        return True

    def outputs_sized_by_run(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return outputs

    @property
    def called(self) -> str:
        """What the user called, as messages name it."""
        if not callable(self.function):
            return f"tg.{self.function[0]}"
        return getattr(self.function, "called", "a Python function")

    @property
    def has_effects(self) -> bool:
        return self.is_ordered

    @property
    def is_ordered(self) -> bool:
        """Whether it stands among the effects. The call of a derivative does not: it is made where
        something takes its results, and nowhere else."""
        return not getattr(self.function, "is_derivative", False)

    @property
    def has_forward(self) -> bool:
        return False

    @property
    def undeclared(self) -> tuple[int, ...]:
        """The places of the results whose rank is not declared: the run of a trace may find others
        than the call that was traced."""
        return () if self.loops else getattr(self.function, "undeclared", ())

    @property
    def ends_runs(self) -> bool:
        """Whether a run ends before it where its truth value is false: what depends on what the
        function returns is not known then. Variables were stored, and a print returns nothing. A
        check in a parallel loop is one for all iterations, so it ends runs there too."""
        is_end = self.function == STOP
        return self.is_gated and (is_end or (self.sees_variables and not self.loops))

    @property
    def sees_variables(self) -> bool:
        """Whether the function may read and assign Variables: it is somebody's own, or writes to
        a stream that is."""
        return callable(self.function) or not isinstance(self.function[-1], str)

    def infer(self, token: TensorType, *xs: TensorType) -> tuple[TensorType, ...]:
        _check_token(token)
        if isinstance(self.function, tuple):
            self._check_data(len(xs) - self.is_gated)
        if self.is_gated and self._unbatched(xs)[:1] != [_TRUTH]:
            given = str(xs[0]) if xs else "missing"
            raise Mismatch(f"the call is gated, and its truth value is {given}")
        return (TOKEN, *map(self._in_loops, self.types))

    def _in_loops(self, type: TensorType) -> TensorType:
        if not self.loops:
            return type
        if isinstance(type.shape, ShapeVariable):
            raise Mismatch(
                f"{self.called} is called in a parallel loop, and the rank of its result is open",
                fix="give the shape in Tout: tg.TensorSpec([3], tg.float32)",
            )
        return type.with_shape((*(size for size, _ in self.loops), *type.shape))

    def _unbatched(self, types: Sequence[TensorType]) -> list[TensorType]:
        """The types of the inputs for one iteration."""
        found = list(types)
        for _, flags in self.loops:
            if len(flags) != len(types):
                raise Mismatch(f"a loop has {len(flags)} flags for {len(types)} inputs")
            pairs = zip(found, flags, strict=True)
            found = [t.with_shape(t.shape[1:]) if flag else t for t, flag in pairs]
        return found

    def _check_data(self, count: int) -> None:
        """Raises Mismatch for data that names no function of ours, or does not fit it: a graph may
        come from a file that is not trusted."""
        data = cast("tuple[Any, ...]", self.function)
        match self.function:
            case ("print", tuple(), int(summarize), stream):
                pieces: tuple[Any, ...] = data[1]
                is_text = all(type(piece) is str for piece in pieces)
                is_stream = not isinstance(stream, str) or stream in ("stdout", "stderr")
                fits = is_text and is_stream and len(pieces) == count + 1 and summarize >= -1
                fits = fits and not self.types and not self.is_differentiable
            case ("stop",):
                fits = self.is_gated and not (count or self.types or self.is_differentiable)
            case _:
                fits = False
        if not fits:
            raise Mismatch("the data of the function are not those of one of ours")

    def vjp(self, *values: Any) -> Derivative:
        count = len(self.types)
        gs, token, inputs = values[1 : count + 1], values[count + 1], values[2 * count + 3 :]
        places = self._sources(inputs)
        if not places or all(g is None for g in gs):
            return (None,) * (len(inputs) + 1)
        seeds = [g for g, _ in _filled(gs, self.infer(TOKEN, *(x.type for x in inputs))[1:])]
        single = self._unbatched([x.type for x in inputs])
        types = tuple(single[i] for i in places)
        pull = self._derivative("pullback", len(inputs), types, [True] * len(seeds))
        found = pull(token, *inputs, *seeds)[1:]
        return (None, *_placed(len(inputs), places, map(self._summed, found, places)))

    def _summed(self, cotangent: Tensor, place: int) -> Tensor:
        """The cotangent of an input, of which one loop after the other may have no axis."""
        axes = tuple(i for i, (_, flags) in enumerate(self.loops) if not flags[place])
        return Sum(axes)(cotangent) if axes else cotangent

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        count = len(self.types)
        token, inputs = values[0], values[count + 2 :]
        places = self._sources(inputs)
        if not places:
            return (None,) * (count + 1)
        ts = [t for t, _ in _filled(tangents[1:], [x.type for x in inputs])]
        targets = [i for i, type in enumerate(self.types) if type.dtype.is_differentiable]
        types = tuple(self.types[i] for i in targets)
        push = self._derivative("pushforward", len(inputs), types, places)
        return (None, *_placed(count, targets, push(token, *inputs, *ts)[1:]))

    def _sources(self, inputs: Sequence[Tensor]) -> list[int]:
        """The places of the inputs that have derivatives."""
        if not self.is_differentiable:
            return []
        return [i for i, x in enumerate(inputs) if x.type.dtype.is_differentiable]

    def _derivative(
        self, kind: str, count: int, types: tuple[TensorType, ...], more: Sequence[int]
    ) -> HostCall:
        """The call of a derivative of the function, a differentiable function itself, for its
        inputs and `more`: True for what has all loops, else the place of the input it is like."""
        derive = getattr(self.function, kind, None)
        if derive is None:
            raise Mismatch(
                f"the derivative of {self.function!r} is not known: the text of a graph names "
                "Python functions and does not hold them",
                fix="differentiate the function that was traced",
            )
        loops = tuple(
            (size, (*flags, *(like is True or flags[like] for like in more)))
            for size, flags in self.loops
        )
        return HostCall(derive(count - self.is_gated, types), types, True, self.is_gated, loops)

    def batch(self, n: Size, batched: tuple[bool, ...], token: Tensor, *xs: Tensor) -> Batched:
        loop = (n, batched[1:])
        looped = HostCall(
            self.function, self.types, self.is_differentiable, self.is_gated, (loop, *self.loops)
        )
        outputs: Tensor | tuple[Tensor, ...] = looped(token, *xs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs, (False, *(True for _ in self.types))

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        types = [self._in_loops(type) for type in self.types]
        if self.is_differentiable or not all(type.is_static for type in types):
            raise MissingRule(self, "sparsity")
        shapes = [(), *(static_shape(type.shape) for type in types)]
        return tuple(Pattern.nothing(shape, patterns[0].total) for shape in shapes)


def _filled(
    values: Sequence[Tensor | None], types: Sequence[TensorType]
) -> list[tuple[Tensor, TensorType]]:
    """The differentiable values, zeros for None, with their types."""
    pairs = zip(values, types, strict=True)
    return [(full(0, t) if x is None else x, t) for x, t in pairs if t.dtype.is_differentiable]


def _placed(
    count: int, places: Sequence[int], values: Iterable[Tensor | None]
) -> list[Tensor | None]:
    """`count` values: those given at their places, None elsewhere."""
    found: list[Tensor | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return found


_TRUTH = TensorType(bool_)


@dataclasses.dataclass(frozen=True)
class Made:
    """What a host call made: its results, and what each of its calls keeps for derivatives.
    `sizes` are those of the parallel loops around it."""

    results: Sequence[np.ndarray]
    kept: tuple[Any, ...] = ()
    sizes: tuple[Any, ...] = ()


class Token(np.ndarray):
    """The value of a token that carries what calls of Python functions kept to the calls of their
    derivatives: `made` by the call before it, or the tokens of all `steps` of a loop."""

    made: Made | None
    steps: Sequence[Any] | None


def token_of(made: Made | None = None, steps: Sequence[Any] | None = None) -> Token:
    """A token that carries this."""
    found = np.zeros((), np.bool_).view(Token)
    found.made, found.steps = made, steps
    return found


def sizes_of_loops(op: HostCall) -> tuple[Any, ...]:
    """The sizes of the parallel loops around a host call, the outermost first."""
    return tuple(size for size, _ in op.loops)


class HostRunner(Protocol):
    """What is called for a host call: a function of NumPy arrays that returns a tuple of them."""

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]: ...

    def run(
        self,
        arrays: Sequence[np.ndarray],
        first: Made | None = None,
        forward: Made | None = None,
        keeps: bool = False,
    ) -> Made | None:
        """The same, with what derivatives need if it `keeps` that; None where checks kept it from
        all calls of a loop, and nothing tells sizes that are open. `first` is what was made in the
        first iteration of the loops around it, or of the outer ones of them, if that was run;
        `forward` what the call made that this is the derivative of."""
        ...


_runners: list[Callable[[HostCall, Source], HostRunner]] = []


def set_host_runner(runner: Callable[[HostCall, Source], HostRunner]) -> None:
    """Called once, by the runtime: the hook through which programs reach Python functions."""
    _runners[:] = [runner]


def host_function(op: HostCall, source: Source) -> HostRunner:
    """What is called for `op`, made at the user's line `source`."""
    return _runners[0](op, source)


#: What a run does between its programs.
EFFECTS = (HostCall, Load, Store)

READ = Read()
