"""Signals as overlapping frames: framing, short-time transforms, mel spectrograms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.array.arguments import (
    as_axis,
    as_count,
    as_flag,
    as_function,
    as_number,
    as_size,
    known_array,
    known_int,
    rank_of,
    refuse,
    sizes_of,
)
from tracegraph.array.joining import concat, split
from tracegraph.array.shaping import cut, pad, reverse
from tracegraph.core.shapes import ceiling_divide, floor_divide, maximum
from tracegraph.core.types import as_dtype, float32, int32
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import multiply
from tracegraph.math.elementwise.unary import rsqrt
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.broadcast import full
from tracegraph.ops.constant import Iota
from tracegraph.ops.index import Gather, ScatterAdd
from tracegraph.ops.shape import Reshape
from tracegraph.signal.transforms import dct, irfft, rfft
from tracegraph.signal.window_functions import hann_window, vorbis_window
from tracegraph.tracing.index_checks import value_at_hand
from tracegraph.typing import DTypeLike, ShapeLike, SizeLike, TensorLike

Window = Callable[..., Any]


def frame(
    signal: TensorLike,
    frame_length: SizeLike,
    frame_step: SizeLike,
    pad_end: bool = False,
    pad_value: TensorLike = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """Splits a signal into frames of `frame_length` elements, `frame_step` apart.

    `axis` becomes two axes: the frames, and the elements of each.

    - `pad_end`: whether to keep frames that extend past the end, filled up with `pad_value`;
      otherwise they are dropped.

    Raises ShapeError if a length is below 1.

    >>> tg.signal.frame([1, 2, 3, 4, 5], frame_length=3, frame_step=2).numpy()
    array([[1, 2, 3],
           [3, 4, 5]], dtype=int32)
    """
    x = as_tensor(signal)
    place = as_axis("frame", axis, rank_of("frame", x), x)
    length, step = _steps("frame", frame_length, frame_step)
    size: Any = x.type.shape[place]
    count = maximum(0, 1 + floor_divide(size - length, step))
    padding = as_tensor(pad_value, x.dtype)
    if as_flag("frame", "pad_end", pad_end):
        count = ceiling_divide(size, step)
        margin = maximum(0, (count - 1) * step + length - size)
        margins = [(0, margin if k == place else 0) for k in range(x.ndim)]
        if rank_of("frame", padding):
            refuse("frame", f"pad_value is {padding.type}", padding, fix="give one number")
        x = pad(x, margins, constant_values=padding)
    return Gather(place, 0)(x, _places(count, length, step))


#: Up to this many places are computed by NumPy; it takes memory for more, however few are read.
_MOST_KNOWN_PLACES = 2**24


def _places(count: Any, length: Any, step: int) -> Tensor:
    """Where the elements of each frame stand in the signal: int32[count, length]."""
    is_known = known_int(count) and known_int(length)
    if is_known and max(count, 1) * length <= _MOST_KNOWN_PLACES:
        places = np.arange(count)[:, None] * step + np.arange(length)
        return as_tensor(places.astype(np.int32))
    starts = Iota(count, int32)() * step  # type: ignore[operator]
    return starts[:, None] + Iota(length, int32)()


def _steps(op: str, frame_length: Any, frame_step: Any) -> tuple[int, int]:
    """The length and the step of frames: ints of at least 1."""
    found = []
    for what, value in (("frame_length", frame_length), ("frame_step", frame_step)):
        if getattr(value, "shape", ()) or isinstance(value, (list, tuple)):
            refuse(op, f"{what} is {shown(value)}", fix="give one int for all frames")
        number = as_size(op, what, value)
        if not known_int(number) or number < 1:
            refuse(op, f"{what} is {number}", fix="use an int of 1 or more")
        found.append(number)
    return found[0], found[1]


def overlap_and_add(signal: TensorLike, frame_step: SizeLike, name: str | None = None) -> Tensor:
    """Joins signal[..., frames, elements] to one of [..., (frames - 1) * frame_step + elements].

    Frames start `frame_step` apart, and are added where they overlap. Raises ShapeError if the step
    is below 1.

    >>> tg.signal.overlap_and_add([[1, 2, 3], [4, 5, 6]], frame_step=2).numpy()
    array([1, 2, 7, 5, 6], dtype=int32)
    """
    op = "overlap_and_add"
    x = as_tensor(signal)
    if rank_of(op, x) < 2:
        refuse(op, f"{x.type} has no frames", x, fix="give a tensor of at least two axes")
    sizes: Any = sizes_of(op, x)
    *lead, count, length = sizes
    step = _steps(op, 1, frame_step)[1]
    is_empty = known_int(count) and count == 0
    size = 0 if is_empty else maximum(0, (count - 1) * step + length)
    places = Reshape((count * length, 1))(_places(count, length, step))
    zeros = full(0, x.type.with_shape((*lead, size)))
    flat = Reshape((*lead, count * length))(x)
    return ScatterAdd(len(lead), 0)(zeros, places, flat)


def stft(
    signals: TensorLike,
    frame_length: SizeLike,
    frame_step: SizeLike,
    fft_length: ShapeLike | None = None,
    window_fn: Window | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """The transforms [..., frames, fft_length // 2 + 1] of windowed frames of signals[..., n].

    - `fft_length`: the size of each transform; by default the next power of 2 from `frame_length`.
    - `window_fn`: called with the length and `dtype=`; None applies no window.
    - `pad_end`: see `tg.signal.frame`.

    >>> tg.signal.stft(tg.ones([8]), frame_length=4, frame_step=2).numpy().real.round(4)[0]
    array([ 2., -1.,  0.], dtype=float32)
    """
    op = "stft"
    x = as_tensor(signals)
    length, step = _steps(op, frame_length, frame_step)
    frames = frame(x, length, step, pad_end)
    if window_fn is not None:
        frames = _weighed(op, frames, window_fn)
    return rfft(frames, [_fft_length(op, fft_length, length)])


def _fft_length(op: str, given: Any, length: int) -> int:
    return 1 << (length - 1).bit_length() if given is None else as_size(op, "fft_length", given)


def inverse_stft(
    stfts: TensorLike,
    frame_length: SizeLike,
    frame_step: SizeLike,
    fft_length: ShapeLike | None = None,
    window_fn: Window | None = hann_window,
    name: str | None = None,
) -> Tensor:
    """Reconstructs real signals from transforms stfts[..., frames, fft_length // 2 + 1].

    This inverts `tg.signal.stft` if `window_fn` comes from `inverse_stft_window_fn` with the window
    used there, except at the ends, where fewer frames overlap.

    >>> window = tg.signal.inverse_stft_window_fn(2)
    >>> y = tg.signal.inverse_stft(tg.signal.stft(tg.ones([8]), 4, 2), 4, 2, window_fn=window)
    >>> y.numpy().round(4)[2:6]
    array([1., 1., 1., 1.], dtype=float32)
    """
    op = "inverse_stft"
    length, step = _steps(op, frame_length, frame_step)
    size = _fft_length(op, fft_length, length)
    frames = irfft(as_tensor(stfts), [size])
    last = rank_of(op, frames) - 1
    if size >= length:
        frames = cut(frames, last, 0, length)
    else:
        frames = pad(frames, [(0, length - size if k == last else 0) for k in range(last + 1)])
    if window_fn is not None:
        frames = _weighed(op, frames, window_fn)
    return overlap_and_add(frames, step)


def mdct(
    signals: TensorLike,
    frame_length: SizeLike,
    window_fn: Window | None = vorbis_window,
    pad_end: bool = False,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The modified cosine transforms [..., frames, frame_length // 2] of frames of
    signals[..., n], which overlap by half.

    - `frame_length`: a multiple of 4;
    - `window_fn`: called with the length and `dtype=`; None divides by the square root of 2;
    - `pad_end`: see `tg.signal.frame`;
    - `norm`: as in `tg.signal.dct`.

    Raises ValueError for another length.

    >>> tg.signal.mdct(tg.ones([8]), 4, None).numpy().round(4)[0]
    array([-2.6131, -1.0824], dtype=float32)
    """
    op = "mdct"
    length, _ = _steps(op, frame_length, 1)
    if length % 4:
        refuse(op, f"frame_length is {length}", fix="use a multiple of 4")
    frames = _weighed(op, frame(signals, length, length // 2, pad_end), window_fn)
    last = frames.ndim - 1
    a, b, c, d = split(frames, 4, axis=last)
    first = -reverse(c, [last]) - d  # type: ignore[operator]
    second = a - reverse(b, [last])
    return dct(concat([first, second], last), type=4, norm=norm)


def inverse_mdct(
    mdcts: TensorLike,
    window_fn: Window | None = vorbis_window,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Reconstructs signals[..., n] from mdcts[..., frames, frame_length // 2].

    This inverts `tg.signal.mdct` with the same `window_fn` and `norm`, except in the first and last
    half of a frame, which one frame alone covers. The squares of the elements n and
    n + frame_length // 2 of the window must add up to 1, as they do by default.

    >>> y = tg.signal.inverse_mdct(tg.signal.mdct(tg.ones([8]), 4))
    >>> y.numpy().round(4)[2:6]
    array([1., 1., 1., 1.], dtype=float32)
    """
    op = "inverse_mdct"
    x = as_tensor(mdcts)
    if rank_of(op, x) < 2:
        refuse(op, f"{x.type} has no frames", x, fix="give [..., frames, frame_length // 2]")
    half, last = as_size(op, "the last axis", x.type.shape[-1]), x.ndim - 1
    if not known_int(half) or half < 2 or half % 2:
        refuse(op, f"{x.type} has {half} elements in a frame", x, fix="give an even number of them")
    parts = dct(x, type=4, norm=norm)
    if norm is None:
        parts = parts * (0.5 / half)  # type: ignore[operator]
    first, second = split(parts, 2, axis=last)
    turned = [-reverse(part, [last]) for part in (second, first)]  # type: ignore[operator]
    frames = concat([second, *turned, -first], last)  # type: ignore[operator]
    return overlap_and_add(_weighed(op, frames, window_fn), half)


def _weighed(op: str, frames: Tensor, window_fn: Any) -> Tensor:
    """Frames times a window."""
    if window_fn is None:
        return frames * math.sqrt(0.5)  # type: ignore[operator]
    window = as_function(op, "window_fn", window_fn)(frames.type.shape[-1], dtype=frames.dtype)
    return multiply(frames, window)


def inverse_stft_window_fn(
    frame_step: SizeLike, forward_window_fn: Window = hann_window, name: str | None = None
) -> Window:
    """The window function with which `tg.signal.inverse_stft` inverts `tg.signal.stft`.

    >>> tg.signal.inverse_stft_window_fn(2)(4, dtype=tg.float32).numpy()
    array([0., 1., 1., 1.], dtype=float32)
    """
    op = "inverse_stft_window_fn"
    _, step = _steps(op, 1, frame_step)

    as_function(op, "forward_window_fn", forward_window_fn)

    def window_fn(frame_length: Any, dtype: DTypeLike) -> Tensor:
        forward = as_tensor(forward_window_fn(frame_length, dtype=dtype))
        window = known_array(op, forward, "return a window that does not depend on arguments")
        window = window.astype(np.float64)
        overlaps = -(-len(window) // step)
        squares = np.pad(window**2, (0, overlaps * step - len(window))).reshape(overlaps, step)
        total = np.tile(squares.sum(0), overlaps)[: len(window)]
        # Where no window reaches, the signal cannot be recovered.
        inverse = np.divide(window, total, out=np.zeros_like(total), where=total != 0)
        return as_tensor(inverse.astype(as_dtype(dtype).numpy_dtype))

    return window_fn


def linear_to_mel_weight_matrix(
    num_mel_bins: int = 20,
    num_spectrogram_bins: int = 129,
    sample_rate: float = 8000,
    lower_edge_hertz: float = 125.0,
    upper_edge_hertz: float = 3800.0,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """The matrix [num_spectrogram_bins, num_mel_bins] that converts a spectrogram to the mel scale.

    Each column is a triangle, whose edges are evenly spaced in mel; the frequency f corresponds to
    1127 log(1 + f / 700) mel. Raises ValueError for a number out of range.

    >>> tg.signal.linear_to_mel_weight_matrix(2, 5, 8000, 0.0, 4000.0).numpy().round(2)
    array([[0.  , 0.  ],
           [0.6 , 0.4 ],
           [0.  , 0.87],
           [0.  , 0.38],
           [0.  , 0.  ]], dtype=float32)
    """
    op = "linear_to_mel_weight_matrix"
    columns = _bins(op, "num_mel_bins", num_mel_bins)
    rows = _bins(op, "num_spectrogram_bins", num_spectrogram_bins)
    known = value_at_hand(sample_rate) if isinstance(sample_rate, Tensor) else None
    rate = sample_rate if known is None or known.ndim else known[()]
    nyquist = float(as_number(op, "sample_rate", rate, low=1)) / 2
    upper = as_number(op, "upper_edge_hertz", upper_edge_hertz, high=nyquist)
    lower = as_number(op, "lower_edge_hertz", lower_edge_hertz, low=0.0, below=upper)
    bins = _mel(np.linspace(0, nyquist, rows))[:, None]
    edges = np.linspace(_mel(lower), _mel(upper), columns + 2)
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
    weights = np.maximum(0, np.minimum(rising, falling))
    weights[0] = 0  # the mean of a signal has no place on a pitch scale
    return as_tensor(weights.astype(as_dtype(dtype).numpy_dtype))


def _bins(op: str, what: str, count: Any) -> int:
    number = as_count(op, what, count)
    return as_number(op, what, number, low=1, high=_MOST_BINS)


#: The maximum number of bins: NumPy builds the matrix.
_MOST_BINS = 2**24


def _mel(hertz: Any) -> Any:
    return 1127 * np.log1p(np.asarray(hertz) / 700)


def mfccs_from_log_mel_spectrograms(
    log_mel_spectrograms: TensorLike, name: str | None = None
) -> Tensor:
    """The mel-frequency cepstral coefficients of log_mel_spectrograms[..., num_mel_bins].

    They are the discrete cosine transform of type 2, divided by sqrt(2 num_mel_bins). Raises
    ValueError if there are no bins.

    >>> tg.signal.mfccs_from_log_mel_spectrograms([1.0, 1.0]).numpy().round(4) + 0.0
    array([2., 0.], dtype=float32)
    """
    op = "mfccs_from_log_mel_spectrograms"
    x = as_tensor(log_mel_spectrograms)
    size: Any = x.type.shape[-1] if rank_of(op, x) else 0
    if size == 0:
        fail(SignatureError, f"{op}: {x.type} has no bins", fix="give at least one mel bin")
    if known_int(size):
        return dct(x) * (1 / math.sqrt(2 * size))  # type: ignore[operator]
    return dct(x) * rsqrt(cast_to(as_tensor(2 * size), x.dtype))  # type: ignore[operator]


__all__ = [
    "frame",
    "inverse_mdct",
    "inverse_stft",
    "inverse_stft_window_fn",
    "linear_to_mel_weight_matrix",
    "mdct",
    "mfccs_from_log_mel_spectrograms",
    "overlap_and_add",
    "stft",
]
