"""Decompositions of matrices, and the inverse that follows from one.

Matrices stand in the last two axes, and all axes before them are batch axes. Derivatives of
eigenvectors and singular vectors divide by differences of eigenvalues and of singular values: where
two are equal they are infinite or nan, while those of the values themselves hold.
"""

from __future__ import annotations

import numpy as np

from tracegraph.core.shapes import Size, element_count, minimum, same_size, static_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType, float64, int32
from tracegraph.errors import Mismatch
from tracegraph.ir.op import Batched, Dependence, Derivative, Op, rule
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum, batched_operands, full, full_like, zeros_of
from tracegraph.ops.constant import Iota
from tracegraph.ops.contract import MATMUL, adjoint, conjugate
from tracegraph.ops.elementwise import (
    ABS,
    COMPLEX,
    DIV,
    EQUAL,
    IMAG,
    REAL,
    SELECT,
    Cast,
    add_all,
    complex_of,
)
from tracegraph.ops.index import Gather
from tracegraph.ops.linalg import (
    Solve,
    TriangularSolve,
    check_matrix,
    check_square,
    in_triangle,
    on_diagonal,
)
from tracegraph.ops.reduce import ArgMax
from tracegraph.ops.sort import ArgSort


class Decomposition(Op, abstract=True):
    """What each matrix a[..., m, n] is made of; every part depends on every element of it"""

    takes_zero_cotangents = True

    @rule
    def batch(self, n: Size, batched: tuple[bool, ...], a: Tensor) -> Batched:
        parts: Tensor | tuple[Tensor, ...] = self(a)
        return parts, (True,) * len(parts) if isinstance(parts, tuple) else True

    @rule
    def depends(self, p: Pattern) -> Dependence:
        whole = p.any(axis=(-2, -1))
        types = self.infer(TensorType(float64, p.shape))
        if isinstance(types, TensorType):
            return _spread_over(whole, types)
        return tuple(_spread_over(whole, type) for type in types)

    @rule
    def flops(self, a: TensorType) -> Size:
        return 4 * element_count(a.shape) * minimum(a.shape[-2], a.shape[-1])


def _spread_over(whole: Pattern, type: TensorType) -> Pattern:
    """The pattern of each matrix for each element of what is made of it."""
    shape = static_shape(type.shape)
    found = whole.reshape(*whole.shape, *[1] * (len(shape) - whole.ndim)).broadcast_to(shape)
    return found if type.dtype.is_differentiable else found.emptied()


class Qr(Decomposition):
    """Unitary q and upper triangular r with a = q r: q[..., m, k] and r[..., k, n], where k is
    min(m, n), or m if `full_matrices`"""

    full_matrices: bool

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        m, n = check_matrix(self.name, a)
        k = m if self.full_matrices else minimum(m, n)
        return a.with_shape((*a.shape[:-1], k)), a.with_shape((*a.shape[:-2], k, n))

    def vjp(
        self, gq: Tensor | None, gr: Tensor | None, q: Tensor, r: Tensor, a: Tensor
    ) -> Derivative:
        rows, columns = r.type.shape[-2:]
        if same_size(rows, columns) is None:
            raise Mismatch(
                f"the derivative of {rows} columns of q by the {columns} of {a.type} is not "
                "determined",
                fix="use full_matrices=False",
            )
        products: list[Tensor] = []
        if gr is not None:
            upper = SELECT(in_triangle(gr, False), gr, zeros_of(gr))
            products.append(MATMUL(r, adjoint(upper)))
        if gq is not None:
            products.append(-MATMUL(adjoint(gq), q))
        product = add_all(products)
        assert product is not None
        moved = MATMUL(q, _mirrored(product))
        moved = moved if gq is None else gq + moved
        return (adjoint(TriangularSolve(False, False)(r, adjoint(moved))),)

    def numpy(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.linalg.qr(a, "complete" if self.full_matrices else "reduced"))


def _mirrored(a: Tensor) -> Tensor:
    """The Hermitian matrix whose lower triangle is that of a, with a real diagonal."""
    lower = SELECT(in_triangle(a, True), a, zeros_of(a))
    return SELECT(on_diagonal(a), (lower + adjoint(lower)) * 0.5, lower + adjoint(lower))


