"""Lists and dicts that branches and loops change in place, by keys that they compute or by methods,
hold what plain Python puts there."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import gradient
from tracegraph.errors import SignatureError


def layers(x, n):
    states = [x, x * 2.0, x * 0.5]
    for _ in range(n):
        given = x
        for k in range(3):
            states[k] = states[k] * 0.5 + given
            given = states[k]
    return states[0] + states[2]


def by_key(x, n):
    sums = {"a": x, "b": (x, 2.0 * x)}
    same = sums
    while x < 10.0:
        for key in ("a",):
            sums[key] = sums[key] + x
        x = x * 2.0
    return same["a"] * sums["b"][1] + n


def in_a_branch(x, n):
    values = {"a": x, "b": 2.0 * x}
    for key in ("a", "b"):
        if x > 1.0:
            values[key] = values[key] + x
    return values["a"] * values["b"] + n


def reversed_often(x, n):
    pair = [x, 3.0 * x]
    for _ in range(n):
        pair.reverse()
        pair[:] = [pair[0] * 2.0, pair[1]]
    return pair[0]


def window(x, n):
    last = deque([x, x + 1.0, x + 2.0], maxlen=3)
    for _ in range(n):
        last.append(last[0] * 0.5)
    return last[0] + last[2]


def of_an_object(x, n):
    thing = SimpleNamespace(table=[[x, 1.0], [2.0, x]])
    row = thing.table[1]
    for _ in range(n):
        for i in range(2):
            for j in range(2):
                thing.table[i][j] = thing.table[i][j] * 0.5 + x
    return row[1] * thing.table[0][1]


def nested(x, n):
    values = [x, 1.0]
    for _ in range(n):
        while values[0] < 5.0:
            for k in range(2):
                values[k] = values[k] + x
                if values[k] > 4.0:
                    values[k] = values[k] - 0.5
        values[0] = values[0] - 3.0
    return values[0] * values[1]


def by_a_function(x, n):
    table = {"sum": x}

    def add(key):
        table[key] = table[key] + x

    for _ in range(n):
        add("sum")
    return table["sum"]


def updated(x, n):
    table = {"sum": x}
    for _ in range(n):
        table.update(sum=table["sum"] * 1.5)
    return table["sum"]


PROGRAMS = [
    layers,
    by_key,
    in_a_branch,
    reversed_often,
    window,
    of_an_object,
    nested,
    by_a_function,
    updated,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_values_and_gradients_are_those_of_python(program):
    f = tg.function(program)
    for x in (0.75, 1.3):
        for n in (0, 3):
            steps = tg.constant(n) if program not in (by_key, in_a_branch) else float(n)
            found = f(tg.constant(x, tg.float64), steps)
            np.testing.assert_allclose(found.numpy(), program(x, n), rtol=1e-12)
    slope = gradient(lambda y: f(y, steps), tg.constant(1.3, tg.float64))
    assert float(slope) == pytest.approx(
        (program(1.3 + 1e-6, 3) - program(1.3 - 1e-6, 3)) / 2e-6, rel=1e-6
    )


def count_by_key(n):
    counts = {"a": 0, "b": 10}
    for _ in range(n):
        for key in counts:
            counts[key] += 1
    return counts["a"], counts["b"]


def test_numbers_that_are_counted_in_place():
    f = tg.function(count_by_key)
    for n in (0, 4):
        assert tuple(map(int, f(tg.constant(n)))) == count_by_key(n)


def popping(n):
    stack, total = [1, 2, 3], 0
    while n > 0:
        total, n = total + stack.pop(), n - 1
    return total


def growing_and_popping(n):
    values = [n, n]
    for _ in range(n):
        values.append(values[0] + 1)
        values.pop(0)
    return values[0]


def dropping(n):
    table = {"a": n, "b": n}
    if n > 1:
        table.pop("a")
    return table["b"]


def appending_a_number(n):
    values = [n]
    if n > 1:
        values.append(5)
    return len(values)


def cleared(n):
    values = [n, n]
    if n > 1:
        values.clear()
    return len(values)


@pytest.mark.parametrize(
    "function, fact",
    [
        (popping, r"the items of stack is a list \['\*', '\*', '\*'\] before the loop"),
        (growing_and_popping, r"\.pop\(\) changes a list to which a loop appends"),
        (dropping, r"items of table is a dict \{'b': '\*'\} in the main .* \{'a': '\*', 'b'"),
        (appending_a_number, r"\.append\(\) changes a list in a branch"),
        (cleared, r"the items of values is a list, \[\] in the main branch"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_changes_its_length_is_refused(function, fact):
    f = tg.function(function)
    for _ in range(2):  # an error leaves nothing behind
        with pytest.raises(SignatureError, match=fact) as error:
            f(tg.constant(3))
        assert f"{__file__}:" in str(error.value)


def extended(n):
    values = [1]
    for i in range(n):
        values.extend([i, 2 * i])
    return len(values), values[0], values[-1]


def test_a_list_is_extended_in_a_loop():
    found = tg.function(extended)(tg.constant(4))
    assert tuple(map(int, found)) == extended(4)


def test_an_error_puts_back_what_was_in_the_containers():
    stack = [1, 2, 3]

    def popping_outside(n):
        while n > 0:
            n = n - stack.pop()
        return n

    with pytest.raises(SignatureError, match="the items of stack"):
        tg.function(popping_outside)(tg.constant(3))
    assert stack == [1, 2, 3]


def either(x, y):
    return (x or y) * 2.0, (x and y) + 1.0, x or 3.0, 4.0 and x


def test_and_and_or_give_the_operand_that_decides():
    f = tg.function(either)
    for x in (0.0, 2.0):
        for y in (0.0, 5.0):
            found = f(tg.constant(x), tg.constant(y))
            assert [float(z) for z in found] == [*either(x, y)]
    x = tg.constant(2.0)
    assert float(gradient(lambda x: f(x, tg.constant(5.0))[0], x)) == 2.0
    mixed = tg.function(lambda x, y: 1 if x and y > 2.0 else 0)
    assert [int(mixed(tg.constant(2.0), tg.constant(y))) for y in (1.0, 3.0)] == [0, 1]
