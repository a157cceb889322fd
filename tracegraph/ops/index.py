"""Reading and writing at positions that are values: gather, scatter, and slices that move.

What is out of range is read at the nearest index that is not, and is not written at all: a write
that is clamped would destroy what stands elsewhere. The field `clamps` says which of the two an op
does, and its derivative does the same: a gather that clamps goes with a scatter that clamps, and a
scatter that drops with a gather that reads 0 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np

from tracegraph.core.shapes import Shape, Size, element_count, same_shape, static_shape
from tracegraph.core.sparsity_patterns import Pattern, element_numbers, moved
from tracegraph.core.types import DType, TensorType, bool_, int32, int64, type_of_array
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import (
    Batched,
    Derivative,
    KnownValues,
    Op,
    Tangents,
    WithoutDerivative,
    check_same_dtype,
)
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import BroadcastTo, full, linear_tangent, stack, zeros_of
from tracegraph.ops.constant import DimSize, Iota, constant
from tracegraph.ops.elementwise import (
    ADD,
    DIV,
    EQUAL,
    KEPT,
    MAXIMUM,
    MINIMUM,
    MUL,
    NUMERIC,
    SELECT,
    Cast,
    check_kind,
    conjugated,
    scale,
)
from tracegraph.ops.movement import no_flops
from tracegraph.ops.shape import Concatenate, Reshape, Transpose, inverse

REAL_NUMBERS = frozenset(["floating", "integer"])


class GatherNd(Op):
    """y[b, s, i, t] = x[b, s, v, t] with v = indices[b, i], a vector of k numbers.

    b stands for the first `batch_dims` axes of both operands, s for the axes of x from there to
    `axis`, v for the k axes of x from `axis` on, t for the rest; i for the axes of `indices`
    between b and the last one, which has size k. A vector that is out of range is clamped, or gives
    0 if the op does not clamp.
    """

    axis: int
    batch_dims: int
    clamps: bool = True
    is_linear = True
    flops = no_flops

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(self, x, indices)
        return x.with_shape(window_shape(self, x, indices))

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, indices: Tensor) -> Derivative:
        add = ScatterAdd(self.axis, self.batch_dims, self.clamps)
        return add(zeros_of(x), self.as_vectors(indices), g), None

    def jvp(
        self, tangents: tuple[Tensor, None], y: Tensor, x: Tensor, indices: Tensor
    ) -> Derivative:
        return self(tangents[0], indices)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor, indices: Tensor) -> Batched:
        moves = type(self)
        if batched[0] and not batched[1] and self.batch_dims == 0:
            # One more axis that is not indexed.
            return moves(self.axis + 1, 0, self.clamps)(x, indices), True
        if batched[0]:
            indices = indices if batched[1] else stack(indices, n)
            return moves(self.axis + 1, self.batch_dims + 1, self.clamps)(x, indices), True
        # x is shared: the loop axis becomes one more axis of the indices.
        y = self(x, move_axis(indices, 0, self.batch_dims))
        return move_axis(y, self.axis, 0), True

    def depends(self, x: Pattern, indices: Pattern) -> Pattern:
        return self.depends_given((None, None), x, indices)

    def depends_given(self, values: KnownValues, x: Pattern, indices: Pattern) -> Pattern:
        """`depends`, where `values` holds the indices themselves if they are known."""
        known = values[1]
        if known is not None:  # what is read as 0 is element -1, which depends on nothing

            def read(numbers: np.ndarray) -> np.ndarray:
                return self.numpy(numbers + 1, known) - 1

            return moved(read, x)
        found = x.any(axis=range(self.axis, self.axis + self.index_count(indices.shape)))
        return insert_axes(found, self.axis, self.index_shape(indices.shape))

    def numpy(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        vectors = self.as_vectors(indices)
        if 0 in x.shape[self.axis : self.axis + vectors.shape[-1]]:
            type = self.infer(type_of_array(x), type_of_array(indices))
            return np.zeros(static_shape(type.shape), x.dtype)
        order = leading_order(x.ndim, self.axis, vectors.shape[-1], self.batch_dims)
        whole = x.transpose(order)[None]
        y = whole[clamped_index(vectors, whole.shape, self.batch_dims)]
        if not self.clamps:
            y[~inside(vectors, whole.shape, self.batch_dims)] = 0
        index_rank = vectors.ndim - 1 - self.batch_dims
        return y.transpose(inverse(leading_order(y.ndim, self.axis, index_rank, self.batch_dims)))

    def as_vectors(self, indices: Any) -> Any:
        """The indices, Tensor or array, as vectors along the last axis."""
        return indices

    def index_shape(self, shape: Any) -> Any:
        """The sizes i of indices of `shape`."""
        return shape[self.batch_dims : -1]

    def index_count(self, shape: Any) -> int:
        """How many axes of x indices of `shape` index: k."""
        return shape[-1]


class Gather(GatherNd):
    """y[b, s, i, t] = x[b, s, indices[b, i], t]: one axis of x, `axis`, is indexed.

    b stands for the first `batch_dims` axes of both operands, s for the axes of x from there to
    `axis`, t for the axes after it, i for the other axes of `indices`.
    """

    def as_vectors(self, indices: Any) -> Any:
        if isinstance(indices, np.ndarray):
            return cast("np.ndarray", indices)[..., None]
        return Reshape((*indices.type.shape, 1))(indices)

    def index_shape(self, shape: Any) -> Any:
        return shape[self.batch_dims :]

    def index_count(self, shape: Any) -> int:
        return 1


class Scatter(Op, abstract=True):
    """x where updates[b, s, i, t] was combined into x[b, s, v, t] with v = indices[b, i].

    The letters are those of `GatherNd`, of whose result the updates have the shape. An update whose
    vector is out of range is dropped, or put at the nearest place if the op clamps.
    """

    axis: int
    batch_dims: int
    clamps: bool = False
    #: How NumPy combines.
    reference = np.add
    kinds = NUMERIC

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        check_same_dtype(self.name, x, updates)
        check_kind(self.name, x, self.kinds)
        read = GatherNd(self.axis, self.batch_dims, self.clamps)
        check_indices(read, x, indices)
        shape = window_shape(read, x, indices)
        if same_shape(shape, updates.shape) is None:
            raise Mismatch(
                f"the updates are {updates}, and {indices} as indices into {x} need the shape "
                f"{list(shape)}",
                fix="give one update for each index vector",
            )
        return x

    def flops(self, x: TensorType, indices: TensorType, updates: TensorType) -> Size:
        return element_count(updates.shape)

    def read(self, x: Tensor, indices: Tensor) -> Tensor:
        """The elements at the indices: the transpose of adding there."""
        return GatherNd(self.axis, self.batch_dims, self.clamps)(x, indices)

    def batch(
        self, n: Size, batched: tuple[bool, ...], x: Tensor, indices: Tensor, updates: Tensor
    ) -> Batched:
        places, operands = self.widened(n, batched, x, indices, updates)
        return type(self)(*places, self.clamps)(*operands), True

    def widened(
        self, n: Size, batched: tuple[bool, ...], x: Tensor, indices: Tensor, updates: Tensor
    ) -> tuple[tuple[int, int], tuple[Tensor, ...]]:
        """The axis and the batch axes of the same for all lanes, and its operands."""
        x, updates = (v if b else stack(v, n) for v, b in ((x, batched[0]), (updates, batched[2])))
        if not batched[1] and self.batch_dims == 0:
            return (self.axis + 1, 0), (x, indices, updates)
        indices = indices if batched[1] else stack(indices, n)
        return (self.axis + 1, self.batch_dims + 1), (x, indices, updates)

    def depends(self, x: Pattern, indices: Pattern, updates: Pattern) -> Pattern:
        return self.depends_given((None, None, None), x, indices, updates)

    def depends_given(
        self, values: KnownValues, x: Pattern, indices: Pattern, updates: Pattern
    ) -> Pattern:
        """`depends`, where `values` holds the indices themselves if they are known."""
        if values[1] is not None:
            places = self.places(x, values[1])
            counted = updates.take(np.where(places < 0, -1, element_numbers(updates.shape)))
            return x | counted.put(np.maximum(places, 0), x.shape)
        index_rank = indices.ndim - 1 - self.batch_dims
        found = updates.any(axis=range(self.axis, self.axis + index_rank))
        count = indices.shape[-1]
        return x | insert_axes(found, self.axis, x.shape[self.axis : self.axis + count])

    def places(self, x: Pattern, indices: np.ndarray) -> np.ndarray:
        """For each update the number of the element of x that it is combined into; -1 if none."""
        read = GatherNd(self.axis, self.batch_dims, self.clamps)
        return read.numpy(element_numbers(x.shape) + 1, indices) - 1

    def numpy(self, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        return self.combined(type(self).reference, x, indices, updates)

    def combined(self, function: Any, x: Any, indices: Any, updates: Any) -> np.ndarray:
        """x with the updates combined in one by one, by a ufunc, or put in its place if None."""
        if 0 in x.shape:
            return x
        order = leading_order(x.ndim, self.axis, indices.shape[-1], self.batch_dims)
        index_rank = indices.ndim - 1 - self.batch_dims
        from_updates = leading_order(updates.ndim, self.axis, index_rank, self.batch_dims)
        y = x.transpose(order)[None].copy()
        at, updates = (
            clamped_index(indices, y.shape, self.batch_dims),
            updates.transpose(from_updates),
        )
        if not self.clamps:
            kept = inside(indices, y.shape, self.batch_dims)
            at = tuple(np.broadcast_to(column, kept.shape)[kept] for column in at)
            updates = updates[kept]
        if function is None:
            y[at] = updates
        else:
            function.at(y, at, updates)
        return y[0].transpose(inverse(order))


class ScatterAdd(Scatter):
    """x with every update added where its index says; those for one place add up"""

    is_linear = True

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Derivative:
        return g, None, self.read(g, indices)

    def jvp(
        self, tangents: Tangents, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor
    ) -> Derivative:
        return scatter_tangents(self, tangents, x, indices, updates)


class ScatterUpdate(Scatter):
    """x with the updates in place of what was there; the last of several for one place stays"""

    kinds = KEPT
    reference = None
    is_linear = True

    def flops(self, x: TensorType, indices: TensorType, updates: TensorType) -> Size:
        return 0

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Derivative:
        read = self.read(g, indices)
        if element_count(indices.type.shape[:-1]) != 1:  # one alone is not overwritten
            read = SELECT(self._stayed(x, indices, updates), read, zeros_of(read))
        return self(g, indices, zeros_of(updates)), None, read

    def _stayed(self, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """Which updates were not overwritten by another: each place is asked for its number."""
        b, count = self.batch_dims, indices.type.shape[-1]
        shape = indices.type.shape[:-1]
        numbers = Reshape(shape)(Iota(element_count(shape), int32)())
        places = (*x.type.shape[:b], *x.type.shape[self.axis : self.axis + count])
        write, read = ScatterUpdate(b, b, self.clamps), GatherNd(b, b, self.clamps)
        written = write(full(0, TensorType(int32, places)), indices, numbers)
        stayed = EQUAL(read(written, indices), numbers)
        index_axes = range(self.axis, self.axis + len(shape) - b)
        return BroadcastTo(updates.type.shape, (*range(b), *index_axes))(stayed)

    def jvp(
        self, tangents: Tangents, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor
    ) -> Derivative:
        return scatter_tangents(self, tangents, x, indices, updates)

    def depends_given(
        self, values: KnownValues, x: Pattern, indices: Pattern, updates: Pattern
    ) -> Pattern:
        if values[1] is not None:
            rest = element_numbers(x.shape)
            places = self.places(x, values[1])
            rest.reshape(-1)[places[places >= 0]] = -1  # what was there is gone
            x = x.take(rest)
        return super().depends_given(values, x, indices, updates)


class ScatterExtreme(Scatter, abstract=True):
    """The derivative is shared evenly by all that are the extreme of a place."""

    kinds = REAL_NUMBERS
    is_largest: ClassVar[bool]

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Derivative:
        by_x, by_updates = self._shares(x, indices, updates)
        return MUL(g, by_x), None, MUL(self.read(g, indices), by_updates)

    def jvp(
        self, tangents: Tangents, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor
    ) -> Derivative:
        tx, _, tu = tangents
        by_x, by_updates = self._shares(x, indices, updates)
        from_x, from_updates = scale(tx, by_x), scale(tu, by_updates)
        if from_updates is None:
            return from_x
        start = zeros_of(x) if from_x is None else from_x
        return ScatterAdd(self.axis, self.batch_dims, self.clamps)(start, indices, from_updates)

    def _shares(self, x: Tensor, indices: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
        places = self.axis, self.batch_dims, self.clamps
        found = ScatterIsExtreme(*places, self.is_largest)(x, indices, updates)
        x_is, update_is = map(Cast(x.dtype), found)
        count = ScatterAdd(self.axis, self.batch_dims, self.clamps)(x_is, indices, update_is)
        # Clamped, so that what is divided by is not 0; where it was dropped the share is not used.
        own_count = GatherNd(self.axis, self.batch_dims)(count, indices)
        return DIV(x_is, count), DIV(update_is, own_count)


class ScatterMax(ScatterExtreme):
    """x with the maximum of what is there and every update for the place"""

    reference = np.maximum
    is_largest = True


class ScatterMin(ScatterExtreme):
    """x with the minimum of what is there and every update for the place"""

    reference = np.minimum
    is_largest = False


class ScatterIsExtreme(WithoutDerivative):
    """Which elements are the largest of what meets at their place, or the smallest: those of x,
    and the updates; none is one of nan

    At each place one is found, as by `IsExtreme`.
    """

    output_count = 2
    axis: int
    batch_dims: int
    clamps: bool
    largest: bool

    @property
    def scatter(self) -> ScatterExtreme:
        """What finds the extremes themselves."""
        kind = ScatterMax if self.largest else ScatterMin
        return kind(self.axis, self.batch_dims, self.clamps)

    def infer(
        self, x: TensorType, indices: TensorType, updates: TensorType
    ) -> tuple[TensorType, ...]:
        self.scatter.infer(x, indices, updates)
        return x.with_dtype(bool_), updates.with_dtype(bool_)

    def flops(self, x: TensorType, indices: TensorType, updates: TensorType) -> Size:
        return 3 * element_count(updates.shape)

    def batch(
        self, n: Size, batched: tuple[bool, ...], x: Tensor, indices: Tensor, updates: Tensor
    ) -> Batched:
        places, operands = self.scatter.widened(n, batched, x, indices, updates)
        return ScatterIsExtreme(*places, self.clamps, self.largest)(*operands), (True, True)

    def depends(self, x: Pattern, indices: Pattern, updates: Pattern) -> tuple[Pattern, ...]:
        return x.emptied(), updates.emptied()

    def numpy(
        self, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        y = self.scatter.numpy(x, indices, updates)
        read = GatherNd(self.axis, self.batch_dims, self.clamps)
        return x == y, updates == read.numpy(y, indices)


class ScatterMul(Scatter):
    """x with every update multiplied in where its index says

    Derivatives hold where updates are 0, but for those of higher order in two updates that are 0
    and go to one place: they are 0 here.
    """

    reference = np.multiply

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Derivative:
        slope = conjugated(self._others(x, indices, updates))
        factors = conjugated(updates)
        return self(g, indices, factors), None, MUL(self.read(g, indices), slope)

    def jvp(
        self, tangents: Tangents, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor
    ) -> Derivative:
        tx, _, tu = tangents
        from_x = None if tx is None else self(tx, indices, updates)
        if tu is None:
            return from_x
        start = zeros_of(x) if from_x is None else from_x
        add = ScatterAdd(self.axis, self.batch_dims, self.clamps)
        return add(start, indices, MUL(tu, self._others(x, indices, updates)))

    def _others(self, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """For each update the product of all that meets it at its place: x and the others."""
        zero, one = zeros_of(updates), full(1, updates.type)
        is_zero = EQUAL(updates, zero)
        add = ScatterAdd(self.axis, self.batch_dims, self.clamps)
        count = self.read(add(zeros_of(x), indices, SELECT(is_zero, one, zero)), indices)
        # The product without what is 0, of which the update itself is taken out again.
        factors = SELECT(is_zero, one, updates)
        product = DIV(self.read(self(x, indices, factors), indices), factors)
        is_last = EQUAL(count, SELECT(is_zero, one, zero))
        return SELECT(is_last, product, zero)


class DynamicSlice(Op):
    """x[start_0 : start_0 + sizes[0], ...] with one scalar start per axis, clamped to fit.

    Of an axis without elements, zeros are taken: a loop over it need not run.
    """

    sizes: Shape
    is_linear = True
    flops = no_flops

    def infer(self, x: TensorType, *starts: TensorType) -> TensorType:
        check_starts(self, x, self.sizes, starts)
        return x.with_shape(self.sizes)

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, *starts: Tensor) -> Derivative:
        return UPDATE_SLICE(zeros_of(x), g, *starts), *(None for _ in starts)

    def jvp(
        self, tangents: tuple[Tensor, *tuple[None, ...]], y: Tensor, x: Tensor, *starts: Tensor
    ) -> Derivative:
        return self(tangents[0], *starts)

    def batch(self, n: Size, batched: tuple[bool, ...], x: Tensor, *starts: Tensor) -> Batched:
        if not any(batched[1:]):
            zero = full(0, starts[0].type) if starts else constant(0, int32)
            return DynamicSlice((n, *self.sizes))(x, zero, *starts), True
        rows = x.type.shape[1:] if batched[0] else x.type.shape
        low, high = moving_axes(rows, self.sizes)
        if low == high:
            return (x, True) if batched[0] else (x, False)
        grid = index_grid(n, rows, self.sizes, range(low, high), starts, batched[1:])
        if batched[0]:
            return GatherNd(low + 1, 1)(x, grid), True
        return move_axis(GatherNd(low, 0)(x, grid), low, 0), True

    def depends(self, x: Pattern, *starts: Pattern) -> Pattern:
        return self.depends_given((None,) * (len(starts) + 1), x, *starts)

    def depends_given(self, values: KnownValues, x: Pattern, *starts: Pattern) -> Pattern:
        """`depends`, where `values` holds the starts themselves if they are known."""
        known = [value for value in values[1:] if value is not None]
        if len(known) == len(starts) and 0 not in x.shape:

            def read(numbers: np.ndarray) -> np.ndarray:
                return self.numpy(numbers, *known)

            return moved(read, x)
        axes = [axis for axis in range(x.ndim) if x.shape[axis] != self.sizes[axis]]
        return x.any(axis=axes, keepdims=True).broadcast_to(static_shape(self.sizes))

    def numpy(self, x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
        if 0 in x.shape:
            return np.zeros(static_shape(self.sizes), x.dtype)
        return x[clamped_slices(x.shape, self.sizes, starts)]


class DynamicUpdateSlice(Op):
    """x with `update` in place of x[start_0 : start_0 + size_0, ...], starts clamped to fit. An x
    without elements stays as it is."""

    is_linear = True
    flops = no_flops

    def infer(self, x: TensorType, update: TensorType, *starts: TensorType) -> TensorType:
        check_same_dtype(self.name, x, update)
        check_starts(self, x, update.shape, starts)
        return x

    def vjp(self, g: Tensor, y: Tensor, x: Tensor, update: Tensor, *starts: Tensor) -> Derivative:
        rest = self(g, zeros_of(update), *starts)
        return rest, DynamicSlice(update.type.shape)(g, *starts), *(None for _ in starts)

    def jvp(
        self, tangents: Tangents, y: Tensor, x: Tensor, update: Tensor, *starts: Tensor
    ) -> Derivative:
        def along(tx: Tensor, tu: Tensor) -> Tensor:
            return self(tx, tu, *starts)

        return linear_tangent(along, tangents[:2], (x, update))

    def batch(
        self, n: Size, batched: tuple[bool, ...], x: Tensor, update: Tensor, *starts: Tensor
    ) -> Batched:
        x, update = (v if b else stack(v, n) for v, b in zip((x, update), batched, strict=False))
        if not any(batched[2:]):
            zero = full(0, starts[0].type) if starts else constant(0, int32)
            return self(x, update, zero, *starts), True
        rows, sizes = x.type.shape[1:], update.type.shape[1:]
        low, high = moving_axes(rows, sizes)
        if low == high:
            return update, True
        grid = index_grid(n, rows, sizes, range(low, high), starts, batched[2:])
        return ScatterUpdate(low + 1, 1)(x, grid, update), True

    def depends(self, x: Pattern, update: Pattern, *starts: Pattern) -> Pattern:
        return self.depends_given((None,) * (len(starts) + 2), x, update, *starts)

    def depends_given(
        self, values: KnownValues, x: Pattern, update: Pattern, *starts: Pattern
    ) -> Pattern:
        """`depends`, where `values` holds the starts themselves if they are known."""
        known = [value for value in values[2:] if value is not None]
        if 0 in x.shape:
            return x
        if len(known) == len(starts):

            def written_into(old: np.ndarray, new: np.ndarray) -> np.ndarray:
                return self.numpy(old, new, *known)

            return moved(written_into, x, update)
        axes = [axis for axis in range(x.ndim) if x.shape[axis] != update.shape[axis]]
        written = update.any(axis=axes, keepdims=True).broadcast_to(x.shape)
        return x | written if axes else update

    def numpy(self, x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
        y = x.copy()
        if 0 not in x.shape:
            y[clamped_slices(x.shape, update.shape, starts)] = update
        return y


UPDATE_SLICE = DynamicUpdateSlice()


# Ways to use them.


def take_along(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """y[..., i, ...] = x[..., indices[..., i, ...], ...] along one axis of both."""
    last = x.ndim - 1
    found = Gather(last, last)(move_axis(x, axis, last), move_axis(indices, axis, last))
    return move_axis(found, last, axis)


def add_along(x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """x with updates[..., i, ...] added to x[..., indices[..., i, ...], ...] along one axis."""
    last = x.ndim - 1
    x, indices, updates = (move_axis(v, axis, last) for v in (x, indices, updates))
    vectors = Reshape((*indices.type.shape, 1))(indices)
    return move_axis(ScatterAdd(last, last)(x, vectors, updates), last, axis)


def move_axis(x: Tensor, source: int, target: int) -> Tensor:
    """x with one axis moved to another place, the others in order."""
    if source == target:
        return x
    order = [axis for axis in range(x.ndim) if axis != source]
    order.insert(target, source)
    return Transpose(tuple(order))(x)


def scatter_tangents(
    op: Scatter, tangents: Sequence[Tensor | None], x: Tensor, indices: Tensor, updates: Tensor
) -> Tensor | None:
    """The tangent of a scatter that is linear in x and the updates."""

    def along(tx: Tensor, tu: Tensor) -> Tensor:
        return op(tx, indices, tu)

    return linear_tangent(along, (tangents[0], tangents[2]), (x, updates))


# Shapes and checks.


def window_shape(op: GatherNd, x: TensorType, indices: TensorType) -> Shape:
    """The shape of what `op` reads."""
    b, count = op.batch_dims, op.index_count(indices.shape)
    batch = same_shape(x.shape[:b], indices.shape[:b])
    if batch is None:
        raise Mismatch(
            f"the first {b} axes are batch axes, and they differ: {x} and indices {indices}",
            fix="check batch_dims",
        )
    shape = (
        *(*batch, *x.shape[b : op.axis]),
        *(*op.index_shape(indices.shape), *x.shape[op.axis + count :]),
    )
    # Where a size is not known yet, it may turn out that there are no indices either.
    is_known = all(isinstance(size, int) for size in shape)
    if op.clamps and 0 in x.shape[op.axis : op.axis + count] and is_known and 0 not in shape:
        raise Mismatch(
            f"{x} has no elements to index", fix="check that the tensor is not empty first"
        )
    return shape


def check_indices(op: GatherNd, x: TensorType, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise DTypeMismatch(
            f"the indices are {indices}, and they must be integers",
            fix="convert them: tg.cast(indices, tg.int32)",
        )
    extra = 0 if isinstance(op, Gather) else 1
    if not 0 <= op.batch_dims <= len(indices.shape) - extra:
        raise Mismatch(f"batch_dims is {op.batch_dims}, out of range for indices {indices}")
    count = op.index_count(indices.shape)
    if type(count) is not int:
        raise Mismatch(
            f"the length {count} of an index vector must be known while tracing",
            fix="give the last size of the indices in the TensorSpec",
        )
    if not op.batch_dims <= op.axis <= len(x.shape) - count:
        raise Mismatch(
            f"{count} axes of {x} from axis {op.axis} on cannot be indexed after "
            f"{op.batch_dims} batch axes",
            fix="check axis, batch_dims and the last size of the indices",
        )


def check_starts(op: Op, x: TensorType, sizes: Shape, starts: Sequence[TensorType]) -> None:
    if not len(sizes) == len(starts) == len(x.shape):
        raise Mismatch(f"a slice of {x} needs one start and one size for each of its axes")
    for start in starts:
        if not start.dtype.is_integer or start.shape != ():
            raise DTypeMismatch(
                f"a start is {start}, and it must be an integer scalar",
                fix="convert it: tg.cast(start, tg.int32)",
            )
    if starts:
        check_same_dtype(op.name, *starts)
    for size, whole in zip(sizes, x.shape, strict=True):
        if isinstance(size, int) and isinstance(whole, int) and size > whole > 0:
            raise Mismatch(
                f"a slice of the sizes {list(sizes)} does not fit in {x}",
                fix="check the sizes against the shape",
            )


# Slices that start elsewhere in every instance of a loop.


def moving_axes(shape: Shape, sizes: Shape) -> tuple[int, int]:
    """The range of axes on which a slice of `sizes` can move."""
    moving = [
        axis for axis, pair in enumerate(zip(shape, sizes, strict=True)) if pair[0] != pair[1]
    ]
    return (moving[0], moving[-1] + 1) if moving else (0, 0)


def index_grid(
    n: Size,
    shape: Shape,
    sizes: Shape,
    axes: range,
    starts: Sequence[Tensor],
    batched: Sequence[bool],
) -> Tensor:
    """The index vectors along `axes` of the elements of each instance's slice."""
    block = (n, *(sizes[axis] for axis in axes))
    dtype = int64 if starts[0].dtype is int64 else int32
    parts: list[Tensor] = []
    for place, axis in enumerate(axes):
        start = Cast(dtype)(starts[axis] if batched[axis] else stack(starts[axis], n))
        last = BroadcastTo((n,), ())(size_value(shape[axis] - sizes[axis], dtype))
        start = MINIMUM(MAXIMUM(start, zeros_of(start)), last)
        steps = BroadcastTo(block, (place + 1,))(Iota(sizes[axis], dtype)())
        index = ADD(BroadcastTo(block, (0,))(start), steps)
        parts.append(Reshape((*block, 1))(index))
    return Concatenate(len(block))(*parts)


