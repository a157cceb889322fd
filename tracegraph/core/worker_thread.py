"""Work on a thread of its own, where no signal handler interrupts it.

Handlers run on the main thread, between any two steps of Python. JAX and XLA hold locks while they
call Python, and refuse to trace what is being traced: a handler that fell in there and computed
would wait for ever, or fail. The threads are started without `threading`, whose own locks a handler
could find held.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.source import here, sourced

T = TypeVar("T")

#: Bytes of the stack of a thread: JAX traces functions inside functions, each some frames of C. The
#: system gives them as they are used.
_STACK = 2**26


class Task(Generic[T]):
    """`work`, begun on a thread of its own; `result` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self._is_over = _thread.allocate_lock()
        self._is_over.acquire()
        _running.append(self)
        before = _thread.stack_size(_STACK)
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:  # the interpreter is about to end
            if is_of_interrupt(error):
                raise
            self._run()
        finally:
            _thread.stack_size(before)

    def _run(self) -> None:
        # No finalizer of the user's may fall in here either.
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            self._outcome.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            if was_collecting:
                gc.enable()
            del self._work
            _running.remove(self)
            self._is_over.release()

    def wait(self) -> None:
        """Returns when the work is over. What a handler raises meanwhile is raised then."""
        struck: BaseException | None = None
        while True:
            try:
                with self._is_over:
                    break
            except BaseException as error:
                struck = error
        if struck is not None:
            raise struck

    def result(self) -> T:
        """What the work returned. Raises what it raised; it is asked for once."""
        self.wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # a cycle would keep alive what the frames of the work have
        return self._outcome[0]


#: What is not over: the interpreter must not end before.
_running: list[Task[Any]] = []


@atexit.register
def _wait_for_all() -> None:
    for task in [*_running]:
        task.wait()


def on_worker_thread(work: Callable[[], T]) -> T:
    """What `work` returns, done where no signal handler interrupts it."""
    if threading.get_ident() != threading.main_thread().ident:
        return work()
    place = here()  # what goes wrong there belongs to the user's line all the same

    def placed() -> T:
        with sourced(place):
            return work()

    return Task(placed).result()
