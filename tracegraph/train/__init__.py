"""Checkpoints: the values of Variables on disk, by the paths that lead to them; moving averages.

>>> v = tg.Variable([1.0, 2.0])
>>> path = tg.train.Checkpoint(v=v).save("checkpoints/ckpt")
>>> _ = v.assign([0.0, 0.0])
>>> _ = tg.train.Checkpoint(v=v).restore(path)
>>> v.numpy()
array([1., 2.], dtype=float32)
"""

from tracegraph.api.absent import publish
from tracegraph.train.checkpoint import Checkpoint
from tracegraph.train.checkpoint_state import latest_checkpoint
from tracegraph.train.manager import CheckpointManager
from tracegraph.train.moving_averages import ExponentialMovingAverage
from tracegraph.train.reader import list_variables, load_checkpoint, load_variable

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "ExponentialMovingAverage",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]

publish(__name__)
