"""tracegraph: a graph-tracing autodiff compiler with TensorFlow's names and XLA's speed.

>>> import tracegraph as tg
>>> x = tg.Variable(3.0)
>>> with tg.GradientTape() as tape:
...     y = x**2
>>> tape.gradient(y, x)
<tg.Tensor: shape=(), dtype=float32, numpy=6.0>
"""

import sys
from typing import TYPE_CHECKING, NoReturn

import tracegraph.array_api  # installs the namespace of the array API on Tensor
import tracegraph.runtime.scatter  # installs the scatter methods on Variable
import tracegraph.runtime.values
import tracegraph.text  # installs the text of graphs on Graph
import tracegraph.views  # installs the views of graphs on Graph
from tracegraph import (
    absent,
    array,
    autodiff,
    config,
    debugging,
    errors,
    export,
    functional,
    image,
    initializers,
    layers,
    linalg,
    math,
    nest,
    nn,
    operators,
    optimizers,
    random,
    raw_ops,
    saved_model,
    testing,
    train,
)
from tracegraph.array import *
from tracegraph.debugging import Assert
from tracegraph.functional import *
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.math import *
from tracegraph.ordering import control_dependencies, group
from tracegraph.passes.registry import RegisterGradient, no_gradient
from tracegraph.runtime import boundary
from tracegraph.runtime.custom import custom_gradient, grad_pass_through, recompute_grad
from tracegraph.runtime.effects import print_tensors as print
from tracegraph.runtime.function import ConcreteFunction, Function, function
from tracegraph.runtime.module import Module
from tracegraph.runtime.naming import name_scope
from tracegraph.runtime.python_functions import numpy_function, py_function
from tracegraph.runtime.sparse import SparseJacobian
from tracegraph.runtime.tape import GradientTape, UnconnectedGradients
from tracegraph.runtime.trace import executing_eagerly, init_scope
from tracegraph.runtime.variable import Variable, VariableAggregation, VariableSynchronization
from tracegraph.tensorshape import IndexedSlices, TensorShape, TensorSpec
from tracegraph.types import (
    DType,
    TensorType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tracegraph.types import (
    bool_ as bool,
)
from tracegraph.version import __version__
from tracegraph.views import diff

#: The modules that users need; completion leaves out the others.
_MODULES = (
    *(autodiff, config, debugging, errors, export, image, initializers, layers, linalg, math, nest),
    *(nn, optimizers, random, raw_ops, saved_model, testing, train),
)
_INTERNAL = frozenset(["NoReturn", "TYPE_CHECKING"])

for _module in _MODULES:
    absent.show_names_of(_module)
# NumPy's name for a constant: it shall be told, not called.
del array, _module

if not TYPE_CHECKING:  # a checker would take every name for one that exists

    @absent.asked
    def __getattr__(name: str) -> NoReturn:
        absent.refuse(name)


def __dir__() -> list[str]:
    module = type(absent)
    return sorted(
        name
        for name, value in globals().items()
        if name not in _INTERNAL and (not isinstance(value, module) or value in _MODULES)
    )


boundary.guard((sys.modules[__name__], *_MODULES))
