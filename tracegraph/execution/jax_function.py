"""A traced function as a plain function of JAX that JAX's transformations accept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tracegraph import nest
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.later import opened
from tracegraph.core.source import Source, here, is_ours
from tracegraph.core.types import TOKEN, as_dtype
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.slots import gathered, state_lock
from tracegraph.errors import DTypeError, SignatureError, TraceError, fail
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import HostCall
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import first_of_unknown_size
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from tracegraph.functions.concrete import ConcreteFunction


class Binding(NamedTuple):
    """A call as a trace takes it: its tensors and its Variables."""

    concrete: ConcreteFunction
    arguments: Sequence[Tensor]
    variables: Sequence[Variable]


def jax_function(
    bind: Callable[[tuple[Any, ...], dict[str, Any]], Binding], like: Callable[..., Any]
) -> Callable[..., Any]:
    """A function of JAX arrays, with the signature of `like`, that calls the trace that `bind`
    finds for its arguments."""

    @api_boundary
    @functools.wraps(like)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_tensors(args, kwargs)
        with backend.outside_of_traces():  # traces and reads here belong to no program
            concrete, arguments, variables = bind(args, kwargs)
            graph = pure_graph(concrete, may_print=True)
            values = [*map(device_buffer, arguments), *constants(concrete, variables)]
            values += [_START] * sum(x.type is TOKEN for x in graph.inputs)
        try:
            outputs = backend.differentiable(graph)(*values)
        except BaseException as error:
            if not isinstance(error, Exception):
                backend.renew_differentiable()
            raise
        return concrete.results.pack(outputs[: concrete.traced.result_count])

    return call


#: The initial value of the token.
_START = False


def _with_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with JAX arrays, tracers included, replaced by tensors that hold them."""
    leaves, structure = nest.flatten_structure((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
    arrays = [backend.strong(leaves[i]) for i in places]
    for place, type, array in zip(places, backend.jax_types(arrays), arrays, strict=True):
        leaves[place] = Tensor(type, array)
    return structure.pack(leaves)


def _is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a JAX array with one of our types, unlike a random key, say."""
    if not backend.is_jax_array(leaf):
        return False
    try:
        as_dtype(leaf.dtype)
    except DTypeError:
        return False
    return True


def constants(concrete: ConcreteFunction, variables: Sequence[Variable]) -> list[Any]:
    """The current values of the Variables and the captured tensors, in the order of the graph."""
    with state_lock:
        state = gathered(variables)
    return [*state, *map(device_buffer, concrete.traced.captures)]


def pure_graph(concrete: ConcreteFunction, may_print: bool) -> Graph:
    """The graph of the results, and of the prints if `may_print`. Raises TraceError for
    anything else that a call does besides returning its results."""
    graph = concrete.traced.graph.cached(("pure", may_print), lambda: _pure(concrete, may_print))
    assert isinstance(graph, Graph)
    return graph


def _pure(concrete: ConcreteFunction, may_print: bool) -> Graph:
    traced, name = concrete.traced, concrete.name
    for number, place in enumerate(traced.assigned):
        _refuse_assignment(concrete, number, place)
    for report in traced.checks:
        fail(
            SignatureError,
            f"{name}: it checks values ({report.message}), and a pure function cannot report them",
            source=report.source,
            fix="return the truth value with the results, or leave the check out",
        )
    count = traced.result_count
    outputs = traced.graph.outputs[: count + traced.has_token]
    graph = dead_code(traced.graph.with_outputs(outputs))
    for node in _nodes_of(graph, HostCall):
        _check_host_call(name, node, may_print)
    check_is_one_program(name, graph)
    return graph


def check_is_one_program(name: str, graph: Graph) -> None:
    """Raises TraceError for a graph that computes sizes."""
    node = first_of_unknown_size(graph)
    if node is not None:
        fail(
            TraceError,
            f"{name}: it computes a size that only its runs know, and one program of XLA has known "
            "shapes",
            source=node.source,
            fix="keep all elements and a mask: tg.where(mask, x, 0)",
        )


def _refuse_assignment(concrete: ConcreteFunction, number: int, place: int) -> NoReturn:
    """Refuses this assignment, by number, to the Variable at this position."""
    traced = concrete.traced
    variable = traced.variables[place]
    is_random = variable.is_random_state
    does = "draws random numbers, whose state is" if is_random else "assigns"
    name = (
        opened("tracegraph.text.printer")
        .value_names(traced.graph)[traced.graph.inputs[traced.argument_count + place]]
        .removeprefix("%")
    )
    fail(
        TraceError,
        f"{concrete.name}: it {does} the Variable {name!r}, and a pure function keeps none",
        source=_made_at(traced.graph, traced.result_count + number) or _place_of(concrete),
        fix=(
            "draw from a seed that is an argument, as tg.random.stateless_normal does"
            if is_random
            else "take its value as an argument, and return the new one"
        ),
    )


def _made_at(graph: Graph, output: int) -> Source | None:
    """Where an output was created, even inside a called graph; None if it is an input."""
    found = None
    y = graph.outputs[output]
    while not any(x is y for x in graph.inputs):
        node = y.node
        assert node is not None
        found = node.source
        if node.op.inlined is None:
            break
        graph = node.op.inlined
        y = graph.outputs[next(i for i, x in enumerate(node.outputs) if x is y)]
    return found


def _place_of(concrete: ConcreteFunction) -> Source:
    """Where a function was defined; the caller, for a loaded one."""
    place = concrete.request.signature.place
    return here() if is_ours(place.file) else place


def _nodes_of(graph: Graph, kind: type[Op]) -> list[Node]:
    return [node for node in graph.all_nodes() if isinstance(node.op, kind)]


def _check_host_call(name: str, node: Node, may_print: bool) -> None:
    op = node.op
    assert isinstance(op, HostCall)
    is_print = isinstance(op.function, tuple)
    if is_print and may_print:
        return
    does = "prints" if is_print else "calls Python"
    fail(
        TraceError,
        f"{name}: it {does} when it runs, and "
        + ("an exported program cannot" if is_print else "a pure function cannot"),
        source=node.source,
        fix="leave it out" if is_print else "compute it with tg ops, or outside of the function",
    )
