"""Regions: Python functions traced as the branches and bodies of one op.

What the functions use from outside becomes inputs of the op. What they assign becomes outputs, in
every region the same ones, so that a Variable that one branch assigns keeps its value in the other.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tracegraph.control.call import applied
from tracegraph.control.intern import interned
from tracegraph.core.source import here
from tracegraph.core.types import TensorType
from tracegraph.errors import TraceError, fail, kind_of, shown
from tracegraph.ir.builder import Builder, current, replay
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.effect import Read
from tracegraph.passes.simplify import simplify
from tracegraph.signatures.results import Results, result_leaves
from tracegraph.state.variable import Variable
from tracegraph.tracing.call_trace import CallTrace
from tracegraph.tracing.trace import (
    CheckReport,
    Trace,
    Traced,
    pass_check_on,
    restored,
)


@dataclass(frozen=True)
class Region:
    """One traced function, and the structure of what it returned."""

    name: str
    traced: Traced
    results: Results

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        return self.traced.graph.output_types[: self.traced.result_count]


def traced_region(
    name: str,
    function: Callable[..., Any],
    types: Sequence[TensorType] = (),
    names: Sequence[str | None] = (),
    convert: Callable[[Any], Any] = lambda result: result,
) -> Region:
    """The trace of `function`, which is given the arguments of `types`, under these names if there
    are any. `convert` is applied to what it returns while its trace is open."""
    pairs = [*itertools.zip_longest(types, names)]

    def run(is_first: bool = True) -> Region:
        with CallTrace(name) as trace:
            outer = trace.outer
            if isinstance(outer, Trace):
                trace.paths = outer.paths
            if outer.is_top_level:
                trace.what, trace.may_create = "a branch or a loop", is_first
            result = convert(function(*[trace.argument(*pair) for pair in pairs]))
            leaves, structure = result_leaves(result, name, here())
            traced = trace.traced([y for y in leaves if y is not None])
        if traced.graph.cuts_runs:
            _refuse_cuts(traced)
        if trace.created and outer.is_top_level:  # once more, now that the Variables exist
            return run(is_first=False)
        return Region(name, traced, Results(structure, leaves))

    return restored(run)


def _refuse_cuts(traced: Traced) -> NoReturn:
    cut = next(node for node in traced.graph.nodes if node.op.cuts_runs)
    if not cut.op.has_effects:
        fail(
            TraceError,
            f"{traced.graph.name} computes a size that only the run knows, and what branches and "
            "loops of a graph compute has the same shape in every run",
            source=cut.source,
            fix="compute it before, or keep all elements and a mask: tg.where(mask, x, 0)",
        )
    place = cut.source
    fail(
        TraceError,
        f"{traced.graph.name} prints or calls Python, which no branch or loop of a graph can do",
        source=place,
        fix="return the values, and print them behind it",
    )


def with_names(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, for whose arguments, or for the tensors in them, there are names that its
    parameters do not have."""
    function.names_of_tensors = names  # type: ignore[attr-defined]
    return function


def names_of_parameters(function: Callable[..., Any], counts: Sequence[int]) -> list[str | None]:
    """Names for the tensors that a function is given, each argument of which holds so many: those
    of its parameters, with a number where one argument holds several."""
    told = getattr(function, "names_of_tensors", ())
    if len(told) == sum(counts):
        return [*told]
    parameters = told if len(told) == len(counts) else _parameters(function)
    names: list[str | None] = []
    for parameter, count in itertools.zip_longest(parameters[: len(counts)], counts):
        names += [None] * count if parameter is None else numbered(parameter, count)
    return names


def numbered(name: str, count: int) -> list[str]:
    """A name for each of so many tensors that have one name together."""
    return [name] if count == 1 else [f"{name}_{k}" for k in range(count)]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        found = inspect.signature(function).parameters.values()
        return [x.name for x in found if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):  # some functions of C do not say
        return []


def check_callable(name: str, what: str, function: Any) -> None:
    """Raises TraceError for an argument that is no function."""
    if not callable(function):
        fail(
            TraceError,
            f"{name}: {what} is {kind_of(function)}: {shown(function)}",
            fix="give a function, such as lambda: x for a branch and lambda x: x + 1 for a body",
        )


