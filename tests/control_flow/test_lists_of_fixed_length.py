"""Lists that lose as many items as they get, such as histories and stacks, in branches and loops
that a tensor decides about: the values and gradients are those of plain Python."""

import pytest

import tracegraph as tg
from tracegraph.errors import SignatureError


def quasi_newton(x, steps):
    moves, changes, slope = [0.0 * x] * 3, [0.0 * x] * 3, 2.0 * x
    for _ in steps:
        direction = slope
        for move, change in zip(moves, changes):
            direction = direction - 0.1 * move * change * direction
        y = x - 0.1 * direction
        moves.pop(0)
        changes.pop(0)
        moves.append(y - x)
        changes.append(2.0 * y - slope)
        x, slope = y, 2.0 * y
    return [*moves, *changes, x]


def stack(x, steps):
    waiting = [x, 2.0 * x, 3.0 * x]
    for _ in steps:
        one, other = waiting.pop(), waiting.pop()
        waiting.append(one + other)
        waiting.append(one - 0.5 * other)
    return waiting


def newest_first(x, steps):
    history = [x] * 3
    while x < 20.0:
        history.insert(0, x * 1.25)
        del history[-1]
        x = x * 2.0 + 0.125 * history[2]
    return [*history, x]


def in_a_branch(x, steps):
    history = [x] * 3
    for _ in steps:
        if x > 1.0:
            history.append(x)
            history.pop(0)
        x = x * 0.875 + 0.0625 * history[0]
    return [*history, x]


def of_pairs(x, steps):
    history = [(x, x)] * 2
    for _ in steps:
        history.append((x, x * history[0][1]))
        history.pop(0)
        x = x * 0.75
    return [y for pair in history for y in pair]


class History:
    def __init__(self, x):
        self.items, self.count = [0.0 * x] * 3, 0

    def add(self, x):
        self.items.pop(0)
        self.items.append(x)
        self.count += 1


def of_an_object(x, steps):
    history = History(x)
    for _ in steps:
        if x > 0.5:
            history.add(x)
        x = x * 0.75 + 0.125 * history.items[0]
    return [*history.items, x, history.count]


def beside_one_that_grows(x, steps):
    history, found = [x] * 2, []
    for _ in steps:
        found.append(x)
        for k in range(2):
            history[k] = history[k] * 1.25
        history.append(x * 2.0)
        history.pop(0)
        x = x * 1.125
    return [*history, sum(found)]


PROGRAMS = [
    quasi_newton,
    stack,
    newest_first,
    in_a_branch,
    of_pairs,
    of_an_object,
    beside_one_that_grows,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_values_and_gradients_are_those_of_python(program):
    f = tg.function(program)
    for number in (0.375, 1.5):
        x = tg.constant(number, tg.float64)
        with tg.GradientTape() as tape:
            tape.watch(x)
            found = f(x, tg.range(4))
        assert [*map(float, found)] == pytest.approx(program(number, range(4)), rel=1e-12)
        ends = [program(number + h, range(4))[0] for h in (-1e-6, 1e-6)]
        slope = (ends[1] - ends[0]) / 2e-6
        assert float(tape.gradient(found[0], x)) == pytest.approx(slope, rel=1e-6, abs=1e-8)


def grows_in_a_branch(x):
    history = [x] * 2
    if x > 1.0:
        history.pop()
        history.append(x)
        history.append(x)
    return history[0]


def grows_up_to_a_length(x):
    history = [x]
    for _ in tg.range(3):
        history.append(x)
        if len(history) > 4:
            history.pop(0)
    return history[0]


@pytest.mark.parametrize(
    "function, method", [(grows_in_a_branch, "append"), (grows_up_to_a_length, "pop")]
)
def test_one_that_becomes_longer_is_refused(function, method):
    with pytest.raises(SignatureError, match=rf"\.{method}\(\) changes a list in a branch"):
        tg.function(function)(tg.constant(3.0))
