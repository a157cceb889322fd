"""Trains a transformer language model on Python's own manual, and has it write.

The text is what `help()` shows. A vocabulary of frequent strings is made of it at the start (byte
pair encoding). Windows of the text, forward pass, gradients and optimizer are one decorated
function. Another one samples: its loop keeps the keys and values of all tokens so far, so each new
token costs the same, wherever it stands.

    python examples/train_transformer.py --out out

writes loss.png and prints a sample. Ctrl-C ends the training early.

Several devices share the work where there is a mesh; PLANS has what is divided among them, and the
rest of this file knows nothing of it. To try it on a CPU that pretends to be 8 devices:

    python examples/train_transformer.py --mesh data=4,model=2 --virtual-devices 8

trains on one device as well, and prints how far the losses are apart and what devices exchange. Two
processes do the same, each with half of the devices:

    python -m tracegraph launch -n 2 examples/train_transformer.py --mesh data=4,model=2 \\
        --virtual-devices 8
"""

import argparse
import math
import os
import pydoc_data.topics
import re
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tracegraph as tg

# What `python -m tracegraph launch` says: how many processes there are, and which one this is.
PROCESSES = int(os.environ.get("TRACEGRAPH_PROCESSES", "1"))
IS_FIRST = os.environ.get("TRACEGRAPH_PROCESS", "0") == "0"
LAYERS = 4
CONTEXT = 128  # tokens that the model sees at once
VOCABULARY = 512
HEAD_WIDTH = 32
DROPOUT = 0.1
RATE, WEIGHT_DECAY = 4e-3, 0.1
WARM_UP = 0.1  # of the steps
HELD_OUT = 0.1  # of the text
HELD_OUT_WINDOWS = 64
TELL_EVERY = 25  # steps
TEMPERATURE = 0.5  # below 1, what is likely becomes more likely
PROMPT = "The "
EVERY = ("data", "model")  # both axes of the mesh: one piece for each device


class Plan(NamedTuple):
    """What is divided among the devices: the windows of a batch, with all activations, and weights
    by their paths."""

    windows: tuple[str, ...]
    weights: dict[str, list]


PLANS = {
    # Each device has all weights, and its part of the batch.
    "data": Plan(EVERY, {}),
    # So it has, but keeps a part of each weight, and of what the optimizer keeps for it (ZeRO). The
    # biases of heads stay whole: they are small, and hundreds of devices divide neither axis.
    "zero": Plan(
        EVERY,
        {
            "*/output_dense/kernel": [None, None, EVERY],
            "*/output_dense/bias": [EVERY],
            "*/attention/*/kernel": [EVERY, None, None],
            "*/attention/*/bias": [None, None],
            "*/kernel": [EVERY, None],
            "tokens/embeddings": [EVERY, None],
            "positions/embeddings": [None, EVERY],
            "*": [EVERY],
        },
    ),
    # The heads of attention and the inner width are divided along one axis, the batch by the other.
    "tensor": Plan(
        ("data",),
        {
            "*/output_dense/kernel": ["model", None, None],
            "*/output_dense/bias": [None],
            "*/attention/*/kernel": [None, "model", None],
            "*/attention/*/bias": ["model", None],
            "*/layers/0/kernel": [None, "model"],
            "*/layers/0/bias": ["model"],
            "*/layers/1/kernel": ["model", None],
            "tokens/embeddings": ["model", None],
        },
    ),
}
PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s+")  # no token reaches from one piece into the next


class Vocabulary:
    """Strings by numbers: characters first, then each joined of two that stand before it."""

    def __init__(self, alphabet):
        self.strings = list(alphabet)
        self.ranks = {}  # of pairs, the most frequent first

    def learn(self, text, size):
        """Joins the most frequent pair of neighbours, again and again, up to `size` strings."""
        counts = Counter(PIECE.findall(text))
        pieces = {piece: list(piece) for piece in counts}
        pairs, places = Counter(), defaultdict(set)

        def count(piece, sign):
            for pair in pairwise(pieces[piece]):
                pairs[pair] += sign * counts[piece]
                places[pair].add(piece)

        for piece in pieces:
            count(piece, 1)
        while len(self.strings) < size:
            best = max(pairs, key=pairs.__getitem__)
            self.ranks[best] = len(self.ranks)
            self.strings.append("".join(best))
            for piece in places.pop(best):
                count(piece, -1)
                pieces[piece] = joined(pieces[piece], best)
                count(piece, 1)

    def encode(self, text):
        """The numbers of the strings that make up the text, i32[tokens]."""
        numbers = {string: number for number, string in enumerate(self.strings)}
        pieces = PIECE.findall(text)
        tokens = {piece: [numbers[s] for s in self.split(piece)] for piece in set(pieces)}
        return np.array([number for piece in pieces for number in tokens[piece]], np.int32)

    def split(self, piece):
        """The piece as strings: pairs are joined in the order in which they were learned."""
        strings = list(piece)
        while known := [pair for pair in pairwise(strings) if pair in self.ranks]:
            strings = joined(strings, min(known, key=self.ranks.__getitem__))
        return strings

    def decode(self, tokens):
        return "".join(self.strings[token] for token in tokens)


