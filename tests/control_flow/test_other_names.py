"""Containers and objects that have several names, of which a branch or a loop gives one another
value, before or after they are changed in place: what the other names hold, and what is returned,
is that of plain Python, or is refused."""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import SignatureError


def of_a_list(n):
    xs = ys = [n, n]
    if n > 1.0:
        xs[0] = n * 5.0
        xs = [n, n]
    return ys[0], xs[0]


def by_a_method(n):
    xs = [n, n + 1.0]
    held = [xs]
    if n > 1.0:
        xs.reverse()
        xs = [*xs]
    return held[0]


def in_the_other_branch(n):
    xs = ys = [n, n]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    else:
        xs[0] = n * 5.0
    return ys[0], xs[0]


def of_a_dict(n):
    table = other = {"a": n, "b": n + 1.0}
    if n > 1.0:
        table.update(a=n * 7.0)
        table = dict(table)
    return other["a"], table["a"]


def of_a_deque(n):
    last = other = deque([n, n + 1.0])
    if n > 1.0:
        last.rotate(1)
        last = deque([n, n])
    return other[0], last[0]


def of_an_inner_list(n):
    rows = [[n, n], [n, n]]
    row = rows[0]
    if n > 1.0:
        rows[0][0] = n * 4.0
        rows[0] = [n, n]
    return row[0], rows[0][0]


def of_an_argument(n):
    def changed(values):
        own = values
        if n > 1.0:
            own[0] = n * 3.0
            own = [n, n]
        return own[0]

    xs = [n, n]
    return changed(xs), xs[0]


