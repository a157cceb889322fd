"""Creating arrays. Numbers without a dtype become float32, complex64 and int32."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegraph import array
from tracegraph.array.arguments import as_size
from tracegraph.core.types import DType, as_dtype, complex64, float32
from tracegraph.eager import backend
from tracegraph.eager.tensor_methods import check_device
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor, cast_to, has_dtype
from tracegraph.typing import DTypeLike, ShapeLike, SizeLike, TensorLike


def asarray(
    obj: TensorLike,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """Converts `obj` to a tensor.

    A tensor never changes, so it is never copied; anything else always is. Raises ValueError for
    `copy=False` if a copy is necessary.

    >>> tg.numpy.asarray([1, 2]).numpy(), tg.numpy.asarray([1.5, 2.5], dtype=tg.float64).numpy()
    (array([1, 2], dtype=int32), array([1.5, 2.5]))
    """
    check_device("asarray", device)
    wanted = None if dtype is None else as_dtype(dtype)
    if copy is False and not (isinstance(obj, Tensor) and wanted in (None, obj.dtype)):
        fact = f"asarray: {shown(obj)} becomes a tensor by a copy, and copy is False"
        fail(SignatureError, fact, fix="leave copy out, or give copy=None")
    if has_dtype(obj) or hasattr(obj, "__array__"):
        x = as_tensor(obj)
        return x if wanted is None else cast_to(x, wanted)
    return as_tensor(obj, _default_complex(obj) if wanted is None else wanted)


def _default_complex(value: Any) -> DType | None:
    """complex64 for Python's complex numbers, which TensorFlow makes complex128."""
    while isinstance(value, (list, tuple)) and value:
        if any(has_dtype(item) or hasattr(item, "__array__") for item in value):
            return None
        value = next((item for item in value if isinstance(item, (complex, list, tuple))), None)
    return complex64 if type(value) is complex else None


