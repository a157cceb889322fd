"""What several processes do together: `test_processes.py` starts this file in each of them.

The names of scenarios are the argument, and the folder they save in, if any; what they print, and
how they end, is what is tested.
"""

import errno
import os
import random
import re
import signal
import sys
import time

import jax
import numpy as np
from counting_reads import bytes_of_reads  # beside this script

import tracegraph as tg
from tracegraph.archive import directory, tensors
from tracegraph.distribute import watch

#: Seconds that processes wait for each other, those where they wait in vain, and those for which
#: they must have been silent where nobody waits for anything else.
TIMEOUT, IN_VAIN, SILENT = 100, 8, 3


def inside(name):
    """A path in the folder that was given."""
    return os.path.join(sys.argv[2], name)


def whole(count=8.0):
    """A tensor that is divided among all devices of all processes."""
    mesh = tg.distribute.Mesh({"data": len(jax.devices())})
    x = tg.constant(np.arange(count, dtype=np.float32))
    return tg.distribute.with_layout(x, tg.distribute.Layout(mesh, ["data"]))


@tg.function
def total(x):
    return tg.reduce_sum(x * x)


@tg.function
def largest(x):
    return tg.reduce_max(x)


@tg.function
def by_process(x):
    y = x * 2
    if jax.process_index() == 0:
        y = y + 1
    else:
        y = y - 1
    return tg.reduce_sum(y)


def adds_up(index):
    print("device", tg.constant(1.0).device)
    print("total", float(total(whole())))


def prints(index):
    seen = []

    @tg.function
    def f(x):
        y = tg.reduce_sum(x)
        tg.print("in the function", y, x, output_stream=sys.stdout)
        tg.py_function(lambda y: seen.append(float(y)), [y], [])
        z = tg.py_function(lambda y: np.float32(y + 1), [y], tg.float32)
        return tg.ensure_shape(z, [])

    print("returned", float(f(whole())), "seen", seen, flush=True)
    tg.print("at top level", index, output_stream=sys.stdout)


def prints_everywhere(index):
    """With `initialize(effects_everywhere=True)`."""
    seen = []

    @tg.function
    def f(x):
        y = tg.reduce_sum(x)
        tg.print("in the function", y, output_stream=sys.stdout)
        tg.py_function(lambda y: seen.append(float(y)), [y], [])
        return y

    float(f(whole()))
    print("seen", seen, flush=True)


def differs(index):
    by_process(whole())


def runs_another(index):
    (total if index == 0 else largest)(whole())


def stays_away(index):
    x = whole()
    total(x)
    if index == 1:
        time.sleep(60)
    largest(x)


def ends_early(index):
    """Process 1 has nothing more to do, and process 0 has a function that nobody ran before."""
    x = whole()
    total(x)
    if index == 0:
        largest(x)


def runs_once_more(index):
    """The same, of a function that is compiled: process 0 waits inside of C."""
    x = whole()
    float(total(x))
    if index == 0:
        float(total(x))


def reports_for_long(index):
    """Process 0 has work of its own when process 1 has come to its end."""
    float(total(whole()))
    if index == 0:
        time.sleep(SILENT + 1)
        print("the report is written", flush=True)


def is_stopped_0(index):
    is_stopped(index, 0)


def is_stopped_1(index):
    is_stopped(index, 1)


def is_stopped(index, who):
    x = whole()
    float(total(x))
    if index == who:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        float(total(x))


def is_killed_0(index):
    is_killed(index, 0)


def is_killed_1(index):
    is_killed(index, 1)


def is_killed(index, who):
    """In the middle of a run, with which the other process ends first."""
    x = whole()
    for step in range(10_000_000):
        float(total(x))
        if index == who and step == 100:
            os.kill(os.getpid(), signal.SIGKILL)


def raises(index):
    x = whole()
    total(x)
    if index == 1:
        raise ValueError("this is the error")
    largest(x)
    time.sleep(60)


def exits(index):
    x = whole()
    total(x)
    if index == 1:
        sys.exit(3)
    largest(x)
    time.sleep(60)


