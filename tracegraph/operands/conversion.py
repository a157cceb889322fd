"""Converts what users pass to tensors: conversion, promotion, broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, MappingView, Sequence
from typing import Any, NoReturn

import numpy as np

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.lru_cache import Memo
from tracegraph.core.settings import device_scope
from tracegraph.core.shapes import Dim, Shape, ShapeVariable, plain, same_shape, same_size
from tracegraph.core.tensorshape import TensorShape, TensorSpec
from tracegraph.core.types import (
    PYTHON_DTYPES,
    DType,
    TensorType,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    rank_fix,
    type_of_array,
    uint64,
)
from tracegraph.errors import (
    DTypeError,
    RangeError,
    ShapeError,
    TraceError,
    fact_of,
    fail,
    fix_of,
    kind_of,
    shown,
)
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum, full_like
from tracegraph.ops.constant import Constant, DimSize, Sizes
from tracegraph.ops.elementwise import MAXIMUM, MINIMUM, Cast
from tracegraph.ops.reduce import Prod
from tracegraph.ops.shape import Concatenate, Reshape, Reverse, Slice, Transpose

#: Arrays with more elements than this become inputs of a trace instead of constants in its graph.
LARGEST_CONSTANT = 128

_NUMBERS = (bool, int, float, complex)
_NUMERIC = (*_NUMBERS, np.ndarray, np.generic)
_RANK = {"bool": 0, "integer": 1, "floating": 2, "storage": 2, "complex": 3}


def as_tensor(value: Any, dtype: DType | None = None) -> Tensor:
    """`value` as a tensor; `dtype` is the type for Python numbers, lists and arrays.

    A Tensor or Variable keeps its type: a different `dtype` is a DTypeError. Raises DTypeError for
    what cannot be a tensor, and for a number that `dtype` cannot hold.
    """
    kind = type(value)
    if kind is Tensor:
        node = value.node
        if node is not None and node.builder is not current():
            (value,) = current().admit_all((value,))  # refuses a tensor that leaked from a trace
        return value if dtype is None or value.dtype is dtype else _refuse_dtype(value, dtype)
    if kind in PYTHON_DTYPES:
        return from_array(as_array(value, dtype))
    read = getattr(value, "__tracegraph_tensor__", None)
    if read is not None:
        return as_tensor(read(), dtype)
    if isinstance(value, Dim):
        size = DimSize(plain(value))()
        return size if dtype in (None, int32) else Cast(dtype)(size)
    if _stays_on_device(value):
        return _from_device(value, dtype)
    if is_sequence(value):
        value = [*value]
    return from_array(as_array(value, dtype)) if not _holds_tensors(value) else _stack(value, dtype)


def is_sequence(value: Any) -> bool:
    """Whether a value is a sequence of another class, such as a deque or the values of a dict: it
    is read as a list."""
    kind = type(value)
    if issubclass(kind, MappingView):
        return True
    others = (list, tuple, range, str, bytes, bytearray)
    own = ("__array__", "__tracegraph_tensor__", "keys")
    if issubclass(kind, others) or any(hasattr(kind, name) for name in own):
        return False
    # Check the value itself: the class of an enum member is iterable too.
    return all(hasattr(value, name) for name in ("__getitem__", "__iter__", "__len__"))


def is_divided(value: Any) -> bool:
    """Whether a value is a JAX array on several devices."""
    return len(_devices_of(value)) > 1 and hasattr(value, "addressable_shards")


def _devices_of(value: Any) -> Any:
    """The devices of a JAX array; none for its tracers, and for other values."""
    return getattr(getattr(value, "sharding", None), "device_set", ())


def _stays_on_device(value: Any) -> bool:
    """Whether a value is a JAX array that need not come to the host: one on several devices, or on
    a device other than the first CPU, whose memory the host can read. In a trace, small arrays
    become constants instead."""
    devices = _devices_of(value)
    if not devices or not hasattr(value, "addressable_shards") or is_random_key(value):
        return False
    if not value.sharding.addressable_devices:
        _refuse_elsewhere(value, "no part of it")
    if len(devices) > 1:
        return True
    (device,) = devices
    if device.platform == "cpu" and device is device.client.local_devices()[0]:
        return False
    if value.weak_type:  # a mere number, for which JAX uses another type
        return False
    return current().is_top_level or value.size > LARGEST_CONSTANT


def _from_device(array: Any, dtype: DType | None) -> Tensor:
    """A JAX array as a tensor that stays where it is, or moves to the device that `tg.device`
    names."""
    if device_scope.device is not None and len(array.sharding.device_set) == 1:
        array = array.to_device(device_scope.device)
    kinds = getattr(getattr(array.sharding, "mesh", None), "axis_types", None) or ()
    if any(kind.name != "Auto" for kind in kinds):
        array = array.to_device(_partitioned_by_xla(array.sharding))
    tensor = Tensor(TensorType(as_dtype(array.dtype), array.shape), array)
    for recorder in current().recorders:
        recorder.arrive(tensor)
    if dtype is None or dtype is tensor.dtype:
        return tensor
    return _fitted(tensor, dtype)


def _partitioned_by_xla(sharding: Any) -> Any:
    """The same sharding on a mesh whose axes XLA's partitioner may use freely: those of
    `jax.make_mesh` require each operation to state how its result is sharded."""
    mesh = type(sharding.mesh)(sharding.mesh.devices, sharding.mesh.axis_names)
    return type(sharding)(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def from_array(array: np.ndarray) -> Tensor:
    """A NumPy array as a tensor: a copy, as an input at top level, a constant while tracing."""
    builder = current()
    if builder.is_top_level and builder.reuse is None:
        tensor = host_tensor(type_of_array(array), array)
        for recorder in builder.recorders:
            if array.shape or recorder.has_left:
                recorder.arrive(tensor)
        return tensor
    if array.size > LARGEST_CONSTANT:
        return host_tensor(type_of_array(array), array)
    return Constant(array)()


def as_array(value: Any, dtype: DType | None = None) -> np.ndarray:
    """`value` as a new NumPy array: by default Python floats become float32, ints int32, or int64
    if int32 cannot hold them."""
    kind = type(value)
    if kind in PYTHON_DTYPES:
        return _number(value, dtype or _dtype_of_number(value, kind))
    if isinstance(value, np.ndarray | np.generic):
        return _adapted(np.array(value), dtype, value)
    if isinstance(value, _NUMBERS):  # of a subclass, as members of an IntEnum are
        base: Any = next(base for base in _NUMBERS if isinstance(value, base))
        return _number(base(value), dtype or _dtype_of_number(value, base))
    if hasattr(value, "__array__"):
        return _adapted(_own_array(value), dtype, value)
    if isinstance(value, (list, tuple)):
        return _from_list(value, dtype)
    if isinstance(value, range):
        return _from_list(list(value), dtype if value else dtype or int32)
    fail(
        DTypeError,
        f"{kind_of(value)} cannot be a tensor: {shown(value)}",
        fix="pass a tensor; a model is a tg.layers.Sequential, or a tg.Module that calls layers"
        if isinstance(value, TensorSpec)
        else "pass a tensor, a NumPy array, a number, or a list of numbers",
    )


def _dtype_of_number(value: Any, kind: type) -> DType:
    """The dtype of a Python number where nothing else decides."""
    return int64 if kind is int and not int32.min <= value <= int32.max else PYTHON_DTYPES[kind]


#: What to pass instead of a JAX random key.
KEY_FIX = "pass jax.random.key_data(key), which is an array of uint32"


def is_random_key(value: Any) -> bool:
    """Whether a value is an array of JAX random keys, which has its own dtype."""
    return getattr(getattr(value, "dtype", None), "name", "").startswith("key<")


def _refuse_elsewhere(value: Any, what: str) -> NoReturn:
    fail(
        TraceError,
        f"an array of JAX's {value.dtype}{list(value.shape)} is on devices of another process, "
        f"and this one has {what}",
        fix="let each process give its own part: tg.distribute.from_local",
    )


def _own_array(value: Any) -> np.ndarray:
    """A new NumPy array from a list, or an object with `__array__`. Raises TraceError for JAX's
    tracers, and for an array of JAX's of which this process does not have all."""
    if _devices_of(value) and not value.is_fully_addressable:
        count = len(value.addressable_shards)
        if not count or not value.is_fully_replicated:
            _refuse_elsewhere(value, "part of it" if count else "no part of it")
    if is_random_key(value):
        fail(DTypeError, f"{shown(value)} is a key of JAX's random numbers", fix=KEY_FIX)
    try:
        return np.array(value)
    except TypeError as error:
        if type(error).__name__ != "TracerArrayConversionError":  # avoids importing JAX
            raise
    fail(
        TraceError,
        f"{shown(value)} has no value: JAX is tracing a function that computes with it",
        fix="pass the tensors that it meets to the function of JAX as arguments; or call "
        "f.as_jax() of a @tg.function f there, or leave jax.jit and its like",
    )


