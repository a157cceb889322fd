"""JAX's gather and scatter in terms of our ops.

JAX's ops say where a window starts, in any axes and order, and how large it is. Ours take one
element per index vector, along adjacent axes, and everything along the others. So the axes are
permuted to make the indexed ones adjacent, and if a window covers part of an axis, each of its
positions gets its own index vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegraph.core.shapes import Shape, Size
from tracegraph.core.types import int32, int64
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import Equation, converts
from tracegraph.jax_programs.sizes import sizes_of
from tracegraph.ops.broadcast import BroadcastTo, full_like
from tracegraph.ops.constant import Iota, constant
from tracegraph.ops.elementwise import (
    ADD,
    AND,
    GREATER_EQUAL,
    LESS_EQUAL,
    MAXIMUM,
    MINIMUM,
    NEG,
    SELECT,
    Cast,
    StopGradient,
)
from tracegraph.ops.index import (
    GatherNd,
    ScatterAdd,
    ScatterMax,
    ScatterMin,
    ScatterMul,
    ScatterUpdate,
    size_value,
)
from tracegraph.ops.shape import Concatenate, Reshape, Transpose, inverse, slice_axis


class JaxWindows(NamedTuple):
    """Where windows lie over a tensor: JAX's description of each of its axes."""

    #: The shape of the tensor, and of a window.
    shape: Shape
    sizes: tuple[Size, ...]
    #: The axes that the components of index vectors refer to, in order.
    indexed: tuple[int, ...]
    #: The tensor's batch axes, shared with the indices, and those of the indices.
    batch: tuple[int, ...]
    index_batch: tuple[int, ...]
    #: Axes that windows do not have.
    dropped: tuple[int, ...]

    @property
    def moving(self) -> list[int]:
        """The axes that need index vectors: along the others, windows cover everything."""
        return [
            axis
            for axis in range(len(self.shape))
            if axis not in self.batch
            and (axis in self.dropped or self.sizes[axis] != self.shape[axis])
        ]

    @property
    def covered(self) -> list[int]:
        """The axes along which windows cover everything."""
        taken = {*self.batch, *self.moving}
        return [axis for axis in range(len(self.shape)) if axis not in taken]

    @property
    def partial(self) -> list[int]:
        """The axes of which a window covers a part, rather than a single position."""
        return [axis for axis in self.moving if axis not in self.dropped]

    @property
    def may_reach_out(self) -> bool:
        """Whether a window may lie partly inside and partly outside the tensor."""
        return bool(self.partial) or any(axis not in self.moving for axis in self.indexed)

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the tensor in the order our ops need: batch, indexed, others."""
        return (*self.batch, *self.moving, *self.covered)

    def starts(self, indices: Tensor) -> tuple[dict[int, Tensor], list[Size]]:
        """Where windows start, by axis, with the batch axes of the indices first; and the sizes
        of their other axes. Index vectors lie along the last axis of `indices`."""
        rest = [k for k in range(indices.ndim - 1) if k not in self.index_batch]
        indices = Transpose((*self.index_batch, *rest, indices.ndim - 1))(indices)
        if indices.dtype.name == "uint32":  # not int64, which JAX may have switched off
            indices = MINIMUM(indices, full_like(indices, 2**31 - 1))
        if indices.dtype not in (int32, int64):
            indices = Cast(int32)(indices)
        shape = indices.type.shape[:-1]
        columns = {}
        for place, axis in enumerate(self.indexed):
            column = slice_axis(indices, indices.ndim - 1, place, place + 1)
            columns[axis] = Reshape(shape)(column)
        return columns, [*shape[len(self.batch) :]]

    def last_start(self, axis: int, like: Tensor) -> Tensor:
        """The last valid start of a window along an axis, in the shape of `like`."""
        last = size_value(self.shape[axis] - self.sizes[axis], like.dtype)
        return BroadcastTo(like.type.shape, ())(last) if like.type.shape != () else last

    def inside(self, columns: dict[int, Tensor]) -> Tensor | None:
        """Which windows lie completely inside the tensor; None if no axis is indexed."""
        found = None
        for axis, start in columns.items():
            is_in = AND(
                GREATER_EQUAL(start, full_like(start, 0)),
                LESS_EQUAL(start, self.last_start(axis, start)),
            )
            found = is_in if found is None else AND(found, is_in)
        return found

    def clamped(self, columns: dict[int, Tensor]) -> dict[int, Tensor]:
        """The starts, clamped so that windows lie inside the tensor."""
        return {
            axis: MINIMUM(MAXIMUM(start, full_like(start, 0)), self.last_start(axis, start))
            for axis, start in columns.items()
        }

    def vectors(self, columns: dict[int, Tensor], like: Tensor) -> Tensor:
        """An index vector for each position of each window: the axes of the indices are followed
        by those of the window that cover part of an axis."""
        partial = self.partial
        block = (*like.type.shape, *(self.sizes[axis] for axis in partial))
        lead = tuple(range(like.ndim))
        parts = []
        for axis in self.moving:
            start = columns.get(axis, full_like(like, 0))
            number = BroadcastTo(block, lead)(start) if partial else start
            if axis in partial:
                steps = Iota(self.sizes[axis], start.dtype)()
                place = like.ndim + partial.index(axis)
                number = ADD(number, BroadcastTo(block, (place,))(steps))
            parts.append(Reshape((*block, 1))(number))
        if not parts:
            column = Reshape((*like.type.shape, 1))(like)
            return Reshape((*block, 0))(slice_axis(column, like.ndim, 0, 0))
        return Concatenate(len(block))(*parts) if len(parts) > 1 else parts[0]


def _mode(eqn: Equation) -> str:
    """How to treat windows that reach outside: "fill", "clip" or "promise_in_bounds"."""
    text = str(eqn.params["mode"]).lower()
    return next((mode for mode in ("clip", "promise") if mode in text), "fill")


def _gather_windows(eqn: Equation, x: Tensor) -> JaxWindows:
    numbers = eqn.params["dimension_numbers"]
    return JaxWindows(
        x.type.shape,
        sizes_of(eqn.params["slice_sizes"]),
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.start_indices_batching_dims),
        tuple(numbers.collapsed_slice_dims),
    )


@converts("gather")
def _gather(eqn: Equation, x: Tensor, indices: Tensor) -> Tensor:
    windows = _gather_windows(eqn, x)
    columns, counts = windows.starts(indices)
    like = _like(columns, indices, windows)
    mode = _mode(eqn)
    starts = windows.clamped(columns)
    vectors = windows.vectors(starts, like)
    b = len(windows.batch)
    found = GatherNd(b, b)(Transpose(windows.order)(x), vectors)
    # Now the axes are: batch, those of the indices, partial ones, and fully covered ones.
    placed = Transpose(_result_order(eqn, windows, counts, found.ndim))(found)
    is_same_outside = mode == "clip" or (mode == "promise" and not x.dtype.is_differentiable)
    is_in = None if is_same_outside else windows.inside(columns)
    if is_in is None:
        return placed
    lead = _axes_of_indices(eqn, windows, placed.ndim)
    mask = BroadcastTo(placed.type.shape, tuple(sorted(lead)))(_in_order(is_in, lead))
    if mode == "promise":
        # JAX reads the nearest window, and its gradient skips windows that do not fit.
        return SELECT(mask, placed, StopGradient()(placed))
    return SELECT(mask, placed, full_like(placed, _fill_value(eqn, placed)))


def _like(columns: dict[int, Tensor], indices: Tensor, windows: JaxWindows) -> Tensor:
    """Zeros in the shape of the starts."""
    for start in columns.values():
        return full_like(start, 0)
    shape = tuple(windows.starts(indices)[1])
    return BroadcastTo(shape, ())(constant(0, int32)) if shape else constant(0, int32)


def _fill_value(eqn: Equation, x: Tensor) -> Any:
    given = eqn.params.get("fill_value")
    if given is not None:
        return np.asarray(given).item()
    if x.dtype.is_floating or x.dtype.is_complex:
        return float("nan")
    if x.dtype.is_bool:
        return True
    return x.dtype.max if x.dtype.name.startswith("u") else x.dtype.min


def _axes_of_indices(eqn: Equation, windows: JaxWindows, rank: int) -> list[int]:
    """The axes of a result that come from the indices, in the order of `starts`."""
    offset = eqn.params["dimension_numbers"].offset_dims
    free = [axis for axis in range(rank) if axis not in offset]
    batch = windows.index_batch
    rest = [k for k in range(len(free)) if k not in batch]
    return [free[k] for k in (*batch, *rest)]


def _result_order(eqn: Equation, windows: JaxWindows, counts: Sequence[Size], rank: int) -> Any:
    """For each axis of the result, the axis of the gathered tensor."""
    lead = _axes_of_indices(eqn, windows, rank)
    offset = eqn.params["dimension_numbers"].offset_dims
    return inverse((*lead, *_window_axes(windows, offset)))


def _window_axes(windows: JaxWindows, offset: Sequence[int]) -> list[int]:
    """The axes of a result, or of updates, that come from windows: partial ones, then the
    others."""
    kept = [a for a in range(len(windows.shape)) if a not in (*windows.dropped, *windows.batch)]
    place = dict(zip(kept, offset, strict=True))
    return [place[axis] for axis in (*windows.partial, *windows.covered)]


def _in_order(x: Tensor, axes: Sequence[int]) -> Tensor:
    """x with its axes permuted to their order in a result."""
    order = tuple(int(k) for k in np.argsort(axes))
    return x if order == tuple(range(x.ndim)) else Transpose(order)(x)


_SCATTERS = {
    "scatter": ScatterUpdate,
    "scatter-add": ScatterAdd,
    "scatter_add": ScatterAdd,
    "scatter-sub": ScatterAdd,  # of the negated updates
    "scatter_sub": ScatterAdd,
    "scatter_max": ScatterMax,
    "scatter_min": ScatterMin,
    "scatter_mul": ScatterMul,
    "scatter-max": ScatterMax,
    "scatter-min": ScatterMin,
    "scatter-mul": ScatterMul,
}


def _scatter_windows(eqn: Equation, x: Tensor, updates: Tensor) -> JaxWindows:
    numbers = eqn.params["dimension_numbers"]
    batch, dropped = tuple(numbers.operand_batching_dims), tuple(numbers.inserted_window_dims)
    there = iter(numbers.update_window_dims)
    sizes = tuple(
        1 if axis in (*batch, *dropped) else updates.type.shape[next(there)]
        for axis in range(x.ndim)
    )
    return JaxWindows(
        x.type.shape,
        sizes,
        tuple(numbers.scatter_dims_to_operand_dims),
        batch,
        tuple(numbers.scatter_indices_batching_dims),
        dropped,
    )


@converts(*_SCATTERS)
def _scatter(eqn: Equation, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    _check_update(eqn)
    if eqn.name in ("scatter-sub", "scatter_sub"):
        updates = NEG(updates)
    windows = _scatter_windows(eqn, x, updates)
    offset = eqn.params["dimension_numbers"].update_window_dims
    columns, _ = windows.starts(indices)
    like = _like(columns, indices, windows)
    starts = columns
    if _mode(eqn) == "clip":
        starts = windows.clamped(columns)
    elif windows.may_reach_out and (is_in := windows.inside(columns)) is not None:
        # A window that does not fit is dropped as a whole, by a start past the end.
        if not windows.moving:
            eqn.refuse(
                "a scatter of the whole tensor, dropped where it is shifted, has no counterpart",
                "insert the updates with jnp.where",
            )
        starts = {
            axis: SELECT(is_in, start, _size_like(windows.shape[axis], start))
            for axis, start in columns.items()
        }
    vectors = windows.vectors(starts, like)
    free = [axis for axis in range(updates.ndim) if axis not in offset]
    rest = [k for k in range(len(free)) if k not in windows.index_batch]
    lead = [free[k] for k in (*windows.index_batch, *rest)]
    updates = Transpose((*lead, *_window_axes(windows, offset)))(updates)
    b = len(windows.batch)
    op = _SCATTERS[eqn.name](b, b)
    found = op(Transpose(windows.order)(x), vectors, updates)
    return Transpose(inverse(windows.order))(found)


def _check_update(eqn: Equation) -> None:
    """Rejects a plain scatter that combines updates in another way than replacing."""
    program = eqn.params["update_jaxpr"]
    if eqn.name == "scatter" and program is not None and program.eqns:
        eqn.refuse(
            "a scatter that applies a function, as x.at[i].apply(f) does, has no counterpart",
            "where no index comes twice, x.at[i].set(f(x[i])) is the same",
        )


def _size_like(size: Size, like: Tensor) -> Tensor:
    value = size_value(size, like.dtype)
    return BroadcastTo(like.type.shape, ())(value) if like.type.shape != () else value
