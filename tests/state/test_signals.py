"""Signal handlers, finalizers and callbacks of weak references: at any moment they may do what the
main program may do, and nothing is lost."""

import contextlib
import faulthandler
import gc
import pickle
import random
import re
import signal
import sys
import threading
import weakref

import jax
import numpy as np
import pytest

import tracegraph as tg
from lowering.program import compiles
from tracegraph.eager import pending

pytestmark = [
    pytest.mark.skipif(
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread(),
        reason="signals need timers and the main thread",
    ),
    pytest.mark.filterwarnings("ignore:5 of the last"),
]

ONE = tg.constant(1.0)
COUNT = 1500


def test_what_waits_in_a_thread_that_a_handler_struck_is_computed_without_it():
    """A handler strikes a thread that runs its list, and reads a Variable; another thread assigns
    what waits in that list. Each has the lock that the other one wants."""
    v, x = tg.Variable(1.0), tg.constant(2.0) * 3
    with x.node.builder.lock:  # the list is run
        thread = threading.Thread(target=v.assign_add, args=[x], daemon=True)
        thread.start()
        thread.join(0.05)
        assert float(v) in (1.0, 7.0)  # the handler
        thread.join(20)
        assert not thread.is_alive()
    assert float(v) == 7.0 and float(x) == 6.0


class Signals:
    """Calls `action` from a signal handler at random moments, and counts the calls."""

    def __init__(self, action, longest):
        self.action = action
        self.longest = longest
        self.count = 0
        self.is_running = self.is_over = False

    def __enter__(self):
        self.old = signal.signal(signal.SIGALRM, self.handle)
        self.again()
        return self

    def __exit__(self, *exception):
        self.is_over = True  # one that waits for its turn sets no timer any more
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.old)

    def again(self):
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, self.longest))

    def handle(self, number, frame):
        if self.is_over:
            return
        if not self.is_running:  # a handler that is slower than its timer
            self.is_running = True
            self.action()
            self.count += 1
            self.is_running = False
        self.again()


def values_of(variables):
    return [float(v.numpy().flat[0]) for v in variables]


def step_of(variables):
    @tg.function
    def step(x):
        for v in variables:
            v.assign_add(tg.zeros([3]) + x)
        return x

    return step


class Actions:
    """What a handler may do, with the state that it changes."""

    def __init__(self, variables, folder):
        self.variables = variables
        self.own = tg.Variable(0.0)
        self.folder = folder
        self.kept = []
        self.added = 0

    def read(self):
        found = values_of(self.variables)
        assert len(set(found)) == 1, f"a step was seen in half: {found}"

    def keep(self):
        """Keeps tensors: their values must live on while steps overwrite the Variables."""
        self.kept.append([v.read_value() for v in self.variables])
        del self.kept[:-5]
        for tensors in self.kept:
            assert len({float(x.numpy().flat[0]) for x in tensors}) == 1

    def assign(self):
        for v in self.variables:
            v.assign_add([1.0, 1.0, 1.0])
        self.added += 1

    def call(self):
        self.step(ONE)
        self.added += 1

    def differentiate(self):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(self.variables[0] ** 2.0) * self.own
        assert tape.gradient(loss, self.variables[0]).shape == [3]
        self.own.assign_add(1.0)

    def save(self):
        pickle.dumps(self.variables[0])
        if random.random() < 0.02:
            tg.train.Checkpoint(v=self.variables).write(str(self.folder / "c"))

    def dump(self):
        """Stacks of all threads, with the interpreter's lock: dumps that faulthandler makes without
        it, from its timer or its own handlers, end plain Python programs too."""
        with open(self.folder / "stacks", "w") as file:
            faulthandler.dump_traceback(file)
        self.assign()


ACTIONS = ["read", "keep", "assign", "call", "differentiate", "save", "dump"]