def arange(
    start: TensorLike,
    /,
    stop: TensorLike | None = None,
    step: TensorLike = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """start, start + step, ... up to but excluding stop; with one argument, from 0 to below it.

    >>> tg.numpy.arange(3).numpy(), tg.numpy.arange(1.0, 2.0, 0.5).numpy()
    (array([0, 1, 2], dtype=int32), array([1. , 1.5], dtype=float32))
    """
    check_device("arange", device)
    return array.range(start, stop, step, dtype)


def zeros(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """Zeros of a shape."""
    check_device("zeros", device)
    return array.zeros(shape, dtype or float32)


def ones(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """Ones of a shape."""
    check_device("ones", device)
    return array.ones(shape, dtype or float32)


def empty(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor with unspecified values, which are zeros."""
    check_device("empty", device)
    return array.zeros(shape, dtype or float32)


def full(
    shape: ShapeLike,
    fill_value: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor of the given shape, filled with one value.

    >>> tg.numpy.full((2,), 7).numpy()
    array([7, 7], dtype=int32)
    """
    return array.fill(shape, asarray(fill_value, dtype=dtype, device=device))


def zeros_like(
    x: TensorLike, /, *, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """Zeros of the shape of x."""
    check_device("zeros_like", device)
    return array.zeros_like(x, dtype)


def ones_like(
    x: TensorLike, /, *, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """Ones of the shape of x."""
    check_device("ones_like", device)
    return array.ones_like(x, dtype)


def empty_like(
    x: TensorLike, /, *, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """A tensor of the shape of x with unspecified values, which are zeros."""
    check_device("empty_like", device)
    return array.zeros_like(x, dtype)


def full_like(
    x: TensorLike,
    /,
    fill_value: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor of the shape of x, filled with one value, in the dtype of x."""
    x = as_tensor(x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device)


def eye(
    n_rows: SizeLike,
    n_cols: SizeLike | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """A matrix with ones on a diagonal: `k` is 0 for the main one, positive above it.

    >>> tg.numpy.eye(2, 3, k=1).numpy()
    array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    check_device("eye", device)
    kind = as_dtype(dtype or float32)
    if k == 0:
        return array.eye(n_rows, n_cols, dtype=kind)
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    return cast_to(_offsets(shape) == as_tensor(as_size("eye", "k", k)), kind)


def _offsets(shape: Any) -> Tensor:
    """The number of the diagonal that each element of a matrix is on, positive above the main
    one."""
    rows, columns = (array.range(size) for size in shape)
    return columns - array.expand_dims(rows, 1)  # type: ignore[operator]


def tril(x: TensorLike, /, *, k: int = 0) -> Tensor:
    """The elements on and below the diagonal `k` of each matrix, and 0 above it.

    >>> tg.numpy.tril([[1, 2], [3, 4]]).numpy()
    array([[1, 0],
           [3, 4]], dtype=int32)
    """
    x = as_tensor(x)
    is_kept = _offsets(x.shape[-2:]) <= as_tensor(as_size("tril", "k", k))  # type: ignore[operator]
    return array.where(is_kept, x, array.zeros_like(x))


def triu(x: TensorLike, /, *, k: int = 0) -> Tensor:
    """The elements on and above the diagonal `k` of each matrix, and 0 below it.

    >>> tg.numpy.triu([[1, 2], [3, 4]], k=1).numpy()
    array([[0, 2],
           [0, 0]], dtype=int32)
    """
    x = as_tensor(x)
    is_kept = _offsets(x.shape[-2:]) >= as_tensor(as_size("triu", "k", k))  # type: ignore[operator]
    return array.where(is_kept, x, array.zeros_like(x))


def linspace(
    start: TensorLike,
    stop: TensorLike,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced values from start to stop, excluding stop if not `endpoint`.

    >>> tg.numpy.linspace(0, 1, 3).numpy(), tg.numpy.linspace(0, 1, 2, endpoint=False).numpy()
    (array([0. , 0.5, 1. ], dtype=float32), array([0. , 0.5], dtype=float32))
    """
    check_device("linspace", device)
    is_complex = any(isinstance(x, (complex, np.complexfloating)) for x in (start, stop))
    kind = as_dtype(dtype or (complex64 if is_complex else float32))
    if kind.is_complex:
        first: Any = np.asarray(start)
        last: Any = np.asarray(stop)
        real = linspace(first.real, last.real, num, dtype=kind.real, endpoint=endpoint)
        imaginary = linspace(first.imag, last.imag, num, dtype=kind.real, endpoint=endpoint)
        return array.complex(real, imaginary)
    # A Python number would become float32, and lose precision that float64 has.
    start, stop = (np.float64(x) if isinstance(x, (int, float)) else x for x in (start, stop))
    if endpoint or num == 0:
        return cast_to(array.linspace(start, stop, num), kind)
    return cast_to(array.linspace(start, stop, num + 1)[:-1], kind)


def meshgrid(*arrays: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """The coordinates of a grid; the first two axes are swapped for "xy".

    >>> [x.numpy().tolist() for x in tg.numpy.meshgrid([1, 2], [3])]
    [[[1, 2]], [[3, 3]]]
    """
    return array.meshgrid(*arrays, indexing=indexing)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Converts an object with `__dlpack__`, such as a NumPy, JAX or PyTorch array, to a tensor.

    A tensor never changes, so memory that others may write to is copied. Raises ValueError for
    `copy=False` unless x is a tensor.

    >>> tg.numpy.from_dlpack(np.arange(3.0)).numpy()
    array([0., 1., 2.])
    """
    check_device("from_dlpack", device)
    if isinstance(x, Tensor):
        return x
    if copy is False:
        fact = "from_dlpack: an array becomes a tensor by a copy, and copy is False"
        fail(SignatureError, fact, fix="leave copy out, or give copy=None")
    is_on_host = x.__dlpack_device__()[0] in _HOST_DEVICES
    return as_tensor(np.from_dlpack(x) if is_on_host else backend.from_dlpack(x))


#: DLPack's numbers for memory that NumPy can read: CPU memory, and memory pinned by CUDA or ROCm.
_HOST_DEVICES = (1, 3, 11)


__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]
