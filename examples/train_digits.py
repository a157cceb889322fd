"""Trains a network on scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels.

The train step is one decorated function. Forward pass, tape, gradients and optimizer become a
single compiled program that updates the variables in place.

    python examples/train_digits.py --model cnn --epochs 20 --out out

writes learning_curve.png, confusion_matrix.png and train_step.txt, the graph of the step.
"""

import argparse
import sys
from typing import NamedTuple

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
EPOCHS = {"mlp": 50, "cnn": 20}
MOST_EPOCHS = 1_000_000


class Split(NamedTuple):
    """Images [n, 8, 8, 1] with values from 0 to 1, and their labels [n]."""

    images: np.ndarray
    labels: np.ndarray


def number_of_epochs(text):
    number = common.positive(text)
    if number > MOST_EPOCHS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_EPOCHS}")
    return number


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(EPOCHS), default="mlp", help="default: mlp")
    parser.add_argument(
        "--epochs", type=number_of_epochs, help=f"passes over the images; default: {EPOCHS}"
    )
    return parser.options(arguments)


def load_splits(seed):
    """Four fifths of the images to train on and one fifth to test on."""
    digits = load_digits()
    images = (digits.images / PIXEL_RANGE).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    return Split(train_images, train_labels), Split(test_images, test_labels)


def make_model(kind):
    layers = tg.layers
    if kind == "mlp":
        return layers.Sequential(
            [
                layers.Flatten(),
                layers.Dense(256, activation="relu"),
                layers.Dropout(0.3),
                layers.Dense(256, activation="relu"),
                layers.Dropout(0.3),
                layers.Dense(CLASSES),
            ]
        )
    return layers.Sequential(
        [
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPool2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(CLASSES),
        ]
    )


def make_steps(model, optimizer):
    """The train step and the prediction, each compiled for whatever batch size comes."""
    images = tg.TensorSpec(["batch", 8, 8, 1], name="images")
    labels = tg.TensorSpec(["batch"], tg.int32, name="labels")

    @tg.function(input_signature=[images, labels])
    def train_step(images, labels):
        with tg.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tg.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tg.function(input_signature=[images])
    def predict(images):
        return tg.argmax(model(images), axis=-1, output_type=tg.int32)

    return train_step, predict


def train(train_step, predict, splits, epochs, seed):
    """Returns the mean loss and the test accuracy of each epoch."""
    training, testing = splits
    order = np.random.default_rng(seed)
    history = []
    with tqdm(range(epochs), unit="epoch", disable=None) as progress:  # silent without a terminal
        for _ in progress:
            losses = [
                train_step(training.images[rows], training.labels[rows])
                for rows in batches(order.permutation(len(training.labels)))
            ]
            loss = np.mean([float(loss) for loss in losses])
            accuracy = np.mean(predict(testing.images).numpy() == testing.labels)
            progress.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.1%}")
            history.append((loss, accuracy))
    return np.array(history)


def batches(rows):
    """The rows in batches of one size; what is left over has its turn in another epoch."""
    return np.split(rows[: len(rows) // BATCH * BATCH], len(rows) // BATCH)


def draw_learning_curve(history, path):
    epochs = np.arange(1, len(history) + 1)
    figure, loss_axes = plt.subplots(figsize=(6, 4), layout="constrained")
    (loss_line,) = loss_axes.plot(epochs, history[:, 0], color="tab:blue", label="training loss")
    loss_axes.set(xlabel="epoch", ylabel="training loss", yscale="log")
    loss_axes.xaxis.get_major_locator().set_params(integer=True)
    accuracy_axes = loss_axes.twinx()
    (accuracy_line,) = accuracy_axes.plot(
        epochs, 100 * history[:, 1], color="tab:orange", label="test accuracy"
    )
    accuracy_axes.set(ylabel="test accuracy in %")
    loss_axes.legend(handles=[loss_line, accuracy_line], loc="center right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_confusion_matrix(labels, predictions, path):
    matrix = tg.math.confusion_matrix(labels, predictions, CLASSES).numpy()
    figure, axes = plt.subplots(figsize=(5, 4.5), layout="constrained")
    axes.imshow(matrix, cmap="Blues")
    for (row, column), count in np.ndenumerate(matrix):
        if count:
            color = "white" if count > matrix.max() / 2 else "black"
            axes.text(column, row, count, ha="center", va="center", color=color)
    axes.set(xlabel="predicted digit", ylabel="digit", xticks=range(CLASSES), yticks=range(CLASSES))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    tg.random.set_seed(options.seed)
    splits = load_splits(options.seed)
    model = make_model(options.model)
    train_step, predict = make_steps(model, tg.optimizers.Adam(learning_rate=0.001))
    epochs = options.epochs or EPOCHS[options.model]
    history = train(train_step, predict, splits, epochs, options.seed)

    testing = splits[1]
    predictions = predict(testing.images).numpy()
    right = int(np.sum(predictions == testing.labels))
    draw_learning_curve(history, options.out / "learning_curve.png")
    draw_confusion_matrix(testing.labels, predictions, options.out / "confusion_matrix.png")
    graph = train_step.get_concrete_function().graph
    (options.out / "train_step.txt").write_text(graph.as_text(locations=True) + "\n", "utf-8")
    print(f"test accuracy: {right / len(predictions):.2%} ({right} of {len(predictions)})")
    print(f"learning curve, confusion matrix and graph of the train step: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
