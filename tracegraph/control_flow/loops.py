"""Loops: `while_loop`, `scan`, `map_fn`, `foldl` and `foldr`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, overload

from tracegraph import nest
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.calls.call import Call, appended
from tracegraph.control.scan import Scan, without_row_products
from tracegraph.control.stacked_writes import with_stacked_writes
from tracegraph.control.while_loop import COUNT, LONG_LOOP, ResizingWhile, While, usual_checkpoints
from tracegraph.control.without_prints import calls_python
from tracegraph.control_flow.regions import (
    ResizedState,
    SharedValues,
    SizeOfStepError,
    TracedRegion,
    as_region,
    changes,
    check_invariants,
    finished,
    fits_state,
    known_body,
    leaves_open,
    makes_effects,
    names_of_parameters,
    one_element,
    open_types,
    take_on,
    telling,
    traced_region,
)
from tracegraph.core.shapes import Dim, ShapeVariable, Size, same_size
from tracegraph.core.source import here
from tracegraph.core.tensorshape import TensorShape, shape_of
from tracegraph.core.types import TOKEN, TensorType, as_dtype, bool_, int32, rank_fix
from tracegraph.errors import DTypeError, ShapeError, SignatureError, TraceError, fail, shown
from tracegraph.ir.builder import Builder, current, operand_text
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.operands.conversion import as_tensor, to_int32
from tracegraph.operands.flags import as_flag
from tracegraph.ops.broadcast import BroadcastTo, stack
from tracegraph.ops.constant import Iota, constant
from tracegraph.ops.elementwise import ADD, SELECT, Less, LogicalAnd, StopGradient
from tracegraph.ops.index import Gather
from tracegraph.ops.shape import Concatenate, Slice, with_rank_of
from tracegraph.state.variable import Variable
from tracegraph.tensor_arrays.array_states import ArrayStates, holds_arrays
from tracegraph.tracing.trace import NeedsTraceError, notes_what_leaves, tries

if TYPE_CHECKING:
    import typing
    from typing import TypedDict, TypeVar, TypeVarTuple, Unpack

    from tracegraph.core.tensorshape import TensorSpec
    from tracegraph.typing import DTypeLike, Leaf, Nest, Structure, TensorLike

    Number = TypeVar("Number", bound=Leaf)
    State = TypeVar("State")
    Element = TypeVar("Element")
    Result = TypeVar("Result")
    States = TypeVarTuple("States")
    Shapes = TensorShape | TensorSpec | Nest
    #: Loop variables in structures, which checkers cannot turn into tensors.
    Deep = list[Any] | tuple[Structure, *tuple[Any, ...]] | tuple[Leaf, Structure, *tuple[Any, ...]]

    class _LoopOptions(TypedDict, total=False):
        parallel_iterations: int
        back_prop: bool
        swap_memory: bool
        name: str | None

    class _WhileOptions(_LoopOptions, total=False):
        maximum_iterations: TensorLike | None
        checkpoints: int | None

    #: The types of results, in their structure.
    Signature = DTypeLike | TensorSpec | Sequence[Any] | Mapping[Any, Any] | None

    class _MapOptions(TypedDict, total=False):
        parallel_iterations: int | None
        back_prop: bool
        swap_memory: bool
        infer_shape: bool
        name: str | None
        fn_output_signature: Signature

    class _FoldOptions(_LoopOptions, total=False):
        infer_shape: bool
        reverse: bool


# To type checkers, numbers and arrays that are loop variables become tensors. Those that stand
# after a structure keep their types, and what fits nowhere else has no types at all.


@overload
def while_loop(
    cond: Callable[[Tensor, Tensor, Tensor, Tensor, *States], TensorLike],
    body: Callable[
        [Tensor, Tensor, Tensor, Tensor, *States],
        tuple[Leaf, Leaf, Leaf, Leaf, *States] | list[Any],
    ],
    loop_vars: tuple[Leaf, Leaf, Leaf, Leaf, *States],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> tuple[Tensor, Tensor, Tensor, Tensor, *States]: ...
@overload
def while_loop(
    cond: Callable[[Tensor, Tensor, Tensor, *States], TensorLike],
    body: Callable[[Tensor, Tensor, Tensor, *States], tuple[Leaf, Leaf, Leaf, *States] | list[Any]],
    loop_vars: tuple[Leaf, Leaf, Leaf, *States],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> tuple[Tensor, Tensor, Tensor, *States]: ...
@overload
def while_loop(
    cond: Callable[[Tensor, Tensor, *States], TensorLike],
    body: Callable[[Tensor, Tensor, *States], tuple[Leaf, Leaf, *States] | list[Any]],
    loop_vars: tuple[Leaf, Leaf, *States],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> tuple[Tensor, Tensor, *States]: ...
@overload
def while_loop(
    cond: Callable[[Tensor, *States], TensorLike],
    body: Callable[[Tensor, *States], tuple[Leaf, *States] | list[Any] | Leaf],
    loop_vars: tuple[Leaf, *States],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> tuple[Tensor, *States]: ...
@overload
def while_loop(
    cond: Callable[[State], TensorLike],
    body: Callable[[State], tuple[State] | list[Any] | State],
    loop_vars: tuple[State],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> tuple[State]: ...
@overload
def while_loop(
    cond: Callable[[*States], TensorLike],
    body: Callable[[*States], tuple[*States] | list[Any]],
    loop_vars: tuple[*States],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> tuple[*States]: ...
@overload
def while_loop(
    cond: Callable[[Tensor], TensorLike],
    body: Callable[[Tensor], Leaf],
    loop_vars: Leaf,
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> Tensor: ...
@overload
def while_loop(
    cond: Callable[[Tensor], TensorLike],
    body: Callable[[Tensor], list[Leaf] | tuple[Leaf] | Leaf],
    loop_vars: list[Number],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> list[Tensor]: ...
@overload
def while_loop(
    cond: Callable[[Tensor, Tensor], TensorLike],
    body: Callable[[Tensor, Tensor], list[Leaf] | tuple[Leaf, Leaf]],
    loop_vars: list[Number],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> list[Tensor]: ...
@overload
def while_loop(
    cond: Callable[[Tensor, Tensor, Tensor], TensorLike],
    body: Callable[[Tensor, Tensor, Tensor], list[Leaf] | tuple[Leaf, Leaf, Leaf]],
    loop_vars: list[Number],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> list[Tensor]: ...
@overload
def while_loop(
    cond: Callable[[State], TensorLike],
    body: Callable[[State], State],
    loop_vars: State,
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> State: ...
@overload
def while_loop(
    cond: Callable[[Any], TensorLike],
    body: Callable[[Any], Nest],
    loop_vars: Deep,
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> Any: ...
@overload
def while_loop(
    cond: Callable[[Any, Any], TensorLike],
    body: Callable[[Any, Any], Nest],
    loop_vars: Deep,
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> Any: ...
@overload
def while_loop(
    cond: Callable[[Any, Any, Any], TensorLike],
    body: Callable[[Any, Any, Any], Nest],
    loop_vars: Deep,
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> Any: ...
@overload
def while_loop(
    cond: Callable[typing.Concatenate[Any, Any, Any, Any, ...], TensorLike],
    body: Callable[typing.Concatenate[Any, Any, Any, Any, ...], Nest],
    loop_vars: list[Any] | tuple[Any, ...],
    shape_invariants: Shapes = ...,
    **options: Unpack[_WhileOptions],
) -> Any: ...
@api_boundary
@makes_effects
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Nest,
    shape_invariants: Shapes = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: TensorLike | None = None,
    name: str | None = None,
    *,
    checkpoints: int | None = None,
) -> Any:
    """`loop_vars` after applying `body` to them for as long as `cond` of them holds.

    - `cond`, `body`: functions of the loop variables, one argument for each item of `loop_vars`.
      `cond` returns a bool of shape (); `body` returns the structure and the types of `loop_vars`.
      Both may use tensors and Variables, and assign Variables.
    - `loop_vars`: a list, a tuple or any structure of tensors; numbers become tensors.
    - `maximum_iterations`: the most times that `body` runs, an integer.
    - `checkpoints`: how many states of the loop reverse mode keeps in memory, at least 2. The steps
      in between are recomputed. The default is as many as fit in 4 MiB, between 32 and 1,024; a
      loop of at most 4,096 known steps instead keeps what each step's gradient reads, if 16 MiB
      suffice.
    - `shape_invariants`: shapes that those of `loop_vars` must fit, None for a size that steps may
      change. If they do, Python runs the loop, with a program for each size, and it has no
      derivative; without them such a state is refused.
    - `back_prop`: with False the derivative of the results is None.
    - `parallel_iterations`, `swap_memory`: accepted, and without effect.

    Derivatives of any order exist in both modes, however often the body runs. The method of reverse
    mode is from Griewank and Walther, "Algorithm 799: revolve", 2000.

    Raises TraceError (a TypeError) for a body that returns another structure, DTypeError and
    ShapeError for states that change their type, and DTypeError for a condition that is not a bool.

    >>> i, total = tg.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s + i), (0, 0))
    >>> int(total)
    10
    """
    noting = notes_what_leaves("a tg.while_loop")
    cond = noting(telling("while_loop", as_region("while_loop", "cond", cond)))
    body = noting(telling("while_loop", as_region("while_loop", "body", body)))
    if shape_invariants is not None:
        check_invariants("while_loop", loop_vars, shape_invariants)
    arrays = ArrayStates("while_loop", loop_vars)

    def run(resized: Shapes = None) -> Any:
        options = maximum_iterations, checkpoints, back_prop, resized
        return arrays.run(lambda: _while(cond, body, arrays, *options))

    with tries():
        try:
            results = run()
        except (ResizedState, SizeOfStepError):
            if not leaves_open(shape_invariants):
                raise
            results = run(shape_invariants)
    return arrays.behind(results)


def _while(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    arrays: ArrayStates,
    maximum_iterations: Any,
    checkpoints: int | None,
    back_prop: bool,
    resized: Any = None,
) -> Any:
    """A loop as one node. `resized` are shapes that the states fit, whose open sizes change."""
    loop_vars = arrays.values
    leaves, structure = _converted("while_loop", loop_vars)
    types, changing = [x.type for x in leaves], frozenset[str]()
    if resized is not None:
        if current().is_top_level:
            raise NeedsTraceError
        types, changing = open_types(loop_vars, types, resized)

    def called(function: Callable[..., Any], given: Sequence[Tensor]) -> Any:
        packed = structure.pack([*given])
        return function(*packed) if isinstance(packed, (list, tuple)) else function(packed)

    def next_states(*given: Tensor) -> Any:
        returned = _like(loop_vars, called(body, given))
        arrays.fit(returned)
        return _states("while_loop", returned, structure, types, changing)

    is_spread = isinstance(loop_vars, (list, tuple))
    counts = [part.count for part in structure.parts] if is_spread else [len(leaves)]
    names = names_of_parameters(body, counts)
    tests = traced_region("cond", lambda *given: called(cond, given), types, names, _as_test, True)
    resizes = resized is not None
    steps = traced_region("body", next_states, types, names, is_repeated=True, resizes=resizes)
    bound = None if maximum_iterations is None else _count(maximum_iterations)
    limit = None
    if isinstance(maximum_iterations, int) and LONG_LOOP < maximum_iterations <= int32.max:
        limit, bound = maximum_iterations, None
    shared = SharedValues([tests, steps], here())
    loop = _WhileLoop(shared, tests, steps, types, bound is not None, limit, changing)
    slots = checkpoint_count(loop.state_types, checkpoints, maximum_iterations)
    results = loop.run(leaves, bound, slots, arrays)
    return structure.pack(results if back_prop else map(_stopped, results))


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """The inputs of a while loop's graphs, apart from their order: the loop variables, all
    Variables by identity, captured values, the checks so far, and, where they exist: whether the
    loop continues, the steps so far, and their limit."""

    variables: list[Tensor]
    values: dict[int, Tensor]
    captured: dict[Tensor, Tensor]
    checks: list[Tensor]
    goes_on: Tensor | None
    count: Tensor | None
    bound: Tensor | None


class _WhileLoop:
    """A condition and a body as the graphs of one op.

    The states are the step count if it is limited or checks report it, whether the loop continues
    if the condition does more than compute, the loop variables, the assigned Variables, and the
    checks.
    """

    def __init__(
        self,
        shared: SharedValues,
        tests: TracedRegion,
        steps: TracedRegion,
        types: Sequence[TensorType],
        is_bounded: bool,
        limit: int | None,
        changing: Set[str],
    ) -> None:
        self.shared, self.tests, self.steps = shared, tests, steps
        self.types = [*types]
        #: The sizes of the loop variables that steps change.
        self.changing = changing
        self.is_bounded = is_bounded
        #: A limit that the condition states itself, so that the loop is known to be a long one.
        self.limit = limit
        self.is_counted = is_bounded or limit is not None or bool(shared.checks)
        #: Whether the condition does more than compute, so that it must run in the body.
        own = tests.traced
        self.tests_act = bool(own.assigned or own.checks or own.has_token)

    @property
    def state_types(self) -> list[TensorType]:
        head = [COUNT] * self.is_counted + [TensorType(bool_, ())] * self.tests_act
        return [*head, *self.types, *self.shared.state_types, *self.shared.check_types]

    def run(
        self, leaves: Sequence[Tensor], bound: Tensor | None, slots: int, arrays: ArrayStates
    ) -> list[Tensor]:
        """Appends the loop; returns the final values of the loop variables."""
        shared = self.shared
        constants = [*shared.reads(shared.read_only), *shared.captures]
        before = shared.states_before()
        states = [*leaves, *before, *shared.passed_checks()]
        if self.tests_act:
            (first, *rest) = self._first_test([*constants, *leaves, *before])
            states = [first, *leaves, *rest]
        handles = before[: len(shared.assigned)]
        constants += [*handles, *([bound] if bound is not None else [])]
        if self.is_counted:
            states.insert(0, constant(0, int32))
        condition, body = self._graph("cond", self._condition), self._graph("body", self._body)
        calls = calls_python(body)
        length = Dim.named(current().new_size_name()) if calls else None
        op = While(body, len(constants), condition, slots, False, length)
        if self.changing:
            results = self._result_types(body)
            op = ResizingWhile(body, len(constants), condition, slots, False, None, results)
        first = self.is_counted + self.tests_act
        arrays.measure(op, [*constants, *states], first)
        outputs = appended(op, [*constants, *states])[first:]
        take_on(shared, outputs[len(self.types) :])
        return [*outputs[: len(self.types)]]

    def _result_types(self, body: Graph) -> tuple[TensorType, ...]:
        """The types of the states after the loop, with new names for the sizes that it changes."""
        first, types = self.is_counted + self.tests_act, [*body.output_types]
        for place, type in enumerate(self.types, first):
            shape = [
                Dim.named(current().new_size_name()) if changes(size, self.changing) else size
                for size in type.shape
            ]
            types[place] = type.with_shape(tuple(shape))
        return tuple(types)

    def _first_test(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Whether the loop starts at all, the Variables at that point, and the condition's
        checks."""
        with Builder("cond") as builder:
            values = self.shared.placeholders(builder, self.shared.read_only)
            captured = self.shared.captured(builder)
            given = [builder.input(type) for type in self.types]
            values |= self.shared.placeholders_of_states(builder)
            graph = self._tested(builder, given, values, captured)
        return [*appended(Call(graph), inputs)]

    def _tested(
        self,
        builder: Builder,
        given: Sequence[Tensor],
        values: dict[int, Tensor],
        captured: dict[Tensor, Tensor],
    ) -> Graph:
        start = constant(0, int32)
        (test,), values, checks = self.shared.run(self.tests, given, values, captured, start)
        return finished(builder, [test, *self.shared.states_of(values), *checks])

    def _graph(self, name: str, outputs: Callable[[_Inputs], list[Tensor]]) -> Graph:
        shared = self.shared
        with Builder(name) as builder:
            values = shared.placeholders(builder, shared.read_only)
            captured = shared.captured(builder)
            handles = shared.placeholders(builder, shared.assigned)
            bound = builder.input(COUNT, "maximum_iterations") if self.is_bounded else None
            count = builder.input(COUNT, "count") if self.is_counted else None
            goes_on = builder.input(TensorType(bool_, ()), "goes_on") if self.tests_act else None
            inputs = self.steps.traced.graph.inputs[: len(self.types)]
            given = [builder.input_like(x) for x in inputs]
            values |= shared.carried(shared.placeholders_of_states(builder), handles)
            checks = [builder.input(type) for type in shared.check_types]
            found = outputs(_Inputs(given, values, captured, checks, goes_on, count, bound))
        return finished(builder, found)

    def _condition(self, x: _Inputs) -> list[Tensor]:
        goes_on = x.goes_on
        if goes_on is None:
            (goes_on,), _, _ = self.shared.run(self.tests, x.variables, x.values, x.captured)
        if x.count is not None and x.bound is not None:
            goes_on = LogicalAnd()(goes_on, Less()(x.count, x.bound))
        if x.count is not None and self.limit is not None:
            goes_on = LogicalAnd()(goes_on, Less()(x.count, constant(self.limit, int32)))
        for flag in self._flags(x.checks):
            goes_on = LogicalAnd()(goes_on, flag)
        return [goes_on]

    def _body(self, x: _Inputs) -> list[Tensor]:
        shared = self.shared
        results, values, made = shared.run(self.steps, x.variables, x.values, x.captured, x.count)
        head: list[Tensor] = [] if x.count is None else [ADD(x.count, constant(1, int32))]
        if self.tests_act:
            behind = head[0] if head else None
            (test,), values, tested = shared.run(self.tests, results, values, x.captured, behind)
            own = self.tests.traced
            is_own = [of is own for of, *_, types in shared.checks for _ in types]
            made = [b if flag else a for a, b, flag in zip(made, tested, is_own, strict=True)]
            head.append(test)
        return [*head, *results, *shared.states_of(values), *made]

    def _flags(self, checks: Sequence[Tensor]) -> list[Tensor]:
        flags, place = [], 0
        for *_, types in self.shared.checks:
            flags.append(checks[place])
            place += len(types)
        return flags


