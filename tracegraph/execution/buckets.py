"""Bucket sizes: open sizes are padded to a few values, so that few programs serve them all."""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.lru_cache import Memo
from tracegraph.core.shapes import Dim, dim_names, static_shape, substitute_size
from tracegraph.core.types import TensorType
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.tensor_methods import gathered_array, host_array
from tracegraph.errors import ShapeError, SignatureError, fail, shown
from tracegraph.execution.execute import Execution, input_types, laid_out_buffers
from tracegraph.execution.run_options import RunOptions
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.op import Op
from tracegraph.ir.rewrite import rewritten
from tracegraph.ir.tensor import Graph, Node, Tensor, host_tensor
from tracegraph.ops.constant import DimSize
from tracegraph.ops.elementwise import IDENTITY
from tracegraph.ops.layout import WithLayout
from tracegraph.padding.padded import Padded, padded
from tracegraph.passes.specialise import (
    bind_sizes,
    bound_names,
    check_types,
    specialise,
    with_sizes,
)
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import CheckReport, Traced

if TYPE_CHECKING:
    from tracegraph.eager.layouts import Layout


class Buckets:
    """The sizes to which open sizes are padded."""

    def __init__(self, sizes: Any) -> None:
        """`sizes` is "powers_of_two" or positive integers. Raises SignatureError for anything
        else."""
        # Comparing an array would compare each of its elements.
        is_doubling = isinstance(sizes, str) and sizes == "powers_of_two"
        self._sizes = None if is_doubling else _checked(sizes)

    @property
    def option(self) -> Any:
        """The sizes in a form that can be passed again: an iterator ends, an array may change."""
        return "powers_of_two" if self._sizes is None else self._sizes

    def of(self, size: int) -> int | None:
        """The smallest bucket that fits `size`; None if there is none."""
        if self._sizes is None:
            return 1 << max(size - 1, 0).bit_length()
        place = bisect.bisect_left(self._sizes, size)
        return self._sizes[place] if place < len(self._sizes) else None


def _checked(sizes: Any) -> list[int]:
    if isinstance(sizes, (str, bytes)):
        _refuse(sizes)
    try:
        found = list(sizes)
        numbers = sorted({operator.index(x) for x in found})
    except outside_interrupts(TypeError, ValueError):
        # It has no elements, or one that is not an integer.
        _refuse(sizes)
    if not numbers or numbers[0] <= 0 or any(isinstance(x, (bool, np.bool_)) for x in found):
        _refuse(sizes)
    return numbers


