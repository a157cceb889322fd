"""Programs as users write them for TensorFlow and Keras; expected numbers are TensorFlow's."""

import numpy as np

import tracegraph as tg
from tracegraph import keras

CRF_LOSSES = [5.1469407, 5.1402769, 5.1334596, 5.1265454]
CRF_PATH = [[0, 1, 3], [1, 1, 3], [1, 0, 3], [1, 1, 3], [3, 1, 3]]
EXPERT_LOSSES = [0.5282348, 0.5080023, 0.4824096, 0.4686111]
EXPERT_SCORES = [0.1785714, 0.4253472]


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(high, *shape, seed=2):
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def steps_of(optimizer, loss_of, variables):
    @tg.function
    def step():
        with tg.GradientTape() as tape:
            loss = loss_of()
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return [float(step()) for _ in range(4)]


def test_a_conditional_random_field():
    """Scans in both directions over several tensors, masked, and a path of integers."""
    scores, tags = tg.constant(normal(3, 5, 4)), integers(4, 3, 5)
    weights, moves = tg.Variable(normal(4, 4, seed=5) / 2), tg.Variable(normal(4, 4, seed=6) / 3)
    mask = tg.sequence_mask(np.array([5, 4, 2], np.int32), 5, dtype=tg.float32)

    def loss_of():
        emitted = scores @ weights
        single = tg.reduce_sum(tg.one_hot(tags, 4) * emitted, -1) * mask
        pairs = tg.gather_nd(moves, tg.stack([tags[:, :-1], tags[:, 1:]], -1)) * mask[:, 1:]

        def forward(total, inputs):
            now, is_there = inputs
            new = tg.reduce_logsumexp(total[:, :, None] + moves[None] + now[:, None], axis=1)
            return tg.where(is_there[:, None] > 0, new, total)

        steps = tg.transpose(emitted[:, 1:], [1, 0, 2]), tg.transpose(mask[:, 1:])
        totals = tg.scan(forward, steps, initializer=emitted[:, 0])
        all_paths = tg.reduce_logsumexp(totals[-1], -1)
        return tg.reduce_mean(all_paths - tg.reduce_sum(single, 1) - tg.reduce_sum(pairs, 1))

    @tg.function
    def best_path():
        emitted = scores @ weights

        def forward(best, now):
            options = best[0][:, :, None] + moves[None] + now[:, None]
            return tg.reduce_max(options, 1), tg.argmax(options, 1, output_type=tg.int32)

        first = emitted[:, 0], tg.zeros([3, 4], tg.int32)
        best, come_from = tg.scan(forward, tg.transpose(emitted[:, 1:], [1, 0, 2]), first)
        last = tg.argmax(best[-1], -1, output_type=tg.int32)
        back = tg.scan(lambda at, b: tg.gather(b, at, batch_dims=1), come_from, last, reverse=True)
        return tg.concat([back, last[None]], 0)

    losses = steps_of(keras.optimizers.Adadelta(1.0, rho=0.9), loss_of, [weights, moves])
    np.testing.assert_allclose(losses, CRF_LOSSES, rtol=1e-5)
    assert best_path().numpy().tolist() == CRF_PATH


class Experts(keras.layers.Layer):
    """The two experts of each row that its gate prefers, and a loss that balances them."""

    def build(self, shape):
        self.gate = self.add_weight(shape=(6, 4), name="gate")
        self.wide = self.add_weight(shape=(4, 6, 8), name="wide")
        self.back = self.add_weight(shape=(4, 8, 6), name="back")

    def call(self, x):
        rows = tg.shape(x)[0]
        shares = tg.nn.softmax(x @ self.gate)
        top, chosen = tg.math.top_k(shares, 2)
        top = top / tg.reduce_sum(top, -1, keepdims=True)
        places = tg.stack([tg.repeat(tg.range(rows), 2), tg.reshape(chosen, [-1])], 1)
        gates = tg.scatter_nd(places, tg.reshape(top, [-1]), tg.stack([rows, 4]))
        hidden = tg.nn.gelu(tg.einsum("nd,edh->neh", x, self.wide), approximate=True)
        first = tg.reduce_mean(tg.one_hot(chosen[:, 0], 4), 0)
        self.add_loss(0.04 * tg.reduce_sum(first * tg.reduce_mean(shares, 0)))
        return tg.einsum("neh,ehd,ne->nd", hidden, self.back, gates)


def test_a_mixture_of_experts():
    """Losses of layers and regularizers, Lamb, a focal loss, and metrics within the step."""
    regularizer = keras.regularizers.L1L2(1e-3, 1e-2)
    experts, out = Experts(), keras.layers.Dense(3, kernel_regularizer=regularizer)
    x, labels = tg.constant(normal(10, 6)), tg.one_hot(integers(3, 10), 3)
    out(experts(x))
    for seed, variable in enumerate(experts.weights + out.weights):
        variable.assign(normal(*variable.shape, seed=seed) / 2)
    focal = keras.losses.CategoricalFocalCrossentropy(from_logits=True)
    score = keras.metrics.F1Score(average="macro")
    area = keras.metrics.AUC(multi_label=True, num_labels=3, from_logits=True)

    def loss_of():
        logits = out(x + experts(x))
        score.update_state(labels, tg.nn.softmax(logits))
        area.update_state(labels, logits)
        return focal(labels, logits) + tg.add_n(experts.losses + out.losses)

    optimizer = keras.optimizers.Lamb(1e-2, weight_decay=0.01)
    losses = steps_of(optimizer, loss_of, experts.trainable_variables + out.trainable_variables)
    np.testing.assert_allclose(losses, EXPERT_LOSSES, rtol=1e-5)
    np.testing.assert_allclose([score.result(), area.result()], EXPERT_SCORES, rtol=1e-5)
