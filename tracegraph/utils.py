"""Keras' functions that prepare data, under Keras' names: `tg.keras.utils`.

They work on NumPy's arrays, before data become tensors.

>>> tg.keras.utils.to_categorical([0, 2])
array([[1., 0., 0.],
       [0., 0., 1.]])
"""

from __future__ import annotations

import math
import random as python_random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from tracegraph.api.absent import publish
from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_number,
    as_size,
    known_int,
    refuse,
    refuse_kind,
)
from tracegraph.array.creation import one_hot, ones_like
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import squeeze
from tracegraph.errors import DTypeError, InvalidArgumentError, fail, kind_of, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import divide
from tracegraph.math.elementwise.logic import equal
from tracegraph.math.reduction import norm
from tracegraph.random.generators import set_seed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray


def set_random_seed(seed: int) -> None:
    """Seeds Python's `random`, NumPy's and tracegraph's random numbers.

    Raises DTypeError (a TypeError) for what is not an integer, ValueError for one that is not from
    0 to 2 ** 32 - 1, which is what NumPy takes.

    >>> tg.keras.utils.set_random_seed(1)
    >>> first = tg.random.uniform([]).numpy()
    >>> tg.keras.utils.set_random_seed(1)
    >>> bool(tg.random.uniform([]).numpy() == first)
    True
    """
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        refuse_kind("set_random_seed", "a seed is an integer", seed, fix="use an int, such as 1")
    number = int(as_number("set_random_seed", "seed", seed, low=0, high=2**32 - 1))
    python_random.seed(number)
    np.random.seed(number)
    set_seed(number)


@overload
def to_categorical(x: Tensor, num_classes: int | None = None) -> Tensor: ...
@overload
def to_categorical(x: ArrayLike, num_classes: int | None = None) -> NDArray[np.float64]: ...
def to_categorical(x: ArrayLike | Tensor, num_classes: int | None = None) -> Any:
    """One row of zeros and a one for each class number: an array of float64 whose last axis has
    `num_classes` entries, by default one more than the largest number in `x`. A last axis of size
    1 in `x` is dropped first. Of a tensor it is `tg.one_hot(x, num_classes)`.

    Raises DTypeError (a TypeError) for what is not integers, InvalidArgumentError (a ValueError)
    for one below 0 or not below `num_classes`.

    >>> tg.keras.utils.to_categorical([[1], [0]], num_classes=3)
    array([[0., 1., 0.],
           [1., 0., 0.]])
    """
    depth = None if num_classes is None else _size("to_categorical", "num_classes", num_classes)
    if isinstance(x, Tensor):
        if depth is None:
            fix = "give it: to_categorical(x, num_classes=10)"
            refuse("to_categorical", "the number of classes of a tensor is not known", x, fix=fix)
        is_column = x.ndim is not None and x.ndim > 1 and x.shape[-1] == 1
        return one_hot(squeeze(x, -1) if is_column else x, depth)
    numbers = _as_integers(x)
    if numbers.ndim > 1 and numbers.shape[-1] == 1:
        numbers = numbers[..., 0]
    most = int(numbers.max(initial=-1))
    depth = most + 1 if depth is None else depth
    least = int(numbers.min(initial=0))
    if least < 0 or most >= depth:
        wrong = least if least < 0 else most
        limit = "no class is below 0" if least < 0 else f"there are {depth} classes"
        fact = f"to_categorical: the class {wrong} is named, and {limit}"
        fail(InvalidArgumentError, fact, fix="number them from 0, below num_classes")
    rows = np.zeros((*numbers.shape, depth))
    np.put_along_axis(rows, numbers[..., None], 1.0, axis=-1)
    return rows


def _size(op: str, what: str, value: Any) -> int:
    size = as_size(op, what, value)
    if known_int(size) and size >= 0:
        return int(size)
    refuse(op, f"{what} is {size}", fix="use an int, 0 or more")


def _as_integers(x: Any) -> NDArray[np.int64]:
    array = np.asarray(x)
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64) if array.dtype.kind in "biuf" else None
    if whole is None or not np.array_equal(whole, array):
        fact = f"to_categorical: classes are integers, and {shown(x)} is {kind_of(x)}"
        fail(DTypeError, fact, fix="number the classes: np.unique(x, return_inverse=True)[1]")
    return whole