def joined(strings, pair):
    """The strings with each occurrence of the pair as one string."""
    result = []
    for string in strings:
        if result and (result[-1], string) == pair:
            result[-1] += string
        else:
            result.append(string)
    return result


class Text(NamedTuple):
    """A text as tokens, and how many tokens a character is on average."""

    vocabulary: Vocabulary
    training: np.ndarray
    held_out: np.ndarray
    tokens_per_character: float


def load_text():
    """Python's manual; what is held out decides nothing in the vocabulary but the alphabet."""
    text = "\n".join(pydoc_data.topics.topics.values())
    end = round(len(text) * (1 - HELD_OUT))
    vocabulary = Vocabulary(sorted(set(text)))
    vocabulary.learn(text[:end], VOCABULARY)
    training, held_out = vocabulary.encode(text[:end]), vocabulary.encode(text[end:])
    return Text(vocabulary, training, held_out, len(held_out) / (len(text) - end))


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=common.positive, default=300, help="of training; default: 300"
    )
    parser.add_argument("--width", type=width, default=128, help="of the model; default: 128")
    parser.add_argument(
        "--batch", type=common.positive, default=8, help="windows of a step; default: 8"
    )
    parser.add_argument(
        "--mesh", type=mesh_shape, default="data=1,model=1", help="devices; default: %(default)s"
    )
    parser.add_argument(
        "--plan", choices=PLANS, default="tensor", help="what is divided; default: %(default)s"
    )
    parser.add_argument(
        "--virtual-devices", type=common.positive, help="that all CPUs pretend to be together"
    )
    parser.add_argument(
        "--costs-alone", action="store_true", help="compile, print what devices exchange, and stop"
    )
    if "--virtual-devices" in arguments:  # before JAX starts, which looks once
        known, _ = parser.parse_known_args(arguments)
        pretend = f"--xla_force_host_platform_device_count={known.virtual_devices // PROCESSES}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {pretend}"
    if PROCESSES > 1:
        tg.distribute.initialize()
    return parser.options(arguments)


def mesh_shape(text):
    """{"data": 4, "model": 2} for data=4,model=2."""
    shape = dict(part.split("=") for part in text.split(","))
    if list(shape) != ["data", "model"]:
        raise argparse.ArgumentTypeError(f"{text} is not like data=4,model=2")
    return {name: common.positive(size) for name, size in shape.items()}


def width(text):
    number = common.positive(text)
    if number % HEAD_WIDTH:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of {HEAD_WIDTH}")
    return number


def laid_out(x, layout):
    """x, divided as the batch is. Where weights are divided too, XLA then brings the weights to the
    devices, and does not move the activations, which are larger."""
    return x if layout is None else tg.distribute.with_layout(x, layout)


