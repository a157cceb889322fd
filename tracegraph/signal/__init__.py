"""Signals: Fourier and cosine transforms, frames, windows, spectrograms."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import publish
from tracegraph.signal import frames, transforms, transforms_along_axes, window_functions
from tracegraph.signal.frames import *
from tracegraph.signal.transforms import *
from tracegraph.signal.transforms_along_axes import *
from tracegraph.signal.window_functions import *

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = [
        *transforms_along_axes.__all__,
        *transforms.__all__,
        *frames.__all__,
        *window_functions.__all__,
    ]

publish(__name__)
