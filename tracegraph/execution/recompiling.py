"""The sizes that one trace was compiled for, and a warning when there are many."""

from __future__ import annotations

from collections.abc import Sequence

from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.types import TensorType
from tracegraph.errors import warn

#: A trace compiled for this many different sizes triggers the warning, once.
_MOST = 5
_FIX = (
    'Pad them to few sizes with tg.function(bucket_sizes="powers_of_two"), or call it with fixed '
    "sizes"
)
_FIX_OF_BUCKETS = (
    "Sizes above the largest of bucket_sizes, and calls that an open tape watches, run without "
    "padding: give a larger bucket, or open the tape inside the function"
)


class Recompiling:
    """Records the sizes that the program of one trace is compiled for.

    A trace with open sizes serves all of them, but XLA compiles each one separately.
    """

    def __init__(
        self, name: str, formal: Sequence[TensorType], names: Sequence[str], has_buckets: bool
    ) -> None:
        """`formal` are the declared types of the trace's inputs."""
        self._name = name
        self._fix = _FIX_OF_BUCKETS if has_buckets else _FIX
        self._formal = tuple(formal)
        self._names = tuple(names)
        self._seen: list[tuple[TensorType, ...]] = []

    def compiles(self, types: Sequence[TensorType]) -> None:
        """Records that inputs of these types need a program; warns at the fifth."""
        types = tuple(types)
        if len(self._seen) >= _MOST or types in self._seen:
            return
        self._seen.append(types)
        if len(self._seen) == _MOST:
            self._warn()

    def _warn(self) -> None:
        text = (
            f"one trace of {self._name} was compiled for {_MOST} different sizes, which is slow: "
            f"XLA compiles each size again. Sizes so far: {'; '.join(self._sizes())}. {self._fix}"
        )
        warn(text)

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
