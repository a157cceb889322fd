"""Conventions of TensorFlow that its own tests ask for: what is accepted, what is refused and as
what, and of which dtype a result is."""

import collections

import numpy as np
import pytest

import tracegraph as tg

# Conversion.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [tg.constant, tg.convert_to_tensor])
def test_a_dtype_is_that_of_the_tensors_in_a_list(make, run):
    wide = tg.constant([1.0, 2.0], tg.float64)
    narrow = run(lambda x: make([[3.0, 4.0], x], tg.float32), wide)
    assert narrow.dtype == tg.float32
    assert narrow.numpy().tolist() == [[3, 4], [1, 2]]
    mixed = run(lambda x: make([x, tg.constant([5, 6])], tg.float64), wide)
    assert mixed.dtype == tg.float64
    assert mixed.numpy().tolist() == [[1, 2], [5, 6]]


def test_a_floating_tensor_in_a_list_of_integers_is_refused():
    with pytest.raises(TypeError, match="a tensor of float32 was given where int32 is needed"):
        tg.constant([tg.constant(1.5), 2], tg.int32)


def test_a_list_without_a_dtype_promotes():
    assert tg.constant([tg.constant(1.0), tg.constant(2.0, tg.float64)]).dtype == tg.float64


@pytest.mark.parametrize("value", [7, [7], [[7]], np.array([7])], ids=repr)
def test_a_constant_of_one_element_fills_its_shape(value, run):
    filled = run(lambda: tg.constant(value, tg.float32, shape=[2, 3]))
    assert filled.numpy().tolist() == [[7, 7, 7]] * 2
    assert run(lambda: tg.constant(value, shape=[0])).shape == [0]


@pytest.mark.parametrize("shape", [[2], [5], [0], []], ids=str)
def test_a_constant_of_another_number_of_elements_is_a_type_error_too(shape, run):
    with pytest.raises(tg.errors.ShapeError, match="the value has 4 elements") as caught:
        run(lambda: tg.constant([1, 2, 3, 4], shape=shape))
    assert isinstance(caught.value, TypeError)
    assert run(lambda: tg.constant([1, 2, 3, 4], shape=[2, 2])).shape == [2, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.constant([2**72]),
        lambda: tg.constant(10**310, tg.float64),
        lambda: tg.constant(np.array([300]), tg.uint8),
    ],
)
def test_a_number_out_of_range_is_a_value_error_too(make):
    with pytest.raises(tg.errors.DTypeError, match="is outside the range of") as caught:
        make()
    assert isinstance(caught.value, ValueError)


class Pair:
    """A sequence that has no base class, as of a library of tables."""

    def __len__(self):
        return 2

    def __getitem__(self, key):
        raise KeyError(key)

    def __iter__(self):
        return iter([1.0, 3.0])


