"""The contract of an op, tried on every row of the table.

A check turns one row into a function of arrays that returns pairs, what was found and what was
expected. The functions of many rows are compiled together, since compiling is what takes time.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lowering
import tracegraph as tg
from lowering.program import graph_function
from lowering.rules import RULES
from tests.compiling import OPTIMISED, QUICK
from tests.derived_graphs import jvp_graph, vjp_graph
from tests.op_table import CASES, ELSEWHERE, WITHOUT, Case, Operand, at, draw
from tracegraph.core.shapes import Dim, ShapeVariable, substitute_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    type_of_array,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tracegraph.errors import GradientError
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import OPS, Op
from tracegraph.ir.tensor import Graph
from tracegraph.ops import (
    barrier,
    broadcast,
    contract,
    decomposition,
    elementwise,
    fourier,
    index,
    linalg,
    matrix_function,
    reduce,
    shape,
    sort,
)
from tracegraph.ops.random import RandomNormal, RandomUniform
from tracegraph.passes.sparsity import pattern
from tracegraph.passes.specialise import specialise
from tracegraph.passes.vectorise import vectorise

assert lowering

Pair = tuple[str, Any, Any]
#: How many rows are compiled together: enough to share what each program costs, and few enough
#: that the passes of XLA that grow faster than a program stay cheap.
CHUNK = 4
#: The step of differences, and how near they come.
STEP, NEAR = 1e-5, 1e-6
SWEEP = (
    *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(bfloat16, float16, float32, float64, complex64, complex128),
)
#: A type of each kind, the narrow floats among them: they are computed in a wider one.
ONE_OF_A_KIND = (bool_, int32, uint8, bfloat16, float64, complex64)
#: The distance of 1 and the next number.
PRECISION = {
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
}


@dataclass(frozen=True)
class Trial:
    """What a check does with one row: `compare(*arrays)` gives pairs that must be near."""

    name: str
    compare: Callable[..., list[Pair]]
    arrays: Sequence[np.ndarray]
    tolerance: float = 0.0


Check = Callable[[Case], Iterator[Trial]]
Options = Mapping[str, Any]


def traced(case: Case, dtype: DType | None = None) -> Graph:
    """The graph of the op alone."""
    with Builder("f") as builder:
        types = case.types(dtype or case.own_dtype)
        inputs = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
        outputs = case.op(*inputs)
        return builder.finish(outputs if isinstance(outputs, tuple) else (outputs,))


def higher(graph: Graph, order: int) -> Graph:
    for _ in range(order):
        graph = vjp_graph(graph)
    return graph


def arguments(graph: Graph, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """`values`, and normal numbers for the inputs that a pass has added to the graph."""
    rng = np.random.default_rng(len(graph.nodes) + len(graph.inputs))
    added = graph.inputs[len(values) :]
    return [*values, *(draw(rng, Operand(x.type.shape), x.type.dtype) for x in added)]


def is_inexact(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def inexact(arrays: Sequence[Any]) -> list[Any]:
    return [a for a in arrays if is_inexact(a)]


def replaced(arrays: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """`arrays` with those that have a derivative replaced by `new`."""
    values = iter(new)
    return [next(values) if is_inexact(a) else a for a in arrays]


def conjugates(arrays: Sequence[Any]) -> list[Any]:
    return [jnp.conj(a) for a in arrays]


def inner(xs: Sequence[Any], ys: Sequence[Any]) -> Any:
    """The real inner product, in which a vjp is the adjoint of its jvp."""
    return sum(jnp.sum(jnp.real(jnp.conj(a) * b)) for a, b in zip(xs, ys, strict=True))


# Derivatives.


def jax_vjp(run: Callable[..., Any], xs: Sequence[Any], gs: Sequence[Any]) -> list[Any]:
    """JAX's cotangents in TensorFlow's convention: conjugate before and after."""

    def differentiable(*values: Any) -> Any:
        return inexact(run(*replaced(xs, values)))

    _, pull = jax.vjp(differentiable, *inexact(xs))
    return conjugates(pull(conjugates(gs)))


def jax_jvp(run: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> list[Any]:
    def differentiable(*values: Any) -> Any:
        return inexact(run(*replaced(xs, values)))

    return jax.jvp(differentiable, inexact(xs), list(ts))[1]


def difference(run: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> list[Any]:
    """The derivative along `ts` by central differences."""

    def moved(step: float) -> list[Any]:
        values = [x + step * t for x, t in zip(inexact(xs), ts, strict=True)]
        return inexact(run(*replaced(xs, values)))

    return [(a - b) / (2 * STEP) for a, b in zip(moved(STEP), moved(-STEP), strict=True)]


def derivatives(case: Case, order: int, dtype: DType, against: Sequence[str]) -> Trial:
    """The derivative of order `order`, in both modes, as the derivative of the graph before."""
    graph = higher(traced(case, dtype), order - 1)
    reverse, forward = vjp_graph(graph), jvp_graph(graph)
    count = len(graph.inputs)
    run, pull, push = (graph_function(g) for g in (graph, reverse, forward))
    gs = [y.type for y in graph.outputs if y.type.dtype.is_differentiable]
    tangents = [x.type for x in graph.inputs if x.type.dtype.is_differentiable]
    arrays = arguments(reverse, arguments(graph, case.values(dtype)))
    rng = np.random.default_rng(order)
    arrays += [draw(rng, Operand(type.shape), type.dtype) for type in tangents]

    def compare(*values: Any) -> list[Pair]:
        xs, seeds = values[:count], values[count : count + len(gs)]
        ts = values[count + len(gs) :]
        found = list(pull(*xs, *seeds))
        pushed = list(push(*xs, *ts))[len(graph.outputs) :]
        pairs: list[Pair] = [("<Jv, w> = <v, J'w>", inner(pushed, seeds), inner(ts, found))]
        if "jax" in against:
            expected = jax_vjp(case.by_jax or run, xs, seeds)
            pairs += [("vjp", *pair) for pair in zip(found, expected, strict=True)]
            expected = jax_jvp(case.by_jax or run, xs, ts)
            pairs += [("jvp", *pair) for pair in zip(pushed, expected, strict=True)]
        if "differences" in against:
            slopes = difference(run, xs, ts)
            pairs += [("difference", *pair) for pair in zip(pushed, slopes, strict=True)]
        if not against:
            pairs += [("zero", v, jnp.zeros_like(v)) for v in found]
        return pairs

    return Trial(f"order {order} of {case} in {dtype.name}", compare, arrays, case.tolerance)


def has_derivative(case: Case, dtype: DType) -> bool:
    graph = traced(case, dtype)
    sides = (graph.inputs, graph.outputs)
    return all(any(x.type.dtype.is_differentiable for x in side) for side in sides)


def check_derivatives(case: Case, orders: Sequence[int]) -> Iterator[Trial]:
    for order in orders:
        if order > case.order:
            continue
        if case.own_dtype.is_differentiable and has_derivative(case, case.own_dtype):
            against = case.against if case.own_dtype.is_floating else case.against_complex
            yield derivatives(case, order, case.own_dtype, against)
        if {"f", "c"} <= set(case.kinds) and order < 3 and has_derivative(case, complex128):
            yield derivatives(case, order, complex128, case.against_complex)


def check_first(case: Case) -> Iterator[Trial]:
    return check_derivatives(case, (1,))


def check_second(case: Case) -> Iterator[Trial]:
    return check_derivatives(case, (2,))


def check_third(case: Case) -> Iterator[Trial]:
    return check_derivatives(case, (3,))


# Batching.


def check_batch(case: Case) -> Iterator[Trial]:
    """Every choice of stacked operands against a Python loop."""
    if not case.operands:
        return
    graph = traced(case)
    n = 2
    choices = [c for c in itertools.product((False, True), repeat=len(case.operands)) if any(c)]
    if len(choices) > 7:  # of the many scalars of a slice, the first and the last
        choices = [c for c in choices if c[2:-1] in (c[2:3] * (len(c) - 3),)]
    for batched in choices:
        yield batching(case, graph, batched, n)
    if case.order >= 1 and has_derivative(case, case.own_dtype):
        derivative = vjp_graph(graph)
        rest = len(derivative.inputs) - len(case.operands)
        yield batching(case, derivative, (False,) * len(case.operands) + (True,) * rest, n)
        yield batching(case, derivative, (True,) * len(derivative.inputs), n)


def batching(case: Case, graph: Graph, batched: tuple[bool, ...], n: int) -> Trial:
    wide, is_batched = vectorise(graph, batched, n)
    run, run_wide = graph_function(graph), graph_function(wide)
    lanes = lanes_of(case, graph, n)
    arrays = [x if flag else x[0] for x, flag in zip(lanes, batched, strict=True)]

    def compare(*values: Any) -> list[Pair]:
        found = run_wide(*values)
        runs = [run(*(v[k] if b else v for v, b in zip(values, batched))) for k in range(n)]
        pairs = []
        for i, flag in enumerate(is_batched):
            one = found[i] if flag else jnp.stack([found[i]] * n)
            pairs.append((f"output {i}", one, jnp.stack([run[i] for run in runs])))
        return pairs

    which = "".join("nb"[flag] for flag in batched)
    return Trial(f"batch {which} of {case} ({graph.name})", compare, arrays, case.tolerance)


def lanes_of(case: Case, graph: Graph, n: int) -> list[np.ndarray]:
    """Arguments for n instances of a graph, each with values of its own."""
    rows = [arguments(graph, case.values(case.own_dtype)) for _ in range(n)]
    for k, row in enumerate(rows[1:], 1):
        for i, array in enumerate(row):
            row[i] = np.roll(array, k) if array.dtype.kind in "iub" else array * (1 - 0.1 * k)
            if array.ndim == 0 and array.dtype.kind in "iu":
                row[i] = np.asarray(array + k, array.dtype)
            if array.ndim == 0 and array.dtype.kind == "b":
                row[i] = np.asarray(array ^ bool(k % 2))
    return [np.stack(column) for column in zip(*rows, strict=True)]


# Values.


def check_values(case: Case) -> Iterator[Trial]:
    """Every allowed data type against NumPy in double precision."""
    for dtype in dtypes_of(case):
        yield from values_in(case, dtype)


def check_narrow_values(case: Case) -> Iterator[Trial]:
    """As programs without 64 bits are compiled."""
    graph = traced(case, float32) if "f" in case.kinds or not case.kinds else None
    if graph is None or any(has_64_bits(x.type.dtype) for x in (*graph.inputs, *graph.outputs)):
        return
    yield from values_in(case, float32)


def has_64_bits(dtype: DType) -> bool:
    return dtype.name in ("int64", "uint64", "float64", "complex128")


def dtypes_of(case: Case) -> list[DType]:
    if not any(x.dtype is None for x in case.operands):
        return [case.own_dtype]
    return [dtype for dtype in SWEEP if is_allowed(case, dtype)]


def is_allowed(case: Case, dtype: DType) -> bool:
    return dtype.kind[0] in case.kinds and dtype not in case.refuses


def values_in(case: Case, dtype: DType) -> Iterator[Trial]:
    arrays = case.values(dtype)
    expected = reference(case, arrays)
    if expected is NotImplemented:
        return
    run = graph_function(traced(case, dtype))

    def compare(*values: Any) -> list[Pair]:
        return [("value", y, e) for y, e in zip(run(*values), expected, strict=True)]

    tolerance = max(case.tolerance * 1e-3, case.slack * PRECISION.get(dtype.name, 0))
    yield Trial(f"value of {case} in {dtype.name}", compare, arrays, tolerance)


def reference(case: Case, arrays: Sequence[np.ndarray]) -> Any:
    wide = [widened(a) if case.operands[i].dtype is None else a for i, a in enumerate(arrays)]
    with np.errstate(all="ignore"):
        found = (case.reference or case.op.numpy)(*wide)
    if found is NotImplemented:
        return found
    return found if isinstance(found, tuple) else (found,)


def widened(array: np.ndarray) -> np.ndarray:
    kind = "f" if array.dtype.name == "bfloat16" else array.dtype.kind
    return array.astype({"f": np.float64, "c": np.complex128}.get(kind, array.dtype))


def check_narrow_derivatives(case: Case) -> Iterator[Trial]:
    """The first derivative in every floating type against the one in double precision."""
    if case.order == 0 or "f" not in case.kinds or not has_derivative(case, float64):
        return
    wide_graph = vjp_graph(traced(case, float64))
    wide, inputs = graph_function(wide_graph), wide_graph.inputs
    for dtype in (bfloat16, float16, float32):
        if not is_allowed(case, dtype):
            continue
        graph = vjp_graph(traced(case, dtype))
        arrays = arguments(graph, case.values(dtype))
        run = graph_function(graph)

        def compare(*values: Any, run: Any = run) -> list[Pair]:
            upcast = [jnp.asarray(v, x.type.dtype.numpy_dtype) for v, x in zip(values, inputs)]
            return [("vjp", y, e) for y, e in zip(run(*values), wide(*upcast), strict=True)]

        tolerance = 8 * case.slack * PRECISION[dtype.name]
        yield Trial(f"vjp of {case} in {dtype.name}", compare, arrays, tolerance)


# Running many trials in one program.


def failures(
    check: Check, cases: Sequence[Case], x64: bool = True, options: Options = QUICK
) -> list[str]:
    """What `check` finds wrong in `cases`."""
    found: list[str] = []
    trials: list[Trial] = []
    for case in cases:
        try:
            trials += check(case)
        except Exception as error:
            found.append(f"{case}: {type(error).__name__}: {error}")
    with jax.enable_x64(x64):
        return found + _failures_of(trials, options)


def _failures_of(trials: list[Trial], options: Options) -> list[str]:
    labels: dict[str, list[str]] = {}
    broken: dict[str, str] = {}

    def run_all(arrays: list[Any]) -> Any:
        results = {}
        for trial, values in zip(trials, arrays, strict=True):
            try:
                pairs = trial.compare(*values)
            except Exception as error:
                broken[trial.name] = f"{trial.name}: {type(error).__name__}: {error}"
                continue
            labels[trial.name] = [label for label, _, _ in pairs]
            results[trial.name] = [(a, b) for _, a, b in pairs]
        return results

    results = jax.jit(run_all, compiler_options={**options})([trial.arrays for trial in trials])
    results = jax.tree.map(np.asarray, results)
    found = list(broken.values())
    for trial in trials:
        for label, (a, b) in zip(
            labels.get(trial.name, ()), results.get(trial.name, ()), strict=True
        ):
            problem = difference_of(a, b, trial.tolerance, label)
            if problem:
                found.append(f"{trial.name}: {label}: {problem}")
    return found


def difference_of(found: np.ndarray, expected: np.ndarray, tolerance: float, label: str) -> str:
    if found.shape != expected.shape:
        return f"the shape is {found.shape}, not {expected.shape}"
    if label == "difference":
        tolerance = max(tolerance, NEAR)
    if found.dtype.kind in "iub":
        return "" if (found == expected).all() else f"{found} is not {expected}"
    found, expected = widened(found), widened(expected)
    if not (np.isfinite(found) == np.isfinite(expected)).all():
        return f"{found} is not {expected}"
    scale = max(1.0, float(np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)))
    error = float(np.max(np.abs(np.where(np.isfinite(found), found - expected, 0)), initial=0.0))
    return "" if error <= tolerance * scale else f"off by {error:.3g}: {found} is not {expected}"


def chunks() -> list[Any]:
    """The rows by family, not too many at once."""
    result = []
    for family, rows in itertools.groupby(CASES, lambda case: case.family):
        cases = list(rows)
        for k in range(0, len(cases), CHUNK):
            result.append(pytest.param(cases[k : k + CHUNK], id=f"{family}-{len(result)}"))
    return result


CHUNKS = chunks()
CHECKS: dict[str, Check] = {
    "values": check_values,
    "first": check_first,
    "second": check_second,
    "third": check_third,
    "batch": check_batch,
    "narrow": check_narrow_derivatives,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
@pytest.mark.parametrize("cases", CHUNKS)
def test_contract(cases: list[Case], check: Check):
    found = failures(check, cases)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cases", CHUNKS)
def test_values_without_64_bits(cases: list[Case]):
    """As users compile them: LLVM may round in another way when it optimises."""
    found = failures(check_narrow_values, cases, x64=False, options=OPTIMISED)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("cases", CHUNKS)
def test_values_of_every_type_when_llvm_optimises(cases: list[Case]):
    found = failures(check_values, cases, options=OPTIMISED)
    assert not found, "\n" + "\n".join(found)


# Types, text, patterns.


@pytest.mark.parametrize("cases", CHUNKS)
def test_the_lowering_has_the_inferred_types(cases: list[Case]):
    found = [problem for case in cases for problem in wrong_types(case, ONE_OF_A_KIND)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.sweep
@pytest.mark.parametrize("cases", CHUNKS)
def test_the_lowering_has_the_inferred_types_in_every_type(cases: list[Case]):
    found = [problem for case in cases for problem in wrong_types(case)]
    assert not found, "\n" + "\n".join(found)


def wrong_types(case: Case, lowered_in: Sequence[DType] = SWEEP) -> Iterator[str]:
    """Types that are refused or accepted unlike the table says, and inferred unlike XLA's."""
    takes_any = any(x.dtype is None for x in case.operands)
    for dtype in SWEEP if takes_any else (case.own_dtype,):
        is_right = not takes_any or is_allowed(case, dtype)
        if case.is_extra and not is_right:
            continue
        try:
            graph = traced(case, dtype)
        except TypeError as error:
            if is_right:
                yield f"{case} refuses {dtype.name}: {error}"
            continue
        if not is_right:
            yield f"{case} accepts {dtype.name}"
            continue
        if takes_any and dtype not in lowered_in:
            continue
        with jax.enable_x64(True):
            arrays = [
                jax.ShapeDtypeStruct(x.type.shape, x.type.dtype.numpy_dtype) for x in graph.inputs
            ]
            lowered = jax.eval_shape(graph_function(graph), *arrays)
        for y, made in zip(graph.outputs, lowered, strict=True):
            if y.type.shape != made.shape or y.type.dtype.numpy_dtype != made.dtype:
                yield f"{case} in {dtype.name}: inferred {y.type}, lowered {made}"


