"""A user's file: every line is right, and no strict checker may say otherwise."""

from collections.abc import Callable
from typing import NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import tracegraph as tg
import tracegraph.numpy as tnp
from tracegraph.typing import DTypeLike, ShapeLike, TensorLike


class Model(tg.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = tg.layers.Dense(8, activation=tg.nn.relu)
        self.w = tg.Variable(tg.random.normal([8, 1]), name="w")
        self.b = tg.Variable(0.0)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.hidden(x) @ self.w + self.b

    @tg.function
    def scaled(self, x: tg.Tensor, scale: float = 1.0) -> tuple[tg.Tensor, tg.Tensor]:
        return x * scale, self(x)


model = Model()
optimizer = tg.optimizers.Adam(0.01)


@tg.function
def step(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    with tg.GradientTape() as tape:
        loss = tg.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tg.function(reduce_retracing=True, input_signature=[tg.TensorSpec(["batch", 3], tg.float32)])
def predict(x: tg.Tensor) -> tg.Tensor:
    return tg.nn.softmax(model(x), axis=-1)


@tg.custom_gradient
def clipped(x: tg.Tensor) -> tuple[tg.Tensor, Callable[[tg.Tensor], tg.Tensor]]:
    def grad(upstream: tg.Tensor) -> tg.Tensor:
        return tg.clip_by_value(upstream, -1.0, 1.0)

    return tg.identity(x), grad


@tg.recompute_grad
def wave(x: tg.Tensor) -> tg.Tensor:
    return tg.reduce_sum(tg.sin(x))


def filled(shape: ShapeLike, value: TensorLike, dtype: DTypeLike = "float32") -> tg.Tensor:
    return tg.cast(tg.fill(shape, value), dtype)


# Training.

x = tg.constant(np.arange(12.0, dtype=np.float32).reshape(4, 3) / 12)
y = tg.zeros([4, 1], dtype=tg.float32)
for k in range(3):
    loss = step(x, y)
    print(k, float(loss), f"{loss.numpy():.3f}", loss.item())
assert_type(model(x), tg.Tensor)
assert_type(model.hidden(x), tg.Tensor)
assert_type(step(x, y), tg.Tensor)
assert_type(predict(x), tg.Tensor)
assert_type(model.scaled(x, scale=2.0), tuple[tg.Tensor, tg.Tensor])
assert_type(clipped(x), tg.Tensor)
assert_type(wave(x), tg.Tensor)
print(step.get_concrete_function(x, y).graph.as_text(locations=True))
print(predict.experimental_get_tracing_count(), step.explain_retraces().seconds)
tg.saved_model.save(model, "model")
model.scaled.precompile([(x, 2.0)], "model")
print(tg.profile(predict, x).table("ops"), tg.debugging.compare(predict, tg.float64, x).agrees)

# Arithmetic and indexing.

w = tg.ones((3, 2))
assert_type(x @ w, tg.Tensor)
assert_type(x[:, 0], tg.Tensor)
assert_type(x[1:, ..., tg.newaxis], tg.Tensor)
assert_type(2.0 * x - 1, tg.Tensor)
assert_type(-(x**2) / 3 + np.float32(1.0), tg.Tensor)
assert_type(np.float32(1.0) + x, tg.Tensor)
assert_type(x == x, tg.Tensor)
assert_type((x > 0.5) & ~(x < 0.1), tg.Tensor)
assert_type(tg.where(x > 0.5, x, tg.zeros_like(x)), tg.Tensor)
assert_type(abs(x), tg.Tensor)
assert_type([row for row in x], list[tg.Tensor])  # noqa: C416
assert_type(x.dtype, tg.DType)
assert_type(x.shape, tg.TensorShape)
assert_type(x.shape[0], int)
assert_type(len(x), int)
assert_type(tg.reduce_sum(x, axis=[0, 1], keepdims=True), tg.Tensor)
assert_type(tg.concat([x, [[1.0, 2.0, 3.0]]], axis=0), tg.Tensor)
assert_type(filled([2, x.shape[1]], 1, np.float32), tg.Tensor)
values, indices = tg.math.top_k(x[0], 2)
for part in tg.split(tg.reshape(x, [6, 2]), 2, axis=0):
    print(tg.shape(part), part.numpy().tolist(), values, indices)

# Variables.

v = tg.Variable([1.0, 2.0, 3.0], trainable=True, dtype=tg.float32)
assert_type(v.assign_add([0.5, 0.5, 0.5]), tg.Variable)
v[0].assign(3.0)
v.scatter_add(tg.IndexedSlices([1.0], [2]))
assert_type(v * x, tg.Tensor)
assert_type(1 - v, tg.Tensor)
names = [variable.name for variable in model.variables]

# Devices.

rows = tg.distribute.Layout(tg.distribute.Mesh({"data": 1}), ["data", None])
assert_type(tg.distribute.with_layout(x, rows), tg.Tensor)
assert_type(tg.Variable(x, layout=rows).layout, tg.distribute.Layout | None)
with rows.mesh as mesh:
    print(tg.distribute.with_layout(x, [None, ["data"]]).layout, mesh.shape["data"])

# Derivatives.

with tg.GradientTape(persistent=True) as tape:
    tape.watch(x)
    z = tg.sqrt(tg.reduce_sum(x * x * v))
assert_type(tape.gradient(z, x), tg.Tensor)
assert_type(tape.gradient(z, [x, v]), list[tg.Tensor])
assert_type(tape.gradient(z, (x, v)), tuple[tg.Tensor, ...])
assert_type(tape.gradient(z, model.b, unconnected_gradients="none"), tg.Tensor | None)
for gradient in tape.gradient(z, [v, model.b], unconnected_gradients="none"):
    print("unconnected" if gradient is None else gradient.shape)
assert_type(tape.jacobian(z, x), tg.Tensor)
assert_type(x - 0.1 * tape.gradient(z, x), tg.Tensor)
assert_type(tg.grad(wave)(x), tg.Tensor)
assert_type(tg.value_and_grad(wave)(x), tuple[tg.Tensor, tg.Tensor])
assert_type(tg.vectorized_map(wave, x), tg.Tensor)


# Layers: a call takes what `call` takes, and returns what it returns.


class Scaled(tg.layers.Layer):
    def build(self, input_shape: tg.TensorShape) -> None:
        self.kernel = self.add_weight([input_shape[-1], 2], "ones", name="kernel")

    def call(self, inputs: tg.Tensor, training: bool | None = None) -> tg.Tensor:
        self.add_loss(tg.reduce_sum(inputs))
        return inputs @ self.kernel


class Halves(tg.layers.Layer):
    def call(self, inputs: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
        return inputs / 2.0, inputs / 2.0


def stacked(layers: list[tg.layers.Layer], x: tg.Tensor) -> tg.Tensor:
    for layer in layers:
        x = layer(x, training=False)
    return x


assert_type(Scaled()(x, training=True), tg.Tensor)
assert_type(Scaled()(np.ones((2, 3))), tg.Tensor)
assert_type(Scaled()(inputs=x), tg.Tensor)
assert_type(Halves()(x, training=True), tuple[tg.Tensor, tg.Tensor])
dense = tg.layers.Dense(3, "relu", kernel_regularizer=lambda w: tg.reduce_sum(w**2))
assert_type(dense(x, training=False), tg.Tensor)
assert_type(dense(np.ones((2, 3), np.float32)), tg.Tensor)
assert_type(dense([[1.0, 2.0, 3.0]]), tg.Tensor)
assert_type(dense.kernel, tg.Variable)
assert_type(stacked([dense, Scaled()], x), tg.Tensor)
sequential = tg.layers.Sequential([dense, tg.nn.relu, lambda h: h * 2.0, Scaled()])
assert_type(sequential(x, training=True), tg.Tensor)
assert_type(sequential.losses, list[tg.Tensor])
assert_type(tg.layers.Lambda(lambda h: h + 1.0)(x), tg.Tensor)
assert_type(tg.layers.Concatenate()([x, x]), tg.Tensor)
steps = tg.ones([2, 4, 3])
assert_type(tg.layers.LSTM(2, return_sequences=True)(steps), tg.Tensor)
last = tg.layers.LSTM(2, return_state=True)
assert_type(last(steps), list[tg.Tensor])
h, *states = last(steps)
assert_type(last(steps, initial_state=states, mask=tg.ones([2, 4], tg.bool)), list[tg.Tensor])
assert_type(tg.layers.Bidirectional(tg.layers.GRU(2))(steps), tg.Tensor)
cell = tg.layers.LSTMCell(2)
assert_type(cell(steps[:, 0], cell.get_initial_state(2)), tuple[tg.Tensor, list[tg.Tensor]])
attention = tg.layers.MultiHeadAttention(1, 2)
assert_type(attention(steps, steps, use_causal_mask=True), tg.Tensor)
pair = attention(steps, steps, return_attention_scores=True)
assert_type(pair, tuple[tg.Tensor, tg.Tensor])

# Losses, metrics, optimizers.


class Largest(tg.metrics.Metric):
    def __init__(self) -> None:
        super().__init__()
        self.largest = self.add_weight(name="largest")

    def update_state(self, values: TensorLike) -> None:
        self.largest.assign(tg.maximum(self.largest, tg.reduce_max(values)))

    def result(self) -> tg.Tensor:
        return self.largest.read_value()


assert_type(Largest()([1.0, 2.0]), tg.Tensor)
assert_type(tg.metrics.Mean()(x, sample_weight=None), tg.Tensor)
assert_type(tg.losses.MeanSquaredError()(x, np.zeros((4, 3), np.float32)), tg.Tensor)
sgd = tg.optimizers.SGD(tg.optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9)
assert_type(float(sgd.learning_rate), float)
optimizer.learning_rate = 0.02
optimizer.learning_rate.assign(0.01)
with tg.GradientTape() as tape:
    loss = tg.reduce_sum(dense(x) ** 2)
gradients = tape.gradient(loss, dense.trainable_variables)
gradients, norm = tg.clip_by_global_norm(gradients, 1.0)
gradients = [tg.clip_by_norm(gradient, 1.0) for gradient in gradients]
sgd.apply_gradients(zip(gradients, dense.trainable_variables))
sgd.minimize(lambda: tg.reduce_sum(dense(x)), dense.trainable_variables)
assert_type(norm, tg.Tensor)

# Branches, loops and maps, of lambdas and of functions.


class State(NamedTuple):
    steps: tg.Tensor
    value: tg.Tensor


def next_pair(i: tg.Tensor, s: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    return i + 1, s * 2.0


def is_small(i: tg.Tensor, s: tg.Tensor) -> tg.Tensor:
    return i < 2


row = x[0]
is_positive = tg.reduce_sum(row) > 0.0
assert_type(tg.cond(is_positive, lambda: row, lambda: -row), tg.Tensor)
assert_type(tg.cond(is_positive, lambda: 1.0, lambda: 0.0), tg.Tensor)
both = tg.cond(is_positive, lambda: (row, row), lambda: (row, -row))
assert_type(both, tuple[tg.Tensor, tg.Tensor])
assert_type(tg.switch_case(tg.constant(1), [lambda: row, lambda: -row]), tg.Tensor)
assert_type(tg.case([(is_positive, lambda: row)], default=lambda: -row), tg.Tensor)
pair = tg.while_loop(lambda i, s: i < 2, lambda i, s: (i + 1, s * 2.0), (0, row))
assert_type(tg.while_loop(is_small, next_pair, (0, 1.0)), tuple[tg.Tensor, tg.Tensor])
assert_type(tg.while_loop(is_small, next_pair, [tg.constant(0), row]), list[tg.Tensor])
assert_type(tg.while_loop(lambda i: i < 3, lambda i: i + 1, tg.constant(0)), tg.Tensor)
start = (State(tg.constant(0), row),)
(end,) = tg.while_loop(lambda s: s.steps < 2, lambda s: (State(s.steps + 1, s.value),), start)
print(end.value, tg.while_loop(lambda i, s: i < 2, lambda i, s: [i + 1, s], [0, 1.0]))
assert_type(tg.scan(tg.add, row), tg.Tensor)
total = tg.scan(lambda total, e: total + e, row, initializer=0.0)
sums, products = tg.scan(lambda a, e: (a[0] + e, a[1] * e), row, (0.0, 1.0))
print(total.shape, sums.shape, tg.foldl(lambda total, e: total + e, row))
assert_type(tg.map_fn(tg.square, row), tg.Tensor)
squares, cubes = tg.map_fn(lambda e: (e**2, e**3), row)
print(squares, cubes, tg.map_fn(lambda pair: pair[0] * pair[1], (row, row)))
print(tg.vectorized_map(lambda pair: pair[0] * pair[1], (row, row)).shape)
assert_type(tg.vmap(tg.linalg.matvec, in_axes=(None, 0))(w, x[:, :2]), tg.Tensor)
print(tg.vmap(lambda e: e * 2.0)(row), tg.vmap(lambda a, b: a * b)(row, row))
print(tg.grad(lambda e: e * e)(3.0), tg.grad(lambda a, b: a * b, argnums=(0, 1))(row[0], 2.0))
print(tg.vjp(lambda a, b: b * a, row, row)[0], tg.jvp(lambda e: e * e, (row,), (row,)))


def powered(e: tg.Tensor, power: float = 2.0) -> tg.Tensor:
    return tg.reduce_sum(e**power)


assert_type(tg.grad(powered)(row, power=3.0), tg.Tensor)
assert_type(tg.grad(tg.grad(tg.sin))(1.0), tg.Tensor)
print(tg.grad(tg.grad(lambda e: e * e))(3.0))
assert_type(tg.value_and_grad(powered)(row, 3.0), tuple[tg.Tensor, tg.Tensor])
with tg.autodiff.ForwardAccumulator(row, tg.ones_like(row)) as accumulator:
    assert_type(accumulator.jvp(row * row), tg.Tensor)

# Files.

checkpoint = tg.train.Checkpoint(model=model, optimizer=optimizer, epoch=tg.Variable(0))
checkpoint.restore(checkpoint.save("checkpoints/c")).assert_consumed()
print(checkpoint.epoch, tg.saved_model.load("model"))

# The rest.


def summed(values: jax.Array) -> jax.Array:
    return jnp.sum(values)


assert_type(tg.from_jax(summed)(row), tg.Tensor)
assert_type(tg.numpy_function(np.sort, [row], tg.float32), tg.Tensor)
assert_type(tnp.matmul(tnp.astype(x, tnp.float64), tnp.ones((3, 1), dtype=tnp.float64)), tg.Tensor)
assert_type(tnp.linalg.matrix_norm(x), tg.Tensor)
assert_type(tg.tensordot(x, w, axes=[[1], [0]]), tg.Tensor)
assert_type(tg.linalg.svd(x, compute_uv=False), tg.Tensor)
scale = tg.linalg.LinearOperatorDiag([1.0, 2.0, 3.0])
assert_type(scale.matmul(w), tg.Tensor)
assert_type(scale @ scale, tg.linalg.LinearOperator)
assert_type(tg.signal.stft(tg.ones([32]), 8, 4, window_fn=None), tg.Tensor)
assert_type(tg.image.resize(tg.ones([1, 4, 4, 3]), (2, 2)), tg.Tensor)
assert_type(tg.random.Generator.from_seed(1).normal([2]), tg.Tensor)
tg.print("half of", tg.half, row, tg.nest.map_structure(lambda e: e * 2.0, {"row": row}))
