"""SparseJacobian: the entries of a Jacobian that can be nonzero, and their positions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.core.shapes import same_size
from tracegraph.eager.provenance import comes_of_variable
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import DTypeError, ShapeError, fail, shown
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.jacobians.sparse_products import Sparsity, index_type
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import constant
from tracegraph.ops.elementwise import MUL
from tracegraph.ops.index import Gather, ScatterAdd
from tracegraph.ops.shape import Reshape, Transpose
from tracegraph.tracing.trace import Trace

if TYPE_CHECKING:
    from tracegraph.core.types import DType


class SparseJacobian:
    """A Jacobian as a sparse matrix, returned by `tape.jacobian(y, x, sparse=True)`.

    Rows are the elements of the target in row-major order, columns those of the source.

    - `values`: a tensor of shape (nnz,), the entries, ordered by row and then by column;
    - `rows`, `cols`: NumPy arrays of shape (nnz,), the indices of each entry;
    - `shape`: (elements of the target, elements of the source);
    - `nnz`: the number of entries, including those that happen to be zero;
    - `colors`: how many products with the Jacobian it took. If most entries can be nonzero, this is
      the number of rows or columns, and the dense Jacobian is computed.

    `j @ x` and `x @ j` multiply by vectors and matrices, `j.T` transposes, and `2 * j`, `j / 2` and
    `-j` scale: all of them work on the entries alone.

    As a nested structure it has one tensor, its values, so functions can take and return it.

    >>> @tg.function
    ... def slopes(x):
    ...     with tg.GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = x * x
    ...     return tape.jacobian(y, x, sparse=True)
    >>> slopes(tg.constant([1.0, 2.0]))
    <tg.SparseJacobian: shape=(2, 2), nnz=2, colors=1, dtype=float32>
    """

    def __init__(
        self,
        values: Tensor,
        sparsity: Sparsity,
        target_shape: tuple[int, ...],
        source_shape: tuple[int, ...],
    ) -> None:
        _open_in_structures()
        self.values = values
        self._rest = (sparsity, target_shape, source_shape)
        self.rows = sparsity.rows
        self.cols = sparsity.columns
        self.shape = sparsity.shape
        self.nnz = len(sparsity.rows)
        self.colors = sparsity.colouring.forward + sparsity.colouring.reverse
        self._dense_shape = (*target_shape, *source_shape)

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    def to_dense(self) -> Tensor:
        """The dense Jacobian, as from `tape.jacobian`: the target's shape followed by the source's.

        >>> x = tg.constant([1.0, 2.0])
        >>> with tg.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> tape.jacobian(y, x, sparse=True).to_dense().numpy()
        array([[2., 0.],
               [0., 4.]], dtype=float32)
        """
        height, width = self.shape
        places = constant(_index(self.rows * width + self.cols, height * width))
        start = full(0, self.values.type.with_shape((height * width,)))
        return Reshape(self._dense_shape)(ScatterAdd(0, 0)(start, _column(places), self.values))

    def to_scipy(self) -> Any:
        """The matrix as a `scipy.sparse.csr_array`. Raises TraceError while tracing."""
        from scipy.sparse import csr_array

        return csr_array((np.array(host_array(self.values)), (self.rows, self.cols)), self.shape)

    @property
    def T(self) -> SparseJacobian:
        """The transposed matrix, with its entries in its own row order."""
        sparsity, target_shape, source_shape = self._rest
        order = constant(_index(sparsity.order_by_column, self.nnz))
        values = Gather(0, 0)(self.values, order)
        return SparseJacobian(values, sparsity.transposed, source_shape, target_shape)

    def __matmul__(self, other: Any) -> Tensor:
        """The product with a vector of shape (columns,), or a matrix of shape (columns, k)."""
        x = self._factor(other)
        size = self.shape[1]
        if not x.type.shape or same_size(x.type.shape[0], size) is None or len(x.type.shape) > 2:
            fix = f"multiply it by a vector of {size} elements, or a matrix of as many rows"
            self._refuse_factor(f"was multiplied by {x.type}", x, fix)
        picked = Gather(0, 0)(x, constant(_index(self.cols, self.shape[1])))
        entries = BroadcastTo(picked.type.shape, (0,))(self.values)
        start = full(0, x.type.with_shape((self.shape[0], *x.type.shape[1:])))
        rows = constant(_index(self.rows, self.shape[0]))
        return ScatterAdd(0, 0)(start, _column(rows), MUL(entries, picked))

    def __rmatmul__(self, other: Any) -> Tensor:
        """The product of a vector of shape (rows,), or a matrix of shape (k, rows), with it."""
        x = self._factor(other)
        size = self.shape[0]
        if not x.type.shape or same_size(x.type.shape[-1], size) is None or len(x.type.shape) > 2:
            fix = f"multiply a vector of {size} elements by it, or a matrix of as many columns"
            self._refuse_factor(f"was given as the factor of {x.type}", x, fix)
        if len(x.type.shape) == 1:
            return self.T @ x
        turned = Transpose((1, 0))
        return turned(self.T @ turned(x))

    def __mul__(self, other: Any) -> SparseJacobian:
        """Every entry times a scalar: a Python number, or a tensor without axes."""
        return SparseJacobian(self.values * self._scale(other), *self._rest)  # type: ignore[operator]

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseJacobian:
        """Every entry divided by a scalar."""
        return SparseJacobian(self.values / self._scale(other), *self._rest)  # type: ignore[operator]

    def __neg__(self) -> SparseJacobian:
        return SparseJacobian(-self.values, *self._rest)  # type: ignore[operator]

    def __getitem__(self, index: Any) -> NoReturn:
        fail(
            DTypeError,
            f"an item of a sparse Jacobian of shape {self.shape} was asked for: {shown(index)}",
            fix="use j.to_dense()[...] or j.to_scipy()[...], or j.values, j.rows and j.cols",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Products with an array on the left, as NumPy calls them; no other ufunc is supported."""
        reflected = {np.matmul: self.__rmatmul__, np.multiply: self.__rmul__}.get(ufunc)
        if reflected is None or method != "__call__" or keywords or len(inputs) != 2:
            return self.__array__()
        return reflected(inputs[0]) if inputs[1] is self else self.__array__()

    def _factor(self, other: Any) -> Tensor:
        return as_tensor(other, None if isinstance(other, Tensor) else self.values.dtype)

    def _scale(self, other: Any) -> Tensor:
        x = self._factor(other)
        if x.type.shape != ():
            fix = "multiply by one number, or take j.to_dense() for products by elements"
            self._refuse_factor(f"was scaled by {x.type}", x, fix)
        return x

    def _refuse_factor(self, what: str, x: Tensor, fix: str) -> NoReturn:
        fact = f"a sparse Jacobian of shape {self.shape} {what}"
        fail(ShapeError, fact, operands=[operand_text(x)], fix=fix)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        fail(
            DTypeError,
            f"a sparse Jacobian of shape {self.shape} with {self.nnz} entries was taken for an "
            "array",
            fix="use j.to_dense() or j.to_scipy(), or j.values for the entries alone",
        )

    def __repr__(self) -> str:
        values = self.values
        dtype = values.dtype.name if isinstance(values, Tensor) else values  # a place in a nest
        return (
            f"<tg.SparseJacobian: shape={self.shape}, nnz={self.nnz}, colors={self.colors}, "
            f"dtype={dtype}>"
        )


