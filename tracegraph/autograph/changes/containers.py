"""Lists, dicts and sets that a statement changes in place, by keys that it computes or by methods:
what is in them is state of the statement too, and found while it is traced.

What is only added to a list does not count: that is how code collects what it sees. Keys that are
new in a dict count where a later step, or the other branch, gives them another number, and so do
numbers that are new in a set where a later step adds others. A graph carries no set, so one must
not lose items.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tracegraph import nest
from tracegraph.autograph.changes.attributes import attributes_of
from tracegraph.autograph.statements.values import (
    CARRIED,
    ITEMS_OF,
    SetUnlessLeft,
    Undefined,
    Unknown,
    content,
    in_graph,
    is_carried,
    is_number,
    is_same,
    without_flags,
)
from tracegraph.autograph.translation.inner_functions import base_of
from tracegraph.core.source import HOOKS, here, is_ours
from tracegraph.errors import SignatureError, fail, kind_of, message, shown, warn
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.state.user_names import names_in_code
from tracegraph.tensor_arrays.array_states import with_whole_arrays
from tracegraph.tensor_arrays.tensor_array import TensorArray, TensorList

if TYPE_CHECKING:
    from tracegraph.autograph.changes.objects import SetElsewhere

#: A graph does not carry the items of larger tables.
_MOST_ITEMS = 1000
_DEEPEST = 4


def _refusing(self: Undefined, *operands: Any) -> NoReturn:
    self.refuse()


# Where a name is read, `values.read` refuses; here it is an item of a container.
_OPERATORS = ["add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or"]
_USES = [
    "array",
    "bool",
    "call",
    "delitem",
    "eq",
    "float",
    "getitem",
    "ge",
    "gt",
    "int",
    "iter",
    "le",
    "lt",
    "len",
    "setitem",
]
for _use in (*_USES, *_OPERATORS, *(f"r{x}" for x in _OPERATORS)):
    setattr(Undefined, f"__{_use}__", _refusing)
Undefined.__tracegraph_tensor__ = _refusing  # type: ignore[attr-defined]
Undefined.__hash__ = object.__hash__  # type: ignore[method-assign]


class Inner(NamedTuple):
    """A container in another one."""

    path: str
    owner: Any
    key: Any
    container: Any

    def put_back(self) -> None:
        is_dict = isinstance(self.owner, dict)
        if self.key in self.owner if is_dict else self.key < len(self.owner):
            self.owner[self.key] = self.container


class Held(NamedTuple):
    """A list, a dict, a deque or a set that a statement has from outside, and what was in it
    before."""

    path: str
    container: Any
    items: Any
    #: Whether the path is a name of the state. The statement may give that to another container, so
    #: no name says what is in this one afterwards.
    is_named: bool = False
    #: The containers in it before, and their places.
    inner: Sequence[Inner] = ()

    @staticmethod
    def of(path: str, container: Any, is_named: bool = False) -> Held:
        inner = [*_containers_in(path, container, _DEEPEST)]
        return Held(path, container, _items_of(container), is_named, inner)

    @property
    def identities(self) -> list[int]:
        """Those of the container and of those that were in it."""
        return [id(self.container), *(id(x.container) for x in self.inner)]

    def is_changed(self, names: Sequence[str]) -> bool:
        """Whether an item was replaced or removed, apart from those that are state by their
        `names`. What is only added does not count: that is how code collects what it sees."""
        names = () if self.is_named else names
        return any(_differences(self.path, self.items, self.container, names))

    def put_back(self) -> None:
        for x in self.inner:
            x.put_back()
        put(self.container, self.items)

    @property
    def name(self) -> str:
        """That of its items as state."""
        return f"{ITEMS_OF}{self.path}"

    @property
    def state(self) -> Any:
        return _copied(self.container, _DEEPEST)

    def set_state(self, items: Any) -> None:
        put(self.container, items if _is_container(items) else filled(self.items, items))

    def begun(self, items: Any) -> Any:
        """What the steps of a loop begin with, which has these items before the loop."""
        return items


class Added(NamedTuple):
    """A key that is new in a dict, with its value, or an item that is new in a set."""

    path: str
    table: Any
    key: Any
    value: Any

    @property
    def is_item(self) -> bool:
        return isinstance(self.table, set)

    def remove(self) -> None:
        if self.is_item:
            self.table.discard(self.key)
        else:
            self.table.pop(self.key, None)

    def put_back(self) -> None:
        if self.is_item:
            self.table.add(self.key)
        else:
            self.table[self.key] = self.value


class ContainersChanged(Exception):
    """A branch changed these in place, or set these attributes."""

    def __init__(self, held: Sequence[Held | SetElsewhere]) -> None:
        self.held = held


def put_all_back(held: Sequence[Held]) -> None:
    for x in held:
        if x.is_changed(()):
            x.put_back()


def only(held: Sequence[Held | SetElsewhere]) -> list[Held]:
    """The containers among what was changed."""
    return [x for x in held if isinstance(x, Held)]


def held_by(bodies: Sequence[Any], names: Sequence[str], state: Sequence[Held]) -> list[Held]:
    """The containers that the bodies of a statement have from outside, apart from those that are
    state as a whole, by their names or as `state`."""
    reached = (pair for body in bodies for pair in _reached(body, names, {}))
    kept = ((path, x) for path, x in reached if not isinstance(x, Iterator))
    found = {id(x): (path, x) for own in kept for path, x in (own, *_sets_in(*own, _DEEPEST))}
    for known in state:
        found.pop(id(known.container), None)
    return [Held.of(path, x) for path, x in found.values()]


def held_by_names(names: Sequence[str], values: Sequence[Any], state: Sequence[Held]) -> list[Held]:
    """The containers that the names of a statement's state stand for before it, apart from those
    that are in its `state` already: there may be other names for them."""
    known = {id(x.container) for x in state}
    pairs = zip(names, map(without_flags, values), strict=True)
    tables = (found for pair in pairs for found in _tables_in(*pair, _DEEPEST))
    found = {id(x): (path, x) for path, x in tables}
    return [Held.of(*own, is_named=True) for number, own in found.items() if number not in known]


def _tables_in(
    path: str, value: Any, depth: int, is_in_table: bool = False
) -> Iterator[tuple[str, Any]]:
    """What can be changed in place in a value: its containers, but not those in containers, and
    the attributes of its objects, with their paths."""
    table = table_of(value)
    if table is not None and not (is_in_table and _is_container(value)):
        yield path, table
    items = value if table is None else table
    if not depth or not isinstance(items, (tuple, list, dict, deque)):
        return
    if not all(issubclass(x, CARRIED) for x in {*map(type, _values_of(items))}):
        for key, x in items.items() if isinstance(items, dict) else enumerate(items):
            yield from _tables_in(f"{path}[{key!r}]", x, depth - 1, table is not None)


def table_of(value: Any) -> Any:
    """A container, or the attributes of an object; None for any other value."""
    if _is_container(value) or isinstance(value, set):
        return value
    return attributes_of(value)


def _values_of(items: Any) -> Any:
    return items.values() if isinstance(items, dict) else items


def _items_of(container: Any) -> Any:
    return frozenset(container) if isinstance(container, set) else _copied(container, _DEEPEST)


def _sets_in(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The sets in a container, with their paths."""
    if not depth or not _is_container(value):
        return
    if not any(issubclass(x, (set, list, dict, deque)) for x in {*map(type, _values_of(value))}):
        return
    for key, x in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(x, set):
            yield f"{path}[{key!r}]", x
        else:
            yield from _sets_in(f"{path}[{key!r}]", x, depth - 1)


