"""Several processes of one program: they begin together, run the same, and end together.

The scenarios are in `in_processes.py`, which `tracegraph launch` starts here.
"""

import contextlib
import io
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from lowering.distribution.agreement import _first_difference
from tracegraph.commands.main import main
from tracegraph.core.source import line_of_thread
from tracegraph.distribute.order import ActionLog, Order
from tracegraph.distribute.watch import port_of, reserved_port

SCRIPT = Path(__file__).parents[1] / "in_processes.py"
LAUNCH = [sys.executable, "-m", "tracegraph", "launch"]
#: Of these lines most are the libraries' own. Two threads of gloo's may write at once: one line has
#: both texts then, and one none.
NOISE = re.compile(
    r"\[Gloo\]|is connected to|connected peer ranks is"
    r"|^\[\d\] ([WEF]\d{4} |\d?$|:UNKNOWN|Additional GRPC)"
)
#: What a thread of gloo's may write into a line that Python is about to end.
GLOO = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^:]*: \d+")
LOST = 70
SHAPE, LARGER = (64, 24), (256, 512)


class Lines(io.StringIO):
    """What is written, and when the last of it was."""

    last = 0.0

    def write(self, text):
        self.last = time.monotonic()
        return super().write(text)


def launch(*arguments, options=("-n", "2", "--devices", "2"), errors=None):
    """The exit code, and the lines of both outputs, each with the number of its process. The one
    that launches is this one, which has imported everything."""
    streams = Lines(), errors or Lines()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main(["launch", *options, *map(str, arguments)])
    out, err = (
        [
            x
            for line in stream.getvalue().splitlines()
            if (x := GLOO.sub("", line)) and not NOISE.search(x)
        ]
        for stream in streams
    )
    return code, out, err


#: Scenarios that run one after another in one pair of processes; the last one ends them.
TOGETHER = (
    *("catches_an_exit", "adds_up", "prints", "works_alone", "gives_its_part"),
    *("gives_what_others_give", "shows_what_is_divided", "uses_what_others_have"),
    *("captures_what_others_do_not", "divides_in_its_own_way", "saves", "manages"),
    *("divides_by_another_mesh", "computes_between", "saves_apart"),
    *("loops_with_work_alone", "is_struck_by_signals"),
    "does_something_else",
    *("fails_to_save", "saves_a_model", "trains", "draws_alone", "preempted"),
)


def launch_all(names, *arguments):
    """Runs scenarios one after another: the exit code, what each of two processes printed in each
    of them, and the errors."""
    code, out, err = launch(SCRIPT, ",".join(names), *arguments)
    told = {name: ([], []) for name in names}
    for process in range(2):
        name = None
        for line in out:
            if line.startswith(f"[{process}] scenario "):
                name = line.split()[-1]
            elif line.startswith(f"[{process}] "):
                told[name][process].append(line[4:])
    return code, told, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def together(folder):
    """What two processes print in each of the scenarios that end well."""
    code, told, err = launch_all(TOGETHER, folder)
    assert code == 128 + signal.SIGTERM
    saved = f"[0] tracegraph: SIGTERM: the training is saved in {folder / 'preempted' / 'ckpt-2'}"
    assert [line for line in err if "was ended by SIGTERM" not in line] == [saved]
    return told


@pytest.fixture(scope="module")
def everywhere():
    """What two processes print and report whose effects are everywhere, until they differ."""
    code, told, err = launch_all(["prints_everywhere", "differs"])
    assert code == 1
    return told, err


def restored(path, shape=SHAPE):
    """The three variables of a checkpoint, each as it was saved, on the one device of here."""
    found = {
        "rows": tg.Variable(tg.zeros(shape)),
        "columns": tg.Variable(tg.zeros(shape)),
        "whole": tg.Variable(0.0),
    }
    tg.train.Checkpoint(**found).restore(str(path)).assert_consumed()
    return found


def generation_of(path, shape=SHAPE):
    """The generation of a checkpoint, which all its values have."""
    found = restored(path, shape)
    generation = float(found["whole"])
    value = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape) + generation
    np.testing.assert_array_equal(found["rows"], value)
    np.testing.assert_array_equal(found["columns"], value)
    return generation


