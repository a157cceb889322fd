"""Branches that return tensors of sizes that only the run knows: the same results as plain Python
on NumPy's numbers, and every derivative."""

import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near

VECTORS = [
    np.array([1.5, -2.2, 3.1, 0.5, -1.2]),
    np.array([-1.1, -2.2, -3.3, -0.5, -1.1]),  # no element is kept
    np.array([1.1, 2.2, 3.1, 0.5, 1.1]),  # all are
]
# The programs are decorated once for each test.
pytestmark = pytest.mark.filterwarnings("ignore:.*the function was decorated again")
SPECS = [tg.TensorSpec([5], tg.float64), tg.TensorSpec([], tg.int32)]


def masked_or_whole(x, n):
    if n > 0:
        y = x[x > 0]
    else:
        y = x
    return y * 2


def two_sizes(x, n):
    return x[x > 0] if n > 0 else x[x < 1] ** 2


def left_early(x, n):
    if n < 1:
        return x[x > 0]
    if n < 2:
        return x * x
    return x[x < 0]


def left_early_inside(x, n):
    if n > 0:
        if n > 1:
            return x[x < 2][1:]
        x = x * x
    return x


def three_ways(x, n):
    if n == 0:
        y = x[x > 0]
    elif n == 1:
        y = x[x > 1] * x[0]
    else:
        y = x[1:]
    return y**2


def known_before(x, n):
    kept = x[x > 0] ** 2
    y = kept if n > 0 else x
    return y * y


def nested(x, n):
    y = x
    if n > 0:
        y = x[x < 2]
        if n > 1:
            y = y[y > 0]
    return y * x[0]


def rows(x, n):
    grid = x[:, None] * x
    if n > 0:
        grid = grid[x > 0]
    return grid * 3


def both_axes(x, n):
    grid = x[:, None] * x
    if n > 0:
        grid = x[x > 0][:, None] * x[x < 2]
    return grid


def joined_behind(x, n):
    y = x[x > 0] if n > 0 else x
    z = y[y < 2]
    return z * x[0] if n > 1 else y + y**2


def twice(x, n):
    return masked_or_whole(x, n) if n < 2 else masked_or_whole(x * x - 1.0, n)


PROGRAMS = {
    program.__name__: program
    for program in (
        *(masked_or_whole, two_sizes, left_early, three_ways, known_before, nested, rows),
        *(both_axes, joined_behind, twice, left_early_inside),
    )
}


def cube_sum(program):
    return lambda x, n: tg.reduce_sum(program(x, n) ** 3)


def pulled(f):
    def slope(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x, n)
        return tape.gradient(y, x, unconnected_gradients="zero")

    return slope


def pushed(f):
    def slope(x, n):
        with tg.autodiff.ForwardAccumulator(x, tg.ones_like(x)) as accumulator:
            y = f(x, n)
        return accumulator.jvp(y)

    return slope


def by_differences(f, x, step=1e-6):
    """The derivative by each element, whose small changes change no size."""
    rows = np.eye(len(x)) * step
    return np.array([(f(x + d) - f(x - d)) / (2 * step) for d in rows])


def assert_close(found, expected, tolerance):
    """Near up to the rounding of differences, which that of the largest element is."""
    atol = tolerance * (1 + np.max(np.abs(expected), initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=atol)


CASES = [pytest.param(name, n, id=f"{name}, {n}") for name in PROGRAMS for n in (0, 1, 2)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    program = PROGRAMS[name]
    f = tg.function(program)
    for x in VECTORS:
        for n in (0, 1, 2):
            expected = program(x, n)
            found = f(tg.constant(x), tg.constant(n))
            assert tuple(found.shape) == expected.shape
            assert_near(found, expected)
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "n"), CASES)
def test_derivatives(name, n):
    program, x = PROGRAMS[name], VECTORS[0]
    given = tg.constant(x), tg.constant(n)
    slope = by_differences(lambda x: np.sum(program(x, n) ** 3), x)
    f = cube_sum(program)
    gradients = [tg.function(pulled(f)), pulled(tg.function(f))]
    for gradient in gradients:
        assert_close(gradient(*given), slope, 1e-7)
    tangent = tg.function(pushed(program))(*given)
    along = by_differences(lambda step: program(x + step, n), np.zeros(1))[0]
    assert_close(tangent, along, 1e-7)
    second = tg.function(pulled(lambda x, n: tg.reduce_sum(pulled(f)(x, n) ** 2)))
    exact = gradients[0]
    squares = by_differences(lambda x: np.sum(exact(tg.constant(x), given[1]).numpy() ** 2), x)
    assert_close(second(*given), squares, 1e-7)


