"""tg.image against JAX's resizing, Python's own colour spaces, and plain definitions in NumPy."""

import colorsys
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

import tracegraph as tg
from tracegraph.image import geometry
from tracegraph.testing import check_gradients

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(13)
IMAGES = RANDOM.uniform(size=(2, 7, 6, 3)).astype(np.float32)
BYTES = RANDOM.integers(0, 256, (5, 4, 3), np.uint8)


def close(found, expected, tolerance=2e-6):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def same(found, expected):
    np.testing.assert_array_equal(found.numpy(), expected)


# ---------------------------------------------------------------- geometry


def test_images_turned(run):
    same(run(tg.image.flip_left_right, tg.constant(IMAGES)), IMAGES[:, :, ::-1])
    same(tg.image.flip_up_down(IMAGES[0]), IMAGES[0, ::-1])
    same(tg.image.transpose(IMAGES), IMAGES.transpose(0, 2, 1, 3))
    for k in range(-1, 5):
        same(tg.image.rot90(IMAGES, k), np.rot90(IMAGES, k, (1, 2)))
        same(tg.image.rot90(IMAGES[0], k=k), np.rot90(IMAGES[0], k))


def test_images_cut_and_padded(run):
    cut = run(lambda x: tg.image.crop_to_bounding_box(x, 1, 2, 3, 4), tg.constant(IMAGES))
    same(cut, IMAGES[:, 1:4, 2:6])
    padded = tg.image.pad_to_bounding_box(IMAGES, 1, 2, 10, 9)
    same(padded, np.pad(IMAGES, [(0, 0), (1, 2), (2, 1), (0, 0)]))
    same(tg.image.central_crop(IMAGES, 0.5), IMAGES[:, 1:6, 1:5])
    assert tg.image.central_crop(IMAGES, 1.0).shape == IMAGES.shape
    found = tg.image.resize_with_crop_or_pad(IMAGES, 4, 9)
    same(found, np.pad(IMAGES[:, 1:5], [(0, 0), (0, 0), (1, 2), (0, 0)]))
    same(tg.image.resize_with_crop_or_pad(BYTES, 5, 4), BYTES)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_large_patches_are_those_of_slices(padding, monkeypatch):
    def found():
        x = tg.constant(IMAGES)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], padding)
        return y, tape.gradient(y, x, output_gradients=tg.reshape(tg.range(0.0, y.size), y.shape))

    expected = found()
    monkeypatch.setattr(geometry, "_LARGEST_IN_SLICES", 0)
    for one, other in zip(found(), expected, strict=True):
        same(one, other.numpy())


def test_patches_of_an_absurd_size_are_refused():
    with pytest.raises(tg.errors.InvalidArgumentError, match="bytes of memory"):
        tg.image.extract_patches(
            tg.ones([1, 4, 4, 1]), [1, 2**20, 2**20, 1], [1] * 4, [1] * 4, "SAME"
        ).numpy()


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_patches(padding):
    x = IMAGES.astype(np.float64)
    found = tg.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], padding)
    with jax.enable_x64(True):
        patches = jax.lax.conv_general_dilated_patches(
            x,
            (3, 2),
            (2, 1),
            padding,
            rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    # JAX has the channels before the places of a patch.
    patches = np.asarray(patches).reshape(*patches.shape[:3], 3, 6)
    close(found, np.moveaxis(patches, -1, -2).reshape(found.shape), 1e-12)


# ---------------------------------------------------------------- sizes

JAX_METHODS = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "lanczos3": "lanczos3",
    "lanczos5": "lanczos5",
    "nearest": "nearest",
}
SIZES = [(3, 4), (14, 12), (7, 6), (10, 3), (1, 1)]


@functools.cache
def resized_by_jax(method, antialias):
    """The images in all sizes."""
    name = JAX_METHODS[method]

    @jax.jit
    def every(x):
        return [jax.image.resize(x, (2, *size, 3), name, antialias=antialias) for size in SIZES]

    return every(IMAGES)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("method", JAX_METHODS)
