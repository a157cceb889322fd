"""Grows a Turing pattern over real terrain, by Newton's method with sparse Jacobians.

The Brusselator, two substances u and v that react and spread, on matplotlib's sample of the land
around Jacksboro, Tennessee. The height of the land is the control parameter B: at the bottom of the
valleys nothing happens, higher up there are spots and stripes.

    du/dt = A - (B + 1) u + u^2 v + D_u lap(u)
    dv/dt =            B u - u^2 v + D_v lap(v)

Each time step is backward Euler: a nonlinear system of 17,372 unknowns, solved by Newton's method.
One decorated function gives the residual and its Jacobian, which has 103,484 entries and costs nine
products; SciPy solves the linear systems.

    python examples/reaction_diffusion.py --out out

writes reaction_diffusion.png, newton.png, and one picture per time step to frames/.
"""

import sys
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import cbook, colors, pyplot as plt
from scipy.ndimage import zoom
from scipy.sparse.linalg import spsolve
from tqdm import tqdm

import tracegraph as tg

A = 4.5
B = (6.0, 10.0)  # in the deepest valley and on the highest mountain; patterns begin at 6.7
DIFFUSION = np.array([2.0, 16.0])  # of u and of v, in squared grid points per unit of time
FIRST_STEP = 0.05
TOLERANCE = 1e-8  # of the residual
MOST_ITERATIONS = 8
SLOWEST = 1e-3  # the pattern stands still when nothing changes faster
PANELS = 8


class Step(NamedTuple):
    """What is kept of a time step: when it ended, how long it was, u, and Newton's residuals."""

    time: float
    length: float
    u: np.ndarray
    residuals: list[float]


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=common.positive, default=80, help="at most; default: 80")
    parser.add_argument(
        "--every",
        type=common.positive,
        default=4,
        help="grid: every n-th point of the terrain; default 4",
    )
    return parser.options(arguments)


def load_terrain():
    """Heights in metres, [344, 403], and the distances in metres between rows and columns."""
    with cbook.get_sample_data("jacksboro_fault_dem.npz") as terrain:
        degree = 111_200.0
        width = degree * terrain["dx"] * np.cos(np.radians(terrain["ymin"]))
        return terrain["elevation"].astype(float), (degree * terrain["dy"], width)


def control_of(heights):
    """B at each grid point."""
    share = (heights - heights.min()) / np.ptp(heights)
    return B[0] + (B[1] - B[0]) * share


def initial_state(control, seed):
    """The state in which nothing happens, and a little noise: [height, width, 2]."""
    noise = 0.01 * np.random.default_rng(seed).normal(size=control.shape)
    return np.stack([A + noise, control / A], axis=-1)


def rates(state, control):
    """d state / dt"""
    u, v = tg.unstack(state, axis=-1)
    reaction = u * u * v
    change = tg.stack([A - (control + 1.0) * u + reaction, control * u - reaction], axis=-1)
    return change + DIFFUSION * laplacian(state)


def laplacian(state):
    """The five-point Laplacian; nothing passes the edges of the map."""
    padded = tg.pad(state, [[1, 1], [1, 1], [0, 0]], "SYMMETRIC")
    rows = padded[:-2, 1:-1] + padded[2:, 1:-1]
    columns = padded[1:-1, :-2] + padded[1:-1, 2:]
    return rows + columns - 4.0 * state


def make_system(control):
    """The residual of a time step, and its Jacobian with respect to the new state."""
    state = tg.TensorSpec([*control.shape, 2], tg.float64)

    @tg.function(input_signature=[state, state, tg.TensorSpec([], tg.float64)])
    def system(new, old, length):
        with tg.GradientTape() as tape:
            tape.watch(new)
            residual = new - old - length * rates(new, control)
        return residual, tape.jacobian(residual, new, sparse=True)

    return system


def advance(system, old, length):
    """Newton's method from the old state. Returns the new one, the residuals, and the Jacobian."""
    new, residuals = old, []
    for _ in range(MOST_ITERATIONS):
        residual, jacobian = system(new, old, length)
        residuals.append(np.abs(residual.numpy()).max())
        if residuals[-1] < TOLERANCE:
            break
        change = spsolve(jacobian.to_scipy(), residual.numpy().ravel())
        new = new - change.reshape(new.shape)
    return new, residuals, jacobian


