"""The workloads in PyTorch, eager; `torch.compile` on request, since it compiles for minutes."""

import os
from functools import partial

import torch
from torch.nn import functional

from benchmarks.inputs import (
    ADAM_RATE,
    BETA_1,
    BETA_2,
    CHANNELS,
    CLASSES,
    EPSILON,
    HEADS,
    IMAGE_SIDE,
    LEARNING_RATE,
    NORM_EPSILON,
    RESNET_EPSILON,
    WEIGHT_DECAY,
    Inputs,
    band_of,
    chain_of,
    chain_offset,
    resnet_of,
)
from benchmarks.workload import Phases, Stopwatch, Workload, first_step, flat

VERSION = torch.__version__
DEVICE = {"cpu": "cpu", "gpu": "cuda"}[os.environ.get("BENCHMARKS_DEVICE", "cpu")]


def tensor_of(array) -> torch.Tensor:
    """The array on the device; on a CPU it shares the memory of the array."""
    return torch.from_numpy(array).to(DEVICE)


def eager(function):
    return function


def scalar_call(inputs: Inputs, mode) -> Workload:
    x = tensor_of(inputs["x"])
    increment = mode(lambda x: x + 1)
    return workload(lambda: increment(x))


def dict_call(inputs: Inputs, mode) -> Workload:
    def increment(arrays):
        return {
            layer: {name: array + 1 for name, array in members.items()}
            for layer, members in arrays.items()
        }

    arrays = {
        layer: {name: tensor_of(array) for name, array in members.items()}
        for layer, members in inputs["arrays"].items()
    }
    increment = mode(increment)
    return workload(lambda: increment(arrays))


def train_step(inputs: Inputs, mode) -> Workload:
    variables = variables_of(inputs["variables"])
    x, y = tensor_of(inputs["x"]), tensor_of(inputs["y"])
    loss_of = mode(lambda: sum(torch.mean(torch.square(v * x - y)) for v in variables))

    def step():
        loss = loss_of()
        descend(variables, torch.autograd.grad(loss, variables))
        return loss.detach()

    return workload(step)


def adam_step(model, inputs: Inputs, mode) -> Workload:
    """`fused` is the fastest Adam in PyTorch.

    It adds epsilon after the bias correction, not before: a difference of 1e-7 in places.
    """
    variables, x = model.prepare(inputs)
    y = tensor_of(inputs["y"]).long()
    optimizer = torch.optim.Adam(variables, ADAM_RATE, (BETA_1, BETA_2), EPSILON, fused=True)
    loss_of = mode(lambda: functional.cross_entropy(model.logits(variables, x), y))

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return workload(step)


def undecorated_loop(inputs: Inputs, read: bool = False) -> Workload:
    variables, x = Perceptron.prepare(inputs)
    y = tensor_of(inputs["y"]).long()

    def step():
        loss = functional.cross_entropy(Perceptron.logits(variables, x), y)
        descend(variables, torch.autograd.grad(loss, variables))
        return float(loss) if read else loss.detach()

    return workload(step)


def chain(inputs: Inputs):
    """`torch.compile` traces, lowers and compiles in one go."""

    def phases(turn: int) -> Phases:
        torch.compiler.reset()  # it stops compiling code that it has seen too often
        x = tensor_of(inputs["x"]).requires_grad_()
        length, offset = inputs["length"], chain_offset(turn)
        total = torch.compile(lambda x: chain_of(x, length, offset, torch.exp, torch.log).sum())
        watch = Stopwatch()
        with watch("compile"):
            y = total(x)
            y.backward()
        return Phases(watch.seconds, flat((y.detach(), x.grad)))

    return phases


def network(kernels, x):
    for kernel in kernels:
        x = torch.tanh(x @ kernel)
    return x


def jacobian_network(inputs: Inputs, mode) -> Workload:
    """Everything a function uses is an argument, as in the other peers."""
    first, second = map(tensor_of, inputs["kernels"])
    x = tensor_of(inputs["x"])
    jacobian = mode(torch.func.jacrev(lambda kernel, second, x: network([kernel, second], x)))
    return sampled(lambda: jacobian(first, second, x))


def batch_jacobian(inputs: Inputs, mode) -> Workload:
    kernels = [tensor_of(kernel) for kernel in inputs["kernels"]]
    x = tensor_of(inputs["x"])
    rows = torch.func.jacrev(network, argnums=1)
    jacobian = mode(torch.func.vmap(rows, in_dims=(None, 0)))
    return sampled(lambda: jacobian(kernels, x))


def layer_loss(parameters, x):
    kernel, bias = parameters[:480].reshape(24, 20), parameters[480:]
    return torch.mean(torch.square(torch.tanh(x @ kernel + bias)))