def catches_an_exit(index):
    try:
        sys.exit(4)
    except SystemExit as error:
        assert error.code == 4


def uses_what_others_have(index):
    """Arrays and meshes of the other process are refused, and arrays of it alone are its own."""
    own, other = jax.local_devices()[:2], [x for x in jax.devices() if x.process_index != index]
    value = np.arange(4, dtype=np.float32)
    make = jax.make_array_from_callback
    array = make(
        (4,), jax.sharding.SingleDeviceSharding(other[0]), lambda _: value, dtype=value.dtype
    )
    layout, of_own = (
        tg.distribute.Layout(tg.distribute.Mesh({"data": 2}, devices[:2]), ["data"])
        for devices in (other, own)
    )
    for action in (
        lambda: tg.constant(array),
        lambda: total(array),
        lambda: tg.distribute.with_layout(value, layout),
        lambda: tg.Variable(value, layout=layout),
        lambda: tg.distribute.from_local(value, layout),
        lambda: tg.function(lambda x: tg.distribute.with_layout(x, layout))(value),
        lambda: tg.distribute.from_local(array, whole().layout),
        lambda: tg.distribute.from_local(value[:3], whole().layout),
        lambda: whole().numpy(),
        lambda: tg.Variable(tg.zeros([8]), layout=of_own).assign(whole()),
    ):
        try:
            action()
        except (tg.errors.TraceError, tg.errors.InvalidArgumentError, ValueError) as error:
            assert "in_processes.py:" in str(error)
            print("refused", str(error).partition("\n")[0], flush=True)
    print("own", float(total(tg.distribute.with_layout(value, of_own))), flush=True)
    held = tg.distribute.with_layout(whole(), tg.distribute.Layout(whole().layout.mesh, [None]))
    print("moved", float(total(tg.distribute.with_layout(held, of_own))), flush=True)


def draws_alone(index):
    """The state of the generator was on the devices of all."""
    noise = tg.random.get_global_generator()
    together = tg.function(lambda x: x + noise.normal([8]))
    together(whole())
    if index == 1:
        print("alone", noise.state.shape, tg.random.normal([2]).numpy().shape, flush=True)


def waits_for_a_signal(index):
    def handler(*_):
        print("got the signal", flush=True)
        sys.exit(7)

    signal.signal(signal.SIGUSR1, handler)
    print("is waiting", os.getpid(), flush=True)
    time.sleep(60)


def gives_its_part(index):
    mesh = tg.distribute.Mesh({"data": len(jax.devices())})
    part = np.arange(4, dtype=np.float64) + 4 * index
    x = tg.distribute.from_local(part, tg.distribute.Layout(mesh, ["data"]))
    print("parts", x.shape, x.dtype.name, float(total(x)))
    print(x + 1.0, repr(tg.Variable(x, name="v")))
    tg.print(x, output_stream=sys.stdout, summarize=2)


SHAPE = (64, 24)
LARGER = (256, 512)


def counted(shape, first=0):
    """An array of the numbers from `first` on."""
    return np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape) + first


def variables(generation, shape=SHAPE):
    """Variables that are divided in two ways, and one that is whole."""
    mesh = tg.distribute.Mesh({"data": len(jax.devices())})
    value = counted(shape, generation)
    return {
        "rows": tg.Variable(value, layout=tg.distribute.Layout(mesh, ["data", None])),
        "columns": tg.Variable(value, layout=tg.distribute.Layout(mesh, [None, "data"])),
        "whole": tg.Variable(np.float32(generation)),
    }


def saves(index):
    """A checkpoint of all processes, which is read again with the rows as columns."""
    path = inside("checkpoint")
    tg.train.Checkpoint(**variables(1, LARGER)).write(path)
    found = variables(0, LARGER)
    other = {"rows": found["columns"], "columns": found["rows"], "whole": found["whole"]}
    counts = bytes_of_reads()
    tg.train.Checkpoint(**other).restore(path).assert_consumed()
    for name in ("rows", "columns"):
        value = counted(LARGER, 1)
        for shard in found[name].made_tensor().buffer.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])
    print("whole", float(found["whole"]), "read", sum(counts), flush=True)


