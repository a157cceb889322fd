"""Gradients of some rows: `tg.IndexedSlices` in every optimizer, dense and with `sparse_updates`.

The oracles are the dense step, whose formulae `test_optimizers.py` holds, and NumPy.
"""

import inspect

import numpy as np
import pytest

import tracegraph as tg
from tracegraph import optimizers

RANDOM = np.random.default_rng(11)
TABLE = RANDOM.normal(size=(6, 3)).astype(np.float32)
VALUES = RANDOM.normal(size=(4, 3)).astype(np.float32)
INDICES = np.array([4, 1, 4, 0])
NAMED, OTHERS = [0, 1, 4], [2, 3, 5]
WHOLE = np.zeros_like(TABLE)
np.add.at(WHOLE, INDICES, VALUES)

OPTIMIZERS = {
    "sgd": lambda **k: optimizers.SGD(0.1, **k),
    "momentum": lambda **k: optimizers.SGD(0.1, momentum=0.9, nesterov=True, **k),
    "rmsprop": lambda **k: optimizers.RMSprop(0.1, centered=True, momentum=0.5, **k),
    "adagrad": lambda **k: optimizers.Adagrad(0.1, **k),
    "adadelta": lambda **k: optimizers.Adadelta(0.1, **k),
    "adam": lambda **k: optimizers.Adam(0.1, amsgrad=True, **k),
    "adamw": lambda **k: optimizers.AdamW(0.1, weight_decay=0.1, **k),
    "adamax": lambda **k: optimizers.Adamax(0.1, **k),
    "nadam": lambda **k: optimizers.Nadam(0.1, **k),
    "schedule-free": lambda **k: optimizers.ScheduleFreeAdamW(0.1, **k),
    "lamb": lambda **k: optimizers.Lamb(0.1, **k),
    "lion": lambda **k: optimizers.Lion(0.1, **k),
    "ftrl": lambda **k: optimizers.Ftrl(0.1, **k),
    "adafactor": lambda **k: optimizers.Adafactor(0.1, **k),
    "muon": lambda **k: optimizers.Muon(0.1, **k),
}
BY_ROWS = [name for name in OPTIMIZERS if name not in ("lamb", "adafactor", "muon")]


def slices():
    return tg.IndexedSlices(VALUES, INDICES)


def after(optimizer, gradients, start=TABLE):
    """The variable, and what is kept for it, after steps with these gradients."""
    v = tg.Variable(start)
    for gradient in gradients:
        optimizer.apply_gradients([(gradient, v)])
    return [x.numpy() for x in (v, *optimizer._slots_of(v))]


def close(found, expected):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-6)


CLASSES = [name for name in optimizers.__all__ if isinstance(getattr(optimizers, name), type)]


def test_every_optimizer_is_tried():
    classes = {type(make()) for make in OPTIMIZERS.values()}
    rest = {optimizers.Optimizer, optimizers.LossScaleOptimizer}
    public = {getattr(optimizers, name) for name in CLASSES}
    assert classes == public - rest


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_sparse_updates_rows_that_are_not_named_have_a_gradient_of_0(name):
    first = RANDOM.normal(size=TABLE.shape).astype(np.float32)
    found = after(OPTIMIZERS[name](), [first, slices(), slices()])
    expected = after(OPTIMIZERS[name](), [first, WHOLE, WHOLE])
    for x, y in zip(found, expected, strict=True):
        assert np.array_equal(x, y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("gradient", ["slices", "dense"])
def test_sparse_updates_are_the_steps_of_a_table_of_those_rows(name, gradient):
    first = RANDOM.normal(size=TABLE.shape).astype(np.float32)
    given = slices() if gradient == "slices" else WHOLE
    before = after(OPTIMIZERS[name](), [first])
    found = after(OPTIMIZERS[name](sparse_updates=True), [first, given, given])
    alone = after(OPTIMIZERS[name](), [x[NAMED] for x in (first, WHOLE, WHOLE)], TABLE[NAMED])
    close([x[NAMED] for x in found], alone)
    for x, y in zip(found, before, strict=True):
        assert np.array_equal(x[OTHERS], y[OTHERS])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [slices(), WHOLE], ids=["slices", "dense"])
def test_sparse_updates_of_lamb_go_by_the_norms_of_the_whole_variable(given):
    found = after(OPTIMIZERS["lamb"](sparse_updates=True), [given])
    expected = after(OPTIMIZERS["lamb"](), [WHOLE])
    close([x[NAMED] for x in found], [x[NAMED] for x in expected])
    assert np.array_equal(found[0][OTHERS], TABLE[OTHERS])


def test_sgd_by_numpy_bit_for_bit():
    rate = np.float32(0.25)
    (found,) = after(optimizers.SGD(0.25, sparse_updates=True), [slices()])
    assert np.array_equal(found, TABLE - rate * WHOLE)


