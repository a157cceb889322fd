"""Python's control flow in functions: the same results as plain Python on NumPy's numbers."""

import ast
import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import linecache
import pdb
import re
import signal
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.autograph import function_conversion as conversion
from tracegraph.autograph.translation import syntax_trees
from tracegraph.control.branch import Cond
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.errors import DTypeError, ShapeError, SignatureError, TraceError

ROOT = Path(__file__).resolve().parents[2]


def flat(value: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in tg.nest.flatten(value)]


def check(body, *inputs, op=None):
    """Compares the compiled function with Python on NumPy's numbers, for each input."""
    f = tg.function(body)
    for given in inputs:
        arguments = given if isinstance(given, tuple) else (given,)
        numbers = [np.array(x)[()] for x in arguments]
        numbers = [x.astype(np.float32) if x.dtype == np.float64 else np.int32(x) for x in numbers]
        found, expected = flat(f(*map(tg.constant, numbers))), flat(body(*numbers))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    if op is not None:
        assert any(isinstance(node.op, op) for node in nodes_of(f)), f.traces[0].graph
    return f


def nodes_of(f):
    return [node for trace in f.traces for node in trace.graph.nodes]


# ---------------------------------------------------------------- branches


def if_elif_else(x):
    if x > 10.0:
        y = x * 2.0
    elif x > 0.0:
        y = x + 1.0
    else:
        y = -x
    return y


def if_without_else(x):
    y = x
    if x > 0.0:
        y = y * 3.0
    return y


def early_returns(x):
    if x > 3.0:
        return x * 10.0
    if x > 1.0:
        z = x - 1.0
        return z
    return -x


def return_from_nested_branches(x):
    if x > 0.0:
        if x > 5.0:
            return x
        x = x + 0.5
    else:
        x = x - 1.0
    return x * 2.0


def ternary(x):
    return x * 2.0 if x > 0.0 else x - 1.0


def nested_ternaries(x):
    low = 1.0 if x < -5.0 else 2.0 if x < -1.0 else 3.0
    high = (x if x > 5.0 else -x) if x > 0.0 else (4.0 if not (x > -5.0 and x < -1.0) else x)
    return low, high, 5.0 if (x if x > 1.0 else 0.0) else 6.0


def annotated(x):
    y: float
    z: float = 0.0
    if x > 0.0:
        y: float = x
        z: float = 1.0
    else:
        y: float = -x
    return y + z


def logic(x):
    a = x > 0.0 and x < 5.0
    b = x < -3.0 or x > 3.0
    c = not a
    return a, b, c, not (b and c)


def chained(x):
    return 0.0 < x < 5.0, -1.0 < x <= 2.0 < 3.0


def structures(x):
    d = {"a": x, "b": (x, x + 1.0)}
    if x > 0.0:
        d = {"a": x * 2.0, "b": (x, x)}
        t = [x, x]
    else:
        t = [x + 1.0, -x]
    return d, t


def numbers_that_differ(x):
    if x > 0.0:
        n, flag, mixed = 1, True, 1
    else:
        n, flag, mixed = 2, False, x
    return n, flag, mixed


def numbers_that_agree(x):
    if x > 0.0:
        axis, kind = 0, "sum"
        y = x
    else:
        axis, kind = 0, "sum"
        y = -x
    assert isinstance(axis, int) and kind == "sum"
    return y


def of_an_int(n):
    return 10 if n else 20


BRANCHES = [
    if_elif_else, if_without_else, early_returns, return_from_nested_branches, ternary,
    nested_ternaries, annotated, logic, chained, structures, numbers_that_differ,
    numbers_that_agree,
]  # fmt: skip


@pytest.mark.parametrize("body", BRANCHES, ids=lambda f: f.__name__)
def test_branches(body):
    check(body, 20.0, 4.0, 2.0, 0.5, 0.0, -2.0, -7.0, op=Cond)


def test_a_number_decides_by_whether_it_is_zero():
    check(of_an_int, 0, 3, op=Cond)


def test_what_both_branches_leave_alone_is_the_same_object():
    kept = object()

    @tg.function
    def f(x):
        thing, y = kept, x
        if x > 0.0:
            y = x * 2.0
            thing = kept
        assert thing is kept
        return y

    assert f(tg.constant(2.0)).numpy() == 4.0


def test_only_the_branch_that_is_taken_runs():
    """`and` does not look at what its left side guards."""

    @tg.function(check_bounds=True)
    def f(x, i):
        return i < 3 and x[i] > 0.0

    x = tg.constant([1.0, -1.0, 1.0])
    assert [bool(f(x, tg.constant(i))) for i in (0, 1, 2, 7)] == [True, False, True, False]


def test_values_that_python_knows_decide_in_python():
    calls = []

    def body(x, mode):
        if mode == "twice" and not calls:
            calls.append(mode)
            x = x * 2.0
        while len(calls) < 4:
            calls.append("loop")
        for _ in range(2):
            x = x + 1.0
        return x if mode else -x

    f = tg.function(body)
    assert f(tg.constant(3.0), "twice").numpy() == 8.0
    assert calls == ["twice", "loop", "loop", "loop"]
    assert not any(isinstance(node.op, (Cond, While, Scan)) for node in nodes_of(f))


# ---------------------------------------------------------------- loops


def while_of_a_tensor(x):
    i = 0
    while x > 1.0:
        x = x / 2.0
        i += 1
    return x, i


def while_with_break_and_continue(x):
    n, total = 0, 0.0
    while n < 20:
        n += 1
        if x > 5.0:
            x = x - 2.0
            continue
        total = total + x
        x = x - 1.0
        if total > 9.0:
            break
    return n, total, x


def symbolic_from_half_way(x):
    i = 0
    while i < 10:
        if i > 2 and x > 3.0:
            return -x
        i += 1
        x = x - 1.0
    return x


def for_of_a_range(n):
    total = 0
    for i in tg.range(n):
        if i == 3:
            continue
        if i > 7:
            break
        total += i
    return total


def for_of_a_python_range(n):
    total = 0
    for i in range(1, n, 2):
        total += i * i
    return total


def for_downwards(n):
    total = 0
    for i in tg.range(n, 0, -2):
        total = total * 3 + i
    return total


def nested_loops_with_return(n):
    for i in tg.range(n):
        for j in tg.range(i):
            if i * j > 6:
                return i, j
    return n, n


def for_of_rows(x):
    total, biggest = 0.0, -1e9
    for row in x:
        total = total + row
        biggest = row if row > biggest else biggest
    return total, biggest


def for_with_return(x):
    total = 0.0
    for row in x:
        total = total + row
        if total > 5.0:
            return total * 100.0
    return total


def enumerated(x):
    total = 0.0
    for i, row in enumerate(x, 2):
        total += row * tg.cast(i, tg.float32) if isinstance(i, tg.Tensor) else row * np.float32(i)
    return total


def in_step(x):
    best = -1.0
    later = x[1:]
    for a, b in zip(x, later):
        best = best if best > a * b else a * b
    return best


def static_loop_with_break(x):
    for factor in (2.0, 3.0, 5.0):
        if x > 20.0:
            break
        x = x * factor
    return x


def return_from_a_loop_without_end(x):
    while True:
        x = x + 1.0
        for k in range(3):
            if x * k > 6.0:
                return x + k


def state_of_one_type(x):
    """Numbers before a loop take the type that they get in it."""
    total = 0
    count = 1
    while x > 0.0:
        total += x
        x = x - 1.0
        count += 2
    return total, count


WHILES = [
    while_of_a_tensor,
    while_with_break_and_continue,
    symbolic_from_half_way,
    return_from_a_loop_without_end,
    state_of_one_type,
]
RANGES = [for_of_a_range, for_of_a_python_range, for_downwards, nested_loops_with_return]
ROWS = [for_of_rows, for_with_return, enumerated, in_step]


@pytest.mark.parametrize("body", WHILES, ids=lambda f: f.__name__)
def test_whiles(body):
    check(body, 100.0, 6.0, 2.5, 0.0, op=While)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("body", RANGES, ids=lambda f: f.__name__)
def test_ranges(body):
    f = tg.function(body)
    for n in (0, 1, 2, 5, 12):
        expected = flat(body(n))
        assert [*map(int, flat(f(tg.constant(n))))] == [*map(int, expected)]
    assert any(isinstance(node.op, While) for node in nodes_of(f))


def test_ranges_in_step():
    def f(n):
        s = 0
        for k, (i, j) in enumerate(zip(range(1, n), range(5))):
            s += 100 * k + 10 * i + j
        for i, x in zip(tg.range(2), [5, 7]):
            s += x * (i + 1)
        return s

    converted = tg.function(f)
    for n in (0, 3, 9):
        expected = sum(k * 100 + i * 10 + j for k, (i, j) in enumerate(zip(range(1, n), range(5))))
        assert int(converted(tg.constant(n))) == expected + 19


def test_a_range_of_unknown_length_beside_a_list():
    @tg.function
    def f(n):
        s = 0.0
        for _, x in zip(range(n), [1.0, 2.0]):  # here
            s += x
        return s

    with pytest.raises(tg.errors.TraceError, match="a range whose length is known only") as caught:
        f(tg.constant(2))
    assert here(f.python_function, "# here") in str(caught.value)


@pytest.mark.parametrize("body", ROWS, ids=lambda f: f.__name__)
def test_rows(body):
    rows = [1.0, 2.0, -3.0, 4.5]
    check(body, (rows,), ([0.5],) if body is not in_step else ([0.5, 1.0],), op=(While, Scan))


def test_a_loop_over_rows_that_nothing_leaves_is_a_scan():
    f = check(for_of_rows, ([1.0, 5.0, 2.0],))
    assert any(isinstance(node.op, Scan) for node in nodes_of(f))


def test_a_loop_over_what_python_knows_may_be_left_by_a_tensor():
    check(static_loop_with_break, 1.0, 4.0, 50.0, op=Cond)


def test_a_range_of_constant_bounds_is_one_loop():
    @tg.function
    def f(x):
        for i in tg.range(1000):
            x = x + tg.cast(i, tg.float32)
        return x

    assert f(tg.constant(1.0)).numpy() == 1.0 + 999 * 500
    assert len(nodes_of(f)) < 20


def test_an_open_size_is_looped_over():
    f = tg.function(for_of_rows, input_signature=[tg.TensorSpec([None])])
    for rows in ([1.0, 3.0], [2.0, 5.0, 4.0]):
        total, biggest = f(tg.constant(rows))
        assert (total.numpy(), biggest.numpy()) == (sum(rows), max(rows))


def who_calls():
    return sys._getframe(1).f_code.co_name, sys._getframe(1).f_lineno