class Block(tg.Module):
    """Attention to the tokens so far, then two dense layers; each is added to what it is given.
    `layout` is how the sum is divided."""

    def __init__(self, width, layout=None):
        super().__init__()
        self.layout = layout
        layers = tg.layers
        self.first_norm, self.second_norm = layers.LayerNormalization(), layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(width // HEAD_WIDTH, HEAD_WIDTH, dropout=DROPOUT)
        self.dense = layers.Sequential(
            [layers.Dense(4 * width, activation="gelu"), layers.Dense(width)]
        )
        self.dropout = layers.Dropout(DROPOUT)

    def __call__(self, x, training):
        normed = self.first_norm(x)
        y = self.attention(normed, normed, use_causal_mask=True, training=training)
        x = laid_out(x + self.dropout(y, training=training), self.layout)
        y = self.dense(self.second_norm(x))
        return laid_out(x + self.dropout(y, training=training), self.layout)

    def extend(self, x, cache, position):
        """The same of tokens from `position` on; keys and values of those before are cached."""
        normed = self.first_norm(x)
        y, cache = self.attention(normed, normed, cache=cache, cache_update_index=position)
        x = x + y
        return x + self.dense(self.second_norm(x)), cache


class Transformer(tg.Module):
    """What may follow a token, given all tokens before it. `layout` is how activations [batch,
    places, width] are divided."""

    def __init__(self, vocabulary, width, layout=None):
        super().__init__()
        self.layout = layout
        self.tokens = tg.layers.Embedding(vocabulary, width)
        self.positions = tg.layers.Embedding(CONTEXT, width)
        self.scale = math.sqrt(width)  # what blocks add is about as large as what they are given
        self.blocks = [Block(width, layout) for _ in range(LAYERS)]
        self.norm = tg.layers.LayerNormalization()

    def embed(self, tokens, position):
        places = position + tg.range(tokens.shape[1])
        return self.scale * (self.tokens(tokens) + self.positions(places))

    def logits(self, x):
        """What is like the embedding of a token makes the token likely."""
        return tg.matmul(self.norm(x), self.tokens.embeddings, transpose_b=True)

    def __call__(self, tokens, training=False):
        """f32[batch, places, vocabulary]: the logits of the next token at each place."""
        x = laid_out(self.embed(tokens, 0), self.layout)
        for block in self.blocks:
            x = block(x, training)
        return self.logits(x)

    def make_caches(self, batch):
        return [block.attention.make_cache(batch, CONTEXT) for block in self.blocks]

    def extend(self, tokens, caches, position):
        """f32[batch, vocabulary]: the logits of what follows tokens that stand from `position` on;
        and the caches with these tokens. The cost does not depend on the position."""
        x, extended = self.embed(tokens, position), []
        for block, cache in zip(self.blocks, caches):
            x, cache = block.extend(x, cache, position)
            extended.append(cache)
        return self.logits(x[:, -1]), extended

    def loss(self, windows, training=False):
        """The mean over windows i32[batch, CONTEXT + 1], in bits per token."""
        logits = self(windows[:, :-1], training)
        losses = tg.nn.sparse_softmax_cross_entropy_with_logits(windows[:, 1:], logits)
        return tg.reduce_mean(losses) / math.log(2.0)


def windows_at(tokens, starts):
    return tg.gather(tokens, starts[:, tg.newaxis] + tg.range(CONTEXT + 1))


def make_optimizer(steps):
    warm_up = max(1, round(WARM_UP * steps))
    rate = tg.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warm_up), warmup_target=RATE, warmup_steps=warm_up
    )
    optimizer = tg.optimizers.AdamW(rate, WEIGHT_DECAY, beta_2=0.95, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "embeddings"])
    return optimizer


def make_functions(model, optimizer, text, batch, layout):
    """The training step and the loss on the text held out, in bits per character; a writer.
    `layout` is how the windows of a batch are divided."""
    training, held_out = tg.constant(text.training), tg.constant(text.held_out)

    @tg.function
    def train_step():
        starts = tg.random.uniform([batch], 0, len(text.training) - CONTEXT, tg.int32)
        windows = tg.distribute.with_layout(windows_at(training, starts), layout)
        with tg.GradientTape() as tape:
            loss = model.loss(windows, training=True)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss * text.tokens_per_character

    @tg.function
    def held_out_loss():
        last = len(text.held_out) - CONTEXT - 1
        count = math.ceil(HELD_OUT_WINDOWS / batch) * batch  # devices that divide a batch divide it
        starts = np.linspace(0, last, count).astype(np.int32)
        return model.loss(windows_at(held_out, starts)) * text.tokens_per_character

    @tg.function
    def write(prompt):
        """The tokens that follow those of the prompt, i32[1, tokens], up to the end of CONTEXT."""
        length = prompt.shape[1]
        logits, caches = model.extend(prompt, model.make_caches(1), 0)
        written = tg.TensorArray(tg.int32, size=CONTEXT - length)
        for position in tg.range(length, CONTEXT):
            token = tg.random.categorical(logits / TEMPERATURE, 1, dtype=tg.int32)
            written = written.write(position - length, token[0, 0])
            logits, caches = model.extend(token, caches, position)
        return written.stack()

    return train_step, held_out_loss, write


