"""Recurrent layers against a loop in NumPy: states, masks, directions, dropout, gradients."""

import numpy as np
import pytest

import tracegraph as tg

L = tg.layers
UNITS, FEATURES = 3, 4


def sample(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def simple_step(x, states, kernel, recurrent, bias):
    y = np.tanh(x @ kernel + states[0] @ recurrent + bias)
    return y, [y]


def lstm_step(x, states, kernel, recurrent, bias):
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, [h, c]


def gru_step(x, states, kernel, recurrent, bias):
    (h,) = states
    of_x, of_h = x @ kernel + bias[0], h @ recurrent + bias[1]
    z, r = np.split(sigmoid(of_x[:, : 2 * UNITS] + of_h[:, : 2 * UNITS]), 2, -1)
    g = np.tanh(of_x[:, 2 * UNITS :] + r * of_h[:, 2 * UNITS :])
    h = z * h + (1 - z) * g
    return h, [h]


def gru_before_step(x, states, kernel, recurrent, bias):
    (h,) = states
    of_x = x @ kernel + bias
    z, r = np.split(sigmoid(of_x[:, : 2 * UNITS] + h @ recurrent[:, : 2 * UNITS]), 2, -1)
    g = np.tanh(of_x[:, 2 * UNITS :] + (r * h) @ recurrent[:, 2 * UNITS :])
    h = z * h + (1 - z) * g
    return h, [h]


#: The layer, its cell, one step in NumPy, and how many states and gates it has.
KINDS = {
    "SimpleRNN": (L.SimpleRNN, L.SimpleRNNCell, simple_step, 1, 1),
    "LSTM": (L.LSTM, L.LSTMCell, lstm_step, 2, 4),
    "GRU": (L.GRU, L.GRUCell, gru_step, 1, 3),
    "GRU before": (
        lambda *a, **k: L.GRU(*a, reset_after=False, **k),
        lambda *a, **k: L.GRUCell(*a, reset_after=False, **k),
        gru_before_step,
        1,
        3,
    ),
}


def along(step, x, weights, states, mask=None, zero=False):
    """The outputs of all steps, and the states after the last."""
    outputs, last = [], None
    for k in range(x.shape[1]):
        y, after = step(x[:, k], states, *weights)
        if mask is not None:
            kept = mask[:, k : k + 1]
            other = np.zeros_like(y) if zero or last is None else last
            y = np.where(kept, y, other)
            after = [np.where(kept, new, old) for new, old in zip(after, states, strict=True)]
        outputs.append(y)
        last, states = y, after
    return np.stack(outputs, 1), states


def built(layer, x):
    layer(x)
    for k, v in enumerate(layer.variables):
        v.assign(0.6 * sample(*v.shape, seed=k + 5))  # what it began with is not computed
    return [v.numpy() for v in layer.variables]


def close(actual, expected):
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


X = sample(2, 5, FEATURES)
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]], bool)


def zeros(count):
    return [np.zeros([2, UNITS])] * count


@pytest.mark.sampled(2)
def test_outputs_and_states(kind):
    make, _, step, count, gates = kind
    layer = make(UNITS, return_sequences=True, return_state=True, dtype="float64")
    weights = built(layer, X)
    assert [v.name for v in layer.variables] == ["kernel", "recurrent_kernel", "bias"]
    assert weights[0].shape == (FEATURES, gates * UNITS)
    assert weights[1].shape == (UNITS, gates * UNITS)
    outputs, states = along(step, X, weights, zeros(count))
    y, *found = layer(X)
    close(y, outputs)
    for one, other in zip(found, states, strict=True):
        close(one, other)
    last = make(UNITS, dtype="float64")
    last(X)
    last.set_weights(weights)
    close(last(X), outputs[:, -1])


