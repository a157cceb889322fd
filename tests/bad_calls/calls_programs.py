"""Calls that are right: derivatives, control flow, state, checks and files."""

import tracegraph as tg
from tests.bad_calls.calls_math import N, V, X
from tests.bad_calls.harness import call, on

VARIABLE = tg.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
ROWS = tg.IndexedSlices(tg.ones([1, 3]), tg.constant([1]))


def array():
    return tg.TensorArray(tg.float32, size=2, element_shape=[3]).unstack(X)


CALLS = {
    "type_spec_from_value": call(X),
    "TensorArray": call(tg.float32, size=2, element_shape=[3]),
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
    "random.Generator().normal": on(lambda: tg.random.Generator.from_seed(1), [2, 3]),
    "random.Generator().uniform": on(lambda: tg.random.Generator.from_seed(1), [2, 3], 0.0, 1.0),
    "random.Generator().truncated_normal": on(lambda: tg.random.Generator.from_seed(1), [2, 3]),
    "random.Generator().split": on(lambda: tg.random.Generator.from_seed(1), 2),
    "debugging.assert_integer": call(N),
    "debugging.assert_rank": call(X, 2),
    "debugging.assert_rank_at_least": call(X, 2),
    "debugging.assert_rank_in": call(X, [2]),
    "debugging.assert_same_float_dtype": call([X]),
    "debugging.assert_type": call(X, tg.float32),
}
