"""The types that users see: TensorShape, TensorSpec, and IndexedSlices."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, SupportsIndex, overload

import numpy as np

from tracegraph.core.shapes import Dim, Shape, ShapeVariable, bounds, element_count, plain
from tracegraph.core.source import is_ours, stand_for_users
from tracegraph.core.types import DType, TensorType, as_dtype, float32
from tracegraph.errors import ShapeError, TraceError, fail, shown

if TYPE_CHECKING:
    from typing import Protocol

    from tracegraph.eager.layouts import Layout
    from tracegraph.ir.tensor import Tensor
    from tracegraph.state.variable import Variable
    from tracegraph.typing import DTypeLike, LayoutLike, ShapeLike

    class Described(Protocol):
        """A tensor, a Variable or an array."""

        @property
        def shape(self) -> Any: ...
        @property
        def dtype(self) -> Any: ...


class TensorShape(tuple[int, ...]):
    """The sizes of a tensor: a tuple whose entries are ints, symbolic sizes, or None for open.
    To a checker they are ints: code that takes sizes also accepts symbolic ones.

    `TensorShape(None)` is the shape of a tensor of unknown rank; it has no length.

    >>> tg.zeros([2, 3]).shape
    TensorShape([2, 3])
    >>> print(tg.zeros([2, 3]).shape)
    (2, 3)
    """

    #: The shape variable of a tensor of unknown rank; True for `TensorShape(None)`.
    variable: ShapeVariable | bool | None = None

    def __new__(cls, dims: Any) -> TensorShape:
        if isinstance(dims, TensorShape):
            return dims
        if dims is None or isinstance(dims, ShapeVariable):
            unknown = super().__new__(cls)
            unknown.variable = True if dims is None else dims
            return unknown
        if isinstance(dims, str):
            _refuse(dims, "a list of sizes", fix=f"write [{dims!r}] for one size of that name")
        if isinstance(dims, (dict, set, frozenset)):
            _refuse(dims, "a list of sizes", fix="write the sizes in their order: [2, 3]")
        if not hasattr(dims, "__iter__"):
            dims = (dims,)
        return super().__new__(cls, map(_entry, dims))

    @property
    def rank(self) -> int | None:
        """The number of axes; None if it is unknown."""
        return tuple.__len__(self) if self.variable is None else None

    ndims = rank

    @property
    def dims(self) -> list[Any] | None:
        """The entries as a list; None if the rank is unknown."""
        return None if self.variable is not None else list(self)

    def as_list(self) -> list[Any]:
        """The entries as a list. Raises ShapeError if the rank is unknown.

        >>> tg.zeros([2, 3]).shape.as_list()
        [2, 3]
        """
        self._require_rank()
        return list(self)

    def num_elements(self) -> int | None:
        """The product of the sizes; None if one of them is open or the rank is unknown.

        >>> tg.zeros([2, 3]).shape.num_elements()
        6
        """
        if self.variable is not None or None in tuple(self):
            return None
        return element_count(self)  # type: ignore[return-value]

    def is_fully_defined(self) -> bool:
        """Whether every size is an int."""
        return self.variable is None and all(type(size) is int for size in self)

    def is_compatible_with(self, other: ShapeLike | None) -> bool:
        """Whether a tensor could have both shapes.

        >>> tg.TensorShape([None, 2]).is_compatible_with([3, 2])
        True
        """
        other = TensorShape(other)
        if self.variable is not None or other.variable is not None:
            return True
        if self.rank != other.rank:
            return False
        return all(map(_may_be_equal, self, other))

    def assert_is_compatible_with(self, other: ShapeLike | None) -> None:
        """Raises ShapeError (a ValueError) unless a tensor could have both shapes."""
        if not self.is_compatible_with(other):
            fail(
                ShapeError,
                f"the shapes {self} and {TensorShape(other)} are not compatible",
                fix="give shapes of one rank whose known sizes are equal",
            )

    def merge_with(self, other: ShapeLike | None) -> TensorShape:
        """What is known of a tensor that has both shapes. Raises ShapeError if none could.

        >>> tg.TensorShape([None, 2]).merge_with([3, None])
        TensorShape([3, 2])
        """
        self.assert_is_compatible_with(other)
        other = TensorShape(other)
        if self.variable is not None or other.variable is not None:
            return other if self.variable is not None else self
        return _of(b if a is None else a for a, b in zip(self, other, strict=True))

    def most_specific_compatible_shape(self, other: ShapeLike | None) -> TensorShape:
        """What two shapes have in common: None where the sizes differ, no rank where the ranks do.

        >>> tg.TensorShape([1, 2, 3]).most_specific_compatible_shape([1, 5, 3])
        TensorShape([1, None, 3])
        """
        other = TensorShape(other)
        if self.rank is None or self.rank != other.rank:
            return TensorShape(None)
        return _of(a if a == b else None for a, b in zip(self, other, strict=True))

    def is_subtype_of(self, other: ShapeLike | None) -> bool:
        """Whether each tensor of this shape has the shape `other` as well.

        >>> tg.TensorShape([3, 2]).is_subtype_of(tg.TensorShape([None, 2]))
        True
        """
        if not isinstance(other, TensorShape):
            return False
        if other.rank is None:
            return True
        if self.rank != other.rank:
            return False
        return all(b is None or a == b for a, b in zip(self, other, strict=True))

    def most_specific_common_supertype(self, others: Iterable[Any]) -> TensorShape | None:
        """What this shape and all the others have in common; None if one of them is not a shape.

        >>> tg.TensorShape([3, 2]).most_specific_common_supertype([tg.TensorShape([4, 2])])
        TensorShape([None, 2])
        """
        others = list(others)
        if not all(isinstance(other, TensorShape) for other in others):
            return None
        return functools.reduce(TensorShape.most_specific_compatible_shape, others, self)

    def assert_is_fully_defined(self) -> None:
        """Raises ShapeError (a ValueError) unless every size is an int."""
        if not self.is_fully_defined():
            fail(
                ShapeError,
                f"the shape {self} has sizes that are not known",
                fix="give every size in the TensorSpec",
            )

    def assert_same_rank(self, other: ShapeLike | None) -> None:
        """Raises ShapeError (a ValueError) if both ranks are known and differ."""
        other = TensorShape(other)
        if None not in (self.rank, other.rank) and self.rank != other.rank:
            fail(
                ShapeError,
                f"the shape {self} has rank {self.rank}, and {other} has rank {other.rank}",
                fix="use tg.reshape, tg.expand_dims or tg.squeeze",
            )

    def assert_has_rank(self, rank: int) -> None:
        """Raises ShapeError (a ValueError) if the rank is known to differ from `rank`."""
        if self.rank not in (None, rank):
            _refuse_rank(self, str(rank))

    def with_rank(self, rank: int) -> TensorShape:
        """The shape itself, or one of open sizes if the rank is unknown. Raises ShapeError if the
        rank is known to differ."""
        self.assert_has_rank(rank)
        return TensorShape([None] * rank) if self.rank is None else self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """The shape itself. Raises ShapeError if it is known to have fewer axes than `rank`."""
        if self.rank is not None and self.rank < rank:
            _refuse_rank(self, f"at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """The shape itself. Raises ShapeError if it is known to have more axes than `rank`."""
        if self.rank is not None and self.rank > rank:
            _refuse_rank(self, f"at most {rank}")
        return self

    def concatenate(self, other: ShapeLike | None) -> TensorShape:
        """The axes of this shape, then those of `other`."""
        other = TensorShape(other)
        if self.variable is not None or other.variable is not None:
            return TensorShape(None)
        return _of((*self, *other))

    def _require_rank(self) -> None:
        if self.variable is not None:
            fail(
                ShapeError,
                "TensorShape: the rank is unknown",
                fix="give the rank in the TensorSpec, such as tg.TensorSpec([None, None])",
            )

    def __len__(self) -> int:
        self._require_rank()
        return tuple.__len__(self)

    def __iter__(self) -> Iterator[int]:
        self._require_rank()
        return tuple.__iter__(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> TensorShape: ...
    def __getitem__(self, index: Any) -> Any:
        self._require_rank()
        found = tuple.__getitem__(self, index)
        return _of(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def __bool__(self) -> bool:
        return self.variable is None and tuple.__len__(self) > 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TensorShape):
            return self.variable == other.variable and tuple.__eq__(self, other)
        if other is None:
            return self.variable is not None
        if isinstance(other, (int, np.integer, np.ndarray, Dim)):  # 3 stands for [3]
            other = np.atleast_1d(other) if isinstance(other, np.ndarray) else (other,)
        if isinstance(other, (tuple, list, np.ndarray)):
            return self.variable is None and tuple.__eq__(self, tuple(other))
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.variable) if self.variable is not None else tuple.__hash__(self)

    def __repr__(self) -> str:
        return f"TensorShape({None if self.variable is not None else list(self)})"

    def __str__(self) -> str:
        return "<unknown>" if self.variable is not None else tuple.__repr__(self)

    def __reduce__(self) -> Any:
        return TensorShape, (None if self.variable is not None else tuple(self),)


def shape_of(shape: Shape) -> TensorShape:
    """The TensorShape of a tensor's shape, without checks."""
    return TensorShape(shape) if isinstance(shape, ShapeVariable) else _of(shape)


