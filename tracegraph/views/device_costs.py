"""The costs of several devices in one run: the bytes that each holds, and what it sends to others.

Both are read from the program that XLA compiled, whose text is that of one device. The bytes that a
device sends follow from the sizes by the formulas for ring algorithms, with n participating devices
and B bytes in the value: 2 B (n - 1) / n for an all-reduce, B (n - 1) / n for an all-gather, a
reduce-scatter and an all-to-all, and B for a permutation. The value is the sum, what is gathered,
or, for an all-to-all and a permutation, what one device has of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT )?%?\S+ = (?P<type>.+?) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\("
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[^\s(]+) \(.*\{\s*$")
_ARRAY = re.compile(r"(?P<dtype>[a-z]+[0-9a-z]*)\[(?P<sizes>[0-9,]*)\]")
_CALLED = re.compile(
    r"\b(?:body|condition|to_apply|calls)=%?([^\s,})]+)|branch_computations=\{(.*?)\}"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_PLACE = re.compile(r"[^\s/():\"]+:\d+(?: (?:vjp|jvp|pfor))*(?=/)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


class Collective(NamedTuple):
    """An exchange of a value between devices: its kind, such as "all-reduce"; the user's lines; the
    number of participating devices; the bytes of the sum or of what is gathered, or, for an
    all-to-all and a permutation, of what one device has; the bytes that each device sends in one
    run of the program; and how often a run performs it, None if that is unknown."""

    kind: str
    lines: tuple[str, ...]
    devices: int
    bytes: int
    sent: int
    runs: int | None


class DividedValue(NamedTuple):
    """An input or a result: its name, its layout in short, its bytes, and those on one device. An
    input that the program does not read is not sent to any device."""

    name: str
    role: str
    layout: str
    bytes: int
    on_device: int


@dataclass(frozen=True)
class DeviceCosts:
    """The cost of one run for a device: the mesh; the shares of inputs and results; the bytes that
    XLA needs besides them; the collectives, largest traffic first; and whether the program has run:
    before that, an argument without a stated layout is assumed to be on one device."""

    mesh: str
    device_count: int
    inputs: tuple[DividedValue, ...]
    results: tuple[DividedValue, ...]
    temporary_bytes: int
    collectives: tuple[Collective, ...]
    has_run: bool = True

    def bytes_of(self, role: str) -> tuple[int, int]:
        """The bytes of the inputs with a role: on one device, and in total."""
        found = [x for x in self.inputs if x.role == role]
        return sum(x.on_device for x in found), sum(x.bytes for x in found)

    @property
    def sent(self) -> int:
        """The bytes that a device sends in one run; what is repeated an unknown number of times
        counts once."""
        return sum(x.sent for x in self.collectives)

    def in_total(self) -> list[str]:
        """Lines of a table: the bytes on one device, beside the totals."""
        made = sum(x.on_device for x in self.results), sum(x.bytes for x in self.results)
        shares = {
            "variables": self.bytes_of("variable"),
            "arguments": self.bytes_of("argument"),
            "results": made,
        }
        rows = [(name, f"{own:,}", f"{whole:,}") for name, (own, whole) in shares.items()]
        count = self.device_count
        found = aligned(
            [
                ("on one device" if count == 1 else f"on each of {count} devices", "bytes", "of"),
                *rows,
                ("while it runs", f"{self.temporary_bytes:,}", ""),
                ("sent to others", f"{self.sent:,}", ""),
            ],
            "<>>",
        )
        is_assumed = count == 1 and not self.has_run and self.bytes_of("argument")[1] > 0
        return [*found, *([_NOT_RUN] if is_assumed else [])]

    def by_value(self) -> list[str]:
        """Lines of a table: how each value is sharded."""
        rows = [
            (x.name, x.role, x.layout, f"{x.on_device:,}", f"{x.bytes:,}")
            for x in (*self.inputs, *self.results)
        ]
        return aligned([("value", "role", "layout", "bytes", "of"), *rows], "<<<>>")

    def by_collective(self) -> list[str]:
        """Lines of a table: what devices exchange, and where; empty if they exchange nothing. Equal
        exchanges share a line."""
        alike: dict[tuple[Any, ...], list[Collective]] = {}
        for x in self.collectives:
            alike.setdefault((x.kind, x.lines, x.devices, x.bytes), []).append(x)
        rows = [
            (kind, _lines_text(lines), str(count), *_numbers(found))
            for (kind, lines, count, _), found in alike.items()
        ]
        head = ("collective", "lines", "devices", "runs", "bytes", "sent")
        return aligned([head, *rows], "<<>>>>") if rows else []

    def __str__(self) -> str:
        """The totals held and sent, and the collectives."""
        tables = (self.in_total(), self.by_collective())
        return "\n\n".join("\n".join(table) for table in tables if table)

    def to_dict(self) -> dict[str, Any]:
        """The numbers in JSON form."""
        return {
            "mesh": self.mesh,
            "devices": self.device_count,
            "inputs": [x._asdict() for x in self.inputs],
            "results": [x._asdict() for x in self.results],
            "temporary_bytes": self.temporary_bytes,
            "has_run": self.has_run,
            "collectives": [{**x._asdict(), "lines": list(x.lines)} for x in self.collectives],
            "sent": self.sent,
        }


_NOT_RUN = "(it has not run: what has no layout is taken to be on one device)"


def collectives_in(hlo: str, device_count: int) -> tuple[Collective, ...]:
    """The collectives of a compiled program, from its text."""
    bodies = dict(_computations(hlo))
    runs = _runs(bodies)
    found = [
        _collective(match, line, device_count, runs.get(name, 1))
        for name, lines in bodies.items()
        for line in lines
        if (match := _INSTRUCTION.match(line)) is not None
    ]
    return tuple(sorted(found, key=lambda x: -x.sent))


def _computations(hlo: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", []
    for line in hlo.splitlines():
        head = _COMPUTATION.match(line)
        if head is not None:
            name, lines = head["name"], []
        elif line.startswith("}") and name:
            yield name, lines
            name = ""
        elif name:
            lines.append(line)


def _runs(bodies: dict[str, list[str]]) -> dict[str, int | None]:
    """How often each computation runs; None if a loop has an unknown number of steps. Callers come
    after their callees."""
    runs: dict[str, int | None] = {}
    for name, lines in reversed(bodies.items()):
        own = runs.setdefault(name, 1)
        for line in lines:
            trips = _TRIPS.search(line)
            times = 1 if " while(" not in line else int(trips[1]) if trips else None
            for found in _CALLED.finditer(line):
                for called in (found[1] or found[2]).split(","):
                    count = None if own is None or times is None else own * times
                    runs[called.strip().lstrip("%")] = count
    return runs


def _collective(match: re.Match[str], line: str, device_count: int, runs: int | None) -> Collective:
    kind, count = match["kind"], _group_size(line, device_count)
    arrays = [_bytes_of(found) for found in _ARRAY.finditer(match["type"])]
    if match["start"] and kind != "all-reduce":  # the operands precede the results
        arrays = arrays[len(arrays) // 2 :]
    whole = sum(arrays) * (count if kind == "reduce-scatter" else 1)
    sent = _SENT[kind](whole, count) * (1 if runs is None else runs)
    name = _OP_NAME.search(line)
    lines = tuple(dict.fromkeys(_PLACE.findall(name[1]))) if name else ()
    return Collective(kind, lines, count, whole, sent, runs)


def _bytes_of(array: re.Match[str]) -> int:
    sizes = [int(size) for size in array["sizes"].split(",") if size]
    return math.prod(sizes) * _BYTES.get(array["dtype"], 0)


_SENT = {
    "all-reduce": lambda whole, n: 2 * whole * (n - 1) // n,
    "all-gather": lambda whole, n: whole * (n - 1) // n,
    "reduce-scatter": lambda whole, n: whole * (n - 1) // n,
    "all-to-all": lambda whole, n: whole * (n - 1) // n,
    "collective-permute": lambda whole, n: whole,
}


def _group_size(line: str, device_count: int) -> int:
    """The number of devices in one exchange, from any of XLA's three notations."""
    lists = re.search(r"replica_groups=\{\{([0-9,]*)\}", line)
    if lists is not None:
        return len(lists[1].split(","))
    table = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if table is not None:
        return int(table[1])
    axes = re.search(r"replica_groups=mesh\[([^\]]*)\](?:\([^)]*\))? ?\{([^}]*)\}", line)
    if axes is not None:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", axes[1]))
        named = [sizes.get(name, 1) for name in re.findall(r"'([^']+)'", axes[2])]
        return math.prod(map(int, named))
    return device_count


#: The most lines shown for a collective; XLA merges those of many.
_MOST_LINES = 3


def _lines_text(lines: Sequence[str]) -> str:
    """The user's lines, each file named once."""
    words, last = [], ""
    for line in lines[:_MOST_LINES]:
        file, _, rest = line.rpartition(":")
        words.append(rest if file == last else line)
        last = file
    more = [f"{len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return ", ".join([*words, *more]) or "?"


def _numbers(alike: Sequence[Collective]) -> tuple[str, str, str]:
    """How often a run performs equal exchanges, the bytes of one, and what is sent for all."""
    runs = None if any(x.runs is None for x in alike) else sum(x.runs or 0 for x in alike)
    count = "?" if runs is None else f"{runs:,}"
    return count, f"{alike[0].bytes:,}", f"{sum(x.sent for x in alike):,}"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """The rows with their columns aligned left or right, as `sides` says."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)).rstrip()
        for row in rows
    ]
