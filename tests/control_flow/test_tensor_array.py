"""TensorArray: values, errors, loops, branches, and every derivative.

The values of the first tests are those that TensorFlow 2.21 gives.
"""

import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import gradient, jacobian
from tests.oracles import assert_near, raises
from tracegraph.control_passes import ranges
from tracegraph.control_passes.ranges import range_of, ranges_of
from tracegraph.errors import (
    DTypeError,
    InvalidArgumentError,
    ShapeError,
    SignatureError,
    TraceError,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:5 of the last 5 calls"),
]

FLOATS = tg.float32


def array(size: Any = 3, **options: Any):
    return tg.TensorArray(FLOATS, size=size, **options)


def growing(**options: Any):
    return tg.TensorArray(tg.float64, size=0, dynamic_size=True, **options)


def f64(value):
    return tg.constant(value, tg.float64)


def lists(x):
    return x.numpy().tolist()


# Elements.


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_write_that_is_not_kept_is_told(is_traced):
    def lost(n):
        found = array(3, element_shape=[])
        for i in tg.range(n):
            found.write(i, 1.0)
        return found.stack()

    with pytest.warns(UserWarning, match="before the write at test_tensor_array.py") as told:
        zeros = (tg.function(lost) if is_traced else lost)(tg.constant(3))
    assert_near(zeros, np.zeros(3))
    assert len(told) == 1 and told[0].filename == __file__


def test_an_array_of_zeros_and_writes_that_are_kept_are_not_told():
    @tg.function
    def kept(n):
        found = array(3, element_shape=[])
        zeros = found.stack()
        for i in tg.range(n):
            found = found.write(i, 1.0)
        if n > 1:
            found = found.write(2, 3.0)
        return zeros + found.stack()

    assert_near(kept(tg.constant(2)), [1.0, 1.0, 3.0])
    assert_near(kept(tg.constant(0)), np.zeros(3))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: array().write(1, [1.0, 2.0]).stack(), [[0, 0], [1, 2], [0, 0]]),
        (lambda: array(element_shape=[2]).stack(), [[0, 0]] * 3),
        (lambda: array(0, element_shape=[2]).stack(), []),
        (lambda: array(1).write(0, 1.0).write(0, 2.0).stack(), [2]),
        (lambda: array(0, dynamic_size=True).write(3, 1.0).stack(), [0, 0, 0, 1]),
        (lambda: array(0, dynamic_size=True).write(3, 1.0).size(), 4),
        (lambda: array(2).size(), 2),
        (lambda: array(2).write(0, [1.0, 3.0]).write(1, [1.0, 2.0]).concat(), [1, 3, 1, 2]),
        (lambda: array(2).write(0, [1.0, 3.0]).concat(), [1, 3, 0, 0]),
        (lambda: array(2).unstack([[1.0], [2.0]]).stack(), [[1], [2]]),
        (lambda: array(1, dynamic_size=True).unstack([[1.0], [2.0]]).stack(), [[1], [2]]),
        (lambda: array(4).scatter([2, 0], [[1.0], [2.0]]).stack(), [[2], [0], [1], [0]]),
        (lambda: array(0, dynamic_size=True).scatter([2, 0], [1.0, 2.0]).stack(), [2, 0, 1]),
        (lambda: array(3).unstack([1.0, 2.0, 3.0]).gather([2, 0, 0]), [3, 1, 1]),
        (lambda: array(2).split([1.0, 2.0, 3.0, 4.0], [2, 2]).stack(), [[1, 2], [3, 4]]),
        (lambda: array(2).split([1.0, 2.0, 3.0], [2, 1]).concat(), [1, 2, 3]),
        (lambda: array(2).split([1.0, 2.0, 3.0], [2, 1]).read(1), [3]),
        (lambda: array(2).unstack([1.0, 2.0]).identity().stack(), [1, 2]),
        (lambda: array(2).unstack([1.0, 2.0]).write(1, 5.0).read(1), 5),
    ],
)
def test_values(run, make, expected):
    assert lists(run(make)) == expected


def test_a_write_leaves_the_old_array_as_it_is(run):
    def both():
        old = array(2).unstack([1.0, 2.0])
        return old.write(0, 5.0).stack(), old.stack()

    assert [*map(lists, run(both))] == [[5, 2], [1, 2]]


def test_elements_of_several_shapes(run):
    def read():
        ta = array(2, infer_shape=False).write(0, [1.0]).write(1, [1.0, 2.0])
        return ta.concat(), ta.read(0), ta.read(1)

    assert [*map(lists, run(read))] == [[1, 1, 2], [1], [1, 2]]
    ta = array(2, infer_shape=False).write(0, [1.0]).write(1, [1.0, 2.0])
    raises(ShapeError, r"several shapes: f32\[1\], f32\[2\]", ta.stack)


def test_what_it_says_of_itself():
    ta = array(2, dynamic_size=True)
    assert (ta.dtype, ta.dynamic_size) == (tg.float32, True)
    assert ta.element_shape.rank is None
    assert ta.write(0, [1.0, 2.0]).element_shape == [2]
    assert tg.TensorArray(FLOATS, 2, element_shape=[None]).write(0, [1.0]).element_shape.rank == 1
    assert repr(array().write(0, [1.0])) == (
        "<tg.TensorArray(float32, size=3, element_shape=(1,))>"
    )


def test_indices_that_only_the_run_knows():
    @tg.function
    def f(i, x):
        ta = array(4).write(i, x).write(1, 2 * x)
        return ta.stack(), ta.read(i), ta.gather([1, i])

    stacked, one, two = f(tg.constant(3), tg.constant(2.0))
    assert (lists(stacked), lists(one), lists(two)) == ([0, 4, 0, 2], 2, [4, 2])
    dropped, *_ = f(tg.constant(7), tg.constant(2.0))
    assert lists(dropped) == [0, 4, 0, 0]
    g = tg.function(lambda at, x: array(4).scatter(at, x).stack())
    assert lists(g(tg.constant([2, 9, 0]), tg.constant([1.0, 2.0, 3.0]))) == [3, 0, 1, 0]


