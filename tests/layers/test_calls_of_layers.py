"""What goes from layer to layer beside the tensors: masks, and `training`."""

from itertools import pairwise

import numpy as np
import pytest

import tracegraph as tg

L = tg.layers
IDS = np.array([[3, 1, 0, 0], [2, 0, 4, 1]])
KEPT = IDS != 0


def near(x, y):
    np.testing.assert_allclose(x.numpy(), np.asarray(y), rtol=1e-5, atol=1e-6)


def embedded(size=3, dtype=None):
    return L.Embedding(5, size, mask_zero=True, dtype=dtype)(IDS)


def mask_of(x):
    return x._keras_mask.numpy().tolist()


class Encoder(L.Layer):
    """Layers in a layer that says nothing of masks."""

    def __init__(self):
        super().__init__()
        self.table = L.Embedding(5, 3, mask_zero=True)
        self.first, self.second = L.LSTM(2, return_sequences=True), L.GRU(2, return_sequences=True)
        self.drop, self.pool = L.Dropout(0.5), L.GlobalAveragePooling1D()

    def call(self, ids):
        return self.second(self.drop(self.first(self.table(ids))))


def test_masks_travel_with_tensors():
    model = Encoder()
    y = model.pool(model(IDS))
    h = model.first(tg.gather(model.table.embeddings, IDS), mask=KEPT)
    wanted = model.pool(model.second(tg.identity(h), mask=KEPT), mask=KEPT)
    near(y, wanted)
    near(tg.function(lambda ids: model.pool(model(ids)))(tg.constant(IDS)), wanted)
    assert mask_of(model(IDS)) == KEPT.tolist()


class Twice(L.Layer):
    def call(self, x):
        return x * 2.0


@pytest.mark.parametrize("between", [Twice(), lambda x: x * 2.0, tg.function(lambda x: x * 2.0)])
def test_a_mask_ends_where_nobody_hands_it_on(between):
    x = embedded()
    near(L.GlobalAveragePooling1D()(between(x)), 2.0 * x.numpy().mean(1))


def test_a_layer_of_several_outputs_gives_each_its_mask():
    class Halves(L.Layer):
        def call(self, x):
            return tg.split(x, 2, axis=1)

        def compute_mask(self, x, mask=None):
            return None if mask is None else tg.split(mask, 2, axis=1)

    left, right = Halves()(embedded())
    assert mask_of(left) == KEPT[:, :2].tolist() and mask_of(right) == KEPT[:, 2:].tolist()


def test_a_call_gives_no_mask_to_its_arguments():
    x = tg.ones([2, 4, 3])
    for layer in (L.Lambda(lambda x: x, mask=tg.constant(KEPT)), L.Masking(), L.Identity()):
        L.Sequential([layer])(x, mask=KEPT)
    assert mask_of(L.Lambda(lambda x: x, mask=tg.constant(KEPT))(x)) == KEPT.tolist()
    assert not hasattr(x, "_keras_mask")


def test_masks_of_merged_inputs():
    x, y = embedded(), L.Masking()(np.ones([2, 4, 3], np.float32))
    assert mask_of(L.Add()([x, y])) == [[True] * 4] * 2
    assert mask_of(L.Multiply()([x, x])) == KEPT.tolist()
    assert not hasattr(L.Add()([x, tg.ones([2, 4, 3])]), "_keras_mask")
    assert mask_of(L.Concatenate()([x, x])) == KEPT.tolist()
    along = L.Concatenate(axis=1)([x, tg.ones([2, 1, 3])])
    assert mask_of(along) == [[*row, True] for row in KEPT.tolist()]
    assert not hasattr(L.Dot(2)([x, x]), "_keras_mask")


def test_attention_takes_the_masks_of_its_inputs():
    x, query = embedded(4), tg.random.normal([2, 3, 4])
    many, one = L.MultiHeadAttention(2, 3), L.Attention()
    near(many(query, x), many(query, tg.identity(x), value_mask=KEPT))
    plain = tg.identity(x)
    near(many(x, x), many(plain, plain, query_mask=KEPT, value_mask=KEPT))
    near(one([x, x]), one([plain, plain], mask=[KEPT, KEPT]))
    near(one([query, x, x]), one([query, plain, plain], mask=[None, KEPT]))
    assert mask_of(many(x, x)) == mask_of(one([x, query])) == mask_of(x) == KEPT.tolist()


def test_a_mask_lasts_where_inputs_are_cast():
    class Pooled(L.Layer):
        def __init__(self):
            super().__init__(dtype="float64")
            self.pool = L.GlobalAveragePooling1D(dtype="float64")

        def call(self, x, more):
            return self.pool(x) + self.pool(more)

    x = embedded()
    near(Pooled()(x, x), 2.0 * (x.numpy() * KEPT[..., None]).sum(1) / KEPT.sum(1)[:, None])


