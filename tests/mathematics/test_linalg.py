"""Linear algebra against NumPy and SciPy, and derivatives of what is made of several ops.

Derivatives of the ops themselves are those of `tests/ops/test_ops.py`.
"""

import numpy as np
import pytest
import scipy.linalg

import tracegraph as tg
from tracegraph.testing import check_gradients

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(11)
DTYPES = [np.float32, np.complex128]


def sample(*shape, dtype=np.float64):
    values = RANDOM.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RANDOM.standard_normal(shape)
    return values.astype(dtype)


def regular(n, *lead, dtype=np.float64):
    """Matrices far from singular, whose eigenvalues are near 3."""
    return (0.4 * sample(*lead, n, n, dtype=dtype) + 3 * np.eye(n)).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def close(found, expected, slack=200.0):
    """Equal up to some rounding errors of the less precise of the two."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    precisions = [np.finfo(x.dtype).eps for x in (found, expected) if x.dtype.kind in "fc"]
    rounding = slack * max(precisions, default=0) * np.max(np.abs(expected), initial=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding)


@pytest.fixture(params=["top level", "function", "open sizes"])
def run(request):
    """Returns `run(fn, *arrays)`: fn as it is, or traced, or traced with an open leading axis."""
    if request.param == "top level":
        return lambda fn, *xs: fn(*map(tg.constant, xs))
    if request.param == "function":
        return lambda fn, *xs: tg.function(fn)(*map(tg.constant, xs))

    def with_open_sizes(fn, *xs):
        specs = [tg.TensorSpec(["n", *x.shape[1:]], x.dtype) for x in xs]
        return tg.function(fn, input_signature=specs)(*map(tg.constant, xs))

    return with_open_sizes


# Decompositions.


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("sizes", [(4, 3), (3, 3), (2, 5)])
def test_qr(run, dtype, full, sizes):
    a = sample(2, *sizes, dtype=dtype)
    q, r = run(lambda a: tg.linalg.qr(a, full_matrices=full), a)
    assert q.dtype is r.dtype is tg.as_dtype(dtype)
    for found, expected in zip((q, r), np.linalg.qr(a, "complete" if full else "reduced")):
        close(found, expected)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("sizes", [(4, 3), (3, 3), (2, 5)])
def test_svd(run, dtype, full, sizes):
    a = sample(2, *sizes, dtype=dtype)
    s, u, v = run(lambda a: tg.linalg.svd(a, full), a)
    _, n = sizes
    assert v.shape == (2, n, n if full else min(sizes))
    assert s.dtype is tg.as_dtype(dtype).real_dtype
    close(s, np.linalg.svd(a, compute_uv=False))
    close(run(lambda a: tg.linalg.svd(a, compute_uv=False), a), s.numpy())
    k = min(sizes)
    close((u.numpy()[..., :k] * s.numpy()[:, None]) @ adjoint(v.numpy()[..., :k]), a)
    for unitary in (u.numpy(), v.numpy()):
        close(
            adjoint(unitary) @ unitary,
            np.broadcast_to(np.eye(unitary.shape[-1]), (2, *[unitary.shape[-1]] * 2)),
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues_of_hermitian_matrices_follow_from_the_lower_triangle(run, dtype):
    a = sample(2, 4, 4, dtype=dtype)
    w, v = run(tg.linalg.eigh, a)
    expected, _ = np.linalg.eigh(a)
    close(w, expected)
    close(run(tg.linalg.eigvalsh, a), expected)
    whole = np.tril(a, -1) + adjoint(np.tril(a, -1)) + np.eye(4) * np.real(a)
    close(whole @ v.numpy(), v.numpy() * w.numpy()[:, None])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues(run, dtype):
    a = sample(2, 4, 4, dtype=dtype)
    w, v = run(tg.linalg.eig, a)
    assert (
        w.dtype
        is v.dtype
        is (
            tg.complex64
            if a.itemsize * 2 <= 16 and a.dtype in (np.float32, np.complex64)
            else tg.complex128
        )
    )
    close(a @ v.numpy(), v.numpy() * w.numpy()[:, None])
    close(np.linalg.norm(v.numpy(), axis=1), np.ones((2, 4)))
    close(run(tg.linalg.eigvals, a), w.numpy())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(run, dtype):
    a, b = sample(2, 3, 3, dtype=dtype), sample(2, 3, 2, dtype=dtype)

    def compute(a, b):
        factored = tg.linalg.lu(a)
        functions = (tg.linalg.lu_reconstruct, tg.linalg.lu_matrix_inverse)
        return *factored, *(f(*factored) for f in functions), tg.linalg.lu_solve(*factored, b)

    factors, p, again, inverse, solved = run(compute, a, b)
    assert p.dtype is tg.int32 and tg.linalg.lu(a, tg.int64).p.dtype is tg.int64
    lower = np.tril(factors.numpy(), -1) + np.eye(3)
    close(lower @ np.triu(factors.numpy()), np.take_along_axis(a, p.numpy()[..., None], 1))
    close(again, a)
    close(inverse, np.linalg.inv(a), 2000)
    close(solved, np.linalg.solve(a, b), 2000)
    close(tg.linalg.lu_solve(*tg.linalg.lu(a[0]), b), np.linalg.solve(a[0], b), 2000)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(4, 3), (3, 3), (2, 5)])
def test_pseudo_inverses_and_least_squares(run, dtype, sizes):
    a = (sample(2, *sizes, dtype=dtype) + 3 * np.eye(*sizes)).astype(dtype)
    b = sample(2, sizes[0], 2, dtype=dtype)

    def compute(a, b):
        solved = [tg.linalg.lstsq(a, b, fast=fast) for fast in (True, False)]
        return tg.linalg.pinv(a), solved, tg.linalg.lstsq(a, b, l2_regularizer=0.5)

    inverse, solved, regular_one = run(compute, a, b)
    close(inverse, np.linalg.pinv(a), 2000)
    for found in solved:
        close(found, np.linalg.pinv(a) @ b, 4000)
    ridge = np.linalg.solve(adjoint(a) @ a + 0.5 * np.eye(sizes[1]), adjoint(a) @ b)
    close(regular_one, ridge, 2000)


def test_small_singular_values_count_as_zero():
    a = np.diag([4.0, 1.0, 1e-3])
    close(tg.linalg.pinv(a, rcond=0.01), np.diag([0.25, 1.0, 0.0]))
    both = tg.linalg.pinv(np.stack([a, a]), rcond=[0.01, 0.5])
    close(both, [np.diag([0.25, 1.0, 0.0]), np.diag([0.25, 0.0, 0.0])])
    assert tg.linalg.matrix_rank(a).numpy() == 3
    assert tg.linalg.matrix_rank(a, tol=0.01).numpy() == 2
    both = np.stack([np.diag([3.0, 2.0, 1.0]), np.eye(3)])
    assert tg.linalg.matrix_rank(both, tol=[[1.5], [0.5]]).numpy().tolist() == [2, 3]
    assert tg.linalg.matrix_rank(both, tol=[1.0, 2.5, 0.5]).numpy().tolist() == [2, 1]
    assert tg.linalg.matrix_rank(np.ones((2, 3, 4))).numpy().tolist() == [1, 1]
    assert tg.linalg.matrix_rank(np.zeros((2, 2))).dtype is tg.int32


# Functions of matrices.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials_and_roots(run, dtype):
    a = regular(4, 2, dtype=dtype)
    wide = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    each = lambda fn: np.stack([fn(matrix) for matrix in wide])  # noqa: E731
    has_logarithm = a.dtype.kind == "c"

    def functions(a):
        logarithm = (tg.linalg.logm(a),) if has_logarithm else ()
        return tg.linalg.expm(a), tg.linalg.sqrtm(a), *logarithm

    exponential, root, *logarithm = run(functions, a)
    close(exponential, each(scipy.linalg.expm), 5000)
    close(root, each(scipy.linalg.sqrtm), 2000)
    if has_logarithm:
        close(logarithm[0], each(scipy.linalg.logm), 2000)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "a",
    [
        np.diag([1e-8, 1.0, 1e8]),
        [[1.0, 1e6], [0.0, 1.0]],
        [[2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 2.0]],
        [[0.0, -1.0], [1.0, 0.0]],
        [[-1.0, 3.0], [0.0, -2.0]],
        np.eye(3),
    ],
    ids=["wide", "shear", "defective", "rotation", "negative", "identity"],
)
def test_logarithms_and_roots_of_hard_matrices(a):
    a = np.asarray(a, np.complex128)
    logarithm, root = tg.linalg.logm(a), tg.linalg.sqrtm(a)
    other_root = tg.linalg.expm(logarithm * 0.5)
    close(logarithm, scipy.linalg.logm(a), 1e4)
    root = root.numpy()
    np.testing.assert_allclose(root @ root, a, rtol=1e-12, atol=1e-12)
    close(other_root, root, 1e6)


def test_large_and_small_exponentials():
    turn = 1e4 * np.array([[0.0, -1.0], [1.0, 0.0]])
    expected = [[np.cos(1e4), -np.sin(1e4)], [np.sin(1e4), np.cos(1e4)]]
    np.testing.assert_allclose(tg.linalg.expm(turn), expected, atol=1e-10)
    close(tg.linalg.expm(np.full((2, 2), 1e-300)), np.eye(2))


def test_a_real_matrix_without_a_real_root():
    assert np.isnan(tg.linalg.sqrtm([[-1.0]]).numpy()).all()
    close(tg.linalg.sqrtm(tg.constant([[-4.0]], tg.complex64)), np.array([[2j]], np.complex64))
    close(tg.linalg.sqrtm(np.zeros((2, 2))), np.zeros((2, 2)))


# Bands.


def tridiagonal(n, *lead, dtype=np.float64):
    upper, middle, lower = (sample(*lead, n, dtype=dtype) for _ in range(3))
    middle = (middle + 4).astype(dtype)
    whole = np.zeros((*lead, n, n), dtype)
    i = np.arange(n)
    whole[..., i, i] = middle
    whole[..., i[:-1], i[1:]] = upper[..., :-1]
    whole[..., i[1:], i[:-1]] = lower[..., 1:]
    return (upper, middle, lower), whole


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["compact", "sequence", "short sequence", "matrix"])
def test_three_diagonals(dtype, form):
    (upper, middle, lower), whole = tridiagonal(4, 2, dtype=dtype)
    diagonals = {
        "compact": np.stack([upper, middle, lower], -2),
        "sequence": [upper, middle, lower],
        "short sequence": [upper[..., :-1], middle, lower[..., 1:]],
        "matrix": whole,
    }[form]
    form = form.split()[-1]
    b, v = sample(2, 4, 3, dtype=dtype), sample(2, 4, dtype=dtype)
    close(tg.linalg.tridiagonal_solve(diagonals, b, form), np.linalg.solve(whole, b))
    close(
        tg.linalg.tridiagonal_solve(diagonals, v, form),
        np.linalg.solve(whole, v[..., None])[..., 0],
    )
    turned = tg.linalg.tridiagonal_solve(diagonals, adjoint(b), form, True, True)
    close(turned, np.linalg.solve(whole, b))
    close(tg.linalg.tridiagonal_matmul(diagonals, b, form), whole @ b)


def test_a_singular_matrix_of_three_diagonals():
    diagonals = [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert np.isnan(tg.linalg.tridiagonal_solve(diagonals, [1.0, 1.0]).numpy()).any()
    found = tg.linalg.tridiagonal_solve(diagonals, [1.0, 1.0], perturb_singular=True)
    assert np.isfinite(found.numpy()).all()


@pytest.mark.sampled(9)
@pytest.mark.parametrize("adjoint_of_it", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_triangles_with_few_diagonals(run, lower, adjoint_of_it, count):
    bands = sample(2, count, 4, dtype=np.complex128) + 3
    whole = np.zeros((2, 4, 4), np.complex128)
    for k in range(count):
        i = np.arange(4 - k)
        if lower:
            whole[:, i + k, i] = bands[:, k, k:]
        else:
            whole[:, i, i + k] = bands[:, count - 1 - k, : 4 - k]
    b = sample(2, 4, 2, dtype=np.complex128)
    solve = lambda x, b: tg.linalg.banded_triangular_solve(x, b, lower, adjoint_of_it)  # noqa: E731
    close(run(solve, bands, b), np.linalg.solve(adjoint(whole) if adjoint_of_it else whole, b))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_eigenvalues_of_three_diagonals(dtype):
    alpha, beta = sample(5), sample(4, dtype=dtype)
    whole = np.diag(alpha.astype(dtype)) + np.diag(beta, 1) + np.diag(beta.conj(), -1)
    expected = np.linalg.eigvalsh(whole)
    alpha = alpha.astype(dtype)
    close(tg.linalg.eigh_tridiagonal(alpha, beta), expected)
    w, v = tg.linalg.eigh_tridiagonal(alpha, beta, eigvals_only=False)
    close(whole @ v.numpy(), v.numpy() * w.numpy())
    some = tg.linalg.eigh_tridiagonal(alpha, beta, select="i", select_range=(1, 3))
    close(some, expected[1:4])
    between = expected[1] - 1e-6, expected[3] + 1e-6
    w, v = tg.linalg.eigh_tridiagonal(alpha, beta, False, "v", between)
    close(w, expected[1:4])
    close(whole @ v.numpy(), v.numpy() * w.numpy())
    close(tg.linalg.eigh_tridiagonal([2.0], []), np.float32([2.0]))


# Diagonals.


@pytest.mark.sampled(11)
@pytest.mark.parametrize("align", ["RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"])
@pytest.mark.parametrize("k", [(-1, 1), (0, 2), (-2, -1), (-1, 2), (1, 1), (-2, -2)])
@pytest.mark.parametrize("sizes", [(3, 4), (4, 3), (3, 3)])
def test_diagonals_that_are_taken_and_set_again(run, sizes, k, align):
    """What tg.linalg.diag_part takes is oracle enough: NumPy's own test holds it."""
    x, y = sample(2, *sizes), sample(2, *sizes)
    places = np.arange(sizes[1]) - np.arange(sizes[0])[:, None]
    inside = (places >= k[0]) & (places <= k[1])
    part = lambda x: tg.linalg.diag_part(x, k=k, align=align)  # noqa: E731
    put = run(lambda x, y: tg.linalg.set_diag(y, part(x), k=k, align=align), x, y)
    close(put, np.where(inside, x, y))
    rows, columns = sizes
    fill = {"k": k, "num_rows": rows, "num_cols": columns, "padding_value": 7.0, "align": align}
    longest = min(rows + min(k[1], 0), columns - max(k[0], 0))
    if rows == longest - min(k[1], 0) or columns == longest + max(k[0], 0):
        close(run(lambda x: tg.linalg.diag(part(x), **fill), x), np.where(inside, x, 7.0))