def test_resizing(run, method, antialias):
    def every(x):
        return [tg.image.resize(x, size, method, antialias=antialias) for size in SIZES]

    found = run(every, tg.constant(IMAGES))
    for ours, theirs in zip(found, resized_by_jax(method, antialias), strict=True):
        close(ours, theirs, 2e-5)
    one = tg.image.resize(BYTES, (3, 9), method, antialias=antialias)
    assert one.dtype == (tg.uint8 if method == "nearest" else tg.float32)


#: What TensorFlow 2.21 makes of the row 0, 1, 5, 2, 4: eight numbers, and three with antialias.
ROW = np.array([0, 1, 5, 2, 4], np.float32).reshape(1, 5, 1)
KNOWN = {
    "gaussian": (
        [0.06009, 0.43782, 1.461, 3.67267, 3.9596, 2.57234, 3.12435, 3.87983],
        [0.78607, 3.20495, 3.26204],
    ),
    "mitchellcubic": (
        [-0.01407, 0.29678, 1.34085, 3.90622, 4.17735, 2.33328, 3.07487, 4.02813],
        [0.5806, 3.31932, 3.23015],
    ),
    "lanczos5": (
        [0.15843, -0.24411, 1.31629, 4.60712, 4.32622, 2.08267, 2.78971, 4.44067],
        [0.4249, 3.47294, 3.20251],
    ),
}


@pytest.mark.parametrize("method", KNOWN)
def test_smooth_kernels(method):
    larger, smaller = KNOWN[method]
    close(tg.image.resize(ROW, [1, 8], method)[0, :, 0], larger, 2e-5)
    close(tg.image.resize(ROW, [1, 3], method, antialias=True)[0, :, 0], smaller, 2e-5)


def test_areas_are_means_of_what_they_cover():
    fine = np.repeat(np.repeat(IMAGES, 3, 1), 5, 2)  # 21 rows are 3 of 7, 30 columns 5 of 6
    wanted = fine.reshape(2, 3, 7, 5, 6, 3).mean((2, 4))
    close(tg.image.resize(IMAGES, [3, 5], "area"), wanted)


def test_proportions():
    found = tg.image.resize(IMAGES, [3, 5], preserve_aspect_ratio=True)
    close(found, tg.image.resize(IMAGES, [3, 3]).numpy())
    padded = tg.image.resize_with_pad(IMAGES, 14, 20)
    inner = tg.image.resize(IMAGES, [14, 12])
    close(padded, np.pad(inner, [(0, 0), (0, 0), (4, 4), (0, 0)]))
    assert tg.image.resize_with_pad(IMAGES[0], 5, 9).shape == (5, 9, 3)


@pytest.mark.parametrize(
    ("target", "rows", "columns"),
    [
        ((5, 5), (0, 3), (0, 5)),
        ((5, 7), (0, 4), (0, 7)),
        ((9, 5), (2, 5), (0, 5)),
        ((6, 4), (1, 3), (0, 4)),
        ((3, 8), (0, 3), (1, 5)),
    ],
)
def test_sides_and_what_is_before_them_are_rounded_down(target, rows, columns):
    """As in TensorFlow, which subtracts the side before it is rounded."""
    y = tg.image.resize_with_pad(tg.ones([4, 6, 1]), *target).numpy()[..., 0]
    inside = y > 0
    assert inside.any(1).nonzero()[0].tolist() == [*range(*rows)]
    assert inside.any(0).nonzero()[0].tolist() == [*range(*columns)]


def test_resizing_of_open_sizes():
    @tg.function(input_signature=[tg.TensorSpec([None, None, None, 3])])
    def doubled(x):
        return tg.image.resize(x, [2 * x.shape[1], 2 * x.shape[2]])

    for x in (IMAGES, IMAGES[:1, :4, :3]):
        shape = (len(x), 2 * x.shape[1], 2 * x.shape[2], 3)
        close(doubled(tg.constant(x)), jax.image.resize(x, shape, "linear"), 2e-5)


