"""Ops that were broken on purpose: does the table notice?  Run with `python -m tests.mutants`.

A mutant is one edit of the source of one rule. The rows of its op are tried until one fails; if
none does, the mutant survives, and the table has a hole.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from lowering.rules import RULES
from tests.op_table import CASES, Case
from tests.ops import test_ops
from tracegraph.calls.custom_call import CustomCall
from tracegraph.calls.recompute import RecomputedCall
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.ir import op as ir_op
from tracegraph.ir.op import Op
from tracegraph.ops import (
    broadcast,
    contract,
    decomposition,
    elementwise,
    fourier,
    index,
    linalg,
    matrix_function,
    movement,
    random,
    reduce,
    shape,
    sort,
    special,
)
from tracegraph.ops.barrier import Barrier


@dataclass(frozen=True)
class Mutant:
    """In the rule `rule` of `op`, or its lowering, `old` becomes `new`.

    What ops share, as the class `Pattern`, may stand in place of `op`.
    """

    op: type
    rule: str
    old: str
    new: str
    #: The op whose rows are tried, where `op` serves many.
    tried: type[Op] | None = None

    def __str__(self) -> str:
        return f"{self.op.__name__}.{self.rule}: {self.old.strip()!r} -> {self.new.strip()!r}"


E = elementwise
D = decomposition
LOWERING = "lowering"

MUTANTS = [
    # Wrong factors, signs and operands.
    Mutant(E.Sub, "partials", "1, -1", "1, 1"),
    Mutant(E.Mul, "partials", "y, x", "x, y"),
    Mutant(E.Div, "vjp", "-z / y", "z / y"),
    Mutant(E.Div, "jvp", "-z / y", "-x / y"),
    Mutant(E.Pow, "partials", "y - 1", "y"),
    Mutant(E.Pow, "partials", "z * LOG", "y * LOG"),
    Mutant(E.Pow, "partials", "SELECT(both_zero, zero, y *", "SELECT(EQUAL(y, y), zero, y *"),
    Mutant(E.IntegerPow, "partials", "self.exponent - 1", "self.exponent"),
    Mutant(E.IntegerPow, "partials", "self.exponent == 0", "self.exponent == -99"),
    Mutant(E.FloorMod, "partials", "-FLOOR(x / y)", "FLOOR(x / y)"),
    Mutant(E.TruncateMod, "partials", "x - z", "x + z"),
    Mutant(E.Maximum, "partials", "GREATER_EQUAL", "GREATER"),
    Mutant(E.Minimum, "partials", "GREATER(x, y)", "LESS_EQUAL(x, y)"),
    Mutant(E.Atan2, "partials", "-SELECT(", "SELECT("),
    Mutant(E.Select, "vjp", "SELECT(condition, zero, g)", "g"),
    Mutant(E.Select, "jvp", "zero if ty is None else ty", "zero"),
    Mutant(E.Sign, "_turned", "t - y * along", "t"),
    Mutant(E.Abs, "vjp", "SIGN(x),", "CONJ(SIGN(x)),"),
    Mutant(E.Abs, "jvp", "CONJ(SIGN(x))", "SIGN(x)"),
    Mutant(E.Expm1, "partials", "EXP(x)", "y + 1"),
    Mutant(E.Log1p, "divisor", "1 + x", "x"),
    Mutant(E.Sqrt, "divisor", "2 * y", "y"),
    Mutant(E.SteepQuotient, "vjp", "conjugated(self.divisor(y, x))", "self.divisor(y, x)", E.Log),
    Mutant(E.Cos, "partials", "-SIN(x)", "SIN(x)"),
    Mutant(E.Tanh, "partials", "1 - y * y", "1 + y * y"),
    Mutant(E.Erf, "partials", "2 / math.sqrt", "1 / math.sqrt"),
    Mutant(E.Polygamma, "partials", "self.order + 1", "self.order"),
    Mutant(E.Sigmoid, "partials", "1 - y", "1 - x"),
    Mutant(E.Imag, "vjp", "COMPLEX(zeros_of(g), g)", "COMPLEX(g, zeros_of(g))"),
    Mutant(E.Conj, "vjp", "self(g)", "g"),
    Mutant(E.Complex, "vjp", "REAL(g), IMAG(g)", "REAL(g), REAL(g)"),
    Mutant(E.Cast, "vjp", "Cast(x.dtype)(g)", "g"),
    Mutant(E.Cast, "jvp", "return self(tangents[0])", "return tangents[0]"),
    # The base classes.
    Mutant(E.Elementwise, "vjp", "conjugated(factor)", "factor", E.Mul),
    Mutant(E.Elementwise, "jvp", "scale(t, f)", "scale(t, conjugated(f))", E.Mul),
    Mutant(
        broadcast.OverBatchAxes,
        "batch",
        "batched_operands(n, batched, operands)",
        "operands",
        E.Add,
    ),
    Mutant(E.Elementwise, "depends", "*patterns)", "patterns[0])", E.Add),
    Mutant(E.Elementwise, "infer", "check_kind(self.name, types[0], self.kinds)", "pass", E.Atan2),
    Mutant(E.Relation, "result_dtype", "bool_", "dtype", E.Less),
    # A missing reduction, a wrong axis.
    Mutant(broadcast.BroadcastTo, "vjp", "Sum(dropped)(g) if dropped else g", "g"),
    Mutant(broadcast.BroadcastTo, "batch", "axis + 1", "axis"),
    Mutant(broadcast.Sum, "batch", "shifted(self.axes, x)", "self.axes"),
    Mutant(
        broadcast.Sum,
        "depends",
        "p.any(axis=self.axes)",
        "p.any().broadcast_to(p.any(axis=self.axes).shape)",
    ),
    Mutant(shape.Reshape, "vjp", "x.type.shape", "x.type.shape[::-1]"),
    Mutant(shape.Transpose, "vjp", "inverse(self.perm)", "self.perm"),
    Mutant(shape.Transpose, "batch", "axis + 1", "len(self.perm) - axis"),
    Mutant(shape.Slice, "vjp", "step - 1", "step"),
    Mutant(shape.Slice, "vjp", "size - start - spread", "size - spread"),
    Mutant(shape.Slice, "batch", "(0, *self.start)", "(*self.start, 0)"),
    Mutant(shape.Pad, "vjp", "SUB(total(g), inside)", "total(g)"),
    Mutant(shape.Pad, "_cut", "if not any(self.interior):", "if True:"),
    Mutant(shape.Pad, "batch", "(0, *self.before)", "(1, *self.before)"),
    Mutant(shape.Pad, "batch", "SELECT(is_padding, values,", "SELECT(is_padding, values * 2,"),
    Mutant(shape.Concatenate, "vjp", "start = stop", "start = 0"),
    Mutant(shape.Concatenate, "batch", "self.axis + 1", "self.axis"),
    Mutant(shape.Reverse, "vjp", "self(g)", "g"),
    Mutant(movement.Movement, "depends", "self.numpy", "lambda *x: x[0]", shape.Reverse),
    # Reductions and scans.
    Mutant(reduce.Extreme, "factor", "DIV(is_extreme,", "MUL(is_extreme,", reduce.Max),
    Mutant(
        reduce.Reduction, "jvp", "Sum(self.axes)(product)", "Max(self.axes)(product)", reduce.Max
    ),
    Mutant(reduce.Reduction, "vjp", "conjugated(factor)", "factor", reduce.Prod),
    Mutant(reduce.Prod, "factor", "MUL(before, after)", "before"),
    Mutant(reduce.Prod, "factor", "inverse(order)", "order"),
    Mutant(reduce.Prod, "factor", "MUL(before, after)", "DIV(CumProd(last, False)(row), row)"),
    Mutant(reduce.ArgExtreme, "batch", "self.axis + 1", "self.axis", reduce.ArgMax),
    Mutant(reduce.CumSum, "vjp", "not self.reverse", "self.reverse"),
    Mutant(reduce.CumProd, "vjp", "shift(y, self.axis, self.reverse, 1)", "y"),
    Mutant(reduce.CumProd, "vjp", "not self.reverse, 0", "self.reverse, 0"),
    Mutant(reduce.CumProd, "jvp", "MUL(before, tangents[0])", "tangents[0]"),
    Mutant(reduce.CumLogsumexp, "_shares", "self.reverse, -np", "not self.reverse, -np"),
    Mutant(reduce.CumLogsumexp, "vjp", "MUL(share, total)", "MUL(ratio, total)"),
    Mutant(reduce.Recurrence, "vjp", "shift(y, self.axis, self.reverse, 0)", "y"),
    Mutant(reduce.Recurrence, "vjp", "conjugated(a)", "a"),
    Mutant(reduce.Cumulative, "depends", "self.reverse", "False", reduce.CumSum),
    Mutant(reduce.Max, LOWERING, "reduce_max", "reduce_min"),
    Mutant(reduce.CumSum, LOWERING, "reverse=op.reverse", "reverse=False"),
    # Contractions.
    Mutant(contract.Matmul, "vjp", "self(adjoint(x), g)", "self(swap_last(x), g)"),
    Mutant(contract.Matmul, "batch", "x.ndim - 3", "0"),
    Mutant(contract.Matmul, "depends", "p.any(axis=-1", "p.any(axis=-2"),
    Mutant(contract.Conv, "depends", "q.take(ys)", "q.take(xs)"),
    Mutant(contract.Bilinear, "jvp", "self(x, ty)", "self(x, y)", contract.Matmul),
    Mutant(contract.Conv, "transposed", "Reverse(tuple(range(rank)))(y)", "y"),
    Mutant(contract.Conv, "transposed", "width - self.padding[k][0] - 1", "self.padding[k][0]"),
    Mutant(contract.Conv, "_to_x", "conjugate(y)", "y"),
    Mutant(contract.Conv, "transposed", "rank + 2, rank + 1, rank", "rank + 1, rank + 2, rank"),
    Mutant(
        contract.Conv, "_to_y", "self.rhs_dilation, tuple(padding)", "self.strides, tuple(padding)"
    ),
    Mutant(contract.Conv, "_to_y", "width - low - 1", "width - low"),
    Mutant(contract.Conv, "batch", "n * self.groups", "self.groups * 1"),
    Mutant(
        contract.Conv,
        "batch",
        "move_axis(grouped, 0, grouped.ndim - 2)",
        "move_axis(grouped, 0, grouped.ndim - 1)",
    ),
    Mutant(contract.Conv, "taps", "self.padding[k][0]", "self.padding[k][1]"),
    Mutant(contract.Conv, LOWERING, "return by_xla(op, x, y)", "return by_xla(op, x, -y)"),
    Mutant(
        contract.Conv,
        LOWERING,
        "by_xla(op, x, y)",
        "by_xla(ops.Conv(op.strides, op.padding, op.rhs_dilation, *op.attributes[3:]), x, y)",
    ),
    # Linear algebra.
    Mutant(linalg.Solver, "vjp", "if self.adjoint", "if not self.adjoint", linalg.Solve),
    Mutant(linalg.Solver, "vjp", "adjoint(columns)", "adjoint(conjugated(columns))", linalg.Solve),
    Mutant(linalg.Solver, "vjp", "-self.part(", "-(", linalg.TriangularSolve),
    Mutant(linalg.Solver, "jvp", "self.part(ta)", "ta", linalg.TriangularSolve),
    Mutant(linalg.Solver, "jvp", "tb - product", "tb + product", linalg.Solve),
    Mutant(linalg.Solver, "batch", "b.ndim - 2", "0", linalg.Solve),
    Mutant(linalg.Solve, "depends", "(-2, -1)", "-1"),
    Mutant(linalg.TriangularSolve, "depends", "self.lower is self.adjoint", "self.adjoint"),
    Mutant(linalg.Det, "vjp", "conjugated(COFACTOR(a))", "COFACTOR(a)"),
    Mutant(linalg.CofactorAlong, "vjp", "e_trace * g_trace - ", "e_trace * g_trace + "),
    Mutant(linalg.CofactorAlong, LOWERING, "- pairs * turned", "+ pairs * turned"),
    Mutant(linalg.Slogdet, "vjp", "IMAG(g_sign * conjugated(sign))", "IMAG(g_sign * sign)"),
    Mutant(linalg.Cholesky, "vjp", "product * 0.5", "product"),
    Mutant(linalg.Cholesky, "vjp", "whole + adjoint(whole)", "whole + whole"),
    Mutant(linalg.Cholesky, "depends", "along | blocks", "along"),
    Mutant(linalg.Solve, LOWERING, "trans=2", "trans=1"),
    Mutant(linalg.TridiagonalSolve, "vjp", "(1, 0, -1)", "(-1, 0, 1)"),
    Mutant(
        linalg.TridiagonalSolve, "vjp", "conjugate(_moved(y, axis, step))", "_moved(y, axis, step)"
    ),
    Mutant(linalg.TridiagonalSolve, "vjp", "_moved(upper, axis, 1)", "upper"),
    Mutant(linalg.TridiagonalSolve, "batch", "b.ndim - 2", "0"),
    Mutant(linalg.TridiagonalSolve, "depends", "p | q | r", "p | q"),
    Mutant(linalg.TridiagonalSolve, LOWERING, "first[::-1]", "first"),
    # Decompositions and functions of matrices.
    Mutant(D.Qr, "vjp", "_mirrored(product)", "product"),
    Mutant(D.Qr, "vjp", "in_triangle(gr, False)", "in_triangle(gr, True)"),
    Mutant(D.Qr, "vjp", "-MATMUL(adjoint(gq), q)", "MATMUL(adjoint(gq), q)"),
    Mutant(D.Lu, "vjp", "by_upper, by_lower", "by_lower, by_upper"),
    Mutant(D.Lu, "vjp", "ArgSort(p.ndim - 1, False)(p)", "p"),
    Mutant(D.Svd, "vjp", "if gu is not None and not _is_at_most(m, n)", "if False"),
    Mutant(D.Svd, "vjp", "adjoint(_outside(gv, v, s))", "adjoint(_outside(gv, v, s)) * 2"),
    Mutant(D.Svd, "infer", "a.dtype.real", "a.dtype"),
    Mutant(D.SingularValues, "vjp", "in_columns(g, u)", "in_columns(s, u)"),
    Mutant(D.Eigh, "vjp", "whole + adjoint(whole)", "whole + whole"),
    Mutant(
        D.Eigh,
        "vjp",
        "_over_gaps(MATMUL(adjoint(v), gv), w)",
        "_over_gaps(MATMUL(adjoint(v), gv), -w)",
    ),
    Mutant(D.Eigvalsh, "vjp", "adjoint(v)", "v"),
    Mutant(D.Eig, "vjp", "gv - _along_columns(gv, v)", "gv"),
    Mutant(D.Eig, "vjp", "conjugate(w)", "w"),
    Mutant(D.Eig, "vjp", "Solve(True)", "Solve(False)"),
    Mutant(D.Pinv, "vjp", "+ right", "- right"),
    Mutant(D.Pinv, "vjp", "MATMUL(a, MATMUL(y, left))", "left"),
    Mutant(
        D.Decomposition,
        "depends",
        "_spread_over(whole, type)",
        "_spread_over(whole.emptied(), type)",
        D.Qr,
    ),
    Mutant(matrix_function.MatrixFunction, "vjp", "adjoint(a)", "a", matrix_function.Expm),
    Mutant(
        matrix_function.MatrixFunction,
        "along",
        "columns, n, n + n",
        "columns, 0, n",
        matrix_function.Sqrtm,
    ),
    Mutant(matrix_function.Logm, LOWERING, "_triangular_logarithm", "_triangular_root"),
    # Special functions.
    Mutant(special.Igamma, "partials", "self.order + 1", "self.order"),
    Mutant(special.Igammac, "partials", "-_gamma_density", "_gamma_density"),
    Mutant(special.Betainc, "partials", "self.by_b + 1", "self.by_b"),
    Mutant(special.Betainc, "partials", "self.by_a, self.by_b),", "0, self.by_b),"),
    Mutant(special.Zeta, "partials", "float(self.order)", "1.0 + float(self.order)"),
    Mutant(special.BesselI1, "partials", "_over_variable(y, x, 1)", "_over_variable(y, x, -1)"),
    Mutant(special.BesselI0e, "partials", "- SIGN(x) * y", "- y"),
    Mutant(special.BesselJ0, "partials", "-BesselJ1", "BesselJ1"),
    Mutant(special.BesselK1, "partials", "- y / x", "+ y / x"),
    Mutant(special.BesselK1e, "partials", "y - BesselK0e", "-y - BesselK0e"),
    Mutant(special.Dawsn, "partials", "2 * x * y", "x * y"),
    Mutant(special.FresnelSin, "partials", "SIN", "COS"),
    Mutant(special.Ndtri, "partials", "0.5 * y * y", "0.5 * x * x"),
    Mutant(special.Igamma, LOWERING, "op.order == 1", "op.order == 2"),
    Mutant(special.BesselJ1, "partials", "_over_variable(y, x, -1)", "_over_variable(y, x, 1)"),
    # Fourier transforms.
    Mutant(fourier.Fft, "vjp", "not self.inverse", "self.inverse"),
    Mutant(fourier.Fft, "batch", "axis + 1", "axis"),
    Mutant(fourier.Rfft, "vjp", "0.5", "1.0"),
    Mutant(fourier.Irfft, "vjp", "2.0", "1.0"),
    Mutant(fourier.Irfft, "depends", "p.any(axis=-1", "p.emptied().any(axis=-1"),
    # Indexing.
    Mutant(index.GatherNd, "vjp", "zeros_of(x)", "x"),
    Mutant(index.GatherNd, "batch", "self.axis + 1, 0", "self.axis, 0"),
    Mutant(index.GatherNd, "batch", "move_axis(y, self.axis, 0)", "y", index.Gather),
    Mutant(index.GatherNd, "depends_given", "numbers + 1, known", "numbers + 1, 0 * known"),
    Mutant(index.GatherNd, "depends_given", "x.any(axis=", "x.emptied().any(axis="),
    Mutant(index.GatherNd, LOWERING, 'mode="clip"', 'mode="fill"', index.Gather),
    Mutant(
        index.Scatter,
        "widened",
        "self.axis + 1, self.batch_dims + 1",
        "self.axis + 1, self.batch_dims",
        index.ScatterAdd,
    ),
    Mutant(index.Scatter, "depends_given", "x | insert_axes", "insert_axes", index.ScatterAdd),
    Mutant(index.ScatterAdd, "vjp", "self.read(g, indices)", "self.read(x, indices)"),
    Mutant(index.ScatterUpdate, "vjp", "self(g, indices, zeros_of(updates))", "g"),
    Mutant(
        index.ScatterUpdate,
        "vjp",
        "SELECT(self._stayed(x, indices, updates), read, zeros_of(read))",
        "read",
    ),
    Mutant(index.ScatterExtreme, "vjp", "MUL(g, by_x)", "g", index.ScatterMax),
    Mutant(index.ScatterAdd, LOWERING, '"clip" if op.clamps else "drop"', '"drop"'),
    Mutant(index.ScatterAdd, LOWERING, '"clip" if op.clamps else "drop"', '"clip"'),
    Mutant(index.GatherNd, "vjp", "self.batch_dims, self.clamps", "self.batch_dims", index.Gather),
    Mutant(index.DynamicSlice, "vjp", "*starts), *(", "*starts[::-1]), *("),
    Mutant(index.DynamicSlice, "batch", "(n, *self.sizes)", "(1, *self.sizes)"),
    Mutant(index.DynamicUpdateSlice, "vjp", "zeros_of(update)", "update"),
    Mutant(index.DynamicUpdateSlice, "depends_given", "x | written", "written"),
    Mutant(index.ScatterUpdate, "depends_given", "= -1", "= 0"),
    # Order.
    Mutant(sort.Sort, "_order", "self.descending", "not self.descending"),
    Mutant(sort.Sort, "batch", "self.axis + 1", "self.axis"),
    Mutant(sort.TopK, "vjp", "x.ndim - 1", "0"),
    Mutant(sort.ArgSort, LOWERING, "op.axis, op.descending)", "op.axis, False)"),
    Mutant(sort.Sort, LOWERING, "op.axis, op.descending)", "op.axis, False)"),
    # Patterns.
    Mutant(
        Pattern,
        "take",
        "np.append(np.diff(self.starts), 0)[flat]",
        "np.diff(self.starts)[flat]",
        reduce.CumSum,
    ),
    Mutant(Pattern, "put", "into * self.total", "into", broadcast.Sum),
    Mutant(Pattern, "accumulate", "step *= 2", "step *= 3", reduce.CumSum),
    Mutant(Pattern, "_shifted", "if reverse", "if not reverse", reduce.CumSum),
    # Calls with a backward of their own, and barriers.
    Mutant(CustomCall, "vjp", "at_places(self.sources,", "at_places(self.sources[::-1],"),
    Mutant(CustomCall, "vjp", "for i in self.targets]", "for i in self.targets[::-1]]"),
    Mutant(CustomCall, "jvp", "at_places(places,", "at_places(places[::-1],"),
    Mutant(CustomCall, "jvp", "in self.sources if", "in self.sources[:1] if"),
    Mutant(CustomCall, "batch", "(*xs)), flags", "(*xs)), flags[::-1]"),
    Mutant(CustomCall, "entered", "*(patterns[i] for", "*(patterns[i].emptied() for"),
    Mutant(CustomCall, "depends_given", "zip(places, propagate", "zip(places[::-1], propagate"),
    Mutant(RecomputedCall, "jvp", "Call.jvp(self, tangents", "Call.jvp(self, tangents[::-1]"),
    Mutant(
        RecomputedCall,
        "depends_given",
        "return Call.depends_given(self, values, *patterns",
        "return Call.depends_given(self, values, *patterns[::-1]",
    ),
    Mutant(Barrier, "vjp", "values[: len(values) // 3]", "values[: len(values) // 3][::-1]"),
    Mutant(Barrier, "jvp", "return tangents", "return tangents[::-1]"),
    Mutant(Barrier, "batch", "(self(*xs)), batched", "(self(*xs)), batched[::-1]"),
    Mutant(Barrier, "depends", "return patterns", "return patterns[::-1]"),
    Mutant(Barrier, LOWERING, "optimization_barrier(xs)", "optimization_barrier(xs[::-1])"),
    # Random numbers: the same for every key.
    Mutant(random.RandomUniform, LOWERING, "_wrap(k)", "_wrap(key.reshape(-1, 2)[0])"),
]


# Breaking and mending.


@contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """A context in which the rule is the mutant's."""
    if mutant.rule == LOWERING:
        table: Any = RULES
        keys = [op for op, rule in RULES.items() if rule is RULES[mutant.op]]
        new = edited(RULES[mutant.op], mutant, None)
        with _swapped(lambda: {k: table[k] for k in keys}, table.update, dict.fromkeys(keys, new)):
            yield
        return
    old = mutant.op.__dict__[mutant.rule]

    def store(values: dict[str, Any]) -> None:
        setattr(mutant.op, mutant.rule, values["rule"])

    with _swapped(lambda: {"rule": old}, store, {"rule": edited(old, mutant, mutant.op)}):
        yield


