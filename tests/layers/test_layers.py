"""Layers and initial values: arithmetic against NumPy, variables, building, training."""

import copy
import inspect

import numpy as np
import pytest

import tracegraph as tg

RANDOM = np.random.default_rng(5)


def sample(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def close(actual, expected, **tolerance):
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(
        actual.numpy(), expected, **{"rtol": 1e-5, "atol": 1e-6, **tolerance}
    )


# ---------------------------------------------------------------- dense


def test_dense():
    layer = tg.layers.Dense(3, activation="tanh", bias_initializer="ones")
    x = sample(5, 4)
    y = layer(x)
    kernel, bias = layer.variables
    assert kernel.shape == (4, 3) and bias.shape == (3,)
    close(y, np.tanh(x @ kernel.numpy() + bias.numpy()))


def test_dense_without_bias_on_more_axes():
    layer = tg.layers.Dense(3, use_bias=False)
    x = sample(2, 5, 4)
    close(layer(x), x @ layer.kernel.numpy())
    assert len(layer.variables) == 1


def test_variables_are_listed_in_the_order_of_their_creation():
    layer = tg.layers.Dense(3)
    layer(tg.ones([1, 2]))
    assert [v.name for v in layer.trainable_variables] == ["kernel", "bias"]
    assert [v.name for v in layer.weights] == ["kernel", "bias"]


def test_variables_of_a_layer_are_lists_and_so_are_their_gradients():
    model = tg.layers.Sequential([tg.layers.Input([2]), tg.layers.Dense(1)])
    offset = tg.Variable(1.0)
    with tg.GradientTape() as tape:
        y = tg.reduce_sum(model(tg.ones([1, 2]))) * offset
    sources = model.trainable_variables + [offset]  # noqa: RUF005 (as programs have it)
    gradients = tape.gradient(y, sources)
    gradients[2] = gradients[2] * 0
    assert [g.shape for g in gradients] == [(2, 1), (1,), ()]
    assert isinstance(model.variables, list) and model.non_trainable_variables == []


def test_layer_is_built_once_and_has_no_variables_before():
    layer = tg.layers.Dense(3)
    assert layer.variables == [] and not layer.built
    layer(tg.ones([1, 2]))
    kernel = layer.kernel
    layer(tg.ones([5, 2]))
    assert layer.kernel is kernel and layer.built


def test_lists_and_arrays_take_the_dtype_of_the_layer():
    layer = tg.layers.Dense(1)
    for x in ([[1.0, 2.0]], [[1, 2]], np.ones((1, 2))):
        assert layer(x).dtype == tg.float32


def test_layer_built_inside_a_function():
    layer = tg.layers.Dense(3)

    @tg.function
    def compute(x):
        return layer(x)

    x = sample(2, 4)
    close(compute(tg.constant(x)), x @ layer.kernel.numpy())
    close(compute(tg.constant(2 * x)), 2 * x @ layer.kernel.numpy())
    assert isinstance(layer.kernel.numpy(), np.ndarray)


def test_layer_serves_an_open_batch():
    layer = tg.layers.Dense(3)
    compute = tg.function(layer, input_signature=[tg.TensorSpec([None, 4])])
    for n in (1, 7):
        x = sample(n, 4)
        close(compute(tg.constant(x)), x @ layer.kernel.numpy())


def test_gradients_reach_the_variables():
    layer = tg.layers.Dense(2)
    x = sample(4, 3)
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(layer(x))
    kernel, bias = tape.gradient(loss, layer.trainable_variables)
    close(kernel, np.repeat(x.sum(0)[:, None], 2, 1))
    close(bias, [4, 4])


@pytest.mark.parametrize("activation", ["relu", "softmax", "gelu", "linear", None, tg.tanh, np.abs])
def test_activations_by_name_or_function(activation):
    layer = tg.layers.Dense(2, activation=activation if activation is not np.abs else tg.abs)
    assert layer(tg.ones([1, 2])).shape == (1, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tg.layers.Dense(0), "units"),
        (lambda: tg.layers.Dense(2.5), "units"),
        (lambda: tg.layers.Dense(2, activation="cosh"), "activation"),
        (lambda: tg.layers.Dense(2, kernel_initializer="bogus"), "initializer"),
        (lambda: tg.layers.Dense(2)(tg.ones([3])), "two axes"),
        (lambda: tg.layers.Conv2D(2, 3, padding="full"), "padding"),
        (lambda: tg.layers.Conv2D(3, 3, groups=2)(tg.ones([1, 4, 4, 2])), "groups"),
        (lambda: tg.layers.Conv2D(2, 3, data_format="NCHW"), "channels_first"),
        (lambda: tg.layers.MaxPool2D((2, 2, 2)), "pool_size"),
        (lambda: tg.layers.Dropout(1.0), "rate"),
        (lambda: tg.layers.Dense(2, name="not/a name"), "name"),
    ],
)
def test_bad_arguments_are_errors(make, words):
    with pytest.raises((ValueError, TypeError), match=words) as error:
        make()
    assert "test_layers.py" in str(error.value)


