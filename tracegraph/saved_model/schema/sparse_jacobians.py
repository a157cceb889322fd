"""Sparse Jacobians: the indices and colours of a matrix, as JSON and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.archive.manifest import Entry
from tracegraph.archive.value_encoding import Special, encoded
from tracegraph.differentiation.sparse_jacobian import SparseJacobian
from tracegraph.jacobians.sparse_products import Sparsity
from tracegraph.passes.colouring import Colouring

#: The integers of a matrix's places, and the types of the leaves that a trace is made for.
#: The arrays of a matrix: the rows and columns of its entries, and how they are packed.
_ARRAYS = ("rows", "columns", "column_colours", "row_colours", "products", "places")
#: The integers of all of them.
_INDEX = np.dtype(np.int64)


def written_matrix(
    matrix: SparseJacobian, special: Special, array: Callable[[np.ndarray], str]
) -> dict[str, Any]:
    """The JSON of a matrix: `special` writes its values, and `array` names one of the constants."""
    sparsity, target, source = matrix._rest
    holders = (sparsity, sparsity, *(sparsity.colouring,) * 4)
    arrays = zip(_ARRAYS, holders, strict=True)
    return {
        "values": encoded(matrix.values, special),
        "target": list(target),
        "source": list(source),
        **{name: array(np.asarray(getattr(holder, name))) for name, holder in arrays},
    }


def read_matrix(
    entry: Entry, values: Callable[[Entry], Any], array: Callable[[Entry], np.ndarray]
) -> SparseJacobian:
    """The matrix: `values` reads the placeholder for its values, and `array` a constant. Raises
    LoadError for indices out of range."""
    values_, target_, source_, *names = entry.fields("values", "target", "source", *_ARRAYS)
    found = [array(name) for name in names]
    if any(array.ndim != 1 or array.dtype != _INDEX for array in found):
        entry.fail("places in a matrix are lists of 64-bit integers")
    target, source = (tuple(e.each(Entry.count)) for e in (target_, source_))
    rows, columns, column_colours, row_colours, products, places = found
    shape = len(row_colours), len(column_colours)
    if shape != (math.prod(target), math.prod(source)):
        entry.fail(f"{target} and {source} are the shapes of another matrix than one of {shape}")
    problem = _misfit(shape, found)
    if problem:
        entry.fail(problem)
    colouring = Colouring(shape, column_colours, row_colours, products, places)
    return SparseJacobian(
        values(values_), Sparsity(shape, rows, columns, colouring), target, source
    )


def _misfit(shape: tuple[int, int], arrays: Sequence[np.ndarray]) -> str:
    """Which part of a sparse matrix is out of range; empty if none is."""
    rows, columns, column_colours, row_colours, products, places = arrays
    if len({len(rows), len(columns), len(products), len(places)}) > 1:
        return "each entry of a matrix has a row, a column, a product and a place"
    counts = [int(colours.max(initial=-1)) + 1 for colours in (column_colours, row_colours)]
    limits = (
        *((rows, 0, shape[0]), (columns, 0, shape[1])),
        *((column_colours, -1, shape[1]), (row_colours, -1, shape[0])),
        *((products, 0, sum(counts)), (places, 0, max(shape))),
    )
    for numbers, least, limit in limits:
        if numbers.size and not least <= numbers.min() <= numbers.max() < limit:
            return "an entry lies outside the matrix"
    if shape[0] * shape[1] >= 2**63 or np.any(np.diff(rows * shape[1] + columns) <= 0):
        return "the entries of a matrix are not in their order"
    return ""
