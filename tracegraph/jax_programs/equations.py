"""Converts the equations of a JAX program to nodes: the table of primitives, and its reader.

A jaxpr is a list of equations, each of which applies a primitive. For every primitive there is one
function here that creates its nodes. An `Equation` gives the function everything besides the
operands, including inner programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from tracegraph.core.shapes import Shape
from tracegraph.core.source import (
    PACKAGE,
    Source,
    here,
    instruction_of,
    is_ours,
    place_of_thread,
    sourced,
)
from tracegraph.core.types import TensorType, as_dtype
from tracegraph.errors import DTypeError, SizeNeeded, TraceError, fail
from tracegraph.ir.builder import Builder, copy_inputs, current, replay
from tracegraph.ir.intern import interned
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.jax_programs.derivatives.activity import Activity
from tracegraph.jax_programs.sizes import sizes_of
from tracegraph.ops.broadcast import BroadcastTo, holder_of_sizes
from tracegraph.ops.constant import Constant, constant, constant_value
from tracegraph.ops.elementwise import StopGradient
from tracegraph.ops.shape import Concatenate, Reshape, slice_axis
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import unbound_names

#: Creates the nodes of an equation, from the equation and its operands.
Rule = Callable[..., Any]
#: The rule of each primitive, by name.
RULES: dict[str, Rule] = {}
#: What is raised where a size that is open must be known.
NEEDS_SIZE = jax.errors.InconclusiveDimensionOperation, SizeNeeded
#: The name under which the primitives of other libraries have a rule.
OTHERS = "*"


def converts(*names: str) -> Callable[[Rule], Rule]:
    """Registers `rule(equation, *operands)` for primitives; it returns one or more tensors."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = rule
        return rule

    return register


def converts_by(rules: Mapping[str, Rule]) -> None:
    """Registers rules of one expression each."""
    for name, rule in rules.items():
        converts(name)(rule)