def asks_who_calls(x):
    if x > 0.0:
        x = x + 1.0
    return [x, *who_calls()]  # here


def test_functions_see_the_frame_that_calls_them():
    seen = []
    tg.function(lambda x: seen.extend(asks_who_calls(x)))(tg.constant(1.0))
    assert seen[1] == "asks_who_calls"
    assert f"{__file__}:{seen[2]}" == here(asks_who_calls, "# here")


def test_a_loop_over_a_range_beyond_int32_that_ends_early():
    @tg.function
    def count():
        found = tg.constant(0)
        for _ in tg.range(2**40):
            found += 1
            if found >= 3:
                break
        return found

    assert int(count()) == 3


def by_a_step_of_zero(x, n):
    for _ in range(0, n, 0):  # here
        x = x + 1.0
    return x


def by_a_step_of_the_run(x, n):
    for i in tg.range(0, 3, n):  # here
        x = x + tg.cast(i, tg.float32)
    return x


@pytest.mark.parametrize("function", [by_a_step_of_zero, by_a_step_of_the_run])
def test_a_for_over_a_range_with_a_step_of_zero_is_refused_as_by_python(function):
    f = tg.function(function)
    with pytest.raises(ValueError, match="range: the step is 0") as error:
        float(f(tg.constant(1.0), tg.constant(0)))
    assert here(function, "# here") in str(error.value)
    if function is by_a_step_of_the_run:
        assert [float(f(tg.constant(1.0), tg.constant(n))) for n in (1, 2, -1)] == [4.0, 3.0, 1.0]


def test_maximum_iterations():
    @tg.function
    def f(x):
        while x > 0.0:
            tg.autograph.experimental.set_loop_options(maximum_iterations=3)
            x = x - 1.0
        return x

    assert f(tg.constant(10.0)).numpy() == 7.0
    assert f(tg.constant(2.0)).numpy() == 0.0