def strike_steps(name, count, folder):
    """Runs a donated step for as long as `count` signals take."""
    random.seed(name)
    variables = [tg.Variable(tg.zeros([3])) for _ in range(4)]
    actions = Actions(variables, folder)
    step = step_of(variables)
    actions.step = step_of(variables)
    step(ONE)
    actions.step(ONE)
    # A dump takes many times as long as a step, which must get its share of the time.
    longest = 1e-2 if name == "dump" else 4e-4
    with Signals(getattr(actions, name), longest) as signals:
        calls = 2
        while signals.count < count:
            step(ONE)
            calls += 1
    assert values_of(variables) == [calls + actions.added] * 4


def test_a_handler_that_always_strikes_while_values_are_computed_compiles_few_programs(monkeypatch):
    """What it adds meanwhile runs in pieces: a program for each length would take longer to compile
    than the handler takes to add as much again."""
    v, run, counts = tg.Variable(0.0), pending._Batch.run, []

    def struck(batch):
        run(batch)
        while counts:
            for _ in range(counts.pop()):
                v.assign_add(1.0)

    monkeypatch.setattr(pending._Batch, "run", struck)
    before = pending.compiled_count()
    for count in range(3, 60, 2):
        counts.append(count)
        (v + 1.0).numpy()
    assert float(v) == sum(range(3, 60, 2))
    assert pending.compiled_count() - before < 20


def test_a_handler_may_assign_while_a_run_looks_at_what_was_assigned(monkeypatch):
    v, w = tg.Variable(1.0), tg.Variable(1.0)
    values, strikes = pending._Assigned.values, [w]

    def struck(assigned):
        if strikes:
            strikes.pop().assign_add(1.0)
        return values(assigned)

    monkeypatch.setattr(pending._Assigned, "values", struck)
    v.assign_add(1.0)
    assert v.numpy() == 2.0 and w.numpy() == 2.0 and not strikes


@pytest.mark.parametrize("way", ["plain", "assigning", "calling", "taped"])
def test_a_handler_may_resize_a_variable_before_a_run_reads_it(way, monkeypatch):
    """The program was chosen for the former sizes: a mean would be the new sum divided by the old
    count."""
    v = tg.Variable([1.0, 1.0], shape=[None])

    @tg.function
    def mean(x):
        if way == "assigning":
            v.assign_add(tg.zeros_like(v))
        y = tg.reduce_mean(v) * x
        return tg.py_function(lambda y: y, [y], tg.TensorSpec([])) if way == "calling" else y

    for size in (2, 3):
        v.assign(np.ones(size, np.float32))
        assert mean(ONE).numpy() == 1.0
    module, strikes = sys.modules["tracegraph.execution.execute"], [np.ones(2, np.float32)]
    owner, name = (module, "specialise") if way == "taped" else (module.Execution, "run")
    chosen = getattr(owner, name)

    def struck(*args):
        if strikes:
            v.assign(strikes.pop())
        return chosen(*args)

    monkeypatch.setattr(owner, name, struck)
    with tg.GradientTape() if way == "taped" else contextlib.nullcontext():
        assert mean(ONE).numpy() == 1.0
    assert not strikes and v.numpy().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ACTIONS)