def inside(body: Any) -> Iterator[Any]:
    """The lists in containers, and the iterators, that a body has from outside."""
    for _, x in _reached(body, (), {}):
        yield from _inside(x, _DEEPEST)


def _inside(value: Any, depth: int) -> Iterator[Any]:
    if type(value) in (list, TensorList) or isinstance(value, Iterator):
        yield value
    if depth and isinstance(value, (list, dict, deque)) and len(value) <= _MOST_ITEMS:
        for x in [*_values_of(value)]:
            yield from _inside(x, depth - 1)


def changed(held: Sequence[Held], names: Sequence[str]) -> list[Held]:
    """Those that were changed. Raises SignatureError for one that is too large to be carried, and
    for a set."""
    for x in held:
        _tell_of_order(x)
    found = [x for x in held if x.is_changed(names)]
    _check_places(found, {number for x in held for number in x.identities})
    for x in found:
        if isinstance(x.container, set):
            lost = shown([*(x.items - x.container)])
            x.put_back()
            fail(
                SignatureError,
                f"the set {x.path} loses {lost} in a branch or a loop that a tensor decides about; "
                "that is traced once, so a graph cannot tell what is left",
                fix="keep a tensor of flags, one for each item",
            )
        if len(x.items) > _MOST_ITEMS:
            x.put_back()
            fail(
                SignatureError,
                f"{x.path}, with {len(x.items):,} items, is changed in a branch or a loop that a "
                f"tensor decides about, which carries the items of at most {_MOST_ITEMS:,}",
                fix="keep the numbers in one tensor: tg.tensor_scatter_nd_update, or in a "
                "tg.TensorArray",
            )
    return found


