"""The names of the Python array API standard, for code that asks an array for its namespace.

`x.__array_namespace__()` is this module: what tracegraph has, under the names and with the
arguments of the standard. What it has not is not here, such as sets, `linalg` and `fft`. Numbers
without a type are float32 and int32, as everywhere in tracegraph.
"""

from __future__ import annotations

import builtins
import math as python_math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph import array, math
from tracegraph.array.arguments import as_choice, as_list
from tracegraph.core.types import DTYPES, DType, as_dtype, bool_, float32
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, cast_to, promoted, refuse_mix
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from tracegraph.typing import Axis, DTypeLike, ShapeLike, TensorLike

e, inf, nan, newaxis, pi = python_math.e, python_math.inf, python_math.nan, None, python_math.pi
bool = bool_
globals().update({dtype.name: dtype for dtype in DTYPES if dtype.numpy_dtype is not None})

#: Functions that have the name and the arguments that they have in the standard.
_SAME = (
    "abs acos acosh add asin asinh atan atan2 atanh ceil conj cos cosh divide equal exp expm1 "
    "floor greater greater_equal imag less less_equal log log1p logical_and logical_not logical_or "
    "logical_xor matmul maximum minimum multiply negative not_equal pow real round sign sin sinh "
    "sqrt square subtract tan tanh broadcast_to reshape squeeze stack expand_dims tile where"
)
#: Those that have another name there.
_RENAMED = {
    "floor_divide": "floordiv",
    "isfinite": "is_finite",
    "isinf": "is_inf",
    "isnan": "is_nan",
    "permute_dims": "transpose",
    "remainder": "mod",
}
_OWN = {**vars(math), **vars(array)}
globals().update({name: _OWN[_RENAMED.get(name, name)] for name in (*_SAME.split(), *_RENAMED)})


# Making arrays.


def asarray(
    obj: Any, /, *, dtype: DTypeLike | None = None, device: Any = None, copy: Any = None
) -> Tensor:
    """`obj` as a tensor; a tensor never changes, so it is never copied.

    >>> xp = tg.zeros([2]).__array_namespace__()
    >>> xp.sum(xp.asarray([1.0, 2.0])).numpy()
    np.float32(3.0)
    """
    x = as_tensor(obj)
    return x if dtype is None else cast_to(x, as_dtype(dtype))


def arange(
    start: TensorLike,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
) -> Tensor:
    """start, start + step, ... up to but without stop."""
    return array.range(start, stop, step, dtype)


def zeros(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: Any = None) -> Tensor:
    """Zeros of a shape."""
    return array.zeros(shape, dtype or float32)


def ones(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: Any = None) -> Tensor:
    """Ones of a shape."""
    return array.ones(shape, dtype or float32)