def kept_or_all(x, n):
    return (x[x > 0] ** 3 if n > 0 else x) * 1.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [0, 1])
def test_a_saved_model(tmp_path, n):
    model = tg.Module()
    model.f = tg.function(kept_or_all, input_signature=SPECS)
    text = model.f.graph().as_text()
    assert tg.Graph.from_text(text).as_text() == text
    assert text.count("runtime_size<") == 2  # one for each branch
    tg.saved_model.save(model, tmp_path / "model")
    loaded, x = tg.saved_model.load(tmp_path / "model").f, VECTORS[0]
    given = tg.constant(x), tg.constant(n)
    assert_near(loaded(*given), kept_or_all(x, n))
    exact = 3 * np.where(x > 0, x, 0) ** 2 if n else np.ones(5)
    gradient = pulled(lambda x, n: tg.reduce_sum(loaded(x, n)))
    assert_near(gradient(*given), exact)
    text = tg.function(gradient, input_signature=SPECS).graph().as_text()
    assert "alone=true" in text and tg.Graph.from_text(text).as_text() == text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_cond_switch_and_case(n):
    def chosen(x, n):
        def whole():
            return {"values": x, "places": tg.where(x < 9.0), "count": tg.constant(0)}

        def kept():
            return {"values": x[x > 0], "places": tg.where(x > 0), "count": tg.constant(1)}

        first = tg.cond(n > 0, kept, whole)
        second = tg.switch_case(n, [lambda: x[x > 1], lambda: x[:2], lambda: x])
        third = tg.case([(n > 1, lambda: x[x < 0]), (n > 0, lambda: x)], lambda: x[x > 1])
        return first, second, third

    x, number = tg.constant(VECTORS[0]), tg.constant(n)
    x0 = VECTORS[0]
    mask = x0 > 0 if n > 0 else x0 < 9
    seconds = [x0[x0 > 1], x0[:2], x0]
    for run in (chosen, tg.function(chosen)):
        first, second, third = run(x, number)
        assert_near(first["values"], x0[mask])
        assert_near(first["places"], np.argwhere(mask))
        assert int(first["count"]) == (n > 0)
        assert_near(second, seconds[min(n, 2)])
        assert_near(third, x0[x0 < 0] if n > 1 else x0 if n == 1 else x0[x0 > 1])


def test_a_summary_names_the_branch_as_a_cut():
    (cut,) = tg.function(kept_or_all, input_signature=SPECS).graph().summary().cuts
    assert cut.line == kept_or_all.__code__.co_firstlineno + 1 and cut.found.startswith("?")


def test_shapes_that_follow_from_no_value_are_refused_in_a_function():
    with pytest.raises(tg.errors.ShapeError, match=r"true_fn is f32\[2\], and of false_fn"):
        tg.function(tg.cond)(tg.constant(True), lambda: tg.zeros([2]), lambda: tg.zeros([3]))


