"""Linear algebra: matrices and their parts, systems of equations, decompositions, functions.

A matrix that has no inverse raises nothing: as in XLA, the results hold inf or nan, and so does
the Cholesky factor of a matrix that is not positive definite.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tracegraph.boundary.guarding import guard
from tracegraph.linalg import decompositions, parts, systems
from tracegraph.linalg.decompositions import *
from tracegraph.linalg.parts import *
from tracegraph.linalg.systems import *

if TYPE_CHECKING:
    from tracegraph.linalg.operators import *
else:  # mypy reads no sums of lists; to a checker, starred names are public
    _KINDS = (
        *("Adjoint", "BlockDiag", "BlockLowerTriangular", "Circulant", "Circulant2D"),
        *("Circulant3D", "Composition", "Diag", "FullMatrix", "Householder", "Identity"),
        *("Inversion", "Kronecker", "LowRankUpdate", "LowerTriangular", "Permutation"),
        *("ScaledIdentity", "Toeplitz", "Tridiag", "Zeros"),
    )
    #: The classes that are loaded when one of them is asked for.
    _OPERATORS = ["LinearOperator", *(f"LinearOperator{kind}" for kind in _KINDS)]
    __all__ = [*parts.__all__, *systems.__all__, *decompositions.__all__, *_OPERATORS]

    def __getattr__(name: str) -> Any:
        """An operator: their file is read at the first use of one."""
        if name not in _OPERATORS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        operators = importlib.import_module("tracegraph.linalg.operators")
        guard((operators,))
        globals().update({known: getattr(operators, known) for known in _OPERATORS})
        return globals()[name]
