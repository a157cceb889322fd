"""Calls that are right: matrices."""

import tracegraph as tg
from tests.bad_calls.calls_math import V, X
from tests.bad_calls.harness import call

M = tg.constant([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])
R = tg.ones([3, 2])
P = tg.constant([0, 1, 2])
SQUARE = "adjoint cholesky det eig eigh eigvals eigvalsh expm inv logdet lu slogdet sqrtm svd"

CALLS = {
    **{f"linalg.{name}": call(M) for name in SQUARE.split()},
    **{f"linalg.{name}": call(M) for name in ("matrix_rank", "matrix_transpose", "pinv", "qr")},
    **{f"linalg.{name}": call(M) for name in ("tensor_diag_part", "trace")},
    "linalg.logm": call(tg.cast(M, tg.complex64)),
    "linalg.band_part": call(M, 1, 1),
    "linalg.banded_triangular_solve": call(tg.ones([2, 3]), R),
    "linalg.cholesky_solve": call(M, R),
    "linalg.cross": call(V, V),
    "linalg.diag": call(V, k=0, padding_value=0.0),
    "linalg.diag_part": call(M, k=0, padding_value=0.0),
    "linalg.set_diag": call(M, V, k=0),
    "linalg.eigh_tridiagonal": call(V, V[:2]),
    "linalg.lstsq": call(M, R),
    "linalg.lu_matrix_inverse": call(M, P),
    "linalg.lu_reconstruct": call(M, P),
    "linalg.lu_solve": call(M, P, R),
    "linalg.matvec": call(M, V),
    "linalg.normalize": call(X, axis=[1]),
    "linalg.solve": call(M, R),
    "linalg.triangular_solve": call(M, R),
    "linalg.tensor_diag": call(V),
    "linalg.tridiagonal_matmul": call(tg.ones([3, 3]), R),
    "linalg.tridiagonal_solve": call(tg.ones([3, 3]), R),
}
