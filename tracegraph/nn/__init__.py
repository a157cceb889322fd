"""Neural networks: activations, losses, convolutions, normalisation."""

from typing import TYPE_CHECKING

from tracegraph.math.norms import l2_normalize as l2_normalize
from tracegraph.math.sorting_and_segments import in_top_k as in_top_k
from tracegraph.math.sorting_and_segments import top_k as top_k
from tracegraph.nn import activation, convolutions, loss, normalisation, pooling
from tracegraph.nn.activation import *
from tracegraph.nn.convolutions import *
from tracegraph.nn.loss import *
from tracegraph.nn.normalisation import *
from tracegraph.nn.pooling import *

if not TYPE_CHECKING:  # mypy reads no sums of lists; to a checker, starred names are public
    __all__ = ["in_top_k", "l2_normalize", "top_k"]
    __all__ += activation.__all__
    __all__ += convolutions.__all__
    __all__ += loss.__all__
    __all__ += normalisation.__all__
    __all__ += pooling.__all__

# Modules are no public names.
del activation, convolutions, loss, normalisation, pooling
