"""From graphs to XLA, through JAX's public interface. Knows the IR; the IR never knows it."""

from lowering import (
    barrier,
    broadcast,
    constant,
    contract,
    control,
    device,
    effect,
    elementwise,
    image,
    index,
    linalg,
    program,
    random,
    reduce,
    shape,
    sort,
    stages,
)

# Importing a family registers its rules.
__all__ = [
    "barrier",
    "broadcast",
    "constant",
    "contract",
    "control",
    "device",
    "effect",
    "elementwise",
    "image",
    "index",
    "linalg",
    "program",
    "random",
    "reduce",
    "shape",
    "sort",
    "stages",
]