def test_loops_have_derivatives():
    @tg.function
    def f(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            while y < 100.0:
                y = y * x
            for _ in tg.range(3):
                y = y + x * x
            y = y if x > 0.0 else -y
        return tape.gradient(y, x)

    assert f(tg.constant(3.0)).numpy() == 5 * 3.0**4 + 3 * 2 * 3.0


# ---------------------------------------------------------------- state


class Counter:
    def __init__(self):
        self.total = 0.0
        self.__hidden = 1.0

    def add(self, x):
        for _ in tg.range(3):
            if x > 1.0:
                self.total += x
            self.__hidden = self.__hidden * 2.0
        return self.total + self.__hidden

    def __call__(self, x):
        while x > 0.0:
            self.total += x
            x = x - 1.0
        return self.total


class Child(Counter):
    def add(self, x):
        return super().add(x) + (1.0 if x > 1.0 else 2.0)


@pytest.mark.parametrize("x", [0.5, 2.5])
def test_attributes_are_state(x):
    for make in (lambda c: c.add, lambda c: Child().add, lambda c: c):
        compiled, plain = make(Counter()), make(Counter())
        assert tg.function(compiled)(tg.constant(x)).numpy() == plain(x)


class Twice:
    """A property whose setter stores something else than it is given."""

    def __init__(self, value):
        self.__stored = value

    @property
    def value(self):
        return self.__stored

    @value.setter
    def value(self, value):
        self.__stored = value * 2.0


@pytest.mark.filterwarnings("error")
def test_the_state_of_a_property_is_what_its_setter_stores():
    def body(x):
        thing = Twice(x)
        if x > 1.0:
            thing.value = thing.value + 1.0
        else:
            thing.value *= x
        before = thing.value
        for _ in tg.range(4):
            if thing.value > 9.0:
                break
            thing.value += 1.0
        return before, thing.value

    check(body, 2.0, 0.5)


def test_items_are_state():
    def body(x):
        d, key = {"a": 1.0}, "b"
        if x > 0.0:
            d["a"] = x
            d[key] = x * 2.0
        else:
            d[key] = 7.0
        items = [x, x]
        while x > 0.0:
            items[0] = items[0] + 1.0
            x = x - 1.0
        return d["a"], d["b"], items[0], items[1]

    check(body, 2.0, -1.0)


def test_what_a_branch_makes_of_an_object_is_gone_in_the_other():
    def body(x):
        thing = types.SimpleNamespace()
        if x > 0.0:
            thing.y = x
        else:
            assert not hasattr(thing, "y")
            thing.y = -x
        return thing.y

    check(body, 2.0, -3.0)


def test_nonlocal_names_are_state():
    """A name of the function around it is an output of each branch, whatever else is read later."""

    def body(x):
        y = x

        def change(z):
            nonlocal y
            if z > 0.0:
                y = y + z
            for _ in tg.range(2):
                y = y * 2.0

        change(x)
        return y

    check(body, 2.0, -2.0)


_total = 0.0


def test_global_names_are_state():
    def body(x):
        global _total
        _total = x
        while _total < 100.0:
            _total = _total * 2.0
        return _total

    check(body, 3.0, 500.0)


def test_variables_are_assigned_in_branches_and_loops():
    v = tg.Variable(1.0)

    @tg.function
    def f(x):
        for _ in tg.range(3):
            if x > 1.0:
                v.assign_add(x)
        return v.read_value()

    assert f(tg.constant(2.0)).numpy() == 7.0 and v.numpy() == 7.0
    assert f(tg.constant(0.0)).numpy() == 7.0
    g = tg.function(lambda: 1.0 if v else 2.0)
    assert g().numpy() == 1.0


def asked_by_a_function(x, v, ask):
    def more(s):
        v.assign_add(1.0)
        return v < 4.0

    while more(x):
        x = x * 1.5 + v
    return x


def asked_where_a_number_does_not_decide(x, v, ask):
    n = 0
    while n < 2 or v.assign_add(1.0) < 3.0:
        x = x * 2.0
        n += 1
        if x > 40.0:
            break
        if n == 1:
            continue
        x += 1.0
    return x


def asked_of_numpy(x, v, ask):
    while ask(x):
        x = x * 2.0
        last = x
    return last


def asked_in_the_middle_of_a_chain(x, v, ask):
    y = v.assign_add(x) + 1.0 if 0.0 < v.assign_add(1.0) <= v.assign_add(1.0) < 5.0 > 1.0 else x
    return y, 1.0 < v.assign_add(1.0) < x


ASKED = [
    asked_by_a_function,
    asked_where_a_number_does_not_decide,
    asked_of_numpy,
    asked_in_the_middle_of_a_chain,
]


@pytest.mark.parametrize("body", ASKED, ids=lambda f: f.__name__)
def test_the_effects_of_a_test_happen_once_each_time(body):
    def run(decorate):
        v, seen = tg.Variable(0.0), []

        def ask(x):
            small = lambda x: (seen.append(float(x)), np.array(x < 9.0))[1]  # noqa: E731
            return tg.numpy_function(small, [x], tg.TensorSpec([], tg.bool))

        found = decorate(lambda x: body(x, v, ask))(tg.constant(1.25))
        return [*map(float, tg.nest.flatten(found)), float(v), seen]

    assert run(tg.function) == run(lambda f: f)


def test_a_variable_that_a_loop_looks_up_stays_a_variable():
    variables = [tg.Variable(1.0), tg.Variable(2.0)]

    @tg.function
    def f(x):
        for v in variables:
            if x > 0.0:
                v.assign_add(x)
        return x

    f(tg.constant(3.0))
    assert [v.numpy() for v in variables] == [4.0, 5.0]


# ---------------------------------------------------------------- what is converted


def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


def helper(x):
    if x > 0.0:
        return x
    return -x


def test_what_is_called_is_converted():
    def body(x):
        def inner(z):
            return z if z > 1.0 else z * 5.0

        partial = functools.partial(helper)
        chosen = lambda z: z if z > 2.0 else -z  # noqa: E731
        return helper(x), inner(x), partial(x), chosen(x), factorial(4) * x, [helper(x)]

    check(body, 3.0, 1.5, -2.0)


def test_functions_given_to_functions_of_tracegraph_are_converted():
    @tg.function
    def f(x):
        return tg.vectorized_map(helper, x), tg.map_fn(helper, x), tg.recompute_grad(helper)(x[0])

    for found in f(tg.constant([-1.0, 2.0, -3.0]))[:2]:
        assert found.numpy().tolist() == [1.0, 2.0, 3.0]


def test_layers_are_converted():
    class Absolute(tg.layers.Layer):
        def call(self, inputs):
            return inputs if tg.reduce_sum(inputs) > 0.0 else -inputs

    model = tg.layers.Sequential([Absolute()])
    f = tg.function(lambda x: model(x))
    assert f(tg.constant([[-2.0]])).numpy() == 2.0
    with pytest.raises(tg.errors.TraceError, match="a Python bool"):
        tg.function(lambda x: model(x), autograph=False)(tg.constant([[-2.0]]))


def test_two_lambdas_on_one_line():
    first, second = (lambda x: x if x > 0.0 else -x), (lambda x: 1.0 if x > 0.0 else 2.0)
    assert tg.function(first)(tg.constant(-3.0)).numpy() == 3.0
    assert tg.function(second)(tg.constant(-3.0)).numpy() == 2.0


def test_arguments_of_every_kind():
    def body(x, /, y=2.0, *rest, scale, **options):
        def inner(a, b=y, *more, c=scale):
            return (a if a > 0.0 else b) * c + len(more)

        return inner(x, *rest, **options) + sum(rest)

    f = tg.function(body)
    for x in (1.0, -1.0):
        found = f(tg.constant(x), 3.0, 4.0, 5.0, scale=2.0, c=7.0)
        assert found.numpy() == body(x, 3.0, 4.0, 5.0, scale=2.0, c=7.0)


def test_statements_that_are_left_to_python():
    def body(x):
        log = []
        try:
            if x > 0.0:
                y = x
            else:
                y = x * 2.0
            try:
                raise ValueError("told")
            except ValueError as error:
                log.append(str(error))
        finally:
            log.append("done")
        with tg.name_scope("scope") as scope:
            z = y + 1.0
        del y
        a, *b = c = [z, z, z]
        total: int = 0
        total += sum([i for i in range(3) if i])
        numbers = {i: i + 2 for i in (1, 2)}

        class Local:
            def get(self, q):
                return q if q > 0.0 else -q

        assert log == ["told", "done"] and scope is not None and len(b) == 2 and len(c) == 3
        return a, total, numbers[1], Local().get(z), f"{total:>3}" == "  3"

    f = tg.function(body)
    for x in (2.0, -2.0):
        assert [y.numpy() for y in f(tg.constant(x))] == [*map(np.float32, body(np.float32(x)))]


def documented(x):
    """This is all."""


def test_a_function_of_a_docstring():
    assert conversion.converted(documented)(1.0) is None
    assert conversion.converted(documented).__doc__ == "This is all."


def test_match_of_values():
    def body(x, kind):
        match kind:
            case "abs" | "norm":
                y = x if x > 0.0 else -x
            case None:
                y = x
            case 3 if x is not None:
                y = x * 3.0
            case other:
                y = x * other
        match x > 0.0:
            case True:
                return y
            case _:
                return y - 100.0

    f = tg.function(body)
    for kind in ("abs", "norm", None, 3, 5.0):
        for x in (2.0, -2.0):
            assert f(tg.constant(x), kind).numpy() == body(x, kind)


@dataclasses.dataclass
class Affine:
    factor: object
    shift: object


class Kind(enum.Enum):
    SINE = 1
    COSINE = 2


def matched(x, what):
    """`match` over what Python knows, with tensors in it and in the guards."""
    match what:
        case Kind.SINE | Kind.COSINE as kind:
            return tg.sin(x) if kind is Kind.SINE else tg.cos(x)
        case {"op": "add", **rest}:
            for value in rest.values():
                if x > 0.0:
                    x = x + value
            return x
        case Affine(a, shift=0.0 | None):
            return a * x
        case Affine(factor=Affine(a, b), shift=c) if a * x > b:
            return a * x + c
        case Affine(b, _):
            return x - b if isinstance(b, float) else x
        case (str(), float() | int() as b) if x > b:
            y = x * b
        case [_, *more] if len(more) == 2:
            y = x + more[1]
        case ["once", _] | [_, "once"]:
            y = x * 7.0
        case last:
            y = x * last if isinstance(last, float) else x
    return x - y


MATCHED = [
    Kind.SINE,
    {"op": "add", "one": 2.0, "two": 3.0},
    Affine(3.0, None),
    Affine(Affine(2.0, 1.0), 5.0),
    Affine(4.0, 1.0),
    ("scale", 0.5),
    (1, 2, 3.0),
    (0, "once"),
    6.0,
]


def test_match_of_patterns():
    f = tg.function(lambda x: [matched(x, what) for what in MATCHED])
    for x in (2.0, -2.0):
        wanted = [matched(tg.constant(x), what) for what in MATCHED]
        np.testing.assert_allclose(f(tg.constant(x)), wanted, rtol=1e-6)


def test_match_of_a_structure_of_tensors():
    @tg.function
    def signs(x, y):
        match (x > 0.0, y > 0.0):
            case (True, True):
                return 1
            case (False, False):
                return 2
            case (True, _):
                return 3
        return 4

    found = [
        signs(tg.constant(x), tg.constant(y)).numpy() for x in (1.0, -1.0) for y in (1.0, -1.0)
    ]
    assert found == [1, 3, 4, 2]


def test_a_name_of_a_case_keeps_its_value_where_another_is_taken():
    @tg.function
    def f(x, y):
        match (x > 0.0, y * 2.0):
            case (True, y):
                return y
        return y

    assert [f(tg.constant(x), tg.constant(3.0)).numpy() for x in (1.0, -1.0)] == [6.0, 3.0]


def test_the_else_of_a_try():
    def body(x, raises):
        reached = []
        for k in range(3):
            try:
                if k == raises:
                    raise ValueError(k)
                if k == 1:
                    continue
            except ValueError:
                x = x * 10.0
            else:
                reached.append(k)
                if x > 1.0:
                    x = x + 1.0
            finally:
                x = x * 2.0
        return x, len(reached)

    f = tg.function(body)
    for x in (0.1, 2.0):
        for raises in (0, 1, 7):
            found = [y.numpy() for y in f(tg.constant(x), raises)]
            np.testing.assert_allclose(found, body(x, raises), rtol=1e-6)


def test_an_assertion_in_a_loop_shows_both_numbers():
    @tg.function
    def f(x, is_small):
        for _ in tg.range(3):
            x = x * 2.0
            assert is_small
            assert x <= 20.0, "too large"
        return x

    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        f(tg.constant(5.0), tg.constant(True))
    fact, _, *operands = str(caught.value).splitlines()
    assert fact.startswith("too large; in step 2 of the loop at ")
    assert operands == ["  operand 0: 40.", "  operand 1: 20."]
    with pytest.raises(tg.errors.InvalidArgumentError, match="the assertion does not") as caught:
        f(tg.constant(5.0), tg.constant(False))
    assert "operand" not in str(caught.value)


def test_assert():
    @tg.function
    def f(x):
        assert x > 0.0, "x must be positive"
        assert True
        return x

    assert f(tg.constant(2.0)).numpy() == 2.0
    with pytest.raises(tg.errors.InvalidArgumentError, match="x must be positive") as caught:
        f(tg.constant(-2.0))
    assert isinstance(caught.value, AssertionError)
    assert here(f.python_function, "assert x > 0.0") in str(caught.value)
    assert str(caught.value).endswith("\n  operand 0: -2.\n  operand 1: 0.")
    with pytest.raises(AssertionError, match=r"^no$"):
        tg.function(lambda: refuse())()


def refuse():
    assert not True, "no"


def test_print_shows_values_at_every_run(capfd):
    @tg.function
    def f(x):
        print("x is", x, sep="=")
        print("tracing")
        return x * 1.0

    f(tg.constant(2.0))
    f(tg.constant(3.0))
    assert capfd.readouterr().out.split() == ["tracing", "x", "is=2", "x", "is=3"]


# ---------------------------------------------------------------- refusals


def here(function, text, after=""):
    """The file and line of a function where `text` stands."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + number}"


def one_branch_only(x):
    if x > 0.0:
        y = x
    return y  # here


def other_branch_only(x):
    if x > 0.0:
        pass
    else:
        y = x
    return y  # here


def one_branch_in_a_loop(x):
    while x > 0.0:
        if x > 1.0:
            y = x
        x = x - 1.0
    return y  # here


def other_dtypes(x):
    if x > 0.0:  # here
        y = x
    else:
        y = tg.cast(x, tg.float64)
    return y


def other_kinds(x):
    if x > 0.0:  # here
        y = 1
    else:
        y = x > 1.0
    return y


def other_shapes(x):
    if x > 0.0:  # here
        y = x
    else:
        y = tg.zeros([2])
    return y


def other_structures(x):
    if x > 0.0:  # here
        y = (x, x)
    else:
        y = x
    return y


def other_objects(x):
    if x > 0.0:  # here
        mode = "up"
    else:
        mode = "down"
    return x, mode == "up"


def returned_in_one_branch(x):
    if x > 0.0:
        return x


def returned_in_one_loop(x):
    while x > 0.0:
        x = x - 1.0
        if x < 2.0:
            return x


def growing(x):
    s = tg.zeros([1])
    while x > 0.0:  # here
        s = tg.concat([s, s], 0)
        x = x - 1.0
    return s


def turning_to_bool(x):
    s = x
    while x > 0.0:  # here
        s = x > 1.0
        x = x - 1.0
    return s


def growing_list(x):
    s = []
    while x > 0.0:  # here
        s = [*s, x]
        x = x - 1.0
    return s


def from_none(x):
    best = None
    while x > 0.0:  # here
        best = x if best is None else best
        x = x - 1.0
    return best


def appended(x, out):
    for _ in tg.range(4):
        out.append(x)  # here
    return out


def appended_to_an_argument(x):
    return appended(x, [])


def appended_structures(x):
    out = []
    for _ in tg.range(4):
        out.append((x, x))  # here
    return out


class Holder:
    def __init__(self):
        self.out = []

    def __call__(self, x):
        while x > 0.0:
            self.out.append(x)  # here
            x = x - 1.0
        return x


def appended_in_branch(x):
    out = []
    if x > 0.0:
        out.append(x)  # here
    return out


def keyed_by_what_a_loop_counts(x):
    found = {}
    for i in tg.range(3):  # here
        found[i] = x * 2.0
    return found


def keyed_in_a_set(x):
    seen = set()
    while x > 0.0:  # here
        x = x - 1.0
        seen.add(x)
    return seen


def keyed_in_branch(x):
    found = {}
    if x > 0.0:  # here
        key = (x + 1.0, "positive")
        found[key] = x
    return found


def many_truth_values(x):
    if tg.stack([x, x]) > 0.0:  # here
        return x
    return -x


REFUSALS = {
    one_branch_only: (ValueError, "'y' is set in only one branch", "set in the else branch"),
    other_branch_only: (ValueError, "'y' is set in only one branch", "set in the main branch"),
    one_branch_in_a_loop: (ValueError, "'y' is set in only one branch of the `if` at test_auto",
                           "give 'y' a value before the loop"),
    other_dtypes: (TypeError, "'y' is a tensor f32[] in the main branch, and a tensor f64[] in the "
                   "else branch", "tg.cast"),
    other_kinds: (TypeError, "'y' is 1 in the main branch, and a tensor bool[]",
                  "convert one: tg.cast(…, tg.int32), or tg.constant(…, tg.bool)"),
    other_shapes: (ValueError, "'y' is a tensor f32[] in the main branch, and a tensor f32[2] in "
                   "the else branch", "type"),
    other_structures: (ValueError, "'y' is a tuple ('*', '*') in the main branch, and a",
                       "structure"),
    other_objects: (ValueError, "'mode' is 'up' in the main branch, and 'down'", "tensors"),
    returned_in_one_branch: (ValueError, "returns a value on one path", "on every path"),
    returned_in_one_loop: (ValueError, "returns a value on one path", "on every path"),
    growing: (ValueError, "'s' is a tensor f32[1] before the loop, and a tensor f32[2] after one "
              "iteration", "before the loop"),
    turning_to_bool: (TypeError, "'s' is a tensor f32[] before the loop, and a tensor bool[]",
                      "tg.cast"),
    growing_list: (ValueError, "'s' is a list, [] before the loop", "tg.scan"),
    from_none: (ValueError, "'best' is None before the loop, and a tensor f32[]", "tensor"),
    appended_to_an_argument: (ValueError, ".append() changes a list in a loop", "tg.scan"),
    appended_structures: (ValueError, ".append() changes a list in a loop", "tg.scan"),
    Holder.__call__: (ValueError, ".append() changes a list in a loop", "tg.scan"),
    appended_in_branch: (ValueError, ".append() changes a list in a branch", "both branches"),
    keyed_by_what_a_loop_counts: (ValueError, "a tensor becomes a key of a dict in a loop",
                                  "tg.TensorArray at that index"),
    keyed_in_a_set: (ValueError, "a tensor becomes a key of a set in a loop", "range(n)"),
    keyed_in_branch: (ValueError, "a tensor becomes a key of a dict in a branch", "range(n)"),
    many_truth_values: (ValueError, "a tensor bool[2] was taken for one truth value",
                        "tg.reduce_all"),
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSALS, ids=lambda f: f.__qualname__)
def test_refusals(body):
    kind, fact, fix = REFUSALS[body]
    function = Holder() if body is Holder.__call__ else body
    with pytest.raises(kind) as caught:
        tg.function(function)(tg.constant(2.0))
    text = str(caught.value)
    assert fact in text and fix in text.split("fix:")[1]
    if "# here" in inspect.getsource(body):
        assert here(body, "# here") in text
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}


def test_a_loop_may_have_variables_alone_for_its_state():
    step, w = tg.Variable(0), tg.Variable(8.0)

    @tg.function
    def halve(count):
        while step < count:
            w.assign(w / 2.0)
            step.assign_add(1)
            if w < 1.0:
                break

    halve(tg.constant(2))
    assert (int(step), float(w)) == (2, 2.0)
    halve(tg.constant(100))
    assert (int(step), float(w)) == (4, 0.5)


def test_a_list_of_what_python_knows_may_grow():
    """As any effect of Python's, this happens while the function is traced."""
    log = []

    @tg.function
    def f(x):
        if x > 0.0:
            log.append("positive")
        own = []
        for _ in tg.range(3):
            inner = [x]
            inner.append(x)
            x = inner[0] + inner[1]
        own.append(x)
        return own

    assert f(tg.constant(1.0))[0].numpy() == 8.0
    assert log == ["positive"]


def test_tensors_may_be_keys_where_they_are_the_same_in_every_step():
    def f(x, n):
        found = {n: x}
        for i in tg.range(3):
            found[n] = found[n] + x
            own = {i: x}
            x = own[i] * 2.0
        return found[n] + x

    assert float(tg.function(f)(tg.constant(1.0), tg.constant(2))) == 16.0


def operands(x, n, found):
    return x > 0.0 and n, x > 0.0 or 7, n and x > 0.0, n or found, found and n and 2.5


def test_and_or_of_a_bool_and_a_number_are_equal_to_those_of_python():
    f = tg.function(operands)
    for x, n, found in itertools.product((1.0, -1.0), (0, 2), (True, False)):
        given = tg.constant(x), tg.constant(n), tg.constant(found)
        assert [float(y) for y in f(*given)] == [*operands(x, n, found)]
    # Not all integers are numbers of float32: whether one of them holds.
    assert tg.function(lambda n, y: n or y)(tg.constant(0), tg.constant(0.5)).dtype == tg.bool


def membership(x, xs):
    count = 0
    while x not in {3, 7}:
        x, count = x + 1, count + 1
    if x in [7, 8]:
        count = -count
    if all(y > 2 for y in xs):
        count += 100
    if any(y > 2 for y in xs) and count in {-4: "four", 100: "hundred"}:
        count += 1000
    return count, any(y is None for y in (x, None)), "k" in {"k": x}


def test_in_any_and_all_of_tensors():
    f = tg.function(membership)
    for x in (0, 3, 6):
        for xs in ((1, 2), (1, 5), (4, 5)):
            count, *known = f(tg.constant(x), [*map(tg.constant, xs)])
            assert [int(count), *map(bool, known)] == [*membership(x, xs)]
    one, other = tg.function(lambda x: (x in (1, 2), x not in (1, 2)))(tg.constant(2))
    assert bool(one) and not bool(other)


def test_what_python_decides_in_converted_code_says_so():
    def kept(xs):
        return [x for x in tg.unstack(xs) if x > 2.0]

    with pytest.raises(TraceError, match="but the `if` of a comprehension"):
        tg.function(kept)(tg.constant([1.0, 3.0]))


def by_append(x, n):
    found, counts = [], []
    for row in x:
        found.append(row * 2.0)
    for i in range(n):
        counts.append(i)
    return tg.stack(found), tg.stack(counts)


def by_map(x, n):
    return tg.map_fn(lambda row: row * 2.0, x), tg.map_fn(lambda i: i, tg.range(n))


OPEN = (tg.TensorSpec([None]), tg.TensorSpec([], tg.int32))


def test_what_a_comprehension_cannot_do_says_what_to_write():
    """Of each kind one; what the messages say instead works."""
    a_for, by_index = (
        r"`for` statement, which becomes.*tg\.map_fn\(lambda row",
        r"tg\.map_fn\(lambda i",
    )
    refused = [
        (lambda x, n: [row * 2.0 for row in x if n is not None], a_for),
        (lambda x, n: {id(row): row for row in x if n is not None}, a_for),
        (lambda x, n: sum(row + k for k in (1.0, 2.0) for row in x if n is not None), a_for),
        (lambda x, n: [i for i in range(n) if n is not None], by_index),
    ]
    for function, told in refused:
        with pytest.raises(TraceError, match=told):
            tg.function(function, input_signature=OPEN)(tg.constant([1.0, 3.0]), tg.constant(2))
    for function in (by_append, by_map):
        rows, counts = tg.function(function, input_signature=OPEN)(
            tg.constant([1.0, 3.0]), tg.constant(2)
        )
        assert [*rows.numpy()] == [2.0, 6.0] and [*counts.numpy()] == [0, 1]


def caught_in_place(x):
    try:
        if x > 1.0:  # here
            raise ValueError("large")
    except ValueError:
        x = -x
    return x


def caught_around_a_loop(x):
    table = {}
    try:
        while x > 0.0:  # here
            x = table["x"]
    except KeyError:
        x = -x
    return x


@tg.function
def refusing_large(x):
    if x > 1.0:  # here
        raise ValueError("large")
    return x


def caught_around_a_call(x):
    try:
        return refusing_large(x)
    except ValueError:
        return -x


def raise_large(*_):
    raise ValueError("large")


def caught_around_cond(x):
    try:
        return tg.cond(x > 1.0, raise_large, lambda: x)  # here
    except ValueError:
        return -x


def caught_around_switch_case(x):
    try:
        return tg.switch_case(tg.cast(x, tg.int32), {0: lambda: x, 2: raise_large})  # here
    except ValueError:
        return -x


def caught_around_while_loop(x):
    try:
        return tg.while_loop(lambda y: y > 1.0, raise_large, [x])[0]  # here
    except ValueError:
        return -x


def caught_inside(x):
    if x > 1.0:
        try:
            raise ValueError("large")
        except ValueError:
            x = -x
    return x


def test_an_exception_of_a_signal_handler_leaves_cond_at_once():
    """Only exceptions that a branch raises itself let Python decide which branch to call."""
    calls = []

    def interrupted():
        calls.append(1)
        signal.raise_signal(signal.SIGUSR1)
        return 1.0

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, late)
    try:
        with pytest.raises(TimeoutError):
            tg.cond(tg.constant(False), interrupted, lambda: 2.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [1]


def test_an_exception_of_a_traced_branch_must_not_be_caught_behind_it():
    """It is raised whatever value the tensor has, so the result would always be the handler's."""
    for function, told in (
        (caught_in_place, r"a ValueError that leaves a branch of the `if`"),
        (caught_around_a_loop, r"a KeyError that leaves the loop"),
        (caught_around_a_call, r"a ValueError that leaves a branch of the `if`"),
        (caught_around_cond, r"a ValueError that leaves a branch of tg\.cond"),
        (caught_around_switch_case, r"a ValueError that leaves a branch of tg\.switch_case"),
        (caught_around_while_loop, r"a ValueError that leaves a tg\.while_loop"),
    ):
        f = tg.function(function)
        for x in (0.5, 2.0):
            with pytest.raises(TraceError, match=told) as error:
                f(tg.constant(x))
            called = refusing_large.python_function
            place = called if function is caught_around_a_call else function
            assert here(place, "# here") in str(error.value)
    f = tg.function(caught_inside)
    assert [float(f(tg.constant(x))) for x in (0.5, 2.0)] == [0.5, -2.0]


@pytest.mark.parametrize("function", [caught_around_cond, caught_around_switch_case])
def test_at_top_level_an_exception_is_that_of_the_branch_that_is_taken(function):
    assert [float(function(tg.constant(x))) for x in (0.5, 2.0)] == [0.5, -2.0]


def refused_and_caught(x):
    xs = [x]
    try:
        if x > 1.0:  # here
            xs = [*xs, x]
    except ValueError:
        xs = [x, x, x]
    return xs[-1] * float(len(xs))


def refused_in_a_loop_and_caught(x):
    y = x
    try:
        while x > 0.0:  # here
            x, y = x - 1.0, tg.stack([y, y])
    except ValueError:
        x = -x
    return x


def refused_in_an_expression_and_caught(x):
    try:
        y = tg.reshape(x, [3]) if x > 1.0 else x  # here
    except ValueError:
        y = -x
    return y


@tg.function
def refused(x):
    xs = [x]
    if x > 1.0:  # here
        xs = [*xs, x]
    return xs[-1]


def refused_in_a_call_and_caught(x):
    try:
        return refused(x)
    except ValueError:
        return -x


def refused_before_a_loop_is_traced_again(x):
    xs, y = [x], tg.ones([1])
    try:
        if x > 1.0:  # here
            xs = [*xs, x]
    except ValueError:
        xs = [x, x, x]
    for row in tg.ones([2]):
        tg.autograph.experimental.set_loop_options(shape_invariants=[(y, tg.TensorShape([None]))])
        y = tg.concat([y, [row]], 0)
    return y * float(len(xs))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (refused_in_a_call_and_caught, "'xs' is a list"),
        (refused_before_a_loop_is_traced_again, "'xs' is a list"),
        (refused_and_caught, "'xs' is a list"),
        (refused_in_a_loop_and_caught, "'y' is a tensor"),
        (refused_in_an_expression_and_caught, "1 element"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_refuses_a_statement_is_raised_although_it_is_caught(function, words):
    """Python would not raise it, or not for each tensor, so the handler would give wrong values."""
    with pytest.raises((SignatureError, ShapeError), match=words) as error:
        tg.function(function)(tg.constant(2.0))
    place = refused.python_function if function is refused_in_a_call_and_caught else function
    assert here(place, "# here") in str(error.value)


def test_a_tensor_is_no_key_of_a_result():
    def keyed(x):
        return {float(row): row for row in x if x is not None}

    with pytest.raises(TraceError, match="keyed returned a dict with a tensor as a key"):
        tg.function(keyed)(tg.constant([1.0, 3.0]))


def test_state_is_put_back_after_an_error():
    class Thing:
        x = 1.0

    thing = Thing()

    @tg.function
    def f(x):
        if x > 0.0:
            thing.x = x
            raise KeyError("mine")
        return x

    with pytest.raises(KeyError, match="mine"):
        f(tg.constant(2.0))
    assert thing.x == 1.0


def test_a_name_that_only_a_loop_sets_needs_an_iteration():
    @tg.function
    def f(x):
        while x > 0.0:
            y = x * 2.0
            x = x - 1.0
        return y

    assert f(tg.constant(2.0)).numpy() == 2.0
    with pytest.raises(tg.errors.InvalidArgumentError, match="'y' is set by a loop that ran 0"):
        f(tg.constant(-1.0))


def for_else(x):
    for _ in range(2):
        x = x + 1.0
    else:
        x = x * 2.0
    return x if x > 0.0 else -x  # here


def while_else(x):
    while x > 0.0:  # here
        x = x - 1.0
    else:
        x = x * 2.0
    return x


def late_walrus(x):
    is_large = x.shape == () and (y := x + 1.0) > 0.0
    return y if is_large else x  # here


def of_alternatives(x):
    match (x, 1):
        case [1, a] | [a, 1] if x > 0.0:  # here
            return a
    return x


def generator(x):
    yield x if x > 0.0 else -x  # here


UNCONVERTED = {
    for_else: "a `for ... else` in line {}, which is not converted: set a flag where",
    while_else: "a `while ... else` in line {}, which is not converted: set a flag where",
    late_walrus: "a `:=` that is not evaluated first in its statement in line {}, which is not "
    "converted: assign in a statement of its own",
    of_alternatives: "a guard after alternatives in line {}, which is not converted: compare with",
}


@pytest.mark.parametrize("body", UNCONVERTED, ids=lambda f: f.__name__)
def test_what_cannot_be_converted_runs_as_it_is_and_says_so(body):
    with pytest.raises(tg.errors.TraceError) as caught:
        tg.function(body)(tg.constant(1.0))
    assert "a Python bool" in str(caught.value) and here(body, "# here") in str(caught.value)
    assert f"{body.__name__} runs as plain Python, because " in str(caught.value)
    assert isinstance(caught.value, NotImplementedError)  # as TensorFlow raises it
    lines, start = inspect.getsourcelines(body)
    first = next(k for k, x in enumerate(lines) if re.search(r"for |while |:=|case|try:", x))
    assert UNCONVERTED[body].format(start + first) in str(caught.value)
    with pytest.raises(tg.errors.SignatureError, match="cannot be converted"):
        tg.autograph.to_code(body)


def test_a_generator_runs_as_it_is():
    with pytest.raises(
        tg.errors.TraceError, match="it is a generator or a coroutine: return a list"
    ):
        tg.function(lambda x: [*generator(x)])(tg.constant(1.0))


class Scaled:
    __factor = 2.0

    def by_a_context_manager(self, x, sizes):
        @contextlib.contextmanager
        def entered(y):
            nonlocal depth
            depth += 1
            try:
                yield y * self.__factor
            finally:
                depth += 10

        depth, total = 0, 0.0 * x
        for size in sizes:
            with entered(x * float(size)) as y:
                if y > 2.0:
                    total = total + y
                else:
                    total = total - y
        return total, depth

    def by_a_generator(self, x, sizes):
        if x > 10.0:
            return x, 0
        else:
            start = x * 0.5

        def powers(count):
            power = start
            for _ in range(count):
                yield power
                power = power * self.__factor

        total, steps = 0.0 * x, 0
        for power in powers(len(sizes)):
            if power > 1.0:
                total, steps = total + power, steps + 1
        return total, steps


@pytest.mark.parametrize("name", ["by_a_context_manager", "by_a_generator"])
def test_a_generator_in_a_function_stays_as_it_is_and_the_rest_is_converted(name):
    method = getattr(Scaled(), name)
    f = tg.function(lambda x: method(x, [1, 2, 3]))
    for x in (0.75, 1.5, 12.0):
        found = [*map(float, f(tg.constant(x, tg.float64)))]
        assert found == pytest.approx([*map(float, method(x, [1, 2, 3]))])
    assert "yield" in tg.autograph.to_code(method)


def beside_for_else(x):
    count = 0.0

    def found(y):
        nonlocal count
        for k in range(3):
            if k > 5:
                break
        else:
            count = count + y
        return y * k

    while x > 1.0:
        x = found(x) * 0.25
    return x, count


def beside_a_late_assignment(x):
    def sums(y):
        return [y, (z := y + 1.0), y * z]

    return sum(sums(x)) if x > 1.0 else x


def deeper_inside(x):
    def outer(y):
        def inner(z):
            for _ in range(2):
                z = z + 1.0
            else:
                return z

        def items(z):
            yield z

        if y > 1.0:
            y = inner(y)
        return y + sum(items(y))

    return outer(x)


@pytest.mark.parametrize("program", [beside_for_else, beside_a_late_assignment, deeper_inside])
def test_an_inner_function_that_cannot_be_converted_stays_as_it_is(program):
    f = tg.function(program)
    for x in (0.5, 3.0):
        found = tg.nest.flatten(f(tg.constant(x, tg.float64)))
        assert [*map(float, found)] == pytest.approx(tg.nest.flatten(program(x)))


def test_an_inner_function_that_stays_as_it_is_says_why():
    def f(x):
        def chosen(y):
            for k in range(3):
                if y > k:
                    break
            else:
                y = y * 2.0
            return y

        return chosen(x) if x > 1.0 else x

    with pytest.raises(tg.errors.TraceError, match="chosen runs as plain Python, because it has a"):
        tg.function(f)(tg.constant(3.0))


def test_what_is_inside_of_an_unconverted_function_says_so():
    def f(x):
        def chosen():
            for k in range(3):
                if x > k:
                    yield k

        return sum(chosen())

    def g(n):
        for k in range(n):
            if k > 2:
                break
        else:
            k = 0
        return k

    def h(n):
        for k in tg.range(n):
            n = n + k
        else:
            n = n * 2
        return n

    def chosen(x):
        return x if x > 0 else -x

    def caller(x):
        for _ in range(2):
            x = chosen(x)
        else:
            x = x + 1
        return x

    for function, words in (
        (
            caller,
            "a Python bool.*fix: caller runs as plain Python, because it has a `for ... else`",
        ),
        (
            h,
            "not known while tracing.*fix: h runs as plain Python, because it has a `for ... else`",
        ),
        (f, "chosen runs as plain Python, because it is a generator"),
        (g, "g runs as plain Python, because it has a `for ... else` in line"),
    ):
        with pytest.raises(tg.errors.TraceError, match=f"(?s){words}"):
            tg.function(function)(tg.constant(1))


class WithProperty:
    def __init__(self, x):
        self.x = x

    @property
    def size(self):
        return 1.0 if self.x > 0.0 else 2.0

    def __add__(self, other):
        return self if self.x > other else WithProperty(other)

    @tg.autograph.do_not_convert
    def excluded(self):
        return 1.0 if self.x > 0.0 else 2.0


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("size", lambda x: WithProperty(x).size),
        ("__add__", lambda x: (WithProperty(x) + 1.0).x),
        ("excluded", lambda x: WithProperty(x).excluded()),
    ],
)
def test_code_that_converted_code_does_not_call_by_name_says_so(name, read):
    """The message named neither the reason nor what to do other than `tg.where`."""
    with pytest.raises(tg.errors.TraceError, match=f"fix: {name} runs as plain Python, like prop"):
        tg.function(read)(tg.constant(1.0))


