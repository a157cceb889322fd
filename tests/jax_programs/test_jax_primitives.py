"""Every primitive of JAX that has a counterpart: value, both derivatives and batch beside JAX's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

import tracegraph as tg
from tracegraph.jax_programs.control import _REFUSED
from tracegraph.jax_programs.elementwise import _OPS
from tracegraph.jax_programs.equations import OTHERS, RULES

F, INT, U = np.float32, np.int32, np.uint32
A = jnp.asarray
RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.normal(size=shape).astype(F)


def positive(*shape):
    return (RNG.uniform(0.2, 0.9, size=shape)).astype(F)


def ints(*shape, high=5, low=0):
    return RNG.integers(low, high, size=shape).astype(INT)


@dataclass
class Case:
    """A function of JAX in which the primitive stands, and its arguments."""

    primitive: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    label: str = ""

    def __str__(self):
        return self.primitive + self.label


def unary(name, function, make=normal):
    return Case(name, function, (make(3, 2),))


def binary(name, function, make=normal):
    return Case(name, function, (make(3, 2), make(3, 2)))


def whole(name, function, *args):
    return Case(name, function, args)


#: The label of maxima that several elements share. Which of them forward mode of JAX follows is up
#: to XLA, while reverse mode follows the first.
TIES = " of ties"
TIED = np.array([[1.0, 2.0, 2.0, 0.0], [3.0, 1.0, 3.0, 3.0]], F)
IMAGE = normal(2, 6, 5, 4)
KEY = np.asarray(jax.random.key_data(jax.random.key(3)))


def key(data):
    return jax.random.wrap_key_data(data)


def gathered(mode, **numbers):
    sizes = numbers.pop("slice_sizes")
    numbers = lax.GatherDimensionNumbers(**numbers)
    return lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode)


def scattered(function, mode, **numbers):
    numbers = lax.ScatterDimensionNumbers(**numbers)
    return lambda x, i, u: function(x, i, u, numbers, mode=mode)


def pool(kind, start, window=(1, 3, 2, 1), strides=(1, 2, 1, 1), **more):
    return lambda x: lax.reduce_window(x, start, kind, window, strides, "SAME", **more)


def complex_reflections(x, y):
    found = jnp.linalg.qr(lax.complex(x, y), mode="raw")
    return [part for z in found for part in (z.real, z.imag)]


@jax.custom_jvp
def own_tangent(x, y):
    return jnp.sin(x) * y


@own_tangent.defjvp
def _own_tangent_rule(primals, tangents):
    (x, y), (tx, ty) = primals, tangents
    return own_tangent(x, y), 3.0 * jnp.cos(x) * y * tx + own_tangent(x, y) * ty


@jax.custom_vjp
def own_cotangent(x, y):
    return x * y


own_cotangent.defvjp(
    lambda x, y: (x * y, (x, y)), lambda kept, g: (2.0 * g * kept[1] ** 2, jnp.tanh(kept[0]) * g)
)


@jax.custom_batching.custom_vmap
def own_map(x):
    return jnp.sin(x) * x


own_map.def_vmap(lambda size, batched, x: (jnp.sin(x) * x, batched[0]))


def looped(x):
    return lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, jnp.sin(s[1]) + x), (0, x))[1]


def scanned(c, x, rows):
    def step(state, row):
        new = jnp.tanh(state * c + row)
        return new, new * row

    return lax.scan(step, x, rows, reverse=True)


CASES = [
    unary("abs", lax.abs),
    unary("acos", lax.acos, positive),
    unary("acosh", lambda x: lax.acosh(x + 1.0), positive),
    binary("add", lax.add),
    unary("asin", lax.asin, positive),
    unary("asinh", lax.asinh),
    unary("atan", lax.atan),
    binary("atan2", lax.atan2),
    unary("atanh", lax.atanh, positive),
    unary("bessel_i0e", lax.bessel_i0e),
    unary("bessel_i1e", lax.bessel_i1e),
    whole("and", lax.bitwise_and, ints(4), ints(4)),
    whole("or", lax.bitwise_or, ints(4), ints(4)),
    whole("xor", lax.bitwise_xor, ints(4), ints(4)),
    whole("not", lax.bitwise_not, ints(4)),
    whole("population_count", lax.population_count, ints(4)),
    whole("clz", lax.clz, ints(4)),
    unary("cbrt", lax.cbrt),
    unary("psum", jax.vmap(lambda x: x * lax.psum(x, "rows"), axis_name="rows")),
    unary("ceil", lax.ceil),
    whole("clamp", lax.clamp, np.full(5, -0.5, F), normal(5), np.full(5, 0.5, F)),
    whole("clamp", lambda x: lax.clamp(F(1.0), x, F(2.0)), TIED),
    whole("complex", lambda x, y: lax.real(lax.complex(x, y) ** 2), normal(3), normal(3)),
    whole("conj", lambda x, y: lax.imag(lax.conj(lax.complex(x, y))), normal(3), normal(3)),
    unary("cos", lax.cos),
    unary("cosh", lax.cosh),
    unary("digamma", lax.digamma, positive),
    binary("div", lax.div),
    whole("div", lax.div, np.array([-7, 7, 8], INT), np.array([2, -2, 3], INT)),
    whole("eq", lax.eq, ints(6), ints(6)),
    whole("ne", lax.ne, ints(6), ints(6)),
    binary("ge", lax.ge),
    binary("gt", lax.gt),
    binary("le", lax.le),
    binary("lt", lax.lt),
    whole("eq_to", primitives.eq_to_p.bind, TIED[0], TIED[1]),
    whole("le_to", primitives.le_to_p.bind, TIED[0], TIED[1]),
    whole("lt_to", primitives.lt_to_p.bind, TIED[0], TIED[1]),
    unary("erf", lax.erf),
    unary("erf_inv", lax.erf_inv, positive),
    unary("erfc", lax.erfc),
    unary("exp", lax.exp),
    unary("exp2", lax.exp2),
    unary("expm1", lax.expm1),
    unary("floor", lax.floor),
    binary("igamma", lax.igamma, positive),
    binary("igammac", lax.igammac, positive),
    binary("igamma_grad_a", lax.igamma_grad_a, positive),
    unary("integer_pow", lambda x: lax.integer_pow(x, 3)),
    unary("integer_pow", lambda x: lax.integer_pow(x, -2)),
    unary("is_finite", lax.is_finite),
    unary("lgamma", lax.lgamma, positive),
    unary("log", lax.log, positive),
    unary("log1p", lax.log1p, positive),
    unary("logistic", lax.logistic),
    whole("max", lax.max, TIED[0], TIED[1]),
    whole("max", lambda x: jnp.maximum(x, 2.0), TIED[0]),
    whole("min", lax.min, TIED[0], TIED[1]),
    binary("mul", lax.mul),
    unary("neg", lax.neg),
    binary("nextafter", lambda x, y: lax.stop_gradient(lax.nextafter(x, y))),
    whole("polygamma", lambda x: lax.polygamma(np.arange(4, dtype=F), x), positive(4) + F(0.5)),
    binary("pow", lax.pow, positive),
    whole("pow", lax.pow, positive(4), ints(4)),
    unary("real", lambda x: lax.real(lax.complex(x, x))),
    unary("imag", lambda x: lax.imag(lax.complex(x, x))),
    binary("rem", lax.rem),
    whole("regularized_incomplete_beta", lambda x: lax.betainc(F(2.0), F(3.0), x), positive(3)),
    unary("round", lambda x: lax.round(3 * x)),
    unary("round", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
    unary("rsqrt", lax.rsqrt, positive),
    whole("select_n", lambda p, x, y: lax.select(p > 0, x, y), normal(4), normal(4), normal(4)),
    whole("select_n", lambda i, *xs: lax.select_n(i, *xs), ints(4, high=3), *normal(3, 4)),
    whole("shift_left", lax.shift_left, ints(4), ints(4)),
    whole("shift_right_logical", lax.shift_right_logical, ints(4, low=-9), ints(4)),
    whole("shift_right_arithmetic", lax.shift_right_arithmetic, ints(4, low=-9), ints(4)),
    unary("sign", lax.sign),
    unary("sin", lax.sin),
    unary("sinh", lax.sinh),
    unary("sqrt", lax.sqrt, positive),
    unary("square", lax.square),
    binary("sub", lax.sub),
    unary("tan", lax.tan),
    unary("tanh", lax.tanh),
    whole("zeta", lambda x: lax.zeta(F(2.5), x), positive(3)),
    whole("stack", lambda x, y: jnp.stack([x, y, x], 1), normal(3), normal(3)),
    whole("unstack", lambda x: lax.mul(*jnp.unstack(x, axis=1)), normal(3, 2)),
    unary("stop_gradient", lambda x: x * lax.stop_gradient(x)),
    unary("copy_p", lambda x: jnp.array(x, copy=True)),
    unary("convert_element_type", lambda x: x.astype(jnp.bfloat16).astype(F)),
    unary("convert_element_type", lambda x: x.astype(INT)),
    unary("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, INT)),
    unary("reduce_precision", lambda x: lax.reduce_precision(x, 5, 10)),
    # Shapes.
    whole("broadcast_in_dim", lambda x: jnp.broadcast_to(x[:, None], (3, 4)) * 2.0, normal(3)),
    whole("reshape", lambda x: x.reshape(3, 4), normal(2, 6)),
    whole("reshape", lambda x: lax.reshape(x, (2, 3, 2), (2, 0, 1)), normal(2, 2, 3)),
    whole("squeeze", lambda x: lax.squeeze(x, [1]), normal(3, 1, 2)),
    whole("transpose", lambda x: x.transpose(2, 0, 1), normal(3, 1, 2)),
    whole("rev", lambda x: lax.rev(x, (1, 0)), normal(3, 2)),
    whole("concatenate", lambda x, y: lax.concatenate([x, y, x], 1), normal(2, 3), normal(2, 1)),
    whole("split", lambda x: lax.split(x, (1, 3), 1), normal(2, 4)),
    whole("tile", lambda x: jnp.tile(x, (2, 3)), normal(2, 2)),
    whole("pad", lambda x, v: lax.pad(x, v, ((1, -1, 1), (0, 2, 0))), normal(3, 2), F(0.5)),
    whole("slice", lambda x: lax.slice(x, (1, 0), (5, 3), (2, 1)), normal(6, 4)),
    whole("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 1), (2, 2)), normal(5, 4), INT(4)),
    whole(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 1)),
        normal(5, 4),
        normal(2, 2),
        INT(4),
    ),
    whole("iota", lambda x: x + lax.broadcasted_iota(F, (3, 4), 1), normal(3, 4)),
    whole("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), normal(3), INT(2)),
    # Indexing.
    whole("gather", lambda x, i: A(x)[i], normal(5, 3), ints(4)),
    whole(
        "gather",
        lambda x, i: A(x).at[i].get(mode="fill"),
        normal(5, 3),
        np.array([0, 7, -1], INT),
    ),
    whole("gather", lambda x, i: A(x)[:, i, 1], normal(2, 5, 3), ints(4)),
    whole("gather", lambda x, i: A(x)[i, :, i], normal(5, 2, 5), ints(4)),
    whole("gather", lambda x, i: A(x)[..., i[:, None], i], normal(2, 5, 5), ints(4)),
    whole("gather", lambda x, i: jnp.take_along_axis(x, i, 1), normal(3, 5), ints(3, 2)),
    whole("gather", lambda x, i: jnp.take(x, i, axis=1, mode="clip"), normal(3, 5), ints(3, 2)),
    whole(
        "gather",
        gathered(
            "clip",
            offset_dims=(0, 2),
            collapsed_slice_dims=(),
            start_index_map=(1, 0),
            slice_sizes=(2, 3),
        ),
        normal(4, 5),
        ints(3, 2, high=9, low=-2),
    ),
    whole(
        "gather",
        gathered(
            "fill",
            offset_dims=(1, 2),
            collapsed_slice_dims=(1,),
            start_index_map=(0, 1),
            slice_sizes=(2, 1, 3),
        ),
        normal(4, 5, 3),
        ints(3, 2, high=5, low=-1),
    ),
    whole(
        "gather",
        lambda x, i: jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3)))(x, i),
        normal(4, 5, 3),
        ints(4),
    ),
    whole(
        "scatter",
        lambda x, i, u: A(x).at[i].set(u),
        normal(5, 3),
        np.array([1, 9, 3]),
        normal(3, 3),
    ),
    whole(
        "scatter-add",
        lambda x, i, u: A(x).at[i].add(u),
        normal(5, 3),
        ints(4),
        normal(4, 3),
    ),
    whole(
        "scatter-add",
        lambda x, i, u: A(x).at[:, i].add(u),
        normal(5, 6),
        ints(4),
        normal(5, 4),
    ),
    whole(
        "scatter-sub",
        lambda x, i, u: A(x).at[i].subtract(u),
        normal(5, 3),
        ints(4),
        normal(4, 3),
    ),
    whole(
        "scatter_mul",
        lambda x, i, u: A(x).at[i].mul(u, unique_indices=True),
        normal(5, 3),
        np.array([3, 0, 2]),
        normal(3, 3),
    ),
    whole(
        "scatter_min",
        lambda x, i, u: A(x).at[i].min(u),
        normal(5),
        np.array([1, 3]),
        normal(2),
    ),
    whole(
        "scatter_max",
        lambda x, i, u: A(x).at[i].max(u),
        normal(5),
        np.array([1, 3]),
        normal(2),
    ),
    whole(
        "scatter-add",
        scattered(
            lax.scatter_add,
            "drop",
            update_window_dims=(0, 2),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(1, 0),
        ),
        normal(4, 5),
        ints(3, 2, high=5, low=-1),
        normal(2, 3, 3),
    ),
    whole(
        "scatter-add",
        scattered(
            lax.scatter_add,
            "clip",
            update_window_dims=(0, 1),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(1,),
            operand_batching_dims=(),
        ),
        normal(4, 5),
        ints(3, 1, high=6),
        normal(4, 2, 3),
    ),
    # Combining.
    whole("reduce_sum", lambda x: lax.reduce_sum(x, (1,)), normal(3, 2)),
    whole("reduce_max", lambda x: lax.reduce_max(x, (1,)), TIED),
    whole("reduce_min", lambda x: lax.reduce_min(x, (1,)), TIED),
    whole("reduce_prod", lambda x: lax.reduce_prod(x, (1,)), normal(3, 2)),
    whole("reduce_and", lambda x: jnp.all(x > 0, 1), normal(3, 2)),
    whole("reduce_or", lambda x: jnp.any(x > 0, 1), normal(3, 2)),
    whole("reduce_xor", lambda x: lax.reduce_xor(x > 0, (1,)), normal(3, 2)),
    whole("argmax", lambda x: jnp.argmax(x, 1), TIED),
    whole("argmin", lambda x: jnp.argmin(x, 1), TIED),
    whole("cumsum", lambda x: lax.cumsum(x, 1, reverse=True), normal(3, 4)),
    whole("cumprod", lambda x: lax.cumprod(x, 1), normal(3, 4)),
    whole("cummax", lambda x: lax.cummax(x, 1), normal(3, 4)),
    whole("cummin", lambda x: lax.cummin(x, 1, reverse=True), normal(3, 4)),
    whole("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), normal(3, 4)),
    whole("sort", lambda x: lax.sort(x, 1), normal(3, 4)),
    whole("sort", lambda k, x: lax.sort((k, x), 1, num_keys=1), ints(3, 4), normal(3, 4)),
    whole(
        "sort",
        lambda k, x, y: lax.sort((k, x, y), 1, num_keys=2),
        *(ints(3, 6, high=2), normal(3, 6), normal(3, 6)),
    ),
    whole("top_k", lambda x: lax.top_k(x, 2), normal(3, 4)),
    # Products.
    whole("dot_general", lambda x, y: x @ y, normal(3, 4), normal(4, 2)),
    whole(
        "dot_general",
        lambda x, y: jnp.einsum("abc,dba->bdc", x, y),
        normal(2, 3, 4),
        normal(5, 3, 2),
    ),
    whole(
        "dot_general",
        lambda x, y: lax.dot(
            x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=F
        ),
        *(normal(3, 4), normal(4, 2)),
    ),
    whole(
        "conv_general_dilated",
        lambda x, y: lax.conv_general_dilated(x, y, (2, 1), ((1, 1), (2, 0)), (1, 2), (2, 1)),
        normal(2, 4, 6, 5),
        normal(3, 4, 3, 2),
    ),
    whole(
        "conv_general_dilated",
        jax.vmap(lambda x, y: lax.conv_general_dilated(x, y, (1,), "SAME")),
        normal(3, 2, 3, 7),
        normal(3, 4, 3, 3),
    ),
    whole(
        "conv_general_dilated",
        lambda x, y: lax.conv_general_dilated(
            x, y, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
        ),
        normal(2, 6, 4),
        normal(3, 2, 6),
    ),
    whole(
        "conv_general_dilated",
        lambda x, y: lax.conv_general_dilated(
            x, y, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), batch_group_count=2
        ),
        normal(4, 6, 3),
        normal(3, 3, 6),
    ),
    # Windows.
    whole("reduce_window_max", pool(lax.max, -np.inf), IMAGE),
    Case("reduce_window_max", pool(lax.max, -np.inf), (np.round(IMAGE),), TIES),
    whole("reduce_window_min", pool(lax.min, np.inf), IMAGE),
    whole("reduce_window_sum", pool(lax.add, 0.0), IMAGE),
    whole(
        "reduce_window_sum",
        pool(lax.add, 0.0, base_dilation=(1, 2, 1, 1), window_dilation=(1, 1, 2, 1)),
        IMAGE,
    ),
    whole(
        "select_and_scatter_add",
        lambda x: jax.grad(lambda x: jnp.sum(pool(lax.max, -np.inf)(x) ** 2))(x),
        IMAGE,
    ),
    # Random numbers.
    whole("random_bits", lambda k: jax.random.bits(key(k), (3,), jnp.uint8), KEY),
    whole("random_bits", lambda k: jax.random.normal(k, (3, 2)), KEY),
    whole("random_split", lambda k: jax.random.key_data(jax.random.split(key(k), (2, 3))), KEY),
    whole("random_fold_in", lambda k, n: jax.random.fold_in(k, n), KEY, INT(5)),
    whole("random_seed", lambda n: jax.random.key_data(jax.random.key(n)), INT(-5)),
    whole("rng_bit_generator", lambda k: lax.rng_bit_generator(k, (3,)), np.arange(4, dtype=U)),
    whole("random_gamma_grad", lambda k, a: jax.random.gamma(key(k), a), KEY, positive(3)),
    whole("random_gamma", lambda k, a: jax.random.loggamma(key(k), a), KEY, positive(3)),
    # Matrices.
    whole("cholesky", lambda x: jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(3)), normal(3, 3)),
    whole("eigh", lambda x: jnp.linalg.eigh(x + x.T)[0], normal(3, 3)),
    whole("qr", lambda x: jnp.abs(jnp.linalg.qr(x)[1]), normal(4, 3)),
    whole("geqrf", lambda x: jnp.linalg.qr(x, mode="raw"), normal(2, 4, 3)),
    whole("geqrf", complex_reflections, normal(2, 3), normal(2, 3)),
    whole("householder_product", lax.linalg.householder_product, normal(4, 3), positive(3)),
    *(
        whole(
            "ormqr",
            partial(lax.linalg.ormqr, left=left, transpose=transpose),
            *(normal(3, 2), positive(2), normal(3, 2) if left else normal(2, 3)),
        )
        for left in (True, False)
        for transpose in (True, False)
    ),
    whole(
        "tridiagonal_solve",
        lax.linalg.tridiagonal_solve,
        *(normal(4), normal(4) + 5, normal(4), normal(4, 2)),
    ),
    whole("svd", lambda x: jnp.linalg.svd(x, compute_uv=False), normal(4, 3)),
    whole("lu", lambda x: jax.scipy.linalg.lu(x)[2], normal(3, 3)),
    whole("lu", jnp.linalg.det, normal(4, 4)),
    whole(
        "lu_pivots_to_permutation",
        lambda a, b: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), b),
        *(normal(3, 3), normal(3)),
    ),
    whole(
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(
            a, b, left_side=True, lower=True, transpose_a=True
        ),
        normal(3, 3) + 3 * np.eye(3, dtype=F),
        normal(3, 2),
    ),
    whole(
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(a, b, unit_diagonal=True),
        normal(3, 3),
        normal(2, 3),
    ),
    whole("custom_linear_solve", jnp.linalg.solve, normal(3, 3), normal(3)),
    whole("fft", lambda x: jnp.abs(jnp.fft.rfft2(x)), normal(4, 6)),
    whole("fft", lambda x: jnp.fft.irfft(jnp.fft.fft(x)[..., :4]), normal(2, 6)),
    # Programs in programs.
    whole("jit", jax.jit(lambda x: jax.jit(jnp.tanh)(x) * 2.0), normal(3)),
    whole("custom_jvp_call", own_tangent, normal(3), normal(3)),
    whole("custom_jvp_call", lambda x: jax.nn.relu(x) + jnp.sinc(x), np.array([0.0, 1.5, -1], F)),
    whole("custom_vjp_call", own_cotangent, normal(3), normal(3)),
    whole("custom_vmap_call", own_map, normal(3)),
    whole("remat", jax.checkpoint(lambda x: jnp.sin(jnp.exp(x))), normal(3)),
    whole("cond", lambda x, n: lax.cond(n > 1, jnp.sin, lambda x: x * x, x), normal(3), INT(2)),
    whole(
        "cond",
        lambda n, x: lax.switch(n, [jnp.sin, jnp.cos, lambda x: x * x], x),
        *(INT(7), normal(3)),
    ),
    whole("while", looped, positive(3)),
    whole("scan", scanned, F(0.7), normal(3), normal(4, 3)),
]


#: Primitives of jax 0.12 on, in `jnp.log2`, `jnp.sinc` and the like.
LATER = ("log2", "one_minus_square", "polynomial")
if hasattr(lax, "polynomial"):
    small = np.array([1e-30, -1e-9, 0.3, 0.9999, -1.0, 3.0], F)
    CASES += [
        unary("log2", lax.log2, positive),
        whole("one_minus_square", lax.one_minus_square, small),
        whole("one_minus_square", lax.one_minus_square, ints(4)),
        whole("polynomial", lambda x, c: lax.polynomial(x, [c, 2.0, -c, 0.5]), normal(3), F(0.7)),
        whole("polynomial", lambda x: lax.polynomial(x, np.arange(1.0, 12.0, dtype=F)), normal(3)),
    ]


def flat(result):
    return jax.tree_util.tree_leaves(result)


def is_float(x):
    return jnp.issubdtype(np.asarray(x).dtype, jnp.floating)


def floats(args):
    return [i for i, x in enumerate(args) if is_float(x)]


def close(found, wanted, tolerance=2e-5):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        other = np.asarray(other)
        assert np.asarray(one).dtype == other.dtype
        if is_float(other):
            one, other = np.asarray(one, np.float64), other.astype(np.float64)
            np.testing.assert_allclose(one, other, tolerance, tolerance)
        else:
            np.testing.assert_array_equal(np.asarray(one), other)


def named(cases):
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=f"{k}-{case}") for k, case in enumerate(cases)]
    )


#: Primitives that are one of our ops as it is; what `tests/op_table.py` tries is tried there.
PLAIN = frozenset(_OPS)


def some(cases):
    """All cases by name, of which those of plain ops are slow."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=f"{k}-{case}",
                marks=pytest.mark.slow if case.primitive in PLAIN else (),
            )
            for k, case in enumerate(cases)
        ],
    )


