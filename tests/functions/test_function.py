"""`tg.function`: tracing, signatures, concrete functions, return values and side effects.

The expected values are TensorFlow's or NumPy's; where tracegraph differs on purpose (keys by type
and value, checks of concrete functions, no compiler switch) the test says so.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import io
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings
import weakref
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir

import tracegraph as tg

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def here(number: int) -> str:
    """How an error names a line of this file."""
    return f"{os.path.basename(__file__)}:{number}"


def float_spec(*shape):
    """A float32 TensorSpec."""
    return tg.TensorSpec(list(shape), tg.float32)


def counted(**arguments):
    """A compiled function of any arguments, and the list that grows with each trace."""
    traces = []

    @tg.function(**arguments)
    def f(*args, **kwargs):
        traces.append(1)
        return 0

    return f, traces


def traces_of(*calls, **arguments):
    """How many traces there are after each call; a call is a tuple of arguments."""
    f, traces = counted(**arguments)
    totals = []
    for call in calls:
        f(*call)
        totals.append(len(traces))
    return totals


# ---------------------------------------------------------------- the decorator


def test_bare_decorator():
    @tg.function
    def double(x):
        return x * 2.0

    assert double(tg.constant(3.0)).numpy() == 6.0


def test_decorator_with_arguments():
    @tg.function(reduce_retracing=True)
    def double(x):
        return x * 2.0

    assert double(tg.constant(3.0)).numpy() == 6.0


def test_decorator_with_empty_parentheses():
    @tg.function()
    def double(x):
        return x * 2.0

    assert double(tg.constant(3.0)).numpy() == 6.0


def test_lambda():
    assert tg.function(lambda x: x * 2.0)(tg.constant(3.0)).numpy() == 6.0


def test_partial():
    multiply = lambda a, b: a * b  # noqa: E731
    x = tg.constant(2.0)
    assert tg.function(functools.partial(multiply, 3.0))(x).numpy() == 6.0
    assert tg.function(functools.partial(multiply, b=3.0))(x).numpy() == 6.0


def test_bound_method():
    class Plain:
        factor = 5.0

        def scale(self, x):
            return x * self.factor

    assert tg.function(Plain().scale)(tg.constant(2.0)).numpy() == 10.0


def test_callable_object():
    class Plain:
        def __call__(self, x):
            return x * 5.0

    assert tg.function(Plain())(tg.constant(2.0)).numpy() == 10.0


def test_function_of_a_function():
    inner = tg.function(lambda x: x * 2.0)
    assert tg.function(inner)(tg.constant(3.0)).numpy() == 6.0


@pytest.mark.parametrize("decorate", [tg.function, tg.function()], ids=["bare", "with arguments"])
def test_what_is_not_callable_is_a_type_error(decorate):
    with pytest.raises(TypeError, match="callable"):
        decorate(3)


def test_python_function_name_and_docstring():
    def body(x):
        """Says what it does."""
        return x

    f = tg.function(body)
    assert f.python_function is body
    assert f.__name__ == "body" and f.__doc__ == "Says what it does." and f.__wrapped__ is body


def test_var_arguments_and_keywords():
    f = tg.function(lambda *args, **kwargs: sum(args) + kwargs["z"])
    assert f(tg.constant(1.0), tg.constant(2.0), z=tg.constant(3.0)).numpy() == 6.0


def test_variables_as_a_default():
    kept = tg.Variable(8.0)

    @tg.function
    def halve(variables=(kept,)):
        variables[0].assign(variables[0] / 2.0)

    for _ in range(3):
        halve()
    assert kept.numpy() == 1.0


def test_tensor_as_a_default():
    default = tg.constant(1.0)

    @tg.function
    def double(x=default):
        return x * 2.0

    assert double().numpy() == 2.0
    assert double(tg.constant(2.0)).numpy() == 4.0
    assert double.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("jit_compile", [None, True, False])
def test_jit_compile_changes_nothing(jit_compile):
    v = tg.Variable(1.0)

    @tg.function(jit_compile=jit_compile)
    def f(x):
        v.assign_add(x)
        return tg.reduce_sum(x * v)

    assert f(tg.constant(2.0)).numpy() == 6.0
    assert v.numpy() == 3.0


def test_autograph_false_is_accepted():
    assert tg.function(lambda x: x * 2.0, autograph=False)(tg.constant(3.0)).numpy() == 6.0


def test_wrong_arguments_are_a_type_error():
    f = tg.function(lambda x: x)
    for call in (lambda: f(), lambda: f(1.0, 2.0), lambda: f(y=1.0), lambda: f(1.0, x=1.0)):
        with pytest.raises(TypeError):
            call()
    assert f(1.0).numpy() == 1.0


# ---------------------------------------------------------------- input_signature


@pytest.fixture
def doubled():
    """A function of one float32 vector of any length."""
    return tg.function(lambda x: x * 2.0, input_signature=[float_spec(None)])


@pytest.mark.parametrize(
    "value",
    [[1, 2], (1, 2), [1.0, 2.0], np.array([1.0, 2.0]), np.array([1, 2])],
    ids=["ints", "tuple", "floats", "float64 array", "int array"],
)
def test_signature_converts_python_values_and_arrays(doubled, value):
    result = doubled(value)
    assert result.dtype == tg.float32 and result.numpy().tolist() == [2.0, 4.0]


def test_signature_takes_tensors_and_variables(doubled):
    assert doubled(tg.constant([1.0, 2.0])).numpy().tolist() == [2.0, 4.0]
    assert doubled(tg.Variable([1.0, 2.0])).numpy().tolist() == [2.0, 4.0]
    assert doubled(x=[1.0]).numpy().tolist() == [2.0]


def test_signature_is_traced_once_for_every_size(doubled):
    for size in (1, 2, 5):
        assert doubled(tg.ones([size])).shape == (size,)
    assert doubled.experimental_get_tracing_count() == 1


def test_signature_attribute(doubled):
    assert tuple(doubled.input_signature) == (float_spec(None),)
    assert tg.function(lambda x: x).input_signature is None


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda f: f(tg.constant([1, 2])), "int32"),
        (lambda f: f(tg.constant(np.array([1.0, 2.0]))), "float64"),
        (lambda f: f(tg.constant(1.0)), None),
        (lambda f: f([[1.0]]), None),
        (lambda f: f(), "x"),
        (lambda f: f([1.0], [2.0]), None),
        (lambda f: f("text"), None),
        (lambda f: f(None), "None"),
        (lambda f: f(z=[1.0]), None),
    ],
    ids=["int32", "float64", "rank 0", "rank 2", "missing", "too many", "str", "None", "keyword"],
)
def test_arguments_that_do_not_fit_the_signature(doubled, call, fact):
    with pytest.raises(TypeError, match=fact):
        call(doubled)
    assert doubled([1.0]).numpy().tolist() == [2.0]  # still usable


def test_signature_error_names_the_line(doubled):
    with pytest.raises(TypeError) as error:
        doubled(tg.constant([1, 2]))
    assert here(line() - 1) in str(error.value)


def test_fixed_size_in_a_signature_is_checked():
    f = tg.function(lambda x: x, input_signature=[float_spec(3)])
    assert f([1.0, 2.0, 3.0]).shape == (3,)
    with pytest.raises(TypeError):
        f([1.0, 2.0])


def test_shorter_signature_leaves_defaults():
    f = tg.function(lambda x, y=3.0: x * y, input_signature=[float_spec()])
    assert f(2.0).numpy() == 6.0


def test_nested_signature():
    signature = [{"a": float_spec(), "b": [float_spec(None)]}, float_spec()]
    f = tg.function(lambda d, e: d["a"] + d["b"][0] + e, input_signature=signature)
    assert f({"a": 1.0, "b": [[2.0, 3.0]]}, 3).numpy().tolist() == [6.0, 7.0]


def test_empty_signature():
    assert tg.function(lambda: tg.constant(3.0), input_signature=[])().numpy() == 3.0


def test_signature_of_a_method():
    class Model:
        @tg.function(input_signature=[float_spec()])
        def add(self, x):
            return x + 1.0

    assert Model().add(3).numpy() == 4.0


def keyword_only(x, *, y):
    """A function with a keyword-only argument without default."""
    return x


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        (lambda x: x, [float_spec(), float_spec()]),
        (lambda x: x, [3]),
        (lambda x: x, {"x": float_spec()}),
        (lambda x: x, float_spec()),
        (lambda x, y: x, [float_spec()]),
        (keyword_only, [float_spec()]),
    ],
    ids=["too many", "not a spec", "dict", "bare spec", "too few", "keyword-only"],
)
def test_wrong_signatures_are_type_errors(body, signature):
    with pytest.raises(TypeError):
        tg.function(body, input_signature=signature)(1.0)


# ---------------------------------------------------------------- what makes a new trace

global_factor = 1.0


@pytest.mark.parametrize(
    ("calls", "totals"),
    [
        ([(2,), (2.0,), (True,), (2,), (2.0,), (True,)], [1, 2, 3, 3, 3, 3]),
        ([(0.0,), (-0.0,), (0.0,)], [1, 2, 2]),
        ([(float("nan"),), (float("nan"),)], [1, 1]),
        ([("a",), ("a",), ("b",)], [1, 1, 2]),
        ([(None,), (None,), (1,)], [1, 1, 2]),
        ([(range(3),), (range(3),), (range(4),)], [1, 1, 2]),
        ([(len,), (len,), (max,)], [1, 1, 2]),
        ([([1, 2],), ([1, 2],), ([1, 3],), ((1, 2),)], [1, 1, 2, 3]),
        ([({"a": 1},), ({"a": 1},), ({"a": 1.0},), ({"b": 1},)], [1, 1, 2, 3]),
    ],
    ids=["types", "signed zeros", "nan", "str", "None", "range", "builtins", "list", "dict"],
)
def test_python_values_are_keys_by_type_and_value(calls, totals):
    assert traces_of(*calls) == totals


def test_new_shape_and_new_dtype_trace_again():
    calls = [np.zeros(2), np.zeros(3), np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1))]
    assert traces_of(*[(tg.constant(array),) for array in calls]) == [1, 2, 2, 3, 4]


def test_new_array_values_do_not_trace_again():
    assert traces_of((np.zeros(3),), (np.ones(3),), (np.arange(3.0),)) == [1, 1, 1]


def test_arrays_and_tensors_share_a_trace():
    calls = [np.zeros(3, np.float32), tg.zeros(3), np.ones(3, np.float32)]
    assert traces_of(*[(value,) for value in calls]) == [1, 1, 1]


def test_numpy_scalars_are_tensors():
    calls = [tg.constant(1.0), np.float32(2.0), np.array(3.0, np.float32), np.float32(4.0)]
    assert traces_of(*[(value,) for value in calls]) == [1, 1, 1, 1]


def test_new_structure_traces_again():
    x = tg.constant(1.0)
    assert traces_of(([x],), ((x,),), ([x, x],), ([x],), ({"a": x},)) == [1, 2, 3, 3, 4]


def test_each_order_of_dictionary_keys_has_its_trace():
    x = tg.constant(1.0)
    calls = [({"a": x, "b": x},), ({"b": x, "a": x},)]
    assert traces_of(*calls, *calls) == [1, 2, 2, 2]


def test_values_follow_the_dictionary_keys():
    f = tg.function(lambda d: d["a"] - d["b"])
    assert f({"a": tg.constant(3.0), "b": tg.constant(1.0)}).numpy() == 2.0
    assert f({"b": tg.constant(1.0), "a": tg.constant(3.0)}).numpy() == 2.0


def test_keywords_and_positions_share_a_trace():
    traces = []

    @tg.function
    def f(x, y=2.0):
        traces.append(1)
        return x * y

    x = tg.constant(3.0)
    results = [f(x), f(x=x), f(x, 2.0), f(x, y=2.0), f(y=2.0, x=x)]
    assert [result.numpy() for result in results] == [6.0] * 5
    assert len(traces) == 1


def test_variables_are_keys_by_type_and_alias():
    a, b = tg.Variable(1.0), tg.Variable(2.0)
    assert traces_of((a,), (b,), (a, a), (a, b), (b, a), (b, b)) == [1, 1, 2, 3, 3, 3]


def test_variable_of_another_shape_traces_again():
    assert traces_of((tg.Variable(1.0),), (tg.Variable([1.0]),)) == [1, 2]


def test_variable_and_tensor_are_different_keys():
    f = tg.function(lambda x: type(x).__name__ == "Variable")
    assert f(tg.Variable(1.0)).numpy()
    assert not f(tg.constant(1.0)).numpy()


def test_objects_are_keys_by_identity():
    class Config:
        pass

    one, other = Config(), Config()
    assert traces_of((one,), (one,), (other,)) == [1, 1, 2]


def test_tracing_count():
    f, _ = counted()
    assert f.experimental_get_tracing_count() == 0
    for value in (1, 1, 2):
        f(value)
    assert f.experimental_get_tracing_count() == 2


@pytest.mark.parametrize(
    "bad",
    [lambda: {1, 2}, lambda: (x for x in ()), lambda: bytearray(b"x"), lambda: [{1}]],
    ids=["set", "generator", "bytearray", "set in a list"],
)
def test_argument_that_cannot_be_a_key_is_a_type_error(bad):
    f = tg.function(lambda x: tg.constant(1.0))
    with pytest.raises(TypeError):
        f(bad())
    assert f(1).numpy() == 1.0  # still usable


def test_globals_are_captured_by_value_when_traced(monkeypatch):
    f = tg.function(lambda x: x * global_factor)
    x = tg.constant(3.0)
    assert f(x).numpy() == 3.0
    monkeypatch.setitem(globals(), "global_factor", 5.0)
    assert f(x).numpy() == 3.0


def test_captured_tensor_keeps_its_value():
    box = [tg.constant([1.0, 2.0])]
    f = tg.function(lambda x: x * box[0])
    f(2.0)
    box[0] = tg.constant([9.0, 9.0])
    gc.collect()
    assert f(2.0).numpy().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("size", [3, 1000])
def test_captured_array_is_copied(size):
    array = np.ones(size, np.float32)
    f = tg.function(lambda x: tg.reduce_sum(x * array))
    assert f(2.0).numpy() == 2.0 * size
    array[:] = 9.0
    assert f(2.0).numpy() == 2.0 * size


def test_python_recursion_unrolls():
    @tg.function
    def factorial(n):
        return tg.constant(1.0) if n == 0 else n * factorial(n - 1)

    assert factorial(3).numpy() == 6.0


def test_python_side_effects_happen_while_tracing_only():
    seen = []
    f = tg.function(lambda x: seen.append("traced") or x)
    for value in (1.0, 2.0, 3.0):
        f(tg.constant(value))
    assert seen == ["traced"]


def test_executing_eagerly():
    assert tg.executing_eagerly()
    inside = []
    tg.function(lambda: inside.append(tg.executing_eagerly()))()
    assert inside == [False]


# ---------------------------------------------------------------- retracing


def test_reduce_retracing_generalises_sizes():
    sizes = [(tg.zeros([size]),) for size in (1, 2, 3, 9)]
    assert traces_of(*sizes, reduce_retracing=True) == [1, 2, 2, 2]


def test_reduce_retracing_generalises_only_the_size_that_changed():
    f = tg.function(lambda x: x * 2.0, reduce_retracing=True)
    for rows in (2, 3, 4):
        assert f(tg.ones([rows, 5])).shape == (rows, 5)
    assert f.experimental_get_tracing_count() == 2


def test_reduce_retracing_traces_again_for_python_numbers():
    assert traces_of((1,), (2,), (3,), reduce_retracing=True) == [1, 2, 3]


def test_reduce_retracing_keeps_results_right():
    f = tg.function(lambda x: tg.reduce_mean(x), reduce_retracing=True)
    for size in (1, 2, 3, 7):
        mean = f(tg.range(size, dtype=tg.float32)).numpy()
        np.testing.assert_allclose(mean, (size - 1) / 2, rtol=1e-6)


def test_retracing_warning_names_the_argument_and_both_values():
    f = tg.function(lambda x, learning_rate: x * learning_rate)
    x = tg.constant(1.0)
    with pytest.warns(UserWarning, match="were traced, which is slow") as caught:
        for number in range(5):
            f(x, 10.5 + number)
    text = str(caught[0].message)
    assert "learning_rate" in text and "13.5" in text and "14.5" in text


def test_retracing_warning_names_both_shapes():
    f = tg.function(lambda batch: batch)
    with pytest.warns(UserWarning, match="batch") as caught:
        for size in range(11, 16):
            f(tg.zeros([size]))
    text = str(caught[0].message)
    assert "14" in text and "15" in text


def test_four_traces_do_not_warn():
    f = tg.function(lambda x: tg.constant(0.0))
    for number in range(4):
        f(number)  # warnings are errors here
    assert f.experimental_get_tracing_count() == 4


def test_retracing_warns_at_most_twice():
    f = tg.function(lambda x: tg.constant(0.0))
    with pytest.warns(UserWarning) as caught:
        for number in range(12):
            f(number)
    assert len([w for w in caught if "were traced" in str(w.message)]) <= 2


def test_explain_retraces():
    f = tg.function(lambda x, rate: x)
    f(1.0, 0.125)
    f(1.0, 0.25)
    text = str(f.explain_retraces())
    assert "rate" in text and "0.125" in text and "0.25" in text


def fixes_of(function, *calls):
    f = tg.function(function)
    for arguments in calls:
        f(*arguments)
    return [retrace.fix for retrace in f.explain_retraces().retraces]


def test_explain_retraces_names_the_repair_that_fits():
    x, v, w = tg.ones([2]), tg.Variable(1.0), tg.Variable(2.0)
    assert fixes_of(lambda x, y: x, (x, 1), (x, 2), (x, x)) == [
        "pass 'y' as a tensor, such as tg.constant(2)",
        "pass 'y' as a tensor in each call",
    ]
    sizes, dtype, rank, structure, names, variables = (
        fixes_of(lambda x, y: 1.0, *calls)[0]
        for calls in (
            ((x, 1), (tg.ones([3]), 1)),
            ((x, 1), (tg.cast(x, tg.float64), 1)),
            ((x, 1), (tg.ones([1, 2]), 1)),
            ((x, 1), ([x], 1)),
            ((x, "a"), (x, "b")),
            ((v, w), (v, v)),
        )
    )
    assert "reduce_retracing=True" in sizes and "bucket_sizes" in sizes
    assert dtype == "pass 'x' as one dtype: tg.cast(x, tg.float32)"
    assert "tg.TensorSpec(None) for 'x'" in rank
    assert structure == "pass one structure in each call"
    assert names.startswith("pass few values as 'y'")
    assert "same Variables" in variables


def test_the_repair_for_sizes_ends_the_retraces():
    f = tg.function(lambda x: x * 2.0, reduce_retracing=True)
    for size in (2, 3, 4, 5):
        f(tg.ones([size]))
    found = f.explain_retraces()
    assert len(found) == 1
    assert [text for text, _ in found.compiles] == [f"<lambda>(x: f32[{n}])" for n in (2, 3, 4, 5)]


def test_explain_retraces_lists_the_bucket_sizes_that_are_compiled():
    f = tg.function(lambda x: x * 2.0, reduce_retracing=True, bucket_sizes=[4, 8])
    for size in (2, 3, 7, 4, 9):
        f(tg.ones([size]))
    found = f.explain_retraces()
    assert {text for text, _ in found.compiles} == {
        "<lambda>(x: f32[2])",  # the trace before the sizes were open
        "<lambda>(x: f32[4]), padded",
        "<lambda>(x: f32[8]), padded",
        "<lambda>(x: f32[9])",  # above the largest
    }
    assert all(seconds > 0 for _, seconds in found.compiles)
    (retrace,) = found.retraces
    assert retrace.fix.startswith("declare such sizes as None in an input_signature")


def test_explain_retraces_lists_the_compiles_of_functions_that_are_cut(capsys):
    f = tg.function(lambda x: tg.print(x * 2.0))
    f(tg.ones([2]))
    ((text, seconds),) = f.explain_retraces().compiles
    assert text == "<lambda>(x: f32[2])" and seconds > 0


@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
def test_explain_retraces_tells_what_needs_the_number_of_an_open_size():
    def body(x):
        return x[:, None] if x.shape[0] > 4 else x  # here

    line = f"test_function.py:{body.__code__.co_firstlineno + 1}"
    f = tg.function(body, reduce_retracing=True)
    for n in (3, 4, 5, 6):
        f(tg.ones([n]))
    found = f.explain_retraces()
    failed, *others = found.retraces
    assert line in failed.failure and not any(row.failure for row in others)
    assert all(row.fix.startswith("pad to few sizes before the call") for row in found.retraces)
    assert others[-1].changes == ("argument 'x' was f32[5] and is now f32[6]",)


def test_explain_retraces_has_the_seconds_of_each_trace():
    def slow(x):
        time.sleep(0.4 if x.shape[0] == 3 else 0.0)
        return x

    f = tg.function(slow)
    for size in (2, 3, 4):
        f(tg.ones([size]))
    found = f.explain_retraces()
    one, two = found.retraces
    assert one.seconds > 0.4 > two.seconds > 0
    assert 0 < found.first.seconds < 0.4
    assert found.seconds == one.seconds + two.seconds
    assert f", {one.seconds:.3f} s: argument 'x' was f32[2] and is now f32[3]" in str(found)
    assert len(found.compiles) == 3 and all(seconds > 0 for _, seconds in found.compiles)


def retraces_of(function, *calls):
    """What is said of each call that traced again."""
    f = tg.function(function)
    for arguments in calls:
        f(*arguments)
    return [retrace.changes for retrace in f.explain_retraces().retraces]


def test_explain_retraces_names_an_argument_whose_structure_changed():
    x = tg.ones([2])
    values = (None, x, [x], {"a": x, "b": (1, 2)})
    assert retraces_of(lambda x, rest: x, *[(x, value) for value in values]) == [
        ("argument 'rest' was None and is now f32[2]",),
        ("argument 'rest' was f32[2] and is now [f32[2]]",),
        ("argument 'rest' was [f32[2]] and is now {'a': f32[2], 'b': (1, 2)}",),
    ]


def test_explain_retraces_names_the_leaf_where_the_structure_is_that_of_an_earlier_trace():
    x = tg.ones([2])
    found = retraces_of(lambda first, rest: x, ([x], (1, 2)), ([x, x], (1, 2)), ([x, x], (1, 3)))
    assert found[1] == ("argument 'rest_1' was 2 and is now 3",)


def test_explain_retraces_names_an_argument_that_is_new():
    x = tg.ones([2])
    found = retraces_of(lambda *args: args[0], (x,), (x, 1))
    assert found == [("argument 'args_1' was not given and is now 1",)]


def test_explain_retraces_tells_long_structures_apart():
    x = tg.ones([])
    ((change,),) = retraces_of(lambda rest: rest[0], ([x] * 98,), ([x] * 99,))
    assert "(98 leaves)" in change
    assert "(99 leaves)" in change


def test_explain_retraces_tells_objects_apart():
    class Options:
        pass

    f = tg.function(lambda x, options: x)
    options = [Options(), Options()]
    for other in options:
        f(1.0, other)
    (retrace,) = f.explain_retraces().retraces
    assert retrace.changes == ("argument 'options' was an Options and is now another",)


def test_explain_retraces_tells_variables_apart():
    v, w = tg.Variable(1.0), tg.Variable(1.0)
    found = retraces_of(lambda a, b: a + b, (v, w), (v, v))
    place = "of the call, f32[]"
    assert found == [(f"argument 'b' was Variable 2 {place} and is now Variable 1 {place}",)]


def test_retracing_warning_names_structures():
    x = tg.ones([2])
    f = tg.function(lambda x, rest: x)
    with pytest.warns(UserWarning, match=r"argument 'rest' was \[f32\[2\], .*\] and is now \["):
        for count in range(1, 6):
            f(x, [x] * count)


def in_order(keys):
    return {key: tg.constant(1.0) for key in keys}


def test_retracing_warning_names_the_orders_of_the_keys_of_a_dict():
    f = tg.function(lambda p: p["a"] + p["b"])
    with pytest.warns(UserWarning, match="retrac|traced") as caught:
        for keys in ("abc", "acb", "bac", "bca", "cab"):
            f(in_order(keys))
    assert str(caught[0].message).endswith(
        "The last time, argument 'p' has the same keys in another order: they were 'b', 'c', 'a' "
        "and are now 'c', 'a', 'b'. Build the dict in one order"
    )
    assert "now 'c', 'a', 'b'\n    fix: build the dict in one order\n" in str(f.explain_retraces())


def test_explain_retraces_names_the_order_of_keys():
    def body(p, **options):
        return p["x"] if isinstance(p, dict) else p

    x, inner = tg.constant(1.0), {"x": tg.constant(1.0)}
    moved = "in another order: they were 'k', 'x' and are now 'x', 'k'"
    assert retraces_of(
        body, ({**inner, "d": in_order("kx")},), ({**inner, "d": in_order("xk")},)
    ) == [
        (f"argument 'p'['d'] has the same keys {moved}",),
    ]
    f = tg.function(body)
    f(x, k=x, x=x)
    f(x, x=x, k=x)  # each order of them is a trace, as of a dict
    assert [(r.changes, r.fix) for r in f.explain_retraces().retraces] == [
        (
            (f"the call has the same arguments by name {moved}",),
            "give the arguments by name in one order",
        )
    ]
    f = tg.function(body)
    f({"x": x, "b": 1})
    f({"b": 2, "x": x})  # more than the order
    (retrace,) = f.explain_retraces().retraces
    assert retrace.changes[1:] == ("argument 'p_b' was 1 and is now 2",)
    assert retrace.fix == (
        "build the dict in one order, and pass 'p_b' as a tensor, such as tg.constant(2)"
    )
    many = [str(i) for i in range(40)]
    f = tg.function(lambda p: p["0"])
    f(in_order(many))
    f(in_order([*many[:30], *reversed(many[30:])]))
    assert "were ..., '30', '31', '32', '33', '34', '35', ... and are now ..., '39'," in str(
        f.explain_retraces()
    )


class Doubled:
    @tg.function
    def call(self, x):
        return x * 2.0


def test_retracing_warning_of_a_new_instance_in_each_iteration():
    with pytest.warns(UserWarning) as caught:
        for _ in range(5):
            Doubled().call(tg.constant(1.0))
    assert str(caught[0].message) == (
        "5 of the last 5 calls of call were traced, which is slow. The last time, it was called on "
        "another Doubled, and each instance has traces of its own. Make the Doubled once, "
        "outside of the loop"
    )


def test_retracing_warning_of_code_decorated_again():
    with pytest.warns(UserWarning) as caught:
        for _ in range(5):
            step = tg.function(lambda x: x * 2.0)
            [step(tg.constant(1.0)) for _ in range(3)]  # of which only the first is traced
    assert str(caught[0].message) == (
        "5 of the last 5 calls of a newly made <lambda> were traced, which is slow. The last time, "
        "the function was decorated again. Decorate it once, outside of the loop"
    )


@pytest.mark.filterwarnings("error")
def test_no_retracing_warning_of_the_calls_inside_one_trace():
    inner = tg.function(lambda x: tg.reduce_sum(x * 2.0))
    outer = tg.function(lambda: sum(inner(tg.ones([n])) for n in range(1, 8)))
    assert outer().numpy() == 56.0


def test_clear_cache():
    f, traces = counted()
    f(1)
    f.clear_cache()
    f(1)
    assert len(traces) == 2


def test_clear_cache_keeps_variables():
    v = tg.Variable(1.0)
    f = tg.function(lambda: v.assign_add(1.0))
    f()
    f.clear_cache()
    f()
    assert v.numpy() == 3.0


def test_function_is_freed():
    class Big:
        pass

    kept = Big()
    gone = weakref.ref(kept)
    f = tg.function(lambda x, kept=kept: x * 2.0)
    f(tg.constant(1.0))
    del f, kept
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- methods


class Counter:
    """A class with a compiled method that counts its traces."""

    def __init__(self, factor):
        self.factor = factor
        self.traces = 0

    @tg.function
    def scale(self, x):
        self.traces += 1
        return x * self.factor


def test_method_has_a_cache_per_instance():
    a, b = Counter(2.0), Counter(3.0)
    x = tg.constant(1.0)
    assert [a.scale(x).numpy(), a.scale(x).numpy(), b.scale(x).numpy()] == [2.0, 2.0, 3.0]
    assert (a.traces, b.traces) == (1, 1)
    assert a.scale.experimental_get_tracing_count() == 1


def test_method_is_the_same_object_at_every_access():
    a = Counter(2.0)
    assert a.scale is a.scale


def test_method_through_the_class():
    a = Counter(2.0)
    assert Counter.scale(a, tg.constant(4.0)).numpy() == 8.0


def test_attributes_are_frozen_when_traced():
    a = Counter(2.0)
    x = tg.constant(1.0)
    a.scale(x)
    a.factor = 100.0
    assert a.scale(x).numpy() == 2.0


def test_method_does_not_keep_its_instance_alive():
    a = Counter(2.0)
    a.scale(tg.constant(1.0))
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


def test_methods_that_call_each_other():
    class Model(tg.Module):
        def __init__(self):
            super().__init__()
            self.w = tg.Variable(2.0)

        @tg.function
        def inner(self, x):
            return x * self.w

        @tg.function
        def outer(self, x):
            return self.inner(x) + 1.0

    assert Model().outer(tg.constant(3.0)).numpy() == 7.0


def test_static_and_class_methods():
    class Model:
        factor = 3.0

        @staticmethod
        @tg.function
        def double(x):
            return x * 2.0

        @classmethod
        def triple(cls, x):
            return tg.function(lambda x: x * cls.factor)(x)

    assert Model.double(tg.constant(2.0)).numpy() == 4.0
    assert Model().triple(tg.constant(2.0)).numpy() == 6.0


# ---------------------------------------------------------------- structures


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    """A dataclass with two fields."""

    low: Any
    high: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A frozen dataclass with a nested field."""

    box: Any
    name: str = "frozen"


