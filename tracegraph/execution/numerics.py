"""`locate_numerics`: a plain program that reports whether its results are finite, and a search for
the node to blame if they are not.

The search reruns the same graph from the inputs of the call, part by part. Branches and loops on
the path run from Python, one step after another, so that it can also name the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from tracegraph.control_passes import check_numerics, locate_numerics as search
from tracegraph.control_passes.check_numerics import Site, non_finite_fact
from tracegraph.control_passes.locate_numerics import FINITE
from tracegraph.core.source import Source
from tracegraph.eager import backend
from tracegraph.eager.slots import (
    gathered,
    move_variables,
    run_program,
    state_lock,
    store_together_if_same,
)
from tracegraph.effects.pieces import interpret
from tracegraph.errors import NumericsError, counted, fail
from tracegraph.execution.execute import Execution
from tracegraph.ir.builder import Builder, operand_text
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.simplify import dead_code, inlined
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import dotted
from tracegraph.tracing.trace import Traced, steps_text

_FIX = "keep the operands where the result is finite; tg.print shows their values"


def with_located_numerics(traced: Traced) -> Traced:
    """The body with one more output: whether its results and the Variables' new values are
    finite."""
    graph = search.with_finite_check(traced.graph, traced.result_count + len(traced.assigned))
    return dataclasses.replace(traced, graph=graph)


def raise_if_wrong(
    traced: Traced, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]
) -> None:
    """Raises NumericsError if the flag among the outputs says that a result is not finite, and a
    node or an input is to blame. `graph` is that of `traced` with known sizes, and `inputs` are
    those of the run."""
    if not bool(outputs[len(graph.outputs) - 1]):
        results = graph.outputs[: traced.result_count + len(traced.assigned)]
        found = _NodeSearch().blamed(Graph(graph.name, graph.inputs, graph.nodes, results), inputs)
        if found is not None:
            _fail(found)


class LocatedExecution(Execution):
    """An execution whose results are inspected before Variables are assigned, so a run overwrites
    none of its inputs."""

    may_overwrite = False
    looks_at_results = True

    def step_alone(self) -> None:
        return None

    def _outputs(
        self,
        buffers: Sequence[Any],
        variables: Sequence[Variable],
        rest: Sequence[Any],
        assigned: Sequence[Variable],
    ) -> Sequence[Any]:
        places = range(len(buffers), len(buffers) + len(variables))
        while True:
            move_variables(
                self.graph,
                (*buffers, *variables, *rest),
                dict(zip(places, variables, strict=True)),
            )
            with state_lock:
                state = gathered(variables)
            given = (*buffers, *state, *rest)
            outputs = run_program(self.program, given)
            raise_if_wrong(self.traced, self.graph, given, outputs)
            with state_lock:
                new = outputs[self._stored]
                if not assigned or store_together_if_same(assigned, new, variables, state):
                    return outputs


@dataclasses.dataclass(frozen=True)
class _Blame:
    """A node, an input, or a place in a step back, with the values of its operands, and the steps
    of the enclosing loops, outermost first."""

    culprit: Node | Tensor | Site
    operands: tuple[Any, ...]
    steps: tuple[tuple[np.ndarray, Source], ...] = ()


class _NodeFound(Exception):
    """Ends the run of a loop or a branch once the node inside it is found."""

    def __init__(self, blame: _Blame) -> None:
        self.blame = blame


class _NodeSearch:
    """Reruns graphs; keeps the programs of those that it runs often."""

    def __init__(self) -> None:
        self._programs: dict[Graph, Callable[..., Any]] = {}
        self._opened: dict[Graph, tuple[Graph, list[search.Section]]] = {}

    def blamed(self, graph: Graph, values: Sequence[Any]) -> _Blame | None:
        """What is to blame for non-finite outputs of `graph`; None if nothing is."""
        if graph not in self._opened:
            opened = inlined(graph)
            self._opened[graph] = opened, [*search.parts(opened)]
        opened, parts = self._opened[graph]
        known: dict[Tensor, Any] = dict(zip(opened.inputs, values, strict=True))
        states = {x: _state(value) for x, value in known.items()}
        for part in parts:
            outputs = self._run(part.graph, [known[x] for x in part.inputs])
            known.update(zip(part.outputs, outputs))
            if part.told:
                states.update(zip(part.told, np.asarray(outputs[-1]).tolist(), strict=True))
        nodes, inputs = search.blamed(opened, states)
        for node in nodes:
            found = self._at(node, self._operands(node, parts, known))
            if found is not None:
                return found
        return _Blame(inputs[0], (known[inputs[0]],)) if inputs else None

    def _operands(
        self, node: Node, parts: Sequence[search.Section], known: dict[Tensor, Any]
    ) -> list[Any]:
        """The values of a node's operands."""
        missing = [x for x in dict.fromkeys(node.inputs) if x not in known]
        if missing:
            nodes = next(part.nodes for part in parts if node in part.nodes)
            part = search.part_of("operands", nodes, missing, ())
            graph = dead_code(part.graph)
            known.update(zip(missing, self._run(graph, [known[x] for x in part.inputs])))
        return [known[x] for x in node.inputs]

    def _at(self, node: Node, operands: Sequence[Any]) -> _Blame | None:
        """The node itself, or what inside of it is to blame."""
        if not node.op.can_interpret:
            if node.op.is_loop:
                return self._in_a_step_back(node, operands)
            return _Blame(node, tuple(operands))
        step = 0

        def run(graph: Graph, values: Sequence[Any], place: int) -> Sequence[Any]:
            nonlocal step
            outputs = self._run(graph, values)
            if any(map(_state, outputs)):
                found = self.blamed(graph, values)
                if found is not None and not isinstance(found.culprit, Tensor):
                    raise _NodeFound(found)
            step += graph is getattr(node.op, "body", None)
            return outputs

        try:
            interpret(node.op, operands, run)
        except _NodeFound as found:
            blame = found.blame
            if not node.op.is_loop:
                return blame
            at = (np.array(step), node.source)
            return dataclasses.replace(blame, steps=(at, *blame.steps))
        return _Blame(node, tuple(operands))

    def _in_a_step_back(self, node: Node, operands: Sequence[Any]) -> _Blame:
        """What is to blame in the reverse mode of a while, which goes back as it did, with few
        states in memory, and watches each node. Once more for the bounds of that one's operands."""
        with Builder(node.op.name) as builder:
            xs = [builder.input_like(x) for x in node.inputs]
            graph = builder.finish(builder.add(node.op, tuple(xs), node.source))
        watched, sites = check_numerics.watched(graph, ())
        number = int(np.asarray(self._run(watched, operands)[len(graph.outputs) + 1]))
        failed = sites[min(number, len(sites) - 1)]
        if not failed.loops:
            return _Blame(node, tuple(operands))
        watched, sites = check_numerics.watched(graph, (), measured=number)
        _, _, *numbers = self._run(watched, operands)[len(graph.outputs) :]
        numbers = [backend.on_host(x) for x in numbers]
        at = zip(numbers, failed.loops, strict=False)
        bounds = [x.view(np.float32) for x in numbers[len(failed.loops) :]]
        pairs = zip(failed.operands, bounds[::2], bounds[1::2], strict=False)
        texts = [f"{x}, {_bounds_text(least, most)}" for x, least, most in pairs]
        failed = dataclasses.replace(failed, operands=(*texts, *failed.operands[len(texts) :]))
        return _Blame(failed, tuple(operands), tuple(at))

    def _run(self, graph: Graph, values: Sequence[Any]) -> Sequence[Any]:
        program = self._programs.get(graph)
        if program is None:
            program = self._programs[graph] = backend.program(dead_code(graph))
        return run_program(program, values)


