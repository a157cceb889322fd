"""The extension `fft` of the array API standard: the transforms of `tg.signal` under its names.

- `n`, `s`: the sizes to which axes are first cropped or zero-padded; by default their own;
- `norm`: "backward" divides the inverse transform by the number n of elements, "forward" the
  forward transform, "ortho" both by the square root of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph import array, math, signal
from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_choice,
    as_count,
    as_list,
    known_int,
    rank_of,
)
from tracegraph.core.shapes import element_count
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.eager.tensor_methods import check_device
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.elementwise import complex_of
from tracegraph.ops.fourier import Fft, Irfft, Rfft, half_size
from tracegraph.ops.index import move_axis
from tracegraph.signal.transforms import resized
from tracegraph.typing import Axis, DTypeLike, TensorLike


def fft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """y[k] = sum_j x[j] e ** (-2 pi i j k / n) along an axis.

    >>> tg.numpy.fft.fft([1.0, 0.0, -1.0, 0.0]).numpy().real
    array([0., 2., 0., 2.], dtype=float32)
    """
    return _complex_transform("fft", x, _one(n), [axis], norm, False)


def ifft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `fft`.

    >>> tg.numpy.fft.ifft([0.0, 2.0, 0.0, 2.0]).numpy().real
    array([ 1.,  0., -1.,  0.], dtype=float32)
    """
    return _complex_transform("ifft", x, _one(n), [axis], norm, True)


def fftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """`fft` along each of several axes, by default all."""
    return _complex_transform("fftn", x, s, axes, norm, False)


def ifftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `fftn`."""
    return _complex_transform("ifftn", x, s, axes, norm, True)


def rfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The first n // 2 + 1 elements of the `fft` of a real tensor; the others are conjugates.

    >>> tg.numpy.fft.rfft([1.0, 0.0, -1.0, 0.0]).numpy()
    array([0.+0.j, 2.+0.j, 0.+0.j], dtype=complex64)
    """
    return _from_real("rfft", x, _one(n), [axis], norm)


def irfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft`, with n real elements; n is by default twice the axis size less one.

    >>> tg.numpy.fft.irfft(tg.constant([0.0, 2.0, 0.0], tg.complex64)).numpy()
    array([ 1.,  0., -1.,  0.], dtype=float32)
    """
    return _to_real("irfft", x, _one(n), [axis], norm)


def rfftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """`rfft` along the last of several axes, and `fft` along the others."""
    return _from_real("rfftn", x, s, axes, norm)


def irfftn(
    x: TensorLike, /, *, s: Sequence[int] | None = None, axes: Axis = None, norm: str = "backward"
) -> Tensor:
    """The inverse of `rfftn`."""
    return _to_real("irfftn", x, s, axes, norm)


def hfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The `fft` of a Hermitian signal, given its first half x; it has n real elements."""
    return _to_real("hfft", math.conj(_as_complex(x)), _one(n), [axis], _turned(norm))


def ihfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `hfft`: the first n // 2 + 1 elements of the `ifft` of a real tensor."""
    return math.conj(_from_real("ihfft", x, _one(n), [axis], _turned(norm)))


def _one(n: Any) -> list[Any] | None:
    return None if n is None else [n]


def _turned(norm: str) -> str:
    """The norm for the transform in the other direction."""
    return {"forward": "backward", "backward": "forward"}.get(norm, norm)


def _as_complex(x: Any) -> Tensor:
    x = as_tensor(x)
    return cast_to(x, complex_of(x.dtype)) if x.dtype.is_floating else x


def _complex_transform(op: str, x: Any, s: Any, axes: Any, norm: str, inverse: bool) -> Tensor:
    x = _as_complex(x)
    places, sizes = _places(op, x, s, axes)
    y = Fft(tuple(sorted(places)), inverse)(resized(x, places, sizes)) if places else x
    return _scaled(op, y, sizes, norm, inverse)


def _from_real(op: str, x: Any, s: Any, axes: Any, norm: str) -> Tensor:
    x = as_tensor(x)
    places, sizes = _places(op, x, s, axes)
    last = x.ndim - 1
    y = Rfft()(move_axis(resized(x, places, sizes), places[-1], last))
    y = move_axis(y, last, places[-1])
    if len(places) > 1:
        y = Fft(tuple(sorted(places[:-1])), False)(y)
    return _scaled(op, y, sizes, norm, False)


def _to_real(op: str, x: Any, s: Any, axes: Any, norm: str) -> Tensor:
    z = _as_complex(x)
    places, sizes = _places(op, z, s, axes, is_half=True)
    z = resized(z, places, [*sizes[:-1], half_size(sizes[-1])])
    if len(places) > 1:
        z = Fft(tuple(sorted(places[:-1])), True)(z)
    last = z.ndim - 1
    y = move_axis(Irfft(sizes[-1])(move_axis(z, places[-1], last)), last, places[-1])
    return _scaled(op, y, sizes, norm, True)


def _places(
    op: str, x: Tensor, s: Any, axes: Any, is_half: bool = False
) -> tuple[list[int], list[Any]]:
    """The axes in the order given, and the sizes of the transform along them. `is_half` if x has
    half of the elements along the last one."""
    rank = rank_of(op, x)
    if axes is None:
        count = rank if s is None else len(as_list(op, "s", s))
        axes = range(rank - count, rank)
    places = [as_axis(op, axis, rank, x) for axis in axes]
    as_axes(op, places, rank, x)  # raises if an axis is named twice
    own = [x.type.shape[place] for place in places]
    if is_half:
        own[-1] = 2 * (own[-1] - 1)
    given = [None] * len(own) if s is None else as_list(op, "s", s)
    sizes = [a if n is None else as_count(op, "a size", n) for a, n in zip(own, given, strict=True)]
    return places, sizes


def _scaled(op: str, y: Tensor, sizes: Sequence[Any], norm: str, inverse: bool) -> Tensor:
    """y divided according to `norm`."""
    as_choice(op, "norm", norm, ("backward", "ortho", "forward"))
    if norm == ("forward" if inverse else "backward"):
        return y
    count = element_count(tuple(sizes))
    if known_int(count):
        return y * (max(count, 1) ** (-0.5 if norm == "ortho" else -1))  # type: ignore[operator]
    number = cast_to(as_tensor(count), y.dtype.real)
    number = math.sqrt(number) if norm == "ortho" else number
    return y / cast_to(number, y.dtype)  # type: ignore[operator]


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