def test_a_handler_in_a_donated_step_loses_nothing(name, tmp_path):
    strike_steps(name, COUNT // 36, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS)
def test_ten_thousand_signals_lose_nothing(name, tmp_path):
    strike_steps(name, 10_000 // 6 + 1, tmp_path)


@pytest.mark.parametrize("name", ["read", "assign", "call", "differentiate"])
def test_a_handler_in_an_undecorated_loop_loses_nothing(name, tmp_path):
    random.seed(name)
    variables = [tg.Variable(tg.zeros([3])) for _ in range(3)]
    own = tg.Variable(tg.zeros([3]))
    actions = Actions(variables, tmp_path)
    actions.step = step_of(variables)
    actions.step(ONE)
    with Signals(getattr(actions, name), 1e-3) as signals:
        count = 0
        while signals.count < COUNT // 60:  # what it adds makes other programs, to be compiled
            with tg.GradientTape() as tape:
                y = tg.reduce_sum(tg.tanh(own * 0.0) + own)
            own.assign_add(tape.gradient(y, own))
            count += 1
    assert own.numpy().tolist() == [count] * 3
    assert values_of(variables) == [1 + actions.added] * 3


def test_a_handler_between_a_node_and_its_tape_leaves_its_values(monkeypatch):
    record = tg.GradientTape.record
    struck = []

    def record_struck(tape, node):
        if not struck and node.op.name == "tanh":
            struck.append(node.op.name)
            signal.raise_signal(signal.SIGUSR1)
        record(tape, node)

    x = tg.Variable([0.1, 0.2])
    other = tg.constant([3.0]) * 2.0
    old = signal.signal(signal.SIGUSR1, lambda *_: other.numpy())  # runs all that is pending
    monkeypatch.setattr(tg.GradientTape, "record", record_struck)
    try:
        with tg.GradientTape() as tape:
            y = tg.reduce_sum(tg.tanh(x * 3.0))
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert struck == ["tanh"]
    expected = 3.0 * (1.0 - np.tanh([0.3, 0.6]) ** 2)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), expected, rtol=1e-5)


def test_a_handler_while_a_step_is_traced_and_compiled():
    random.seed(5)
    v, w = tg.Variable(tg.zeros([4])), tg.Variable(0.0)
    seen = []

    def handle():
        seen.append(float((w.read_value() + 1.0).numpy()))
        w.assign_add(1.0)
        v.assign_add(tg.ones([4]))

    with Signals(handle, 5e-3) as signals:
        calls = 0
        while signals.count < COUNT // 25:
            scale = tg.constant(float(calls))
            step = tg.function(lambda x, s: v.assign_add(tg.tanh(x * s) * 0 + 1.0).read_value())
            step(tg.ones([4]), scale)
            calls += 1
    assert v.numpy().tolist() == [calls + signals.count] * 4
    assert seen == [n + 1.0 for n in range(signals.count)]


@pytest.mark.parametrize("way", ["handler", "thread"])
@pytest.mark.parametrize("assigns", [False, True])
def test_what_is_assigned_between_two_calls_that_tracing_waits_for_is_read(way, assigns):
    v, w = tg.Variable(1.0), tg.Variable(0.0)

    def strike(*_):
        v.assign_add(1000.0)

    @tg.function
    def step(x):
        v.assign_add(x)
        tg.py_function(lambda q: q, [x], tg.float32)  # of no shape: all before it is run at once
        if way == "handler":
            signal.raise_signal(signal.SIGUSR1)
        else:
            thread = threading.Thread(target=strike)
            thread.start()
            thread.join()
        if assigns:
            v.assign_add(1.0)
        seen = v * 2.0
        w.assign(seen)
        tg.py_function(lambda q: q, [x], tg.float32)
        return seen, v.read_value()

    old = signal.signal(signal.SIGUSR1, strike)
    try:
        seen, last = step(ONE)
    finally:
        signal.signal(signal.SIGUSR1, old)
    value = 1003.0 if assigns else 1002.0
    assert [float(x) for x in (seen, last, v, w)] == [2 * value, value, value, 2 * value]


