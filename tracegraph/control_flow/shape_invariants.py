"""Shapes that a user says of the state of a loop, whose shapes here never change."""

from __future__ import annotations

from typing import Any

from tracegraph import nest
from tracegraph.control_flow.tensor_array import TensorArray
from tracegraph.core.tensorshape import TensorShape, TensorSpec, shape_of
from tracegraph.errors import DTypeError, ShapeError, fail, kind_of, shown
from tracegraph.operands.conversion import as_tensor


def check_invariants(op: str, loop_vars: Any, invariants: Any) -> None:
    """Refuses what is no shape, and a shape that a loop variable does not have."""
    shapes = _flat_shapes(invariants)
    for shape in shapes:
        if not isinstance(shape, (TensorShape, TensorSpec)):
            fix = "give tg.TensorShape, such as tg.TensorShape([None, 2]), or tg.TensorSpec"
            fail(
                DTypeError, f"{op}: a shape invariant is {kind_of(shape)}: {shown(shape)}", fix=fix
            )
    leaves = nest.flatten(loop_vars)
    for leaf, shape in zip(leaves, shapes) if len(leaves) == len(shapes) else ():
        own = shape_of(as_tensor(leaf).type.shape)
        invariant = shape if isinstance(shape, TensorShape) else shape.shape
        if not isinstance(leaf, TensorArray) and not invariant.is_compatible_with(own):
            fact = f"{op}: a loop variable has shape {own}, and its invariant is {invariant}"
            fail(ShapeError, fact, fix="leave shape_invariants out")


def _flat_shapes(invariants: Any) -> list[Any]:
    if isinstance(invariants, (list, tuple)) and not isinstance(invariants, TensorShape):
        return [shape for part in invariants for shape in _flat_shapes(part)]
    if isinstance(invariants, dict):
        return [shape for key in sorted(invariants) for shape in _flat_shapes(invariants[key])]
    return [invariants]