class Lu(Decomposition):
    """Triangles l below the diagonal and u above it, in one matrix, and int32 p with a[p] = l u;
    the diagonal of l is 1 and not stored"""

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        a = check_square(self.name, a)
        return a, TensorType(int32, a.shape[:-1])

    def vjp(self, g: Tensor | None, _: None, factors: Tensor, p: Tensor, a: Tensor) -> Derivative:
        if g is None:
            return (None,)
        is_upper, zero = in_triangle(g, False), zeros_of(g)
        lower, upper = triangles(factors)
        by_lower = MATMUL(adjoint(lower), SELECT(is_upper, zero, g))
        by_upper = MATMUL(SELECT(is_upper, g, zero), adjoint(upper))
        rows = TriangularSolve(True, True)(lower, SELECT(is_upper, by_upper, by_lower))
        rows = adjoint(TriangularSolve(False, False)(upper, adjoint(rows)))
        back = ArgSort(p.ndim - 1, False)(p)
        return (Gather(a.ndim - 2, a.ndim - 2)(rows, back),)

    def flops(self, a: TensorType) -> Size:
        return element_count(a.shape) * a.shape[-1]


def triangles(factors: Tensor) -> tuple[Tensor, Tensor]:
    """The triangles l, with its diagonal of ones, and u of what `lu` gives."""
    is_upper, zero = in_triangle(factors, False), zeros_of(factors)
    lower = SELECT(is_upper, SELECT(on_diagonal(factors), full_like(factors, 1), zero), factors)
    return lower, SELECT(is_upper, factors, zero)


def in_columns(values: Tensor, a: Tensor) -> Tensor:
    """values[..., j] for each element [..., i, j] of a, in its dtype."""
    axes = (*range(a.ndim - 2), a.ndim - 1)
    return Cast(a.dtype)(BroadcastTo(a.type.shape, axes)(values))


def in_rows(values: Tensor, a: Tensor) -> Tensor:
    """values[..., i] for each element [..., i, j] of a, in its dtype."""
    return Cast(a.dtype)(BroadcastTo(a.type.shape, tuple(range(a.ndim - 1)))(values))


def diagonal_matrix(values: Tensor, a: Tensor) -> Tensor:
    """The square matrices of the type of a with `values` on the diagonal."""
    return SELECT(on_diagonal(a), in_columns(values, a), zeros_of(a))


def _over_gaps(g: Tensor, values: Tensor) -> Tensor:
    """g[..., i, j] / (values[..., j] - values[..., i]), and 0 where i = j."""
    gaps = in_columns(values, g) - in_rows(values, g)
    is_same, zero = on_diagonal(g), zeros_of(g)
    return DIV(SELECT(is_same, zero, g), SELECT(is_same, full_like(g, 1), gaps))


