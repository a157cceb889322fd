"""Attention in several spaces at once."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from tracegraph import regularizers
from tracegraph.array.arguments import (
    as_axes,
    as_count,
    as_flag,
    as_integers,
    as_number,
    as_sizes,
    refuse,
    sizes_of,
)
from tracegraph.array.creation import zeros
from tracegraph.array.joining import repeat
from tracegraph.array.shaping import reshape
from tracegraph.core.types import int32
from tracegraph.errors import shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.activations import masked_softmax
from tracegraph.layers.attention.masks import banded, both, causal, combined
from tracegraph.layers.base import known_last, positive, tree_shape
from tracegraph.layers.core import EinsumDense
from tracegraph.layers.drawing import DrawingLayer
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import multiply
from tracegraph.math.product import einsum
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.index import UPDATE_SLICE
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    InitializerLike,
    Nest,
    RegularizerLike,
    SizeLike,
    TensorLike,
)

if TYPE_CHECKING:
    from typing import Unpack

    Cache = tuple[Tensor, Tensor]

    class _AttentionOptions(TypedDict, total=False):
        """What a call of MultiHeadAttention takes besides tensors and what decides its results."""

        query_mask: TensorLike | None
        value_mask: TensorLike | None
        key_mask: TensorLike | None
        attention_mask: TensorLike | None
        training: bool | None
        use_causal_mask: bool


#: What the axes of equations are called.
_LETTERS = string.ascii_lowercase


class MultiHeadAttention(DrawingLayer):
    """Attention in `num_heads` spaces at once, with mixed results (Vaswani and others 2017).

    Each head has its own projections of queries and keys, with `key_dim` features, and of values,
    with `value_dim`, by default key_dim. The scores are divided by sqrt(key_dim).

    - `dropout`: the rate at which to drop weights in training.
    - `use_bias`: whether the projections have biases.
    - `output_shape`: the number of output features, by default that of the query. A list of sizes
      gives the features several axes.
    - `attention_axes`: the axes of the inputs along which to attend, one or several; by default all
      between the first and the last. The other axes are treated as that of the examples is.
    - `sliding_window`: None, or how many positions a query sees on either side, its own included.
    - `use_gate`: whether to multiply the attended values by sigmoids of a projection of the query.
    - `flash_attention`: accepted but has no effect: it names a kernel, not a result.
    - `seed`: the seed of the dropout.
    - The other arguments are those of `Dense`, for all four kernels, of shapes [features, heads,
      key_dim] and [heads, value_dim, features].

    Call it as layer(query, value, key=None), with shapes [examples, queries, features] and
    [examples, keys, features], or with more axes of queries and keys; the keys default to the
    values. Arguments of the call:

    - `query_mask`, `value_mask`, `key_mask`: [examples, queries or keys]; `attention_mask`:
      [examples, queries, keys], or a shape that broadcasts to it: where a query may attend to a
      key. The first three are by default the masks that earlier layers gave to the inputs.
    - `use_causal_mask`: whether query i attends only to the keys up to i, along one axis.
    - `return_attention_scores`: whether to return the weights, [examples, heads, queries, keys],
      too.
    - `cache`, `cache_update_index`: the result of `make_cache`, and the position of the first
      query. The call writes its keys and values there, each query attends to the positions up to
      its own, and the cache is returned as the last result. So a sampler computes each token only
      once:

    >>> layer = tg.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = tg.random.normal([1, 6, 8])
    >>> whole = layer(x, x, use_causal_mask=True)
    >>> cache = layer.make_cache(1, 6)
    >>> for i in range(6):
    ...     token = x[:, i : i + 1]
    ...     y, cache = layer(token, token, cache=cache, cache_update_index=i)
    >>> bool(tg.reduce_max(tg.abs(y - whole[:, 5:])) < 1e-5)
    True

    Along the rows of images alone:

    >>> layer = tg.layers.MultiHeadAttention(num_heads=2, key_dim=4, attention_axes=2)
    >>> x = tg.ones([1, 5, 6, 8])
    >>> y, weights = layer(x, x, return_attention_scores=True)
    >>> y.shape, weights.shape
    (TensorShape([1, 5, 6, 8]), TensorShape([1, 5, 2, 6, 6]))

    Raises ShapeError for inputs with fewer than three axes, and for sizes that do not fit.
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
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
        super().__init__(**options)
        op = type(self).__name__
        self.num_heads = self.num_key_value_heads = positive(op, "num_heads", num_heads)
        self.key_dim = positive(op, "key_dim", key_dim)
        self.value_dim = self.key_dim if value_dim is None else positive(op, "value_dim", value_dim)
        self.dropout = as_number(op, "dropout", dropout, low=0, below=1)
        self.use_bias = as_flag(op, "use_bias", use_bias)
        self.output_shape: Any = None
        if output_shape is not None:
            sizes = as_sizes(op, "output_shape", output_shape)
            self.output_shape = tuple(positive(op, "output_shape", size) for size in sizes)
        self.attention_axes = (
            None if attention_axes is None else as_sizes(op, "attention_axes", attention_axes)
        )
        window = sliding_window
        self.sliding_window = None if window is None else positive(op, "sliding_window", window)
        as_flag(op, "flash_attention", flash_attention)
        self.use_gate = as_flag(op, "use_gate", use_gate)
        self.activity_regularizer = regularizers.get(activity_regularizer)
        self._describe("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)
        self._set_seed(seed)

    @overload
    def __call__(  # type: ignore[override]
        self,
        query: TensorLike,
        value: TensorLike,
        key: TensorLike | None = ...,
        *,
        return_attention_scores: Literal[False] = ...,
        **arguments: Unpack[_AttentionOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        query: TensorLike,
        value: TensorLike,
        key: TensorLike | None = ...,
        *,
        return_attention_scores: Literal[True],
        **arguments: Unpack[_AttentionOptions],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: TensorLike,
        value: TensorLike,
        key: TensorLike | None = ...,
        *,
        return_attention_scores: Literal[False] = ...,
        cache: Cache,
        cache_update_index: TensorLike,
        **arguments: Unpack[_AttentionOptions],
    ) -> tuple[Tensor, Cache]: ...
    @overload
    def __call__(
        self,
        query: TensorLike,
        value: TensorLike,
        key: TensorLike | None = ...,
        *,
        return_attention_scores: Literal[True],
        cache: Cache,
        cache_update_index: TensorLike,
        **arguments: Unpack[_AttentionOptions],
    ) -> tuple[Tensor, Tensor, Cache]: ...
    def __call__(self, query: Nest, value: Nest = None, key: Nest = None, **arguments: Any) -> Any:
        """Attention from the query to the value; see the class for the other arguments."""
        if value is None:
            fix = "call it as layer(query, value), or layer(x, x) for attention to itself"
            refuse(type(self).__name__, "it was called without a value", fix=fix)
        return self._called(query, [value] if key is None else [value, key], arguments)

    def _build_for(self, x: Any, more: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        self.build(tree_shape(x), *map(tree_shape, more))

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:  # type: ignore[override]
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        rank = self._rank_of(query_shape, value_shape, key_shape)
        self._along = self._axes_of(rank)
        self._equations = attention_equations(rank, self._along)
        heads, features = self.num_heads, known_last(self, query_shape)
        shared = self.num_key_value_heads
        self.query_dense = self._projection(query_shape, heads, self.key_dim)
        self.key_dense = self._projection(key_shape, shared, self.key_dim)
        if self.use_gate:
            self.gate_dense = self._projection(query_shape, heads, self.value_dim, "sigmoid")
        self.value_dense = self._projection(value_shape, shared, self.value_dim)
        results = self.output_shape or (features,)
        free, axes = _LETTERS[3 : rank + 2], _LETTERS[rank + 2 : rank + 2 + len(results)]
        equation = f"{free}ab,ab{axes}->{free}{axes}"
        self.output_dense = self._dense(equation, [*[None] * (rank - 2), *results], axes)
        self.output_dense.build([*[None] * (rank - 1), heads, self.value_dim])

    def _rank_of(self, *shapes: Any) -> int:
        """The number of axes of all inputs, which is one."""
        ranks = {len(shape) for shape in shapes}
        if len(ranks) > 1 or min(ranks) < 3:
            wrong = "do not have 3 axes or more" if len(ranks) == 1 else "differ in their axes"
            fact = f"inputs of the shapes {', '.join(map(str, shapes))} {wrong}"
            fix = "give [examples, queries or keys, features]"
            refuse(type(self).__name__, fact, fix=fix)
        return len(shapes[0])

    def _axes_of(self, rank: int) -> tuple[int, ...]:
        """The axes along which to attend."""
        op, inner = type(self).__name__, tuple(range(1, rank - 1))
        if self.attention_axes is None:
            return inner
        axes = as_axes(op, self.attention_axes, rank)
        if not axes or not set(axes) <= set(inner):
            fact = f"attention_axes is {shown(self.attention_axes)}, and inputs have {rank} axes"
            refuse(op, fact, fix=f"give some of the axes between the first and the last: {inner}")
        return axes

    def _projection(
        self, shape: Any, heads: int, size: int, activation: ActivationLike = None
    ) -> EinsumDense:
        """A product that gives each of the heads `size` features."""
        free, rank = _LETTERS[3 : len(shape) + 2], len(shape)
        sizes = [*[None] * (rank - 2), heads, size]
        dense = self._dense(f"{free}c,cab->{free}ab", sizes, "ab", activation)
        dense.build(shape)
        return dense

    def _dense(
        self,
        equation: str,
        output_shape: Sequence[int | None],
        axes: str,
        activation: ActivationLike = None,
    ) -> EinsumDense:
        made: Any = vars(self)
        options = {
            f"{weight}_{part}": made[f"{weight}_{part}"]
            for weight in ("kernel", "bias")
            for part in ("initializer", "regularizer", "constraint")
        }
        bias_axes = axes if self.use_bias else None
        return EinsumDense(
            equation, output_shape, activation, bias_axes=bias_axes, dtype=self._policy, **options
        )

    def make_cache(self, batch_size: SizeLike, max_length: SizeLike) -> tuple[Tensor, Tensor]:
        """Allocates keys and values for `max_length` positions: zeros of shapes [examples,
        positions, heads, key_dim] and [examples, positions, heads, value_dim], where the heads are
        those of keys and values. The cache can be a state of loops like any other."""
        examples = as_count("make_cache", "batch_size", batch_size)
        places = as_count("make_cache", "max_length", max_length)
        shape = examples, places, self.num_key_value_heads
        return (
            zeros([*shape, self.key_dim], self.compute_dtype),
            zeros([*shape, self.value_dim], self.compute_dtype),
        )

    def call(  # type: ignore[override]
        self,
        query: Tensor,
        value: TensorLike,
        key: TensorLike | None = None,
        query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None,
        key_mask: TensorLike | None = None,
        attention_mask: TensorLike | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Cache | None = None,
        cache_update_index: TensorLike | None = None,
    ) -> Tensor | tuple[Any, ...]:
        op = type(self).__name__
        queries = self.query_dense(query)
        keys = self.key_dense(value if key is None else key)
        values = self.value_dense(value)
        count = len(self._along)
        rank = queries.ndim + count - 1
        allowed = combined(rank, count, query_mask, value_mask, key_mask, attention_mask)
        start: Any = 0
        if cache is not None:
            start = _place(op, cache_update_index, queries)
            cache = _written(cache[0], keys, start), _written(cache[1], values, start)
            keys, values = cache
        if self.num_key_value_heads != self.num_heads:
            times = self.num_heads // self.num_key_value_heads
            keys, values = (repeat(x, times, axis=-2) for x in (keys, values))
        is_causal = as_flag(op, "use_causal_mask", use_causal_mask) or cache is not None
        allowed = both(allowed, self._order(queries, keys, is_causal, start))
        is_training = as_flag(op, "training", training)
        is_masked = any(x is not None for x in (query_mask, value_mask, key_mask, attention_mask))
        # A query may always attend to its own position, so only other masks may exclude all.
        axes = tuple(range(rank - count, rank))
        weights = masked_softmax(self._scores(queries, keys), axes, allowed, is_masked)
        kept = self._dropped(weights, self.dropout) if is_training else weights
        y = einsum(self._equations[1], kept, values)
        y = self.output_dense(multiply(y, self.gate_dense(query)) if self.use_gate else y)
        results: list[Any] = [y]
        if as_flag(op, "return_attention_scores", return_attention_scores):
            results.append(weights)
        if cache is not None:
            results.append(cache)
        return y if len(results) == 1 else tuple(results)

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[examples, heads, queries, keys]"""
        scaled = multiply(queries, 1 / math.sqrt(self.key_dim))
        return einsum(self._equations[0], scaled, keys)

    def _order(self, queries: Tensor, keys: Tensor, is_causal: bool, start: Any) -> Any:
        """[queries, keys]: which keys the positions allow; None for all."""
        if not is_causal and self.sliding_window is None:
            return None
        axis = self._one_axis("an order of positions")
        sizes = sizes_of(type(self).__name__, queries)[axis], sizes_of("", keys)[axis]
        allowed = causal(*sizes, start) if is_causal else None
        if self.sliding_window is not None:
            allowed = both(allowed, banded(*sizes, self.sliding_window, start))
        return allowed

    def _one_axis(self, what: str) -> int:
        """The axis along which to attend, where there must be one."""
        axis, *more = self._along
        if more:
            fact = f"{what} needs one axis, and the layer attends along {self._along}"
            refuse(type(self).__name__, fact, fix="give the layer one in attention_axes")
        return axis


def attention_equations(rank: int, along: tuple[int, ...]) -> tuple[str, str]:
    """The products of queries and keys, and of weights and values, for inputs of `rank` axes.

    >>> attention_equations(3, (1,))
    ('cdab,ceab->cade', 'cade,ceab->cdab')
    """
    queries = _LETTERS[2 : rank + 1]
    fresh = iter(_LETTERS[rank + 1 :])
    keys = "".join(next(fresh) if k in along else queries[k] for k in range(rank - 1))
    whole = "".join(queries[k] for k in range(rank - 1) if k not in along)
    scores = f"{whole}a{''.join(queries[k] for k in along)}{''.join(keys[k] for k in along)}"
    return f"{queries}ab,{keys}ab->{scores}", f"{scores},{keys}ab->{queries}ab"


def _place(op: str, index: Any, queries: Tensor) -> Tensor:
    """The position of the first query, for a cache."""
    if queries.ndim != 4:
        fact = f"a cache is for inputs of 3 axes, and the query has {queries.ndim - 1}"
        refuse(op, fact, fix="give [examples, queries, features]")
    if index is None:
        fix = "give the place of the first query: cache_update_index=0"
        refuse(op, "a cache needs a cache_update_index", fix=fix)
    place = as_integers(op, "the cache_update_index", index)
    return reshape(cast_to(place, int32), [])


def _written(cache: Any, rows: Tensor, start: Tensor) -> Tensor:
    """The cache with `rows` written from position `start` on."""
    held = as_tensor(cache)
    zero = as_tensor(0, int32)
    return UPDATE_SLICE(held, rows, zero, start, zero, zero)