@contextmanager
def _swapped(read: Callable[[], Any], store: Callable[[Any], None], new: Any) -> Iterator[None]:
    old = read()
    store(new)
    _forget()
    try:
        yield
    finally:
        store(old)
        _forget()


def _forget() -> None:
    """Ops remember the types that they inferred."""
    for op in list(ir_op._interned.values()):
        op._inferred.clear()  # type: ignore[attr-defined]


def edited(rule: Any, mutant: Mutant, owner: type | None) -> Any:
    """The function with its source changed, compiled where it stood."""
    function = inspect.unwrap(rule)
    source = textwrap.dedent(inspect.getsource(function))
    if function.__name__ == "<lambda>":  # a row of a table
        name, source = "rule", f"rule = {source.partition(': ')[2].rstrip().rstrip(',')}"
    else:
        name, source = function.__name__, source[re.search("^def ", source, re.M).start() :]
    assert mutant.old in source, f"{mutant}: the source has changed:\n{source}"
    source = source.replace(mutant.old, mutant.new)
    # `super()` needs the class as a variable of an enclosing function.
    outer = "def make(__class__):\n" + textwrap.indent(source, "    ")
    outer += f"\n    return {name}\n"
    scope = dict(function.__globals__)
    exec(outer, scope)
    return scope["make"](owner)


