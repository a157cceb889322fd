"""From graphs to XLA, through JAX's public interface. Depends on the IR; the IR never on it."""

from lowering import (
    device as device,
    disk as disk,
    host_program as host_program,
    memory as memory,
    places as places,
    program as program,
    sizes as sizes,
    stages as stages,
)
from lowering.distribution import agreement as agreement, layout as layout, processes as processes
from lowering.export import jax_derivatives as jax_derivatives, stablehlo as stablehlo

# Importing a family registers its rules.
from lowering.rules import (
    barrier as barrier,
    broadcast as broadcast,
    calls as calls,
    constant as constant,
    contract as contract,
    control as control,
    decomposition as decomposition,
    effect as effect,
    elementwise as elementwise,
    fourier as fourier,
    image as image,
    index as index,
    linalg as linalg,
    matrix_function as matrix_function,
    random as random,
    reduce as reduce,
    shape as shape,
    sort as sort,
    special as special,
)