def test_derivatives_of_resizing():
    g = RANDOM.normal(size=(2, 4, 9, 3)).astype(np.float32)
    for method in ("bilinear", "bicubic", "lanczos3"):
        with tg.GradientTape() as tape:
            x = tg.constant(IMAGES)
            tape.watch(x)
            y = tg.image.resize(x, [4, 9], method)
        name = JAX_METHODS[method]

        def resized(x, name=name):
            return jax.image.resize(x, (2, 4, 9, 3), name, antialias=False)

        expected = jax.jit(lambda x, g, f=resized: jax.vjp(f, x)[1](g)[0])(IMAGES, jnp.asarray(g))
        close(tape.gradient(y, x, g), expected, 2e-5)


BOXES = np.array([[0.1, 0.2, 0.9, 0.7], [0.8, 0.93, 0.1, 0.0], [-0.2, 0.5, 1.1, 0.6]], np.float32)


def places(start, end, size, count):
    if count == 1:
        return np.array([(start + end) / 2 * (size - 1)])
    return (start + (end - start) * np.arange(count) / (count - 1)) * (size - 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(3, 5), (1, 4)])
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crop_and_resize(run, method, size):
    at = [0, 1, 1]
    found = run(
        lambda x: tg.image.crop_and_resize(x, BOXES, at, size, method, extrapolation_value=-3.0),
        tg.constant(IMAGES),
    )
    for k, (y1, x1, y2, x2) in enumerate(BOXES):
        rows, columns = places(y1, y2, 7, size[0]), places(x1, x2, 6, size[1])
        grid = np.meshgrid(rows, columns, indexing="ij")
        outside = (grid[0] < 0) | (grid[0] > 6) | (grid[1] < 0) | (grid[1] > 5)
        grid = [np.floor(g + 0.5) for g in grid] if method == "nearest" else grid
        for c in range(3):
            channel = IMAGES[at[k], :, :, c]
            wanted = scipy.ndimage.map_coordinates(channel, grid, order=1, mode="nearest")
            close(found[k, :, :, c], np.where(outside, -3, wanted), 2e-5)