def test_what_strikes_while_a_function_is_traced_sees_values():
    v = tg.Variable([1.0, 2.0])
    inner = tg.function(lambda x: x + v.assign_add([1.0, 1.0]))
    seen = []

    class WithFinalizer:
        def __del__(self):
            seen.append(("del", v.numpy().tolist()))
            v.assign_add([1.0, 1.0])

    class Plain:
        pass

    def handler(number, frame):
        seen.append(("signal", (v * 2.0).numpy().tolist()))
        seen.append(("call", inner(tg.zeros([2])).numpy().tolist()))

    old = signal.signal(signal.SIGALRM, handler)
    try:

        @tg.function
        def f(x):
            y = x * 2.0
            WithFinalizer()
            thing = Plain()
            reference = weakref.ref(thing, lambda _: seen.append(("ref", v.numpy().tolist())))
            del thing
            assert reference() is None
            thing = Plain()
            weakref.finalize(thing, lambda: seen.append(("finalize", float(v[0]))))
            thing.itself = thing
            del thing
            gc.collect()
            signal.raise_signal(signal.SIGALRM)
            return y + v

        found = f(tg.constant([1.0, 1.0]))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert seen == [
        ("del", [1.0, 2.0]),
        ("ref", [2.0, 3.0]),
        ("finalize", 2.0),
        ("signal", [4.0, 6.0]),
        ("call", [3.0, 4.0]),
    ]
    assert found.numpy().tolist() == [5.0, 6.0]
    assert v.numpy().tolist() == [3.0, 4.0]
    ops = [node.op.name for node in f.get_concrete_function(tg.TensorSpec([2])).graph.nodes]
    assert ops.count("add") == 1  # nothing of them is in the graph


@pytest.mark.parametrize("arguments", ["named", "packed", "bound", "partial"])
def test_handlers_of_every_form_are_known(arguments):
    import functools

    v = tg.Variable(1.0)
    seen = []

    class Holder:
        def handle(self, number, frame):
            seen.append(float(v))

    forms = {
        "named": lambda number, frame: seen.append(float(v)),
        "packed": lambda *_: seen.append(float(v)),
        "bound": Holder().handle,
        "partial": functools.partial(lambda x, number, frame: seen.append(float(v)), 1),
    }
    old = signal.signal(signal.SIGALRM, forms[arguments])
    try:

        @tg.function
        def f(x):
            signal.raise_signal(signal.SIGALRM)
            return x + v

        assert f(ONE).numpy() == 2.0
    finally:
        signal.signal(signal.SIGALRM, old)
    assert seen == [1.0]


def test_a_handler_inside_a_rule_of_the_user():
    v = tg.Variable(2.0)
    seen = []

    @tg.custom_gradient
    def cube(x):
        def backward(g):
            signal.raise_signal(signal.SIGALRM)
            return 3.0 * x * x * g

        return x * x * x, backward

    old = signal.signal(signal.SIGALRM, lambda *_: seen.append(float(v.assign_add(1.0))))
    try:
        for _ in range(3):
            with tg.GradientTape() as tape:
                x = tg.constant(2.0)
                tape.watch(x)
                y = cube(x)
            assert tape.gradient(y, x).numpy() == 12.0
    finally:
        signal.signal(signal.SIGALRM, old)
    assert seen == [3.0 + n for n in range(len(seen))] and seen
    assert float(v) == 2.0 + len(seen)


def test_finalizers_that_the_garbage_collector_calls_in_a_donated_step():
    variables = [tg.Variable(tg.zeros([3])) for _ in range(3)]
    step = step_of(variables)
    step(ONE)
    added = []

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            added.append(values_of(variables))
            for v in variables:
                v.assign_add([1.0, 1.0, 1.0])

    old = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:
        for _ in range(400):
            Cycle()
            step(ONE)
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert len(added) == 400
    assert values_of(variables) == [801.0] * 3
    assert all(len(set(found)) == 1 for found in added)


@pytest.mark.parametrize("way", ["call", "state", "shared", "top level"])
def test_what_the_garbage_collector_runs_leaves_code_alone(way):
    """JAX notes the frames of a run in one array for each thread: a run that falls in between must
    not take code objects from it that it does not hold."""
    v = tg.Variable([1.0, 2.0])
    x = tg.constant([1.0, 2.0])
    plain = tg.function(lambda x: tg.tanh(x) + 1.0)
    step = tg.function(lambda x: v.assign(x * 2.0))
    kept = []

    def share():
        kept[:] = [v.read_value()]
        step(x)

    work = {
        "call": lambda: plain(x),
        "state": lambda: step(x),
        "shared": share,
        "top level": lambda: (tg.tanh(x) + x).numpy(),
    }[way]

    def deep(n):
        return deep(n - 1) if n else plain(x)

    def collected(phase, information):
        if phase == "start":
            deep(20)

    for _ in range(3):
        work()
        deep(1)
    gc.collect()
    before = sys.getrefcount(deep.__code__)
    old = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        gc.set_threshold(3, 1000, 1000)
        for _ in range(300):
            work()
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(collected)
    gc.collect()
    assert sys.getrefcount(deep.__code__) >= before  # an array may still hold one


