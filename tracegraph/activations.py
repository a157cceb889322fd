"""Activations with Keras' names and arguments: functions of a tensor, also known by name.

>>> tg.activations.get("relu")([-1.0, 2.0]).numpy()
array([0., 2.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegraph import nn
from tracegraph.api.absent import publish
from tracegraph.array.arguments import as_axes, as_axis, as_number, rank_of, sizes_of
from tracegraph.array.creation import range as numbers
from tracegraph.array.indexing.selection import where
from tracegraph.array.joining import split
from tracegraph.array.shaping import reshape
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise import unary
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    divide_no_nan,
    maximum,
    minimum,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.logic import greater, is_nan
from tracegraph.math.elementwise.unary import (
    abs,
    exp,
    expm1,
    log_sigmoid as log_sigmoid,
    negative,
    sqrt,
    square,
    tanh as tanh,
)
from tracegraph.math.reduction import cumsum, reduce_max, reduce_sum
from tracegraph.math.sorting import sort
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.operands.logits import with_logits
from tracegraph.ops.broadcast import zeros_of
from tracegraph.ops.elementwise import Maximum
from tracegraph.typing import Axis, TensorLike

exponential = exp


def linear(x: TensorLike) -> Tensor:
    """x

    >>> tg.activations.linear([1.0]).numpy()
    array([1.], dtype=float32)
    """
    return as_tensor(x)


def relu(
    x: TensorLike,
    negative_slope: float = 0.0,
    max_value: float | None = None,
    threshold: float = 0.0,
) -> Tensor:
    """x where it is above `threshold`, else negative_slope * (x - threshold); at most `max_value`.

    Raises ValueError for a negative slope or maximum.

    >>> tg.activations.relu([-1.0, 2.0, 9.0], max_value=6.0).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    slope = as_number("relu", "negative_slope", negative_slope, low=0)
    edge = as_number("relu", "threshold", threshold)
    y = as_tensor(x)
    if slope or edge:
        below = multiply(subtract(y, edge), slope)
        y = where(y > edge, y, below)  # type: ignore[operator]
    else:
        y = nn.relu(y)
    if max_value is None:
        return y
    return minimum(y, as_number("relu", "max_value", max_value, low=0))


def relu6(x: TensorLike) -> Tensor:
    """x, clipped to [0, 6].

    >>> tg.activations.relu6([-1.0, 2.0, 9.0]).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    return nn.relu6(x)


def leaky_relu(x: TensorLike, negative_slope: float = 0.2) -> Tensor:
    """x where it is positive, else negative_slope * x (Maas and others 2013).

    >>> tg.activations.leaky_relu([-1.0, 2.0]).numpy()
    array([-0.2,  2. ], dtype=float32)
    """
    return nn.leaky_relu(x, as_number("leaky_relu", "negative_slope", negative_slope))


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where it is not negative, else alpha * (e ** x - 1) (Clevert and others 2015).

    >>> tg.activations.elu([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ], dtype=float32)
    """
    y = nn.elu(x)
    scale = as_number("elu", "alpha", alpha)
    return y if scale == 1 else where(y < 0, multiply(y, scale), y)  # type: ignore[operator]


def celu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(alpha * (e ** (x / alpha) - 1), 0), with the derivative nan at nan (Barron
    2017)

    >>> tg.activations.celu([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ], dtype=float32)
    """
    y, scale = as_tensor(x), as_number("celu", "alpha", alpha)
    positive = Maximum(keeps_nan=True)(zeros_of(y), y)
    return add(positive, multiply(expm1(divide(minimum(y, 0), scale)), scale))


def selu(x: TensorLike) -> Tensor:
    """elu(x, 1.6733), times 1.0507 (Klambauer and others 2017)

    >>> tg.activations.selu([0.0, 1.0]).numpy().round(4)
    array([0.    , 1.0507], dtype=float32)
    """
    return nn.selu(x)


def gelu(x: TensorLike, approximate: bool = False) -> Tensor:
    """x times the probability that a normal number is below x; see `tg.nn.gelu`.

    >>> tg.activations.gelu([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.8413], dtype=float32)
    """
    return nn.gelu(x, approximate)


def silu(x: TensorLike) -> Tensor:
    """x * sigmoid(x)

    >>> tg.activations.silu([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7311], dtype=float32)
    """
    return nn.silu(x)


swish = silu


def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + e ** -x)

    The result holds on to x, of which binary cross entropies and their gradients are computed: as
    in Keras they are exact for any x, though the sigmoid of 20 is 1 in float32.

    >>> tg.activations.sigmoid([0.0, 1.0]).numpy().round(4)
    array([0.5   , 0.7311], dtype=float32)
    >>> float(tg.losses.binary_crossentropy([0.0], tg.activations.sigmoid([30.0])))
    30.0
    """
    y = as_tensor(x)
    return with_logits(unary.sigmoid(y), y, None)


