"""Gradients between tensors of the same function, without a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracegraph import nest
from tracegraph.boundary.tracebacks import api_boundary
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
from tracegraph.errors import fail
from tracegraph.ir.builder import current
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

    Returns a list with one tensor, or None, for each of `xs`. Raises RuntimeError at top level,
    where `tg.GradientTape` takes its place.

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
    nodes = [node for node in trace.nodes if stopped.isdisjoint(node.outputs)]
    found = _found(nodes, targets, sources, seeds)
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
        matrix = None if slope is None else jacobian(tuple(trace.nodes), slope, [x])[0]
        if matrix is None:  # a linear function has no second derivative
            matrix = zeros_like_leaf(x, x.type.shape)
        found.append(matrix)
    return found


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
