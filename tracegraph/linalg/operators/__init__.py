"""Linear operators: matrices stored in a structured form with fewer numbers than elements."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of
from tracegraph.linalg.operators import products
from tracegraph.linalg.operators.banded import (
    LinearOperatorToeplitz as LinearOperatorToeplitz,
    LinearOperatorTridiag as LinearOperatorTridiag,
)
from tracegraph.linalg.operators.base import LinearOperator as LinearOperator
from tracegraph.linalg.operators.circulant import (
    LinearOperatorCirculant as LinearOperatorCirculant,
    LinearOperatorCirculant2D as LinearOperatorCirculant2D,
    LinearOperatorCirculant3D as LinearOperatorCirculant3D,
)
from tracegraph.linalg.operators.composites.block_operators import (
    LinearOperatorBlockDiag as LinearOperatorBlockDiag,
    LinearOperatorBlockLowerTriangular as LinearOperatorBlockLowerTriangular,
)
from tracegraph.linalg.operators.composites.composition import (
    LinearOperatorComposition as LinearOperatorComposition,
    LinearOperatorKronecker as LinearOperatorKronecker,
)
from tracegraph.linalg.operators.composites.low_rank import (
    LinearOperatorLowRankUpdate as LinearOperatorLowRankUpdate,
)
from tracegraph.linalg.operators.composites.wrapping import (
    LinearOperatorAdjoint as LinearOperatorAdjoint,
    LinearOperatorInversion as LinearOperatorInversion,
)
from tracegraph.linalg.operators.dense import (
    LinearOperatorFullMatrix as LinearOperatorFullMatrix,
    LinearOperatorLowerTriangular as LinearOperatorLowerTriangular,
)
from tracegraph.linalg.operators.diagonal import (
    LinearOperatorDiag as LinearOperatorDiag,
    LinearOperatorIdentity as LinearOperatorIdentity,
    LinearOperatorScaledIdentity as LinearOperatorScaledIdentity,
    LinearOperatorZeros as LinearOperatorZeros,
)
from tracegraph.linalg.operators.permuting import (
    LinearOperatorHouseholder as LinearOperatorHouseholder,
    LinearOperatorPermutation as LinearOperatorPermutation,
)

# Imported because it installs the product of two operators.
del products

if not TYPE_CHECKING:  # to a type checker, names imported as themselves are public
    __all__ = names_of(globals())
    # They are pickled, and shown, under the names that users import.
    for _name in __all__:
        globals()[_name].__module__ = "tracegraph.linalg"
    del _name
