"""The namespace of the Python array API standard, version 2024.12.

`x.__array_namespace__()` of a tensor is this module, so code written against the standard computes
with tensors, also inside functions, and can be differentiated. The functions are those of `tg`,
`tg.math`, `tg.linalg` and `tg.signal` with the names and arguments of the standard;
`docs/array_api.md` describes the differences.

>>> x = tg.constant([3.0, 4.0])
>>> xp = x.__array_namespace__()
>>> xp.sqrt(xp.sum(x * x)).numpy()
np.float32(5.0)
"""

from __future__ import annotations

import math as _math
from typing import TYPE_CHECKING, Any

from tracegraph.api.absent import names_of, publish
from tracegraph.core.types import (
    complex64 as complex64,
    complex128 as complex128,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from tracegraph.numpy import fft as fft, linalg as linalg
from tracegraph.numpy.creation import *
from tracegraph.numpy.data_types import *
from tracegraph.numpy.elementwise import *
from tracegraph.numpy.information import __array_namespace_info__ as __array_namespace_info__
from tracegraph.numpy.linalg import matmul as matmul, tensordot as tensordot, vecdot as vecdot
from tracegraph.numpy.manipulation import *
from tracegraph.numpy.searching import *
from tracegraph.numpy.statistics import *

# To a type checker, a name imported `as` another is private.
if TYPE_CHECKING:
    from tracegraph.core import types as _types

    bool = _types.bool_
else:
    from tracegraph.core.types import bool_ as bool

__array_api_version__ = "2024.12"

e, inf, nan, newaxis, pi = _math.e, _math.inf, _math.nan, None, _math.pi

if not TYPE_CHECKING:  # to a type checker, names imported as themselves are public
    __all__ = names_of(globals(), "fft", "linalg")
    __all__ += ["__array_api_version__", "__array_namespace_info__"]

publish("tracegraph.numpy", "tracegraph.numpy.fft", "tracegraph.numpy.linalg")