@pytest.mark.usefixtures("together")
def test_a_signal_to_one_process_saves_in_all(folder):
    v = tg.Variable(0.0)
    path = folder / "preempted" / "ckpt-2"
    tg.train.Checkpoint(v=v).restore(str(path)).assert_consumed()
    assert v.numpy() == 8.0


def test_each_process_writes_and_reads_what_it_owns(together, folder):
    path, managed = folder / "checkpoint", folder / "managed"
    assert together["manages"] == (["restored 3.0"],) * 2
    assert sorted(x.name for x in managed.iterdir()) == ["checkpoint", "ckpt-2", "ckpt-3"]
    assert generation_of(managed / "ckpt-2") == 2.0
    # Half of the rows for the columns and the other way round, and hardly anything in vain.
    size = 4 * LARGER[0] * LARGER[1]
    for (line,) in together["saves"]:
        _, whole, _, count = line.split()
        assert float(whole) == 1.0 and size <= int(count) <= 1.1 * size + 8
    names = sorted(x.name for x in path.glob("*.safetensors"))
    assert [name.rpartition("-")[0] for name in names] == ["values-0", "values-1"]
    sizes = [file.stat().st_size for file in path.glob("*.safetensors")]
    assert max(sizes) < 1.2 * size + 1000  # half of two arrays, and nobody has both halves
    assert generation_of(path, LARGER) == 1.0


def test_a_save_that_fails_in_one_process_fails_in_all(together, folder):
    path, own = folder / "failing", together["fails_to_save"]
    fact = f"{path} cannot be saved to, and holds what it held"
    for step, failing in (("save", 1), ("commit", 0)):
        other = own[1 - failing]
        assert any(x.startswith(f"{step} OSError [Errno 28] {fact}") for x in own[failing])
        told = (
            f"{step} DistributedError nothing was saved to {path}, since process {failing} failed"
        )
        assert any(x.startswith(told) for x in other)
        assert all(f"{step} kept 1.0" in lines for lines in own)
    assert generation_of(path) == 2.0


def test_processes_that_save_apart_are_told(together, folder):
    paths = [folder / f"apart-{i}" for i in range(2)]
    for lines in together["saves_apart"]:
        assert "process 1 wrote values-1-" in lines[0]
        assert lines[0].endswith(f" to {paths[1]}, and it is not in {paths[0]}")
        fact = "since processes save different values: process 0 has columns: f32[64,24], and"
        assert fact in lines[2] and lines[2].endswith("process 1 rows: f32[64,24]")
        assert lines[1] == lines[3] == "False", "and nothing was committed"


def values_of(lines):
    """The bytes that processes told, by what they were told of: all say the same."""
    found = {}
    for line in lines:
        word, kind, digits = line.split()
        assert word == "bits" and found.setdefault(kind, digits) == digits
    return {kind: bytes.fromhex(digits) for kind, digits in found.items()}


def test_a_run_goes_on_with_fewer_processes(together, folder):
    before = values_of([*together["trains"][0], *together["trains"][1]])["first"]
    code, out, err = launch(SCRIPT, "trains_on", folder, options=("-n", "1", "--devices", "2"))
    assert (code, err) == (0, [])
    found = values_of(line[4:] for line in out)
    assert found["restored"] == found["given"], "as a run that had fewer from there, bit by bit"
    losses = [np.frombuffer(x[:12], np.float32) for x in (before, found["given"])]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_model_is_saved_by_all_processes(together, folder):
    path = folder / "model"
    assert together["saves_a_model"] == (["product True"],) * 2
    names = sorted(x.name.rpartition("-")[0] for x in path.glob("weights-*"))
    assert names == ["weights-0", "weights-1"]
    sizes = [file.stat().st_size for file in path.glob("weights-*")]
    assert max(sizes) < 1.2 * 4 * SHAPE[0] * SHAPE[1] + 1000, "nobody has both halves"
    loaded = tg.saved_model.load(path)
    value = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE) + 1
    for name in ("rows", "columns"):
        assert loaded.parts[name].layout is None, "there is one device here"
        np.testing.assert_array_equal(loaded.parts[name], value)
    np.testing.assert_allclose(loaded.product(2.0), 2.0 * (value**2).sum(dtype=float), rtol=1e-5)


