"""Checkpoints: what is saved under which name, what restoring finds, and what it refuses."""

import gc
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import tracegraph as tg
from tests.killing import Kills
from tracegraph.archive import manifest
from tracegraph.state import deferred, variable as variable_module

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Pair(tg.Module):
    def __init__(self, first=1.0, second=2.0):
        super().__init__()
        self.first = tg.Variable(first)
        self.second = tg.Variable([second, second])


class Late(tg.Module):
    """Makes its variables at its first call, without `tg.layers`."""

    def __call__(self, x):
        if not hasattr(self, "w"):
            self.w = tg.Variable(tg.ones([3, 1]))
            self.offsets = {"b": tg.Variable([0.5])}
        return x @ self.w + self.offsets["b"]


class Training:
    """A model, an optimizer and a step, made anew as after a restart."""

    def __init__(self, optimizer=tg.optimizers.Adam, is_traced=True):
        dense = tg.layers.Dense
        self.model = tg.layers.Sequential(
            [dense(4, activation="tanh"), tg.layers.BatchNormalization(), dense(1)]
        )
        self.optimizer = optimizer(0.05)
        self.checkpoint = tg.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        self.step = tg.function(self._step) if is_traced else self._step
        self.x = tg.constant(np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3))

    def _step(self):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((self.model(self.x, training=True) - 1.0) ** 2)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def losses(self, count=3):
        return [float(self.step()) for _ in range(count)]


def nobody_waits():
    gc.collect()
    return not deferred.waiting


def values(checkpoint_path):
    names = [name for name, _ in tg.train.list_variables(checkpoint_path)]
    return {name: tg.train.load_variable(checkpoint_path, name) for name in names}


# Names and values.


def test_values_go_by_the_paths_that_lead_to_them():
    pair = Pair()
    pair.layers = [tg.Variable(3), (tg.Variable(4), {"a/b.c": tg.Variable(5), 7: tg.Variable(6)})]
    path = tg.train.Checkpoint(net=pair, extra=[tg.Variable(True)]).write("saved")
    assert tg.train.list_variables(path) == [
        ("extra/0", []),
        ("net/first", []),
        ("net/layers/0", []),
        ("net/layers/1/0", []),
        ("net/layers/1/1/7", []),
        ("net/layers/1/1/a.Sb..c", []),
        ("net/second", [2]),
    ]
    assert tg.train.load_variable("saved", "net/layers/1/1/a.Sb..c") == 5
    assert tg.train.load_variable("saved", "net/first/.ATTRIBUTES/VARIABLE_VALUE") == 1.0


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "bfloat16", "float16", "complex128"])
def test_every_dtype_comes_back_bit_for_bit(dtype):
    v = tg.Variable(tg.cast(tg.constant([0.0, 1.0, 2.5]), dtype))
    old = v.numpy()
    path = tg.train.Checkpoint(v=v).write("saved")
    v.assign(tg.zeros_like(v))
    tg.train.Checkpoint(v=v).read(path).assert_consumed()
    assert v.numpy().tobytes() == old.tobytes() and v.numpy().dtype == old.dtype


def test_shapes_that_are_open_and_arrays_that_are_empty():
    v, w = tg.Variable([1.0, 2.0], shape=[None]), tg.Variable(tg.zeros([0, 3]))
    path = tg.train.Checkpoint(v=v, w=w).write("saved")
    v.assign([5.0, 6.0, 7.0])
    tg.train.Checkpoint(v=v, w=w).read(path).assert_consumed()
    assert v.numpy().tolist() == [1.0, 2.0]


def test_the_same_values_are_the_same_files():
    def files(path):
        tg.train.Checkpoint(pair=Pair(), d={"z": tg.Variable(1), "a": tg.Variable(2)}).write(path)
        return {file.name: file.read_bytes() for file in pathlib.Path(path).iterdir()}

    assert files("one") == files("two") == files("one")


def test_a_shared_variable_is_saved_once_and_found_by_each_of_its_names():
    shared = tg.Variable(4.0)
    path = tg.train.Checkpoint(a=shared, b=[shared]).write("saved")
    assert tg.train.list_variables(path) == [("a", [])]
    one, two = tg.Variable(0.0), tg.Variable(0.0)
    tg.train.Checkpoint(b=[one]).read(path).assert_consumed()
    tg.train.Checkpoint(a=one, b=[two]).read(path).assert_consumed()
    assert one.numpy() == two.numpy() == 4.0
    one.assign_add(1.0)
    assert two.numpy() == 4.0


def test_one_variable_for_two_values_is_refused():
    path = tg.train.Checkpoint(a=tg.Variable(1.0), b=tg.Variable(2.0)).write("saved")
    v = tg.Variable(0.0, name="v")
    with pytest.raises(tg.errors.LoadError, match=r"'v:0' has two values .*: a and b"):
        tg.train.Checkpoint(a=v, b=v).read(path)
    assert v.numpy() == 0.0


def test_the_root_has_its_parts_as_names():
    pair = Pair()
    path = tg.train.Checkpoint(pair, more=tg.Variable(1)).write("saved")
    assert [name for name, _ in tg.train.list_variables(path)] == ["first", "more", "second"]
    listed = tg.train.Checkpoint([tg.Variable(1), {"k": tg.Variable(2)}]).write("list")
    assert [name for name, _ in tg.train.list_variables(listed)] == ["0", "1/k"]
    with pytest.raises(ValueError, match="two values have the path 'first'"):
        tg.train.Checkpoint(pair, first=tg.Variable(1))
    tg.train.Checkpoint(pair, first=pair.first)
    table = {"a": tg.Variable(1), (): None, 3: [tg.Variable(2)]}
    path = tg.train.Checkpoint(table, b=tg.Variable(3)).write("dict")
    assert [name for name, _ in tg.train.list_variables(path)] == ["3/0", "a", "b"]
    table["a"].assign(0)
    tg.train.Checkpoint({**table, "b": tg.Variable(0)}).read(path).assert_consumed()
    assert table["a"].numpy() == 1


def test_checkpoints_nest_and_modules_may_go_in_circles():
    pair = Pair()
    pair.again = [pair]
    inner = tg.train.Checkpoint(pair=pair)
    path = tg.train.Checkpoint(inner=inner).write("saved")
    assert [name for name, _ in tg.train.list_variables(path)] == [
        "inner/pair/first",
        "inner/pair/second",
    ]


