"""Sizes and ranks that are left open: one trace must do what a trace of every size would do.

Every function here is run with its sizes open and as it is, at several sizes, zero and one among
them: the values and the gradients are equal, or both raise the same class of error.
"""

import os
import sys

import numpy as np
import pytest

import tracegraph as tg

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

VECTOR, MATRIX, IMAGES, ANYTHING = (
    tg.TensorSpec(shape, tg.float64)
    for shape in ([None], [None, None], [None, None, None, 2], None)
)


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def here(number: int) -> str:
    """How an error names a line of this file."""
    return f"{os.path.basename(__file__)}:{number}"


def opened(fn, spec=VECTOR):
    """The function with its sizes open."""
    return tg.function(fn, input_signature=[spec])


def numbers(shape):
    """Numbers of which no two are equal."""
    count = int(np.prod(shape))
    return tg.constant(np.random.default_rng(7).permutation(count).reshape(shape) / 4.0 + 0.5)


def differentiated(fn):
    """The gradient of the sum of the squares of what a function returns."""

    def gradient(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            ys = [tg.cast(y, tg.float64) for y in tg.nest.flatten(fn(x))]
            total = tg.add_n([tg.reduce_sum(y * y) for y in ys])
        return tape.gradient(total, x, unconnected_gradients="zero")

    return gradient


def outcome(fn, x):
    """The values that a function returns, or the class of what it raises."""
    try:
        return [np.asarray(y) for y in tg.nest.flatten(fn(x))]
    except Exception as error:
        assert here(0)[:-1] in str(error), "the error names no line of this file"
        return type(error)


def check_same(found, wanted):
    if isinstance(wanted, type) or isinstance(found, type):
        assert found is wanted
        return
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def check_sizes(fn, spec, shapes):
    """A function with its sizes open does what it does as it is."""
    gradient = differentiated(fn)
    plains = [lambda x: (fn(x), gradient(x)), fn, gradient]
    forms = [(opened(plain, spec), plain) for plain in plains]
    for shape in shapes:
        x = numbers(shape)
        for form, plain in forms:
            wanted = outcome(plain, x)
            check_same(outcome(form, x), wanted)
            if not isinstance(wanted, type):
                break  # both at once did not fail, so neither does alone


def open_axes(*sizes):
    return tg.TensorSpec(sizes, tg.float64)


#: Functions whose sizes follow from those of their operands, with the operand and sizes to try.
OF_SIZES = {
    "frame": (lambda x: tg.signal.frame(x, 4, 2), open_axes(None, None), [(2, 9), (3, 3), (1, 4)]),
    "frame, padded": (
        lambda x: tg.signal.frame(x, 4, 3, pad_end=True),
        open_axes(None, None),
        [(2, 9), (3, 3), (1, 4)],
    ),
    "frame of any step": (
        lambda x: tg.signal.frame(x, 1, 5, axis=0),
        open_axes(None, None),
        [(12, 2), (1, 3)],
    ),
    "stft": (
        lambda x: tg.math.real(tg.signal.stft(x, 8, 4)),
        open_axes(None, None),
        [(2, 20), (1, 8), (1, 5)],
    ),
    "overlap_and_add": (
        lambda x: tg.signal.overlap_and_add(x, 2),
        open_axes(None, None, None),
        [(2, 3, 4), (1, 5, 3), (2, 1, 1)],
    ),
    "inverse_stft": (
        lambda x: tg.signal.inverse_stft(tg.complex(x, x), 8, 4),
        open_axes(None, None, 5),
        [(2, 3, 5), (1, 1, 5)],
    ),
    "mfccs": (
        tg.signal.mfccs_from_log_mel_spectrograms,
        open_axes(None, None),
        [(2, 5), (1, 1)],
    ),
    "central_crop": (
        lambda x: tg.image.central_crop(x, 0.6),
        open_axes(None, None, 3),
        [(5, 8, 3), (9, 10, 3), (1, 1, 3)],
    ),
    "resize_with_pad": (
        lambda x: tg.image.resize_with_pad(x, 8, 7),
        open_axes(None, None, 3),
        [(5, 8, 3), (9, 3, 3), (16, 14, 3)],
    ),
    "resize of one scale": (
        lambda x: tg.image.resize(x, [5, 6], preserve_aspect_ratio=True),
        open_axes(None, None, None, 3),
        [(2, 5, 8, 3), (1, 9, 3, 3), (1, 40, 1, 3)],
    ),
    "isotonic_regression": (
        lambda x: tg.nn.isotonic_regression(x).output,
        open_axes(None, None),
        [(3, 5), (2, 1)],
    ),
    "AdaptiveAveragePooling2D": (
        tg.layers.AdaptiveAveragePooling2D(3, dtype="float64"),
        open_axes(None, None, None, 2),
        [(2, 7, 8, 2), (1, 3, 2, 2), (1, 1, 11, 2)],
    ),
    "AdaptiveMaxPooling1D": (
        tg.layers.AdaptiveMaxPooling1D(3, dtype="float64"),
        open_axes(None, None, 2),
        [(2, 7, 2), (1, 1, 2)],
    ),
    "pinv": (tg.linalg.pinv, open_axes(None, None), [(3, 4), (5, 2), (1, 1)]),
    "matrix_rank": (tg.linalg.matrix_rank, open_axes(None, None), [(3, 4), (5, 2)]),
    "diag_part": (tg.linalg.diag_part, open_axes(None, None), [(3, 4), (5, 2), (3, 3)]),
    "three diagonals": (
        lambda x: tg.linalg.diag_part(x, k=(-1, 1)),
        open_axes(None, None),
        [(3, 4), (5, 2), (3, 3), (2, 2)],
    ),
    "eigh_tridiagonal": (
        lambda x: tg.linalg.eigh_tridiagonal(x, x[1:] / 8.0),
        VECTOR,
        [(3,), (1,)],
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_SIZES)
def test_sizes_that_follow_from_open_ones(name):
    check_sizes(*OF_SIZES[name])


THREE = np.array([1.0, 2.0, 3.0])
OF_VECTORS = {
    "split": lambda x: tg.split(x, 2),
    "the first part": lambda x: tg.split(x, 2)[0],
    "split by sizes": lambda x: tg.split(x, [1, 2]),
    "split, the rest": lambda x: tg.split(x, [2, -1]),
    "unstack": lambda x: tg.unstack(x, num=3),
    "repeat by counts": lambda x: tg.repeat(x, [1, 2, 3]),
    "reshape": lambda x: tg.reshape(x, [2, -1]),
    "tail": lambda x: x[1:],
    "head": lambda x: x[:1],
    "without the ends": lambda x: x[1:-1],
    "differences": lambda x: x[1:] - x[:-1],
    "every third": lambda x: x[1::3],
    "backwards by two": lambda x: x[::-2],
    "backwards": lambda x: x[-2:0:-1],
    "an element": lambda x: x[3],
    "an element from the end": lambda x: x[-3],
    "strided_slice": lambda x: tg.strided_slice(x, [1], [4], [2]),
    "slice": lambda x: tg.slice(x, [1], [2]),
    "roll": lambda x: tg.roll(x, 1, 0),
    "roll back": lambda x: tg.roll(x, -2, 0),
    "mirrored": lambda x: tg.pad(x, [[1, 2]], "REFLECT"),
    "squeeze": lambda x: tg.squeeze(x),
    "squeeze one": lambda x: tg.squeeze(x, 0),
    "linspace": lambda x: tg.linspace(0.0, 1.0, x.shape[0]),
    "gather": lambda x: tg.gather(x, [2, 0]),
    "gather_nd": lambda x: tg.gather_nd(x, [[0], [2]]),
    "scatter": lambda x: tg.tensor_scatter_nd_add(x, [[0], [2]], [1.0, 2.0]),
    "boolean_mask": lambda x: tg.boolean_mask(x, [True, False, True]),
    "ensure_shape": lambda x: tg.ensure_shape(x, [3]),
    "broadcast": lambda x: x + tg.constant(THREE),
    "the first with all": lambda x: x * x[:1],
    "the last with all": lambda x: x * x[-1:],
    "running totals": lambda x: tg.cumsum(x, exclusive=True),
    "the shape of the tail": lambda x: tg.shape(x[1:]),
    "the shape of the head": lambda x: tg.zeros(x[:1].shape),
    "softmax": tg.nn.softmax,
    "argmax": tg.argmax,
}
OF_MATRICES = {
    "stack with the transpose": lambda x: tg.stack([x, tg.transpose(x)]),
    "add_n": lambda x: tg.add_n([x, tg.transpose(x)]),
    "concat": lambda x: tg.concat([x, tg.transpose(x)], 0),
    "split of columns": lambda x: tg.split(x, 2, axis=1),
    "ensure_shape": lambda x: tg.ensure_shape(x, [2, 3]),
    "set_diag": lambda x: tg.linalg.set_diag(x, tg.zeros([x.shape[0]], tg.float64)),
    "a corner": lambda x: x[::-1, -2],
    "squeeze": lambda x: tg.squeeze(x),
    "gather of columns": lambda x: tg.gather(x, [1], axis=1),
    "boolean_mask": lambda x: tg.boolean_mask(x, [[True, False, True], [False, True, True]]),
    "roll": lambda x: tg.roll(x, [1, 1], [0, 1]),
    "square": lambda x: x @ x,
    "diagonal": lambda x: tg.einsum("ii->i", x),
}
OF_IMAGES = {
    "max_pool, same": lambda x: tg.nn.max_pool2d(x, 3, 2, "SAME"),
    "max_pool, valid": lambda x: tg.nn.max_pool2d(x, 3, 1, "VALID"),
    "avg_pool, same": lambda x: tg.nn.avg_pool2d(x, 3, 2, "SAME"),
    "avg_pool, valid": lambda x: tg.nn.avg_pool2d(x, 2, 2, "VALID"),
    "conv, same": lambda x: tg.nn.conv2d(x, tg.ones([3, 3, 2, 1], tg.float64), 2, "SAME"),
    "conv, valid": lambda x: tg.nn.conv2d(x, tg.ones([3, 2, 2, 1], tg.float64), 1, "VALID"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_VECTORS)
def test_a_vector_of_open_size(name):
    check_sizes(OF_VECTORS[name], VECTOR, [(5,), (2,), (1,), (0,)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OF_MATRICES)
def test_a_matrix_of_open_sizes(name):
    check_sizes(OF_MATRICES[name], MATRIX, [(3, 3), (2, 3), (3, 1), (0, 2)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_of_open_sizes(name):
    check_sizes(OF_IMAGES[name], IMAGES, [(2, 5, 4, 2), (1, 2, 3, 2), (0, 4, 4, 2), (2, 0, 3, 2)])


NESTED = ("split", "tail", "head", "every third", "backwards by two", "roll", "an element")
NESTED += ("running totals", "gather", "squeeze", "linspace", "broadcast")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NESTED)
def test_a_nested_function_checks_its_sizes_too(name):
    fn = OF_VECTORS[name]
    inner = tg.function(fn)
    for outer, plain in (
        (lambda x: inner(x * 1.0), fn),
        (lambda x: inner(x[1:]), lambda x: fn(x[1:])),
    ):
        gradient, wanted = opened(differentiated(outer)), differentiated(plain)
        for size in (4, 2, 1, 0):
            x = numbers([size])
            check_same(outcome(opened(outer), x), outcome(plain, x))
            check_same(outcome(gradient, x), outcome(wanted, x))


def test_what_is_lost_is_an_error_that_names_the_line():
    halves = opened(lambda x: tg.split(x, 2)); place = here(line())  # fmt: skip  # noqa: E702
    assert [y.numpy().tolist() for y in halves(tg.range(4.0, dtype=tg.float64))] == [[0, 1], [2, 3]]
    with pytest.raises(tg.errors.ShapeError, match="does not divide into 2 equal parts") as caught:
        halves(tg.range(5.0, dtype=tg.float64))
    assert place in str(caught.value)
    concrete = halves.get_concrete_function()
    with pytest.raises(tg.errors.ShapeError, match=r"f64\[5\] does not have the shape \[4\]"):
        concrete(tg.range(5.0, dtype=tg.float64))


def test_an_open_size_that_divides_by_zero_is_an_error_with_a_line():
    concrete = opened(lambda x: tg.roll(x, 1, 0)).get_concrete_function()
    with pytest.raises(tg.errors.ShapeError, match="divided by a size that is 0") as caught:
        concrete(numbers([0]))
    assert here(0)[:-1] in str(caught.value)


def test_one_trace_serves_all_sizes_but_zero():
    f = opened(lambda x: tg.reduce_sum(x[1:] * 2.0))
    assert [f(tg.ones([n], tg.float64)).numpy() for n in (3, 1, 4)] == [4.0, 0.0, 6.0]
    assert f.experimental_get_tracing_count() == 1
    assert [f(numbers([0])).numpy() for _ in range(2)] == [0.0, 0.0]
    assert f.experimental_get_tracing_count() == 2, "an empty batch has a trace of its own"
    named = tg.function(lambda x, y: x + y, input_signature=[tg.TensorSpec(["batch"])] * 2)
    with pytest.raises(tg.errors.TraceError, match="where the names are equal"):
        named(tg.ones([0]), tg.ones([3]))


def test_reduce_retracing_traces_empty_tensors_for_themselves():
    f = tg.function(lambda x: tg.shape(x[:1]), reduce_retracing=True)
    assert [f(tg.ones([n])).numpy().tolist() for n in (3, 4, 0, 5, 0)] == [[1], [1], [0], [1], [0]]


# Unknown rank.

OF_ANYTHING = {
    "shape": tg.shape,
    "size": tg.size,
    "flat": lambda x: tg.reshape(x, [-1]),
    "in rows": lambda x: tg.reshape(x, [-1, 1]),
    "flat and back": lambda x: tg.reshape(tg.cumsum(tg.reshape(x, [-1])), tg.shape(x)),
    "sum": tg.reduce_sum,
    "mean": tg.reduce_mean,
    "largest": tg.reduce_max,
    "product": tg.reduce_prod,
    "std": tg.math.reduce_std,
    "variance": tg.math.reduce_variance,
    "logsumexp": tg.reduce_logsumexp,
    "any": lambda x: tg.reduce_any(x > 1.0),
    "count": tg.math.count_nonzero,
    "centred": lambda x: x - tg.reduce_mean(x),
    "norm": tg.norm,
    "norm of order 1": lambda x: tg.norm(x, 1),
    "clip_by_norm": lambda x: tg.clip_by_norm(x, 1.0),
    "l2_normalize": tg.math.l2_normalize,
    "zeros of the shape": lambda x: tg.zeros(x.shape, x.dtype) + tg.ones(tg.shape(x), x.dtype) * x,
    "broadcast": lambda x: tg.broadcast_to(tg.cast(3.0, x.dtype), tg.shape(x)) * x,
    "squares": lambda x: tg.reduce_mean(tg.square(x - 1.0)),
    "number of axes": lambda x: x * tg.cast(len(tg.shape(x)), x.dtype),
}
SHAPES = [(3,), (2, 3), (), (0,)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OF_ANYTHING)
def test_a_tensor_of_unknown_rank_needs_one_trace(name):
    fn = OF_ANYTHING[name]
    f, gradient = opened(fn, ANYTHING), opened(differentiated(fn), ANYTHING)
    outer = opened(lambda x: f(x * 1.0), ANYTHING)
    for shape in SHAPES[: 2 if name == "std" else None]:  # its gradient is nan at variance 0
        x = numbers(shape)
        for form, plain in ((f, fn), (outer, fn), (gradient, differentiated(fn))):
            check_same(outcome(form, x), outcome(plain, x))
    for form in (f, outer, gradient):
        assert form.experimental_get_tracing_count() == 1
    text = f.get_concrete_function().graph.as_text()
    assert tg.Graph.from_text(text).as_text() == text


@pytest.mark.parametrize(
    "fn",
    [
        tg.nn.softmax,
        lambda x: tg.reduce_mean(x, 0),
        lambda x: tg.reduce_mean(x, keepdims=True),
        lambda x: tg.reshape(x, [-1, tg.shape(x)[-1]]),
        lambda x: tg.zeros([tg.shape(x)[0]]),
        lambda x: tg.rank(x),
    ],
)
def test_what_needs_the_rank_is_traced_once_per_rank(fn):
    f = opened(fn, ANYTHING)
    for shape in [(3,), (2, 3), (4, 2)]:
        x = numbers(shape)
        check_same(outcome(f, x), outcome(fn, x))
    assert len(f.pretty_printed_concrete_signatures().split("\n\n")) == 2


def test_a_nested_function_of_sizes_alone_keeps_what_names_them():
    count = opened(lambda x: tg.shape(x))
    f = opened(lambda x: count(x * 2.0) + 1)
    assert f(numbers([3])).numpy().tolist() == [4]


# Python that asks for sizes.


ASKING = {
    "equal to a number": lambda x: x if x.shape[0] == 3 else -x,
    "unequal": lambda x: x if x.shape[0] != 1 else x * 2.0,
    "a remainder": lambda x: x if x.shape[0] % 2 == 0 else -x,
    "a computed size": lambda x: x if 2 * x.shape[0] - 1 == 5 else -x,
    "a whole shape": lambda x: x if x.shape == (3,) else -x,
    "a list of sizes": lambda x: x if x.shape.as_list() == [4] else -x,
    "one of several": lambda x: x if x.shape[0] in (1, 4) else -x,
    "the truth of a size": lambda x: x if x.shape[0] - 3 else -x,
    "an order that is known": lambda x: x if x.shape[0] > 0 and not x.shape[0] < 1 else -x,
    "what cannot be": lambda x: x if x.shape[0] + 1 != 1 and x.shape[0] != 0 else -x,
    "where no output needs it": lambda x: tg.zeros([2]) if x.shape[0] == 3 else tg.ones([2]),
    "inside of what is called": lambda x: tg.function(lambda y: y if y.shape[0] == 3 else -y)(x),
    "twice": lambda x: x if x.shape[0] == 3 or x.shape[0] == 4 else -x,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ASKING)
def test_python_is_told_the_right_sizes(name):
    function = ASKING[name]
    f = opened(function)
    for n in (2, 3, 1, 4, 3, 5):
        x = numbers([n])
        found, wanted = ([g(x), differentiated(g)(x)] for g in (f, function))
        for ours, theirs in zip(found, wanted):
            np.testing.assert_array_equal(ours, theirs)


def test_sizes_that_are_relaxed_are_asked_for_too():
    f = tg.function(lambda x: x if x.shape[0] == 1 else -x, reduce_retracing=True)
    for n in (2, 3, 4, 1, 5, 1):
        np.testing.assert_array_equal(f(numbers([n])), numbers([n]) * (1 if n == 1 else -1))
    assert f.experimental_get_tracing_count() <= 3


def test_two_open_sizes_may_be_equal():
    f = tg.function(
        lambda x, y: (
            tg.reduce_sum(x) if x.shape[0] == y.shape[0] else tg.constant(-1.0, tg.float64)
        ),
        input_signature=[VECTOR, VECTOR],
    )
    assert float(f(numbers([2]), numbers([3]))) == -1.0
    assert float(f(numbers([4]), numbers([4]))) == float(tg.reduce_sum(numbers([4])))


def test_a_trace_that_was_told_otherwise_refuses():
    lines = []

    def f(x):
        lines.append(line() + 1)
        return x if x.shape[0] == 3 else -x

    concrete = opened(f).get_concrete_function()
    np.testing.assert_array_equal(concrete(numbers([2])), -numbers([2]))
    with pytest.raises(tg.errors.ShapeError, match="compared with 3 while it was not") as caught:
        concrete(numbers([3]))
    assert here(lines[0]) in str(caught.value)
    assert "apart=[d0,3]" in concrete.graph.as_text()


def test_a_model_that_was_told_otherwise_refuses(tmp_path):
    tg.saved_model.save(opened(ASKING["equal to a number"]), tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded(numbers([2])), -numbers([2]))
    with pytest.raises(ValueError, match="compared with 3"):
        loaded(numbers([3]))


def test_a_question_that_no_run_could_check_is_refused():
    with pytest.raises(tg.errors.TraceError, match="returns nothing by which a run could check"):
        opened(lambda x: tg.print("one") if x.shape[0] == 1 else None)(numbers([2]))


def test_our_own_code_may_ask(monkeypatch):
    f = opened(lambda x: tg.layers.Flatten()(tg.expand_dims(x, 0))[0] * x / x.shape[0])
    assert "apart" not in f.get_concrete_function().graph.as_text()
    for n in (1, 2, 3):
        f(numbers([n]))
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    "compute",
    [
        *(lambda n: 1.0 / n, lambda n: n / 2, lambda n: n * 0.5, lambda n: n**0.5, np.sqrt),
        *(float, abs, round, lambda n: 2**n, lambda n: divmod(n, 2), lambda n: n + 0.5),
        lambda n: np.float32(0.5) * n,
    ],
)
def test_fractions_of_open_sizes_are_refused_with_a_repair(compute):
    with pytest.raises(tg.errors.TraceError, match="not known while tracing") as caught:
        opened(lambda x: x * compute(x.shape[0]))(numbers([3]))
    assert os.path.basename(__file__) in str(caught.value)
    assert "fix: make a tensor of it: tg.cast(tg.shape(x)[0], x.dtype)" in str(caught.value)


@pytest.mark.parametrize("shape", [None, [None, 3]])
def test_an_open_size_is_taken_to_be_one_that_an_inner_function_declares(shape):
    inner = tg.function(lambda x: tg.reduce_sum(x, 0), input_signature=[tg.TensorSpec([2, None])])
    outer = tg.function(lambda x: inner(x * 2.0), input_signature=[tg.TensorSpec(shape)])
    assert outer(tg.ones([2, 3])).numpy().tolist() == [4.0] * 3
    for wrong in ([3, 3], [6]):
        with pytest.raises((TypeError, ValueError), match=r"is declared|was expected"):
            outer(tg.ones(wrong))
    assert outer(tg.ones([2, 3])).numpy().tolist() == [4.0] * 3


def test_a_size_in_a_list_is_taken_to_be_a_scalar():
    """A concrete function cannot be traced again for a known rank."""
    f = tg.function(lambda n, m: tg.ones([n, 2, m]))
    spec = tg.TensorSpec(None, tg.int32)
    concrete = f.get_concrete_function(spec, spec)
    assert concrete(tg.constant(3), tg.constant(1)).shape == (3, 2, 1)
    with pytest.raises((TypeError, ValueError), match=r"\(\)|\[2\]"):
        concrete(tg.constant([3, 4]), tg.constant(1))


def test_an_ellipsis_alone_needs_no_rank():
    whole = tg.function(lambda x: x[...] * 2.0).get_concrete_function(tg.TensorSpec(None))
    assert whole(tg.ones([2, 1])).numpy().tolist() == [[2.0], [2.0]]


def test_counts_of_repeat_are_as_many_as_the_elements():
    spec = [tg.TensorSpec([None], tg.int32), tg.TensorSpec([None], tg.int32)]
    f = tg.function(lambda x, counts: tg.repeat(x, counts), input_signature=spec)
    x = tg.constant([4, 5, 6])
    assert f(x, tg.constant([1, 0, 2])).numpy().tolist() == [4, 6, 6]
    assert f(x, tg.constant([2])).numpy().tolist() == [4, 4, 5, 5, 6, 6]  # one for all
    for counts in ([1, 2], [1, 2, 3, 4]):
        with pytest.raises(ValueError, match=rf"the counts i32\[{len(counts)}\] for axis 0 of i32"):
            f(x, tg.constant(counts))


def test_rows_of_dynamic_stitch_are_as_many_as_the_indices():
    spec = [tg.TensorSpec([None], tg.int32), tg.TensorSpec([None, None])]
    f = tg.function(lambda at, x: tg.dynamic_stitch([at], [x]), input_signature=spec)
    assert f(tg.constant([1, 0]), tg.constant([[1.0], [2.0]])).numpy().tolist() == [[2], [1]]
    for rows in (1, 3):
        with pytest.raises(ValueError, match=rf"data f32\[{rows},2\] for indices i32\[2\]"):
            f(tg.constant([1, 0]), tg.ones([rows, 2]))


THREE = np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 5]], np.float32)
BOXES = np.tri(4, 4, dtype=np.float32)


@pytest.mark.parametrize(
    ("function", "given", "odd"),
    [
        (tg.image.rgb_to_hsv, [np.ones([2, 2, 3])], [np.ones([2, 2, 4])]),
        (tg.image.hsv_to_rgb, [np.ones([2, 2, 3])], [np.ones([2, 2, 4])]),
        (lambda x: tg.image.adjust_hue(x, 0.1), [np.ones([2, 2, 3])], [np.ones([2, 2, 4])]),
        (tg.image.grayscale_to_rgb, [np.ones([2, 2, 1])], [np.ones([2, 2, 2])]),
        (
            lambda x, boxes: tg.image.crop_and_resize(x, boxes, [0, 0, 0], [2, 2]),
            [np.ones([1, 4, 4, 1]), BOXES[:3]],
            [np.ones([1, 4, 4, 1]), BOXES[:3].repeat(2, 1)],
        ),
        (
            lambda x, b: tg.linalg.lu_solve(*tg.linalg.lu(x), b),
            [THREE, THREE[:, :2]],
            [THREE, BOXES[:, :2]],
        ),
        (
            lambda x, rows: tg.linalg.lu_reconstruct(x, tg.cast(rows, tg.int32)),
            [THREE, np.arange(3.0)],
            [THREE, np.arange(4.0)],
        ),
        (
            lambda x, w: tg.nn.conv2d_transpose(x, w, [2, 4, 4, 3], 2),
            [np.ones([2, 2, 2, 5]), np.ones([2, 2, 3, 5])],
            [np.ones([3, 2, 2, 5]), np.ones([2, 2, 3, 5])],
        ),
        (
            lambda x, w: tg.nn.conv2d_transpose(x, w, [2, 4, 4, 3], 2),
            [np.ones([2, 2, 2, 5]), np.ones([2, 2, 3, 5])],
            [np.ones([2, 2, 2, 5]), np.ones([2, 2, 4, 5])],
        ),
        (
            lambda col, row: tg.linalg.LinearOperatorToeplitz(col, row).to_dense(),
            [np.arange(3.0), np.arange(3.0)],
            [np.arange(3.0), np.arange(4.0)],
        ),
        (tg.linalg.LinearOperatorIdentity(3).matvec, [np.arange(3.0)], [np.arange(4.0)]),
        (
            lambda x, g: tg.grad(tg.custom_gradient(lambda y: (tg.reduce_sum(y), lambda _: g)))(x),
            [THREE, THREE],
            [THREE, THREE[:2]],
        ),
        (
            lambda x: tg.TensorArray(tg.float32, 3).unstack(x).stack(),
            [THREE],
            [THREE[:2]],
        ),
        (
            lambda x: tg.TensorArray(tg.float32, 4, element_shape=[3]).scatter([1, 3], x).stack(),
            [THREE[:2]],
            [THREE[:2, :2]],
        ),
    ],
    ids=[
        *["hsv", "rgb", "hue", "grey", "crop", "lu_solve", "lu_reconstruct"],
        *["examples", "channels", "toeplitz", "identity", "custom_gradient", "rows", "elements"],
    ],
)
def test_sizes_that_an_op_needs_are_checked_where_they_are_open(function, given, odd):
    specs = [tg.TensorSpec([None] * x.ndim) for x in given]
    f = tg.function(function, input_signature=specs)
    given, odd = ([tg.constant(x, tg.float32) for x in row] for row in (given, odd))
    assert f(*given).numpy().tolist() == function(*given).numpy().tolist()
    with pytest.raises(ValueError, match="fix: "):
        f(*odd)


def test_a_scan_whose_steps_only_read_the_sizes_of_their_state():
    @tg.function(input_signature=[tg.TensorSpec([None, None])] * 3)
    def f(x, y, z):
        return tg.scan(lambda state, row: z + row[0], x, y)

    x, y = tg.constant(THREE), tg.zeros([2, 2])
    expected = np.stack([np.full([2, 2], row[0] + 1) for row in THREE])
    assert f(x, y, y + 1.0).numpy().tolist() == expected.tolist()
    with pytest.raises(ValueError, match="fix: "):
        f(x, y, tg.zeros([2, 4]))


def test_a_registered_gradient_has_the_sizes_of_its_input(monkeypatch):
    registered = tg.passes.registry._registered

    @tg.function(input_signature=[tg.TensorSpec([None, None, 1])] * 2)
    def f(x, g):
        monkeypatch.setitem(registered, "adjust_contrast", lambda op, _: (g, None))
        return tg.grad(lambda y: tg.reduce_sum(tg.image.adjust_contrast(y, 2.0)))(x)

    x = tg.ones([2, 3, 1])
    assert f(x, 2 * x).numpy().tolist() == (2 * x).numpy().tolist()
    with pytest.raises(ValueError, match="fix: "):
        f(x, tg.ones([2, 2, 1]))


def test_a_second_function_has_sizes_of_its_own():
    def taken(x):
        n = x.shape[0]
        with tg.GradientTape() as tape:
            tape.watch(x)
            rows = x[n - 1] + x[n // 2], x[: n - 1]
            y = sum(tg.reduce_sum(row**2) for row in rows)
        return y, tape.gradient(y, x), tg.range(n // 2 + 1)

    x = np.arange(10.0).reshape(5, 2)
    expected = [np.asarray(part) for part in taken(tg.constant(x))]
    for _ in range(2):  # each traced anew: the sizes have equal names, and are not the same
        f = tg.function(taken, input_signature=[tg.TensorSpec([None, 2], tg.float64)])
        for found, right in zip(f(x), expected):
            np.testing.assert_array_equal(found.numpy(), right)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, n: tg.boolean_mask(x, tg.ones_like(x, tg.bool)), [1.0, 2.0, 3.0]),
        (lambda x, n: tg.where(tg.fill([n], True)), [[0], [1], [2]]),
        (lambda x, n: tg.repeat(x, tg.fill([n], 2), axis=0), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]),
        (lambda x, n: tg.math.bincount(tg.ones_like(x, tg.int32)), [0, 3]),
        (lambda x, n: tg.math.segment_sum(x, tg.zeros([n], tg.int32)), [6.0]),
    ],
)
def test_a_constant_as_often_as_only_the_run_knows(function, expected):
    @tg.function(input_signature=[tg.TensorSpec([None])])
    def run(x):
        return function(x, tg.shape(x)[0])

    assert run(tg.constant([1.0, 2.0, 3.0])).numpy().tolist() == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tg.boolean_mask(x, x[:, 0] > 0),
        lambda x: x[x > 0],
        lambda x: tg.repeat(x, tg.cast(x[:, 0], tg.int32), axis=0),
        lambda x: tg.where(x > 0),
        lambda x: tg.gather_nd(x, tg.where(x > 0)),
        lambda x: tg.dynamic_partition(x, tg.cast(x[:, 0], tg.int32), 2)[1],
        lambda x: tg.gather(x, tg.where(x[:, 0] > 0)[:, 0]),
    ],
)
@pytest.mark.parametrize("signature", [None, [tg.TensorSpec([None, 2])]])
def test_what_the_run_finds_in_an_empty_tensor_is_empty(function, signature):
    x = tg.zeros([0, 2])
    expected = function(x)
    found = tg.function(function, input_signature=signature)(x)
    assert found.type == expected.type and found.numpy().size == 0


def test_what_the_run_finds_is_not_taken_from_an_empty_tensor():
    @tg.function
    def f(x, i):
        return tg.gather(x, tg.boolean_mask(i, i > 0))

    assert f(tg.zeros([0]), tg.constant([0])).numpy().size == 0
    with pytest.raises(ValueError, match="ensure_shape"):
        f(tg.zeros([0]), tg.constant([0, 1]))
