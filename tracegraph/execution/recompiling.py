"""The sizes that one trace was compiled for, and a warning when there are many."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.core.later import opened
from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.types import TensorType
from tracegraph.errors import ShapeError, warn
from tracegraph.passes.specialise import bind_sizes
from tracegraph.tracing.trace import Traced

#: A trace compiled for this many different sizes triggers the warning, once.
_MOST = 5
_FIX_OF_BUCKETS = (
    "Sizes above the largest of bucket_sizes, and sizes to which the function does not fit, run "
    "without padding: give a larger bucket, or call it with few sizes"
)
_FIX_OF_TAPES = (
    "Calls that an open tape watches are not padded: open the tape inside the function, which may "
    "have bucket_sizes then, or call it with few sizes"
)


class Recompiling:
    """Records the sizes that the program of one trace is compiled for.

    A trace with open sizes serves all of them, but XLA compiles each one separately.
    """

    def __init__(self, name: str, traced: Traced, names: Sequence[str], has_buckets: bool) -> None:
        """`names` are those of the trace's inputs."""
        self._name = name
        self._traced, self._has_buckets = traced, has_buckets
        self._formal = traced.graph.input_types
        self._names = tuple(names)
        self._seen: list[tuple[TensorType, ...]] = []
        #: Whether an open tape watched any of these calls.
        self._is_watched = False

    def compiles(self, types: Sequence[TensorType], is_watched: bool = False) -> None:
        """Records that inputs of these types need a program, for a call that an open tape watches
        or for another one; warns at the fifth."""
        types = tuple(types)
        if len(self._seen) >= _MOST or types in self._seen:
            return
        self._is_watched |= is_watched
        self._seen.append(types)
        if len(self._seen) == _MOST:
            self._warn()

    def _warn(self) -> None:
        text = (
            f"one trace of {self._name} was compiled for {_MOST} different sizes, which is slow: "
            f"XLA compiles each size again. Sizes so far: {'; '.join(self._sizes())}. {self._fix()}"
        )
        warn(text)

    def _fix(self) -> str:
        """What helps: bucket sizes only where they would give fewer programs."""
        if self._is_watched:
            return _FIX_OF_TAPES
        if self._has_buckets:
            return _FIX_OF_BUCKETS
        traced = self._traced
        results = range(traced.result_count)
        state = range(results.stop, results.stop + len(traced.assigned))
        padded = opened("tracegraph.padding.padded").padded
        try:
            names = padded(traced.graph, traced.argument_count, results, state).names
        except ShapeError as error:
            fact_and_line = " ".join(map(str.strip, str(error).split("\n")[:2]))
            return f"Call it with few sizes; tg.function cannot pad them: {fact_and_line}"
        buckets = self._buckets_for(names)
        if buckets is None:
            return "Call it with few sizes: they are those of Variables, which are not padded"
        return (
            f"Pad them to few sizes with tg.function(bucket_sizes={buckets}), or call it with "
            "fixed sizes"
        )

    def _buckets_for(self, names: Sequence[str]) -> str | None:
        """Bucket sizes for which the sizes seen need fewer programs; None if there are none."""
        bound = [bind_sizes(self._formal, types, assumes=True) for types in self._seen]
        seen = [tuple(int(sizes[name]) for name in names) for sizes in bound]
        if len(set(seen)) < len(seen):
            return None
        doubled = {tuple(1 << max(n - 1, 0).bit_length() for n in sizes) for sizes in seen}
        largest = max(max(sizes) for sizes in seen)
        return '"powers_of_two"' if len(doubled) < len(seen) else f"[{largest}]"

    def _sizes(self) -> list[str]:
        """The sizes seen for each open axis, or the shapes for each input of open rank."""
        found = []
        for place, (formal, name) in enumerate(zip(self._formal, self._names)):
            shapes = [types[place].shape for types in self._seen]
            if isinstance(formal.shape, ShapeVariable):
                found.append(f"shape of {name}: {', '.join(str(list(s)) for s in shapes)}")
                continue
            for axis, size in enumerate(formal.shape):
                sizes = list(dict.fromkeys(shape[axis] for shape in shapes))
                if isinstance(size, Dim) and len(sizes) > 1:
                    found.append(f"axis {axis} of {name}: {', '.join(map(str, sizes))}")
        return found
