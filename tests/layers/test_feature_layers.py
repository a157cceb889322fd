"""Layers that prepare features, against NumPy; expected numbers of quantiles are those of Keras."""

import numpy as np
import pytest
from scipy import signal

import tracegraph as tg

L = tg.layers
ROWS = np.array([[0, 1], [0, 0], [1, 2], [3, 1]])
VALUES = np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]])


def test_categories_are_vectors():
    counts = np.eye(4, dtype=np.float32)[ROWS].sum(1)
    assert np.array_equal(L.CategoryEncoding(4)(ROWS).numpy(), counts > 0)
    assert np.array_equal(L.CategoryEncoding(4, "count")(ROWS).numpy(), counts)
    weights = np.float32([[0.1, 0.2], [0.1, 0.1], [0.2, 0.3], [0.4, 0.2]])
    summed = (np.eye(4, dtype=np.float32)[ROWS] * weights[..., None]).sum(1)
    assert np.array_equal(
        L.CategoryEncoding(4, "count")(ROWS, count_weights=weights).numpy(), summed
    )
    one_hot = L.CategoryEncoding(4, "one_hot")
    assert np.array_equal(one_hot(ROWS).numpy(), np.eye(4)[ROWS])
    assert np.array_equal(one_hot(ROWS[:, :1]).numpy(), np.eye(4)[ROWS[:, 0]])
    assert one_hot(2).shape == (1, 4)
    assert L.CategoryEncoding(4, "multi_hot")([3, 1]).numpy().tolist() == [0, 1, 0, 1]
    assert L.CategoryEncoding(4, dtype="int64")(np.uint8([3, 1, 9])).dtype is tg.int64


@pytest.mark.parametrize("mode", ["multi_hot", "count"])
def test_categories_of_an_open_number_of_examples(mode):
    """In a function, with the gradient of the weights."""
    layer = L.CategoryEncoding(4, mode)
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, 2], tg.int32)])
    assert np.array_equal(f(ROWS.astype(np.int32)).numpy(), layer(ROWS).numpy())
    if mode == "count":
        weights = tg.Variable(tg.ones([4, 2]))
        with tg.GradientTape() as tape:
            total = tg.reduce_sum(layer(ROWS, count_weights=weights) * [1.0, 2.0, 3.0, 4.0])
        assert np.array_equal(tape.gradient(total, weights).numpy(), ROWS + 1.0)


def test_an_open_last_axis_may_be_of_size_1():
    layer = L.CategoryEncoding(4, "one_hot")
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, None], tg.int32)])
    for rows in (ROWS, ROWS[:, :1]):
        rows = rows.astype(np.int32)
        assert np.array_equal(f(rows).numpy(), layer(rows).numpy())


def test_numbers_are_in_ranges():
    bounds = [0.0, 1.0, 2.0]
    found = L.Discretization(bounds)(VALUES)
    assert found.dtype is tg.int32
    assert np.array_equal(found.numpy(), np.digitize(VALUES, bounds))
    edges = L.Discretization(bounds)([np.nan, np.inf, -np.inf]).numpy()
    assert edges.tolist() == [3, 3, 0]
    counts = L.Discretization(bounds, output_mode="count")(VALUES).numpy()
    assert counts.tolist() == [[1, 1, 1, 1], [0, 2, 1, 1]]
    assert L.Discretization(bounds, output_mode="one_hot")(VALUES).shape == (2, 4, 4)
    assert L.Discretization([])(VALUES).numpy().max() == 0


def test_boundaries_are_found_in_data(tmp_path):
    layer = L.Discretization(num_bins=4, epsilon=0.01)
    with pytest.raises(ValueError, match="no boundaries yet"):
        layer(VALUES)
    layer.adapt(VALUES)
    assert layer.bin_boundaries == [0.0, 0.5, 1.2999999523162842]
    assert layer(VALUES).numpy().tolist() == [[0, 2, 3, 2], [1, 3, 3, 1]]
    path = tg.train.Checkpoint(layer=layer).save(tmp_path / "ckpt")
    other = L.Discretization(num_bins=4)
    tg.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert np.array_equal(other(VALUES).numpy(), layer(VALUES).numpy())
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(50, 3)), rng.normal(size=(77, 3))]
    layer = L.Discretization(num_bins=4, epsilon=0.1)
    layer.adapt(batches)
    assert layer.bin_boundaries == [
        -0.6438790559768677,
        0.0004141703830100596,
        0.7827306985855103,
    ]
    layer.adapt(iter(batches), steps=1)
    assert layer.bin_boundaries != other.bin_boundaries


