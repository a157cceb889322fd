"""Op: what a node computes. One class holds the type rule and every derivative rule of an op."""

from __future__ import annotations

import operator
import re
import struct
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature, get_annotations
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
)

import numpy as np

from tracegraph.core.lru_cache import Memo
from tracegraph.core.shapes import Dim, ShapeVariable, Size, plain
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import DType, TensorType
from tracegraph.core.worker_thread import entered, shared_lock
from tracegraph.errors import Mismatch, MissingRuleError, fail
from tracegraph.ir import builder as building
from tracegraph.ir.tensor import Graph, Tensor, get_type

Result = TypeVar("Result")

#: What rules take and return; a single value may replace a tuple of one. Tangents of the inputs,
#: None for zero:
Tangents: TypeAlias = tuple[Tensor | None, ...]
#: Cotangents of the inputs or tangents of the outputs:
Derivative: TypeAlias = Tensor | Tangents | None
#: The outputs of a batched op, and which of them have the loop axis:
Batched: TypeAlias = tuple[Tensor | tuple[Tensor, ...], bool | tuple[bool, ...]]
#: Which elements of the outputs depend on which sources:
Dependence: TypeAlias = Pattern | tuple[Pattern, ...]
#: The known inputs, and None for the others:
KnownValues: TypeAlias = Sequence[np.ndarray | None]

#: Computes a region from the values of its inputs, which are those of the op from a position on:
RunRegion: TypeAlias = Callable[[Graph, Sequence[Any], int], Sequence[Any]]
#: A value as a NumPy array:
OnHost: TypeAlias = Callable[[Any], np.ndarray]
#: A graph to propagate patterns through, with the patterns and the known values of its inputs:
Entered: TypeAlias = tuple[Graph, Sequence[Pattern], KnownValues]

#: Every op class by name; subclassing `Op` registers it here.
OPS: dict[str, type[Op]] = {}

_interned: weakref.WeakValueDictionary[tuple[Any, ...], Op] = weakref.WeakValueDictionary()
_interning = shared_lock()
#: Ops by class and arguments, looked up before `_interned`: most ops are created repeatedly.
_recent: Memo[tuple[Any, ...], Op] = Memo()
#: Annotations of attributes that `==` tells apart reliably.
_PLAIN = frozenset(
    ["int", "bool", "Size", "Shape", "DType", "tuple[int, ...]", "tuple[int, ...] | None"]
)


@dataclass(frozen=True)
class Region:
    """A graph that an op applies: the op's input for each of its inputs, the op's output that each
    of its outputs may become and, if it runs repeatedly, the pairs (output, input) in which an
    output feeds an input of the next iteration. A condition decides whether the other region of a
    loop runs once more."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    carried: tuple[tuple[int, int], ...] = ()
    is_condition: bool = False

    def input_before(self, place: int) -> int:
        """The position among its inputs of a value that is inserted before input `place` of the
        op."""
        return sum(i < place for i in self.inputs)

    def output_before(self, place: int) -> int:
        """The position among its outputs of a value that is inserted before output `place` of the
        op."""
        return sum(i < place for i in self.outputs)


@dataclass(frozen=True)
class Insertion:
    """Where an op takes more values for its regions: the input before which those come that every
    run takes, the input before which those come that one run hands on to the next, and the output
    before which the last run returns the latter."""

    shared: int
    carried: int
    returned: int


class Counter(NamedTuple):
    """An integer state, input `place` of a loop, that grows by `growth` in each step while it is
    less than `bound`, a constant of the condition or the loop's input `fixed`."""

    place: int
    growth: int
    bound: Tensor
    fixed: int | None


@dataclass(frozen=True)
class Flow:
    """For each output, the inputs whose values reach it and those whose derivatives do. A set of
    inputs is a bit mask: bit i is input i."""

    values: tuple[int, ...]
    derivatives: tuple[int, ...]


#: `type`, annotated for checkers, which report the type of an untyped value as unknown.
_type_of: Callable[[Any], type[Any]] = type


