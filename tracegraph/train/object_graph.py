"""The objects that a checkpoint holds: those reachable from its root, with their paths.

The parts of a Module are its attributes, and the items of lists, tuples and dicts in them: the part
`layers/0` is the first item of the attribute `layers`. A dict keyed by references to Variables,
such as an optimizer's slots, is keyed by the Variables themselves, wherever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from tracegraph.core.tensorshape import TensorShape
from tracegraph.errors import SignatureError, fail, kind_of, shown
from tracegraph.optimizers.base import Optimizer, is_optimizer, slot_names
from tracegraph.saved_model.loaded_modules import content_of
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable, VariableReference

#: Separates the path of a Variable from the name of a slot for it, as in TensorFlow.
SLOT = ".OPTIMIZER_SLOT"


class Group:
    """The root of a checkpoint: an object with parts of its own, and others by name."""

    def _group_root(self) -> Any:
        raise NotImplementedError

    def _group_members(self) -> dict[str, Any]:
        raise NotImplementedError


def is_object(value: Any) -> TypeGuard[Variable | Module | Group]:
    """Whether a value is a Variable, or may have parts."""
    return isinstance(value, (Variable, Module, Group))


def parts(owner: Any) -> dict[str, Any]:
    """The Variables, Modules and groups that an object holds, by name; sorted.

    Raises ValueError for those without a unique name.
    """
    found: dict[str, Any] = {}
    for name, value in _attributes(owner):
        if not _is_keyed(value):
            for path, leaf in _named_leaves(name, value):
                if found.setdefault(path, leaf) is not leaf:
                    _refuse(f"two values have the path {path!r}", "rename one of them")
    return {name: found[name] for name in sorted(found)}


def parts_with_names(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    """The existing parts with these names; others are not examined."""
    found: dict[str, Any] = {}
    heads = {name.partition("/")[0] for name in names}
    for name, value in _attributes(owner):
        if (not name or escaped(name) in heads) and not _is_keyed(value):
            found.update(_named_leaves(name, value, refuses=False))
    return {name: found[name] for name in names if name in found}


def slots(owner: Any) -> Iterator[tuple[Variable, str, Variable]]:
    """An object's slots for Variables, as (variable, name, slot)."""
    for name, value in _attributes(owner):
        if _is_keyed(value):
            for reference, kept in value.items():
                if not isinstance(reference, VariableReference):
                    _refuse(
                        f"a dict has references and {shown(reference)} as keys", "use two dicts"
                    )
                for slot_name, slot in _kept(owner, name, kept):
                    yield reference.deref(), slot_name, slot


def optimizer_of(owner: Any) -> Optimizer | None:
    """The optimizer with slots that an object is, or that a group is rooted at. Loaded ones do not
    count: their steps are those that were traced."""
    found = _rooted(owner)
    return found if isinstance(found, Optimizer) and is_optimizer(found) else None


def _rooted(owner: Any) -> Any:
    """The object, or the root of a group."""
    return _rooted(owner._group_root()) if isinstance(owner, Group) else owner


def slots_of(owner: Any, variable: Variable) -> dict[str, Variable]:
    """An object's slots for one Variable, by name."""
    reference = variable.ref()
    return {
        slot_name: slot
        for name, value in _attributes(owner)
        if _is_keyed(value) and reference in value
        for slot_name, slot in _kept(owner, name, value[reference])
    }


def _kept(owner: Any, name: str, kept: Any) -> Iterator[tuple[str, Variable]]:
    module = _rooted(owner)
    if isinstance(module, Module) and is_optimizer(module) and name == "_slots":
        names = slot_names(module)
        if _are_slots(names, kept):
            yield from zip(map(escaped, names), kept)
            return
    for path, leaf in _leaves(kept, name, []):
        if isinstance(leaf, Variable):
            yield escaped(path), leaf


def _are_slots(names: Any, kept: Any) -> bool:
    """Whether these are Variables with a name each: a loaded value may be anything."""
    if not (type(names) is type(kept) is tuple and len(names) == len(kept)):
        return False
    is_named = all(isinstance(name, str) for name in names)
    return is_named and all(isinstance(slot, Variable) for slot in kept)


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    if isinstance(owner, Group):
        root = owner._group_root()
        return [*_root_attributes(root), *owner._group_members().items()]
    rate = "_learning_rate" if is_optimizer(owner) else None
    return [
        ("learning_rate" if name == rate else name, value)
        for name, value in vars(owner).items()
        if name not in owner._hidden
    ]


