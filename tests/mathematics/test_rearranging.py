"""Arrays: stitching, sequences, positions, bits, counts, segments, against NumPy; and gradients
without a tape, against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(3)


def sample(*shape, dtype=np.float64):
    return RANDOM.normal(size=shape).astype(dtype)


def close(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def same(found, expected):
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found.numpy().dtype == np.asarray(expected).dtype


# ---------------------------------------------------------------- stitching and sequences


@pytest.mark.sampled(1)
def test_dynamic_stitch(run):
    indices = [6, [4, 1], [[5, 2], [0, 4]]]
    data = [sample(3), sample(2, 3), sample(2, 2, 3)]
    expected = np.zeros((7, 3))
    for at, rows in zip(indices, data, strict=True):
        expected[np.ravel(at)] = rows.reshape(-1, 3)  # of rows for one place, the last
    close(run(lambda: tg.dynamic_stitch(indices, data)), expected)
    assert (expected[3] == 0).all()
    parts = [tg.constant(rows) for rows in data]
    slopes = tg.grad(
        lambda *xs: tg.reduce_sum(tg.dynamic_stitch(indices, list(xs)) ** 2), (0, 1, 2)
    )(*parts)
    close(slopes[1][1], 2 * data[1][1])
    close(slopes[1][0], np.zeros(3))  # written over


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("seq_axis", "batch_axis"), [(1, 0), (0, 1), (2, 0), (1, 2), (-1, None)])
def test_reverse_sequence(run, seq_axis, batch_axis):
    x = sample(4, 3, 5)
    batch = batch_axis or 0
    along = seq_axis % 3
    lengths = RANDOM.integers(0, x.shape[along] + 1, x.shape[batch])
    expected = np.moveaxis(x.copy(), (batch, along), (0, 1))
    for row, count in zip(expected, lengths, strict=True):
        row[:count] = row[:count][::-1].copy()
    expected = np.moveaxis(expected, (0, 1), (batch, along))
    found = run(lambda x: tg.reverse_sequence(x, lengths, seq_axis, batch_axis), tg.constant(x))
    close(found, expected)
    g = sample(4, 3, 5)
    with tg.GradientTape() as tape:
        y = tg.constant(x)
        tape.watch(y)
        z = tg.reverse_sequence(y, lengths, seq_axis, batch_axis)
    close(tape.gradient(z, y, g), tg.reverse_sequence(g, lengths, seq_axis, batch_axis).numpy())


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_unravel_index(run, dtype):
    places = RANDOM.integers(0, 60, 9).astype(dtype)
    expected = np.stack(np.unravel_index(places, (3, 4, 5))).astype(dtype)
    same(run(lambda at: tg.unravel_index(at, [3, 4, 5]), tg.constant(places)), expected)
    same(tg.unravel_index(places[0], tg.constant([3, 4, 5])), expected[:, 0])


def test_functions_of_several_tensors(run):
    same(tg.shape_n([np.ones((2, 3)), 1.0], tg.int64)[0], np.array([2, 3]))
    assert [x.numpy().tolist() for x in tg.identity_n([[1], 2.5])] == [[1], 2.5]
    close(tg.parallel_stack([sample(2)] * 3).shape and tg.guarantee_const(3.0), 3.0)
    spec = tg.type_spec_from_value(tg.Variable([1, 2]))
    assert (spec.shape, spec.dtype) == ((2,), tg.int32)
    assert tg.broadcast_static_shape(tg.TensorShape([2, 1]), [1, 3]) == (2, 3)
    same(run(tg.broadcast_dynamic_shape, [4, 1, 3], [2, 1]), np.array([4, 2, 3], np.int32))


# ---------------------------------------------------------------- bits

TYPES = ["uint8", "int8", "uint16", "float16", "int32", "uint32", "float32", "int64", "float64"]


@pytest.mark.parametrize("own", TYPES)
def test_bitcast(own):
    bits = RANDOM.integers(0, 256, (3, 16), np.uint8)
    casts = []
    for kind in TYPES:
        x = bits.view(own)
        wide, narrow = x.itemsize, np.dtype(kind).itemsize
        if wide < narrow:
            x = x.reshape(3, -1, narrow // wide)
        found = tg.bitcast(x, kind)
        shape = (*x.shape, wide // narrow) if wide > narrow else x.shape[: 1 + (wide == narrow)]
        shape = (3, 16 // narrow) if wide < narrow else shape
        assert found.shape == shape and found.dtype == kind
        casts.append(found)
    for found in casts:
        np.testing.assert_array_equal(found.numpy().reshape(3, -1).view(np.uint8), bits)


def test_bitcast_of_complex_numbers():
    z = sample(4).astype(np.complex64) + 2j
    close(tg.bitcast(z, tg.float32), np.stack([z.real, z.imag], -1))
    same(tg.bitcast(z, tg.int64), z.view(np.int64))
    same(tg.bitcast(np.stack([z.real, z.imag], -1), tg.complex64), z)
    same(tg.bitcast(z.reshape(2, 2), tg.complex128), z.view(np.complex128))
    same(tg.bitcast(tg.bfloat16.as_numpy_dtype(1.0), tg.uint16), np.uint16(0x3F80))


BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_bit_by_bit(run, dtype):
    info = np.iinfo(dtype)
    x = RANDOM.integers(info.min, info.max, (3, 4), dtype, endpoint=True)
    y = RANDOM.integers(0, info.max, (4,), dtype)
    places = RANDOM.integers(0, info.bits, (4,), dtype)
    others = [places if "shift" in name else y for name in BITS]

    def compute(x, *others):
        pairs = zip(BITS, others, strict=True)
        return [getattr(tg.bitwise, name)(x, y) for name, y in pairs], tg.bitwise.invert(x)

    found, inverted = run(compute, tg.constant(x), *map(tg.constant, others))
    for exact, other, one in zip(BITS.values(), others, found, strict=True):
        same(one, exact(x, other))
    same(inverted, np.invert(x))


# ---------------------------------------------------------------- counts and order


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_histograms(run, dtype):
    x = (10 * sample(4, 50)).astype(dtype)
    bounds = np.array([-8, 12], dtype)
    counts, _ = np.histogram(np.clip(x, -8, 12), 7, (-8, 12))
    found = run(lambda x: tg.histogram_fixed_width(x, bounds, 7), tg.constant(x))
    same(found, counts.astype(np.int32))
    places = tg.histogram_fixed_width_bins(x, bounds, 7, dtype=tg.int64)
    assert places.shape == x.shape and places.dtype == tg.int64
    same(tg.math.bincount(tg.cast(places, tg.int32), minlength=7), counts.astype(np.int32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_histogram_over_more_than_the_largest_number(dtype):
    low, high = np.array([-0.3, 0.9], dtype) * np.finfo(dtype).max
    values = np.array([low, 0, high / 2, high, np.inf, 0.8 * low], dtype)
    same(tg.histogram_fixed_width(values, [low, high], 4), np.array([2, 1, 1, 2], np.int32))


def test_bucketize():
    x, bounds = sample(3, 4), [-1.0, 0.0, 0.5]
    same(tg.raw_ops.Bucketize(input=x, boundaries=bounds), np.digitize(x, bounds).astype(np.int32))
    same(tg.raw_ops.Bucketize(input=[3, 0], boundaries=[0, 3.5]), np.array([1, 1], np.int32))


def test_permutations_and_order(run):
    order = RANDOM.permutation(7)
    same(run(tg.math.invert_permutation, tg.constant(order)), np.argsort(order))
    for x, weak, strict in (
        ([1, 2, 3], True, True),
        ([[1.0, 1.0], [2.0, 2.0]], True, False),
        ([2, 1], False, False),
        ([3], True, True),
        (np.zeros(0), True, True),
    ):
        assert bool(tg.math.is_non_decreasing(x)) is weak
        assert bool(tg.math.is_strictly_increasing(x)) is strict


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_largest_and_smallest_along_an_axis(axis):
    x = sample(4, 5, 6)
    order = np.argsort(x, axis)
    low = tg.math.approx_min_k(x, 2, axis)
    same(low.indices, np.take(order, range(2), axis).astype(np.int32))
    close(low.values, np.take(np.sort(x, axis), range(2), axis))
    high = tg.nn.approx_max_k(x, 2, reduction_dimension=axis)
    close(high.values, np.flip(np.take(np.sort(x, axis), range(-2, 0), axis), axis))


# ---------------------------------------------------------------- segments


@pytest.mark.sampled(1)
def test_products_and_roots_of_segments(run):
    x, ids = sample(5, 2), np.array([3, 0, 3, -1, 0])
    product, root = np.ones((5, 2)), np.zeros((5, 2))
    for k in range(5):
        rows = x[ids == k]
        product[k] = rows.prod(0)
        root[k] = rows.sum(0) / np.sqrt(max(len(rows), 1))
    close(run(lambda x: tg.math.unsorted_segment_prod(x, ids, 5), tg.constant(x)), product)
    close(run(lambda x: tg.math.unsorted_segment_sqrt_n(x, ids, 5), tg.constant(x)), root)
    known = np.array([0, 0, 2])
    found = tg.math.segment_prod(x[:3], known)
    close(found, [x[:2].prod(0), [1, 1], x[2]])
    with jax.enable_x64(True):
        slope = jax.grad(lambda x: jnp.sum((x[0] * x[1]) ** 2) + jnp.sum(x[2] ** 2))(x[:3])
    own = tg.grad(lambda x: tg.reduce_sum(tg.math.segment_prod(x, known) ** 2))(tg.constant(x[:3]))
    close(own, slope)


# ---------------------------------------------------------------- types of elements


def test_what_types_say_of_themselves():
    assert [d.is_unsigned for d in (tg.uint8, tg.int8, tg.float32)] == [True, False, False]
    assert [d.is_numeric for d in (tg.bool, tg.int8, tg.complex64)] == [False, True, True]
    assert tg.float16.base_dtype is tg.float16
    assert not tg.int8.is_quantized
    assert tg.bfloat16.is_numpy_compatible


def test_set_shape():
    x = tg.zeros([2, 3])
    assert x.set_shape([None, 3]) is None
    tg.Variable(x).set_shape([2, 3])
    with pytest.raises(tg.errors.ShapeError, match=r"f32\[2,3\] does not have the shape") as error:
        x.set_shape([3, 3])
    assert "test_rearranging.py" in str(error.value)

    @tg.function(input_signature=[tg.TensorSpec([None, 3])])
    def narrowed(x):
        x.set_shape([None, 3])
        x.set_shape([2, 3])

    with pytest.raises(tg.errors.ShapeError, match=r"use x = tg\.ensure_shape\(x, shape\)"):
        narrowed(x)


# ---------------------------------------------------------------- gradients without a tape


def test_gradients_of_a_function():
    weight = tg.Variable([1.0, 2.0], dtype=tg.float64)

    @tg.function
    def slopes(x):
        y = tg.sin(x) * weight
        z = tg.reduce_sum(y**3)
        both = tg.gradients([z, y], [x, weight])
        given = tg.gradients(y, x, grad_ys=tg.constant([2.0, 0.0], tg.float64))
        stopped = tg.gradients(z, [x, y], stop_gradients=y)
        loose = tg.gradients(tg.constant(1.0), x)
        zeros = tg.gradients(tg.constant(1.0), x, unconnected_gradients="zero")
        assert loose == [None] and stopped[0] is None
        second = tg.gradients(tg.gradients(z, x), x)
        return both, given, stopped[1], zeros, second

    x = np.array([0.3, -0.8])
    w = weight.numpy()

    def total(x, w):
        y = jnp.sin(x) * w
        return jnp.sum(y**3) + jnp.sum(y)

    with jax.enable_x64(True):
        wanted = jax.grad(total, (0, 1))(x, w)
        slope = jax.grad(lambda x: jnp.sum((jnp.sin(x) * w) ** 3))
        second = jax.grad(lambda x: jnp.sum(slope(x)))(x)
    both, given, by_y, zeros, found = slopes(tg.constant(x))
    for one, other in zip(both, wanted, strict=True):
        close(one, other)
    close(given[0], np.cos(x) * w * [2, 0])
    close(by_y, 3 * (np.sin(x) * w) ** 2)
    close(zeros[0], [0, 0])
    close(found[0], second)


def test_hessians_of_a_function():
    @tg.function
    def curvatures(x, y):
        return tg.hessians(tg.reduce_sum(tg.sin(x) * x) + tg.reduce_sum(y), [x, y])

    x, y = sample(3), sample(2)
    by_x, by_y = curvatures(tg.constant(x), tg.constant(y))
    close(by_x, np.diag(2 * np.cos(x) - x * np.sin(x)))
    close(by_y, np.zeros((2, 2)))


@pytest.mark.parametrize("kind", [np.uint8, np.int32])
def test_unravel_index_into_dims_beyond_the_dtype_of_the_indices(kind):
    dims = [2, 300] if kind is np.uint8 else [3, 2**33]
    for call in (tg.unravel_index, tg.function(tg.unravel_index)):
        found = call(np.array([7, 250], kind), dims)
        assert found.numpy().tolist() == [[0, 0], [7, 250]]


def test_stitching_by_unsigned_indices():
    assert tg.dynamic_stitch([np.uint8([1, 0])], [[5, 6]]).numpy().tolist() == [6, 5]


def test_reverse_sequence_checks_lengths():
    reverse = lambda n: tg.reverse_sequence([[1, 2]], n, 1)  # noqa: E731
    for checked in (reverse, tg.function(reverse, check_bounds=True)):
        assert checked(tg.constant([1]) + 1).numpy().tolist() == [[2, 1]]
        for far in (3, -1, 2**32 + 1):
            with pytest.raises(tg.errors.InvalidArgumentError, match=f"a length is {far}, and"):
                checked(tg.constant([far - 1]) + 1)


# ---------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.dynamic_stitch([[0]], [[1], [2]]), "1 tensors of indices for 2"),
        (lambda: tg.dynamic_stitch([[0, 1]], [[1.0]]), "one row of one shape"),
        (lambda: tg.dynamic_stitch([[-1]], [[1.0]]), "there is -1"),
        (lambda: tg.dynamic_stitch([[0.5]], [[1.0]]), "must be integers"),
        (lambda: tg.reverse_sequence([[1, 2]], [1], 0, 0), "both 0"),
        (lambda: tg.reverse_sequence([[1, 2]], [1, 1], 1), "for 1 sequences"),
        (lambda: tg.reverse_sequence([[1, 2]], [3], 1), "have 2 elements"),
        (lambda: tg.reverse_sequence([[1, 2]], [1], 2), "axis 2"),
        (lambda: tg.unravel_index([9], [3, 3]), "there are 9 elements"),
        (lambda: tg.unravel_index([1], [-3, -3]), r"the dims are \[-3, -3\]"),
        (lambda: tg.unravel_index([[1]], [3, 3]), "indices i32"),
        (lambda: tg.unravel_index([1], 3), "into dims i32"),
        (lambda: tg.bitcast([True], tg.int8), "truth values"),
        (lambda: tg.bitcast([1, 2, 3], tg.int64), "last axis of size 2"),
        (lambda: tg.bitwise.bitwise_and(1.0, 2.0), "only integers"),
        (lambda: tg.bitwise.invert([True]), "only integers"),
        (lambda: tg.bitwise.left_shift(tg.constant(1), tg.constant([1.0])), "do not mix"),
        (lambda: tg.histogram_fixed_width([1.0], [0.0], 3), "the value_range is"),
        (lambda: tg.histogram_fixed_width([1.0], [1.0, 0.0], 3), "lower bound first"),
        (lambda: tg.histogram_fixed_width([1.0], [0.0, 1.0], 0), "nbins is 0"),
        (lambda: tg.raw_ops.Bucketize(input=[1.0], boundaries=[2, 1]), "sort them"),
        (lambda: tg.raw_ops.Bucketize(input=[1.0], boundaries=["a"]), "a boundary is a number"),
        (lambda: tg.math.invert_permutation([0, 0]), "not a permutation of 0 to 1"),
        (lambda: tg.math.invert_permutation([[0]]), "not a vector"),
        (lambda: tg.math.is_non_decreasing([1j]), "no order"),
        (lambda: tg.math.approx_max_k([1, 2], 1), "the operand is"),
        (lambda: tg.math.approx_max_k([1.0], -1), "k is -1"),
        (lambda: tg.math.unsorted_segment_sqrt_n([1], [0], 1), "the data are"),
        (lambda: tg.math.unsorted_segment_prod([1], [[0]], 1), "numbers for"),
        (lambda: tg.broadcast_static_shape([2], [3]), "do not broadcast"),
        (lambda: tg.broadcast_dynamic_shape([2], [3]), "do not broadcast"),
        (lambda: tg.broadcast_dynamic_shape([[2]], [3]), "vectors of integers"),
        (lambda: tg.identity_n(3), "input is a list"),
        (lambda: tg.gradients(tg.constant(1.0), tg.constant(1.0)), "this is the top level"),
        (lambda: tg.hessians(tg.constant(1.0), tg.constant(1.0)), "this is the top level"),
        (lambda: tg.function(lambda x: tg.gradients(x, 2.0))(1.0), "source|target"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words) as error:
        call()
    assert "test_rearranging.py" in str(error.value)
    assert "fix: " in str(error.value)