#: Numbers below these cannot overflow, and skip the `errstate` context, which dominates the cost.
_ROOM = {float16: 6e4, bfloat16: 1e38, float32: 1e38, float64: 1e308}


def _number(value: Any, dtype: DType) -> np.ndarray:
    if _RANK[PYTHON_DTYPES[type(value)].kind] > _RANK[dtype.kind]:
        fail(
            DTypeError,
            f"the {type(value).__name__} {value!r} does not fit in {dtype.name}",
            fix=_throughout(PYTHON_DTYPES[type(value)]),
        )
    try:
        if dtype.is_integer or abs(value) < _ROOM.get(dtype, 0):
            return np.asarray(value, dtype.numpy_dtype)
        with np.errstate(over="ignore"):  # a float out of range becomes infinite
            return np.asarray(value, dtype.numpy_dtype)
    except outside_interrupts(OverflowError):
        _refuse_range(value, dtype)


def _refuse_range(value: int, dtype: DType) -> NoReturn:
    holds = (kind for kind in (int64, uint64) if kind.min <= value <= kind.max)
    fail(
        RangeError,
        f"the int {value} is outside the range of {dtype.name}",
        fix=f"use a wider type, such as tg.{next(holds, float64).name}",
    )


def _throughout(dtype: DType) -> str:
    return f"use tg.{dtype.name} throughout: tg.cast(x, tg.{dtype.name})"


