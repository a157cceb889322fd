"""What the functions of branches and loops set outside of themselves while they are traced: that
happens once, whatever a graph then chooses or repeats, so it is told.

Only what a step could read again is looked at: names, and numbers and tensors in objects, dicts and
lists. Other things that are only collected, as by `seen.append(x.shape)`, are left alone: that is
how such functions are debugged.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import inspect
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import (
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple

import numpy as np

from tracegraph import nest
from tracegraph.core.source import HOOKS, here, is_of_us, is_ours
from tracegraph.eager.tensor_methods import is_symbolic
from tracegraph.errors import SignatureError, fail, message, warn
from tracegraph.ir.tensor import Tensor
from tracegraph.state.user_names import names_in_code
from tracegraph.tracing.trace import variables_created

#: By the public function: when a user expects its function to run, and what to do instead.
_FORMS = {
    "cond": ("only when it is taken", "return it from both branches"),
    "case": ("only when it is taken", "return it from all branches"),
    "switch_case": ("only when it is taken", "return it from all branches"),
    "while_loop": ("in each step", "carry it in loop_vars, and return its new value"),
    "map_fn": ("for each element", "return it, or carry it from element to element with tg.scan"),
    "scan": ("in each step", "make it part of what fn carries from step to step"),
    "foldl": ("in each step", "make it part of what fn carries from step to step"),
    "foldr": ("in each step", "make it part of what fn carries from step to step"),
    "pfor": ("for each element", "return it, and combine what the elements return"),
    "vectorized_map": ("for each element", "return it, and combine what the elements return"),
    "vmap": ("for each element", "return it, and combine what the elements return"),
}
#: The forms that may not assign Variables.
_PARALLEL = ("pfor", "vectorized_map", "vmap")


def telling(form: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function as the public function `form` traces it: it warns of what it sets."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        before = [*_settings_of(function, set())]
        result = function(*args, **kwargs)
        for setting in _changed(before):
            _tell(form, setting.path)
        return result

    return called


def _tell(form: str, path: str) -> None:
    when, fix = _FORMS[form]
    fix += "" if form in _PARALLEL else ", or keep it in a tg.Variable"
    text = message(
        f"{path} was set while a function given to tg.{form} was traced: what such a function sets "
        f"outside of itself, it sets once, and not {when}",
        source=here(),
        fix=fix,
    )
    warn(text, once=True)


@contextlib.contextmanager
def objects_kept(
    body: Any, names: Sequence[str], is_loop: bool, is_users: Callable[[Owner], bool]
) -> Iterator[list[Setting]]:
    """A context that gives, when it ends, what methods and functions from elsewhere have changed
    in objects that a body has from outside, and in names around them, if a graph can carry it and
    the class or the function `is_users`. It warns if they change other numbers and flags, or if
    anything changes an array of NumPy or of Python in place. The statement's own `names` are its
    state."""
    found: list[Setting] = []
    reached = [*_attributes_reached(body), *_set_by_functions(body, is_users)]
    before = {(x.path, id(x.holder)): x for x in _without_state(reached, body, names)}
    count = variables_created()
    arrays = [(path, x, copy.copy(x)) for path, x in _arrays_reached(body)]
    lists = [(path, x, len(x)) for path, x in _reached(body) if type(x) is list]

    def changed() -> list[Setting]:
        added = (x for x in _added([*before.values()]) if not x.is_state_of(names))
        settings = [*_changed((*before.values(), *added))]
        # Flags say that Variables are created; the function is traced again then.
        has_created = variables_created() > count
        return [x for x in settings if not (has_created and type(x.value) in _PLAIN)]

    try:
        yield found
    except BaseException:
        for x in changed():
            if x.is_carried(is_users):
                x.put_back()
        raise
    settings = changed()
    found += [x for x in settings if x.is_carried(is_users)]
    if found:  # the body is traced again
        _refuse_with_class(found)
        return
    for setting in settings:
        old, new = setting.old, setting.value
        is_plain = type(new) in _PLAIN
        change = f"changed from {old!r} to {new!r}" if is_plain else "became another tensor"
        what = "what a method or a function from elsewhere sets outside of itself, it sets"
        _tell_of_change(setting.path, change, what, is_loop)
    for path, numbers, old in arrays:
        if path not in names and _bytes_of(numbers) != _bytes_of(old):
            what = "what is put into an array is put there"
            _tell_of_change(path, "changed", what, is_loop)
    for path, items, length in lists:
        if any(type(x) in _NUMBERS for x in items[length:]):
            change = f"grew from {length} to {len(items)} items"
            _tell_of_change(path, change, "what is added to a list is added", is_loop)


def _refuse_with_class(found: Sequence[Setting]) -> None:
    """Raises SignatureError for an attribute that an object had from its class, if that changes
    too: which step reads that of the class is not known."""
    classes = {(x.holder, x.key) for x in found if isinstance(x.holder, type)}
    for x in found:
        kinds = x.owner.__mro__ if isinstance(x.owner, type) else ()
        others = [kind for kind in kinds if kind is not x.holder and (kind, x.key) in classes]
        if others:
            for each in found:
                each.put_back()
            fail(
                SignatureError,
                f"{x.path} is set in a branch or a loop that a tensor decides about, which also "
                f"changes that attribute of the class {others[0].__name__}",
                fix=f"give {x.path} a value of its own in __init__",
            )


def _tell_of_change(path: str, change: str, what: str, is_loop: bool) -> None:
    where, when = (
        ("the body of a loop", "in each step") if is_loop else ("a branch", "when it is taken")
    )
    text = message(
        f"{path} {change} while {where} was traced: {what} once, and not {when}",
        source=here(),
        fix="set it in the statement itself, or keep it in a tg.Variable",
    )
    warn(text)


def changed_by(path: str, value: Any, act: Callable[[], None]) -> list[str]:
    """The paths of the numbers and tensors in a value that `act` replaces by others; they get their
    values back."""
    before = [*_settings_in(path, value, 3, set())]
    act()
    changed = [*_changed(before)]
    for x in changed:
        x.put_back()
    return [x.path for x in changed]


#: The class of an object, or a function that sets a name around it.
Owner = type | FunctionType


class Setting(NamedTuple):
    """A name, an attribute or an item, with its value before the trace."""

    path: str
    #: A cell, or what has the value at `key`.
    holder: Any
    key: Any
    old: Any
    #: The class of the object that a statement reaches, if it is an attribute; a function that sets
    #: it, if it is a name, or that has it.
    owner: Any = None

    @property
    def is_attribute(self) -> bool:
        return isinstance(self.owner, type)

    @property
    def is_name(self) -> bool:
        return isinstance(self.holder, CellType) or _is_module(self.holder)

    @property
    def value(self) -> Any:
        found = self._found
        return self.old if found is _MISSING else found

    @property
    def _is_own(self) -> bool:
        """Whether an object has the attribute itself, and not from its class, or a class from that
        which it is derived from."""
        held = vars(self.holder) if isinstance(self.holder, type) else self.holder
        return not isinstance(held, (dict, MappingProxyType)) or self.key in held

    @property
    def is_there(self) -> bool:
        return self._found is not _MISSING

    @property
    def _found(self) -> Any:
        try:
            if isinstance(self.holder, CellType):
                return self.holder.cell_contents
            is_table = isinstance(self.holder, _TABLES)
            return self.holder[self.key] if is_table else getattr(self.holder, self.key)
        except (ValueError, LookupError, AttributeError):  # deleted, or a default of the class
            default = getattr(self.owner, self.key, _MISSING) if self.is_attribute else _MISSING
            return default if type(default) in _PLAIN else _MISSING

    def put(self, value: Any) -> None:
        # Classes of the user may set items in a way of their own.
        kinds: list[Any] = [kind for kind in (dict, list, deque) if isinstance(self.holder, kind)]
        is_unset = self.is_attribute and value is self.old and not self._is_own
        if is_unset and getattr(self.owner, self.key, _MISSING) is value:
            return  # it stays that of the class
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, type):
            setattr(self.holder, self.key, value)
        elif kinds:
            kinds[0].__setitem__(self.holder, self.key, value)
        else:
            object.__setattr__(self.holder, self.key, value)

    def remove(self) -> None:
        if isinstance(self.holder, CellType):
            del self.holder.cell_contents
        elif isinstance(self.holder, dict):
            del self.holder[self.key]
        else:
            object.__delattr__(self.holder, self.key)

    def put_back(self) -> None:
        if self.old is not _MISSING:
            self.put(self.old)
        elif self.is_there:
            self.remove()

    def is_state_of(self, names: Sequence[str]) -> bool:
        """Whether a statement carries it by its `names`, or with the dataclass that it is in."""
        owner = self.path.rpartition(".")[0]
        is_in_structure = owner in names and nest.opener_of(self.holder) is not None
        return self.path in names or is_in_structure

    @property
    def has_value(self) -> bool:
        """Whether it was something before that can be used."""
        if self.old is None or self.old is _MISSING:
            return False
        return type(self.old) is not Tensor or _is_in_scope(self.old)

    def is_carried(self, is_users: Callable[[Owner], bool]) -> bool:
        """Whether a graph can carry it, where it was changed."""
        return self.owner is not None and not isinstance(self.value, str) and is_users(self.owner)

    @property
    def is_changed(self) -> bool:
        new, old = self.value, self.old
        if new is old or (self.is_attribute and not self._is_own):
            return False
        if any(isinstance(x, Tensor) and is_symbolic(x) for x in nest.flatten(new)):
            return True
        if self.owner is not None and _is_nest_of_numbers(new) and _is_nest_of_numbers(old):
            return repr(new) != repr(old)
        if self.owner is not None and type(old) is Tensor:
            return new is None or type(new) in (*_NUMBERS, bool, complex, Tensor)
        kinds = _PLAIN if self.is_name or self.is_attribute else _NUMBERS
        alike = type(new) is type(old) or self.is_name
        return type(new) in kinds and type(old) in kinds and alike and new != old


def _changed(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Those that were changed, each item once: the end of a list is also one of its places."""
    places: set[tuple[int, Any]] = set()
    for x in settings:
        if x.is_changed:
            is_end = x.key == -1 and isinstance(x.holder, (list, deque))
            place = id(x.holder), len(x.holder) - 1 if is_end else x.key
            if place not in places:
                places.add(place)
                yield x


