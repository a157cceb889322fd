"""What annotations say: the values that stand for tensors, shapes, axes, indices and data types.

>>> from tracegraph.typing import TensorLike
>>> def double(x: TensorLike) -> tg.Tensor:
...     return tg.multiply(x, 2.0)
>>> double([1.0, 2.0]).numpy()
array([2., 4.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.types import DType
from tracegraph.ir.tensor import Tensor
from tracegraph.state.variable import Variable

if TYPE_CHECKING:  # few programs divide tensors, and its file is opened by those that do
    from tracegraph.eager.layouts import Layout


class SupportsArray(Protocol):
    """What NumPy makes an array of, such as an array of JAX or PyTorch."""

    def __array__(self) -> npt.NDArray[Any]: ...


class SupportsShards(Protocol):
    """What JAX calls a sharding."""

    @property
    def is_fully_replicated(self) -> bool: ...


#: What becomes a tensor: a tensor, a Variable, an array, a number, or numbers in lists.
#: What stands in a list is `Any`, since lists of numbers, of tensors and of lists all do.
TensorLike: TypeAlias = (
    Tensor
    | Variable
    | bool
    | int
    | float
    | complex
    | np.ndarray[Any, Any]
    | np.generic
    | SupportsArray
    | list[Any]
    | tuple[Any, ...]
    | range
    | Dim
)

#: Sizes: ints, symbolic sizes, and scalar tensors whose value is known, or all in one tensor.
#: None is a size that is open, where there may be such.
ShapeLike: TypeAlias = (
    Sequence[int | np.integer[Any] | Dim | Tensor | Variable | None]
    | Tensor
    | Variable
    | np.ndarray[Any, Any]
    | int
    | ShapeVariable
)

#: A count or a size: an int, a symbolic size, or a scalar tensor.
SizeLike: TypeAlias = int | np.integer[Any] | Dim | Tensor | Variable

#: What `tg.as_dtype` takes: a DType, a name, a type of NumPy, or `bool`, `int`, `float`, `complex`.
DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]

#: One axis, several, or None for all.
Axis: TypeAlias = int | Sequence[int] | np.ndarray[Any, Any] | Tensor | None

#: What stands in the brackets of `x[...]`; several of them make a tuple.
Index: TypeAlias = TensorLike | slice | EllipsisType | None

#: Tensors in lists, tuples, dicts, and what else `tg.nest` opens.
Nest: TypeAlias = TensorLike | Mapping[Any, Any] | None

#: Sizes or steps of a window: one for all axes, or one for each.
Window: TypeAlias = int | Sequence[int]

#: What a layer applies to its result: a function, its name, or None for nothing.
ActivationLike: TypeAlias = str | Callable[[Tensor], Tensor] | None

#: What makes the first value of a weight: an initializer, a function of shape and dtype, or a name.
InitializerLike: TypeAlias = str | Callable[..., TensorLike]

#: What a layer adds to the loss for a weight: a function of it, its name, or None for nothing.
RegularizerLike: TypeAlias = str | Callable[..., TensorLike] | None

#: What optimizers apply to a weight after an update: a function, its name, or None for nothing.
ConstraintLike: TypeAlias = str | Callable[..., TensorLike] | None

#: The rate of an optimizer: a number, a Variable, or a function, of the step or of nothing.
Rate: TypeAlias = TensorLike | Callable[..., TensorLike]

#: How a tensor is divided among devices: a Layout, JAX's NamedSharding, or inside `with mesh:` a
#: list with the name of an axis of the mesh, several, or None for each axis of the tensor.
LayoutLike: TypeAlias = "Layout | SupportsShards | Sequence[str | Sequence[str] | None]"