@pytest.mark.parametrize("cases", CHUNKS)
def test_text_round_trip(cases: list[Case]):
    for case in cases:
        for graph in derived_graphs(case):
            text = graph.as_text()
            parsed = tg.Graph.from_text(text)
            assert parsed.as_text() == text
            parsed.verify()


def derived_graphs(case: Case) -> Iterator[Graph]:
    graph = traced(case)
    yield graph
    if case.order >= 1:
        yield vjp_graph(graph)
        yield jvp_graph(graph)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cases", CHUNKS)
def test_pattern(cases: list[Case]):
    with jax.enable_x64(True):
        found = [problem for case in cases for problem in wrong_pattern(case)]
    assert not found, "\n" + "\n".join(found)


def wrong_pattern(case: Case) -> Iterator[str]:
    xs = case.values(case.own_dtype)
    if not inexact(xs) or not case.against:
        return
    graph = traced(case)
    run = graph_function(graph)
    flat = np.concatenate([a.reshape(-1) for a in xs if is_inexact(a)] or [np.zeros(0)])
    cuts = np.cumsum([a.size for a in xs if is_inexact(a)])[:-1]

    def moved(v: Any) -> Any:
        parts = [jnp.reshape(p, a.shape) for p, a in zip(jnp.split(v, cuts), inexact(xs))]
        ys = [jnp.reshape(y, -1) for y in run(*replaced(xs, parts))]
        return [y if is_inexact(y) else jnp.zeros(y.shape) for y in ys]

    # The first row moves nothing, so that all are computed in the same way.
    steps = np.concatenate([np.zeros((1, flat.size)), 1e-3 * np.eye(flat.size)])
    runs = jax.jit(jax.vmap(moved), compiler_options=QUICK)(flat + steps)
    for y, sparse, rows in zip(graph.outputs, pattern(graph), map(np.asarray, runs), strict=True):
        found = sparse.to_dense()
        numeric = (abs(rows[1:] - rows[:1]) > 1e-9).T.reshape(*y.type.shape, flat.size)
        if found.shape != numeric.shape:
            yield f"{case}: the pattern has the shape {found.shape}, not {numeric.shape}"
        elif (numeric & ~found).any():
            yield f"{case}: the pattern misses {np.argwhere(numeric & ~found).tolist()}"
        elif case.is_exact and (found & ~numeric).any():
            yield f"{case}: the pattern has {np.argwhere(found & ~numeric).tolist()} too many"


