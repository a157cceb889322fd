"""What can be wrong with one argument of a call that is right, and what must be said of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import tracegraph as tg

DTYPE, SHAPE, VALUE = tg.errors.DTypeError, tg.errors.ShapeError, ValueError
ANY = (DTYPE, SHAPE, VALUE, tg.errors.TraceError)


class Wrong(NamedTuple):
    """A value that an argument cannot have. Where it `may` stand, the call need not be refused."""

    label: str
    value: Any
    kinds: tuple[type[Exception], ...]
    words: tuple[str, ...] = ()
    may: bool = False


RAGGED = [[1.0], [1.0, 2.0]]
AXES = {
    *("axis", "axes", "batch_axis", "seq_axis", "shared_axes", "reduction_dimension", "perm"),
    "class_axis",
}
DTYPES = {
    *("dtype", "output_type", "out_type", "type", "Tout", "out_idx", "output_dtype"),
    *("output_idx_type", "index_type", "tf_type"),
}


def wrong_values(name: str, value: Any) -> Iterator[Wrong]:
    """The values that an argument of this name, which is right with `value`, cannot have."""
    if isinstance(value, tg.Tensor):
        yield from _tensors(value)
    elif name in DTYPES:
        yield Wrong("no dtype", "nonsense", (DTYPE, VALUE), ("nonsense",))
        yield Wrong("a number for a dtype", 5, (DTYPE, VALUE), ("5",))
    elif name in AXES:
        yield from _axes(value)
    elif isinstance(value, bool):
        yield Wrong("no flag", "text", (DTYPE, VALUE), ("text",))
    elif isinstance(value, str):
        yield Wrong("no such option", "nonsense", (VALUE, DTYPE), ("nonsense",))
        yield Wrong("no string", 5, (VALUE, DTYPE), ("5",))
    elif isinstance(value, int):
        yield from _integers()
    elif isinstance(value, float):
        yield Wrong("text for a number", "text", (DTYPE,), ("text",))
        yield Wrong("a complex number", 1j, (DTYPE, VALUE), ())
        yield Wrong("a list for a number", RAGGED, (DTYPE, SHAPE), ())
        yield Wrong("nan", float("nan"), ANY, (), may=True)
        yield Wrong("a negative number", -3.0, ANY, (), may=True)
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], tg.Tensor):
        yield from _lists_of_tensors(value)
    elif isinstance(value, (list, tuple)) and _are_integers(value):
        yield from _sizes(value)
    elif callable(value) and not isinstance(value, (tg.Variable, tg.Module)):
        yield Wrong("no function", 5, (DTYPE, tg.errors.TraceError), ("5",))
        yield Wrong("text for a function", "text", (DTYPE, VALUE), ("text",))


def _axes(value: Any) -> Iterator[Wrong]:
    is_list = isinstance(value, (list, tuple))
    wrap = (lambda *axes: list(axes)) if is_list else (lambda axis: axis)
    yield Wrong("an axis too large", wrap(7), (SHAPE, VALUE), ("7",))
    yield Wrong("an axis too small", wrap(-8), (SHAPE, VALUE), ())
    yield Wrong("text for an axis", "text", (DTYPE, VALUE), ("text",))
    yield Wrong("a fraction for an axis", wrap(0.5), (DTYPE, VALUE), ())
    if is_list:
        yield Wrong("an axis twice", wrap(0, 0), (SHAPE, VALUE), ("0",))


def _tensors(value: tg.Tensor) -> Iterator[Wrong]:
    yield Wrong("text for a tensor", "text", (DTYPE,), ("text",))
    yield Wrong("a dict for a tensor", {"a": 1.0}, (DTYPE, VALUE), ())
    yield Wrong("a ragged list", RAGGED, (SHAPE, DTYPE), ())
    shape, dtype = value.shape.as_list(), value.dtype
    for label, other in {
        "a scalar": [],
        "two more axes": [2, 1, *shape],
        "another size": [*shape[:-1], shape[-1] + 1] if shape else [3],
        "no elements": [*shape[:-1], 0],
    }.items():
        yield Wrong(label, np.ones(other, dtype.numpy_dtype), ANY, may=True)
    for other in (tg.bool, tg.int32, tg.float32, tg.complex64):
        if other is not dtype:
            array = np.ones(shape, other.numpy_dtype)
            yield Wrong(f"a tensor of {other.name}", array, ANY, may=True)


def _lists_of_tensors(value: Any) -> Iterator[Wrong]:
    yield Wrong("a number for a list", 5, (DTYPE, SHAPE), ())
    yield Wrong("text in a list", ["text", *value[1:]], (DTYPE,), ("text",))
    yield Wrong("no list", "text", (DTYPE, VALUE), ("text",))
    yield Wrong("an empty list", [], ANY, may=True)
    odd = tg.ones([5, *value[0].shape.as_list(), 3])
    yield Wrong("a tensor of another rank", [odd, *value[1:]], ANY, may=True)


def _integers() -> Iterator[Wrong]:
    yield Wrong("text for an int", "text", (DTYPE, SHAPE, VALUE), ("text",))
    yield Wrong("a fraction for an int", 1.5, (DTYPE, SHAPE, VALUE), ())
    yield Wrong("an absurd int", 2**70, (SHAPE, DTYPE, VALUE), ())
    yield Wrong("a negative int", -7, ANY, may=True)
    yield Wrong("zero", 0, ANY, may=True)
    yield Wrong("a list for an int", [1, 2, 3, 4, 5, 6], ANY, may=True)


def _are_integers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_are_integers, value))
    return type(value) is int


def _sizes(value: Any) -> Iterator[Wrong]:
    def filled(x: Any) -> Any:
        return np.full(np.shape(value), x, object).tolist()

    yield Wrong("text for sizes", "text", (DTYPE, VALUE), ("t",))
    yield Wrong("fractions for sizes", filled(1.5), (DTYPE, SHAPE, VALUE), ())
    yield Wrong("absurd sizes", filled(2**70), (SHAPE, DTYPE, VALUE), ())
    yield Wrong("sizes no machine holds", filled(2**40), ANY, may=True)
    yield Wrong("negative sizes", filled(-7), ANY, may=True)
    yield Wrong("more sizes", [*filled(1), *filled(1)], ANY, may=True)