def test_a_state_to_begin_with(kind):
    make, _, step, count, _ = kind
    layer = make(UNITS, dtype="float64")
    weights = built(layer, X)
    start = [sample(2, UNITS, seed=20 + k) for k in range(count)]
    close(layer(X, initial_state=start), along(step, X, weights, start)[0][:, -1])
    with pytest.raises(ValueError, match=f"initial_state has {count + 1} tensors") as error:
        layer(X, initial_state=[*start, start[0]])
    assert "fix: " in str(error.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unroll", [False, True])
def test_masked_steps_change_nothing(kind, unroll):
    make, _, step, count, _ = kind
    options = {"return_sequences": True, "return_state": True, "dtype": "float64"}
    layer = make(UNITS, unroll=unroll, **options)
    weights = built(layer, X)
    y, *found = layer(X, mask=MASK)
    outputs, states = along(step, X, weights, zeros(count), MASK)
    close(y, outputs)
    for one, other in zip(found, states, strict=True):
        close(one, other)


def test_masked_outputs_are_zeros_if_asked():
    layer = L.RNN(L.GRUCell(UNITS, dtype="float64"), True, zero_output_for_mask=True)
    layer.dtype = tg.float64
    weights = built(layer, X)
    close(layer(X, mask=MASK), along(gru_step, X, weights, zeros(1), MASK, zero=True)[0])


def test_masked_outputs_of_a_layer_are_zeros_if_asked(kind):
    make, _, step, count, _ = kind
    layer = make(UNITS, return_sequences=True, zero_output_for_mask=True, dtype="float64")
    weights = built(layer, X)
    close(layer(X, mask=MASK), along(step, X, weights, zeros(count), MASK, zero=True)[0])


def test_backwards(kind):
    make, _, step, count, _ = kind
    layer = make(UNITS, return_sequences=True, go_backwards=True, dtype="float64")
    weights = built(layer, X)
    close(layer(X, mask=MASK), along(step, X[:, ::-1], weights, zeros(count), MASK[:, ::-1])[0])


def test_one_step_of_a_cell(kind):
    _, make, step, count, _ = kind
    cell = make(UNITS, dtype="float64")
    start = [sample(2, UNITS, seed=20 + k) for k in range(count)]
    cell(X[:, 0], start)
    weights = [v.numpy() for v in cell.variables]
    y, states = cell(X[:, 0], start)
    expected, after = step(X[:, 0], start, *weights)
    close(y, expected)
    for one, other in zip(states, after, strict=True):
        close(one, other)
    assert [tuple(x.shape) for x in cell.get_initial_state(7)] == [(7, UNITS)] * count


@pytest.mark.sampled(2)
def test_gradients(kind):
    make, _, step, count, _ = kind
    layer = make(UNITS, dtype="float64")
    weights = built(layer, X)
    seed = sample(2, UNITS, seed=9)
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(layer(X, mask=MASK) * seed)
    found = tape.gradient(loss, layer.trainable_variables)

    def total():
        return (along(step, X, weights, zeros(count), MASK)[0][:, -1] * seed).sum()

    for gradient, weight in zip(found, weights, strict=True):
        for at in [(0,) * weight.ndim, tuple(n - 1 for n in weight.shape)]:
            kept = weight[at]
            weight[at] = kept + 1e-6
            high = total()
            weight[at] = kept - 1e-6
            low = total()
            weight[at] = kept
            assert gradient.numpy()[at] == pytest.approx((high - low) / 2e-6, rel=1e-6, abs=1e-8)


@pytest.mark.sampled(2)
def test_open_numbers_of_examples_and_steps(kind):
    make, _, step, count, _ = kind
    layer = make(UNITS, return_sequences=True, dtype="float64")
    compute = tg.function(
        layer, input_signature=[tg.TensorSpec([None, None, FEATURES], tg.float64)]
    )
    weights = built(layer, X)
    for x in (X, X[:, :2], sample(2, 9, FEATURES, seed=3)):
        close(compute(tg.constant(x)), along(step, x, weights, zeros(count))[0])
    assert compute.experimental_get_tracing_count() == 1


@pytest.mark.sampled(2)
def test_parallel_loop(kind):
    make, *_ = kind
    layer = make(UNITS, dtype="float64")
    layer(X)
    found = tg.vectorized_map(layer, tg.constant(np.stack([X, 2 * X])))
    close(found, np.stack([layer(X).numpy(), layer(2 * X).numpy()]))


def test_the_bias_of_the_forget_gate_begins_with_ones():
    layer = L.LSTM(2)
    layer(X)
    assert layer.cell.bias.numpy().tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    layer = L.LSTM(2, unit_forget_bias=False, bias_initializer="ones")
    layer(X)
    assert layer.cell.bias.numpy().tolist() == [1] * 8
    layer = L.LSTM(2)
    layer(X)
    kernel = layer.cell.recurrent_kernel.numpy()
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(2), atol=1e-6)


def test_dropout_draws_once_for_all_steps():
    tg.random.set_seed(3)
    x = np.ones([64, 6, 5])
    layer = L.SimpleRNN(
        5,
        activation=None,
        kernel_initializer="identity",
        recurrent_initializer="zeros",
        dropout=0.5,
        return_sequences=True,
    )
    close(layer(x), x)
    y = layer(x, training=True).numpy()
    assert set(np.unique(y)) == {0, 2} and (y == y[:, :1]).all()
    assert 0.35 < (y == 0).mean() < 0.65
    again = L.SimpleRNN(
        5,
        None,
        kernel_initializer="identity",
        recurrent_initializer="identity",
        recurrent_dropout=0.5,
    )
    assert (again(x, training=True).numpy() != again(x).numpy()).any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["concat", "sum", "mul", "ave", None])