def train(train_step, held_out_loss, steps):
    """Returns the losses of the steps, and (step, loss on the text held out) now and then."""
    losses, held_out = [], [(0, float(held_out_loss()))]
    with tqdm(range(1, steps + 1), unit="step", disable=None) as progress:  # silent in a file
        try:
            for step in progress:
                losses.append(train_step())
                if step % TELL_EVERY == 0 or step == steps:
                    held_out.append((step, float(held_out_loss())))
                    progress.set_postfix(
                        bits=f"{float(losses[-1]):.2f}", held_out=f"{held_out[-1][1]:.2f}"
                    )
        except KeyboardInterrupt:
            held_out.append((len(losses), float(held_out_loss())))
    return np.array([float(loss) for loss in losses]), np.array(held_out)


class Run(NamedTuple):
    """A training: the functions, the losses of the steps and those on the text held out."""

    train_step: object
    write: object
    losses: np.ndarray
    held_out: np.ndarray


def make(options, text, mesh):
    """A model whose weights are divided as the plan says, and its functions."""
    tg.random.set_seed(options.seed)
    plan = PLANS[options.plan]
    model = Transformer(
        VOCABULARY, options.width, tg.distribute.Layout(mesh, [plan.windows, None, None])
    )
    layout = tg.distribute.Layout(mesh, [plan.windows, None])
    with mesh:
        model.apply_layouts(plan.weights)
    optimizer = make_optimizer(options.steps)
    return model, make_functions(model, optimizer, text, options.batch, layout)


def trained(options, text, mesh):
    _, (train_step, held_out_loss, write) = make(options, text, mesh)
    return Run(train_step, write, *train(train_step, held_out_loss, options.steps))


def device_costs(train_step):
    """What each device holds and sends in a step."""
    return train_step.get_concrete_function().summary(devices=True).devices


def draw_losses(runs, path):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for (name, run), color in zip(runs.items(), ("tab:blue", "tab:green")):
        steps = np.arange(1, len(run.losses) + 1)
        axes.plot(steps, run.losses, color=color, alpha=0.4, linewidth=0.8, label=name)
    axes.plot(*run.held_out.T, color="tab:orange", marker=".", label="text held out")
    axes.set(xlabel="step", ylabel="bits per character", title="Transformer language model")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def tell(text):
    """Prints in the first process alone."""
    tg.print(text, output_stream=sys.stdout)


def tell_apart(one, many):
    """How far the losses on several devices are from those on one."""
    count = min(len(one.losses), len(many.losses))
    apart = np.abs(one.losses[:count] - many.losses[:count])
    tell(
        f"losses apart from those of one device: {apart[: min(count, 10)].max():.1e} at most in "
        f"the first steps, {apart.max():.1e} in {count}"
    )


def main(arguments=None):
    options = parsed_arguments(sys.argv[1:] if arguments is None else arguments)
    mesh = tg.distribute.Mesh(options.mesh)
    text = load_text()
    if options.costs_alone:
        _, (train_step, *_) = make(options, text, mesh)
        tell(device_costs(train_step))
        return
    runs = {}
    if mesh.size > 1:
        alone = tg.distribute.Mesh({"data": 1, "model": 1}, [tg.constant(0.0).device])
        runs["one device"] = trained(options, text, alone)
    runs["training" if mesh.size == 1 else f"{mesh.size} devices"] = trained(options, text, mesh)
    if IS_FIRST:
        draw_losses(runs, options.out / "loss.png")

    *others, run = runs.values()
    prompt = text.vocabulary.encode(PROMPT)
    tell(f"{PROMPT}{text.vocabulary.decode(run.write(prompt[np.newaxis]).numpy())}")
    variables = run.train_step.get_concrete_function().trainable_variables
    parameters = sum(math.prod(variable.shape) for variable in variables)
    tell(
        f"{parameters:,} parameters, {len(text.training):,} tokens: {run.held_out[0, 1]:.2f} bits "
        f"per character before training, {run.held_out[-1, 1]:.2f} after {len(run.losses)} steps "
        "(text held out)"
    )
    for one in others:
        tell_apart(one, run)
        tell(device_costs(run.train_step))
    tell(f"loss curves: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
