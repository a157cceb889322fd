"""Open sizes as arguments: what stands for them in the key and among the inputs of a trace."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Set
from typing import Any, ClassVar

from tracegraph.core.shapes import Dim, Shape, ShapeVariable, axis_count, element_count, is_static
from tracegraph.core.tensorshape import TensorShape, asked_shape
from tracegraph.core.types import DType, TensorType, bool_
from tracegraph.errors import TraceError, fail, shown
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import full
from tracegraph.passes.specialise import bound_names, names_in, renamed
from tracegraph.tracing.trace import current_trace


class SizeType(TensorType):
    """The key of an argument that is an open size of an enclosing trace: the type of a tensor
    without elements that has this size, so that the graph has an input to take it from."""

    __slots__ = ()

    _interned: ClassVar[weakref.WeakValueDictionary[tuple[DType, Shape], TensorType]] = (
        weakref.WeakValueDictionary()
    )

    @property
    def value(self) -> Any:
        """What the traced function gets as its argument."""
        return asked_shape(self.shape)[0]


class ShapeType(SizeType):
    """The key of an argument that is a TensorShape with open sizes."""

    __slots__ = ()

    _interned: ClassVar[weakref.WeakValueDictionary[tuple[DType, Shape], TensorType]] = (
        weakref.WeakValueDictionary()
    )

    @property
    def value(self) -> Any:
        shape = asked_shape(self.shape)
        return shape if isinstance(self.shape, ShapeVariable) else shape[:-1]


def size_type(leaf: Any) -> TensorType | None:
    """The key of a leaf that is an open size or a shape with open sizes; None for any other."""
    if isinstance(leaf, Dim):
        return SizeType(bool_, (leaf, 0))
    if not isinstance(leaf, TensorShape):
        return None
    if isinstance(leaf.variable, ShapeVariable):
        return ShapeType(bool_, leaf.variable)
    if leaf.variable is not None or not all(isinstance(size, (int, Dim)) for size in leaf):
        return None
    return None if is_static(tuple(leaf)) else ShapeType(bool_, (*leaf, 0))


def holder_of(leaf: Any, type: TensorType) -> Tensor:
    """The tensor that is passed for an open size. Raises TraceError if no trace in progress has
    that size."""
    trace = current_trace()
    if trace is None or not trace.has_sizes(names_in(type)):
        fail(
            TraceError,
            f"{shown(leaf)} is an open size that no function being traced here has",
            fix="pass x.shape[axis] of a tensor that the calling code has",
        )
    return full(False, TensorType(type.dtype, type.shape))


def own_sizes(types: Iterable[TensorType], around: Set[str]) -> dict[str, str]:
    """New names for those open sizes of arguments whose names mean other sizes `around` the trace:
    its code may use both."""
    names = set[str]().union(*(bound_names(type) for type in types if not type.is_static))
    own: dict[str, str] = {}
    for name in sorted(names & around):
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        own[name] = next(new for new in numbered if new not in around)
    return own


def renaming(names: Mapping[str, str]) -> dict[str, Any]:
    """The sizes, and shapes, that replace those of the names which are the keys."""
    sizes: dict[str, Any] = {}
    for old, new in names.items():
        if not old.startswith("*"):
            sizes[old] = Dim.named(new)
            continue
        shape = ShapeVariable(new[1:])
        sizes[old] = shape
        sizes[f"{old[1:]}.size"], sizes[f"{old[1:]}.rank"] = element_count(shape), axis_count(shape)
    return sizes


def with_usual_names(graph: Graph, own: Mapping[str, str]) -> Graph:
    """The graph with the names that stand in the key of its trace, which are the keys of `own`;
    unless it uses sizes of these names from around it."""
    from_around = set[str]().union(*(names_in(x.type) for x in graph.inputs)) & own.keys()
    if not own or from_around:
        return graph
    return renamed(graph, renaming({new: old for old, new in own.items()}), {})
