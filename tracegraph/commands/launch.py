"""`tracegraph launch`: several processes of one script on this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from tracegraph.commands.answers import Answer, Misuse
from tracegraph.distribute.processes import ADDRESS, COUNT, INDEX, LAUNCHER
from tracegraph.distribute.watch import LOST, port_of, reserved_port

#: Signals forwarded to every process.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: How long, in seconds, processes may take to end after one has died, before they are killed.
_GRACE = 5.0
#: The interval at which processes are checked, in seconds.
_LOOKS = 0.05


def launch(options: argparse.Namespace) -> Answer:
    """Starts the processes, and exits with the code of the first that fails."""
    if options.processes < 1:
        raise Misuse(f"-n is {options.processes}", "start one process or more")
    if options.is_module:
        program = ["-m", options.script]
    elif os.path.isfile(options.script):
        program = [options.script]
    else:
        raise Misuse(
            f"there is no script {options.script}",
            "give the path of a Python script, or -m and the name of a module",
        )
    command = [sys.executable, "-u", *program, *options.arguments]
    group = _Group(command, options.processes, options.devices)
    return Answer("", {"exit codes": group.codes}, group.wait())


class _Group:
    """The processes, and the threads that print their output."""

    def __init__(self, command: Sequence[str], count: int, devices: int | None) -> None:
        #: Reserves the port for the first process, which will soon listen there.
        self._reserved = reserved_port("127.0.0.1")
        address = f"127.0.0.1:{port_of(self._reserved)}"
        #: A pipe whose writing end closes when this process ends, for whatever reason.
        self._alive, self._own_end = os.pipe()
        self._writing = threading.Lock()
        self._processes: list[subprocess.Popen[str]] = []
        #: The processes that have ended, in order.
        self._ended: list[subprocess.Popen[str]] = []
        self._printers: list[threading.Thread] = []
        #: The signals that were forwarded.
        self._received: set[int] = set()
        self._before = {x: signal.signal(x, self._forward) for x in _FORWARDED}
        self.codes: list[int] = []
        for index in range(count):
            own = {ADDRESS: address, COUNT: str(count), INDEX: str(index)}
            own[LAUNCHER] = str(self._alive)
            self._start(command, {**os.environ, **own, **_device_flags(devices)}, index)

    def _start(self, command: Sequence[str], environment: dict[str, str], index: int) -> None:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            pass_fds=(self._alive,),
            start_new_session=True,  # so that a terminal's Ctrl-C reaches it only through us
        )
        self._processes.append(process)
        for pipe, stream in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert pipe is not None
            printer = threading.Thread(target=self._print, args=(pipe, stream, index))
            printer.start()
            self._printers.append(printer)

    def _print(self, pipe: IO[str], stream: Any, index: int) -> None:
        with pipe, contextlib.suppress(OSError):
            for line in pipe:
                with self._writing:
                    stream.write(f"[{index}] {line.removesuffix(chr(10))}\n")
                    stream.flush()
        # If nobody reads on, the process finds its pipe closed, as it would without a launcher.

    def _forward(self, number: int, _: Any) -> None:
        self._received.add(number)
        for process in self._processes:
            if not _has_ended(process):
                os.kill(process.pid, number)

    def wait(self) -> int:
        """Waits for all processes. When one fails, the others may end by themselves for a while,
        and are then ended. Returns the exit code of the first that failed, or 0."""
        try:
            while self._are_running() and not any(map(_code_of, self._processes)):
                time.sleep(_LOOKS)
            for number in (signal.SIGTERM, signal.SIGKILL):
                deadline = time.monotonic() + _GRACE
                while self._are_running() and time.monotonic() < deadline:
                    time.sleep(_LOOKS)
                self._end(number)
        finally:
            self._end(signal.SIGKILL)
            self._end_what_they_started()
            for process in self._processes:
                process.wait()
            for printer in self._printers:
                printer.join()
            self._reserved.close()
            os.close(self._alive)
            os.close(self._own_end)
            for number, handler in self._before.items():
                signal.signal(number, handler)
        self.codes += [process.returncode for process in self._processes]
        # Processes that ended because of another one are not to blame.
        failed = [process for process in self._ended if process.returncode]
        blamed = min(failed, key=lambda process: process.returncode == LOST, default=None)
        return 0 if blamed is None else self._reported(blamed)

    def _reported(self, process: subprocess.Popen[str]) -> int:
        """The exit code of a process. One that was killed could not say anything itself."""
        code = process.returncode
        if code < 0 and -code not in self._received:
            name = signal.Signals(-code).name
            text = f"process {self._processes.index(process)} was ended by {name}, so all are ended"
            print(f"tracegraph launch: {text}", file=sys.stderr)
        return code if code > 0 else 128 - code

    def _are_running(self) -> bool:
        """Whether any process is still running. Notes the order in which they end."""
        running = [process for process in self._processes if not _has_ended(process)]
        self._ended += [x for x in self._processes if x not in running and x not in self._ended]
        return bool(running)

    def _end(self, number: int) -> None:
        for process in self._processes:
            if not _has_ended(process):
                os.kill(process.pid, number)

    def _end_what_they_started(self) -> None:
        """Kills what is left of the processes' groups, such as workers that load data. It has a
        while to end by itself; as long as it runs, it keeps the pipes open."""
        while self._are_running():
            time.sleep(_LOOKS)
        deadline = time.monotonic() + _GRACE
        for printer in self._printers:
            printer.join(max(deadline - time.monotonic(), 0))
        for process in self._processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)


def _has_ended(process: subprocess.Popen[str]) -> bool:
    return _code_of(process) is not None


def _code_of(process: subprocess.Popen[str]) -> int | None:
    """0 once a process has ended well, and None while it runs. It is not reaped, as Popen would do,
    so that its number, which its group has too, is given to nobody else before all is over."""
    if process.returncode is not None or not hasattr(os, "waitid"):  # macOS with an older Python
        return process.poll()
    end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if end is None else end.si_status


def _device_flags(devices: int | None) -> dict[str, str]:
    """The environment that gives a process a number of CPU devices."""
    if devices is None:
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}".strip(),
    }
