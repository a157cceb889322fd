"""JAX primitives with derivatives of their own: `custom_jvp`, `custom_vjp`, other libraries'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from tracegraph.calls.call import Call, as_tuple
from tracegraph.calls.custom_call import CustomCall
from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.jax_programs.equations import (
    NEEDS_SIZE,
    OTHERS,
    Equation,
    abstract,
    computed_by,
    converts,
    graph_of,
    is_differentiable,
    sizes_not_given,
    with_sizes_given,
)
from tracegraph.operands.conversion import cast_to
from tracegraph.ops.contract import conjugate
from tracegraph.ops.elementwise import PreventGradient
from tracegraph.passes.simplify import simplify

#: How deeply rules may use functions that have rules, of which each level is one more derivative.
#: Beyond that, the functions' own computation is differentiated: a graph is finite, while JAX
#: applies a rule only on demand.
DEEPEST_RULE = 3


@converts("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom(eqn: Equation, *xs: Tensor) -> Any:
    program = eqn.params["call_jaxpr"] if "call_jaxpr" in eqn.params else eqn.params["fun_jaxpr"]
    name = str(eqn.params.get("name") or _name_of(program))
    return _with_rule(eqn, name, program, xs)


#: What to write where JAX has the derivative of the whole all the same: it never asks for that of a
#: part whose cotangent is zero, which here is a tensor of zeros after some rules.
_DERIVED_BY_JAX = (
    "(if jax.grad has the derivative of the whole, take it there: tg.from_jax(jax.grad(f)))"
)

#: Primitives that are differentiated by differentiating their expansion.
_WRITTEN_OUT = ("CheckpointName", "Einsum", "Nonzero", "SearchSorted")


@converts("call_hi_primitive")
def _written_in_others(eqn: Equation, *xs: Tensor) -> Any:
    """A primitive of jax 0.12 or later: a class that defines its own expansion into others."""
    primitive = eqn.params["_prim"]
    name = type(primitive).__name__

    def expand(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, leaves)))

    if name in _WRITTEN_OUT:
        return eqn.expanded(expand, *xs)
    program = jax.make_jaxpr(expand)(*map(abstract, eqn.eqn.invars))
    return _with_rule(eqn, name, program, xs)


@converts(OTHERS)
def _of_another_library(eqn: Equation, *xs: Tensor) -> Any:
    """The primitive's function as nodes, with the derivative that the primitive defines."""
    compute, params = computed_by(eqn.eqn.primitive), eqn.params
    assert compute is not None
    program = jax.make_jaxpr(lambda *xs: compute(*xs, **params))(*map(abstract, eqn.eqn.invars))
    if any(inner.primitive is eqn.eqn.primitive for inner in program.eqns):
        eqn.refuse(
            f"the primitive {eqn.name!r} does not say what it computes",
            "compute this part with tg, or with functions of JAX",
        )
    return _with_rule(eqn, eqn.name, program, eqn.apart(xs))


