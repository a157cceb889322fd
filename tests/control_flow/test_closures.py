"""Functions that are values: lambdas, generator expressions and methods of inner classes read a
name when they are called, wherever they have got to by then."""

import operator

import numpy as np
import pytest

import tracegraph as tg

SCALE = 3.0


class Registry:
    def __init__(self):
        self.functions = []

    def add(self, function):
        self.functions.append(function)

    def total(self):
        return sum(function() for function in self.functions)


def call(function):
    return function()


def of_python_loop(x, n):
    functions = []
    for j in range(3):
        functions.append(lambda: x * j)  # noqa: B023
    return sum(f() for f in functions)


def of_python_while(x, n):
    functions, i = [], 0
    while i < 3:
        k = x * i
        functions.append(lambda: k)  # noqa: B023
        i += 1
    return sum(f() for f in functions)


def of_inner_class(x, n):
    objects = []
    for j in range(3):
        k = x * j

        class Own:
            def get(self):
                return k  # noqa: B023

        objects.append(Own())
    return sum(o.get() for o in objects)


def in_a_list(x, n):
    k, functions = 1.0, []
    functions.append(lambda: k * x)
    if x > 1.0:
        k = 2.0
    return functions[0]()


def given_to_an_object(x, n):
    k, registry = x, Registry()
    registry.add(lambda: k)
    for _ in tg.range(n):
        k = x * 7.0
    return registry.total()


def as_a_default(x, n):
    k = x

    def get(function=lambda: k):
        return function()

    if x > 1.0:
        k = x * 5.0
    return get()


def by_generator(x, n):
    k = x
    items = (j * k for j in range(3))
    if x > 1.0:
        k = x * 3.0
    return sum(items)


def by_map(x, n):
    k = x
    items = map(lambda j: j * k, range(3))  # noqa: C417
    if x > 1.0:
        k = x * 3.0
    return sum(items)


def left_by_break(x, n):
    k = x
    functions = [lambda: k]
    for j in range(4):
        if k > 2.0:
            break
        k = k + j
    return functions[0]()


def left_by_return(x, n):
    k = x
    functions = [lambda: k]

    def inner():
        nonlocal k
        for _ in tg.range(n):
            k = x * 7.0
            if x > 1.0:
                return functions[0]()
            k = x * 9.0
        return functions[0]()

    return inner() + functions[0]()


def kinds_differ(x, n):
    for _ in tg.range(n):
        k = tg.ones([3]) * x
        x = x + tg.reduce_sum(call(lambda: k))  # noqa: B023
    for _ in tg.range(n):
        k = tg.ones([2]) * x
        x = x * 0.5 + tg.reduce_sum(call(lambda: k))  # noqa: B023
    return x


def objects_differ(x, n):
    for _ in tg.range(n):
        if x > 1.0:
            function = operator.neg
            x = x + call(lambda: function(x))  # noqa: B023
        else:
            function = operator.abs
            x = x + call(lambda: function(x))  # noqa: B023
    return x


def parameters_have_names_of_the_module(x, n):
    total = SCALE * abs(x)
    for _ in range(2):
        total = total + (lambda SCALE: SCALE + 1.0)(x)

        def double(abs):
            return abs * 2.0

        total = total + double(x)
    return total + SCALE


PROGRAMS = [
    of_python_loop,
    of_python_while,
    of_inner_class,
    in_a_list,
    given_to_an_object,
    as_a_default,
    by_generator,
    by_map,
    left_by_break,
    left_by_return,
    kinds_differ,
    objects_differ,
    parameters_have_names_of_the_module,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_function_reads_what_its_names_stand_for_when_it_is_called(program):
    f = tg.function(program)
    for x, n in ((0.5, 2), (1.5, 1), (1.5, 0)):
        given = tg.constant(x), tg.constant(n)
        assert float(f(*given)) == pytest.approx(float(program(*given)))


def test_its_value_has_derivatives():
    f = tg.function(in_a_list)
    for x, slope in ((0.5, 1.0), (1.5, 2.0)):
        assert float(tg.grad(f)(tg.constant(x), tg.constant(0))) == slope


def test_reading_what_no_iteration_set_is_an_error():
    @tg.function
    def f(x, n):
        functions = [lambda: k]
        for _ in tg.range(n):
            k = x * 2.0
        return functions[0]()

    x = tg.constant(3.0)
    assert float(f(x, tg.constant(2))) == 6.0
    with pytest.raises(tg.errors.InvalidArgumentError, match="'k' is set by a loop that ran 0"):
        f(x, tg.constant(0))


@pytest.mark.parametrize("is_loop", [True, False])
def test_reading_what_a_graph_cannot_carry_is_refused(is_loop):
    @tg.function
    def f(x):
        k, functions = "old", [lambda: k]
        if is_loop:
            for _ in tg.range(tg.cast(x, tg.int32)):
                k = np.array
        elif x > 0.0:
            k = "new"
        return x if functions[0]() == "old" else -x

    with pytest.raises(tg.errors.SignatureError, match=r"'k' .*(a function reads it|differ in)"):
        f(tg.constant(2.0))


def test_functions_that_are_called_at_once_add_no_state():
    @tg.function
    def f(x, n):
        for _ in tg.range(n):
            k = x * 0.5
            x = x + tg.map_fn(lambda row: row * tg.reduce_max(k), x)  # noqa: B023
        return x

    f(tg.ones([3]), tg.constant(2))
    assert "k_is_set" not in str(f.traces[0].graph)


def test_a_function_may_be_a_default_of_its_own():
    def twice(k, again=None):
        return 2.0 * k

    twice.__defaults__ = (twice,)

    @tg.function
    def f(x):
        while x < 10.0:
            x = twice(x)
        return x

    assert float(f(tg.constant(3.0))) == 12.0
