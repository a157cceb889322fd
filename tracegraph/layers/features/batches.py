"""Data for `adapt`: arrays, or iterables of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracegraph.array.arguments import refuse_kind


def batches_of(op: str, data: Any) -> Iterator[np.ndarray]:
    """The data as arrays."""
    if hasattr(data, "shape"):
        yield np.asarray(data)
        return
    if not hasattr(data, "__iter__") or isinstance(data, (str, dict)):
        fix = "give an array, a tensor, or a list of batches"
        refuse_kind(op, "data are arrays", data, fix=fix)
    for batch in data:
        array = batch[0] if isinstance(batch, tuple) and batch else batch
        if not hasattr(array, "shape"):
            fix = "give an array, np.array(data), or a list of arrays"
            refuse_kind(op, "a batch is an array", array, fix=fix)
        yield np.asarray(array)
