"""Structures: nested dicts, lists, tuples, namedtuples, dataclasses and None.

Subclasses of dict, list and tuple are rebuilt as themselves, and so are other Mappings, such as
`types.MappingProxyType`, and deques; a view of a dict becomes a list. Other types that JAX knows as
pytrees are opened by `jax.tree_util`, which is imported when such a type occurs.

There are two orders. *Leaves* are ordered by sorted dict keys, as in TensorFlow, so that equal
dicts match whatever their insertion order. *Packing* restores the insertion order of the keys.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.later import opened
from tracegraph.core.tensorshape import TensorShape
from tracegraph.errors import (
    DTypeError,
    SignatureError,
    TraceError,
    UnknownValue,
    counted,
    fail,
    kind_of,
    shown,
    were,
)

if TYPE_CHECKING:
    from tracegraph.typing import Positional


@functools.cache
def tree_util() -> Any:
    """`jax.tree_util`, imported at first use."""
    return opened("jax.tree_util")


# Containers, which hold the parts of a structure.


class Container:
    """A container without its items: its type, the names of its items, and other state.

    Two are equal if they build equal containers, including the order of the names.
    """

    __slots__ = ("_hash", "kind", "names", "order", "state")

    def __init__(self, kind: Any, names: tuple[Any, ...], order: Any = None, state: Any = ()):
        self.kind = kind
        self.names = names
        #: The positions of the items in leaf order; None if they are in that order.
        self.order = order
        #: The state of an instance besides its items: pairs of a name and a value.
        self.state = state
        self._hash = hash((kind, names))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Container)
            and self.kind == other.kind
            and self.names == other.names
            and all(map(_is_of_one_type, self.names, other.names))  # unlike 1, 1.0 and True
            and _are_same(self.state, other.state)
        )

    def __hash__(self) -> int:
        return self._hash

    def matches(self, other: Container, check_types: bool = True) -> bool:
        """Whether the items of the two correspond, leaf by leaf."""
        return self.kind == other.kind and self.names == other.names

    def build(self, items: list[Any]) -> Any:
        """A container of these items, in the order of the names."""
        raise NotImplementedError


class _Nothing(Container):
    """None where it is not a leaf."""

    __slots__ = ()

    def build(self, items: list[Any]) -> Any:
        return None


class _Sequence(Container):
    """A list or tuple, or an instance of a subclass. Its names are the indices, or the fields of
    a namedtuple."""

    __slots__ = ()

    @classmethod
    def open(cls, value: Any) -> tuple[Container, Iterable[Any]]:
        kind = type(value)
        names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
        state = () if kind in (list, tuple) else _attributes(value)
        places = tuple(range(len(value))) if names is None else names
        base: Any = list if isinstance(value, list) else tuple
        return cls(kind, places, state=state), base.__iter__(value)

    def matches(self, other: Container, check_types: bool = True) -> bool:
        if not isinstance(other, _Sequence) or len(self.names) != len(other.names):
            return False
        if not check_types:
            return True
        are_lists = issubclass(self.kind, list) and issubclass(other.kind, list)
        return are_lists or self.kind == other.kind

    def build(self, items: list[Any]) -> Any:
        if self.kind is list:
            return items
        if self.kind is tuple:
            return tuple(items)
        if issubclass(self.kind, tuple):
            made = tuple.__new__(self.kind, items)
        else:
            made = list.__new__(self.kind)
            list.extend(made, items)
        return _with_attributes(made, self.state)


class _OtherSequence(_Sequence):
    """A deque or a UserList; a view of a dict, such as its values, comes back as a list."""

    __slots__ = ()

    @classmethod
    def open(cls, value: Any) -> tuple[Container, Iterable[Any]]:
        kind = list if issubclass(type(value), MappingView) else type(value)
        state = (("maxlen", value.maxlen),) if issubclass(kind, collections.deque) else ()
        items = list(value)
        return cls(kind, tuple(range(len(items))), state=state), items

    def build(self, items: list[Any]) -> Any:
        return items if self.kind is list else self.kind(items, *(x for _, x in self.state))


class _Dict(Container):
    """A dict or an instance of a subclass. Its names are the keys."""

    __slots__ = ()

    @classmethod
    def open(cls, value: Any) -> tuple[Container, Iterable[Any]]:
        kind = type(value)
        base = _base_of(kind)
        keys = tuple(base.__iter__(value))
        items = [dict.__getitem__(value, key) for key in keys]
        state = () if kind is dict else _dict_state(value, keys, items)
        return cls(kind, keys, _order_of(keys), state), items

    @property
    def sorted_names(self) -> tuple[Any, ...]:
        """The keys in leaf order."""
        return self.names if self.order is None else tuple(self.names[i] for i in self.order)

    def matches(self, other: Container, check_types: bool = True) -> bool:
        return isinstance(other, _Dict) and self.sorted_names == other.sorted_names

    def build(self, items: list[Any]) -> Any:
        if self.kind is dict:
            return dict(zip(self.names, items))
        base = _base_of(self.kind)
        made = base.__new__(self.kind)
        for key, item in zip(self.names, items, strict=True):
            base.__setitem__(made, key, item)
        return _with_attributes(made, self.state)


class _Mapping(_Dict):
    """A Mapping that is not a dict: a read-only view of one, a UserDict, a class of the user's."""

    __slots__ = ()

    @classmethod
    def open(cls, value: Any) -> tuple[Container, Iterable[Any]]:
        keys = tuple(value)
        # A UserDict keeps its items in one attribute; where others keep theirs is not known.
        state = _attributes(value) if isinstance(value, collections.UserDict) else ()
        state = tuple(pair for pair in state if pair[0] != "data")
        return cls(type(value), keys, _order_of(keys), state), [value[key] for key in keys]

    def build(self, items: list[Any]) -> Any:
        contents = dict(zip(self.names, items, strict=True))
        if issubclass(self.kind, collections.UserDict):
            made = self.kind.__new__(self.kind)
            return _with_attributes(made, (("data", contents), *self.state))
        try:
            return self.kind(contents)
        except outside_interrupts(Exception) as error:
            fact = f"{self.kind.__name__} cannot be built again from a dict of its items: {error}"
            fix = "pass dict(...) of it, or let its constructor take a dict"
            raise UnknownValue(fact, fix) from error


