"""Trace: the builder of a function being traced. It turns captures, state and effects into data."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np

from tracegraph.control_passes.check_numerics import MESSAGE, Site, watched
from tracegraph.core.recursion_limit import headroom, recursion_limit
from tracegraph.core.shapes import dim_names
from tracegraph.core.source import Source, here, is_of_us, place_of_thread, sourced
from tracegraph.core.tensorshape import AskedSize
from tracegraph.core.types import TOKEN, TensorType, int32, type_of_array
from tracegraph.eager import backend
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import InvalidArgumentError, NumericsError, SignatureError, TraceError, fail
from tracegraph.ir.builder import (
    Builder,
    at_top_level,
    builder_of_thread,
    current,
    is_aside,
    refuse_leaked,
)
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import RANDOM_STATE, Graph, Tensor, host_tensor
from tracegraph.operands.conversion import broadcast
from tracegraph.ops.broadcast import holder_of_sizes
from tracegraph.ops.constant import Constant
from tracegraph.ops.effect import READ, STOP, Check, HostCall, Load, Store
from tracegraph.ops.elementwise import SELECT, LogicalAnd
from tracegraph.ops.shape import EnsureShape
from tracegraph.passes.specialise import bound_names, names_chosen, unbound_names

if TYPE_CHECKING:
    from tracegraph.state.variable import Variable


@dataclasses.dataclass
class VariableState:
    """A variable within a trace: the tensor that represents it, and its current value."""

    handle: Tensor
    #: None after a call of a Python function that may have assigned it, until it is read again.
    value: Tensor | None
    #: Whether the variable gets this value at the end.
    is_assigned: bool = False


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What a failed check reports; in the outputs, `operand_count` operands follow its flag.

    For a range, the operands are the smallest and the largest number, and their lower and upper
    bounds; the number out of range replaces {} in the message. Where `sites` are watched, the
    operands are the number of the failed site and the steps of the loops around it. The last
    operands are the steps of the `loops` around the check itself, innermost first.
    """

    message: str
    source: Source
    operand_count: int
    fix: str = ""
    is_range: bool = False
    sites: tuple[Site, ...] = ()
    loops: tuple[Source, ...] = ()

    def inside(self, loop: Source) -> CheckReport:
        """The same check in a loop, whose step becomes one more operand."""
        count, loops = self.operand_count + 1, (*self.loops, loop)
        return dataclasses.replace(self, operand_count=count, loops=loops)

    def fail(self, operands: Sequence[Any]) -> NoReturn:
        """Raises the error of the check for these operand values."""
        arrays = [*map(backend.on_host, operands)]
        first = len(arrays) - len(self.loops)
        arrays, steps = arrays[:first], arrays[first:]
        around = [*zip(reversed(steps), reversed(self.loops), strict=True)]
        if self.sites:
            site, inside = self._failed_site(arrays)
            rest = {"operands": site.operands, "fix": self.fix}
            fact = site.fact + steps_text([*around, *inside])
            fail(NumericsError, fact, source=site.source, **rest)
        fact = self.message
        if self.is_range:
            fact, arrays = fact.replace("{}", str(_out_of_range(*arrays))), []
        shown = [np.array2string(x, threshold=20) for x in arrays]
        fact += steps_text(around)
        fail(InvalidArgumentError, fact, source=self.source, operands=shown, fix=self.fix)

    def _failed_site(
        self, arrays: Sequence[np.ndarray]
    ) -> tuple[Site, list[tuple[np.ndarray, Source]]]:
        """The first site that failed, and the step of each watched loop around it."""
        numbers, *steps = (x.ravel() for x in np.broadcast_arrays(*arrays))
        place = int(np.argmin(numbers)) if numbers.size else 0
        last = len(self.sites) - 1  # a loaded graph may return any number
        site = self.sites[min(max(int(numbers[place]), 0), last) if numbers.size else last]
        pairs = zip(steps, site.loops) if numbers.size else ()
        return site, [(step[place], loop) for step, loop in pairs]


