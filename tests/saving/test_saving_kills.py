"""A process that is killed while it saves a model leaves the old one or the new one, no mix."""

import os
import pathlib
import shutil

import pytest

import tracegraph as tg
from tests.generations import KINDS, Generation, files, model_of, save_model
from tests.killing import Kills
from tests.stepping import Steps, can_step


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Saver:
    """Saves generation after generation to one path, and tells of each when it is there."""

    def run(self, tell):
        number = tg.saved_model.load("model").number if os.path.exists("model") else 0
        tell(number)
        while True:
            number += 1
            save_model(number, "model")
            tell(number)


@pytest.mark.parametrize(
    ("count", "least"), [(5, 0), pytest.param(30, 20, marks=pytest.mark.sweep)]
)
def test_a_kill_at_any_moment_leaves_one_generation(count, least):
    told = 0
    save_model(0, "model")
    with Kills(__file__) as kills:
        for _ in range(count):
            last = kills.strike()
            assert last >= told
            told = model_of("model")
            assert told in (last, last + 1)
    assert told > least
    for path in ("model", "other"):
        save_model(0, path)
    assert files("model") == files("other")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_safetensors_was_writing_is_no_obstacle_and_goes(is_first):
    """What a kill inside of safetensors left, with which earlier versions wrote: it writes to such
    a name, and renames that."""
    if not is_first:
        tg.saved_model.save(Generation(0), "model")
    os.makedirs("model", exist_ok=True)
    pathlib.Path("model/.tmpwDoV6h").write_bytes(b"half")
    tg.saved_model.save(Generation(1), "model")
    assert not os.path.exists("model/.tmpwDoV6h")


# Kills at each system call.


def saved_whole(path, save):
    """The files of generation 2 at a path where nobody was killed."""
    os.mkdir("measured")
    os.chdir("measured")
    save(2, path)
    found = files(path)
    os.chdir("..")
    return found


def strikes(kind, where, is_first, stride=1):
    """Kills a save at one call after the other, or at every `stride`-th, each time from the same
    state on; returns the calls, and the generations that were left."""
    path, save, generation_of = KINDS[kind]
    whole = saved_whole(path, save)
    if not is_first:
        save(1, "before/" + path)
    calls, left = [], []
    with Steps(kind, where) as steps:
        while True:
            shutil.rmtree(path, ignore_errors=True)
            if not is_first:
                shutil.copytree("before/" + path, path)
            call = steps.strike(stride * len(calls))
            if not call:
                return calls, left
            calls.append(call)
            left.append(generation_of(path) if is_saved(kind) else 0)
            save(2, path)
            assert generation_of(path) == 2
            assert files(path) == whole


def is_saved(kind):
    """Whether something counts at the path of a kind."""
    if kind == "model":
        return tg.saved_model.contains_saved_model("model")
    return os.path.exists("kept") and tg.train.latest_checkpoint("kept") is not None


@pytest.fixture
def ptrace():
    if not can_step():
        pytest.skip("no process can be traced here")


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("ptrace")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_some_system_calls_of_a_commit_leaves_the_old_state_or_the_new(kind):
    calls, left = strikes(kind, "commit", is_first=False, stride=6)
    assert calls[0].startswith("rename") and calls[0].endswith("tracegraph.json")
    assert left == sorted(left) and {*left} == {1, 2}


@pytest.mark.sweep
@pytest.mark.usefixtures("ptrace")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_each_system_call_of_a_commit_leaves_the_old_state_or_the_new(kind):
    """From the rename of the manifest on: what was told by its name counts from there on."""
    calls, left = strikes(kind, "commit", is_first=False)
    assert calls[0].startswith("rename") and calls[0].endswith("tracegraph.json")
    assert any("unlink" in call and ".tracegraph-" not in call for call in calls)  # it cleans up
    turn = 1 if kind == "model" else calls_until_the_list(calls)
    assert left == [1] * turn + [2] * (len(calls) - turn)


def calls_until_the_list(calls):
    """How many calls begin until the list of checkpoints names the new one."""
    return 1 + next(i for i, call in enumerate(calls) if call.endswith("kept/checkpoint"))


@pytest.mark.slow
@pytest.mark.usefixtures("ptrace")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_each_system_call_of_a_save_leaves_the_old_state_or_the_new(kind, is_first):
    calls, left = strikes(kind, "whole", is_first)
    assert len(calls) > 20
    assert left == sorted(left) and {*left} == {0 if is_first else 1, 2}