def fails_to_save(index):
    """A checkpoint of which one process cannot write its parts, nor the first one the manifest."""
    path = inside("failing")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    checkpoint = tg.train.Checkpoint(**variables(1))
    checkpoint.write(path)
    after = tg.train.Checkpoint(**variables(2))
    for owner, name, failing in ((tensors.Shard, "save", 1), (directory.Writer, "commit", 0)):
        usual = getattr(owner, name)
        if index == failing:
            setattr(owner, name, full)
        try:
            after.write(path)
        except (OSError, tg.errors.DistributedError) as error:
            print(name, type(error).__name__, str(error).partition("\n")[0], flush=True)
        setattr(owner, name, usual)
        found = variables(0)
        tg.train.Checkpoint(**found).restore(path).assert_consumed()
        print(name, "kept", float(found["whole"]), flush=True)
    after.write(path)


def does_something_else(index):
    """One process runs a program for the first time, and the other one makes a Variable."""
    x = whole()
    try:
        if index:
            tg.Variable(np.ones(8, np.float32), layout=x.layout)
        else:
            tg.function(lambda x: tg.reduce_min(x))(x)
    except tg.errors.DistributedError as error:
        print(str(error).partition("\n")[0])


def saves_apart(index):
    """To a directory of each process, and other values in each."""
    mine = variables(1)
    for path, names in (
        (inside(f"apart-{index}"), [*mine]),
        (inside("others"), ["rows"] if index else ["columns", "whole"]),
    ):
        try:
            tg.train.Checkpoint(**{name: mine[name] for name in names}).write(path)
        except tg.errors.DistributedError as error:
            print(str(error).partition("\n")[0])
        print(os.path.exists(os.path.join(path, "tracegraph.json")))


def saves_a_model(index):
    """A model of all processes, which is loaded again by all of them."""
    path = inside("model")
    module = tg.Module()
    module.parts = variables(1)
    module.product = tg.function(
        lambda x: tg.reduce_sum(module.parts["rows"] * module.parts["columns"]) * x,
        input_signature=[tg.TensorSpec([])],
    )
    tg.saved_model.save(module, path)
    loaded = tg.saved_model.load(path)
    value = counted(SHAPE, 1)
    for name, axes in (("rows", ("data", None)), ("columns", (None, "data"))):
        found = loaded.parts[name]
        assert found.layout.axes == axes
        for shard in found.made_tensor().buffer.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])
    expected = float((value.astype(np.float64) ** 2).sum())
    print("product", abs(float(loaded.product(1.0)) / expected - 1.0) < 1e-5, flush=True)


def whole_value(value):
    """The value of a tensor that is divided, in each process."""
    mesh = tg.distribute.Mesh({"data": len(jax.devices())})
    layout = tg.distribute.Layout(mesh, [None] * value.ndim)
    return tg.distribute.with_layout(value, layout).numpy()


def trainer():
    """A checkpoint of a model that is trained, all its Variables, and its step."""
    mesh = tg.distribute.Mesh({"data": len(jax.devices())})
    tg.random.set_seed(3)
    model = tg.layers.Sequential([tg.layers.Dense(24, activation="tanh"), tg.layers.Dense(8)])
    optimizer, noise = tg.optimizers.Adam(0.01), tg.random.Generator.from_seed(5)
    model(tg.zeros([1, 8]))
    with mesh:
        model.apply_layouts({"*/kernel": [None, "data"]})
    optimizer.build(model.trainable_variables)
    checkpoint = tg.train.Checkpoint(model=model, optimizer=optimizer, noise=noise)

    @tg.function
    def step(x):
        x = tg.distribute.with_layout(x, tg.distribute.Layout(mesh, ["data", None]))
        with tg.GradientTape() as tape:
            y = model(x + 0.1 * noise.normal([16, 8]))
            loss = tg.reduce_mean(tg.square(y - x))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    return checkpoint, [*model.variables, *optimizer.variables, noise.state], step


