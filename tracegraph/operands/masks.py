"""The masks of tensors, which layers hand on: where a step counts.

The mask is kept under the name that it has in Keras, whose users read it.
"""

from __future__ import annotations

from typing import Any

from tracegraph import nest
from tracegraph.ir.tensor import Tensor


def mask_of(value: Any) -> Any:
    """The mask of a tensor, or those of the tensors in a structure; None if there is none."""
    if isinstance(value, Tensor):
        return getattr(value, "_keras_mask", None)
    if isinstance(value, (list, tuple, dict)):
        masks = nest.map_structure(mask_of, value)
        return None if all(mask is None for mask in nest.flatten(masks)) else masks
    return None


def with_mask(value: Any, mask: Any) -> Any:
    """The tensor, which has this mask now; None is none."""
    if mask is not None:
        value._keras_mask = mask
    return value


def give_masks(values: Any, masks: Any) -> None:
    """Gives the tensors of a structure these masks, in order, except for those that have one."""
    leaves = masks if isinstance(masks, (list, tuple)) else [masks]
    for value, mask in zip(nest.flatten(values), leaves):
        if isinstance(value, Tensor) and mask_of(value) is None:
            with_mask(value, mask)
