"""Fourier and cosine transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_choice,
    as_sizes,
    known_int,
    rank_of,
    refuse,
)
from tracegraph.array.creation import is_tensor, zeros
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import concat
from tracegraph.array.shaping import cut, reverse, roll
from tracegraph.core.types import TensorType, complex64, complex128, float32, float64, int64
from tracegraph.errors import SignatureError, counted, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.unary import cos, sin, sqrt
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import DimSize, Iota
from tracegraph.ops.elementwise import COMPLEX, REAL, complex_of
from tracegraph.ops.fourier import Fft, Irfft, Rfft, half_size
from tracegraph.ops.index import move_axis
from tracegraph.ops.shape import Pad
from tracegraph.typing import Axis, ShapeLike, TensorLike


def fft(input: TensorLike, name: str | None = None) -> Tensor:
    """y[..., k] = sum_j x[..., j] e ** (-2 pi i j k / n), for a complex tensor.

    Raises DTypeError for real tensors (see `tg.signal.rfft`), ShapeError for scalars. Lists and
    arrays of real numbers are converted to complex.

    >>> tg.signal.fft(tg.constant([1.0, 0.0, -1.0, 0.0], tg.complex64)).numpy().real
    array([0., 2., 0., 2.], dtype=float32)
    """
    return _transformed("fft", input, 1, False)


def ifft(input: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of `tg.signal.fft`: x[..., j] = sum_k y[..., k] e ** (2 pi i j k / n) / n.

    >>> tg.signal.ifft(tg.constant([0.0, 2.0, 0.0, 2.0], tg.complex64)).numpy().real
    array([ 1.,  0., -1.,  0.], dtype=float32)
    """
    return _transformed("ifft", input, 1, True)


def fft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """`tg.signal.fft` along each of the last two axes.

    >>> tg.signal.fft2d(tg.ones([2, 2], tg.complex64)).numpy().real
    array([[4., 0.],
           [0., 0.]], dtype=float32)
    """
    return _transformed("fft2d", input, 2, False)