@dataclass(frozen=True)
class Known:
    """An op with operands that are known, and the pattern in the first one that follows."""

    op: Op
    shape: tuple[int, ...]
    indices: tuple[Any, ...]
    rest: tuple[tuple[int, ...], ...] = ()


KNOWN = [
    Known(index.Gather(0, 0), (5, 2), ([3, 0, 3],)),
    Known(index.Gather(1, 1), (2, 4), ([[1, 3], [0, 9]],)),
    Known(index.GatherNd(0, 0), (3, 4), ([[0, 1], [2, 3]],)),
    Known(index.GatherNd(1, 0), (2, 3, 2), ([[1], [1]],)),
    Known(index.ScatterAdd(0, 0), (5, 2), ([[3], [0], [3]],), ((3, 2),)),
    Known(index.ScatterUpdate(1, 1), (2, 4), ([[[1]], [[2]]],), ((2, 1),)),
    Known(index.Gather(1, 1, False), (2, 4), ([[1, -1], [0, 9]],)),
    Known(index.ScatterAdd(0, 0), (4, 2), ([[3], [-1], [4]],), ((3, 2),)),
    Known(index.ScatterUpdate(0, 0), (4, 2), ([[3], [-1], [4]],), ((3, 2),)),
    Known(index.ScatterUpdate(0, 0, True), (4, 2), ([[3], [-1]],), ((2, 2),)),
    Known(index.DynamicSlice((2, 3)), (4, 3), (1, 0)),
    Known(index.DynamicUpdateSlice(), (4, 3), (1, 1), ((2, 2),)),
]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: repr(known.op))
def test_known_indices_give_the_exact_pattern(known: Known):
    assert not list(wrong_known(known))


