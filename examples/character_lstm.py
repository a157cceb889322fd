"""Trains a character LSTM on Python's own manual, the topics that `help()` shows, and has it write.

The network goes over a text by `tg.scan`. Windows of the text, forward pass, gradients and
optimizer are one decorated function. Another one samples: a Python `while` on tensors, which ends
with the sentence, writes into a `tg.TensorArray` whose length only the run knows.

    python examples/character_lstm.py --out out

writes loss.png and prints sentences.
"""

import math
import pydoc_data.topics
import sys
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tracegraph as tg

BATCH, STEPS = 32, 64  # windows of a training step, and characters of a window
HELD_OUT = 0.1  # of the text
HELD_OUT_WINDOWS = 256
TELL_EVERY = 50  # steps
LONGEST = 300  # characters of a sentence
TEMPERATURE = 0.5  # below 1, what is likely becomes more likely
SENTENCES = 3
PROMPT = "the "


class Text(NamedTuple):
    """A text as numbers of characters in `alphabet`."""

    alphabet: str
    training: np.ndarray
    held_out: np.ndarray

    def numbers(self, characters):
        return np.array([self.alphabet.index(c) for c in characters], np.int32)

    def characters(self, numbers):
        return "".join(self.alphabet[number] for number in numbers)


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=common.positive, default=1200, help="of training; default: 1200"
    )
    parser.add_argument(
        "--width", type=common.positive, default=128, help="of the state; default: 128"
    )
    return parser.options(arguments)


def load_text():
    """Python's manual in small letters, without quotation marks, one space between words."""
    topics = " ".join(pydoc_data.topics.topics.values()).lower().replace('"', "")
    text = " ".join(topics.encode("ascii", "ignore").decode().split())
    alphabet = "".join(sorted(set(text)))
    places = np.searchsorted(list(alphabet), list(text)).astype(np.int32)
    training, held_out = np.split(places, [round(len(places) * (1.0 - HELD_OUT))])
    return Text(alphabet, training, held_out)


class CharacterLSTM(tg.Module):
    """Says of each character, given those before it, how likely it is."""

    def __init__(self, characters, width):
        super().__init__()
        normal = tg.random.normal
        self.width = width
        self.embedding = tg.Variable(normal([characters, 4 * width], stddev=0.1))
        self.recurrent = tg.Variable(normal([width, 4 * width], stddev=width**-0.5))
        self.bias = tg.Variable(tg.repeat([0.0, 1.0, 0.0, 0.0], width))  # forgets little at first
        self.kernel = tg.Variable(normal([width, characters], stddev=0.1))
        self.offset = tg.Variable(tg.zeros([characters]))

    def start(self, batch):
        """The state before the first character: twice f32[batch, width]."""
        zeros = tg.zeros([batch, self.width])
        return zeros, zeros

    def step(self, state, characters):
        """The state behind one character of each sequence, i32[batch]."""
        h, c = state
        gates = tg.gather(self.embedding, characters) + h @ self.recurrent + self.bias
        take, keep, new, show = tg.split(gates, 4, axis=-1)
        c = tg.sigmoid(keep) * c + tg.sigmoid(take) * tg.tanh(new)
        return tg.sigmoid(show) * tg.tanh(c), c

    def logits(self, h):
        return h @ self.kernel + self.offset

    def loss(self, windows):
        """Bits per character of windows i32[steps + 1, batch]."""
        shown, expected = windows[:-1], windows[1:]
        h, _ = tg.scan(self.step, shown, self.start(windows.shape[1]))
        losses = tg.nn.sparse_softmax_cross_entropy_with_logits(expected, self.logits(h))
        return tg.reduce_mean(losses) / math.log(2.0)


def windows_at(text, starts):
    return tg.gather(text, starts + tg.range(STEPS + 1)[:, tg.newaxis])


def make_functions(model, optimizer, text):
    """The training step, the loss on the text held out, and the writing of one sentence."""
    training, held_out = tg.constant(text.training), tg.constant(text.held_out)
    full_stop = text.alphabet.index(".")

    @tg.function
    def train_step():
        starts = tg.random.uniform([BATCH], 0, len(text.training) - STEPS, tg.int32)
        with tg.GradientTape() as tape:
            loss = model.loss(windows_at(training, starts))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tg.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tg.function
    def held_out_loss():
        starts = np.linspace(0, len(text.held_out) - STEPS - 1, HELD_OUT_WINDOWS).astype(np.int32)
        return model.loss(windows_at(held_out, starts))

    @tg.function
    def sentence(prompt):
        h, c = (states[-1] for states in tg.scan(model.step, prompt, model.start(1)))
        written = tg.TensorArray(tg.int32, size=0, dynamic_size=True)
        length = 0
        character = prompt[-1]
        while character[0] != full_stop and length < LONGEST:
            logits = model.logits(h) / TEMPERATURE
            character = tg.random.categorical(logits, 1, dtype=tg.int32)[0]
            written = written.write(length, character[0])
            h, c = model.step((h, c), character)
            length += 1
        return written.stack()

    return train_step, held_out_loss, sentence


def train(train_step, held_out_loss, steps):
    """Returns the losses of the steps, and (step, loss on the text held out) now and then."""
    losses, held_out = [], []
    with tqdm(range(1, steps + 1), unit="step", disable=None) as progress:  # silent in a file
        for step in progress:
            losses.append(train_step())
            if step % TELL_EVERY == 0 or step == steps:
                held_out.append((step, float(held_out_loss())))
                progress.set_postfix(
                    bits=f"{float(losses[-1]):.2f}", held_out=f"{held_out[-1][1]:.2f}"
                )
    return np.array([float(loss) for loss in losses]), np.array(held_out)


def draw_losses(losses, held_out, path):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color="tab:blue", alpha=0.4, linewidth=0.8, label="training")
    axes.plot(*held_out.T, color="tab:orange", marker=".", label="text held out")
    axes.set(xlabel="step", ylabel="bits per character", title="Character LSTM")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    tg.random.set_seed(options.seed)
    text = load_text()
    model = CharacterLSTM(len(text.alphabet), options.width)
    optimizer = tg.optimizers.Adam(learning_rate=0.004)
    train_step, held_out_loss, sentence = make_functions(model, optimizer, text)
    losses, held_out = train(train_step, held_out_loss, options.steps)

    draw_losses(losses, held_out, options.out / "loss.png")
    print(
        f"{len(text.training):,} characters of {len(text.alphabet)} kinds: {losses[0]:.2f} bits "
        f"each before training, {held_out[-1, 1]:.2f} after {options.steps} steps (text held out)"
    )
    prompt = text.numbers(PROMPT)[:, np.newaxis]
    for _ in range(SENTENCES):
        print(f"> {PROMPT}{text.characters(sentence(prompt).numpy())}")
    print(f"loss curve: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
