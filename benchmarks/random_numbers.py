"""What random numbers cost beside JAX's: ``python -m benchmarks.random_numbers``.

For each shape, new programs of both take turns: the first call, which compiles, and the quickest
later one.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import tracegraph as tg

SHAPES = ((784, 10), (3, 3, 16, 16), (512,), (128, 128), (1000, 1000))
ROUNDS, CALLS = 5, 50


def ours(shape: tuple[int, ...]) -> Callable[[], Any]:
    draw, seed = (
        tg.function(lambda seed: tg.random.stateless_uniform(shape, seed)),
        tg.constant([3, 7]),
    )
    return lambda: draw(seed).numpy()


def of_jax(shape: tuple[int, ...]) -> Callable[[], Any]:
    draw, key = jax.jit(lambda key: jax.random.uniform(key, shape)), jax.random.key(3)
    return lambda: np.asarray(draw(key))


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    warnings.filterwarnings("ignore", "5 of the last 5 calls")  # each round decorates anew
    for make in (ours, of_jax):
        make((2, 2))()  # what only the first program of a process takes
    for shape in SHAPES:
        rounds = []
        for _ in range(ROUNDS):
            calls = [make(shape) for make in (ours, of_jax)]
            first = [seconds(call) for call in calls]
            later = zip(*([seconds(call) for call in calls] for _ in range(CALLS)), strict=True)
            rounds.append((first, [*map(min, later)]))
        texts = []
        for what, times in zip(("first call", "a call"), zip(*rounds, strict=True), strict=True):
            a, b = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
            texts.append(f"{what} {a:.3f} ms, JAX {b:.3f}: {a / b:.2f}")
        print(f"uniform {[*shape]}: {'; '.join(texts)}")


if __name__ == "__main__":
    main()
