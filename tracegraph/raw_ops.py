"""`tg.raw_ops`: single ops by the names that TensorFlow gives them; arguments go by keyword."""

from __future__ import annotations

from typing import Any

from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops import elementwise


def PreventGradient(*, input: Any, message: str = "", name: str | None = None) -> Tensor:
    """`input` itself; asking for its derivative is an error, which shows `message`.

    Raises a LookupError, with the line, where a derivative is taken through it, in any mode.

    >>> x = tg.Variable(2.0)
    >>> with tg.GradientTape() as tape:
    ...     y = tg.raw_ops.PreventGradient(input=x, message="no slope here")
    >>> try:
    ...     tape.gradient(y, x)
    ... except LookupError as error:
    ...     print(str(error).splitlines()[0])
    prevent_gradient: the gradient is explicitly disabled here: no slope here
    """
    return elementwise.PreventGradient(str(message))(as_tensor(input))


__all__ = ["PreventGradient"]
