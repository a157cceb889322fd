"""`tg.debugging`: where two functions part, whether runs give the same bits, what was compiled."""

import inspect

import jax
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.control_passes import locate_numerics

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
    assert found.first.op in ("matmul", "read")
    assert np.array_equal(w, np.eye(8))


def nested(bad):
    def f(x):
        for i in tg.range(4):
            for j in tg.range(3):
                x = tg.sin(x)
                if i == 2 and j == 1:
                    x = x * bad  # here
        return x

    return f


def while_loop(bad):
    def f(x):
        i = 0
        while tg.reduce_sum(x) < 1e3:
            x = x * tg.where(i == 2, bad, 2.0)  # here
            i = i + 1
        return x

    return f


@pytest.mark.parametrize(("make", "steps"), [(nested, [2, 1]), (while_loop, [2])])
def test_the_first_node_in_a_loop_is_told_with_its_step(make, steps):
    mine, other = make(1.1), make(1.5)
    assert tg.debugging.compare(mine, make(1.1), tg.ones([3])).agrees
    first = tg.debugging.compare(mine, other, tg.ones([3])).first
    assert [number for number, _ in first.steps] == steps
    assert first.source.line == line_of(mine, "here")
    text = str(first)
    assert all(f"step {number} of the loop at " in text for number in steps)


def test_loops_are_paired_whatever_they_use_from_outside():
    def mine(x):
        for _ in tg.range(4):
            x = tg.sin(x) * 2.0
        return x

    def other(x):
        for i in tg.range(4):
            x = tg.sin(x) * (2.0 + 0.01 * tg.cast(i == 2, tg.float32))
        return x

    first = tg.debugging.compare(mine, other, tg.ones([3])).first
    assert first.op == "mul" and first.steps[0][0] == 2


def test_the_branch_that_both_take_is_compared_inside():
    def made(factor):
        return lambda x: tg.cond(x[0] > 0, lambda: tg.sin(x) * factor, lambda: x)

    first = tg.debugging.compare(made(2.0), made(2.1), tg.ones([3])).first
    assert (first.op, first.steps) == ("mul", ())
    # Where they take other branches no node inside is told.
    turned = lambda x: tg.cond(x[0] < 0, lambda: tg.sin(x) * 2.0, lambda: x)  # noqa: E731
    assert tg.debugging.compare(made(2.0), turned, tg.ones([3])).first.op == "cond"


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


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x + tg.random.normal([8]),
        lambda x: tg.nn.dropout(x, 0.5),
        lambda x: x + tg.random.stateless_gamma([8], [1, 2], 0.5),
        lambda x: tg.from_jax(lambda x: x + jax.random.normal(jax.random.key(0), (8,)))(x),
        lambda x: tg.cast(tg.bitcast(x, tg.int32), tg.float32) + x,
    ],
)
def test_random_numbers_and_bits_are_those_of_float32_in_another_type(draw):
    found = tg.debugging.compare(draw, tg.float64, X)
    assert found.agrees, found
    assert tg.debugging.compare(draw, tg.bfloat16, X, rtol=0.02, atol=0.02).agrees


def test_many_nodes(monkeypatch):
    monkeypatch.setattr(locate_numerics, "_LONGEST", 20)

    def long(x, end):
        for _ in range(15):
            x = tg.sin(x) + 0.5
        return x * end

    found = tg.debugging.compare(lambda x: long(x, 2.0), lambda x: long(x, 3.0), X)
    assert found.first.op == "mul"
    assert found.compared > 30


@pytest.mark.parametrize(
    ("f", "g", "largest"),
    [
        (lambda x: tg.exp(x), lambda x: tg.sin(x), np.e - np.sin(1)),
        (lambda x: x, lambda x: x + 5.0, 5.0),
        (lambda x: tg.exp(x) - tg.reduce_sum(x), lambda x: tg.exp(x), 3.0),
        (lambda x: tg.constant([1.0, 2.0]), lambda x: tg.constant([1.0, 4.0]), 2.0),
        (lambda x: x, lambda x: x * np.nan, np.inf),
    ],
)
def test_results_differ_where_no_pair_of_nodes_does(f, g, largest):
    for one, two in ((f, g), (g, f)):
        found = tg.debugging.compare(one, two, tg.ones([3]))
        (result,) = found.results
        assert not found.agrees and found.first is None
        assert (result.name, result.largest) == ("the result", pytest.approx(largest, rel=1e-5))
        assert str(found).startswith(
            "the results differ, and no pair of nodes does\n  the result: "
        )
    assert tg.debugging.compare(f, f, tg.ones([3])).agrees


