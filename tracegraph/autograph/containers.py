"""Lists and dicts that a statement changes in place, by keys that it computes or by methods: what
is in them is state of the statement too, and found while it is traced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from tracegraph.autograph.state_values import ITEMS_OF, content, is_carried, is_same
from tracegraph.core.source import HOOKS, is_of_us, is_ours

#: Larger tables than this are data.
_MOST_ITEMS = 1000
_DEEPEST = 4


class Held(NamedTuple):
    """A list, a dict or a deque that a statement has from outside, and what was in it before."""

    path: str
    container: Any
    items: Any

    def is_changed(self, names: Sequence[str]) -> bool:
        """Whether an item was replaced or removed, apart from those that are state by their
        `names`. What is only added does not count: that is how code collects what it sees."""
        return _differs(self.path, self.items, self.container, names)

    def put_back(self) -> None:
        _put(self.container, self.items)


class ContainersChanged(Exception):
    """A branch changed these in place."""

    def __init__(self, held: Sequence[Held]) -> None:
        self.held = held


def held_by(bodies: Sequence[Any], names: Sequence[str], state: Sequence[Held]) -> list[Held]:
    """The containers that the bodies of a statement have from outside, apart from those that are
    state as a whole, by their names or as `state`."""
    found = {id(x): (path, x) for body in bodies for path, x in _reached(body, names, set())}
    for known in state:
        found.pop(id(known.container), None)
    return [Held(path, x, _copied(x, _DEEPEST)) for path, x in found.values()]


def changed(held: Sequence[Held], names: Sequence[str]) -> list[Held]:
    return [x for x in held if x.is_changed(names)]


def with_items(
    held: Sequence[Held], get_state: Callable[[], Any], set_state: Callable[[Any], None]
) -> tuple[Callable[[], tuple[Any, ...]], Callable[[tuple[Any, ...]], None], list[str]]:
    """How to read and set the state of a statement together with what is in containers, and the
    names of that."""

    def get() -> tuple[Any, ...]:
        return (*get_state(), *(_copied(x.container, _DEEPEST) for x in held))

    def set(values: tuple[Any, ...]) -> None:
        count = len(values) - len(held)
        set_state(values[:count])
        for x, items in zip(held, values[count:], strict=True):
            _put(x.container, items)

    return get, set, [f"{ITEMS_OF}{x.path}" for x in held]


def _reached(body: Any, names: Sequence[str], seen: set[int]) -> Iterator[tuple[str, Any]]:
    code = getattr(body, "__code__", None)
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    for name, cell in zip(code.co_freevars, body.__closure__ or (), strict=True):
        if name in names or name.startswith(HOOKS):
            continue
        value = content(cell)
        if isinstance(value, FunctionType) and not is_ours(value.__code__.co_filename):
            yield from _reached(value, names, seen)
        else:
            yield from _reached_in(name, value, names, 2)


def _reached_in(
    path: str, value: Any, names: Sequence[str], depth: int
) -> Iterator[tuple[str, Any]]:
    if path in names:
        return
    if _is_container(value):
        yield path, value
    elif depth and hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS):
        for name, x in [] if is_of_us(type(value)) else [*vars(value).items()]:
            yield from _reached_in(f"{path}.{name}", x, names, depth - 1)


_NO_OBJECTS = (type, FunctionType, MethodType, ModuleType)


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, dict, deque)) and len(value) <= _MOST_ITEMS


def _copied(value: Any, depth: int) -> Any:
    """The items of a container, in containers of their own."""
    if not depth or not _is_container(value):
        return value
    if isinstance(value, dict):
        return {key: _copied(x, depth - 1) for key, x in value.items()}
    return [_copied(x, depth - 1) for x in value]


def _differs(path: str, old: Any, new: Any, names: Sequence[str]) -> bool:
    if new is old or path in names:
        return False
    if isinstance(old, dict) and isinstance(new, dict):
        return any(
            key not in new or _differs(f"{path}[{key!r}]", x, new[key], names)
            for key, x in old.items()
        )
    if isinstance(old, list) and isinstance(new, (list, deque)):
        return len(new) < len(old) or any(
            _differs(f"{path}[{k}]", x, y, names) for k, (x, y) in enumerate(zip(old, new))
        )
    return is_carried(old) and not is_same(old, new)


def _put(container: Any, items: Any) -> None:
    """Puts items into a container, and into those in it."""
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
            _put(old, x)
        else:
            container[key] = x