def test_fewer_elements_than_ranges_leave_the_last_ranges_empty():
    layer = L.Discretization(num_bins=4, output_mode="one_hot")
    layer.adapt(np.array([1.0, 2.0]))
    assert layer.bin_boundaries == [1.0]
    assert layer([0.0, 5.0, np.inf, np.nan]).numpy().argmax(-1).tolist() == [0, 1, 1, 1]
    many = L.Discretization(num_bins=49)
    many.adapt(np.arange(1000.0))
    assert len(many.bin_boundaries) == 48


TOKENS = [12, 36, 1138, 42]
PLACED = np.array([[12, 1138, 42, 42], [42, 7, 36, -7]])


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({}, [[1, 3, 4, 4], [4, 0, 2, 0]]),
        ({"mask_token": 7}, [[2, 4, 5, 5], [5, 0, 3, 1]]),
        ({"num_oov_indices": 3}, [[3, 5, 6, 6], [6, 1, 4, 2]]),
        ({"num_oov_indices": 3, "mask_token": 7}, [[4, 6, 7, 7], [7, 0, 5, 3]]),
    ],
)
def test_integers_have_places_in_a_vocabulary(settings, places):
    """Also as vectors, in which the mask token does not count, of open sizes, and back."""
    layer = L.IntegerLookup(vocabulary=TOKENS, **settings)
    assert layer(PLACED).dtype is tg.int64
    assert layer(PLACED).numpy().tolist() == places
    assert layer(PLACED.astype(np.float64)).numpy().tolist() == places
    assert layer(12).numpy() == places[0][0]
    assert layer(np.zeros([0, 2], np.int32)).shape == (0, 2)
    known = np.isin(PLACED, TOKENS)
    back = L.IntegerLookup(vocabulary=layer.get_vocabulary(), invert=True, **settings)
    assert np.array_equal(back(places).numpy()[known], PLACED[known])
    assert back([99, -1]).numpy().tolist() == [-1, -1]
    is_masked = "mask_token" in settings
    vectors = np.eye(layer.vocabulary_size())[places][..., int(is_masked) :]
    for mode, wanted in (
        ("one_hot", vectors),
        ("multi_hot", vectors.max(1)),
        ("count", vectors.sum(1)),
    ):
        encode = L.IntegerLookup(vocabulary=TOKENS, output_mode=mode, **settings)
        f = tg.function(encode, input_signature=[tg.TensorSpec([None, 4], tg.int64)])
        assert f(PLACED).dtype is tg.float32
        assert np.array_equal(f(PLACED).numpy(), wanted)


FOUND = np.array([[12, 1138, 42], [42, 1000, 36], [-1, 0, 42]])


@pytest.mark.parametrize(
    ("settings", "vocabulary"),
    [
        ({}, [-1, 42, 1138, 1000, 36, 12, 0]),
        ({"mask_token": 0}, [0, -1, 42, 1138, 1000, 36, 12]),
        ({"max_tokens": 4}, [-1, 42, 1138, 1000]),
        ({"num_oov_indices": 0}, [42, 1138, 1000, 36, 12, 0]),
        ({"oov_token": None, "num_oov_indices": 2}, [None, None, 42, 1138, 1000, 36, 12, 0, -1]),
        ({"mask_token": 0, "output_mode": "count"}, [-1, 42, 1138, 1000, 36, 12]),
    ],
)
def test_vocabularies_are_found_in_data(settings, vocabulary):
    layer = L.IntegerLookup(**settings)
    for data in (FOUND, FOUND.tolist(), iter(FOUND), [(row, None) for row in FOUND]):
        layer.adapt(data)
        assert layer.get_vocabulary() == vocabulary
    assert layer.vocabulary_size() == len(vocabulary)
    start = len(vocabulary) - len(layer.get_vocabulary(include_special_tokens=False))
    assert layer.get_vocabulary(False) == vocabulary[start:]
    layer.adapt(iter(FOUND), steps=1)
    assert layer.get_vocabulary(False) == [1138, 42, 12][: len(vocabulary) - start]