def simulate(system, state, steps):
    """Steps, longer and longer ones, until the pattern stands still."""
    time, length = 0.0, FIRST_STEP
    history = []
    with tqdm(total=steps, unit="step", disable=None) as progress:  # silent without a terminal
        while len(history) < steps:
            new, residuals, jacobian = advance(system, state, length)
            if not residuals[-1] < TOLERANCE:
                length /= 2
                continue
            time += length
            speed = np.abs(new - state).max() / length
            state = new
            history.append(Step(time, length, state[..., 0], residuals))
            progress.update()
            progress.write(
                f"step {len(history):3}  t {time:8.2f}  Newton iterations {len(residuals) - 1}  "
                f"residual {residuals[-1]:.0e}  colours {jacobian.colors}  nnz {jacobian.nnz}  "
                f"speed {speed:.1e}"
            )
            if speed < SLOWEST:
                break
            length *= 1.4 if len(residuals) <= 5 else 0.7 if len(residuals) > 6 else 1.0
    return history


def over_terrain(u, heights, spacing, norm, cmap):
    """The colours of u on the terrain, lit from the north-west: [344, 403, 3]."""
    fine = zoom(u, np.divide(heights.shape, u.shape), order=1)
    light = colors.LightSource(azdeg=315, altdeg=45)
    rgb = plt.get_cmap(cmap)(norm(fine))[..., :3]
    return light.shade_rgb(
        rgb, heights, blend_mode="soft", vert_exag=4, dy=spacing[0], dx=spacing[1]
    )


def draw_frames(pictures, folder):
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(pictures):
        plt.imsave(folder / f"{number:03}.png", np.clip(picture, 0.0, 1.0))


def draw_contact_sheet(history, pictures, norm, cmap, path):
    shares = np.linspace(0.0, 1.0, PANELS) ** 1.2  # most of it happens early
    shown = np.unique((shares * (len(history) - 1)).round().astype(int))
    figure, axes = plt.subplots(2, PANELS // 2, figsize=(13, 6.2), layout="constrained")
    for place in axes.flat:
        place.set_axis_off()
    for place, number in zip(axes.flat, shown):
        place.imshow(pictures[number])
        place.set_title(f"t = {history[number].time:.3g}")
    scale = plt.cm.ScalarMappable(norm, cmap)
    figure.colorbar(scale, ax=axes, label="concentration u", shrink=0.8)
    figure.suptitle("A Turing pattern on the land around Jacksboro, Tennessee")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_newton(history, path):
    figure, (residual_axes, length_axes) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for step in history:
        residual_axes.semilogy(step.residuals, color="tab:blue", alpha=0.25)
    residual_axes.semilogy(history[0].residuals, "o-", color="tab:orange", label="first step")
    residual_axes.axhline(TOLERANCE, color="gray", linestyle=":", label="tolerance")
    residual_axes.set(
        xlabel="Newton iteration", ylabel="largest residual", title="Each time step converges"
    )
    residual_axes.xaxis.get_major_locator().set_params(integer=True)
    residual_axes.legend()
    numbers = np.arange(1, len(history) + 1)
    length_axes.semilogy(numbers, [step.length for step in history], label="backward Euler")
    length_axes.axhline(
        explicit_length(), color="tab:red", linestyle="--", label="limit of an explicit method"
    )
    length_axes.set(xlabel="time step", ylabel="length", title="Steps grow as the pattern settles")
    length_axes.xaxis.get_major_locator().set_params(integer=True)
    length_axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def explicit_length():
    """The longest stable step of the explicit Euler method, from diffusion alone."""
    return 1.0 / (4.0 * DIFFUSION.max())


def convergence_order(residuals):
    """p in r_next ~ r^p, from the last three residuals."""
    before, falls = np.diff(np.log(residuals[-3:]))
    return falls / before


def main(arguments=None):
    options = parsed_arguments(arguments)
    heights, spacing = load_terrain()
    control = control_of(heights[:: options.every, :: options.every])
    history = simulate(make_system(control), initial_state(control, options.seed), options.steps)

    last = history[-1].u
    norm, cmap = colors.Normalize(last.min(), last.max()), "Spectral_r"
    pictures = [over_terrain(step.u, heights, spacing, norm, cmap) for step in history]
    draw_frames(pictures, options.out / "frames")
    draw_contact_sheet(history, pictures, norm, cmap, options.out / "reaction_diffusion.png")
    draw_newton(history, options.out / "newton.png")

    first = history[0].residuals
    print(
        f"Newton's residuals in the first step: {', '.join(f'{r:.0e}' for r in first)}: "
        f"order {convergence_order(first):.1f}"
    )
    print(
        f"{len(history)} steps to t = {history[-1].time:.1f}; an explicit method needs at least "
        f"{history[-1].time / explicit_length():,.0f}"
    )
    print(f"contact sheet, frames and Newton's convergence: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