def softmax(x: TensorLike, axis: Axis = -1) -> Tensor:
    """e ** x / sum(e ** x) along `axis`, without overflow.

    The result holds on to x, of which categorical cross entropies and their gradients are computed:
    as in Keras they are exact for any x.

    >>> tg.activations.softmax([1.0, 1.0]).numpy()
    array([0.5, 0.5], dtype=float32)
    >>> p = tg.activations.softmax([[30.0, 0.0]])
    >>> tg.losses.sparse_categorical_crossentropy([1], p).numpy()
    array([30.], dtype=float32)
    """
    y = as_tensor(x)
    p = nn.softmax(y, axis)
    axes = as_axes("softmax", -1 if axis is None else axis, rank_of("softmax", y), y)
    return with_logits(p, y, axes[0]) if len(axes) == 1 else p


def log_softmax(x: TensorLike, axis: Axis = -1) -> Tensor:
    """x - log(sum(e ** x)) along `axis`, without overflow.

    >>> tg.activations.log_softmax([1.0, 1.0]).numpy().round(4)
    array([-0.6931, -0.6931], dtype=float32)
    """
    return nn.log_softmax(x, axis)


def softplus(x: TensorLike) -> Tensor:
    """log(1 + e ** x), without overflow.

    >>> tg.activations.softplus([0.0]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    return unary.softplus(x)


def softsign(x: TensorLike) -> Tensor:
    """x / (1 + |x|)

    >>> tg.activations.softsign([-1.0, 3.0]).numpy()
    array([-0.5 ,  0.75], dtype=float32)
    """
    return unary.softsign(x)


def glu(x: TensorLike, axis: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the halves of x along `axis` (Dauphin and others 2016).

    Raises ShapeError if there are no equal halves.

    >>> tg.activations.glu([3.0, 0.0]).numpy()
    array([1.5], dtype=float32)
    """
    a, b = split(as_tensor(x), 2, axis)
    return multiply(a, sigmoid(b))


def hard_sigmoid(x: TensorLike) -> Tensor:
    """x / 6 + 1 / 2, clipped to [0, 1].

    >>> tg.activations.hard_sigmoid([-9.0, 0.0, 9.0]).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return divide(relu6(add(as_tensor(x), 3.0)), 6.0)


def hard_silu(x: TensorLike) -> Tensor:
    """x * hard_sigmoid(x) (Howard and others 2019)

    >>> tg.activations.hard_silu([-9.0, 3.0]).numpy()
    array([-0.,  3.], dtype=float32)
    """
    return multiply(as_tensor(x), hard_sigmoid(x))


hard_swish = hard_silu


def hard_tanh(x: TensorLike) -> Tensor:
    """x, clipped to [-1, 1].

    >>> tg.activations.hard_tanh([-9.0, 0.5]).numpy()
    array([-1. ,  0.5], dtype=float32)
    """
    return clip_by_value(as_tensor(x), -1.0, 1.0)


def hard_shrink(x: TensorLike, threshold: float = 0.5) -> Tensor:
    """x where abs(x) is above `threshold`, else 0.

    >>> tg.activations.hard_shrink([-0.3, 2.0]).numpy()
    array([0., 2.], dtype=float32)
    """
    y, edge = as_tensor(x), as_number("hard_shrink", "threshold", threshold)
    return where(abs(y) <= edge, as_tensor(0, y.dtype), y)  # type: ignore[operator]  # nan stays


def soft_shrink(x: TensorLike, threshold: float = 0.5) -> Tensor:
    """x moved towards 0 by `threshold`, or 0 where that would change its sign.

    >>> tg.activations.soft_shrink([-0.3, 2.0]).numpy()
    array([0. , 1.5], dtype=float32)
    """
    y, edge = as_tensor(x), as_number("soft_shrink", "threshold", threshold)
    return add(nn.relu(subtract(y, edge)), minimum(add(y, edge), 0.0))


def tanh_shrink(x: TensorLike) -> Tensor:
    """x - tanh(x)

    >>> tg.activations.tanh_shrink([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.2384], dtype=float32)
    """
    y = as_tensor(x)
    return subtract(y, tanh(y))


def threshold(x: TensorLike, threshold: float, default_value: float) -> Tensor:
    """x where it is above `threshold`, else `default_value`.

    >>> tg.activations.threshold([-1.0, 2.0], 0.0, 7.0).numpy()
    array([7., 2.], dtype=float32)
    """
    y = as_tensor(x)
    other = as_tensor(as_number("threshold", "default_value", default_value), y.dtype)
    edge = as_number("threshold", "threshold", threshold)
    return where(y <= edge, other, y)  # type: ignore[operator]  # nan stays


def mish(x: TensorLike) -> Tensor:
    """x * tanh(softplus(x)) (Misra 2019)

    >>> tg.activations.mish([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.8651], dtype=float32)
    """
    y = as_tensor(x)
    return multiply(y, tanh(softplus(y)))


def squareplus(x: TensorLike, b: float = 4) -> Tensor:
    """(x + sqrt(x ** 2 + b)) / 2 (Barron 2021)

    >>> tg.activations.squareplus([-1e30, 0.0, 1e30]).numpy()
    array([0.e+00, 1.e+00, 1.e+30], dtype=float32)
    """
    y = as_tensor(x)
    scale = as_number("squareplus", "b", b, low=0)
    # x + root cancels below 0, and may overflow above: the root is only added to what has its sign.
    root = sqrt(add(square(y), scale))
    total = add(root, where(greater(y, 0), y, negative(y)))
    return add(nn.relu(y), divide_no_nan(scale / 2, total))


def sparse_plus(x: TensorLike) -> Tensor:
    """0 up to -1, (x + 1) ** 2 / 4 from there to 1, and x above.

    >>> tg.activations.sparse_plus([-2.0, 0.0, 2.0]).numpy()
    array([0.  , 0.25, 2.  ], dtype=float32)
    """
    y = as_tensor(x)
    curve = multiply(square(add(clip_by_value(y, -1.0, 1.0), 1.0)), 0.25)
    return where(y >= 1, y, curve)  # type: ignore[operator]


def sparse_sigmoid(x: TensorLike) -> Tensor:
    """(x + 1) / 2, clipped to [0, 1].

    >>> tg.activations.sparse_sigmoid([-2.0, 0.0, 2.0]).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return multiply(add(clip_by_value(as_tensor(x), -1.0, 1.0), 1.0), 0.5)


