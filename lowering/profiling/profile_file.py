"""Reads the file that XLA's profiler writes: events, and the modules of the programs that ran.

It is a protocol buffer, `xplane.proto`, with others inside, `hlo.proto`; this module parses only
the few fields that are needed. (JAX's public reader returns the events but not the modules, and in
jax 0.12 some events make it abort the process.)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    #: The named scopes in which it was lowered; empty if XLA created it.
    scopes: str
    elements: int
    operands: tuple[int, ...]
    called: tuple[int, ...]


class CompiledModule:
    """A compiled module: its instructions by name, which are read when they are first asked for,
    since a profile has every program of the process, and few of them ran."""

    def __init__(self, program: int, proto: bytes) -> None:
        message = ProtocolMessage(proto)
        self.program = program
        self.name = message.text(1)
        self._protos: list[bytes] = message.all(3)
        self._by_number: dict[int, Instruction] = {}
        self._computations: dict[int, list[Instruction]] = {}
        self._shares: dict[str, dict[str, float]] = {}

    @functools.cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        return {x.name: x for proto in self._protos for x in self._read_computation(proto)}

    @functools.cached_property
    def users(self) -> Mapping[str, list[str]]:
        """By the name of an instruction, the names of those that take its result."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, instruction in self.instructions.items():
            for number in instruction.operands:
                found[self._by_number[number].name].append(name)
        return found

    def _read_computation(self, proto: bytes) -> list[Instruction]:
        message = ProtocolMessage(proto)
        numbered = [_instruction(value) for value in message.all(2)]
        found = [instruction for _, instruction in numbered]
        self._by_number.update(numbered)
        self._computations.update(dict.fromkeys(message.all(5), found))
        return found

    def shares(self, instruction: Instruction) -> Mapping[str, float]:
        """The scopes of an instruction, or of those fused into it, with fractions that add up to
        1."""
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

    def _fused(self, instruction: Instruction) -> Iterator[Instruction]:
        if instruction.opcode != "fusion":
            return
        for number in instruction.called:
            for inner in self._computations.get(number, ()):
                yield inner
                yield from self._fused(inner)

    def _work(self, instruction: Instruction) -> float:
        operands = [self._by_number[i].elements for i in instruction.operands]
        if instruction.opcode in ("dot", "convolution"):
            return math.sqrt(instruction.elements * math.prod(operands))  # m k n, of mk, kn and mn
        most = max([instruction.elements, *operands])
        return most * _WORK.get(instruction.opcode, 1.0)


#: The rough cost of an element relative to an addition.
_WORK = {
    **dict.fromkeys(["parameter", "constant", "bitcast", "tuple", "get-tuple-element"], 0.0),
    **dict.fromkeys(["broadcast", "iota", "reshape", "slice", "dynamic-slice"], 0.1),
    **dict.fromkeys(["divide", "sqrt", "rsqrt", "remainder"], 4.0),
    **dict.fromkeys(["exponential", "log", "tanh", "logistic", "sine", "cosine", "power"], 10.0),
    **dict.fromkeys(["exponential-minus-one", "log-plus-one", "erf", "tan", "atan2"], 10.0),
    **dict.fromkeys(["cbrt", "sort"], 10.0),
}


def _instruction(proto: bytes) -> tuple[int, Instruction]:
    """The number of an instruction, and its description."""
    message = ProtocolMessage(proto)
    return message.one(35, 0), Instruction(
        name=message.text(1),
        opcode=message.text(2),
        scopes=ProtocolMessage(message.one(7, b"")).text(2),
        elements=math.prod(ProtocolMessage(message.one(3, b"")).numbers(3)),
        operands=message.numbers(36),
        called=message.numbers(38),
    )


@dataclasses.dataclass(frozen=True)
class Event:
    """A run of an instruction: its module and program, its device and thread, when it began, how
    long that thread took, and when another event said that the work was over, in seconds."""

    module: str
    program: int
    name: str
    is_on_host: bool
    thread: str
    start: float
    seconds: float
    told_end: float


