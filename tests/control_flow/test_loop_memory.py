"""What loops keep, by the compiler's own account of the compiled program."""

import numpy as np
import pytest

import tracegraph as tg
from tests.derivatives import gradient
from tracegraph.control.scan import Scan

# One piece of code is decorated again and again, which a user is warned of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.usefixtures("planned"),
]

SIZE = 1 << 14
STATE = 4 * SIZE
MATRIX = np.eye(128, dtype=np.float32)

BODIES = {
    "sin": lambda y: tg.sin(y) * 0.5 + y,
    "roll": lambda y: tg.roll(y, 1, 0) * tg.sin(y),
    "matmul": lambda y: tg.reshape(tg.tanh(tg.reshape(y, [128, 128]) @ MATRIX), [SIZE]),
    "cond": lambda y: tg.cond(y[0] > 0.0, lambda: tg.sin(y), lambda: tg.cos(y) * y),
}


def reversed_while(body, checkpoints):
    def end(x, n):
        step = lambda i, y: (i + 1, body(y))  # noqa: E731
        found = tg.while_loop(lambda i, y: i < n, step, (0, x), checkpoints=checkpoints)
        return tg.reduce_sum(found[1])

    return tg.function(lambda x, n: gradient(lambda x: end(x, n), x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checkpoints", [2, 7, 16, 33])
@pytest.mark.parametrize("body", BODIES)
def test_reverse_mode_of_a_while_needs_two_states_besides_those_that_it_keeps(body, checkpoints):
    """The one that a step takes and the one that it gives; the cotangent is the result. A step that
    is one loop over the elements overwrites what it takes. A branch has one value more, its own,
    which it makes for its reverse."""
    f = reversed_while(BODIES[body], checkpoints)
    x = tg.fill([SIZE], 0.3)
    slopes = [f(x, tg.constant(n)).numpy()[0] for n in (0, 1, 5, 40)]
    assert np.isfinite(slopes).all() and slopes[0] == 1.0
    memory = f.memory()  # one program, whatever the count is
    assert f.experimental_get_tracing_count() == 1
    states = checkpoints + {"sin": 1, "cond": 3}.get(body, 2)
    assert memory.temporaries <= (states + 0.1) * STATE
    assert memory.results <= 1.01 * STATE


def cell(w, u):
    return lambda h, x: tg.tanh(x @ w + h @ u)


def last_state(xs, w, u):
    return tg.foldl(cell(w, u), xs, tg.zeros([3, 6]))


def products(graph):
    """How many matrix products a graph computes for itself, and how many in the steps of scans."""
    inside = [node.op.body for node in graph.nodes if isinstance(node.op, Scan)]
    counts = [sum(node.op.name == "matmul" for node in g.nodes) for g in (graph, *inside)]
    return counts[0], counts[1:]


def test_the_product_of_all_inputs_of_a_scan_is_one_outside():
    specs = [tg.TensorSpec(shape) for shape in ([20, 3, 5], [5, 6], [6, 6])]
    graph = tg.function(last_state).get_concrete_function(*specs).graph
    assert products(graph) == (1, [1])

    def slopes(xs, w, u):
        with tg.GradientTape() as tape:
            tape.watch([xs, w, u])
            y = tg.reduce_sum(last_state(xs, w, u))
        return tape.gradient(y, [xs, w, u])

    # Backward that of the state is in the steps, and those of the rows and both matrices outside.
    graph = tg.function(slopes).get_concrete_function(*specs).graph
    assert products(graph) == (4, [1, 1])


def test_a_scan_over_recomputed_blocks_keeps_less():
    w = tg.fill([64, 64], 0.01)

    def block(h, _):
        for _ in range(4):
            h = tg.tanh(h @ w)
        return h

    def temporaries(body):
        end = lambda x: tg.reduce_sum(tg.foldl(body, tg.range(24), x))  # noqa: E731
        f = tg.function(lambda x: gradient(end, x))
        slope = f(tg.ones([64, 64])).numpy()
        return f.memory().temporaries, slope

    (all_kept, slope), (states_kept, again) = map(temporaries, (block, tg.recompute_grad(block)))
    np.testing.assert_allclose(slope, again, rtol=1e-5)
    assert states_kept < 0.5 * all_kept