def _is_nest_of_numbers(value: Any) -> bool:
    is_nest = isinstance(value, (list, tuple, dict))
    return is_nest and all(type(x) in _NUMBERS for x in nest.flatten(value))


#: The value of an attribute that is not there.
_MISSING = object()
_NUMBERS = (int, float)
_TABLES = (dict, list, tuple, deque)
#: The values of names that code may decide by.
_PLAIN = (bool, int, float, complex, str, NoneType)
#: Those of attributes of classes and functions that are looked at.
_OF_CLASSES = frozenset((*_PLAIN, Tensor))


def _is_module(holder: Any) -> bool:
    return isinstance(holder, dict) and "__builtins__" in holder


def _settings_of(function: Any, seen: set[int]) -> Iterator[Setting]:
    """What a function, and the user's functions that it reaches, may set outside of itself."""
    if isinstance(function, functools.partial):
        for place, x in enumerate((*function.args, *function.keywords.values())):
            yield from _settings_in(f"argument {place}", x, 2, seen)
        function = function.func
    if isinstance(function, MethodType):
        yield from _settings_in("self", function.__self__, 2, seen)
        function = function.__func__
    if not isinstance(function, FunctionType):
        yield from _settings_in("self", function, 2, seen)
        function = vars(type(function)).get("__call__")
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    if id(code) in seen or is_ours(code.co_filename):
        return
    seen.add(id(code))
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held: list[tuple[str, Any, Any]] = [(name, cell, _content(cell)) for name, cell in cells]
    known = function.__globals__
    held += [(name, known, known[name]) for name in names_in_code(code) if name in known]
    for name, holder, value in held:
        if not isinstance(value, _CODE) and not name.startswith(HOOKS):
            yield Setting(name, holder, name, value)
        yield from _settings_in(name, value, 2, seen)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _settings_in(path: str, value: Any, depth: int, seen: set[int]) -> Iterator[Setting]:
    """What a function may set in a value that it has from outside."""
    if isinstance(value, (FunctionType, MethodType, functools.partial)):
        yield from _settings_of(value, seen)
        return
    for inner, holder, key, x in _parts(path, value) if depth else ():
        if type(x) in _NUMBERS or (type(x) is Tensor and _is_in_scope(x)):
            if not isinstance(holder, tuple):
                yield Setting(inner, holder, key, x)
        else:
            yield from _settings_in(inner, x, depth - 1, seen)


