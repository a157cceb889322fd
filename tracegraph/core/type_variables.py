"""What type checkers know of a function that wraps another: its parameters and its result."""

from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:  # Python supports defaults of type variables from 3.13 on; checkers already do
    import typing_extensions

    Parameters = typing_extensions.ParamSpec("Parameters", default=...)
    Result = typing_extensions.TypeVar("Result", default=typing_extensions.Any)
else:
    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result")
