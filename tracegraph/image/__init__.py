"""Images, which have the shape [..., height, width, channels]."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of, publish
from tracegraph.image import boxes, colour, geometry, measuring, randomly, resizing
from tracegraph.image.boxes import *
from tracegraph.image.colour import *
from tracegraph.image.geometry import *
from tracegraph.image.measuring import *
from tracegraph.image.randomly import *
from tracegraph.image.resizing import *

if not TYPE_CHECKING:  # to a type checker, names starred from lists are public
    __all__ = names_of(globals())

# Submodules are not public names.
del boxes, colour, geometry, measuring, randomly, resizing

publish(__name__)
