"""Losses, with Keras' names: functions of labels and predictions, and classes that reduce them."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import publish
from tracegraph.losses import classes, functions, matching, overlap
from tracegraph.losses.classes import *
from tracegraph.losses.functions import *
from tracegraph.losses.matching import *
from tracegraph.losses.overlap import *

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = []
    __all__ += classes.__all__
    __all__ += functions.__all__
    __all__ += matching.__all__
    __all__ += overlap.__all__

# Submodules are not public names.
del classes, functions, matching, overlap

publish(__name__)
