"""What top-level code under a tape appends as one call: gradients, and compositions of many ops.

An undecorated training loop creates the same nodes in every iteration, and so the same derivative:
that is derived once per structure and place, and each iteration appends one call. The ops of a
loss, say, are traced once per place too, so that an iteration records, wires and differentiates one
node instead of dozens. In a graph under construction the ops themselves can be read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec

from tracegraph.calls.call import Call, DerivativeBuilder, as_tuple, call
from tracegraph.core.lru_cache import LRUCache
from tracegraph.core.source import here
from tracegraph.ir.builder import Builder, current
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import Constant
from tracegraph.passes.gradient import gradient
from tracegraph.passes.registry import registry_version
from tracegraph.passes.simplify import simplify

P = ParamSpec("P")

#: Graphs of each kind kept for the whole process; the least recently used are dropped first.
_LIMIT = 256


class _CachedGraph:
    """A derived graph, the slots of its primal inputs, which results exist, and a note."""

    __slots__ = ("graph", "is_connected", "note", "slots")

    def __init__(self, graph: Graph, slots: list[int], is_connected: list[bool], note: Any) -> None:
        self.graph = graph
        self.slots = slots
        self.is_connected = is_connected
        self.note = note


_gradients: LRUCache[Any, _CachedGraph] = LRUCache(_LIMIT)
_compositions: LRUCache[Any, Call] = LRUCache(_LIMIT)


class _StructuralKey:
    """Nodes by structure and place: tensors are numbered in the order in which nodes mention
    them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.key: list[Any] = []
        self.tensors: list[Tensor] = []
        self._slots: dict[int, int] = {}
        key, slots = self.key, self._slots
        for node in nodes:
            key += node.op, node.source.key  # errors name the lines of derived nodes
            for x in (*node.inputs, *node.outputs):  # hot path
                slot = slots.get(id(x))
                key.append(self._number(x) if slot is None else slot)

    def mention(self, x: Tensor) -> None:
        slot = self._slots.get(id(x))
        self.key.append(self._number(x) if slot is None else slot)

    def _number(self, x: Tensor) -> int:
        """The slot of a tensor that is mentioned first."""
        slot = self._slots[id(x)] = len(self.tensors)
        self.tensors.append(x)
        self.key.append(x.type)
        node = x.node
        if node is not None and type(node.op) is Constant:
            self.key.append(node.op)  # its value becomes part of the derived graph
        return slot

    def slot(self, x: Tensor) -> int:
        return self._slots[id(x)]


def cached_gradient(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    gs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """`passes.gradient.gradient`, as one call of a graph that is derived once."""
    return cached_call(
        ("gradient", len(ys)), nodes, (*ys, *xs), gs, lambda seeds: gradient(nodes, ys, xs, seeds)
    )


def cached_call(
    kind: Hashable,
    nodes: Sequence[Node],
    ends: Sequence[Tensor],
    seeds: Sequence[Tensor | None],
    derive: Callable[[list[Tensor | None]], list[Tensor | None]],
) -> list[Tensor | None]:
    """What `derive` makes of `nodes` between the tensors `ends`, as one call of a graph.

    `derive` receives an input of that graph for each seed and returns its results, None where
    unconnected. `kind` distinguishes derivations from the same nodes.
    """
    return _called(kind, nodes, ends, seeds, lambda inner: (derive(inner), None))[0]


def cached_call_with_note(
    kind: Hashable,
    nodes: Sequence[Node],
    ends: Sequence[Tensor],
    derive: Callable[[], tuple[list[Tensor | None], Any]],
) -> tuple[list[Tensor | None], Any]:
    """`cached_call` without seeds, where `derive` also returns a note that is cached."""
    return _called(kind, nodes, ends, [], lambda inner: derive())


def _called(
    kind: Hashable,
    nodes: Sequence[Node],
    ends: Sequence[Tensor],
    seeds: Sequence[Tensor | None],
    derive: Callable[[list[Tensor | None]], tuple[list[Tensor | None], Any]],
) -> tuple[list[Tensor | None], Any]:
    wiring = _StructuralKey(nodes)
    for x in ends:
        wiring.mention(x)
    given = [seed for seed in seeds if seed is not None]
    present = tuple(seed is not None for seed in seeds)
    key = (kind, tuple(wiring.key), present, registry_version())
    cached = _gradients.get(key)
    if cached is None:
        cached = _derive(seeds, derive, wiring)
        _gradients.put(key, cached)
    tensors = wiring.tensors
    inputs = [*(tensors[slot] for slot in cached.slots), *given]
    found = iter(call(cached.graph, inputs) if any(cached.is_connected) else ())
    return [next(found) if flag else None for flag in cached.is_connected], cached.note


def _derive(
    seeds: Sequence[Tensor | None],
    derive: Callable[[list[Tensor | None]], tuple[list[Tensor | None], Any]],
    wiring: _StructuralKey,
) -> _CachedGraph:
    with DerivativeBuilder("gradient") as builder:
        inner = [None if g is None else builder.input(g.type, f"g{i}") for i, g in enumerate(seeds)]
        found, note = derive(inner)
        outputs = builder.admit_all(tuple(g for g in found if g is not None))
    given = [seed for seed in inner if seed is not None]
    seed_ids = {id(seed) for seed in given}
    primals = {id(inner): outer for outer, inner in builder.take_residuals().items()}
    inputs = [x for x in builder.inputs if id(x) not in seed_ids]
    slots = [wiring.slot(primals[id(x)]) for x in inputs]
    graph = Graph("gradient", (*inputs, *given), tuple(builder.nodes), outputs)
    passed("derived", graph)
    return _CachedGraph(simplify(graph), slots, [g is not None for g in found], note)


def composition(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """`function`, whose ops are one call where a tape at top level follows an operand.

    What `function(*tensors, **attributes)` appends may depend on the types of the tensors and on
    the attributes, which are hashable, and on nothing else. Without a tape its ops are appended one
    by one, so that equal code at other places runs the same program: a call holds its place.
    """

    @functools.wraps(function)
    def composed(*tensors: Any, **attributes: Any) -> Tensor:
        builder = current()
        if not (builder.is_top_level and builder.follows(tensors)):
            return function(*tensors, **attributes)  # type: ignore[call-arg, arg-type]
        kinds = map(type, attributes.values())  # numbers of NumPy promote otherwise than equal ones
        types = [x.type for x in tensors]
        place = here().key, registry_version()  # its derivatives are kept with the graph
        key = (function, *place, *types, *attributes.items(), *kinds)
        op = _compositions.get(key)
        if op is None:
            body = _traced(function, tensors, attributes)
            op = _compositions.setdefault(key, Call(body).recorded())
        return as_tuple(op(*tensors))[0]

    return composed


def _traced(function: Callable[..., Tensor], tensors: Sequence[Tensor], attributes: Any) -> Graph:
    with Builder(function.__name__.strip("_")) as builder:
        inputs = [builder.input(x.type, f"x{i}") for i, x in enumerate(tensors)]
        return builder.finish([function(*inputs, **attributes)])
