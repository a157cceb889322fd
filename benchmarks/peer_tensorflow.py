"""The workloads in TensorFlow, three ways: eager, `tf.function`, and `tf.function` through XLA."""

import os
import tempfile
from functools import partial

import tensorflow as tf

from benchmarks.inputs import (
    ADAM_RATE,
    BETA_1,
    BETA_2,
    EPSILON,
    HEADS,
    HIGH_ORDER,
    LEARNING_RATE,
    NORM_EPSILON,
    ODE_STEPS,
    RESNET_EPSILON,
    WEIGHT_DECAY,
    WHILE_RATE,
    Inputs,
    band_of,
    chain_of,
    chain_offset,
    resnet_of,
    runge_kutta,
)
from benchmarks.workload import Phases, Stopwatch, Workload, first_step, flat

VERSION = tf.__version__

GRAPH = partial(tf.function, autograph=False)
XLA = partial(tf.function, autograph=False, jit_compile=True)


def eager(function):
    return function


def scalar_call(inputs: Inputs, mode) -> Workload:
    x = tf.constant(inputs["x"])
    increment = mode(lambda x: x + 1)
    return workload(lambda: increment(x))


def dict_call(inputs: Inputs, mode) -> Workload:
    arrays = tf.nest.map_structure(tf.constant, inputs["arrays"])
    increment = mode(lambda arrays: tf.nest.map_structure(lambda x: x + 1, arrays))
    return workload(lambda: increment(arrays))


def train_step(inputs: Inputs, mode) -> Workload:
    variables = variables_of(inputs)
    x, y = batch_of(inputs)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(tf.square(v * x - y)) for v in variables])
        descend(variables, tape.gradient(loss, variables))
        return loss

    step = mode(step)
    return workload(lambda: step(x, y))


def adam_step(model, inputs: Inputs, mode) -> Workload:
    variables = variables_of(inputs)
    optimizer = tf.keras.optimizers.Adam(ADAM_RATE, BETA_1, BETA_2, EPSILON)
    optimizer.build(variables)
    x, y = batch_of(inputs)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(model(variables, x), y)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    step = mode(step)
    return workload(lambda: step(x, y))


def undecorated_loop(inputs: Inputs, read: bool = False) -> Workload:
    variables = variables_of(inputs)
    x, y = batch_of(inputs)

    def step():
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(perceptron(variables, x), y)
        descend(variables, tape.gradient(loss, variables))
        return float(loss) if read else loss

    return workload(step)


def chain(inputs: Inputs, mode):
    x = tf.constant(inputs["x"])

    def phases(turn: int) -> Phases:
        @mode
        def value_and_gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                length, offset = inputs["length"], chain_offset(turn)
                y = tf.reduce_sum(chain_of(x, length, offset, tf.exp, tf.math.log))
            return y, tape.gradient(y, x)

        return phases_of(value_and_gradient, x)

    return phases


def phases_of(function, x) -> Phases:
    watch = Stopwatch()
    with watch("trace"):
        program = function.get_concrete_function(x)
    with watch("compile"):
        result = flat(tf.nest.flatten(program(x)))
    return Phases(watch.seconds, result)


def network(kernels, x):
    for kernel in kernels:
        x = tf.tanh(x @ kernel)
    return x


def jacobian_network(inputs: Inputs, mode) -> Workload:
    """Everything a function uses is an argument, as in the other peers."""
    first, second = map(tf.constant, inputs["kernels"])
    x = tf.constant(inputs["x"])

    @mode
    def jacobian(kernel, second, x):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            y = network([kernel, second], x)
        return tape.jacobian(y, kernel)

    return sampled(lambda: jacobian(first, second, x))