#: Larger tables than this are data.
_MOST_ITEMS = 100


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """The attributes and items of a value: the path, what holds it, its key there and itself."""
    if isinstance(value, dict):
        if len(value) <= _MOST_ITEMS:
            yield from ((f"{path}[{key!r}]", value, key, x) for key, x in [*value.items()])
    elif isinstance(value, (list, tuple, deque)):
        if len(value) <= _MOST_ITEMS:
            yield from ((f"{path}[{key}]", value, key, x) for key, x in enumerate([*value]))
        if len(value) and type(value[-1]) is Tensor:  # the end of a list, where a step may look
            yield f"{path}[-1]", value, -1, value[-1]
    elif _is_object(value):
        held = vars(value)
        yield from ((f"{path}.{name}", held, name, x) for name, x in [*held.items()])
    else:
        for name in getattr(type(value), "__slots__", ()) if not is_of_us(type(value)) else ():
            if isinstance(name, str) and hasattr(value, name):
                yield f"{path}.{name}", value, name, getattr(value, name)


def _is_object(value: Any) -> bool:
    """Whether a value has attributes, and is not code or an object of ours."""
    is_object = hasattr(value, "__dict__") and not isinstance(value, _CODE)
    return is_object and not is_of_us(type(value))


_CODE = (type, FunctionType, MethodType, ModuleType)


