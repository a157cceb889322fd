"""State and effects as data: reads of variables, and ops that take a token and return the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import MissingRule, Op, check_same_dtype
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.elementwise import ANY, Elementwise
from tracegraph.types import TOKEN, TensorType, bool_


class Read(Elementwise):
    """The value of a variable: `value`, whose cotangent goes to `handle` alone.

    State stops gradients: nothing flows to what was assigned, and every read, before or after an
    assignment, counts towards the variable that `handle` stands for.
    """

    kinds = ANY

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
        raise MissingRule(self, "vectorisation")

    def depends(self, *patterns):
        return np.zeros(patterns[0].shape, bool)

    def numpy(self, condition, *operands):
        return condition


class HostCall(Op):
    """Calls a Python function at run time: `(token, *xs) -> (token, *ys)`, in program order.

    `function` takes and returns NumPy arrays. `derivative` makes the cotangents, as the function
    of another HostCall does, or is None where there is no derivative.
    """

    function: Callable[..., Any]
    types: tuple[TensorType, ...]
    derivative: Callable[..., Any] | None

    takes_zero_cotangents = True

    def infer(self, token, *xs):
        if token is not TOKEN:
            raise Mismatch(f"the first operand is {token}, and it must be a token")
        return (TOKEN, *self.types)

    def vjp(self, *values):
        count = len(self.types)
        gs, rest = values[1 : count + 1], values[count + 1 :]
        token_out, xs = rest[0], rest[count + 2 :]
        if self.derivative is None:
            return (None,) * (len(xs) + 1)
        return (None, *self.derivative(token_out, gs, xs))

    def jvp(self, tangents, *values):
        if self.derivative is None:
            return (None,) * (len(self.types) + 1)
        raise MissingRule(self, "forward-mode")

    def batch(self, n, batched, *xs):
        raise MissingRule(self, "vectorisation")

    def depends(self, *patterns):
        raise MissingRule(self, "sparsity")


READ = Read()


def start_token() -> Tensor:
    """The token before the first effect."""
    return StartToken()()


class StartToken(Op):
    """The token before the first effect of a program."""

    def infer(self):
        return TOKEN

    def vjp(self, g, y):
        return ()

    def jvp(self, tangents, y):
        return None

    def batch(self, n, batched):
        return self(), False

    def depends(self):
        raise MissingRule(self, "sparsity")