@overload
def normalize(x: Tensor, axis: int = -1, order: float = 2) -> Tensor: ...
@overload
def normalize(x: ArrayLike, axis: int = -1, order: float = 2) -> NDArray[Any]: ...
def normalize(x: ArrayLike | Tensor, axis: int = -1, order: float = 2) -> Any:
    """x / norm(x, order) along an axis; what has the norm 0 stays 0. An array of an array or a
    list, a tensor of a tensor.

    Raises ShapeError (a ValueError) for an axis that `x` does not have.

    >>> tg.keras.utils.normalize([[3.0, 4.0], [0.0, 0.0]])
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    is_infinite = isinstance(order, float) and math.isinf(order)
    power = order if is_infinite else as_number("normalize", "order", order)
    if isinstance(x, Tensor):
        size = norm(x, power, axis, keepdims=True)
        return divide(x, where(equal(size, 0), ones_like(size), size))
    array = np.asarray(x)
    if array.dtype.kind not in "biufc":
        refuse_kind("normalize", "it takes numbers", x, fix="give an array of numbers")
    along = as_axis("normalize", axis, array.ndim)
    sizes = np.linalg.norm(array, power, along, keepdims=True)
    return array / np.where(sizes == 0, 1, sizes)


def pad_sequences(
    sequences: Sequence[ArrayLike],
    maxlen: int | None = None,
    dtype: DTypeLike = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> NDArray[Any]:
    """Sequences of different lengths as the rows of one array [sequences, maxlen, ...], filled
    with `value`. `maxlen` is by default the longest length.

    - `padding`, `truncating`: "pre" or "post", whether to fill, and to cut, before or after.

    Raises DTypeError (a TypeError) for what is not a list of sequences, or values that do not fit
    `dtype`; ShapeError (a ValueError) for elements of different shapes.

    >>> tg.keras.utils.pad_sequences([[1], [2, 3], [4, 5, 6]], maxlen=2)
    array([[0, 1],
           [2, 3],
           [5, 6]], dtype=int32)
    """
    as_choice("pad_sequences", "padding", padding, ("pre", "post"))
    as_choice("pad_sequences", "truncating", truncating, ("pre", "post"))
    rows = [_as_sequence(row) for row in _listed(sequences)]
    longest = max((len(row) for row in rows), default=0)
    length = longest if maxlen is None else _size("pad_sequences", "maxlen", maxlen)
    inner = next((row.shape[1:] for row in rows if len(row)), ())
    result = np.full((len(rows), length, *inner), _fitting(np.asarray(value), dtype))
    for target, row in zip(result, rows):
        if len(row) and row.shape[1:] != inner:
            fact = f"one element has the shape {row.shape[1:]}, and another one {inner}"
            refuse("pad_sequences", fact, fix="give all elements one shape")
        kept = row[max(0, len(row) - length) :] if truncating == "pre" else row[:length]
        if len(kept):
            start = length - len(kept) if padding == "pre" else 0
            target[start : start + len(kept)] = _fitting(kept, dtype)
    return result


def _listed(sequences: Any) -> list[Any]:
    if not hasattr(sequences, "__iter__") or isinstance(sequences, (str, dict)):
        refuse_kind("pad_sequences", "it takes a list", sequences, fix="give a list of lists")
    return list(sequences)


def _as_sequence(row: Any) -> NDArray[Any]:
    is_list = hasattr(row, "__len__") and not isinstance(row, (str, dict))
    array = np.asarray(row if is_list else None)
    if array.ndim == 0 or array.dtype.kind not in "biufc":
        refuse_kind("pad_sequences", "a sequence is a list of numbers", row, fix="give such lists")
    return array


def _fitting(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The values in a dtype, where whole numbers stay the same."""
    with np.errstate(invalid="ignore"):
        cast = values.astype(dtype)
    if cast.dtype.kind in "iu" and not np.array_equal(cast, values):
        fact = f"pad_sequences: values such as {shown(values.flat[0])} do not fit {cast.dtype}"
        fail(DTypeError, fact, fix='give a dtype that holds them, such as dtype="float32"')
    return cast


__all__ = ["normalize", "pad_sequences", "set_random_seed", "to_categorical"]

publish(__name__)