def test_a_raise_in_a_branch_says_that_both_are_traced():
    @tg.function
    def f(x):
        if x > 5.0:  # here
            raise ValueError("too large")
        return x

    with pytest.raises(ValueError, match="too large") as caught:
        f(tg.constant(1.0))
    (note,) = caught.value.__notes__
    place = here(f.python_function, "# here").rpartition("/")[2]
    assert f"`if` at {place} are traced" in note and "use `assert`" in note

    @tg.function
    def g(x):
        return int("one") if x > 5.0 else 1

    with pytest.raises(ValueError, match="invalid literal") as caught:
        g(tg.constant(1.0))
    assert not hasattr(caught.value, "__notes__")


def halvings(x):
    n, kept = 0, {"last": x}

    def count():
        nonlocal n
        n += 1

    def note(x):
        count()
        kept["last"] = x

    step, twice = note, lambda x: note(2.0 * x)
    noted = functools.partial(step)
    while x > 1.0:
        x = x / 2.0
        noted(x)
    if n > 2:
        twice(x)
    return n, kept["last"]


def taken_branches(x):
    total, thing = 0.0, types.SimpleNamespace(calls=0)

    def add(value):
        nonlocal total
        total += value * x
        thing.calls += 1

    for k in tg.range(4):
        if x > tg.cast(k, tg.float32):
            add(1.0)
        else:
            add(10.0)
    if x > 2.0:
        add(100.0)
    return total, thing.calls


