"""Operators composed of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import given, refuse
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut, expand_dims, squeeze
from tracegraph.core.shapes import same_size
from tracegraph.errors import SignatureError, fail, were
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import (
    HINTS,
    all_hint,
    common_batch,
    common_dtype,
    folded,
    with_batch,
)
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.operators.composites.composition import Several
from tracegraph.linalg.parts import adjoint as adjoint_of
from tracegraph.math.elementwise.arithmetic import multiply
from tracegraph.operands.conversion import as_tensor, broadcast


class _Blocks(Several):
    """An operator whose rows, and columns, are those of its blocks one after another.

    Arguments may be lists of blocks; the results then are lists of blocks too.
    """

    def _row_sizes(self) -> list[Any]:
        return [operator.range_dimension for operator in self._operators]

    def _eigvals(self) -> Tensor:
        return self._joined_vectors(self._all(lambda operator: operator.eigvals()))

    def _column_sizes(self) -> list[Any]:
        raise NotImplementedError

    def _multiplied(self, parts: list[Tensor], is_adjoint: bool) -> list[Tensor]:
        raise NotImplementedError

    def _solved(self, parts: list[Tensor], is_adjoint: bool) -> list[Tensor]:
        raise NotImplementedError

    def matmul(
        self, x: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "matmul"
    ) -> Any:
        """The product of the matrices and x, or of their adjoints; see `LinearOperator.matmul`.

        - `x`: a tensor, another operator, or a list of tensors, one per block; for a list, the
          product is such a list.
        """
        if not _is_blocks(x):
            return super().matmul(x, adjoint, adjoint_arg)
        sizes = self._row_sizes() if adjoint else self._column_sizes()
        return self._multiplied(self._block_arguments("matmul", x, sizes, adjoint_arg), adjoint)

    def matvec(self, x: Any, adjoint: bool = False, name: str = "matvec") -> Any:
        """The products of the matrices and vectors, or a list of them, one per block."""
        if not _is_blocks(x):
            return super().matvec(x, adjoint)
        columns = [expand_dims(as_tensor(part, self.dtype), -1) for part in x]
        return [squeeze(part, -1) for part in self.matmul(columns, adjoint)]

    def solve(
        self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "solve"
    ) -> Any:
        """The x with A x = rhs, or A^H x = rhs; see `LinearOperator.solve`.

        - `rhs`: a tensor, another operator, or a list of tensors, one per block; for a list, the
          solution is such a list.
        """
        if not _is_blocks(rhs):
            return super().solve(rhs, adjoint, adjoint_arg)
        self._refuse_singular("solve")
        sizes = self._column_sizes() if adjoint else self._row_sizes()
        return self._solved(self._block_arguments("solve", rhs, sizes, adjoint_arg), adjoint)

    def solvevec(self, rhs: Any, adjoint: bool = False, name: str = "solve") -> Any:
        """The solutions for vectors, or a list of them, one per block; see `solve`."""
        if not _is_blocks(rhs):
            return super().solvevec(rhs, adjoint)
        columns = [expand_dims(as_tensor(part, self.dtype), -1) for part in rhs]
        return [squeeze(part, -1) for part in self.solve(columns, adjoint)]

    def _block_arguments(
        self, op: str, parts: Any, sizes: list[Any], is_adjoint: bool
    ) -> list[Tensor]:
        if len(parts) != len(sizes):
            fact = f"{self.name}.{op}: there are {len(sizes)} blocks, and {were(len(parts))} given"
            fail(SignatureError, fact, fix="give one tensor for each block, or one for all")
        found = [
            self._argument(op, part, n, is_adjoint) for part, n in zip(parts, sizes, strict=True)
        ]
        return [adjoint_of(part) for part in found] if is_adjoint else found

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        sizes = self._row_sizes() if adjoint else self._column_sizes()
        return _joined(self._multiplied(_parted(x, sizes), adjoint))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        sizes = self._column_sizes() if adjoint else self._row_sizes()
        return _joined(self._solved(_parted(rhs, sizes), adjoint))

    def _joined_vectors(self, parts: Sequence[Tensor]) -> Tensor:
        lead = tuple(self.batch_shape)
        return concat([broadcast(part, (*lead, part.type.shape[-1])) for part in parts], -1)


class LinearOperatorBlockDiag(_Blocks):
    """Block diagonal matrices.

    - `operators`: those of the blocks; the leading axes broadcast.
    - The promises are those of `tg.linalg.LinearOperator`; those that all blocks make hold for it.

    >>> blocks = [tg.linalg.LinearOperatorDiag([2.0]), tg.linalg.LinearOperatorIdentity(2)]
    >>> tg.linalg.LinearOperatorBlockDiag(blocks).matvec([1.0, 1.0, 1.0]).numpy()
    array([2., 1., 1.], dtype=float32)
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = True,
        name: str | None = None,
    ) -> None:
        arguments = given(locals())
        dtype, name = self._set_operators(operators, name, "_ds_")
        common = [hint for hint in HINTS if hint != "is_square"]
        facts = {hint: (all_hint(operators, hint) or None, "all operators are") for hint in common}
        self._promise(dtype, arguments, name, **facts)

    def _column_sizes(self) -> list[Any]:
        return [operator.domain_dimension for operator in self._operators]

    def _shape(self) -> Any:
        return (*self._common_lead(), sum(self._row_sizes()), sum(self._column_sizes()))

    def _multiplied(self, parts: list[Tensor], is_adjoint: bool) -> list[Tensor]:
        pairs = zip(self._operators, parts, strict=True)
        return [operator.matmul(part, adjoint=is_adjoint) for operator, part in pairs]

    def _solved(self, parts: list[Tensor], is_adjoint: bool) -> list[Tensor]:
        pairs = zip(self._operators, parts, strict=True)
        return [operator.solve(part, adjoint=is_adjoint) for operator, part in pairs]

    def _trace(self) -> Tensor:
        if not self._are_square():
            return super()._trace()
        return sum(self._all(lambda operator: operator.trace()))  # type: ignore

    def _diag_part(self) -> Tensor:
        if not self._are_square():
            return super()._diag_part()
        return self._joined_vectors(self._all(lambda operator: operator.diag_part()))

    def _assert_positive_definite(self) -> None:
        for operator in self._operators:
            operator.assert_positive_definite()

    def _assert_self_adjoint(self) -> None:
        for operator in self._operators:
            operator.assert_self_adjoint()

    def _linop_adjoint(self) -> LinearOperator:
        return self._of([operator.adjoint() for operator in self._operators])

    def _linop_inverse(self) -> LinearOperator:
        return self._of([operator.inverse() for operator in self._operators])

    def _linop_cholesky(self) -> LinearOperator:
        factors = [operator.cholesky() for operator in self._operators]
        return LinearOperatorBlockDiag(factors, is_non_singular=True)

    def _of(self, operators: list[LinearOperator]) -> LinearOperator:
        return LinearOperatorBlockDiag(operators, **self._hints_given())


