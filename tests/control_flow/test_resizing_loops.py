"""Loops whose states change their sizes, as `shape_invariants` allow it."""

import functools

import numpy as np
import pytest

import tracegraph as tg

ANY_LENGTH = tg.TensorShape([None])
STATES = [tg.TensorShape([]), ANY_LENGTH]
set_loop_options = tg.autograph.experimental.set_loop_options


def longer(i, x):
    return i + 1, tg.concat([2.0 * x, tg.reduce_sum(x)[None]], 0)


def grown(n, x):
    return tg.while_loop(lambda i, x: i < n, longer, (0, x), STATES)


def grown_by_numpy(n, x):
    for _ in range(n):
        x = np.concatenate([2 * x, [x.sum()]])
    return x


@tg.function
def doubled(n, x):
    """x, n times behind itself, and its own size."""
    x = grown(n, x)[1]
    return tg.concat([x, x], 0), tg.shape(x)[0]


def test_a_while_loop_that_grows():
    x = np.array([1, 2], np.float32)
    for n in (0, 1, 3):
        wanted = grown_by_numpy(n, x)
        found, size = doubled(tg.constant(n), x)
        assert (found.numpy().tolist(), int(size)) == ([*wanted, *wanted], n + 2)
    assert grown(tg.constant(2), x)[1].numpy().tolist() == grown_by_numpy(2, x).tolist()
    assert doubled.experimental_get_tracing_count() == 1


def test_a_matrix_that_grows_in_all_axes():
    states = [tg.TensorShape([]), tg.TensorShape(None)]
    i, x = tg.while_loop(
        lambda i, _: i < 2, lambda i, x: (i + 1, tg.tile(x, [2, 3])), (0, tg.ones([1, 2])), states
    )
    assert (int(i), x.shape) == (2, [4, 18])


@tg.function
def until_it_is_left(n):
    x = tg.constant([7, 7])
    if n > 1:
        for i in range(n):
            set_loop_options(shape_invariants=[(x, ANY_LENGTH)])
            x = tg.concat([x, [i]], 0)
            if i > 2:
                break
    else:
        x = tg.constant([1, 2, 3])
    return x


def test_loops_of_python_that_grow():
    @tg.function
    def padded(n):
        x, i = tg.constant([[0]]), 0
        while i < n:
            set_loop_options(shape_invariants=[(x, tg.TensorShape([None, None]))])
            x = tg.pad(x, [[1, 0], [0, 1]], constant_values=i)
            i += 1
        return x

    assert padded(tg.constant(2)).numpy().tolist() == [[1, 1, 1], [0, 0, 1], [0, 0, 1]]
    found = [until_it_is_left(tg.constant(n)).numpy().tolist() for n in (1, 2, 9)]
    assert found == [[1, 2, 3], [7, 7, 0, 1], [7, 7, 0, 1, 2, 3]]


def test_effects_of_a_loop_that_grows_are_in_order(capfd):
    total = tg.Variable(0.0)

    @tg.function
    def summed(n):
        def body(i, x):
            total.assign_add(tg.reduce_sum(x))
            tg.print(i, tg.shape(x))
            return i + 1, tg.concat([x, x], 0)

        return tg.while_loop(lambda i, _: i < n, body, (0, tg.ones([1])), STATES)[1]

    assert (summed(tg.constant(3)).shape, total.numpy()) == ([8], 7)
    assert capfd.readouterr().err.split("\n")[:3] == ["0 [1]", "1 [2]", "2 [4]"]


def test_a_loop_that_grows_in_a_loop():
    @tg.function
    def sums(counts, x):
        return tg.map_fn(lambda n: tg.reduce_sum(grown(n, x)[1]), counts, tg.float32)

    @tg.function
    def triangle(n):
        def row(i, x):
            return i + 1, tg.while_loop(lambda k, _: k < i, more, (0, x), STATES)[1]

        def more(k, x):
            return k + 1, tg.concat([x, k[None]], 0)

        return tg.while_loop(lambda i, _: i < n, row, (0, tg.constant([7])), STATES)[1]

    x = np.array([1, 2], np.float32)
    wanted = [grown_by_numpy(n, x).sum() for n in (1, 2)]
    assert sums(tg.constant([1, 2]), x).numpy().tolist() == wanted
    assert triangle(tg.constant(4)).numpy().tolist() == [7, 0, 0, 1, 0, 1, 2]


def test_a_size_that_only_the_run_knows_may_be_a_state_of_a_loop_that_grows():
    @tg.function
    def kept(x):
        def body(i, x):
            return i + 1, tg.boolean_mask(x, x > tg.reduce_min(x))

        return tg.while_loop(lambda i, _: i < 2, body, (0, x), STATES)[1]

    assert kept(tg.constant([3, 1, 2, 1, 5])).numpy().tolist() == [3, 5]
    assert kept(tg.constant([4, 4, 4])).numpy().tolist() == []


def refuse(fact, body, *arguments, kind=ValueError):
    with pytest.raises(kind, match=f"{fact}(?s:.*)fix: "):
        body(*arguments)


