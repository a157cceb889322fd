"""Numbers as the ranges in which they are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tracegraph import initializers
from tracegraph.array.arguments import as_choice, as_list, as_number
from tracegraph.array.shaping import reshape
from tracegraph.core.types import float32, int32
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, positive
from tracegraph.layers.features.batches import batches_of
from tracegraph.layers.features.categories import VECTORS, dense_only, encoded
from tracegraph.math.elementwise.arithmetic import minimum
from tracegraph.math.elementwise.logic import less
from tracegraph.math.reduction import reduce_sum
from tracegraph.math.sorting import searchsorted
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import DTypeLike, TensorLike


class Discretization(Layer):
    """The number of the range in which each element is, as int32: 0 below the first boundary, k
    from boundary k - 1 on, below boundary k.

    - `bin_boundaries`: the boundaries, sorted; or None, for those that `adapt` finds.
    - `num_bins`: the number of ranges into which `adapt` divides its data, about equally many
      elements in each.
    - `epsilon`: how exactly: it keeps about 1 / epsilon numbers of the data, and more is not known
      of them.
    - `output_mode`: "int" for the numbers, or "one_hot", "multi_hot" and "count" for what
      `CategoryEncoding` makes of them.
    - `sparse`: not supported, since tensors are dense.

    Inputs are cast to the dtype of the layer; a nan is in the last range. Raises ValueError for
    boundaries that are not sorted, for both or none of boundaries and number, and for a call before
    `adapt`.

    >>> tg.layers.Discretization([0.0, 1.0])([[-0.5, 0.0, 3.0]]).numpy()
    array([[0, 1, 2]], dtype=int32)
    >>> layer = tg.layers.Discretization(num_bins=4)
    >>> layer.adapt(np.arange(8.0))
    >>> layer.bin_boundaries
    [1.0, 3.0, 5.0]
    """

    _computes_in_full = True

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        sparse: bool = False,
        dtype: DTypeLike = float32,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name, dtype, trainable=trainable)
        modes = ("int", *VECTORS)
        self.output_mode = as_choice("Discretization", "output_mode", output_mode, modes)
        self.epsilon = as_number("Discretization", "epsilon", epsilon, low=1e-6, below=1)
        dense_only("Discretization", sparse)
        self.sparse = False
        if (bin_boundaries is None) == (num_bins is None):
            fact = f"bin_boundaries is {shown(bin_boundaries)}, and num_bins is {num_bins}"
            fix = "give the boundaries, or the number of ranges for adapt(data)"
            fail(SignatureError, f"Discretization: {fact}", fix=fix)
        self.num_bins = None
        if num_bins is None:
            self._given = _sorted(bin_boundaries)
            return
        self.num_bins = positive("Discretization", "num_bins", num_bins)
        with at_top_level():
            self.boundaries = self.add_weight(
                [self.num_bins - 1], initializers.Constant(math.nan), trainable=False
            )

    @property
    def bin_boundaries(self) -> list[float] | None:
        """The boundaries; None before `adapt`."""
        if self.num_bins is None:
            return self._given
        known = self.boundaries.numpy()
        return None if np.isnan(known).any() else known[known < math.inf].tolist()

    def adapt(self, data: TensorLike | Iterable[Any], steps: int | None = None) -> None:
        """Sets the boundaries so that about as many elements of the data are in each range: an
        array or a tensor, or an iterable of batches, of which the first one counts if a batch is a
        tuple. Data with fewer elements than ranges leave the last ranges empty.

        - `steps`: the number of batches to read; None for all.

        Raises SignatureError (a ValueError) for no data, for data that are nan where a boundary
        would be, and if the boundaries were given; DTypeError for data that are not real numbers.
        """
        if self.num_bins is None:
            fact = "Discretization: the boundaries were given, so they are not adapted"
            fail(SignatureError, fact, fix="make the layer with num_bins= in their place")
        most = None if steps is None else positive("Discretization.adapt", "steps", steps)
        summary = np.zeros((2, 0), np.float32)
        for batch in itertools.islice(batches_of("Discretization", data), most):
            added = _summary(batch.astype(np.float32).ravel(), self.epsilon)
            summary = _merged(added, summary, self.epsilon)
        if not summary.size:
            fail(SignatureError, "Discretization: there are no data", fix="give some elements")
        found = _compressed(summary, 1 / self.num_bins)[0, :-1][: self.num_bins - 1]
        if np.isnan(found).any():
            fact = "Discretization: so many of the data are nan that a boundary is nan"
            fail(SignatureError, fact, fix="leave them out: data[~np.isnan(data)]")
        missing = self.num_bins - 1 - len(found)
        self.boundaries.assign(np.pad(found, (0, missing), constant_values=math.inf))

    def call(self, inputs: Tensor) -> Tensor:
        x = cast_to(as_tensor(inputs), self.dtype)
        count = self.num_bins or len(self._given) + 1
        numbers = reshape(self._ranges(reshape(x, [-1])), x.type.shape)
        if self.output_mode == "int":
            return numbers
        return encoded("Discretization", numbers, self.output_mode, count, self.dtype)

    def _ranges(self, x: Tensor) -> Tensor:
        if self.num_bins is None:
            return searchsorted(as_tensor(self._given, x.dtype), x, side="right")
        with at_top_level():
            is_known = self.bin_boundaries is not None
        if not is_known:
            fact = "Discretization: it has no boundaries yet"
            fail(SignatureError, fact, fix="call layer.adapt(data) first, or give bin_boundaries")
        last = reduce_sum(cast_to(less(self.boundaries, math.inf), int32))
        return minimum(searchsorted(self.boundaries, x, side="right"), last)


def _sorted(boundaries: Any) -> list[float]:
    numbers = [
        as_number("Discretization", "a boundary", bound)
        for bound in as_list("Discretization", "bin_boundaries", boundaries)
    ]
    if sorted(numbers) != numbers:
        fact = f"Discretization: the boundaries are {shown(boundaries)}"
        fail(SignatureError, fact, fix="sort them: sorted(boundaries)")
    return numbers


# Quantiles of data that come in batches. A summary has some of the sorted elements in row 0, and in
# row 1 how many elements each stands for; the steps are those of Keras, so the bits are too.


def _summary(values: np.ndarray, epsilon: float) -> np.ndarray:
    """About 1 / epsilon elements at equal distances."""
    step = max(values.size / (1.0 / epsilon), 1)
    chosen = np.sort(values)[int(step - 1) :: int(step)]
    return np.stack([chosen, np.ones_like(chosen) * step])


def _merged(one: np.ndarray, other: np.ndarray, epsilon: float) -> np.ndarray:
    both = np.concatenate([one, other], axis=1)
    return _compressed(both[:, np.argsort(both[0])], epsilon)


def _compressed(summary: np.ndarray, epsilon: float) -> np.ndarray:
    """A summary of 1 / epsilon elements, interpolated where the shares of the elements below are
    multiples of epsilon."""
    if summary.shape[1] * epsilon < 1:
        return summary
    below = summary[1].cumsum()
    shares, wanted = below / below[-1], epsilon + np.arange(0.0, 1.0, epsilon)
    elements, below = (np.interp(wanted, shares, row) for row in (summary[0], below))
    return np.stack([elements, np.diff(below, prepend=0)]).astype(np.float32)