@pytest.mark.parametrize("sequences", [False, True])
def test_both_directions(mode, sequences):
    inner = L.LSTM(UNITS, return_sequences=sequences, return_state=True, dtype="float64")
    layer = L.Bidirectional(inner, mode, dtype="float64")
    weights = built(layer, X)
    assert len(weights) == 6
    there, states = along(lstm_step, X, weights[:3], zeros(2), MASK, zero=sequences)
    back, others = along(lstm_step, X[:, ::-1], weights[3:], zeros(2), MASK[:, ::-1], sequences)
    back = back[:, ::-1] if sequences else back[:, -1]
    there = there if sequences else there[:, -1]
    merged = {
        "concat": lambda: [np.concatenate([there, back], -1)],
        "sum": lambda: [there + back],
        "mul": lambda: [there * back],
        "ave": lambda: [(there + back) / 2],
        None: lambda: [there, back],
    }[mode]()
    expected = [*merged, *states, *others]
    for one, other in zip(layer(X, mask=MASK), expected, strict=True):
        close(one, other)


def test_both_directions_with_a_state_and_another_layer():
    layer = L.Bidirectional(
        L.GRU(UNITS, dtype="float64"),
        backward_layer=L.GRU(2, go_backwards=True, dtype="float64"),
        dtype="float64",
    )
    start = [sample(2, UNITS, seed=1), sample(2, 2, seed=2)]
    y = layer(X, initial_state=start)
    close(y[:, :UNITS], layer.forward_layer(X, initial_state=start[:1]).numpy())
    close(y[:, UNITS:], layer.backward_layer(X, initial_state=start[1:]).numpy())


def test_stacked_cells():
    cells = [L.LSTMCell(UNITS, dtype="float64"), L.GRUCell(UNITS, dtype="float64")]
    layer = L.RNN(cells, return_sequences=True, return_state=True, dtype="float64")
    weights = built(layer, X)
    inner, states = along(lstm_step, X, weights[:3], zeros(2))
    outputs, others = along(gru_step, inner, weights[3:], zeros(1))
    y, of_first, of_second = layer(X)
    close(y, outputs)
    for one, other in zip([*of_first, *of_second], [*states, *others], strict=True):
        close(one, other)


def test_a_cell_of_ones_own():
    class Sum(L.Layer):
        state_size = FEATURES

        def call(self, inputs, states):
            total = states[0] + inputs
            return tg.reduce_max(total, -1, keepdims=True), [total]

    layer = L.RNN(Sum(dtype="float64"), return_sequences=True, return_state=True, dtype="float64")
    y, total = layer(X)
    close(y, np.cumsum(X, 1).max(-1, keepdims=True))
    close(total, X.sum(1))


def test_a_long_sequence_is_one_loop():
    layer = L.LSTM(UNITS)
    graph = tg.function(layer).graph(tg.ones([2, 500, FEATURES]))
    assert sum(1 for _ in graph.nodes) < 120
    assert "scan" in str(graph)


def stateful():
    layer = L.GRU(2, stateful=True)
    layer(tg.ones([2, 5, 4]))
    return layer


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_decorated", [False, True])
def test_a_stateful_layer_goes_on_where_the_last_call_ended(kind, is_decorated):
    make, _, step, count, _ = kind
    layer = make(UNITS, stateful=True, return_sequences=True, dtype="float64")
    weights = built(layer, X)
    layer.reset_state()
    assert [v.name for v in layer.states] == ["rnn_state"] * count
    assert len(layer.variables) == len(layer.get_weights()) == 3
    call = tg.function(layer) if is_decorated else layer
    outputs, states = along(step, X, weights, zeros(count))
    close(call(X), outputs)
    close(call(X), along(step, X, weights, states)[0])
    layer.reset_states()
    close(call(X), outputs)


def test_states_that_are_given_and_masks_of_stateful_layers():
    layer = L.LSTM(UNITS, stateful=True, dtype="float64")
    weights = built(layer, X)
    given = [sample(2, UNITS, seed=k) for k in (8, 9)]
    outputs, states = along(lstm_step, X, weights, given, MASK)
    close(layer(X, initial_state=given, mask=MASK), outputs[:, -1])
    close(layer(X), along(lstm_step, X, weights, states)[0][:, -1])


