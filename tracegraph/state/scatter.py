"""Updates of parts of a Variable: scatters and slice assignment. Installed on `Variable`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tracegraph.boundary.tracebacks import binary_operator
from tracegraph.core.shapes import static_shape
from tracegraph.core.tensorshape import IndexedSlices
from tracegraph.core.types import TensorType, int32, int64
from tracegraph.errors import DTypeError, ShapeError, SignatureError, counted, fail, kind_of, shown
from tracegraph.ir.builder import operand_text
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, static_ints, static_value
from tracegraph.ops import index as ops
from tracegraph.ops.broadcast import full, full_like
from tracegraph.ops.constant import Iota
from tracegraph.ops.elementwise import DIV, LESS, LESS_EQUAL, NEG, SELECT, Add, FloorDiv
from tracegraph.ops.shape import Reshape
from tracegraph.state.variable import DTypeMismatchError, Variable
from tracegraph.tracing.index_checks import check_range
from tracegraph.tracing.name_scopes import told_name


def _same(x: Tensor) -> Tensor:
    return x


#: What each method combines with, and how it treats the updates first.
_COMBINATIONS: dict[str, tuple[type[Op], Callable[[Tensor], Tensor]]] = {
    "add": (ops.ScatterAdd, _same),
    "sub": (ops.ScatterAdd, NEG),
    "mul": (ops.ScatterMul, _same),
    "div": (ops.ScatterMul, _same),
    "max": (ops.ScatterMax, _same),
    "min": (ops.ScatterMin, _same),
    "update": (ops.ScatterUpdate, _same),
}


def _scattered(variable: Variable, how: str, vectors: Tensor, updates: Any) -> Variable:
    op, prepare = _COMBINATIONS[how]
    values = _updates(variable, updates)

    def changed(now: Tensor) -> Tensor:
        if how == "div":
            return _divided(now, vectors, values)
        return op(0, 0)(now, vectors, prepare(values))  # type: ignore[call-arg]

    variable.update(changed)
    return variable


def _check(variable: Variable, name: str, indices: Tensor, depth: Any) -> None:
    """Rejects indices, or index vectors of length `depth`, that are known to be out of range, and
    vectors longer than the rank of the Variable."""
    rank = len(variable.tensor_type.shape)
    if isinstance(depth, int) and depth > rank:
        fail(
            ShapeError,
            f"{name}: {counted(depth, 'number')} for the {rank} axes of the variable "
            f"{told_name(variable)!r} {variable.tensor_type}",
            operands=[operand_text(indices)],
            fix="give at most one number for each axis; a scalar takes none: indices of []",
        )
    if isinstance(depth, int):
        check_range(name, host_tensor(variable.tensor_type, None), indices, range(depth))


def _divided(now: Tensor, vectors: Tensor, values: Tensor) -> Tensor:
    """Divides each element by the product of its updates, rounding once."""
    divisors = ops.ScatterMul(0, 0)(full_like(now, 1), vectors, values)
    return FloorDiv()(now, divisors) if now.dtype.is_integer else DIV(now, divisors)


def _updates(variable: Variable, updates: Any) -> Tensor:
    values = as_tensor(updates, None if isinstance(updates, Tensor) else variable.dtype)
    if values.dtype is not variable.dtype:
        fail(
            DTypeMismatchError,
            f"updates of {values.dtype.name} were scattered into the variable "
            f"{told_name(variable)!r} of {variable.dtype.name}",
            operands=[operand_text(values)],
            fix=f"convert them: tg.cast(updates, tg.{variable.dtype.name})",
        )
    return values


def _indices(value: Any) -> Tensor:
    indices = as_tensor(value)
    if indices.dtype.is_floating and indices.type.is_static and 0 in indices.type.shape:
        return cast_to(indices, int32)  # an empty list, which indexes a scalar, has no dtype
    if not indices.dtype.is_integer:
        fail(
            DTypeError,
            f"indices are {indices.type}, and they must be integers",
            fix="convert them: tg.cast(indices, tg.int32)",
        )
    return indices


def _vectors(value: Any) -> Tensor:
    """Index vectors, which lie along the last axis; a scalar has none."""
    vectors = _indices(value)
    if vectors.type.shape == ():
        fail(
            ShapeError,
            f"the indices are a scalar {vectors.type}, and index vectors lie along the last axis",
            operands=[operand_text(vectors)],
            fix="put the index into a list: [[i]] for one vector of one number",
        )
    return vectors


def _scatter_method(how: str) -> Callable[..., Any]:
    def scatter(
        self: Variable, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Variable:
        if not isinstance(sparse_delta, IndexedSlices):
            fail(
                DTypeError,
                f"scatter_{how} takes tg.IndexedSlices, and it was given "
                f"{shown(sparse_delta)}, which is {kind_of(sparse_delta)}",
                fix="write tg.IndexedSlices(values, indices)",
            )
        indices = _indices(sparse_delta.indices)
        _check(self, f"scatter_{how}", indices, 1)
        vectors = Reshape((*indices.type.shape, 1))(indices)
        values = _updates(self, sparse_delta.values)
        if values.type.shape == ():  # one number for all: TensorFlow allows it only here
            rows = self.tensor_type.shape[1:]
            values = broadcast(values, (*indices.type.shape, *rows))
        return _scattered(self, how, vectors, values)

    scatter.__name__ = f"scatter_{how}"
    scatter.__doc__ = (
        f"Rows of the value are combined ({how}) with `sparse_delta.values`, those of one index "
        "one after another; a scalar stands for all values. Returns the Variable. What has an "
        "index out of range is refused if the index is known, and dropped if it is known only at "
        "run time."
    )
    return scatter


def _dense(self: IndexedSlices) -> Tensor:
    """The slices as one tensor of shape `dense_shape`. Raises SignatureError without that shape,
    and ShapeError unless the values are one row per index."""
    if self.dense_shape is None:
        fail(
            SignatureError,
            "IndexedSlices without a dense_shape are not a tensor: its first size is not known",
            fix="give it: tg.IndexedSlices(values, indices, dense_shape)",
        )
    values, indices = as_tensor(self.values), _indices(self.indices)
    shape = static_ints(self.dense_shape, "IndexedSlices: dense_shape")
    zeros = full(0, TensorType(values.dtype, shape))
    check_range("IndexedSlices", zeros, indices, [0])
    return ops.ScatterAdd(0, 0)(zeros, Reshape((*indices.type.shape, 1))(indices), values)


def _scatter_nd_method(how: str) -> Callable[..., Any]:
    def scatter(self: Variable, indices: Any, updates: Any, name: str | None = None) -> Variable:
        vectors = _vectors(indices)
        _check(self, f"scatter_nd_{how}", vectors, vectors.type.shape[-1])
        return _scattered(self, how, vectors, updates)

    scatter.__name__ = f"scatter_nd_{how}"
    scatter.__doc__ = (
        f"Combines ({how}) `updates[i]` with the element or slice at the vector `indices[i]`; "
        "returns the Variable. Raises ShapeError for updates of another shape. What has an index "
        "out of range is refused if the index is known, and dropped if it is known only at run "
        "time."
    )
    return scatter


def sparse_read(self: Variable, indices: Any, name: str | None = None) -> Tensor:
    """The rows at `indices`, as a tensor."""
    at = _indices(indices)
    _check(self, "sparse_read", at, 1)
    return ops.Gather(0, 0)(self.read_value(), at)


def gather_nd(self: Variable, indices: Any, name: str | None = None) -> Tensor:
    """The elements or slices at the vectors `indices[..., :]`."""
    at = _vectors(indices)
    _check(self, "gather_nd", at, at.type.shape[-1])
    return ops.GatherNd(0, 0)(self.read_value(), at)


def batch_scatter_update(
    self: Variable, sparse_delta: Any, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Replaces rows, batch by batch: `indices` has the batch axes of the Variable."""
    indices = _indices(sparse_delta.indices)
    vectors = Reshape((*indices.type.shape, 1))(indices)
    depth = indices.ndim - 1
    if len(self.tensor_type.shape) > depth:
        whole = host_tensor(self.tensor_type, None)
        check_range("batch_scatter_update", whole, indices, (depth,))
    values = _updates(self, sparse_delta.values)
    self.update(lambda now: ops.ScatterUpdate(depth, depth)(now, vectors, values))
    return self


