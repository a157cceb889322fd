"""JAX primitives that hold programs: calls, loops, branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from tracegraph.calls.call import Call, as_tuple
from tracegraph.calls.recompute import recomputed
from tracegraph.control.branch import Cond, Switch
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.control_flow.loops import checkpoint_count
from tracegraph.core.types import int32
from tracegraph.ir.builder import inline
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.derivatives.activity import loop_counts
from tracegraph.jax_programs.equations import (
    Equation,
    broadcast_to,
    converts,
    graph_of,
    sizes_not_given,
    with_sizes_given,
)
from tracegraph.jax_programs.reduce import ACROSS_DEVICES
from tracegraph.jax_programs.shape import put
from tracegraph.jax_programs.sizes import size_of
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.constant import constant, constant_value
from tracegraph.ops.elementwise import SELECT, NotEqual, StopGradient
from tracegraph.ops.reduce import Any as AnyOf


@converts("jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr")
def _call(eqn: Equation, *xs: Tensor) -> Any:
    params = eqn.params
    program = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
    xs = _placed(eqn, "in_shardings", xs)
    return _placed(eqn, "out_shardings", _called(eqn, params.get("name", "call"), program, xs))


def _placed(eqn: Equation, which: str, xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Operands or results of a `jax.jit` with the layouts that it was given for them."""
    places = eqn.params.get(which) or [None] * len(xs)
    return tuple(
        put(eqn, x, place) if isinstance(place, jax.sharding.Sharding) else x
        for x, place in zip(xs, places, strict=True)
    )


@converts("custom_vmap_call")
def _custom_vmap(eqn: Equation, *xs: Tensor) -> Any:
    """What the function computes: its rule for `jax.vmap` has been applied where that was asked."""
    return _called(eqn, "custom_vmap", eqn.params["call"], xs)


def _called(
    eqn: Equation, name: str, program: ClosedJaxpr | Jaxpr, xs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    xs = eqn.apart(xs)
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
    constants, states = loop_counts(eqn.eqn)
    active = eqn.reader.activity.in_loop(params["jaxpr"], eqn.active, constants, states)
    body = eqn.reader.graph("scan_body", params["jaxpr"], active)  # refuses what has effects
    if not eqn.eqn.outvars:
        return ()
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
    known = constant_value(which)  # such as a platform
    if known is not None:
        return inline(branches[min(max(int(known), 0), len(branches) - 1)], xs)
    branches, sizes = with_sizes_given(branches)
    xs = *sizes, *xs
    if len(branches) > 2:
        return Switch(tuple(branches))(which, *xs)
    decider = which if which.dtype.is_bool else NotEqual()(which, full_like(which, 0))
    return Cond(branches[1], branches[0])(decider, *xs)


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
        ("places values on devices", "leave it out, and place Variables and arguments instead"),
    ),
    **dict.fromkeys(["all_gather", "ppermute", "all_to_all", "axis_index"], ACROSS_DEVICES),
}


@converts(*_REFUSED)
def _refuse(eqn: Equation, *xs: Tensor) -> NoReturn:
    does, fix = _REFUSED[eqn.name]
    eqn.refuse(f"the primitive {eqn.name!r} {does}, which a graph cannot do", fix)