def _adapted(array: np.ndarray, dtype: DType | None, value: Any) -> np.ndarray:
    if array.dtype == object or (array.dtype.kind in "USVMm" and array.dtype.name not in _EXTENDED):
        _refuse_elements(array, value)
    own = as_dtype(array.dtype)
    if dtype is None or own is dtype:
        return array
    if _RANK[own.kind] > _RANK[dtype.kind]:
        fail(
            DTypeError, f"an array of {own.name} does not fit in {dtype.name}", fix=_throughout(own)
        )
    return _as_type(array, dtype)


def _as_type(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The array as `dtype`, of a kind that can hold it. Raises DTypeError for an integer out of
    range; a float out of range becomes infinite."""
    if dtype.is_integer and not np.can_cast(array.dtype, dtype.numpy_dtype):
        for extreme in (array.max(initial=0), array.min(initial=0)):
            if not dtype.min <= int(extreme) <= dtype.max:
                _refuse_range(int(extreme), dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy_dtype)


def _refuse_elements(array: np.ndarray, value: Any) -> NoReturn:
    """Raises DTypeError for values that NumPy converts to neither numbers nor booleans."""
    odd = [x for x in _elements(value) if not isinstance(x, _NUMERIC)]
    large = [x for x in _elements(value) if type(x) is int and not -(2**63) <= x < 2**63]
    if large and not odd:
        _refuse_range(large[0], int64)
    what = f"a list with {kind_of(odd[0])} in it" if odd else f"an array of {array.dtype}"
    fail(
        DTypeError,
        f"{what} cannot be a tensor: {shown(value)}",
        fix="tensors hold numbers and truth values: take out or convert what is neither",
    )


_ARRAYS = (np.ndarray, np.generic)


def _elements(value: Any) -> Iterator[Any]:
    """The items of a list and the lists inside it; nothing for an array."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _elements(item) if isinstance(item, (list, tuple)) else (item,)


_EXTENDED = frozenset(["bfloat16", "float8_e4m3fn", "float8_e5m2"])


def _from_list(value: Any, dtype: DType | None) -> np.ndarray:
    try:
        array = _own_array(value)
    except outside_interrupts(ValueError):
        fail(
            ShapeError,
            f"the rows of a list have different lengths: {shown(value)}",
            fix="make all rows equally long, or pad them",
        )
    if array.size == 0 and array.dtype == np.float64:
        usual = int32 if isinstance(value, TensorShape) else float32
        return array.astype((dtype or usual).numpy_dtype)
    if not _holds_numpy(value):
        array = _with_long_integers(array, dtype, value)
        if dtype is None:
            dtype = {"f": float32, "i": int32}.get(array.dtype.kind)
            if dtype is int32 and array.size and not _fits(array, int32):
                dtype = int64
    elif dtype is None and array.dtype.kind in "fc":
        dtype = as_dtype(np.result_type(*_kinds(value)))
    return _adapted(array, dtype, value)


def _kinds(value: Any) -> set[Any]:
    """The kinds of items in a list that contains NumPy numbers: their dtypes, and one number for
    each Python type, which adapts to them."""
    return {x.dtype if isinstance(x, _ARRAYS) else type(x)(0) for x in _elements(value)}


def _fits(array: np.ndarray, dtype: DType) -> bool:
    return dtype.min <= int(array.min()) and int(array.max()) <= dtype.max


def _with_long_integers(array: np.ndarray, dtype: DType | None, value: Any) -> np.ndarray:
    """The array that NumPy made from Python numbers. For ints beyond int64 it silently makes
    unsigned integers, or floats: they are kept if `dtype` can hold them, and refused otherwise."""
    is_float = array.dtype == np.float64 and array.size and np.abs(array).max() >= 2.0**63
    if not (is_float or array.dtype.kind == "u") or not (dtype is None or dtype.is_integer):
        return array
    items = list(_elements(value))
    if not all(isinstance(x, int) for x in items):
        return array
    own = dtype or int64
    beyond = next((x for x in items if not own.min <= x <= own.max), None)
    if beyond is not None:
        _refuse_range(beyond, own)
    return np.array(value, own.numpy_dtype)


def _holds_numpy(value: Any) -> bool:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, np.ndarray | np.generic)


