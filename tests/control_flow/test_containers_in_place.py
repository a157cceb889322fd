"""Lists and dicts that branches and loops change in place, by keys that they compute or by methods,
hold what plain Python puts there."""

import operator
from array import array
from collections import deque
from dataclasses import dataclass, replace
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


def lists_in_lists(n):
    rows, table, x = [[1.0]], {"a": [], "b": []}, 1.0
    for i in range(n):
        rows[0].append(x)
        if i % 2 == 0:
            table["a"].append(x)
        else:
            table["b"].append(-x)
        x = x * 2.0
    return len(rows[0]), rows[0][-1], len(table["a"]), len(table["b"])


def keys_of_both(n):
    table = {}
    if n > 1:
        table.update(a=1, b=n)
    else:
        table.update(a=5, b=2 * n)
    return table["a"], table["b"]


def taken_before_leaving(n):
    numbers, total = iter([1, 2, 3, 4]), 0
    for _ in range(4):
        x = next(numbers)
        if total > n:
            break
        total = total + n * x
    return total


@pytest.mark.parametrize(
    "program",
    [lists_in_lists, keys_of_both, taken_before_leaving],
    ids=lambda f: f.__name__,
)
def test_lists_keys_and_iterators_that_a_graph_can_follow(program):
    f = tg.function(program)
    for n in (1, 3):
        assert [*map(float, tg.nest.flatten(f(tg.constant(n))))] == [
            *map(float, tg.nest.flatten(program(n)))
        ]


class Numbers:
    def __init__(self):
        self.rest = iter([1.0, 2.0, 3.0])


def by_next(n):
    numbers, total = Numbers(), 0.0
    for _ in range(n):
        total = total + next(numbers.rest)
    return total


def by_next_in_a_branch(n):
    numbers = [iter([1.0, 2.0])]
    return next(numbers[0]) if n > 1 else 0.0 * next(numbers[0])


def by_a_generator(n):
    numbers, total = (k for k in range(5)), 0
    while n > 0:
        for x in numbers:
            total = total + x
        n = n - 1
    return total


def skipped(n):
    numbers, total = iter([1, 2, 3]), 0
    for _ in range(3):
        if total > n:
            continue
        total = total + next(numbers)
    return total


def in_a_row(n):
    rows, total = [[], []], 0.0
    for _ in range(n):
        for row in rows:
            row.append(2.0)
            total = total + len(row)
    return total


def at_a_computed_place(n):
    rows, total = [[], []], n
    for _ in range(n):
        for k in range(2):
            rows[k].append(n)
            total = total + len(rows[k])
    return total


def by_default(n):
    table, total = {}, n
    for _ in range(n):
        table.setdefault("a", []).append(n)
        total = total + len(table["a"])
    return total


def inserted(n):
    values = []
    for _ in range(n):
        values.insert(0, 1.0)
    return len(values)


def grown_deque(n):
    values = deque(maxlen=2)
    for _ in range(n):
        values.append(1)
    return len(values)


def counted_by_new_key(n):
    counts = {}
    for _ in range(n):
        for key in ("a", "b"):
            counts[key] = counts.get(key, 0) + 1
    return counts["a"]


def in_a_long_list(n):
    counts = [0] * 1500
    for _ in range(n):
        for k in (3, 4):
            counts[k] += 1
    return counts[3]


def in_a_long_list_of_lists(n):
    counts = [[0, 0] for _ in range(1500)]
    if n > 1:
        for k in (3, 4):
            counts[k][1] += 1
    return counts[3][1]


def counted_by_a_set(n):
    seen = {9}
    for _ in range(n):
        seen.add(len(seen))
    return len(seen)


def by_another_name(n):
    values = [1.0]
    others = values
    for _ in range(n):
        others.append(2.0)
    return len(values)


def by_a_function(n):
    values = [1.0]
    for _ in range(n):
        operator.iadd(values, [2.0])
    return len(values)


def tensors_by_a_sum_in_place(n):
    values, more = [n for _ in range(1)], [n]
    if n > 3:
        values += more
    return len(values)


def tensors_by_a_repeated_list(n):
    values = [n]
    others = values
    for _ in range(n):
        values *= 2
        values = [n]
    return len(others)


def tensors_by_a_slice(n):
    values = [n for _ in range(2)]
    if n > 3:
        values[1:] = [n, n, n]
    return len(values)


def own_list_repeated_in_a_branch(n):
    values = [n]
    if n > 3:
        values *= 2
    return len(values)


def taken_from_a_set(n):
    left = {"sets": [{1, 2, 3}]}
    for _ in range(n):
        left["sets"][0].pop()
    return len(left["sets"][0])


def taken_from_a_set_in_a_branch(n):
    left = {1, 2, 3}
    if n > 1:
        left.discard(2)
    return len(left)