def test_what_holds_no_variables_is_refused():
    for name, value in {"x": 3, "f": lambda: 3, "t": tg.ones([2])}.items():
        with pytest.raises(ValueError, match=f"{name} is an? .*, which holds no variables"):
            tg.train.Checkpoint(**{name: value})
    with pytest.raises(ValueError, match="cannot have the name 'save'"):
        tg.train.Checkpoint(save=tg.Variable(1))
    pair = Pair()
    pair.bad = {(1, 2): tg.Variable(1)}
    with pytest.raises(ValueError, match=r"a dict has the key \(1, 2\)"):
        tg.train.Checkpoint(pair=pair).write("saved")
    pair.bad = {Pair()}
    with pytest.raises(ValueError, match="the set at 'bad' has no order"):
        tg.train.Checkpoint(pair=pair).write("saved")
    pair.bad = {True: "no variable", 2: None}
    tg.train.Checkpoint(pair=pair).write("saved")


def test_names_that_mean_something_to_the_files():
    odd = {"__metadata__": tg.Variable(1), "ä\n": tg.Variable(2), "$": tg.Variable(3)}
    path = tg.train.Checkpoint(odd=odd).write("saved")
    for v in odd.values():
        v.assign(0)
    tg.train.Checkpoint(odd=odd).read(path).assert_consumed()
    assert [v.numpy() for v in odd.values()] == [1, 2, 3]
    with pytest.raises(ValueError, match="use strings as keys"):
        tg.train.Checkpoint(odd={"\ud800": tg.Variable(1)}).write("saved")


def test_a_variable_called_metadata_at_the_root():
    v = tg.Variable(1)
    path = tg.train.Checkpoint(__metadata__=v).write("saved")
    v.assign(0)
    tg.train.Checkpoint(__metadata__=v).read(path).assert_consumed()
    assert v.numpy() == 1


# Optimizers.


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("when", "is_traced"), [("before", True), ("built", True), ("after", True), ("before", False)]
)
def test_training_goes_on_as_if_it_had_not_stopped(when, is_traced):
    old = Training(is_traced=is_traced)
    old.losses(4)
    path = old.checkpoint.save("ckpt")
    expected = old.losses()
    new = Training(is_traced=is_traced)
    if when == "built":
        new.model(new.x)
    if when == "after":
        new.losses(2)
    status = new.checkpoint.restore(path)
    if when == "before":
        with pytest.raises(AssertionError, match="no variable for the values of model/layers/0"):
            status.assert_consumed()
        status.assert_existing_objects_matched().assert_nontrivial_match().expect_partial()
    else:
        status.assert_consumed()
    assert new.losses() == pytest.approx(expected, rel=1e-5)
    status.assert_consumed()
    assert int(new.optimizer.iterations) == 7
    assert nobody_waits()


@pytest.mark.parametrize("optimizer", [tg.optimizers.SGD, tg.optimizers.AdamW])
def test_slots_that_another_optimizer_has_are_left(optimizer):
    old = Training(tg.optimizers.Adam)
    old.losses()
    path = old.checkpoint.save("ckpt")
    new = Training(optimizer)
    new.losses()
    status = new.checkpoint.restore(path)
    status.assert_existing_objects_matched()
    if optimizer is tg.optimizers.AdamW:
        status.assert_consumed()
    else:
        with pytest.raises(AssertionError, match="OPTIMIZER_SLOT/optimizer/momentum"):
            status.assert_consumed()


def test_slots_are_those_of_their_variable_in_any_order():
    a, b = tg.Variable([0.0], name="a"), tg.Variable([0.0], name="b")
    optimizer = tg.optimizers.SGD(1.0, momentum=0.5)
    optimizer.apply_gradients([(tg.constant([1.0]), a), (tg.constant([10.0]), b)])
    path = tg.train.Checkpoint(a=a, b=b, optimizer=optimizer).write("saved")
    fresh = tg.optimizers.SGD(1.0, momentum=0.5)
    tg.train.Checkpoint(a=a, b=b, optimizer=fresh).read(path)
    fresh.apply_gradients([(tg.constant([0.0]), b), (tg.constant([0.0]), a)])
    assert (a.numpy().item(), b.numpy().item()) == (-1.5, -15.0)


def test_a_lone_optimizer_warns_that_its_slots_are_lost():
    training = Training()
    training.losses(1)
    with pytest.warns(
        UserWarning, match="what the optimizer keeps for 6 variables, such as kernel"
    ):
        tg.train.Checkpoint(optimizer=training.optimizer).write("saved")


def test_an_optimizer_as_root_and_a_dict_by_references():
    v = tg.Variable([1.0], name="v")
    optimizer = tg.optimizers.Adam(0.1)
    optimizer.build([v])
    pair = Pair()
    pair.averages = {v.ref(): (tg.Variable(3.0), tg.Variable(4.0))}
    path = tg.train.Checkpoint(optimizer, v=v, pair=pair).write("saved")
    names = [name for name, _ in tg.train.list_variables(path)]
    assert "v/.OPTIMIZER_SLOT/momentum" in names and "learning_rate" in names
    assert "v/.OPTIMIZER_SLOT/pair/averages.S1" in names
    pair.averages[v.ref()][1].assign(0.0)
    tg.train.Checkpoint(tg.optimizers.Adam(0.2), v=v, pair=pair).read(path).assert_consumed()
    assert pair.averages[v.ref()][1].numpy() == 4.0


def test_a_learning_rate_of_the_users_own_is_shared():
    rate = tg.Variable(0.5)
    optimizer = tg.optimizers.SGD(rate)
    path = tg.train.Checkpoint(optimizer=optimizer, rate=rate).write("saved")
    rate.assign(0.1)
    tg.train.Checkpoint(optimizer=optimizer).read(path).assert_consumed()
    assert rate.numpy() == np.float32(0.5)


# Restoring what is made later.


@pytest.mark.parametrize("is_traced", [True, False], ids=["function", "top level"])
def test_a_module_without_layers_gets_its_values_when_it_makes_its_variables(is_traced):
    old = Late()
    x = tg.ones([2, 3])
    old(x)
    old.w.assign(2.0 * tg.ones([3, 1]))
    old.offsets["b"].assign([0.25])
    path = tg.train.Checkpoint(late=old).write("saved")
    new = Late()
    status = tg.train.Checkpoint(late=new).read(path)
    call = tg.function(new) if is_traced else new
    assert call(x).numpy().tolist() == [[6.25], [6.25]]
    status.assert_consumed()


