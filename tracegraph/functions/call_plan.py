"""Call plans: the shortest path from a call to its program, for calls like an earlier one."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.lru_cache import Memo
from tracegraph.core.types import TensorType, type_of_array
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.provenance import ARRAY
from tracegraph.eager.slots import run_program
from tracegraph.effects.record import current_record, recorded_call
from tracegraph.errors import Mismatch, UnknownValue
from tracegraph.execution.execute import Execution, laid_out_buffers
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.layout import ENTERED, placement_around
from tracegraph.signatures.signature import (
    LITERALS,
    Request,
    Signature,
    as_argument,
    layouts_here,
    leaf_key,
)


class CallPlan:
    """What the hot path needs to repeat a known kind of call."""

    __slots__ = (
        *("arranged", "assigned", "callee", "captured", "concrete", "execution"),
        *("layouts", "pack", "positions", "program", "result_type", "step", "types", "variables"),
    )

    def __init__(
        self, concrete: ConcreteFunction, execution: Execution, positions: list[int]
    ) -> None:
        self.concrete, self.execution = concrete, execution
        #: The leaves of the call that are tensors, in the order of the trace's arguments.
        self.positions = positions
        #: Reorders the leaves, if all are tensors; None if they are in that order already.
        self.arranged = None if positions == sorted(positions) else operator.itemgetter(*positions)
        #: The declared layouts of arguments, None for the others; empty if none is declared.
        self.layouts = layouts_here(concrete.request)
        #: The compiled program itself, if there is no state or check to handle.
        self.program: Any = None
        if execution.is_simple and not self.layouts:
            self.program = execution.program
            self.program.open_entry()
        #: The step, if there is state but nothing else to handle.
        self.step = None if self.layouts else execution.step_alone()
        self.variables, self.assigned = execution.variables, execution.assigned
        #: The program's inputs after the arguments.
        self.captured = tuple(map(device_buffer, execution.traced.captures))
        self.types = execution.result_types
        #: Records the provenance of results.
        self.callee = execution.callee
        #: The type of the result, if it is one tensor rather than a structure.
        self.result_type = self.types[0] if concrete.results.is_one_tensor else None
        self.pack = concrete.results.packer()

    def run_on(self, leaves: Sequence[Any]) -> Any:
        """The packed results for the leaves of a call."""
        given = [leaves[i] for i in self.positions]
        return self.run_with_state([*map(_buffer_of, given)], given)

    def run_recorded(self, leaves: Sequence[Any]) -> Any:
        """The packed results for the leaves of a call while tapes record."""
        arguments = [as_argument(leaves[i]) for i in self.positions]
        with recorded_call():
            return self.concrete.run(arguments, self.variables, current_record())

    def run_with_state(self, buffers: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """The packed results for the buffers of the arguments, tensors or arrays."""
        if self.layouts:
            buffers = laid_out_buffers(buffers, self.layouts)
        if self.program is not None:
            outputs = run_program(self.program, (*buffers, *self.captured))
            tensors = [*map(Tensor, self.types, outputs)]
        elif self.step is not None:
            outputs = self.step.run(buffers, self.variables, self.captured, self.assigned)
            tensors = [*map(Tensor, self.types, outputs)]
        else:
            tensors = self.execution.run(buffers)
        if self.callee.calls_left:
            known = [x if type(x) is Tensor else ARRAY for x in arguments]
            self.callee.note(known, tensors, sys._getframe(1))
        return self.pack(tensors) if self.result_type is None else tensors[0]

    def packed(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The packed results of a run, recorded for the caller's caller."""
        tensors = [*map(Tensor, self.types, outputs)]
        if self.callee.calls_left:
            self.callee.note(arguments, tensors, sys._getframe(2))
        return self.pack(tensors)


class PlansByMesh(Memo[Any, CallPlan]):
    """Call plans of a function whose traces depend on the enclosing mesh."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        meshes = _meshes()
        return _get(self, (key, meshes[-1].placement if meshes else None), default)

    def remember(self, key: Any, value: CallPlan) -> CallPlan:
        return super().remember((key, placement_around()), value)


_get, _meshes = dict.get, ENTERED.get


class CallKey:
    """The leaves of a call, and its key, if their types and values determine it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = args, kwargs
        self.leaves, key = nest.scanned([args, kwargs] if kwargs else args)
        self.leaf_keys = [_leaf_key(leaf) for leaf in self.leaves]
        self.key = (*key, *self.leaf_keys)
        self.has_only_tensors = all(type(leaf) is Tensor for leaf in self.leaves)
        #: Whether the leaves are the positional arguments themselves.
        self.is_flat = not kwargs and _are_same(self.leaves, args)

    def tensor_places(self, signature: Signature, request: Request) -> list[int] | None:
        """The positions of the tensors among the leaves, in the order of the request; None if they
        do not match the request's, because some were added or converted."""
        structure = nest.flatten_structure(self._call)[1]
        numbers = [nest.LeafNumber(0)] * structure.count
        for place, number in enumerate(structure.packing_order()):
            numbers[number] = nest.LeafNumber(place)
        args, kwargs = structure.pack(numbers)
        bound, _ = nest.flatten_structure(signature.bind(args, kwargs))
        found = [leaf.number for leaf in bound if isinstance(leaf, nest.LeafNumber)]
        places = [i for i in found if isinstance(self.leaf_keys[i], TensorType)]
        wanted = [request.leaves[i] for i in request.tensor_positions]
        return places if _are_same([self.leaves[i] for i in places], wanted) else None


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


_ARRAYS = {Tensor, np.ndarray}
_NUMPY = (np.ndarray, np.generic)


def key_of_arrays(args: tuple[Any, ...]) -> Any:
    """The key of a call whose arguments are all tensors and arrays of NumPy: that of a call
    with tensors; None for others."""
    if not _ARRAYS.issuperset(map(type, args)):
        return None
    try:
        types = [x.type if type(x) is Tensor else type_of_array(x) for x in args]
    except outside_interrupts(TypeError):
        return None  # a dtype that no tensor has
    return types[0] if len(types) == 1 else tuple(types)


def known_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey | None:
    """The call, or None if it has leaves that only the slow path handles."""
    try:
        return CallKey(args, kwargs)
    except outside_interrupts(TypeError, ValueError, Mismatch):
        return None  # the slow path reports what is wrong


def _leaf_key(leaf: Any) -> Any:
    kind = type(leaf)
    if kind is Tensor:
        return leaf.type
    if kind in LITERALS or isinstance(leaf, _NUMPY):
        return leaf_key(leaf)
    if hasattr(leaf, "addressable_shards"):  # a JAX array
        return leaf_key(leaf)
    raise UnknownValue(f"a {kind.__name__} is not a leaf of the short way")


def _buffer_of(leaf: Any) -> Any:
    if type(leaf) is Tensor:
        return device_buffer(leaf)
    if isinstance(leaf, _NUMPY):
        return np.array(leaf)  # a copy: its owner may refill it while the program runs on
    return device_buffer(as_argument(leaf))