class LinearOperatorBlockLowerTriangular(_Blocks):
    """Block lower triangular matrices.

    - `operators`: a list of rows of blocks; row i has i + 1 of them, and the last one is square.
    - The promises are those of `tg.linalg.LinearOperator`.

    Equations are solved block by block. Raises ValueError if the blocks do not fit.

    >>> one, two = (tg.linalg.LinearOperatorFullMatrix([[x]]) for x in (1.0, 2.0))
    >>> tg.linalg.LinearOperatorBlockLowerTriangular([[one], [two, one]]).to_dense().numpy()
    array([[1., 0.],
           [2., 1.]], dtype=float32)
    """

    def __init__(
        self,
        operators: Sequence[Sequence[LinearOperator]],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorBlockLowerTriangular",
    ) -> None:
        arguments = given(locals())
        self._rows = [list(row) for row in operators]
        _check_rows(name, self._rows)
        self._operators = [row[-1] for row in self._rows]
        dtype = common_dtype(name, [operator for row in self._rows for operator in row])
        is_regular: bool | None = all_hint(self._operators, "is_non_singular") or None
        reason = "those on the diagonal are"
        if any(block.is_non_singular is False for block in self._operators):
            is_regular, reason = False, "a block on the diagonal is singular"
        square = (True, "the blocks are square")
        self._promise(dtype, arguments, is_non_singular=(is_regular, reason), is_square=square)

    @property
    def operators(self) -> list[list[LinearOperator]]:
        """The rows of blocks that the operator was created from."""
        return [list(row) for row in self._rows]

    def _column_sizes(self) -> list[Any]:
        return self._row_sizes()

    def _shape(self) -> Any:
        size = sum(self._row_sizes())
        batches = (operator.batch_shape for row in self._rows for operator in row)
        return (*common_batch(self.name, batches), size, size)

    def _multiplied(self, parts: list[Tensor], is_adjoint: bool) -> list[Tensor]:
        return [self._sum(k, parts, is_adjoint, with_diagonal=True) for k in range(len(parts))]

    def _solved(self, parts: list[Tensor], is_adjoint: bool) -> list[Tensor]:
        """Solves for each block using those before it, or after it for the adjoint."""
        found: list[Any] = [None] * len(parts)
        order = range(len(parts))
        for k in reversed(order) if is_adjoint else order:
            known = self._sum(k, found, is_adjoint, with_diagonal=False)
            rest = parts[k] if known is None else parts[k] - known
            found[k] = self._operators[k].solve(rest, adjoint=is_adjoint)
        return found

    def _sum(self, k: int, parts: list[Any], is_adjoint: bool, with_diagonal: bool) -> Any:
        """Block k of the product; without the diagonal, None if there is nothing else."""
        if is_adjoint:
            first = k if with_diagonal else k + 1
            pairs = [(self._rows[i][k], parts[i]) for i in range(first, len(parts))]
        else:
            last = k + 1 if with_diagonal else k
            pairs = [(self._rows[k][j], parts[j]) for j in range(last)]
        terms = [block.matmul(part, adjoint=is_adjoint) for block, part in pairs]
        return sum(terms[1:], terms[0]) if terms else None

    def _to_dense(self) -> Tensor:
        sizes, lead = self._row_sizes(), tuple(self.batch_shape)
        rows = []
        for k, row in enumerate(self._rows):
            blocks = [with_batch(block.to_dense(), lead) for block in row]
            above = [self._empty(sizes[k], size, lead) for size in sizes[k + 1 :]]
            rows.append(concat([*blocks, *above], -1))
        return concat(rows, -2)

    def _empty(self, rows: Any, columns: Any, lead: tuple[Any, ...]) -> Tensor:
        return broadcast(as_tensor(0, self.dtype), (*lead, rows, columns))

    def _determinant(self) -> Tensor:
        return self._for_all(folded(multiply, self._all(lambda block: block.determinant())))

    def _log_abs_determinant(self) -> Tensor:
        return self._for_all(sum(self._all(lambda block: block.log_abs_determinant())))

    def _trace(self) -> Tensor:
        return self._for_all(sum(self._all(lambda block: block.trace())))

    def _for_all(self, x: Any) -> Tensor:
        """One number per matrix, even if only off-diagonal blocks have some of the axes."""
        return broadcast(x, tuple(self.batch_shape))

    def _diag_part(self) -> Tensor:
        return self._joined_vectors(self._all(lambda block: block.diag_part()))


