"""Metrics, with Keras' names: Modules that hold running totals in Variables."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import publish
from tracegraph.metrics import accuracy, confusion, distances, metric, overlap
from tracegraph.metrics.accuracy import *
from tracegraph.metrics.confusion import *
from tracegraph.metrics.distances import *
from tracegraph.metrics.metric import *
from tracegraph.metrics.overlap import *

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = [*accuracy.__all__, *confusion.__all__, *distances.__all__]
    __all__ += [*metric.__all__, *overlap.__all__]

# Submodules are not public names.
del accuracy, confusion, distances, metric, overlap

publish(__name__)
