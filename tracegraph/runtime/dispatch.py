"""The shortest way from a call to its compiled program, for calls like one that was seen before."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.errors import Mismatch, UnknownValue
from tracegraph.interrupts import is_of_interrupt
from tracegraph.ir.tensor import Tensor
from tracegraph.runtime.concrete import ConcreteFunction
from tracegraph.runtime.execute import Execution
from tracegraph.runtime.lineage import ARRAY, TOP_LEVEL_TAPES, Callee
from tracegraph.runtime.pending import device_buffer
from tracegraph.runtime.signature import LITERALS, Request, Signature, leaf_key
from tracegraph.source import Source, here
from tracegraph.types import TensorType

#: How many calls are noted before a function stops noting them.
_CALLS_NOTED = 100


class Route:
    """What the hot path needs of a call that was seen before."""

    __slots__ = (
        *("__weakref__", "arranged", "callee", "calls_noted", "captured", "execution"),
        *("is_one_tensor", "pack", "positions", "program", "step", "types"),
    )

    def __init__(
        self, concrete: ConcreteFunction, execution: Execution, positions: list[int]
    ) -> None:
        self.execution = execution
        #: The leaves of the call that are tensors, in the order of the trace's arguments.
        self.positions = positions
        #: The leaves in that order, where all are tensors; None where they are.
        self.arranged = None if positions == sorted(positions) else operator.itemgetter(*positions)
        #: The compiled program itself where there is neither state nor a check to see to.
        self.step = execution.step_alone()
        self.program: Any = None
        if execution.is_simple:
            self.program = execution.program
            self.program.open_entry()
        #: What the program takes after the arguments.
        self.captured = tuple(map(device_buffer, execution.traced.captures))
        self.types = execution.result_types
        #: What notes where results come from; None where nobody is going to ask.
        self.callee: Callee | None = execution.callee
        self.calls_noted = 0
        self.is_one_tensor = concrete.results.is_one_tensor
        self.pack = concrete.results.packer()

    def run_on(self, leaves: Sequence[Any]) -> Any:
        """The packed results for the leaves of a call."""
        given = [leaves[i] for i in self.positions]
        tensors = [x if type(x) is Tensor else ARRAY for x in given]
        return self.run_with_state([*map(_buffer_of, given)], tensors)

    def run_with_state(self, buffers: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """The packed results for the buffers of the arguments."""
        step = self.step
        if step is None:
            tensors = self.execution.run(buffers)
        else:
            run = self.execution
            outputs = step.run(buffers, run.variables, self.captured, run.assigned)
            tensors = [*map(Tensor, self.types, outputs)]
        if self.callee is not None:
            self.note(arguments, tensors, here())
        return tensors[0] if self.is_one_tensor else self.pack(tensors)

    def note(self, arguments: Sequence[Any], results: Sequence[Tensor], at: Source) -> None:
        """Notes for results where they come from, so that a None can be explained.

        It costs a sixth of a short call. Where no tape was ever opened at top level, a function
        that is called again and again stops doing it.
        """
        assert self.callee is not None
        self.callee.remember(arguments, results, at)
        self.calls_noted += 1
        if self.calls_noted >= _CALLS_NOTED and not TOP_LEVEL_TAPES.were_opened:
            self.callee = None
            TOP_LEVEL_TAPES.waiting.add(self)

    def note_again(self) -> None:
        """Notes from now on what `note` says."""
        self.callee = self.execution.callee


class CallKey:
    """The leaves of a call, and its key where type and value of each leaf tell all."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = args, kwargs
        self.leaves, key = nest.scanned([args, kwargs] if kwargs else args)
        self.leaf_keys = [_leaf_key(leaf) for leaf in self.leaves]
        self.key = (*key, *self.leaf_keys)
        self.has_only_tensors = all(type(leaf) is Tensor for leaf in self.leaves)
        #: Whether the leaves are the arguments themselves, by position.
        self.is_flat = not kwargs and _are_same(self.leaves, args)

    def tensor_places(self, signature: Signature, request: Request) -> list[int] | None:
        """The places of the tensors among the leaves, in the order of the request; None where they
        are not those of the request, since some was added or converted."""
        structure = nest.flatten_structure(self._call)[1]
        numbers = [_Place(0)] * structure.count
        for place, number in enumerate(structure.packing_order()):
            numbers[number] = _Place(place)
        args, kwargs = structure.pack(numbers)
        bound, _ = nest.flatten_structure(signature.bind(args, kwargs))
        found = [leaf.number for leaf in bound if isinstance(leaf, _Place)]
        places = [i for i in found if isinstance(self.leaf_keys[i], TensorType)]
        wanted = [request.leaves[i] for i in request.tensor_positions]
        return places if _are_same([self.leaves[i] for i in places], wanted) else None


class _Place:
    """Stands for the leaf of this number."""

    def __init__(self, number: int) -> None:
        self.number = number


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def known_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey | None:
    """The call, or None if it has leaves that the slow path must look at."""
    try:
        return CallKey(args, kwargs)
    except (TypeError, ValueError, Mismatch) as error:
        if is_of_interrupt(error):
            raise
        return None  # the slow path names what is wrong


def _leaf_key(leaf: Any) -> Any:
    kind = type(leaf)
    if kind is Tensor:
        return leaf.type
    if kind in LITERALS or isinstance(leaf, np.ndarray | np.generic):
        return leaf_key(leaf)
    raise UnknownValue(f"a {kind.__name__} is no leaf of the short way")


def _buffer_of(leaf: Any) -> Any:
    # An array is copied: its owner may refill it while the program runs on.
    return device_buffer(leaf) if type(leaf) is Tensor else np.array(leaf)