def steps_text(steps: Sequence[tuple[np.ndarray, Source]]) -> str:
    """In which step of which loop something failed; a parallel loop has one for each iteration."""
    told = [f"step {np.array2string(step)} of the loop at {loop}" for step, loop in steps]
    return f"; in {' and '.join(told)}, counted from 0" if told else ""


def _out_of_range(
    smallest: np.ndarray, largest: np.ndarray, low: np.ndarray, high: np.ndarray
) -> int:
    """The first number that is out of range; a parallel loop has one of each per iteration."""
    smallest, largest, low, high = np.broadcast_arrays(smallest, largest, low, high)
    wrong = [*smallest[smallest < low].ravel(), *largest[largest > high].ravel()]
    return int(wrong[0]) if wrong else 0


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function body.

    Inputs of `graph`: arguments, handles of `variables`, `captures`, a token if `has_token`.
    Outputs: results, new values of `assigned` (positions in `variables`), the token, and for
    each check a flag and its operands.
    """

    graph: Graph
    argument_count: int
    result_count: int
    variables: tuple[Variable, ...]
    assigned: tuple[int, ...]
    captures: tuple[Tensor, ...]
    has_token: bool
    checks: tuple[CheckReport, ...]

    def __post_init__(self) -> None:
        counts = {
            "variable": len(self.variables),
            "captured": len(self.captures),
            "token": self.has_token,
        }
        roles = (role for role, count in counts.items() for _ in range(count))
        for x, role in zip(self.graph.inputs[self.argument_count :], roles):
            x.role = role
        for x, variable in zip(self.graph.inputs[self.argument_count :], self.variables):
            x.role = RANDOM_STATE if variable.is_random_state else x.role

    @property
    def has_effects(self) -> bool:
        """Whether a run does more than compute, or finds sizes; it is then several programs."""
        return self.has_token or self.graph.cuts_runs

    @property
    def first_check(self) -> int:
        """The position of the first flag among the outputs."""
        return self.result_count + len(self.assigned) + self.has_token

    @property
    def assigned_places(self) -> list[tuple[int, int]]:
        """For each assigned variable: the positions of its new value among the outputs and of its
        old one among the inputs."""
        return [
            (self.result_count + k, self.argument_count + i) for k, i in enumerate(self.assigned)
        ]


def report_first_failure(reports: Iterable[CheckReport], values: Iterator[Any]) -> None:
    """Raises the error of the first check whose flag is false. `values` are the flags, each
    followed by its check's operands; everything after a false flag may be None."""
    for report in reports:
        flag, *operands = itertools.islice(values, 1 + report.operand_count)
        if not bool(flag):
            report.fail(operands)


_NUMERICS_FIX = "keep the operands where the result is finite; tg.print shows their values"


def with_checked_numerics(traced: Traced) -> Traced:
    """The body with one more check: that no node makes nan or infinity from finite numbers. If one
    does, no Variable is assigned."""
    graph, sites = watched(traced.graph, traced.assigned_places)
    if not sites:
        return traced
    count = 1 + max(len(site.loops) for site in sites)
    report = CheckReport(MESSAGE, sites[0].source, count, _NUMERICS_FIX, sites=sites)
    return dataclasses.replace(traced, graph=graph, checks=(*traced.checks, report))


