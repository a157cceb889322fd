"""Types for annotations: values accepted as tensors, shapes, axes, indices and dtypes.

>>> from tracegraph.typing import TensorLike
>>> def double(x: TensorLike) -> tg.Tensor:
...     return tg.multiply(x, 2.0)
>>> double([1.0, 2.0]).numpy()
array([2., 4.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.types import DType
from tracegraph.ir.tensor import Tensor
from tracegraph.state.variable import Variable

if TYPE_CHECKING:  # few programs shard tensors, and only those should load its file
    from tracegraph.eager.layouts import Layout


class SupportsArray(Protocol):
    """An object that NumPy converts to an array, such as a JAX or PyTorch array."""

    def __array__(self) -> npt.NDArray[Any]: ...


class SupportsShards(Protocol):
    """A JAX sharding."""

    @property
    def is_fully_replicated(self) -> bool: ...


#: What is one tensor wherever it stands: a tensor, a Variable, an array, or a number.
Leaf: TypeAlias = (
    Tensor
    | Variable
    | bool
    | int
    | float
    | complex
    | np.ndarray[Any, Any]
    | np.generic
    | SupportsArray
    | Dim
)

#: Anything converted to a tensor: a tensor, a Variable, an array, a number, or lists of numbers.
#: List items are `Any`, since lists of numbers, of tensors and of lists are all allowed.
TensorLike: TypeAlias = Leaf | list[Any] | tuple[Any, ...] | range

#: Sizes: ints, symbolic sizes, and scalar tensors with known values, or all in one tensor.
#: None stands for an open size, where one is allowed.
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

#: Pairs of axes: how many, or the axes of the one and of the other operand.
AxisPairs: TypeAlias = Axis | Sequence[Sequence[int]]

#: An index inside `x[...]`; several of them form a tuple.
Index: TypeAlias = TensorLike | slice | EllipsisType | None

#: Lists, tuples and dicts of tensors, or of more of them.
Structure: TypeAlias = list[Any] | tuple[Any, ...] | Mapping[Any, Any]

#: Tensors in lists, tuples, dicts, and anything else that `tg.nest` opens.
Nest: TypeAlias = TensorLike | Mapping[Any, Any] | None

#: Tensors and Variables, alone or in lists, tuples and dicts: what a tape watches.
Tensors: TypeAlias = Tensor | Variable | Structure

#: Sizes or steps of a window: one for all axes, or one per axis.
Window: TypeAlias = int | Sequence[int]

_Result = TypeVar("_Result")

#: A function called with arguments by position, however many: to checkers, those of a lambda are
#: `Any`, where `Callable[..., Result]` would leave them unknown.
Positional: TypeAlias = (
    Callable[[], _Result]
    | Callable[[Any], _Result]
    | Callable[[Any, Any], _Result]
    | Callable[[Any, Any, Any], _Result]
    | Callable[Concatenate[Any, Any, Any, Any, ...], _Result]
)

#: An activation: a function applied to a layer's output, its name, or None.
ActivationLike: TypeAlias = str | Callable[[Tensor], Tensor] | None

#: An initializer of a weight: a function of shape and dtype, or its name.
InitializerLike: TypeAlias = str | Callable[[Any, Any], TensorLike]

#: A regularizer: a function of a weight that is added to the loss, its name, or None.
RegularizerLike: TypeAlias = str | Callable[[Any], TensorLike] | None

#: A constraint: a function applied to a weight after an update, its name, or None.
ConstraintLike: TypeAlias = str | Callable[[Any], TensorLike] | None

#: A learning rate: a number, a Variable, or a function of the step or of no arguments.
Rate: TypeAlias = TensorLike | Callable[[Any], TensorLike] | Callable[[], TensorLike]

#: How to shard a tensor over devices: a Layout, a JAX NamedSharding, or inside `with mesh:` a list
#: with, for each axis of the tensor, the name of a mesh axis, several names, or None.
LayoutLike: TypeAlias = "Layout | SupportsShards | Sequence[str | Sequence[str] | None]"