@pytest.mark.parametrize(
    "value",
    [
        collections.deque([1.0, 3.0]),
        collections.UserList([1.0, 3.0]),
        {"a": 1.0, "b": 3.0}.values(),
        Pair(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sequences_of_other_classes_are_lists(value, run):
    assert run(lambda: tg.constant(value)).numpy().tolist() == [1, 3]
    assert run(lambda: tg.convert_to_tensor(value, tg.float64)).dtype == tg.float64
    assert run(lambda x: x + value, tg.constant([1.0, 1.0])).numpy().tolist() == [2, 4]


def test_a_deque_joins_tensors(run):
    def joined(x):
        parts = {"a": x, "b": 2 * x}.values()
        return tg.add_n(parts), tg.stack(collections.deque(parts)), tg.concat(parts, 0)

    x = tg.constant([1.0, 2.0])
    total, rows, row = run(joined, x)
    assert total.numpy().tolist() == [3, 6]
    assert rows.numpy().tolist() == [[1, 2], [2, 4]]
    assert row.numpy().tolist() == [1, 2, 2, 4]


def test_a_deque_holds_tensors(run):
    rows = run(lambda x: tg.reduce_sum(collections.deque([x, 2 * x]), 0), tg.constant([1.0, 2.0]))
    assert rows.numpy().tolist() == [3, 6]


def test_references_of_tensors_are_keys(run):
    def named(x, y):
        names = {x.ref(): 1.0, y.ref(): 2.0}
        assert x.ref().deref() is x
        assert x.ref() != y.ref()
        return names[y.ref()] * y

    same = tg.constant([1.0, 2.0])
    assert run(named, same, tg.constant([1.0, 2.0])).numpy().tolist() == [2, 4]
    assert repr(same.ref()) == "<Reference to a tensor>"


def test_the_static_value_of_a_variable_is_none():
    v = tg.Variable([1.0, 2.0])
    assert tg.get_static_value(v) is None
    assert tg.get_static_value(v + 1.0).tolist() == [2, 3]


def test_add_n_takes_an_iterator():
    assert tg.add_n(tg.constant(k) for k in range(4)).numpy() == 6


COMPLEX = np.array([[2, 1j], [-1j, 2]])
#: What is called with numbers, lists and arrays, and the dtype and the value that TensorFlow gives.
CALLS = {
    "numbers adapt to NumPy's in a list": (
        lambda: tg.constant([np.float32(1), 2, 0.5]),
        "float32",
        [1, 2, 0.5],
    ),
    "and so do those that come first": (lambda: tg.constant([2, np.float32(1)]), "float32", [2, 1]),
    "an array is a list to add_n": (lambda: tg.add_n(np.ones([3, 2])), "float64", [3, 3]),
    "a scalar adapts in scalar_mul": (
        lambda: tg.scalar_mul(0.5, np.array([1.0])),
        "float64",
        [0.5],
    ),
    "linspace from a float": (lambda: tg.linspace(0.5, 2, 4), "float32", [0.5, 1, 1.5, 2]),
    "linspace from an integer": (lambda: tg.linspace(0, 1, 3), "float64", [0, 0.5, 1]),
    "linspace with a name": (lambda: tg.linspace(0.0, 1.0, 3, "n", 0), "float32", [0, 0.5, 1]),
    "no truth values": (lambda: tg.logical_not([]), "bool", []),
    "the rank of no rows": (lambda: tg.linalg.matrix_rank(np.zeros([0, 3])), "int32", 0),
    "eigenvalues of Hermitian matrices": (
        lambda: tg.linalg.eigh(COMPLEX)[0],
        "complex128",
        [1, 3],
    ),
    "and alone": (lambda: tg.linalg.eigvalsh(COMPLEX), "complex128", [1, 3]),
    "means of integers in segments": (
        lambda: tg.math.segment_mean([1, 2, -3], [0, 0, 1]),
        "int32",
        [1, -3],
    ),
    "a clipped tensor keeps its dtype": (
        lambda: tg.clip_by_norm(tg.constant([3.0, 4.0], tg.bfloat16), tg.constant(5.0)),
        "bfloat16",
        [3, 4],
    ),
    "a bias takes the dtype": (
        lambda: tg.nn.bias_add([[1.0, 2.0]], np.array([1, 2])),
        "float32",
        [[2, 4]],
    ),
    "labels take the dtype of logits": (
        lambda: tg.nn.softmax_cross_entropy_with_logits([[1, 0]], np.zeros([1, 2])),
        "float64",
        [np.log(2)],
    ),
    "a weight for each class": (
        lambda: tg.nn.weighted_cross_entropy_with_logits(1.0, 0.0, np.float32([1, 2])),
        "float32",
        [np.log(2), 2 * np.log(2)],
    ),
    "a transform of real numbers": (lambda: tg.signal.fft([1.0, 0.0]), "complex64", [1, 1]),
    "and of integers": (lambda: tg.signal.rfft([1, 0]), "complex64", [1, 1]),
    "an axis of NumPy's": (
        lambda: tg.math.bincount([[1, 1], [0, 1]], axis=np.int64(0)),
        "int32",
        [1, 3],
    ),
    "out_type may be None": (lambda: tg.shape([[1, 2]], None), "int32", [1, 2]),
    "and a dtype": (lambda: tg.random.categorical([[0.0, -1e9]], 2, None), "int64", [[0, 0]]),
    "old and unused arguments": (
        lambda: tg.linalg.matvec([[2]], [3], False, False, True, True, "name"),
        "int32",
        [6],
    ),
    "the old name of an axis": (
        lambda: tg.math.l2_normalize([[3.0, 4.0]], dim=1),
        "float32",
        [[0.6, 0.8]],
    ),
}


def test_lists_numbers_and_arrays_give_what_they_give_in_tensorflow():
    found = [call() for call, _, _ in CALLS.values()]
    for name, y in zip(CALLS, found, strict=True):
        _, dtype, value = CALLS[name]
        assert y.dtype.name == dtype, name
        values, wanted = y.numpy().astype(complex), np.reshape(value, y.shape)
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-12, err_msg=name)


def test_a_transform_of_no_rows_has_the_columns_of_a_transform():
    assert tg.signal.rfft2d(tg.zeros([0, 3])).shape == [0, 2]
    assert tg.signal.irfft2d(tg.zeros([0, 3], tg.complex64)).shape == [0, 4]
    assert tg.signal.rfft(tg.zeros([2, 0])).shape == [2, 0]


@pytest.mark.parametrize("value", [3, np.int64(3), [0, 1]])
def test_a_number_is_no_truth_value(value):
    for reduce in (tg.reduce_all, tg.reduce_any):
        with pytest.raises(tg.errors.DTypeError, match="must be bool"):
            reduce(value)


def test_bad_indices_have_one_policy():
    assert tg.scatter_nd([[1]], [2], [3], "DEFAULT").numpy().tolist() == [0, 2, 0]
    for call in (
        lambda: tg.gather_nd([1, 2], [[0]], bad_indices_policy="IGNORE"),
        lambda: tg.tensor_scatter_nd_sub([1, 2], [[0]], [1], "ERROR"),
    ):
        with pytest.raises(tg.errors.TraceError, match="bad_indices_policy is"):
            call()


def test_accumulate_n_checks_what_is_declared():
    x = tg.constant([1.0, 2.0])
    assert tg.math.accumulate_n([x, x], [2], tg.float32).numpy().tolist() == [2, 4]
    with pytest.raises(tg.errors.ShapeError):
        tg.math.accumulate_n([x, x], [3])
    with pytest.raises(tg.errors.DTypeError):
        tg.math.accumulate_n([x, x], tensor_dtype=tg.float64)


def test_nests_without_types_match_by_places():
    add = tg.nest.map_structure(lambda x, y: x + y, [1, (2, 3)], (10, [20, 30]), check_types=False)
    assert add == [11, (22, 33)]
    tg.nest.assert_same_structure([1, {"a": (2,)}], (1, {"a": [2]}), check_types=False)
    for other in ([1], {"a": 1, "b": 2}, 1):
        with pytest.raises(ValueError, match="differ"):
            tg.nest.assert_same_structure((1, 2), other, check_types=False)
    with pytest.raises(ValueError, match="differ"):
        tg.nest.assert_same_structure([1], (1,))


def test_a_function_of_python_may_have_no_inputs(run):
    assert run(lambda: tg.py_function(lambda: tg.constant(2.0), None, tg.float32)).numpy() == 2
    assert run(lambda: tg.numpy_function(lambda: np.float32(3), Tout=tg.float32)).numpy() == 3


# Keras.


def test_metrics_make_weights_as_in_keras():
    metric = tg.metrics.Metric(name="m")
    found = metric.add_weight(name="count")
    assert (found.name, found.shape, found.trainable) == ("count", [], False)
    ones = metric.add_variable((2,), "ones", "int32", name="total")
    assert ones.numpy().tolist() == [1, 1] and ones.dtype == tg.int32


def test_layers_make_weights_as_in_keras():
    layer = tg.layers.Layer(name="a", dtype=None, activity_regularizer="l2", trainable=True)
    assert layer.add_weight([2], "ones", "float64").numpy().tolist() == [1, 1]
    assert layer.add_weight(dtype="int32").numpy() == 0
    assert (
        tg.layers.Layer(trainable=True).trainable and not tg.layers.Layer(trainable=False).trainable
    )


def test_inputs_of_keras():
    for spec in (
        tg.layers.Input((3,), 2),
        tg.layers.Input(shape=[3], batch_size=2, dtype=None),
        tg.layers.Input(batch_shape=(2, 3)),
    ):
        assert spec.shape == [2, 3] and spec.dtype == tg.float32
    for call in (lambda: tg.layers.Input(), lambda: tg.layers.Input([3], batch_shape=[2, 3])):
        with pytest.raises(tg.errors.TraceError, match="shape is"):
            call()


def test_initializers_of_keras():
    assert tg.initializers.Ones()([2], None).dtype == tg.float32
    make = tg.initializers.VarianceScaling(1.0, "fan_in", "uniform", 1, [0, 1], [2])
    largest = np.abs(make([10, 10, 2]).numpy()).max()
    assert 0.15 < largest <= (3 / 100) ** 0.5
    with pytest.raises(tg.errors.TraceError, match="both or neither"):
        tg.initializers.GlorotUniform(input_axes=[0])


def test_generators_copy_generators():
    one = tg.random.Generator.from_seed(1)
    other = tg.random.Generator(one)
    assert (one.normal([2]).numpy() == other.normal([2]).numpy()).all()
    with pytest.raises(tg.errors.DTypeError, match="both"):
        tg.random.Generator(one, state=[1, 2])


# Reductions.


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_the_deviation_of_complex_numbers_is_real(dtype, run):
    x = np.array([[1 + 2j, -1j, 3], [0.5, 2j, -2]], dtype)
    y = run(tg.math.reduce_std, tg.constant(x))
    assert y.dtype == tg.as_dtype(dtype).real_dtype
    np.testing.assert_allclose(y.numpy(), np.std(x), rtol=1e-6)


def test_empty_lists_are_truth_values_where_those_are_asked_for():
    assert tg.reduce_all([]).numpy() == np.True_
    assert tg.reduce_any([]).numpy() == np.False_


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_the_norm_of_integers_is_rounded_down(dtype, run):
    x = np.array([[3, 4], [1, 1], [9, 12]], dtype)
    y = run(lambda x: tg.math.reduce_euclidean_norm(x, axis=1), tg.constant(x))
    assert y.dtype == tg.as_dtype(dtype)
    assert y.numpy().tolist() == np.floor(np.sqrt((x.astype(float) ** 2).sum(1))).tolist()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "int64"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_types_of_an_index(name, dtype):
    x = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    y = getattr(tg, name)(tg.constant(x), 1, output_type=dtype)
    assert y.dtype == tg.as_dtype(dtype)
    assert y.numpy().tolist() == getattr(np, name)(x, 1).tolist()


# Products.


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_products_of_integers_in_a_floating_type(dtype, run):
    a, b = np.array([[100, 3], [7, 120]], dtype), np.array([[1, 2], [90, 4]], dtype)
    y = run(lambda a, b: tg.matmul(a, b, output_type=tg.float32), tg.constant(a), tg.constant(b))
    assert y.dtype == tg.float32
    assert y.numpy().tolist() == (a.astype(float) @ b.astype(float)).tolist()


def test_a_product_in_a_type_of_a_lower_kind_is_refused():
    x = tg.ones([2, 2])
    with pytest.raises(TypeError, match="asked for in int32, which is not wider"):
        tg.matmul(x, x, output_type=tg.int32)


# Shapes.


@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [([0, 6], [0, -1, 3], (0, 2, 3)), ([4, 0], [-1, 0], (4, 0)), ([0], [-1, 5], (0, 5))],
)
def test_what_is_left_of_a_tensor_without_elements(shape, wanted, result):
    assert tg.reshape(tg.zeros(shape), wanted).shape == result


def test_the_number_of_parts_is_checked():
    with pytest.raises(ValueError, match="4 parts are asked for, and there are 3 sizes"):
        tg.split(tg.range(10), [2, 2, 6], num=4)
    assert [len(x) for x in tg.split(tg.range(10), [2, 2, 6], num=3)] == [2, 2, 6]


@pytest.mark.parametrize(
    "clip", [lambda x, bound: tg.clip_by_value(x, 0.0, bound), tg.clip_by_norm]
)
def test_a_bound_does_not_make_a_tensor_larger(clip, run):
    x = tg.ones([2, 3, 1])
    with pytest.raises(ValueError, match=r"with the bounds the shape is f32.2,3,2"):
        run(clip, x, tg.constant([1.0, 2.0]))
    assert run(clip, x, tg.constant([[[0.5]], [[2.0]]])).shape == (2, 3, 1)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ([1, 2], None, None),
        ([1, 2], [1, 2, 3], None),
        ([1, 2], [1, 2], [1, 2]),
        ([None, 2, 3], [1, 1, 3], [None, None, 3]),
    ],
)
def test_what_two_shapes_have_in_common(one, other, both):
    one, other = tg.TensorShape(one), tg.TensorShape(other)
    expected = tg.TensorShape(both).dims
    assert one.most_specific_compatible_shape(other).dims == expected
    assert other.most_specific_compatible_shape(one).dims == expected
    assert one.most_specific_common_supertype([other, one]).dims == expected


