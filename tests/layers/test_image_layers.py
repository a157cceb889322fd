"""Layers of images, against NumPy and SciPy's transformations."""

import numpy as np
import pytest
from scipy import ndimage

import tracegraph as tg

L = tg.layers
X = np.random.default_rng(0).uniform(size=(2, 6, 8, 3)).astype(np.float32)
#: SciPy's names of what is outside of an image.
OUTSIDE = {"reflect": "reflect", "nearest": "nearest", "constant": "grid-constant"}


def moved(x, matrix, offset, fill, order):
    """Each channel of each image by SciPy: the pixel at p is that at matrix @ p + offset."""
    options = {"order": order, "mode": OUTSIDE[fill], "cval": 0.5, "prefilter": False}
    y = [
        [ndimage.affine_transform(one[..., c], matrix, offset, **options) for c in range(3)]
        for one in x
    ]
    return np.moveaxis(np.array(y), 1, -1)


def about_middle(matrix, x=X):
    middle = (np.array(x.shape[1:3]) - 1) / 2
    return matrix, middle - matrix @ middle


def turn(part):
    a = 2 * np.pi * part
    return about_middle(np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]))


@pytest.mark.parametrize("fill", OUTSIDE)
@pytest.mark.parametrize(
    ("make", "matrix", "offset"),
    [
        (lambda **kw: L.RandomRotation([0.13, 0.13], **kw), *turn(0.13)),
        (lambda **kw: L.RandomRotation((-0.4, -0.4), **kw), *turn(-0.4)),
        (lambda **kw: L.RandomTranslation([0.3, 0.3], [-0.9, -0.9], **kw), np.eye(2), [-1.8, 7.2]),
        (lambda **kw: L.RandomZoom([0.3, 0.3], **kw), *about_middle(np.eye(2) * 1.3)),
        (
            lambda **kw: L.RandomZoom([-0.6, -0.6], [0.7, 0.7], **kw),
            *about_middle(np.diag([0.4, 1.7])),
        ),
    ],
)
def test_images_are_moved(make, matrix, offset, fill):
    for order, interpolation in enumerate(["nearest", "bilinear"]):
        layer = make(fill_mode=fill, interpolation=interpolation, fill_value=0.5)
        wanted = moved(X, matrix, offset, fill, order)
        assert np.allclose(layer(X).numpy(), wanted, atol=1e-4)
        assert np.array_equal(layer(X, training=False).numpy(), X)


def test_what_is_outside_may_be_the_other_side():
    layer = L.RandomTranslation([0.5, 0.5], [0.0, 0.0], fill_mode="wrap")
    assert np.allclose(layer(X).numpy(), np.roll(X, 3, axis=1))


def test_a_place_in_the_middle_between_two_is_rounded_away_from_the_first():
    """As in TensorFlow, so that an image moved by half a pixel loses one at both sides."""
    x = np.arange(1.0, 5.0, dtype=np.float32).reshape(1, 1, 4, 1)
    for part, wanted in ((1 / 8, [9, 2, 3, 4]), (-1 / 8, [2, 3, 4, 9])):
        filled = {"fill_mode": "constant", "fill_value": 9.0, "interpolation": "nearest"}
        layer = L.RandomTranslation(0.0, [part, part], **filled)
        assert layer(x).numpy().ravel().tolist() == wanted


def test_each_image_is_changed_in_its_own_way():
    """In functions too, with an open number of images, and with a gradient."""
    x = np.broadcast_to(X[:1], (20, 6, 8, 3))
    for layer in (L.RandomRotation(0.2), L.RandomZoom(0.3, 0.3), L.RandomTranslation(0.2, 0.2)):
        signature = [tg.TensorSpec([None, 6, 8, 3])]
        y = tg.function(lambda x, layer=layer: layer(x), input_signature=signature)(x).numpy()
        assert len({one.tobytes() for one in y}) == 20
        assert y.min() >= 0 and y.max() <= 1
    with tg.GradientTape() as tape:
        v = tg.Variable(X)
        total = tg.reduce_sum(L.RandomRotation([0.25, 0.25])(v))
    assert tape.gradient(total, v).shape == X.shape


