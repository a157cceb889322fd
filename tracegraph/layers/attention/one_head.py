"""Attention with one set of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tracegraph.array.arguments import as_choice, as_flag, as_number, refuse, sizes_of
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import expand_dims
from tracegraph.errors import shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.activations import masked_softmax
from tracegraph.layers.attention.masks import both, causal
from tracegraph.layers.base import flags_of, known_last
from tracegraph.layers.drawing import DrawingLayer
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, multiply
from tracegraph.math.elementwise.unary import tanh
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_sum
from tracegraph.operands.conversion import as_tensor
from tracegraph.typing import Nest, TensorLike


class Attention(DrawingLayer):
    """softmax(query @ key^T) @ value (Luong and others 2015)

    - `use_scale`: whether to multiply the scores by a learned scalar.
    - `score_mode`: "dot", or "concat" for a sum of tanh(query + key).
    - `dropout`: the rate at which to drop weights in training.

    Call it with [query, value] or [query, value, key], of shapes [examples, queries, features] and
    [examples, keys, features]. Arguments of the call:

    - `mask`: [query_mask, value_mask], each None or of shape [examples, queries or keys]; by
      default the masks that earlier layers gave to the inputs.
    - `return_attention_scores`: whether to return the weights, [examples, queries, keys], too.
    - `use_causal_mask`: whether query i attends only to the keys up to i.

    >>> layer = tg.layers.Attention()
    >>> layer([tg.ones([1, 2, 4]), tg.ones([1, 3, 4])]).shape
    TensorShape([1, 2, 4])
    """

    @takes_options
    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        op = type(self).__name__
        self.use_scale = as_flag(op, "use_scale", use_scale)
        self.score_mode = as_choice(op, "score_mode", score_mode, ("dot", "concat"))
        self.dropout = as_number(op, "dropout", dropout, low=0, below=1)
        self._set_seed(seed)

    def build(self, input_shape: Any) -> None:
        if self.use_scale:
            self.scale = self.add_weight([], "ones", name="scale")
        if self.score_mode == "concat":
            self.concat_score_weight = self.add_weight([], "ones", name="concat_score_weight")

    def _as_inputs(self, inputs: Any) -> Any:
        self._check(inputs)
        return [super(Attention, self)._as_inputs(x) for x in inputs]

    def compute_mask(self, inputs: Nest, mask: Nest = None) -> TensorLike | None:
        """The mask of the query."""
        masks: Any = mask
        return None if masks is None else masks[0]  # type: ignore[no-any-return]

    def _check(self, inputs: Any) -> None:
        if not isinstance(inputs, (list, tuple)) or len(inputs) not in (2, 3):
            op = type(self).__name__
            fact = f"it takes [query, value] or [query, value, key], and was given {shown(inputs)}"
            refuse(op, fact, fix=f"call it with a list: tg.layers.{op}()([query, value])")

    if TYPE_CHECKING:

        @overload
        def __call__(  # type: ignore[override]
            self,
            inputs: Sequence[TensorLike],
            mask: Sequence[TensorLike | None] | None = ...,
            training: bool | None = ...,
            return_attention_scores: Literal[False] = ...,
            use_causal_mask: bool = ...,
        ) -> Tensor: ...
        @overload
        def __call__(
            self,
            inputs: Sequence[TensorLike],
            mask: Sequence[TensorLike | None] | None = ...,
            training: bool | None = ...,
            *,
            return_attention_scores: Literal[True],
            use_causal_mask: bool = ...,
        ) -> tuple[Tensor, Tensor]: ...
        def __call__(self, inputs: Sequence[TensorLike], *more: Any, **arguments: Any) -> Any: ...

    def call(
        self,
        inputs: Sequence[Tensor],
        mask: Sequence[TensorLike | None] | None = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        op = type(self).__name__
        query, value = inputs[:2]
        scores = self._scores(query, inputs[-1] if len(inputs) == 3 else value)
        query_mask, value_mask = (None, None) if mask is None else mask[:2]
        allowed = None if value_mask is None else expand_dims(flags_of(value_mask), 1)
        if as_flag(op, "use_causal_mask", use_causal_mask):
            allowed = both(allowed, causal(*sizes_of(op, scores)[-2:]))
        weights = masked_softmax(scores, (scores.ndim - 1,), allowed)
        if as_flag(op, "training", training):
            weights = self._dropped(weights, self.dropout)
        y = matmul(weights, value)
        if query_mask is not None:
            y = where(expand_dims(flags_of(query_mask), -1), y, as_tensor(0.0, y.dtype))
        return (
            (y, weights) if as_flag(op, "return_attention_scores", return_attention_scores) else y
        )

    def _scores(self, query: Any, key: Any) -> Tensor:
        """[examples, queries, keys]"""
        if self.score_mode == "dot":
            scores = matmul(query, key, transpose_b=True)
            return multiply(scores, self.scale) if self.use_scale else scores
        inner = add(expand_dims(query, -2), expand_dims(key, -3))
        inner = multiply(inner, self.scale) if self.use_scale else inner
        return multiply(reduce_sum(tanh(inner), -1), self.concat_score_weight)


class AdditiveAttention(Attention):
    """softmax(sum(scale * tanh(query + key))) @ value (Bahdanau and others 2014)

    The scale is learned, one number per feature. Call it like `Attention`.

    >>> layer = tg.layers.AdditiveAttention()
    >>> layer([tg.ones([1, 2, 4]), tg.ones([1, 3, 4])]).shape
    TensorShape([1, 2, 4])
    """

    @takes_options
    def __init__(
        self, use_scale: bool = True, dropout: float = 0.0, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(use_scale, dropout=dropout, **options)

    def build(self, input_shape: Any) -> None:
        if self.use_scale:
            features = known_last(self, input_shape[0])
            self.scale = self.add_weight([features], "glorot_uniform", name="scale")

    def _scores(self, query: Any, key: Any) -> Tensor:
        inner = tanh(add(expand_dims(query, -2), expand_dims(key, -3)))
        return reduce_sum(multiply(inner, self.scale) if self.use_scale else inner, -1)