def test_a_vocabulary_is_state(tmp_path):
    """Checkpoints and saved models have it; functions are traced again for another size."""
    rng = np.random.default_rng(0)
    data = rng.integers(-(2**40), 2**40, 200)
    layer = L.IntegerLookup(300, output_mode="one_hot", pad_to_max_tokens=True)
    layer.adapt(data)
    model = tg.keras.Sequential([layer, L.Dense(2)])
    model.serve = tg.function(model)
    result = model.serve(data)
    assert model.count_params() == 2 * 200 + (300 + 1) * 2  # tokens, their order, and Dense
    path = tg.train.Checkpoint(layer=layer).save(tmp_path / "ckpt")
    other = L.IntegerLookup(300, output_mode="one_hot", pad_to_max_tokens=True)
    tg.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert np.array_equal(other(data).numpy(), np.eye(300)[layer(data).numpy().argmax(-1)])
    tg.saved_model.save(model, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model")
    assert np.array_equal(loaded.serve(data).numpy(), result.numpy())
    f = tg.function(other)
    f(data)
    traced = f.get_concrete_function(data)
    other.set_vocabulary([3, int(data[0])])
    assert f(data).numpy().argmax(-1)[0] == other(data).numpy().argmax(-1)[0] == 2
    with pytest.raises(tg.errors.ShapeError, match=r"does not have the shape \[200\]"):
        traced(data)


def test_unknown_integers_are_refused_in_every_run():
    f = tg.function(L.IntegerLookup(num_oov_indices=0, vocabulary=TOKENS, mask_token=0))
    assert f([[12, 0]]).numpy().tolist() == [[1, 0]]
    with pytest.raises(tg.errors.InvalidArgumentError, match="have an integer that is unknown"):
        f([[12, 5]])


def test_counts_are_weighted_by_how_rare_integers_are():
    """Those of Keras: a document is a row, or one vector."""
    data = np.array([[5, 5, 7], [7, 7, 9], [7, 3, 3]])
    layer = L.IntegerLookup(output_mode="tf_idf", max_tokens=7, pad_to_max_tokens=True)
    layer.adapt([data[:1], data[1:], data[0, :2]])
    assert layer.get_vocabulary() == [-1, 7, 5, 3, 9]
    weights = np.log(1 + 4 / (1 + np.array([3, 2, 1, 1])))
    weights = np.array([weights.mean(), *weights, 0, 0])
    f = tg.function(lambda x: layer(x))
    wanted = weights * [[1, 2, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0]]
    assert np.allclose(f([[7, 8, 7], [9, 5, 3]]).numpy(), wanted)
    assert np.allclose(f([5, 9, 9]).numpy(), weights * [0, 0, 1, 0, 2, 0, 0])
    cases = [([-1, 2, 4], [4, 0, 4]), ([1, 2, 4], [7 / 3, 0, 0, 4])]
    for tokens, wanted in cases:
        options = {"idf_weights": [4.0, 1.0, 2.0], "output_mode": "tf_idf"}
        layer = L.IntegerLookup(vocabulary=tokens, **options)
        assert np.allclose(layer([9, 4, 4]).numpy(), wanted)


SOUND = np.random.default_rng(0).normal(size=(2, 50, 3)).astype(np.float32)


def frames_of(sound, length, step):
    """[..., frames, length] of [..., samples]."""
    return np.lib.stride_tricks.sliding_window_view(sound, length, -1)[..., ::step, :]


@pytest.mark.parametrize(
    ("mode", "of"),
    [
        ("real", np.real),
        ("imag", np.imag),
        ("magnitude", np.abs),
        ("log", lambda z: np.log(np.abs(z))),
        ("psd", lambda z: np.abs(z) ** 2 * ([1] + [2] * (z.shape[-1] - 2) + [1])),
        ("stft", lambda z: np.concatenate([z.real, z.imag], -1)),
    ],
)
@pytest.mark.parametrize(
    ("length", "window", "options"),
    [
        (8, signal.windows.hann(8), {}),
        (7, signal.windows.hamming(7, False), {"window": "hamming", "periodic": True}),
        (6, np.arange(1, 7), {"window": np.arange(1, 7), "scaling": "spectrum", "frame_step": 2}),
        (8, np.ones(8), {"window": None, "fft_length": 16}),
    ],
)
def test_spectrograms(mode, of, length, window, options):
    """In all arrangements of axes, and in a function of any sound."""
    scale = {"spectrum": window.sum(), "density": np.sqrt((window**2).sum())}
    kind = None if options.get("window", "") is None else options.get("scaling", "density")
    step, size = options.get("frame_step", length // 2), options.get("fft_length", 8)
    parts = frames_of(SOUND.transpose(0, 2, 1), length, step) * window / scale.get(kind, 1)
    wanted = of(np.fft.rfft(parts, size))
    for is_first in (False, True):
        for expands in (False, True):
            axes = (0, 2, 3, 1) if expands else (0, 2, 1, 3)
            if is_first:
                axes = (0, 1, 2, 3) if expands else (0, 1, 3, 2)
            z = wanted.transpose(axes)
            if not expands:
                z = z.reshape(2, -1, z.shape[-1]) if is_first else z.reshape(2, z.shape[1], -1)
            form = "channels_first" if is_first else "channels_last"
            layer = L.STFTSpectrogram(
                mode, length, expand_dims=expands, data_format=form, **options
            )
            x = SOUND.transpose(0, 2, 1) if is_first else SOUND
            assert np.allclose(layer(x).numpy(), z, atol=2e-5)
    layer = L.STFTSpectrogram(mode, length, padding="same", **options)
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, None, 3])])
    assert f(SOUND).shape[:2] == (2, -(-50 // step))


@pytest.mark.parametrize(("window", "exponent"), [("hann", 2.0), ("hamming", 1.0), (None, 3.0)])
def test_mel_spectrograms(window, exponent):
    x = SOUND[..., 0]
    length, weights = 24, signal.get_window(window or "boxcar", 24)
    at = (32 - length) // 2
    weights = np.pad(weights, (at, at)) if window else np.ones(32)
    parts = frames_of(np.pad(x, ((0, 0), (16, 16)), "reflect"), 32, 10) * weights
    power = np.abs(np.fft.rfft(parts)) ** exponent
    wanted = power @ tg.signal.linear_to_mel_weight_matrix(5, 17, 8000, 20.0, 4000.0).numpy()
    options = {"sequence_length": length, "num_mel_bins": 5, "sampling_rate": 8000}
    options |= {"window": window, "mag_exp": exponent}
    layer = L.MelSpectrogram(32, 10, power_to_db=False, **options)
    assert np.allclose(layer(x).numpy(), wanted.swapaxes(1, 2), rtol=1e-4)
    levels = 10 * np.log10(wanted) - 10 * np.log10(0.5)
    levels = np.maximum(levels, levels.max() - 9)
    layer = L.MelSpectrogram(32, 10, top_db=9.0, ref_power=0.5, **options)
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, None])])
    assert np.allclose(f(x).numpy(), levels.swapaxes(1, 2), atol=1e-3)
    one = L.MelSpectrogram(32, 10, power_to_db=False, **options)(x[0])
    assert np.allclose(one.numpy(), wanted[0].T, rtol=1e-4)


