"""The public mathematics against NumPy and SciPy: values, dtypes, shapes, errors.

What takes shapes runs three times: at top level, in a function, and in a function whose first size
is open.
"""

import enum
import math
import operator
import re

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import tracegraph as tg

# One helper wraps many lambdas of one line, which looks like decorating in a loop.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(7)


def sample(*shape, dtype=np.float32, low=-2.0, high=2.0):
    return RANDOM.uniform(low, high, shape).astype(dtype)


def close(actual, expected, **tolerance):
    """Equal values, shapes and dtypes; a list is compared element by element."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            close(a, e, **tolerance)
        return
    expected = np.asarray(expected)
    value = actual.numpy()
    assert np.shape(value) == expected.shape
    assert np.asarray(value).dtype == expected.dtype
    np.testing.assert_allclose(value, expected, **{"rtol": 2e-5, "atol": 1e-6, **tolerance})


@pytest.fixture(params=["top level", "function", "open sizes"])
def run(request):
    """Returns `run(fn, *arrays)`: fn of tensors, as it is, or traced, or traced with open sizes."""
    if request.param == "top level":
        return lambda fn, *xs: fn(*map(tg.constant, xs))
    if request.param == "function":
        return lambda fn, *xs: tg.function(fn)(*map(tg.constant, xs))

    def with_open_sizes(fn, *xs):
        specs = [
            tg.TensorSpec(["n" if size == xs[0].shape[0] else size for size in x.shape], x.dtype)
            if x.ndim
            else tg.TensorSpec([], x.dtype)
            for x in map(np.asarray, xs)
        ]
        return tg.function(fn, input_signature=specs)(*map(tg.constant, xs))

    return with_open_sizes


# ---------------------------------------------------------------- constants and creation


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, tg.int32),
        (1.5, tg.float32),
        (True, tg.bool),
        (1j, tg.complex128),
        ([1, 2], tg.int32),
        ([1, 2.5], tg.float32),
        (np.float64(1), tg.float64),
        (np.arange(3), tg.int64),
        (np.ones(2, np.float16), tg.float16),
        ([], tg.float32),
        (range(3), tg.int32),
    ],
)
def test_constant_has_the_dtype_of_its_value(value, dtype):
    assert tg.constant(value).dtype == dtype


def test_constant_converts_to_a_dtype():
    assert tg.constant(1, tg.float64).dtype == tg.float64
    assert tg.constant(np.ones(2), "float32").dtype == tg.float32
    with pytest.raises(TypeError, match=r"1\.5"):
        tg.constant(1.5, tg.int32)


def test_constant_takes_a_shape():
    close(tg.constant(3, shape=[2, 2]), np.full((2, 2), 3, np.int32))
    close(tg.constant([1, 2, 3, 4], shape=[2, 2]), np.array([[1, 2], [3, 4]], np.int32))


def test_constant_copies_its_array():
    array = np.ones(3, np.float32)
    tensor = tg.constant(array)
    array[:] = 7
    close(tensor, np.ones(3, np.float32))


def test_constant_of_tensors_stacks_them(run):
    x = sample(3)
    close(run(lambda x: tg.constant([x, 2 * x]), x), np.stack([x, 2 * x]))


def test_rows_of_different_lengths_are_an_error():
    with pytest.raises(tg.errors.ShapeError, match="length"):
        tg.constant([[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("bad", ["text", object(), None, {1: 2}])
def test_what_is_no_tensor_is_an_error(bad):
    with pytest.raises(tg.errors.DTypeError):
        tg.constant(bad)


@pytest.mark.parametrize("shape", [[2, 3], (), 3, [0, 2], np.array([2, 3])])
def test_zeros_and_ones(shape):
    sizes = tuple(np.atleast_1d(shape)) if not isinstance(shape, tuple) else shape
    close(tg.zeros(shape), np.zeros(sizes, np.float32))
    close(tg.ones(shape, tg.int64), np.ones(sizes, np.int64))
    close(tg.fill(shape, 7.0), np.full(sizes, 7, np.float32))


@pytest.mark.parametrize("shape", [[float("nan")], [2.5], [-1], ["x"], [True], 2.5])
def test_a_bad_shape_is_an_error(shape):
    with pytest.raises((tg.errors.ShapeError, TypeError), match=r"\n"):
        tg.zeros(shape)


def test_zeros_of_an_open_size(run):
    x = sample(4, 2)
    close(
        run(lambda x: tg.zeros([x.shape[0], 3]) + tg.ones(x.shape)[:, :1], x), np.ones((4, 3), "f")
    )


def test_like(run):
    x = sample(4, 2)
    close(run(tg.zeros_like, x), np.zeros_like(x))
    close(run(lambda x: tg.ones_like(x, tg.int32), x), np.ones((4, 2), np.int32))


@pytest.mark.parametrize("arguments", [(3,), (2, 4), (3, 2)])
def test_eye(arguments):
    close(tg.eye(*arguments), np.eye(*arguments, dtype=np.float32))
    close(
        tg.eye(*arguments, batch_shape=[2], dtype=tg.int32),
        np.stack([np.eye(*arguments, dtype=np.int32)] * 2),
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0,), (3, 3), (200,), (0.0, 1.0, 0.25), (2.5,)],
)
def test_range(run, arguments):
    floating = any(isinstance(a, float) for a in arguments)
    expected = np.arange(*arguments, dtype=np.float32 if floating else np.int32)
    close(run(lambda x: tg.range(*arguments) + tg.cast(x, expected.dtype), np.int32(0)), expected)


def test_range_over_an_open_size(run):
    close(run(lambda x: tg.range(x.shape[0]), sample(5)), np.arange(5, dtype=np.int32))
    close(run(lambda x: tg.range(1, x.shape[0], 2), sample(6)), np.arange(1, 6, 2, dtype=np.int32))


@pytest.mark.parametrize(
    ("bounds", "count"), [((0.0, 0.3, 0.1), 3), ((-2.0, 1.0, 3 / 800), 800), ((0.0, 1.0, 0.1), 10)]
)
def test_a_range_of_floats_is_counted_in_their_type(bounds, count):
    """0.3 / 0.1 is 3 in float32; the exact quotient of the two is above it."""
    numbers = np.float32(bounds)
    of_run = tg.function(tg.range)(*map(tg.constant, numbers))
    for found in (tg.range(*bounds), tg.range(*numbers), of_run):
        assert found.shape == (count,)
        np.testing.assert_allclose(found, numbers[0] + numbers[2] * np.arange(count), rtol=1e-6)


def test_a_range_whose_bounds_are_in_the_wrong_order_is_empty():
    f = tg.function(
        lambda x: tg.range(5, x.shape[0]), input_signature=[tg.TensorSpec([None], tg.float32)]
    )
    for n in (2, 5, 7):
        expected = np.arange(5, n, dtype=np.int32)
        close(f(tg.ones([n])), expected)
        close(tg.range(5, n), expected)
    close(tg.range(2.0, 5.0, -1.0), np.arange(2.0, 5.0, -1.0, np.float32))


def test_range_without_step_is_an_error():
    with pytest.raises(ValueError, match="step"):
        tg.range(0, 3, 0)


@pytest.mark.parametrize("num", [1, 2, 5, 201])
def test_linspace(num):
    close(tg.linspace(-10.0, 10.0, num), np.linspace(-10, 10, num, dtype=np.float32))
    close(
        tg.linspace(tg.constant([0.0, 1.0]), tg.constant([1.0, 3.0]), num, axis=-1),
        np.linspace([0.0, 1.0], [1.0, 3.0], num, axis=-1).astype(np.float32),
    )


def test_linspace_of_integers_is_float64():
    assert tg.linspace(0, 10, 3).dtype == tg.float64


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    indices = np.array([[0, 2], [3, -1]])
    expected = np.moveaxis((indices[..., None] == np.arange(3)), -1, axis)
    close(tg.one_hot(indices, 3, axis=axis), expected.astype(np.float32))
    close(tg.one_hot(indices, 3, 5, 2, axis=axis), np.where(expected, 5, 2).astype(np.int32))


def test_sequence_mask():
    close(tg.sequence_mask([1, 3]), np.array([[1, 0, 0], [1, 1, 1]], bool))
    close(tg.sequence_mask([1, 3], 2, tg.float32), np.array([[1, 0], [1, 1]], np.float32))


def test_shape_size_and_rank(run):
    x = sample(4, 3)
    close(run(tg.shape, x), np.array([4, 3], np.int32))
    close(run(lambda x: tg.shape(x, tg.int64)[0] * 2, x), np.int64(8))
    close(run(tg.size, x), np.int32(12))
    close(run(tg.rank, x), np.int32(2))
    close(run(lambda x: tg.reshape(x, [tg.shape(x)[0], 1, -1]), x), x[:, None])


def test_cast(run):
    x = sample(4)
    close(run(lambda x: tg.cast(x, tg.int32), x), x.astype(np.int32))
    close(run(lambda x: tg.cast(x, tg.bool), x), x.astype(bool))
    close(run(lambda x: tg.cast(x, "complex64"), x), x.astype(np.complex64))


def test_cast_to_the_own_dtype_is_the_tensor_itself():
    x = tg.constant(1.0)
    assert tg.cast(x, tg.float32) is x


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_saturate_cast(dtype):
    x = np.array([-1e6, -3.7, 3.7, 1e6], np.float32)
    limits = np.iinfo(dtype)
    close(tg.saturate_cast(x, dtype), np.clip(x, limits.min, limits.max).astype(dtype))


# ---------------------------------------------------------------- elementwise

UNARY = {
    "abs": (np.abs, -2, 2),
    "acos": (np.arccos, -0.9, 0.9),
    "acosh": (np.arccosh, 1.1, 3),
    "asin": (np.arcsin, -0.9, 0.9),
    "asinh": (np.arcsinh, -2, 2),
    "atan": (np.arctan, -2, 2),
    "atanh": (np.arctanh, -0.9, 0.9),
    "ceil": (np.ceil, -2, 2),
    "cos": (np.cos, -2, 2),
    "cosh": (np.cosh, -2, 2),
    "digamma": (scipy.special.digamma, 0.5, 3),
    "erf": (scipy.special.erf, -2, 2),
    "erfc": (scipy.special.erfc, -2, 2),
    "erfinv": (scipy.special.erfinv, -0.9, 0.9),
    "exp": (np.exp, -2, 2),
    "expm1": (np.expm1, -2, 2),
    "floor": (np.floor, -2, 2),
    "lgamma": (scipy.special.gammaln, 0.5, 3),
    "log": (np.log, 0.1, 3),
    "log1p": (np.log1p, -0.5, 3),
    "log_sigmoid": (lambda x: -np.logaddexp(0, -x), -2, 2),
    "negative": (np.negative, -2, 2),
    "reciprocal": (np.reciprocal, 0.5, 2),
    "rint": (np.rint, -2, 2),
    "round": (np.rint, -2, 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.5, 2),
    "sigmoid": (scipy.special.expit, -2, 2),
    "sign": (np.sign, -2, 2),
    "sin": (np.sin, -2, 2),
    "sinh": (np.sinh, -2, 2),
    "softplus": (lambda x: np.logaddexp(0, x), -2, 2),
    "softsign": (lambda x: x / (1 + np.abs(x)), -2, 2),
    "sqrt": (np.sqrt, 0.5, 2),
    "square": (np.square, -2, 2),
    "tan": (np.tan, -1, 1),
    "tanh": (np.tanh, -2, 2),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_functions_of_one_tensor(dtype):
    tolerance = {"rtol": 1e-11} if dtype == np.float64 else {}
    cases = []
    for name, (reference, low, high) in UNARY.items():
        x = sample(3, 4, dtype=dtype, low=low, high=high)
        cases.append((name, getattr(tg.math, name)(x), reference(x).astype(dtype)))
    for name, found, expected in cases:
        close(found, expected, err_msg=name, **tolerance)


def test_functions_of_complex_numbers():
    x = sample(4, dtype=np.float64) + 1j * sample(4, dtype=np.float64)
    names = ["exp", "log", "sqrt", "sin", "cos", "tanh", "square", "abs"]
    found = [getattr(tg.math, name)(x) for name in names]
    for name, y in zip(names, found, strict=True):
        close(y, getattr(np, name)(x), rtol=1e-11, err_msg=name)


def test_parts_of_complex_numbers():
    x = np.array([3 + 4j, -1j])
    close(tg.math.real(x), x.real)
    close(tg.math.imag(x), x.imag)
    close(tg.math.conj(x), x.conj())
    close(tg.math.angle(x), np.angle(x))
    close(tg.complex(x.real, x.imag), x)
    close(tg.math.real([1.0]), np.float32([1]))


def test_steps_of_integers_are_the_integers():
    close(tg.floor([1, 2]), np.int32([1, 2]))


def test_sixteen_bits():
    for dtype in (tg.float16, tg.bfloat16):
        y = tg.exp(tg.constant([0.0, 1.0], dtype))
        assert y.dtype == dtype
        np.testing.assert_allclose(y.numpy().astype(np.float32), [1, math.e], rtol=1e-2)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "mod": np.mod,
    "truncatemod": np.fmod,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "atan2": np.arctan2,
    "squared_difference": lambda x, y: (x - y) ** 2,
    "xlogy": scipy.special.xlogy,
    "xlog1py": scipy.special.xlog1py,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def test_functions_of_two_tensors(run):
    x, y = sample(3, 4, low=0.5), sample(3, 4, low=0.5)
    found = run(lambda x, y: [getattr(tg.math, name)(x, y) for name in BINARY], x, y)
    for (name, reference), one in zip(BINARY.items(), found, strict=True):
        close(one, reference(x, y), err_msg=name)


INTEGER = ("add", "subtract", "multiply", "floordiv", "floormod", "truncatemod", "maximum", "pow")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_functions_of_two_integers(dtype):
    x, y = np.array([7, 9, 2], dtype), np.array([2, 5, 3], dtype)
    found = [getattr(tg.math, name)(x, y) for name in INTEGER]
    for name, one in zip(INTEGER, found, strict=True):
        close(one, BINARY[name](x, y).astype(dtype), err_msg=name)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8])
def test_powers_of_integers_wrap_as_products_do(dtype, run):
    exponents = [0, 1, 5, 63, 64, 65, 100, int(np.iinfo(dtype).max)]
    x, y = (a.ravel() for a in np.meshgrid(np.arange(-7, 8), exponents))
    x, y = x.astype(dtype), y.astype(dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(tg.pow, tg.constant(x), tg.constant(y)), x**y)


def test_signs_of_quotients():
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    close(
        [
            tg.math.floordiv(x, y),
            tg.math.floormod(x, y),
            tg.truncatediv(x, y),
            tg.truncatemod(x, y),
        ],
        [x // y, x % y, np.int32([3, -3, -3, 3]), np.fmod(x, y)],
    )


@settings(max_examples=2, deadline=None)
@given(
    st.lists(
        arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3),
        min_size=20,
        max_size=20,
    )
)
def test_broadcasting_is_numpys(cases):
    pairs = [[sample(*shape) for shape in shapes.input_shapes] for shapes in cases]
    sums = [tg.constant(x) + tg.constant(y) for x, y in pairs]
    chosen = [tg.where(tg.constant(x) > 0, x, tg.constant(y)) for x, y in pairs]
    for (x, y), total, choice in zip(pairs, sums, chosen, strict=True):
        close(total, x + y)
        close(choice, np.where(x > 0, x, y))


def test_shapes_that_do_not_broadcast_are_an_error():
    with pytest.raises(tg.errors.ShapeError) as error:
        tg.ones([2, 3]) + tg.ones([4])
    assert "f32[2,3]" in str(error.value) and "f32[4]" in str(error.value)
    assert "test_math.py" in str(error.value)


@pytest.mark.parametrize(
    ("x", "y", "dtype"),
    [
        (np.float32(1), np.float64(2), tg.float64),
        (np.int32(1), np.int64(2), tg.int64),
        (np.uint8(1), np.int8(2), tg.int16),
        (np.float16(1), np.float32(2), tg.float32),
        (np.float32(1), np.complex64(2), tg.complex64),
        (np.complex64(1), np.complex128(2), tg.complex128),
        (np.float64(1), np.complex64(2), tg.complex128),
    ],
)
def test_tensors_of_one_kind_promote(x, y, dtype):
    assert (tg.constant(x) + tg.constant(y)).dtype == dtype
    assert (tg.constant(y) * tg.constant(x)).dtype == dtype


@pytest.mark.parametrize("other", [1, 1.5, np.float64(1.5), np.ones(2)])
def test_numbers_and_arrays_adapt_to_the_tensor(other):
    x = tg.constant([1.0, 2.0])
    assert (x + other).dtype == (other + x).dtype == tg.float32
    assert isinstance(other * x, tg.Tensor)


ON_THE_LEFT = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
    *(operator.matmul, divmod),
]


@pytest.mark.parametrize("kind", [tg.constant, tg.Variable])
def test_operators_of_an_array_and_a_tensor_give_tensors(kind):
    pairs = []
    for operate in ON_THE_LEFT:
        array = np.array([[7, 2], [3, 5]], np.int32)
        other = np.array([[1, 2], [2, 3]], np.int32)
        if operate in (operator.and_, operator.or_, operator.xor):
            array, other = array > 3, other > 1
        for left in (array, array[0, 0]) if operate is not operator.matmul else (array,):
            found, expected = operate(left, kind(other)), operate(left, other)
            one = zip(found, expected, strict=True) if operate is divmod else [(found, expected)]
            pairs += [(operate, *pair) for pair in one]
    for operate, tensor, value in pairs:
        assert isinstance(tensor, tg.Tensor), operate
        np.testing.assert_allclose(tensor.numpy(), value, rtol=1e-6, err_msg=str(operate))


@pytest.mark.parametrize("kind", [tg.constant, tg.Variable, lambda x: tg.constant(x) + 0.0])
def test_in_place_operators_write_into_the_array(kind):
    x = kind([1.0, 2.0])
    total = name = np.zeros(2)
    name += x
    name *= x
    np.add(total, x, out=total)
    assert name is total
    assert total.tolist() == [2.0, 6.0]


def test_functions_of_numpy_take_the_values():
    x, y = tg.constant([1.0, 2.0]), np.zeros(2)
    assert type(np.sin(x)) is np.ndarray and type(np.add(x, x)) is np.ndarray
    assert np.add.reduce(x) == np.sum(tg.Variable(x)) == 3.0
    np.add.at(y, [1, 1], x)
    assert y.tolist() == [0.0, 3.0]
    assert np.multiply.outer(y, x).tolist() == [[0.0, 0.0], [3.0, 6.0]]
    assert np.add(y, y, where=x > 1.0, out=np.ones(2)).tolist() == [1.0, 6.0]


def test_integers_that_fit_are_narrowed():
    x = tg.constant([1, 2], tg.uint8)
    for other in (np.array([0, 255]), np.array([255, 0], np.uint64), np.int64(255), [255, 0]):
        assert tg.maximum(x, other).numpy().max() == 255
    assert tg.constant(np.array([], np.int64), tg.int8).shape == [0]
    assert tg.constant(np.array([-128, 127]), tg.int8).numpy().tolist() == [-128, 127]
    assert tg.cast(np.array([300]), tg.uint8).numpy().tolist() == [44]  # which asks for it


@pytest.mark.parametrize("other", [1e300, [1e300], np.array([1e300]), np.array([1e300 + 0j])])
def test_floats_beyond_the_range_are_infinite(other):
    dtype = tg.complex64 if np.iscomplexobj(other) else tg.float32
    assert np.isinf(tg.constant(other, dtype).numpy()).all()
    assert np.isinf((tg.constant([1.0], dtype) * other).numpy()).all()


class Level(enum.IntEnum):
    HIGH = 2


class Length(float):
    """A number with a unit, say."""


@pytest.mark.parametrize(
    ("number", "dtype"), [(Level.HIGH, tg.int32), (Length(2.0), tg.float32)], ids=["int", "float"]
)
def test_numbers_of_a_class_of_their_own(number, dtype):
    x = tg.constant([1.0, 3.0])
    for value in (tg.constant(number), tg.Variable(number), tg.constant([number])[0]):
        assert value.dtype is dtype and value.numpy() == 2
    assert (x * number).numpy().tolist() == (number * x).numpy().tolist() == [2.0, 6.0]
    assert tg.function(lambda x, k: x * k)(x, number).numpy().tolist() == [2.0, 6.0]
    declared = tg.function(lambda k: k * 2, input_signature=[tg.TensorSpec([], dtype)])
    assert declared(number).numpy() == 4


def test_an_integer_tensor_takes_no_float():
    with pytest.raises(TypeError, match=r"tg\.cast"):
        tg.constant(1) + 1.5
    with pytest.raises(TypeError, match=r"tg\.cast"):
        tg.constant(1) + tg.constant(1.5)


def test_true_division_of_integers_is_float64():
    close(tg.constant(3) / 2, np.float64(1.5))
    close(tg.constant([3], tg.int8) / tg.constant([2], tg.int8), np.float32([1.5]))


@pytest.mark.parametrize("exponent", [2, 3, -1, -2, 1, 0, 2.0, 0.5, 1.5, 100, 0.0])
def test_powers_with_python_exponents(exponent):
    x = sample(4, low=0.5, high=1.5)
    close(tg.pow(x, exponent), x**exponent, rtol=1e-4)
    close(tg.constant(x) ** exponent, x**exponent, rtol=1e-4)


def test_whole_exponents_are_part_of_the_graph():
    text = tg.function(lambda x: x**2 + x**3.0 + x**0.5).get_concrete_function(
        tg.TensorSpec([], tg.float32)
    )
    text = text.graph.as_text()
    assert "integer_pow<exponent=2>" in text and "integer_pow<exponent=3>" in text
    assert "sqrt" in text


def test_powers_of_negative_numbers_and_integers():
    close(tg.pow([-2.0, 3.0], 3), np.float32([-8, 27]))
    close(tg.pow(2, [1, 2, 3]), np.int32([2, 4, 8]))
    close(tg.constant(3) ** 0, np.int32(1))
    with pytest.raises((ValueError, TypeError), match="power -1"):
        tg.constant(2) ** -1


def test_safe_products_and_quotients():
    inf, nan = np.inf, np.nan
    close(tg.math.divide_no_nan([1.0, 3.0, 0.0], [0.0, 2.0, 0.0]), np.float32([0, 1.5, 0]))
    close(tg.math.multiply_no_nan([inf, nan, 3.0], [0.0, 0.0, 2.0]), np.float32([0, 0, 6]))
    close(tg.math.xdivy([0.0, 3.0], [0.0, 2.0]), np.float32([0, 1.5]))
    close(tg.math.xlogy([0.0, 2.0], [0.0, 1.0]), np.float32([0, 0]))


@pytest.mark.parametrize(
    ("function", "derivative", "bad"),
    [
        (tg.math.xlogy, np.log, [0.0, -1.0, np.inf, np.nan]),
        (tg.math.xlog1py, np.log1p, [-1.0, -2.0, np.inf, np.nan]),
        (tg.math.xdivy, lambda y: 1 / y, [0.0, np.nan]),
    ],
    ids=["xlogy", "xlog1py", "xdivy"],
)
def test_derivatives_of_products_where_a_factor_is_zero(function, derivative, bad):
    y = np.float32([0.5, 2.0, *bad])
    by_x, by_y = tg.grad(lambda x, y: tg.reduce_sum(function(x, y)), (0, 1))(np.zeros_like(y), y)
    np.testing.assert_allclose(by_x, [*derivative(y[:2]), *[0.0] * len(bad)], rtol=1e-6)
    np.testing.assert_array_equal(by_y, np.zeros(len(y)))
    np.testing.assert_array_equal(function(np.zeros_like(y), y), np.zeros(len(y)))


def test_truth():
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    for name in ("logical_and", "logical_or", "logical_xor"):
        close(getattr(tg.math, name)(a, b), getattr(np, name)(a, b))
    close(tg.logical_not(a), ~a)
    with pytest.raises(TypeError, match="bool"):
        tg.logical_and([1], [0])


def test_tests_of_numbers():
    x = np.array([1, np.inf, -np.inf, np.nan], np.float32)
    close(tg.math.is_finite(x), np.isfinite(x))
    close(tg.math.is_nan(x), np.isnan(x))
    close(tg.math.is_inf(x), np.isinf(x))


def test_clipping():
    x = sample(5)
    close(tg.clip_by_value(x, -1.0, 1.0), x.clip(-1, 1))
    norm = np.linalg.norm(x)
    close(tg.clip_by_norm(x, 0.5), x * 0.5 / norm)
    close(tg.clip_by_norm(x, 100.0), x)
    close(tg.clip_by_norm(np.zeros(3, np.float32), 1.0), np.zeros(3, np.float32))
    y = sample(2, 3)
    both = math.hypot(norm, np.linalg.norm(y))
    clipped, found = tg.clip_by_global_norm([x, None, y], 0.5)
    assert clipped[1] is None
    close(found, np.float32(both))
    close([clipped[0], clipped[2]], [x * np.float32(0.5 / both), y * np.float32(0.5 / both)])


def test_gradient_of_clip_by_norm_at_zero_is_finite():
    x = tg.Variable([0.0, 0.0])
    with tg.GradientTape() as tape:
        y = tg.clip_by_norm(x, 1.0)
    close(tape.gradient(y, x), np.float32([1, 1]))


# ---------------------------------------------------------------- operators


def test_operators_of_python(run):
    x, y = sample(3, 3, low=0.5), sample(3, 3, low=0.5)

    def compute(x, y):
        return [x + y, x - y, x * y, x / y, x // y, x % y, x**y, x @ y, -x, +x, abs(x)]

    expected = [x + y, x - y, x * y, x / y, x // y, x % y, x**y, x @ y, -x, x, abs(x)]
    close(run(compute, x, y), expected, rtol=1e-4)


def test_reflected_operators(run):
    x = sample(3, low=0.5)

    def compute(x):
        return [1 + x, 1 - x, 2 * x, 1 / x, 2 // x, 2 % x, 2**x, np.float32([1, 2, 3]) - x]

    expected = [1 + x, 1 - x, 2 * x, 1 / x, 2 // x, 2 % x, 2**x, np.float32([1, 2, 3]) - x]
    close(run(compute, x), expected)


def test_operators_of_truth_and_bits():
    a, b = np.array([1, 0], bool), np.array([1, 1], bool)
    x, y = tg.constant(a), tg.constant(b)
    close([x & y, x | y, x ^ y, ~x], [a & b, a | b, a ^ b, ~a])
    i, j = tg.constant([6]), tg.constant([3])
    close([i & j, i | j, i ^ j, ~i], [np.int32([k]) for k in (2, 7, 5, -7)])


def test_comparisons_of_python():
    x, y = sample(4), sample(4)
    a, b = tg.constant(x), tg.constant(y)
    close(
        [a < b, a <= b, a > b, a >= b, a == b, a != b],
        [x < y, x <= y, x > y, x >= y, x == y, x != y],
    )
    assert (a == None) is False and (a != None) is True  # noqa: E711
    assert (a == "text") is False


def test_an_array_on_the_left_comes_to_the_tensor():
    x = tg.constant([1.0, 2.0])
    for y in (
        np.ones(2) + x,
        np.ones(2) * x,
        np.float64(1) + x,
        np.ones(2) == x,
        np.ones((1, 2)) @ x[:, None],
    ):
        assert isinstance(y, tg.Tensor)


def test_length_and_iteration(run):
    x = sample(3, 2)
    assert len(tg.constant(x)) == 3
    close([row * 2 for row in tg.constant(x)], list(x * 2))
    with pytest.raises(TypeError, match="scalar"):
        len(tg.constant(1.0))
    with pytest.raises(TypeError, match="scalar"):
        iter(tg.constant(1.0))

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def loop(x):
        return list(x)

    with pytest.raises(tg.errors.TraceError, match="length"):
        loop(tg.ones([3]))


def test_iteration_unrolls_in_a_function():
    @tg.function(autograph=False)
    def total(x):
        result = 0.0
        for row in x:
            result = result + row
        return result

    x = sample(3, 2)
    close(total(tg.constant(x)), x.sum(0))


def test_properties():
    x = tg.zeros([2, 3])
    assert (x.ndim, x.rank, x.size, x.shape) == (2, 2, 6, (2, 3))
    assert x.T.shape == (3, 2) and x.get_shape() == x.shape


def test_variables_have_the_operators():
    v = tg.Variable([1.0, 2.0])
    close(
        [v + 1, 2 * v, v @ [[1.0], [1.0]] if False else v**2, -v, v[0]],
        [np.float32(a) for a in ([2, 3], [2, 4], [1, 4], [-1, -2], 1)],
    )
    assert v.shape == (2,) and len(v) == 2 and v.size == 2
    close(v == 1.0, np.array([True, False]))


def test_hash_is_identity():
    x, y = tg.constant(1.0), tg.constant(1.0)
    assert len({x, y, x}) == 2


# ---------------------------------------------------------------- reductions

REDUCTIONS = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_std": np.std,
    "reduce_variance": np.var,
    "reduce_logsumexp": scipy.special.logsumexp,
    "reduce_euclidean_norm": lambda x, axis, keepdims: np.sqrt((x**2).sum(axis, keepdims=keepdims)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", [0, 1])
def test_reductions(part):
    """Half of the ways to call them, with every function, axis and value of `keepdims`."""
    x, axes = sample(2, 3, 4), [None, 0, -1, (0, 2), [1], ()]
    calls = [
        (name, axis, (i + k + part) % 2 == 0)
        for i, name in enumerate(REDUCTIONS)
        for k, axis in enumerate(axes)
    ]

    @tg.function
    def every(x):
        return [getattr(tg.math, name)(x, axis, keepdims) for name, axis, keepdims in calls]

    for (name, axis, keepdims), one in zip(calls, every(x), strict=True):
        key = tuple(axis) if isinstance(axis, list) else axis
        expected = REDUCTIONS[name](x, axis=key, keepdims=keepdims).astype(np.float32)
        close(one, expected, rtol=1e-4, err_msg=f"{name}, {axis}, {keepdims}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_std"])
def test_reductions_in_functions(run, name):
    x = sample(5, 3)
    close(run(lambda x: getattr(tg.math, name)(x, 0), x), REDUCTIONS[name](x, axis=0), rtol=1e-4)


def test_reductions_of_truth():
    x = np.array([[True, False], [True, True]])
    close(
        [tg.reduce_all(x, 1), tg.reduce_any(x, 0), tg.reduce_all(x)], [x.all(1), x.any(0), x.all()]
    )


def test_mean_of_integers_is_an_integer():
    close(tg.reduce_mean([1, 2, 4]), np.int32(2))
    close(tg.reduce_mean([-1, -2, -4]), np.int32(-2))
    close(tg.reduce_mean(np.full(300, 200, np.uint8)), np.uint8(200))


def test_mean_of_sixteen_bits_does_not_overflow():
    assert tg.reduce_mean(tg.fill([1000], tg.constant(1000.0, tg.float16))).numpy() == 1000


def test_empty_reductions():
    empty = np.zeros((0, 2), np.float32)
    close(tg.reduce_sum(empty, 0), np.zeros(2, np.float32))
    close(tg.reduce_max(empty, 0), np.full(2, -np.inf, np.float32))
    close(tg.reduce_logsumexp(empty, 0), np.full(2, -np.inf, np.float32))


def test_logsumexp_of_extremes():
    close(
        tg.reduce_logsumexp([[1e4, 1e4], [-1e4, -1e4]], 1),
        np.float32([1e4 + np.log(2), np.log(2) - 1e4]),
    )
    close(tg.reduce_logsumexp([-np.inf, -np.inf]), np.float32(-np.inf))
    close(tg.reduce_logsumexp([np.inf, 0.0]), np.float32(np.inf))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("ord", ["euclidean", 1, 2, 3, np.inf])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_norms_of_vectors(ord, axis):
    x = sample(3, 4)
    order = None if ord == "euclidean" else ord
    flat, place = (x.reshape(-1), None) if axis is None else (x, axis)
    close(tg.norm(x, ord, axis), np.linalg.norm(flat, order, place))


@pytest.mark.parametrize(("ord", "order"), [("fro", "fro"), (1, 1), (np.inf, np.inf)])
def test_norms_of_matrices(ord, order):
    x = sample(2, 3, 4)
    close(tg.norm(x, ord, [-2, -1]), np.linalg.norm(x, order, (-2, -1)))
    close(tg.norm(x, ord, [1, 2], keepdims=True), np.linalg.norm(x, order, (1, 2), keepdims=True))


def test_norm_of_no_order_is_an_error():
    with pytest.raises(ValueError, match="order"):
        tg.norm([1.0], ord="nuclear")


def test_positions_of_extremes(run):
    x = sample(5, 3)
    close(run(tg.argmax, x), x.argmax(0))
    close(run(lambda x: tg.argmin(x, axis=-1), x), x.argmin(-1))
    close(tg.argmax([1, 3, 3], output_type=tg.int32), np.int32(1))


def test_axis_out_of_range_is_an_error():
    with pytest.raises(ValueError, match="axis 2"):
        tg.reduce_sum(tg.ones([2, 3]), axis=2)
    with pytest.raises(ValueError, match="twice"):
        tg.reduce_sum(tg.ones([2, 3]), axis=[0, -2])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_totals(run, name, axis, exclusive, reverse):
    x = sample(4, 3, low=0.5)
    y = np.flip(x, axis) if reverse else x
    total = getattr(np, name)(y, axis)
    if exclusive:
        total = np.roll(total, 1, axis)
        np.moveaxis(total, axis, 0)[0] = name == "cumprod"
    expected = np.flip(total, axis) if reverse else total
    close(run(lambda x: getattr(tg.math, name)(x, axis, exclusive, reverse), x), expected)


def test_cumulative_logsumexp():
    x = sample(4, low=-100, high=100)
    expected = np.logaddexp.accumulate(x.astype(np.float64)).astype(np.float32)
    close(tg.math.cumulative_logsumexp(x), expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    "given", [[1e30, -1e30, 1e30], [-1e30] * 3, [-np.inf, -np.inf, 3e38], [1e4, 1e4, 1e4]]
)
def test_gradients_of_cumulative_logsumexp_of_huge_numbers(given, exclusive, reverse):
    """Each total divides its cotangent among its elements, though it rounds to one of them."""
    x = tg.constant(given)
    with tg.GradientTape() as tape:
        tape.watch(x)
        total = tg.math.cumulative_logsumexp(x, exclusive=exclusive, reverse=reverse)
    totals = [x[k + exclusive :] if reverse else x[: k + 1 - exclusive] for k in range(3)]
    found = np.zeros(3)
    for k, part in enumerate(totals):
        start = k + exclusive if reverse else 0
        if len(part) and np.max(part) > -np.inf:
            found[start : start + len(part)] += scipy.special.softmax(np.float64(part))
    close(tape.gradient(total, x), np.float32(found))


def test_counting():
    x = np.array([[0, 1, 2], [0, 0, 3]], np.int32)
    close(tg.math.count_nonzero(x, 1), np.count_nonzero(x, 1))
    close(tg.math.zero_fraction(x), np.float32(0.5))
    close(
        tg.math.bincount([0, 2, 2, 5], minlength=8),
        np.bincount([0, 2, 2, 5], minlength=8).astype(np.int32),
    )
    close(tg.math.bincount([0, 2, 2, 5], maxlength=3), np.int32([1, 0, 2]))
    close(tg.math.bincount([0, 2, 2], [0.5, 1.0, 2.0]), np.float32([0.5, 0, 3]))
    close(
        tg.math.confusion_matrix([0, 1, 2, 2], [0, 2, 2, 1], 3),
        np.int32([[1, 0, 0], [0, 0, 1], [0, 1, 1]]),
    )


def test_pairs_of_invalid_classes_do_not_count_in_functions():
    """Nor do their weights, even nan; those of the others have gradients."""

    @tg.function
    def run(labels, predictions, weights):
        with tg.GradientTape() as tape:
            tape.watch(weights)
            counts = tg.math.confusion_matrix(labels, predictions, 3, weights, tg.float32)
        return counts, tape.gradient(counts, weights)

    labels, predictions = np.int32([0, 1, 7, -1, 2, 0]), np.int8([0, 9, 1, 1, 1, 0])
    counts, slope = run(labels, predictions, np.float32([2, 3, np.nan, np.inf, 5, 7]))
    close(counts, np.float32([[9, 0, 0], [0, 0, 0], [0, 5, 0]]))
    close(slope, np.float32([1, 0, 0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(([0, 1], [0, 1, 2]), "predictions"), (([0], [0], 1, [1, 2]), "weights")],
)
def test_confusion_matrices_of_unequal_lengths(arguments, what):
    with pytest.raises(tg.errors.ShapeError, match=f"the labels are .* and the {what}"):
        tg.math.confusion_matrix(*arguments)


# ---------------------------------------------------------------- order


@pytest.mark.sampled(3)
@pytest.mark.parametrize("axis", [0, -1])
def test_sorting(run, axis):
    x = sample(4, 5)
    close(run(lambda x: tg.sort(x, axis), x), np.sort(x, axis))
    close(run(lambda x: tg.argsort(x, axis), x), np.argsort(x, axis).astype(np.int32))
    close(run(lambda x: tg.sort(x, axis, "DESCENDING"), x), np.flip(np.sort(x, axis), axis))


ORDERED = ["float16", "bfloat16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32"]


@pytest.mark.parametrize("dtype", [*ORDERED, "uint32", "int64", "uint64"])
def test_sorting_of_every_type(dtype):
    """Equal elements keep their order, as zeros of both signs do, and nan is the largest."""
    kind = tg.as_dtype(dtype)
    numbers = np.random.default_rng(8).integers(-3, 4, (4, 30)).astype(np.float64)
    if kind.is_floating:
        numbers[:, ::7], numbers[:, 1::7], numbers[:, 2::8] = -0.0, np.nan, -np.nan
        numbers[:, 3::9], numbers[:, 4::9] = np.inf, -np.inf
        x = numbers.astype(kind.as_numpy_dtype)
    elif kind.is_bool:
        x = numbers > 0
    else:
        x = abs(numbers).astype(kind.as_numpy_dtype)
        x[:, ::7], x[:, 1::7] = kind.min, kind.max

    @tg.function
    def run(x):
        down = "DESCENDING"
        return tg.sort(x), tg.argsort(x), tg.sort(x, 0, down), tg.argsort(x, 0, down)

    wide = x.astype(np.float64) if kind.is_floating else x
    up = np.argsort(wide, kind="stable")
    down = len(x) - 1 - np.flip(np.argsort(np.flip(wide, 0), axis=0, kind="stable"), 0)
    sorted_up, places_up, sorted_down, places_down = (y.numpy() for y in run(x))
    np.testing.assert_array_equal(places_up, up)
    np.testing.assert_array_equal(places_down, down)
    for found, axis, places in (sorted_up, -1, up), (sorted_down, 0, down):
        expected = np.take_along_axis(wide, places, axis)
        np.testing.assert_array_equal(found.astype(wide.dtype), expected)
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


def test_the_sign_of_a_zero_part_names_the_side_of_a_cut(run):
    x = np.array([complex(a, b) for a in (-3, -0.5, 0.5, 3) for b in (0.0, -0.0)])
    x = np.concatenate([x, [complex(a, b) for a in (0.0, -0.0) for b in (-2, 2)]])
    functions = {"sqrt": "sqrt", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
    functions |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "log": "log"}
    found = run(lambda x: tg.stack([getattr(tg.math, name)(x) for name in functions]), x)
    close(found, np.stack([getattr(np, name)(x) for name in functions.values()]))


def test_exclusive_products_leave_out_what_is_nan(run):
    x, weights = tg.constant([np.nan, 1.0, 2.0]), tg.constant([1.0, 2.0, 3.0])
    total = lambda x: tg.reduce_sum(weights * tg.math.cumprod(x, exclusive=True, reverse=True))  # noqa: E731
    close(run(lambda x: tg.grad(total)(x), x), np.array([0.0, 2.0, 3.0], np.float32))


@pytest.mark.parametrize("direction", ["ASCENDING", "DESCENDING"])
def test_equal_elements_keep_their_order(run, direction):
    x = np.where(np.arange(100) % 7 % 2, -0.0, 0.0)
    order = run(lambda x: tg.argsort(x, direction=direction), x)
    np.testing.assert_array_equal(order, np.arange(100))
    found = run(lambda x: tg.sort(x, direction=direction), x)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


def test_top_k(run):
    x = sample(4, 5)
    found = run(lambda x: tg.math.top_k(x, 3), x)
    order = np.argsort(-x, axis=-1)[:, :3]
    close(found.values, np.take_along_axis(x, order, -1))
    close(found.indices, order.astype(np.int32))


def test_angles_of_real_numbers(run):
    x = np.array([np.nan, -1.0, -0.0, 2.0, np.inf, -np.inf], np.float32)
    close(run(tg.math.angle, x), np.float32([np.nan, np.pi, 0, 0, 0, np.pi]))
    with pytest.raises(tg.errors.DTypeError, match=r"angle: the operand is i32\[2\]"):
        tg.math.angle([-1, 1])


def test_top_k_takes_the_first_of_zeros_of_both_signs(run):
    x = np.array([-0.0, 0.0, -1.0, -0.0, np.nan, -np.nan], np.float32)
    values, indices = run(lambda x: tg.math.top_k(x, 5), x)
    assert indices.numpy().tolist() == [4, 5, 0, 1, 3]
    assert np.signbit(values.numpy()[2:]).tolist() == [True, False, True]


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side):
    sequence = np.sort(sample(3, 6), -1)
    values = np.concatenate([sample(3, 4), sequence[:, 2:3]], -1)
    expected = np.stack(
        [np.searchsorted(s, v, side) for s, v in zip(sequence, values, strict=True)]
    )
    close(tg.searchsorted(sequence, values, side), expected.astype(np.int32))


def test_a_nan_is_inserted_at_an_end():
    """As TensorFlow's binary searches do, whichever of ours is used."""
    for count in (3, 100):
        for side, wanted in (("left", 0), ("right", count)):
            found = tg.searchsorted(np.arange(count, dtype=np.float32), [np.nan, 1.0], side)
            assert found.numpy().tolist() == [wanted, 1 if side == "left" else 2]


