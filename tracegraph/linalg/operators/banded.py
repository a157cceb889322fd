"""Operators given by diagonals: Toeplitz and tridiagonal matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import given, refuse
from tracegraph.array.creation import range as numbers_from
from tracegraph.array.indexing.selection import gather
from tracegraph.array.joining import concat, stack
from tracegraph.array.shaping import cut, expand_dims, reverse, roll
from tracegraph.core.shapes import same_shape
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import common_batch, conjugate_if, parameter, spread
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.operators.circulant import as_complex, in_dtype
from tracegraph.linalg.parts import adjoint as adjoint_of, diag
from tracegraph.linalg.systems import compact_diagonals, tridiagonal_matmul, tridiagonal_solve
from tracegraph.math.elementwise.logic import equal
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops.contract import swap_last
from tracegraph.ops.shape import Reshape, with_size
from tracegraph.signal.transforms import fft, ifft
from tracegraph.typing import TensorLike


class LinearOperatorToeplitz(LinearOperator):
    """Toeplitz matrices, which are constant along each diagonal.

    - `col`: the first columns, [..., n].
    - `row`: the first rows, [..., n], which begin with the same number as `col`.
    - The promises are those of `tg.linalg.LinearOperator`.

    Products use `tg.signal.fft`. Raises ShapeError if the sizes differ.

    >>> tg.linalg.LinearOperatorToeplitz([1.0, 2.0], [1.0, 3.0]).to_dense().numpy()
    array([[1., 3.],
           [2., 1.]], dtype=float32)
    """

    def __init__(
        self,
        col: TensorLike,
        row: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorToeplitz",
    ) -> None:
        arguments = given(locals())
        self._col = parameter(name, col, 1, "col")
        self._row = parameter(name, row, 1, "row")
        if same_shape(tuple(self._col.shape[-1:]), tuple(self._row.shape[-1:])) is None:
            fact = f"col has the shape {self._col.shape}, row {self._row.shape}"
            refuse(name, fact, fix="give both as many numbers along the last axis")
        if isinstance(self._row, Tensor):
            self._row = with_size(self._row, self._row.ndim - 1, self._col.shape[-1])
        if self._col.dtype is not self._row.dtype:
            fact = f"{name}: col is of {self._col.dtype.name}, row of {self._row.dtype.name}"
            fail(SignatureError, fact, fix="give both of one dtype")
        square = (True, "such matrices are square")
        self._promise(self._col.dtype, arguments, is_square=square)

    @property
    def col(self) -> Tensor:
        """The first columns."""
        return self._col

    @property
    def row(self) -> Tensor:
        """The first rows."""
        return self._row

    def _shape(self) -> Any:
        lead = common_batch(self.name, (self._col.shape[:-1], self._row.shape[:-1]))
        return (*lead, self._col.shape[-1], self._col.shape[-1])

    def _edges(self, is_adjoint: bool = False) -> tuple[Tensor, Tensor]:
        """The first column and row, without their common element, broadcast to the same batch."""
        size, lead = self._col.shape[-1], tuple(self.batch_shape)
        col, row = (broadcast(as_tensor(x), (*lead, size)) for x in (self._col, self._row))
        rest = cut(row, len(lead), 1, size)
        if not is_adjoint:
            return col, rest
        corner = cut(col, len(lead), 0, 1)
        first = conjugate_if(True, concat([corner, rest], -1))
        return first, conjugate_if(True, cut(col, len(lead), 1, size))

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        """The first half of a circular convolution of twice the size."""
        x = adjoint_of(x) if adjoint_arg else x
        col, rest = self._edges(adjoint)
        kernel = as_complex(concat([col, reverse(rest, [-1])], -1))
        lead = common_batch("matmul", (self.batch_shape, x.type.shape[:-2]))
        size, count = x.type.shape[-2:]
        columns = swap_last(broadcast(cast_to(x, kernel.dtype), (*lead, size, count)))
        empty = broadcast(as_tensor(0, kernel.dtype), (*lead, count, size - 1))
        product = ifft(fft(concat([columns, empty], -1)) * fft(expand_dims(kernel, -2)))
        return in_dtype(swap_last(cut(product, len(lead) + 1, 0, size)), self.dtype)

    def _to_dense(self) -> Tensor:
        col, rest = self._edges()
        size = col.type.shape[-1]
        numbers = concat([reverse(rest, [-1]), col], -1)  # starting with the topmost diagonal
        rows = numbers_from(size)
        return gather(numbers, rows[:, None] - rows + (size - 1), axis=-1)

    def _trace(self) -> Tensor:
        col, _ = self._edges()
        return col[..., 0] * cast_to(as_tensor(self.domain_dimension), self.dtype)

    def _diag_part(self) -> Tensor:
        col, _ = self._edges()
        return broadcast(col[..., :1], tuple(self.shape[:-1]))

    def _assert_self_adjoint(self) -> None:
        col, row = as_tensor(self._col), as_tensor(self._row)
        holds = equal(col, conjugate_if(True, row))
        self._check(holds, "row is not the conjugate of col", col, row)

    def _linop_adjoint(self) -> LinearOperator:
        col, rest = self._edges(is_adjoint=True)
        row = concat([col[..., :1], rest], -1)
        return LinearOperatorToeplitz(col, row, **self._hints_given())


class LinearOperatorTridiag(LinearOperator):
    """Tridiagonal matrices.

    - `diagonals`: in the format "compact", one tensor [..., 3, n] of the diagonals above, on and
      below the main one; see `tg.linalg.tridiagonal_solve`.
    - `diagonals_format`: "compact", or "sequence" or "matrix".
    - The promises are those of `tg.linalg.LinearOperator`.

    Products and solutions take time proportional to n.

    >>> compact = [[1.0, 0.0], [2.0, 2.0], [0.0, 1.0]]
    >>> tg.linalg.LinearOperatorTridiag(compact).to_dense().numpy()
    array([[2., 1.],
           [1., 2.]], dtype=float32)
    """

    def __init__(
        self,
        diagonals: TensorLike | Sequence[TensorLike],
        diagonals_format: str = "compact",
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorTridiag",
    ) -> None:
        arguments = given(locals())
        self._diagonals_format = diagonals_format
        if diagonals_format == "sequence":
            self._diagonals = [parameter(name, x, 1, "a diagonal") for x in diagonals]  # type: ignore[union-attr]
        else:
            self._diagonals = parameter(name, diagonals, 2, "the tensor of diagonals")
        compact = self._compact()
        square = (True, "such matrices are square")
        self._promise(compact.dtype, arguments, is_square=square)
        self._sizes = compact.type.shape

    @property
    def diagonals(self) -> Tensor | list[Tensor]:
        """The diagonals, as given."""
        return self._diagonals

    @property
    def diagonals_format(self) -> str:
        """The format of `diagonals`."""
        return self._diagonals_format

    def _compact(self) -> Tensor:
        """The diagonals above, on and below the main one: [..., 3, n]."""
        given_ones = self._diagonals
        if isinstance(given_ones, list):
            given_ones = [as_tensor(x) for x in given_ones]
        name = "LinearOperatorTridiag"
        return swap_last(compact_diagonals(name, given_ones, self._diagonals_format))

    def _adjoint_compact(self) -> Tensor:
        """The diagonals of the adjoint; the elements that are not read wrap around."""
        compact = conjugate_if(True, self._compact())
        above, middle, below = (compact[..., k, :] for k in range(3))
        return stack([roll(below, -1, -1), middle, roll(above, 1, -1)], axis=-2)

    def _shape(self) -> Any:
        *lead, _, size = self._sizes
        return (*lead, size, size)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        return tridiagonal_matmul(self._adjoint_compact() if adjoint else self._compact(), x)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = spread(adjoint_of(rhs) if adjoint_arg else rhs, tuple(self.batch_shape))
        return tridiagonal_solve(self._adjoint_compact() if adjoint else self._compact(), rhs)

    def _diag_part(self) -> Tensor:
        return self._compact()[..., 1, :]

    def _to_dense(self) -> Tensor:
        compact = self._compact()
        last, size = compact.ndim - 2, compact.type.shape[-1]
        above, middle, below = (
            Reshape((*compact.type.shape[:-2], size))(cut(compact, last, k, k + 1))
            for k in range(3)
        )
        if size == 1:
            return diag(middle)
        beside = diag(above[..., :-1], k=1) + diag(below[..., 1:], k=-1)
        return diag(middle) + beside

    def _assert_self_adjoint(self) -> None:
        compact = self._compact()
        mirrored = self._adjoint_compact()
        holds = [equal(compact[..., 1, :], mirrored[..., 1, :])]
        holds += [equal(compact[..., 0, :-1], mirrored[..., 0, :-1])]
        for part in holds:
            self._check(part, "the diagonals are not those of an adjoint", compact)

    def _linop_adjoint(self) -> LinearOperator:
        return LinearOperatorTridiag(self._adjoint_compact(), **self._hints_given())
