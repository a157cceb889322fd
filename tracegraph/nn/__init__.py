"""Neural networks: activations, losses, convolutions, normalisation."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of
from tracegraph.array.blocks import (
    depth_to_space as depth_to_space,
    space_to_batch as space_to_batch,
    space_to_depth as space_to_depth,
)
from tracegraph.math.norms import l2_normalize as l2_normalize
from tracegraph.math.reduction import zero_fraction as zero_fraction
from tracegraph.math.sorting import (
    approx_max_k as approx_max_k,
    approx_min_k as approx_min_k,
    in_top_k as in_top_k,
    top_k as top_k,
)
from tracegraph.nn import (
    activation,
    convolutions,
    ctc,
    experimental as experimental,
    isotonic,
    loss,
    morphology,
    normalisation,
    pooling,
    sampled,
)
from tracegraph.nn.activation import *
from tracegraph.nn.convolutions import *
from tracegraph.nn.ctc import *
from tracegraph.nn.isotonic import *
from tracegraph.nn.loss import *
from tracegraph.nn.morphology import *
from tracegraph.nn.normalisation import *
from tracegraph.nn.pooling import *
from tracegraph.nn.sampled import *

if not TYPE_CHECKING:  # to a type checker, names starred from lists are public
    __all__ = names_of(globals(), "experimental")

# Submodules are not public names.
del activation, convolutions, ctc, isotonic, loss, morphology, normalisation, pooling, sampled