def _holds_tensors(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return any(_is_tensor(v) or _holds_tensors(v) for v in value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, Dim)) or hasattr(value, "__tracegraph_tensor__")


def converted(value: Any, dtype: DType) -> Tensor:
    """`value` as a tensor of `dtype`; tensors in a list are cast to it. Raises DTypeError for a
    tensor of another dtype, and in a list for one of a kind that `dtype` cannot hold."""
    if is_sequence(value):
        value = [*value]
    if not _holds_tensors(value):
        return as_tensor(_of_lower_kind(value, dtype), dtype)
    made = [converted(v, dtype) if not _is_tensor(v) else _fitted(v, dtype) for v in value]
    return _stacked(made)


def _of_lower_kind(value: Any, dtype: DType) -> Any:
    """An array of a kind that `dtype` cannot hold, such as `np.zeros(3)` for int32, as `dtype` if
    all its numbers are in it. Its own dtype is NumPy's default, whereas `dtype` was asked for."""
    if type(value) is not np.ndarray or value.dtype.kind not in "fciu":
        return value
    if _RANK[as_dtype(value.dtype).kind] <= _RANK[dtype.kind]:
        return value
    real = np.real(value)
    with np.errstate(invalid="ignore", over="ignore"):
        array = real.astype(dtype.numpy_dtype)
    return array if np.array_equal(array, value) else value