def test_tapes_do_not_go_back_to_earlier_calls():
    """The gradient is that of the last call alone, with its first state a constant."""
    layer = L.SimpleRNN(UNITS, stateful=True, dtype="float64")
    plain = L.SimpleRNN(UNITS, dtype="float64")
    layer(X), plain(X)
    plain.set_weights(layer.get_weights())
    start = [state.numpy() for state in layer.states]
    with tg.GradientTape(persistent=True) as tape:
        y, z = layer(X), plain(X, initial_state=start)
    found, expected = (
        tape.gradient(result, by.trainable_variables) for result, by in ((y, layer), (z, plain))
    )
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@pytest.mark.sweep
def test_stacks_images_and_both_directions_keep_their_states():
    x, images = sample(2, 3, 4), sample(2, 3, 5, 1)
    for layer, inputs, count in (
        (L.RNN([L.LSTMCell(2), L.GRUCell(3)], stateful=True, dtype="float64"), x, 3),
        (L.ConvLSTM1D(2, 3, stateful=True, dtype="float64"), images, 2),
        (L.Bidirectional(L.GRU(2, stateful=True, dtype="float64"), dtype="float64"), x, 0),
    ):
        assert layer.stateful
        first, second = layer(inputs).numpy(), layer(inputs).numpy()
        assert np.abs(first - second).max() > 1e-4
        layer.reset_state()
        close(layer(inputs), first)
        assert len(tg.nest.flatten(getattr(layer, "states", []))) == count