def asked_shape(shape: Shape) -> TensorShape:
    """The TensorShape handed to a user for a tensor's shape."""
    return TensorShape(shape) if isinstance(shape, ShapeVariable) else _of(map(_asked, shape))


class AskedSize(Dim):
    """An open size in a user's hands, who may test whether it equals another.

    While it is unknown the answer is no, unless the sizes must be equal. A later run may contradict
    that answer, so it is recorded, and such a run is refused or traced separately.
    """

    __slots__ = ("_home",)

    #: Records two sizes that were assumed to differ; tracing installs it.
    note_apart: ClassVar[Callable[[Any, Any], None]] = lambda left, right: None
    #: What is being traced, with all that it calls; None outside. Tracing installs it.
    home: ClassVar[Any] = staticmethod(lambda: None)
    #: Whether what is being traced has the open sizes of these names. Tracing installs it.
    has_names: ClassVar[Callable[[Set[str]], bool]] = staticmethod(lambda names: True)

    __hash__ = Dim.__hash__

    def __init__(self, terms: Any) -> None:
        super().__init__(terms)
        self._home = AskedSize.home()

    def plain(self) -> Dim:
        """The Dim, for use in a graph. Raises TraceError for a size of another graph: the name
        means another size in this one."""
        home = AskedSize.home()
        found = {name for name in self.names() if name.startswith("?")}
        if self._home is home:
            is_elsewhere = home is not None and not AskedSize.has_names(self.names() - found)
        else:
            is_elsewhere = self._home is not None or bool(found)
        if is_elsewhere:
            where = "and only its runs know it" if found else "where alone it is known"
            fact = f"the size {self} belongs to a function traced before, {where}"
            fix = "take the size from a tensor of this function, or return the tensor that has it"
            if all(name.startswith("$") for name in self.names()):
                fact = f"the size {self} is that of a Variable that this function has not read"
                fix = "take it from the value: tg.shape(v)[0], or v.read_value().shape[0]"
            fail(TraceError, fact, fix=fix)
        return Dim(self.terms)

    def __eq__(self, other: object) -> bool:
        if Dim.__eq__(self, other):
            if isinstance(other, AskedSize) and other._home is not self._home:
                _check_asked(self, other)
            return True
        if isinstance(other, (Dim, int, np.integer)) and not isinstance(other, bool):
            lowest, highest = bounds(self - other)
            if not lowest <= 0 <= highest:
                _note_positive(self - other)
            elif AskedSize.home() is not None:
                _note_apart(plain(self), plain(other) if isinstance(other, Dim) else int(other))
        return False

    def __lt__(self, other: Any) -> bool:
        _note_positive(self - other)
        return Dim.__lt__(self, other)

    def __gt__(self, other: Any) -> bool:
        _note_positive(self - other)
        return Dim.__gt__(self, other)

    def __bool__(self) -> bool:
        return self != 0

    def __reduce__(self) -> Any:
        return AskedSize, (self.terms,)


