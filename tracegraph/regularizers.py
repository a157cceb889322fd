"""Regularizers: functions of a weight, or of a layer's output, whose values are added to the
loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegraph.api.absent import publish
from tracegraph.array.arguments import as_choice, as_number, identified, refuse, sizes_of
from tracegraph.array.creation import eye
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.elementwise.unary import abs, square
from tracegraph.math.norms import l2_normalize
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_sum
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.module import WithSettings
from tracegraph.typing import TensorLike


class Regularizer(WithSettings):
    """A function from a tensor to a scalar, which is added to the loss."""

    def __init__(self) -> None:
        pass  # that of `object` would raise Python's own errors for arguments

    def __call__(self, x: TensorLike) -> Tensor:
        raise NotImplementedError


class L1L2(Regularizer):
    """l1 * sum(abs(x)) + l2 * sum(x ** 2), as in the elastic net of Zou and Hastie (2005).

    Raises TypeError for a factor that is not a number, ValueError for a negative one.

    >>> tg.regularizers.L1L2(l1=1.0, l2=10.0)([1.0, -2.0]).numpy().item()
    53.0
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1 = as_number("L1L2", "l1", 0.0 if l1 is None else l1, low=0)
        self.l2 = as_number("L1L2", "l2", 0.0 if l2 is None else l2, low=0)

    def __call__(self, x: TensorLike) -> Tensor:
        return add(L1(self.l1)(x), L2(self.l2)(x))


class L1(Regularizer):
    """l1 * sum(abs(x)), the penalty of the lasso (Tibshirani 1996).

    >>> tg.regularizers.L1(0.5)([1.0, -2.0]).numpy().item()
    1.5
    """

    def __init__(self, l1: float = 0.01) -> None:
        self.l1 = as_number("L1", "l1", 0.01 if l1 is None else l1, low=0)

    def __call__(self, x: TensorLike) -> Tensor:
        return multiply(reduce_sum(abs(as_tensor(x))), self.l1)


class L2(Regularizer):
    """l2 * sum(x ** 2), the penalty of ridge regression (Hoerl and Kennard 1970).

    >>> tg.regularizers.L2(0.5)([1.0, -2.0]).numpy().item()
    2.5
    """

    def __init__(self, l2: float = 0.01) -> None:
        self.l2 = as_number("L2", "l2", 0.01 if l2 is None else l2, low=0)

    def __call__(self, x: TensorLike) -> Tensor:
        return multiply(reduce_sum(square(as_tensor(x))), self.l2)


class OrthogonalRegularizer(Regularizer):
    """factor times the mean of abs(cosine) over all pairs of rows, or of columns, of a matrix,
    which is 0 if they are orthogonal.

    - `mode`: "rows" or "columns".

    Raises ShapeError unless the weight is a matrix.

    >>> tg.regularizers.OrthogonalRegularizer(1.0)([[1.0, 0.0], [3.0, 0.0]]).numpy().item()
    1.0
    """

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        self.factor = as_number("OrthogonalRegularizer", "factor", factor, low=0)
        self.mode = as_choice("OrthogonalRegularizer", "mode", mode, ("rows", "columns"))

    def __call__(self, x: TensorLike) -> Tensor:
        matrix = as_tensor(x)
        sizes = sizes_of("OrthogonalRegularizer", matrix)
        if len(sizes) != 2:
            fact = f"{matrix.type} does not have 2 axes"
            refuse("OrthogonalRegularizer", fact, matrix, fix="regularize a matrix")
        by_rows = self.mode == "rows"
        unit = l2_normalize(matrix, axis=1 if by_rows else 0)
        cosines = matmul(unit, unit, transpose_a=not by_rows, transpose_b=by_rows)
        count: Any = sizes[0 if by_rows else 1]
        others = multiply(cosines, subtract(1.0, eye(count, dtype=matrix.dtype)))
        pairs = count * (count - 1) / 2
        return multiply(reduce_sum(abs(others)), 0.5 * self.factor / max(pairs, 1))


l1, l2, l1_l2, orthogonal_regularizer = L1, L2, L1L2, OrthogonalRegularizer

_BY_NAME: dict[str, type[Regularizer]] = {
    **{kind.__name__: kind for kind in (L1, L2, L1L2, OrthogonalRegularizer)},
    "l1": L1,
    "l2": L2,
    "l1_l2": L1L2,
    "orthogonal_regularizer": OrthogonalRegularizer,
}


def get(identifier: object) -> Callable[[TensorLike], Tensor] | None:
    """The regularizer of a name such as "l2", a function unchanged, or None for None.

    >>> float(tg.regularizers.get("l2")([10.0]))
    1.0
    """
    return identified("regularizer", identifier, _BY_NAME)


__all__ = [
    "L1",
    "L1L2",
    "L2",
    "OrthogonalRegularizer",
    "Regularizer",
    "get",
    "l1",
    "l1_l2",
    "l2",
    "orthogonal_regularizer",
]

publish(__name__)
