"""Layers that merge several inputs: sums, products, extremes, concatenation."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from tracegraph.array.arguments import as_axis, as_flag, as_size, as_sizes, rank_of, refuse
from tracegraph.array.creation import ones_like
from tracegraph.array.joining import concat
from tracegraph.array.shaping import expand_dims
from tracegraph.errors import shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise import arithmetic
from tracegraph.math.elementwise.logic import logical_and, logical_or
from tracegraph.math.norms import l2_normalize
from tracegraph.math.product import einsum
from tracegraph.math.reduction import reduce_any
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import DTypeLike, Nest, TensorLike


class _MergeSettings(TypedDict, total=False):
    """What the layer of a function takes besides."""

    name: str | None
    dtype: DTypeLike


class _Merge(Layer):
    """Merges several tensors, which broadcast, into one."""

    #: The least and the greatest number of inputs.
    fewest, most = 1, 10**6
    combine: Callable[[Any, Any], Tensor]

    def _as_inputs(self, inputs: Any) -> Any:
        op = type(self).__name__
        if not isinstance(inputs, (list, tuple)) or not self.fewest <= len(inputs) <= self.most:
            number = "two tensors" if self.most == 2 else "a list of tensors"
            fix = f"call it with one: tg.layers.{op}()([x, y])"
            refuse(op, f"it takes {number}, and was given {shown(inputs)}", fix=fix)
        return [super(_Merge, self)._as_inputs(x) for x in inputs]

    def call(self, inputs: Sequence[TensorLike]) -> Tensor:
        return functools.reduce(type(self).combine, self._aligned(inputs))

    def compute_mask(self, inputs: Nest, mask: Nest = None) -> TensorLike | None:
        """Where a step of any of the inputs counts; None if one of them has no mask."""
        masks: Any = mask
        if masks is None or any(m is None for m in masks):
            return None
        return functools.reduce(logical_or, masks)

    def _aligned(self, inputs: Any) -> list[Tensor]:
        """The inputs with equal ranks: new axes are inserted after the axis of examples."""
        tensors = [as_tensor(x) for x in inputs]
        ranks = [rank_of(type(self).__name__, x) for x in tensors]
        most = max(ranks)
        for k, (x, rank) in enumerate(zip(tensors, ranks)):
            for _ in range(most - rank if rank else 0):
                x = expand_dims(x, 1)
            tensors[k] = x
        return tensors


class Add(_Merge):
    """The sum of a list of tensors.

    Inputs of lower rank get axes of size 1 after the axis of examples, and sizes broadcast.
    Raises ShapeError if they do not broadcast, or if the inputs are not a list.

    >>> tg.layers.Add()([[[1.0]], [[2.0]], [[3.0]]]).numpy()
    array([[6.]], dtype=float32)
    """

    combine = staticmethod(arithmetic.add)


class Subtract(_Merge):
    """The first of two tensors minus the second; see `Add`.

    >>> tg.layers.Subtract()([[[1.0]], [[2.0]]]).numpy()
    array([[-1.]], dtype=float32)
    """

    fewest, most = 2, 2
    combine = staticmethod(arithmetic.subtract)


class Multiply(_Merge):
    """The product of a list of tensors; see `Add`.

    >>> tg.layers.Multiply()([[[2.0]], [[3.0]]]).numpy()
    array([[6.]], dtype=float32)
    """

    combine = staticmethod(arithmetic.multiply)


class Average(_Merge):
    """The mean of a list of tensors; see `Add`.

    >>> tg.layers.Average()([[[1.0]], [[2.0]]]).numpy()
    array([[1.5]], dtype=float32)
    """

    combine = staticmethod(arithmetic.add)

    def call(self, inputs: Sequence[TensorLike]) -> Tensor:
        return arithmetic.divide(super().call(inputs), float(len(inputs)))


class Maximum(_Merge):
    """The elementwise maximum of a list of tensors; see `Add`.

    >>> tg.layers.Maximum()([[[1.0, 5.0]], [[2.0, 3.0]]]).numpy()
    array([[2., 5.]], dtype=float32)
    """

    combine = staticmethod(arithmetic.maximum)


class Minimum(_Merge):
    """The elementwise minimum of a list of tensors; see `Add`.

    >>> tg.layers.Minimum()([[[1.0, 5.0]], [[2.0, 3.0]]]).numpy()
    array([[1., 3.]], dtype=float32)
    """

    combine = staticmethod(arithmetic.minimum)


class Concatenate(_Merge):
    """Concatenates a list of tensors along `axis`.

    Raises ShapeError if the other sizes differ.

    >>> tg.layers.Concatenate()([[[1.0]], [[2.0, 3.0]]]).numpy()
    array([[1., 2., 3.]], dtype=float32)
    """

    @takes_options
    def __init__(self, axis: int = -1, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.axis = as_size("Concatenate", "axis", axis)

    def call(self, inputs: Sequence[TensorLike]) -> Tensor:
        return concat(inputs, self.axis)  # type: ignore[arg-type]

    def compute_mask(self, inputs: Nest, mask: Nest = None) -> TensorLike | None:
        """Where a step counts in any of the inputs, or, if steps are what is concatenated, in its
        own; one without a mask counts everywhere. None if there is no mask."""
        if mask is None:
            return None
        pairs: Any = zip(inputs, mask)  # type: ignore[arg-type]
        whole = [_whole_mask(x, m) for x, m in pairs]
        return reduce_any(concat(whole, self.axis), -1)


def _whole_mask(x: Tensor, mask: Any) -> Tensor:
    """A mask of each number of x."""
    all_count = ones_like(x, "bool")
    if mask is None:
        return all_count
    flags = as_tensor(mask)
    return logical_and(expand_dims(flags, -1) if flags.ndim < x.ndim else flags, all_count)


class Dot(_Merge):
    """The product of two tensors, summed along one axis of each, for each example.

    - `axes`: an axis of both, or one of each; not axis 0, which holds the examples.
    - `normalize`: whether to first scale the vectors along these axes to norm 1, which gives
      cosines.

    Raises ShapeError for axes that do not fit.

    >>> x, y = tg.ones([2, 3, 4]), tg.ones([2, 5, 4])
    >>> tg.layers.Dot(axes=2)([x, y]).shape
    TensorShape([2, 3, 5])
    """

    fewest, most = 2, 2

    @takes_options
    def __init__(
        self, axes: int | Sequence[int], normalize: bool = False, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        numbers = as_sizes("Dot", "axes", axes)
        self.axes = numbers * 2 if len(numbers) == 1 else numbers
        if len(self.axes) != 2:
            refuse("Dot", f"axes is {shown(axes)}", fix="use one int, or two")
        self.normalize = as_flag("Dot", "normalize", normalize)

    def call(self, inputs: Sequence[TensorLike]) -> Tensor:
        tensors = [as_tensor(x) for x in inputs]
        ranks = [rank_of("Dot", x) for x in tensors]
        rows = zip(self.axes, ranks, tensors)
        axes = [as_axis("Dot", axis, rank, x) for axis, rank, x in rows]
        if 0 in axes:
            fact = f"axes is {self.axes}, and axis 0 is that of the examples"
            refuse("Dot", fact, *tensors, fix="use axes after it")
        if self.normalize:
            tensors = [l2_normalize(x, axis) for x, axis in zip(tensors, axes)]
        return einsum(_equation(ranks, axes), *tensors) if sum(ranks) > 4 else _of_vectors(tensors)

    def compute_mask(self, inputs: Nest, mask: Nest = None) -> None:
        """None: the steps of the inputs are summed over, or meet those of the other."""


def _equation(ranks: list[int], axes: list[int]) -> str:
    """An einsum equation, where "a" is the axis of examples and "z" the one summed over."""
    letters = iter(string.ascii_lowercase[1:-1])
    terms = [
        "a" + "".join("z" if k == axis else next(letters) for k in range(1, rank))
        for rank, axis in zip(ranks, axes)
    ]
    return f"{','.join(terms)}->a{''.join(terms).replace('a', '').replace('z', '')}"


def _of_vectors(tensors: list[Tensor]) -> Tensor:
    """[examples, 1]: the product of two vectors per example keeps an axis."""
    return expand_dims(einsum("az,az->a", *tensors), 1)


def add(inputs: Sequence[TensorLike], **settings: Unpack[_MergeSettings]) -> Tensor:
    """The sum of a list of tensors: `tg.layers.Add(**settings)(inputs)`.

    >>> tg.layers.add([[[1.0]], [[2.0]]]).numpy()
    array([[3.]], dtype=float32)
    """
    return Add(**settings)(inputs)


def subtract(inputs: Sequence[TensorLike], **settings: Unpack[_MergeSettings]) -> Tensor:
    """The difference of two tensors: `tg.layers.Subtract(**settings)(inputs)`.

    >>> tg.layers.subtract([[[1.0]], [[2.0]]]).numpy()
    array([[-1.]], dtype=float32)
    """
    return Subtract(**settings)(inputs)


def multiply(inputs: Sequence[TensorLike], **settings: Unpack[_MergeSettings]) -> Tensor:
    """The elementwise product of a list of tensors: `tg.layers.Multiply(...)(inputs)`.

    >>> tg.layers.multiply([[[3.0]], [[2.0]]]).numpy()
    array([[6.]], dtype=float32)
    """
    return Multiply(**settings)(inputs)


def average(inputs: Sequence[TensorLike], **settings: Unpack[_MergeSettings]) -> Tensor:
    """The mean of a list of tensors: `tg.layers.Average(**settings)(inputs)`.

    >>> tg.layers.average([[[1.0]], [[2.0]]]).numpy()
    array([[1.5]], dtype=float32)
    """
    return Average(**settings)(inputs)


def maximum(inputs: Sequence[TensorLike], **settings: Unpack[_MergeSettings]) -> Tensor:
    """The elementwise maximum of a list of tensors: `tg.layers.Maximum(...)(inputs)`.

    >>> tg.layers.maximum([[[1.0]], [[2.0]]]).numpy()
    array([[2.]], dtype=float32)
    """
    return Maximum(**settings)(inputs)


def minimum(inputs: Sequence[TensorLike], **settings: Unpack[_MergeSettings]) -> Tensor:
    """The elementwise minimum of a list of tensors: `tg.layers.Minimum(...)(inputs)`.

    >>> tg.layers.minimum([[[1.0]], [[2.0]]]).numpy()
    array([[1.]], dtype=float32)
    """
    return Minimum(**settings)(inputs)


def concatenate(
    inputs: Sequence[TensorLike], axis: int = -1, **settings: Unpack[_MergeSettings]
) -> Tensor:
    """Concatenates a list of tensors: `tg.layers.Concatenate(axis, ...)(inputs)`.

    >>> tg.layers.concatenate([[[1.0]], [[2.0, 3.0]]]).numpy()
    array([[1., 2., 3.]], dtype=float32)
    """
    return Concatenate(axis, **settings)(inputs)


def dot(
    inputs: Sequence[TensorLike], axes: int | Sequence[int] = -1, **settings: Unpack[_MergeSettings]
) -> Tensor:
    """The product of two tensors along one axis of each: `tg.layers.Dot(axes, ...)(inputs)`.

    >>> tg.layers.dot([[[1.0, 2.0]], [[3.0, 4.0]]]).numpy()
    array([[11.]], dtype=float32)
    """
    return Dot(axes, **settings)(inputs)