def test_in_top_k():
    predictions = sample(6, 4)
    targets = np.arange(6) % 4
    order = np.argsort(-predictions, -1)[:, :2]
    close(tg.math.in_top_k(targets, predictions, 2), (order == targets[:, None]).any(1))
    rows = [[np.nan, 1.0, 2.0], [1.0, 2.0, np.nan], [np.inf, 1.0, 2.0], [-np.inf, 1.0, 2.0]]
    assert not tg.math.in_top_k([2] * 4, np.float32(rows), 2).numpy().any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_dynamic_partition_has_more_groups_than_the_dtype_has_numbers(dtype, run):
    count, some = np.iinfo(dtype).max + 2, (0, 100, np.iinfo(dtype).max + 1)

    def partition(i):
        groups = tg.dynamic_partition([1.0, 2.0], i, count)
        assert len(groups) == count
        return [groups[k] for k in some]  # a program of all groups takes a second to compile

    groups = run(partition, np.array([100, 0], dtype))
    assert [len(x.numpy()) for x in groups] == [1, 1, 0]


def test_segments():
    x, ids = sample(6, 2), np.array([0, 0, 1, 3, 3, 3])
    rows = [x[ids == k] for k in range(4)]
    close(tg.math.segment_sum(x, ids), np.stack([r.sum(0) for r in rows]))
    means = np.stack([r.mean(0) if len(r) else np.zeros(2, "f") for r in rows])
    close(tg.math.segment_mean(x, ids), means)
    close(
        tg.math.unsorted_segment_max(x, [1, 0, 1, 1, 0, -1], 2),
        np.stack([x[[1, 4]].max(0), x[[0, 2, 3]].max(0)]),
    )
    close(
        tg.math.unsorted_segment_min(x, [1, 0, 1, 1, 0, -1], 2),
        np.stack([x[[1, 4]].min(0), x[[0, 2, 3]].min(0)]),
    )


