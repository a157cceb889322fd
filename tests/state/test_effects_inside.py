"""Prints and calls of Python functions inside branches and loops: in order, and once."""

import threading

import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import raises
from tracegraph.errors import MissingRuleError

pytestmark = pytest.mark.filterwarnings("ignore:.*the function was decorated again")


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Calls a function at top level, or traced."""
    if request.param == "top level":
        return lambda fn, *args: fn(*map(tg.constant, args))
    return lambda fn, *args: tg.function(fn)(*map(tg.constant, args))


@pytest.fixture
def lines(capsys):
    """What was printed since the last time."""
    return lambda: capsys.readouterr().err.split("\n")[:-1]


def said(*words):
    """An element of a tuple that prints: `(said(...), value)[1]`."""
    tg.print(*words)


def test_branches(run, lines):
    def chosen(x):
        tg.print("before")
        y = tg.cond(x > 0.0, lambda: (said("positive", x), x)[1], lambda: (said("not"), -x)[1])
        tg.print("after", y)
        return y

    for x, middle in ((2.0, "positive 2"), (-3.0, "not")):
        assert run(chosen, x).numpy() == abs(x)
        assert lines() == ["before", middle, f"after {abs(x):g}"]


@pytest.mark.sampled(1)
def test_a_branch_of_several(run, lines):
    def chosen(k):
        branches = [lambda n=n: (said("branch", n), tg.constant(n))[1] for n in range(3)]
        return tg.switch_case(k, branches) + tg.case(
            [(k > 1, lambda: (said("large"), 10)[1])], default=lambda: 20
        )

    for k, expected in ((0, ["branch 0"]), (2, ["branch 2", "large"])):
        assert run(chosen, k).numpy() == k + (10 if k == 2 else 20)
        assert lines() == expected


def of_python(function, *inputs, dtype=tg.float32):
    """The scalar that a function of Python returns."""
    return tg.py_function(function, inputs, tg.TensorSpec([], dtype))


LOOPS = {
    "while": lambda x: tg.while_loop(
        lambda i, s: i < 3, lambda i, s: (said("step", i, s), (i + 1, s * 2.0))[1], (0, x)
    )[1],
    "condition": lambda x: (
        tg.while_loop(
            lambda i, s: (said("step", i, s), i < 2)[1], lambda i, s: (i + 1, s * 2.0), (0, x)
        )[1]
        * 2.0
    ),
    "bounded": lambda x: tg.while_loop(
        lambda i, s: True,
        lambda i, s: (said("step", i, s), (i + 1, s * 2.0))[1],
        (0, x),
        maximum_iterations=3,
    )[1],
    "foldl": lambda x: tg.foldl(lambda s, i: (said("step", i, s), s * 2.0)[1], tg.range(3), x),
    "foldr": lambda x: tg.foldr(lambda s, i: (said("step", 2 - i, s), s * 2.0)[1], tg.range(3), x),
    "scan": lambda x: tg.scan(lambda s, i: (said("step", i, s), s * 2.0)[1], tg.range(3), x)[-1],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOOPS)
def test_loops(run, lines, name):
    assert run(LOOPS[name], 1.5).numpy() == 12.0
    assert lines() == ["step 0 1.5", "step 1 3", "step 2 6"]


def test_maps(run, lines):
    double = lambda x: tg.map_fn(lambda r: (said(r), 2.0 * r)[1], x)  # noqa: E731
    np.testing.assert_array_equal(run(double, [1.0, 2.5]).numpy(), [2, 5])
    assert lines() == ["1", "2.5"]
    assert run(double, np.zeros([0])).shape == (0,)
    assert lines() == []


def test_converted_code(lines):
    @tg.function
    def game(x, rounds):
        tg.print("begin")
        for k in tg.range(rounds):
            x = x * 2.0
            if x > 5.0:
                tg.print("high", k, x)
                if x > 9.0:
                    break
            else:
                tg.print("low", k)
        tg.print("end", x)
        return x

    assert game(tg.constant(1.0), tg.constant(9)).numpy() == 16.0
    assert lines() == ["begin", "low 0", "low 1", "high 2 8", "high 3 16", "end 16"]
    assert game(tg.constant(1.0), tg.constant(0)).numpy() == 1.0
    assert lines() == ["begin", "end 1"]


def gradient_of(fn):
    def gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        return tape.gradient(y, x)

    return gradient


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LOOPS)
def test_gradients_print_once(run, lines, name):
    cube = lambda x: LOOPS[name](x) ** 3  # noqa: E731
    steps = ["step 0 1.5", "step 1 3", "step 2 6"]
    slope = 3 * 8**3 * 1.5**2
    assert run(gradient_of(cube), 1.5).numpy() == slope
    assert lines() == steps
    assert gradient_of(tg.function(cube))(tg.constant(1.5)).numpy() == slope
    assert lines() == steps
    assert run(gradient_of(gradient_of(cube)), 1.5).numpy() == 6 * 8**3 * 1.5
    assert lines() == steps
    for given in (cube, tg.function(cube)):
        tangent = lambda x, f=given: tg.jvp(f, [x], [tg.ones_like(x)])[1]  # noqa: E731
        assert run(tangent, 1.5).numpy() == slope
        assert lines() == steps


@pytest.mark.sampled(1)
def test_gradients_through_a_branch(run, lines):
    chosen = lambda x: tg.cond(x > 0, lambda: (said("taken"), x**3)[1], lambda: -x)  # noqa: E731
    for x, slope, second, expected in ((2.0, 12, 12, ["taken"]), (-2.0, -1, 0, [])):
        assert run(gradient_of(chosen), x).numpy() == slope
        assert lines() == expected
        assert run(gradient_of(gradient_of(chosen)), x).numpy() == second
        assert lines() == expected


@pytest.mark.sampled(1)
def test_nests(run, lines):
    def nested(x):
        def row(total, k):
            inner = tg.while_loop(
                lambda j, s: j < k,
                lambda j, s: (said("inner", k, j), (j + 1, s * x))[1],
                (0, tg.ones_like(x)),
            )[1]
            return tg.cond(inner > 3.0, lambda: (said("large"), total + inner)[1], lambda: total)

        return tg.foldl(row, tg.range(4), tg.zeros_like(x))

    printed = ["inner 1 0", "inner 2 0", "inner 2 1", "large"]
    printed += ["inner 3 0", "inner 3 1", "inner 3 2", "large"]
    assert run(nested, 2.0).numpy() == 4 + 8
    assert lines() == printed
    assert run(gradient_of(nested), 2.0).numpy() == 2 * 2 + 3 * 4
    assert lines() == printed


def test_variables_and_random_numbers(lines):
    v, generator = tg.Variable(1.0), tg.random.Generator.from_seed(3)
    plain, loud = [], []
    for found, prints in ((plain, False), (loud, True)):
        generator.reset_from_seed(3)
        v.assign(1.0)

        @tg.function
        def steps(n, prints=prints):
            for _ in tg.range(n):
                v.assign_add(generator.normal([]))
                if prints:
                    tg.print(v)
            return v * 1.0

        found += [steps(tg.constant(4)).numpy(), v.numpy()]
    assert plain == loud
    assert float(lines()[-1]) == pytest.approx(float(v.numpy()), rel=1e-4)


def test_python_functions_see_and_assign_variables():
    """As plain Python does it."""
    v, seen = tg.Variable(1.0), []

    def look(q):
        seen.append((float(q), float(v.numpy())))
        v.assign_add(10.0)
        return q + v

    @tg.function
    def steps(n):
        total = tg.constant(0.0)
        for k in tg.range(n):
            v.assign_add(1.0)
            total += tg.py_function(look, [tg.cast(k, tg.float32)], tg.TensorSpec([]))
            v.assign_add(0.5)
        return total, v * 1.0

    def plain(n):
        total, value, found = 0.0, 1.0, []
        for k in range(n):
            value += 1.0
            found.append((float(k), value))
            value += 10.0
            total, value = total + k + value, value + 0.5
        return total, value, found

    total, last, expected = plain(3)
    results = steps(tg.constant(3))
    assert [float(y) for y in results] == [total, last]
    assert v.numpy() == last and seen == expected
    v.assign(1.0)
    assert [float(y) for y in steps(tg.constant(0))] == [0.0, 1.0]


def test_python_functions_in_a_branch(run):
    called = []
    twice = lambda q: called.append(float(q)) or 2 * q  # noqa: E731

    def chosen(x):
        return tg.cond(x > 0.0, lambda: of_python(twice, x), lambda: x)

    assert run(chosen, 3.0).numpy() == 6.0
    assert run(chosen, -3.0).numpy() == -3.0
    assert called == [3.0]


@pytest.mark.parametrize("is_taken", [True, False])
def test_what_a_python_function_assigns_in_one_branch_holds_beside_the_other(run, is_taken):
    """The other branch assigns the Variable without calling Python."""
    v = tg.Variable(0.0)

    def assigning(q):
        v.assign_add(5.0)
        return q * 2.0

    def chosen(x):
        v.assign_add(1.0)
        y = tg.cond(
            x > 0.0,
            lambda: of_python(assigning, x),
            lambda: (v.assign_add(1000.0), x)[1],
        )
        return y + v

    x = 3.0 if is_taken else -3.0
    for _ in range(2):
        before = float(v.numpy())
        after = before + (6.0 if is_taken else 1001.0)
        assert run(chosen, x).numpy() == after + (6.0 if is_taken else -3.0)
        assert v.numpy() == after


def test_a_condition_that_calls_python_sees_what_the_body_assigns(run):
    """As plain Python does it: the body calls no Python function by itself."""
    v, seen = tg.Variable(0.0), []

    def look(q):
        seen.append((float(q), float(v.numpy())))
        v.assign_add(10.0)
        return q + v

    def loop(x):
        goes_on = lambda n: of_python(look, n) < 40.0  # noqa: E731
        step = lambda n: (v.assign(v * 2.0), n + 1.0)[1]  # noqa: E731
        return tg.while_loop(goes_on, step, [x])[0] + v

    value, n, expected = 0.0, 0.0, []
    while True:
        expected.append((n, value))
        value += 10.0
        if n + value >= 40.0:
            break
        value, n = value * 2.0, n + 1.0
    assert run(loop, 0.0).numpy() == n + value
    assert v.numpy() == value and seen == expected


def branch_that_calls_python(v):
    def called(q):
        v.assign_add(1.0)
        return q

    def chosen(n):
        v.assign_add(1.0)
        plain = lambda: (v.assign_add(1.0), tg.cast(n, tg.float32))[1]  # noqa: E731
        tg.cond(n % 2 == 0, lambda: of_python(called, tg.cast(n, tg.float32)), plain)
        v.assign_add(1.0)
        return n

    return chosen


def branch_that_prints(v):
    def chosen(n):
        v.assign_add(1.0)
        tg.cond(n > 0, lambda: (said("more"), v.assign_add(1.0), n)[2], lambda: n)
        v.assign_add(1.0)
        return n

    return chosen


def loop_that_prints(v):
    return lambda n: tg.while_loop(
        lambda k: k < n, lambda k: (said(k), v.assign_add(1.0), k + 1)[2], [0]
    )


def branch_behind_a_check(v):
    def chosen(n):
        v.assign_add(1.0)
        tg.debugging.assert_greater(n, -100)
        tg.cond(n > 0, lambda: (said("more"), v.assign_add(1.0), n)[2], lambda: n)
        v.assign_add(1.0)
        return n

    return chosen


def branch_with_a_check(v):
    def more():
        v.assign_add(1.0)
        tg.debugging.assert_greater(v, -100.0)
        tg.cond(v > 0.0, lambda: (said("more"), v.assign_add(1.0), 0)[2], lambda: 0)
        v.assign_add(1.0)
        return 0

    return lambda n: tg.cond(n > 0, more, lambda: 0)


def loop_with_a_check(v):
    def step(k):
        tg.debugging.assert_greater(v, -100.0)
        tg.cond(k >= 0, lambda: (said("more"), v.assign_add(1.0), 0)[2], lambda: 0)
        return k + 1

    return lambda n: tg.while_loop(lambda k: k < n, step, [0])


def branch_that_prints_before_python(v):
    def chosen(n):
        v.assign_add(1.0)
        tg.print("before")
        v.assign_add(1.0)
        tg.cond(n > 0, lambda: (said("more"), v.assign_add(1.0), n)[2], lambda: n)
        tg.print("behind")
        return tg.py_function(lambda q: q, [n], tg.TensorSpec([], tg.int32))

    return chosen


CALLS = 15
RACES = {
    "a branch that calls Python": branch_that_calls_python,
    "a branch behind a check": branch_behind_a_check,
    "a branch with a check": branch_with_a_check,
    "a loop with a check": loop_with_a_check,
    "a branch before a call of Python": branch_that_prints_before_python,
    "a branch that prints": branch_that_prints,
    "a loop that prints": loop_that_prints,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RACES)
def test_threads_and_effects_inside_lose_no_update(name, lines):
    v = tg.Variable(0.0)
    add_three = tg.function(RACES[name](v))
    add_three(tg.constant(3))
    calls = lambda: [add_three(tg.constant(3)) for _ in range(CALLS)]  # noqa: E731
    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert v.numpy() == 3 * (1 + 4 * CALLS)
    prints = {"a branch that calls Python": 0}
    prints |= dict.fromkeys([x for x in RACES if "loop" in x or "before" in x], 3)
    assert len(lines()) == prints.get(name, 1) * (1 + 4 * CALLS)


def test_what_is_assigned_before_a_failed_check_lands_once(lines):
    v = tg.Variable(0.0)

    def more():
        v.assign_add(1.0)
        tg.debugging.assert_less(v, -1.0, message="too much")
        return tg.cond(v > 0.0, lambda: (said("no"), v.assign_add(1.0), 0)[2], lambda: 0)

    @tg.function
    def add_two(n):
        v.assign_add(1.0)
        tg.print("begins")
        tg.cond(n > 0, lambda: (said("more"), more())[1], lambda: 0)
        v.assign_add(1.0)

    def calls():
        for _ in range(40):
            with pytest.raises(tg.errors.InvalidArgumentError, match="too much"):
                add_two(tg.constant(3))

    calls()
    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert v.numpy() == 2 * (40 + 4 * 40)
    said_lines = lines()
    assert [said_lines.count(text) for text in ("begins", "more", "no")] == [200, 200, 0]


@pytest.mark.sampled(1)
def test_the_gradient_of_a_branch_that_assigns_around_a_check(run):
    w = tg.Variable(2.0)

    def product(x):
        w.assign_add(1.0)
        tg.debugging.assert_greater(x, -100.0)
        y = w * tg.cond(x > 0.0, lambda: (said("positive"), w * x)[1], lambda: x)
        w.assign_add(1.0)
        return w * y

    def slopes(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.cond(x > 0.0, lambda: product(x), lambda: x)
        return y, *tape.gradient(y, [x, w])

    # x * w * w * w, of which w is 3, 3 and 4.
    assert [float(y) for y in run(slopes, 1.5)] == [1.5 * 36, 36.0, 1.5 * (12 + 12 + 9)]
    assert w.numpy() == 4.0


def test_both_modes_go_through_a_loop_that_calls_python(run):
    def loop(x):
        double = lambda q: tg.py_function(lambda q: 2 * q, [q], tg.TensorSpec([]))  # noqa: E731
        return tg.foldl(lambda s, _: double(s), tg.range(3), x)

    def tangent(x):
        return tg.jvp(loop, [x], [tg.ones([])])[1]

    assert [run(f, 1.5).numpy() for f in (loop, gradient_of(loop), tangent)] == [12.0, 8.0, 8.0]


@pytest.mark.sampled(1)
def test_reverse_mode_keeps_what_python_returned(run):
    called = []
    w = tg.Variable(2.0)

    def next_state(q):
        called.append(float(q))
        w.assign_add(1.0)  # which the next step reads
        return np.float32(0.5 * q + 1.0)

    def of_numpy(q):
        return tg.numpy_function(next_state, [q], tg.TensorSpec([]))

    def loop(x):
        return tg.foldl(lambda s, _: w * w * s * of_numpy(w * s), tg.range(2), x)

    def branch(x):
        return tg.cond(x > 0.0, lambda: x * x * of_numpy(x), lambda: x)

    def slopes(fn, x, sources):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = fn(x)
            first = tape.gradient(y, sources(x))
        return first, outer.gradient(first[0], x)

    # s1 = 4 * 1.5 * 2.5 = 15, and s2 = 9 * 15 * (0.5 * 3 * 15 + 1), with w = 2 and then 3.
    (by_x, by_w), _ = run(lambda x: slopes(loop, x, lambda x: [x, w]), 1.5)
    assert called == [3.0, 45.0]
    np.testing.assert_allclose(by_x, 4 * 2.5 * 9 * 23.5)
    np.testing.assert_allclose(by_w, 23.5 * (2 * 3 * 15 + 9 * 2.5 * 1.5 * 2 * 2))

    called.clear()
    (by_x,), second = run(lambda x: slopes(branch, x, lambda x: [x]), 3.0)
    assert (float(by_x), float(second), called) == (2 * 3 * 2.5, 2 * 2.5, [3.0])
    (by_x,), _ = run(lambda x: slopes(branch, x, lambda x: [x]), -3.0)
    assert (float(by_x), called) == (1.0, [3.0])


def test_what_a_python_function_returns_may_decide_the_loop(run):
    numbers = iter(range(100))

    def until(x):
        read = lambda: of_python(lambda: np.int32(next(numbers)), dtype=tg.int32)  # noqa: E731
        return tg.while_loop(lambda n, _: n < 4, lambda n, s: (read(), s + x), (0, x))[1]

    assert run(until, 1.0).numpy() == 6.0
    assert next(numbers) == 5


def test_checks_come_first(lines):
    @tg.function
    def checked(n):
        for k in tg.range(n):
            tg.debugging.assert_less(k, 2, message="too many")
            tg.print("step", k)
        tg.print("behind")

    with pytest.raises(tg.errors.InvalidArgumentError, match="too many") as caught:
        checked(tg.constant(5))
    assert "test_effects_inside.py" in str(caught.value)
    assert lines() == ["step 0", "step 1"]


def test_a_check_that_fails_before_a_python_function():
    called = []

    @tg.function
    def checked(x, n):
        tg.debugging.assert_positive(x)
        for k in tg.range(n):
            tg.debugging.assert_less(k, 2, message="too many")
            x = of_python(lambda q: called.append(1) or q, x)
        return x

    with pytest.raises(tg.errors.InvalidArgumentError, match="too many"):
        checked(tg.constant(1.0), tg.constant(5))
    assert len(called) == 2


def test_a_message_with_braces():
    @tg.function
    def checked(x, n):
        for k in tg.range(n):
            tg.debugging.assert_less(k, 1, message="no {} here")
            x = of_python(lambda q: q, x)
        return x

    with pytest.raises(tg.errors.InvalidArgumentError, match=r"no \{\} here"):
        checked(tg.constant(1.0), tg.constant(5))


def test_an_error_of_a_python_function():
    def wrong(q):
        raise RuntimeError("no such number")

    loop = tg.function(lambda x: tg.foldl(lambda s, _: of_python(wrong, s), tg.range(2), x))
    with pytest.raises(RuntimeError, match="no such number") as caught:
        loop(tg.constant(1.0))
    assert any("test_effects_inside.py" in note for note in caught.value.__notes__)


def test_custom_gradients_and_recomputation(lines):
    loop = LOOPS["foldl"]
    again = tg.function(gradient_of(tg.recompute_grad(loop)))
    assert again(tg.constant(1.5)).numpy() == 8.0
    assert lines() == ["step 0 1.5", "step 1 3", "step 2 6"]
    custom = tg.custom_gradient(lambda x: (loop(x), lambda g: 7.0 * g))
    assert tg.function(gradient_of(custom))(tg.constant(1.5)).numpy() == 7.0
    assert lines() == ["step 0 1.5", "step 1 3", "step 2 6"]


def test_saved_functions_print(tmp_path, lines):
    module = tg.Module()
    spec = tg.TensorSpec([], tg.float32)
    module.f = tg.function(LOOPS["while"], input_signature=[spec])
    tg.saved_model.save(module, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model")
    assert loaded.f(tg.constant(1.5)).numpy() == 12.0
    assert lines() == ["step 0 1.5", "step 1 3", "step 2 6"]
    text = module.f.graph(spec).as_text()
    assert tg.Graph.from_text(text).as_text() == text


def test_parallel_loops(lines):
    """A loop that all rows run alike prints for each row; what rows do by themselves is refused."""
    total = lambda row: tg.foldl(lambda s, x: (said(x), s + x)[1], row, 0.0)  # noqa: E731
    rows = tg.constant([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(tg.vectorized_map(total, rows).numpy(), [3, 7])
    assert lines() == ["1", "3", "2", "4"]
    alone = lambda x: tg.cond(x > 2.0, lambda: (said(x), x)[1], lambda: x)  # noqa: E731
    raises(MissingRuleError, "some iterations take it", lambda: tg.vectorized_map(alone, rows[0]))
    until = lambda x: tg.while_loop(  # noqa: E731
        lambda y: y < 9.0, lambda y: (said(y), y * 2.0)[1], [x]
    )
    raises(MissingRuleError, "another number of times", lambda: tg.vectorized_map(until, rows[0]))


def test_no_program_of_jax_prints_inside_a_loop():
    f = tg.function(LOOPS["while"])
    raises(tg.errors.TraceError, "it prints when it runs", lambda: tg.export.stablehlo(f, 1.5))


def test_a_loop_before_a_result_of_unknown_rank(lines):
    """What stands before the call of a function without a declared shape is run once."""

    @tg.function
    def f(x):
        y = LOOPS["while"](x)
        z = tg.numpy_function(lambda q: np.full([2], q), [y], tg.float32)
        return z + LOOPS["foldl"](x)

    for _ in range(2):
        np.testing.assert_array_equal(f(tg.constant(1.5)).numpy(), [24, 24])
        assert lines() == ["step 0 1.5", "step 1 3", "step 2 6"] * 2
