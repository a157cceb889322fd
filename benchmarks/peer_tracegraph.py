"""The workloads in tracegraph, written as its users write them."""

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Self

import jax
import numpy as np

import tracegraph as tg
from benchmarks import peer_jax
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
    chain_of,
    chain_offset,
    product_of,
    rates_of,
    resnet_of,
    runge_kutta,
)
from benchmarks.workload import Phases, Stopwatch, Workload, first_step, flat

VERSION = getattr(tg, "__version__", "")

#: A quarter of the 881 MiB that the step of `budget_step` takes without a budget, besides arguments
#: and results.
QUARTER = "220MiB"


def scalar_call(inputs: Inputs) -> Workload:
    x = tg.constant(inputs["x"])
    increment = tg.function(lambda x: x + 1)
    return workload(lambda: increment(x))


def call_after_tape(inputs: Inputs) -> Workload:
    """A tape makes later calls note their results, so that a None gradient can be explained."""
    with tg.GradientTape():
        pass
    return scalar_call(inputs)


def dict_call(inputs: Inputs) -> Workload:
    arrays = tg.nest.map_structure(tg.constant, inputs["arrays"])
    increment = tg.function(lambda arrays: tg.nest.map_structure(lambda x: x + 1, arrays))
    return workload(lambda: increment(arrays))


def train_step(inputs: Inputs) -> Workload:
    variables = variables_of(inputs)
    x, y = batch_of(inputs)

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            loss = sum(tg.reduce_mean(tg.square(v * x - y)) for v in variables)
        descend(variables, tape.gradient(loss, variables))
        return loss

    return workload(lambda: step(x, y))


def adam_step(model, inputs: Inputs) -> Workload:
    variables = variables_of(inputs)
    optimizer = tg.optimizers.Adam(
        learning_rate=ADAM_RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON
    )
    x, y = batch_of(inputs)

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            loss = mean_cross_entropy(model(variables, x), y)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return workload(lambda: step(x, y))


def converted_step(inputs: Inputs) -> Workload:
    """JAX's own step, with its state in Variables here."""
    program = tg.from_jax(peer_jax.adam_program(peer_jax.perceptron))
    variables = variables_of(inputs)
    first, second = ([tg.Variable(tg.zeros_like(v)) for v in variables] for _ in range(2))
    state = [variables, first, second, tg.Variable(0)]
    x, y = batch_of(inputs)

    @tg.function
    def step(x, y):
        new, loss = program(state, x, y)
        for variable, value in zip(tg.nest.flatten(state), tg.nest.flatten(new)):
            variable.assign(value)
        return loss

    return workload(lambda: step(x, y))


def undecorated_loop(inputs: Inputs, read: bool = False) -> Workload:
    """No `tg.function`; without `read`, no value is read before the end of the loop."""
    variables = variables_of(inputs)
    x, y = batch_of(inputs)

    def step():
        with tg.GradientTape() as tape:
            loss = mean_cross_entropy(perceptron(variables, x), y)
        descend(variables, tape.gradient(loss, variables))
        return float(loss) if read else loss

    def block(output):
        return [variable.numpy() for variable in variables]

    return Workload(step, block, observe=tg.nest.flatten)


def chain(inputs: Inputs, compiled: bool = True):
    x = tg.constant(inputs["x"])

    def phases(turn: int) -> Phases:
        @tg.function
        def value_and_gradient(x):
            with tg.GradientTape() as tape:
                tape.watch(x)
                length, offset = inputs["length"], chain_offset(turn)
                y = tg.reduce_sum(chain_of(x, length, offset, tg.exp, tg.math.log))
            return y, tape.gradient(y, x)

        return phases_of_first_call(value_and_gradient, x, compiled)

    return phases


