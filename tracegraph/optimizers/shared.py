"""The arguments that all optimizers share, defined once."""

from __future__ import annotations

from typing import TypedDict

from tracegraph.boundary.shared_arguments import shared_arguments


class SharedButDecay(TypedDict, total=False):
    """The shared arguments except weight decay; `Optimizer` documents them and their defaults."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None
    sparse_updates: bool


class Shared(SharedButDecay, total=False):
    """All shared arguments. Optimizers with their own weight decay define that argument."""

    weight_decay: float | None


#: The defaults, in the order of the arguments after those of a class.
DEFAULTS = Shared(
    weight_decay=None,
    clipnorm=None,
    clipvalue=None,
    global_clipnorm=None,
    use_ema=False,
    ema_momentum=0.99,
    ema_overwrite_frequency=None,
    loss_scale_factor=None,
    gradient_accumulation_steps=None,
    name=None,
    sparse_updates=False,
)

takes_shared = shared_arguments(Shared, DEFAULTS)