def sparsemax(x: TensorLike, axis: int = -1) -> Tensor:
    """The probabilities nearest to x along `axis`, many of which are 0 (Martins and Astudillo
    2016).

    >>> tg.activations.sparsemax([1.0, 0.8, -1.0]).numpy().round(2)
    array([0.6, 0.4, 0. ], dtype=float32)
    """
    y = as_tensor(x)
    at = as_axis("sparsemax", axis, rank_of("sparsemax", y), y)
    size: Any = sizes_of("sparsemax", y)[at]
    falling = sort(y, at, "DESCENDING")
    counts = reshape(cast_to(numbers(1, size + 1), y.dtype), [size, *(1,) * (y.ndim - at - 1)])
    is_in = multiply(counts, falling) + 1 > cumsum(falling, at)  # type: ignore[operator]
    inside = cast_to(is_in, y.dtype)
    total = reduce_sum(multiply(falling, inside), at, keepdims=True)
    excess = divide(subtract(total, 1.0), reduce_sum(inside, at, keepdims=True))
    largest = reduce_max(y, at, keepdims=True)
    excess = where(is_nan(largest), largest, excess)  # nan has no meaningful order
    return maximum(subtract(y, excess), 0.0)


_NAMES = (
    *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu"),
    *("hard_swish", "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish"),
    *("relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus"),
    *("softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "swish", "tanh"),
    "tanh_shrink",
)


def get(identifier: object) -> Callable[[TensorLike], Tensor]:
    """The activation of a name, a function unchanged, or `linear` for None. For `tg.sigmoid` and
    `tg.nn.softmax` it is that of their name, whose results hold on to their logits.

    Raises ValueError for any other name.

    >>> tg.activations.get(None)([1.0]).numpy()
    array([1.], dtype=float32)
    """
    if identifier is None:
        return linear
    if identifier is nn.sigmoid:
        return sigmoid
    if identifier is nn.softmax:
        return softmax
    if callable(identifier):
        return identifier  # type: ignore[return-value]
    if isinstance(identifier, str) and identifier in _NAMES:
        return globals()[identifier]
    fail(
        SignatureError,
        f"{shown(identifier)} is not an activation",
        fix=f"use a function, or one of {', '.join(_NAMES)}",
    )


__all__ = [
    "celu",
    "elu",
    "exponential",
    "gelu",
    "get",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh",
    "tanh_shrink",
    "threshold",
]

publish(__name__)
