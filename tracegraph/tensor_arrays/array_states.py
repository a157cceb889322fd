"""TensorArrays as states of a loop, with the buffers that its body needs.

A state has one type. So an array that grows, or whose elements have no shape yet, gets a buffer
before the loop: the body is traced to see what it writes, and then traced again. How large an array
becomes follows from the graph, if its size can be followed from step to step; else a run of the
loop finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from tracegraph import nest
from tracegraph.calls.call import appended
from tracegraph.control.scan import Scan
from tracegraph.control.while_loop import While
from tracegraph.control.without_prints import calls_python
from tracegraph.control_passes.dataflow import Flows, types_of
from tracegraph.control_passes.ranges import ranges_of, state_ranges
from tracegraph.core.later import opened
from tracegraph.core.shapes import Dim, Shape, dim_names, maximum
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.passes.specialise import names_chosen
from tracegraph.tensor_arrays.tensor_array import TensorArray, refuse_growth, size_of
from tracegraph.tracing.trace import NeedsTraceError, is_in_step


class BuffersChanged(Exception):
    """The states need other buffers than the body was traced with."""


class StatesChanged(Exception):
    """What a loop carries besides has other types than the body was traced with."""

    #: The arrays among the loop variables, with the buffers that were found until then.
    arrays: Sequence[TensorArray] = ()


def map_arrays(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """`values` with each array replaced by the result of `function`, which receives the array and
    its counterparts in `others`. These have the same structure, except inside arrays."""
    leaves, structure = with_whole_arrays(values)
    rows = zip(leaves, *(with_whole_arrays(other)[0] for other in others), strict=True)
    found = [function(*row) if isinstance(row[0], TensorArray) else row[0] for row in rows]
    return structure.pack(found)


def with_whole_arrays(values: Any) -> tuple[list[Any], nest.Structure]:
    """The leaves of a value, of which a TensorArray is one, and its structure."""
    return nest.flatten_structure(values, none_is_leaf=True, whole=TensorArray)


def holds_arrays(values: Any) -> bool:
    return any(isinstance(leaf, TensorArray) for leaf in with_whole_arrays(values)[0])


#: The shape of a buffer's elements and how many it has; None for an array that has its buffer.
Need = tuple[Shape, Any] | None


def needs(values: Any, others: Any, own: Set[str] = frozenset()) -> list[Need]:
    """What the arrays in `values` lack to have buffers as large as those in `others`, except where
    those have sizes of their `own`, by name."""
    (leaves, structure), (partners, other_structure) = (
        with_whole_arrays(values),
        with_whole_arrays(others),
    )
    if not structure.matches(other_structure):
        return []
    return [_need(*pair, own) for pair in zip(leaves, partners, strict=True)]


def _need(one: Any, other: Any, own: Set[str]) -> Need:
    if not isinstance(one, TensorArray) or not isinstance(other, TensorArray):
        return None
    if one is other or not other.has_buffer:
        return None
    capacity = maximum(one.capacity, other.capacity) if one.dynamic_size else one.capacity
    if own & dim_names(capacity):
        capacity = one.capacity
    if one.has_buffer and capacity == one.capacity:
        return None
    return other.element_type, capacity


def common_needs(values: Sequence[Any], branches: Sequence[Graph]) -> list[list[Need]]:
    """What the arrays that branches return lack to have the same buffers. A size that the run of
    one branch finds means nothing in the others, nor in another trace of that branch."""
    own = [set[str]().union(*map(names_chosen, branch.nodes)) for branch in branches]
    pairs = [*zip(values, own, strict=True)]
    return [
        _joined([needs(one, other, mine | its) for other, its in pairs if other is not one])
        for one, mine in pairs
    ]


def _joined(found: Sequence[list[Need]]) -> list[Need]:
    return [_larger([x for x in column if x]) for column in zip(*found)]


def _larger(found: Sequence[Any]) -> Need:
    return max(found, key=lambda need: need[1]) if found else None


def supplied(values: Any, needs: Sequence[Need]) -> Any:
    """`values`, with arrays that have the buffers they need."""
    leaves, structure = with_whole_arrays(values)
    pairs = zip(leaves, needs, strict=True)
    return structure.pack([x if need is None else x.with_buffer(*need) for x, need in pairs])


def chosen_alike(values: Any) -> Any:
    """The result of a branch, with all array elements in buffers, and with tensor sizes for arrays
    that may grow: another branch may return other sizes."""
    return map_arrays(TensorArray.carried, values) if holds_arrays(values) else values


def measured(values: Any) -> Any:
    """`values`, with array sizes as numbers where they turned out to be known."""
    return map_arrays(TensorArray.measured, values) if holds_arrays(values) else values


class ArrayStates:
    """The states of a loop whose body is traced repeatedly until all buffers are right."""

    def __init__(self, name: str, values: Any) -> None:
        self._name = name
        #: The initial values of the loop.
        self.values = values
        leaves, _ = with_whole_arrays(values)
        self._arrays = [leaf for leaf in leaves if isinstance(leaf, TensorArray)]
        self._needs: list[Need] = []
        #: The indices of the arrays whose sizes one run of the loop has found.
        self._counted = {k for k, array in enumerate(self._arrays) if array.has_room}
        #: While the loop is traced to be tried: the size of its buffers, and the values before.
        self._trial: tuple[Dim, Any] | None = None
        #: The final sizes, where known, by the positions of their leaves.
        self._sizes: dict[int, int] = {}
        if self._arrays:
            self.values = map_arrays(lambda x: x.growing() if x.dynamic_size else x, values)

    def run(self, execute: Callable[[], Any]) -> Any:
        """The result of `execute`, which traces the loop starting from `values`."""
        while True:
            try:
                return execute()
            except BuffersChanged:
                self.values = supplied(self.values, self._needs)
            except StatesChanged as changed:
                changed.arrays = self._begun_again()
                raise

    def _begun_again(self) -> list[TensorArray]:
        """The arrays before the loop, for another trace of all that is around it."""
        values = self.values if self._trial is None else self._trial[1]
        leaves = [leaf for leaf in with_whole_arrays(values)[0] if isinstance(leaf, TensorArray)]
        pairs = enumerate(zip(leaves, self._arrays, strict=True))
        return [x.begun_again(given.grows, k in self._counted) for k, (x, given) in pairs]

    def fit(self, returned: Any) -> None:
        """Raises BuffersChanged if a step returns arrays with buffers that the states lack."""
        if self._arrays:
            self._needs = needs(self.values, returned)
            if any(self._needs):
                raise BuffersChanged

    def measure(self, op: Scan | While, inputs: Sequence[Tensor], first: int) -> None:
        """Raises BuffersChanged if an array outgrows its buffer. `first` is the position of
        `values` among the states."""
        if not any(array.dynamic_size for array in self._arrays):
            return
        leaves, numbered = (with_whole_arrays(x)[0] for x in (self.values, _numbered(self.values)))
        pairs = [
            (x, k) for x, k in zip(leaves, numbered, strict=True) if isinstance(x, TensorArray)
        ]
        places = {
            id(x): k._own_size.number for x, k in pairs if isinstance(k._own_size, nest.LeafNumber)
        }
        bounds = self._bounds_of_sizes(op, inputs, first, places)
        self._sizes = {place: low for place, (low, high) in bounds.items() if low == high}
        #: The arrays whose sizes only a run of the loop finds, and the places of these sizes.
        unbounded: dict[int, tuple[TensorArray, int]] = {}

        def need(array: TensorArray, given: TensorArray) -> Need:
            if not array.dynamic_size or given.grows or not array.has_buffer:
                return None  # it has its size, or the enclosing loop handles it
            number, place = self._arrays.index(given), places[id(array)]
            if number in self._counted or not _is_written(op, first + place):
                return None
            if place not in bounds:
                unbounded[number] = array, first + place
                return None
            _, most = bounds[place]
            fits = isinstance(array.capacity, int) and most <= array.capacity
            return None if fits else (array.element_type, most)

        rest = iter(self._arrays)
        self._needs = [need(x, next(rest)) if isinstance(x, TensorArray) else None for x in leaves]
        if unbounded:
            grown = [k._buffer for x, k in pairs if x.dynamic_size]
            buffers = [first + k.number for k in grown if isinstance(k, nest.LeafNumber)]
            self._find_sizes(op, inputs, unbounded, [k for k in buffers if _is_written(op, k)])
        if any(self._needs):
            raise BuffersChanged

    def _bounds_of_sizes(
        self, op: Scan | While, inputs: Sequence[Tensor], first: int, places: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        """The least and the largest size of arrays after the loop, by their places, where known."""
        given = ranges_of(inputs)
        for x in with_whole_arrays(self.values)[0]:
            if id(x) in places and x.has_buffer and isinstance(x.capacity, int):
                input = op.constants + first + places[id(x)]
                given[input] = given[input] or (0, x.capacity)
        found = state_ranges(op, given)[first:]
        ranges = {place: found[place] for place in places.values()}
        return {place: range for place, range in ranges.items() if isinstance(range, tuple)}

    def _find_sizes(
        self,
        op: Scan | While,
        inputs: Sequence[Tensor],
        unbounded: Mapping[int, tuple[TensorArray, int]],
        buffers: Sequence[int],
    ) -> None:
        """Runs the loop just for the sizes of arrays. If these depend on what it reads of the
        `buffers`, states which are still too small, it is traced again with buffers to try."""
        if op.cuts_runs and not calls_python(op.body):
            op = op.silent()
        if op.cuts_runs:
            calls = any(calls_python(region.graph) for region in op.regions)
            why = "calls Python, which it must do once" if calls else "changes the size of a state"
            refuse_growth(self._name, f"the loop {why}")
        flow = Flows().of(op, types_of(inputs), op.output_types(tuple(inputs)))
        places = [place for _, place in unbounded.values()]
        is_read = any(flow.values[x] >> (op.constants + k) & 1 for x in places for k in buffers)
        if not is_read:
            sizes = [_counted(op, inputs, place) for place in places]
        elif self._trial is None:
            self._begin_trial(unbounded)
            return
        else:
            (capacity, self.values), self._trial = self._trial, None
            trial = opened("tracegraph.tensor_arrays.sizes_by_trial")
            sizes = trial.sizes_by_trial(self._name, op, inputs, capacity, places)
        self._counted.update(unbounded)
        leaves = self._leaves_of_arrays()
        for number, size in zip(unbounded, sizes, strict=True):
            place, array = leaves[number]
            found = maximum(array.capacity, size_of(self._name, size))
            self._needs[place] = unbounded[number][0].element_type, found

    def _begin_trial(self, unbounded: Mapping[int, tuple[TensorArray, int]]) -> None:
        if is_in_step():
            refuse_growth(self._name, "what is read of it decides")
        if current().is_top_level:
            raise NeedsTraceError
        capacity = Dim.named(current().new_size_name())
        self._trial = capacity, self.values
        leaves = self._leaves_of_arrays()
        for number, (array, _) in unbounded.items():
            self._needs[leaves[number][0]] = array.element_type, array.capacity + capacity

    def _leaves_of_arrays(self) -> list[tuple[int, TensorArray]]:
        """The arrays among the values, with the indices of their leaves."""
        leaves, _ = with_whole_arrays(self.values)
        return [(i, x) for i, x in enumerate(leaves) if isinstance(x, TensorArray)]

    def behind(self, results: Any) -> Any:
        """The values after the loop, with the array sizes that are known by then."""
        if not self._arrays:
            return results
        rest = iter(self._arrays)

        def after_loop(array: TensorArray, numbered: TensorArray) -> TensorArray:
            size = numbered._own_size
            known = self._sizes.get(size.number) if isinstance(size, nest.LeafNumber) else None
            return array.after_loop(known, grows=next(rest).grows)

        results = map_arrays(after_loop, results, _numbered(results))
        arrays = [x for x in with_whole_arrays(results)[0] if isinstance(x, TensorArray)]
        for number in self._counted:
            arrays[number].check_size()
        return results


def _is_written(op: Scan | While, place: int) -> bool:
    """Whether a step may change a state."""
    return op.body.outputs[place] is not op.body.inputs[op.constants + place]


def _counted(op: Scan | While, inputs: Sequence[Tensor], place: int) -> Tensor:
    """An output of a loop that runs just for that."""
    count = len(op.output_types(tuple(inputs)))
    small, keep, has = op.pruned(tuple(k == place for k in range(count)))
    found = appended(small, [x for x, is_kept in zip(inputs, keep, strict=True) if is_kept])
    return found[sum(has[:place])]


def _numbered(values: Any) -> Any:
    """The structure with its leaves replaced by their indices."""
    _, structure = nest.flatten_structure(values)
    return structure.numbered()
