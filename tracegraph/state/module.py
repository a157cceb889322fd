"""Module: an object that finds its variables through attributes, lists and dicts."""

from __future__ import annotations

import collections
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from tracegraph.boundary.tracebacks import leave_out_our_frames
from tracegraph.core.later import opened
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import DType
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.state.deferred import announce, waiting
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import (
    NameScope,
    has_scopes,
    module_name_scope,
    module_scope,
    scope_inside,
)

if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    from tracegraph.typing import LayoutLike

    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result")
    Method = TypeVar("Method", bound=Callable[..., Any])

#: The losses that the last call of each module added.
added_losses: WeakKeyDictionary[Module, list[Any]] = WeakKeyDictionary()


def is_name(name: Any) -> bool:
    """Whether a Module may have this name, if it is named as in Keras: a slash separates scopes."""
    return isinstance(name, str) and name != "" and "/" not in name


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

    `variables`, `trainable_variables` and `submodules` come from a walk over the attributes. It
    finds Variables and Modules, and lists, tuples, sets and dicts of them, ordered by attribute
    name, the module's own before those of nested modules. Each is listed once.

    - `name`: an identifier; by default the class name in snake case. That of a layer, an optimizer
      or a metric may be any text without a slash, as in Keras: "top-5".

    Raises ValueError for another name.
    """

    #: Attributes that the walk skips.
    _hidden: frozenset[str] = frozenset()
    #: Whether its variables are weights of a layer that holds it: not those of optimizers, metrics.
    _holds_weights = True
    #: Whether its name is any text without a slash, as Keras' names are, and not an identifier.
    _is_named_as_in_keras = False
    #: A Module that is also a Mapping is not taken apart where structures are.
    __tracegraph_leaf__ = True

    #: Scalars to add to the loss: each variable's regularizer applied to it, and the losses that
    #: layers of the module added in their last call.
    losses: Any = _Losses()

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            self._check_name(name)
        self._name = name or _snake_case(type(self).__name__)
        scope = scope_inside(self._name)
        if scope is not None:
            self._scope = scope

    def _check_name(self, name: Any) -> None:
        is_free = self._is_named_as_in_keras
        if not (is_name(name) if is_free else isinstance(name, str) and name.isidentifier()):
            letters = "use letters, digits and underscores, not beginning with a digit"
            fail(
                SignatureError,
                f"{shown(name)} is not a valid module name",
                fix='use a text without a slash, such as "top-5"' if is_free else letters,
            )

    if TYPE_CHECKING:

        @staticmethod
        def from_equinox(module: Any) -> Any: ...
        @staticmethod
        def from_flax(module: Any, variables: Any = None) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        call = vars(cls).get("__call__")
        if isinstance(call, FunctionType):
            cls.__call__ = in_scope(call)  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except Exception as error:  # raised by a property
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
        """Whether the name is the default one."""
        return self.name == _snake_case(type(self).__name__)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables: those of the module itself, then those of each submodule in turn."""
        return tuple(leaf for leaf in _leaves_below(self) if isinstance(leaf, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables to train: those that tapes watch automatically, except for those below
        frozen layers."""
        return tuple(v for v, is_trained in self._trained_or_not() if is_trained)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The other variables."""
        return tuple(v for v, is_trained in self._trained_or_not() if not is_trained)

    def _trained_or_not(self) -> list[tuple[Variable, bool]]:
        """Each variable, and whether it is to be trained."""
        leaves = [*_leaves_below(self)]
        modules = (self, *(leaf for leaf in leaves if isinstance(leaf, Module)))
        frozen = {id(v) for module in modules if is_frozen(module) for v in module.variables}
        variables = (leaf for leaf in leaves if isinstance(leaf, Variable))
        return [(v, v.trainable and id(v) not in frozen) for v in variables]

    @property
    def submodules(self) -> tuple[Module, ...]:
        """All modules below this one: those among its attributes, then those below each of them."""
        return tuple(leaf for leaf in _leaves_below(self) if isinstance(leaf, Module))

    @property
    def name_scope(self) -> NameScope:
        """A context that names what is created inside it after the module: `name`, as `encoder/`,
        is its name after those of the scopes in which it was created.

        >>> with tg.Module("encoder").name_scope:
        ...     w = tg.Variable(1.0, name="w")
        >>> w.name
        'encoder/w:0'
        """
        return module_name_scope(self, getattr(self, "_scope", f"{self.name}/"))

    @classmethod
    def with_name_scope(cls, method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Wraps a method so that it runs inside the module's name scope."""

        @functools.wraps(method)
        def inside(self: Module, *args: Any, **kwargs: Any) -> Any:
            try:
                with self.name_scope:
                    return method(self, *args, **kwargs)  # type: ignore[arg-type]
            except BaseException as error:
                leave_out_our_frames(error)
                raise

        vars(inside)[WRAPS_BY] = cls.with_name_scope
        return inside

    def apply_layouts(self, table: Mapping[str, LayoutLike]) -> dict[str, Any]:
        """Shards variables over the devices of a mesh, following a table of path patterns:
        `{"*/kernel": ["data", "model"], "*/bias": ["model"]}`.

        - `table`: layouts by pattern. A path consists of the names of the attributes that lead to a
          variable, as in `blocks/0/kernel`; `*` matches anything, and the first pattern that
          matches wins. A layout is a `tg.distribute.Layout`, a `jax.sharding.NamedSharding`, or,
          inside `with mesh:`, a list of axes.

        Variables that match no pattern keep their layout. Those that layers create on their first
        call are created in place. Returns the layouts applied, by path. Raises ValueError for a
        pattern that matches no variable, and for a layout that does not fit its variable. While
        some layers are not built, a pattern without a match is a warning instead, issued when the
        last of them is built.

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
        """The attributes in the order in which variables are listed: in Keras that of creation."""
        attributes = vars(self).items()
        return list(attributes) if self._is_named_as_in_keras else sorted(attributes)

    def __repr__(self) -> str:
        """The class, its settings that differ from the defaults, and its variables:
        `<Dense(units=3): kernel f32[4,3], bias f32[3]>`."""
        names = opened("tracegraph.state.user_names").names_in(self)
        rows = [
            f"{names.get(id(v), v.base_name) if v.is_unnamed else v.base_name} {v.tensor_type}"
            for v in self.variables
        ]
        more = [f"{len(rows) - MOST_SHOWN} more"] if len(rows) > MOST_SHOWN else []
        listed = ", ".join([*rows[:MOST_SHOWN], *more])
        return f"<{settings_text(self)}{': ' if rows else ''}{listed}>"


#: How many variables, or layers at each end, a `repr` lists.
MOST_SHOWN = 6


class WithSettings:
    """The base class of initializers, schedules and the like, which show their settings: a
    `repr` such as `<HeNormal(seed=1)>`."""

    def __repr__(self) -> str:
        return f"<{settings_text(self)}>"


def settings_text(owner: Any, *first: str) -> str:
    """The class with the `__init__` arguments worth showing in a `repr`, such as `Dense(units=3)`:
    plain values, named functions and objects with settings that are stored under their own names
    and differ from the defaults."""
    parameters = [*inspect.signature(type(owner).__init__).parameters.values()][1:]
    if isinstance(owner, Module):
        first = (*first, *_settings(owner, [p for p in parameters if p.name != "name"]))
        rows = [*first, *([] if owner.is_unnamed else [f"name={owner.name!r}"])]
    else:
        rows = [*first, *_settings(owner, parameters)]
    return f"{type(owner).__name__}({', '.join(rows)})" if rows else type(owner).__name__


def _settings(owner: Any, parameters: Iterable[inspect.Parameter]) -> list[str]:
    given = [(p, vars(owner)[p.name]) for p in parameters if p.name in vars(owner)]
    texts = [(p, value, _setting(value)) for p, value in given]
    return [
        f"{p.name}={text}"
        for p, value, text in texts
        if text and _plain(text) not in (*_texts(p.default, value), _plain(type(owner).__name__))
    ]


def _texts(default: Any, value: Any) -> list[str]:
    """The texts of a default setting, which may be one number for all axes."""
    several = (default,) * len(value) if isinstance(value, tuple) else default
    return [_plain(_setting(x) or "") for x in (default, several)]


def _plain(text: str) -> str:
    """The text of a setting, the same for a class or a function and for its name in Keras."""
    return re.sub("[_'<>]", "", text).lower()


def _setting(value: Any) -> str | None:
    """A setting as Python source; None if it has no short form."""
    if isinstance(value, WithSettings):
        return settings_text(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (bool, int, float, str, tuple)):
        return repr(value)
    if isinstance(value, list) and all(isinstance(x, (int, float)) for x in value):
        return shown(value)
    return getattr(value, "__name__", None) if callable(value) else None


#: The attribute of a wrapper of a user's method that makes it anew, around the converted method.
WRAPS_BY = "_wraps_by"


def in_scope(method: Method) -> Method:
    """Wraps a method of a Module so that its nodes are in the Module's scope, as those of
    `__call__` are."""

    @functools.wraps(method)
    def scoped(self: Module, *args: Any, **kwargs: Any) -> Any:
        try:
            if not has_scopes():
                return method(self, *args, **kwargs)
            with module_scope(self):
                return method(self, *args, **kwargs)
        except BaseException as error:
            leave_out_our_frames(error)
            raise

    vars(scoped)[WRAPS_BY] = in_scope
    return cast("Method", scoped)


def _snake_case(name: str) -> str:
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()


def is_frozen(module: Module) -> bool:
    """Whether the variables of a module are left out of those to train: see `Layer.trainable`."""
    return vars(module).get("_is_frozen", False)


def _leaves_below(root: Module) -> Iterator[Variable | Module]:
    """The Variables and Modules of a module, then those of each of these Modules: TensorFlow's and
    Keras' order of variables."""
    seen = {id(root)}
    waiting = [root]
    while waiting:
        found = [leaf for leaf in _leaves(waiting.pop()) if id(leaf) not in seen]
        leaves = {id(leaf): leaf for leaf in found}
        seen.update(leaves)
        yield from leaves.values()
        waiting += [leaf for leaf in reversed(leaves.values()) if isinstance(leaf, Module)]


def _leaves(module: Module) -> Iterator[Any]:
    """The Variables and Modules among the attributes and in containers that they hold."""
    for name, value in module._ordered_attributes():
        if name not in module._hidden:
            yield from variables_and_modules_in(value)


_CONTAINERS = (
    *(dict, list, tuple, set, frozenset),
    *(Mapping, MappingView, collections.deque, collections.UserList),
)


def variables_and_modules_in(value: Any) -> Iterator[Variable | Module]:
    """The Variables and Modules in a value: itself, or inside its containers."""
    return _in_container(value, set())


def _in_container(value: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, (Variable, Module)):
        yield value
        return
    if not isinstance(value, _CONTAINERS) or id(value) in seen:
        return
    if isinstance(value, TensorShape):  # which has no entries if its rank is unknown
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        value = [item for _, item in sorted(value.items(), key=lambda pair: str(pair[0]))]
    for item in value:  # type: ignore[union-attr]  # a view can be iterated
        yield from _in_container(item, seen)
