"""Linear operators against the dense matrices that they stand for, in NumPy and JAX."""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import tracegraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

L = tg.linalg
DTYPES = [np.float64, np.complex128]


def sample(seed, *shape, dtype=np.float64):
    random = np.random.default_rng([seed, *shape])
    values = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * random.standard_normal(shape)
    return values.astype(dtype)


def regular(seed, n, *lead, dtype=np.float64):
    return 0.3 * sample(seed, *lead, n, n, dtype=dtype) + 2 * np.eye(n, dtype=dtype)


def adjoint(x):
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def over_batch(make):
    """A function of vectors as one of stacks of them, which broadcast."""

    def apply(*vectors):
        lead = jnp.broadcast_shapes(*(x.shape[:-1] for x in vectors))
        flat = [jnp.broadcast_to(x, (*lead, x.shape[-1])).reshape(-1, x.shape[-1]) for x in vectors]
        found = jnp.stack([make(*rows) for rows in zip(*flat, strict=True)])
        return found.reshape(*lead, *found.shape[1:])

    return apply


def matrix(x):
    return x


def diagonal(x):
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def householder(v):
    unit = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
    return jnp.eye(v.shape[-1]) - 2 * unit[..., :, None] * jnp.conj(unit)[..., None, :]


def kronecker(x, y):
    both = x[..., :, None, :, None] * y[..., None, :, None, :]
    *lead, m, p, n, q = both.shape
    return both.reshape(*lead, m * p, n * q)


def beside(rows):
    return jnp.concatenate([jnp.concatenate(row, -1) for row in rows], -2)


def toeplitz(col, row):
    n = len(col)
    numbers = jnp.concatenate([row[:0:-1], col])
    return numbers[np.arange(n)[:, None] - np.arange(n) + n - 1]


def tridiagonal(x):
    above, middle, below = x[..., 0, :], x[..., 1, :], x[..., 2, :]
    n = x.shape[-1]
    rows = diagonal(middle)
    return (
        rows
        + jnp.roll(diagonal(below), -1, -1) * np.tri(n, k=-1)
        + (jnp.roll(diagonal(above), 1, -1) * np.tri(n, k=-1).T)
    )


def circulant(spectrum):
    kernel = jnp.fft.ifft(spectrum)
    n = len(kernel)
    return kernel[(np.arange(n)[:, None] - np.arange(n)) % n]


def circulant_2d(x):
    """The dense form of a two-dimensional one, by transforming unit pictures."""
    *lead, n, m = x.shape
    units = jnp.eye(n * m).reshape(n * m, n, m)
    pictures = jnp.fft.ifft2(x[..., None, :, :] * jnp.fft.fft2(units))
    return jnp.swapaxes(pictures.reshape(*lead, n * m, n * m), -1, -2)


def low_rank(base, u, d, v):
    return diagonal(base) + (u * d[..., None, :]) @ adjoint(v)


@dataclass(frozen=True)
class Case:
    """A kind of operator: how it is made of arrays, and the matrix that it stands for."""

    name: str
    make: Any
    dense: Any
    arguments: Any
    dtypes: Any = tuple(DTYPES)

    def __str__(self):
        return self.name


full, diag = L.LinearOperatorFullMatrix, L.LinearOperatorDiag


