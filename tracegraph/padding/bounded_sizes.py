"""A graph that finds sizes of which bounds are known, computed on values of those largest sizes.

What only a run knows cannot be a shape in a loop, whose steps are parts of one program. But `x[:n]`
has at most as many rows as x. So a step is rewritten as a graph for padded inputs is: each such
size has its largest value, and the true one is a scalar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracegraph.control_passes.ranges import range_of
from tracegraph.core.shapes import Dim, Size, dim_names, maximum, substitute_size
from tracegraph.core.source import sourced
from tracegraph.errors import Mismatch, ShapeError
from tracegraph.ir.builder import Builder, copy_inputs
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.constant import DimSize, RuntimeSize
from tracegraph.ops.elementwise import Cast, Maximum, Minimum, Sub
from tracegraph.padding.axis_layouts import Padding
from tracegraph.padding.padded import CannotPad, walk
from tracegraph.passes.simplify import simplify
from tracegraph.passes.specialise import first_size_finder, names_chosen, with_known_sizes

#: The most values of a size of which each is tried.
_MOST_TRIED = 4096


def with_largest_sizes(graph: Graph) -> Graph | str:
    """`graph`, where each size that it finds has its largest value. The reason if one has no bound
    that is known, if an op has no form for padded operands, or if a result would have such a
    size."""
    try:
        return _with_largest_sizes(graph)
    except CannotPad as reason:
        return str(reason)


def _with_largest_sizes(graph: Graph) -> Graph:
    graph = _with_bounded_regions(graph)
    finders = [node for node in graph.nodes if type(node.op) is RuntimeSize]
    bounds = {name: _bound(node) for node in finders for name in names_chosen(node)}
    if not bounds:
        return graph
    try:
        _check_assumptions(graph, bounds)
    except (Mismatch, ShapeError) as error:
        raise CannotPad(f"it is taken to be another size: {error}") from None
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        padding = Padding({}, finds_sizes=True)
        walk(graph, env, padding)
        found = [env[y] for y in graph.outputs]
        open_output = next((y for y in found if any(map(padding.is_open, y.type.shape))), None)
        if open_output is not None:
            raise CannotPad("a result of the step has it")
        made = builder.finish(found)
    _check_growth(padding.growing, bounds)
    inputs = tuple(env[x] for x in graph.inputs)
    made = Graph(graph.name, inputs, made.nodes, made.outputs)
    return simplify(with_known_sizes(made, made.input_types, bounds))


def _with_bounded_regions(graph: Graph) -> Graph:
    """`graph`, where the graphs in it find no sizes."""
    if not any(map(first_size_finder, graph.graphs())):
        return graph
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        for node in graph.nodes:
            op = node.op
            if op.regions and any(map(first_size_finder, (region.graph for region in op.regions))):
                op = op.with_regions([_with_largest_sizes(region.graph) for region in op.regions])
            with sourced(node.source):
                outputs = builder.add(op, tuple([env[x] for x in node.inputs]))
            env.update(zip(node.outputs, outputs, strict=True))
        made = builder.finish([env[y] for y in graph.outputs])
    return Graph(graph.name, tuple(env[x] for x in graph.inputs), made.nodes, made.outputs)


def _bound(node: Node) -> Size:
    """The largest value of a size that a node finds."""
    bound = largest_value(node.inputs[0])
    if bound is None:
        raise CannotPad("nothing says how large it may become")
    return bound


def largest_value(x: Tensor) -> Size | None:
    """The largest value of an integer scalar, as a size; None if it is not evident."""
    if (found := range_of(x)) is not None:
        return found[1]
    if x.node is None:
        return None
    op, inputs = x.node.op, x.node.inputs
    match op:
        case DimSize():
            return op.size
        case Cast():
            return largest_value(inputs[0])
        case Minimum():
            return next(filter(None, map(largest_value, inputs)), None)
        case Maximum():
            one, other = map(largest_value, inputs)
            return None if one is None or other is None else maximum(one, other)
        case Sub() if is_at_least_0(inputs[1]):
            return largest_value(inputs[0])
    return None


def is_at_least_0(x: Tensor) -> bool:
    """Whether an integer scalar is seen to be 0 or more."""
    if (found := range_of(x)) is not None:
        return found[0] >= 0
    if x.node is None:
        return False
    op, inputs = x.node.op, x.node.inputs
    match op:
        case DimSize():
            return True
        case Cast():
            return is_at_least_0(inputs[0])
        case Minimum():
            return all(map(is_at_least_0, inputs))
        case Maximum():
            return any(map(is_at_least_0, inputs))
    return False


def _check_assumptions(graph: Graph, bounds: Mapping[str, Size]) -> None:
    """Raises what `specialise` raises, if the graph takes such a size to be another one: then it
    does not fit several values."""
    for less in (0, 1, 2):
        sizes = {name: _at_least_1(bound, less) for name, bound in bounds.items()}
        with_known_sizes(graph, graph.input_types, sizes)


def _at_least_1(bound: Size, less: int) -> Size:
    return max(bound - less, min(bound, 1)) if isinstance(bound, int) else bound - less


def _check_growth(sizes: Iterable[Size], bounds: Mapping[str, Size]) -> None:
    """Raises CannotPad if a size that follows from the others may exceed what it is where these are
    largest, such as 5 - n."""
    for size in sizes:
        names = sorted(dim_names(size) & bounds.keys())
        if not _grows(size, names, bounds):
            raise CannotPad(f"the size {size} does not grow with {' and '.join(names)}")


def _grows(size: Size, names: Sequence[str], bounds: Mapping[str, Size]) -> bool:
    if _is_sum_of_products(size):
        return True
    known = bounds[names[0]] if len(names) == 1 else None
    if not isinstance(known, int) or known > _MOST_TRIED:
        return False
    most = substitute_size(size, {names[0]: known})
    tried = [substitute_size(size, {names[0]: n}) for n in range(known)]
    return all(isinstance(n, int) for n in (most, *tried)) and max((most, *tried)) == most


def _is_sum_of_products(size: Size) -> bool:
    if not isinstance(size, Dim):
        return True
    atoms = [atom for monomial, _ in size.terms for atom, _ in monomial]
    return all(isinstance(atom, str) for atom in atoms) and all(
        c > 0 for monomial, c in size.terms if monomial
    )


__all__ = ["is_at_least_0", "largest_value", "with_largest_sizes"]
