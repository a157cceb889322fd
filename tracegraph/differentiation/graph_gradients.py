"""Gradients between tensors of the same function, without a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracegraph import nest
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.differentiation.outer_tape import nodes_around
from tracegraph.differentiation.tape import (
    TapeError,
    UnconnectedGradients,
    as_unconnected,
    cotangent_of,
    leaf_tensor,
    refuse_source,
    refuse_target,
    zeros_like_leaf,
)
from tracegraph.effects.prefix import traces_around
from tracegraph.errors import fail
from tracegraph.explanation.history import alive, node_before
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.jacobians.jacobian import jacobian
from tracegraph.passes.gradient import gradient
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import Trace

if TYPE_CHECKING:
    from tracegraph.typing import Nest, Tensors


@api_boundary
def gradients(
    ys: Tensors,
    xs: Tensors,
    grad_ys: Nest = None,
    name: str | None = None,
    gate_gradients: bool = False,
    aggregation_method: object = None,
    stop_gradients: Tensors | None = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Tensor]:
    """The sum of the derivatives of `ys` with respect to each of `xs`, inside a `tg.function`.

    - `ys`, `xs`: a tensor or a Variable, or a list of them.
    - `grad_ys`: cotangents of the ys; None, or a None entry, means ones.
    - `stop_gradients`: tensors to treat as constants: no gradient flows through them to the
      tensors they are computed from.
    - `unconnected_gradients`: "none" gives None for an x on which no y depends, "zero" gives zeros.
    - `gate_gradients`, `aggregation_method`: accepted but ignored.

    In the body of a branch or a loop, and in a function that another one calls, derivatives go
    through what the enclosing functions computed, and through the rows that a loop takes of a
    tensor. The other arguments of a body, as the variables of a loop, are sources of their own: no
    derivative goes through them to what they began with. What was computed at top level is
    constant.

    Returns a list with one tensor, or None, for each of `xs`. Raises RuntimeError at top level,
    where `tg.GradientTape` takes its place, and where a gradient would be None although the target
    was computed from the source at top level.

    >>> @tg.function
    ... def slope(x):
    ...     return tg.gradients(x**3, x)
    >>> [g.numpy() for g in slope(tg.constant(2.0))]
    [np.float32(12.0)]
    """
    trace = _trace("gradients")
    unconnected = as_unconnected(unconnected_gradients)
    targets, sources = _tensors(ys, trace, refuse_target), _tensors(xs, trace, refuse_source)
    given = [None] * len(targets) if grad_ys is None else _leaves(grad_ys)
    if len(given) != len(targets):
        fact = f"gradients: {len(given)} cotangents for {len(targets)} targets"
        fail(TapeError, fact, fix="give one for each target, None meaning ones")
    seeds = [cotangent_of(g, y) for g, y in zip(given, targets, strict=True)]
    stopped = set(_tensors([] if stop_gradients is None else stop_gradients, trace, refuse_source))
    nodes = [node for node in _nodes(trace, sources) if stopped.isdisjoint(node.outputs)]
    found = _found(nodes, targets, sources, seeds)
    for x, g in zip(sources, found, strict=True):
        if g is None:
            _check_not_lost(trace, [y for y in targets if y not in stopped], x)
    if unconnected is UnconnectedGradients.ZERO:
        return [zeros_like_leaf(x) if g is None else g for g, x in zip(found, _leaves(xs))]
    return found  # type: ignore[return-value]


@api_boundary
def hessians(
    ys: Tensors,
    xs: Tensors,
    gate_gradients: bool = False,
    aggregation_method: object = None,
    name: str = "hessians",
) -> list[Tensor]:
    """The second derivatives of the sum of `ys` with respect to each of `xs`, in a `tg.function`.

    Returns a list with one tensor for each x, of shape `x.shape + x.shape`. Arguments and errors
    are those of `gradients`.

    >>> @tg.function
    ... def curvature(x):
    ...     return tg.hessians(tg.reduce_sum(x**3), x)
    >>> curvature(tg.constant([1.0, 2.0]))[0].numpy()
    array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    trace = _trace("hessians")
    sources = _tensors(xs, trace, refuse_source)
    found: list[Any] = []
    for x, slope in zip(sources, gradients(ys, sources), strict=True):
        matrix = None if slope is None else jacobian(_nodes(trace, [x]), slope, [x])[0]
        if matrix is None:  # a linear function has no second derivative
            matrix = zeros_like_leaf(x, x.type.shape)
        found.append(matrix)
    return found


