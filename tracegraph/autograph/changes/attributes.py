"""The attributes of an object as a table."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, MutableMapping
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

from tracegraph.autograph.function_conversion import is_library
from tracegraph.core.source import is_of_us

_NO_OBJECTS = (type, FunctionType, MethodType, ModuleType)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of the user's; None for any other value. The table of an object
    is the same one as long as it is in use."""
    kind = type(value)
    if isinstance(value, _NO_OBJECTS) or not is_users(kind):
        return None
    if _slots_of(kind):
        found = _tables.get(id(value))
        return _tables.setdefault(id(value), SlotTable(value)) if found is None else found
    return vars(value) if hasattr(value, "__dict__") else None


def is_users(owner: type | FunctionType) -> bool:
    """Whether a class or a function is the user's: not of a library, whose own code counts on
    Python's values in its objects and names."""
    return owner is SimpleNamespace or _is_module_of_users(owner.__module__)


@functools.lru_cache(maxsize=1024)
def _is_module_of_users(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None or is_of_us(module):
        return module is None
    return not is_library(getattr(module, "__file__", None) or "", vars(module))


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: type) -> tuple[str, ...]:
    held = [x for x in map(vars, reversed(kind.__mro__)) if "__slots__" in x]
    return tuple([k for x in held for k, y in x.items() if type(y) is MemberDescriptorType])


#: The methods of a table by those that `SlotTable` has. To type checkers a dict is one already.
_METHODS: Any = MutableMapping


class SlotTable(_METHODS, dict[str, Any]):
    """The attributes of an object whose class has slots, which has no dict of them."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self.owner, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self.owner, name)

    def __iter__(self) -> Iterator[str]:
        owner = self.owner
        yield from (name for name in _slots_of(type(owner)) if hasattr(owner, name))
        yield from getattr(owner, "__dict__", ())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


#: The tables in use, by the identities of their objects, which they keep alive.
_tables = WeakValueDictionary[int, SlotTable]()

__all__ = ["SlotTable", "attributes_of", "is_users"]
