"""What devices send to each other in a training step, on 8, 64 and 512 devices that are not there.

The transformer of train_transformer.py is compiled for each mesh, in one process whose CPU pretends
to be all of these devices; nothing is trained. Each device has as many windows of text on every
mesh. For each plan of that example (all weights on each device; a part of each weight, as in ZeRO;
heads and inner width divided among 4 devices, as in Megatron), the table has the bytes that a
device sends, by the formula of the literature and in the program that XLA compiled:

    python examples/weak_scaling.py

Where the two differ, the last lines say why.
"""

import argparse
import math
import os
import sys
from typing import NamedTuple

import common
import train_transformer as language

import tracegraph as tg

MODEL = 4  # devices that share the heads
WINDOWS = 8  # of each device; so activations are larger than weights, as in practice
FLOAT = 4  # bytes
#: Machine code is not run here, so XLA need not make it fast.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

NOTES = """\
gradients, data and tensor: the embedding is also the last kernel, so it has two gradients, and the
program sums each over the devices before it adds them. W/m: biases that follow a sum over heads or
over the inner width, scales of normalisation and positions are whole on each device.
activations: where the vocabulary is divided, the loss also sums three numbers per token.
activations, tensor: the program also sums the cotangents of the input of attention three times, as
they come by the queries, the keys and the values, where once would do.
weights, zero: the gradient needs neither biases nor positions again, and scales of normalisation
are kept from the loss to the gradient. These are gathered once, and the biases of heads never:
each device has them.
gradients, zero: XLA for CPUs makes no reduce-scatter here. It sums by an all-reduce, which sends
twice as much, and each device keeps a part. So here, too, the embedding counts twice."""


class Row(NamedTuple):
    """The bytes that a device sends for one purpose."""

    purpose: str
    formula: str
    expected: float
    sent: int


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", type=sizes, default="8,64,512", help="of each mesh; default: %(default)s"
    )
    parser.add_argument(
        "--width", type=language.width, default=512, help="of the model; default: 512"
    )
    parser.add_argument("--layers", type=common.positive, default=1, help="default: 1")
    known, _ = parser.parse_known_args(arguments)
    pretend = f"--xla_force_host_platform_device_count={max(known.devices)}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS} {pretend}"  # read once
    options = parser.options(arguments)
    for count in (*options.devices, MODEL * language.HEAD_WIDTH):
        if options.width % count:
            parser.error(f"argument --width: {options.width} is not a multiple of {count}")
    return options


def sizes(text):
    numbers = [common.positive(number) for number in text.split(",")]
    for number in numbers:
        if number % MODEL:
            raise argparse.ArgumentTypeError(f"{number} is not a multiple of {MODEL}")
    return numbers


def costs_of(plan, mesh, model):
    """What a device holds and sends in a step of the model, divided as the plan says."""
    layout = tg.distribute.Layout(mesh, [plan.windows, None])
    for part in (model, *model.blocks):
        part.layout = tg.distribute.Layout(mesh, [plan.windows, None, None])
    if plan.weights:
        with mesh:
            model.apply_layouts(plan.weights)
    optimizer = tg.optimizers.SGD(0.1)  # no optimizer adds to what is sent

    @tg.function
    def step(windows):
        with tg.GradientTape() as tape:
            loss = model.loss(windows)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    shape = [WINDOWS * mesh.size, language.CONTEXT + 1]
    concrete = step.get_concrete_function(tg.TensorSpec(shape, tg.int32, layout=layout))
    return concrete.summary(devices=True).devices


def rows_of(name, costs, mesh, options):
    """The literature beside the program. Each formula is that of ring algorithms, where an
    all-reduce among n devices sends each byte 2 (n - 1) / n times, and an all-gather or a
    reduce-scatter half as often."""

    def ring(devices):
        return (devices - 1) / devices

    def sent(devices, *kinds):
        return sum(x.sent for x in costs.collectives if x.devices == devices and x.kind in kinds)

    own, whole = costs.bytes_of("variable")
    every, data = mesh.size, mesh.shape["data"]
    if name == "data":
        rows = [Row("gradients", "2 (p-1)/p W", 2 * ring(every) * whole, sent(every, "all-reduce"))]
    elif name == "zero":
        summed = sent(every, "reduce-scatter", "all-reduce")
        rows = [
            Row(
                "weights, twice", "2 (p-1)/p W", 2 * ring(every) * whole, sent(every, "all-gather")
            ),
            Row("gradients", "(p-1)/p W", ring(every) * whole, summed),
        ]
    else:
        activations = MODEL * WINDOWS * language.CONTEXT * options.width * FLOAT
        times = 4 * options.layers + 2  # and once each for the embedding and the logits
        expected = 2 * ring(MODEL) * times * activations
        rows = [
            Row("activations", "2 (m-1)/m (4L+2) A", expected, sent(MODEL, "all-reduce")),
            Row("gradients", "2 (d-1)/d W/m", 2 * ring(data) * own, sent(data, "all-reduce")),
        ]
    return [*rows, Row("the rest", "", 0, costs.sent - sum(row.sent for row in rows))]


def print_rows(name, count, rows):
    for row in rows:
        ratio = f"{row.sent / row.expected:8.2f}" if row.expected else ""
        print(
            f"{name:8}{count:>8}  {row.purpose:16}{row.formula:20}"
            f"{round(row.expected):>14,}{row.sent:>14,}{ratio}"
        )


def main(arguments=None):
    options = parsed_arguments(sys.argv[1:] if arguments is None else arguments)
    language.LAYERS = options.layers
    tg.random.set_seed(options.seed)
    model = language.Transformer(language.VOCABULARY, options.width)
    print(f"{'plan':8}{'devices':>8}  {'bytes sent for':36}{'formula':>14}{'XLA':>14}   ratio")
    for name in ("data", "tensor", "zero"):  # the last one gives every weight a layout
        for count in options.devices:
            mesh = tg.distribute.Mesh({"data": count // MODEL, "model": MODEL})
            costs = costs_of(language.PLANS[name], mesh, model)
            print_rows(name, count, rows_of(name, costs, mesh, options))
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    print(
        f"\n{FLOAT * weights:,} bytes of weights W, {options.layers} layer(s) L, p devices in "
        f"d rows of m = {MODEL}\nA: the bytes of activations [{MODEL * WINDOWS}, "
        f"{language.CONTEXT}, {options.width}], which {MODEL} devices share\n\n{NOTES}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
