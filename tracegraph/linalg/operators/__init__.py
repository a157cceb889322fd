"""Linear operators: matrices that are known by fewer numbers than their elements."""

from tracegraph.linalg.operators import products
from tracegraph.linalg.operators.banded import LinearOperatorToeplitz as LinearOperatorToeplitz
from tracegraph.linalg.operators.banded import LinearOperatorTridiag as LinearOperatorTridiag
from tracegraph.linalg.operators.base import LinearOperator as LinearOperator
from tracegraph.linalg.operators.blocks import LinearOperatorBlockDiag as LinearOperatorBlockDiag
from tracegraph.linalg.operators.blocks import (
    LinearOperatorBlockLowerTriangular as LinearOperatorBlockLowerTriangular,
)
from tracegraph.linalg.operators.circulant import LinearOperatorCirculant as LinearOperatorCirculant
from tracegraph.linalg.operators.circulant import (
    LinearOperatorCirculant2D as LinearOperatorCirculant2D,
)
from tracegraph.linalg.operators.circulant import (
    LinearOperatorCirculant3D as LinearOperatorCirculant3D,
)
from tracegraph.linalg.operators.composition import (
    LinearOperatorComposition as LinearOperatorComposition,
)
from tracegraph.linalg.operators.composition import (
    LinearOperatorKronecker as LinearOperatorKronecker,
)
from tracegraph.linalg.operators.dense import LinearOperatorFullMatrix as LinearOperatorFullMatrix
from tracegraph.linalg.operators.dense import (
    LinearOperatorLowerTriangular as LinearOperatorLowerTriangular,
)
from tracegraph.linalg.operators.diagonal import LinearOperatorDiag as LinearOperatorDiag
from tracegraph.linalg.operators.diagonal import LinearOperatorIdentity as LinearOperatorIdentity
from tracegraph.linalg.operators.diagonal import (
    LinearOperatorScaledIdentity as LinearOperatorScaledIdentity,
)
from tracegraph.linalg.operators.diagonal import LinearOperatorZeros as LinearOperatorZeros
from tracegraph.linalg.operators.low_rank import (
    LinearOperatorLowRankUpdate as LinearOperatorLowRankUpdate,
)
from tracegraph.linalg.operators.permuting import (
    LinearOperatorHouseholder as LinearOperatorHouseholder,
)
from tracegraph.linalg.operators.permuting import (
    LinearOperatorPermutation as LinearOperatorPermutation,
)
from tracegraph.linalg.operators.wrapping import LinearOperatorAdjoint as LinearOperatorAdjoint
from tracegraph.linalg.operators.wrapping import LinearOperatorInversion as LinearOperatorInversion

# It installs the product of two operators.
del products

__all__ = [
    "LinearOperator",
    "LinearOperatorAdjoint",
    "LinearOperatorBlockDiag",
    "LinearOperatorBlockLowerTriangular",
    "LinearOperatorCirculant",
    "LinearOperatorCirculant2D",
    "LinearOperatorCirculant3D",
    "LinearOperatorComposition",
    "LinearOperatorDiag",
    "LinearOperatorFullMatrix",
    "LinearOperatorHouseholder",
    "LinearOperatorIdentity",
    "LinearOperatorInversion",
    "LinearOperatorKronecker",
    "LinearOperatorLowRankUpdate",
    "LinearOperatorLowerTriangular",
    "LinearOperatorPermutation",
    "LinearOperatorScaledIdentity",
    "LinearOperatorToeplitz",
    "LinearOperatorTridiag",
    "LinearOperatorZeros",
]

# They are pickled, and shown, by the names that users import.
for _name in __all__:
    globals()[_name].__module__ = "tracegraph.linalg"
del _name