def _fitted(value: Any, dtype: DType) -> Tensor:
    tensor = as_tensor(value)
    if _RANK[tensor.dtype.kind] > _RANK[dtype.kind]:
        _refuse_dtype(tensor, dtype)
    return cast_to(tensor, dtype)


def _stack(value: Sequence[Any], dtype: DType | None) -> Tensor:
    """A list that contains tensors, stacked along a new first axis."""
    tensors = [as_tensor(v) if _is_typed(v) or _holds_tensors(v) else None for v in value]
    common = _common_dtype([tensor for tensor in tensors if tensor is not None], dtype)
    made = [
        as_tensor(v, common) if tensor is None else cast_to(tensor, common)
        for v, tensor in zip(value, tensors, strict=True)
    ]
    return _stacked(made)


def _stacked(made: Sequence[Tensor]) -> Tensor:
    """Tensors of one dtype, stacked along a new first axis. Raises ShapeError if their shapes
    differ."""
    shape = made[0].type.shape
    if any(same_shape(x.type.shape, shape) is None for x in made):
        fail(
            ShapeError,
            f"the elements of a list have different shapes: {', '.join(str(x.type) for x in made)}",
            fix="give all elements one shape",
        )
    rows = [Reshape((1, *x.type.shape))(x) for x in made]
    return Concatenate(0)(*rows)


def _common_dtype(tensors: Sequence[Tensor], dtype: DType | None) -> DType:
    """`dtype`, or what all the tensors promote to."""
    common: DType = dtype or (tensors[0].dtype if tensors else float32)
    for tensor in tensors:
        both = promoted(common, tensor.dtype)
        if both is None:
            if tensor.dtype is not tensors[0].dtype:
                refuse_mix("stack", tensors[0], tensor)
            _refuse_dtype(tensor, common)
        common = both
    return common


def _is_typed(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic | Dim) or hasattr(
        value, "__tracegraph_tensor__"
    )


def _refuse_dtype(tensor: Tensor, dtype: DType) -> NoReturn:
    fail(
        DTypeError,
        f"a tensor of {tensor.dtype.name} was given where {dtype.name} is needed",
        operands=[operand_text(tensor)],
        fix=f"convert it: tg.cast(x, tg.{dtype.name})",
    )


# Promotion.


def promoted(x: DType, y: DType) -> DType | None:
    """The type to which both promote; None if they do not mix."""
    if x is y:
        return x
    kinds = {x.kind, y.kind}
    if "complex" in kinds and kinds <= {"floating", "complex"}:
        wide = x.real.size == 8 or y.real.size == 8
        return as_dtype("complex128" if wide else "complex64")
    if len(kinds) > 1 or kinds & {"bool", "token", "storage"}:
        return None
    if kinds == {"floating"}:
        return x if x.size > y.size else y if y.size > x.size else float32
    both = np.promote_types(x.numpy_dtype, y.numpy_dtype)  # type: ignore[arg-type]
    return as_dtype(both) if both.kind in "iu" else None


def cast_to(x: Tensor, dtype: DType) -> Tensor:
    """x cast to the type; x itself if it has it already."""
    return x if x.dtype is dtype else Cast(dtype)(x)


def to_int32(x: Tensor) -> Tensor:
    """An integer as int32: what is beyond its range becomes the nearest bound, since a number that
    wraps around is another index or count."""
    if x.dtype.max > int32.max:
        x = MINIMUM(x, full_like(x, int32.max))
    if x.dtype.min < int32.min:
        x = MAXIMUM(x, full_like(x, int32.min))
    return cast_to(x, int32)


def refuse_mix(op: str, x: Tensor, y: Tensor) -> NoReturn:
    fail(
        DTypeError,
        f"{op}: {x.dtype.name} and {y.dtype.name} do not mix",
        operands=[operand_text(x), operand_text(y)],
        fix=f"convert one of them: tg.cast(x, tg.{max(x.dtype, y.dtype, key=_width).name})",
    )


