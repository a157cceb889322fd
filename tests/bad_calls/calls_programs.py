"""Calls that are right: derivatives, control flow, state, checks and files."""

import tracegraph as tg
from tests.bad_calls.calls_math import B, N, V, X
from tests.bad_calls.harness import call, on

S = tg.constant(2.0)
T = tg.constant(True)
VARIABLE = tg.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
ROWS = tg.IndexedSlices(tg.ones([1, 3]), tg.constant([1]))
COMPARISONS = "equal greater greater_equal less less_equal near none_equal"
SIGNS = "negative non_negative non_positive positive"


def square(x):
    return x * x


def total(x):
    return tg.reduce_sum(x * x)


def array():
    return tg.TensorArray(tg.float32, size=2, element_shape=[3]).unstack(X)


CALLS = {
    **{name: call(total) for name in ("grad", "hessian", "jacobian", "value_and_grad", "vmap")},
    "custom_gradient": call(square),
    "grad_pass_through": call(square),
    "recompute_grad": call(square),
    "function": call(square),
    "Function": call(square),
    "hvp": call(total, [X], [X]),
    "jvp": call(square, [X], [X]),
    "linearize": call(square, X),
    "vjp": call(square, X),
    "pfor": call(lambda i: i, 2),
    "vectorized_map": call(square, X),
    "map_fn": call(square, X),
    "foldl": call(lambda a, x: a + x, X),
    "foldr": call(lambda a, x: a + x, X),
    "scan": call(lambda a, x: a + x, X),
    "cond": call(T, lambda: S, lambda: S),
    "case": call([(T, lambda: S)], default=lambda: S),
    "switch_case": call(tg.constant(0), [lambda: S, lambda: S]),
    "while_loop": call(lambda i: i < 3, lambda i: i + 1, [tg.constant(0)]),
    "py_function": call(square, [X], tg.float32),
    "numpy_function": call(square, [X], tg.float32),
    "group": call(X, X),
    "control_dependencies": call([X]),
    "print": call(X),
    "Assert": call(T, [X]),
    "as_dtype": call("float32"),
    "get_static_value": call(X),
    "name_scope": call("a"),
    "no_gradient": call("NoSuchOpAtAll"),
    "RegisterGradient": call("NoSuchOpAtAll"),
    "type_spec_from_value": call(X),
    "GradientTape": call(persistent=False),
    "autodiff.ForwardAccumulator": call(X, X),
    "IndexedSlices": call(X, tg.constant([0, 1])),
    "TensorArray": call(tg.float32, size=2, element_shape=[3]),
    "TensorShape": call([2, 3]),
    "TensorSpec": call([2, 3]),
    "TensorType": call(tg.float32, (2, 3)),
    "Variable": call(X, dtype=tg.float32, shape=[2, 3]),
    "Module": call(),
    "TensorArray().read": on(array, 0),
    "TensorArray().write": on(array, 0, V),
    "TensorArray().unstack": on(array, X),
    "TensorArray().gather": on(array, tg.constant([0])),
    "TensorArray().scatter": on(array, tg.constant([0, 1]), X),
    "TensorArray().split": on(array, X, [1, 1]),
    "Variable().assign": on(lambda: VARIABLE, X),
    "Variable().assign_add": on(lambda: VARIABLE, X),
    "Variable().assign_sub": on(lambda: VARIABLE, X),
    **{
        f"Variable().scatter_{k}": on(lambda: VARIABLE, ROWS)
        for k in ("add", "div", "max", "min", "mul", "sub", "update")
    },
    **{
        f"Variable().scatter_nd_{k}": on(lambda: VARIABLE, tg.constant([[0]]), tg.ones([1, 3]))
        for k in ("add", "sub", "update")
    },
    "Variable().gather_nd": on(lambda: VARIABLE, tg.constant([[0]])),
    "Variable().sparse_read": on(lambda: VARIABLE, tg.constant([0])),
    "random.Generator": call(tg.constant([1, 2, 3])),
    "random.Generator().normal": on(lambda: tg.random.Generator.from_seed(1), [2, 3]),
    "random.Generator().uniform": on(lambda: tg.random.Generator.from_seed(1), [2, 3], 0.0, 1.0),
    "random.Generator().truncated_normal": on(lambda: tg.random.Generator.from_seed(1), [2, 3]),
    "random.Generator().split": on(lambda: tg.random.Generator.from_seed(1), 2),
    "random.Generator().skip": on(lambda: tg.random.Generator.from_seed(1), 2),
    "random.set_global_generator": call(tg.random.Generator.from_seed(1)),
    **{f"debugging.assert_{k}": call(X, X) for k in COMPARISONS.split()},
    **{f"debugging.assert_{k}": call(X) for k in SIGNS.split()},
    "debugging.assert_all_finite": call(X, "x"),
    "debugging.check_numerics": call(X, "x"),
    "debugging.assert_integer": call(N),
    "debugging.assert_rank": call(X, 2),
    "debugging.assert_rank_at_least": call(X, 2),
    "debugging.assert_rank_in": call(X, [2]),
    "debugging.assert_same_float_dtype": call([X]),
    "debugging.assert_scalar": call(S),
    "debugging.assert_shapes": call([(X, (2, 3))]),
    "debugging.assert_type": call(X, tg.float32),
    "nest.map_structure": call(square, X),
    "testing.check_gradients": call(total, X),
    "autograph.to_code": call(square),
    "autograph.do_not_convert": call(square),
}
