"""The forward and backward parts of a graph that contains both, each as its own graph."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.errors import GradientError, fail
from tracegraph.ir.builder import Builder, replay
from tracegraph.ir.tensor import Graph, Node, Tensor


def forward_part(graph: Graph) -> Graph:
    """The nodes of a graph before its first gradient: the computation that the user differentiates.

    The outputs are those of the graph that are known by then, followed by the values that the
    backward part takes. A graph without gradients is its own forward part.

    >>> @tg.function
    ... def slope(x):
    ...     with tg.GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = tg.sin(x) * x
    ...     return y, tape.gradient(y, x)
    >>> print(slope.graph(tg.TensorSpec([])).forward().as_text())
    graph @slope_forward(%x: f32[]) -> (f32[], f32[]) {
      %0 = sin(%x)     : f32[]
      %1 = mul(%0, %x) : f32[]
      return %1, %0
    }
    """
    early, late = _partitioned(graph)
    if not late:
        return graph
    made = {y for node in late for y in node.outputs}
    known = [y for y in graph.outputs if y not in made]
    return _part(f"{graph.name}_forward", graph.inputs, early, [*known, *_crossing(early, late)])


def backward_part(graph: Graph) -> Graph:
    """The nodes of a graph from its first gradient on, including what follows, such as an
    optimizer step.

    The inputs are the values passed from the forward part, named after the ops that computed them,
    and the inputs of the graph that are used. The outputs are the remaining ones of the graph.

    Raises GradientError for a graph without gradients.
    """
    early, late = _partitioned(graph)
    if not late:
        fail(
            GradientError,
            f"@{graph.name} has no backward part: no node of it was derived by a gradient",
            fix="trace a function that calls tape.gradient",
        )
    made = {y for node in late for y in node.outputs}
    used = {x for node in late for x in node.inputs}
    inputs = [*_crossing(early, late), *(x for x in graph.inputs if x in used)]
    return _part(f"{graph.name}_backward", inputs, late, [y for y in graph.outputs if y in made])


def _partitioned(graph: Graph) -> tuple[Sequence[Node], Sequence[Node]]:
    """The nodes before and after the first cotangent."""
    for place, node in enumerate(graph.nodes):
        if "vjp" in node.source.roles:
            return graph.nodes[:place], graph.nodes[place:]
    return graph.nodes, ()


def _crossing(early: Sequence[Node], late: Sequence[Node]) -> list[Tensor]:
    used = {x for node in late for x in node.inputs}
    return [y for node in early for y in node.outputs if y in used]


def _part(
    name: str, inputs: Sequence[Tensor], nodes: Sequence[Node], outputs: Sequence[Tensor]
) -> Graph:
    with Builder(name) as builder:
        env = {x: builder.input_for(x) for x in inputs}
        replay(nodes, env)
        return builder.finish([env[y] for y in outputs])