def test_namedtuple_in_and_out():
    f = tg.function(lambda p: Point(p.y, p.x))
    result = f(Point(tg.constant(1.0), tg.constant(2.0)))
    assert isinstance(result, Point)
    assert (result.x.numpy(), result.y.numpy()) == (2.0, 1.0)


def test_dataclass_in_and_out():
    f = tg.function(lambda b: Box(b.high, b.low))
    result = f(Box(tg.constant(1.0), tg.constant(2.0)))
    assert isinstance(result, Box)
    assert (result.low.numpy(), result.high.numpy()) == (2.0, 1.0)


def test_dataclasses_share_a_trace_by_type():
    boxes = [Box(tg.constant(1.0), tg.constant(2.0)), Box(tg.constant(3.0), tg.constant(4.0))]
    assert traces_of(*[(box,) for box in boxes]) == [1, 1]


def test_nested_dataclass():
    f = tg.function(lambda s: {"sum": s.box.low + s.box.high[0]})
    state = Frozen(Box(tg.constant(1.0), [tg.constant(2.0)]))
    assert f(state)["sum"].numpy() == 3.0


def test_mixed_structure_in_and_out():
    x = tg.constant(1.0)
    tree = {"list": [x, (x, None)], "point": Point(x, {"deep": x}), "empty": [], "none": None}
    result = tg.function(lambda tree: tree)(tree)
    assert set(result) == set(tree)
    assert isinstance(result["list"], list) and isinstance(result["list"][1], tuple)
    assert result["list"][1][1] is None and result["none"] is None and result["empty"] == []
    assert isinstance(result["point"], Point) and result["point"].y["deep"].numpy() == 1.0