def test_a_size_that_is_open():
    @tg.function(input_signature=[tg.TensorSpec([None])])
    def doubled(x):
        ta = tg.TensorArray(FLOATS, size=tg.shape(x)[0])
        for i in tg.range(tg.shape(x)[0]):
            ta = ta.write(i, 2.0 * x[i])
        return ta.stack()

    assert lists(doubled(tg.constant([1.0, 2.0]))) == [2, 4]
    assert lists(doubled(tg.constant([1.0, 2.0, 3.0]))) == [2, 4, 6]


# Errors.


@pytest.mark.sampled(26)
@pytest.mark.parametrize(
    ("kind", "words", "call"),
    [
        (SignatureError, "the argument 'size' is missing", lambda: tg.TensorArray(FLOATS)),
        (SignatureError, "handle and flow", lambda: tg.TensorArray(FLOATS, 1, handle=1)),
        (ShapeError, "the size is -1", lambda: array(-1)),
        (DTypeError, "the size is an integer", lambda: array(1.5)),
        (InvalidArgumentError, "read: index 3 is out of range", lambda: array().read(3)),
        (InvalidArgumentError, "read: index -1 is out", lambda: array().read(-1)),
        (InvalidArgumentError, "index 0 of .* has not been written", lambda: array().read(0)),
        (
            InvalidArgumentError,
            "index 1 of .* has not been written",
            lambda: array().write(0, 1.0).gather([0, 1]),
        ),
        (InvalidArgumentError, "write: index 3 is out", lambda: array().write(3, 1.0)),
        (InvalidArgumentError, "write: index -1 is out", lambda: array().write(-1, 1.0)),
        (
            InvalidArgumentError,
            "write: index -1 is out",
            lambda: array(dynamic_size=True).write(-1, 1.0),
        ),
        (InvalidArgumentError, "index 5 is out", lambda: array().scatter([0, 5], [1.0, 2.0])),
        (InvalidArgumentError, "nothing has been written", lambda: array().stack()),
        (DTypeError, r"i32\[\] is given", lambda: array().write(0, tg.constant(1))),
        (
            ShapeError,
            r"shape \(1,\) is given .*element_shape=\(\)",
            lambda: array().write(0, 1.0).write(1, [1.0]),
        ),
        (ShapeError, "shape .* is given", lambda: array(element_shape=[2]).write(0, 1.0)),
        (ShapeError, "the elements are scalars", lambda: array().write(0, 1.0).concat()),
        (
            ShapeError,
            r"f32\[\] has no axis 0, along which it would be joined",
            lambda: array(2, infer_shape=False).write(0, [1.0, 2.0]).write(1, 3.0).concat(),
        ),
        (ShapeError, "2 elements are given", lambda: array().unstack([1.0, 2.0])),
        (ShapeError, "has no rows", lambda: array().unstack(1.0)),
        (ShapeError, "2 indices and 1 elements", lambda: array().scatter([0, 1], [1.0])),
        (ShapeError, "do not divide", lambda: array(2).split([1.0, 2.0, 3.0], [2, 2])),
        (ShapeError, "2 elements are given", lambda: array().split([1.0, 2.0], [1, 1])),
        (DTypeError, r"an index is f32\[\]", lambda: array().read(1.0)),
        (ShapeError, r"the index is i32\[1\]", lambda: array().read([1])),
        (ShapeError, r"the indices are i32\[\]", lambda: array().gather(1)),
    ],
)
def test_errors(run, kind, words, call):
    text = raises(kind, words, lambda: run(call))
    assert "test_tensor_array.py" in text


def test_repairs():
    text = lambda call: raises(InvalidArgumentError, "out of range", call).splitlines()[-1]  # noqa: E731
    assert text(lambda: array().read(3)) == "  fix: use indices from 0 to 2"
    assert text(lambda: array(0).read(0)) == "  fix: write something first"
    assert text(lambda: array().write(3, 1.0)) == (
        "  fix: use indices below 3, or make it with dynamic_size=True"
    )
    assert text(lambda: growing().write(-1, f64(1.0))) == "  fix: use indices from 0 on"


def test_bounds_are_checked_where_a_function_asks():
    @tg.function(check_bounds=True)
    def f(i, j):
        return array().write(0, 1.0).write(i, 2.0).read(j)

    assert lists(f(tg.constant(2), tg.constant(2))) == 2
    for i, j, words in (
        (3, 0, "write: index 3 is out of range"),
        (-1, 0, "write: index -1 is out of range"),
        (2, 3, "read: index 3 is out of range"),
        (2, 1, "has not been written"),
    ):
        raises(InvalidArgumentError, words, lambda i=i, j=j: f(tg.constant(i), tg.constant(j)))


def test_elements_that_a_loop_did_not_write_are_checked():
    @tg.function(check_bounds=True)
    def f(n):
        ta = array()
        for i in tg.range(n):
            ta = ta.write(i, 1.0)
        return ta.read(2)

    assert lists(f(tg.constant(3))) == 1
    raises(InvalidArgumentError, "has not been written", lambda: f(tg.constant(2)))


def test_a_write_that_nobody_keeps():
    @tg.function
    def f(n):
        ta = growing()
        for i in tg.range(n):
            ta.write(i, 1.0)
        return ta.stack()

    text = raises(TraceError, "the final size of an array", lambda: f(tg.constant(3)))
    assert "keep what write returns: array = array.write" in text


def test_bounds_are_checked_in_loops():
    @tg.function(check_bounds=True)
    def f(n):
        ta = array()
        for i in tg.range(n):
            ta = ta.write(i, 1.0)  # here
        return ta.stack()

    assert lists(f(tg.constant(2))) == [1, 1, 0]
    text = raises(InvalidArgumentError, "index 3 is out of range", lambda: f(tg.constant(4)))
    lines, start = inspect.getsourcelines(f.python_function)
    (place,) = [i for i, line in enumerate(lines) if "# here" in line]
    assert f"test_tensor_array.py:{start + place}" in text


