"""Optimizers, with Keras' names and formulae: Modules whose state is in Variables."""

from tracegraph.api.absent import publish
from tracegraph.optimizers import (
    adam,
    base,
    gradients,
    imported,
    loss_scale,
    matrices,
    schedules as schedules,
)
from tracegraph.optimizers.adam import Adam, Adamax, AdamW, Lamb, Nadam, ScheduleFreeAdamW
from tracegraph.optimizers.base import Optimizer
from tracegraph.optimizers.gradients import SGD, Adadelta, Adagrad, Ftrl, Lion, RMSprop
from tracegraph.optimizers.imported import from_optax
from tracegraph.optimizers.loss_scale import LossScaleOptimizer
from tracegraph.optimizers.matrices import Adafactor, Muon

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "LossScaleOptimizer",
    "Muon",
    "Nadam",
    "Optimizer",
    "RMSprop",
    "ScheduleFreeAdamW",
    "from_optax",
    "schedules",
]

# Submodules are not public names.
del adam, base, gradients, imported, loss_scale, matrices

publish(__name__, f"{__name__}.schedules")