# Slices.


@binary_operator
def _getitem(self: Variable, index: Any) -> Tensor:
    part = self.read_value()[index]  # type: ignore[index]
    part._slice_of = (self, index)
    return part


def _assign_slice(
    self: Tensor, value: Any, name: str | None = None, read_value: bool = True
) -> Any:
    try:
        variable, index = self._slice_of
    except AttributeError:
        fail(
            AttributeError,
            f"a tensor {self.type} was assigned, and only Variables and slices of them can be",
            operands=[operand_text(self)],
            fix="make it a tg.Variable, and use v.assign(value) or v[1:3].assign(value)",
        )
    values = _updates(variable, value)
    positions = _positions(variable, index)
    part = static_shape(positions.type.shape)
    if len(values.type.shape) > len(part) or not _fits(values.type.shape, part):
        fail(
            ShapeError,
            f"a value {values.type} was assigned to a slice of shape {part} of the "
            f"variable {told_name(variable)!r}",
            fix="assign a value of the slice's shape",
        )
    count = math.prod(part)
    vectors = Reshape((count, 1))(positions)
    spread = Reshape((count,))(broadcast(values, part))
    shape = variable.tensor_type.shape

    def changed(now: Tensor) -> Tensor:
        flat = Reshape((math.prod(shape),))(now)
        return Reshape(shape)(ops.ScatterUpdate(0, 0)(flat, vectors, spread))

    return variable.update(changed, read_value)


