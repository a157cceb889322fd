"""Operators diagonalized by the Fourier transform: circular convolutions over 1, 2 or 3 axes."""

from __future__ import annotations

from typing import Any

from tracegraph.array.arguments import given
from tracegraph.array.shaping import expand_dims
from tracegraph.boundary.shared_arguments import show_name
from tracegraph.core.shapes import element_count
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import as_dtype, complex64
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.operators.arguments import conjugate_if, parameter
from tracegraph.linalg.operators.base import LinearOperator
from tracegraph.linalg.parts import adjoint as adjoint_of
from tracegraph.math.elementwise.logic import equal, not_equal
from tracegraph.math.elementwise.unary import imag, real
from tracegraph.math.reduction import reduce_prod, reduce_sum
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops.contract import swap_last
from tracegraph.ops.elementwise import complex_of
from tracegraph.ops.shape import Reshape
from tracegraph.signal.transforms import fft, fft2d, fft3d, ifft, ifft2d, ifft3d
from tracegraph.typing import DTypeLike, TensorLike

_TRANSFORMS = {1: (fft, ifft), 2: (fft2d, ifft2d), 3: (fft3d, ifft3d)}


def as_complex(x: Tensor) -> Tensor:
    """x in the complex dtype of the same precision."""
    return x if x.dtype.is_complex else cast_to(x, complex_of(x.dtype))


def in_dtype(x: Tensor, dtype: Any) -> Tensor:
    """x, or its real part for a real dtype."""
    is_dropped = x.dtype.is_complex and not dtype.is_complex
    return cast_to(real(x) if is_dropped else x, dtype)


class Circular(LinearOperator):
    """A circular convolution along `_depth` axes, which are flattened to one in its argument."""

    _depth: int

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        show_name(cls, cls.__name__)

    def __init__(
        self,
        spectrum: TensorLike,
        input_output_dtype: DTypeLike = complex64,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = True,
        name: str = "",
    ) -> None:
        name = name or type(self).__name__
        arguments = given(locals())
        self._spectrum = parameter(name, spectrum, self._depth, "the spectrum")
        if not (self._spectrum.dtype.is_complex or self._spectrum.dtype.is_floating):
            fact = f"{name}: the spectrum is of {self._spectrum.dtype.name}"
            fail(SignatureError, fact, fix="give floating or complex numbers")
        is_real = not self._spectrum.dtype.is_complex
        self._promise(
            as_dtype(input_output_dtype),
            arguments,
            is_self_adjoint=(is_real or None, "an operator with a real spectrum is self-adjoint"),
            is_square=(True, "circular convolutions are square"),
        )

    @property
    def spectrum(self) -> Tensor:
        """The eigenvalues, along the axes of the convolution."""
        return self._spectrum

    @property
    def block_depth(self) -> int:
        """The number of axes of the convolution."""
        return self._depth

    @property
    def block_shape(self) -> TensorShape:
        """The sizes of the axes of the convolution."""
        return self._spectrum.shape[-self._depth :]

    def block_shape_tensor(self) -> Tensor:
        """`block_shape` as a vector of int32."""
        return self.shape_tensor()[:0] if not self.block_shape else _vector(self.block_shape)

    def convolution_kernel(self, name: str = "convolution_kernel") -> Tensor:
        """The convolution of a 1 at the first position, in the dtype of the operator.

        >>> tg.linalg.LinearOperatorCirculant([2.0, 0.0]).convolution_kernel().numpy().real
        array([1., 1.], dtype=float32)
        """
        _, back = _TRANSFORMS[self._depth]
        return in_dtype(back(self._complex_spectrum()), self.dtype)

    def assert_hermitian_spectrum(self, name: str = "assert_hermitian_spectrum") -> None:
        """Checks that the kernel is real up to rounding. Raises InvalidArgumentError if not."""
        _, back = _TRANSFORMS[self._depth]
        kernel = back(self._complex_spectrum())
        bound = 1 / self._max_condition_number_to_be_non_singular()
        holds = abs(imag(kernel)) <= bound
        self._check(holds, "the spectrum is not Hermitian, so the kernel is not real", kernel)

    def _complex_spectrum(self) -> Tensor:
        return as_complex(as_tensor(self._spectrum))

    def _shape(self) -> Any:
        lead = self._spectrum.shape[: -self._depth]
        size = element_count(tuple(self.block_shape))
        return (*lead, size, size)

    def _flat(self) -> Tensor:
        """The spectrum [..., n], flattened to one axis."""
        x = as_tensor(self._spectrum)
        return Reshape(tuple(self.shape[:-1]))(x)

    def _assert_non_singular(self) -> None:
        values = self._flat()
        self._check(not_equal(values, 0), "the spectrum has a zero, so it is singular", values)

    def _assert_positive_definite(self) -> None:
        values = self._flat()
        fact = "the spectrum has numbers whose real part is not positive"
        self._check(real(values) > 0, fact, values)

    def _assert_self_adjoint(self) -> None:
        values = self._flat()
        if values.dtype.is_complex:
            self._check(equal(imag(values), 0), "the spectrum is not real", values)

    def _filtered(self, x: Tensor, spectrum: Tensor) -> Tensor:
        """The columns x[..., n, k] with their transforms multiplied by the spectrum."""
        forth, back = _TRANSFORMS[self._depth]
        x = cast_to(swap_last(x), spectrum.dtype)
        sizes = tuple(self.block_shape)
        rows = Reshape((*x.type.shape[:-1], *sizes))(x)
        result = back(forth(rows) * expand_dims(spectrum, -1 - self._depth))
        lead = result.type.shape[: -self._depth]
        return in_dtype(swap_last(Reshape((*lead, element_count(sizes)))(result)), self.dtype)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        x = adjoint_of(x) if adjoint_arg else x
        return self._filtered(x, conjugate_if(adjoint, self._complex_spectrum()))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        rhs = adjoint_of(rhs) if adjoint_arg else rhs
        return self._filtered(rhs, 1 / conjugate_if(adjoint, self._complex_spectrum()))

    def _determinant(self) -> Tensor:
        return in_dtype(reduce_prod(self._flat(), -1), self.dtype)

    def _log_abs_determinant(self) -> Tensor:
        return self._sum_of_logarithms(self._flat())

    def _trace(self) -> Tensor:
        return in_dtype(reduce_sum(self._flat(), -1), self.dtype)

    def _diag_part(self) -> Tensor:
        """The mean of the eigenvalues, at every position of the diagonal."""
        size = cast_to(as_tensor(self.domain_dimension), self.dtype)
        return broadcast(expand_dims(self._trace() / size, -1), tuple(self.shape[:-1]))

    def _eigvals(self) -> Tensor:
        return in_dtype(self._flat(), self.dtype)

    def _cond(self) -> Tensor:
        return self._ratio(self._flat())

    def _linop_adjoint(self) -> LinearOperator:
        return self._with(conjugate_if(True, as_tensor(self._spectrum)))

    def _linop_inverse(self) -> LinearOperator:
        return self._with(1 / as_tensor(self._spectrum))

    def _with(self, spectrum: Tensor, **hints: Any) -> LinearOperator:
        """An operator of the same kind with another spectrum."""
        return type(self)(spectrum, self.dtype, **(hints or self._hints_given()))  # type: ignore


