"""The numbers that every peer starts from, generated from one seed, and the hyper-parameters.

Each function is named after its row and returns only NumPy arrays, so that the peers compute the
same thing and their results can be compared.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

SEED = 20
LEARNING_RATE = 0.01
ADAM_RATE = 0.001
BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-7

DICT_LAYERS = 15  # of four arrays each
MLP_BATCH, MLP_WIDTHS = 128, (784, 512, 512, 10)
TINY_BATCH, TINY_WIDTHS = 16, (8, 16, 4)
CONVOLUTION_BATCH, IMAGE_SIDE, CHANNELS, CLASSES = 64, 28, (1, 32, 64), 10
RESNET_BATCH, RESNET_SIDE, RESNET_WIDTHS, RESNET_BLOCKS = 64, 32, (16, 32, 64), 3
RESNET_EPSILON = 1e-3
TANH_BATCH, TANH_WIDTHS = 64, (256, 256, 256, 10)
PHYSICS_POINTS, PHYSICS_WIDTHS, PHYSICS_ORDER = 256, (1, 32, 32, 1), 6
PHYSICS_RATE = 1e-7  # the sixth derivative makes the loss steep
HIGH_ORDER = 7
GRU_STEPS, GRU_BATCH, CHARACTERS, GRU_WIDTH = 48, 32, 64, 256
ODE_STEPS, ODE_BATCH, ODE_WIDTHS = 100, 16, (8, 32, 8)
WHILE_STEPS, WHILE_RATE = 100_000, 1e-5
SCAN_STEPS = 10_000
MASKED_ROWS, MASKED_WIDTH = 4_096, 64
LSTM_STEPS, LSTM_BATCH, LSTM_WIDTHS = 256, 32, (64, 128)
TOKENS, SEQUENCE, SEQUENCES, MODEL_WIDTH, HEADS = 1_000, 128, 8, 256, 4  # of the transformer
WEIGHT_DECAY, NORM_EPSILON = 0.01, 1e-5
GRID = 100  # points per side: 20,000 unknowns
FEED, CONTROL, DIFFUSION = 1.0, 3.4, 0.1  # of the Brusselator

Inputs = dict[str, Any]


def scalar_call() -> Inputs:
    return {"x": np.asarray(1.5, np.float32)}


def array_call(dtype: type) -> Inputs:
    return {"x": normal(generator(), (16,)).astype(dtype)}


def dict_call() -> Inputs:
    """A nested dict of 60 small arrays, like a model's state."""
    random = generator()
    names = ("kernel", "bias", "scale", "offset")
    return {
        "arrays": {
            f"layer_{index}": {name: normal(random, (8, 8)) for name in names}
            for index in range(DICT_LAYERS)
        }
    }


def train_step(count: int) -> Inputs:
    """`count` tiny variables: measures what a step costs beyond its arithmetic."""
    random = generator()
    return {
        "variables": [normal(random, (4,)) for _ in range(count)],
        "x": normal(random, (4,)),
        "y": normal(random, (4,)),
    }


def perceptron(batch: int, widths: tuple[int, ...]) -> Inputs:
    """A multi-layer perceptron: kernels and biases in turn, one batch, its labels."""
    random = generator()
    variables = []
    for rows, columns in pairwise(widths):
        variables += [scaled(random, (rows, columns), rows), np.zeros(columns, np.float32)]
    return {
        "variables": variables,
        "x": normal(random, (batch, widths[0])),
        "y": random.integers(0, widths[-1], batch).astype(np.int32),
    }