def strike(path, rng):
    """Starts processes that save without end and kills one of them at some moment, of which the
    other one tells. The last generation that was told, and the one that is found."""
    command = [*LAUNCH, "-n", "2", "--devices", "2", str(SCRIPT), "saves_without_end", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids: dict[str, int] = {}
    told = 0
    while told < 2 or len(pids) < 2:
        words = process.stdout.readline().split()
        assert words, process.communicate()
        if words[1:2] == ["process"]:
            pids[words[0]] = int(words[2])
        if words[1:2] == ["generation"]:
            told = int(words[2])
    time.sleep(rng.uniform(0, 0.3))
    who = rng.choice(sorted(pids))
    os.kill(pids.pop(who), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 137, err
    (other,) = pids
    assert f"{other} tracegraph: process {who[1]} of 2 was lost, so process {other[1]} ends" in err
    rows = (line.split() for line in out.splitlines())
    told = max([told, *(int(x[2]) for x in rows if x[1:2] == ["generation"])])
    return told, generation_of(path / "checkpoint")


@pytest.mark.parametrize(
    "count", [1, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
)
def test_a_kill_of_one_process_leaves_one_generation(count, tmp_path):
    rng = random.Random(0)
    for i in range(count):
        told, found = strike(tmp_path / str(i), rng)
        assert told <= found <= told + 1  # it counts before anybody is told


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_what_they_do_together_and_alone(together):
    names = TOGETHER[: TOGETHER.index("gives_what_others_give")]
    own = [[line for name in names for line in together[name][i]] for i in range(2)]
    devices = [f"/job:localhost/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    parts = [
        "parts (8,) float64 140.0",
        "tg.Tensor(<2 parts of 4>, shape=(8,), dtype=float64) "
        "<tg.Variable 'v:0' shape=(8,) dtype=float64, <2 parts of 4>>",
    ]
    assert own[0] == [
        *(f"device {devices[0]}", "total 140.0"),
        *("in the function 28 [0 1 2 ... 5 6 7]", "returned 29.0 seen [28.0]", "at top level 0"),
        *("alone 5.0", "together 140.0", *parts, "[0 1 ... 6 7]"),
    ]
    assert own[1] == [
        *(f"device {devices[1]}", "total 140.0", "returned 29.0 seen []", "together 140.0"),
        *parts,
    ]


def test_what_all_give_must_be_the_same(together):
    fact = "given processes give different values of one tensor: process {} f32[8] array([{}., "
    for i, lines in enumerate(together["gives_what_others_give"]):
        assert lines[:2] == ["by chance 0.0 0.0", "nan 4.0"]
        assert lines[2].startswith(fact.format(i, i)) and f"and process {1 - i} f32" in lines[2]
        assert lines[3] == "shared 7.0"
        fact_of_both = "shared processes give different values of one tensor: process {} f32[2] "
        assert lines[4].startswith(f"{fact_of_both.format(i)}array([1., {i}.]")
        assert len(lines) == 5


def test_errors_and_functions_of_python_see_all_parts(together):
    for lines in together["shows_what_is_divided"]:
        assert lines == [
            "shown [0. 1. 2. 3. 4. 5. 6. 7.]",
            "shown numbers from -5 to 2",
            "twice [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]",
            "halves [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]",
        ]


def test_what_another_process_has_is_refused(together):
    for i, own in enumerate(together["uses_what_others_have"]):
        array = "refused an array of JAX's float32[4] is on devices of another process, and this"
        mesh = f"refused process {i} uses the mesh data=2, which has no device of this process"
        assert [line[: len(array)] for line in own[:2]] == [array] * 2
        assert own[2:6] == [mesh] * 4
        assert own[6].startswith(array)
        facts = (
            "from_local: axis 0 of a tensor [3] has the size 3, which 'data' of 2 does not divide",
            "the value of a tensor f32[8] was asked for, of which this process holds 2 parts of 4",
            "a tensor f32[8] of which each process holds parts cannot move to the mesh data=2",
        )
        for line, fact in zip(own[7:10], facts, strict=True):
            assert line.startswith(f"refused {fact}")
        assert own[10:] == ["own 14.0", "moved 140.0"]
    assert together["draws_alone"] == ([], ["alone (2,) (2,)"])


def test_the_first_node_that_differs_is_told():
    x = tg.TensorSpec([2])
    texts = [
        tg.function(f).get_concrete_function(x).graph.as_text()
        for f in (lambda x: tg.tanh(x) * 2.0, lambda x: tg.sin(tg.tanh(x)))
    ]
    lines = _first_difference(*texts)
    assert lines == ("%1 = constant<value=f32 2.0>() : f32[]", "%1 = sin(%0) : f32[2]")
    with_one_more = texts[0].replace("(%x: f32[2])", "(%x: f32[2], %y: f32[])", 1)
    assert _first_difference(with_one_more, texts[1]) == lines, "the inputs differ as well"
    assert _first_difference(with_one_more, texts[0])[0].startswith("graph @")


def test_a_function_that_is_traced_differently_is_told_with_both_lines(everywhere):
    out, err = everywhere
    assert out["differs"] == ([], [])
    text = SCRIPT.read_text().split("\n")
    mine = 1 + next(i for i, line in enumerate(text) if line.endswith("y = y + 1"))
    for own, other in ((0, 1), (1, 0)):
        told = [line[4:] for line in err if line.startswith(f"[{own}] ")]
        fact = f"process {own} runs @by_process at in_processes.py"
        assert any(fact in line and f"process {other} runs @by_process" in line for line in told)
        for process, line in ((0, mine), (1, mine + 2)):
            row = next(x for x in told if x.startswith(f"  process {process}: "))
            assert row.endswith(f"at in_processes.py:{line}")


@pytest.mark.slow
def test_another_function_is_told():
    code, _, err = launch(SCRIPT, "runs_another")
    assert code == 1
    text = "\n".join(err)
    assert "process 0 runs @total at" in text and "process 1 runs @largest at" in text


@pytest.mark.slow
def test_who_waits_in_vain_ends():
    start = time.monotonic()
    code, _, err = launch(SCRIPT, "stays_away")
    assert code == LOST
    assert time.monotonic() - start < 60
    waited = [line for line in err if "has waited 8 s for the other processes to run" in line]
    assert len(waited) == 1 and "@largest at in_processes.py" in waited[0]


@pytest.mark.parametrize(
    ("scenario", "told", "line"),
    [
        (
            "ends_early",
            "[0] tracegraph: process 0 waits for process 1, which has ended, to run @largest at",
            "largest(x)",
        ),
        pytest.param(
            "runs_once_more",
            "[0] tracegraph: process 0 has been in one call for 8 s, and process 1 of 2 has",
            "float(total(x))",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_who_waits_for_a_process_that_has_ended_ends(scenario, told, line):
    start = time.monotonic()
    code, _, err = launch(SCRIPT, scenario)
    assert code == LOST, "and not by an abort of JAX's service"
    assert time.monotonic() - start < 60
    assert sum(x.startswith(told) for x in err) == 1
    assert any("in_processes.py:" in x and x.endswith(line) for x in err)


def test_what_a_program_captures_is_compared_before_its_first_run(together):
    for i, own in enumerate(together["captures_what_others_do_not"]):
        assert own[0].startswith("refused processes give different values of %")
        assert "f32[300]" in own[0] and "process 0 " in own[0] and "process 1 " in own[0]
        assert "0.5" in own[1] and "1.5" in own[1]
        assert own[2] == "the same 56.0"
        (told,) = together["divides_in_its_own_way"][i]
        assert told.startswith(f"refused   process {i}: %0 = with_layout<mesh=")


def test_who_divides_by_other_devices_is_told(together):
    for i, own in enumerate(together["divides_by_another_mesh"]):
        fact, line = own[0].split("   ", 1)
        assert fact.startswith("refused processes run different programs")
        numbers = line.rpartition("devices ")[2]
        assert line.startswith(f"process {i}: %x: f32[2] is divided by ['data'] over data=2 of the")
        assert [int(x) % 2 for x in numbers.split(", ")] == [i, i]
        fact = (
            f"refused processes divide one tensor in different ways: process {i} by ['data'] over"
        )
        assert own[1].startswith(fact)


def test_who_does_something_else_is_told(together):
    doings = ("run a program", "move a tensor to the devices of all")
    for i, (line,) in enumerate(together["does_something_else"]):
        told = [f"process {k} is about to {doings[k]} at in_processes.py:" for k in (i, 1 - i)]
        assert line.startswith(f"processes do different things: {told[0]}")
        assert f", and {told[1]}" in line


def test_what_one_computes_alone_does_not_wait_for_the_others(together):
    assert together["computes_between"] == (
        ["together 36.0"],
        ["alone [2.]", "together 36.0", "before [9.]"],
    )


def test_work_of_all_is_cut_alike_whatever_each_computes_alone(together):
    own, other = together["loops_with_work_alone"]
    assert own[0] == other[0] and own[0].startswith("together ")
    common, weight, x = random.Random(1), np.zeros(8), np.arange(8.0)
    for _ in range(350):
        x = x + 1.0 if common.random() < 0.7 else x * 0.5
        weight = weight + x if common.random() < 0.3 else weight
    found = [float(word) for word in own[0].split()[1:]]
    np.testing.assert_allclose(found, [weight.sum(), x.sum()], rtol=1e-5)
    for index, lines in enumerate((own, other)):
        alone, kept, drawn = 0, 0, random.Random(index)
        for _ in range(350):
            for _ in range(drawn.randrange(4)):
                alone += 1
                kept += 2 * alone if drawn.random() < 0.1 else 0
                drawn.random()
        assert lines[1] == f"alone {alone}.0 {kept}.0"


def test_handlers_of_one_process_may_compute(together):
    assert together["is_struck_by_signals"] == (
        ["struck True {3.0}", "together True"],
        ["struck False set()", "together True"],
    )


@pytest.mark.sweep
def test_a_mesh_may_have_the_devices_of_some_processes():
    code, out, err = launch(SCRIPT, "some_of_three", options=("-n", "3", "--devices", "1"))
    assert (code, err) == (0, [])
    # The weights 1 - 0.2 x^2 are 0.8 and 0.2, and the losses 1 + 4 and 0.64 + 0.16.
    assert sorted(line for line in out if "scenario" not in line) == [
        "[0] losses 5.0000 0.8000",
        "[0] printed [1 2]",
        "[0] together 5.0",
        "[1] losses 5.0000 0.8000",
        "[1] together 5.0",
        "[2] alone 3.0",
        "[2] together 5.0",
    ]


def test_parts_of_two_tensors_are_told():
    start = time.monotonic()
    code, _, err = launch(SCRIPT, "gives_another_part")
    assert code == LOST
    assert time.monotonic() - start < 60
    fact = (
        "tracegraph: processes give parts of different tensors to from_local after 2 that were the "
        "same: process 0 f32[4] of f32[8] divided by ['data'] over data=4 of the devices "
    )
    told = [line for line in err if fact in line and "process 1 f32[2] of f32[4]" in line]
    assert sorted(line[:3] for line in told) == ["[0]", "[1]"]


@pytest.mark.parametrize(
    ("scenario", "what", "other"),
    [
        ("runs_in_another_order", "runs @step at in_processes.py", "runs @total at in_processes"),
        pytest.param(
            *("exchanges_where_others_run", "exchanges data at in_processes.py", "runs @total at"),
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_programs_that_have_run_before_are_compared_while_they_run(scenario, what, other):
    start = time.monotonic()
    code, _, err = launch(SCRIPT, scenario)
    assert code == LOST
    assert time.monotonic() - start < 60, "and they would wait for so long, with wrong numbers"
    fact = re.compile(
        r"\[(\d)\] tracegraph: processes do different things after \d+ that were the same: process "
        f"0 {re.escape(what)}.*, and process 1 {re.escape(other)}"
    )
    assert sorted(found[1] for line in err if (found := fact.match(line))) == ["0", "1"]


@pytest.mark.parametrize("seed", range(30))
def test_the_first_difference_in_what_processes_do_is_found(seed):
    """Against lists that are compared whole."""
    drawn = random.Random(seed)
    common = [drawn.choice("abc") for _ in range(40)]
    whole = [list(common) for _ in range(3)]
    place = drawn.randrange(40)
    changed = drawn.choice([None, 0, 1, 2])
    if changed is not None:
        whole[changed][place] = "x"
    logs, order = [ActionLog() for _ in whole], Order(3)
    found = None
    while found is None and any(whole):
        process = drawn.choice([i for i, rest in enumerate(whole) if rest])
        log = logs[process]
        for kind in [whole[process].pop(0) for _ in range(min(len(whole[process]), 5))]:
            log.note(kind, f"does {kind}")
            if drawn.random() < 0.3:  # it was refused, and is done again
                log.take_back()
                log.note(kind, f"does {kind}")
            if drawn.random() < 0.3:
                found = found or order.add(process, **log.taken())
        found = found or order.add(process, **log.taken())
    if changed is None:
        assert found is None
    else:
        pair = {found.first: found.told, found.second: found.other}
        assert pair.pop(changed) == "does x"
        assert [*pair.values()] == [f"does {common[place]}"]
        assert found.common <= place
    assert all(len(each) < 40 for each in order._done), "what all have done is dropped"


def test_who_is_not_done_yet_may_take_longer_than_the_timeout():
    code, out, err = launch(SCRIPT, "reports_for_long")
    assert (code, err) == (0, [])
    assert "[0] the report is written" in out


@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_process_that_is_stopped_is_lost_after_the_timeout(who, monkeypatch):
    monkeypatch.setattr("tracegraph.commands.launch._GRACE", 0.5)
    start = time.monotonic()
    code, _, err = launch(SCRIPT, f"is_stopped_{who}")
    assert code == 128 + signal.SIGKILL, "of the process that was stopped, which the launcher kills"
    assert time.monotonic() - start < 60, "and not when JAX's own heartbeats end"
    other = 1 - who
    told = f"[{other}] tracegraph: process {who} of 2 has not answered for 3 s, so process {other}"
    assert sum(x.startswith(told) for x in err) == 1


@pytest.mark.parametrize(
    ("scenario", "code", "word", "who"),
    [
        pytest.param("is_killed_1", 137, "was lost", 1, marks=pytest.mark.sweep),
        pytest.param("is_killed_0", 137, "was lost", 0, marks=pytest.mark.slow),
        pytest.param("raises", 1, "failed", 1, marks=pytest.mark.slow),
        ("exits", 3, "failed", 1),
    ],
)
def test_a_lost_process_ends_all(scenario, code, word, who):
    start = time.monotonic()
    # With one device each, JAX runs programs in the calling thread, which then gets the error.
    errors = Lines()
    found, _, err = launch(SCRIPT, scenario, options=("-n", "2", "--devices", "1"), errors=errors)
    assert found == code
    assert time.monotonic() - start < 60
    if word == "failed":  # and nobody waits for who has told of it
        assert time.monotonic() - errors.last < 3
    assert scenario == "raises" or not any("Traceback" in line for line in err), err
    other = 1 - who
    told = f"[{other}] tracegraph: process {who} of 2 {word}, so process {other} ends"
    assert err.count(told) == 1
    if scenario == "raises":
        assert "[1] ValueError: this is the error" in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGUSR1, 7), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_signals_go_on_and_codes_come_back(number, code, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        "import signal, sys, time\n"
        "def handler(*_):\n"
        "    print('got the signal')\n"
        "    sys.exit(7)\n"
        "signal.signal(signal.SIGUSR1, handler)\n"
        "print('is waiting')\n"
        "time.sleep(60)\n"
    )
    command = [*LAUNCH, "-n", "2", str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: list[str] = []
    while sum("is waiting" in line for line in seen) < 2:
        seen.append(process.stdout.readline())
        assert seen[-1], process.communicate()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    heard = sum("got the signal" in line for line in out.splitlines())
    assert heard == (2 if number == signal.SIGUSR1 else 0)


def test_a_launcher_that_is_killed_leaves_nothing_behind():
    command = [*LAUNCH, "-n", "2", str(SCRIPT), "waits_for_a_signal"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    numbers: list[int] = []
    while len(numbers) < 2:
        line = process.stdout.readline()
        assert line, process.communicate()
        numbers += [int(line.split()[-1])] if "is waiting" in line else []
    process.kill()
    process.communicate(timeout=60)
    assert_that_all_end(numbers, 30)


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_process_started_ends_with_it(code, tmp_path, monkeypatch):
    monkeypatch.setattr("tracegraph.commands.launch._GRACE", 0.3)
    script = tmp_path / "starts_another.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "started = subprocess.Popen(['sleep', '600'])\n"
        f"open(os.environ['TRACEGRAPH_PROCESS'], 'w').write(str(started.pid))\n"
        f"sys.exit({code} * int(os.environ['TRACEGRAPH_PROCESS']))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "-n", "2", str(script)]) == code
    numbers = [int((tmp_path / name).read_text()) for name in "01"]
    assert_that_all_end(numbers, 10)


def test_a_process_that_a_signal_ended_is_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("tracegraph.commands.launch._GRACE", 0.3)
    script = tmp_path / "ends.py"
    script.write_text(
        "import os, signal, time\n"
        "if os.environ['TRACEGRAPH_PROCESS'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    assert main(["launch", "-n", "2", str(script)]) == 128 + signal.SIGKILL
    told = "tracegraph launch: process 1 was ended by SIGKILL, so all are ended\n"
    assert capfd.readouterr().err == told


def test_lines_are_printed_as_they_are(tmp_path, capfd):
    script = tmp_path / "prints.py"
    script.write_text("import os\nos.write(1, b'kept:  \\n  \\xff\\n\\nlast\\t')\n")
    assert main(["launch", "-n", "1", str(script)]) == 0
    assert capfd.readouterr().out == "[0] kept:  \n[0]   \\xff\n[0] \n[0] last\t\n"


def test_a_reader_that_goes_away_ends_all(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("while True:\n    print('a line' * 1000)")
    command = [*LAUNCH, "-n", "2", str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert "a line" in process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert "BrokenPipeError" in process.stderr.read()
    assert process.wait(timeout=60) == 1


def is_running(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def assert_that_all_end(numbers, seconds):
    deadline = time.monotonic() + seconds
    while any(map(is_running, numbers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, numbers))


def refused(*arguments, timeout=0.5):
    """What `initialize` says that waits in vain, or does not begin to."""
    start = time.monotonic()
    with pytest.raises(tg.errors.DistributedError) as caught:
        tg.distribute.initialize(*arguments, timeout=timeout)
    assert time.monotonic() - start < 30
    return str(caught.value)


def test_a_coordinator_that_is_not_there():
    port = free_port()
    text = refused(f"127.0.0.1:{port}", 2, 1)
    assert f"there is no coordinator at 127.0.0.1:{port}, after 0.5 s" in text


@pytest.mark.parametrize("answer", [b"", b"[]\n", b'{"is_there": true}\n'])
def test_another_program_at_the_address(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        text = refused(f"127.0.0.1:{port_of(server)}", 2, 1, timeout=5)
    assert "did not take process 1 of 2: it ended, or does not belong to this run" in text
    assert "fix: see whether process 0 has ended, or another program listens" in text


def test_the_line_of_a_thread_is_not_of_the_library():
    lines = queue.Queue()

    def work():
        lines.get()

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.05)  # it waits in threading.py, as queue.py does
    place = line_of_thread(thread.ident)
    lines.put(None)
    thread.join()
    assert (Path(place.file), place.line) == (Path(__file__), work.__code__.co_firstlineno + 1)


def test_processes_that_do_not_come():
    text = refused(f"127.0.0.1:{free_port()}", 3, 0)
    assert "of 3 processes 1, 2 did not come within 0.5 s" in text


def test_who_is_no_process_of_ours_is_sent_away():
    port, answers = free_port(), []

    def call_in():
        for _ in range(200):
            with contextlib.suppress(ConnectionRefusedError):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    answers.append(connection.recv(100))
                return
            time.sleep(0.02)

    stranger = threading.Thread(target=call_in)
    stranger.start()
    text = refused(f"127.0.0.1:{port}", 2, 0, timeout=1.5)
    stranger.join()
    assert "of 2 processes 1 did not come within 1.5 s" in text
    assert b"it has 2 processes, and each number once" in answers[0]


def test_a_reserved_port_is_given_to_nobody_else():
    with reserved_port("127.0.0.1") as reserved:
        address = ("127.0.0.1", port_of(reserved))
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(address)
        with socket.create_server(address, reuse_port=True) as server:
            server.settimeout(10)
            with socket.create_connection(address):
                server.accept()[0].close()


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = refused(f"127.0.0.1:{port}", 2, 0)
    assert f"the first process cannot listen at 127.0.0.1:{port}: Address already in use" in text


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("nowhere", 2, 0), "initialize: 'nowhere' is not an address of a coordinator"),
        (("host:1", 2, 2), "initialize: process_id is 2, and num_processes is 2"),
        (("host:1", -1, 0), "initialize: num_processes is -1, not a count of processes"),
        (("host:1", 2, "0"), "initialize: process_id is '0', not a count of processes"),
        (("host:99999", 2, 0), "initialize: 'host:99999' is not an address of a coordinator"),
        ((1234, 2, 0), "initialize: 1234 is not an address of a coordinator"),
        (("host:1", 2, 0, None, -1), "initialize: timeout is -1, not a number of seconds"),
        (("host:1", 2, 0, None, "5"), "initialize: timeout is '5', not a number of seconds"),
        (("host:1", 0, 0), "initialize: num_processes is 0, not a count of processes"),
    ],
)
def test_bad_arguments(arguments, fact):
    with pytest.raises(ValueError) as caught:
        tg.distribute.initialize(*arguments)
    assert str(caught.value).split("\n")[0] == fact


def test_one_process_needs_nobody():
    tg.distribute.initialize("127.0.0.1:1", num_processes=1, process_id=0)
    assert float(tg.reduce_sum(tg.ones([3]))) == 3.0


@pytest.mark.slow
def test_initialize_comes_first(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import tracegraph as tg\nfloat(tg.ones([]))\ntg.distribute.initialize(timeout=8)\n"
    )
    code, _, err = launch(script)
    assert code == 1
    text = "\n".join(err)
    assert "DistributedError: the processes cannot be joined" in text
    assert "fix: call tg.distribute.initialize before anything is computed" in text


def test_a_module_is_launched_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nprint(__spec__.name, *sys.argv[1:])"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parent.parent))
    code, out, err = launch("package.train", "--steps", "3", "-m", options=("-n", "2", "-m"))
    assert (code, sorted(out), err) == (
        0,
        [f"[{i}] package.train --steps 3 -m" for i in (0, 1)],
        [],
    )


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("-n", "0", str(SCRIPT)), "-n is 0"),
        (("-n", "2", "no_such.py"), "there is no script no_such.py"),
    ],
)
def test_what_cannot_be_launched(arguments, fact, capfd):
    assert main(["launch", *arguments]) == 2
    assert fact in capfd.readouterr().err


def by_a_scheduler(environments, scenario):
    """Starts a process in each environment, as a scheduler does, and returns what they print."""
    flags = "--xla_force_host_platform_device_count=2"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "TRACEGR"))}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), scenario],
            env={**kept, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for own in environments
    ]
    try:
        found = [(process.communicate(timeout=120)[0], process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [code for _, code in found] == [0, 0], found
    return [text for text, _ in found]


def slurm(index, job):
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
    }


def open_mpi(index, job):
    return {
        "OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
    }


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(slurm, id="SLURM"),
        pytest.param(open_mpi, id="Open MPI", marks=pytest.mark.sweep),
    ],
)
def test_initialize_reads_the_environment_of_a_scheduler(environment):
    job = random.SystemRandom().randrange(1, 10**6)  # JAX makes the port of it
    for text in by_a_scheduler(
        [environment(i, job * 4096 + job % 4096) for i in range(2)], "adds_up"
    ):
        assert "total 140.0" in text


def test_effects_may_be_everywhere(everywhere):
    out, _ = everywhere
    for own in out["prints_everywhere"]:
        assert "in the function 28" in own and "seen [28.0]" in own
