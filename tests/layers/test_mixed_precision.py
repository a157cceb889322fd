"""Layers that compute in 16 bits with variables of 32, beside those of float32 alone."""

import copy
import pickle

import numpy as np
import pytest

import tracegraph as tg

L = tg.layers
STEPS = tg.random.stateless_normal([2, 5, 6], [1, 2])
IMAGES = tg.random.stateless_normal([2, 6, 6, 4], [3, 4])

#: A layer of each kind, made for a dtype, and its inputs.
LAYERS = {
    "Dense": (lambda **d: L.Dense(3, "gelu", **d), STEPS),
    "Conv2D": (lambda **d: L.Conv2D(3, 3, **d), IMAGES),
    "SeparableConv2D": (lambda **d: L.SeparableConv2D(3, 3, **d), IMAGES),
    "Embedding": (lambda **d: L.Embedding(7, 4, **d), tg.constant([[3, 1, 6]])),
    "LSTM": (lambda **d: L.LSTM(4, return_sequences=True, **d), STEPS),
    "Bidirectional": (lambda **d: L.Bidirectional(L.GRU(3, **d), **d), STEPS),
    "EinsumDense": (lambda **d: L.EinsumDense("abc,cd->abd", [None, 4], **d), STEPS),
    "Attention": (lambda **d: Attending(**d), STEPS),
    "LayerNormalization": (lambda **d: L.LayerNormalization(**d), STEPS * 300.0),
    "BatchNormalization": (lambda **d: L.BatchNormalization(**d), IMAGES * 300.0),
    "RMSNormalization": (lambda **d: L.RMSNormalization(**d), STEPS * 300.0),
    "a layer of one's own": (lambda **d: Scaled(**d), STEPS),
}


class Scaled(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape[-1:], "ones", name="scale", regularizer="l2")
        self.count = self.add_weight([], "zeros", "int32", trainable=False)

    def call(self, x):
        self.count.assign_add(1)
        return x * self.scale


class Attending(L.MultiHeadAttention):
    def __init__(self, **settings):
        super().__init__(2, 4, **settings)

    def __call__(self, x, **arguments):
        return super().__call__(x, x, **arguments)


def trained(name, dtype, values=None):
    """The layer, its result, and the gradients of its weights."""
    make, x = LAYERS[name]
    layer = make(dtype=dtype)
    training = {"training": True} if name == "BatchNormalization" else {}
    layer(x, **training)
    for k, weight in enumerate(layer.trainable_weights):
        weight.assign(0.5 * tg.random.stateless_normal(weight.shape, [k, 5]))

    @tg.function
    def run(x):
        with tg.GradientTape() as tape:
            y = layer(x, **training)
            loss = tg.reduce_mean(tg.cast(y, tg.float32) ** 2)
        return y, tape.gradient(loss, layer.trainable_weights)

    return layer, *run(x)


@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
@pytest.mark.parametrize("name", LAYERS)
def test_variables_of_32_bits_and_results_of_16(name):
    layer, y, gradients = trained(name, "mixed_float16")
    wanted, y32, gradients32 = trained(name, "float32")
    assert y.dtype is layer.compute_dtype is tg.float16 and layer.dtype is tg.float32
    assert {v.dtype for v in layer.variables} <= {tg.float32, tg.int32}
    np.testing.assert_allclose(tg.cast(y, tg.float32), y32, 2e-2, 1e-2)
    for found, exact, weight in zip(gradients, gradients32, wanted.trainable_weights):
        assert found.dtype is tg.float32
        size = np.abs(exact).max() if weight.base_name != "bias" else 1.0
        np.testing.assert_allclose(found, exact, 5e-2, 2e-2 * size)
    if name == "BatchNormalization":
        np.testing.assert_allclose(layer.moving_variance, wanted.moving_variance, 1e-2)


def test_a_weight_is_cast_in_layers_alone():
    layer = L.Dense(3, dtype="mixed_bfloat16", kernel_regularizer="l2")
    assert layer(STEPS).dtype is tg.bfloat16 and layer.variable_dtype is tg.float32
    assert (layer.kernel * 1.0).dtype is layer.losses[0].dtype is tg.float32
    before = layer.kernel.numpy()
    step = np.float32(1e-4)  # less than half of the last bit of most
    tg.optimizers.SGD(1.0).apply_gradients([(tg.fill(layer.kernel.shape, step), layer.kernel)])
    np.testing.assert_array_equal(layer.kernel, before - step)


def test_copies_and_saved_models_compute_alike(tmp_path):
    layer = L.Dense(3, dtype="mixed_float16")
    y = layer(STEPS)
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(same(STEPS), y)
        assert same(STEPS).dtype is tg.float16
    layer.serve = tg.function(layer.__call__, input_signature=[tg.TensorSpec([2, 5, 6])])
    tg.saved_model.save(layer, tmp_path / "saved")
    loaded = tg.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.serve(STEPS), y)
    assert loaded.kernel.dtype is tg.float32