def test_what_is_attached_later_is_restored_once():
    path = tg.train.Checkpoint(pair=Pair(7.0, 8.0), v=tg.Variable(9.0)).write("saved")
    checkpoint = tg.train.Checkpoint()
    checkpoint.read(path)
    checkpoint.v = tg.Variable(0.0)
    checkpoint.pair = Pair()
    assert (checkpoint.v.numpy(), checkpoint.pair.first.numpy()) == (9.0, 7.0)
    checkpoint.v = tg.Variable(0.0)
    assert checkpoint.v.numpy() == 0.0


def test_layers_that_are_added_later():
    old = Training()
    old.losses(1)
    path = old.checkpoint.save("ckpt")
    new = Training()
    layers = [*new.model.layers]
    new.model.layers.clear()
    status = new.checkpoint.restore(path)
    for layer in layers:
        new.model.add(layer)
    assert new.losses() == pytest.approx(old.losses(), rel=1e-5)
    status.assert_consumed()


def test_a_list_that_grew_is_told_of():
    path = tg.train.Checkpoint(parts=[tg.Variable(1.0), tg.Variable(2.0)]).write("saved")
    parts = [tg.Variable(0.0)]
    status = tg.train.Checkpoint(parts=parts).read(path)
    parts.append(tg.Variable(0.0))
    with pytest.raises(AssertionError) as caught:
        status.assert_consumed()
    assert "no variable for the values of parts/1" in str(caught.value)
    assert "no value for the variables parts/1" in str(caught.value)


def test_the_checkpoint_restored_last_is_the_one_that_waits():
    x = tg.ones([1, 3])
    paths = []
    for factor in (2.0, 3.0):
        old = Late()
        old(x)
        old.w.assign(factor * tg.ones([3, 1]))
        paths.append(tg.train.Checkpoint(late=old).write(f"saved-{factor}"))
    new = Late()
    checkpoint = tg.train.Checkpoint(late=new)
    for path in paths:
        checkpoint.read(path)
    assert sum(len(deferred.records(owner)) for owner in (new, checkpoint)) == 1
    assert new(x).numpy() == 9.5
    assert nobody_waits()


def test_waiting_is_no_reason_to_refuse_an_attribute():
    path = tg.train.Checkpoint(late=Pair(), later=tg.Variable(1.0)).write("saved")
    late = tg.Module()
    tg.train.Checkpoint(late=late).read(path).expect_partial()
    late.others = {tg.Module()}
    late.table = {(1, 2): tg.Variable(0.0), "": tg.Variable(0.0)}
    late.first = tg.Variable(0.0)
    assert late.first.numpy() == 1.0


def test_what_waits_keeps_nothing_alive():
    training = Training()
    training.losses(1)
    path = training.checkpoint.save("ckpt")
    new = Training()
    new.checkpoint.restore(path).expect_partial()
    assert deferred.waiting
    references = [weakref.ref(new.model), weakref.ref(new.checkpoint)]
    del new
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert nobody_waits()


def test_a_late_variable_of_another_shape_is_refused_where_it_is_made():
    old = tg.layers.Dense(2)
    old(tg.ones([1, 3]))
    path = tg.train.Checkpoint(layer=old).write("saved")
    new = tg.layers.Dense(2)
    tg.train.Checkpoint(layer=new).read(path)
    with pytest.raises(tg.errors.ShapeError, match=r"layer/kernel is f32\[3,2\] there.*f32\[4,2\]"):
        new(tg.ones([1, 4]))


def test_a_late_value_outlives_the_files_that_it_came_from():
    old = Late()
    old(tg.ones([1, 3]))
    old.w.assign(5.0 * tg.ones([3, 1]))
    path = tg.train.Checkpoint(late=old).write("saved")
    new = Late()
    tg.train.Checkpoint(late=new).read(path)
    tg.train.Checkpoint(v=tg.Variable(0.0)).write(path)
    shutil.rmtree(path)
    assert new(tg.ones([1, 3])).numpy() == 15.5


# What does not fit.


def test_nothing_is_restored_where_anything_differs():
    path = tg.train.Checkpoint(pair=Pair(7.0, 8.0)).write("saved")
    pair = Pair()
    pair.second = tg.Variable([0.0, 0.0, 0.0], name="second")
    with pytest.raises(ValueError) as caught:
        tg.train.Checkpoint(pair=pair).read(path)
    assert "pair/second is f32[2] there, and the variable 'second:0' is f32[3]" in str(caught.value)
    assert isinstance(caught.value, tg.errors.ShapeError)
    pair.second = tg.Variable([0, 0])
    with pytest.raises(tg.errors.DTypeError, match=r"f32\[2\] there.* is i32\[2\]") as caught:
        tg.train.Checkpoint(pair=pair).read(path)
    assert isinstance(caught.value, ValueError)
    assert pair.first.numpy() == 1.0


def test_the_assertions_name_both_sides():
    path = tg.train.Checkpoint(a=tg.Variable(1.0), b=tg.Variable(2.0)).write("saved")
    status = tg.train.Checkpoint(a=tg.Variable(0.0), c=tg.Variable(0.0)).read(path)
    for check in (status.assert_consumed, status.assert_existing_objects_matched):
        with pytest.raises(AssertionError, match=r"values of b; .* for the variables c") as caught:
            check()
        assert isinstance(caught.value, tg.errors.LoadError)
    status.assert_nontrivial_match()
    partial = tg.train.Checkpoint(a=tg.Variable(0.0)).read(path).expect_partial()
    partial.assert_existing_objects_matched()
    with pytest.raises(AssertionError):
        partial.assert_consumed()
    with pytest.raises(AssertionError):
        tg.train.Checkpoint(x=tg.Variable(0.0)).read(path).assert_nontrivial_match()


def test_values_that_were_never_used_are_told_of_in_the_end():
    path = tg.train.Checkpoint(a=Pair(), b=Pair(), c=tg.Variable(1.0)).write("saved")
    message = "saved were never used: there was no variable for b/first, b/second, c. Give"
    with pytest.warns(UserWarning, match=message) as caught:
        tg.train.Checkpoint(a=Pair()).read(path)
        gc.collect()
    assert caught[0].filename == __file__
    later = tg.train.Checkpoint(a=Pair())
    later.read(path)
    later.b, later.c = Pair(), tg.Variable(0.0)
    for tell in ("expect_partial", "assert_consumed"):
        status = tg.train.Checkpoint(a=Pair()).read(path)
        if tell == "assert_consumed":  # who was told once is not told again
            with pytest.raises(AssertionError, match="b/first, b/second, c"):
                status.assert_consumed()
        else:
            assert status.expect_partial() is status
    again = tg.train.Checkpoint(a=Pair())
    again.read(path)
    again.read(path).expect_partial()  # which takes the place of the first
    del later, status, again
    gc.collect()
    assert nobody_waits()


