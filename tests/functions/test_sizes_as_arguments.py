"""Open sizes that one function hands to another: as arguments, and by what the other captures.

NumPy computes what each function must return; the sizes of the two operands differ, so that a
size taken for another shows.
"""

import jax
import numpy as np
import pytest

import tracegraph as tg

VECTOR = tg.TensorSpec([None], tg.float64)
X, Y = np.arange(1.0, 4.0), np.arange(1.0, 6.0)


def opened(fn, **options):
    """A function of two vectors of open size."""
    return tg.function(fn, input_signature=[VECTOR, VECTOR], **options)


@tg.function
def repeated(y, n):
    """The sum of y, n times."""
    return tg.zeros([n], y.dtype) + tg.reduce_sum(y)


@tg.function
def shaped(y, shape):
    return tg.zeros(shape, y.dtype) + tg.reduce_sum(y)


@tg.function(input_signature=[VECTOR, tg.TensorSpec([], tg.int32)])
def divided(y, n):
    return y / tg.cast(n, y.dtype)


@tg.function(input_signature=[VECTOR])
def first_declared(y, *others):
    return tg.zeros(y.shape, y.dtype) + tg.reduce_sum(others[0])


@tg.function(input_signature=[VECTOR])
def first_declared_with_size(y, n=2):
    return tg.zeros([n], y.dtype) + tg.reduce_sum(y)


@tg.function
def counted_down(y, n, k):
    return repeated(y, n) if k == 0 else counted_down(tg.concat([y, y], 0), n, k - 1)


def by_closure(x, y):
    n = x.shape[0]

    @tg.function
    def inner(z):
        @tg.function
        def innermost(w):
            return tg.zeros([n], w.dtype) + tg.reduce_sum(w) + tg.cast(z.shape[0], w.dtype)

        return innermost(tg.concat([z, z], 0))

    return inner(y)


def by_captured_tensor(x, y):
    return tg.function(lambda z: x * tg.reduce_sum(z) + z.shape[0])(y)


def size_of_values(x, y):
    n = tg.boolean_mask(x, x > 1).shape[0]

    @tg.function
    def inner(z):
        return tg.zeros([n], z.dtype) + tg.reduce_sum(tg.boolean_mask(z, z > 2))

    return inner(y)


