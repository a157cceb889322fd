"""Trains a residual network to tell what a piece of a photograph shows: brick, grass, the moon, ...

The photographs come with scikit-image. The left part of each is for training, a strip in the middle
for validation, and the right for the test, so no pixel is in two of them. All are grey, and each
piece has mean 0 and variance 1: only its texture tells.

Random crops and flips, forward pass, gradients and optimizer are one decorated function. What is
random follows from the seed and the number of the step. So a training that was interrupted, by
Ctrl-C or a power cut, goes on with --resume and ends where it would have ended.

    python examples/train_resnet.py --out out

writes learning_curve.png, predictions.png and checkpoints.
"""

import json
import math
import shutil
import sys
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from skimage import color, data
from tqdm import tqdm

import tracegraph as tg

PHOTOGRAPHS = {
    "brick": data.brick,
    "cells": data.immunohistochemistry,
    "coins": data.coins,
    "grass": data.grass,
    "gravel": data.gravel,
    "moon": data.moon,
    "retina": data.retina,
    "stars": data.hubble_deep_field,
}
SIDE, MARGIN = 32, 16  # pixels of an image; room for random crops of those to train on
TRAINING, VALIDATION = (0.0, 0.6), (0.6, 0.8)  # which part of the width of a photograph
TEST = (0.8, 1.0)
IMAGES = {TRAINING: 160, VALIDATION: 80, TEST: 80}  # of each photograph
BATCH = 64
WIDTHS = (16, 32, 64)  # of the three stages
RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
WARM_UP = 0.1  # of the steps
SHOWN = 24
#: In the folder for the results.
LAST, BEST, SETTINGS = "checkpoints/last", "checkpoints/best", "checkpoints/settings.json"


class Split(NamedTuple):
    """Images [n, side, side, 1] with values from 0 to 1, and their labels [n]."""

    images: np.ndarray
    labels: np.ndarray


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=common.positive, default=15, help="at most; default: 15")
    parser.add_argument(
        "--blocks", type=common.positive, default=1, help="of each of the three stages; default: 1"
    )
    parser.add_argument(
        "--patience",
        type=common.positive,
        default=5,
        help="epochs without a better validation loss after which training stops; default: 5",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the training that is in --out, instead of starting over",
    )
    options = parser.options(arguments)
    if options.resume:
        check_that_it_goes_on(parser, options)
    return options


def check_that_it_goes_on(parser, options):
    """A training goes on as it began: its images and its schedule follow from the options."""
    path = options.out / SETTINGS
    if not path.exists():
        parser.error(f"argument --resume: there is no training in {options.out}")
    for name, value in json.loads(path.read_text("utf-8")).items():
        if getattr(options, name) != value:
            fact = f"the training in {options.out} began with {value}, not {getattr(options, name)}"
            parser.error(f"argument --{name}: {fact}")


def begin(options):
    """A folder for checkpoints with nothing in it but the settings of the training."""
    path = options.out / SETTINGS
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    names = ("epochs", "blocks", "seed")
    path.write_text(json.dumps({name: getattr(options, name) for name in names}), "utf-8")


def load_split(part, side, seed):
    """Squares at random places in one part of each photograph."""
    random, images, labels = np.random.default_rng(seed), [], []
    for label, load in enumerate(PHOTOGRAPHS.values()):
        photograph = within(load(), part)
        height, width = photograph.shape
        for _ in range(IMAGES[part]):
            y, x = random.integers((height - side + 1, width - side + 1))
            images.append(photograph[y : y + side, x : x + side])
            labels.append(label)
    return Split(np.array(images)[..., np.newaxis], np.array(labels, np.int32))


