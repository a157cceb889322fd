"""What linear operators ask of their arguments and of each other."""

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

#: The promises that each operator takes.
HINTS: tuple[str, ...] = ("is_non_singular", "is_self_adjoint", "is_positive_definite", "is_square")


def given(names: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an `__init__`, of its `locals()`."""
    return {name: value for name, value in names.items() if name not in ("self", "__class__")}


def parameter(op: str, value: Any, rank: int, what: str) -> Any:
    """A Variable as it is, so that what it is assigned counts; anything else as a tensor.

    Raises ShapeError for less than `rank` axes.
    """
    x = value if isinstance(value, Variable) else as_tensor(value)
    known = x.shape.rank
    if known is None:
        rank_of(op, as_tensor(x))  # refuses it
    elif known < rank:
        fix = f"give a tensor of at least {counted(rank, 'axis', 'axes')}"
        refuse(op, f"{what} has {counted(known, 'axis', 'axes')}", as_tensor(x), fix=fix)
    return x


def row_count(op: str, what: str, value: Any) -> Any:
    """A number of rows or columns. Raises ShapeError for what is not a single integer from 0 on."""
    if isinstance(value, (list, tuple)) or getattr(value, "shape", ()):
        refuse(op, f"{what} is {shown(value)}", fix="give one int")
    return as_count(op, what, value)


def implied(op: str, hint: str, value: bool | None, fact: bool, reason: str) -> bool:
    """What a hint must be. Raises ValueError if it is given as the contrary."""
    if value is not None and bool(value) is not fact:
        fail(
            SignatureError,
            f"{op}: {hint} is {value}, but {reason}",
            fix=f"leave {hint} out, or set it to {fact}",
        )
    return fact


def all_hint(operators: Iterable[Any], hint: str) -> bool:
    """Whether all operators are known to be what the hint says."""
    return all(getattr(operator, hint) is True for operator in operators)


def joined_name(operators: Sequence[Any], sign: str) -> str:
    """The name of what is made of several operators, unless the user gives one."""
    return sign.join(operator.name for operator in operators)


def common_dtype(op: str, operators: Sequence[Any]) -> Any:
    """The dtype of all operators. Raises TypeError where there are several, ValueError for none."""
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
    """The leading axes that those of several operators or tensors broadcast to."""
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
    """Matrices with leading axes that are at least `lead`."""
    return with_batch(x, common_batch("matmul", (x.type.shape[:-2], lead)))


def conjugate_if(is_adjoint: bool, x: Tensor) -> Tensor:
    """x, or its complex conjugate."""
    return conj(x) if is_adjoint and x.dtype.is_complex else x


def not_here(op: str, fact: str, fix: str) -> Any:
    """Raises what TensorFlow raises as NotImplementedError."""
    fail(HintError, f"{op}: {fact}", fix=fix)


def zeros_of(lead: Sequence[Any], dtype: Any) -> Tensor:
    """Zeros for each matrix."""
    return zeros(list(lead), dtype)


def folded(combine: Callable[[Any, Any], Any], values: Iterable[Any]) -> Any:
    """One value of several."""
    rest = iter(values)
    found = next(rest)
    for value in rest:
        found = combine(found, value)
    return found
