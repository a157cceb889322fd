"""The workloads in JAX: `jax.jit`, with the state as a donated tuple that is fed back."""

import importlib.util
import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.jet import jet

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
    PHYSICS_ORDER,
    PHYSICS_RATE,
    RESNET_EPSILON,
    WEIGHT_DECAY,
    WHILE_RATE,
    Inputs,
    band_of,
    chain_of,
    chain_offset,
    product_of,
    rates_of,
    resnet_of,
    runge_kutta,
)
from benchmarks.workload import Phases, Stopwatch, Workload, first_step, flat

VERSION = jax.__version__


def scalar_call(inputs: Inputs) -> Workload:
    x = jnp.asarray(inputs["x"])
    increment = jax.jit(lambda x: x + 1)
    return workload(lambda: increment(x))


def array_call_64(inputs: Inputs) -> Workload:
    """64-bit types need a global switch, which must not affect the other rows."""
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


def adam_program(model):
    """One step of Adam on `model`: loss, gradients and updates."""
    loss_of = partial(mean_cross_entropy, model)

    def step(state, x, y):
        variables, *moments = state
        loss, gradients = jax.value_and_grad(loss_of)(variables, x, y)
        return adam(variables, gradients, *moments), loss

    return step


def adam_step(model, inputs: Inputs) -> Workload:
    """The whole step in one program."""
    variables = variables_of(inputs)
    first, second = (tuple(jnp.zeros_like(v) for v in variables) for _ in range(2))
    state = variables, first, second, jnp.zeros((), jnp.int32)
    step = jax.jit(adam_program(model), donate_argnums=0)
    return fed_back(step, state, *batch_of(inputs))


def undecorated_loop(inputs: Inputs, read: bool = False) -> Workload:
    """No `jax.jit`: every operation is dispatched separately."""
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

        return phases_of(jax.value_and_grad(total), x, compiled)

    return phases


def phases_of(function, x, compiled: bool = True) -> Phases:
    watch = Stopwatch()
    with watch("trace"):
        traced = jax.jit(function).trace(x)
    with watch("lower"):
        lowered = traced.lower()
    if not compiled:
        return Phases(watch.seconds)
    with watch("compile"):
        program = lowered.compile()
    return Phases(watch.seconds, flat(jax.tree.leaves(program(x))))


def chain_and_tenth(inputs: Inputs):
    """The chain without XLA's compile, and one a tenth as long beside it"""
    tenth = chain(inputs | {"length": inputs["length"] // 10}, compiled=False)
    whole = chain(inputs, compiled=False)
    return lambda turn: whole(turn).beside(tenth(turn))


def perceptron(variables, x, activation=jax.nn.relu):
    *hidden, kernel, bias = variables
    for weights, offset in zip(hidden[::2], hidden[1::2]):
        x = activation(x @ weights + offset)
    return x @ kernel + bias


tanh_perceptron = partial(perceptron, activation=jnp.tanh)


def convolutions(variables, x):
    """Written naively: `reduce_window` is how JAX pools."""
    first, first_bias, second, second_bias, kernel, bias = variables
    x = jax.nn.relu(convolution(x, first) + first_bias)
    x = jax.nn.relu(convolution(x, second) + second_bias)
    window = (1, 2, 2, 1)
    x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    return x.reshape(x.shape[0], -1) @ kernel + bias


def convolution(x, kernel, stride=1):
    layout = ("NHWC", "HWIO", "NHWC")
    strides = stride, stride
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=layout)


def resnet(variables, x):
    def normalise(x, scale, offset):
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + RESNET_EPSILON) * scale + offset

    return resnet_of(
        variables, x, convolution, normalise, jax.nn.relu, lambda x: jnp.mean(x, (1, 2))
    )


def mean_cross_entropy(model, variables, x, y):
    logarithms = jax.nn.log_softmax(model(variables, x))
    return -jnp.mean(jnp.take_along_axis(logarithms, y[:, None], axis=1))


def descend(variables, gradients, rate: float = LEARNING_RATE):
    return tuple(v - rate * g for v, g in zip(variables, gradients))


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
    """Everything a function uses is an argument: closed-over values would be constants, and
    folded."""
    first, second = map(jnp.asarray, inputs["kernels"])
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jit(jax.jacrev(lambda kernel, second, x: network([kernel, second], x)))
    return sampled(lambda: jacobian(first, second, x))


