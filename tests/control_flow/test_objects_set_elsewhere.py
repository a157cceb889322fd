"""Methods and functions from elsewhere that set attributes of objects, in branches and loops that a
tensor decides about: what they set is state, as if the statement itself set it."""

import argparse
import contextlib
import functools
from types import SimpleNamespace

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import SignatureError, TraceError


class Counter:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0.0

    def step(self):
        self.count += 1
        return self.count


class Momentum:
    def __init__(self):
        self.velocity, self.steps, self.best = 0.0, 0, None

    def step(self, x):
        self.velocity = 0.9 * self.velocity - 0.1 * x
        self.steps += 1
        return x + self.velocity

    def reset(self):
        self.velocity = 0.0


class Average:
    def __init__(self):
        self.is_first, self.value, self.last = True, 0.0, None

    def update(self, x):
        self.last = x
        if self.is_first:
            self.is_first, self.value = False, x
        else:
            self.value = 0.75 * self.value + 0.25 * x
        return self.value


class Cell:
    def __init__(self):
        self.state = [0.0, 1.0]

    def step(self, x):
        h, c = self.state
        self.state = [0.5 * c + x, h]


class Game:
    def __init__(self):
        self.x, self.is_over, self.moves = 0.25, False, 0

    def move(self, by):
        self.x, self.moves = self.x * by, self.moves + 1
        if self.x > 2.0:
            self.is_over = True
        return self.x


STATS, CHOSEN = SimpleNamespace(total=0.0), 2.0
TABLE, ROWS = {"all": 0.0}, [0.0, 0.0]


def add(x):
    STATS.total = STATS.total + x
    TABLE["all"] += x * 2.0


def descent(x, steps):
    momentum = Momentum()
    for _ in steps:
        x = momentum.step(x)
    return x, momentum.velocity, momentum.steps


def descent_with_restarts(x, steps):
    momentum = Momentum()
    for _ in steps:
        y = momentum.step(x)
        if y * x < 0.0:
            momentum.reset()
        x = y
    return x, momentum.velocity


def averages(x, steps):
    average, total = Average(), 0.0 * x
    for _ in steps:
        total = total + average.update(x)
        x = x * 2.0
    return total, average.value


def cells(x, steps):
    cell = Cell()
    for _ in steps:
        cell.step(x)
        if x > 0.5:
            cell.step(x * x)
    return cell.state


def games(x, steps):
    game, total = Game(), 0.0 * x
    while not game.is_over:
        total = total + game.move(x + 1.0)
    return total, game.moves, game.x


def by_names_of_the_module(x, steps):
    STATS.total, TABLE["all"] = 0.0 * x, 0.0 * x
    ROWS[0] = ROWS[1] = 0.0 * x
    for _ in steps:
        add(x)
        for k in range(2):
            ROWS[k] = ROWS[k] + x * (k + 1.0)
    return STATS.total, TABLE["all"], ROWS[0] * ROWS[1]


def in_tables(x, steps):
    counters = [Counter(), Counter()]
    inside = {"one": SimpleNamespace(counter=Counter())}
    for _ in steps:
        for counter in counters:
            counter.step()
        if x > 0.5:
            inside["one"].counter.step()
    return x, *(c.count for c in (*counters, inside["one"].counter))


def by_values_that_are_called(x, steps):
    counter = Counter()
    step, partial = counter.step, functools.partial(counter.step)
    for _ in steps:
        x = x * step()
        if x > 1.0:
            x = x / partial()
    return x, counter.count


def deep_inside(x, steps):
    counter = Counter()
    counter.step()
    inside = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(c=counter, sums=[0.0 * x])))

    def step(y):
        sums = inside.a.b.sums
        sums[0] = sums[0] + y * inside.a.b.c.step()

    for _ in steps:
        step(x)
    return inside.a.b.sums[0], counter.count


