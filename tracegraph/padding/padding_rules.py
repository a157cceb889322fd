"""The padding rules of ops: one per family, which keeps elements and padding apart.

A rule takes the layouts, the op and its operands, some of which are padded, appends the op's form
for them, and records where the elements of the results are. It raises `Refusal` if there is no
such form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracegraph.core.shapes import (
    Dim,
    Size,
    dim_names,
    element_count,
    maximum,
    static_shape,
    substitute_size,
)
from tracegraph.core.types import TensorType, int32, int64
from tracegraph.errors import Mismatch, ShapeError
from tracegraph.ir.builder import Builder, current
from tracegraph.ir.op import MissingRule, Op
from tracegraph.ir.tensor import Tensor
from tracegraph.ops import index, reduce
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.broadcast import BroadcastTo, Sum, full
from tracegraph.ops.constant import Constant, DimSize, Iota, Sizes, constant
from tracegraph.ops.contract import Conv, Matmul
from tracegraph.ops.effect import Check, HostCall
from tracegraph.ops.elementwise import LESS, MINIMUM, SELECT, SUB, Cast, Elementwise
from tracegraph.ops.layout import WithLayout
from tracegraph.ops.random import FromKey, FromParameters, RandomFold, RandomPermutation
from tracegraph.ops.reduce import highest, lowest
from tracegraph.ops.shape import Concatenate, EnsureShape, Pad, Reshape, Reverse, Slice, Transpose
from tracegraph.ops.sort import ArgSort, Sort, TopK, TrueIndices
from tracegraph.padding.axis_layouts import UNIFORM, Layout, Padding, Uniform, padded_value
from tracegraph.passes.sparsity import input_patterns, propagate

Outputs: TypeAlias = "Tensor | Sequence[Tensor]"
Rule: TypeAlias = Callable[[Padding, Any, Sequence[Tensor]], Outputs]


class Refusal(Exception):
    """Why a node cannot be computed on padded operands."""


def sizes_in(value: Any) -> list[Size]:
    """The open sizes in the value of an attribute."""
    if isinstance(value, Dim):
        return [value]
    return [x for item in value for x in sizes_in(item)] if isinstance(value, tuple) else []


def _same(padding: Padding, op: Op, xs: Sequence[Tensor], layouts: Iterable[Layout]) -> Tensor:
    """The result of an unchanged op, with its layouts recorded."""
    (y,) = current().add(op, tuple(xs))
    return padding.note(y, layouts)


def _constant(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    (y,) = current().add(op, ())
    return padding.note(y, padding.plain(y.type.shape))


def _dim_size(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    return padding.value(op.size)


def _sizes(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    return Concatenate(0)(*(Reshape((1,))(padding.value(size)) for size in op.shape))


def _elementwise(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    xs, layouts = padding.aligned(xs)
    return _same(padding, op, xs, layouts)


def _broadcast(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    layouts: list[Layout] = [UNIFORM] * len(op.shape)
    for axis, layout in zip(op.axes, padding.of(xs[0]), strict=True):
        layouts[axis] = layout
    return _same(padding, op, xs, layouts)


def _kept(layouts: Sequence[Layout], dropped: Sequence[int]) -> list[Layout]:
    return [layout for axis, layout in enumerate(layouts) if axis not in dropped]


def _reduction(neutral: Callable[[Any], Any]) -> Rule:
    """The rule of a reduction that replaces padding by `neutral(dtype)`."""

    def rule(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
        (x,) = xs
        axes = range(x.ndim) if op.axes is None else op.axes
        layouts = _kept(padding.of(x), axes)
        x = padding.masked(x, axes, neutral(x.dtype.numpy_dtype))
        return _same(padding, op, [x], layouts)

    return rule


def _is_extreme(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    (x,) = xs
    axes = range(x.ndim) if op.axes is None else op.axes
    neutral = lowest if op.largest else highest
    return _same(
        padding, op, [padding.masked(x, axes, neutral(x.dtype.numpy_dtype))], padding.of(x)
    )


def _arg_extreme(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    x = padding.compact(xs[0], op.axis)
    is_max = isinstance(op, reduce.ArgMax)
    if x.dtype.is_bool:
        value: Any = not is_max
    else:
        value = (lowest if is_max else highest)(x.dtype.numpy_dtype)
    layouts = _kept(padding.of(x), [op.axis])
    return _same(padding, op, [padding.masked(x, [op.axis], value)], layouts)


def _scan(neutral: float) -> Rule:
    def rule(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
        x = padding.compact(xs[0], op.axis)
        layouts = padding.of(x)
        if op.reverse:  # in forward direction, padding comes after everything
            x = padding.masked(x, [op.axis], neutral)
        return _same(padding, op, [x], layouts)

    return rule


def _recurrence(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    xs, layouts = padding.aligned([padding.compact(x, op.axis) for x in xs])
    if op.reverse:
        xs = [padding.masked(x, [op.axis], 0) for x in xs]
    return _same(padding, op, xs, layouts)


def _transpose(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    layouts = padding.of(xs[0])
    return _same(padding, op, xs, [layouts[axis] for axis in op.perm])


def _barrier(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    outputs = current().add(op, tuple(xs))
    return [padding.note(y, padding.of(x)) for x, y in zip(xs, outputs, strict=True)]


def _ensure_shape(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    (x,) = xs  # assumptions about true sizes are checked on the graph itself
    (type,) = op.output_types((x,))
    for axis, size in enumerate(type.shape):
        x = _resized(padding, x, axis, size)
    given = zip(padding.of(x), padding.plain(type.shape), strict=True)
    return padding.again(x, [plain if layout is None else layout for layout, plain in given])


def _reshape(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Tensor:
    (x,) = xs
    factors: list[tuple[Size, bool]] = []  # sizes, and whether all elements along them are equal
    for size, layout in zip(x.type.shape, padding.of(x), strict=True):
        if layout is None or isinstance(layout, Uniform):
            factors.append((size, layout is UNIFORM))
        else:
            factors += [(factor, False) for factor in layout]
    shape: list[Size] = []
    layouts: list[Layout] = []
    divided = []  # axes whose elements have other places once they are divided
    for inner, outer in _groups(factors, op.shape):
        found = _regrouped(padding, inner, outer)
        if found is None:
            divided.append((len(shape), outer))
            outer = [element_count(tuple(outer))]
            found = [padding.normal([size for size, _ in inner])]
        shape += outer
        layouts += found
    y = _same(padding, Reshape(tuple(shape)), xs, layouts)
    for axis, sizes in reversed(divided):
        y = _divided(padding, y, axis, sizes)
    return y


def _divided(padding: Padding, x: Tensor, axis: int, sizes: Sequence[Size]) -> Tensor:
    """x with one axis divided into axes of these sizes, along each of which elements come first."""
    x = padding.compact(x, axis)
    before, after = padding.of(x)[:axis], padding.of(x)[axis + 1 :]
    y = index.Gather(axis, 0)(x, padding.places(sizes))
    return padding.note(y, [*before, *padding.plain(sizes), *after])


def _groups(
    factors: Sequence[tuple[Size, bool]], shape: Sequence[Size]
) -> list[tuple[list[tuple[Size, bool]], list[Size]]]:
    """The factors and the sizes of a shape in groups of equal products, as small as possible."""
    groups, start, end = [], 0, 0
    inner: list[tuple[Size, bool]] = []
    for factor in factors:
        inner.append(factor)
        product = element_count(tuple(size for size, _ in inner))
        stop = next(
            (
                k
                for k in range(end, len(shape) + 1)
                if element_count(tuple(shape[start:k])) == product
            ),
            None,
        )
        if stop is not None:
            groups.append((inner, list(shape[start:stop])))
            inner, start, end = [], stop, stop
    rest = list(shape[start:])
    if inner:
        groups.append((inner, rest))
    elif groups:
        groups[-1][1].extend(rest)  # ones
    else:
        groups.append(([], rest))
    return groups


def _regrouped(
    padding: Padding, inner: Sequence[tuple[Size, bool]], outer: Sequence[Size]
) -> Sequence[Layout] | None:
    """The layouts of the axes `outer` that the factors `inner` turn into; None if elements would
    not be where padding leaves them."""
    inner = [(size, uniform) for size, uniform in inner if size != 1]
    sizes = [size for size, _ in inner]
    wide = [size for size in outer if size != 1]
    if not any(map(padding.is_open, sizes)):
        return [None] * len(outer)
    if all(uniform for _, uniform in inner):
        return [UNIFORM] * len(outer)
    if len(wide) == 1:
        layout = padding.normal(sizes)
        return [None if size == 1 else layout for size in outer]
    comes_first = not any(map(padding.is_open, (*sizes[1:], *wide[1:])))
    if not comes_first:
        return None
    return [(size,) if padding.is_open(size) else None for size in outer]


def _slice(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    (x,) = xs
    moving = []
    parts = zip(op.start, op.stop, op.stride, strict=True)
    for axis, (start, stop, stride) in enumerate(parts):
        if (start, stop, stride) == (0, x.type.shape[axis], 1):
            continue
        x = padding.compact(x, axis)
        if padding.is_open(stop):
            x = _resized(padding, x, axis, maximum(x.type.shape[axis], stop))
        if padding.is_open(start):
            moving.append(axis)
            padding.growing.update((start, stop - start))
    start = tuple(0 if a in moving else n for a, n in enumerate(op.start))
    stop = tuple(x.type.shape[a] if a in moving else n for a, n in enumerate(op.stop))
    stride = tuple(1 if a in moving else n for a, n in enumerate(op.stride))
    layouts = _after_slice(padding, op, x)
    y = Slice(start, stop, stride)(x)
    if moving:
        places = [padding.value(n if a in moving else 0) for a, n in enumerate(op.start)]
        shape = tuple(
            op.stop[a] - op.start[a] if a in moving else size for a, size in enumerate(y.type.shape)
        )
        y = index.DynamicSlice(shape)(y, *places)
        if stride != op.stride:
            rest = tuple(n if a in moving else 1 for a, n in enumerate(op.stride))
            y = Slice((0,) * y.ndim, y.type.shape, rest)(y)
    return padding.note(y, layouts)


def _resized(padding: Padding, x: Tensor, axis: int, size: Size) -> Tensor:
    """x with another size along an axis, holding the same elements: padded sizes of equal true
    sizes may differ, and a part may be larger than the whole."""
    missing = size - x.type.shape[axis]
    if isinstance(missing, int) and missing == 0:
        return x
    x = padding.compact(x, axis)
    none = (0,) * x.ndim
    after = (*none[:axis], missing, *none[axis + 1 :])
    y = Pad(none, after, none)(x, full(0, TensorType(x.dtype)))
    layouts = [*padding.of(x)]
    (layouts[axis],) = padding.plain((size,))
    return padding.note(y, layouts)


def _after_slice(padding: Padding, op: Any, x: Tensor) -> list[Layout]:
    """The layouts of a slice: unchanged along axes that it takes whole."""
    (type,) = op.output_types((x,))
    plain, old = padding.plain(type.shape), padding.of(x)
    return [
        layout if layout is not None and size == whole else first
        for layout, size, whole, first in zip(old, type.shape, x.type.shape, plain, strict=True)
    ]


def _pad(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Tensor:
    x, value = xs
    parts = list(zip(op.before, op.after, op.interior, strict=True))
    if any(padding.is_open(before) and interior for before, _, interior in parts):
        none = (0,) * x.ndim
        x = _pad(padding, Pad(none, none, op.interior), xs)
        return _pad(padding, Pad(op.before, op.after, none), [x, value])
    layouts, moving, padded_axes = list(padding.of(x)), [], []
    for axis, (before, after, interior) in enumerate(parts):
        if (before, after, interior) == (0, 0, 0):
            continue
        x = padding.compact(x, axis)
        padded_axes.append(axis)
        layouts[axis] = ()
        if padding.is_open(before):
            moving.append(axis)
    x = padding.masked(x, padded_axes, value)
    (type,) = op.output_types((x, value))
    plain = padding.plain(type.shape)
    layouts = [plain[a] if a in padded_axes else layout for a, layout in enumerate(layouts)]
    if not moving:
        return padding.note(Pad(op.before, op.after, op.interior)(x, value), layouts)
    return padding.note(_dynamic_pad(padding, op, x, value, type, moving), layouts)


def _dynamic_pad(
    padding: Padding, op: Any, x: Tensor, value: Tensor, type: TensorType, moving: Sequence[int]
) -> Tensor:
    """A padded x, whose true widths before some axes differ from those of the buckets: a window of
    x between more padding than it needs."""
    before, after = list(op.before), list(op.after)
    starts: list[Tensor] = [constant(0, int32)] * x.ndim
    for axis in moving:
        width, cut = maximum(before[axis], 0), maximum(-before[axis], 0)
        padding.growing.update(filter(padding.is_open, (width, cut)))
        starts[axis] = SUB(padded_value(width), padding.value(before[axis]))
        before[axis], after[axis] = width, width + maximum(after[axis], 0)
    wide = Pad(tuple(before), tuple(after), op.interior)(x, value)
    return index.DynamicSlice(type.shape)(wide, *starts)


def _concatenate(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    axis = op.axis
    xs = [padding.compact(x, axis) for x in xs]
    layouts: list[Layout] = []
    for place in range(xs[0].ndim):
        if place == axis:
            layouts.append(None)
            continue
        xs, layout = padding.together(xs, [place] * len(xs))
        layouts.append(layout)
    (y,) = current().add(op, tuple(xs))
    layouts[axis] = padding.plain(y.type.shape)[axis]
    start: Size = 0
    for x in xs:  # each overwrites the padding of the one before
        if padding.is_open(start):
            padding.growing.add(start)
            places = [padding.value(start if a == axis else 0) for a in range(y.ndim)]
            y = index.UPDATE_SLICE(y, x, *places)
        start = start + x.type.shape[axis]
    return padding.note(y, layouts)


def _reverse(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    (x,) = xs
    for axis in op.axes:
        x = padding.compact(x, axis)
    layouts = padding.of(x)
    y = Reverse(op.axes)(x)
    for axis in op.axes:
        if layouts[axis] is None:
            continue
        size = y.type.shape[axis]  # the elements now come last: move them to the front
        after = tuple(size if a == axis else 0 for a in range(y.ndim))
        none = (0,) * y.ndim
        wide = Pad(none, after, none)(y, full(_zero(y), TensorType(y.dtype)))
        missing = SUB(DimSize(size)(), padding.value(size))
        places = [missing if a == axis else padding.value(0) for a in range(y.ndim)]
        y = index.DynamicSlice(y.type.shape)(wide, *places)
    return padding.note(y, layouts)


def _zero(x: Tensor) -> Any:
    return False if x.dtype.is_bool else 0


def _matmul(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    pair, layouts = list(xs), []
    for axis in range(xs[0].ndim - 2):
        pair, layout = padding.together(pair, [axis, axis])
        layouts.append(layout)
    x, y = _contracted(padding, pair, (xs[0].ndim - 1, xs[0].ndim - 2))
    layouts += [padding.of(x)[-2], padding.of(y)[-1]]
    return _same(padding, op, [x, y], layouts)


def _contracted(padding: Padding, pair: Sequence[Tensor], axes: Sequence[int]) -> list[Tensor]:
    """Two operands with zeros in the padding along their contracted axes."""
    pair, layout = padding.together(pair, axes)
    if layout is UNIFORM:
        layout = padding.plain([pair[0].type.shape[axes[0]]])[0]
    pairs = [(padding.laid_out(x, a, layout), a) for x, a in zip(pair, axes, strict=True)]
    return [padding.masked(x, [axis], 0) for x, axis in pairs]


def _conv(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    x, y = xs
    rank = len(op.strides)
    if any(padding.is_open(low) for low, _ in op.padding):
        raise Refusal("the margin before its elements depends on an open size")
    # Behind the elements of an axis along which it slides come zeros, as in the margin there.
    x = _with_zeros_behind(padding, x, range(1, rank + 1))
    y = _with_zeros_behind(padding, y, range(rank))
    if op.groups == 1:
        x, y = _contracted(padding, [x, y], (rank + 1, rank))
    else:
        x, y = _contracted_in_groups(padding, op, x, y)
    sizes = padding.plain(op.spatial(x.type.shape[1:-1], y.type.shape[:-2]))
    return _same(padding, op, [x, y], [padding.of(x)[0], *sizes, padding.of(y)[-1]])


def _contracted_in_groups(padding: Padding, op: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The operands of a convolution of groups, with zeros in the padding along the channels of x:
    its elements, and those of the result, must be groups of such channels, one after another."""
    inputs, results = y.type.shape[-2:]
    for tensor, size in (x, inputs), (y, results // op.groups):
        if not padding.is_open(tensor.type.shape[-1]):
            continue
        layout = padding.of(tensor)[-1]
        is_apart = isinstance(op.groups, int) and layout == padding.normal((op.groups, size))
        if not is_apart:
            raise Refusal(f"it has {op.groups} groups of channels, whose number is open")
    y = padding.compact(y, y.ndim - 2)
    return padding.masked(x, [x.ndim - 1], 0), padding.masked(y, [y.ndim - 2], 0)


def _with_zeros_behind(padding: Padding, x: Tensor, axes: Iterable[int]) -> Tensor:
    axes = tuple(axes)
    for axis in axes:
        x = padding.compact(x, axis)
    return padding.masked(x, axes, 0)


def _indexed(padding: Padding, op: Any, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """An operand and its indices, which reach no further than its elements."""
    indices = _wide(padding, indices, is_signed=not op.clamps)
    read = op if isinstance(op, index.GatherNd) else index.GatherNd(op.axis, op.batch_dims)
    count = read.index_count(indices.type.shape)
    axes = range(op.axis, op.axis + count)
    for axis in range(op.batch_dims):
        (x, indices), _ = padding.together([x, indices], [axis, axis])
    if not any(padding.of(x)[axis] is not None for axis in axes):
        return x, indices
    for axis in axes:
        x = padding.compact(x, axis)
    counts = [Cast(indices.dtype)(padding.value(x.type.shape[axis])) for axis in axes]
    layouts = padding.of(indices)
    if isinstance(read, index.Gather):
        limit = BroadcastTo(indices.type.shape, ())(counts[0])
    else:
        row = Concatenate(0)(*(Reshape((1,))(n) for n in counts))
        limit = BroadcastTo(indices.type.shape, (indices.ndim - 1,))(row)
    if op.clamps:
        inside = MINIMUM(indices, SUB(limit, full(1, limit.type)))
    else:  # index -1: nothing is read or written
        inside = SELECT(LESS(indices, limit), indices, full(-1, limit.type))
    return x, padding.note(inside, layouts)


def _wide(padding: Padding, indices: Tensor, is_signed: bool) -> Tensor:
    """Indices in a type that holds every size, and -1 if it is to be signed. An unsigned number
    that becomes negative was already out of range."""
    kind = indices.dtype.numpy_dtype
    if kind.itemsize < 4:
        dtype = int32
    elif is_signed and kind.kind == "u":
        dtype = int32 if kind.itemsize == 4 else int64
    else:
        return indices
    return padding.note(Cast(dtype)(indices), padding.of(indices))


def _gather(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    x, indices = _indexed(padding, op, *xs)
    return _same(padding, op, [x, indices], _window(padding, op, x, indices))


def _window(padding: Padding, op: Any, x: Tensor, indices: Tensor) -> list[Layout]:
    """The layouts of what is read from x."""
    b, count = op.batch_dims, op.index_count(indices.type.shape)
    of_x, of_indices = padding.of(x), padding.of(indices)
    batch = [
        i if layout is None or layout is UNIFORM else layout
        for layout, i in zip(of_x[:b], of_indices[:b], strict=True)
    ]
    return [*batch, *of_x[b : op.axis], *op.index_shape(of_indices), *of_x[op.axis + count :]]


#: The neutral update of each scatter op, used for padding.
_SCATTER_NEUTRAL: dict[type[Op], Callable[[Any], Any]] = {
    index.ScatterAdd: lambda dtype: 0,
    index.ScatterMul: lambda dtype: 1,
    index.ScatterMax: lowest,
    index.ScatterMin: highest,
}


def _scatter(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    x, indices, updates = xs
    x, indices = _indexed(padding, op, x, indices)
    rows = range(op.batch_dims, indices.ndim - 1)
    into = range(op.axis, op.axis + len(rows))
    for row, axis in zip(rows, into, strict=True):
        (indices, updates), layout = padding.together([indices, updates], [row, axis])
        indices = padding.laid_out(indices, row, layout)
        updates = padding.laid_out(updates, axis, layout)
    flags = padding.is_element(indices, rows)
    if flags is not None and op.clamps:
        updates = padding.masked(updates, into, _neutral(op)(updates.dtype.numpy_dtype))
    elif flags is not None:
        nowhere = full(-1, TensorType(indices.dtype, indices.type.shape[:-1]))
        columns = BroadcastTo(indices.type.shape, tuple(range(indices.ndim - 1)))
        indices = padding.note(SELECT(flags, indices, columns(nowhere)), padding.of(indices))
    count = indices.type.shape[-1]
    layouts = list(padding.of(x))
    for axis in range(op.batch_dims):
        (x, indices), layout = padding.together([x, indices], [axis, axis])
        x = padding.laid_out(x, axis, layout)
    for axis in (*range(op.axis), *range(op.axis + count, x.ndim)):
        place = axis if axis < op.axis else axis - count + len(rows)
        (x, updates), layouts[axis] = padding.together([x, updates], [axis, place])
    outputs = current().add(op, (x, indices, updates))
    of_each = layouts, padding.of(updates)
    return [padding.note(y, layout) for y, layout in zip(outputs, of_each, strict=False)]


def _neutral(op: Op) -> Callable[[Any], Any]:
    """The value whose write changes nothing."""
    if isinstance(op, index.ScatterIsExtreme):
        return lowest if op.largest else highest
    if type(op) not in _SCATTER_NEUTRAL:
        raise Refusal("an open number of elements is written, each at the nearest place")
    return _SCATTER_NEUTRAL[type(op)]


def _dynamic_slice(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    x, starts = _within(padding, xs[0], op.sizes, xs[1:])
    plain = padding.plain(op.sizes)
    pairs = zip(op.sizes, x.type.shape, padding.of(x), plain, strict=True)
    layouts = [layout if size == whole else first for size, whole, layout, first in pairs]
    return _same(padding, op, [x, *starts], layouts)


def _dynamic_update(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    x, update, *starts = xs
    shape, moving = x.type.shape, []
    for axis, (whole, size) in enumerate(zip(shape, update.type.shape, strict=True)):
        if size == whole:
            (x, update), layout = padding.together([x, update], [axis, axis])
            x, update = (padding.laid_out(z, axis, layout) for z in (x, update))
        elif padding.is_open(size):
            update = padding.compact(update, axis)
            moving.append(axis)
    x, starts = _within(padding, x, update.type.shape, starts)
    flags = padding.is_element(update, moving)
    if flags is not None:  # keep the old value where the update has no element
        there = index.DynamicSlice(update.type.shape)(x, *starts)
        update = padding.note(SELECT(flags, update, there), padding.of(update))
    layouts = padding.of(x)
    y = index.UPDATE_SLICE(x, update, *starts)
    if y.type.shape != shape:
        y = Slice((0,) * y.ndim, shape, (1,) * y.ndim)(y)
    return padding.note(y, layouts)


def _within(
    padding: Padding, x: Tensor, sizes: Any, starts: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """x and the start indices of a slice of these sizes, so that the slice lies within its
    elements. If the size is open, x is extended by as much, so that the slice fits with its
    padding."""
    result = [_wide(padding, start, is_signed=False) for start in starts]
    for axis, size in enumerate(sizes):
        whole = x.type.shape[axis]
        if size == whole or not (padding.is_open(size) or padding.is_open(whole)):
            continue
        x = padding.compact(x, axis)
        last = SUB(padding.value(whole), padding.value(size))
        result[axis] = MINIMUM(result[axis], Cast(result[axis].dtype)(last))
        if padding.is_open(size):
            layouts = [padding.of(x)[a] if a != axis else (whole + size,) for a in range(x.ndim)]
            none = (0,) * x.ndim
            after = tuple(size if a == axis else 0 for a in range(x.ndim))
            zero = full(_zero(x), TensorType(x.dtype))
            x = padding.note(Pad(none, after, none)(x, zero), layouts)
    return x, result


def _sorting(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    """Padding becomes the value that sorts last; equal elements keep their order."""
    x = padding.compact(xs[0], op.axis)
    layouts = padding.of(x)
    return _same(padding, op, [padding.masked(x, [op.axis], _last(op, x.dtype))], layouts)


def _last(op: Any, dtype: Any) -> Any:
    """The value that sorts last in a dtype; nan counts as the largest number."""
    if dtype.is_bool:
        return not op.descending
    if op.descending:
        return lowest(dtype.numpy_dtype)
    return np.nan if dtype.is_floating else highest(dtype.numpy_dtype)


def _top_k(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    """Padding becomes the value that comes last, as in a descending sort."""
    if any(map(padding.is_open, sizes_in(op.attributes))):
        raise Refusal("how many of the largest it takes is open")
    last = xs[0].ndim - 1
    x = padding.compact(xs[0], last)
    x = padding.masked(x, [last], lowest(x.dtype.numpy_dtype))
    outputs = current().add(op, (x,))
    return [padding.note(y, (*padding.of(x)[:-1], None)) for y in outputs]


def _true_indices(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    (mask,) = xs
    last = mask.ndim - 1
    mask = padding.masked(padding.compact(mask, last), [last], False)
    layouts = [*padding.of(mask)[:-1], *padding.plain((op.size,))]
    return _same(padding, op, [mask], layouts)


def _from_key(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    """Random numbers are generated in the order of the flattened shape, and a longer sequence
    starts alike."""
    (key,) = xs
    shape = op.made().shape
    if not padding.has_open_inner(shape):
        return _same(padding, op, xs, [*padding.of(key)[:-1], *padding.plain(shape)])
    count = element_count(shape)
    layouts = [*padding.of(key)[:-1], *padding.plain((count,))]
    flat = _same(padding, type(op)((count,), op.dtype), xs, layouts)
    return _divided(padding, flat, flat.ndim - 1, shape)


def _permutation(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    if padding.is_open(op.size):
        raise Refusal(f"a permutation of {op.size} numbers is another one with padding")
    return _from_key(padding, op, xs)


def _from_parameters(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    key, *parameters = xs
    lead = key.ndim - 1
    shape = parameters[0].type.shape
    is_flat = padding.has_open_inner(shape[lead:])
    if is_flat:
        flatten = Reshape((*shape[:lead], element_count(shape[lead:])))
        parameters = [_reshape(padding, flatten, [x]) for x in parameters]
    for axis in range(lead, parameters[0].ndim):
        parameters = [padding.compact(x, axis) for x in parameters]
    operands = [key, *parameters]
    for axis in range(lead):
        operands, _ = padding.together(operands, [axis] * len(operands))
    y = _same(padding, op, operands, padding.of(operands[1]))
    return _divided(padding, y, lead, shape[lead:]) if is_flat else y


def _random_fold(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    key, data = xs
    for axis in range(data.ndim):
        (key, data), _ = padding.together([key, data], [axis, axis])
    of_data = (*padding.of(data), None)
    pairs = zip(padding.of(key), of_data, strict=True)
    return _same(
        padding, op, [key, data], [a if b is None or b is UNIFORM else b for a, b in pairs]
    )


def _host_call(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    raise Refusal("it would see the padding")


def _check(padding: Padding, op: Any, xs: Sequence[Tensor]) -> Outputs:
    return current().add(op, tuple(xs))


# Ops without a rule: what `depends` proves.

_PROOF_SIZES = (7, 11, 13, 17, 19)


def proved(padding: Padding, op: Op, xs: Sequence[Tensor]) -> Outputs:
    """The outputs of an op whose `depends` proves that it keeps the rows along each open axis
    apart, tested with distinct prime sizes."""
    xs = list(xs)
    for place, x in enumerate(xs):
        for axis in range(x.ndim):
            xs[place] = x = padding.compact(x, axis)
    outputs = current().add(op, tuple(xs))
    if any(not y.type.dtype.is_differentiable for y in (*xs, *outputs)):
        raise Refusal("it has no rule that says what padding does to it")
    names = sorted(set().union(*(dim_names(n) for x in xs for n in x.type.shape)))
    if len(names) > len(_PROOF_SIZES):
        raise Refusal("too many sizes are open")
    sizes = dict(zip(names, _PROOF_SIZES))
    for place, x in enumerate(xs):
        for axis, layout in enumerate(padding.of(x)):
            if layout is not None and not _keeps_apart(op, xs, outputs, place, axis, sizes):
                raise Refusal(f"it mixes the elements along axis {axis} of {x.type}")
    return [padding.note(y, padding.plain(y.type.shape)) for y in outputs]


def _keeps_apart(
    op: Op, xs: Sequence[Tensor], ys: Sequence[Tensor], place: int, axis: int, sizes: Any
) -> bool:
    """Whether element k along an axis of one operand reaches only element k along an axis of the
    same size in each output."""
    size = xs[place].type.shape[axis]
    with Builder("proof") as builder:
        types = [
            x.type.with_shape(tuple(substitute_size(n, sizes) for n in x.type.shape)) for x in xs
        ]
        inputs = tuple(builder.input(type) for type in types)
        try:
            graph = builder.finish(builder.add(op.substitute(sizes), inputs))
            numbers = np.indices(static_shape(types[place].shape))[axis]
            patterns = input_patterns(graph, {place: numbers})
            found = propagate(graph, patterns, [None] * len(patterns), patterns[place].total)
        except (MissingRule, Mismatch, ShapeError):
            return False
    for y, pattern in zip(ys, found, strict=True):
        axes = [a for a, n in enumerate(y.type.shape) if n == size]
        own = [np.broadcast_to(np.indices(pattern.shape)[a], pattern.shape).ravel() for a in axes]
        if not any((o[pattern.elements] == pattern.sources).all() for o in own):
            return False
    return True


RULES: dict[type, Rule] = {
    Constant: _constant,
    Iota: _constant,
    DimSize: _dim_size,
    Sizes: _sizes,
    Elementwise: _elementwise,
    BroadcastTo: _broadcast,
    Sum: _reduction(lambda dtype: 0),
    reduce.Prod: _reduction(lambda dtype: 1),
    reduce.Max: _reduction(lowest),
    reduce.Min: _reduction(highest),
    reduce.All: _reduction(lambda dtype: True),
    reduce.Any: _reduction(lambda dtype: False),
    reduce.IsExtreme: _is_extreme,
    reduce.ArgExtreme: _arg_extreme,
    reduce.CumSum: _scan(0),
    reduce.CumProd: _scan(1),
    reduce.CumLogsumexp: _scan(-np.inf),
    reduce.Recurrence: _recurrence,
    Transpose: _transpose,
    Barrier: _barrier,
    WithLayout: _barrier,
    EnsureShape: _ensure_shape,
    Reshape: _reshape,
    Slice: _slice,
    Pad: _pad,
    Concatenate: _concatenate,
    Reverse: _reverse,
    Matmul: _matmul,
    Conv: _conv,
    index.GatherNd: _gather,
    index.Scatter: _scatter,
    index.ScatterIsExtreme: _scatter,
    index.DynamicSlice: _dynamic_slice,
    index.DynamicUpdateSlice: _dynamic_update,
    Sort: _sorting,
    ArgSort: _sorting,
    TopK: _top_k,
    TrueIndices: _true_indices,
    RandomPermutation: _permutation,
    FromKey: _from_key,
    FromParameters: _from_parameters,
    RandomFold: _random_fold,
    HostCall: _host_call,
    Check: _check,
}