def batch_jacobian(inputs: Inputs) -> Workload:
    kernels = [jnp.asarray(kernel) for kernel in inputs["kernels"]]
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jit(jax.vmap(jax.jacrev(network, argnums=1), in_axes=(None, 0)))
    return sampled(lambda: jacobian(kernels, x))


def layer_loss(parameters, x):
    kernel, bias = parameters[:480].reshape(24, 20), parameters[480:]
    return jnp.mean(jnp.square(jnp.tanh(x @ kernel + bias)))


def hessian(inputs: Inputs) -> Workload:
    parameters, x = jnp.asarray(inputs["parameters"]), jnp.asarray(inputs["x"])
    second = jax.jit(jax.hessian(layer_loss))
    return sampled(lambda: second(parameters, x))


def hessian_vector(inputs: Inputs) -> Workload:
    parameters = variables_of(inputs)
    directions = tuple(map(jnp.asarray, inputs["directions"]))
    x, y = batch_of(inputs)

    @jax.jit
    def product(parameters, directions, x, y):
        slope = jax.grad(lambda p: mean_cross_entropy(tanh_perceptron, p, x, y))
        return jax.jvp(slope, (parameters,), (directions,))[1]

    return sampled(lambda: product(parameters, directions, x, y))


def lstm(inputs: Inputs) -> Workload:
    x, start = jnp.asarray(inputs["x"]), jnp.asarray(inputs["start"])

    @jax.jit
    def loss_and_gradients(variables, x, start):
        def loss(variables):
            kernel, recurrent, bias = variables

            def step(state, x):
                h, c = state
                i, f, g, o = jnp.split(x @ kernel + h @ recurrent + bias, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            return jnp.mean(jnp.square(lax.scan(step, (start, start), x)[1]))

        return jax.value_and_grad(loss)(variables)

    return sampled(lambda: loss_and_gradients(variables_of(inputs), x, start))


def gru(inputs: Inputs, scale: float = 1.0) -> Workload:
    x, y = batch_of(inputs)
    start = jnp.asarray(inputs["start"])

    def loss_of(variables, x, y, start):
        embedding, recurrent, output = variables

        def step(h, x):
            of_input = jnp.split(embedding[x], 3, axis=-1)
            of_state = jnp.split(h @ recurrent, 3, axis=-1)
            r, z = (jax.nn.sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2]))
            h = z * h + (1.0 - z) * jnp.tanh(of_input[2] + r * of_state[2])
            return h, h

        logarithms = jax.nn.log_softmax(lax.scan(step, start, x)[1] @ output)
        return -scale * jnp.mean(jnp.take_along_axis(logarithms, y[..., None], axis=-1))

    def train_step(variables, x, y, start):
        loss, gradients = jax.value_and_grad(loss_of)(variables, x, y, start)
        return descend(variables, gradients), loss

    return fed_back(jax.jit(train_step, donate_argnums=0), variables_of(inputs), x, y, start)


def transformed(variables, x, hidden):
    """Layer norms before attention and before the perceptron, as in GPT-2."""
    embedding, positions, *rest = variables
    h = embedding[x] + positions
    while len(rest) > 4:
        (scale, shift, *attention), rest = rest[:6], rest[6:]
        h = h + attended(normalised(h, scale, shift), hidden, *attention)
        (scale, shift, up, up_bias, down, down_bias), rest = rest[:6], rest[6:]
        inner = jax.nn.gelu(normalised(h, scale, shift) @ up + up_bias, approximate=True)
        h = h + inner @ down + down_bias
    scale, shift, kernel, bias = rest
    return normalised(h, scale, shift) @ kernel + bias


def normalised(x, scale, shift):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + NORM_EPSILON) * scale + shift