class Shared:
    """What several regions share: the same inputs behind their arguments, the same outputs behind
    their results."""

    def __init__(self, regions: Sequence[Region]) -> None:
        traces = [region.traced for region in regions]
        by_identity = {id(v): v for traced in traces for v in traced.variables}
        self.variables: list[Variable] = [*by_identity.values()]
        assigned = {id(traced.variables[i]) for traced in traces for i in traced.assigned}
        #: Those that a region assigns, in the order of `variables`, and those that none does.
        self.assigned = [v for v in self.variables if id(v) in assigned]
        self.read_only = [v for v in self.variables if id(v) not in assigned]
        self._names = {
            id(v): x.name
            for traced in traces
            for v, x in zip(traced.variables, traced.graph.inputs[traced.argument_count :])
        }
        self.captures = [*dict.fromkeys(x for traced in traces for x in traced.captures)]
        self.checks: list[tuple[Traced, int, CheckReport, tuple[TensorType, ...]]] = []
        for traced in traces:
            place = traced.first_check
            for report in traced.checks:
                end = place + 1 + report.operand_count
                types = traced.graph.output_types[place:end]
                self.checks.append((traced, place, report, types))
                place = end

    @property
    def reports(self) -> list[CheckReport]:
        return [report for _, _, report, _ in self.checks]

    @property
    def check_types(self) -> list[TensorType]:
        return [type for *_, types in self.checks for type in types]

    def passed_checks(self) -> list[Tensor]:
        """What stands for checks that were not made: they hold."""
        return [full(k == 0, type) for *_, types in self.checks for k, type in enumerate(types)]

    def run(
        self,
        region: Region,
        arguments: Sequence[Tensor],
        values: dict[int, Tensor],
        captured: dict[Tensor, Tensor],
    ) -> tuple[list[Tensor], dict[int, Tensor], list[Tensor]]:
        """Appends the nodes of a region: its results, the values of all variables behind it, and
        its checks among those of all regions. `values` has the variables by identity."""
        traced = region.traced
        graph = traced.graph
        given = [
            *arguments,
            *(values[id(v)] for v in traced.variables),
            *(captured[x] for x in traced.captures),
        ]
        env = dict(zip(graph.inputs, given, strict=True))
        replay(graph.nodes, env)
        outputs = [env[y] for y in graph.outputs]
        new = dict(values)
        for place, i in enumerate(traced.assigned, traced.result_count):
            new[id(traced.variables[i])] = outputs[place]
        checks: list[Tensor] = []
        for of, place, _, types in self.checks:
            if of is traced:
                checks += outputs[place : place + len(types)]
            else:
                checks += [full(k == 0, type) for k, type in enumerate(types)]
        return outputs[: traced.result_count], new, checks

    def placeholders(self, builder: Builder, variables: Iterable[Variable]) -> dict[int, Tensor]:
        """Inputs of a graph that stand for variables, by their identity."""
        found: dict[int, Tensor] = {}
        for variable in variables:
            name = self._names.get(id(variable))
            found[id(variable)] = builder.input(variable.tensor_type, name)
        return found

    def carried(self, states: dict[int, Tensor], handles: dict[int, Tensor]) -> dict[int, Tensor]:
        """The values of the variables that a loop assigns, from step to step: a read sends its
        cotangent to the variable, in whatever step it is, and none to what was assigned."""
        return {key: Read()(value, handles[key]) for key, value in states.items()}

    def captured(self, builder: Builder) -> dict[Tensor, Tensor]:
        """Inputs of a graph for what the regions use from outside."""
        return {x: builder.input(x.type, x.name) for x in self.captures}

    def reads(self, variables: Iterable[Variable]) -> list[Tensor]:
        return [variable.read_value() for variable in variables]


def finished(builder: Builder, outputs: Sequence[Tensor]) -> Graph:
    """The graph of a region; at top level the same as the last time, where nothing changed."""
    graph = simplify(builder.finish(outputs))
    return interned(graph) if current().is_top_level else graph


def appended(op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Appends a node of `op` to what is being built, for inputs from there or from outside."""
    return applied(op, current().admit_all(tuple(inputs)))


def take_on(shared: Shared, values: Sequence[Tensor]) -> None:
    """Takes on what a branch or a loop did: the values of the variables that it assigns, and its
    checks."""
    for variable, value in zip(shared.assigned, values, strict=False):
        variable.assign(value)
    rest = iter(values[len(shared.assigned) :])
    for report in shared.reports:
        pass_check_on(report, tuple(next(rest) for _ in range(1 + report.operand_count)))
