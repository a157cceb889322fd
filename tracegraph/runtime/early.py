"""Effects that come early: where the shape of a Python function's results is not declared, the
call that is being traced makes it at once, and before it all effects that stand before it. The
first run of the program takes what they returned, so that each happens once, in its order."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracegraph.ir.op import attribute_key
from tracegraph.ir.tensor import Node
from tracegraph.ops.effect import HostCall

#: The arguments of a call that was made, and what it returned.
Made = tuple[Sequence[np.ndarray], tuple[np.ndarray, ...]]


class Log:
    """The calls of Python functions that one call of a traced function has made early."""

    def __init__(self) -> None:
        self.made: defaultdict[Any, deque[Made]] = defaultdict(deque)
        #: The functions whose calls are made early at this moment.
        self.open: frozenset[Any] = frozenset()


class _Call(threading.local):
    def __init__(self) -> None:
        #: The log of the call that this thread makes at top level; None outside of calls.
        self.log: Log | None = None


_call = _Call()
#: The logs of all calls that are under way: programs call Python from threads of their own.
_logs: list[Log] = []


def key_of(op: HostCall) -> Any:
    return attribute_key(op.function)


def host_calls(nodes: Sequence[Node]) -> Iterator[HostCall]:
    """The calls of Python functions among the nodes, and in the graphs that these call."""
    for node in nodes:
        if isinstance(node.op, HostCall):
            yield node.op
        for body in node.op.graphs():
            for graph in body.graphs():
                yield from (inner.op for inner in graph.nodes if isinstance(inner.op, HostCall))


def is_call() -> bool:
    """Whether this thread calls a traced function, so that its effects are to happen now."""
    return _call.log is not None


@contextmanager
def a_call() -> Iterator[None]:
    """A context for a call at top level: what it traces and runs. It begins with an empty log."""
    before, _call.log = _call.log, Log()
    try:
        yield
    finally:
        if _call.log in _logs:
            _logs.remove(_call.log)
        _call.log = before


@contextmanager
def made_early(ops: frozenset[HostCall]) -> Iterator[None]:
    """A context in which the calls of these ops are noted, for the run that comes later."""
    log = _call.log
    assert log is not None, "effects are made early in a call only"
    if log not in _logs:
        _logs.append(log)
    log.open = frozenset(map(key_of, ops))
    try:
        yield
    finally:
        log.open = frozenset()


def once(
    op: HostCall, arrays: Sequence[np.ndarray], call: Callable[[], tuple[np.ndarray, ...]]
) -> tuple[np.ndarray, ...]:
    """What the call returns; if it was made early, with these arguments, what it returned then."""
    if not _logs:
        return call()
    key = key_of(op)
    for log in list(_logs):
        if key in log.open:
            results = call()
            log.made[key].append((arrays, results))
            return results
        made = log.made.get(key)
        if made and all(map(same_bits, arrays, made[0][0])):
            return made.popleft()[1]
    return call()


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
