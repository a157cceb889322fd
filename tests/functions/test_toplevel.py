"""The top level: pending nodes, evaluated together, compiled once per structure."""

import copy
import gc
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from benchmarks.memory import peak
from tracegraph.eager import backend, pending
from tracegraph.eager.pending import COUNTS_ARE_TRUSTED, compiled_count
from tracegraph.ir.builder import top_level


def waiting():
    """How many nodes are pending on this thread."""
    return len(top_level().nodes)


def test_nothing_runs_until_a_value_is_asked_for():
    x = tg.constant([1.0, 2.0])
    x.numpy()
    tg.constant(0.0).numpy()
    (tg.ones([]) + 1.0).numpy()
    y = x * 3.0 + 1.0
    assert waiting() == len(top_level().nodes) > 0
    np.testing.assert_array_equal(y.numpy(), [4.0, 7.0])
    assert waiting() == 0


def test_everything_pending_runs_as_one_program(compiled_by):
    x = tg.constant([1.0, 2.0])

    def both():
        y, z = tg.sin(x), tg.cos(x) * 1.5
        y.numpy()
        assert z.is_made

    assert compiled_by(both) == 1
    assert compiled_by(both) == 0


def test_other_numbers_do_not_compile_again(compiled_by):
    def compute(number):
        return (tg.constant([1.0, 2.0]) * number + np.float32(number)).numpy()

    compute(1.25)
    compute(1.5)  # alone, if what other tests left pending was computed with the first
    assert compiled_by(lambda: [compute(0.5 + i) for i in range(20)]) == 0


def test_other_arrays_do_not_compile_again(compiled_by):
    def compute(array):
        return (tg.constant(array) * 2.0).numpy()

    compute(np.zeros(3, np.float32))
    assert compiled_by(lambda: compute(np.ones(3, np.float32))) == 0


#: Without a lock of the interpreter all values count as held.
counts_references = pytest.mark.skipif(
    not COUNTS_ARE_TRUSTED, reason="the interpreter does not count references exactly"
)


@counts_references
def test_values_that_nobody_holds_are_not_made():
    x = tg.constant(np.ones((4, 4), np.float32))
    made = []
    original = pending.set_buffer

    def counting(tensor, buffer):
        made.append(tensor.type)
        original(tensor, buffer)

    pending.set_buffer = counting
    try:
        tg.reduce_sum(tg.exp(tg.tanh(x * 3.5))).numpy()
    finally:
        pending.set_buffer = original
    assert [str(type) for type in made] == ["f32[]"]


@counts_references
def test_value_judged_dead_is_made_again_when_it_turns_up():
    x = tg.constant([1.0, 2.0])
    y = x * 2.0
    z = y + 1.0
    find = pending.held_positions
    pending.held_positions = lambda values, uses, baseline: []
    try:
        top_level().evaluate()
    finally:
        pending.held_positions = find
    assert not z.is_made
    np.testing.assert_array_equal(z.numpy(), [3.0, 5.0])
    np.testing.assert_array_equal(y.numpy(), [2.0, 4.0])


@pytest.mark.parametrize(
    "hold",
    [
        lambda y: [y],
        lambda y: {"a": {"b": y}},
        lambda y: lambda: y,
        lambda y: np.array([y, None], dtype=object),
        lambda y: type("Holder", (), {"y": y})(),
        lambda y: iter([y]),
        lambda y: __import__("functools").partial(print, y),
    ],
    ids=["list", "dict", "closure", "object array", "attribute", "iterator", "partial"],
)
def test_values_held_anywhere_are_made(hold):
    y = tg.tanh(tg.constant([1.0, 2.0])) * 2.0
    kept = hold(y)
    number = id(y)
    del y
    (tg.constant(1.0) + 1.0).numpy()
    (found,) = [t for t in gc.get_objects() if type(t) is tg.Tensor and id(t) == number]
    assert found.is_made
    assert kept is not None


def test_values_that_are_not_held_are_gone_at_once():
    def compute():
        return tg.reduce_sum(tg.tanh(tg.constant(np.ones(100, np.float32)) * 3.25)).numpy()

    compute()
    gc.collect()
    gc.disable()
    try:
        before = sum(type(t) is tg.Tensor for t in gc.get_objects())
        compute()
        assert sum(type(t) is tg.Tensor for t in gc.get_objects()) <= before
    finally:
        gc.enable()


def test_held_by_an_open_tape():
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.sin(tg.exp(x) * tg.exp(x))
        y.numpy()
        z = y * 2.0
    expected = 4.0 * np.exp(2 * x.numpy()) * np.cos(np.exp(2 * x.numpy()))
    np.testing.assert_allclose(tape.gradient(z, x).numpy(), expected, rtol=2e-5)