def test_diagonals_as_tensorflow_places_them():
    """The examples of tf.linalg.diag and tf.linalg.set_diag."""
    rows = np.array([[0, 8, 9], [1, 2, 3], [4, 5, 0]])
    assert tg.linalg.diag(rows, k=(-1, 1)).numpy().tolist() == [[1, 8, 0], [4, 2, 9], [0, 5, 3]]
    left = np.array([[8, 9, 0], [1, 2, 3], [0, 4, 5]])
    found = tg.linalg.diag(left, k=(-1, 1), align="LEFT_RIGHT")
    assert found.numpy().tolist() == [[1, 8, 0], [4, 2, 9], [0, 5, 3]]
    tall = tg.linalg.diag([[1, 2], [3, 0]], k=(-1, 0), num_rows=3, num_cols=2)
    assert tall.numpy().tolist() == [[1, 0], [3, 2], [0, 0]]
    sevens = np.full((3, 4), 7)
    found = tg.linalg.set_diag(sevens, [[1, 2, 3], [4, 5, 0]], k=(-1, 0))
    assert found.numpy().tolist() == [[1, 7, 7, 7], [4, 2, 7, 7], [7, 5, 3, 7]]


# Norms.


@pytest.mark.sampled(4)
@pytest.mark.parametrize("axis", [(-2, -1), (2, 0), (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_the_spectral_norm(axis, keepdims, dtype):
    x = sample(2, 3, 4, dtype=dtype)
    close(tg.norm(x, 2, axis, keepdims), np.linalg.norm(x, 2, axis, keepdims=keepdims))


# Derivatives of what is made of several ops.

MIDDLE = [[0.0], [4.0], [0.0]]
DERIVED = {
    "wide qr": (lambda a: tuple(tg.linalg.qr(a)), (2, 4)),
    "lu_solve": (lambda a: tg.linalg.lu_solve(*tg.linalg.lu(a), a[:, :1]), (3, 3)),
    "lu_reconstruct": (lambda a: tg.linalg.lu_reconstruct(*tg.linalg.lu(a)), (3, 3)),
    "lstsq": (lambda a: tg.linalg.lstsq(a, a[:, :1] ** 2, 0.1), (4, 2)),
    "wide lstsq": (lambda a: tg.linalg.lstsq(a, a[:, :1] ** 2), (2, 4)),
    "slow lstsq": (lambda a: tg.linalg.lstsq(a, a[:, :1] ** 2, fast=False), (4, 2)),
    "eigh": (lambda a: tg.linalg.eigh(a)[0], (3, 3)),
    "projector": (
        lambda a: tg.matmul(*[tg.linalg.eigh(a)[1][:, :1]] * 2, transpose_b=True),
        (3, 3),
    ),
    "spectral norm": (lambda a: tg.norm(a, 2, [0, 1]), (3, 4)),
    "banded": (lambda a: tg.linalg.banded_triangular_solve(a[:2] + 3.0, a[2:, :, None][0]), (3, 4)),
    "tridiagonal_solve": (
        lambda a: tg.linalg.tridiagonal_solve(a[:3] + tg.constant(MIDDLE, a.dtype), a[3]),
        (4, 4),
    ),
    "tridiagonal_matmul": (lambda a: tg.linalg.tridiagonal_matmul(a[:3], a[3][:, None]), (4, 4)),
    "eigh_tridiagonal": (lambda a: tg.linalg.eigh_tridiagonal(a[0], a[1, 1:]), (2, 4)),
    "diag": (lambda a: tg.linalg.diag(a**2, k=(-1, 1)), (3, 3)),
    "set_diag": (lambda a: tg.linalg.set_diag(a, a**2, k=(-1, 1)) ** 2, (3, 3)),
    "eigvals": (lambda a: tg.reduce_sum(tg.linalg.eigvals(a) ** 3), (3, 3)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DERIVED)
def test_derivatives(name):
    fn, shape = DERIVED[name]
    check_gradients(tg.function(fn), tg.constant(sample(*shape)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["lstsq", "wide qr", "tridiagonal_solve", "spectral norm"])
def test_complex_derivatives(name):
    fn, shape = DERIVED[name]
    check_gradients(tg.function(fn), tg.constant(sample(*shape, dtype=np.complex128)))


@pytest.mark.parametrize("name", ["wide qr", "lstsq", "eigh", "lu_solve", "eigh_tridiagonal"])
def test_jacobians_do_not_depend_on_the_mode(name):
    fn, shape = DERIVED[name]
    fn = lambda a, fn=fn: tg.concat([tg.reshape(y, [-1]) for y in tg.nest.flatten(fn(a))], 0)  # noqa: E731
    a = tg.constant(sample(*shape))
    forward = tg.jacobian(fn, mode="forward")(a)
    np.testing.assert_allclose(tg.jacobian(fn, mode="reverse")(a), forward, atol=1e-9)


def test_a_function_of_a_hermitian_matrix_does_not_depend_on_the_vectors():
    """The gradient of a trace of a polynomial by eigenvectors is that of the polynomial."""

    def by_vectors(a):
        w, v = tg.linalg.eigh(a)
        return tg.reduce_sum(tg.matmul(v * w**3, v, adjoint_b=True) * weights)

    a, weights = sample(3, 3), sample(3, 3)
    weights = weights + weights.T
    a = a + a.T
    found = tg.grad(by_vectors)(tg.constant(a)).numpy()
    direct = tg.grad(lambda a: tg.reduce_sum(a @ a @ a * weights))(tg.constant(a)).numpy()
    np.testing.assert_allclose(found, np.tril(direct) + np.tril(direct, -1), atol=1e-10)


# Where values are equal, or 0.


def test_equal_singular_values():
    """Values and what follows from them have derivatives; vectors alone have none."""
    eye = tg.eye(3, dtype=tg.float64)
    total = tg.grad(lambda a: tg.reduce_sum(tg.linalg.svd(a, compute_uv=False)))(eye)
    np.testing.assert_allclose(total, np.eye(3), atol=1e-12)
    total = tg.grad(lambda a: tg.reduce_sum(tg.linalg.svd(a)[0]))(eye)
    np.testing.assert_allclose(total, np.eye(3), atol=1e-12)
    total = tg.grad(lambda a: tg.reduce_sum(tg.linalg.eigh(a)[0]))(eye)
    np.testing.assert_allclose(total, np.eye(3), atol=1e-12)
    inverse = tg.grad(lambda a: tg.reduce_sum(tg.linalg.pinv(a) * np.arange(9.0).reshape(3, 3)))(
        eye
    )
    np.testing.assert_allclose(inverse, -np.arange(9.0).reshape(3, 3), atol=1e-12)
    for vectors in (lambda a: tg.linalg.svd(a)[1], lambda a: tg.linalg.eigh(a)[1]):
        found = tg.grad(lambda a, vectors=vectors: tg.reduce_sum(vectors(a)))(eye)
        assert not np.isfinite(found.numpy()).all()


@pytest.mark.parametrize(
    "modes", [["reverse"], pytest.param(["reverse", "forward"], marks=pytest.mark.sweep)]
)
@pytest.mark.sweep
def test_functions_of_matrices_with_equal_eigenvalues(modes):
    both = tg.function(lambda a: (tg.linalg.expm(a), tg.linalg.sqrtm(a)))
    diagonal, defective = [[2.0, 0.0], [0.0, 2.0]], [[2.0, 1.0], [0.0, 2.0]]
    check_gradients(both, tg.constant([diagonal, defective]), order=1)
    # Only the root is computed by eigenvalues.
    check_gradients(tg.function(tg.linalg.sqrtm), tg.constant(defective), modes=modes)


@pytest.mark.sweep
def test_the_pseudo_inverse_of_a_matrix_without_full_rank():
    """Along matrices of the same rank, which is all that the derivative is for."""
    u, v = sample(3, 1), sample(1, 2)

    def moved(t):
        return tg.linalg.pinv(tg.exp(t) * u @ (v + t), rcond=1e-8)

    check_gradients(moved, tg.constant(0.3, tg.float64))


@pytest.mark.parametrize(
    "call",
    [
        lambda a: tg.linalg.qr(a, full_matrices=True)[0],
        lambda a: tg.linalg.svd(a, full_matrices=True)[1],
    ],
    ids=["qr", "svd"],
)
def test_columns_that_are_not_determined_have_no_derivative(call):
    with pytest.raises(LookupError, match="not determined") as caught:
        tg.grad(lambda a: tg.reduce_sum(call(a)))(tg.constant(sample(4, 2)))
    assert "test_linalg.py" in str(caught.value)
    assert "fix: use full_matrices=False" in str(caught.value)


# In loops, and where there is nothing.


@pytest.mark.parametrize(
    "fn", [tg.linalg.qr, tg.linalg.svd, tg.linalg.eigh, tg.linalg.lu, tg.linalg.expm]
)
def test_parallel_loops(fn):
    a = regular(3, 4)
    found = tg.vectorized_map(fn, tg.constant(a))
    for y, expected in zip(tg.nest.flatten(found), tg.nest.flatten(fn(a))):
        close(y, expected.numpy())


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "fn",
    [
        *(tg.linalg.qr, tg.linalg.svd, tg.linalg.eigh, tg.linalg.eigvalsh, tg.linalg.lu),
        *(tg.linalg.expm, tg.linalg.sqrtm, tg.linalg.pinv),
    ],
)
@pytest.mark.parametrize("shape", [(0, 2, 2), (0, 0), (1, 1)])
def test_small_matrices(fn, shape):
    a = np.ones(shape)

    def total(a):
        parts = [y for y in tg.nest.flatten(fn(a)) if y.dtype.is_floating]
        return tg.add_n([tg.reduce_sum(y**2) for y in parts])

    assert tg.grad(total)(tg.constant(a)).shape == shape


# Bad arguments.


BAD = {
    "qr of a vector": (lambda: tg.linalg.qr([1.0]), "Shape", r"f32\[1\] is not a matrix"),
    "qr of integers": (lambda: tg.linalg.qr([[1]]), "DType", "only floating or complex"),
    "qr of 16 bits": (lambda: tg.linalg.qr(tg.ones([2, 2], tg.float16)), "DType", "too few"),
    "svd of a scalar": (lambda: tg.linalg.svd(1.0), "Shape", "not a matrix"),
    "svd of bool": (lambda: tg.linalg.svd([[True]]), "DType", "only floating"),
    "svd by a number": (
        lambda: tg.linalg.svd([[1.0]], 3),
        "DType",
        "full_matrices is True or False",
    ),
    "eigh of a rectangle": (lambda: tg.linalg.eigh(tg.ones([2, 3])), "Shape", "not square"),
    "eigvalsh of a rectangle": (lambda: tg.linalg.eigvalsh(tg.ones([2, 3])), "Shape", "not square"),
    "eig of a rectangle": (lambda: tg.linalg.eig(tg.ones([2, 3])), "Shape", "not square"),
    "eigvals of a vector": (lambda: tg.linalg.eigvals([1.0]), "Shape", "not a matrix"),
    "lu of a rectangle": (lambda: tg.linalg.lu(tg.ones([2, 3])), "Shape", "not square"),
    "lu with wrong indices": (
        lambda: tg.linalg.lu([[1.0]], tg.int8),
        "DType",
        "output_idx_type is int8",
    ),
    "lu_solve": (
        lambda: tg.linalg.lu_solve(tg.eye(2), [0, 1], tg.ones([3, 1])),
        "Shape",
        "3 right",
    ),
    "lu_solve by floats": (
        lambda: tg.linalg.lu_solve(tg.eye(2), [0.5, 1], tg.ones([2, 1])),
        "DType",
        "integers",
    ),
    "lu_reconstruct": (
        lambda: tg.linalg.lu_reconstruct(tg.eye(2), [0, 1, 2]),
        "Shape",
        "one number for each row",
    ),
    "lu_matrix_inverse": (
        lambda: tg.linalg.lu_matrix_inverse(tg.ones([2, 3]), [0, 1]),
        "Shape",
        "not square|rows",
    ),
    "lstsq": (
        lambda: tg.linalg.lstsq(tg.ones([3, 2]), tg.ones([2, 1])),
        "Shape",
        "3 equations have 2 right",
    ),
    "lstsq of a vector": (
        lambda: tg.linalg.lstsq(tg.ones([3, 2]), tg.ones([3])),
        "Shape",
        "not a matrix",
    ),
    "lstsq below 0": (
        lambda: tg.linalg.lstsq(tg.ones([3, 2]), tg.ones([3, 1]), -1.0),
        "Trace",
        "l2_regularizer is -1",
    ),
    "pinv of integers": (lambda: tg.linalg.pinv([[1]]), "DType", "float"),
    "pinv of a vector": (lambda: tg.linalg.pinv([1.0]), "Shape", "not a matrix"),
    "matrix_rank": (lambda: tg.linalg.matrix_rank([1.0]), "Shape", "not a matrix"),
    "expm of a rectangle": (lambda: tg.linalg.expm(tg.ones([2, 3])), "Shape", "not square"),
    "logm of a real matrix": (lambda: tg.linalg.logm([[1.0]]), "DType", "may be complex"),
    "sqrtm of integers": (lambda: tg.linalg.sqrtm([[1]]), "DType", "only floating or complex"),
    "a format": (
        lambda: tg.linalg.tridiagonal_solve(tg.ones([3, 2]), [1.0, 1.0], "packed"),
        "Trace",
        '"compact" or',
    ),
    "two diagonals": (
        lambda: tg.linalg.tridiagonal_solve(tg.ones([2, 2]), [1.0, 1.0]),
        "Shape",
        "there are three",
    ),
    "diagonals of 3": (
        lambda: tg.linalg.tridiagonal_solve(tg.ones([3, 3]), [1.0, 1.0]),
        "Shape",
        "3 elements for 2 rows",
    ),
    "a short list": (
        lambda: tg.linalg.tridiagonal_matmul([[1.0]], [[1.0]], "sequence"),
        "Shape",
        "there are three",
    ),
    "a flat product": (
        lambda: tg.linalg.tridiagonal_matmul(tg.ones([3, 2]), [1.0, 1.0]),
        "Shape",
        "not a matrix",
    ),
    "no bands": (
        lambda: tg.linalg.banded_triangular_solve(tg.ones([0, 2]), tg.ones([2, 1])),
        "Shape",
        "0 diagonals",
    ),
    "many bands": (
        lambda: tg.linalg.banded_triangular_solve(tg.ones([3, 2]), tg.ones([2, 1])),
        "Shape",
        "3 diagonals of a matrix of 2 rows",
    ),
    "short bands": (
        lambda: tg.linalg.banded_triangular_solve(tg.ones([1, 2]), tg.ones([3, 1])),
        "Shape",
        "3 right",
    ),
    "eigh_tridiagonal": (
        lambda: tg.linalg.eigh_tridiagonal([1.0], [1.0]),
        "Shape",
        r"f32\[1\] and f32\[1\]",
    ),
    "a selection": (
        lambda: tg.linalg.eigh_tridiagonal([1.0], [], select="b"),
        "Trace",
        "select is",
    ),
    "too many": (
        lambda: tg.linalg.eigh_tridiagonal([1.0, 2.0], [1.0], select="i", select_range=(0, 2)),
        "Shape",
        "0 to 2 of 2",
    ),
    "set_diag": (
        lambda: tg.linalg.set_diag(tg.eye(3), [[1.0, 2.0]], k=(0, 1)),
        "Shape",
        "do not fit",
    ),
    "set_diag outside": (
        lambda: tg.linalg.set_diag(tg.eye(3), [1.0], k=3),
        "Shape",
        "no diagonal 3",
    ),
    "set_diag aligned": (
        lambda: tg.linalg.set_diag(tg.eye(3), [1.0], k=2, align="LEFT"),
        "Trace",
        "align",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    call, kind, words = BAD[name]
    with pytest.raises(getattr(tg.errors, f"{kind}Error"), match=words) as caught:
        call()
    assert "test_linalg.py" in str(caught.value)
    assert "fix: " in str(caught.value)


def test_a_right_hand_side_without_rows_is_refused():
    compact = tg.ones([2, 3, 4])
    for rhs in (tg.ones([]), tg.ones([4])):
        with pytest.raises(ValueError, match="tridiagonal_solve: "):
            tg.linalg.tridiagonal_solve(compact, rhs)


def test_a_second_derivative_through_one_of_two_outputs():
    # The sum of the squares of the eigenvalues is that of the elements of the lower half, mirrored.
    eigenvalues = tg.function(lambda x: tg.linalg.eigh(x)[0])
    x = tg.constant([[2.0, 0.3], [0.3, 1.0]])
    with tg.GradientTape() as outer:
        outer.watch(x)
        with tg.GradientTape() as inner:
            inner.watch(x)
            y = tg.reduce_sum(eigenvalues(x) ** 2)
        z = tg.reduce_sum(inner.gradient(y, x) ** 2)
    np.testing.assert_allclose(outer.gradient(z, x), [[16.0, 0.0], [9.6, 8.0]], 1e-5, 1e-5)
