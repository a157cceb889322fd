"""What the body of a parallel loop, which is traced for one row, has in all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracegraph.core.later import opened
from tracegraph.core.source import Source
from tracegraph.errors import TraceError, fail
from tracegraph.ir.builder import Builder, at_top_level, builder_of_thread
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.constant import RuntimeSize
from tracegraph.ops.random import RandomSplit
from tracegraph.ops.shape import Reshape, Slice
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import first_size_finder
from tracegraph.tracing.name_scopes import told_name

if TYPE_CHECKING:
    from tracegraph.state.variable import Variable


class Rows:
    """The rows of a parallel loop in the builder `outer`. Each gets a state of its own for the
    random generators that it draws from: they move on before the loop, since Python functions that
    it calls may draw numbers as well."""

    def __init__(self, count: Any, outer: Builder, source: Source) -> None:
        self.count = count
        self._outer = outer
        self._source = source
        self._states: dict[int, Tensor] = {}
        #: Whether tracing had to call a Python function for rows of this call.
        self._have_run = False

    def state_of(self, variable: Variable) -> Tensor | None:
        """The states of a random generator, one for each row; None before it was split."""
        return self._states.get(id(variable))

    def split(self, variable: Variable) -> Tensor:
        """The same, splitting the state of the generator when first asked for it."""
        found = self.state_of(variable)
        if found is not None:
            return found
        if self._have_run and not self._outer.is_top_level:
            fail(
                TraceError,
                f"a parallel loop draws from {told_name(variable)!r} for the first time after a "
                "Python function whose result has no declared shape, which this call has already "
                "called",
                source=self._source,
                fix="give the shape in Tout: tg.TensorSpec([3], tg.float32), or draw a number "
                "before the call",
            )
        with _inside(self._outer):
            keys = RandomSplit(self.count + 1)(variable.read_value())
            variable.assign(Reshape((2,))(Slice((0, 0), (1, 2), (1, 1))(keys)))
            own = Slice((1, 0), (self.count + 1, 2), (1, 1))(keys)
        return self._states.setdefault(id(variable), own)

    def begin_run(self) -> None:
        """Notes that a Python function is called for rows while they are being traced."""
        self._have_run = True


@contextmanager
def _inside(builder: Builder) -> Iterator[None]:
    """A context for appending nodes to the builder around a trace, or at top level."""
    if builder.is_top_level:
        with at_top_level():
            yield
        return
    where = builder_of_thread()
    inner, where.builder = where.builder, builder
    try:
        yield
    finally:
        where.builder = inner


def with_sizes_of_all(graph: Graph, arguments: Sequence[Tensor]) -> Graph:
    """The graph of one row, where a size that each row finds for itself has the largest value of
    all, if that is known. Other sizes are found once, before the loop. `arguments` are the inputs
    that differ from row to row."""
    own = set(arguments)
    has_own_size = False
    for node in graph.nodes:
        if not own.isdisjoint(node.inputs):
            own.update(node.outputs)
            has_own_size |= type(node.op) is RuntimeSize
            has_own_size |= any(map(first_size_finder, node.op.graphs()))
    if not has_own_size:
        return graph
    # Few programs need it.
    found = opened("tracegraph.padding.bounded_sizes").with_largest_sizes(dead_code(graph))
    return graph if isinstance(found, str) else found


__all__ = ["Rows", "with_sizes_of_all"]
