"""Fourier transforms along any axes, of any lengths, with the norms of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_choice,
    as_count,
    as_list,
    as_sizes,
    known_int,
    rank_of,
    refuse,
)
from tracegraph.core.shapes import element_count
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.unary import sqrt
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.fourier import Fft, Irfft, Rfft, half_size
from tracegraph.ops.index import move_axis
from tracegraph.signal.transforms import as_complex, as_floating, resized
from tracegraph.typing import Axis, ShapeLike, TensorLike

#: The name of the argument that gives the sizes, and its value.
Lengths: TypeAlias = tuple[str, Any]


def _lengths(op: str, fft_length: Any) -> Lengths:
    if fft_length is None:
        return "fft_length", None
    sizes = as_sizes(op, "fft_length", fft_length)
    if any(known_int(size) and size < 1 for size in sizes):
        refuse(op, f"fft_length is {list(sizes)}", fix="give sizes of 1 or more, in a list")
    return "fft_length", sizes


def fftnd(
    input_tensor: TensorLike,
    fft_length: ShapeLike | None = None,
    axes: Axis = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """`tg.signal.fft` along each of `axes`, all by default.

    - `fft_length`: a size for each axis, to which it is cropped or zero-padded;
    - `norm`: "backward", the default, divides the inverse transform by the number n of elements,
      "forward" this one, "ortho" both by the square root of n.

    Raises DTypeError for real tensors (see `tg.signal.rfftnd`); lists and arrays of real numbers
    are converted to complex.

    >>> tg.signal.fftnd([[1.0, 2.0], [3.0, 4.0]], axes=[0]).numpy().real
    array([[ 4.,  6.],
           [-2., -2.]], dtype=float32)
    """
    x = as_complex(input_tensor)
    return complex_transform(
        "fftnd", x, _lengths("fftnd", fft_length), axes, norm or "backward", False
    )


def ifftnd(
    input_tensor: TensorLike,
    fft_length: ShapeLike | None = None,
    axes: Axis = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The inverse of `tg.signal.fftnd`.

    >>> tg.signal.ifftnd([[4.0, 6.0], [-2.0, -2.0]], axes=[0]).numpy().real
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    x = as_complex(input_tensor)
    return complex_transform(
        "ifftnd", x, _lengths("ifftnd", fft_length), axes, norm or "backward", True
    )


def rfftnd(
    input_tensor: TensorLike,
    fft_length: ShapeLike | None = None,
    axes: Axis = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """`tg.signal.rfft` along the last of `axes`, and `tg.signal.fft` along the others; see
    `tg.signal.fftnd`.

    >>> tg.signal.rfftnd([[1.0, 2.0], [3.0, 4.0]]).numpy().real
    array([[10., -2.],
           [-4.,  0.]], dtype=float32)
    """
    x = as_floating(input_tensor)
    lengths = _lengths("rfftnd", fft_length)
    return from_real("rfftnd", x, lengths, axes, norm or "backward")


def irfftnd(
    input_tensor: TensorLike,
    fft_length: ShapeLike | None = None,
    axes: Axis = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The inverse of `tg.signal.rfftnd`. The last of `axes` gets its size in `fft_length`, by
    default twice its own less one.

    >>> tg.signal.irfftnd([[10.0, -2.0], [-4.0, 0.0]]).numpy()
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    x = as_complex(input_tensor)
    lengths = _lengths("irfftnd", fft_length)
    return to_real("irfftnd", x, lengths, axes, norm or "backward")


def complex_transform(
    op: str, x: Tensor, lengths: Lengths, axes: Any, norm: str, inverse: bool
) -> Tensor:
    """The transform of a complex x along `axes`, whose sizes become `lengths`; for the function
    `op`, which errors name."""
    places, sizes = _places(op, x, lengths, axes)
    y = Fft(tuple(sorted(places)), inverse)(resized(x, places, sizes)) if places else x
    return _scaled(op, y, sizes, norm, inverse)


def from_real(op: str, x: Tensor, lengths: Lengths, axes: Any, norm: str) -> Tensor:
    """The transform of a real x: complex, with n // 2 + 1 elements along the last of `axes`."""
    places, sizes = _places(op, x, lengths, axes)
    last = x.ndim - 1
    y = Rfft()(move_axis(resized(x, places, sizes), places[-1], last))
    y = move_axis(y, last, places[-1])
    if len(places) > 1:
        y = Fft(tuple(sorted(places[:-1])), False)(y)
    return _scaled(op, y, sizes, norm, False)


def to_real(op: str, z: Tensor, lengths: Lengths, axes: Any, norm: str) -> Tensor:
    """The real inverse transform of z, which has n // 2 + 1 elements along the last of `axes`."""
    places, sizes = _places(op, z, lengths, axes, is_half=True)
    z = resized(z, places, [*sizes[:-1], half_size(sizes[-1])])
    if len(places) > 1:
        z = Fft(tuple(sorted(places[:-1])), True)(z)
    last = z.ndim - 1
    y = move_axis(Irfft(sizes[-1])(move_axis(z, places[-1], last)), last, places[-1])
    return _scaled(op, y, sizes, norm, True)


def _places(
    op: str, x: Tensor, lengths: Lengths, axes: Any, is_half: bool = False
) -> tuple[list[int], list[Any]]:
    """The axes in the order given, and the sizes of the transform along them. `is_half` if x has
    half of the elements along the last one."""
    rank, (what, lengths_given) = rank_of(op, x), lengths
    s = None if lengths_given is None else as_list(op, what, lengths_given)
    if axes is None:
        count = rank if s is None else len(s)
        axes = range(rank - count, rank)
    places = [as_axis(op, axis, rank, x) for axis in as_sizes(op, "an axis", axes)]
    as_axes(op, places, rank, x)  # raises if an axis is named twice
    own = [x.type.shape[place] for place in places]
    if is_half:
        own[-1] = 2 * (own[-1] - 1)
    given = [None] * len(own) if s is None else s
    if len(given) != len(own):
        refuse(op, f"{what} is {list(given)}", x, fix=f"give {len(own)}, one for each axis")
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
    number = sqrt(number) if norm == "ortho" else number
    return y / cast_to(number, y.dtype)  # type: ignore[operator]


__all__ = ["fftnd", "ifftnd", "irfftnd", "rfftnd"]