def test_python_values_are_returned_as_tensors():
    integer, number, flag = tg.function(lambda: (1, 2.0, True))()
    assert (integer.dtype, number.dtype, flag.dtype) == (tg.int32, tg.float32, tg.bool)
    assert (integer.numpy(), number.numpy(), flag.numpy()) == (1, 2.0, True)


def test_list_of_python_numbers_is_returned_as_tensors():
    integer, number = tg.function(lambda items: items)([1, 2.5])
    assert isinstance(integer, tg.Tensor) and isinstance(number, tg.Tensor)
    assert (integer.numpy(), number.numpy()) == (1, 2.5)


def test_arrays_are_returned_as_tensors():
    result = tg.function(lambda: np.ones(2))()
    assert isinstance(result, tg.Tensor) and result.dtype == tg.float64


def test_a_shape_is_returned_as_a_tensor():
    @tg.function(input_signature=[tg.TensorSpec([None, 3])])
    def f(x):
        return x.shape, {"rest": x.shape[1:]}

    shape, parts = f(tg.ones([5, 3]))
    assert shape.dtype is tg.int32 and shape.numpy().tolist() == [5, 3]
    assert parts["rest"].numpy().tolist() == [3]
    chosen = tg.cond(tg.constant(True), lambda: tg.ones([2]).shape, lambda: tg.ones([4]).shape)
    assert chosen.numpy().tolist() == [2]
    with pytest.raises(tg.errors.ShapeError, match="the rank is unknown"):
        tg.function(lambda: tg.TensorShape(None))()


def test_none_is_returned_as_none():
    assert tg.function(lambda: None)() is None


def test_one_tensor_returned_twice():
    def body(x):
        y = x * 2.0
        return y, [y]

    first, (second,) = tg.function(body)(tg.constant(3.0))
    assert first.numpy() == second.numpy() == 6.0


def test_argument_returned_as_it_is():
    x = tg.constant([1.0, 2.0])
    assert tg.function(lambda x: (x, x))(x)[1].numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "value", [object(), len, tg.float32, {1}], ids=["object", "function", "dtype", "set"]
)
def test_other_objects_cannot_be_returned(value):
    with pytest.raises(TypeError, match=re.escape(type(value).__name__)):
        tg.function(lambda: value)()


# ---------------------------------------------------------------- changed arguments, leaks


def append(items):
    """Changes its list."""
    items.append(1)
    return tg.constant(0.0)


def insert(table):
    """Changes its dictionary."""
    table["new"] = 1
    return tg.constant(0.0)


def replace_nested(table):
    """Changes a list inside its dictionary."""
    table["a"][0] = 1
    return tg.constant(0.0)


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        (append, lambda: [tg.constant(1.0)]),
        (insert, lambda: {"a": tg.constant(1.0)}),
        (replace_nested, lambda: {"a": [tg.constant(1.0)]}),
    ],
    ids=["list", "dict", "nested"],
)
def test_changing_an_argument_is_a_value_error(body, argument):
    with pytest.raises(ValueError, match=r"items|table"):
        tg.function(body)(argument())


