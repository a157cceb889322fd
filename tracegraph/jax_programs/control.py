"""JAX primitives that hold programs: calls, loops, branches, custom derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from tracegraph.calls.call import Call, as_tuple
from tracegraph.calls.custom_call import CustomCall
from tracegraph.calls.recompute import recomputed
from tracegraph.control.branch import Cond, Switch
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.control_flow.loops import checkpoint_count
from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.types import int32
from tracegraph.ir.builder import inline
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.jax_programs.activity import loop_counts
from tracegraph.jax_programs.equations import (
    NEEDS_SIZE,
    OTHERS,
    Equation,
    abstract,
    broadcast_to,
    computed_by,
    converts,
    graph_of,
    is_differentiable,
    sizes_not_given,
    with_sizes_given,
)
from tracegraph.jax_programs.reduce import ACROSS_DEVICES
from tracegraph.jax_programs.sizes import size_of
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.constant import Constant, constant
from tracegraph.ops.contract import conjugate
from tracegraph.ops.elementwise import SELECT, NotEqual, PreventGradient, StopGradient
from tracegraph.ops.reduce import Any as AnyOf
from tracegraph.passes.simplify import simplify

#: How deeply rules may use functions that have rules, of which each level is one more derivative.
#: Beyond that, the functions' own computation is differentiated: a graph is finite, while JAX
#: applies a rule only on demand.
DEEPEST_RULE = 3


@converts("jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr")
def _call(eqn: Equation, *xs: Tensor) -> Any:
    program = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    return _called(eqn, eqn.params.get("name", "call"), program, xs)


@converts("custom_vmap_call")
def _custom_vmap(eqn: Equation, *xs: Tensor) -> Any:
    """What the function computes: its rule for `jax.vmap` has been applied where that was asked."""
    return _called(eqn, "custom_vmap", eqn.params["call"], xs)


def _called(
    eqn: Equation, name: str, program: ClosedJaxpr | Jaxpr, xs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    is_static = all(x.type.is_static for x in xs)
    graph = eqn.reader.graph(name, program, eqn.active) if is_static else None
    if graph is None or sizes_not_given(graph):
        # Sizes of the outer program may stand in the inner one, where no operand has them.
        return tuple(eqn.reader.inlined(program, xs, eqn.active))
    return as_tuple(Call(graph)(*xs)) if graph.nodes else inline(graph, xs)


@converts("checkpoint", "remat", "remat2")
def _checkpoint(eqn: Equation, *xs: Tensor) -> Any:
    name = eqn.params.get("name") or "checkpoint"
    graph = eqn.reader.graph(name, eqn.params["jaxpr"], eqn.active)
    (graph,), sizes = with_sizes_given([graph])
    return recomputed(graph, len(graph.outputs))(*sizes, *xs)


@converts("scan")
def _scan(eqn: Equation, *xs: Tensor) -> Any:
    params = eqn.params
    if not eqn.eqn.outvars:
        return ()
    constants, states = loop_counts(eqn.eqn)
    active = eqn.reader.activity.in_loop(params["jaxpr"], eqn.active, constants, states)
    body = eqn.reader.graph("scan_body", params["jaxpr"], active)
    (body,), sizes = with_sizes_given([body])
    xs = *sizes, *xs
    return Scan(
        body, len(sizes) + constants, states, size_of(params["length"]), bool(params["reverse"])
    )(*xs)


@converts("while")
def _while(eqn: Equation, *xs: Tensor) -> Any:
    params = eqn.params
    of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
    constants = of_test + of_body
    types = [x.type for x in xs]
    tests, steps = params["cond_jaxpr"], params["body_jaxpr"]
    test = eqn.reader.graph("cond", tests, (False,) * len(tests.jaxpr.invars))
    states = len(xs) - constants
    active = eqn.reader.activity.in_loop(steps, eqn.active[of_test:], of_body, states)
    step = eqn.reader.graph("body", steps, active)

    def goes_on(*given: Tensor) -> Tensor:
        (found,) = inline(test, (*given[:of_test], *given[constants:]))
        return found

    def tested(*given: Tensor) -> Sequence[Tensor]:
        found = goes_on(*given)
        return [AnyOf(tuple(range(found.ndim)))(found) if found.ndim else found]

    def stepped(*given: Tensor) -> Sequence[Tensor]:
        of_step, states = given[of_test:constants], given[constants:]
        if not test.outputs[0].ndim:
            return inline(step, (*of_step, *states))
        # From jax.vmap over loops of different lengths: finished rows stay as they are.
        running = goes_on(*given)
        entered = [_where(running, x, _without_derivative(x)) for x in states]
        made = inline(step, (*of_step, *entered))
        return [_where(running, new, old) for new, old in zip(made, states, strict=True)]

    slots = checkpoint_count(types[constants:], None, None)
    (condition, body), sizes = with_sizes_given(
        [graph_of("while_cond", types, tested), graph_of("while_body", types, stepped)]
    )
    return While(body, len(sizes) + constants, condition, slots)(*sizes, *xs)


def _where(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The rows of x, along its first axes, where `rows` holds, and those of y elsewhere."""
    if x is y:
        return x
    return SELECT(broadcast_to(rows, x.type.shape, range(rows.ndim)), x, y)