class Trace(Builder):
    """Appends the nodes of a function body. `outer` is the builder that calls the function."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.outer = outer = current()
        self.arguments: list[Tensor] = []
        #: The arguments of the call being traced, if it is a call.
        self.actual: list[Tensor] | None = None
        #: If it is the body of a parallel loop, its rows, of which one is being traced: `actual`
        #: has those of all, stacked.
        self.parallel_rows: Any = None
        #: Arguments that are rows, one for each step of a loop, with the tensors that they are of.
        self.rows: dict[Tensor, Tensor] = {}
        #: Arguments that are copies of tensors, since the trace serves one call alone.
        self.copies: dict[Tensor, Tensor] = {}
        #: The number of the row in its tensor, if anything asked for it.
        self._row_number: Tensor | None = None
        self.captures: dict[Tensor, Tensor] = {}
        self.states: dict[int, VariableState] = {}
        self.variables: list[Variable] = []
        self.token_input: Tensor | None = None
        self.token: Tensor | None = None
        self.checks: list[tuple[CheckReport, tuple[Tensor, ...]]] = []
        self.all_hold: Tensor | None = None
        #: The condition that must hold for a run to continue: see `end_where_checks_failed`.
        self._ends_without: Tensor | None = None
        #: Whether unknown indices and divisors are checked in every run; at top level, where all
        #: values are known, they are.
        self.checks_bounds: bool = outer.is_top_level or getattr(outer, "checks_bounds", False)
        #: One object for a trace and all traces inside it.
        self.root: Any = outer.root if isinstance(outer, Trace) else object()
        #: By identity, the containers of Python's that choices made, with those that they may be;
        #: one table for a trace and all traces inside it.
        self.joined: dict[int, Any] = outer.joined if isinstance(outer, Trace) else {}
        #: Whether Python's control flow in the user's functions becomes nodes.
        self.converts: bool = getattr(outer, "converts", True)
        #: Sizes that Python was told differ while they were unknown, and where.
        self.apart: dict[tuple[Any, Any], Source] = {}
        #: The user's names for the objects that the function reaches.
        self.paths: Any = None
        #: Variables that no known object holds, with their inputs.
        self._unreached: list[tuple[Variable, Tensor]] = []
        #: The exception that has left a branch or a loop inside, which of the two, and its line. If
        #: the trace is finished after all, it was caught here.
        self.escaped: tuple[Exception, str, Source] | None = None
        #: What is being traced, for the error about a Variable that it must not create.
        self.what = "a @tg.function"
        #: The line of the parallel loop, if it is the body of one.
        self.parallel: Source | None = None
        #: The line of the branch or the loop, if it is a region of one.
        self.region: Source | None = None
        #: Whether that is a step of a loop, or its condition.
        self.is_step = False
        #: The Variables that were created, by weak references, and the lines that did so.
        self.created: list[tuple[weakref.ref[Any], Source]] = []
        self.may_create = False
        #: Whether regions store what they assign, if one of them calls a Python function; not in a
        #: parallel loop, which assigns only the states of random generators.
        self.orders_state = getattr(outer, "orders_state", True)
        self._has_shown_state = False

    def __enter__(self) -> Trace:
        _open.traces.append(self)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        _open.traces.pop()
        self.is_open = False
        is_left = exception[1:2] not in ((), (None,))
        if is_left and self.escaped is not None and isinstance(self.outer, Trace):
            self.outer.escaped = self.escaped  # the code around may catch it as well

    def knows_sizes(self, names: Set[str]) -> bool:
        """Whether a run knows the open sizes of these names: from its inputs, or by finding
        them."""
        unknown = names - {name for x in self.inputs for name in bound_names(x.type)}
        return not unknown or unknown <= set().union(*map(names_chosen, self.nodes))

    def has_sizes(self, names: Set[str]) -> bool:
        """Whether this trace, or one around it, knows all the open sizes of these names."""
        for trace in (self, *self._around()):
            names = {name for name in names if not trace.knows_sizes({name})}
        return not names

    def _around(self) -> Iterator[Trace]:
        """The enclosing traces, the innermost first."""
        builder = self.outer
        while isinstance(builder, Trace):
            yield builder
            builder = builder.outer

    def sizes_around(self) -> set[str]:
        """The names of the open sizes that the inputs of enclosing traces have."""
        inputs = (x for trace in self._around() for x in trace.inputs)
        return set().union(*(bound_names(x.type) for x in inputs if not x.type.is_static))

    def argument(self, type: Any, name: str | None) -> Tensor:
        tensor = self.input(type, name)
        self.arguments.append(tensor)
        return tensor

    def number_of_row(self) -> Tensor:
        """Which row is being traced: one more argument, of the shape ()."""
        if self._row_number is None:
            self._row_number = self.argument(TensorType(int32, ()), "row")
            if self.actual is not None:  # in a parallel loop, whose rows these are
                numbers = np.arange(self.parallel_rows.count, dtype=np.int32)
                self.actual.append(host_tensor(type_of_array(numbers), numbers))
        return self._row_number

    def create_as_outer(self) -> None:
        """Allows creating Variables if the enclosing function may create them: that is traced
        again, and so is this."""
        if isinstance(self.outer, Trace):
            self.what, self.created = self.outer.what, self.outer.created
            self.may_create = self.outer.may_create

    # Captures.

    def admit(self, tensor: Tensor) -> Tensor:
        """Turns an outside tensor into an input; the same tensor always becomes the same input."""
        found = self.captures.get(tensor)
        if found is None:
            if not self._is_outside(tensor):
                refuse_leaked(tensor)
            found = self.captures[tensor] = self.input(tensor.type, self._name_of(tensor))
            with contextlib.suppress(AttributeError):  # few are probabilities of an activation
                found._logits = tensor._logits
        return found

    def take_sizes(self) -> None:
        """Gives values to open sizes that come from the caller and that no input has by itself,
        such as n where an argument has n-1: through an extra input without elements that has
        them."""
        if isinstance(self.outer, Trace):
            names = unbound_names(self.inputs, self.nodes)
            if names:
                self.admit(holder_of_sizes(names, self.outer.add))

    def captured(self, x: Tensor) -> Tensor | None:
        return next((outer for outer, own in self.captures.items() if own is x), None)

    def _name_of(self, tensor: Tensor) -> str | None:
        return tensor.name or self._path_of(tensor) or "captured"

    def _path_of(self, thing: Any) -> str | None:
        return None if self.paths is None else self.paths.of(thing)

    def _name_handles(self) -> None:
        """Names the Variables that nothing held when they were first seen, such as those that an
        optimizer creates in its first step, by searching all objects once more."""
        if self._unreached and self.paths is not None:
            self.paths.look_again()
        for variable, handle in self._unreached:
            handle.name = self._path_of(variable) or variable.base_name

    def may_use(self, tensor: Tensor) -> bool:
        """Whether the tensor is of this trace, or of one around it, or a value."""
        node = tensor.node
        return (node is not None and node.builder is self) or self._is_outside(tensor)

    def _is_outside(self, tensor: Tensor) -> bool:
        node = tensor.node
        if node is None or (node.builder is not None and node.builder.is_top_level):
            return True
        builder = self.outer
        while isinstance(builder, Trace):
            if node.builder is builder:
                return True
            builder = builder.outer
        return False

    # State.

    def state(self, variable: Variable) -> VariableState:
        found = self.states.get(id(variable))
        if found is None:
            path = self._path_of(variable)
            handle = self.input(variable.tensor_type, path or variable.base_name)
            if path is None:
                self._unreached.append((variable, handle))
            value = None if self._has_shown_state and self._is_shown(variable) else handle
            found = self.states[id(variable)] = VariableState(handle, value)
            self.variables.append(variable)
        return found

    def value_of(self, variable: Variable) -> Tensor:
        """The value of the variable at this point."""
        state = self.state(variable)
        if state.value is None:
            (state.value,) = self.add(Load(), (self.take_token(), state.handle))
        return state.value

    def read(self, variable: Variable) -> Tensor:
        return READ(self.value_of(variable), self.state(variable).handle)

    def store_state(self) -> None:
        """Stores the values assigned to variables so far, since a Python function called next may
        read them. What enclosing functions assigned is stored first."""
        if isinstance(self.outer, Trace):
            self.outer.store_state()
            self.outer.end_where_checks_failed()
        for variable in self.variables:
            state = self.states[id(variable)]
            if state.is_assigned and state.value is not None and self._is_shown(variable):
                inputs = (self.take_token(), state.handle, state.value)
                self.give_token(*self.add(Store(), inputs))
                state.is_assigned = False

    def forget_state(self) -> None:
        """Makes variables be reread: a Python function may have assigned them."""
        self._has_shown_state = True
        for variable in filter(self._is_shown, self.variables):
            self.states[id(variable)].value = None

    def _is_shown(self, variable: Variable) -> bool:
        """Whether a Python function sees its value, and may assign it: in a parallel loop, each
        iteration has its own state of a random generator."""
        return self.orders_state or not variable.is_random_state

    @property
    def has_shown_state(self) -> bool:
        """Whether a Python function was called that may have observed Variables."""
        return self._has_shown_state

    def end_where_checks_failed(self) -> None:
        """Makes a run end at this point if an earlier check failed: the effects of a body that is
        called next know nothing of that check."""
        if self.all_hold is None or self.all_hold is self._ends_without:
            return
        self._ends_without = self.all_hold
        self.store_state()
        inputs = (self.take_token(), self.all_hold)
        self.give_token(*self.add(HostCall(STOP, (), is_gated=True), inputs))

    def assign(self, variable: Variable, value: Tensor) -> None:
        """Makes later reads return `value`; after a check that may fail, only if the check
        holds."""
        state = self.state(variable)
        (value,) = self.admit_all((value,))
        if self.all_hold is not None:
            holds = broadcast(self.all_hold, value.type.shape)
            value = SELECT(holds, value, self.value_of(variable))
        state.value = value
        state.is_assigned = True

    # Effects.

    def take_token(self) -> Tensor:
        if self.token is None:
            self.token = self.token_input = self.input(TOKEN, "token")
        return self.token

    def give_token(self, token: Tensor) -> None:
        self.token = token

    def check(
        self,
        condition: Tensor,
        message: str,
        operands: Sequence[Tensor],
        fix: str = "",
        is_range: bool = False,
    ) -> None:
        """Adds a check to the outputs of the program; see `CheckReport`."""
        operands = self.admit_all(tuple(operands))
        flag = Check(message)(condition, *operands)
        report = CheckReport(message, here(), len(operands), fix, is_range)
        self.add_check(report, (flag, *operands))

    def add_check(self, report: CheckReport, values: tuple[Tensor, ...]) -> None:
        self.checks.append((report, values))
        flag = values[0]
        self.all_hold = flag if self.all_hold is None else LogicalAnd()(self.all_hold, flag)

    # The end.

    def _with_size_checks(self, values: list[Tensor]) -> list[Tensor]:
        """The values, with the first one conditional on a run-time check of what Python was
        told."""
        for (left, right), source in self.apart.items():
            with sourced(source):
                if not values:
                    fail(
                        TraceError,
                        f"{self.name} asks whether the size {left} is {right}, which is not known "
                        "while tracing, and returns nothing by which a run could check the answer",
                        source=source,
                        fix="give the size in the TensorSpec, or return a tensor",
                    )
                values[0] = EnsureShape(values[0].type.shape, (left, right))(values[0])
        return values

    def traced(self, results: Sequence[Tensor]) -> Traced:
        """The finished body. The trace must not be used afterwards."""
        if self.escaped is not None:
            _refuse_caught(*self.escaped)
        results = self.admit_all(tuple(results))
        self._name_handles()
        states = [self.states[id(v)] for v in self.variables]
        assigned = tuple(i for i, state in enumerate(states) if state.is_assigned)
        tokens = [self.token] if self.token is not None else []
        checked = [value for _, values in self.checks for value in values]
        inputs = [
            *self.arguments,
            *(state.handle for state in states),
            *self.captures.values(),
            *([self.token_input] if self.token_input is not None else []),
        ]
        new = [state.value for state in states if state.is_assigned and state.value is not None]
        values = self._with_size_checks([*results, *new])
        outputs = [*values, *tokens, *checked]
        graph = Graph(self.name, tuple(inputs), tuple(self.nodes), tuple(outputs))
        return Traced(
            graph=graph,
            argument_count=len(self.arguments),
            result_count=len(results),
            variables=tuple(self.variables),
            assigned=assigned,
            captures=tuple(self.captures),
            has_token=bool(tokens),
            checks=tuple(report for report, _ in self.checks),
        )


class CallTrace(Trace):
    """The trace of one call. Code called repeatedly at top level captures the numbers and arrays
    that it uses, as the top level itself does: when they change, the graph stays the same.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        outer = self.outer
        self._is_lifting: bool = outer.is_top_level or (
            isinstance(outer, CallTrace) and outer._is_lifting
        )
        self.create_as_outer()

    def add(
        self, op: Op, inputs: tuple[Tensor, ...], source: Source | None = None
    ) -> tuple[Tensor, ...]:
        if self._is_lifting and type(op) is Constant and self.reuse is None and _varies(op.value):
            return (self.admit(host_tensor(op.infer(), op.value)),)
        return super().add(op, inputs, source)

    def traced(self, results: Sequence[Tensor]) -> Traced:
        self.take_sizes()
        return super().traced(results)


