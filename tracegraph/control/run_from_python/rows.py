"""What the steps of a loop computed one by one, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.control.without_prints import lengths_of_runs
from tracegraph.core.shapes import ShapeVariable, substitute_shape
from tracegraph.core.types import TOKEN, TensorType, type_of_array
from tracegraph.errors import Mismatch
from tracegraph.ir.op import OnHost
from tracegraph.ir.tensor import Graph
from tracegraph.ops.effect import token_of
from tracegraph.passes.specialise import bind_sizes, bound_names


def stacked_steps(
    body: Graph,
    states: int,
    values: Sequence[Any],
    made: Sequence[Sequence[Any]],
    length: int,
    on_host: OnHost,
) -> list[np.ndarray]:
    """The outputs of `body` after its `states`, each stacked into one array with a row for each of
    `length` steps. `values` are inputs of the body, of any step, and `made` is what each step
    computed."""
    places = range(len(body.outputs) - states)
    if not made:
        return [_no_rows(body, values, states + place, length, on_host) for place in places]
    types, lengths = body.output_types[states:], lengths_of_runs(body)
    return [
        token_of(steps=[row[place] for row in made])
        if types[place] is TOKEN
        else _stacked([on_host(row[place]) for row in made], types[place], lengths, length)
        for place in places
    ]


def tokens_of_steps(token: Any, steps: Sequence[int]) -> Sequence[Any]:
    """The token of each step; without what calls kept, their derivatives call them again."""
    return [token for _ in steps] if getattr(token, "steps", None) is None else token.steps


def one_like(rows: Any) -> Any:
    """An array of the type of one row, of any values; tokens stay as they are."""
    return np.empty(rows.shape[1:], rows.dtype) if hasattr(rows, "shape") else rows


def _stacked(
    rows: Sequence[np.ndarray], type: TensorType, lengths: set[str], length: int
) -> np.ndarray:
    """The rows, of a type, as one array of `length`, with zeros for steps that are left out: what
    derivatives add up is zero there. Axes whose sizes are among `lengths` are as long as the
    longest."""
    if lengths & bound_names(type):
        rows = _of_one_length(rows, [size in lengths for size in map(str, type.shape)])
    for row in rows:
        if row.shape != rows[0].shape:
            raise Mismatch(
                f"what one step computes has the shape {[*rows[0].shape]}, and what another one "
                f"computes {[*row.shape]}, so it cannot be kept for derivatives or stacked",
                fix="let the Python function return one shape in all steps",
            )
    added = np.zeros((length - len(rows), *rows[0].shape), rows[0].dtype)
    return np.concatenate([np.stack(rows), added]) if len(added) else np.stack(rows)


def _of_one_length(rows: Sequence[np.ndarray], is_open: Sequence[bool]) -> list[np.ndarray]:
    """The rows, where open axes are as long as the longest. What loops repeat there they leave out,
    so any values will do from which derivatives can be computed: those of another step."""
    sizes = zip(is_open, *(row.shape for row in rows), strict=True)
    longest = [max(of_rows) if flag else None for flag, *of_rows in sizes]
    is_flag = rows[0].dtype == np.bool_  # True says which are of steps
    other = next((row for row in rows if row.size), rows[0])
    found: list[np.ndarray] = []
    for row in rows if is_flag else (row if row.size else other for row in rows):
        pairs = zip(longest, row.shape, strict=True)
        added = [(0, 0 if most is None else most - size) for most, size in pairs]
        found.append(np.pad(row, added, "constant" if is_flag else "edge"))
    return found


def _no_rows(
    body: Graph, values: Sequence[Any], output: int, length: int, on_host: OnHost
) -> np.ndarray:
    """The rows where no step runs: with the sizes that the run knows, and 0 for those that a step
    would choose."""
    formal = body.input_types
    pairs = zip(formal, values)
    known = [x if x is TOKEN else type_of_array(on_host(value)) for x, value in pairs]
    type = body.output_types[output]
    if type is TOKEN:
        return token_of(steps=())
    shape = substitute_shape(type.shape, bind_sizes(formal[: len(known)], known))
    rest = () if isinstance(shape, ShapeVariable) else shape
    sizes = (n if isinstance(n, int) else 0 for n in rest)
    return np.zeros((length, *sizes), type.dtype.numpy_dtype)
