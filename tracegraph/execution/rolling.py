"""How the programs of a function are rolled, and the steps that run them."""

from __future__ import annotations

from typing import Any

from tracegraph.eager.slots import Slot
from tracegraph.execution.stacked_step import StackedStep
from tracegraph.ir.tensor import Graph
from tracegraph.ops.layout import WithLayout
from tracegraph.passes.simplify import dead_code
from tracegraph.rolling.roll import Rolled, States, rolled
from tracegraph.tracing.trace import Traced


def rolled_body(traced: Traced, graph: Graph, always: bool) -> Rolled | None:
    """The graph of a body, whose sizes are known, with loops for repeated blocks; None if there are
    none, if they do not pay, or if devices share the work: a value bound to a device stays there.
    `always` also takes loops that do not pay."""
    if any(map(_is_bound, traced.variables)) or _has_layouts(graph):
        return None
    may_stack = all(v.tensor_type.is_static and not v.is_stand_in for v in traced.variables)
    count, assigned = len(traced.variables), tuple(traced.assigned)
    states = States(traced.argument_count, count, traced.result_count, assigned, may_stack)
    return rolled(dead_code(graph), states, always)


def stacked_step(found: Rolled, traced: Traced, program: Any) -> StackedStep:
    """The step that runs the program of a rolled body that takes Variables in stacks."""
    kept = [traced.variables[i] for i in found.kept]
    groups = [[traced.variables[i] for i in rows] for rows in found.stacks]
    stored = slice(traced.result_count, traced.result_count + len(found.assigned))
    return StackedStep(program, stored, kept, groups, found.assigned)


def _is_bound(slot: Slot) -> bool:
    """Whether a slot's value is sharded over devices, or kept on a particular one."""
    devices = getattr(slot.buffer, "devices", None)
    return slot.place is not None or (devices is not None and len(devices()) > 1)


def _has_layouts(graph: Graph) -> bool:
    return any(isinstance(node.op, WithLayout) for node in graph.all_nodes())
