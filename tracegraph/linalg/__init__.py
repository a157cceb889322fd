"""Linear algebra: matrices and their parts, systems of equations, decompositions, functions.

A singular matrix raises no error: as in XLA, results contain inf or nan, and so does the Cholesky
factor of a matrix that is not positive definite.
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
else:  # mypy cannot read sums of lists, and treats starred names as public
    _KINDS = (
        *("Adjoint", "BlockDiag", "BlockLowerTriangular", "Circulant", "Circulant2D"),
        *("Circulant3D", "Composition", "Diag", "FullMatrix", "Householder", "Identity"),
        *("Inversion", "Kronecker", "LowRankUpdate", "LowerTriangular", "Permutation"),
        *("ScaledIdentity", "Toeplitz", "Tridiag", "Zeros"),
    )
    #: The classes that are loaded when one of them is first used.
    _OPERATORS = ["LinearOperator", *(f"LinearOperator{kind}" for kind in _KINDS)]
    __all__ = [*parts.__all__, *systems.__all__, *decompositions.__all__, *_OPERATORS]

    def __getattr__(name: str) -> Any:
        """An operator: their file is read when one of them is first used."""
        if name not in _OPERATORS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        operators = importlib.import_module("tracegraph.linalg.operators")
        guard((operators,))
        globals().update({known: getattr(operators, known) for known in _OPERATORS})
        return globals()[name]
