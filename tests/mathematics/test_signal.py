"""Transforms, frames and windows against NumPy and SciPy."""

import numpy as np
import pytest
import scipy.fft

import tracegraph as tg
from tracegraph.testing import check_gradients

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(5)


def sample(*shape, dtype=np.float64):
    values = RANDOM.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RANDOM.standard_normal(shape)
    return values.astype(dtype)


def close(found, expected):
    found = np.asarray(found)
    assert found.shape == np.shape(expected)
    rounding = 100 * np.finfo(found.dtype).eps
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding)


@pytest.fixture(params=["top level", "function", "open sizes"])
def run(request):
    """Returns `run(fn, x)`: fn as it is, or traced, or traced with open sizes."""
    if request.param == "top level":
        return lambda fn, x: fn(tg.constant(x))
    if request.param == "function":
        return lambda fn, x: tg.function(fn)(tg.constant(x))
    return lambda fn, x: tg.function(fn, input_signature=[tg.TensorSpec([None] * x.ndim, x.dtype)])(
        tg.constant(x)
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_complex_transforms(run, dtype, count):
    x = sample(2, 3, 4, 5, dtype=dtype)
    suffix, axes = ("", "2d", "3d")[count - 1], tuple(range(-count, 0))
    found = run(getattr(tg.signal, f"fft{suffix}"), x)
    assert found.dtype is tg.as_dtype(dtype)
    close(found, np.fft.fftn(x, axes=axes))
    close(run(getattr(tg.signal, f"ifft{suffix}"), x), np.fft.ifftn(x, axes=axes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_real_transforms(run, dtype, count):
    suffix, axes = ("", "2d", "3d")[count - 1], tuple(range(-count, 0))
    forward, back = (getattr(tg.signal, f"{name}{suffix}") for name in ("rfft", "irfft"))
    for size in (4, 5):
        x = sample(2, 3, 4, size, dtype=dtype)
        expected, found = np.fft.rfftn(x, axes=axes), run(forward, x)
        close(found, expected)
        lengths = [3, 4, size][-count:]
        inverse = tg.function(lambda z, n=lengths: back(z, n))
        close(inverse(expected.astype(found.dtype.numpy_dtype)), x)
    close(run(back, expected), np.fft.irfftn(expected, axes=axes))
    pairs = []
    for lengths in ([2, 3, 4][-count:], [6, 7, 8][-count:]):
        pairs.append((forward(x, lengths), np.fft.rfftn(x, lengths, axes)))
        pairs.append((back(expected, lengths), np.fft.irfftn(expected, lengths, axes)))
    for found, wanted in pairs:
        close(found, wanted)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
def test_transforms_along_any_axes(norm):
    x, z = sample(3, 4, 5), sample(3, 4, 5, dtype=np.complex128)
    pairs = []
    for sizes, axes in ((None, None), ([2, 6], [2, 0]), (None, [1])):
        given = {"fft_length": sizes, "axes": axes, "norm": norm}
        theirs = (sizes, axes, norm)
        pairs += [
            (tg.signal.fftnd(z, **given), np.fft.fftn(z, *theirs)),
            (tg.signal.ifftnd(z, **given), np.fft.ifftn(z, *theirs)),
            (tg.signal.rfftnd(x, **given), np.fft.rfftn(x, *theirs)),
            (tg.signal.irfftnd(z, **given), np.fft.irfftn(z, *theirs)),
        ]
    for found, wanted in pairs:
        close(found, wanted)


def test_transforms_along_any_axes_refuse_lengths_that_do_not_fit():
    for length in ([0, 4], [4]):
        with pytest.raises(ValueError, match="fft_length is"):
            tg.signal.rfftnd(tg.ones([3, 4]), length, axes=[0, 1])


def test_zero_in_the_middle(run):
    x = sample(3, 4, 5)
    for axes in (None, 1, [0, -1]):
        close(run(lambda x, axes=axes: tg.signal.fftshift(x, axes), x), np.fft.fftshift(x, axes))
        close(run(lambda x, axes=axes: tg.signal.ifftshift(x, axes), x), np.fft.ifftshift(x, axes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("norm", [None, "ortho"])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_cosine_transforms(type, norm, size):
    if type == 1 and norm:
        with pytest.raises(ValueError, match="no orthonormal form"):
            tg.signal.dct(tg.ones([4]), 1, norm=norm)
        return
    compute = tg.function(lambda x: tg.signal.dct(x, type, norm=norm))
    pairs = []
    for dtype in (np.float32, np.float64):
        x = sample(2, size, dtype=dtype)
        found = compute(tg.constant(x))
        scale = 1 if norm else 2 * (size - 1 if type == 1 else size)
        pairs.append((found, scipy.fft.dct(x, type, norm=norm)))
        pairs.append((tg.signal.idct(found, type, norm=norm) / scale, x))
    cut, turned = (
        tg.signal.dct(x, type, n=4, norm=norm),
        tg.signal.dct(x.T, type, axis=0, norm=norm),
    )
    pairs.append((cut, scipy.fft.dct(x, type, 4, norm=norm)))
    pairs.append((turned, scipy.fft.dct(x.T, type, axis=0, norm=norm)))
    for found, wanted in pairs:
        close(found, wanted)
    check_gradients(compute, tg.constant(x), order=1)  # linear


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize(("length", "step"), [(3, 2), (2, 3), (4, 4), (9, 1)])
def test_frames(axis, length, step):
    x = sample(8, 7)
    whole = np.lib.stride_tricks.sliding_window_view(x, min(length, x.shape[axis]), axis)
    if length > x.shape[axis]:
        assert 0 in tg.signal.frame(x, length, step, axis=axis).shape
        return
    pieces = np.moveaxis(whole, -1, axis % 2 + 1)
    pieces = pieces[::step] if axis == 0 else pieces[:, ::step]
    close(tg.function(lambda x: tg.signal.frame(x, length, step, axis=axis))(x), pieces)


def test_frames_of_absurd_lengths():
    """NumPy was asked for the place of each element, and had no memory."""
    assert tg.signal.frame([1.0, 2.0], 2**40, 1).numpy().shape == (0, 2**40)
    for length in (2**62, 10**18):
        with pytest.raises(tg.errors.InvalidArgumentError, match="no machine addresses more"):
            tg.signal.frame([1.0, 2.0], length, 1)
    signal = np.arange(20_000, dtype=np.float32)
    found = tg.signal.frame(signal, 2000, 1)  # more places than NumPy computes
    assert found.shape == (18_001, 2000)
    np.testing.assert_array_equal(found[-1], signal[-2000:])


def test_frames_that_are_filled_up():
    """The values are those of tf.signal.frame."""
    found = tg.signal.frame([1, 2, 3, 4, 5], 3, 2, pad_end=True, pad_value=9)
    assert found.numpy().tolist() == [[1, 2, 3], [3, 4, 5], [5, 9, 9]]
    assert tg.signal.frame([1, 2], 3, 5, pad_end=True).numpy().tolist() == [[1, 2, 0]]
    assert tg.signal.frame([1, 2], 3, 5).shape == (0, 3)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_overlapping_frames_are_added(step):
    x = sample(2, 4, 3)
    expected = np.zeros((2, 3 * step + 3))
    for k in range(4):
        expected[:, k * step : k * step + 3] += x[:, k]
    close(tg.function(lambda x: tg.signal.overlap_and_add(x, step))(x), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fft_length", [None, 16, 5])
def test_short_time_transforms(dtype, fft_length):
    x = sample(2, 40, dtype=dtype)
    window = scipy.signal.get_window("hann", 8)
    frames = np.lib.stride_tricks.sliding_window_view(x, 8, -1)[:, ::3] * window
    found = tg.signal.stft(x, 8, 3, fft_length)
    close(found, np.fft.rfft(frames.astype(dtype), fft_length or 8))
    if fft_length != 5:
        undo = tg.signal.inverse_stft_window_fn(3)
        inverse = lambda z: tg.signal.inverse_stft(z, 8, 3, fft_length, undo)  # noqa: E731
        for fn in (inverse, tg.function(inverse)):
            close(fn(found)[:, 8:30], x[:, 8:30])
    check_gradients(
        lambda x: tg.signal.inverse_stft(tg.signal.stft(x, 8, 3, fft_length), 8, 3, fft_length),
        tg.constant(x[0, :14]),
        order=1,
    )


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8])
def test_windows(count):
    for name in ("hann", "hamming"):
        make = getattr(tg.signal, f"{name}_window")
        whole = scipy.signal.get_window(name, count, count % 2 == 0) if count else np.zeros(0)
        close(make(count, dtype=tg.float64), whole)
        plain = scipy.signal.get_window(name, count, False) if count else np.zeros(0)
        close(make(count, periodic=False, dtype=tg.float64), plain)
    close(tg.signal.kaiser_window(count, 3.0, tg.float64), np.kaiser(count, 3.0))
    if count and count % 2 == 0:
        expected = scipy.signal.windows.kaiser_bessel_derived(count, beta=4 * np.pi, sym=True)
        close(tg.signal.kaiser_bessel_derived_window(count, 4 * np.pi, tg.float64), expected)
        half = tg.signal.vorbis_window(count, tg.float64).numpy() ** 2
        close(tg.constant(half[: count // 2] + half[count // 2 :]), np.ones(count // 2))
    assert tg.signal.hann_window(4, dtype=tg.bfloat16).dtype is tg.bfloat16


def test_the_mel_scale():
    weights = tg.signal.linear_to_mel_weight_matrix(20, 129, dtype=tg.float64).numpy()
    assert weights.shape == (129, 20)
    assert (weights >= 0).all() and (weights[0] == 0).all()
    mel = 1127 * np.log1p(np.linspace(0, 4000, 129) / 700)
    edges = np.linspace(*(1127 * np.log1p(np.array([125.0, 3800.0]) / 700)), 22)
    inside = (mel[:, None] > edges[:-2]) & (mel[:, None] < edges[2:])
    np.testing.assert_array_equal(weights > 0, inside)
    between = (mel > edges[1]) & (mel < edges[-2])
    np.testing.assert_allclose(weights[between].sum(1), 1.0)
    x = sample(3, 20)
    close(tg.signal.mfccs_from_log_mel_spectrograms(x), scipy.fft.dct(x) / np.sqrt(40))


def test_derivatives():
    """Real signals whose transforms are complex: gradients are real, and of any order."""
    x = tg.constant(sample(5))
    power = lambda x: tg.abs(tg.signal.rfft(x)) ** 2  # noqa: E731
    check_gradients(tg.function(power), x)
    check_gradients(lambda x: tg.signal.irfft(tg.signal.rfft(x) ** 2, [5]), x)
    # Parseval: the squares of all elements of the transform sum to n times those of x.
    total = lambda x: tg.reduce_sum(tg.abs(tg.signal.fft(tg.cast(x, tg.complex128))) ** 2)  # noqa: E731
    close(tg.grad(total)(x), 2 * 5 * x.numpy())
    found = tg.vectorized_map(tg.signal.rfft, tg.constant(sample(3, 4)))
    assert found.shape == (3, 3)


BAD = {
    "fft of real": (lambda: tg.signal.fft(tg.ones([1])), "DType", "only complex"),
    "fft of a scalar": (lambda: tg.signal.fft(1j), "Shape", "has fewer than 1 axis"),
    "fft2d of a vector": (lambda: tg.signal.fft2d([1j]), "Shape", "no 2 axes"),
    "ifft3d": (lambda: tg.signal.ifft3d([[1j]]), "Shape", "no 3 axes"),
    "rfft of complex": (lambda: tg.signal.rfft([1j]), "DType", "only floating"),
    "rfft of 16 bits": (lambda: tg.signal.rfft(tg.ones([2], tg.float16)), "DType", "no complex"),
    "rfft of length 0": (lambda: tg.signal.rfft([1.0], [0]), "Shape", "fft_length is"),
    "rfft2d with one length": (lambda: tg.signal.rfft2d([[1.0]], [2]), "Shape", "give 2 of 1"),
    "irfft of real": (lambda: tg.signal.irfft(tg.ones([2])), "DType", "only complex"),
    "dct of type 5": (lambda: tg.signal.dct([1.0], 5), "Trace", "type is 5"),
    "dct by another norm": (lambda: tg.signal.dct([1.0], norm="l2"), "Trace", "norm is"),
    "dct of a point": (lambda: tg.signal.dct([1.0], 1), "Shape", "two elements or more"),
    "dct of integers": (lambda: tg.signal.dct([1, 2]), "DType", "only floating"),
    "fftshift": (lambda: tg.signal.fftshift([1.0], 1), "Shape", "axis 1 is out of range"),
    "frame of 0": (lambda: tg.signal.frame([1.0], 0, 1), "Shape", "frame_length is 0"),
    "frame by 0": (lambda: tg.signal.frame([1.0], 1, 0), "Shape", "frame_step is 0"),
    "frame of a scalar": (lambda: tg.signal.frame(1.0, 1, 1), "Shape", "out of range"),
    "overlap_and_add": (lambda: tg.signal.overlap_and_add([1.0], 1), "Shape", "no frames"),
    "stft": (lambda: tg.signal.stft([1.0], 1, -1), "Shape", "frame_step is -1"),
    "inverse_stft": (lambda: tg.signal.inverse_stft([[1.0]], 1, 1, 1), "DType", "only complex"),
    "a window": (lambda: tg.signal.hann_window(-1), "Shape", "window_length is -1"),
    "a window of ints": (lambda: tg.signal.hamming_window(2, dtype=tg.int32), "DType", "int32"),
    "mel edges": (
        lambda: tg.signal.linear_to_mel_weight_matrix(lower_edge_hertz=4000.0),
        "Trace",
        "lower_edge_hertz is 4000",
    ),
    "mel bins": (lambda: tg.signal.linear_to_mel_weight_matrix(0), "Trace", "num_mel_bins is 0"),
    "mel above": (
        lambda: tg.signal.linear_to_mel_weight_matrix(upper_edge_hertz=5e3),
        "Trace",
        "upper_edge_hertz is 5000",
    ),
    "no mel bins": (
        lambda: tg.signal.mfccs_from_log_mel_spectrograms(tg.ones([2, 0])),
        "Trace",
        "no bins",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    call, kind, words = BAD[name]
    with pytest.raises(getattr(tg.errors, f"{kind}Error"), match=words) as caught:
        call()
    assert "test_signal.py" in str(caught.value)
    assert "fix: " in str(caught.value)


def test_a_factor_of_a_transform():
    """XLA gives the transform the layout of what comes behind it, which it must not have."""
    x = np.eye(3) + 0.1

    @tg.function
    def factor(x):
        y = tg.math.real(tg.signal.ifft(2 * tg.signal.fft(tg.cast(x, tg.complex128))))
        z = tg.signal.irfft(tg.signal.rfft(y), [3])
        return tg.linalg.cholesky(y), tg.linalg.cholesky(tg.transpose(z))

    for found in factor(tg.constant(x)):
        np.testing.assert_allclose(found, np.linalg.cholesky(2 * x), atol=1e-14)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("norm", [None, "ortho"])
def test_cosine_transforms_of_open_sizes(kind, norm):
    if kind == 1 and norm == "ortho":
        return
    specs = [tg.TensorSpec([None, None], tg.float64)]
    transform = tg.function(lambda x: tg.signal.dct(x, kind, norm=norm), input_signature=specs)
    for n in (2, 5):
        x = np.random.default_rng(n).standard_normal((3, n))
        expected = scipy.fft.dct(x, kind, norm=norm)
        np.testing.assert_allclose(transform(tg.constant(x)), expected, atol=1e-13)


def test_transforms_of_nothing():
    for shape in ((0,), (2, 0)):
        assert tg.signal.rfft(tg.zeros(shape)).shape == shape
        assert tg.signal.irfft(tg.zeros(shape, tg.complex64)).shape == shape


def test_an_inverse_window_is_0_where_no_window_reaches():
    """A window of Hann begins with 0; where frames do not overlap nothing else is there."""
    inverse = tg.signal.inverse_stft_window_fn(4)(4, dtype=tg.float64).numpy()
    window = tg.signal.hann_window(4, dtype=tg.float64).numpy()
    np.testing.assert_allclose(inverse * window, [0, 1, 1, 1])


def test_frames_have_one_length_and_one_filling():
    for ask in (
        lambda: tg.signal.frame([1], [1], 1),
        lambda: tg.signal.frame([1], 1, [1]),
        lambda: tg.signal.frame([1], 1, 1, pad_end=True, pad_value=[1]),
    ):
        with pytest.raises(ValueError, match="frame: "):
            ask()


def test_a_rate_may_be_a_tensor():
    expected = tg.signal.linear_to_mel_weight_matrix(sample_rate=8000.0)
    for rate in (tg.constant(8000), tg.constant(8000.0), np.float32(8000)):
        found = tg.signal.linear_to_mel_weight_matrix(sample_rate=rate)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("norm", [None, "ortho"])
@pytest.mark.parametrize("window", [None, tg.signal.vorbis_window])
def test_modified_cosine_transform(window, norm):
    x, half = sample(2, 30), 6
    n, k = np.arange(2 * half), np.arange(half)
    cosines = np.cos(np.pi / half * np.outer(n + (1 + half) / 2, k + 0.5))
    weights = np.full(12, 0.5**0.5) if window is None else window(12, dtype=tg.float64).numpy()
    frames = np.stack([x[:, start : start + 12] for start in (0, 6, 12, 18)], 1)
    scale = 2 if norm is None else (2 / half) ** 0.5
    found = tg.signal.mdct(x, 12, window, norm=norm)
    close(found, scale * (frames * weights) @ cosines)
    close(tg.signal.inverse_mdct(found, window, norm)[:, 6:-6], x[:, 6:-6])
    assert tg.signal.mdct(x, 12, window, pad_end=True).shape == [2, 5, 6]


def test_modified_cosine_transforms_refuse_lengths_that_cannot_be_halved():
    with pytest.raises(ValueError, match="frame_length is 6"):
        tg.signal.mdct(tg.ones([12]), 6)
    with pytest.raises(ValueError, match="3 elements in a frame"):
        tg.signal.inverse_mdct(tg.ones([2, 3]))
    with pytest.raises(ValueError, match="no frames"):
        tg.signal.inverse_mdct(tg.ones([4]))
