"""Random programs of 5 to 30 public functions of all families agree with JAX, which runs its own
functions: values, gradients, tangents and Hessian-vector products, alone and in parallel loops.

How far a result may be off is what JAX's own results move by where the inputs move a little.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.compiling import QUICK
from tests.function_table import ROWS, SIZE, Row

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

#: A program keeps away from larger values.
LARGEST = 30.0
#: How far inputs are moved to see how well a program is conditioned, and how much of that is fine.
MOVE, SLACK = 1e-12, 1e2
WEIGHTS = np.random.default_rng(7).uniform(0.5, 1.5, (SIZE, SIZE))


class Step(NamedTuple):
    row: Row
    #: The numbers of its operands among the inputs and the results of the steps before.
    places: tuple[int, ...]


Program = Sequence[Step]
#: Values of the steps, gradients, second gradients and the tangent of the loss.
Results = list[Any]


def inputs(seed: int) -> list[np.ndarray]:
    """Two inputs for each of two lanes, the lane first."""
    return [np.random.default_rng([seed, k]).standard_normal((2, SIZE, SIZE)) for k in range(2)]


def random_program(seed: int) -> Program:
    """Between 5 and 30 steps, whose values stay finite and of moderate size in both lanes."""
    author = random.Random(seed)
    steps: list[Step] = []
    values = [jnp.asarray(x) for x in inputs(seed)]
    length = author.randint(5, 30)
    while len(steps) < length:
        row = author.choice(ROWS)
        recent = [*range(len(values)), *range(max(len(values) - 3, 0), len(values))]
        step = Step(row, tuple(author.choice(recent) for _ in range(row.count)))
        operands = [values[i] for i in step.places]
        value = jnp.stack([row.theirs(*(x[k] for x in operands)) for k in range(2)])
        if jnp.abs(value).max() < LARGEST:
            values.append(value)
            steps.append(step)
    return steps


def values_of(program: Program, side: str, xs: Sequence[Any]) -> list[Any]:
    values = [*xs]
    for step in program:
        values.append(getattr(step.row, side)(*(values[i] for i in step.places)))
    return values[len(xs) :]


def by_us(program: Program, *xs: Any) -> Results:
    def total() -> tuple[Any, list[Any]]:
        values = values_of(program, "ours", xs)
        return tg.add_n([tg.reduce_sum(tg.sin(y) * WEIGHTS) for y in values]), values

    with tg.GradientTape() as outer:
        outer.watch(xs)
        with tg.GradientTape() as inner:
            inner.watch(xs)
            loss, values = total()
        first = inner.gradient(loss, xs, unconnected_gradients="zero")
        part = tg.add_n([tg.reduce_sum(g * WEIGHTS) for g in first])
    second = outer.gradient(part, xs, unconnected_gradients="zero")
    with tg.autodiff.ForwardAccumulator(xs, (tg.constant(WEIGHTS),) * len(xs)) as accumulator:
        loss, _ = total()
    return [*values, *first, *second, accumulator.jvp(loss, unconnected_gradients="zero")]


def by_jax(program: Program, *xs: Any) -> Results:
    def total(*xs: Any) -> Any:
        values = values_of(program, "theirs", xs)
        return sum(jnp.sum(jnp.sin(y) * WEIGHTS) for y in values), values

    numbers = tuple(range(len(xs)))

    def part(*xs: Any) -> Any:
        first, values = jax.grad(total, numbers, has_aux=True)(*xs)
        return sum(jnp.sum(g * WEIGHTS) for g in first), (first, values)

    second, (first, values) = jax.grad(part, numbers, has_aux=True)(*xs)
    tangent = sum(jnp.sum(g * WEIGHTS) for g in first)
    return [*values, *first, *second, tangent]


def expected_of(program: Program, xs: Sequence[np.ndarray]) -> tuple[list[Any], list[Any]]:
    """JAX's results for both lanes, and how far they move with the inputs."""
    noise = np.random.default_rng(11).uniform(-MOVE, MOVE, xs[0].shape)
    lanes = [np.concatenate([x, x + noise]) for x in xs]
    run = jax.jit(jax.vmap(lambda *xs: by_jax(program, *xs)), compiler_options=QUICK)
    found = [np.asarray(y) for y in run(*lanes)]
    return [y[:2] for y in found], [abs(y[2:] - y[:2]) for y in found]


def in_lanes(program: Program, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    def run(*xs: Any) -> Any:
        return tg.vectorized_map(lambda lane: by_us(program, *lane), xs)

    return [np.asarray(y) for y in tg.function(run)(*map(tg.constant, xs))]


def alone(program: Program, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    run = tg.function(lambda *xs: by_us(program, *xs))
    return [np.asarray(y)[None] for y in run(*(tg.constant(x[0]) for x in xs))]


def at_top_level(program: Program, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    found = by_us(program, *(tg.constant(x[0]) for x in xs))
    return [np.asarray(y)[None] for y in found]


Way = Callable[[Program, Sequence[np.ndarray]], list[np.ndarray]]
WAYS: tuple[Way, ...] = (in_lanes, alone, at_top_level)


def wrong(program: Program, way: Way, xs: Sequence[np.ndarray]) -> list[str]:
    """What differs from JAX by more than rounding may come to."""
    with jax.enable_x64(True):
        expected, moved = expected_of(program, xs)
    found = way(program, xs)
    tolerance = max(step.row.tolerance for step in program)
    problems = []
    for i, (x, y, off) in enumerate(zip(found, expected, moved, strict=True)):
        y, off = y[: len(x)], off[: len(x)]
        scale = max(1.0, np.abs(y).max(initial=0, where=np.isfinite(y)))
        allowed = tolerance * scale + SLACK * off.max()
        is_far = np.isfinite(y) & np.isfinite(allowed) & ~(np.abs(x - y) <= allowed)
        if x.shape != y.shape or is_far.any():
            problems.append(f"result {i} of {len(found)}: {x} is not {y}, allowed is {allowed}")
    return problems


def check(seed: int) -> None:
    with jax.enable_x64(True):
        program = random_program(seed)
    try:
        problems = wrong(program, WAYS[seed % len(WAYS)], inputs(seed))
    except jax.errors.JaxRuntimeError as error:
        if "fft_thunk" not in str(error):
            raise
        pytest.skip("XLA gives JAX's own program a layout that its Fourier transform refuses")
    lines = [f"{step.row} of {step.places}" for step in program]
    assert not problems, "\n".join([*lines, *problems])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row):
    xs = inputs(3)[: row.count]
    problems = wrong([Step(row, tuple(range(row.count)))], in_lanes, xs)
    assert not problems, "\n".join(problems)


SHORT = 2  # a program of few steps, which each run of the tests tries


@pytest.mark.parametrize(
    "seed",
    [SHORT, *(pytest.param(k, marks=pytest.mark.sweep) for k in range(12) if k != SHORT)],
)
def test_programs_of_all_families(seed: int):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20_000, 22_000))
def test_many_programs_of_all_families(seed: int):
    check(seed)
