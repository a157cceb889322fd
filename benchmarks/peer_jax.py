"""The workloads in JAX: `jax.jit`, with the state as a donated tuple that is fed back."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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

VERSION = jax.__version__


def scalar_call(inputs: Inputs) -> Workload:
    x = jnp.asarray(inputs["x"])
    increment = jax.jit(lambda x: x + 1)
    return workload(lambda: increment(x))


def array_call_64(inputs: Inputs) -> Workload:
    """64-bit types need a switch, which must not reach the other rows."""
    scope = partial(jax.enable_x64, True)
    with scope():
        x = jnp.asarray(inputs["x"])
    increment = jax.jit(lambda x: x + 1)
    return workload(lambda: increment(x), scope=scope)


def dict_call(inputs: Inputs) -> Workload:
    arrays = jax.tree.map(jnp.asarray, inputs["arrays"])
    increment = jax.jit(lambda arrays: jax.tree.map(lambda x: x + 1, arrays))
    return workload(lambda: increment(arrays))


def train_step(inputs: Inputs) -> Workload:
    def loss_of(variables, x, y):
        return sum(jnp.mean(jnp.square(v * x - y)) for v in variables)

    def step(variables, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(variables, x, y)
        return descend(variables, gradients), loss

    return fed_back(jax.jit(step, donate_argnums=0), variables_of(inputs), *batch_of(inputs))


def adam_step(model, inputs: Inputs) -> Workload:
    """One step of Adam on `model`: loss, gradients and updates in one program."""
    loss_of = partial(mean_cross_entropy, model)

    def step(state, x, y):
        variables, *moments = state
        loss, gradients = jax.value_and_grad(loss_of)(variables, x, y)
        return adam(variables, gradients, *moments), loss

    variables = variables_of(inputs)
    first, second = (tuple(jnp.zeros_like(v) for v in variables) for _ in range(2))
    state = variables, first, second, jnp.zeros((), jnp.int32)
    return fed_back(jax.jit(step, donate_argnums=0), state, *batch_of(inputs))


def undecorated_loop(inputs: Inputs, read: bool = False) -> Workload:
    """No `jax.jit`: every operation is dispatched by itself."""
    loss_of = partial(mean_cross_entropy, perceptron)

    def step(variables, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(variables, x, y)
        return descend(variables, gradients), float(loss) if read else loss

    return fed_back(step, variables_of(inputs), *batch_of(inputs))


def chain(inputs: Inputs, compiled: bool = True):
    x = jnp.asarray(inputs["x"])

    def phases(turn: int) -> Phases:
        def total(x):
            return jnp.sum(chain_of(x, inputs["length"], chain_offset(turn), jnp.exp, jnp.log))

        watch = Stopwatch()
        with watch("trace"):
            traced = jax.jit(jax.value_and_grad(total)).trace(x)
        with watch("lower"):
            lowered = traced.lower()
        if not compiled:
            return Phases(watch.seconds)
        with watch("compile"):
            program = lowered.compile()
        return Phases(watch.seconds, flat(program(x)))

    return phases


def chain_and_tenth(inputs: Inputs):
    """The chain without XLA's compile, and one a tenth as long beside it"""
    tenth = chain(inputs | {"length": inputs["length"] // 10}, compiled=False)
    whole = chain(inputs, compiled=False)
    return lambda turn: whole(turn).beside(tenth(turn))


def perceptron(variables, x):
    *hidden, kernel, bias = variables
    for weights, offset in zip(hidden[::2], hidden[1::2]):
        x = jax.nn.relu(x @ weights + offset)
    return x @ kernel + bias


def convolutions(variables, x):
    """Written naively: `reduce_window` is how JAX pools."""
    first, first_bias, second, second_bias, kernel, bias = variables
    x = jax.nn.relu(convolution(x, first) + first_bias)
    x = jax.nn.relu(convolution(x, second) + second_bias)
    window = (1, 2, 2, 1)
    x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    return x.reshape(x.shape[0], -1) @ kernel + bias


def convolution(x, kernel):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def mean_cross_entropy(model, variables, x, y):
    logarithms = jax.nn.log_softmax(model(variables, x))
    return -jnp.mean(jnp.take_along_axis(logarithms, y[:, None], axis=1))


def descend(variables, gradients):
    return tuple(v - LEARNING_RATE * g for v, g in zip(variables, gradients))


def adam(variables, gradients, first, second, count):
    """Keras's form: the bias corrections are part of the rate."""
    count = count + 1
    rate = ADAM_RATE * jnp.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
    first = tuple(m + (g - m) * (1 - BETA_1) for m, g in zip(first, gradients))
    second = tuple(s + (g * g - s) * (1 - BETA_2) for s, g in zip(second, gradients))
    moved = zip(variables, first, second)
    return tuple(v - rate * m / (jnp.sqrt(s) + EPSILON) for v, m, s in moved), first, second, count


def fed_back(step, state, *arguments) -> Workload:
    """Repeats ``state, output = step(state, *arguments)``."""

    def advance():
        nonlocal state
        state, output = step(state, *arguments)
        return output

    return workload(advance)


def workload(step, **options) -> Workload:
    return Workload(step, jax.block_until_ready, jax.tree.leaves, **options)


def variables_of(inputs: Inputs) -> tuple:
    return tuple(map(jnp.asarray, inputs["variables"]))


def batch_of(inputs: Inputs) -> tuple:
    return jnp.asarray(inputs["x"]), jnp.asarray(inputs["y"])


def network(kernels, x):
    for kernel in kernels:
        x = jnp.tanh(x @ kernel)
    return x


def jacobian_network(inputs: Inputs) -> Workload:
    first, second = map(jnp.asarray, inputs["kernels"])
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jit(jax.jacrev(lambda kernel: network([kernel, second], x)))
    return sampled(lambda: jacobian(first))


def batch_jacobian(inputs: Inputs) -> Workload:
    kernels = [jnp.asarray(kernel) for kernel in inputs["kernels"]]
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jit(jax.vmap(jax.jacrev(partial(network, kernels))))
    return sampled(lambda: jacobian(x))


def layer_loss(parameters, x):
    kernel, bias = parameters[:480].reshape(24, 20), parameters[480:]
    return jnp.mean(jnp.square(jnp.tanh(x @ kernel + bias)))


def hessian(inputs: Inputs) -> Workload:
    parameters, x = jnp.asarray(inputs["parameters"]), jnp.asarray(inputs["x"])
    second = jax.jit(jax.hessian(layer_loss))
    return sampled(lambda: second(parameters, x))


def hessian_vector(inputs: Inputs) -> Workload:
    parameters, x = jnp.asarray(inputs["parameters"]), jnp.asarray(inputs["x"])
    direction = jnp.asarray(inputs["direction"])

    @jax.jit
    def product(parameters, direction):
        slope = jax.grad(lambda p: layer_loss(p, x))
        return jax.jvp(slope, (parameters,), (direction,))[1]

    return sampled(lambda: product(parameters, direction))


def residual(u):
    inner = u[:-2] - 2 * u[1:-1] + u[2:]
    ends = u[1:2] - 2 * u[:1], u[-2:-1] - 2 * u[-1:]
    return jnp.concatenate([ends[0], inner, ends[1]]) + u**3


def jacobian_tridiagonal(inputs: Inputs) -> Workload:
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jit(jax.jacfwd(residual))
    observe = lambda y: [np.sum(np.asarray(y), dtype=np.float64)]  # noqa: E731
    return Workload(lambda: jacobian(x), jax.block_until_ready, observe)


def jacobian_waist(inputs: Inputs, mode=jax.jacrev) -> Workload:
    down, up, x = (jnp.asarray(inputs[name]) for name in ("down", "up", "x"))
    jacobian = jax.jit(mode(lambda x: jnp.sin(jnp.tanh(x[None] @ down) @ up)[0]))
    return sampled(lambda: jacobian(x))


def sampled(step) -> Workload:
    """Compares some of the many entries of the result."""
    return Workload(step, jax.block_until_ready, lambda y: [np.asarray(y).ravel()[::997]])


WORKLOADS = {
    "scalar_call": {"jax": scalar_call},
    "array_call": {"jax": scalar_call},
    "array_call_64": {"jax": array_call_64},
    "dict_call": {"jax": dict_call},
    "train_step_12": {"jax": train_step},
    "train_step_300": {"jax": train_step},
    "mlp_step": {"jax": partial(adam_step, perceptron)},
    "convolution_step": {"jax": partial(adam_step, convolutions)},
    "undecorated_loop": {"jax": undecorated_loop},
    "undecorated_loop_read": {"jax": partial(undecorated_loop, read=True)},
    "jacobian_network": {"jax": jacobian_network},
    "batch_jacobian": {"jax": batch_jacobian},
    "hessian": {"jax": hessian},
    "hessian_vector": {"jax": hessian_vector},
    "jacobian_tridiagonal": {"jax": jacobian_tridiagonal},
    "jacobian_waist": {
        "jax": jacobian_waist,
        "jax_forward": partial(jacobian_waist, mode=jax.jacfwd),
    },
    "chain_100": {"jax": chain},
    "chain_1000": {"jax": chain},
    "chain_5000": {"jax": chain},
    "chain_50000": {"jax": chain_and_tenth},
}