def test_adam_by_numpy():
    found, m, v = after(optimizers.Adam(0.1, sparse_updates=True), [slices(), slices()])
    w, first, second = (x.astype(np.float64) for x in (TABLE, 0 * TABLE, 0 * TABLE))
    for t in (1, 2):
        g = WHOLE[NAMED]
        first[NAMED] += (g - first[NAMED]) * (1 - 0.9)
        second[NAMED] += (g**2 - second[NAMED]) * (1 - 0.999)
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w[NAMED] -= rate * first[NAMED] / (np.sqrt(second[NAMED]) + 1e-7)
    np.testing.assert_allclose(found, w, rtol=1e-4)
    np.testing.assert_allclose(m, first, rtol=1e-5)
    np.testing.assert_allclose(v, second, rtol=1e-5)


def test_a_row_that_is_named_is_touched_though_its_gradient_is_0():
    moving = tg.IndexedSlices([[1.0, 1.0]], [2])
    still = tg.IndexedSlices([[0.0, 0.0]], [2])
    zeros = np.zeros((4, 2), np.float32)
    named = after(optimizers.SGD(1.0, momentum=0.5, sparse_updates=True), [moving, still], zeros)
    dense = after(optimizers.SGD(1.0, momentum=0.5, sparse_updates=True), [moving, zeros], zeros)
    assert named[0][2].tolist() == [-1.5, -1.5] and dense[0][2].tolist() == [-1.0, -1.0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"clipnorm": 0.5}, 0.5 / np.linalg.norm(WHOLE)),
        ({"global_clipnorm": 0.5}, 0.5 / np.sqrt(np.sum(WHOLE**2) + 4.0)),
        ({"loss_scale_factor": 4.0}, 0.25),
    ],
    ids=["clipnorm", "global_clipnorm", "loss_scale"],
)
def test_bounds_are_those_of_the_dense_gradient(settings, scale, is_sparse):
    """Values of one row add up before their norm is taken."""
    v, other = tg.Variable(TABLE), tg.Variable([0.0])
    optimizer = optimizers.SGD(1.0, sparse_updates=is_sparse, **settings)
    optimizer.apply_gradients([(slices(), v), (tg.constant([2.0]), other)])
    np.testing.assert_allclose(v.numpy(), TABLE - scale * WHOLE, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_clipvalue_bounds_the_sums(is_sparse):
    (found,) = after(optimizers.SGD(1.0, clipvalue=0.3, sparse_updates=is_sparse), [slices()])
    np.testing.assert_allclose(found, TABLE - np.clip(WHOLE, -0.3, 0.3), rtol=1e-6)


def test_weight_decay_is_that_of_the_rows_that_are_touched():
    optimizer = optimizers.SGD(0.5, weight_decay=0.1, sparse_updates=True)
    (found,) = after(optimizer, [slices()])
    assert np.array_equal(found[OTHERS], TABLE[OTHERS])
    expected = TABLE * (1 - 0.05) - 0.5 * WHOLE
    np.testing.assert_allclose(found[NAMED], expected[NAMED], rtol=1e-5, atol=1e-6)


def test_running_means_of_variables_are_of_all_rows():
    optimizer = optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, sparse_updates=True)
    v = tg.Variable(TABLE)
    optimizer.apply_gradients([(slices(), v)])
    v.assign(v + 1.0)
    optimizer.apply_gradients([(slices(), v)])
    optimizer.finalize_variable_values([v])
    expected = 0.5 * (TABLE - WHOLE) + 0.5 * (TABLE + 1 - 2 * WHOLE)
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_constraints_see_the_whole_variable():
    v = tg.Variable(TABLE, constraint=lambda w: w / tg.norm(w))
    optimizers.SGD(0.1, sparse_updates=True).apply_gradients([(slices(), v)])
    assert np.linalg.norm(v.numpy()) == pytest.approx(1.0)


def test_gradients_that_wait_are_dense():
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2, sparse_updates=True)
    v = tg.Variable(TABLE)
    optimizer.apply_gradients([(slices(), v)])
    assert np.array_equal(v.numpy(), TABLE)
    optimizer.apply_gradients([(tg.IndexedSlices([[2.0, 2.0, 2.0]], [5]), v)])
    expected = TABLE - WHOLE / 2
    expected[5] -= 1.0
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [False, True])
def test_a_loss_scale_optimizer_passes_rows_on(bad):
    inner = optimizers.SGD(1.0, momentum=0.5, sparse_updates=True)
    optimizer = optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
    v = tg.Variable(TABLE)
    values = np.where(bad, np.inf, VALUES).astype(np.float32)
    optimizer.apply_gradients([(tg.IndexedSlices(values, INDICES), v)])
    expected = TABLE if bad else TABLE - WHOLE / 2
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert float(optimizer.dynamic_scale) == (1.0 if bad else 2.0)


