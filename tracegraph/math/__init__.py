"""Mathematical functions of tensors, composed of primitives.

Every function converts its arguments to tensors, promotes them to one dtype and broadcasts them.
`name` is accepted wherever TensorFlow accepts it, but has no effect: nodes are named by the line
that created them.
"""

from typing import TYPE_CHECKING

from tracegraph.array.creation import complex as complex
from tracegraph.array.joining import accumulate_n as accumulate_n, add_n as add_n
from tracegraph.math import (
    counting,
    gamma_and_beta,
    norms,
    product,
    reduction,
    segments,
    sorting,
    special as special,
)
from tracegraph.math.counting import *
from tracegraph.math.elementwise import arithmetic, logic, unary
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

if not TYPE_CHECKING:  # mypy cannot read sums of lists, and treats starred names as public
    __all__ = [
        "accumulate_n",
        "add_n",
        "bessel_i0",
        "bessel_i0e",
        "bessel_i1",
        "bessel_i1e",
        "complex",
        "special",
    ]
    __all__ += arithmetic.__all__
    __all__ += gamma_and_beta.__all__
    __all__ += unary.__all__
    __all__ += logic.__all__
    __all__ += norms.__all__
    __all__ += counting.__all__
    __all__ += segments.__all__
    __all__ += sorting.__all__
    __all__ += product.__all__
    __all__ += reduction.__all__
