"""Where the elements of a padded tensor are: the layout of each axis, and masks derived from it.

A graph for padded inputs is written with the same open sizes, but there a name stands for the
padded size, and an extra scalar input has the true size. An axis of open size is laid out as
factors, whose product is its size: position p has one digit for each factor, and holds an element
if each digit is below the true size of its factor. One factor is the plain case: elements come
first, padding follows. Merging the axes [batch, time] makes an axis of these two factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tracegraph.core.shapes import Dim, Size, dim_names, element_count
from tracegraph.core.types import TensorType, bool_, int32
from tracegraph.ir.tensor import Tensor
from tracegraph.ops import elementwise
from tracegraph.ops.broadcast import BroadcastTo, full
from tracegraph.ops.constant import DimSize, Iota, constant
from tracegraph.ops.index import Gather
from tracegraph.ops.shape import Reshape


class Uniform:
    """The layout of an axis of open size along which all elements are equal: it fits any other."""

    def __repr__(self) -> str:
        return "uniform"


UNIFORM = Uniform()
#: None for an axis that is not padded; UNIFORM; or the factors of its size.
Layout: TypeAlias = Uniform | tuple[Size, ...] | None
Layouts: TypeAlias = tuple[Layout, ...]


class Padding:
    """The layouts of the tensors of a graph being rewritten, and the true sizes."""

    def __init__(self, sizes: Mapping[str, Tensor], finds_sizes: bool = False) -> None:
        #: Whether nodes of the graph find sizes, which are padded from there on.
        self.finds_sizes = finds_sizes
        #: The true size for each name whose axes are padded.
        self.sizes = dict(sizes)
        self.layouts: dict[Tensor, Layouts] = {}
        #: Sizes that must not exceed their padded ones, since their elements have to fit there.
        self.growing: set[Size] = set()

    # Sizes.

    def is_open(self, size: Size) -> bool:
        """Whether a size is padded."""
        return not isinstance(size, int) and not dim_names(size).isdisjoint(self.sizes)

    def value(self, size: Size) -> Tensor:
        """The true value of a size, an int32 scalar."""
        if isinstance(size, int):
            return constant(size, int32)
        if not self.is_open(size):
            return DimSize(size)()
        total: Tensor | None = None
        for monomial, coefficient in size.terms:
            product = constant(coefficient, int32)
            for atom, power in monomial:
                for _ in range(power):
                    product = elementwise.MUL(product, self._atom(atom))
            total = product if total is None else elementwise.ADD(total, product)
        assert total is not None
        return total

    def _atom(self, atom: Any) -> Tensor:
        if isinstance(atom, str):
            return self.sizes[atom] if atom in self.sizes else self.value_of_name(atom)
        function, *operands = atom
        left, right = map(self.value, operands)
        return {
            "floordiv": elementwise.FloorDiv(),
            "max": elementwise.MAXIMUM,
            "min": elementwise.MINIMUM,
        }[function](left, right)

    def value_of_name(self, name: str) -> Tensor:
        """The value of a size that is not padded."""
        return DimSize(Dim.named(name))()

    # Layouts.

    def of(self, x: Tensor) -> Layouts:
        """The layouts of the axes of a tensor."""
        return self.layouts.get(x, (None,) * x.ndim)

    def note(self, x: Tensor, layouts: Iterable[Layout]) -> Tensor:
        """Records the layouts of a tensor: axes of known size have none."""
        found = [
            layout if self.is_open(size) else None
            for size, layout in zip(x.type.shape, layouts, strict=True)
        ]
        if any(layout is not None for layout in found):
            self.layouts[x] = tuple(found)
        self.growing.update(filter(self.is_open, x.type.shape))
        return x

    def plain(self, shape: Iterable[Size]) -> Layouts:
        """Layouts in which the elements come first."""
        return tuple((size,) if self.is_open(size) else None for size in shape)

    def is_plain(self, x: Tensor, axis: int) -> bool:
        """Whether elements come first along an axis, if it is padded."""
        layout = self.of(x)[axis]
        return layout is None or isinstance(layout, Uniform) or len(layout) == 1

    def normal(self, factors: Sequence[Size]) -> Layout:
        """The layout of these factors: plain, if only the first is open."""
        factors = [size for size in factors if size != 1]
        if not any(map(self.is_open, factors)):
            return None
        if any(map(self.is_open, factors[1:])):
            return tuple(factors)
        return (element_count(tuple(factors)),)

    def has_open_inner(self, shape: Iterable[Size]) -> bool:
        """Whether an axis is open after another one, so that padding stands between elements in
        the order of the flattened shape."""
        wide = [size for size in shape if size != 1]
        return any(map(self.is_open, wide[1:]))

    def joined(self, layouts: Sequence[Layout]) -> Layout | None:
        """The common layout of axes of one size; None if they differ or are not padded."""
        some = [x for x in layouts if x is not None and not isinstance(x, Uniform)]
        if not some:
            return next((x for x in layouts if x is not None), None)
        if all(x == some[0] for x in some) or all(len(x) == 1 for x in some):
            return some[0]
        return None

    def together(self, xs: Sequence[Tensor], axes: Sequence[int]) -> tuple[list[Tensor], Layout]:
        """Converts tensors to a common layout along one axis of each, all of one size; and that
        layout."""
        found = [self.of(x)[axis] for x, axis in zip(xs, axes, strict=True)]
        layout = self.joined(found)
        if layout is None and any(x is not None for x in found):
            xs = [self.compact(x, axis) for x, axis in zip(xs, axes, strict=True)]
            layout = self.joined([self.of(x)[axis] for x, axis in zip(xs, axes, strict=True)])
        return list(xs), layout

    def aligned(self, xs: Sequence[Tensor]) -> tuple[list[Tensor], Layouts]:
        """Converts tensors of one shape to a common layout for each axis."""
        result, layouts = list(xs), []
        for axis in range(xs[0].ndim):
            result, layout = self.together(result, [axis] * len(result))
            layouts.append(layout)
        return result, tuple(layouts)

    def compact(self, x: Tensor, axis: int) -> Tensor:
        """x with its elements first along an axis."""
        layout = self.of(x)[axis]
        if layout is None:
            return x
        size = x.type.shape[axis]
        rest = list(self.of(x))
        rest[axis] = (size,)
        if isinstance(layout, Uniform) or len(layout) == 1:
            return self.again(x, rest)
        position = self._positions(size, layout)
        return self.note(Gather(axis, 0)(x, position), rest)

    def laid_out(self, x: Tensor, axis: int, layout: Layout) -> Tensor:
        """x with another layout for an axis along which all its elements are equal."""
        if self.of(x)[axis] == layout or layout is None:
            return x
        rest = list(self.of(x))
        rest[axis] = layout
        return self.again(x, rest)

    def again(self, x: Tensor, layouts: Iterable[Layout]) -> Tensor:
        """A copy of x with other layouts; x itself does not change."""
        return self.note(Reshape(x.type.shape)(x), layouts)

    def _positions(self, size: Size, factors: Sequence[Size]) -> Tensor:
        """The position of each element, by its index among the elements."""
        number = Iota(size, int32)()
        position = full(0, number.type)
        stride: Size = 1
        for factor in reversed(factors):
            count = BroadcastTo(number.type.shape, ())(self.value(factor))
            step = BroadcastTo(number.type.shape, ())(padded_value(stride))
            position = elementwise.ADD(
                position, elementwise.MUL(elementwise.FloorMod()(number, count), step)
            )
            number = elementwise.FloorDiv()(number, count)
            stride = stride * factor
        return position

    def places(self, sizes: Sequence[Size]) -> Tensor:
        """For each position in axes of these sizes, the index of its element among all of them."""
        shape = tuple(sizes)
        found = full(0, TensorType(int32, shape))
        for axis, size in enumerate(shape):
            digits = BroadcastTo(shape, (axis,))(Iota(size, int32)())
            stride = BroadcastTo(shape, ())(self.value(element_count(shape[axis + 1 :])))
            found = elementwise.ADD(found, elementwise.MUL(digits, stride))
        return found

    # Masks.

    def is_element(self, x: Tensor, axes: Iterable[int]) -> Tensor | None:
        """Whether each position of x holds an element along `axes`; None if there is no padding."""
        found: Tensor | None = None
        for axis in axes:
            layout, size = self.of(x)[axis], x.type.shape[axis]
            if layout is None:
                continue
            factors = (size,) if isinstance(layout, Uniform) else layout
            flags = BroadcastTo(x.type.shape, (axis,))(self._joint_flags(size, factors))
            found = flags if found is None else elementwise.AND(found, flags)
        return found

    def flags(self, size: Size) -> Tensor:
        """Whether each position holds an element, for an axis of open size with elements first."""
        return elementwise.LESS(Iota(size, int32)(), BroadcastTo((size,), ())(self.value(size)))

    def _joint_flags(self, size: Size, factors: Sequence[Size]) -> Tensor:
        """Whether each position of an axis holds an element."""
        type = TensorType(bool_, tuple(factors))
        found: Tensor | None = None
        for place, factor in enumerate(factors):
            if self.is_open(factor):
                flags = self.flags(factor)
                flags = BroadcastTo(type.shape, (place,))(flags) if len(factors) > 1 else flags
                found = flags if found is None else elementwise.AND(found, flags)
        assert found is not None
        return found if len(factors) == 1 else Reshape((size,))(found)

    def masked(self, x: Tensor, axes: Iterable[int], value: Any) -> Tensor:
        """x with `value`, a number or a scalar tensor, in the padding along `axes`."""
        flags = self.is_element(x, axes)
        if flags is None:
            return x
        if isinstance(value, Tensor):
            other = BroadcastTo(x.type.shape, ())(value) if x.ndim else value
        else:
            other = full(value, x.type)
        return self.note(elementwise.SELECT(flags, x, other), self.of(x))


def padded_value(size: Size) -> Tensor:
    """The value of a size with padding, an int32 scalar."""
    return constant(size, int32) if isinstance(size, int) else DimSize(size)()