@pytest.mark.parametrize("taken", [True, False])
def test_at_top_level_python_decides_between_shapes(taken):
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.cond(tg.constant(taken), lambda: 3 * x, lambda: x[:, None] * x)
    assert_near(y, np.array([3.0, 6]) if taken else np.array([[1.0, 2], [2, 4]]))
    assert_near(tape.gradient(y, x), np.array([3.0, 3]) if taken else np.array([6.0, 6]))
    assert tg.switch_case(tg.constant(int(taken)), [lambda: x, lambda: x[0]]).shape == (
        () if taken else (2,)
    )


def test_effects_of_sized_branches(capfd):
    total = tg.Variable(0.0, dtype=tg.float64)

    @tg.function
    def f(x, n):
        if n > 0:
            y = x[x > 0]
            total.assign_add(tg.reduce_sum(y))
            tg.print("kept", tg.size(y))
        else:
            y = x
        assert tg.size(y) > 2, "too few"
        total.assign_add(1.0)
        return tg.reduce_sum(y**2)

    x, told = VECTORS[0], {0: "", 1: "kept 3\n"}
    for n, kept, expected in ((0, x, 1.0), (1, x[x > 0], 7.1)):
        assert_near(f(tg.constant(x), tg.constant(n)), np.sum(kept**2))
        assert_near(total, expected)
        assert capfd.readouterr().err == told[n]
    with pytest.raises(tg.errors.InvalidArgumentError, match="too few"):
        f(tg.constant(VECTORS[1]), tg.constant(1))
    assert_near(total, 7.1)


def test_a_variable_of_open_shape_in_a_branch():
    kept = tg.Variable(VECTORS[0], shape=tg.TensorShape([None]))

    def step(n):
        def narrowed():
            kept.assign(kept[kept > 0])
            return n

        return tg.cond(n > 0, narrowed, lambda: n)

    for run in (step, tg.function(step)):
        for n, expected in ((0, VECTORS[0]), (1, VECTORS[0][VECTORS[0] > 0])):
            kept.assign(VECTORS[0])
            run(tg.constant(n))
            assert_near(kept, expected)


@pytest.mark.parametrize("n", [0, 1])
def test_loops_around_and_behind_sized_branches(n):
    def rows(x, n):
        y = kept_or_all(x, n)
        total = tg.zeros([], x.dtype)
        for value in y:
            total = 0.5 * total + value
        return tg.vectorized_map(lambda row: row * kept_or_all(x, n), x[:2]), total

    x = VECTORS[0]
    y, expected = kept_or_all(x, n), 0.0
    for value in y:
        expected = 0.5 * expected + value
    found, total = tg.function(rows)(tg.constant(x), tg.constant(n))
    assert_near(found, x[:2, None] * y)
    assert_near(total, expected)


def test_recomputation_of_sized_branches():
    again = tg.recompute_grad(kept_or_all)
    x = VECTORS[0]
    for n, exact in ((0, np.ones(5)), (1, 3 * np.where(x > 0, x, 0) ** 2)):
        gradient = pulled(lambda x, n: tg.reduce_sum(again(x, n)))
        for run in (gradient, tg.function(gradient)):
            assert_near(run(tg.constant(x), tg.constant(n)), exact)


def test_a_kept_size_is_not_mistaken_for_another():
    sizes = []

    @tg.function
    def first(x, n):
        def kept():
            sizes.append(x[x > 0].shape[0])
            return x[0]

        y = x[x < 2]
        sizes.append(y.shape[0])
        return y, tg.cond(n > 0, kept, lambda: x[1])

    x, n = tg.constant(VECTORS[0]), tg.constant(1)
    first(x, n)
    other = lambda x: (x[x > 1], tg.zeros([sizes[-1]]))  # noqa: E731
    while sizes:
        with pytest.raises(tg.errors.TraceError, match=r"\?. belongs to a function traced before"):
            tg.function(other)(x)
        sizes.pop()
    outside = tg.function(lambda x, n: (first.python_function(x, n), tg.zeros([sizes[-1]])))
    with pytest.raises(tg.errors.TraceError, match=r"known only inside of a branch or a loop"):
        outside(x, n)