def test_shapes_that_are_among_others():
    shape, open_shape, any_shape = map(tg.TensorShape, ([3, 2], [None, 2], None))
    assert shape.is_subtype_of(open_shape)
    assert open_shape.is_subtype_of(any_shape)
    assert not open_shape.is_subtype_of(shape)
    assert not any_shape.is_subtype_of(open_shape)
    assert not shape.is_subtype_of(tg.TensorShape([3, 2, 1]))
    assert shape.most_specific_common_supertype([3]) is None


@pytest.mark.parametrize(
    "check",
    [
        lambda shape: tg.TensorShape(None).assert_is_fully_defined(),
        lambda shape: tg.TensorShape([None]).assert_is_fully_defined(),
        lambda shape: shape.assert_same_rank([1]),
        lambda shape: shape.with_rank_at_least(3),
        lambda shape: shape.with_rank_at_most(1),
    ],
)
def test_shapes_of_another_rank_are_value_errors(check):
    with pytest.raises(ValueError, match=r"rank|not known"):
        check(tg.TensorShape([3, 2]))


def test_shapes_of_the_right_rank_pass():
    shape = tg.TensorShape([3, 2])
    shape.assert_is_fully_defined()
    shape.assert_same_rank([None, None])
    shape.assert_same_rank(None)
    assert shape.with_rank_at_least(2) == shape.with_rank_at_most(2) == shape