def _refuse(sizes: Any) -> NoReturn:
    fail(
        SignatureError,
        f"bucket_sizes is {shown(sizes)}",
        fix='give "powers_of_two", or positive integers such as [8, 32, 128]',
    )


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How a call runs for arguments of certain types."""

    execution: Execution
    #: The padded types of the arguments, and their declared layouts.
    padded: tuple[TensorType, ...]
    layouts: Sequence[Layout | None]
    #: The true sizes, which the program takes after the arguments.
    sizes: tuple[np.ndarray, ...]
    #: The types of the results; sizes that only the run finds stay open, and are listed in `found`.
    results: tuple[TensorType, ...]
    found: tuple[str, ...]

    def run(self, arguments: Sequence[Tensor], variables: Sequence[Variable]) -> list[Tensor]:
        pairs = zip(arguments, self.padded, strict=True)
        buffers = [_padded_buffer(x, type) for x, type in pairs]
        if self.layouts:
            buffers = laid_out_buffers(buffers, self.layouts)
        outputs = self.execution.run([*buffers, *self.sizes], variables)
        sizes = {x: int(host_array(y)) for x, y in zip(self.found, outputs[len(self.results) :])}
        types = [with_sizes(type, sizes) for type in self.results]
        return [_cut(y, type) for y, type in zip(outputs, types, strict=False)]


class Bucketing:
    """The programs of one trace for padded arguments."""

    def __init__(
        self,
        traced: Traced,
        buckets: Buckets,
        options: RunOptions,
        layouts: Sequence[Layout | None] = (),
    ) -> None:
        """`layouts` are the declared layouts of the arguments; empty if there are none."""
        self._traced, self._layouts = traced, layouts
        self._buckets = buckets
        self._options = options
        self._padded: Padded | None = None
        #: By the padded types of the inputs.
        self.executions: dict[tuple[TensorType, ...], Execution] = {}
        #: The sizes of results that only a run finds.
        self._found: tuple[str, ...] = ()
        #: Plans of calls; each is small.
        self._plans: Memo[tuple[TensorType, ...], _Plan | None] = Memo()

    def plan(self, arguments: Sequence[Tensor], variables: Sequence[Variable]) -> _Plan | None:
        """How to run the call; None to run it unpadded, because some size exceeds all buckets or
        must be a certain number. Raises ShapeError for sizes that do not fit the trace, and for a
        body that padding would change."""
        types = input_types(self._traced, [x.type for x in arguments], variables)
        if types in self._plans:
            return self._plans[types]
        with backend.compiling:
            return self._plans.remember(types, self._planned(types))

    def _planned(self, types: tuple[TensorType, ...]) -> _Plan | None:
        traced = self._traced
        count, results = traced.argument_count, traced.result_count
        if self._padded is None:
            state = range(results, results + len(traced.assigned))
            made = padded(traced.graph, count, range(results), state)
            self._found = _names_found(traced)
            self._padded = dataclasses.replace(
                made, graph=_telling(made.graph, results, self._found)
            )
        check_types(traced.graph.cached("without_layouts", self._without_layouts), types)
        names = self._padded.names
        true = bind_sizes(traced.graph.input_types, types, assumes=True)
        wide: dict[str, Any] = dict(true)
        for name in names:
            size = self._buckets.of(true[name])
            if size is None or true[name] == 0:  # there would be no element to repeat
                return None
            wide[name] = size
        if not _all_grow(self._padded, true, wide):
            return None
        given = [with_sizes(type, wide) for type in traced.graph.input_types[:count]]
        execution = self._execution((*given, *types[count:]))
        if execution is None:
            return None
        sizes = tuple(np.asarray(true[name], np.int32) for name in names)
        of_results = traced.graph.output_types[:results]
        cut = tuple(with_sizes(type, true) for type in of_results)
        return _Plan(execution, tuple(given), self._layouts, sizes, cut, self._found)

    def _without_layouts(self) -> Graph:
        """The trace's graph without layouts; only padded sizes must be divisible among devices."""

        def change(node: Node, op: Op) -> Op:
            return IDENTITY if isinstance(op, WithLayout) else op

        return rewritten(self._traced.graph, change)

    def _execution(self, types: tuple[TensorType, ...]) -> Execution | None:
        """The program for padded inputs of these types; None if there can be none."""
        assert self._padded is not None
        found = self.executions.get(types)
        if found is None:
            count, names = self._traced.argument_count, self._padded.names
            graph = self._padded.graph
            traced = dataclasses.replace(
                self._traced,
                graph=graph,
                argument_count=count + len(names),
                result_count=self._traced.result_count + len(self._found),
                checks=tuple(_checks(self._traced, self._padded.outputs)),
            )
            scalars = graph.input_types[count : count + len(names)]
            whole = (*types[:count], *scalars, *types[count:])
            try:
                specialise(graph, whole)
            except ShapeError:
                return None
            found = Execution(traced, whole, self._options)
            self.executions[types] = found
        return found


def _names_found(traced: Traced) -> tuple[str, ...]:
    """The open sizes of results that no input has: a run finds them."""
    types = traced.graph.output_types[: traced.result_count]
    shapes = [type.shape for type in types if isinstance(type.shape, tuple)]
    used = {name for shape in shapes for size in shape for name in dim_names(size)}
    return tuple(sorted(used.difference(*map(bound_names, traced.graph.input_types))))


def _telling(graph: Graph, place: int, names: Sequence[str]) -> Graph:
    """The graph with one more output at `place` for each size that a run finds: its value."""
    if not names:
        return graph
    with Builder(graph.name) as builder:
        env = copy_inputs(graph, builder)
        replay(graph.nodes, env)
        outputs = [env[y] for y in graph.outputs]
        numbers = [DimSize(Dim.named(name))() for name in names]
        return builder.finish([*outputs[:place], *numbers, *outputs[place:]])


def _checks(traced: Traced, kept: Sequence[int]) -> Iterator[CheckReport]:
    """The checks of a body, without operands that are not among the kept outputs."""
    place = traced.first_check
    for report in traced.checks:
        operands = range(place + 1, place + 1 + report.operand_count)
        count = sum(operand in kept for operand in operands)
        yield dataclasses.replace(report, operand_count=count)
        place = operands.stop


def _all_grow(found: Padded, true: Mapping[str, Any], wide: Mapping[str, Any]) -> bool:
    pairs = ((substitute_size(x, true), substitute_size(x, wide)) for x in found.growing)
    return all(small <= large for small, large in pairs)


def _padded_buffer(x: Tensor, type: TensorType) -> Any:
    """The value of an argument, padded by repeating its last elements. NumPy does this: a compiled
    program for it would be one per size."""
    if x.type is type:
        return device_buffer(x)
    array = gathered_array(x)
    wide = np.empty(static_shape(type.shape), array.dtype)
    wide[tuple(map(slice, array.shape))] = array
    for axis, (size, whole) in enumerate(zip(array.shape, type.shape, strict=True)):
        before = (slice(None),) * axis
        wide[(*before, slice(size, whole))] = wide[(*before, slice(size - 1, size))]
    return wide


def _cut(y: Tensor, type: TensorType) -> Tensor:
    """A result with its padding cut off."""
    if y.type is type:
        return y
    return host_tensor(type, np.ascontiguousarray(gathered_array(y)[tuple(map(slice, type.shape))]))
