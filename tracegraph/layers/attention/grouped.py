"""Attention in several spaces, of which some share their keys and values."""

from __future__ import annotations

from typing import Unpack

from tracegraph.array.arguments import refuse
from tracegraph.layers.attention.many_heads import MultiHeadAttention
from tracegraph.layers.base import positive
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.typing import ConstraintLike, InitializerLike, RegularizerLike


class GroupQueryAttention(MultiHeadAttention):
    """Attention in `num_query_heads` spaces, groups of which share keys and values (Ainslie and
    others 2023).

    There are `num_key_value_heads` projections of keys and of values, each for
    num_query_heads / num_key_value_heads projections of queries in turn. One is the attention of
    Shazeer (2019), and as many as there are of queries is `MultiHeadAttention`. So a cache takes
    less memory.

    - `head_dim`: the features of each head's queries, keys and values.
    - The other arguments are those of `MultiHeadAttention`, as are the calls, the masks and the
      cache, whose shape is [examples, positions, num_key_value_heads, head_dim].

    >>> layer = tg.layers.GroupQueryAttention(16, num_query_heads=4, num_key_value_heads=2)
    >>> x = tg.random.normal([1, 6, 8])
    >>> y, weights = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    >>> y.shape, weights.shape
    (TensorShape([1, 6, 8]), TensorShape([1, 4, 6, 6]))
    >>> layer.make_cache(1, 6)[0].shape
    TensorShape([1, 6, 2, 16])

    Raises SignatureError (a ValueError) if num_key_value_heads does not divide num_query_heads, and
    ShapeError for inputs with fewer than three axes, and for sizes that do not fit.
    """

    @takes_options
    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        use_gate: bool = False,
        seed: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        op = "GroupQueryAttention"
        queries = positive(op, "num_query_heads", num_query_heads)
        keys = positive(op, "num_key_value_heads", num_key_value_heads)
        if queries % keys:
            fact = f"num_query_heads is {queries}, and num_key_value_heads is {keys}"
            refuse(op, fact, fix="give a number of key_value heads that divides that of queries")
        super().__init__(
            queries,
            positive(op, "head_dim", head_dim),
            dropout=dropout,
            use_bias=use_bias,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
            **options,
        )
        self.num_key_value_heads = keys
