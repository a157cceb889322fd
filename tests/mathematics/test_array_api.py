"""`tracegraph.numpy`, the namespace of the array API standard.

NumPy, which has the same names, is the oracle: code is written once, against `xp`, and computes
with NumPy, JAX and tracegraph. docs/array_api.md says how to run the test suite of the standard.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
import tracegraph.numpy as tnp

rng = np.random.default_rng(0)
# Functions that are written in a table are lambdas of one line, and each is traced anew.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

X = rng.normal(size=(3, 4)).astype(np.float32)
Y = rng.normal(size=(3, 4)).astype(np.float32)
SQUARE = rng.normal(size=(2, 3, 3)).astype(np.float32)
POSITIVE = SQUARE @ np.swapaxes(SQUARE, 1, 2) + 3 * np.eye(3, dtype=np.float32)
COMPLEX = (X + 1j * Y).astype(np.complex64)
INTEGERS = np.array([[3, 1, 2, 3], [0, 3, 1, 1]], np.int32)


def same(found, wanted, rtol=1e-5):
    """Compares nests of arrays: shapes, values, and dtypes where numbers had one."""
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other, rtol)
        return
    assert tuple(found.shape) == np.shape(wanted)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=rtol, atol=1e-5)


UNARY = [
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "conj", "cos", "cosh"),
    *("exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2"),
    *("negative", "positive", "reciprocal", "round", "sign", "signbit", "sin", "sinh", "sqrt"),
    *("square", "tan", "tanh", "trunc"),
]
BINARY = [
    *("add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal"),
    *("hypot", "less", "less_equal", "logaddexp", "maximum", "minimum", "multiply", "nextafter"),
    *("not_equal", "pow", "remainder", "subtract"),
]
EDGES = np.array([0.0, -0.0, 0.5, -2.5, 3.5, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_functions_of_one_element():
    found = [getattr(tnp, name)(tg.constant(EDGES)) for name in UNARY]
    for name, one in zip(UNARY, found, strict=True):
        same(one, getattr(np, name)(EDGES))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_functions_of_two_elements():
    x, y = (v.ravel() for v in np.meshgrid(EDGES, np.array([0.5, -1.0, 2.0, np.nan], np.float32)))
    found = [getattr(tnp, name)(tg.constant(x), tg.constant(y)) for name in BINARY]
    for name, one in zip(BINARY, found, strict=True):
        same(one, getattr(np, name)(x, y))


def test_extreme_operands():
    x, y = np.float32([1e30, 0.0, -1000.0, -np.inf]), np.float32([1e30, -30.0, -1000.0, -np.inf])
    same(tnp.hypot(tg.constant(x), tg.constant(y)), np.hypot(x, y))
    np.testing.assert_allclose(tnp.logaddexp(x, y).numpy(), np.logaddexp(x, y), rtol=1e-6)
    small = tnp.logaddexp(tg.constant(0.0, tg.float64), tg.constant(-90.0, tg.float64))
    np.testing.assert_allclose(small.numpy(), np.logaddexp(0.0, -90.0), rtol=1e-12)


#: Functions written once, of which each namespace makes the same.
USES = {
    "bits": lambda xp, x: xp.bitwise_and(xp.astype(x > 0, xp.int32), 3) | xp.asarray(4),
    "truths": lambda xp, x: xp.bitwise_xor(x > 0, xp.bitwise_invert(x > 1)),
    "clip": lambda xp, x: (xp.clip(x, -0.5, 0.5), xp.clip(x, max=0.1), xp.clip(x, min=0.1)),
    "eye": lambda xp, x: [xp.eye(3, 4, k=k, dtype=xp.float32) for k in (-1, 0, 2)],
    "triangles": lambda xp, x: [f(x, k=k) for f in (xp.tril, xp.triu) for k in (-2, 0, 1)],
    "linspace": lambda xp, x: [xp.linspace(0, 3, 4, endpoint=end) for end in (True, False)],
    "full": lambda xp, x: (xp.full((2, 2), 7), xp.full_like(x, 2), xp.empty_like(x) * 0),
    "broadcast": lambda xp, x: xp.broadcast_arrays(x, x[:1], x[:, :1]),
    "moveaxis": lambda xp, x: xp.moveaxis(x[None], (0, 1), (-1, 0)),
    "repeat": lambda xp, x: (xp.repeat(x, 2, axis=1), xp.repeat(x, 3)),
    "roll": lambda xp, x: (xp.roll(x, (1, -1), axis=(0, 1)), xp.roll(x, 2)),
    "tile": lambda xp, x: (xp.tile(x, (2, 1, 3)), xp.tile(x, (2,))),
    "unstack": lambda xp, x: xp.unstack(x, axis=1),
    "take": lambda xp, x: xp.take(x, xp.asarray([2, -1, 0]), axis=1),
    "along": lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, -1], [1, 2], [3, 3]]), axis=1),
    "gather": lambda xp, x: (x[xp.asarray([2, 0]), xp.asarray([1, -1])], x[:, xp.asarray([1, 1])]),
    "mask": lambda xp, x: x[x > 0],
    "sort": lambda xp, x: (xp.sort(x, axis=0), xp.argsort(x, axis=1)),
    "extremes": lambda xp, x: (xp.argmax(x), xp.argmin(x, axis=1, keepdims=True)),
    "counts": lambda xp, x: (xp.count_nonzero(x > 0, axis=0), xp.any(x > 2), xp.all(x, axis=1)),
    "nonzero": lambda xp, x: xp.nonzero(x > 0),
    "search": lambda xp, x: xp.searchsorted(xp.sort(x[0]), x[1], side="right"),
    "sorter": lambda xp, x: xp.searchsorted(x[0], x[1], sorter=xp.argsort(x[0])),
    "moments": lambda xp, x: (xp.var(x, axis=0, correction=1), xp.std(x), xp.mean(x, axis=1)),
    "sums": lambda xp, x: (xp.sum(x, axis=1, keepdims=True), xp.prod(x, axis=(0, 1))),
    "running": lambda xp, x: xp.cumulative_sum(x, axis=1, include_initial=True),
    "products": lambda xp, x: xp.cumulative_prod(x, axis=0),
    "diff": lambda xp, x: (xp.diff(x, n=2), xp.diff(x, axis=0, prepend=x[:1], append=x[1:2])),
    "product": lambda xp, x: (x @ x[0], x[:, 0] @ x, x[0] @ x[1], x @ x.T, xp.matmul(x, x.mT)),
    "vecdot": lambda xp, x: (xp.vecdot(x, x[:1]), xp.vecdot(x, x, axis=-2)),
    "outer": lambda xp, x: (xp.linalg.outer(x[0], x[1]), xp.linalg.cross(x.T[:3], x.T[1:], axis=0)),
    "norms": lambda xp, x: [
        xp.linalg.vector_norm(x, axis=1, ord=p) for p in (0, 1, 2, 3, 0.5, -1, xp.inf, -xp.inf)
    ],
    "matrix norms": lambda xp, x: [
        xp.linalg.matrix_norm(x, ord=p, keepdims=True)
        for p in ("fro", "nuc", 1, -1, 2, -2, xp.inf, -xp.inf)
    ],
    "diagonals": lambda xp, x: [
        (xp.linalg.diagonal(x, offset=k), xp.linalg.trace(x, offset=k)) for k in (-2, 0, 3)
    ],
    "rank": lambda xp, x: (xp.linalg.matrix_rank(x), xp.linalg.pinv(x, rtol=0.5)),
    "fft": lambda xp, x: [
        (xp.fft.fft(x, n=n, axis=0, norm=norm), xp.fft.rfft(x, n=n, norm=norm), xp.fft.ihfft(x))
        for n, norm in ((None, "ortho"), (5, "forward"), (2, "backward"))
    ],
    "back": lambda xp, x: [
        (xp.fft.ifft(x, norm=norm), xp.fft.irfft(x, norm=norm), xp.fft.hfft(x, norm=norm))
        for norm in ("ortho", "forward", "backward")
    ],
    "n axes": lambda xp, x: (xp.fft.fftn(x), xp.fft.irfftn(xp.fft.rfftn(x)), xp.fft.ifftn(x)),
    "frequencies": lambda xp, x: (xp.fft.fftfreq(5, d=0.5), xp.fft.rfftfreq(4), xp.fft.fftshift(x)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(5))
def test_code_for_every_namespace(part):
    uses = [*USES.values()][part::5]

    def every(x):
        return [use(x.__array_namespace__(), x) for use in uses]

    at_top_level, compiled = every(tg.constant(X)), tg.function(every)(tg.constant(X))
    for use, *both in zip(uses, at_top_level, compiled, strict=True):
        for found in both:
            same(found, use(np, X))


DECOMPOSED = {
    "cholesky": lambda xp, x: (xp.linalg.cholesky(x), xp.linalg.cholesky(x, upper=True)),
    "solve": lambda xp, x: (xp.linalg.solve(x, x), xp.linalg.solve(x[0], x[1, 0])),
    "values": lambda xp, x: (xp.linalg.eigvalsh(x), xp.linalg.svdvals(x), xp.linalg.det(x)),
    "slogdet": lambda xp, x: tuple(xp.linalg.slogdet(x)),
    "power": lambda xp, x: [xp.linalg.matrix_power(x, n) for n in (-2, 0, 1, 5)],
    "svd": lambda xp, x: (lambda u, s, vh: (u * s[:, None]) @ vh)(*xp.linalg.svd(x)),
    "qr": lambda xp, x: (lambda q, r: q @ r)(*xp.linalg.qr(x[..., :2], mode="complete")),
    "eigh": lambda xp, x: (lambda w, v: (v * w[:, None]) @ v.mT)(*xp.linalg.eigh(x)),
}


@pytest.mark.parametrize("use", DECOMPOSED.values(), ids=DECOMPOSED)
def test_linear_algebra_of_every_namespace(use):
    same(use(tnp, tg.constant(POSITIVE)), use(np, POSITIVE), rtol=2e-3)


def test_names_of_results():
    x = tg.constant(POSITIVE)
    assert tnp.linalg.svd(x)._fields == ("U", "S", "Vh")
    assert tnp.linalg.qr(x)._fields == ("Q", "R")
    assert tnp.linalg.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert tnp.linalg.slogdet(x)._fields == ("sign", "logabsdet")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("x", [INTEGERS, INTEGERS > 1, INTEGERS + 1j * INTEGERS[::-1]])
def test_sets(x):
    found = tnp.unique_all(tg.constant(x))
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    wanted = np.unique_all(x)
    order = np.argsort(found.values.numpy())
    same(found.values.numpy()[order], wanted.values)
    same(found.indices.numpy()[order], wanted.indices)
    same(found.counts.numpy()[order], wanted.counts)
    np.testing.assert_array_equal(found.values.numpy()[found.inverse_indices.numpy()], x)
    assert tnp.unique_values(x).shape == tnp.unique_counts(x).values.shape == wanted.values.shape
    same(tnp.unique_inverse(x).inverse_indices, found.inverse_indices.numpy())


def test_each_nan_is_distinct():
    x = tg.constant([np.nan, 0.0, np.nan, -0.0])
    assert tnp.unique_values(x).shape == np.unique_values(x.numpy()).shape == (3,)


def test_descending_order_keeps_equal_elements_in_place():
    x = tg.constant(INTEGERS)
    same(tnp.sort(x, descending=True), -np.sort(-INTEGERS))
    wanted = np.argsort(-INTEGERS, axis=1, stable=True)
    same(tnp.argsort(x, axis=1, descending=True), wanted)


# Derivatives, functions, other libraries.


def loss(x):
    xp = x.__array_namespace__()
    y = xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1)
    z = xp.hypot(x, y) + xp.logaddexp(x, y) + xp.copysign(x, y) + xp.clip(x, -0.5, 0.5)
    spectrum = xp.abs(xp.fft.rfft(z, axis=0, norm="ortho"))
    norms = xp.linalg.vector_norm(x, axis=1, ord=3) * xp.var(x, axis=1, correction=1)
    return xp.sum(spectrum) + xp.sum(norms) + xp.sum(xp.vecdot(x, xp.cumulative_sum(z, axis=1)))


@pytest.mark.sampled(1)
def test_one_function_of_numpy_jax_and_tensors(run):
    with jax.enable_x64(True):
        x = jnp.asarray(X, jnp.float64)
        wanted, gradient = jax.jit(jax.value_and_grad(loss))(x)
    np.testing.assert_allclose(loss(X.astype(np.float64)), wanted, rtol=1e-12)

    def both(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = loss(x)
        return y, tape.gradient(y, x)

    found, found_gradient = run(both, tg.constant(X, tg.float64))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(found_gradient.numpy(), gradient, rtol=1e-9)


SCIPY = """
import numpy as np, tracegraph as tg
from scipy import fft, integrate, special, stats

