"""Signals: Fourier and cosine transforms, frames, windows, spectrograms."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of, publish
from tracegraph.signal.frames import *
from tracegraph.signal.transforms import *
from tracegraph.signal.transforms_along_axes import *
from tracegraph.signal.window_functions import *

if not TYPE_CHECKING:  # to a type checker, names starred from lists are public
    __all__ = names_of(globals())

publish(__name__)
