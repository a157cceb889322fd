"""What a kept trace costs in memory: ``python -m benchmarks.kept_traces``.

Calls 256 small functions once each, keeps them, and prints how much the resident memory of the
process grew for each.
"""

import gc

import numpy as np

import tracegraph as tg
from benchmarks.memory import resident

COUNT = 256


def main() -> None:
    x = tg.constant(np.ones(16, np.float32))
    kept = [called(number, x) for number in range(COUNT // 8)]
    gc.collect()
    before = resident()
    kept += [called(COUNT + number, x) for number in range(COUNT)]
    gc.collect()
    grown = (resident() - before) / COUNT
    print(f"{COUNT} functions of three operations, kept: {grown:.2f} MB for each trace")
    assert len(kept) > COUNT


def called(number: int, x: tg.Tensor) -> object:
    """A function that has a trace and a program of its own."""
    function = tg.function(lambda y: tg.tanh(y * float(number)) + y)
    function(x).numpy()
    return function


if __name__ == "__main__":
    main()
