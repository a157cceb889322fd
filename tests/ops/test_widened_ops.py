"""Every row of the op table with a loop axis whose size is open, or 0, and its vjp behind the batch
rule; elementwise ops on scalars and on nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lowering.program import graph_function
from tests.derived_graphs import vjp_graph
from tests.op_table import Case
from tests.ops.test_ops import (
    CHUNKS,
    Pair,
    Trial,
    arguments,
    failures,
    has_derivative,
    lanes_of,
    traced,
)
from tracegraph.core.shapes import Dim, static_shape
from tracegraph.ir.tensor import Graph
from tracegraph.ops.elementwise import Elementwise
from tracegraph.passes.specialise import specialise
from tracegraph.passes.vectorise import vectorise


def graphs_of(case: Case) -> Iterator[Graph]:
    graph = traced(case)
    yield graph
    if is_differentiated(case):
        yield vjp_graph(graph)


def is_differentiated(case: Case) -> bool:
    return case.order >= 1 and has_derivative(case, case.own_dtype)


def check_open_lanes(case: Case) -> Iterator[Trial]:
    """What is widened by an open size is for each size what that size makes of it."""
    for graph in graphs_of(case) if case.operands else ():
        flags = (True,) * len(graph.inputs)
        wide, _ = vectorise(graph, flags, Dim.named("n"))
        for n in (1, 3):
            known, _ = vectorise(graph, flags, n)
            small = specialise(wide, [x.type for x in known.inputs])
            if small.as_text() != known.as_text():
                yield same_lanes(f"{n} open lanes of {case} ({graph.name})", case, small, known, n)


def same_lanes(name: str, case: Case, found: Graph, expected: Graph, n: int) -> Trial:
    run, other = graph_function(found), graph_function(expected)

    def compare(*values: Any) -> list[Pair]:
        return [("lanes", *pair) for pair in zip(run(*values), other(*values), strict=True)]

    arrays = lanes_of(case, traced(case), n)
    return Trial(name, compare, arguments(expected, arrays), case.tolerance)


def check_no_lanes(case: Case) -> Iterator[Trial]:
    """A parallel loop of no iterations gives nothing, of the right shapes."""
    for graph in graphs_of(case) if case.operands else ():
        wide, flags = vectorise(graph, (True,) * len(graph.inputs), 0)
        run = graph_function(wide)
        sizes = [static_shape(y.type.shape) for y in graph.outputs]
        shapes = [(0, *s) for s, flag in zip(sizes, flags, strict=True) if flag]

        def compare(*xs: Any, run: Any = run, flags: Any = flags, shapes: Any = shapes) -> Any:
            found = [y for y, flag in zip(run(*xs), flags, strict=True) if flag]
            return [("shape", y, jnp.zeros(s, y.dtype)) for y, s in zip(found, shapes, strict=True)]

        arrays = [
            np.zeros(static_shape(x.type.shape), x.type.dtype.numpy_dtype) for x in wide.inputs
        ]
        yield Trial(f"no lanes of {case} ({graph.name})", compare, arrays)


def check_derivative_of_batch(case: Case) -> Iterator[Trial]:
    """The vjp of n instances is n instances of the vjp, added up for an operand that they share."""
    if not case.operands or not is_differentiated(case):
        return
    count, n = len(case.operands), 2
    everything = (True,) * count
    shared = [tuple(k != i for k in range(count)) for i in range(count)] if count > 1 else []
    if isinstance(case.op, Elementwise):  # what is shared is broadcast, by one rule of them all
        shared = shared[-1:] if case.op.name in ("mul", "select") else []
    for flags in (everything, *shared[:4]):
        yield from derivative_of_batch(case, flags, n)


def derivative_of_batch(case: Case, flags: tuple[bool, ...], n: int) -> Iterator[Trial]:
    graph = traced(case)
    wide, are_wide = vectorise(graph, flags, n)
    if not all(are_wide):
        return
    pulled, one = vjp_graph(wide), vjp_graph(graph)
    seeds = len(one.inputs) - len(flags)
    lanes, are_stacked = vectorise(one, flags + (True,) * seeds, n)
    run, run_lanes = graph_function(pulled), graph_function(lanes)
    is_real = [x.type.dtype.is_differentiable for x in graph.inputs]
    is_wide = [flag for flag, real in zip(flags, is_real, strict=True) if real]
    stacked = lanes_of(case, graph, n)
    arrays = arguments(pulled, [x if flag else x[0] for x, flag in zip(stacked, flags)])

    def compare(*values: Any) -> list[Pair]:
        pairs = []
        found = zip(run(*values), run_lanes(*values), is_wide, are_stacked, strict=True)
        for g, each, flag, has_lanes in found:
            each = each if has_lanes else jnp.stack([each] * n)
            pairs.append(("vjp of batch", g, each if flag else each.sum(0)))
        return pairs

    which = "".join("nb"[flag] for flag in flags)
    yield Trial(f"vjp of batch {which} of {case}", compare, arrays, case.tolerance)


def check_scalars(case: Case) -> Iterator[Trial]:
    """An elementwise op on scalars, and on nothing, does what it does on each element."""
    if not isinstance(case.op, Elementwise) or case.is_extra or not case.order:
        return
    xs = case.values(case.own_dtype)
    for size, values in (("scalars", [x.reshape(-1)[0] for x in xs]), ("nothing", empty(xs))):
        operands = tuple(
            replace(x, shape=np.shape(v)) for x, v in zip(case.operands, values, strict=True)
        )
        small = replace(case, operands=operands)
        for graph, whole in zip(graphs_of(small), graphs_of(case), strict=True):
            run, run_whole = graph_function(graph), graph_function(whole)
            rest = arguments(whole, xs)[len(xs) :]
            cut = [x.reshape(-1)[0] if size == "scalars" else x[:0] for x in rest]

            def compare(*both: Any, run: Any = run, run_whole: Any = run_whole) -> list[Pair]:
                half = len(both) // 2
                found, expected = run(*both[:half]), run_whole(*both[half:])
                return [
                    ("element", y, e.reshape(-1)[0] if y.ndim == 0 else e[:0])
                    for y, e in zip(found, expected, strict=True)
                ]

            name = f"{size} of {case} ({graph.name})"
            yield Trial(name, compare, [*values, *cut, *xs, *rest], case.tolerance)


def empty(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [x.reshape(-1)[:0] for x in xs]


WIDENED = {
    "open": check_open_lanes,
    "none": check_no_lanes,
    "batch": check_derivative_of_batch,
    "scalars": check_scalars,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("check", WIDENED.values(), ids=WIDENED.keys())
@pytest.mark.parametrize("cases", CHUNKS)
def test_widened(cases: list[Case], check: Any):
    found = failures(check, cases)
    assert not found, "\n" + "\n".join(found)
