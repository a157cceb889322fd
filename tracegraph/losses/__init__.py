"""Losses, with Keras' names: functions of labels and predictions, and classes that reduce them."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of, publish
from tracegraph.losses import classes, functions, matching, overlap
from tracegraph.losses.classes import *
from tracegraph.losses.functions import *
from tracegraph.losses.matching import *
from tracegraph.losses.overlap import *

if not TYPE_CHECKING:  # to a type checker, names starred from lists are public
    __all__ = names_of(globals())

# Submodules are not public names.
del classes, functions, matching, overlap

publish(__name__)
