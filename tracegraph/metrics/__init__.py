"""Metrics, with Keras' names: Modules that hold running totals in Variables."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of, publish
from tracegraph.metrics import accuracy, confusion, distances, metric, overlap
from tracegraph.metrics.accuracy import *
from tracegraph.metrics.confusion import *
from tracegraph.metrics.distances import *
from tracegraph.metrics.metric import *
from tracegraph.metrics.overlap import *

if not TYPE_CHECKING:  # to a type checker, names starred from lists are public
    __all__ = names_of(globals())

# Submodules are not public names.
del accuracy, confusion, distances, metric, overlap

publish(__name__)
