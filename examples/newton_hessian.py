"""Takes Newton steps with the full Hessian of a network, and looks at the gradient of each example.

A small network learns scikit-learn's handwritten digits. One decorated function gives the loss, the
gradient, and the Hessian with respect to all kernels and biases together: the Jacobian of the
gradient. Another maps the gradient over the examples, which shows what the network finds hard.

    python examples/newton_hessian.py --out out

writes hessian.png, losses.png and examples.png.
"""

import sys

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import colors, pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import tracegraph as tg

HIDDEN, CLASSES = 6, 10
PIXEL_RANGE = 16.0
DECAY = 1e-4  # of all weights; it keeps the best of them finite
MOST_DAMPING = 1e6
RATES = (0.3, 1.0, 3.0)  # of gradient descent
GALLERY = 8


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=common.positive, default=15, help="of Newton; default: 15")
    parser.add_argument("--hidden", type=common.positive, default=HIDDEN, help="units; default: 6")
    return parser.options(arguments)


def load_splits(seed):
    """Images [n, 64] with values from 0 to 1 and labels [n], to train on and to test on."""
    digits = load_digits()
    images = (digits.data / PIXEL_RANGE).astype(np.float32)
    labels = digits.target.astype(np.int32)
    return train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)


def flat(tensors):
    """Tensors one after another as one vector."""
    return tg.concat([tg.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def make_functions(model):
    """Loss and accuracy, gradient, Hessian, and the norm of each example's gradient."""
    variables = model.trainable_variables

    def error_of(images, labels):
        losses = tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=model(images))
        return tg.reduce_mean(losses)

    def loss_of(images, labels):
        decay = DECAY * sum(tg.reduce_sum(variable**2) for variable in variables)
        return error_of(images, labels) + decay

    @tg.function
    def gradient_of(images, labels):
        with tg.GradientTape() as tape:
            loss = loss_of(images, labels)
        return flat(tape.gradient(loss, variables))

    @tg.function
    def hessian_of(images, labels):
        """The gradient [n], and the Hessian [n, n], by all variables together."""
        with tg.GradientTape() as outer:
            with tg.GradientTape() as inner:
                loss = loss_of(images, labels)
            gradient = flat(inner.gradient(loss, variables))
        columns = outer.jacobian(gradient, variables)
        size = gradient.shape[0]
        return gradient, tg.concat([tg.reshape(block, [size, -1]) for block in columns], axis=1)

    @tg.function
    def gradient_norms(images, labels):
        """For each example, the norm of the gradient of its own error: [n]."""

        def norm_of(example):
            image, label = example
            with tg.GradientTape() as tape:
                error = error_of(image[tg.newaxis], label[tg.newaxis])
            return tg.linalg.global_norm(tape.gradient(error, variables))

        return tg.vectorized_map(norm_of, (images, labels))

    return tg.function(loss_of), gradient_of, hessian_of, gradient_norms


def get_weights(model):
    return flat(model.trainable_variables).numpy()


def set_weights(model, weights):
    variables = model.trainable_variables
    ends = np.cumsum([np.prod(variable.shape) for variable in variables])[:-1]
    for variable, part in zip(variables, np.split(weights, ends)):
        variable.assign(part.reshape(variable.shape))


def newton(model, loss_of, hessian_of, data, steps):
    """Newton steps, damped until they help; the loss after each.

    Directions of negative curvature count with its absolute value, so that each step goes downhill.
    """
    losses, damping = [float(loss_of(*data))], 1.0
    with tqdm(range(steps), unit="step", disable=None) as progress:  # silent without a terminal
        for _ in progress:
            weights = get_weights(model)
            gradient, hessian = (value.numpy().astype(float) for value in hessian_of(*data))
            curvatures, directions = np.linalg.eigh((hessian + hessian.T) / 2)
            along = directions.T @ gradient
            while True:
                change = directions @ (along / (np.abs(curvatures) + damping))
                set_weights(model, (weights - change).astype(np.float32))
                loss = float(loss_of(*data))
                if loss <= losses[-1] or damping > MOST_DAMPING:
                    break
                damping *= 4
            damping /= 8
            losses.append(loss)
            progress.set_postfix(loss=f"{loss:.4f}", damping=f"{damping:.0e}")
    return losses


def descend(model, loss_of, gradient_of, data, steps, rate):
    """As many gradient steps; the loss after each."""
    losses = [float(loss_of(*data))]
    for _ in range(steps):
        step = rate * gradient_of(*data).numpy()
        set_weights(model, get_weights(model) - step)
        losses.append(float(loss_of(*data)))
    return losses


def accuracy(model, images, labels):
    return np.mean(tg.argmax(model(images), axis=-1).numpy() == labels)


def draw_hessian(hessian, variables, path):
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    ends = np.cumsum(sizes)
    magnitude = np.abs(hessian)
    norm = colors.LogNorm(1e-6, magnitude.max(), clip=True)
    figure, axes = plt.subplots(figsize=(7.5, 6.5), layout="constrained")
    image = axes.imshow(magnitude, cmap="magma", norm=norm, interpolation="nearest")
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color="white", linewidth=0.5)
        axes.axvline(end - 0.5, color="white", linewidth=0.5)
    names = ["kernel 1", "bias 1", "kernel 2", "bias 2"]
    middles = ends - np.array(sizes) / 2
    axes.set_xticks(middles, names, rotation=90)
    axes.set_yticks(middles, names)
    axes.tick_params(length=0)
    axes.set_title(
        f"The Hessian of a network with {ends[-1]} weights\n"
        "each square of kernel 1 is for a pair of rows of the images"
    )
    figure.colorbar(image, ax=axes, label="absolute second derivative of the loss")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_losses(newton_losses, descents, path):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(newton_losses, "o-", markersize=3, label="Newton")
    for rate, losses in descents.items():
        axes.semilogy(losses, label=f"gradient descent, rate {rate:g}")
    axes.set(xlabel="step", ylabel="training loss", title="Newton steps and gradient steps")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_examples(norms, predictions, images, labels, path):
    figure = plt.figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subfigures(1, 2)
    axes = left.subplots()
    bins = np.geomspace(norms.min(), norms.max(), 30)
    is_right = predictions == labels
    axes.hist(
        [norms[is_right], norms[~is_right]], bins, stacked=True, label=["recognised", "mistaken"]
    )
    axes.set(xscale="log", xlabel="norm of the example's gradient", ylabel="test images")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper left")
    right.suptitle("Largest gradients (above) and smallest (below)")
    order = np.argsort(norms)
    shown = [*order[::-1][:GALLERY], *order[:GALLERY]]
    for place, k in zip(right.subplots(4, GALLERY // 2).flat, shown):
        place.imshow(images[k].reshape(8, 8), cmap="gray_r")
        place.set_axis_off()
        is_mistaken = predictions[k] != labels[k]
        text = f"{labels[k]}, read {predictions[k]}" if is_mistaken else f"{labels[k]}"
        place.set_title(text, fontsize=9, color="tab:orange" if is_mistaken else "black")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    tg.random.set_seed(options.seed)
    images, test_images, labels, test_labels = load_splits(options.seed)
    dense = tg.layers.Dense
    model = tg.layers.Sequential([dense(options.hidden, activation="tanh"), dense(CLASSES)])
    model(images[:1])  # makes the variables
    loss_of, gradient_of, hessian_of, gradient_norms = make_functions(model)
    data, start = (tg.constant(images), tg.constant(labels)), get_weights(model)

    descents, accuracies = {}, {}
    for rate in RATES:
        set_weights(model, start)
        descents[rate] = descend(model, loss_of, gradient_of, data, options.steps, rate)
        accuracies[rate] = accuracy(model, test_images, test_labels)
    set_weights(model, start)
    losses = newton(model, loss_of, hessian_of, data, options.steps)

    _, hessian = hessian_of(*data)
    norms = gradient_norms(test_images, test_labels).numpy()
    predictions = tg.argmax(model(test_images), axis=-1).numpy()
    draw_hessian(hessian.numpy(), model.trainable_variables, options.out / "hessian.png")
    draw_losses(losses, descents, options.out / "losses.png")
    draw_examples(norms, predictions, test_images, test_labels, options.out / "examples.png")

    best = min(RATES, key=lambda rate: descents[rate][-1])
    print(f"loss at the start: {losses[0]:.4f}")
    print(
        f"after {options.steps} Newton steps: {losses[-1]:.4f}, "
        f"test accuracy {accuracy(model, test_images, test_labels):.2%}"
    )
    print(
        f"after {options.steps} gradient steps of rate {best:g}: {descents[best][-1]:.4f}, "
        f"test accuracy {accuracies[best]:.2%}"
    )
    print(f"Hessian, losses and per-example gradients: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
