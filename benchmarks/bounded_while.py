"""The gradient of a `while` of bounded length: ``python -m benchmarks.bounded_while``.

In one form the loop's steps write rows that the gradient reads; in the other it keeps states and
recomputes the rest. The two take turns, and the medians of their calls are compared.
"""

import time
from collections.abc import Callable
from statistics import median

import tracegraph as tg

ROUNDS, STEPS = 30, 100


def slope(checkpoints: int | None = None) -> Callable[..., tg.Tensor]:
    """The gradient of a loop of 100 steps that ends by its state, or by a bound."""

    def last(x, w):
        return tg.while_loop(
            lambda norm, y: norm > 0.5,
            lambda norm, y: (1.0 + tg.reduce_max(tg.abs(y)), tg.tanh(y @ w)),
            (1.0, x),
            maximum_iterations=STEPS,
            checkpoints=checkpoints,
        )[1]

    return tg.function(lambda x, w: tg.grad(lambda x: tg.reduce_sum(last(x, w)))(x))


def seconds(function: Callable[..., tg.Tensor], x: tg.Tensor, w: tg.Tensor) -> float:
    start = time.perf_counter()
    function(x, w).numpy()
    return time.perf_counter() - start


def main() -> None:
    stacked, recomputed = slope(), slope(checkpoints=STEPS - 1)
    for rows, width in ((1, 8), (32, 64), (64, 256)):
        x, w = tg.random.normal([rows, width]), tg.random.normal([width, width]) / width**0.5
        for function in (stacked, recomputed):
            seconds(function, x, w)
        times = [[seconds(f, x, w) for f in (stacked, recomputed)] for _ in range(ROUNDS)]
        with_rows, with_states = (median(column) for column in zip(*times, strict=True))
        print(
            f"state of {rows} x {width}: {with_rows * 1e3:.3f} ms with rows, "
            f"{with_states * 1e3:.3f} ms with states: {with_rows / with_states:.2f}"
        )


if __name__ == "__main__":
    main()
