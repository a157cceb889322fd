"""Call: a graph applied as one node. Functions stay functions, and are differentiated once.

A body that will be differentiated is called in its *forward form*, whose extra outputs are the
residuals: the primal values that the rules of its nodes read. The backward graph takes residuals
and cotangents, and recomputes primal values only where that is cheaper than keeping them. Rules
read only primal values, so the forward form is its own forward form, and higher orders need no
further residuals.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tracegraph.core.shapes import Dim, ShapeVariable, Size, dim_names, substitute_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TOKEN, TensorType
from tracegraph.errors import Mismatch, MissingRuleError
from tracegraph.ir.builder import Builder, copy_inputs, current, replay
from tracegraph.ir.op import Batched, Derivative, Entered, KnownValues, Op, Region, Tangents
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.constant import Constant
from tracegraph.ops.effect import FirstToken, HostCall
from tracegraph.ops.elementwise import MUL, add_all
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient, is_diagonal_path, made_again
from tracegraph.passes.registry import is_registered
from tracegraph.passes.simplify import dead_code, simplify
from tracegraph.passes.sparsity import propagate
from tracegraph.passes.specialise import bind_sizes, bound_names, specialise
from tracegraph.passes.vectorise import vectorise
from tracegraph.passes.walk import at_places, path_between


class Call(Op):
    """The outputs of the graph `body` applied to the inputs."""

    body: Graph

    takes_zero_cotangents = True
    can_prune = True
    is_transparent = True

    @property
    def regions(self) -> tuple[Region, ...]:
        body = self.body
        return (Region(body, tuple(range(len(body.inputs))), tuple(range(len(body.outputs)))),)

    @property
    def inlined(self) -> Graph | None:
        return self.body

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        formal = self.body.input_types
        if len(formal) != len(types):
            raise Mismatch(f"@{self.body.name} takes {len(formal)} inputs, not {len(types)}")
        if formal == types:
            return self.body.output_types
        if all(type.is_static for type in types):  # checks the body's assumptions about sizes
            return specialise(self.body, types).output_types
        sizes = bind_sizes(formal, types, assumes=True)
        return tuple(
            t if t.is_static else t.with_shape(substitute_shape(t.shape, sizes))
            for t in self.body.output_types
        )

    def vjp(self, *values: Any) -> Derivative:
        count = len(self.body.outputs)
        gs, ys, xs = values[:count], values[count : 2 * count], values[2 * count :]
        present = tuple(g is not None for g in gs)
        if not any(present):
            return (None,) * len(xs)
        if not all(present) and not has_plan(self.body):
            # The missing rule may concern only another output.
            needed = self.body.cached(("needed", present), lambda: _with_some(self.body, present))
            pairs = [(g, y) for g, y in zip(gs, ys, strict=True) if g is not None]
            return Call(needed).vjp(*(g for g, _ in pairs), *(y for _, y in pairs), *xs)
        plan = residual_plan(self.body)
        if plan.forward is not self.body:
            # It was recorded without a tape, hence without residuals: compute them now.
            ys = as_tuple(Call(plan.forward)(*xs))
            gs = (*gs, *(None,) * (len(ys) - count))
            plan = residual_plan(plan.forward)
            present = tuple(g is not None for g in gs)
        backward, places = backward_graph(plan.forward, present)
        residuals = [ys[i] if kind == "output" else xs[i] for kind, i in plan.places]
        found = call(backward, [*residuals, *(g for g in gs if g is not None)])
        return at_places(places, found, len(xs))

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        inputs = values[len(self.body.outputs) :]
        given = tuple(t is not None for t in tangents)
        if self.is_diagonal_on(inputs[given.index(True)].type):
            return self._diagonal_jvp(tangents, given, inputs)
        graph, places, known = tangent_graph(self.body, given)
        given_tangents = [t for t in tangents if t is not None]
        found = call(graph, [*inputs, *given_tangents, *(values[i] for i in known)])
        return at_places(places, found, len(self.body.outputs))

    def _diagonal_jvp(
        self, tangents: Tangents, given: tuple[bool, ...], inputs: Sequence[Tensor]
    ) -> Tangents:
        """The tangents as products with the derivatives, which do not depend on the direction, so
        each order shares common terms with the lower orders."""
        graph, places = _factor_graph(self.body, given)
        terms: dict[int, list[Tensor]] = {}
        for (i, j), factor in zip(places, call(graph, inputs), strict=True):
            tangent = tangents[i]
            assert tangent is not None
            terms.setdefault(j, []).append(MUL(factor, tangent))
        return tuple(add_all(terms.get(j, [])) for j in range(len(self.body.outputs)))

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        body = self.of_known_rank(batched, xs).body
        graph, flags = vectorise(body, batched, own_size(body, n))
        return tuple(call(graph, xs)), flags

    def of_known_rank(self, batched: Sequence[bool], xs: Sequence[Tensor]) -> Any:
        """The op for inputs with the ranks of `xs`, without the loop's axis where batched."""
        if not any(isinstance(x.type.shape, ShapeVariable) for x in self.body.inputs):
            return self
        types = [
            x.type.with_shape(x.type.shape[1:]) if is_batched else x.type
            for x, is_batched in zip(xs, batched, strict=True)
        ]
        return self.specialised(_own_types(types))

    def specialised(self, types: Sequence[TensorType]) -> Any:
        """The op for inputs of these types."""
        return type(self)(specialise(self.body, types))

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        return self.depends_given([None] * len(patterns), *patterns)

    def depends_given(self, values: KnownValues, *patterns: Pattern) -> tuple[Pattern, ...]:
        body, given, known = self.entered(values, *patterns)
        return tuple(propagate(body, given, known, patterns[0].total))

    def entered(self, values: KnownValues, *patterns: Pattern) -> Entered:
        """The graph to propagate patterns through, with the patterns and known values of its
        inputs: here the body itself, with the inputs of the call."""
        formal = zip(self.body.input_types, patterns, strict=True)
        body = specialise(self.body, [type.with_shape(p.shape) for type, p in formal])
        return body, patterns, values

    def is_diagonal_on(self, type: TensorType) -> bool:
        return self.body.cached(("is_diagonal", type), lambda: _is_diagonal(self.body, type))

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        return depending_through(self.body, inputs)

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        body, keep = self.body.cached(("pruned", used), lambda: _pruned_body(self.body, used))
        return Call(body), keep, used

    def recorded(self) -> Call:
        return Call(forward_form(self.body))