def _positions(variable: Variable, index: Any) -> Tensor:
    """The positions that the index selects, in row-major order. A position that is known only at
    run time and out of range lies past the end, so nothing is written."""
    shape = static_shape(variable.tensor_type.shape)
    items = index if isinstance(index, tuple) else (index,)
    if any(map(_is_open, items)):
        numbers = Reshape(shape)(Iota(math.prod(shape), int32)())
        found = numbers[index]  # type: ignore[index]
        for is_inside in _conditions(shape, items):
            kept = broadcast(is_inside, found.type.shape)
            found = SELECT(kept, found, full(math.prod(shape), found.type))
        return found
    numbers = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    return as_tensor(np.asarray(numbers[tuple(map(_known, items))]))


def _is_open(part: Any) -> bool:
    """Whether a part of an index is known only at run time."""
    if isinstance(part, slice):
        return any(map(_is_open, (part.start, part.stop, part.step)))
    return isinstance(part, (Tensor, Variable)) and static_value(as_tensor(part)) is None


def _known(part: Any) -> Any:
    if isinstance(part, (Tensor, Variable)):
        return np.asarray(static_value(as_tensor(part)))
    if isinstance(part, slice):
        return slice(*(_known(bound) for bound in (part.start, part.stop, part.step)))
    return part


def _conditions(shape: Sequence[int], items: Sequence[Any]) -> Iterator[Tensor]:
    """The conditions that the parts of an index known only at run time are in range."""
    rest = len(shape) - sum(1 for item in items if item is not None and item is not Ellipsis)
    axis = 0
    for item in items:
        if _is_open(item):
            ends = (item.start, item.stop) if isinstance(item, slice) else (item, None)
            yield from _range_conditions(*ends, shape[axis])
        axis += rest if item is Ellipsis else item is not None


def _range_conditions(start: Any, stop: Any, size: int) -> Iterator[Tensor]:
    """The conditions that start is at least -size and that stop is at most size or, without a stop,
    that start is below size. A negative start counts from the end, and so does its stop."""
    last = as_tensor(start if stop is None else stop)
    first, last, low = (cast_to(as_tensor(x), int64) for x in (start, last, -size))
    yield LESS_EQUAL(low, first)
    length, zero = full(size, first.type), full(0, first.type)
    counted = Add()(last, SELECT(LESS(first, zero), length, zero))
    yield (LESS if stop is None else LESS_EQUAL)(counted, length)


def _fits(shape: Any, target: tuple[int, ...]) -> bool:
    tail = target[len(target) - len(shape) :]
    return all(size in (1, wanted) for size, wanted in zip(shape, tail, strict=True))


for _how in _COMBINATIONS:
    setattr(Variable, f"scatter_{_how}", _scatter_method(_how))
    setattr(Variable, f"scatter_nd_{_how}", _scatter_nd_method(_how))

for _method in (sparse_read, gather_nd, batch_scatter_update):
    setattr(Variable, _method.__name__, _method)
Variable.__getitem__ = _getitem  # type: ignore[method-assign]
IndexedSlices.__tracegraph_tensor__ = _dense  # type: ignore[attr-defined]
Tensor.assign = _assign_slice  # type: ignore[attr-defined]

__all__ = ["batch_scatter_update", "gather_nd", "sparse_read"]
