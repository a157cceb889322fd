"""Control flow statements on values that a graph computes: carries the state of names as
tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tracegraph import nest
from tracegraph.autograph.state_values import (
    ITEMS_OF,
    SetUnlessLeft,
    StatePlace,
    Undefined,
    UndefinedReturnValue,
    UnfitState,
    Unknown,
    after_iteration,
    as_type,
    before_statement,
    common_type,
    flags_of,
    flattened,
    is_carried,
    is_flag,
    is_number,
    is_same,
    is_undefined,
    type_of,
    without_flags,
)
from tracegraph.control.branch import Cond, may_differ
from tracegraph.control_flow.branches import choice
from tracegraph.control_flow.loops import foldl, while_loop
from tracegraph.control_flow.regions import (
    SizeOfStepError,
    TracedRegion,
    numbered,
    one_element,
    traced_region,
    with_names,
)
from tracegraph.control_passes.dataflow import becomes_float64
from tracegraph.core.later import opened
from tracegraph.core.shapes import least
from tracegraph.core.source import HOOKS, here
from tracegraph.core.tensorshape import TensorShape, shape_of
from tracegraph.core.types import DType, TensorType, float32, float64, int32
from tracegraph.effects.host_calls import declare_result
from tracegraph.errors import DTypeError, ShapeError, SignatureError, fail
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.elementwise import LogicalNot, NotEqual
from tracegraph.state.variable import Variable, is_array
from tracegraph.tensor_arrays.array_states import (
    Need,
    StatesChanged,
    chosen_alike,
    common_needs,
    measured,
    supplied,
    with_whole_arrays,
)
from tracegraph.tensor_arrays.tensor_array import TensorArray, TensorList
from tracegraph.tracing.trace import Trace, current_trace, notes_what_leaves

if TYPE_CHECKING:
    from tracegraph.autograph.changes.lists import Entered
    from tracegraph.autograph.late_values import LateValue

Values = tuple[Any, ...]
GetState = Callable[[], Values]
SetState = Callable[[Values], None]
#: A branch of an `if`: it gives the values that it ends with, and these as they are then.
Traceable = Callable[[], tuple[Values, Values]]


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """What is known of a loop besides its parts."""

    #: The number of iterations after which it ends; None if only its test ends it.
    maximum_iterations: Any = None
    #: The names that may be read after it.
    read_after: Sequence[str] = ()
    #: The flags by which an iteration says that it was left.
    exits: Sequence[str] = ()
    #: Whether it is known to run at least once.
    is_entered: bool = False
    #: The user's body, if the function that runs was derived from it.
    body: Any = None
    #: The user's name for the item of an iteration in a `for`.
    item: str = "row"
    #: Values of the state before it, each with a shape that leaves the sizes open which may change.
    invariants: Sequence[tuple[Any, TensorShape]] = ()


def predicate(value: Any) -> Tensor:
    """A value as a boolean condition. Raises ShapeError for a tensor with axes."""
    value = value.size() if isinstance(value, TensorList) else value
    tensor = as_tensor(value)
    declare_result(tensor, TensorShape([]))
    tensor = one_element(tensor)
    if tensor.type.shape != ():
        fail(
            ShapeError,
            f"a tensor {tensor.type} was taken for one truth value",
            fix="use tg.reduce_all or tg.reduce_any, or tg.where for a choice in each element",
        )
    return tensor if tensor.dtype.is_bool else NotEqual()(tensor, as_tensor(0, tensor.dtype))


def negated(pred: Tensor) -> Tensor:
    return LogicalNot()(pred)


# Conditionals.


@dataclasses.dataclass(frozen=True)
class _StateLeaf:
    """A leaf of the state after a conditional: a tensor of `type`, or the Python value `kept`."""

    type: TensorType | None
    kept: Any = None


@dataclasses.dataclass(frozen=True)
class _Joined:
    """The values of one name after a conditional. `structure` is None for a name without a
    value."""

    structure: nest.Structure | None
    leaves: tuple[_StateLeaf, ...]
    undefined: Any = None
    #: The name as one that has a value only where some flags do not hold.
    conditional: SetUnlessLeft | None = None

    def tensors(self, value: Any, results: Iterator[Tensor]) -> list[Tensor]:
        """A branch's tensors for the leaves that are carried; `results` are the tensors among the
        leaves of its value, as the branch returned them."""
        leaves = [value] * len(self.leaves)
        if not is_undefined(value):
            leaves = [next(results) if is_array(x) else x for x in flattened(value)[0]]
        pairs = zip(leaves, self.leaves) if self.structure is not None else ()
        return [as_type(leaf, own.type) for leaf, own in pairs if own.type is not None]

    def value(self, tensors: Iterator[Tensor]) -> Any:
        """The value rebuilt from the carried leaves."""
        if self.structure is None:
            return self.undefined
        leaves = [own.kept if own.type is None else next(tensors) for own in self.leaves]
        value = self.structure.pack(leaves)
        if self.conditional is None:
            return value
        return dataclasses.replace(self.conditional, value=value)


@dataclasses.dataclass(frozen=True)
class Exits:
    """Which flags of a choice say that a branch was left by `return`, `break` or `continue`."""

    first: frozenset[str] = frozenset()
    second: frozenset[str] = frozenset()
    #: The names that other code may read, whatever the flags are.
    shared: Sequence[str] = ()
    #: The names that nothing reads after the choice.
    unread: frozenset[str] = frozenset()

    def after(self, names: Sequence[str], first: Values, second: Values) -> Exits:
        """Those that say so by their values at the end of the branches too."""

        def held(values: Values) -> frozenset[str]:
            pairs = zip(names, values, strict=True)
            return frozenset(name for name, value in pairs if is_flag(name) and value is True)

        return dataclasses.replace(
            self, first=self.first | held(first), second=self.second | held(second)
        )

    def of(self, name: str, is_first: bool) -> frozenset[str]:
        """The flags of one branch by which a name need not have a value there."""
        is_own = name.isidentifier() and name not in self.shared
        own, other = (self.first, self.second) if is_first else (self.second, self.first)
        return own if is_own and not own <= other else frozenset()


@notes_what_leaves("a branch of the `if`")
def chosen(
    pred: Tensor,
    first: Traceable,
    second: Traceable,
    names: Sequence[str],
    exits: Exits = Exits(),
    kept: Iterable[Any] = (),
) -> Values:
    """The result of the first function if `pred` holds, else of the second. The containers `kept`
    were there before."""
    found: list[Values] = []
    given: list[Values] = []

    def traced(
        name: str, branch: Traceable, holds: bool, needs: Sequence[Need] = ()
    ) -> TracedRegion:
        def run() -> list[Tensor]:
            objects, values = (tuple(_known(x, pred, holds) for x in own) for own in branch())
            given.append(objects)
            values = chosen_alike(tuple(map(without_flags, values)))
            values = supplied(values, needs) if needs else values
            found.append(values)
            return [as_tensor(x) for value in values for x in _arrays(value)]

        return traced_region(name, run)

    regions = [traced("true_fn", first, True), traced("false_fn", second, False)]
    lacking = common_needs(found, [region.traced.graph for region in regions])
    if any(map(any, lacking)):  # one of them writes to a TensorArray that had no buffer
        found.clear()
        regions = [
            traced("true_fn", first, True, lacking[0]),
            traced("false_fn", second, False, lacking[1]),
        ]
    columns = zip(*given[-2:], *found[:2], names, strict=True)
    reads_values = any(region.reads_values for region in regions)
    exits = exits.after(names, *given[-2:])
    joined = [
        # What neither branch replaces is the same object, which may have other names.
        _Joined(None, (), x)
        if x is y
        else _with_flags(x, y, _join(a, b, name, reads_values, exits))
        for x, y, a, b, name in columns
    ]

    def completion(values: Values) -> Callable[[list[Tensor]], list[Tensor]]:
        def complete(results: list[Tensor]) -> list[Tensor]:
            rest = iter(results)
            pairs = zip(joined, values, strict=True)
            return [tensor for own, value in pairs for tensor in own.tensors(value, rest)]

        return complete

    tensors = choice(
        lambda graphs: Cond(graphs[0], graphs[1]), pred, regions, [*map(completion, found)]
    )
    rest = iter(tensors)
    after = measured(tuple(own.value(rest) for own in joined))
    return other_names().with_one_object_each(kept, pred, given, after)


def _with_flags(x: Any, y: Any, joined: _Joined) -> _Joined:
    """The joined value of a name whose values in the branches, x and y, have flags of their own."""
    flags = flags_of(x) | flags_of(y)
    if not flags or joined.structure is None:
        return joined
    known = next(value for value in (x, y, joined.conditional) if isinstance(value, SetUnlessLeft))
    flags |= flags_of(joined.conditional)
    return dataclasses.replace(joined, conditional=dataclasses.replace(known, flags=flags))


def _arrays(value: Any) -> list[Any]:
    """The leaves of a value that a branch returns."""
    return [] if is_undefined(value) else [*filter(is_array, flattened(value)[0])]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _known(value: Any, pred: Tensor, holds: bool) -> Any:
    """The value of a name in a branch, where the outcome of the predicate is known."""
    if value is pred:
        return holds
    node = pred.node
    if node is not None and type(node.op) is LogicalNot and value is node.inputs[0]:
        return not holds
    return value


def _join(one: Any, other: Any, name: str, reads_values: bool, exits: Exits) -> _Joined:
    """The value of a name after a choice. Values that do not fit are refused: at once where the
    name is read later, so that the line is that of the choice, else where it is used after all."""
    try:
        return _join_read(one, other, name, reads_values, exits)
    except (DTypeError, ShapeError, SignatureError):
        if name not in exits.unread:
            raise
    label = StatePlace(name, "", "").label
    fact = f"the values of {label} after the `if` at {here()} differ in type"
    return _Joined(None, (), Undefined(name, fact, "make both branches give one type"))


def _join_read(one: Any, other: Any, name: str, reads_values: bool, exits: Exits) -> _Joined:
    place = StatePlace(
        name, "in the main branch", "in the else branch", "make both branches give one type"
    )
    if is_undefined(one) or is_undefined(other):
        return _join_undefined(one, other, place, exits.of(name, is_undefined(one)))
    (leaves, structure), (others, other_structure) = flattened(one), flattened(other)
    if not structure.matches(other_structure):
        place.refuse(SignatureError, one, other, "give both the same structure")
    pairs = zip(leaves, others, strict=True)
    return _Joined(structure, tuple(_join_leaves(a, b, place, reads_values) for a, b in pairs))


def _join_leaves(one: Any, other: Any, place: StatePlace, reads_values: bool) -> _StateLeaf:
    if is_same(one, other) or is_undefined(one):
        return _StateLeaf(None, one)
    if is_undefined(other):  # an item that refuses to be read in one branch does so after it
        return _StateLeaf(None, other)
    if not is_carried(one) or not is_carried(other):
        place.refuse(
            SignatureError, one, other, "choose between tensors, or decide by a Python value"
        )
    types = [type_of(x) for x in (one, other) if not is_number(x)]
    shapes = [type.shape for type in types]
    is_sized = len(shapes) > 1 and may_differ(shapes, reads_values)
    if is_sized and types[0].dtype is types[1].dtype:
        return _StateLeaf(types[0])
    return _StateLeaf(common_type(one, other, place))


def _join_undefined(one: Any, other: Any, place: StatePlace, flags: frozenset[str]) -> _Joined:
    """The state of a name that at most one branch sets. It is filled in where a flag says whether
    the function has returned, or the code that follows is not reached; any other name must not be
    used."""
    if is_undefined(one) and is_undefined(other):
        return _Joined(None, (), one)
    value = other if is_undefined(one) else one
    fact = f"{place.label} is set in only one branch of the `if` at {here()}"
    is_return = isinstance(one if is_undefined(one) else other, UndefinedReturnValue)
    if is_return or flags:
        leaves, structure = flattened(value)
        # What a name stands for is one Python value, and what a function returns one of several.
        is_state = is_carried if is_return else _is_tensor
        types = [type_of(x) if is_state(x) else None for x in leaves]
        filled = tuple(_StateLeaf(t, x) for t, x in zip(types, leaves))
        depth = thread.finally_depth
        own = None if is_return else SetUnlessLeft(place.name, None, flags, depth, fact)
        return _Joined(structure, filled, conditional=own)
    if unknown := next((x for x in (one, other) if isinstance(x, Unknown)), None):
        return _Joined(None, (), unknown)
    missing = "main" if is_undefined(one) else "else"
    fix = f"{place.label} must also be set in the {missing} branch"
    return _Joined(None, (), Undefined(place.name, fact, fix))


def run_choice(
    pred: Tensor,
    body: Any,
    orelse: Any,
    get_state: Any,
    set_state: Any,
    names: Sequence[str],
    flags: Iterable[str] = (),
    shared: Sequence[str] = (),
    carried: Sequence[Any] = (),
    unread: Sequence[str] = (),
) -> None:
    """An `if` on a predicate of the graph: traces both branches from the same state, of which what
    is in the containers `carried` is a part already. The `flags` say, where `pred` does not hold,
    that the code was left; `shared` names are read elsewhere too, and the `unread` nowhere."""
    before, flags = before_statement(names, get_state()), frozenset(flags)
    advanced = thread.advanced
    # The first statement that is traced opens it.
    containers = opened("tracegraph.autograph.changes.containers")
    held, keys = containers.held_by((body, orelse), names, carried), containers.BranchesKeys()
    named = other_names().held_with_others(names, before, (*held, *carried))

    def branch(run: Callable[[], None], is_first: bool) -> Traceable:
        def traced() -> tuple[Values, Values]:
            set_state(before)
            with _objects_kept(run, names, False) as set_, lists().changes_kept(run, flags):
                run()
            if changed := [*containers.changed((*held, *named), names), *set_]:
                raise containers.ContainersChanged(changed)
            after = get_state()
            values = tuple(map(containers.as_it_is, after))
            keys.remember(is_first, named)
            set_state(before)  # without the keys that are its names
            keys.remember(is_first, held)
            return after, values

        return traced

    try:
        exits = Exits(frozenset(), flags, shared, frozenset(unread).difference(shared))
        known = (x.container for x in (*held, *named, *carried))
        after = chosen(pred, branch(body, True), branch(orelse, False), names, exits, known)
    except containers.ContainersChanged as change:
        for x in change.held:
            x.put_back()
        set_state(before)
        if advanced != thread.advanced:  # what is traced again would take further items
            lists().refuse_advance("a branch")
        get_state, set_state, more = containers.with_items(change.held, get_state, set_state)
        unread = (*unread, *(x for x, own in zip(more, change.held) if own.is_named))
        names, carried = (*names, *more), (*carried, *containers.only(change.held))
        run_choice(pred, body, orelse, get_state, set_state, names, flags, shared, carried, unread)
        return
    except BaseException as error:
        set_state(before)
        _note_raise(error)
        raise
    keys.put_back()
    set_state(after)
    other_names().settle()


def _note_raise(error: BaseException) -> None:
    """Adds to an exception from a `raise` in the user's file the note that both branches are
    traced."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or hasattr(error, "__notes__"):
        return
    code, line = place.tb_frame.f_code, here()
    is_raise = dis.opname[code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
    if is_raise and code.co_filename == line.file:
        error.add_note(
            f"both branches of the `if` at {line} are traced, since a tensor decides, so this "
            "`raise` does not depend on it\n"
            "  fix: use `assert`, which is checked when the graph runs, or decide by a Python value"
        )


# Loops.


class _Again(StatesChanged):
    """The state of a loop has other types than those it was traced with."""


@dataclasses.dataclass
class _LoopLeaf:
    """A leaf of the state of a loop: its value before, and the type of the tensor that carries it;
    None for a Python value that does not change. A TensorArray is one leaf, of the type
    TensorArray: the loop itself handles its tensors."""

    initial: Any
    type: Any
    is_changed: bool = False
    #: The shape that it fits in each iteration, if its sizes may change.
    invariant: TensorShape | None = None


@dataclasses.dataclass
class _LoopName:
    """A name in the state of a loop. Without a structure it has no value before each iteration."""

    structure: nest.Structure | None
    leaves: list[_LoopLeaf]
    undefined: Any = None
    #: Why it has no value after the loop either, although an iteration may have set it.
    behind: Any = None

    @staticmethod
    def before(value: Any) -> _LoopName:
        value = without_flags(value)
        if is_undefined(value):
            return _LoopName(None, [], value)
        leaves, structure = with_whole_arrays(value)
        own = [_LoopLeaf(x, None if _is_kept(x) else _type_of(x)) for x in leaves]
        return _LoopName(structure, own)

    def fresh(self, begun: Callable[[_LoopLeaf], Any]) -> Any:
        """The value before the loop, in fresh containers: for each leaf what `begun` gives."""
        if self.structure is None:
            return self.undefined
        return self.structure.pack([*map(begun, self.leaves)])

    def value(self, tensors: Iterator[Tensor], is_final: bool = False) -> Any:
        if self.structure is None:
            return self.behind if is_final and self.behind is not None else self.undefined
        leaves = []
        for leaf in self.leaves:
            tensor = None if leaf.type is None else next(tensors)
            is_kept = leaf.type is None or (is_final and not leaf.is_changed)
            leaves.append(leaf.initial if is_kept else tensor)
        return self.structure.pack(leaves)


def _is_kept(leaf: Any) -> bool:
    """Whether a leaf stays unchanged in a loop. A Variable is an object, whatever its value."""
    is_state = isinstance(leaf, TensorArray) or is_carried(leaf)
    return isinstance(leaf, Variable) or not is_state


def _type_of(leaf: Any) -> Any:
    return TensorArray if isinstance(leaf, TensorArray) else type_of(leaf)


def _as_state(leaf: Any, type: Any) -> Any:
    """A leaf in the form in which the loop carries it."""
    return leaf if type is TensorArray else as_type(leaf, type)


#: How often a loop is traced at most; each time, some of its state has found its type.
_MOST_ROUNDS = 25


class _StagedLoop:
    """The state of a loop while its body is traced: again, if that reveals other types."""

    def __init__(
        self,
        names: Sequence[str],
        get_state: GetState,
        set_state: SetState,
        options: LoopOptions,
    ) -> None:
        self._names = names
        self._get_state, self._set_state = get_state, set_state
        self._options = options
        self._before = before_statement(names, get_state())
        #: What each name has flags by, before the loop or after an iteration.
        self._conditional = [x if flags_of(x) else None for x in self._before]
        #: The dtypes and shapes of what the lists that grow hold, by the indices of their names.
        self._growing: dict[int, tuple[DType, TensorShape]] = {}
        self.own = [_LoopName.before(value) for value in self._before]
        #: The containers whose items iterations change.
        self._carried_items: list[Any] = []
        # The first loop that is traced opens it.
        self._containers = opened("tracegraph.autograph.changes.containers")
        self._added_keys = self._containers.AddedKeys()
        self._left = self._containers.LeftContainers()
        self._shared: set[tuple[int, int]] = set()  # see `other_names.shared_after`
        #: Whether it carries Python floats as float64, and those that it did not carry so before.
        self._has_widened = False
        self._narrowed: list[tuple[_LoopLeaf, TensorType]] = []
        #: What only the loop sets, such as what the function returns from it, by its name's index,
        #: if only the run knows its size: the loop carries what it is computed from.
        self._late: dict[int, LateValue] = {}

    @notes_what_leaves("the loop")
    def run(
        self, execute: Callable[[_StagedLoop], Sequence[Tensor]], once: Callable[[], None]
    ) -> None:
        """Traces the loop until the types of its state are stable. `once` runs one iteration."""
        try:
            for _ in range(_MOST_ROUNDS):
                self._carry_lists()
                try:
                    results = execute(self)
                    break
                except _Again as again:
                    self._keep_buffers(again.arrays)
                except (UnfitState, SizeOfStepError):
                    if not self._open():
                        raise
                except DTypeError:
                    # A Python number adopts the type of the tensors that it meets; the tensor that
                    # carries it does not.
                    if not (self._narrow() or self._retyped(once)):
                        raise
            else:
                fact = "what a loop carries or returns has another type each time that it is traced"
                fail(ShapeError, fact, fix="return after the loop: leave it by `break`")
        except BaseException:
            self._set_state(self._before)
            self._added_keys.remove()
            self._left.put_back()
            raise
        after = self._after(results)
        self._set_state(after)
        other_names().settle_after_loop(self._before, *self._step, after)

    def _open(self) -> bool:
        """Lets sizes of the state change where the user said that they may; False if that is so
        already."""
        shapes = {id(value): TensorShape(shape) for value, shape in self._options.invariants}
        closed = [x for own in self.own for x in own.leaves if x.invariant is None]
        found = [x for x in closed if isinstance(x.initial, Tensor) and id(x.initial) in shapes]
        for leaf in found:
            leaf.invariant = shapes[id(leaf.initial)]
        return bool(found)

    def invariants(self) -> list[TensorShape | None] | None:
        """The shapes that the tensors of the state fit, if they may change."""
        leaves = [leaf for own in self.own for leaf in own.leaves if leaf.type is not None]
        shapes = [leaf.invariant for leaf in leaves]
        return shapes if any(shape is not None for shape in shapes) else None

    def _after(self, tensors: Sequence[Tensor]) -> Values:
        """The state after the loop."""
        values = self.values(tensors, is_final=True)
        return tuple(
            value if own is None else dataclasses.replace(own, value=value)
            for value, own in zip(values, self._conditional, strict=True)
        )

    def _after_iteration(self) -> Values:
        """The state after an iteration that was run, without flags."""
        exits = self._options.exits
        values = tuple(after_iteration(value, exits) for value in self._get_state())
        for number, value in enumerate(values):
            if flags_of(value):
                self._conditional[number] = value
        return tuple(map(without_flags, values))

    def stepped(self, body: Callable[[], None], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The state after an iteration that starts with `tensors`."""
        self._run(body, begun := self.values(tensors))
        after = [*self._after_iteration()]
        self._step = begun, (*after,)
        for number, value in enumerate(after):
            if is_undefined(self._before[number]) and not is_undefined(value):
                after[number] = self._carried(number, value)
        found = self._next(tuple(after), tensors)
        if not self._has_widened:
            self._widen(tensors)
        return found

    def _widen(self, tensors: Sequence[Tensor]) -> None:
        """Raises _Again to carry Python floats as float64 where an iteration converts them to it:
        what it computes with them is as exact then as with the numbers themselves."""
        leaves = [x for own in self.own for x in own.leaves if x.type is not None]
        narrow = [
            (leaf, x)
            for leaf, x in zip(leaves, tensors, strict=True)
            if type(leaf.initial) is float and leaf.type.dtype is float32
        ]
        widened = [leaf for leaf, x in narrow if becomes_float64(x, current().nodes)]
        if widened:
            self._has_widened = True
            self._narrowed = [(leaf, leaf.type) for leaf in widened]
            for leaf in widened:
                leaf.type = TensorType(float64, ())
            raise _Again

    def _narrow(self) -> bool:
        """Undoes `_widen`, if that was the last thing: the numbers meet float32, too."""
        narrowed, self._narrowed = self._narrowed, []
        for leaf, type in narrowed:
            leaf.type = type
        return bool(narrowed)

    def _carried(self, number: int, value: Any) -> Any:
        """What the loop carries of a value that no step reads."""
        found = opened("tracegraph.autograph.late_values").late_value(value)  # few programs need it
        self._late.pop(number, None)
        if found is None:
            return value
        self._late[number], given = found
        if self.own[number].structure is not None and not self._fits(number, given):
            self.own[number] = _LoopName(None, [], self._before[number])
        return given

    def _fits(self, number: int, given: Sequence[Tensor]) -> bool:
        return [x.type for x in given] == [leaf.type for leaf in self.own[number].leaves]

    def _run(self, body: Callable[[], None], values: Values) -> None:
        """Runs an iteration that starts with these values. Raises _Again if one of them is a list
        that grows, to carry it as an array."""
        self._set_state(values)
        user_body, names = self._options.body or body, self._names
        held = self._containers.held_by((user_body,), names, self._carried_items)
        named = self._containers.held_by_names(names, values, self._carried_items)
        other_names().begin_step(values, self._before, held, self._shared)
        held += other_names().held_beside((*held, *named, *self._carried_items))
        try:
            with (
                _objects_kept(user_body, names, is_loop=True) as set_,
                lists().changes_kept(user_body),
            ):
                body()
            self._added_keys.check(held, names)
            if changed := [*self._containers.changed(held, names), *set_]:
                self._carry_items(changed)
            ended, shared = self._get_state(), self._shared
            self._shared = shared | other_names().shared_after(ended)
            states = [dict(zip(names, x)) for x in (self._before, ended)]
            if self._left.have_more(named, *states, held) or self._shared != shared:
                raise _Again
            if self._added_keys.are_new(held, self._get_state, self._set_state, values):
                raise _Again
        except lists().ListGrows as growth:
            self._containers.put_all_back((*held, *named))
            for number, value in enumerate(values):
                if value is growth.items:
                    before = self._before[number]
                    if lists().is_in_loop(before):  # the outermost loop carries it
                        growth.items = before
                        raise
                    self._growing[number] = growth.type.dtype, shape_of(growth.type.shape)
                    raise _Again from None
            if not lists().is_in_loop(growth.items):
                growth.refuse()
            raise

    def _carry_items(self, held: Sequence[Any]) -> None:
        """Takes what is in containers that an iteration changed into the state. Raises _Again."""
        for x in held:
            x.put_back()
        self._set_state(self._before)
        self._get_state, self._set_state, more = self._containers.with_items(
            held, self._get_state, self._set_state
        )
        self._names = (*self._names, *more)
        self._carried_items += self._containers.only(held)
        added = self._get_state()[len(self._before) :]
        self._before = (*self._before, *added)
        self._conditional += [None] * len(added)
        self.own += [_LoopName.before(x.begun(value)) for x, value in zip(held, added)]
        raise _Again

    def set_state(self, tensors: Sequence[Tensor]) -> None:
        """Sets the state to that which the tensors carry."""
        self._set_state(self.values(tensors))

    def _keep_buffers(self, arrays: Iterable[TensorArray]) -> None:
        """Begins the next time with the buffers that were found: what is returned may have their
        size."""
        leaves = [x for own in self.own for x in own.leaves if x.type is TensorArray]
        for leaf, array in zip(leaves, arrays):
            if leaf.initial.has_buffer or array.has_buffer:
                leaf.initial = array

    def _carry_lists(self) -> None:
        """Turns the lists that grow into arrays."""
        for number, kind in self._growing.items():
            own, items = self.own[number], self._before[number]
            is_list = own.structure is not None and own.structure.container is not None
            if is_list and isinstance(items, list):
                self.own[number] = _LoopName.before(TensorList.of(items, *kind))

    def check_entered(self, entered: Tensor | None) -> None:
        """Makes a run of 0 iterations fail if a name that only the loop sets may be read."""
        trace = current_trace()
        for name, own, value in zip(self._names, self.own, self._before, strict=True):
            is_set_here = is_undefined(value) and own.structure is not None
            is_return = isinstance(value, UndefinedReturnValue)
            # Other holders of the object may read an attribute or item.
            is_item = not name.isidentifier()
            is_read = (is_item or name in self._options.read_after) and not is_return
            if is_set_here and is_read and entered is not None and trace is not None:
                fix = f"give {name!r} a value before the loop"
                trace.check(entered, f"{name!r} is set by a loop that ran 0 times", (), fix)

    def _retyped(self, once: Callable[[], None]) -> bool:
        """Whether numbers become tensors of another type when an iteration starts with the numbers
        themselves. The loop then carries them with those types."""
        numbers = [x.initial for own in self.own for x in own.leaves if is_number(x.initial)]
        # By integers that it knows, Python may decide to leave out an inner loop.
        probes = ((bool, int, float, complex), (float, complex))
        return any(
            self._is_retyped_by(once, kinds) for kinds in probes if {*map(type, numbers)} & {*kinds}
        )

    def _is_retyped_by(self, once: Callable[[], None], kinds: tuple[type, ...]) -> bool:
        """Whether it is so if numbers of these kinds remain numbers, and others are tensors."""

        def begun(leaf: _LoopLeaf) -> Any:
            is_known = not is_number(leaf.initial) or type(leaf.initial) in kinds
            return leaf.initial if is_known else iteration.input(type_of(leaf.initial))

        with Trace("iteration") as iteration:
            try:
                self._run(once, tuple(own.fresh(begun) for own in self.own))
            except _Again:
                return True
            after = self._after_iteration()
        found = [self._retype(*pair) for pair in zip(self.own, after, strict=True)]
        return any(found)

    @staticmethod
    def _retype(own: _LoopName, value: Any) -> bool:
        is_new = False
        leaves = [] if is_undefined(value) else with_whole_arrays(value)[0]
        for leaf, new in zip(own.leaves, leaves):
            if is_number(leaf.initial) and isinstance(new, Tensor) and leaf.type is not None:
                is_number_too = not new.dtype.is_bool and new.type.shape == ()
                if is_number_too and new.dtype is not leaf.type.dtype:
                    leaf.type, is_new = new.type, True
        return is_new

    def names_of_tensors(self) -> list[str]:
        """The user's name for each carried leaf of the state."""
        counts = [sum(leaf.type is not None for leaf in own.leaves) for own in self.own]
        pairs = zip((name.removeprefix(HOOKS) for name in self._names), counts, strict=True)
        return [label for name, count in pairs for label in numbered(_as_path(name), count)]

    def initial(self) -> list[Tensor]:
        return [
            _as_state(leaf.initial, leaf.type)
            for own in self.own
            for leaf in own.leaves
            if leaf.type is not None
        ]

    def values(self, tensors: Sequence[Tensor], is_final: bool = False) -> Values:
        rest = iter(tensors)
        found = [own.value(rest, is_final) for own in self.own]
        for number, late in self._late.items():
            has = is_final and self.own[number].structure is not None
            found[number] = late.computed(found[number]) if has else self._before[number]
        return tuple(found)

    def _next(self, after: Values, entered: Sequence[Tensor]) -> list[Tensor]:
        """The state after an iteration that started with the tensors `entered`."""
        rest, found, is_new = iter(entered), [], False
        for number, (name, value) in enumerate(zip(self._names, after, strict=True)):
            own = self.own[number]
            place = StatePlace(
                name,
                "before the loop",
                "after one iteration",
                "give it before the loop the shape that it gets in the loop; append what grows to "
                "a list, and join that after the loop by tg.stack or tg.concat",
            )
            if own.structure is None:
                is_new |= self._define(number, value)
                continue
            if isinstance(value, Unknown):
                is_new, self.own[number] = True, _LoopName(None, [], value)
                own.value(rest)  # passes over its tensors
                continue
            if is_undefined(value):
                place.refuse(SignatureError, own.value(rest), value, "set it in every iteration")
            leaves, structure = with_whole_arrays(value)
            if isinstance(value, TensorList) and own.structure.container is not None:
                # An inner loop makes it grow.
                self._growing[number] = value.dtype, value.element_shape
                raise _Again
            if not structure.matches(own.structure):
                before = own.structure.pack([x.initial for x in own.leaves])
                place.refuse(SignatureError, before, value, _GROWS)
            for leaf, new in zip(own.leaves, leaves, strict=True):
                old = None if leaf.type is None else next(rest)
                is_new |= _next_leaf(leaf, new, old, place)
                found.append((leaf, new))
        if is_new:
            raise _Again
        return [_as_state(new, leaf.type) for leaf, new in found if leaf.type is not None]

    def _define(self, number: int, value: Any) -> bool:
        """Gives a name without a value before the loop the types that it gets in the loop."""
        if self.own[number].undefined.is_left_out(value):
            return False
        if is_undefined(value):
            if value.fact:
                fix = f"give {value.name!r} a value before the loop"
                self.own[number].behind = Undefined(value.name, value.fact, fix)
            return False
        undefined = self.own[number].undefined
        own = self.own[number] = _LoopName.before(value)
        for leaf in own.leaves:
            if leaf.type is not None:
                is_array = leaf.type is TensorArray
                leaf.initial = leaf.initial.emptied() if is_array else undefined
                leaf.is_changed = True
        return True


def _as_path(name: str) -> str:
    """A name, attribute or item as a path in graphs: `self.d['a']` is `d.a`."""
    name = name.removeprefix(ITEMS_OF).removeprefix("self.")
    return re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", name)


_GROWS = (
    "keep its structure: let tg.scan stack what each step returns, or write to a tg.TensorArray"
)


def _next_leaf(leaf: _LoopLeaf, new: Any, old: Tensor | None, place: StatePlace) -> bool:
    """Checks a leaf after an iteration; returns whether its type requires another trace."""
    if isinstance(leaf.initial, Unknown):
        return False
    if isinstance(new, Unknown):  # no step may read it, and nothing after the loop
        leaf.initial, leaf.type = new, None
        return True
    if leaf.type is None:
        if is_same(leaf.initial, new):
            return False
        if isinstance(leaf.initial, Variable) and is_carried(new):
            # The name refers to the Variable's value from the start, as in `y = v` before a loop
            # with `y = y + 1`.
            leaf.type, leaf.is_changed = common_type(leaf.initial, new, place), True
            return True
        place.refuse(SignatureError, leaf.initial, new, "carry a tensor of one type instead")
    if new is old:
        return False
    leaf.is_changed = True
    if leaf.type is TensorArray:
        if not isinstance(new, TensorArray):
            place.refuse(SignatureError, leaf.initial, new, "keep the array that write returns")
        return False
    if not is_carried(new):
        place.refuse(SignatureError, leaf.initial, new, "carry a tensor of one type instead")
    if is_number(new):
        common_type(new, as_type(leaf.initial, leaf.type), place)
        return False
    type = type_of(new)
    if type is leaf.type:
        return False
    if is_undefined(leaf.initial):
        leaf.type = type  # a buffer has become larger, and no step reads what only steps set
        return True
    if leaf.invariant is not None and type.dtype is leaf.type.dtype:
        if leaf.invariant.is_compatible_with(shape_of(type.shape)):
            return False
        fix = f"keep it within its shape invariant, {leaf.invariant}"
        place.refuse(UnfitState, leaf.initial, new, fix)
    leaf.type = common_type(leaf.initial, new, place)
    return old is None or leaf.type is not old.type


def run_loop(
    test: Callable[[], Any],
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    options: LoopOptions,
) -> None:
    """A loop whose test is a value of the graph."""

    def execute(loop: _StagedLoop) -> Sequence[Tensor]:
        initial = loop.initial()
        padding = [] if initial else [as_tensor(0)]  # if only Variables change

        def cond(*tensors: Tensor) -> Tensor:
            loop.set_state(tensors[: len(initial)])
            return predicate(test())

        def step(*tensors: Tensor) -> list[Tensor]:
            return [*loop.stepped(body, tensors[: len(initial)]), *padding]

        most = options.maximum_iterations
        named = with_names(step, loop.names_of_tensors() or ["padding"])
        shapes = loop.invariants()
        if shapes is not None:
            shapes += [None] * len(padding)
        states = while_loop(cond, named, [*initial, *padding], shapes, maximum_iterations=most)
        return states[: len(initial)]

    loop = _StagedLoop(names, get_state, set_state, options)
    entered = None if options.is_entered else predicate(test())
    loop.run(execute, body)
    loop.check_entered(entered)


def run_fold(
    rows: Any,
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    options: LoopOptions,
) -> None:
    """A loop over all rows of a nest of tensors."""

    def execute(loop: _StagedLoop) -> Sequence[Tensor]:
        initial = loop.initial()
        padding = [] if initial else [as_tensor(0)]  # a fold must have a state

        def step(state: list[Tensor], row: Any) -> list[Tensor]:
            return [*loop.stepped(lambda: body(row), state[: len(initial)]), *padding]

        items = re.findall(r"\w+", options.item)
        count = len(nest.flatten(rows))
        items = items if len(items) == count else numbered("row", count)
        states = loop.names_of_tensors() or ["padding"]
        found = foldl(with_names(step, [*states, *items]), rows, [*initial, *padding])
        return found[: len(initial)]

    def first() -> None:
        # There may be no row whose values could be taken.
        trace = current_trace()
        assert trace is not None
        types = nest.map_structure(lambda x: TensorType(x.dtype, x.type.shape[1:]), rows)
        body(nest.map_structure(trace.input, types))

    # A loop over rows is one program, whose sizes are fixed.
    loop = _StagedLoop(names, get_state, set_state, dataclasses.replace(options, invariants=()))
    loop.run(execute, first)
    size = nest.flatten(rows)[0].type.shape[0]
    loop.check_entered(None if (least(size) or 0) > 0 else as_tensor(size, int32) > 0)


def leave_iteration(get_state: GetState, set_state: SetState, exits: Sequence[str]) -> None:
    """Drops, after an iteration that Python ran, the values that a name has unless the iteration
    was left."""
    if exits:
        before = get_state()
        after = tuple(after_iteration(value, exits) for value in before)
        if any(x is not y for x, y in zip(before, after, strict=True)):
            set_state(after)


# What is read.


@contextlib.contextmanager
def finally_() -> Iterator[None]:
    """The context of a `finally` block, which is reached wherever the code before was left."""
    thread.finally_depth += 1
    try:
        yield
    finally:
        thread.finally_depth -= 1


def read(value: Any) -> Any:
    """The value of a name that is being read."""
    if isinstance(value, SetUnlessLeft):
        if value.depth >= thread.finally_depth:
            return value.value
        value = value.refused("the `try`")
    if isinstance(value, Undefined):
        value.refuse()
    return value


# Objects and containers.


class _OfThread(threading.local):
    def __init__(self) -> None:
        #: How many `finally` blocks are being traced.
        self.finally_depth = 0
        #: The branches and bodies that are being traced.
        self.entered: list[Entered] = []
        #: How often code that is guarded has advanced an iterator.
        self.advanced = 0


thread = _OfThread()


def lists() -> Any:
    return opened("tracegraph.autograph.changes.lists")


def _objects_kept(body: Any, names: Sequence[str], is_loop: bool) -> Any:
    """A context that gives what functions from elsewhere set in objects that a body has from
    outside, and warns of what is no state."""
    names = (*names, *names_and_attributes().names_stored(body, names))
    return opened("tracegraph.autograph.changes.objects").objects_kept(body, names, is_loop)


def other_names() -> Any:
    """The module about containers that may be one; the first statement that is traced opens it."""
    return opened("tracegraph.autograph.changes.other_names")


def names_and_attributes() -> Any:
    """The module about what code sets, which few programs need."""
    return opened("tracegraph.autograph.changes.names")