def within(photograph, part):
    """One part of the width of a photograph, grey; a frame of an eighth of it is left out."""
    grey = color.rgb2gray(photograph) if photograph.ndim == 3 else photograph / 255.0
    top, left = (size // 8 for size in grey.shape)
    grey = grey[top:-top, left:-left].astype(np.float32)
    first, last = (round(bound * grey.shape[1]) for bound in part)
    return grey[:, first:last]


class Block(tg.Module):
    """Two convolutions whose result is added to the input (He and others 2015)."""

    def __init__(self, width, stride):
        super().__init__()
        self.first, self.first_norm = convolution(width, stride=stride), normalisation()
        self.second, self.second_norm = convolution(width), normalisation()
        self.shortcut = convolution(width, size=1, stride=stride) if stride > 1 else None

    def __call__(self, x, training):
        y = tg.nn.relu(self.first_norm(self.first(x), training=training))
        y = self.second_norm(self.second(y), training=training)
        return tg.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def convolution(width, size=3, stride=1):
    return tg.layers.Conv2D(
        width, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal"
    )


def normalisation():
    return tg.layers.BatchNormalization(momentum=0.9)


class ResNet(tg.Module):
    def __init__(self, blocks):
        super().__init__()
        self.stem, self.stem_norm = convolution(WIDTHS[0]), normalisation()
        self.blocks = [
            Block(width, stride=2 if stage > 0 and block == 0 else 1)
            for stage, width in enumerate(WIDTHS)
            for block in range(blocks)
        ]
        self.pool = tg.layers.GlobalAveragePooling2D()
        self.classes = tg.layers.Dense(len(PHOTOGRAPHS))

    def __call__(self, images, training=False):
        x = tg.nn.relu(self.stem_norm(self.stem(images), training=training))
        for block in self.blocks:
            x = block(x, training)
        return self.classes(self.pool(x))


class Progress(tg.Module):
    """How far the training is: all that a checkpoint needs beside model and optimizer."""

    def __init__(self, epochs):
        super().__init__()
        self.epoch = tg.Variable(0)
        self.best_epoch = tg.Variable(0)
        self.best_loss = tg.Variable(math.inf)
        self.training_loss = tg.metrics.Mean()  # of the epoch that runs
        #: Of each epoch: training loss, validation loss, validation accuracy.
        self.history = tg.Variable(tg.zeros([epochs, 3]))


def augmented(image, seed):
    """A random crop of an image, which may be turned over."""
    crop, left_right, up_down = tg.unstack(tg.random.split(seed, 3))
    image = tg.image.stateless_random_crop(image, [SIDE, SIDE, 1], crop)
    image = tg.image.stateless_random_flip_left_right(image, left_right)
    return tg.image.stateless_random_flip_up_down(image, up_down)


def make_functions(model, optimizer, progress, training, seed):
    """The train step, what ends an epoch, and the prediction."""
    images, labels = map(tg.constant, training)
    standardised = tg.image.per_image_standardization
    loss_of = tg.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tg.function
    def train_step(rows):
        seeds = tg.random.split([seed, optimizer.iterations], BATCH)
        x = tg.vectorized_map(lambda pair: augmented(*pair), (tg.gather(images, rows), seeds))
        with tg.GradientTape() as tape:
            logits = model(standardised(x), training=True)
            loss = loss_of(tg.gather(labels, rows), logits)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        progress.training_loss.update_state(loss)

    @tg.function
    def end_epoch(loss, accuracy):
        row = tg.stack([progress.training_loss.result(), loss, accuracy])
        progress.history[progress.epoch].assign(row)
        progress.epoch.assign_add(1)
        progress.training_loss.reset_state()
        if loss < progress.best_loss:
            progress.best_loss.assign(loss)
            progress.best_epoch.assign(progress.epoch)

    @tg.function
    def predict(images, labels):
        """The class of each image, the mean loss, and the share that is right."""
        logits = model(standardised(images))
        classes = tg.argmax(logits, axis=-1, output_type=tg.int32)
        return (
            classes,
            loss_of(labels, logits),
            tg.reduce_mean(tg.cast(classes == labels, "float32")),
        )

    return train_step, end_epoch, predict


def make_optimizer(steps):
    warm_up = max(1, round(WARM_UP * steps))
    rate = tg.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warm_up), warmup_target=RATE, warmup_steps=warm_up
    )
    optimizer = tg.optimizers.SGD(rate, MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return optimizer


class Training:
    """A training whose state is on disk, after each epoch and when it is interrupted."""

    def __init__(self, options):
        self.training = load_split(TRAINING, SIDE + MARGIN, options.seed)
        self.validation = load_split(VALIDATION, SIDE, options.seed + 1)
        self.options = options
        self.steps = len(self.training.labels) // BATCH  # of an epoch
        self.model, self.progress = ResNet(options.blocks), Progress(options.epochs)
        self.optimizer = make_optimizer(options.epochs * self.steps)
        self.model(tg.zeros([1, SIDE, SIDE, 1]))  # makes the variables
        self.optimizer.build(self.model.trainable_variables)
        self.train_step, self.end_epoch, self.predict = make_functions(
            self.model, self.optimizer, self.progress, self.training, options.seed
        )
        whole = tg.train.Checkpoint(
            model=self.model, optimizer=self.optimizer, progress=self.progress
        )
        best = tg.train.Checkpoint(model=self.model)
        self.last = tg.train.CheckpointManager(whole, options.out / LAST, max_to_keep=2)
        self.best = tg.train.CheckpointManager(best, options.out / BEST, max_to_keep=1)
        self.last.restore_or_initialize()

    def run(self):
        """Trains to the end, and leaves the model with the weights of the best epoch."""
        total, done = self.options.epochs * self.steps, int(self.optimizer.iterations)
        with tqdm(total=total, initial=done, unit="step", disable=None) as bar:
            try:
                while not self.is_over():
                    self.run_epoch(bar)
            except KeyboardInterrupt:
                self.last.save()
                raise
        self.best.restore_or_initialize()

    def is_over(self):
        epoch, best = int(self.progress.epoch), int(self.progress.best_epoch)
        return epoch == self.options.epochs or epoch - best >= self.options.patience

    def run_epoch(self, bar):
        """The rest of an epoch, or all of it."""
        epoch = int(self.progress.epoch)
        order = np.random.default_rng([self.options.seed, epoch]).permutation(
            self.training.labels.size
        )
        batches = order[: self.steps * BATCH].reshape(self.steps, BATCH)
        for rows in batches[int(self.optimizer.iterations) - epoch * self.steps :]:
            self.train_step(rows)
            bar.update()
        _, loss, accuracy = self.predict(*self.validation)
        bar.set_postfix(validation_loss=f"{loss:.3f}", accuracy=f"{accuracy:.1%}")
        if loss < self.progress.best_loss:
            self.best.save()
        self.end_epoch(loss, accuracy)
        self.last.save()


def draw_learning_curve(history, best, path):
    epochs = np.arange(1, len(history) + 1)
    figure, loss_axes = plt.subplots(figsize=(6, 4), layout="constrained")
    lines = loss_axes.plot(epochs, history[:, 0], color="tab:blue", label="training loss")
    lines += loss_axes.plot(epochs, history[:, 1], color="tab:green", label="validation loss")
    lines.append(loss_axes.axvline(best, color="black", linewidth=0.8, label="best epoch"))
    loss_axes.set(xlabel="epoch", ylabel="loss", yscale="log")
    loss_axes.xaxis.get_major_locator().set_params(integer=True)
    accuracy_axes = loss_axes.twinx()
    lines += accuracy_axes.plot(
        epochs, 100 * history[:, 2], color="tab:orange", label="validation accuracy"
    )
    accuracy_axes.set(ylabel="validation accuracy in %")
    figure.legend(handles=lines, loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_predictions(test, predictions, seed, path):
    """Test images and what they were taken for; those that are wrong come first."""
    order = np.random.default_rng(seed).permutation(len(predictions))
    order = order[np.argsort(predictions[order] == test.labels[order], kind="stable")]
    names = list(PHOTOGRAPHS)
    figure, rows = plt.subplots(3, SHOWN // 3, figsize=(SHOWN / 2, 5.6), layout="constrained")
    for axes, k in zip(rows.flat, order):
        axes.imshow(test.images[k, ..., 0], cmap="gray")
        is_right = predictions[k] == test.labels[k]
        text = names[test.labels[k]]
        if not is_right:
            text += f"\ntaken for {names[predictions[k]]}"
        axes.set_title(text, fontsize=10, color="black" if is_right else "tab:red")
        axes.set(xticks=[], yticks=[])
    figure.suptitle("Test images; those that the network takes for something else come first")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    if not options.resume:
        begin(options)
    tg.random.set_seed(options.seed)
    training = Training(options)
    try:
        training.run()
    except KeyboardInterrupt:
        done = int(training.optimizer.iterations)
        print(f"interrupted and saved after {done} steps; --resume goes on", file=sys.stderr)
        return 130

    test = load_split(TEST, SIDE, options.seed + 2)
    classes, _, _ = training.predict(*test)
    predictions, progress = classes.numpy(), training.progress
    epochs, best = int(progress.epoch), int(progress.best_epoch)
    history = progress.history.numpy()[:epochs]
    draw_learning_curve(history, best, options.out / "learning_curve.png")
    draw_predictions(test, predictions, options.seed, options.out / "predictions.png")
    right = int(np.sum(predictions == test.labels))
    print(f"best after epoch {best} of {epochs}: validation accuracy {history[best - 1, 2]:.2%}")
    print(f"test accuracy: {right / len(predictions):.2%} ({right} of {len(predictions)})")
    print(f"learning curve, predictions and checkpoints: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
