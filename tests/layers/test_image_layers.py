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
    (
        lambda **kw: L.RandomGaussianBlur([1.0, 1.0], 3, [0.7, 0.7], **kw),
        [87.24, 73.25, 42.99, 61.39, 104.09, 41.94, 76.08, 48.27, 68.38, 103.4, 55.63, 34.18],
    ),
    (
        lambda **kw: L.RandomErasing([1.0, 1.0], [1.0, 1.0], [1.0, 2.0, 3.0], **kw),
        [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3],
    ),
    (
        lambda **kw: L.Solarization([0.1, 0.1], [0.5, 0.5], **kw),
        [29.5, 125.5, 55.5, 35.5, 0, 115.5, 85.5, 85.5, 49.5, 0, 65.5, 25.5],
    ),
    (
        lambda **kw: L.RandomPosterization(3, **kw),
        [192, 96, 0, 0, 224, 64, 32, 32, 160, 224, 32, 0],
    ),
    (
        lambda **kw: L.RandomColorJitter((0, 255), [0.1, 0.1], None, [0.3, 0.3], **kw),
        [225.5, 182.64, 152.64, 160.93, 255, 195.21, 154.07, 154.07, 205.5, 255, 173.79, 156.64],
    ),
]
#: As above, in training and otherwise.
EVENED = [
    (L.AutoContrast, [197.755, 72.857, 42.5, 0, 255, 127.5, 52.041, 24.286, 255, 255, 0, 0]),
    (L.Equalization, [170, 170, 85, 0, 255, 170, 85, 85, 255, 255, 0, 0]),
]


@pytest.mark.parametrize(("make", "wanted"), CHANGED + EVENED)
def test_tints(make, wanted):
    """As in Keras, in both formats; nothing changes outside of training, but for two layers."""
    wanted = np.reshape(wanted, COLOURS.shape)
    assert np.allclose(make()(COLOURS).numpy(), wanted, atol=6e-3)
    first = make(data_format="channels_first")(COLOURS[0].transpose(2, 0, 1))
    assert np.allclose(first.numpy().transpose(1, 2, 0), wanted[0], atol=6e-3)
    unlike = wanted if make in (L.AutoContrast, L.Equalization) else COLOURS
    assert np.allclose(make()(COLOURS, training=False).numpy(), unlike, atol=2e-3)


@pytest.mark.parametrize(
    "kind", [L.RandomHue, L.RandomSaturation, L.RandomColorDegeneration, L.RandomGrayscale]
)
def test_an_error_about_channels_names_the_layer(kind):
    with pytest.raises(tg.errors.ShapeError, match=f"^{kind.__name__}: .* 3 channels"):
        kind(0.5)(X[..., :2])


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


@pytest.mark.parametrize(
    "make",
    [
        lambda values: L.Solarization([0.1, 0.1], [0.5, 0.5], values),
        lambda values: L.RandomPosterization(3, values),
        lambda values: L.AutoContrast(values),
        lambda values: L.Equalization(values, bins=9),
        lambda values: L.RandomGaussianBlur([1.0, 1.0], 5, value_range=values),
    ],
)
def test_levels_of_another_range(make):
    wanted = make((0, 255))(COLOURS).numpy()
    assert np.allclose(make((0, 1))(COLOURS / 255).numpy() * 255, wanted, atol=1e-3)


def test_all_bits_are_the_image():
    x = np.arange(256, dtype=np.float32).reshape(1, 16, 16, 1)
    assert np.allclose(L.RandomPosterization(8, (0, 1))(x / 255).numpy() * 255, x, atol=1e-3)
    y = L.RandomPosterization([1, 8])(np.broadcast_to(x, (200, 16, 16, 1))).numpy()
    assert {len(np.unique(one)) for one in y} == {2**bits for bits in range(1, 9)}


def test_images_are_evened_by_themselves():
    """Images of one value stay, and no image depends on the others of its batch."""
    x = np.concatenate([X[:1] * 255, np.full((1, 6, 8, 3), 9, np.float32), X[1:] * 90])
    for layer in (L.AutoContrast(), L.Equalization()):
        y = tg.function(layer, input_signature=[tg.TensorSpec([None, 6, 8, 3])])(x).numpy()
        assert np.array_equal(y[1], x[1])
        assert np.allclose(y[[0, 2]], [layer(x[0]), layer(x[2])])
        assert np.ptp(y[[0, 2]], axis=(1, 2)).min() == 255


