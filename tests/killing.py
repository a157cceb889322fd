"""Processes that save without end and are killed at random moments.

Starting Python and JAX takes longer than all the rest. So one process starts and imports, and forks
a child for every kill before anything has begun that a fork would not survive.
"""

import importlib.util
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).parents[1]


class Kills:
    """Runs the class `Saver` of a test file in processes that are killed."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.killing", self.file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        return self

    def strike(self):
        """Starts a process, kills it, and returns the last generation that it told of."""
        self.server.stdin.write("next\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the process that forks has ended"
        return int(answer)

    def __exit__(self, *exception):
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(timeout=60)


def child(saver, pipe):
    """Saves until it is killed."""
    try:
        saver().run(lambda generation: os.write(pipe, b"%d\n" % generation))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def kill_one(saver):
    """Forks a process that saves; waits for some saves and a part of the next; kills it."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        child(saver, writing)
    os.close(writing)
    with open(reading) as lines:
        told = [lines.readline()]
        duration = 0.05
        for _ in range(random.randint(0, 2)):
            start = time.monotonic()
            told.append(lines.readline())
            duration = time.monotonic() - start
        time.sleep(random.uniform(0.0, duration))
        os.kill(process, signal.SIGKILL)
        told += lines.readlines()
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "the process ended by itself"
    return int(told[-1])


def serve(file):
    spec = importlib.util.spec_from_file_location("saver_of_a_test", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import lowering.program  # noqa: F401  (it imports JAX, whose threads begin later)

    for _ in sys.stdin:
        print(kill_one(module.Saver), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