def test_segments_without_elements(run):
    x, ids = sample(6, 2), [0, 0, 2, 2, 2, 4]
    rows = [x[np.array(ids) == k] for k in range(5)]
    for segment, numpys in ((tg.math.segment_max, np.max), (tg.math.segment_min, np.min)):
        expected = [numpys(r, 0) if len(r) else np.zeros(2, "f") for r in rows]
        close(run(lambda x, segment=segment: segment(x, ids), x), np.stack(expected))
    close(tg.math.segment_max([1, 3], [0, 2]), np.int32([1, 0, 3]))
    infinite = tg.constant([np.inf, np.inf, -np.inf])
    for kind in (tg.float32, tg.float16, tg.bfloat16):
        y = tg.cast(infinite, kind)
        assert np.float32(tg.math.segment_max(y, [0, 0, 2])).tolist() == [np.inf, 0, -np.inf]
        assert np.float32(tg.math.segment_min(y, [0, 0, 2])).tolist() == [np.inf, 0, -np.inf]
    slope = tg.grad(lambda x: tg.reduce_sum(tg.math.segment_max(x, ids)))(x)
    assert float(tg.reduce_sum(slope)) == 6.0


def test_counts_of_narrow_integers_reach_a_long_minlength():
    count = tg.function(lambda x: tg.math.bincount(x, minlength=300))
    found = count(np.uint8([0, 120, 120])).numpy()
    assert found.shape == (300,) and np.flatnonzero(found).tolist() == [0, 120] and found[120] == 2


