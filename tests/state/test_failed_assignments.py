"""Assignments at top level whose values cannot be computed: the Variable keeps its former value."""

import threading

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.eager import pending
from tracegraph.ir.builder import current
from tracegraph.state import variable as state_variable


def pending_nodes():
    builder = current()
    assert isinstance(builder, pending.Pending)
    return builder


@pytest.fixture(autouse=True)
def without_cosh(monkeypatch):
    """Programs with `cosh` fail when they run, as one does for which there is no memory."""
    program = pending.backend.program

    def failing(graph, donated=()):
        def fail(*buffers):
            raise RuntimeError("no memory")

        return fail if any(node.op.name == "cosh" for node in graph.nodes) else program(graph)

    monkeypatch.setattr(pending.backend, "program", failing)
    monkeypatch.setattr(pending, "_runners", [failing])


def test_the_error_comes_once_and_the_former_value_stays():
    v = tg.Variable([1.0, 2.0])
    v.assign(tg.cosh(v))
    with pytest.raises(RuntimeError, match="no memory"):
        v.numpy()
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
    v.assign_add([1.0, 1.0])
    np.testing.assert_array_equal(v.numpy(), [2.0, 3.0])


def test_assignments_before_the_failed_one_stay():
    v = tg.Variable(1.0)
    v.assign_add(1.0)
    v.assign(v * 3.0)
    v.assign(tg.cosh(v))
    v.assign_add(1.0)  # depends on the failed value
    with pytest.raises(RuntimeError, match="no memory"):
        float(v)
    assert float(v) == 6.0


def test_a_value_that_was_given_in_between_stays():
    v = tg.Variable(1.0)
    v.assign_add(1.0)
    v.assign(5.0)
    v.assign(tg.cosh(tg.constant(2.0)))
    with pytest.raises(RuntimeError, match="no memory"):
        float(v)
    assert float(v) == 5.0


def test_a_later_assignment_that_does_not_depend_stays():
    v = tg.Variable(1.0)
    v.assign(tg.cosh(v))
    v.assign(tg.constant(2.0) * 3.0)
    assert float(v) == 6.0


def test_all_variables_of_a_step_have_their_former_values_after_one_error():
    variables = [tg.Variable(float(i)) for i in range(4)]
    good = tg.Variable(10.0)
    loss = tg.constant(2.0) * 3.0
    for variable in variables:
        variable.assign_sub(tg.cosh(loss))
    good.assign_add(loss)
    assert float(loss) == 6.0
    with pytest.raises(RuntimeError, match="no memory"):
        sum(variables)
    assert [float(variable) for variable in variables] == [0.0, 1.0, 2.0, 3.0]
    assert float(good) == 16.0


def test_an_error_told_by_another_value_restores_too():
    v = tg.Variable(1.0)
    y = tg.cosh(v)
    v.assign(y * 2.0)
    with pytest.raises(RuntimeError, match="no memory"):
        y.numpy()
    assert float(v * 5.0) == 5.0


def test_a_compiled_step_tells_the_error_and_then_runs():
    v = tg.Variable(1.0)

    @tg.function
    def step():
        v.assign_add(1.0)
        return v * 2.0

    step()
    v.assign(tg.cosh(v))
    with pytest.raises(RuntimeError, match="no memory"):
        step()
    assert float(step()) == 6.0 and float(v) == 3.0


def test_a_list_that_is_cut_between_two_assignments():
    v, x = tg.Variable(1.0), tg.constant(2.0)
    v.assign_add(1.0)
    v.assign(v * 3.0)
    waiting = pending_nodes()
    first = len(waiting.nodes)
    v.assign(tg.cosh(x))  # reads nothing of what was assigned before
    waiting._run(first)
    with pytest.raises(RuntimeError, match="no memory"):
        float(v)
    assert float(v) == 6.0


def test_an_assignment_by_another_thread_stays():
    v = tg.Variable(1.0)
    v.assign(tg.cosh(v))
    thread = threading.Thread(target=lambda: v.assign(7.0))
    thread.start()
    thread.join()
    assert float(v) == 7.0


def test_an_interrupt_that_has_the_value_computed(monkeypatch):
    v = tg.Variable(1.0)
    content = state_variable._content

    def interrupted(value):
        found = content(value)
        tg.add(1.0, 1.0).numpy()  # as a signal handler may do, which runs the whole list
        return found

    monkeypatch.setattr(state_variable, "_content", interrupted)
    v.assign_add(1.0)
    v.assign(v * 2.0)
    assert float(v) == 4.0


def test_what_was_assigned_is_forgotten_when_it_has_been_computed():
    v = tg.Variable(np.zeros(4, np.float32))
    for _ in range(3):
        v.assign_add(np.ones(4, np.float32))
        assert id(v) in pending_nodes()._assigned
        v.numpy()
        assert not pending_nodes()._assigned