def test_a_step_on_gathered_rows_is_one_program_that_makes_nothing_as_large_as_the_table():
    """What the guide says of large tables: the gradient is by the rows that were read."""
    table = tg.Variable(tg.zeros([50_000, 4]))
    optimizer = optimizers.Adagrad(1.0, sparse_updates=True)

    @tg.function
    def step(ids):
        with tg.GradientTape() as tape:
            rows = tg.gather(table, ids)
            tape.watch(rows)
            loss = tg.reduce_sum(tg.square(rows - 1.0))
        gradient = tg.IndexedSlices(tape.gradient(loss, rows), ids)
        optimizer.apply_gradients([(gradient, table)])

    step(tg.constant([7, 7, 40_000]))
    found = table.numpy()
    assert sorted(set(np.nonzero(found)[0])) == [7, 40_000]
    made = [n for n in step.graph(tg.constant([7, 7, 40_000])).nodes if n.op.name != "read"]
    large = {n.op.name for n in made if (n.outputs[0].type.shape or [0])[0] == 50_000}
    assert large == {"scatter_update"}


@pytest.mark.parametrize(
    ("gradient", "kind", "words"),
    [
        (
            tg.IndexedSlices([[1.0]], [0]),
            "ShapeError",
            r"f32\[1,1\] .* not rows of",
        ),
        (tg.IndexedSlices([[1.0, 1.0, 1.0]], [6]), "InvalidArgumentError", "6 is out of range"),
        (tg.IndexedSlices(tg.ones([1, 3], tg.float64), [0]), "DTypeError", "float64|f64"),
        (tg.IndexedSlices([[1.0, 1.0, 1.0]], [0.5]), "DTypeError", "indices"),
    ],
)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_slices_that_do_not_fit_are_refused(gradient, kind, words, is_sparse):
    v = tg.Variable(TABLE)
    with pytest.raises(getattr(tg.errors, kind), match=words):
        optimizers.SGD(0.1, sparse_updates=is_sparse).apply_gradients([(gradient, v)])
    assert np.array_equal(v.numpy(), TABLE)


def test_a_scalar_has_no_rows():
    with pytest.raises(tg.errors.ShapeError, match="of a scalar"):
        optimizers.SGD(0.1).apply_gradients([(tg.IndexedSlices(1.0, 0), tg.Variable(1.0))])


# Elsewhere.


def test_slices_are_a_tensor_where_one_is_asked_for():
    given = tg.IndexedSlices(VALUES, INDICES, dense_shape=(6, 3))
    assert np.array_equal(tg.convert_to_tensor(given).numpy(), WHOLE)
    assert np.array_equal(tg.add_n([given, tg.ones([6, 3])]).numpy(), WHOLE + 1)
    assert np.array_equal((tg.ones([6, 3]) + given).numpy(), WHOLE + 1)
    with pytest.raises(tg.errors.SignatureError, match="without a dense_shape are not a tensor"):
        tg.convert_to_tensor(slices())


def test_clipping_takes_the_norm_of_the_values():
    found = tg.clip_by_norm(tg.IndexedSlices([[3.0], [4.0]], [1, 1]), 1.0)
    assert isinstance(found, tg.IndexedSlices) and list(found.indices) == [1, 1]
    np.testing.assert_allclose(found.values.numpy(), [[0.6], [0.8]], rtol=1e-6)
    (clipped, rest), norm = tg.clip_by_global_norm([tg.IndexedSlices([[3.0]], [1]), [4.0]], 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped.values.numpy(), [[0.6]], rtol=1e-6)
    np.testing.assert_allclose(rest.numpy(), [0.8], rtol=1e-6)


# The arguments that optimizers share.


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_show_every_argument(name):
    parameters = inspect.signature(getattr(optimizers, name)).parameters
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
    if name != "LossScaleOptimizer":
        assert {"weight_decay", "clipnorm", "use_ema", "sparse_updates", "name"} <= {*parameters}
        assert "shared" not in parameters


def test_shared_arguments_go_by_position_too_and_unknown_ones_are_refused():
    optimizer = optimizers.SGD(0.1, 0.9, True, 0.5, 2.0)
    assert (optimizer.weight_decay, optimizer.clipnorm) == (0.5, 2.0)
    with pytest.raises(TypeError, match=r"SGD: there is no argument 'clip'"):
        optimizers.SGD(clip=1.0)
    assert optimizers.AdamW().weight_decay == 0.004 and optimizers.AdamW(0.1, 0.2).beta_1 == 0.9
