"""Branches that a value of the graph decides about: both are traced, and what they set is one
state."""

from __future__ import annotations

import dataclasses
import dis
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tracegraph import nest
from tracegraph.autograph.statements.values import (
    SetUnlessLeft,
    StatePlace,
    Undefined,
    UndefinedReturnValue,
    Unknown,
    Values,
    as_type,
    before_statement,
    both_flagged,
    common_type,
    flags_of,
    flattened,
    is_carried,
    is_flag,
    is_number,
    is_same,
    is_undefined,
    thread,
    type_of,
    where_reached,
)
from tracegraph.control.branch import Cond, may_differ
from tracegraph.control_flow.branches import choice
from tracegraph.control_flow.regions import TracedRegion, one_element, traced_region
from tracegraph.core.later import opened
from tracegraph.core.source import here
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import TensorType
from tracegraph.effects.host_calls import declare_result
from tracegraph.errors import DTypeError, ShapeError, SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.elementwise import LogicalNot, NotEqual
from tracegraph.state.variable import is_array
from tracegraph.tensor_arrays.array_states import (
    Need,
    chosen_alike,
    common_needs,
    measured,
    supplied,
)
from tracegraph.tensor_arrays.tensor_array import TensorList
from tracegraph.tracing.trace import notes_what_leaves

#: A branch of an `if`: it gives the values that it ends with, and these as they are then.
Traceable = Callable[[], tuple[Values, Values]]


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
            values = chosen_alike(tuple(map(where_reached, values)))
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
    found[:2] = zip(*map(both_flagged, names, *found[:2])) if names else found[:2]
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
            with objects_kept(run, names, False) as set_, lists().changes_kept(run, flags):
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


# Objects and containers.


def lists() -> Any:
    return opened("tracegraph.autograph.changes.lists")


def objects_kept(body: Any, names: Sequence[str], is_loop: bool) -> Any:
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
