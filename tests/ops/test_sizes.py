"""Sizes that no machine holds are refused before XLA, which would end the process, sees them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import InvalidArgumentError

#: More elements than anybody can address; their square has more than 64 bits.
HUGE = 1_600_000_000_000_000_000
#: Less than any address space, and more than the memory of this machine.
LARGE = 1 << 45
ONE = tg.constant([1.0, 2.0])
IMAGE = tg.ones([1, 2, 2, 1])

MADE = {
    "broadcast_to": lambda n: tg.broadcast_to(1.0, [n, 2]),
    "bincount": lambda n: tg.math.bincount([1, 2], minlength=n),
    "bincount_of_large": lambda n: tg.math.bincount(np.array([1, n])),
    "concat": lambda n: tg.concat([tg.zeros([n])] * 1000, 0),
    "confusion_matrix": lambda n: tg.math.confusion_matrix([0, 1], [0, 1], num_classes=n),
    "diag": lambda n: tg.linalg.diag(np.ones((2, 2, 2, 2)), k=n),
    "dynamic_stitch": lambda n: tg.dynamic_stitch([[0], [n]], [[1.0], [2.0]]),
    "crop_and_resize": lambda n: tg.image.crop_and_resize(IMAGE, [[0.0] * 4], [0], [n, n]),
    "eye": lambda n: tg.eye(2, batch_shape=[n]),
    "fill": lambda n: tg.fill([n, 2], 1),
    "function": lambda n: tg.function(lambda: tg.zeros([n]) + 1.0)(),
    "hann_window": tg.signal.hann_window,
    "kaiser_window": tg.signal.kaiser_window,
    "kaiser_bessel_derived_window": tg.signal.kaiser_bessel_derived_window,
    "linspace": lambda n: tg.linspace(0.0, 1.0, n),
    "linspace_of_tensors": lambda n: tg.linspace(ONE, ONE, n),
    "matmul": lambda n: tg.matmul(tg.zeros([n // 8, 1]), tg.zeros([1, n // 8])),
    "normal": lambda n: tg.random.normal([n]),
    "one_hot": lambda n: tg.one_hot([1, 2], n),
    "outer": lambda n: tg.zeros([n // 8, 1]) + tg.zeros([1, n // 8]),
    "pad": lambda n: tg.pad(ONE, [[n, n]]),
    "range": lambda n: tg.range(n, dtype=tg.int64),
    "range_of_floats": lambda n: tg.range(float(n)),
    "repeat": lambda n: tg.repeat(ONE, n, axis=0),
    "repeat_by_counts": lambda n: tg.repeat(ONE, [n, 1], axis=0),
    "resize": lambda n: tg.image.resize(IMAGE, [n, n]),
    "scatter_nd": lambda n: tg.scatter_nd([[1]], [1.0], [n]),
    "segment_max": lambda n: tg.math.segment_max(ONE, np.array([0, n])),
    "segment_sum": lambda n: tg.math.segment_sum(ONE, np.array([0, n])),
    "sequence_mask": lambda n: tg.sequence_mask([1, 2], n),
    "tile": lambda n: tg.tile(ONE, [n]),
    "unsorted_segment_sum": lambda n: tg.math.unsorted_segment_sum(ONE, [0, 1], n),
    "variable": lambda n: tg.Variable(tg.zeros([n])),
    "vorbis_window": tg.signal.vorbis_window,
    "zeros": lambda n: tg.zeros([n, n]),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", MADE)
def test_a_size_that_no_machine_holds_is_refused_and_leaves_nothing_pending(name):
    before = tg.constant(2.0) * 3.0
    with pytest.raises(InvalidArgumentError, match="addresses more than 72,057,594,037,927,936"):
        MADE[name](HUGE)
    assert before.numpy() == 6.0
    assert (tg.constant(2.0) * 3.0).numpy() == 6.0


def test_sizes_beyond_int32_are_int64_or_refused():
    spec = tg.TensorSpec([2**31], tg.int8)
    for ask in (tg.size, tg.shape):
        with pytest.raises(InvalidArgumentError, match="int32 does not hold 2,147,483,648"):
            tg.function(ask).get_concrete_function(spec)
        known = tg.function(lambda x: ask(x, tg.int64) + 1)  # noqa: B023
        assert "2147483648" in str(known.get_concrete_function(spec).graph)
    found = tg.function(tg.math.segment_sum)
    with pytest.raises(ValueError, match=r"a size is 2,147,483,648, and sizes .* are int32"):
        found([1, 2], tg.constant([0, 2**31 - 1]))


#: What users called, where the name of the row is another.
CALLED = {
    "bincount_of_large": "bincount",
    "concat": "zeros",
    "function": "zeros",
    "linspace_of_tensors": "linspace",
    "matmul": "zeros",
    "outer": "zeros",
    "range_of_floats": "range",
    "repeat_by_counts": "repeat",
    "variable": "zeros",
}


@pytest.mark.parametrize("name", MADE)
def test_a_size_that_no_machine_holds_names_the_function_that_was_called(name):
    with pytest.raises(InvalidArgumentError) as caught:
        MADE[name](HUGE)
    assert str(caught.value).startswith(f"{CALLED.get(name, name)}: ")
    assert caught.value.fact == str(caught.value).split("\n")[0]


@pytest.mark.parametrize("name", sorted(MADE.keys() - {"zeros", "matmul", "outer"}))
def test_what_is_larger_than_memory_takes_no_other_value_with_it(name):
    kept = tg.constant(2.0) * 3.0
    with pytest.raises(InvalidArgumentError, match=r"memory|addresses more than"):
        MADE[name](LARGE).numpy()
    assert kept.numpy() == 6.0


def test_a_diagonal_far_outside():
    with pytest.raises(InvalidArgumentError) as caught:
        tg.linalg.diag(np.ones((2, 2, 2, 2)), k=1070828000000)
    assert "[2,2,2,1070828000002,1070828000002] takes 73,387,046,757,650,131,968,000,256" in str(
        caught.value
    )


@pytest.mark.parametrize("shape", [[2**62, 2**62, 0], [2**64], [2**63 - 1], [3] * 40])
def test_products_of_sizes_do_not_overflow(shape):
    with pytest.raises(InvalidArgumentError):
        tg.zeros(shape)


@pytest.mark.parametrize(
    "make",
    [
        tg.eye,
        lambda n: tg.linspace(0.0, 1.0, n),
        lambda n: tg.one_hot([1], n),
        lambda n: tg.repeat(ONE, n),
        lambda n: tg.zeros([n]),
    ],
)
@pytest.mark.parametrize("size", [2**63, 10**30])
def test_a_size_of_more_than_64_bits_is_refused_as_every_size_that_no_machine_holds(make, size):
    with pytest.raises(InvalidArgumentError, match="64 bits"):
        make(size)


def test_a_number_of_partitions_that_no_machine_holds():
    with pytest.raises(InvalidArgumentError, match="1,000,000,000,000 partitions are as many"):
        tg.dynamic_partition([1.0, 2.0], [0, 1], 10**12)


def test_negative_sizes_are_refused():
    for make in (tg.zeros, tg.ones, tg.random.normal, lambda s: tg.fill(s, 1)):
        with pytest.raises(ValueError, match="zero or more"):
            make([-2, -3])


def test_an_open_size_that_grows_too_large_names_its_line():
    @tg.function(input_signature=[tg.TensorSpec([None, 1]), tg.TensorSpec([1, None])])
    def f(x, y):
        return tg.reduce_sum(tg.repeat(x * y, 1 << 54, 0))  # grows

    assert f.get_concrete_function() is not None
    with pytest.raises(InvalidArgumentError, match="# grows"):
        f(tg.ones([3, 1]), tg.ones([1, 3]))


def test_an_image_that_no_machine_holds_is_refused_before_its_rows_are_made():
    with pytest.raises(InvalidArgumentError, match="addresses more than"):
        tg.image.resize(IMAGE, [1 << 30, 1 << 30])


def test_one_result_too_many_does_not_take_the_others_along():
    good, bad = tg.ones([2]) + 1.0, tg.one_hot(tg.constant([1, 2]), 1 << 40)
    assert good.numpy().tolist() == [2.0, 2.0]
    with pytest.raises(InvalidArgumentError, match="a result f32"):
        bad.numpy()
    assert (good + 1.0).numpy().tolist() == [3.0, 3.0]


def test_a_refused_op_keeps_nothing_alive():
    """A cycle of the error with its frames would keep operands, which are then computed."""

    def refused():
        x = tg.zeros([1 << 33, 1]) + 1.0
        operands.append(weakref.ref(x))
        return x + tg.zeros([1, 1 << 33])

    operands: list = []
    gc.disable()
    try:
        with pytest.raises(InvalidArgumentError):
            refused()
        assert (tg.constant(2.0) * 3.0).numpy() == 6.0
        assert operands[0]() is None
    finally:
        gc.enable()
