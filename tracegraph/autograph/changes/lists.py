"""Calls that change a list, or advance an iterator, that the code of a statement has from outside.

The statement is traced once, so such a change would happen once, whatever values the tensors have.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple, NoReturn

from tracegraph import nest
from tracegraph.autograph.changes import containers
from tracegraph.autograph.statements.branches import other_names, thread
from tracegraph.autograph.statements.values import in_graph, is_carried
from tracegraph.core.source import HOOKS, here
from tracegraph.core.types import TensorType
from tracegraph.errors import SignatureError, fail
from tracegraph.operands.conversion import as_tensor
from tracegraph.tensor_arrays.tensor_array import TensorList


class Entered(NamedTuple):
    """A branch or body that is being traced."""

    #: The lists and iterators from outside, by their identities.
    held: dict[int, Any]
    #: "a loop" or "a branch"; empty if it only guards code that follows a `break` or `return`:
    #: Python would come there in each of the same iterations before that.
    kind: str
    #: What was in the lists.
    before: dict[int, list[Any]]
    #: Whether it may remove something from one, by what its own code shows.
    removes: bool
    #: The lists to which it appends, and from which it may remove as many.
    growing: dict[int, ListGrows]


@contextlib.contextmanager
def changes_kept(body: Any, flags: Iterable[str] | None = None) -> Iterator[None]:
    """A context in which the lists that a body has from outside must not change, nor dicts and
    sets get its tensors as keys, nor iterators be advanced. A branch has `flags`."""
    is_guard = any(not name.startswith(f"{HOOKS}continue_") for name in flags or ())
    kind = "a loop" if flags is None else "" if is_guard else "a branch"
    held = [*containers.reached_directly(body)]
    counts = [(x, len(x)) for x in held if isinstance(x, (dict, set))]
    kept = {id(x): x for x in held if type(x) in (list, TensorList)}
    kept |= {id(x): x for x in containers.inside(body)}
    lengths = [(x, len(x)) for x in kept.values() if type(x) is list]
    other_names().settle()
    removes = _removes(getattr(body, "__code__", None))
    entered = Entered(kept, kind, {id(x): [*x] for x, _ in lengths}, removes, {})
    thread.entered.append(entered)
    try:
        yield
        _check_growing(entered)
        check_lengths(lengths, kind or "a branch")
        for table, count in counts:
            containers.check_keys(table, count, kind)
    finally:
        thread.entered.pop()


@functools.lru_cache(maxsize=1024)
def _removes(code: CodeType | None) -> bool:
    """Whether code, with that inside it, calls `pop` or `clear`, or deletes items."""
    if code is None:
        return False
    is_call = not {"pop", "remove", "clear"}.isdisjoint(code.co_names)
    inner = [x for x in code.co_consts if isinstance(x, CodeType)]
    deletes = (x.opname == "DELETE_SUBSCR" for x in dis.get_instructions(code))
    return is_call or any(map(_removes, inner)) or any(deletes)


def _may_keep_length(growth: ListGrows) -> bool:
    """Whether a list from outside, to which the code appends, may lose as many items, as a history
    of fixed length does. That is known at the end of the code."""
    own = thread.entered[-1] if thread.entered else None
    if own is None or id(growth.items) not in own.before:
        return False
    own.growing.setdefault(id(growth.items), growth)
    return True


def _check_growing(own: Entered) -> None:
    """Raises ListGrows or SignatureError for a list that has become longer after all."""
    for number, growth in own.growing.items():
        if len(growth.items) > len(own.before[number]):
            growth.items[:] = own.before[number]
            if growth.type is not None and is_in_loop(growth.items):
                raise growth
            growth.refuse()


def is_in_loop(items: Any) -> bool:
    """Whether a loop of the graph, whose body is being traced, has a list from outside."""
    return any(x.kind == "a loop" and id(items) in x.held for x in thread.entered)


class ListGrows(Exception):
    """Code appends a value to a list that a loop carries."""

    def __init__(self, method: Any, value: Any = None) -> None:
        self._method, self.items, self._source = method, method.__self__, here()
        self._is_in_loop = is_in_loop(self.items)
        #: That of the items; None if a loop cannot carry the list as an array.
        self.type: TensorType | None = None
        if _is_growing(value):
            self.type = TensorType(value.dtype, value.element_type)
        elif is_carried(value):
            self.type = as_tensor(value).type

    def refuse(self) -> NoReturn:
        """Raises SignatureError."""
        refuse(self._method, self._is_in_loop, self._source)


def list_append(items: Any, value: Any, is_own: bool = True) -> Any:
    """The list after `items.append(value)`. One that a loop of the graph carries is an array, and
    the state of a statement is another one then, unless it has other names: not `is_own`."""
    if isinstance(items, TensorList):
        if is_own and _holders(items):
            return items.appended(value)
        refuse_change(items.append)
    elif type(items) is list and any(map(is_carried, nest.flatten(value))):
        growth = ListGrows(items.append, value)
        if growth.type is None or not is_in_loop(items):
            check_growth(items.append)
        elif not (thread.entered[-1].removes and _may_keep_length(growth)):
            raise growth
    items.append(value)
    return items


def list_extend(items: Any, values: Any, is_own: bool = True) -> Any:
    """The list after `items.extend(values)`."""
    if isinstance(items, TensorList):
        if is_own and _holders(items):
            return items.extended(values)
        refuse_change(items.extend)
        items.extend(values)
        return items
    if not isinstance(items, list):
        items.extend(values)
        return items
    if type(items) is list and _is_growing(values):
        if is_in_loop(items):
            raise ListGrows(items.extend, values)
        refuse_change(items.extend)
        if not is_own:
            fail(
                SignatureError,
                "a list that has several names gets the items of one to which a loop appends, and "
                "is another list then",
                fix="extend a copy, and use that by one name: ys = [*ys]; ys += xs",
            )
        return items + values
    for value in [*values]:
        items = list_append(items, value, is_own)
    return items


def _is_growing(values: Any) -> bool:
    return isinstance(values, TensorList) and not values.has_known_length


def list_add(items: Any, values: Any, is_own: bool | None = True) -> Any:
    """What `items += values` gives; `is_own` is None for a list that has another name."""
    # A right operand that adds itself, such as a tensor, comes first.
    adds_itself = hasattr(values, "__radd__") and not isinstance(values, TensorList)
    is_pythons = (
        type(items) is not list or adds_itself or (is_own is None and not _is_growing(values))
    )
    if is_pythons and not isinstance(items, TensorList):
        items += values
        return items
    return list_extend(items, values, bool(is_own))


def list_repeat(items: Any, times: Any, is_own: bool | None = True) -> Any:
    """What `items *= times` gives."""
    if isinstance(items, TensorList):
        if is_own and not items.grows and _holders(items):
            return items * times
        refuse_change(items.__imul__)
    elif type(items) is list and is_own:
        return items * times
    items *= times
    return items


def list_insert(items: Any, place: Any, value: Any, is_own: bool = True) -> Any:
    """The list after `items.insert(place, value)`."""
    if type(items) is list and any(map(is_carried, nest.flatten(value))):
        check_growth(items.insert)
    items.insert(place, value)
    return items


def _holders(items: Any) -> list[Any]:
    """The branches and bodies being traced that have a list from outside."""
    return [own for own in thread.entered if id(items) in own.held]


def check_growth(method: Any) -> None:
    """Raises SignatureError if a method makes a list from outside a longer one: at the end of the
    code, if it may still lose as many items."""
    if not _may_keep_length(ListGrows(method)):
        refuse_change(method)


def refuse_change(method: Any) -> None:
    """Raises SignatureError if a method would change a list from outside the branch or body being
    traced."""
    for own in _holders(method.__self__):
        refuse(method, is_loop=own.kind == "a loop")


def check_lengths(lengths: Sequence[tuple[list[Any], int]], kind: str) -> None:
    """Raises SignatureError if a list from outside, of which the length was noted, has got further
    tensors in "a loop" or "a branch": by `+=`, `*=`, or an assignment to a slice."""
    for items, length in lengths:
        added = items[length:]
        if any(map(in_graph, nest.flatten(added))):
            del items[length:]
            fail(
                SignatureError,
                f"a list of {length} gets {len(added)} more in {kind} that a tensor decides about; "
                "it is traced once, and the list is Python's",
                fix=_FIXES[kind],
            )


_FIXES = {
    "a branch": "set a name in both branches, and change the list after them",
    "a loop": "append to a list that this function creates, and that has one name there; or write "
    "to a tg.TensorArray, or let tg.scan stack what each step returns",
}


def refuse(method: Any, is_loop: bool, source: Any = None) -> NoReturn:
    """Raises the SignatureError for a method that changes a list in a loop or a branch."""
    where = "a loop" if is_loop else "a branch"
    fix = _FIXES[where]
    if method.__name__ == "pop":
        fix = "write to a tg.TensorArray, and keep the number of items that count as an int"
    fail(
        SignatureError,
        f".{method.__name__}() changes a list in {where} that a tensor decides about; it "
        "is traced once, and the list is "
        + ("from outside of it" if isinstance(method.__self__, TensorList) else "Python's"),
        source=source,
        fix=fix,
    )


def refuse_operand(word: str) -> NoReturn:
    """Raises SignatureError for the other operand of `and` or `or` beside a list."""
    fail(
        SignatureError,
        f"`{word}` gives one of its operands, and one is a list to which a loop appends, of which "
        "only the run knows whether it is empty; the other is not a bool",
        fix="compare the length: len(xs) > 0; or decide in an `if` of its own",
    )


def check_advance(iterated: Any) -> None:
    """Raises SignatureError if `iterated` is an iterator from outside the branch or body being
    traced."""
    for own in thread.entered if isinstance(iterated, Iterator) else ():
        if id(iterated) in own.held:
            thread.advanced += 1
            if own.kind:
                refuse_advance(own.kind)


def refuse_advance(kind: str) -> NoReturn:
    """Raises the SignatureError for an iterator that "a loop" or "a branch" advances."""
    fail(
        SignatureError,
        f"Python's iterator is advanced in {kind} that a tensor decides about; it is traced "
        "once, so it takes one item, whatever value the tensor has",
        fix="loop over the items themselves, as a tensor: for x in tg.stack(items); or index it: "
        "items[i]"
        if kind == "a loop"
        else "take the item before the `if`",
    )