def test_an_argument_of_several_takes_the_mask_of_its_name():
    class Both(L.Layer):
        def call(self, x, y, y_mask=None, z_mask=None):
            assert z_mask is None
            return tg.where(y_mask[..., None], y, x)

    x = embedded()
    near(Both()(tg.zeros([2, 4, 3]), x), x.numpy() * KEPT[..., None])
    near(Both()(tg.zeros([2, 4, 3]), y=x), x.numpy() * KEPT[..., None])


def test_losses_and_metrics_leave_out_what_is_masked():
    x = embedded()
    errors = np.square(x.numpy()).mean(-1)
    wanted = errors[KEPT].mean()
    zeros = np.zeros([2, 4, 3], np.float32)
    near(tg.losses.MeanSquaredError()(zeros, x), wanted)
    near(tg.losses.MeanSquaredError(reduction="none")(zeros, x), errors * KEPT)
    metric = tg.metrics.MeanSquaredError()
    near(metric(zeros, x), wanted)
    weights = np.arange(8.0).reshape(2, 4) * KEPT
    metric.reset_state()
    near(
        metric(zeros, x, sample_weight=np.arange(8.0).reshape(2, 4)),
        np.average(errors, weights=weights),
    )
    scores = L.Dense(4)(x)
    labels = np.array([[1, 2, 1, 1], [2, 2, -1, 0]])
    loss = tg.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    both = KEPT & (labels >= 0)
    each = -np.take_along_axis(
        tg.nn.log_softmax(scores).numpy(), np.maximum(labels, 0)[..., None], -1
    )
    near(loss(labels, scores), each[..., 0][both].mean())


# ---------------------------------------------------------------- training


class Noted(L.Layer):
    """Notes what `training` is."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def call(self, x, training=None):
        self.seen.append(training)
        return x


class Around(L.Layer):
    """A layer that says nothing of `training`."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def call(self, x):
        return self.inside(x)


X = tg.ones([2, 3])


def test_training_is_that_of_the_layer_around():
    seen = []
    model = Around(Around(Noted(seen)))
    for arguments in ({"training": True}, {}, {"training": False}):
        model(X, **arguments)
    assert seen == [True, None, False]
    drop = Around(L.Dropout(0.5, seed=1))
    assert bool(tg.reduce_any(drop(X, training=True) == 0.0)) and bool(tg.reduce_all(drop(X) == X))


def test_training_by_position_and_by_default():
    seen = []

    class Default(Around):
        def call(self, x, training=True):
            return self.inside(x)

    model = Default(L.Sequential([Around(Noted(seen)), Around(Noted(seen))]))
    for call in (model, lambda x: model(x, False), lambda x: Around(model)(x, training=False)):
        call(X)
        seen.append("called")
    assert [*dict.fromkeys(pairwise(seen))] == [
        (True, True),
        (True, "called"),
        ("called", False),
        (False, False),
        (False, "called"),
    ]


def test_training_given_to_one_layer_does_not_reach_the_next():
    seen = []

    class Frozen(Around):
        def call(self, x):
            return self.inside(self.inside(x, training=False))

    class Failing(L.Layer):
        def call(self, x):
            raise KeyError

    model = Frozen(Noted(seen))
    model(X, training=True)
    with pytest.raises(KeyError):
        Around(Failing())(X, training=True)
    model(X)
    assert seen == [False, True, False, None]


def test_training_does_not_reach_into_a_function_that_other_calls_use():
    """Its first trace would decide for all of them."""
    seen, inside = [], []
    noted = Noted(seen)
    shared = tg.function(lambda x: noted(x))

    class Calling(L.Layer):
        def call(self, x):
            y = shared(x)
            for _ in tg.range(2):
                y = Noted(inside)(y)
            return y

    model = Calling()
    step = tg.function(lambda x: model(x, training=True))
    step(X), model(X)
    assert set(seen) == {None} and inside[0] is True and inside[-1] is None


def test_a_sequential_calls_each_layer_once():
    """What layers change, and the random numbers that they draw, changed twice in each call."""

    class Counts(tg.layers.Layer):
        def __init__(self):
            super().__init__()
            self.count = tg.Variable(0, trainable=False)

        def call(self, inputs):
            self.count.assign_add(1)
            return inputs

    layer = Counts()
    model = tg.layers.Sequential([tg.layers.Sequential([layer])])
    model(tg.ones([1, 2]))
    assert layer.count.numpy() == 1
    tg.function(model)(tg.ones([1, 2]))
    assert layer.count.numpy() == 2
    assert model.compute_mask(tg.ones([1, 2])) is None

    class Masked(tg.layers.Sequential):
        def compute_mask(self, inputs, mask=None):
            return tg.constant([[True, False]])

    inside = tg.layers.Masking()
    assert Masked([tg.layers.Dense(1)])(tg.ones([1, 2, 1]))._keras_mask.numpy().tolist() == [
        [True, False]
    ]
    masked = tg.layers.Sequential([inside])(tg.constant([[[1.0], [0.0]]]))
    assert masked._keras_mask.numpy().tolist() == [[True, False]]
