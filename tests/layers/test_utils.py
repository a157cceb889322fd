"""Keras' functions that prepare data, and moving averages of variables."""

import random

import numpy as np
import pytest

import tracegraph as tg

utils = tg.keras.utils


def test_a_seed_is_that_of_python_numpy_and_tracegraph():
    def draw():
        utils.set_random_seed(7)
        return random.random(), np.random.rand(), float(tg.random.uniform([]))

    assert draw() == draw()
    assert random.random() != draw()[0]
    with pytest.raises(ValueError, match=r"from 0 to 4294967295$"):
        utils.set_random_seed(-1)


@pytest.mark.parametrize(
    ("x", "classes", "wanted"),
    [
        ([0, 2], None, [[1, 0, 0], [0, 0, 1]]),
        (np.array([[[1], [0]]], np.uint8), 2, [[[0, 1], [1, 0]]]),
        (1, 3, [0, 1, 0]),
        ([1.0, 0.0], None, [[0, 1], [1, 0]]),
        (np.zeros([0], int), 2, np.zeros([0, 2])),
    ],
)
def test_classes_become_rows(x, classes, wanted):
    """As Keras' do: a last axis of size 1 is dropped."""
    found = utils.to_categorical(x, classes)
    assert found.dtype == np.float64
    assert np.array_equal(found, wanted)


def test_classes_of_a_tensor_become_a_tensor():
    found = tg.function(lambda x: utils.to_categorical(x, 3))(tg.constant([[0], [2]]))
    assert found.numpy().tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(("axis", "order"), [(-1, 2), (0, 2), (1, 1), (0, np.inf)])
def test_vectors_are_normalized(axis, order):
    x = np.array([[3.0, 0.0, 4.0], [1.0, 0.0, -2.0]])
    sizes = np.linalg.norm(x, order, axis, keepdims=True)
    wanted = x / np.where(sizes == 0, 1, sizes)
    assert np.allclose(utils.normalize(x, axis, order), wanted)
    found = utils.normalize(tg.constant(x), axis, order)
    assert isinstance(found, tg.Tensor) and np.allclose(found, wanted)


def test_sequences_are_padded_and_cut():
    rows = [[1], [2, 3], [], [4, 5, 6]]
    assert utils.pad_sequences(rows).tolist() == [[0, 0, 1], [0, 2, 3], [0, 0, 0], [4, 5, 6]]
    post = utils.pad_sequences(rows, 2, "float32", "post", "post", value=0.5)
    assert post.dtype == np.float32
    assert post.tolist() == [[1, 0.5], [2, 3], [0.5, 0.5], [4, 5]]
    deep = utils.pad_sequences([[[1, 2]], [[3, 4], [5, 6]]])
    assert deep.tolist() == [[[0, 0], [1, 2]], [[3, 4], [5, 6]]]
    assert utils.pad_sequences([[1, 2]], maxlen=0).shape == (1, 0)


def averaged(average, values, decay, counts=None):
    for step, value in enumerate(values):
        rate = decay if counts is None else min(decay, (1 + counts[step]) / (10 + counts[step]))
        average = average - (1 - rate) * (average - value)
    return average


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("dtype", [tg.float32, tg.float64, tg.bfloat16])
def test_averages_follow_the_formula(dtype, is_traced):
    """They begin with what the variables are when they are made: in a function before its first
    step, as in TensorFlow."""
    count, decay = tg.Variable(0), tg.Variable(0.9)
    plain, counted = tg.Variable([5.0, 2.0], dtype=dtype), tg.Variable(0.5, dtype=dtype)
    first = tg.train.ExponentialMovingAverage(decay)
    second = tg.train.ExponentialMovingAverage(0.999, num_updates=count, name="mean")

    def step(x):
        plain.assign([x, -x])
        counted.assign(x)
        first.apply([plain])
        second.apply([counted])
        count.assign_add(1)

    step = tg.function(step) if is_traced else step
    values = np.array([1.0, 3.0, -2.0, 4.0])
    assert first.average(plain) is None
    for value in values:
        step(tg.constant(value, dtype))
    starts = (5.0, 2.0, 0.5) if is_traced else (1.0, -1.0, 1.0)
    wanted = [averaged(starts[0], values, 0.9), averaged(starts[1], -values, 0.9)]
    average, other = first.average(plain), second.average(counted)
    tolerance = 2e-2 if dtype is tg.bfloat16 else 1e-6
    assert average.dtype is dtype and not average.trainable and other.name.endswith("/mean:0")
    assert np.allclose(average.numpy().astype(float), wanted, tolerance, tolerance)
    mean = averaged(starts[2], values, 0.999, range(4))
    assert np.allclose(other.numpy().astype(float), mean, tolerance, tolerance)


def test_averages_are_saved_with_what_holds_them(tmp_path):
    v = tg.Variable([2.0], name="v")
    ema = tg.train.ExponentialMovingAverage(0.5)
    name = ema.average_name(v)
    ema.apply([v])
    assert ema.average(v).name == f"{name}:0" == "v/ExponentialMovingAverage:0"
    v.assign([4.0])
    ema.apply([v])
    path = tg.train.Checkpoint(v=v, average=ema.average(v)).save(tmp_path / "ckpt")
    ema.average(v).assign([0.0])
    tg.train.Checkpoint(v=v, average=ema.average(v)).restore(path)
    assert ema.average(v).numpy().tolist() == [3.0]
    assert repr(ema) == "<tg.train.ExponentialMovingAverage: decay 0.5, 1 variable>"
