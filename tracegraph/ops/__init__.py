"""First-order ops, one file per family. Importing the package registers them all, since files of
graphs name them."""

from tracegraph.ops import (
    barrier as barrier,
    broadcast as broadcast,
    constant as constant,
    contract as contract,
    decomposition as decomposition,
    effect as effect,
    elementwise as elementwise,
    fourier as fourier,
    image as image,
    index as index,
    layout as layout,
    linalg as linalg,
    matrix_function as matrix_function,
    movement as movement,
    random as random,
    reduce as reduce,
    shape as shape,
    sort as sort,
    special as special,
)