@pytest.mark.parametrize(
    ("mode", "axes"), [("horizontal", [(), (2,)]), ("vertical", [(), (1,)]), (None, [(), (1, 2)])]
)
def test_images_are_flipped_or_not(mode, axes):
    x = np.broadcast_to(X[:1], (40, 6, 8, 3))
    y = (L.RandomFlip(mode) if mode else L.RandomFlip())(x).numpy()
    known = [np.flip(x, axis)[0].tobytes() for axis in axes]
    counts = [sum(one.tobytes() == other for one in y) for other in known]
    assert sum(counts) == 40 and min(counts) > 5


@pytest.mark.parametrize("contrast", [0.5, 1.5])
def test_contrast_and_brightness(contrast):
    """The mean of each channel of each image stays, in both formats; results are clipped."""
    layer = L.RandomContrast([1 - contrast, contrast - 1], (0.25, 0.75))
    mean = X.mean((1, 2), keepdims=True)
    wanted = np.clip((X - mean) * contrast + mean, 0.25, 0.75)
    assert np.allclose(layer(X).numpy(), wanted, atol=1e-6)
    first = L.RandomContrast(
        [1 - contrast, contrast - 1], (0.25, 0.75), data_format="channels_first"
    )
    assert np.allclose(first(X[0].transpose(2, 0, 1)).numpy(), wanted[0].transpose(2, 0, 1))
    part = contrast - 1
    wanted = np.clip(X + 2 * part, -1, 1)
    assert np.allclose(L.RandomBrightness([part, part], (1, -1))(X).numpy(), wanted, atol=1e-6)
    for layer in (L.RandomContrast(0.3), L.RandomBrightness(0.3)):
        assert np.array_equal(layer(X, training=False).numpy(), X)


def test_factors_of_contrast_and_brightness_are_on_both_sides():
    x = np.broadcast_to(np.float32([[100.0], [101.0]])[None, None], (200, 1, 2, 1))
    contrast = np.ptp(L.RandomContrast(0.5)(x).numpy(), axis=2).ravel()
    assert 0.5 <= contrast.min() < 0.6 and 1.4 < contrast.max() <= 1.5
    change = L.RandomBrightness(0.2)(x).numpy()[:, 0, 0, 0] - 100
    assert -51.001 <= change.min() < -40 and 40 < change.max() <= 51.001


#: Two rows of two colours, and what Keras 3.15 makes of them.
COLOURS = np.float32([[[[200, 100, 30], [10, 250, 90]], [[60, 60, 180], [255, 40, 0]]]])
CHANGED = [
    (
        lambda **kw: L.RandomHue([1.0, 1.0], **kw),
        [30, 130, 200, 250, 10, 170, 180, 180, 60, 0, 215, 255],
    ),
    (
        lambda **kw: L.RandomColorDegeneration([0.3, 0.3], **kw),
        [176.57, 106.57, 57.57, 55, 223, 111, 64.102, 64.102, 148.102, 208.41, 57.91, 29.91],
    ),
    (
        lambda **kw: L.RandomSharpness([0.9, 0.9], **kw),
        [255, 127.692, 28.154, 0, 255, 121.385, 60.923, 65.538, 255, 255, 34.462, 0],
    ),
    (
        lambda **kw: L.RandomInvert([1.0, 1.0], **kw),
        [55, 155, 225, 245, 5, 165, 195, 195, 75, 0, 215, 255],
    ),
    (
        lambda **kw: L.RandomGrayscale(1.0, **kw),
        [121.9, 121.9, 121.9, 159.999, 159.999, 159.999, 73.674, 73.674, 73.674, 99.7, 99.7, 99.7],
    ),
    (
        lambda **kw: L.RandomSaturation([0.7, 0.7], **kw),
        np.multiply([0.78431, 0.32295, 0, 0, 0.98039, 0.3268, 0, 0, 0.70588, 1, 0.15686, 0], 255),
    ),
]


@pytest.mark.parametrize(("make", "wanted"), CHANGED)
def test_tints(make, wanted):
    """As in Keras, in both formats; nothing changes outside of training."""
    wanted = np.reshape(wanted, COLOURS.shape)
    assert np.allclose(make()(COLOURS).numpy(), wanted, atol=2e-3)
    first = make(data_format="channels_first")(COLOURS[0].transpose(2, 0, 1))
    assert np.allclose(first.numpy().transpose(1, 2, 0), wanted[0], atol=2e-3)
    assert np.array_equal(make()(COLOURS, training=False).numpy(), COLOURS)