def batch_jacobian(inputs: Inputs, mode) -> Workload:
    kernels = [tf.constant(kernel) for kernel in inputs["kernels"]]
    x = tf.constant(inputs["x"])

    @mode
    def jacobian(kernels, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = network(kernels, x)
        return tape.batch_jacobian(y, x)

    return sampled(lambda: jacobian(kernels, x))


def layer_loss(parameters, x):
    kernel, bias = tf.reshape(parameters[:480], [24, 20]), parameters[480:]
    return tf.reduce_mean(tf.square(tf.tanh(x @ kernel + bias)))


def hessian(inputs: Inputs, mode) -> Workload:
    parameters, x = tf.constant(inputs["parameters"]), tf.constant(inputs["x"])

    @mode
    def second(parameters, x):
        with tf.GradientTape() as outer:
            outer.watch(parameters)
            with tf.GradientTape() as inner:
                inner.watch(parameters)
                loss = layer_loss(parameters, x)
            slope = inner.gradient(loss, parameters)
        return outer.jacobian(slope, parameters)

    return sampled(lambda: second(parameters, x))


def hessian_vector(inputs: Inputs, mode) -> Workload:
    parameters = [tf.constant(value) for value in inputs["variables"]]
    directions = [tf.constant(value) for value in inputs["directions"]]
    x, y = batch_of(inputs)

    @mode
    def product(parameters, directions, x, y):
        with tf.autodiff.ForwardAccumulator(parameters, directions) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(parameters)
                loss = mean_cross_entropy(perceptron(parameters, x, tf.tanh), y)
            slope = tape.gradient(loss, parameters)
        return accumulator.jvp(slope)

    return sampled(lambda: product(parameters, directions, x, y))


def lstm(inputs: Inputs, mode) -> Workload:
    variables = variables_of(inputs)
    x, start = tf.constant(inputs["x"]), tf.constant(inputs["start"])

    @mode
    def loss_and_gradients(x, start):
        kernel, recurrent, bias = variables

        def step(state, x):
            h, c = state
            i, f, g, o = tf.split(x @ kernel + h @ recurrent + bias, 4, axis=-1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            return tf.sigmoid(o) * tf.tanh(c), c

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.scan(step, x, (start, start))[0]))
        return loss, tape.gradient(loss, variables)

    return sampled(lambda: loss_and_gradients(x, start))


def gru(inputs: Inputs, scale: float = 1.0, *, mode) -> Workload:
    variables, start = variables_of(inputs), tf.constant(inputs["start"])
    x, y = batch_of(inputs)

    @mode
    def train_step(x, y, start):
        embedding, recurrent, output = variables

        def step(h, x):
            of_input = tf.split(tf.gather(embedding, x), 3, axis=-1)
            of_state = tf.split(h @ recurrent, 3, axis=-1)
            r, z = (tf.sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2]))
            return z * h + (1.0 - z) * tf.tanh(of_input[2] + r * of_state[2])

        with tf.GradientTape() as tape:
            h = tf.scan(step, x, start)
            loss = scale * mean_cross_entropy(tf.einsum("tbw,wc->tbc", h, output), y)
        descend(variables, tape.gradient(loss, variables))
        return loss

    return workload(lambda: train_step(x, y, start))


def transformed(variables, x, hidden):
    """Layer norms before attention and before the perceptron, as in GPT-2."""
    embedding, positions, *rest = variables
    h = tf.gather(embedding, x) + positions
    while len(rest) > 4:
        (scale, shift, *attention), rest = rest[:6], rest[6:]
        h = h + attended(normalised(h, scale, shift), hidden, *attention)
        (scale, shift, up, up_bias, down, down_bias), rest = rest[:6], rest[6:]
        inner = tf.nn.gelu(normalised(h, scale, shift) @ up + up_bias, approximate=True)
        h = h + inner @ down + down_bias
    scale, shift, kernel, bias = rest
    return normalised(h, scale, shift) @ kernel + bias


def normalised(x, scale, shift):
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(variance + NORM_EPSILON) * scale + shift


