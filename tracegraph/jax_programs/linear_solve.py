"""JAX's `custom_linear_solve`: x with A x = b, where programs define A and how to solve for x.

The derivative is that of the equation, not of the solver: A dx = db - dA x. Its transpose needs a
solution with the transposed A, which is an equation of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tracegraph.calls.call import as_tuple
from tracegraph.calls.custom_call import CustomCall
from tracegraph.core.types import TensorType
from tracegraph.ir.builder import current, inline
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.jax_programs.equations import Equation, converts, graph_of
from tracegraph.ops.contract import conjugate
from tracegraph.ops.elementwise import NEG, SUB, PreventGradient
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient
from tracegraph.passes.simplify import simplify

#: The highest order of derivatives: each order nests further equations inside the previous one.
HIGHEST_ORDER = 3


class SolverGraphs(NamedTuple):
    """The graphs of an equation: products with A and with its transpose, solvers for both; and how
    many operands each takes before the right-hand sides."""

    product: Graph
    transposed_product: Graph | None
    solve: Graph
    transposed_solve: Graph | None
    counts: tuple[int, ...]

    @property
    def transposed(self) -> SolverGraphs | None:
        """The equation with A transposed."""
        if self.transposed_solve is None or self.transposed_product is None:
            return None
        m, v, s, t = self.counts
        return SolverGraphs(
            self.transposed_product, self.product, self.transposed_solve, self.solve, (v, m, t, s)
        )

    def parts(self, operands: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """The operands of each graph, and the right-hand sides."""
        parts, start = [], 0
        for count in self.counts:
            parts.append(operands[start : start + count])
            start += count
        return [*parts, operands[start:]]


@converts("custom_linear_solve")
def _custom_linear_solve(eqn: Equation, *xs: Tensor) -> Any:
    lengths, programs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    names = ("matvec", "vecmat", "solve", "transpose_solve")
    graphs = [
        None if program is None else eqn.reader.graph(name, program)
        for name, program in zip(names, programs, strict=True)
    ]
    solver = SolverGraphs(*graphs, tuple(lengths))  # type: ignore[arg-type]
    return _solution(solver, xs, HIGHEST_ORDER)


def _solution(solver: SolverGraphs, operands: Sequence[Tensor], order: int) -> tuple[Tensor, ...]:
    """The solutions, with derivatives up to the given order."""
    types = [x.type for x in operands]
    if solver.transposed is None or order == 0:
        *_, of_solve, _, right = solver.parts(operands)
        stop = PreventGradient("of a linear solve there are derivatives of order 1 to 3")
        return inline(solver.solve, (*of_solve, *map(stop, right)))

    def solved(*given: Tensor) -> Sequence[Tensor]:
        *_, of_solve, _, right = solver.parts(given)
        return inline(solver.solve, (*of_solve, *right))

    body = graph_of("linear_solve", types, solved)
    backward, sources = _backward(solver, types, order)
    forward = _forward(solver, types, sources, order)
    return as_tuple(CustomCall(body, backward, sources, forward)(*operands))


def _backward(
    solver: SolverGraphs, types: Sequence[TensorType], order: int
) -> tuple[Graph, tuple[int, ...]]:
    """The graph of the cotangents, and the operands they belong to."""
    transposed = solver.transposed
    assert transposed is not None
    first = sum(solver.counts)
    rights = range(first, len(types))
    places: list[int] = []

    def pulled(*given: Tensor) -> Sequence[Tensor]:
        operands, gs = given[: len(types)], given[len(types) :]
        m, v, s, t, _ = solver.parts(operands)
        # Our cotangents are conjugates of JAX's, so the equation is that of the adjoint A.
        seeds = map(conjugate, gs)
        by_right = [*map(conjugate, _solution(transposed, (*v, *m, *t, *s, *seeds), order - 1))]
        xs = _solution(solver, operands, order - 1)
        builder = current()
        start = len(builder.nodes)
        products = inline(solver.product, (*m, *xs))
        found = gradient(builder.nodes[start:], products, m, [*map(NEG, by_right)])
        kept = [(i, g) for i, g in enumerate(found) if g is not None]
        places[:] = [i for i, _ in kept]
        return [*(g for _, g in kept), *by_right]

    graph = graph_of(
        "linear_solve_backward", [*types, *(types[i] for i in rights)], pulled, simplify
    )
    return graph, (*places, *rights)


def _forward(
    solver: SolverGraphs, types: Sequence[TensorType], sources: tuple[int, ...], order: int
) -> Graph:
    """The graph of the tangents of the solutions, from the operands and the tangents of those at
    the places `sources`: the coefficients of A that have one, and the right-hand sides."""
    first = sum(solver.counts)
    of_product = [i for i in sources if i < first]

    def pushed(*given: Tensor) -> Sequence[Tensor]:
        operands, tangents = given[: len(types)], dict(zip(sources, given[len(types) :]))
        m, v, s, t, _ = solver.parts(operands)
        xs = _solution(solver, operands, order - 1)
        builder = current()
        start = len(builder.nodes)
        products = inline(solver.product, (*m, *xs))
        sides = [tangents[i] for i in range(first, len(types))]
        found = jvp(
            builder.nodes[start:],
            products,
            [operands[i] for i in of_product],
            [tangents[i] for i in of_product],
        )
        sides = [b if d is None else SUB(b, d) for b, d in zip(sides, found, strict=True)]
        return _solution(solver, (*m, *v, *s, *t, *sides), order - 1)

    every = [*types, *(types[i] for i in sources)]
    return graph_of("linear_solve_forward", every, pushed, simplify)
