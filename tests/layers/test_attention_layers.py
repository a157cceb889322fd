"""Attention against formulas in NumPy: masks, scores, the cache, gradients."""

import numpy as np
import pytest

import tracegraph as tg

L = tg.layers


def sample(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def close(actual, expected, tolerance=1e-10):
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.numpy(), expected, rtol=tolerance, atol=tolerance)


def softmax(scores, mask=None):
    kept = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    powers = np.where(kept, np.exp(scores), 0)
    total = powers.sum(-1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def heads(x, kernel, bias):
    return np.einsum("abc,cde->abde", x, kernel) + bias


def attended(weights, query, value, key, mask=None):
    """The result and the scores, of the eight weights in their order."""
    q = heads(query, *weights[0:2]) / np.sqrt(weights[0].shape[-1])
    k, v = heads(key, *weights[2:4]), heads(value, *weights[4:6])
    scores = softmax(np.einsum("btnh,bsnh->bnts", q, k), mask)
    y = np.einsum("bnts,bsnh->btnh", scores, v)
    return np.einsum("btnh,nhd->btd", y, weights[6]) + weights[7], scores


def built(layer, *inputs):
    layer(*inputs)
    for k, v in enumerate(layer.variables):
        v.assign(0.6 * sample(*v.shape, seed=k + 5))  # what it began with is not computed
    return [v.numpy() for v in layer.variables]


QUERY, VALUE, KEY = sample(2, 4, 6), sample(2, 5, 3, seed=1), sample(2, 5, 7, seed=2)
CAUSAL = np.tril(np.ones([4, 5], bool))


def test_many_heads():
    layer = L.MultiHeadAttention(3, 2, value_dim=4, dtype="float64")
    weights = built(layer, QUERY, VALUE, KEY)
    shapes = [(6, 3, 2), (3, 2), (7, 3, 2), (3, 2), (3, 3, 4), (3, 4), (3, 4, 6), (6,)]
    assert [w.shape for w in weights] == shapes
    assert [v.name for v in layer.variables] == ["kernel", "bias"] * 4
    y, scores = layer(QUERY, VALUE, KEY, return_attention_scores=True)
    expected, of_numpy = attended(weights, QUERY, VALUE, KEY)
    close(y, expected)
    close(scores, of_numpy)
    close(layer(QUERY, VALUE, key=KEY), expected)


def test_the_value_is_the_key_by_default():
    layer = L.MultiHeadAttention(2, 3, use_bias=False, output_shape=4, dtype="float64")
    kernels = built(layer, QUERY, VALUE)
    assert [k.shape for k in kernels] == [(6, 2, 3), (3, 2, 3), (3, 2, 3), (2, 3, 4)]
    weights = [part for kernel in kernels for part in (kernel, np.zeros(1))]
    close(layer(QUERY, value=VALUE), attended(weights, QUERY, VALUE, VALUE)[0])


def test_results_may_have_several_axes():
    layer = L.MultiHeadAttention(2, 3, output_shape=(4, 5), dtype="float64")
    *weights, kernel, bias = built(layer, QUERY, VALUE)
    assert kernel.shape == (2, 3, 4, 5) and bias.shape == (4, 5)
    flat = [*weights, kernel.reshape(2, 3, 20), bias.reshape(20)]
    expected = attended(flat, QUERY, VALUE, VALUE)[0].reshape(2, 4, 4, 5)
    close(layer(QUERY, VALUE), expected)


MASKS = {
    "causal": ({"use_causal_mask": True}, CAUSAL[None]),
    "attention": ({"attention_mask": sample(2, 4, 5) > 0}, sample(2, 4, 5) > 0),
    "numbers": ({"attention_mask": np.eye(4, 5)[None]}, np.eye(4, 5, dtype=bool)[None]),
    "value": ({"value_mask": sample(2, 5) > 0}, (sample(2, 5) > 0)[:, None]),
    "key": ({"key_mask": sample(2, 5) > 0}, (sample(2, 5) > 0)[:, None]),
    "query": ({"query_mask": sample(2, 4) > 0}, (sample(2, 4) > 0)[:, :, None]),
    "all": (
        {"attention_mask": sample(2, 4, 5) > 0, "use_causal_mask": True},
        (sample(2, 4, 5) > 0) & CAUSAL,
    ),
    "nothing": ({"attention_mask": np.zeros([2, 4, 5], bool)}, np.zeros([2, 4, 5], bool)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    options, mask = MASKS[name]
    layer = L.MultiHeadAttention(3, 2, dtype="float64")
    weights = built(layer, QUERY, VALUE, KEY)
    y, scores = layer(QUERY, VALUE, KEY, return_attention_scores=True, **options)
    expected, of_numpy = attended(weights, QUERY, VALUE, KEY, mask[:, None])
    close(y, expected)
    close(scores, of_numpy)


def test_a_mask_for_each_head():
    layer = L.MultiHeadAttention(3, 2, dtype="float64")
    weights = built(layer, QUERY, VALUE, KEY)
    mask = sample(2, 3, 4, 5) > -0.5
    close(
        layer(QUERY, VALUE, KEY, attention_mask=mask),
        attended(weights, QUERY, VALUE, KEY, mask)[0],
    )


def test_gradients():
    layer = L.MultiHeadAttention(2, 3, dtype="float64")
    weights = built(layer, QUERY, QUERY)
    seed, mask = sample(2, 4, 6, seed=7), CAUSAL[None, None, :, :4]
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(layer(QUERY, QUERY, use_causal_mask=True) * seed)
    found = tape.gradient(loss, layer.trainable_variables)
    for k, gradient in enumerate(found):
        for at in [(0,) * weights[k].ndim, tuple(n - 1 for n in weights[k].shape)]:
            sides = []
            for step in (1e-6, -1e-6):
                moved = [w.copy() for w in weights]
                moved[k][at] += step
                sides.append((attended(moved, QUERY, QUERY, QUERY, mask)[0] * seed).sum())
            expected = (sides[0] - sides[1]) / 2e-6
            assert gradient.numpy()[at] == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_dropout_of_weights_in_training():
    tg.random.set_seed(2)
    layer = L.MultiHeadAttention(2, 3, dropout=0.5)
    weights = layer(QUERY, VALUE, KEY, return_attention_scores=True)[1].numpy()
    y = layer(QUERY, VALUE, KEY).numpy()
    in_training, seen = layer(QUERY, VALUE, KEY, training=True, return_attention_scores=True)
    assert (in_training.numpy() != y).any()
    np.testing.assert_allclose(seen.numpy(), weights, rtol=1e-6)  # before the dropout, as in Keras


def test_open_sizes_and_parallel_loops():
    layer = L.MultiHeadAttention(2, 3, dtype="float64")
    layer(QUERY, QUERY)
    spec = tg.TensorSpec([None, None, 6], tg.float64)
    compute = tg.function(lambda x: layer(x, x, use_causal_mask=True), input_signature=[spec])
    for x in (QUERY, QUERY[:1, :3], sample(3, 7, 6)):
        close(compute(tg.constant(x)), layer(x, x, use_causal_mask=True).numpy())
    assert compute.experimental_get_tracing_count() == 1
    rows = tg.constant(np.stack([QUERY, -QUERY]))
    found = tg.vectorized_map(lambda x: layer(x, x), rows)
    close(found, np.stack([layer(QUERY, QUERY).numpy(), layer(-QUERY, -QUERY).numpy()]))


# ---------------------------------------------------------------- the cache


def test_tokens_one_by_one_are_the_whole():
    layer = L.MultiHeadAttention(2, 3, value_dim=4, dtype="float64")
    x = sample(2, 6, 5)
    whole = layer(x, x, use_causal_mask=True).numpy()
    cache = layer.make_cache(2, 8)
    assert [tuple(part.shape) for part in cache] == [(2, 8, 2, 3), (2, 8, 2, 4)]

    @tg.function
    def step(token, cache, at):
        return layer(token, token, cache=cache, cache_update_index=at)

    for i in range(6):
        y, cache = step(tg.constant(x[:, i : i + 1]), cache, tg.constant(i))
        close(y, whole[:, i : i + 1])
    assert step.experimental_get_tracing_count() == 1


def test_a_prompt_and_then_tokens():
    layer = L.MultiHeadAttention(2, 3, dtype="float64")
    x = sample(2, 6, 5)
    whole = layer(x, x, use_causal_mask=True).numpy()
    y, cache = layer(x[:, :4], x[:, :4], cache=layer.make_cache(2, 6), cache_update_index=0)
    close(y, whole[:, :4])
    y, scores, cache = layer(
        x[:, 4:], x[:, 4:], cache=cache, cache_update_index=4, return_attention_scores=True
    )
    close(y, whole[:, 4:])
    assert scores.shape == (2, 2, 2, 6)


def test_the_cache_is_the_state_of_a_loop():
    layer = L.MultiHeadAttention(1, 4, dtype="float64")
    x = sample(2, 1, 4)
    layer(x, x)

    @tg.function
    def sampled(token):
        def step(state, at):
            token, cache = state
            return layer(token, token, cache=cache, cache_update_index=at)

        return tg.scan(step, tg.range(5), (token, layer.make_cache(2, 5)))[0]

    tokens = sampled(tg.constant(x)).numpy()
    seen = np.concatenate([x, *tokens[:-1]], 1)
    close(layer(seen, seen, use_causal_mask=True), np.concatenate([*tokens], 1))


def test_a_token_costs_the_same_at_each_place():
    layer = L.MultiHeadAttention(2, 4)
    x = tg.ones([1, 1, 8])
    layer(x, x)

    def step(token, cache, at):
        return layer(token, token, cache=cache, cache_update_index=at)

    graph = tg.function(step).graph(x, layer.make_cache(1, 1000), tg.constant(0))
    products = [node for node in graph.nodes if node.op.name == "matmul"]
    sizes = {size for node in products for x in node.inputs for size in x.type.shape}
    assert 1000 in sizes  # the cache is read once, and nothing is quadratic in its length
    assert all(list(x.type.shape).count(1000) <= 1 for node in products for x in node.outputs)


# ---------------------------------------------------------------- one head


@pytest.mark.parametrize("use_scale", [False, True])
@pytest.mark.parametrize("mode", ["dot", "concat"])
def test_attention(mode, use_scale):
    query, value, key = sample(2, 4, 6), sample(2, 5, 3, seed=1), sample(2, 5, 6, seed=2)
    layer = L.Attention(use_scale, mode, dtype="float64")
    weights = built(layer, [query, value, key])
    names = ["scale"] * use_scale + ["concat_score_weight"] * (mode == "concat")
    assert [v.name for v in layer.variables] == names
    factor = weights[0] if use_scale else 1
    scores = factor * query @ key.swapaxes(1, 2)
    if mode == "concat":
        scores = weights[-1] * np.tanh(factor * (query[:, :, None] + key[:, None])).sum(-1)
    y, found = layer([query, value, key], return_attention_scores=True)
    close(found, softmax(scores))
    close(y, softmax(scores) @ value)


def test_masks_of_attention():
    query, value = sample(2, 4, 3), sample(2, 5, 3, seed=1)
    of_query, of_value = np.array([[1, 1, 0, 1]] * 2, bool), np.array([[1, 0, 1, 1, 0]] * 2, bool)
    layer = L.Attention(dtype="float64")
    scores = query @ value.swapaxes(1, 2)
    expected = softmax(scores, of_value[:, None] & CAUSAL) @ value * of_query[:, :, None]
    masks = [of_query, of_value]
    close(layer([query, value], mask=masks, use_causal_mask=True), expected)
    close(layer([query, value], mask=[None, None]), softmax(scores) @ value)


def test_additive_attention():
    query, value = sample(2, 4, 3), sample(2, 5, 3, seed=1)
    layer = L.AdditiveAttention(dtype="float64")
    (scale,) = built(layer, [query, value])
    assert scale.shape == (3,)
    scores = (scale * np.tanh(query[:, :, None] + value[:, None])).sum(-1)
    close(layer([query, value]), softmax(scores) @ value)


#: Inputs with two axes between examples and features.
WIDE_QUERY, WIDE_VALUE = sample(2, 3, 4, 6), sample(2, 3, 5, 3, seed=1)


def along_one(weights, query, value, mask=None):
    """Attention along axis 2 alone: that of the examples and axis 1 taken as one."""
    joined = [x.reshape(-1, *x.shape[2:]) for x in (query, value)]
    y, scores = attended(weights, joined[0], joined[1], joined[1], mask)
    return y.reshape(query.shape), scores.reshape(*query.shape[:2], *scores.shape[1:])


@pytest.mark.parametrize("axes", [2, -2, [2]])
def test_attention_along_one_axis_of_several(axes):
    layer = L.MultiHeadAttention(3, 2, attention_axes=axes, dtype="float64")
    weights = built(layer, WIDE_QUERY, WIDE_VALUE)
    y, scores = layer(WIDE_QUERY, WIDE_VALUE, return_attention_scores=True)
    expected, of_numpy = along_one(weights, WIDE_QUERY, WIDE_VALUE)
    close(y, expected)
    close(scores, of_numpy)
    causal = layer(WIDE_QUERY, WIDE_VALUE, use_causal_mask=True)
    close(causal, along_one(weights, WIDE_QUERY, WIDE_VALUE, CAUSAL)[0])


def test_masks_of_attention_along_one_axis_of_several():
    """A mask holds for all of what its axes leave out."""
    layer = L.MultiHeadAttention(3, 2, attention_axes=2, dtype="float64")
    weights = built(layer, WIDE_QUERY, WIDE_VALUE)
    random = np.random.default_rng(3)
    of_rows, of_all = random.random([2, 5]) < 0.7, random.random([2, 3, 4]) < 0.7
    pairs = random.random([2, 3, 4, 5]) < 0.7
    kept = of_rows[:, None, None] & of_all[..., None] & pairs
    masks = {"value_mask": of_rows, "query_mask": of_all, "attention_mask": pairs}
    y = layer(WIDE_QUERY, WIDE_VALUE, **masks)
    expected = along_one(weights, WIDE_QUERY, WIDE_VALUE, kept.reshape(6, 1, 4, 5))[0]
    close(y, expected)


def test_attention_along_all_axes_between():
    """Every pixel attends to every pixel: the axes of pixels taken as one."""
    layer = L.MultiHeadAttention(3, 2, dtype="float64")
    weights = built(layer, WIDE_QUERY, WIDE_VALUE)
    kept = np.random.default_rng(3).random([2, 3, 5]) < 0.7
    query, value = WIDE_QUERY.reshape(2, 12, 6), WIDE_VALUE.reshape(2, 15, 3)
    mask = kept.reshape(2, 1, 1, 15)
    expected, of_numpy = attended(weights, query, value, value, mask)
    y, scores = layer(WIDE_QUERY, WIDE_VALUE, value_mask=kept, return_attention_scores=True)
    close(y, expected.reshape(WIDE_QUERY.shape))
    close(scores, of_numpy.reshape(2, 3, 3, 4, 3, 5))


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_sliding_window(is_causal):
    layer = L.MultiHeadAttention(3, 2, sliding_window=2, dtype="float64")
    weights = built(layer, QUERY, VALUE)
    band = np.abs(np.arange(4)[:, None] - np.arange(5)) < 2
    mask = band & CAUSAL if is_causal else band
    y = layer(QUERY, VALUE, use_causal_mask=is_causal)
    close(y, attended(weights, QUERY, VALUE, VALUE, mask)[0])


def test_a_sliding_window_of_tokens_one_by_one():
    layer = L.MultiHeadAttention(2, 3, sliding_window=3, dtype="float64")
    x = sample(2, 6, 4)
    whole, cache = layer(x, x, use_causal_mask=True).numpy(), layer.make_cache(2, 6)
    for i in range(6):
        token = x[:, i : i + 1]
        y, cache = layer(token, token, cache=cache, cache_update_index=i)
        close(y, whole[:, i : i + 1])


def test_a_gate():
    layer = L.MultiHeadAttention(3, 2, value_dim=4, use_gate=True, dtype="float64")
    weights = built(layer, QUERY, VALUE)
    assert [w.shape for w in weights[4:8]] == [(6, 3, 4), (3, 4), (3, 3, 4), (3, 4)]
    gate = 1 / (1 + np.exp(-heads(QUERY, *weights[4:6])))
    plain = L.MultiHeadAttention(3, 2, value_dim=4, output_shape=12, dtype="float64")
    plain(QUERY, VALUE)
    identity = np.eye(12).reshape(3, 4, 12)
    plain.set_weights([*weights[:4], *weights[6:8], identity, np.zeros(12)])
    inner = plain(QUERY, VALUE).numpy().reshape(2, 4, 3, 4)
    close(layer(QUERY, VALUE), np.einsum("btnh,nhd->btd", inner * gate, weights[8]) + weights[9])


@pytest.mark.parametrize("shared", [1, 2])
def test_groups_of_heads_share_keys_and_values(shared):
    """Each projection of keys stands for that of several heads in a row."""
    layer = L.GroupQueryAttention(3, 4, shared, use_gate=True, dtype="float64")
    weights = built(layer, QUERY, VALUE)
    assert [w.shape for w in weights[:4:2]] == [(6, 4, 3), (3, shared, 3)]
    plain = L.MultiHeadAttention(4, 3, use_gate=True, dtype="float64")
    plain(QUERY, VALUE)
    for v, w in zip(plain.variables, weights, strict=True):
        v.assign(w if w.shape == v.shape else np.repeat(w, 4 // shared, axis=-2))
    options = {"attention_mask": CAUSAL[:, ::-1], "return_attention_scores": True}
    for actual, expected in zip(layer(QUERY, VALUE, **options), plain(QUERY, VALUE, **options)):
        close(actual, expected)


def test_a_cache_has_the_heads_of_keys_alone():
    x = sample(2, 6, 5)
    layer = L.GroupQueryAttention(3, 4, 2, sliding_window=4, dtype="float64")
    built(layer, x, x)
    whole, cache = layer(x, x, use_causal_mask=True), layer.make_cache(2, 6)
    assert [part.shape for part in cache] == [(2, 6, 2, 3)] * 2
    for i in range(6):
        token = x[:, i : i + 1]
        y, cache = layer(token, token, cache=cache, cache_update_index=i)
        close(y, whole[:, i : i + 1])


def self_attended(shape, use_causal_mask=False, cache=None, **settings):
    x = tg.ones(shape)
    options = {} if cache is None else {"cache": cache, "cache_update_index": 0}
    layer = L.MultiHeadAttention(2, 4, **settings)
    return layer(x, x, use_causal_mask=use_causal_mask, **options)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: L.MultiHeadAttention(0, 4), ValueError, "num_heads"),
        (lambda: L.MultiHeadAttention(2, 4, dropout=1.0), ValueError, "dropout"),
        (lambda: L.GroupQueryAttention(2, 4, 3), ValueError, "GroupQ.* 4, and num_key_value.* 3"),
        (lambda: L.GroupQueryAttention(2, 4, 2)(tg.ones([2, 3])), ValueError, "GroupQ.* a value"),
        (lambda: L.MultiHeadAttention(2, 4)(tg.ones([1, 2, 3])), ValueError, "without a value"),
        (lambda: L.MultiHeadAttention(2, 4)(tg.ones([2, 3]), tg.ones([2, 3])), ValueError, "3 ax"),
        (
            lambda: L.MultiHeadAttention(2, 4)(
                *[tg.ones([1, 2, 3])] * 2, attention_mask=tg.ones([3, 3])
            ),
            ValueError,
            "broadcast",
        ),
        (
            lambda: L.MultiHeadAttention(2, 4)(*[tg.ones([1, 2, 3])] * 2, cache=1),
            ValueError,
            "cache_update_index",
        ),
        (
            lambda: L.MultiHeadAttention(2, 4)(tg.ones([1, 2, 3]), tg.ones([1, 2, 3, 4])),
            ValueError,
            "differ in their axes",
        ),
        (lambda: self_attended([1, 2, 3, 4], attention_axes=3), ValueError, "attention_axes is"),
        (lambda: self_attended([1, 2, 3], attention_axes=[1, 1]), ValueError, "one axis twice"),
        (lambda: self_attended([1, 2, 3], attention_axes=[]), ValueError, "attention_axes is"),
        (lambda: self_attended([1, 2, 3], attention_axes="x"), TypeError, "attention_axes"),
        (lambda: self_attended([1, 2, 3], sliding_window=0), ValueError, "sliding_window"),
        (lambda: self_attended([1, 2, 3], flash_attention="on"), TypeError, "flash_attention"),
        (lambda: self_attended([1, 2, 3, 4], use_causal_mask=True), ValueError, "needs one axis"),
        (lambda: self_attended([1, 2, 3, 4], sliding_window=2), ValueError, "needs one axis"),
        (lambda: self_attended([1, 2, 3, 4], cache=()), ValueError, "a cache is for inputs of 3"),
        (lambda: L.Attention()(tg.ones([1, 2, 3])), ValueError, "it takes"),
        (lambda: L.Attention(score_mode="sum"), ValueError, "score_mode"),
        (lambda: L.Attention()([tg.ones([1, 2, 3]), tg.ones([1, 2, 4])]), ValueError, "matmul"),
    ],
)
def test_bad_arguments_of_attention_are_errors(make, kind, words):
    with pytest.raises(kind, match=words) as error:
        make()
    assert "test_attention_layers.py" in str(error.value)
    assert "fix: " in str(error.value)