def _varies(value: np.ndarray) -> bool:
    """Whether a constant may change: integers are structure, and so are 0 and 1."""
    is_plain = not value.any() or (value.ndim == 0 and value in (1, -1))
    return type_of_array(value).dtype.is_differentiable and not is_plain


Function = TypeVar("Function", bound=Callable[..., Any])


@contextlib.contextmanager
def tries() -> Iterator[None]:
    """Around code of ours that may trace again what failed: if it succeeds, the trace forgets which
    errors have left statements inside."""
    trace = current_trace()
    noted = None if trace is None else trace.escaped
    yield
    if trace is not None:
        trace.escaped = noted


def notes_what_leaves(place: str) -> Callable[[Function], Function]:
    """Decorates a function that traces a branch or a loop: what is raised from there is raised
    whatever values the tensors have, so the trace around it ends with it even if it is caught."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            try:
                with tries():
                    return function(*args, **kwargs)
            except Exception as error:
                trace = current_trace()
                # Other exceptions of ours are for the statements around, which trace again.
                is_error = isinstance(error, (ValueError, TypeError, RuntimeError))
                if trace is not None and (is_error or not is_of_us(type(error))):
                    trace.escaped = error, place, here()
                raise

        return cast("Function", noting)

    return decorated


def _refuse_caught(error: Exception, place: str, source: Source) -> NoReturn:
    """Raises an error that the user's code has caught, or one about it."""
    if is_of_us(type(error)):
        raise error
    fail(
        TraceError,
        f"a {type(error).__name__} that leaves {place} at {source} was caught while tracing, where "
        "it is raised whatever value the tensor has",
        source=source,
        fix="let the branch or the loop set a name that is tested after it, or decide by a Python "
        "value",
    )