def calls_in_a_test(x):
    n = 0

    def goes_on():
        nonlocal n
        n += 1
        return tg.cast(n, tg.float32) < x

    while goes_on():
        if x > 100.0:
            continue
    return n, x


@pytest.mark.parametrize("body", [halvings, taken_branches, calls_in_a_test])
def test_what_inner_functions_set_is_state_of_the_statement_that_calls_them(body):
    """The names, attributes and items; they were set once, while tracing, without a word."""
    f = tg.function(body)
    for x in (0.5, 1.5, 20.0):
        wanted = [np.float32(y) for y in body(tg.constant(x))]
        assert [np.float32(y) for y in f(tg.constant(x))] == wanted


def test_what_an_inner_function_sets_in_a_loop_has_a_derivative():
    f = tg.function(lambda x: taken_branches(x)[0])
    assert [tg.grad(f)(tg.constant(x)).numpy() for x in (0.5, 2.5)] == [31.0, 113.0]


def counts_in_an_expression(x):
    n = 0

    def count():
        nonlocal n
        n += 1
        return n > 5

    if x > 0.0 and count():
        x = -x
    return n, x


def test_a_call_in_an_expression_that_sets_a_name_is_refused():
    words = "a function called in the value of `and` sets 'n'"
    with pytest.raises(tg.errors.SignatureError, match=words) as caught:
        tg.function(counts_in_an_expression)(tg.constant(1.0))
    assert here(counts_in_an_expression, "if x") in str(caught.value)
    assert tg.function(counts_in_an_expression)(2.0)[0] == 1  # Python decides


class Clock:
    def __init__(self):
        self.inner = types.SimpleNamespace(ticks=0)
        self.seconds = 0.0
        self.last = None

    def tick(self):
        self.inner.ticks += 1

    def reset(self):
        self.seconds = 1.5

    def note(self, x):
        self.seconds = self.seconds + x
        self.last = x


def ticks_of_a_loop(x):
    clock = Clock()
    while x > 1.0:
        x = x / 2.0
        clock.tick()
    return clock.inner.ticks