def exchanged(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs, ys = ys, xs
        xs[0] = n * 8.0
    return ys[0], xs[0]


def before_a_return(n):
    xs = ys = [n, n]
    if n > 1.0:
        xs[0] = n * 3.0
        return xs[0] + ys[0]
    xs = [n, n * 2.0]
    return xs[1] + ys[0]


def in_an_inner_branch(n):
    xs = ys = [n, n]
    if n > 1.0:
        if n > 2.0:
            xs[0] = n * 5.0
        xs = [n, n]
    return ys[0], xs[0]


@dataclass
class State:
    x: object
    held: list


def of_a_dataclass(n):
    state = other = State(n, [n, n])
    rows = state.held
    if n > 1.0:
        state.x = n * 2.0
        state.held[0] = n * 3.0
        state = State(n, [n * 2.0, n * 3.0])
    return other.x, rows[0], state.held[0]


def of_an_attribute(n):
    state = State(n, [n, n])
    rows = state.held
    if n > 1.0:
        state.held[0] = n * 5.0
        state.held = [n, n]
    return rows[0], state.held[0]


def returned_behind_a_return(n):
    table = {"a": n, "b": n + 1.0}
    if n > 1.0:
        return n, table
    table["a"] = table["a"] * 3.0
    return n, table


def returned_behind_a_loop(n):
    state = State(n, [n, n])
    if n > 1.0:
        return n, state.held
    for k in range(3):
        if n > 0.1 * k:
            state.held[k % 2] += n
    return n, state.held


def kept_in_a_tuple(n):
    xs, best = [n, n + 1.0], (n, [n, n])
    for k in range(3):
        xs[0] = xs[0] * 1.5
        if n > 0.2 + k:
            xs.reverse()
            best = (xs[0], xs)
            xs = [n, n]
    return best[0], best[1]


def reversed_in_the_other_branch(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    else:
        xs.reverse()
    return ys[0], xs[0]


def two_names_of_another(n):
    xs = ys = [n, n]
    table = {"xs": xs}
    if n > 1.0:
        xs = ys = [n * 2.0, n]
        table = {"xs": xs}
    xs[0] = n * 9.0
    return ys[0], table["xs"][0]


def changed_behind_a_return(n):
    table = {"a": n}
    try:
        if n > 1.0:
            table["a"] = n * 2.0
            return table
        table["a"] = n * 7.0
    finally:
        table["a"] = table["a"] + 1.0
    return table


def in_a_loop_with_resets(n):
    state, k = {"t": 0.0, "x": n}, n * 0.0
    while k < 5.0:
        state["t"] += 1.0
        state["x"] = state["x"] * 1.5
        if state["x"] > 6.0:
            state = {"t": 0.0, "x": n}
        k += 1.0
    return state["t"], state["x"]


def changed_behind_the_branch(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    xs[0] = n * 9.0
    return ys[0], xs[0], ys[1]


def changed_by_the_other_name(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    ys[0] = n * 9.0
    return ys[0], xs[0], ys[1]


def two_names_of_one_branch(n):
    if n > 1.0:
        xs = ys = [n, n]
    else:
        xs, ys = [n, n * 2.0], [n * 3.0, n * 4.0]
    xs[0] = n * 9.0
    return ys[0], xs[0], ys[1]


def names_that_overlap(n):
    a, b = [n, n + 3.0], [n + 1.0, n + 5.0]
    if n > 1.0:
        xs, ys = a, b
    else:
        xs, ys = b, b
    xs[0] = n * 9.0
    ys[1] = n * 7.0
    return ys, xs, a, b


def changed_by_a_method(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    xs.reverse()
    return ys[0], xs[0], ys[1]


def of_a_conditional_expression(n):
    a, b = [n, n + 3.0], [n + 1.0, n + 5.0]
    xs = a if n > 1.0 else b
    xs[1] += n
    return a, b, xs


def changed_in_a_later_branch(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    if n > 2.0 or n < 0.8:
        xs[0] = n * 9.0
    return ys[0], xs[0], ys[1]


def changed_in_a_later_loop(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    k = n
    while k < 6.0:
        xs[0] = xs[0] * 1.5
        k += 1.0
    return ys[0], xs[0], ys[1]


def in_an_unrolled_loop(n):
    xs = ys = [n, n + 1.0]
    for k in range(4):
        if n > k:
            xs = [xs[0], n * 3.0]
        xs[0] = xs[0] * 1.5
        xs[1] += k
    return ys[0], xs[0], ys[1]


def of_an_object_behind_the_branch(n):
    s = o = State(n, [n, n])
    if n > 1.0:
        s = State(n * 2.0, [n * 3.0, n * 4.0])
    s.x = n * 7.0
    s.held[1] = n * 8.0
    return o.x, o.held[1], s.x, s.held[1]


def of_an_object_in_a_later_loop(n):
    s = o = State(n, [n, n])
    if n > 1.0:
        s = State(n * 2.0, [n * 3.0, n * 4.0])
    k = n
    while k < 6.0:
        s.x = s.x * 2.0
        s.held[1] += n
        k = k + 1.0
    return o.x, o.held[1], s.x, s.held[1]


def of_rows(n):
    rows = [[n, n], [n, n * 2.0]]
    row = rows[0]
    if n > 1.0:
        row = rows[1]
    row[0] = n * 5.0
    return rows, row


def change(own, n):
    own[1] = n * 4.0


def changed_by_a_function(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    change(xs, n)
    return ys[0], xs[0], ys[1]


def of_dicts_behind_the_branch(n):
    t = u = {"a": n, "b": n}
    if n > 1.0:
        t = {"a": n * 3.0, "b": n}
    t.update(a=n * 4.0)
    t["b"] *= 2.0
    return t, u


def exchanged_by_a_branch(n):
    a, b = [n, n * 2.0], [n * 3.0, n * 4.0]
    if n > 1.0:
        a, b = b, a
    c = a
    a[0] = n * 10.0
    b[1] = n * 20.0
    return a, b, c


def bound_anew_twice(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n * 3.0]
    if n > 2.0:
        xs = [n * 5.0, n * 6.0]
    xs[0] = n * 9.0
    ys[1] = n * 8.0
    return ys, xs


def returned_by_a_function(n):
    def pick(a, b):
        if n > 1.0:
            return a
        return b

    a, b = [n, n], [n * 2.0, n]
    c = pick(a, b)
    c[0] = n * 11.0
    return a, b, c


def changed_by_one_statement(n):
    xs = ys = [n, n + 1.0]
    if n > 1.0:
        xs = [n * 2.0, n]
    xs[0], ys[1] = n * 5.0, n * 6.0
    return xs, ys


def in_tuples(n):
    xs = ys = ([n, n + 1.0], n)
    if n > 1.0:
        xs = ([n * 2.0, n], n * 2.0)
    xs[0][0] = n * 5.0
    return xs, ys


def of_the_attribute_of_an_object(n):
    c = State(n, [n, n])
    keep = c.held
    if n > 1.0:
        c.held = [n * 2.0, n]
    c.held[0] = n * 6.0
    return keep, c.held


def two_names_in_a_later_branch(n):
    if n > 1.0:
        xs = ys = [n * 2.0, n]
    else:
        xs, ys = [n, n * 2.0], [n * 3.0, n * 4.0]
    if n > 2.0 or n < 0.8:
        xs[0] = n * 9.0
    return ys[0], xs[0], ys[1]


@dataclass(slots=True)
class Slotted:
    x: object
    held: list

    def put(self, value):
        self.held[0] = value


def of_a_class_with_slots(n):
    state = other = Slotted(n, [n, n])
    if n > 1.0:
        state = Slotted(n * 5.0, [n, n])
        state.x = state.x + 1.0
    else:
        state.x = state.x + 2.0
    return other.x, state.x


def in_a_slot(n):
    state = Slotted(n, [n, n])
    rows = state.held
    if n > 1.0:
        state.put(n * 3.0)
    while rows[0] < 9.0:
        state.put(rows[0] + 1.0)
    return rows


def one_by_several_ways(n):
    a, b = [n, n + 1.0], [n * 2.0, n - 1.0]
    c, rows = a, [b]
    a = a if n < 0.8 else b
    for _ in range(3):
        if n > 1.0:
            b = c
        else:
            a[1] = a[0] + 3.0
        if n < 0.8:
            a = [n * 3.0, a[0]]
        else:
            a[0] = a[1] + 7.0
        c = a if n > 1.0 else c
    b.reverse()
    return a, b, c, rows


def exchanged_by_a_loop(n):
    a, b = [n, n + 1.0], [n * 2.0, n]
    for _ in tg.range(3):
        a, b = b, a
    a[0] = a[0] + 10.0
    return a, b


PROGRAMS = [
    of_a_class_with_slots,
    in_a_slot,
    of_a_list,
    by_a_method,
    in_the_other_branch,
    of_a_dict,
    of_a_deque,
    of_an_inner_list,
    of_an_argument,
    exchanged,
    before_a_return,
    in_an_inner_branch,
    of_a_dataclass,
    of_an_attribute,
    returned_behind_a_return,
    returned_behind_a_loop,
    kept_in_a_tuple,
    reversed_in_the_other_branch,
    two_names_of_another,
    changed_behind_a_return,
    in_a_loop_with_resets,
    changed_behind_the_branch,
    changed_by_the_other_name,
    two_names_of_one_branch,
    names_that_overlap,
    changed_by_a_method,
    of_a_conditional_expression,
    changed_in_a_later_branch,
    changed_in_a_later_loop,
    in_an_unrolled_loop,
    of_an_object_behind_the_branch,
    of_an_object_in_a_later_loop,
    of_rows,
    changed_by_a_function,
    of_dicts_behind_the_branch,
    exchanged_by_a_branch,
    bound_anew_twice,
    returned_by_a_function,
    changed_by_one_statement,
    in_tuples,
    of_the_attribute_of_an_object,
    two_names_in_a_later_branch,
    one_by_several_ways,
    exchanged_by_a_loop,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_other_names_hold_what_python_puts_there(program):
    f = tg.function(program)
    for n in (0.5, 1.5, 3.0):
        found = tg.nest.flatten(f(tg.constant(n, tg.float64)))
        assert [*map(float, found)] == pytest.approx([*tg.nest.flatten(program(n))])


def read_after_a_loop(n):
    xs = ys = [n, n]
    while n < 10.0:
        xs[0] = n * 2.0
        xs = [n, n]
        n = n + 1.0
    return ys[0] + n


def read_in_a_loop(n):
    xs = ys = [n, n]
    while n < 10.0:
        xs[0] = n * 2.0
        n = n + ys[0]
        xs = [n, n]
    return n


def returned_after_a_loop(n):
    state = first = State(n, [n])
    for _ in tg.range(3):
        state.x = n * 2.0
        state = replace(state, x=state.x * 2.0)
    return first.x


def of_another_type(n):
    xs = ys = [n, n]
    if n > 1.0:
        del xs[0]
        xs = [n, n]
    return ys[0] * xs[0]


def decided_in_an_inner_branch(n):
    xs = ys = [n, n]
    if n > 1.0:
        n = n * 2.0
        if n > 2.0:
            xs = [n, n * 2.0]
    xs[0] = n * 3.0
    return xs[1] * ys[0]


def decided_by_a_loop(n):
    xs = ys = [n, n]
    while n < 2.0:
        xs = [n * 2.0, n * 3.0]
        n = n + 1.0
    xs[0] = n * 9.0
    return tg.stack(ys)


def of_another_length(n):
    xs = ys = [n]
    if n > 1.0:
        xs = [n * 2.0]
    xs.append(n)
    return ys[0] * n


def of_another_length_from_nothing(n):
    xs = ys = []
    if n > 1.0:
        xs = []
    xs.append(n)
    return tg.stack(ys)


UNKNOWN = [
    decided_in_an_inner_branch,
    decided_by_a_loop,
    of_another_length,
    of_another_length_from_nothing,
]


def at_two_places(n):
    row = [n, n + 1.0]
    rows = [row, [n, n]]
    if n > 1.0:
        rows[1] = row
        row.reverse()
    return rows[1][0]


def by_another_name_in_a_loop(n):
    xs = ys = [n, n]
    while n < 10.0:
        ys[0] = n * 2.0
        xs = xs if n > 5.0 else [n, n]
        n = n + 1.0
    return n + xs[0]


def unknown_after_a_loop(n):
    xs = ys = [n, n]
    if n > 1.0:
        n = n * 2.0
        if n > 2.0:
            xs = [n, n * 2.0]
    for _ in tg.range(2):
        xs[0] = xs[0] + n
    return ys[0] * n


def unknown_in_a_loop(n):
    xs = ys = [n, n]
    if n > 1.0:
        n = n * 2.0
        if n > 2.0:
            xs = [n, n * 2.0]
    for _ in tg.range(2):
        xs[0] = n
        n = n + ys[0]
    return n


def unknown_in_a_branch(n):
    xs = ys = [n, n]
    for _ in tg.range(2):
        xs = [n, n]
    if n > 1.0:
        xs[1] = n * 2.0
    else:
        ys[1] = n * 3.0
    return ys[1]


def changed_twice_by_one_statement(n):
    xs = ys = [n, n]
    if n > 1.0:
        xs = [n * 2.0, n]
    xs[0], ys[0] = n * 3.0, n * 4.0
    return xs[0] + ys[0]


@pytest.mark.parametrize(
    "function, fact",
    [
        (read_after_a_loop, r"xs\[0\] is changed in place by the loop .* gives 'xs' another value"),
        (read_in_a_loop, r"xs\[0\] is changed in place by the loop"),
        (returned_after_a_loop, r"state\.x is changed in place by the loop"),
        *((f, r"may have been changed in place at .*test_other_names") for f in UNKNOWN),
        (at_two_places, r"rows\[1\] becomes a container with another name"),
        *(
            (f, r"may have been changed in place at .*test_other_names\.py:\d+, by another name")
            for f in (unknown_after_a_loop, unknown_in_a_loop, unknown_in_a_branch)
        ),
        (
            by_another_name_in_a_loop,
            r"may have been changed in place at|xs\[0\] is changed in place",
        ),
        (changed_twice_by_one_statement, "two names that may stand for one container"),
        (of_another_type, "the values of the items of xs after the `if` .* differ in type"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_a_graph_cannot_tell_of_them_is_refused(function, fact):
    with pytest.raises(SignatureError, match=fact):
        tg.function(function)(tg.constant(3.0))


def test_an_error_in_a_loop_leaves_them_as_they_were():
    xs = [1.0, 2.0]

    @tg.function
    def failing(n):
        own = xs
        while n < 10.0:
            own[0] = n
            own = [n, n]
            n = tg.concat([n, n], 0)
        return n

    with pytest.raises(Exception, match="concat"):
        failing(tg.constant(1.0))
    np.testing.assert_equal(xs, [1.0, 2.0])


def test_a_container_that_nothing_else_has_costs_no_nodes():
    @tg.function
    def f(n):
        state = {"a": n, "b": n * 2.0}
        for _ in range(30):
            if state["a"] > 3.0:
                state = {"a": n, "b": n}
            state["a"] = state["a"] + state["b"]
        return state["a"]

    nodes = f.get_concrete_function(tg.TensorSpec((), tg.float64)).graph.nodes
    assert len(nodes) < 4 * 30


def test_a_refusal_leaves_lists_in_lists_as_they_were():
    row, rest = [1.0, 2.0], [3.0, 4.0]
    rows = [row, rest]

    @tg.function
    def f(n):
        if n > 1.0:
            rows[1] = row
            row.reverse()
        return n

    with pytest.raises(SignatureError, match=r"rows\[1\] becomes"):
        f(tg.constant(2.0))
    assert rows[0] is row and rows[1] is rest
    assert (row, rest) == ([1.0, 2.0], [3.0, 4.0])
