"""Indexing, joining and choosing against NumPy, for values, shapes, open sizes and gradients."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg

# One helper wraps many lambdas of one line, which looks like decorating in a loop.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")


def numbers(*shape):
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def same(actual, expected):
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            same(a, e)
        return
    value = actual.numpy()
    assert np.shape(value) == np.shape(expected)
    np.testing.assert_array_equal(value, expected)


@pytest.fixture(params=["top level", "function", "open sizes"])
def run(request):
    """Returns `run(fn, x)`: fn(x) as it is, or traced, or traced with all sizes of x open."""
    if request.param == "top level":
        return lambda fn, x: fn(tg.constant(x))
    if request.param == "function":
        return lambda fn, x: tg.function(fn)(tg.constant(x))
    return lambda fn, x: tg.function(
        fn, input_signature=[tg.TensorSpec([None] * np.ndim(x), np.asarray(x).dtype)]
    )(tg.constant(x))


# ---------------------------------------------------------------- getitem

INDICES = {
    "first": 0,
    "last": -1,
    "two": (1, 2),
    "row": (2, slice(None)),
    "column": (slice(None), -1),
    "from": slice(1, None),
    "to": slice(None, 2),
    "to the end but one": slice(None, -1),
    "inside": slice(1, -1),
    "last two": slice(-2, None),
    "beyond": slice(1, 100),
    "far below": slice(-100, 2),
    "empty": slice(3, 1),
    "empty at the end": slice(9, None),
    "step": slice(None, None, 2),
    "step and bounds": slice(1, None, 3),
    "backwards": slice(None, None, -1),
    "backwards from": slice(2, None, -1),
    "backwards to": slice(None, 1, -1),
    "backwards by two": slice(None, None, -2),
    "backwards between": slice(-1, 0, -2),
    "backwards nothing": slice(0, 3, -1),
    "ellipsis": (..., 0),
    "ellipsis in the middle": (0, ..., 1),
    "ellipsis for nothing": (0, 1, 2, ...),
    "only ellipsis": ...,
    "new axis": (None, slice(None)),
    "new axes": (None, 1, None, ..., None),
    "mixed": (slice(None, None, -1), None, 2, slice(1, 3)),
    "nothing": (),
    "numpy int": np.int64(1),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", INDICES)
def test_indexing_is_numpys(run, name):
    x = numbers(4, 3, 5)
    same(run(lambda x: x[INDICES[name]], x), x[INDICES[name]])


@st.composite
def indices(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    bound = st.none() | st.integers(-6, 6)
    items = []
    for size in shape:
        step = draw(st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3]))
        items.append(
            draw(st.integers(-size, size - 1) | st.builds(slice, bound, bound, st.just(step)))
        )
    items = items[: draw(st.integers(0, len(items)))]
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    if draw(st.booleans()):
        items.append(...)
    return tuple(shape), tuple(items)


many_indices = st.lists(indices(), min_size=12, max_size=12)


@settings(max_examples=3, deadline=None)
@given(many_indices)
def test_any_index_is_numpys(cases):
    xs = [numbers(*shape) for shape, _ in cases]
    found = [tg.constant(x)[index] for x, (_, index) in zip(xs, cases, strict=True)]
    same(found, [x[index] for x, (_, index) in zip(xs, cases, strict=True)])


@settings(max_examples=3, deadline=None)
@given(many_indices)
def test_any_index_of_open_sizes_is_numpys(cases):
    xs = [numbers(*shape) for shape, _ in cases]
    specs = [tg.TensorSpec([None] * len(shape)) for shape, _ in cases]
    traced = tg.function(
        lambda *xs: [x[index] for x, (_, index) in zip(xs, cases, strict=True)],
        input_signature=specs,
    )
    found = traced(*map(tg.constant, xs))
    same(found, [x[index] for x, (_, index) in zip(xs, cases, strict=True)])


def test_one_trace_indexes_every_size():
    inner = tg.function(lambda x: x[1:-1], input_signature=[tg.TensorSpec([None])])
    for size in (2, 3, 7):
        same(inner(tg.constant(numbers(size))), numbers(size)[1:-1])
    assert inner.experimental_get_tracing_count() == 1


def test_second_difference_over_an_open_size(run):
    x = numbers(6) ** 2
    same(run(lambda x: x[2:] - 2 * x[1:-1] + x[:-2], x), x[2:] - 2 * x[1:-1] + x[:-2])


@pytest.mark.sampled(16)
@pytest.mark.parametrize("stop", [None, 0, 1, -1])
@pytest.mark.parametrize("step", [-3, -1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_gradient_of_a_slice_of_an_open_size(size, step, stop):
    x = numbers(size) + 1
    part = slice(None, stop, step)

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x[part] ** 2
        return tape.gradient(y, x)

    expected = np.zeros_like(x)
    expected[part] = 2 * x[part]
    same(slope(tg.constant(x)), expected)


def test_tensors_as_indices(run):
    x = numbers(4, 3)

    def pick(x):
        k = tg.cast(x[0, 1], tg.int32)  # 1
        return x[k], x[k, k + 1], x[:, -k], x[k : k + 2], x[k - 1, ::-1]

    same(run(pick, x), [x[1], x[1, 2], x[:, -1], x[1:3], x[0, ::-1]])


def test_index_that_is_known_only_at_run_time():
    pick = tg.function(lambda x, k: (x[k], x[k : k + 2]))
    x = numbers(5)
    for k in (0, 3, -2):
        one, two = pick(tg.constant(x), tg.constant(k))
        assert one.numpy() == x[k]
        same(two, x[k : k + 2 or None])
    assert pick.experimental_get_tracing_count() == 1


def test_gradient_of_an_index_known_only_at_run_time():
    @tg.function
    def slope(x, k):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x[k] ** 2
        return tape.gradient(y, x)

    same(slope(tg.constant(numbers(3)), tg.constant(2)), [0, 0, 4])


@pytest.mark.parametrize(
    ("index", "kind", "words"),
    [
        (3, ValueError, "out of range"),
        (-4, ValueError, "out of range"),
        ((0, 0), ValueError, "2 indices"),
        ([0, 1], ValueError, "gather"),
        (1.5, TypeError, "not an index"),
        ("a", TypeError, "not an index"),
        ((..., ...), ValueError, "more than one"),
        (slice(None, None, 0), ValueError, "step"),
    ],
    ids=str,
)
def test_bad_indices_are_errors(index, kind, words):
    with pytest.raises(kind, match=words) as error:
        tg.ones([3])[index]
    assert "test_indexing.py" in str(error.value)


def test_a_list_of_integers_does_not_gather():
    """A list is not an array; test_array_api.py has what tensors and arrays do as indices."""
    with pytest.raises(ValueError, match="gather"):
        tg.ones([3])[[0, 1]]


def test_changing_an_index_at_top_level_does_not_compile_again():
    x = tg.constant(numbers(50))
    assert [float(x[k]) for k in range(50)] == list(range(50))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["inside", "step", "backwards by two", "mixed", "column"])
def test_gradient_of_indexing(run, name):
    x = numbers(4, 3, 5)

    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x[INDICES[name]] ** 2
        return tape.gradient(y, x)

    expected = np.zeros_like(x)
    expected[INDICES[name]] = 2 * x[INDICES[name]]
    same(run(slope, x), expected)


def test_masks():
    x, mask = numbers(3, 2), np.array([True, False, True])
    t = tg.constant(x)
    same(t[tg.constant(mask)], x[mask])
    same(t[mask], x[mask])
    same(t[t > 2], x[x > 2])
    same(tg.boolean_mask(x, mask), x[mask])
    same(tg.boolean_mask(x, [False, True], axis=1), x[:, [1]])
    same(tg.boolean_mask(x, x > 2), x[x > 2])


def test_mask_known_while_tracing():
    mask = np.array([True, False, True])
    same(tg.function(lambda x: tg.boolean_mask(x, mask))(numbers(3)), [0, 2])


def test_gradient_of_a_mask():
    x = tg.Variable([1.0, 2.0, 3.0])
    with tg.GradientTape() as tape:
        y = x[x > 1.5] ** 2
    same(tape.gradient(y, x), [0, 4, 6])


# ---------------------------------------------------------------- slice, strided_slice


def test_slice(run):
    x = numbers(4, 5)
    same(run(lambda x: tg.slice(x, [1, 2], [2, -1]), x), x[1:3, 2:])
    same(run(lambda x: tg.slice(x, [0, 0], [-1, 1]), x), x[:, :1])


def test_slice_from_a_tensor():
    cut = tg.function(lambda x, k: tg.slice(x, [k, 0], [2, 3]))
    x = numbers(5, 3)
    same(cut(tg.constant(x), tg.constant(1)), x[1:3])
    begin = tg.function(lambda x, b: tg.slice(x, b, [2, 2]))
    same(begin(tg.constant(x), tg.constant([2, 1])), x[2:4, 1:3])
    rest = tg.function(lambda x, b: tg.slice(x, b, [-1, 2]))
    same(rest(tg.constant(x), tg.constant([3, 1])), x[3:, 1:3])
    same(rest(tg.constant(x), tg.constant([-4, 1])), x[:, 1:3])
    checked = tg.function(lambda x, k: tg.slice(x, [k], [-1]), check_bounds=True)
    with pytest.raises(tg.errors.InvalidArgumentError, match=r"slice: .* -4 .* not in axis 0"):
        checked(tg.ones([3]), tg.constant(-4))


def test_slice_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="not in axis"):
        tg.slice(tg.ones([3]), [2], [2])
    with pytest.raises(ValueError, match="begins"):
        tg.slice(tg.ones([3]), [0, 0], [1, 1])


def test_strided_slice(run):
    x = numbers(4, 5)
    same(run(lambda x: tg.strided_slice(x, [1, 0], [3, 5], [1, 2]), x), x[1:3, 0:5:2])
    same(
        run(lambda x: tg.strided_slice(x, [1, 0], [2, 9], shrink_axis_mask=1, end_mask=2), x), x[1]
    )
    same(
        run(
            lambda x: tg.strided_slice(x, [0, 0, 1], [0, 0, 2], ellipsis_mask=1, new_axis_mask=2), x
        ),
        x[..., None, 1:2],
    )


# ---------------------------------------------------------------- shapes


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [[-1], [3, 8], [2, -1, 3], [4, 3, 2, 1], [1, -1]], ids=str)
def test_reshape(run, shape):
    x = numbers(4, 6)
    same(run(lambda x: tg.reshape(x, shape), x), x.reshape(shape))


def test_reshape_keeps_open_sizes():
    f = tg.function(
        lambda x: tg.reshape(x, [x.shape[0], -1]), input_signature=[tg.TensorSpec([None, 2, 3])]
    )
    for n in (1, 4):
        same(f(numbers(n, 2, 3)), numbers(n, 6))
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("shape", [[5, -1], [7], [-1, -1], [-2, 3]], ids=str)
def test_bad_reshapes_are_errors(shape):
    with pytest.raises(tg.errors.ShapeError):
        tg.reshape(tg.ones([2, 3]), shape)


def test_transpose(run):
    x = numbers(2, 3, 4)
    same(run(tg.transpose, x), x.T)
    same(run(lambda x: tg.transpose(x, [1, -1, 0]), x), x.transpose(1, 2, 0))


def test_expand_and_squeeze(run):
    x = numbers(2, 3)
    same(
        run(lambda x: [tg.expand_dims(x, k) for k in (0, 1, -1)], x),
        [x[None], x[:, None], x[..., None]],
    )
    same(run(lambda x: tg.squeeze(x[:, None, :, None], [1]), x), x[:, :, None])
    same(tg.squeeze(numbers(1, 3, 1)), numbers(3))
    with pytest.raises(ValueError, match="size 2"):
        tg.squeeze(tg.ones([2, 1]), 0)


def test_broadcast_to(run):
    x = numbers(3)
    same(run(lambda x: tg.broadcast_to(x, [2, x.shape[0]]), x), np.broadcast_to(x, (2, 3)))
    with pytest.raises(ValueError, match="broadcast"):
        tg.broadcast_to(tg.ones([3]), [4])
    with pytest.raises(ValueError, match="broadcast"):
        tg.broadcast_to(tg.ones([2, 3]), [3])


def test_concat_and_stack(run):
    x = numbers(2, 3)
    same(run(lambda x: tg.concat([x, 2 * x], 0), x), np.concatenate([x, 2 * x]))
    same(run(lambda x: tg.concat([x, x[:, :1]], -1), x), np.concatenate([x, x[:, :1]], -1))
    same(
        run(lambda x: [tg.stack([x, -x], k) for k in (0, 1, -1)], x),
        [np.stack([x, -x], k) for k in (0, 1, -1)],
    )


def test_joined_tensors_promote():
    assert tg.concat([tg.ones([1]), tg.ones([1], tg.float64)], 0).dtype == tg.float64
    assert tg.stack([1, tg.constant(2.0)]).dtype == tg.float32
    with pytest.raises(TypeError, match="do not mix"):
        tg.concat([tg.ones([1]), tg.ones([1], tg.int32)], 0)


def test_joining_what_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="an axis other than 0"):
        tg.concat([tg.ones([2, 2]), tg.ones([2, 3])], 0)
    with pytest.raises(ValueError, match="shapes differ"):
        tg.stack([tg.ones([2]), tg.ones([3])])
    with pytest.raises(ValueError, match="no tensors"):
        tg.concat([], 0)


def test_unstack_and_split(run):
    x = numbers(4, 3)
    same(tg.unstack(tg.constant(x), axis=1), list(x.T))
    same(run(lambda x: tg.split(x, 2), x), np.split(x, 2))
    same(run(lambda x: tg.split(x, [1, -1], axis=0), x), [x[:1], x[1:]])
    same(tg.split(x, [1, 2], axis=1), [x[:, :1], x[:, 1:]])
    same(run(lambda x: tg.unstack(x, 4), x), list(x))
    with pytest.raises(ValueError, match="equal parts"):
        tg.split(tg.ones([5]), 2)
    with pytest.raises(ValueError, match="sum to"):
        tg.split(tg.ones([5]), [2, 2])


@pytest.mark.sampled(1)
def test_tile_and_repeat(run):
    x = numbers(2, 3)
    same(run(lambda x: tg.tile(x, [2, 1]), x), np.tile(x, (2, 1)))
    same(run(lambda x: tg.tile(x, [1, 3]), x), np.tile(x, (1, 3)))
    same(run(lambda x: tg.repeat(x, 2, axis=1), x), np.repeat(x, 2, 1))
    same(run(lambda x: tg.repeat(x, 3), x), np.repeat(x, 3))
    same(tg.repeat(x, [1, 2], axis=0), np.repeat(x, [1, 2], 0))
    same(tg.repeat(numbers(40), list(range(40))), np.repeat(numbers(40), range(40)))


def test_negative_counts():
    for counts, bad in ((-2, -2), ([1, -1], -1)):
        with pytest.raises(tg.errors.ShapeError, match=f"repeat: the count is {bad}"):
            tg.repeat([1, 2], counts)
    repeat = tg.function(lambda n: tg.repeat([1, 2, 3], n))
    same(repeat(tg.constant([2, 0, 1])), [1, 1, 3])
    for counts in ([-1, 2, 0], [1, 0, -1]):  # the sum alone is not negative
        with pytest.raises(tg.errors.InvalidArgumentError, match="a size is computed as -1"):
            repeat(tg.constant(counts))


FAR = {
    "element": lambda x, i: x[i],
    "part": lambda x, i: x[i : i + 2],
    "slice": lambda x, i: tg.slice(x, [i], [2]),
    "branch": lambda x, i: tg.switch_case(i, [lambda: x, lambda: 2.0 * x, lambda: 3.0 * x]),
    "read": lambda x, i: tg.TensorArray(tg.float32, 5).unstack(x).read(i),
    "write": lambda x, i: tg.TensorArray(tg.float32, 5).unstack(x).write(i, 9.0).stack(),
    "reverse": lambda x, i: tg.reverse_sequence(x[None], tg.reshape(i, [1]), 1),
}


@pytest.mark.parametrize("name", FAR)
def test_places_beyond_int32_do_not_wrap_around(name):
    f, x = tg.function(FAR[name]), tg.constant(numbers(5))
    near = {1: f(x, tg.constant(10**6, tg.int64)), -1: f(x, tg.constant(-(10**6), tg.int64))}
    for far in (2**32 + 1, 1 - 2**32, 2**62 + 1):
        same(f(x, tg.constant(far, tg.int64)), near[1 if far > 0 else -1])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("mode", "numpys"),
    [("CONSTANT", "constant"), ("reflect", "reflect"), ("SYMMETRIC", "symmetric")],
)
def test_pad(run, mode, numpys):
    x = numbers(4, 3)
    widths = [[2, 1], [0, 2]]
    same(run(lambda x: tg.pad(x, widths, mode), x), np.pad(x, widths, numpys))


def test_pad_with_a_value():
    same(tg.pad([1, 2], [[1, 1]], constant_values=9), [9, 1, 2, 9])
    same(tg.pad([1, 2], tg.constant([[1, 0]])), [0, 1, 2])
    same(tg.pad([True], [[1, 1]]), [False, True, False])
    same(tg.pad([False], [[0, 1]], constant_values=True), [False, True])
    with pytest.raises(ValueError, match="mirrored"):
        tg.pad([1, 2], [[2, 0]], "REFLECT")
    with pytest.raises(ValueError, match="paddings"):
        tg.pad([1, 2], [[1, 1], [1, 1]])


def test_reverse_and_roll(run):
    x = numbers(4, 3)
    same(run(lambda x: tg.reverse(x, [0, -1]), x), x[::-1, ::-1])
    for shift, axis in ((1, 0), (-2, 1), (5, 0), ([1, 2], [0, 1])):
        same(
            run(lambda x, shift=shift, axis=axis: tg.roll(x, shift, axis), x),
            np.roll(x, shift, axis),
        )


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid(indexing, count):
    vectors = [numbers(size) for size in (2, 3, 4)[:count]]
    same(tg.meshgrid(*vectors, indexing=indexing), np.meshgrid(*vectors, indexing=indexing))


def test_ensure_shape():
    same(tg.ensure_shape(numbers(2, 3), [None, 3]), numbers(2, 3))
    with pytest.raises(ValueError, match="ensure_shape"):
        tg.ensure_shape(numbers(2, 3), [2, 4])
    f = tg.function(
        lambda x: tg.ensure_shape(x, [None, 3]), input_signature=[tg.TensorSpec([None, None])]
    )
    same(f(numbers(2, 3)), numbers(2, 3))
    assert f.get_concrete_function().structured_outputs.shape[1] == 3


# ---------------------------------------------------------------- where, gather, scatter


def test_where(run):
    x = numbers(2, 3) - 2
    same(run(lambda x: tg.where(x > 0, x, 0.0), x), np.where(x > 0, x, 0))
    same(run(lambda x: tg.where(x > 0, [[1], [2]], [3]), x), np.where(x > 0, [[1], [2]], [3]))
    same(run(lambda x: tg.where(x > 0), x), np.argwhere(x > 0))
    with pytest.raises(ValueError, match="both or none"):
        tg.where(x > 0, x)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("at", [1, [1, 0], [[0, 1], [1, 1]], []], ids=str)
def test_gather(run, at, axis):
    x = numbers(2, 3, 4)
    same(run(lambda x: tg.gather(x, at, axis=axis), x), np.take(x, np.array(at, int), axis))


def test_gather_with_batch_axes(run):
    x = numbers(3, 4, 2)
    at = np.array([[0, 1], [3, 3], [2, 0]])
    expected = np.stack([x[k][at[k]] for k in range(3)])
    same(run(lambda x: tg.gather(x, at, batch_dims=1), x), expected)
    expected = np.stack([x[k][:, [0, 1, 1]][:, :2] for k in range(3)])
    same(tg.gather(x, [[0, 1]] * 3, axis=2, batch_dims=1), expected)


def test_gather_nd(run):
    x = numbers(2, 3, 4)
    at = np.array([[0, 1], [1, 2]])
    same(run(lambda x: tg.gather_nd(x, at), x), x[at[:, 0], at[:, 1]])
    same(tg.gather_nd(x, [[[1]], [[0]]]), x[[[1], [0]]])
    same(
        tg.gather_nd(x, [[[1, 2]], [[0, 0]]], batch_dims=1),
        np.stack([x[0, 1, 2], x[1, 0, 0]])[:, None],
    )


@pytest.mark.parametrize("wrap", [lambda fn: fn, tg.function], ids=["top level", "function"])
def test_index_out_of_range_and_known_is_an_error(wrap):
    for fn in (
        lambda x: tg.gather(x, [0, 3]),
        lambda x: tg.gather(x, -1),
        lambda x: tg.gather_nd(x, [[3]]),
        lambda x: tg.tensor_scatter_nd_add(x, [[5]], [1.0]),
    ):
        with pytest.raises(tg.errors.InvalidArgumentError, match="out of range for the size 3"):
            wrap(fn)(tg.ones([3]))


@pytest.mark.parametrize("wrap", [lambda fn: fn, tg.function], ids=["top level", "function"])
def test_an_index_into_nothing_says_so(wrap):
    with pytest.raises(tg.errors.InvalidArgumentError, match="fix: check that the tensor is not"):
        wrap(lambda x: tg.gather(x, 0))(tg.ones([0]))


def test_checks_at_run_time_name_wide_numbers():
    gather = tg.function(tg.gather, check_bounds=True)
    with pytest.raises(tg.errors.InvalidArgumentError, match="index 9223372036854775813 is out"):
        gather(tg.ones([3]), tg.constant(2**63 + 5, tg.uint64))
    item = tg.function(lambda x, i: x[i], check_bounds=True)
    same(item(tg.constant(numbers(3)), tg.constant(2, tg.uint64)), numbers(3)[2])
    power = tg.function(tg.pow, check_bounds=True)
    assert power(tg.constant(1, tg.int64), tg.constant(2**40, tg.int64)).numpy() == 1


@pytest.mark.parametrize(
    ("scatter", "expected"),
    [
        (tg.tensor_scatter_nd_update, [9, 1, 2]),
        (tg.tensor_scatter_nd_add, [9, 1, 2]),
        (tg.tensor_scatter_nd_sub, [-9, 1, 2]),
        (tg.tensor_scatter_nd_max, [9, 1, 2]),
        (tg.tensor_scatter_nd_min, [0, 1, 2]),
    ],
)
def test_an_update_out_of_range_overwrites_nothing_else(scatter, expected):
    f = tg.function(scatter)
    same(
        f(tg.constant(numbers(3)), tg.constant([[3], [0], [-1]]), tg.constant([7.0, 9, 8])),
        expected,
    )


def test_what_was_dropped_has_no_gradient():
    f = tg.function(lambda x, i, u: tg.reduce_sum(tg.tensor_scatter_nd_update(x, i, u) ** 2))
    x, u = tg.constant([1.0, 2.0, 3.0]), tg.constant([4.0, 5.0])
    with tg.GradientTape() as tape:
        tape.watch([x, u])
        y = f(x, tg.constant([[0], [3]]), u)
    same(tape.gradient(y, [x, u]), (np.float32([0, 4, 6]), np.float32([8, 0])))


def test_an_update_of_a_variable_out_of_range_is_dropped():
    v = tg.Variable([1.0, 2.0, 3.0])

    @tg.function
    def put(i):
        v.scatter_update(tg.IndexedSlices(tg.constant([9.0]), i))
        v.scatter_nd_add(tg.expand_dims(i, 0), [9.0])

    put(tg.constant([7]))
    same(v, [1, 2, 3])


def test_rows_assigned_in_a_function_may_have_a_tensor_for_their_shape():
    v, shape = tg.Variable([[1.0], [2.0], [3.0]]), tg.constant([3, 1])

    @tg.function
    def put(rows):
        v.assign(tg.IndexedSlices(rows, [2, 0], shape))
        v.assign_add(tg.IndexedSlices(rows, [0, 0], tg.shape(v)))

    put(tg.constant([[5.0], [6.0]]))
    same(v, [[17], [0], [5]])


def test_floating_indices_are_an_error():
    with pytest.raises(TypeError, match="integers"):
        tg.gather(tg.ones([3]), [0.0])


def test_gradient_of_gather_is_dense_and_adds_up():
    v = tg.Variable([1.0, 2.0, 3.0])
    with tg.GradientTape() as tape:
        y = tg.gather(v, [1, 1, 2]) ** 2
    same(tape.gradient(y, v), [0, 8, 6])


def test_scatters():
    x = numbers(4)
    at, updates = [[1], [3]], np.float32([10, -20])
    expected = {
        "update": [0, 10, 2, -20],
        "add": [0, 11, 2, -17],
        "sub": [0, -9, 2, 23],
        "max": [0, 10, 2, 3],
        "min": [0, 1, 2, -20],
    }
    for name, values in expected.items():
        same(getattr(tg, f"tensor_scatter_nd_{name}")(x, at, updates), np.float32(values))
    same(tg.scatter_nd([[1], [1]], [5.0, 6.0], [3]), [0, 11, 0])
    same(tg.scatter_nd([[0], [2]], [[1, 2], [3, 4]], [3, 2]), [[1, 2], [0, 0], [3, 4]])
    same(tg.tensor_scatter_nd_update(numbers(2, 2), [[0, 1]], [9.0]), [[0, 9], [2, 3]])


def test_all_names_work_in_a_function_too():
    """What takes a shape apart and puts it together again gives the tensor back."""
    x = numbers(2, 3, 4)

    @tg.function
    def around(x):
        for axis, parts in itertools.product(range(3), (1, 2)):
            if x.shape[axis] % parts == 0:
                x = tg.concat(tg.split(x, parts, axis), axis)
            x = tg.stack(tg.unstack(x, axis=axis), axis)
        return tg.squeeze(tg.expand_dims(x, 1), 1)

    same(around(tg.constant(x)), x)


def test_a_moving_slice_over_the_end_is_as_short_at_top_level_as_in_a_function():
    x = tg.constant([1.0, 2.0, 3.0, 4.0])

    def cut(x):
        start = tg.constant(3)
        return x[start : start + 2]

    assert cut(x).numpy().tolist() == tg.function(cut)(x).numpy().tolist() == [4.0]


# Slices whose bounds are expressions.

WINDOWS = {
    "element": (lambda x, o: x[:, o[0] : o[0] + 4], lambda o: slice(o, o + 4)),
    "multiple": (lambda x, o: x[:, o[0] * 4 : (o[0] + 1) * 4], lambda o: slice(4 * o, 4 * o + 4)),
    "multiple from the right": (
        lambda x, o: x[:, 4 * o[0] + 1 : 2 * (o[0] + o[0]) + 3],
        lambda o: slice(4 * o + 1, 4 * o + 3),
    ),
    "around": (lambda x, o: x[:, o[0] - 1 : o[0] + 2], lambda o: slice(o - 1, o + 2)),
    "of a wider type": (
        lambda x, o: x[:, o[0] : tg.cast(o[0], tg.int64) + 3],
        lambda o: slice(o, o + 3),
    ),
    "of two": (
        lambda x, o: x[:, o[0] + o[1] : o[1] - (-o[0]) + 3],
        lambda o: slice(o + 1, o + 4),
    ),
    "of a product": (
        lambda x, o: x[:, o[0] * o[1] : o[0] * o[1] + 3],
        lambda o: slice(o, o + 3),
    ),
    "step": (lambda x, o: x[:, o[0] : o[0] + 5 : 2], lambda o: slice(o, o + 5, 2)),
    "size": (lambda x, o: x[:, o[0] : o[0] + tg.shape(x)[0]], lambda o: slice(o, o + 3)),
    "from the end": (lambda x, o: x[:, o[0] - 6 : o[0] - 4], lambda o: slice(o - 6, o - 4)),
    "nothing": (lambda x, o: x[:, o[0] : o[0]], lambda o: slice(o, o)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_sizes_of_slices_are_compared_as_expressions(name):
    """Row g of issue 10."""
    take, expected = WINDOWS[name]
    x = numbers(3, 12)
    f = tg.function(take)
    for start in (1, 2):
        same(f(tg.constant(x), tg.constant([start, 1])), x[:, expected(start)])
        same(take(tg.constant(x), tg.constant([start, 1])), x[:, expected(start)])
    assert f.experimental_get_tracing_count() == 1


def test_slices_of_open_sizes_by_expressions():
    @tg.function(input_signature=[tg.TensorSpec([None, None]), tg.TensorSpec([], tg.int32)])
    def f(x, k):
        n = tg.shape(x)[0]
        return x[:, k * n : (k + 1) * n]

    for n in (2, 3):
        x = numbers(n, 4 * n)
        same(f(tg.constant(x), tg.constant(2)), x[:, 2 * n : 3 * n])


def test_a_variable_as_the_start_of_a_slice():
    at, x = tg.Variable(1), numbers(9)
    take = tg.function(lambda x: x[at : at + 3])
    same(take(tg.constant(x)), x[1:4])
    at.assign(5)
    same(take(tg.constant(x)), x[5:8])


def test_a_window_over_an_end_is_moved_until_it_fits():
    x = numbers(9)
    take = tg.function(lambda x, o: x[o - 2 : o + 2])
    for o, expected in ((0, x[:4]), (1, x[:4]), (2, x[:4]), (4, x[2:6]), (8, x[5:]), (30, x[5:])):
        same(take(tg.constant(x), tg.constant(o)), expected)
    same(take(tg.constant(x), tg.constant(-3)), x[4:8])  # from -5 to -1
    checked = tg.function(lambda x, o: x[o - 2 : o + 2], check_bounds=True)
    same(checked(tg.constant(x), tg.constant(4)), x[2:6])
    for o in (1, 8):
        with pytest.raises(tg.errors.InvalidArgumentError, match="are not in axis 0"):
            checked(tg.constant(x), tg.constant(o))


@pytest.mark.parametrize("name", ["multiple", "around", "step"])
def test_derivatives_of_slices_by_expressions(name):
    take, expected = WINDOWS[name]
    x, o = numbers(3, 12), tg.constant([1, 1])

    @tg.function
    def derivatives(x, v):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = take(x, o) ** 3
            slope, jacobian = tape.gradient(y, x), tape.jacobian(y, x)
            total = tg.reduce_sum(slope * v)
        with tg.autodiff.ForwardAccumulator(x, v) as forward:
            z = take(x, o) ** 3
        return slope, jacobian, outer.gradient(total, x), forward.jvp(z)

    v = numbers(3, 12)[::-1].copy()
    slope, jacobian, curvature, tangent = derivatives(tg.constant(x), tg.constant(v))
    mask = np.zeros_like(x)
    mask[:, expected(1)] = 1
    same(slope, 3 * x**2 * mask)
    same(curvature, 6 * x * v * mask)
    same(tangent, (3 * x**2 * v)[:, expected(1)])
    full = np.zeros((*x[:, expected(1)].shape, *x.shape), x.dtype)
    columns = np.arange(12)[expected(1)]
    for row in range(3):
        for k, column in enumerate(columns):
            full[row, k, row, column] = 3 * x[row, column] ** 2
    same(jacobian, full)


def test_slices_by_expressions_in_every_instance_of_a_loop():
    x = numbers(12)
    rows = tg.vectorized_map(lambda o: tg.constant(x)[o * 2 : o * 2 + 3], tg.constant([0, 1, 4]))
    same(rows, [x[0:3], x[2:5], x[8:11]])


@pytest.mark.parametrize(
    ("take", "fact", "fix"),
    [
        (
            lambda x, o: x[: o[0] : -1],
            r"from the end down to o\[0\]",
            r"x\[o\[0\] \+ 1 :\]\[::-1\]",
        ),
        (
            lambda x, o: x[2 * o[0] :: -2],
            r"from \(?(2 \* o\[0\]|o\[0\] \* 2)\)? down to the beginning",
            r"\[: .* \+ 1\]\[::-2\]",
        ),
        (
            lambda x, o: x[o[0] + 3 : o[0] : -1],
            r"from o\[0\] \+ 3 down to o\[0\]",
            r"x\[o\[0\] \+ 1 : o\[0\] \+ 3 \+ 1\]\[::-1\]",
        ),
    ],
)
def test_a_slice_backwards_says_so_with_both_bounds(take, fact, fix):
    with pytest.raises(tg.errors.TraceError, match=fact) as caught:
        tg.function(take)(tg.ones([9]), tg.constant([1, 2]))
    assert re.search(f"fix: .*{fix}", str(caught.value))


# What TensorFlow's own tests found.


def test_gather_with_a_negative_number_of_batch_axes():
    """It counts from the axes of the indices; the axis that it is by default, from those of x."""
    x, at = numbers(2, 5), np.array([[0, 1], [4, 2]])
    same(tg.gather(x, at, batch_dims=-1), np.take_along_axis(x, at, 1))
    same(tg.gather(x, at % 2, batch_dims=-2), x[at % 2])
    x = numbers(2, 5, 3)
    same(tg.gather(x, at, batch_dims=-1, axis=1), np.stack([x[k][at[k]] for k in range(2)]))
    for count in (-3, 3):
        with pytest.raises(ValueError, match=f"batch_dims is {count}"):
            tg.gather(x, at, batch_dims=count)
    with pytest.raises(ValueError, match="batch_dims is -1"):
        tg.gather_nd(x, at[..., None], batch_dims=-1)


def test_gather_without_a_number_of_batch_axes():
    x = numbers(2, 5)
    same(tg.gather(x, [1, 0], batch_dims=None), x[[1, 0]])
    same(tg.gather(x, [1, 0], axis=1, batch_dims=None), x[:, [1, 0]])


@pytest.mark.parametrize(
    "scatter",
    [
        lambda: tg.scatter_nd([[1], [3]], 5, [4]),
        lambda: tg.scatter_nd([[1], [3]], [5], [4]),
        lambda: tg.tensor_scatter_nd_update([1, 2, 3], [[0], [1]], 5),
        lambda: tg.tensor_scatter_nd_add([[1, 2], [3, 4]], [[0], [1]], [5, 6]),
        lambda: tg.tensor_scatter_nd_sub([[1, 2], [3, 4]], [[0]], [5, 6]),
        lambda: tg.tensor_scatter_nd_max([[1, 2], [3, 4]], [[0]], 5),
        lambda: tg.tensor_scatter_nd_min([[1, 2], [3, 4]], [[0, 1]], [[5]]),
        lambda: tg.Variable([1.0, 2.0]).scatter_nd_add([[0], [1]], 5.0),
        lambda: tg.Variable([[1.0, 2.0]]).scatter_add(tg.IndexedSlices([5.0], [0])),
        lambda: tg.Variable([[1.0, 2.0]]).batch_scatter_update(tg.IndexedSlices(5.0, [[0]])),
        lambda: tg.Variable(3.0).scatter_nd_update([[0]], [5.0]),
        lambda: tg.Variable(3.0).scatter_nd_update(0, 5.0),
        lambda: tg.Variable(3.0).scatter_update(tg.IndexedSlices(5.0, 0)),
        lambda: tg.Variable(3.0).gather_nd([[0]]),
    ],
)
def test_updates_of_another_shape_are_refused(scatter):
    with pytest.raises(ValueError, match=r"test_indexing\.py"):
        scatter()


def test_a_scalar_stands_for_all_updates_of_rows():
    v = tg.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    v.scatter_add(tg.IndexedSlices(10.0, [0, 2]))
    same(v, [[11, 12], [3, 4], [15, 16]])
    v.scatter_update(tg.IndexedSlices(7.0, 1))
    same(v, [[11, 12], [7, 7], [15, 16]])


def test_updates_of_scalars():
    v = tg.Variable(3.0)
    assert v.scatter_nd_update([], 5.0).numpy() == 5
    assert v.scatter_nd_add([[], []], [1.0, 2.0]).numpy() == 8
    assert v.gather_nd([]).numpy() == 8
    assert tg.tensor_scatter_nd_update(5, [], 7).numpy() == 7


def test_scatters_of_nested_lists():
    one = tg.constant(1.0)
    found = tg.tensor_scatter_nd_update([[1.0, 2.0], [3.0, 4.0]], [[0]], [[one, 6]])
    same(found, [[1, 6], [3, 4]])
    at = [[[tg.constant(0), 1]], [[1, 0]]]
    same(tg.tensor_scatter_nd_update([[1, 2], [3, 4]], at, [[5], [6]]), [[1, 5], [6, 4]])
    with pytest.raises(TypeError, match="float32 was given where int32 is needed"):
        tg.tensor_scatter_nd_update([[1, 2], [3, 4]], [[0]], [[one, 6]])


def test_expressions_that_are_long_cost_little():
    """Each value of a sum is looked at once: doubled 40 times, there are 2^40 ways to it."""

    @tg.function
    def f(x, i):
        for _ in range(40):
            i = i + i
        return x[i : i + 3]

    same(f(tg.constant(numbers(9)), tg.constant(0)), numbers(3))


def test_assignment_to_a_slice_by_expressions():
    v = tg.Variable(numbers(9))

    @tg.function
    def f(o):
        v[o[0] * 2 : o[0] * 2 + 3].assign([-1.0, -2.0, -3.0])

    f(tg.constant([2]))
    same(v, [0, 1, 2, 3, -1, -2, -3, 7, 8])


def test_positions_do_not_wrap_round_in_a_narrow_type():
    lengths = tg.constant([1, 127], tg.int8)
    expected = np.arange(300) < np.array([[1], [127]])
    same(tg.sequence_mask(lengths, 300, tg.float32), expected.astype(np.float32))
    same(tg.one_hot(lengths, 300), np.eye(300, dtype=np.float32)[[1, 127]])
