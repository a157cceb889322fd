"""Loops that a value of the graph ends: one iteration is traced, and tensors carry its state."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tracegraph import nest
from tracegraph.autograph.changes import containers
from tracegraph.autograph.statements.branches import lists, objects_kept, other_names, predicate
from tracegraph.autograph.statements.late_values import LateValue, late_value
from tracegraph.autograph.statements.values import (
    ITEMS_OF,
    GetState,
    SetInLoop,
    SetState,
    StatePlace,
    Undefined,
    UndefinedReturnValue,
    UnfitState,
    Unknown,
    Values,
    after_iteration,
    as_type,
    before_statement,
    check_set,
    common_type,
    flags_of,
    flattened,
    is_carried,
    is_number,
    is_same,
    is_undefined,
    thread,
    type_of,
    where_reached,
    without_flags,
)
from tracegraph.control_flow.loops import foldl, while_loop
from tracegraph.control_flow.regions import SizeOfStepError, numbered, with_names
from tracegraph.control_passes.dataflow import becomes_float64
from tracegraph.core.shapes import least
from tracegraph.core.source import HOOKS
from tracegraph.core.tensorshape import TensorShape, shape_of
from tracegraph.core.types import DType, TensorType, float32, float64, int32
from tracegraph.errors import DTypeError, ShapeError, SignatureError, fail
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.variable import Variable
from tracegraph.tensor_arrays.array_states import StatesChanged, with_whole_arrays
from tracegraph.tensor_arrays.tensor_array import TensorArray, TensorList
from tracegraph.tracing.trace import Trace, current_trace, notes_what_leaves


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """What is known of a loop besides its parts."""

    #: The number of iterations after which it ends; None if only its test ends it.
    maximum_iterations: Any = None
    #: The names that may be read after it.
    read_after: Sequence[str] = ()
    #: The names that other functions may read, too.
    shared: Sequence[str] = ()
    #: The flags by which an iteration says that it was left.
    exits: Sequence[str] = ()
    #: The names that nothing reads after it, unless a function that is a value does.
    unsure: Sequence[str] = ()
    #: Whether it is known to run at least once.
    is_entered: bool = False
    #: The user's body, if the function that runs was derived from it.
    body: Any = None
    #: The user's name for the item of an iteration in a `for`.
    item: str = "row"
    #: Values of the state before it, each with a shape that leaves the sizes open which may change.
    invariants: Sequence[tuple[Any, TensorShape]] = ()


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

    @property
    def is_flagged(self) -> bool:
        """Whether the loop also carries whether the name is set."""
        container = None if self.structure is None else self.structure.container
        return container is not None and container.kind is SetInLoop

    def labels(self, name: str) -> list[str]:
        """Names for the tensors that carry it."""
        count = sum(leaf.type is not None for leaf in self.leaves)
        if not self.is_flagged:
            return numbered(name, count)
        return [f"{name}_is_set", *numbered(name, count - 1)]

    @staticmethod
    def before(value: Any) -> _LoopName:
        value = where_reached(value)
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


def _has_no_value(value: Any) -> bool:
    """Whether a value is what a loop begins with for a name that only iterations set."""
    is_return = isinstance(value, UndefinedReturnValue)
    is_missing = is_undefined(value) and not is_return
    return is_missing or not thread.unset.isdisjoint(_tensors_in(value))


def _tensors_in(value: Any) -> list[Tensor]:
    return [x for x in flattened(without_flags(value))[0] if isinstance(x, Tensor)]


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
        #: Whether each name has no value before this loop, or before one around it.
        self._is_unset = [*map(_has_no_value, self._before)]
        self.own = [_LoopName.before(value) for value in self._before]
        #: The containers whose items iterations change.
        self._carried_items: list[Any] = []
        self._added_keys = containers.AddedKeys()
        self._left = containers.LeftContainers()
        self._shared: set[tuple[int, int]] = set()  # see `other_names.shared_after`
        #: Whether it carries Python floats as float64, and those that it did not carry so before.
        self._has_widened = False
        self._narrowed: list[tuple[_LoopLeaf, TensorType]] = []
        #: What only the loop sets, such as what the function returns from it, by its name's index,
        #: if only the run knows its size: the loop carries what it is computed from.
        self._late: dict[int, LateValue] = {}

    @notes_what_leaves("the loop")
    def run(
        self,
        execute: Callable[[_StagedLoop], Sequence[Tensor]],
        once: Callable[[], None],
        entered: Tensor | None,
    ) -> None:
        """Traces the loop until the types of its state are stable. `once` runs one iteration;
        `entered` says whether the run has any, if that is not known."""
        unset = {*thread.unset}
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
        finally:
            thread.unset = unset
        after = self._after(results, entered)
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

    def _after(self, tensors: Sequence[Tensor], entered: Tensor | None) -> Values:
        """The state after the loop."""
        values = [*self.values(tensors, is_final=True)]
        if entered is not None:
            self._flag(values, entered)
        return tuple(
            value if own is None else dataclasses.replace(own, value=value)
            for value, own in zip(values, self._conditional, strict=True)
        )

    def _flag(self, values: list[Any], entered: Tensor) -> None:
        """Adds to each value that only iterations set whether one did. The run fails where none
        has set a name that other code may read."""
        for number, (name, value) in enumerate(zip(self._names, values, strict=True)):
            if not self._is_unset[number] or is_undefined(value):
                continue
            if not self._is_own(name):
                check_set(name, entered)
            elif self._may_be_read(name) and not isinstance(value, SetInLoop):
                values[number] = SetInLoop(name, value, entered)

    def _may_be_read(self, name: str) -> bool:
        return name in self._options.read_after or name in self._options.unsure

    def _is_own(self, name: str) -> bool:
        """Whether only this function reads a name."""
        return name.isidentifier() and name not in self._options.shared

    def _after_iteration(self) -> Values:
        """The state after an iteration that was run, as the loop carries it."""
        exits = self._options.exits
        values = tuple(after_iteration(value, exits) for value in self._get_state())
        for number, value in enumerate(values):
            if flags_of(value):
                self._conditional[number] = value
        return tuple(
            SetInLoop.alike(name, value) if own.is_flagged else value
            for name, own, value in zip(self._names, self.own, map(where_reached, values))
        )

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
        found = late_value(value)
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
        held = containers.held_by((user_body,), names, self._carried_items)
        named = containers.held_by_names(names, values, self._carried_items)
        other_names().begin_step(values, self._before, held, self._shared)
        held += other_names().held_beside((*held, *named, *self._carried_items))
        try:
            with (
                objects_kept(user_body, names, is_loop=True) as set_,
                lists().changes_kept(user_body),
            ):
                body()
            self._added_keys.check(held, names)
            if changed := [*containers.changed(held, names), *set_]:
                self._carry_items(changed)
            ended, shared = self._get_state(), self._shared
            self._shared = shared | other_names().shared_after(ended)
            first, last = (dict(zip(names, x)) for x in (self._before, ended))
            if self._left.have_more(named, first, last, held) or self._shared != shared:
                raise _Again
            if self._added_keys.are_new(held, self._get_state, self._set_state, values):
                raise _Again
        except lists().ListGrows as growth:
            containers.put_all_back((*held, *named))
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
        self._get_state, self._set_state, more = containers.with_items(
            held, self._get_state, self._set_state
        )
        self._names = (*self._names, *more)
        self._carried_items += containers.only(held)
        added = self._get_state()[len(self._before) :]
        self._before = (*self._before, *added)
        self._is_unset += map(_has_no_value, added)
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
        pairs = zip((name.removeprefix(HOOKS) for name in self._names), self.own, strict=True)
        return [label for name, own in pairs for label in own.labels(_as_path(name))]

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
        for name, value, is_unset in zip(self._names, found, self._is_unset, strict=True):
            if is_unset and not is_final and not self._is_own(name):
                thread.unset.update(_tensors_in(value))
        for number, late in self._late.items():
            has = is_final and self.own[number].structure is not None
            found[number] = late.computed(found[number]) if has else self._before[number]
        return tuple(found)

    def _next(self, after: Values, entered: Sequence[Tensor]) -> list[Tensor]:
        """The state after an iteration that started with the tensors `entered`."""
        rest, found, is_new = iter(entered), [], False
        for number, (name, value) in enumerate(zip(self._names, after, strict=True)):
            count = sum(leaf.type is not None for leaf in self.own[number].leaves)
            tensors = [*itertools.islice(rest, count)]
            try:
                leaves, is_other = self._next_value(number, value, tensors)
            except (DTypeError, ShapeError, SignatureError):
                if name not in self._options.unsure:
                    raise
                self._leave_out(number)
                leaves, is_other = [], True
            found += leaves
            is_new |= is_other
        if is_new:
            raise _Again
        return [_as_state(new, leaf.type) for leaf, new in found if leaf.type is not None]

    def _next_value(
        self, number: int, value: Any, entered: Sequence[Tensor]
    ) -> tuple[list[tuple[_LoopLeaf, Any]], bool]:
        """The leaves of one name after an iteration, and whether they require another trace."""
        own, rest = self.own[number], iter(entered)
        place = StatePlace(
            self._names[number],
            "before the loop",
            "after one iteration",
            "give it before the loop the shape that it gets in the loop; append what grows to "
            "a list, and join that after the loop by tg.stack or tg.concat",
        )
        if own.structure is None:
            return [], self._define(number, value)
        if isinstance(value, Unknown):
            self.own[number] = _LoopName(None, [], value)
            return [], True
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
        pairs, is_new = [*zip(own.leaves, leaves, strict=True)], False
        for leaf, new in pairs:
            old = None if leaf.type is None else next(rest)
            is_new |= _next_leaf(leaf, new, old, place)
        return pairs, is_new

    def _leave_out(self, number: int) -> None:
        """Carries a name no longer, which only functions that are values may read: they may not."""
        name = self._names[number]
        fact = f"a graph cannot carry what a loop sets {name!r} to, and a function reads it later"
        fix = f"give the function the value that it is to read: lambda x, {name}={name}: …"
        self.own[number] = _LoopName(None, [], Unknown(name, fact, fix))

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
    loop.run(execute, body, None if options.is_entered else predicate(test()))


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
    size = nest.flatten(rows)[0].type.shape[0]
    loop.run(execute, first, None if (least(size) or 0) > 0 else as_tensor(size, int32) > 0)
