"""An interrupt at a random moment leaves every Variable with its old or its new value."""

import functools
import gc
import inspect
import os
import random
import signal
import sys
import threading
from types import FunctionType

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.core.source import is_ours
from tracegraph.ir.builder import current, top_level

COUNT = 1000

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="interrupts need timers and the main thread",
)


class Interrupts:
    """Raises KeyboardInterrupt in the main thread, once at a random moment of each `strike`."""

    def __init__(self, longest):
        self.longest = longest
        self.is_armed = False

    def __enter__(self):
        self.old = signal.signal(signal.SIGALRM, self.handle)
        return self

    def __exit__(self, *exception):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.old)

    def handle(self, number, frame):
        if self.is_armed:
            # Python swallows what is raised inside callbacks of its garbage collector and of weak
            # references: like a person, strike again if nothing comes of it.
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            if not reports_what_was_swallowed(frame):
                raise KeyboardInterrupt

    def strike(self, action):
        """Runs `action`, and swallows the interrupt that falls into it."""
        try:
            self.is_armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, self.longest))
            action()
        except KeyboardInterrupt:
            self.is_armed = False
        self.is_armed = False


def reports_what_was_swallowed(frame):
    """Whether pytest is writing down what Python swallowed: an interrupt of that would be an error
    of the test."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("unraisableexception.py"):
            return True
        frame = frame.f_back
    return False


class Repeated:
    """Calls a step for ever, and counts the calls that began."""

    def __init__(self, step):
        self.step = step
        self.calls = 0

    def __call__(self):
        while True:
            self.calls += 1
            self.step()


def values_of(variables):
    return [v.numpy() for v in variables]


def check_old_or_new(before, after, grown):
    """Each variable has a value that some of the `grown` calls since `before` gave it."""
    for old, new in zip(before, after, strict=True):
        assert np.all(new == new.flat[0])
        assert 0 <= new.flat[0] - old.flat[0] <= grown


def check_pending_is_listed(variables):
    """Nodes that are still pending will run with the list. Those that the list had lost would be
    computed too, each value alone from its nodes, so that values tell nothing of a list emptied
    too early."""
    listed, seen = {*top_level().nodes}, set()
    found = [v.buffer.node for v in variables if isinstance(v.buffer, tg.Tensor)]
    while found:
        node = found.pop()
        if node is not None and node not in seen:
            assert node in listed
            seen.add(node)
            found.extend(x.node for x in node.inputs)


# An interrupt that falls into a callback is reported there, and swallowed.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytestmark,
]


@pytest.mark.parametrize("size", [1, 1000])
def test_interrupts_inside_a_donated_step(size):
    random.seed(size)
    variables = [tg.Variable(tg.zeros([size])) for _ in range(6)]

    @tg.function
    def step(x):
        for v in variables:
            v.assign_add(tg.zeros([size]) + x)
        return x

    one = tg.constant(1.0)
    step(one)
    before = values_of(variables)
    with Interrupts(3e-4) as interrupts:
        for _ in range(COUNT):
            repeated = Repeated(lambda: step(one))
            interrupts.strike(repeated)
            after = values_of(variables)
            check_old_or_new(before, after, repeated.calls)
            # One call stores all of its variables or none.
            assert len({float(value.flat[0]) for value in after}) == 1
            assert float(after[0].flat[0] - before[0].flat[0]) >= repeated.calls - 1
            before = after
    step(one)
    assert values_of(variables)[0].flat[0] == before[0].flat[0] + 1


@pytest.mark.parametrize("count", [30, pytest.param(COUNT // 6, marks=pytest.mark.sweep)])
def test_interrupts_of_an_undecorated_loop(count):
    random.seed(2)
    variables = [tg.Variable(tg.zeros([3])) for _ in range(4)]

    def step():
        for v in variables:
            v.assign_add([1.0, 1.0, 1.0])

    for _ in range(100):
        step()
    before = values_of(variables)
    with Interrupts(8e-3) as interrupts:
        for _ in range(count):
            # So few nodes were pending at the last read that the list is cut every few steps.
            tg.zeros([]).numpy()
            repeated = Repeated(step)
            interrupts.strike(repeated)
            check_pending_is_listed(variables)
            after = values_of(variables)
            check_old_or_new(before, after, repeated.calls)
            # Only the call that was struck may have left assignments out.
            for old, new in zip(before, after, strict=True):
                assert new[0] - old[0] >= repeated.calls - 1
            before = after
    step()
    assert values_of(variables)[0].flat[0] == before[0].flat[0] + 1


def test_an_interrupt_waits_while_pytest_reports_one_that_was_swallowed():
    reporting = compile("interrupts.handle(14, sys._getframe())", "unraisableexception.py", "eval")
    with Interrupts(1.0) as interrupts:
        interrupts.is_armed = True
        eval(reporting, {"interrupts": interrupts, "sys": sys})
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.05
        with pytest.raises(KeyboardInterrupt):
            interrupts.handle(14, sys._getframe())
        interrupts.is_armed = False


@pytest.mark.filterwarnings("ignore:5 of the last")
@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.sweep)])
def test_interrupt_while_a_step_is_traced_and_compiled(count):
    random.seed(3)
    v = tg.Variable(tg.zeros([4]))
    with Interrupts(0.05) as interrupts:
        for _ in range(count):
            step = tg.function(lambda x: v.assign_add(tg.tanh(x) * 0 + 1.0).read_value())
            old = v.numpy()[0]
            interrupts.strike(functools.partial(step, tg.ones([4])))
            assert v.numpy()[0] - old in (0.0, 1.0)
            assert step(tg.ones([4])).numpy()[0] == v.numpy()[0]


def test_error_inside_a_step_leaves_the_variables():
    v = tg.Variable([1.0, 2.0])

    @tg.function
    def step(x):
        v.assign_add([1.0, 1.0])
        tg.debugging.assert_less(x, 1.0, message="x is too large")
        v.assign_add([10.0, 10.0])

    step(tg.constant(0.0))
    np.testing.assert_array_equal(v.numpy(), [12.0, 13.0])
    with pytest.raises(tg.errors.InvalidArgumentError, match="x is too large"):
        step(tg.constant(2.0))
    np.testing.assert_array_equal(v.numpy(), [13.0, 14.0])
    step(tg.constant(0.0))
    np.testing.assert_array_equal(v.numpy(), [24.0, 25.0])


def test_other_threads_go_on_after_interrupts():
    random.seed(4)
    v = tg.Variable(tg.zeros([3]))
    with Interrupts(3e-4) as interrupts:
        for _ in range(COUNT // 4):
            interrupts.strike(Repeated(lambda: v.assign_add([1.0, 1.0, 1.0])))
    before = v.numpy()
    thread = threading.Thread(target=lambda: v.assign_add([1.0, 1.0, 1.0]), daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    np.testing.assert_array_equal(v.numpy(), before + 1.0)


def strike(action, moment, is_there=lambda code: True):
    """Runs `action`, and interrupts it where as many functions as `moment` were called by code that
    `is_there`. Returns whether it did."""
    left = [moment]

    def observe(frame, event, _):
        if is_there(frame.f_code) and event in ("call", "c_return"):
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    try:
        sys.setprofile(observe)
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def enters_or_leaves_a_builder(code):
    return code.co_filename.endswith("builder.py") and code.co_name in ("__enter__", "__exit__")


@pytest.mark.filterwarnings("ignore:5 of the last")
def test_interrupts_where_a_graph_is_entered_and_left():
    v, x = tg.Variable(1.0), tg.constant(2.0)
    scalar = tg.TensorSpec([], tg.float32)

    def body(x):
        v.assign_add(1.0)
        return tg.py_function(lambda x: x * v, [x], scalar) + v

    moment = 0
    while True:
        step = tg.function(body)
        before = float(v)

        def action(step=step):
            with tg.GradientTape() as tape:
                tape.watch(x)
                y = step(x)
            tape.gradient(y, x).numpy()

        has_struck = strike(action, moment, enters_or_leaves_a_builder)
        assert tg.executing_eagerly()
        assert float(v) - before in (0.0, 1.0)
        if not has_struck:
            break
        assert tg.constant(3.0).numpy() + (x * 2.0).numpy() == 7.0
        moment += 1 if moment < 20 else 5
    assert moment > 50
    assert float(step(x)) == 3.0 * float(v)


def test_an_interrupt_of_clear_cache_leaves_all_traces_or_none():
    traced = []

    @tg.function
    def f(x):
        traced.append(x.shape)
        return x + 1.0

    outer = tg.function(lambda x: f(x) * 2.0)
    x = tg.constant([1.0])
    moment, kept = 0, set()
    while True:
        f(x)
        outer.clear_cache()
        traced.clear()
        has_struck = strike(f.clear_cache, moment)
        f(x)  # the fast path, and
        count = len(traced)
        outer(x)  # the slow one
        assert len(traced) == count
        kept.add(count == 0)
        if not has_struck:
            break
        moment += 1
    assert kept == {True, False}


# What a handler raises is nobody else's error.

ACTIONS = {
    "numpy": lambda it: (it.x * 2.0 + 1.0).numpy(),
    "a value that exists": lambda it: it.x.numpy(),
    "a call": lambda it: it.pure(it.x),
    "a call with a Variable": lambda it: it.step(it.x),
    "a call of an array": lambda it: it.pure(np.ones(2, np.float32)),
    "write": lambda it: it.checkpoint.write(it.path),
    "read": lambda it: it.checkpoint.read(it.path),
}
#: How many moments are left out at most between two that are tried.
STRIDES = {"numpy": 5, "write": 150, "read": 150}


class Objects:
    def __init__(self, path):
        self.path = str(path)
        self.x = tg.constant([1.0, 2.0])
        v = tg.Variable([1.0, 2.0])
        self.pure = tg.function(lambda x: x * 3.0)
        self.step = tg.function(lambda x: v.assign_add(x * 0.0) + x)
        self.checkpoint = tg.train.Checkpoint(v=v)
        self.checkpoint.write(self.path)


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, AttributeError, TimeoutError])
@pytest.mark.parametrize("name", ACTIONS)
def test_what_a_handler_raises_comes_out_as_it_is(name, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    choose, moment = random.Random(name), 0
    objects = Objects(tmp_path / "state")

    def handler(number, frame):
        raise kind("of the handler")

    before = signal.signal(signal.SIGALRM, handler)
    gc.collect()
    gc.disable()  # Python swallows what is raised in finalizers, of other tests' garbage too
    try:
        for _ in range(3):  # until nothing is compiled or imported any more
            ACTIONS[name](objects)
        while True:
            left = moment

            def observe(frame, event, _):
                nonlocal left
                # Python closes a generator that it drops, and swallows what is raised in there.
                code, is_there = frame.f_code, event in ("call", "c_return")
                is_there = is_there and not code.co_flags & inspect.CO_GENERATOR
                if is_there and is_ours(code.co_filename):
                    left -= 1
                    if left < 0:
                        sys.setprofile(None)
                        signal.raise_signal(signal.SIGALRM)

            try:
                sys.setprofile(observe)
                ACTIONS[name](objects)
            except Exception as error:
                assert type(error) is kind and error.args == ("of the handler",)
                assert left < 0
            else:
                assert left >= 0, f"swallowed at {moment}"
                break
            finally:
                sys.setprofile(None)
            assert (objects.x + 1.0).numpy()[0] == 2.0
            moment += choose.randint(1, STRIDES.get(name, 1))
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert moment > 1


# Blocks are left, whatever strikes.


def stopped_tape(tape):
    with tape.stop_recording():
        pass


BLOCKS = {
    "tape": lambda: tg.GradientTape(),
    "persistent tape": lambda: tg.GradientTape(persistent=True),
    "name scope": lambda: tg.name_scope("scope"),
    "scope of a module": lambda: tg.Module(name="module").name_scope,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_an_interrupt_leaves_no_block_open(name):
    """The error is kept, as by `except KeyboardInterrupt as error`, with all frames it went
    through: nothing waits for the garbage collector."""
    moment, kept = 0, []

    def is_there(code):
        # Where a generator is closed Python calls profilers, but looks for no signals.
        is_generator = code.co_flags & inspect.CO_GENERATOR
        is_block = code.co_name in ("__enter__", "__exit__")
        return not is_generator and (is_block or is_ours(code.co_filename))

    def action():
        block = BLOCKS[name]()
        try:
            with block:
                if isinstance(block, tg.GradientTape):
                    stopped_tape(block)
        except KeyboardInterrupt as error:
            kept.append(error)
            raise

    while strike(action, moment, is_there):
        assert not current().recorders
        assert tg.Variable(1.0, name="w").name == "w:0"
        assert tg.sin(tg.constant(1.0)).source.scope == ""
        moment += 1
    assert moment > 5 and kept


def test_an_interrupt_of_a_loop_with_a_counter_comes_after_it_with_the_state_stored():
    """Such a loop is one program that is not left half-way: see the guide to control flow."""
    v, count = tg.Variable(0.5), tg.Variable(0)

    @tg.function
    def counted(n):
        for _ in tg.range(n):
            v.assign(tg.cos(v))  # without it, XLA would not count
            count.assign_add(1)

    steps = tg.constant(5_000_000)
    for _ in range(2):  # the first run of a program has its own thread
        counted(tg.constant(1))

    def strike(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, strike)
    try:
        before = count.numpy()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            counted(steps)
            count.numpy()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert count.numpy() == before + 5_000_000
    counted(tg.constant(2))
    assert count.numpy() == before + 5_000_002


def test_an_interrupt_where_python_has_no_line():
    def interrupted(x):
        raise KeyboardInterrupt

    without_lines = FunctionType(interrupted.__code__.replace(co_linetable=b""), globals())
    found = None
    try:  # not `pytest.raises`, which looks for the line
        tg.map_fn(without_lines, tg.ones([2]))
    except BaseException as error:
        found = type(error)
    assert found is KeyboardInterrupt