values = np.random.default_rng(0).normal(size=(5, 4))
for use in (
    lambda x: special.softmax(x, axis=1),
    lambda x: stats.kurtosis(x, axis=1),
    lambda x: stats.rankdata(x, axis=1),
    lambda x: stats.ttest_1samp(x, 0.0).pvalue,
    lambda x: abs(fft.rfft(x, axis=0)),
    lambda x: integrate.trapezoid(x),
):
    found = use(tg.constant(values))
    assert isinstance(found, tg.Tensor), found
    np.testing.assert_allclose(found.numpy(), use(values), rtol=1e-9)
"""


@pytest.mark.sweep
def test_scipy_computes_with_tensors():
    """SciPy asks its arguments for their namespace if the variable is set when it is imported."""
    command, variables = [sys.executable, "-c", SCIPY], {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def gradient_of(f, *values):
    tensors = [tg.constant(value, tg.float64) for value in values]
    with tg.GradientTape() as tape:
        tape.watch(tensors)
        y = f(*tensors)
    return [None if g is None else g.numpy() for g in tape.gradient(y, tensors)]


def test_derivatives_where_formulas_fail():
    assert gradient_of(tnp.logaddexp, 2.0, 2.0) == [0.5, 0.5]
    assert gradient_of(tnp.logaddexp, 1000.0, -1000.0) == [1.0, 0.0]
    assert gradient_of(tnp.hypot, 0.0, 0.0) == [0.0, 0.0]
    np.testing.assert_allclose(gradient_of(tnp.hypot, 3e200, 4e200), [0.6, 0.8], rtol=1e-12)
    assert gradient_of(tnp.copysign, -3.0, 1.0)[0] == -1.0


def test_indexing_by_arrays_has_derivatives():
    rows, columns = tg.constant([0, 2, 0]), tg.constant([1, -1, 1])
    (found,) = gradient_of(lambda x: tg.reduce_sum(x[rows, columns] ** 2), X)
    wanted = np.zeros(X.shape)
    np.add.at(wanted, ([0, 2, 0], [1, -1, 1]), 2 * X[[0, 2, 0], [1, -1, 1]].astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "take",
    [
        lambda x, r, c: x[:, r],
        lambda x, r, c: x[:, r, c],
        lambda x, r, c: x[1, :, r, c],
        lambda x, r, c: x[:, r, :, c],
        lambda x, r, c: x[:, r, None, c],
        lambda x, r, c: x[None, :, r, 2, 1:3],
        lambda x, r, c: x[..., c],
        lambda x, r, c: x[1, r, c, 0],
    ],
)
def test_indexing_by_arrays_is_that_of_numpy(run, take):
    x, r, c = np.arange(120.0).reshape(2, 3, 4, 5), np.array([0, 1, -1]), np.array([[2], [0]])
    found = run(lambda x: take(x, tg.constant(r), tg.constant(c)), tg.constant(x))
    assert found.shape == take(x, r, c).shape
    np.testing.assert_array_equal(found.numpy(), take(x, r, c))
    np.testing.assert_array_equal(take(tg.constant(x), r, c).numpy(), take(x, r, c))


def test_an_index_that_is_none():
    x = tg.constant(X)
    with pytest.raises(tg.errors.InvalidArgumentError, match="index 3 is out of range"):
        x[tg.constant([0, 3])]
    with pytest.raises(TypeError, match="they must be integers"):
        x[tg.constant([0.5])]


def test_one_truth_value_keeps_all_or_nothing():
    x = tg.constant(X)
    assert x[tg.constant(True)].shape == (1, 3, 4)
    assert x[tg.constant(False)].shape == (0, 3, 4)


# The object.


def test_the_namespace_is_the_module():
    x = tg.zeros([2])
    assert x.__array_namespace__(api_version="2024.12") is tg.numpy is tnp
    assert tg.Variable(x).__array_namespace__() is tnp
    assert tnp.__array_api_version__ == "2024.12"
    with pytest.raises(ValueError, match=r"version '2099.12' of the array API was asked for"):
        x.__array_namespace__(api_version="2099.12")


def test_functions_are_those_of_tracegraph():
    """There is one function of each name that says the same."""
    assert tnp.sin is tg.sin
    assert tnp.maximum is tg.maximum
    assert tnp.floor_divide is tg.math.floordiv
    assert tnp.matrix_transpose is tg.linalg.matrix_transpose
    assert tnp.linalg.det is tg.linalg.det
    assert tnp.linalg.matmul is tnp.matmul


def test_what_it_says_of_itself():
    info = tnp.__array_namespace_info__()
    assert info.capabilities()["data-dependent shapes"] is True
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["complex floating"] is tnp.asarray(1j).dtype is tg.complex64
    assert info.default_dtypes()["integral"] is tnp.asarray([1]).dtype
    assert set(info.dtypes(kind="integral")) == {
        f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)
    }
    assert info.dtypes(kind=("bool", "complex floating")) == {
        "bool": tg.bool,
        "complex64": tg.complex64,
        "complex128": tg.complex128,
    }


def test_devices():
    x = tg.zeros([2])
    assert x.to_device(x.device) is x
    assert tnp.zeros(2, device=x.device).device == x.device
    devices = []
    tg.function(lambda x: devices.append(x.device) or tnp.ones_like(x, device=x.device))(x)
    assert devices == [x.device]
    with pytest.raises(ValueError, match="zeros: the device is 'abacus', and tensors are on"):
        tnp.zeros(2, device="abacus")


def test_arrays_are_copied_and_tensors_are_not():
    array = np.ones(3)
    x = tnp.asarray(array)
    array[:] = 7
    assert x.numpy().tolist() == [1, 1, 1]
    assert tnp.asarray(x, copy=True) is tnp.asarray(x, copy=False) is x
    for make in (tnp.asarray, tnp.from_dlpack):
        with pytest.raises(ValueError, match="by a copy, and copy is False"):
            make(array, copy=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint64", "complex64", "bool"])
def test_dlpack(dtype):
    array = (X * 2).astype(dtype)
    x = tg.constant(array)
    np.testing.assert_array_equal(np.from_dlpack(x), array)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jnp.from_dlpack(x), array)
        same(tnp.from_dlpack(jnp.asarray(array)), array)
    same(tnp.from_dlpack(array), array)
    assert tnp.from_dlpack(array).dtype == dtype
    assert tnp.from_dlpack(x) is x


def test_numpy_defers_to_tensors():
    x = tg.constant(X)
    assert isinstance(Y + x, tg.Tensor)
    assert isinstance(Y @ x.T, tg.Tensor)
    assert x.__array_priority__ > 0


def test_a_function_of_numpy_inside_of_a_traced_function():
    def apply(function):
        return tg.function(lambda x: function(x))(tg.ones([3]))

    with pytest.raises(
        TypeError,
        match=r"np\.sin needs the value of a tensor f32\[3\], which has none"
        r"(.|\n)*test_array_api\.py:\d+(.|\n)*fix: use tg\.numpy\.sin, or",
    ):
        apply(np.sin)
    with pytest.raises(TypeError, match=r"fix: use tg\.numpy\.acos, or tg\.numpy_function"):
        apply(np.arccos)
    with pytest.raises(TypeError, match=r"np\.sum needs the value"):
        apply(np.add.reduce)


def test_types():
    assert tnp.result_type(tg.int8, tg.uint8, 3) is tg.int16
    assert tnp.result_type(tg.float32, 1j) is tg.complex64
    assert tnp.result_type(tg.constant(X), 2) is tg.float32
    with pytest.raises(TypeError, match="result_type: "):
        tnp.result_type(tg.int32, 1.5)
    assert tnp.can_cast(tg.uint8, tg.int16)
    assert not tnp.can_cast(tg.int16, tg.uint16)
    assert tnp.finfo(tg.constant(COMPLEX)).dtype is tg.float32
    for name in ("bits", "eps", "max", "min", "smallest_normal"):
        assert getattr(tnp.finfo(tg.float64), name) == getattr(np.finfo(np.float64), name)
    assert (tnp.iinfo(tg.int16).min, tnp.iinfo(tg.int16).max) == (-(2**15), 2**15 - 1)


def test_narrow_integers_are_added_in_32_bits():
    for own, wide in (("int8", "int32"), ("uint16", "uint32")):
        x = tg.constant([[100, 100]], own)
        for reduced in (
            tnp.sum(x),
            tnp.prod(x),
            tnp.cumulative_sum(x, axis=1),
            tnp.linalg.trace(x),
        ):
            assert reduced.dtype == wide
    x = tg.constant([[100, 100]], tg.uint8)
    same(tnp.matmul(x, x.mT), x.numpy() @ x.numpy().T)
    assert tnp.tensordot(x, x).numpy() == np.tensordot(x.numpy(), x.numpy())


def test_numbers_keep_their_digits():
    found = tnp.linspace(0.1, 0.3, 3, dtype=tg.float64, endpoint=False)
    np.testing.assert_array_equal(found.numpy(), np.linspace(0.1, 0.3, 3, endpoint=False))
    assert not tnp.any(tnp.eye(2, k=2**31))
    with pytest.raises(IndexError, match="axis 5 is out of range"):
        tnp.expand_dims(tnp.ones(2), axis=5)


def test_cross_of_narrow_integers():
    x = np.array([[250, 3, 4]], np.uint8)
    same(tnp.linalg.cross(tg.constant(x), tg.constant(x[:, ::-1])), np.cross(x, x[:, ::-1]))


def test_open_sizes():
    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def use(x):
        last = tnp.take(x, tnp.asarray([-1]), axis=0)
        return tnp.var(x, axis=0, correction=1) + last, tnp.abs(tnp.fft.ifft(x, axis=0))

    for n in (2, 5):
        x = rng.normal(size=(n, 4)).astype(np.float32)
        same(use(x), (np.var(x, axis=0, ddof=1) + x[-1:], np.abs(np.fft.ifft(x, axis=0))))


BAD = [
    (lambda x: tnp.take(x, [0]), ValueError, "only a vector needs no axis"),
    (lambda x: tnp.cumulative_sum(x), ValueError, "only a vector needs no axis"),
    (lambda x: tnp.moveaxis(x, (0, 1), 0), ValueError, "are to move to"),
    (lambda x: tnp.nonzero(x[0, 0]), ValueError, "has no axes"),
    (lambda x: tnp.signbit(tnp.asarray([1])), TypeError, "it must be floating"),
    (lambda x: tnp.linalg.outer(x, x), ValueError, "is not a vector"),
    (lambda x: tnp.linalg.matrix_norm(x, ord=3), ValueError, "matrix_norm: ord is 3"),
    (lambda x: tnp.linalg.qr(x, mode="r"), ValueError, "qr: mode is 'r'"),
    (lambda x: tnp.linalg.diagonal(x[0]), ValueError, "has no matrices"),
    (lambda x: tnp.fft.fft(x, norm="half"), ValueError, "fft: norm is 'half'"),
    (lambda x: tnp.fft.fftn(x, axes=(0, 0)), ValueError, "name one axis twice"),
    (lambda x: tnp.take_along_axis(x, [0]), ValueError, "differ in the number of axes"),
    (lambda x: tnp.isdtype(tg.float32, "number"), ValueError, "isdtype: kind is 'number'"),
    (lambda x: tnp.bitwise_and(x, x), TypeError, "f32"),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD)
def test_bad_calls(call, kind, text):
    with pytest.raises(kind, match=text) as caught:
        call(tg.constant(X))
    assert "test_array_api.py" in str(caught.value)
    assert "fix: " in str(caught.value)