def _state(value: Any) -> int:
    """FINITE, INFINITE or NAN for a known value."""
    array = backend.on_host(value)
    if array.dtype.kind in "biu":
        return FINITE
    if array.dtype.kind not in "fc":  # a small float type that NumPy does not know
        array = array.astype(np.float32)
    return int(not np.isfinite(array).all()) + int(np.isnan(array).any())


def _fail(blame: _Blame) -> NoReturn:
    culprit = blame.culprit
    if isinstance(culprit, Site):
        fact = culprit.fact + steps_text(blame.steps)
        fail(NumericsError, fact, source=culprit.source, operands=culprit.operands, fix=_FIX)
    if isinstance(culprit, Tensor):
        (value,) = blame.operands
        name = culprit.name or "captured"
        what = f"Variable {dotted(name)!r}" if culprit.role == "variable" else f"argument {name!r}"
        fact = f"{what} holds {_range(value)}, and so do the results"
        fail(NumericsError, fact, fix="look at where the value comes from")
    holds = (
        "the operands are finite" if not any(map(_state, blame.operands)) else "no operand is nan"
    )
    fact = non_finite_fact(culprit, holds) + steps_text(blame.steps)
    pairs = zip(culprit.inputs, blame.operands, strict=True)
    operands = [f"{operand_text(x)}, {_range(value)}" for x, value in pairs]
    fail(NumericsError, fact, source=culprit.source, operands=operands, fix=_FIX)


def _range(value: Any) -> str:
    """The smallest and the largest number of a value, as text."""
    array = backend.on_host(value)
    if array.dtype.kind not in "biufc":
        array = array.astype(np.float32)
    if array.dtype.kind == "c":
        return _range(np.abs(array)).replace("numbers from", "absolute values from")
    wrong = (("nan", np.isnan(array)), ("infinity", np.isinf(array)))
    texts = [
        f"{name} in {places.sum():,} of {counted(array.size, 'element')}"
        for name, places in wrong
        if places.any()
    ]
    finite = array[np.isfinite(array)]
    if finite.size:
        texts.append(_bounds_text(finite.min(), finite.max()))
    return ", ".join(texts) or "no elements"


def _bounds_text(least: Any, most: Any) -> str:
    return f"numbers from {least:g} to {most:g}" if least <= most else "no elements"
