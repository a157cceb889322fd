"""Budgets of memory: what the compiled program takes, and that its results stay what they were."""

import itertools
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.control.while_loop import WhileGradient
from tracegraph.eager import backend
from tracegraph.eager.pending import COUNTS_ARE_TRUSTED
from tracegraph.memory_budgets.budget import as_bytes, size_text
from tracegraph.memory_budgets.cuts import behind_minimum_cut
from tracegraph.memory_budgets.recomputation import trade_offs
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.broadcast import BroadcastTo
from tracegraph.ops.random import FromKey

WIDTH, ROWS = 64, 256
KERNELS = [
    (np.random.default_rng(i).normal(size=(WIDTH, WIDTH)) / 8).astype(np.float32) for i in range(16)
]
X = np.random.default_rng(99).normal(size=(ROWS, WIDTH)).astype(np.float32)


def block(h, kernel):
    inner = tg.nn.gelu(h @ kernel)
    return h + tg.tanh(inner * 0.5) * tg.sigmoid(inner)


def network(x, kernels, layer=block):
    for kernel in kernels:
        x = layer(x, kernel)
    return tg.reduce_mean(tg.square(x))


def gradients(x, *kernels, layer=block):
    with tg.GradientTape() as tape:
        tape.watch(kernels)
        loss = network(x, kernels, layer)
    return loss, tape.gradient(loss, kernels)


def of_jax(x, kernels):
    def loss(kernels):
        h = x
        for kernel in kernels:
            inner = jax.nn.gelu(h @ kernel, approximate=False)
            h = h + jnp.tanh(inner * 0.5) * jax.nn.sigmoid(inner)
        return jnp.mean(jnp.square(h))

    return jax.value_and_grad(loss)(kernels)


def temporaries(f, *args):
    return f.memory(*args).temporaries


