"""Open sizes padded to buckets: few programs, and the same results as without padding.

The oracle is the plain function, which is compiled for each size. Padding is filled with nan, with
infinity or with numbers that are far out of range, so that whatever meets it is seen.
"""

import functools
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tracegraph as tg
from tracegraph.execution import buckets as module
from tracegraph.ops.index import UPDATE_SLICE, DynamicSlice, GatherNd, ScatterAdd

# Each test decorates one piece of code again and again, which a user is warned of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.sampled(1),  # in each run with one kind of padding, unless it says how many
]

COUNTS = st.integers(1, 70)
SPEC = tg.TensorSpec
#: The fixture that fills padding is the same for all examples of a test.
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["nan", "largest"], autouse=True)
def poison(request, monkeypatch):
    """Fills padding with what must never be seen."""
    usual = module._padded_buffer

    def poisoned(x, type):
        array = usual(x, type)
        if x.type is type:
            return array
        mask = np.ones(array.shape, bool)
        mask[tuple(map(slice, x.type.shape))] = False
        array[mask] = _poison(array.dtype, request.param)
        return array

    monkeypatch.setattr(module, "_padded_buffer", poisoned)


def _poison(dtype, kind):
    if dtype.kind in "fcV":  # bfloat16 is a kind by itself for NumPy
        return np.nan if kind == "nan" else np.inf
    if dtype.kind == "b":
        return kind == "nan"
    limits = np.iinfo(dtype)
    return limits.min if kind == "nan" else limits.max


@pytest.fixture
def is_sweep(request):
    """Whether this case is one that each run leaves out: it tries more sizes, each of which is a
    program."""
    return request.node.get_closest_marker("sweep") is not None


