"""Fits a differential equation to the carbon dioxide over Mauna Loa, by Newton's method.

    dc/dt = emissions(t) - uptake (c - 280 ppm) + seasons(t)

is solved from one measurement to the next by an adaptive Runge-Kutta pair, a Python `while` in a
`tg.scan`: how many steps that takes, and which of them are taken back, the run decides. Misfit,
gradient and full Hessian go through both loops, in one decorated function.

    python examples/co2_ode.py --out out

writes co2.png: data, fit, and the steps that were tried.
"""

import sys
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from statsmodels.datasets import co2
from tqdm import tqdm

import tracegraph as tg

NATURAL = 280.0  # ppm, before industry
UPTAKE = 0.02  # of what is above, by sea and land, in a year
START = 1958.0
TOLERANCE = 1e-5  # ppm, of one step
LARGEST_STEP = 0.5  # years
FALLS_LEAST = 1e-9  # of the misfit, in a step worth taking
NAMES = (
    *("level at the start", "emissions at the start", "their growth"),
    *("yearly sine", "yearly cosine", "half-yearly sine", "half-yearly cosine"),
)
FREQUENCIES, PHASES = np.array([1.0, 1.0, 2.0, 2.0]), np.array([0.0, 0.25, 0.0, 0.25])
FIRST_GUESS = (315.0, 2.0, 0.02, 0.0, 0.0, 0.0, 0.0)


class Weeks(NamedTuple):
    """When something was measured, in years, and what, in ppm."""

    times: np.ndarray
    levels: np.ndarray


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=common.positive, default=30, help="at the most; default: 30"
    )
    parser.add_argument(
        "--every", type=common.positive, default=4, help="one week of n; default: 4"
    )
    return parser.options(arguments)


def load_weeks(every):
    """What Keeling's group measured each week from 1958 on, without the weeks that are missing."""
    table = co2.load_pandas().data["co2"].dropna()
    days = (table.index - table.index[0].replace(month=1, day=1, year=round(START))).days
    times = START + days.to_numpy(np.float64) / 365.2425
    return Weeks(times[::every], table.to_numpy(np.float64)[::every])


def rate(parameters, t, c):
    """dc/dt in ppm a year."""
    emissions = parameters[1] * tg.exp(parameters[2] * (t - START))
    waves = tg.sin(2.0 * np.pi * (FREQUENCIES * t + PHASES))
    return emissions - UPTAKE * (c - NATURAL) + tg.reduce_sum(parameters[3:] * waves)


def step_of(parameters, t, c, h):
    """One step of Bogacki's and Shampine's pair: of third order, and how far the second is off."""
    k1 = rate(parameters, t, c)
    k2 = rate(parameters, t + h / 2.0, c + h / 2.0 * k1)
    k3 = rate(parameters, t + 0.75 * h, c + 0.75 * h * k2)
    new = c + h / 9.0 * (2.0 * k1 + 3.0 * k2 + 4.0 * k3)
    k4 = rate(parameters, t + h, new)
    return new, h * (5.0 * k1 - 6.0 * k2 - 8.0 * k3 + 9.0 * k4) / 72.0


def advanced(parameters, t, c, h, end):
    """c at the time `end`, the step to go on with, and how many steps were tried."""
    tried = 0
    while t < end:
        length = tg.minimum(h, end - t)
        new, error = step_of(parameters, t, c, length)
        size = tg.abs(tg.stop_gradient(error)) / TOLERANCE
        if size <= 1.0:
            t = tg.where(length < end - t, t + length, end)
            c = new
        factor = tg.clip_by_value(0.9 * (size + 1e-9) ** (-1.0 / 3.0), 0.2, 5.0)
        h = tg.minimum(length * factor, LARGEST_STEP)
        tried += 1
    return c, h, tried


def solution(parameters, times):
    """c at each of the times, and how many steps each of them took."""
    zero = tg.zeros_like(times[0])

    def to_next(state, end):
        t, c, h, _ = state
        return end, *advanced(parameters, t, c, h, end)

    begin = (zero + START, parameters[0], zero + 0.01, 0)
    _, levels, _, tried = tg.scan(to_next, times, begin)
    return levels, tried


def make_functions(weeks):
    """A Newton step, the misfit, and the solution with how many steps it took."""
    times, measured = map(tg.constant, weeks)

    def misfit(parameters):
        levels, _ = solution(parameters, times)
        return tg.reduce_mean((levels - measured) ** 2)

    @tg.function
    def newton_step(parameters, damping):
        """Where a step leads to, and the misfit before it, in ppm squared."""
        with tg.GradientTape() as outer:
            outer.watch(parameters)
            with tg.GradientTape() as inner:
                inner.watch(parameters)
                before = misfit(parameters)
            slope = inner.gradient(before, parameters)
        hessian = outer.jacobian(slope, parameters)
        damped = hessian + damping * tg.linalg.diag(tg.abs(tg.linalg.diag_part(hessian)))
        return parameters - tg.linalg.solve(damped, slope[:, tg.newaxis])[:, 0], before

    return newton_step, tg.function(misfit), tg.function(lambda p: solution(p, times))


def fit(newton_step, misfit, steps):
    """Returns the parameters and the misfits: Newton's method, damped where a step would climb."""
    parameters = tg.constant(FIRST_GUESS, tg.float64)
    damping, misfits = 1e-3, []
    with tqdm(total=steps, unit="step", disable=None) as progress:  # silent without a terminal
        for _ in range(steps):
            new, before = newton_step(parameters, tg.constant(damping, tg.float64))
            before, behind = float(before), float(misfit(new))
            misfits = misfits or [before]
            is_lower = behind < before
            parameters = new if is_lower else parameters
            damping *= 0.1 if is_lower else 10.0
            misfits.append(min(before, behind))
            progress.set_postfix(misfit=f"{misfits[-1]:.4f}", refresh=False)
            progress.update()
            if is_lower and before - behind < FALLS_LEAST * before:
                break
    return parameters, np.array(misfits)


def draw(weeks, levels, tried, path):
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 6), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    above.plot(weeks.times, weeks.levels, ".", color="black", markersize=2, label="measured")
    above.plot(weeks.times, levels, color="tab:blue", linewidth=1, label="fitted")
    above.set(ylabel="CO$_2$ in ppm", title="Carbon dioxide over Mauna Loa")
    above.legend()
    below.plot(weeks.times, tried, drawstyle="steps", color="tab:green", linewidth=0.8)
    below.set(xlabel="year", ylabel="steps tried")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    weeks = load_weeks(options.every)
    newton_step, misfit, solve = make_functions(weeks)
    parameters, misfits = fit(newton_step, misfit, options.steps)

    levels, tried = (y.numpy() for y in solve(parameters))
    draw(weeks, levels, tried, options.out / "co2.png")
    for name, value in zip(NAMES, parameters.numpy()):
        print(f"{name:24s}{value:10.4f}")
    first, last = np.sqrt(misfits[[0, -1]])
    print(f"misfit: {first:.3f} ppm at first, {last:.3f} ppm after {len(misfits) - 1} steps")
    print(f"steps between two measurements: {tried.min()} to {tried.max()}")
    print(f"data and fit: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
