"""What XLA's profiler saw while something ran: which operation took how long, and whose it is.

Events name instructions, with the module that they are of; which line an instruction is of stands
in the module itself, which the profiler writes into the same file. An instruction that is fused of
others shares its time out to them, by a rough estimate of their work.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from lowering.device import wait_for_all
from lowering.profiling.profile_file import Module, read_profile
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
        wait_for_all()  # what was started before is not part of it
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
        found = list(_operations(file.read_bytes()))
    return Recording(tuple(sorted(found, key=lambda x: x.start)), seconds)


def _start(folder: str, options: Any) -> None:
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        fact, fix = f"XLA's profiler does not start: {error}", "end the profile that is running"
        fail(LoweringError, fact, fix=fix, cause=error)


# Events.


def _operations(space: bytes) -> Iterator[Operation]:
    """The operations of a profile. What only holds others, such as a loop, is left out; so is what
    the host does for a device."""
    found, modules = read_profile(space)
    events = [event for event in found if not event.is_on_host] or found
    names: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in events:
        names[event.module, event.program].add(event.name)
    by_program = _matched(names, modules)
    for event in events:
        module = by_program.get((event.module, event.program))
        instruction = None if module is None else module.instructions.get(event.name)
        if instruction is not None and instruction.opcode in _HOLDERS:
            continue
        shares = {} if module is None or instruction is None else module.shares(instruction)
        place = event.module, event.name, event.thread, event.start, event.seconds
        yield Operation(*place, shares)


_HOLDERS = ("while", "conditional", "call", "async-start", "async-done")


def _matched(
    names: Mapping[tuple[str, int], set[str]], modules: list[Module]
) -> dict[tuple[str, int], Module]:
    """The module of each program that ran. The numbers of programs are those of modules, but for
    programs that were read from a cache: their order is the same."""
    found: dict[tuple[str, int], Module] = {}
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
