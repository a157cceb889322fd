"""Random numbers, from generators whose state is a Variable.

A compiled function therefore draws fresh numbers at every call, and the same sequence for the same
seed. The `stateless_*` functions always draw the same numbers for the same seed.
"""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of
from tracegraph.random import candidates, distributions, generators, stateless
from tracegraph.random.candidates import *
from tracegraph.random.distributions import *
from tracegraph.random.generators import *
from tracegraph.random.stateless import *

if not TYPE_CHECKING:  # to a type checker, names starred from lists are public
    __all__ = names_of(globals())

# Submodules are not public names.
del candidates, distributions, generators, stateless