@pytest.mark.parametrize(
    "function, fact, line",
    [
        (counted_by_a_set, r"later step of a loop of the graph adds \[2\] to the set seen", 2),
        (taken_from_a_set, r"the set left\['sets'\]\[0\] loses \[1\] in a branch or a loop", 2),
        (taken_from_a_set_in_a_branch, r"the set left loses \[2\] in a branch", 2),
        (by_next, "iterator is advanced in a loop that a tensor decides about", 3),
        (by_next_in_a_branch, "iterator is advanced in a branch", 2),
        (by_a_generator, "iterator is advanced in a loop", 3),
        (skipped, "iterator is advanced in a branch", 5),
        (in_a_row, r"\.append\(\) changes a list in a loop", 4),
        (at_a_computed_place, r"\.append\(\) changes a list in a loop", 4),
        (by_default, r"\.append\(\) changes a list in a loop", 3),
        (tensors_by_a_sum_in_place, "a list of 1 gets 1 more in a branch", 2),
        (tensors_by_a_repeated_list, "a list of 1 gets 1 more in a loop", 3),
        (tensors_by_a_slice, "a list of 2 gets 2 more in a branch", 2),
        (own_list_repeated_in_a_branch, r"'values' is a list \['\*', '\*'\] in the main branch", 2),
        (inserted, r"\.insert\(\) changes a list in a loop", 3),
        (grown_deque, r"items of values is a list, \[\] before the loop", 2),
        (counted_by_new_key, r"counts\['a'\] is set to 1 by the first step .* becomes 2", 2),
        (in_a_long_list, "counts, with 1,500 items, is changed in a branch or a loop", 2),
        (in_a_long_list_of_lists, "counts, with 1,500 items, is changed", 2),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_python_does_once_is_refused(function, fact, line):
    with pytest.raises(SignatureError, match=fact) as error:
        tg.function(function)(tg.constant(3))
    assert f"{__file__}:{function.__code__.co_firstlineno + line}:" in str(error.value)


def test_a_number_under_a_key_that_one_branch_adds_is_told():
    def one_branch(n):
        table = {}
        if n > 1:
            table.update(a=1)
        return table.get("a", 0)

    with pytest.warns(UserWarning, match=r"table\['a'\] was set to 1 while a branch was traced"):
        tg.function(one_branch)(tg.constant(1))

    def in_a_set(n):
        found = set()
        if n > 1:
            found.add(7)
        return len(found)

    with pytest.warns(UserWarning, match="the item 7 of found was added while a branch was traced"):
        tg.function(in_a_set)(tg.constant(1))


def test_what_is_collected_to_look_at_is_left_alone():
    seen, log, counts, names = [], {}, [0] * 5000, {"y"}

    @tg.function
    def f(x):
        for _ in tg.range(3):
            seen.append(x.shape)
            log["of" + "x"] = x.shape[0]
            log.setdefault("shapes", []).append(x.shape)
            names.update(["x", 5])
            x = x * 2.0 + counts[0]
        if x[0] > 3.0:
            log["shapes"].append(x.dtype)
        return x

    np.testing.assert_array_equal(f(tg.constant([3.0, 1.0])).numpy(), [24.0, 8.0])
    assert log["ofx"] == 2 and tg.float32 in log["shapes"] and seen
    assert names == {"x", "y", 5}


def repeated_in_both_branches(n):
    values = [n, n + 1]
    if n > 3:
        values *= 2
    else:
        values *= 3
        del values[4:]
    return tg.stack(values)


def test_a_list_is_repeated_in_both_branches():
    for n in (1, 4):
        found = tg.function(repeated_in_both_branches)(tg.constant(n))
        assert found.numpy().tolist() == 2 * [n, n + 1]


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


def test_a_number_finds_its_dtype_where_python_would_leave_out_an_inner_loop():
    def found_late(x, n):
        total, i = 0.0, 0
        while i < n:
            j = 0
            while j < i:
                if x > 3.0:
                    total = total + 100.0
                elif total > 7.0:
                    i = i + 1
                else:
                    total = total + x
                j, x = j + 1, x * 1.5
            i = i + 1
        return total

    for x in (0.9, 2.5):
        found = tg.function(found_late)(tg.constant(x, tg.float64), tg.constant(6))
        assert float(found) == pytest.approx(found_late(x, 6), rel=1e-12)


def by_array(n):
    numbers = np.zeros(2)
    for _ in range(n):
        for k in (0, 1):
            numbers[k] += 1.0
    return numbers[0]


def by_bytes(n):
    numbers = bytearray(b"0")
    for _ in range(n):
        numbers.append(1)
    return n


def by_an_array_of_python(n):
    numbers = array("i", [0])
    for _ in range(n):
        numbers.append(1)
    return n


def by_a_sum_in_place(n):
    values = [1.0]
    others, more = values, [2.0]
    for _ in range(n):
        values += more
        values = [3.0]
    return len(others)


@pytest.mark.parametrize(
    "function, name",
    [(by_another_name, "others"), (by_a_function, "values"), (by_a_sum_in_place, "values")],
)
def test_numbers_added_to_a_list_elsewhere_are_told(function, name):
    told = f"{name} grew from 1 to 2 items while the body of a loop was traced"
    with pytest.warns(UserWarning, match=told):
        tg.function(function)(tg.constant(3))


@pytest.mark.parametrize("function", [by_array, by_bytes, by_an_array_of_python])
def test_numbers_put_into_an_array_are_told(function):
    with pytest.warns(UserWarning, match="numbers changed while the body of a loop was traced"):
        tg.function(function)(tg.constant(3))


def by_a_list_of_defaults(n):
    def step(counts=[0]):  # noqa: B006
        counts[0] += 1
        return counts[0]

    last = 0
    for _ in range(n):
        last = step()
    return last


def by_a_dataclass(n):
    @dataclass(frozen=True)
    class State:
        number: int
        step: int = 2

        def next(self):
            number: int = self.number + self.step
            return replace(self, number=number)

    state = State(0)
    for _ in range(n):
        state = state.next()
    return state.number


@pytest.mark.parametrize("function", [by_a_list_of_defaults, by_a_dataclass])
def test_defaults_and_classes_in_a_function(function):
    assert int(tg.function(function)(tg.constant(3))) == function(3)


def test_another_order_of_keys_in_a_branch_is_told():
    @tg.function
    def f(x):
        table = {"a": x, "b": x * 2.0}
        if x > 1.0:
            table["a"] = table.pop("a") * 3.0
        return table["a"]

    with pytest.warns(UserWarning, match="the keys of table get another order in a branch"):
        assert float(f(tg.constant(2.0))) == 6.0
    assert float(f(tg.constant(0.5))) == 0.5