def tensors(args):
    return [tg.constant(x) for x in args]


@pytest.mark.sampled(28)
@named(CASES)
def test_value(case):
    found = flat(tg.from_jax(case.function)(*tensors(case.args)))
    close(found, flat(jax.jit(case.function)(*case.args)))


def of_floats(case):
    """The function of the floating arguments alone, with its floating results, and these."""
    places = floats(case.args)

    def run(*xs):
        every = list(case.args)
        for place, x in zip(places, xs):
            every[place] = x
        return [y for y in flat(case.function(*every)) if jnp.issubdtype(y.dtype, jnp.floating)]

    return run, [case.args[i] for i in places]


#: Primitives without derivatives in JAX, of integers alone, or whose slopes JAX rounds as well.
WITHOUT = (
    *("nextafter", "zeta", "rng_bit_generator", "reduce_precision", "igamma_grad_a"),
    *("geqrf", "householder_product", "ormqr"),
)


def differentiable() -> list:
    found = []
    for case in CASES:
        run, args = of_floats(case)
        if args and case.primitive not in WITHOUT and jax.eval_shape(run, *args):
            found.append(case)
    return found


DIFFERENTIABLE = differentiable()


def seeds(run, args):
    rng = np.random.default_rng(1)
    return [rng.normal(size=y.shape).astype(y.dtype) for y in jax.eval_shape(run, *args)]


