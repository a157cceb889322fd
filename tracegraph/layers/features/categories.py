"""Categories as vectors: one-hot, multi-hot, and counts."""

from __future__ import annotations

from typing import Any, Unpack

from tracegraph.array.arguments import as_choice, as_flag, rank_of, refuse
from tracegraph.array.creation import one_hot
from tracegraph.array.shaping import expand_dims, squeeze
from tracegraph.core.shapes import Dim
from tracegraph.core.tensorshape import AskedSize
from tracegraph.core.types import DType, int32
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, positive
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.counting import bincount
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.typing import TensorLike

#: The modes that give a vector for a category, or for all of an example.
VECTORS = ("one_hot", "multi_hot", "count")


def dense_only(op: str, sparse: Any) -> None:
    """Refuses `sparse=True`: there are no sparse tensors."""
    if as_flag(op, "sparse", sparse):
        fail(SignatureError, f"{op}: sparse is True, and all tensors are dense", fix="leave it out")


def encoded(
    op: str, x: Tensor, mode: str, depth: int, dtype: DType, weights: Tensor | None = None
) -> Tensor:
    """The vectors, of length `depth`, of categories that are integers."""
    x = expand_dims(x, 0) if rank_of(op, x) == 0 else x
    if mode == "one_hot":
        return one_hot(_without_column(x), depth, dtype=dtype)
    if x.ndim > 2:
        fix = f'reshape them, or use output_mode="one_hot" in place of "{mode}"'
        refuse(op, f"the categories of an example are a vector, and there is {x.type}", x, fix=fix)
    is_binary = mode == "multi_hot"
    return bincount(x, weights, depth, depth, dtype, axis=-1, binary_output=is_binary)


def _without_column(x: Tensor) -> Tensor:
    """x without a last axis of size 1. An open size is taken for another one; where it is 1, the
    function is traced again."""
    if x.ndim == 1:
        return x
    last = x.type.shape[-1]
    if isinstance(last, Dim):
        AskedSize.note_apart(last, 1)
    return squeeze(x, -1) if last == 1 else x


class CategoryEncoding(Layer):
    """Categories from 0 to `num_tokens` - 1 as vectors of this length, of the dtype in which the
    layer computes.

    - `output_mode`: "one_hot" for a vector of each category, instead of the last axis if its size
      is 1; "multi_hot" for one of each example, [examples, categories], with a 1 for each
      category that it has; "count" for how often it has each.
    - `sparse`: not supported, since tensors are dense.

    A call takes integers, and `count_weights`, of their shape, to add up for "count" in place of
    ones. An integer that is not a category is ignored. Raises ValueError for other modes, for
    `sparse=True`, and for weights in another mode; ShapeError for examples of more than one axis;
    InvalidArgumentError for negative integers where they are counted, as `tg.math.bincount` does.

    >>> tg.layers.CategoryEncoding(3)([[0, 1], [2, 2]]).numpy()
    array([[1., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    >>> tg.layers.CategoryEncoding(3, "count")([[2, 2]], count_weights=[[0.5, 0.25]]).numpy()
    array([[0.  , 0.  , 0.75]], dtype=float32)
    """

    _computes_in_full = True

    @takes_options
    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        if num_tokens is None:
            fact = "CategoryEncoding: num_tokens, the number of categories, is missing"
            fail(SignatureError, fact, fix="give one more than the largest category")
        self.num_tokens = positive("CategoryEncoding", "num_tokens", num_tokens)
        mode = "multi_hot" if output_mode == "binary" else output_mode
        self.output_mode = as_choice("CategoryEncoding", "output_mode", mode, VECTORS)
        dense_only("CategoryEncoding", sparse)
        self.sparse = False

    def call(self, inputs: Tensor, count_weights: TensorLike | None = None) -> Tensor:
        x, weights = as_tensor(inputs), None
        if count_weights is not None:
            weights = cast_to(as_tensor(count_weights), self.dtype)
            if self.output_mode != "count":
                fact = "CategoryEncoding: weights were given, and output_mode is "
                fix = 'leave count_weights out, or use output_mode="count"'
                fail(SignatureError, f"{fact}{self.output_mode!r}", fix=fix)
        x = x if x.dtype.is_integer else cast_to(x, int32)
        return encoded(
            "CategoryEncoding", x, self.output_mode, self.num_tokens, self.dtype, weights
        )
