"""The public interface of the conversion: `tg.autograph`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from tracegraph.autograph.function_conversion import (
    NotConvertible,
    converted_text,
    directives,
    take_as_given,
)
from tracegraph.autograph.scope import not_converting
from tracegraph.errors import SignatureError, TraceError, fail, shown

if TYPE_CHECKING:
    from typing import TypeVar

    from tracegraph.typing import TensorLike

    Converted = TypeVar("Converted", bound=Callable[..., Any])


def to_code(
    entity: Callable[..., Any],
    recursive: bool = True,
    experimental_optional_features: object = None,
) -> str:
    """The Python code that a function is converted to, with the hooks in `ag__`.

    Functions that it calls are converted when they are called, so `recursive` changes nothing, and
    all features are on. Raises SignatureError (a TypeError and a ValueError), with the reason, for
    a function that cannot be converted, such as one without source.

    >>> def positive(x):
    ...     return x if x > 0 else -x
    >>> "if_exp" in tg.autograph.to_code(positive)
    True
    """
    function = getattr(entity, "python_function", entity)
    try:
        return converted_text(function)
    except NotConvertible as refusal:
        fail(
            SignatureError,
            f"{shown(function)} cannot be converted: {refusal}",
            fix="define it with `def` in a file or a notebook, without what is named",
        )


@overload
def do_not_convert(func: Converted) -> Converted: ...
@overload
def do_not_convert(func: None = None) -> Callable[[Converted], Converted]: ...
def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
    """The function, to be called unconverted even by converted code; also a decorator.

    >>> @tg.autograph.do_not_convert
    ... def sign(x):
    ...     return tg.where(x > 0.0, 1.0, -1.0)
    """
    if func is None:
        return do_not_convert
    if not callable(func):
        fact = f"do_not_convert: {shown(func)} is not callable"
        fail(TraceError, fact, fix="give a function, or write @tg.autograph.do_not_convert")

    # This wrapper is in our file, so it is never converted.
    @functools.wraps(func)
    def unconverted(*args: Any, **kwargs: Any) -> Any:
        with not_converting():
            return func(*args, **kwargs)

    return unconverted


take_as_given.update((do_not_convert, to_code))


def set_loop_options(
    parallel_iterations: int | None = None,
    swap_memory: bool | None = None,
    maximum_iterations: TensorLike | None = None,
    shape_invariants: object = None,
) -> None:
    """Sets options of the loop whose first statement this is.

    - `maximum_iterations`: the number of iterations after which it ends, whatever its test says; an
      int or a tensor. Loops that Python runs, because it knows the deciding values, are not
      bounded.
    - `shape_invariants`: pairs of a variable and a shape, with None for sizes that an iteration may
      change. Each iteration of a `for` of known length is then traced separately; other loops run
      from Python, with a program for each size, and have no derivative.
    - The others are accepted, and without effect: XLA has no such options.

    Raises SignatureError elsewhere in converted code.
    """


directives.add(set_loop_options)