def ifft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """`tg.signal.ifft` along each of the last two axes.

    >>> tg.signal.ifft2d(tg.ones([2, 2], tg.complex64)).numpy().real
    array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    return _transformed("ifft2d", input, 2, True)


def fft3d(input: TensorLike, name: str | None = None) -> Tensor:
    """`tg.signal.fft` along each of the last three axes.

    >>> tg.signal.fft3d(tg.ones([1, 1, 2], tg.complex64)).numpy().real.tolist()
    [[[2.0, 0.0]]]
    """
    return _transformed("fft3d", input, 3, False)


def ifft3d(input: TensorLike, name: str | None = None) -> Tensor:
    """`tg.signal.ifft` along each of the last three axes.

    >>> tg.signal.ifft3d(tg.ones([1, 1, 2], tg.complex64)).numpy().real.tolist()
    [[[1.0, 0.0]]]
    """
    return _transformed("ifft3d", input, 3, True)


def _transformed(op: str, input: Any, count: int, inverse: bool) -> Tensor:
    x = as_complex(input)
    axes = _last_axes(op, x, count)
    y = Fft(axes, inverse)(x)
    return _divided(y, [x.type.shape[axis] for axis in axes]) if inverse else y


def as_complex(value: Any) -> Tensor:
    """A tensor unchanged; lists and arrays of real numbers as complex."""
    x = as_tensor(value)
    if is_tensor(value) or x.dtype.is_complex:
        return x
    return cast_to(x, complex128 if x.dtype is float64 else complex64)


def as_floating(value: Any) -> Tensor:
    """A tensor unchanged; lists and arrays of integers as float32."""
    x = as_tensor(value)
    return cast_to(x, float32) if x.dtype.is_integer and not is_tensor(value) else x


def _last_axes(op: str, x: Tensor, count: int) -> tuple[int, ...]:
    rank = rank_of(op, x)
    if rank < count:
        least = counted(count, "axis", "axes")
        refuse(op, f"{x.type} has fewer than {least}", x, fix=f"give a tensor of {least} or more")
    return tuple(range(rank - count, rank))


def _divided(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """x divided by the number of elements summed."""
    if all(map(known_int, sizes)):
        return x * (1 / max(math.prod(sizes), 1))  # type: ignore[operator]
    for size in sizes:
        x = x / cast_to(DimSize(size)(), x.dtype)  # type: ignore[operator]
    return x


def rfft(
    input_tensor: TensorLike, fft_length: ShapeLike | None = None, name: str | None = None
) -> Tensor:
    """The first n // 2 + 1 elements of the transform of a real tensor along the last axis.

    - `fft_length`: n, in a list; the axis is cropped or zero-padded to it. By default the size of
      the axis.

    The result is complex64, or complex128 for float64. Raises DTypeError for other dtypes.

    >>> tg.signal.rfft([1.0, 0.0, -1.0, 0.0]).numpy()
    array([0.+0.j, 2.+0.j, 0.+0.j], dtype=complex64)
    """
    return _of_real("rfft", input_tensor, fft_length, 1)


def irfft(
    input_tensor: TensorLike, fft_length: ShapeLike | None = None, name: str | None = None
) -> Tensor:
    """The inverse of `tg.signal.rfft`: a real tensor of n elements along the last axis.

    - `fft_length`: n, in a list; the axis is cropped or zero-padded to n // 2 + 1. By default twice
      the size of the axis less one.

    >>> tg.signal.irfft(tg.constant([0.0, 2.0, 0.0], tg.complex64)).numpy()
    array([ 1.,  0., -1.,  0.], dtype=float32)
    """
    return _to_real("irfft", input_tensor, fft_length, 1)


def rfft2d(
    input_tensor: TensorLike, fft_length: ShapeLike | None = None, name: str | None = None
) -> Tensor:
    """`tg.signal.rfft` along the last axis, and `tg.signal.fft` along the one before it.

    - `fft_length`: two sizes, to which the axes are cropped or zero-padded.

    >>> tg.signal.rfft2d(tg.ones([2, 2])).numpy().real
    array([[4., 0.],
           [0., 0.]], dtype=float32)
    """
    return _of_real("rfft2d", input_tensor, fft_length, 2)


def irfft2d(
    input_tensor: TensorLike, fft_length: ShapeLike | None = None, name: str | None = None
) -> Tensor:
    """The inverse of `tg.signal.rfft2d`.

    >>> tg.signal.irfft2d(tg.signal.rfft2d([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4)
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return _to_real("irfft2d", input_tensor, fft_length, 2)


def rfft3d(
    input_tensor: TensorLike, fft_length: ShapeLike | None = None, name: str | None = None
) -> Tensor:
    """`tg.signal.rfft` along the last axis, and `tg.signal.fft` along the two before it.

    >>> tg.signal.rfft3d(tg.ones([1, 1, 2])).numpy().real.tolist()
    [[[2.0, 0.0]]]
    """
    return _of_real("rfft3d", input_tensor, fft_length, 3)


def irfft3d(
    input_tensor: TensorLike, fft_length: ShapeLike | None = None, name: str | None = None
) -> Tensor:
    """The inverse of `tg.signal.rfft3d`.

    >>> tg.signal.irfft3d(tg.ones([1, 1, 2], tg.complex64)).numpy().tolist()
    [[[1.0, 0.0]]]
    """
    return _to_real("irfft3d", input_tensor, fft_length, 3)


def _of_real(op: str, input: Any, fft_length: Any, count: int) -> Tensor:
    x = as_floating(input)
    axes = _last_axes(op, x, count)
    sizes = _lengths(op, fft_length, [x.type.shape[axis] for axis in axes])
    if 0 in sizes:
        last = half_size(sizes[-1]) if sizes[-1] else 0
        return zeros([*x.type.shape[:-1], last], complex_of(x.dtype))
    y = Rfft()(resized(x, axes, sizes))
    return Fft(axes[:-1], False)(y) if count > 1 else y


def _to_real(op: str, input: Any, fft_length: Any, count: int) -> Tensor:
    z = as_complex(input)
    axes = _last_axes(op, z, count)
    own = [z.type.shape[axis] for axis in axes]
    if fft_length is None and 0 in own:
        last = 2 * (own[-1] - 1) if own[-1] else 0
        return zeros([*z.type.shape[:-1], last], z.dtype.real)
    sizes = _lengths(op, fft_length, [*own[:-1], 2 * (own[-1] - 1)])
    z = resized(z, axes, (*sizes[:-1], half_size(sizes[-1])))
    if count > 1:
        z = Fft(axes[:-1], True)(z)
    return _divided(Irfft(sizes[-1])(z), sizes)


def _lengths(op: str, fft_length: Any, own: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes given, or those of the tensor."""
    if fft_length is None:
        return tuple(own)
    sizes = as_sizes(op, "fft_length", fft_length)
    if len(sizes) != len(own) or any(known_int(size) and size < 1 for size in sizes):
        fix = f"give {len(own)} of 1 or more, in a list"
        refuse(op, f"fft_length is {list(sizes)}", fix=fix)
    return sizes


def resized(x: Tensor, axes: Sequence[int], sizes: Sequence[Any]) -> Tensor:
    """x cropped, or padded with zeros at the end, to other sizes along some axes."""
    for axis, size in zip(axes, sizes, strict=True):
        missing = size - x.type.shape[axis]
        if known_int(missing) and missing < 0:
            x = cut(x, axis, 0, size)
        elif not (known_int(missing) and missing == 0):
            none = (0,) * x.ndim
            behind = (*none[:axis], missing, *none[axis + 1 :])  # an open size may turn out to crop
            x = Pad(none, behind, none)(x, full(0, TensorType(x.dtype, ())))
    return x


def fftshift(x: TensorLike, axes: Axis = None, name: str | None = None) -> Tensor:
    """Shifts x by n // 2 along `axes`, all by default, so that frequency 0 is in the middle.

    >>> tg.signal.fftshift([0, 1, 2, -2, -1]).numpy()
    array([-2, -1,  0,  1,  2], dtype=int32)
    """
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: TensorLike, axes: Axis = None, name: str | None = None) -> Tensor:
    """The inverse of `tg.signal.fftshift`.

    >>> tg.signal.ifftshift([-2, -1, 0, 1, 2]).numpy()
    array([ 0,  1,  2, -2, -1], dtype=int32)
    """
    return _shifted("ifftshift", x, axes, -1)


def _shifted(op: str, input: Any, axes: Any, sign: int) -> Tensor:
    x = as_tensor(input)
    found = as_axes(op, axes, rank_of(op, x), x)
    shifts = [sign * (half_size(x.type.shape[axis]) - 1) for axis in found]
    return roll(x, shifts, list(found)) if found else x


def dct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The discrete cosine transform of a real tensor along the last axis, as SciPy defines it.

    - `type`: 1, 2, 3 or 4.
    - `n`: the size to which the axis is cropped or zero-padded.
    - `axis`: -1, the only value that TensorFlow accepts; here any other works too.
    - `norm`: "ortho" makes types 2, 3 and 4 orthonormal.

    Raises ValueError for an unknown type or norm, ShapeError for type 1 of fewer than two elements.

    >>> tg.signal.dct([1.0, 1.0, 1.0]).numpy().round(4) + 0.0
    array([6., 0., 0.], dtype=float32)
    """
    kind = as_choice("dct", "type", type, (1, 2, 3, 4))
    norm = as_choice("dct", "norm", norm, (None, "ortho"))
    if kind == 1 and norm is not None:
        fact = "dct: type 1 has no orthonormal form"
        fail(SignatureError, fact, fix="use norm=None, or another type")
    x = as_tensor(input)
    place = as_axis("dct", axis, rank_of("dct", x), x)
    last = x.ndim - 1
    x = move_axis(x, place, last)
    if n is not None:
        x = resized(x, [last], _lengths("dct", n, [0]))
    size: Any = x.type.shape[last]
    if known_int(size) and size < (2 if kind == 1 else 1):
        fix = "give one element or more, and two or more for type 1"
        refuse("dct", f"{x.type} has {size} elements along the axis", x, fix=fix)
    found = (_dct_1, _dct_2, _dct_3, _dct_4)[kind - 1](x, size, norm is not None)
    return move_axis(found, last, place)


def idct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Undoes `tg.signal.dct`. Without norm="ortho" the result is the input times 2 n, or 2 (n - 1)
    for type 1.

    >>> tg.signal.idct(tg.signal.dct([1.0, 2.0], norm="ortho"), norm="ortho").numpy().round(4)
    array([1., 2.], dtype=float32)
    """
    kind: int = as_choice("idct", "type", type, (1, 2, 3, 4))
    return dct(input, (1, 3, 2, 4)[kind - 1], n, axis, norm)


def _dct_1(x: Tensor, size: Any, is_ortho: bool) -> Tensor:
    last = x.ndim - 1
    return REAL(Rfft()(concat([x, reverse(cut(x, last, 1, size - 1), [last])], last)))


def _dct_2(x: Tensor, size: Any, is_ortho: bool) -> Tensor:
    last = x.ndim - 1
    half = cut(Rfft()(resized(x, [last], [2 * size])), last, 0, size)
    y = REAL(half * _quarter_turn(half, -1)) * 2.0  # type: ignore[operator]
    return y * _weights(y, 0.5, math.sqrt(0.5)) if is_ortho else y


def _dct_3(x: Tensor, size: Any, is_ortho: bool) -> Tensor:
    last = x.ndim - 1
    if is_ortho:
        x = x * _weights(x, 1.0, math.sqrt(0.5))  # type: ignore[operator]
    z = COMPLEX(x, x * 0.0)  # type: ignore[operator]
    z = z * _quarter_turn(z, 1)  # type: ignore[operator]
    whole = Irfft(2 * size)(resized(z, [last], [size + 1]))
    return cut(whole, last, 0, size)


def _dct_4(x: Tensor, size: Any, is_ortho: bool) -> Tensor:
    last = x.ndim - 1
    y = cut(_dct_2(resized(x, [last], [2 * size]), 2 * size, False), last, 1, 2 * size, 2)
    return y * sqrt(0.5 / _size_of(y)) if is_ortho else y  # type: ignore[operator]


def _size_of(x: Tensor) -> Tensor:
    """The number of elements along the last axis, in the real dtype of x."""
    return cast_to(as_tensor(x.type.shape[-1]), x.dtype.real)


def _numbers(x: Tensor) -> Tensor:
    """0, 1, ... along the last axis, in float64, so that products with pi are rounded once."""
    return cast_to(Iota(x.type.shape[-1], int64)(), float64)


def _quarter_turn(z: Tensor, sign: int) -> Tensor:
    """Complex numbers of modulus 1, from 1 up to a quarter turn along the last axis."""
    size = cast_to(as_tensor(z.type.shape[-1]), float64)
    angles = _numbers(z) * (sign * math.pi / 2) / size  # type: ignore[operator]
    return cast_to(COMPLEX(cos(angles), sin(angles)), z.dtype)


def _weights(x: Tensor, first: float, others: float) -> Tensor:
    """Factors that make a transform orthonormal: one for the first element and one for the others,
    over the square root of their number."""
    is_first = _numbers(x) < 0.5  # type: ignore[operator]
    values = where(is_first, as_tensor(first, x.dtype), as_tensor(others, x.dtype))
    return values / sqrt(_size_of(x))


__all__ = [
    "dct",
    "fft",
    "fft2d",
    "fft3d",
    "fftshift",
    "idct",
    "ifft",
    "ifft2d",
    "ifft3d",
    "ifftshift",
    "irfft",
    "irfft2d",
    "irfft3d",
    "rfft",
    "rfft2d",
    "rfft3d",
]
