"""Programs that run out of memory: which of their values are large, and whose lines made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from lowering.places import name_of, usual_device
from tracegraph.core.source import Source, here
from tracegraph.core.types import TensorType, bytes_of_type
from tracegraph.errors import ResourceExhaustedError, is_of_run, message
from tracegraph.ir.tensor import Graph

#: How many values to report, and how many times smaller than the largest they may be.
_TOLD, _SMALLER = 5, 100
_FIX = (
    "use a smaller batch, or have @tg.function(memory_budget=...) compute values again in place of "
    "keeping them"
)
#: How the driver of a GPU says that the memory outside XLA's own pool is used up.
_OUTSIDE_POOL = "CUDA_ERROR_OUT_OF_MEMORY"
_FIX_OUTSIDE_POOL = (
    "other processes may hold the memory of this GPU, since each that uses JAX reserves three "
    "quarters of it: end them, or set XLA_PYTHON_CLIENT_PREALLOCATE=false in their environment"
)


def is_exhausted(error: BaseException) -> bool:
    """Whether XLA ran out of memory."""
    return is_of_run(error) and "RESOURCE_EXHAUSTED" in str(error)


def exhausted(error: BaseException, graph: Graph, compiled: Any = None) -> ResourceExhaustedError:
    """The error of a program that ran out of memory: its needs, and its largest values."""
    reason = str(error).split("\n")[0].rpartition("RESOURCE_EXHAUSTED: ")[2].strip(":. ")
    lines = [f"@{graph.name} finds no memory on {name_of(usual_device())}: {reason}"]
    lines += [*_needs(compiled), *_largest(graph)]
    fix = _FIX_OUTSIDE_POOL if _OUTSIDE_POOL in str(error) else _FIX
    return ResourceExhaustedError(message("\n".join(lines), source=here(), fix=fix))


def _needs(compiled: Any) -> Iterator[str]:
    """What a program uses while it runs, where XLA reports it."""
    found = None if compiled is None else compiled.memory_analysis()
    if found is not None:
        given, made = found.argument_size_in_bytes, found.output_size_in_bytes
        yield (
            f"  it takes {given:,} bytes of arguments, {made:,} of results and "
            f"{found.temp_size_in_bytes:,} in between"
        )


def _largest(graph: Graph) -> Iterator[str]:
    """The largest values computed on the user's lines; XLA stores those that it does not fuse."""
    counts: Counter[tuple[TensorType, Source]] = Counter()
    for node in graph.all_nodes():
        counts.update((y.type, node.source) for y in node.outputs if y.type.is_static)
    if not counts:
        return
    yield "  its largest values, of which XLA stores those that it does not fuse:"
    by_line = _by_line(counts)
    large = [
        row for row in by_line if bytes_of_type(row[0]) * _SMALLER >= bytes_of_type(by_line[0][0])
    ]
    for type, source, count in large[:_TOLD]:
        times = "" if count == 1 else f" {count} times"
        text = f": {source.text}" if source.text else ""
        yield f"    {bytes_of_type(type):,} bytes{times}: {type} at {source}{text}"


def _by_line(
    counts: Counter[tuple[TensorType, Source]],
) -> Sequence[tuple[TensorType, Source, int]]:
    """Types and lines with the number of their values, the largest values first."""
    lines: dict[tuple[Any, ...], tuple[TensorType, Source, int]] = {}
    for (type, source), count in counts.items():
        key = type, source.file, source.line, source.roles
        known = lines.get(key, (type, source, 0))
        lines[key] = type, source, known[2] + count
    return sorted(lines.values(), key=lambda row: (-bytes_of_type(row[0]), -row[2]))