def wrong_known(known: Known) -> Iterator[str]:
    """All these ops are linear, so the value by NumPy of each unit vector is a column."""
    indices = [np.asarray(v, np.int32) for v in known.indices]
    shapes = [known.shape, *known.rest]
    total = sum(math.prod(sizes) for sizes in shapes)
    cuts = np.cumsum([math.prod(sizes) for sizes in shapes])[:-1]

    def operands(units: np.ndarray) -> list[np.ndarray]:
        parts = zip(np.split(units, cuts), shapes, strict=True)
        return [part.reshape(*sizes, *units.shape[1:]) for part, sizes in parts]

    def in_order(floats: list[Any], ints: list[Any]) -> list[Any]:
        if known.op.name == "dynamic_update_slice":
            return [*floats, *ints]
        return [floats[0], *ints, *floats[1:]]

    numbers = [Pattern.numbered(v, total) for v in operands(np.arange(total))]
    nothing = [Pattern.nothing(v.shape, total) for v in indices]
    found = known.op.depends_given(
        in_order([None] * len(shapes), indices), *in_order(numbers, nothing)
    ).to_dense()
    columns = [known.op.numpy(*in_order(operands(unit), indices)) for unit in np.eye(total)]
    if not (found == (np.stack(columns, -1) != 0)).all():
        yield f"{known}: the pattern is {found.astype(int)}"