class _Record(Container):
    """A dataclass instance. Its names are the fields."""

    __slots__ = ()

    @classmethod
    def open(cls, value: Any) -> tuple[Container, Iterable[Any]]:
        names = tuple(field.name for field in dataclasses.fields(value))
        return cls(type(value), names, _order_of(names)), [getattr(value, x) for x in names]

    def build(self, items: list[Any]) -> Any:
        """An instance with these fields, bypassing the constructor."""
        instance = object.__new__(self.kind)
        for name, value in zip(self.names, items, strict=True):
            object.__setattr__(instance, name, value)
        return instance


class _Registered(Container):
    """A pytree of JAX; its kind is how JAX packs it."""

    __slots__ = ()

    @classmethod
    def open(cls, value: Any) -> tuple[Container, Iterable[Any]]:
        items, treedef = _opened_by_jax(value)
        return cls(treedef, tuple(range(len(items)))), items

    def build(self, items: list[Any]) -> Any:
        return self.kind.unflatten(items)


_NOTHING = _Nothing(type(None), ())


def _is_of_one_type(one: Any, other: Any) -> bool:
    return type(one) is type(other)


#: Types compared by value; values of other types are the same only if identical.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _are_same(one: Sequence[tuple[Any, Any]], other: Sequence[tuple[Any, Any]]) -> bool:
    """Whether attributes have the same names and values."""
    return len(one) == len(other) and all(
        a == b and (x is y or (type(x) is type(y) and isinstance(x, (*_PLAIN, _Item)) and x == y))
        for (a, x), (b, y) in zip(one, other, strict=True)
    )


def _base_of(kind: type) -> Any:
    """The built-in dict class whose methods a subclass may not change."""
    return next(base for base in kind.__mro__ if base in _DICTS)


_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