def convolution_step() -> Inputs:
    """Two 3x3 convolutions, one 2x2 max pooling, one dense layer; NHWC and HWIO."""
    random = generator()
    image, first, second = CHANNELS
    features = (IMAGE_SIDE // 2) ** 2 * second
    variables = [
        scaled(random, (3, 3, image, first), 9 * image),
        np.zeros(first, np.float32),
        scaled(random, (3, 3, first, second), 9 * first),
        np.zeros(second, np.float32),
        scaled(random, (features, CLASSES), features),
        np.zeros(CLASSES, np.float32),
    ]
    return {
        "variables": variables,
        "x": normal(random, (CONVOLUTION_BATCH, IMAGE_SIDE, IMAGE_SIDE, image)),
        "y": random.integers(0, CLASSES, CONVOLUTION_BATCH).astype(np.int32),
    }


def resnet_step() -> Inputs:
    """ResNet-20 on 32x32 images in three colours, NHWC and HWIO, in the order of `resnet_of`."""
    random = generator()
    variables = []

    def layer(size, before, width):
        variables.append(scaled(random, (size, size, before, width), size * size * before))

    def normalised_layer(before, width):
        layer(3, before, width)
        variables.extend([np.ones(width, np.float32), np.zeros(width, np.float32)])

    before = RESNET_WIDTHS[0]
    normalised_layer(3, before)
    for width in RESNET_WIDTHS:
        for _ in range(RESNET_BLOCKS):
            if width != before:
                layer(1, before, width)
            normalised_layer(before, width)
            normalised_layer(width, width)
            before = width
    variables += [scaled(random, (before, CLASSES), before), np.zeros(CLASSES, np.float32)]
    return {
        "variables": variables,
        "x": normal(random, (RESNET_BATCH, RESNET_SIDE, RESNET_SIDE, 3)),
        "y": random.integers(0, CLASSES, RESNET_BATCH).astype(np.int32),
    }


def resnet_of(variables, x, convolve, normalise, relu, pool):
    """A residual network (He and others 2015), written with a peer's functions.

    `convolve(x, kernel, stride)` pads as "SAME", `normalise(x, scale, offset)` takes mean and
    variance of the batch, and `pool(x)` takes the mean over the pixels.
    """
    rest = iter(variables)
    kernel = next(rest)
    x = relu(normalise(convolve(x, kernel, 1), next(rest), next(rest)))
    for stage in range(len(RESNET_WIDTHS)):
        for block in range(RESNET_BLOCKS):
            stride = 2 if stage > 0 and block == 0 else 1
            shortcut = convolve(x, next(rest), stride) if stride > 1 else x
            x = relu(normalise(convolve(x, next(rest), stride), next(rest), next(rest)))
            x = normalise(convolve(x, next(rest), 1), next(rest), next(rest))
            x = relu(x + shortcut)
    return pool(x) @ next(rest) + next(rest)


def chain(length: int) -> Inputs:
    return {"x": normal(generator(), (16,)), "length": length}


def chain_of(x, length: int, offset: float, exp, log):
    """`length` elementwise operations in a row, written with a peer's `exp` and `log`.

    The derivative neither vanishes nor overflows, at any length.
    """
    rules = (exp, lambda value: value + offset, log)
    for index in range(length):
        x = rules[index % len(rules)](x)
    return x


def chain_offset(turn: int) -> float:
    """A constant that differs in each turn, so that no cache has seen the chain before."""
    return 1.0 - 1e-4 * (turn + 1)


def two_layers(batch: int, widths: tuple[int, ...]) -> Inputs:
    """The kernels of a small network of hyperbolic tangents, and a batch."""
    random = generator()
    kernels = [scaled(random, shape, shape[0]) for shape in pairwise(widths)]
    return {"kernels": kernels, "x": normal(random, (batch, widths[0]))}


def hessian() -> Inputs:
    """A layer of 500 parameters in one vector, and a batch."""
    random = generator()
    return {"parameters": normal(random, (500,)), "x": normal(random, (32, 24))}


def hessian_vector() -> Inputs:
    """A perceptron, and one direction for all of its parameters."""
    inputs = perceptron(TANH_BATCH, TANH_WIDTHS)
    random = np.random.default_rng(SEED + 1)
    directions = [normal(random, variable.shape) for variable in inputs["variables"]]
    return inputs | {"directions": directions}


def vector(size: int) -> Inputs:
    return {"x": normal(generator(), (size,))}


def high_order() -> Inputs:
    return {"x": np.asarray(0.7, np.float32)}


def physics() -> Inputs:
    """A network from a point to a number, with weights so small that training is stable."""
    variables = perceptron(1, PHYSICS_WIDTHS)["variables"]
    x = np.linspace(-np.pi, np.pi, PHYSICS_POINTS, dtype=np.float32)
    return {"variables": [variable / 2 for variable in variables], "x": x}


def brusselator() -> Inputs:
    """Two substances on a square grid, and a vector to multiply the Jacobian by."""
    random = generator()
    shape = (2, GRID, GRID)
    return {"x": normal(random, shape), "direction": normal(random, (2 * GRID * GRID,))}


def rates_of(state, roll, stack):
    """How fast the two substances change, on a torus, with a peer's `roll` and `stack`."""
    u, v = state[0], state[1]
    rows = roll(state, 1, 1) + roll(state, -1, 1)
    columns = roll(state, 1, 2) + roll(state, -1, 2)
    reaction = u * u * v
    change = stack([FEED - (CONTROL + 1) * u + reaction, CONTROL * u - reaction])
    return change + DIFFUSION * (rows + columns - 4 * state)


def band_of(matrix: np.ndarray) -> list[np.ndarray]:
    """The entries of the three diagonals, row by row, and the sum of all."""
    rows, columns = np.indices(matrix.shape, sparse=True)
    return [matrix[np.abs(rows - columns) <= 1], np.sum(matrix, dtype=np.float64)]


def product_of(values, rows, columns, direction) -> np.ndarray:
    """A sparse matrix times a vector: the same whatever the order of its entries."""
    terms = np.asarray(values, np.float64) * direction[columns]
    return np.bincount(rows, terms, minlength=direction.size)


def bottleneck() -> Inputs:
    random = generator()
    down, up = scaled(random, (1_000, 4), 1_000), scaled(random, (4, 1_000), 4)
    return {"down": down, "up": up, "x": normal(random, (1_000,))}


def generator() -> np.random.Generator:
    return np.random.default_rng(SEED)


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


def scaled(random: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    return normal(random, shape) * np.float32((2 / fan_in) ** 0.5)


def lstm() -> Inputs:
    """One LSTM layer: kernels of input and state, the bias; a batch of sequences, steps first."""
    random = generator()
    features, width = LSTM_WIDTHS
    return {
        "variables": [
            scaled(random, (features, 4 * width), 8 * features),
            scaled(random, (width, 4 * width), 8 * width),
            np.zeros(4 * width, np.float32),
        ],
        "x": normal(random, (LSTM_STEPS, LSTM_BATCH, features)),
        "start": np.zeros((LSTM_BATCH, width), np.float32),
    }


def gru() -> Inputs:
    """One GRU layer over characters: each character's contribution to the gates, the kernel of the
    state, and the output layer; characters with their successors, steps first."""
    random = generator()
    characters = random.integers(0, CHARACTERS, (GRU_STEPS + 1, GRU_BATCH)).astype(np.int32)
    return {
        "variables": [
            scaled(random, (CHARACTERS, 3 * GRU_WIDTH), 8 * CHARACTERS),
            scaled(random, (GRU_WIDTH, 3 * GRU_WIDTH), 8 * GRU_WIDTH),
            scaled(random, (GRU_WIDTH, CHARACTERS), 8 * GRU_WIDTH),
        ],
        "x": characters[:-1],
        "y": characters[1:],
        "start": np.zeros((GRU_BATCH, GRU_WIDTH), np.float32),
    }


def transformer(layers: int) -> Inputs:
    """A transformer that predicts the next token: kernels and biases in the order of use, and
    tokens with their successors."""
    random, width = generator(), MODEL_WIDTH

    def dense(rows: int, columns: int) -> list[np.ndarray]:
        return [scaled(random, (rows, columns), 8 * rows), np.zeros(columns, np.float32)]

    def norm() -> list[np.ndarray]:
        return [np.ones(width, np.float32), np.zeros(width, np.float32)]

    variables = [scaled(random, (count, width), 8 * width) for count in (TOKENS, SEQUENCE)]
    for _ in range(layers):
        variables += norm() + dense(width, 3 * width) + dense(width, width)
        variables += norm() + dense(width, 4 * width) + dense(4 * width, width)
    variables += norm() + dense(width, TOKENS)
    tokens = random.integers(0, TOKENS, (SEQUENCES, SEQUENCE + 1)).astype(np.int32)
    rows, columns = np.indices((SEQUENCE, SEQUENCE), sparse=True)
    hidden = np.where(columns > rows, np.float32(-1e9), np.float32(0))
    return {"variables": variables, "x": tokens[:, :-1], "y": tokens[:, 1:], "hidden": hidden}


def while_gradient() -> Inputs:
    """A loop of x / (1 + h x), n steps of which are x / (1 + n h x), and the derivative of that."""
    x = 0.7
    whole = 1.0 + WHILE_STEPS * WHILE_RATE * x
    return {
        "x": np.asarray(x, np.float32),
        "count": np.asarray(WHILE_STEPS, np.int32),
        "slope": np.asarray(1.0 / whole**2, np.float32),
    }


def two_parts() -> Inputs:
    """Rows, a number by which each is selected or not, and a kernel."""
    random = generator()
    return {
        "x": normal(random, (MASKED_ROWS, MASKED_WIDTH)),
        "score": normal(random, (MASKED_ROWS,)),
        "kernel": scaled(random, (MASKED_WIDTH, MASKED_WIDTH), MASKED_WIDTH),
    }


def runge_kutta(field, x):
    """One fourth-order step along a peer's vector field."""
    h = 1.0 / ODE_STEPS
    k1 = field(x)
    k2 = field(x + h / 2.0 * k1)
    k3 = field(x + h / 2.0 * k2)
    k4 = field(x + h * k3)
    return x + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def save_custom() -> Inputs:
    """A small model whose gradient is clipped by a custom rule."""
    random = generator()
    return {"kernel": normal(random, (8, 8)), "x": normal(random, (4, 8))}


INPUTS = {
    "scalar_call": scalar_call,
    "array_call": partial(array_call, np.float32),
    "array_call_after_tape": partial(array_call, np.float32),
    "array_call_64": partial(array_call, np.float64),
    "dict_call": dict_call,
    "train_step_12": partial(train_step, 12),
    "train_step_300": partial(train_step, 300),
    "mlp_step": partial(perceptron, MLP_BATCH, MLP_WIDTHS),
    "converted_step": partial(perceptron, MLP_BATCH, MLP_WIDTHS),
    "convolution_step": convolution_step,
    "resnet20_step": resnet_step,
    "undecorated_loop": partial(perceptron, TINY_BATCH, TINY_WIDTHS),
    "undecorated_loop_read": partial(perceptron, TINY_BATCH, TINY_WIDTHS),
    "jacobian_network": partial(two_layers, 32, (64, 64, 10)),
    "batch_jacobian": partial(two_layers, 256, (32, 32, 32)),
    "hessian": hessian,
    "hessian_vector": hessian_vector,
    "jacobian_tridiagonal": partial(vector, 2_000),
    "jacobian_bottleneck": bottleneck,
    "jacobian_again": partial(vector, 2),
    "lstm": lstm,
    "gru_step": gru,
    "gru_start": gru,
    "ode_start": partial(two_layers, ODE_BATCH, ODE_WIDTHS),
    "transformer_step": partial(transformer, 4),
    "bfloat16_step": partial(transformer, 4),
    "located_step": partial(transformer, 4),
    "transformer_start": partial(transformer, 12),
    "rolled_step": partial(transformer, 12),
    "budget_step": partial(transformer, 24),
    "while_gradient": while_gradient,
    "scan_step": partial(vector, SCAN_STEPS),
    "two_parts": two_parts,
    "pinn_sixth": physics,
    "trace_order_7": high_order,
    "brusselator": brusselator,
    "explain_10000": partial(chain, 10_000),
    "save_custom": save_custom,
    "load_gigabyte": dict,
    "parse_100000": dict,
    "chain_100": partial(chain, 100),
    "chain_1000": partial(chain, 1_000),
    "chain_5000": partial(chain, 5_000),
    "chain_50000": partial(chain, 50_000),
}