def test_other_threads_read_while_steps_run():
    variables = [tg.Variable(tg.zeros([3])) for _ in range(3)]
    step = step_of(variables)
    step(ONE)
    stops, torn = threading.Event(), []

    def read():
        while not stops.is_set():
            x = variables[0].read_value()
            if not np.all(x.numpy() == x.numpy()[0]):
                torn.append(x)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            step(ONE)
    finally:
        stops.set()
        for thread in threads:
            thread.join()
    assert not torn
    assert values_of(variables) == [301.0] * 3


def test_a_handler_that_calls_a_step_while_jax_traces_another_function():
    v = tg.Variable(1.0)

    @tg.function
    def step():
        v.assign_add(1.0)
        return v * 2.0

    step()
    step()
    f = tg.function(lambda x: x + tg.reduce_sum(tg.ones([4]) * x))
    strikes = [0]

    def strike(frame, event, _):  # a signal at some calls of functions of the lowering
        if event == "call" and "lowering" in frame.f_code.co_filename:
            strikes[0] += 1
            if strikes[0] % 3 == 1:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)
                sys.setprofile(strike)

    calls = []
    old = signal.signal(signal.SIGALRM, lambda *_: calls.append(float(step())))
    try:
        sys.setprofile(strike)
        found = f(tg.constant(1.0))
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, old)
    assert found.numpy() == 5.0
    assert len(calls) > 3
    assert calls == [2.0 * (4.0 + n) for n in range(len(calls))]
    assert float(v) == 3.0 + len(calls)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "context, argument",
    [
        (contextlib.nullcontext, np.float32(1)),
        (lambda: jax.enable_x64(True), ONE),
        (lambda: jax.default_matmul_precision("float32"), np.float32(1)),
        (lambda: jax.default_device(jax.devices()[0]), ONE),
    ],
    ids=["NumPy's array", "x64", "precision", "device"],
)
@pytest.mark.parametrize("first", [1, 30, 120, 350, 900])
def test_handlers_inside_the_first_call_of_another_kind_lose_nothing(context, argument, first):
    """JAX runs Python around the first call with NumPy's arrays, and around the first one in each
    of its contexts; a handler that strikes there finds all values, and loses none."""
    v, w = tg.Variable(0.0), tg.Variable(0.0)

    @tg.function
    def step(x):
        v.assign_add(x)
        w.assign_add(x)
        return v * 2.0

    copies = tg.function(lambda x: x * w)
    step(ONE), step(ONE), copies(ONE)
    added, events, raised = [2.0], [0], []

    def handler(number, frame):
        assert float(v) == float(w)
        step(ONE)
        assert float(copies(ONE)) == float(w)
        v.assign_add(1.0), w.assign_add(1.0)
        added[0] += 2.0

    def strike(frame, event, _):
        events[0] += 1
        moment = events[0] - first
        if moment >= 0 and moment % max(7, first // 3) == 0 and added[0] < 10.0:
            sys.setprofile(None)
            try:
                signal.raise_signal(signal.SIGALRM)
            except Exception as error:
                raised.append(error)  # Python would end the profile
            sys.setprofile(strike)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        with context():
            sys.setprofile(strike)
            step(argument)
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, old)
    step(argument)
    assert not raised
    assert float(v) == float(w) == added[0] + 2.0


