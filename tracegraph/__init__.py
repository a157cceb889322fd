"""tracegraph: a graph-tracing autodiff compiler with TensorFlow's names and XLA's speed.

>>> import tracegraph as tg
>>> x = tg.Variable(3.0)
>>> with tg.GradientTape() as tape:
...     y = x**2
>>> tape.gradient(y, x)
<tg.Tensor: shape=(), dtype=float32, numpy=6.0>

To type checkers, a name is public if it is imported `as` itself, or starred from a module whose
`__all__` is a list of names.
"""

import sys
from typing import TYPE_CHECKING, Any

import tracegraph.eager.tensor_methods
import tracegraph.state.scatter  # installs the scatter methods on Variable
from tracegraph import (
    array,
    autodiff as autodiff,
    autograph as autograph,
    bitwise as bitwise,
    config as config,
    debugging as debugging,
    errors as errors,
    linalg as linalg,
    math as math,
    nest as nest,
    nn as nn,
    random as random,
    version,
)
from tracegraph.api import absent, functional, graph_methods, operators
from tracegraph.api.control_dependencies import (
    control_dependencies as control_dependencies,
    group as group,
)
from tracegraph.api.functional import *
from tracegraph.api.python_functions import (
    numpy_function as numpy_function,
    py_function as py_function,
)
from tracegraph.array.blocks import *
from tracegraph.array.creation import *
from tracegraph.array.grouping import *
from tracegraph.array.indexing.selection import *
from tracegraph.array.indexing.slices import *
from tracegraph.array.joining import *
from tracegraph.array.rearranging import *
from tracegraph.array.shaping import *
from tracegraph.boundary import guarding
from tracegraph.control_flow.branches import *
from tracegraph.control_flow.loops import *
from tracegraph.core.later import opened
from tracegraph.core.tensorshape import (
    IndexedSlices as IndexedSlices,
    TensorShape as TensorShape,
    TensorSpec as TensorSpec,
)
from tracegraph.core.types import (
    DType as DType,
    TensorType as TensorType,
    as_dtype as as_dtype,
    bfloat16 as bfloat16,
    complex64 as complex64,
    complex128 as complex128,
    float8_e4m3fn as float8_e4m3fn,
    float8_e5m2 as float8_e5m2,
    float16 as float16,
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
from tracegraph.debugging import Assert as Assert
from tracegraph.differentiation.custom_gradient import (
    custom_gradient as custom_gradient,
    grad_pass_through as grad_pass_through,
    recompute_grad as recompute_grad,
)
from tracegraph.differentiation.graph_gradients import gradients as gradients, hessians as hessians
from tracegraph.differentiation.sparse_jacobian import SparseJacobian as SparseJacobian
from tracegraph.differentiation.tape import (
    GradientTape as GradientTape,
    UnconnectedGradients as UnconnectedGradients,
)
from tracegraph.functions.function import (
    ConcreteFunction as ConcreteFunction,
    Function as Function,
    function as function,
)
from tracegraph.ir.tensor import Graph as Graph, Node as Node, Tensor as Tensor
from tracegraph.math import accumulate_n as accumulate_n
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
from tracegraph.passes.registry import (
    RegisterGradient as RegisterGradient,
    no_gradient as no_gradient,
)
from tracegraph.state.module import Module as Module
from tracegraph.state.variable import (
    Variable as Variable,
    VariableAggregation as VariableAggregation,
    VariableSynchronization as VariableSynchronization,
)
from tracegraph.tensor_arrays.tensor_array import TensorArray as TensorArray
from tracegraph.tracing.name_scopes import name_scope as name_scope
from tracegraph.tracing.trace import (
    executing_eagerly as executing_eagerly,
    init_scope as init_scope,
)
from tracegraph.version import __version__ as __version__

# To a type checker, a name imported `as` another is private.
if TYPE_CHECKING:
    from tracegraph.array.indexing import slices as _slices
    from tracegraph.core import types as _types
    from tracegraph.effects import checks_and_prints as _prints

    bool, double, half = _types.bool_, _types.float64, _types.float16
    print, slice = _prints.print_tensors, _slices.slice_of
else:
    from tracegraph.array.indexing.slices import slice_of as slice
    from tracegraph.core.types import bool_ as bool, float16 as half, float64 as double
    from tracegraph.effects.checks_and_prints import print_tensors as print

if TYPE_CHECKING:  # imported on first use
    from tracegraph import (
        activations as activations,
        constraints as constraints,
        distribute as distribute,
        export as export,
        image as image,
        initializers as initializers,
        keras as keras,
        layers as layers,
        losses as losses,
        metrics as metrics,
        numpy as numpy,
        optimizers as optimizers,
        quantization as quantization,
        raw_ops as raw_ops,
        regularizers as regularizers,
        saved_model as saved_model,
        signal as signal,
        testing as testing,
        train as train,
        utils as utils,
    )
    from tracegraph.eager.devices import device as device
    from tracegraph.jax_programs import from_jax as from_jax
    from tracegraph.profiling import profile as profile
    from tracegraph.views import diff as diff

    constant_initializer = initializers.Constant
    ones_initializer = initializers.Ones
    random_normal_initializer = initializers.RandomNormal
    random_uniform_initializer = initializers.RandomUniform
    zeros_initializer = initializers.Zeros

#: The modules that users need; completion omits the others. Those of `absent.LATER` are not
#: imported yet.
_MODULES = (
    *(autodiff, autograph, autograph.experimental, bitwise, config, debugging, errors),
    *(linalg, math, math.special, nest, nn, random),
)
_INTERNAL = frozenset(["Any", "TYPE_CHECKING", "opened"])
#: Functions whose modules are imported on first use.
_FUNCTIONS_LATER = {
    "device": "tracegraph.eager.devices",
    "diff": "tracegraph.views",
    "from_jax": "tracegraph.jax_programs",
    "profile": "tracegraph.profiling",
}

#: TensorFlow 2's names of initializers, and Keras' names of them.
_INITIALIZERS = {
    "constant_initializer": "Constant",
    "ones_initializer": "Ones",
    "random_normal_initializer": "RandomNormal",
    "random_uniform_initializer": "RandomUniform",
    "zeros_initializer": "Zeros",
}

for _module in _MODULES:
    absent.show_names_of(_module)
# `array` is NumPy's name for a constant, and `version` a module of TensorFlow: tg.array and
# tg.version must raise advice, not be modules.
del array, version, _module

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    @absent.asked
    def __getattr__(name: str) -> Any:
        if name in absent.LATER:
            return opened(f"tracegraph.{name}")
        if name in _FUNCTIONS_LATER:
            module = opened(_FUNCTIONS_LATER[name])
            return guarding.public(getattr(module, name), __name__, name)
        if name in _INITIALIZERS:
            return getattr(opened("tracegraph.initializers"), _INITIALIZERS[name])
        absent.refuse(name)


def __dir__() -> list[str]:
    module = type(absent)
    names = {
        name
        for name, value in globals().copy().items()  # other threads import
        if not isinstance(value, module) or value in _MODULES
    }
    return sorted(names - _INTERNAL | absent.LATER | _FUNCTIONS_LATER.keys() | _INITIALIZERS.keys())


guarding.guard((sys.modules[__name__], *_MODULES))