def attribute_key(value: Any) -> Any:
    """A key that is equal only for attribute values of the same type and bits.

    So 0.0 and -0.0 differ, 1 and True differ, and nan equals itself. Ints, strings and tuples of
    ints, which most attributes are, are their own keys; everything else is tagged.
    """
    kind = _type_of(value)
    if kind is int or kind is str:
        return value
    if kind is tuple:
        return value if _INTS.issuperset(map(type, value)) else (tuple, *map(attribute_key, value))
    if isinstance(value, float):
        return (float, struct.pack("<d", value))
    if isinstance(value, complex):
        return (complex, struct.pack("<dd", value.real, value.imag))
    if isinstance(value, (int, str, bytes, types.NoneType)):
        return (kind, value)
    if isinstance(value, _ARRAYS):
        return (np.ndarray, value.dtype.str, value.dtype.name, value.shape, value.tobytes())
    return value


_INTS = frozenset([int])
_ARRAYS: tuple[type[Any], ...] = (np.ndarray, np.generic)


def _is_exact(value: Any, annotation: str) -> bool:
    """Whether an attribute has exactly its declared types: 1.0 and True equal 1, and an op that
    holds one of them must not be interned in place of the intended op."""
    kind = _type_of(value)
    if kind is tuple:
        return _SIZES.issuperset(map(type, value))
    return kind is bool if annotation == "bool" else kind in _EXACT


_SIZES = frozenset([int, Dim])
_EXACT = frozenset([int, Dim, ShapeVariable, DType, types.NoneType])


def rule(method: Callable[..., Result]) -> Callable[..., Result]:
    """Marks a method whose overrides name their operands, whose number differs from op to op:
    checkers see the arguments of the base as any."""
    return method


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
class _Interning(type):
    """Ops of equal class and attributes are one object, so comparing and hashing them is free."""

    #: Whether `==` suffices to key the attributes; not for floats, since 0.0 == -0.0.
    is_keyed_by_equality: bool
    #: The fields, as the constructor's parameters: names, types as written, defaults.
    fields: Signature
    field_names: tuple[str, ...]
    #: The types of the fields, as written.
    annotations: tuple[str, ...]

    # Without a return type, checkers infer the class and take its fields as the parameters.
    def __call__(cls, *args: Any, **kwargs: Any):
        if cls.is_keyed_by_equality and not kwargs:
            found = _recent.get((cls, args))
            if found is None:
                found = cls.intern(args, kwargs)
                if all(map(_is_exact, args, cls.annotations)):
                    _recent.remember((cls, args), found)
            return found
        return cls.intern(args, kwargs)

    def intern(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The unique op of this class with these attributes."""
        if kwargs or len(args) != len(cls.field_names):
            args = cls.complete(args, kwargs)
        args = tuple(map(plain, args))  # first: sizes of two functions are not to be compared
        key = (cls, *map(attribute_key, args))
        found = _interned.get(key)
        if found is not None:
            return found
        new = super().__call__(*args)
        with entered(_interning):
            return _interned.setdefault(key, new)

    def complete(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of all fields, in order. Raises TypeError if the arguments do not fit."""
        try:
            bound = cls.fields.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}") from None
        bound.apply_defaults()
        return bound.args


def _declared_fields(cls: type[Op]) -> dict[str, Parameter]:
    """The fields that the class adds to its base's, its annotations other than ClassVars, as
    parameters of its constructor."""
    annotations = {name: str(hint) for name, hint in get_annotations(cls).items()}
    return {
        name: Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=vars(cls).get(name, Parameter.empty),
            annotation=annotation,
        )
        for name, annotation in annotations.items()
        if not annotation.removeprefix("typing.").startswith("ClassVar")
    }