def _check_rows(name: str, rows: list[list[LinearOperator]]) -> None:
    for k, row in enumerate(rows):
        if len(row) != k + 1:
            fact = f"{name}: row {k} has {len(row)} blocks, and there must be {k + 1}"
            fail(SignatureError, fact, fix="leave out the blocks above the diagonal")
        if row[-1].is_square is False:
            fact = f"{name}: block {k} on the diagonal has the shape {row[-1].shape}"
            fail(SignatureError, fact, fix="give square operators on the diagonal")
        for j, block in enumerate(row):
            wanted = rows[k][k].range_dimension, rows[j][j].domain_dimension
            pairs = zip(wanted, (block.range_dimension, block.domain_dimension), strict=True)
            if any(same_size(*pair) is None for pair in pairs):
                fact = f"block {j} of row {k} has the shape {block.shape}, which must end in "
                fix = "give blocks as high as that on the right, as wide as that below"
                refuse(name, f"{fact}{wanted}", fix=fix)


def _is_blocks(x: Any) -> bool:
    """Whether it is a list of tensors, rather than of numbers."""
    return isinstance(x, (list, tuple)) and bool(x) and all(hasattr(part, "dtype") for part in x)


def _parted(x: Tensor, sizes: Sequence[Any]) -> list[Tensor]:
    """The rows of x in parts of the given sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(cut(x, x.ndim - 2, start, start + size))
        start = start + size
    return parts


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts, whose leading axes broadcast."""
    lead = common_batch("matmul", (part.type.shape[:-2] for part in parts))
    return concat([with_batch(part, lead) for part in parts], -2)
