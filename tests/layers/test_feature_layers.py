"""Layers that prepare features, against NumPy; expected numbers of quantiles are those of Keras."""

import numpy as np
import pytest

import tracegraph as tg

L = tg.layers
ROWS = np.array([[0, 1], [0, 0], [1, 2], [3, 1]])
VALUES = np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]])


def test_categories_are_vectors():
    counts = np.eye(4, dtype=np.float32)[ROWS].sum(1)
    assert np.array_equal(L.CategoryEncoding(4)(ROWS).numpy(), counts > 0)
    assert np.array_equal(L.CategoryEncoding(4, "count")(ROWS).numpy(), counts)
    weights = np.float32([[0.1, 0.2], [0.1, 0.1], [0.2, 0.3], [0.4, 0.2]])
    summed = (np.eye(4, dtype=np.float32)[ROWS] * weights[..., None]).sum(1)
    assert np.array_equal(
        L.CategoryEncoding(4, "count")(ROWS, count_weights=weights).numpy(), summed
    )
    one_hot = L.CategoryEncoding(4, "one_hot")
    assert np.array_equal(one_hot(ROWS).numpy(), np.eye(4)[ROWS])
    assert np.array_equal(one_hot(ROWS[:, :1]).numpy(), np.eye(4)[ROWS[:, 0]])
    assert one_hot(2).shape == (1, 4)
    assert L.CategoryEncoding(4, "multi_hot")([3, 1]).numpy().tolist() == [0, 1, 0, 1]
    assert L.CategoryEncoding(4, dtype="int64")(np.uint8([3, 1, 9])).dtype is tg.int64


@pytest.mark.parametrize("mode", ["multi_hot", "count"])
def test_categories_of_an_open_number_of_examples(mode):
    """In a function, with the gradient of the weights."""
    layer = L.CategoryEncoding(4, mode)
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, 2], tg.int32)])
    assert np.array_equal(f(ROWS.astype(np.int32)).numpy(), layer(ROWS).numpy())
    if mode == "count":
        weights = tg.Variable(tg.ones([4, 2]))
        with tg.GradientTape() as tape:
            total = tg.reduce_sum(layer(ROWS, count_weights=weights) * [1.0, 2.0, 3.0, 4.0])
        assert np.array_equal(tape.gradient(total, weights).numpy(), ROWS + 1.0)


def test_an_open_last_axis_may_be_of_size_1():
    layer = L.CategoryEncoding(4, "one_hot")
    f = tg.function(layer, input_signature=[tg.TensorSpec([None, None], tg.int32)])
    for rows in (ROWS, ROWS[:, :1]):
        rows = rows.astype(np.int32)
        assert np.array_equal(f(rows).numpy(), layer(rows).numpy())


def test_numbers_are_in_ranges():
    bounds = [0.0, 1.0, 2.0]
    found = L.Discretization(bounds)(VALUES)
    assert found.dtype is tg.int32
    assert np.array_equal(found.numpy(), np.digitize(VALUES, bounds))
    edges = L.Discretization(bounds)([np.nan, np.inf, -np.inf]).numpy()
    assert edges.tolist() == [3, 3, 0]
    counts = L.Discretization(bounds, output_mode="count")(VALUES).numpy()
    assert counts.tolist() == [[1, 1, 1, 1], [0, 2, 1, 1]]
    assert L.Discretization(bounds, output_mode="one_hot")(VALUES).shape == (2, 4, 4)
    assert L.Discretization([])(VALUES).numpy().max() == 0


def test_boundaries_are_found_in_data(tmp_path):
    layer = L.Discretization(num_bins=4, epsilon=0.01)
    with pytest.raises(ValueError, match="no boundaries yet"):
        layer(VALUES)
    layer.adapt(VALUES)
    assert layer.bin_boundaries == [0.0, 0.5, 1.2999999523162842]
    assert layer(VALUES).numpy().tolist() == [[0, 2, 3, 2], [1, 3, 3, 1]]
    path = tg.train.Checkpoint(layer=layer).save(tmp_path / "ckpt")
    other = L.Discretization(num_bins=4)
    tg.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert np.array_equal(other(VALUES).numpy(), layer(VALUES).numpy())
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(50, 3)), rng.normal(size=(77, 3))]
    layer = L.Discretization(num_bins=4, epsilon=0.1)
    layer.adapt(batches)
    assert layer.bin_boundaries == [
        -0.6438790559768677,
        0.0004141703830100596,
        0.7827306985855103,
    ]
    layer.adapt(iter(batches), steps=1)
    assert layer.bin_boundaries != other.bin_boundaries


def test_fewer_elements_than_ranges_leave_the_last_ranges_empty():
    layer = L.Discretization(num_bins=4, output_mode="one_hot")
    layer.adapt(np.array([1.0, 2.0]))
    assert layer.bin_boundaries == [1.0]
    assert layer([0.0, 5.0, np.inf, np.nan]).numpy().argmax(-1).tolist() == [0, 1, 1, 1]
    many = L.Discretization(num_bins=49)
    many.adapt(np.arange(1000.0))
    assert len(many.bin_boundaries) == 48


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: L.CategoryEncoding(), "num_tokens, the number of categories, is missing"),
        (lambda: L.CategoryEncoding(4, sparse=True), "all tensors are dense"),
        (lambda: L.CategoryEncoding(4)(ROWS, count_weights=ROWS), "output_mode is 'multi_hot'"),
        (lambda: L.CategoryEncoding(4)(ROWS[None]), "are a vector, and there is"),
        (lambda: L.CategoryEncoding(4)([[-1]]), "count from 0, and there is -1"),
        (lambda: L.Discretization(), "bin_boundaries is None, and num_bins is None"),
        (lambda: L.Discretization([2.0, 1.0]), r"the boundaries are \[2.0, 1.0\]"),
        (lambda: L.Discretization([1.0]).adapt(VALUES), "the boundaries were given"),
        (lambda: L.Discretization(num_bins=2).adapt([]), "there are no data"),
        (lambda: L.Discretization(num_bins=2).adapt([1.0]), "a batch is an array"),
        (lambda: L.Discretization(num_bins=2).adapt(VALUES * np.nan), "a boundary is nan"),
        (lambda: L.Discretization(num_bins=2).adapt(VALUES * 1j), "given as complex128"),
        (lambda: L.Normalization().adapt(np.array(["a"])), "given as str32"),
    ],
)
def test_what_does_not_fit_is_refused(make, fact):
    with pytest.raises((ValueError, TypeError), match=fact):
        make()
