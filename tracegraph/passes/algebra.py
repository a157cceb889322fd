"""Algebra on single nodes: replaces `op(*inputs)` by an equal value that exists already or is
simpler.

Every rule preserves values to the bit, except for the sign of a zero that is added. Derivations
and `simplify` both go through `simpler`, so each rule is stated once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.core.shapes import element_count
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import BroadcastTo, Sum, full
from tracegraph.ops.constant import constant_value
from tracegraph.ops.effect import Read
from tracegraph.ops.index import ScatterAdd
from tracegraph.ops.shape import Reshape, Transpose

Rule = Callable[..., "Tensor | None"]
_RULES: dict[type[Op], Rule] = {}
#: Ops that NumPy computes exactly as XLA does, so that constants may be folded through them.
_EXACT = (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg, ops.Cast, ops.Select, ops.Relation)
COMMUTATIVE = frozenset([ops.Add, ops.Mul])


def simpler(op: Op, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """A tensor equal to `op(*inputs)` that is cheaper, or None."""
    rule = _RULES.get(type(op))
    found = rule(op, *inputs) if rule is not None else None
    if found is None and isinstance(op, _EXACT):
        return folded(op, inputs)
    return found


def uniform(x: Tensor) -> np.ndarray | None:
    """The scalar that every element of x is known to equal, or None."""
    if x.node is not None and type(x.node.op) is BroadcastTo:
        x = x.node.inputs[0]
    return constant_value(x) if x.type.shape == () else None


def is_uniform(x: Tensor, value: int) -> bool:
    found = uniform(x)
    return found is not None and bool(found == value)


def folded(op: Op, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """The constant result of an exact elementwise op on constants."""
    assert isinstance(op, ops.Elementwise)
    values: list[np.ndarray] = []
    for x in inputs:
        value = uniform(x)
        if value is None:
            return None
        values.append(value)
    with np.errstate(all="ignore"):
        result = np.asarray(op.numpy(*values))
    (type,) = op.output_types(inputs)
    return full(result.astype(type.dtype.numpy_dtype), type)


def _rule(op: type[Op]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES[op] = function
        return function

    return register


@_rule(ops.Mul)
def _mul(op: ops.Mul, x: Tensor, y: Tensor) -> Tensor | None:
    for one, other in ((x, y), (y, x)):
        if other.type.is_static or other.type is one.type:
            if is_uniform(one, 1):
                return other
            if is_uniform(one, -1):
                return ops.NEG(other)
    if _is(x, ops.Neg) and _is(y, ops.Neg):
        return op(_operand(x), _operand(y))
    if _is(x, ops.Neg):
        return ops.NEG(op(_operand(x), y))
    if _is(y, ops.Neg):
        return ops.NEG(op(x, _operand(y)))
    return None


@_rule(ops.MulNoNan)
def _mul_no_nan(op: ops.MulNoNan, x: Tensor, y: Tensor) -> Tensor | None:
    known = uniform(y)
    return None if known is None or known == 0 else ops.MUL(x, y)


@_rule(ops.SteepDiv)
def _steep_div(op: ops.SteepDiv, x: Tensor, y: Tensor) -> Tensor | None:
    known = uniform(x)
    return None if known is None or known == 0 else ops.DIV(x, y)


@_rule(ops.Add)
def _add(op: ops.Add, x: Tensor, y: Tensor) -> Tensor | None:
    if is_uniform(x, 0):
        return y
    if is_uniform(y, 0):
        return x
    if _is(y, ops.Neg):
        return ops.SUB(x, _operand(y))
    if _is(x, ops.Neg):
        return ops.SUB(y, _operand(x))
    for one, other in ((x, y), (y, x)):
        if _is_one_update_of_zeros(other):
            node = other.node
            assert node is not None
            return node.op(one, *node.inputs[1:])  # which XLA can do in place
    return None


def _is_one_update_of_zeros(x: Tensor) -> bool:
    """Whether x is all zeros except for one place, to which something was added."""
    node = x.node
    if node is None or type(node.op) is not ScatterAdd or not is_uniform(node.inputs[0], 0):
        return False
    return element_count(node.inputs[1].type.shape[:-1]) == 1


@_rule(ops.Sub)
def _sub(op: ops.Sub, x: Tensor, y: Tensor) -> Tensor | None:
    if is_uniform(y, 0):
        return x
    if is_uniform(x, 0):
        return ops.NEG(y)
    if _is(y, ops.Neg):
        return ops.ADD(x, _operand(y))
    return None


@_rule(ops.Div)
def _div(op: ops.Div, x: Tensor, y: Tensor) -> Tensor | None:
    return x if is_uniform(y, 1) else None


@_rule(ops.Neg)
def _neg(op: ops.Neg, x: Tensor) -> Tensor | None:
    return _operand(x) if _is(x, ops.Neg) else None


@_rule(ops.IntegerPow)
def _integer_pow(op: ops.IntegerPow, x: Tensor) -> Tensor | None:
    return x if op.exponent == 1 else None


@_rule(ops.Select)
def _select(op: ops.Select, condition: Tensor, x: Tensor, y: Tensor) -> Tensor | None:
    return x if x is y else None


@_rule(Read)
def _read(op: Read, value: Tensor, handle: Tensor) -> Tensor | None:
    return handle if value is handle else None


@_rule(ops.Cast)
def _cast(op: ops.Cast, x: Tensor) -> Tensor | None:
    return x if x.dtype is op.dtype else None


@_rule(BroadcastTo)
def _broadcast_to(op: BroadcastTo, x: Tensor) -> Tensor | None:
    if op.shape == x.type.shape:
        return x
    inner = None if x.node is None else x.node.op
    if isinstance(inner, BroadcastTo) and isinstance(x.type.shape, tuple):
        return BroadcastTo(op.shape, tuple(op.axes[axis] for axis in inner.axes))(_operand(x))
    return None


@_rule(Reshape)
def _reshape(op: Reshape, x: Tensor) -> Tensor | None:
    if op.shape == x.type.shape:
        return x
    return op(_operand(x)) if _is(x, Reshape) else None


@_rule(Transpose)
def _transpose(op: Transpose, x: Tensor) -> Tensor | None:
    if op.perm == tuple(range(len(op.perm))):
        return x
    if _is(x, Transpose):
        inner: Any = _op(x)
        return Transpose(tuple(inner.perm[axis] for axis in op.perm))(_operand(x))
    return None


@_rule(Sum)
def _sum(op: Sum, x: Tensor) -> Tensor | None:
    return x if op.axes == () else None


def _is(x: Tensor, op: type[Op]) -> bool:
    return x.node is not None and type(x.node.op) is op


def _op(x: Tensor) -> Op:
    assert x.node is not None
    return x.node.op


def _operand(x: Tensor) -> Any:
    assert x.node is not None
    return x.node.inputs[0]
