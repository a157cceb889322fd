"""Minimum cuts of networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

#: A start, an end, and what the edge between them holds: `math.inf` for an edge that is never cut.
Edge = tuple[int, int, float]
#: SciPy counts in integers of 32 bits: the sum of all capacities, and what no flow fills.
_SUM, _UNBOUNDED = 1 << 29, 1 << 30


def behind_minimum_cut(edges: Sequence[Edge], source: int, sink: int) -> np.ndarray:
    """For each vertex whether it is on the sink's side of a minimum cut: of all such cuts the one
    closest to the sink. Capacities are rounded to a part in 2^29 of their sum."""
    starts, ends, capacities = zip(*edges, strict=True)
    held = np.array(capacities, np.float64)
    is_bounded = held < math.inf
    held *= _SUM / max(held[is_bounded].sum(), 1.0)
    held = np.where(is_bounded, np.ceil(held), _UNBOUNDED).astype(np.int32)
    count = 1 + max(source, sink, max(starts), max(ends))
    network = csr_array((held, (starts, ends)), shape=(count, count))
    left = (network - maximum_flow(network, source, sink).flow).tocsr()
    left.eliminate_zeros()  # what is full lets nothing pass
    behind = np.zeros(count, bool)
    behind[breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)] = True
    return behind