def search(is_sweep, count, check, **drawn):
    """Checks examples that are drawn: a quarter of the count, always the same, if each run does."""
    few = settings(QUICK, max_examples=-(-count // 4), derandomize=True)
    (settings(QUICK, max_examples=count) if is_sweep else few)(given(**drawn)(check))()


class Pair:
    """A function as it is and with buckets."""

    def __init__(self, fn, *specs, buckets="powers_of_two"):
        self.plain = tg.function(fn, input_signature=specs)
        self.padded = tg.function(fn, input_signature=specs, bucket_sizes=buckets)

    def check(self, *args, rtol=2e-5, atol=2e-5):
        """Both give the same, in the same structure."""
        want, found = self.plain(*args), self.padded(*args)
        tg.nest.assert_same_structure(want, found)
        for x, y in zip(tg.nest.flatten(want), tg.nest.flatten(found), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=rtol, atol=atol)

    @property
    def programs(self):
        """How many programs with padding were compiled, and how many without."""
        traces = self.padded.traces
        padded = sum(len(t.bucketing.executions) for t in traces if t.bucketing is not None)
        return padded, sum(len(t._executions) for t in traces)


def numbers(*shape, seed=0):
    rng = np.random.default_rng((seed, *shape))
    return rng.uniform(-2, 2, shape).astype(np.float32)


def integers(count, high, seed=0):
    return np.random.default_rng((seed, count)).integers(0, high, count).astype(np.int32)


def causal_attention(x):
    """Attention with two heads over the open axis of [2, n, 8]."""
    heads = tg.transpose(tg.reshape(x, [2, -1, 2, 4]), [0, 2, 1, 3])
    scores = tg.matmul(heads, heads, transpose_b=True)
    n = tg.shape(x)[1]
    may_see = tg.linalg.band_part(tg.ones([n, n]), -1, 0) > 0.0
    shares = tg.nn.softmax(tg.where(may_see, scores, -1e9))
    y = tg.reshape(tg.transpose(tg.matmul(shares, heads), [0, 2, 1, 3]), [2, -1, 8])
    return y, y[:, -1]


def layer_norm(x):
    mean, variance = tg.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) / tg.sqrt(variance + 1e-3)


#: Of a convolution with a window of three rows.
KERNEL = tg.constant(np.random.default_rng(5).uniform(-1, 1, (3, 4, 4)).astype(np.float32))
#: Functions of one matrix [n, 4].
ROWS = {
    "elementwise": lambda x: tg.tanh(x) * 2.0 + tg.exp(-x),
    "quotient": lambda x: x / (x - x[0]),
    "matmul": lambda x: tg.matmul(x, tg.ones([4, 3])),
    "gram": lambda x: tg.matmul(x, x, transpose_a=True),
    "outer": lambda x: tg.matmul(x, x, transpose_b=True),
    "einsum": lambda x: tg.einsum("ni,nj->ij", x, x),
    "softmax": lambda x: tg.nn.softmax(x, axis=0),
    "log_softmax": lambda x: tg.nn.log_softmax(x, axis=0),
    "logsumexp": lambda x: tg.reduce_logsumexp(x, axis=0),
    "layer norm": layer_norm,
    "sum": lambda x: (tg.reduce_sum(x), tg.reduce_sum(x, 0), tg.reduce_sum(x, 1)),
    "mean": lambda x: (tg.reduce_mean(x), tg.reduce_mean(x, 0, keepdims=True)),
    "variance": lambda x: (tg.math.reduce_variance(x, 0), tg.math.reduce_std(x)),
    "extremes": lambda x: (tg.reduce_max(x, 0), tg.reduce_min(x, 0), tg.reduce_max(x)),
    "prod": lambda x: tg.reduce_prod(x, 0),
    "truth": lambda x: (tg.reduce_any(x > 1.9, 0), tg.reduce_all(x > -1.9, 0)),
    "positions": lambda x: (tg.argmax(x, 0), tg.argmin(x, 0), tg.argmax(x > 1.0, 0)),
    "sorted": lambda x: (
        tg.sort(x, axis=0),
        tg.sort(x, axis=0, direction="DESCENDING"),
        tg.argsort(tg.round(x), axis=0),
        tg.argsort(tg.round(x), axis=0, direction="DESCENDING"),
        tg.argsort(x > 0, axis=0),
        tg.sort(tg.cast(10.0 * x, tg.int32), axis=0, direction="DESCENDING"),
    ),
    "running": lambda x: (tg.math.cumsum(x, 0), tg.math.cumsum(x, 0, exclusive=True)),
    "running back": lambda x: (
        tg.math.cumsum(x, 0, reverse=True),
        tg.math.cumprod(x, 0, reverse=True),
        tg.math.cumulative_logsumexp(x, 0, reverse=True),
    ),
    "reversed": lambda x: tg.reverse(x, [0]),
    "every second": lambda x: x[::2],
    "some from a place on": lambda x: (x[::-2], x[x.shape[0] // 2 :: 3]),
    "first and last": lambda x: (x[0], x[-1], x[-1:], x[:1]),
    "without the last": lambda x: tg.concat([x[:-1], x[1:]], 0),
    "shifted": lambda x: tg.pad(x, [[1, 2], [0, 1]])[1:],
    "halves": lambda x: (x[: x.shape[0] // 2], x[x.shape[0] // 2 :]),
    "flat": lambda x: tg.reshape(x, [-1]),
    "flat and back": lambda x: tg.reshape(tg.reshape(x, [-1]), [-1, 2, 2]),
    "joined": lambda x: tg.concat([x, tg.ones([2, 4]), x * 2.0], 0),
    "stacked": lambda x: tg.stack([x, -x]),
    "counted": lambda x: x * tg.cast(tg.range(tg.shape(x)[0]), tg.float32)[:, None],
    "sizes": lambda x: (tg.shape(x), tg.size(x), tg.shape(x)[0] // 2),
    "ones": lambda x: tg.ones_like(x) + tg.zeros([tg.shape(x)[0], 1]),
    "gathered": lambda x: tg.gather(x, tg.shape(x)[0] * tg.constant([0, 1, 7]) - 1),
    "gathered rows": lambda x: tg.gather(x, tg.range(tg.shape(x)[0]) // 2),
    "written": lambda x: tg.tensor_scatter_nd_update(x, [[0]], tg.ones([1, 4])),
    "one hot": lambda x: tg.one_hot(tg.argmax(x, 1), 4),
    "sorted rows": lambda x: (tg.sort(x, axis=1), tg.math.top_k(x, 2)[1]),
    "selected": lambda x: tg.where(x > 0.0, tg.math.log(x), x / 0.0),
    "norm": lambda x: (tg.norm(x), tg.norm(x, axis=0), tg.math.l2_normalize(x, 0)),
    "contrast": lambda x: tg.image.adjust_contrast(tg.reshape(x, [-1, 2, 2, 1]), 2.0),
    "inverse": lambda x: tg.linalg.inv(tg.reshape(x, [-1, 2, 2])),
    "convolution": lambda x: tg.nn.conv1d(x[:, :, None], tg.ones([2, 1, 3]), 1, "SAME"),
    "sliding": lambda x: (
        tg.nn.conv1d(tg.nn.conv1d(x[None], KERNEL, 1, "SAME") + 1.0, KERNEL, 1, "SAME"),
        tg.nn.conv1d(x[None], KERNEL, 1, "SAME", dilations=2),
        tg.nn.conv1d(tg.pad(x, [[3, 0], [0, 0]])[None], KERNEL, 2, "VALID"),
        tg.nn.depthwise_conv2d(x[None, :, :, None], KERNEL[:, :2, :1, None], [1] * 4, "SAME"),
    ),
    "broadcast": lambda x: x[:, None] + x[None, :],
    "distance": lambda x: tg.reduce_min(tg.reduce_sum((x[:, None] - x[None, :]) ** 2, 2), 1),
    "covariance": lambda x: tg.matmul(x - tg.reduce_mean(x, 0), x, transpose_a=True),
}


def groups(names):
    """Six of the names each: what a program costs by itself is as much as a function of these."""
    names = [*names]
    parts = [tuple(names[k : k + 6]) for k in range(0, len(names), 6)]
    return [pytest.param(part, id=", ".join(part)) for part in parts]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("names", groups(ROWS))
def test_rows(names, is_sweep):
    pair = rows(names)
    for n in (1, 3, 8, 13) if is_sweep else (5, 8):
        pair.check(numbers(n, 4))
    assert pair.programs[1] == 0 and (pair.programs[0] == 4 or not is_sweep)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("names", groups(name for name in ROWS if name != "contrast"))
def test_gradients_inside(names, is_sweep):
    pair = gradients(names)
    for n in (3, 7) if is_sweep else (5,):
        pair.check(numbers(n, 4), rtol=1e-4, atol=1e-4)
    assert pair.programs[1] == 0


def test_derivatives_of_what_is_taken_at_computed_places():
    def derivatives(x):
        n = x.shape[0]
        with tg.GradientTape() as second:
            second.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                parts = x[n // 2], x[n // 3 : n // 3 + 2], x[n // 2 :], x[: n // 2], x[n - 1]
                y = tg.add_n([tg.reduce_sum(part**3) for part in (*parts, tg.sort(x)[n // 2])])
            gradient = tape.gradient(y, x)
            y = tg.reduce_sum(gradient * x * x)
        return gradient, second.gradient(y, x)

    pair = Pair(derivatives, SPEC([None]))
    for n in (5, 7, 8):
        pair.check(numbers(n), rtol=1e-4)
    assert pair.programs == (1, 0)


def test_gradients_of_convolutions_in_groups_whose_batch_is_open():
    by_channel, in_groups = tg.constant(KERNEL[:, :2, :2]), tg.constant(KERNEL[:, :1])

    def gradients(x):
        with tg.GradientTape() as tape:
            tape.watch([x, by_channel, in_groups])
            y = tg.nn.depthwise_conv2d(x[:, :, None], by_channel[:, None], [1] * 4, "SAME")
            y = tg.nn.conv1d(tg.tanh(y[:, :, 0]), in_groups, 1, "VALID")
            y = tg.reduce_mean(tg.tanh(y))
        return tape.gradient(y, [x, by_channel, in_groups])

    pair = Pair(gradients, SPEC([None, 6, 2]))
    for n in (5, 8):
        pair.check(numbers(n, 6, 2), rtol=1e-4)
    assert pair.programs == (1, 0)


@functools.cache
def rows(names):
    """Compiled once for all that may stand in padding."""
    return Pair(lambda x: {name: ROWS[name](x) for name in names}, SPEC([None, 4]))


@functools.cache
def gradients(names):
    def gradient(x, name):
        with tg.GradientTape() as tape:
            tape.watch(x)
            ys = [tg.cast(y, tg.float32) for y in tg.nest.flatten(ROWS[name](x))]
            loss = tg.add_n([tg.reduce_mean(tg.tanh(y)) for y in ys])
        return loss, tape.gradient(loss, x, unconnected_gradients="zero")

    return Pair(lambda x: {name: gradient(x, name) for name in names}, SPEC([None, 4]))


def _repeated(x, n):
    """A while whose states are padded, and which integers count."""
    return tg.while_loop(lambda i, _: i < n, lambda i, x: (i + 1, tg.sin(x) * 1.5), (0, x))[1]


def _until_small(x):
    """The condition and the body take sums over what is padded."""

    def body(x, total):
        x = tg.exp(x) * 0.2 - 0.1 * tg.reduce_mean(x, 0)
        return x, total + tg.reduce_sum(x)

    return tg.while_loop(lambda x, _: tg.reduce_mean(x * x) > 0.5, body, (x, 0.0))


def _of_each_row(x):
    """Rows of a parallel loop end apart."""
    body = lambda y, n: (y * 1.5 + 0.1, n + 1)  # noqa: E731
    start = tg.reduce_sum(tg.abs(x), 1) + 0.2
    return tg.vectorized_map(lambda y: tg.while_loop(lambda y, _: y < 9.0, body, (y, 0)), start)


def _row_by_row(x):
    def body(i, total, ta):
        total = total + x[i]
        return i + 1, total, ta.write(i, total)

    ta = tg.TensorArray(tg.float32, size=tg.shape(x)[0], element_shape=[4])
    start = (0, tg.zeros([4]), ta)
    return tg.while_loop(lambda i, *_: i < tg.shape(x)[0], body, start)[2].stack()


LOOPS = {
    "while": lambda x: _repeated(x, tg.cast(x[0, 0] > -9.0, tg.int32) * 3),
    "while of no steps": lambda x: _repeated(x, tg.cast(x[0, 0] > 9.0, tg.int32)),
    "while with sums": _until_small,
    "branches": lambda x: (
        tg.cond(x[0, 0] > 0.0, lambda: x * tg.reduce_max(x), lambda: x - tg.reduce_mean(x)),
        tg.cond(x[-1, 0] > 0.0, lambda: tg.reduce_sum(x, 0), lambda: x[0]),
    ),
    "rows": _of_each_row,
    "row by row": _row_by_row,
    "scan of sums": lambda x: tg.foldl(
        lambda s, row: tg.tanh(s * tg.reduce_sum(row)) + tg.reduce_mean(s), x, x[:, 0]
    ),
    "a loop in a branch in a loop": lambda x: tg.foldl(
        lambda s, k: tg.cond(
            tg.reduce_sum(s) > k, lambda: _repeated(s, 2), lambda: s / (1.0 + tg.reduce_max(s**2))
        ),
        tg.constant([0.0, 1.0, 2.0]),
        x,
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_branches(name, is_sweep):
    pair = loops(name)
    for n in (1, 3, 7) if is_sweep else (5,):
        pair.check(numbers(n, 4), rtol=1e-4, atol=1e-4)
    assert pair.programs[1] == 0 and (pair.programs[0] == 3 or not is_sweep)


@functools.cache
def loops(name):
    def program(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            results = LOOPS[name](x)
            ys = [tg.cast(y, tg.float32) for y in tg.nest.flatten(results)]
            loss = tg.add_n([tg.reduce_mean(tg.tanh(y)) for y in ys])
        return results, tape.gradient(loss, x)

    return Pair(program, SPEC([None, 4]))


@pytest.mark.sampled(1)
def test_a_recurrent_network_over_two_open_axes(is_sweep):
    w, u = tg.Variable(numbers(4, 3)), tg.Variable(numbers(3, 3, seed=1))

    def program(x):
        with tg.GradientTape() as tape:
            rows = tg.transpose(x, [1, 0, 2])
            step = lambda h, row: tg.tanh(row @ w + h @ u)  # noqa: E731
            hidden = tg.scan(step, rows, tg.zeros([tg.shape(x)[0], 3]))
            loss = tg.reduce_mean(hidden[-1] ** 2) + tg.reduce_mean(tg.reduce_sum(hidden, 0))
        return tg.transpose(hidden, [1, 0, 2]), tape.gradient(loss, [w, u])

    pair = Pair(program, SPEC([None, None, 4]))
    for batch, time in ((3, 5), (1, 1), (4, 7), (3, 8))[: None if is_sweep else 1]:
        pair.check(numbers(batch, time, 4), rtol=1e-4, atol=1e-4)
    assert pair.programs == (2 if is_sweep else 1, 0)


@pytest.mark.sampled(1)
def test_chains_of_programs(is_sweep):
    def check(sizes, names, reduce):
        def program(x):
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = x
                for name in names:
                    found = ROWS[name](y)
                    y = tg.tanh(found[-1] if isinstance(found, tuple) else found)[..., :4]
                loss = reduce(y)
            return y, loss, tape.gradient(loss, x)

        pair = Pair(program, SPEC([None, 4]))
        for n in sizes:
            if "every second" in names or "covariance" in names or n > 1:
                pair.check(numbers(n, 4), rtol=1e-3, atol=1e-4)

    search(is_sweep, 8, check, sizes=SOME_SIZES, names=SOME_ROWS, reduce=REDUCTIONS)


SOME_SIZES = st.lists(COUNTS, min_size=1, max_size=2)
SOME_ROWS = st.lists(
    st.sampled_from(
        [
            *("elementwise", "softmax", "layer norm", "covariance", "running back"),
            *("reversed", "shifted", "quotient", "every second"),
        ]
    ),
    min_size=1,
    max_size=3,
)
REDUCTIONS = st.sampled_from([tg.reduce_mean, tg.reduce_max, tg.reduce_logsumexp, tg.reduce_sum])


@pytest.mark.sampled(1)
def test_results_have_sizes_that_the_run_finds():
    count = tg.Variable(0)

    @tg.function(input_signature=[SPEC([None])], bucket_sizes="powers_of_two")
    def chosen(x):
        positive = tg.boolean_mask(x, x > 0.0)
        count.assign_add(tg.size(positive))
        tg.debugging.assert_less(x, 100.0)
        return tg.concat([x, positive], 0), tg.where(x > 0.0), positive[:, None] * x, 2.0 * x

    total = 0
    for x in ([1.0, 1.0, 1.0], [-1.0, 2.0, 0.0, 3.0, 4.0], [-1.0, -2.0, -3.0], [1.0, 2.0]):
        x = np.array(x, np.float32)
        positive = x[x > 0]
        expected = np.concatenate([x, positive]), np.argwhere(x > 0), positive[:, None] * x, 2 * x
        for y, wanted in zip(chosen(x), expected, strict=True):
            assert y.shape == wanted.shape
            np.testing.assert_array_equal(y, wanted)
        total += len(positive)
        assert count.numpy() == total
    with pytest.raises(tg.errors.InvalidArgumentError, match="does not hold"):
        chosen(np.array([1.0, 1.0, 200.0], np.float32))
    assert count.numpy() == total + 3


@pytest.mark.sampled(1)
def test_two_open_sizes_have_buckets_of_their_own(is_sweep):
    def check(n, m):
        TWO_SIZES.check(numbers(n, 4), numbers(m, 4))

    search(is_sweep, 12, check, n=COUNTS, m=COUNTS)


def _two_sizes(x, y):
    scores = tg.matmul(x, y, transpose_b=True)
    shares = tg.nn.softmax(scores)
    return (
        tg.matmul(shares, y),
        tg.reduce_mean(scores),
        tg.concat([x, y], 0),
        tg.reshape(scores, [-1]),
    )


TWO_SIZES = Pair(_two_sizes, SPEC([None, 4]), SPEC([None, 4]))


@pytest.mark.sampled(1)
def test_attention_over_an_open_axis(is_sweep):
    def check(n):
        ATTENTION.check(numbers(2, n, 8), rtol=1e-4)

    search(is_sweep, 12, check, n=COUNTS)


ATTENTION = Pair(causal_attention, SPEC([2, None, 8]))


@pytest.mark.sampled(1)
def test_layers_over_two_open_axes(is_sweep):
    def check(batch, time):
        LAYERS.check(numbers(batch, time, 4), rtol=1e-4)

    search(is_sweep, 12, check, batch=st.integers(1, 9), time=COUNTS)


def _layers():
    dense = tg.layers.Dense(6, activation="relu")
    dense(numbers(1, 4))  # the Variables exist

    def program(x):
        with tg.GradientTape() as tape:
            y = layer_norm(dense(x))
            loss = tg.reduce_mean(y * tg.nn.softmax(y, axis=1))
        return y, tg.reshape(y, [-1, 6]), loss, tape.gradient(loss, dense.trainable_variables)

    return program


LAYERS = Pair(_layers(), SPEC([None, None, 4]))


def train(options, batches):
    """The losses and the Variables of a network after steps on batches of many sizes."""
    tg.random.set_seed(3)
    model = tg.layers.Sequential(
        [
            tg.layers.Conv2D(3, 3, padding="same", activation="relu"),
            tg.layers.MaxPool2D(2),
            tg.layers.Flatten(),
            tg.layers.Dense(16, activation="relu"),
            tg.layers.Dropout(0.3),
            tg.layers.Dense(5),
        ]
    )
    optimizer = tg.optimizers.Adam(0.01)

    @tg.function(input_signature=[SPEC([None, 4, 4, 1]), SPEC([None], tg.int32)], **options)
    def step(images, labels):
        with tg.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tg.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tg.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    losses = [float(step(numbers(n, 4, 4, 1), integers(n, 5))) for n in batches]
    return step, losses, [v.numpy() for v in model.trainable_variables]


@pytest.mark.sampled(1)
def test_training_on_batches_of_many_sizes(is_sweep):
    batches = [32, 32, 7, 19, 1, 32, 5, 64, 3] if is_sweep else [5, 7]
    _, losses, weights = train({}, batches)
    step, found, padded_weights = train({"bucket_sizes": [8, 32, 64]}, batches)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    for x, y in zip(padded_weights, weights, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    (trace,) = step.traces
    assert len(trace.bucketing.executions) == (3 if is_sweep else 1)
    assert not trace._executions


@pytest.mark.sampled(1)
def test_an_embedding_learns_from_a_sentence_of_any_length(is_sweep):
    table = tg.Variable(numbers(11, 6))

    def program(ids, labels):
        with tg.GradientTape() as tape:
            y = tg.gather(table, ids)
            hidden = (
                tg.math.cumsum(y) / tg.cast(tg.range(1, tg.shape(ids)[0] + 1), tg.float32)[:, None]
            )
            logits = tg.matmul(hidden, table, transpose_b=True)
            loss = tg.reduce_mean(
                tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradient = tape.gradient(loss, table)
        return loss, tg.convert_to_tensor(gradient)

    pair = Pair(program, SPEC([None], tg.int32), SPEC([None], tg.int32))
    for n in (1, 2, 5, 9, 31) if is_sweep else (5, 7):
        pair.check(integers(n, 11), integers(n, 11, seed=1), rtol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int32", "int8", "uint8", "complex64"]
)
def test_types(dtype, is_sweep):
    dtype = getattr(tg, dtype)
    program = (
        (lambda x: (x + x, tg.reduce_sum(x, 0), tg.reduce_prod(x), tg.transpose(x), x[-1]))
        if dtype is tg.complex64
        else lambda x: (
            x + x,
            tg.reduce_max(x, 0),
            tg.reduce_min(x),
            tg.reduce_sum(x),
            tg.argmax(x),
        )
    )
    pair = Pair(program, SPEC([None, 3], dtype))
    for n in (1, 3, 6) if is_sweep else (3,):
        pair.check(tg.cast(integers(3 * n, 4).reshape(n, 3), dtype), rtol=1e-2)


def test_a_truth_value_per_row():
    pair = Pair(
        lambda x: (tg.reduce_any(x), tg.reduce_all(x), tg.logical_not(x)), SPEC([None], tg.bool)
    )
    for flags in ([True], [False] * 3, [True] * 5, [False, True, False]):
        pair.check(np.array(flags))


@pytest.mark.sampled(1)
def test_scatters_of_an_open_number_of_updates(is_sweep):
    def program(ids, values):
        return (
            tg.math.unsorted_segment_sum(values, ids, 5),
            tg.math.unsorted_segment_max(values, ids, 5),
            tg.scatter_nd(ids[:, None], values, [5, 2]),
            tg.tensor_scatter_nd_add(tg.ones([5, 2]), ids[:, None], values),
            tg.math.bincount(ids, minlength=5, maxlength=5),
        )

    pair = Pair(program, SPEC([None], tg.int32), SPEC([None, 2]))
    for n in (1, 3, 6, 17) if is_sweep else (6,):
        pair.check(integers(n, 5), numbers(n, 2))


@pytest.mark.sampled(1)
def test_random_numbers_are_those_of_the_plain_function(is_sweep):
    def program(x):
        y = tg.random.stateless_uniform(tg.shape(x), [1, 2])
        z = tg.random.stateless_normal([tg.shape(x)[0], 1], [3, 4])
        return x + y + z

    pair = Pair(program, SPEC([None, 4]))
    for n in (1, 3, 9) if is_sweep else (3,):
        pair.check(numbers(n, 4))


@pytest.mark.sampled(1)
def test_numbers_drawn_along_several_open_axes_are_those_of_the_plain_function():
    def program(x):
        tape = tg.GradientTape()
        with tape:
            tape.watch(x)
            noise = tg.random.stateless_normal(tg.shape(x), [1, 2])
            kept = tg.nn.experimental.stateless_dropout(x, 0.5, [3, 4])
            loss = tg.reduce_mean(kept * noise)
        ids = tg.random.stateless_categorical(x[:, :, 0], 2, [5, 6])
        by_row = tg.vectorized_map(
            lambda row: row + tg.random.stateless_uniform(tg.shape(row)[::-1], [7, 8])[0, 0], x
        )
        gamma = tg.random.stateless_gamma(tg.shape(x), [9, 1], alpha=tg.abs(x) + 1.0)
        return noise, kept, ids, by_row, gamma, tape.gradient(loss, x)

    pair = Pair(program, SPEC([None, None, 2]))
    pair.check(numbers(3, 5, 2), rtol=1e-4)
    assert pair.programs == (1, 0)


def test_a_permutation_of_an_open_axis_is_refused():
    @tg.function(input_signature=[SPEC([None])], bucket_sizes=[8])
    def f(x):
        return tg.random.shuffle(x)

    with pytest.raises(tg.errors.ShapeError, match="a permutation of d0 numbers is another"):
        f(numbers(3))


@pytest.mark.sampled(1)
def test_reshapes_that_move_elements_to_other_places():
    def program(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            swapped = tg.reshape(x, [2, tg.shape(x)[1], -1])
            rolled = tg.reshape(tg.roll(tg.reshape(x, [-1]), 1, 0), tg.shape(x))
            counted = tg.reshape(tg.range(tg.size(x)), [tg.shape(x)[1], 2, -1])
            twice = tg.reshape(tg.repeat(tg.reshape(x, [-1, 2]), 2, axis=0), [-1, tg.shape(x)[1]])
            columns = tg.reshape(tg.transpose(tg.concat([x[:, 0], x[:, 1]], 1)), [2, -1])
            loss = tg.reduce_mean(swapped[:, :, 0] ** 3) + tg.reduce_mean(rolled * x) ** 2
            loss += tg.reduce_sum(columns[:, 1] * columns[:, -1])
        return swapped, rolled, counted, twice, columns, tape.gradient(loss, x)

    pair = Pair(program, SPEC([None, None, 2]))
    pair.check(numbers(3, 5, 2), rtol=1e-4)
    assert pair.programs == (1, 0)


# How many programs.


@pytest.mark.sampled(1)
def test_a_growing_context_compiles_seven_programs():
    f = tg.function(
        causal_attention, input_signature=[SPEC([2, None, 8])], bucket_sizes="powers_of_two"
    )
    for n in range(1, 65):
        f(numbers(2, n, 8))
    (trace,) = f.traces
    assert len(trace.bucketing.executions) == 7
    assert not trace._executions
    assert f.experimental_get_tracing_count() == 1


@pytest.mark.filterwarnings("error")
def test_bucketed_sizes_do_not_warn_and_sizes_above_them_do():
    f = tg.function(
        lambda x: x * 2.0, input_signature=[SPEC([None])], bucket_sizes=[2, 4, 8, 16, 32, 64]
    )
    for n in range(1, 65):
        f(numbers(n))
    with pytest.warns(UserWarning, match="5 different sizes"):
        for n in range(65, 71):
            np.testing.assert_allclose(f(numbers(n)).numpy(), numbers(n) * 2)


def test_sizes_above_the_largest_bucket_run_as_they_are():
    pair = Pair(ROWS["softmax"], SPEC([None, 4]), buckets=[4, 16])
    for n in (3, 16, 17, 40):
        pair.check(numbers(n, 4))
    assert pair.programs == (2, 2)


def test_buckets_may_come_in_any_order_and_twice():
    pair = Pair(ROWS["softmax"], SPEC([None, 4]), buckets=(16, 4, np.int64(4)))
    for n in (3, 4, 5):
        pair.check(numbers(n, 4))
    assert pair.programs == (2, 0)


SIZES = {
    "array": lambda: np.array([4, 8]),
    "unsigned array": lambda: np.array([8, 4], np.uint8),
    "range": lambda: range(4, 9, 4),
    "numbers of NumPy": lambda: (np.int64(4), np.uint16(8)),
    "iterator": lambda: iter([4, 8]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", SIZES)
def test_buckets_may_be_any_integers(sizes):
    pair = Pair(ROWS["softmax"], SPEC([None, 4]), buckets=SIZES[sizes]())
    for n in (3, 4, 7, 8, 9):
        pair.check(numbers(n, 4))
    assert pair.programs == (2, 1)


def test_a_method_has_the_buckets_that_were_given():
    sizes = np.array([4, 8])

    class Model:
        @tg.function(input_signature=[SPEC([None])], bucket_sizes=sizes)
        def doubled(self, x):
            return x * 2.0

    sizes[:] = 0
    assert Model().doubled(np.ones(3, np.float32)).numpy().tolist() == [2.0] * 3


WRONG = ["powers_of_three", b"ab", [], [0], [8, -1], [2.5], 8, [True], [np.True_], [None], ["8"]]
WRONG += [np.array([8.0]), np.array([[4, 8]]), np.array(8), np.array([]), np.array([True])]


@pytest.mark.sampled(len(WRONG))
@pytest.mark.parametrize("wrong", WRONG)
def test_buckets_must_be_sizes(wrong):
    with pytest.raises(tg.errors.SignatureError, match="bucket_sizes is"):
        tg.function(lambda x: x, bucket_sizes=wrong)


@pytest.mark.sampled(1)
def test_without_a_signature_sizes_are_open_from_the_second_on():
    f = tg.function(ROWS["softmax"], bucket_sizes="powers_of_two")
    plain = tg.function(ROWS["softmax"], reduce_retracing=True)
    for n in (5, 6, 7, 9, 12, 16):
        np.testing.assert_allclose(f(numbers(n, 4)), plain(numbers(n, 4)), rtol=1e-5)
    assert f.experimental_get_tracing_count() == 2


def test_size_zero_has_a_trace_of_its_own():
    pair = Pair(lambda x: (tg.reduce_sum(x, 0), x * 2.0, tg.reduce_max(x)), SPEC([None, 4]))
    pair.check(numbers(3, 4))
    pair.check(numbers(0, 4))
    pair.check(numbers(3, 4))


def test_a_function_without_open_sizes_is_as_it_was():
    f = tg.function(lambda x: x * 2.0, input_signature=[SPEC([4])], bucket_sizes=[8])
    np.testing.assert_array_equal(f(numbers(4)), numbers(4) * 2)
    assert f.traces[0].bucketing is None


# What sizes are assumed to be.


def test_sizes_that_do_not_fit_raise_what_the_plain_function_raises():
    def add(x, y):
        return x + y

    pair = Pair(add, SPEC([None]), SPEC([None]))
    pair.check(numbers(5), numbers(5, seed=1))
    errors = []
    for f in (pair.plain, pair.padded):  # 5 and 6 have one bucket
        with pytest.raises(tg.errors.ShapeError) as caught:
            f(numbers(5), numbers(6))
        errors.append(str(caught.value).split("\n")[1])
    assert errors[0] == errors[1]


def test_a_size_that_is_one_broadcasts():
    pair = Pair(lambda x, y: x + y, SPEC([None]), SPEC([None]))
    pair.check(numbers(5), numbers(5, seed=1))
    pair.check(numbers(5), numbers(1))


def test_a_size_that_must_be_a_number_is_compiled_as_it_is():
    pair = Pair(lambda x: x + tg.constant([1.0, 2.0, 3.0]), SPEC([None]))
    pair.check(numbers(3))
    assert pair.programs == (0, 1)


def test_a_table_that_is_shorter_than_the_bucket():
    table = tg.constant(numbers(10, 4))
    pair = Pair(lambda x: x + table[: x.shape[0]], SPEC([None, 4]))
    for n in (3, 8, 9, 10):
        pair.check(numbers(n, 4))


def test_python_asks_for_a_size():
    pair = Pair(lambda x: x * 3.0 if x.shape[0] == 4 else x, SPEC([None]))
    for n in (3, 4, 5):
        pair.check(numbers(n))


# State.


@pytest.mark.sampled(1)
def test_variables_see_no_padding():
    def made(options):
        total, count = tg.Variable(numbers(4)), tg.Variable(0)

        @tg.function(input_signature=[SPEC([None, 4])], **options)
        def add(x):
            total.assign_add(tg.reduce_sum(x, 0))
            count.assign_add(tg.shape(x)[0])
            return total + x

        return add, total, count

    (f, total, count), (g, same_total, same_count) = made({}), made({"bucket_sizes": [4, 16]})
    for n in (3, 4, 9, 20):
        np.testing.assert_allclose(f(numbers(n, 4)), g(numbers(n, 4)), rtol=1e-5)
        np.testing.assert_allclose(total.numpy(), same_total.numpy(), rtol=1e-5)
        assert int(count) == int(same_count)


def test_a_variable_of_open_shape_is_not_padded():
    v = tg.Variable(numbers(3), shape=[None])
    pair = Pair(lambda x: (tg.reduce_sum(v * v), v * 2.0, x * 2.0), SPEC([None]))
    pair.check(numbers(5))
    v.assign(numbers(6))
    pair.check(numbers(5))


def test_assigning_a_value_of_open_size_is_refused():
    v = tg.Variable(numbers(3), shape=[None])

    @tg.function(input_signature=[SPEC([None])], bucket_sizes=[8])
    def f(x):
        v.assign(x)

    with pytest.raises(tg.errors.ShapeError, match="is assigned to a Variable"):
        f(numbers(5))


def test_the_largest_along_an_open_axis():
    pair = Pair(
        lambda x: (
            *tg.math.top_k(tg.transpose(x), 3),
            tg.math.top_k(tg.cast(x[:, 0] > 0.0, tg.int32) + tg.int32.min, 3)[1],
            tg.grad(lambda y: tg.reduce_sum(tg.math.top_k(tg.transpose(y), 2)[0] ** 2))(x),
        ),
        SPEC([None, 4]),
    )
    special = np.full((5, 4), -np.inf, np.float32)
    special[[1, 3], [2, 1]] = np.nan, 1.0
    for x in (numbers(3, 4), numbers(5, 4), special, np.round(numbers(6, 4))):
        pair.check(x)
    assert pair.programs == (2, 0)
    with pytest.raises(tg.errors.ShapeError, match="the 3 largest of 2 elements"):
        pair.padded(numbers(2, 4))


# What is refused.


def refused(fn, *specs, args):
    with pytest.raises(tg.errors.ShapeError, match="bucket_sizes") as caught:
        tg.function(fn, input_signature=specs, bucket_sizes=[16])(*args)
    return str(caught.value)


def test_what_mixes_rows_is_refused_with_its_line():
    def mixing(x):
        y = x * 2.0
        return tg.math.top_k(tg.transpose(y), tg.shape(y)[0]).values

    text = refused(mixing, SPEC([None, 4]), args=[numbers(5, 4)])
    where = mixing.__code__.co_firstlineno + 2
    assert text.startswith("bucket_sizes: top_k cannot be computed on padded operands")
    assert f"{os.path.basename(__file__)}:{where}" in text
    assert "f32[4,d0]" in text and "leave bucket_sizes out" in text


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "mixing",
    [
        lambda x: tg.math.top_k(tg.transpose(x), tg.shape(x)[0])[0],
        lambda x: tg.linalg.det(tg.matmul(x, x, transpose_b=True)),
        lambda x: tg.linalg.inv(tg.matmul(x, x, transpose_b=True) + tg.eye(tg.shape(x)[0])),
        lambda x: tg.linalg.cholesky(tg.matmul(x, x, transpose_b=True)),
        lambda x: tg.nn.conv1d(x[None], tg.ones([3, 4, 2]), 2, "SAME"),
        lambda x: tg.py_function(lambda y: y, [x], tg.TensorSpec([None, 4])),
        lambda x: tg.image.adjust_contrast(x[None, :, :, None], 2.0),
    ],
)
def test_refused(mixing):
    refused(mixing, SPEC([None, 4]), args=[numbers(5, 4)])


def test_a_print_of_padding_is_refused():
    def printing(x):
        tg.print(x)
        return x

    assert "would see the padding" in refused(printing, SPEC([None]), args=[numbers(5)])


def test_a_loop_over_an_open_axis_whose_steps_have_effects_is_refused():
    """Steps on padding would print too, and call Python with numbers that do not exist."""

    def printing(x):
        tg.print("a step")
        return x

    def calling(x):
        return tg.py_function(lambda q: q, [x], SPEC([]))

    for step in (printing, calling):
        text = refused(lambda xs, step=step: tg.map_fn(step, xs), SPEC([None]), args=[numbers(5)])
        assert "would do so for the padding" in text


def test_a_print_of_what_is_not_padded(capfd):
    def printing(x):
        loss = tg.reduce_sum(x)
        tg.print("loss", loss)
        return x * loss

    Pair(printing, SPEC([None])).check(np.ones(3, np.float32))
    assert capfd.readouterr().err.split() == ["loss", "3"] * 2


def test_an_open_rank_is_refused():
    text = refused(lambda x: x * 2.0, SPEC(None), args=[numbers(5)])
    assert "the rank" in text


# With the rest of the library.


def test_a_tape_outside_sees_the_plain_function():
    v = tg.Variable(numbers(4))
    f = tg.function(
        lambda x: tg.reduce_mean(x * v), input_signature=[SPEC([None, 4])], bucket_sizes=[8]
    )
    with tg.GradientTape() as tape:
        loss = f(numbers(5, 4))
    np.testing.assert_allclose(tape.gradient(loss, v), numbers(5, 4).mean(0) / 4, rtol=1e-5)


def test_inside_of_another_function():
    inner = tg.function(ROWS["softmax"], input_signature=[SPEC([None, 4])], bucket_sizes=[8])
    pair = Pair(lambda x: inner(x) * 2.0, SPEC([None, 4]), buckets=[8])
    pair.check(numbers(5, 4))
    assert pair.programs == (1, 0)


@pytest.mark.sampled(1)
def test_a_custom_gradient_and_a_recomputed_one(is_sweep):
    @tg.custom_gradient
    def clipped(x):
        return x * x, lambda g: tg.clip_by_value(g, -0.1, 0.1)

    again = tg.recompute_grad(lambda x: tg.exp(x) * x)

    def program(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            loss = tg.reduce_mean(clipped(again(x)))
        return loss, tape.gradient(loss, x)

    pair = Pair(program, SPEC([None, 4]))
    for n in (3, 5, 11) if is_sweep else (5,):
        pair.check(numbers(n, 4))


def test_second_derivatives_and_jacobians_inside():
    def program(x):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = tg.reduce_mean(x**3)
            g = tape.gradient(y, x)
            total = tg.reduce_sum(g * g)
        return outer.gradient(total, x)

    pair = Pair(program, SPEC([None]))
    for n in (3, 5, 11):
        pair.check(numbers(n))


def test_checks_hold_for_elements_alone():
    def program(x):
        tg.debugging.assert_less(tg.reduce_max(x), 100.0)
        return tg.math.log(x + 3.0)

    f = tg.function(program, input_signature=[SPEC([None])], bucket_sizes=[8], check_numerics=True)
    plain = tg.function(program, input_signature=[SPEC([None])])
    np.testing.assert_allclose(f(numbers(5)), plain(numbers(5)), rtol=1e-6)
    with pytest.raises(tg.errors.InvalidArgumentError):
        f(numbers(5) * 1000)


def test_a_check_of_all_elements_reports_what_is_not_padded():
    def program(x, y):
        tg.debugging.assert_equal(x, y)
        tg.debugging.assert_less(tg.reduce_max(x), 1.0, message="too large")
        return x + y

    specs = [SPEC([None]), SPEC([None])]
    f = tg.function(program, input_signature=specs, bucket_sizes=[8])
    np.testing.assert_array_equal(f(numbers(5) / 9, numbers(5) / 9), numbers(5) / 9 * 2)
    with pytest.raises(tg.errors.InvalidArgumentError):
        f(numbers(5), numbers(5) + 1)
    with pytest.raises(tg.errors.InvalidArgumentError, match="too large"):
        f(numbers(5) + 9, numbers(5) + 9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", [0, 3, 11])
def test_windows_that_move(start, is_sweep):
    def program(x, cache, start):
        n = x.type.shape[0]  # an op takes the size itself, and not what the user gets
        written = UPDATE_SLICE(cache, x, start, start * 0)
        beyond = UPDATE_SLICE(cache, x, start + 100, start * 0)  # clamped so that it fits
        with tg.GradientTape() as tape:
            tape.watch(x)
            window = DynamicSlice((1, 4))(x, start, start * 0)
            many = DynamicSlice((n, 4))(cache, start, start * 0)
            loss = tg.reduce_mean(window**2) + tg.reduce_mean(many * x)
        moved = UPDATE_SLICE(x, cache[:1] * 2.0, start, start * 0)
        return written, beyond, window, many, loss, tape.gradient(loss, x), moved

    pair = Pair(program, SPEC([None, 4]), SPEC([20, 4]), SPEC([], tg.int32))
    for n in (1, 5, 9, 20) if is_sweep else (9,):
        pair.check(numbers(n, 4), numbers(20, 4, seed=1), np.int32(start))


def test_sizes_that_shrink_are_compiled_as_they_are():
    table = tg.constant(numbers(20, 4))
    pair = Pair(lambda x: (table[: 20 - x.shape[0]], x * 2.0), SPEC([None, 4]))
    for n in (3, 5, 8):
        pair.check(numbers(n, 4))
    assert pair.programs == (1, 2)  # 8 is a bucket itself


# The quick kernels of XLA compare narrow indices with a size that their type cannot hold.
@pytest.mark.sampled(1)
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64"])
def test_indices_of_every_type(dtype, is_sweep):
    dtype = getattr(tg, dtype)

    def program(x, ids, start):
        there = tg.cast(ids, dtype)
        vectors, rows = there[:, None], tg.gather(x, there)
        added = ScatterAdd(0, 0)(tg.zeros([300, 2]), vectors, rows)
        inside = ScatterAdd(0, 0)(tg.zeros_like(x), vectors, rows)
        none = GatherNd(0, 0, False)(x, vectors)
        window = DynamicSlice((1, 2))(x, tg.cast(start, dtype), tg.cast(start * 0, dtype))
        return rows, added, inside, none, window

    pair = Pair(program, SPEC([None, 2]), SPEC([None], tg.int32), SPEC([], tg.int32))
    for n in (3, 9, 290) if is_sweep else (290,):
        ids = np.array([0, 2, 7, 100, 5], np.int32)
        pair.check(numbers(n, 2), ids, np.int32(99))


@pytest.mark.sampled(1)
def test_a_scatter_per_row():
    def program(ids):
        zeros = tg.zeros([tg.shape(ids)[0], 5])
        ones = tg.ones([tg.shape(ids)[0], 1])
        hot = ScatterAdd(1, 1)(zeros, ids[:, None, None], ones)
        return tg.reduce_sum(hot, 0), hot

    pair = Pair(program, SPEC([None], tg.int32))
    for n in (1, 3, 6):
        pair.check(integers(n, 5))


@pytest.mark.sampled(1)
def test_gamma_numbers_and_split_keys(is_sweep):
    def program(x):
        return tg.random.stateless_gamma(tg.shape(x), [1, 2], alpha=2.0) + x

    pair = Pair(program, SPEC([None, 3]))
    for n in (1, 3, 6) if is_sweep else (3,):
        pair.check(numbers(n, 3), rtol=1e-4)


def test_a_concrete_function_takes_size_zero():
    f = tg.function(
        lambda x: tg.reduce_sum(x, 0), input_signature=[SPEC([None, 4])], bucket_sizes=[8]
    )
    concrete = f.get_concrete_function()
    np.testing.assert_array_equal(concrete(numbers(0, 4)), np.zeros(4))
    np.testing.assert_allclose(concrete(numbers(3, 4)), numbers(3, 4).sum(0), rtol=1e-5)


def test_methods_structures_and_keywords():
    class Model(tg.Module):
        def __init__(self):
            self.w = tg.Variable(numbers(4, 2))

        @tg.function(
            input_signature=[{"x": SPEC([None, 4]), "y": SPEC([None, 2])}], bucket_sizes=[8]
        )
        def call(self, batch):
            z = tg.matmul(batch["x"], self.w)
            return {"z": z, "loss": tg.reduce_mean((z - batch["y"]) ** 2)}

    found = Model().call({"x": numbers(5, 4), "y": numbers(5, 2)})
    z = numbers(5, 4) @ numbers(4, 2)
    np.testing.assert_allclose(found["z"], z, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], ((z - numbers(5, 2)) ** 2).mean(), rtol=1e-5)


def test_results_are_arguments_again():
    step = tg.function(
        lambda x: tg.concat([x, x[-1:] + 1.0], 0),
        input_signature=[SPEC([None])],
        bucket_sizes="powers_of_two",
    )
    x = tg.constant([0.0])
    for _ in range(20):
        x = step(x)
    np.testing.assert_array_equal(x.numpy(), np.arange(21.0))
    assert len(step.traces[0].bucketing.executions) == 6
