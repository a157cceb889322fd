"""From graphs to XLA, through JAX's public interface. Knows the IR; the IR never knows it."""

from lowering import (
    barrier,
    broadcast,
    constant,
    contract,
    control,
    derivatives,
    device,
    effect,
    elementwise,
    image,
    index,
    program,
    random,
    reduce,
    shape,
    sizes,
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
    "derivatives",
    "device",
    "effect",
    "elementwise",
    "image",
    "index",
    "program",
    "random",
    "reduce",
    "shape",
    "sizes",
    "sort",
    "stages",
]
