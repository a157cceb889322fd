"""Processes that watch each other: all start, or none; and if one is lost, all exit.

Before JAX's own service starts, every process connects to the first one over plain sockets. A
process that does not connect within the timeout is reported by number. The connections stay open:
if a process dies, the system closes its connections at once, while processes that wait for its
data in a collective would wait forever, inside C. So a thread watches for that, reports what
happened, and exits the process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from tracegraph.core.source import here, line_of_thread
from tracegraph.distribute.order import ActionLog, Order
from tracegraph.errors import DistributedError, LoweringError, fail, is_of_run, message

#: The exit code of a process that exits because another one was lost.
LOST = 70
#: The interval between attempts to reach the first process, in seconds.
_RETRY = 0.05
#: How long a process that exits because of another's error may still report its own, in seconds.
_LAST_WORDS = 2.0
#: How long a process whose exchange broke waits for news of a lost process, in seconds: until after
#: the last words, or it reports as its own an error that is only a consequence.
_NEWS = _LAST_WORDS + 1.0
#: How long a process that has connected may take to identify itself, in seconds.
_INTRODUCTION = 5.0
#: How often a process tells the first one what it has run, in seconds.
_PACE = 1.0
#: For what processes do in the same order: what those do that differ, and the repair.
_DIFFERENCES = {
    "give": (
        "give parts of different tensors to from_local",
        "give parts of one shape, dtype and layout, as often in every process: pad the last batch, "
        "or leave it out",
    ),
    "run": (
        "do different things",
        "run the same functions in the same order in every process: let what is the same in all "
        "decide, such as a number of steps, and no clock, file or part of the data",
    ),
}
#: In a timeout each process tells so often that it is there, and at least every so many seconds.
_ROUNDS, _LONGEST_ROUND = 8, 5.0
#: Modules that wait for others' work; and the packages whose programs may wait for other processes.
_WAITING = ("threading", "queue", "concurrent.futures._base")
_OURS = ("tracegraph", "lowering", "jax")


class Peer:
    """A connection to another process, which carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")
        self._sending = threading.Lock()

    def tell(self, **words: Any) -> bool:
        """Sends a line; returns whether it was accepted."""
        try:
            with self._sending:
                self._connection.sendall(f"{json.dumps(words)}\n".encode())
        except OSError:
            return False
        return True

    def hear(self) -> dict[str, Any] | None:
        """The next line; None if the other side is gone."""
        try:
            line = self._lines.readline()
            return json.loads(line) if line.endswith("\n") else None
        # Reset because the process was killed, or timed out; or it is not a peer at all.
        except (OSError, ValueError):
            return None

    def set_timeout(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class _Exit(SystemExit):
    """The exception of `sys.exit` in a process that others watch. If nobody catches it, Python asks
    for the code with no frame below, and exits the program with it."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        if sys._getframe().f_back is None:
            _uncaught.append(super().code)
        return super().code


#: The argument of the `sys.exit` that ends the program.
_uncaught: list[Any] = []


def _exit(status: Any = None, /) -> NoReturn:
    raise _Exit(status)


class Watch:
    """The connections of this process: from the first one to all others, or from one to it."""

    def __init__(self, index: int, count: int, peers: dict[int, Peer], timeout: float) -> None:
        self.index, self.count, self.peers = index, count, peers
        self._timeout = timeout
        #: The exit code for an error that ends this process; 0 without one.
        self._error_code = 0
        #: The process that reported an error before this one had any.
        self._failed_first: int | None = None
        #: When each of them was heard last.
        self._heard = dict.fromkeys(peers, time.monotonic())
        #: The processes that said that they end, and when; and those that have ended.
        self._left: dict[int, float] = {}
        self._gone: set[int] = set()
        #: Whether this one has said it.
        self._is_leaving = False
        #: Whether all have said it, as the first process tells the others.
        self._all_have_left = False
        #: What another process told of a lost one: which, and whether it failed.
        self._loss = (0, False)
        #: What processes did not do alike, in words, and the repair.
        self._difference: tuple[str, str] | None = None
        #: Set with either of them.
        self._must_end = threading.Event()
        #: What this process has given and run, and in the first one what all have.
        self._gifts, self.runs = ActionLog(), ActionLog()
        self._logs = {"give": self._gifts, "run": self.runs}
        self._orders = {kind: Order(count) for kind in self._logs}
        #: Wakes the thread that tells of it; it may be filled at any time, also by signal handlers.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._telling = threading.Lock()
        #: Held by the thread that ends this process.
        self._ending = threading.Lock()
        for number, peer in peers.items():
            thread = threading.Thread(target=self._listen, args=(number, peer), daemon=True)
            thread.start()
        threading.Thread(target=self._look_after, daemon=True).start()
        threading.Thread(target=self._tell_now_and_then, daemon=True).start()
        # It begins now: no thread can where the interpreter exits.
        threading.Thread(target=self._end_when_told, daemon=True).start()
        previous = sys.excepthook

        def note_failure(kind: Any, error: Any, *rest: Any) -> None:
            may_be_of_loss = type(error) is LoweringError or is_of_run(error)
            if may_be_of_loss:  # `_listen` ends this process if another one was lost
                time.sleep(_NEWS)
            self._error_code = LOST if may_be_of_loss and self._failed_first is not None else 1
            previous(kind, error, *rest)

        sys.excepthook = note_failure
        sys.exit = _exit
        atexit.register(self.leave)

    def _listen(self, number: int, peer: Peer) -> None:
        is_told = False
        while (words := peer.hear()) is not None:
            self._heard[number] = time.monotonic()
            if "left" in words:
                self._note_end_of(words["left"])
            self._all_have_left |= "all_left" in words
            if "done" in words:
                self._compare(number, words.pop("kind"), words)
            if "difference" in words and not is_told:
                is_told = True
                self._difference = words["difference"]
                self._must_end.set()
            if "lost" in words and not is_told:
                is_told = True
                # Elsewhere, since who tells of a loss is gone soon, which only this thread hears.
                self._loss = words["lost"], words["has_failed"]
                self._must_end.set()
        self._gone.add(number)
        if number not in self._left and not is_told and self._difference is None:
            self._end_without(number)

    def give(self, kind: str, told: str) -> None:
        """Has the first process compare the kind of what this one gives with what the others give
        as their next, and end all where they differ. Nobody waits for that."""
        self._gifts.note(kind, told)
        self._news.put(None)

    def _tell_now_and_then(self) -> None:
        while not self._all_have_left:
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=_PACE)
            self._tell_what_was_done()

    def _tell_what_was_done(self) -> None:
        with self._telling:
            for kind, log in self._logs.items():
                if not log.done:
                    continue
                if self.index == 0:
                    self._compare(0, kind, log.taken())
                else:
                    self.peers[0].tell(kind=kind, **log.taken())

    def _compare(self, process: int, kind: str, added: dict[str, Any]) -> None:
        found = self._orders[kind].add(process, **added)
        if found is None or self._difference is not None:
            return
        what, fix = _DIFFERENCES[kind]
        since = f" after {found.common:,} that were the same" if found.common else ""
        told = f"process {found.first} {found.told}, and process {found.second} {found.other}"
        self._difference = f"processes {what}{since}: {told}", fix
        for peer in self.peers.values():
            peer.tell(difference=self._difference)
        self._must_end.set()

    def _end_when_told(self) -> None:
        self._must_end.wait()
        if self._difference is not None:
            self.end(self._text(*self._difference))
        lost, has_failed = self._loss
        self._failed_first = lost if has_failed else None
        time.sleep(_LAST_WORDS if has_failed else 0)
        self._end_without(lost, has_failed)

    def _look_after(self) -> None:
        """Tells the others that this process is there, and ends it where one of them is silent. The
        system closes no connection of a process that is stopped, or of a machine that is cut off.
        """
        pause = min(self._timeout / _ROUNDS, _LONGEST_ROUND)
        standing = _Standing()
        looked = time.monotonic()
        while not self._all_have_left:
            for peer in self.peers.values():
                peer.tell(is_there=True)
            time.sleep(pause)
            before, looked = looked, time.monotonic()
            if looked - before > pause + self._timeout / 2:  # it was this one that was stopped
                self._heard = dict.fromkeys(self._heard, looked)
            self._end_where_one_is_silent(looked)
            if self._left and not self._is_leaving:
                self._end_where_this_waits_in_vain(standing.since())

    def _end_where_one_is_silent(self, now: float) -> None:
        for number, heard in self._heard.items():
            if now - heard > self._timeout and number not in self._gone:
                what = f"has not answered for {self._timeout:g} s"
                fix = "see whether it is stopped, or its machine cannot be reached"
                self.end(self._text_of(number, what, fix), number)

    def _end_where_this_waits_in_vain(self, since: float | None) -> None:
        """Ends this process if it has been in one call of JAX's for the whole timeout, and another
        process has come to the end of its program. What goes on elsewhere, such as a report that is
        written, has its time."""
        if since is None or time.monotonic() - since < self._timeout:
            return
        ended = next(iter(self._left))
        text = self._text(
            f"process {self.index} has been in one call for {self._timeout:g} s, and process "
            f"{ended} of {self.count} has come to the end of its program",
            "run the same functions equally often in every process, or one may wait for ever; "
            "initialize(timeout=...) waits longer",
        )
        self.end(text)

    def _note_end_of(self, number: int) -> None:
        """Called when a process has reached the end of its program."""
        self._left[number] = time.monotonic()
        if self.index == 0:  # the others are connected only to the first one
            for other in self.peers.keys() - {number}:
                self.peers[other].tell(left=number)

    def end_with_launcher(self, pipe: int) -> None:
        """Exits the process when the other end of a pipe is closed, as when the launcher that
        holds it is killed."""

        def listen() -> None:
            os.read(pipe, 1)  # nobody writes
            fix = "start all again, and they go on from the last checkpoint"
            self.end(self._text(f"the launcher is gone, so process {self.index} ends", fix))

        threading.Thread(target=listen, daemon=True).start()

    def has_ended(self) -> int | None:
        """A process that has reached the end of its program, and no longer runs any other."""
        long_ago = time.monotonic() - _LAST_WORDS  # it may have run the last one with us
        return next((number for number, since in self._left.items() if since < long_ago), None)

    def _end_without(self, lost: int, has_failed: bool = False) -> None:
        self.end(self._text_of(lost, "failed" if has_failed else "was lost"), lost, has_failed)

    def _text_of(self, lost: int, what: str, fix: str = "look for its first error") -> str:
        return self._text(
            f"process {lost} of {self.count} {what}, so process {self.index} ends",
            f"{fix}; start all again, and they go on from the last checkpoint",
        )

    def _text(self, fact: str, fix: str) -> str:
        """A message with the line that the program has reached."""
        place = line_of_thread(threading.main_thread().ident)
        return f"tracegraph: {message(fact, source=place, fix=fix)}\n"

    def end(self, text: str, lost: int | None = None, has_failed: bool = False) -> NoReturn:
        """Tells all others and exits this process, which may be inside C, where nothing can
        raise."""
        self._ending.acquire()  # and never released: only one reason is reported
        with contextlib.suppress(OSError):  # the reader may be gone
            sys.stdout.flush()
            sys.stderr.write(text)
            sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # later failures are consequences
        self._tell_loss(self.index if lost is None else lost, has_failed)
        os._exit(LOST)

    def _tell_loss(self, lost: int, has_failed: bool) -> None:
        for peer in self.peers.values():
            peer.tell(lost=lost, has_failed=has_failed)
        self._end_last()

    def _end_last(self) -> None:
        """Makes the first process wait for the others to exit: JAX's service dies with it, which
        would end them without a message."""
        deadline = time.monotonic() + 2 * _LAST_WORDS
        while self.index == 0 and len(self._gone) < len(self.peers):
            if time.monotonic() > deadline:
                return
            time.sleep(_RETRY)

    def leave_together(self) -> None:
        """Announces that this process leaves, and waits until all have done so. After that it may
        exit in any way without being reported as lost."""
        self.leave()
        self._end_last()

    def leave(self) -> None:
        """Called at interpreter exit. After an error, the others must not wait for this process,
        nor it for them."""
        code = self._error_code or _status(_uncaught)
        if code:
            self._ending.acquire()
            sys.stdout.flush()
            if self._failed_first is not None:  # this error may be a consequence of that one
                sys.stderr.write(self._text_of(self._failed_first, "failed"))
            sys.stderr.flush()
            self._tell_loss(self.index, has_failed=True)
            os._exit(code)
        self._is_leaving = True
        self._tell_what_was_done()
        for peer in self.peers.values():
            peer.tell(left=self.index)
        self._wait_until_all_have_left()

    def _wait_until_all_have_left(self) -> None:
        """JAX's service would wait too, and then abort without a word of who is missing. However
        long it takes: a process that is lost ends this one, and one that waits in vain itself."""
        while not self._all_have_left:
            if self.index == 0 and self._difference is None:
                self._all_have_left = self._left.keys() | self._gone >= self.peers.keys()
            time.sleep(_RETRY)
        if self.index == 0:
            for peer in self.peers.values():
                peer.tell(all_left=True)


class _Standing:
    """Where the program stands still: the main thread, inside of JAX, as in a collective."""

    def __init__(self) -> None:
        self._place: tuple[Any, int] | None = None
        self._since = 0.0

    def since(self) -> float | None:
        """Since when it has been at one place inside of JAX, as far as it was looked; None where it
        is anywhere else."""
        place = _place_inside_of_jax()
        if place != self._place:
            self._place, self._since = place, time.monotonic()
        return None if place is None else self._since


def _place_inside_of_jax() -> tuple[Any, int] | None:
    """The innermost frame of the main thread, if what it runs or waits for is JAX's, and where it
    is in it. Whoever keeps the frame knows it from the next one of the same function."""
    found = frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_globals.get("__name__") in _WAITING:
        frame = frame.f_back
    package = "" if frame is None else frame.f_globals.get("__name__", "").partition(".")[0]
    return (found, found.f_lasti) if found is not None and package.startswith(_OURS) else None


def _status(codes: list[Any]) -> int:
    """The exit code for the argument of `sys.exit`, as in Python; 0 if it was not called."""
    given = codes[-1] if codes else None
    return 0 if given is None else given & 0xFF if isinstance(given, int) else 1


def reserved_port(host: str) -> socket.socket:
    """A socket bound to a free port, which nobody else gets while it is open: only a process that
    asks for this very port, and is ready to share it, can listen there."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind((host, 0))
    return found


def port_of(reserved: socket.socket) -> int:
    """The port of a socket."""
    return reserved.getsockname()[1]


def meet(
    address: str, count: int, index: int, timeout: float, own_port: int, is_reserved: bool
) -> tuple[Watch, int]:
    """Waits until all processes have connected. Returns the connections, and the port of JAX's
    service, which is `own_port` of the first process; `is_reserved` says that somebody reserves the
    address. Raises DistributedError if a process does not connect."""
    host, _, port = address.rpartition(":")
    if index == 0:
        with _listening((host, int(port)), is_reserved) as server:
            return _gather(server, count, timeout, own_port)
    return _join((host, int(port)), count, index, timeout)


def _gather(server: socket.socket, count: int, timeout: float, port: int) -> tuple[Watch, int]:
    deadline = time.monotonic() + timeout
    peers: dict[int, Peer] = {}
    while len(peers) < count - 1:
        server.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            _refuse_missing(peers, count, timeout)
        peer = Peer(connection)
        peer.set_timeout(_INTRODUCTION)
        words = peer.hear()
        free = [i for i in range(1, count) if i not in peers]
        told = words if isinstance(words, dict) else {}
        if told.get("count") != count or told.get("index") not in free:
            peer.tell(refused=f"it has {count} processes, and each number once")
            peer.close()
            continue
        peers[told["index"]] = peer
    for peer in peers.values():
        peer.set_timeout(None)
        peer.tell(port=port)
    return Watch(0, count, peers, timeout), port


def _listening(address: tuple[str, int], is_reserved: bool) -> socket.socket:
    try:
        return socket.create_server(address, backlog=128, reuse_port=is_reserved)
    except OSError as error:
        fail(
            DistributedError,
            f"the first process cannot listen at {address[0]}:{address[1]}: {error.strerror}",
            source=here(),
            fix="give coordinator_address= an address of this machine, with a port that is free",
        )


def _refuse_missing(peers: dict[int, Peer], count: int, timeout: float) -> NoReturn:
    missing = [str(i) for i in range(1, count) if i not in peers]
    for peer in peers.values():
        peer.tell(refused=f"processes {', '.join(missing)} did not come")
        peer.close()
    fail(
        DistributedError,
        f"of {count} processes {', '.join(missing)} did not come within {timeout:g} s",
        source=here(),
        fix="start all of them, with the same coordinator_address; timeout= gives them longer",
    )


def _join(address: tuple[str, int], count: int, index: int, timeout: float) -> tuple[Watch, int]:
    deadline = time.monotonic() + timeout
    peer = Peer(_connected(address, deadline, timeout))
    peer.set_timeout(max(deadline - time.monotonic(), 0.001) + 2)
    peer.tell(index=index, count=count)
    words = peer.hear()
    told = words if isinstance(words, dict) else {}
    if "port" not in told:
        peer.close()
        reason = told.get("refused", "it ended, or does not belong to this run")
        fix = "give each process its own number, from 0 on, and all the same num_processes"
        if "refused" not in told:
            fix = "see whether process 0 has ended, or another program listens at this address"
        fail(
            DistributedError,
            f"the coordinator at {address[0]}:{address[1]} did not take process {index} of "
            f"{count}: {reason}",
            source=here(),
            fix=fix,
        )
    peer.set_timeout(None)
    return Watch(index, count, {0: peer}, timeout), told["port"]


def _connected(address: tuple[str, int], deadline: float, timeout: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, max(deadline - time.monotonic(), 0.001))
        except OSError as error:
            if time.monotonic() + _RETRY > deadline:
                fail(
                    DistributedError,
                    f"there is no coordinator at {address[0]}:{address[1]}, after {timeout:g} s: "
                    f"{error}",
                    source=here(),
                    fix="start process 0 at this address; timeout= waits longer",
                )
            time.sleep(_RETRY)
