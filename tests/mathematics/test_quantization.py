"""tg.quantization against what TensorFlow 2.21 computes, and against its rule in NumPy."""

import numpy as np
import pytest

import tracegraph as tg

INPUTS = [-7.0, -6.0, -5.9, -0.02, 0.0, 0.03, 1.234, 5.99, 6.0, 7.0]

#: min, max, bits, narrow range: values, the gradient of the inputs, of min and of max.
KNOWN = {
    (-6.0, 6.0, 8, False): (
        [-6.0235295, -5.9764705, -5.882353, 0, 0, 0.04705882, 1.2235295, *[5.9764705] * 3],
        [0, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        1.0,
        3.0,
    ),
    (-1.0, 2.0, 4, True): (
        [*[-1.0714285] * 3, 0, 0, 0, 1.2857143, *[1.9285715] * 3],
        [0, 0, 0, 1, 1, 1, 1, 0, 0, 0],
        3.0,
        3.0,
    ),
    (0.5, 3.0, 8, False): (
        [0, 0, 0, 0, 0, 0.02941177, 1.2352941, 2.5, 2.5, 2.5],
        [0, 0, 0, 0, 1, 1, 1, 0, 0, 0],
        4.0,
        3.0,
    ),
    (-3.0, -1.0, 8, False): (
        [-2, -2, -2, -0.02352941, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0, 0, 0],
        3.0,
        5.0,
    ),
    (0.0, 6.0, 2, False): (
        [0, 0, 0, 0, 0, 0, 2, 6, 6, 6],
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 0],
        4.0,
        1.0,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")
@pytest.mark.parametrize("range_", KNOWN)
def test_fake_quantization_and_its_gradients(run, range_):
    low, high, bits, is_narrow = range_
    values, slopes, by_low, by_high = KNOWN[range_]

    def both(x, low, high):
        with tg.GradientTape() as tape:
            tape.watch([x, low, high])
            y = tg.quantization.fake_quant_with_min_max_vars(x, low, high, bits, is_narrow)
        return y, tape.gradient(y, [x, low, high])

    y, found = run(both, *map(tg.constant, (INPUTS, low, high)))
    np.testing.assert_allclose(y.numpy(), values, rtol=1e-6, atol=1e-7)
    for one, other in zip(found, (slopes, by_low, by_high), strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    fixed = tg.quantization.fake_quant_with_min_max_args(INPUTS, *range_)
    np.testing.assert_allclose(fixed.numpy(), y.numpy(), 1e-6)
    assert (y.numpy()[np.equal(values, 0)] == 0).all()
    g = np.arange(10, dtype=np.float32)
    given = tg.quantization.fake_quant_with_min_max_vars_gradient(g, INPUTS, *range_)
    with tg.GradientTape() as tape:
        x, a, b = (tg.Variable(value) for value in (INPUTS, low, high))
        y = tg.quantization.fake_quant_with_min_max_vars(x, a, b, bits, is_narrow)
    for one, other in zip(given, tape.gradient(y, [x, a, b], g), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    alone = tg.quantization.fake_quant_with_min_max_args_gradient(g, INPUTS, *range_)
    np.testing.assert_array_equal(alone.numpy(), given[0].numpy())


def test_fake_quantization_of_channels():
    rows = np.stack([INPUTS, np.negative(INPUTS)], 1).astype(np.float32)
    low, high = tg.Variable([-6.0, -1.0]), tg.Variable([6.0, 2.0])
    with tg.GradientTape() as tape:
        y = tg.quantization.fake_quant_with_min_max_vars_per_channel(rows, low, high, 4)
    slopes = tape.gradient(y, [low, high])
    for k in range(2):
        bounds = (low[k], high[k])
        own = tg.quantization.fake_quant_with_min_max_vars(rows[:, k], *bounds, 4)
        np.testing.assert_allclose(y.numpy()[:, k], own.numpy(), 1e-6)
    given = tg.quantization.fake_quant_with_min_max_vars_per_channel_gradient(
        np.ones_like(rows), rows, low, high, 4
    )
    for one, other in zip(given[1:], slopes, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_range_of_nothing_gives_zeros():
    y = tg.quantization.fake_quant_with_min_max_vars([-1.0, 2.0], 0.0, 0.0)
    assert y.numpy().tolist() == [0, 0]


#: What TensorFlow makes of INPUTS in the range from -2 to 3.
DEQUANTIZED = [
    (
        {"range_given": True},
        [*[-3.0236220] * 3, -0.02362205, 0, 0.02362205, 1.2283465, 3, 3, 3],
    ),
    (
        {"range_given": True, "narrow_range": True},
        [-3, -3, -3, -0.02362205, 0, 0.02362205, 1.2283465, 3, 3, 3],
    ),
    (
        {},
        [-7, -6.007874, -5.8976378, 0, 0, 0.05511811, 1.2125984, 6.007874, 6.007874, 7],
    ),
    (
        {"range_given": True, "signed_input": False},
        [0, 0, 0, 0, 0, 0.03529412, 1.2352941, 3, 3, 3],
    ),
    (
        {"range_given": True, "round_mode": "HALF_UP", "num_bits": 4},
        [*[-3.4285715] * 3, 0, 0, 0, 1.2857143, 3, 3, 3],
    ),
]


@pytest.mark.parametrize(("options", "values"), DEQUANTIZED)
def test_quantized_and_read_back(options, values):
    x = tg.Variable(INPUTS)
    with tg.GradientTape() as tape:
        y = tg.quantization.quantize_and_dequantize_v2(x, -2.0, 3.0, **options)
    np.testing.assert_allclose(y.numpy(), values, rtol=1e-6, atol=1e-7)
    inside = (x.numpy() >= -2) & (x.numpy() <= 3) if options else np.ones(10)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), inside)
    rows = np.stack([INPUTS, np.multiply(INPUTS, 2)]).astype(np.float32)
    bounds = ([-2.0, -4.0], [3.0, 6.0])
    found = tg.quantization.quantize_and_dequantize(rows, *bounds, axis=0, **options)
    np.testing.assert_allclose(found.numpy(), np.stack([values, np.multiply(values, 2)]), 1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q: q.fake_quant_with_min_max_args([1]), "the operand is"),
        (lambda q: q.fake_quant_with_min_max_args([1.0], 2.0, 1.0), "min is 2.0"),
        (lambda q: q.fake_quant_with_min_max_args([1.0], 0.0, 1.0, 17), "num_bits is 17"),
        (lambda q: q.fake_quant_with_min_max_args([1.0], [0.0], 1.0), "min is a number"),
        (lambda q: q.fake_quant_with_min_max_vars([1.0], [0.0], 1.0), "the bounds are"),
        (
            lambda q: q.fake_quant_with_min_max_vars_per_channel([1.0], [0.0] * 2, [1.0]),
            "last axis",
        ),
        (lambda q: q.fake_quant_with_min_max_args_gradient([1.0], [1.0, 2.0]), "gradients f32"),
        (lambda q: q.quantize_and_dequantize_v2([1.0], 0.0, 1.0, round_mode="UP"), "HALF_UP"),
        (lambda q: q.quantize_and_dequantize_v2([1.0], 2.0, 1.0, range_given=True), "min is 2.0"),
        (
            lambda q: q.quantize_and_dequantize_v2([1.0], [0.0], 1.0, range_given=True),
            "a bound is f32",
        ),
        (
            lambda q: q.quantize_and_dequantize_v2([1.0], 0.0, 1.0, range_given=True, axis=0),
            "for axis 0",
        ),
        (lambda q: q.quantize_and_dequantize_v2([1.0], 0.0, 1.0, num_bits=1), "num_bits is 1"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises((ValueError, TypeError), match=words) as error:
        call(tg.quantization)
    assert "test_quantization.py" in str(error.value)
    assert "fix: " in str(error.value)