def _with_rule(
    eqn: Equation, name: str, program: ClosedJaxpr | Jaxpr, xs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Calls a program whose derivative is that of the equation."""
    sources = [i for i in _differentiable(eqn.eqn.invars) if eqn.active[i]]
    open_rules = eqn.reader.open_rules
    is_plain = not sources or not _differentiable(eqn.eqn.outvars)
    if is_plain or len(open_rules) >= DEEPEST_RULE:
        return _plain_call(eqn.reader.graph(name, program, eqn.active), xs)
    # Nothing derives the computation itself.
    body = eqn.reader.graph(name, program, (False,) * len(xs))
    open_rules.append(name)
    try:
        backward = _backward(eqn, name, body, sources)
        op = CustomCall(body, backward, tuple(sources))
        forward = _forward(eqn, name, body, sources) if _needs_forward(eqn, op) else None
    except Exception as error:
        if is_of_interrupt(error) or isinstance(error, NEEDS_SIZE):
            raise
        # It may still be run, as long as nobody needs the derivative.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        stop = PreventGradient(f"{name} has no derivative by JAX: {reason} {_DERIVED_BY_JAX}")
        given = [stop(x) if i in sources else x for i, x in enumerate(xs)]
        return _plain_call(body, given)
    finally:
        open_rules.pop()
    graphs = [body, backward] if forward is None else [body, backward, forward]
    graphs, sizes = with_sizes_given(graphs)
    places = tuple(len(sizes) + place for place in sources)
    body, backward, *forwards = graphs
    return as_tuple(CustomCall(body, backward, places, *forwards)(*sizes, *xs))


def _needs_forward(eqn: Equation, op: CustomCall) -> bool:
    """Whether forward mode needs the rule itself: JAX has one, and a solver or loop in the backward
    hides that this is linear."""
    if eqn.name.startswith("custom_vjp") or not any(n.op.regions for n in op.backward.nodes):
        return False
    return any(map(sizes_not_given, (op.body, op.backward))) or not op.has_forward


def _plain_call(body: Graph, xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (body,), sizes = with_sizes_given([body])
    return as_tuple(Call(body)(*sizes, *xs))


def _name_of(program: ClosedJaxpr) -> str:
    """The name of the Python function from which a program was traced."""
    info = getattr(program.jaxpr, "debug_info", None)
    return str(getattr(info, "func_name", "") or "custom")


def _differentiable(variables: Sequence[Any]) -> list[int]:
    """The positions of the differentiable variables."""
    return [i for i, x in enumerate(variables) if is_differentiable(x.aval)]


def _backward(eqn: Equation, name: str, body: Graph, sources: Sequence[int]) -> Graph:
    """The graph of the operands' cotangents, as JAX derives it with the user's rule."""
    results = eqn.eqn.outvars
    targets = _differentiable(results)

    def pulled(operands: Sequence[Any], seeds: Sequence[Any]) -> Any:
        _, pull = jax.vjp(*_of_sources(eqn, operands, sources, targets))
        return pull(list(seeds))

    operands, seeds = map(abstract, eqn.eqn.invars), [abstract(results[i]) for i in targets]
    closed = jax.make_jaxpr(pulled)(list(operands), seeds)
    count = len(body.inputs)

    def conjugated(*given: Tensor) -> Sequence[Tensor]:
        """Conjugates complex cotangents: JAX's are the conjugates of ours."""
        given = (*given[:count], *map(conjugate, given[count:]))
        active = (*eqn.active, *(True for _ in targets))
        found = eqn.reader.run(closed.jaxpr, eqn.reader.constants(closed), given, active)
        # JAX lets a rule return cotangents of another dtype than the operands have.
        kinds = (body.inputs[i].dtype for i in sources)
        return [cast_to(conjugate(x), kind) for x, kind in zip(found, kinds, strict=True)]

    types = [*body.input_types, *(body.outputs[i].type for i in targets)]
    return graph_of(f"{name}_backward", types, conjugated, simplify)  # which shows it is linear


def _forward(eqn: Equation, name: str, body: Graph, sources: Sequence[int]) -> Graph:
    """The graph of the results' tangents, as JAX derives it with the user's rule."""
    variables, targets = eqn.eqn.invars, _differentiable(eqn.eqn.outvars)

    def pushed(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        run, *xs = _of_sources(eqn, operands, sources, targets)
        return jax.jvp(run, xs, list(tangents))[1]

    operands, tangents = map(abstract, variables), [abstract(variables[i]) for i in sources]
    closed = jax.make_jaxpr(pushed)(list(operands), tangents)

    def read(*given: Tensor) -> Sequence[Tensor]:
        active = (*eqn.active, *(True for _ in sources))
        return eqn.reader.run(closed.jaxpr, eqn.reader.constants(closed), given, active)

    types = [*body.input_types, *(body.inputs[i].type for i in sources)]
    return graph_of(f"{name}_forward", types, read, simplify)


def _of_sources(
    eqn: Equation, operands: Sequence[Any], sources: Sequence[int], targets: Sequence[int]
) -> tuple[Any, ...]:
    """An equation as a function of its differentiable operands, and these operands."""
    run = function_of(eqn)

    def differentiable(*given: Any) -> Any:
        every = list(operands)
        for place, x in zip(sources, given, strict=True):
            every[place] = x
        found = run(*every)
        return [found[i] for i in targets]

    return differentiable, *(operands[i] for i in sources)


def function_of(eqn: Equation) -> Callable[..., list[Any]]:
    """An equation as a function of JAX arrays."""
    variables = eqn.eqn.invars
    # A program names each input once, and literals are not inputs.
    places = {x: i for i, x in enumerate(variables) if not isinstance(x, Literal)}
    program = eqn.jaxpr.replace(
        constvars=[],
        invars=[*places],
        outvars=eqn.eqn.outvars,
        eqns=[eqn.eqn],
        effects=eqn.eqn.effects,
    )
    run = jaxpr_as_fun(ClosedJaxpr(program, ()))
    return lambda *xs: run(*(xs[i] for i in places.values()))