def test_the_end_of_the_program_is_one_too():
    tg.train.Checkpoint(a=tg.Variable(1.0), b=tg.Variable(1.0)).write("saved")
    program = (
        "import tracegraph as tg\n"
        "checkpoint = tg.train.Checkpoint(a=tg.Variable(0.0))\n"
        "status = checkpoint.restore('saved')\n"
        "__builtins__.kept = checkpoint\n"  # until Python has emptied the modules
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.fspath(pathlib.Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "UserWarning: values of the checkpoint saved were never used" in found.stderr
    assert "Exception" not in found.stderr


def test_long_lists_of_names_are_cut():
    path = tg.train.Checkpoint(many=[tg.Variable(1.0) for _ in range(30)]).write("saved")
    with pytest.raises(AssertionError, match="and 20 more"):
        tg.train.Checkpoint().read(path).assert_consumed()


def test_a_variable_where_a_module_was_is_no_match():
    path = tg.train.Checkpoint(x=Pair()).write("saved")
    status = tg.train.Checkpoint(x=tg.Variable(0.0)).read(path)
    with pytest.raises(AssertionError, match=r"values of x/first, x/second; .* variables x"):
        status.assert_consumed()


def test_none_restores_nothing():
    v = tg.Variable(1.0)
    checkpoint = tg.train.Checkpoint(v=v)
    status = checkpoint.restore(tg.train.latest_checkpoint("nowhere"))
    assert status.expect_partial() is status
    for check in ("assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match"):
        with pytest.raises(AssertionError, match="the path was None"):
            getattr(status, check)()
    assert v.numpy() == 1.0


def test_traced_functions_do_not_save_or_restore():
    checkpoint = tg.train.Checkpoint(v=tg.Variable(1.0))
    path = checkpoint.write("saved")
    for call in (checkpoint.save, checkpoint.write, checkpoint.read, checkpoint.restore):
        with pytest.raises(tg.errors.TraceError, match=r"outside of the @tg.function"):
            tg.function(lambda call=call: call(path))()


# Paths.


def test_saves_are_counted_and_the_last_is_found():
    v = tg.Variable(1.0)
    checkpoint = tg.train.Checkpoint(v=v)
    assert checkpoint.save("runs/ckpt") == "runs/ckpt-1"
    assert checkpoint.save(pathlib.Path("runs/ckpt")) == "runs/ckpt-2"
    assert tg.train.latest_checkpoint("runs") == "runs/ckpt-2"
    assert tg.train.load_variable("runs", "save_counter") == 2
    new = tg.train.Checkpoint(v=v)
    new.restore("runs/ckpt-2").assert_consumed()
    assert new.save("runs/ckpt") == "runs/ckpt-3"
    assert checkpoint.save("here") == "here-3" and tg.train.latest_checkpoint(".") == "./here-3"


def test_write_and_save_are_read_by_either():
    checkpoint = tg.train.Checkpoint(v=tg.Variable(1.0))
    tg.train.Checkpoint(v=tg.Variable(1.0)).restore(checkpoint.write("a")).assert_consumed()
    tg.train.Checkpoint(v=tg.Variable(1.0)).read(checkpoint.save("b")).assert_consumed()


def test_paths_that_are_none_say_what_to_give():
    v = tg.Variable(1.0)
    checkpoint = tg.train.Checkpoint(v=v)
    path = checkpoint.save("runs/ckpt")
    with pytest.raises(tg.errors.LoadError, match="such as 'runs/ckpt-1'"):
        checkpoint.restore("runs/ckpt")
    with pytest.raises(tg.errors.LoadError, match=r"tg.train.latest_checkpoint\('runs'\)"):
        checkpoint.restore("runs")
    with pytest.raises(tg.errors.LoadError, match="there is no directory nowhere"):
        checkpoint.restore("nowhere")
    with pytest.raises(ValueError, match="3 is not a path"):
        checkpoint.write(3)
    with pytest.raises(ValueError, match=r"such as .*'v'"):
        tg.train.load_variable(path, "w")
    os.mkdir("mine")
    pathlib.Path("mine/notes.txt").write_text("notes")
    with pytest.raises(ValueError, match=r"notes.txt"):
        checkpoint.write("mine")


def test_saved_models_are_refused_and_the_other_way_round():
    tg.saved_model.save(Pair(), "model")
    with pytest.raises(tg.errors.LoadError, match=r"tg.saved_model.load\('model'\)"):
        tg.train.Checkpoint(Pair()).restore("model")
    path = tg.train.Checkpoint(Pair()).write("saved")
    with pytest.raises(tg.errors.LoadError, match=r"Checkpoint\(...\).restore\('saved'\)"):
        tg.saved_model.load(path)
    tg.train.CheckpointManager(tg.train.Checkpoint(Pair()), "kept", 3).save()
    fix = r"Checkpoint\(...\).restore\(tg.train.latest_checkpoint\('kept'\)\)"
    with pytest.raises(tg.errors.LoadError, match=fix):
        tg.saved_model.load("kept")


def test_a_reader_has_values_by_their_names():
    path = tg.train.Checkpoint(p=Pair()).save("runs/ckpt")
    reader = tg.train.load_checkpoint("runs")
    assert reader.get_variable_to_shape_map() == dict(tg.train.list_variables(path))
    assert reader.get_variable_to_dtype_map()["p/first"] is tg.float32
    assert reader.has_tensor("p/first") and not reader.has_tensor("q")
    name = "p/second/.ATTRIBUTES/VARIABLE_VALUE"  # as TensorFlow calls it
    assert reader.has_tensor(name) and [*reader.get_tensor(name)] == [2.0, 2.0]
    assert "ckpt-1: 3 values" in repr(reader)
    with pytest.raises(ValueError, match=r"no value 'p/third'\n  at .*\n  fix: .*'p/first'"):
        reader.get_tensor("p/third")
    with pytest.raises(ValueError, match="there is no directory nowhere"):
        tg.train.load_checkpoint("nowhere")


def test_what_a_newer_tracegraph_wrote_is_not_called_damaged():
    path = tg.train.Checkpoint(Pair()).save("ckpt")
    for file in (pathlib.Path("checkpoint"), pathlib.Path(path) / "tracegraph.json"):
        content = json.loads(file.read_text())
        del content["checksum"]
        newer = {**content, "version": 2, "producer": "tracegraph 9.0.0", "more": 1}
        file.write_bytes(manifest.written(newer))
    fact = r"has version 2, written by tracegraph 9.0.0, and this tracegraph reads up to 1\n"
    fact += r".*\n  fix: install a newer tracegraph"
    with pytest.raises(tg.errors.LoadError, match=fact):
        tg.train.latest_checkpoint(".")
    with pytest.raises(tg.errors.LoadError, match=fact):
        tg.train.Checkpoint(Pair()).restore(path)


def test_a_loaded_model_has_checkpoints_too():
    tg.saved_model.save(Pair(), "model")
    loaded = tg.saved_model.load("model")
    path = tg.train.Checkpoint(model=loaded).write("saved")
    loaded.first.assign(0.0)
    tg.train.Checkpoint(model=Pair()).read(path).assert_consumed()
    tg.train.Checkpoint(model=loaded).read(path).assert_consumed()
    assert loaded.first.numpy() == 1.0


class Trainer(tg.Module):
    """A variable, an optimizer and a step, which are saved together."""

    def __init__(self, optimizer):
        super().__init__()
        self.v = tg.Variable([3.0, -1.0])
        self.opt = optimizer

    @tg.function
    def step(self):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(self.v**4)
        self.opt.apply_gradients([(tape.gradient(loss, self.v), self.v)])
        return loss


def losses(trainer, count=3):
    return [float(trainer.step()) for _ in range(count)]


class Heavy(tg.optimizers.Optimizer):
    """An optimizer of the user's own, whose class has the names of the slots."""

    slot_names = ("z", "a/b")

    def update_step(self, gradient, value, slots, factors):
        speed, age = slots
        speed, age = 0.9 * speed + gradient, age + 1.0
        return value - factors * speed / tg.sqrt(age), speed, age


def loaded_from(module, path="model"):
    tg.saved_model.save(module, path)
    return tg.saved_model.load(path)


OPTIMIZERS = {
    "adam": lambda: tg.optimizers.Adam(0.05),
    "amsgrad": lambda: tg.optimizers.Adam(0.05, amsgrad=True),
    "momentum": lambda: tg.optimizers.SGD(0.001, momentum=0.9),
    "own": lambda: Heavy(0.001),
    "running means": lambda: tg.optimizers.Adam(0.05, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: tg.optimizers.Nadam(0.05, gradient_accumulation_steps=2),
    "loss scale": lambda: tg.optimizers.LossScaleOptimizer(tg.optimizers.Adagrad(0.05)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("goes_to_the_loaded_one", [True, False])
def test_slots_go_between_a_module_and_its_saved_model(name, goes_to_the_loaded_one):
    live = Trainer(OPTIMIZERS[name]())
    live.step()
    loaded = loaded_from(live)
    pair = (live, loaded) if goes_to_the_loaded_one else (loaded, live)
    losses(pair[0], 5)
    path = tg.train.Checkpoint(m=pair[0]).save("saved/ckpt")
    tg.train.Checkpoint(m=pair[1]).restore(path).assert_consumed()
    expected = losses(pair[0])
    assert losses(pair[1]) == expected
    fresh = Trainer(OPTIMIZERS[name]())
    tg.train.Checkpoint(m=fresh).restore(path).assert_consumed()
    assert losses(fresh) == pytest.approx(expected, rel=1e-6)


def test_variables_without_decay_go_into_a_saved_model():
    live = Trainer(tg.optimizers.AdamW(0.05, weight_decay=0.5))
    live.opt.exclude_from_weight_decay(var_list=[live.v], var_names=["bias"])
    live.step()
    loaded = loaded_from(live)
    path = tg.train.Checkpoint(m=live).save("saved/ckpt")
    tg.train.Checkpoint(m=loaded).restore(path).assert_consumed()
    assert losses(loaded) == losses(live)


def test_a_loaded_optimizer_as_root_of_a_checkpoint():
    live = Trainer(tg.optimizers.Adam(0.05))
    live.step()
    loaded = loaded_from(live)
    path = tg.train.Checkpoint(tg.train.Checkpoint(live.opt), v=live.v).write("saved")
    names = [name for name, _ in tg.train.list_variables(path)]
    assert names == [
        *("iterations", "learning_rate", "v"),
        *("v/.OPTIMIZER_SLOT/momentum", "v/.OPTIMIZER_SLOT/velocity"),
    ]
    tg.train.Checkpoint(loaded.opt, v=loaded.v).read(path).assert_consumed()


def test_the_learning_rate_of_a_loaded_optimizer():
    live = Trainer(tg.optimizers.SGD(0.01))
    live.step()
    loaded = loaded_from(live)
    assert loaded.opt.learning_rate.numpy() == np.float32(0.01)
    loaded.opt.learning_rate = live.opt.learning_rate = 0.002
    assert losses(loaded) == losses(live)
    loaded.opt.learning_rate.assign(0.0)
    assert losses(loaded, 2) == [losses(loaded, 1)[0]] * 2
    with pytest.raises(tg.errors.SignatureError, match="was a Variable when its steps") as caught:
        loaded.opt.learning_rate = lambda: 0.1
    assert "fix: assign a number" in str(caught.value)
    again = loaded_from(loaded, "again")
    again.opt.learning_rate = loaded.opt.learning_rate = 0.002
    assert losses(again) == losses(loaded)


def test_a_learning_rate_that_the_graphs_hold_says_so():
    live = Trainer(tg.optimizers.SGD(lambda: 0.01))
    live.step()
    loaded = loaded_from(live)
    for name in ("learning_rate", "_learning_rate"):
        with pytest.raises(
            AttributeError, match=r"was a Python function.*steps that were saved compute it"
        ):
            getattr(loaded.opt, name)
    with pytest.raises(tg.errors.SignatureError, match=r"0\.5 would have no effect"):
        loaded.opt.learning_rate = 0.5
    assert not hasattr(loaded, "learning_rate")


@pytest.mark.parametrize(
    "rate",
    [
        lambda step: 0.01 / (1.0 + tg.cast(step, tg.float32)),
        tg.optimizers.schedules.InverseTimeDecay(0.01, 1, 1.0),
    ],
    ids=["function", "object"],
)
def test_a_schedule_goes_on_after_loading(rate):
    live = Trainer(tg.optimizers.SGD(rate))
    live.step()
    loaded = loaded_from(live)
    assert losses(loaded) == losses(live)
    with pytest.raises(AttributeError, match="the learning rate was a Python function"):
        _ = loaded.opt.learning_rate


def test_a_learning_rate_that_is_a_saved_function():
    @tg.function
    def rate(iterations):
        return 0.01 / (1.0 + tg.cast(iterations, tg.float32))

    live = Trainer(tg.optimizers.SGD(rate))
    live.step()
    loaded = loaded_from(live)
    assert loaded.opt.learning_rate.numpy() == np.float32(0.005)
    assert losses(loaded) == losses(live)
    assert loaded.opt.learning_rate.numpy() == live.opt.learning_rate.numpy()


# Files that are not trusted.


def pair_and_optimizer():
    pair, optimizer = Pair(), tg.optimizers.SGD(momentum=0.5)
    optimizer.build(pair.variables)
    return tg.train.Checkpoint(model=pair, optimizer=optimizer)


def damaged(change):
    """Writes a checkpoint whose manifest was changed by a function, and returns its path."""
    path = pathlib.Path(pair_and_optimizer().write("saved"))
    content = json.loads((path / "tracegraph.json").read_text())
    del content["checksum"]
    change(content)
    (path / "tracegraph.json").write_bytes(manifest.written(content))
    return str(path)


def with_entry(*place, value):
    def change(content):
        for name in place[:-1]:
            content = content[name]
        content[place[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        with_entry("version", value=2),
        with_entry("format", value="other"),
        with_entry("objects", value=[]),
        with_entry("objects", value=[{"variable": "save_counter"}]),
        with_entry("objects", 0, value={"parts": {"model": 10**6}}),
        with_entry("objects", 0, value={"parts": {"model": -1}}),
        with_entry("objects", 0, value={"parts": []}),
        with_entry("objects", 0, value={"parts": {}, "slots": [[0, "m", 0]]}),
        with_entry("objects", 0, value={"parts": {}, "slots": [[1]]}),
        with_entry("objects", 0, value={"parts": {}, "more": 1}),
        with_entry("objects", 3, value={"variable": "nothing"}),
        with_entry("values", value={}),
        with_entry("files", value={}),
        with_entry("files", value={"../x.safetensors": {"bytes": 1, "sha256": "0" * 64}}),
        with_entry("more", value=1),
    ],
)
def test_a_manifest_that_was_changed_is_a_load_error(change):
    path = damaged(change)
    for read in (tg.train.list_variables, pair_and_optimizer().restore):
        with pytest.raises(tg.errors.LoadError):
            read(path)


STATE = {
    "format": "tracegraph.checkpoint_state",
    "version": 1,
    "checkpoints": [],
    "preserved": 0,
}


def test_a_value_that_was_changed_restores_nothing():
    old = Late()
    old(tg.ones([1, 3]))
    path = tg.train.Checkpoint(late=old, pair=Pair(5.0)).write("saved")
    (file,) = pathlib.Path(path).glob("*.safetensors")
    data = bytearray(file.read_bytes())
    place = data.rindex(np.full(3, 1.0, np.float32).tobytes())  # of a variable that is made later
    data[place] ^= 1
    file.write_bytes(data)
    pair = Pair()
    with pytest.raises(tg.errors.LoadError, match="'late/w' was changed"):
        tg.train.Checkpoint(late=Late(), pair=pair).read(path)
    assert pair.first.numpy() == 1.0
    assert nobody_waits()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"model_checkpoint_path: 'ckpt-1'",
        b"[]",
        manifest.written(STATE).replace(b'"version": 1', b'"version":1'),
        manifest.written({"format": "x"}),
        manifest.written({**STATE, "format": "x"}),
        manifest.written({**STATE, "version": 9}),
        manifest.written({**STATE, "preserved": -1}),
        manifest.written({**STATE, "checkpoints": ["ckpt-1"]}),
        manifest.written({**STATE, "checkpoints": [["../../etc", 0]]}),
    ],
)
def test_a_damaged_list_of_checkpoints_is_a_load_error(data):
    pathlib.Path("checkpoint").write_bytes(manifest.written(STATE))
    assert tg.train.latest_checkpoint(".") is None
    pathlib.Path("checkpoint").write_bytes(data)
    with pytest.raises(tg.errors.LoadError):
        tg.train.latest_checkpoint(".")
    with pytest.raises(tg.errors.LoadError):
        tg.train.CheckpointManager(tg.train.Checkpoint(), ".", 3)


# Threads.


def test_a_step_in_another_thread_sees_all_values_or_none():
    variables = [tg.Variable(0.0) for _ in range(8)]
    checkpoint = tg.train.Checkpoint(variables=variables)
    path = checkpoint.write("saved")

    @tg.function
    def step():
        now = tg.stack(variables)
        for v in variables:
            v.assign_add(1.0)
        return now

    seen, is_over = [], threading.Event()

    def run():
        while not is_over.is_set():
            seen.append(step().numpy())

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(8):
        checkpoint.read(path)
        checkpoint.write("other")
        assert len(set(map(float, values("other").values()))) == 1
    is_over.set()
    thread.join()
    assert all((row == row[0]).all() for row in seen)


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_interrupt_while_values_are_assigned_leaves_all_or_none(monkeypatch, is_stored):
    variables = [tg.Variable(float(i)) for i in range(4)]
    checkpoint = tg.train.Checkpoint(variables)
    path = checkpoint.write("saved")
    for v in variables:
        v.assign(9.0)
    store = variable_module.store

    def interrupted(slots, contents):  # storing is one call of C: before it, or behind it
        if is_stored:
            store(slots, contents)
        raise KeyboardInterrupt

    monkeypatch.setattr(variable_module, "store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.read(path)
    assert [float(v) for v in variables] == ([0.0, 1.0, 2.0, 3.0] if is_stored else [9.0] * 4)


# The manager.


def manager_of(v, **options):
    options = {"max_to_keep": 3, **options}
    return tg.train.CheckpointManager(tg.train.Checkpoint(v=v), "kept", **options)


def test_the_last_few_are_kept():
    v = tg.Variable(0)
    manager = manager_of(v)
    assert manager.latest_checkpoint is None and manager.checkpoints == []
    assert manager.restore_or_initialize() is None
    for i in range(1, 6):
        v.assign(i)
        assert manager.save() == manager.latest_checkpoint == f"kept/ckpt-{i}"
    assert manager.checkpoints == ["kept/ckpt-3", "kept/ckpt-4", "kept/ckpt-5"]
    assert sorted(os.listdir("kept")) == ["checkpoint", "ckpt-3", "ckpt-4", "ckpt-5"]
    assert tg.train.latest_checkpoint("kept") == "kept/ckpt-5"
    w = tg.Variable(0)
    again = manager_of(w)
    assert again.checkpoints == manager.checkpoints
    assert again.restore_or_initialize() == "kept/ckpt-5"
    assert w.numpy() == 5
    assert again.save() == "kept/ckpt-6"
    assert (again.directory, again.checkpoint_interval) == ("kept", None)


def test_numbers_and_names_of_the_users_own():
    v = tg.Variable(7)
    manager = manager_of(v, max_to_keep=None, checkpoint_name="model")
    assert manager.save(checkpoint_number=v) == "kept/model-7"
    assert manager.save(checkpoint_number=3) == "kept/model-3"
    assert manager.save(checkpoint_number=7) == "kept/model-7"
    assert manager.checkpoints == ["kept/model-3", "kept/model-7"]


def test_one_in_so_many_hours_stays(monkeypatch):
    now = [time.time_ns()]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    manager = manager_of(tg.Variable(0), max_to_keep=1, keep_checkpoint_every_n_hours=1.0)
    for _ in range(8):
        now[0] += 1800 * 10**9
        manager.save()
    assert manager.checkpoints == ["kept/ckpt-8"]
    there = {name for name in os.listdir("kept") if name != "checkpoint"}
    assert there == {"ckpt-2", "ckpt-4", "ckpt-6", "ckpt-8"}
    assert manager_of(tg.Variable(0), max_to_keep=1).checkpoints == ["kept/ckpt-8"]


def test_saves_that_come_too_soon_do_nothing():
    step = tg.Variable(0)
    manager = manager_of(step, step_counter=step, checkpoint_interval=10)
    saved = []
    for _ in range(25):
        saved.append(manager.save())
        step.assign_add(1)
    assert [i for i, path in enumerate(saved) if path] == [0, 10, 20]
    assert manager.save() is None and manager.save(check_interval=False)
    new = manager_of(step, step_counter=step, checkpoint_interval=10)
    new.restore_or_initialize()
    assert new.save() is None


def test_what_is_not_there_is_initialised():
    v = tg.Variable(0)
    manager = manager_of(v, init_fn=lambda: v.assign(5))
    assert manager.restore_or_initialize() is None
    assert v.numpy() == 5
    manager.save()
    v.assign(0)
    assert manager.restore_or_initialize() == "kept/ckpt-1" and v.numpy() == 5


def test_arguments_that_do_not_fit_together():
    checkpoint = tg.train.Checkpoint()
    for keep in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="give a positive int, or None"):
            tg.train.CheckpointManager(checkpoint, "kept", keep)
    with pytest.raises(ValueError, match="nothing counts steps"):
        tg.train.CheckpointManager(checkpoint, "kept", 1, checkpoint_interval=3)
    with pytest.raises(ValueError, match=r"give a tg.train.Checkpoint"):
        tg.train.CheckpointManager(Pair(), "kept", 1)
    with pytest.raises(ValueError, match="names no file in a folder"):
        tg.train.CheckpointManager(checkpoint, "kept", 1, checkpoint_name="a/b")


def test_a_checkpoint_that_somebody_removed_is_passed_over():
    manager = manager_of(tg.Variable(0))
    for _ in range(3):
        manager.save()
    shutil.rmtree("kept/ckpt-3")
    assert tg.train.latest_checkpoint("kept") == manager.latest_checkpoint == "kept/ckpt-2"
    assert manager_of(tg.Variable(0)).checkpoints == ["kept/ckpt-1", "kept/ckpt-2"]


def test_what_a_kill_leaves_is_no_obstacle_and_goes():
    for directory in ("kept/ckpt-1", "kept/ckpt-7"):
        os.makedirs(directory)
        for name in (
            ".tmpwDoV6h",
            ".tracegraph-0123456789abcdef",
            "values-0123456789ab.safetensors",
        ):
            pathlib.Path(directory, name).write_bytes(b"half")
    manager_of(tg.Variable(0)).save()
    assert sorted(os.listdir("kept")) == ["checkpoint", "ckpt-1"]
    assert len(os.listdir("kept/ckpt-1")) == 2


def test_the_list_of_checkpoints_removes_what_was_to_become_one_and_nothing_else():
    os.mkdir("kept")
    for name in (".tracegraph-0123456789abcdef", ".tmpwDoV6h", "notes.txt"):
        pathlib.Path("kept", name).write_bytes(b"half")
    manager_of(tg.Variable(0)).save()
    assert sorted(os.listdir("kept")) == [".tmpwDoV6h", "checkpoint", "ckpt-1", "notes.txt"]


def test_files_of_the_users_stay():
    manager = manager_of(tg.Variable(0), max_to_keep=1)
    manager.save()
    pathlib.Path("kept/ckpt-1/notes.txt").write_text("notes")
    os.mkdir("kept/ckpt-other")
    manager.save()
    assert os.listdir("kept/ckpt-1") == ["notes.txt"]
    assert os.path.isdir("kept/ckpt-other")


# Threads and signal handlers.


class Racing:
    """One manager that keeps two checkpoints, and what its saves returned. All elements of what is
    saved are one number."""

    def __init__(self):
        self.v = tg.Variable(np.zeros(500, np.int64))
        checkpoint = tg.train.Checkpoint(v=self.v)
        self.manager = tg.train.CheckpointManager(checkpoint, "kept", max_to_keep=2)
        self.paths = []
        self.errors = []

    def save(self):
        self.v.assign_add(np.ones(500, np.int64))
        self.paths.append(self.manager.save())

    def save_often(self, count):
        try:
            for _ in range(count):
                self.save()
        except BaseException as error:
            self.errors.append(error)

    def check(self):
        assert not self.errors
        count = len(self.paths)
        assert sorted(self.paths) == sorted(f"kept/ckpt-{i}" for i in range(1, count + 1))
        there = {f"kept/{name}" for name in os.listdir("kept")} - {"kept/checkpoint"}
        assert there == set(self.manager.checkpoints) and len(there) == min(count, 2)
        assert self.manager.latest_checkpoint == tg.train.latest_checkpoint("kept")
        for path in there:
            assert len(np.unique(tg.train.load_variable(path, "v"))) == 1
        again = manager_of(tg.Variable(np.zeros(500, np.int64)))
        assert again.checkpoints == self.manager.checkpoints
        assert again.restore_or_initialize() == self.manager.latest_checkpoint


def test_threads_save_by_one_manager():
    racing = Racing()
    threads = [threading.Thread(target=racing.save_often, args=[15]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    racing.check()
    assert len(racing.paths) == 120


class Handlers:
    """Lets a signal handler call `action` when as many functions as `moment` were called."""

    def __init__(self, action):
        self.action = action

    def __enter__(self):
        self.before = signal.signal(signal.SIGUSR1, lambda *_: self.action())
        return self

    def __exit__(self, *exception):
        signal.signal(signal.SIGUSR1, self.before)

    def strike(self, moment, work):
        """Returns whether the work was struck before it was over."""
        left = [moment]

        def observe(frame, event, _):
            if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    signal.raise_signal(signal.SIGUSR1)

        sys.setprofile(observe)
        try:
            work()
        finally:
            sys.setprofile(None)
        return left[0] < 0


needs_signals = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread(),
    reason="signals need the main thread",
)


@needs_signals
@pytest.mark.parametrize(
    ("stride", "least"), [(240, 8), pytest.param(60, 30, marks=pytest.mark.sweep)]
)
def test_a_signal_handler_saves_at_any_moment_of_a_save(monkeypatch, stride, least):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug, and it is slow
    choose, moment = random.Random(5), 0
    racing = Racing()
    racing.save()
    with Handlers(racing.save) as handlers:
        while handlers.strike(moment, racing.save):
            moment += choose.randint(1, stride)
            assert len(racing.manager.checkpoints) == 2
            assert os.path.exists(racing.manager.latest_checkpoint)
    racing.check()
    assert len(racing.paths) > least


@needs_signals
def test_a_signal_handler_is_the_first_to_save():
    for moment in range(0, 400, 40):
        shutil.rmtree("kept", ignore_errors=True)
        racing = Racing()
        with Handlers(racing.save) as handlers:
            assert handlers.strike(moment, racing.save)
        racing.check()
        assert len(racing.paths) == 2


@needs_signals
def test_a_signal_handler_saves_while_threads_do(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    racing, choose = Racing(), random.Random(6)
    threads = [threading.Thread(target=racing.save_often, args=[12]) for _ in range(3)]
    with Handlers(racing.save) as handlers:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            handlers.strike(choose.randint(0, 2000), racing.save)
    racing.check()


def test_the_checkpoint_that_began_last_is_the_latest():
    """Somebody saves while a save that began before is being written."""
    struck = []

    class Struck(tg.train.Checkpoint):
        def write(self, path):
            struck.append(path)
            if len(struck) == 1:
                assert manager.save() == "kept/ckpt-2"
            return super().write(path)

    manager = tg.train.CheckpointManager(Struck(v=tg.Variable(0)), "kept", None)
    assert manager.save() == "kept/ckpt-1"
    assert manager.checkpoints == ["kept/ckpt-1", "kept/ckpt-2"]
    assert tg.train.latest_checkpoint("kept") == "kept/ckpt-2"


# Kills.


class Saver:
    """Saves generation after generation, and tells of each when it is there."""

    def __init__(self):
        self.one = tg.Variable(np.zeros(50_000, np.float32))
        self.two = tg.Variable(np.zeros(3, np.int64))
        checkpoint = tg.train.Checkpoint(one=self.one, two=self.two)
        self.manager = tg.train.CheckpointManager(checkpoint, "kept", max_to_keep=2)
        self.manager.restore_or_initialize()

    def run(self, tell):
        tell(generation := int(self.two.numpy()[0]))
        while True:
            generation += 1
            self.one.assign(np.full(50_000, generation, np.float32))
            self.two.assign(np.full(3, generation, np.int64))
            self.manager.checkpoint.write("same")
            self.manager.save()
            tell(generation)


def generation_of(path):
    """The generation of a checkpoint, in which all values must have the same one."""
    found = {number for key in ("one", "two") for number in tg.train.load_variable(path, key)}
    assert len(found) == 1, found
    return int(found.pop())


@pytest.mark.parametrize(
    ("count", "least"), [(3, 1), pytest.param(15, 10, marks=pytest.mark.sweep)]
)
def test_a_kill_at_any_moment_leaves_whole_checkpoints(count, least):
    """What was told to be saved is there, and what is there is whole."""
    told = 0
    with Kills(__file__) as kills:
        for _ in range(count):
            last = kills.strike()
            assert last >= told
            latest = tg.train.latest_checkpoint("kept")
            told = generation_of(latest) if latest else 0
            assert told in (last, last + 1)
            if last or os.path.exists("same/tracegraph.json"):
                assert generation_of("same") in (told, told + 1)
    assert told > least
    saver = Saver()
    assert saver.two.numpy()[0] == told
    saver.manager.save()
    there = {f"kept/{name}" for name in os.listdir("kept")} - {"kept/checkpoint"}
    assert there == set(saver.manager.checkpoints)


def test_a_status_shows_counts(tmp_path):
    v, w, extra = (tg.Variable(float(k)) for k in range(3))
    path = tg.train.Checkpoint(v=v, extra=extra).save(tmp_path / "ckpt")
    status = tg.train.Checkpoint(v=v, w=w).restore(path).expect_partial()
    assert repr(status) == (
        "<tg.train status: 1 Variables restored, 1 without a value, 1 values unused>"
    )
    assert "the path was None" in str(tg.train.Checkpoint(v=v).restore(None))


PREEMPTED = """
import signal, sys
import tracegraph as tg

v = tg.Variable(0.0)
step = tg.function(lambda: v.assign_add(1.0))
before = signal.signal(signal.SIGUSR1, lambda *_: print("mine", v.numpy()))
manager = tg.train.CheckpointManager(
    tg.train.Checkpoint(v=v), "kept", 2, preemption_signals=[signal.SIGTERM, signal.SIGUSR1]
)
if manager.latest_checkpoint:
    manager.restore_or_initialize()
    print("restored", v.numpy() >= 5.0, flush=True)
    signal.raise_signal(signal.SIGUSR1)
    sys.exit(3)
for _ in range(5):
    step()
print("begun", flush=True)
while True:
    step()
"""


def test_a_preempted_process_saves_and_says_where():
    command = [sys.executable, "-c", PREEMPTED]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert told == "tracegraph: SIGTERM: the training is saved in kept/ckpt-1\n"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # What handled the signal before goes on behind the checkpoint.
    first, mine = done.stdout.splitlines()
    assert (first, mine.split()[0], done.returncode) == ("restored True", "mine", 3)
    assert done.stderr == "tracegraph: SIGUSR1: the training is saved in kept/ckpt-2\n"


def test_signals_of_preemption_are_signals():
    checkpoint = tg.train.Checkpoint(v=tg.Variable(1.0))
    with pytest.raises(ValueError, match=r"-5 is not a signal\n.*\n.*signal\.SIGTERM"):
        tg.train.CheckpointManager(checkpoint, "kept", 2, preemption_signals=[-5])
    found = []

    def make():
        with pytest.raises(ValueError, match="only the main thread can listen") as caught:
            tg.train.CheckpointManager(checkpoint, "kept", 2, preemption_signals=[signal.SIGTERM])
        found.append(caught.value)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert found
