"""The arguments that all optimizers share, stated once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])


class SharedButDecay(TypedDict, total=False):
    """What `Optimizer` says of each, and its defaults, hold for every optimizer."""

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
    """All of them. One that decays by itself has an argument of its own for it."""

    weight_decay: float | None


#: The defaults, in the order in which the arguments follow those of a class.
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


def takes_shared(init: Init) -> Init:
    """An `__init__` that ends in `**shared: Unpack[Shared]`, as users see it: with each of these
    arguments in its signature, and by position too. Arguments of its own that are for keywords
    alone come behind those that Keras has. Raises TypeError for what does not fit."""
    *own, _ = inspect.signature(init).parameters.values()
    names = {parameter.name for parameter in own}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    annotations: dict[str, Any] = Shared.__annotations__
    *shared, ours = [
        inspect.Parameter(name, kind, default=default, annotation=annotations[name].__forward_arg__)
        for name, default in DEFAULTS.items()
        if name not in names
    ]
    first = [parameter for parameter in own if parameter.kind is kind]
    last = [parameter.replace(kind=kind) for parameter in own if parameter.kind is not kind]
    signature = inspect.Signature([*first, *shared, *last, ours])

    @functools.wraps(init)
    def __init__(*args: Any, **kwargs: Any) -> None:
        init(**signature.bind(*args, **kwargs).arguments)

    found: Any = __init__
    found.__signature__ = signature
    return found
