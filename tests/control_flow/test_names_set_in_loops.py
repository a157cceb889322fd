"""Names that only loops set, which have no value where no iteration sets one."""

import numpy as np
import pytest

import tracegraph as tg


def by_while(x, m):
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
        m = m + 1
        k = k + 1.0
    return q


def structures(x, m):
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = (k + 1.0, {"a": k})
            j += 1
        m = m + 1
        k = k + 1.0
    return q[0] + q[1]["a"]


def changed_in_a_branch(x, m):
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
        if k > 1.0:
            k = k + 0.5
            q = q * 2.0
        m = m + 1
        k = k + 1.0
    return q


def left_by_break(x, m):
    k = 0.0 * x
    while True:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
            if j > 3:
                break
        k = k + 1.0
        m = m + 1
        if k >= x:
            break
    return q


def three_loops(x, m):
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            i = 0
            while i < m - 1:
                q = k * 2.0
                i += 1
            j += 1
        m = m + 1
        k = k + 1.0
    return q


def read_in_some_iterations(x, m):
    k = 0.0 * x
    total = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
        if k > 0.0:
            total = total + q
        m = m + 1
        k = k + 1.0
    return total


def returned_early(x, m):
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
            if q > 2.0:
                return q * 3.0
        m = m + 1
        k = k + 1.0
    return q


def a_list(x, m):
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = []
            for i in range(3):
                q.append(k + i)
            j += 1
        m = m + 1
        k = k + 1.0
    return q[0] + q[2]


def a_loop_of_python_around(x, m):
    for t in range(3):
        j = 0
        while j < m:
            q = x + t
            j += 1
        m = m + 1
    return q


def read_by_a_lambda(x, m):
    get = lambda: q  # noqa: E731
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
        m = m + 1
        k = k + 1.0
    return get()


def read_where_a_tensor_decides(x, m):
    j = 0
    while j < m:
        q = x + 1.0
        j += 1
    return q if m > -3 else x


PROGRAMS = [
    by_while,
    structures,
    changed_in_a_branch,
    left_by_break,
    three_loops,
    read_in_some_iterations,
    returned_early,
    a_list,
    a_loop_of_python_around,
    read_by_a_lambda,
    read_where_a_tensor_decides,
]
NOT_SET = r"'q' is set by a loop that ran 0 times"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_name_that_an_inner_loop_sets_is_as_in_python(program):
    f = tg.function(program)
    for x, m in ((3.0, 2), (3.0, 0), (3.0, -1), (3.0, -5), (0.0, 2)):
        given = tg.constant(x), tg.constant(m)
        try:
            expected = program(np.float32(x), m)
        except NameError:
            with pytest.raises(tg.errors.InvalidArgumentError, match=NOT_SET):
                f(*given)
        else:
            assert float(f(*given)) == expected


def test_the_value_of_an_inner_loop_has_derivatives():
    @tg.function
    def f(x, m):
        k = 0.0
        while k < 3.0:
            j = 0
            while j < m:
                q = x**3 * k
                j += 1
            m = m + 1
            k += 1.0
        return q

    x = tg.constant(2.0)
    with tg.GradientTape() as outer, tg.GradientTape() as inner:
        [t.watch(x) for t in (outer, inner)]
        y = f(x, tg.constant(-1))
        slope = inner.gradient(y, x)
    assert (float(y), float(slope), float(outer.gradient(slope, x))) == (16.0, 24.0, 24.0)
    rows = tg.vectorized_map(lambda m: f(x, m), tg.constant([2, 0, -1]))
    assert rows.numpy().tolist() == [16.0, 16.0, 16.0]


class Holder:
    pass


def set_attribute(x, m):
    holder = Holder()
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            holder.q = k + 1.0
            j += 1
        k = k + 1.0
    return holder.q


def set_item(x, m):
    holder = {}
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            holder["q"] = k + 1.0
            j += 1
        k = k + 1.0
    return holder["q"]


def set_global(x, m):
    global q
    k = 0.0 * x
    while k < x:
        j = 0
        while j < m:
            q = k + 1.0
            j += 1
        k = k + 1.0
    return q


@pytest.mark.parametrize("program", [set_attribute, set_item, set_global])
def test_what_others_may_read_must_be_set_by_each_inner_loop(program, monkeypatch):
    monkeypatch.delitem(globals(), "q", raising=False)
    f = tg.function(program)
    assert float(f(tg.constant(2.0), tg.constant(2))) == 2.0
    for x, m in ((2.0, 0), (0.0, 2)):
        with pytest.raises(tg.errors.InvalidArgumentError, match="is set by a loop that ran 0"):
            f(tg.constant(x), tg.constant(m))


def test_a_global_name_without_a_value_gets_one_in_both_branches_or_none(monkeypatch):
    monkeypatch.delitem(globals(), "chosen", raising=False)

    @tg.function
    def both(x):
        global chosen
        if x > 0.0:
            chosen = 2.0 * x
        else:
            chosen = x
        return chosen

    @tg.function
    def one(x):
        global chosen
        if x > 0.0:
            chosen = 2.0 * x
        return x

    assert float(both(tg.constant(3.0))) == 6.0
    del globals()["chosen"]
    with pytest.raises(tg.errors.SignatureError, match="'chosen' is set in only one branch"):
        one(tg.constant(3.0))
    assert "chosen" not in globals()