class _Item:
    """In a state: an attribute that refers to the item with this key."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Item) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


#: The state of a dict whose attributes are its items: `self.__dict__ = self`.
_IS_ITS_OWN = (("__dict__", None),)


def _dict_state(value: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    attributes = getattr(value, "__dict__", None)
    if attributes is value:
        return _IS_ITS_OWN
    places = {id(item): key for key, item in zip(keys, items) if not isinstance(item, _PLAIN)}
    state = _attributes(value)
    state = tuple((name, _Item(places[id(x)]) if id(x) in places else x) for name, x in state)
    if isinstance(value, collections.defaultdict):
        state = (("default_factory", value.default_factory), *state)
    return state


def _attributes(value: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(getattr(value, "__dict__", {}).items())


def _with_attributes(made: Any, state: Sequence[tuple[str, Any]]) -> Any:
    if state is _IS_ITS_OWN:
        made.__dict__ = made
        return made
    for name, value in state:
        value = dict.__getitem__(made, value.key) if isinstance(value, _Item) else value
        if name == "default_factory" and isinstance(made, collections.defaultdict):
            made.default_factory = value
        else:
            made.__dict__[name] = value
    return made


def ordered_keys(keys: Iterable[Any]) -> list[Any]:
    """Dict keys in leaf order: sorted; if they do not compare, type by type, and by their text
    within a type that does not compare."""
    keys = list(keys)
    try:
        return sorted(keys)
    except outside_interrupts(TypeError):
        kinds = {(type(key).__module__, type(key).__qualname__) for key in keys}
    if len(kinds) == 1:
        return sorted(keys, key=repr)
    return [
        key
        for kind in sorted(kinds)
        for key in ordered_keys(
            k for k in keys if (type(k).__module__, type(k).__qualname__) == kind
        )
    ]


def _order_of(keys: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The positions of the keys in leaf order; None if they are in that order."""
    wanted = ordered_keys(keys)
    if wanted == [*keys]:
        return None
    places = {key: place for place, key in enumerate(keys)}
    return tuple(places[key] for key in wanted)


# Opening.

Opener = Callable[[Any], tuple[Container, Iterable[Any]]]

#: The function that opens instances of a type; None for leaf types.
_openers: dict[type, Opener | None] = {
    dict: _Dict.open,
    list: _Sequence.open,
    tuple: _Sequence.open,
    type(None): lambda value: (_NOTHING, ()),
    **dict.fromkeys((bool, int, float, complex, str, bytes)),
}
_MOST_TYPES = 1000