def chain_and_tenth(inputs: Inputs):
    """The chain without XLA's compile, and one a tenth as long beside it"""
    tenth = chain(inputs | {"length": inputs["length"] // 10}, compiled=False)
    whole = chain(inputs, compiled=False)
    return lambda turn: whole(turn).beside(tenth(turn))


def phases_of_first_call(function, x, compiled: bool) -> Phases:
    """Splits the first call of `function` into trace (with all passes), lower and compile.

    The compiler reports its own time; the rest of the first call counts as lowering.
    """
    watch = Stopwatch()
    with watch("trace"):
        function.get_concrete_function(x)
    compiler = CompilerTimes.shared()
    compiler.longest.clear()
    if not compiled:
        with watch("lower"):
            text_of = function.experimental_get_compiler_ir(x)
        text_of(stage="stablehlo")
        watch.seconds["lower"] += compiler.longest[TRACING] + compiler.longest[LOWERING]
        return Phases(watch.seconds)
    with watch("lower"):
        result = flat(tg.nest.flatten(function(x)))
    watch.seconds["compile"] = compiler.longest[COMPILING]
    watch.seconds["lower"] -= watch.seconds["compile"]
    return Phases(watch.seconds, result)


TRACING = "/jax/core/compile/jaxpr_trace_duration"
LOWERING = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILING = "/jax/core/compile/backend_compile_duration"


class CompilerTimes:
    """The longest of each of JAX's compiler phases: the outermost one, since they nest."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        jax.monitoring.register_event_duration_secs_listener(self.note)

    @classmethod
    @cache
    def shared(cls) -> Self:
        return cls()

    def note(self, event: str, duration_secs: float, **_) -> None:
        self.longest[event] = max(duration_secs, self.longest.get(event, 0.0))


def perceptron(variables, x, activation=tg.nn.relu):
    *hidden, kernel, bias = variables
    for weights, offset in zip(hidden[::2], hidden[1::2]):
        x = activation(x @ weights + offset)
    return x @ kernel + bias


def convolutions(variables, x):
    first, first_bias, second, second_bias, kernel, bias = variables
    x = tg.nn.relu(tg.nn.conv2d(x, first, 1, "SAME") + first_bias)
    x = tg.nn.relu(tg.nn.conv2d(x, second, 1, "SAME") + second_bias)
    x = tg.nn.max_pool2d(x, 2, 2, "VALID")
    return tg.reshape(x, [x.shape[0], -1]) @ kernel + bias


def resnet(variables, x):
    def convolve(x, kernel, stride):
        return tg.nn.conv2d(x, kernel, stride, "SAME")

    def normalise(x, scale, offset):
        return tg.nn.fused_batch_norm(x, scale, offset, epsilon=RESNET_EPSILON)[0]

    return resnet_of(
        variables, x, convolve, normalise, tg.nn.relu, lambda x: tg.reduce_mean(x, [1, 2])
    )


def mean_cross_entropy(logits, y):
    losses = tg.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tg.reduce_mean(losses)


def descend(variables, gradients, rate: float = LEARNING_RATE) -> None:
    for variable, gradient in zip(variables, gradients):
        variable.assign_sub(rate * gradient)


def workload(step) -> Workload:
    return Workload(step, block=wait_for, observe=tg.nest.flatten)


def wait_for(output):
    """All results of one program are ready when any of them is."""
    return tg.nest.flatten(output)[-1].numpy()


def variables_of(inputs: Inputs) -> list:
    return [tg.Variable(value) for value in inputs["variables"]]


def batch_of(inputs: Inputs) -> tuple:
    return tg.constant(inputs["x"]), tg.constant(inputs["y"])


def network(kernels, x):
    for kernel in kernels:
        x = tg.tanh(x @ kernel)
    return x


# Everything a function uses is passed to it, kernels too, here and in the peers: parameters are
# arguments in real use, and JAX would treat an array in a closure as a constant of its program, and
# fold it.


def jacobian_network(inputs: Inputs) -> Workload:
    first, second = map(tg.constant, inputs["kernels"])
    x = tg.constant(inputs["x"])

    @tg.function
    def jacobian(kernel, second, x):
        with tg.GradientTape() as tape:
            tape.watch(kernel)
            y = network([kernel, second], x)
        return tape.jacobian(y, kernel)

    return sampled(lambda: jacobian(first, second, x))


def batch_jacobian(inputs: Inputs) -> Workload:
    kernels = [tg.constant(kernel) for kernel in inputs["kernels"]]
    x = tg.constant(inputs["x"])

    @tg.function
    def jacobian(kernels, x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = network(kernels, x)
        return tape.batch_jacobian(y, x)

    return sampled(lambda: jacobian(kernels, x))


def layer_loss(parameters, x):
    kernel, bias = tg.reshape(parameters[:480], [24, 20]), parameters[480:]
    return tg.reduce_mean(tg.square(tg.tanh(x @ kernel + bias)))


def hessian(inputs: Inputs) -> Workload:
    parameters, x = tg.constant(inputs["parameters"]), tg.constant(inputs["x"])
    second = tg.function(tg.hessian(layer_loss))
    return sampled(lambda: second(parameters, x))


def hessian_vector(inputs: Inputs) -> Workload:
    """Forward over reverse, in every peer."""
    parameters = [tg.constant(value) for value in inputs["variables"]]
    directions = [tg.constant(value) for value in inputs["directions"]]
    x, y = batch_of(inputs)

    @tg.function
    def product(parameters, directions, x, y):
        def loss(*parameters):
            return mean_cross_entropy(perceptron(parameters, x, tg.tanh), y)

        return tg.hvp(loss, parameters, directions)

    return sampled(lambda: product(parameters, directions, x, y))


def lstm(inputs: Inputs) -> Workload:
    variables = variables_of(inputs)
    x, start = tg.constant(inputs["x"]), tg.constant(inputs["start"])

    @tg.function
    def loss_and_gradients(x, start):
        kernel, recurrent, bias = variables

        def step(state, x):
            h, c = state
            i, f, g, o = tg.split(x @ kernel + h @ recurrent + bias, 4, axis=-1)
            c = tg.sigmoid(f) * c + tg.sigmoid(i) * tg.tanh(g)
            return tg.sigmoid(o) * tg.tanh(c), c

        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.square(tg.scan(step, x, (start, start))[0]))
        return loss, tape.gradient(loss, variables)

    return sampled(lambda: loss_and_gradients(x, start))


def gru(inputs: Inputs, scale: float = 1.0) -> Workload:
    variables, start = variables_of(inputs), tg.constant(inputs["start"])
    x, y = batch_of(inputs)

    @tg.function
    def train_step(x, y, start):
        embedding, recurrent, output = variables

        def step(h, x):
            of_input = tg.split(tg.gather(embedding, x), 3, axis=-1)
            of_state = tg.split(h @ recurrent, 3, axis=-1)
            r, z = (tg.sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2]))
            return z * h + (1.0 - z) * tg.tanh(of_input[2] + r * of_state[2])

        with tg.GradientTape() as tape:
            loss = scale * mean_cross_entropy(tg.scan(step, x, start) @ output, y)
        descend(variables, tape.gradient(loss, variables))
        return loss

    return workload(lambda: train_step(x, y, start))


def transformed(variables, x, hidden, wrap=lambda block: block):
    """Layer norms before attention and before the perceptron, as in GPT-2."""
    embedding, positions, *rest = variables
    h = tg.gather(embedding, x) + positions
    while len(rest) > 4:
        parameters, rest = rest[:12], rest[12:]
        h = wrap(transformer_block)(h, hidden, *parameters)
    scale, shift, kernel, bias = rest
    return normalised(h, scale, shift) @ kernel + bias


def transformer_block(h, hidden, *parameters):
    scale, shift, *attention = parameters[:6]
    h = h + attended(normalised(h, scale, shift), hidden, *attention)
    scale, shift, up, up_bias, down, down_bias = parameters[6:]
    inner = tg.nn.gelu(normalised(h, scale, shift) @ up + up_bias, approximate=True)
    return h + inner @ down + down_bias


def normalised(x, scale, shift):
    centred = x - tg.reduce_mean(x, axis=-1, keepdims=True)
    variance = tg.reduce_mean(tg.square(centred), axis=-1, keepdims=True)
    return centred * tg.math.rsqrt(variance + NORM_EPSILON) * scale + shift


def attended(x, hidden, kernel, bias, out, out_bias):
    parts = tg.reshape(x @ kernel + bias, [*x.shape[:2], 3, HEADS, -1])
    q, k, v = tg.unstack(tg.transpose(parts, [2, 0, 3, 1, 4]))
    scores = tg.matmul(q, k, transpose_b=True) * q.shape[-1] ** -0.5 + hidden
    y = tg.transpose(tg.matmul(tg.nn.softmax(scores), v), [0, 2, 1, 3])
    return tg.reshape(y, x.shape) @ out + out_bias


def transformer(
    inputs: Inputs, scale: float = 1.0, wrap=lambda block: block, dtype=tg.float32, **options
) -> Workload:
    """`dtype` is that of what is computed; variables and losses are float32."""
    variables, (x, y) = variables_of(inputs), batch_of(inputs)
    hidden = tg.cast(inputs["hidden"], dtype)
    optimizer = tg.optimizers.AdamW(ADAM_RATE, WEIGHT_DECAY, BETA_1, BETA_2, EPSILON)

    @tg.function(**options)
    def step(x, y):
        with tg.GradientTape() as tape:
            weights = [tg.cast(v, dtype) for v in variables] if dtype != tg.float32 else variables
            logits = tg.cast(transformed(weights, x, hidden, wrap), tg.float32)
            loss = scale * mean_cross_entropy(logits, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return workload(lambda: step(x, y))


def neural_ode(inputs: Inputs, scale: float = 1.0) -> Workload:
    kernels = [tg.constant(kernel) for kernel in inputs["kernels"]]
    x = tg.constant(inputs["x"])

    @tg.function
    def loss_and_gradients(kernels, x):
        def step(x, _):
            return runge_kutta(lambda x: tg.tanh(x @ kernels[0]) @ kernels[1], x)

        with tg.GradientTape() as tape:
            tape.watch(kernels)
            loss = scale * tg.reduce_mean(tg.square(tg.foldl(step, tg.range(ODE_STEPS), x)))
        return loss, tape.gradient(loss, kernels)

    return workload(lambda: loss_and_gradients(kernels, x))


def while_loop(x, count):
    """As many steps as `count` says, which the program does not know in advance."""
    body = lambda i, x: (i + 1, x / (1.0 + WHILE_RATE * x))  # noqa: E731
    return tg.while_loop(lambda i, x: i < count, body, (0, x))[1]


def while_gradient(inputs: Inputs) -> Workload:
    x, count = tg.constant(inputs["x"]), tg.constant(inputs["count"])

    @tg.function
    def value_and_gradient(x, count):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = while_loop(x, count)
        return y, tape.gradient(y, x)

    return workload(lambda: value_and_gradient(x, count))


def loop_alone(inputs: Inputs) -> Workload:
    """The loop without its gradient, which is passed for the comparison."""
    x, count = tg.constant(inputs["x"]), tg.constant(inputs["count"])
    value = tg.function(while_loop)
    return Workload(lambda: value(x, count), wait_for, lambda y: [y, inputs["slope"]])


def scan_step(inputs: Inputs) -> Workload:
    x = tg.constant(inputs["x"])
    scanned = tg.function(lambda x: tg.scan(lambda s, x: 0.9 * s + x, x, tg.constant(0.0)))
    return sampled(lambda: scanned(x))


def two_parts(inputs: Inputs) -> Workload:
    x, score, kernel = (tg.constant(inputs[name]) for name in ("x", "score", "kernel"))

    @tg.function
    def work(x, score, kernel):
        rows = tg.boolean_mask(x, score > 0.0)
        return tg.reduce_mean(tg.square(tg.tanh(rows @ kernel)), axis=0)

    return workload(lambda: work(x, score, kernel))


def residual(u):
    inner = u[:-2] - 2 * u[1:-1] + u[2:]
    ends = u[1:2] - 2 * u[:1], u[-2:-1] - 2 * u[-1:]
    return tg.concat([ends[0], inner, ends[1]], 0) + u**3


def jacobian_tridiagonal(inputs: Inputs) -> Workload:
    """The entries of the three diagonals, as in `asdex`; the others compute the whole matrix."""
    x = tg.constant(inputs["x"])

    @tg.function
    def entries(u):
        with tg.GradientTape() as tape:
            tape.watch(u)
            y = residual(u)
        return tape.jacobian(y, u, sparse=True).values

    observe = lambda y: [y.numpy(), np.sum(y.numpy(), dtype=np.float64)]  # noqa: E731
    return Workload(lambda: entries(x), wait_for, observe)


def jacobian_bottleneck(inputs: Inputs) -> Workload:
    down, up, x = (tg.constant(inputs[name]) for name in ("down", "up", "x"))

    @tg.function
    def jacobian(x, down, up):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.sin(tg.tanh(x[tg.newaxis] @ down) @ up)[0]
        return tape.jacobian(y, x)

    return sampled(lambda: jacobian(x, down, up))


def jacobian_again(inputs: Inputs) -> Workload:
    """No `tg.function`; the value is read each time."""
    x = tg.constant(inputs["x"])

    def jacobian():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.sin(x) * tg.reduce_sum(x * x)
        return tape.jacobian(y, x).numpy()

    return Workload(jacobian, block=lambda y: None, observe=lambda y: [y])


def nested(fn, order: int):
    """The derivative of `fn` of a given order, by that many nested tapes."""
    if not order:
        return fn
    inner = nested(fn, order - 1)

    def derivative(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    return derivative


def pinn_sixth(inputs: Inputs) -> Workload:
    """One step of training a network to solve u + u = 0."""
    variables = variables_of(inputs)
    points = tg.constant(inputs["x"][:, np.newaxis])

    def solution(x):
        return perceptron(variables, x, tg.tanh)

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            u = solution(x)
            equation = nested(solution, PHYSICS_ORDER)(x) + u
            loss = tg.reduce_mean(tg.square(equation)) + tg.reduce_mean(tg.square(u - tg.sin(x)))
        descend(variables, tape.gradient(loss, variables), PHYSICS_RATE)
        return loss

    return workload(lambda: step(points))


def trace_high_order(inputs: Inputs):
    """The trace, with all gradients and passes; a new function each time."""
    x = tg.constant(inputs["x"])

    def phases(turn: int) -> Phases:
        function = tg.function(nested(lambda x: tg.sin(tg.tanh(x) * x), HIGH_ORDER))
        return phases_of_first_call(function, x, compiled=True)

    return phases


def brusselator(inputs: Inputs):
    """The cost of a sparse Jacobian before its first product: trace, pattern, colouring, passes."""
    x = tg.constant(inputs["x"])

    def phases(turn: int) -> Phases:
        @tg.function
        def jacobian(state):
            with tg.GradientTape() as tape:
                tape.watch(state)
                rates = rates_of(state, tg.roll, tg.stack)
            return tape.jacobian(rates, state, sparse=True)

        watch = Stopwatch()
        with watch("prepare"):
            jacobian.get_concrete_function(x)
        with watch("compile"):
            matrix = jacobian(x)
            values = matrix.values.numpy()
        product = product_of(values, matrix.rows, matrix.cols, inputs["direction"])
        return Phases(watch.seconds, flat([product]), {"colours": matrix.colors})

    return phases


def explain(inputs: Inputs):
    """Explains a None gradient, in a trace of many nodes."""
    x = tg.constant(inputs["x"])

    def phases(turn: int) -> Phases:
        watch = Stopwatch()

        @tg.function
        def traced(x):
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = chain_of(x, inputs["length"], chain_offset(turn), tg.exp, tg.math.log)
                z = tg.stop_gradient(y) * 2.0
            with watch("explain"):
                reason = tape.explain(z, x).reason
            if reason != "stop_gradient":
                raise ValueError(f"the reason is {reason!r}")
            return z

        traced.get_concrete_function(x)
        return Phases(watch.seconds)

    return phases


@tg.custom_gradient
def clipped(x):
    return x, lambda g: tg.clip_by_norm(g, 0.5)


class Clipping(tg.Module):
    """A layer whose gradient is clipped."""

    def __init__(self, kernel) -> None:
        super().__init__()
        self.kernel = tg.Variable(kernel)

    @tg.function(input_signature=[tg.TensorSpec([None, 8])])
    def __call__(self, x):
        return clipped(tg.tanh(x @ self.kernel))


def save_custom(inputs: Inputs):
    """The bytes are those of the graph and its descriptions."""

    def phases(turn: int) -> Phases:
        watch, x = Stopwatch(), tg.constant(inputs["x"])
        with tempfile.TemporaryDirectory() as folder:
            with watch("save"):
                tg.saved_model.save(Clipping(inputs["kernel"]), folder)
            with watch("load"):
                loaded = tg.saved_model.load(folder)
            size = sum(p.stat().st_size for p in Path(folder).iterdir() if "weights" not in p.name)
            with watch("call"):
                loaded(x).numpy()
            with watch("gradient"):
                with tg.GradientTape() as tape:
                    tape.watch(x)
                    y = loaded(x)
                slope = tape.gradient(y, x).numpy()
        return Phases(watch.seconds, flat([slope]), {"bytes": size})

    return phases


@cache
def gigabyte_folder() -> tempfile.TemporaryDirectory:
    """A saved model of 32 variables of 32 MiB each."""
    folder = tempfile.TemporaryDirectory()
    module = tg.Module()
    module.layers = [tg.Variable(np.full((8, 2**20), k, np.float32)) for k in range(32)]
    tg.saved_model.save(module, folder.name)
    return folder


def load_gigabyte(inputs: Inputs):
    def phases(turn: int) -> Phases:
        watch, folder = Stopwatch(), gigabyte_folder().name
        with watch("load"):
            loaded = tg.saved_model.load(folder)
        with watch("first variable"):
            first = loaded.layers[7].numpy()
        return Phases(watch.seconds, [float(first[0, 0])])

    return phases


def parse_nodes(inputs: Inputs):
    def of(count: int) -> Phases:
        def long(x):
            for _ in range(count // 2):
                x = tg.sin(x) * 1.01
            return x

        spec = tg.TensorSpec([8])
        text = tg.function(long).get_concrete_function(spec).graph.as_text(locations=True)
        watch = Stopwatch()
        with watch("parse"):
            graph = tg.Graph.from_text(text)
        return Phases(watch.seconds, [float(len(graph.nodes))])

    return lambda turn: of(100_000).beside(of(10_000))


def sampled(step) -> Workload:
    """Compares some of the many entries of the results."""
    return Workload(
        step, wait_for, lambda y: [leaf.numpy().ravel()[::997] for leaf in tg.nest.flatten(y)]
    )


WORKLOADS = {
    "scalar_call": {"tracegraph": scalar_call},
    "array_call": {"tracegraph": scalar_call},
    "array_call_after_tape": {"tracegraph": call_after_tape},
    "array_call_64": {"tracegraph": scalar_call},
    "dict_call": {"tracegraph": dict_call},
    "train_step_12": {"tracegraph": train_step},
    "train_step_300": {"tracegraph": train_step},
    "mlp_step": {"tracegraph": partial(adam_step, perceptron)},
    "converted_step": {"tracegraph": converted_step},
    "convolution_step": {"tracegraph": partial(adam_step, convolutions)},
    "resnet20_step": {"tracegraph": partial(adam_step, resnet)},
    "undecorated_loop": {"tracegraph": undecorated_loop},
    "undecorated_loop_read": {"tracegraph": partial(undecorated_loop, read=True)},
    "jacobian_network": {"tracegraph": jacobian_network},
    "batch_jacobian": {"tracegraph": batch_jacobian},
    "hessian": {"tracegraph": hessian},
    "hessian_vector": {"tracegraph": hessian_vector},
    "lstm": {"tracegraph": lstm},
    "gru_step": {"tracegraph": gru},
    "gru_start": {"tracegraph": lambda inputs: first_step(partial(gru, inputs))},
    "ode_start": {"tracegraph": lambda inputs: first_step(partial(neural_ode, inputs))},
    "transformer_step": {"tracegraph": transformer},
    "bfloat16_step": {"tracegraph": partial(transformer, dtype=tg.bfloat16)},
    "located_step": {
        "tracegraph": partial(transformer, locate_numerics=True),
        "not_located": transformer,
    },
    "transformer_start": {
        "tracegraph": lambda inputs: first_step(partial(transformer, inputs)),
        "not_rolled": lambda inputs: first_step(partial(transformer, inputs, roll=False)),
    },
    "rolled_step": {"tracegraph": transformer, "not_rolled": partial(transformer, roll=False)},
    "budget_step": {
        "tracegraph": partial(transformer, memory_budget=QUARTER),
        "all_kept": transformer,
        "by_hand": partial(transformer, wrap=tg.recompute_grad),
    },
    "while_gradient": {"tracegraph": while_gradient, "loop_alone": loop_alone},
    "scan_step": {"tracegraph": scan_step},
    "two_parts": {"tracegraph": two_parts},
    "jacobian_tridiagonal": {"tracegraph": jacobian_tridiagonal},
    "jacobian_bottleneck": {"tracegraph": jacobian_bottleneck},
    "jacobian_again": {"tracegraph": jacobian_again},
    "pinn_sixth": {"tracegraph": pinn_sixth},
    "trace_order_7": {"tracegraph": trace_high_order},
    "brusselator": {"tracegraph": brusselator},
    "explain_10000": {"tracegraph": explain},
    "save_custom": {"tracegraph": save_custom},
    "load_gigabyte": {"tracegraph": load_gigabyte},
    "parse_100000": {"tracegraph": parse_nodes},
    "chain_100": {"tracegraph": chain},
    "chain_1000": {"tracegraph": chain},
    "chain_5000": {"tracegraph": chain},
    "chain_50000": {"tracegraph": chain_and_tenth},
}