def _width(dtype: DType) -> tuple[int, int]:
    return _RANK.get(dtype.kind, -1), dtype.size


def as_operands(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two operands of one dtype: tensors promote, numbers and arrays adapt to the tensor."""
    x_is_typed, y_is_typed = _is_strong(x), _is_strong(y)
    try:
        if x_is_typed or not y_is_typed:
            x = as_tensor(x)
            y = as_tensor(y) if y_is_typed else as_tensor(y, _adapting(y, x))
        else:
            y = as_tensor(y)
            x = as_tensor(x, _adapting(x, y))
    except (DTypeError, ShapeError) as error:
        operands = [operand_text(v) if type(v) is Tensor else shown(v) for v in (x, y)]
        fact = f"{op}: {fact_of(error)}"
        fail(type(error), fact, operands=operands, fix=fix_of(error))
    if x.dtype is not y.dtype:
        dtype = promoted(x.dtype, y.dtype)
        if dtype is None:
            refuse_mix(op, x, y)
        x, y = cast_to(x, dtype), cast_to(y, dtype)
    return x, y


def _adapting(value: Any, other: Tensor) -> DType | None:
    """The dtype of a number or array next to a tensor: the tensor's, or complex."""
    if isinstance(value, complex) and other.dtype.is_floating:
        return as_dtype("complex128" if other.dtype is float64 else "complex64")
    if isinstance(value, Dim):
        return other.dtype if other.dtype.is_integer or other.dtype.is_floating else None
    return other.dtype


def _is_strong(value: Any) -> bool:
    """Whether the value has its own dtype, to which others adapt."""
    kind = type(value)
    if kind is Tensor or kind in PYTHON_DTYPES:
        return kind is Tensor
    return hasattr(value, "__tracegraph_tensor__") or _holds_tensors(value)


# Broadcasting.


def broadcast_shape(op: str, *tensors: Tensor) -> Shape:
    """The shape by NumPy's rule. Raises ShapeError with both shapes."""
    shape: Shape = tensors[0].type.shape
    for other in tensors[1:]:
        found = broadcast_two(shape, other.type.shape)
        if found is None:
            fail(
                ShapeError,
                f"{op}: the shapes do not broadcast: " + " and ".join(str(t.type) for t in tensors),
                operands=map(operand_text, tensors),
                fix=rank_fix(*[t.type for t in tensors])
                or "reshape one of them: axes are matched from the last, and 1 is repeated",
            )
        shape = found
    return shape


def may_broadcast(x: Shape, y: Shape) -> bool:
    """Whether two shapes may broadcast by NumPy's rule, which nobody knows if a rank is unknown."""
    is_open = isinstance(x, ShapeVariable) or isinstance(y, ShapeVariable)
    return is_open or broadcast_two(x, y) is not None


def broadcast_two(x: Shape, y: Shape) -> Shape | None:
    """The shape of two by NumPy's rule; None if they do not broadcast."""
    if x == y:
        return x
    if isinstance(x, ShapeVariable) or isinstance(y, ShapeVariable):
        return x if y == () else y if x == () else same_shape(x, y)
    rank = max(len(x), len(y))
    sizes = []
    for a, b in zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True):
        size = b if a == 1 else a if b == 1 else same_size(a, b)
        if size is None:
            return None
        sizes.append(size)
    return tuple(sizes)


def broadcast(x: Tensor, shape: Shape) -> Tensor:
    """x broadcast to `shape` by NumPy's rule; x itself if it has the shape already."""
    return _applied(_broadcast_ops(x.type.shape, shape), x)


def _broadcast_ops(own: Shape, shape: Shape) -> tuple[Op, ...]:
    """The ops that broadcast one shape to another, in order."""
    if own == shape or isinstance(own, ShapeVariable):
        return ()
    if isinstance(shape, ShapeVariable):
        return (BroadcastTo(shape, ()),)
    offset = len(shape) - len(own)
    kept = [k for k, size in enumerate(own) if not (size == 1 and shape[k + offset] != 1)]
    if len(kept) == len(shape):
        return ()
    to = BroadcastTo(shape, tuple(k + offset for k in kept))
    return (to,) if len(kept) == len(own) else (Reshape(tuple(own[k] for k in kept)), to)


