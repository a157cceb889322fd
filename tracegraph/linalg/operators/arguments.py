"""Checks of the arguments of linear operators, and of operators used together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracegraph.array.arguments import as_count, rank_of, refuse
from tracegraph.array.creation import zeros
from tracegraph.core.shapes import Shape
from tracegraph.errors import HintError, SignatureError, counted, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.unary import conj
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_two
from tracegraph.state.variable import Variable

#: The promises that every operator accepts.
HINTS: tuple[str, ...] = ("is_non_singular", "is_self_adjoint", "is_positive_definite", "is_square")


def parameter(op: str, value: Any, rank: int, what: str) -> Any:
    """A Variable unchanged, so that later assignments count; anything else as a tensor.

    Raises ShapeError for fewer than `rank` axes.
    """
    x = value if isinstance(value, Variable) else as_tensor(value)
    known = x.shape.rank
    if known is None:
        rank_of(op, as_tensor(x))  # raises for it
    elif known < rank:
        fix = f"give a tensor of at least {counted(rank, 'axis', 'axes')}"
        refuse(op, f"{what} has {counted(known, 'axis', 'axes')}", as_tensor(x), fix=fix)
    return x


def row_count(op: str, what: str, value: Any) -> Any:
    """A number of rows or columns. Raises ShapeError unless it is one nonnegative integer."""
    if isinstance(value, (list, tuple)) or getattr(value, "shape", ()):
        refuse(op, f"{what} is {shown(value)}", fix="give one int")
    return as_count(op, what, value)


def implied(op: str, hint: str, value: bool | None, fact: bool, reason: str) -> bool:
    """The implied value of a hint. Raises ValueError if the opposite is given."""
    if value is not None and bool(value) is not fact:
        fail(
            SignatureError,
            f"{op}: {hint} is {value}, but {reason}",
            fix=f"leave {hint} out, or set it to {fact}",
        )
    return fact


def all_hint(operators: Iterable[Any], hint: str) -> bool:
    """Whether all operators are known to have the property of the hint."""
    return all(getattr(operator, hint) is True for operator in operators)


def joined_name(operators: Sequence[Any], sign: str) -> str:
    """The default name of a combination of several operators."""
    return sign.join(operator.name for operator in operators)


def common_dtype(op: str, operators: Sequence[Any]) -> Any:
    """The dtype of all operators. Raises TypeError if they differ, ValueError if there are none."""
    if not operators:
        fail(SignatureError, f"{op}: there are no operators", fix="give a list of one or more")
    dtype = operators[0].dtype
    for number, operator in enumerate(operators):
        if operator.dtype is not dtype:
            fact = (
                f"{op}: operator 0 is of {dtype.name}, operator {number} of {operator.dtype.name}"
            )
            fail(SignatureError, fact, fix="give operators of one dtype")
    return dtype


def common_batch(op: str, shapes: Iterable[Any]) -> tuple[Any, ...]:
    """The shape to which the leading axes of several operators or tensors broadcast."""
    found: Shape = ()
    for shape in map(tuple, shapes):
        both = broadcast_two(found, shape)
        if both is None:
            fix = "give all the same leading axes, or 1 for what repeats"
            refuse(
                op, f"the leading axes {list(found)} and {list(shape)} do not broadcast", fix=fix
            )
        found = both
    return tuple(found)


def with_batch(x: Tensor, lead: Sequence[Any]) -> Tensor:
    """Matrices with the leading axes broadcast."""
    return broadcast(x, (*lead, *x.type.shape[-2:]))


def spread(x: Tensor, lead: Sequence[Any]) -> Tensor:
    """Matrices with leading axes broadcast to at least `lead`."""
    return with_batch(x, common_batch("matmul", (x.type.shape[:-2], lead)))


def conjugate_if(is_adjoint: bool, x: Tensor) -> Tensor:
    """x, or its complex conjugate."""
    return conj(x) if is_adjoint and x.dtype.is_complex else x


def not_here(op: str, fact: str, fix: str) -> Any:
    """Raises the error for which TensorFlow raises NotImplementedError."""
    fail(HintError, f"{op}: {fact}", fix=fix)


def zeros_of(lead: Sequence[Any], dtype: Any) -> Tensor:
    """A zero for each matrix."""
    return zeros(list(lead), dtype)


def folded(combine: Callable[[Any, Any], Any], values: Iterable[Any]) -> Any:
    """Folds several values into one."""
    rest = iter(values)
    found = next(rest)
    for value in rest:
        found = combine(found, value)
    return found
