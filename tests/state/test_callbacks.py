"""Python functions called at run time: once per call, in program order, beside any state."""

import re
import sys

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.eager import pending

SCALAR = tg.TensorSpec([], tg.float32)
X = tg.constant(2.0)


def scaled_by(scale):
    return lambda q: q * scale


def read_by_numpy(scale):
    return lambda q: q * float(scale.numpy())


def assign_another(scale):
    def callback(q):
        scale.assign_add(1.0)
        return q * 3.0

    return callback


def call_a_function(scale):
    inner = tg.function(lambda q: q * scale.assign_add(0.0))
    return lambda q: inner(q)


def train(scale):
    def callback(q):
        with tg.GradientTape() as tape:
            loss = (scale - q) ** 2.0
        scale.assign_sub(0.0 * tape.gradient(loss, scale))
        return q

    return callback


# The same function is decorated for each of the cases.
pytestmark = pytest.mark.filterwarnings("ignore:5 of the last")

CALLBACKS = [scaled_by, read_by_numpy, assign_another, call_a_function, train]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spec", [SCALAR, tg.float32], ids=["declared", "open"])
@pytest.mark.parametrize("is_first", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("make", CALLBACKS)
def test_every_update_of_every_call_lands_once(make, is_first, spec):
    w, scale = tg.Variable(0.0), tg.Variable(3.0)
    callback = make(scale)
    seen = []

    def counted(q):
        seen.append(float(w))
        return callback(q)

    @tg.function
    def step(x):
        if is_first:
            w.assign_add(1.0)
        y = tg.py_function(counted, [x], spec)
        if not is_first:
            w.assign_add(1.0)
        return y

    for call in range(1, 6):
        step(X)
        assert float(w) == call
        assert seen == [n + float(is_first) for n in range(call)]
    if make is assign_another:
        assert float(scale) == 3.0 + 5


@pytest.mark.parametrize("spec", [SCALAR, tg.float32], ids=["declared", "open"])
def test_a_callback_that_assigns_the_variable_itself(spec):
    w = tg.Variable(0.0)
    seen = []

    def callback(q):
        seen.append(float(w))
        w.assign_add(100.0)
        return q

    @tg.function
    def step(x):
        w.assign_add(1.0)
        y = tg.py_function(callback, [x], spec)
        before = w.read_value()
        w.assign(w * 2.0)
        z = tg.py_function(callback, [y], spec)
        w.assign_add(5.0)
        return before, z

    model = 0.0
    for _ in range(4):
        before, _ = step(X)
        model += 1.0
        expected = [model]
        model += 100.0
        assert before == model
        model *= 2.0
        expected.append(model)
        model += 105.0
        assert float(w) == model
        assert seen == expected
        seen.clear()


def test_nested_functions_show_what_those_around_them_assigned():
    w = tg.Variable(0.0)
    seen = []

    def callback(q):
        seen.append(float(w))
        w.assign_add(10.0)
        return q

    @tg.function
    def inner(x):
        w.assign_add(1.0)
        return tg.py_function(callback, [x], tg.float32)

    @tg.function
    def outer(x):
        w.assign(5.0)
        y = inner(x) + inner(x + 1.0)
        w.assign_add(0.5)
        return y, w.read_value()

    for _ in range(3):
        y, last = outer(X)
        assert (float(y), float(last), float(w)) == (5.0, 27.5, 27.5)
        assert seen == [6.0, 17.0]
        seen.clear()


def test_a_callback_without_a_shape_runs_once_per_call_and_in_order(capsys):
    w = tg.Variable(0.0)
    order = []

    def host(name):
        def called(q):
            order.append((name, float(w)))
            return np.full(3, float(q), np.float32)

        return called

    @tg.function
    def f(x):
        order.append("traced")
        tg.print("begin", output_stream=sys.stdout)
        a = tg.numpy_function(host("a"), [x], tg.float32)
        w.assign_add(1.0)
        tg.print("middle", output_stream=sys.stdout)
        b = tg.numpy_function(host("b"), [tg.reduce_sum(a)], tg.float32)
        w.assign_add(1.0)
        return tg.reduce_sum(b) + len(b.shape)

    assert f(X).numpy() == 19.0
    assert order == ["traced", ("a", 0.0), ("b", 1.0)]
    assert f(X).numpy() == 19.0
    assert order[3:] == [("a", 2.0), ("b", 3.0)]
    assert capsys.readouterr().out == "begin\nmiddle\n" * 2


def test_tracing_for_a_spec_calls_nothing():
    calls = []

    @tg.function
    def f(x):
        y = tg.numpy_function(lambda q: calls.append(1) or q, [x], tg.float32)
        return tg.reduce_sum(y * y)

    concrete = f.get_concrete_function(tg.TensorSpec([2]))
    assert not calls
    assert concrete(tg.constant([1.0, 2.0])).numpy() == 5.0
    assert len(calls) == 1


def test_a_size_that_each_call_chooses():
    count = [2]

    @tg.function
    def f(x):
        spec = tg.TensorSpec([None, 2], tg.float32)
        rows = tg.numpy_function(lambda q: np.full((count[0], 2), q), [x], spec)
        return tg.reduce_sum(rows), tg.shape(rows), rows @ tg.ones([2, 3])

    for count[0] in (2, 3, 5, 3):
        total, shape, product = f(X)
        assert total == 4.0 * count[0]
        assert shape.numpy().tolist() == [count[0], 2]
        assert product.numpy().tolist() == np.full((count[0], 3), 4.0).tolist()


def test_a_failing_callback_keeps_what_came_before_it():
    w = tg.Variable(0.0)
    fails = [False]

    def callback(q):
        if fails[0]:
            raise KeyError("gone")
        return q

    @tg.function
    def step(x):
        w.assign_add(1.0)
        y = tg.py_function(callback, [x], SCALAR)
        w.assign_add(10.0)
        return y

    step(X)
    fails[0] = True
    with pytest.raises(KeyError, match="gone"):
        step(X)
    assert float(w) == 12.0
    fails[0] = False
    step(X)
    assert float(w) == 23.0


def test_under_a_tape_and_beside_the_arguments():
    w = tg.Variable(2.0)
    seen = []

    @tg.function
    def step(v, x):
        v.assign_add(1.0)
        y = tg.py_function(lambda q: seen.append(float(v)) or q * v, [x], tg.float32)
        return y * v

    for call in (1, 2, 3):
        with tg.GradientTape() as tape:
            y = step(w, X)
        assert float(y) == 2.0 * (2.0 + call) ** 2
        # The callback reads the Variable out of sight, so only the other factor counts.
        assert float(tape.gradient(y, w)) == 2.0 * (2.0 + call)
        assert seen == [2.0 + n for n in range(1, call + 1)]


def test_a_random_state_that_is_drawn_before_and_in_a_callback():
    tg.random.set_seed(3)
    expected = [float(tg.random.normal([])) for _ in range(6)]
    tg.random.set_seed(3)
    drawn = []

    def callback(q):
        drawn.append(float(tg.random.normal([])))
        return q

    @tg.function
    def f():
        a = tg.random.normal([])
        drawn.append(None)
        b = tg.py_function(callback, [a], tg.float32)
        return a, b, tg.random.normal([])

    first = f()
    assert [float(first[0]), drawn[-1], float(first[2])] == pytest.approx(expected[:3])
    again = f()
    assert [float(again[0]), drawn[-1], float(again[2])] == pytest.approx(expected[3:])


def test_state_behind_a_recomputed_callback():
    calls = []

    @tg.recompute_grad
    def body(x):
        return tg.py_function(lambda q: calls.append(1) or q * 3.0, [x], SCALAR) * x

    @tg.function
    def f(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = body(x)
        return tape.gradient(y, x)

    assert f(X).numpy() == 12.0
    assert calls[0] == 1


IN_LOOPS = {
    "top level": lambda f, xs: tg.vectorized_map(f, xs),
    "function": lambda f, xs: tg.function(lambda ys: tg.vectorized_map(f, ys))(xs),
    "nested function": lambda f, xs: tg.vectorized_map(tg.function(f), xs),
}


DECLARED_OR_NOT = pytest.mark.parametrize("spec", [SCALAR, tg.float32], ids=["declared", "open"])


@DECLARED_OR_NOT
@pytest.mark.parametrize("where", IN_LOOPS)
def test_callbacks_in_a_parallel_loop_run_once_per_iteration_in_order(where, spec):
    order = []

    def body(x):
        y = tg.py_function(lambda q: order.append(("a", float(q))) or q * q, [x], spec)
        return tg.py_function(lambda q: order.append(("b", float(q))) or q + 1.0, [y], spec)

    found = IN_LOOPS[where](body, tg.constant([1.0, 2.0, 3.0]))
    assert found.numpy().tolist() == [2.0, 5.0, 10.0]
    assert order == [("a", 1.0), ("a", 2.0), ("a", 3.0), ("b", 1.0), ("b", 4.0), ("b", 9.0)]


@DECLARED_OR_NOT
@pytest.mark.parametrize("where", IN_LOOPS)
def test_reads_in_a_parallel_loop_see_what_callbacks_before_them_assigned(where, spec):
    """A call site is run for all iterations before what comes after it."""
    v = tg.Variable(1.0)

    def host(q):
        v.assign_add(1.0)
        return q

    def body(x):
        before = v * 1.0
        y = tg.py_function(host, [x], spec) + v
        with tg.GradientTape() as tape:
            square = v * v
        tg.py_function(host, [x], spec)
        return tg.stack([before, y, tape.gradient(square, v), v * 1.0])

    found = IN_LOOPS[where](body, tg.constant([10.0, 20.0]))
    assert found.numpy().tolist() == [[1.0, 13.0, 6.0, 5.0], [1.0, 23.0, 6.0, 5.0]]
    assert float(v) == 5.0


def test_a_function_that_a_parallel_loop_traced_sees_what_its_callbacks_assign():
    v = tg.Variable(0.0)
    f = tg.function(lambda x: tg.py_function(lambda q: v.assign_add(q), [x], SCALAR) * 0.0 + v)
    assert tg.vectorized_map(f, tg.constant([1.0, 2.0])).numpy().tolist() == [3.0, 3.0]
    assert float(f(tg.constant(4.0))) == 7.0
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        ("inner loop", SCALAR),
        *((where, spec) for where in IN_LOOPS for spec in (SCALAR, tg.float32)),
    ],
)
def test_callbacks_in_a_parallel_loop_draw_from_the_generator_of_its_body(where, spec):
    """No number is drawn twice, and the state of the generator moves on in every call."""
    generator = tg.random.Generator.from_seed(3)
    drawn, given = [], []

    def host(q):
        given.append(float(q))
        drawn.append(float(generator.normal([])))
        return q

    def body(x):
        first = generator.normal([])
        tg.py_function(host, [first], spec)
        return tg.stack([first, generator.normal([])])

    def inner(x):
        return tg.map_fn(body, tg.stack([x, x]))

    xs = tg.constant([1.0, 2.0])
    loop = IN_LOOPS.get(where, IN_LOOPS["function"])
    f = tg.function(inner if where == "inner loop" else body)
    of_body = [loop(f, xs).numpy().ravel().tolist() for _ in range(2)]
    numbers = [*drawn, *of_body[0], *of_body[1]]
    assert sorted(given) == sorted([*of_body[0][::2], *of_body[1][::2]])
    assert len({*numbers}) == len(numbers) == (24 if where == "inner loop" else 12)
    assert generator.state.shape == [2]