def by_a_lambda(x, steps):
    momentum = Momentum()
    step = lambda y: momentum.step(y)  # noqa: E731
    for _ in steps:
        x = step(x)
    return x, momentum.steps


TOTAL = 0.0


def add_globally(x):
    global TOTAL
    TOTAL = TOTAL + x


def summing():
    total, counts = 0.0, [0.0]

    def add(x):
        nonlocal total
        total = total + x
        counts[0] += 1.0
        return total

    return add, lambda: (total, counts[0])


def global_names(x, steps):
    global TOTAL
    TOTAL = 0.0
    for _ in steps:
        if x > 1.0:
            add_globally(x)
            x = x * 0.75
        for _ in range(2):
            [add_globally(y) for y in (x, x * x)]
    return x, TOTAL


def names_of_closures(x, steps):
    (one, read_one), (other, read_other) = summing(), summing()
    total, counts = 0.0 * x, [x]
    for _ in steps:
        if x > 1.0:
            total, counts[0] = total + one(x), counts[0] * 0.5
        else:
            other(2.0 * x)
        x = x * 0.75
    return total, counts[0], *read_one(), *read_other()


def closures_in_tables(x, steps):
    adds = [summing() for _ in range(2)]
    table = {"add": adds[0][0]}
    thing = SimpleNamespace(add=adds[1][0])
    for _ in steps:
        if x > 1.0:
            table["add"](x)
        thing.add(x)
        x = x * 0.75
    return adds[0][1]() + adds[1][1]()


def closures_made_inside(x, steps):
    def pair():
        total = 0.0

        def add(y):
            nonlocal total
            total = total + y

        def half(y):
            nonlocal total
            total = total * 0.5 + y

        return add, half, lambda: total

    add, half, read = pair()
    for _ in steps:
        if x > 1.0:
            add(x)
        else:
            half(x)
        x = x * 0.75
    return x, read()


class OfClass:
    made, sum, own = 0, 0.0, 1.0

    @classmethod
    def add(cls, x):
        cls.made, cls.sum = cls.made + 1, cls.sum + x

    def add_own(self, x):
        self.own += x

    def add_to_both(self, x):
        self.sum, OfClass.sum = x, x


def numbers_of_classes(x, steps):
    OfClass.made, OfClass.sum = 0, 0.0
    own = OfClass()
    for _ in steps:
        if x > 1.0:
            OfClass.add(x)
            own.add_own(x)
        x = x * 0.75
    return x, own.made, own.sum, own.own, OfClass.own


def numbers_that_classes_inherit(x, steps):
    OfClass.made, OfClass.sum = 0, 0.0
    Derived = type("Derived", (OfClass,), {"__module__": __name__})
    for _ in steps:
        if x > 1.0:
            Derived.add(x)
        x = x * 0.75
    return x, OfClass.made, Derived.made, Derived().sum


def counted(function):
    @functools.wraps(function)
    def wrapper(x):
        wrapper.calls += 1
        return function(x)

    wrapper.calls = 0
    return wrapper


def attributes_of_functions(x, steps):
    half = counted(lambda y: y * 0.5)
    for _ in steps:
        if x > 1.0:
            x = half(x)
        x = x * 1.25
    return x, half.calls


@contextlib.contextmanager
def entered():
    global TOTAL
    TOTAL = TOTAL + 1.0
    yield
    TOTAL = TOTAL + 10.0


def context_managers(x, steps):
    global TOTAL
    TOTAL = 0.0
    for _ in steps:
        if x > 1.0:
            with entered():
                x = x * 0.5
        x = x * 1.25
    return x, TOTAL


def closures_deep_in_objects(x, steps):
    add, read = summing()
    thing = SimpleNamespace(inner=SimpleNamespace(calls=[add]))
    fire = SimpleNamespace(all=lambda y: [call(y) for call in thing.inner.calls]).all
    for _ in steps:
        if x > 1.0:
            fire(x)
        x = x * 0.75
    return read()