def attended(x, hidden, kernel, bias, out, out_bias):
    parts = tf.reshape(x @ kernel + bias, [*x.shape[:2], 3, HEADS, x.shape[2] // HEADS])
    q, k, v = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
    scores = tf.matmul(q, k, transpose_b=True) * q.shape[-1] ** -0.5 + hidden
    y = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
    return tf.reshape(y, x.shape) @ out + out_bias


def transformer(inputs: Inputs, scale: float = 1.0, *, mode, dtype=tf.float32) -> Workload:
    """`dtype` is that of what is computed; variables and losses are float32."""
    variables, (x, y) = variables_of(inputs), batch_of(inputs)
    hidden = tf.cast(inputs["hidden"], dtype)
    optimizer = tf.keras.optimizers.AdamW(ADAM_RATE, WEIGHT_DECAY, BETA_1, BETA_2, EPSILON)
    optimizer.build(variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            weights = [tf.cast(variable, dtype) for variable in variables]
            logits = tf.cast(transformed(weights, x, hidden), tf.float32)
            loss = scale * mean_cross_entropy(logits, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    step = mode(step)
    return workload(lambda: step(x, y))


def neural_ode(inputs: Inputs, scale: float = 1.0, *, mode) -> Workload:
    kernels = [tf.constant(kernel) for kernel in inputs["kernels"]]
    x = tf.constant(inputs["x"])

    @mode
    def loss_and_gradients(kernels, x):
        def step(x, _):
            return runge_kutta(lambda x: tf.tanh(x @ kernels[0]) @ kernels[1], x)

        with tf.GradientTape() as tape:
            tape.watch(kernels)
            loss = scale * tf.reduce_mean(tf.square(tf.foldl(step, tf.range(ODE_STEPS), x)))
        return loss, tape.gradient(loss, kernels)

    return workload(lambda: loss_and_gradients(kernels, x))


def while_gradient(inputs: Inputs, mode) -> Workload:
    x, count = tf.constant(inputs["x"]), tf.constant(inputs["count"])

    @mode
    def value_and_gradient(x, count):
        body = lambda i, x: (i + 1, x / (1.0 + WHILE_RATE * x))  # noqa: E731
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, x: i < count, body, (0, x))[1]
        return y, tape.gradient(y, x)

    return workload(lambda: value_and_gradient(x, count))


def scan_step(inputs: Inputs, mode) -> Workload:
    x = tf.constant(inputs["x"])
    scanned = mode(lambda x: tf.scan(lambda s, x: 0.9 * s + x, x, tf.constant(0.0)))
    return sampled(lambda: scanned(x))


def two_parts(inputs: Inputs, mode) -> Workload:
    x, score, kernel = (tf.constant(inputs[name]) for name in ("x", "score", "kernel"))

    @mode
    def work(x, score, kernel):
        rows = tf.boolean_mask(x, score > 0.0)
        return tf.reduce_mean(tf.square(tf.tanh(rows @ kernel)), axis=0)

    return workload(lambda: work(x, score, kernel))


def started(factory, inputs: Inputs, mode):
    return first_step(partial(factory, inputs, mode=mode))


def residual(u):
    inner = u[:-2] - 2 * u[1:-1] + u[2:]
    ends = u[1:2] - 2 * u[:1], u[-2:-1] - 2 * u[-1:]
    return tf.concat([ends[0], inner, ends[1]], 0) + u**3


def jacobian_tridiagonal(inputs: Inputs, mode) -> Workload:
    x = tf.constant(inputs["x"])

    @mode
    def jacobian(u):
        with tf.GradientTape() as tape:
            tape.watch(u)
            y = residual(u)
        return tape.jacobian(y, u)

    return Workload(lambda: jacobian(x), lambda y: None, lambda y: band_of(y.numpy()))


def jacobian_bottleneck(inputs: Inputs, mode) -> Workload:
    down, up, x = (tf.constant(inputs[name]) for name in ("down", "up", "x"))

    @mode
    def jacobian(x, down, up):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sin(tf.tanh(x[tf.newaxis] @ down) @ up)[0]
        return tape.jacobian(y, x)

    return sampled(lambda: jacobian(x, down, up))


def jacobian_again(inputs: Inputs) -> Workload:
    x = tf.constant(inputs["x"])

    def jacobian():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sin(x) * tf.reduce_sum(x * x)
        return tape.jacobian(y, x)

    return workload(jacobian)


def nested(fn, order: int):
    """The derivative of `fn` of a given order, by that many nested tapes."""
    if not order:
        return fn
    inner = nested(fn, order - 1)

    def derivative(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    return derivative


def trace_high_order(inputs: Inputs, mode):
    x = tf.constant(inputs["x"])
    return lambda turn: phases_of(mode(nested(lambda x: tf.sin(tf.tanh(x) * x), HIGH_ORDER)), x)


class Clipping(tf.Module):
    """A layer whose gradient is clipped."""

    def __init__(self, kernel) -> None:
        super().__init__()
        self.kernel = tf.Variable(kernel)

    @tf.function(input_signature=[tf.TensorSpec([None, 8])], autograph=False)
    def __call__(self, x):
        return clipped(tf.tanh(x @ self.kernel))


@tf.custom_gradient
def clipped(x):
    return x, lambda g: tf.clip_by_norm(g, 0.5)


def save_custom(inputs: Inputs):
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)

    def phases(turn: int) -> Phases:
        watch, x = Stopwatch(), tf.constant(inputs["x"])
        with tempfile.TemporaryDirectory() as folder:
            with watch("save"):
                tf.saved_model.save(Clipping(inputs["kernel"]), folder, options=options)
            size = os.path.getsize(os.path.join(folder, "saved_model.pb"))
            with watch("load"):
                loaded = tf.saved_model.load(folder)
            with watch("call"):
                loaded(x).numpy()
            with watch("gradient"):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = loaded(x)
                slope = tape.gradient(y, x).numpy()
        return Phases(watch.seconds, flat([slope]), {"bytes": size})

    return phases


def perceptron(variables, x, activation=tf.nn.relu):
    *hidden, kernel, bias = variables
    for weights, offset in zip(hidden[::2], hidden[1::2]):
        x = activation(x @ weights + offset)
    return x @ kernel + bias


def convolutions(variables, x):
    first, first_bias, second, second_bias, kernel, bias = variables
    x = tf.nn.relu(tf.nn.conv2d(x, first, 1, "SAME") + first_bias)
    x = tf.nn.relu(tf.nn.conv2d(x, second, 1, "SAME") + second_bias)
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tf.reshape(x, [x.shape[0], -1]) @ kernel + bias


def resnet(variables, x):
    """`fused_batch_norm` is the fastest variant in TensorFlow."""

    def convolve(x, kernel, stride):
        return tf.nn.conv2d(x, kernel, stride, "SAME")

    def normalise(x, scale, offset):
        return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=RESNET_EPSILON)[0]

    return resnet_of(
        variables, x, convolve, normalise, tf.nn.relu, lambda x: tf.reduce_mean(x, [1, 2])
    )


def mean_cross_entropy(logits, y):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def descend(variables, gradients) -> None:
    for variable, gradient in zip(variables, gradients):
        variable.assign_sub(LEARNING_RATE * gradient)


def workload(step) -> Workload:
    """On the CPU TensorFlow waits by itself."""
    return Workload(step, block=lambda output: None, observe=tf.nest.flatten)


def sampled(step) -> Workload:
    """Compares some of the many entries of the results."""
    observe = lambda y: [leaf.numpy().ravel()[::997] for leaf in tf.nest.flatten(y)]  # noqa: E731
    return Workload(step, block=lambda output: None, observe=observe)


def variables_of(inputs: Inputs) -> list:
    return [tf.Variable(value) for value in inputs["variables"]]


def batch_of(inputs: Inputs) -> tuple:
    return tf.constant(inputs["x"]), tf.constant(inputs["y"])


def modes(factory, **chosen) -> dict:
    """One variant of `factory` per mode."""
    chosen = chosen or {"tf_graph": GRAPH, "tf_xla": XLA, "tf_eager": eager}
    return {name: partial(factory, mode=mode) for name, mode in chosen.items()}


WORKLOADS = {
    "scalar_call": modes(scalar_call),
    "array_call": modes(scalar_call),
    "array_call_64": modes(scalar_call),
    "dict_call": modes(dict_call),
    "train_step_12": modes(train_step),
    "train_step_300": modes(train_step),
    "mlp_step": modes(partial(adam_step, perceptron)),
    "convolution_step": modes(partial(adam_step, convolutions)),
    "resnet20_step": modes(partial(adam_step, resnet)),
    "undecorated_loop": {"tf_eager": undecorated_loop},
    "undecorated_loop_read": {"tf_eager": partial(undecorated_loop, read=True)},
    "jacobian_network": modes(jacobian_network),
    "batch_jacobian": modes(batch_jacobian),
    "hessian": modes(hessian),
    "hessian_vector": modes(hessian_vector),
    "lstm": modes(lstm, tf_graph=GRAPH, tf_xla=XLA),
    "gru_step": modes(gru, tf_graph=GRAPH, tf_xla=XLA),
    "gru_start": modes(partial(started, gru), tf_graph=GRAPH, tf_xla=XLA),
    "ode_start": modes(partial(started, neural_ode), tf_graph=GRAPH, tf_xla=XLA),
    "transformer_step": modes(transformer, tf_graph=GRAPH, tf_xla=XLA),
    "bfloat16_step": modes(partial(transformer, dtype=tf.bfloat16), tf_graph=GRAPH, tf_xla=XLA),
    "transformer_start": modes(partial(started, transformer), tf_graph=GRAPH, tf_xla=XLA),
    "while_gradient": modes(while_gradient, tf_graph=GRAPH),
    "scan_step": modes(scan_step, tf_graph=GRAPH, tf_xla=XLA),
    "two_parts": modes(two_parts, tf_graph=GRAPH),
    "jacobian_tridiagonal": modes(jacobian_tridiagonal),
    "jacobian_bottleneck": modes(jacobian_bottleneck),
    "jacobian_again": {"tf_eager": jacobian_again},
    "trace_order_7": modes(trace_high_order, tf_graph=GRAPH, tf_xla=XLA),
    "save_custom": {"tf_graph": save_custom},
    "chain_100": modes(chain, tf_graph=GRAPH, tf_xla=XLA),
    "chain_1000": modes(chain, tf_graph=GRAPH, tf_xla=XLA),
    "chain_5000": modes(chain, tf_graph=GRAPH, tf_xla=XLA),
}
