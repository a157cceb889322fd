"""What is slow says so: loops that are unrolled, and compiles that take long."""

import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import UnrolledLoopWarning
from tracegraph.ir import slow_compiles


def line_of(function, mark="# here"):
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().split("\n")
    return next(n for n in range(first, len(lines)) if lines[n - 1].endswith(mark))


def total(n):
    y = tg.constant(0.0)
    for t in tg.range(n):  # here
        y = y + tg.sin(tg.cast(t, tg.float32))
    return y


def test_an_unrolled_loop_is_told_once_with_its_line():
    with pytest.warns(UnrolledLoopWarning) as caught:
        f = tg.function(total, autograph=False)
        assert np.isclose(f(300), np.sin(np.arange(300)).sum(), rtol=1e-4)
        f.graph(301)  # the same line
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, line_of(total))
    text = str(warning.message)
    nodes = len(f.graph(300).nodes)
    per_iteration = nodes / 300
    assert text.startswith("a Python loop over a tensor i32[300] is unrolled: 1,0")
    iterations = int(text.split(" nodes in ")[1].split(" of its 300 iterations")[0])
    assert 1000 / per_iteration / 2 < iterations < 300
    assert f"\n  at {__file__}:{line_of(total)}:  for t in tg.range(n):" in text
    assert "\n  fix: compute on the whole tensor at once" in text


