"""What Python functions return: it is differentiated without another call, of any shape."""

import sys

import numpy as np
import pytest

import tracegraph as tg

X = np.array([1.0, 2.0, 3.0], np.float32)
VECTOR = tg.TensorSpec([3])
# A trace takes another shape by being made anew.
pytestmark = pytest.mark.filterwarnings("ignore:5 of the last")


# The function is q^2 sin(q); its derivatives by hand.
FIRST = 2 * X * np.sin(X) + X**2 * np.cos(X)
SECOND = 2 * np.sin(X) + 4 * X * np.cos(X) - X**2 * np.sin(X)
THIRD = 6 * np.cos(X) - 6 * X * np.sin(X) - X**2 * np.cos(X)


class Counted:
    """A function around a Python function that counts its calls, in Python and in a Variable."""

    def __init__(self, spec):
        self.calls, self.count = 0, tg.Variable(0.0)
        self.f = tg.function(lambda x: tg.py_function(self._called, [x * 1.0], spec))

    def _called(self, q):
        self.calls += 1
        self.count.assign_add(1.0)
        return tg.sin(q) * q * q


def gradient_of(f):
    def gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    return gradient


def jacobian_diagonal_of(f):
    def jacobian(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tg.linalg.diag_part(tape.jacobian(y, x))

    return jacobian


def tangent_of(f):
    def tangent(x):
        with tg.autodiff.ForwardAccumulator(x, tg.ones([3])) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return tangent


DERIVATIVES = {
    "gradient": (gradient_of, FIRST),
    "jacobian": (jacobian_diagonal_of, FIRST),
    "tangent": (tangent_of, FIRST),
    "second": (lambda f: gradient_of(gradient_of(f)), SECOND),
    "third": (lambda f: gradient_of(gradient_of(gradient_of(f))), THIRD),
    "hessian": (lambda f: jacobian_diagonal_of(gradient_of(f)), SECOND),
    "forward over reverse": (lambda f: tangent_of(gradient_of(f)), SECOND),
    "reverse over forward": (lambda f: gradient_of(tangent_of(f)), SECOND),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
@pytest.mark.parametrize("spec", [VECTOR, tg.float32, tg.TensorSpec([None])], ids=str)
@pytest.mark.parametrize("kind", DERIVATIVES)
def test_a_derivative_calls_nothing_again(kind, spec, is_decorated):
    derive, expected = DERIVATIVES[kind]
    counted = Counted(spec)
    derivative = derive(counted.f)
    derivative = tg.function(derivative) if is_decorated else derivative
    for number in (1, 2, 3):
        np.testing.assert_allclose(derivative(tg.constant(X)), expected, rtol=1e-4)
        assert (counted.calls, float(counted.count)) == (number, number)


def times_ten_of(f):
    """f with ten times its value for a gradient, as its own rule has it."""

    @tg.custom_gradient
    def chosen(x):
        y = f(x)
        return y, lambda dy: dy * y * 10.0

    return chosen


VALUE = X**2 * np.sin(X)
#: What the function is wrapped in, and by the kind of derivative what it makes of it.
WRAPPED = {
    "recompute_grad": (tg.recompute_grad, {kind: row[1] for kind, row in DERIVATIVES.items()}),
    "custom_gradient": (
        times_ten_of,
        {
            "gradient": 10 * VALUE,
            "jacobian": 10 * VALUE,
            "tangent": 10 * VALUE,
            "second": 10 * FIRST,
            "third": 10 * SECOND,
            "hessian": 10 * FIRST,
            "forward over reverse": 10 * FIRST,
            "reverse over forward": 10 * FIRST,
        },
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
@pytest.mark.parametrize("spec", [VECTOR, tg.float32, tg.TensorSpec([None])], ids=str)
@pytest.mark.parametrize("kind", DERIVATIVES)
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_chosen_gradient_calls_nothing_again(wrapper, kind, spec, is_decorated):
    wrap, expected = WRAPPED[wrapper]
    counted = Counted(spec)
    derivative = DERIVATIVES[kind][0](wrap(counted.f))
    derivative = tg.function(derivative) if is_decorated else derivative
    for number in (1, 2):
        np.testing.assert_allclose(derivative(tg.constant(X)), expected[kind], rtol=1e-4)
        assert (counted.calls, float(counted.count)) == (number, number)


@pytest.mark.parametrize("wrap", [tg.recompute_grad, times_ten_of])
def test_a_chosen_gradient_in_a_parallel_loop_calls_nothing_again(wrap):
    counted = Counted(VECTOR)
    xs = np.stack([X, X + 1.0])
    rows = tg.function(lambda xs: tg.vectorized_map(gradient_of(wrap(counted.f)), xs))
    value = xs**2 * np.sin(xs)
    first = 2 * xs * np.sin(xs) + xs**2 * np.cos(xs)
    expected = first if wrap is tg.recompute_grad else 10 * value
    np.testing.assert_allclose(rows(tg.constant(xs)), expected, rtol=1e-4, atol=1e-5)
    assert (counted.calls, float(counted.count)) == (2, 2.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
@pytest.mark.parametrize("wrap", [tg.recompute_grad, times_ten_of])
def test_a_gradient_belongs_to_the_forward_pass_that_was_made(wrap, is_decorated):
    """Each call of Python draws another factor, and value and gradient have the same one."""
    factors = iter(range(2, 100))

    def drawn(q):
        factor = float(next(factors))
        return q * q * factor

    def step(x):
        f = wrap(lambda v: tg.py_function(drawn, [v], VECTOR))
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return y, tape.gradient(y, x)

    step = tg.function(step) if is_decorated else step
    for _ in range(3):
        y, g = step(tg.constant(X))
        expected = 2 * y.numpy() / X if wrap is tg.recompute_grad else 10 * y.numpy()
        np.testing.assert_allclose(g, expected, rtol=1e-6)


def test_effects_in_recomputed_code_keep_their_order(capsys):
    total = tg.Variable(1.0)

    @tg.recompute_grad
    def layer(x):
        y = tg.exp(x) * total
        tg.print("y", y, output_stream=sys.stdout)
        total.assign_add(tg.reduce_sum(y))
        z = tg.py_function(lambda q: q * total, [y], VECTOR)
        tg.print("z", z, output_stream=sys.stdout)
        return tg.sin(z) * y

    @tg.function
    def gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            loss = layer(x)
        return tape.gradient(loss, x)

    found = gradient(tg.constant(X))
    y = np.exp(X)
    new = 1 + y.sum()
    np.testing.assert_allclose(float(total), new, rtol=1e-6)
    expected = np.cos(y * new) * new * y * y + np.sin(y * new) * y
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["y", "z"]


@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
def test_a_chosen_gradient_reads_what_has_no_cotangent(is_decorated):
    """The second order goes through a value that the first, which was chosen, passes by."""

    @tg.custom_gradient
    def scaled(x, h):
        return x * h, lambda dy: (dy * h * 10.0, None)

    f = tg.function(lambda x: scaled(x, tg.sin(x * x)))
    second = gradient_of(gradient_of(f))
    second = tg.function(second) if is_decorated else second
    np.testing.assert_allclose(second(tg.constant(X)), 20 * X * np.cos(X * X), rtol=1e-5)


@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
def test_a_derivative_in_a_parallel_loop_calls_nothing_again(is_decorated):
    counted = Counted(VECTOR)

    def rows(xs):
        return tg.vectorized_map(gradient_of(counted.f), xs)

    xs = np.stack([X, X + 1.0])
    rows = tg.function(rows) if is_decorated else rows
    found = rows(tg.constant(xs))
    np.testing.assert_allclose(
        found, 2 * xs * np.sin(xs) + xs**2 * np.cos(xs), rtol=1e-4, atol=1e-5
    )
    assert (counted.calls, float(counted.count)) == (2, 2.0)


def test_a_persistent_tape_asks_twice_of_one_call():
    counted = Counted(VECTOR)
    x = tg.constant(X)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = counted.f(x)
        z = tg.reduce_sum(y * y)
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, x), FIRST, rtol=1e-4)
    np.testing.assert_allclose(tape.gradient(z, x), 2 * X**2 * np.sin(X) * FIRST, rtol=1e-4)
    assert counted.calls == 1


@pytest.mark.parametrize("is_decorated", [False, True])
def test_a_variable_that_a_python_function_uses_has_a_derivative_where_the_tape_sees_it(
    is_decorated,
):
    """In a function, as in TensorFlow, only what is passed in `inp` has one."""
    v = tg.Variable(3.0)

    def slope(x):
        with tg.GradientTape() as tape:
            y = tg.py_function(lambda q: q * v, [x], tg.TensorSpec([], tg.float32)) * v
        return tape.gradient(y, v)

    found = (tg.function(slope) if is_decorated else slope)(tg.constant(2.0))
    assert float(found) == (6.0 if is_decorated else 12.0)


def test_the_gradient_is_that_of_the_call_that_was_made():
    """Python may have changed since: what counts is what was computed."""
    factor = [2.0]
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.function(lambda v: tg.py_function(lambda q: q * factor[0], [v], tg.TensorSpec([])))(
            x
        )
    factor[0] = 100.0
    assert float(y) == 6.0
    assert float(tape.gradient(y, x)) == 2.0


# Shapes that nobody declared.


class Filtered:
    """A step around two Python functions whose results have the sizes, and the rank, they like."""

    def __init__(self):
        self.seen, self.traces, self.w = [], 0, tg.Variable(0.0)
        self.step = tg.function(self._step)

    def _step(self, x):
        self.traces += 1
        self.w.assign_add(1.0)
        y = tg.numpy_function(self._positive, [x], tg.float32)
        self.w.assign_add(tg.reduce_sum(y * 0.0) + 1.0)
        z = tg.numpy_function(self._deep, [y * 2.0], tg.float32)
        self.w.assign_add(10.0)
        return y + 1.0, tg.reduce_sum(z)

    def _positive(self, array):
        self.seen.append(("positive", float(self.w)))
        return array[array > 0]

    def _deep(self, array):
        self.seen.append(("deep", float(self.w)))
        return array if len(array) < 4 else array[None]


def test_results_of_undeclared_rank_may_change_their_shape():
    filtered = Filtered()
    rows = [[1, 2, -1, -1], [1, 2, 3, -1], [-1, 2, 3, -1], [1, 2, 3, 4], [-1] * 4, [-1, -1, 1, 1]]
    for number, row in enumerate(rows):
        array, before = np.array(row, np.float32), 12.0 * number
        y, z = filtered.step(tg.constant(array))
        kept = array[array > 0]
        np.testing.assert_array_equal(y, kept + 1.0)
        assert y.shape == kept.shape
        assert float(z) == 2 * kept.sum()
        assert filtered.seen == [("positive", before + 1), ("deep", before + 2)]
        assert float(filtered.w) == before + 12.0
        filtered.seen.clear()
    assert filtered.traces == 4  # as it was, two sizes that differ, and a rank that does


def test_each_call_of_a_function_has_its_own_sizes():
    first = tg.function(
        lambda x, n: tg.py_function(lambda a, n: a[: int(n)] ** 2.0, [x, n], tg.TensorSpec([None]))
    )

    @tg.function
    def both(x, n):
        a, b = first(x, n), first(x, n + 1)
        return tg.concat([a, b], 0), tg.shape(a), tg.shape(b)

    for n in (1, 2, 1):
        y, *sizes = both(tg.constant(X), tg.constant(n))
        np.testing.assert_array_equal(y, np.concatenate([X[:n] ** 2, X[: n + 1] ** 2]))
        assert [size.numpy().tolist() for size in sizes] == [[n], [n + 1]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("spec", [tg.float32, tg.TensorSpec([None])], ids=str)
@pytest.mark.parametrize("way", ["top level", "in a function", "a function in a function"])
def test_gradients_through_sizes_that_each_call_chooses(way, spec):
    calls = []

    def host(a, n):
        calls.append(int(n))
        return a[: int(n)] ** 2.0

    first = tg.function(lambda x, n: tg.py_function(host, [x, n], spec))
    both = tg.function(lambda x, n: tg.concat([first(x, n), first(x, n + 1)], 0))
    loss = (
        both
        if way != "a function in a function"
        else tg.function(lambda x, n: tg.reduce_sum(both(x, n)))
    )

    def gradient(x, n):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = loss(x, n)
        return tape.gradient(y, x)

    gradient = gradient if way == "top level" else tg.function(gradient)
    for n in (1, 2, 1, 2):
        expected = 2 * X * ((np.arange(3) < n).astype(np.float32) + (np.arange(3) < n + 1))
        np.testing.assert_allclose(gradient(tg.constant(X), tg.constant(n)), expected)
        assert calls == [n, n + 1]
        calls.clear()


def test_results_at_top_level_have_the_sizes_of_the_call():
    x = tg.constant(X)
    f = tg.function(lambda x: tg.numpy_function(lambda a: a[a > 1.5], [x], tg.TensorSpec([None])))
    for _ in range(2):
        assert f(x).shape == (2,)
    with tg.GradientTape() as tape:
        tape.watch(x)
        assert (f(x) + 1.0).shape == (2,)


def test_a_declared_rank_is_held_to():
    f = tg.function(lambda x: tg.numpy_function(lambda a: a[None], [x], tg.TensorSpec([None])))
    with pytest.raises(tg.errors.InvalidArgumentError, match=r"shape \(1, 3\).* \(None,\)"):
        f(tg.constant(X))


def test_a_concrete_function_names_a_shape_that_it_was_not_traced_with():
    sizes = iter([2, 3])
    f = tg.function(lambda x: tg.numpy_function(lambda a: a[: next(sizes)], [x], tg.float32) * 2.0)
    x = tg.constant(X)
    f(x)
    with pytest.raises(
        tg.errors.InvalidArgumentError, match=r"returned the shape \(3,\).*f32\[2\]"
    ):
        f.get_concrete_function(x)(x)


# What users get wrong.


@pytest.mark.parametrize("call", [tg.py_function, tg.numpy_function])
def test_a_python_function_that_returns_text(call):
    def told(x):
        return "three"

    with pytest.raises(TypeError, match=rf"tg.{call.__name__} of told returned a str, 'three'"):
        call(told, [tg.constant(1.0)], tg.float32)


@pytest.mark.parametrize("call", [tg.py_function, tg.numpy_function])
def test_the_call_of_a_python_function_is_no_decorator(call):
    with pytest.raises(TypeError, match=rf"tg.{call.__name__} is not a decorator: call it where"):

        @call(Tout=tg.float32)
        def doubled(x):
            return 2 * x


# Sparse Jacobians.


@pytest.mark.sampled(4)
@pytest.mark.parametrize("is_decorated", [True, False], ids=["in a function", "at top level"])
@pytest.mark.parametrize("spec", [VECTOR, tg.float32], ids=str)
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with more"])
@pytest.mark.parametrize("call", [tg.py_function, tg.numpy_function])
def test_sparse_jacobians_of_python_functions(call, is_alone, spec, is_decorated):
    def f(x):
        y = call(lambda q: q * q, [x], spec)
        return y if is_alone else y + x

    jacobian = tg.jacobian(f, sparse=True)
    jacobian = tg.function(jacobian) if is_decorated else jacobian
    found = jacobian(tg.constant(X))
    slopes = (2 * X if call is tg.py_function else 0 * X) + (0.0 if is_alone else 1.0)
    np.testing.assert_allclose(found.to_dense(), np.diag(slopes))
    if call is tg.numpy_function:
        assert found.nnz == (0 if is_alone else 3)


def test_a_value_that_waits_beside_a_derivative_of_a_python_function():
    """A program with effects gave such a value as the array of NumPy that it was given."""
    x = tg.constant(X)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.function(lambda v: tg.py_function(lambda q: q * q, [v], VECTOR))(x)
    g = tape.gradient(y, x)
    same = tg.identity(x)
    np.testing.assert_allclose(g, 2 * X)
    np.testing.assert_array_equal(same, X)


@pytest.mark.parametrize("wrap", [lambda fn: fn, tg.function], ids=["top level", "function"])
def test_a_shape_that_is_ensured_is_the_shape_of_the_result(wrap):
    """Also where nothing is traced again for the rank: in branches and loops at top level, and
    under a tape."""
    x = tg.constant(3.0)

    def double(x):
        return tg.ensure_shape(tg.py_function(lambda x: x * 2.0, [x], tg.float32), [])

    with tg.GradientTape() as tape:
        tape.watch(x)
        y = wrap(lambda x: tg.cond(x > 0.0, lambda: double(x), lambda: x))(x)
    assert y.numpy() == 6.0
    assert tape.gradient(y, x).numpy() == 2.0
    loop = wrap(
        lambda x: tg.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, double(x)), (0, x))
    )
    assert loop(x)[1].numpy() == 24.0
    assert wrap(lambda x: tg.map_fn(double, x))(tg.stack([x, x])).numpy().tolist() == [6.0, 6.0]
