"""The arguments that all optimizers share, defined once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])


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


def takes_shared(init: Init) -> Init:
    """Expands `**shared: Unpack[Shared]` at the end of an `__init__` for users: each of these
    arguments appears in the signature and can be passed by position. The class's own keyword-only
    arguments follow those of Keras. Raises TypeError for arguments that do not fit."""
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
