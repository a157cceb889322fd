"""Accumulates cotangents during a reverse walk, joining those of slices of one tensor.

The cotangent of a slice has the size of the slice. Padding each to the size of the whole and adding
costs the whole once per slice: quadratic in the steps of a recurrence fed by `unstack`. So slices
wait until the total is needed, and then one concatenation joins those that do not overlap, with
zeros in the gaps. Nothing else changes: the dump shows a concatenation, and its derivatives in
either mode are again slices and concatenations.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from tracegraph.core.shapes import Shape, Size, ceiling_divide, least
from tracegraph.core.source import Source, here, sourced
from tracegraph.core.types import TensorType, float32
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.effect import Read
from tracegraph.ops.elementwise import ADD, Cast
from tracegraph.ops.shape import Concatenate, Pad, Reshape, Slice, slice_axis
from tracegraph.passes.registry import is_registered

#: More terms than these of 16 bits are added up in float32: each addition in 16 bits rounds.
MOST_NARROW_TERMS = 3
#: Terms of one cotangent, with the place at which each is added.
_Terms: TypeAlias = "list[tuple[Tensor, Source]]"


class Cotangents:
    """The cotangent of each tensor that a walk has reached. Terms are added as they come; those of
    16 bits and those of slices when the total is read, after which no term may be added."""

    def __init__(self) -> None:
        self._totals: dict[Tensor, Tensor] = {}
        self._narrow: dict[Tensor, _Terms] = {}
        self._slices: dict[Tensor, list[_Sliced]] = {}

    def add(self, x: Tensor, g: Tensor) -> None:
        """Adds a term to the cotangent of x."""
        if is_narrow(x.type):
            self._narrow.setdefault(x, []).append((g, here()))
            return
        total = self._totals.get(x)
        self._totals[x] = g if total is None else ADD(total, g)

    def add_slice(self, node: Node) -> None:
        """Adds the cotangent of a slice to the tensor that it was taken from."""
        g = self.get(node.outputs[0])
        assert g is not None and isinstance(node.op, Slice), node
        self._slices.setdefault(node.inputs[0], []).append(_Sliced(node.op, g, here()))

    def hand_on(self, y: Tensor, x: Tensor) -> None:
        """Passes everything that arrived at y on to x, which is the same value: slices stay
        slices."""
        total = self._totals.pop(y, None)
        if total is not None:
            self.add(x, total)
        if (terms := self._narrow.pop(y, None)) is not None:
            self._narrow.setdefault(x, []).extend(terms)
        if (slices := self._slices.pop(y, None)) is not None:
            self._slices.setdefault(x, []).extend(slices)

    def get(self, x: Tensor) -> Tensor | None:
        """The total of x; None if nothing arrived."""
        slices = self._slices.pop(x, None)
        if slices is not None:
            slices.reverse()  # in the order of the program
            with sourced(slices[0].source):
                self.add(x, _joined(x, slices))
        terms = self._narrow.pop(x, None)
        if terms is not None:
            self._totals[x] = _sum_of_narrow(terms)
        return self._totals.get(x)

    def reach(self, ys: Iterable[Tensor]) -> bool:
        """Whether any of the tensors has a cotangent."""
        return any(y in self._totals or y in self._narrow or y in self._slices for y in ys)


def is_narrow(type: TensorType) -> bool:
    """Whether a tensor has floating-point numbers of 16 bits."""
    return type.dtype.is_floating and type.dtype.size == 2


def _total(values: Sequence[Tensor]) -> Tensor:
    if is_narrow(values[0].type):
        return _sum_of_narrow([(value, here()) for value in values])
    return functools.reduce(ADD, values)


def _sum_of_narrow(terms: _Terms) -> Tensor:
    (total, place), *others = terms
    narrow = total.dtype
    is_long = len(terms) > MOST_NARROW_TERMS
    with sourced(place):
        total = Cast(float32)(total) if is_long else total
    for term, place in others:
        with sourced(place):
            total = ADD(total, Cast(float32)(term) if is_long else term)
    with sourced(place):
        return Cast(narrow)(total) if is_long else total


def is_plain_read(node: Node) -> bool:
    """Whether the node reads a Variable whose type did not change. Each `v[i]` reads v anew, so
    slices of one Variable meet only at its handle."""
    if type(node.op) is not Read or is_registered(node.op):
        return False
    return node.outputs[0].type is node.inputs[1].type


def is_plain_slice(node: Node) -> bool:
    """Whether the node is a slice, and nobody registered another gradient for slices."""
    return type(node.op) is Slice and not is_registered(node.op)


class _Sliced(NamedTuple):
    """The cotangent of one slice, and the line that took the slice."""

    op: Slice
    cotangent: Tensor
    source: Source


class _Box(NamedTuple):
    """A part of a tensor, by its bounds on each axis, and the cotangent of that part."""

    start: Shape
    stop: Shape
    value: Tensor


def _joined(x: Tensor, slices: Sequence[_Sliced]) -> Tensor:
    """The cotangent of x from those of its `slices`: slices of one stride are joined."""
    by_stride: dict[tuple[int, ...], list[_Sliced]] = {}
    for taken in slices:
        by_stride.setdefault(taken.op.stride, []).append(taken)
    terms: list[Tensor] = []
    for stride, group in by_stride.items():
        if all(step == 1 for step in stride):
            terms.append(
                _joined_boxes([_Box(op.start, op.stop, g) for op, g, _ in group], x.type.shape)
            )
        elif len(group) > 1 and _is_countable(x.type.shape, stride, group):
            terms.append(_joined_strides(group, x.type.shape, stride))
        else:
            terms += [op.vjp(g, g, x)[0] for op, g, _ in group]
    return _total(terms)


# Slices with a stride other than 1: boxes in a tensor with one more axis for each such stride.


def _is_countable(shape: Shape, stride: Sequence[int], group: Sequence[_Sliced]) -> bool:
    """Whether sizes and starts are known on the axes that have a stride."""
    axes = [axis for axis, step in enumerate(stride) if step > 1]
    bounds = [bound[axis] for axis in axes for bound in (shape, *(s.op.start for s in group))]
    return all(isinstance(bound, int) for bound in bounds)


def _joined_strides(group: Sequence[_Sliced], shape: Shape, stride: Sequence[int]) -> Tensor:
    """Views an axis of size n with stride s as n / s rows of s elements; a slice is one column."""
    wide: list[Size] = []
    for size, step in zip(shape, stride, strict=True):
        wide += [size] if step == 1 else [ceiling_divide(size, step), step]
    found = _joined_boxes([_column(taken, stride) for taken in group], tuple(wide))
    rounded = tuple(
        size if step == 1 else ceiling_divide(size, step) * step
        for size, step in zip(shape, stride, strict=True)
    )
    found = Reshape(rounded)(found)
    for axis, (whole, size) in enumerate(zip(rounded, shape, strict=True)):
        if whole != size:
            found = slice_axis(found, axis, 0, size)
    return found


def _column(taken: _Sliced, stride: Sequence[int]) -> _Box:
    start: list[Size] = []
    stop: list[Size] = []
    sizes: list[Size] = []
    bounds = zip(taken.op.start, taken.op.stop, taken.cotangent.type.shape, stride, strict=True)
    for first, last, count, step in bounds:
        if step == 1:
            start, stop, sizes = [*start, first], [*stop, last], [*sizes, count]
        else:
            row, column = first // step, first % step
            start, stop = [*start, row, column], [*stop, row + count, column + 1]
            sizes += [count, 1]
    return _Box(tuple(start), tuple(stop), Reshape(tuple(sizes))(taken.cotangent))


# Boxes: slices of stride 1.


def _joined_boxes(boxes: Sequence[_Box], shape: Shape) -> Tensor:
    """The sum of the boxes, in zeros of `shape`."""
    at_place: dict[tuple[Shape, Shape], list[Tensor]] = {}
    for start, stop, g in boxes:
        at_place.setdefault((start, stop), []).append(g)
    distinct = [_Box(start, stop, _total(gs)) for (start, stop), gs in at_place.items()]
    return _filled(distinct, shape, tuple(range(len(shape))))


def _filled(boxes: Sequence[_Box], shape: Shape, axes: tuple[int, ...]) -> Tensor:
    """The sum of the boxes, in zeros of `shape`; all of them span every axis except `axes`."""
    best: list[list[_Band]] | None = None
    chosen = None
    for axis in axes if len(boxes) > 1 else ():
        bands = _bands(boxes, axis)
        layers = _layers(bands)
        if len(layers) < len(bands) and (best is None or len(layers) < len(best)):
            best, chosen = layers, axis
    if best is None or chosen is None:
        terms = [_padded(box, shape, axes) for box in boxes]
    else:
        rest = tuple(axis for axis in axes if axis != chosen)
        terms = [_concatenated(layer, shape, chosen, rest) for layer in best]
    return _total(terms)


class _Band(NamedTuple):
    """The boxes with the same bounds on one axis."""

    start: Size
    stop: Size
    boxes: list[_Box]


def _bands(boxes: Sequence[_Box], axis: int) -> list[_Band]:
    """The bands along an axis, sorted by start if that is known, else in the order of the boxes."""
    found: dict[tuple[Size, Size], _Band] = {}
    for box in boxes:
        start, stop = box.start[axis], box.stop[axis]
        found.setdefault((start, stop), _Band(start, stop, [])).boxes.append(box)
    bands = list(found.values())
    if all(isinstance(band.start, int) for band in bands):
        bands.sort(key=_start)
    return bands


def _start(band: _Band) -> Any:
    return band.start


def _layers(bands: Sequence[_Band]) -> list[list[_Band]]:
    """Divides the bands into the fewest lists without overlaps, each in ascending order."""
    layers: list[list[_Band]] = []
    for band in bands:
        for layer in layers:
            distance = least(band.start - layer[-1].stop)
            if distance is not None and distance >= 0:
                layer.append(band)
                break
        else:
            layers.append([band])
    return layers


def _concatenated(layer: Sequence[_Band], shape: Shape, axis: int, rest: tuple[int, ...]) -> Tensor:
    """The bands one after another, with zeros before, between and after them."""
    if len(layer) == 1 and len(layer[0].boxes) == 1:
        return _padded(layer[0].boxes[0], shape, (axis, *rest))
    row: list[Tensor] = []
    end: Size = 0
    for band in layer:
        size = band.boxes[0].value.type.shape[axis]
        value = _filled(band.boxes, _resized(shape, axis, size), rest)
        if band.start != end:
            row.append(_zeros_beside(value, axis, band.start - end))
        row.append(value)
        end = band.start + size
    if end != shape[axis]:
        row.append(_zeros_beside(row[-1], axis, shape[axis] - end))
    return Concatenate(axis)(*row) if len(row) > 1 else row[0]


def _zeros_beside(x: Tensor, axis: int, size: Size) -> Tensor:
    return full(0, x.type.with_shape(_resized(x.type.shape, axis, size)))


def _resized(shape: Shape, axis: int, size: Size) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _padded(box: _Box, shape: Shape, axes: tuple[int, ...]) -> Tensor:
    """The cotangent of a box with zeros around it on `axes`."""
    g = box.value
    sizes = zip(shape, box.start, g.type.shape, strict=True)
    widths = [
        (start, size - start - count) if axis in axes else (0, 0)
        for axis, (size, start, count) in enumerate(sizes)
    ]
    if all(pair == (0, 0) for pair in widths):
        return g
    before, after = zip(*widths, strict=True)
    return Pad(before, after, (0,) * len(shape))(g, full(0, TensorType(g.dtype)))