# Looking for a row that notices.


def rows_of(mutant: Mutant) -> list[Case]:
    kind = mutant.tried or mutant.op
    rows = [case for case in CASES if isinstance(case.op, kind)]
    assert rows, f"{mutant} is tried on no row"
    return rows


def checks_for(mutant: Mutant) -> list[str]:
    """The names of the checks, those first that look at the rule."""
    order = ["first", "kinks", "batch", "pattern", "types", "values", "known", "second", "third"]
    first = {"batch": "batch", "infer": "types", "numpy": "values", LOWERING: "values"}
    rules_of_patterns = ("depends", "depends_given", "entered", "taps")
    first |= dict.fromkeys(rules_of_patterns, "pattern")
    name = "pattern" if mutant.op is Pattern else first.get(mutant.rule, "first")
    return [name, *(other for other in order if other != name)]


def problems(check: str, rows: list[Case], kind: type[Op]) -> Iterator[str]:
    """What one check finds wrong, row by row."""
    if check == "kinks":
        for kink in test_ops.KINKS:
            if isinstance(kink.op, kind):
                yield from test_ops.wrong_kink(kink)
    elif check == "known":
        for known in test_ops.KNOWN:
            if isinstance(known.op, kind):
                yield from test_ops.wrong_known(known)
    else:
        for case in rows:
            yield from problems_of_row(check, case)


def problems_of_row(check: str, case: Case) -> Iterator[str]:
    if check == "types":
        yield from test_ops.wrong_types(case)
    elif check == "pattern":
        with jax.enable_x64(True):
            yield from test_ops.wrong_pattern(case)
    else:
        yield from test_ops.failures(test_ops.CHECKS[check], [case])


def caught_by(mutant: Mutant) -> str | None:
    """The check that notices the mutant, and what it says; None if none does."""
    rows = rows_of(mutant)
    with broken(mutant):
        for check in checks_for(mutant):
            try:
                found = next(problems(check, rows, mutant.tried or mutant.op), None)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found is not None:
                return f"{check}: {found.splitlines()[0][:100]}"
    return None


def main() -> int:
    start, survivors = time.monotonic(), []
    for mutant in MUTANTS:
        caught = caught_by(mutant)
        print(f"{'caught  ' if caught else 'SURVIVED'} {mutant}", flush=True)
        if caught:
            print(f"           {caught}")
        else:
            survivors.append(mutant)
    count = len(MUTANTS) - len(survivors)
    print(f"\n{count} of {len(MUTANTS)} mutants caught in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