# Loops.


def squares_by_while(x, ta, n):
    write = lambda i, ta: (i + 1, ta.write(i, x * tg.cast(i, x.dtype)))  # noqa: E731
    return tg.while_loop(lambda i, ta: i < n, write, (0, ta))[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_state_of_a_while(run, size):
    expected = np.outer(np.arange(size), [1.0, 2.0])
    x = f64([1.0, 2.0])
    fixed = lambda x: tg.TensorArray(tg.float64, size, element_shape=[2])  # noqa: E731
    for make in (fixed, lambda x: tg.TensorArray(tg.float64, 0, True, element_shape=[2])):
        found = run(lambda x, make=make: squares_by_while(x, make(x), size).stack(), x)
        assert_near(found, expected.reshape(size, 2))


def test_the_shape_of_elements_is_found_in_the_body(run):
    found = run(lambda x: squares_by_while(x, tg.TensorArray(tg.float64, 3), 3).stack(), f64([2.0]))
    assert lists(found) == [[0], [2], [4]]


def test_state_of_folds(run):
    def both(x):
        write = lambda ta, i: ta.write(i, x * tg.cast(i, tg.float64))  # noqa: E731
        left = tg.foldl(write, tg.range(4), growing())
        right = tg.foldr(write, tg.range(4), tg.TensorArray(tg.float64, 4))
        return left.stack(), right.stack(), left.size()

    assert [*map(lists, run(both, f64(2.0)))] == [[0, 2, 4, 6], [0, 2, 4, 6], 4]


def test_captured_by_a_body(run):
    def read(x):
        ta = tg.TensorArray(tg.float64, 3).write(0, x).write(1, 2 * x).write(2, 3 * x)
        stacked = tg.TensorArray(tg.float64, 3).unstack(tg.stack([x, x * x, x]))
        mapped = tg.map_fn(lambda i: ta.read(i) + 1.0, tg.range(3), dtype=tg.float64)
        scanned = tg.scan(lambda s, i: s + stacked.read(i), tg.range(3), f64(0.0))
        return mapped, scanned

    assert [*map(lists, run(read, f64(2.0)))] == [[3, 5, 7], [2, 6, 8]]


def test_converted_loops():
    @tg.function
    def fixed(x, n):
        ta = tg.TensorArray(tg.float64, size=5)
        for i in tg.range(5):
            if i >= n:
                break
            ta = ta.write(i, x * tg.cast(i, tg.float64))
        return ta.stack(), ta.size()

    # As in TensorFlow: what was not written is zeros.
    assert [*map(lists, fixed(f64(2.0), tg.constant(3)))] == [[0, 2, 4, 0, 0], 5]

    @tg.function
    def grown(x):
        ta = growing()
        for i in tg.range(200):
            ta = ta.write(i, x * tg.cast(i, tg.float64))
        return ta.stack()

    assert_near(grown(f64(2.0)), 2.0 * np.arange(200))

    @tg.function
    def counted(x):
        ta, i = growing(), tg.constant(0)
        while i < 4:
            ta = ta.write(i, x)
            i += 1
        return ta.stack()

    assert lists(counted(f64(3.0))) == [3, 3, 3, 3]


def test_as_large_as_the_run_makes_it():
    @tg.function
    def halvings(x):
        ta, i = growing(), 0
        while x > 1.0:
            tg.autograph.experimental.set_loop_options(maximum_iterations=20)
            ta = ta.write(i, x)
            x = x / 2.0
            i += 1
        return ta

    assert lists(halvings(f64(5.0)).stack()) == [5, 2.5, 1.25]
    assert lists(halvings(f64(5.0)).size()) == 3
    assert lists(halvings(f64(0.5)).size()) == 0

    @tg.function
    def until(n):
        ta = growing()
        for i in tg.range(10):
            ta = ta.write(ta.size(), tg.cast(i, tg.float64))
            if i >= n:
                break
        return ta

    assert lists(until(tg.constant(2)).stack()) == [0, 1, 2]
    assert until(tg.constant(50)).stack().shape == (10,)


def test_nested_loops_grow_by_what_all_write():
    @tg.function
    def f(x):
        ta, k = growing(), 0
        for i in tg.range(3):
            for j in tg.range(2):
                if x > 0.0:
                    ta = ta.write(k, tg.cast(10 * i + j, tg.float64))
                k += 1
        return ta

    assert lists(f(f64(1.0)).stack()) == [0, 1, 10, 11, 20, 21]
    assert lists(f(f64(-1.0)).size()) == 0


def halvings(x):
    body = lambda x, ta: (x / 2.0, ta.write(ta.size(), x))  # noqa: E731
    return tg.while_loop(lambda x, ta: x > 1.0, body, (x, growing()))[1]


@pytest.mark.sampled(1)
def test_a_loop_without_a_bound_runs_once_for_the_size(run):
    for x, expected in ((5.0, [5, 2.5, 1.25]), (1.5, [1.5]), (0.5, [])):
        assert lists(run(lambda x: halvings(x).stack(), f64(x))) == expected
    slope = run(lambda x: gradient(lambda x: tg.reduce_sum(halvings(x).stack() ** 2), x), f64(5.0))
    assert float(slope) == sum(2 * 5.0 / 4**k for k in range(3))


def test_one_function_for_every_size():
    @tg.function
    def f(x, n):
        grown, fixed = growing(), tg.TensorArray(tg.float64, size=n)
        for i in tg.range(n):
            grown = grown.write(i, x * tg.cast(i, tg.float64))
            fixed = fixed.write(n - 1 - i, grown.read(i))
        return grown.stack(), fixed.stack()

    for n in (3, 4, 0):
        grown, fixed = f(f64(2.0), tg.constant(n))
        assert_near(grown, 2.0 * np.arange(n))
        assert_near(fixed, 2.0 * np.arange(n)[::-1])
    assert f.experimental_get_tracing_count() <= 2


@pytest.mark.sweep
def test_it_grows_again_and_again_by_what_the_run_says():
    def appended(n):
        xs = []
        for i in tg.range(n):
            xs.append(i)
        xs.append(tg.constant(7))
        j = 0
        while j < n:
            xs.append(-j)
            j += 1
        return tg.stack(xs)

    def triangle(n):
        xs = []
        for i in tg.range(n):
            for j in tg.range(i):
                xs.append(j)
            xs.append(10 * i)
        return tg.stack(xs)

    def written(n):
        ta = tg.TensorArray(tg.int32, size=0, dynamic_size=True)
        for _ in range(2):
            for i in tg.range(n):
                ta = ta.write(ta.size(), i)
        return ta.write(ta.size(), 7).write(n, 9).scatter([2 * n + 1], [8]).stack()

    def by_python(n):
        counted = list(range(n))
        nested = [j for i in range(n) for j in (*range(i), 10 * i)]
        twice = [*counted, *counted, 7, 8]
        twice[n] = 9
        return [*counted, 7, *(-j for j in counted)], nested, twice

    forms = (appended, triangle, written)
    compiled = [tg.function(form) for form in forms]
    for n in (4, 1, 2):
        for form, f, expected in zip(forms, compiled, by_python(n), strict=True):
            assert lists(f(tg.constant(n))) == expected, (form, n)
    at_top_level = [form(tg.constant(2)) for form in forms]
    assert [*map(lists, at_top_level)] == [*by_python(2)]

    def squares(x, n):
        ta = growing()
        for _ in range(2):
            for i in tg.range(n):
                ta = ta.write(ta.size(), x * tg.cast(i + 1, tg.float64))
        return tg.reduce_sum(ta.write(ta.size(), x * x).stack() ** 2)

    slope = tg.function(lambda x, n: gradient(lambda x: squares(x, n), x))
    for n in (3, 1):
        whole = 4 * sum(k * k for k in range(1, n + 1)) * 1.5 + 4 * 1.5**3
        assert float(slope(f64(1.5), tg.constant(n))) == whole


def test_a_branch_writes_behind_what_a_loop_wrote():
    @tg.function
    def f(x, n, is_longer):
        ta = growing()
        for i in tg.range(n):
            ta = ta.write(i, x * tg.cast(i + 1, tg.float64))
        if is_longer:
            ta = ta.write(n, x**3.0)
        return ta.stack()

    for n, is_longer, expected in (
        (2, True, [2, 4, 8]),
        (2, False, [2, 4]),
        (0, True, [8]),
        (0, False, []),
    ):
        assert lists(f(f64(2.0), tg.constant(n), tg.constant(is_longer))) == expected, (n, expected)
    slope = gradient(lambda x: f(x, tg.constant(2), tg.constant(True)), f64(2.0))
    assert slope.numpy() == 1 + 2 + 12


def test_a_branch_writes_at_an_index_that_only_the_run_knows():
    @tg.function
    def f(x, n):
        ta = tg.TensorArray(tg.float64, size=0, dynamic_size=True, element_shape=[])
        if n > 0:
            ta = ta.write(n, x)
        return ta.stack()

    assert lists(f(f64(2.0), tg.constant(2))) == [0, 0, 2]
    assert lists(f(f64(2.0), tg.constant(0))) == []


def test_an_array_may_grow_in_a_loop_of_one_branch():
    """The size that the run of the loop finds is not asked of the other branch, and a gradient that
    needs nothing else of that array still knows it."""

    def total(x, k, n):
        found, i = growing(), 0
        if k > 0:
            while i < n:
                i += 1
                if i % 3 == 1:
                    found = found.write(found.size(), x)
                    x = tg.sin(x)
        else:
            x = x * 2.0
        return tg.reduce_sum(found.stack() ** 2) + x

    def by_jax(x, k, n):
        if k <= 0:
            return x * 2.0
        found = []
        for _ in range(1, n + 1, 3):
            found.append(x)
            x = jnp.sin(x)
        return sum(y**2 for y in found) + x

    slope = tg.function(lambda x, *rest: gradient(lambda x: total(x, *rest), x))
    for k in (1, 0):
        with jax.enable_x64(True):
            wanted = float(jax.grad(by_jax)(0.7, k, 7))
        found = slope(f64(0.7), tg.constant(k), tg.constant(7))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_loop_that_reads_what_the_run_made_finds_no_size_again():
    def f(n):
        ta = tg.TensorArray(tg.int32, size=0, dynamic_size=True)
        for i in tg.range(n):
            ta = ta.write(i, i * i)
        step = lambda i, s, ta: (i + 1, s + ta.read(i), ta)  # noqa: E731
        return tg.while_loop(lambda i, s, ta: i < n, step, (0, 0, ta))[1]

    graph = tg.function(f).get_concrete_function(tg.TensorSpec([], tg.int32)).graph
    assert graph.as_text().count("runtime_size<") == 1
    assert int(tg.function(f)(tg.constant(4))) == 14


def test_sizes_that_nothing_tells_are_refused():
    @tg.function
    def dropped(n):
        ta = growing()
        for i in tg.range(n):
            ta.write(i * i, f64(1.0))
        return ta.size()

    raises(TraceError, "known only when the graph runs", lambda: dropped(tg.constant(3)))

    @tg.function
    def in_each_step(x):
        for _ in tg.range(2):
            x = tg.reduce_sum(halvings_read(x))
        return x

    raises(TraceError, "what is read of it decides", lambda: in_each_step(f64(5.0)))

    @tg.function
    def written_in_an_inner_loop(x):
        ta, i = growing().write(0, x), 1
        while ta.read(i - 1) > 1.0:
            ta = ta.write(i, ta.read(i - 1) / 2.0)
            i += 1
            while ta.read(i - 1) > 3.0:
                ta = ta.write(i - 1, ta.read(i - 1) / 2.0)
        return ta.stack()

    words = "how long a loop in a step runs"
    raises(TraceError, words, lambda: written_in_an_inner_loop(f64(5.0)))


def halvings_read(x):
    """x, x/2, ... until one is at most 1, which what is read of the array decides."""
    ta, i = growing().write(0, x), 1
    while ta.read(i - 1) > 1.0:
        ta = ta.write(i, ta.read(i - 1) / 2.0)
        i += 1
    return ta.stack()


def test_what_is_read_of_an_array_decides_how_far_it_grows(tmp_path):
    module = tg.Module()
    module.f = tg.function(halvings_read, input_signature=[tg.TensorSpec([], tg.float64)])
    tg.saved_model.save(module, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model").f
    for x, count in ((5.0, 4), (0.5, 1), (1e90, 300)):
        wanted = x * 0.5 ** np.arange(count)
        np.testing.assert_array_equal(module.f(f64(x)), wanted)
        np.testing.assert_array_equal(loaded(f64(x)), wanted)
    for f in (module.f, loaded):
        total = lambda x, f=f: tg.reduce_sum(tg.exp(f(x)))  # noqa: E731
        halves = 0.5 ** np.arange(4)
        found = [gradient(total, f64(5.0)), gradient(lambda x: gradient(total, x), f64(5.0))]  # noqa: B023
        wanted = [(halves**k * np.exp(5.0 * halves)).sum() for k in (1, 2)]
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
        with tg.autodiff.ForwardAccumulator(x := f64(5.0), f64(1.0)) as forward:
            y = total(x)
        np.testing.assert_allclose(forward.jvp(y), wanted[0], rtol=1e-13)


def test_arrays_that_decide_how_far_they_grow_where_they_are(run):
    """In a branch, beside each other, at top level, and with an inner loop that only reads."""

    @tg.function
    def in_a_branch(x):
        y = x
        if x > 2.0:
            y = tg.reduce_sum(halvings_read(x))
        return y

    assert [float(in_a_branch(f64(x))) for x in (1.0, 4.0)] == [1.0, 7.0]

    def both(x):
        def body(i, a, b):
            last = a.read(i - 1) / 2.0
            b = tg.cond(last < 3.0, lambda: b.write(b.size(), last), lambda: b)
            return i + 1, a.write(i, last), b

        start = (1, growing().write(0, x), growing(element_shape=[]))
        _, a, b = tg.while_loop(lambda i, a, b: a.read(i - 1) > 1.0, body, start)
        return a.stack(), b.stack()

    assert [lists(y) for y in run(both, f64(8.0))] == [[8, 4, 2, 1], [2, 1]]

    @tg.function
    def primes(n):
        found = tg.TensorArray(tg.int32, size=0, dynamic_size=True, element_shape=[])
        k = 2
        while found.size() < n:
            is_prime = True
            for j in tg.range(found.size()):
                if k % found.read(j) == 0:
                    is_prime = False
                    break
            if is_prime:
                found = found.write(found.size(), k)
            k += 1
        return found.stack()

    assert lists(primes(tg.constant(8))) == [2, 3, 5, 7, 11, 13, 17, 19]
    assert int(primes(tg.constant(300))[-1]) == 1987  # beyond the first buffer


def test_a_loop_that_prints_runs_for_the_size_without(capfd):
    @tg.function
    def counted(x):
        ta, i = growing(), 0
        while x > 1.0:
            ta = ta.write(i, x)
            tg.print("at", i)
            x = x / 2.0
            i += 1
        return ta.stack()

    @tg.function
    def read(x):
        ta, i = growing().write(0, x), 1
        while ta.read(i - 1) > 1.0:
            if i > 1:
                tg.print("at", i)
            ta = ta.write(i, ta.read(i - 1) / 2.0)
            i += 1
        return ta.stack()

    for f, wanted, numbers in (
        (counted, [5, 2.5, 1.25], "012"),
        (read, [5, 2.5, 1.25, 0.625], "23"),
    ):
        assert lists(f(f64(5.0))) == wanted
        assert float(gradient(lambda x: tg.reduce_sum(f(x)), f64(5.0))) == sum(wanted) / 5  # noqa: B023
        found = capfd.readouterr()
        assert re.findall(r"at (\d)", found.out + found.err) == [*numbers] * 2


def test_a_loop_that_calls_python_does_not_run_for_the_size():
    @tg.function
    def f(x):
        ta, i = growing(), 0
        while x > 1.0:
            ta = ta.write(i, x)
            x = tg.numpy_function(lambda y: y / 2.0, [x], tg.TensorSpec([], tg.float64))
            i += 1
        return ta.size()

    raises(TraceError, "the loop calls Python, which it must do once", lambda: f(f64(5.0)))


def test_a_loop_that_changes_sizes_does_not_run_for_the_size_of_an_array():
    @tg.function
    def f(x, n):
        ta = growing()
        for i in tg.range(n):
            tg.autograph.experimental.set_loop_options(
                shape_invariants=[(x, tg.TensorShape([None]))]
            )
            ta = ta.write(i, x[0])
            x = tg.concat([x, x], 0)
        return ta.stack()

    wrong = "the loop changes the size of a state"
    raises(TraceError, wrong, lambda: f(tg.ones([1], tg.float64), tg.constant(3)))


def test_an_array_that_an_unbounded_loop_only_reads():
    def f(x, n):
        ta = growing().write(0, x).write(1, x * x)
        body = lambda i, s, ta: (i + 1, s + ta.read(i % 2), ta)  # noqa: E731
        return tg.while_loop(lambda i, s, ta: i < n, body, (0, x, ta))[2].stack()

    assert lists(tg.function(f)(f64(3.0), tg.constant(5))) == [3, 9]


# Branches.


def test_branches_write_elsewhere(run):
    def f(x):
        ta = tg.TensorArray(tg.float64, size=2)
        return tg.cond(x > 0.0, lambda: ta.write(0, x), lambda: ta.write(1, -x)).stack()

    assert lists(run(f, f64(2.0))) == [2, 0]
    assert lists(run(f, f64(-3.0))) == [0, 3]


def test_one_branch_writes(run):
    def f(x, ta):
        return tg.cond(x > 0.0, lambda: ta, lambda: ta.write(0, x))

    def size_and_values(x):
        grown, fixed = f(x, growing()), f(x, tg.TensorArray(tg.float64, 2))
        return grown.size(), fixed.stack()

    assert [*map(lists, run(size_and_values, f64(2.0)))] == [0, [0, 0]]
    assert [*map(lists, run(size_and_values, f64(-2.0)))] == [1, [-2, 0]]
    third = lambda x: tg.switch_case(  # noqa: E731
        tg.cast(x, tg.int32), [growing, lambda: growing().write(2, x), growing]
    )
    assert [lists(run(lambda x: third(x).size(), f64(k))) for k in (0.0, 1.0, 2.0)] == [0, 3, 0]


def test_converted_branches():
    @tg.function
    def f(x):
        ta = tg.TensorArray(tg.float64, size=2)
        kept = ta.write(0, x)
        if x > 0.0:
            ta = kept.write(1, x)
            kept = kept
        return ta.write(0, x).stack(), kept.read(0)

    assert [*map(lists, f(f64(2.0)))] == [[2, 2], 2]
    assert [*map(lists, f(f64(-2.0)))] == [[-2, 0], -2]


def test_a_name_that_a_loop_alone_sets():
    @tg.function
    def f(x):
        for i in tg.range(3):
            ta = tg.TensorArray(tg.float64, size=2).write(i % 2, x)
        return ta.stack()

    assert lists(f(f64(4.0))) == [4, 0]


def test_it_stays_an_array():
    @tg.function
    def f(x):
        ta: Any = tg.TensorArray(tg.float64, size=2)
        for i in tg.range(2):
            ta = ta.write(i, x).stack()
        return ta

    raises(SignatureError, "'ta' is a TensorArray before the loop", lambda: f(f64(1.0)))
    mixed = lambda x: tg.cond(  # noqa: E731
        x > 0.0, lambda: tg.TensorArray(tg.float64, 1), lambda: tg.TensorArray(tg.float32, 1)
    )
    raises(TraceError, "cond: true_fn returns", lambda: mixed(f64(1.0)))


# Lists.


def test_a_list_that_a_loop_appends_to():
    @tg.function
    def f(x):
        xs = []
        for i in tg.range(4):
            xs.append(x * tg.cast(i, tg.float64))
        total = 0.0
        for y in xs:
            total = total + y
        rows = tg.stack([xs, xs]), tg.stack(xs), tg.concat([y[tg.newaxis] for y in xs], 0)
        return *rows, len(xs), xs[0], xs[-1], [y.shape for y in xs[1:3]] == [(), ()], total

    found = [*map(lists, f(f64(2.0)))]
    assert found == [[[0, 2, 4, 6]] * 2, [0, 2, 4, 6], [0, 2, 4, 6], 4, 0, 6, True, 12]


def test_a_list_of_rows():
    @tg.function
    def f(x):
        xs = [x]
        for i in tg.range(2):
            for j in tg.range(2):
                xs.append(x + tg.cast(10 * i + j, tg.float64))
        return tg.stack(xs), tg.stack(xs, axis=-1), tg.concat(xs, 0), tg.concat(xs, axis=-1), xs

    x = np.array([1.0, 2.0])
    rows = [x, x, x + 1, x + 10, x + 11]
    *found, xs = f(f64(x))
    joined = np.concatenate(rows)
    for one, other in zip(found, [np.stack(rows), np.stack(rows, -1), joined, joined]):
        assert_near(one, other)
    assert [*map(lists, xs)] == [*map(np.ndarray.tolist, rows)]


def test_a_list_as_long_as_the_run_makes_it():
    @tg.function
    def f(x):
        xs, k = [x], 0
        while x > 1.0:
            x = x / 2.0
            if x > 2.0:
                xs.append(x)
            else:
                k += 1
        total = f64(0.0)
        for y in xs:
            total += y
        return tg.stack(xs), total, xs[-1], k

    for x, expected in ((12.0, [12, 6, 3]), (2.0, [2]), (0.5, [0.5])):
        found, total, last, _ = f(f64(x))
        assert (lists(found), float(total)) == (expected, sum(expected))
        assert float(last) == expected[-1]
    g = tg.function(lambda x: gradient(lambda x: tg.reduce_sum(f(x)[0] ** 2), x))
    assert float(g(f64(12.0))) == 2 * 12 * (1 + 1 / 4 + 1 / 16)

    @tg.function
    def length(x):
        xs = []
        while x > 1.0:
            x = x / 2.0
            xs.append(x)
        return len(xs)

    assert [int(length(f64(x))) for x in (4.0, 0.5)] == [2, 0]


def test_a_list_outside_of_loops_of_the_graph_stays_one():
    seen = []

    @tg.function
    def f(x):
        xs = other = []
        ys = []
        for i in range(3):
            xs.append(x * i)
            ys.append(x)
        seen.append((type(xs), xs is other, type(ys), len(ys)))
        return xs

    assert [*map(lists, f(f64(2.0)))] == [0, 2, 4]
    assert seen == [(list, True, list, 3)]


def test_elements_of_a_list_have_one_type():
    @tg.function
    def f(x):
        xs = [tg.zeros([2], tg.float64)]
        for _ in tg.range(3):
            xs.append(x)
        return tg.stack(xs)

    raises(ShapeError, r"an element of the shape \(\) is given", lambda: f(f64(1.0)))


# Derivatives.


def recurrence(x, n=4, dynamic=False):
    """A sum of squares of y[0] = x, y[i] = sin(y[i - 1]) y[0], by an array that is read back."""
    ta = tg.TensorArray(tg.float64, size=0 if dynamic else n, dynamic_size=dynamic).write(0, x)
    step = lambda i, ta: (i + 1, ta.write(i, tg.sin(ta.read(i - 1)) * ta.read(0)))  # noqa: E731
    _, ta = tg.while_loop(lambda i, ta: i < n, step, (1, ta))
    return tg.reduce_sum(ta.stack() ** 2)


def plain_recurrence(x, n=4):
    ys = [x]
    for _ in range(1, n):
        ys.append(jnp.sin(ys[-1]) * ys[0])
    return jnp.sum(jnp.stack(ys) ** 2)


def converted_recurrence(x, n=4):
    ta = tg.TensorArray(tg.float64, size=0, dynamic_size=True).write(0, x)
    for i in tg.range(1, n):
        ta = ta.write(i, tg.sin(ta.read(i - 1)) * ta.read(0))
    return tg.reduce_sum(ta.stack() ** 2)


FORMS = {
    "while": recurrence,
    "dynamic while": lambda x: recurrence(x, dynamic=True),
    "for": lambda x: tg.function(converted_recurrence)(x),
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def nth_derivative(function, order):
    for _ in range(order):
        function = lambda x, function=function: gradient(function, x)  # noqa: E731
    return function


@pytest.fixture
def plain():
    with jax.enable_x64(True):
        yield plain_recurrence


@functools.cache
def nth_plain(function, order):
    for _ in range(order):
        function = jax.grad(function)
    return jax.jit(function)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_reverse_mode_of_every_order(form, plain, order):
    expected = nth_plain(plain, order)(1.3)
    found = nth_derivative(form, order)
    assert_near(found(f64(1.3)), expected, 1e-10)
    assert_near(tg.function(found)(f64(1.3)), expected, 1e-10)


@pytest.mark.sampled(1)
def test_forward_mode_and_forward_over_reverse(form, plain):
    for order in (0, 1):
        x = f64(0.7)
        with tg.autodiff.ForwardAccumulator(x, f64(1.0)) as accumulator:
            y = nth_derivative(form, order)(x)
        assert_near(accumulator.jvp(y), nth_plain(plain, order + 1)(0.7), 1e-10)


@pytest.mark.sampled(1)
def test_in_parallel(form, plain):
    xs = np.linspace(-1.0, 1.0, 5)
    for order in (0, 2):
        found = tg.vectorized_map(nth_derivative(form, order), f64(xs))
        assert_near(found, jax.vmap(nth_plain(plain, order))(xs), 1e-10)


def test_arrays_that_each_lane_makes_as_long_as_it_needs():
    """Each has room for the longest. What is computed of them has one shape."""

    def total(x):
        ta, y = growing(), x
        for i in tg.range(6):
            ta = ta.write(i, y)
            y = y * 1.5
            if tg.reduce_sum(y) > 2.0:
                break
        found = ta.stack()
        return tg.reduce_sum(found**3) + tg.reduce_mean(found), tg.shape(found)[0]

    @tg.function
    def in_lanes(xs):
        return tg.vectorized_map(total, xs)

    xs = f64([[0.1, 0.2], [0.3, 0.4], [2.0, 0.5]])
    found, lengths = in_lanes(xs)
    assert lists(lengths) == [5, 3, 1]
    np.testing.assert_allclose(found, [total(x)[0] for x in xs], rtol=1e-13)
    slope = functools.partial(gradient, lambda x: total(x)[0])
    hessians = tg.function(lambda xs: tg.vectorized_map(lambda x: jacobian(slope, x), xs))(xs)
    np.testing.assert_allclose(hessians, [jacobian(slope, x) for x in xs], rtol=1e-12)


def test_writes_at_an_index_of_each_lane():
    def f(i):
        ta = tg.TensorArray(tg.int32, 3).unstack([7, 8, 9]).write(i, 0)
        return ta.stack(), ta.read((i + 1) % 3)

    stacked, read = tg.vectorized_map(f, tg.constant([0, 2]))
    assert (lists(stacked), lists(read)) == ([[0, 8, 9], [7, 8, 0]], [8, 7])


@pytest.mark.sampled(1)
def test_overwritten_elements_have_no_derivative(run):
    def f(x):
        def body(i, ta):
            return i + 1, ta.write(i, 3.0 * ta.read(i) * ta.read(0))

        ta = tg.TensorArray(tg.float64, 2).unstack(x)
        return tg.reduce_sum(tg.while_loop(lambda i, ta: i < 2, body, (0, ta))[1].stack())

    # y0 = 3 x0^2, y1 = 9 x1 x0^2
    slope = run(lambda x: gradient(f, x), f64([2.0, 5.0]))
    assert lists(slope) == [6 * 2 + 18 * 5 * 2, 9 * 4]


def test_dropped_writes_have_no_derivative():
    @tg.function
    def f(x, i):
        return gradient(
            lambda x: tg.reduce_sum(
                tg.TensorArray(tg.float64, 2).unstack([x, x]).write(i, 5 * x).stack()
            ),
            x,
        )

    assert [float(f(f64(1.0), tg.constant(i))) for i in (0, 2, -1)] == [6, 2, 2]


def test_in_jax(plain):
    f = tg.function(recurrence).as_jax()
    assert_near(f(jnp.asarray(1.3)), plain(1.3), 1e-10)
    found = jax.jvp(f, (jnp.asarray(1.3),), (jnp.asarray(1.0),))[1]
    assert_near(found, jax.grad(plain)(1.3), 1e-10)


# Functions, text and files.


def test_arguments_and_results_of_functions():
    @tg.function
    def append(ta, x):
        return ta.write(1, x), {"size": ta.size()}

    for ta in (array(2), array(2, dynamic_size=True), array(2).write(0, 3.0)):
        found, rest = append(ta, tg.constant(1.0))
        assert isinstance(found, tg.TensorArray)
        assert (lists(found.read(1)), lists(rest["size"])) == (1, 2)
    assert lists(append(array(2).write(0, 3.0), tg.constant(1.0))[0].stack()) == [3, 1]
    count = append.experimental_get_tracing_count()
    append(array(2).write(0, 4.0), tg.constant(2.0))
    assert append.experimental_get_tracing_count() == count


def test_saved_with_its_derivatives(tmp_path, plain):
    module = tg.Module()
    module.f = tg.function(recurrence, input_signature=[tg.TensorSpec([], tg.float64)])
    tg.saved_model.save(module, tmp_path)
    loaded = tg.saved_model.load(tmp_path).f
    for order in (0, 1, 2):
        found = nth_derivative(loaded, order)(f64(1.3))
        assert_near(found, nth_plain(plain, order)(1.3), 1e-10)


def test_the_marks_of_what_was_written_cost_nothing():
    def text(f):
        return f.get_concrete_function(tg.TensorSpec([], tg.float64)).graph.as_text()

    assert "bool" not in text(tg.function(converted_recurrence))
    assert "scatter_update" in text(tg.function(converted_recurrence))


# Rows that a scan returns stacked.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fold", [tg.foldl, tg.foldr])
@pytest.mark.parametrize(
    ("places", "is_stacked"),
    [
        ([0, 1, 2, 3], True),
        ([1, 2, 3, 4], True),
        ([4, 0, 2, 1], True),
        ([1, 1, 0, 2], False),
    ],
)
def test_writes_of_every_step(fold, places, is_stacked):
    def f(x):
        def body(state, at):
            s, ta, other = state
            s = s * x + tg.cast(at[1], tg.float64)
            return s, ta.write(at[0], s * s), other.write(at[1], s)

        arrays = (tg.TensorArray(tg.float64, 6).write(5, x), growing())
        rows = tg.constant(places), tg.range(len(places))
        _, ta, other = fold(body, rows, (x, *arrays))
        return ta.stack(), other.stack()

    def plain(x):
        s, found, other = x, {5: x}, {}
        order = [*enumerate(places)]
        for k, place in order if fold is tg.foldl else order[::-1]:
            s = s * x + k
            found[place], other[k] = s * s, s
        zero = jnp.zeros_like(x)
        return (
            jnp.stack([found.get(k, zero) for k in range(6)]),
            jnp.stack([other[k] for k in range(len(places))]),
        )

    text = tg.function(f).get_concrete_function(tg.TensorSpec([], tg.float64)).graph.as_text()
    body = text[: text.index("\n\n")]
    assert ("scatter_update" not in body) == is_stacked
    for k in (0, 1):
        with jax.enable_x64(True):
            total = lambda x, k=k: jnp.sum(plain(x)[k])  # noqa: E731
            expected = [*map(float, (total(1.25), nth_plain(total, 1)(1.25)))]
            expected.append(float(nth_plain(total, 2)(1.25)))
            value = np.asarray(plain(1.25)[k])
        total = lambda x, k=k: tg.reduce_sum(f(x)[k])  # noqa: E731
        assert_near(f(f64(1.25))[k], value, 1e-12)
        for order, wanted in enumerate(expected):
            assert_near(nth_derivative(total, order)(f64(1.25)), wanted, 1e-12)


# Ranges.


def test_ranges_follow_loops_and_branches():
    seen = []

    @tg.function
    def f(x, n):
        count = tg.constant(0)
        for i in tg.range(300):
            if x > 0.0:
                count = count + i // 2
            if x > tg.cast(i, tg.float64):
                break
        exact = tg.foldl(lambda s, i: s + i, tg.range(1, 201), 0)
        chosen = tg.where(n > 3, tg.minimum(exact, 7), tg.maximum(-exact, 2))
        seen.extend([range_of(y) for y in (count, exact, chosen, n, n + count)])
        seen.extend(ranges_of([tg.range(3)]))
        return count

    f(f64(1.0), tg.constant(1))
    total = sum(i // 2 for i in range(300))
    assert seen[:5] == [(0, total), (20100, 20100), (2, 7), None, None]
    assert seen[5].tolist() == [0, 1, 2]


def test_a_loop_that_nothing_ends_is_not_followed(monkeypatch):
    """The queue may grow faster than it is read, so that `head < tail` stays open in every step.
    Following such a loop took half a minute."""
    seen = []
    add = ranges._Walk._add
    monkeypatch.setattr(ranges._Walk, "_add", lambda *given: seen.append(given) or add(*given))

    @tg.function
    def f(x, n):
        queue = growing(clear_after_read=False).write(0, x)
        head, tail = 0, 1
        while head < tail and tail < n:
            y = queue.read(head)
            head += 1
            if y > 0.0:
                queue = queue.write(tail, y - 1.0).write(tail + 1, y - 2.0)
                tail += 2
        return queue.stack()

    f.get_concrete_function(f64(1.0), tg.constant(1))
    assert 0 < len(seen) < 20_000


def test_ranges_of_a_counter_that_meets_a_bound_late():
    """The condition is open in each step from the first to the 200th, but each is nearer to it."""
    seen = []

    @tg.function
    def f(x):
        bound = tg.where(x > 0.0, 200, 0)
        count = 0
        while count < bound:
            count += 1
        seen.append(range_of(count))
        return count

    f.get_concrete_function(f64(1.0))
    assert seen == [(0, 200)]


def test_ranges_end_where_a_dtype_does():
    seen = []

    @tg.function
    def f(x):
        big = tg.constant(2_000_000_000) + tg.cast(x, tg.int32) * 0
        seen.append(range_of(tg.constant(2_000_000_000) * 2))
        return big

    f(tg.constant(1.0))
    assert seen == [None]


def test_arrays_of_a_loop_inside_a_loop():
    """The inner loop and the outer one write a row in each step, and read none."""
    x = np.array([0.3, -0.5, 0.7])

    def slopes(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            outer = tg.TensorArray(tg.float64, 2)
            for i in tg.range(2):
                inner = tg.TensorArray(tg.float64, 3)
                for j in tg.range(3):
                    inner = inner.write(j, x[j] ** 3 * tg.cast(i + 1, tg.float64))
                outer = outer.write(i, inner.stack())
            rows = outer.stack()
        return rows, tape.gradient(rows, x)

    rows, gradient = tg.function(slopes)(tg.constant(x))
    np.testing.assert_allclose(rows, np.outer([1.0, 2.0], x**3), rtol=1e-14)
    np.testing.assert_allclose(gradient, 9.0 * x**2, rtol=1e-14)
