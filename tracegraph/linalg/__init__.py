"""Linear algebra: matrices and their parts, systems of equations, decompositions, functions.

A matrix that has no inverse raises nothing: as in XLA, the results hold inf or nan, and so does
the Cholesky factor of a matrix that is not positive definite.
"""

from typing import TYPE_CHECKING

from tracegraph.linalg import decompositions, parts, systems
from tracegraph.linalg.decompositions import *
from tracegraph.linalg.parts import *
from tracegraph.linalg.systems import *

if not TYPE_CHECKING:  # mypy reads no sums of lists; to a checker, starred names are public
    __all__ = [*parts.__all__, *systems.__all__, *decompositions.__all__]
