"""Effects: printing and checks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegraph.eager.tensor_methods import gathered_array
from tracegraph.effects.host_calls import host_call
from tracegraph.effects.printing import AppendedFile, Template, template_of
from tracegraph.errors import InvalidArgumentError, TraceError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.elementwise import Relation
from tracegraph.tracing.trace import current_trace

# Printing.


def print_tensors(
    *inputs: object,
    output_stream: object = None,
    summarize: int | None = 3,
    sep: str = " ",
    end: str | None = "\n",
    name: str | None = None,
) -> None:
    """Prints values at every call of a compiled function, in program order; to stderr by default.

    - `inputs`: tensors, Variables, nested structures of them, and anything else, as text.
    - `output_stream`: a stream such as `sys.stdout`, or "file://path" to append to.
    - `summarize`: how many elements are shown at each end of an axis; -1 shows all.
    - `sep` stands between the inputs, `end` after the last.

    Raises TraceError (a TypeError) for what is not a stream, and for what is not an int.

    >>> tg.print("loss:", tg.constant(0.5), output_stream=sys.stdout)
    loss: 0.5
    """
    pieces, leaves = template_of(inputs, sep, "\n" if end is None else end)
    tensors = [as_tensor(x) for x in leaves]
    data = (pieces, _checked_summarize(summarize), _stream_data(output_stream))
    if current_trace() is None:
        Template(*data)(*map(gathered_array, tensors))
    else:
        host_call(("print", *data), tensors, ())


def _checked_summarize(summarize: Any) -> int:
    if summarize is None:
        return 3
    if not isinstance(summarize, int):
        fail(
            TraceError,
            f"tg.print: summarize is {shown(summarize)}, and it must be an int",
            fix="give how many elements are shown at each end of an axis, -1 for all",
        )
    return max(int(summarize), -1)


def _stream_data(stream: Any) -> Any:
    """A stream as the graph stores it: by name, if it has one that outlives the process."""
    if stream is None or stream is sys.stderr:
        return "stderr"
    if stream is sys.stdout:
        return "stdout"
    is_file = isinstance(stream, str) and stream.startswith("file://")
    if not is_file and not hasattr(stream, "write"):
        fail(
            TraceError,
            f"tg.print: the output stream is {shown(stream)}, to which nothing can be written",
            fix='give sys.stdout, sys.stderr, an open file, or "file://" and a path',
        )
    return AppendedFile(stream.removeprefix("file://")) if is_file else stream


# Checks.


def check(condition: Any, message: str, operands: Sequence[Any] = (), fix: str = "") -> None:
    """Raises InvalidArgumentError if `condition`, one truth value, does not hold: immediately at
    top level, in every call of a function. Assignments before it stay; nothing after it happens.
    """
    condition = as_tensor(condition)
    tensors = [as_tensor(x) for x in operands]
    trace = current_trace()
    if trace is not None:
        trace.check(condition, message, tensors, fix)
    elif not bool(gathered_array(condition)):
        fail(
            InvalidArgumentError,
            message,
            operands=[np.array2string(gathered_array(x), threshold=20) for x in tensors],
            fix=fix,
        )


def compared(condition: Any) -> tuple[Tensor, ...]:
    """The two numbers that a condition compares, for its error to show. Others have none."""
    node = as_tensor(condition).node
    return node.inputs if node is not None and isinstance(node.op, Relation) else ()


__all__ = ["check", "compared", "print_tensors"]