def as_it_is(value: Any) -> Any:
    """A value of the state, in containers of its own: those that it has change when the state is
    set again."""
    if isinstance(value, SetUnlessLeft):
        return replace(value, value=as_it_is(value.value))
    if value is None or nest.opener_of(value) is None or isinstance(value, TensorArray):
        return value
    leaves, structure = with_whole_arrays(value)
    return structure.pack(leaves)


def _tell_of_order(own: Held) -> None:
    """Warns if keys of a dict have changed places among each other."""
    if not isinstance(own.container, dict) or [*own.container] == [*own.items]:
        return
    before = [key for key in own.items if key in own.container]
    if before != [key for key in own.container if key in own.items]:
        text = message(
            f"the keys of {own.path} get another order in a branch or a loop that a tensor decides "
            "about; it is traced once, so they have one order whatever value the tensor has",
            source=here(),
            fix="sort the keys where their order matters",
        )
        warn(text, once=True)


def _check_places(changed: Sequence[Held], known: Container[int]) -> None:
    """Raises SignatureError if one of the `known` containers is at another place in a container
    whose items are state, since these are put into what is at their places."""
    for own in changed:
        before = {x.path: x.container for x in own.inner}
        for x in _containers_in(own.path, own.container, _DEEPEST):
            if id(x.container) in known and before.get(x.path) is not x.container:
                for each in changed:
                    each.put_back()
                fail(
                    SignatureError,
                    f"{x.path} becomes a container with another name, in a branch or a loop that "
                    f"a tensor decides about and that changes items in {own.path}",
                    fix="put a copy there: rows[k] = [*row]",
                )


def _containers_in(path: str, value: Any, depth: int) -> Iterator[Inner]:
    if depth and isinstance(value, (list, dict, deque)) and _is_nested(_values_of(value)):
        for key, x in value.items() if isinstance(value, dict) else enumerate(value):
            if _is_container(x):
                place = f"{path}[{key!r}]"
                yield Inner(place, value, key, x)
                yield from _containers_in(place, x, depth - 1)


class AddedKeys:
    """The keys that the steps of one loop add to dicts. They are there only from the second step
    on, so the loop is traced once more to see what happens to them then."""

    def __init__(self) -> None:
        self._known: dict[str, Added] = {}
        self._is_traced_again = False

    def are_new(self, held: Sequence[Held], get_state: Any, set_state: Any, values: Any) -> bool:
        """Whether an iteration that began with `values` as its state added keys, for the first
        time."""
        if self._is_traced_again or not any(map(_added, held)):
            return False
        after = get_state()
        set_state(values)
        # A tensor that is added belongs to the step, and says so where another one reads it.
        self._known = {x.path: x for own in held for x in _added(own) if not in_graph(x.value)}
        set_state(after)
        self._is_traced_again = bool(self._known)
        return self._is_traced_again

    def remove(self) -> None:
        for x in self._known.values():
            x.remove()

    def check(self, held: Sequence[Held], names: Sequence[str]) -> None:
        """Raises SignatureError if an iteration changed a value that another one added."""
        for own in held if self._known else ():
            if more := self._items_of_later_steps(own):
                fail(
                    SignatureError,
                    f"a later step of a loop of the graph adds {shown(more)} to the set "
                    f"{own.path}, and the first one does not; the loop is traced once",
                    fix="keep a tensor of flags, one for each item",
                )
            for path in _differences(own.path, own.items, own.container, names):
                if path in self._known:
                    added = self._known[path]
                    new = added.table.get(added.key)
                    became = new if is_number(new) else "a tensor"
                    fail(
                        SignatureError,
                        f"{path} is set to {added.value} by the first step of a loop of the "
                        f"graph, and then becomes {became}: the loop must know from the start "
                        "that it is there",
                        fix=f"give {path} a value before the loop",
                    )

    def _items_of_later_steps(self, own: Held) -> list[Any]:
        """What an iteration added to a set to which another one had added numbers."""
        is_known = any(x.table is own.container for x in self._known.values())
        return [x.value for x in _added(own) if x.is_item] if is_known else []