CASES = [
    Case("full", full, matrix, lambda t: [regular(1, 3, 2, dtype=t)]),
    Case("diag", diag, diagonal, lambda t: [2 + 0.5 * sample(2, 2, 3, dtype=t)]),
    Case(
        "triangular",
        L.LinearOperatorLowerTriangular,
        lambda x: x * np.tri(x.shape[-1]),
        lambda t: [regular(3, 3, 2, dtype=t)],
    ),
    Case(
        "scaled identity",
        lambda x: L.LinearOperatorScaledIdentity(3, x),
        lambda x: x[..., None, None] * jnp.eye(3),
        lambda t: [2 + sample(4, 2, dtype=t)],
    ),
    Case(
        "householder",
        L.LinearOperatorHouseholder,
        householder,
        lambda t: [sample(5, 2, 3, dtype=t)],
    ),
    Case(
        "kronecker",
        lambda x, y, z: L.LinearOperatorKronecker([full(x), diag(y), full(z)]),
        lambda x, y, z: kronecker(kronecker(x, diagonal(y)), z),
        lambda t: [
            regular(6, 2, 2, 1, dtype=t),
            2 + 0.5 * sample(7, 2, dtype=t),
            regular(8, 3, 2, dtype=t),
        ],
    ),
    Case(
        "blocks",
        lambda x, y: L.LinearOperatorBlockDiag([full(x), diag(y)]),
        lambda x, y: beside(
            [
                [x, jnp.zeros((2, 2, 1))],
                [jnp.zeros((2, 1, 2)), jnp.broadcast_to(diagonal(y), (2, 1, 1))],
            ]
        ),
        lambda t: [regular(9, 2, 2, dtype=t), 2 + 0.5 * sample(10, 1, dtype=t)],
    ),
    Case(
        "block triangle",
        lambda x, y, z: L.LinearOperatorBlockLowerTriangular([[full(x)], [full(y), diag(z)]]),
        lambda x, y, z: beside(
            [
                [jnp.broadcast_to(x, (2, 2, 2)), jnp.zeros((2, 2, 1))],
                [y, jnp.broadcast_to(diagonal(z), (2, 1, 1))],
            ]
        ),
        lambda t: [
            regular(11, 2, dtype=t),
            sample(12, 2, 1, 2, dtype=t),
            2 + 0.5 * sample(13, 1, dtype=t),
        ],
    ),
    Case(
        "composition",
        lambda x, y: L.LinearOperatorComposition([full(x), diag(y)]),
        lambda x, y: x @ diagonal(y),
        lambda t: [regular(14, 3, 2, 1, dtype=t), 2 + 0.5 * sample(15, 2, 3, dtype=t)],
    ),
    Case(
        "low rank",
        lambda x, u, d, v: L.LinearOperatorLowRankUpdate(diag(x), u, d, v),
        low_rank,
        lambda t: [
            3 + 0.5 * sample(16, 3, dtype=t),
            0.5 * sample(17, 2, 3, 2, dtype=t),
            sample(18, 2, dtype=t),
            0.5 * sample(19, 3, 2, dtype=t),
        ],
    ),
    Case(
        "circulant",
        lambda x: L.LinearOperatorCirculant(x, x.dtype),
        over_batch(circulant),
        lambda t: [3 + sample(20, 2, 4, dtype=t)],
        (np.complex128,),
    ),
    Case(
        "circulant of pictures",
        lambda x: L.LinearOperatorCirculant2D(x, x.dtype),
        circulant_2d,
        lambda t: [3 + sample(21, 2, 2, 3, dtype=t)],
        (np.complex128,),
    ),
    Case(
        "toeplitz",
        lambda col, row: L.LinearOperatorToeplitz(col + np.array([3.0, 0, 0]), row),
        over_batch(lambda col, row: toeplitz(col + np.array([3.0, 0, 0]), row)),
        lambda t: [0.5 * sample(22, 2, 3, dtype=t), 0.5 * sample(23, 3, dtype=t)],
    ),
    Case(
        "three diagonals",
        L.LinearOperatorTridiag,
        tridiagonal,
        lambda t: [sample(24, 2, 3, 4, dtype=t) + np.array([[0.0], [4.0], [0.0]])],
    ),
    Case(
        "adjoint",
        lambda x: L.LinearOperatorAdjoint(full(x)),
        adjoint,
        lambda t: [regular(25, 3, 2, dtype=t)],
    ),
    Case(
        "inverse",
        lambda x: L.LinearOperatorInversion(full(x, is_non_singular=True)),
        jnp.linalg.inv,
        lambda t: [regular(26, 3, dtype=t)],
    ),
]
EACH = [pytest.param(c, t, id=f"{c}-{np.dtype(t).name}") for c in CASES for t in c.dtypes]


def close(found, expected, slack=1e4):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    scale = np.max(np.abs(expected), initial=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=slack * 2.3e-16 * scale)


def in_jax(function, *arrays):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*arrays))


def answers(operator, x):
    """What an operator says of itself, and of a matrix x."""
    turned = tg.linalg.adjoint(x)
    return {
        "dense": operator.to_dense(),
        "matmul": operator.matmul(x),
        "matmul adjoint": operator.matmul(x, adjoint=True),
        "matmul adjoint_arg": operator.matmul(turned, adjoint_arg=True),
        "matmul both": operator.matmul(turned, adjoint=True, adjoint_arg=True),
        "matvec": operator.matvec(x[..., 0]),
        "matvec adjoint": operator.matvec(x[..., 0], adjoint=True),
        "solve": operator.solve(x),
        "solve adjoint": operator.solve(x, adjoint=True),
        "solve adjoint_arg": operator.solve(turned, adjoint_arg=True),
        "solve both": operator.solve(turned, adjoint=True, adjoint_arg=True),
        "solvevec": operator.solvevec(x[..., 0]),
        "diag_part": operator.diag_part(),
        "trace": operator.trace(),
        "determinant": operator.determinant(),
        "log_abs_determinant": operator.log_abs_determinant(),
        "cond": operator.cond(),
        "sum": operator.add_to_tensor(operator.to_dense()),
        "H": operator.H.to_dense(),
        "inverse": operator.inverse().to_dense(),
        "inverse of H": operator.H.inverse().to_dense(),
    }


