"""The extension `fft` of the array API standard: the transforms of `tg.signal` under its names.

- `n`, `s`: the sizes to which axes are first cropped or zero-padded; by default their own;
- `norm`: "backward" divides the inverse transform by the number n of elements, "forward" the
  forward transform, "ortho" both by the square root of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph import array, math, signal
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.eager.tensor_methods import check_device
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.elementwise import complex_of
from tracegraph.ops.fourier import half_size
from tracegraph.signal.transforms_along_axes import complex_transform, from_real, to_real
from tracegraph.typing import Axis, DTypeLike, TensorLike


def fft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """y[k] = sum_j x[j] e ** (-2 pi i j k / n) along an axis.

    >>> tg.numpy.fft.fft([1.0, 0.0, -1.0, 0.0]).numpy().real
    array([0., 2., 0., 2.], dtype=float32)
    """
    return complex_transform("fft", _as_complex(x), ("n", _one(n)), [axis], norm, False)


def ifft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `fft`.

    >>> tg.numpy.fft.ifft([0.0, 2.0, 0.0, 2.0]).numpy().real
    array([ 1.,  0., -1.,  0.], dtype=float32)
    """
    return complex_transform("ifft", _as_complex(x), ("n", _one(n)), [axis], norm, True)


def fftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """`fft` along each of several axes, by default all."""
    return complex_transform("fftn", _as_complex(x), ("s", s), axes, norm, False)


def ifftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `fftn`."""
    return complex_transform("ifftn", _as_complex(x), ("s", s), axes, norm, True)


def rfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The first n // 2 + 1 elements of the `fft` of a real tensor; the others are conjugates.

    >>> tg.numpy.fft.rfft([1.0, 0.0, -1.0, 0.0]).numpy()
    array([0.+0.j, 2.+0.j, 0.+0.j], dtype=complex64)
    """
    return from_real("rfft", as_tensor(x), ("n", _one(n)), [axis], norm)


def irfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft`, with n real elements; n is by default twice the axis size less one.

    >>> tg.numpy.fft.irfft(tg.constant([0.0, 2.0, 0.0], tg.complex64)).numpy()
    array([ 1.,  0., -1.,  0.], dtype=float32)
    """
    return to_real("irfft", _as_complex(x), ("n", _one(n)), [axis], norm)


def rfftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """`rfft` along the last of several axes, and `fft` along the others."""
    return from_real("rfftn", as_tensor(x), ("s", s), axes, norm)


def irfftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfftn`."""
    return to_real("irfftn", _as_complex(x), ("s", s), axes, norm)


def hfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The `fft` of a Hermitian signal, given its first half x; it has n real elements."""
    return to_real("hfft", math.conj(_as_complex(x)), ("n", _one(n)), [axis], _turned(norm))


def ihfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `hfft`: the first n // 2 + 1 elements of the `ifft` of a real tensor."""
    return math.conj(from_real("ihfft", as_tensor(x), ("n", _one(n)), [axis], _turned(norm)))


def _one(n: Any) -> list[Any] | None:
    return None if n is None else [n]


def _turned(norm: str) -> str:
    """The norm for the transform in the other direction."""
    return {"forward": "backward", "backward": "forward"}.get(norm, norm)


def _as_complex(x: Any) -> Tensor:
    x = as_tensor(x)
    return cast_to(x, complex_of(x.dtype)) if x.dtype.is_floating else x


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """The frequencies of the elements of a transform of n samples with spacing d.

    >>> tg.numpy.fft.fftfreq(4).numpy()
    array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    check_device("fftfreq", device)
    numbers = array.range(n)
    numbers = array.where(numbers < (n + 1) // 2, numbers, numbers - n)  # type: ignore[operator]
    return _frequencies(numbers, n, d, dtype)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """The first n // 2 + 1 frequencies of `fftfreq`, all positive.

    >>> tg.numpy.fft.rfftfreq(4).numpy()
    array([0.  , 0.25, 0.5 ], dtype=float32)
    """
    check_device("rfftfreq", device)
    return _frequencies(array.range(half_size(n)), n, d, dtype)


def _frequencies(numbers: Tensor, n: Any, d: Any, dtype: Any) -> Tensor:
    kind: DType = as_dtype(dtype or float32)
    return cast_to(numbers, kind) / (cast_to(as_tensor(n), kind) * d)  # type: ignore[operator]


def fftshift(x: TensorLike, /, *, axes: Axis = None) -> Tensor:
    """x shifted so that frequency 0 is in the middle of the axes, by default all."""
    return signal.fftshift(x, axes)


def ifftshift(x: TensorLike, /, *, axes: Axis = None) -> Tensor:
    """The inverse of `fftshift`."""
    return signal.ifftshift(x, axes)


__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]