class LeftContainers:
    """The containers from outside that names stand for at the beginning of a step, before the loop
    or after another step, where it changes them in place and gives the names others. Which one a
    step changes is not known, so other names for them may not read what was changed."""

    def __init__(self) -> None:
        self._before: dict[int, Held] = {}
        #: The paths of what was taken, each with whether it is from before the loop.
        self._known: set[tuple[str, bool]] = set()

    def have_more(
        self,
        named: Sequence[Held],
        before: Mapping[str, Any],
        ended: Mapping[str, Any],
        held: Sequence[Held],
    ) -> bool:
        """Takes the values of the items that an iteration changed, in what it began with instead,
        from those `before` the loop, and from what it `ended` with, if it is `held` from outside;
        whether they are more than those that it took already."""
        known, outer = len(self._known), {number for x in held for number in x.identities}
        for own, is_before in itertools.product(named, (True, False)):
            value = without_flags((before if is_before else ended).get(own.path))
            first = table_of(value)
            is_from_outside = is_before or id(first) in outer
            if _is_container(first) and is_from_outside and own.is_changed(()):
                self._before.setdefault(id(first), Held(own.path, first, first.copy()))
                items = f"{own.path}[{{!r}}]" if first is value else f"{own.path}.{{}}"
                for inner in self._taken(own.path, items, own.items, own.container, first):
                    self._known.add((inner, is_before))
        return len(self._known) > known

    def _taken(self, name: str, items: str, old: Any, new: Any, first: Any) -> Iterator[str]:
        """Takes what was changed in the container `first`; its paths, of which `items` is the
        form."""
        places = [*old] if isinstance(old, dict) else [*range(len(old))]
        is_known = (new.keys() >= old.keys()) if isinstance(old, dict) else len(new) == len(old)
        for key in places:
            inner = items.format(key)
            if is_known and not any(_differences(inner, old[key], new[key], ())):
                continue
            if is_known and _is_container(first[key]) and _is_container(new[key]):
                yield from self._taken(name, f"{inner}[{{!r}}]", old[key], new[key], first[key])
                continue
            fact = f"{inner} is changed in place by the loop at {here()}, which gives {name!r} "
            fact += "another value: that also changes what other names of the first value hold"
            fix = "give the other name a copy before the loop, or let the loop not set the name"
            first[key] = Unknown(inner, fact, fix)
            yield inner

    def put_back(self) -> None:
        for own in self._before.values():
            own.put_back()


class BranchesKeys:
    """The keys that the branches of one `if` add to dicts."""

    def __init__(self) -> None:
        self._added: dict[bool, dict[str, tuple[Held, Added]]] = {}

    def remember(self, is_first: bool, held: Sequence[Held]) -> None:
        """Takes the keys out that a branch added. Raises ContainersChanged if both add one, with
        different values."""
        pairs = [(own, x) for own in held for x in _added(own) if not _is_container(x.value)]
        found = {x.path: (own, x) for own, x in pairs}
        for _, x in found.values():
            x.remove()
        self._added.setdefault(is_first, {}).update(found)
        other = self._added.get(not is_first, {})
        differ = {
            id(own.container): own
            for path, (own, x) in found.items()
            if path in other and not is_same(x.value, other[path][1].value)
        }
        if differ:
            raise ContainersChanged([*differ.values()])

    def put_back(self) -> None:
        """Puts the keys back that branches added, and warns of a number that only one added."""
        first, second = (self._added.get(is_first, {}) for is_first in (True, False))
        for path, (_, x) in (first | second).items():
            x.put_back()
            if is_number(x.value) and (path not in first or path not in second):
                what, fix = f"{path} was set to {x.value}", f"give {path} a value before the `if`"
                if x.is_item:
                    what, fix = f"{path} was added", "keep a tensor of flags, one for each item"
                text = message(
                    f"{what} while a branch was traced: what only one branch adds is there "
                    "whatever value the tensor has",
                    source=here(),
                    fix=fix,
                )
                warn(text)


def _added(held: Held) -> list[Added]:
    """The keys with numbers, tensors and containers that are new in a dict, and the numbers that
    are new in a set."""
    return [*_added_in(held.path, held.items, held.container)]