def test_width_that_is_open_is_an_error():
    layer = tg.layers.Dense(2)
    compute = tg.function(layer, input_signature=[tg.TensorSpec([None, None])])
    with pytest.raises(ValueError, match="open"):
        compute(tg.ones([2, 3]))


def test_other_width_than_built_for_is_an_error():
    layer = tg.layers.Dense(2)
    layer(tg.ones([1, 3]))
    with pytest.raises(tg.errors.ShapeError, match="inner dimensions"):
        layer(tg.ones([1, 4]))


# ---------------------------------------------------------------- the other layers


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_conv2d(padding):
    layer = tg.layers.Conv2D(4, (3, 2), strides=2, padding=padding, activation="relu")
    x = sample(2, 7, 6, 3)
    y = layer(x)
    expected = tg.nn.relu(tg.nn.conv2d(x, layer.kernel, 2, padding.upper()) + layer.bias)
    close(y, expected.numpy())
    assert layer.kernel.shape == (3, 2, 3, 4)


def test_conv2d_in_groups():
    layer = tg.layers.Conv2D(4, 1, groups=2, use_bias=False)
    x = sample(1, 2, 2, 6)
    kernel = layer(x) is not None and layer.kernel.numpy()[0, 0]
    expected = np.concatenate([x[..., :3] @ kernel[:, :2], x[..., 3:] @ kernel[:, 2:]], -1)
    close(layer(x), expected)


def test_pooling_and_flatten():
    x = sample(2, 4, 6, 3)
    close(tg.layers.MaxPool2D()(x), x.reshape(2, 2, 2, 3, 2, 3).max((2, 4)))
    close(tg.layers.AveragePooling2D((2, 3))(x), x.reshape(2, 2, 2, 2, 3, 3).mean((2, 4)))
    assert tg.layers.MaxPool2D(3, strides=1, padding="same")(x).shape == (2, 4, 6, 3)
    close(tg.layers.Flatten()(x), x.reshape(2, -1))
    flat = tg.function(tg.layers.Flatten(), input_signature=[tg.TensorSpec([None, 4, 6, 3])])
    close(flat(tg.constant(x)), x.reshape(2, -1))


def test_dropout_works_in_training_alone():
    layer = tg.layers.Dropout(0.5)
    x = tg.ones([1000])
    close(layer(x), np.ones(1000))
    close(layer(x, training=False), np.ones(1000))
    assert set(np.unique(layer(x, training=True).numpy())) == {0, 2}


def test_batch_normalization():
    layer = tg.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    x = 3 * sample(50, 4) + 2
    mean, variance = x.mean(0), x.var(0)
    close(layer(x, training=True), (x - mean) / np.sqrt(variance + 1e-3), atol=1e-5)
    close(layer.moving_mean, 0.1 * mean)
    close(layer.moving_variance, 0.9 + 0.1 * variance)
    moving_mean, moving_variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    close(layer(x), (x - moving_mean) / np.sqrt(moving_variance + 1e-3), atol=1e-5)
    assert [v.name for v in layer.trainable_variables] == ["gamma", "beta"]
    assert len(layer.non_trainable_variables) == 2


