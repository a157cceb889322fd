"""Structures: nested dicts, lists, tuples, namedtuples, dataclasses and None.

Built on `jax.tree_util`, which is imported at first use. Dataclass instances, which JAX takes for
leaves, are opened here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracegraph.errors import SignatureError, UnknownValue, fail, shown
from tracegraph.source import here
from tracegraph.tensorshape import TensorShape


@functools.cache
def tree_util() -> Any:
    """`jax.tree_util`, imported at first use."""
    import jax.tree_util

    return jax.tree_util


def _is_leaf(value: Any) -> bool:
    """Leaves that JAX must be told of: iterators, which it warns of otherwise."""
    return hasattr(type(value), "__next__")


def _is_leaf_or_none(value: Any) -> bool:
    return value is None or _is_leaf(value)


class Structure:
    """The structure of a nest: how leaves are packed. Hashable and equal by structure."""

    __slots__ = ("_hash", "opened", "treedef")

    def __init__(self, treedef: Any, opened: tuple[Any, ...]) -> None:
        #: One entry per leaf of `treedef`: None, or (dataclass, structure of its fields).
        self.treedef = treedef
        self.opened = opened
        self._hash = hash((treedef, opened))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Structure)
            and self.treedef == other.treedef
            and self.opened == other.opened
        )

    def __hash__(self) -> int:
        return self._hash

    def pack(self, leaves: Sequence[Any]) -> Any:
        """The nest with these leaves."""
        if not self.opened:
            return tree_util().tree_unflatten(self.treedef, leaves)
        rest = list(leaves)
        packed = []
        for entry in self.opened:
            if entry is None:
                packed.append(rest.pop(0))
                continue
            cls, inner = entry
            taken, rest = rest[: inner.count], rest[inner.count :]
            packed.append(_rebuilt(cls, inner.pack(taken)))
        return tree_util().tree_unflatten(self.treedef, packed)

    def packer(self) -> Callable[[Any], Any]:
        """`pack`, by the shortest way."""
        return self.pack if self.opened else self.treedef.unflatten

    @property
    def count(self) -> int:
        """The number of leaves."""
        if not self.opened:
            return self.treedef.num_leaves
        return sum(1 if entry is None else entry[1].count for entry in self.opened)

    @property
    def is_leaf(self) -> bool:
        """Whether there is one leaf, in no container."""
        return not self.opened and self.treedef == tree_util().tree_structure(0)

    def __repr__(self) -> str:
        return str(self.pack(["*"] * self.count))


def _rebuilt(cls: type, fields: dict[str, Any]) -> Any:
    """A dataclass instance with these fields, whatever its constructor does."""
    instance = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance


class _Kinds(dict[type, bool]):
    """A question about types, with the answers that were given: leaves are of few types."""

    def __init__(self, ask: Callable[[type], bool]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, kind: type) -> bool:
        if len(self) >= _MOST_KINDS:  # types that are made at run time must not be kept for ever
            self.clear()
        found = self[kind] = self._ask(kind)
        return found


_MOST_KINDS = 1000
_is_dataclass = _Kinds(dataclasses.is_dataclass)
_is_container = _Kinds(
    lambda kind: (
        (issubclass(kind, (list, tuple, dict)) and not issubclass(kind, TensorShape))
        or _is_dataclass[kind]
    )
)

#: Deeper structures are refused: JAX goes through them by recursion.
_DEEPEST = 200


def _refuse_endless(nest: Any) -> None:
    """Raises UnknownValue for a structure that contains itself, or is too deep to walk."""
    open_ids: list[int] = []
    walks = [iter([nest] if _is_container[type(nest)] else ())]
    while walks:
        item = next(walks[-1], _refuse_endless)
        if item is _refuse_endless:  # the end of a container
            walks.pop()
            del open_ids[-1:]
            continue
        if id(item) in open_ids:
            raise UnknownValue(
                f"a structure contains itself: {shown(item)}", fix="pass one that does not"
            )
        if len(open_ids) >= _DEEPEST:
            raise UnknownValue(
                f"a structure is nested more than {_DEEPEST} deep",
                fix="make it flatter, such as one list",
            )
        open_ids.append(id(item))
        walks.append(iter([x for x in _items(item) if _is_container[type(x)]]))


def _items(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return container.values()
    if isinstance(container, (list, tuple)):
        return container
    return [getattr(container, field.name) for field in dataclasses.fields(container)]


def flatten_structure(nest: Any, none_is_leaf: bool = False) -> tuple[list[Any], Structure]:
    """The leaves of `nest`, and the structure that packs them. Dicts are in order of their keys.

    Raises UnknownValue, a Mismatch and a TypeError, for dict keys that have no order and for a
    structure that contains itself.
    """
    _refuse_endless(nest)
    return _flattened(nest, none_is_leaf)


def _flattened(nest: Any, none_is_leaf: bool) -> tuple[list[Any], Structure]:
    try:
        leaves, treedef = tree_util().tree_flatten(
            nest, is_leaf=_is_leaf_or_none if none_is_leaf else _is_leaf
        )
    except (TypeError, ValueError) as error:
        raise UnknownValue(
            f"a dict in a structure has keys that cannot be sorted: {error.__cause__ or error}",
            fix="use keys of one type, such as strings",
        ) from None
    is_open = [_is_dataclass[type(leaf)] for leaf in leaves]
    if not any(is_open):
        return leaves, Structure(treedef, ())
    found: list[Any] = []
    opened: list[Any] = []
    for leaf, has_fields in zip(leaves, is_open, strict=True):
        if not has_fields:
            found.append(leaf)
            opened.append(None)
            continue
        fields = {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf)}
        inner_leaves, inner = _flattened(fields, none_is_leaf)
        found.extend(inner_leaves)
        opened.append((type(leaf), inner))
    return found, Structure(treedef, tuple(opened))


def flatten(structure: Any) -> list[Any]:
    """The leaves of a nested structure, None among them, dicts in the order of their keys.

    >>> tg.nest.flatten({"b": [1, 2], "a": None})
    [None, 1, 2]
    """
    return flatten_structure(structure, none_is_leaf=True)[0]


def is_nested(structure: Any) -> bool:
    """Whether `structure` is a container rather than a leaf."""
    leaves = flatten(structure)
    return not (len(leaves) == 1 and leaves[0] is structure)


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """The leaves `flat_sequence` packed like `structure`. Raises ValueError for another number.

    >>> tg.nest.pack_sequence_as({"a": 0, "b": [0, 0]}, [1, 2, 3])
    {'a': 1, 'b': [2, 3]}
    """
    _, packing = flatten_structure(structure, none_is_leaf=True)
    leaves = list(flat_sequence)
    if len(leaves) != packing.count:
        fail(
            SignatureError,
            f"the structure has {packing.count} leaves and {len(leaves)} were given",
            source=here(),
            fix="give one value for each leaf",
        )
    return packing.pack(leaves)


def map_structure(func: Callable[..., Any], *structures: Any) -> Any:
    """`func` applied to corresponding leaves, packed like the first structure.

    Raises ValueError if the structures differ.

    >>> tg.nest.map_structure(lambda x, y: x + y, [1, (2,)], [10, (20,)])
    [11, (22,)]
    """
    assert_same_structure(*structures)
    flats = [flatten(structure) for structure in structures]
    return pack_sequence_as(structures[0], [func(*row) for row in zip(*flats, strict=True)])


def assert_same_structure(*structures: Any) -> None:
    """Raises ValueError if the structures differ, showing both."""
    first = flatten_structure(structures[0], none_is_leaf=True)[1]
    for other in structures[1:]:
        packing = flatten_structure(other, none_is_leaf=True)[1]
        if packing != first:
            fail(
                SignatureError,
                f"the structures differ: {first!r} and {packing!r}",
                source=here(),
                fix="make both of the same containers, keys and lengths",
            )


__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]
