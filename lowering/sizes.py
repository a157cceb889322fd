"""Sizes while a graph is lowered: ints, or JAX's symbolic sizes in a program for every size.

A body whose sizes are open is specialised to the arrays that it is given. Where those have
symbolic sizes, each distinct one gets a name of ours, and what a rule needs of an op's attributes
is computed from JAX's sizes by that name.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import export

from tracegraph.errors import UnfitShape
from tracegraph.ir.tensor import Graph
from tracegraph.passes.specialise import specialise
from tracegraph.shapes import Dim
from tracegraph.types import TensorType

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "max": jax.core.max_dim,
    "min": jax.core.min_dim,
}


class _Names(threading.local):
    def __init__(self) -> None:
        self.sizes: Mapping[str, Any] = {}


#: What the names of open sizes stand for, in the body that is being lowered on this thread.
_names = _Names()


@contextlib.contextmanager
def named(sizes: Mapping[str, Any]) -> Iterator[None]:
    """A context in which names of open sizes stand for JAX's sizes."""
    outer, _names.sizes = _names.sizes, sizes
    try:
        yield
    finally:
        _names.sizes = outer


def is_open(size: Any) -> bool:
    """Whether a size of an array is symbolic."""
    return not isinstance(size, int)


def size(size: Any) -> Any:
    """A size of an op's attributes as JAX takes it: an int, or a symbolic size."""
    return size if isinstance(size, int) else evaluated(size, _names.sizes)


def shape(shape: Any) -> tuple[Any, ...]:
    """A shape of an op's attributes as JAX takes it."""
    return tuple([size(x) for x in shape])


def evaluated(size: Dim, sizes: Mapping[str, Any]) -> Any:
    """The polynomial `size` with JAX's sizes for its names."""
    total: Any = 0
    for monomial, coefficient in size.terms:
        product: Any = coefficient
        for atom, power in monomial:
            product = product * _atom(atom, sizes) ** power
        total = total + product
    return total


def _atom(atom: Any, sizes: Mapping[str, Any]) -> Any:
    if isinstance(atom, str):
        return sizes[atom]
    function, *operands = atom
    values = [x if isinstance(x, int) else evaluated(x, sizes) for x in operands]
    return _FUNCTIONS[function](*values)


def types_of(dtypes: Sequence[Any], shapes: Sequence[Any]) -> tuple[list[TensorType], dict]:
    """The types of arrays, and what the names of their open sizes stand for."""
    names: dict[Any, Dim] = {}

    def known(size: Any) -> Any:
        if not export.is_symbolic_dim(size):
            return size
        if size not in names:
            names[size] = _name(str(size), len(names))
        return names[size]

    pairs = zip(dtypes, shapes, strict=True)
    types = [TensorType(dtype, tuple(map(known, shape))) for dtype, shape in pairs]
    return types, {str(name): size for size, name in names.items()}


def _name(text: str, number: int) -> Dim:
    """JAX's own name, which a message then shows; that of a compound size says its number."""
    try:
        return Dim.named(text)
    except UnfitShape:
        return Dim.named(f"size.{number}")


def specialised(graph: Graph, arrays: Sequence[Any]) -> tuple[Graph, Mapping[str, Any]]:
    """`graph` for the shapes of `arrays`, and what the names of its open sizes stand for."""
    if graph.is_static:
        return graph, {}
    dtypes = [x.type.dtype for x in graph.inputs]
    types, names = types_of(dtypes, [a.shape for a in arrays])
    return specialise(graph, types), names
