"""Work that signal handlers do not fall into: compiles, and what a save hashes meanwhile."""

import _thread
import gc
import importlib
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

import tracegraph as tg
from tracegraph import nest
from tracegraph.core import recursion_limit, worker_thread
from tracegraph.core.later import opened
from tracegraph.core.worker_thread import Task, entered, may_be_left, on_worker_thread
from tracegraph.eager.pending import Pending
from tracegraph.ir import op

if not hasattr(signal, "setitimer"):
    pytest.skip("there are no timers", allow_module_level=True)


@pytest.fixture
def on_alarm():
    """Sets a handler, and takes it back."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_it_returns_and_raises_what_the_work_does():
    main = threading.get_ident()
    assert on_worker_thread(lambda: threading.get_ident() != main)
    with pytest.raises(KeyError, match="of the work"):
        on_worker_thread(lambda: {}["of the work"])


def test_on_other_threads_the_work_is_done_where_it_is():
    found = []
    thread = threading.Thread(target=lambda: found.append(on_worker_thread(threading.get_ident)))
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_what_a_handler_raises_comes_when_the_work_is_over(on_alarm):
    over = []

    def strike():
        raise RuntimeError("of the handler")

    def work():
        signal.raise_signal(signal.SIGALRM)
        time.sleep(0.1)
        over.append(True)

    on_alarm(strike)
    with pytest.raises(RuntimeError, match="of the handler"):
        on_worker_thread(work)
    assert over


@pytest.mark.parametrize("comes_later", [False, True])
def test_what_a_handler_raises_comes_at_once_where_the_work_may_be_left(on_alarm, comes_later):
    end, over = threading.Event(), threading.Event()
    main = threading.get_ident()

    def strike_main():
        time.sleep(0.1)  # it waits by then
        signal.pthread_kill(main, signal.SIGALRM)  # which wakes it

    def strike():
        raise RuntimeError("of the handler")

    def work():
        if comes_later:
            strike_main()
            time.sleep(0.1)
        with may_be_left():
            if not comes_later:
                strike_main()
            end.wait(60)
        over.set()

    on_alarm(strike)
    was_collecting = gc.isenabled()
    with pytest.raises(RuntimeError, match="of the handler"):
        on_worker_thread(work)
    assert not over.is_set()
    assert gc.isenabled() == was_collecting
    end.set()
    assert over.wait(60)  # the thread goes on by itself


def test_a_handler_that_no_signal_wakes_is_not_kept_waiting(on_alarm):
    end, over = threading.Event(), threading.Event()

    def strike():
        raise RuntimeError("of the handler")

    def work():
        with may_be_left():
            time.sleep(0.1)  # the main thread waits by then
            _thread.interrupt_main(signal.SIGALRM)
            end.wait(30)
            over.set()

    on_alarm(strike)
    with pytest.raises(RuntimeError, match="of the handler"):
        on_worker_thread(work)
    assert not over.is_set()
    end.set()


ENDLESS = """
import faulthandler, gc, signal, sys, threading, time
import tracegraph as tg
from tracegraph.core import worker_thread
faulthandler.dump_traceback_later(60, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
v = tg.Variable(3.0)
main = threading.get_ident()

def strike():
    while not any(task.may_be_left for task in [*worker_thread._running]):
        time.sleep(0.02)
    time.sleep(0.2)
    signal.pthread_kill(main, signal.SIGINT)

def endless(x):
    return tg.while_loop(lambda i: i > -1.0, lambda i: [i + x], [tg.constant(0.0)])[0]

@tg.function
def step(x):
    v.assign_add(x)
    return endless(x)

def at_top_level(x):
    endless(x).numpy()

def held(x):
    global y
    y = endless(x)
    y.numpy()

def assigned(x):
    v.assign(endless(x) * v)

def taped(x):
    with tg.GradientTape() as tape:
        y = tg.function(endless)(x) * v
    v.assign_sub(tape.gradient(y, v))

kinds = {"top level": at_top_level, "function": tg.function(endless), "step": step}
kinds |= {"held": held, "assigned": assigned, "taped": taped}

for case in sys.argv[1:]:
    state, _, kind = case.partition(" ")
    if state == "warm":
        kinds[kind](tg.constant(-2.0))  # which ends
    v.assign(3.0)
    for attempt in range(2):
        threading.Thread(target=strike, daemon=True).start()
        try:
            kinds[kind](tg.constant(1e-9))
        except KeyboardInterrupt:
            print("interrupted")
        assert gc.isenabled() and v.numpy() == 3.0
        assert float(tg.constant(4.0) * attempt) == 4.0 * attempt  # other programs run
    v.assign_add(1.0)
    print("ends with", v.numpy())
"""
KINDS = ["top level", "function", "step", "held", "assigned", "taped"]


@pytest.mark.parametrize(
    "cases",
    [
        # In one process, with the earlier ones still running.
        ["warm top level", "first step", "first held"],
        *(
            pytest.param([f"{state} {kind}"], marks=pytest.mark.sweep)
            for state in ("first", "warm")
            for kind in KINDS
        ),
    ],
    ids=", ".join,
)
def test_an_interrupt_ends_the_wait_for_a_run_that_never_ends(cases):
    command = [sys.executable, "-c", ENDLESS, *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    wanted = "interrupted\ninterrupted\nends with 4.0\n" * len(cases)
    assert (done.stdout, done.returncode) == (wanted, 0), done.stderr


def test_an_interrupt_of_a_loop_at_top_level_comes_before_the_assignment(monkeypatch):
    def interrupted(pending, read=None):
        raise KeyboardInterrupt

    v = tg.Variable(3.0)
    plain, halved = v * 0.5, tg.while_loop(lambda x: x > 0.1, lambda x: [x * 0.5], [v * 1.0])[0]
    monkeypatch.setattr(Pending, "evaluate", interrupted)
    for assign in (v.assign, v.assign_sub):
        with pytest.raises(KeyboardInterrupt):
            assign(halved)
    monkeypatch.undo()
    assert (float(v), float(plain), float(halved)) == (3.0, 1.5, 0.09375)
    monkeypatch.setattr(Pending, "evaluate", interrupted)
    v.assign(v * 2.0)  # waits for the value as ever
    monkeypatch.undo()
    assert float(v) == 6.0


def test_no_interrupt_strikes_while_jax_is_imported(monkeypatch):
    threads, usual = [], importlib.import_module

    def noted(name):
        threads.append(threading.get_ident())
        return usual(name)

    monkeypatch.setattr(importlib, "import_module", noted)
    opened.cache_clear()
    assert nest.tree_util.__wrapped__() is nest.tree_util()
    assert threads and threading.main_thread().ident not in threads


def test_which_loops_may_never_end():
    def may_never_end(condition, step):
        @tg.function
        def f(n, x):
            return tg.while_loop(condition(n), step, [tg.constant(0), x])

        return f.graph(tg.constant(5), tg.constant(1.0)).may_never_end

    def up(i, x):
        return i + 1, x * 0.5

    assert not may_never_end(lambda n: lambda i, x: i < n, up)
    assert not may_never_end(lambda n: lambda i, x: i < 10, up)
    assert not may_never_end(lambda n: lambda i, x: tg.logical_and(x > 0.1, i < n), up)
    assert may_never_end(lambda n: lambda i, x: tg.logical_or(x > 0.1, i < n), up)
    assert may_never_end(lambda n: lambda i, x: x > 0.1, up)
    assert may_never_end(lambda n: lambda i, x: i < n, lambda i, x: (i - 1, x))
    assert may_never_end(lambda n: lambda i, x: i < n, lambda i, x: (i + i, x))
    assert may_never_end(lambda n: lambda i, x: i < n + i, up)
    assert may_never_end(lambda n: lambda i, x: i < n, lambda i, x: (i + -1, x))
    assert may_never_end(lambda n: lambda i, x: i > n, up)
    assert may_never_end(lambda n: lambda i, x: i > n, lambda i, x: (1 - i, x))

    def down(i, x):
        return i - 1, x * 0.5

    assert not may_never_end(lambda n: lambda i, x: i <= n, up)
    assert not may_never_end(lambda n: lambda i, x: n > i, up)
    assert not may_never_end(lambda n: lambda i, x: i > n, down)
    assert not may_never_end(lambda n: lambda i, x: i >= 0, down)
    assert may_never_end(lambda n: lambda i, x: i != n, up)  # which i may pass

    @tg.function
    def over_ranges(n, x):
        for i in tg.range(n):
            x += tg.cast(i, tg.float32)
        for i in tg.range(n - 1, -1, -2):
            x += tg.cast(i, tg.float32)
        for i, _ in enumerate(range(3, n)):
            x += tg.cast(i, tg.float32)
        return x

    assert not over_ranges.graph(tg.constant(5), tg.constant(1.0)).may_never_end

    @tg.function
    def left_early(n, x):
        for _ in tg.range(n):
            x = x * 0.5
            if x < 0.1:
                break
        i = 0
        while i < n and x > 0.01:
            x = x * 0.5
            i += 1
        return x

    @tg.function
    def until_either(n, x):
        i = 0
        while i < n or x > 0.01:
            x = x * 0.5
            i += 1
        return x

    assert not left_early.graph(tg.constant(5), tg.constant(1.0)).may_never_end
    assert until_either.graph(tg.constant(5), tg.constant(1.0)).may_never_end

    @tg.function
    def bounded(x):
        return tg.while_loop(lambda x: x > 0.1, lambda x: [x], [x], maximum_iterations=3)

    assert not bounded.graph(tg.constant(1.0)).may_never_end


@pytest.mark.parametrize(("most", "is_long"), [(1000, False), (2_000_000_000, True)])
def test_a_loop_of_very_many_steps_can_be_interrupted_as_one_that_may_never_end(most, is_long):
    def by_maximum(x):
        return tg.while_loop(lambda x: x > 1e-3, lambda x: [x * 0.5], [x], maximum_iterations=most)

    def by_counter(x):
        return tg.while_loop(lambda i, _: i < most, lambda i, x: (i + 1, x * 0.5), (0, x))

    def counted_by_two(x):
        return tg.while_loop(lambda i, _: i < 2 * most, lambda i, x: (i + 2, x * 0.5), (0, x))

    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = by_maximum(x)
        return tape.gradient(y, x)

    two = () if is_long else (counted_by_two,)  # int32 does not hold twice as many
    for function in (by_maximum, by_counter, slope, *two):
        assert tg.function(function).graph(tg.constant(1.0)).may_never_end == is_long
    x = tg.constant(1.0)
    assert (float(by_maximum(x)[0]), float(slope(x))) == (2**-10, 2**-10)  # where it ends early


def test_results_of_several_tasks():
    tasks = [Task(lambda n=n: n * n) for n in range(5)]
    assert [task.result() for task in tasks] == [0, 1, 4, 9, 16]


def test_no_handler_strikes_in_work_in_place():
    """JAX holds a lock while Python hashes the key of a new `jax.jit`, for example."""
    order = []

    def work():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        order.append("work")

    def handle(number, frame):
        order.append("handler")
        if len(order) == 3:
            raise RuntimeError("of the handler")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(RuntimeError, match="of the handler"):
            Task(work, is_in_place=True)
        assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert order == ["work", "handler", "handler"]


def test_a_handler_compiles_while_jax_holds_its_lock(on_alarm, monkeypatch):
    """JAX calls Python, `__hash__`, while it holds the lock of its table of functions."""
    seen = []
    x = tg.constant([1.0, 2.0])
    (x + 0.5).numpy()

    class Options(dict):
        def items(self):
            if not seen:
                seen.append("struck")
                signal.raise_signal(signal.SIGALRM)
                time.sleep(0.05)
            return super().items()

    original = jax.jit

    def struck_jit(function, **kwargs):
        kwargs["compiler_options"] = Options(kwargs["compiler_options"])
        return original(function, **kwargs)

    monkeypatch.setattr(jax, "jit", struck_jit)
    on_alarm(lambda: seen.append((x * 3.25 - 1.125).numpy().tolist()))
    assert (x * 7.25 + 1.75).numpy().tolist() == [9.0, 16.25]
    assert seen == ["struck", [2.125, 5.375]]


READS = """
import faulthandler, random, signal, sys
import tracegraph as tg
from tracegraph import nest
faulthandler.dump_traceback_later(100, exit=True)
found = []
def handler(*_):
    found.append(float(tg.reduce_sum(w)))
signal.signal(signal.SIGALRM, handler)
random.seed(5)
count = int(sys.argv[1])
for n in range(2, 2 + count):
    w = tg.Variable(tg.zeros([n]))
    w.numpy()
    signal.setitimer(signal.ITIMER_REAL, random.random() * 0.012 + 1e-4)
    w.assign_add(tg.ones([n]))
    assert (w.numpy() == 1).all()
    signal.setitimer(signal.ITIMER_REAL, 0)
assert len(found) > count // 4, found
print("whole")
"""


@pytest.mark.parametrize("count", [5, pytest.param(22, marks=pytest.mark.sweep)])
def test_handlers_that_compute_at_random_moments_of_compiles(count):
    command = [sys.executable, "-c", READS, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_handler_saves_where_the_program_saves(on_alarm, tmp_path):
    w = tg.Variable(np.arange(1000.0))
    checkpoint = tg.train.Checkpoint(w=w)
    saved = []

    def save():
        saved.append(checkpoint.save(tmp_path / "at"))
        signal.setitimer(signal.ITIMER_REAL, 0.03)

    on_alarm(save)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    paths = [checkpoint.save(tmp_path / "at") for _ in range(30)]
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert saved
    for path in {*paths, *saved}:
        checkpoint.restore(path)
        np.testing.assert_array_equal(w, np.arange(1000.0))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lock", [recursion_limit._lock, op._interning], ids=["frames", "ops"])
def test_a_handler_may_compile_while_its_thread_has_a_lock_that_compiling_takes(on_alarm, lock):
    found = []
    on_alarm(lambda: found.append(float(tg.function(lambda x: tg.tanh(x) * 2.0)(0.5))))
    with entered(lock):
        signal.raise_signal(signal.SIGALRM)
    assert found == [pytest.approx(0.92423433)]


def test_a_postponed_handler_that_raises_keeps_no_other_from_running():
    ran = []

    def raises(number, frame):
        ran.append(number)
        raise KeyError(number)

    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM]
    handlers = [raises, raises, lambda number, frame: ran.append(number)]
    before = [signal.signal(*pair) for pair in zip(numbers, handlers, strict=True)]
    try:
        with pytest.raises(KeyError), worker_thread._handlers_postponed():
            for number in numbers:
                signal.raise_signal(number)
            assert not ran
        assert ran == numbers
        assert [*map(signal.getsignal, numbers)] == handlers
    finally:
        for pair in zip(numbers, before, strict=True):
            signal.signal(*pair)