def growth(action):
    """By how many megabytes the memory of this process grows at most while it runs. What it was
    before any of it counts for nothing: a worker of the tests held more at some time."""
    forgets = Path("/proc/self/clear_refs")
    if forgets.exists():
        forgets.write_text("5")  # the most that was held so far
    before = peak()
    action()
    return peak() - before


@pytest.mark.parametrize("more", [4_000, pytest.param(20_000, marks=pytest.mark.sweep)])
def test_loop_that_never_asks_runs_in_constant_memory(more):
    v = tg.Variable(tg.ones([10]))
    total = tg.constant(0.0)

    def iterate(count):
        nonlocal total
        for _ in range(count):
            y = tg.tanh(v * 0.5) + 1.0
            total = total + tg.reduce_sum(y)

    iterate(2_000)
    programs = compiled_count()
    assert growth(lambda: iterate(more)) < 8  # the nodes alone would be twenty
    assert compiled_count() - programs <= 4
    assert waiting() < 200
    np.testing.assert_allclose(total.numpy(), (2_000 + more) * 10 * (np.tanh(0.5) + 1), rtol=1e-3)


@pytest.mark.parametrize("more", [1_500, pytest.param(5_000, marks=pytest.mark.sweep)])
def test_training_loop_that_never_asks_runs_in_constant_memory(more):
    w = tg.Variable(tg.ones([4, 4]))
    x = tg.constant(np.eye(4, dtype=np.float32))

    def iterate(count):
        for _ in range(count):
            with tg.GradientTape() as tape:
                loss = tg.reduce_mean((x @ w) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    iterate(200)
    programs = compiled_count()
    assert growth(lambda: iterate(more)) < 5  # the nodes alone would be nine
    assert compiled_count() - programs <= 2


def test_long_program_without_a_repetition_is_one_program():
    x = tg.constant([0.5])
    y = x
    for k in range(300):
        y = tg.sin(y) if k % 7 else tg.cos(y)
    assert y.numpy().shape == (1,)


def test_tensor_of_another_thread_is_made():
    box = []
    thread = threading.Thread(target=lambda: box.append(tg.constant(2.0) * 3.0))
    thread.start()
    thread.join()
    assert (box[0] + 1.0).numpy() == 7.0


def test_threads_have_pending_lists_of_their_own():
    errors = []

    def work(seed):
        try:
            x = tg.constant(float(seed))
            for _ in range(200):
                y = x * 2.0 + 1.0
                assert y.numpy() == 2.0 * seed + 1.0
        except BaseException as error:  # reported to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_ndarray_is_copied_when_it_becomes_a_tensor():
    array = np.zeros(1000, np.float32)
    x, v = tg.constant(array), tg.Variable(array)
    y = x + array
    array[:] = 1.0
    assert not x.numpy().any() and not v.numpy().any() and not y.numpy().any()


def test_numpy_gives_a_copy():
    x = tg.constant([1.0, 2.0])
    x.numpy()[:] = 5.0
    np.testing.assert_array_equal(x.numpy(), [1.0, 2.0])


def test_failure_of_one_value_leaves_the_others():
    y = tg.constant([1.0]) * 2.0
    bad = tg.constant([1.0]) + 3.0
    program = pending.backend.program
    calls = []

    def failing(graph, donated=()):
        calls.append(graph)
        if any(node.op.name == "add" for node in graph.nodes) and len(calls) != 2:
            raise RuntimeError("no memory")
        return program(graph, donated)

    pending.backend.program = failing
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            bad.numpy()
    finally:
        pending.backend.program = program
    assert y.is_made or y.numpy() is not None


def test_jax_keeps_its_own_settings():
    import jax
    import jax.numpy as jnp

    x = tg.constant(np.arange(3.0))
    assert (x * 2.0).numpy().dtype == np.float64
    assert tg.function(lambda x: x * 2.0)(x).numpy().dtype == np.float64
    assert not jax.config.jax_enable_x64
    assert jnp.arange(3.0).dtype == jnp.float32


def test_loop_whose_first_nodes_never_come_again():
    x = tg.ones([8])  # not a part of what repeats, so the list is never cut at a repetition
    for _ in range(6_000):
        x = x * 0.999 + 0.001
    np.testing.assert_allclose(x.numpy(), np.ones(8), rtol=1e-4)
    assert waiting() == 0


def test_batches_of_data_share_one_program():
    data = tg.constant(np.arange(64.0, dtype=np.float32).reshape(32, 2))
    array = data.numpy()

    def batch(start):
        return float(tg.reduce_sum(data[start : start + 4]))

    batch(0)
    before = compiled_count()
    assert [batch(k) for k in range(28)] == [array[k : k + 4].sum() for k in range(28)]
    assert compiled_count() == before


def test_arrays_are_laid_out_row_by_row():
    """`.numpy()` is C-ordered, whatever the order of what a tensor was made of."""
    rows = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    x = tg.constant(np.asfortranarray(rows))
    v = tg.Variable(np.asfortranarray(rows))
    loaded = tg.function(lambda y: (y, tg.transpose(y)))(np.asfortranarray(rows))
    v.assign(np.asfortranarray(rows + 1.0))
    for value, wanted in [
        (x, rows),
        (tg.transpose(x), rows.T),
        (v, rows + 1.0),
        (tg.Variable(rows.T), rows.T),
        (loaded[0], rows),
        (loaded[1], rows.T),
    ]:
        for array in (value.numpy(), np.array(value), np.asarray(value)):
            assert array.flags.c_contiguous
            np.testing.assert_array_equal(array, wanted)


def test_shapes_compare_with_what_stands_for_them():
    """TensorFlow: the other is converted by `as_shape`, and what is not a shape is not equal."""
    shape = tg.TensorShape([3])
    for other in (3, np.int64(3), [3], (3,), tg.TensorShape(3), np.array([3]), np.array(3)):
        assert (shape == other) is True and (shape != other) is False, other
        assert (other == shape) is not False
    for other in (4, -1, [3, 3], "a", object(), None, {3}, np.array([3, 4]), 3.5):
        assert (shape == other) is False and (shape != other) is True, other
    assert (tg.TensorShape(None) == 3) is False and (tg.TensorShape([None]) == 3) is False
    assert (tg.TensorShape([]) == 0) is False


@pytest.mark.parametrize("make", [tg.constant, tg.convert_to_tensor, tg.Variable])
def test_ints_beyond_int32_are_int64(make):
    """As in TensorFlow, alone and in lists; NumPy says which numbers they are."""
    for value in (2**31, -(2**31) - 1, 2**40, -(2**63), 2**63 - 1):
        for given in (value, [value, 1], [[1], [value]], (value,)):
            found = make(given)
            assert found.dtype is tg.int64
            np.testing.assert_array_equal(found.numpy(), np.array(given, np.int64))
    for value in (2**31 - 1, -(2**31)):
        assert make(value).dtype is tg.int32 and make([value, 0]).dtype is tg.int32


def test_ints_beyond_int32_are_int64_where_functions_take_and_return_them():
    f = tg.function(lambda x: x)
    for _ in range(2):
        assert f(2**40).dtype is tg.int64 and f(2**40).numpy() == 2**40
        found = f({"b": [2**40, 1], "a": -(2**40)})
        assert [x.dtype for x in found["b"]] == [tg.int64, tg.int32]
        assert found["a"].numpy() == -(2**40)
    double = tg.function(lambda x: 2 * x)
    assert double(2**40).numpy() == 2**41  # computed by Python
    assert tg.reduce_sum([2**40, 1]).numpy() == 2**40 + 1
    assert tg.range(2**40, 2**40 + 2).numpy().tolist() == [2**40, 2**40 + 1]
    assert tg.fill([2], 2**40).numpy().tolist() == [2**40] * 2


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, [2**63], [-1, 2**63], [[1], [2**64]], [1, -(2**70)]]
)
def test_ints_beyond_int64_are_refused(value):
    """NumPy makes floats of some of them without a word."""
    with pytest.raises(TypeError, match=r"the int -?\d+ is outside the range of int64"):
        tg.constant(value)
    with pytest.raises(TypeError, match=r"outside the range of"):
        tg.constant(value, tg.int64)


