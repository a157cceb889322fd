"""The process of one peer: ``python -m benchmarks.worker PEER``.

Reads one command per line, as JSON, and answers each with one line. Its first output line lists the
workloads of the peer.
"""

import importlib
import json
import os
import sys
import traceback
from typing import Any, TextIO

from benchmarks import memory
from benchmarks.inputs import INPUTS
from benchmarks.workload import Workload

CHECKED_STEPS = 5


class Bench:
    """The workloads of one peer; each method is a command and returns its answer."""

    def __init__(self, peer: str) -> None:
        module = importlib.import_module(f"benchmarks.peer_{peer}")
        self.version: str = module.VERSION
        self.factories: dict[str, dict[str, Any]] = module.WORKLOADS
        self.prepared: dict[tuple[str, str], Any] = {}

    def describe(self) -> dict:
        variants = {name: list(factories) for name, factories in self.factories.items()}
        return {"version": self.version, "variants": variants}

    def prepare(self, workload: str, variant: str) -> dict:
        """Builds a workload."""
        self.prepared[workload, variant] = self.factories[workload][variant](INPUTS[workload]())
        return {}

    def check(self, workload: str, variant: str) -> dict:
        """Takes the first steps and returns their results."""
        return {"result": self.prepared[workload, variant].first_results(CHECKED_STEPS)}

    def calibrate(self, workload: str, variant: str, seconds: float) -> dict:
        """Finds how many steps take about `seconds`."""
        return {"count": self.prepared[workload, variant].calls_lasting(seconds)}

    def time(self, workload: str, variant: str, count: int) -> dict:
        """Returns the seconds of one step, and of nothing else."""
        return {"call": self.prepared[workload, variant].seconds(count) / count}

    def phases(self, workload: str, variant: str, turn: int) -> dict:
        """Runs a cold workload once; each turn is new to every cache."""
        phases = self.prepared[workload, variant](turn)
        figures = {**phases.seconds, "total": phases.total, **phases.others}
        return {"figures": figures, "result": phases.result}

    def steps(self, workload: str, variant: str, count: int) -> dict:
        """Takes `count` steps and returns the memory in use and its peak."""
        prepared: Workload = self.prepared[workload, variant]
        prepared.seconds(count)
        return {"resident": memory.resident(), "peak": memory.peak()}

    def release(self, workload: str, variant: str) -> dict:
        """Forgets a workload."""
        self.prepared.pop((workload, variant), None)
        return {}


def serve(peer: str, commands: TextIO, answers: TextIO) -> None:
    bench = answered(answers, Bench, peer=peer)
    if bench is None:
        return
    answered(answers, bench.describe, say=True)
    for line in commands:
        command, arguments = json.loads(line)
        answered(answers, getattr(bench, command), say=True, **arguments)


def answered(answers: TextIO, action, say: bool = False, **arguments):
    """Returns the result of `action` and, if `say`, writes it; an error is always written."""
    try:
        value = action(**arguments)
    except Exception as error:
        traceback.print_exc()
        write(answers, {"error": f"{type(error).__name__}: {error}"})
        return None
    if say:
        write(answers, value)
    return value


def write(answers: TextIO, value: dict) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def private_output() -> TextIO:
    """Returns the standard output, for answers only; what libraries print goes to standard
    error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin, private_output())
