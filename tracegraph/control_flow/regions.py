"""Regions: Python functions traced as the branches and bodies of one op.

Whatever the functions capture becomes inputs of the op. Whatever they assign becomes outputs of
every region, so that a Variable assigned by one branch keeps its value in the other.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tracegraph import nest
from tracegraph.control.while_loop import COUNT
from tracegraph.control_passes.split_at_cuts import has_calls_that_see
from tracegraph.core.later import opened
from tracegraph.core.shapes import Dim, ShapeVariable, Size, is_one, same_shape
from tracegraph.core.source import Source, here, is_ours
from tracegraph.core.tensorshape import TensorShape, TensorSpec, shape_of
from tracegraph.core.types import TOKEN, TensorType
from tracegraph.errors import DTypeError, ShapeError, TraceError, fail, kind_of, shown
from tracegraph.ir.builder import Builder, current, operand_text, replay
from tracegraph.ir.intern import interned
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.effect import Load, Read, Store
from tracegraph.ops.shape import Reshape
from tracegraph.passes.simplify import dead_code, simplify
from tracegraph.passes.specialise import first_size_finder, names_chosen, names_in
from tracegraph.signatures.results import Results, result_leaves
from tracegraph.state.variable import Variable
from tracegraph.tensor_arrays.tensor_array import TensorArray
from tracegraph.tracing.trace import (
    CallTrace,
    CheckReport,
    NeedsTraceError,
    Trace,
    Traced,
    current_trace,
    pass_check_on,
    restored,
)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TracedRegion:
    """One traced function, and the structure of its result."""

    name: str
    traced: Traced
    results: Results
    #: Whether sizes in it may follow from values that it captured.
    reads_values: bool = False

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        return self.traced.graph.output_types[: self.traced.result_count]


def traced_region(
    name: str,
    function: Callable[..., Any],
    types: Sequence[TensorType] = (),
    names: Sequence[str | None] = (),
    convert: Callable[[Any], Any] = lambda result: result,
    is_repeated: bool = False,
    rows_of: Sequence[Tensor] = (),
    resizes: bool = False,
) -> TracedRegion:
    """The trace of `function`, called with arguments of `types`, under these names if any.
    `convert` is applied to its result while its trace is open. The last arguments are rows of the
    tensors `rows_of`; if the number of the row was asked for, it is one more argument.

    If it calls Python functions that may observe Variables, these are stored when it ends; if it
    `is_repeated`, they are read again when it begins. One that `resizes` its arguments is a program
    of its own, so it may find sizes.
    """
    pairs = [*itertools.zip_longest(types, names)]

    def run(begins_anew: bool, is_first: bool) -> TracedRegion:
        with CallTrace(name) as trace:
            trace.region, trace.is_step = here(), is_repeated
            if begins_anew:
                trace.forget_state()
            outer = trace.outer
            if isinstance(outer, Trace):
                trace.paths = outer.paths
            if outer.is_top_level:
                trace.what, trace.may_create = "a branch or a loop", is_first
            given = [trace.argument(*pair) for pair in pairs]
            trace.rows.update(zip(given[len(given) - len(rows_of) :], rows_of, strict=True))
            result = convert(function(*given))
            leaves, structure = result_leaves(result, name, here())
            if trace.has_shown_state:
                trace.store_state()
            traced = trace.traced([y for y in leaves if y is not None])
        if is_repeated and not resizes:
            traced = _with_fixed_sizes(traced)
        if trace.created and outer.is_top_level:  # again, now that the Variables exist
            return run(begins_anew, False)
        if trace.reads_values and not outer.is_top_level:
            outer.reads_values = True
        return TracedRegion(name, traced, Results(structure, leaves), trace.reads_values)

    def run_as_often_as_needed() -> TracedRegion:
        region = run(False, True)
        if is_repeated and has_calls_that_see(region.traced.graph):
            return run(True, True)
        return region

    return restored(run_as_often_as_needed)


class SizeOfStepError(TraceError, ShapeError):
    """A TraceError and ShapeError because the steps of a loop may have different sizes."""


def _with_fixed_sizes(traced: Traced) -> Traced:
    """A step of a loop, which is part of one program, so that sizes that it finds have their
    largest values. Refuses one whose largest value is not known, or does not do."""
    _refuse_resized_results(traced)
    if first_size_finder(traced.graph) is None:
        return traced
    graph = dead_code(traced.graph)  # what a loop returns may be computed after it
    sized = first_size_finder(graph)
    found = with_largest_sizes(graph)
    if isinstance(found, str):
        fail(
            SizeOfStepError,
            "a step of a loop computes a size that only the run knows, and what loops of a graph "
            f"compute has the same shape in every step; here {found}",
            source=None if sized is None else sized.source,
            fix="compute it before, or keep all elements and a mask: tg.where(mask, x, 0)",
        )
    return dataclasses.replace(traced, graph=found)


def _refuse_resized_results(traced: Traced) -> None:
    """Refuses a step that returns a size which a loop in it has changed."""
    names = names_in(traced.graph.output_types)
    loops = [node for node in traced.graph.nodes if node.op.is_loop]
    if found := next((x for x in loops if names & names_chosen(x)), None):
        fail(
            SizeOfStepError,
            "a step of a loop returns what a loop in it has given another size, and what loops of "
            "a graph compute has the same shape in every step",
            source=found.source,
            fix="give the outer loop shape_invariants too, or return what does not have that size",
        )


def with_largest_sizes(graph: Graph) -> Graph | str:
    """The graph, where each size that it finds has its largest value, or why it cannot."""
    # Few programs need it.
    return opened("tracegraph.padding.bounded_sizes").with_largest_sizes(graph)


#: Traces a call at top level and runs it immediately; `execution.execute` sets it.
_runners: list[Callable[[str, Callable[[], Any]], Any]] = []


def set_runner(run: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Called once, by the code that runs functions."""
    _runners[:] = [run]