SUM = Y.sum()
CASES = {
    "of another operand": (lambda x, y: repeated(y, x.shape[0]), [SUM] * 3),
    "of the operand": (lambda x, y: repeated(y, y.shape[0]), [SUM] * 5),
    "by keyword, computed": (lambda x, y: repeated(y, n=2 * x.shape[0] - 1), [SUM] * 5),
    "in a dict": (
        lambda x, y: tg.function(lambda d: repeated(*d.values()))({"y": y, "n": x.shape[0]}),
        [SUM] * 3,
    ),
    "a shape": (lambda x, y: shaped(y, x.shape), [SUM] * 3),
    "a shape of several": (
        lambda x, y: shaped(y, tg.stack([x, x], 1).shape),
        [[SUM, SUM]] * 3,
    ),
    "for a declared tensor": (lambda x, y: divided(y, x.shape[0]), Y / 3),
    "beside a declared one": (lambda x, y: first_declared(y, x), [X.sum()] * 5),
    "a size beside it": (lambda x, y: first_declared_with_size(y, x.shape[0]), [SUM] * 3),
    "by recursion": (lambda x, y: counted_down(y, x.shape[0], 2), [4 * SUM] * 3),
    "by closure": (by_closure, [2 * SUM + 5] * 3),
    "of a captured tensor": (by_captured_tensor, X * SUM + 5),
    "that the run finds": (size_of_values, [SUM - 3] * 2),
    "in a loop": (
        lambda x, y: tg.foldl(
            lambda total, z: total + tg.reduce_sum(repeated(y * z, x.shape[0])), x, 0.0 * x[0]
        ),
        3 * SUM * X.sum(),
    ),
    "in a branch": (
        lambda x, y: tg.cond(y[0] > 0, lambda: repeated(y, x.shape[0]), lambda: x),
        [SUM] * 3,
    ),
    "for each": (
        lambda x, y: tg.vectorized_map(lambda z: repeated(y * z, y.shape[0]), x),
        [[SUM * x] * 5 for x in X],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes_keep_their_meaning(case):
    fn, wanted = CASES[case]
    found = opened(fn)(tg.constant(X), tg.constant(Y))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


def test_one_trace_serves_every_size_handed_over():
    @tg.function
    def inner(y, n):
        return tg.zeros([n], y.dtype) + tg.reduce_sum(y)

    both = opened(lambda x, y: tg.concat([inner(y, x.shape[0]), inner(x, y.shape[0])], 0))
    assert both(tg.constant(X), tg.constant(Y)).numpy().tolist() == [15.0] * 3 + [6.0] * 5
    assert inner.experimental_get_tracing_count() == 1
    # Equal sizes may be handed to the same trace.
    again = opened(lambda x, y: inner(y, y.shape[0]) + y)(tg.constant(X), tg.constant(Y))
    np.testing.assert_array_equal(again.numpy(), SUM + Y)
    assert inner.experimental_get_tracing_count() == 1
    assert "@inner(%y: f64[d0], %n: bool[d1,0])" in inner.traces[0].graph.as_text()


def test_derivatives_through_a_function_that_takes_a_size():
    def slopes(x, y):
        with tg.GradientTape() as outer:
            outer.watch(y)
            with tg.GradientTape() as tape:
                tape.watch(y)
                total = tg.reduce_sum(repeated(y * y * y, x.shape[0]))
            slope = tape.gradient(total, y)
        return slope, outer.jacobian(slope, y)

    slope, hessian = opened(slopes)(tg.constant(X), tg.constant(Y))
    np.testing.assert_allclose(slope.numpy(), 9 * Y**2, rtol=1e-12)
    np.testing.assert_allclose(hessian.numpy(), np.diag(18 * Y), rtol=1e-12)


def test_models_that_hand_over_sizes(tmp_path):
    class Model(tg.Module):
        @tg.function
        def repeated(self, y, n):
            return tg.zeros([n], y.dtype) + tg.reduce_sum(y)

        @tg.function(input_signature=[VECTOR, VECTOR])
        def __call__(self, x, y):
            return self.repeated(y, x.shape[0])

    model = Model()
    model(tg.constant(X), tg.constant(Y))
    tg.saved_model.save(model, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    assert loaded(tg.constant(Y), tg.constant(X)).numpy().tolist() == [6.0] * 5
    with jax.enable_x64(True):
        np.testing.assert_array_equal(model.__call__.as_jax()(X, Y), [SUM] * 3)
    text = model.__call__.get_concrete_function().graph.as_text()
    assert tg.Graph.from_text(text).as_text() == text


def test_a_size_of_a_finished_trace_is_refused():
    kept = []
    opened(lambda x, y: kept.append(y.shape[0]) or x)(tg.constant(X), tg.constant(Y))
    for call in (repeated, tg.function(lambda y, n=kept[0]: repeated(y, n))):
        with pytest.raises(tg.errors.TraceError, match="the size d1 belongs to a function traced"):
            call(tg.constant(Y), kept[0])


USES_OF_SIZES = {
    "shape": lambda y, n: tg.zeros([n], y.dtype),
    "sum": lambda y, n: y[0] + (n + 1),
    "reshape": lambda y, n: tg.reshape(y, [n]),
    "slice": lambda y, n: (y[: n - 1], y[n - 1]),
    "sizes": lambda y, n: tg.slice(y, [0], [n]),
    "range": lambda y, n: tg.range(2 * n),
    "argument": lambda y, n: repeated(y, n),
    "shape as argument": lambda y, n: shaped(y, [n]),
    "comparison": lambda y, n: y if y.shape[0] == n else y[0],
}


@pytest.mark.parametrize("use", USES_OF_SIZES.values(), ids=USES_OF_SIZES)
def test_a_size_of_a_finished_trace_means_nothing_in_another(use):
    """Open sizes are named alike in each function, so that one would pass for the other."""
    kept = []
    tg.function(lambda x: kept.append(x.shape[0]) or x).get_concrete_function(VECTOR)
    other = tg.function(lambda y: use(y, kept[0]))
    with pytest.raises(tg.errors.TraceError, match=r"the size .* belongs to a function traced"):
        other.get_concrete_function(VECTOR)


def test_a_size_of_a_nested_function_is_not_known_around_it():
    kept = []

    @tg.function(input_signature=[VECTOR])
    def inner(x):
        kept.append(x.shape[0])
        return x

    def outer(x, y):
        total = tg.reduce_sum(inner(tg.concat([x, y], 0)))
        return tg.zeros(kept, x.dtype) + total

    with pytest.raises(tg.errors.TraceError, match=r"the size .* belongs to a function traced"):
        opened(outer)(tg.constant(X), tg.constant(Y))


def test_a_size_of_a_finished_trace_at_top_level():
    kept = []
    opened(lambda x, y: kept.append(y.shape[0]) or x)(tg.constant(X), tg.constant(Y))
    for use in (lambda n: tg.zeros([n]), lambda n: tg.constant(X) * n):
        with pytest.raises(tg.errors.TraceError, match=r"the size .* belongs to a function traced"):
            use(kept[0])
    assert kept[0] != 5


def test_a_size_from_an_integer_that_the_caller_knows_is_known_there():
    """So the caller is one program. Other callers have other sizes, and effects stay."""
    v = tg.Variable(1.0)

    @tg.function(input_signature=[tg.TensorSpec([None]), tg.TensorSpec([], tg.int32)])
    def inner(x, n):
        v.assign_add(x[0])
        return x[:, None] * tg.ones(tg.stack([tg.size(x), n]))

    @tg.function
    def outer(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = inner(x, 3)
        assert y.shape.as_list() == [2, 3]
        assert inner(x, 5).shape.as_list() == [2, 5]
        return y, tape.gradient(y, x)

    y, g = outer(tg.constant([2.0, 4.0]))
    assert not outer.get_concrete_function(tg.TensorSpec([2])).graph.cuts_runs
    assert y.numpy().tolist() == [[2.0] * 3, [4.0] * 3] and g.numpy().tolist() == [3.0, 3.0]
    assert v.numpy() == 5.0 and inner(tg.ones([1]), 4).shape == (1, 4)
    with pytest.raises(tg.errors.InvalidArgumentError, match="-1"):
        tg.function(lambda x: inner(x, -1))(tg.ones([2]))