def test_a_generator_first_drawn_from_after_a_call_made_while_tracing_is_refused():
    """The call might have drawn the same numbers."""
    generator = tg.random.Generator.from_seed(3)

    def body(x):
        y = tg.py_function(lambda q: q, [x], tg.float32)
        return y + generator.normal([])

    xs = tg.constant([1.0, 2.0])
    rows = tg.vectorized_map(body, xs).numpy() - xs.numpy()  # at top level, it is split only now
    assert rows[0] != rows[1]
    f = tg.function(lambda xs: tg.vectorized_map(body, xs))
    with pytest.raises(tg.errors.TraceError, match="which this call has already called"):
        f(xs)


@DECLARED_OR_NOT
def test_updates_around_callbacks_in_parallel_loops_land_once(spec, capsys):
    """Also in the first call, of which tracing performs a part."""
    v, w = tg.Variable(0.0), tg.Variable(2.0)
    seen = []

    def host(q):
        seen.append(float(v))
        v.assign_add(q)
        return q * 10.0

    def body(x):
        tg.print("at", x, output_stream=sys.stdout)
        return tg.py_function(host, [x], spec) + x

    @tg.function
    def f(xs):
        v.assign_add(1.0)
        first = tg.vectorized_map(body, xs)
        w.assign_add(v)
        second = tg.vectorized_map(body, first)
        v.assign_add(0.5)
        return second, w * 2.0

    total, other = 0.0, 2.0
    for _ in range(3):
        del seen[:]
        second, doubled = f(tg.constant([1.0, 2.0]))
        assert seen == [total + n for n in (1.0, 2.0, 4.0, 15.0)]
        total, other = total + 37.5, other + total + 4.0
        assert second.numpy().tolist() == [121.0, 242.0]
        assert (float(v), float(w), float(doubled)) == (total, other, 2.0 * other)
        assert capsys.readouterr().out == "at 1\nat 2\nat 11\nat 22\n"