class Svd(Decomposition):
    """Real s[..., k], descending, and u[..., m, k], v[..., n, k] with a = u diag(s) v^H, where k
    is min(m, n); u is m by m and v is n by n if `full_matrices`"""

    full_matrices: bool

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        m, n = check_matrix(self.name, a)
        k, lead = minimum(m, n), a.shape[:-2]
        rows, columns = (m, n) if self.full_matrices else (k, k)
        return (
            TensorType(a.dtype.real, (*lead, k)),
            a.with_shape((*lead, m, rows)),
            a.with_shape((*lead, n, columns)),
        )

    def vjp(
        self,
        gs: Tensor | None,
        gu: Tensor | None,
        gv: Tensor | None,
        s: Tensor,
        u: Tensor,
        v: Tensor,
        a: Tensor,
    ) -> Derivative:
        m, n = a.type.shape[-2:]
        if self.full_matrices and m != n:
            if gu is not None or gv is not None:
                raise Mismatch(
                    f"the derivative of all columns of u and v by {a.type} is not determined",
                    fix="use full_matrices=False",
                )
            return (None,) if gs is None else SINGULAR_VALUES.vjp(gs, s, a)
        inner = _inner_cotangent(gs, gu, gv, s, u, v)
        found = [] if inner is None else [MATMUL(MATMUL(u, inner), adjoint(v))]
        if gu is not None and not _is_at_most(m, n):
            found.append(MATMUL(_outside(gu, u, s), adjoint(v)))
        if gv is not None and not _is_at_most(n, m):
            found.append(MATMUL(u, adjoint(_outside(gv, v, s))))
        return (add_all(found),)

    def numpy(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        u, s, vh = np.linalg.svd(a, full_matrices=self.full_matrices)
        return s, u, np.conj(np.swapaxes(vh, -1, -2))


def _is_at_most(m: Size, n: Size) -> bool:
    """Whether m is known not to be above n."""
    return isinstance(m, int) and isinstance(n, int) and m <= n


def _outside(g: Tensor, u: Tensor, s: Tensor) -> Tensor:
    """What is left of g outside of the space of the columns of u, over the singular values."""
    rest = g - MATMUL(u, MATMUL(adjoint(u), g))
    return DIV(rest, in_columns(s, rest))


def _inner_cotangent(
    gs: Tensor | None, gu: Tensor | None, gv: Tensor | None, s: Tensor, u: Tensor, v: Tensor
) -> Tensor | None:
    """The cotangent of u^H a v, of which s is the diagonal."""
    found: list[Tensor] = []
    squares = s * s
    if gs is not None:
        shape = (*s.type.shape, s.type.shape[-1])
        found.append(diagonal_matrix(gs, full(0, u.type.with_shape(shape))))
    if gu is not None:
        inside = MATMUL(adjoint(u), gu)
        turned = _over_gaps(inside, squares)
        found.append((turned + adjoint(turned)) * in_columns(s, turned))
        if u.dtype.is_complex:  # u and v turn by one phase: u has all of it
            phase = COMPLEX(zeros_of(REAL(inside)), IMAG(inside))
            phase = SELECT(on_diagonal(inside), phase, zeros_of(phase))
            found.append(DIV(phase, in_columns(s, phase)))
    if gv is not None:
        turned = _over_gaps(MATMUL(adjoint(v), gv), squares)
        found.append((turned + adjoint(turned)) * in_rows(s, turned))
    return add_all(found)


class SingularValues(Decomposition):
    """The singular values of each matrix, real and descending"""

    def infer(self, a: TensorType) -> TensorType:
        m, n = check_matrix(self.name, a)
        return TensorType(a.dtype.real, (*a.shape[:-2], minimum(m, n)))

    def vjp(self, g: Tensor, s: Tensor, a: Tensor) -> Derivative:
        _, u, v = Svd(False)(a)
        return (MATMUL(u * in_columns(g, u), adjoint(v)),)

    def numpy(self, a: np.ndarray) -> np.ndarray:
        return np.linalg.svd(a, compute_uv=False)


SINGULAR_VALUES = SingularValues()


class Eigh(Decomposition):
    """Real w[..., n], ascending, and unitary v with (a + a^H) / 2 = v diag(w) v^H"""

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        a = check_square(self.name, a)
        return TensorType(a.dtype.real, a.shape[:-1]), a

    def vjp(
        self, gw: Tensor | None, gv: Tensor | None, w: Tensor, v: Tensor, a: Tensor
    ) -> Derivative:
        found: list[Tensor] = []
        if gw is not None:
            found.append(MATMUL(v * in_columns(gw, v), adjoint(v)))
        if gv is not None:
            inner = _over_gaps(MATMUL(adjoint(v), gv), w)
            found.append(MATMUL(MATMUL(v, inner), adjoint(v)))
        whole = add_all(found)
        return (None if whole is None else (whole + adjoint(whole)) * 0.5,)

    def numpy(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.linalg.eigh((a + np.conj(np.swapaxes(a, -1, -2))) / 2))


class Eigvalsh(Decomposition):
    """The real eigenvalues of (a + a^H) / 2, ascending"""

    def infer(self, a: TensorType) -> TensorType:
        a = check_square(self.name, a)
        return TensorType(a.dtype.real, a.shape[:-1])

    def vjp(self, g: Tensor, w: Tensor, a: Tensor) -> Derivative:
        _, v = Eigh()(a)
        return (MATMUL(v * in_columns(g, v), adjoint(v)),)

    def numpy(self, a: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh((a + np.conj(np.swapaxes(a, -1, -2))) / 2)


class Eig(Decomposition):
    """Complex w[..., n] and v with a v = v diag(w), in no particular order.

    The columns of v have the norm 1, and the largest element of each is real.
    """

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        a = check_square(self.name, a)
        dtype = a.dtype if a.dtype.is_complex else complex_of(a.dtype)
        return TensorType(dtype, a.shape[:-1]), TensorType(dtype, a.shape)

    def vjp(
        self, gw: Tensor | None, gv: Tensor | None, w: Tensor, v: Tensor, a: Tensor
    ) -> Derivative:
        found: list[Tensor] = []
        if gw is not None:
            found.append(diagonal_matrix(gw, v))
        if gv is not None:
            inner = MATMUL(adjoint(v), gv - _along_columns(gv, v))
            found.append(_over_gaps(inner, conjugate(w)))
        inner = add_all(found)
        if inner is None:
            return (None,)
        return (Cast(a.dtype)(Solve(True)(v, MATMUL(inner, adjoint(v)))),)

    def numpy(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.linalg.eig(a))


def _along_columns(g: Tensor, v: Tensor) -> Tensor:
    """What of g would stretch the columns of v, or turn their largest elements."""
    rows, lead = v.ndim - 2, tuple(range(v.ndim - 2))
    column = (*lead, v.ndim - 1)
    along = BroadcastTo(v.type.shape, column)(Sum((rows,))(conjugate(v) * g))
    largest = BroadcastTo(v.type.shape, column)(ArgMax(rows, int32)(ABS(v)))
    numbers = BroadcastTo(v.type.shape, (rows,))(Iota(v.type.shape[rows], int32)())
    stretch = v * Cast(v.dtype)(REAL(along))
    turn = DIV(COMPLEX(zeros_of(IMAG(along)), IMAG(along)), Cast(v.dtype)(REAL(v)))
    return stretch + SELECT(EQUAL(numbers, largest), turn, zeros_of(turn))


class Pinv(Decomposition):
    """The pseudo-inverse y[..., n, m] of each matrix, which takes singular values up to `cutoff`
    times the largest one for 0"""

    takes_zero_cotangents = False

    def infer(self, a: TensorType, cutoff: TensorType) -> TensorType:
        m, n = check_matrix(self.name, a)
        if cutoff.dtype is not a.dtype.real or len(cutoff.shape) != len(a.shape) - 2:
            raise Mismatch(
                f"the cutoff of {a} is {cutoff}",
                fix=f"give one number of {a.dtype.real.name} for each matrix",
            )
        return a.with_shape((*a.shape[:-2], n, m))

    def vjp(self, g: Tensor, y: Tensor, a: Tensor, cutoff: Tensor) -> Derivative:
        h, g_adjoint = adjoint(y), adjoint(g)
        left = MATMUL(g_adjoint, MATMUL(y, h))
        right = MATMUL(MATMUL(h, y), g_adjoint)
        outside = left - MATMUL(a, MATMUL(y, left)) + right - MATMUL(MATMUL(right, y), a)
        return outside - MATMUL(MATMUL(h, g), h), None

    def batch(self, n: Size, batched: tuple[bool, ...], a: Tensor, cutoff: Tensor) -> Batched:
        return self(*batched_operands(n, batched, (a, cutoff))), True

    def depends(self, p: Pattern, q: Pattern) -> Pattern:
        n, m = p.shape[-1], p.shape[-2]
        return p.any(axis=(-2, -1), keepdims=True).broadcast_to((*p.shape[:-2], n, m))

    def numpy(self, a: np.ndarray, cutoff: np.ndarray) -> np.ndarray:
        return np.linalg.pinv(a, rcond=cutoff)

    def flops(self, a: TensorType, cutoff: TensorType) -> Size:
        return super().flops(a)
