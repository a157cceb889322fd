"""What XLA's profiler saw while something ran: which operation took how long, and whose it is.

JAX's public reader gives the events: names of instructions, with the module that they are of. Which
line an instruction is of stands in the module itself, which the profiler writes into the same file,
as a protocol buffer of its own; a few of its fields are read here. An instruction that is fused of
others shares its time out to them, by a rough estimate of their work.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from lowering.device import wait_for_all
from tracegraph.errors import LoweringError, fail


@dataclasses.dataclass(frozen=True)
class Operation:
    """One run of an instruction of XLA: on which thread or stream, when, and for how long, in
    seconds. `shares` are parts of 1 by the names that its metadata has, which say whose it is."""

    module: str
    name: str
    thread: str
    start: float
    seconds: float
    shares: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Recording:
    """The operations of a run in the order of their beginning, and how long it took in all."""

    operations: tuple[Operation, ...]
    seconds: float


def recorded(run: Callable[[], Any]) -> Recording:
    """Records what XLA does while `run` runs, and until all arrays have their values.

    Raises LoweringError where a profiler is running already.
    """
    with tempfile.TemporaryDirectory(prefix="tracegraph-", ignore_cleanup_errors=True) as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        wait_for_all()  # what was started before is no part of it
        _start(folder, options)
        try:
            begin = time.perf_counter()
            held = run()  # what is dropped is not waited for
            wait_for_all()
            seconds = time.perf_counter() - begin
            del held
        finally:
            jax.profiler.stop_trace()
        file = next(Path(folder).rglob("*.xplane.pb"))
        modules = _modules(file.read_bytes())
        found = _operations(jax.profiler.ProfileData.from_file(str(file)), modules)
    return Recording(tuple(sorted(found, key=lambda x: x.start)), seconds)


def _start(folder: str, options: Any) -> None:
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        fact, fix = f"XLA's profiler does not start: {error}", "end the profile that is running"
        fail(LoweringError, fact, fix=fix, cause=error)


# Events.


@dataclasses.dataclass(frozen=True)
class _Event:
    module: str
    program: int
    name: str
    thread: str
    start: float
    seconds: float


def _operations(data: Any, modules: Iterable[_Module]) -> Iterator[Operation]:
    """The operations of a profile. What only holds others, such as a loop, is left out."""
    events = _events(data)
    names: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in events:
        names[event.module, event.program].add(event.name)
    by_program = _matched(names, list(modules))
    for event in events:
        module = by_program.get((event.module, event.program))
        instruction = None if module is None else module.instructions.get(event.name)
        if instruction is not None and instruction.opcode in _HOLDERS:
            continue
        shares = {} if module is None or instruction is None else module.shares(instruction)
        place = event.module, event.name, event.thread, event.start, event.seconds
        yield Operation(*place, shares)


_HOLDERS = ("while", "conditional", "call", "async-start", "async-done")


def _events(data: Any) -> list[_Event]:
    """The events of instructions: those of devices, and those of the host where there are none,
    since the host only starts what another device runs."""
    found: dict[bool, list[_Event]] = {True: [], False: []}
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" not in stats:
                    continue
                place = str(stats.get("hlo_module", "")), int(stats.get("program_id", -1))
                times = event.start_ns * 1e-9, event.duration_ns * 1e-9
                is_device = plane.name.startswith("/device:")
                made = _Event(*place, str(stats["hlo_op"]), line.name, *times)
                found[is_device].append(made)
    return found[True] or found[False]


def _matched(
    names: Mapping[tuple[str, int], set[str]], modules: list[_Module]
) -> dict[tuple[str, int], _Module]:
    """The module of each program that ran. The numbers of programs are those of modules, but for
    programs that were read from a cache: their order is the same."""
    found: dict[tuple[str, int], _Module] = {}
    taken: set[int] = set()
    for (name, program), wanted in sorted(names.items(), key=lambda row: row[0][1]):
        fitting = [
            m
            for m in modules
            if m.name == name and wanted <= m.instructions.keys() and m.program not in taken
        ]
        if fitting:
            exact = [m for m in fitting if m.program == program]
            found[name, program] = module = (exact or fitting)[0]
            taken.add(module.program)
    return found


# Modules, as XLA's protocol buffers have them: xplane.proto and hlo.proto.


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    opcode: str
    #: The named scopes in which it was lowered; empty where XLA made it.
    scopes: str
    elements: int
    operands: tuple[int, ...]
    called: tuple[int, ...]


class _Module:
    """A compiled module: its instructions by name."""

    def __init__(self, program: int, proto: bytes) -> None:
        self.program = program
        self.name = ""
        self.instructions: dict[str, _Instruction] = {}
        self._by_number: dict[int, _Instruction] = {}
        self._computations: dict[int, list[_Instruction]] = {}
        self._shares: dict[str, dict[str, float]] = {}
        for number, value in _fields(proto):
            if number == 1:
                self.name = value.decode()
            elif number == 3:
                self._read_computation(value)

    def _read_computation(self, proto: bytes) -> None:
        found: list[_Instruction] = []
        for number, value in _fields(proto):
            if number == 2:
                own, instruction = _instruction(value)
                self.instructions[instruction.name] = self._by_number[own] = instruction
                found.append(instruction)
            elif number == 5:
                self._computations[value] = found

    def shares(self, instruction: _Instruction) -> Mapping[str, float]:
        """The scopes of an instruction, or of those that it is fused of, with parts of 1."""
        found = self._shares.get(instruction.name)
        if found is None:
            work: dict[str, float] = defaultdict(float)
            for inner in self._fused(instruction):
                if inner.scopes:
                    work[inner.scopes] += self._work(inner)
            total = sum(work.values())
            found = {k: x / total for k, x in work.items()} if total else {instruction.scopes: 1.0}
            self._shares[instruction.name] = found
        return found

    def _fused(self, instruction: _Instruction) -> Iterator[_Instruction]:
        if instruction.opcode != "fusion":
            return
        for number in instruction.called:
            for inner in self._computations.get(number, ()):
                yield inner
                yield from self._fused(inner)

    def _work(self, instruction: _Instruction) -> float:
        operands = [self._by_number[i].elements for i in instruction.operands]
        if instruction.opcode in ("dot", "convolution"):
            return math.sqrt(instruction.elements * math.prod(operands))  # m k n, of mk, kn and mn
        most = max([instruction.elements, *operands])
        return most * _WORK.get(instruction.opcode, 1.0)


#: What an element costs beside an addition, roughly.
_WORK = {
    **dict.fromkeys(["parameter", "constant", "bitcast", "tuple", "get-tuple-element"], 0.0),
    **dict.fromkeys(["broadcast", "iota", "reshape", "slice", "dynamic-slice"], 0.1),
    **dict.fromkeys(["divide", "sqrt", "rsqrt", "remainder"], 4.0),
    **dict.fromkeys(["exponential", "log", "tanh", "logistic", "sine", "cosine", "power"], 10.0),
    **dict.fromkeys(["exponential-minus-one", "log-plus-one", "erf", "tan", "atan2"], 10.0),
    **dict.fromkeys(["cbrt", "sort"], 10.0),
}


def _instruction(proto: bytes) -> tuple[int, _Instruction]:
    """The number of an instruction, and what it is."""
    texts = {1: "", 2: ""}
    own, elements, scopes = 0, 1, ""
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    for number, value in _fields(proto):
        if number in texts:
            texts[number] = value.decode()
        elif number == 3:
            elements = _elements(value)
        elif number == 7:
            scopes = next((x.decode() for n, x in _fields(value) if n == 2), "")
        elif number == 35:
            own = value
        elif number == 36:
            operands += _numbers(value)
        elif number == 38:
            called += _numbers(value)
    return own, _Instruction(texts[1], texts[2], scopes, elements, operands, called)


def _elements(shape: bytes) -> int:
    sizes = [size for number, value in _fields(shape) if number == 3 for size in _numbers(value)]
    return math.prod(sizes)


def _modules(space: bytes) -> Iterator[_Module]:
    """The modules that a profile has, of the programs that were there while it ran."""
    for number, plane in _fields(space):
        if number != 1:
            continue
        for kind, entry in _fields(plane):
            if kind != 4:  # the metadata of events
                continue
            values = [x for n, x in _fields(entry) if n == 2]
            stats = [stat for value in values for n, stat in _fields(value) if n == 5]
            rows = [dict(_fields(stat)) for stat in stats]
            protos = [row[6] for row in rows if 6 in row]
            programs = [row[3] for row in rows if 3 in row]
            for hlo, program in zip(protos, programs):
                yield from (_Module(program, x) for n, x in _fields(hlo) if n == 1)


def _numbers(value: Any) -> tuple[int, ...]:
    """The integers of a field that may be packed."""
    if isinstance(value, int):
        return (value,)
    found, place = [], 0
    while place < len(value):
        number, place = _varint(value, place)
        found.append(number)
    return tuple(found)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers: their numbers, and integers or bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        size, place = _varint(message, place) if kind == 2 else (_SIZES[kind], place)
        yield tag >> 3, message[place : place + size]
        place += size


#: The sizes of fields of fixed size, in bytes, by the kind of the field.
_SIZES = {1: 8, 5: 4}


def _varint(message: bytes, place: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = message[place]
        place += 1
        found |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return found, place
