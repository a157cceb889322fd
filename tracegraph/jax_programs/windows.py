"""JAX primitives that slide a window over a tensor, except convolutions.

Windows are combined axis by axis, from one strided slice per position along the axis. Among equal
elements, the first gets the derivative of the extreme, as in JAX's scatter to the selected one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegraph.core.types import DType, TensorType
from tracegraph.ir.builder import current
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.jax_programs.equations import Equation, converts, whole_numbers
from tracegraph.ops.broadcast import full, zeros_of
from tracegraph.ops.elementwise import ADD, AND, MAXIMUM, MINIMUM, MUL, LogicalOr
from tracegraph.ops.shape import Pad, slice_axis
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient


def _lowest(dtype: DType) -> Any:
    if dtype.is_bool:
        return False
    return -np.inf if dtype.is_floating else dtype.min


def _highest(dtype: DType) -> Any:
    if dtype.is_bool:
        return True
    return np.inf if dtype.is_floating else dtype.max


#: How the elements of a window are combined, and the padding value for it.
_COMBINED: dict[str, tuple[Op, Callable[[DType], Any]]] = {
    "add": (ADD, lambda dtype: 0),
    "mul": (MUL, lambda dtype: 1),
    "max": (MAXIMUM, _lowest),
    "min": (MINIMUM, _highest),
    "and": (AND, lambda dtype: True if dtype.is_bool else dtype.max if dtype.is_unsigned else -1),
    "or": (LogicalOr(), lambda dtype: 0),
}


@converts("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _reduce_window(eqn: Equation, x: Tensor) -> Tensor:
    kind = eqn.name.removeprefix("reduce_window_")
    return _windows(eqn, "add" if kind == "sum" else kind, x)


@converts("reduce_window")
def _general_reduce_window(eqn: Equation, x: Tensor, *start: Tensor) -> Tensor:
    inner = eqn.params["jaxpr"]
    names = [inner_eqn.primitive.name for inner_eqn in inner.eqns]
    if len(start) != 1 or len(names) != 1 or names[0] not in _COMBINED:
        eqn.refuse(
            "reduce_window with a function of its own has no counterpart",
            f"combine windows with one of {', '.join(_COMBINED)}, such as lax.add",
        )
    op, _ = _COMBINED[names[0]]
    return op(*eqn.broadcast(_windows(eqn, names[0], x), start[0]))


def _windows(eqn: Equation, kind: str, x: Tensor) -> Tensor:
    params, ones = eqn.params, (1,) * x.ndim
    op, neutral = _COMBINED[kind]
    value = full(neutral(x.dtype), TensorType(x.dtype))
    before, after = map(whole_numbers, zip(*params["padding"])) if x.ndim else ((), ())
    interior = tuple(step - 1 for step in whole_numbers(params.get("base_dilation") or ones))
    if any((*before, *after, *interior)):
        x = Pad(before, after, interior)(x, value)
    sizes, steps = (
        whole_numbers(params["window_dimensions"]),
        whole_numbers(params["window_strides"]),
    )
    gaps = whole_numbers(params.get("window_dilation") or ones)
    for axis in reversed(range(x.ndim)):
        x = _along(op, x, axis, sizes[axis], steps[axis], gaps[axis])
    return x


def _along(op: Op, x: Tensor, axis: int, size: int, step: int, gap: int) -> Tensor:
    """The windows along one axis."""
    if size == 1 and step == 1:
        return x
    reach = (size - 1) * gap + 1
    count = (x.type.shape[axis] - reach) // step + 1
    if isinstance(count, int) and count <= 0:  # no window fits
        return slice_axis(x, axis, 0, 0)
    found = None
    for place in range(0, reach, gap):
        part = slice_axis(x, axis, place, place + (count - 1) * step + 1, step)
        found = part if found is None else op(found, part)
    assert found is not None
    return found


@converts("select_and_scatter_add")
def _select_and_scatter_add(eqn: Equation, source: Tensor, x: Tensor) -> Tensor:
    y, nodes = _selected(eqn, x)
    (found,) = gradient(nodes, [y], [x], [source])
    return zeros_of(x) if found is None else found


@converts("select_and_gather_add")
def _select_and_gather_add(eqn: Equation, tangents: Tensor, x: Tensor) -> Tensor:
    y, nodes = _selected(eqn, x)
    (found,) = jvp(nodes, [y], [x], [tangents])
    return zeros_of(y) if found is None else found


def _selected(eqn: Equation, x: Tensor) -> tuple[Tensor, list[Node]]:
    """The extremes of the windows, and the nodes that found them."""
    builder = current()
    start = len(builder.nodes)
    kind = "max" if eqn.params["select_prim"].name == "ge" else "min"
    y = _windows(eqn, kind, x)
    return y, builder.nodes[start:]
