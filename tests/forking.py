"""`tracegraph launch` in a process that has imported everything, as have those that it starts.

Starting Python and JAX takes longer than most of what several processes are to do. So one process
starts and imports, and forks for each launch, before anything has begun that a fork would not
survive; and what it launches are forks again, in which the script runs as at the top of a program.
"""

import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


class Launcher:
    """Launches scripts, one after another."""

    def __enter__(self):
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        return self

    def launch(self, arguments, grace, folder):
        """The exit code and both outputs; `grace` is how long a launcher lets processes end."""
        request = {"arguments": arguments, "grace": grace, "folder": str(folder)}
        self.server.stdin.write(f"{json.dumps(request)}\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the process that forks has ended"
        texts = [(folder / name).read_text("utf-8") for name in ("out", "err")]
        return int(answer), *texts

    def __exit__(self, *exception):
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(timeout=60)


class Begin(BaseException):
    """Leads to the top of the program, in a process that is to run a script."""


class Forked:
    """What the launcher uses of `subprocess.Popen`, of a fork."""

    def __init__(self, command, *, env, **_):
        pipes = os.pipe(), os.pipe()
        self.args, self.returncode = command, None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            direct_outputs(end for _, end in pipes)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = [*command[2:]]  # behind the interpreter and `-u`
            raise Begin
        for _, end in pipes:
            os.close(end)
        self.stdout, self.stderr = (os.fdopen(x, errors="backslashreplace") for x, _ in pipes)

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def direct_outputs(files):
    """Makes open files the outputs, of this program and of its libraries."""
    for number, file in zip((1, 2), files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def serve():
    """Forks for each request. Returns in the processes that are to run a script."""
    import lowering.program  # noqa: F401  (it imports JAX, whose threads begin later)
    from tracegraph.commands import launch
    from tracegraph.commands.main import main

    launch.subprocess.Popen = Forked
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process:
            print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        paths = (os.path.join(request["folder"], name) for name in ("out", "err"))
        direct_outputs(os.open(path, flags) for path in paths)
        launch._GRACE = request["grace"]
        try:
            os._exit(main(["launch", *request["arguments"]]))
        except Begin:
            return


if __name__ == "__main__":
    serve()
    if sys.argv[1:]:
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
