"""Starts one process per peer, takes turns between them, and collects samples."""

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from benchmarks import fresh
from benchmarks.rows import Row

Sample = dict[str, float]


@dataclass(frozen=True)
class Options:
    """How long to measure."""

    peers: tuple[str, ...]
    device: str = "cpu"
    rounds: int = 15
    seconds: float = 0.2  # of one sample of a step
    many_steps: int = 10_000  # over which memory must not grow
    torch_compile: bool = False
    verbose: bool = False  # show what the workers write to their error output
    timeout: float = 900.0  # of one command

    def wants(self, variant: str) -> bool:
        return self.torch_compile or variant != "torch_compile"


class Contender(NamedTuple):
    """One variant of one peer."""

    peer: str
    variant: str


@dataclass
class Outcome:
    """The samples of one row, by variant; why others have none; whose results differ."""

    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)

    def attempt(self, contender: Contender, action: Callable, *arguments, **options) -> Any:
        """Returns what `action` returns; a variant that failed once is skipped from then on."""
        if contender.variant in self.skipped:
            return None
        try:
            return action(*arguments, **options)
        except (WorkerError, fresh.ProcessError) as error:
            self.skipped[contender.variant] = str(error)
            self.samples.pop(contender.variant, None)
            return None

    def add(self, contender: Contender, sample: Sample | None) -> None:
        if sample is not None:
            self.samples.setdefault(contender.variant, []).append(sample)

    def compare(self, results: dict[str, list[float]]) -> None:
        """Records each variant whose result differs from the first one's by more than allowed."""
        results = {variant: result for variant, result in results.items() if result}
        if not results:
            return
        reference = np.asarray(results.get("jax", next(iter(results.values()))))
        for variant, result in results.items():
            difference = relative_difference(np.asarray(result), reference)
            if not difference <= self.row.tolerance:
                self.differences[variant] = difference


class WorkerError(Exception):
    """The process of a peer answered with an error, or not at all."""