# Segments.


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_segment_numbers_are_sorted(name):
    with pytest.raises(tg.errors.InvalidArgumentError, match="sorted, and 0 comes after 1"):
        getattr(tg.math, f"segment_{name}")([1, 2, 3], [0, 1, 0])


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_segment_numbers_are_below_their_count(name):
    op = getattr(tg.math, f"unsorted_segment_{name}")
    with pytest.raises(tg.errors.InvalidArgumentError, match="number 2 is too large for 2"):
        op([1, 2, 3], [0, -1, 2], 2)
    assert op([1, 2, 3], [0, -1, 1], 2).numpy().tolist() == [1, 3]


# Errors of the class that TensorFlow's users catch.


def test_nothing_to_map_over_is_a_value_error():
    with pytest.raises(ValueError, match="elems has no tensors"):
        tg.map_fn(lambda x: x, [])


def test_a_body_of_another_structure_is_a_value_error():
    with pytest.raises(ValueError, match="the body returns"):
        tg.scan(lambda a, x: (a, -a), tg.range(3), tg.constant(1))


# Casts, searches, scatters.

REAL = ["float64", "float32", "float16", "bfloat16", "int32", "uint8"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("given", REAL[:4])
@pytest.mark.parametrize("wanted", REAL)
def test_a_cast_that_saturates_makes_infinities_finite(given, wanted):
    given, wanted = tg.as_dtype(given), tg.as_dtype(wanted)
    y = tg.saturate_cast(tg.constant([np.inf, -np.inf], given), wanted)
    low = max(float(given.min), float(wanted.min))
    high = min(float(given.max), float(wanted.max))
    assert y.dtype == wanted
    rounding = 0.01 if tg.bfloat16 in (given, wanted) else 1e-6
    np.testing.assert_allclose(y.numpy().astype(float), [high, low], rtol=rounding)


@pytest.mark.parametrize("wanted", ["complex64", "float32", "float16"])
def test_a_cast_of_complex_numbers_saturates_both_parts(wanted, run):
    x = np.array([1e300 + 2j, 3 - 1e300j, 1 + 1j], np.complex128)
    y = run(lambda x: tg.saturate_cast(x, wanted), tg.constant(x)).numpy()
    top = np.finfo(np.float16 if wanted == "float16" else np.float32).max
    assert str(y.dtype) == wanted
    assert y.real.tolist() == [top, 3, 1]
    if wanted == "complex64":
        assert y.imag.tolist() == [2, -top, 1]


def test_a_cast_of_real_numbers_to_complex_ones_saturates():
    y = tg.saturate_cast(tg.constant([1e300, 2.0], tg.float64), tg.complex64)
    assert y.numpy().tolist() == [np.finfo(np.float32).max, 2]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [1, 64, 65, 127, 128, 129, 1000])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_searches_in_sequences_of_any_length(length, side, dtype):
    draw = np.random.default_rng(length)
    rows = np.sort(draw.integers(0, 50, (2, length)), axis=1).astype(dtype)
    values = draw.integers(-2, 53, (2, 40)).astype(dtype)
    found = tg.searchsorted(rows, values, side=side, out_type=tg.int64)
    expected = [np.searchsorted(row, at, side) for row, at in zip(rows, values, strict=True)]
    assert found.dtype == tg.int64
    assert found.numpy().tolist() == np.stack(expected).tolist()