def _asked(size: Any) -> Any:
    return AskedSize(size.terms) if isinstance(size, Dim) else size


def _arithmetic(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def computed(self: AskedSize, *others: Any) -> Any:
        result = _asked(method(self, *others))
        if isinstance(result, AskedSize):
            homes = [x._home for x in (self, *others) if isinstance(x, AskedSize)]
            result._home = next((x for x in homes if x is not result._home), result._home)
        return result

    return computed


for _name in ("add", "radd", "sub", "rsub", "neg", "mul", "rmul", "pow"):
    setattr(AskedSize, f"__{_name}__", _arithmetic(getattr(Dim, f"__{_name}__")))
for _name in ("floordiv", "rfloordiv", "mod", "rmod"):
    setattr(AskedSize, f"__{_name}__", _arithmetic(getattr(Dim, f"__{_name}__")))


def _check_asked(*sizes: Any) -> None:
    """Refuses to compare a size of another function by its name, where the user asks."""
    if AskedSize.home() is not None and _is_asked_by_user():
        plain(sizes)


def _note_apart(left: Any, right: Any) -> None:
    if _is_asked_by_user():
        AskedSize.note_apart(left, right)


def _note_positive(size: Any) -> None:
    """Records that an answer holds only where no size is 0; sizes of a saved model may be 0."""
    if isinstance(size, Dim) and _is_asked_by_user():
        for name in sorted(size.names()):
            AskedSize.note_apart(Dim.named(name), 0)


def _is_asked_by_user() -> bool:
    """Whether the comparison is in the user's code rather than ours."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, *stand_for_users):
        frame = frame.f_back
    return frame is not None and not is_ours(frame.f_code.co_filename)


def _of(sizes: Iterable[Any]) -> TensorShape:
    return tuple.__new__(TensorShape, sizes)


def _entry(size: Any) -> Any:
    """An entry of a TensorShape: an int, a symbolic size, a name, or None."""
    if size is None or isinstance(size, Dim):
        return size
    if isinstance(size, str) and not size.startswith(("?", "$")):  # names that we give
        return str(Dim.named(size))
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size >= 0:
        return int(size)
    _refuse(size, "an int of zero or more", fix="give an int, None for an open size, or its name")


def _refuse(value: Any, wanted: str, fix: str) -> NoReturn:
    fact = f"TensorShape: {wanted} is needed, and {shown(value)} was given"
    fail(ShapeError, fact, fix=fix)


def _refuse_rank(shape: TensorShape, wanted: str) -> NoReturn:
    fail(
        ShapeError,
        f"the shape {shape} has rank {shape.rank}, and it must have rank {wanted}",
        fix="use tg.reshape, tg.expand_dims or tg.squeeze",
    )


def _may_be_equal(left: Any, right: Any) -> bool:
    return left == right or not (type(left) is int and type(right) is int)


#: How to import the module of layouts, which is on a higher floor.
_above: dict[str, Callable[[], Any]] = {}


def set_layouts(opened: Callable[[], Any]) -> None:
    """Registers the function that imports the module of layouts."""
    _above["layouts"] = opened


def layout_of_op(op: Any) -> Layout:
    """The layout that a `with_layout` op states."""
    return _above["layouts"]().layout_of_op(op)


class TensorSpec:
    """The type of an argument: a shape, whose sizes may be open, a dtype, and a name.

    - `shape`: ints; None for an open size; a string for a named open size, which is the same
      wherever the name appears, and may be 0 if the name begins with `_`: a graph that is saved is
      used as it was traced. The shape None leaves the rank open too.
    - `dtype`: anything that names a data type.
    - `name`: the argument's name in dumps and signatures.
    - `layout`: in an `input_signature`, how the argument is sharded over the devices of a mesh, see
      `tg.distribute.Layout`: each call sends every device its part of the argument.

    Raises ValueError for a layout that does not fit the shape.

    >>> tg.TensorSpec([None, 2], name="inp")
    TensorSpec(shape=(None, 2), dtype=tg.float32, name='inp')
    """

    __slots__ = ("_dtype", "_layout", "_name", "_shape")

    def __init__(
        self,
        shape: Sequence[int | np.integer[Any] | Dim | str | None]
        | np.ndarray[Any, Any]
        | int
        | ShapeVariable
        | None,
        dtype: DTypeLike = float32,
        name: str | None = None,
        layout: LayoutLike | None = None,
    ) -> None:
        self._shape = TensorShape(shape)
        self._dtype = as_dtype(dtype)
        self._name = name
        self._layout: Layout | None = None
        if layout is not None:
            layouts = _above["layouts"]()
            self._layout = layouts.as_layout(layout, self._shape.rank or 0)
            layouts.check_layout("tg.TensorSpec", self.open_type, self._layout)

    @property
    def shape(self) -> TensorShape:
        return self._shape

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def layout(self) -> Layout | None:
        """The declared sharding of the argument over devices, if any."""
        return self._layout

    @property
    def open_type(self) -> TensorType:
        """The type of the arguments that fit, with one name for all open sizes."""
        if self._shape.rank is None:
            return TensorType(self._dtype, ShapeVariable("s"))
        sizes = (size if isinstance(size, int) else Dim.named("d") for size in self._shape)
        return TensorType(self._dtype, tuple(sizes))

    @classmethod
    def from_tensor(cls, tensor: Described, name: str | None = None) -> TensorSpec:
        """The spec that describes a tensor, a Variable or an array.

        >>> tg.TensorSpec.from_tensor(tg.zeros([2, 3]))
        TensorSpec(shape=(2, 3), dtype=tg.float32, name=None)
        """
        return cls(tensor.shape, tensor.dtype, name or getattr(tensor, "name", None))

    @classmethod
    def from_spec(cls, spec: TensorSpec, name: str | None = None) -> TensorSpec:
        """`spec` under another name."""
        return cls(spec.shape, spec.dtype, name or spec.name, spec.layout)

    def is_compatible_with(self, spec_or_tensor: TensorSpec | Tensor | Variable) -> bool:
        """Whether a value with that `shape` and `dtype` fits.

        >>> tg.TensorSpec([None, 2]).is_compatible_with(tg.zeros([3, 2]))
        True
        """
        if as_dtype(spec_or_tensor.dtype) is not self._dtype:
            return False
        return self._shape.is_compatible_with(spec_or_tensor.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[TensorShape, DType, str | None, Layout | None]:
        return self._shape, self._dtype, self._name, self._layout

    def __repr__(self) -> str:
        shape, dtype, name = self._shape, self._dtype, self._name
        layout = "" if self._layout is None else f", layout={self._layout!r}"
        return f"TensorSpec(shape={shape}, dtype={dtype!r}, name={name!r}{layout})"

    def __reduce__(self) -> Any:
        return TensorSpec, self._parts()


class IndexedSlices(NamedTuple):
    """Rows of a tensor and their indices: gradients of some rows, for optimizers, and updates, for
    the scatter methods of Variables.

    `values[k]` belongs to row `indices[k]`; as a tensor, values of one row add up, and the other
    rows of the `dense_shape` are 0.

    >>> v = tg.Variable([[1.0], [2.0], [3.0]])
    >>> gradient = tg.IndexedSlices(values=[[1.0], [1.0]], indices=[0, 0])
    >>> _ = tg.optimizers.SGD(0.25).apply_gradients([(gradient, v)])
    >>> v.numpy().tolist()
    [[0.5], [2.0], [3.0]]
    """

    values: Any
    indices: Any
    dense_shape: Any = None


__all__ = ["IndexedSlices", "TensorShape", "TensorSpec"]