def test_spectrograms_can_be_trained():
    layer = L.STFTSpectrogram(frame_length=8)
    layer(SOUND)
    mel = L.MelSpectrogram(16, 8, num_mel_bins=4)
    for made, sound in ((layer, SOUND), (mel, SOUND[..., 0])):
        x = tg.Variable(sound)
        with tg.GradientTape() as tape:
            total = tg.reduce_sum(made(x) ** 2)
        for gradient in tape.gradient(total, [x, *made.trainable_variables]):
            assert np.isfinite(gradient.numpy()).all() and gradient.numpy().any()


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: L.CategoryEncoding(), "num_tokens, the number of categories, is missing"),
        (lambda: L.CategoryEncoding(4, sparse=True), "all tensors are dense"),
        (lambda: L.CategoryEncoding(4)(ROWS, count_weights=ROWS), "output_mode is 'multi_hot'"),
        (lambda: L.CategoryEncoding(4)(ROWS[None]), "are a vector, and there is"),
        (lambda: L.CategoryEncoding(4)([[-1]]), "count from 0, and there is -1"),
        (lambda: L.Discretization(), "bin_boundaries is None, and num_bins is None"),
        (lambda: L.Discretization([2.0, 1.0]), r"the boundaries are \[2.0, 1.0\]"),
        (lambda: L.Discretization([1.0]).adapt(VALUES), "the boundaries were given"),
        (lambda: L.Discretization(num_bins=2).adapt([]), "there are no data"),
        (lambda: L.Discretization(num_bins=2).adapt(iter([1.0])), "a batch is an array"),
        (lambda: L.Discretization(num_bins=2).adapt(VALUES * np.nan), "a boundary is nan"),
        (lambda: L.Discretization(num_bins=2).adapt(VALUES * 1j), "given as complex128"),
        (lambda: L.Normalization().adapt(np.array(["a"])), "given as str32"),
        (
            lambda: L.STFTSpectrogram(frame_length=8, frame_step=9),
            "frame_step is 9, and",
        ),
        (lambda: L.STFTSpectrogram(frame_length=2), "all 2 numbers of the window are 0"),
        (lambda: L.STFTSpectrogram(window=[1.0]), r"window is \[1.0\], of shape \(1,\)"),
        (lambda: L.STFTSpectrogram()(SOUND[0]), "the sounds are f32"),
        (lambda: L.MelSpectrogram(16, sequence_length=17), "sequence_length is 17, and fft_length"),
        (lambda: L.MelSpectrogram(16, window=1.0), r"window is 1.0, of shape \(\)"),
        (lambda: L.MelSpectrogram(16)(SOUND), "the sounds are f32"),
        (lambda: L.IntegerLookup()(ROWS), "it has no vocabulary yet"),
        (lambda: L.IntegerLookup().adapt([]), "there are no data"),
        (lambda: L.IntegerLookup().adapt([0.5]), "and there is 0.5 of float64"),
        (lambda: L.IntegerLookup(vocabulary=np.uint64([2**63])), "is 9223372036854775808 of"),
        (lambda: L.IntegerLookup(vocabulary=TOKENS).adapt(ROWS), "the vocabulary was given"),
        (lambda: L.IntegerLookup(vocabulary=["a"]), "tokens are integers"),
        (lambda: L.IntegerLookup(vocabulary="words.txt"), r"np.loadtxt\(name, np.int64\)"),
        (lambda: L.IntegerLookup(vocabulary=[]), r"the vocabulary has the shape \(0,\)"),
        (lambda: L.IntegerLookup(vocabulary=[1, 2, 1]), "the vocabulary has 1 twice"),
        (lambda: L.IntegerLookup(4, vocabulary=TOKENS), "there are 5 places, and max_tokens is 4"),
        (lambda: L.IntegerLookup(2, mask_token=0), "max_tokens is 2, of which 2 for the mask"),
        (lambda: L.IntegerLookup(mask_token=2, vocabulary=[1, 2]), "2, which is at place 1 of the"),
        (lambda: L.IntegerLookup(invert=True, vocabulary=[1, -1]), "oov_token is -1, which is at"),
        (lambda: L.IntegerLookup(invert=True, oov_token=None), "oov_token is None"),
        (lambda: L.IntegerLookup(invert=True, output_mode="count"), "output_mode is 'count'"),
        (lambda: L.IntegerLookup(num_oov_indices=-1), "num_oov_indices is -1"),
        (lambda: L.IntegerLookup(pad_to_max_tokens=True), "pad_to_max_tokens is True"),
        (lambda: L.IntegerLookup(oov_method="farmhash"), "oov_method is 'farmhash'"),
        (lambda: L.IntegerLookup(idf_weights=[1.0]), "idf_weights were given"),
        (lambda: L.IntegerLookup(vocabulary=[1], output_mode="tf_idf"), "has no idf_weights"),
        (
            lambda: L.IntegerLookup(vocabulary=[1, 2], output_mode="tf_idf", idf_weights=[1.0]),
            "the vocabulary has 2 integers, and idf_weights have the shape",
        ),
        (lambda: L.IntegerLookup(num_oov_indices=0, vocabulary=[0, 1])(ROWS), "that is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(make, fact):
    with pytest.raises((ValueError, TypeError), match=fact):
        make()