def read_profile(space: bytes) -> tuple[list[Event], list[CompiledModule]]:
    """The runs of instructions in a profile, and the modules of the programs that existed while it
    was recorded."""
    events: list[Event] = []
    modules: list[CompiledModule] = []
    for number, proto in fields(space):
        if number == 1:
            plane = _Plane(proto)
            events += plane.events()
            modules += plane.modules()
    return events, modules


class _Plane:
    """A plane of a profile: a device, the host, or metadata about programs."""

    def __init__(self, proto: bytes) -> None:
        message = ProtocolMessage(proto)
        self.name = message.text(2)
        self._lines: list[bytes] = message.all(3)
        #: Tables are stored as messages of a key and a value.
        self._event_kinds = [x for row in message.messages(4) for x in row.messages(2)]
        kinds = [x for row in message.messages(5) for x in row.messages(2)]
        self._stat_names = {kind.one(1, 0): kind.text(2) for kind in kinds}

    def events(self) -> Iterator[Event]:
        """The runs of instructions, with what other events say about their ends."""
        begun: list[tuple[Event, Any]] = []
        ends: dict[Any, float] = {}
        is_on_host = not self.name.startswith("/device:")
        for line in map(ProtocolMessage, self._lines):
            thread = line.text(2)
            for event in line.all(4):
                offset, length, stats = self._event(event)
                start = line.one(3, 0) * 1e-9 + offset * 1e-12
                if "hlo_op" in stats:
                    where = str(stats.get("hlo_module", "")), int(stats.get("program_id", -1))
                    times = thread, start, length * 1e-12, start
                    run = Event(*where, str(stats["hlo_op"]), is_on_host, *times)
                    begun.append((run, (stats.get("_pt"), stats.get("_p"))))
                elif "_c" in stats:
                    ends[stats.get("_ct"), stats["_c"]] = start
        for run, flow in begun:
            yield dataclasses.replace(run, told_end=ends.get(flow, run.start))

    def _event(self, event: bytes) -> tuple[int, int, dict[str, Any]]:
        """When an event began and how long it took, in picoseconds, and its statistics; `_p` and
        `_c` connect events of one work, by numbers that do not repeat."""
        message = ProtocolMessage(event)
        return message.one(2, 0), message.one(3, 0), dict(map(self._stat, message.all(4)))

    def _stat(self, proto: bytes) -> tuple[str, Any]:
        """The name of a statistic and its value; a text value may refer to another name."""
        name, found = "", None
        for number, value in fields(proto):
            if number == 1:
                name = self._stat_names.get(value, "")
            elif number == 7:
                found = self._stat_names.get(value, "")
            elif number == 5:
                found = value.decode(errors="replace")
            else:
                found = value
        return name, found

    def modules(self) -> Iterator[CompiledModule]:
        """The modules of programs, stored as statistics under a program's name."""
        for kind in self._event_kinds:
            stats = kind.messages(5)
            protos = [proto for row in stats for proto in row.messages(6)]
            programs = [program for row in stats for program in row.all(3)]
            for hlo, program in zip(protos, programs):
                yield from (CompiledModule(program, x) for x in hlo.all(1))


# Protocol buffers.


class ProtocolMessage:
    """The fields of a message by number; of one that occurs several times, the last counts."""

    def __init__(self, proto: bytes) -> None:
        self._values: dict[int, list[Any]] = defaultdict(list)
        for number, value in fields(proto):
            self._values[number].append(value)

    def all(self, number: int) -> list[Any]:
        return self._values[number]

    def one(self, number: int, otherwise: Any) -> Any:
        return (self._values[number] or [otherwise])[-1]

    def text(self, number: int) -> str:
        return self.one(number, b"").decode(errors="replace")

    def numbers(self, number: int) -> tuple[int, ...]:
        return tuple(n for value in self._values[number] for n in numbers(value))

    def messages(self, number: int) -> list[ProtocolMessage]:
        return [*map(ProtocolMessage, self._values[number])]


def numbers(value: Any) -> tuple[int, ...]:
    """The integers of a field, packed or not."""
    if isinstance(value, int):
        return (value,)
    found, place = [], 0
    while place < len(value):
        number, place = _varint(value, place)
        found.append(number)
    return tuple(found)


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer message: their numbers, and integers or bytes."""
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


#: The sizes of fixed-size fields, in bytes, by wire type.
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