def answers_of_matrix(a, x):
    product, turned, solved = a @ x, np.conj(np.swapaxes(a, -1, -2)), np.linalg.solve
    lead = np.broadcast_shapes(a.shape[:-2], x.shape[:-2])
    x = np.broadcast_to(x, (*lead, *x.shape[-2:]))
    return {
        "dense": a,
        "matmul": product,
        "matmul adjoint": turned @ x,
        "matmul adjoint_arg": product,
        "matmul both": turned @ x,
        "matvec": product[..., 0],
        "matvec adjoint": (turned @ x)[..., 0],
        "solve": solved(a, x),
        "solve adjoint": solved(turned, x),
        "solve adjoint_arg": solved(a, x),
        "solve both": solved(turned, x),
        "solvevec": solved(a, x)[..., 0],
        "diag_part": np.diagonal(a, axis1=-2, axis2=-1),
        "trace": np.trace(a, axis1=-2, axis2=-1),
        "determinant": np.linalg.det(a),
        "log_abs_determinant": np.linalg.slogdet(a)[1].astype(a.dtype),
        "cond": np.linalg.cond(a).astype(a.dtype),
        "sum": a + a,
        "H": turned,
        "inverse": np.linalg.inv(a),
        "inverse of H": np.linalg.inv(turned),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "dtype"), EACH)
@pytest.mark.parametrize("lead", [(), (3, 1, 1)], ids=["one", "broadcast"])
def test_it_computes_what_its_matrix_does(case, dtype, lead):
    arguments = case.arguments(dtype)
    dense = in_jax(case.dense, *arguments).astype(dtype)
    x = sample(99, *lead, dense.shape[-1], 2, dtype=dtype)

    @tg.function
    def ask(x, *arguments):
        return answers(case.make(*arguments), x)

    found = ask(tg.constant(x), *map(tg.constant, arguments))
    for name, expected in answers_of_matrix(dense, x).items():
        assert found[name].dtype.name == np.dtype(dtype).name, name
        try:
            close(found[name], expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("case", "dtype"), EACH)
def test_gradients_of_each_argument(case, dtype):
    arguments = case.arguments(dtype)
    size = in_jax(case.dense, *arguments).shape[-1]
    x, weights = sample(97, size, 1, dtype=dtype), sample(98, size, 1, dtype=dtype)

    def expected(*arguments):
        a = case.dense(*arguments)
        vectors = a @ x + jnp.linalg.solve(a, jnp.broadcast_to(x, (*a.shape[:-1], 1)))
        of_vectors = jnp.sum(jnp.real(vectors * weights))
        return (
            of_vectors
            + jnp.sum(jnp.linalg.slogdet(a)[1])
            + jnp.sum(jnp.abs(jnp.trace(a, axis1=-2, axis2=-1)))
        )

    @tg.function
    def found(*arguments):
        with tg.GradientTape() as tape:
            tape.watch(arguments)
            operator = case.make(*arguments)
            vectors = operator.matmul(x) + operator.solve(x)
            loss = tg.reduce_sum(tg.math.real(vectors * weights))
            loss += tg.reduce_sum(tg.math.real(operator.log_abs_determinant()))
            loss += tg.reduce_sum(tg.abs(operator.trace()))
        return tape.gradient(loss, arguments)

    gradients = found(*map(tg.constant, arguments))
    wanted = in_jax(jax.grad(expected, tuple(range(len(arguments)))), *arguments)
    for gradient, one in zip(gradients, wanted, strict=True):
        close(gradient, np.conj(one), 1e5)  # JAX's convention is the conjugate one


# What has no parameters, and what is not square.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_an_identity_and_zeros(lead):
    identity = L.LinearOperatorIdentity(3, lead, tg.float64)
    zeros = L.LinearOperatorZeros(3, batch_shape=lead, dtype=tg.float64)
    eye = np.broadcast_to(np.eye(3), (*lead, 3, 3))
    x = sample(1, 2, 3, 2)
    assert identity.shape == zeros.shape == (*lead, 3, 3)
    for name, expected in answers_of_matrix(eye, x).items():
        close(answers(identity, tg.constant(x))[name], expected)
    close(zeros.matmul(x), np.zeros((2, 3, 2)))
    for found in (zeros.trace(), zeros.determinant()):
        close(found, np.zeros(lead))
    close(zeros.diag_part(), np.zeros((*lead, 3)))
    close(zeros.add_to_tensor(x @ np.ones((2, 3))), np.broadcast_to(x @ np.ones((2, 3)), (2, 3, 3)))
    assert np.all(np.isneginf(zeros.log_abs_determinant().numpy()))


