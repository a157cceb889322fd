"""Trains a network to solve the Korteweg-de Vries equation: one wave overtakes another.

    u_t + 6 u u_x + u_xxx = 0

holds for waves in shallow water. The network sees the equation, the water at the start and still
water far away, and never the solution, which is known and used to measure the error. Third
derivatives come from three forward accumulators in one another, the gradient of the loss through
them from reverse mode, all in one decorated function. SciPy's L-BFGS does the rest.

    python examples/physics_informed.py --out out

writes solution.png and training.png.
"""

import sys
from itertools import pairwise
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from scipy.optimize import minimize
from tqdm import tqdm

import tracegraph as tg

LEFT, RIGHT, END = -8.0, 8.0, 1.5  # x from LEFT to RIGHT, t from 0 to END
FAST, SLOW = (2.0, -3.5), (1.2, -1.6)  # of each wave, its wave number k and where it starts
POINTS = 1500
LAYERS = (2, 32, 32, 32, 1)


class Sample(NamedTuple):
    """Where the equation is asked for, and when the ends are; vectors of one length each."""

    x: np.ndarray
    t: np.ndarray
    end_times: np.ndarray


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=common.positive, default=1000, help="of L-BFGS; default: 1000"
    )
    return parser.options(arguments)


def exact(x, t):
    """The two waves, u = 2 (log F)_xx: Hirota's solution."""
    ones = tg.ones_like(x)
    with tg.autodiff.ForwardAccumulator(x, ones) as second:
        with tg.autodiff.ForwardAccumulator(x, ones) as first:
            a, b = (tg.exp(k * (x - start) - k**3 * t) for k, start in (FAST, SLOW))
            meeting = ((FAST[0] - SLOW[0]) / (FAST[0] + SLOW[0])) ** 2
            log_f = tg.math.log(1.0 + a + b + meeting * a * b)
        slope = first.jvp(log_f)
    return 2.0 * second.jvp(slope)


def initial_weights(seed):
    """All kernels (Glorot's choice) and biases (zero) in one vector."""
    random = np.random.default_rng(seed)
    parts = []
    for inputs, outputs in pairwise(LAYERS):
        limit = np.sqrt(6.0 / (inputs + outputs))
        parts += [random.uniform(-limit, limit, inputs * outputs), np.zeros(outputs)]
    return np.concatenate(parts)


def network(weights, x, t):
    """A network of x and t that has the right value at t = 0 for any weights."""
    sizes = [size for pair in pairwise(LAYERS) for size in (pair[0] * pair[1], pair[1])]
    parts = iter(tg.split(weights, sizes))
    y = tg.stack([(2.0 * x - LEFT - RIGHT) / (RIGHT - LEFT), 2.0 * t / END - 1.0], axis=-1)
    for inputs, outputs in pairwise(LAYERS):
        y = y @ tg.reshape(next(parts), [inputs, outputs]) + next(parts)
        y = tg.tanh(y) if outputs > 1 else y
    return exact(x, tg.zeros_like(t)) + t * y[:, 0]


def equation(weights, x, t):
    """u_t + 6 u u_x + u_xxx at each point."""
    ones = tg.ones_like(x)
    with tg.autodiff.ForwardAccumulator(x, ones) as third:
        with tg.autodiff.ForwardAccumulator(x, ones) as second:
            with tg.autodiff.ForwardAccumulator(x, ones) as first:
                with tg.autodiff.ForwardAccumulator(t, ones) as in_time:
                    u = network(weights, x, t)
            u_x = first.jvp(u)
        u_xx = second.jvp(u_x)
    return in_time.jvp(u) + 6.0 * u * u_x + third.jvp(u_xx)


def make_loss(sample):
    """The loss and its gradient as one compiled function of the weights."""
    x, t, end_times = (tg.constant(values) for values in sample)

    @tg.function
    def loss_and_gradient(weights):
        with tg.GradientTape() as tape:
            tape.watch(weights)
            loss = tg.reduce_mean(equation(weights, x, t) ** 2)
            for end in (LEFT, RIGHT):
                water = network(weights, end * tg.ones_like(end_times), end_times)
                loss = loss + tg.reduce_mean(water**2)
        return loss, tape.gradient(loss, weights)

    return loss_and_gradient


def draw_sample(seed):
    random = np.random.default_rng(seed)
    return Sample(
        x=random.uniform(LEFT, RIGHT, POINTS),
        t=random.uniform(0.0, END, POINTS),
        end_times=np.linspace(0.0, END, 64),
    )


def train(loss_and_gradient, weights, steps):
    """Returns the weights and the loss after each step."""
    losses = []

    def evaluate(weights):
        loss, gradient = loss_and_gradient(tg.constant(weights))
        return float(loss), gradient.numpy()

    with tqdm(total=steps, unit="step", disable=None) as progress:  # silent without a terminal

        def note(intermediate_result):
            losses.append(intermediate_result.fun)
            progress.set_postfix(loss=f"{losses[-1]:.1e}", refresh=False)
            progress.update()

        bounds = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 50, "ftol": 0.0, "gtol": 0.0}
        found = minimize(
            evaluate, weights, jac=True, method="L-BFGS-B", callback=note, options=bounds
        )
    return found.x, np.array(losses)


def on_grid(fn, columns=401, rows=201):
    """fn(x, t) on a grid over space and time: [rows, columns]."""
    x, t = np.meshgrid(np.linspace(LEFT, RIGHT, columns), np.linspace(0.0, END, rows))
    return tg.function(fn)(x.ravel(), t.ravel()).numpy().reshape(x.shape)


def draw_solution(found, wanted, path):
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    extent = (LEFT, RIGHT, 0.0, END)
    options = {"origin": "lower", "aspect": "auto", "extent": extent}
    image = axes[0].imshow(found, cmap="viridis", **options)
    figure.colorbar(image, ax=axes[0], label="u")
    axes[0].set(xlabel="x", ylabel="t", title="The network's solution")
    limit = np.abs(found - wanted).max()
    image = axes[1].imshow(found - wanted, cmap="RdBu_r", vmin=-limit, vmax=limit, **options)
    figure.colorbar(image, ax=axes[1], label="network - exact")
    axes[1].set(xlabel="x", ylabel="t", title="Its error")
    x = np.linspace(LEFT, RIGHT, found.shape[1])
    for share, color in ((0.0, "tab:blue"), (0.5, "tab:orange"), (1.0, "tab:green")):
        row = round(share * (len(found) - 1))
        axes[2].plot(x, wanted[row], color=color, alpha=0.35, linewidth=5)
        axes[2].plot(x, found[row], color=color, linewidth=1, label=f"t = {share * END:g}")
    axes[2].set(xlabel="x", ylabel="u", title="Exact waves (broad), network (thin)")
    axes[2].set_ylim(top=1.2 * wanted.max())
    axes[2].legend(loc="upper center", ncols=3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_training(losses, path):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(np.arange(1, len(losses) + 1), losses)
    axes.set(xlabel="step of L-BFGS", ylabel="loss", title="Mean squared residual")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    loss_and_gradient = make_loss(draw_sample(options.seed))
    weights, losses = train(loss_and_gradient, initial_weights(options.seed), options.steps)

    found, wanted = on_grid(lambda x, t: network(weights, x, t)), on_grid(exact)
    draw_solution(found, wanted, options.out / "solution.png")
    draw_training(losses, options.out / "training.png")
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    print(f"loss {losses[0]:.1e} after one step, {losses[-1]:.1e} after {len(losses)}")
    print(f"relative L2 error: {error:.3%}")
    print(f"solution, error and loss curve: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
