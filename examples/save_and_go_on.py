"""Saves a classifier with its optimizer, and goes on with it in a process that has no source of it.

The first process trains a network on scikit-learn's handwritten digits and saves it: weights, state
of the optimizer and of the random numbers, and the graphs of its functions with all that is needed
to differentiate them. The second process loads that, trains on with the same train step, and takes
the gradient of the loss by the images, which finds the smallest change that makes it misread a
digit (the fast gradient sign method of Goodfellow, Shlens and Szegedy, 2014).

    python examples/save_and_go_on.py --out out

writes model/, learning_curve.png and adversarial.png. Look into the model with

    tracegraph show out/model
"""

import argparse
import subprocess
import sys

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import tracegraph as tg

BATCH = 32
CLASSES = 10
PIXEL_RANGE = 16.0
STEPS = np.linspace(0.0, 0.5, 51)  # of the change, in units of the range of a pixel
SMALL = 10  # which of the steps is reported
SHOWN = 8


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--epochs", type=common.positive, default=10, help="in each process; default: 10"
    )
    parser.add_argument("--go-on", action="store_true", help=argparse.SUPPRESS)
    return parser.options(arguments)


def load_splits(seed):
    """Images [n, 8, 8] with values from 0 to 1 and labels [n], to train on and to test on."""
    digits = load_digits()
    images = (digits.images / PIXEL_RANGE).astype(np.float32)
    labels = digits.target.astype(np.int32)
    split = train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)
    return (split[0], split[2]), (split[1], split[3])


# What the first process knows.


def make_classifier():
    """The model. Only the first process comes here: to the other its class does not exist."""
    images = tg.TensorSpec(["n", 8, 8], name="images")
    labels = tg.TensorSpec(["n"], tg.int32, name="labels")

    class Classifier(tg.Module):
        def __init__(self):
            super().__init__()
            dense = tg.layers.Dense
            self.network = tg.layers.Sequential(
                [
                    tg.layers.Flatten(),
                    dense(128, activation="relu"),
                    tg.layers.Dropout(0.3),
                    dense(CLASSES),
                ]
            )
            self.optimizer = tg.optimizers.Adam(0.002)
            self.accuracies = []

        @tg.function(input_signature=[images])
        def read(self, images):
            return tg.argmax(self.network(images), axis=-1, output_type=tg.int32)

        @tg.function(input_signature=[images, labels])
        def loss(self, images, labels):
            return tg.reduce_mean(self._losses(images, labels, training=False))

        @tg.function(input_signature=[images, labels])
        def train_step(self, images, labels):
            with tg.GradientTape() as tape:
                loss = tg.reduce_mean(self._losses(images, labels, training=True))
            variables = self.network.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        def _losses(self, images, labels, training):
            logits = self.network(images, training=training)
            return tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    return Classifier()


def begin(options, splits, path):
    """Trains a new model and saves it."""
    model = make_classifier()
    train(model, splits, options.epochs, options.seed)
    tg.saved_model.save(model, path)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(
        f"saved after {options.epochs} epochs: test accuracy {model.accuracies[-1]:.2%}, ", end=""
    )
    print(f"{size / 1000:.0f} kB", flush=True)


# What both processes do.