class Equation(NamedTuple):
    """An equation, as passed to the rule of its primitive."""

    eqn: JaxprEqn
    #: The program that contains it.
    jaxpr: Jaxpr
    reader: EquationReader
    #: Which operands depend differentiably on the arguments of the program.
    active: tuple[bool, ...] = ()
    #: Whether some operand of the program has derivatives. Without one, nothing derives its nodes.
    is_derived: bool = False
    #: Whether it is applied to single words of random-number keys, which it only moves.
    of_words: bool = False

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def params(self) -> Mapping[str, Any]:
        return self.eqn.params

    @property
    def types(self) -> list[TensorType]:
        """The types of the results."""
        types = [type_of(x.aval) for x in self.eqn.outvars]
        return [t.with_shape(t.shape[:-1]) for t in types] if self.of_words else types

    @property
    def type(self) -> TensorType:
        """The type of the single result."""
        (type,) = self.types
        return type

    def apart(self, xs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The operands of a function, cut from derivatives if JAX has none for any of them. Their
        tangents are zero then, which does not help where a slope in the function is infinite."""
        if not self.is_derived or any(self.active):
            return xs
        return [
            StopGradient()(x) if x.dtype.is_differentiable and constant_value(x) is None else x
            for x in xs
        ]

    def broadcast(self, *xs: Tensor) -> list[Tensor]:
        """Broadcasts the operands to their common shape: scalars, and axes of size 1, match any
        size."""
        rank = max(x.ndim for x in xs)
        shapes = [x.type.shape for x in xs if x.ndim == rank]
        joined = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes))
        return [broadcast_to(x, joined) for x in xs]

    def expanded(
        self, function: Callable[..., Any], *xs: Tensor, like: Sequence[Any] | None = None
    ) -> list[Tensor]:
        """Expands a JAX function of tensors into the nodes of its own equations. `like` gives
        variables of the program with the types of the tensors; by default the operands."""
        closed = jax.make_jaxpr(function)(*map(abstract, like or self.eqn.invars))
        return self.reader.run(closed.jaxpr, self.reader.constants(closed), xs)

    def refuse(self, fact: str, fix: str) -> NoReturn:
        """Raises TraceError for the equation, with its line in the JAX program."""
        fail(TraceError, f"from_jax: {fact}", source=here(), fix=fix)


class EquationReader:
    """Converts one program to nodes. Inner programs that occur again share one graph."""

    def __init__(self) -> None:
        self._graphs: dict[Any, tuple[Any, Graph]] = {}
        #: The names of the functions with custom derivatives that are being read.
        self.open_rules: list[str] = []
        self.activity = Activity(is_differentiable)

    def run(
        self,
        jaxpr: Jaxpr,
        constants: Sequence[Tensor],
        operands: Sequence[Tensor],
        active: Sequence[bool] | None = None,
    ) -> list[Tensor]:
        """Appends the nodes of a program to the graph being built; returns its results. `active`
        says which operands have derivatives; by default all."""
        env: dict[Any, Tensor] = {}
        flags = active or [True] * len(jaxpr.invars)
        reached = {x for x, flag in zip(jaxpr.invars, flags, strict=True) if flag}
        env.update(zip(jaxpr.constvars, constants, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))
        for eqn in jaxpr.eqns:
            if any(getattr(x.aval, "dtype", None) == float0 for x in eqn.outvars):
                continue  # a tangent of integers: nothing uses it
            has = tuple(not isinstance(x, Literal) and x in reached for x in eqn.invars)
            with sourced(place_of(eqn)):
                equation = Equation(eqn, jaxpr, self, has, any(flags))
                made = self._nodes(equation, [_value(env, x) for x in eqn.invars])
            env.update(zip(eqn.outvars, made, strict=True))
            reached.update(self.activity.reached_by(eqn, has))
        return [_value(env, x) for x in jaxpr.outvars]

    def _nodes(self, equation: Equation, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        eqn = equation.eqn
        rule = RULES.get(eqn.primitive.name)
        if rule is None and computed_by(eqn.primitive) is not None:
            rule = RULES[OTHERS]
        if rule is None:
            equation.refuse(
                f"the primitive {eqn.primitive.name!r} of JAX has no counterpart here",
                "compute this part with tg, or with other functions of JAX; the guide to JAX "
                "lists the primitives that have one",
            )
        if is_key_moved(eqn, rule):
            return _by_words(rule, equation, operands)
        made = rule(equation, *operands)
        return [made] if isinstance(made, Tensor) else made

    def constants(self, closed: ClosedJaxpr) -> list[Tensor]:
        """The constants of a program as nodes."""
        return [constant_of(value) for value in closed.consts]

    def inlined(
        self,
        program: ClosedJaxpr | Jaxpr,
        operands: Sequence[Tensor],
        active: Sequence[bool] | None = None,
    ) -> list[Tensor]:
        """Appends the nodes of an inner program, with its constants."""
        if isinstance(program, ClosedJaxpr):
            return self.run(program.jaxpr, self.constants(program), operands, active)
        return self.run(program, (), operands, active)

    def graph(
        self, name: str, program: ClosedJaxpr | Jaxpr, active: tuple[bool, ...] | None = None
    ) -> Graph:
        """The graph of an inner program, created once, with its constants as nodes."""
        # Inside a rule, functions may nest fewer rules than outside.
        has_rules = active is None or any(active)
        key = id(program), active, tuple(self.open_rules) if has_rules else ()
        found = self._graphs.get(key)
        if found is None:

            def body(*operands: Tensor) -> Sequence[Tensor]:
                return self.inlined(program, operands, active)

            jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
            types = [type_of(x.aval) for x in jaxpr.invars]
            found = self._graphs[key] = program, graph_of(name, types, body)
        return found[1]


def computed_by(primitive: Any) -> Callable[..., Any] | None:
    """The function that computes a primitive of another library; None for JAX's own."""
    function = getattr(primitive, "impl", None)
    module = getattr(getattr(function, "func", function), "__module__", None) or "jax"
    return None if module.partition(".")[0] == "jax" else function


def is_key_moved(eqn: JaxprEqn, rule: Rule) -> bool:
    """Whether an equation only moves random-number keys, treating each as a single number."""
    moves = rule.__module__.rpartition(".")[2] in ("elementwise", "index", "shape")
    return moves and any(is_key(x.aval) for x in (*eqn.invars, *eqn.outvars))


def _by_words(rule: Rule, equation: Equation, operands: Sequence[Tensor]) -> list[Tensor]:
    """Applies a rule to each word of the keys, and reassembles the results."""
    keys = [is_key(x.aval) for x in equation.eqn.invars]
    count = next(x.type.shape[-1] for x, is_one in zip(operands, keys, strict=True) if is_one)
    equation = equation._replace(of_words=True)
    found = []
    for number in range(count):
        words = []
        for x, is_one in zip(operands, keys, strict=True):
            words.append(_word(x, number) if is_one else x)
        made = rule(equation, *words)
        found.append([made] if isinstance(made, Tensor) else made)
    return [
        Concatenate(columns[0].ndim)(*(Reshape((*x.type.shape, 1))(x) for x in columns))
        for columns in zip(*found, strict=True)
    ]


def _word(keys: Tensor, number: int) -> Tensor:
    word = slice_axis(keys, keys.ndim - 1, number, number + 1)
    return Reshape(keys.type.shape[:-1])(word)


def graph_of(
    name: str,
    types: Sequence[TensorType],
    body: Callable[..., Sequence[Tensor]],
    tidied: Callable[[Graph], Graph] = dead_code,
) -> Graph:
    """The graph of `body` applied to inputs of these types. The form that JAX chose is kept: XLA
    would round a rewritten program differently."""
    with Builder(graph_name(name)) as builder:
        inputs = [builder.input(type) for type in types]
        outputs = builder.admit_all(tuple(body(*inputs)))
    return interned(tidied(builder.finish(outputs)))


def sizes_not_given(graph: Graph) -> list[str]:
    """The open sizes that a graph uses and no input has by itself. A program of JAX may use those
    of the program around it."""
    return graph.cached("sizes_not_given", lambda: unbound_names(graph.inputs, graph.nodes))


def with_sizes_given(graphs: Sequence[Graph]) -> tuple[list[Graph], list[Tensor]]:
    """Regions of one op, each with one more input in front if one of them uses open sizes that no
    input has; and what stands outside for this input."""
    names = sorted({name for graph in graphs for name in sizes_not_given(graph)})
    if not names:
        return [*graphs], []
    holder = holder_of_sizes(names, current().add)
    return [_with_input(graph, holder) for graph in graphs], [holder]


def _with_input(graph: Graph, new: Tensor) -> Graph:
    with Builder(graph.name) as builder:
        builder.input_for(new)
        env = copy_inputs(graph, builder)
        replay(graph.nodes, env)
        return interned(builder.finish([env[y] for y in graph.outputs]))


def graph_name(name: str) -> str:
    """The name of a JAX function as a valid graph name."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_")
    return plain if plain.isidentifier() else f"jax_{plain}" if plain else "jax_program"


def _value(env: Mapping[Any, Tensor], x: Any) -> Tensor:
    """The tensor of a program's variable, or of a literal in its place."""
    return constant_of(x.val, x.aval) if isinstance(x, Literal) else env[x]


def broadcast_to(x: Tensor, shape: Shape, axes: Sequence[int] | None = None) -> Tensor:
    """Repeats x along its axes of size 1 and along new ones. Its axes become the axes `axes` of the
    result; by default x is a scalar or has all of them."""
    places = axes if axes is not None else range(x.ndim)
    placed = zip(places, x.type.shape, strict=True)
    kept = [(axis, size) for axis, size in placed if size != 1 or shape[axis] == 1]
    if len(kept) < x.ndim:
        x = Reshape(tuple(size for _, size in kept))(x)
    if x.type.shape == shape:
        return x
    return BroadcastTo(shape, tuple(axis for axis, _ in kept))(x)


def constant_of(value: Any, aval: Any = None) -> Tensor:
    """A constant of a program as a node."""
    if hasattr(value, "dtype") and is_key(value):
        return Constant(np.asarray(jax.random.key_data(value)))()
    if aval is not None:
        dtype = type_of(aval).dtype
        array = np.asarray(value, dtype.numpy_dtype)
        return (
            constant(array.item(), dtype)
            if array.shape == () and _is_plain(dtype)
            else (Constant(array)())
        )
    return Constant(np.asarray(value))()


def _is_plain(dtype: Any) -> bool:
    """Whether every value of a type is a Python number, bit for bit except for nan."""
    return dtype.kind in ("floating", "integer")


def abstract(x: Any) -> jax.ShapeDtypeStruct:
    """The abstract value of a program's variable, for JAX to trace with."""
    aval = x.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def type_of(aval: Any) -> TensorType:
    """The type of the tensors for a JAX shape and dtype. Random-number keys are arrays of their
    data. Raises DTypeError for dtypes that tensors do not support."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        if not jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            _refuse_dtype(aval)
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    try:
        return TensorType(as_dtype(aval.dtype), sizes_of(aval.shape))
    except DTypeError:
        _refuse_dtype(aval)


def _refuse_dtype(aval: Any) -> NoReturn:
    fail(
        DTypeError,
        f"from_jax: the program has values of the type {aval.dtype}, and there are no such tensors",
        fix="convert them in the program: x.astype(jnp.float32)",
    )


def is_differentiable(aval: Any) -> bool:
    """Whether a value has derivatives."""
    return not is_key(aval) and type_of(aval).dtype.is_differentiable


def is_key(aval: Any) -> bool:
    """Whether a value is a random-number key."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def whole_numbers(values: Sequence[Any]) -> tuple[int, ...]:
    """Steps and counts of a program as ints; they may be NumPy integers."""
    return tuple(map(int, values))


def place_of(eqn: JaxprEqn) -> Source:
    """The line of the JAX program that created an equation, in the scope it named, and whether
    JAX's reverse mode did. What we had JAX create on the way belongs to the equation it was for."""
    info, outer = eqn.source_info, place_of_thread()
    stack = [(type(x).__name__, x.name) for x in info.name_stack.stack]
    named = [name for kind, name in stack if kind == "Scope"]
    scope = "/".join(filter(None, (outer.scope, *named)))
    roles = ("vjp",) if ("Transform", "transpose") in stack else ()
    frames = info.traceback.raw_frames() if info.traceback is not None else ((), ())
    for code, offset in zip(*frames, strict=True):
        if code.co_filename.startswith(PACKAGE):
            break
        if not is_ours(code.co_filename):
            return Source(code, instruction_of(code, offset), roles, scope)
    return here()