@pytest.mark.parametrize(
    ("f", "g", "name", "fact"),
    [
        (lambda x: x, lambda x: x[:1], "the result", "f32[3] and f32[1]"),
        (lambda x: x, lambda x: tg.cast(x, tg.float64), "the result", "f32[3] and f64[3]"),
        (lambda x: x, lambda x: [x], "the structure of the results", "* and ['*']"),
        (lambda x: (x, None), lambda x: (x, x), "the structure of the results", "'*', None"),
        (
            lambda x: {"b": x, "a": (x, x)},
            lambda x: {"a": (x, x + 1.0), "b": x},
            "result 1 of {'b': 2, 'a': (0, 1)}",
            "3 of 3 elements differ, the most at [0]: 1.0 and 2.0, 1 apart",
        ),
    ],
)
def test_which_result_differs_is_told(f, g, name, fact):
    found = tg.debugging.compare(f, g, tg.ones([3]))
    (result,) = found.results
    assert not found.agrees and result.name == name
    assert fact in result.fact
    assert str(result) in str(found)


@pytest.mark.parametrize(
    ("dtype", "number", "by"),
    [(tg.int64, 1 << 62, 1), (tg.uint64, 1 << 63, 1), (tg.int64, -(1 << 62), 1)],
)
def test_integers_that_differ_by_less_than_float64_tells_differ(dtype, number, by):
    x = tg.constant([number, 5], dtype)
    found = tg.debugging.compare(lambda x: x, lambda x: x + by, x, rtol=0.0, atol=0.0)
    assert found.results[0].fact.startswith("2 of 2 elements differ")
    assert found.results[0].largest == 1.0
    assert tg.debugging.compare(lambda x: x, lambda x: x + by, x, rtol=0.0, atol=1.0).agrees


def test_integers_of_opposite_signs_are_as_far_apart_as_they_are():
    x = tg.constant([(1 << 63) - 1], tg.int64)
    found = tg.debugging.compare(lambda x: x, lambda x: -x - 1, x)
    assert found.results[0].largest == 2.0**64


def test_results_agree_within_the_tolerances():
    def near(x):
        return x + 5e-5

    assert tg.debugging.compare(lambda x: x, near, tg.ones([3])).agrees
    assert not tg.debugging.compare(lambda x: x, near, tg.ones([3]), rtol=1e-5).agrees
    assert not tg.debugging.compare(lambda x: x, near, tg.zeros([3])).agrees
    assert tg.debugging.compare(lambda x: x, near, tg.zeros([3]), atol=1e-4).agrees


def test_nodes_may_differ_and_results_agree():
    found = tg.debugging.compare(lambda x: x + 1.0 + 2.0, lambda x: x + 2.0 + 1.0, X)
    assert not found.agrees and found.first.op == "add" and found.results == ()
    assert "\n  the results agree\n" in str(found)


def test_new_values_of_variables_are_results():
    a, b, c = (tg.Variable(1.0, name=name) for name in "abc")

    def assigns(first, second, other):
        def run(x):
            first.assign(tg.reduce_sum(x))
            second.assign(other)
            return x

        return run

    x = tg.ones([3])
    assert tg.debugging.compare(assigns(a, b, 3.0), assigns(b, a, 3.0), x).agrees
    assert tg.debugging.compare(assigns(a, b, 2.0), assigns(a, c, 2.0), x).agrees
    found = tg.debugging.compare(assigns(a, b, 2.0), assigns(a, c, 2.5), x)
    assert [(row.name, row.largest) for row in found.results] == [("the Variable 'b'", 0.5)]
    found = tg.debugging.compare(lambda x: x, assigns(a, b, 2.0), x)
    assert [row.name for row in found.results] == ["the Variable 'a'", "the Variable 'b'"]
    assert found.results[0].fact == "only one of the functions assigns it"
    assert float(a) == float(b) == float(c) == 1.0