def test_shapes_that_depend_on_values_are_those_of_the_run():
    def all_of_them(i):
        ones = tg.ones(3)
        return [
            tg.math.segment_sum(ones, i),
            tg.math.segment_mean(ones, i),
            tg.math.segment_max(ones, i),
            tg.math.segment_min(ones, 2 * i),
            tg.repeat(ones, i),
            tg.repeat(ones, [i[0], 1, 2]),
            tg.math.bincount(i),
            tg.math.bincount(i, maxlength=3),
            tg.math.bincount(i, minlength=4),
            tg.sequence_mask(i),
            tg.math.confusion_matrix(i, i),
            tg.dynamic_stitch([i[:1], i[1:2]], [[5.0], [6.0]]),
        ]

    numbers = tg.constant([0, 1, 1])
    at_top_level = [y.numpy() for y in all_of_them(numbers)]
    close(tg.function(all_of_them)(numbers), at_top_level)


def test_numbers_that_no_shape_follows_from_may_be_tensors(run):
    x, lowest = sample(4, 3), np.int64(-(2**63))
    shifts = [np.int32(shift) for shift in (0, 1, -5, 7)]

    def rolls(x, pair, narrow, lowest, *shifts):
        return [
            tg.roll(x, pair, [0, 1]),
            tg.roll(x, [narrow, 1], [0, 1]),
            tg.roll(x, lowest, 1),
            *(tg.roll(x, shift, 0) for shift in shifts),
        ]

    expected = [np.roll(x, (1, -2), (0, 1)), np.roll(x, (3, 1), (0, 1))]
    expected.append(np.roll(x, int(lowest) % 3, 1))
    expected += [np.roll(x, shift, 0) for shift in shifts]
    close(run(rolls, x, np.int32([1, -2]), np.uint8(3), lowest, *shifts), expected)
    limits = [(-1, 1), (0, -1), (2, 0), (9, 9)]
    given = [dtype(k) for pair in limits for dtype, k in zip((np.int64, np.int32), pair)]
    known = [tg.linalg.band_part(x, *pair) for pair in limits]
    bands = run(
        lambda x, *ks: [tg.linalg.band_part(x, *ks[i : i + 2]) for i in range(0, 8, 2)], x, *given
    )
    close(bands, [y.numpy() for y in known])
    found = run(lambda k: tg.math.in_top_k([1, 0], [[0.1, 0.9], [0.2, 0.8]], k), np.int32(1))
    close(found, [True, False])


