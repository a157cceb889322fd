"""The results of a traced function: tensors and None in a structure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.core.shapes import Dim
from tracegraph.core.source import Source
from tracegraph.core.tensorshape import TensorShape
from tracegraph.errors import DTypeError, Mismatch, TraceError, fact_of, fail, kind_of, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.variable import Variable


class Results:
    """How the tensors that a trace returns are packed for the caller."""

    def __init__(self, structure: nest.Structure, leaves: Sequence[Tensor | None]) -> None:
        self.structure = structure
        #: One entry per leaf: True for a tensor, False for None.
        self.flags = tuple(leaf is not None for leaf in leaves)

    def pack(self, tensors: Iterable[Any]) -> Any:
        """The structure that the function returned, with its tensors replaced by these."""
        rest = iter(tensors)
        return self.structure.pack([next(rest) if flag else None for flag in self.flags])

    def __str__(self) -> str:
        if self.structure.is_leaf:
            return "a tensor" if self.flags == (True,) else "None"
        return str(self.pack("*" * sum(self.flags)))

    def tensors(self, packed: Any) -> list[Any]:
        """The tensors in a packed result, in order."""
        leaves, _ = nest.flatten_structure(packed, none_is_leaf=True)
        return [leaf for leaf in leaves if leaf is not None]

    def packer(self) -> Callable[[Sequence[Any]], Any]:
        """`pack`, specialised for speed."""
        return self.structure.packer() if all(self.flags) else self.pack

    @property
    def is_one_tensor(self) -> bool:
        """Whether the result is a single tensor outside any container."""
        return self.flags == (True,) and self.structure.is_leaf


def result_leaves(result: Any, name: str, place: Source) -> tuple[list[Any], nest.Structure]:
    """The leaves of a result as tensors and None. Raises TraceError for anything else."""
    try:
        leaves, structure = nest.flatten_structure(result, none_is_leaf=True)
    except Mismatch as mismatch:
        fail(TraceError, f"the result of {name}: {mismatch.fact}", source=place, fix=mismatch.fix)
    for key in _keys(structure):
        if any(isinstance(part, Tensor) for part in nest.flatten(key)):
            fail(
                TraceError,
                f"{name} returned a dict with a tensor as a key, which has no value while tracing",
                source=place,
                fix="use Python's numbers or strings as keys, or return two tensors: the keys and "
                "the values",
            )
    return [_result_leaf(leaf, name, place) for leaf in leaves], structure


def _keys(structure: nest.Structure) -> Iterator[Any]:
    """The keys of all dicts in a structure, and the names of fields."""
    if structure.container is not None:
        yield from structure.container.names
    for part in structure.parts:
        yield from _keys(part)


def _result_leaf(leaf: Any, name: str, place: Source) -> Tensor | None:
    if leaf is None:
        return None
    is_value = isinstance(leaf, (Tensor, Variable, TensorShape, bool, int, float, complex, Dim))
    is_value = is_value or hasattr(type(leaf), "__tracegraph_tensor__")
    if not is_value and not isinstance(leaf, np.ndarray | np.generic):
        fail(
            TraceError,
            f"{name} returned {kind_of(leaf)}: {shown(leaf)}",
            source=place,
            fix="return tensors, numbers, arrays, None, or lists, tuples and dicts of them",
        )
    try:
        return as_tensor(leaf)
    except DTypeError as error:
        fix = "return an array of numbers or truth values"
        fail(DTypeError, f"the result of {name}: {fact_of(error)}", source=place, fix=fix)