@pytest.mark.parametrize("fill", OUTSIDE)
def test_images_are_sheared(fill):
    layer = L.RandomShear([0.3, 0.3], [0.2, 0.2], fill_mode=fill, fill_value=0.5)
    y = layer(np.broadcast_to(X[:1], (20, 6, 8, 3))).numpy()
    counts = []
    for sign in (1, -1):
        matrix = np.array([[1, sign * 0.2], [sign * 0.3, 1]])
        wanted = moved(X[:1], matrix, np.zeros(2), fill, 1)
        counts.append(np.isclose(y, wanted, atol=1e-4).all((1, 2, 3)).sum())
    assert sum(counts) == 20 and min(counts) > 1


@pytest.mark.parametrize(
    ("interpolation", "wanted"),
    [
        (
            "bilinear",
            [0, 1.154, 1.968, 2.574, 4.028, 4.604, 4.975, 5.259, 7.021, 9.599, 9.543, 7.43],
        ),
        ("nearest", [0, 1, 2, 3, 4, 5, 6, 7, 7, 10, 11, 7]),
    ],
)
def test_images_are_seen_from_the_side(interpolation, wanted, monkeypatch):
    """As Keras' perspective_transform has it, for given corners."""
    layer = L.RandomPerspective([1.0, 1.0], 1.0, interpolation, fill_value=7.0)
    moves = iter([0.3, -0.2, -0.4, 0.1])
    draw = type(layer)._draw
    monkeypatch.setattr(
        layer,
        "_draw",
        lambda x, low, high: tg.constant(next(moves)) if low < 0 else draw(layer, x, low, high),
    )
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4, 1)
    assert np.allclose(layer(x).numpy().ravel(), wanted, atol=1e-3)
    assert np.allclose(L.RandomPerspective(scale=0.0)(x).numpy(), x)


def test_all_perspectives_are_finite():
    """With horizons inside of images, and images of one pixel."""
    for shape in ((200, 5, 4, 1), (3, 1, 1, 2), (3, 1, 4, 2)):
        y = L.RandomPerspective([1.0, 1.0])(np.ones(shape, np.float32)).numpy()
        assert y.min() >= 0 and y.max() <= 1 + 1e-6


@pytest.mark.parametrize("shape", [(20, 30, 1), (5, 1, 1)])
def test_images_are_distorted_smoothly(shape):
    """Images of the numbers of their columns: each tells how far its pixels were moved."""
    tall, wide, _ = shape
    x = np.broadcast_to(np.arange(float(wide), dtype=np.float32)[None, None, :, None], (50, *shape))
    y = L.RandomElasticTransform([1.0, 1.0], [1.0, 1.0], fill_mode="nearest")(x).numpy()
    moved = (y - x)[:, 2:-2, 5 : wide - 5, 0]
    s = 0.05 * min(tall, wide)
    weights = np.exp(-(np.arange(-20, 21) ** 2) / (2 * s * s))
    spread = s * 0.1 * max(tall, wide) * (weights**2).sum() / weights.sum() ** 2
    if wide > 1:
        assert abs(moved.std() / spread - 1) < 0.1 and abs(moved.mean()) < 0.1 * spread
        near, far = (np.mean(moved[:, k:] * moved[:, : tall - 4 - k]) for k in (1, 8))
        assert near > 0.7 * moved.var() > 10 * abs(far)
    assert np.allclose(L.RandomElasticTransform(scale=0.0)(x).numpy(), x)


#: Images of 20 examples whose channels are their labels.
LABELS = np.eye(4, dtype=np.float32)[np.arange(20) % 4]
OF_LABELS = np.broadcast_to(LABELS[:, None, None], (20, 32, 32, 4))


@pytest.mark.parametrize("make", [lambda: L.MixUp(1.0), lambda: L.CutMix([1.0, 1.0])])
def test_labels_are_mixed_as_images_are(make):
    mixed = tg.function(lambda x, t: make()({"images": x, "labels": t}))(OF_LABELS, LABELS)
    images, labels = mixed["images"].numpy(), mixed["labels"].numpy()
    assert np.allclose(images.mean((1, 2)), labels, atol=0.07)
    assert np.allclose(labels.sum(1), 1) and (labels.max(1) < 0.999).sum() > 3
    is_cut = isinstance(make(), L.CutMix)
    assert np.isin(images, [0, 1]).all() if is_cut else np.ptp(images, axis=(1, 2)).max() < 1e-6
    for one in images if is_cut else ():
        changed = one[..., one.sum((0, 1)).argmin() != np.arange(4)]
        rows = np.unique(changed.reshape(32, -1), axis=0)
        assert len(rows) <= 2  # of the rectangle, and of what is around it