def current_trace() -> Trace | None:
    """The trace that this thread adds nodes to; None at top level."""
    builder = current()
    return builder if isinstance(builder, Trace) else None


def variables_created() -> int:
    """How many Variables the function that is being traced has created."""
    trace = current_trace()
    return 0 if trace is None else len(trace.created)


def has_joined() -> bool:
    """Whether a choice in the function that is being traced made a container of Python's."""
    trace = current_trace()
    return trace is not None and bool(trace.joined)


def effects_so_far() -> list[int]:
    """The identities of what the current trace has assigned, and of its last token: they are others
    after code that has effects."""
    trace = current_trace()
    if trace is None:
        return []
    assigned = (state.value for state in trace.states.values() if state.is_assigned)
    return [*map(id, (trace.token, *assigned))]


def is_in_step() -> bool:
    """Whether what is traced is part of a step of a loop, be it in a branch there."""
    trace = current()
    while isinstance(trace, Trace) and trace.region and not trace.is_step:
        trace = trace.outer
    return isinstance(trace, Trace) and trace.region is not None


def _note_apart(left: Any, right: Any) -> None:
    """Records in the innermost trace that has the sizes that they were assumed to differ."""
    names = dim_names(left) | dim_names(right)
    for trace in reversed(_open.traces):
        if trace is not None and trace.knows_sizes(names):
            trace.apart.setdefault((left, right), here())
            return


