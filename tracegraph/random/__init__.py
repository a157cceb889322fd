"""Random numbers, from generators whose state is a Variable.

A compiled function therefore draws fresh numbers at every call, and the same sequence for the same
seed. The `stateless_*` functions always draw the same numbers for the same seed.
"""

from typing import TYPE_CHECKING

from tracegraph.random import candidates, distributions, generators, stateless
from tracegraph.random.candidates import *
from tracegraph.random.distributions import *
from tracegraph.random.generators import *
from tracegraph.random.stateless import *

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = [*candidates.__all__, *distributions.__all__, *generators.__all__, *stateless.__all__]

# Submodules are not public names.
del candidates, distributions, generators, stateless