def size_value(size: Size, dtype: DType) -> Tensor:
    return constant(size, dtype) if isinstance(size, int) else Cast(dtype)(DimSize(size)())


# NumPy's side.


def leading_order(rank: int, axis: int, count: int, batch_dims: int) -> tuple[int, ...]:
    """The order that puts `count` axes from `axis` on right after the batch axes."""
    between = range(batch_dims, axis)
    return *range(batch_dims), *range(axis, axis + count), *between, *range(axis + count, rank)


def clamped_index(vectors: np.ndarray, shape: Any, batch_dims: int) -> tuple[np.ndarray, ...]:
    """Index arrays for a first axis of size 1, the batch axes, and the axes after them."""
    grid = np.indices(vectors.shape[:-1], sparse=True)
    columns = np.moveaxis(vectors, -1, 0).astype(np.int64)
    limits = shape[1 + batch_dims :]
    clipped = [np.clip(column, 0, size - 1) for column, size in zip(columns, limits)]
    # The first axis is there so that vectors of no numbers index something too.
    return np.zeros(vectors.shape[:-1], np.int64), *grid[:batch_dims], *clipped


def inside(vectors: np.ndarray, shape: Any, batch_dims: int) -> np.ndarray:
    """Which of the vectors are in range, for an array of the shape that `clamped_index` takes."""
    limits = np.asarray(shape[1 + batch_dims :][: vectors.shape[-1]])
    numbers = vectors.astype(np.int64)
    return np.asarray(((numbers >= 0) & (numbers < limits)).all(-1))


def clamped_slices(shape: Any, sizes: Any, starts: Sequence[Any]) -> tuple[slice, ...]:
    parts = zip(shape, sizes, starts, strict=True)
    clamped = [(min(max(int(start), 0), whole - size), size) for whole, size, start in parts]
    return tuple(slice(start, start + size) for start, size in clamped)


def insert_axes(p: Pattern, axis: int, sizes: Any) -> Pattern:
    """A pattern repeated along new axes of `sizes` that are put before `axis`."""
    ones = p.reshape(*p.shape[:axis], *(1 for _ in sizes), *p.shape[axis:])
    return ones.broadcast_to((*p.shape[:axis], *sizes, *p.shape[axis:]))
