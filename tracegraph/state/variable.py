"""Variable: mutable state.

A Variable keeps its value in a single slot, which `eager.slots` reads and writes.
"""

from __future__ import annotations

import enum
import itertools
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from tracegraph.core.settings import device_scope
from tracegraph.core.shapes import Dim, Shape, ShapeVariable, same_shape, same_size
from tracegraph.core.source import here
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import DType, TensorType, as_dtype
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer, materialise_endless, note_assigned
from tracegraph.eager.provenance import remember_assignment
from tracegraph.eager.slots import (
    MemoryPlace,
    Slot,
    contents_of,
    gathered,
    materialised_content,
    note_pending,
    own_content,
    state_lock,
    store,
    store_if_same,
)
from tracegraph.eager.tensor_methods import (
    device_of,
    host_array,
    shape_text,
    tell_tapes,
    value_repr,
)
from tracegraph.errors import (
    DTypeError,
    ShapeError,
    SignatureError,
    TraceError,
    VariableError,
    fact_of,
    fail,
    fix_of,
    shown,
)
from tracegraph.ir.builder import at_top_level, current
from tracegraph.ir.tensor import Node, Reference, Tensor, host_tensor
from tracegraph.operands.conversion import as_tensor, converted, is_divided
from tracegraph.operands.flags import as_flag
from tracegraph.ops.effect import READ
from tracegraph.ops.elementwise import IDENTITY
from tracegraph.ops.shape import EnsureShape, with_rank_of
from tracegraph.state.deferred import waiting
from tracegraph.tracing.initial_values import concrete_initial_value
from tracegraph.tracing.name_scopes import scoped_name, told_name
from tracegraph.tracing.trace import Trace, current_trace, innermost_trace, refuse_creation

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from numpy.typing import NDArray

    from tracegraph.core.tensorshape import IndexedSlices
    from tracegraph.eager.layouts import Layout
    from tracegraph.ir.builder import Builder
    from tracegraph.ir.methods import TensorMethods
    from tracegraph.typing import DTypeLike, LayoutLike, ShapeLike, TensorLike

    class _AssignOptions(TypedDict, total=False):
        use_locking: bool
        name: str | None

else:
    TensorMethods = object

_names = itertools.count()
_numbers = itertools.count()


#: The names of Variables that the user did not name.
_NO_NAME = "Variable"


def is_no_name(name: str) -> bool:
    """Whether a name is a default one, which says only that it names a Variable."""
    return name.rpartition("/")[2] == _NO_NAME