def test_what_is_mixed_in_follows_the_parameter():
    x = np.broadcast_to(np.arange(2.0, dtype=np.float32), (64, 2, 2, 2))
    x = x * np.arange(64, dtype=np.float32)[:, None, None, None] / 64
    for alpha, part in ((1e-4, 0), (50.0, 1)):
        y = L.MixUp(alpha, seed=3)({"images": x, "labels": np.eye(64, dtype=np.int32)})
        share = y["labels"].numpy().max(1)
        assert np.isfinite(y["images"].numpy()).all()
        assert ((share < 0.95).mean() > 0.8) == part


@pytest.mark.parametrize("make", [L.MixUp, L.CutMix])
def test_one_image_is_not_mixed(make):
    assert np.array_equal(make()(X[0]).numpy(), X[0])
    y = make()({"images": X, "labels": LABELS[:2]}, training=False)
    assert np.array_equal(y["images"].numpy(), X) and np.array_equal(y["labels"], LABELS[:2])


@pytest.mark.parametrize("make", [L.MixUp, L.CutMix])
@pytest.mark.parametrize("labels", [[0, 1], LABELS[:3]])
def test_labels_to_mix_are_vectors(make, labels):
    with pytest.raises(tg.errors.ShapeError, match=r"the labels are .* of images"):
        make()({"images": X, "labels": labels})


def test_other_layers_pass_labels_on():
    y = L.RandomFlip()({"images": X, "labels": [3, 4]})
    assert y["images"].shape == X.shape and y["labels"].numpy().tolist() == [3, 4]
    assert np.array_equal(L.RandomFlip()({"images": X}, training=False).numpy(), X)
    with pytest.raises(ValueError, match="RandomFlip: the inputs are named"):
        L.RandomFlip()({"images": X, "segmentation_masks": X})


def test_rectangles_are_erased():
    x = np.full((40, 20, 30, 3), 0.5, np.float32)
    layer = L.RandomErasing([0.5, 0.5], [0.25, 0.25], 2.0, (0, 1))
    y = tg.function(layer, input_signature=[tg.TensorSpec([None, 20, 30, 3])])(x).numpy()
    assert {int(one.sum()) for one in (y == 1.0).all(-1)} == {0, 150}
    assert np.isin(y, [0.5, 1.0]).all()
    noise = L.RandomErasing(value_range=(0, 1))(x).numpy()[:, :, :, 0]
    assert len(np.unique(noise)) > 100 and noise.min() == 0 and noise.max() == 1
    with pytest.raises(ValueError, match="for 3 channels"):
        L.RandomErasing(1.0, fill_value=[1.0, 2.0])(x)


def test_one_layer_of_several_is_chosen():
    """Those that turn or move images, by no factor, leave them as they are."""
    tg.random.set_seed(0)
    x = COLOURS
    blurred = L.RandomSharpness([0.0, 0.0])(x)
    known = [x, L.RandomPosterization(1)(x), 255 - x, L.AutoContrast()(x), L.Equalization()(x)]
    augment = tg.function(L.RandAugment(num_ops=1, factor=0.0, seed=1))
    found = [augment(x).numpy() for _ in range(50)]
    of_all = [*known, blurred]
    places = [[np.allclose(y, one, atol=1e-3) for one in of_all] for y in found]
    assert np.any(places, 1).all() and np.any(places, 0).all()
    mix = tg.function(L.AugMix((0, 255), 1, 1, 0.0, all_ops=False, seed=1))
    shares = []
    for _ in range(20):
        change = mix(x).numpy() - x
        parts = [np.vdot(change, y - x) / max(np.vdot(y - x, y - x), 1) for y in known]
        ends = [np.abs(change - part * (y - x)).max() for part, y in zip(parts, known)]
        assert min(ends) < 1e-2
        shares.append(parts[int(np.argmin(ends))])
    assert min(shares) >= -1e-3 and max(shares) <= 1.001 and np.ptp(shares) > 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.CutMix([1.0, 1.0]),
        lambda: L.MixUp(1.0),
        lambda: L.RandomErasing([1.0, 1.0], fill_value=0.0),
        lambda: L.Solarization([0.1, 0.1], [0.5, 0.5], (0, 1)),
        lambda: L.AutoContrast((0, 1)),
        lambda: L.RandomGaussianBlur([1.0, 1.0]),
        lambda: L.RandomPerspective([1.0, 1.0], 0.5),
        lambda: L.RandomElasticTransform([1.0, 1.0], value_range=(-9, 9)),
        lambda: L.RandomShear(0.3, 0.3),
        lambda: L.RandomColorJitter((0, 1), 0.1, 0.1, 0.4, 0.1),
    ],
)
def test_images_have_a_gradient(make):
    v = tg.Variable(X)
    with tg.GradientTape() as tape:
        total = tg.reduce_sum(make()(v) ** 2)
    gradient = tape.gradient(total, v).numpy()
    assert np.isfinite(gradient).all() and gradient.any()


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
