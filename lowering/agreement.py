"""Whether all processes run the same program, asked before each one's first run.

A program whose arrays have parts in several processes runs in all of them, or waits for ever. So
at its first call the processes compare what they are about to run. Those who differ tell each other
the first node that does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from lowering import processes
from tracegraph.core.source import here
from tracegraph.errors import DistributedError, fail
from tracegraph.ir.tensor import Graph
from tracegraph.text.printer import module_text


def agree(graph: Graph, lowered: Any, buffers: Sequence[Any]) -> None:
    """Compares a program with those that the other processes are about to run, if its arrays are
    divided among them. Raises DistributedError in all of them where they differ."""
    if not processes.spans_processes(buffers):
        return
    place = here()
    told = f"@{graph.name} at {place}"
    digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    with _ended_in_time(told):
        found = [json.loads(x) for x in processes.gathered(json.dumps([digest, told]).encode())]
        if all(other == digest for other, _ in found):
            return
        texts = [
            x.decode() for x in processes.gathered(module_text([graph], locations=True).encode())
        ]
    own = processes.index()
    other = next(i for i, (each, _) in enumerate(found) if each != digest)
    _refuse(own, other, found[own][1], found[other][1], texts[own], texts[other])


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
    """The first lines in which two texts differ."""
    rows, others = text.splitlines(), other.splitlines()
    same = 0
    while same < min(len(rows), len(others)) and rows[same] == others[same]:
        same += 1
    return _line(rows, same), _line(others, same)


def _line(rows: Sequence[str], i: int) -> str:
    return rows[i].strip() if i < len(rows) else "ends here"


@contextlib.contextmanager
def _ended_in_time(told: str) -> Iterator[None]:
    """Ends the process if the others do not come to the same point: it waits inside of C."""
    seconds = processes.settings.timeout

    text = (
        f"tracegraph: process {processes.index()} has waited {seconds:g} s for the other processes "
        f"to run {told}\n  fix: call it in every process; initialize(timeout=...) waits longer\n"
    )
    timer = threading.Timer(seconds, lambda: processes.settings.end(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