def checkpoint_count(types: Sequence[TensorType], checkpoints: Any, bound: Any) -> int:
    """How many states reverse mode keeps."""
    if checkpoints is not None:
        if isinstance(checkpoints, bool) or not isinstance(checkpoints, int) or checkpoints < 2:
            fail(
                TraceError,
                f"while_loop: checkpoints is {shown(checkpoints)}, and it must be an int from 2 on",
                fix="leave it out, or give the number of states that memory has room for",
            )
        return checkpoints
    found = usual_checkpoints(types)
    return min(found, bound + 2) if isinstance(bound, int) and bound >= 0 else found


@overload
def scan(
    fn: Callable[[Tensor, Tensor], Leaf],
    elems: Leaf,
    initializer: Leaf | None = ...,
    **options: Unpack[_FoldOptions],
) -> Tensor: ...
@overload
def scan(
    fn: Callable[[Tensor, Element], Leaf],
    elems: Element,
    initializer: Leaf,
    **options: Unpack[_FoldOptions],
) -> Tensor: ...
@overload
def scan(
    fn: Callable[[State, Tensor], Result],
    elems: Leaf,
    initializer: State,
    **options: Unpack[_FoldOptions],
) -> Result: ...
@overload
def scan(
    fn: Callable[[State, Element], Result],
    elems: Element,
    initializer: State,
    **options: Unpack[_FoldOptions],
) -> Result: ...
@overload
def scan(
    fn: Callable[[Any, Any], Nest],
    elems: Nest,
    initializer: Structure,
    **options: Unpack[_FoldOptions],
) -> Any: ...
@overload
def scan(
    fn: Callable[[Any, Any], Nest],
    elems: Structure,
    initializer: Nest = ...,
    **options: Unpack[_FoldOptions],
) -> Any: ...
@api_boundary
@makes_effects
def scan(
    fn: Callable[[Any, Any], Any],
    elems: Nest,
    initializer: Nest = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """The running results of `fn` over the first axis of `elems`, stacked.

    - `fn`: a function of the accumulated value and one element, which returns the next accumulated
      value, of the same structure and types.
    - `elems`: a tensor, or a structure of tensors with equal first sizes.
    - `initializer`: the initial accumulated value; if None, the first element itself.
    - `reverse`: whether to start with the last element. Results are in the order of the elements.
    - `back_prop`: with False the derivative of the results is None.
    - `parallel_iterations`, `swap_memory`, `infer_shape`: accepted, and without effect.

    Returns the structure of `initializer` with a new first axis, which has one entry per element.
    Derivatives of any order exist in both modes. Raises what `tg.while_loop` raises, and ShapeError
    (a ValueError) for first sizes that differ, or that are 0 if there is no initializer.

    >>> tg.scan(lambda total, x: total + x, tg.constant([1, 2, 3, 4])).numpy()
    array([ 1,  3,  6, 10], dtype=int32)
    """
    return _accumulated("scan", fn, elems, initializer, reverse, back_prop, True)


@overload
def foldl(
    fn: Callable[[Tensor, Tensor], Leaf],
    elems: Leaf,
    initializer: Leaf | None = ...,
    **options: Unpack[_LoopOptions],
) -> Tensor: ...
@overload
def foldl(
    fn: Callable[[Tensor, Element], Leaf],
    elems: Element,
    initializer: Leaf,
    **options: Unpack[_LoopOptions],
) -> Tensor: ...
@overload
def foldl(
    fn: Callable[[State, Tensor], Result],
    elems: Leaf,
    initializer: State,
    **options: Unpack[_LoopOptions],
) -> Result: ...
@overload
def foldl(
    fn: Callable[[State, Element], Result],
    elems: Element,
    initializer: State,
    **options: Unpack[_LoopOptions],
) -> Result: ...
@overload
def foldl(
    fn: Callable[[Any, Any], Nest],
    elems: Nest,
    initializer: Structure,
    **options: Unpack[_LoopOptions],
) -> Any: ...
@overload
def foldl(
    fn: Callable[[Any, Any], Nest],
    elems: Structure,
    initializer: Nest = ...,
    **options: Unpack[_LoopOptions],
) -> Any: ...
@api_boundary
@makes_effects
def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Nest,
    initializer: Nest = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """The accumulated value of `fn` after the last element of `elems`.

    Arguments and errors are those of `tg.scan`; the result is the last row of its result.

    >>> int(tg.foldl(lambda total, x: total - x, tg.constant([10, 2, 3])))
    5
    """
    return _accumulated("foldl", fn, elems, initializer, False, back_prop, False)


@overload
def foldr(
    fn: Callable[[Tensor, Tensor], Leaf],
    elems: Leaf,
    initializer: Leaf | None = ...,
    **options: Unpack[_LoopOptions],
) -> Tensor: ...
@overload
def foldr(
    fn: Callable[[Tensor, Element], Leaf],
    elems: Element,
    initializer: Leaf,
    **options: Unpack[_LoopOptions],
) -> Tensor: ...
@overload
def foldr(
    fn: Callable[[State, Tensor], Result],
    elems: Leaf,
    initializer: State,
    **options: Unpack[_LoopOptions],
) -> Result: ...
@overload
def foldr(
    fn: Callable[[State, Element], Result],
    elems: Element,
    initializer: State,
    **options: Unpack[_LoopOptions],
) -> Result: ...
@overload
def foldr(
    fn: Callable[[Any, Any], Nest],
    elems: Nest,
    initializer: Structure,
    **options: Unpack[_LoopOptions],
) -> Any: ...
@overload
def foldr(
    fn: Callable[[Any, Any], Nest],
    elems: Structure,
    initializer: Nest = ...,
    **options: Unpack[_LoopOptions],
) -> Any: ...
@api_boundary
@makes_effects
def foldr(
    fn: Callable[[Any, Any], Any],
    elems: Nest,
    initializer: Nest = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """The accumulated value of `fn` over `elems`, starting with the last element.

    Arguments and errors are those of `tg.scan`; the result is the first row of its result with
    reverse=True.

    >>> int(tg.foldr(lambda total, x: total - x, tg.constant([10, 2, 3])))
    -9
    """
    return _accumulated("foldr", fn, elems, initializer, True, back_prop, False)


def scan_with_results(
    name: str,
    step: Callable[[Any, Any], tuple[Any, Any]],
    initializer: Any,
    elems: Any,
) -> tuple[Any, Any]:
    """The states after the last element of `elems`, and the other results of each step, stacked.

    `step` takes the states, of the structure of `initializer`, and one element. It returns the next
    states, of the same structure and types, and a structure of tensors, which may be empty.
    """
    rows, row_structure, length = _rows(name, elems)
    states, structure = _converted(name, initializer)
    count, types = len(states), [x.type for x in states]

    def body(*given: Tensor) -> Any:
        packed = structure.pack([*given[:count]]), row_structure.pack([*given[count:]])
        after, result = step(*packed)
        return _states(name, after, structure, types), result

    names = names_of_parameters(step, [count, len(rows)])
    last, stacked = _ScanLoop(name, states, rows, length, False, names).run(body)
    return structure.pack(last), stacked


@overload
def map_fn(
    fn: Callable[[Tensor], Leaf],
    elems: Leaf,
    dtype: Signature = ...,
    **options: Unpack[_MapOptions],
) -> Tensor: ...
@overload
def map_fn(
    fn: Callable[[Element], Leaf],
    elems: Element,
    dtype: Signature = ...,
    **options: Unpack[_MapOptions],
) -> Tensor: ...
@overload
def map_fn(
    fn: Callable[[Tensor], Result],
    elems: Leaf,
    dtype: Signature = ...,
    **options: Unpack[_MapOptions],
) -> Result: ...
@overload
def map_fn(
    fn: Callable[[Element], Result],
    elems: Element,
    dtype: Signature = ...,
    **options: Unpack[_MapOptions],
) -> Result: ...
@overload
def map_fn(
    fn: Callable[[Any], Result],
    elems: Structure,
    dtype: Signature = ...,
    **options: Unpack[_MapOptions],
) -> Result: ...
@api_boundary
@makes_effects
def map_fn(
    fn: Callable[[Any], Any],
    elems: Nest,
    dtype: Signature = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Signature = None,
) -> Any:
    """`fn` applied to each element along the first axis of `elems` in turn, stacked.

    - `fn`: a function of one element, of the structure of `elems`; it may assign Variables.
    - `elems`: a tensor, or a structure of tensors with equal first sizes.
    - `fn_output_signature`, `dtype`: the data types that `fn` returns, or TensorSpecs, in the
      structure that it returns. They are optional, and a result that differs is refused.
    - `back_prop`: with False the derivative of the results is None.
    - `parallel_iterations`, `swap_memory`, `infer_shape`: accepted, and without effect.

    `tg.vectorized_map` computes all elements at once, which is faster if memory allows.
    Raises ShapeError (a ValueError) for first sizes that differ, and DTypeError or ShapeError for
    results that differ from the signature.

    >>> tg.map_fn(lambda x: x * x, tg.constant([1.0, 2.0, 3.0])).numpy()
    array([1., 4., 9.], dtype=float32)
    """
    fn = telling("map_fn", as_region("map_fn", "fn", fn))
    rows, structure, length = _rows("map_fn", elems)
    names = names_of_parameters(fn, [len(rows)])
    loop = _ScanLoop("map_fn", [], rows, length, False, names)
    expected = dtype if fn_output_signature is None else fn_output_signature

    def step(*given: Tensor) -> Any:
        return (), _with_declared_ranks(fn(structure.pack([*given])), expected)

    _, stacked = loop.run(step)
    if expected is not None:
        _check_signature(stacked, expected)
    if not back_prop:
        stacked = nest.map_structure(_stopped, stacked)
    return stacked


def _accumulated(
    name: str,
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any,
    is_reverse: bool,
    back_prop: bool,
    is_stacked: bool,
) -> Any:
    fn = telling(name, as_region(name, "fn", fn))
    as_flag(name, "reverse", is_reverse)
    rows, row_structure, length = _rows(name, elems)
    ends: list[Tensor] = []
    if initializer is None:
        if isinstance(length, int) and length == 0:
            fail(
                ShapeError,
                f"{name}: elems has no elements, and there is no initializer",
                source=here(),
                fix="give an initializer",
            )
        at = length - 1 if is_reverse else 0
        ends = [Gather(0, 0)(x, as_tensor(at, int32)) for x in rows]
        rest = (0, length - 1) if is_reverse else (1, length)
        rows = [_some_rows(x, *rest) for x in rows]
        length = length - 1
        initializer = row_structure.pack(ends)
    arrays = ArrayStates(name, initializer)

    def run() -> tuple[nest.Structure, Any]:
        states, structure = _converted(name, arrays.values)
        count, types = len(states), [x.type for x in states]

        def step(*given: Tensor) -> Any:
            packed = structure.pack([*given[:count]]), row_structure.pack([*given[count:]])
            returned = fn(*packed)
            arrays.fit(returned)
            new = _states(name, returned, structure, types)
            return new, new if is_stacked else ()

        names = names_of_parameters(fn, [count, len(rows)])
        loop = _ScanLoop(name, states, rows, length, is_reverse, names)
        last, stacked = loop.run(step, arrays)
        return structure, stacked if is_stacked else last

    structure, found = arrays.run(run)
    if is_stacked and ends:
        pairs = zip(ends, found, strict=True)
        found = [
            Concatenate(0)(*((y, stack(x, 1)) if is_reverse else (stack(x, 1), y)))
            for x, y in pairs
        ]
    if not back_prop:
        found = [*map(_stopped, found)]
    results = structure.pack([*found])
    return results if is_stacked else arrays.behind(results)


class _ScanLoop:
    """A body as the graph of a scan over `rows`, starting from `states`."""

    def __init__(
        self,
        name: str,
        states: Sequence[Tensor],
        rows: Sequence[Tensor],
        length: Size,
        is_reverse: bool,
        names: Sequence[str | None],
    ) -> None:
        #: The user's names for the states and the rows.
        self.names = [*names]
        self.name, self.length, self.is_reverse = name, length, is_reverse
        self.states, self.rows = [*states], [*rows]

    def run(
        self, step: Callable[..., Any], arrays: ArrayStates | None = None
    ) -> tuple[list[Tensor], Any]:
        """The final states, and the structure of the steps' other results, stacked. `step` takes
        the states and the rows, and returns the new states and the rest."""
        rows = [x.type.with_shape(x.type.shape[1:]) for x in self.rows]
        types = [x.type for x in self.states]
        given = [*types, *rows]
        region = traced_region(
            self.name, step, given, self.names, is_repeated=True, rows_of=self.rows
        )
        shared = SharedValues([region], here())
        count, end = len(types), region.traced.argument_count
        for type in region.result_types[count:]:
            if fix := rank_fix(type):
                fact = f"{self.name}: a step returns {type}, whose rank is not known, to be stacked"
                fail(ShapeError, fact, source=here(), fix=fix)
        with Builder(self.name) as builder:
            values = shared.placeholders(builder, shared.read_only)
            captured = shared.captured(builder)
            handles = shared.placeholders(builder, shared.assigned)
            inputs = region.traced.graph.inputs
            given = [builder.input_like(x) for x in inputs[:count]]
            values |= shared.carried(shared.placeholders_of_states(builder), handles)
            held = [builder.input(type) for type in shared.check_types]
            place = builder.input(COUNT, "count") if held else None
            given += [builder.input_like(x) for x in inputs[count:end]]
            old = values
            results, values, made = shared.run(region, given, values, captured, place)
            assigned = self._while_it_holds(shared, old, values, held)
            kept = self._first_failures(shared, held, made)
            kept += [] if place is None else [ADD(place, constant(1, int32))]
        graph = finished(builder, [*results[:count], *assigned, *kept, *results[count:]])
        before = shared.states_before()
        read = [*shared.reads(shared.read_only), *shared.captures]
        constants = [*read, *before[: len(shared.assigned)]]
        states = [*self.states, *before, *shared.passed_checks()]
        states += [constant(0, int32)] if shared.checks else []
        op = Scan(graph, len(constants), len(states), self.length, self.is_reverse)
        numbers = [Iota(self.length, int32)()] * (end - len(types) - len(rows))
        inputs = current().admit_all((*constants, *states, *self.rows, *numbers))
        if arrays is not None:
            arrays.measure(op, inputs, 0)
        op, inputs, unstacked = with_stacked_writes(op, inputs)
        op, inputs = without_row_products(op, inputs)
        op = op.with_body(known_body(op.body), op.constants, op.states)
        outputs = unstacked(appended(op, inputs))
        take_on(shared, outputs[count : len(states)])
        last, stacked = outputs[:count], outputs[len(states) :]
        _, packed = region.results.pack([*last, *stacked])
        return [*last], packed

    def _while_it_holds(
        self,
        shared: SharedValues,
        old: dict[int, Tensor],
        new: dict[int, Tensor],
        held: Sequence[Tensor],
    ) -> list[Tensor]:
        """The Variables after a step: once a check has failed, later steps assign nothing."""
        holds: Tensor | None = None
        place = 0
        for *_, types in shared.checks:
            flag, place = held[place], place + len(types)
            holds = flag if holds is None else LogicalAnd()(holds, flag)
        pairs = zip(shared.states_of(old), shared.states_of(new), strict=True)
        return [
            after if holds is None or after.type is TOKEN else _chosen(holds, after, before)
            for before, after in pairs
        ]

    def _first_failures(
        self, shared: SharedValues, held: Sequence[Tensor], made: Sequence[Tensor]
    ) -> list[Tensor]:
        """The checks after a step: the first failure of each, with its operands."""
        found: list[Tensor] = []
        for *_, types in shared.checks:
            place = len(found)
            flag = held[place]
            found.append(LogicalAnd()(flag, made[place]))
            for k in range(place + 1, place + len(types)):
                found.append(_chosen(flag, made[k], held[k]))
        return found


def _chosen(flag: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return SELECT(flag if x.ndim == 0 else BroadcastTo(x.type.shape, ())(flag), x, y)


# Arguments.


def _converted(name: str, values: Any) -> tuple[list[Tensor], nest.Structure]:
    """The loop variables as tensors, and their structure."""
    leaves, structure = nest.flatten_structure(values)
    if not leaves and not holds_arrays(values):
        fail(TraceError, f"{name}: there are no loop variables", fix="give at least one tensor")
    return [as_tensor(leaf) for leaf in leaves], structure


def _like(loop_vars: Any, returned: Any) -> Any:
    """The result of a body, in the list or tuple type of the loop variables: TensorFlow accepts one
    for the other, and a single variable without a container."""
    kind = type(loop_vars)
    if kind not in (list, tuple):
        return returned
    if type(returned) in (list, tuple):
        return kind(returned)
    return kind([returned]) if len(loop_vars) == 1 else returned


def _states(
    name: str,
    returned: Any,
    structure: nest.Structure,
    types: Sequence[TensorType],
    changing: Set[str] = frozenset(),
) -> list[Tensor]:
    """The next states returned by a body. Raises an error for any that changes its type, other
    than the sizes that are `changing`."""
    leaves, found = nest.flatten_structure(returned)
    if not found.matches(structure):
        fail(
            SignatureError,
            f"{name}: the body returns {found}, and the loop variables are {structure}",
            source=here(),
            fix="return one value for each loop variable, in the same structure",
        )
    rows = enumerate(zip(leaves, types, strict=True))
    return [_state(name, k, leaf, type, changing) for k, (leaf, type) in rows]


def _state(name: str, place: int, leaf: Any, type: TensorType, changing: Set[str]) -> Tensor:
    value = as_tensor(leaf, None if isinstance(leaf, (Tensor, Variable)) else type.dtype)
    named = f"{name}: loop variable {place}"
    if value.dtype is not type.dtype:
        fail(
            DTypeError,
            f"{named} has type {type} before the loop, and {value.type} after one step",
            source=here(),
            operands=[operand_text(value)],
            fix=f"convert it: tg.cast(x, tg.{type.dtype.name})",
        )
    value = with_rank_of(value, type.shape)
    if not fits_state(value.type, type, changing):
        fail(
            ResizedState,
            f"{named} has shape {_shape(type)} before the loop, and {_shape(value.type)} after one "
            "step",
            source=here(),
            operands=[operand_text(value)],
            fix=rank_fix(value.type)
            or "keep its shape: write to a tg.TensorArray, or let tg.scan stack what each step "
            "returns; a tg.while_loop also takes shape_invariants, with None for its size",
        )
    return value


def _shape(type: TensorType) -> str:
    if isinstance(type.shape, ShapeVariable):
        return str(type.shape)
    sizes = ", ".join(map(str, type.shape))
    return f"({sizes},)" if len(type.shape) == 1 else f"({sizes})"


def _as_test(result: Any) -> Tensor:
    test = one_element(as_tensor(result))
    if test.dtype is not bool_:
        fail(
            DTypeError,
            f"while_loop: the condition is {test.type}, and it must be one bool",
            source=here(),
            operands=[operand_text(test)],
            fix="compare the state: x > 0",
        )
    if test.type.shape != ():
        fail(
            ShapeError,
            f"while_loop: the condition is {test.type}, and it must have the shape ()",
            source=here(),
            operands=[operand_text(test)],
            fix="reduce it: tg.reduce_any(x > 0)",
        )
    return test


def _count(value: Any) -> Tensor:
    count = as_tensor(value)
    if not count.dtype.is_integer or count.type.shape != ():
        fail(
            DTypeError,
            f"while_loop: maximum_iterations is {count.type}, and it must be one integer",
            operands=[operand_text(count)],
            fix="give an int, or an integer tensor of shape ()",
        )
    return to_int32(count)


def _rows(name: str, elems: Any) -> tuple[list[Tensor], nest.Structure, Size]:
    """The tensors to iterate over, their structure, and their number of rows."""
    leaves, structure = nest.flatten_structure(elems)
    rows = [as_tensor(leaf) for leaf in leaves]
    if not rows:
        fail(SignatureError, f"{name}: elems has no tensors", fix="give at least one tensor")
    length: Any = None
    for x in rows:
        if not isinstance(x.type.shape, tuple) or not x.type.shape:
            fail(
                ShapeError,
                f"{name}: {x.type} has no first axis to map over",
                source=here(),
                operands=[operand_text(x)],
                fix="give it one: x[tg.newaxis]",
            )
        size = x.type.shape[0]
        if length is not None and same_size(length, size) is None:
            fail(
                ShapeError,
                f"{name}: the first sizes of elems differ: {length} and {size}",
                source=here(),
                operands=[operand_text(y) for y in rows],
                fix="give tensors with equal first sizes",
            )
        length = size if length is None else length
    return rows, structure, length


def _some_rows(x: Tensor, start: Any, end: Any) -> Tensor:
    rest = x.type.shape[1:]
    return Slice((start, *(0 for _ in rest)), (end, *rest), (1,) * (1 + len(rest)))(x)


def _stopped(x: Tensor) -> Tensor:
    return StopGradient()(x) if x.dtype.is_differentiable else x


def _with_declared_ranks(returned: Any, expected: Any) -> Any:
    """What a step returns, with the shapes of the signature where only the run knows a rank."""
    leaves, structure = nest.flatten_structure(returned)
    specs = nest.flatten(expected)
    if len(leaves) != len(specs):
        return returned
    shapes = [TensorShape(getattr(spec, "shape", None)) for spec in specs]
    return structure.pack(
        [
            with_rank_of(x, tuple(shape))
            if isinstance(x, Tensor) and shape.rank is not None and None not in shape.as_list()
            else x
            for x, shape in zip(leaves, shapes, strict=True)
        ]
    )


def _check_signature(stacked: Any, expected: Any) -> None:
    found, wanted = nest.flatten(stacked), nest.flatten(expected)
    if len(found) != len(wanted):
        fail(
            TraceError,
            f"map_fn: fn returns {len(found)} tensors, and fn_output_signature has {len(wanted)}",
            source=here(),
            fix="give the signature in the structure that fn returns",
        )
    for x, spec in zip(found, wanted, strict=True):
        dtype = as_dtype(getattr(spec, "dtype", spec))
        if x.dtype is not dtype:
            fail(
                DTypeError,
                f"map_fn: fn returns {x.dtype.name}, and fn_output_signature has {dtype.name}",
                source=here(),
                operands=[operand_text(x)],
                fix=f"give fn_output_signature=tg.{x.dtype.name}, or convert: "
                f"tg.cast(x, tg.{dtype.name})",
            )
        shape = TensorShape(getattr(spec, "shape", None))
        own = shape_of(x.type.shape)[1:]
        if not shape.is_compatible_with(own):
            fail(
                ShapeError,
                f"map_fn: fn returns the shape {own}, and fn_output_signature has {shape}",
                source=here(),
                operands=[operand_text(x)],
                fix="give the shape of one result, without the axis along which they are stacked",
            )


__all__ = ["foldl", "foldr", "map_fn", "scan", "while_loop"]