def test_known_slices_beyond_the_end_are_moved_as_xla_moves_them():
    x, update = np.arange(4.0), np.array([8.0, 9.0])
    for start in (1, 3):
        found = index.DynamicSlice((2,)).numpy(x, np.int32(start))
        np.testing.assert_array_equal(found, jax.lax.dynamic_slice(x, (start,), (2,)))
        found = index.DynamicUpdateSlice().numpy(x, update, np.int32(start))
        np.testing.assert_array_equal(found, jax.lax.dynamic_update_slice(x, update, (start,)))


#: Elementwise ops of which one operand is known, and its elements that hide those of another.
HIDING = [
    (elementwise.SELECT, (np.array([True, False]), None, None), (None, [0, 1], [1, 0])),
    (elementwise.MUL, (np.array([0.0, 2.0]), None), (None, [1, 0])),
    (elementwise.MUL, (None, np.array([0.0, 2.0])), ([1, 0], None)),
    (elementwise.MUL_NO_NAN, (None, np.array([0.0, 2.0])), ([1, 0], None)),
    (elementwise.STEEP_DIV, (np.array([0.0, 2.0]), None), (None, [1, 0])),
]


@pytest.mark.parametrize(("op", "values", "hidden"), HIDING, ids=repr)
def test_known_operands_hide_others(op: Op, values: tuple[Any, ...], hidden: tuple[Any, ...]):
    assert not list(wrong_hiding(op, values, hidden))


def wrong_hiding(op: Op, values: tuple[Any, ...], hidden: tuple[Any, ...]) -> Iterator[str]:
    """Each operand has two sources of its own; those of the hidden elements must be missing."""
    total = 2 * len(values)
    numbers = np.arange(total).reshape(-1, 2)
    patterns = [
        Pattern.nothing((2,), total) if value is not None else Pattern.numbered(row, total)
        for row, value in zip(numbers, values, strict=True)
    ]
    expected = np.zeros((2, total), bool)
    for row, places in zip(numbers, hidden, strict=True):
        for element in range(2) if places is not None else ():
            expected[element, row[element]] = not places[element]
    found = op.depends_given(list(values), *patterns).to_dense()
    if not (found == expected).all():
        yield f"{op!r}: the pattern is {found.astype(int)}, not {expected.astype(int)}"


# Sizes that are not known.

