"""Optimizers, with Keras' names and formulae: Modules whose state is in Variables."""

from tracegraph.api.public_modules import publish
from tracegraph.optimizers import adam, base, gradients, imported, loss_scale
from tracegraph.optimizers import schedules as schedules
from tracegraph.optimizers.adam import Adam, Adamax, AdamW, Lamb, Nadam
from tracegraph.optimizers.base import Optimizer
from tracegraph.optimizers.gradients import SGD, Adadelta, Adagrad, Ftrl, Lion, RMSprop
from tracegraph.optimizers.imported import from_optax
from tracegraph.optimizers.loss_scale import LossScaleOptimizer

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "LossScaleOptimizer",
    "Nadam",
    "Optimizer",
    "RMSprop",
    "from_optax",
    "schedules",
]

# Modules are not public names.
del adam, base, gradients, imported, loss_scale

publish(__name__, f"{__name__}.schedules")