def test_a_permutation():
    numbers = np.array([[1, 2, 0, 3], [0, 3, 2, 1]])
    operator = L.LinearOperatorPermutation(numbers, tg.float64)
    dense = np.eye(4)[numbers]
    x = sample(2, 4, 2)
    for name, expected in answers_of_matrix(dense, x).items():
        close(answers(operator, tg.constant(x))[name], expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_operators_that_are_not_square(sizes):
    m, n = sizes
    a, b = sample(3, 2, m, n), sample(4, n, 4)
    c = sample(5, 2, 3)
    product = full(a) @ full(b)
    assert product.shape == (2, m, 4) and not full(a).is_square
    close(product.to_dense(), a @ b)
    close(full(a).H.to_dense(), np.swapaxes(a, -1, -2))
    kron = L.LinearOperatorKronecker([full(a[0]), full(c)])
    close(kron.to_dense(), np.kron(a[0], c))
    close(kron.matmul(sample(6, 3 * n, 2)), np.kron(a[0], c) @ sample(6, 3 * n, 2))
    close(kron.matmul(sample(6, 2 * m, 2), adjoint=True), np.kron(a[0], c).T @ sample(6, 2 * m, 2))
    blocks = L.LinearOperatorBlockDiag([full(a[0]), full(c)], is_square=None)
    close(blocks.to_dense(), scipy.linalg.block_diag(a[0], c))
    u, v = sample(7, m, 2), sample(8, n, 2)
    updated = L.LinearOperatorLowRankUpdate(full(a[0]), u, v=v)
    close(updated.to_dense(), a[0] + u @ v.T)
    close(updated.diag_part(), np.diagonal(a[0] + u @ v.T))
    for operator in (full(a), kron, blocks, updated):
        if not operator.is_square:
            with pytest.raises(NotImplementedError, match="not square"):
                operator.determinant()
            with pytest.raises(NotImplementedError, match="known not to be square"):
                operator.solve(tg.ones([operator.range_dimension, 1], tg.float64))
            with pytest.raises(ValueError, match="known not to be square"):
                operator.inverse()


# Self-adjoint and positive definite operators.

_FACTOR = regular(31, 3, dtype=np.complex128)
HERMITIAN = _FACTOR @ np.conj(_FACTOR.T)
HERMITIAN = (HERMITIAN + np.conj(HERMITIAN.T)) / 2.0  # a product is so only up to rounding
PROMISES = {"is_self_adjoint": True, "is_positive_definite": True}
DEFINITE = [
    full(HERMITIAN, **PROMISES),
    diag(np.array([1.0, 2.0]), is_positive_definite=True),
    L.LinearOperatorScaledIdentity(2, np.array([1.0, 3.0]), is_positive_definite=True),
    L.LinearOperatorIdentity(2),
    L.LinearOperatorKronecker([full(HERMITIAN, **PROMISES), full(HERMITIAN.T, **PROMISES)]),
    L.LinearOperatorBlockDiag([full(HERMITIAN, **PROMISES), full(HERMITIAN.T, **PROMISES)]),
    L.LinearOperatorLowRankUpdate(
        full(HERMITIAN, **PROMISES), sample(32, 3, 1, dtype=np.complex128)
    ),
    L.LinearOperatorCirculant(np.array([1.0, 2.0, 5.0]), tg.complex128, is_positive_definite=True),
    L.LinearOperatorTridiag(np.array([[1.0, 1, 0], [4, 4, 4], [0, 1, 1]]), **PROMISES),
    L.LinearOperatorToeplitz(np.array([3.0, 1]), np.array([3.0, 1]), **PROMISES),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operator", DEFINITE, ids=lambda x: type(x).__name__[14:])
def test_definite_operators(operator):
    dense = operator.to_dense().numpy()
    assert operator.is_self_adjoint and operator.is_positive_definite and operator.is_non_singular
    assert operator.H is operator
    lower = operator.cholesky().to_dense().numpy()
    slack = 1e4 if dense.dtype.itemsize > 4 else 1e10
    close(lower @ np.conj(np.swapaxes(lower, -1, -2)), dense, slack)
    found = np.sort(np.real(operator.eigvals().numpy()), -1)
    assert operator.eigvals().dtype is operator.dtype
    close(found, np.linalg.eigvalsh(dense), slack)
    close(operator.determinant(), np.linalg.det(dense), slack)
    close(np.real(operator.log_abs_determinant()), np.linalg.slogdet(dense)[1], slack)
    close(np.real(operator.cond()), np.linalg.cond(dense), slack)
    x = sample(33, dense.shape[-1], 2).astype(dense.dtype)
    close(
        operator.solve(x),
        np.linalg.solve(dense, np.broadcast_to(x, (*dense.shape[:-2], *x.shape))),
        slack,
    )
    operator.assert_non_singular()
    operator.assert_positive_definite()
    if not isinstance(operator, L.LinearOperatorLowRankUpdate):  # it is so up to rounding
        operator.assert_self_adjoint()


SINGULAR = [
    full([[1.0, 1.0], [1.0, 1.0]]),
    full([[0.0, 0.0], [0.0, 0.0]]),
    diag([1.0, 0.0]),
    L.LinearOperatorLowerTriangular([[1.0, 0.0], [1.0, 0.0]]),
    L.LinearOperatorScaledIdentity(2, 0.0),
    L.LinearOperatorZeros(2),
    L.LinearOperatorCirculant([1.0, 0.0]),
    L.LinearOperatorKronecker([diag([1.0, 0.0]), diag([1.0, 1.0])]),
    L.LinearOperatorBlockDiag([diag([1.0, 0.0]), diag([1.0, 1.0])]),
    L.LinearOperatorComposition([diag([1.0, 0.0]), diag([1.0, 1.0])]),
]


@pytest.mark.parametrize("operator", SINGULAR, ids=lambda x: type(x).__name__[14:])
def test_checks_of_singular_operators(operator):
    with pytest.raises(tg.errors.InvalidArgumentError):
        operator.assert_non_singular()
    with pytest.raises(tg.errors.InvalidArgumentError):
        operator.assert_positive_definite()


def test_checks_of_what_is_not_self_adjoint():
    col, row = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    for operator in (
        full([[1.0, 2.0], [3.0, 1.0]]),
        diag(np.array([1j, 1.0])),
        L.LinearOperatorToeplitz(col, row),
        L.LinearOperatorTridiag(np.array([[1.0, 0], [1, 1], [0, 2]])),
        L.LinearOperatorCirculant(np.array([1.0 + 1j, 1])),
    ):
        with pytest.raises(tg.errors.InvalidArgumentError):
            operator.assert_self_adjoint()


def test_a_matrix_is_definite_by_its_hermitian_part():
    full([[1.0, 1.0], [-1.0, 1.0]]).assert_positive_definite()
    with pytest.raises(tg.errors.InvalidArgumentError, match="not positive definite"):
        full([[1.0, 3.0], [0.0, 1.0]]).assert_positive_definite()


# Structure.


def operations(make, *types):
    """The names of the ops of a function."""
    graph = tg.function(make).get_concrete_function(*types).graph
    return {type(node.op).__name__ for node in graph.nodes}


def test_a_kronecker_product_is_never_dense():
    """The matrix would have 10 ** 12 elements."""
    blocks = [diag(np.full(100, 2.0)) for _ in range(3)]
    operator = L.LinearOperatorKronecker(blocks)
    assert operator.shape == (10**6, 10**6)
    close(operator.solvevec(np.ones(10**6)), np.full(10**6, 0.125))
    close(operator.matvec(np.ones(10**6)), np.full(10**6, 8.0))
    close(operator.trace(), 8e6)
    close(operator.log_abs_determinant(), 3e6 * np.log(2.0))


def test_structure_decides_the_algorithm():
    square, vector = tg.TensorSpec([4, 4]), tg.TensorSpec([4])
    assert "Solve" in operations(lambda a, x: full(a).solvevec(x), square, vector)
    promised = lambda a, x: full(a, **PROMISES).solvevec(x)  # noqa: E731
    assert {"Cholesky", "TriangularSolve"} <= operations(promised, square, vector)
    triangle = lambda a, x: L.LinearOperatorLowerTriangular(a).solvevec(x)  # noqa: E731
    assert operations(triangle, square, vector) & {"Solve", "TriangularSolve"} == {
        "TriangularSolve"
    }
    for ask in ("determinant", "log_abs_determinant", "cond"):
        names = operations(lambda d: getattr(diag(d), ask)(), vector)  # noqa: B023
        assert not names & {"Det", "Slogdet", "SingularValues"}
    toeplitz = lambda c, x: L.LinearOperatorToeplitz(c, c).matvec(x)  # noqa: E731
    assert "Fft" in operations(toeplitz, vector, vector)
    banded = lambda d, x: L.LinearOperatorTridiag(d).solvevec(x)  # noqa: E731
    assert "TridiagonalSolve" in operations(banded, tg.TensorSpec([3, 4]), vector)


def test_products_keep_their_structure():
    one, two = diag([1.0, 2.0]), L.LinearOperatorScaledIdentity(2, 3.0)
    identity, zeros = L.LinearOperatorIdentity(2), L.LinearOperatorZeros(2)
    triangle = L.LinearOperatorLowerTriangular([[1.0, 0.0], [2.0, 3.0]])
    circular = L.LinearOperatorCirculant([1.0, 2.0], tg.float32)
    for left, right, kind in (
        (one, two, diag),
        (two, two, L.LinearOperatorScaledIdentity),
        (one, triangle, L.LinearOperatorLowerTriangular),
        (zeros, triangle, L.LinearOperatorZeros),
        (circular, circular, L.LinearOperatorCirculant),
        (full([[1.0, 2.0], [3.0, 4.0]]), one, L.LinearOperatorComposition),
    ):
        product = left @ right
        assert type(product) is kind
        close(product.to_dense(), left.to_dense().numpy() @ right.to_dense().numpy(), 1e10)
        if left is not zeros:
            close(
                left.solve(right).to_dense(),
                np.linalg.solve(left.to_dense(), right.to_dense()),
                1e10,
            )
    assert identity @ triangle is triangle and triangle @ identity is triangle
    blocks = L.LinearOperatorBlockDiag([one, triangle])
    assert [type(x) for x in (blocks @ blocks).operators] == [diag, L.LinearOperatorLowerTriangular]
    close(
        one.matmul(triangle, adjoint_arg=True).to_dense(),
        one.to_dense().numpy() @ triangle.to_dense().numpy().T,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_triangle_times_its_adjoint_is_definite(dtype):
    lower = np.tril(sample(71, 3, 3, dtype=dtype))
    triangle = L.LinearOperatorLowerTriangular(lower, is_non_singular=True)
    product = triangle @ triangle.H
    assert product.is_self_adjoint and product.is_positive_definite
    expected = np.linalg.cholesky(lower @ np.conj(lower.T))
    close(product.cholesky().to_dense(), expected)
    assert (triangle.H @ triangle).is_positive_definite
    longer = L.LinearOperatorComposition([triangle, triangle, triangle.H, triangle.H])
    assert longer.is_self_adjoint and longer.is_positive_definite
    square = lower @ lower
    close(longer.cholesky().to_dense(), np.linalg.cholesky(square @ np.conj(square.T)))
    known = L.LinearOperatorLowerTriangular(np.eye(2), is_positive_definite=True)
    assert (known @ known.H).cholesky() is known
    for other in (triangle @ triangle.H.H, full(lower) @ full(lower).H):
        assert not other.is_positive_definite


# Arguments by blocks.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_adjoint", [False, True])
def test_blocks_are_given_and_returned_one_by_one(is_adjoint):
    x, y, z = regular(41, 2), sample(42, 3, 2), regular(43, 3)
    triangle = L.LinearOperatorBlockLowerTriangular([[full(x)], [full(y), full(z)]])
    blocks = L.LinearOperatorBlockDiag([full(x), full(z)])
    parts = [sample(44, 2, 2), sample(45, 3, 2)]
    for operator in (triangle, blocks):
        whole = np.concatenate(parts)
        for name in ("matmul", "solve"):
            found = getattr(operator, name)(list(map(tg.constant, parts)), adjoint=is_adjoint)
            assert [part.shape for part in found] == [(2, 2), (3, 2)]
            together = getattr(operator, name)(whole, adjoint=is_adjoint)
            close(np.concatenate(found), together)
        vectors = [part[:, 0] for part in parts]
        close(np.concatenate(operator.matvec(vectors)), operator.matvec(whole[:, 0]))
        close(np.concatenate(operator.solvevec(vectors)), operator.solvevec(whole[:, 0]))
        with pytest.raises(ValueError, match="there are 2 blocks, and 1 was given"):
            operator.matmul(parts[:1])


# Variables, functions, modules.


def test_variables_are_found_and_read_at_each_use():
    operator = L.LinearOperatorLowRankUpdate(
        diag(tg.Variable([1.0, 2.0])), tg.Variable([[1.0], [0.0]]), tg.Variable([3.0])
    )
    assert len(operator.trainable_variables) == 3
    assert operator.base_operator in operator.submodules
    step = tg.function(operator.trace)
    assert step().numpy() == 6.0
    operator.diag_update.assign([5.0])
    assert step().numpy() == operator.trace().numpy() == 8.0
    with tg.GradientTape() as tape:
        loss = operator.log_abs_determinant()
    for gradient in tape.gradient(loss, operator.trainable_variables):
        assert np.all(np.isfinite(gradient.numpy())) and gradient.numpy().any()


def test_an_operator_in_a_module_is_trained_and_saved(tmp_path):
    class Model(tg.Module):
        def __init__(self):
            super().__init__()
            self.operator = L.LinearOperatorLowerTriangular(tg.Variable([[2.0, 0.0], [1.0, 4.0]]))

        @tg.function(input_signature=[tg.TensorSpec([None])])
        def __call__(self, x):
            return self.operator.solvevec(x)

    model = Model()
    assert [v.shape for v in model.variables] == [(2, 2)]
    expected = model(tg.constant([2.0, 9.0])).numpy()
    tg.saved_model.save(model, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded(tg.constant([2.0, 9.0])), expected)
    checkpoint = tg.train.Checkpoint(model=model)
    path = checkpoint.write(tmp_path / "state")
    model.operator.tril.assign(tg.ones([2, 2]))
    checkpoint.read(path)
    np.testing.assert_array_equal(model(tg.constant([2.0, 9.0])), expected)


def test_operators_are_pickled_under_the_names_that_users_import():
    names = [name for name in dir(L) if name.startswith("LinearOperator")]
    assert {getattr(L, name).__module__ for name in names} == {"tracegraph.linalg"}


def test_open_sizes():
    @tg.function(
        input_signature=[tg.TensorSpec(["n"], tg.float64), tg.TensorSpec(["n", None], tg.float64)]
    )
    def ask(d, x):
        operator = diag(d)
        identity = L.LinearOperatorIdentity(operator.domain_dimension_tensor(), dtype=tg.float64)
        return operator.solve(x) + identity.matmul(x), operator.shape_tensor(), operator.trace()

    for n in (2, 5):
        d, x = 2 + np.arange(float(n)), sample(n, n, 3)
        found, shape, trace = ask(tg.constant(d), tg.constant(x))
        close(found, x / d[:, None] + x)
        assert shape.numpy().tolist() == [n, n] and trace.numpy() == d.sum()


def test_sizes_and_arguments():
    operator = diag(tg.ones([5, 3]), name="mine")
    assert (
        operator.name == "mine"
        and operator.tensor_rank == 3 == operator.tensor_rank_tensor().numpy()
    )
    assert operator.shape == (5, 3, 3) and operator.batch_shape == (5,)
    assert operator.shape_tensor().numpy().tolist() == [5, 3, 3]
    assert operator.batch_shape_tensor().numpy().tolist() == [5]
    assert diag([1.0]).batch_shape_tensor().shape == (0,)
    assert operator.domain_dimension == operator.range_dimension == 3
    assert (
        operator.domain_dimension_tensor().numpy() == operator.range_dimension_tensor().numpy() == 3
    )
    assert operator.is_square and operator.is_self_adjoint and operator.is_non_singular is None
    assert operator.parameters["name"] == "mine" and set(operator.parameters) == {
        *("diag", "is_non_singular", "is_self_adjoint", "is_positive_definite", "is_square", "name")
    }
    assert (operator.H @ operator).shape == (5, 3, 3)
    assert repr(operator) == "<tg.linalg.LinearOperatorDiag: shape=(5, 3, 3), dtype=float32>"


def test_an_operator_of_a_users_own():
    class Shift(L.LinearOperator):
        def __init__(self, n):
            super().__init__(tg.float64, is_non_singular=True, parameters={"n": n})
            self.n = n

        def _shape(self):
            return tg.TensorShape([self.n, self.n])

        def _matmul(self, x, adjoint=False, adjoint_arg=False):
            x = tg.linalg.adjoint(x) if adjoint_arg else x
            return tg.roll(x, -1 if adjoint else 1, axis=-2)

    operator, x = Shift(3), sample(51, 2, 3, 2)
    for name, expected in answers_of_matrix(np.roll(np.eye(3), 1, 0), x).items():
        close(answers(operator, tg.constant(x))[name], expected)


# Promises and arguments that do not fit.

REFUSED = [
    (
        ValueError,
        "is_non_singular is False",
        lambda: full([[1.0]], is_positive_definite=True, is_non_singular=False),
    ),
    (
        ValueError,
        "is_square is False",
        lambda: full([[1.0]], is_self_adjoint=True, is_square=False),
    ),
    (ValueError, "is_square is True", lambda: full([[1.0, 2.0]], is_square=True).is_square),
    (ValueError, "real diagonal", lambda: diag([1.0], is_self_adjoint=False)),
    (ValueError, "is_square is False", lambda: diag([1.0], is_square=False)),
    (
        ValueError,
        "is_square is False",
        lambda: L.LinearOperatorLowerTriangular([[1.0]], is_square=False),
    ),
    (
        ValueError,
        "is_non_singular is False",
        lambda: L.LinearOperatorIdentity(2, is_non_singular=False),
    ),
    (ValueError, "is_non_singular is True", lambda: L.LinearOperatorZeros(2, is_non_singular=True)),
    (ValueError, "2 rows and 3 columns", lambda: L.LinearOperatorZeros(2, 3)),
    (ValueError, "num_rows", lambda: L.LinearOperatorIdentity(-2)),
    (ValueError, "num_rows", lambda: L.LinearOperatorIdentity([2])),
    (
        ValueError,
        "do not broadcast",
        lambda: L.LinearOperatorLowRankUpdate(diag([[1.0]] * 2), tg.ones([3, 1, 1])),
    ),
    (ValueError, "not a permutation", lambda: L.LinearOperatorPermutation([0, 0])),
    (TypeError, "must be integers", lambda: L.LinearOperatorPermutation([0.0, 1.0])),
    (
        ValueError,
        "reflections are not",
        lambda: L.LinearOperatorHouseholder([1.0], is_positive_definite=True),
    ),
    (
        ValueError,
        "all operators are",
        lambda: L.LinearOperatorKronecker([L.LinearOperatorIdentity(1)], is_non_singular=False),
    ),
    (ValueError, "there are no operators", lambda: L.LinearOperatorBlockDiag([])),
    (
        ValueError,
        "followed by one",
        lambda: L.LinearOperatorComposition([diag([1.0]), diag([1.0, 2.0])]),
    ),
    (TypeError, "float64", lambda: L.LinearOperatorComposition([diag([1.0]), diag(np.ones(1))])),
    (
        ValueError,
        "row 0 has 2 blocks",
        lambda: L.LinearOperatorBlockLowerTriangular([[diag([1.0])] * 2]),
    ),
    (
        ValueError,
        "block 0 of row 1",
        lambda: L.LinearOperatorBlockLowerTriangular(
            [[diag([1.0])], [diag([1.0, 2.0]), diag([1.0])]]
        ),
    ),
    (
        ValueError,
        r"must end in \[2, 1\]",
        lambda: L.LinearOperatorLowRankUpdate(diag([1.0, 2.0]), [[1.0]]),
    ),
    (
        ValueError,
        "is singular",
        lambda: L.LinearOperatorBlockLowerTriangular(
            [[L.LinearOperatorZeros(1)]], is_non_singular=True
        ),
    ),
    (ValueError, "real spectrum", lambda: L.LinearOperatorCirculant([1.0], is_self_adjoint=False)),
    (ValueError, "as many numbers", lambda: L.LinearOperatorToeplitz([1.0], [1.0, 2.0])),
    (ValueError, "diagonals_format", lambda: L.LinearOperatorTridiag([[1.0]], "dense")),
    (
        ValueError,
        "only such an operator",
        lambda: L.LinearOperatorInversion(L.LinearOperatorZeros(1)),
    ),
    (
        ValueError,
        "that of the operator",
        lambda: L.LinearOperatorAdjoint(diag([1.0]), is_self_adjoint=False),
    ),
    (ValueError, "1 axis", lambda: full([1.0])),
    (ValueError, "0 axes", lambda: diag(1.0)),
    (ValueError, "3 rows, and needs 2", lambda: diag([1.0, 2.0]).matmul(tg.ones([3, 1]))),
    (ValueError, "not a matrix", lambda: diag([1.0, 2.0]).solve(tg.ones([2]))),
    (TypeError, "float32 is needed", lambda: diag([1.0, 2.0]).matmul(tg.ones([2, 1], tg.float64))),
    (ValueError, "not known to be self-adjoint", lambda: full([[1.0]]).cholesky()),
    (NotImplementedError, "not known to be self-adjoint", lambda: full([[1.0]]).eigvals()),
    (
        NotImplementedError,
        "known not to be non-singular",
        lambda: L.LinearOperatorZeros(1).solve([[1.0]]),
    ),
    (ValueError, "known not to be non-singular", lambda: L.LinearOperatorZeros(1).inverse()),
]


@pytest.mark.parametrize(("kind", "text", "ask"), REFUSED)
def test_what_does_not_fit_is_refused(kind, text, ask):
    with pytest.raises(kind, match=text) as refused:
        ask()
    assert "test_linear_operators.py" in str(refused.value) and "fix:" in str(refused.value)


# Properties.

SIZES = st.integers(1, 3)


@settings(max_examples=8, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES, seed=st.integers(0, 9))
def test_laws_of_products(m, n, k, seed):
    a, b, x = sample(seed, m, n), sample(seed + 1, n, k), sample(seed + 2, k, 2)
    left, right = full(a), full(b)
    kron = L.LinearOperatorKronecker([left, right])
    pairs = [
        ((left @ right).matmul(x), left.matmul(right.matmul(x))),
        ((left @ right).H.to_dense(), (right.H @ left.H).to_dense()),
        (kron.to_dense(), np.kron(a, b)),
        (kron.H.to_dense(), L.LinearOperatorKronecker([left.H, right.H]).to_dense()),
    ]
    for found, expected in pairs:
        close(found, expected)


def test_batches_broadcast():
    leads, others = [(), (1,), (2,), (2, 1)], [(), (2,), (3, 1, 1)]
    pairs = []
    for lead, other in itertools.product(leads, others):
        d, x = 2 + sample(61, *lead, 3) ** 2, sample(62, *other, 3, 2)
        expected = d[..., None] * x
        for operator in (diag(d), full(d[..., None] * np.eye(3))):
            pairs.append((operator.matmul(x), expected))
            pairs.append((operator.solve(expected), np.broadcast_to(x, expected.shape)))
    for found, expected in pairs:
        close(found, expected)


def test_the_square_of_a_self_adjoint_operator_is_positive_definite():
    promised = tg.linalg.LinearOperatorFullMatrix(
        [[1.0, 2.0], [2.0, 1.0]], is_self_adjoint=True, is_non_singular=True
    )
    square = promised.matmul(promised)
    assert square.is_self_adjoint is True and square.is_positive_definite is True
    open_ = tg.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [0.0, 1.0]])
    assert open_.matmul(open_).is_self_adjoint is None