def batch(number):
    return np.random.default_rng(number).normal(size=(16, 8)).astype(np.float32)


def tell_bits(kind, state, step):
    """Goes on for three steps, and prints the bits of the losses and of all values."""
    losses = [step(batch(number)) for number in range(3, 6)]
    bits = [whole_value(x).tobytes() for x in (*losses, *(v.read_value() for v in state))]
    print("bits", kind, b"".join(bits).hex(), flush=True)


def trains(index):
    """Three steps, a checkpoint, its values in a file of NumPy's, and three steps more."""
    checkpoint, state, step = trainer()
    for number in range(3):
        step(batch(number))
    checkpoint.write(inside("trained"))
    values = [whole_value(v.read_value()) for v in state]
    if index == 0:
        np.savez(inside("trained") + ".npz", *values)
    tell_bits("first", state, step)


def trains_on(index):
    """The three steps more, once from the checkpoint and once from the values."""
    checkpoint, state, step = trainer()
    checkpoint.restore(inside("trained")).assert_consumed()
    tell_bits("restored", state, step)
    _, state, step = trainer()
    values = np.load(inside("trained") + ".npz")
    for number, variable in enumerate(state):
        variable.assign(values[f"arr_{number}"])
    tell_bits("given", state, step)


def preempted(index):
    v = tg.Variable(0.0)
    manager = tg.train.CheckpointManager(
        tg.train.Checkpoint(v=v),
        inside("preempted"),
        max_to_keep=2,
        step_counter=v,
        checkpoint_interval=1000,
        preemption_signals=[signal.SIGTERM],
    )
    manager.save()
    for step in range(100):
        v.assign_add(1.0)
        if index == 1 and step == 7:  # the others hear of it in their next save
            signal.raise_signal(signal.SIGTERM)
        manager.save()


def manages(index):
    """Three checkpoints of which two stay; the last one is restored."""
    mine = variables(0)
    checkpoint, path = tg.train.Checkpoint(**mine), inside("managed")
    manager = tg.train.CheckpointManager(checkpoint, path, max_to_keep=2)
    for _ in range(3):
        for variable in mine.values():
            variable.assign_add(tg.ones_like(variable))
        manager.save()
    other = variables(0)
    again = tg.train.CheckpointManager(tg.train.Checkpoint(**other), path, max_to_keep=2)
    if index == 0:  # the list is its business
        again.restore_or_initialize()
    else:
        again.checkpoint.restore(manager.latest_checkpoint)
    print("restored", float(other["whole"]), flush=True)


def saves_without_end(index):
    """One generation after another at one path, until somebody kills a process."""
    path = inside("checkpoint")
    print("process", os.getpid(), flush=True)
    mine = variables(0)
    checkpoint = tg.train.Checkpoint(**mine)
    for generation in range(1, 10_000):
        for variable in mine.values():
            variable.assign_add(tg.ones_like(variable))
        checkpoint.write(path)
        print("generation", generation, flush=True)


def gives_what_others_give(index):
    """What each process gives whole must be the same in all, and random numbers without a seed
    are."""
    layout = whole().layout
    draws = [tg.random.normal([8]), tg.random.Generator.from_non_deterministic_state().normal([8])]
    weights = [tg.Variable(tg.ones([8]) * draw, layout=layout) for draw in draws]
    print("by chance", *(float(tg.reduce_sum(tg.abs(w - x))) for w, x in zip(weights, draws)))
    values = np.where(np.arange(8) % 2, np.nan, 1.0).astype(np.float32)
    print("nan", float(tg.math.count_nonzero(tg.math.is_nan(tg.Variable(values, layout=layout)))))
    try:
        tg.Variable(np.full(8, index, np.float32), layout=layout)
    except tg.errors.DistributedError as error:
        print("given", str(error).splitlines()[0])
    mesh = tg.distribute.Mesh({"data": 2, "model": 2}, np.array(jax.devices()).reshape(2, 2).T)
    shared = tg.distribute.Layout(mesh, ["data"])  # each process has both halves
    print("shared", float(tg.reduce_sum(tg.distribute.from_local([3.0, 4.0], shared))))
    try:
        tg.distribute.from_local([1.0, index], shared)
    except tg.errors.DistributedError as error:
        print("shared", str(error).splitlines()[0])