def test_numbers_may_differ_from_iteration_to_iteration():
    x, shifts = sample(3, 3), [0, 1, 2]
    rolled = tg.vectorized_map(lambda s: tg.roll(x, s, 0), tg.constant(shifts))
    close(rolled, np.stack([np.roll(x, s, 0) for s in shifts]))
    bands = tg.vectorized_map(lambda s: tg.linalg.band_part(x, s, 0), tg.constant(shifts))
    close(bands, np.stack([np.tril(x) - np.tril(x, -s - 1) for s in shifts]))


# ---------------------------------------------------------------- products


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((6, 1, 3, 4), (2, 4, 5)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
    ],
    ids=str,
)
def test_matmul(run, a, b):
    x, y = sample(*a), sample(*b)
    close(run(tg.matmul, x, y), x @ y)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.complex64])
def test_matmul_of_other_dtypes(dtype):
    x, y = (sample(3, 3).astype(dtype) for _ in range(2))
    close(tg.matmul(x, y), x @ y)


def test_matmul_of_transposed_operands():
    x, y = sample(2, 4, 3), sample(2, 5, 4)
    expected = np.swapaxes(x, 1, 2) @ np.swapaxes(y, 1, 2)
    close(tg.matmul(x, y, transpose_a=True, transpose_b=True), expected)
    z = sample(3, 3) + 1j * sample(3, 3)
    close(tg.matmul(z, z, adjoint_a=True), z.conj().T @ z)


def test_matmul_of_sizes_that_do_not_fit_is_an_error():
    with pytest.raises(tg.errors.ShapeError, match="inner dimensions") as error:
        tg.ones([16, 4]) @ tg.ones([8, 4])
    assert "f32[16,4]" in str(error.value) and "operand 1: f32[8,4]" in str(error.value)
    with pytest.raises(tg.errors.ShapeError, match="matvec"):
        tg.matmul(tg.ones([3, 3]), tg.ones([3]))
    with pytest.raises(tg.errors.ShapeError):
        tg.ones([3, 3]) @ tg.ones([4])
    with pytest.raises(tg.errors.ShapeError):
        tg.ones([2, 3, 4]) @ tg.ones([3, 4, 5])


@pytest.mark.parametrize(
    ("left", "right"),
    [([2, 3], [4]), ([3], [4, 2]), ([3], [4]), ([2, 5, 3], [4]), ([2, 5, 3], [4, 2])],
    ids=str,
)
def test_inner_sizes_that_differ_are_named_in_the_shapes_that_were_given(left, right):
    with pytest.raises(tg.errors.ShapeError) as error:
        tg.ones(left) @ tg.ones(right)
    types = [f"f32[{','.join(map(str, shape))}]" for shape in (left, right)]
    assert error.value.args[0].startswith(
        f"matmul: inner dimensions differ: {' times '.join(types)}"
    )
    assert all(f"operand {k}: {type} " in str(error.value) for k, type in enumerate(types))


@pytest.mark.parametrize(("left", "right"), [([], [3]), ([3], []), ([2, 3], []), ([], [])], ids=str)
def test_a_product_with_a_scalar_is_refused_in_the_shapes_that_were_given(left, right):
    types = " times ".join(f"f32[{','.join(map(str, shape))}]" for shape in (left, right))
    with pytest.raises(
        tg.errors.ShapeError, match=re.escape(f"a scalar has no axis to sum over: {types}")
    ):
        tg.ones(left) @ tg.ones(right)