def _added_in(path: str, old: Any, new: Any) -> Iterator[Added]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new] if old.keys() != new.keys() else ():
            x = new[key]
            if key not in old and (is_number(x) or in_graph(x) or _is_container(x)):
                yield Added(f"{path}[{key!r}]", new, key, new[key])
        pairs = [(key, x, new.get(key)) for key, x in old.items()]
    elif isinstance(old, frozenset) and isinstance(new, set):
        numbers = [x for x in new - old if is_number(x)]
        yield from (Added(f"the item {x!r} of {path}", new, x, x) for x in numbers)
        return
    elif isinstance(old, list) and isinstance(new, (list, deque)) and _is_nested(old):
        pairs = [(k, x, y) for k, (x, y) in enumerate(zip(old, new))]
    else:
        return
    for key, x, y in pairs:
        if isinstance(x, (list, dict)):
            yield from _added_in(f"{path}[{key!r}]", x, y)


def reached_directly(body: Any) -> Iterator[Any]:
    """What the names of a body from outside stand for, and what is in the attributes of that."""
    for cell in getattr(body, "__closure__", None) or ():
        value = content(cell)
        yield value
        if hasattr(value, "__dict__"):
            # The tables of a tape, or another object of ours, have what is traced.
            is_ours = type(value).__module__.startswith("tracegraph.")
            named = vars(value).items()
            yield from (item for name, item in named if not (is_ours and name.startswith("_")))


def check_keys(table: dict[Any, Any] | set[Any], count: int, kind: str) -> None:
    """Raises SignatureError if what is being traced has put its own tensors as keys into a table
    that had `count` entries before."""
    if len(table) <= count:
        return
    # A dict has what is new at its end.
    keys = itertools.islice(reversed(table), len(table) - count) if type(table) is dict else table
    for key in (x for whole in keys for x in nest.flatten(whole)):
        if isinstance(key, Tensor) and key.node is not None and key.node.builder is current():
            fail(
                SignatureError,
                f"a tensor becomes a key of {kind_of(table)} in {kind or 'a branch'} that a tensor "
                "decides about; it is traced once, so one entry is made, whatever its value",
                operands=[operand_text(key)],
                fix="write to a tg.TensorArray at that index, or use numbers of Python's: range(n)",
            )


def with_items(
    held: Sequence[Held | SetElsewhere],
    get_state: Callable[[], Any],
    set_state: Callable[[Any], None],
) -> tuple[Callable[[], tuple[Any, ...]], Callable[[tuple[Any, ...]], None], list[str]]:
    """How to read and set the state of a statement together with what is in containers and
    attributes, and the names of that."""

    def get() -> tuple[Any, ...]:
        return (*get_state(), *(x.state for x in held))

    def set(values: tuple[Any, ...]) -> None:
        count = len(values) - len(held)
        set_state(values[:count])
        for x, state in zip(held, values[count:], strict=True):
            x.set_state(state)

    return get, set, [x.name for x in held]


def filled(items: Any, value: Any) -> Any:
    """One value at the place of each item: that which refuses to be read."""
    return dict.fromkeys(items, value) if isinstance(items, dict) else [value] * len(items)


def _reached(
    body: Any, names: Sequence[str], seen: dict[int, int], path: str = "", own: Any = None
) -> Iterator[tuple[str, Any]]:
    """The containers and iterators that a body has from outside, also by names of its module, with
    their paths. `seen` is how deep each object was looked at. A function that the body reaches has
    a `path`, and the values that names stand for in the body: `own`."""
    code = getattr(body, "__code__", None)
    if code is None or id(body) in seen or len(seen) > _MOST_SEEN:
        return
    seen[id(body)] = 1
    known = body.__globals__
    of_module = {name: known[name] for name in names_in_code(code) if name in known}
    cells = zip(code.co_freevars, body.__closure__ or (), strict=True)
    held = {name: x for name, x in of_module.items() if not _is_data(x)}
    held |= {name: content(cell) for name, cell in cells}
    if not path and is_ours(code.co_filename):  # made by a hook, which calls the user's
        for name, value in held.items():
            if isinstance(value, FunctionType):
                yield from _reached_by("", value, names, seen, None)
            elif not name.startswith(HOOKS) and name not in names:
                yield from _reached_by(name, value, names, seen, None)
        return
    if own is None:
        own = {base_of(name): known.get(base_of(name)) for name in names} | held
    for name, value in held.items():
        is_other = bool(path) and name in own and own[name] is not value
        if not name.startswith(HOOKS) and (is_other or name not in names):
            inner = f"{path}.{name}" if is_other else name
            yield from _reached_by(inner, value, names, seen, own)