def test_results_of_many_nodes_are_compared_behind_the_first_difference():
    def long(x, start):
        x = x + start
        for _ in range(110):
            x = x * 1.0 + 0.125
        return x

    found = tg.debugging.compare(lambda x: long(x, 1.0), lambda x: long(x, 2.0), X)
    assert found.first.op == "add" and found.results[0].largest == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("kind", [3, "no type", [3], tg.int32, None])
def test_what_is_neither_a_function_nor_a_type_is_refused(kind):
    with pytest.raises(TypeError, match="compare: ") as caught:
        tg.debugging.compare(network, kind, X)
    assert "fix: give a second function, or a floating type: compare(f, tg.float64, x)" in str(
        caught.value
    )


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


def test_python_runs_each_time_in_a_function_that_is_not_decorated():
    numbers, sizes = iter(range(100)), iter(range(1, 100))
    bias = tg.Variable(1.0)

    def noisy(x):
        bias.assign_add(1.0)
        return x + float(next(numbers))

    with pytest.raises(tg.errors.InvalidArgumentError, match=r"run 2 of noisy differs .* result 0"):
        tg.debugging.check_determinism(noisy, X)
    with pytest.raises(tg.errors.InvalidArgumentError, match="returns other types than the first"):
        tg.debugging.check_determinism(lambda x: x[: next(sizes)], X)
    tg.debugging.check_determinism(lambda x: x + bias + tg.random.normal([8]), X)
    assert float(bias) == 1.0


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

    @tg.function(reduce_retracing=True)
    def sines(x):
        return tg.sin(x) * 3.5

    for size in (2, 3, 4, 5):
        sines(np.ones(size, np.float32))
    found = tg.debugging.explain_compiles()
    (mine,) = (row for row in found.rows if row.name == "sines")
    assert mine.change == "they take f32[2]; f32[3]; f32[4]; f32[5]"
    assert "bucket_sizes" in mine.fix and mine.seconds > 0

    @tg.function
    def powers(x, count):
        for _ in range(count):
            x = x * x
        return x

    for count in (1, 2):
        powers(tg.constant(1.0), count)
    found = tg.debugging.explain_compiles()
    (row,) = (row for row in found.rows if row.name == "powers")
    assert (row.change, row.fix) == ("they have 1; 2 nodes", "see f.explain_retraces()")
    for count in (1, 2):
        x = tg.sin(tg.ones([8])) if count == 2 else tg.ones([8])
        tg.cos(x).numpy()
    x = tg.Variable(tg.ones([8]))
    for size in range(1, 4):
        tg.cos(x[:size]).numpy()
    found = tg.debugging.explain_compiles()
    loops = [row for row in found.rows if row.name == "top_level" and row.count > 1]
    (sizes,) = (row for row in loops if row.change == "they compute f32[1]; f32[2]; f32[3]")
    assert sizes.fix == "pad to few sizes"
    assert any("@tg.function" in row.fix for row in loops)
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.rows))
    assert f"{mine.seconds:8.3f} s  4 programs  sines at test_comparing.py:" in str(found)


def test_programs_of_two_dtypes_are_told_by_the_arguments_that_differ():
    @tg.function
    def cosines(x, y, n):
        return tg.cos(x * y), n + 1

    for dtype in (tg.float32, tg.bfloat16):
        cosines(tg.ones([2], dtype), tg.ones([2], dtype), tg.constant(1))
    (mine,) = (row for row in tg.debugging.explain_compiles().rows if row.name == "cosines")
    assert mine.change == "they take f32[2]; bf16[2]"
    assert mine.fix == "see f.explain_retraces()"


def test_counts_of_one_are_told_as_such():
    text = str(tg.debugging.compare(tg.reduce_sum, lambda x: tg.reduce_sum(x) + 1.0, tg.ones([3])))
    assert "1 of 1 element differs" in text and text.endswith("nodes compared: 1 of 1 and 2")
