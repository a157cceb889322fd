"""A gradient that is 0 is explained by what the run chose: the branch that it did not take, the
loop that ran 0 times. A state of a loop that nothing reaches, and a break in a body, make it None.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.control_passes.dataflow import Flows


@pytest.fixture
def x():
    return tg.Variable(2.0, name="x")


@pytest.fixture
def w():
    return tg.Variable(3.0, name="w")


def line_of(mark, function):
    """The line of a test that has a mark at its end."""
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


def explained(compute, source):
    with tg.GradientTape(persistent=True) as tape:
        target = compute()
    return tape.explain(target, source), tape.gradient(target, source)


def test_the_branch_that_was_not_taken(x, w):
    found, gradient = explained(
        lambda: tg.cond(
            x > 5.0,  # decided
            lambda: x * w,  # used
            lambda: x + 1.0,
        ),
        w,
    )
    used = line_of("used", test_the_branch_that_was_not_taken)
    head = str(found).split("\n")[0]
    assert head == (
        "the gradient with respect to the variable 'w:0' is 0 (branch_not_taken): the branch that "
        f"uses it, at test_explain_choices.py:{used}, was not taken: it was decided here"
    )
    assert (found.reason, found.is_zero, found.is_connected) == ("branch_not_taken", True, True)
    assert found.line == line_of("decided", test_the_branch_that_was_not_taken) - 1
    assert float(gradient) == 0.0


def test_the_branch_that_was_taken(x, w):
    found, gradient = explained(lambda: tg.cond(x > 1.0, lambda: x * w, lambda: x + 1.0), w)
    assert (found.reason, found.is_zero) == ("connected", False)
    assert float(gradient) == 2.0


def test_the_branch_that_returns_it(w):
    no = tg.constant(False)
    found, gradient = explained(lambda: tg.cond(no, lambda: w * 1.0, lambda: tg.constant(1.0)), w)
    assert "the branch that returns it was not taken: it was decided here" in str(found)
    assert float(gradient) == 0.0


@pytest.mark.parametrize(
    ("index", "reason", "slope"),
    [(0, "branch_not_taken", 0.0), (1, "connected", 3.0), (2, "branch_not_taken", 0.0)],
)
def test_one_of_many_branches(x, w, index, reason, slope):
    branches = [lambda: x * 2.0, lambda: w * 3.0, lambda: x * x]
    found, gradient = explained(lambda: tg.switch_case(tg.constant(index), branches), w)
    assert (found.reason, float(gradient)) == (reason, slope)


def test_a_way_beside_the_branch_is_a_connection(x, w):
    found, gradient = explained(
        lambda: tg.cond(x > 5.0, lambda: x * w, lambda: x + 1.0) + 2.0 * w, w
    )
    assert found.reason == "connected"
    assert float(gradient) == 2.0


def test_a_break_in_the_branch_that_was_taken(x, w):
    found, gradient = explained(
        lambda: tg.cond(x > 1.0, lambda: tg.stop_gradient(w) * x, lambda: x * w), w
    )
    assert found.reason == "branch_not_taken"  # which alone has a derivative
    assert float(gradient) == 0.0


@pytest.mark.parametrize("calls", [1, 2])
def test_inside_a_function(x, w, calls):
    @tg.function
    def step(a):
        if a > 5.0:  # the if
            return a * w  # in the branch
        return a * x

    @tg.function
    def outer(a):
        return step(a) + 1.0  # the call

    found, gradient = explained(lambda: [outer(tg.constant(2.0)) for _ in range(calls)][-1], w)
    lines = [line_of(mark, test_inside_a_function) for mark in ("the call", "the if")]
    assert found.reason == "branch_not_taken"
    assert [place.line for place in found.path][1:3] == lines
    used = line_of("in the branch", test_inside_a_function)
    assert f"uses it, at test_explain_choices.py:{used}, was not taken" in str(found)
    assert float(gradient) == 0.0
    found, gradient = explained(lambda: outer(tg.constant(6.0)), w)
    assert found.reason == "connected"
    assert float(gradient) == 6.0


def test_a_branch_inside_of_a_branch(x, w):
    def inner():
        return tg.cond(x > 1.5, lambda: x * 3.0, lambda: w * 3.0)  # inner

    found, gradient = explained(lambda: tg.cond(x > 1.0, inner, lambda: x * 2.0), w)
    assert found.line == line_of("inner", test_a_branch_inside_of_a_branch)
    assert found.reason == "branch_not_taken"
    assert float(gradient) == 0.0


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_while_loop_that_ran_so_often(x, trips):
    def compute():
        return tg.while_loop(
            lambda i, s: i < trips,
            lambda i, s: (i + 1, s * x),  # body
            (0, tg.constant(1.0)),
        )[1]

    found, gradient = explained(compute, x)
    assert float(gradient) == trips * 2.0 ** (trips - 1)
    assert found.is_zero == (trips == 0)
    if trips == 0:
        body = line_of("body", test_a_while_loop_that_ran_so_often)
        assert str(found).split("\n")[0] == (
            "the gradient with respect to the variable 'x:0' is 0 (loop_not_run): the loop that "
            f"uses it, at test_explain_choices.py:{body}, ran 0 times"
        )


def test_converted_loops(x):
    @tg.function
    def power(n):
        total = tg.constant(1.0)
        for _ in tg.range(n):  # loop
            total = total * x
        return total

    found, gradient = explained(lambda: power(tg.constant(0)), x)
    assert (found.reason, float(gradient)) == ("loop_not_run", 0.0)
    assert found.line == line_of("loop", test_converted_loops)
    found, gradient = explained(lambda: power(tg.constant(2)), x)
    assert (found.reason, float(gradient)) == ("connected", 4.0)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_scan_of_so_many_rows(x, rows):
    found, gradient = explained(
        lambda: tg.foldl(lambda s, e: s * x + e, tg.zeros([rows]), tg.constant(1.0)), x
    )
    assert found.reason == ("connected" if rows else "loop_not_run")
    assert float(gradient) == (4.0 if rows else 0.0)


def test_a_state_that_does_not_depend_on_it(x, w):
    def compute():
        body = lambda i, s, u: (i + 1, s * x, u * w)  # noqa: E731
        return tg.while_loop(lambda i, s, u: i < 3, body, (0, tg.constant(1.0), tg.constant(1.0)))

    with tg.GradientTape(persistent=True) as tape:
        _, _, u = compute()
    found = tape.explain(u, x)
    assert tape.gradient(u, x) is None
    assert (found.reason, found.is_zero) == ("unconnected", False)
    assert "nothing made of it reaches the target" in str(found)
    assert tape.explain(u, w).reason == "connected"


def test_a_break_that_one_step_meets_and_the_next_passes_on(x):
    def compute():
        return tg.while_loop(
            lambda i, s, u: i < 3,
            lambda i, s, u: (i + 1, s * tg.stop_gradient(x), u + s),  # stops
            (0, tg.constant(1.0), tg.constant(1.0)),
        )[2]

    found, gradient = explained(compute, x)
    assert gradient is None
    assert found.reason == "stop_gradient"
    last = line_of("stops", test_a_break_that_one_step_meets_and_the_next_passes_on)
    assert found.line == last


def test_what_only_decides(x, w):
    found, gradient = explained(lambda: tg.cond(x > 0.0, lambda: w * 1.0, lambda: w * 2.0), x)
    assert gradient is None
    assert found.reason == "dtype"
    assert "greater makes bool of it" in str(found)


def test_explaining_makes_no_effect_again(w):
    calls = []

    @tg.function
    def noted(a):
        tg.py_function(lambda: calls.append(1), [], [])
        if a > 5.0:
            return a * w
        return a * 2.0

    found, gradient = explained(lambda: noted(tg.constant(1.0)), w)
    assert float(gradient) == 0.0
    assert found.reason == "connected"  # what decided is not computed again
    assert calls == [1]


@pytest.mark.parametrize(("start", "slope"), [(1.0, 0.0), (99.0, 101.0)])
def test_a_branch_that_no_step_of_a_while_took(w, start, slope):
    @tg.function
    def grown(y, n):
        for _ in tg.range(n):
            if y > 100.0:  # the if of a step
                y = y * w
            else:
                y += 1.0
        return y

    found, gradient = explained(lambda: grown(tg.constant(start), tg.constant(3)), w)
    assert float(gradient) == slope
    assert found.reason == ("connected" if slope else "branch_not_taken")
    if not slope:
        line = line_of("the if of a step", test_a_branch_that_no_step_of_a_while_took)
        assert found.line == line


@pytest.mark.parametrize(
    ("rows", "reason"), [([-1.0, -2.0], "branch_not_taken"), ([-1.0, 2.0], "connected")]
)
def test_a_branch_that_no_step_of_a_scan_took(w, rows, reason):
    def step(total, x):
        return tg.cond(x > 0.0, lambda: total * w, lambda: total + x)

    found, gradient = explained(lambda: tg.foldl(step, tg.constant(rows), tg.constant(2.0)), w)
    assert (found.reason, float(gradient) == 0.0) == (reason, reason != "connected")


# What flows through a loop, whose number of steps is not known.


def flows_of(function, *specs):
    """Which inputs reach each output: their values, and their derivatives."""
    graph = tg.function(function).get_concrete_function(*specs).graph
    flow = Flows().of_graph(graph)
    count = range(len(graph.inputs))
    return [[[mask >> i & 1 for i in count] for mask in x] for x in (flow.values, flow.derivatives)]


def reached_by_jax(last, count):
    """Which of `count` numbers the results of 0 to 4 steps depend on."""

    def sizes(point):
        return [jnp.stack(jax.jacobian(lambda x, n=n: last(n, *x))(point), 1) for n in range(5)]

    point = tuple(np.linspace(0.1, 0.9, count))
    return np.abs(jax.jit(sizes)(point)).max(0) > 0


def test_what_flows_through_a_while():
    def shifted(a, b, c, d, e, n):
        return tg.while_loop(
            lambda i, *_: i < n,
            lambda i, a, b, c, e: (i + 1, b, c, tg.sin(d), 2.0 * e),
            (0, a, b, c, e),
        )[1:]

    def by_jax(n, a, b, c, d, e):
        for _ in range(n):
            a, b, c, e = b, c, jnp.sin(d), 2.0 * e
        return jnp.stack([a, b, c, e])

    values, derivatives = flows_of(shifted, *[tg.TensorSpec([])] * 5, tg.TensorSpec([], tg.int32))
    wanted = reached_by_jax(by_jax, 5)
    np.testing.assert_array_equal(values, np.column_stack([wanted, np.ones(4)]))
    np.testing.assert_array_equal(derivatives, np.column_stack([wanted, np.zeros(4)]))


def test_what_flows_through_a_scan():
    def shifted(a, b, d, e, row):
        step = lambda s, x: (s[1], d * x, 2.0 * s[2])  # noqa: E731
        return tg.foldl(step, tg.stack([row] * 3), (a, b, e))

    def by_jax(n, a, b, d, e, row):
        for _ in range(n):
            a, b, e = b, d * row, 2.0 * e
        return jnp.stack([a, b, e])

    for found in flows_of(shifted, *[tg.TensorSpec([])] * 5):
        np.testing.assert_array_equal(found, reached_by_jax(by_jax, 5))
