"""Where tracegraph's own time goes: ``python -m benchmarks.breakdown``.

Parts of a call and of a step are timed separately, in microseconds, as the fastest of several
repetitions: in a real call, where memory is colder, each costs more. The undecorated step is timed
phase by phase, as the fastest of several loops.
"""

import time
import timeit
from collections.abc import Callable
from sys import getrefcount

import numpy as np

import tracegraph as tg
from benchmarks.inputs import INPUTS
from benchmarks.peer_tracegraph import (
    batch_of,
    descend,
    mean_cross_entropy,
    perceptron,
    variables_of,
)
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor, get_buffer

REPETITIONS = 15


def main() -> None:
    for title, pieces in (
        ("one call, one array", call_pieces()),
        ("a step with 12 variables", step_pieces()),
        ("an undecorated step", loop_phases()),
    ):
        print(title)
        for name, microseconds in pieces.items():
            print(f"  {name:32s} {microseconds:8.2f} us")


def call_pieces() -> dict[str, float]:
    increment = tg.function(lambda x: x + 1)
    x = tg.constant(np.ones(16, np.float32))
    increment(x)
    buffers = (x.buffer,)
    plans = increment._call_plans
    plan = plans[x.type]
    outputs = plan.program.run(*buffers)
    builder = current()
    return {
        "the whole call": fastest(lambda: increment(x)),
        "the compiled program": fastest(lambda: plan.program.run(*buffers)),
        "types and lookup": fastest(lambda: plans.get(x.type)),
        "buffers": fastest(lambda: (x.buffer,)),
        "what is being built": fastest(
            lambda: current() is builder and not builder.recorders and builder.is_top_level
        ),
        "the result": fastest(lambda: Tensor(plan.types[0], outputs[0])),
        "an empty call, in each of these": fastest(lambda: None),
    }


def step_pieces() -> dict[str, float]:
    inputs = INPUTS["train_step_12"]()
    variables = variables_of(inputs)
    x, y = batch_of(inputs)

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            loss = sum(tg.reduce_mean(tg.square(v * x - y)) for v in variables)
        descend(variables, tape.gradient(loss, variables))
        return loss

    step(x, y)
    return {
        "the whole step": fastest(lambda: step(x, y), 1_000),
        "reading the variables": fastest(lambda: list(map(get_buffer, variables))),
        "whether others hold a buffer": fastest(
            lambda: sum(map(getrefcount, map(get_buffer, variables)))
        ),
    }


def loop_phases() -> dict[str, float]:
    inputs = INPUTS["undecorated_loop"]()
    variables = variables_of(inputs)
    x, y = batch_of(inputs)
    spent = dict.fromkeys(("forward under a tape, and programs", "gradient", "update"), 0.0)

    def step() -> None:
        start = time.perf_counter()
        with tg.GradientTape() as tape:
            loss = mean_cross_entropy(perceptron(variables, x), y)
        recorded = time.perf_counter()
        gradients = tape.gradient(loss, variables)
        derived = time.perf_counter()
        descend(variables, gradients)
        ends = (recorded - start, derived - recorded, time.perf_counter() - derived)
        for name, seconds in zip(spent, ends):
            spent[name] += seconds

    found = []
    for _ in range(REPETITIONS):
        spent.update(dict.fromkeys(spent, 0.0))
        for _ in range(300):
            step()
        variables[0].numpy()
        found.append({name: seconds / 300 * 1e6 for name, seconds in spent.items()})
    return min(found, key=lambda phases: sum(phases.values()))


def fastest(piece: Callable[[], object], number: int = 20_000) -> float:
    return min(timeit.repeat(piece, number=number, repeat=REPETITIONS)) / number * 1e6


if __name__ == "__main__":
    main()
