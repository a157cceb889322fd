"""TensorArray: numbered elements of one dtype, written one by one, also in loops.

An array is a value: each write returns a new one. Elements at known indices are kept individually.
Elements written at an index known only at run time go into one buffer, with a flag for each element
that has been written; when an array becomes the state of a loop, all elements move there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.control_passes.ranges import range_of
from tracegraph.core.shapes import (
    Dim,
    Shape,
    ShapeVariable,
    Size,
    element_count,
    maximum,
    same_shape,
)
from tracegraph.core.source import Source, here
from tracegraph.core.tensorshape import TensorShape, shape_of
from tracegraph.core.types import DType, TensorType, as_dtype, bool_, int32
from tracegraph.effects.checks_and_prints import check
from tracegraph.effects.host_calls import declare_result
from tracegraph.errors import (
    DTypeError,
    InvalidArgumentError,
    ShapeError,
    SignatureError,
    TraceError,
    fail,
    message,
    shown,
    warn,
)
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_tensor,
    cast_to,
    has_dtype,
    static_ints,
    static_value,
    to_int32,
)
from tracegraph.ops.broadcast import full
from tracegraph.ops.elementwise import ADD, MAXIMUM, Equal, Less, LessEqual, LogicalNot
from tracegraph.ops.index import Gather, ScatterUpdate, size_value
from tracegraph.ops.reduce import All, Any as AnyOf, Max
from tracegraph.ops.shape import Concatenate, Reshape, slice_axis, with_size, with_sizes
from tracegraph.tracing.index_checks import (
    check_at_run_time,
    checks_at_run_time,
    refuse_outside,
    value_now,
)
from tracegraph.tracing.trace import current_trace, is_in_step

if TYPE_CHECKING:
    from tracegraph.typing import DTypeLike, ShapeLike, TensorLike

#: The largest index.
_LARGEST = 2**31 - 1


class TensorArray:
    """Elements of one dtype that are written one by one, also in loops.

    - `dtype`: of the elements.
    - `size`: their number, an integer that is known while tracing.
    - `dynamic_size`: whether a write past the last element enlarges the array. Where the largest
      size in a loop does not follow from the graph, as from `maximum_iterations`, a `tg.range`, or
      a counter that ends the loop, the loop first runs just to find it.
    - `element_shape`: the shape of the elements, whose sizes may be None. By default it is that of
      the first one.
    - `infer_shape`: whether all elements must have one shape.
    - `clear_after_read`, `tensor_array_name`, `colocate_with_first_write_call`, `name`: accepted,
      and without effect. `handle` and `flow` must be None.

    `write`, `unstack`, `scatter` and `split` return the new array; the old one does not change.
    Elements never written are zeros in `stack` and `concat`, and an error in `read` and `gather`.

    Raises SignatureError (a ValueError) without a size, and InvalidArgumentError (a ValueError) for
    an index that is out of range or is read before it was written, if that is known while
    tracing. Indices known only at run time are checked in functions built with `check_bounds`;
    elsewhere such a write is dropped, and such a read gives zeros.

    >>> squares = tg.TensorArray(tg.int32, size=3)
    >>> for i in range(3):
    ...     squares = squares.write(i, i * i)
    >>> squares.stack().numpy()
    array([0, 1, 4], dtype=int32)
    """

    __slots__ = (
        *("_buffer", "_declared", "_dtype", "_infer_shape", "_is_dynamic", "_own_size"),
        *("_left", "_rows", "_written", "grows", "has_room"),
    )

    #: The elements at known indices that were written since the buffer was created.
    _rows: dict[int, Tensor]
    #: Where a write to this array returned another one; None if that never happened.
    _left: Source | None
    #: The elements in one tensor, and flags for those written; None until it is needed.
    _buffer: Any
    _written: Any
    #: The size of an array without a buffer, or of dynamic size; it may be a tensor.
    _own_size: Any
    #: Whether it is the state of a loop, which ensures that the buffer is large enough.
    grows: bool
    #: Whether a run of the loop, just for that, has found how large its buffer must be.
    has_room: bool
    #: The element shape that the user declared.
    _declared: TensorShape

    @api_boundary
    def __init__(
        self,
        dtype: DTypeLike,
        size: TensorLike | None = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: object = None,
        flow: object = None,
        infer_shape: bool = True,
        element_shape: ShapeLike | None = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if handle is not None or flow is not None:
            fail(
                SignatureError,
                "TensorArray: handle and flow belong to TensorFlow's arrays",
                fix="leave them out, and use the array that the last write returned",
            )
        self._dtype = as_dtype(dtype)
        self._own_size = _as_size(size)
        self._is_dynamic = bool(dynamic_size)
        self._infer_shape = infer_shape
        self._declared = TensorShape(element_shape)
        self._rows = {}
        self._buffer = self._written = self._left = None
        self.grows = self.has_room = False

    # Properties.

    @property
    def dtype(self) -> DType:
        """The data type of the elements."""
        return self._dtype

    @property
    def dynamic_size(self) -> bool:
        """Whether a write past the last element enlarges the array."""
        return self._is_dynamic

    @property
    def element_shape(self) -> TensorShape:
        """The shape of the elements, as far as it is known.

        >>> tg.TensorArray(tg.float32, size=2).write(0, [1.0, 2.0]).element_shape
        TensorShape([2])
        """
        if not self._infer_shape or _leaves_open(self._declared):
            return self._declared
        if not isinstance(self._buffer, Tensor) and not self._rows:
            return self._declared
        return shape_of(self.element_type)

    @api_boundary
    def size(self, name: str | None = None) -> Tensor:
        """The number of elements, an int32 scalar."""
        return _as_index(self._size)

    def __repr__(self) -> str:
        return f"<tg.{self._text()}>"

    @property
    def _size(self) -> Any:
        """The number of elements: an int, a Dim, or for a dynamic array a tensor."""
        if self._is_dynamic or not isinstance(self._buffer, Tensor):
            return self._own_size
        return self._buffer.type.shape[0]

    def _text(self) -> str:
        size = "?" if isinstance(self._size, Tensor) else self._size
        more = " or more" if self._is_dynamic else ""
        shape = self.element_shape
        return (
            f"{type(self).__name__}({self._dtype.name}, size={size}{more}, element_shape={shape})"
        )

    # Single elements.

    @api_boundary
    def write(self, index: TensorLike, value: TensorLike, name: str | None = None) -> TensorArray:
        """The array with `value` at `index`, an integer scalar.

        Raises DTypeError or ShapeError for a value that is not an element, and InvalidArgumentError
        for an index that is out of range.
        """
        array, x = self._taking("write", value)
        at = _index("write", index)
        place = _known(at)
        if place is None or not isinstance(self._size, int):
            return array._written_anywhere("write", at, x)
        array._check_place("write", place, is_written=True)
        array._rows = {**self._rows, place: x}
        array._own_size = max(self._size, place + 1)
        return array

    @api_boundary
    def read(self, index: TensorLike, name: str | None = None) -> Tensor:
        """The element at `index`, an integer scalar.

        Raises InvalidArgumentError for one that is out of range, or that was not written.
        """
        at = _index("read", index)
        place = _known(at)
        if place is not None and place in self._rows:
            return self._rows[place]
        if place is not None and isinstance(self._size, int):
            self._check_place("read", place)
        return self._read_from_buffer("read", at)

    def _read_from_buffer(self, name: str, at: Tensor) -> Tensor:
        """The elements at indices that are in range but may not have been written."""
        array = self._merged(name)
        array._check_read(name, at)
        return Gather(0, 0, False)(array._buffer, at)

    # Several elements.

    @api_boundary
    def stack(self, name: str | None = None) -> Tensor:
        """All elements, along a new first axis. Elements never written are zeros."""
        array = self._merged("stack")
        if self._left is not None and self._buffer is None and not self._rows:
            self._tell_of_lost_write(self._left)
        return _first_rows(array._buffer, array._size)

    @api_boundary
    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """The elements at several indices, along a new first axis.

        Raises InvalidArgumentError for one that is out of range, or that was not written.
        """
        at = _indices("gather", indices)
        known = value_now(at)
        if known is not None and isinstance(self._size, int):
            for place in known.tolist():
                if place not in self._rows:
                    self._check_place("gather", place)
        return self._read_from_buffer("gather", at)

    @api_boundary
    def concat(self, name: str | None = None) -> Tensor:
        """The elements, concatenated along their first axis. Elements never written are zeros."""
        if self._is_uneven():
            rows = [self._rows[place] for place in sorted(self._rows)]
            return Concatenate(0)(*rows)
        x = self.stack()
        shape = x.type.shape
        if len(shape) == 1:
            fact = f"TensorArray.concat: the elements are scalars, {self._text()}"
            fail(ShapeError, fact, fix="use stack()")
        return Reshape((element_count(shape[:2]), *shape[2:]))(x)

    @api_boundary
    def unstack(self, value: TensorLike, name: str | None = None) -> TensorArray:
        """The array whose elements are the rows of `value`.

        Raises ShapeError if their number differs from the size of the array.
        """
        array, x = self._taking("unstack", value, rows=True)
        array._set_size("unstack", x.type.shape[0])
        if isinstance(array._size, (int, Dim)):
            x = with_size(x, 0, array._size)
        array._rows, array._buffer = {}, x
        array._written = full(1, TensorType(bool_, x.type.shape[:1]))
        return array

    @api_boundary
    def scatter(
        self, indices: TensorLike, value: TensorLike, name: str | None = None
    ) -> TensorArray:
        """The array with row k of `value` at `indices[k]`.

        Raises InvalidArgumentError for an index that is out of range.
        """
        at = _indices("scatter", indices)
        array, x = self._taking("scatter", value, rows=True)
        count = at.type.shape[0]
        if same_shape((count,), x.type.shape[:1]) is None:
            fail(
                ShapeError,
                f"TensorArray.scatter: there are {count} indices and {x.type.shape[0]} elements",
                operands=[operand_text(at), operand_text(x)],
                fix="give one element for each index",
            )
        known = value_now(at)
        if known is None or not isinstance(self._size, int):
            return array._written_anywhere("scatter", at, x)
        for k, place in enumerate(known.tolist()):
            array = array.write(place, Reshape(x.type.shape[1:])(slice_axis(x, 0, k, k + 1)))
        return array

    @api_boundary
    def split(self, value: TensorLike, lengths: TensorLike, name: str | None = None) -> TensorArray:
        """The array of consecutive blocks of rows of `value`: element k has `lengths[k]` rows.

        The lengths must be known while tracing. Raises ShapeError for lengths that do not add up.
        """
        x = as_tensor(value, None if has_dtype(value) else self._dtype)
        counts = static_ints(lengths, "TensorArray.split: the lengths")
        rows = x.type.shape[0] if isinstance(x.type.shape, tuple) and x.type.shape else None
        if rows is None or not all(isinstance(n, int) for n in counts) or sum(counts) != rows:
            fail(
                ShapeError,
                f"TensorArray.split: the lengths {list(counts)} do not divide {x.type}",
                operands=[operand_text(x)],
                fix="give lengths that add up to the first size",
            )
        array = self._copy()
        array._set_size("split", len(counts))
        if len(set(counts)) > 1 and self._declared.rank is None:
            array._declared = shape_of((None, *x.type.shape[1:]))  # type: ignore[arg-type]
        array._rows, array._buffer, array._written = {}, None, None
        start = 0
        for place, count in enumerate(counts):
            array = array.write(place, slice_axis(x, 0, start, start + count))
            start += count
        return array

    @api_boundary
    def identity(self) -> TensorArray:
        """An array of the same elements."""
        return self._copy()

    def close(self, name: str | None = None) -> None:
        """Does nothing: an array is a value, and takes memory for as long as something holds it."""

    # Variants of the array.

    def _copy(self) -> TensorArray:
        array = object.__new__(type(self))
        for name in TensorArray.__slots__:
            setattr(array, name, getattr(self, name))
        return array

    def growing(self) -> TensorArray:
        """The same array, as the state of a loop."""
        array = self._copy()
        array.grows = True
        return array

    def joined(self) -> TensorArray:
        """The same array, with all elements in its buffer, if it has any."""
        if not self._rows and (self._buffer is not None or not self.has_buffer):
            return self
        return self._merged("stack")

    def carried(self) -> TensorArray:
        """The same array as tensors only: a buffer, and the size if it may change."""
        array = self.joined()._copy()
        if self._is_dynamic and isinstance(self._own_size, (int, Dim)):
            array._own_size = _as_index(self._own_size)
        return array

    def measured(self) -> TensorArray:
        """The same array, with its size as a number if it is the same in all runs."""
        found = range_of(self._own_size) if isinstance(self._own_size, Tensor) else None
        is_known = found is not None and found[0] == found[1]
        return self.after_loop(found[0], self.grows) if is_known and found else self

    def check_size(self) -> None:
        """Makes a run fail if the array has outgrown its buffer."""
        holds = LessEqual()(_as_index(self._own_size), _as_index(self.capacity))
        check(
            holds,
            f"a loop has made {self._text()} larger than it did when it ran to find the size",
            (),
            "make it with size= and without dynamic_size: the loop depends on rounding",
        )

    def emptied(self) -> TensorArray:
        """An array of the same kind with nothing written."""
        array = self._copy()
        if self._is_dynamic:
            array._own_size = 0
        elif not isinstance(self._own_size, int):
            array._own_size = self._size
        array._rows, array._buffer, array._written = {}, None, None
        return array

    def after_loop(self, size: int | None, grows: bool) -> TensorArray:
        """The same array after a loop, with this size if it is known."""
        array = self._copy()
        array._own_size = array._own_size if size is None else size
        array.grows, array.has_room = grows, False
        return array

    def begun_again(self, grows: bool, has_room: bool) -> TensorArray:
        """The same array before a loop that is traced again, with the buffer that was found."""
        array = self.after_loop(None, grows)
        array.has_room = has_room
        return array

    def _set_size(self, name: str, size: Size) -> None:
        """Adopts the size of a value that replaces all elements."""
        if self._is_dynamic:
            self._own_size = size
        elif same_shape((self._size,), (size,)) is None:
            fail(
                ShapeError,
                f"TensorArray.{name}: {size} elements are given to {self._text()}",
                fix=f"make it with size={size}, or with dynamic_size=True",
            )

    def _taking(self, name: str, value: Any, rows: bool = False) -> tuple[TensorArray, Tensor]:
        """The array prepared to store an element, or the rows of a tensor; and the converted
        value."""
        x = as_tensor(value, None if has_dtype(value) else self._dtype)
        if x.dtype is not self._dtype:
            fail(
                DTypeError,
                f"TensorArray.{name}: {x.type} is given to {self._text()}",
                operands=[operand_text(x)],
                fix=f"convert it: tg.cast(x, tg.{self._dtype.name})",
            )
        if not rows:
            declare_result(x, TensorShape(self._shape_of_unknown()))
        if rows and x.type.shape == ():
            fail(
                ShapeError,
                f"TensorArray.{name}: {x.type} has no rows",
                operands=[operand_text(x)],
                fix="give a tensor with a first axis, or use write",
            )
        shape = x.type.shape[1:] if rows else x.type.shape
        if not self.element_shape.is_compatible_with(shape_of(shape)):
            fail(
                ShapeError,
                f"TensorArray.{name}: an element of the shape {shape_of(shape)} is given to "
                f"{self._text()}",
                operands=[operand_text(x)],
                fix="give all elements one shape, or make the array with infer_shape=False",
            )
        if isinstance(shape, tuple) and self.element_shape.rank is not None:
            pairs = zip(shape, self.element_shape, strict=True)
            sizes = [known if isinstance(known, int) else own for own, known in pairs]
            x = with_sizes(x, (*(x.type.shape[:1] if rows else ()), *sizes))
        array, self._left = self._copy(), here()
        array._left = None
        return array, x

    def _shape_of_unknown(self) -> Shape:
        """The assumed shape of an element of unknown rank, such as a Python function's result in a
        loop: that of the other elements, or (). Every call checks it."""
        known = tuple(self.element_shape) if self.element_shape.rank is not None else ()
        return known if all(type(size) is int for size in known) else ()

    # Indices.

    def _check_place(self, name: str, place: int, is_written: bool = False) -> None:
        """Raises InvalidArgumentError for a known index into an array of known size that is out of
        range, or that is read but was not written."""
        high = _LARGEST if is_written and self._is_dynamic else self._size - 1
        self._refuse_outside(name, np.asarray(place), high)
        if not is_written and self._buffer is None and place not in self._rows:
            self._refuse_unwritten(name, place)

    def _check_read(self, name: str, at: Tensor) -> None:
        """Refuses indices that are out of range or were not written: now if that is known, else at
        every run of a function that checks its bounds. All elements are in the buffer."""
        places, written, size = value_now(at), value_now(self._written), self._known_size()
        if places is not None and size is not None:
            self._refuse_outside(name, places, size - 1)
            if written is not None:
                missing = np.atleast_1d(places)[~np.atleast_1d(written[places])]
                if missing.size:
                    self._refuse_unwritten(name, int(missing[0]))
                return
        elif checks_at_run_time():
            self._check_at_run_time(name, at, self._size)
        if checks_at_run_time() and not self.grows:
            fact, fix = self._unwritten_text(name, "an index")
            _check(All(None)(Gather(0, 0, False)(self._written, at)), fact, fix)

    def _known_size(self) -> int | None:
        """The size, if it is known; at top level all sizes are."""
        size = self._size
        known = value_now(size) if isinstance(size, Tensor) else size
        return None if known is None or isinstance(known, Dim) else int(known)

    def _refuse_outside(self, name: str, places: np.ndarray, high: int) -> None:
        refuse_outside(places, 0, high, *self._range_texts(name, high), ())

    def _check_at_run_time(self, name: str, at: Tensor, size: Any) -> None:
        """Makes a run fail for an index that is out of range."""
        high = _LARGEST if isinstance(size, Tensor) else size - 1
        check_at_run_time(at, 0, high, *self._range_texts(name, high))
        if isinstance(size, Tensor):
            fact = f"TensorArray.{name}: an index is out of range for {self._text()}"
            _check(Less()(_last(at), size), fact, "read what was written")

    def _range_texts(self, name: str, high: Any) -> tuple[str, str]:
        fix = f"use indices from 0 to {high}" if high != -1 else "write something first"
        if high is _LARGEST:
            fix = "use indices from 0 on"
        elif name in ("write", "scatter"):
            fix = f"use indices below {self._size}, or make it with dynamic_size=True"
        return f"TensorArray.{name}: index {{}} is out of range for {self._text()}", fix

    def _refuse_unwritten(self, name: str, place: int) -> NoReturn:
        text, fix = self._unwritten_text(name, f"index {place}")
        fail(InvalidArgumentError, text, fix=fix)

    def _unwritten_text(self, name: str, place: str) -> tuple[str, str]:
        fact = f"TensorArray.{name}: {place} of {self._text()} has not been written"
        return fact, "write it first, also with zeros"

    # The buffer.

    @property
    def has_buffer(self) -> bool:
        """Whether the shape of the elements is known, as a buffer requires."""
        if self._buffer is not None or self._rows:
            return not self._is_uneven()
        return self._declared.is_fully_defined()

    @property
    def capacity(self) -> Size:
        """How many elements the buffer of the array has."""
        base = 0 if self._buffer is None else self._buffer.type.shape[0]
        return base if isinstance(self._size, Tensor) else maximum(base, self._size)

    @property
    def element_type(self) -> Shape:
        """The shape of the elements of an array that has a buffer."""
        if self._buffer is not None:
            return self._buffer.type.shape[1:]
        if self._rows:
            return next(iter(self._rows.values())).type.shape
        return tuple(self._declared)

    def _is_uneven(self) -> bool:
        shapes = [x.type.shape for x in self._rows.values()]
        if self._buffer is not None:
            shapes.append(self._buffer.type.shape[1:])
        return any(same_shape(shapes[0], other) is None for other in shapes[1:])

    def with_buffer(self, shape: Shape, capacity: Size) -> TensorArray:
        """The array with all elements in a buffer for `capacity` elements of this shape."""
        array = self._copy()
        buffer = _base(self._buffer, TensorType(self._dtype, (capacity, *shape)))
        written = _base(self._written, TensorType(bool_, (capacity,)))
        if self._rows:
            true = full(1, TensorType(bool_, ()))
            written = _with_rows(written, dict.fromkeys(self._rows, true))
            buffer = _with_rows(buffer, self._rows)
        array._rows, array._buffer, array._written = {}, buffer, written
        return array

    def _merged(self, name: str) -> TensorArray:
        """The array with all its elements in the buffer. Raises InvalidArgumentError if their shape
        is not known, and ShapeError if they have several."""
        if self._buffer is not None and not self._rows:
            return self
        if self.has_buffer:
            return self.with_buffer(self.element_type, self.capacity)
        if self._rows:
            shapes = dict.fromkeys(str(x.type) for x in self._rows.values())
            fail(
                ShapeError,
                f"TensorArray.{name}: the elements have several shapes: {', '.join(shapes)}",
                fix="read them one by one, or use concat()",
            )
        fail(
            InvalidArgumentError,
            f"TensorArray.{name}: nothing has been written to {self._text()}, so the shape of its "
            "elements is not known",
            fix="keep what a write returns, as in array = array.write(index, value), or make the "
            "array with element_shape=",
        )

    def _tell_of_lost_write(self, place: Source) -> None:
        text = message(
            f"TensorArray.stack: the array is as it was before the write at {place}, and has only "
            "zeros: a write returns another array",
            source=here(),
            fix="keep it: array = array.write(index, value)",
        )
        warn(text)

    def _written_anywhere(self, name: str, at: Tensor, x: Tensor) -> TensorArray:
        """The array with one element, or the rows of x, at indices known only at run time."""
        shape = x.type.shape[at.ndim :]
        array = self._with_room_for(name, at, shape)
        capacity = array._buffer.type.shape[0]
        high = _LARGEST if array._is_dynamic else capacity - 1
        if (places := value_now(at)) is not None:
            self._refuse_outside(name, places, high)
        elif checks_at_run_time():
            self._check_at_run_time(name, at, high + 1)
        true = full(1, TensorType(bool_, at.type.shape))
        array._buffer = _updated(array._buffer, at, x)
        array._written = _updated(array._written, at, true)
        if array._is_dynamic:
            behind = ADD(_last(at), as_tensor(1, int32))
            array._own_size = MAXIMUM(_as_index(array._size), behind)
        return array

    def _with_room_for(self, name: str, at: Tensor, shape: Shape) -> TensorArray:
        """The array with a buffer large enough for the indices `at`."""
        capacity = self.capacity
        if self._is_dynamic and not self.grows:
            found = range_of(at) if at.ndim == 0 else None
            value = value_now(at)
            if value is not None and value.size:
                found = (int(value.min()), int(value.max()))
            behind = self._size_for(name, at) if found is None else found[1] + 1
            capacity = maximum(capacity, behind)
        elif self._is_dynamic:
            capacity = maximum(capacity, 1)
        return self.with_buffer(shape, capacity)

    def _size_for(self, name: str, at: Tensor) -> Size:
        """The size that has room for indices of which only the run knows how large they are."""
        if is_in_step() and not isinstance(self.capacity, Dim):
            # What a step makes keeps its shape; most often the new array is dropped.
            reason = "the index is known only when the graph runs, and the array is not state"
            fix = f"keep what {name} returns: array = array.{name}(…); or make it with size="
            refuse_growth(f"TensorArray.{name}", reason, fix)
        behind = ADD(_last(at), as_tensor(1, int32))
        return size_of(f"TensorArray.{name}", MAXIMUM(behind, as_tensor(0, int32)))


class TensorList(TensorArray):
    """A list of tensors of one type, to which a loop of the graph appends. After the loop the list
    has a length, elements and an order like any other, and `tg.stack` and `tg.concat` accept it."""

    __slots__ = ()

    @staticmethod
    def of(items: Sequence[Any], dtype: DType, shape: TensorShape) -> TensorList:
        """The list of these elements. If there are none, it is one of elements of this shape."""
        is_known = not items and shape.is_fully_defined()
        known = shape if is_known else None
        made = TensorList(dtype, size=0, dynamic_size=True, element_shape=known)
        for item in items:
            made = made.appended(item)
        return made

    def appended(self, value: Any) -> TensorList:
        """The list with one more element."""
        return self.write(self._own_size, value)  # type: ignore[return-value]

    def append(self, value: Any) -> None:
        """Appends an element."""
        self._become(self.appended(value))

    def extended(self, values: Iterable[Any]) -> TensorList:
        """The list with further elements."""
        if isinstance(values, TensorList) and not values.has_known_length:
            if self.grows:
                if values._own_size is self._own_size:
                    self._refuse_in_loop("is added to itself, or repeated,")
                self._refuse_in_loop("gets all of another one")
            return self._followed_by(values)
        made = self
        for value in [*values]:
            made = made.appended(value)
        return made

    @staticmethod
    def _refuse_in_loop(fact: str) -> NoReturn:
        fail(
            SignatureError,
            f"a list to which a loop appends {fact} in that loop, which only appends new items",
            fix="do it after the loop, or write the items to a tg.TensorArray of fixed size",
        )

    def _followed_by(self, values: TensorList) -> TensorList:
        """The list and the elements of another one, of which only the run knows how many it has."""
        if self._known_length() == 0:
            return values._copy()  # type: ignore[return-value]
        made = self._copy()
        made._buffer = Concatenate(0)(self.stack(), values.stack())
        made._written = full(1, TensorType(bool_, made._buffer.type.shape[:1]))
        made._own_size, made._rows = ADD(self.size(), values.size()), {}
        return made  # type: ignore[return-value]

    def extend(self, values: Iterable[Any]) -> None:
        """Appends further elements."""
        self._become(self.extended(values))

    def _become(self, array: TensorArray) -> None:
        for name in TensorArray.__slots__:
            setattr(self, name, getattr(array, name))

    def __iadd__(self, values: Any) -> TensorList:
        self.extend(values)
        return self

    def __add__(self, values: Any) -> Any:
        is_list = isinstance(values, (list, TensorList))
        return self.extended(values) if is_list else NotImplemented

    def __radd__(self, values: Any) -> Any:
        if not isinstance(values, list):
            return NotImplemented
        return TensorList.of(values, self._dtype, self.element_shape).extended(self)

    def __mul__(self, times: Any) -> Any:
        if isinstance(times, (float, np.floating)):
            fail(
                DTypeError,
                f"a list is repeated {times} times; it is one, although a loop appends to it",
                fix=f"multiply its items, as a tensor: tg.stack(xs) * {times}",
            )
        if not isinstance(times, (int, np.integer)):
            return NotImplemented
        made = TensorList.of([], self._dtype, self.element_shape)
        for _ in range(int(times)):
            made = made.extended(self)
        return made

    __rmul__ = __mul__

    def __imul__(self, times: Any) -> TensorList:
        if self.grows:
            self._refuse("`*=`")
        self._become(self * times)
        return self

    def copy(self) -> TensorList:
        """Another list of the same elements."""
        return self._copy()  # type: ignore[return-value]

    def pop(self, index: int = -1) -> Tensor:
        """Removes the last element, and returns it: after the loop, since there it only grows. A
        list that is empty is an error, in a graph when it runs."""
        length = self._known_length()
        if self.grows:  # the largest size of a step would not be that at its end
            self._refuse(".pop()")
        if index != -1 and (length is None or index != length - 1):
            fail(
                SignatureError,
                f".pop({shown(index)}) of a list to which a loop appends, which may only lose its "
                "last item",
                fix="take what is left as a tensor: tg.stack(xs)[1:]",
            )
        fact, fix = "pop from a list that is empty", "where `if xs:` holds, read xs[-1]"
        if length == 0:
            fail(InvalidArgumentError, fact, fix=fix)
        if length is None:
            _check(Less()(as_tensor(0, int32), self.size()), fact, fix)
        value, array = self[-1], self._copy()
        array._own_size = ADD(self.size(), as_tensor(-1, int32)) if length is None else length - 1
        array._rows = {k: x for k, x in self._rows.items() if length is None or k < length - 1}
        self._become(array)
        return value

    def contains(self, value: Any) -> Tensor:
        """Whether a scalar is among the elements. Raises ShapeError for others."""
        if self.element_shape.rank != 0:
            fail(
                ShapeError,
                f"`in` compares scalars, and the elements are those of {self._text()}",
                fix="compare them by tg.reduce_all and tg.reduce_any",
            )
        return AnyOf(None)(as_tensor(self.stack() == value))

    __hash__ = TensorArray.__hash__

    def __eq__(self, other: object) -> Any:
        """Whether it is equal to a list of Python's: a tensor where only the run knows whether it
        is empty, as that one is. Arrays are equal if they are one object."""
        if not isinstance(other, list):
            return NotImplemented
        if (length := self._known_length()) is not None:
            return [*self] == other if length == len(other) else False
        if other:
            fail(
                TraceError,
                "a list to which a loop appends is compared with another one, and its length is "
                "known only when the graph runs",
                fix="compare tensors: tg.stack(x)",
            )
        return Equal()(self.size(), as_tensor(0, int32))

    def __ne__(self, other: object) -> Any:
        is_equal = self.__eq__(other)
        if isinstance(is_equal, Tensor):
            return LogicalNot()(is_equal)
        return is_equal if is_equal is NotImplemented else not is_equal

    @property
    def has_known_length(self) -> bool:
        return self._known_length() is not None

    def _known_length(self) -> int | None:
        """The length, if it is the same in all runs."""
        known = self._known_size()
        if known is None and isinstance(self._own_size, Tensor):
            found = range_of(self._own_size)
            return found[0] if found is not None and found[0] == found[1] else None
        return known

    def __len__(self) -> int:
        return self._length("ask for it as a tensor: tg.shape(tg.stack(xs))[0]")

    def _length(self, fix: str) -> int:
        """The length. Raises TraceError, with this repair, if only runs know it."""
        length = self._known_length()
        if length is None:
            fact = "the length of a list to which a loop appends is known only when the graph runs"
            fail(TraceError, fact, fix=fix)
        return length

    def __iter__(self) -> Iterator[Tensor]:
        length = self._length("take its items in a `for` statement, or as one tensor: tg.stack(xs)")
        return iter([self.read(k) for k in range(length)])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            length = self._length("take them from a tensor: tg.stack(xs)[1:]")
            return [self.read(k) for k in range(length)[index]]
        if isinstance(index, int) and index < 0:
            length = self._known_length()
            index = ADD(self.size(), as_tensor(index, int32)) if length is None else length + index
        return self.read(index)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS_OF_LISTS:
            self._refuse(f".{name}()")
        if name in ("count", "index"):
            fail(
                TraceError,
                f".{name}() compares the items of a list to which a loop appends, and their values "
                "are known only when the graph runs",
                fix="compare them as one tensor: tg.stack(xs) == x",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse("an assignment to an item")

    def __delitem__(self, index: Any) -> None:
        self._refuse("a `del` of an item")

    def _refuse(self, what: str) -> NoReturn:
        fail(
            SignatureError,
            f"{what} changes a list to which a loop appends, and there it only grows by new items",
            fix="for a list of fixed length assign all of it: h = [*h[1:], x]; or write to a "
            "tg.TensorArray",
        )

    def __tracegraph_tensor__(self) -> Tensor:
        return self.stack()


_METHODS_OF_LISTS = ("clear", "insert", "remove", "reverse", "sort")


def refuse_growth(name: str, reason: str, fix: str = "") -> NoReturn:
    """Raises TraceError for a growing array whose final size cannot be determined."""
    fail(
        TraceError,
        f"{name}: the final size of an array of dynamic size is not known, because {reason}",
        fix=fix
        or "make it with size= and without dynamic_size, or bound the loop: "
        "maximum_iterations= of tg.while_loop, or in a `while` or `for` "
        "tg.autograph.experimental.set_loop_options(maximum_iterations=n)",
    )


#: Makes a size from an integer scalar whose value is known only at run time, for the function of
#: this name; `tracegraph.array` sets it.
run_size: list[Callable[[str, Tensor], Size]] = []


def size_of(name: str, n: Tensor) -> Size:
    """The value of an integer scalar as a size; a number if it is known."""
    known = value_now(n)
    return run_size[0](name, n) if known is None else int(known)


def _last(at: Tensor) -> Tensor:
    """The largest of some indices."""
    return at if at.ndim == 0 else Max(None)(at)


def _first_rows(buffer: Tensor, size: Any) -> Tensor:
    """The rows of a buffer that belong to the array; if their number is unknown, the run finds
    it."""
    if isinstance(size, Tensor):
        known = value_now(size)
        found = range_of(size) if known is None else (int(known), int(known))
        if found is None or found[0] != found[1]:
            return buffer[:size]
        size = found[0]
    return buffer if size == buffer.type.shape[0] else slice_axis(buffer, 0, 0, size)


def _base(x: Tensor | None, type: TensorType) -> Tensor:
    """A buffer, zero-padded up to `type`."""
    if x is None:
        return full(0, type)
    missing = type.shape[0] - x.type.shape[0]
    if isinstance(missing, int) and missing == 0:
        return x
    return Concatenate(0)(x, full(0, type.with_shape((missing, *type.shape[1:]))))


def _with_rows(buffer: Tensor, rows: dict[int, Tensor]) -> Tensor:
    """The buffer with some of its rows replaced."""
    parts, behind = [], 0
    wide = Reshape((1, *buffer.type.shape[1:]))
    for place in sorted(rows):
        if behind < place:
            parts.append(slice_axis(buffer, 0, behind, place))
        parts.append(wide(rows[place]))
        behind = place + 1
    if behind != buffer.type.shape[0]:
        parts.append(slice_axis(buffer, 0, behind, buffer.type.shape[0]))
    return parts[0] if len(parts) == 1 else Concatenate(0)(*parts)


def _updated(buffer: Tensor, at: Tensor, x: Tensor) -> Tensor:
    """The buffer with x at one index, or its rows at several; out of range nothing is written."""
    places = Reshape((*at.type.shape, 1))(at)
    return ScatterUpdate(0, 0)(buffer, places, x)


def _check(holds: Tensor, fact: str, fix: str) -> None:
    """Makes a run fail if `holds` is false."""
    trace = current_trace()
    assert trace is not None
    trace.check(holds, fact, (), fix)


def _leaves_open(shape: TensorShape) -> bool:
    """Whether a declared shape allows a size of the elements to vary."""
    return shape.rank is not None and None in tuple(shape)


def _as_size(size: Any) -> Size:
    if size is None:
        fail(
            SignatureError,
            "TensorArray: the argument 'size' is missing",
            fix="give size=n, or size=0 and dynamic_size=True for an array that grows",
        )
    if has_dtype(size) and static_value(as_tensor(size)) is None:
        return size_of("TensorArray", as_tensor(size))
    numbers = static_ints(size, "TensorArray: the size")
    (number, *others) = numbers or (None,)
    is_size = isinstance(number, (int, Dim)) and not isinstance(number, bool) and not others
    if not is_size or (isinstance(number, int) and number < 0):
        fail(
            ShapeError,
            f"TensorArray: the size is {shown(size)}, and it must be one integer of 0 or more",
            fix="give an int",
        )
    return number  # type: ignore[return-value]


def _as_index(size: Any) -> Tensor:
    """A size as an int32 scalar."""
    return size if isinstance(size, Tensor) else size_value(size, int32)


def _index(name: str, index: Any) -> Tensor:
    at = _integers(name, index)
    if at.type.shape != ():
        fail(
            ShapeError,
            f"TensorArray.{name}: the index is {at.type}, and it must be one integer",
            operands=[operand_text(at)],
            fix="use gather or scatter for several",
        )
    return at


def _indices(name: str, indices: Any) -> Tensor:
    at = _integers(name, indices)
    if isinstance(at.type.shape, ShapeVariable) or at.ndim != 1:
        fail(
            ShapeError,
            f"TensorArray.{name}: the indices are {at.type}, and they must be a vector",
            operands=[operand_text(at)],
            fix="give one axis of integers, such as [0, 2]",
        )
    return at


def _integers(name: str, value: Any) -> Tensor:
    at = as_tensor(value)
    if not at.dtype.is_integer and at.type.shape != (0,):
        fail(
            DTypeError,
            f"TensorArray.{name}: an index is {at.type}, and it must be an integer",
            operands=[operand_text(at)],
            fix="convert it: tg.cast(i, tg.int32)",
        )
    return to_int32(at) if at.dtype.is_integer else cast_to(at, int32)


def _known(at: Tensor) -> int | None:
    value = value_now(at)
    return None if value is None else int(value)


# As a nest container.


class ArrayContainer(nest.Container):
    """A TensorArray without its tensors. Its names are those of its leaves: a buffer with flags for
    what was written, and the size if that may change."""

    __slots__ = ()

    @classmethod
    def open(cls, array: TensorArray) -> tuple[nest.Container, Iterable[Any]]:
        names: tuple[str, ...] = ()
        items: list[Any] = []
        array = array.carried() if array.grows else array.joined()
        if array._buffer is not None:
            names, items = ("_buffer", "_written"), [array._buffer, array._written]
        if not isinstance(array._own_size, (int, Dim, type(None))):
            size = array._own_size
            names, items = (*names, "_own_size"), [*items, getattr(size, "number", size)]
        is_size_kept = "_own_size" not in names and (array.dynamic_size or not names)
        kept = (*cls._kept, "_own_size") if is_size_kept else cls._kept
        return cls(type(array), names, state=tuple((x, getattr(array, x)) for x in kept)), items

    _kept = ("_dtype", "_is_dynamic", "_infer_shape", "grows", "_declared")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayContainer):
            return False
        return self.names == other.names and self.state == other.state

    __hash__ = nest.Container.__hash__

    def matches(self, other: nest.Container, check_types: bool = True) -> bool:
        """Whether the tensors belong to arrays of one kind and dtype and, if it is not among them,
        of one size."""
        if not isinstance(other, ArrayContainer):
            return False
        return super().matches(other) and self._kind() == other._kind()

    def _kind(self) -> Any:
        kept = dict(self.state)
        return kept["_dtype"], kept["_is_dynamic"], kept.get("_own_size")

    def build(self, items: Sequence[Any]) -> TensorArray:
        array = object.__new__(self.kind)
        array._rows, array.has_room = {}, False
        array._buffer = array._written = array._own_size = array._left = None
        for name, value in (*self.state, *zip(self.names, items, strict=True)):
            setattr(array, name, value)
        if "_own_size" in self.names and isinstance(array._own_size, int):
            array._own_size = _Number(array._own_size)
        return array


class _Number:
    """Stands in for a size that is a leaf, while leaves are numbered."""

    def __init__(self, number: int) -> None:
        self.number = number


nest.register(TensorArray, ArrayContainer.open)
nest.register(TensorList, ArrayContainer.open)

__all__ = ["TensorArray"]