def test_loops_that_are_short_or_at_top_level_say_nothing():
    def rows(x, y):
        z = 0.0
        for a, b in zip(x, y):
            for c in a:
                z = z + c * b
        return z

    x = tg.ones([12, 10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tg.function(rows, autograph=False)(x, tg.ones([12])).numpy() == 120.0
        assert np.isclose(rows(tg.ones([40, 40]), tg.ones([40])), 1600.0)


def test_two_tensors_in_step_and_loops_inside_are_one_warning():
    def rows(x, y):
        z = 0.0
        for a, b in zip(x, y):
            for c in a:
                z = z + c * b
        return z

    f = tg.function(rows, autograph=False)
    with pytest.warns(UnrolledLoopWarning, match=r"of its 40 iterations") as caught:
        f.get_concrete_function(tg.TensorSpec([40, 20]), tg.TensorSpec([40]))
    assert len(caught) == 1


def test_a_short_loop_that_is_entered_again_is_told():
    def entered(y, times, others=()):
        for k in range(times):
            for t in tg.range(10):  # here
                y = y + tg.cast(t, tg.float32) * k
        for x in others:
            y = y + x
        return y

    few = tg.function(entered, autograph=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each trace and each line counts by itself
        for times in (8, 9, 10):
            few.get_concrete_function(0.0, times, tg.ones([300]))
    with pytest.warns(UnrolledLoopWarning) as caught:
        f = tg.function(entered, autograph=False)
        assert f(0.0, 50).numpy() == 45 * 49 * 25
    (warning,) = caught
    text = str(warning.message)
    assert warning.lineno == line_of(entered)
    assert text.startswith("a Python loop over a tensor i32[10] is unrolled: 1,0")
    entries = int(text.split("as it was entered ")[1].split(" times")[0])
    assert 5 <= entries < 100
    assert f" iterations, as it was entered {entries} times, and each of them is traced" in text


def test_a_loop_over_two_tensors_in_step_counts_its_nodes_once():
    def rows(x, y, times):
        z = 0.0
        for _ in range(times):
            for a, b in zip(x, y):
                z = z + a * b
        return z

    x = tg.ones([10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tg.function(rows, autograph=False)(x, x, 15).numpy() == 150.0
    with pytest.warns(UnrolledLoopWarning, match=": 1,0.. nodes in .*entered 1. times"):
        tg.function(rows, autograph=False)(x, x, 30)


def test_a_loop_that_is_too_long_at_its_end_is_told():
    def long(x):
        for a in x:
            for _ in range(300):
                a = tg.sin(a)
        return a

    with pytest.warns(UnrolledLoopWarning, match="in 4 of its 4 iterations"):
        tg.function(long, autograph=False).get_concrete_function(tg.TensorSpec([4]))


def over_a_range(x, n):
    for k in range(n):  # here
        x = tg.sin(x) * (k + 1.0)
    return x


def while_python_decides(x, n):
    k = 0
    while k < n:  # here
        x = tg.sin(x) * (k + 1.0)
        k += 1
    return x


def left_by_a_tensor(x, n):
    for k in range(n):  # here
        if x > 100.0:
            break
        x = tg.sin(x) + k
    return x


@pytest.mark.parametrize(
    ("function", "count", "start", "end", "fix"),
    [
        (over_a_range, 520, "a Python loop over range(0, 520) is", "of its 520", "tg.range"),
        (while_python_decides, 520, "a Python `while` is", "iterations,", "i = tg.constant(0)"),
        pytest.param(
            *(left_by_a_tensor, 520, "a Python loop over range(0, 520) is", "of its 520"),
            "tg.range",
            marks=pytest.mark.sweep,  # it has a branch in each of its iterations
        ),
    ],
)
def test_converted_loops_that_python_decides_are_told(function, count, start, end, fix):
    # It is traced alone: XLA takes long.
    f, spec = tg.function(function), tg.TensorSpec([])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f.get_concrete_function(spec, 60)
    with pytest.warns(UnrolledLoopWarning) as caught:
        graph = f.get_concrete_function(spec, count).graph
        if function is over_a_range:
            f.get_concrete_function(spec, count + 1)  # the same line
    (warning,) = caught
    text = str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line_of(function))
    assert text.startswith(f"{start} unrolled: 1,0") and end in text and fix in text
    told = int(text.split(" nodes in ")[1].split()[0])
    per_iteration = len(graph.nodes) / count
    assert 0.4 * 1000 / per_iteration < told <= 1000


def test_a_while_that_a_tensor_takes_over_is_not_told():
    def doubled(x):
        k = 0
        while k < 3 or x < 1e9:
            x, k = x * 2.0, k + 1
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tg.function(doubled)(tg.constant(1.0)).numpy() == 2.0**30


@pytest.fixture
def notes(monkeypatch):
    """Notes are on, and come after 10 milliseconds."""
    monkeypatch.setattr(slow_compiles, "SECONDS", 0.01)
    tg.config.set_compile_notes(True)
    yield
    tg.config.set_compile_notes(False)


def chain(x, length=60, shift=0.0):
    for k in range(length):
        x = tg.sin(x) * (k + 1.0 + shift)
    return x


def is_quiet():
    """Whether nobody watches a compile any more."""
    return not slow_compiles.watching


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_long_compile_is_told_once(notes, capsys):
    f, x = tg.function(chain), tg.constant([1.0, 2.0])
    shift = time.time()  # no compile of an earlier process is found
    f(x, 400, shift)
    text = capsys.readouterr().err
    assert text.startswith(
        "tracegraph: the first run of chain (its first op is at test_slowness.py:"
    )
    assert f"it has {len(f.traces[0].graph.nodes):,} nodes, and XLA still compiles" in text
    assert "Fewer nodes compile faster" in text and "processors" not in text
    assert "has taken 0 s so far" in text and text.count("\n") == 1
    f(x, 400, shift)
    assert wait_for(is_quiet) and capsys.readouterr().err == ""


def test_few_nodes_are_not_blamed(notes, capsys):
    with slow_compiles.noted(tg.function(chain).graph(tg.ones([2]), 3)):
        assert wait_for(is_quiet)
    text = capsys.readouterr().err
    assert "These are few: other programs may keep the processors busy;" in text
    assert "Fewer nodes" not in text


def test_a_wait_for_other_processes_is_no_compile(notes, capsys):
    graph = tg.function(chain).graph(tg.ones([2]), 3)
    with slow_compiles.noted(graph), slow_compiles.waiting_for_processes():
        assert wait_for(is_quiet)
    text = capsys.readouterr().err
    assert "so far: it waits for the other processes to run the same;" in text


def test_a_note_is_silenced(notes, capsys):
    tg.config.set_compile_notes(False)
    assert not tg.config.get_compile_notes()
    tg.function(chain)(tg.ones([2]), 400, time.time())
    assert capsys.readouterr().err == ""
    assert is_quiet()


def test_a_compile_in_time_says_nothing_and_leaves_no_timer(capsys):
    tg.config.set_compile_notes(True)
    try:
        f = tg.function(lambda x: x * time.time())
        f(tg.ones([2]))
        assert wait_for(is_quiet)
        f(tg.ones([2]))
        assert is_quiet()
    finally:
        tg.config.set_compile_notes(False)
    assert wait_for(is_quiet)
    assert capsys.readouterr().err == ""


def test_a_run_that_fails_or_is_interrupted_says_nothing_more(notes, capsys, monkeypatch):
    graph = tg.function(chain).graph(tg.ones([2]), 3)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            with slow_compiles.noted(graph):
                raise error
    assert wait_for(is_quiet) and not slow_compiles.is_noted(graph)
    monkeypatch.setattr(slow_compiles, "SECONDS", 0.5)
    context = slow_compiles.noted(graph)
    context.__enter__()
    del context  # as an interrupt leaves it that falls right behind the entry
    assert wait_for(is_quiet) and capsys.readouterr().err == ""


def test_a_handler_that_strikes_where_a_thread_is_started_may_compile(notes):
    with threading._active_limbo_lock:  # as `Thread.start` holds it for a moment
        assert float(tg.function(lambda x: x * 2.0)(3.0)) == 6.0


def test_nested_first_runs_are_told_each_of_their_own(notes, capsys):
    outer, inner = (tg.function(chain).graph(tg.ones([2]), n) for n in (3, 4))
    with slow_compiles.noted(outer):
        assert slow_compiles.is_noted(outer) and not slow_compiles.is_noted(inner)
        with slow_compiles.noted(inner):
            assert slow_compiles.is_noted(outer) and slow_compiles.is_noted(inner)
            time.sleep(0.2)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    for graph in (outer, inner):
        assert any(f"it has {len(graph.nodes)} nodes, and XLA still compiles" in x for x in told)


def stall_in_a_handler():
    """Half a second in the handler of a signal that strikes now."""
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: time.sleep(0.5))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, previous)


class Stalling:
    def __del__(self):
        time.sleep(0.5)


@pytest.mark.parametrize("stall", [stall_in_a_handler, Stalling], ids=["handler", "finalizer"])
def test_what_interrupts_a_compile_is_no_time_of_it(stall, notes, monkeypatch, capsys):
    monkeypatch.setattr(slow_compiles, "SECONDS", 0.25)
    graph = tg.function(chain).graph(tg.ones([2]), 3)
    with slow_compiles.noted(graph):
        stall()
    assert capsys.readouterr().err == ""
    with slow_compiles.noted(graph):
        stall()
        assert capsys.readouterr().err == ""
        assert wait_for(is_quiet)  # from here on it is the compile itself
    assert "first run of chain" in capsys.readouterr().err


EXIT = """
import atexit, threading, time
atexit.register(time.sleep, 0.5)  # it runs after those that are registered later
import tracegraph as tg
from tracegraph.ir import slow_compiles
slow_compiles.SECONDS = 0.2
graph = tg.function(lambda x: x).graph(tg.ones([2]))
def compile():
    with slow_compiles.noted(graph):
        time.sleep(5)
threading.Thread(target=compile, daemon=True).start()
{wait}
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_exiting", [True, False])
def test_who_leaves_python_is_not_told_any_more(is_exiting):
    code = EXIT.format(wait="" if is_exiting else "time.sleep(0.5)")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0
    assert ("first run" in found.stderr) is not is_exiting, found.stderr