def test_a_search_in_a_loop_over_rows():
    rows = np.sort(np.random.default_rng(0).normal(size=(3, 100)), axis=1).astype(np.float32)
    values = np.linspace(-2, 2, 9, dtype=np.float32)
    found = tg.vectorized_map(lambda row: tg.searchsorted(row, values), tg.constant(rows))
    assert found.numpy().tolist() == [np.searchsorted(row, values).tolist() for row in rows]


def test_truth_values_are_scattered(run):
    found = run(lambda x: tg.scatter_nd([[3], [0], [3]], x, [5]), tg.constant([True, False, False]))
    assert found.numpy().tolist() == [False, False, False, True, False]


def test_updates_in_a_list_take_the_dtype_of_the_tensor():
    rows = [tg.range(2), tg.range(3, 5)]
    found = tg.tensor_scatter_nd_update(tg.zeros([3, 2]), [[2], [0]], rows)
    assert found.numpy().tolist() == [[3, 4], [0, 0], [0, 1]]


def test_matrices_of_truth_values():
    x = np.array([[True, False, True], [True, True, False]])
    assert tg.linalg.diag(x).numpy().tolist() == [np.diag(row).tolist() for row in x]
    found = tg.linalg.diag_part(x, k=(-1, 0)).numpy()
    assert found.tolist() == [[True, True], [True, False]]