def close(found, wanted, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


@pytest.fixture(scope="module")
def args():
    return [tg.constant(a) for a in (X, *KERNELS[:10])]


# What it saves: the plan of buffers, which is that of users' programs where `planned` stands.


def test_a_quarter_of_the_memory_is_enough_and_the_gradients_are_jax_s(planned, args):
    plain = temporaries(tg.function(gradients), *args)
    f = tg.function(gradients, memory_budget=plain // 4)
    close(f(*args), of_jax(X, KERNELS[:10]))
    table = f.memory(*args)
    assert table.temporaries <= plain // 4
    assert 0 < table.again < 0.35


@pytest.mark.sweep  # a quarter is above
@pytest.mark.parametrize("share", [0.9, 0.6, 0.35])
def test_the_budget_holds_whatever_it_is(planned, args, share):
    plain = temporaries(tg.function(gradients), *args)
    f = tg.function(gradients, memory_budget=int(share * plain))
    assert temporaries(f, *args) <= share * plain


def test_it_needs_no_more_than_recomputation_by_hand(planned):
    args = [tg.constant(a) for a in (X, *KERNELS)]
    by_hand = temporaries(tg.function(partial(gradients, layer=tg.recompute_grad(block))), *args)
    assert temporaries(tg.function(gradients, memory_budget=by_hand), *args) <= by_hand


def test_a_graph_that_fits_is_left_as_it_is(args):
    f = tg.function(gradients, memory_budget="1GiB")
    execution = f.get_concrete_function(*args).execution(tuple(x.type for x in args))
    assert not any(isinstance(node.op, Barrier) for node in execution.program.graph.nodes)
    assert f.memory(*args).again == 0


def test_more_work_buys_less_memory(args):
    found = trade_offs(tg.function(gradients).graph(*args))
    assert len(found) >= 4
    assert found[0].again == 0 and found[-1].again > 0
    assert found[-1].peak < found[0].peak / 3
    for one, other in itertools.pairwise(found):
        assert other.peak < 1.06 * one.peak


# What it keeps.


def random_network(seed):
    random = np.random.default_rng(seed)
    pairs = [(a, b) for a, b in random.integers(0, 12, (40, 2)) if a < b and (a, b) != (0, 11)]
    sizes = random.integers(1, 1000, len(pairs))
    unbounded = random.random(len(pairs)) < 0.2
    return {
        (int(a), int(b)): math.inf if endless and a else float(size)
        for (a, b), size, endless in zip(pairs, sizes, unbounded, strict=True)
    } | {(0, 1): 5.0, (10, 11): 7.0}


@pytest.mark.parametrize("seed", range(8))
def test_minimum_cuts_are_those_of_networkx(seed):
    edges = random_network(seed)
    network = networkx.DiGraph()
    for (a, b), size in edges.items():
        network.add_edge(a, b, **({} if size == math.inf else {"capacity": size}))
    _, (_, wanted) = networkx.minimum_cut(network, 0, 11)
    behind = behind_minimum_cut([(*ends, size) for ends, size in edges.items()], 0, 11)
    assert {int(i) for i in np.flatnonzero(behind)} == wanted


def test_random_numbers_are_drawn_once():
    def loss(h, *kernels):
        dropped = lambda h, kernel: tg.nn.dropout(block(h, kernel), 0.3)  # noqa: E731
        return gradients(h, *kernels, layer=dropped)

    args = [tg.constant(a) for a in (X, *KERNELS[:3])]
    results = []
    for budget in (None, int(0.7 * temporaries(tg.function(loss), *args))):
        tg.random.set_seed(4)
        f = tg.function(loss, memory_budget=budget)
        results.append([f(*args), f(*args)])
        graph = f.get_concrete_function(*args).execution(tuple(x.type for x in args)).program.graph
        drawn = [n for inner in graph.graphs() for n in inner.nodes if isinstance(n.op, FromKey)]
        results[-1].append(len(drawn))
    plain, small = results
    assert f.memory(*args).again > 0
    close(small[:2], plain[:2])
    assert small[2] == plain[2]


def test_gradients_that_jax_takes_are_planned_too():
    def loss(x, kernels):
        for kernel in kernels:
            x = x + jnp.tanh(x @ kernel) * jnp.sin(x)
        return jnp.sum(x * x)

    step = tg.from_jax(jax.grad(loss, 1))
    kernels = [*KERNELS[:6]]
    plain = tg.function(step)
    wanted = plain(X, kernels)
    table = plain.memory()
    assert [row for row in table.rows if "tanh" in row.code]
    half = tg.function(step, memory_budget=table.temporaries * 6 // 10)
    for x, y in zip(half(X, kernels), wanted, strict=True):
        np.testing.assert_allclose(x, y, 1e-4, 1e-4)


def test_a_custom_gradient_and_a_registered_recomputation_stay():
    calls = []

    @tg.custom_gradient
    def clipped(x):
        def gradient(dy):
            return tg.clip_by_value(dy, -1e-4, 1e-4) * tg.cos(x)

        calls.append(1)
        return tg.tanh(x), gradient

    layer = lambda h, kernel: tg.recompute_grad(block)(clipped(h), kernel)  # noqa: E731
    args = [tg.constant(a) for a in (X, *KERNELS[:3])]
    plain = tg.function(partial(gradients, layer=layer))
    f = tg.function(partial(gradients, layer=layer), memory_budget=temporaries(plain, *args) - 1)
    close(f(*args), plain(*args))


def test_second_derivatives():
    def penalty(x, *kernels):
        with tg.GradientTape() as outer:
            outer.watch(kernels)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = network(x, kernels)
            slope = inner.gradient(y, x)
            total = y + tg.reduce_sum(tg.square(slope))
        return total, outer.gradient(total, kernels)

    args = [tg.constant(a) for a in (X, *KERNELS[:3])]
    plain = tg.function(penalty)
    f = tg.function(penalty, memory_budget=int(0.9 * temporaries(plain, *args)))
    close(f(*args), plain(*args))
    assert f.memory(*args).again > 0


@pytest.mark.sweep  # second derivatives in reverse mode are above
def test_hessian_vector_products():
    def forward_over_reverse(x, *kernels):
        with tg.autodiff.ForwardAccumulator(list(kernels), list(kernels)) as accumulator:
            with tg.GradientTape() as tape:
                tape.watch(kernels)
                y = network(x, kernels)
            found = tape.gradient(y, kernels)
        return accumulator.jvp(found)

    args = [tg.constant(a) for a in (X, *KERNELS[:3])]
    plain = tg.function(forward_over_reverse)
    f = tg.function(forward_over_reverse, memory_budget=int(0.8 * temporaries(plain, *args)))
    close(f(*args), plain(*args))
    assert f.memory(*args).again > 0


def test_training_steps_are_the_same():
    def trained(**options):
        variables = [tg.Variable(kernel) for kernel in KERNELS[:6]]
        optimizer = tg.optimizers.Adam(0.01)

        @tg.function(**options)
        def step(x):
            with tg.GradientTape() as tape:
                loss = network(x, variables)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        losses = [step(tg.constant(X)) for _ in range(3)]
        return losses, [v.numpy() for v in variables], step.memory()

    *plain, table = trained()
    *small, smaller = trained(memory_budget=int(0.6 * table.temporaries))
    close(small, plain, 1e-4)
    assert smaller.temporaries <= 0.6 * table.temporaries
    # Without a lock of the interpreter nothing is overwritten.
    assert not COUNTS_ARE_TRUSTED or smaller.shared > 0.9 * 3 * 6 * 4 * WIDTH * WIDTH


def test_a_nested_function_and_branches():
    @tg.function
    def half(h, kernel):
        return tg.cond(tg.reduce_sum(h) > 0.0, lambda: block(h, kernel), lambda: h @ kernel)

    args = [tg.constant(a) for a in (X, *KERNELS[:3])]
    plain = tg.function(partial(gradients, layer=lambda h, k: block(half(h, k), k)))
    f = tg.function(plain.python_function, memory_budget=int(0.6 * temporaries(plain, *args)))
    close(f(*args), plain(*args))


def test_a_step_that_prints_keeps_to_the_budget(capsys):
    def printing(x, *kernels):
        loss, found = gradients(x, *kernels)
        tg.print("loss", loss > 0.0)
        return loss, found

    args = [tg.constant(a) for a in (X, *KERNELS[:6])]
    plain = temporaries(tg.function(gradients), *args)
    f = tg.function(printing, memory_budget=int(0.6 * plain))
    close(f(*args), of_jax(X, KERNELS[:6]))
    assert "loss" in "".join(capsys.readouterr())
    assert temporaries(f, *args) <= 0.6 * plain


def some(schedules, request):
    """Some of many schedules: none that computes again, one in the middle and the last. The others
    too in a case that each run leaves out."""
    if request.node.get_closest_marker("sweep"):
        return schedules
    return schedules[:: max(1, (len(schedules) - 1) // 2)]


all_or_some = pytest.mark.parametrize("_", ["some", pytest.param("all", marks=pytest.mark.sweep)])


@all_or_some
def test_every_schedule_computes_the_same(_, request):
    args = [tg.constant(a) for a in (X, *KERNELS[:4])]
    graph = tg.function(gradients).graph(*args)
    schedules = trade_offs(graph)
    assert schedules[-1].work > 0 == schedules[0].work
    loss, found = of_jax(X, KERNELS[:4])
    for schedule in some(schedules, request):
        close(backend.program(schedule.graph())(X, *KERNELS[:4]), [loss, *found])


def test_cotangents_cross_each_barrier_through_it():
    """Otherwise a compiler fuses the sums along residual connections into one of all blocks."""

    def layer(h, kernel):
        return h + tg.tanh(tg.nn.gelu(h @ kernel) @ kernel)

    args = [tg.constant(a) for a in (X, *KERNELS[:4])]
    schedule = trade_offs(tg.function(partial(gradients, layer=layer)).graph(*args))[-1]
    timeline = schedule.timeline
    before, since, crossed = set(), set(), 0
    for step in schedule.steps:
        node = step.node
        if node is None:
            before, since, crossed = before | since, set(), crossed + 1
        elif node in timeline.rules and not step.is_again:
            assert before.isdisjoint(step.inputs)
            if not (isinstance(node.op, BroadcastTo) or timeline.constant.issuperset(node.outputs)):
                since.update(step.outputs)
    assert crossed >= 4


def test_what_is_made_again_waits_for_the_cotangent_that_it_is_tied_to():
    """A compiler drops a tie that nobody reads, and the barrier delays nothing then."""
    graph = tg.function(gradients).graph(*(tg.constant(a) for a in (X, *KERNELS[:4])))
    made = trade_offs(graph)[-1].graph()
    barriers = [node for node in made.nodes if isinstance(node.op, Barrier)]
    assert barriers
    for barrier in barriers:
        tie = barrier.outputs[-1]
        assert tie in set(made.outputs) or any(tie in set(node.inputs) for node in made.nodes)


# Loops.


def scanned(x, kernels):
    """The loss and the gradients of a network whose layers are the steps of one scan."""
    with tg.GradientTape() as tape:
        tape.watch(kernels)
        h = tg.scan(block, kernels, x)[-1]
        loss = tg.reduce_mean(tg.square(h))
    return loss, tape.gradient(loss, kernels)


def test_a_scan_stacks_less_and_computes_its_steps_again(planned):
    args = tg.constant(X), tg.constant(np.stack(KERNELS))
    plain = temporaries(tg.function(scanned), *args)
    f = tg.function(scanned, memory_budget=int(0.75 * plain))
    loss, found = of_jax(X, KERNELS)
    close(f(*args), [loss, np.stack(found)])
    assert temporaries(f, *args) <= 0.75 * plain
    assert 0 < f.memory(*args).again < 0.4


def test_the_least_of_a_scan_is_that_of_its_body_computed_again(planned):
    """A body with constants of the size of its values, as gelu has them, stacks none of them."""

    def step(h, k):
        return h + tg.nn.gelu(h @ k)

    def trained(step):
        def run(x, kernels):
            with tg.GradientTape() as tape:
                tape.watch(kernels)
                loss = tg.reduce_mean(tg.foldl(step, kernels, x) ** 2)
            return tape.gradient(loss, kernels)

        return run

    args = X, np.stack(KERNELS[:4])
    by_hand = temporaries(tg.function(trained(tg.recompute_grad(step))), *args)
    f = tg.function(trained(step), memory_budget=int(1.01 * by_hand))
    assert f.memory(*args).temporaries <= 1.01 * by_hand
    close(f(*args), tg.function(trained(step))(*args))


@all_or_some
def test_every_schedule_of_a_scan_computes_the_same(_, request):
    args = X, np.stack(KERNELS[:4])
    loss, found = of_jax(X, KERNELS[:4])
    schedules = trade_offs(tg.function(scanned).graph(*args))
    assert any(schedule.timeline.plain is not schedule.timeline for schedule in schedules)
    for schedule in some(schedules, request):
        close(backend.program(schedule.graph())(*args), [loss, np.stack(found)])


def looped(x, kernel, **options):
    """A loop of 100 steps whose number is not known, and its gradient."""
    with tg.GradientTape() as tape:
        tape.watch(kernel)
        step = lambda i, h: (i + 1, tg.tanh(h @ kernel))  # noqa: E731
        end = tg.cast(tg.reduce_sum(x) * 0.0, tg.int32) + 100
        y = tg.while_loop(lambda i, h: i < end, step, (0, x), **options)[1]
        loss = tg.reduce_sum(y)
    return loss, tape.gradient(loss, kernel)


def checkpoints_of(f, *args):
    graph = f.get_concrete_function(*args).execution(tuple(x.type for x in args)).program.graph
    nodes = (node for inner in graph.graphs() for node in inner.nodes)
    return [node.op.checkpoints for node in nodes if isinstance(node.op, WhileGradient)]


def test_loops_keep_as_many_states_as_the_budget_has_room_for(planned):
    args = tg.constant(X), tg.constant(KERNELS[0])
    plain = tg.function(looped)
    wanted, whole = plain(*args), temporaries(plain, *args)
    counts = []
    for share in (0.6, 0.1):
        budget = int(share * whole)
        f = tg.function(looped, memory_budget=budget)
        close(f(*args), wanted)
        assert temporaries(f, *args) <= budget
        counts += checkpoints_of(f, *args)
    assert 2 <= counts[-1] < counts[0] < 63
    assert checkpoints_of(plain, *args) == [63]
    # How often the steps run again is not known, so the table says it in words.
    (note,) = f.memory().loops
    assert re.fullmatch(
        rf"checkpoints: while, test_memory_budget\.py:\d+ vjp; at most {counts[-1]} states are "
        "kept at a time, and the steps between them run again for its gradient",
        note,
    )
    assert note in str(f.memory())


def test_a_number_of_checkpoints_that_was_given_stays_while_that_holds():
    args = tg.constant(X), tg.constant(KERNELS[0])
    f = tg.function(partial(looped, checkpoints=7), memory_budget="1GiB")
    assert checkpoints_of(f, *args) == [7]


# Bad input.


@pytest.mark.parametrize("wrong", ["2 apples", "GiB", "-1MB", "", 0, -5, 1.5, True, [1], "0B"])
def test_what_is_no_size_is_refused(wrong):
    with pytest.raises(tg.errors.SignatureError, match=r"memory_budget is .* not a size") as caught:
        tg.function(lambda x: x, memory_budget=wrong)
    assert 'memory_budget="2GiB"' in str(caught.value)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        *(("2GiB", 2 << 30), ("1.5 MB", 1_500_000), ("64kib", 65536), (77, 77), (np.int64(5), 5)),
        ("9" * 400 + "TB", int("9" * 400) * 10**12),
        ("4503599627370496.5KB", 4503599627370496500),
    ],
)
def test_sizes_are_read(given, size):
    assert as_bytes(given) == size


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (900, "900 B"), (1 << 30, "1.0 GiB")])
def test_sizes_are_written(size, text):
    assert size_text(size) == text


def test_sizes_are_rounded_up():
    assert size_text((1 << 20) + 1) == "1.1 MiB"


def test_a_budget_that_cannot_be_met_names_the_least():
    args = [tg.constant(a) for a in (X, *KERNELS[:3])]
    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        tg.function(gradients, memory_budget="1KiB")(*args)
    text = str(caught.value)
    least = re.match(r"the least found for gradients is (\d+\.\d [KMG]iB) in addition", text)
    assert least and "its memory_budget is 1.0 KiB" in text and "test_memory_budget.py:" in text
    f = tg.function(gradients, memory_budget=least[1])
    close(f(*args), of_jax(X, KERNELS[:3]))


def test_sizes_that_are_rounded_to_the_same_are_told_in_bytes():
    x = tg.eye(16)
    f = tg.function(lambda x: tg.reduce_sum(tg.linalg.inv(x @ x)))
    least = f.memory(x).temporaries
    with pytest.raises(tg.errors.InvalidArgumentError) as caught:
        tg.function(f.python_function, memory_budget=least - 1)(x)
    text = str(caught.value)
    assert f"is {least} B in addition" in text and f"memory_budget is {least - 1} B." in text
    assert f'memory_budget="{least}B" or more' in text


def test_a_function_without_gradients_has_nothing_to_compute_again():
    f = tg.function(lambda x: tg.reduce_sum(tg.linalg.inv(x @ x)), memory_budget=8)
    with pytest.raises(
        tg.errors.InvalidArgumentError, match=r"least found for .* is \d.* in addition"
    ):
        f(tg.eye(16))
    table = tg.function(f.python_function).memory(tg.TensorSpec([16, 16]))
    assert not table.rows and "gradients read no value" in str(table)


def test_several_traces_need_arguments():
    f = tg.function(lambda x: x * 2.0)
    f(tg.zeros([2])), f(tg.zeros([3]))
    with pytest.raises(tg.errors.TraceError, match="there are 2 traces"):
        f.memory()
    assert f.memory(tg.TensorSpec([2])).arguments == 8
    with pytest.raises(tg.errors.ShapeError, match="memory needs every size"):
        f.memory(tg.TensorSpec([None]))


# What it tells.


def test_the_table_has_the_lines_the_largest_first(args):
    table = tg.function(gradients).memory(*args)
    assert [row.kept for row in table.rows] == sorted((r.kept for r in table.rows), reverse=True)
    assert all(row.file == __file__ for row in table.rows)
    assert any("tg.nn.gelu" in row.code for row in table.rows)
    lines = str(table).splitlines()
    assert lines[0] == "@gradients" and lines[1].startswith("arguments")
    assert "test_memory_budget.py:" in lines[7]
    assert table.arguments == sum(a.nbytes for a in (X, *KERNELS[:10]))
