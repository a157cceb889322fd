"""The base class of linear operators."""

from __future__ import annotations

from typing import Any, ClassVar, overload

import numpy as np

from tracegraph.array.arguments import as_flag, rank_of, refuse
from tracegraph.array.creation import eye
from tracegraph.array.shaping import expand_dims, squeeze
from tracegraph.core.shapes import plain, same_size
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import DType, as_dtype, int32
from tracegraph.effects.checks_and_prints import check
from tracegraph.errors import ShapeError, SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.decompositions import eigvalsh, svd
from tracegraph.linalg.operators.arguments import HINTS, implied, not_here
from tracegraph.linalg.parts import adjoint as adjoint_of, diag_part
from tracegraph.linalg.systems import cholesky, cholesky_solve, det, slogdet, solve
from tracegraph.math.elementwise.logic import equal
from tracegraph.math.elementwise.unary import abs as absolute, log, real
from tracegraph.math.reduction import reduce_all, reduce_max, reduce_min, reduce_prod, reduce_sum
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.shape import with_size
from tracegraph.state.module import Module
from tracegraph.typing import DTypeLike, TensorLike


class LinearOperator(Module):
    """A stack of matrices [..., m, n], stored in a structured form.

    A subclass defines `_shape` and `_matmul`, and any methods that its structure makes cheap:
    `_solve`, `_determinant`, `_diag_part` and so on. The others are computed from the dense matrix.
    Arguments that are Variables are read at each use, so gradients and assignments count; the
    operator is a Module that finds them.

    - `dtype`: the dtype of the matrices, and of the tensors they are multiplied by.
    - `is_non_singular`, `is_self_adjoint`, `is_positive_definite`, `is_square`: promises, which
      choose the algorithm and are not checked; None promises nothing. Positive definite means
      that the real part of x^H A x is positive for every nonzero x.
    - `parameters`: the arguments that the operator was created with.

    Raises ValueError for promises that contradict each other or the shape.

    >>> class Doubling(tg.linalg.LinearOperator):
    ...     def _shape(self):
    ...         return tg.TensorShape([2, 2])
    ...
    ...     def _matmul(self, x, adjoint=False, adjoint_arg=False):
    ...         return 2 * (tg.linalg.adjoint(x) if adjoint_arg else x)
    >>> Doubling(tg.float32).to_dense().numpy()
    array([[2., 0.],
           [0., 2.]], dtype=float32)
    """

    _hidden = frozenset(["_parameters", "_dtype"])

    #: The operators that methods return, by short names; filled by the modules that define them.
    kinds: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        dtype: DTypeLike,
        graph_parents: object = None,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name or type(self).__name__)
        self._dtype = as_dtype(dtype)
        self._parameters = dict(parameters or {})
        promises = (is_non_singular, is_self_adjoint, is_positive_definite, is_square)
        flags: dict[str, Any] = dict(zip(HINTS, promises, strict=True))
        for hint, value in flags.items():
            if value is not None:
                flags[hint] = as_flag(self.name, hint, value)
        self._hints = _completed(self.name, flags)

    def _promise(
        self,
        dtype: Any,
        arguments: dict[str, Any],
        name: str | None = None,
        **facts: tuple[bool | None, str],
    ) -> None:
        """Sets up the operator from the arguments of its `__init__`: `given(locals())`. `facts` are
        promises implied by its kind, each with the reason; None is not implied."""
        name = name or arguments["name"]
        hints = {hint: arguments[hint] for hint in HINTS}
        for hint, (fact, reason) in facts.items():
            if fact is not None:
                hints[hint] = implied(str(name), hint, hints[hint], fact, reason)
        LinearOperator.__init__(self, dtype, name=name, parameters=arguments, **hints)

    def __repr__(self) -> str:
        return f"<tg.linalg.{type(self).__name__}: shape={self.shape}, dtype={self.dtype.name}>"

    # Properties.

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments that the operator was created with, by name."""
        return dict(self._parameters)

    @property
    def dtype(self) -> DType:
        """The dtype of the matrices."""
        return self._dtype

    @property
    def is_non_singular(self) -> bool | None:
        """Whether the matrices have inverses; None if unknown."""
        return self._hints["is_non_singular"]

    @property
    def is_self_adjoint(self) -> bool | None:
        """Whether the matrices are Hermitian; None if unknown."""
        return self._hints["is_self_adjoint"]

    @property
    def is_positive_definite(self) -> bool | None:
        """Whether the real part of x^H A x is positive for every nonzero x; None if unknown."""
        return self._hints["is_positive_definite"]

    @property
    def is_square(self) -> bool:
        """Whether there are as many rows as columns."""
        hint, shape = self._hints["is_square"], self.shape
        rows, columns = shape[-2], shape[-1]
        is_known = rows == columns or (type(rows) is int and type(columns) is int)
        if hint is not None and is_known and hint is not (rows == columns):
            fact = f"{self.name}: is_square is {hint}, and the shape is {shape}"
            fail(SignatureError, fact, fix="leave is_square out")
        return rows == columns if hint is None else hint

    def _can_use_cholesky(self) -> bool:
        return bool(self.is_self_adjoint and self.is_positive_definite)

    # Sizes.

    def _shape(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not state _shape")

    @property
    def shape(self) -> TensorShape:
        """The shape of the dense matrices: batch axes, rows, columns."""
        return TensorShape(self._shape())

    def shape_tensor(self, name: str = "shape_tensor") -> Tensor:
        """The shape as an int32 vector, which also works in functions with open sizes."""
        return _sizes_tensor(self.shape)

    @property
    def batch_shape(self) -> TensorShape:
        """The shape without rows and columns."""
        return self.shape[:-2]

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        """`batch_shape` as an int32 vector."""
        return _sizes_tensor(self.batch_shape)

    @property
    def tensor_rank(self) -> int | None:
        """The number of axes of the dense matrices."""
        return self.shape.rank

    def tensor_rank_tensor(self, name: str = "tensor_rank_tensor") -> Tensor:
        """`tensor_rank` as an int32 scalar."""
        return as_tensor(self.tensor_rank, int32)

    @property
    def domain_dimension(self) -> int:
        """The number of columns."""
        return self.shape[-1]

    def domain_dimension_tensor(self, name: str = "domain_dimension_tensor") -> Tensor:
        """The number of columns as an int32 scalar."""
        return as_tensor(self.domain_dimension, int32)

    @property
    def range_dimension(self) -> int:
        """The number of rows."""
        return self.shape[-2]

    def range_dimension_tensor(self, name: str = "range_dimension_tensor") -> Tensor:
        """The number of rows as an int32 scalar."""
        return as_tensor(self.range_dimension, int32)

    # Checks.

    def assert_non_singular(self, name: str = "assert_non_singular") -> None:
        """Checks that the matrices have inverses: that their condition numbers are below
        1 / (max(100, m, n) eps), where eps is the machine epsilon.

        Raises InvalidArgumentError, a ValueError, if one is singular.
        """
        return self._assert_non_singular()

    def _assert_non_singular(self) -> None:
        if self._can_use_cholesky():
            return self.assert_positive_definite()
        values = svd(self.to_dense(), compute_uv=False)
        low, high = reduce_min(values, -1), reduce_max(values, -1)
        # A product, so that a zero matrix, whose condition number is nan, is singular too.
        holds = high < low * self._max_condition_number_to_be_non_singular()
        self._check(holds, "the matrix is singular up to rounding", values)

    def _max_condition_number_to_be_non_singular(self) -> Any:
        sizes = [n for n in (self.range_dimension, self.domain_dimension) if type(n) is int]
        return 1 / (max(100, *sizes) * float(np.finfo(self.dtype.real_dtype.numpy_dtype).eps))

    def assert_positive_definite(self, name: str = "assert_positive_definite") -> None:
        """Checks that the real part of x^H A x is positive for every nonzero x.

        Raises InvalidArgumentError, a ValueError, if it is not.
        """
        return self._assert_positive_definite()

    def _assert_positive_definite(self) -> None:
        dense = self.to_dense()
        values = real(diag_part(cholesky(dense)))  # of the Hermitian part
        self._check(values > 0, "the matrix is not positive definite", dense)

    def assert_self_adjoint(self, name: str = "assert_self_adjoint") -> None:
        """Checks that the matrices equal their adjoints exactly.

        Raises InvalidArgumentError, a ValueError, if one is not.
        """
        return self._assert_self_adjoint()

    def _assert_self_adjoint(self) -> None:
        dense = self.to_dense()
        self._check(equal(dense, adjoint_of(dense)), "the matrix is not self-adjoint", dense)

    def _check(self, holds: Any, fact: str, *values: Tensor) -> None:
        """Checks a condition for all elements."""
        check(reduce_all(holds), f"{self.name}: {fact}", values)

    # Products.

    def _argument(self, op: str, x: Any, size: Any, is_adjoint: bool) -> Tensor:
        """A matrix with `size` rows, or columns, in the dtype of the operator."""
        x = as_tensor(x, self.dtype)
        if rank_of(op, x) < 2:
            fix = "use matvec or solvevec for vectors"
            refuse(op, f"{x.type} is not a matrix", x, fix=fix)
        axis = x.ndim - 1 if is_adjoint else x.ndim - 2
        own = x.type.shape[axis]
        if same_size(own, size) is None:
            fact = f"an operator of shape {self.shape} is given {own} rows, and needs {size}"
            refuse(op, f"{self.name}.{op}: {fact}", x, fix=f"give a tensor [..., {size}, k]")
        return with_size(x, axis, plain(size))

    def _inner_size(self, is_adjoint: bool) -> Any:
        return self.range_dimension if is_adjoint else self.domain_dimension

    @overload
    def matmul(
        self,
        x: LinearOperator,
        adjoint: bool = ...,
        adjoint_arg: bool = ...,
        name: str = ...,
    ) -> LinearOperator: ...
    @overload
    def matmul(
        self, x: TensorLike, adjoint: bool = ..., adjoint_arg: bool = ..., name: str = ...
    ) -> Tensor: ...
    def matmul(
        self, x: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "matmul"
    ) -> Any:
        """The product of the matrices [..., m, n] and x[..., n, k]; the leading axes broadcast.

        - `x`: a tensor, or another operator, which makes the product an operator.
        - `adjoint`: whether to multiply by the adjoint A^H, of shape [..., n, m].
        - `adjoint_arg`: whether x is given as its adjoint, [..., k, n].
        Raises ShapeError if the sizes do not fit, DTypeError if the dtypes differ.

        >>> tg.linalg.LinearOperatorDiag([1.0, 2.0]).matmul([[3.0], [3.0]]).numpy()
        array([[3.],
               [6.]], dtype=float32)
        """
        adjoint = as_flag("matmul", "adjoint", adjoint)
        adjoint_arg = as_flag("matmul", "adjoint_arg", adjoint_arg)
        if isinstance(x, LinearOperator):
            left, right = _turned(self, adjoint), _turned(x, adjoint_arg)
            _check_sizes(left, right, left.domain_dimension)
            return self.kinds["product"](left, right)
        x = self._argument("matmul", x, self._inner_size(adjoint), adjoint_arg)
        return self._matmul(x, adjoint=adjoint, adjoint_arg=adjoint_arg)

    @overload
    def __matmul__(self, other: LinearOperator) -> LinearOperator: ...
    @overload
    def __matmul__(self, other: TensorLike) -> Tensor: ...
    def __matmul__(self, other: Any) -> Any:
        return self.matmul(other)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not state _matmul")

    def matvec(self, x: TensorLike, adjoint: bool = False, name: str = "matvec") -> Tensor:
        """The products of the matrices [..., m, n], or their adjoints, and vectors x[..., n].

        >>> tg.linalg.LinearOperatorDiag([1.0, 2.0]).matvec([3.0, 3.0]).numpy()
        array([3., 6.], dtype=float32)
        """
        is_adjoint = as_flag("matvec", "adjoint", adjoint)
        return self._matvec(as_tensor(x, self.dtype), adjoint=is_adjoint)

    def _matvec(self, x: Tensor, adjoint: bool = False) -> Tensor:
        return squeeze(self.matmul(_column("matvec", x), adjoint=adjoint), -1)

    # Solutions.

    @overload
    def solve(
        self,
        rhs: LinearOperator,
        adjoint: bool = ...,
        adjoint_arg: bool = ...,
        name: str = ...,
    ) -> LinearOperator: ...
    @overload
    def solve(
        self, rhs: TensorLike, adjoint: bool = ..., adjoint_arg: bool = ..., name: str = ...
    ) -> Tensor: ...
    def solve(
        self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "solve"
    ) -> Any:
        """The x with A x = rhs, for right-hand sides rhs[..., n, k]; the leading axes broadcast.

        - `rhs`: a tensor, or another operator, which makes the solution an operator.
        - `adjoint`: whether to solve A^H x = rhs.
        - `adjoint_arg`: whether rhs is given as its adjoint, [..., k, n].

        A singular matrix gives inf or nan. Raises ShapeError if the sizes do not fit, and, if the
        operator is known to be singular or not square, an error that is a ValueError and a
        NotImplementedError.

        >>> tg.linalg.LinearOperatorDiag([1.0, 2.0]).solve([[3.0], [3.0]]).numpy()
        array([[3. ],
               [1.5]], dtype=float32)
        """
        adjoint = as_flag("solve", "adjoint", adjoint)
        adjoint_arg = as_flag("solve", "adjoint_arg", adjoint_arg)
        self._refuse_singular("solve")
        if isinstance(rhs, LinearOperator):
            left, right = _turned(self, adjoint), _turned(rhs, adjoint_arg)
            _check_sizes(left, right, left.range_dimension)
            return self.kinds["product"](left.inverse(), right)
        rhs = self._argument("solve", rhs, self._inner_size(not adjoint), adjoint_arg)
        return self._solve(rhs, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _refuse_singular(self, op: str) -> None:
        if self.is_non_singular is False or self.is_square is False:
            what = "square" if self.is_square is False else "non-singular"
            not_here(
                f"{self.name}.{op}", f"the operator is known not to be {what}",
                fix="use tg.linalg.lstsq(operator.to_dense(), rhs)",
            )  # fmt: skip

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        if self._can_use_cholesky():
            return cholesky_solve(cholesky(self.to_dense()), rhs)
        return solve(self.to_dense(), rhs, adjoint=adjoint)

    def solvevec(self, rhs: TensorLike, adjoint: bool = False, name: str = "solve") -> Tensor:
        """The x with A x = rhs, or A^H x = rhs, for vectors rhs[..., n]; see `solve`.

        >>> tg.linalg.LinearOperatorDiag([1.0, 2.0]).solvevec([3.0, 3.0]).numpy()
        array([3. , 1.5], dtype=float32)
        """
        is_adjoint = as_flag("solvevec", "adjoint", adjoint)
        return self._solvevec(as_tensor(rhs, self.dtype), adjoint=is_adjoint)

    def _solvevec(self, rhs: Tensor, adjoint: bool = False) -> Tensor:
        return squeeze(self.solve(_column("solvevec", rhs), adjoint=adjoint), -1)

    # Numbers computed from the matrices.

    def _refuse_wide(self, op: str) -> None:
        if self.is_square is False:
            fact = f"the operator of shape {self.shape} is not square"
            not_here(f"{self.name}.{op}", fact, fix="use a square operator")

    def determinant(self, name: str = "det") -> Tensor:
        """The determinant of each matrix. Raises an error that is a ValueError and a
        NotImplementedError if they are not square."""
        self._refuse_wide("determinant")
        return self._determinant()

    def _determinant(self) -> Tensor:
        if self._can_use_cholesky():
            return reduce_prod(diag_part(cholesky(self.to_dense())), -1) ** 2
        return det(self.to_dense())

    def log_abs_determinant(self, name: str = "log_abs_det") -> Tensor:
        """The logarithm of the absolute value of each determinant, in the dtype of the operator."""
        self._refuse_wide("log_abs_determinant")
        return self._log_abs_determinant()

    def _log_abs_determinant(self) -> Tensor:
        if self._can_use_cholesky():
            return self._sum_of_logarithms(diag_part(cholesky(self.to_dense()))) * 2
        return slogdet(self.to_dense()).log_abs_determinant

    def _sum_of_logarithms(self, x: Tensor) -> Tensor:
        """The logarithm of the absolute value of the product along the last axis."""
        return cast_to(reduce_sum(log(absolute(x)), -1), self.dtype)

    def _ratio(self, x: Tensor) -> Tensor:
        """The ratio of the largest to the smallest absolute value along the last axis."""
        sizes = absolute(x)
        return cast_to(reduce_max(sizes, -1) / reduce_min(sizes, -1), self.dtype)

    def trace(self, name: str = "trace") -> Tensor:
        """The sum of the diagonal of each matrix."""
        return self._trace()

    def _trace(self) -> Tensor:
        return reduce_sum(self.diag_part(), -1)

    def diag_part(self, name: str = "diag_part") -> Tensor:
        """The main diagonal of each matrix: [..., min(m, n)]."""
        return self._diag_part()

    def _diag_part(self) -> Tensor:
        return diag_part(self.to_dense())

    def eigvals(self, name: str = "eigvals") -> Tensor:
        """The eigenvalues of matrices that are known to be self-adjoint, in their dtype.

        Raises an error that is a ValueError and a NotImplementedError if that is not known; then
        use `tg.linalg.eigvals(operator.to_dense())`.
        """
        if not self.is_self_adjoint:
            fix = "promise it: is_self_adjoint=True, or use tg.linalg.eigvals(operator.to_dense())"
            not_here(f"{self.name}.eigvals", "the operator is not known to be self-adjoint", fix)
        return self._eigvals()

    def _eigvals(self) -> Tensor:
        return cast_to(eigvalsh(self.to_dense()), self.dtype)

    def cond(self, name: str = "cond") -> Tensor:
        """The condition number of each matrix: its largest singular value over its smallest."""
        return self._cond()

    def _cond(self) -> Tensor:
        if self.is_self_adjoint:
            return self._ratio(self._eigvals())
        return self._ratio(svd(self.to_dense(), compute_uv=False))

    # Other forms.

    def to_dense(self, name: str = "to_dense") -> Tensor:
        """The matrices themselves, [..., m, n]."""
        return self._to_dense()

    def _to_dense(self) -> Tensor:
        identity = eye(self.domain_dimension, dtype=self.dtype, batch_shape=list(self.batch_shape))
        return self.matmul(identity)

    def add_to_tensor(self, x: TensorLike, name: str = "add_to_tensor") -> Tensor:
        """The sum of the matrices and x, which broadcast."""
        return self._add_to_tensor(as_tensor(x, self.dtype))

    def _add_to_tensor(self, x: Tensor) -> Tensor:
        return self.to_dense() + x

    def adjoint(self, name: str = "adjoint") -> LinearOperator:
        """The operator of the conjugate transposes, of shape [..., n, m]."""
        return self if self.is_self_adjoint is True else self._linop_adjoint()

    #: The adjoint, in NumPy's notation.
    H = property(adjoint)

    def _linop_adjoint(self) -> LinearOperator:
        return self.kinds["adjoint"](self)

    def inverse(self, name: str = "inverse") -> LinearOperator:
        """The operator of the inverses. Raises ValueError if it is known to be singular."""
        if self.is_square is False or self.is_non_singular is False:
            what = "square" if self.is_square is False else "non-singular"
            fact = f"{self.name}.inverse: the operator is known not to be {what}"
            fail(SignatureError, fact, fix="use tg.linalg.pinv(operator.to_dense())")
        return self._linop_inverse()

    def _linop_inverse(self) -> LinearOperator:
        return self.kinds["inversion"](self)

    def cholesky(self, name: str = "cholesky") -> LinearOperator:
        """The operator of the lower triangles L with A = L L^H.

        Raises ValueError unless the operator is known to be self-adjoint and positive definite.
        """
        if not self._can_use_cholesky():
            fact = "the operator is not known to be self-adjoint and positive definite"
            fix = "promise it: is_self_adjoint=True, is_positive_definite=True"
            fail(SignatureError, f"{self.name}.cholesky: {fact}", fix=fix)
        return self._linop_cholesky()

    def _linop_cholesky(self) -> LinearOperator:
        return self.kinds["triangular"](cholesky(self.to_dense()), is_non_singular=True)

    def _hints_given(self) -> dict[str, Any]:
        """The promises, as arguments for another operator with the same properties."""
        return dict(self._hints)


def _completed(op: str, flags: dict[str, Any]) -> dict[str, Any]:
    """The promises, with those that they imply. Raises ValueError for contradictions."""
    for reason, follower in _IMPLICATIONS:
        if flags[reason]:
            if flags[follower] is False:
                fact = f"{op}: {reason} is True, and {follower} is False"
                fail(SignatureError, fact, fix=f"leave {follower} out: the one implies the other")
            flags[follower] = True
    return flags


#: Implications: the first promise of a pair implies the second.
_IMPLICATIONS = (
    ("is_positive_definite", "is_non_singular"),
    ("is_non_singular", "is_square"),
    ("is_self_adjoint", "is_square"),
)


def _turned(operator: LinearOperator, is_adjoint: bool) -> LinearOperator:
    return operator.adjoint() if is_adjoint else operator


def _check_sizes(left: LinearOperator, right: LinearOperator, size: Any) -> None:
    if same_size(size, right.range_dimension) is None:
        fact = f"the operators have the shapes {left.shape} and {right.shape}"
        fail(ShapeError, f"matmul: {fact}", fix=f"give an operator of {size} rows on the right")


def _column(op: str, x: Tensor) -> Tensor:
    if rank_of(op, x) < 1:
        refuse(op, f"{x.type} is not a vector", x, fix="give a tensor of at least one axis")
    return expand_dims(x, -1)


def _sizes_tensor(shape: TensorShape) -> Tensor:
    return as_tensor(list(shape), int32)