def captures_what_others_do_not(index):
    """Before its first run what a program captures is compared, and what it is called with."""
    scale = tg.constant(np.full(300, index + 1, np.float32), name="scale")
    captures = tg.function(lambda x: tg.reduce_sum(x) * scale)
    takes = tg.function(lambda x, factor: tg.reduce_sum(x) * factor)
    x = whole()
    for run in (lambda: captures(x), lambda: takes(x, np.array(index + 0.5, np.float32))):
        try:
            run()
        except tg.errors.DistributedError as error:
            print("refused", str(error).splitlines()[0])
    print("the same", float(takes(x, np.array(2.0, np.float32))))


def divides_in_its_own_way(index):
    """No argument of the program is divided yet."""
    mesh = tg.distribute.Mesh({"data": len(jax.devices())})
    axes = ["data", None] if index else [None, "data"]
    f = tg.function(lambda x: tg.distribute.with_layout(x, tg.distribute.Layout(mesh, axes)))
    try:
        f(np.ones((8, 8), np.float32))
    except tg.errors.DistributedError as error:
        print("refused", str(error).splitlines()[1])


def shows_what_is_divided(index):
    """Errors, Python functions and padded calls see all parts."""
    x = whole()
    spec = tg.TensorSpec([None], layout=x.layout)
    functions = [
        tg.function(lambda x: (tg.debugging.assert_less(x, 5.0), x)[1]),
        tg.function(lambda x: tg.math.log(x - 5.0), locate_numerics=True),
    ]
    for function in functions:
        try:
            function(x)
        except (tg.errors.InvalidArgumentError, tg.errors.NumericsError) as error:
            print("shown", re.search(r"operand 0:.*?(\[0.*|numbers.*)", str(error))[1])
    twice = tg.function(lambda x: tg.numpy_function(lambda x: 2 * x, [x], tg.float32))
    print("twice", twice(x).numpy().tolist())
    halves = tg.function(lambda x: x / 2.0, [spec], bucket_sizes=[8])
    print("halves", halves(np.arange(6, dtype=np.float32)).numpy().tolist())


def works_alone(index):
    """A program of one process's own arrays is its own."""
    if index == 0:
        print("alone", float(total(tg.constant([1.0, 2.0]))))
    print("together", float(total(whole())))


def gives_another_part(index):
    """Parts of two tensors, for each of which the program has run in all."""
    layout = tg.distribute.Layout(whole().layout.mesh, ["data"])
    for size in (4, 2):
        total(tg.distribute.from_local(np.ones(size, np.float32), layout))
    x = tg.distribute.from_local(np.ones(2 if index else 4, np.float32), layout)
    print("together", float(total(x)), flush=True)
    time.sleep(60)


def runs_in_another_order(index):
    """Two programs that have run in all, of which each process runs another one now."""
    x = whole()
    weight = tg.Variable(0.0)

    @tg.function
    def step(x):
        weight.assign_add(tg.reduce_sum(x))

    for _ in range(3):
        total(x)
        step(x)
    (total if index else step)(x)
    print("weight", float(weight), flush=True)
    time.sleep(60)


def exchanges_where_others_run(index):
    """One process gathers what the other computes with."""
    x = whole()
    total(x)
    if index:
        total(x)
        time.sleep(60)
    tg.print("gathered", x)