def _vector(sizes: Any) -> Tensor:
    return as_tensor(list(sizes))


class LinearOperatorCirculant(Circular):
    """Circulant matrices, which are circular convolutions: a[i, j] = kernel[(i - j) mod n].

    - `spectrum`: the transforms of the kernels, `tg.signal.fft(kernel)`, [..., n]; they are the
      eigenvalues, so real ones make it self-adjoint.
    - `input_output_dtype`: the dtype of arguments and results. A real dtype drops the imaginary
      part of results, so the spectrum should be that of a real kernel.
    - The promises are those of `tg.linalg.LinearOperator`.

    Products and solutions use `tg.signal.fft`.

    >>> kernel = tg.constant([1.0, 2.0, 0.0], tg.complex64)
    >>> operator = tg.linalg.LinearOperatorCirculant(tg.signal.fft(kernel), tg.float32)
    >>> operator.to_dense().numpy().round(4) + 0.0
    array([[1., 0., 2.],
           [2., 1., 0.],
           [0., 2., 1.]], dtype=float32)
    """

    _depth = 1


class LinearOperatorCirculant2D(Circular):
    """Circular convolutions of images, each of which is a column of n m numbers.

    - `spectrum`: [..., n, m]; see `tg.linalg.LinearOperatorCirculant` for this and the rest.

    >>> operator = tg.linalg.LinearOperatorCirculant2D(tg.ones([2, 3]), tg.float32)
    >>> operator.shape
    TensorShape([6, 6])
    """

    _depth = 2


class LinearOperatorCirculant3D(Circular):
    """Circular convolutions of volumes, each of which is a column of numbers.

    - `spectrum`: [..., n, m, l]; see `tg.linalg.LinearOperatorCirculant` for this and the rest.

    >>> operator = tg.linalg.LinearOperatorCirculant3D(tg.ones([2, 3, 2]), tg.float32)
    >>> operator.shape
    TensorShape([12, 12])
    """

    _depth = 3