def test_masked_elements_count_in_no_mean_and_no_variance():
    x = np.random.default_rng(3).normal(size=(3, 4, 2))
    mask = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]], bool)
    x[~mask] = np.nan
    layer = tg.layers.BatchNormalization(momentum=0.0, epsilon=0.0, dtype="float64")
    y = layer(x, training=True, mask=mask).numpy()
    seen = x[mask]
    np.testing.assert_allclose(layer.moving_mean.numpy(), seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(layer.moving_variance.numpy(), seen.var(0), rtol=1e-12)
    np.testing.assert_allclose(y[mask], (seen - seen.mean(0)) / seen.std(0), rtol=1e-10)
    layer(x, training=True, mask=np.zeros([3, 4]))
    assert (layer.moving_mean.numpy() == 0).all() and (layer.moving_variance.numpy() == 0).all()
    with pytest.raises(tg.errors.ShapeError, match="without the last axis"):
        layer(x, training=True, mask=np.ones([3]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("clipping", [None, {"rmin": 0.9, "rmax": 1.1, "dmax": 0.2}])
def test_batch_renormalization(clipping):
    """Against the formulas of Ioffe (2017), over three steps."""
    settings = {"momentum": 0.5, "renorm_momentum": 0.8, "epsilon": 0.01, "dtype": "float64"}
    layer = tg.layers.BatchNormalization(renorm=True, renorm_clipping=clipping, **settings)
    bounds = clipping or {"rmin": 0, "rmax": np.inf, "dmax": np.inf}
    slow_mean, slow_stddev, stddev = np.zeros(3), np.ones(3), np.ones(3)
    layer.build([None, 3])
    layer.gamma.assign([2.0, 3.0, -1.0])
    layer.beta.assign([0.5, 0.0, 1.0])
    step = tg.function(lambda x: layer(x, training=True))
    for k in range(3):
        x = np.random.default_rng(k).normal(size=(6, 3)) * 2 + 1
        now = np.sqrt(x.var(0) + 0.01)
        r = np.clip(now / slow_stddev, bounds["rmin"], bounds["rmax"])
        d = np.clip((x.mean(0) - slow_mean) / slow_stddev, -bounds["dmax"], bounds["dmax"])
        expected = ((x - x.mean(0)) / now * r + d) * [2, 3, -1] + [0.5, 0, 1]
        np.testing.assert_allclose(step(tg.constant(x)).numpy(), expected, rtol=1e-10)
        slow_mean = 0.8 * slow_mean + 0.2 * x.mean(0)
        slow_stddev = 0.8 * slow_stddev + 0.2 * now
        stddev = 0.5 * stddev + 0.5 * now
    np.testing.assert_allclose(layer.moving_variance.numpy(), stddev**2 - 0.01, rtol=1e-10)
    x = tg.constant(x)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
    total = tape.gradient(y, x).numpy().sum(0)
    np.testing.assert_allclose(total, 0, atol=1e-10)  # r and d are constants to the derivative


def test_batch_normalization_in_a_function_and_on_another_axis():
    layer = tg.layers.BatchNormalization(axis=1)
    step = tg.function(lambda x: layer(x, training=True))
    x = sample(8, 3, 5)
    expected = (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 1e-3)
    close(step(tg.constant(x)), expected, atol=1e-5)
    close(layer.moving_mean, 0.01 * x.mean((0, 2)))
    step(tg.constant(x))
    close(layer.moving_mean, (0.01 + 0.99 * 0.01) * x.mean((0, 2)))


@pytest.mark.parametrize("renorm", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_batch_normalization_of_16_bits_is_rounded_once(training, renorm):
    """Its numbers and derivatives are those of float64, of the same inputs and weights."""
    x = tg.cast(np.random.default_rng(1).uniform(8, 9, (2000, 3)), tg.bfloat16)
    along = tg.cast(np.random.default_rng(2).uniform(0.5, 1.5, (2000, 3)), tg.bfloat16)

    def run(dtype):
        layer = tg.layers.BatchNormalization(dtype=dtype, renorm=renorm)
        layer.build(x.shape)
        layer.moving_mean.assign([8.5] * 3)
        layer.moving_variance.assign([0.25] * 3)
        sources = [tg.cast(x, dtype), *layer.trainable_variables]
        with tg.GradientTape() as tape:
            tape.watch(sources[0])
            y = layer(sources[0], training=training)
        gradients = tape.gradient(y, sources, output_gradients=tg.cast(along, dtype))
        found = [y, *gradients, *layer.non_trainable_variables]
        return [tg.cast(value, tg.float64).numpy() for value in found]

    for own, exact in zip(run(tg.bfloat16), run(tg.float64), strict=True):
        np.testing.assert_allclose(own, exact, rtol=0, atol=2**-7 * np.abs(exact).max())


def test_layers_with_orthogonal_weights_exist_in_16_bits():
    layer = tg.layers.SimpleRNN(3, dtype="bfloat16")
    assert layer(tg.ones([1, 2, 2], tg.bfloat16)).dtype == tg.bfloat16
    q = tg.cast(layer.cell.recurrent_kernel, tg.float32)
    close(q @ tg.transpose(q), np.eye(3), atol=0.02)


def test_sequential():
    model = tg.layers.Sequential(
        [tg.layers.Flatten(), tg.layers.Dense(4, "relu"), tg.layers.Dropout(0.5), lambda x: 2 * x]
    )
    model.add(tg.layers.Dense(2))
    x = sample(3, 2, 5)
    assert model(x).shape == (3, 2)
    assert [v.shape for v in model.trainable_variables] == [(10, 4), (4,), (4, 2), (2,)]
    close(model(x, training=False), model(x).numpy())
    assert (model(x, training=True).numpy() != model(x).numpy()).any()


def test_layers_of_ones_own():
    class Scale(tg.layers.Layer):
        def build(self, input_shape):
            self.factor = self.add_weight(input_shape[-1:], "ones", name="factor")

        def call(self, inputs):
            return inputs * self.factor

    layer = Scale()
    close(layer([[1.0, 2.0]]), [[1, 2]])
    assert layer.name == "scale" and [v.name for v in layer.variables] == ["factor"]


def test_layers_of_several_inputs():
    class Sum(tg.layers.Layer):
        def build(self, input_shape):
            self.shapes = input_shape

        def call(self, inputs):
            return inputs[0] + inputs[1]

    layer = Sum()
    close(layer([tg.ones([2]), tg.ones([2])]), [2, 2])
    assert layer.shapes == [(2,), (2,)]


def test_a_layer_built_by_hand_keeps_its_variables():
    class Own(tg.layers.Dense):
        def build(self, input_shape):
            super().build(input_shape)
            assert not self.built  # this one goes on
            self.shift = self.add_weight([self.units], "ones", name="shift")

    for layer, count in ((tg.layers.Dense(3), 2), (Own(3), 3)):
        layer.build([None, 2])
        kernel = layer.kernel
        kernel.assign([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        np.testing.assert_allclose(layer(np.ones((1, 2))), [[5.0, 7.0, 9.0]])
        assert layer.built and layer.kernel is kernel and len(layer.variables) == count


def test_lists_of_arrays_are_structures_as_in_keras():
    class Pair(tg.layers.Layer):
        def call(self, inputs):
            ids, (features, more) = inputs
            return ids, features, more

    ids, features, more = Pair()((np.array([1, 2]), [np.array([0.5, 1.5]), np.ones((3, 1))]))
    assert [x.dtype for x in (ids, features, more)] == [tg.int64, tg.float32, tg.float32]
    assert more.shape == (3, 1)


def test_a_sequential_gives_layers_by_name_and_its_shapes():
    first, second = tg.layers.Dense(4, name="first"), tg.layers.Dense(2)
    model = tg.layers.Sequential([first, second])
    for name in ("input_shape", "output_shape"):
        with pytest.raises(AttributeError, match=f"no {name} before it is called"):
            getattr(model, name)
    model.build([None, 3])
    assert (model.input_shape, model.output_shape) == ((None, 3), (None, 2))
    assert model.get_layer("first") is first and model.get_layer(index=-1) is second
    for arguments, words in (
        ({"name": "third"}, "no layers have the name 'third'"),
        ({"index": 2}, "index is 2, and there are 2 layers"),
        ({"index": "first"}, "index is 'first'"),
        ({}, "name is None, and index is None"),
    ):
        with pytest.raises(ValueError, match=words):
            model.get_layer(**arguments)
    model.add(tg.layers.Dense(3, name="first"))
    with pytest.raises(ValueError, match="2 layers have the name 'first'"):
        model.get_layer("first")


@pytest.mark.parametrize(
    ("argument", "fix"),
    [
        ({"input_shape": (2,)}, r"begin the Sequential with tg.layers.Input\(shape\)"),
        ({"input_dim": 2}, r"begin the Sequential with tg.layers.Input\(\[size\]\)"),
    ],
)
def test_shapes_of_inputs_are_those_of_an_input(argument, fix):
    with pytest.raises(tg.errors.TraceError, match=fix):
        tg.layers.Lambda(abs, **argument)


def test_layers_are_found_as_submodules():
    class Model(tg.Module):
        def __init__(self):
            super().__init__()
            self.layers = [tg.layers.Dense(2), tg.layers.Dense(3)]

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    model(tg.ones([1, 4]))
    assert len(model.submodules) == 2
    assert [v.shape for v in model.trainable_variables] == [(4, 2), (2,), (2, 3), (3,)]


def test_weights_of_nested_layers_are_in_the_order_of_the_layers():
    """As in Keras, so that the weights of one model fit the other."""
    layers = tg.layers

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.second_by_name = layers.Sequential([layers.Dense(2, use_bias=False)])
            self.first_by_name = layers.Dense(3, use_bias=False)

        def call(self, x):
            return self.first_by_name(self.second_by_name(x))

    model = layers.Sequential([Block(), layers.Dense(5, use_bias=False), Block()])
    model(tg.ones([1, 4]))
    assert [w.shape for w in model.get_weights()] == [(4, 2), (2, 3), (3, 5), (5, 2), (2, 3)]


def test_a_copy_has_variables_of_its_own():
    layer = tg.layers.Dense(2)
    layer(tg.ones([1, 2]))
    other = copy.deepcopy(layer)
    other.bias.assign([5.0, 5.0])
    close(layer.bias.read_value(), [0, 0])


# ---------------------------------------------------------------- initial values

VARIANCES = {
    "glorot_uniform": 2 / 500,
    "glorot_normal": 2 / 500,
    "he_uniform": 2 / 300,
    "he_normal": 2 / 300,
    "lecun_uniform": 1 / 300,
    "lecun_normal": 1 / 300,
    "random_normal": 0.05**2,
    "random_uniform": 0.1**2 / 12,
    "zeros": 0.0,
    "ones": 0.0,
}


@pytest.mark.parametrize("name", VARIANCES)
def test_variance_of_initial_values(name):
    tg.random.set_seed(2)
    x = tg.initializers.get(name)([300, 200]).numpy()
    assert x.dtype == np.float32
    assert x.var() == pytest.approx(VARIANCES[name], rel=0.03)


def test_fans_of_a_window():
    tg.random.set_seed(2)
    x = tg.initializers.HeNormal()([3, 3, 16, 64]).numpy()
    assert x.var() == pytest.approx(2 / (9 * 16), rel=0.05)


def test_seeds_of_initial_values():
    def made(initializer):
        layer = tg.layers.Dense(3, kernel_initializer=initializer)
        layer(tg.ones([1, 2]))
        return layer.kernel.numpy()

    tg.random.set_seed(2)
    first = made("glorot_uniform")
    assert (made("glorot_uniform") != first).any()
    tg.random.set_seed(2)
    assert (made("glorot_uniform") == first).all()
    assert (made(lambda shape, dtype: tg.fill(shape, tg.constant(7, dtype))) == 7).all()
    assert (made(tg.initializers.Constant(3.0)) == 3).all()
    assert (made(tg.initializers.Ones) == 1).all()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: tg.layers.Dense(2.5), TypeError, "units"),
        (lambda: tg.layers.Dense(True), ValueError, "bool"),
        (lambda: tg.layers.Dense(2, activation=["relu"]), ValueError, "activation"),
        (lambda: tg.layers.Dense(2, use_bias="yes"), TypeError, "use_bias"),
        (lambda: tg.layers.Dense(2, name=3), ValueError, "module name"),
        (lambda: tg.layers.Conv2D(2, 3, padding=1), ValueError, "padding"),
        (lambda: tg.layers.MaxPool2D([1, 2, 3]), ValueError, "pool_size"),
        (lambda: tg.layers.Dropout("half"), TypeError, "rate"),
        (lambda: tg.layers.Dropout(0.5)(tg.ones([2]), training="yes"), TypeError, "training"),
        (lambda: tg.layers.Dropout(0.5, [3])(tg.ones([2]), training=True), ValueError, "broadcast"),
        (lambda: tg.layers.Dropout(0.5, 3.5)(tg.ones([2]), training=True), TypeError, "shape"),
        (lambda: tg.layers.BatchNormalization(momentum=2), ValueError, "momentum"),
        (lambda: tg.layers.BatchNormalization(renorm_clipping={"r": 1.0}), ValueError, "rmin"),
        (
            lambda: tg.layers.BatchNormalization(renorm_clipping={"rmin": 2.0, "rmax": 1.0}),
            ValueError,
            "rmax of renorm_clipping is 1.0",
        ),
        (lambda: tg.layers.BatchNormalization()({"a": tg.ones([2, 2])}), ValueError, "dict"),
        (lambda: tg.layers.Flatten()(1.0), ValueError, "scalar"),
        (lambda: tg.layers.Sequential([3]), TypeError, "layer"),
        (lambda: tg.layers.Sequential(tg.layers.Dense(2)), TypeError, "layers is a list"),
    ],
)
def test_bad_arguments_of_layers_are_errors(make, kind, words):
    with pytest.raises(kind, match=words) as error:
        make()
    assert "test_layers.py" in str(error.value)
    assert "fix: " in str(error.value)


# What a prompt shows.


def test_a_layer_shows_its_settings_and_its_variables():
    layer = tg.layers.Dense(3, activation="relu")
    assert repr(layer) == "<Dense(units=3, activation=relu), not built>"
    layer(tg.ones([2, 4]))
    assert repr(layer) == "<Dense(units=3, activation=relu): kernel f32[4,3], bias f32[3]>"
    assert repr(tg.layers.Conv2D(4, 3, padding="same", name="first")) == (
        "<Conv2D(filters=4, kernel_size=(3, 3), padding='SAME', name='first'), not built>"
    )
    assert repr(tg.layers.Dense(1, dtype=tg.float64)) == (
        "<Dense(units=1, dtype=float64), not built>"
    )


def test_a_layer_of_the_users_own_shows_its_settings():
    class Scaled(tg.layers.Layer):
        def __init__(self, factor=1.0, parts=None):
            super().__init__()
            self.factor, self.parts = factor, parts

        def build(self, input_shape):
            self.scales = [self.add_weight([], name=f"scale{i}") for i in range(9)]

        def call(self, inputs):
            return inputs * self.factor

    layer = Scaled(2.0, parts=[1, 2])
    layer(tg.ones([1]))
    names = ", ".join(f"scale{i} f32[]" for i in range(6))
    assert repr(layer) == f"<Scaled(factor=2.0, parts=[1, 2]): {names}, 3 more>"


def test_a_module_shows_its_variables_by_their_paths():
    class Line(tg.Module):
        def __init__(self, degree):
            super().__init__()
            self.degree, self.parts = degree, {"slope": tg.Variable([1.0, 2.0])}

    assert repr(Line(3)) == "<Line(degree=3): parts.slope f32[2]>"
    assert repr(tg.Module()) == "<Module>"


def test_a_layer_shows_the_initializers_and_the_like_that_are_not_the_defaults():
    """They have settings too, and a repr of their own."""
    layer = tg.layers.Dense(
        3,
        kernel_initializer=tg.initializers.HeNormal(seed=1),
        bias_initializer="zeros",
        kernel_regularizer=tg.regularizers.L2(0.1),
        kernel_constraint=tg.constraints.MaxNorm(3, axis=[0, 1]),
    )
    assert repr(layer) == (
        "<Dense(units=3, kernel_initializer=HeNormal(seed=1), kernel_regularizer=L2(l2=0.1), "
        "kernel_constraint=MaxNorm(max_value=3, axis=(0, 1))), not built>"
    )
    named = tg.layers.Dense(2, kernel_initializer="glorot_uniform", bias_initializer="ones")
    assert repr(named) == "<Dense(units=2, bias_initializer=Ones), not built>"
    losses = [tg.losses.Huber(2.0, reduction="sum"), tg.losses.MeanSquaredError()]
    assert [*map(repr, losses)] == ["<Huber(delta=2.0, reduction='sum')>", "<MeanSquaredError>"]


def test_a_sequential_lists_its_layers():
    inner = tg.layers.Sequential([tg.layers.Dense(2)])
    model = tg.layers.Sequential([tg.layers.Flatten(), tg.sin, inner])
    assert repr(model).startswith("<Sequential of 3 layers, not built\n  0: <Flatten, not built>")
    model(tg.ones([1, 2, 2]))
    assert repr(model) == (
        "<Sequential of 3 layers, 10 parameters\n"
        "  0: <Flatten>\n"
        "  1: <function sin>\n"
        "  2: <Sequential of 1 layer, 10 parameters\n"
        "    0: <Dense(units=2): kernel f32[4,2], bias f32[2]>>>"
    )
    long = repr(tg.layers.Sequential([tg.layers.Flatten()] * 100)).split("\n")
    assert len(long) == 14 and long[7] == "  ... 88 more" and long[8].startswith("  94: ")


def test_every_layer_takes_trainable():
    kinds = [getattr(tg.layers, name) for name in dir(tg.layers)]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, tg.layers.Layer)]
    assert len(kinds) > 80
    for kind in kinds:
        assert "trainable" in inspect.signature(kind).parameters, kind
    made = [
        (tg.layers.Dense(3, trainable=False), [1, 2]),
        (tg.layers.Conv1D(3, 1, trainable=False), [1, 2, 2]),
        (tg.layers.DepthwiseConv1D(1, trainable=False), [1, 2, 2]),
        (tg.layers.Embedding(3, 4, trainable=False), [1, 2]),
        (tg.layers.LayerNormalization(trainable=False), [1, 2]),
        (tg.layers.GRU(2, trainable=False), [1, 2, 2]),
        (tg.layers.ConvLSTM1D(2, 1, trainable=False), [1, 2, 2, 2]),
        (tg.layers.Bidirectional(tg.layers.LSTM(2), trainable=False), [1, 2, 2]),
        (tg.layers.Sequential([tg.layers.Dense(3)], trainable=False), [1, 2]),
        (tg.layers.PReLU(trainable=False), [1, 2]),
    ]
    for layer, shape in made:
        layer.build(shape)
        assert not layer.trainable and layer.trainable_variables == [] != layer.variables, layer
    assert tg.layers.SpatialDropout2D(0.1, trainable=False).trainable is False
    assert tg.layers.ZeroPadding1D(1, trainable=False).trainable is False


def test_a_frozen_layer_lists_nothing_to_train_and_is_thawed_again():
    body = tg.layers.Sequential([tg.layers.Dense(3), tg.layers.BatchNormalization()])
    head = tg.layers.Dense(1)
    model = tg.layers.Sequential([body, head])
    body.trainable = False  # before its variables are there
    x = tg.constant([[1.0, 2.0], [3.0, 5.0]])
    model(x, training=True)
    moving = [v.numpy() for v in body.variables[-2:]]
    assert model.trainable_variables == head.variables and body.trainable_variables == []
    assert len(model.non_trainable_variables) == 6 and all(v.trainable for v in body.variables[:4])
    # As in Keras, it normalises with the moving statistics and leaves them alone.
    np.testing.assert_array_equal(model(x, training=True).numpy(), model(x).numpy())
    assert [m.tolist() for m in moving] == [[0, 0, 0], [1, 1, 1]]

    before = [v.numpy() for v in body.variables]
    optimizer = tg.optimizers.SGD(0.5)
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(model(x, training=True) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    assert all(np.array_equal(v.numpy(), y) for v, y in zip(body.variables, before))

    body.layers[0].trainable = True  # its container is still frozen
    assert len(model.trainable_variables) == 2
    body.trainable = True
    assert len(model.trainable_variables) == 6 and body.layers[1].trainable
    body.layers[1].trainable = False
    body.trainable = True
    assert body.layers[1].trainable
    model(x, training=True)
    assert body.variables[-2].numpy().any()


def test_a_module_leaves_out_the_frozen_layers_in_it():
    class Pair(tg.Module):
        def __init__(self):
            super().__init__()
            self.base = tg.layers.Dense(2)
            self.base.trainable = False
            self.is_frozen = True  # an attribute of the user's own
            self.scale = tg.Variable(1.0)

    pair = Pair()
    pair.base(tg.ones([1, 3]))
    assert pair.trainable_variables == (pair.scale,)
    assert {id(v) for v in pair.non_trainable_variables} == {id(v) for v in pair.base.variables}


def test_metrics_and_optimizers_of_a_layer_hold_no_weights():
    model = tg.layers.Sequential([tg.layers.Input([3]), tg.layers.Dense(2)])
    model.metric, model.optimizer = tg.metrics.Mean(), tg.optimizers.Adam()
    before = model.get_weights()
    model.optimizer.build(model.trainable_variables)
    assert model.count_params() == 8 and len(before) == len(model.weights) == 2
    assert len(model.variables) == 10 and len(model.non_trainable_variables) == 8
    assert [*map(id, model.trainable_weights)] == [
        *map(id, model.weights)
    ] and model.non_trainable_weights == []
    model.set_weights([np.zeros([3, 2]), np.ones([2])])
    np.testing.assert_array_equal(model(tg.ones([1, 3])), [[1.0, 1.0]])
    lines = []
    model.summary(print_fn=lines.append)
    assert lines[-1] == "8 parameters, 8 of them trainable"


@pytest.mark.parametrize(
    "kind", ["RandomNormal", "TruncatedNormal", "RandomUniform", "GlorotUniform", "Orthogonal"]
)
def test_an_initializer_with_a_seed_gives_the_same_numbers_again(kind):
    initializer = getattr(tg.initializers, kind)
    first = initializer(seed=1)
    numbers = first([3, 3]).numpy()
    for same in (first, initializer(seed=1), tg.function(first)):
        assert (same([3, 3]).numpy() == numbers).all()
    assert (initializer(seed=2)([3, 3]).numpy() != numbers).any()
    free = initializer()
    assert (free([3, 3]).numpy() != free([3, 3]).numpy()).any()


def test_the_seed_of_an_initializer_is_an_int_of_any_size():
    first, second = (tg.initializers.RandomNormal(seed=seed)([3]).numpy() for seed in (2**70, 0))
    assert (first != second).any()
    for seed in ("x", 1.5, True):
        with pytest.raises(tg.errors.DTypeError, match="a seed is an int, not") as error:
            tg.initializers.RandomNormal(seed=seed)([3])
        assert "test_layers.py" in str(error.value) and "fix: use an int" in str(error.value)


def test_names_that_are_not_identifiers(tmp_path):
    """Keras' names are texts without a slash: they go through graphs, their text, and files."""
    model = tg.layers.Sequential([tg.layers.Dense(2, name="top-2 of 3")], name="1st model")
    top = tg.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy")
    assert (top.name, tg.optimizers.SGD(name="the best").name) == ("top-2-accuracy", "the best")
    f = tg.function(model)
    before = f(tg.ones([1, 3])).numpy()
    graph = f.graph(tg.ones([1, 3]))
    assert any("top-2 of 3" in node.source.scope for node in graph.nodes)
    assert tg.Graph.from_text(graph.as_text()).as_text() == graph.as_text()
    model.serve = f
    tg.saved_model.save(model, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    assert loaded.name == "1st model" and loaded.layers[0].name == "top-2 of 3"
    assert np.array_equal(before, loaded.serve(tg.ones([1, 3])).numpy())
    for name in ("a/b", "", 5):
        with pytest.raises(ValueError, match="not a valid module name"):
            tg.layers.Dense(2, name=name)
    with pytest.raises(ValueError, match="use letters, digits and underscores"):
        tg.Module(name="top-2")


def test_a_layer_of_ones_own_has_a_config():
    class Scale(tg.layers.Layer):
        def __init__(self, by, **kwargs):
            super().__init__(**kwargs)
            self.by = by

        def get_config(self):
            return {**super().get_config(), "by": self.by}

    layer = Scale(2.0, dtype="mixed_float16", trainable=False)
    config = {"name": "scale", "trainable": False, "dtype": "mixed_float16", "by": 2.0}
    assert layer.get_config() == config == Scale.from_config(config).get_config()
    with pytest.raises(AttributeError, match="keep the arguments yourself"):
        tg.layers.Dense(2).get_config()


def test_an_embedding_is_reversed():
    """With the table, or with a kernel; only vectors that it looked up have a mask."""
    for is_tied in (True, False):
        layer = tg.layers.ReversibleEmbedding(5, 3, is_tied, mask_zero=True, logit_soft_cap=2.0)
        vectors = layer([[1, 0]])
        table, *others = (v.numpy() for v in layer.weights)
        assert np.array_equal(vectors.numpy(), table[[[1, 0]]])
        assert vectors._keras_mask.numpy().tolist() == [[True, False]]
        f = tg.function(lambda x, layer=layer: layer(x, reverse=True))
        x = 9 * vectors.numpy()
        wanted = 2 * np.tanh(x @ (others[0] if others else table.T) / 2)
        assert np.allclose(f(x).numpy(), wanted, atol=1e-6)
        assert layer(x, reverse=True).numpy().shape == (1, 2, 5)
    half = tg.layers.ReversibleEmbedding(5, 3, dtype="mixed_float16", reverse_dtype="float32")
    assert half(half([1]), reverse=True).dtype is tg.float32
    assert half([1]).dtype is tg.float16


def test_names_of_keras_that_are_those_of_tensorflow():
    from tracegraph.keras.random import normal

    assert normal is tg.random.normal and tg.keras.device is tg.device
    assert tg.keras.name_scope is tg.name_scope
