"""Random numbers, from generators whose state is a Variable.

A compiled function therefore draws fresh numbers at every call, and the same sequence for the same
seed. The `stateless_*` functions draw the same numbers for the same seed each time.
"""

from typing import TYPE_CHECKING

from tracegraph.random import candidates, distributions, generators, stateless
from tracegraph.random.candidates import *
from tracegraph.random.distributions import *
from tracegraph.random.generators import *
from tracegraph.random.stateless import *

if not TYPE_CHECKING:  # mypy reads no sums of lists; to a checker, starred names are public
    __all__ = [*candidates.__all__, *distributions.__all__, *generators.__all__, *stateless.__all__]

# Modules are not public names.
del candidates, distributions, generators, stateless