def test_what_jax_sets_for_a_thread_compiles_no_step_again():
    v = tg.Variable([1.0, 2.0])

    @tg.function
    def step(x):
        v.assign_add([x, x])
        return v * 2.0

    step(ONE), step(ONE)
    before = len(compiles)
    for _ in range(2):
        with jax.enable_x64(True), jax.default_matmul_precision("float32"):
            step(ONE)
            step(np.float32(1))
    assert np.array_equal(step(ONE), [16.0, 18.0])
    assert len(compiles) == before


def test_a_handler_creates_variables_while_a_function_is_traced(tmp_path):
    w = tg.Variable(0.0)

    def handler(number, frame):
        tg.Variable(1.0)
        tg.train.Checkpoint(w=w).save(str(tmp_path / "c"))

    old = signal.signal(signal.SIGALRM, handler)
    try:

        @tg.function
        def f(x):
            w.assign_add(1.0)
            signal.raise_signal(signal.SIGALRM)
            return x + w

        assert f(ONE).numpy() == 2.0
    finally:
        signal.signal(signal.SIGALRM, old)
    assert f.experimental_get_tracing_count() == 1
    assert float(tg.train.load_checkpoint(str(tmp_path / "c-1")).get_tensor("w")) == 0.0


#: Where signals strike. Python's own modules turn errors into others.
STRUCK = re.compile(r"[/\\](tracegraph|lowering|jax)[/\\]")


class Mine(ValueError):
    """What a signal handler raises; some of our own code catches a ValueError."""


def run_with_strike(action, strike, moment):
    """Runs `action`, and `strike` in a signal handler when as many functions as `moment` were
    called. Returns whether it struck, and whether its error came out."""
    left = [moment]

    def observe(frame, event, _):
        if event in ("call", "c_return") and STRUCK.search(frame.f_code.co_filename):
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)

    old = signal.signal(signal.SIGALRM, lambda number, frame: strike())
    try:
        sys.setprofile(observe)
        try:
            action()
        finally:
            sys.setprofile(None)
    except Mine:
        return True, True
    finally:
        signal.signal(signal.SIGALRM, old)
    return left[0] < 0, False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["known", "pending", "new", "list"])
def test_what_a_handler_raises_ends_what_it_interrupts(what):
    v, x = tg.Variable(tg.zeros([3])), tg.constant([1.0, 1.0, 1.0])
    body = lambda x: v.assign_add(tg.tanh(x) * 0.0 + 1.0).read_value()  # noqa: E731
    known = tg.function(body)
    known(x)
    v.assign(tg.zeros([3]))
    pieces = [0.0]

    def action():
        if what == "pending":
            y = x * 2.0 + pieces[0]
            v.assign_add(tg.ones([3]) * y / y)
            assert v.numpy()[0] >= 1.0
        elif what == "list":
            v.assign_add(tg.constant([1.0, 1.0, 1.0]))
        else:
            (known if what == "known" else tg.function(body))(x)

    def strike():
        v.assign_add(tg.ones([3]) * 100.0)
        raise Mine

    swallowed = moment = 0
    while True:
        before = float(v.numpy()[0])
        has_struck, has_come_out = run_with_strike(action, strike, moment)
        grown = float(v.numpy()[0]) - before
        if not has_struck:
            assert grown == 1.0
            break
        # Python swallows what is raised in finalizers, and JAX where it copies a docstring.
        swallowed += not has_come_out
        assert grown in (100.0, 101.0)
        moment += 1 if moment < 150 else moment // 12
    assert moment > 10 and swallowed < 6


def test_a_trace_that_dies_calls_its_function():
    f = tg.function(lambda x: x + 1.0, reduce_retracing=True)
    seen = []

    def again():
        seen.append(float(tg.reduce_sum(f(tg.ones([5])))))

    for size in (2, 3, 4):
        weakref.finalize(f.get_concrete_function(tg.TensorSpec([size])), again)
        f(tg.ones([size]))
    f.clear_cache()
    gc.collect()
    assert seen and set(seen) == {10.0}