@pytest.mark.parametrize("axes", [0, 1, 2, [[1], [0]], [[2, 0], [1, 2]]], ids=str)
def test_tensordot(axes):
    x = sample(3, 2, 4)
    y = sample(
        *{0: (2,), 1: (4, 5), 2: (2, 4, 5)}.get(axes if isinstance(axes, int) else 9, (2, 4, 3))
    )
    if axes == [[1], [0]]:
        y = sample(2, 5)
    close(tg.tensordot(x, y, axes), np.tensordot(x, y, axes))


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("bxby->bxy", (3, 4, 3, 5)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("...ij,...jk->...ik", (6, 2, 3, 4), (2, 4, 5)),
    ("...ij,jk->...ik", (6, 2, 3, 4), (4, 5)),
    ("i...,i...->...", (3, 1, 4), (3, 5, 1)),
    ("...,...", (6, 3), (3,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,i,i->i", (4,), (4,), (4,)),
    ("abc,cd,def->abef", (2, 3, 4), (4, 5), (5, 2, 3)),
    ("ij,kl->", (2, 3), (4, 5)),
    ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("b a", (3, 4)),
    ("ab,b...->a...", (3, 4), (4, 5, 6)),
    ("iiii->i", (3, 3, 3, 3)),
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("case", EINSUMS, ids=lambda case: case[0])
def test_einsum(run, case):
    equation, *shapes = case
    xs = [sample(*shape) for shape in shapes]
    close(run(lambda *xs: tg.einsum(equation, *xs), *xs), np.einsum(equation, *xs), rtol=1e-4)


@st.composite
def equations(draw):
    sizes = dict(zip("abcde", (2, 3, 1, 4, 2), strict=True))
    letters = st.lists(st.sampled_from("abcde"), max_size=4)
    operands = draw(st.lists(letters, min_size=1, max_size=3))
    known = sorted({letter for operand in operands for letter in operand})
    output = draw(st.permutations(known))[: draw(st.integers(0, len(known)))]
    equation = ",".join(map("".join, operands)) + "->" + "".join(output)
    return equation, [tuple(sizes[letter] for letter in operand) for operand in operands]


@settings(max_examples=3, deadline=None)
@given(st.lists(equations(), min_size=12, max_size=12))
def test_einsum_is_numpys(cases):
    calls = [
        (equation, *(sample(*shape, dtype=np.float64) for shape in shapes))
        for equation, shapes in cases
    ]
    for call, found in zip(calls, [tg.einsum(*call) for call in calls], strict=True):
        close(found, np.asarray(np.einsum(*call)), rtol=1e-10, err_msg=call[0])


@pytest.mark.parametrize(
    ("equation", "shapes", "words"),
    [
        ("ij,jk->ik", [(2, 3)], "operands"),
        ("ijk->i", [(2, 3)], "does not fit"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "sizes 3 and 4"),
        ("ij->iz", [(2, 3)], "no operand"),
        ("ij->ii", [(2, 3)], "twice"),
        ("i?->i", [(2, 3)], "letter"),
    ],
)
def test_einsum_that_does_not_fit_is_an_error(equation, shapes, words):
    with pytest.raises(tg.errors.ShapeError, match=words):
        tg.einsum(equation, *(tg.ones(shape) for shape in shapes))


def test_linear_algebra():
    x, v = sample(2, 3, 3), sample(2, 3)
    close(tg.linalg.matvec(x, v), np.einsum("bij,bj->bi", x, v))
    close(tg.linalg.trace(x), np.trace(x, axis1=1, axis2=2))
    close(tg.linalg.diag(v), np.stack([np.diag(row) for row in v]))
    close(tg.linalg.diag_part(x), np.einsum("bii->bi", x))
    close(
        tg.linalg.diag_part(sample(3, 2)[:]).shape and tg.linalg.diag_part(x[0, :2]),
        np.diag(x[0, :2]),
    )
    close(tg.linalg.matrix_transpose(x), np.swapaxes(x, 1, 2))
    close(tg.linalg.band_part(x, 1, 0), np.tril(np.triu(x, -1)))
    close(tg.linalg.band_part(x, 2**40, 0), np.tril(x))
    close(tg.linalg.cross(x[0], x[1]), np.cross(x[0], x[1]))
    close(tg.linalg.adjoint([[1 + 2j, 3j]]), np.array([[1 - 2j], [-3j]]))


def system(*lead, dtype=np.float32):
    """Matrices that have an inverse, and right-hand sides for them."""
    rng = np.random.default_rng(3)
    a = 0.4 * rng.standard_normal((*lead, 3, 3)) + 2 * np.eye(3)
    return a.astype(dtype), rng.standard_normal((*lead, 3, 2)).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_systems_of_equations(run, dtype):
    a, b = system(2, dtype=dtype)
    if a.dtype.kind == "c":
        a = a * (1 + 0.5j)
    h = np.swapaxes(a.conj(), 1, 2)
    definite = a @ h

    def compute(a, b, definite):
        solved = [
            tg.linalg.solve(a, b),
            tg.linalg.solve(a, b, adjoint=True),
            tg.linalg.inv(a),
            tg.linalg.inv(a, adjoint=True),
            tg.linalg.triangular_solve(a, b),
            tg.linalg.triangular_solve(a, b, lower=False, adjoint=True),
            tg.linalg.det(a),
            *tg.linalg.slogdet(a),
        ]
        chol = tg.linalg.cholesky(definite)
        return solved, (chol, tg.linalg.logdet(definite), tg.linalg.cholesky_solve(chol, b))

    sign, logarithm = np.linalg.slogdet(a)
    exact = [
        np.linalg.solve(a, b),
        np.linalg.solve(h, b),
        np.linalg.inv(a),
        np.linalg.inv(h),
        np.linalg.solve(np.tril(a), b),
        np.linalg.solve(np.swapaxes(np.triu(a).conj(), 1, 2), b),
        np.linalg.det(a),
        sign,
        logarithm.astype(dtype),
    ]
    solved, (chol, logdet, by_chol) = run(compute, a, b, definite)
    close(solved, exact)
    close(chol, np.linalg.cholesky(definite), rtol=1e-4)
    close(by_chol, np.linalg.solve(definite, b), rtol=1e-3)
    close(logdet, np.linalg.slogdet(definite)[1], rtol=1e-4)


def test_systems_broadcast_and_promote():
    a, b = system(2)
    close(tg.linalg.solve(a[0], b), np.linalg.solve(a[0], b))
    close(tg.linalg.solve(a, b[:1]), np.linalg.solve(a, b[:1]))
    wide = tg.linalg.triangular_solve(tg.constant(a[0]), tg.constant(b[0], tg.float64))
    assert wide.dtype is tg.float64
    batch = tg.vectorized_map(lambda row: tg.linalg.solve(a[0], row[:, tg.newaxis]), b[..., 0])
    close(batch, np.linalg.solve(a[0], b[..., :1]), rtol=1e-4)


def test_newton_through_a_solution():
    """Second derivatives go through a solution: log det has the gradient a^-1."""
    a = tg.constant(system(dtype=np.float64)[0])
    direct = tg.hessian(lambda a: tg.linalg.slogdet(a).log_abs_determinant)(a)
    by_rule = tg.jacobian(lambda a: tg.linalg.matrix_transpose(tg.linalg.inv(a)))(a)
    np.testing.assert_allclose(direct, by_rule, atol=1e-12)


def test_singular_matrices_give_inf_or_nan():
    zero = tg.zeros([2, 2])
    assert not np.isfinite(tg.linalg.solve(zero, tg.ones([2, 1])).numpy()).any()
    assert not np.isfinite(tg.linalg.inv(zero).numpy()).any()
    assert np.isnan(tg.linalg.cholesky(-tg.eye(2)).numpy()).any()
    assert tg.linalg.det(zero).numpy() == 0.0
    sign, logarithm = tg.linalg.slogdet(zero)
    assert (sign.numpy(), logarithm.numpy()) == (0.0, -np.inf)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: tg.linalg.solve(tg.ones([2, 3]), tg.ones([2, 1])), "Shape", "is not square"),
        (lambda: tg.linalg.solve(tg.eye(2), tg.ones([2])), "Shape", r"f32\[2\] is not a matrix"),
        (lambda: tg.linalg.solve(tg.eye(2), tg.ones([3, 1])), "Shape", "2 equations have 3 right"),
        (
            lambda: tg.linalg.solve(tg.ones([2, 3, 3]), tg.ones([4, 3, 1])),
            "Shape",
            "solve: the leading axes of .* do not broadcast",
        ),
        (lambda: tg.linalg.det([1.0]), "Shape", r"det: f32\[1\] is not a matrix"),
        (lambda: tg.linalg.inv([[1, 2], [3, 4]]), "DType", r"tg\.cast\(x, tg\.float32\)"),
        (lambda: tg.linalg.cholesky(tg.ones([2, 2], tg.float16)), "DType", "16 bits are too few"),
    ],
)
def test_systems_that_do_not_fit_are_errors(call, kind, words):
    with pytest.raises(getattr(tg.errors, f"{kind}Error"), match=words) as caught:
        call()
    assert "test_math.py" in str(caught.value) and "fix: " in str(caught.value)