def _root() -> Any:
    """What the current trace has in common with those around it and inside it; None outside."""
    return getattr(current(), "root", None)


def _has_names(names: Set[str]) -> bool:
    trace = current_trace()
    return trace is None or trace.has_sizes(names)


AskedSize.note_apart = _note_apart
AskedSize.home = staticmethod(_root)
AskedSize.has_names = staticmethod(_has_names)


def executing_eagerly() -> bool:
    """Whether values can be read as soon as they are needed: true outside traced functions."""
    return current().is_top_level


class NeedsTraceError(Exception):
    """A branch or a loop at top level has effects, or runs to find a size, so it must be traced and
    run as a single call."""


class RecursionTraceError(TraceError, RecursionError):
    """A TraceError where Python raises RecursionError: calls are nested too deeply."""


T = TypeVar("T")


class _OpenTraces(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace | None] = []


_open = _OpenTraces()


def innermost_trace() -> Trace | None:
    """The trace in progress on this thread, even while it computes at top level; else None. Code
    that interrupts a trace is not part of it."""
    return _open.traces[-1] if _open.traces and not is_aside() else None


def variable_behind(handle: Tensor) -> Variable | None:
    """The Variable that an input of a trace in progress represents, if any."""
    for trace in filter(None, reversed(_open.traces)):
        for variable in trace.variables:
            if trace.states[id(variable)].handle is handle:
                return variable
    return None