#: Primitives that JAX does not differentiate in reverse mode.
FORWARD_ONLY = ("custom_vmap_call", "while")


@pytest.mark.sampled(7)
@some([case for case in DIFFERENTIABLE if case.primitive not in FORWARD_ONLY])
def test_vjp(case):
    run, args = of_floats(case)
    gs = seeds(run, args)
    wanted = jax.jit(lambda args, gs: jax.vjp(run, *args)[1](gs))(args, gs)
    xs = tensors(args)
    with tg.GradientTape() as tape:
        tape.watch(xs)
        ys = tg.from_jax(run)(*xs)
    found = tape.gradient(ys, xs, tensors(gs), tg.UnconnectedGradients.ZERO)
    close(found, wanted)


WITH_JVP = [case for case in DIFFERENTIABLE if case.primitive != "custom_vjp_call"]


@pytest.mark.sampled(7)
@some([case for case in WITH_JVP if case.label != TIES])
def test_jvp(case):
    run, args = of_floats(case)
    rng = np.random.default_rng(2)
    ts = [rng.normal(size=np.shape(x)).astype(F) for x in args]
    wanted = jax.jit(lambda args, ts: jax.jvp(run, args, ts)[1])(args, ts)
    with tg.autodiff.ForwardAccumulator(xs := tensors(args), tensors(ts)) as accumulator:
        ys = tg.from_jax(run)(*xs)
    close(accumulator.jvp(ys, tg.UnconnectedGradients.ZERO), wanted)


