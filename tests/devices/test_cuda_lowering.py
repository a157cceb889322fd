"""Every row of the op table, and its gradient, lowered for CUDA on a machine that has none.

XLA's compiler for GPUs does not run here: this says that each op has a lowering there, in each of
its narrow types. What it computes is said by `test_on_gpu.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest

from lowering.program import graph_function, shape_struct
from tests.derived_graphs import vjp_graph
from tests.op_table import CASES, Case
from tests.ops.test_ops import has_derivative, is_allowed, traced
from tracegraph.core.types import DType, bfloat16, float16, float32
from tracegraph.ir.tensor import Graph

NARROW = (float32, bfloat16, float16)
#: How many rows are lowered as one program.
CHUNK = 40

#: Ops that no GPU computes, and why.
ON_CPU_ALONE = {
    "logm": "JAX has the Schur decomposition for CPUs alone",
    "sqrtm": "JAX has the Schur decomposition for CPUs alone",
}


def dtypes_of(case: Case) -> Sequence[DType]:
    """The narrow types that a row takes, or its own type if it takes none."""
    is_free = any(x.dtype is None for x in case.operands)
    return [x for x in NARROW if is_free and is_allowed(case, x)] or [case.own_dtype]


def graphs_of(case: Case) -> Iterator[Graph]:
    """The op and its gradient in each type."""
    for dtype in dtypes_of(case):
        graph = traced(case, dtype)
        yield graph
        if case.order > 0 and has_derivative(case, dtype):
            yield vjp_graph(graph)


def lower_for_cuda(graphs: Sequence[Graph]) -> str:
    """The StableHLO of graphs as one program for CUDA."""
    functions = [graph_function(graph) for graph in graphs]

    def run(rows: Any) -> Any:
        return [function(*row) for function, row in zip(functions, rows, strict=True)]

    with jax.enable_x64(True):
        rows = [[shape_struct(type) for type in graph.input_types] for graph in graphs]
        return jax.jit(run).trace(rows).lower(lowering_platforms=("cuda",)).as_text()


def chunks() -> list[Any]:
    cases = [case for case in CASES if case.op.name not in ON_CPU_ALONE]
    return [
        pytest.param(cases[i : i + CHUNK], id=f"rows {i} to {i + CHUNK - 1}")
        for i in range(0, len(cases), CHUNK)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cases", chunks())
def test_every_row_is_lowered_for_cuda(cases: Sequence[Case]):
    graphs = [graph for case in cases for graph in graphs_of(case)]
    assert "func.func public @main" in lower_for_cuda(graphs)


@pytest.mark.parametrize("name", sorted(ON_CPU_ALONE))
def test_what_no_gpu_computes_is_refused(name: str):
    """If JAX has learnt it, the list above is out of date."""
    case = next(case for case in CASES if case.op.name == name)
    with pytest.raises(NotImplementedError, match=r"schur.* not found for platform cuda"):
        lower_for_cuda([next(graphs_of(case))])


def test_most_rows_are_tried_in_three_types():
    counts = [len(dtypes_of(case)) for case in CASES]
    assert counts.count(3) > 150 and set(counts) <= {1, 2, 3}