def opener_of(value: Any) -> Opener | None:
    """The function that opens a container; None for a leaf."""
    kind = type(value)
    try:
        return _openers[kind]
    except KeyError:
        if len(_openers) >= _MOST_TYPES:  # types that are made at run time are not kept for ever
            for known in list(_openers)[_MOST_TYPES // 2 :]:
                _openers.pop(known, None)
        opener = _openers[kind] = _new_opener(value)
        return opener


def register(kind: type, opener: Opener) -> None:
    """Registers the instances of `kind` as containers, which `opener` opens."""
    _openers[kind] = opener


def _new_opener(value: Any) -> Opener | None:
    kind = type(value)
    if issubclass(kind, TensorShape) or hasattr(kind, "n_sequence_fields"):  # as time.struct_time
        return None
    if hasattr(kind, "__next__"):  # JAX warns about iterators
        return None
    if issubclass(kind, dict):
        return _Dict.open
    if issubclass(kind, (list, tuple)):
        return _Sequence.open
    if issubclass(kind, MappingView):  # JAX warns about them
        return _OtherSequence.open
    if _opened_by_jax(value) is not None:
        return _Registered.open
    if issubclass(kind, (collections.deque, collections.UserList)):
        return _OtherSequence.open
    if issubclass(kind, Mapping) and not hasattr(kind, "__tracegraph_leaf__"):
        return _Mapping.open
    return _Record.open if dataclasses.is_dataclass(kind) else None


def _opened_by_jax(value: Any) -> Any:
    """The items of a JAX pytree, and how JAX packs them; None for its leaves."""
    items, treedef = tree_util().tree_flatten(value, is_leaf=lambda item: item is not value)
    return None if tree_util().treedef_is_leaf(treedef) else (items, treedef)


#: Deeper structures are errors: the functions recurse over them.
DEEPEST = 200


def scanned(nest: Any) -> tuple[list[Any], list[Any]]:
    """The leaves in packing order, and a key that is equal for equal structures: a fast version of
    `flatten_structure`.

    Raises UnknownValue for structures that are too deep.
    """
    leaves: list[Any] = []
    key: list[Any] = []
    names: list[Any] = []
    _scan(nest, leaves, key, names, 0)
    key.append(len(key))
    key += names
    if len({*map(type, names), str}) > 1:  # 1, 1.0 and True are different names
        key.extend(map(type, names))
    return leaves, key


def _scan(item: Any, leaves: list, key: list, names: list, depth: int) -> None:
    # The hot path of calls with dicts: every line here costs a tenth of a microsecond. The key
    # has the number of leaves before each container, its type and its size, which identify it.
    kind = type(item)
    if kind is dict:
        key.append(dict)
        key.append(len(item))
        names.extend(item)
        item = item.values()
    elif kind is tuple or kind is list:
        key.append(kind)
        key.append(len(item))
    else:
        opener = opener_of(item)
        if opener is None:
            leaves.append(item)
            return
        container, item = opener(item)
        key.append(container)
    for part in item:
        try:
            opener = _openers[type(part)]
        except KeyError:
            opener = opener_of(part)
        if opener is None:
            leaves.append(part)
            continue
        if depth >= DEEPEST:
            _refuse_depth()
        key.append(len(leaves))
        _scan(part, leaves, key, names, depth + 1)


# Structures.


class LeafNumber:
    """Stands in for the leaf with this number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Structure:
    """The structure of a nest: how to pack its leaves. Hashable; two are equal if they pack equal
    nests, with keys in the same order."""

    __slots__ = ("_hash", "_packer", "container", "count", "parts")

    def __init__(self, container: Container | None, parts: tuple[Structure, ...] = ()) -> None:
        #: The container of the parts; None for a leaf.
        self.container = container
        #: The parts, in packing order.
        self.parts = parts
        #: The number of leaves.
        self.count = 1 if container is None else sum(map(_count_of, parts))
        self._hash = hash((container, parts))
        self._packer: Any = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure)
            and self._hash == other._hash
            and self.container == other.container
            and self.parts == other.parts
        )

    def __hash__(self) -> int:
        return self._hash

    def matches(self, other: Structure, check_types: bool = True) -> bool:
        """Whether the leaves correspond: keys may be in another order, and dicts and lists may be
        of subclasses, as in TensorFlow. Without `check_types`, sequences may be of any kind."""
        if self.container is None or other.container is None:
            return self.container is other.container
        return self.container.matches(other.container, check_types) and all(
            one.matches(two, check_types)
            for one, two in zip(self.ordered_parts, other.ordered_parts)
        )

    @property
    def ordered_parts(self) -> Sequence[Structure]:
        """The parts in leaf order."""
        order = None if self.container is None else self.container.order
        return self.parts if order is None else [self.parts[i] for i in order]

    def pack(self, leaves: Iterable[Any]) -> Any:
        """The nest with these leaves."""
        return self._packed(iter(leaves))

    def numbered(self) -> Any:
        """The nest with a `LeafNumber` in place of each leaf, in the order in which they are
        packed."""
        return self.pack(map(LeafNumber, range(self.count)))

    def _packed(self, leaves: Iterator[Any]) -> Any:
        if self.container is None:
            return next(leaves)
        order = self.container.order
        if order is None:
            return self.container.build([part._packed(leaves) for part in self.parts])
        found = {place: self.parts[place]._packed(leaves) for place in order}
        return self.container.build([found[place] for place in range(len(self.parts))])

    def packer(self) -> Callable[[Sequence[Any]], Any]:
        """A fast `pack` for a list of leaves: compiled code, like the constructors of
        namedtuples."""
        if self._packer is None:
            kind = None if self.container is None else self.container.kind
            is_plain = kind in (list, tuple) and all(part is _LEAF for part in self.parts)
            self._packer = kind if is_plain else self._compiled(itertools.count(), {})
        return self._packer

    def _compiled(self, numbers: Iterator[int], constants: dict[str, Any]) -> Any:
        return eval(f"lambda leaves: {self._expression(numbers, constants, 0)}", constants)

    def _expression(self, numbers: Iterator[int], constants: dict[str, Any], depth: int) -> str:
        """The Python expression that builds the nest from `leaves`, whose indices come from
        `numbers`."""
        if self.container is None:
            return f"leaves[{next(numbers)}]"
        if depth == _DEEPEST_TEXT:
            return f"{_named(self._compiled(numbers, {}), constants)}(leaves)"
        order = self.container.order or range(len(self.parts))
        found = {i: self.parts[i]._expression(numbers, constants, depth + 1) for i in order}
        items = [found[i] for i in range(len(self.parts))]
        kind, names = self.container.kind, self.container.names
        if kind is dict:
            keys = (repr(x) if type(x) is str else _named(x, constants) for x in names)
            return "{" + ", ".join(map("{}: {}".format, keys, items)) + "}"
        if kind is tuple:
            return "(" + "".join(f"{item}, " for item in items) + ")"
        built = "[" + ", ".join(items) + "]"
        return built if kind is list else f"{_named(self.container.build, constants)}({built})"

    def packing_order(self) -> list[int]:
        """The indices of the leaves in packing order."""
        return self._numbered(itertools.count())

    def _numbered(self, numbers: Iterator[int]) -> list[int]:
        if self.container is None:
            return [next(numbers)]
        order = self.container.order or range(len(self.parts))
        found = {place: self.parts[place]._numbered(numbers) for place in order}
        return [number for place in range(len(self.parts)) for number in found[place]]

    @property
    def is_leaf(self) -> bool:
        """Whether this is a single leaf without a container."""
        return self.container is None

    def __repr__(self) -> str:
        return str(self.pack(["*"] * self.count))


def _named(value: Any, constants: dict[str, Any]) -> str:
    """A name for a value in a compiled expression."""
    name = f"c{len(constants)}"
    constants[name] = value
    return name


#: Deeper expressions are split into functions: Python's parser has a limit.
_DEEPEST_TEXT = 16
_count_of = attrgetter("count")
_LEAF = Structure(None)


def flatten_structure(
    nest: Any, none_is_leaf: bool = False, whole: type | tuple[()] = ()
) -> tuple[list[Any], Structure]:
    """The leaves of `nest`, and the structure that packs them. The leaves of a dict are ordered by
    its sorted keys, and packed in its own order. Containers of the type `whole` are leaves.

    Raises UnknownValue, a Mismatch and a TypeError, for a structure that contains itself or is
    nested too deeply.
    """
    leaves: list[Any] = []
    opener = opener_of(nest)
    if opener is None or (nest is None and none_is_leaf) or isinstance(nest, whole):
        return [nest], _LEAF
    return leaves, _flattened(nest, opener, leaves, none_is_leaf, whole, [])


def _flattened(
    nest: Any,
    opener: Opener,
    leaves: list[Any],
    none_is_leaf: bool,
    whole: type | tuple[()],
    around: list[Any],
) -> Structure:
    """Appends the leaves of the container `nest`, which is inside the containers `around`."""
    if nest is not None and len(around) >= DEEPEST:
        _refuse_depth(around)
    container, items = opener(nest)
    order = container.order
    if order is not None:
        items = list(items)
        items = [items[place] for place in order]
    parts: list[Structure] = []
    around.append(nest)
    for item in items:
        try:
            opens = _openers[type(item)]
        except KeyError:
            opens = opener_of(item)
        if opens is None or (item is None and none_is_leaf) or isinstance(item, whole):
            leaves.append(item)
            parts.append(_LEAF)
        else:
            parts.append(_flattened(item, opens, leaves, none_is_leaf, whole, around))
    around.pop()
    if order is not None:
        found = dict(zip(order, parts, strict=True))
        parts = [found[place] for place in range(len(order))]
    return Structure(container, tuple(parts))


def _refuse_depth(around: Sequence[Any] = ()) -> NoReturn:
    """Raises UnknownValue for a structure that is too deep, such as one that contains itself."""
    known: set[int] = set()
    for item in around:
        if id(item) in known:
            raise UnknownValue(
                f"a structure contains itself: {shown(item)}", fix="pass one that does not"
            )
        known.add(id(item))
    raise UnknownValue(
        f"a structure is nested more than {DEEPEST} deep",
        fix="make it flatter, such as one list",
    )


# The public functions.


def flatten(structure: object, expand_composites: bool = False) -> list[Any]:
    """The leaves of a nested structure, including None; dicts in the order of their sorted keys.

    `expand_composites` has no effect, here or in the other functions: tensors have no parts.

    >>> tg.nest.flatten({"b": [1, 2], "a": None})
    [None, 1, 2]
    """
    return flatten_structure(structure, none_is_leaf=True)[0]


def is_nested(seq: object) -> bool:
    """Whether `seq` is a container rather than a leaf."""
    return seq is not None and opener_of(seq) is not None


def pack_sequence_as(
    structure: object, flat_sequence: Sequence[Any], expand_composites: bool = False
) -> Any:
    """Packs the leaves `flat_sequence`, in the order of `flatten`, into the structure of
    `structure`, whose dicts keep their key order. Raises ValueError for a wrong number of leaves.

    >>> tg.nest.pack_sequence_as({"b": [0, 0], "a": 0}, [1, 2, 3])
    {'b': [2, 3], 'a': 1}
    """
    _, packing = flatten_structure(structure, none_is_leaf=True)
    if not isinstance(flat_sequence, Iterable):
        fact = f"pack_sequence_as: the leaves are {kind_of(flat_sequence)}: {shown(flat_sequence)}"
        fail(DTypeError, fact, fix="give a list of leaves")
    leaves = list(flat_sequence)
    if len(leaves) != packing.count:
        wanted = counted(packing.count, "leaf", "leaves")
        fact = f"the structure has {wanted} and {were(len(leaves))} given"
        fail(SignatureError, fact, fix="give one value for each leaf")
    return packing.pack(leaves)


def map_structure(
    func: Positional[Any],
    *structures: object,
    check_types: bool = True,
    expand_composites: bool = False,
) -> Any:
    """Applies `func` to corresponding leaves; the result has the structure of the first argument.

    Dicts correspond by key, in any order. Raises ValueError if the structures differ; without
    `check_types` a list may correspond to a tuple, and any sequence-like container to another.

    >>> tg.nest.map_structure(lambda x, y: x + y, [1, (2,)], [10, (20,)])
    [11, (22,)]
    """
    if not callable(func):
        fact = f"map_structure: {shown(func)} is not callable"
        fail(TraceError, fact, fix="give a function, and then the structures")
    if not structures:
        fact = "map_structure: there are no structures"
        fail(SignatureError, fact, fix="give at least one after the function")
    flats, packing = _matched(structures, check_types)
    return packing.pack([func(*row) for row in zip(*flats, strict=True)])


def assert_same_structure(
    nest1: object, nest2: object, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raises ValueError if the structures differ, showing both. The order of keys does not matter,
    nor does a subclass of dict or of list; `check_types` is as in `map_structure`."""
    _matched([nest1, nest2], check_types)


def _matched(structures: Sequence[Any], check_types: bool) -> tuple[list[list[Any]], Structure]:
    """The leaves of matching structures, and the structure of the first."""
    flats, packings = zip(*(flatten_structure(x, none_is_leaf=True) for x in structures))
    first = packings[0]
    for packing in packings[1:]:
        if not first.matches(packing, check_types):
            fail(
                SignatureError,
                f"the structures differ: {first!r} and {packing!r}",
                fix="make both of the same containers, keys and lengths",
            )
    return list(flats), first


__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]
