"""Mathematical functions of tensors, composed of primitives.

Every function converts its arguments to tensors, promotes them to one dtype and broadcasts them.
`name` is accepted wherever TensorFlow accepts it, but has no effect: nodes are named by the line
that created them.
"""

from typing import TYPE_CHECKING

from tracegraph.api.absent import names_of
from tracegraph.array.creation import complex as complex
from tracegraph.array.joining import accumulate_n as accumulate_n, add_n as add_n
from tracegraph.math import special as special
from tracegraph.math.counting import *
from tracegraph.math.elementwise.arithmetic import *
from tracegraph.math.elementwise.logic import *
from tracegraph.math.elementwise.unary import *
from tracegraph.math.gamma_and_beta import *
from tracegraph.math.norms import *
from tracegraph.math.product import *
from tracegraph.math.reduction import *
from tracegraph.math.segments import *
from tracegraph.math.sorting import *
from tracegraph.math.special import (
    bessel_i0 as bessel_i0,
    bessel_i0e as bessel_i0e,
    bessel_i1 as bessel_i1,
    bessel_i1e as bessel_i1e,
)

if not TYPE_CHECKING:  # to a type checker, names imported as themselves are public
    __all__ = names_of(globals(), "special")