def _is_diagonal(body: Graph, type: TensorType) -> bool:
    xs = [x for x in body.inputs if x.type.dtype.is_differentiable]
    ys = [y for y in body.outputs if y.type.dtype.is_differentiable]
    # An input of another type may be broadcast: its cotangent then sums over elements.
    if any(x.type is not type for x in (*xs, *ys)):
        return False
    return is_diagonal_path(path_between(body.nodes, xs, ys), type)


def depending_through(body: Graph, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which outputs of a body depend, differentiably, on the flagged inputs."""
    return body.cached(("depending", inputs), lambda: _depending(body, inputs))


def _depending(body: Graph, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
    pairs = zip(body.inputs, inputs, strict=True)
    reached = {x for x, is_marked in pairs if is_marked}
    for node in body.nodes:
        reached.update(node.depending(reached))
    return tuple(y in reached for y in body.outputs)


def call(body: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Appends a call of `body`; in its forward form if an open tape watches one of the inputs."""
    return applied(Call(body), inputs)


def applied(op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Appends a node of `op`, which holds graphs; in its `recorded` form if an open tape watches
    one of the inputs. Returns the outputs of `op` itself."""
    inputs = tuple(inputs)
    if not current().follows(inputs):
        return as_tuple(op(*inputs))
    outputs = as_tuple(op.recorded()(*inputs))
    return outputs[: len(op.output_types(inputs))]


def appended(op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Appends a node of `op` to the graph under construction, for inputs from there or outside."""
    return applied(op, current().admit_all(tuple(inputs)))


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The result of an op, one tensor or several, as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


@dataclasses.dataclass(frozen=True)
class ResidualPlan:
    """The forward form of a body, and where its backward graph finds its residuals."""

    forward: Graph
    #: ("input" or "output", position) in the forward form, one per residual.
    places: tuple[tuple[str, int], ...]
    #: The tensors of the forward form that are residuals, in that order.
    residuals: tuple[Tensor, ...]
    #: Those that the backward graph recomputes from residuals.
    again: frozenset[Tensor] = frozenset()


def residual_plan(body: Graph) -> ResidualPlan:
    """The plan of `body`, made once and cached on it."""
    return body.cached("residuals", lambda: _planned(body))


def forward_form(body: Graph) -> Graph:
    """The forward form of a body. If a rule is missing it is the body itself: recording needs no
    derivative, and computing one raises the error."""
    return residual_plan(body).forward if has_plan(body) else body


def has_plan(body: Graph) -> bool:
    """Whether a body has all the rules that reverse mode needs."""
    try:
        residual_plan(body)
    except MissingRuleError:
        return False
    return True


def _with_some(body: Graph, used: tuple[bool, ...]) -> Graph:
    """The body with only those outputs."""
    outputs = tuple(y for y, is_used in zip(body.outputs, used, strict=True) if is_used)
    return dead_code(body.with_outputs(outputs))


def derived_name(body: Graph, role: str) -> str:
    """A name for a graph derived from a body: f_vjp, then f_vjp_2, and so on."""
    name = body.name.removesuffix("_forward")
    again = re.fullmatch(rf"(.+_{role})(?:_(\d+))?", name)
    return f"{again[1]}_{int(again[2] or 1) + 1}" if again else f"{name}_{role}"


def _planned(body: Graph) -> ResidualPlan:
    prepared = _with_forward_calls(body)
    residuals, again = _all_residuals(prepared)
    inputs = {x: ("input", i) for i, x in enumerate(prepared.inputs)}
    outputs = {y: ("output", i) for i, y in reversed(list(enumerate(prepared.outputs)))}
    extra: list[Tensor] = []
    places: list[tuple[str, int]] = []
    for x in residuals:
        place = inputs.get(x) or outputs.get(x)
        if place is None:
            place = ("output", len(prepared.outputs) + len(extra))
            extra.append(x)
        places.append(place)
    effects = results_of_effects(prepared)
    extra += [y for y in effects if y not in outputs and y not in {*extra}]
    if prepared is body and not extra:
        forward = body
    else:
        name = body.name if body.name.endswith("_forward") else f"{body.name}_forward"
        forward = Graph(name, prepared.inputs, prepared.nodes, (*prepared.outputs, *extra))
        passed("forward", forward)
    plan = ResidualPlan(forward, tuple(places), tuple(residuals), again)
    forward.cache["residuals"] = plan
    return plan


def _all_residuals(body: Graph) -> tuple[list[Tensor], frozenset[Tensor]]:
    """The residuals of a body, among them what its rules read for cotangents of residuals; and the
    values that its backward graph recomputes from them."""
    reads_off_path = _may_read_off_path(body)
    made = [y for node in body.nodes for y in node.outputs if not y.type.is_static]
    # What effects returned is handed on, so it may have cotangents too.
    outputs = [*body.outputs, *results_of_effects(body)]
    found = _residuals(body, outputs)
    while True:
        residuals, again = made_again(body, found)
        # The values that only give their sizes need not lie on a path to an output.
        sizes = naming((*body.inputs, *made), residuals)
        computed = [x for x in sizes if x.node is not None and x.type.dtype.is_differentiable]
        off_path = [*found, *computed] if reads_off_path else computed
        # Only higher orders differentiate these reads, and their rules read more.
        more = _residuals(body, (*outputs, *off_path)) if off_path else []
        if {*more} <= {*found, *sizes}:
            return [*residuals, *sizes], again
        found = list(dict.fromkeys((*found, *more)))


def repeats(graph: Graph, count: int) -> tuple[tuple[str, int], ...] | None:
    """Where the outputs from `count` on are found among the inputs and the first outputs, as
    ("input" or "output", position); None if one of them is a distinct value."""
    there = {_origin(y): ("output", i) for i, y in reversed([*enumerate(graph.outputs[:count])])}
    there |= {x: ("input", i) for i, x in enumerate(graph.inputs)}
    places = [there.get(_origin(y)) for y in graph.outputs[count:]]
    return None if None in places else tuple(place for place in places if place is not None)


def _origin(value: Tensor) -> Tensor:
    """The tensor that reaches `value` unchanged, through bodies that return one of their inputs.
    The two values are equal, although a custom gradient may lie between them."""
    while value.node is not None and isinstance(value.node.op, Call):
        body, node = value.node.op.body, value.node
        given = dict(zip(node.outputs, body.outputs, strict=True))[value]
        passed_on = dict(zip(body.inputs, node.inputs, strict=True)).get(given)
        if passed_on is None:
            break
        value = passed_on
    return value


def _with_forward_calls(body: Graph) -> Graph:
    """`body`, where every call that has cotangents is in its forward form."""
    if all(_recorded(node.op) is node.op for node in body.nodes):
        return body
    with Builder(body.name) as builder:
        env = copy_inputs(body, builder)
        for node in body.nodes:
            op = _recorded(node.op)
            made = builder.add(op, tuple(env[x] for x in node.inputs), node.source)
            env.update(zip(node.outputs, made, strict=False))
        return builder.finish([env[y] for y in body.outputs])


def _recorded(op: Op) -> Op:
    return op.recorded() if op.regions else op


class DerivativeBuilder(Builder):
    """Builds a derivative as a separate graph: each primal value that a rule reads becomes an
    input."""

    def __init__(self, name: str, again: frozenset[Tensor] = frozenset()) -> None:
        super().__init__(name)
        self.residuals: dict[Tensor, Tensor] = {}
        #: The primal values that are recomputed from others.
        self.again = again

    def admit(self, tensor: Tensor) -> Tensor:
        found = self.residuals.get(tensor)
        if found is not None:
            return found
        node = tensor.node
        if node is not None and (isinstance(node.op, Constant) or tensor in self.again):
            inputs = self.admit_all(node.inputs)
            # Create it anew: sharing would find the value of the body.
            reuse, self.reuse = self.reuse, None
            (found,) = self.add(node.op, inputs, node.source)
            self.reuse = reuse
        else:
            found = self.input_for(tensor)
        self.residuals[tensor] = found
        return found

    def take_residuals(self) -> dict[Tensor, Tensor]:
        """The primal tensors and the inputs that represent them. The builder forgets them: its
        nodes are kept, and would otherwise keep the values of one call alive."""
        found, self.residuals = self.residuals, {}
        return found


def _may_read_off_path(graph: Graph) -> bool:
    """Whether a rule may read differentiable values that have no cotangents: a chosen gradient may
    read any; the rule of an op with several outputs, such as `eigh`, another output; and that of a
    loop a state that only its condition reads."""
    return any(
        node.op.chosen_gradient
        or is_registered(node.op)
        or node.op.regions
        or sum(x.type.dtype.is_differentiable for x in node.outputs) > 1
        for node in graph.all_nodes()
    )


def _residuals(body: Graph, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The primal tensors that the rules of `body` read if all outputs that can have cotangents have
    them."""
    outputs = tuple(dict.fromkeys(y for y in outputs if y.type.dtype.is_differentiable))
    body = body.with_outputs(outputs)
    builder, _, _ = _pulled_back(body, (True,) * len(outputs), frozenset())
    return [x for x, given in builder.residuals.items() if given in set(builder.inputs)]


def _pulled_back(
    body: Graph, present: tuple[bool, ...], again: frozenset[Tensor]
) -> tuple[DerivativeBuilder, list[Tensor], list[tuple[int, Tensor]]]:
    """A builder with the backward nodes, the cotangent inputs, and the results by position."""
    with DerivativeBuilder(derived_name(body, "vjp"), again) as builder:
        outputs = [y for y, is_given in zip(body.outputs, present, strict=True) if is_given]
        gs = [builder.input(y.type, f"g{i}") for i, y in enumerate(outputs)]
        places = [i for i, x in enumerate(body.inputs) if x.type.dtype.is_differentiable]
        found = gradient(body.nodes, outputs, [body.inputs[i] for i in places], gs)
        kept = [(i, g) for i, g in zip(places, found, strict=True) if g is not None]
        results = [(i, builder.admit_all((g,))[0]) for i, g in kept]
    return builder, gs, results


def backward_graph(forward: Graph, present: tuple[bool, ...]) -> tuple[Graph, tuple[int, ...]]:
    """`(*residuals, *cotangents) -> cotangents of the inputs at the positions returned`.

    `present` says which outputs have cotangents. Cached on the forward form.
    """
    return forward.cached(("backward", present), lambda: _backward_graph(forward, present))


def _backward_graph(forward: Graph, present: tuple[bool, ...]) -> tuple[Graph, tuple[int, ...]]:
    plan = residual_plan(forward)
    builder, gs, results = _pulled_back(forward, present, plan.again)
    with builder:
        residuals = [builder.admit(x) for x in plan.residuals]
    known = {id(x) for x in (*residuals, *gs)}
    unknown = [x for x in builder.inputs if id(x) not in known]
    assert not unknown, f"@{forward.name}: residuals are missing: {unknown}"
    outputs = tuple(g for _, g in results)
    graph = Graph(builder.name, (*residuals, *gs), tuple(builder.nodes), outputs)
    passed("backward", graph)
    return simplify(graph), tuple(i for i, _ in results)


def tangent_graph(
    body: Graph, given: tuple[bool, ...]
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    """The tangents as a graph of the inputs, the tangents passed in, and outputs of the body that
    are known. Also returns which outputs have tangents, and which are known."""
    return body.cached(("tangents", given), lambda: _make_tangent_graph(body, given))


def _make_tangent_graph(
    body: Graph, given: tuple[bool, ...]
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    with Builder(derived_name(body, "jvp")) as builder:
        env = copy_inputs(body, builder)
        xs = [env[x] for x, is_given in zip(body.inputs, given, strict=True) if is_given]
        ts = [builder.input(x.type, f"t{i}") for i, x in enumerate(xs)]
        replay(body.nodes, env)
        found = jvp(builder.nodes, [env[y] for y in body.outputs], xs, ts)
        kept = [(i, t) for i, t in enumerate(found) if t is not None]
        graph = builder.finish([t for _, t in kept])
    known = {env[y]: i for y, i in places_of_effects(body).items()}
    graph = dead_code(with_known(graph, known) if known else graph)
    passed("tangents", graph)
    return graph, tuple(i for i, _ in kept), tuple(known.values())


def places_of_effects(body: Graph, first: int = 0) -> dict[Tensor, int]:
    """Maps outputs of nodes where runs are cut to their output positions, from `first` on: a
    derivative must not repeat effects."""
    places = {y: i for i, y in reversed([*enumerate(body.outputs)]) if i >= first}
    cuts = [node for node in body.nodes if node.op.cuts_runs]
    found = [node for node in cuts if {*_kept(node)} <= places.keys()]
    # The token of a branch or a loop carries what is recorded of the calls in it.
    needed = [y for node in found for y in (node.outputs if node.op.regions else _kept(node))]
    return {y: places[y] for y in needed if y in places}


def results_of_effects(body: Graph) -> list[Tensor]:
    """What derivatives take from the nodes of a body that cut runs."""
    cuts = [node for node in body.nodes if node.op.cuts_runs]
    # A node that returns only a token, such as a print, is of no use to a derivative.
    cuts = [node for node in cuts if any(y.type is not TOKEN for y in node.outputs)]
    return [*dict.fromkeys(y for node in cuts for y in _kept(node))]


def _kept(node: Node) -> Sequence[Tensor]:
    """The outputs that derivatives take from a node that cuts runs: for a call of Python that has
    derivatives also the token, which carries what the call recorded."""
    has_none = isinstance(node.op, HostCall) and not node.op.is_differentiable
    if has_none or (node.op.regions and node.op.inlined is None):
        return [y for y in node.outputs if y.type is not TOKEN]
    return node.outputs


def with_known(graph: Graph, known: Iterable[Tensor]) -> Graph:
    """The graph with further inputs in place of nodes whose outputs are all known."""
    known = [*known]
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        env.update((x, builder.input_for(x)) for x in known)
        found = [node for node in graph.nodes if node.op.cuts_runs and env.keys() >= {*_kept(node)}]
        env.update((y, FirstToken()()) for node in found for y in node.outputs if y not in env)
        replay([node for node in graph.nodes if not env.keys() >= {*node.outputs}], env)
        return builder.finish([env[y] for y in graph.outputs])


def _factor_graph(
    body: Graph, given: tuple[bool, ...]
) -> tuple[Graph, tuple[tuple[int, int], ...]]:
    """For a diagonal body, the derivatives of outputs by the given inputs, as a graph of its
    inputs, and `(input, output)` for each."""
    return body.cached(("factors", given), lambda: _make_factor_graph(body, given))


def _make_factor_graph(
    body: Graph, given: tuple[bool, ...]
) -> tuple[Graph, tuple[tuple[int, int], ...]]:
    with Builder(derived_name(body, "derivative")) as builder:
        env = copy_inputs(body, builder)
        replay(body.nodes, env)
        ys = [env[y] for y in body.outputs]
        factors: list[Tensor] = []
        places: list[tuple[int, int]] = []
        for i, (x, is_given) in enumerate(zip(body.inputs, given, strict=True)):
            found = jvp(builder.nodes, ys, [env[x]], [full_like(env[x], 1)]) if is_given else []
            kept = [(j, factor) for j, factor in enumerate(found) if factor is not None]
            factors += [factor for _, factor in kept]
            places += [(i, j) for j, _ in kept]
        graph = builder.finish(factors)
    passed("derivative", graph)
    return simplify(graph), tuple(places)


def own_size(body: Graph, n: Any) -> Any:
    """The size of a loop as used in a graph widened by it: an open size gets a name that the graph
    does not use, since the caller's names may mean something else there."""
    if isinstance(n, int):
        return n
    shapes = [x.shape for x in body.input_types if isinstance(x.shape, tuple)]
    taken = frozenset[str]().union(*(dim_names(size) for shape in shapes for size in shape))
    return next(Dim.named(f"n{i}") for i in itertools.count() if f"n{i}" not in taken)


def _own_types(types: Sequence[TensorType]) -> list[TensorType]:
    """The types with fresh names, one for each distinct open size."""
    names: dict[Any, Dim] = {}

    def own(size: Any) -> Any:
        return (
            size if isinstance(size, int) else names.setdefault(size, Dim.named(f"d{len(names)}"))
        )

    return [
        type
        if type.is_static or isinstance(type.shape, ShapeVariable)
        else type.with_shape(tuple(map(own, type.shape)))
        for type in types
    ]


def naming(tensors: Iterable[Tensor], given: Iterable[Tensor]) -> list[Tensor]:
    """The tensors that determine an open size that nothing in `given` does. They are inputs, and
    results of Python functions. A graph derived from a body takes them too, whether it reads them
    or not."""
    bound = set[str]().union(*(bound_names(x.type) for x in given))
    found: list[Tensor] = []
    for x in tensors:
        names = bound_names(x.type)
        if not names <= bound:
            bound |= names
            found.append(x)
    return found


def _pruned_body(body: Graph, used: tuple[bool, ...]) -> tuple[Graph, tuple[bool, ...]]:
    outputs = tuple(y for y, is_used in zip(body.outputs, used, strict=True) if is_used)
    small = dead_code(body) if all(used) else _with_some(body, used)
    read = {x for node in small.nodes for x in node.inputs}.union(small.outputs)
    read_inputs = [x for x in small.inputs if x in read]
    kept = {*read_inputs, *naming(small.inputs, read_inputs)}
    keep = tuple(x in kept for x in small.inputs)
    inputs = tuple(x for x, is_kept in zip(small.inputs, keep, strict=True) if is_kept)
    if len(inputs) == len(body.inputs) and len(outputs) == len(body.outputs) and small is body:
        return body, keep
    small = Graph(small.name, inputs, small.nodes, small.outputs)
    small.cache["pruned", (True,) * len(outputs)] = small, (True,) * len(inputs)
    return small, keep