@pytest.mark.sweep
def test_derivatives_by_boxes():
    boxes = np.array([[0.12, 0.23, 0.87, 0.71], [0.83, 0.91, 0.13, 0.07]], np.float32)
    image = tg.constant(IMAGES)

    def total(boxes):
        y = tg.image.crop_and_resize(image, boxes, [0, 1], (3, 4))
        return tg.reduce_sum(y * y)

    slope = tg.grad(total)(tg.constant(boxes)).numpy()
    step = 1e-3
    for place in itertools.product(range(2), range(4)):
        moved = [boxes.copy(), boxes.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        ends = [float(total(tg.constant(one))) for one in moved]
        assert slope[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.05, abs=0.05)


# ---------------------------------------------------------------- colours


def by_pixel(function, x):
    return np.array([function(*pixel) for pixel in x.reshape(-1, 3).tolist()]).reshape(x.shape)


@pytest.mark.sampled(1)
def test_hue_saturation_and_value(run):
    x = np.concatenate([IMAGES.reshape(-1, 3), np.eye(3), np.zeros((1, 3)), np.full((1, 3), 0.4)])
    hsv = by_pixel(colorsys.rgb_to_hsv, x)
    close(run(tg.image.rgb_to_hsv, tg.constant(x)), hsv)
    back, again = tg.image.hsv_to_rgb(hsv), tg.image.hsv_to_rgb(IMAGES)
    close(back, x)
    close(again, by_pixel(colorsys.hsv_to_rgb, IMAGES))
    both = tg.function(lambda x: (tg.image.rgb_to_hsv(x), tg.image.hsv_to_rgb(x)))
    check_gradients(both, tg.constant([[0.2, 0.9, 0.5], [0.7, 0.1, 0.3]], tg.float64), order=1)
    grey = tg.grad(lambda x: tg.reduce_sum(tg.image.rgb_to_hsv(x)))(tg.constant([0.0, 0.0, 0.0]))
    assert np.isfinite(grey.numpy()).all()


@pytest.mark.sampled(1)
def test_brightness_and_colour(run):
    yiq = tg.image.rgb_to_yiq(IMAGES)
    close(yiq, by_pixel(colorsys.rgb_to_yiq, IMAGES), 0.01)  # colorsys has rounded constants
    close(tg.image.yiq_to_rgb(yiq), IMAGES, 1e-3)
    yuv = tg.image.rgb_to_yuv(IMAGES).numpy()
    close(tg.image.yuv_to_rgb(yuv), IMAGES, 1e-3)
    np.testing.assert_allclose(yuv[..., 0], yiq.numpy()[..., 0], rtol=1e-6)
    blue = IMAGES[..., 2] - yuv[..., 0]
    np.testing.assert_allclose(yuv[..., 1], 0.492111 * blue, atol=1e-5)
    grey = run(tg.image.rgb_to_grayscale, tg.constant(IMAGES))
    close(grey, IMAGES @ np.array([[0.2989], [0.587], [0.114]], np.float32))
    close(tg.image.grayscale_to_rgb(grey), np.repeat(grey.numpy(), 3, -1))
    assert tg.image.rgb_to_grayscale(BYTES).dtype == tg.uint8


def as_bytes(x):
    """Numbers from 0 to 1 as TensorFlow makes bytes of them: those beyond have the limit."""
    return np.clip(np.trunc(x * 255.5), 0, 255).astype(np.uint8)


@pytest.mark.sampled(1)
def test_adjustments(run):
    share = BYTES.astype(np.float32) / 255
    bright = run(lambda x: tg.image.adjust_brightness(x, 0.2), tg.constant(BYTES))
    same(bright, as_bytes(share + np.float32(0.2)))
    close(tg.image.adjust_brightness(IMAGES, -0.25), IMAGES - 0.25)
    close(tg.image.adjust_gamma(IMAGES, 0.7, 1.1), 1.1 * IMAGES**0.7)
    same(tg.image.adjust_gamma(BYTES, 1, 2), as_bytes(2 * share))
    mean = share.mean((0, 1))
    for image in (tg.constant(BYTES), BYTES):
        found = tg.image.adjust_contrast(image, 1.5)
        assert found.dtype is tg.uint8
        assert np.abs(found.numpy().astype(int) - as_bytes((share - mean) * 1.5 + mean)).max() <= 1
    hsv = by_pixel(colorsys.rgb_to_hsv, IMAGES)
    for delta in (0.3, -0.7):
        moved = np.stack([(hsv[..., 0] + delta) % 1, hsv[..., 1], hsv[..., 2]], -1)
        close(tg.image.adjust_hue(IMAGES, delta), by_pixel(colorsys.hsv_to_rgb, moved), 1e-5)
    moved = np.stack([hsv[..., 0], np.clip(1.7 * hsv[..., 1], 0, 1), hsv[..., 2]], -1)
    close(tg.image.adjust_saturation(IMAGES, 1.7), by_pixel(colorsys.hsv_to_rgb, moved), 1e-5)


def test_data_types_of_images():
    convert = tg.image.convert_image_dtype
    close(convert(BYTES, tg.float32), BYTES / 255)
    same(convert(BYTES, tg.uint16), BYTES.astype(np.uint16) * 256)
    same(convert(convert(BYTES, tg.uint16), tg.uint8), BYTES)
    same(convert(convert(BYTES, tg.float64), tg.uint8), BYTES)
    same(convert([1.5, -0.5], tg.uint8, saturate=True), [255, 0])
    same(convert(np.array([0, 32767, -5], np.int16), tg.uint8, True), [0, 255, 0])
    assert convert(IMAGES, tg.float16).dtype == tg.float16


# ---------------------------------------------------------------- measures


def test_standardization():
    mean, deviation = (f(IMAGES, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    close(tg.image.per_image_standardization(IMAGES), (IMAGES - mean) / deviation, 1e-5)
    flat = tg.image.per_image_standardization(np.full((4, 4, 1), 7, np.uint8))
    same(flat, np.zeros((4, 4, 1)))
    # A float16 number is smaller than the number of elements.
    same(
        tg.image.per_image_standardization(np.ones((300, 300, 1), np.float16)),
        np.zeros((300, 300, 1)),
    )


def test_noise():
    other = IMAGES[:, ::-1]
    error = ((IMAGES - other) ** 2).mean((1, 2, 3))
    close(tg.image.psnr(IMAGES, other, 1.0), 10 * np.log10(1 / error), 1e-5)
    error = ((BYTES.astype(float) - BYTES[::-1]) ** 2).mean()
    close(tg.image.psnr(BYTES, BYTES[::-1].copy(), 255), 10 * np.log10(255**2 / error), 1e-5)


def similarity(x, y, size, sigma, largest):
    """The map of one channel, by two-dimensional convolutions."""
    line = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / sigma) ** 2)
    window = np.outer(line, line) / line.sum() ** 2

    def mean(z):
        return scipy.signal.correlate2d(z, window, "valid")

    mx, my = mean(x), mean(y)
    vx, vy, both = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = (0.01 * largest) ** 2, (0.03 * largest) ** 2
    bright = (2 * mx * my + c1) / (mx**2 + my**2 + c1)
    contrast = (2 * both + c2) / (vx + vy + c2)
    return bright * contrast, contrast


@pytest.mark.sampled(1)
def test_structural_similarity(run):
    x = RANDOM.uniform(size=(2, 20, 18, 2)).astype(np.float32)
    y = np.clip(x + 0.1 * RANDOM.normal(size=x.shape), 0, 1).astype(np.float32)
    maps = np.stack(
        [
            np.stack([similarity(x[n, :, :, c], y[n, :, :, c], 7, 1.2, 1.0)[0] for c in (0, 1)], -1)
            for n in (0, 1)
        ]
    )
    found = run(
        lambda x, y: tg.image.ssim(x, y, 1.0, filter_size=7, filter_sigma=1.2),
        tg.constant(x),
        tg.constant(y),
    )
    close(found, maps.mean((1, 2, 3)), 1e-5)
    whole = tg.image.ssim(x, y, 1.0, 7, 1.2, return_index_map=True)
    close(whole, maps.mean(-1), 1e-4)
    bytes_ = [np.round(z * 255).astype(np.uint8) for z in (x, y)]
    close(tg.image.ssim(*bytes_, 255, 7, 1.2), found.numpy(), 1e-2)
    slope = tg.grad(lambda x: tg.reduce_sum(tg.image.ssim(x, y, 1.0)))(tg.constant(x))
    assert np.isfinite(slope.numpy()).all()


def test_structural_similarity_of_several_scales():
    x = RANDOM.uniform(size=(21, 18, 1)).astype(np.float32)
    y = np.clip(x + 0.2 * RANDOM.normal(size=x.shape), 0, 1).astype(np.float32)
    powers, wanted = (0.3, 0.7), 1.0
    a, b = x[..., 0], y[..., 0]
    for k, power in enumerate(powers):
        both, contrast = similarity(a, b, 5, 1.5, 1.0)
        wanted *= max((both if k == 1 else contrast).mean(), 0) ** power
        a, b = (np.pad(z, [(0, 1), (0, 0)], "symmetric") for z in (a, b))  # 21 rows are odd
        a, b = (z.reshape(11, 2, 9, 2).mean((1, 3)) if k == 0 else z for z in (a, b))
    found = tg.image.ssim_multiscale(x, y, 1.0, powers, filter_size=5)
    close(found, np.float32(wanted), 1e-5)


def test_edges_and_variation():
    x = IMAGES
    found = tg.image.sobel_edges(x).numpy()
    for n, c in itertools.product(range(2), range(3)):
        for k in (0, 1):
            wanted = scipy.ndimage.sobel(x[n, :, :, c], axis=k, mode="mirror")
            np.testing.assert_allclose(found[n, :, :, c, k], wanted, atol=1e-5)
    dy, dx = tg.image.image_gradients(x)
    close(dy, np.diff(x, axis=1, append=x[:, -1:]))
    close(dx, np.diff(x, axis=2, append=x[:, :, -1:]))
    variation = sum(np.abs(np.diff(x, axis=k)).sum((1, 2, 3)) for k in (1, 2))
    close(tg.image.total_variation(x), variation, 1e-5)
    close(tg.image.total_variation(x[0]), variation[0], 1e-5)


# ---------------------------------------------------------------- at random

RANDOM_FORMS = {
    "flip_left_right": ((), lambda x: (x, x[..., ::-1, :])),
    "flip_up_down": ((), lambda x: (x, x[..., ::-1, :, :])),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RANDOM_FORMS)
def test_each_image_is_turned_by_itself(name):
    x = np.arange(400 * 6, dtype=np.float32).reshape(400, 2, 3, 1)
    plain, turned = RANDOM_FORMS[name][1](x)
    tg.random.set_seed(4)
    drawn = getattr(tg.image, f"random_{name}")(x).numpy()
    is_turned = (drawn == turned).all((1, 2, 3))
    assert (is_turned ^ (drawn == plain).all((1, 2, 3))).all()
    assert 140 < is_turned.sum() < 260
    stateless = getattr(tg.image, f"stateless_random_{name}")
    same(stateless(x, [1, 2]), stateless(x, [1, 2]).numpy())
    assert (stateless(x, [1, 2]).numpy() != stateless(x, [1, 3]).numpy()).any()


ADJUSTED = {
    "brightness": (0.3,),
    "contrast": (0.5, 2.0),
    "saturation": (0.5, 2.0),
    "hue": (0.4,),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ADJUSTED)
def test_adjustments_at_random(run, name):
    change = getattr(tg.image, f"adjust_{name}")
    stateless = getattr(tg.image, f"stateless_random_{name}")
    image = tg.constant(IMAGES)
    y = run(lambda x: stateless(x, *ADJUSTED[name], seed=[5, 6]), image)
    *low, high = ADJUSTED[name]
    drawn = tg.random.stateless_uniform([], [5, 6], low[0] if low else -high, high)
    close(y, change(image, drawn).numpy())
    tg.random.set_seed(1)
    first, second = (getattr(tg.image, f"random_{name}")(image, *ADJUSTED[name]) for _ in range(2))
    assert (first.numpy() != second.numpy()).any()


@pytest.mark.sampled(1)
def test_parts_at_random(run):
    x = np.arange(5 * 6 * 2).reshape(5, 6, 2)
    parts = {x[i : i + 3, j : j + 2].tobytes() for i in range(3) for j in range(5)}
    tg.random.set_seed(2)
    drawn = {tg.image.random_crop(x, [3, 2, 2]).numpy().tobytes() for _ in range(200)}
    assert drawn == parts
    crop = run(lambda x: tg.image.stateless_random_crop(x, [3, 2, 2], [1, 2]), tg.constant(x))
    same(crop, tg.image.stateless_random_crop(x, [3, 2, 2], [1, 2]).numpy())


# ---------------------------------------------------------------- boxes


def selected(boxes, scores, most, limit, least):
    """One box after the other, the best first."""
    order, kept = np.argsort(-scores, kind="stable"), []
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for k in order:
        overlaps = []
        for j in kept:
            sides = np.minimum(boxes[k, 2:], boxes[j, 2:]) - np.maximum(boxes[k, :2], boxes[j, :2])
            shared = np.prod(np.maximum(sides, 0))
            overlaps.append(shared / (area[k] + area[j] - shared))
        if len(kept) < most and scores[k] > least and all(x <= limit for x in overlaps):
            kept.append(k)
    return kept


@pytest.mark.sampled(1)
@pytest.mark.parametrize("most", [3, 20])
@pytest.mark.parametrize("limit", [0.1, 0.5])
def test_the_best_boxes(run, most, limit):
    corners = np.sort(RANDOM.uniform(size=(3, 25, 2, 2)), axis=2).astype(np.float32)
    boxes, scores = corners.reshape(3, 25, 4), RANDOM.uniform(size=(3, 25)).astype(np.float32)
    wanted = [selected(*pair, most, limit, 0.2) for pair in zip(boxes, scores, strict=True)]

    def select(boxes, scores):
        return tg.image.non_max_suppression_padded(
            boxes, scores, most, limit, 0.2, pad_to_max_output_size=True
        )

    found, counts = run(select, tg.constant(boxes), tg.constant(scores))
    same(counts, [len(row) for row in wanted])
    same(found, [row + [0] * (most - len(row)) for row in wanted])
    alone = run(
        lambda x, y: tg.image.non_max_suppression(x, y, most, limit, 0.2),
        tg.constant(boxes[0]),
        tg.constant(scores[0]),
    )
    same(alone, wanted[0])
    turned = boxes[0][:, [2, 1, 0, 3]]  # other corners of the same boxes
    alone, count = tg.image.non_max_suppression_padded(turned, scores[0], most, limit, 0.2)
    same(alone, wanted[0])
    assert count.numpy() == len(wanted[0])


# ---------------------------------------------------------------- bad arguments

ONE = tg.ones([4, 5, 3])
BAD = [
    (lambda i: i.flip_left_right(tg.ones([2, 2])), "3 or more axes"),
    (lambda i: i.rot90(ONE, 0.5), "k must be made of integers"),
    (lambda i: i.crop_to_bounding_box(ONE, 2, 0, 3, 1), "axis 0 of f32"),
    (lambda i: i.crop_to_bounding_box(ONE, -1, 0, 3, 1), "offset_height is -1"),
    (lambda i: i.pad_to_bounding_box(ONE, 1, 1, 4, 9), "does not fit into 4"),
    (lambda i: i.resize_with_crop_or_pad(ONE, 0, 3), "a target size is 0"),
    (lambda i: i.crop_to_bounding_box(tg.ones([2, 2, 0]), 0, 0, 1, 1), "has no pixels"),
    (lambda i: i.pad_to_bounding_box(tg.ones([0, 2, 1]), 0, 0, 2, 2), "has no pixels"),
    (lambda i: i.resize_with_crop_or_pad(tg.ones([2, 0, 1]), 1, 1), "has no pixels"),
    (lambda i: i.central_crop(ONE, 0.0), "central_fraction is 0"),
    (lambda i: i.central_crop(ONE, 1.5), "central_fraction is 1.5"),
    (lambda i: i.extract_patches(ONE, [1, 2, 2, 1], [1] * 4, [1] * 4, "SAME"), "4 axes"),
    (
        lambda i: i.extract_patches(ONE[None], [2, 2, 2, 1], [1] * 4, [1] * 4, "SAME"),
        r"sizes is \[2, 2, 2, 1\]",
    ),
    (lambda i: i.resize(ONE, [3]), r"size is \[3\]"),
    (lambda i: i.resize(ONE, [3, 3], "cubic"), '"bilinear" or "bicubic"'),
    (lambda i: i.resize(ONE, [0, 3]), r"size is \[0, 3\]"),
    (lambda i: i.resize(tg.ones([0, 3, 1]), [3, 3]), "no pixels"),
    (lambda i: i.crop_and_resize(ONE[None], [[0.0] * 3], [0], [1, 1]), "boxes f32"),
    (lambda i: i.crop_and_resize(ONE[None], [[0.0] * 4], [0.0], [1, 1]), "must be integers"),
    (lambda i: i.crop_and_resize(ONE[None], [[0.0] * 4], [0], [1]), r"crop_size is \[1\]"),
    (lambda i: i.crop_and_resize(ONE[None], [[np.inf] * 4], [0], [1, 1]), r"a box is \[inf"),
    (lambda i: i.adjust_contrast(ONE, [2.0]), r"contrast_factor is f32\[1\]"),
    (lambda i: i.rgb_to_hsv(tg.ones([2])), "3 channels"),
    (lambda i: i.rgb_to_hsv(BYTES), "from 0 to 1"),
    (lambda i: i.grayscale_to_rgb(ONE), "1 channel"),
    (lambda i: i.convert_image_dtype([True], tg.float32), "not bool"),
    (lambda i: i.adjust_hue(ONE, 2.0), "delta is 2"),
    (lambda i: i.adjust_gamma(ONE, -1.0), "gamma is -1"),
    (lambda i: i.psnr(ONE, ONE[:2], 1.0), "different shapes"),
    (lambda i: i.ssim(ONE, ONE, 1.0), "windows of 11 pixels"),
    (lambda i: i.sobel_edges(ONE), "4 axes"),
    (lambda i: i.sobel_edges(BYTES[None]), "the images are"),
    (lambda i: i.total_variation(tg.ones([2])), "3 or 4 axes"),
    (lambda i: i.random_flip_up_down(tg.ones([1, 1, 1, 1, 1])), "3 or 4 axes"),
    (lambda i: i.random_brightness(ONE, -1.0), "max_delta is -1"),
    (lambda i: i.random_hue(ONE, 0.6), "max_delta is 0.6"),
    (lambda i: i.random_contrast(ONE, 2.0, 1.0), "lower is 2 and upper 1"),
    (lambda i: i.stateless_random_saturation(ONE, -1.0, 1.0, [1, 2]), "lower is -1"),
    (lambda i: i.random_crop(ONE, [5, 1, 1]), "a part of 5 of axis 0"),
    (lambda i: i.stateless_random_crop(ONE, [1, 1], [1, 2]), r"size is \[1, 1\]"),
    (lambda i: i.non_max_suppression([[0.0] * 4], [[1.0]], 1), "with scores"),
    (lambda i: i.non_max_suppression([[0.0] * 4], [1.0], -1), "max_output_size is -1"),
    (lambda i: i.non_max_suppression([[0.0] * 4], [1.0], 1, 2.0), "iou_threshold is 2"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_arguments(call, words):
    with pytest.raises((ValueError, TypeError), match=words) as error:
        call(tg.image)
    assert "test_images.py" in str(error.value)
    assert "fix: " in str(error.value)


def test_crops_of_open_sizes():
    @tg.function(input_signature=[tg.TensorSpec([None, None, None, 3])])
    def cropped(x):
        return tg.image.crop_and_resize(x, BOXES, [0, 1, 1], (3, 5))

    close(cropped(tg.constant(IMAGES)), tg.image.crop_and_resize(IMAGES, BOXES, [0, 1, 1], (3, 5)))


def test_what_no_picture_can_be_made_of_is_refused():
    image = tg.ones([4, 4, 1])
    with pytest.raises(tg.errors.InvalidArgumentError, match="gamma is negative"):
        tg.image.adjust_gamma(image, tg.constant(-1.0)).numpy()
    assert tg.image.adjust_gamma(image, tg.constant(2.0)).shape == image.shape
    with pytest.raises(ValueError, match="one or more"):
        tg.image.crop_to_bounding_box(image, 0, 0, 0, 2)


def test_thresholds_may_be_tensors():
    boxes = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 3, 1, 4]], np.float32)
    scores = np.array([0.9, 0.8, 0.3], np.float32)
    select = tg.image.non_max_suppression
    find = tg.function(lambda iou, score: select(boxes, scores, 3, iou, score))
    for iou, score, expected in ((0.5, 0.0, [0, 2]), (0.9, 0.0, [0, 1, 2]), (0.5, 0.5, [0])):
        assert find(tg.constant(iou), tg.constant(score)).numpy().tolist() == expected
        assert select(boxes, scores, 3, iou, score).numpy().tolist() == expected
    with pytest.raises(ValueError, match="iou_threshold is"):
        select(boxes, scores, 3, tg.constant([0.5]))


def test_sizes_that_are_tensors_of_a_function():
    x = np.random.default_rng(4).uniform(size=[6, 9, 3]).astype(np.float32)
    image = tg.image
    cases = [
        (image.pad_to_bounding_box, (1, 2, 8, 12)),
        *((image.resize_with_crop_or_pad, size) for size in ((4, 12), (6, 9), (8, 4))),
        (lambda x, *size: image.resize(x, tg.stack(size)), (4, 11)),
        (image.central_crop, (0.33,)),
    ]
    for compute, numbers in cases:
        found = tg.function(compute)(x, *map(tg.constant, numbers))
        np.testing.assert_allclose(found, compute(x, *numbers), rtol=1e-6)
    with pytest.raises(tg.errors.ShapeError, match="-1"):
        tg.function(image.pad_to_bounding_box)(x, *map(tg.constant, (0, 0, 5, 9)))
    with pytest.raises(ValueError, match="target_height is below 1"):
        tg.function(image.resize_with_crop_or_pad)(x, *map(tg.constant, (0, 5)))