def test_callbacks_without_a_shape_in_loops_in_loops_run_once():
    """The second one is traced when the first has run for one iteration of the outer loop."""
    calls = []

    def called(x, y):
        return tg.py_function(lambda *q: calls.append([*map(float, q)]) or q[0] - q[1], [x, y], X)

    X = tg.float32
    xs, ys = tg.constant([1.0, 2.0]), tg.constant([10.0, 20.0, 30.0])

    @tg.function
    def f(xs, ys):
        def row(x):
            first = tg.vectorized_map(lambda y: called(x, y), ys)
            return tg.vectorized_map(lambda y: called(y, x), first)

        return tg.vectorized_map(row, xs)

    first = [[x, y] for x in (1.0, 2.0) for y in (10.0, 20.0, 30.0)]
    for _ in range(2):
        del calls[:]
        assert f(xs, ys).numpy().tolist() == [[-10.0, -20.0, -30.0]] * 2
        assert sorted(calls) == sorted([*first, *([x - y, x] for x, y in first)])


@pytest.mark.parametrize("where", IN_LOOPS)
def test_prints_in_a_parallel_loop(where, capsys):
    def body(x):
        tg.print("at", x, output_stream=sys.stdout)
        return x + 1.0

    assert IN_LOOPS[where](body, tg.constant([1.0, 2.0])).numpy().tolist() == [2.0, 3.0]
    assert capsys.readouterr().out == "at 1\nat 2\n"


