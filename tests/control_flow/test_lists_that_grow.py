"""Lists that a loop of the graph makes grow, in converted functions: what Python does with lists,
compared with Python, and what is refused."""

from types import FunctionType, SimpleNamespace

import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import gradient
from tracegraph.errors import (
    DTypeError,
    InvalidArgumentError,
    ShapeError,
    SignatureError,
    TraceError,
)


def in_python(function):
    """The function with lists and integers of Python's."""
    names = SimpleNamespace(range=range, stack=np.array, constant=int)
    return FunctionType(function.__code__, {**globals(), "tg": names})


def adding(n):
    xs, ys = [7], []
    for i in tg.range(n):
        xs += [2 * i, i]
        ys += [i * i]
    xs += [n]
    xs += ys
    return tg.stack(xs)


def sums(n):
    xs, total = [], 0
    for i in tg.range(n):
        xs += [i]
        total += len(xs)
    first = [n]
    ys = first + xs
    ys += [total]
    xs += xs
    return tg.stack(ys + xs + ys)


def extending_python(n):
    xs, ys = [], [7]
    for i in tg.range(n):
        xs.append(i)
    ys += xs
    ys.extend(xs)
    return tg.stack(ys)


def repeated(n):
    xs, ys = [3], []
    for i in tg.range(n):
        xs.append(i)
        ys.append(10 * i)
    zs = 2 * xs
    ys *= 3
    ys += xs * 0
    xs *= True
    if n > 2:
        xs *= 2
    return tg.stack(zs + ys + xs)


