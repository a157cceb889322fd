"""Sounds as pictures of their frequencies over time."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from tracegraph.array.arguments import as_choice, as_flag, as_number, rank_of, refuse, sizes_of
from tracegraph.array.joining import concat
from tracegraph.array.shaping import pad, reshape, transpose
from tracegraph.core.types import float32
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, is_channels_first, known, padding_of, positive
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import (
    add,
    atan2,
    maximum,
    multiply,
    pow as power_of,
    subtract,
)
from tracegraph.math.elementwise.unary import imag, log, real, sqrt, square
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_max
from tracegraph.nn.convolutions import conv1d
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.signal.frames import linear_to_mel_weight_matrix, stft
from tracegraph.signal.window_functions import hamming_window, hann_window
from tracegraph.typing import TensorLike

_WINDOWS = {"hann": hann_window, "hamming": hamming_window}
#: The least power and magnitude of which `STFTSpectrogram` takes roots and logarithms, as in Keras.
_EPSILON = 1e-7


def _squares(z: tuple[Tensor, Tensor]) -> Tensor:
    return add(square(z[0]), square(z[1]))


def _check_lengths(op: str, what: str, length: int, fft_length: int) -> None:
    if fft_length < length:
        fact = f"{op}: {what} is {length}, and fft_length {fft_length}"
        fail(SignatureError, fact, fix="use an fft_length that is not smaller")


def _window_of(op: str, window: Any, length: int) -> Any:
    """The name of a window, or its numbers as an array of this length; or None."""
    if window is None:
        return None
    if isinstance(window, str):
        return as_choice(op, "window", window, [*_WINDOWS])
    numbers = np.asarray(window)
    if numbers.shape != (length,):
        fact = f"{op}: window is {shown(window)}, of shape {numbers.shape}"
        fail(SignatureError, fact, fix=f'give {length} numbers, or "hann" or "hamming"')
    return numbers


class MelSpectrogram(Layer):
    """The power of each pitch of a sound over time, in decibels.

    - `fft_length`: the size of the transforms, `tg.signal.stft`; the sound is mirrored at both ends
      by half of it, so that its first sample is in the middle of the first one.
    - `sequence_stride`: the number of samples from a transform to the next.
    - `sequence_length`, `window`: the size of the window, by default `fft_length`, and its name,
      "hann" or "hamming", its numbers, or None.
    - `sampling_rate`: the number of samples in a second.
    - `num_mel_bins`, `min_freq`, `max_freq`: the number of pitches, and the range of frequencies in
      hertz, by default to half of the sampling rate; see `tg.signal.linear_to_mel_weight_matrix`.
    - `mag_exp`: the power of the magnitude: 2 for the power of the sound.
    - `power_to_db`: whether to return 10 log10(max(power, min_power) / max(ref_power, min_power)),
      of which what is more than `top_db` below the largest result of the call is raised to that.

    Sounds are [samples] or [examples, samples], and results [..., num_mel_bins, transforms]. Raises
    ShapeError for other sounds, ValueError for a length or a number out of range.

    >>> layer = tg.layers.MelSpectrogram(256, 128, sampling_rate=8000, num_mel_bins=8)
    >>> layer(tg.ones([2, 1024])).shape
    TensorShape([2, 8, 9])
    """

    @takes_options
    def __init__(
        self,
        fft_length: int = 2048,
        sequence_stride: int = 512,
        sequence_length: int | None = None,
        window: str | TensorLike | None = "hann",
        sampling_rate: float = 16000,
        num_mel_bins: int = 128,
        min_freq: float = 20.0,
        max_freq: float | None = None,
        power_to_db: bool = True,
        top_db: float = 80.0,
        mag_exp: float = 2.0,
        min_power: float = 1e-10,
        ref_power: float = 1.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = "MelSpectrogram"
        self.fft_length = positive(op, "fft_length", fft_length)
        self.sequence_stride = positive(op, "sequence_stride", sequence_stride)
        length = sequence_length or fft_length
        self.sequence_length = positive(op, "sequence_length", length)
        _check_lengths(op, "sequence_length", self.sequence_length, self.fft_length)
        self.window = _window_of(op, window, self.sequence_length)
        self.sampling_rate = as_number(op, "sampling_rate", sampling_rate, low=1, high=2**31)
        self.num_mel_bins = positive(op, "num_mel_bins", num_mel_bins)
        self.min_freq = as_number(op, "min_freq", min_freq, low=0)
        self.max_freq = max_freq or int(sampling_rate / 2)
        self.power_to_db = as_flag(op, "power_to_db", power_to_db)
        self.top_db = as_number(op, "top_db", top_db)
        self.mag_exp = as_number(op, "mag_exp", mag_exp)
        self.min_power = as_number(op, "min_power", min_power, low=0)
        self.ref_power = as_number(op, "ref_power", ref_power)
        self._mel_weights()

    def _mel_weights(self) -> Tensor:
        count, ends = self.fft_length // 2 + 1, (self.min_freq, self.max_freq)
        return linear_to_mel_weight_matrix(self.num_mel_bins, count, self.sampling_rate, *ends)

    def _window(self, length: int, dtype: Any) -> Tensor:
        """The window in the middle of a transform."""
        if isinstance(self.window, str):
            numbers = _WINDOWS[self.window](self.sequence_length, dtype=dtype)
        else:
            numbers = as_tensor(self.window, dtype)
        before = (length - self.sequence_length) // 2
        return pad(numbers, [[before, length - self.sequence_length - before]])

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        rank = rank_of("MelSpectrogram", x)
        if rank not in (1, 2):
            fix = "give [samples] or [examples, samples]"
            refuse("MelSpectrogram", f"the sounds are {x.type}", x, fix=fix)
        x = cast_to(x, float32 if x.dtype.size < 4 or not x.dtype.is_floating else x.dtype)
        half = self.fft_length // 2
        x = pad(x, [[0, 0]] * (rank - 1) + [[half, half]], "REFLECT")
        window = None if self.window is None else self._window
        z = stft(x, self.fft_length, self.sequence_stride, self.fft_length, window)
        power = _squares((real(z), imag(z)))
        if self.mag_exp != 2:
            power = power_of(power, self.mag_exp / 2)
        y = matmul(power, cast_to(self._mel_weights(), power.dtype))
        if self.power_to_db:
            y = self._decibels(y)
        axes = [1, 0] if rank == 1 else [0, 2, 1]
        return cast_to(transpose(y, axes), self.compute_dtype)

    def _decibels(self, power: Tensor) -> Tensor:
        reference = 10 * np.log10(max(abs(self.ref_power), self.min_power))
        levels = multiply(log(maximum(power, self.min_power)), 10 / np.log(10))
        levels = subtract(levels, float(reference))
        return maximum(levels, subtract(reduce_max(levels), self.top_db))


class STFTSpectrogram(Layer):
    """The Fourier transforms of frames of a sound, by convolutions whose kernels can be trained.

    - `mode`: "log" for the logarithm of the magnitude, "magnitude", "psd" for the power, with that
      of negative frequencies added, "real", "imag", "angle", or "stft" for the real parts and then
      the imaginary ones.
    - `frame_length`, `frame_step`: the number of samples of a frame, and from a frame to the next;
      by default half as many.
    - `fft_length`: the size of the transforms; by default the next power of 2.
    - `window`: "hann", "hamming", the numbers of a window, or None.
    - `periodic`: whether the window is that of one period, without the end.
    - `scaling`: "density" divides the window by its norm, "spectrum" by the sum of its magnitudes.
    - `padding`: "valid", or "same" for transforms of all of the sound.
    - `expand_dims`: whether frequencies and channels are two axes.
    - `data_format`: "channels_last" or "channels_first".

    Sounds are [examples, samples, channels], and results [examples, frames, channels *
    frequencies], or [examples, frames, frequencies, channels]; with channels first, sounds are
    [examples, channels, samples], and results [examples, channels * frequencies, frames], or
    [examples, channels, frames, frequencies]. Raises ShapeError for other sounds, ValueError for an
    argument out of range.

    >>> layer = tg.layers.STFTSpectrogram("magnitude", frame_length=4, window=None, scaling=None)
    >>> layer([[[1.0], [0.0], [-1.0], [0.0]]]).numpy().round(2)
    array([[[0., 2., 0.]]], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        mode: str = "log",
        frame_length: int = 256,
        frame_step: int | None = None,
        fft_length: int | None = None,
        window: str | TensorLike | None = "hann",
        periodic: bool = False,
        scaling: str | None = "density",
        padding: str = "valid",
        expand_dims: bool = False,
        data_format: str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = "STFTSpectrogram"
        self.mode = as_choice(op, "mode", mode, _MODES)
        self.frame_length = positive(op, "frame_length", frame_length)
        step = max(frame_length // 2, 1) if frame_step is None else frame_step
        self.frame_step = positive(op, "frame_step", step)
        if self.frame_step > self.frame_length:
            fact = f"{op}: frame_step is {frame_step}, and frame_length {frame_length}"
            fail(SignatureError, fact, fix="use a step that is not larger than a frame")
        length = 1 << (frame_length - 1).bit_length() if fft_length is None else fft_length
        self.fft_length = positive(op, "fft_length", length)
        _check_lengths(op, "frame_length", self.frame_length, self.fft_length)
        self.window = _window_of(op, window, self.frame_length)
        self.periodic = as_flag(op, "periodic", periodic)
        self.scaling = as_choice(op, "scaling", scaling, ("density", "spectrum", None))
        self.padding = padding_of(op, padding)
        self.expand_dims = as_flag(op, "expand_dims", expand_dims)
        self._is_first = is_channels_first(op, data_format)
        self.data_format = data_format
        self._scaled = self._scaled_window()

    def build(self, input_shape: Any) -> None:
        places = np.arange(self.frame_length)[:, None, None]
        count = self.fft_length // 2 + 1
        angles = -2 * np.pi * places * np.arange(count) / max(2 * (count - 1), 1)
        weights = self._scaled[:, None, None]
        shape = angles.shape
        if self.mode != "imag":
            kernel = np.cos(angles) * weights
            self.real_kernel = self.add_weight(shape, lambda *_: kernel, name="real_kernel")
        if self.mode != "real":
            other = np.sin(angles) * weights
            self.imag_kernel = self.add_weight(shape, lambda *_: other, name="imag_kernel")

    def _scaled_window(self) -> np.ndarray:
        if self.window is None:
            return np.ones(self.frame_length)
        numbers = np.asarray(self.window)
        if isinstance(self.window, str):
            middle = {"hann": 0.5, "hamming": 0.54}[self.window]
            whole = max(self.frame_length - (not self.periodic), 1)
            turns = np.arange(self.frame_length) / whole
            numbers = middle - (1 - middle) * np.cos(2 * np.pi * turns)
            numbers = np.ones(1) if self.frame_length == 1 else numbers
        if self.scaling is not None and not numbers.any():
            fact = f"STFTSpectrogram: all {self.frame_length} numbers of the window are 0"
            fail(SignatureError, fact, fix="use a longer frame, periodic=True or scaling=None")
        if self.scaling == "density":
            return numbers / np.sqrt(np.square(numbers).sum())
        return numbers / np.abs(numbers).sum() if self.scaling else numbers

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        if rank_of("STFTSpectrogram", x) != 3:
            fix = (
                f"give [examples, {'channels, samples' if self._is_first else 'samples, channels'}]"
            )
            refuse("STFTSpectrogram", f"the sounds are {x.type}", x, fix=fix)
        x = x if self._is_first else transpose(x, [0, 2, 1])
        channels, samples = known(self, x.shape, 1), sizes_of("STFTSpectrogram", x)[2]
        lines = reshape(x, [-1, samples, 1])
        count = sizes_of("STFTSpectrogram", x)[0]
        parts = [self._transformed(lines, kernel) for kernel in self._kernels()]
        y = self._result(parts)
        y = reshape(y, [count, channels, *sizes_of("STFTSpectrogram", y)[1:]])
        return self._arranged(y)

    def _kernels(self) -> list[Any]:
        sides = [self.mode] if self.mode in ("real", "imag") else ["real", "imag"]
        return [getattr(self, f"{side}_kernel") for side in sides]

    def _transformed(self, x: Tensor, kernel: Any) -> Tensor:
        return conv1d(x, cast_to(as_tensor(kernel), x.dtype), self.frame_step, self.padding)

    def _result(self, parts: list[Tensor]) -> Tensor:
        """[examples, frames, frequencies], from the real and the imaginary parts."""
        if self.mode in ("real", "imag"):
            return parts[0]
        if self.mode == "angle":
            return atan2(parts[1], parts[0])
        if self.mode == "stft":
            return concat(parts, -1)
        power = _squares((parts[0], parts[1]))
        if self.mode == "psd":
            twice = np.full(self.fft_length // 2 + 1, 2.0)
            twice[[0, -1]] = 1.0
            return multiply(power, as_tensor(twice, power.dtype))
        magnitude = sqrt(maximum(power, _EPSILON))
        return magnitude if self.mode == "magnitude" else log(maximum(magnitude, _EPSILON))

    def _arranged(self, y: Tensor) -> Tensor:
        """[examples, channels, frames, frequencies] as the result is asked for."""
        if self.expand_dims:
            return y if self._is_first else transpose(y, [0, 2, 3, 1])
        y = transpose(y, [0, 1, 3, 2] if self._is_first else [0, 2, 1, 3])
        count, *middle, last = sizes_of("STFTSpectrogram", y)
        if self._is_first:
            return reshape(y, [count, middle[0] * middle[1], last])
        return reshape(y, [count, middle[0], middle[1] * last])


_MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")