# Items that not every path sets.


def _item_of_main(a):
    x = {"a": a}
    if a > 0:
        x["b"] = 1
    return x


def _item_of_else(a):
    x = {"a": {}}
    if a > 0:
        pass
    else:
        x["a"]["b"] = a
    return x


class _Holder:
    pass


def _attribute(a):
    holder = _Holder()
    if a > 0:
        holder.value = a
    return holder.value


@pytest.mark.parametrize("function", [_item_of_main, _item_of_else, _attribute])
@pytest.mark.parametrize("value", [1, -1])
def test_an_item_that_one_branch_sets_is_refused(function, value):
    with pytest.raises(ValueError, match="is set in only one branch of the `if`"):
        tg.function(function)(tg.constant(value))


def _item_of_loop(a):
    y = {}
    while a < 10:
        y["a"] = a
        a = a + 1
    return y


def test_an_item_that_a_loop_sets_is_refused_where_the_loop_does_not_run():
    assert tg.function(_item_of_loop)(tg.constant(3))["a"].numpy() == 9
    with pytest.raises(tg.errors.InvalidArgumentError, match="set by a loop that ran 0 times"):
        tg.function(_item_of_loop)(tg.constant(11))


@pytest.mark.parametrize("first", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("second", ["int32", "int64", "float32", "float64"])
def test_the_dtype_of_a_range_holds_all_bounds(first, second):
    order = ["int32", "int64", "float32", "float64"]
    found = tg.range(tg.constant(0, first), tg.constant(3, second))
    assert found.dtype.name == max(first, second, key=order.index)
    assert found.numpy().tolist() == [0, 1, 2]


def test_the_shape_of_a_number_has_integers():
    assert tg.convert_to_tensor(tg.TensorShape([])).dtype == tg.int32
    assert tg.constant(tg.constant(1.0).shape, tg.int64).dtype == tg.int64
    assert tg.convert_to_tensor(()).dtype == tg.float32


@pytest.mark.parametrize(
    ("value", "shape", "wanted"),
    [
        ([1, 2, 3, 4], (2, 2), [[1, 2], [3, 4]]),
        (np.array([[1], [2]]), (2, 2), [[1, 1], [2, 2]]),
        ([1, 2], (2, 2), [[1, 2], [1, 2]]),
        ([[7]], (2,), [7, 7]),
        (7, (), 7),
    ],
    ids=str,
)
def test_a_constant_initializer_takes_arrays(value, shape, wanted):
    made = tg.initializers.Constant(value)(shape)
    assert made.dtype == tg.float32
    assert made.numpy().tolist() == wanted
    with pytest.raises(tg.errors.ShapeError, match="elements, and the shape"):
        tg.initializers.Constant([1, 2, 3])((2, 2))


def test_initializers_have_the_names_of_tensorflow_too():
    assert tg.zeros_initializer is tg.initializers.Zeros
    assert tg.ones_initializer is tg.initializers.Ones
    assert tg.constant_initializer(5)([2]).numpy().tolist() == [5, 5]
    spread = tg.random_normal_initializer(stddev=0.0, mean=2.0)(shape=(2, 1), dtype="float64")
    assert spread.dtype == tg.float64 and spread.numpy().tolist() == [[2], [2]]
    drawn = tg.random_uniform_initializer(1.0, 2.0)([50]).numpy()
    assert 1 <= drawn.min() < drawn.max() <= 2


@pytest.mark.parametrize("value", [7, True, [1, 2]])
def test_softsign_is_of_floating_numbers(value, run):
    with pytest.raises(TypeError, match=r"softsign: the operand is .* only floating or complex"):
        run(lambda x: tg.nn.softsign(x), tg.constant(value))
    assert run(tg.nn.softsign, tg.constant(1.0, tg.float16)).dtype == tg.float16


def test_a_derivative_that_is_not_there_is_not_implemented():
    x = tg.ones([5, 2])
    with tg.GradientTape() as tape:
        tape.watch(x)
        q, _ = tg.linalg.qr(x, full_matrices=True)
    with pytest.raises(NotImplementedError, match="is not determined"):
        tape.gradient(q, x)


@pytest.mark.parametrize("losses", [[1.0, 2.0], [1, 2]])
def test_the_average_loss_of_no_examples_is_zero(losses, run):
    average = tg.nn.compute_average_loss
    assert run(lambda: average(losses, global_batch_size=0)).numpy() == 0
    assert run(lambda: average(losses, global_batch_size=6)).numpy() == 0.5
    assert run(lambda: average(tg.zeros([0]))).numpy() == 0
    with pytest.raises(ValueError, match=r"global_batch_size is i32\[1\]"):
        average(losses, global_batch_size=[2])


@pytest.mark.parametrize("dtype", [tg.float16, tg.bfloat16], ids=lambda dtype: dtype.name)
def test_an_inverse_of_16_bits_is_rounded_once(dtype, run):
    a = tg.constant([[1.5, 0.25], [0.125, 3.0]], dtype)
    inverse, adjoint = run(lambda x: (tg.linalg.inv(x), tg.linalg.inv(x, adjoint=True)), a)
    assert inverse.dtype == dtype
    exact = tg.cast(np.linalg.inv(a.numpy().astype(np.float64)), dtype)
    assert inverse.numpy().tolist() == exact.numpy().tolist()
    assert adjoint.numpy().tolist() == exact.numpy().T.tolist()


@pytest.mark.parametrize("make", [tg.constant, tg.convert_to_tensor, tg.Variable])
def test_arrays_of_a_lower_kind_whose_numbers_the_dtype_has(make):
    for array, dtype in [
        (np.ones([2, 2]), tg.int32),
        (np.array([0.0, 255.0], np.float32), tg.uint8),
        (np.array([1.5 + 0j]), tg.float32),
        (np.array([0, 1]), tg.bool),
        (np.zeros([0]), tg.int64),
    ]:
        made = make(array, dtype=dtype)
        assert made.dtype is dtype and made.numpy().tolist() == array.real.tolist()
    for array, dtype in [
        (np.array([1.0, 1.5]), tg.int32),
        (np.array([256.0]), tg.uint8),
        (np.array([np.nan]), tg.int32),
        (np.array([np.inf]), tg.int64),
        (np.array([1 + 1j]), tg.float32),
        ([1.0, 2.0], tg.int32),
    ]:
        with pytest.raises(TypeError, match="does not fit in"):
            make(array, dtype=dtype)
    with pytest.raises(TypeError, match="does not fit in int32"):
        tg.constant([1]) + np.ones([1])
