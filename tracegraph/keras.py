"""The supported parts of Keras, under Keras' names: a program that uses them only changes its
imports.

>>> from tracegraph import keras
>>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, activation="relu")])
>>> model(tg.ones([1, 3])).shape
TensorShape([1, 2])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracegraph import (
    activations as activations,
    constraints as constraints,
    initializers as initializers,
    layers as layers,
    losses as losses,
    metrics as metrics,
    optimizers as optimizers,
    random as random,
    regularizers as regularizers,
    utils as utils,
)
from tracegraph.api.absent import names_of, publish
from tracegraph.eager.devices import device as device
from tracegraph.initializers import Initializer as Initializer
from tracegraph.layers import Input as Input, Layer as Layer, Sequential as Sequential
from tracegraph.losses import Loss as Loss
from tracegraph.metrics import Metric as Metric
from tracegraph.optimizers import Optimizer as Optimizer
from tracegraph.regularizers import Regularizer as Regularizer
from tracegraph.state.variable import Variable as Variable
from tracegraph.tracing.name_scopes import name_scope as name_scope

_MODULES = (
    *("activations", "constraints", "initializers", "layers", "losses", "metrics"),
    *("optimizers", "random", "regularizers", "utils"),
)

if not TYPE_CHECKING:  # to a type checker, names imported as themselves are public
    __all__ = names_of(globals(), *_MODULES)

# Makes `from tracegraph.keras.layers import Dense` find the module itself, not a copy.
for _name in _MODULES:
    sys.modules[f"{__name__}.{_name}"] = sys.modules[f"tracegraph.{_name}"]

publish(__name__)
