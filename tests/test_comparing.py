"""`tg.debugging`: where two functions part, whether runs give the same bits, what was compiled."""

import inspect

import numpy as np
import pytest

import tracegraph as tg

# One piece of code is decorated again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def line_of(function, mark):
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


def network(x):
    h = tg.tanh(x)
    h = tg.exp(h) + 1.0
    return tg.reduce_sum(tg.sqrt(h))


def other_network(x):
    h = tg.tanh(x)
    h = tg.exp(h * 1.0) + 1.5  # here
    return tg.reduce_sum(tg.sqrt(h))


def test_equal_functions_agree():
    found = tg.debugging.compare(network, tg.function(network), X)
    assert found.agrees and found.first is None
    assert found.compared == found.nodes[0] == found.nodes[1] > 3
    assert str(found).startswith("no difference: ")


def test_the_first_node_that_differs_is_named():
    found = tg.debugging.compare(network, other_network, X)
    first = found.first
    assert not found.agrees
    assert first.op == "add"
    assert first.other_source.line == line_of(other_network, "here")
    assert f"test_comparing.py:{line_of(other_network, 'here')}" in str(found)
    assert abs(float(first.values[1]) - float(first.values[0])) == pytest.approx(0.5)


def test_the_element_that_differs_the_most_is_told():
    table = np.zeros((4, 8), np.float32)
    table[1, 2], table[3, 5] = 0.5, -2.0

    def moved(x):
        return tg.tanh(x + tg.constant(table))

    def same(x):
        return tg.tanh(x + tg.constant(np.zeros((4, 8), np.float32)))

    first = tg.debugging.compare(lambda x: same(x), lambda x: moved(x), X).first
    assert (first.op, first.index, first.count, first.size) == ("add", (3, 5), 2, 32)


def test_nodes_in_calls_loops_and_with_variables_are_compared():
    w, u = tg.Variable(np.eye(8, dtype=np.float32)), tg.Variable(np.eye(8, dtype=np.float32))

    @tg.function
    def layer(x, w):
        return tg.tanh(x @ w)

    def model(w):
        def run(x):
            for _ in tg.range(3):
                x = layer(x, w)
            return layer(x, w)

        return run

    assert tg.debugging.compare(model(w), model(u), X).agrees
    u.assign_add(0.01 * tg.ones([8, 8]))
    found = tg.debugging.compare(model(w), model(u), X)
    assert found.first.op in ("scan", "while", "read")
    assert np.array_equal(w, np.eye(8))


def test_another_type():
    """The sum of squares of numbers this large is infinite in float32 alone."""

    def norm(x):
        y = tg.square(x)  # here
        return tg.sqrt(tg.reduce_sum(y))

    found = tg.debugging.compare(norm, tg.float64, 1e25 * X)
    assert found.first.source.line == line_of(norm, "here")
    assert np.isinf(found.first.values[0]) and found.first.values[1] > 1e40
    assert tg.debugging.compare(norm, tg.float64, X).agrees
    assert not tg.debugging.compare(norm, tg.bfloat16, X, rtol=1e-4).agrees
    exact = tg.debugging.compare(norm, tg.float64, X, rtol=0.0, atol=0.0)
    assert not exact.agrees  # float32 rounds


def test_gradients_and_casts_in_another_type():
    @tg.function
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(tg.nn.softmax(x) * tg.cast(tg.range(8), tg.float32))
        return tape.gradient(y, x)

    found = tg.debugging.compare(slope, tg.float64, X, rtol=1e-3, atol=1e-5)
    assert found.agrees and found.compared == found.nodes[0]


def test_many_nodes():
    def long(x, end):
        for _ in range(300):
            x = tg.sin(x) + 0.5
        return x * end

    found = tg.debugging.compare(lambda x: long(x, 2.0), lambda x: long(x, 3.0), X)
    assert found.first.op == "mul"
    assert found.compared > 300


def test_wrong_uses_of_compare():
    with pytest.raises(TypeError, match="5 is not a callable object"):
        tg.debugging.compare(5, network, X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rtol is -1"):
        tg.debugging.compare(network, network, X, rtol=-1)
    with pytest.raises(TypeError, match="has effects"):
        tg.debugging.compare(network, lambda x: tg.print(x), X)
    with pytest.raises(TypeError):
        tg.debugging.compare(network, "no type", X)


def test_what_is_deterministic_passes_and_variables_are_as_they_were():
    count, generator = tg.Variable(0), tg.random.Generator.from_seed(1)

    @tg.function
    def draw(x):
        count.assign_add(1)
        return x + generator.normal([4, 8])

    before = draw(X)
    tg.debugging.check_determinism(draw, X)
    assert int(count) == 1
    assert not np.array_equal(draw(X), before)


def test_what_python_returns_may_differ():
    numbers = iter(range(100))
    spec = tg.TensorSpec([], tg.float32)
    weight = tg.Variable(1.0, name="weight")

    @tg.function
    def step(x):
        weight.assign(tg.py_function(lambda: np.float32(next(numbers)), [], spec))
        return tg.reduce_sum(x)

    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        tg.debugging.check_determinism(step, X)
    assert "run 2 of step differs from the first in the Variable 'weight'" in str(caught.value)
    assert float(weight) == 1.0
    with pytest.raises(ValueError, match="runs is 1"):
        tg.debugging.check_determinism(network, X, runs=1)
    with pytest.raises(TypeError, match="5 is not a callable object"):
        tg.debugging.check_determinism(5)  # type: ignore[arg-type]


def test_bits_count_and_not_numbers():
    zeros = iter([0.0, -0.0, 0.0])
    spec = tg.TensorSpec([], tg.float32)
    f = tg.function(lambda: tg.py_function(lambda: np.float32(next(zeros)), [], spec))
    with pytest.raises(tg.errors.InvalidArgumentError, match="differs from the first in result 0"):
        tg.debugging.check_determinism(f)
    tg.debugging.check_determinism(tg.function(lambda x: x * np.nan), X)


def test_what_was_compiled_is_told_by_line():
    total = tg.Variable(0.0)
    for size in range(1, 5):
        total.assign_add(tg.reduce_sum(tg.ones([size]) * 3.0))
        total.numpy()
    f = tg.function(lambda x: tg.sin(x) * 3.5, reduce_retracing=True)
    for size in (2, 3, 4, 5):
        f(np.ones(size, np.float32))
    found = tg.debugging.explain_compiles()
    (mine,) = (row for row in found.rows if row.name == "lambda_" and row.count == 4)
    assert mine.change == "they take f32[2]; f32[3]; f32[4]; f32[5]"
    assert "bucket_sizes" in mine.fix and mine.seconds > 0
    loops = [row for row in found.rows if row.name == "top_level" and row.count > 1]
    assert any("@tg.function" in row.fix for row in loops)
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.rows))
    assert f"{mine.seconds:8.3f} s  4 programs  lambda_ at test_comparing.py:" in str(found)
