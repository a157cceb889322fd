"""Creating, shaping, joining and indexing tensors: names that TensorFlow has at its top level."""

from typing import TYPE_CHECKING

from tracegraph.array import blocks, creation, grouping, joining, rearranging, shaping
from tracegraph.array.blocks import *
from tracegraph.array.creation import *
from tracegraph.array.grouping import *
from tracegraph.array.indexing import selection, slices
from tracegraph.array.indexing.selection import *
from tracegraph.array.indexing.slices import *
from tracegraph.array.indexing.slices import slice_of as slice
from tracegraph.array.joining import *
from tracegraph.array.rearranging import *
from tracegraph.array.shaping import *

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = [
        "slice",
    ]
    __all__ += blocks.__all__
    __all__ += creation.__all__
    __all__ += grouping.__all__
    __all__ += joining.__all__
    __all__ += rearranging.__all__
    __all__ += selection.__all__
    __all__ += shaping.__all__
    __all__ += slices.__all__
