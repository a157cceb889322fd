"""Calls that are right: elementwise functions, reductions and what belongs to them."""

import numpy as np

import tracegraph as tg
from tests.bad_calls.harness import call

X = tg.constant(np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3))
V = tg.constant(np.linspace(0.1, 0.9, 3, dtype=np.float32))
N = tg.constant([0, 1, 1])
N2 = tg.constant([[0, 1, 1], [1, 0, 1]])
B = tg.constant([[True, False, True], [False, True, True]])
C = tg.constant(np.array([1 + 1j, 2 - 1j], np.complex64))

UNARY = (
    *[
        "abs",
        "acos",
        "acosh",
        "angle",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "bessel_i0",
        "bessel_i0e",
        "bessel_i1",
    ],
    *[
        "bessel_i1e",
        "ceil",
        "conj",
        "cos",
        "cosh",
        "digamma",
        "erf",
        "erfc",
        "erfcinv",
        "erfinv",
        "exp",
        "expm1",
        "floor",
    ],
    *[
        "identity",
        "imag",
        "is_finite",
        "is_inf",
        "is_nan",
        "is_non_decreasing",
        "is_strictly_increasing",
    ],
    *[
        "lbeta",
        "lgamma",
        "log",
        "log1p",
        "log_sigmoid",
        "ndtri",
        "negative",
        "real",
        "reciprocal",
        "rint",
    ],
    *[
        "rsqrt",
        "sigmoid",
        "sign",
        "sin",
        "sinh",
        "softplus",
        "softsign",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "zero_fraction",
    ],
    *[
        "stop_gradient",
        "guarantee_const",
        "nn.relu",
        "nn.elu",
        "nn.l2_loss",
        "nn.crelu",
        "nn.leaky_relu",
    ],
    *["activations.celu", "activations.elu", "activations.gelu", "activations.glu"],
    *["activations.hard_shrink", "activations.hard_sigmoid", "activations.hard_silu"],
    *["activations.hard_tanh", "activations.leaky_relu", "activations.linear"],
    *["activations.log_softmax", "activations.mish", "activations.relu", "activations.relu6"],
    *["activations.selu", "activations.silu", "activations.soft_shrink", "activations.softmax"],
    *["activations.sparse_plus", "activations.sparse_sigmoid", "activations.sparsemax"],
    *["activations.squareplus", "activations.tanh_shrink"],
    *(f"math.special.{x}" for x in dir(tg.math.special)),
)
BINARY = (
    *[
        "add",
        "atan2",
        "divide",
        "divide_no_nan",
        "equal",
        "floordiv",
        "floormod",
        "greater",
        "greater_equal",
    ],
    *[
        "igamma",
        "igammac",
        "less",
        "less_equal",
        "maximum",
        "minimum",
        "multiply",
        "multiply_no_nan",
    ],
    *["nextafter", "not_equal", "pow", "squared_difference", "subtract", "xdivy"],
    *["xlog1py", "xlogy", "zeta", "complex", "polygamma", "scalar_mul"],
)
REDUCTIONS = (
    *["reduce_euclidean_norm", "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min"],
    *["reduce_prod", "reduce_std", "reduce_sum", "reduce_variance", "count_nonzero", "norm"],
)
SEGMENTS = ("max", "mean", "min", "prod", "sum")

