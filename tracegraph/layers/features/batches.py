"""Data for `adapt`: arrays, or iterables of batches."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracegraph.array.arguments import refuse_kind
from tracegraph.errors import DTypeError, fail


def batches_of(op: str, data: Any) -> Iterator[np.ndarray]:
    """The data as arrays; a list of numbers, or of lists of them, is one. Raises DTypeError for
    what is not real numbers."""
    if hasattr(data, "shape") or _is_of_numbers(data):
        yield _numbers(op, data)
        return
    if not hasattr(data, "__iter__") or isinstance(data, (str, dict)):
        fix = "give an array, a tensor, or a list of batches"
        refuse_kind(op, "data are arrays", data, fix=fix)
    for batch in data:
        array = batch[0] if isinstance(batch, tuple) and batch else batch
        if not hasattr(array, "shape"):
            fix = "give an array, np.array(data), or a list of arrays"
            refuse_kind(op, "a batch is an array", array, fix=fix)
        yield _numbers(op, array)


def _is_of_numbers(data: Any) -> bool:
    first = data
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    return first is not data and isinstance(first, numbers.Number)


def _numbers(op: str, data: Any) -> np.ndarray:
    array = np.asarray(data)
    if array.dtype.kind in "cmMSU":
        fact = f"{op}: data are real numbers, and they were given as {array.dtype.name}"
        fail(DTypeError, fact, fix="convert them first; of complex numbers take tg.abs(x)")
    return array