def test_tints_keep_to_the_range_of_values():
    """For each image in its own way, and with an open number of images."""
    x = np.broadcast_to(COLOURS / 255 - 0.5, (20, 2, 2, 3))
    for kind in (L.RandomHue, L.RandomSaturation, L.RandomColorDegeneration, L.RandomSharpness):
        layer = kind(0.5, (-0.5, 0.5))
        y = tg.function(layer, input_signature=[tg.TensorSpec([None, 2, 2, 3])])(x).numpy()
        assert len({one.tobytes() for one in y}) == 20
        assert np.abs(y).max() <= 0.5
    y = L.RandomInvert(value_range=(-0.5, 0.5))(x).numpy()
    assert {one.tobytes() for one in y} == {x[0].tobytes(), (0 - x[0]).tobytes()}
    assert len({one.tobytes() for one in L.RandomGrayscale()(x).numpy()}) == 2


def test_parts_are_cropped():
    x = np.arange(48.0, dtype=np.float32).reshape(1, 6, 8, 1)
    layer = L.RandomCrop(4, 7)
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, 6, 8, 1])])
    corners = set()
    for _ in range(60):
        y = f(np.concatenate([x, x + 100])).numpy()
        top, left = divmod(int(y[0, 0, 0, 0]), 8)
        assert np.array_equal(y[0], x[0, top : top + 4, left : left + 7])
        assert np.array_equal(y[1], y[0] + 100)
        corners.add((top, left))
    assert corners == {(top, left) for top in range(3) for left in range(2)}
    assert np.array_equal(L.RandomCrop(6, 8)(x).numpy(), x)
    for size in ((4, 7), (9, 3)):
        in_ratio = L.Resizing(*size, crop_to_aspect_ratio=True)(x).numpy()
        assert np.array_equal(L.RandomCrop(*size)(x, training=False).numpy(), in_ratio)
    assert np.array_equal(L.RandomCrop(9, 3)(x).numpy(), in_ratio)


def test_training_is_that_of_the_layer_around():
    model = L.Sequential([L.RandomRotation([0.5, 0.5]), L.Rescaling(1.0)])
    turned = X[:, ::-1, ::-1]
    assert np.allclose(model(X, training=True).numpy(), turned, atol=1e-5)
    assert np.array_equal(model(X, training=False).numpy(), X)
    assert np.allclose(model(X).numpy(), turned, atol=1e-5)


@pytest.mark.parametrize("height", [3, 6, 9])
@pytest.mark.parametrize("width", [4, 5, 12])
def test_images_are_resized(height, width):
    """By tg.image.resize, of what is left or filled."""
    size = (height, width)
    rows, columns = min(6, 8 * height // width), min(8, 6 * width // height)
    tall, wide = max(6, 8 * height // width), max(8, 6 * width // height)
    top, left = (6 - rows) // 2, (8 - columns) // 2
    cut = X[:, top : top + rows, left : left + columns]
    above, before = (tall - 6) // 2, (wide - 8) // 2
    filled = np.pad(
        X, [(0, 0), (above, above), (before, before), (0, 0)], constant_values=np.float32(0.25)
    )
    cases = [
        ({}, X),
        ({"crop_to_aspect_ratio": True}, cut),
        ({"pad_to_aspect_ratio": True, "fill_value": 0.25}, filled),
    ]
    for options, whole in cases:
        wanted = tg.image.resize(whole, size).numpy()
        assert np.allclose(L.Resizing(*size, **options)(X).numpy(), wanted, atol=1e-6)
        first = L.Resizing(*size, data_format="channels_first", **options)
        assert np.allclose(first(X[0].transpose(2, 0, 1)).numpy().transpose(1, 2, 0), wanted[0])
    middle = L.CenterCrop(*size)(X).numpy()
    if height <= 6 and width <= 8:
        top, left = (6 - height) // 2, (8 - width) // 2
        assert np.array_equal(middle, X[:, top : top + height, left : left + width])
    else:
        assert np.allclose(middle, tg.image.resize(cut, size).numpy(), atol=1e-6)


def test_integers_stay_integers_where_images_are_resized():
    x = (X * 255).astype(np.uint8)
    y = L.Resizing(3, 4)(x)
    assert y.dtype is tg.uint8
    assert np.abs(y.numpy() - tg.image.resize(x, (3, 4)).numpy()).max() <= 0.5
    assert L.CenterCrop(2, 2)(x).dtype is tg.float32
