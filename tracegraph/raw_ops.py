"""`tg.raw_ops`: single ops under TensorFlow's names; all arguments are keyword-only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracegraph.api.absent import publish
from tracegraph.array.arguments import as_list, as_number
from tracegraph.array.shaping import reshape
from tracegraph.core.types import float64
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.sorting import searchsorted
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops import elementwise

if TYPE_CHECKING:
    from tracegraph.typing import TensorLike


def PreventGradient(*, input: TensorLike, message: str = "", name: str | None = None) -> Tensor:
    """Returns `input`; taking its derivative is an error, which shows `message`.

    Raises a LookupError, with the line, if a derivative is taken through it, in any mode.

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


def Bucketize(*, input: TensorLike, boundaries: Sequence[float], name: str | None = None) -> Tensor:
    """The number of sorted `boundaries` that each element is at or above, as int32.

    Raises DTypeError for operands that are not numbers, ValueError for unsorted boundaries.

    >>> tg.raw_ops.Bucketize(input=[-5.0, 0.0, 150.0], boundaries=[0.0, 10.0, 100.0]).numpy()
    array([0, 1, 3], dtype=int32)
    """
    bounds = as_list("Bucketize", "boundaries", boundaries)
    numbers = [float(as_number("Bucketize", "a boundary", bound)) for bound in bounds]
    if sorted(numbers) != numbers:
        fact = f"Bucketize: the boundaries are {shown(boundaries)}"
        fail(SignatureError, fact, fix="sort them: sorted(boundaries)")
    x = as_tensor(input)
    flat = cast_to(reshape(x, [-1]), float64)  # so that no boundary is rounded
    found = searchsorted(as_tensor(np.array(numbers, np.float64)), flat, side="right")
    return reshape(found, x.type.shape)


__all__ = ["Bucketize", "PreventGradient"]

publish(__name__)
