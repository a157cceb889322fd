"""A graph's assumptions about its open sizes, as JAX constraints.

If an op needs two sizes to be equal, tracing assumes that they are, and each run checks it. A
program for every size states these assumptions instead, and JAX checks them at each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax import errors, export

from lowering import sizes
from tracegraph.core.shapes import (
    Dim,
    Size,
    dim_names,
    least,
    parse_size,
    substitute_size,
    taken_equal,
)
from tracegraph.ir.tensor import Graph, Node, get_type
from tracegraph.ops.contract import Conv
from tracegraph.ops.index import DynamicSlice, DynamicUpdateSlice
from tracegraph.ops.shape import Slice
from tracegraph.ops.sort import TopK
from tracegraph.passes.specialise import specialise

Pair = tuple[Size, Size]


def open_sizes(
    graph: Graph, names: Sequence[str], constants: Sequence[Any], stated: Sequence[str]
) -> Mapping[str, Any]:
    """JAX's sizes for the `names` of open ones, subject to the stated constraints and to those that
    `graph` assumes.

    Among equal names the first remains. The last inputs of the graph are the `constants`.
    """
    sizes.symbolic(names, stated)  # refuses constraints that are inconsistent by themselves
    solved: dict[str, Size] = {}
    kept = [text for text in stated if not _is_solved(_parsed(text, names), names, solved)]
    pairs, ordered = _assumed(graph)
    pairs = [*_of_constants(graph, constants), *pairs]
    others = [pair for pair in pairs if not _is_solved(pair, names, solved)]
    equal = [f"{name} == {size}" for name, size in solved.items() if name in names]
    texts = [_text(*(substitute_size(size, solved) for size in pair)) for pair in others]
    constraints = [*_accepted(names, [], equal), *kept]
    sizes.symbolic(names, constraints)  # refuses constraints that contradict the graph
    constraints += _accepted(names, constraints, texts)
    known = sizes.symbolic(names, constraints)
    for pair in dict.fromkeys(ordered):
        low, high = (substitute_size(size, solved) for size in pair)
        needed = _needed(low, high, known)
        if needed:
            constraints.append(needed)
            known = sizes.symbolic(names, constraints)
    return known


def _needed(low: Size, high: Size, known: Mapping[str, Any]) -> str:
    """The constraint that one size is at most another, if JAX needs it stated."""
    difference = high - low
    if isinstance(difference, int):
        return ""  # known; if it does not suit an op, that op is refused
    rest = sizes.evaluated(difference, known)
    return "" if _is_decided(rest) else f"{rest} >= 0"


def _is_decided(size: Any) -> bool:
    """Whether JAX knows if a size is 0 or more."""
    try:
        return (size >= 0) in (True, False)
    except errors.InconclusiveDimensionOperation:
        return False


def _accepted(names: Sequence[str], known: Sequence[str], texts: Iterable[str]) -> list[str]:
    """The constraints that JAX accepts. If others are needed, the op is refused."""
    found: list[str] = []
    for text in map(sizes.jax_name, dict.fromkeys(texts)):
        if _is_constraint(text, names, [*known, *found]):
            found.append(text)
    return found


def _is_constraint(text: str, names: Sequence[str], known: Sequence[str]) -> bool:
    try:
        export.symbolic_shape(", ".join(map(sizes.jax_name, names)), constraints=[*known, text])
    except (ValueError, NotImplementedError):  # JAX allows one equation per left-hand side
        return False
    return True


def _of_constants(graph: Graph, constants: Sequence[Any]) -> Iterator[Pair]:
    """The equations for the open sizes of constants."""
    for x, array in zip(graph.inputs[len(graph.inputs) - len(constants) :], constants, strict=True):
        if not x.type.is_static:
            yield from zip(x.type.shape, array.shape, strict=True)


def _assumed(graph: Graph) -> tuple[list[Pair], list[Pair]]:
    """The sizes that the nodes of a graph, and of those that it calls, assume to be equal, and
    those that they assume to be ordered."""
    equal: list[Pair] = []
    ordered: list[Pair] = []
    left, seen = [graph], {graph}
    while left:
        for node in left.pop().nodes:
            types = tuple(map(get_type, node.inputs))
            regions = node.op.regions
            for region in regions:
                body = specialise(region.graph, node.op.types_inside(region, types))
                if body not in seen:
                    seen.add(body)
                    left.append(body)
            if not regions and not all(type.is_static for type in types):
                with taken_equal() as pairs:
                    node.op.infer(*types)  # again: the memoised types record no assumptions
                equal += pairs
            ordered += _in_order(node)
    return equal, ordered


def _in_order(node: Node) -> Iterator[Pair]:
    """Pairs of sizes of which a node assumes that the first is at most the second."""
    op, shapes = node.op, [x.type.shape for x in node.inputs]
    if isinstance(op, Slice):
        for bounds in zip(op.start, op.stop, shapes[0], strict=True):
            yield from itertools.pairwise((0, *bounds))
    elif isinstance(op, DynamicSlice):
        yield from zip(op.sizes, shapes[0], strict=True)
    elif isinstance(op, DynamicUpdateSlice):
        yield from zip(shapes[1], shapes[0], strict=True)
    elif isinstance(op, TopK):
        yield op.k, shapes[0][-1]
    elif isinstance(op, Conv):  # a window is at most as large as what it slides over
        yield from ((1, size) for size in node.outputs[0].type.shape[1:-1])


def _parsed(text: str, names: Iterable[str]) -> Pair | None:
    """The sizes that a JAX constraint equates."""
    left, equal, right = text.partition("==")
    try:
        pair = parse_size(left.strip()), parse_size(right.strip())
    except ValueError:  # it uses words that we do not have
        return None
    ours = {sizes.jax_name(name): Dim.named(name) for name in names}
    return (substitute_size(pair[0], ours), substitute_size(pair[1], ours)) if equal else None


def _is_solved(pair: Pair | None, names: Sequence[str], solved: dict[str, Size]) -> bool:
    """Whether two sizes are equal given `solved`, possibly after solving for one more name."""
    if pair is None:
        return False
    left, right = (substitute_size(size, solved) for size in pair)
    difference = left - right
    if isinstance(difference, int):
        return difference == 0
    found = max(_solutions(difference, names), default=None, key=lambda found: found[0])
    if found is None:
        return False
    _, name, size = found
    for known, value in solved.items():
        solved[known] = substitute_size(value, {name: size})
    solved[name] = size
    return True


def _solutions(zero: Dim, names: Sequence[str]) -> Iterator[tuple[Any, str, Size]]:
    """Names for which the equation `zero == 0` can be solved, with the solution and its rank.

    Solutions that are at least 1 for all sizes rank first, then names that come late.
    """
    order = {name: place for place, name in enumerate(names)}
    for monomial, coefficient in zero.terms:
        if len(monomial) != 1 or monomial[0][1] != 1 or abs(coefficient) != 1:
            continue
        name = monomial[0][0]
        if isinstance(name, str):
            size = Dim.named(name) - zero * coefficient
            if name not in dim_names(size):
                yield ((least(size) or -1) >= 1, order.get(name, len(names))), name, size


def _text(left: Size, right: Size) -> str:
    """A JAX constraint that equates two sizes."""
    for one, other in ((left, right), (right, left)):
        for atom, coefficient in _atom(one):
            function, *operands = atom
            if coefficient == 1 and function in _ORDER and other in operands:
                bound = operands[1 - operands.index(other)]
                return f"{other} {_ORDER[function]} {bound}"
            if function == "floordiv" and [other, coefficient] == operands:
                return f"mod({other}, {coefficient}) == 0"
    return f"{left} == {right}"


#: The relation of a size to another one, if it is the larger or the smaller of the two.
_ORDER = {"max": ">=", "min": "<="}


def _atom(size: Size) -> Iterator[tuple[tuple[Any, ...], int]]:
    """The function of sizes, and the factor it is multiplied by, that make up a size."""
    if isinstance(size, Dim) and len(size.terms) == 1:
        ((monomial, coefficient),) = size.terms
        if len(monomial) == 1 and monomial[0][1] == 1 and not isinstance(monomial[0][0], str):
            yield monomial[0][0], coefficient