def test_what_a_loop_that_grows_cannot_do():
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = doubled(tg.constant(2), x)[0]
    unknown = tg.errors.MissingRuleError
    refuse("no derivative", tape.gradient, y, x, kind=unknown)
    each = tg.function(lambda n: tg.vectorized_map(lambda k: grown(k, x)[0], n))
    refuse("all iterations at once", each, tg.constant([1, 2]), kind=unknown)
    rows = tg.function(lambda n: tg.map_fn(lambda k: grown(k, x)[1], n, tg.float32))
    refuse("a loop in it has given another size", rows, tg.constant([1, 2]))


@tg.function
def out_of_bounds(n):
    x, i = tg.constant([0, 0]), 0
    while i < n:
        set_loop_options(shape_invariants=[(x, tg.TensorShape([2]))])
        x = tg.concat([x, [i]], 0)
        i += 1
    return x


@tg.function
def out_of_bounds_in_steps(x):
    for _ in tg.range(3):
        set_loop_options(shape_invariants=[(x, tg.TensorShape([1]))])
        x = tg.range(tg.reduce_sum(x))
    return x


def test_a_state_stays_within_its_shape_invariant():
    refuse("'x' is a tensor", out_of_bounds, tg.constant(3))
    refuse("its invariant is .1,", out_of_bounds_in_steps, tg.constant([1]))
    states = [STATES[0], tg.TensorShape([None, 2])]
    start = 0, tg.ones([2, 2])
    tile = lambda i, x: (i + 1, tg.tile(x, [2, 2]))  # noqa: E731
    refuse("after one step", tg.while_loop, lambda i, _: i < 2, tile, start, states)
    refuse("after one step", grown_without_invariants, tg.constant(2))


@tg.function
def grown_without_invariants(n):
    return tg.while_loop(lambda i, _: i < n, longer, (0, tg.ones([2])))


def test_one_element_is_one_condition():
    x = tg.constant([[5.0]])
    found, _ = tg.while_loop(lambda x, _: x < 45.0, lambda x, y: (x * y, y), (x, 3.0))
    assert found.numpy().tolist() == [[45]]
    assert float(tg.cond(x > 1.0, lambda: 1.0, lambda: 2.0)) == 1


def test_many_sizes_cause_one_warning(monkeypatch):
    monkeypatch.setattr("tracegraph.effects.procedure._MANY_SIZES", 3)
    with pytest.warns(tg.errors.UnrolledLoopWarning, match="3 sizes(?s:.*)fix: ") as caught:
        longest = grown(tg.constant(5), np.array([1, 2], np.float32))[1]
    assert (longest.shape, len(caught)) == ([7], 1)
    assert caught[0].filename == __file__


def test_a_condition_that_reads_a_size():
    states = [ANY_LENGTH, tg.TensorShape([])]
    found, _ = tg.function(
        lambda n: tg.while_loop(
            lambda x, n: tg.shape(x)[0] < n,
            lambda x, n: (tg.concat([x, x], 0), n),
            (tg.ones([3]), n),
            states,
        )
    )(tg.constant(20))
    assert found.shape == [24]


def test_text_that_grows_token_by_token():
    table = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)

    def longer_text(text):
        scores = tg.reduce_sum(tg.gather(table, text), 1)
        return tg.concat([text, tg.argmax(scores, -1, output_type=tg.int32)[:, None]], 1)

    @tg.function
    def written(text, count):
        (text,) = tg.while_loop(
            lambda *_: True,
            lambda text: [longer_text(text)],
            [text],
            [tg.TensorShape([None, None])],
            maximum_iterations=count,
        )
        return text

    start = np.array([[1, 2], [3, 4]], np.int32)
    wanted = longer_text(longer_text(longer_text(start))).numpy().tolist()
    assert written(start, 3).numpy().tolist() == wanted


def test_it_is_saved_and_printed_whole(tmp_path):
    graph = doubled.graph(tg.constant(3), tg.ones([2]))
    assert tg.Graph.from_text(graph.as_text()).as_text() == graph.as_text()
    module = tg.Module()
    module.doubled = doubled
    doubled.get_concrete_function(tg.TensorSpec([], tg.int32), tg.TensorSpec([2]))
    tg.saved_model.save(module, tmp_path / "m")
    found, size = tg.saved_model.load(tmp_path / "m").doubled(tg.constant(3), tg.ones([2]))
    wanted = grown_by_numpy(3, np.ones(2, np.float32))
    assert (found.numpy().tolist(), int(size)) == ([*wanted, *wanted], 5)


def test_the_first_nan_is_located_in_its_steps():
    def with_logarithm(i, x):
        return i + 1, tg.concat([x, tg.math.log(x[:1] - tg.cast(i, tg.float32))], 0)

    located = tg.function(
        lambda n: tg.while_loop(
            lambda i, _: i < n, with_logarithm, (0, tg.constant([1.5])), STATES
        )[1],
        locate_numerics=True,
    )
    assert located(tg.constant(2)).shape == [3]
    with pytest.raises(tg.errors.NumericsError, match=r"log.* in step 2 of the loop"):
        located(tg.constant(5))


def test_what_needs_one_program_or_the_sizes_is_refused():
    arguments = tg.constant(2), tg.ones([2])
    for to_one in (doubled.as_jax(), functools.partial(tg.export.stablehlo, doubled)):
        refuse("only its runs know", to_one, *arguments, kind=tg.errors.TraceError)

    @tg.function
    def of_rows(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = grown(tg.constant(2), x[:, 0])[1][:2, None] * x
        return tape.batch_jacobian(y, x)

    refuse("only the run knows the size", of_rows, tg.ones([2, 3]))
