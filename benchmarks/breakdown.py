"""Where the time of tracegraph's own part goes: ``python -m benchmarks.breakdown``.

Pieces of a call and of a step are timed by themselves, in microseconds, the fastest of several
repetitions: in a real call, where memory is colder, each costs more. The undecorated step is timed
phase by phase, the fastest of several loops.
"""

import time
import timeit
from collections.abc import Callable

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
from tracegraph.ir.tensor import Tensor, get_buffer, get_type

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
    args, buffers = (x,), (x.buffer,)
    routes = increment._routes
    route = routes[tuple(map(get_type, args))]
    outputs = route.run(*buffers)
    builder = current()
    return {
        "the whole call": fastest(lambda: increment(x)),
        "the compiled program": fastest(lambda: route.run(*buffers)),
        "types and lookup": fastest(lambda: routes.get((*map(get_type, args),))),
        "buffers": fastest(lambda: (*map(get_buffer, args),)),
        "what is being built": fastest(
            lambda: current() is builder and not builder.recorders and builder.is_top_level
        ),
        "the result": fastest(lambda: Tensor(route.types[0], outputs[0])),
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
    execution = step._routes[x.type, y.type].execution
    state = [v.buffer for v in variables]
    return {
        "the whole step": fastest(lambda: step(x, y), 1_000),
        "reading the variables": fastest(lambda: list(map(get_buffer, variables))),
        "whether others hold a buffer": fastest(lambda: execution._is_shared(state)),
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
