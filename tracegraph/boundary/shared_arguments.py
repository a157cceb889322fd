"""Arguments that the classes of a family share, defined once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])


def shared_arguments(shared_type: type, defaults: Mapping[str, Any]) -> Callable[[Init], Init]:
    """A decorator for an `__init__` that ends with `**shared: Unpack[shared_type]`, a TypedDict.

    It expands them for users: each shared argument is in the signature, in the order of `defaults`,
    and can be passed by position, unless the `__init__` defines an argument of that name itself.
    Own keyword-only arguments stand before the last shared one. Raises TypeError for arguments that
    do not fit.
    """
    annotations = {name: hint.__forward_arg__ for name, hint in shared_type.__annotations__.items()}

    def takes_shared(init: Init) -> Init:
        *own, _ = inspect.signature(init).parameters.values()
        names = {parameter.name for parameter in own}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        *shared, end = [
            inspect.Parameter(name, kind, default=default, annotation=annotations[name])
            for name, default in defaults.items()
            if name not in names
        ]
        first = [parameter for parameter in own if parameter.kind is kind]
        last = [parameter.replace(kind=kind) for parameter in own if parameter.kind is not kind]
        return with_parameters(init, [*first, *shared, *last, end])

    return takes_shared


def with_parameters(init: Init, parameters: Sequence[inspect.Parameter]) -> Init:
    """An `__init__` that users see with these parameters. It gets the arguments by name."""
    signature = inspect.Signature(parameters)

    @functools.wraps(init)
    def __init__(*args: Any, **kwargs: Any) -> None:
        init(**signature.bind(*args, **kwargs).arguments)

    found: Any = __init__
    found.__signature__ = signature
    return found


def show_name(cls: type, name: str) -> None:
    """Shows users `name` as the default of a class that takes its `__init__` from a base, where the
    default is "" for all its classes."""
    if "__init__" not in vars(cls):
        init: Any = cls.__init__  # type: ignore[misc]
        parameters = [
            parameter.replace(default=name) if parameter.name == "name" else parameter
            for parameter in inspect.signature(init).parameters.values()
        ]
        cls.__init__ = with_parameters(init, parameters)  # type: ignore[misc]