PROGRAMS = [
    context_managers,
    closures_deep_in_objects,
    attributes_of_functions,
    global_names,
    names_of_closures,
    closures_in_tables,
    closures_made_inside,
    numbers_of_classes,
    numbers_that_classes_inherit,
    deep_inside,
    by_a_lambda,
    descent,
    descent_with_restarts,
    averages,
    cells,
    games,
    by_names_of_the_module,
    in_tables,
    by_values_that_are_called,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_what_methods_set_is_what_python_sets(program, recwarn):
    f = tg.function(lambda x, n: program(x, tg.range(n)))
    for x in (0.375, 1.25):
        for n in (0, 4):
            found = [*map(float, f(tg.constant(x, tg.float64), tg.constant(n)))]
            np.testing.assert_allclose(found, program(x, range(n)), rtol=1e-12)
    value = tg.constant(1.25, tg.float64)
    with tg.GradientTape() as tape:
        tape.watch(value)
        y = f(value, tg.constant(4))[0]
    slope = (program(1.25 + 1e-6, range(4))[0] - program(1.25 - 1e-6, range(4))[0]) / 2e-6
    assert float(tape.gradient(y, value)) == pytest.approx(slope, rel=1e-6)
    assert not [x for x in recwarn.list if "it sets once" in str(x.message)]


class Smooth:
    def __init__(self):
        self.value = None

    def update(self, x):
        if self.value is None:
            self.value = x * 1.0
        else:
            self.value = 0.5 * (self.value + x)
        return self.value

    def keep(self, x):
        self.value, self.more = x * 2.0, x * 3.0
        return self.more


def first_step_sets(x):
    smooth, total = Smooth(), 0.0
    for _ in tg.range(3):
        total = total + smooth.update(x)
    return total


def only_first_step_sets(x):
    smooth = Smooth()
    for _ in tg.range(3):
        if smooth.value is None:
            smooth.keep(x)
            x = x * 2.0
    return x


def read_after_a_loop(x):
    smooth = Smooth()
    for _ in tg.range(3):
        x = smooth.keep(x)
    return x + smooth.more


def read_after_a_branch(x):
    smooth = Smooth()
    if x > 1.0:
        smooth.keep(x)
    return smooth.value * x


def in_an_expression(x):
    momentum = Momentum()
    return momentum.step(x) if x > 1.0 else x


def in_an_operand(x):
    momentum = Momentum()
    return (x > 1.0) and (momentum.step(x) > 2.0)


def a_global_in_an_expression(x):
    add = summing()[0]
    return add(x) if x > 1.0 else x


def in_an_object_and_its_class(x):
    OfClass.sum, own = 0.0, OfClass()
    if x > 1.0:
        own.add_to_both(x)
    return own.sum


def in_a_test(x):
    momentum = Momentum()
    while momentum.step(x) > 0.5:
        x = x * 0.5
    return x


@pytest.mark.parametrize(
    "function, fact, fix",
    [
        (first_step_sets, r"smooth\.value has no tensor before the loop", "give smooth.value a"),
        (only_first_step_sets, r"smooth\.value has no tensor before", "give smooth.value a"),
        (read_after_a_loop, r"smooth\.more has no tensor before", "give smooth.more a tensor"),
        (read_after_a_branch, r"the values of 'smooth\.value' after the `if`", "give one type"),
        (in_an_expression, r"called in the value of .* sets 'momentum\.velocity'", "`if` of its"),
        (in_an_operand, r"called in the value of `and` sets 'momentum\.velocity'", "`if` of its"),
        (a_global_in_an_expression, "called in the value of .* sets 'total'", "`if` of its"),
        (in_an_object_and_its_class, "own.sum is set in a branch .* the class OfClass", "__init__"),
        (in_a_test, r"in the test of a `while` sets 'momentum\.velocity'", "test it in the loop"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_a_graph_cannot_carry_is_refused(function, fact, fix):
    with pytest.raises(SignatureError, match=fact) as caught:
        tg.function(lambda x: function(x))(tg.constant(3.0))
    assert fix in str(caught.value)
    assert __file__ in str(caught.value)


def test_what_nothing_reads_is_left_alone():
    @tg.function
    def f(x):
        smooth = Smooth()
        for _ in tg.range(3):
            x = smooth.keep(x)
        return x

    assert f(tg.constant(1.0)).numpy() == 27.0


def test_an_object_of_a_library_keeps_what_its_own_code_counts_on():
    options = argparse.Namespace(count=0)

    def step():
        options.count += 1

    @tg.function
    def f(x):
        for _ in tg.range(3):
            step()
        return x

    with pytest.warns(UserWarning, match=r"options\.count changed from 0 to 1"):
        f(tg.constant(1.0))
    assert options.count == 1


def test_an_object_that_creates_its_variables_when_it_is_first_used():
    class Scale:
        def __init__(self):
            self.is_ready, self.size, self.weight = False, 0, None

        def __call__(self, x):
            if not self.is_ready:
                self.weight, self.size = tg.Variable(2.0), len(x)
                self.is_ready = True
            return x * self.weight

    scale = Scale()

    @tg.function
    def f(x):
        for _ in tg.range(3):
            x = scale(x)
        return x

    np.testing.assert_array_equal(f(tg.constant([1.0, 2.0])), [8.0, 16.0])
    assert scale.is_ready is True and scale.size == 2


def test_what_was_set_is_put_back_after_an_error():
    momentum = Momentum()

    @tg.function
    def f(x):
        while x > 1.0:
            x = tg.concat([momentum.step(x), x], 0)
        return x

    with pytest.raises((ValueError, TypeError, TraceError)):
        f(tg.constant(3.0))
    assert (momentum.velocity, momentum.steps) == (0.0, 0)


# Functions and objects that a branch or a loop itself makes.


class Setter:
    def set(self):
        global CHOSEN
        CHOSEN, STATS.total = 5.0, 9.0

    @classmethod
    def made(cls):
        return cls()


class DerivedSetter(Setter):
    pass


def made_setter():
    return DerivedSetter.made()


def reset():
    global CHOSEN
    CHOSEN, STATS.total = 2.0, 1.0


def what_is_read():
    return CHOSEN + STATS.total


def by_function_of_branch(x, n):
    reset()
    if x > 0.5:

        def set_name():
            global CHOSEN
            CHOSEN = 5.0

        set_name()
    return what_is_read() * x


def by_function_of_loop(x, n):
    reset()
    for _ in tg.range(n):

        def add_to_name():
            global CHOSEN
            CHOSEN = CHOSEN + 5.0

        if x > 0.5:
            add_to_name()
    return what_is_read() * x


def by_class_of_branch(x, n):
    reset()
    if x > 0.5:

        class Own:
            def __call__(self):
                global CHOSEN
                CHOSEN = 5.0

        Own()()
    return what_is_read() * x


def by_object_of_branch(x, n):
    reset()
    if x > 0.5:
        Setter().set()
    return what_is_read() * x


def by_object_of_function(x, n):
    reset()
    for _ in tg.range(n):
        made_setter().set()
    return what_is_read() * x


def by_method_in_dict(x, n):
    reset()
    table = {"set": Setter().set}
    if x > 0.5:
        table["set"]()
    return what_is_read() * x


MAKERS = [
    by_function_of_branch,
    by_function_of_loop,
    by_class_of_branch,
    by_object_of_branch,
    by_object_of_function,
    by_method_in_dict,
]


@pytest.mark.parametrize("program", MAKERS)
def test_what_functions_and_objects_of_a_statement_set_is_its_state(program):
    f = tg.function(program)
    for x, n in ((0.25, 2), (0.75, 2), (0.75, 0)):
        given = tg.constant(x), tg.constant(n)
        assert float(f(*given)) == float(program(*given))