def test_forward_mode_follows_the_same_one_of_equal_maxima_as_reverse_mode():
    (case,) = (case for case in CASES if case.label == TIES)
    (x,) = case.args
    t = np.random.default_rng(2).normal(size=x.shape).astype(F)
    wanted = np.tensordot(jax.jacrev(case.function)(x), t, x.ndim)
    with tg.autodiff.ForwardAccumulator(x := tg.constant(x), tg.constant(t)) as accumulator:
        y = tg.from_jax(case.function)(x)
    close([accumulator.jvp(y)], [wanted])


@pytest.mark.sampled(11)
@some(CASES)
def test_batch(case):
    rng = np.random.default_rng(3)

    def rows(x):
        x = np.asarray(x)
        if is_float(x):
            return np.stack([x, x + rng.uniform(0.01, 0.04, x.shape).astype(x.dtype), x])
        return np.stack([x, np.flip(x), x]) if x.ndim else np.stack([x, np.maximum(x - 6, 0), x])

    args = [rows(x) for x in case.args]
    wanted = [np.stack(ys) for ys in zip(*(flat(case.function(*row)) for row in zip(*args)))]
    converted = tg.from_jax(case.function)
    found = flat(tg.vectorized_map(lambda row: converted(*row), tensors(args)))
    close(found, wanted, 1e-4)


def test_every_primitive_with_a_rule_is_tried_or_known():
    tried = {case.primitive for case in CASES}
    assert set(RULES) - tried - KNOWN == set()


#: Names that are tried under another one, that only other primitives make, and those refused.
KNOWN = frozenset(
    [
        *LATER,
        "call_hi_primitive",
        *(
            "checkpoint",
            "closed_call",
            "call",
            "custom_vjp_call_jaxpr",
            "pjit",
            "remat2",
            "eval_jaxpr",
        ),
        *("random_wrap", "random_unwrap", "random_clone", "platform_index"),
        "sharding_constraint",  # in test_from_jax.py
        *("pmax", "pmin"),  # in test_jax_corners.py: JAX has no derivatives of them
        *(
            "add_any",
            "copy",
            "name",
            "device_put",
            "dim_as_value",
            "empty",
            "empty2",
            "expand_dims",
            "core_call",
        ),
        *("reduce_window", "select_and_gather_add", "threefry2x32", "scatter_add", "scatter_sub"),
        *("scatter-max", "scatter-min", "scatter-mul"),
        *_REFUSED,
        OTHERS,
    ]
)