class Op(metaclass=_Interning):
    """What a node computes: its attributes are its fields, its rules are methods.

    A subclass declares its fields like a dataclass, and is frozen like one. `dataclass` itself
    would generate and compile functions for each of the hundred ops at every import of tracegraph.

    Subclassing registers the op under `name`, derived from the class name. Printing, parsing,
    saving and interning follow from the fields. Rules may return a single value in place of a tuple
    of one.
    """

    name: ClassVar[str]
    fields: ClassVar[Signature] = Signature()
    field_names: ClassVar[tuple[str, ...]] = ()
    is_keyed_by_equality: ClassVar[bool] = False
    annotations: ClassVar[tuple[str, ...]] = ()
    #: Whether the outputs are jointly linear in all inputs.
    is_linear: ClassVar[bool] = False
    #: Whether tapes and passes treat the outputs as unconnected to the inputs.
    stops_gradients: ClassVar[bool] = False
    #: Whether the vjp accepts None as the cotangent of an output.
    takes_zero_cotangents: ClassVar[bool] = False
    #: Whether the transpose of the vjp may read the cotangents without depending on them.
    transpose_reads_cotangents: ClassVar[bool] = False
    #: Whether the outputs depend on how many bits the inputs or outputs have, so that in another
    #: data type they are other numbers, and not the same ones rounded otherwise.
    counts_bits: ClassVar[bool] = False
    #: Whether the op can be narrowed to some of its outputs, by `pruned`.
    can_prune: ClassVar[bool] = False

    @property
    def has_effects(self) -> bool:
        """Whether it does more than compute, so that every loop iteration must run it again."""
        return any(inner.has_effects for inner in self.graphs())

    @property
    def cuts_runs(self) -> bool:
        """Whether XLA cannot express it, so that a run stops there and resumes after it."""
        return any(inner.cuts_runs for inner in self.graphs())

    @property
    def may_never_end(self) -> bool:
        """Whether, judging by its graphs, it terminates only for some values, or after so many
        steps that someone may not wait."""
        return any(inner.may_never_end for inner in self.graphs())

    @property
    def sizes_of_runs(self) -> set[str]:
        """The names of the sizes among its attributes that only a run determines."""
        return set()

    # What ops that hold graphs say about them.

    @property
    def regions(self) -> tuple[Region, ...]:
        """The graphs that compute the outputs: one for a call, the alternatives for a
        conditional."""
        return ()

    #: How often one run of the op runs its regions (one of them, for a conditional); None where
    #: only the run itself determines it.
    repetitions: ClassVar[Any] = 1

    #: Whether it runs a region again and again, so that the number of a step is part of a place in
    #: it.
    is_loop: ClassVar[bool] = False

    #: Whether `interpret` can run it region by region.
    can_interpret: ClassVar[bool] = False

    def interpret(self, values: Sequence[Any], run: RunRegion, on_host: OnHost) -> Sequence[Any]:
        """The outputs from the values of the inputs, where `run` computes each region, and
        `on_host` makes a value an array."""
        raise NotImplementedError

    #: The steps of a loop, in the order in which they run; None if only a run tells.
    steps: ClassVar[Any] = None
    #: The inputs of which each step takes one row.
    row_inputs: ClassVar[Any] = range(0)
    #: The output that is the number of steps, if there is one.
    count_output: ClassVar[Any] = None

    def counters(self) -> Iterable[Counter]:
        """What bounds the number of steps of a loop with a condition."""
        return ()

    @property
    def insertion(self) -> Insertion | None:
        """Where the op takes more values for its regions; None if it cannot."""
        return None

    def with_regions(self, graphs: Sequence[Graph], shared: int = 0, carried: int = 0) -> Op:
        """The op with other graphs for its regions, which take `shared` and `carried` more inputs
        at the places of `insertion`. Regions with outputs also return the carried ones; a region
        that has none, and is not a condition, does not take them."""
        raise NotImplementedError

    def with_checkpoints(self, size: int, lowers_all: bool) -> Op:
        """The op that keeps as many states for reverse mode as fit in `size` bytes, if nobody set
        their number; with `lowers_all` no more in any case."""
        return self

    #: Of a reverse mode that keeps some of a loop's states and runs the steps between them again:
    #: how many it keeps at a time.
    states_kept: ClassVar[Any] = None

    def with_optional_steps(self) -> Op:
        """The loop of known length with one more input, a bool for each step: where it is false,
        the step passes the states on."""
        raise NotImplementedError

    #: Whether it also adds up what its regions return, so that a sum may overflow that no region
    #: computes.
    adds_up: ClassVar[bool] = False

    def outputs_sized_by_run(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Those of the outputs whose sizes a run determines, and which give the names of these
        sizes their values."""
        return ()

    #: Whether a run may skip a region, as a conditional does, and a loop with no iterations.
    leaves_out_regions: ClassVar[bool] = False

    def regions_run(self, values: Sequence[Any], compute: Any) -> tuple[bool, ...]:
        """Which regions run for these input values; `compute(graph, values)` returns the outputs of
        a graph."""
        return self.may_run(values)

    def may_run(self, values: KnownValues) -> tuple[bool, ...]:
        """Which regions may run, as far as the known inputs tell."""
        return (True,) * len(self.regions)

    def how_often(self, region: Region) -> str:
        """How often one run of the op runs a region, in words; empty if exactly once."""
        return ""

    def types_inside(self, region: Region, types: Sequence[TensorType]) -> list[TensorType]:
        """The types of the inputs of a region, from those of the inputs of the op."""
        return [types[i] for i in region.inputs]

    @property
    def inlined(self) -> Graph | None:
        """The graph that computes all outputs from all inputs, and may replace the op wherever
        nobody differentiates; None if there is none."""
        return None

    #: Whether `inlined` also has the derivative of the op.
    is_transparent: ClassVar[bool] = False

    @property
    def chosen_gradient(self) -> Graph | None:
        """The graph that a user chose as the derivative, which may differ from the mathematical
        one."""
        return None

    @property
    def has_forward(self) -> bool:
        """Whether forward mode is guaranteed to exist."""
        return True

    def flow(self, flows: Sequence[Flow]) -> Flow:
        """The flow through an op with regions, from the flow through the graph of each. An input
        that no region takes selects among them: its value reaches every output."""
        count = 1 + max(i for region in self.regions for i in region.outputs)
        taken = {i for region in self.regions for i in region.inputs}
        deciding = sum(1 << i for i in range(max(taken, default=0) + 1) if i not in taken)
        values, derivatives = [deciding] * count, [0] * count
        for region, flow in zip(self.regions, flows, strict=True):
            for place, i in enumerate(region.outputs):
                values[i] |= _outer_mask(flow.values[place], region.inputs)
                derivatives[i] |= _outer_mask(flow.derivatives[place], region.inputs)
        return Flow(tuple(values), tuple(derivatives))

    @rule
    def entered(self, values: KnownValues, *patterns: Pattern) -> Entered:
        """The graph to propagate patterns through, with the patterns and known values of its
        inputs."""
        raise MissingRule(self, "sparsity")

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        fields = {**cls.fields.parameters, **_declared_fields(cls)}
        cls.fields = Signature(list(fields.values()))
        cls.field_names = tuple(fields)
        cls.annotations = tuple(field.annotation for field in fields.values())
        cls.is_keyed_by_equality = _PLAIN.issuperset(cls.annotations)
        if abstract:
            return
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        assert cls.name not in OPS, f"two ops are called {cls.name}"
        OPS[cls.name] = cls

    if TYPE_CHECKING:  # set by `__init__`; ClassVars for checkers, since they are not fields
        #: The types of the outputs, by the types of the inputs.
        _inferred: ClassVar[Memo[tuple[TensorType, ...], tuple[TensorType, ...]]]
        _graphs: ClassVar[tuple[Graph, ...]]

    def __init__(self, *attributes: Any) -> None:
        for name, value in zip(self.field_names, attributes, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_inferred", Memo())
        object.__setattr__(self, "_graphs", tuple(graphs_in(attributes)))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{self.name} is frozen: its {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self.name} is frozen: its {name} cannot be deleted")

    @property
    def attributes(self) -> tuple[Any, ...]:
        """The values of the fields."""
        return tuple([getattr(self, name) for name in self.field_names])

    # The builder's interface.

    def __call__(self, *inputs: Tensor) -> Any:
        """Appends a node of this op; returns its output, or the tuple of several."""
        outputs = building.current().add(self, inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def output_types(self, inputs: tuple[Tensor, ...]) -> tuple[TensorType, ...]:
        """The inferred types, memoised per signature. Raises the `Mismatch` of `infer`."""
        key = tuple(map(get_type, inputs))
        found = self._inferred.get(key)
        if found is None:
            types = self.infer(*key)
            types = (types,) if isinstance(types, TensorType) else types
            found = self._inferred.remember(key, types)
        return found

    def graphs(self) -> tuple[Graph, ...]:
        """The graphs among the attributes."""
        return self._graphs

    # The rules.

    @rule
    def infer(self, *types: TensorType) -> TensorType | tuple[TensorType, ...]:
        """The types of the outputs. Raises `Mismatch(fact, fix)` for types that do not fit."""
        raise NotImplementedError

    @rule
    def vjp(self, *values: Any) -> Derivative:
        """Cotangents of the inputs, from `(*cotangents, *outputs, *inputs)`; None for zero."""
        raise MissingRule(self)

    @rule
    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        """Tangents of the outputs, from those of the inputs (None for zero) and `(*outputs,
        *inputs)`. A linear op of one operand is its own rule. NotImplemented makes the forward pass
        transpose the vjp."""
        if not self.is_linear or len(tangents) != 1:
            return NotImplemented
        (tangent,) = tangents
        return None if tangent is None else self(tangent)

    @rule
    def batch(self, n: Size, batched: tuple[bool, ...], *inputs: Tensor) -> Batched:
        """`(outputs, batched)`, where the flagged inputs have a leading loop axis of size `n`."""
        raise MissingRule(self, "vectorisation")

    @rule
    def depends(self, *patterns: Pattern) -> Dependence:
        """Which elements of each output depend on which sources, given those of the inputs."""
        raise MissingRule(self, "sparsity")

    @rule
    def depends_given(self, values: KnownValues, *patterns: Pattern) -> Dependence:
        """`depends`, where `values` holds the known inputs, such as constant indices."""
        return self.depends(*patterns)

    def is_diagonal_on(self, type: TensorType) -> bool:
        """Whether each element of the outputs of `type` depends only on the same element of the
        inputs of `type`."""
        return False

    @rule
    def numpy(self, *values: np.ndarray) -> Any:
        """The value in NumPy, for constant folding and as the test oracle; NotImplemented if
        none."""
        return NotImplemented

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which outputs depend, differentiably, on the flagged inputs. Called for ops with bodies
        that set `can_prune`; for other ops every output depends on every input."""
        raise NotImplementedError

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        """The op narrowed to the outputs that are `used`, which inputs it still takes, and which
        outputs it still has: a loop keeps the states that others are computed from."""
        raise NotImplementedError

    def recorded(self) -> Op:
        """The op that also returns, after its own outputs, what its vjp reads; itself if it already
        returns all of that. It replaces the op where a derivative may be needed."""
        return self

    def as_read(self) -> Op:
        """The op to build when it is parsed from text: itself, unless the text leaves something to
        the context of the parse."""
        return self

    def substitute(self, sizes: Any) -> Op:
        """The op with the named sizes in its attributes replaced."""
        old = self.attributes
        new = [building.substituted(value, sizes) for value in old]
        return self if all(map(operator.is_, old, new)) else type(self)(*new)

    def given_attributes(self) -> Iterator[tuple[str, Any]]:
        """The attributes that the text form must name: those that differ from their default."""
        pairs = zip(self.fields.parameters.values(), self.attributes, strict=True)
        return ((field.name, value) for field, value in pairs if not _is_default(field, value))

    def __repr__(self) -> str:
        pairs = zip(self.field_names, self.attributes, strict=True)
        attributes = ", ".join(f"{name}={value}" for name, value in pairs)
        return f"{self.name}<{attributes}>" if attributes else self.name

    def __reduce__(self) -> Any:
        return type(self), self.attributes


class WithoutDerivative(Op, abstract=True):
    """An op of whose outputs none has a derivative: they are indices, truth values or random."""

    output_count: ClassVar[int] = 1

    @rule
    def vjp(self, *values: Any) -> Derivative:
        return (None,) * (len(values) - 2 * self.output_count)

    @rule
    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        return (None,) * self.output_count


def _is_default(field: Parameter, value: Any) -> bool:
    default = field.default
    return default is not field.empty and attribute_key(default) == attribute_key(value)


def _outer_mask(inner: int, places: Sequence[int]) -> int:
    """Maps a mask of a region's inputs to a mask of the op's inputs."""
    return sum(1 << i for k, i in enumerate(places) if inner >> k & 1)


def graphs_in(value: Any) -> Iterator[Graph]:
    """The graphs in an attribute, in the order in which they appear."""
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from graphs_in(item)


class MissingRule(Exception):
    """A rule that an op lacks; passes turn it into an error with the user's line."""

    def __init__(self, op: Op, rule: str = "gradient") -> None:
        super().__init__(f"{op.name} has no {rule} rule")
        self.op = op
        self.rule = rule


def missing_rule(error: MissingRule, source: Any) -> NoReturn:
    """Raises the error that users see for a missing rule."""
    fail(
        MissingRuleError,
        f"{error.op.name}: no {error.rule} rule is registered for this op",
        source=source,
        fix=f'register one with @tg.RegisterGradient("{error.op.name}"), '
        "or write the computation with other ops",
    )


def check_same_dtype(op: str, *operands: TensorType) -> DType:
    """The common data type of the operands. Raises DTypeMismatch if they differ."""
    first = operands[0].dtype
    for other in operands[1:]:
        if other.dtype is not first:
            raise building.dtype_mismatch(op, operands[0], other)
    return first


__all__ = ["OPS", "Mismatch", "MissingRule", "Op", "attribute_key", "missing_rule"]