def test_operations_of_systems_are_counted():
    @tg.function
    def solve(a, b):
        return tg.linalg.solve(a, b)

    concrete = solve.get_concrete_function(tg.TensorSpec([2, 6, 6]), tg.TensorSpec([2, 6, 5]))
    (row,) = [row for row in concrete.graph.summary().rows if row.by == "line"]
    assert row.total.flops == 2 * (2 * 6**3 // 3 + 2 * 6 * 6 * 5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", [-2, -1, 0, 1, 2])
def test_diagonals_beside_the_main_one(k):
    v, x = sample(2, 3), sample(2, 4, 3)
    expected = np.stack([np.diag(row, k) for row in v])
    close(tg.linalg.diag(v, k=k), expected)
    close(tg.linalg.diag_part(expected, k=k), v)
    close(tg.linalg.diag_part(x, k=k), np.stack([np.diag(matrix, k) for matrix in x]))
    spec = [tg.TensorSpec([None, None])]
    close(tg.function(lambda v: tg.linalg.diag(v, k=k), input_signature=spec)(v), expected)


def test_sizes_and_padding_of_diagonals():
    # The values are those of tf.linalg.diag.
    for found, expected in (
        (tg.linalg.diag([1, 2], num_rows=3), [[1, 0], [0, 2], [0, 0]]),
        (tg.linalg.diag([1, 2], k=-1, num_rows=3), [[0, 0], [1, 0], [0, 2]]),
        (tg.linalg.diag([1, 2], k=1, num_rows=2, num_cols=4), [[0, 1, 0, 0], [0, 0, 2, 0]]),
        (tg.linalg.diag([1], k=-1, padding_value=9), [[9, 9], [1, 9]]),
        (tg.linalg.diag([1], num_cols=2, padding_value=tg.constant(9)), [[1, 9]]),
    ):
        assert found.numpy().tolist() == expected


def test_add_n():
    xs = [sample(3) for _ in range(3)]
    close(tg.add_n(xs), np.sum(xs, 0))
    with pytest.raises(ValueError, match="shapes differ"):
        tg.add_n([tg.ones([2]), tg.ones([3])])


def test_names_of_tensorflow_are_there():
    for name in ("accumulate_n", "argmax", "cumsum", "is_nan", "reduce_sum", "softplus", "top_k"):
        assert callable(getattr(tg.math, name))
    for name in set(tg.math.__all__) - {"special"}:
        assert getattr(tg, name) is getattr(tg.math, name)


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_deviations_of_numbers_whose_squares_are_out_of_range(size):
    x = np.float32([[1.0, 2.0, 4.0], [-3.0, 0.5, 1.0]])
    found, slope = tg.function(
        tg.value_and_grad(lambda x: tg.reduce_sum(tg.math.reduce_std(x, 1) / size))
    )(tg.constant(x * np.float32(size)))
    assert found.numpy() == pytest.approx(np.std(x, 1).sum(), rel=1e-6)
    apart = x - x.mean(1, keepdims=True)
    np.testing.assert_allclose(slope.numpy() * size, apart / 3 / np.std(x, 1)[:, None], rtol=1e-5)
    found = tg.numpy.std(x * np.float32(size), correction=1)
    np.testing.assert_allclose(found.numpy(), size * np.std(x, ddof=1), rtol=1e-6)


# ---------------------------------------------------------------- gradients of compositions

COMPOSITIONS = {
    "logsumexp": lambda x: tg.reduce_logsumexp(x, 0),
    "std": lambda x: tg.math.reduce_std(x, 1),
    "norm": lambda x: tg.norm(x, axis=1),
    "softplus": tg.math.softplus,
    "xlogy": lambda x: tg.math.xlogy(x, x),
    "einsum": lambda x: tg.einsum("ij,kj->ik", x, x * x),
    "diagonal": lambda x: tg.einsum("ii->i", x @ tg.transpose(x)),
    "roll": lambda x: tg.roll(x, [1, 2], [0, 1]) * x,
    "pad": lambda x: tg.pad(x, [[1, 2], [2, 1]], "REFLECT") ** 2,
    "clip": lambda x: tg.clip_by_norm(x, 0.5),
    "segments": lambda x: tg.math.unsorted_segment_mean(x, [0, 1, 0], 2) ** 2,
    "gather": lambda x: tg.gather(x, [0, 2, 0]) ** 2,
    "sort": lambda x: tg.sort(x, 0) * tg.reshape(tg.range(12.0), [3, 4]),
    "cumprod": lambda x: tg.math.cumprod(x, 1),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", [0, 1])
def test_gradients_match_differences(part):
    names = [*COMPOSITIONS][part::2]
    x = np.linspace(0.5, 2.0, 12).reshape(3, 4)[::-1].copy()
    direction = np.cos(np.arange(12.0)).reshape(3, 4)

    def along(function, x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tg.reduce_sum(tape.gradient(y, x) * direction)

    @tg.function
    def orders(x):
        """For each composition a number, and its first and second derivative along `direction`."""
        found = []
        for fn in map(COMPOSITIONS.get, names):
            scalar = lambda x, fn=fn: tg.reduce_sum(tg.sin(fn(x)))  # noqa: E731
            slope = lambda x, scalar=scalar: along(scalar, x)  # noqa: E731
            found.append(tg.stack([scalar(x), slope(x), along(slope, x)]))
        return tg.stack(found)

    step = 1e-5
    after, before = (orders(tg.constant(x + sign * step * direction)).numpy() for sign in (1, -1))
    differences = (after - before)[:, :2] / (2 * step)
    for name, found, moved in zip(names, orders(tg.constant(x)).numpy(), differences):
        assert found[1:] == pytest.approx(moved, rel=1e-6, abs=1e-7), name


# ---------------------------------------------------------------- kinks


def derived(function, x, order):
    """The value and the derivatives up to `order`, of a scalar, as tensors or None."""
    x = tg.constant(x)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        found = [function(x)]
        for _ in range(order):
            found.append(tape.gradient(found[-1], x))
    return found


def as_numbers(tensors):
    return [0.0 if y is None else y.numpy().item() for y in tensors]


def derivatives(function, x, order):
    return as_numbers(derived(function, x, order))


KINKS = {
    "elu": (tg.nn.elu, 0.0, [0, 1, 0]),
    "selu": (tg.nn.selu, 0.0, [0, 1.050701, 0]),
    "relu": (tg.nn.relu, 0.0, [0, 0, 0]),
    "relu6": (tg.nn.relu6, 6.0, [6, 0, 0]),
    "softplus": (tg.nn.softplus, 0.0, [math.log(2), 0.5, 0.25]),
    "abs": (tg.abs, 0.0, [0, 0, 0]),
    "sign": (tg.sign, 0.0, [0, 0, 0]),
    "maximum": (lambda x: tg.maximum(x, 0.0), 0.0, [0, 1, 0]),
    "clip": (lambda x: tg.clip_by_value(x, -1.0, 1.0), 1.0, [1, 1, 0]),
    "multiply_no_nan": (lambda x: tg.math.multiply_no_nan(tg.constant(2.0), x), 0.0, [0, 2, 0]),
    "inf times 0": (lambda x: tg.math.multiply_no_nan(tg.constant(math.inf), x), 0.0, [0, 0, 0]),
    "divide_no_nan": (lambda x: tg.math.divide_no_nan(tg.constant(2.0), x), 0.0, [0, 0, 0]),
    "xlogy": (lambda x: tg.math.xlogy(tg.constant(0.0), x), 0.0, [0, 0, 0]),
    "pow": (lambda x: tg.pow(x, tg.constant(2.0)), 0.0, [0, 0, 2]),
}


def test_derivatives_at_kinks():
    """What TensorFlow has there, too."""
    found = [derived(function, x, 2) for function, x, _ in KINKS.values()]
    for (name, (_, _, expected)), tensors in zip(KINKS.items(), found, strict=True):
        assert as_numbers(tensors) == pytest.approx(expected, rel=1e-5), name


@pytest.mark.sampled(5)
@pytest.mark.parametrize("x", [0.0, -1.0])
@pytest.mark.parametrize(
    "function", [tg.math.log, tg.math.log1p, tg.sqrt, tg.math.rsqrt, lambda x: x**0.5]
)
def test_what_is_masked_has_no_derivative_in_either_form(function, x):
    def masked(x):
        return tg.where(x > 0, function(x), 0.0)

    assert derivatives(masked, x, 3) == [0, 0, 0, 0]  # built forwards
    row = tg.constant([x, 2.0])
    with tg.GradientTape() as outer:
        outer.watch(row)
        with tg.GradientTape() as inner:
            inner.watch(row)
            total = tg.reduce_sum(masked(row))  # built backwards
        slope = inner.gradient(total, row)
    assert slope.numpy()[0] == 0
    assert outer.gradient(slope, row).numpy()[0] == 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [(tg.sqrt, 1.0), (tg.math.log, 2.0), (tg.math.rsqrt, -1.0), (tg.math.log1p, 1.0)],
)
def test_a_cotangent_of_zero_has_a_derivative(function, expected):
    """That of (x - 1) * f(x) at 1 is 0 on its way to f: its second derivative is 2 f'(1)."""
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as outer:
        outer.watch(x)
        with tg.GradientTape() as inner:
            inner.watch(x)
            row = tg.linalg.matvec(tg.eye(2), x)  # not elementwise, so it is built backwards
            y = tg.reduce_sum((row - 1.0) * function(row))
        slope = tg.linalg.matvec(tg.eye(2), inner.gradient(y, x))
    assert outer.gradient(slope, x).numpy()[0] == pytest.approx(expected)


# ---------------------------------------------------------------- Python's protocols


def test_python_functions_of_tensors():
    x = tg.constant([7, -7])
    quotient, rest = divmod(x, 2)
    assert (quotient.numpy().tolist(), rest.numpy().tolist()) == ([3, -4], [1, 1])
    assert [y.numpy().tolist() for y in divmod(7, tg.constant([2, 4]))] == [[3, 1], [1, 3]]
    assert (tg.constant([1, 3]) << 2).numpy().tolist() == [4, 12]
    assert (256 >> tg.constant([1, 3])).numpy().tolist() == [128, 32]
    y = tg.constant([1.256, 2.5])
    assert round(y).numpy().tolist() == [1.0, 2.0]
    assert round(y, 2).numpy().tolist() == pytest.approx([1.26, 2.5])
    assert round(tg.constant([14, 26]), -1).numpy().tolist() == [10, 30]
    assert round(tg.constant([14, 26]), 1).numpy().tolist() == [14, 26]
    assert round(tg.Variable(1.5)).numpy() == 2.0
    one = tg.constant(1.5)
    assert (math.floor(one), math.ceil(one), math.trunc(one)) == (1, 2, 1)


def test_set_diag_of_matrices_that_are_not_square():
    rng = np.random.default_rng(0)
    for rows, columns in ((3, 2), (2, 3), (3, 3), (0, 2)):
        x = rng.random((2, rows, columns)).astype(np.float32)
        diagonal = rng.random((2, min(rows, columns))).astype(np.float32)
        expected = x.copy()
        for k in range(min(rows, columns)):
            expected[:, k, k] = diagonal[:, k]
        assert (tg.linalg.set_diag(x, diagonal).numpy() == expected).all()
    with pytest.raises(tg.errors.ShapeError, match="diagonal"):
        tg.linalg.set_diag(tg.zeros([3, 2]), tg.zeros([3]))


def test_targets_that_are_no_class_are_not_in_the_top():
    predictions = [[1.0, 2.0]] * 3
    assert tg.math.in_top_k([1, -5, 9], predictions, 1).numpy().tolist() == [True, False, False]


def test_the_mean_of_no_integers():
    assert tg.reduce_mean(tg.zeros([0], tg.int32)).numpy() == 0


# ---------------------------------------------------------------- diagonals


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (3, 3), (2, 3, 4)])
@pytest.mark.parametrize("align", ["RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"])
@pytest.mark.parametrize("k", [(-1, 1), (0, 2), (-2, -1), (-1, 2)])
def test_several_diagonals(shape, align, k):
    x = sample(*shape)
    ones = {d: np.diagonal(x, d, -2, -1) for d in range(k[0], k[1] + 1)}
    longest = max(one.shape[-1] for one in ones.values())
    above, below = align.split("_")
    rows = []
    for d, one in sorted(ones.items(), reverse=True):
        sides = [above] * (d >= 0) + [below] * (d <= 0)
        missing = longest - one.shape[-1]
        margin = (missing, 0) if "RIGHT" in sides else (0, missing)
        margins = [*[(0, 0)] * (x.ndim - 2), margin]
        rows.append(np.pad(one, margins, constant_values=np.float32(9)))
    fn = lambda x: tg.linalg.diag_part(x, k=k, padding_value=9, align=align)  # noqa: E731
    close(fn(tg.constant(x)), np.stack(rows, -2))
    close(tg.function(fn)(tg.constant(x)), np.stack(rows, -2))