def divides_by_another_mesh(index):
    """The same text of a program, and other devices; or the same value, and another layout."""
    devices = jax.devices()
    mesh = tg.distribute.Mesh({"data": 2}, devices[index::2])
    layout = tg.distribute.Layout(mesh, ["data"])
    one = jax.make_array_from_process_local_data(layout.sharding, np.ones(1, np.float32))
    mesh = tg.distribute.Mesh({"data": 4}, devices[:: 1 - 2 * index])
    for run in (
        lambda: total(one),
        lambda: tg.Variable(np.ones(4, np.float32), layout=tg.distribute.Layout(mesh, ["data"])),
    ):
        try:
            run()
        except tg.errors.DistributedError as error:
            print("refused", *str(error).splitlines()[:2])


def computes_between(index):
    """What one process computes for itself while work of all is pending."""
    x = whole()
    before = tg.constant([4.0]) + 5.0 if index else None
    y = x + 1.0
    if index:
        print("alone", tg.sqrt(tg.constant([4.0])).numpy())
    print("together", float(tg.reduce_sum(y)))
    if index:
        print("before", before.numpy())


def loops_with_work_alone(index):
    """A long undecorated loop of all, in which each process computes and reads for itself too."""
    x, alone, kept = whole(), tg.constant(0.0), []
    weight = tg.Variable(tg.zeros([8]), layout=x.layout)
    common, own = random.Random(1), random.Random(index)
    for _ in range(350):
        x = x + 1.0 if common.random() < 0.7 else x * 0.5
        if common.random() < 0.3:
            weight.assign_add(x)
        for _ in range(own.randrange(4)):
            alone = alone + 1.0
            if own.random() < 0.1:
                kept.append(alone * 2.0)
            if own.random() < 0.05:
                alone.numpy()
    print("together", float(tg.reduce_sum(weight)), float(tg.reduce_sum(x)))
    print("alone", float(alone), float(tg.add_n(kept)))


def is_struck_by_signals(index):
    """The handlers of one process compute, while work of all is read."""
    x, struck = whole(), []

    def handle(*_):
        struck.append(tg.constant([1.0]) + 2.0)
        signal.setitimer(signal.ITIMER_REAL, 0.002)  # now, or one would strike in another for ever

    signal.signal(signal.SIGALRM, handle)
    if index == 0:
        handle()
    found = [float(tg.reduce_sum(x * np.float32(i))) for i in range(60)]
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    print("struck", bool(struck), {float(x.numpy()[0]) for x in struck})
    print("together", found == [28.0 * i for i in range(60)])


def some_of_three(index):
    """Two of three processes have a mesh of their own, and all have one."""
    devices = [device for device in jax.devices() if device.process_index < 2]
    if index == 2:
        print("alone", float(tg.reduce_sum(tg.constant([1.0, 2.0]))))
    else:
        layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 2}, devices), ["data"])
        x = tg.distribute.from_local(np.array([index + 1.0], np.float32), layout)
        weight = tg.Variable(np.ones(2, np.float32), layout=layout)

        @tg.function
        def step(x):
            with tg.GradientTape() as tape:
                loss = tg.reduce_sum((weight * x) ** 2.0)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
            return loss

        print("losses", *(f"{float(step(x)):.4f}" for _ in range(2)))
        tg.print("printed", x, output_stream=sys.stdout)
    print("together", float(total(whole(3.0))))


SHORT = {"stays_away", "runs_once_more"}
HASTY = {"reports_for_long", "is_stopped_0", "is_stopped_1"}


class HastyWatch(watch.Watch):
    """Loses patience sooner than the processes do that wait until all have come, which takes long
    on a busy machine."""

    def __init__(self, index, count, peers, timeout):
        super().__init__(index, count, peers, SILENT)


if __name__ == "__main__":
    tg.config.set_compile_notes(False)  # they come where the machine is slow
    names = sys.argv[1].split(",")
    if HASTY & {*names}:
        watch.Watch = HastyWatch
    tg.distribute.initialize(
        timeout=IN_VAIN if SHORT & {*names} else TIMEOUT,
        effects_everywhere="prints_everywhere" in names,
    )
    for name in names:
        if len(names) > 1:
            print("scenario", name, flush=True)
        globals()[name](jax.process_index())