def _attributes_reached(body: Any) -> Iterator[Setting]:
    """The numbers, flags and tensors in the objects that the body of a statement has from
    outside, or by names of its module, and in their classes."""
    code, known = getattr(body, "__code__", None), getattr(body, "__globals__", {})
    names = () if code is None else dict.fromkeys(names_in_code(code))
    of_module = ((name, known[name]) for name in names if name in known)
    seen = dict[int, int]()
    for name, value in (*_held_by(body), *of_module):
        if not name.startswith(HOOKS):
            yield from _attributes_in(name, value, _DEEPEST, seen)


def _held_by(body: Any) -> Iterator[tuple[str, Any]]:
    """What the body of a statement has from outside, apart from names of modules."""
    names = getattr(getattr(body, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(body, "__closure__", None) or (), strict=True):
        value = _content(cell)
        yield name, value
        if is_ours(body.__code__.co_filename) and isinstance(value, FunctionType):
            yield from _held_by(value)  # a part of an expression, for a hook
        while isinstance(value, functools.partial):
            yield from ((name, x) for x in (*value.args, *value.keywords.values()))
            value = value.func
            yield name, value
        if isinstance(value, MethodType):
            yield "self", value.__self__
            yield name, value.__func__


def _attributes_in(path: str, value: Any, depth: int, seen: dict[int, int]) -> Iterator[Setting]:
    """What a value has; of a table only what the objects in it have, since its items are looked at
    as such. `seen` is how deep each object was looked at."""
    if isinstance(value, FunctionType) and depth < _DEEPEST:
        yield from _set_by_function(path, value, seen)
    if not depth or isinstance(value, _CODE) or seen.get(id(value), 0) >= depth:
        return
    if isinstance(value, _TABLES) and not _is_object(value):
        for inner, _, _, x in _parts(path, value):
            if not isinstance(x, (*_TABLES, *_ATTRIBUTES, Tensor)):
                yield from _attributes_in(inner, x, depth, seen)
        return
    seen[id(value)] = depth
    own = type(value)
    if own.__module__ != "builtins" and not is_of_us(own):
        yield from _of_class(own, path, vars(value) if _is_object(value) else None)
    for inner, holder, key, x in _parts(path, value):
        if key != "built":  # as a layer notes that it has created its Variables
            yield Setting(inner, holder, key, x, own)
        if not isinstance(x, (*_ATTRIBUTES, Tensor)):
            yield from _attributes_in(inner, x, depth - 1, seen)


#: How deep objects in objects are looked at.
_DEEPEST = 4
_ATTRIBUTES = (bool, int, float, str)


def _added(known: Sequence[Setting]) -> Iterator[Setting]:
    """The attributes that objects have got besides those that are known."""
    places = {(id(x.holder), x.key) for x in known}
    holders = {id(x.holder): x for x in known if x.is_attribute and type(x.holder) is dict}
    for one in holders.values():
        owner = one.path.removesuffix(f".{one.key}")
        for key in [*one.holder]:
            if (id(one.holder), key) not in places and key != "built":
                yield Setting(f"{owner}.{key}", one.holder, key, _MISSING, one.owner)


def _of_class(own: type, path: str = "", held: dict[str, Any] | None = None) -> Iterator[Setting]:
    """The numbers of a class, and those attributes of an object at a `path`, which has others
    itself, that it has from the class and may get itself."""
    label, seen = own.__qualname__.rpartition(".")[2], set[str]()
    tables = [vars(kind) for kind in own.__mro__ if kind is not object and not is_of_us(kind)]
    for name, x in itertools.chain.from_iterable([*table.items()] for table in tables):
        kind = type(x)
        if kind in _OF_CLASSES and name not in seen and not name.startswith("__"):
            seen.add(name)
            if kind in _NUMBERS or kind is Tensor:
                yield Setting(f"{label}.{name}", own, name, x, own)
            if held is not None and name not in held and kind in _PLAIN:
                yield Setting(f"{path}.{name}", held, name, x, own)


def _functions_in(
    path: str, value: Any, names: frozenset[str], is_users: Callable[[Owner], bool]
) -> list[tuple[str, FunctionType]]:
    """The user's functions in a module, an object or a table that code with these names calls."""
    if isinstance(value, (type, FunctionType, MethodType)) or is_of_us(value):
        return []
    own = getattr(value, "__dict__", None)
    if not own:
        held = _parts(path, value) if isinstance(value, _TABLES) else ()
        held = [(inner, getattr(x, "__func__", x)) for inner, _, _, x in held]
        found = [(inner, x) for inner, x in held if type(x) is FunctionType]
    else:
        keys = names & own.keys() if isinstance(value, ModuleType) else [*own]
        found = [(f"{path}.{k}", own[k]) for k in keys if type(own[k]) is FunctionType]
    return [(inner, x) for inner, x in found if is_users(x)]


def _users_code(body: Any) -> Iterator[FunctionType]:
    """The body of a statement, or what it calls if a hook has made it."""
    if isinstance(body, FunctionType):
        yield body
        if is_ours(body.__code__.co_filename):
            for cell in body.__closure__ or ():
                yield from _users_code(_content(cell))


def _without_state(
    settings: Sequence[Setting], body: Any, names: Sequence[str]
) -> Iterator[Setting]:
    """The settings besides those that are state of a body by its `names`. What functions elsewhere
    call by one of these names is another thing, unless it is the body's own."""
    known = set[tuple[int, Any]]()
    for own in _users_code(body):
        cells = dict(zip(own.__code__.co_freevars, own.__closure__ or (), strict=True))
        known |= {(id(cell), name) for name, cell in cells.items() if name in names}
        known |= {(id(own.__globals__), name) for name in {*names} - cells.keys()}
    known |= {(id(x.holder), x.key) for x in settings if x.is_state_of(names)}
    yield from (x for x in settings if (id(x.holder), x.key) not in known)


def _set_by_functions(body: Any, is_users: Callable[[Owner], bool]) -> Iterator[Setting]:
    """The names that functions from elsewhere set around them, the attributes of what they have
    from outside, and numbers of classes, which a body can reach."""
    code, seen = getattr(body, "__code__", None), dict[int, int]()
    if code is None:
        return
    known, (names, stored) = body.__globals__, _names_used(code)
    for name in stored & known.keys():  # set by functions that the body itself defines
        yield Setting(f"{_module_of(body)}.{name}", known, name, known[name], body)
    found = [*((name, known[name]) for name in names if name in known), *_held_by(body)]
    met = set[int]()
    for path, value in found:
        # Looked at in their turn, as what the body names is.
        found += _functions_in(path, value, names, is_users)
        found += _made_by(value, is_users, met)
        if isinstance(value, FunctionType):
            yield from _set_by_function(path, value, seen)
        for method in _methods_of(value, names):
            found.append((f"{path}.{method.__name__}", method))
            yield from _set_by_function(*found[-1], seen)
        if isinstance(value, type) and not is_of_us(value) and value.__module__ != "builtins":
            yield from _of_class(value)


def _made_by(value: Any, is_users: Callable[[Owner], bool], met: set[int]) -> list[tuple[str, Any]]:
    """The methods and the bases of a class, whose objects a body may make, and the classes and
    functions that a function names, each once."""
    if not isinstance(value, (type, FunctionType)) or id(value) in met or not is_users(value):
        return []
    met.add(id(value))
    if isinstance(value, type):
        held = [getattr(x, "__func__", x) for x in vars(value).values()]
        methods = [x for x in held if isinstance(x, FunctionType)]
        return [
            *((x.__qualname__, x) for x in methods),
            *((x.__name__, x) for x in value.__bases__),
        ]
    known, cells = value.__globals__, map(_content, value.__closure__ or ())
    named = (known.get(name) for name in _names_used(value.__code__)[0])
    made = (x for x in (*named, *cells) if isinstance(x, (type, FunctionType)))
    return [(x.__qualname__, x) for x in made]


def _module_of(function: FunctionType) -> str:
    return function.__module__.rpartition(".")[2]


def _methods_of(value: Any, names: Iterable[str]) -> Iterator[FunctionType]:
    """The methods of an object of the user's that code calls that uses these names."""
    kind = type(value)
    if kind.__module__ != "builtins" and not is_of_us(kind):
        found = (inspect.getattr_static(kind, name, None) for name in ("__call__", *names))
        yield from (x for x in found if isinstance(x, FunctionType))


def _set_by_function(path: str, function: FunctionType, seen: dict[int, int]) -> Iterator[Setting]:
    code = function.__code__
    if id(function) in seen or len(seen) > _MOST_ITEMS:
        return
    seen[id(function)] = 1
    if is_ours(code.co_filename):  # such as what `contextmanager` puts around the user's
        for inner in map(_content, function.__closure__ or ()):
            if isinstance(inner, FunctionType):
                yield from _set_by_function(path, inner, seen)
        return
    own = vars(function)
    for name, x in [*own.items()]:
        if type(x) in _OF_CLASSES and not name.startswith("__"):
            yield Setting(f"{path}.{name}", own, name, x, function)
    names, stored = _names_used(code)
    known = function.__globals__
    # Closures of one function have names of their own, so their paths begin with that of each.
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held = [(f"{path}.{name}", name, cell, _content(cell)) for name, cell in cells]
    held += [(name, name, known, known[name]) for name in names if name in known]
    for inner, name, holder, value in held:
        if isinstance(value, FunctionType):
            yield from _set_by_function(inner, value, seen)
        elif not name.startswith(HOOKS) and not isinstance(value, _CODE):
            if name in stored:
                of_module = f"{_module_of(function)}.{name}" if holder is known else inner
                yield Setting(of_module, holder, name, value, function)
            yield from _attributes_in(inner, value, _DEEPEST, seen)


@functools.lru_cache(maxsize=1024)
def _names_used(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the module that code, with that inside it, may use, and those around it that it
    sets."""
    own = (x for x in dis.get_instructions(code) if x.opname in ("STORE_GLOBAL", "STORE_DEREF"))
    names, stored = set(code.co_names), {x.argval for x in own}
    for inner in (x for x in code.co_consts if isinstance(x, CodeType)):
        more = _names_used(inner)
        names |= more[0]
        stored |= more[1]
    return frozenset(names), frozenset(stored)


#: Larger arrays are data.
_MOST_NUMBERS = 100_000


def _arrays_reached(body: Any) -> Iterator[tuple[str, Any]]:
    """The arrays that a body has from outside, itself or in attributes."""
    for path, x in _reached(body):
        is_numpy = isinstance(x, np.ndarray)
        is_array = x.flags.writeable if is_numpy else isinstance(x, (bytearray, array))
        if is_array and (x.size if is_numpy else len(x)) <= _MOST_NUMBERS:
            yield path, x


def _reached(body: Any) -> Iterator[tuple[str, Any]]:
    """What a body has from outside, and the attributes of that."""
    for name, value in _held_by(body):
        yield name, value
        if _is_object(value):
            yield from ((path, x) for path, _, _, x in _parts(name, value))


def _bytes_of(numbers: Any) -> bytes:
    return bytes(numbers) if isinstance(numbers, bytearray) else numbers.tobytes()


def _is_in_scope(tensor: Tensor) -> bool:
    builder = None if tensor.node is None else tensor.node.builder
    return tensor.node is None or (builder is not None and builder.is_open)