CALLS = {
    **{name: call(X) for name in UNARY},
    "reciprocal_no_nan": call(X),
    **{name: call(X, X) for name in BINARY},
    "scalar_mul": call(tg.constant(2.0), X),
    "polygamma": call(tg.constant(1.0), X),
    **{name: call(X, axis=[1]) for name in REDUCTIONS},
    **{name: call(B, axis=[1]) for name in ("reduce_all", "reduce_any")},
    **{f"logical_{name}": call(B, B) for name in ("and", "or", "xor")},
    "logical_not": call(B),
    "truncatediv": call(N, tg.constant([1, 2, 3])),
    "truncatemod": call(N, tg.constant([1, 2, 3])),
    **{f"bitwise.{name}": call(N, N) for name in dir(tg.bitwise) if name != "invert"},
    "bitwise.invert": call(N),
    "betainc": call(X, X, X),
    "accumulate_n": call([X, X]),
    "activations.squareplus": call(X, 4.0),
    "activations.glu": call(tg.ones([2, 4])),
    "activations.threshold": call(X, 0.5, 0.0),
    **{name: call(X, axis=1) for name in ("argmax", "argmin", "argsort", "sort")},
    **{name: call(X, axis=1) for name in ("cumprod", "cumsum", "cumulative_logsumexp")},
    "top_k": call(X, 2),
    "approx_max_k": call(X, 2),
    "approx_min_k": call(X, 2),
    "in_top_k": call(tg.constant([0, 1]), X, 2),
    "searchsorted": call(V, V),
    "bincount": call(N, minlength=3),
    "confusion_matrix": call(N, N, num_classes=3),
    "histogram_fixed_width": call(V, tg.constant([0.0, 1.0]), nbins=5),
    "histogram_fixed_width_bins": call(V, tg.constant([0.0, 1.0]), nbins=5),
    "clip_by_value": call(X, tg.constant(0.0), tg.constant(1.0)),
    "clip_by_norm": call(X, tg.constant(1.0), axes=[1]),
    "clip_by_global_norm": call([X, V], tg.constant(1.0)),
    "global_norm": call([X, V]),
    "l2_normalize": call(X, axis=1),
    "matmul": call(X, tg.ones([3, 2])),
    "tensordot": call(X, tg.ones([3, 2]), 1),
    "einsum": call("ij,jk->ik", X, tg.ones([3, 2])),
    "polyval": call([X, X], X),
    "invert_permutation": call(tg.constant([2, 0, 1])),
    **{f"segment_{name}": call(X, tg.constant([0, 1])) for name in SEGMENTS},
    **{
        f"unsorted_segment_{name}": call(X, tg.constant([0, 1]), 2)
        for name in (*SEGMENTS, "sqrt_n")
    },
    "dynamic_partition": call(X, tg.constant([0, 1]), 2),
    "dynamic_stitch": call([tg.constant([0]), tg.constant([1])], [X[:1], X[1:]]),
    "cast": call(X, dtype=tg.float64),
    "saturate_cast": call(X, dtype=tg.int32),
    "bitcast": call(X, type=tg.int32),
    "random.categorical": call(X, 2),
    "random.fold_in": call(tg.constant([1, 2]), 3),
    "random.gamma": call([2, 3], tg.constant(1.0)),
    "random.log_uniform_candidate_sampler": call(tg.constant([[1], [2]], tg.int64), 1, 3, True, 9),
    "random.uniform_candidate_sampler": call(tg.constant([[1], [2]], tg.int64), 1, 3, True, 9),
    "random.normal": call([2, 3]),
    "random.truncated_normal": call([2, 3]),
    "random.uniform": call([2, 3], 0.0, 1.0),
    "random.poisson": call([2, 3], tg.constant(1.0)),
    "random.set_seed": call(1),
    "random.shuffle": call(X),
    "random.split": call(tg.constant([1, 2]), 3),
    "random.stateless_binomial": call(
        [2, 3], tg.constant([1, 2]), tg.constant(4.0), tg.constant(0.5)
    ),
    "random.stateless_categorical": call(X, 2, tg.constant([1, 2])),
    "random.stateless_gamma": call([2, 3], tg.constant([1, 2]), tg.constant(1.0)),
    "random.stateless_poisson": call([2, 3], tg.constant([1, 2]), tg.constant(1.0)),
    "random.stateless_uniform": call([2, 3], tg.constant([1, 2]), 0.0, 1.0),
    "random.stateless_shuffle": call(X, tg.constant([1, 2])),
    **{
        f"random.stateless_{name}": call([2, 3], tg.constant([1, 2]))
        for name in ("normal", "truncated_normal")
    },
}
