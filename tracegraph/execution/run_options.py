"""The decorator's options for the programs that run a function."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from tracegraph.errors import SignatureError, fail, shown

Roll = Literal["auto", "always", False]

if TYPE_CHECKING:
    from tracegraph.execution.buckets import Buckets
    from tracegraph.tracing.trace import Traced


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How the traces of a function are compiled to programs."""

    #: Bucket sizes to which the sizes of arguments, and those that runs find, are padded.
    buckets: Buckets | None = None
    #: The bytes that a program may use beyond its inputs and outputs.
    memory_budget: int | None = None
    #: Whether to inspect results and find the node that makes the first nan.
    locate_numerics: bool = False
    #: Whether repeated blocks run as loops: if it pays, never, or always.
    roll: Roll = "auto"

    def of_trace(self, traced: Traced) -> RunOptions:
        """The options of one trace. A body that has effects or is padded cannot be rerun unchanged
        to find a nan: there `locate_numerics` is off, and checks in the graph watch every run."""
        locates = self.locate_numerics and self.buckets is None and not traced.has_effects
        return dataclasses.replace(self, locate_numerics=locates)


PLAIN = RunOptions()


def as_roll(value: Any) -> Roll:
    """The option `roll`. Raises SignatureError for any other value."""
    if value in ("auto", "always") or value is False:
        return value
    fail(
        SignatureError,
        f"function: roll is {shown(value)}",
        fix='give "auto", "always" or False',
    )