def _reached_by(
    name: str, value: Any, names: Sequence[str], seen: dict[int, int], own: Any
) -> Iterator[tuple[str, Any]]:
    while isinstance(value, partial):
        for x in (*value.args, *value.keywords.values()):
            yield from _reached_in(name, x, names, _DEEPEST, seen, own)
        value = value.func
    if isinstance(value, MethodType):
        yield from _reached_in("self", value.__self__, names, _DEEPEST, seen, own)
        value = value.__func__
    if isinstance(value, FunctionType):
        # A function may be a default of its own, as in code that other code has made.
        is_new = id(value) not in seen and len(seen) <= _MOST_SEEN
        if is_new and not is_ours(value.__code__.co_filename):
            yield from _reached(value, names, seen, name, own)
            for x in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                yield from _reached_in(f"a default of {name}", x, names, _DEEPEST, seen, own)
    else:
        yield from _reached_in(name, value, names, _DEEPEST, seen, own)


#: How many functions that call each other, and objects, are searched.
_MOST_SEEN = 1000


def _is_data(value: Any) -> bool:
    """Whether it is a table that no statement is expected to change."""
    return _is_container(value) and len(value) > _MOST_ITEMS


def _reached_in(
    path: str, value: Any, names: Sequence[str], depth: int, seen: dict[int, int], own: Any
) -> Iterator[tuple[str, Any]]:
    if path in names:
        return
    if isinstance(value, FunctionType):
        yield from _reached_by(path, value, names, seen, own)
    elif _is_container(value) or isinstance(value, (set, Iterator)):
        yield path, value
        if _is_container(value) and FunctionType in {*map(type, _values_of(value))}:
            for key, x in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(x, FunctionType):
                    yield from _reached_by(f"{path}[{key!r}]", x, names, seen, own)
    elif seen.get(id(value), 0) < depth and (table := attributes_of(value)) is not None:
        seen[id(value)] = depth
        for name, x in [*table.items()]:
            yield from _reached_in(f"{path}.{name}", x, names, depth - 1, seen, own)


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, dict, deque))


def _is_nested(items: Any) -> bool:
    """Whether there are containers among the items."""
    return any(issubclass(kind, (list, dict, deque)) for kind in set(map(type, items)))


def _copied(value: Any, depth: int) -> Any:
    """The items of a container, in containers of their own."""
    if not depth or not _is_container(value):
        return value
    if isinstance(value, dict):
        return {key: _copied(x, depth - 1) for key, x in value.items()}
    return [_copied(x, depth - 1) for x in value] if _is_nested(value) else [*value]


def _differences(path: str, old: Any, new: Any, names: Sequence[str]) -> Iterator[str]:
    """The paths of the items that differ, apart from those that are state by their `names`."""
    if new is old or path in names:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key, x in old.items():
            if key not in new:
                yield path
            elif x is not new[key]:
                yield from _differences(f"{path}[{key!r}]", x, new[key], names)
    elif isinstance(old, list) and isinstance(new, (list, deque)):
        grown = itertools.islice(new, len(old), None) if isinstance(new, deque) else ()
        if len(new) < len(old) or any(is_number(x) or in_graph(x) for x in grown):
            yield path
        for k in _places_that_differ(old, new):
            yield from _differences(f"{path}[{k}]", old[k], new[k], names)
    elif isinstance(old, frozenset) and isinstance(new, set):
        if not old <= new:
            yield path
    elif any(map(is_carried, nest.flatten(old))) and not is_same(old, new):
        yield path


def _places_that_differ(old: Any, new: Any) -> Iterator[int]:
    return itertools.compress(itertools.count(), map(operator.is_not, old, new))


def put(container: Any, items: Any) -> None:
    """Puts items into a container, and into those in it."""
    if isinstance(container, set):
        container.clear()
        container.update(items)
        return
    if isinstance(container, dict):
        if [*container] != [*items]:  # the keys get back their order
            held = dict(container)
            container.clear()
            container.update({key: held.get(key) for key in items})
        pairs = [*items.items()]
    else:
        if len(container) != len(items):
            container.clear()
            container.extend(items)
        pairs = [*enumerate(items)]
    for key, x in pairs:
        old = container.get(key) if isinstance(container, dict) else container[key]
        if old is x:
            continue
        kind = dict if isinstance(old, dict) else list if isinstance(old, (list, deque)) else None
        if kind is not None and isinstance(x, kind) and _is_container(old):
            put(old, x)
        else:
            container[key] = x