A, B = Dim.named("a"), Dim.named("b")
SIZES = ({"a": 3, "b": 4}, {"a": 4, "b": 5})
#: One of each op that is a function of real numbers, element by element.
ELEMENTWISE = {
    case.op.name: (case.op, case.operands)
    for case in CASES
    if isinstance(case.op, elementwise.Elementwise)
    and "f" in case.kinds
    and case.order
    and all(operand.dtype is None for operand in case.operands)
}.values()
SYMBOLIC: list[tuple[Op, tuple[Any, ...]]] = [
    (broadcast.BroadcastTo((2, B), (1,)), ((B,),)),
    (broadcast.Sum((0,)), ((A, B),)),
    (broadcast.Sum(None), ((A, B),)),
    (elementwise.MUL, ((A, B), (A, B))),
    (elementwise.Tanh(), ((A,),)),
    (elementwise.MAXIMUM, ((A,), (A,))),
    (shape.Reshape((A * B,)), ((A, B),)),
    (shape.Reshape((B, A)), ((A, B),)),
    (shape.Transpose((1, 0)), ((A, B),)),
    (shape.Slice((1, 0), (A, B), (2, 1)), ((A, B),)),
    (shape.Pad((1, 0), (A, B - 1), (0, 0)), ((A, B), ())),
    (shape.Pad((0,), (0,), (2,)), ((A,), ())),
    (shape.Concatenate(0), ((A, B), (2, B), (A, B))),
    (shape.Reverse((0,)), ((A, B),)),
    (reduce.Max((0,)), ((A, B),)),
    (reduce.Prod((0,)), ((A, B),)),
    (reduce.Prod(None), ((A, B),)),
    (reduce.ArgMax(1, int32), ((A, B),)),
    (reduce.CumSum(0, False), ((A, B),)),
    (reduce.CumProd(1, True), ((A, B),)),
    (reduce.CumLogsumexp(0, False), ((A,),)),
    (reduce.Recurrence(0, False), ((A, B), (A, B))),
    (contract.MATMUL, ((A, B), (B, 2))),
    (contract.MATMUL, ((2, A, B), (2, B, A))),
    (contract.Conv((2,), ((1, 1),), (1,), (1,), 1), ((A, B, 2), (3, 2, 5))),
    (contract.Conv((1,), ((0, 0),), (1,), (1,), 2), ((A, B, 4), (2, 2, 6))),
    (index.Gather(1, 0), ((A, B), at(3, 5))),
    (index.Gather(1, 1), ((A, B), at(3, A, 2))),
    (index.GatherNd(0, 0), ((A, B), at(3, 5, 1))),
    (index.ScatterAdd(0, 0), ((A, B), at(3, 5, 1), (5, B))),
    (index.ScatterUpdate(0, 0), ((A, B), at(3, 5, 1), (5, B))),
    (index.ScatterMax(1, 0), ((A, B), at(3, 5, 1), (A, 5))),
    (index.DynamicSlice((A, 2)), ((A, B), at(3), at(3))),
    (index.DynamicUpdateSlice(), ((A, B), (1, B), at(3), at(3))),
    (sort.Sort(0, False), ((A, B),)),
    (sort.ArgSort(0, True), ((A, B),)),
    (sort.TopK(2), ((A, B),)),
    (linalg.Solve(True), ((A, A), (A, B))),
    (linalg.TriangularSolve(False, True), ((2, A, A), (2, A, B))),
    (linalg.Det(), ((A, A),)),
    (linalg.Slogdet(), ((B, A, A),)),
    (linalg.Cholesky(), ((A, A),)),
    (linalg.TridiagonalSolve(False), ((A,), (A,), (A,), (A, B))),
    (decomposition.Qr(False), ((B, A, A),)),
    (decomposition.Lu(), ((A, A),)),
    (decomposition.SingularValues(), ((A, B),)),
    (decomposition.Eigvalsh(), ((B, A, A),)),
    (decomposition.Pinv(), ((B, A), ())),
    (linalg.Cofactor(), ((A, A),)),
    (matrix_function.Expm(), ((B, A, A),)),
    (index.ScatterMul(0, 0), ((A, B), at(3, 5, 1), (5, B))),
    (index.ScatterMin(0, 0), ((A, B), at(3, 5, 1), (5, B))),
    (broadcast.BroadcastTo((A, B), ()), ((),)),
    (barrier.Barrier(), ((A, B), (B,))),
    (fourier.Rfft(), ((A, B),)),
    *((op, ((A, B),) * len(operands)) for op, operands in ELEMENTWISE),
]


def symbolic_graph(op: Op, shapes: Sequence[Any]) -> Graph:
    with Builder("f") as builder:
        inputs = []
        for i, sizes in enumerate(shapes):
            operand = sizes if isinstance(sizes, Operand) else Operand(sizes)
            inputs.append(builder.input(operand.type(float64), f"x{i}"))
        outputs = op(*inputs)
        return builder.finish(outputs if isinstance(outputs, tuple) else (outputs,))


def types_for(graph: Graph, sizes: dict[str, int]) -> list[Any]:
    return [x.type.with_shape(substitute_shape(x.type.shape, sizes)) for x in graph.inputs]


@pytest.mark.parametrize("k", range(0, len(SYMBOLIC), CHUNK))
def test_unknown_sizes(k: int):
    """Passes and specialisation commute."""
    trials = []
    for op, shapes in SYMBOLIC[k : k + CHUNK]:
        graph = symbolic_graph(op, shapes)
        derivatives = [graph]
        if any(y.type.dtype.is_differentiable for y in graph.outputs):
            derivatives += [vjp_graph(graph), jvp_graph(graph), vjp_graph(vjp_graph(graph))]
        n, flags = Dim.named("n"), (True,) * len(graph.inputs)
        wide = vectorise(graph, flags, n)[0]
        for sizes in SIZES:
            small = specialise(graph, types_for(graph, sizes))
            known = [small]
            if len(derivatives) > 1:
                known += [vjp_graph(small), jvp_graph(small), vjp_graph(vjp_graph(small))]
            pairs = [*zip(derivatives, known, strict=True), (wide, vectorise(small, flags, 2)[0])]
            for found, expected in pairs:
                # Where the text is the same, so are the numbers.
                if specialise(found, expected.input_types).as_text() == expected.as_text():
                    continue
                trials.append(same_function(f"{found.name} of {op!r}", found, expected))
    with jax.enable_x64(True):
        found = _failures_of(trials, QUICK)
    assert not found, "\n" + "\n".join(found)


def same_function(name: str, graph: Graph, expected: Graph) -> Trial:
    rng = np.random.default_rng(0)
    arrays = []
    for x in expected.inputs:
        assert x.type.is_static
        high = 3 if x.type.dtype.is_integer else 0
        arrays.append(draw(rng, Operand(x.type.shape, high=high), x.type.dtype))
    run, other = graph_function(graph), graph_function(expected)

    def compare(*values: Any) -> list[Pair]:
        return [("value", *pair) for pair in zip(run(*values), other(*values), strict=True)]

    return Trial(name, compare, arrays, 1e-12)


ANY_RANK: list[tuple[Op, tuple[Any, ...]]] = [
    (elementwise.MUL, (ShapeVariable("s"), ShapeVariable("s"))),
    (elementwise.Tanh(), (ShapeVariable("s"),)),
    (elementwise.Pow(), (ShapeVariable("s"), ShapeVariable("s"))),
    (elementwise.MAXIMUM, (ShapeVariable("s"), ShapeVariable("s"))),
    (broadcast.BroadcastTo(ShapeVariable("s"), ()), ((),)),
    (broadcast.Sum(None), (ShapeVariable("s"),)),
    (reduce.Max(None), (ShapeVariable("s"),)),
]


