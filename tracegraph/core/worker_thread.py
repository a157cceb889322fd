"""Work on its own thread, where no signal handler interrupts it.

Handlers run on the main thread, between any two steps of Python. JAX and XLA hold locks while they
call Python, and JAX refuses to trace recursively: a handler that struck there and computed would
deadlock or fail. The threads are started without `threading`, of whose locks one may be held.

An exception from a handler, such as KeyboardInterrupt, is raised when the work is over or has
reached a point where it may be abandoned: the run of a program, which may never end. The thread
then continues, and nobody reads its result.

A handler may strike while the main thread holds a lock, and then wait for work that needs the same
lock. An RLock readmits its own thread, but not the worker that this thread waits for. So locks that
such work takes come from `shared_lock`, and are acquired by `with entered(lock)`.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import here, sourced

T = TypeVar("T")

#: Stack size of a thread in bytes: JAX traces functions inside functions, each several C frames
#: deep. The system allocates the stack as it is used.
_STACK = 2**26
_CACHED_PROPERTY = functools.cached_property.__get__.__code__
#: How often to check whether work may be abandoned, in seconds, once a handler has raised.
_LOOKS = 0.02
#: The most that a handler waits, in seconds. A signal that strikes just before the thread blocks,
#: or that `_thread.interrupt_main` only pretends, does not wake it.
_PATIENCE = 0.5


#: Every lock that both such work and the thread that waits for it may take.
_shared_locks: list[Any] = []


def shared_lock() -> threading.RLock:
    """A reentrant lock for `entered`. It is never freed, so create it at module level."""
    lock = threading.RLock()
    _shared_locks.append(lock)
    return lock


class _Own(threading.local):
    """A thread's task, if it has one, and the locks that it holds through its waiting thread."""

    task: Task[Any] | None = None
    locks: tuple[Any, ...] = ()


_own = _Own()
_nothing = contextlib.nullcontext()


def entered(lock: threading.RLock) -> contextlib.AbstractContextManager[Any]:
    """A context that holds a shared lock: none if the thread that waits for this one has it."""
    return _nothing if lock in _own.locks else lock


@contextlib.contextmanager
def _handlers_postponed() -> Iterator[None]:
    """On the main thread: signal handlers run when the block is over."""
    struck: list[int] = []
    handlers = {n: x for n in signal.valid_signals() if callable(x := signal.getsignal(n))}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: struck.append(number))
        yield
    finally:
        _put_back(handlers, struck)


def _put_back(handlers: dict[signal.Signals, Any], struck: list[int]) -> None:
    """Puts handlers back and runs those that were struck: all of them, also if one raises."""
    try:
        for number in [*handlers]:
            signal.signal(number, handlers[number])
            del handlers[number]
        while struck:
            signal.raise_signal(struck.pop(0))
    finally:
        if handlers or struck:
            _put_back(handlers, struck)


class Task(Generic[T]):
    """Work, on a thread of its own or in place, on the main thread; `result` waits for it."""

    def __init__(self, work: Callable[[], T], is_in_place: bool = False) -> None:
        self._work = work
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self._is_over = False
        #: Free when it is over.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._was_collecting = False
        #: The shared locks held by the thread that creates this task and waits for it.
        self._locks = (*_own.locks, *[lock for lock in _shared_locks if lock._is_owned()])
        #: Whether it has reached a point where it may be abandoned.
        self.may_be_left = False
        _running[self] = None
        if is_in_place:
            with _handlers_postponed():
                self._run()
            return
        before = _thread.stack_size(_STACK)
        try:
            _thread.start_new_thread(self._run, ())
        except outside_interrupts(RuntimeError):  # the interpreter is shutting down
            self._run()
        finally:
            _thread.stack_size(before)

    def _run(self) -> None:
        # The user's finalizers must not run here either.
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
            self._is_over = True
            self._lock.release()

    def wait(self) -> None:
        """Returns when the work is over. Exceptions from handlers meanwhile are raised then, or
        when the work may be abandoned."""
        struck: BaseException | None = None
        while not self._is_over:
            try:
                if struck is None:
                    self._lock.acquire(timeout=_PATIENCE)
                elif self.may_be_left:
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
            del struck  # a cycle would keep the locals of the caller's frames alive

    def _leave(self) -> None:
        """Abandons the thread, if it is not finished: nobody waits for it any more."""
        _running.pop(self, None)
        if self._was_collecting:
            gc.enable()

    def result(self) -> T:
        """The work's return value. Raises what the work raised. Call it once."""
        self.wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # a cycle would keep the locals of the work's frames alive
        return self._outcome.pop()  # the thread, which ends after this one goes on, holds nothing


#: Unfinished tasks: the interpreter must not exit before them.
_running: dict[Task[Any], None] = {}


@contextlib.contextmanager
def may_be_left() -> Iterator[None]:
    """The context of a run that may never end and changes nothing that others can see: the thread
    waiting for this thread's task may continue without it."""
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


def is_of_main_thread() -> bool:
    """Whether this is the main thread, or works for it: no other waits for a task that computes."""
    return _own.task is not None or threading.get_ident() == threading.main_thread().ident


def is_undisturbed() -> bool:
    """Whether no signal handler can strike on this thread."""
    return _own.task is not None or not is_of_main_thread()


def on_worker_thread(work: Callable[[], T], takes_locks: bool = True) -> T:
    """The result of `work`, run where no signal handler interrupts it. If it takes no locks of
    JAX, that is another thread even inside of a handler that struck while one was held."""
    if is_undisturbed():
        return work()
    place = here()  # errors there still belong to the user's line

    def placed() -> T:
        with sourced(place):
            return work()

    is_in_place = takes_locks and _holds_lock_of_cached_property()
    return Task(placed, is_in_place).result()


def _holds_lock_of_cached_property() -> bool:
    """Whether a handler struck inside a `functools.cached_property`. Before Python 3.12 it has one
    lock for all objects, which work on another thread could wait for."""
    frame = sys._getframe() if sys.version_info < (3, 12) else None
    while frame is not None and frame.f_code is not _CACHED_PROPERTY:
        frame = frame.f_back
    return frame is not None