def reset_by_a_branch(x):
    clock = Clock()
    if x > 1.0:
        clock.reset()
    return clock.seconds


def sum_in_an_object(xs):
    clock = Clock()
    for x in xs:
        clock.note(x)
    return clock.seconds


def own_number(x):
    clock = Clock()
    for _ in tg.range(3):
        if x > 1.0:
            clock.seconds = 2.0
        clock.inner.ticks += 1
    return clock.seconds + tg.cast(clock.inner.ticks, tg.float32)


def test_what_a_called_method_changes_is_state():
    assert tg.function(ticks_of_a_loop)(tg.constant(8.0)).numpy() == 3
    assert tg.function(reset_by_a_branch)(tg.constant(8.0)).numpy() == 1.5
    assert tg.function(reset_by_a_branch)(tg.constant(0.5)).numpy() == 0.0
    assert tg.function(sum_in_an_object)(tg.constant([8.0, 2.0])).numpy() == 10.0
    assert tg.function(own_number)(tg.constant(8.0)).numpy() == 5.0


def test_code_without_source_runs_as_it_is_and_says_so():
    names: dict[str, Any] = {"tg": tg}
    exec("def f(x, n):\n    if n > 1: return x\n    if x > 0: return x * 2.0\n    return -x", names)
    f = tg.function(names["f"])
    assert f(tg.constant(2.0), 2).numpy() == 2.0
    with pytest.raises(tg.errors.TraceError, match="because it has no source to convert"):
        f(tg.constant(2.0), 1)


def test_code_of_a_notebook_is_converted():
    text = "def cell(x):\n    return x if x > 0 else -x\n"
    linecache.cache["<ipython-input-1>"] = (len(text), None, text.splitlines(True), "<ipython>")
    names: dict[str, Any] = {}
    exec(compile(text, "<ipython-input-1>", "exec"), names)
    assert tg.function(names["cell"])(tg.constant(-2.0)).numpy() == 2.0


# ---------------------------------------------------------------- the interface


def test_autograph_false():
    with pytest.raises(tg.errors.TraceError, match="a Python bool") as caught:
        tg.function(helper, autograph=False)(tg.constant(1.0))
    assert "runs as plain Python" not in str(caught.value)


def test_do_not_convert():
    for decorate in (tg.autograph.do_not_convert, tg.autograph.experimental.do_not_convert()):
        f = tg.function(lambda x, decorate=decorate: decorate(helper)(x))
        with pytest.raises(tg.errors.TraceError, match="a Python bool"):
            f(tg.constant(1.0))
        assert decorate(helper)(-2.0) == 2.0 and decorate(helper).__name__ == "helper"


def test_to_code_is_python_with_hooks():
    for function in (if_elif_else, tg.function(if_elif_else), Counter().add, lambda x: not x):
        text = tg.autograph.to_code(function)
        ast.parse(text)
        assert "ag__." in text
    with pytest.raises(tg.errors.SignatureError, match="no Python function"):
        tg.autograph.to_code(len)


def test_libraries_are_not_converted():
    for function in (np.mean, inspect.getsource, tg.matmul, pytest.approx, functools.reduce):
        assert conversion.converted(function) is function
    assert conversion.converted(helper) is not helper


def test_at_top_level_nothing_is_converted():
    f = conversion.converted(helper)
    assert f(tg.constant(-2.0)).numpy() == 2.0 and helper(tg.constant(2.0)).numpy() == 2.0
    assert conversion.converted(f) is f


# ---------------------------------------------------------------- the user's lines


def test_nodes_have_the_lines_of_the_user():
    f = tg.function(if_elif_else)
    f(tg.constant(1.0))
    (node,) = [node for node in nodes_of(f) if isinstance(node.op, Cond)]
    assert f"{node.source.file}:{node.source.line}" == here(if_elif_else, "if x > 10.0")
    line = here(if_elif_else, "y = x * 2.0").rpartition(":")[2]
    assert f"at test_autograph.py:{line}" in str(f.traces[0].graph)


def raising(x):
    if x > 0.0:
        for i in range(3):
            if i == 2:
                raise LookupError(i)  # here
    return x


def test_tracebacks_have_the_frames_of_the_user():
    with pytest.raises(LookupError) as caught:
        tg.function(lambda x: raising(x))(tg.constant(1.0))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    assert {frame.name for frame in frames[2:]} == {"raising"}
    last = frames[-1]
    assert f"{last.filename}:{last.lineno}" == here(raising, "# here")
    assert [x.line for x in frames[-2:]] == ["if i == 2:", "raise LookupError(i)  # here"]
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert [line for line in lines if not line.strip()] == []


def test_a_debugger_stops_at_the_lines_of_the_user():
    seen = []

    class Watching(pdb.Pdb):
        user_call = user_return = user_exception = lambda self, *args: None

        def user_line(self, frame):
            if frame.f_code.co_filename == self.canonic(__file__):
                seen.append((frame.f_code.co_name, frame.f_lineno))

    debugger = Watching(nosigint=True, readrc=False)
    f = tg.function(if_elif_else)
    debugger.runcall(f, tg.constant(1.0))
    first = if_elif_else.__code__.co_firstlineno
    own = [line - first for name, line in seen if name == "if_elif_else"]
    assert set(own) >= {1, 2, 3, 4, 6, 7} and set(own) <= set(range(8))


def test_nothing_is_written_and_no_module_is_made(tmp_path):
    code = (
        "import sys, tempfile, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('cell', {str(tmp_path / 'cell.py')!r})\n"
        "cell = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(cell)\n"
        "print(cell.f(cell.tg.constant(-2.0)).numpy(), 'malt' in sys.modules)\n"
        "print([name for name in sys.modules if 'autograph_generated' in name])\n"
    )
    (tmp_path / "cell.py").write_text(
        "import tracegraph as tg\n@tg.function\ndef f(x):\n    return x if x > 0 else -x\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.stdout.split("\n")[:2], done.stderr) == (["2.0 True", "[]"], "")
    assert {path.name for path in tmp_path.iterdir()} <= {"cell.py", "__pycache__"}


def test_functions_without_branches_do_not_load_what_converts():
    code = (
        "import sys, tracegraph as tg\n"
        "v = tg.Variable(2.0)\n"
        "f = tg.function(lambda x: tg.nn.relu(x) * v + x.shape[0])\n"
        "print(f(tg.ones([3])).numpy().tolist(), 'malt' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[5.0, 5.0, 5.0] False", done.stderr


def test_the_work_of_a_conversion_grows_with_the_statements_and_not_with_their_paths(monkeypatch):
    from malt.pyct.static_analysis import reaching_definitions

    visits, visited = [0], reaching_definitions.Analyzer.visit_node

    def counted(analyzer, node):
        visits[-1] += 1
        return visited(analyzer, node)

    monkeypatch.setattr(reaching_definitions.Analyzer, "visit_node", counted)
    for count in (6, 12):  # malt's own walk took 64 times as many visits for the second
        choice = "    if x > 0.0:\n        x = x - 1.0\n    else:\n        x = x + 3.0\n"
        text = f"def chosen(x):\n{count * choice}    return x\n"
        file, names = f"{count} choices.py", {}
        monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(True), file))
        exec(compile(text, file, "exec"), names)
        found = tg.function(names["chosen"])(tg.constant(2.5))
        assert float(found) == functools.reduce(
            lambda x, _: x - 1 if x > 0 else x + 3, range(count), 2.5
        )
        visits.append(0)
    assert visits[0] < visits[1] < 3 * visits[0]


def test_how_long_conversion_takes(capsys):
    text = inspect.getsource(while_with_break_and_continue)
    names: dict[str, Any] = {}
    linecache.cache["timed.py"] = (len(text), None, text.splitlines(True), "timed.py")
    exec(compile(text, "timed.py", "exec"), names)
    begin = time.perf_counter()
    converted = conversion.converted(names["while_with_break_and_continue"])
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    again = conversion.converted(names["while_with_break_and_continue"])
    second = time.perf_counter() - begin
    assert converted.__code__ is again.__code__
    with capsys.disabled():
        print(f" {first * 1e3:.1f} ms, then {second * 1e6:.0f} µs ", end="")


# Assignments in expressions.


def walrus_if(x):
    if (y := x * 2.0) > 3.0:
        return y
    elif (z := y + x) > 2.0:
        return z
    return -y


def walrus_while(x):
    while (y := x * 2.0) < 30.0:
        x = x + y
    return x, y


def walrus_while_with_continue(x):
    total = 0.0
    while (y := x * 2.0) < 60.0:
        x = x + 3.0
        if x > 10.0 and x < 20.0:
            continue
        total = total + y
    return x, y, total


def walrus_while_with_break(x):
    while (y := x - 1.0) > 0.0:
        x = y
        if x < 2.0:
            break
    return x, y


def walrus_after_and(x):
    y = z = -x
    if x.shape == () and (y := x * 2.0) > 3.0 and (z := y + 1.0) < 50.0:
        return y + z
    elif x is None or (z := x - 1.0) > 0.0 or z < -3.0:
        return z
    return y - z


def walrus_after_a_tensor(x):
    """The names have values only where a tensor has decided that their operands are evaluated."""
    if x > 0.0 and (y := x * 2.0) > 1.5 and x < 3.0 and (z := y + 1.0) > 2.0:
        return y * z
    elif x < -5.0 or (w := x - 1.0) < -2.0:
        return x
    return w * 3.0


def walrus_after_or_with_break(x):
    total = 0.0
    for i in tg.range(5):
        if total > 10.0 or (y := x * tg.cast(i, tg.float32)) < -0.5:
            break
        total += y + 1.0
    while total < 50.0 and (z := total * 1.5) < 20.0:
        total += z
    return total


def walrus_after_and_in_a_while(x):
    y, n = x, 0
    while n < 9 and (y := y * 1.5) < 50.0:
        n += 1
        if n == 2:
            continue
        x = x + y
    return x, y, n


def walrus_in_calls(x):
    z = tg.exp(y := x * 0.5) + y
    if (a := tg.sin(z)) < (b := tg.cos(z)):
        z = a - b
    return z, a, b


def walrus_in_a_walrus(x):
    if (y := (x := x + 1.0) * 2.0) + x > 5.0:
        return y - x
    return x


def walrus_in_a_ternary(x):
    return x if x < (y := x * x) else y


