"""Checks that all processes run the same program, before its first run in each, and that they
pass the same value, where each passes all of it.

A program whose arrays are sharded over processes runs in all of them, or waits forever. So at its
first call the processes compare what they are about to run. If they differ, each reports the first
node that does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from lowering.distribution import processes
from tracegraph.core.source import Source, here
from tracegraph.core.types import type_of_array
from tracegraph.core.worker_thread import is_of_main_thread
from tracegraph.errors import DistributedError, fail, message, shown
from tracegraph.ir.slow_compiles import waiting_for_processes
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.text.printer import module_text

#: How often a waiting process checks whether it waits in vain, in seconds.
_LOOKS = 0.1
#: What processes are about to do together.
_RUN, _MOVE = "run a program", "move a tensor to the devices of all"
_ONE_LAYOUT = "give it the same layout in every process, on a mesh with the devices in one order"
_ONE_VALUE = (
    "make it from the same seed in every process, or let each give its own part of a "
    "tensor: tg.distribute.from_local"
)
#: Spaces before a type or a place, whose number depends on the longest line of a graph.
_ALIGNED = re.compile(r" {2,}(?=: |at )")


def is_of_all(buffers: Sequence[Any], mesh: Any) -> bool:
    """Whether all processes run a program together: its arrays are sharded over them, or those that
    it makes on its `mesh` will be."""
    return processes.any_is_of_all(buffers) or processes.has_devices_of_all(mesh)


def agree(graph: Graph, lowered: Any, buffers: Sequence[Any], mesh: Any) -> str:
    """Compares a program of all processes with those that the others are about to run, and returns
    what it is known by. Raises DistributedError in all of them if they differ."""
    place = here()
    told = f"@{graph.name} at {place}"
    # The text of a program does not say which devices run it.
    identity = lowered.as_text() + ("" if mesh is None else _numbers(mesh))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    used = {x for node in graph.nodes for x in node.inputs}.union(graph.outputs)
    places = [i for i, x in enumerate(graph.inputs[: len(buffers)]) if x in used]
    values = [_digest_of(buffers[i]) for i in places]
    with waiting_for_processes(), _ended_in_time(f"run {told}"):
        words = json.dumps([digest, told, values])
        found = [json.loads(x) for x in processes.gathered(words.encode(), _RUN)]
        if all(other[0] == digest for other in found):
            inputs = [(graph.inputs[i], buffers[i]) for i in places]
            _agree_on_inputs(graph, inputs, [each[2] for each in found])
            if processes.settings.log is not None:
                processes.settings.log.words[digest] = f"runs {told}"
            return digest
        text = "\n".join([module_text([graph], locations=True), *_layouts(graph, buffers, mesh)])
        texts = [x.decode() for x in processes.gathered(text.encode(), _RUN)]
    own = processes.index()
    other = next(i for i, each in enumerate(found) if each[0] != digest)
    _refuse(own, other, found[own][1], found[other][1], texts[own], texts[other])


def _numbers(mesh: Any) -> str:
    """The numbers of the devices of a JAX mesh, in order."""
    return json.dumps([device.id for device in mesh.devices.flat])


def _layouts(graph: Graph, buffers: Sequence[Any], mesh: Any) -> Iterator[str]:
    """A line for each input that is divided, and one for the mesh of the program."""
    for x, buffer in zip(graph.inputs, buffers, strict=False):
        told = processes.told_layout(getattr(buffer, "sharding", None))
        if told:
            yield f"{f'%{x.name}' if x.name else 'an input'}: {x.type} is divided by {told}"
    if mesh is not None:
        yield f"it runs on {processes.told_with_devices(mesh)}"


def _digest_of(buffer: Any) -> str | None:
    """What a value is known by that this process has for itself, such as a captured tensor; None
    for one that others have parts of, and where there is no value yet."""
    if not hasattr(buffer, "__array__") or processes.spans_processes((buffer,)):
        return None
    return hashlib.sha256(np.ascontiguousarray(buffer).tobytes()).hexdigest()[:16]


def _agree_on_inputs(
    graph: Graph, inputs: Sequence[tuple[Tensor, Any]], values: Sequence[Sequence[Any]]
) -> None:
    """Raises DistributedError in all processes where one gives a program another value than the
    others, of which `values` are what each of them is known by."""
    place = next((i for i, each in enumerate(zip(*values, strict=True)) if len({*each}) > 1), None)
    if place is None:
        return
    x, buffer = inputs[place]
    told = f"{x.type} {shown(np.asarray(buffer))}"
    every = [each.decode() for each in processes.gathered(told.encode(), _RUN)]
    own = processes.index()
    other = next(i for i, each in enumerate(values) if each[place] != values[own][place])
    name = f"%{x.name} of @{graph.name}" if x.name else f"an input of @{graph.name}"
    what = f"give different values of {name}"
    _refuse_values(own, other, what, every[own], every[other], _ONE_VALUE)


def _refuse_values(own: int, other: int, what: str, told: str, others: str, fix: str) -> NoReturn:
    fact = f"processes {what}: process {own} {told}, and process {other} {others}"
    fail(DistributedError, fact, source=here(), fix=fix)


def agree_on_value(
    array: np.ndarray, target: Any, parts: dict[int, frozenset[str]] | None = None
) -> None:
    """Compares the value that each process passes with the others', if all have devices of
    `target`; with `parts`, only with those that hold the same parts. Raises DistributedError in
    all of them if they differ: the parts would make up a value that nobody passed."""
    if not processes.has_devices_of_all(target.mesh):
        return
    told = f"{type_of_array(array)} {shown(array)} at {here()}"
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    words = [str(type_of_array(array)), digest, _numbers(target.mesh), str(target.spec)]
    with _ended_in_time(_MOVE):
        told = json.dumps([words, told, f"by {processes.told_layout(target)} at {here()}"])
        found = [json.loads(x) for x in processes.gathered(told.encode(), _MOVE)]
    own = processes.index()
    for i, each in enumerate(found):
        same = (k for k in range(i) if parts is None or parts[k] == parts[i])
        other = next((k for k in same if found[k][0] != each[0]), None)
        if other is None:
            continue
        first, second = (i, other) if own == i else (other, i)
        if found[first][0][:2] == found[second][0][:2]:
            what, place, fix = "divide one tensor in different ways", 2, _ONE_LAYOUT
        else:
            what, place, fix = "give different values of one tensor", 1, _ONE_VALUE
        _refuse_values(first, second, what, found[first][place], found[second][place], fix)


def from_local(array: np.ndarray, sharding: Any) -> Any:
    """An array to which each process contributes its part. Where several hold the same part, they
    are compared. Whether all mean one array is found out later: see `Watch.give`."""
    buffer = processes.from_local(array, sharding)
    # Programs that have run for each of these arrays would compute with parts of several.
    if is_of_main_thread() and processes.has_devices_of_all(sharding.mesh):
        type = type_of_array(buffer)
        kind = f"{type} {sharding.spec} {_numbers(sharding.mesh)}"
        told = f"{type_of_array(array)} of {type} divided by {processes.told_layout(sharding)}"
        processes.settings.give(kind, f"{told} at {here()}")
    parts = processes.parts_of_processes(sharding, buffer.shape)
    if len(set(parts.values())) < len(parts):
        agree_on_value(array, sharding, parts)
    return buffer


def gathered_on_host(buffer: Any) -> np.ndarray:
    """A buffer sharded over processes as a NumPy array; all of them must call this."""
    with _ended_in_time("bring the parts of a tensor together"):
        return processes.on_host(buffer)


def _refuse(own: int, other: int, told: str, others: str, text: str, others_text: str) -> NoReturn:
    here_line, there_line = _first_difference(text, others_text)
    fail(
        DistributedError,
        f"processes run different programs: process {own} runs {told}, and process {other} runs "
        f"{others}\n  process {own}: {here_line}\n  process {other}: {there_line}",
        source=here(),
        fix="run the same code with the same shapes in every process; what one process does alone "
        "must not use arrays that are divided among all",
    )


def _first_difference(text: str, other: str) -> tuple[str, str]:
    """The first pair of lines in which two texts differ: of nodes, which have lines of the user's,
    or else of anything."""
    rows, others = ([_unaligned(x) for x in each.splitlines()] for each in (text, other))
    nodes, other_nodes = ([x for x in each if x.startswith("%")] for each in (rows, others))
    if nodes != other_nodes:
        rows, others = nodes, other_nodes
    same = 0
    while same < min(len(rows), len(others)) and rows[same] == others[same]:
        same += 1
    return _line(rows, same), _line(others, same)


def _unaligned(line: str) -> str:
    """A line without the padding that aligns types and places in the text of a graph."""
    return _ALIGNED.sub(" ", line.strip())


def _line(rows: Sequence[str], i: int) -> str:
    return rows[i] if i < len(rows) else "ends here"


@contextlib.contextmanager
def _ended_in_time(told: str) -> Iterator[None]:
    """Ends the process if the others do not reach the same point: it is waiting inside C."""
    is_over = threading.Event()
    place = here()
    threading.Thread(target=_wait, args=(is_over, told, place), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _wait(is_over: threading.Event, told: str, place: Source) -> None:
    known, own = processes.settings, processes.index()
    deadline = time.monotonic() + known.timeout
    while not is_over.wait(_LOOKS):
        ended = known.has_ended()
        if ended is not None:
            fact = f"process {own} waits for process {ended}, which has ended, to {told}"
            known.end(_text(fact, place, "call it equally often in every process"))
        if time.monotonic() > deadline:
            fact = f"process {own} has waited {known.timeout:g} s for the other processes to {told}"
            fix = "call it in every process; initialize(timeout=...) waits longer"
            known.end(_text(fact, place, fix))


def _text(fact: str, place: Source, fix: str) -> str:
    return f"tracegraph: {message(fact, source=place, fix=fix)}\n"
