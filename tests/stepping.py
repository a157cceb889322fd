"""Processes that save once and are killed right before a system call that changes files.

The one that saves is a child under ptrace: it stops at each system call, and the one that is meant
never begins. Between two such calls nothing changes on the disk, so with a kill at each of them all
states are seen that a killed process can leave. Only the thread that saves is stopped.
"""

import ctypes
import os
import pathlib
import platform
import signal
import struct
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]

#: System calls that change files, by their numbers on a machine.
_NUMBERS = {
    "x86_64": {
        "write": 1,
        "open": 2,
        "pwrite64": 18,
        "writev": 20,
        "sendfile": 40,
        "fsync": 74,
        "fdatasync": 75,
        "truncate": 76,
        "ftruncate": 77,
        "rename": 82,
        "mkdir": 83,
        "rmdir": 84,
        "creat": 85,
        "link": 86,
        "unlink": 87,
        "symlink": 88,
        "chmod": 90,
        "fchmod": 91,
        "openat": 257,
        "mkdirat": 258,
        "unlinkat": 263,
        "renameat": 264,
        "linkat": 265,
        "fchmodat": 268,
        "renameat2": 316,
        "copy_file_range": 326,
    },
    "aarch64": {
        "mkdirat": 34,
        "unlinkat": 35,
        "linkat": 37,
        "renameat": 38,
        "truncate": 45,
        "ftruncate": 46,
        "fchmod": 52,
        "fchmodat": 53,
        "openat": 56,
        "write": 64,
        "writev": 66,
        "pwrite64": 68,
        "sendfile": 71,
        "fsync": 82,
        "fdatasync": 83,
        "renameat2": 276,
        "copy_file_range": 285,
    },
}.get(platform.machine() if sys.platform == "linux" else "", {})
_NAMES = {number: name for name, number in _NUMBERS.items()}
#: Which argument is the (last) path, and which one the flags of an open.
_PATHS = {
    **dict.fromkeys(("open", "creat", "truncate", "mkdir", "rmdir", "unlink", "chmod"), 0),
    **dict.fromkeys(("rename", "link", "symlink"), 1),
    **dict.fromkeys(("openat", "mkdirat", "unlinkat", "fchmodat"), 1),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), 3),
}
_FLAGS = {"open": 1, "openat": 2}
_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_MARK_CALLS, _DIE_WITH_US = 0x1, 0x100000
#: What a stop at a system call looks like, and how much is told of it.
_AT_CALL, _BYTES = signal.SIGTRAP | 0x80, 96
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Call(NamedTuple):
    """A system call that is about to begin."""

    name: str
    #: Its last path; "" for one that has none.
    path: str


def _ptrace(request, process, address=None, data=None):
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    arguments = [ctypes.c_void_p(x) if isinstance(x, int) else x for x in (address, data)]
    if library.ptrace(ctypes.c_long(request), ctypes.c_long(process), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def _call_at(process):
    """The system call at whose beginning a process stands; None if it changes no files."""
    told = ctypes.create_string_buffer(_BYTES)
    _ptrace(_GET_SYSCALL_INFO, process, _BYTES, ctypes.addressof(told))
    if told.raw[0] != 1:  # it ends here
        return None
    number, *arguments = struct.unpack_from("7Q", told.raw, 24)
    name = _NAMES.get(number)
    if name is None or (name in _FLAGS and not arguments[_FLAGS[name]] & _CHANGING):
        return None
    return Call(name, _text(process, arguments[_PATHS[name]]) if name in _PATHS else "")


def _text(process, address):
    """The string at an address in the memory of a process."""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        page = 4096 - address % 4096  # the next one may not be there
        return memory.read(page).split(b"\0")[0].decode()


def calls_of(process):
    """Lets a child that asked to be traced go on to each call that changes files."""
    os.waitpid(process, 0)
    _ptrace(_SETOPTIONS, process, None, _MARK_CALLS | _DIE_WITH_US)
    passed_on = 0
    while True:
        _ptrace(_SYSCALL, process, None, passed_on)
        _, status = os.waitpid(process, 0)
        if not os.WIFSTOPPED(status):
            assert os.WIFEXITED(status) and not os.WEXITSTATUS(status), status
            return
        passed_on = 0 if os.WSTOPSIG(status) == _AT_CALL else os.WSTOPSIG(status)
        call = None if passed_on else _call_at(process)
        if call is not None:
            yield call


def start(save):
    """Forks a process that saves under ptrace."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            save()
            status = 0
        finally:
            os._exit(status)
    return process


def kill_at(save, number, is_from):
    """Kills a process right before the call of a number, counted from the first one for which
    `is_from` holds. Returns that call, or None if there are not so many."""
    process = start(save)
    count = -1
    for call in calls_of(process):
        count += count >= 0 or is_from(call)
        if count == number:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return call
    return None


def can_step():
    """Whether processes can be traced here."""
    command = [sys.executable, "-m", "tests.stepping"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    return done.returncode == 0


class Steps:
    """Runs saves of a kind in a process of its own, from which the children are forked: pytest
    itself has threads of JAX by then."""

    def __init__(self, kind, where):
        self.arguments = kind, where

    def __enter__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a child's imports change no files
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.stepping", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        return self

    def strike(self, number):
        """Kills a save of generation 2 at the call of a number. Returns the call; "" if the save
        came to its end before."""
        self.server.stdin.write(f"{number}\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the process that forks has ended"
        return answer.strip()

    def __exit__(self, *exception):
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(timeout=60)


def serve(kind, where):
    """`where` is "whole" for all calls of a save, "commit" for those from the rename of the
    manifest on."""
    import lowering.program  # noqa: F401  (it imports JAX, whose threads begin later)
    from tests.generations import KINDS

    path, save, _ = KINDS[kind]

    def is_from(call):
        is_commit = call.name.startswith("rename") and call.path.endswith("tracegraph.json")
        return call.path.startswith(path) if where == "whole" else is_commit

    for line in sys.stdin:
        call = kill_at(lambda: save(2, path), int(line), is_from)
        print(f"{call.name} {call.path}" if call else "", flush=True)


def probe():
    """Traces a process that makes one call. Raises where that is not possible."""
    assert _NUMBERS
    calls = calls_of(start(lambda: pathlib.Path("/dev/null").write_bytes(b"")))
    assert any(call.path == "/dev/null" for call in calls)


if __name__ == "__main__":
    serve(*sys.argv[1:]) if sys.argv[1:] else probe()
