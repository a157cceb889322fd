"""Windows, by which frames of a signal are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_count, as_flag, as_number, known_int, refuse
from tracegraph.array.creation import from_numpy
from tracegraph.core.types import TensorType, as_dtype, float32
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.typing import DTypeLike, SizeLike


def hann_window(
    window_length: SizeLike,
    periodic: bool = True,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """0.5 - 0.5 cos(2 pi k / n), where n is the length, or one less if not `periodic` or odd.

    The length must be known while tracing. Raises ShapeError for one below 0, DTypeError for a
    dtype that is not floating.

    >>> tg.signal.hann_window(4).numpy()
    array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    return _raised_cosine("hann_window", window_length, periodic, dtype, 0.5, 0.5)


def hamming_window(
    window_length: SizeLike,
    periodic: bool = True,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """0.54 - 0.46 cos(2 pi k / n), where n is the length, or one less if not `periodic` or odd.

    >>> tg.signal.hamming_window(4).numpy().round(2)
    array([0.08, 0.54, 1.  , 0.54], dtype=float32)
    """
    return _raised_cosine("hamming_window", window_length, periodic, dtype, 0.54, 0.46)


def _raised_cosine(
    op: str, length: Any, periodic: Any, dtype: Any, middle: float, height: float
) -> Tensor:
    count = _length(op, length)
    whole = count - (count % 2 == 1 or not as_flag(op, "periodic", periodic))

    def values() -> np.ndarray:
        if count == 1:
            return np.ones(1)
        return middle - height * np.cos(2 * np.pi * np.arange(count) / max(whole, 1))

    return _window(op, count, values, dtype)


def kaiser_window(
    window_length: SizeLike, beta: float = 12.0, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """The Kaiser window, which is narrower for a larger `beta`.

    >>> tg.signal.kaiser_window(3, beta=2.0).numpy().round(4)
    array([0.4387, 1.    , 0.4387], dtype=float32)
    """
    op = "kaiser_window"
    count, width = _length(op, window_length), as_number(op, "beta", beta)
    return _window(op, count, lambda: np.kaiser(count, width), dtype)


def kaiser_bessel_derived_window(
    window_length: SizeLike, beta: float = 12.0, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """The Kaiser window, cumulatively summed so that the squares of its halves add up to 1.

    >>> tg.signal.kaiser_bessel_derived_window(4, beta=2.0).numpy().round(4)
    array([0.4834, 0.8754, 0.8754, 0.4834], dtype=float32)
    """
    op = "kaiser_bessel_derived_window"
    count, width = _length(op, window_length), as_number(op, "beta", beta)

    def values() -> np.ndarray:
        totals = np.cumsum(np.kaiser(count // 2 + 1, width))
        half = np.sqrt(totals[:-1] / totals[-1])
        return np.concatenate([half, half[::-1]])

    return _window(op, count // 2 * 2, values, dtype)


def vorbis_window(
    window_length: SizeLike, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """sin(pi / 2 sin(pi (k + 1 / 2) / n) ** 2); the squares of its two halves add up to 1.

    >>> tg.signal.vorbis_window(2).numpy().round(4)
    array([0.7071, 0.7071], dtype=float32)
    """
    op = "vorbis_window"
    count = _length(op, window_length)

    def values() -> np.ndarray:
        inner = np.sin(np.pi * (np.arange(count) + 0.5) / max(count, 1))
        return np.sin(np.pi / 2 * inner**2)

    return _window(op, count, values, dtype)


def _length(op: str, length: Any) -> int:
    count = as_count(op, "window_length", length)
    if not known_int(count):
        refuse(op, f"window_length is {count}, which is open", fix="use an int")
    return count


def _window(op: str, count: int, values: Callable[[], np.ndarray], dtype: Any) -> Tensor:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        fail(DTypeError, f"{op}: dtype is {kind.name}", fix="use a floating type, as tg.float32")
    return from_numpy(op, TensorType(kind, (count,)), values)


__all__ = [
    "hamming_window",
    "hann_window",
    "kaiser_bessel_derived_window",
    "kaiser_window",
    "vorbis_window",
]