def full(
    shape: ShapeLike, fill_value: TensorLike, *, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """A shape filled with one value."""
    return array.fill(shape, asarray(fill_value, dtype=dtype))


def zeros_like(x: TensorLike, /, *, dtype: DTypeLike | None = None, device: Any = None) -> Tensor:
    """Zeros of the shape of x."""
    return array.zeros_like(x, dtype)


def ones_like(x: TensorLike, /, *, dtype: DTypeLike | None = None, device: Any = None) -> Tensor:
    """Ones of the shape of x."""
    return array.ones_like(x, dtype)


def full_like(
    x: TensorLike, /, fill_value: TensorLike, *, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """The shape of x filled with one value."""
    x = as_tensor(x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype)


def eye(
    n_rows: Any, n_cols: Any = None, /, *, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """A matrix with ones on the diagonal."""
    return array.eye(n_rows, n_cols, dtype=dtype or float32)


def linspace(
    start: TensorLike, stop: Any, /, num: int, *, dtype: DTypeLike | None = None, device: Any = None
) -> Tensor:
    """`num` values from start to stop, both included."""
    return asarray(array.linspace(start, stop, num), dtype=dtype)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """The coordinates of a grid."""
    return array.meshgrid(*arrays, indexing=indexing)


# Moving elements.


def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """The arrays one after another; flattened before without an axis."""
    arrays = as_list("concat", "arrays", arrays)
    if axis is None:
        arrays, axis = [array.reshape(x, [-1]) for x in arrays], 0
    return array.concat(arrays, axis)


def flip(x: TensorLike, /, *, axis: Axis = None) -> Tensor:
    """x with the order along the axes turned round."""
    x = as_tensor(x)
    return array.reverse(x, list(range(x.ndim)) if axis is None else axis)


def roll(x: TensorLike, /, shift: TensorLike, *, axis: Axis = None) -> Tensor:
    """x moved along the axes; as a row of all its elements without them."""
    x = as_tensor(x)
    if axis is None:
        return array.reshape(array.roll(array.reshape(x, [-1]), shift, 0), x.shape)
    return array.roll(x, shift, axis)


def matrix_transpose(x: TensorLike, /) -> Tensor:
    """x with the last two axes exchanged."""
    x = as_tensor(x)
    return array.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def take(x: TensorLike, indices: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """The elements at indices along an axis, which a vector does not need."""
    return array.gather(x, indices, axis=0 if axis is None else axis)


# Reductions.


def sum(
    x: TensorLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: Any = False
) -> Tensor:
    """The sum along the axes."""
    return math.reduce_sum(asarray(x, dtype=dtype), axis, keepdims)


def prod(
    x: TensorLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: Any = False
) -> Tensor:
    """The product along the axes."""
    return math.reduce_prod(asarray(x, dtype=dtype), axis, keepdims)


def mean(x: TensorLike, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """The mean along the axes."""
    return math.reduce_mean(x, axis, keepdims)


def max(x: TensorLike, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """The largest element along the axes."""
    return math.reduce_max(x, axis, keepdims)


def min(x: TensorLike, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """The smallest element along the axes."""
    return math.reduce_min(x, axis, keepdims)


def all(x: TensorLike, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """Whether all elements along the axes are true."""
    return math.reduce_all(asarray(x, dtype=bool_), axis, keepdims)


def any(x: TensorLike, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """Whether some element along the axes is true."""
    return math.reduce_any(asarray(x, dtype=bool_), axis, keepdims)


# Types.


def astype(x: TensorLike, dtype: DTypeLike, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """x in another data type."""
    return cast_to(as_tensor(x), as_dtype(dtype))


def isdtype(dtype: DTypeLike, kind: Any) -> builtins.bool:
    """Whether a data type is of a kind, or of one of several.

    >>> xp = tg.zeros([2]).__array_namespace__()
    >>> xp.isdtype(tg.float32, "real floating"), xp.isdtype(tg.int32, ("bool", tg.float32))
    (True, False)
    """
    own = as_dtype(dtype)
    if isinstance(kind, tuple):
        return builtins.any(isdtype(own, one) for one in kind)
    if isinstance(kind, DType):
        return own is kind
    is_unsigned = own.name.startswith("uint")
    found = {
        "bool": own.is_bool,
        "signed integer": own.is_integer and not is_unsigned,
        "unsigned integer": is_unsigned,
        "integral": own.is_integer,
        "real floating": own.is_floating,
        "complex floating": own.is_complex,
        "numeric": not own.is_bool,
    }
    return found[as_choice("isdtype", "kind", kind, tuple(found))]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type that all promote to. Raises DTypeError if they do not mix."""
    first, *others = (_dtype_of(x) for x in arrays_and_dtypes)
    for other in others:
        x, y = (array.zeros([], dtype) for dtype in (first, other))
        first = promoted(first, other) or refuse_mix("result_type", x, y)
    return first


def finfo(type: Any, /) -> Any:
    """Limits of a floating type, as NumPy tells them."""
    return np.finfo(_dtype_of(type).real.numpy_dtype)


def iinfo(type: Any, /) -> Any:
    """Limits of an integer type, as NumPy tells them."""
    return np.iinfo(_dtype_of(type).numpy_dtype)


def _dtype_of(value: Any) -> DType:
    return value.dtype if isinstance(value, (Tensor, Variable)) else as_dtype(value)


def _namespace(self: Any, /, *, api_version: str | None = None) -> Any:
    """The functions of the array API standard: the module `tracegraph.api.array_api`."""
    return sys.modules[__name__]


Tensor.__array_namespace__ = _namespace  # type: ignore[attr-defined]
