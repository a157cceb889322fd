"""CustomCall: a graph with its own backward graph, which replaces its derivative.

The backward is an ordinary graph, so that one user function serves every derivative: reverse mode
calls it, forward mode transposes it, loops widen it, and higher orders differentiate it.
Transposing requires it to be linear in the cotangents; an error names what violates that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from tracegraph.calls.call import Call, as_tuple, call, derived_name, own_size
from tracegraph.core.recursion_limit import headroom
from tracegraph.core.shapes import Size, static_shape
from tracegraph.core.source import Source
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch, MissingRuleError, fail
from tracegraph.ir.builder import Builder, copy_inputs, inline, replay
from tracegraph.ir.op import Batched, Derivative, Entered, Flow, KnownValues, MissingRule, Tangents
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import Sum, full, stack
from tracegraph.ops.constant import Constant
from tracegraph.ops.contract import Bilinear
from tracegraph.ops.elementwise import (
    Complex,
    Discrete,
    Div,
    FloorMod,
    Mul,
    MulNoNan,
    PreventGradient,
    Select,
    Sign,
    SteepDiv,
    StopGradient,
    TruncateMod,
)
from tracegraph.ops.movement import Movement
from tracegraph.ops.shape import Reshape
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.registry import is_registered, registry_version
from tracegraph.passes.simplify import dead_code, simplify
from tracegraph.passes.sparsity import propagate
from tracegraph.passes.specialise import specialise
from tracegraph.passes.vectorise import stacked_outputs, vectorise
from tracegraph.passes.walk import at_places, path_between, pull_back


class CustomCall(Call):
    """The outputs of `body`, whose derivative is `backward`.

    `backward` takes the inputs of the body and a cotangent for each of the first differentiable
    outputs, as many as it has inputs left. Its outputs are the cotangents of the inputs at the
    positions `sources`; of the other inputs the outputs do not depend. `forward`, where it is
    given, takes the inputs of the body and tangents of the sources, and returns the tangents of
    those outputs; otherwise forward mode transposes the backward.
    """

    body: Graph
    backward: Graph
    sources: tuple[int, ...]
    forward: Graph | None = None

    #: Its outputs belong together: the backward knows them by position.
    can_prune = False
    is_transparent = False

    @property
    def chosen_gradient(self) -> Graph | None:
        return self.backward

    def recorded(self) -> CustomCall:
        return self

    def flow(self, flows: Sequence[Flow]) -> Flow:
        sources = sum(1 << i for i in self.sources)
        targets = set(self.targets)
        given = (sources if i in targets else 0 for i in range(len(self.body.outputs)))
        return Flow(flows[0].values, tuple(given))

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        found = super().infer(*types)
        problem = self._misfit()
        if problem:
            raise Mismatch(
                f"@{self.backward.name} is not a backward of @{self.body.name}: {problem}"
            )
        return found

    @property
    def targets(self) -> list[int]:
        """The positions of the outputs whose cotangents the backward takes."""
        count = len(self.backward.inputs) - len(self.body.inputs)
        return _differentiable(self.body.outputs)[:count]

    def _misfit(self) -> str:
        """How the backward fails to fit the body; empty if it fits."""
        body, backward, sources = self.body, self.backward, self.sources
        most = len(body.inputs) + len(_differentiable(body.outputs))
        if not len(body.inputs) <= len(backward.inputs) <= most:
            return f"it takes {len(backward.inputs)} inputs, not {len(body.inputs)} to {most}"
        if len(sources) != len(backward.outputs):
            return f"it has {len(backward.outputs)} outputs for {len(sources)} sources"
        if len(set(sources)) < len(sources) or not set(sources) <= set(
            _differentiable(body.inputs)
        ):
            return f"the sources {list(sources)} are not distinct differentiable inputs"
        wanted = (*body.input_types, *(body.outputs[i].type for i in self.targets))
        for place, (given, type) in enumerate(zip(backward.input_types, wanted, strict=True)):
            if not given.fits(type):
                return f"its input {place} is {given}, and it must be {type}"
        for place, given in zip(sources, backward.output_types, strict=True):
            if not given.fits(body.inputs[place].type):
                return f"its cotangent of {body.inputs[place].type} is {given}"
        return self._forward_misfit()

    def _forward_misfit(self) -> str:
        if self.forward is None:
            return ""
        body, forward = self.body, self.forward
        inputs = (*body.input_types, *(body.inputs[i].type for i in self.sources))
        outputs = tuple(body.outputs[i].type for i in self.targets)
        for given, wanted in ((forward.input_types, inputs), (forward.output_types, outputs)):
            if len(given) != len(wanted) or not all(map(TensorType.fits, given, wanted)):
                return f"@{forward.name} has {_listed(given)}, and it must have {_listed(wanted)}"
        return ""

    def vjp(self, *values: Any) -> Derivative:
        count = len(self.body.outputs)
        gs, ys, xs = values[:count], values[count : 2 * count], values[2 * count :]
        seeds = [full(0, ys[i].type) if gs[i] is None else gs[i] for i in self.targets]
        if all(gs[i] is None for i in self.targets):
            return (None,) * len(xs)
        return at_places(self.sources, call(self.backward, [*xs, *seeds]), len(xs))

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        xs = values[len(self.body.outputs) :]
        given = {i: t for i in self.sources if (t := tangents[i]) is not None}
        if not given:
            return (None,) * len(self.body.outputs)
        graph, places = self._transposed(tuple(given))
        return at_places(places, call(graph, [*xs, *given.values()]), len(self.body.outputs))

    @property
    def has_forward(self) -> bool:
        """Whether forward mode exists: the backward is linear in its cotangents."""
        try:
            self._transposed(self.sources)
        except MissingRuleError:
            return False
        return True

    def specialised(self, types: Sequence[TensorType]) -> CustomCall:
        body = specialise(self.body, types)
        seeds = [body.outputs[i].type for i in self.targets]
        backward = specialise(self.backward, [*types, *seeds])
        if self.forward is None:
            return type(self)(body, backward, self.sources)
        forward = specialise(self.forward, [*types, *(types[i] for i in self.sources)])
        return type(self)(body, backward, self.sources, forward)

    @property
    def agrees_with_forward(self) -> bool:
        """Whether forward mode exists and its transpose is the backward, in either direction: no
        chosen gradient is on the path by which the backward depends on its cotangents."""
        return self.has_forward and not self.backward.cached(
            ("has_choices", registry_version()), lambda: _has_choices(self.backward, self._seeds)
        )

    @property
    def _seeds(self) -> tuple[Tensor, ...]:
        """The inputs of the backward that are cotangents."""
        return self.backward.inputs[len(self.body.inputs) :]

    def batch(self, n: Size, batched: tuple[bool, ...], *xs: Tensor) -> Batched:
        op = self.of_known_rank(batched, xs)
        if op is not self:
            return op.batch(n, batched, *xs)
        targets = tuple(self.targets)
        n = own_size(self.body, n)
        body, flags = self.body.cached(
            ("vectorise_targets", batched, targets, n),
            lambda: _batched_body(self.body, targets, batched, n),
        )
        seeds = tuple(flags[i] for i in targets)
        backward = self.backward.cached(
            ("vectorise_backward", batched, seeds, n),
            lambda: _batched_backward(self.backward, self.sources, batched, seeds, n),
        )
        given = self.forward
        if given is None:
            return as_tuple(type(self)(body, backward, self.sources)(*xs)), flags
        tangents = tuple(batched[i] for i in self.sources)
        forward = given.cached(
            ("vectorise_forward", batched, seeds, n),
            lambda: _batched_forward(given, (*batched, *tangents), seeds, n),
        )
        return as_tuple(type(self)(body, backward, self.sources, forward)(*xs)), flags

    def is_diagonal_on(self, type: TensorType) -> bool:
        """Its derivative is that of the backward, not of what the body does."""
        return False

    def depends_given(self, values: KnownValues, *patterns: Pattern) -> tuple[Pattern, ...]:
        """The patterns of tangents, propagated through the transpose of the backward."""
        graph, given, known = self.entered(values, *patterns)
        total = patterns[0].total
        _, places = self._pushed(self.sources)
        outputs = [static_shape(t.shape) for t in self._sized_body(patterns).output_types]
        nothing = [Pattern.nothing(shape, total) for shape in outputs]
        found = dict(zip(places, propagate(graph, given, known, total), strict=True))
        return tuple(found.get(i, p) for i, p in enumerate(nothing))

    def entered(self, values: KnownValues, *patterns: Pattern) -> Entered:
        try:
            graph, _ = self._pushed(self.sources)
        except MissingRuleError:
            raise MissingRule(self, "sparsity") from None
        outputs = self._sized_body(patterns).output_types
        total = patterns[0].total
        seeds = [Pattern.nothing(static_shape(outputs[i].shape), total) for i in self.targets]
        given = (*(p.emptied() for p in patterns), *seeds, *(patterns[i] for i in self.sources))
        formal = zip(graph.input_types, given, strict=True)
        pushed = specialise(graph, [type.with_shape(p.shape) for type, p in formal])
        return pushed, given, (*values, *[None] * (len(given) - len(values)))

    def _sized_body(self, patterns: Sequence[Pattern]) -> Graph:
        """The body at the sizes of the patterns."""
        pairs = zip(self.body.input_types, patterns, strict=True)
        return specialise(self.body, [type.with_shape(p.shape) for type, p in pairs])

    def _transposed(self, given: tuple[int, ...]) -> tuple[Graph, tuple[int, ...]]:
        """`(*inputs, *tangents of inputs) -> tangents of outputs`, and their positions."""
        key = "transposed", given, self.forward
        return self.backward.cached(key, lambda: self._without_seeds(given))

    def _without_seeds(self, given: tuple[int, ...]) -> tuple[Graph, tuple[int, ...]]:
        """Raises MissingRuleError if the derivative by a cotangent reads the cotangent."""
        graph, places = self._pushed(given)
        start, stop = len(self.body.inputs), len(self.backward.inputs)
        seeds = set(graph.inputs[start:stop])
        for node in graph.nodes:
            if not seeds.isdisjoint(node.inputs):
                _refuse(f"{node.op.name} is not linear in the cotangent", node.source)
        inputs = (*graph.inputs[:start], *graph.inputs[stop:])
        graph = Graph(graph.name, inputs, graph.nodes, graph.outputs)
        passed("transposed", graph)
        return graph, places

    def _pushed(self, given: tuple[int, ...]) -> tuple[Graph, tuple[int, ...]]:
        """`(*inputs, *cotangents, *tangents of inputs) -> tangents of outputs`, and their
        positions: the derivative of the backward by its cotangents, transposed."""
        key = "pushed", given, self.forward
        return self.backward.cached(key, lambda: self._push(given))

    def _push_forward(
        self, forward: Graph, given: tuple[int, ...]
    ) -> tuple[Graph, tuple[int, ...]]:
        """What `_push` returns, from the forward graph, with zeros for tangents not given."""
        body = self.body
        with Builder(derived_name(body, "jvp")) as builder:
            xs = [builder.input_like(x) for x in body.inputs]
            for seed in self._seeds:
                builder.input_like(seed)
            ts = {i: builder.input_like(xs[i]) for i in given}
            tangents = [ts[i] if i in ts else full(0, xs[i].type) for i in self.sources]
            graph = simplify(builder.finish(inline(forward, (*xs, *tangents))))
        pairs = zip(self.targets, graph.outputs, strict=True)
        places = [i for i, t in pairs if not _is_zero(t)]
        kept = [t for t in graph.outputs if not _is_zero(t)]
        return dead_code(graph.with_outputs(tuple(kept))), tuple(places)

    def _push(self, given: tuple[int, ...]) -> tuple[Graph, tuple[int, ...]]:
        if self.forward is not None:
            return self._push_forward(self.forward, given)
        body, backward = self.body, self.backward
        _check_linear(backward, backward.inputs[len(body.inputs) :])
        with Builder(derived_name(body, "jvp")) as builder:
            env = copy_inputs(backward, builder)
            gs = builder.inputs[len(body.inputs) :]
            ts = [builder.input(body.inputs[i].type, f"t{i}") for i in given]
            replay(backward.nodes, env)
            pairs = zip(self.sources, backward.outputs, strict=True)
            cotangents = {i: env[y] for i, y in pairs}
            targets = [cotangents[i] for i in given]
            path = path_between(tuple(builder.nodes), gs, targets)
            found = pull_back(path, targets, gs, ts)
            pairs = zip(self.targets, found, strict=True)
            kept = [(i, t) for i, t in pairs if t is not None]
            graph = builder.finish([t for _, t in kept])
        return simplify(graph), tuple(i for i, _ in kept)


def _has_choices(backward: Graph, seeds: Sequence[Tensor]) -> bool:
    """Whether a node between the cotangents and the gradients has a user-chosen derivative."""
    path = path_between(backward.nodes, seeds, backward.outputs)
    inner = [x for node in path for graph in node.op.graphs() for x in graph.all_nodes()]
    return any(_is_chosen(node) for node in (*path, *inner))


def _is_chosen(node: Node) -> bool:
    return is_registered(node.op) or node.op.chosen_gradient is not None


def _differentiable(tensors: Sequence[Tensor]) -> list[int]:
    return [i for i, x in enumerate(tensors) if x.type.dtype.is_differentiable]


def _listed(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def _batched_body(
    body: Graph, targets: tuple[int, ...], batched: tuple[bool, ...], n: Any
) -> tuple[Graph, tuple[bool, ...]]:
    """The body of n instances. Each has its own targets, even if they are equal: through the
    backward they may depend on inputs that the body does not compute them from."""
    wide, flags = vectorise(body, batched, n)
    own = tuple(flag or i in targets for i, flag in enumerate(flags))
    return stacked_outputs(wide, flags, own, n), own


def _batched_forward(
    forward: Graph, batched: tuple[bool, ...], targets: tuple[bool, ...], n: Any
) -> Graph:
    """The forward of n instances, whose tangents are batched as the outputs `targets` are."""
    return stacked_outputs(*vectorise(forward, batched, n), targets, n)


def _batched_backward(
    backward: Graph,
    sources: tuple[int, ...],
    batched: tuple[bool, ...],
    seeds: tuple[bool, ...],
    n: Any,
) -> Graph:
    """The backward of n instances: an input that they share gets the sum of their cotangents."""
    wide, flags = vectorise(backward, (*batched, *seeds), n)
    with Builder(wide.name) as builder:
        env = copy_inputs(wide, builder)
        replay(wide.nodes, env)
        outputs: list[Tensor] = []
        for place, y, flag in zip(sources, wide.outputs, flags, strict=True):
            g = env[y] if flag else stack(env[y], n)
            outputs.append(g if batched[place] else Sum((0,))(g))
        return builder.finish(outputs)


# Linearity in the cotangents.

#: Ops with jumps, which their derivatives do not show.
_STEPS = (Discrete, Sign, FloorMod, TruncateMod)


def _check_linear(backward: Graph, gs: Sequence[Tensor]) -> None:
    """Raises MissingRuleError for nodes that cannot be linear in `gs`: those that lose a derivative
    on the way, and terms that do not vanish with the cotangents."""
    vanishing = set(gs)
    _follow(backward, vanishing)
    for y in backward.outputs:
        if y not in vanishing and not _is_zero(y):
            _refuse("a gradient does not depend on the cotangent", y.source)


def _follow(graph: Graph, vanishing: set[Tensor], has_own_derivative: bool = False) -> None:
    """Collects the tensors that depend on those in `vanishing` and vanish with them. In the body of
    a custom gradient only the values count."""
    for node in live_nodes(graph.nodes, graph.outputs):
        if vanishing.isdisjoint(node.inputs):
            continue
        if isinstance(node.op, Call):
            vanishing.update(_through_body(node, vanishing, has_own_derivative))
            continue
        if has_own_derivative and isinstance(node.op, (StopGradient, PreventGradient)):
            vanishing.update(node.outputs)
            continue
        is_followed = len(node.depending(vanishing)) == len(node.outputs)
        if not is_followed or isinstance(node.op, _STEPS):
            _refuse(f"{node.op.name} loses the derivative by the cotangent", node.source)
        if not _vanishes(node, vanishing):
            _refuse(f"{node.op.name} does not vanish with the cotangent", node.source)
        vanishing.update(node.outputs)


def _through_body(node: Node, vanishing: set[Tensor], has_own_derivative: bool) -> list[Tensor]:
    """The outputs of a call that depend on tensors in `vanishing`."""
    assert isinstance(node.op, Call)
    body = node.op.body
    pairs = zip(body.inputs, node.inputs, strict=True)
    inside = {formal for formal, x in pairs if x in vanishing or _is_zero(x)}
    with headroom():
        _follow(body, inside, has_own_derivative or isinstance(node.op, CustomCall))
    return [y for formal, y in zip(body.outputs, node.outputs, strict=True) if formal in inside]


def _vanishes(node: Node, vanishing: set[Tensor]) -> bool:
    """Whether the outputs are zero where `vanishing` is, unless the node is not linear at all."""
    op = node.op
    zero = [x in vanishing or _is_zero(x) for x in node.inputs]
    if isinstance(op, (Mul, MulNoNan, Bilinear)):
        return any(zero)
    if isinstance(op, (Div, SteepDiv)):
        return zero[0]
    floating = [z for z, x in zip(zero, node.inputs, strict=True) if x.dtype.is_differentiable]
    return all(floating) if op.is_linear or isinstance(op, (Select, Complex)) else True


def _is_zero(x: Tensor) -> bool:
    """Whether every element of x is known to be 0."""
    if x.node is None:
        return False
    op = x.node.op
    if isinstance(op, Constant):
        return not op.value.any()
    return isinstance(op, (Movement, Reshape)) and all(map(_is_zero, x.node.inputs))


def _refuse(what: str, source: Source) -> NoReturn:
    fail(
        MissingRuleError,
        f"a custom gradient has no forward mode: {what}",
        source=source,
        fix="make the backward function linear in its cotangents, or use reverse mode",
    )