def _applied(ops: tuple[Op, ...], x: Tensor) -> Tensor:
    for op in ops:
        x = op(x)
    return x


def elementwise_operands(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two operands of one dtype and one shape, ready for an elementwise op."""
    x, y = as_operands(op, x, y)
    if x.type is y.type:
        return x, y
    ops = _broadcasts.get((x.type, y.type))
    if ops is None:
        shape = broadcast_shape(op, x, y)
        own = _broadcast_ops(x.type.shape, shape), _broadcast_ops(y.type.shape, shape)
        ops = _broadcasts.remember((x.type, y.type), own)
    return _applied(ops[0], x), _applied(ops[1], y)


#: The ops that broadcast two types to their common shape.
_broadcasts: Memo[tuple[TensorType, TensorType], tuple[tuple[Op, ...], tuple[Op, ...]]] = Memo()


def binary(op: Callable[[Tensor, Tensor], Tensor], name: str) -> Callable[[Any, Any], Tensor]:
    """The public function of a binary elementwise op: converts, promotes, broadcasts."""

    def apply(x: Any, y: Any) -> Tensor:
        if type(x) is Tensor and type(y) is Tensor and x.type is y.type:
            return op(x, y)
        return op(*elementwise_operands(name, x, y))

    return apply


def static_ints(value: Any, what: str) -> tuple[Any, ...]:
    """A shape, axes or the like as a tuple of ints and Dims, from ints, lists, arrays or tensors.

    Items that are not integers stay unchanged. Raises TraceError for a tensor whose value is
    unknown while tracing, DTypeError for anything that is neither a number nor a sequence of
    numbers.
    """
    if isinstance(value, (int, Dim, np.integer)):
        return (plain(value) if isinstance(value, (bool, Dim)) else int(value),)
    if has_dtype(value):
        value = _known_while_tracing(as_tensor(value), what)
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    # A set has no order, and a dict is not a list of its keys.
    if not hasattr(value, "__iter__") or isinstance(value, (str, bytes, set, frozenset, dict)):
        fail(
            DTypeError,
            f"{what} is an integer or a list of integers, and {shown(value)} is {kind_of(value)}",
            fix="use ints, such as [2, 3]",
        )
    return tuple(
        plain(v)
        if isinstance(v, Dim)
        else (_one_of(v, what) if has_dtype(v) or isinstance(v, np.ndarray) else _int(v))
        for v in value
    )


def _one_of(value: Any, what: str) -> Any:
    """The integer in an array or a tensor that stands in a list of integers."""
    numbers = static_ints(value, what)
    if len(numbers) != 1:
        refuse_part(what, as_tensor(value))
    return numbers[0]


def refuse_part(what: str, x: Tensor) -> NoReturn:
    """Raises ShapeError for a tensor of several elements that stands in a list of integers."""
    fact = f"{what} has an item {x.type}, which is not one integer"
    fix = "give one integer for each item, such as tg.shape(x)[0]"
    fail(ShapeError, fact, operands=[operand_text(x)], fix=fix)


def _known_while_tracing(x: Tensor, what: str) -> np.ndarray:
    known = captured_value(x)
    if known is None:
        require_rank(x)
        fail(
            TraceError,
            f"{what} must be known while tracing, and it is a tensor {x.type}",
            operands=[operand_text(x)],
            fix="pass Python ints, such as x.shape[0]",
        )
    return np.asarray(known)


def require_rank(x: Tensor) -> None:
    """Raises ShapeError if x follows from the sizes of a tensor of unknown rank. A live function
    that gets this error is traced again with the rank, when more is known."""
    waiting = [x]
    for _ in range(_LOOK_BACK):
        if not waiting:
            return
        node = waiting.pop().node
        if node is not None and isinstance(node.op, Sizes):
            len(node.op.shape)  # raises
        waiting += [] if node is None else node.inputs


def has_dtype(value: Any) -> bool:
    """Whether a value has its own dtype, as tensors and Variables do."""
    return isinstance(value, Tensor) or hasattr(value, "__tracegraph_tensor__")


def _int(value: Any) -> Any:
    """An integer as an int; anything else unchanged."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except outside_interrupts(TypeError):
        return value


def static_value(x: Tensor) -> Any:
    """The value of a tensor if it is known now: an array, or ints and Dims; otherwise None."""
    node = x.node
    if node is None or (node.builder is not None and node.builder.is_top_level):
        return _read(x)
    return known_value(x)


def _read(x: Tensor) -> np.ndarray:
    """The value of a tensor from outside; the graph being built notes that it follows from one."""
    current().reads_values = True
    return np.asarray(x.numpy())


def captured_value(x: Tensor) -> Any:
    """The value of a tensor if it follows from constants, sizes and captured tensors, or None.

    A trace keeps the tensors that it captured, and they never change; but each value would need its
    own structure and program. So only sizes use this, which cannot do without.
    """
    known = static_value(x)
    return known_value(x, looks_outside=True) if known is None else known


def known_value(x: Tensor, looks_outside: bool = False) -> Any:
    """The value of a graph tensor that follows only from constants and sizes, or None; if it
    `looks_outside`, also from what its trace captured.

    It only searches the nearest nodes, so it is cheap even in a long graph.
    """
    known: dict[Tensor, Any] = {}
    waiting, steps = [x], 0
    while waiting:
        tensor = waiting[-1]
        node, steps = tensor.node, steps + 1
        outer = _captured(tensor) if looks_outside else None
        if outer is not None:
            value = captured_value(outer)
            if value is None:
                return None
            known[tensor] = value
            waiting.pop()
            continue
        missing = [] if node is None else [y for y in node.inputs if y not in known]
        if missing and steps < _LOOK_BACK and all(y.type.is_static for y in missing):
            waiting += missing
            continue
        if tensor not in known:
            value = None if missing else _value_from(tensor, known)
            if value is None:
                return None
            known[tensor] = value
        waiting.pop()
    return known[x]


def _captured(x: Tensor) -> Tensor | None:
    """The outside tensor that an input of a trace represents."""
    node = x.node
    return None if node is None or node.builder is None else node.builder.captured(x)


def _value_from(tensor: Tensor, known: dict[Tensor, Any]) -> Any:
    """The value of one tensor, given those of its node's inputs; None if it is unknown now, as all
    values are whose number is."""
    node = tensor.node
    if node is None:
        return _read(tensor)
    if not tensor.type.is_static:
        return None
    op = node.op
    if isinstance(op, DimSize):
        return np.asarray(op.size, object)
    if not isinstance(op, Op):
        return None
    values = [known[y] for y in node.inputs]
    if any(v.dtype == object for v in values) and not isinstance(op, _MOVING):
        # For an open size only sums and multiples are known: it has no floating-point value.
        is_whole = all(y.dtype.is_integer for y in (*node.inputs, *node.outputs))
        return _on_sizes(op.name, values) if is_whole else None
    result = op.numpy(*values)
    if len(node.outputs) > 1 and result is not NotImplemented:
        (result,) = (v for v, y in zip(result, node.outputs, strict=True) if y is tensor)
    return None if result is NotImplemented else np.asarray(result)


#: Ops whose reference implementation also works on symbolic sizes.
_MOVING = (Concatenate, Prod, Reshape, Reverse, Slice, Sum, Transpose)
#: How many nodes `known_value` examines.
_LOOK_BACK = 256


def _on_sizes(name: str, values: list[Any]) -> Any:
    functions: dict[str, Any] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "floor_div": np.floor_divide,
        "floor_mod": np.mod,
        "identity": np.array,
        "cast": np.array,
    }
    return np.asarray(functions[name](*values), object) if name in functions else None