def _nodes(trace: Trace, sources: Sequence[Tensor]) -> tuple[Node, ...]:
    """The nodes of a trace, after those of the enclosing ones that lie between it and sources."""
    return *nodes_around(trace, sources), *trace.nodes


def _found(
    nodes: Sequence[Node], ys: list[Tensor], xs: list[Tensor], seeds: list[Tensor | None]
) -> list[Tensor | None]:
    places = [k for k, y in enumerate(ys) if y.dtype.is_differentiable]
    own = [x for x in dict.fromkeys(xs) if x.dtype.is_differentiable]
    if not places or not own:
        return [None] * len(xs)
    found = gradient(nodes, [ys[k] for k in places], own, [seeds[k] for k in places])
    by_source = dict(zip(own, found, strict=True))
    return [by_source.get(x) for x in xs]


def _check_not_lost(trace: Trace, ys: Sequence[Tensor], x: Tensor) -> None:
    """Rejects a source from which a target was computed at top level, where no node is kept."""
    origins: dict[Tensor, Tensor] = {}
    for around in traces_around(trace):
        origins.update((own, outer) for outer, own in around.captures.items())
        origins.update({**around.rows, **around.copies})
        origins.update((v.handle_in(around), v.handle) for v in around.variables)
    source = _origin(x, origins)
    for y in _ancestors(ys, origins, inside=True):
        if y is not source and source in _ancestors([y], origins, inside=False):
            fail(
                TapeError,
                f"gradients: the target is computed from {y.type}, and that was computed from the "
                "source at top level, where it is not recorded how",
                operands=[operand_text(y), operand_text(source)],
                fix="compute it in the function too, or use a tg.GradientTape around all of it",
            )


def _origin(x: Tensor, origins: dict[Tensor, Tensor]) -> Tensor:
    while x in origins:
        x = origins[x]
    return x


def _ancestors(ys: Sequence[Tensor], origins: dict[Tensor, Tensor], inside: bool) -> set[Tensor]:
    """The tensors at top level from which others are computed: `inside` traces, those that are
    captured; if not, those that were computed at top level, as far as it is known."""
    found: set[Tensor] = set()
    waiting, seen = [*ys], set(ys)
    while waiting:
        y = _origin(waiting.pop(), origins)
        is_inside = y.node is not None and isinstance(y.node.builder, Trace)
        if not is_inside:
            found.add(y)
        node = node_before(y) if is_inside or not inside else None
        if node is not None and (node.op is None or not node.op.stops_gradients):
            new = [x for x in alive(node.inputs) if x not in seen and x.dtype.is_differentiable]
            seen.update(new)
            waiting += new
    return found


def _tensors(nested: Any, trace: Trace, refuse: Callable[[Any], None]) -> list[Tensor]:
    """The trace's tensor for each tensor or Variable; `refuse` handles anything else."""
    leaves = _leaves(nested)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, Variable)):
            refuse(leaf)
    return [leaf_tensor(leaf, trace) for leaf in leaves]


def _leaves(nested: Any) -> list[Any]:
    """The items of a list, including None, or the single value if it is not a list."""
    return nest.flatten_structure(nested, none_is_leaf=True)[0]


def _trace(op: str) -> Trace:
    builder = current()
    if isinstance(builder, Trace):
        return builder
    fact = f"{op}: it works only inside a @tg.function, and this is the top level"
    fail(TapeError, fact, fix="use tg.GradientTape, or call it in a @tg.function")


__all__ = ["gradients", "hessians"]
