"""State and effects as data: reads of variables, and ops that take a token and return the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import MissingRule, Op, check_same_dtype
from tracegraph.ops.broadcast import full
from tracegraph.ops.elementwise import ANY, Elementwise
from tracegraph.ops.movement import no_flops
from tracegraph.ops.reduce import All
from tracegraph.source import Source
from tracegraph.types import TOKEN, TensorType, bool_


class Read(Elementwise):
    """The value of a variable: `value`, whose cotangent goes to `handle` alone.

    State stops gradients: nothing flows to what was assigned, and every read, before or after an
    assignment, counts towards the variable that `handle` stands for.
    """

    kinds = ANY
    flops = no_flops

    def infer(self, value, handle):
        check_same_dtype(self.name, value, handle)
        return value  # an open shape lets an assignment change the size

    def partials(self, y, value, handle):
        return None, 1

    def depends(self, value, handle):
        return handle

    def numpy(self, value, handle):
        return value


class Check(Op):
    """Whether a condition holds; the program reports `message` and the operands if it does not."""

    message: str

    def infer(self, condition, *operands):
        if not condition.dtype.is_bool or condition.shape != ():
            raise DTypeMismatch(f"the condition is {condition}, and it must be one truth value")
        return TensorType(bool_, ())

    def vjp(self, g, y, *operands):
        return (None,) * len(operands)

    def jvp(self, tangents, y, *operands):
        return None

    def batch(self, n, batched, condition, *operands):
        return self(All(None)(condition) if batched[0] else condition, *operands), False

    def depends(self, *patterns):
        return patterns[0].emptied()

    def numpy(self, condition, *operands):
        return condition


class HostCall(Op):
    """Calls a Python function at run time: `(token, *xs) -> (token, *ys)`, in program order.

    `function` takes and returns NumPy arrays; where it is data, it is `(name, *arguments)` of one
    of our own functions, such as the one that prints. A function that is differentiable has
    `pullback(count, types)` and `pushforward(count, types)`: again such functions, of its `count`
    inputs and of cotangents or tangents, with results of these types. A gated call has a truth
    value after its token, and the function is called only where that holds.
    """

    function: Callable[..., Any] | tuple[Any, ...]
    types: tuple[TensorType, ...]
    is_differentiable: bool = False
    is_gated: bool = False

    takes_zero_cotangents = True

    @property
    def called(self):
        """What the user called, as messages name it."""
        if not callable(self.function):
            return f"tg.{self.function[0]}"
        return getattr(self.function, "called", "a Python function")

    def infer(self, token, *xs):
        if token is not TOKEN:
            raise Mismatch(f"the first operand is {token}, and it must be a token")
        if isinstance(self.function, tuple):
            self._check_data(len(xs) - self.is_gated)
        if self.is_gated and xs[:1] != (_TRUTH,):
            given = str(xs[0]) if xs else "missing"
            raise Mismatch(f"the call is gated, and its truth value is {given}")
        return (TOKEN, *self.types)

    def _check_data(self, count):
        """Raises Mismatch for data that names no function of ours, or does not fit it: a graph may
        come from a file that is not trusted."""
        match self.function:
            case ("print", tuple(pieces), int(summarize), stream):
                is_text = all(type(piece) is str for piece in pieces)
                is_stream = not isinstance(stream, str) or stream in ("stdout", "stderr")
                fits = is_text and is_stream and len(pieces) == count + 1 and summarize >= -1
                fits = fits and not self.types and not self.is_differentiable
            case _:
                fits = False
        if not fits:
            raise Mismatch("the data of the function are not those of one of ours")

    def vjp(self, *values):
        count = len(self.types)
        gs, token, inputs = values[1 : count + 1], values[count + 1], values[2 * count + 3 :]
        places = self._sources(inputs)
        if not places or all(g is None for g in gs):
            return (None,) * (len(inputs) + 1)
        seeds = [g for g, _ in _filled(gs, self.types)]
        types = tuple(inputs[i].type for i in places)
        pull = self._derivative("pullback", inputs, types)
        return (None, *_placed(len(inputs), places, pull(token, *inputs, *seeds)[1:]))

    def jvp(self, tangents, *values):
        count = len(self.types)
        token, inputs = values[0], values[count + 2 :]
        places = self._sources(inputs)
        if not places:
            return (None,) * (count + 1)
        ts = [t for t, _ in _filled(tangents[1:], [x.type for x in inputs])]
        targets = [i for i, type in enumerate(self.types) if type.dtype.is_differentiable]
        types = tuple(self.types[i] for i in targets)
        push = self._derivative("pushforward", inputs, types)
        return (None, *_placed(count, targets, push(token, *inputs, *ts)[1:]))

    def _sources(self, inputs):
        """The places of the inputs that have derivatives."""
        if not self.is_differentiable:
            return []
        return [i for i, x in enumerate(inputs) if x.type.dtype.is_differentiable]

    def _derivative(self, kind, inputs, types):
        """The call of a derivative of the function, a differentiable function itself."""
        derive = getattr(self.function, kind, None)
        if derive is None:
            raise Mismatch(
                f"the derivative of {self.function!r} is not known: the text of a graph names "
                "Python functions and does not hold them",
                fix="differentiate the function that was traced",
            )
        count = len(inputs) - self.is_gated
        return HostCall(derive(count, types), types, True, self.is_gated)

    def batch(self, n, batched, *xs):
        raise Mismatch(
            f"{self.called} would be called for each of {n} vectors at once, and it takes one",
            fix="write the computation with ops, or differentiate one element y[i] at a time",
        )

    def depends(self, *patterns):
        raise MissingRule(self, "sparsity")


def _filled(values, types):
    """The differentiable values, zeros for None, with their types."""
    pairs = zip(values, types, strict=True)
    return [(full(0, t) if x is None else x, t) for x, t in pairs if t.dtype.is_differentiable]


def _placed(count, places, values):
    """`count` values: those given at their places, None elsewhere."""
    found = [None] * count
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return found


_TRUTH = TensorType(bool_)

#: Makes what a program calls for a node: a function of NumPy arrays that returns a tuple of them.
HostRunner = Callable[[HostCall, Source], Callable[..., tuple[np.ndarray, ...]]]
_runners: list[HostRunner] = []


def set_host_runner(runner: HostRunner) -> None:
    """Called once, by the runtime: the hook through which programs reach Python functions."""
    _runners[:] = [runner]


def host_function(op: HostCall, source: Source) -> Callable[..., tuple[np.ndarray, ...]]:
    """What a program calls for `op`, made at the user's line `source`."""
    return _runners[0](op, source)


class HostFailure(Exception):
    """What a host function that failed raises into the program that called it: XLA passes on its
    text alone, by whose `ticket` the caller of the program finds the error itself."""

    def __init__(self, ticket: str) -> None:
        super().__init__(ticket)
        self.ticket = ticket


READ = Read()