@pytest.mark.parametrize(
    "function",
    [
        walrus_if,
        walrus_while,
        walrus_while_with_continue,
        walrus_while_with_break,
        walrus_after_and,
        walrus_after_a_tensor,
        walrus_after_or_with_break,
        walrus_after_and_in_a_while,
        walrus_in_calls,
        walrus_in_a_walrus,
        walrus_in_a_ternary,
    ],
    ids=lambda f: f.__name__,
)
def test_assignments_in_expressions(function):
    converted = tg.function(function)
    for start in (-3.0, 0.5, 0.8, 1.0, 2.0, 40.0):
        if function is walrus_while and start < 0.0:
            continue  # it would never end
        found = converted(tg.constant(start))
        wanted = function(tg.constant(start))  # Python's own, at top level
        for ours, theirs in zip(tg.nest.flatten(found), tg.nest.flatten(wanted), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def reads_before(x):
    return 1.0 if x + (x := x * 2.0) > 3.0 else 0.0


def computes_before(x):
    if float(1) + (y := x) > 3.0:
        return y
    return x


def in_a_comprehension(x):
    ys = [(y := x * k) for k in (1.0, 2.0)]
    return y if x > 0.0 else ys[0]


@pytest.mark.parametrize(
    "function", [reads_before, computes_before, in_a_comprehension], ids=lambda f: f.__name__
)
def test_an_assignment_that_cannot_be_made_before_is_refused(function):
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(tg.errors.TraceError, match=f"a `:=` .* in line {line}, which is not"):
        tg.function(function)(tg.constant(1.0))


# Names in dumps.


def graph_of(function, *specs):
    return tg.function(function).get_concrete_function(*specs).graph


def bodies_of(graph, op):
    """The names of the inputs of the graphs that the nodes of an op run."""
    nodes = [node for inner in graph.graphs() for node in inner.nodes if node.op.name == op]
    return [[x.name for x in region.graph.inputs] for node in nodes for region in node.op.regions]


def counted_pairs(x, n):
    total, pair = x, (x, x * 2.0)
    for i in tg.range(n):
        total = total + tg.cast(i, tg.float32)
        pair = (pair[1], pair[0] + total)
    return total, pair


def halved_until(x, limit):
    steps = 0
    while x > limit:
        x, steps = x / 2.0, steps + 1
    return steps


def best_of_rows(xs, weights):
    best = 0.0
    for row, weight in zip(xs, weights):
        if tg.reduce_sum(row) * weight > best:
            best = tg.reduce_sum(row) * weight
    return best


def every_second(xs):
    total = 0.0
    for at, row in enumerate(xs):
        if total > 100.0:
            break
        total = total + tg.reduce_sum(row) * tg.cast(at % 2, tg.float32)
    return total


def test_states_of_a_for_have_the_names_of_the_user():
    graph = graph_of(counted_pairs, tg.TensorSpec([]), tg.TensorSpec([], tg.int32))
    for names in bodies_of(graph, "while"):
        assert names[-4:] == ["i", "pair_0", "pair_1", "total"]


def test_states_of_a_while_have_the_names_of_the_user():
    graph = graph_of(halved_until, tg.TensorSpec([]), tg.TensorSpec([]))
    assert "graph @body(%limit: f32[], %steps: i32[], %x: f32[])" in graph.as_text()
    assert bodies_of(graph, "while") == [["limit", "steps", "x"]] * 2


def test_rows_and_what_branches_take_have_the_names_of_the_user():
    graph = graph_of(best_of_rows, tg.TensorSpec([4, 2]), tg.TensorSpec([4]))
    assert bodies_of(graph, "scan") == [["best", "row", "weight"]]
    assert bodies_of(graph, "cond") == [["row", "weight", "best"]] * 2


def test_what_counts_without_a_name_is_a_counter():
    graph = graph_of(every_second, tg.TensorSpec([4, 2]))
    names = bodies_of(graph, "while")[0]
    assert {"counter_0", "counter_1", "break_", "total"} <= set(names)


def test_attributes_and_items_of_a_state_are_paths():
    class Sums(tg.Module):
        def __init__(self):
            super().__init__()
            self.total = tg.constant(0.0)
            self.parts = {"a": tg.constant(1.0), "b": [tg.constant(2.0)]}

        def add(self, n):
            for _ in tg.range(n):
                self.total = self.total + 1.0
                self.parts["a"] = self.parts["a"] * 2.0

    graph = graph_of(Sums().add, tg.TensorSpec([], tg.int32))
    for names in bodies_of(graph, "while"):
        assert {"total", "parts.a"} <= set(names)


def test_lambdas_that_return_constants():
    """Python 3.12 does not say where they stand in their line: none is taken for another."""
    x = tg.constant(2.0)
    choose = tg.function(lambda x, low: tg.cond(x > low, lambda: 1.0, lambda: 2.0))
    several = [lambda: 20, lambda: 30, lambda: 40]
    chosen = tg.function(lambda k: tg.switch_case(k, several))
    assert [float(choose(x, low)) for low in (1.0, 3.0)] == [1.0, 2.0]
    assert [int(chosen(tg.constant(k))) for k in range(3)] == [20, 30, 40]


def test_a_lambda_that_returns_a_lambda_beside_statements():
    """malt has no control flow graph of the inner one."""

    @tg.function
    def f(x):
        k = 1.0
        add = lambda a: lambda b: lambda c: (a + b if c > 0.0 else a - b) * k  # noqa: E731
        while k < 3.0:
            x = add(x)(k)(x)
            k = k + 1.0
        return x

    assert [float(f(tg.constant(x))) for x in (2.0, -2.0)] == [10.0, -10.0]


def of_scalars(x, n):
    return (
        int(x),
        int(n),
        int(x > 0.0),
        float(n),
        float(x),
        bool(n),
        max(x, 1.0, n / 4),
        max(y * n for y in (x, -x)),
        min([x, n]),
    )


def of_vectors(x):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total / float(len(x)), sum(x), sum(x, 2.5), max(x), min(x), len(x), tg.zeros([len(x)])


def of_lists(x, n):
    rows = []
    for i in tg.range(n):
        rows.append(x * float(i))
    return len(rows), sum(rows), max(rows), min(rows)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (of_scalars, (np.float64(-2.7), np.float64(3.0))),
        (of_scalars, (np.float64(5.5), np.float64(0.0))),
        (of_vectors, (np.float64([2.0, -1.0, 4.0]),)),
        (of_lists, (np.float64(2.0), np.int32(4))),
    ],
)
def test_functions_of_python_compute_what_python_computes(function, arguments):
    opened = [tg.TensorSpec([None] * x.ndim, x.dtype) for x in arguments]
    found = tg.function(function, input_signature=opened)(*arguments)
    plain = [x.tolist() if x.ndim else x for x in arguments]
    with_numpy = {"tg": types.SimpleNamespace(range=range, zeros=np.zeros)}
    wanted = types.FunctionType(function.__code__, with_numpy)(*plain)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other)


def test_dtypes_of_numbers_that_a_graph_computes():
    """As TensorFlow converts them, but that nothing wide is narrowed."""
    wide, half, bits = (tg.constant(2, t) for t in (tg.int64, tg.float16, tg.uint8))
    f = tg.function(lambda x: (int(x), float(x)))
    names = [[y.dtype.name for y in f(x)] for x in (wide, half, bits, tg.constant(2.0, tg.float64))]
    assert names == [
        *(["int64", "float32"], ["int32", "float32"], ["uint8", "float32"], ["int32", "float64"])
    ]
    assert tg.function(lambda: [int("17", base=8), float("2.5"), len("abc"), sum([1, 2])])() == [
        *(15, 2.5, 3, 3)
    ]
    f = tg.function(lambda x: [len([x, x]), bool([x]), max([x]), sum([x, x], 1.0)])
    assert f(tg.constant(0.0)) == [2, True, 0.0, 1.0]


def learning(x, n):
    rate, time = 0.1, 0.0
    for _ in tg.range(n) if isinstance(n, tg.Tensor) else range(n):
        x = x - rate * x
        time = time + rate
        if x < 0.7:
            rate = rate * 0.3
        else:
            rate = rate * 1.1
    return x, time


def shrinking(x, n):
    rate = 0.1
    while rate > 1e-3 and n > 0:
        x, rate = x - rate * x, rate / 3
    return x, rate


@pytest.mark.parametrize("function", [learning, shrinking])
def test_a_number_that_meets_float64_in_a_loop_is_as_exact(function):
    """A float of Python's is one of 64 bits; 0.1 is off by 1.5e-8 of it in float32."""
    f = tg.function(function)
    found = f(tg.constant(1.0, tg.float64), tg.constant(9, tg.int32))
    np.testing.assert_allclose([float(y) for y in found], function(1.0, 9), rtol=1e-15)
    narrow = f(tg.constant(1.0), tg.constant(9, tg.int32))
    assert [y.dtype.name for y in narrow] == ["float32", "float32"], "where it meets no float64"


def test_a_number_that_meets_float32_and_float64_in_a_loop_stays_float32():
    @tg.function
    def f(x, y, n):
        rate = 0.1
        for _ in tg.range(n):
            x, y, rate = x - rate * x, y - rate * y, rate * 0.5
        return x, y, rate

    found = f(tg.constant(1.0, tg.float64), tg.constant(1.0), tg.constant(3))
    assert [y.dtype.name for y in found] == ["float64", "float32", "float32"]
    expected = (1 - np.float64(np.float32(0.1))) * (1 - np.float64(np.float32(0.05)))
    expected *= 1 - np.float64(np.float32(0.025))
    np.testing.assert_allclose(float(found[0]), expected, rtol=1e-15)


def test_a_function_of_python_has_derivatives():
    f = tg.function(lambda x: max(x * x, 4.0) + float(sum(x * tg.ones([3]))))
    assert [float(tg.grad(f)(tg.constant(x))) for x in (1.0, 3.0)] == [3.0, 9.0]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: max(x, 2.0 * x), r"use tg\.maximum\(x, y\)"),
        (lambda x: min([x, x]), r"use tg\.minimum\(x, y\)"),
        (lambda x: max(x[None]), r"use tg\.reduce_max\(x\)"),
        (lambda x: max(x[0], tg.constant(1)), "max: float32 and int32 do not mix"),
        (lambda x: int(x), r"int\(\) needs the value of a tensor f32\[2\]"),
        (lambda x: len(x[0]), r"a scalar f32\[\] has no length"),
        (lambda x: bool(x), r"use tg\.reduce_all"),
    ],
)
def test_functions_of_python_refuse_other_axes_and_dtypes(function, words):
    with pytest.raises((TraceError, DTypeError, ShapeError), match=words) as caught:
        tg.function(function)(tg.constant([1.0, 2.0]))
    assert "test_autograph.py" in str(caught.value)


def test_largest_and_smallest_of_numbers_stay_those_of_python():
    f = tg.function(lambda x: x * max(x.shape[0], 2) + min([3, 5]) + max([x]))
    assert f(tg.constant([1.0])).numpy().tolist() == [6.0]