def test_changing_a_copy_of_an_argument_is_fine():
    @tg.function
    def f(items):
        items = [*items, tg.constant(2.0)]
        return items

    assert [x.numpy() for x in f([tg.constant(1.0)])] == [1.0, 2.0]


@pytest.fixture
def leaked():
    """A tensor that left its trace, and the line that made it."""
    box = []

    @tg.function
    def f(x):
        box.append(x * 2.0)
        return x

    made_at = line() - 3
    f(tg.constant(1.0))
    return box[0], made_at


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t + 1.0,
        lambda t: tg.reduce_sum(t),
        lambda t: tg.function(lambda: t + 1.0)(),
        lambda t: tg.function(lambda x: x + 1.0)(t),
        lambda t: tg.Variable(0.0).assign(t),
        lambda t: t.numpy(),
        lambda t: float(t),
        lambda t: np.asarray(t),
    ],
    ids=["operator", "op", "captured", "argument", "assign", "numpy", "float", "asarray"],
)
def test_leaked_tensor_is_a_type_error(leaked, use):
    tensor, made_at = leaked
    with pytest.raises(TypeError) as error:
        use(tensor)
    assert here(made_at) in str(error.value)


def test_leaked_tensor_can_be_printed(leaked):
    assert "float32" in repr(leaked[0])


# ---------------------------------------------------------------- Python values of symbolic tensors


def python_if(x):
    if x > 0.0:
        return x
    return -x


def python_while(x):
    while x > 0.0:
        x = x - 1.0
    return x


def python_and(x):
    return (x > 0.0) and x


def call_float(x):
    return float(x)


def call_int(x):
    return int(x)


def call_bool(x):
    return bool(x)


def call_numpy(x):
    return x.numpy()


def call_item(x):
    return x.item()


def numpy_sine(x):
    return np.sin(x)


def numpy_array(x):
    return np.asarray(x)


def call_range(x):
    return list(range(x))


def list_index(x):
    return [1.0, 2.0][x]


BODIES = [
    python_if, python_while, python_and, call_float, call_int, call_bool, call_numpy, call_item,
    numpy_sine, numpy_array, call_range, list_index,
]  # fmt: skip
INTEGER = [call_range, list_index]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_python_value_of_a_symbolic_tensor_is_a_trace_error(body):
    with pytest.raises(tg.errors.TraceError) as error:
        tg.function(body, autograph=False)(tg.constant(1 if body in INTEGER else 1.0))
    assert isinstance(error.value, TypeError)
    assert here(body.__code__.co_firstlineno + 1) in str(error.value)


def test_symbolic_tensor_keeps_the_function_usable():
    @tg.function(autograph=False)
    def f(x, bad):
        return float(x) if bad else x * 2.0

    with pytest.raises(tg.errors.TraceError):
        f(tg.constant(1.0), True)
    assert f(tg.constant(1.0), False).numpy() == 2.0
    assert (tg.constant(1.0) + 1.0).numpy() == 2.0


def test_loop_over_an_unknown_length_is_a_trace_error():
    at = line() + 4

    @tg.function(autograph=False, input_signature=[float_spec(None)])
    def f(x):
        return [row * 2.0 for row in x]

    with pytest.raises(tg.errors.TraceError) as error:
        f([1.0, 2.0])
    assert here(at) in str(error.value)


def test_length_of_an_unknown_axis_is_a_trace_error():
    f = tg.function(lambda x: len(x), autograph=False, input_signature=[float_spec(None)])
    with pytest.raises(tg.errors.TraceError):
        f([1.0, 2.0])