def test_loops_in_loops_and_their_derivatives():
    calls = []

    def host(q, r):
        calls.append((float(q), float(r)))
        return q * q * r

    def inner(x, ys):
        return tg.vectorized_map(lambda y: tg.py_function(host, [x, y], SCALAR), ys)

    @tg.function
    def outer(xs, ys):
        return tg.vectorized_map(lambda x: inner(x, ys), xs)

    xs, ys = tg.constant([1.0, 2.0, 3.0]), tg.constant([10.0, 20.0])
    expected = np.outer([1.0, 4.0, 9.0], [10.0, 20.0])
    assert outer(xs, ys).numpy().tolist() == expected.tolist()
    assert calls[:6] == [(a, b) for a in (1.0, 2.0, 3.0) for b in (10.0, 20.0)]
    with tg.GradientTape() as tape:
        tape.watch((xs, ys))
        z = outer(xs, ys)
    by_x, by_y = tape.gradient(z, [xs, ys])
    np.testing.assert_allclose(by_x, 2 * np.array([1.0, 2.0, 3.0]) * 30.0)
    np.testing.assert_allclose(by_y, [14.0, 14.0])
    with tg.autodiff.ForwardAccumulator(xs, tg.ones([3])) as accumulator:
        z = outer(xs, ys)
    np.testing.assert_allclose(accumulator.jvp(z), np.outer([2.0, 4.0, 6.0], [10.0, 20.0]))


def test_the_jacobian_of_a_callback_calls_its_derivative_for_each_row():
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.function(lambda v: tg.py_function(tg.sin, [v], tg.TensorSpec([2])))(x)
    np.testing.assert_allclose(tape.jacobian(y, x), np.diag(np.cos([1.0, 2.0])), rtol=1e-6)


def test_the_text_of_calls_between_states_and_in_loops():
    w = tg.Variable(1.0, name="w")

    @tg.function
    def f(x):
        w.assign_add(1.0)
        y = tg.py_function(lambda q: q, [x], SCALAR)
        return y + w

    graph = f.get_concrete_function(SCALAR).graph
    assert [node.op.name for node in graph.nodes if node.op.name in ("store", "load")] == [
        "store",
        "load",
    ]
    text = str(graph)
    assert str(tg.Graph.from_text(text)) == text
    looped = tg.function(
        lambda xs: (
            tg.vectorized_map(f, xs)
            if False
            else tg.vectorized_map(lambda x: (tg.print(x), x)[1], xs)
        )
    )
    text = str(looped.get_concrete_function(tg.TensorSpec([3])).graph)
    assert "loops" in text
    assert str(tg.Graph.from_text(text)) == text