def test_ints_that_the_dtype_has_room_for():
    assert tg.constant(2**63, tg.uint64).numpy() == 2**63
    assert tg.constant([2**63, 1], tg.uint64).numpy().tolist() == [2**63, 1]
    assert tg.constant([-1, 2**63], tg.float32).dtype is tg.float32
    assert tg.constant([1.5, 2**63]).dtype is tg.float32
    for value, dtype in ((2**40, tg.int32), ([2**40], tg.int32), ([-1, 2**63], tg.uint64)):
        with pytest.raises(TypeError, match=f"outside the range of {dtype.name}"):
            tg.constant(value, dtype)


def test_tensors_of_shapes_that_do_not_broadcast_are_not_equal():
    """TensorFlow: == is `equal` with `incompatible_shape_error=False`."""
    x, y = tg.ones([2]), tg.ones([3])
    for one, other in [
        (x, y),
        (tg.Variable(x), y),
        (x, tg.Variable(y)),
        (x, y.numpy()),
        (y.numpy(), x),
        (x, [1.0, 1.0, 1.0]),
        (tg.ones([2, 2]), tg.ones([3, 1, 3])),
    ]:
        for found, wanted in ((one == other, False), (one != other, True)):
            assert isinstance(found, tg.Tensor) and found.dtype is tg.bool and found.shape == []
            assert found.numpy() == wanted
        for refuse in (tg.equal, tg.not_equal, tg.math.equal):
            with pytest.raises(ValueError, match="do not broadcast"):
                refuse(one, other)
    assert (x == tg.ones([3, 1])).shape == [3, 2] and x not in [y]