@pytest.mark.parametrize(("op", "shapes"), ANY_RANK, ids=repr)
def test_unknown_rank(op: Op, shapes: tuple[Any, ...]):
    trials = []
    graph = symbolic_graph(op, shapes)
    for sizes in ((), (3,), (2, 3)):
        types = [
            x.type.with_shape(substitute_shape(x.type.shape, {"*s": sizes})) for x in graph.inputs
        ]
        small = specialise(graph, types)
        if any(not x.type.is_static for x in graph.inputs):
            first = vjp_graph(graph)
            trials.append(same_function(f"vjp {sizes}", first, vjp_graph(small)))
            trials.append(
                same_function(f"vjp2 {sizes}", vjp_graph(first), vjp_graph(vjp_graph(small)))
            )
    with jax.enable_x64(True):
        found = _failures_of(trials, QUICK)
    assert not found, "\n" + "\n".join(found)


# Where a function has a kink, or a limit of its formula.


@dataclass(frozen=True)
class Kink:
    op: Op
    xs: tuple[Any, ...]
    #: The cotangents of the sum of the result.
    cotangents: tuple[Any, ...]
    order: int = 1


INF = float("inf")
KINKS = [
    Kink(elementwise.Sqrt(), (0.0,), (INF,)),
    Kink(elementwise.Abs(), (0.0,), (0.0,)),
    Kink(elementwise.Sign(), (0.0,), (0.0,)),
    Kink(elementwise.Pow(), (0.0, 2.0), (0.0, 0.0)),
    Kink(elementwise.Pow(), (0.0, 1.0), (1.0, 0.0)),
    Kink(elementwise.Pow(), (0.0, 0.0), (0.0, 0.0)),
    Kink(elementwise.Pow(), (-2.0, 3.0), (12.0, 0.0)),
    Kink(elementwise.IntegerPow(0), (0.0,), (0.0,)),
    Kink(elementwise.IntegerPow(2), (0.0,), (0.0,)),
    Kink(elementwise.Maximum(), (1.0, 1.0), (1.0, 0.0)),
    Kink(elementwise.Minimum(), (1.0, 1.0), (1.0, 0.0)),
    Kink(elementwise.Select(), (True, 3.0, INF), (1.0, 0.0)),
    Kink(elementwise.Expm1(), (-50.0,), (float(np.exp(-50.0)),)),
    Kink(reduce.Max(None), ([1.0, 3.0, 3.0],), ([0.0, 0.5, 0.5],)),
    Kink(reduce.Min((0,)), ([2.0, 2.0, 2.0, 5.0],), ([1 / 3, 1 / 3, 1 / 3, 0.0],)),
    Kink(reduce.Prod((0,)), ([2.0, 0.0, 3.0],), ([0.0, 6.0, 0.0],)),
    Kink(reduce.Prod((0,)), ([0.0, 0.0, 3.0],), ([0.0, 0.0, 0.0],)),
    Kink(reduce.Prod((0,)), ([0.0, 0.0, 3.0],), ([3.0, 3.0, 0.0],), order=2),
    Kink(reduce.CumProd(0, False), ([2.0, 0.0, 3.0],), ([1.0, 8.0, 0.0],)),
    Kink(reduce.CumLogsumexp(0, False), ([-INF, 0.0],), ([0.0, 1.0],)),
    Kink(
        index.ScatterMax(0, 0), ([1.0, 0.0], [[0], [0]], [1.0, 1.0]), ([1 / 3, 1.0], [1 / 3, 1 / 3])
    ),
    Kink(sort.Sort(0, True), ([1.0, 1.0],), ([1.0, 1.0],)),
]


@pytest.mark.parametrize("kink", KINKS, ids=lambda kink: f"{kink.op.name}{kink.xs}")
def test_kinks(kink: Kink):
    found = list(wrong_kink(kink))
    assert not found, "\n".join(found)


def wrong_kink(kink: Kink) -> Iterator[str]:
    xs = [np.asarray(v) for v in kink.xs]
    xs = [v.astype(np.int32) if v.dtype == np.int64 else v for v in xs]
    with Builder("f") as builder:
        inputs = [builder.input(type_of_array(v)) for v in xs]
        graph = builder.finish((kink.op(*inputs),))
    graph = higher(graph, kink.order)
    ones = [np.ones(x.type.shape) for x in graph.inputs[len(xs) :]]
    with jax.enable_x64(True):
        found = jax.jit(graph_function(graph))(*xs, *ones)[: len(kink.cotangents)]
    for value, expected in zip(found, kink.cotangents, strict=True):
        if not np.allclose(value, expected, rtol=1e-12, atol=0):
            yield f"{kink}: the cotangents are {[np.asarray(v).tolist() for v in found]}"


