"""Layouts as JSON and back."""

from __future__ import annotations

from typing import Any

from tracegraph.archive.manifest import Entry
from tracegraph.core.tensorshape import layout_of_op
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch
from tracegraph.ops.layout import WithLayout, plain_axes

#: The optional field of entries that can have a layout.
LAYOUT_FIELDS = ("layout",)


def written_layout(layout: Any) -> dict[str, Any]:
    """The field for a layout; empty for None."""
    if layout is None:
        return {}
    mesh, devices, axes = layout.placement
    row: dict[str, Any] = {"mesh": mesh, "axes": [_written_axis(entry) for entry in axes]}
    return {"layout": row if devices is None else {**row, "devices": list(devices)}}


def read_layout(entry: Entry, type: TensorType) -> Any:
    """The layout in an entry, for a tensor of a type; inside `with mesh:` it refers to that mesh,
    as in the text of a graph. None if there is no entry."""
    if entry.is_null:
        return None
    mesh, axes, devices = entry.fields("mesh", "axes", optional=("devices",))
    numbers = devices.optional(lambda e: tuple(e.each(Entry.count)))
    op = WithLayout(mesh.text(), plain_axes(axes.each(_axis)), numbers)
    try:
        op.infer(type)
        op = op.as_read()
        op.infer(type)
    except Mismatch as mismatch:
        entry.fail(mismatch.fact, fix=mismatch.fix)
    return layout_of_op(op)


def _written_axis(entry: Any) -> Any:
    return list(entry) if isinstance(entry, tuple) else entry


def _axis(entry: Entry) -> Any:
    if entry.is_null or isinstance(entry.value, str):
        return entry.value
    return tuple(entry.each(Entry.text))