def attended(x, hidden, kernel, bias, out, out_bias):
    """Attention by products; by cuDNN, which has fused attention, if `hidden` is None."""
    parts = jnp.reshape(x @ kernel + bias, [*x.shape[:2], 3, HEADS, -1])
    if hidden is None:
        q, k, v = jnp.unstack(parts, axis=2)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        return jnp.reshape(y, x.shape) @ out + out_bias
    q, k, v = jnp.transpose(parts, (2, 0, 3, 1, 4))
    scores = (q @ jnp.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5 + hidden
    y = jnp.transpose(jax.nn.softmax(scores) @ v, [0, 2, 1, 3])
    return jnp.reshape(y, x.shape) @ out + out_bias


def transformer(
    inputs: Inputs, scale: float = 1.0, dtype=jnp.float32, is_fused: bool = False
) -> Workload:
    """`dtype` is that of what is computed; variables and losses are float32."""
    x, y = batch_of(inputs)

    def loss_of(variables, x, y, hidden):
        logits = transformed([v.astype(dtype) for v in variables], x, hidden)
        logarithms = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -scale * jnp.mean(jnp.take_along_axis(logarithms, y[..., None], axis=-1))

    def step(state, x, y, hidden):
        variables, *moments = state
        loss, gradients = jax.value_and_grad(loss_of)(variables, x, y, hidden)
        variables = tuple(v - v * WEIGHT_DECAY * ADAM_RATE for v in variables)
        return adam(variables, gradients, *moments), loss

    variables = variables_of(inputs)
    first, second = (tuple(jnp.zeros_like(v) for v in variables) for _ in range(2))
    state = variables, first, second, jnp.zeros((), jnp.int32)
    hidden = None if is_fused else jnp.asarray(inputs["hidden"], dtype)
    return fed_back(jax.jit(step, donate_argnums=0), state, x, y, hidden)


def bfloat16_variants() -> dict[str, Any]:
    """On a GPU also with cuDNN's attention, which is skipped where there is none."""
    in_bfloat16 = partial(transformer, dtype=jnp.bfloat16)
    found = {"jax": in_bfloat16}
    if os.environ.get("BENCHMARKS_DEVICE") == "gpu":
        found["jax_cudnn"] = partial(in_bfloat16, is_fused=True)
    return found


def neural_ode(inputs: Inputs, scale: float = 1.0) -> Workload:
    kernels = [jnp.asarray(kernel) for kernel in inputs["kernels"]]
    x = jnp.asarray(inputs["x"])

    def loss_of(kernels, x):
        def step(x, _):
            return runge_kutta(lambda x: jnp.tanh(x @ kernels[0]) @ kernels[1], x), None

        return scale * jnp.mean(jnp.square(lax.scan(step, x, length=ODE_STEPS)[0]))

    loss_and_gradients = jax.jit(jax.value_and_grad(loss_of))
    return workload(lambda: loss_and_gradients(kernels, x))


def loop_alone(inputs: Inputs) -> Workload:
    """JAX has no reverse mode for a while; the derivative is passed for the comparison."""
    x, count = jnp.asarray(inputs["x"]), jnp.asarray(inputs["count"])

    @jax.jit
    def value(x, count):
        body = lambda s: (s[0] + 1, s[1] / (1.0 + WHILE_RATE * s[1]))  # noqa: E731
        return lax.while_loop(lambda s: s[0] < count, body, (0, x))[1]

    observe = lambda y: [y, inputs["slope"]]  # noqa: E731
    return Workload(lambda: value(x, count), jax.block_until_ready, observe)


def scan_step(inputs: Inputs) -> Workload:
    x = jnp.asarray(inputs["x"])

    def step(s, x):
        s = 0.9 * s + x
        return s, s

    scanned = jax.jit(lambda x: lax.scan(step, jnp.zeros(()), x)[1])
    return sampled(lambda: scanned(x))


def two_parts(inputs: Inputs) -> Workload:
    """By hand: a program that counts, a read of its number, and a program for that number."""
    x, score, kernel = (jnp.asarray(inputs[name]) for name in ("x", "score", "kernel"))

    @jax.jit
    def chosen(score):
        flags = score > 0.0
        return flags, jnp.sum(flags)

    @partial(jax.jit, static_argnums=3)
    def work(x, flags, kernel, count):
        rows = x[jnp.nonzero(flags, size=count)[0]]
        return jnp.mean(jnp.square(jnp.tanh(rows @ kernel)), axis=0)

    def step():
        flags, count = chosen(score)
        return work(x, flags, kernel, int(count))

    return workload(step)


def residual(u):
    inner = u[:-2] - 2 * u[1:-1] + u[2:]
    ends = u[1:2] - 2 * u[:1], u[-2:-1] - 2 * u[-1:]
    return jnp.concatenate([ends[0], inner, ends[1]]) + u**3


def jacobian_tridiagonal(inputs: Inputs) -> Workload:
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jit(jax.jacfwd(residual))
    return Workload(lambda: jacobian(x), jax.block_until_ready, lambda y: band_of(np.asarray(y)))


def jacobian_tridiagonal_sparse(inputs: Inputs) -> Workload:
    import asdex

    x = jnp.asarray(inputs["x"])
    jacobian = asdex.jacobian(residual, x)
    entries = jax.jit(lambda x: jacobian(x).data)
    observe = lambda y: [np.asarray(y), np.sum(np.asarray(y), dtype=np.float64)]  # noqa: E731
    return Workload(lambda: entries(x), jax.block_until_ready, observe)


def jacobian_bottleneck(inputs: Inputs, mode=jax.jacrev) -> Workload:
    down, up, x = (jnp.asarray(inputs[name]) for name in ("down", "up", "x"))
    jacobian = jax.jit(mode(lambda x, down, up: jnp.sin(jnp.tanh(x[None] @ down) @ up)[0]))
    return sampled(lambda: jacobian(x, down, up))


def jacobian_again(inputs: Inputs) -> Workload:
    """No `jax.jit`."""
    x = jnp.asarray(inputs["x"])
    jacobian = jax.jacrev(lambda x: jnp.sin(x) * jnp.sum(x * x))
    return workload(lambda: jacobian(x))


def nested(fn, order: int):
    for _ in range(order):
        fn = jax.grad(fn)
    return fn


def both_nested(solution, x):
    """A function's value and its sixth derivative."""
    return solution(x), nested(solution, PHYSICS_ORDER)(x)


def both_by_series(solution, x):
    """The same by a Taylor series: JAX's experimental alternative to nesting."""
    tangents = [jnp.ones_like(x)] + [jnp.zeros_like(x)] * (PHYSICS_ORDER - 1)
    value, derivatives = jet(solution, (x,), (tangents,))
    return value, derivatives[-1]


def pinn_sixth(inputs: Inputs, both=both_nested) -> Workload:
    def loss_of(variables, x):
        def solution(x):
            return tanh_perceptron(variables, x.reshape(1, 1))[0, 0]

        u, sixth = jax.vmap(partial(both, solution))(x)
        return jnp.mean(jnp.square(sixth + u)) + jnp.mean(jnp.square(u - jnp.sin(x)))

    def step(variables, x):
        loss, gradients = jax.value_and_grad(loss_of)(variables, x)
        return descend(variables, gradients, PHYSICS_RATE), loss

    return fed_back(jax.jit(step, donate_argnums=0), variables_of(inputs), jnp.asarray(inputs["x"]))


def trace_high_order(inputs: Inputs):
    x = jnp.asarray(inputs["x"])
    return lambda turn: phases_of(nested(lambda x: jnp.sin(jnp.tanh(x) * x), HIGH_ORDER), x)


def brusselator(inputs: Inputs):
    """Pattern, colouring and trace."""
    import asdex

    x = jnp.asarray(inputs["x"])

    def phases(turn: int) -> Phases:
        watch = Stopwatch()
        with watch("prepare"):
            rates = partial(rates_of, roll=jnp.roll, stack=jnp.stack)
            colouring = asdex.jacobian_coloring(rates, x)
            traced = jax.jit(asdex.jacobian_from_coloring(rates, colouring)).trace(x)
        with watch("compile"):
            matrix = jax.block_until_ready(traced.lower().compile()(x))
        places = np.asarray(matrix.indices).T
        rows, columns = (np.ravel_multi_index(place, x.shape) for place in (places[:3], places[3:]))
        product = product_of(matrix.data, rows, columns, inputs["direction"])
        return Phases(watch.seconds, flat([product]), {"colours": colouring.num_colors})

    return phases


@jax.custom_vjp
def clipped(x):
    return x


def clipped_backward(_, g):
    norm = jnp.sqrt(jnp.sum(g * g))
    return (g * 0.5 / jnp.maximum(norm, 0.5),)


clipped.defvjp(lambda x: (x, None), clipped_backward)


def save_custom(inputs: Inputs):
    """The kernel is an argument: `jax.export` does not store weights."""
    kernel = jnp.asarray(inputs["kernel"])

    def phases(turn: int) -> Phases:
        watch, x = Stopwatch(), jnp.asarray(inputs["x"])
        with watch("save"):
            function = jax.jit(lambda kernel, x: clipped(jnp.tanh(x @ kernel)))
            (rows,) = jax.export.symbolic_shape("rows")
            batch = jax.ShapeDtypeStruct((rows, 8), x.dtype)
            data = jax.export.export(function)(kernel, batch).serialize(vjp_order=1)
        with watch("load"):
            loaded = jax.export.deserialize(data)
        with watch("call"):
            np.asarray(loaded.call(kernel, x))
        with watch("gradient"):
            slope = np.asarray(jax.grad(lambda x: loaded.call(kernel, x).sum())(x))
        return Phases(watch.seconds, flat([slope]), {"bytes": len(data)})

    return phases


def sampled(step) -> Workload:
    """Compares some of the many entries of the results."""
    observe = lambda y: [np.asarray(leaf).ravel()[::997] for leaf in jax.tree.leaves(y)]  # noqa: E731
    return Workload(step, jax.block_until_ready, observe)


def if_installed(name: str, **variants) -> dict:
    return variants if importlib.util.find_spec(name) else {}


WORKLOADS = {
    "scalar_call": {"jax": scalar_call},
    "array_call": {"jax": scalar_call},
    "array_call_after_tape": {"jax": scalar_call},
    "array_call_64": {"jax": array_call_64},
    "dict_call": {"jax": dict_call},
    "train_step_12": {"jax": train_step},
    "train_step_300": {"jax": train_step},
    "mlp_step": {"jax": partial(adam_step, perceptron)},
    "converted_step": {"jax": partial(adam_step, perceptron)},
    "convolution_step": {"jax": partial(adam_step, convolutions)},
    "resnet20_step": {"jax": partial(adam_step, resnet)},
    "undecorated_loop": {"jax": undecorated_loop},
    "undecorated_loop_read": {"jax": partial(undecorated_loop, read=True)},
    "jacobian_network": {"jax": jacobian_network},
    "batch_jacobian": {"jax": batch_jacobian},
    "hessian": {"jax": hessian},
    "hessian_vector": {"jax": hessian_vector},
    "lstm": {"jax": lstm},
    "gru_step": {"jax": gru},
    "gru_start": {"jax": lambda inputs: first_step(partial(gru, inputs))},
    "ode_start": {"jax": lambda inputs: first_step(partial(neural_ode, inputs))},
    "while_gradient": {"jax_loop_alone": loop_alone},
    "transformer_step": {"jax": transformer},
    "bfloat16_step": bfloat16_variants(),
    "transformer_start": {"jax": lambda inputs: first_step(partial(transformer, inputs))},
    "scan_step": {"jax": scan_step},
    "two_parts": {"jax": two_parts},
    "jacobian_tridiagonal": {
        "jax": jacobian_tridiagonal,
        **if_installed("asdex", asdex=jacobian_tridiagonal_sparse),
    },
    "jacobian_bottleneck": {
        "jax": jacobian_bottleneck,
        "jax_forward": partial(jacobian_bottleneck, mode=jax.jacfwd),
    },
    "jacobian_again": {"jax": jacobian_again},
    "pinn_sixth": {"jax": pinn_sixth, "jax_jet": partial(pinn_sixth, both=both_by_series)},
    "trace_order_7": {"jax": trace_high_order},
    "brusselator": if_installed("asdex", asdex=brusselator),
    "save_custom": {"jax": save_custom},
    "chain_100": {"jax": chain},
    "chain_1000": {"jax": chain},
    "chain_5000": {"jax": chain},
    "chain_50000": {"jax": chain_and_tenth},
}
