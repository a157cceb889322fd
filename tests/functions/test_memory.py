"""What a kept trace costs: facts about what is held, counted over many small traces."""

import collections
import gc

import jax
import jax.monitoring
import numpy as np
import pytest

import tracegraph as tg
from lowering import program as programs
from tracegraph.ir.tensor import Graph, Node, Tensor

TRACES = 24

pytestmark = pytest.mark.filterwarnings("ignore:.*calls of .* were traced")

_compiled = []


def _listen(event, duration_secs, **_):
    if event.endswith("backend_compile_duration"):
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


def held(*kinds):
    gc.collect()
    return collections.Counter(type(x).__name__ for x in gc.get_objects() if type(x) in kinds)


def small(x, k):
    return tg.reduce_sum(tg.tanh(x * k + 1.0) - x)


def scale(variable):
    return lambda x, k: variable * x * k


def step_of(variable):
    def step(x, k):
        variable.assign_add(x * k)
        return variable * k

    return step


def test_jax_keeps_modules_of_few_programs():
    """A module with its context is 1.2 MB; what is compiled of a small function is 0.2 MB."""
    Module = type(jax.jit(lambda x: x).lower(1.0).compiler_ir("stablehlo"))
    function, x = tg.function(small), tg.ones([4])
    before = held(Module)[Module.__name__]
    for k in range(TRACES):
        function(x, float(k))
    assert held(Module)[Module.__name__] - before <= programs._LOWERED_KEPT
    assert len(function.traces) == TRACES


def test_a_trace_holds_few_graphs_and_nodes():
    function, x = tg.function(small), tg.ones([4])
    function(x, -1.0)
    before = held(Graph, Node, Tensor)
    for k in range(TRACES):
        function(x, float(k))
    now = held(Graph, Node, Tensor)
    each = {kind: (now[kind] - before[kind]) / TRACES for kind in now}
    assert each["Graph"] <= 1, each
    assert each["Node"] <= 12, each
    assert each["Tensor"] <= 12, each


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    "made", [lambda _: small, scale, step_of], ids=["pure", "reads", "assigns"]
)
def test_nothing_is_compiled_again_for_programs_that_jax_let_go_of(kind, made):
    x, variable = np.arange(4, dtype=kind), tg.Variable(np.zeros(4, kind))
    function = tg.function(made(variable))
    factors = [float(k) for k in range(TRACES)]
    first = [function(x, k).numpy() for k in factors]
    variable.assign(np.zeros(4, kind))
    count = len(_compiled)
    second = [function(x, k).numpy() for k in factors]
    for k in factors:
        function(tg.constant(x), k)
        function(x, k)
    assert len(_compiled) == count
    np.testing.assert_array_equal(first, second)


def operations(function, stage, *args):
    """The operations of a program, without the places where they come from."""
    text = function.experimental_get_compiler_ir(*args)(stage)
    return [line.split(", metadata=")[0] for line in text.splitlines() if " = " in line]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stage", ["hlo_no_metadata", "optimized_hlo"])
def test_texts_of_the_compiler_stay(stage):
    function, x = tg.function(small), tg.ones([4])
    before = operations(function, stage, x, 0.0)
    assert before
    for k in range(TRACES):
        function(x, float(k))
    assert operations(function, stage, x, 0.0) == before


def test_a_program_that_jax_let_go_of_takes_arrays_of_other_kinds_and_stores():
    """It was not compiled for committed arrays."""
    graph = tg.function(small).graph(tg.TensorSpec([4]), 2.0)
    program = programs.Program(graph)
    x = jax.numpy.arange(4.0)
    expected = program(x)
    program.let_go()
    assert program.jitted is None
    np.testing.assert_array_equal(program(x), expected)
    with jax.ensure_compile_time_eval():
        np.testing.assert_array_equal(program(x), expected)
    traced = jax.jit(lambda y: y + program(x)[0])
    np.testing.assert_array_equal(traced(1.0), 1.0 + expected[0])
    program.keep()
    np.testing.assert_array_equal(program(x), expected)
    program.let_go()
    assert program.jitted is not None
