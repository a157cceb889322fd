"""What GPUs compute in another way than CPUs, computed in that way on a CPU."""

import numpy as np
import pytest
from jax import lax

import tracegraph as tg
from lowering import forms
from tracegraph.eager import pending
from tracegraph.ops.index import ScatterUpdate


@pytest.fixture
def form_for_cuda(monkeypatch):
    """Rules that have several forms choose that for CUDA."""

    def chosen(*xs, default, **others):
        return others.get("cuda", default)(*xs)

    monkeypatch.setattr(lax, "platform_dependent", chosen)
    monkeypatch.setattr(forms, "_has_only_cpus", lambda: False)
    monkeypatch.setattr(pending, "_programs", pending._Programs(pending._PROGRAM_LIMIT))


def numbers(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("y", [np.float32(41.3), numbers(1024), numbers(256, 1024)], ids=np.ndim)
def test_float32_quotients_are_rounded_once(form_for_cuda, y):
    x = numbers(256, 1024)
    found = tg.function(lambda x, y: x / y)(x, y)
    np.testing.assert_array_equal(found, x / y)


def test_quotients_of_zeros_infinities_and_nan(form_for_cuda):
    x, y = np.meshgrid(*2 * [np.float32([0.0, -0.0, 1, -3, np.inf, -np.inf, np.nan])])
    with np.errstate(all="ignore"):
        wanted = x / y
    found = tg.function(lambda x, y: x / y)(x, y).numpy()
    np.testing.assert_array_equal(found, wanted)
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(wanted)[is_number])


def last_written(x, at, updates):
    y = x.copy()
    for place, update in zip(at, updates, strict=True):  # as a plain loop: the last stays
        y[tuple(place)] = update
    return y


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("rank", [1, 2])
def test_of_several_updates_for_one_place_the_last_stays(form_for_cuda, rank, dtype):
    x, rng = numbers(3, 4, 2), np.random.default_rng(8)
    at = rng.integers(0, 3, (20, rank)).astype(dtype)
    updates = numbers(20, *x.shape[rank:])
    found = tg.tensor_scatter_nd_update(x, at, updates)
    np.testing.assert_array_equal(found, last_written(x, at, updates))


def test_the_gradient_knows_which_update_stayed(form_for_cuda):
    x, updates = tg.constant(numbers(5)), tg.constant(numbers(8))
    at, weights = np.array([0, 1, 1, 4, 0, 4, 4, 2]), numbers(5)

    @tg.function
    def gradients(x, updates):
        with tg.GradientTape() as tape:
            tape.watch([x, updates])
            y = tg.reduce_sum(tg.tensor_scatter_nd_update(x, at[:, None], updates) * weights)
        return tape.gradient(y, [x, updates])

    by_x, by_updates = gradients(x, updates)
    stays = [at[i] not in at[i + 1 :] for i in range(8)]
    np.testing.assert_array_equal(by_updates, np.where(stays, weights[at], 0))
    np.testing.assert_array_equal(by_x, np.where(np.isin(range(5), at), 0, weights))


def test_of_several_updates_in_each_example_the_last_stays(form_for_cuda):
    """With a batch axis, and an axis between it and the one that is indexed."""
    x, updates = numbers(2, 3, 4), numbers(2, 3, 10)
    at = np.random.default_rng(9).integers(0, 4, (2, 10))
    found = tg.function(ScatterUpdate(2, 1))(x, at[..., None], updates)
    wanted = x.copy()
    for example in range(2):
        for number, place in enumerate(at[example]):
            wanted[example, :, place] = updates[example, :, number]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("clamps", [False, True])
def test_updates_outside(form_for_cuda, clamps):
    """They are dropped, or belong to the nearest place."""
    x, updates = numbers(4), numbers(6)
    at = np.array([1, -2, 7, 3, 0, 9])
    op = ScatterUpdate(0, 0, clamps)
    found = tg.function(op)(tg.constant(x), tg.constant(at[:, None]), tg.constant(updates))
    inside = np.clip(at, 0, 3) if clamps else at
    kept = [(place, update) for place, update in zip(inside, updates) if 0 <= place < 4]
    wanted = last_written(x, [(place,) for place, _ in kept], [update for _, update in kept])
    np.testing.assert_array_equal(found, wanted)
