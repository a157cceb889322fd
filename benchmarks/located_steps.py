"""What `locate_numerics=True` costs steps of several sizes: ``python -m benchmarks.located_steps``.

Steps of a perceptron with and without it take turns. The quickest of each are compared, since other
work on the machine only adds to a time.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tracegraph as tg

#: Width, rows of the batch, layers, and how many steps of each kind.
SIZES = ((64, 32, 4, 600), (256, 256, 4, 200), (512, 512, 6, 60), (1024, 1024, 4, 30))


def train_step(width: int, rows: int, layers: int, **options: Any) -> Callable[[], Any]:
    """A step of gradient descent, and the wait for its loss."""
    draw = np.random.default_rng(0).normal
    kernels = [
        tg.Variable((draw(size=(width, width)) / width**0.5).astype(np.float32))
        for _ in range(layers)
    ]
    x = tg.constant(draw(size=(rows, width)).astype(np.float32))

    @tg.function(**options)
    def step(x):
        with tg.GradientTape() as tape:
            y = x
            for kernel in kernels:
                y = tg.tanh(y @ kernel)
            loss = tg.reduce_mean(y * y)
        for kernel, g in zip(kernels, tape.gradient(loss, kernels), strict=True):
            kernel.assign_sub(0.01 * g)
        return loss

    return lambda: step(x).numpy()


def seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    for width, rows, layers, count in SIZES:
        steps = [
            train_step(width, rows, layers, locate_numerics=True),
            train_step(width, rows, layers),
        ]
        for step in steps * 2:
            step()
        times = [[seconds(step) for step in steps] for _ in range(count)]
        located, plain = map(min, zip(*times, strict=True))
        print(
            f"{layers} layers of {width} x {width}, {rows} rows: {located * 1e3:.3f} ms located, "
            f"{plain * 1e3:.3f} ms plain: {located / plain:.2f}"
        )


if __name__ == "__main__":
    main()