def train(model, splits, epochs, seed):
    """Trains, and adds the test accuracy after each epoch to those that the model keeps."""
    images, labels = splits[0]
    order = np.random.default_rng([seed, len(model.accuracies)])
    with tqdm(range(epochs), unit="epoch", disable=None) as progress:  # silent without a terminal
        for _ in progress:
            rows = order.permutation(len(labels))
            for batch in np.split(rows[: len(rows) // BATCH * BATCH], len(rows) // BATCH):
                model.train_step(images[batch], labels[batch])
            model.accuracies.append(float(accuracy(model, splits[1])))
            progress.set_postfix(accuracy=f"{model.accuracies[-1]:.1%}")


def accuracy(model, split):
    images, labels = split
    return np.mean(model.read(images).numpy() == labels)


# What the second process does.


def go_on(options, splits, path):
    """Loads the model, trains on, and looks for the images that it misreads."""
    model = tg.saved_model.load(path)
    print(f"loaded: test accuracy {accuracy(model, splits[1]):.2%}")
    train(model, splits, options.epochs, options.seed)
    tg.saved_model.save(model, path)
    print(f"after {options.epochs} epochs more: test accuracy {model.accuracies[-1]:.2%}")

    changes, misread = adversarial(model, splits[1])
    smallest = np.where(misread.any(axis=0), STEPS[misread.argmax(axis=0)], np.nan)
    print(f"misread: {misread[0].mean():.1%} of the digits, ", end="")
    print(
        f"{misread[SMALL].mean():.1%} with a change of {STEPS[SMALL]:.0%} of the range of a pixel"
    )
    draw_learning_curve(model.accuracies, options.epochs, options.out / "learning_curve.png")
    draw_adversarial(model, splits[1], changes, smallest, options.out / "adversarial.png")
    print(f"model, learning curve and adversarial digits: {options.out}")


def adversarial(model, split):
    """The direction in which each image is changed, and where it is misread: [steps, images]."""
    images, labels = (tg.constant(array) for array in split)
    with tg.GradientTape() as tape:
        tape.watch(images)
        loss = model.loss(images, labels)
    changes = tg.sign(tape.gradient(loss, images)).numpy()
    misread = [model.read(changed(split[0], changes, step)).numpy() != split[1] for step in STEPS]
    return changes, np.array(misread)


def changed(images, changes, step):
    return np.clip(images + step * changes, 0.0, 1.0).astype(np.float32)


def draw_learning_curve(accuracies, epochs, path):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    numbers = np.arange(1, len(accuracies) + 1)
    axes.plot(numbers, 100 * np.array(accuracies), "o-", markersize=3)
    for end in range(epochs, len(accuracies), epochs):
        axes.axvline(end + 0.5, color="black", linestyle="--", linewidth=1)
        place, coordinates = (end + 0.6, 0.05), ("data", "axes fraction")
        axes.annotate("saved, and loaded elsewhere", place, xycoords=coordinates)
    axes.set(xlabel="epoch", ylabel="test accuracy in %", title="One training in two processes")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_adversarial(model, split, changes, smallest, path):
    """Digits that are read rightly, the smallest change that helps, and what is read then."""
    images, labels = split
    found = np.flatnonzero(smallest > 0)
    shown = found[np.unique(labels[found], return_index=True)[1]][:SHOWN]  # one of each digit
    figure, rows = plt.subplots(
        3, len(shown), figsize=(1.3 * len(shown), 4.2), layout="constrained", squeeze=False
    )
    for place, k in enumerate(shown):
        after = changed(images[k], changes[k], smallest[k])
        is_now = int(model.read(after[np.newaxis]).numpy()[0])
        rows[0, place].imshow(images[k], cmap="gray_r", vmin=0, vmax=1)
        rows[1, place].imshow(after - images[k], cmap="RdBu_r", vmin=-0.3, vmax=0.3)
        rows[2, place].imshow(after, cmap="gray_r", vmin=0, vmax=1)
        rows[0, place].set_title(f"read as {labels[k]}", fontsize=9)
        rows[1, place].set_title(f"change {smallest[k]:.0%}", fontsize=9)
        rows[2, place].set_title(f"read as {is_now}", fontsize=9, color="tab:orange")
    for axes in rows.flat:
        axes.set(xticks=[], yticks=[])
    figure.suptitle("The smallest changes along the sign of the gradient that are misread")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    splits, path = load_splits(options.seed), options.out / "model"
    if options.go_on:
        return go_on(options, splits, path)
    tg.random.set_seed(options.seed)
    begin(options, splits, path)
    flags = ["--epochs", options.epochs, "--seed", options.seed, "--device", options.device]
    command = [sys.executable, __file__, "--go-on", "--out", options.out, *flags]
    return subprocess.run(list(map(str, command))).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