def renamed(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    ys = xs
    xs = []
    for i in tg.range(n + 1):
        xs.append(10 * i)
    return tg.stack(ys + xs)


def popping_behind(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    a, b = xs.pop(), xs.pop()
    xs.append(10 * a)
    xs += [b, a + b]
    for i in tg.range(n):
        xs.append(i - n)
    return tg.stack(xs)


def popping_in_a_step(n):
    total = 0
    for i in tg.range(n):
        xs = [i]
        for j in tg.range(3):
            xs.append(j * i)
        total += 10 * xs.pop() + len(xs)
    return total


def other_names(n):
    xs, table = [], [[n], []]
    for i in tg.range(n):
        xs.append(i)
        table[0].append(-i)
    ys, row = xs, table[0]
    xs.append(n)
    ys += [n, 5]
    row.append(n + 1)
    return tg.stack(xs + table[0])


def asking_in_the_loop(n):
    xs, pairs, total = [], [], 0
    for i in tg.range(n):
        if xs:
            total += xs[-1]
        if len(pairs) > 1:
            total += 100 * pairs[-2][0]
        for j in tg.range(2):
            pairs += [tg.stack([i, j])]
        xs += [i]
    return total


def asking(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    found, k = 0, 0
    if isinstance(xs, (list, dict)) and type(xs) is list and not isinstance(xs, tuple):
        found += 1
    if xs:
        found += 10
    if not xs:
        found += 100
    if xs and xs[-1] > 2:
        found += 1000
    if 2 in xs:
        found += 10_000
    while xs and k < 3:
        k += 1
    found += 100_000 if xs == [] else 200_000
    found += (xs[-1] if xs else 7) * 1_000_000
    if xs != []:
        found += 100_000_000
    return found + k * 10_000_000


@pytest.mark.parametrize(
    "function, counts",
    [
        (adding, (4, 0)),
        (sums, (4, 1)),
        (extending_python, (3, 0)),
        (repeated, (3, 0)),
        (renamed, (3, 0)),
        (popping_behind, (4, 2)),
        (popping_in_a_step, (4, 0)),
        (other_names, (3,)),
        (asking_in_the_loop, (4, 0)),
        (asking, (4, 1, 0)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_python_does_with_lists(function, counts):
    f = tg.function(function)
    for n in counts:
        np.testing.assert_array_equal(f(tg.constant(n)).numpy(), in_python(function)(n))
    # A length that Python knows.
    np.testing.assert_array_equal(f(counts[0]).numpy(), in_python(function)(counts[0]))


def test_derivatives_through_items_that_are_added_and_popped():
    @tg.function
    def f(x, n):
        xs, y = [], x
        for _ in tg.range(n):
            y = y * x
            xs += [y, x]
        xs.pop()
        last = 3.0 * xs.pop()
        xs += [x]
        return last + tg.reduce_sum(tg.stack(xs))

    slope = gradient(lambda x: f(x, tg.constant(3)), tg.constant(1.1, tg.float64))
    # 3 x^4 + (x^2 + x) + (x^3 + x) + x
    assert float(slope) == pytest.approx(12 * 1.1**3 + 2 * 1.1 + 3 * 1.1**2 + 3, rel=1e-12)


def helper(xs, x):
    xs.append(x)


def adding_helper(xs, x):
    xs += [x]


def by_a_helper_in_a_branch(n):
    xs = []
    for i in tg.range(4):
        xs.append(i)
    if n > 9:
        helper(xs, 5)
    return len(xs)


def by_a_helper_in_a_loop(n):
    xs = []
    for i in tg.range(n):
        adding_helper(xs, i)
    return len(xs)


def by_another_name_in_a_loop(n):
    table = [[n], []]
    for i in tg.range(n):
        row = table[0]
        row += [i]
    return len(table[0])


def by_another_name_of_a_grown_one(n):
    table = [[n], []]
    for i in tg.range(n):
        table[0].append(i)
    for i in tg.range(n):
        row = table[0]
        row.append(i)
    return len(table[0])


def added_in_both_branches(n):
    xs = [n]
    if n > 1:
        xs += [n]
    else:
        xs += [0]
    return len(xs)


def popped_in_the_loop(n):
    xs, total = [], 0
    for i in tg.range(n):
        xs.append(i)
        xs.append(3 * i)
        total += xs.pop()
    return total


def popped_in_a_later_loop(n):
    xs, total = [], 0
    for i in tg.range(n):
        xs.append(i)
    while xs:
        total += xs.pop()
    return total


def popped_in_a_branch(n):
    xs = []
    for i in tg.range(4):
        xs.append(i)
    if n > 9:
        xs.pop()
    return len(xs)


def popped_in_front(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    return xs.pop(0)


def inserted(n):
    xs = []
    for i in tg.range(n):
        xs.insert(0, i)
    return len(xs)


def chosen_by_or(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    return len(xs or [n])


def compared(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    return xs == [n]


def vectors(n):
    xs = []
    for i in tg.range(n):
        xs.append(tg.stack([i, i]))
    return n in xs


def of_two_names(n):
    xs = []
    ys = xs
    for i in tg.range(n):
        xs.append(i)
    return len(ys)


def of_two_targets(n):
    xs = ys = []
    for i in tg.range(n):
        xs += [i]
    return len(ys)


def held_by_an_object(n):
    xs, table = [], SimpleNamespace()
    table.xs = xs
    for i in tg.range(n):
        xs.append(i)
    return len(table.xs)


def of_two_names_between_loops(n):
    xs = []
    for i in tg.range(n):
        xs.append(i)
    ys = xs
    for i in tg.range(n):
        xs.append(i)
    return len(ys)


def repeated_in_the_loop(n):
    xs = [n]
    for i in tg.range(n):
        xs.append(i)
        xs *= 2
    return tg.stack(xs)


def repeated_in_a_branch(n):
    table = {"xs": []}
    for i in tg.range(n):
        table["xs"].append(i)
    xs = table["xs"]
    if n > 2:
        xs *= 2
    return tg.stack(table["xs"])


def added_to_itself(n):
    xs = [n]
    for _ in tg.range(n):
        xs += xs
    return tg.stack(xs)


def repeated_as_another_list(n):
    xs = [n]
    for _ in tg.range(n):
        xs.append(n)
        n += tg.size(tg.stack(xs * 2))
    return n


def extended_by_each(n):
    xs, ys = [], []
    for i in tg.range(n):
        xs.append(i)
        ys += xs
    return tg.stack(ys)


def of_two_names_extended(n):
    xs = ys = [n]
    more = []
    for i in tg.range(n):
        more.append(i)
    xs += more
    return tg.stack(ys)


def behind_a_loop(use):
    def function(n):
        xs = []
        for i in tg.range(n):
            xs.append(i)
        return use(xs)

    return function


@pytest.mark.parametrize(
    "function, kind, fact",
    [
        (repeated_in_the_loop, SignatureError, r"`\*=` changes a list to which a loop appends"),
        (repeated_in_a_branch, SignatureError, r"\.__imul__\(\) changes a list in a branch"),
        (repeated_as_another_list, SignatureError, "is added to itself, or repeated, in that loop"),
        (added_to_itself, SignatureError, "is added to itself, or repeated, in that loop"),
        (extended_by_each, SignatureError, "gets all of another one in that loop"),
        (of_two_names_extended, SignatureError, "a list that has several names gets the items"),
        (behind_a_loop(lambda xs: xs * 2.0), DTypeError, r"a list is repeated 2\.0 times"),
        (behind_a_loop(lambda xs: xs.index(1)), TraceError, r"\.index\(\) compares the items"),
        (behind_a_loop(lambda xs: xs.count(1)), TraceError, r"\.count\(\) compares the items"),
        (behind_a_loop(lambda xs: [2 * x for x in xs]), TraceError, r"in a `for` statement"),
        (behind_a_loop(lambda xs: xs[1:]), TraceError, r"tg\.stack\(xs\)\[1:\]"),
        (by_a_helper_in_a_branch, SignatureError, r"\.append\(\) changes a list in a branch"),
        (by_a_helper_in_a_loop, SignatureError, r"\.append\(\) changes a list in a loop"),
        (by_another_name_in_a_loop, SignatureError, r"\.append\(\) changes a list in a loop"),
        (by_another_name_of_a_grown_one, SignatureError, r"\.append\(\) changes a list in a loop"),
        (of_two_names, SignatureError, r"\.append\(\) changes a list in a loop"),
        (of_two_targets, SignatureError, r"\.\w+\(\) changes a list in a loop"),
        (held_by_an_object, SignatureError, r"\.append\(\) changes a list in a loop"),
        (of_two_names_between_loops, SignatureError, r"\.append\(\) changes a list in a loop"),
        (added_in_both_branches, SignatureError, r"\.append\(\) changes a list in a branch"),
        (popped_in_the_loop, SignatureError, r"\.pop\(\) changes a list to which a loop appends"),
        (popped_in_a_later_loop, SignatureError, r"\.pop\(\) changes a list in a loop"),
        (popped_in_a_branch, SignatureError, r"\.pop\(\) changes a list in a branch"),
        (popped_in_front, SignatureError, r"\.pop\(0\) of a list to which a loop appends"),
        (inserted, SignatureError, r"\.insert\(\) changes a list in a loop"),
        (chosen_by_or, SignatureError, r"`or` gives one of its operands"),
        (compared, TraceError, r"is compared with another one"),
        (vectors, ShapeError, r"`in` compares scalars"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_is_refused(function, kind, fact):
    with pytest.raises(kind, match=fact) as error:
        tg.function(function)(tg.constant(3))
    assert f"{__file__}:" in str(error.value) and "  fix: " in str(error.value)


def test_pop_from_an_empty_list():
    @tg.function
    def f(n):
        xs = []
        for i in tg.range(n):
            xs.append(i)
        return xs.pop()

    assert int(f(tg.constant(2))) == 1
    with pytest.raises(InvalidArgumentError, match="pop from a list that is empty"):
        f(tg.constant(0)).numpy()


LATEST = [tg.constant(0)]


def put(x):
    LATEST[0] = LATEST[0] + x


def test_a_list_of_the_module_that_a_function_changes():
    @tg.function
    def f(n):
        LATEST[0] = 0 * n
        for i in tg.range(n):
            put(i)
        return LATEST[0]

    assert f(tg.constant(4)).numpy() == 6
    LATEST[0] = tg.constant(0)
