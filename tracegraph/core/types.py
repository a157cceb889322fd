"""Data types and interned tensor types."""

from __future__ import annotations

import difflib
import functools
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, cast

import ml_dtypes
import numpy as np

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.shapes import (
    Shape,
    ShapeVariable,
    check_bytes,
    checked_shape,
    dimensions_text,
    element_count,
    is_static,
    same_shape,
)
from tracegraph.errors import DTypeError, Mismatch, fail, shown

if TYPE_CHECKING:
    from tracegraph.typing import DTypeLike

_KINDS = {"b": "bool", "i": "integer", "u": "integer", "f": "floating", "c": "complex"}
#: 8-bit types: tensors of them are stored, moved and converted, but not computed with.
_STORAGE = "storage"


class DType:
    """The type of the elements of a tensor: a name, its short form in dumps, and NumPy's type.

    Compares equal to whatever `as_dtype` converts to it: `tg.float32 == "float32"`.

    >>> tg.float32.name, tg.float32.size
    ('float32', 4)
    """

    __slots__ = ("is_differentiable", "kind", "name", "numpy_dtype", "short")

    def __init__(self, name: str, short: str, numpy_dtype: Any, kind: str) -> None:
        self.name = name
        self.short = short
        #: NumPy's dtype; None only for tokens.
        self.numpy_dtype: np.dtype = numpy_dtype
        self.kind = kind
        #: Whether tensors of this type have cotangents: floating and complex ones do.
        self.is_differentiable = kind in ("floating", "complex")

    @property
    def as_numpy_dtype(self) -> type[Any]:
        """NumPy's scalar type, such as `np.float32`."""
        assert self.numpy_dtype is not None, f"{self.name} has no NumPy type"
        return self.numpy_dtype.type

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype, under the name by which NumPy finds it, as in `np.zeros(3,
        tg.float32)`."""
        return self.numpy_dtype

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return self.numpy_dtype.itemsize if self.numpy_dtype is not None else 0

    @property
    def is_floating(self) -> bool:
        return self.kind == "floating"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_integer(self) -> bool:
        return self.kind == "integer"

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an integer type without negative numbers."""
        return self.is_integer and self.name.startswith("u")

    @property
    def is_storage(self) -> bool:
        """Whether tensors of it are only stored, moved and converted, but not computed with, as
        those of the 8-bit floating types are."""
        return self.kind == _STORAGE

    @property
    def is_numeric(self) -> bool:
        """Whether it is a numeric type: all are except bool."""
        return self.kind in ("integer", "floating", "complex")

    @property
    def is_quantized(self) -> bool:
        """Whether it is one of TensorFlow's quantized types: there are none here."""
        return False

    @property
    def is_numpy_compatible(self) -> bool:
        """Whether NumPy has arrays of it."""
        return self.numpy_dtype is not None

    @property
    def base_dtype(self) -> DType:
        """The type itself: there are no reference types."""
        return self

    @property
    def real(self) -> DType:
        """The type of the real part: itself, except for complex types."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def min(self) -> Any:
        """The smallest finite value."""
        return self._limits().min

    @property
    def max(self) -> Any:
        """The largest finite value."""
        return self._limits().max

    @property
    def tiny(self) -> float:
        """The smallest positive number of full precision of a floating type."""
        return float(self._limits().tiny)

    @property
    def limits(self) -> tuple[Any, Any]:
        """The range of intensities in images of this type, as in TensorFlow: 0 to 1 for floating
        types, 0 to the largest value for others."""
        if self.is_bool:
            return 0, True
        return (0, 1) if self.is_floating else (0, int(self.max))

    real_dtype = real

    def is_compatible_with(self, other: DTypeLike) -> bool:
        """Whether `other` names the same type."""
        return as_dtype(other) is self

    def _limits(self) -> Any:
        has_fractions = self.kind in ("floating", _STORAGE)
        return ml_dtypes.finfo(self.numpy_dtype) if has_fractions else np.iinfo(self.numpy_dtype)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType) or other is None:
            return False
        try:
            return as_dtype(cast("DTypeLike", other)) is self
        except outside_interrupts(TypeError):
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"tg.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"

    def __reduce__(self) -> Any:
        return as_dtype, (self.name,)


def _define(name: str, short: str) -> DType:
    numpy_dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    kind = _STORAGE if name.startswith("float8") else _KINDS.get(numpy_dtype.kind, "floating")
    return DType(name, short, numpy_dtype, kind)


bool_ = _define("bool", "bool")
int8, int16, int32, int64 = (_define(f"int{n}", f"i{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_define(f"uint{n}", f"u{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (_define(f"float{n}", f"f{n}") for n in (16, 32, 64))
bfloat16 = _define("bfloat16", "bf16")
float8_e4m3fn, float8_e5m2 = _define("float8_e4m3fn", "f8e4m3fn"), _define("float8_e5m2", "f8e5m2")
complex64, complex128 = _define("complex64", "c64"), _define("complex128", "c128")
#: The type of the values that order effects; it has no elements and no NumPy dtype.
token = DType("token", "token", None, "token")

DTYPES = (
    *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64, complex64, complex128),
    *(float8_e4m3fn, float8_e5m2, token),
)
BY_SHORT = {dtype.short: dtype for dtype in DTYPES}
_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
#: Names that mean something else to NumPy: "float" is its float64, and TensorFlow's float32.
_TENSORFLOW_NAMES = {"float": float32}
_BY_NUMPY = {dtype.numpy_dtype: dtype for dtype in DTYPES if dtype.numpy_dtype is not None}
#: What Python's own number types become where nothing else decides.
PYTHON_DTYPES: dict[type, DType] = {
    bool: bool_,
    int: int32,
    float: float32,
    complex: complex128,
}


def as_dtype(type_value: DTypeLike) -> DType:
    """The `DType` that `type_value` names: a DType, a name, a NumPy type, or Python's own type.

    Raises DTypeError, a TypeError, if there is none.

    >>> tg.as_dtype("float32"), tg.as_dtype(np.int64), tg.as_dtype(float)
    (tg.float32, tg.int64, tg.float32)
    """
    if type(type_value) is DType:
        return type_value
    if isinstance(type_value, str):
        found = _BY_NAME.get(type_value) or _TENSORFLOW_NAMES.get(type_value)
        if found is not None:
            return found
    if isinstance(type_value, type) and type_value in PYTHON_DTYPES:
        return PYTHON_DTYPES[type_value]
    try:
        if type_value is not None:  # NumPy's float64
            return _BY_NUMPY[np.dtype(type_value)]
    except outside_interrupts(TypeError, KeyError, ValueError):
        return _refuse(type_value)
    return _refuse(type_value)


def _refuse(value: Any) -> Any:
    names = [name for name in _BY_NAME if name != "token"]
    close = difflib.get_close_matches(value, names, 1, 0.75) if isinstance(value, str) else []
    fix = f"use {f'{close[0]}, or another' if close else 'one'} of {', '.join(names)}"
    if isinstance(value, int):
        fix = f"give all sizes as one list, such as tg.zeros([2, 3]), or {fix}"
    if isinstance(value, np.dtype) and value.kind in "iufc":  # of another byte order, or too long
        size = min(value.itemsize, 16 if value.kind == "c" else 8)
        fix = f"convert the array: x.astype({np.dtype(f'{value.kind}{size}').name!r})"
    fail(DTypeError, f"{shown(value)} is not a data type", fix=fix)


class TensorType:
    """An element type and a shape. Interned: equal types are the same object.

    Raises InvalidArgumentError for a tensor that no machine can hold: every value has a type, so
    this is the one place that checks sizes, before anything is allocated or compiled.

    >>> str(tg.TensorType(tg.float32, (2, 3)))
    'f32[2,3]'
    """

    __slots__ = ("__weakref__", "dtype", "is_static", "shape")

    _interned: ClassVar[weakref.WeakValueDictionary[tuple[DType, Shape], TensorType]] = (
        weakref.WeakValueDictionary()
    )
    dtype: DType
    shape: Shape
    is_static: bool

    def __new__(cls, dtype: DType, shape: Shape = ()) -> TensorType:
        key = (dtype, shape)
        found = cls._interned.get(key)
        if found is not None:
            return found
        if dtype is token and shape != ():
            raise Mismatch("a token has no shape: it orders effects and holds nothing")
        new = super().__new__(cls)
        new.dtype = dtype
        new.shape = checked_shape(shape)
        new.is_static = is_static(new.shape)
        if new.is_static:
            check_bytes(dtype.short, new.shape, dtype.size)
        # setdefault, so that two threads racing here agree on one object.
        return cls._interned.setdefault((dtype, new.shape), new)

    def with_shape(self, shape: Shape) -> TensorType:
        return type(self)(self.dtype, shape if isinstance(shape, ShapeVariable) else tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def fits(self, other: TensorType) -> bool:
        """Whether the dtypes are equal and the shapes can be."""
        return self.dtype is other.dtype and same_shape(self.shape, other.shape) is not None

    @property
    def rank(self) -> int | None:
        """Number of axes; None when it is unknown."""
        return None if isinstance(self.shape, ShapeVariable) else len(self.shape)

    def __str__(self) -> str:
        if self.dtype is token:
            return "token"
        return f"{self.dtype.short}[{dimensions_text(self.shape)}]"

    def __repr__(self) -> str:
        return f"TensorType({self})"

    def __reduce__(self) -> Any:
        return TensorType, (self.dtype, self.shape)


TOKEN = TensorType(token)


@functools.lru_cache(1024)
def bytes_of_type(type: TensorType) -> Any:
    """The bytes of a tensor of a type: an int, or a size if one of its sizes is open."""
    return element_count(type.shape) * type.dtype.size


def rank_fix(*types: TensorType) -> str:
    """How to give the rank of the first of these types that has none; otherwise empty."""
    for x in types:
        if isinstance(x.shape, ShapeVariable):
            return x.shape.rank_fix(x.dtype.name)
    return ""


@functools.lru_cache(1024)
def _array_type(numpy_dtype: np.dtype, shape: tuple[int, ...]) -> TensorType:
    return TensorType(as_dtype(numpy_dtype), shape)


def type_of_array(array: Any) -> TensorType:
    """The type of anything with NumPy's `dtype` and `shape`."""
    return _array_type(array.dtype, tuple(array.shape))
