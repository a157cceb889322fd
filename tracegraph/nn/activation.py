"""Activations."""

from __future__ import annotations

import math

from tracegraph.array.arguments import as_flag
from tracegraph.array.joining import concat
from tracegraph.calls.top_level_calls import composition
from tracegraph.core.types import float32
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import multiply
from tracegraph.math.elementwise.unary import sigmoid, softplus, softsign, tanh
from tracegraph.math.norms import log_softmax as log_softmax, softmax as softmax
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to
from tracegraph.ops import elementwise as ops
from tracegraph.ops.broadcast import full_like, zeros_of
from tracegraph.typing import Axis, TensorLike

#: The two constants of selu, for which mean 0 and variance 1 are a fixed point.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


def relu(features: TensorLike, name: str | None = None) -> Tensor:
    """max(0, x); the derivative is 0 at 0 and at nan.

    >>> tg.nn.relu([-1.0, 2.0]).numpy()
    array([0., 2.], dtype=float32)
    """
    x = as_tensor(features)
    return ops.MAXIMUM(zeros_of(x), x)


def relu6(features: TensorLike, name: str | None = None) -> Tensor:
    """min(max(0, x), 6); the derivative at 0 and 6 is 0.

    >>> tg.nn.relu6([-1.0, 2.0, 9.0]).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    x = as_tensor(features)
    return ops.MINIMUM(full_like(x, 6), ops.MAXIMUM(zeros_of(x), x))


def crelu(features: TensorLike, axis: Axis = -1, name: str | None = None) -> Tensor:
    """relu(x) and relu(-x), concatenated along `axis`.

    >>> tg.nn.crelu([-1.0, 2.0]).numpy()
    array([0., 2., 1., 0.], dtype=float32)
    """
    x = as_tensor(features)
    return relu(concat([x, ops.NEG(x)], axis))


def leaky_relu(features: TensorLike, alpha: TensorLike = 0.2, name: str | None = None) -> Tensor:
    """x where it is positive, else alpha * x; integers become float32.

    >>> tg.nn.leaky_relu([-1.0, 2.0]).numpy()
    array([-0.2,  2. ], dtype=float32)
    """
    x = as_tensor(features)
    x = cast_to(x, float32) if x.dtype.is_integer else x
    return ops.SELECT(ops.GREATER(x, zeros_of(x)), x, broadcast(multiply(x, alpha), x.type.shape))


def elu(features: TensorLike, name: str | None = None) -> Tensor:
    """x where it is not negative, else e ** x - 1; the second derivative at 0 is 0.

    >>> tg.nn.elu([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ], dtype=float32)
    """
    x = as_tensor(features)
    zero = zeros_of(x)
    is_negative = ops.LESS(x, zero)
    # Take the exponential only of negative numbers, so that it does not overflow.
    return ops.SELECT(is_negative, ops.Expm1()(ops.SELECT(is_negative, x, zero)), x)


def selu(features: TensorLike, name: str | None = None) -> Tensor:
    """scale * (x where it is not negative, else alpha * (e ** x - 1)), with two constants.

    >>> tg.nn.selu([-1.0, 1.0]).numpy().round(4)
    array([-1.1113,  1.0507], dtype=float32)
    """
    x = as_tensor(features)
    y = elu(x)
    slope = ops.SELECT(
        ops.LESS(x, zeros_of(x)),
        full_like(x, SELU_SCALE * SELU_ALPHA),
        full_like(x, SELU_SCALE),
    )
    return ops.MUL(y, slope)


def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """x times the probability that a standard normal number is below x; or an approximation by
    tanh.

    >>> tg.nn.gelu([-1.0, 1.0]).numpy().round(4)
    array([-0.1587,  0.8413], dtype=float32)
    """
    return _gelu(as_tensor(features), approximate=as_flag("gelu", "approximate", approximate))


@composition
def _gelu(x: Tensor, *, approximate: bool) -> Tensor:
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)  # type: ignore[operator]
        return 0.5 * x * (1 + tanh(inner))  # type: ignore[operator]
    return 0.5 * x * ops.Erfc()(-math.sqrt(0.5) * x)  # type: ignore[operator]


def silu(features: TensorLike, beta: TensorLike = 1.0) -> Tensor:
    """x * sigmoid(beta * x)

    >>> tg.nn.silu([-1.0, 1.0]).numpy().round(4)
    array([-0.2689,  0.7311], dtype=float32)
    """
    x = as_tensor(features)
    is_plain = isinstance(beta, (int, float)) and beta == 1
    return ops.MUL(x, sigmoid(x if is_plain else multiply(x, beta)))


swish = silu


__all__ = [
    "crelu",
    "elu",
    "gelu",
    "leaky_relu",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
]