def loop_with_sizes(x):
    total = 0.0
    for v in x:
        total += tg.reduce_sum(tg.boolean_mask(x, x > v))
    return total


def test_a_size_of_a_step_is_refused_with_its_line():
    words = "a step of a loop computes a size that only the run knows"
    with pytest.raises(TraceError, match=words) as caught:
        tg.function(loop_with_sizes)(tg.constant([1.0, 2.0]))
    assert here(loop_with_sizes, "boolean_mask") in str(caught.value)


def left_early(rows):
    total = 0
    for row in rows:
        if row > 2:
            break
        total = total + row
    return total


def grows_by_a_factor(n):
    i = 0
    while i < n:
        i = i * 10 + 1
    return i


@pytest.mark.parametrize("rows", [[], [1], [1, 2, 3, 4]])
def test_a_loop_that_may_be_left_over_a_tensor_of_no_rows(rows):
    found = tg.function(left_early)(tg.constant(rows, tg.int32))
    assert found.numpy() == left_early(rows)


def test_a_counter_that_is_multiplied():
    assert tg.function(grows_by_a_factor)(tg.constant(30)).numpy() == grows_by_a_factor(30)


def test_a_loop_that_changes_variables_alone():
    v = tg.Variable(0)

    @tg.function
    def count_to(n):
        while v < n:
            tg.autograph.experimental.set_loop_options(parallel_iterations=1, shape_invariants=[])
            v.assign_add(2)
        return v.read_value()

    assert count_to(tg.constant(5)).numpy() == v.numpy() == 6
    assert count_to(tg.constant(5)).numpy() == 6


def test_an_array_that_grows_around_a_loop_of_unknown_length():
    @tg.function
    def rows(n, m):
        found, i = tg.TensorArray(tg.int32, size=0, dynamic_size=True, element_shape=()), 0
        while i < n:
            j = total = 0
            while j < m:
                total = total * 10 + i + j
                j += 1
            found = found.write(i, total)
            i += 1
        return found.stack()

    assert rows(tg.constant(2), tg.constant(3)).numpy().tolist() == [12, 123]
    assert rows(tg.constant(0), tg.constant(3)).shape == (0,)


def test_a_name_that_is_read_before_it_is_set_says_where():
    def counts(n):
        for i in range(n):
            if i == 0:
                a = 1
            else:
                a = a + 1
        return a

    for number in (tg.constant(2), 0):
        with pytest.raises(UnboundLocalError, match="local variable 'a'") as caught:
            tg.function(counts)(number)
        assert isinstance(caught.value, ValueError)  # as TensorFlow raises it for tensors
    with pytest.raises(tg.errors.UnboundError, match="fix: set 'a' before") as caught:
        tg.function(counts)(tg.constant(2))
    assert ":  a = a + 1\n" in str(caught.value)


ANY_LENGTH = tg.TensorShape([None])
set_loop_options = tg.autograph.experimental.set_loop_options


def grows_with_a_range(x):
    for k in tg.range(3):
        set_loop_options(shape_invariants=[(x, ANY_LENGTH)])
        x = tg.concat([x, x[:1] * tg.cast(k, x.dtype)], 0)
    return x


def grows_with_rows(x):
    kept, seen = x[:0], []
    for row in x:
        set_loop_options(shape_invariants=[(kept, ANY_LENGTH)])
        kept = tg.concat([kept, row[None]], 0)
        seen.append(row)
    return kept + tg.stack(seen)


def sizes_by_a_range(x):
    for k in tg.range(1, 4):
        set_loop_options(shape_invariants=[(x, ANY_LENGTH)])
        x = tg.reduce_sum(x) * tg.ones([k])
    return x


def grows_inside_of_a_loop(x):
    total = 0.0 * x[0]
    for k in tg.range(tg.cast(x[0], tg.int32)):
        row = x[:1]
        for _ in tg.range(2):
            set_loop_options(shape_invariants=[(row, ANY_LENGTH)])
            row = tg.concat([row, 2.0 * row], 0)
        total = total + tg.reduce_sum(row) * tg.cast(k, x.dtype)
    return total


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (grows_with_a_range, [3, 1, 0, 3, 6]),
        (grows_with_rows, [6, 2]),
        (sizes_by_a_range, [8, 8, 8]),
        (grows_inside_of_a_loop, 81),
    ],
)
def test_shape_invariants_let_a_loop_of_known_length_change_shapes(body, wanted):
    x = tg.constant([3.0, 1.0])
    assert body(x).numpy().tolist() == wanted
    f = tg.function(body)
    assert f(x).numpy().tolist() == wanted
    assert f(2.0 * x).shape == f(x).shape  # of the same trace


def test_without_shape_invariants_a_loop_keeps_its_shapes():
    @tg.function
    def grows(x):
        for _ in tg.range(3):
            x = tg.concat([x, x], 0)
        return x

    with pytest.raises(tg.errors.ShapeError, match="'x'"):
        grows(tg.constant([1.0]))


def test_a_loop_that_changes_shapes_has_derivatives_and_effects():
    counter = tg.Variable(0)

    @tg.function
    def squares(x):
        for _ in tg.range(2):
            set_loop_options(shape_invariants=[(x, ANY_LENGTH)])
            counter.assign_add(1)
            x = tg.concat([x, x], 0)
        return tg.reduce_sum(x * x)

    x = tg.constant([3.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = squares(x)
    assert tape.gradient(y, x).numpy().tolist() == [24]
    assert counter.numpy() == 2


def test_long_loops_that_change_shapes_are_told():
    @tg.function
    def grows(x):
        for _ in tg.range(300):
            set_loop_options(shape_invariants=[(x, ANY_LENGTH)])
            x = tg.concat([x, x[:1]], 0)
        return x

    with pytest.warns(tg.errors.UnrolledLoopWarning, match="whose steps differ in a shape"):
        assert grows(tg.constant([1.0])).shape == [301]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [0, 3])
def test_a_name_that_stands_for_a_variable_before_a_loop_is_its_value_in_it(count):
    v, step = tg.Variable(1.0), tg.Variable(3.0)

    @tg.function
    def added(n):
        y, z = v, (step, {"twice": step})
        for _ in tg.range(n):
            y = y + z[1]["twice"]
            z = (z[0] + 1.0, {"twice": 2.0 * z[0]})
        return y, z[0]

    @tg.function
    def doubled(n):
        y = v
        while n > 0:
            y, n = y * 2.0, n - 1
        return y

    with tg.GradientTape() as tape:
        y, z = added(tg.constant(count))
    assert (float(y), float(z)) == ((1.0, 3.0) if count == 0 else (1.0 + 3.0 + 6.0 + 8.0, 6.0))
    gradient = tape.gradient(y, step, unconnected_gradients="zero")
    assert float(gradient) == (0.0 if count == 0 else 5.0)
    assert float(doubled(tg.constant(count))) == 2.0**count


class Halving(tg.Module):
    def __init__(self):
        self.bound = tg.Variable(1.0)

    def __call__(self, x):
        return x * 0.5 if x > self.bound else x + self.bound

    @tg.Module.with_name_scope
    def other(self, x):
        while x < 3.0:
            x = x + self.bound
        return x


class Doubling(Halving):
    def __call__(self, x):
        y = super().__call__(x)
        while y < 3.0:
            y = y * 2.0
        return y


def test_methods_of_modules_are_converted_where_a_function_calls_them():
    halving, doubling = Halving(), Doubling()

    @tg.function
    def f(x):
        return halving(x), doubling(x), doubling.other(x)

    for x, expected in ((2.0, (1.0, 4.0, 3.0)), (0.5, (1.5, 3.0, 3.5))):
        assert tuple(map(float, f(tg.constant(x)))) == expected
        assert float(tg.function(doubling)(tg.constant(x))) == expected[1]
    with tg.GradientTape() as tape:
        y = f(tg.constant(0.5))[1]
    assert float(tape.gradient(y, doubling.bound)) == 2.0


def test_a_loop_over_no_rows_gives_the_number_before_it_the_dtype_of_the_rows():
    @tg.function
    def total(x):
        found = 0
        for row in x:
            found += row
        return found

    for rows in (tg.zeros([0]), tg.zeros([2])):
        found = total(rows)
        assert (found.dtype, float(found)) == (tg.float32, 0.0)


def last_positive(x):
    for value in tg.boolean_mask(x, x > 0.0):
        last = value
    return last


def last_row(x):
    for row in x:
        last = row
    return last


def last_number(x):
    for i in tg.range(x.shape[0]):
        last = 1.0 + tg.cast(i, tg.float32)
    return last


def last_but_one(x):
    found = {}
    for row in x[1:]:
        found["row"] = row
    return found["row"]


@pytest.mark.parametrize(
    ("function", "empty"),
    [(last_positive, [-1.0]), (last_row, []), (last_number, []), (last_but_one, [2.0])],
)
def test_a_name_that_only_a_loop_over_no_rows_sets_is_not_read(function, empty):
    f = tg.function(function, input_signature=[tg.TensorSpec([None])])
    assert float(f([1.0, 2.0])) == 2.0
    with pytest.raises(tg.errors.InvalidArgumentError, match="is set by a loop that ran 0 times"):
        f(tg.constant(empty, tg.float32))


def test_a_bound_counts_the_iterations_that_python_ran_and_holds_where_the_test_assigns():
    @tg.function
    def endless(x):
        while True:
            set_loop_options(maximum_iterations=3)
            if x > 100.0:
                break
            x = x * 2.0
        return x

    @tg.function
    def assigning(x):
        while (y := x * 1.0) < 100.0:
            set_loop_options(maximum_iterations=3)
            x = x * 2.0
            if y > 50.0:
                continue
        return x

    for f in (endless, assigning):
        assert [float(f(tg.constant(x))) for x in (1.0, 60.0, 200.0)] == [8.0, 120.0, 200.0]


def test_loop_options_that_no_loop_has_are_refused():
    @tg.function
    def second(x):
        while x < 100.0:
            x = x * 2.0
            set_loop_options(maximum_iterations=3)
        return x

    with pytest.raises(SignatureError, match="set_loop_options is not the first statement"):
        second(tg.constant(1.0))


def test_walks_and_copies_of_trees_are_those_of_ast():
    tree = ast.parse(Path(__file__).read_text("utf-8"))
    signs = (ast.expr_context, ast.boolop, ast.cmpop, ast.operator, ast.unaryop)
    found = list(syntax_trees.walk(tree))
    assert found == [x for x in ast.walk(tree) if not isinstance(x, signs)]
    copied = syntax_trees.copied(tree)
    assert ast.dump(copied, include_attributes=True) == ast.dump(tree, include_attributes=True)
    assert not {*found} & {*syntax_trees.walk(copied)}