def test_an_assignment_in_every_iteration_is_refused():
    w = tg.Variable(1.0)

    @tg.function
    def f(x):
        w.assign_add(1.0)
        return tg.py_function(lambda q: q, [x], SCALAR)

    with pytest.raises(ValueError, match=r"(?s)assigned in every iteration.*fix:"):
        tg.vectorized_map(f, tg.constant([1.0, 2.0]))


def test_a_stream_of_the_user_sees_the_state():
    w = tg.Variable(0.0)
    seen = []

    class Stream:
        def write(self, text):
            seen.append((text.strip(), float(w)))

        def flush(self):
            pass

    stream = Stream()

    @tg.function
    def f():
        w.assign_add(1.0)
        tg.print("one", output_stream=stream)
        w.assign_add(1.0)

    f()
    f()
    assert float(w) == 4.0
    assert [pair for pair in seen if pair[0]] == [("one", 1.0), ("one", 3.0)]


def test_calls_with_callbacks_compile_once():
    w = tg.Variable(0.0)

    @tg.function
    def f(x):
        w.assign_add(1.0)
        return tg.py_function(lambda q: q + 1.0, [x], SCALAR) * w

    f(X)
    f(X)
    count = pending.compiled_count()
    for _ in range(5):
        f(X)
    assert pending.compiled_count() == count


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", [SCALAR, tg.float32, "loop"], ids=["declared", "open", "loop"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["in the same body", "in a body inside"])
def test_what_comes_after_a_failed_check_does_not_happen(is_nested, spec):
    w, x = tg.Variable(0.0), tg.Variable(3.0)
    seen = []

    def host(q):
        seen.append(float(w))
        return q

    @tg.function
    def behind():
        w.assign_add(10.0)
        if spec == "loop":
            given = tg.vectorized_map(lambda q: tg.py_function(host, [q], SCALAR), x + tg.zeros(2))
        else:
            given = tg.py_function(host, [x], spec)
        x.assign(tg.reduce_sum(given))
        w.assign_add(100.0)

    @tg.function
    def step():
        w.assign_add(1.0)
        tg.debugging.assert_less(x, 2.0)
        (behind if is_nested else behind.python_function)()
        w.assign_add(1000.0)

    for call in (1, 2, 3):
        with pytest.raises(tg.errors.InvalidArgumentError):
            step()
        assert (float(w), float(x), seen) == (call, 3.0, [])
    x.assign(0.0)
    step()
    assert float(w) == 1114.0
    assert seen == [14.0] * (2 if spec == "loop" else 1)


@pytest.mark.parametrize("form", [tg.py_function, tg.numpy_function])
def test_a_size_that_a_call_chooses_behind_a_failed_check(form):
    x = tg.Variable([3.0, 4.0])

    @tg.function
    def step():
        tg.debugging.assert_less(tg.reduce_sum(x), 2.0)
        x.assign(form(lambda q: q, [x], tg.TensorSpec([None], tg.float32)) * 2.0)

    with pytest.raises(tg.errors.InvalidArgumentError):
        step()
    x.assign([0.0, 1.0])
    step()
    assert x.numpy().tolist() == [0.0, 2.0]


@pytest.mark.parametrize("is_recorded", [False, True], ids=["plain", "under a tape"])
def test_the_derivative_of_a_callback_before_one_without_a_shape(is_recorded):
    v = tg.Variable([1.0, 2.0])
    calls = []

    def loss(q):
        calls.append("loss")
        return tg.reduce_sum(q * q)

    def last(q):
        calls.append("last")
        return q + 1.0

    @tg.function
    def f():
        with tg.GradientTape() as tape:
            y = tg.py_function(loss, [v], SCALAR)
        return tape.gradient(y, v), tg.numpy_function(last, [v], tg.float32)

    def check():
        for _ in range(2):
            gradient, behind = f()
            assert gradient.numpy().tolist() == [2.0, 4.0]
            assert behind.numpy().tolist() == [2.0, 3.0]
            assert calls.count("last") == 1
            calls.clear()

    if is_recorded:
        with tg.GradientTape():
            check()
    else:
        check()