def test_diagonals_that_are_refused():
    with pytest.raises(ValueError, match=r"k is \[1, -1\]"):
        tg.linalg.diag_part(tg.ones([3, 3]), k=(1, -1))
    with pytest.raises(ValueError, match="align"):
        tg.linalg.diag_part(tg.ones([3, 3]), k=(-1, 1), align="LEFT")
    with pytest.raises(ValueError, match="no such diagonal"):
        tg.linalg.tensor_diag_part(tg.ones([2, 3]))
    for k in (3, (1, 5)):
        with pytest.raises(
            ValueError, match=r"f32\[2,3\] has no diagonals? .*\n.*\n(.*\n)?.* -1 to 2"
        ):
            tg.linalg.diag_part(tg.ones([2, 3]), k=k)
    with pytest.raises(ValueError, match="has no diagonal -2"):
        tg.linalg.diag_part(tg.ones([2, 3]), k=-2)
    assert tg.linalg.diag_part(tg.ones([0, 3])).shape == [0]


def test_the_diagonal_of_a_tensor(run):
    x = sample(2, 3, 2, 3)
    close(run(tg.linalg.tensor_diag_part, x), np.einsum("ijij->ij", x))
    small = sample(2, 3)
    close(run(lambda x: tg.linalg.tensor_diag_part(tg.linalg.tensor_diag(x)), small), small)


def test_what_data_types_say_of_themselves():
    assert tg.complex64.real_dtype is tg.float32 and tg.int32.real_dtype is tg.int32
    assert tg.float32.is_compatible_with("float32")
    assert not tg.float32.is_compatible_with(np.float64)
    assert (tg.float32.limits, tg.uint8.limits, tg.bool.limits) == ((0, 1), (0, 255), (0, True))


# What TensorFlow's own tests found.

SPANS = [
    (-(2**31), 2**31 - 1, 2**30),
    (2**31 - 1, -(2**31), -(2**30)),
    (2**40, 2**40 + 3, 1),
    (-(2**63), 2**63 - 1, 2**62),
    (2**31 - 3, 2**31 - 1, 1),
]


@pytest.mark.parametrize("bounds", SPANS)
def test_ranges_of_wide_spans(bounds):
    expected = list(range(*bounds))
    kind = np.int32 if abs(bounds[0]) <= 2**31 else np.int64
    traced = tg.function(lambda: tg.range(*bounds))
    for y in (tg.range(*bounds), traced()):
        assert y.numpy().tolist() == expected
        assert y.numpy().dtype == kind
    assert tg.range(*bounds, dtype=tg.int64).numpy().tolist() == expected


def test_a_long_range_of_a_wide_span_in_a_function():
    y = tg.function(lambda: tg.range(-(2**31), 2**31 - 1, 2**22))()
    assert y.numpy().tolist() == list(range(-(2**31), 2**31 - 1, 2**22))


def test_ranges_of_narrow_types():
    assert tg.range(-128, 127, dtype=tg.int8).numpy().tolist() == list(range(-128, 127))
    start = tg.constant(2**40, tg.int64) + 5
    assert tg.range(start, 2**40 + 7).numpy().tolist() == [2**40 + 5, 2**40 + 6]
    for bounds in ((300,), (-129, 0)):
        with pytest.raises(tg.errors.DTypeError, match="outside the range of int8"):
            tg.range(*bounds, dtype=tg.int8)
    for kind in (tg.bool, tg.complex64):
        with pytest.raises(tg.errors.DTypeError, match=f"the dtype is {kind.name}, and it must be"):
            tg.range(3, dtype=kind)


def test_argmax_without_a_type():
    close(tg.argmax([1, 3, 2], output_type=None), np.int64(1))
    close(tg.argmin([1, 3, 2], output_type=None), np.int64(0))


def test_einsum_refuses_to_drop_an_ellipsis():
    x, y = sample(2, 3, 4), sample(2, 4)
    for equation, operands in (("...ij->ij", [x]), ("...i,...i,i->i", [y, y, y[0]])):
        with pytest.raises(ValueError, match=r"1 axis .* the output has no \.\.\."):
            tg.einsum(equation, *operands)
    # An ellipsis that stands for no axis is none, and one that is not written is not dropped.
    close(tg.einsum("...ij->ij", x[0]), x[0])
    close(tg.einsum("...i,...i", y, y), np.einsum("...i,...i", y, y), rtol=1e-5)


ROWS = np.array([[1, 2, 3, 0], [0, 0, 1, 2]], np.int32)
WEIGHTS = np.array([[1, 0.5, 2, 3], [1, 1, 1, 1]], np.float32)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("maxlength", [None, 0, 2, 5, 9])
@pytest.mark.parametrize("minlength", [None, 0, 3, 7])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_bincount_is_numpys(minlength, maxlength, weights):
    lengths = {"minlength": minlength, "maxlength": maxlength, "weights": weights}

    def expected(rows, weights):
        flat = None if weights is None else weights.ravel()
        full = np.bincount(rows.ravel(), flat, max(minlength or 0, int(ROWS.max()) + 1))
        return full[:maxlength].astype(np.int32 if weights is None else np.float32)

    pairs = [
        (tg.math.bincount(ROWS, axis=axis, **lengths), expected(ROWS, weights))
        for axis in (None, 0)
    ]
    by_row = [
        expected(row, w)
        for row, w in zip(ROWS, WEIGHTS if weights is not None else [None] * 2, strict=True)
    ]
    pairs.append((tg.math.bincount(ROWS, axis=-1, **lengths), np.stack(by_row)))
    if weights is None:
        present, ask = np.stack(by_row) > 0, {"binary_output": True, **lengths}
        found = tg.math.bincount(ROWS, axis=-1, dtype=tg.int64, **ask)
        pairs.append((found, present.astype(np.int64)))
        found = tg.math.bincount(ROWS, dtype=tg.float32, **ask)
        pairs.append((found, present.any(0).astype(np.float32)))
    for found, wanted in pairs:
        close(found, wanted)


def test_bincount_of_what_is_known_only_at_run_time(run):
    count = tg.function(lambda x: tg.math.bincount(x, minlength=3, maxlength=3))
    close(count(tg.constant([0, 1, 5, 1, -1])), np.int32([1, 2, 0]))
    checked = tg.function(
        lambda x: tg.math.bincount(x, minlength=3, maxlength=3), check_bounds=True
    )
    close(checked(tg.constant([0, 1, 5, 1])), np.int32([1, 2, 0]))
    with pytest.raises(tg.errors.InvalidArgumentError, match="count from 0, and there is -1"):
        checked(tg.constant([0, -1]))


def test_bincount_of_nothing():
    close(tg.math.bincount([]), np.zeros(0, np.int32))
    close(tg.math.bincount([], maxlength=3), np.zeros(0, np.int32))
    close(tg.math.bincount([], minlength=2), np.zeros(2, np.int32))


def test_gradient_of_bincount_in_its_weights():
    w = tg.constant(WEIGHTS)
    with tg.GradientTape() as tape:
        tape.watch(w)
        y = tg.math.bincount(ROWS, w, axis=-1, minlength=2, maxlength=2) ** 2
    counts = np.stack([np.bincount(r, v, 4)[:4] for r, v in zip(ROWS, WEIGHTS, strict=True)])
    expected = np.where(ROWS < 2, 2 * np.take_along_axis(counts, ROWS, 1), 0)
    close(tape.gradient(y, w), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"axis": 1}, "axis is 1"),
        ({"weights": WEIGHTS, "binary_output": True}, "a binary output has no weights"),
        ({"weights": [1.0]}, "do not have the shape"),
        ({"minlength": -1}, "minlength is -1"),
    ],
)
def test_arguments_of_bincount_that_do_not_fit(given, words):
    with pytest.raises(ValueError, match=words):
        tg.math.bincount(ROWS, **given)


def test_negative_numbers_are_not_counted():
    for arguments in ({}, {"minlength": 3, "maxlength": 3}, {"axis": -1}):
        with pytest.raises(tg.errors.InvalidArgumentError, match="there is -1"):
            tg.math.bincount([-1, 2], **arguments)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("ids", [0, [[0, 1]]])
def test_numbers_of_sorted_segments_are_a_vector(kind, ids):
    segment = getattr(tg.math, f"segment_{kind}")
    with pytest.raises(tg.errors.ShapeError, match=f"^segment_{kind}: .*, not a vector"):
        segment([[1.0, 2.0]], ids)


def test_segments_beyond_the_type_of_their_numbers():
    numbers = tg.constant([0, 0, 3], tg.int8)
    y = tg.math.unsorted_segment_sum([1.0, -2.0, 3.0], numbers, 200)
    close(y[:4], np.float32([-1, 0, 0, 3]))
    close(tg.math.segment_max([-1.0, -2.0, -3.0], [0, 0, 3]), np.float32([-1, 0, 0, -3]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", ["atan2", "atan", "asin", "acos"])
def test_inverse_trigonometric_functions_are_rounded_once(name, dtype):
    """Beside NumPy's in float64: nearly always the nearest number, and the signs of zeros."""
    ends = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-3, 6e4, -6e4, 0.5, 1.5]
    random = np.random.default_rng(0)
    wide = np.concatenate([ends, np.tan(random.uniform(-1.57, 1.57, 5000))])
    with np.errstate(invalid="ignore"):
        x = (wide if name.startswith("atan") else np.sin(wide)).astype(dtype)
    operands = (x, random.permutation(x)) if name == "atan2" else (x,)
    if name == "atan2":
        pairs = np.meshgrid(ends, ends)
        operands = [np.append(x, y.astype(dtype)) for x, y in zip(operands, pairs, strict=True)]
    with np.errstate(invalid="ignore"):
        exact = getattr(np, f"arc{name[1:]}")(*(x.astype(np.float64) for x in operands))
    found = getattr(tg, name)(*operands).numpy()
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    number = ~np.isnan(exact)
    found, exact = found[number].astype(np.float64), exact[number]
    np.testing.assert_array_equal(np.signbit(found), np.signbit(exact))
    unit = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    assert (np.abs(found - exact) <= 0.51 * unit).all()
