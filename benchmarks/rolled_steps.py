"""What a training step takes with its equal blocks as loops: ``python -m benchmarks.rolled_steps``.

Steps of Adam on deep perceptrons, and of descent on many small variables, compiled without loops
(`roll=False`), by the estimate (`"auto"`) and always (`"always"`). Prints the first step, in
seconds of processor time, and the fastest of the later ones; the variants take turns.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np

import tracegraph as tg
from benchmarks.inputs import INPUTS
from benchmarks.peer_tracegraph import WORKLOADS

ROUNDS, STEPS = 30, 20

#: The step for an option `roll`.
Compiled = Callable[[object], Callable[[], object]]


def perceptron(layers: int, width: int) -> Compiled:
    """A residual perceptron for four rows."""

    def compiled(roll: object) -> Callable[[], object]:
        rng = np.random.default_rng(0)
        shapes = [(width, width), (width,)] * layers
        variables = [tg.Variable(rng.normal(size=s).astype(np.float32) / width) for s in shapes]
        optimizer, x = tg.optimizers.Adam(0.01), tg.ones([4, width])

        @tg.function(roll=roll)
        def step(x):
            with tg.GradientTape() as tape:
                h = x
                for kernel, bias in zip(variables[::2], variables[1::2]):
                    h = h + tg.tanh(h @ kernel + bias)
                loss = tg.reduce_mean(h**2)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        return lambda: step(x)

    return compiled


def small_variables(row: str) -> Compiled:
    """A row of the benchmarks."""

    def compiled(roll: object) -> Callable[[], object]:
        decorator = tg.function
        tg.function = lambda f: decorator(f, roll=roll)
        try:
            return WORKLOADS[row]["tracegraph"](INPUTS[row]()).step
        finally:
            tg.function = decorator

    return compiled


CASES = {
    "perceptron, 8 layers, 6 wide": perceptron(8, 6),
    "perceptron, 40 layers, 16 wide": perceptron(40, 16),
    "train_step_12": small_variables("train_step_12"),
    "train_step_300": small_variables("train_step_300"),
}


def measured(compiled: Compiled) -> dict[object, tuple[float, float]]:
    """The seconds of the first step, and of the fastest of the others, by variant."""
    steps, firsts, best = {}, {}, {}
    for roll in (False, "auto", "always"):
        step, start = compiled(roll), time.process_time()
        step()
        firsts[roll], steps[roll] = time.process_time() - start, step
    for _ in range(ROUNDS):
        for roll, step in steps.items():
            step()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            seconds = (time.perf_counter() - start) / STEPS
            best[roll] = min(seconds, best.get(roll, seconds))
    return {roll: (firsts[roll], best[roll]) for roll in steps}


def main() -> None:
    tg.config.set_compile_notes(False)
    warnings.filterwarnings("ignore", ".* were traced, which is slow")
    for roll in (False, "always"):
        perceptron(3, 2)(roll)()  # what the process does once
    for name, compiled in CASES.items():
        rows = measured(compiled)
        for roll, (first, later) in rows.items():
            to_first, to_later = first / rows[False][0], later / rows[False][1]
            print(
                f"{name:32s}roll={roll!r:10}first {first:5.2f} s ({to_first:.2f})  "
                f"step {later * 1e6:7.1f} us ({to_later:.2f})"
            )


if __name__ == "__main__":
    main()
