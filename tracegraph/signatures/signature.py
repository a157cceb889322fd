"""Signatures: how the arguments of a call become the key of a trace and its graph inputs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.boundary.argument_errors import renamed
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.shapes import Dim, Shape, ShapeVariable, is_static, least, plain
from tracegraph.core.source import caller_of
from tracegraph.core.tensorshape import TensorShape, TensorSpec, asked_shape
from tracegraph.core.types import PYTHON_DTYPES, DType, TensorType, bool_, type_of_array
from tracegraph.eager import backend
from tracegraph.errors import (
    DTypeError,
    DTypeMismatch,
    Mismatch,
    ShapeError,
    TraceError,
    fact_of,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import current
from tracegraph.ir.op import attribute_key
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.operands.conversion import KEY_FIX, as_tensor, is_random_key
from tracegraph.ops.broadcast import full
from tracegraph.ops.layout import placement_around
from tracegraph.ops.shape import with_sizes
from tracegraph.passes.specialise import bind_sizes, names_in
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import current_trace

if TYPE_CHECKING:
    from tracegraph.eager.layouts import Layout

LITERALS = (bool, int, float, complex, str, bytes, type(None))


class ObjectKey:
    """The key of an object compared by identity. It does not keep the object alive."""

    __slots__ = ("_hash", "_reference", "text")

    def __init__(self, value: Any) -> None:
        self._reference = weakref.ref(value)
        self._hash = id(value)
        self.text = type(value).__name__

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectKey):
            return False
        value = self._reference()
        return self is other or (value is not None and value is other._reference())


@dataclasses.dataclass(frozen=True)
class VariableKey:
    """The key of a Variable: its type, and the first position where the same one was passed."""

    type: TensorType
    trainable: bool
    alias: int = 0


class SizeType(TensorType):
    """The key of an argument that is an open size of an enclosing trace: the type of a tensor
    without elements that has this size, so that the graph has an input to take it from."""

    __slots__ = ()

    _interned: ClassVar[weakref.WeakValueDictionary[tuple[DType, Shape], TensorType]] = (
        weakref.WeakValueDictionary()
    )

    @property
    def value(self) -> Any:
        """What the traced function gets as its argument."""
        return asked_shape(self.shape)[0]


class ShapeType(SizeType):
    """The key of an argument that is a TensorShape with open sizes."""

    __slots__ = ()

    _interned: ClassVar[weakref.WeakValueDictionary[tuple[DType, Shape], TensorType]] = (
        weakref.WeakValueDictionary()
    )

    @property
    def value(self) -> Any:
        shape = asked_shape(self.shape)
        return shape if isinstance(self.shape, ShapeVariable) else shape[:-1]


def size_type(leaf: Any) -> TensorType | None:
    """The key of a leaf that is an open size or a shape with open sizes; None for any other."""
    if isinstance(leaf, Dim):
        return SizeType(bool_, (plain(leaf), 0))
    if not isinstance(leaf, TensorShape):
        return None
    if isinstance(leaf.variable, ShapeVariable):
        return ShapeType(bool_, leaf.variable)
    if leaf.variable is not None or not all(isinstance(size, (int, Dim)) for size in leaf):
        return None
    return None if is_static(tuple(leaf)) else ShapeType(bool_, (*map(plain, leaf), 0))


def holder_of(leaf: Any, type: TensorType) -> Tensor:
    """The tensor that is passed for an open size. Raises TraceError if no trace in progress has
    that size."""
    trace = current_trace()
    if trace is None or not trace.has_sizes(names_in(type)):
        fail(
            TraceError,
            f"{shown(leaf)} is an open size that no function being traced here has",
            fix="pass x.shape[axis] of a tensor that the calling code has",
        )
    return full(False, TensorType(type.dtype, type.shape))


def leaf_key(leaf: Any) -> Any:
    """What a leaf contributes to the key of a trace: a TensorType for tensors and arrays."""
    kind = type(leaf)
    if kind is Tensor:
        return leaf.type
    if kind in LITERALS:
        return attribute_key(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        return _array_type(leaf)
    if isinstance(leaf, Variable):
        return VariableKey(leaf.tensor_type, leaf.trainable)
    if isinstance(leaf, TensorSpec):
        return leaf
    if hasattr(leaf, "__array__") and hasattr(leaf, "dtype"):
        return _array_type(leaf)
    return size_type(leaf) or _object_key(leaf)


class NoKey(Mismatch):
    """A Mismatch for an argument that cannot be part of the key of a trace."""

    kind = TraceError

    def __init__(self, leaf: Any) -> None:
        fixes = (fix for types, fix in _NO_KEY if isinstance(leaf, types))
        fact = f"{kind_of(leaf)}, which cannot be the key of a trace: {shown(leaf)}"
        super().__init__(fact, next(fixes, _HASH_FIX))


#: Objects that are never a key, and what to pass instead.
_NO_KEY: tuple[tuple[Any, str], ...] = (
    ((set, frozenset), "pass a list, such as sorted(items)"),
    (Iterator, "pass what it runs over, such as list(items)"),
    (bytearray, "pass bytes, or an array"),
    (weakref.ref, "pass the object itself"),
)
_HASH_FIX = "give its class a __hash__ that agrees with its __eq__, or pass tensors and numbers"


def _array_type(array: Any) -> TensorType:
    try:
        return type_of_array(array)
    except outside_interrupts(TypeError):
        raise DTypeMismatch(
            f"an array of {array.dtype}, which is not a type of tensors",
            fix=KEY_FIX
            if is_random_key(array)
            else "convert it with .astype(...) to numbers or truth values",
        ) from None


def _object_key(leaf: Any) -> Any:
    if isinstance(leaf, tuple(types for types, _ in _NO_KEY)):
        raise NoKey(leaf)
    try:
        hash(leaf)
    except outside_interrupts(TypeError):
        raise NoKey(leaf) from None
    if type(leaf).__eq__ is object.__eq__ or isinstance(leaf, type):
        return _identity_key(leaf)
    return (type(leaf), leaf)


def _identity_key(leaf: Any) -> Any:
    try:
        return ObjectKey(leaf)
    except outside_interrupts(TypeError):  # it does not support weak references
        return (type(leaf), leaf)


def with_aliases(leaves: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    """The keys, where those of Variables also say which are the same Variable."""
    first: dict[int, int] = {}
    found = []
    for leaf, key in zip(leaves, keys, strict=True):
        if isinstance(key, VariableKey):
            key = dataclasses.replace(key, alias=first.setdefault(id(leaf), len(first)))
        found.append(key)
    return found


def is_tensor_key(key: Any) -> bool:
    return isinstance(key, (TensorType, TensorSpec))


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of one call in canonical form: positional where possible, defaults filled
    in."""

    leaves: tuple[Any, ...]
    structure: nest.Structure
    keys: tuple[Any, ...]
    signature: Signature
    #: The declared specs of the first tensor leaves; None for a leaf without one.
    specs: tuple[TensorSpec | None, ...] = ()
    #: The `placement` of the enclosing mesh, in a tuple, if the trace depends on it.
    mesh: tuple[Any, ...] = ()

    @functools.cached_property
    def key(self) -> Any:
        return (self.structure, self.keys, self.layouts, self.mesh)

    @functools.cached_property
    def layouts(self) -> tuple[Layout | None, ...]:
        """The declared layouts of the tensor leaves, None for those without; empty if none has
        one."""
        found = tuple([None if spec is None else spec.layout for spec in self.tensor_specs])
        return found if any(found) else ()

    def of_mesh(self) -> Request:
        """The request for a trace that depends on the enclosing mesh."""
        return dataclasses.replace(self, mesh=(placement_around(),))

    @functools.cached_property
    def names(self) -> list[str]:
        """A name per leaf: the parameter, with the path of a leaf inside a container."""
        return self.signature.leaf_names(self.structure)

    @property
    def tensor_positions(self) -> list[int]:
        return [i for i, key in enumerate(self.keys) if is_tensor_key(key)]

    @property
    def tensor_names(self) -> list[str]:
        """The names of the tensor leaves."""
        return [self.names[i] for i in self.tensor_positions]

    @property
    def tensor_specs(self) -> list[TensorSpec | None]:
        """The declared spec of each tensor leaf, or None."""
        rest = len(self.tensor_positions) - len(self.specs)
        return [*self.specs, *[None] * rest]

    @property
    def tensor_keywords(self) -> list[str]:
        """The name in each tensor leaf's TensorSpec, or the leaf's own."""
        rows = zip(self.tensor_specs, self.tensor_names, strict=True)
        return [name if spec is None else spec.name or name for spec, name in rows]

    @property
    def flat_names(self) -> list[list[str]]:
        """The names by which the tensor leaves alone can be passed: these names, or TensorFlow's,
        which are the last word of each leaf's path, in lower case and numbered if repeated: `a,
        a_1`."""
        paths = self.signature.leaf_paths(self.structure)
        paths = [paths[i] for i in self.tensor_positions]
        words = [[word for word in path if not word.isdecimal()][-1] for path in paths]
        named = [w if s is None else s.name or w for s, w in zip(self.tensor_specs, words)]
        plain = [path[0] for path in paths]
        return [self.tensor_keywords, self.tensor_names, _numbered(named), _numbered(plain)]

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the tensor leaves."""
        return tuple(key for key in self.keys if isinstance(key, TensorType))

    def with_keys(self, keys: Sequence[Any]) -> Request:
        """The request, to be traced for other keys."""
        return dataclasses.replace(self, keys=tuple(keys))

    def tensors(self) -> list[Tensor]:
        """The tensor leaves as new tensors: the owner of an array may refill it after the call."""
        return [as_argument(self.leaves[i]) for i in self.tensor_positions]

    @functools.cached_property
    def variables(self) -> list[Variable]:
        """The Variables among the leaves that have stand-ins in a trace."""
        pairs = zip(self.leaves, self.keys, strict=True)
        return [leaf for leaf, key in pairs if isinstance(key, VariableKey)]

    def with_variables_by_identity(self) -> Request:
        """The request for a trace that uses the Variables themselves."""
        pairs = zip(self.leaves, self.keys, strict=True)
        keys = (ObjectKey(x) if isinstance(key, VariableKey) else key for x, key in pairs)
        return self.with_keys(tuple(keys))

    def actual_tensors(self) -> list[Tensor] | None:
        """The tensor leaves, or None if the request holds specs instead of values."""
        given = [self.leaves[i] for i in self.tensor_positions]
        return None if any(isinstance(x, TensorSpec) for x in given) else self.tensors()

    def without_tensors(self) -> Request:
        """The request with TensorSpecs instead of tensors, for a trace that reads none."""
        leaves = list(self.leaves)
        for i in self.tensor_positions:
            if isinstance(key := self.keys[i], TensorType):
                leaves[i] = TensorSpec(key.shape, key.dtype)
        return dataclasses.replace(self, leaves=tuple(leaves))

    def without_values(self) -> Request:
        """The request in the form that a trace keeps: without tensors or references to objects."""
        leaves = tuple(
            None if is_tensor_key(key) or isinstance(key, (ObjectKey, VariableKey)) else leaf
            for leaf, key in zip(self.leaves, self.keys, strict=True)
        )
        return dataclasses.replace(self, leaves=leaves)


def _numbered(words: Sequence[str]) -> list[str]:
    """Each word as a name, numbered if it was already taken."""
    found: list[str] = []
    for word in words:
        name = re.sub("[^a-z0-9]", "_", word.lower())
        found.append(name if name[:1].isalpha() else f"arg_{name}")
    return told_apart(found)


def told_apart(names: Iterable[str]) -> list[str]:
    """The names, with a number appended to repeated ones."""
    taken: list[str] = []
    for name in names:
        numbers = (f"{name}_{k}" for k in itertools.count(1))
        taken.append(next(n for n in itertools.chain([name], numbers) if n not in taken))
    return taken


def as_argument(leaf: Any) -> Tensor:
    """A leaf of a call as a tensor; an array is copied, so that its owner cannot change it."""
    if type(leaf) is Tensor:
        return leaf
    if isinstance(leaf, np.ndarray | np.generic):
        return host_tensor(type_of_array(leaf), np.array(leaf))
    if (type_ := size_type(leaf)) is not None:
        return holder_of(leaf, type_)
    if isinstance(leaf, TensorSpec):
        fail(
            TraceError,
            f"{leaf!r} was passed where a value is needed",
            fix="pass it to get_concrete_function, and a tensor to the function",
        )
    return as_tensor(leaf)


class Signature:
    """How the parameters of a Python function are bound to arguments."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self.place = caller_of(inspect.unwrap(function))
        try:
            self.parameters = inspect.signature(function)
        except outside_interrupts(TypeError, ValueError):
            self.parameters = _ANYTHING
        self.names = list(self.parameters.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """Canonical `(args, kwargs)`, with defaults filled in.

        Raises TraceError, a TypeError, if they do not fit.
        """
        bound = self._bound(args, kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def bind_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """`bind` without the defaults."""
        bound = self._bound(args, kwargs)
        return bound.args, bound.kwargs

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            return self.parameters.bind(*args, **kwargs)
        except outside_interrupts(TypeError) as error:
            given = ", ".join([f"{len(args)} by position", *(f"{name} by name" for name in kwargs)])
            fail(
                TraceError,
                f"{self.name}: the arguments ({given}) do not fit the signature "
                f"{self.name}{self.parameters}: {error}",
                fix=self._renamed(args, kwargs)
                or "give every parameter without a default one argument, and no others",
            )

    def _renamed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The fix for arguments that have another name here, if any do."""
        unknown = [name for name in kwargs if name not in self.names]
        return renamed(unknown, [x for x in self.names[len(args) :] if x not in kwargs])

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """The canonical request of a call."""
        args, kwargs = self.bind(args, kwargs)
        try:
            leaves, structure = nest.flatten_structure((args, kwargs))
        except Mismatch:
            self._refuse_structure(args, kwargs)
        keys = self.keys(leaves, structure)
        return Request(tuple(leaves), structure, canonical_keys(keys), self)

    def _refuse_structure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """Raises the error for the argument that is not a valid structure."""
        for name, value in (*zip(self.positional(len(args)), args), *kwargs.items()):
            try:
                nest.flatten_structure(((value,), {}))  # nested as deep as in a request
            except Mismatch as mismatch:
                fact = f"{self.name}: argument {name!r}: {mismatch.fact}"
                fail(TraceError, fact, fix=mismatch.fix)
        raise AssertionError((args, kwargs))

    def keys(self, leaves: Sequence[Any], structure: nest.Structure) -> list[Any]:
        """The keys of the leaves. Raises TraceError or DTypeError, naming the argument, for a leaf
        that has none."""
        found: list[Any] = []
        for leaf in leaves:
            try:
                found.append(leaf_key(leaf))
            except Mismatch as mismatch:
                name = self.leaf_names(structure)[len(found)]
                fact = f"{self.name}: argument {name!r} is {mismatch.fact}"
                fail(mismatch.kind, fact, fix=mismatch.fix)
        return with_aliases(leaves, found)

    def leaf_names(self, structure: nest.Structure) -> list[str]:
        """A name per leaf of `(args, kwargs)`."""
        return ["_".join(path) for path in self.leaf_paths(structure)]

    def leaf_paths(self, structure: nest.Structure) -> list[tuple[str, ...]]:
        """For each leaf of `(args, kwargs)` its parameter, and the keys on its path within that."""
        args, kwargs = structure.pack(list(range(structure.count)))
        paths: list[tuple[str, ...]] = [()] * structure.count
        for parameter, value in (*zip(self.positional(len(args)), args), *kwargs.items()):
            for path, position in leaf_paths(value):
                paths[position] = (parameter, *path)
        return paths

    def positional(self, count: int) -> list[str]:
        """The names of `count` positional arguments."""
        names: list[str] = []
        for parameter in self.parameters.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                extra = count - len(names)
                names += [f"{parameter.name}_{i}" for i in range(extra)]
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
        return names


def _anything(*args: Any, **kwargs: Any) -> Any: ...


_ANYTHING = inspect.signature(_anything)


def leaf_paths(value: Any) -> list[tuple[tuple[str, ...], int]]:
    """The leaves (ints) of a nest, with the names and numbers on the path to each."""
    found: list[tuple[tuple[str, ...], int]] = []
    stack: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        opener = nest.opener_of(item)
        if opener is not None:
            container, items = opener(item)
            stack.extend(((*path, str(x)), inner) for x, inner in zip(container.names, items))
        elif type(item) is int:
            found.append((path, item))
    return found


def canonical_keys(keys: Sequence[Any], taken: Sequence[TensorType] = ()) -> tuple[Any, ...]:
    """Keys with fresh names for their symbolic sizes, which the types in `taken` do not have: one
    per distinct size expression. The names tell which sizes may be 0."""
    if all(not isinstance(key, TensorType) or key.is_static for key in keys):
        return tuple(keys)
    names: dict[Any, Any] = {}
    used = set[str]().union(*map(names_in, taken))
    numbers = (n for n in itertools.count() if not used & {f"d{n}", f"_d{n}", f"*s{n}"})

    def fresh(size: Any) -> Any:
        if isinstance(size, int):
            return size
        if size not in names:
            may_be_0 = "" if (least(size) or 0) >= 1 else "_"
            names[size] = Dim.named(f"{may_be_0}d{next(numbers)}")
        return names[size]

    def renamed(key: Any) -> Any:
        if not isinstance(key, TensorType):
            return key
        if isinstance(key.shape, ShapeVariable):
            return key.with_shape(names.setdefault(key.shape, ShapeVariable(f"s{next(numbers)}")))
        return key.with_shape(tuple(fresh(size) for size in key.shape))

    return tuple(renamed(key) for key in keys)


class SpecTypes:
    """Turns the TensorSpecs of one signature into types: None is a fresh size, a string a named
    one."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        # A name with a dot belongs to the name before the dot: `s0.size` to `*s0`.
        self._taken = {name.split(".")[0] for spec in specs for name in size_names(spec)}
        self._counter = itertools.count()

    def type_of(self, spec: TensorSpec) -> TensorType:
        if spec.shape.rank is None:
            return TensorType(spec.dtype, ShapeVariable(self._fresh("s")))
        return TensorType(spec.dtype, tuple(self._size(size) for size in spec.shape))

    def _size(self, size: Any) -> Any:
        if size is None:
            return Dim.named(self._fresh("d"))
        return Dim.named(size) if isinstance(size, str) else size

    def _fresh(self, letter: str) -> str:
        names = (f"{letter}{number}" for number in self._counter)
        return next(name for name in names if name not in self._taken)


def size_names(spec: TensorSpec | None) -> list[str]:
    """The user's names for sizes in a spec."""
    sizes = () if spec is None or spec.shape.rank is None else spec.shape
    return [size for size in sizes if isinstance(size, str)]


class InputSignature:
    """The `input_signature` of a function: nested TensorSpecs for its first parameters."""

    def __init__(self, specs: Any, signature: Signature, is_padded: bool = False) -> None:
        place = signature.place
        if not isinstance(specs, (tuple, list)):
            fail(
                TraceError,
                f"input_signature must be a tuple or a list, and it is {kind_of(specs)}",
                source=place,
                fix="write input_signature=[tg.TensorSpec([None, 2])]",
            )
        self.specs = tuple(specs)
        self._signature = signature
        #: Whether arguments are padded: only padded sizes must then be divisible among devices.
        self._is_padded = is_padded
        leaves, self.structure = nest.flatten_structure(self.specs)
        for leaf in leaves:
            if not isinstance(leaf, TensorSpec):
                fail(
                    TraceError,
                    "input_signature must be a possibly nested sequence of TensorSpec objects, "
                    f"and it holds {shown(leaf)}",
                    source=place,
                    fix="write tg.TensorSpec(shape, dtype) for each argument",
                )
        self.leaves: list[TensorSpec] = leaves
        self._check_parameters(place)
        whole = nest.flatten_structure((self.specs, {}))[1]
        self._names = signature.leaf_names(whole)
        types = SpecTypes(self.leaves)
        self.types = tuple(types.type_of(spec) for spec in self.leaves)

    def _check_parameters(self, place: Any) -> None:
        parameters = list(self._signature.parameters.parameters.values())
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        extra = len(self.specs) - len(positional)
        if extra > 0 and not takes_any:
            fail(
                TraceError,
                f"input_signature has {len(self.specs)} specs and {self._signature.name} takes "
                f"{len(positional)} arguments: {extra} too many",
                source=place,
                fix="give one spec for each argument",
            )
        rest = positional[len(self.specs) :]
        #: The first parameter that a call must give and no spec declares. It is told at a call: a
        #: method has its `self` until then.
        self._undeclared = next((p.name for p in rest if p.default is p.empty), None)
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                fail(
                    TraceError,
                    f"with an input_signature the keyword-only parameter {parameter.name!r} "
                    "must have a default value",
                    source=place,
                    fix=f"write {parameter.name}=..., or make it positional",
                )

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """The canonical request of a call, its leaves converted to the specs."""
        args, kwargs = self._signature.bind(args, kwargs)
        given, rest = args[: len(self.specs)], args[len(self.specs) :]
        if self._undeclared is not None:
            self._refuse(
                f"{self._undeclared!r} has neither a spec nor a default value",
                fix=f"give a spec for {self._undeclared}, or write {self._undeclared}=...",
            )
        leaves = self._leaves(given)
        rows = zip(leaves, self.leaves, self._names, strict=True)
        converted = [self._convert(leaf, spec, name) for leaf, spec, name in rows]
        self._check_sizes(converted)
        packed = ((*self.structure.pack(converted), *rest), kwargs)
        found, structure = nest.flatten_structure(packed)
        keys = self._signature.keys(found, structure)
        # The declared types replace those of their leaves: the others have other names.
        keys = canonical_keys(keys, taken=self.types)
        return Request(tuple(found), structure, keys, self._signature, tuple(self.leaves))

    def _check_sizes(self, values: list[Any]) -> None:
        """Raises TraceError if sizes with the same name differ."""
        try:
            if all(type(value) is Tensor for value in values):
                bind_sizes(self.types, [value.type for value in values])
        except Mismatch as mismatch:
            self._refuse(mismatch.fact, fix="pass equal sizes where the names are equal")

    def _leaves(self, given: tuple[Any, ...]) -> list[Any]:
        """The arguments, flattened as far as the specs are: a list may be passed for one tensor."""
        if len(given) < len(self.specs):
            self._refuse(
                f"{len(given)} arguments were given for {len(self.specs)} specs",
                fix="pass one argument for each spec",
            )
        found: list[Any] = []
        names = self._signature.positional(len(self.specs))
        pairs: list[tuple[str, Any, Any]] = list(zip(names, self.specs, given))
        while pairs:
            name, spec, value = pairs.pop(0)
            if isinstance(spec, TensorSpec):
                found.append(value)
                continue
            opened = _opened(spec, value)
            if opened is None:
                self._refuse(
                    f"argument {name!r} is {_text(value)}, and {_text(spec)} is declared",
                    fix="pass the containers that are declared, with the same keys and lengths",
                )
            pairs = [*((name, *pair) for pair in opened), *pairs]
        return found

    def _convert(self, leaf: Any, spec: TensorSpec, name: str) -> Any:
        if isinstance(leaf, TensorSpec):
            value: Any = leaf
        elif isinstance(leaf, (Tensor, Variable)):
            value = as_tensor(leaf)
        elif (
            isinstance(leaf, (list, tuple, Dim, *PYTHON_DTYPES))
            or hasattr(leaf, "__array__")  # NumPy arrays, JAX arrays, and others
        ):
            value = self._as_spec(leaf, spec, name)
        else:
            self._refuse_leaf(leaf, spec, name, "pass a tensor, an array, a number or a list")
        if value.dtype is not spec.dtype:
            self._refuse_leaf(value, spec, name, f"convert it: tg.cast(x, tg.{spec.dtype.name})")
        if not spec.shape.is_compatible_with(_shape(value)):
            fix = "pass a tensor of the declared shape, or declare None for a size that varies"
            self._refuse_leaf(value, spec, name, fix)
        if isinstance(leaf, TensorSpec) and leaf.layout not in (None, spec.layout):
            self._refuse_leaf(leaf, spec, name, "declare the layout in the input_signature")
        if type(value) is Tensor and not value.type.is_static:
            value = _with_declared_sizes(value, spec.shape)
        if spec.layout is not None and type(value) is Tensor and not self._is_padded:
            return laid_out_argument(value, spec.layout, self._signature.name, name)
        return value

    def _as_spec(self, leaf: Any, spec: TensorSpec, name: str) -> Tensor:
        try:
            return as_tensor(leaf, spec.dtype)
        except (DTypeError, ShapeError) as error:
            fact = f"argument {name!r} is declared {spec!r}: {fact_of(error)}"
            self._refuse(fact, fix="pass values of the declared dtype and shape")

    def _refuse_leaf(self, leaf: Any, spec: TensorSpec, name: str, fix: str) -> NoReturn:
        self._refuse(f"argument {name!r} is {_text(leaf)}, and {spec!r} is declared", fix)

    def _refuse(self, fact: str, fix: str) -> NoReturn:
        fail(
            TraceError,
            f"{self._signature.name}: the arguments do not fit the input_signature: {fact}",
            fix=fix,
        )


def laid_out_argument(value: Tensor, layout: Layout, function: str, name: str) -> Tensor:
    """An argument of a function in its declared layout, if the devices exist. While tracing, the
    graph of the function takes care of that."""
    layouts = backend.layouts()
    layouts.check_layout(f"{function}: argument {name!r}", value.type, layout)
    may_move = layout.is_here and current().is_top_level
    return layouts.laid_out(value, layout) if may_move else value


def layouts_here(request: Request) -> list[Layout | None]:
    """The declared layouts for the tensors of a request; empty if there are none, or their devices
    do not exist."""
    given = request.layouts
    found = [layout if layout is not None and layout.is_here else None for layout in given]
    return found if any(found) else []


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none if Python does not know them."""
    try:
        return inspect.signature(function).parameters
    except outside_interrupts(TypeError, ValueError):
        return {}


def _opened(spec: Any, value: Any) -> list[tuple[Any, Any]] | None:
    """A container of specs paired with the value passed for it; None if they do not fit."""
    if spec is None:
        return [] if value is None else None
    if isinstance(spec, Mapping):
        fits = isinstance(value, Mapping) and set(spec) == set(value)
        return [(spec[key], value[key]) for key in nest.ordered_keys(spec)] if fits else None
    if isinstance(spec, (list, tuple)):
        fits = isinstance(value, (list, tuple)) and len(spec) == len(value)
        return list(zip(spec, value, strict=True)) if fits else None
    return _opened(vars(spec), vars(value)) if type(value) is type(spec) else None


def _shape(value: Any) -> Any:
    shape = value.type.shape if type(value) is Tensor else value.shape
    return None if isinstance(shape, ShapeVariable) else shape


def _with_declared_sizes(value: Tensor, declared: TensorShape) -> Tensor:
    """`value` with the sizes that are declared, which each run checks where they were open. Raises
    ShapeError, by which a live function is traced again, for a rank that must be known first."""
    if declared.rank is None:
        return value
    if all(type(size) is int for size in declared):
        return with_sizes(value, tuple(declared))
    pairs = zip(tuple(value.type.shape), declared, strict=True)
    return with_sizes(value, tuple(b if type(b) is int else a for a, b in pairs))


def _text(value: Any) -> str:
    """A value as messages show it: tensors by type, containers by structure."""
    if isinstance(value, Tensor):
        return str(value.type)
    if isinstance(value, Variable):
        return str(value.tensor_type)
    if isinstance(value, TensorSpec):
        return repr(value)
    if nest.is_nested(value):
        return f"the structure {nest.flatten_structure(value)[1]}"
    return shown(value)
