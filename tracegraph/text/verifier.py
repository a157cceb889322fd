"""The verifier: checks that a graph is well-formed."""

from __future__ import annotations

import functools
import inspect
import math
from typing import NoReturn

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import UNKNOWN
from tracegraph.errors import LoadError, Mismatch, fail
from tracegraph.ir.builder import raise_mismatch
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor, get_type
from tracegraph.text.literals import Malformed
from tracegraph.text.printer import node_text, value_names


def verify(graph: Graph) -> None:
    """Checks `graph` and every graph that it calls, each once, by inferring all types again.

    Every node must use values that were computed before it in the same graph, and have the types
    that its op infers. Raises ShapeError or DTypeError for types that an op refuses, LoadError with
    the node for any other fault. A graph that was traced, parsed or built by a pass is always
    valid: an error is a bug.
    """
    for inner in graph.graphs():
        _verify(inner)


def _verify(graph: Graph) -> None:
    nodes: set[int] = set()
    defined: set[int] = set()
    for x in graph.inputs:
        _define(graph, x, defined)
    for node in graph.nodes:
        if id(node) in nodes:
            _fault(graph, "a node occurs twice", node)
        nodes.add(id(node))
        for position, x in enumerate(node.inputs):
            if id(x) not in defined:
                _fault(graph, f"operand {position} is not defined above in this graph", node)
        _check_types(graph, node)
        for y in node.outputs:
            _define(graph, y, defined, node)
    for position, y in enumerate(graph.outputs):
        if id(y) not in defined:
            _fault(graph, f"output {position}, a {y.type}, is not defined in this graph")


def _define(graph: Graph, tensor: Tensor, defined: set[int], node: Node | None = None) -> None:
    if id(tensor) in defined:
        _fault(graph, f"the value {value_names(graph)[tensor]} is defined twice", node)
    defined.add(id(tensor))


def _check_types(graph: Graph, node: Node) -> None:
    try:
        inferred = node.op.output_types(node.inputs)
    except Mismatch as mismatch:
        raise_mismatch(node.op.name, node.inputs, mismatch, node.source)
    except outside_interrupts(Exception) as error:
        _fault(graph, f"{node.op.name} does not fit its operands: {error}", node, error)
    if inferred != tuple(map(get_type, node.outputs)):
        types = ", ".join(map(str, inferred))
        _fault(graph, f"{node.op.name} makes ({types}), and the node has other types", node)


def _fault(
    graph: Graph, fact: str, node: Node | None = None, cause: BaseException | None = None
) -> NoReturn:
    where = f"\n  node: {node_text(graph, node)}" if node is not None else ""
    fail(
        LoadError,
        f"graph @{graph.name}: {fact}{where}",
        source=node.source if node is not None else UNKNOWN,
        fix="report it: tracing, passes and parsing are to make graphs that hold together",
        cause=cause,
    )


def check_arity(op: Op, count: int) -> None:
    """Raises Malformed if the type rule of `op` does not take `count` operands."""
    least, most = operand_count(type(op))
    if not least <= count <= most:
        wanted = least if least == most else f"{least} or more"
        raise Malformed(f"{op.name} takes {wanted} operands, and {count} are given")


@functools.cache
def operand_count(cls: type[Op]) -> tuple[int, float]:
    """The smallest and largest number of operands that an op takes."""
    arity = getattr(cls, "arity", None)
    if arity is not None:
        return arity, arity
    parameters = list(inspect.signature(cls.infer).parameters.values())[1:]
    names = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    least = sum(p.default is p.empty for p in names)
    return least, len(names) if len(names) == len(parameters) else math.inf