class Worker:
    """The process of one peer, seen from outside."""

    def __init__(self, peer: str, options: Options) -> None:
        self.timeout = options.timeout
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", peer],
            cwd=fresh.ROOT,
            env=fresh.ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if options.verbose else subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdin and self.process.stdout
        self.commands, self.answers = self.process.stdin, self.process.stdout
        description = self.answer()
        self.version: str = description["version"]
        self.variants: dict[str, list[str]] = description["variants"]

    def ask(self, command: str, **arguments: Any) -> dict:
        try:
            self.commands.write(json.dumps([command, arguments]) + "\n")
            self.commands.flush()
        except BrokenPipeError:
            raise WorkerError("its process has ended") from None
        return self.answer()

    def answer(self) -> dict:
        """Reads one line; kills a process that takes too long."""
        timer = threading.Timer(self.timeout, self.process.kill)
        timer.start()
        line = self.answers.readline()
        timer.cancel()
        if not line:
            raise WorkerError(f"its process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.commands.close()
        self.answers.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Harness:
    """The workers of all available peers, and the ways to measure a row with them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.workers: dict[str, Worker] = {}
        self.missing: dict[str, str] = {}
        for peer in options.peers:
            self.start(peer)

    def start(self, peer: str) -> None:
        if importlib.util.find_spec(peer) is None:
            self.missing[peer] = "not installed"
            return
        try:
            self.workers[peer] = Worker(peer, self.options)
        except WorkerError as error:
            self.missing[peer] = str(error)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def worker(self, peer: str) -> Worker:
        """Returns the worker of `peer`, replacing one that has died."""
        if not self.workers[peer].is_alive:
            self.workers[peer].close()
            self.workers[peer] = Worker(peer, self.options)
        return self.workers[peer]

    def measure(self, row: Row) -> Outcome:
        measures = {
            "steps": self.measure_steps,
            "phases": self.measure_phases,
            "import": self.measure_imports,
            "process": self.measure_processes,
            "peak": self.measure_peak,
            "growth": self.measure_growth,
        }
        outcome = Outcome(row)
        measures[row.measure](outcome)
        return outcome

    def measure_steps(self, outcome: Outcome) -> None:
        """The seconds of one step; results are compared first."""
        row, contenders = outcome.row, self.contenders(outcome.row.workload)
        self.ask_all(outcome, contenders, "prepare")
        checks = self.ask_all(outcome, contenders, "check")
        outcome.compare({variant: check["result"] for variant, check in checks.items()})
        seconds = self.options.seconds
        counts = self.ask_all(outcome, contenders, "calibrate", seconds=seconds)
        for _, contender in self.turns(row, contenders):
            count = counts.get(contender.variant, {}).get("count")
            outcome.add(contender, self.ask(outcome, contender, "time", count=count))
        self.ask_all(outcome, contenders, "release")

    def measure_phases(self, outcome: Outcome) -> None:
        """The seconds of each phase of a cold run; results are compared turn by turn."""
        row, contenders = outcome.row, self.contenders(outcome.row.workload)
        self.ask_all(outcome, contenders, "prepare")
        results: dict[int, dict[str, list[float]]] = {}
        for turn, contender in self.turns(row, contenders):
            phases = self.ask(outcome, contender, "phases", turn=turn)
            if phases is not None:
                outcome.add(contender, phases["figures"])
                results.setdefault(turn, {})[contender.variant] = phases["result"]
        for result in results.values():
            outcome.compare(result)
        self.ask_all(outcome, contenders, "release")

    def measure_imports(self, outcome: Outcome) -> None:
        contenders = [Contender(peer, peer) for peer in self.workers]
        for _, (peer, _) in self.turns(outcome.row, contenders):
            contender = Contender(peer, peer)
            outcome.add(contender, outcome.attempt(contender, fresh.timed_import, peer))

    def measure_processes(self, outcome: Outcome) -> None:
        sources = {
            Contender(peer, variant): source
            for peer in self.workers
            for variant, source in fresh.ONE_GRADIENT[peer].items()
        }
        for _, contender in self.turns(outcome.row, list(sources)):
            sample = outcome.attempt(contender, fresh.timed_gradient, sources[contender])
            outcome.add(contender, sample)

    def measure_peak(self, outcome: Outcome) -> None:
        """The most memory that a separate process held while it took some steps."""
        row = outcome.row
        for contender in self.contenders(row.workload):
            memory = outcome.attempt(contender, self.memory_after, contender, row.workload, 20)
            if memory:
                outcome.add(contender, {"peak memory": memory[-1]["peak"]})

    def measure_growth(self, outcome: Outcome) -> None:
        """The memory of a separate process after a hundred steps and after many.

        Late compilation grows only the first half; a leak grows both.
        """
        many = self.options.many_steps
        arguments = outcome.row.workload, 100, many // 2, many
        for contender in self.contenders(outcome.row.workload):
            memory = outcome.attempt(contender, self.memory_after, contender, *arguments)
            if memory:
                first, half, last = (state["resident"] for state in memory)
                states = {"after 100": first, "half way": half, "at the end": last}
                outcome.add(contender, states | {"growth": last - first})

    def memory_after(self, contender: Contender, workload: str, *counts: int) -> list[dict]:
        """Returns the memory of a new worker after each of `counts` steps in all."""
        what = {"workload": workload, "variant": contender.variant}
        worker = Worker(contender.peer, self.options)
        try:
            worker.ask("prepare", **what)
            taken = (after - before for before, after in pairwise((0, *counts)))
            return [worker.ask("steps", **what, count=count) for count in taken]
        finally:
            worker.close()

    def contenders(self, workload: str) -> list[Contender]:
        return [
            Contender(peer, variant)
            for peer, worker in self.workers.items()
            for variant in worker.variants.get(workload, ())
            if self.options.wants(variant)
        ]

    def turns(self, row: Row, contenders: list[Contender]) -> Iterator[tuple[int, Contender]]:
        """Each contender once per round; the starting one rotates."""
        for turn in range(min(self.options.rounds, row.rounds)):
            start = turn % max(1, len(contenders))
            for contender in contenders[start:] + contenders[:start]:
                yield turn, contender

    def ask(self, outcome: Outcome, contender: Contender, command: str, **arguments) -> dict | None:
        arguments |= {"workload": outcome.row.workload, "variant": contender.variant}
        return outcome.attempt(contender, self.answer, contender.peer, command, **arguments)

    def answer(self, peer: str, command: str, **arguments) -> dict:
        return self.worker(peer).ask(command, **arguments)

    def ask_all(
        self, outcome: Outcome, contenders: list[Contender], command: str, **arguments
    ) -> dict[str, dict]:
        """Returns the answers by variant, for those that have one."""
        answers = {
            contender.variant: self.ask(outcome, contender, command, **arguments)
            for contender in contenders
        }
        return {variant: answer for variant, answer in answers.items() if answer is not None}


def relative_difference(result: np.ndarray, reference: np.ndarray) -> float:
    """Returns the greatest difference, relative to the greatest value; infinite if sizes differ."""
    if result.shape != reference.shape:
        return float("inf")
    return float(np.max(np.abs(result - reference)) / max(1e-30, np.max(np.abs(reference))))
