"""Products of two operators, which keep their structure where possible."""

from __future__ import annotations

from typing import Any

from tracegraph.linalg.operators.arguments import common_batch
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.operators.circulant import Circular
from tracegraph.linalg.operators.composites.block_operators import LinearOperatorBlockDiag
from tracegraph.linalg.operators.composites.composition import LinearOperatorComposition
from tracegraph.linalg.operators.dense import LinearOperatorLowerTriangular
from tracegraph.linalg.operators.diagonal import (
    Diagonal,
    LinearOperatorDiag,
    LinearOperatorIdentity,
    LinearOperatorScaledIdentity,
    LinearOperatorZeros,
)
from tracegraph.math.product import matmul
from tracegraph.operands.conversion import as_tensor


def product(left: LinearOperator, right: LinearOperator) -> LinearOperator:
    """The operator of the products, whose sizes fit."""
    if _is_one(left):
        return right
    if _is_one(right):
        return left
    if isinstance(left, LinearOperatorZeros) or isinstance(right, LinearOperatorZeros):
        return _zeros(left, right)
    for kind, join in _JOINS:
        if isinstance(left, kind) and isinstance(right, kind):
            found = join(left, right)
            if found is not None:
                return found
    return LinearOperatorComposition([left, right])


def _is_one(operator: LinearOperator) -> bool:
    """Whether it is an identity, without a batch that would broadcast its argument."""
    return isinstance(operator, LinearOperatorIdentity) and not operator.batch_shape


def _zeros(left: LinearOperator, right: LinearOperator) -> LinearOperator:
    lead = common_batch("matmul", (left.batch_shape, right.batch_shape))
    rows, columns = left.range_dimension, right.domain_dimension
    is_square = rows == columns
    return LinearOperatorZeros(
        rows, columns, lead, left.dtype, is_square=is_square, is_self_adjoint=is_square
    )


def _regular(left: Any, right: Any) -> bool | None:
    """Whether both are known to have inverses."""
    return True if left.is_non_singular and right.is_non_singular else None


def _real_hints(left: Any, right: Any) -> dict[str, Any]:
    """The promises of a product of two commuting operators."""
    is_self_adjoint = True if left.is_self_adjoint and right.is_self_adjoint else None
    is_definite = left.is_positive_definite and right.is_positive_definite and is_self_adjoint
    return {
        "is_non_singular": _regular(left, right),
        "is_self_adjoint": is_self_adjoint,
        "is_positive_definite": True if is_definite else None,
    }


def _scaled(left: Any, right: Any) -> LinearOperator:
    multiplier = as_tensor(left.multiplier) * as_tensor(right.multiplier)
    rows = left.domain_dimension
    return LinearOperatorScaledIdentity(rows, multiplier, **_real_hints(left, right))


def _diagonal(left: Any, right: Any) -> LinearOperator:
    return LinearOperatorDiag(left.diag_part() * right.diag_part(), **_real_hints(left, right))


def _triangular(left: Any, right: Any) -> LinearOperator:
    return LinearOperatorLowerTriangular(
        matmul(left.to_dense(), right.to_dense()), is_non_singular=_regular(left, right)
    )


def _circulant(left: Any, right: Any) -> LinearOperator | None:
    if type(left) is not type(right) or left.block_shape != right.block_shape:
        return None
    spectrum = as_tensor(left.spectrum) * as_tensor(right.spectrum)
    return left._with(spectrum, **_real_hints(left, right))


def _block_diagonal(left: Any, right: Any) -> LinearOperator | None:
    if left._column_sizes() != right._row_sizes():
        return None
    pairs = zip(left.operators, right.operators, strict=True)
    blocks = [product(x, y) for x, y in pairs]
    is_square = all(block.is_square for block in blocks)
    return LinearOperatorBlockDiag(blocks, is_square=True if is_square else None)


#: How to multiply two operators of the same kind; None if they do not match.
_JOINS: tuple[tuple[Any, Any], ...] = (
    (LinearOperatorScaledIdentity, _scaled),
    (Diagonal, _diagonal),
    ((Diagonal, LinearOperatorLowerTriangular), _triangular),
    (Circular, _circulant),
    (LinearOperatorBlockDiag, _block_diagonal),
)

LinearOperator.kinds["product"] = product