@functools.cache
def _open_in_structures() -> None:
    """Registers sparse Jacobians as nests: the values are leaves, the rest is structure."""
    nest.tree_util().register_pytree_node(
        SparseJacobian,
        lambda matrix: ((matrix.values,), matrix._rest),
        lambda rest, leaves: _repacked(next(iter(leaves)), rest),
    )


def _repacked(values: Any, rest: tuple[Any, ...]) -> SparseJacobian:
    """The matrix with other values. A loop stacks them, but matrices cannot be stacked."""
    if isinstance(values, Tensor) and len(values.type.shape) != 1:
        fail(
            ShapeError,
            f"the values of a sparse Jacobian are a vector, and these are {values.type}: a loop "
            "stacked those of its iterations",
            operands=[operand_text(values)],
            fix="return j.values or j.to_dense() from the loop",
        )
    return SparseJacobian(values, *rest)


def known_value(tensor: Tensor) -> np.ndarray | None:
    """The value of a tensor that is computed already, or that a function being traced captures.

    Floating-point values derived from a Variable do not count: the next step changes them, and
    different zeros would mean another pattern and another program.
    """
    node = tensor.node
    if node is not None and isinstance(node.builder, Trace):
        outer = next((x for x, own in node.builder.captures.items() if own is tensor), None)
        return None if outer is None else known_value(outer)
    if node is not None or (tensor.dtype.is_differentiable and comes_of_variable(tensor)):
        return None
    return host_array(tensor)


def _index(places: np.ndarray, limit: int) -> np.ndarray:
    return places.astype(index_type(limit))


def _column(indices: Tensor) -> Tensor:
    """Indices as vectors of length 1."""
    return Reshape((*indices.type.shape, 1))(indices)
