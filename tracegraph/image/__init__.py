"""Images, which have the shape [..., height, width, channels]."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import publish
from tracegraph.image import boxes, colour, geometry, measuring, randomly, resizing
from tracegraph.image.boxes import *
from tracegraph.image.colour import *
from tracegraph.image.geometry import *
from tracegraph.image.measuring import *
from tracegraph.image.randomly import *
from tracegraph.image.resizing import *

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = [*boxes.__all__, *colour.__all__, *geometry.__all__]
    __all__ += measuring.__all__
    __all__ += randomly.__all__
    __all__ += resizing.__all__

# Submodules are not public names.
del boxes, colour, geometry, measuring, randomly, resizing

publish(__name__)
