"""Module: an object that finds its variables through attributes, lists and dicts."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tracegraph.boundary.tracebacks import leave_out_our_frames
from tracegraph.core.later import opened
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import DType
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.state.deferred import announce, waiting
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import has_scopes, module_name_scope, module_scope

if TYPE_CHECKING:
    from tracegraph.typing import LayoutLike

#: What the last call of each module has added to its losses.
added_losses: WeakKeyDictionary[Module, list[Any]] = WeakKeyDictionary()


class _Losses:
    """The attribute `losses`. It has no setter: a Module may have an attribute of that name."""

    def __get__(self, module: Module | None, owner: type[Module]) -> Any:
        if module is None:
            return self
        of_weights = [v.regularizer(v) for v in module.variables if v.regularizer is not None]
        parts = (module, *module.submodules)
        return [*of_weights, *(loss for part in parts for loss in added_losses.get(part, ()))]


class Module:
    """A base class for models and layers.

    `variables`, `trainable_variables` and `submodules` are found by walking the attributes:
    Variables and Modules, and lists, tuples, sets and dicts of them, ordered by attribute name,
    those of the module itself before those of nested modules. Each is listed once.

    - `name`: an identifier; the class name in snake case by default.

    Raises ValueError for a name that is not an identifier.
    """

    #: Attributes that the walk skips.
    _hidden: frozenset[str] = frozenset()

    #: Scalars to add to the loss: what the regularizer of each variable makes of it, and what
    #: layers of the module have added when they were called last.
    losses: Any = _Losses()

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not (isinstance(name, str) and name.isidentifier()):
            fail(
                SignatureError,
                f"{shown(name)} is not a valid module name",
                fix="use letters, digits and underscores, not beginning with a digit",
            )
        self._name = name or _snake_case(type(self).__name__)

    if TYPE_CHECKING:

        @staticmethod
        def from_equinox(module: Any) -> Any: ...
        @staticmethod
        def from_flax(module: Any, variables: Any = None) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        call = vars(cls).get("__call__")
        if isinstance(call, FunctionType):
            cls.__call__ = _in_scope(call)  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except Exception as error:  # of a property
            leave_out_our_frames(error)
            raise
        if waiting:
            announce(self)

    @property
    def name(self) -> str:
        """The name of the module."""
        return getattr(self, "_name", None) or _snake_case(type(self).__name__)

    @property
    def is_unnamed(self) -> bool:
        """Whether the name is that of the class."""
        return self.name == _snake_case(type(self).__name__)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of the module and its submodules."""
        return tuple(_variables(self))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that tapes watch by themselves."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that tapes do not watch by themselves."""
        return tuple(v for v in self.variables if not v.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """All modules below this one, breadth first."""
        found: dict[int, Module] = {}
        queue: list[Module] = [self]
        while queue:
            module = queue.pop(0)
            for leaf in _leaves(module):
                if isinstance(leaf, Module) and leaf is not self and id(leaf) not in found:
                    found[id(leaf)] = leaf
                    queue.append(leaf)
        return tuple(found.values())

    @property
    def name_scope(self) -> Any:
        """A context that names what is made inside it after the module."""
        return module_name_scope(self)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that runs inside the module's name scope."""

        @functools.wraps(method)
        def inside(self: Module, *args: Any, **kwargs: Any) -> Any:
            try:
                with self.name_scope:
                    return method(self, *args, **kwargs)
            except Exception as error:
                leave_out_our_frames(error)
                raise

        return inside

    def apply_layouts(self, table: Mapping[str, LayoutLike]) -> dict[str, Any]:
        """Divides variables among the devices of a mesh, as a table says by patterns of their
        paths: `{"*/kernel": ["data", "model"], "*/bias": ["model"]}`.

        - `table`: layouts by patterns. A path has the names of the attributes that lead to a
          variable, as in `blocks/0/kernel`; `*` stands for anything, and the first pattern that
          fits counts. A layout is a `tg.distribute.Layout`, a `jax.sharding.NamedSharding`, or
          inside `with mesh:` a list of axes.

        Variables that no pattern fits stay as they are. Those that layers make when they are first
        called are made in place. Returns the layouts that were given, by path. Raises ValueError
        for a pattern that fits no variable, and for a layout that does not fit one. Where layers
        are not built yet, a pattern that fits none is a warning when the last of them is built.

        >>> class Line(tg.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = tg.Variable([1.0, 2.0])
        >>> with tg.distribute.Mesh({"data": 1}):
        ...     Line().apply_layouts({"slope": ["data"]})
        {'slope': Layout(Mesh({'data': 1}), ['data'])}
        """
        return opened("tracegraph.state.layout_tables").apply_layouts(self, table)

    def _ordered_attributes(self) -> list[tuple[str, Any]]:
        """The attributes in the order in which variables are listed."""
        return sorted(vars(self).items())


def settings_text(module: Module, *first: str) -> str:
    """The class with the arguments of `__init__` that a reader of a `repr` wants to see, such as
    `Dense(units=3)`: those that are plain values or functions with a name, kept under their own
    names, and not the defaults."""
    parameters = inspect.signature(type(module).__init__).parameters.values()
    given = ((p, _setting(vars(module).get(p.name))) for p in [*parameters][1:])
    named = [] if module.is_unnamed else [f"name={module.name!r}"]
    shown = [
        f"{p.name}={text}"
        for p, text in given
        if p.name != "name" and text and text.lower() not in _texts(p.default, vars(module)[p.name])
    ]
    rows = ", ".join([*first, *shown, *named])
    return f"{type(module).__name__}({rows})" if rows else type(module).__name__


def _texts(default: Any, value: Any) -> list[str]:
    """What a setting shows that is the default, which may be one number for all axes."""
    several = (default,) * len(value) if isinstance(value, tuple) else default
    return [(_setting(x) or "").lower() for x in (default, several)]


def _setting(value: Any) -> str | None:
    """A setting as Python writes it; None for what has no short form."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (bool, int, float, str, tuple)):
        return repr(value)
    return getattr(value, "__name__", None) if callable(value) else None


def _in_scope(call: Callable[..., Any]) -> Callable[..., Any]:
    """`__call__` of a Module: the nodes that it makes are in the Module's scope."""

    @functools.wraps(call)
    def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
        try:
            if not has_scopes():
                return call(self, *args, **kwargs)
            with module_scope(self):
                return call(self, *args, **kwargs)
        except Exception as error:
            leave_out_our_frames(error)
            raise

    return __call__


def _snake_case(name: str) -> str:
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()


def _variables(root: Module) -> Iterator[Variable]:
    seen: set[int] = set()
    queue: list[Module] = [root]
    while queue:
        module = queue.pop(0)
        for leaf in _leaves(module):
            if id(leaf) in seen:
                continue
            seen.add(id(leaf))
            if isinstance(leaf, Variable):
                yield leaf
            elif leaf is not root:
                queue.append(leaf)


def _leaves(module: Module) -> Iterator[Any]:
    """Variables and Modules among the attributes and in the containers that they hold."""
    for name, value in module._ordered_attributes():
        if name not in module._hidden:
            yield from variables_and_modules_in(value)


def variables_and_modules_in(value: Any) -> Iterator[Variable | Module]:
    """The Variables and Modules that a value is, or that stand in the containers of it."""
    return _in_container(value, set())


def _in_container(value: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, (Variable, Module)):
        yield value
        return
    if not isinstance(value, (dict, list, tuple, set, frozenset)) or id(value) in seen:
        return
    if isinstance(value, TensorShape):  # which has no entries where the rank is open
        return
    seen.add(id(value))
    if isinstance(value, dict):
        value = [item for _, item in sorted(value.items(), key=lambda pair: str(pair[0]))]
    for item in value:
        yield from _in_container(item, seen)
