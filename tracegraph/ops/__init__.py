"""First-order ops, one file per family. Importing the package registers them all, since files of
graphs name them."""

from tracegraph.ops import (
    barrier,
    broadcast,
    constant,
    contract,
    decomposition,
    effect,
    elementwise,
    fourier,
    image,
    index,
    linalg,
    matrix_function,
    movement,
    random,
    reduce,
    shape,
    sort,
    special,
)

__all__ = [
    "barrier",
    "broadcast",
    "constant",
    "contract",
    "decomposition",
    "effect",
    "elementwise",
    "fourier",
    "image",
    "index",
    "linalg",
    "matrix_function",
    "movement",
    "random",
    "reduce",
    "shape",
    "sort",
    "special",
]