def makes_effects(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates functions that build branches and loops: at top level, those with effects run at
    once."""

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except NeedsTraceError:
            return _runners[0](function.__name__, lambda: function(*args, **kwargs))

    return called


def with_names(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, with names for its arguments, or for the tensors in them, other than those of
    its parameters."""
    function.names_of_tensors = names  # type: ignore[attr-defined]
    return function


def names_of_parameters(function: Callable[..., Any], counts: Sequence[int]) -> list[str | None]:
    """Names for the tensors passed to a function, given how many each argument holds: the names of
    the parameters, numbered where one argument holds several."""
    told = getattr(function, "names_of_tensors", ())
    if len(told) == sum(counts):
        return [*told]
    parameters = told if len(told) == len(counts) else _parameters(function)
    names: list[str | None] = []
    for parameter, count in itertools.zip_longest(parameters[: len(counts)], counts):
        names += [None] * count if parameter is None else numbered(parameter, count)
    return names


def numbered(name: str, count: int) -> list[str]:
    """A distinct name for each of `count` tensors that share one name."""
    return [name] if count == 1 else [f"{name}_{k}" for k in range(count)]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        found = inspect.signature(function).parameters.values()
        return [x.name for x in found if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):  # some C functions have no signature
        return []


#: Converts Python's control flow in a function that is traced; `autograph.scope` sets it.
_converters: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = []


def set_converter(convert: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Called once, by the converter."""
    _converters[:] = [convert]


def as_region(name: str, what: str, function: Any) -> Callable[..., Any]:
    """A function that the user gives for a region, as it is traced. Raises TraceError for an
    argument that is not a function."""
    if not callable(function):
        fail(
            TraceError,
            f"{name}: {what} is {kind_of(function)}: {shown(function)}",
            fix="give a function, such as lambda: x for a branch and lambda x: x + 1 for a body",
        )
    return _converters[0](function)


def one_element(x: Tensor) -> Tensor:
    """A tensor, as a scalar if all its sizes are 1: TensorFlow takes that for one truth value too,
    and so does Python."""
    has_axes = isinstance(x.type.shape, tuple) and x.ndim > 0
    return Reshape(())(x) if has_axes and all(map(is_one, x.type.shape)) else x


def check_invariants(op: str, loop_vars: Any, invariants: Any) -> None:
    """Refuses an invalid shape, and a shape that its loop variable does not have; None stands for
    its own."""
    shapes = _flat_shapes(invariants)
    for shape in shapes:
        if shape is not None and not isinstance(shape, (TensorShape, TensorSpec)):
            fix = "give tg.TensorShape, such as tg.TensorShape([None, 2]), or tg.TensorSpec"
            fail(
                DTypeError, f"{op}: a shape invariant is {kind_of(shape)}: {shown(shape)}", fix=fix
            )
    leaves = nest.flatten(loop_vars)
    for leaf, shape in zip(leaves, shapes) if len(leaves) == len(shapes) else ():
        if shape is None:
            continue
        own = shape_of(as_tensor(leaf).type.shape)
        invariant = shape if isinstance(shape, TensorShape) else shape.shape
        if not isinstance(leaf, TensorArray) and not invariant.is_compatible_with(own):
            fact = f"{op}: a loop variable has shape {own}, and its invariant is {invariant}"
            fail(ShapeError, fact, fix="leave shape_invariants out")


def check_kept(
    invariants: Iterable[tuple[Any, Any]], before: Sequence[Any], after: Sequence[Any]
) -> None:
    """Raises ShapeError if a step gave a value of the state `before` a shape that its invariant, in
    a pair with that value, does not include."""
    shapes = {id(value): TensorShape(shape) for value, shape in invariants}
    for old, new in zip(before, after, strict=True):
        shape = shapes.get(id(old))
        if shape is None or shape.rank is None or not isinstance(new, Tensor):
            continue
        found = shape_of(new.type.shape)
        sizes = found.rank == shape.rank and zip(found, shape, strict=True)
        if not sizes or not all(own in (None, size) for size, own in sizes):
            fact = f"a state of a loop has shape {found} after a step, and its invariant is {shape}"
            fix = "keep the shape, or give None for the sizes that change"
            fail(ShapeError, fact, source=here(), operands=[operand_text(new)], fix=fix)


class ResizedState(ShapeError):
    """A ShapeError because a step changes the shape of a state."""


def open_types(
    loop_vars: Any, types: Sequence[TensorType], invariants: Any
) -> tuple[list[TensorType], frozenset[str]]:
    """The types of the states with a new size wherever an invariant leaves it open, and the names
    of these sizes."""
    leaves, _ = nest.flatten_structure(loop_vars, whole=TensorArray)
    shapes, names = _flat_shapes(invariants), set[str]()
    if len(shapes) != len(leaves):
        return [*types], frozenset()

    def opened(type: TensorType, shape: Any) -> TensorType:
        shape = shape if isinstance(shape, TensorShape) else shape.shape
        if isinstance(type.shape, ShapeVariable):
            return type
        new = [current().new_size_name() for _ in type.shape]
        kept = [*type.shape] if shape.rank is None else [*shape]
        is_open = [shape.rank is None or size is None for size in kept]
        names.update(name for name, has in zip(new, is_open, strict=True) if has)
        rows = zip(type.shape, new, is_open, strict=True)
        return type.with_shape(tuple(Dim.named(name) if has else n for n, name, has in rows))

    rest, found = iter(types), list[TensorType]()
    for leaf, shape in zip(leaves, shapes, strict=True):
        own = [*itertools.islice(rest, len(nest.flatten_structure(leaf)[0]))]
        is_fixed = shape is None or isinstance(leaf, TensorArray)
        found += own if is_fixed else [opened(type, shape) for type in own]
    return found, frozenset(names)


def changes(size: Size, changing: Set[str]) -> bool:
    """Whether a size of a state is one of those that are `changing`."""
    return isinstance(size, Dim) and size.name in changing


def fits_state(found: TensorType, type: TensorType, changing: Set[str]) -> bool:
    """Whether a step may turn a state of a type into what it found, if only these sizes may
    change."""
    one, other = found.shape, type.shape
    if not changing:
        return same_shape(one, other) is not None
    if isinstance(one, ShapeVariable) or len(one) != len(other):
        return one == other
    return all(a == b or changes(b, changing) for a, b in zip(one, other, strict=True))


def leaves_open(invariants: Any) -> bool:
    """Whether shape invariants leave a size open."""
    given = [x for x in _flat_shapes(invariants) if x is not None]
    shapes = [TensorShape(getattr(x, "shape", x)) for x in given]
    return any(shape.rank is None or None in shape.as_list() for shape in shapes)


def _flat_shapes(invariants: Any) -> list[Any]:
    if isinstance(invariants, (list, tuple)) and not isinstance(invariants, TensorShape):
        return [shape for part in invariants for shape in _flat_shapes(part)]
    if isinstance(invariants, dict):
        return [shape for key in sorted(invariants) for shape in _flat_shapes(invariants[key])]
    return [invariants]


def telling(form: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function as the public function `form` traces it: it warns of what it sets outside
    of itself, which happens once."""
    if is_ours(getattr(getattr(function, "__code__", None), "co_filename", "")):
        return function
    # The first function that is traced opens it.
    return opened("tracegraph.control_flow.set_while_tracing").telling(form, function)


#: The key of the token in tables that hold the values of Variables by identity.
_TOKEN = 0


class SharedValues:
    """What several regions share: equal inputs after their arguments, and equal outputs after their
    results. Checks in a `loop` take its step as one more operand."""

    def __init__(self, regions: Sequence[TracedRegion], loop: Source | None = None) -> None:
        traces = [region.traced for region in regions]
        by_identity = {id(v): v for traced in traces for v in traced.variables}
        self.variables: list[Variable] = [*by_identity.values()]
        self.captures = [*dict.fromkeys(x for traced in traces for x in traced.captures)]
        self.has_token = any(traced.has_token for traced in traces)
        self._shows_state = any(has_calls_that_see(traced.graph) for traced in traces)
        self._has_step = loop is not None
        trace = current_trace()
        #: Whether each region stores what it assigns, since one of them calls a Python function
        #: that may assign the same Variables.
        self._stores = self._shows_state and trace is not None and trace.orders_state
        handed_on = () if self._stores else traces
        assigned = {id(traced.variables[i]) for traced in handed_on for i in traced.assigned}
        #: Those whose values regions pass on, in the order of `variables`, and the others.
        self.assigned = [v for v in self.variables if id(v) in assigned]
        self.read_only = [v for v in self.variables if id(v) not in assigned]
        self._names = {
            id(v): x.name
            for traced in traces
            for v, x in zip(traced.variables, traced.graph.inputs[traced.argument_count :])
        }
        if self.has_token:
            self._prepare()
        self.checks: list[tuple[Traced, int, CheckReport, tuple[TensorType, ...]]] = []
        for traced in traces:
            place = traced.first_check
            for report in traced.checks:
                end = place + 1 + report.operand_count
                types = traced.graph.output_types[place:end]
                if loop is not None:
                    report, types = report.inside(loop), (*types, COUNT)
                self.checks.append((traced, place, report, types))
                place = end

    def _prepare(self) -> None:
        """Prepares the current trace for the effects of the regions."""
        trace = current_trace()
        if trace is None:
            raise NeedsTraceError
        if self._shows_state:
            trace.store_state()
        trace.end_where_checks_failed()

    @property
    def state_types(self) -> list[TensorType]:
        """The types of what a region passes on besides its results: assigned Variables, the
        token."""
        return [*(v.tensor_type for v in self.assigned), *[TOKEN] * self.has_token]

    def states_before(self) -> list[Tensor]:
        """The states passed to the first region."""
        trace = current_trace()
        token = [trace.take_token()] if self.has_token and trace is not None else []
        return [*self.reads(self.assigned), *token]

    def states_of(self, values: Mapping[int, Tensor]) -> list[Tensor]:
        """The states that a region passes on, from its values."""
        token = [values[_TOKEN]] if self.has_token else []
        return [*(values[id(v)] for v in self.assigned), *token]

    def placeholders_of_states(self, builder: Builder) -> dict[int, Tensor]:
        """Graph inputs for the states passed to a region."""
        found = self.placeholders(builder, self.assigned)
        if self.has_token:
            found[_TOKEN] = builder.input(TOKEN, "token")
        return found

    @property
    def reports(self) -> list[CheckReport]:
        return [report for _, _, report, _ in self.checks]

    @property
    def check_types(self) -> list[TensorType]:
        return [type for *_, types in self.checks for type in types]

    def passed_checks(self) -> list[Tensor]:
        """Placeholders for checks that were not made: they hold."""
        return [full(k == 0, type) for *_, types in self.checks for k, type in enumerate(types)]

    def run(
        self,
        region: TracedRegion,
        arguments: Sequence[Tensor],
        values: dict[int, Tensor],
        captured: dict[Tensor, Tensor],
        step: Tensor | None = None,
    ) -> tuple[list[Tensor], dict[int, Tensor], list[Tensor]]:
        """Appends the nodes of a region: its results, the values of all variables after it, and its
        checks among those of all regions. `values` maps variables by identity, `step` is that of
        the loop."""
        traced = region.traced
        graph = traced.graph
        given = [
            *arguments,
            *(self._value_before(traced, v, values) for v in traced.variables),
            *(captured[x] for x in traced.captures),
            *([values[_TOKEN]] if traced.has_token else []),
        ]
        env = dict(zip(graph.inputs, given, strict=True))
        replay(graph.nodes, env)
        outputs = [env[y] for y in graph.outputs]
        new = dict(values)
        if traced.has_token:
            new[_TOKEN] = outputs[traced.first_check - 1]
        for place, i in enumerate(traced.assigned, traced.result_count):
            key = id(traced.variables[i])
            if self._stores:
                new[_TOKEN] = Store()(new[_TOKEN], values[key], outputs[place])
            else:
                new[key] = outputs[place]
        checks: list[Tensor] = []
        for of, place, _, types in self.checks:
            if of is traced:
                made = outputs[place : place + len(types) - self._has_step]
                checks += made if step is None else [*made, step]
            else:
                checks += [full(k == 0, type) for k, type in enumerate(types)]
        return outputs[: traced.result_count], new, checks

    def _value_before(
        self, traced: Traced, variable: Variable, values: Mapping[int, Tensor]
    ) -> Tensor:
        """A Variable's value at the start of a region. A region that stores reads it anew: an
        earlier step, another thread or a signal handler may have assigned it after the read
        outside. A step that calls Python functions is traced this way."""
        value = values[id(variable)]
        reads_by_itself = self._has_step and has_calls_that_see(traced.graph)
        if self._stores and not reads_by_itself:
            return Load()(values[_TOKEN], value)
        return value

    def placeholders(self, builder: Builder, variables: Iterable[Variable]) -> dict[int, Tensor]:
        """Graph inputs that represent variables, by identity."""
        found: dict[int, Tensor] = {}
        for variable in variables:
            name = self._names.get(id(variable))
            found[id(variable)] = builder.input(variable.tensor_type, name)
        return found

    def carried(self, states: dict[int, Tensor], handles: dict[int, Tensor]) -> dict[int, Tensor]:
        """The values of the variables that a loop assigns, from step to step: a read sends its
        cotangent to the variable, in any step, and none to what was assigned."""
        return {
            key: value if key == _TOKEN else Read()(value, handles[key])
            for key, value in states.items()
        }

    def take_on_effects(self, tokens: Sequence[Tensor]) -> None:
        """Continues from the token after the regions, if there is one: they performed effects."""
        trace = current_trace()
        if tokens and trace is not None:
            if self._shows_state:
                trace.forget_state()
            trace.give_token(*tokens)

    def captured(self, builder: Builder) -> dict[Tensor, Tensor]:
        """Graph inputs for what the regions capture."""
        return {x: builder.input(x.type, x.name) for x in self.captures}

    def reads(self, variables: Iterable[Variable]) -> list[Tensor]:
        return [variable.read_value() for variable in variables]


def finished(builder: Builder, outputs: Sequence[Tensor]) -> Graph:
    """The graph of a region. It ends the region, so the builder of what is around is current."""
    return known_body(simplify(builder.finish(outputs)))


def known_body(graph: Graph) -> Graph:
    """At top level the previous graph, if nothing changed, so that equal code compiles once."""
    return interned(graph) if current().is_top_level else graph


def take_on(shared: SharedValues, values: Sequence[Tensor]) -> None:
    """Takes over the effects of a branch or a loop, the values of the variables that it assigns,
    and its checks."""
    count = len(shared.assigned)
    shared.take_on_effects(values[count : count + shared.has_token])
    for variable, value in zip(shared.assigned, values, strict=False):
        variable.assign(value)
    rest = iter(values[count + shared.has_token :])
    for report in shared.reports:
        pass_check_on(report, tuple(next(rest) for _ in range(1 + report.operand_count)))