def _root_attributes(root: Any) -> list[tuple[str, Any]]:
    root = content_of(root)
    if isinstance(root, (list, tuple, Mapping)):
        return [("", root)]
    return _attributes(root) if isinstance(root, (Module, Group)) else []


def _is_keyed(value: Any) -> bool:
    """Whether a value is a dict whose keys are references to Variables."""
    return isinstance(value, dict) and isinstance(next(iter(value), None), VariableReference)


def _named_leaves(name: str, value: Any, refuses: bool = True) -> Iterator[tuple[str, Any]]:
    """The objects in an attribute, or in the list or dict, without a name, that is the root."""
    for path, leaf in _leaves(value, escaped(name), [], refuses):
        yield path.removeprefix("/"), leaf


def _leaves(
    value: Any, path: str, outer: list[Any], refuses: bool = True
) -> Iterator[tuple[str, Any]]:
    """The objects in a value, each with its path; those without a path are an error or are left
    out."""
    value = content_of(value)
    if is_object(value):
        yield path, value
    if any(value is container for container in outer) or isinstance(value, TensorShape):
        return
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}/{i}", [*outer, value], refuses)
    elif isinstance(value, Mapping) and not isinstance(value, Module):
        for key, item in value.items():
            for inner, leaf in _leaves(item, "", [*outer, value], refuses):
                if refuses or _is_name(key):
                    yield f"{path}/{escaped(_name_of_key(key, leaf))}{inner}", leaf
    elif refuses and isinstance(value, (set, frozenset)) and any(map(is_object, value)):
        fact = f"the set at {path!r} has no order by which its objects could be found again"
        _refuse(fact, "keep them in a list or a dict")


def _name_of_key(key: Any, value: Any) -> str:
    if not _is_name(key):
        fact = f"a dict has the key {shown(key)}, below which there is {kind_of(value)}"
        _refuse(fact, "use strings as keys, or integers")
    return str(key)


def _is_name(key: Any) -> bool:
    if not isinstance(key, str):
        return type(key) is int
    return key != "" and not any("\ud800" <= letter <= "\udfff" for letter in key)


def _refuse(fact: str, fix: str) -> None:
    fail(SignatureError, f"Checkpoint: {fact}", fix=fix)


def escaped(name: str) -> str:
    """A name as a component of a path, escaped as in TensorFlow so that it has no slashes. The one
    name reserved by safetensors files gets a dot, with which no other name begins."""
    return f".{name}" if name == "__metadata__" else name.replace(".", "..").replace("/", ".S")


class ObjectGraph:
    """Everything reachable from the root, breadth first; each object has a number and its shortest
    path. The root has number 0."""

    def __init__(self, root: Any) -> None:
        self.objects: list[Any] = [root]
        self.paths: list[str] = [""]
        #: For each object, the numbers of its parts by name.
        self.parts: list[Mapping[str, int]] = []
        #: For each object, its slots: the Variable's number, the name, the slot's number.
        self.slots: list[Sequence[tuple[int, str, int]]] = []
        #: Variables outside the graph for which it holds slots.
        self.strangers: list[Variable] = []
        self._numbers = {id(root): 0}
        for number, owner in enumerate(self.objects):  # which grows
            self.parts.append(self._parts_of(number, owner))
        for number, owner in enumerate(self.objects):  # which grows by Variables
            self.slots.append(self._slots_of(number, owner))

    def _parts_of(self, number: int, owner: Any) -> dict[str, int]:
        path = self.paths[number]
        inside = {} if isinstance(owner, Variable) else parts(owner)
        return {name: self._number(value, joined(path, name)) for name, value in inside.items()}

    def _number(self, value: Any, path: str) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
            self.paths.append(path)
        return number

    def _slots_of(self, number: int, owner: Any) -> list[tuple[int, str, int]]:
        found = []
        for variable, name, slot in () if isinstance(owner, Variable) else slots(owner):
            place = self._numbers.get(id(variable))
            if place is None:
                self.strangers.append(variable)
            else:
                path = joined(self.paths[place], SLOT, self.paths[number], name)
                found.append((place, name, self._number(slot, path)))
        return sorted(found)

    def variables(self) -> dict[str, Variable]:
        """The Variables by path."""
        pairs = zip(self.paths, self.objects, strict=True)
        return {path: value for path, value in pairs if isinstance(value, Variable)}


def joined(*parts: str) -> str:
    """Joins parts of a path, skipping empty ones."""
    return "/".join(filter(None, parts))
