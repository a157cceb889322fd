"""The workloads in TensorFlow, three ways: eager, `tf.function`, and `tf.function` through XLA."""

from functools import partial

import tensorflow as tf

from benchmarks.inputs import (
    ADAM_RATE,
    BETA_1,
    BETA_2,
    EPSILON,
    LEARNING_RATE,
    Inputs,
    chain_of,
    chain_offset,
)
from benchmarks.workload import Phases, Stopwatch, Workload, flat

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

        watch = Stopwatch()
        with watch("trace"):
            program = value_and_gradient.get_concrete_function(x)
        with watch("compile"):
            result = flat(program(x))
        return Phases(watch.seconds, result)

    return phases


def perceptron(variables, x):
    *hidden, kernel, bias = variables
    for weights, offset in zip(hidden[::2], hidden[1::2]):
        x = tf.nn.relu(x @ weights + offset)
    return x @ kernel + bias


def convolutions(variables, x):
    first, first_bias, second, second_bias, kernel, bias = variables
    x = tf.nn.relu(tf.nn.conv2d(x, first, 1, "SAME") + first_bias)
    x = tf.nn.relu(tf.nn.conv2d(x, second, 1, "SAME") + second_bias)
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tf.reshape(x, [x.shape[0], -1]) @ kernel + bias


def mean_cross_entropy(logits, y):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def descend(variables, gradients) -> None:
    for variable, gradient in zip(variables, gradients):
        variable.assign_sub(LEARNING_RATE * gradient)


def workload(step) -> Workload:
    """TensorFlow waits by itself on the CPU."""
    return Workload(step, block=lambda output: None, observe=tf.nest.flatten)


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
    "undecorated_loop": {"tf_eager": undecorated_loop},
    "undecorated_loop_read": {"tf_eager": partial(undecorated_loop, read=True)},
    "chain_100": modes(chain, tf_graph=GRAPH, tf_xla=XLA),
    "chain_1000": modes(chain, tf_graph=GRAPH, tf_xla=XLA),
    "chain_5000": modes(chain, tf_graph=GRAPH, tf_xla=XLA),
}
