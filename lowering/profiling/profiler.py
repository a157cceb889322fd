"""What XLA's profiler records while code runs: how long each operation took, and whose it is.

Events name instructions and their modules; the module, which the profiler writes to the same file,
says which line an instruction belongs to. A fused instruction divides its time among its parts, by
a rough estimate of their work.
"""

from __future__ import annotations

import bisect
import dataclasses
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax

from lowering.device import wait_for_all
from lowering.profiling.profile_file import CompiledModule, Event, read_profile
from tracegraph.errors import LoweringError, fail

#: How long threads may take to record that what was waited for is over.
_LAST_EVENTS = 0.01


@dataclasses.dataclass(frozen=True)
class InstructionRun:
    """One run of an XLA instruction: on which thread or stream, when, and for how long, in seconds.
    `shares` are fractions that add up to 1, by the names in its metadata, which say whose it is."""

    module: str
    name: str
    thread: str
    start: float
    seconds: float
    shares: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Recording:
    """The operations of a run in order of their start, and the total time."""

    operations: tuple[InstructionRun, ...]
    seconds: float


def recorded(run: Callable[[], Any]) -> Recording:
    """Calls `run` twice, and records what XLA does during the second call, until all arrays have
    their values.

    Raises LoweringError if a profiler is already running.
    """
    held = run()  # a dropped result is not waited for
    wait_for_all()  # nothing that started earlier is part of it
    with tempfile.TemporaryDirectory(prefix="tracegraph-", ignore_cleanup_errors=True) as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        _start(folder, options)
        try:
            begin = time.perf_counter()
            held = run()
            wait_for_all()
            seconds = time.perf_counter() - begin
            time.sleep(_LAST_EVENTS)
            del held
        finally:
            jax.profiler.stop_trace()
        file = next(Path(folder).rglob("*.xplane.pb"))
        found = list(_operations(file.read_bytes()))
    return Recording(tuple(sorted(found, key=lambda x: x.start)), seconds)


def _start(folder: str, options: Any) -> None:
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        fact, fix = f"XLA's profiler does not start: {error}", "end the profile that is running"
        fail(LoweringError, fact, fix=fix, cause=error)


# Events.


def _operations(space: bytes) -> Iterator[InstructionRun]:
    """The operations of a profile, without those that only contain others, such as loops, and
    without what the host does on behalf of a device."""
    found, modules = read_profile(space)
    events = [event for event in found if not event.is_on_host] or found
    names: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in events:
        names[event.module, event.program].add(event.name)
    by_program = _matched(names, modules)
    starts = _starts(events)
    for event in events:
        module = by_program.get((event.module, event.program))
        instruction = None if module is None else module.instructions.get(event.name)
        if instruction is not None and instruction.opcode in _HOLDERS:
            continue
        shares = {} if module is None or instruction is None else module.shares(instruction)
        end = event.told_end if module is None else _end(event, module, starts)
        seconds = max(event.seconds, end - event.start)
        yield InstructionRun(event.module, event.name, event.thread, event.start, seconds, shares)


#: By program and name of an instruction, when its runs began, in order.
_Starts: TypeAlias = dict[tuple[str, int, str], list[float]]


def _starts(events: Sequence[Event]) -> _Starts:
    found: _Starts = defaultdict(list)
    for event in sorted(events, key=lambda x: x.start):
        found[event.module, event.program, event.name].append(event.start)
    return found


def _end(event: Event, module: CompiledModule, starts: _Starts) -> float:
    """When the work of an event was over. It may go on in other threads after the thread that began
    it has left it, and the last of these may do what takes the result before it tells the end."""
    end, seen = event.told_end, {event.name}
    waiting = [*module.users.get(event.name, ())]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        begun = starts.get((event.module, event.program, name))
        if begun is None:  # XLA need not run it, such as a bitcast
            waiting += module.users.get(name, ())
            continue
        place = bisect.bisect_right(begun, event.start)
        end = min(end, begun[place]) if place < len(begun) else end
    return end


_HOLDERS = ("while", "conditional", "call", "async-start", "async-done")


def _matched(
    names: Mapping[tuple[str, int], set[str]], modules: list[CompiledModule]
) -> dict[tuple[str, int], CompiledModule]:
    """The module of each program that ran. Program numbers equal module numbers, except for
    programs read from a cache: there the order is the same."""
    found: dict[tuple[str, int], CompiledModule] = {}
    taken: set[int] = set()
    for (name, program), wanted in sorted(names.items(), key=lambda row: row[0][1]):
        named = [m for m in modules if m.name == name and m.program not in taken]
        named.sort(key=lambda m: m.program != program)  # reading instructions takes long
        module = next((m for m in named if wanted <= m.instructions.keys()), None)
        if module is not None:
            found[name, program] = module
            taken.add(module.program)
    return found