def _without_derivative(x: Tensor) -> Tensor:
    return StopGradient()(x) if x.dtype.is_differentiable else x


@converts("cond")
def _cond(eqn: Equation, which: Tensor, *xs: Tensor) -> Any:
    programs = eqn.params["branches"]
    active = eqn.active[1:]
    branches = [eqn.reader.graph(f"branch_{k}", x, active) for k, x in enumerate(programs)]
    if not branches[0].outputs:
        return ()
    if len(branches) == 1:
        return inline(branches[0], xs)
    if which.node is not None and isinstance(which.node.op, Constant):  # known, like a platform
        number = int(which.node.op.value)
        return inline(branches[min(max(number, 0), len(branches) - 1)], xs)
    branches, sizes = with_sizes_given(branches)
    xs = *sizes, *xs
    if len(branches) > 2:
        return Switch(tuple(branches))(which, *xs)
    decider = which if which.dtype.is_bool else NotEqual()(which, full_like(which, 0))
    return Cond(branches[1], branches[0])(decider, *xs)


@converts("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom(eqn: Equation, *xs: Tensor) -> Any:
    program = eqn.params["call_jaxpr"] if "call_jaxpr" in eqn.params else eqn.params["fun_jaxpr"]
    name = str(eqn.params.get("name") or _name_of(program))
    return _with_rule(eqn, name, program, xs)


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
            f"the primitive {eqn.name!r} says nothing of what it computes",
            "compute this part with tg, or with functions of JAX",
        )
    return _with_rule(eqn, eqn.name, program, xs)


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
    except Exception as error:
        if is_of_interrupt(error) or isinstance(error, NEEDS_SIZE):
            raise
        # It may still be run, as long as nobody needs the derivative.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        stop = PreventGradient(f"{name} has no derivative by JAX: {reason}")
        given = [stop(x) if i in sources else x for i, x in enumerate(xs)]
        return _plain_call(body, given)
    finally:
        open_rules.pop()
    (body, backward), sizes = with_sizes_given([body, backward])
    places = (len(sizes) + place for place in sources)
    return as_tuple(CustomCall(body, backward, tuple(places))(*sizes, *xs))


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
    variables, results = eqn.eqn.invars, eqn.eqn.outvars
    targets = _differentiable(results)
    run = function_of(eqn)

    def pulled(operands: Sequence[Any], seeds: Sequence[Any]) -> Any:
        def differentiable(*given: Any) -> Any:
            every = list(operands)
            for place, x in zip(sources, given, strict=True):
                every[place] = x
            found = run(*every)
            return [found[i] for i in targets]

        _, pull = jax.vjp(differentiable, *(operands[i] for i in sources))
        return pull(list(seeds))

    operands, seeds = map(abstract, variables), [abstract(results[i]) for i in targets]
    closed = jax.make_jaxpr(pulled)(list(operands), seeds)
    count = len(variables)

    def conjugated(*given: Tensor) -> Sequence[Tensor]:
        """Conjugates complex cotangents: JAX's are the conjugates of ours."""
        given = (*given[:count], *map(conjugate, given[count:]))
        active = (*eqn.active, *(True for _ in targets))
        found = eqn.reader.run(closed.jaxpr, eqn.reader.constants(closed), given, active)
        return [*map(conjugate, found)]

    types = [*body.input_types, *(body.outputs[i].type for i in targets)]
    return graph_of(f"{name}_backward", types, conjugated, simplify)  # which shows it is linear


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


@converts("platform_index")
def _platform_index(eqn: Equation) -> Tensor:
    """The index of the branch for any platform: one graph serves all of them."""
    platforms = list(eqn.params["platforms"])
    place = platforms.index(None) if None in platforms else 0
    return constant(place, int32)


_REFUSED = {
    **dict.fromkeys(
        ["debug_callback", "debug_print", "io_callback", "pure_callback", "outside_call"],
        (
            "calls Python",
            "leave it out, or use tg.print and tg.py_function around the program; for the checks "
            "of equinox and diffrax set the environment variable EQX_ON_ERROR=nan",
        ),
    ),
    **dict.fromkeys(
        ["mesh_cast", "reshard", "shard_map", "pvary"],
        ("places values on devices", "leave it out: placing is told of Variables and arguments"),
    ),
    **dict.fromkeys(["all_gather", "ppermute", "all_to_all", "axis_index"], ACROSS_DEVICES),
}


@converts(*_REFUSED)
def _refuse(eqn: Equation, *xs: Tensor) -> NoReturn:
    does, fix = _REFUSED[eqn.name]
    eqn.refuse(f"the primitive {eqn.name!r} {does}, which a graph cannot do", fix)