def test_saved_stateful_layers_go_on(tmp_path):
    layer = L.LSTM(UNITS, stateful=True)
    module = tg.Module()
    module.layer, module.step = layer, tg.function(layer)
    module.step(tg.constant(X, tg.float32))
    tg.saved_model.save(module, tmp_path / "model")
    expected = module.step(tg.constant(X, tg.float32)).numpy()
    loaded = tg.saved_model.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.step(tg.constant(X, tg.float32)).numpy(), expected)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: L.LSTM(0), ValueError, "units"),
        (lambda: L.LSTM(2, stateful=1), TypeError, "stateful"),
        (lambda: stateful()(tg.ones([3, 5, 4])), ValueError, "2 examples, and the inputs have 3"),
        (
            lambda: tg.function(L.GRU(2, stateful=True)).graph(tg.TensorSpec([None, 5, 4])),
            ValueError,
            "size of axis 0 of the inputs, .* is open",
        ),
        (
            lambda: tg.function(stateful()).graph(tg.TensorSpec([None, 5, 4])),
            ValueError,
            "states of 2 examples",
        ),
        (
            lambda: L.Bidirectional(
                L.LSTM(2), backward_layer=L.LSTM(2, stateful=True, go_backwards=True)
            ),
            ValueError,
            "stateful is False in layer, and True in backward_layer",
        ),
        (lambda: L.LSTM(2, dropout=1.0), ValueError, "dropout"),
        (lambda: L.LSTM(2)(tg.ones([2, 3])), ValueError, "3 axes"),
        (lambda: L.GRU(2, activation="cosh"), ValueError, "activation"),
        (lambda: L.GRU(2, return_sequences=1), TypeError, "return_sequences"),
        (lambda: L.LSTMCell(2)(tg.ones([2, 3])), ValueError, "without states"),
        (lambda: L.RNN(L.Dense(2)), TypeError, "cell makes one step"),
        (lambda: L.RNN(L.LSTMCell), TypeError, "cell makes one step"),
        (lambda: L.StackedRNNCells([3]), TypeError, "cell makes one step"),
        (lambda: L.Bidirectional(L.Dense(2)), TypeError, "along sequences"),
        (lambda: L.Bidirectional(L.LSTM(2), "max"), ValueError, "merge_mode"),
        (lambda: L.Bidirectional(L.LSTM(2), backward_layer=L.LSTM(2)), ValueError, "direction"),
    ],
)
def test_bad_arguments_of_recurrent_layers_are_errors(make, kind, words):
    with pytest.raises(kind, match=words) as error:
        make()
    assert "test_recurrent_layers.py" in str(error.value)
    assert "fix: " in str(error.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_decorated", [False, True])
def test_batch_jacobians_over_time(is_decorated):
    """Rows of a batch do not meet in a loop over time, and that is proved."""
    layer = tg.layers.LSTM(3, return_sequences=True)
    x = tg.constant(np.random.default_rng(4).normal(size=(2, 5, 4)).astype(np.float32))
    layer(x)

    def jacobians(x):
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = layer(x)
        return tape.batch_jacobian(y, x), tape.jacobian(y, x)

    by_row, whole = (tg.function(jacobians) if is_decorated else jacobians)(x)
    expected = np.stack([whole.numpy()[b, :, :, b] for b in range(2)])
    np.testing.assert_allclose(by_row.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_in_place_of_products(rank):
    """A kernel of the size of the image, with the gates of one pixel, is a plain LSTM."""
    sizes = (3, 2, 2)[:rank]
    x = sample(2, 4, *sizes, 3)
    layer = getattr(tg.layers, f"ConvLSTM{rank}D")(
        5, sizes, return_sequences=True, return_state=True, bias_initializer="ones", dtype="float64"
    )
    layer(x)
    weights = [0.4 * sample(*v.shape, seed=k) for k, v in enumerate(layer.variables)]
    kernel, recurrent, bias = weights
    layer.set_weights(weights)
    y, h, c = layer(x)
    middle = recurrent[tuple((n - 1) // 2 for n in sizes)]  # h has one pixel
    plain = tg.layers.LSTM(5, return_sequences=True, return_state=True, dtype="float64")
    flat = x.reshape(2, 4, -1)
    plain(flat)
    plain.set_weights([kernel.reshape(-1, 20), middle, bias])
    for found, expected in zip((y, h, c), plain(flat)):
        close(tg.reshape(found, expected.shape), expected)


def test_convolutions_along_steps_are_those_of_each_step():
    x = sample(2, 3, 5, 4, 2)
    settings = {"padding": "same", "return_sequences": True, "return_state": True}
    settings["dtype"] = "float64"
    layer = tg.layers.ConvLSTM2D(3, 3, **settings)
    y, h, c = layer(x)
    kernel, recurrent, bias = layer.get_weights()
    states = np.zeros([2, 2, 5, 4, 3])
    for t in range(3):
        z = tg.nn.conv2d(x[:, t], kernel, 1, "SAME") + bias
        i, f, g, o = np.split((z + tg.nn.conv2d(states[0], recurrent, 1, "SAME")).numpy(), 4, -1)
        c_now = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
        states = np.stack([sigmoid(o) * np.tanh(c_now), c_now])
        close(y[:, t], states[0])
    close(c, states[1])
    again = layer(x, initial_state=[h, c], mask=np.float32([[0, 0, 0], [1, 1, 1]]) > 0)
    close(again[1][0], h[0])  # masked steps change nothing
    first = tg.layers.ConvLSTM2D(3, 3, data_format="channels_first", strides=2, **settings)
    assert first(np.moveaxis(x, -1, 2))[0].shape == (2, 3, 3, 3, 2)
    with pytest.raises(ValueError, match="do not have 5 axes"):
        tg.layers.ConvLSTM2D(3, 3)(x[0])


def test_a_sequential_hands_masks_on():
    class Kept(tg.layers.Layer):
        supports_masking = True

        def call(self, inputs):
            return 2.0 * inputs

    ids = np.array([[3, 1, 0, 0], [2, 4, 1, 0]])
    table = tg.layers.Embedding(5, 4, mask_zero=True)
    both = tg.layers.Bidirectional(tg.layers.LSTM(3, return_sequences=True))
    last, dense = tg.layers.GRU(3), tg.layers.Dense(2)
    x, mask = table(ids), table.compute_mask(ids)
    expected = dense(last(tg.tanh(2.0 * both(x, mask=mask)), mask=mask)).numpy()
    inside = tg.layers.Sequential([Kept(), tg.layers.Activation("tanh")])
    model = tg.layers.Sequential([table, both, tg.layers.Dropout(0.5), inside, last, dense])
    close(model(ids), expected)
    close(tg.function(model)(np.pad(ids, [(0, 0), (0, 3)])), expected)
    close(tg.layers.Sequential([both, inside, last, dense])(x, mask=mask), expected)
    first = tg.layers.Sequential([tg.layers.Sequential([table, both]), inside])
    close(tg.layers.Sequential([first, last, dense])(ids), expected)
    assert first.compute_mask(ids).numpy().tolist() == mask.numpy().tolist()
    assert model.compute_mask(ids) is None  # the last states only
    # A layer that does not keep the mask ends it.
    lost = tg.layers.Sequential([table, both, lambda y: tg.tanh(2.0 * y), last, dense])
    close(lost(ids), dense(last(tg.tanh(2.0 * both(x, mask=mask)))).numpy())