def test_comparison_of_shapes_in_a_function():
    f = tg.function(lambda x, y: (x == y, x != y))
    assert [r.numpy() for r in f(tg.ones([2]), tg.ones([3]))] == [False, True]
    assert [r.numpy().tolist() for r in f(tg.ones([2]), tg.ones([2]))] == [[True] * 2, [False] * 2]
    spec = tg.TensorSpec([None])
    g = tg.function(lambda x, y: x == y, input_signature=[spec, spec])
    assert g(tg.ones([2]), tg.ones([2])).numpy().all()
    assert g(tg.ones([2]), tg.ones([3])).numpy() == np.False_


def test_a_pickled_tensor_is_a_tensor_like_any_other():
    pickled = pickle.loads(pickle.dumps(tg.constant([1.0, 2.0]) * 2.0))
    assert str(pickled) == "tg.Tensor([2. 4.], shape=(2,), dtype=float32)"
    assert repr(copy.deepcopy(pickled)) == repr(tg.constant([2.0, 4.0]))
    assert pickled.device and tg.function(lambda x: x + 1.0)(pickled).numpy().tolist() == [3.0, 5.0]


@pytest.mark.parametrize("is_wired", [False, True])
def test_a_value_is_computed_alone_while_another_thread_releases_its_nodes(is_wired):
    """As if the list's own thread had judged the value unneeded before this thread took it."""
    y = tg.exp(tg.constant([0.0, 1.0])) + 1
    order = pending._needed_nodes(y.node)
    of_the_list = pending._Batch(order, order, trust_counts=False)
    of_the_list.held = []
    alone = pending._Batch(order, order, trust_counts=False) if is_wired else None
    of_the_list.release()
    of_the_list.release()  # a second one finds nothing to do
    (alone or pending._Batch(order, order, trust_counts=False)).run()
    np.testing.assert_allclose(y.numpy(), 1 + np.exp([0, 1]), rtol=1e-6)


FILLED = {
    "ones": lambda: tg.ones([3, 1, 7], tg.bfloat16),
    "zeros": lambda: tg.zeros([2, 9], tg.complex64),
    "truth values": lambda: tg.fill([11], True),
    "a slice of a range": lambda: tg.range(13)[2:9:3],
    "a join": lambda: tg.concat([tg.zeros([2, 5]), tg.reverse(tg.ones([3, 5]), [0])], 0),
    "a pad": lambda: tg.pad(tg.transpose(tg.ones([2, 17])), [[1, 0], [0, 2]]),
    "nothing": lambda: tg.zeros([0, 19]),
}


@pytest.mark.parametrize("name", FILLED)
def test_small_tensors_that_are_only_filled_compile_nothing(name, monkeypatch):
    (tg.constant(1.0) + 1.0).numpy()  # with which runs what earlier tests left pending
    expected = tg.function(FILLED[name])().numpy()
    monkeypatch.setattr(backend, "program", None)
    found = FILLED[name]().numpy()
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def test_what_is_filled_may_be_assigned_and_overwritten():
    v = tg.Variable(tg.ones([23]))
    step = tg.function(lambda: v.assign_add(tg.ones([23])))
    kept = tg.ones([23])
    for _ in range(3):
        step()
    v.assign(tg.zeros([23]) + v)
    assert v.numpy().tolist() == [4.0] * 23 and kept.numpy().tolist() == [1.0] * 23


def test_xla_computes_what_is_large_or_on_the_device(monkeypatch):
    x = tg.constant(np.arange(100.0))
    tg.function(lambda x: x + 1.0)(x)  # moves it
    compiled, usual = [], backend.program
    monkeypatch.setattr(backend, "program", lambda graph: compiled.append(graph) or usual(graph))
    assert tg.ones([3, 1 << 21]).numpy().all()
    for start in (1, 2):
        assert tg.reshape(x, [4, 25])[1, start:].numpy().tolist() == [*range(25 + start, 50)]
    assert len(compiled) == 3