def restored(run: Callable[[], T]) -> T:
    """The result of `run`, which traces; afterwards this thread's builder is the one from before,
    even if an interrupt struck in the exit of a context inside."""
    where, place = builder_of_thread(), place_of_thread()
    builder, source, depth = where.builder, place.source, len(_open.traces)
    try:
        with headroom():
            return run()
    except RecursionError as error:
        if isinstance(error, RecursionTraceError):
            raise
        fail(
            RecursionTraceError,
            f"Python's recursion limit of {recursion_limit()} was reached while tracing, "
            f"with {len(_open.traces) + 1} functions being traced one inside the other",
            fix="call the inner functions once before the outer ones, or use a loop in place of "
            "functions that call each other",
            cause=error,
        )
    finally:
        # Plain stores, which no interrupt can split.
        where.builder = builder
        place.source = source
        del _open.traces[depth:]


class init_scope(at_top_level):
    """A context that leaves all tracing: values are concrete, Variables may be created.

    >>> with tg.init_scope():
    ...     one = tg.constant(1.0).numpy()
    """

    def __enter__(self) -> None:
        _open.traces.append(None)
        super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        _open.traces.pop()


def refuse_creation(trace: Trace, source: Source | None = None) -> Any:
    """Raises the error for creating a Variable in a call that is not the first."""
    fail(
        SignatureError,
        f"{trace.what} may create Variables on its first call only, and this one is created on "
        "later calls too",
        source=source,
        fix="create it outside of the function, or keep it and create it `if self.v is None`",
    )


#: Tracing is rare: one trace at a time, so that concurrent calls trace each signature once.
tracing = threading.RLock()


def pass_check_on(report: CheckReport, values: tuple[Tensor, ...]) -> None:
    """Passes a check of a body on to the current builder: a trace reports it in every run, the top
    level raises its error at once. `values` are its flag and its operands."""
    trace = current_trace()
    if trace is not None:
        trace.add_check(report, values)
    elif not bool(host_array(values[0])):
        report.fail([host_array(x) for x in values[1:]])
