"""Public functions beside JAX's own, each a map of one or two matrices to a matrix of their shape.

Random programs are built of these rows. A row keeps its operands where the function is smooth and
of moderate size, by the same arithmetic on both sides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

import tracegraph as tg

#: The shape of every operand and of every result.
SIZE = 4


@dataclass(frozen=True, eq=False)
class Row:
    family: str
    count: int
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    #: How near the two come, relative to the largest element.
    tolerance: float = 1e-9

    def __str__(self) -> str:
        code = self.ours.__code__ if hasattr(self.ours, "__code__") else None
        return f"{self.family} at line {code.co_firstlineno}" if code else self.family


def same(family: str, count: int, function: Callable[..., Any]) -> Row:
    """A row of operators that both sides have."""
    return Row(family, count, function, function)


def unit(library: Any) -> Callable[[Any], Any]:
    """Numbers between -0.8 and 0.8."""
    return lambda x: 0.8 * library.tanh(x)


def positive(library: Any) -> Callable[[Any], Any]:
    """Numbers between 0.5 and 2.5."""
    return lambda x: 1.5 + library.tanh(x)


def each(
    names: str, inside: Callable[[Any], Any], ours: Any, theirs: Any, family: str
) -> list[Row]:
    """A row for each function of one variable, tried on `inside(library)(x)`."""

    def row(pair: str) -> Row:
        our_name, _, their_name = pair.partition("=")
        our, their = getattr(ours, our_name), getattr(theirs, their_name or our_name)
        return Row(family, 1, lambda x: our(inside(tg)(x)), lambda x: their(inside(jnp)(x)))

    return [row(pair) for pair in names.split()]


def regular(library: Any, x: Any) -> Any:
    """A matrix far from having no inverse, whose singular values are apart."""
    return unit(library)(x) * 0.3 + np.diag([2.0, 3.0, 4.5, 6.0])


def hermitian(library: Any, x: Any) -> Any:
    a = regular(library, x)
    return a + library.transpose(a)


def image(library: Any, x: Any) -> Any:
    """One image of 4 x 4 pixels and one channel."""
    return library.reshape(x, (1, SIZE, SIZE, 1))


def resized(
    x: Any, sizes: list[int], method: str, rows: int = SIZE, columns: int = SIZE, **options: Any
) -> Any:
    """A part of the image resized, which is computed in float32 as TensorFlow does."""
    part = image(tg, x)[:, :rows, :columns]
    return tg.cast(tg.image.resize(part, sizes, method, **options), tg.float64)


def signal(library: Any, x: Any, y: Any) -> Any:
    """One signal of 32 steps and one channel."""
    return library.reshape(library.stack([x, y]), (1, 2 * SIZE * SIZE, 1))


def flat(library: Any, x: Any) -> Any:
    return library.reshape(x, (SIZE, SIZE))


def flat_of(library: Any, x: Any) -> Any:
    return library.reshape(x, x.shape[1:3])


UNARY = [
    *each("sin cos tanh sinh=sinh cosh atan=arctan asinh=arcsinh", unit, tg, jnp, "math"),
    *each("tan asin=arcsin acos=arccos atanh=arctanh exp expm1 square", unit, tg, jnp, "math"),
    *each("log sqrt log1p reciprocal abs negative", positive, tg, jnp, "math"),
    *each("sigmoid softplus log_sigmoid softsign=soft_sign", unit, tg.math, jax.nn, "math"),
    *each("relu selu elu silu relu6 log_softmax softmax", unit, tg.nn, jax.nn, "nn"),
    Row(
        "math",
        1,
        lambda x: tg.acosh(positive(tg)(x) + 1),
        lambda x: jnp.arccosh(positive(jnp)(x) + 1),
    ),
    Row(
        "math",
        1,
        lambda x: tg.math.rsqrt(positive(tg)(x)),
        lambda x: jax.lax.rsqrt(positive(jnp)(x)),
    ),
    Row("math", 1, lambda x: tg.round(x * 3) + x, lambda x: jnp.round(x * 3) + x),
    Row(
        "math",
        1,
        lambda x: tg.floor(x * 3) - tg.math.ceil(x) + x,
        lambda x: jnp.floor(x * 3) - jnp.ceil(x) + x,
    ),
    Row("math", 1, lambda x: tg.clip_by_value(x, -0.5, 0.7), lambda x: jnp.clip(x, -0.5, 0.7)),
    Row(
        "math",
        1,
        lambda x: tg.clip_by_norm(x, 1.5, [1]),
        lambda x: x * 1.5 / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1.5),
    ),
    Row("math", 1, lambda x: tg.sign(x) * x * x, lambda x: jnp.sign(x) * x * x),
    Row("math", 1, lambda x: x**3 * 0.1, lambda x: x**3 * 0.1),
    Row("nn", 1, lambda x: tg.nn.gelu(x), lambda x: jax.nn.gelu(x, approximate=False)),
    Row("nn", 1, lambda x: tg.nn.gelu(x, approximate=True), lambda x: jax.nn.gelu(x)),
    Row("nn", 1, lambda x: tg.nn.leaky_relu(x, 0.3), lambda x: jax.nn.leaky_relu(x, 0.3)),
    Row("nn", 1, lambda x: tg.nn.relu6(6 * x) * 0.3, lambda x: jax.nn.relu6(6 * x) * 0.3),
    Row(
        "math",
        1,
        lambda x: tg.math.polyval([x, 0.5 * x, x], unit(tg)(x)),
        lambda x: x * unit(jnp)(x) ** 2 + 0.5 * x * unit(jnp)(x) + x,
    ),
]

BINARY = [
    same("math", 2, lambda x, y: x + y),
    same("math", 2, lambda x, y: x - y),
    same("math", 2, lambda x, y: x * y * 0.5),
    same("math", 2, lambda x, y: x / (y * y + 1)),
    same("math", 2, lambda x, y: x @ y * 0.3),
    Row("math", 2, tg.maximum, jnp.maximum),
    Row("math", 2, tg.minimum, jnp.minimum),
    Row(
        "math",
        2,
        lambda x, y: tg.atan2(x, positive(tg)(y)),
        lambda x, y: jnp.arctan2(x, positive(jnp)(y)),
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.pow(positive(tg)(x), y),
        lambda x, y: jnp.power(positive(jnp)(x), y),
    ),
    Row("math", 2, lambda x, y: tg.where(x > y, x, y * 2), lambda x, y: jnp.where(x > y, x, y * 2)),
    Row("math", 2, tg.math.squared_difference, lambda x, y: (x - y) ** 2),
    Row(
        "math",
        2,
        lambda x, y: tg.math.xlogy(x, positive(tg)(y)),
        lambda x, y: special.xlogy(x, positive(jnp)(y)),
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.math.xlog1py(x, positive(tg)(y)),
        lambda x, y: special.xlog1py(x, positive(jnp)(y)),
    ),
    Row(
        "math", 2, lambda x, y: tg.math.xdivy(x, positive(tg)(y)), lambda x, y: x / positive(jnp)(y)
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.math.divide_no_nan(x, positive(tg)(y)),
        lambda x, y: x / positive(jnp)(y),
    ),
    Row("math", 2, lambda x, y: tg.math.multiply_no_nan(x, y), lambda x, y: x * y),
    Row(
        "math",
        2,
        lambda x, y: tg.math.floormod(x, positive(tg)(y)),
        lambda x, y: jnp.mod(x, positive(jnp)(y)),
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.truncatemod(x, positive(tg)(y)),
        lambda x, y: jnp.fmod(x, positive(jnp)(y)),
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.einsum("ij,kj->ik", x, y) * 0.3,
        lambda x, y: jnp.einsum("ij,kj->ik", x, y) * 0.3,
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.einsum("ij,jk,kk->ki", x, y, x) * 0.1,
        lambda x, y: jnp.einsum("ij,jk,kk->ki", x, y, x) * 0.1,
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.tensordot(x, y, [[0], [1]]) * 0.3,
        lambda x, y: jnp.tensordot(x, y, [[0], [1]]) * 0.3,
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.tensordot(x, y, 1) * 0.3,
        lambda x, y: jnp.tensordot(x, y, 1) * 0.3,
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.tensordot(x, y, 2) * x * 0.1,
        lambda x, y: jnp.tensordot(x, y, 2) * x * 0.1,
    ),
    Row(
        "math", 2, lambda x, y: tg.matmul(x, y, transpose_a=True) * 0.3, lambda x, y: x.T @ y * 0.3
    ),
    Row(
        "math", 2, lambda x, y: tg.linalg.matvec(x, y[0]) * y * 0.3, lambda x, y: x @ y[0] * y * 0.3
    ),
]

#: Where an operand is 0, and the other infinite.
LOST = np.eye(SIZE) > 0
BINARY += [
    Row(
        "math",
        2,
        lambda x, y: tg.math.multiply_no_nan(x + np.where(LOST, np.inf, 0), y * ~LOST),
        lambda x, y: jnp.where(LOST, 0, x * y),
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.math.divide_no_nan(x, positive(tg)(y) * ~LOST),
        lambda x, y: jnp.where(LOST, 0, x / positive(jnp)(y)),
    ),
    Row(
        "nn",
        2,
        lambda x, y: tg.nn.log_poisson_loss(1 + positive(tg)(x), unit(tg)(y), True),
        lambda x, y: full_poisson_loss(1 + positive(jnp)(x), unit(jnp)(y)),
    ),
    Row(
        "math",
        2,
        lambda x, y: tg.matmul(x, y, transpose_b=True, adjoint_a=True) * 0.3,
        lambda x, y: x.T @ y.T * 0.3,
    ),
    Row(
        "math",
        1,
        lambda x: tg.math.unsorted_segment_sum(x, [3, 0, -1, 3], 4),
        lambda x: jnp.stack([x[1], x[0] * 0, x[0] * 0, x[0] + x[3]]),
    ),
]


def full_poisson_loss(targets: Any, x: Any) -> Any:
    stirling = targets * jnp.log(targets) - targets + 0.5 * jnp.log(2 * np.pi * targets)
    return jnp.exp(x) - targets * x + stirling


# What is complex goes on as a matrix of real numbers.
COMPLEX = [
    Row(
        "complex",
        2,
        lambda x, y: tg.math.imag(
            tg.exp(tg.complex(unit(tg)(x), y)) * tg.math.conj(tg.complex(y, x))
        ),
        lambda x, y: jnp.imag(
            jnp.exp(jax.lax.complex(unit(jnp)(x), y)) * jnp.conj(jax.lax.complex(y, x))
        ),
    ),
    Row(
        "complex",
        2,
        lambda x, y: (
            tg.abs(tg.complex(positive(tg)(x), y)) + tg.math.angle(tg.complex(positive(tg)(x), y))
        ),
        lambda x, y: jnp.abs(positive(jnp)(x) + 1j * y) + jnp.arctan2(y, positive(jnp)(x)),
    ),
    Row(
        "complex",
        2,
        lambda x, y: tg.math.real(
            tg.sqrt(tg.complex(positive(tg)(x), y)) / tg.complex(positive(tg)(y), x)
        ),
        lambda x, y: jnp.real(jnp.sqrt(positive(jnp)(x) + 1j * y) / (positive(jnp)(y) + 1j * x)),
    ),
]


def products_of_segments(x: Any) -> Any:
    return jnp.stack([x[1], jnp.ones(SIZE), x[0] * x[2], x[3]])


REDUCTIONS = [
    Row("reduce", 1, lambda x: tg.reduce_sum(x, 0) * x * 0.3, lambda x: jnp.sum(x, 0) * x * 0.3),
    Row(
        "reduce",
        1,
        lambda x: tg.reduce_mean(x, 1, keepdims=True) + x,
        lambda x: jnp.mean(x, 1, keepdims=True) + x,
    ),
    Row("reduce", 1, lambda x: tg.reduce_max(x, 1) + x, lambda x: jnp.max(x, 1) + x),
    Row("reduce", 1, lambda x: tg.reduce_min(x) * x, lambda x: jnp.min(x) * x),
    Row(
        "reduce",
        1,
        lambda x: tg.reduce_prod(positive(tg)(x), 0) * 0.3 + x,
        lambda x: jnp.prod(positive(jnp)(x), 0) * 0.3 + x,
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.reduce_logsumexp(x, 1, keepdims=True) - x,
        lambda x: special.logsumexp(x, 1, keepdims=True) - x,
    ),
    Row("reduce", 1, lambda x: tg.math.reduce_variance(x, 0) + x, lambda x: jnp.var(x, 0) + x),
    Row(
        "reduce",
        1,
        lambda x: tg.math.reduce_std(positive(tg)(x) * np.arange(1.0, 5)) * x,
        lambda x: jnp.std(positive(jnp)(x) * np.arange(1.0, 5)) * x,
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.reduce_euclidean_norm(positive(tg)(x), 1) * x,
        lambda x: jnp.linalg.norm(positive(jnp)(x), axis=1) * x,
    ),
    Row("reduce", 1, lambda x: tg.cumsum(x, 1, exclusive=True), lambda x: jnp.cumsum(x, 1) - x),
    Row(
        "reduce", 1, lambda x: tg.cumsum(x, 0, reverse=True), lambda x: jnp.cumsum(x[::-1], 0)[::-1]
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.cumprod(positive(tg)(x), 1) * 0.2,
        lambda x: jnp.cumprod(positive(jnp)(x), 1) * 0.2,
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.cumulative_logsumexp(x, 0),
        lambda x: jax.lax.cumlogsumexp(x, 0),
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.l2_normalize(positive(tg)(x), 1),
        lambda x: positive(jnp)(x) / jnp.linalg.norm(positive(jnp)(x), axis=1, keepdims=True),
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.norm(positive(tg)(x), 1, axis=0) * x * 0.2,
        lambda x: jnp.sum(jnp.abs(positive(jnp)(x)), 0) * x * 0.2,
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.norm(positive(tg)(x)) * x * 0.2,
        lambda x: jnp.linalg.norm(positive(jnp)(x)) * x * 0.2,
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.segment_sum(x, [0, 0, 1, 3]),
        lambda x: jax.ops.segment_sum(x, jnp.array([0, 0, 1, 3]), 4),
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.unsorted_segment_mean(x, [2, 0, 2, 3], 4),
        lambda x: (
            jax.ops.segment_sum(x, jnp.array([2, 0, 2, 3]), 4) / jnp.array([[1.0], [1], [2], [1]])
        ),
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.unsorted_segment_prod(positive(tg)(x), [2, 0, 2, 3], 4) * 0.5,
        lambda x: products_of_segments(positive(jnp)(x)) * 0.5,
    ),
    Row(
        "reduce",
        1,
        lambda x: tg.math.segment_max(x, [0, 0, 1, 2])[tg.newaxis, 0] + x,
        lambda x: jnp.maximum(x[0], x[1]) + x,
    ),
]

MOVEMENTS = [
    Row("array", 1, tg.transpose, jnp.transpose),
    Row(
        "array",
        1,
        lambda x: tg.reshape(tg.reshape(x, [2, 8]), [4, 4]) + tg.reverse(x, [1]),
        lambda x: x + x[:, ::-1],
    ),
    Row("array", 1, lambda x: tg.roll(x, [1, -1], [0, 1]), lambda x: jnp.roll(x, (1, -1), (0, 1))),
    Row(
        "array",
        1,
        lambda x: tg.pad(x[1:, :3], [[1, 0], [0, 1]], constant_values=0.5),
        lambda x: jnp.pad(x[1:, :3], ((1, 0), (0, 1)), constant_values=0.5),
    ),
    Row(
        "array",
        1,
        lambda x: tg.pad(x[1:3, 1:3], [[1, 1], [1, 1]], "REFLECT"),
        lambda x: jnp.pad(x[1:3, 1:3], 1, "reflect"),
    ),
    Row(
        "array",
        1,
        lambda x: tg.pad(x[1:3, 1:3], [[1, 1], [1, 1]], "SYMMETRIC"),
        lambda x: jnp.pad(x[1:3, 1:3], 1, "symmetric"),
    ),
    Row(
        "array",
        2,
        lambda x, y: tg.concat([x[::2], y[1::2]], 0),
        lambda x, y: jnp.concatenate([x[::2], y[1::2]]),
    ),
    Row(
        "array",
        2,
        lambda x, y: tg.stack([x[0], y[1], x[2], y[3]], 1),
        lambda x, y: jnp.stack([x[0], y[1], x[2], y[3]], 1),
    ),
    Row("array", 1, lambda x: tg.tile(x[:2, :1], [2, 4]), lambda x: jnp.tile(x[:2, :1], (2, 4))),
    Row(
        "array",
        1,
        lambda x: tg.repeat(x[:, :2], [1, 3], axis=1),
        lambda x: jnp.repeat(x[:, :2], jnp.array([1, 3]), axis=1, total_repeat_length=4),
    ),
    Row(
        "array",
        1,
        lambda x: tg.concat(tg.split(x, [1, 3], 1)[::-1], 1),
        lambda x: jnp.concatenate([x[:, 1:], x[:, :1]], 1),
    ),
    Row(
        "array",
        1,
        lambda x: tg.broadcast_to(x[:, 1:2], [4, 4]) * x,
        lambda x: jnp.broadcast_to(x[:, 1:2], (4, 4)) * x,
    ),
    Row(
        "array",
        1,
        lambda x: tg.gather(x, [3, 1, 1, 0], axis=1),
        lambda x: x[:, jnp.array([3, 1, 1, 0])],
    ),
    Row(
        "array",
        1,
        lambda x: tg.gather_nd(x, [[2], [0], [0], [3]]),
        lambda x: x[jnp.array([2, 0, 0, 3])],
    ),
    Row(
        "array",
        2,
        lambda x, y: tg.tensor_scatter_nd_add(x, [[1], [1], [3], [0]], y),
        lambda x, y: x.at[jnp.array([1, 1, 3, 0])].add(y),
    ),
    Row(
        "array",
        2,
        lambda x, y: tg.tensor_scatter_nd_update(x, [[2], [0]], y[1:3]),
        lambda x, y: x.at[jnp.array([2, 0])].set(y[1:3]),
    ),
    Row(
        "array",
        2,
        lambda x, y: tg.tensor_scatter_nd_max(x, [[1], [3]], y[:2]),
        lambda x, y: x.at[jnp.array([1, 3])].max(y[:2]),
    ),
    Row(
        "array",
        1,
        lambda x: tg.scatter_nd([[3], [1], [3], [0]], x, [4, 4]),
        lambda x: jnp.zeros((4, 4)).at[jnp.array([3, 1, 3, 0])].add(x),
    ),
    Row(
        "array",
        1,
        lambda x: tg.reverse_sequence(x, [2, 4, 1, 3], 1),
        lambda x: jnp.stack(
            [
                jnp.concatenate([row[:n][::-1], row[n:]])
                for row, n in zip(x, [2, 4, 1, 3], strict=True)
            ]
        ),
    ),
    Row(
        "array",
        1,
        lambda x: tg.strided_slice(x, [3, 0], [0, 4], [-2, 1])[:1] + x,
        lambda x: x[3:0:-2][:1] + x,
    ),
    Row("array", 1, lambda x: tg.linalg.diag(x[1], k=0) + x, lambda x: jnp.diag(x[1]) + x),
    Row("array", 1, lambda x: tg.linalg.diag_part(x) * x, lambda x: jnp.diag(x) * x),
    Row(
        "array", 1, lambda x: tg.linalg.band_part(x, 1, 0), lambda x: jnp.tril(x) - jnp.tril(x, -2)
    ),
    Row(
        "array",
        1,
        lambda x: tg.linalg.set_diag(x, x[0]),
        lambda x: x * (1 - jnp.eye(4)) + jnp.diag(x[0]),
    ),
    Row("array", 1, lambda x: tg.linalg.trace(x) * x * 0.3, lambda x: jnp.trace(x) * x * 0.3),
    Row("sort", 1, lambda x: tg.sort(x, axis=0), lambda x: jnp.sort(x, axis=0)),
    Row("sort", 1, lambda x: tg.sort(x, direction="DESCENDING"), lambda x: -jnp.sort(-x)),
    Row(
        "sort",
        1,
        lambda x: tg.math.top_k(x, 2)[0] @ x[:2],
        lambda x: jax.lax.top_k(x, 2)[0] @ x[:2],
    ),
    Row("sort", 1, lambda x: tg.gather(x, tg.argsort(x[:, 1])), lambda x: x[jnp.argsort(x[:, 1])]),
    Row(
        "sort",
        1,
        lambda x: tg.gather(x, tg.argmax(x, 1), batch_dims=1)[:, None] * x,
        lambda x: x[jnp.arange(4), jnp.argmax(x, 1)][:, None] * x,
    ),
    Row(
        "sort",
        1,
        lambda x: tg.one_hot(tg.argmin(x, 0), 4, dtype=tg.float64) * x,
        lambda x: jax.nn.one_hot(jnp.argmin(x, 0), 4) * x,
    ),
    Row(
        "sort",
        1,
        lambda x: tg.one_hot(tg.argmin(x, 1), 4, dtype=tg.float64) * x,
        lambda x: jax.nn.one_hot(jnp.argmin(x, 1), 4) * x,
    ),
]

LINALG = [
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.inv(regular(tg, x)),
        lambda x: jnp.linalg.inv(regular(jnp, x)),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.solve(regular(tg, x), y),
        lambda x, y: jnp.linalg.solve(regular(jnp, x), y),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.solve(regular(tg, x), y, adjoint=True),
        lambda x, y: jnp.linalg.solve(regular(jnp, x).T, y),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.triangular_solve(regular(tg, x), y, lower=False),
        lambda x, y: jax.scipy.linalg.solve_triangular(regular(jnp, x), y),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.cholesky_solve(tg.linalg.cholesky(hermitian(tg, x)), y),
        lambda x, y: jnp.linalg.solve(hermitian(jnp, x), y),
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.cholesky(hermitian(tg, x)),
        lambda x: jnp.linalg.cholesky(hermitian(jnp, x)),
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.det(regular(tg, x)) * x * 0.01,
        lambda x: jnp.linalg.det(regular(jnp, x)) * x * 0.01,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.slogdet(regular(tg, x))[1] * x * 0.2,
        lambda x: jnp.linalg.slogdet(regular(jnp, x))[1] * x * 0.2,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.logdet(hermitian(tg, x)) * x * 0.2,
        lambda x: jnp.linalg.slogdet(hermitian(jnp, x))[1] * x * 0.2,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.qr(regular(tg, x))[0],
        lambda x: jnp.linalg.qr(regular(jnp, x))[0],
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.qr(regular(tg, x))[1] * 0.3,
        lambda x: jnp.linalg.qr(regular(jnp, x))[1] * 0.3,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.eigvalsh(hermitian(tg, x)) * x * 0.1,
        lambda x: jnp.linalg.eigvalsh(hermitian(jnp, x)) * x * 0.1,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.eigh(hermitian(tg, x))[1] ** 2,
        lambda x: jnp.linalg.eigh(hermitian(jnp, x))[1] ** 2,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.svd(regular(tg, x), compute_uv=False) * x * 0.1,
        lambda x: jnp.linalg.svd(regular(jnp, x), compute_uv=False) * x * 0.1,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.svd(regular(tg, x))[2] ** 2,
        lambda x: jnp.linalg.svd(regular(jnp, x))[2].T ** 2,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.transpose(tg.concat([tg.linalg.pinv(regular(tg, x)[:, :3]), x[:1]], 0)),
        lambda x: jnp.concatenate([jnp.linalg.pinv(regular(jnp, x)[:, :3]), x[:1]]).T,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.expm(unit(tg)(x)) * 0.5,
        lambda x: jax.scipy.linalg.expm(unit(jnp)(x)) * 0.5,
    ),
    Row(
        "linalg",
        1,
        lambda x: tg.linalg.sqrtm(hermitian(tg, x)),
        lambda x: (lambda w, v: (v * jnp.sqrt(w)) @ v.T)(*jnp.linalg.eigh(hermitian(jnp, x))),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.lstsq(regular(tg, x), y, fast=False),
        lambda x, y: jnp.linalg.solve(regular(jnp, x), y),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.lu_solve(*tg.linalg.lu(regular(tg, x)), y),
        lambda x, y: jnp.linalg.solve(regular(jnp, x), y),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.tridiagonal_solve(
            tg.stack([unit(tg)(x[0]), 2 + positive(tg)(x[1]), unit(tg)(x[2])]),
            y,
            diagonals_format="compact",
        ),
        lambda x, y: jnp.linalg.solve(
            jnp.diag(unit(jnp)(x[0])[:3], 1)
            + jnp.diag(2 + positive(jnp)(x[1]))
            + jnp.diag(unit(jnp)(x[2])[1:], -1),
            y,
        ),
    ),
    Row(
        "linalg",
        2,
        lambda x, y: tg.linalg.cross(x[:, :3], y[:, :3]) @ x[:3] * 0.3,
        lambda x, y: jnp.cross(x[:, :3], y[:, :3]) @ x[:3] * 0.3,
    ),
]

SPECIAL = [
    *each(
        "erf erfc ndtri=ndtri",
        lambda k: lambda x: 0.5 + 0.4 * k.tanh(x),
        tg.math,
        special,
        "special",
    ),
    *each(
        "lgamma=gammaln digamma bessel_i0e=i0e bessel_i1e=i1e",
        positive,
        tg.math,
        special,
        "special",
    ),
    *each("bessel_i0=i0 bessel_i1=i1", unit, tg.math, special, "special"),
    Row(
        "special", 1, lambda x: tg.math.erfinv(unit(tg)(x)), lambda x: special.erfinv(unit(jnp)(x))
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.special.expint(positive(tg)(x)),
        lambda x: special.expi(positive(jnp)(x)),
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.special.spence(1 + positive(tg)(x)),
        lambda x: special.spence(1 + positive(jnp)(x)),
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.polygamma(tg.constant(1.0, tg.float64), positive(tg)(x)),
        lambda x: special.polygamma(1, positive(jnp)(x)),
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.zeta(tg.fill([4, 4], tg.constant(2.5, tg.float64)), positive(tg)(x)),
        lambda x: special.zeta(2.5, positive(jnp)(x)),
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.igamma(tg.fill([4, 4], tg.constant(1.5, tg.float64)), positive(tg)(x)),
        lambda x: special.gammainc(1.5, positive(jnp)(x)),
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.betainc(
            tg.fill([4, 4], tg.constant(1.5, tg.float64)),
            tg.fill([4, 4], tg.constant(2.5, tg.float64)),
            0.5 + 0.4 * tg.tanh(x),
        ),
        lambda x: special.betainc(1.5, 2.5, 0.5 + 0.4 * jnp.tanh(x)),
    ),
    Row(
        "special",
        1,
        lambda x: tg.math.lbeta(positive(tg)(x))[:, None] * x * 0.3,
        lambda x: (
            (special.gammaln(positive(jnp)(x)).sum(1) - special.gammaln(positive(jnp)(x).sum(1)))[
                :, None
            ]
            * x
            * 0.3
        ),
    ),
]


def their_conv(
    x: Any, kernel: Any, strides: int = 1, padding: str = "SAME", dilation: int = 1
) -> Any:
    return jax.lax.conv_general_dilated(
        image(jnp, x),
        kernel,
        (strides, strides),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def their_signal_pool(x: Any, size: int, start: float, function: Any) -> Any:
    windows = jax.lax.reduce_window(x, start, function, (1, size, 1), (1, 2, 1), "SAME")
    return flat(jnp, windows)


def their_pool(x: Any, start: float, function: Any) -> Any:
    return flat(
        jnp,
        jax.lax.reduce_window(image(jnp, x), start, function, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"),
    )


def their_normal(x: Any, axis: int) -> Any:
    return (x - x.mean(axis, keepdims=True)) * jax.lax.rsqrt(x.var(axis, keepdims=True) + 1e-2)


def their_counts() -> Any:
    return their_pool(jnp.ones((4, 4)), 0.0, jax.lax.add)


NN = [
    Row(
        "nn",
        2,
        lambda x, y: (
            flat(tg, tg.nn.conv2d(image(tg, x), tg.reshape(y[:3, :3], (3, 3, 1, 1)), 1, "SAME"))
            * 0.3
        ),
        lambda x, y: flat(jnp, their_conv(x, y[:3, :3].reshape(3, 3, 1, 1))) * 0.3,
    ),
    Row(
        "nn",
        2,
        lambda x, y: (
            flat(
                tg,
                tg.nn.conv2d(
                    image(tg, x), tg.reshape(y[:2, :2], (2, 2, 1, 1)), 1, "SAME", dilations=2
                ),
            )
            * 0.3
        ),
        lambda x, y: flat(jnp, their_conv(x, y[:2, :2].reshape(2, 2, 1, 1), dilation=2)) * 0.3,
    ),
    Row(
        "nn",
        2,
        lambda x, y: (
            flat(tg, tg.nn.conv2d(image(tg, x), tg.reshape(y, (2, 2, 1, 4)), 2, "VALID")) * 0.3
        ),
        lambda x, y: flat(jnp, their_conv(x, y.reshape(2, 2, 1, 4), 2, "VALID")) * 0.3,
    ),
    Row(
        "nn",
        2,
        lambda x, y: (
            flat(tg, tg.nn.conv1d(x[tg.newaxis], tg.reshape(y, (1, 4, 4)), 1, "SAME")) * 0.3
        ),
        lambda x, y: x @ y * 0.3,
    ),
    Row(
        "nn",
        2,
        lambda x, y: flat(
            tg,
            tg.nn.depthwise_conv2d(
                tg.reshape(x, (1, 2, 2, 4)), tg.reshape(y[0], (1, 1, 4, 1)), [1, 1, 1, 1], "SAME"
            ),
        ),
        lambda x, y: x * y[0],
    ),
    Row(
        "nn",
        2,
        lambda x, y: flat(
            tg,
            tg.nn.conv2d_transpose(
                tg.reshape(x[:2, :2], (1, 2, 2, 1)),
                tg.reshape(y[:2, :2], (2, 2, 1, 1)),
                [1, 4, 4, 1],
                2,
                "VALID",
            ),
        ),
        lambda x, y: jnp.kron(x[:2, :2], y[:2, :2]),
    ),
    Row(
        "nn",
        1,
        lambda x: flat(tg, tg.nn.max_pool2d(image(tg, x), 2, 1, "SAME")),
        lambda x: their_pool(x, -jnp.inf, jax.lax.max),
    ),
    Row(
        "nn",
        1,
        lambda x: flat(tg, tg.nn.avg_pool2d(image(tg, x), [1, 2, 2, 1], [1, 1, 1, 1], "SAME")),
        lambda x: their_pool(x, 0.0, jax.lax.add) / their_counts(),
    ),
    Row(
        "nn",
        1,
        lambda x: flat(
            tg,
            tg.nn.max_pool2d(
                tg.reshape(x, [1, 1, 4, 4]), [1, 1, 2, 2], [1, 1, 1, 1], "SAME", "NCHW"
            ),
        ),
        lambda x: their_pool(x, -jnp.inf, jax.lax.max),
    ),
    Row(
        "nn",
        2,
        lambda x, y: flat(tg, tg.nn.max_pool1d(signal(tg, x, y), 3, 2, "SAME")),
        lambda x, y: their_signal_pool(signal(jnp, x, y), 3, -jnp.inf, jax.lax.max),
    ),
    Row(
        "nn",
        2,
        lambda x, y: flat(tg, tg.nn.max_pool1d(signal(tg, x, y), 19, 2, "SAME")),
        lambda x, y: their_signal_pool(signal(jnp, x, y), 19, -jnp.inf, jax.lax.max),
    ),
    Row(
        "nn",
        2,
        lambda x, y: flat(tg, tg.nn.avg_pool1d(signal(tg, x, y), 19, 2, "SAME")),
        lambda x, y: (
            their_signal_pool(signal(jnp, x, y), 19, 0.0, jax.lax.add)
            / their_signal_pool(jnp.ones((1, 2 * SIZE * SIZE, 1)), 19, 0.0, jax.lax.add)
        ),
    ),
    Row(
        "nn",
        2,
        lambda x, y: tg.nn.softmax_cross_entropy_with_logits(tg.nn.softmax(x), y)[:, None] * x,
        lambda x, y: -(jax.nn.softmax(x) * jax.nn.log_softmax(y)).sum(1)[:, None] * x,
    ),
    Row(
        "nn",
        1,
        lambda x: tg.nn.sparse_softmax_cross_entropy_with_logits([1, 0, 3, 2], x)[:, None] + x,
        lambda x: -jax.nn.log_softmax(x)[jnp.arange(4), jnp.array([1, 0, 3, 2])][:, None] + x,
    ),
    Row(
        "nn",
        2,
        lambda x, y: tg.nn.sigmoid_cross_entropy_with_logits(tg.sigmoid(x), y),
        lambda x, y: (
            -jax.nn.sigmoid(x) * jax.nn.log_sigmoid(y) - jax.nn.sigmoid(-x) * jax.nn.log_sigmoid(-y)
        ),
    ),
    Row(
        "nn",
        2,
        lambda x, y: tg.nn.weighted_cross_entropy_with_logits(tg.sigmoid(x), y, 2.5),
        lambda x, y: (
            -2.5 * jax.nn.sigmoid(x) * jax.nn.log_sigmoid(y)
            - jax.nn.sigmoid(-x) * jax.nn.log_sigmoid(-y)
        ),
    ),
    Row(
        "nn",
        2,
        lambda x, y: tg.nn.log_poisson_loss(x, unit(tg)(y)),
        lambda x, y: jnp.exp(unit(jnp)(y)) - unit(jnp)(y) * x,
    ),
    Row("nn", 2, lambda x, y: tg.nn.bias_add(x, y[2]), lambda x, y: x + y[2]),
    Row("nn", 1, lambda x: tg.nn.l2_loss(x) * x * 0.1, lambda x: jnp.sum(x * x) / 2 * x * 0.1),
    Row(
        "nn",
        1,
        lambda x: tg.nn.moments(x, [0])[1] * tg.nn.moments(x, [1], keepdims=True)[0],
        lambda x: x.var(0) * x.mean(1, keepdims=True),
    ),
    Row(
        "nn",
        2,
        lambda x, y: tg.nn.batch_normalization(x, *tg.nn.moments(x, [0]), y[0], y[1], 1e-2),
        lambda x, y: their_normal(x, 0) * y[1] + y[0],
    ),
    Row(
        "nn",
        1,
        lambda x: flat(
            tg, tg.nn.local_response_normalization(tg.reshape(x, (1, 2, 2, 4)), 1, 1.0, 0.5, 0.5)
        ),
        lambda x: (
            x
            / jnp.sqrt(
                1
                + 0.5
                * jnp.stack([jnp.sum(x[:, max(k - 1, 0) : k + 2] ** 2, 1) for k in range(4)], 1)
            )
        ),
    ),
    Row(
        "nn",
        1,
        lambda x: tg.nn.embedding_lookup(x, [2, 0, 2, 1]),
        lambda x: x[jnp.array([2, 0, 2, 1])],
    ),
    Row(
        "nn",
        1,
        lambda x: tg.nn.crelu(x[:, :2]),
        lambda x: jax.nn.relu(jnp.concatenate([x[:, :2], -x[:, :2]], 1)),
    ),
    Row(
        "nn",
        1,
        lambda x: flat(tg, tg.nn.space_to_depth(image(tg, x), 2)),
        lambda x: x.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(4, 4),
    ),
    Row(
        "nn",
        1,
        lambda x: flat(tg, tg.nn.depth_to_space(tg.reshape(x, (1, 2, 2, 4)), 2)),
        lambda x: x.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(4, 4),
    ),
]

IMAGES = [
    *(
        Row(
            "image",
            1,
            lambda x, m=method: flat(tg, resized(x, [SIZE, SIZE], m, rows=3, columns=2)),
            lambda x, m=method: jax.image.resize(x[:3, :2], (SIZE, SIZE), m),
            tolerance=1e-5,
        )
        for method in ("bilinear", "lanczos3")
    ),
    *(
        Row(
            "image",
            1,
            lambda x, m=method: tg.tile(flat_of(tg, resized(x, [2, 2], m, antialias=True)), [2, 2]),
            lambda x, m=method: jnp.tile(jax.image.resize(x, (2, 2), m), (2, 2)),
            tolerance=1e-5,
        )
        for method in ("bilinear", "lanczos3", "lanczos5")
    ),
    Row("image", 1, lambda x: flat(tg, tg.image.rot90(image(tg, x))), jnp.rot90),
    Row("image", 1, lambda x: flat(tg, tg.image.flip_left_right(image(tg, x))), jnp.fliplr),
    Row(
        "image",
        1,
        lambda x: flat(tg, tg.image.adjust_brightness(image(tg, x), 0.3)),
        lambda x: x + 0.3,
    ),
    Row(
        "image",
        1,
        lambda x: tg.image.total_variation(image(tg, x))[0] * x * 0.1,
        lambda x: (
            (jnp.abs(jnp.diff(x, axis=0)).sum() + jnp.abs(jnp.diff(x, axis=1)).sum()) * x * 0.1
        ),
    ),
    Row(
        "image",
        1,
        lambda x: flat(tg, tg.image.image_gradients(image(tg, x))[0]),
        lambda x: jnp.concatenate([jnp.diff(x, axis=0), jnp.zeros((1, 4))]),
    ),
    Row(
        "image",
        1,
        lambda x: flat(
            tg, tg.image.resize_with_crop_or_pad(tg.image.central_crop(image(tg, x), 0.5), 4, 4)
        ),
        lambda x: jnp.pad(x[1:3, 1:3], 1),
    ),
]


SIGNALS = [
    Row(
        "signal",
        1,
        lambda x: tg.math.real(tg.signal.fft(tg.cast(x, tg.complex128))) * 0.5,
        lambda x: jnp.fft.fft(x).real * 0.5,
    ),
    Row(
        "signal",
        1,
        lambda x: tg.math.imag(tg.signal.ifft2d(tg.complex(x, x * x))),
        lambda x: jnp.fft.ifft2(x + 1j * x * x).imag,
    ),
    Row(
        "signal",
        1,
        lambda x: tg.signal.irfft(tg.signal.rfft(x) * tg.constant([1.0, 0.5j, 2.0], tg.complex128)),
        lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.array([1.0, 0.5j, 2.0])),
    ),
    Row("signal", 1, lambda x: tg.signal.dct(x) * 0.3, lambda x: jax.scipy.fft.dct(x) * 0.3),
    Row("signal", 1, lambda x: tg.signal.fftshift(x, 1), lambda x: jnp.fft.fftshift(x, 1)),
]


def by_us_loop(x: Any, y: Any) -> Any:
    return tg.scan(lambda state, row: tg.tanh(state * 0.5 + row), x, y[0])


def by_jax_loop(x: Any, y: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        state = jnp.tanh(state * 0.5 + row)
        return state, state

    return jax.lax.scan(step, y[0], x)[1]


CONTROL = [
    Row("control", 2, by_us_loop, by_jax_loop),
    Row(
        "control",
        2,
        lambda x, y: tg.cond(x[0, 0] > y[0, 0], lambda: tg.sin(x) * y, lambda: x + y),
        lambda x, y: jnp.where(x[0, 0] > y[0, 0], jnp.sin(x) * y, x + y),
    ),
    Row(
        "control",
        2,
        lambda x, y: tg.while_loop(
            lambda i, s: i < 3, lambda i, s: (i + 1, tg.tanh(s @ y * 0.3)), (0, x)
        )[1],
        lambda x, y: jnp.tanh(jnp.tanh(jnp.tanh(x @ y * 0.3) @ y * 0.3) @ y * 0.3),
    ),
    Row(
        "control",
        1,
        lambda x: tg.map_fn(lambda row: tg.nn.softmax(row) * row, x),
        lambda x: jax.nn.softmax(x) * x,
    ),
    Row(
        "control",
        1,
        lambda x: tg.vectorized_map(lambda row: tg.cumsum(row) * row[0], x),
        lambda x: jnp.cumsum(x, 1) * x[:, :1],
    ),
    Row(
        "control",
        1,
        lambda x: tg.recompute_grad(lambda v: tg.sin(v) * v)(x),
        lambda x: jnp.sin(x) * x,
    ),
    Row(
        "control",
        1,
        lambda x: tg.switch_case(
            tg.cast(x[1, 1] > 0, tg.int32), [lambda: x * 0.5, lambda: tg.cos(x)]
        ),
        lambda x: jnp.where(x[1, 1] > 0, jnp.cos(x), x * 0.5),
    ),
]

ROWS = [
    *UNARY,
    *BINARY,
    *COMPLEX,
    *REDUCTIONS,
    *MOVEMENTS,
    *LINALG,
    *SPECIAL,
    *NN,
    *IMAGES,
    *SIGNALS,
    *CONTROL,
]