def test_a_callback_that_clears_the_cache_of_the_function_that_is_running():
    traced, clears = [], [True]

    def callback(q):
        if clears[0]:
            f.clear_cache()
        return q

    @tg.function
    def f(x):
        traced.append(1)
        return tg.py_function(callback, [x], SCALAR)

    for _ in range(3):
        f(X)
    assert len(traced) == 3
    clears[0] = False
    for _ in range(3):
        f(X)
    assert len(traced) == 4
    assert len(f.traces) == 1


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_a_callback_without_a_shape_far_inside_sees_what_was_assigned_outside(levels):
    state, x = tg.Variable(1.0), tg.Variable(3.0)
    seen = []

    @tg.function
    def call():
        x.assign(tg.py_function(lambda q: seen.append(float(state)) or q, [x], tg.float32))

    for _ in range(levels):
        call = tg.function(lambda inner=call: inner())

    @tg.function
    def step():
        state.assign_add(10.0)
        call()

    for _ in range(3):
        step()
    assert seen == [11.0, 21.0, 31.0]
    assert float(state) == 31.0


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_variables_that_a_callback_without_a_shape_is_given_through_functions(levels):
    outside, passed = tg.Variable(1.0), tg.Variable(3.0)
    seen = []

    @tg.function
    def call(p):
        x = outside + p
        p.assign(tg.py_function(lambda q: seen.append(float(q)) or q, [x], tg.float32))

    for _ in range(levels):
        call = tg.function(lambda p, inner=call: inner(p))

    @tg.function
    def step():
        outside.assign_add(10.0)
        passed.assign_add(100.0)
        call(passed)

    expected = []
    for n in range(3):
        step()
        expected.append((expected[-1] if expected else 3.0) + 100.0 + 11.0 + 10.0 * n)
        assert float(passed) == expected[-1]
    assert seen == expected


