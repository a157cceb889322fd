"""The mathematics: functions of tensors, made of primitives.

Every function converts its arguments to tensors, promotes them to one dtype and broadcasts them.
`name` is accepted wherever TensorFlow accepts it and changes nothing: nodes are named by the line
that made them.
"""

from tracegraph.array.creation import complex
from tracegraph.array.joining import add_n
from tracegraph.math import arithmetic, functions, logic, norms, ordering, product, reduction
from tracegraph.math.arithmetic import *
from tracegraph.math.functions import *
from tracegraph.math.logic import *
from tracegraph.math.norms import *
from tracegraph.math.ordering import *
from tracegraph.math.product import *
from tracegraph.math.reduction import *

accumulate_n = add_n

__all__ = [
    "accumulate_n",
    "add_n",
    "complex",
]
__all__ += arithmetic.__all__
__all__ += functions.__all__
__all__ += logic.__all__
__all__ += norms.__all__
__all__ += ordering.__all__
__all__ += product.__all__
__all__ += reduction.__all__