class VariableSynchronization(enum.Enum):
    """When replicas of a Variable are synchronized; only relevant with several replicas."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How replicas of a Variable are combined; only relevant with several replicas."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class VariableReference(Reference["Variable"]):
    """The result of `variable.ref()`: a dict key that saved models and checkpoints can hold."""

    __slots__ = ()


def _inplace(operator: str, method: str = "assign") -> Callable[[Variable, Any], Any]:
    """An in-place operator, which would rebind the Python name: it raises, and names `method`."""

    def refuse(self: Variable, other: Any) -> Any:
        fail(
            VariableError,
            f"`variable {operator} value` would replace the variable {told_name(self)!r} by a "
            "tensor",
            fix=f"use variable.{method}(value), or `variable = variable ...` if a tensor is meant",
        )

    return refuse


class Variable(Slot, TensorMethods):
    """A mutable tensor: `tg.Variable(initial_value, trainable=None, name=None, ...)`.

    - `initial_value`: a tensor, array, number or list, or a function without arguments that
      returns one; Python numbers become float32 and int32.
    - `trainable`: whether tapes watch it automatically when it is read; True by default, but False
      with `synchronization` ON_READ.
    - `dtype`: the dtype to convert the initial value to.
    - `shape`: a shape with None for sizes that later assignments may change.
    - `constraint`: a function that optimizers apply to the value after an update.
    - `layout`: how to shard the value, now and after every assignment, over the devices of a
      mesh; see `tg.distribute.Layout`. If the initial value comes from a function, each device
      computes only its own part. By default the layout of the initial value.
    - `memory_kind`: the memory that holds the value, under JAX's name, such as "pinned_host" for
      host memory. Programs copy the value to the device, and copy assigned values back. By
      default the memory kind of a NamedSharding given as `layout`.

    Raises ValueError without an initial value, for a constraint that is not a function, and if a
    traced function creates a Variable on a call other than its first or from one of its arguments;
    DTypeError (a TypeError) if `trainable` is not a bool.

    >>> v = tg.Variable([1.0, 2.0], name="v")
    >>> v.assign_add([1.0, 1.0]).numpy()
    array([2., 3.], dtype=float32)
    """

    __slots__ = (
        *("__weakref__", "_layout", "_layout_elsewhere", "_sharers", "_stands_for", "_trainable"),
        *("aggregation", "base_name"),
        *("constraint", "handle", "has_plain_name", "is_identified", "is_random_state", "number"),
        *("regularizer", "synchronization", "tensor_type"),
    )

    #: Makes NumPy leave binary operations with an ndarray on the left to us.
    __array_priority__ = 100.0

    def __init__(
        self,
        initial_value: TensorLike | Callable[[], TensorLike] | None = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: object = None,
        name: str | None = None,
        variable_def: object = None,
        dtype: DTypeLike | None = None,
        import_scope: object = None,
        constraint: Callable[[Tensor], TensorLike] | None = None,
        synchronization: VariableSynchronization | None = None,
        aggregation: VariableAggregation | None = None,
        shape: ShapeLike | None = None,
        layout: LayoutLike | None = None,
        memory_kind: str | None = None,
    ) -> None:
        if initial_value is None:
            fail(
                SignatureError,
                "tg.Variable needs an initial_value, and it is None",
                fix="pass a value, such as tg.zeros([3])",
            )
        trace = innermost_trace()
        if trace is not None and not trace.may_create:
            refuse_creation(trace)
        wanted = None if dtype is None else as_dtype(dtype)
        value = self._initial(initial_value, wanted)
        if trainable is None:
            is_trainable = synchronization is not VariableSynchronization.ON_READ
        else:
            is_trainable = as_flag("Variable", "trainable", trainable)
        self._begin(_declared(value.type, shape), scoped_name(name or _NO_NAME), is_trainable)
        self.constraint = _checked_constraint(constraint)
        self.synchronization = synchronization or VariableSynchronization.AUTO
        self.aggregation = aggregation or VariableAggregation.NONE
        self._layout = _layout_for(value, layout)
        if self._layout is not None:
            value = self._placed(value)
        # A table of layouts may be waiting for it: it is then created in place.
        is_left = bool(waiting) and value.node is not None
        self.place = None if self._layout is not None else device_scope.device
        kind = _memory_kind_in(layout) if memory_kind is None else memory_kind
        if kind is not None:
            self.place = MemoryPlace(self.place, _checked_kind(kind))
        store((self,), (_content(value) if is_left else device_buffer(value),))
        if trace is not None:
            trace.created.append((weakref.ref(self), here()))
        else:
            self.tell_assigned(value)

    def _begin(self, type: TensorType, name: str, is_trainable: bool) -> None:
        """Sets all attributes of a Variable except its value."""
        self.base_name = name
        #: Numbers the Variables of the process in order of creation.
        self.number = next(_numbers)
        self._trainable = is_trainable
        #: A weak reference to the Variable that this one stands for in a trace, if any.
        self._stands_for: Callable[[], Variable | None] | None = None
        #: Whether somebody asked for that Variable, so that no other may take its place.
        self.is_identified = False
        self.constraint: Callable[[Tensor], Any] | None = None
        #: Maps the value to a term of `Module.losses`; set by layers.
        self.regularizer: Callable[[Any], Any] | None = None
        #: Read by code that also runs on several replicas; here there is one.
        self.synchronization: Any = VariableSynchronization.AUTO
        self.aggregation: Any = VariableAggregation.NONE
        #: Whether the name is shown without a suffix; set by layers.
        self.has_plain_name = False
        #: Whether it is the state of a random generator, which parallel iterations split.
        self.is_random_state = False
        #: The declared layout, which every later value takes, if there is one.
        self._layout: Layout | None = None
        #: The Variables that share its layouts, with the axes of this one that they have.
        self._sharers: list[tuple[weakref.ref[Variable], tuple[int, ...]]] = []
        #: The layout from a file, if the devices for it are not available here.
        self._layout_elsewhere: Layout | None = None
        self.tensor_type = type
        self.handle = host_tensor(type, None)
        self.handle.name = name
        #: The value, a JAX array or a pending Tensor: a single slot, so that access is atomic.
        self.buffer = self.place = None

    @staticmethod
    def _initial(initial_value: Any, dtype: DType | None) -> Tensor:
        if callable(initial_value):
            initial_value = initial_value()
        if isinstance(initial_value, Tensor):
            initial_value = concrete_initial_value(initial_value)
        elif isinstance(initial_value, Variable):
            initial_value = initial_value.made_tensor()
        with at_top_level():
            return as_tensor(initial_value) if dtype is None else converted(initial_value, dtype)

    def __hash__(self) -> int:
        fail(
            TraceError,
            f"the variable {told_name(self)!r} has no hash, since == is elementwise",
            fix="use variable.ref(), which has one, and .deref() to get the variable back",
        )

    def stand_in(self) -> Variable:
        """A Variable that stands for this one in a trace whose calls may pass others."""
        new = Variable.of_type(self.tensor_type, self.base_name, self._trainable)
        new._stands_for = weakref.ref(self)
        new.number, new.constraint = self.number, self.constraint
        new.regularizer = self.regularizer
        new.has_plain_name, new.is_random_state = self.has_plain_name, self.is_random_state
        return new

    @property
    def is_stand_in(self) -> bool:
        """Whether it stands for a Variable that calls of a trace pass."""
        return self._stands_for is not None

    def actual(self) -> Variable:
        """The Variable itself or, for a stand-in, the Variable that the call passes. A trace that
        asks can serve only that Variable from then on: see `is_identified`."""
        found = None if self._stands_for is None else self._stands_for()
        if found is None:
            return self
        self.is_identified = True
        return found.actual()

    def given(self) -> Variable:
        """The Variable itself or, for a stand-in, the Variable that the latest call passed."""
        found = None if self._stands_for is None else self._stands_for()
        return self if found is None else found.given()

    def passed(self) -> Variable:
        """The Variable itself or, for a stand-in, the Variable that the enclosing trace passed,
        which may itself be a stand-in."""
        found = None if self._stands_for is None else self._stands_for()
        return self if found is None else found

    def stand_for(self, given: Variable) -> None:
        """Makes this one stand for another Variable: Python functions that a trace calls hold this
        one, but mean the one that the call passed."""
        self._stands_for = weakref.ref(given)

    @classmethod
    def of_type(cls, type: TensorType, name: str, trainable: bool = True) -> Variable:
        """A Variable without a value: a stand-in, or one that `keep_in_file` will fill."""
        new = object.__new__(cls)
        new._begin(type, name, trainable)
        return new

    def keep_in_file(self, stored: Any, layout: Layout | None = None) -> None:
        """Takes its value from an array in a file, which is read on first use: in parts if there
        is a layout whose devices are available."""
        note_pending()
        if layout is not None and not layout.is_here:
            self._layout_elsewhere, layout = layout, None
        self._layout = layout
        content = stored if layout is None else backend.layouts().DividedInFile(stored, layout)
        self.buffer = host_tensor(stored.type, content)

    # Properties.

    @property
    def is_unnamed(self) -> bool:
        """Whether the user gave it no name."""
        return is_no_name(self.base_name)

    @property
    def name(self) -> str:
        """The name with TensorFlow's suffix, as in 'x:0'; names from layers have no suffix."""
        return self.base_name if self.has_plain_name else f"{self.base_name}:0"

    @property
    def trainable(self) -> bool:
        """Whether tapes watch the variable automatically when it is read."""
        return self._trainable

    @property
    def dtype(self) -> DType:
        return self.tensor_type.dtype

    @property
    def __numpy_dtype__(self) -> np.dtype:
        return self.dtype.numpy_dtype

    @property
    def ndim(self) -> int:
        return len(self.tensor_type.shape)

    @property
    def device(self) -> str:
        """The device that holds the value, such as
        '/job:localhost/replica:0/task:0/device:CPU:0'."""
        (buffer,) = gathered((self.given(),))
        return device_of(buffer)

    @property
    def memory_kind(self) -> str | None:
        """The memory that holds the value, as JAX calls it: "device" or "pinned_host"."""
        (buffer,) = gathered((self.given(),))
        return backend.memory_kind(buffer)

    @property
    def _memory_kind(self) -> str | None:
        """The memory kind that was requested."""
        return self.place.kind if type(self.place) is MemoryPlace else None

    @property
    def layout(self) -> Layout | None:
        """How the value is sharded over the devices of a mesh; None if it is on one device."""
        if self._stands_for is not None:
            return self.given().layout
        return self._layout or self.made_tensor().layout

    @property
    def declared_layout(self) -> Layout | None:
        """The declared layout, which every later value takes."""
        return self._layout

    @property
    def saved_layout(self) -> Layout | None:
        """The layout to write to files: the one declared here, or else that of the file read."""
        return self._layout or self._layout_elsewhere

    def take_layout(self, layout: Layout) -> None:
        """Shards the value, and every later one, according to `layout`. Raises ShapeError."""
        backend.layouts().check_layout(
            f"the variable {told_name(self)!r}", self.tensor_type, layout
        )
        with state_lock, at_top_level():
            value = self._placed(self.made_tensor(), layout)
            self._layout = layout
            kind = self._memory_kind
            self.place = None if kind is None else MemoryPlace(None, kind)
            note_pending()
            store((self,), (device_buffer(value),))
        for other, axes in self._sharers:
            variable = other()
            if variable is not None:
                variable.take_layout(layout.of_axes(axes))

    def share_layouts(self, other: Variable, axes: Iterable[int]) -> None:
        """Passes the layouts that this Variable takes on to another one that has these of its
        axes, such as an optimizer's slot."""
        self._sharers.append((weakref.ref(other), tuple(axes)))

    def _placed(self, value: Tensor, layout: Layout | None = None) -> Tensor:
        """The value on the devices of the layout, in its own buffer."""
        with at_top_level():
            return backend.layouts().placed(value, layout or self._layout)

    def _laid_out(self, value: Tensor) -> Tensor:
        """The value with the Variable's layout. If none is declared, the present value's layout
        applies at top level: a function that ran on several devices left it there."""
        layout = self._layout
        if layout is None and current_trace() is None and is_divided(self.buffer):
            layout = backend.layouts().layout_of_buffer(self.buffer)
        return value if layout is None else backend.layouts().laid_out(value, layout)

    def ref(self) -> VariableReference:
        """A hashable reference: `v.ref().deref() is v`."""
        return VariableReference(self)

    # The value.

    def made_tensor(self) -> Tensor:
        """The present value as a top-level tensor, even while tracing."""
        if self._stands_for is not None:
            return self.given().made_tensor()
        with state_lock:
            return self.tensor_of(own_content(self))

    def tensor_of(self, content: object) -> Tensor:
        """The content of the variable's slot as a tensor, pending if the content is."""
        content = self._as_stored(content)
        return content if type(content) is Tensor else Tensor(_type_of(self, content), content)

    def _as_stored(self, content: Any) -> Any:
        """The content of the variable's slot, where a tensor that is not pending any more is
        replaced by its buffer."""
        if type(content) is Tensor and content.node is None:
            return materialised_content(self, content)
        return content

    def read_value(self) -> Tensor:
        """The value as a new tensor; gradients of the tensor flow to the variable."""
        trace = current_trace()
        builder = current()
        self.watch_by(builder)
        if trace is not None:
            read = trace.read(self)
            return read if self._layout is None else self._laid_out(read)
        value = self.made_tensor()
        # Each read is a separate tensor, since each may be watched, or be a source, on its own.
        read = value
        if value.node is not None:
            with builder.unrecorded():
                read = IDENTITY(value)
        read._provenance = self.handle
        if not builder.recorders:
            return read
        node = Node(READ, (value, self.handle), here(), builder)
        node.outputs = (read,)
        for recorder in builder.recorders:
            recorder.record(node)
        return read

    value = read_value
    __tracegraph_tensor__ = read_value

    def watch_by(self, builder: Builder) -> None:
        """Tells open tapes that the variable is read."""
        for recorder in builder.recorders:
            recorder.access(self)

    def handle_in(self, builder: Builder) -> Tensor:
        """The tensor that stands for the variable in gradients of `builder`."""
        return builder.state(self).handle if isinstance(builder, Trace) else self.handle

    def numpy(self) -> NDArray[Any]:
        """A copy of the value as a NumPy array. Raises TraceError while tracing."""
        if current_trace() is not None:
            return self.read_value().numpy()
        tell_tapes(self.handle, ".numpy()")
        array = host_array(self.made_tensor())
        return array[()] if array.ndim == 0 else np.array(array)

    # Assignment.

    @overload
    def assign(
        self, value: TensorLike, use_locking: bool = ..., name: str | None = ...
    ) -> Variable: ...
    @overload
    def assign(
        self, value: TensorLike, *, read_value: Literal[False], **options: Unpack[_AssignOptions]
    ) -> None: ...
    @overload
    def assign(
        self,
        value: TensorLike,
        use_locking: bool = ...,
        name: str | None = ...,
        read_value: bool = ...,
    ) -> Variable | None: ...
    def assign(
        self,
        value: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assigns `value`, which must have the variable's shape and dtype; returns the variable,
        or None without `read_value`.

        Raises ShapeError (a ValueError) for a wrong shape, and DTypeError for a tensor of a wrong
        dtype; the variable then keeps its old value.
        """
        new = self._checked(value)
        trace = current_trace()
        if trace is not None:
            trace.assign(self, self._laid_out(new))
        else:
            self._store(new)
        return self if read_value else None

    @overload
    def assign_add(
        self, delta: TensorLike, use_locking: bool = ..., name: str | None = ...
    ) -> Variable: ...
    @overload
    def assign_add(
        self, delta: TensorLike, *, read_value: Literal[False], **options: Unpack[_AssignOptions]
    ) -> None: ...
    @overload
    def assign_add(
        self,
        delta: TensorLike,
        use_locking: bool = ...,
        name: str | None = ...,
        read_value: bool = ...,
    ) -> Variable | None: ...
    def assign_add(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Adds `delta` to the value; see `assign`."""
        delta = self._checked(delta)
        return self.update(lambda now: now + delta, read_value)

    @overload
    def assign_sub(
        self, delta: TensorLike, use_locking: bool = ..., name: str | None = ...
    ) -> Variable: ...
    @overload
    def assign_sub(
        self, delta: TensorLike, *, read_value: Literal[False], **options: Unpack[_AssignOptions]
    ) -> None: ...
    @overload
    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool = ...,
        name: str | None = ...,
        read_value: bool = ...,
    ) -> Variable | None: ...
    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtracts `delta` from the value; see `assign`."""
        delta = self._checked(delta)
        return self.update(lambda now: now - delta, read_value)

    def update(
        self, change: Callable[[Tensor], Tensor], read_value: bool = True
    ) -> Variable | None:
        """Assigns `change(value)`. The read and the write are atomic with respect to other threads
        and interrupts; tapes do not see the read.

        Returns the variable, or None without `read_value`.
        """
        trace = current_trace()
        if trace is not None:
            return self.assign(change(trace.value_of(self)), read_value=read_value)
        if self._stands_for is not None:
            return self.given().update(change, read_value)
        with state_lock:
            is_stored = False
            while not is_stored:
                content = self._as_stored(own_content(self))
                new = self._admitted(self._checked(change(self.tensor_of(content))))
                self.tell_assigned(new)  # first, since a recorder may refuse it
                is_stored = store_if_same(self, content, self._new_content(new, content))
        return self if read_value else None

    def _checked(self, value: Any) -> Tensor:
        try:
            new = as_tensor(value, None if isinstance(value, Tensor) else self.dtype)
        except (DTypeError, ShapeError) as error:
            is_shape = isinstance(error, ShapeError)
            fail(
                ShapeError if is_shape else DTypeMismatchError,
                f"the variable {told_name(self)!r} is {self.tensor_type}: {fact_of(error)}",
                fix=fix_of(error) if is_shape else f"assign numbers of {self.dtype.name}",
            )
        if new.type is self.tensor_type:
            return new
        if new.dtype is not self.dtype:
            fail(
                DTypeMismatchError,
                f"a value of {new.dtype.name} was assigned to the variable {told_name(self)!r} of "
                f"{self.dtype.name}",
                fix=f"convert it: tg.cast(value, tg.{self.dtype.name})",
            )
        if self.tensor_type.is_static:
            new = with_rank_of(new, self.tensor_type.shape)
        if not _fits(self.tensor_type.shape, new.type.shape):
            fail(
                ShapeError,
                f"a value of shape {shape_text(new)} was assigned to the variable "
                f"{told_name(self)!r} of shape {_shape_text(self.tensor_type)}",
                fix="assign a value of the variable's shape, or declare it with "
                "tg.Variable(..., shape=[None])",
            )
        return _sized(new, self.tensor_type.shape)

    def _store(self, new: Tensor) -> None:
        """Stores the new value, pending if it is."""
        if self._stands_for is not None:
            self.given()._store(new)
            return
        new = self._admitted(new)
        self.tell_assigned(new)
        with state_lock:
            store((self,), (self._new_content(new, own_content(self)),))

    def _new_content(self, new: Tensor, former: Any) -> Any:
        """The slot content for a value that is to replace `former`."""
        content = _content(new)
        if content is new:
            note_assigned(self, new, former)
        return content

    def _admitted(self, new: Tensor) -> Tensor:
        (new,) = current().admit_all((new,))
        materialise_endless(new)  # an interrupt must leave the old value
        return self._laid_out(new)

    def tell_assigned(self, value: Tensor) -> None:
        """Tells open tapes, and those opened later, which value was assigned."""
        assignment = remember_assignment(self.handle, value)
        for recorder in current().recorders:
            recorder.assign(self.handle, assignment)

    if not TYPE_CHECKING:  # a type checker refuses it too

        def __setitem__(self, index: Any, value: Any) -> None:
            fail(
                VariableError,
                f"an item of the variable {told_name(self)!r} was assigned with [...] =",
                fix="use v[1:3].assign(value), or v.scatter_update(...)",
            )

    __iadd__, __isub__ = _inplace("+=", "assign_add"), _inplace("-=", "assign_sub")
    __imul__, __itruediv__, __ifloordiv__ = _inplace("*="), _inplace("/="), _inplace("//=")
    __imod__, __ipow__, __imatmul__ = _inplace("%="), _inplace("**="), _inplace("@=")
    __iand__, __ior__, __ixor__ = _inplace("&="), _inplace("|="), _inplace("^=")

    if TYPE_CHECKING:  # installed by `state.scatter`

        def scatter_add(
            self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
        ) -> Variable: ...
        def scatter_nd_add(
            self, indices: TensorLike, updates: TensorLike, name: str | None = None
        ) -> Variable: ...

        scatter_sub = scatter_mul = scatter_div = scatter_add
        scatter_max = scatter_min = scatter_update = scatter_add
        scatter_nd_sub = scatter_nd_mul = scatter_nd_div = scatter_nd_add
        scatter_nd_max = scatter_nd_min = scatter_nd_update = scatter_nd_add

        def batch_scatter_update(
            self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
        ) -> Variable:
            """Replaces rows, batch by batch."""
            ...

        def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
            """The rows at `indices`, as a tensor."""
            ...

        def gather_nd(self, indices: TensorLike, name: str | None = None) -> Tensor:
            """The elements or slices at the vectors `indices[..., :]`."""
            ...

    # Python.

    def __repr__(self) -> str:
        shape = _shape_text(self.tensor_type)
        head = f"<tg.Variable {self.name!r} shape={shape} dtype={self.dtype.name}"
        if current_trace() is not None:
            return f"{head}>"
        return f"{head}, {value_repr(self.made_tensor())}>"

    __str__ = __repr__

    def __copy__(self) -> Any:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict) -> Any:
        copied = type(self)(
            np.array(self.numpy()),
            trainable=self.trainable,
            name=self.base_name,
            constraint=self.constraint,
            synchronization=self.synchronization,
            aggregation=self.aggregation,
            shape=None if self.tensor_type.is_static else self.tensor_type.shape,
            layout=self._layout,
            memory_kind=self._memory_kind,
        )
        copied.has_plain_name, copied.regularizer = self.has_plain_name, self.regularizer
        copied.is_random_state = self.is_random_state
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> Any:
        shape = None if self.tensor_type.is_static else _open_shape(self.tensor_type)
        state = (self.trainable, self.base_name, self.constraint, shape)
        flags = (self.has_plain_name, self.is_random_state)
        replicas = (self.synchronization, self.aggregation)
        value = np.array(self.numpy())
        places = (self._layout, self._memory_kind)
        own = (value, *state, *flags, *replicas, self.regularizer, *places)
        return _rebuild, own if type(self) is Variable else (*own, type(self))

    def __bool__(self) -> bool:
        return bool(self.read_value())

    def __float__(self) -> float:
        return float(self.read_value())

    def __int__(self) -> int:
        return int(self.read_value())

    def __index__(self) -> int:
        return self.read_value().__index__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.read_value().__array__(dtype)

    def __format__(self, spec: str) -> str:
        return format(self.read_value(), spec) if spec else str(self)


class DTypeMismatchError(DTypeError, ValueError):
    """A DTypeError, where TensorFlow raises ValueError: an assignment of another dtype."""


def _rebuild(
    array: np.ndarray,
    trainable: bool,
    name: str,
    constraint: Any,
    shape: Any,
    has_plain_name: bool,
    is_random_state: bool,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    regularizer: Callable[[Any], Any] | None = None,
    layout: Layout | None = None,
    memory_kind: str | None = None,
    kind: type[Variable] = Variable,
) -> Variable:
    new = kind(
        array,
        trainable=trainable,
        name=name,
        constraint=constraint,
        shape=shape,
        layout=layout,
        memory_kind=memory_kind,
    )
    new.synchronization, new.aggregation = synchronization, aggregation
    new.has_plain_name, new.is_random_state = has_plain_name, is_random_state
    new.regularizer = regularizer
    return new


def _memory_kind_in(layout: Any) -> str | None:
    """The memory kind that a JAX sharding names; None for device memory."""
    kind = getattr(layout, "memory_kind", None)
    return None if kind == "device" else kind


def _checked_constraint(constraint: Any) -> Callable[[Tensor], Any] | None:
    """A function, or None. Raises SignatureError for anything else."""
    if constraint is not None and not callable(constraint):
        fact = f"tg.Variable: the constraint is {shown(constraint)}, not a function"
        fail(SignatureError, fact, fix="give a function of the value, such as tg.nn.relu")
    return constraint


def _checked_kind(kind: Any) -> str:
    """A memory kind that is available. Raises SignatureError for others."""
    kinds = backend.memory_kinds()
    if kind not in kinds:
        fail(
            SignatureError,
            f"tg.Variable: memory_kind is {shown(kind)}, and the device has {', '.join(kinds)}",
            fix="use one of these, or leave it out",
        )
    return kind


def _layout_for(value: Tensor, layout: Any) -> Layout | None:
    """The layout of a Variable with this initial value, given its `layout=` argument. Without it, a
    value that is whole on each device declares none, so the Variable may move to another mesh: such
    a value may be there only because it was computed together with others."""
    if layout is None:
        is_pending = value.node is not None and bool(waiting)
        own = None if is_pending or not is_divided(device_buffer(value)) else value.layout
        return own if own is not None and any(own.axes) else None
    found = backend.layouts().as_layout(layout, value.ndim)
    backend.layouts().check_layout("tg.Variable", value.type, found)
    return found


def _open_shape(type: TensorType) -> TensorShape:
    if type.rank is None:
        return TensorShape(None)
    return TensorShape([None if isinstance(size, Dim) else size for size in type.shape])


def _shape_text(type: TensorType) -> str:
    return str(_open_shape(type))


def _fits(declared: Shape, shape: Shape) -> bool:
    """Whether a value of `shape` may be assigned to the shape `declared`, which may be open."""
    if isinstance(declared, ShapeVariable):
        return True
    if isinstance(shape, ShapeVariable) or len(declared) != len(shape):
        return False
    pairs = zip(declared, shape, strict=True)
    return all(same_size(a, b) is not None for a, b in pairs if isinstance(a, int))


def _sized(value: Tensor, declared: Shape) -> Tensor:
    """The value with the declared sizes; if its own sizes are open, every run checks them."""
    if isinstance(declared, ShapeVariable) or isinstance(value.type.shape, ShapeVariable):
        return value
    pairs = zip(declared, value.type.shape, strict=True)
    sizes = tuple(size if isinstance(size, int) else given for size, given in pairs)
    return value if sizes == value.type.shape else EnsureShape(sizes)(value)


def names_of_sizes(taken: Container[str] = ()) -> Iterator[str]:
    """New names for open sizes of Variables, which users cannot write: not used by other
    Variables, and not in `taken`."""
    return (name for name in (f"${number}" for number in _names) if name not in taken)


def _declared(type: TensorType, shape: Any) -> TensorType:
    if shape is None:
        return type
    if not isinstance(shape, list | tuple | ShapeVariable):
        shape = TensorShape(shape)
    names = names_of_sizes()
    if isinstance(shape, ShapeVariable) or (isinstance(shape, TensorShape) and shape.rank is None):
        return TensorType(type.dtype, ShapeVariable(next(names)))
    # An open size of a trace or of another Variable is not the size of this one.
    is_open = [size is None or isinstance(size, Dim) for size in tuple(shape)]
    sizes = tuple(Dim.named(next(names)) if o else x for o, x in zip(is_open, tuple(shape)))
    declared = TensorType(type.dtype, sizes)
    if same_shape(declared.shape, type.shape) is None:
        fail(
            ShapeError,
            f"the initial value is {type} and the declared shape is {tuple(shape)}",
            fix="declare the shape of the initial value, with None for sizes that may change",
        )
    return declared


def _content(value: Tensor) -> Any:
    """The slot content for a value: its buffer, or the tensor itself while it is pending."""
    if value.node is None:
        return device_buffer(value)
    note_pending()
    return value


def assign_together(variables: Sequence[Variable], values: Sequence[Tensor]) -> None:
    """Assigns to several variables atomically: a step in another thread sees all values or none.

    The values must have the variables' types and be distinct tensors.
    """
    pairs = zip(variables, values, strict=True)
    with at_top_level():
        buffers = tuple([device_buffer(variable._laid_out(value)) for variable, value in pairs])
    with state_lock:
        store(variables, buffers)


def has_room_for(variable: Variable, type: TensorType) -> bool:
    """Whether the variable, whose sizes may be open, can be assigned a value of `type`."""
    declared = variable.tensor_type
    return declared.dtype is type.dtype and _fits(declared.shape, type.shape)


def _type_of(variable: Variable, buffer: Any) -> TensorType:
    if variable.tensor_type.is_static:
        return variable.tensor_type
    return TensorType(variable.tensor_type.dtype, tuple(buffer.shape))


def values_now(variables: Mapping[str, Variable]) -> dict[str, Tensor]:
    """A consistent snapshot of the variables' values, between steps. Holding the values keeps them
    unchanged: a step copies a buffer that is in use elsewhere instead of overwriting it."""
    with state_lock:
        contents = contents_of(variables.values())
    pairs = zip(variables.items(), contents, strict=True)
    return {key: variable.tensor_of(content) for (key, variable), content in pairs}


#: What holds numbers of a known dtype.
ARRAYS = (Tensor, Variable, np.ndarray, np.generic)


def is_array(value: Any) -> bool:
    """Whether a value has a dtype of its own, as Python's numbers have not."""
    return isinstance(value, ARRAYS)
