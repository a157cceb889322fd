"""A user's file: every line is right, and no strict checker may say otherwise."""

from collections.abc import Callable
from typing import assert_type

import numpy as np

import tracegraph as tg
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