def test_loop_over_a_known_length_unrolls():
    f = tg.function(lambda x: sum(row * 2.0 for row in x))
    assert f(tg.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist() == [8.0, 12.0]


def test_unpacking_and_length_of_a_known_axis():
    def body(x):
        first, second = x
        return first - second + len(x)

    assert tg.function(body)(tg.constant([5.0, 3.0])).numpy() == 4.0


def test_static_shape_is_known_while_tracing():
    f = tg.function(lambda x: x if x.shape[0] == 2 else -x)
    assert f(tg.ones([2])).numpy().tolist() == [1.0, 1.0]
    assert f(tg.ones([1])).numpy().tolist() == [-1.0]


def test_symbolic_tensor_can_be_printed(capsys):
    tg.function(lambda x: print(x, repr(x), f"{x}"))(tg.constant(1.0))
    assert "float32" in capsys.readouterr().out


# ---------------------------------------------------------------- errors while tracing


def test_error_of_the_user_keeps_its_class():
    @tg.function
    def f(x):
        raise KeyError("from the user's code")

    with pytest.raises(KeyError, match="from the user's code"):
        f(1.0)


def test_wrong_shapes_name_the_line_and_leave_the_function_usable():
    @tg.function
    def square(x):
        return tg.matmul(x, x)

    at = line() - 2
    with pytest.raises(ValueError) as error:
        square(tg.ones([2, 3]))
    assert here(at) in str(error.value)
    assert square(tg.ones([2, 2])).numpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_mixing_kinds_of_dtype_is_a_dtype_error():
    at = line() + 1
    f = tg.function(lambda x: x + tg.constant(1))
    with pytest.raises(tg.errors.DTypeError, match="cast") as error:
        f(tg.constant(1.0))
    assert here(at) in str(error.value)


# ---------------------------------------------------------------- concrete functions


@pytest.fixture
def concrete():
    """A function of a matrix with two columns and a flag, and its concrete function."""

    @tg.function
    def f(x, flag=True):
        return {"out": x * 2.0 if flag else x, "none": None}

    return f, f.get_concrete_function(float_spec(None, 2))


def test_same_specification_gives_the_same_concrete_function(concrete):
    f, cf = concrete
    assert f.get_concrete_function(float_spec(None, 2)) is cf
    assert f.get_concrete_function(x=float_spec(None, 2)) is cf
    assert f.get_concrete_function(float_spec(None, 2), True) is cf
    assert f.get_concrete_function(float_spec(None, 2), False) is not cf


def test_concrete_function_of_values():
    f = tg.function(lambda x: x)
    cf = f.get_concrete_function(tg.constant(1.0))
    assert f.get_concrete_function(tg.constant(2.0)) is cf
    assert f.get_concrete_function(float_spec()) is cf


def test_concrete_function_of_a_signature():
    f = tg.function(lambda x: x, input_signature=[float_spec(None)])
    assert f.get_concrete_function() is f.get_concrete_function()


def test_call_uses_the_concrete_function(concrete):
    f, _ = concrete
    assert f(tg.ones([5, 2]))["out"].shape == (5, 2)
    assert f.experimental_get_tracing_count() == 1


def test_concrete_function_is_called_like_the_function(concrete):
    _, cf = concrete
    x = tg.ones([3, 2])
    for result in (cf(x), cf(x=x), cf(x, True), cf(x, flag=True)):
        assert result["out"].numpy().sum() == 12.0 and result["none"] is None


@pytest.mark.parametrize(
    "call",
    [
        lambda cf: cf(tg.ones([3])),
        lambda cf: cf(tg.ones([3, 3])),
        lambda cf: cf(tg.ones([3, 2], tg.float64)),
        lambda cf: cf(),
        lambda cf: cf(tg.ones([3, 2]), True, 1.0),
        lambda cf: cf(tg.ones([3, 2]), False),
    ],
    ids=["rank", "size", "dtype", "missing", "too many", "other Python value"],
)
def test_concrete_function_checks_its_arguments(concrete, call):
    _, cf = concrete
    with pytest.raises((TypeError, ValueError)):
        call(cf)


def test_attributes_of_a_concrete_function():
    v, frozen = tg.Variable(1.0, name="v"), tg.Variable(2.0, trainable=False, name="frozen")
    c = tg.constant([3.0])
    cf = tg.function(lambda x: x * v * frozen * c).get_concrete_function(tg.constant(1.0))
    assert [x.name for x in cf.variables] == ["v:0", "frozen:0"]
    assert [x.name for x in cf.trainable_variables] == ["v:0"]
    assert any(captured is c for captured in cf.captured_inputs)
    assert [t.shape for t in cf.outputs] == [(1,)]
    assert cf.inputs[0].dtype == tg.float32


def test_structured_signature_and_outputs(concrete):
    _, cf = concrete
    args, kwargs = cf.structured_input_signature
    assert args[0].shape.rank == 2 and args[0].shape[1] == 2 and args[0].dtype == tg.float32
    assert args[1] is True and kwargs == {}
    assert set(cf.structured_outputs) == {"out", "none"} and cf.structured_outputs["none"] is None


def test_the_names_of_specs_are_keywords_of_the_concrete_function():
    f = tg.function(lambda x, scale=2: x * scale)
    cf = f.get_concrete_function(tg.TensorSpec([None, "n", 3], name="inp"))
    x = tg.ones([4, 2, 3])
    assert cf(inp=x).shape == cf(x=x).shape == cf(x).shape == (4, 2, 3)
    spec = tg.TensorSpec([None, "n", 3], name="inp")
    assert cf.structured_input_signature == ((spec, 2), {})
    assert cf.structured_outputs == tg.TensorSpec([None, "n", 3])
    assert "%inp" in str(cf.graph)


def test_other_names_of_specs_share_the_trace():
    f = tg.function(lambda x: x + 1)
    first = f.get_concrete_function(tg.TensorSpec([2], name="a"))
    second = f.get_concrete_function(tg.TensorSpec([2], name="b"))
    assert second is f.get_concrete_function(tg.TensorSpec([2], name="b"))
    assert first.graph is second.graph and f.experimental_get_tracing_count() == 1
    assert first(a=[1.0, 2.0]).numpy().tolist() == second(b=[1.0, 2.0]).numpy().tolist()
    with pytest.raises(TypeError):
        first(b=[1.0, 2.0])


def test_an_open_size_never_takes_the_name_of_another():
    f = tg.function(
        lambda x, y: (x, y), input_signature=[tg.TensorSpec([None]), tg.TensorSpec(["d0"])]
    )
    x, y = f(tg.ones([2]), tg.ones([3]))
    assert (x.shape, y.shape) == ((2,), (3,))


def test_a_concrete_function_takes_the_variable_that_is_given():
    first, second = tg.Variable([1.0, 2.0]), tg.Variable([30.0, 40.0])
    squares = tg.function(lambda v: tg.reduce_sum(v * v)).get_concrete_function(first)
    assert squares(second).numpy() == 2500.0
    first.assign([5.0, 5.0])
    assert squares(first).numpy() == squares().numpy() == 50.0
    assert squares.variables[0] is first and squares.captured_inputs[0] is first
    with tg.GradientTape() as tape:
        y = squares(second)
    assert tape.gradient(y, second).numpy().tolist() == [60.0, 80.0]
    increment = tg.function(lambda v: v.assign_add([1.0, 1.0])).get_concrete_function(first)
    increment(second)
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([5.0, 5.0], [31.0, 41.0])


def test_an_argument_that_is_used_from_outside_too_is_traced_for_once():
    v, w = tg.Variable(2.0), tg.Variable(5.0)
    product = tg.function(lambda a: a * v)
    assert product(v).numpy() == 4.0
    count = product.experimental_get_tracing_count()
    assert [product(x).numpy() for x in (v, w, v)] == [4.0, 10.0, 4.0]
    assert product.experimental_get_tracing_count() == count


def test_a_trace_keeps_no_value_of_a_variable_argument_alive():
    v = tg.Variable(np.zeros(10, np.float32))
    f = tg.function(lambda v: v + 1)
    f(v)
    reference = weakref.ref(v)
    buffer = weakref.ref(v.buffer)
    del v
    gc.collect()
    assert reference() is None and buffer() is None


def test_the_type_of_a_function():
    f = tg.function(lambda x, n=2, *rest, k=None: (x * float(n), None))
    assert f.function_type == f.function_spec
    spec = tg.TensorSpec([None], name="x")
    concrete = f.get_concrete_function(spec, 3, spec)
    found = concrete.function_type
    assert [p.annotation for p in found.parameters.values()][:2] == [spec, 3]
    assert list(found.parameters) == ["x", "n", "rest", "k"]
    assert found.return_annotation == concrete.structured_outputs


def test_variables_are_created_by_the_initialization_function():
    class Counter(tg.Module):
        def __init__(self):
            self.v = None

        @tg.function
        def __call__(self, x):
            if self.v is None:
                self.v = tg.Variable(2.0)
            return self.v.assign_add(x)

    counter = Counter()
    initialize = counter.__call__.get_initialization_function(tg.TensorSpec([]))
    assert counter.v is None
    for _ in range(2):
        initialize()
        assert counter.v.numpy() == 2.0
    assert counter(tg.constant(1.0)).numpy() == 3.0
    with pytest.raises(RuntimeError, match="has created its Variables already") as caught:
        counter.__call__.get_initialization_function(tg.TensorSpec([]))
    assert isinstance(caught.value, tg.errors.TraceError)


def test_concrete_functions_take_tensors_by_flat_names():
    """As they are called here, and as TensorFlow calls them."""
    spec, one, two = tg.TensorSpec([]), tg.constant(1.0), tg.constant(2.0)
    by_key = tg.function(lambda d: d["A-b"] * 2.0).get_concrete_function({"A-b": spec})
    for names in ({"a_b": two}, {"d": two}, {"d_A-b": two}, {"d": {"A-b": two}}):
        assert by_key(**names).numpy() == 4.0
    both = tg.function(lambda a: a[0] - a[1]).get_concrete_function((spec, spec))
    assert both(a=one, a_1=two).numpy() == both(a_0=one, a_1=two).numpy() == -1.0
    named = tg.function(lambda x, *, k: x - k["x"]).get_concrete_function(spec, k={"x": spec})
    assert named(x=one, x_1=two).numpy() == named(x=one, k_x=two).numpy() == -1.0
    of_spec = tg.function(lambda x: -x).get_concrete_function(tg.TensorSpec([], name="In/1"))
    assert of_spec(in_1=one).numpy() == of_spec(**{"In/1": one}).numpy() == -1.0
    with pytest.raises(TypeError, match="do not fit the signature"):
        both(a=one, a_2=two)


def test_concrete_functions_bind_structured_before_flat():
    default = tg.constant(10.0)

    def f(a, n=2, y=default):
        return a * float(n) + y

    x = tg.ones([2])
    cf = tg.function(f).get_concrete_function(x, 2, tg.constant(10.0))
    assert cf(x, 2).numpy().tolist() == [12.0, 12.0]
    assert cf(x, tg.constant(1.0)).numpy().tolist() == [3.0, 3.0]
    with pytest.raises(TypeError, match="argument 'n' is 7, and the trace has 2"):
        cf(x, 7)
    of_dict = tg.function(lambda d: d["a"] - d["b"]).get_concrete_function({"a": x, "b": x})
    assert of_dict(x, x * 2).numpy().tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_an_array_may_be_refilled_after_the_call(size):
    increment = tg.function(lambda x: x + 1)
    array = np.empty(size, np.float32)
    for _ in range(10):
        array[:] = 1
        result = increment(array)
        array[:] = 50
        assert (result.numpy() == 2).all()


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    @tg.function
    def times(self, x):
        return x * self.scale


def test_a_copy_of_an_instance_has_functions_of_its_own():
    original = Scaled(2.0)
    assert original.times(tg.ones([])).numpy() == 2.0
    copied = copy.copy(original)
    copied.scale = 5.0
    assert copied.times(tg.ones([])).numpy() == 5.0
    again = pickle.loads(pickle.dumps(original))
    assert again.times(tg.ones([])).numpy() == 2.0


def test_a_method_that_is_defined_anew_never_runs_the_old_body():
    class Owner:
        pass

    owner = Owner()
    for number in range(1, 12):
        Owner.method = tg.function(
            lambda self, x, number=number: x * number, input_signature=[tg.TensorSpec([])]
        )
        assert owner.method(tg.ones([])).numpy() == number
        del Owner.method


def test_an_instance_without_a_dict_is_refused():
    class Bare:
        __slots__ = ()

        @tg.function
        def method(self, x):
            return x

    with pytest.raises(TypeError, match="no __dict__ to keep its traces in"):
        Bare().method(tg.ones([]))


def test_name_of_a_concrete_function(concrete):
    name = concrete[1].name
    assert "f" in (name.decode() if isinstance(name, bytes) else name)


def test_pretty_printed_signatures(concrete):
    f, cf = concrete
    text = cf.pretty_printed_signature()
    for word in ("x", "2", "flag", "True"):
        assert word in text
    f(tg.ones([3]))
    assert text in f.pretty_printed_concrete_signatures()
    assert len(f.pretty_printed_concrete_signatures()) > len(text)


def test_signatures_show_keywords_and_the_structure_of_results():
    weight = tg.Variable(1.0, name="weight")

    @tg.function
    def f(x, flag=False, *, scale):
        return {"a": x * weight, "b": (scale, None)}

    spec = tg.TensorSpec([None, 2], name="inp")
    traced = f.get_concrete_function(spec, scale=tg.TensorSpec([]))
    x = "TensorSpec(shape=(None, 2), dtype=tg.float32, name='inp')"
    scalar = "TensorSpec(shape=(), dtype=tg.float32, name=None)"
    result = (
        "Dict[['a', TensorSpec(shape=(None, 2), dtype=tg.float32, name=None)], "
        f"['b', Tuple[{scalar}, Literal[None]]]]"
    )
    scale = "TensorSpec(shape=(), dtype=tg.float32, name='scale')"
    text = traced.pretty_printed_signature()
    assert text.replace(scale, scalar) == "\n".join(
        [
            "Input Parameters:",
            f"  x (POSITIONAL_OR_KEYWORD): {x}",
            "  flag (POSITIONAL_OR_KEYWORD): Literal[False]",
            f"  scale (KEYWORD_ONLY): {scalar}",
            "Output Type:",
            f"  {result}",
            "Captures:",
            f"  weight:0: {scalar}",
        ]
    )
    assert str(traced) == f"ConcreteFunction f\n{text}"
    line = f"(x: {x}, flag: Literal[False], *, scale: {scalar}) -> {result}"
    assert repr(traced).replace(scale, scalar) == f"<ConcreteFunction f{line}>"


def test_what_captures_nothing_says_so():
    traced = tg.function(lambda x: [x, x]).get_concrete_function(tg.constant(1))
    assert traced.pretty_printed_signature().endswith("Captures:\n  None")
    assert "List[TensorSpec(" in repr(traced)


def operations(f, *args):
    """The operations of the graph of f."""
    return f.get_concrete_function(*args).graph.get_operations()


def test_graph_of_a_concrete_function():
    f = tg.function(lambda x: tg.sin(x) * 2.0)
    found = operations(f, tg.constant(1.0))
    assert any("sin" in operation.type.lower() for operation in found)
    for operation in found:
        assert isinstance(operation.name, str)
        assert operation.outputs is not None and operation.inputs is not None


def test_nested_functions_stay_calls_and_are_traced_once():
    traces = []

    @tg.function
    def inner(x):
        traces.append(1)
        return x * 2.0

    outer = tg.function(lambda x: inner(x) + inner(x + 1.0))
    calls = [op for op in operations(outer, tg.constant(1.0)) if "call" in op.type.lower()]
    assert len(calls) == 2
    assert outer(tg.constant(1.0)).numpy() == 6.0
    assert len(traces) == 1


def chain(length):
    """Functions of which each calls the one before it."""
    functions = [tg.function(lambda x: x + 1.0)]
    for _ in range(length):
        functions.append(tg.function(lambda x, inner=functions[-1]: inner(x) + 1.0))
    return functions


def test_functions_nested_deeper_than_recursion_goes_run_if_traced_one_by_one():
    x, functions = tg.constant(0.0), chain(200)
    for function in functions:
        function.get_concrete_function(x)
    assert functions[-1](x).numpy() == 201.0


def test_functions_nested_too_deep_to_be_traced_at_once_are_refused():
    x, functions = tg.constant(0.0), chain(2000)
    with pytest.raises(tg.errors.TraceError, match=r"(?s)recursion limit.*fix: call the inner"):
        functions[-1](x)
    assert tg.executing_eagerly()
    assert functions[20](x).numpy() == 21.0


def test_nested_function_appears_once_in_the_dump():
    @tg.function
    def inner(x):
        return tg.sin(x)

    outer = tg.function(lambda x: inner(inner(x)))
    text = outer.get_concrete_function(float_spec(3)).graph.as_text()
    assert text.count("graph @") == 2 and text.count(" sin(") == 1 and text.count("call<") == 2


# ---------------------------------------------------------------- compiler text


@pytest.mark.parametrize(
    ("stage", "mark"),
    [
        ("stablehlo", "stablehlo."),
        ("stablehlo_serialized", b"ML\xefR"),
        ("hlo", "HloModule"),
        ("optimized_hlo", "HloModule"),
        ("optimized_hlo_dot", "digraph G {"),
        ("optimized_hlo_serialized", b"HloModule"),
        ("optimized_hlo_proto_serialized", b"lambda_"),
    ],
)
def test_compiler_text(stage, mark):
    f = tg.function(lambda x: tg.sin(x) * 2.0, jit_compile=True)
    assert mark in f.experimental_get_compiler_ir(tg.constant([1.0, 2.0]))(stage=stage)


def test_the_serialised_stage_is_mlirs_bytecode():
    """JAX's own MLIR reads it back as the text of the stage that is not serialised."""
    get = tg.function(lambda x: tg.sin(x) * 2.0).experimental_get_compiler_ir(tg.constant([1.0]))
    data = get(stage="stablehlo_serialized")
    assert data.startswith(b"ML\xefR")
    assert b".py" not in data
    assert get(stage="stablehlo_serialized") == data
    context = jax.jit(lambda x: x).lower(1.0).compiler_ir("stablehlo").context
    module = str(ir.Module.parse(data, context=context))
    assert "stablehlo.sine" in module
    assert "tensor<1xf32>" in module


def test_compiler_text_of_a_specification():
    f = tg.function(lambda x: tg.sin(x), jit_compile=True)
    assert "f32[2]" in f.experimental_get_compiler_ir(float_spec(2))()  # 'hlo' is the default


def test_compiler_text_with_variables():
    v = tg.Variable([1.0, 2.0])
    f = tg.function(lambda x: v.assign_add(x), jit_compile=True)
    assert "f32[2]" in f.experimental_get_compiler_ir(tg.constant([1.0, 2.0]))(stage="hlo")
    assert v.numpy().tolist() == [1.0, 2.0]


def test_unknown_compiler_stage_is_a_value_error():
    f = tg.function(lambda x: x, jit_compile=True)
    with pytest.raises(ValueError, match="bogus"):
        f.experimental_get_compiler_ir(tg.constant(1.0))(stage="bogus")


def test_compiler_text_wants_known_sizes():
    f = tg.function(lambda x: x * 2.0, jit_compile=True)
    with pytest.raises(ValueError):
        f.experimental_get_compiler_ir(float_spec(None))(stage="hlo")


# ---------------------------------------------------------------- run_functions_eagerly


@pytest.fixture
def eagerly():
    """Runs the bodies of functions at every call, for one test."""
    tg.config.run_functions_eagerly(True)
    yield
    tg.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("eagerly")
def test_run_functions_eagerly_runs_the_body_at_every_call():
    f, traces = counted()
    f(1.0)
    f(1.0)
    assert len(traces) == 2
    assert tg.config.functions_run_eagerly()


@pytest.mark.usefixtures("eagerly")
def test_run_functions_eagerly_gives_values():
    f = tg.function(lambda x: x * 2.0 if x.numpy() > 0 else x)
    assert f(tg.constant(3.0)).numpy() == 6.0


def test_functions_do_not_run_eagerly_by_default():
    assert not tg.config.functions_run_eagerly()


# ---------------------------------------------------------------- variables made inside


class Lazy:
    """Makes its variable on the first call."""

    def __init__(self):
        self.v = None

    @tg.function
    def __call__(self, x):
        if self.v is None:
            self.v = tg.Variable(2.0)
        return self.v * x


def test_variable_made_on_the_first_call():
    layer = Lazy()
    x = tg.constant(3.0)
    assert [layer(x).numpy(), layer(x).numpy()] == [6.0, 6.0]
    layer.v.assign(5.0)
    assert layer(x).numpy() == 15.0


def test_variable_made_on_the_first_call_keeps_its_updates():
    kept = []

    @tg.function
    def count():
        if not kept:
            kept.append(tg.Variable(0.0))
        return kept[0].assign_add(1.0)

    assert [count().numpy() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert len(kept) == 1


def test_variable_made_from_an_argument():
    """Its value in the first call, also through a function inside, of an open size."""
    kept = []

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def scaled(x):
        if not kept:
            kept.append(tg.Variable(x[:2] * tg.cast(tg.size(x), tg.float32)))
        return kept[0] + x[0]

    outer = tg.function(lambda x: scaled(x[1:]))
    assert outer(tg.constant([9.0, 1.0, 2.0, 3.0])).numpy().tolist() == [4.0, 7.0]
    assert outer(tg.constant([9.0, 0.0])).numpy().tolist() == [3.0, 6.0]
    assert scaled(tg.constant([1.0])).numpy().tolist() == [4.0, 7.0]


def test_layer_built_on_the_first_call_of_a_function():
    layer = tg.layers.Dense(2)
    f = tg.function(lambda x: layer(x))
    x = tg.ones([1, 3])
    np.testing.assert_allclose(f(x).numpy(), layer(x).numpy(), rtol=1e-6)
    assert len(layer.variables) == 2


def test_variable_made_at_every_call_is_a_value_error():
    @tg.function
    def f(x):
        return tg.Variable(1.0) * x

    with pytest.raises(ValueError, match="Variable"):
        for _ in range(2):
            f(tg.constant(1.0))


def test_variable_made_on_a_later_call_is_a_value_error():
    kept = []

    @tg.function
    def f(x, make):
        if make:
            kept.append(tg.Variable(1.0))
        return x

    f(tg.constant(1.0), False)
    with pytest.raises(ValueError, match="first"):
        f(tg.constant(1.0), True)
    assert f(tg.constant(1.0), False).numpy() == 1.0


def test_variable_on_a_later_call_is_a_trace_error_too():
    f = tg.function(lambda x, make: tg.Variable(1.0) if make else x)
    f(tg.constant(1.0), False)
    with pytest.raises(tg.errors.TraceError):
        f(tg.constant(1.0), True)


# ---------------------------------------------------------------- effects


def test_prints_at_every_call(capfd):
    @tg.function
    def f(x):
        tg.print("value", x)
        return x

    for value in (1.5, 2.5):
        f(tg.constant(value))
    out, err = capfd.readouterr()
    assert re.findall(r"value ([\d.]+)", out + err) == ["1.5", "2.5"]


def test_prints_in_program_order(capfd):
    v = tg.Variable(1.0)

    @tg.function
    def f():
        tg.print("first", v)
        v.assign(2.0)
        tg.print("second", v)

    f()
    out, err = capfd.readouterr()
    numbers = [float(number) for number in re.findall(r"(?:first|second) ([\d.]+)", out + err)]
    assert numbers == [1.0, 2.0]


def test_prints_at_top_level(capfd):
    tg.print("value", tg.constant([1, 2]))
    out, err = capfd.readouterr()
    assert "value [1 2]" in out + err


#: What TensorFlow prints for the same.
PRINTED = [
    ([True, False], "[1 0]"),
    (True, "1"),
    (-7, "-7"),
    (1.0, "1"),
    (1 / 3, "0.333333343"),
    (0.1, "0.1"),
    (1e7, "1e+07"),
    (16777216.0, "16777216"),
    (-0.0, "-0"),
    (float("nan"), "nan"),
    (-float("inf"), "-inf"),
    ([1.5, 1e10, 1e-10], "[1.5 1e+10 1e-10]"),
    ([[1.0, 2.0], [3.0, 4.0]], "[[1 2]\n [3 4]]"),
    (list(range(6)), "[0 1 2 3 4 5]"),
    (list(range(7)), "[0 1 2 ... 4 5 6]"),
    ([[[1], [2]], [[3], [4]]], "[[[1]\n  [2]]\n\n [[3]\n  [4]]]"),
    ([], "[]"),
    (np.float64(1 / 3), "0.33333333333333331"),
    (np.array([0.3, 0.1 + 0.2]), "[0.3 0.30000000000000004]"),
    (np.float16(1 / 3), "0.333251953"),
    (1 - 2j, "(1-2j)"),
]


@pytest.mark.parametrize(("value", "text"), PRINTED)
def test_print_formats_as_tensorflow(value, text, capsys):
    x = tg.constant(value)
    tg.print(x, output_stream=sys.stdout)
    tg.function(lambda x: tg.print(x, output_stream=sys.stdout))(x)
    assert capsys.readouterr().out == 2 * f"{text}\n"


def test_print_shows_structures_and_what_is_no_tensor(capsys):
    x = tg.constant([1.0, 2.0])
    tg.print({"b": x, "a": [x[0], "t", None]}, (3,), "s", None, 1.5, output_stream=sys.stdout)
    assert capsys.readouterr().out == "{'b': [1 2], 'a': [1, 't', None]} (3,) s None 1.5\n"


@pytest.mark.parametrize(
    ("summarize", "text"),
    [(1, "[0 ... 7]"), (-1, "[0 1 2 3 4 5 6 7]"), (None, "[0 1 2 ... 5 6 7]"), (0, "[...]")],
)
def test_print_summarizes(summarize, text, capsys):
    tg.print(tg.range(8), summarize=summarize, output_stream=sys.stdout)
    assert capsys.readouterr().out == f"{text}\n"


def test_print_summarizes_rows_and_columns(capsys):
    tg.print(tg.reshape(tg.range(16), [4, 4]), summarize=1, output_stream=sys.stdout)
    assert capsys.readouterr().out == "[[0 ... 3]\n ...\n [12 ... 15]]\n"


def test_print_separates_and_ends(capsys):
    tg.print("a", tg.constant(1), sep="-", end="|\n", output_stream=sys.stdout)
    assert capsys.readouterr().out == "a-1|\n"


def test_print_to_a_file_and_to_a_stream(tmp_path):
    stream, path = io.StringIO(), tmp_path / "printed"

    @tg.function
    def f(x):
        tg.print("x", x, output_stream=stream)
        tg.print("x", x, output_stream=f"file://{path}")

    f(tg.constant(1.5))
    f(tg.constant(2.5))
    assert stream.getvalue() == path.read_text() == "x 1.5\nx 2.5\n"


@pytest.mark.parametrize(
    ("keywords", "fact"),
    [
        ({"output_stream": "nowhere"}, "the output stream is 'nowhere'"),
        ({"summarize": "all"}, "summarize is 'all'"),
    ],
)
def test_print_refuses_what_it_cannot_use(keywords, fact):
    with pytest.raises(TypeError, match=fact):
        tg.print("x", **keywords)


def test_py_function_runs_at_every_call():
    seen = []

    def host(a):
        seen.append(float(a))
        return a * 2.0

    f = tg.function(lambda x: tg.py_function(host, [x], tg.float32) + 1.0)
    assert [f(tg.constant(value)).numpy() for value in (1.0, 2.0, 3.0)] == [3.0, 5.0, 7.0]
    assert seen == [1.0, 2.0, 3.0]


def test_py_function_without_a_used_result_still_runs():
    seen = []

    def host(a):
        seen.append(float(a))
        return a

    @tg.function
    def f(x):
        tg.py_function(host, [x], tg.float32)
        return x

    f(tg.constant(1.0))
    f(tg.constant(2.0))
    assert seen == [1.0, 2.0]


def test_py_function_with_several_results():
    f = tg.function(lambda x: tg.py_function(lambda a: (a * 2.0, a * 3.0), [x], [tg.float32] * 2))
    assert [y.numpy() for y in f(tg.constant(2.0))] == [4.0, 6.0]


def test_py_function_at_top_level():
    assert tg.py_function(lambda a: a * 2.0, [tg.constant(3.0)], tg.float32).numpy() == 6.0


def of_order(order, function, decorate=lambda f: f):
    """The derivative of this order of a function of one scalar, by tapes."""
    if order == 0:
        return function

    def derivative(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = of_order(order - 1, function, decorate)(x)
        return tape.gradient(y, x)

    return decorate(derivative)


def pushed(function):
    """The derivative of a function of one scalar, by an accumulator."""

    def derivative(x):
        with tg.autodiff.ForwardAccumulator(x, tg.constant(1.0)) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    return derivative


def hosted(x):
    """x**4, three quarters of it in Python."""
    return tg.py_function(lambda a: a * a * a, [x], tg.float32) * x


@pytest.mark.sampled(2)
@pytest.mark.parametrize("decorate", [lambda f: f, tg.function], ids=["top level", "function"])
@pytest.mark.parametrize("base", [hosted, tg.function(hosted)], ids=["plain", "traced"])
def test_py_function_has_derivatives_of_every_order(decorate, base):
    x = tg.constant(3.0)
    found = [of_order(order, base, decorate)(x).numpy() for order in range(5)]
    assert found == [81.0, 108.0, 108.0, 72.0, 24.0]


def test_py_function_in_forward_mode_and_mixed():
    x, traced = tg.constant(3.0), tg.function(hosted)
    assert pushed(traced)(x).numpy() == 108.0
    assert tg.function(pushed(hosted))(x).numpy() == 108.0
    assert pushed(pushed(traced))(x).numpy() == 108.0
    assert pushed(of_order(1, traced))(x).numpy() == 108.0
    assert of_order(1, pushed(traced))(x).numpy() == 108.0


def test_py_function_of_several_tensors_is_differentiated_by_each():
    def host(x, n, y):
        return x * y, n, y * y

    @tg.function
    def f(x, y):
        a, _, b = tg.py_function(host, [x, tg.constant(2), y], [tg.float32, tg.int32, tg.float32])
        return a + b

    x, y = tg.constant(3.0), tg.constant(5.0)
    with tg.GradientTape() as tape:
        tape.watch([x, y])
        z = f(x, y)
    assert [g.numpy() for g in tape.gradient(z, [x, y])] == [5.0, 13.0]
    with tg.autodiff.ForwardAccumulator(y, tg.constant(1.0)) as accumulator:
        z = f(x, y)
    assert accumulator.jvp(z).numpy() == 13.0


def test_a_python_function_is_differentiated_beside_what_is_pending():
    factor = [tg.constant(2.0)]
    f = tg.function(lambda x: tg.py_function(lambda a: a * factor[0], [x], tg.float32))
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    factor[0] = x * 5.0  # pending, in the list that the derivative is run with
    kept = factor[0] + 1.0
    assert tape.gradient(y, x).numpy() == 2.0  # of the call that was made
    assert kept.numpy() == 16.0


def test_no_tape_outside_records_a_python_function():
    v = tg.Variable(2.0)
    f = tg.function(lambda x: tg.py_function(lambda a: a * v, [x], tg.float32))
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert tape.watched_variables() == ()
    found = tape.gradient(y, [x, v])
    assert found[0].numpy() == 2.0
    assert found[1] is None


def test_a_derivative_that_fails_raises_its_own_error(capfd):
    def blocked(a):
        return tg.raw_ops.PreventGradient(input=a, message="not through here")

    f = tg.function(lambda x: tg.py_function(blocked, [x], tg.float32))
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    with pytest.raises(LookupError, match="explicitly disabled here: not through here"):
        tape.gradient(y, x).numpy()
    assert capfd.readouterr().err == ""


WRONG_RESULTS = {
    "dtype": (lambda a: a.astype(np.float64), TypeError, "returned float64 and Tout says float32"),
    "number": (lambda a: (a, a), ValueError, "returned 2 values and Tout declares 1"),
    "shape": (lambda a: a[:1], ValueError, r"returned the shape \(1,\) and Tout says \(2,\)"),
}


@pytest.mark.parametrize(("host", "kind", "fact"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
@pytest.mark.parametrize("decorate", [lambda f: f, tg.function], ids=["top level", "function"])
def test_a_python_function_that_does_not_keep_its_word(host, kind, fact, decorate, capfd):
    f = decorate(lambda x: tg.numpy_function(host, [x], tg.TensorSpec([2])))
    with pytest.raises(kind, match=rf"(?s){fact}.*at {re.escape(__file__)}:\d+:.*f = decorate"):
        f(tg.ones([2]))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("spec", [tg.TensorSpec([None]), tg.TensorSpec(None), tg.float32])
def test_open_sizes_in_Tout_are_those_of_the_call(spec):
    f = tg.function(lambda x: tg.py_function(lambda a: a * 2.0, [x], spec))
    assert f(tg.ones([2])).numpy().tolist() == [2.0, 2.0]
    assert f(tg.ones([3])).numpy().tolist() == [2.0] * 3


def test_open_sizes_in_Tout_that_do_not_fit():
    f = tg.function(lambda x: tg.py_function(lambda a: a, [x], tg.TensorSpec([None, 2])))
    with pytest.raises(ValueError, match=r"the shape \(2,\) and Tout says \(None, 2\)"):
        f(tg.ones([2]))


def test_sizes_in_Tout_may_be_named_as_those_of_the_input():
    spec = tg.TensorSpec(["rows"])
    f = tg.function(lambda x: tg.py_function(lambda a: a * 2.0, [x], spec), input_signature=[spec])
    assert f(tg.ones([2])).shape == (2,)
    assert f(tg.ones([3])).shape == (3,)
    assert f.experimental_get_tracing_count() == 1


def test_another_shape_than_that_which_was_traced_is_traced():
    open_spec = tg.TensorSpec([None])
    f = tg.function(
        lambda x: tg.py_function(lambda a: a * 2.0, [x], tg.float32), input_signature=[open_spec]
    )
    for size in (2, 3, 4):
        np.testing.assert_array_equal(f(tg.ones([size])), 2.0 * np.ones(size))


def test_numpy_function_gets_arrays_at_every_call():
    seen = []

    def host(a):
        seen.append(type(a).__module__)
        return np.sort(a)

    f = tg.function(lambda x: tg.numpy_function(host, [x], tg.float32))
    assert f(tg.constant([2.0, 1.0])).numpy().tolist() == [1.0, 2.0]
    assert f(tg.constant([4.0, 3.0])).numpy().tolist() == [3.0, 4.0]
    assert seen == ["numpy", "numpy"]


@pytest.mark.parametrize(("name", "expected"), [("py_function", 2.0), ("numpy_function", None)])
def test_gradient_of_host_functions(name, expected):
    entry_point = getattr(tg, name)
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = entry_point(lambda a: a * 2, [x], tg.float32)
    grad = tape.gradient(y, x)
    assert (grad if grad is None else grad.numpy()) == expected


def test_effects_keep_their_order_where_a_shape_must_be_known(capfd):
    """The first call, which makes the functions while it is traced, is as every other."""
    seen, v = [], tg.Variable(1.0)

    def note(name):
        return lambda *xs: seen.append(name)

    def double(name):
        return lambda a: (seen.append((name, a.shape)), a * 2)[1]

    @tg.function
    def inner(x):
        tg.py_function(note("inner"), [x], [])
        tg.print("printed")
        return x * tg.py_function(lambda a: (seen.append("declared"), a)[1], [x], tg.TensorSpec([]))

    @tg.function
    def innermost(x):
        tg.py_function(note("before"), [], [])
        return tg.numpy_function(double("third"), [x], tg.float32)

    @tg.function
    def f(x):
        tg.py_function(note("first"), [], [])
        a = tg.numpy_function(double("one"), [x], tg.float32)
        v.assign(x)
        y = inner(v)
        b = tg.numpy_function(double("two"), [y], tg.float32)
        c = innermost(b)
        tg.py_function(note("last"), [], [])
        return a + b + c

    once = [
        *("first", ("one", ()), "inner", "declared", ("two", ())),
        *("before", ("third", ()), "last"),
    ]
    for calls in (1, 2):
        assert f(tg.constant(5.0)).numpy() == 160.0
        assert seen == once * calls
        assert capfd.readouterr().err == "printed\n"
        assert v.numpy() == 5.0


def test_effects_of_a_call_that_fails_while_traced_are_not_left_out_later():
    seen, fails = io.StringIO(), [True]

    @tg.function
    def f(x):
        tg.print("x", output_stream=seen)
        y = tg.numpy_function(lambda a: a, [x], tg.float32)
        if fails:
            raise OSError
        return y

    with pytest.raises(OSError):
        f(tg.constant(1.0))
    fails.clear()
    f(tg.constant(1.0))
    f(tg.constant(1.0))
    assert seen.getvalue() == "x\n" * 3


def test_host_functions_and_assignments_keep_their_order():
    v = tg.Variable(1.0)
    seen = []

    def host(a):
        seen.append(float(a))
        return a

    @tg.function
    def f():
        tg.numpy_function(host, [v], tg.float32)
        v.assign_add(1.0)
        tg.numpy_function(host, [v], tg.float32)

    f()
    f()
    assert seen == [1.0, 2.0, 2.0, 3.0]


@pytest.fixture
def checked():
    """A function with a check between two assignments, and its variable."""
    v = tg.Variable(0.0)

    @tg.function
    def f(x):
        v.assign(1.0)
        tg.debugging.assert_less(x, tg.constant(10.0), message="too big")
        v.assign(2.0)
        return x

    return f, v


def test_assertion_that_holds(checked):
    f, v = checked
    assert f(tg.constant(1.0)).numpy() == 1.0
    assert v.numpy() == 2.0


def test_assertion_that_fails_names_message_and_line(checked):
    f, _ = checked
    with pytest.raises(tg.errors.InvalidArgumentError, match="too big") as error:
        f(tg.constant(11.0))
    assert here(f.python_function.__code__.co_firstlineno + 3) in str(error.value)


def test_assignments_before_a_failed_assertion_hold_and_later_ones_do_not(checked):
    f, v = checked
    with contextlib.suppress(tg.errors.InvalidArgumentError):
        f(tg.constant(11.0))
    assert v.numpy() == 1.0


def test_function_is_usable_after_a_failed_assertion(checked):
    f, v = checked
    with contextlib.suppress(tg.errors.InvalidArgumentError):
        f(tg.constant(11.0))
    assert f(tg.constant(1.0)).numpy() == 1.0
    assert v.numpy() == 2.0


def test_assertion_in_a_nested_function(checked):
    f, _ = checked
    outer = tg.function(lambda x: f(x) * 2.0)
    assert outer(tg.constant(1.0)).numpy() == 2.0
    with pytest.raises(tg.errors.InvalidArgumentError, match="too big"):
        outer(tg.constant(11.0))


def test_assertion_at_top_level():
    tg.debugging.assert_equal(tg.constant(1.0), tg.constant(1.0))
    with pytest.raises(tg.errors.InvalidArgumentError):
        tg.debugging.assert_equal(tg.constant(1.0), tg.constant(2.0))


# ---------------------------------------------------------------- symbolic batch


def dense_layer():
    """A layer of 64 inputs that runs at every batch size, with its weights."""
    w = tg.Variable(np.linspace(-1.0, 1.0, 64 * 3).reshape(64, 3).astype(np.float32))

    @tg.function(input_signature=[float_spec(None, 64)])
    def layer(x):
        return tg.reduce_mean(tg.tanh(x @ w), axis=0), tg.shape(x)[0]

    return layer, w


def test_symbolic_batch_runs_at_every_size_with_one_trace():
    layer, w = dense_layer()
    for size in (1, 2, 7, 32):
        x = np.linspace(-1.0, 1.0, size * 64).reshape(size, 64).astype(np.float32)
        mean, count = layer(x)
        np.testing.assert_allclose(mean.numpy(), np.tanh(x @ w.numpy()).mean(0), atol=1e-5)
        assert count.numpy() == size
    assert layer.experimental_get_tracing_count() == 1


def test_gradient_at_every_batch_size_with_one_trace():
    v = tg.Variable(np.ones(4, np.float32))

    @tg.function(input_signature=[float_spec(None, 4)])
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((x * v) ** 2)
        return tape.gradient(loss, v)

    for size in (1, 3, 8):
        x = np.arange(size * 4, dtype=np.float32).reshape(size, 4)
        np.testing.assert_allclose(step(x).numpy(), 2 * (x**2).sum(0) / (size * 4), rtol=1e-5)
    assert step.experimental_get_tracing_count() == 1


def test_symbolic_batch_passes_through_nested_functions():
    inner = tg.function(lambda x: tg.reshape(x, [-1, 2]))
    outer = tg.function(lambda x: inner(x) * 2.0, input_signature=[float_spec(None, 4)])
    for size in (1, 3):
        assert outer(tg.ones([size, 4])).shape == (2 * size, 2)
    assert inner.experimental_get_tracing_count() == 1


def test_two_symbolic_sizes_are_checked_at_each_call():
    @tg.function(input_signature=[float_spec(None), float_spec(None)])
    def add(x, y):
        return x + y

    at = line() - 2
    assert add([1.0, 2.0], [3.0, 4.0]).numpy().tolist() == [4.0, 6.0]
    with pytest.raises(ValueError) as error:
        add([1.0, 2.0], [3.0, 4.0, 5.0])
    assert here(at) in str(error.value)
    assert add([1.0], [3.0]).numpy().tolist() == [4.0]


def test_size_of_one_broadcasts_as_at_top_level():
    f = tg.function(lambda x, y: x + y, input_signature=[float_spec(None), float_spec(None)])
    assert f([1.0, 2.0], [3.0, 4.0]).numpy().tolist() == [4.0, 6.0]
    assert f([1.0], [3.0, 4.0, 5.0]).numpy().tolist() == [4.0, 5.0, 6.0]


def test_open_size_is_not_a_number_while_tracing():
    shapes = []
    f = tg.function(lambda x: shapes.append(x.shape), input_signature=[float_spec(None, 4)])
    f(tg.ones([3, 4]))
    assert shapes[0].rank == 2 and shapes[0][1] == 4
    assert not isinstance(shapes[0][0], int)


# ---------------------------------------------------------------- threads


def in_threads(work, count=8):
    """Runs work(number) in `count` threads at once and returns the results in order."""
    start, results, errors = threading.Barrier(count), [None] * count, []

    def body(number):
        try:
            start.wait()
            results[number] = work(number)
        except BaseException as error:  # reported in the main thread
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


def test_one_signature_called_from_eight_threads_is_traced_once():
    traces = []

    @tg.function
    def f(x):
        traces.append(1)
        return x * 2.0

    results = in_threads(lambda number: f(tg.constant(float(number))).numpy())
    assert results == [2.0 * number for number in range(8)]
    assert len(traces) == 1


def test_eight_threads_trace_signatures_of_their_own():
    f = tg.function(lambda x, n: tg.reduce_sum(x) * n)

    def work(number):
        return f(tg.ones([number % 4 + 1]), 2.0).numpy()

    assert in_threads(work) == [2.0 * (number % 4 + 1) for number in range(8)]


def test_eight_threads_add_to_one_variable():
    v = tg.Variable(tg.zeros([16]))
    step = tg.function(lambda x: v.assign_add(x, read_value=False))
    step(tg.zeros([16]))

    def work(number):
        for _ in range(100):
            step(np.ones(16, np.float32))

    in_threads(work)
    assert v.numpy().tolist() == [800.0] * 16


def test_eight_threads_read_while_one_function_writes():
    v = tg.Variable(tg.zeros([64]))
    step = tg.function(lambda: v.assign_add(tg.ones([64]), read_value=False))
    step()

    def work(number):
        for _ in range(50):
            if number == 0:
                step()
            else:
                value = v.numpy()
                assert (value == value[0]).all()

    in_threads(work)
    assert v.numpy()[0] == 51.0


def test_eight_threads_compute_at_top_level():
    def work(number):
        x = tg.constant(float(number))
        for _ in range(20):
            x = x + 1.0
        return x.numpy()

    assert in_threads(work) == [number + 20.0 for number in range(8)]


def test_eight_threads_send_one_tensor_to_the_device():
    double = tg.function(lambda x: x * 2.0)
    double(tg.constant([0.0, 0.0]))
    for number in range(30):
        x = tg.constant([number, 1.0])
        results = in_threads(lambda _, x=x: double(x).numpy().tolist())
        assert results == [[2.0 * number, 2.0]] * 8


def test_tensors_travel_between_threads():
    pending = tg.constant(3.0) * 2.0
    assert in_threads(lambda number: (pending + float(number)).numpy()) == [
        6.0 + number for number in range(8)
    ]


def test_gradients_in_eight_threads():
    v = tg.Variable(3.0)

    @tg.function
    def derivative(x):
        with tg.GradientTape() as tape:
            y = v * v * x
        return tape.gradient(y, v)

    assert in_threads(lambda number: derivative(tg.constant(float(number))).numpy()) == [
        6.0 * number for number in range(8)
    ]


# ---------------------------------------------------------------- found by use


def test_value_passed_through_a_nested_function_that_is_pruned():
    @tg.function
    def innermost(y):
        return tg.sin(y), tg.cos(y)

    @tg.function
    def middle(x, y):
        s, c = innermost(y)
        return x, s, c * 2.0

    @tg.function
    def outer(x, y):
        a, b, _ = middle(x, y)
        return a + b

    assert outer(tg.constant(1.0), tg.constant(0.0)).numpy() == 1.0


def test_classmethod():
    traces = []

    class Doubler:
        factor = 2.0

        @classmethod
        @tg.function
        def double(cls, x):
            traces.append(1)
            return x * cls.factor

    assert [Doubler.double(tg.constant(x)).numpy() for x in (1.0, 2.0)] == [2.0, 4.0]
    assert len(traces) == 1


def test_effects_after_a_failed_check_do_not_happen():
    calls = []

    @tg.function
    def f(x):
        tg.numpy_function(lambda: calls.append("before"), [], [])
        tg.debugging.assert_positive(x)
        tg.numpy_function(lambda: calls.append("after"), [], [])
        return x

    f(tg.constant(1.0))
    with pytest.raises(tg.errors.InvalidArgumentError):
        f(tg.constant(-1.0))
    assert calls == ["before", "after", "before"]


def test_error_of_a_host_function_is_raised_with_its_line():
    f = tg.function(lambda x: tg.numpy_function(lambda a: 1 / 0, [x], [tg.TensorSpec([])]))
    with pytest.raises(ZeroDivisionError) as error:
        f(tg.constant(1.0))
    assert "test_function.py" in error.value.__notes__[0]


def test_an_array_has_its_own_dtype_as_an_argument_alone():
    x, y = tg.constant([1.0]), np.array([0.1])
    product = tg.function(lambda x, y: x * y)
    declared = tg.function(lambda y: x * y, input_signature=[tg.TensorSpec([None])])
    assert (x * y).dtype == tg.function(lambda x: x * y)(x).dtype == tg.float32
    assert product(x, y).dtype == product(x, y[0]).dtype == tg.float64
    assert product(x, tg.constant(y, tg.float32)).dtype == declared(y).dtype == tg.float32


def test_compiler_ir_of_a_platform():
    ir = tg.function(tg.sin).experimental_get_compiler_ir(tg.constant(1.0))
    own = jax.devices()[0].platform
    assert ir(stage="hlo", platform_name=own) == ir(stage="hlo", platform_name=own.upper())
    assert "sine" in ir(stage="hlo", platform_name=own)
    with pytest.raises(ValueError, match="there is no platform 'abacus' here"):
        ir(stage="hlo", platform_name="abacus")


@pytest.mark.parametrize("name", ["function_def", "inference_fn", "set_external_captures"])
def test_names_that_concrete_functions_lack_say_what_to_use(name):
    traced = tg.function(tg.sin).get_concrete_function(tg.constant(1.0))
    with pytest.raises(AttributeError, match=f"a concrete function has no {name}") as error:
        getattr(traced, name)
    assert "fix: " in str(error.value)
    assert not hasattr(traced, "nothing_like_it")


def test_shapes_merge_and_have_ranks():
    shape, unknown = tg.TensorShape([2, None]), tg.TensorShape(None)
    assert shape.merge_with([None, 3]) == [2, 3]
    assert unknown.merge_with([2]) == [2] and tg.TensorShape([2]).merge_with(unknown) == [2]
    assert unknown.with_rank(2).as_list() == [None, None] and shape.with_rank(2) is shape
    unknown.assert_has_rank(1)
    for refused in (
        lambda: shape.merge_with([3, 3]),
        lambda: shape.merge_with([2]),
        lambda: shape.with_rank(1),
        lambda: shape.assert_has_rank(3),
        lambda: shape.assert_is_compatible_with([3, 3]),
    ):
        with pytest.raises(tg.errors.ShapeError):
            refused()


# ---------------------------------------------------------------- inspect and pickle


def scale_by_name(x, factor=2.0, *, shift=0.0):
    return x * factor + shift


scale_by_name_compiled = tg.function(scale_by_name)


@tg.function(input_signature=[tg.TensorSpec([None])])
def doubled_at_module_level(x):
    return 2.0 * x


class Shifted(Scaled):
    def __init__(self, scale):
        super().__init__(scale)
        self.shifted = tg.function(self.shift)

    def shift(self, x):
        return x + self.scale


def test_inspect_sees_the_signature_of_the_python_function():
    wanted = inspect.signature(scale_by_name)
    assert inspect.signature(scale_by_name_compiled) == wanted
    assert inspect.getfullargspec(scale_by_name_compiled) == inspect.getfullargspec(scale_by_name)
    assert list(inspect.signature(Scaled(2.0).times).parameters) == ["x"]
    assert list(inspect.signature(Scaled.times).parameters) == ["self", "x"]
    concrete = doubled_at_module_level.get_concrete_function()
    assert list(inspect.signature(concrete).parameters) == ["x"]
    partial = functools.partial(scale_by_name_compiled, factor=3.0)
    assert inspect.signature(partial) == inspect.signature(
        functools.partial(scale_by_name, factor=3.0)
    )


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_functions_pickle_where_their_python_functions_do(protocol):
    def again(value):
        return pickle.loads(pickle.dumps(value, protocol))

    assert again(doubled_at_module_level) is doubled_at_module_level
    found = again(scale_by_name_compiled)
    assert found(3.0, shift=1.0).numpy() == 7.0 and found.python_function is scale_by_name
    checked = again(tg.function(scale_by_name, reduce_retracing=True, check_bounds=True))
    assert checked._options == {**scale_by_name_compiled._options, **checked._options}
    assert checked._options["reduce_retracing"] and checked._options["check_bounds"]
    assert again(Scaled(3.0).times)(2.0).numpy() == 6.0
    shifted = again(Shifted(3.0))
    assert shifted.times(2.0).numpy() == 6.0 and shifted.shifted(2.0).numpy() == 5.0
    assert again(Shifted(3.0).shifted)(1.0).numpy() == 4.0
    shifted.scale = 10.0
    assert shifted.shifted.python_function.__self__ is shifted
    with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
        again(tg.function(lambda x: x))


def test_functions_are_sent_to_processes(tmp_path):
    script = tmp_path / "sent.py"
    script.write_text(
        "import multiprocessing\n"
        "import tracegraph as tg\n"
        "@tg.function\n"
        "def square(x):\n"
        "    return x * x\n"
        "def run(f):\n"
        "    return float(f(3.0))\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(run, [square]))\n"
    )
    found = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=os.environ, timeout=300
    )
    assert found.stdout == "[9.0]\n", found.stderr


# ---------------------------------------------------------------- open ranks, generators


def test_two_open_ranks_trace_together():
    """TensorFlow traces it; the shapes are taken to be equal, and others are traced anew."""
    specs = [tg.TensorSpec(None), tg.TensorSpec(None)]
    f = tg.function(lambda x, y: tg.sin(x) * y + x, input_signature=specs)
    assert f.get_concrete_function().structured_outputs.shape.rank is None
    rng = np.random.default_rng(0)
    for one, other in [
        ((2, 3), (2, 3)),
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((), (4,)),
        ((2, 1), (2, 5)),
    ]:
        x, y = rng.normal(size=one).astype(np.float32), rng.normal(size=other).astype(np.float32)
        for _ in range(2):
            np.testing.assert_allclose(f(x, y).numpy(), np.sin(x) * y + x, rtol=1e-5)
    with pytest.raises(ValueError, match="do not broadcast"):
        f(np.ones(2, np.float32), np.ones(3, np.float32))
    x, y = tg.ones([2, 3]), tg.ones([2, 3])
    with tg.GradientTape() as tape:
        tape.watch([x, y])
        z = f(x, y)
    np.testing.assert_allclose(tape.gradient(z, y).numpy(), np.sin(np.ones((2, 3))), rtol=1e-6)


def test_an_open_rank_is_not_taken_for_one_that_does_not_fit():
    """`==` was False for every value of open rank, and `ensure_shape` did not check it."""
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    specs = [tg.TensorSpec(None), tg.TensorSpec([3, 2])]
    f = tg.function(lambda x, y: (x == y, x != y), input_signature=specs)
    for one in [x, x[:1], x[0], x[0, 0], np.zeros(3, np.float32)]:
        fits = one.shape != (3,)
        equal = one == x if fits else np.False_
        for found, wanted in zip(f(one, x), [equal, ~equal], strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)

    def changed(x):
        x.set_shape([None, None])
        return tg.reduce_sum(tg.ensure_shape(x, [None, 2]))

    ensured = tg.function(changed, input_signature=[tg.TensorSpec(None)])
    assert ensured(x).numpy() == 15.0
    for wrong in [x.T, x[0]]:
        with pytest.raises(tg.errors.ShapeError, match="does not have the shape"):
            ensured(wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, items: f(items),
        lambda f, items: f([items]),
        lambda f, items: f({"a": items}),
        lambda f, items: f(x=items),
        lambda f, items: f.get_concrete_function(items),
    ],
)
def test_a_generator_is_refused_by_our_error_alone(call):
    f = tg.function(lambda x: x)
    f({"a": tg.ones([2])})
    f({"a": tg.ones([2])})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(TypeError, match="is a generator"):
            call(f, (x for x in [1.0]))
    assert not seen