# Nothing in it.


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("op", "sizes", "expected"),
    [
        (broadcast.Sum((0,)), ((0, 2),), np.zeros(2)),
        (reduce.Max((0,)), ((0, 2),), np.full(2, -INF)),
        (reduce.Min((0,)), ((0,),), np.asarray(INF)),
        (reduce.Prod((0,)), ((0,),), np.asarray(1.0)),
        (reduce.CumSum(0, False), ((0,),), np.zeros(0)),
        (reduce.CumProd(0, True), ((0, 2),), np.zeros((0, 2))),
        (reduce.Recurrence(0, True), ((0,), (0,)), np.zeros(0)),
        (contract.MATMUL, ((2, 0), (0, 3)), np.zeros((2, 3))),
        (
            contract.Conv((1,), ((0, 0),), (1,), (1,), 1),
            ((0, 4, 2), (2, 2, 3)),
            np.zeros((0, 3, 3)),
        ),
        (index.Gather(0, 0), ((3, 2), at(3, 0)), np.zeros((0, 2))),
        (index.Gather(0, 0), ((0, 2), at(3, 0)), np.zeros((0, 2))),
        (index.ScatterAdd(0, 0), ((0, 2), at(3, 0, 1), (0, 2)), np.zeros((0, 2))),
        (index.DynamicSlice((0,)), ((3,), at(3)), np.zeros(0)),
        (sort.Sort(0, True), ((0, 2),), np.zeros((0, 2))),
        (shape.Concatenate(0), ((0, 2), (0, 2)), np.zeros((0, 2))),
        (linalg.Solve(False), ((0, 0), (0, 2)), np.zeros((0, 2))),
        (linalg.TriangularSolve(False, True), ((2, 0, 0), (2, 0, 2)), np.zeros((2, 0, 2))),
        (linalg.Det(), ((0, 0),), np.asarray(1.0)),
        (linalg.Cholesky(), ((0, 0),), np.zeros((0, 0))),
        (linalg.TridiagonalSolve(False), ((0,), (0,), (0,), (0, 2)), np.zeros((0, 2))),
        (decomposition.SingularValues(), ((0, 2),), np.zeros(0)),
        (decomposition.Eigvalsh(), ((2, 0, 0),), np.zeros((2, 0))),
    ],
    ids=repr,
)
def test_empty_operands(op: Op, sizes: tuple[Any, ...], expected: np.ndarray):
    graph = symbolic_graph(op, sizes)
    derivative = vjp_graph(graph)
    arrays = [np.zeros(x.type.shape, x.type.dtype.numpy_dtype) for x in derivative.inputs]
    with jax.enable_x64(True):
        (found,) = graph_function(graph)(*arrays[: len(graph.inputs)])
        cotangents = graph_function(derivative)(*arrays)
    np.testing.assert_array_equal(found, expected)
    reals = [x.type.shape for x in graph.inputs if x.type.dtype.is_differentiable]
    assert [g.shape for g in cotangents] == reals
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(op.numpy(*arrays[: len(graph.inputs)]), expected)


# Random numbers.

RANDOM_CASES = [case for case in CASES if case.family == "random"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", RANDOM_CASES, ids=str)
def test_numbers_follow_from_the_key_alone(case: Case):
    """They are the same with and without 64 bits, and others for another key."""
    graph = traced(case)
    keys = case.values(case.own_dtype)
    wide = any(has_64_bits(y.type.dtype) for y in graph.outputs)
    found, run = [], jax.jit(graph_function(graph))
    for x64, values in ((True, keys), (wide, keys), (True, [keys[0] + 1, *keys[1:]])):
        with jax.enable_x64(x64):
            y = run(*values)[-1]  # behind the next key, if there is one
            found.append(np.asarray(y))
    first, again, other = found
    assert first.dtype == again.dtype
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() or first.size <= 5


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32, float64], ids=str)
def test_distributions(dtype: DType):
    """Six standard errors, of 40,000 numbers."""
    shape, key = (200, 200), np.array([7, 11], np.uint32)
    with jax.enable_x64(True):
        ops = RandomUniform(shape, dtype), RandomNormal(shape, dtype)
        draw_all = jax.jit(lambda key: [RULES[type(op)](op, key) for op in ops])
        uniform, normal = (np.asarray(x, float) for x in draw_all(key))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 6 * 0.289 / 200 + 2.0**-8
    assert abs(uniform.var() - 1 / 12) < 0.003
    assert abs(normal.mean()) < 6 / 200
    assert abs(normal.var() - 1) < 6 * 1.42 / 200


# Completeness.


def test_names_tell_rows_apart():
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_op_has_a_row_and_a_lowering():
    in_table = {case.op.name for case in CASES} | ELSEWHERE
    assert in_table == set(OPS)
    missing = {name for name, op in OPS.items() if op not in RULES}
    assert missing <= ELSEWHERE, missing


def test_no_rule_is_missing():
    missing = {
        (case.op.name, rule)
        for case in CASES
        for rule in ("infer", "vjp", "batch", "depends")
        if getattr(type(case.op), rule) is getattr(Op, rule)
        and rule not in WITHOUT.get(case.op.name, ())
    }
    assert not missing


@pytest.mark.parametrize(
    "name", sorted({x for x, rules in WITHOUT.items() if "vjp" in rules} - ELSEWHERE)
)
def test_a_missing_rule_is_an_error(name: str):
    case = next(case for case in CASES if case.op.name == name)
    for derive in (vjp_graph, jvp_graph):
        with pytest.raises(LookupError, match=f'RegisterGradient\\("{name}"\\)'):
            derive(traced(case))


def test_prevent_gradient():
    case = next(case for case in CASES if case.op.name == "prevent_gradient")
    with pytest.raises(GradientError, match="explicitly disabled"):
        vjp_graph(traced(case))


def test_a_read_gives_its_cotangent_to_the_handle():
    case = next(case for case in CASES if case.op.name == "read")
    graph = vjp_graph(traced(case))
    value, handle, g = arguments(graph, case.values(float64))
    with jax.enable_x64(True):
        found = graph_function(graph)(value, handle, g)
    assert [y.tolist() for y in found] == [[0.0] * 3, g.tolist()]


def test_rules_take_operands_by_name():
    """A rule has one parameter per operand, or says that it takes any number."""
    for case in CASES:
        method = inspect.signature(type(case.op).infer)
        kinds = [p.kind for p in method.parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            assert len(kinds) - 1 == len(case.operands), case