def test_effects_that_depend_on_no_element_happen_in_every_iteration(capsys):
    count = [0]

    def counted():
        count[0] += 1
        return float(count[0])

    def body(x):
        tg.print("once more", output_stream=sys.stdout)
        return x * 0.0 + tg.py_function(counted, [], SCALAR)

    xs = tg.constant([1.0, 2.0, 3.0])
    assert tg.vectorized_map(body, xs).numpy().tolist() == [1.0, 2.0, 3.0]
    f = tg.function(lambda ys: tg.vectorized_map(body, ys))
    assert [f(xs).numpy().tolist() for _ in range(2)] == [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    inner = tg.function(lambda: tg.py_function(counted, [], SCALAR))
    found = tg.vectorized_map(lambda x: inner() + x, xs)
    assert found.numpy().tolist() == [11.0, 13.0, 15.0]
    assert capsys.readouterr().out == "once more\n" * 9


OPEN = {
    "declared": tg.TensorSpec([2], tg.float32),
    "size": tg.TensorSpec([None], tg.float32),
    "rank": tg.TensorSpec(None, tg.float32),
    "dtype": tg.float32,
}


def twice(q):
    return np.array([q, q], np.float32)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spec", OPEN)
@pytest.mark.parametrize("check", ["before the loop", "in the loop"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["in the body", "in a function"])
def test_callbacks_of_open_sizes_behind_checks_in_parallel_loops(spec, check, is_nested):
    seen = []

    def call(x):
        return tg.py_function(lambda q: seen.append(float(q)) or twice(float(q)), [x], OPEN[spec])

    inner = tg.function(call) if is_nested else call

    def body(x, limit):
        if check == "in the loop":
            tg.debugging.assert_less(x, limit)
        return inner(x) * 2.0

    @tg.function
    def f(xs, limit):
        if check == "before the loop":
            tg.debugging.assert_less(xs, limit)
        return tg.vectorized_map(lambda x: body(x, limit), xs)

    xs = tg.constant([1.0, 2.0, 3.0])
    for _ in range(2):
        seen.clear()
        y = f(xs, tg.constant(10.0))
        assert (y.shape, y.numpy().tolist()) == ([3, 2], [[2.0] * 2, [4.0] * 2, [6.0] * 2])
        assert seen == [1.0, 2.0, 3.0]
    for limit in (2.5, 0.0):
        seen.clear()
        with pytest.raises(tg.errors.InvalidArgumentError, match="x < y does not hold"):
            f(xs, tg.constant(limit))
        assert seen == []  # a check in a loop is one for all iterations


def test_sizes_in_a_parallel_loop_that_nothing_tells_are_refused():
    def mapped(host):
        body = lambda x: tg.py_function(host, [x], OPEN["size"])  # noqa: E731
        spec = tg.TensorSpec([None], tg.float32)
        return tg.function(lambda xs: tg.vectorized_map(body, xs), input_signature=[spec])

    found = "(?s)called in a parallel loop: {}.*fix: return one shape in every iteration"
    with pytest.raises(tg.errors.InvalidArgumentError, match=found.format("there are no iter")):
        mapped(twice)(tg.zeros([0]))
    uneven = mapped(lambda q: np.zeros(int(q), np.float32))
    shapes = r"it returned the shapes \(1,\) and \(2,\)"
    with pytest.raises(tg.errors.InvalidArgumentError, match=found.format(shapes)):
        uneven(tg.constant([1.0, 2.0]))
    assert uneven(tg.constant([2.0, 2.0])).shape == [2, 2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", OPEN)
def test_results_whose_sizes_a_callback_chose_know_them(spec):
    x, v = tg.constant(2.0), tg.Variable(tg.zeros([5]), shape=[None])

    @tg.function
    def f(x):
        y = tg.py_function(lambda q: q * tg.ones(2), [x], OPEN[spec])
        v.assign(y)
        return y * 2.0

    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
        assert (y.shape, len(y), [float(z) for z in y]) == ([2], 2, [4.0, 4.0])
        z = y + tg.ones([2])
    assert z.numpy().tolist() == [5.0, 5.0] and (v + 1.0).numpy().tolist() == [3.0, 3.0]
    assert float(tape.gradient(z, x)) == 4.0
    assert tape.jacobian(z, x).numpy().tolist() == [2.0, 2.0]
    with tg.autodiff.ForwardAccumulator(x, tg.constant(1.0)) as accumulator:
        y = f(x)
    assert accumulator.jvp(y).numpy().tolist() == [2.0, 2.0]
    assert tg.function(lambda x: f(x) + 1.0)(x).shape == [2]
    mapped = tg.vectorized_map(lambda x: tg.py_function(twice, [x], OPEN[spec]), tg.ones([3]))
    assert (mapped + 1.0).shape == [3, 2]


# A traced tensor that a callback sees from around it.


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "declared", [tg.TensorSpec([2]), tg.float32], ids=["known shape", "open shape"]
)
@pytest.mark.parametrize(
    ("call", "use"),
    [
        (tg.py_function, lambda q, y: q + y),
        (tg.py_function, lambda q, y: tg.function(lambda: q + y)()),
        (tg.numpy_function, lambda q, y: q + y.numpy()),
    ],
    ids=["added", "in a function", "asked for its value"],
)
def test_a_callback_that_uses_a_traced_tensor_is_told_the_argument_to_add(call, use, declared):
    @tg.function
    def f(x):
        doubled = x * 2.0

        def callback(q):
            return use(q, doubled)

        return call(callback, [x], declared)

    with pytest.raises(TypeError) as caught:
        f(tg.ones([2]))
    assert re.search(
        r"\n  fix: give (.+) to the Python function as an argument, "
        r"(inp=\[\.\.\., \1\]|in inp=), and use that there$",
        str(caught.value),
    )

    @tg.function
    def repaired(x):
        doubled = x * 2.0
        return call(lambda q, y: use(q, tg.constant(y)), [x, doubled], declared)

    assert repaired(tg.ones([2])).numpy().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("is_looped", [False, True], ids=["plain", "loop"])
def test_a_variable_that_a_callback_resizes_is_not_read_with_its_former_size(is_looped):
    """A mean would be the new sum divided by the former size."""
    v = tg.Variable([1.0, 2.0], shape=[None])

    @tg.function
    def mean(x):
        def call(x):
            x = tg.py_function(lambda x: (v.assign([1.0, 2.0, 6.0]), x)[1], [x], tg.TensorSpec([]))
            return x + tg.reduce_mean(v)

        if is_looped:
            return tg.while_loop(lambda x: x < 1.0, lambda x: (call(x),), (x,))[0]
        return call(x)

    with pytest.raises(
        tg.errors.InvalidArgumentError, match=r"shape \[2\] .* given the shape \[3\]"
    ):
        mean(tg.constant(0.0))
    assert mean(tg.constant(0.0)).numpy() == 3.0
