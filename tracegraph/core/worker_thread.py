"""Work on a thread of its own, where no signal handler interrupts it.

Handlers run on the main thread, between any two steps of Python. JAX and XLA hold locks while they
call Python, and refuse to trace what is being traced: a handler that fell in there and computed
would wait for ever, or fail. The threads are started without `threading`, whose own locks a handler
could find held.

What a handler raises, such as KeyboardInterrupt, is raised when the work is over, or when it has
come to where it may be left: to the run of a program, which may never end. The thread goes on then,
and nobody asks for what it makes.

A handler may strike while the main thread holds a lock, and wait for work that needs the same one.
An RLock lets its own thread in again, but not the thread that this one waits for. So locks that
work takes are made by `shared_lock`, and taken by `with entered(lock)`.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.source import here, sourced

T = TypeVar("T")

#: Bytes of the stack of a thread: JAX traces functions inside functions, each some frames of C. The
#: system gives them as they are used.
_STACK = 2**26
#: How often it is looked whether work may be left, in seconds, once a handler has raised.
_LOOKS = 0.02


#: Every lock that both work on such a thread and the thread that waits for it may take.
_shared_locks: list[Any] = []


def shared_lock() -> threading.RLock:
    """A reentrant lock for `entered`. It is never let go of, so it belongs to a module."""
    lock = threading.RLock()
    _shared_locks.append(lock)
    return lock


class _Own(threading.local):
    """The task of a thread, if it has one, and the locks that it has for the thread that waits."""

    task: Task[Any] | None = None
    locks: tuple[Any, ...] = ()


_own = _Own()
_nothing = contextlib.nullcontext()


def entered(lock: threading.RLock) -> contextlib.AbstractContextManager[Any]:
    """The context in which this thread has a lock of `shared_lock`: the lock itself, or nothing
    where the thread that waits for this one holds it, which cannot let go of it meanwhile."""
    return _nothing if lock in _own.locks else lock


class Task(Generic[T]):
    """`work`, begun on a thread of its own; `result` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self._is_over = _thread.allocate_lock()
        self._is_over.acquire()
        self._was_collecting = False
        #: The shared locks that the thread which makes this task, and waits for it, has.
        self._locks = (*_own.locks, *[lock for lock in _shared_locks if lock._is_owned()])
        #: Whether it has come to where it may be left.
        self.may_be_left = False
        _running[self] = None
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
        _own.task, _own.locks, self._was_collecting = self, self._locks, gc.isenabled()
        gc.disable()
        try:
            self._outcome.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            _own.task, _own.locks = None, ()
            if self._was_collecting:
                gc.enable()
            del self._work
            _running.pop(self, None)
            self._is_over.release()

    def wait(self) -> None:
        """Returns when the work is over. What a handler raises meanwhile is raised then, or when
        the work may be left."""
        struck: BaseException | None = None
        while True:
            try:
                if struck is None:
                    with self._is_over:
                        break
                elif self.may_be_left or not self._is_over.locked():
                    break
                else:
                    time.sleep(_LOOKS)
            except BaseException as error:
                struck = error
        try:
            if struck is not None:
                self._leave()
                raise struck
        finally:
            del struck  # a cycle would keep alive what the frames of the caller have

    def _leave(self) -> None:
        """Lets the thread go on by itself, if it is not over: nobody waits for it any more."""
        _running.pop(self, None)
        if self._was_collecting:
            gc.enable()

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
_running: dict[Task[Any], None] = {}


@contextlib.contextmanager
def may_be_left() -> Iterator[None]:
    """The context of what may never end, and changes nothing that somebody else has: whoever waits
    for the task of this thread may go on without it."""
    task = _own.task
    if task is not None:
        task.may_be_left = True
    try:
        yield
    finally:
        if task is not None:
            task.may_be_left = False


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