def hessian(inputs: Inputs, mode) -> Workload:
    parameters, x = tensor_of(inputs["parameters"]), tensor_of(inputs["x"])
    second = mode(torch.func.hessian(layer_loss))
    return sampled(lambda: second(parameters, x))


def hessian_vector(inputs: Inputs, mode) -> Workload:
    parameters = [tensor_of(value) for value in inputs["variables"]]
    directions = [tensor_of(value) for value in inputs["directions"]]
    x, y = tensor_of(inputs["x"]), tensor_of(inputs["y"]).long()

    def product(parameters, directions, x, y):
        def loss(parameters):
            return functional.cross_entropy(Perceptron.logits(parameters, x, torch.tanh), y)

        return torch.func.jvp(torch.func.grad(loss), (parameters,), (directions,))[1]

    product = mode(product)
    return sampled(lambda: product(parameters, directions, x, y))


def lstm(inputs: Inputs, mode) -> Workload:
    variables = variables_of(inputs["variables"])
    x, start = tensor_of(inputs["x"]), tensor_of(inputs["start"])

    def loss_of(x, h, c):
        kernel, recurrent, bias = variables
        states = []
        for projected in torch.unbind(x @ kernel + bias):
            i, f, g, o = torch.chunk(projected + h @ recurrent, 4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.mean(torch.square(torch.stack(states)))

    loss_of = mode(loss_of)

    def step():
        loss = loss_of(x, start, start)
        return [loss.detach(), *torch.autograd.grad(loss, variables)]

    return sampled(step)


def residual(u):
    inner = u[:-2] - 2 * u[1:-1] + u[2:]
    ends = u[1:2] - 2 * u[:1], u[-2:-1] - 2 * u[-1:]
    return torch.concatenate([ends[0], inner, ends[1]]) + u**3


def jacobian_tridiagonal(inputs: Inputs, mode) -> Workload:
    x = tensor_of(inputs["x"])
    jacobian = mode(torch.func.jacfwd(residual))
    return Workload(lambda: jacobian(x), wait, lambda y: band_of(y.cpu().numpy()))


def jacobian_bottleneck(inputs: Inputs, mode) -> Workload:
    down, up, x = (tensor_of(inputs[name]) for name in ("down", "up", "x"))
    bottleneck = lambda x, down, up: torch.sin(torch.tanh(x[None] @ down) @ up)[0]  # noqa: E731
    jacobian = mode(torch.func.jacrev(bottleneck))
    return sampled(lambda: jacobian(x, down, up))


def jacobian_again(inputs: Inputs) -> Workload:
    x = tensor_of(inputs["x"])
    jacobian = torch.func.jacrev(lambda x: torch.sin(x) * torch.sum(x * x))
    return workload(lambda: jacobian(x))


def sampled(step) -> Workload:
    """Compares some of the many entries of the results."""
    observe = lambda y: [x.detach().cpu().numpy().ravel()[::997] for x in leaves(y)]  # noqa: E731
    return Workload(step, block=wait, observe=observe)


class Perceptron:
    @staticmethod
    def prepare(inputs: Inputs):
        return variables_of(inputs["variables"]), tensor_of(inputs["x"])

    @staticmethod
    def logits(variables, x, activation=functional.relu):
        *hidden, kernel, bias = variables
        for weights, offset in zip(hidden[::2], hidden[1::2]):
            x = activation(x @ weights + offset)
        return x @ kernel + bias


class Convolutions:
    """NCHW, PyTorch's layout; everything is transposed once, before the first step."""

    @staticmethod
    def prepare(inputs: Inputs):
        first, first_bias, second, second_bias, kernel, bias = inputs["variables"]
        first, second = first.transpose(3, 2, 0, 1), second.transpose(3, 2, 0, 1)
        side = IMAGE_SIDE // 2
        kernel = kernel.reshape(side, side, CHANNELS[-1], CLASSES).transpose(2, 0, 1, 3)
        kernel = kernel.reshape(-1, CLASSES)
        variables = variables_of([first, first_bias, second, second_bias, kernel, bias])
        return variables, tensor_of(inputs["x"].transpose(0, 3, 1, 2).copy())

    @staticmethod
    def logits(variables, x):
        first, first_bias, second, second_bias, kernel, bias = variables
        x = functional.relu(functional.conv2d(x, first, first_bias, padding="same"))
        x = functional.relu(functional.conv2d(x, second, second_bias, padding="same"))
        x = functional.max_pool2d(x, 2)
        return x.flatten(1) @ kernel + bias


def transformer(
    inputs: Inputs, mode, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> Workload:
    """Attention is PyTorch's own function, and `fused` its fastest AdamW. `dtype` is that of what
    is computed; variables and losses are float32."""
    variables = variables_of(inputs["variables"])
    x, y = (tensor_of(inputs[name].copy()).long() for name in ("x", "y"))
    optimizer = torch.optim.AdamW(
        variables, ADAM_RATE, (BETA_1, BETA_2), EPSILON, WEIGHT_DECAY, fused=True
    )

    def loss():
        logits = transformed([variable.to(dtype) for variable in variables], x).float()
        return scale * functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    loss_of = mode(loss)

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return workload(step)


def transformed(variables, x):
    embedding, positions, *rest = variables
    h = functional.embedding(x, embedding) + positions
    while len(rest) > 4:
        (scale, shift, *attention), rest = rest[:6], rest[6:]
        h = h + attended(normalised(h, scale, shift), *attention)
        (scale, shift, up, up_bias, down, down_bias), rest = rest[:6], rest[6:]
        inner = functional.gelu(normalised(h, scale, shift) @ up + up_bias, approximate="tanh")
        h = h + inner @ down + down_bias
    scale, shift, kernel, bias = rest
    return normalised(h, scale, shift) @ kernel + bias


def normalised(x, scale, shift):
    return functional.layer_norm(x, x.shape[-1:], scale, shift, NORM_EPSILON)


def attended(x, kernel, bias, out, out_bias):
    parts = (x @ kernel + bias).unflatten(-1, (3, HEADS, -1))
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2) @ out + out_bias


class ResNet:
    """NCHW too."""

    @staticmethod
    def prepare(inputs: Inputs):
        variables = [
            value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
            for value in inputs["variables"]
        ]
        return variables_of(variables), tensor_of(inputs["x"].transpose(0, 3, 1, 2).copy())

    @staticmethod
    def logits(variables, x):
        def normalise(x, scale, offset):
            return functional.batch_norm(
                x, None, None, scale, offset, training=True, eps=RESNET_EPSILON
            )

        return resnet_of(
            variables, x, convolution, normalise, functional.relu, lambda x: x.mean((2, 3))
        )


def convolution(x, kernel, stride):
    """Padded like "SAME" elsewhere: with a stride, only after the last row and column."""
    if stride == 1:
        return functional.conv2d(x, kernel, padding="same")
    behind = kernel.shape[-1] // 2
    return functional.conv2d(functional.pad(x, (0, behind, 0, behind)), kernel, stride=stride)


def descend(variables, gradients) -> None:
    with torch.no_grad():
        for variable, gradient in zip(variables, gradients):
            variable.sub_(gradient, alpha=LEARNING_RATE)


def workload(step) -> Workload:
    return Workload(
        step, block=wait, observe=lambda y: [torch.as_tensor(x).detach().cpu() for x in leaves(y)]
    )


def wait(output) -> None:
    """On the CPU PyTorch waits by itself."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def leaves(output) -> list:
    if isinstance(output, dict):
        output = [output[name] for name in sorted(output)]
    if not isinstance(output, list):
        return [output]
    return [leaf for member in output for leaf in leaves(member)]


def variables_of(values) -> list:
    """Copies, since tensors share the memory of arrays, and the steps update in place."""
    return [tensor_of(value.copy()).requires_grad_() for value in values]


def modes(factory) -> dict:
    return {
        "torch": partial(factory, mode=eager),
        "torch_compile": partial(factory, mode=torch.compile),
    }


WORKLOADS = {
    "scalar_call": modes(scalar_call),
    "array_call": modes(scalar_call),
    "array_call_64": modes(scalar_call),
    "dict_call": modes(dict_call),
    "train_step_12": modes(train_step),
    "train_step_300": modes(train_step),
    "mlp_step": modes(partial(adam_step, Perceptron)),
    "convolution_step": modes(partial(adam_step, Convolutions)),
    "resnet20_step": modes(partial(adam_step, ResNet)),
    "undecorated_loop": {"torch": undecorated_loop},
    "undecorated_loop_read": {"torch": partial(undecorated_loop, read=True)},
    "jacobian_network": modes(jacobian_network),
    "batch_jacobian": modes(batch_jacobian),
    "hessian": modes(hessian),
    "hessian_vector": modes(hessian_vector),
    "lstm": {"torch": partial(lstm, mode=eager)},
    "transformer_step": modes(transformer),
    "bfloat16_step": modes(partial(transformer, dtype=torch.bfloat16)),
    "transformer_start": {"torch": lambda inputs: first_step(partial(transformer, inputs, eager))},
    "jacobian_tridiagonal": modes(jacobian_tridiagonal),
    "jacobian_bottleneck": modes(jacobian_bottleneck),
    "jacobian_again": {"torch": jacobian_again},
    "chain_100": {"torch_compile": chain},
    "chain_1000": {"torch_compile": chain},
}
