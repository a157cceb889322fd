"""Functions that JAX differentiates by our rules.

A graph is lowered node by node as usual, and JAX transforms the result. Where JAX would derive
another derivative than we do, the node is wrapped: custom and registered gradients, ops with kinks
and edges, and those that stop or refuse gradients. The wrapper surrounds one node rather than a
graph, because JAX drops it where it builds what it transposes: nodes that depend only on primal
values must keep their own.

The wrapper states the tangents, by nodes that are lowered in the same way; for reverse mode JAX
transposes them. So both modes and any order follow. If the backward of a custom gradient contains a
custom gradient itself, it is not what JAX would derive from the tangents, and the wrapper states
both. It also does if the backward cannot be transposed: then only reverse mode exists.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from lowering import sizes
from lowering.device import WIDE, has_64_bits
from lowering.export.linear import LinearMap
from lowering.program import Lowering, graph_function
from lowering.rules import RULES, Rule
from tracegraph.calls.call import Call
from tracegraph.calls.custom_call import CustomCall
from tracegraph.calls.recompute import RecomputedCall
from tracegraph.control.branch import Branch
from tracegraph.control.scan import Loop, Scan
from tracegraph.control.while_loop import While, WhileGradient
from tracegraph.core.source import here, sourced
from tracegraph.core.types import TensorType
from tracegraph.errors import DTypeError, fail
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.constant import Nullary
from tracegraph.ops.contract import Bilinear
from tracegraph.ops.effect import HostCall, host_function
from tracegraph.ops.elementwise import (
    Asinh,
    Atan,
    Cast,
    Complex,
    Conj,
    Cos,
    Cosh,
    Discrete,
    Div,
    Erf,
    Erfc,
    Exp,
    Expm1,
    Imag,
    Mul,
    Real,
    Select,
    Sigmoid,
    Sin,
    Sinh,
    StopGradient,
    Tanh,
)
from tracegraph.ops.index import GatherNd, ScatterAdd, ScatterMul, ScatterUpdate
from tracegraph.ops.matrix_function import MatrixFunction
from tracegraph.passes.registry import cotangents_of, is_registered
from tracegraph.passes.walk import push_forward

#: Ops, other than linear ones, for which JAX has the same derivative everywhere.
_SAME = (
    *(Nullary, Discrete, Barrier, Bilinear, Mul),
    *(Select, Cast, Real, Imag, Conj, Complex),
    *(Exp, Expm1, Sin, Cos, Sinh, Cosh, Tanh, Atan, Asinh, Sigmoid, Erf, Erfc),
)


def differentiable(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    """A function of the graph's inputs that JAX can transform; created once, cached on the
    graph."""
    return graph.cached(("differentiable", _made.era), lambda: jax.jit(_function(graph)))


class _Made:
    """Functions are cached per era; those of earlier eras are no longer used."""

    era = 0


_made = _Made()


def renew() -> None:
    """Starts a new era. JAX refuses a function whose trace an interrupt left unfinished."""
    _made.era += 1


def _function(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    run = graph_function(graph, DIFFERENTIABLE)

    def checked(*arrays: Any) -> tuple[Any, ...]:
        _check_width(graph)
        try:
            return run(*arrays)
        except BaseException as error:
            if not isinstance(error, Exception):
                renew()
            raise

    checked.__name__ = checked.__qualname__ = graph.name
    return checked


def _check_width(graph: Graph) -> None:
    """Raises DTypeError if a graph needs 64 bits and JAX has them disabled."""
    if has_64_bits():
        return
    for wide in graph.cached("wide", lambda: _first_wide(graph)):
        fail(
            DTypeError,
            f"{graph.name}: {wide.type} has 64 bits, and JAX's 64-bit types are switched off",
            source=wide.source,
            fix='switch them on with jax.config.update("jax_enable_x64", True) or with '
            "jax.enable_x64(True):, or use types of 32 bits",
        )


def _first_wide(graph: Graph) -> list[Tensor]:
    """The first 64-bit tensor, if there is one."""
    made = (y for node in graph.nodes for y in node.outputs)
    return [x for x in (*graph.inputs, *made) if x.type.dtype.name in WIDE][:1]


class _Differentiable(Lowering):
    """Wraps nodes that have derivatives of our own."""

    def opens(self, op: Op) -> bool:
        return op.is_transparent

    def rule(self, node: Node) -> Rule | None:
        op, rule = node.op, super().rule(node)
        if rule is None or not _is_differentiable(node.inputs):
            return _SPECIAL.get(type(op), rule)
        if is_registered(op):
            return _by_gradient(rule, node, _as_custom_call(node))
        if op.chosen_gradient is not None:
            assert isinstance(op, CustomCall)
            return _by_gradient(_call, node, op)
        if op.is_linear or isinstance(op, _SAME) or not _is_differentiable(node.outputs):
            return _SPECIAL.get(type(op), rule)
        if isinstance(op, MatrixFunction) or (isinstance(op, (Branch, Loop)) and _runs_while(op)):
            return _with_tangents(rule, node, _as_custom_call(node))
        if isinstance(op, (Branch, Scan)):  # JAX must see their steps to transpose them
            return functools.partial(rule, way=DIFFERENTIABLE)
        wrapped = _with_tangents(_quotient if isinstance(op, Div) else rule, node)
        if isinstance(op, ScatterMul):
            return _as_product(wrapped)
        return _SPECIAL.get(type(op)) or wrapped


DIFFERENTIABLE = _Differentiable()


def _runs_while(op: Op) -> bool:
    """Whether an op runs a loop of unknown length, which JAX does not transpose."""
    return isinstance(op, (While, WhileGradient)) or any(
        region.graph.cached("runs while", functools.partial(_has_while, region.graph))
        for region in op.regions
    )


def _has_while(graph: Graph) -> bool:
    return any(_runs_while(node.op) for node in graph.nodes)


def _is_differentiable(tensors: Sequence[Tensor]) -> bool:
    return any(x.type.dtype.is_differentiable for x in tensors)


def _call(op: Call, *xs: Any) -> Any:
    return differentiable(op.body)(*xs)


def _print(op: HostCall, token: Any, *xs: Any) -> Any:
    """Prints whenever JAX runs the program; JAX promises no order."""
    function = host_function(op, here())

    def show(*arrays: Any) -> None:
        function(*map(np.asarray, arrays))

    jax.debug.callback(show, *xs)
    return (token,)


def _scatter_update(op: ScatterUpdate, x: Any, indices: Any, updates: Any) -> Any:
    """A selection and a sum, which JAX can transpose even where positions are written twice."""
    if not jnp.issubdtype(x.dtype, jnp.inexact) or 0 in updates.shape:
        return RULES[ScatterUpdate](op, x, indices, updates)
    b, count = op.batch_dims, indices.shape[-1]
    shape, ranks = indices.shape[:-1], range(op.axis, op.axis + indices.ndim - 1 - b)
    numbers = lax.reshape(lax.iota(jnp.int32, math.prod(shape)), shape)
    none = jnp.full((*x.shape[:b], *x.shape[op.axis : op.axis + count]), -1, jnp.int32)
    written = RULES[ScatterUpdate](ScatterUpdate(b, b), none, indices, numbers)
    stayed = lax.eq(RULES[GatherNd](GatherNd(b, b), written, indices), numbers)
    stayed = lax.broadcast_in_dim(stayed, updates.shape, (*range(b), *ranks))
    kept = lax.lt(written, jnp.int32(0))
    kept = lax.broadcast_in_dim(kept, x.shape, (*range(b), *range(op.axis, op.axis + count)))
    updates = jnp.where(stayed, updates, 0)
    added = RULES[ScatterAdd](ScatterAdd(*op.attributes), jnp.zeros_like(x), indices, updates)
    return jnp.where(kept, x, added)


def _quotient(op: Div, x: Any, y: Any) -> Any:
    """x / y for JAX to transpose in x: it cannot transpose our quotient, which looks at bits."""

    def divided(residuals: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
        return [RULES[Div](op, *xs, *residuals)]

    (z,) = LinearMap(divided, divided, 1, [jax.ShapeDtypeStruct(x.shape, x.dtype)])([y], [x])
    return z


def _as_product(rule: Rule) -> Rule:
    """The rule of ScatterMul as a product with `rule` applied to ones: JAX transposes it in x."""
    return lambda op, x, indices, updates: x * rule(op, jnp.ones_like(x), indices, updates)


_SPECIAL: dict[type[Op], Rule] = {
    Call: _call,
    CustomCall: _call,
    RecomputedCall: lambda op, *xs: jax.checkpoint(_function(op.body))(*xs),
    StopGradient: lambda op, x: jax.lax.stop_gradient(x),
    HostCall: _print,
    ScatterUpdate: _scatter_update,
}


# Forward: the wrapper states the tangents, and JAX transposes them.


def _with_tangents(rule: Rule, node: Node, custom: CustomCall | None = None) -> Rule:
    """`rule` with the derivative of the node; its transpose is the backward of `custom`, if
    given."""

    def lowered(op: Op, *xs: Any) -> Any:
        function = jax.custom_jvp(lambda *xs: rule(op, *xs))

        def push(xs: tuple[Any, ...], ts: tuple[Any, ...]) -> tuple[Any, Any]:
            ys = function(*xs)
            return ys, _pushed(node, custom, xs, ys, ts)

        function.defjvp(push, symbolic_zeros=True)
        return function(*xs)

    return lowered


def _pushed(
    node: Node, custom: CustomCall | None, xs: Sequence[Any], ys: Any, ts: Sequence[Any]
) -> Any:
    """The tangents of the outputs, packed like `ys`."""
    values = ys if isinstance(ys, tuple) else (ys,)
    given = tuple(i for i, t in enumerate(ts) if not isinstance(t, SymbolicZero))
    if custom is None:
        places, found = _by_graph(node, (*xs, *values), {i: ts[i] for i in given})
    else:
        places, found = _by_backward(node, custom, (*xs, *values), {i: ts[i] for i in given})
    results = [_no_tangent(y) for y in values]
    for place, t in zip(places, found, strict=True):
        results[place] = t
    return tuple(results) if isinstance(ys, tuple) else results[0]


def _by_graph(
    node: Node, values: Sequence[Any], ts: Mapping[int, Any]
) -> tuple[Sequence[int], Sequence[Any]]:
    """The positions of outputs and their tangents, from the values of the inputs and outputs and
    the tangents of some inputs."""
    pairs = zip(node.inputs, values, strict=False)  # the outputs follow
    types = sizes.types_of(*zip(*((x.type.dtype, value.shape) for x, value in pairs)))
    graph, places = _tangent_graph(node, types, tuple(ts))
    return places, graph_function(graph, DIFFERENTIABLE)(*values, *ts.values())


def _by_backward(
    node: Node, custom: CustomCall, values: Sequence[Any], ts: Mapping[int, Any]
) -> tuple[Sequence[int], Sequence[Any]]:
    """Like `_by_graph`, with tangents that JAX transposes to the backward of `custom`.

    If that is not linear in the cotangents, no tangents exist, and code that needs more than their
    transpose gets an error with the line.
    """
    count = len(node.inputs)
    ts = {i: t for i, t in ts.items() if i in custom.sources}
    if not ts:
        return (), ()
    places = custom.targets
    structs = [jax.ShapeDtypeStruct(y.shape, y.dtype) for y in values[count:]]
    needs_outputs = not isinstance(node.op, CustomCall)  # whose rule reads only inputs
    kept = values if needs_outputs else values[:count]

    def forward(values: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        if not needs_outputs:
            values = [*values, *map(jnp.zeros_like, structs)]
        found = dict(zip(*_by_graph(node, values, dict(zip(ts, given, strict=True))), strict=True))
        return [found[i] if i in found else jnp.zeros_like(structs[i]) for i in places]

    def backward(values: Sequence[Any], gs: Sequence[Any]) -> list[Any]:
        return _pulled(custom, values[:count], gs, tuple(ts))

    run = LinearMap(forward, backward, len(kept), [structs[i] for i in places])
    return places, run(kept, list(ts.values()))


def _pulled(
    custom: CustomCall, xs: Sequence[Any], gs: Sequence[Any], places: Sequence[int]
) -> list[Any]:
    """The cotangents of the inputs at `places`, from those of the outputs that have some."""
    # For complex numbers our cotangents are the conjugates of JAX's.
    found = differentiable(custom.backward)(*xs, *map(jnp.conj, gs))
    cotangents = dict(zip(custom.sources, found, strict=True))
    return [jnp.conj(cotangents[i]) for i in places]


def _no_tangent(y: Any) -> Any:
    if jnp.issubdtype(y.dtype, jnp.inexact):
        return jnp.zeros_like(y)
    return np.zeros(y.shape, jax.dtypes.float0)


def _tangent_graph(
    node: Node, types: Sequence[TensorType], given: tuple[int, ...]
) -> tuple[Graph, tuple[int, ...]]:
    """`(*inputs, *outputs, *tangents of the given inputs) -> tangents of outputs`, and their
    positions."""
    with Builder(f"{node.op.name}_jvp") as builder, sourced(node.source):
        xs = tuple([builder.input(type, f"x{i}") for i, type in enumerate(types)])
        made = Node(node.op, xs, node.source, builder)
        outputs = enumerate(node.op.output_types(xs))
        made.outputs = tuple([builder.input(type, f"y{i}") for i, type in outputs])
        ts = {xs[i]: builder.input(types[i], f"t{i}") for i in given}
        push_forward([made], ts, "jvp")
        kept = [(i, ts[y]) for i, y in enumerate(made.outputs) if y in ts]
        return builder.finish([t for _, t in kept]), tuple(i for i, _ in kept)


# Custom gradients: the wrapper states the backward.


def _by_gradient(rule: Rule, node: Node, custom: CustomCall) -> Rule:
    """`rule` with the backward of `custom` as its derivative."""
    if not custom.sources:
        return lambda op, *xs: rule(op, *map(jax.lax.stop_gradient, xs))
    if custom.agrees_with_forward:
        return _with_tangents(rule, node)
    return _with_tangents(rule, node, custom)


def _as_custom_call(node: Node) -> CustomCall:
    """A node with a registered gradient, as a custom call with that gradient."""
    with Builder(node.op.name) as builder:
        body = builder.finish(builder.add(node.op, _inputs(builder, node), node.source))
    with Builder(f"{node.op.name}_backward") as builder, sourced(node.source):
        xs = _inputs(builder, node)
        ys = builder.add(node.op, xs)
        made = builder.nodes[-1]
        gs = [
            builder.input(y.type, f"g{i}") if y.type.dtype.is_differentiable else None
            for i, y in enumerate(ys)
        ]
        found = list(enumerate(cotangents_of(made, gs)))
        kept = [(i, g) for i, g in found if g is not None and xs[i].type.dtype.is_differentiable]
        backward = builder.finish([g for _, g in kept])
    return CustomCall(body, backward, tuple(i for i, _ in kept))


def _inputs(builder: Builder, node: Node) -> tuple[Tensor, ...]:
    return tuple([builder.input(x.type, f"x{i}") for i, x in enumerate(node.inputs)])
