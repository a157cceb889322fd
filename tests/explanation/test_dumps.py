"""Dumps: one file per pass, and the user's lines in what XLA makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracegraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")
ROOT = Path(__file__).parents[2]


def activation(x):
    return tg.tanh(x) * x


@pytest.fixture
def dumped(tmp_path):
    """The files of a step with a nested function, its gradient, a loop and a custom gradient."""
    inner = tg.function(activation)
    custom = tg.custom_gradient(lambda x: (x * 2.0, lambda g: g * 3.0))

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(inner(x) * x[::-1])
        slope = tape.gradient(y, x)
        return slope, tg.vectorized_map(inner, x), tg.jvp(custom, (x,), (x,))[1]

    with tg.debugging.dump_graphs(tmp_path / "dump") as dump:
        step(tg.ones([3]))
    return sorted(dump.directory.iterdir())


def test_there_is_a_file_for_each_pass(dumped):
    found = [tuple(path.name.split("-")[1].split(".")[:2]) for path in dumped]
    for stage in ("traced", "shared", "pruned", "specialised", "stablehlo", "optimized_hlo"):
        assert found.count(("step", stage)) == 1
    assert ("activation_forward", "forward") in found
    assert ("activation_vjp", "backward") in found
    assert ("activation_pfor", "vectorised") in found
    assert "transposed" in [stage for _, stage in found]
    assert [int(path.name[:4]) for path in dumped] == list(range(1, len(dumped) + 1))


def test_dumps_parse_back(dumped):
    for path in dumped:
        if path.suffix == ".tgir":
            text = path.read_text()
            assert tg.Graph.from_text(text).as_text(locations=True) + "\n" == text


def test_the_texts_of_the_compiler_name_our_lines(dumped):
    line = activation.__code__.co_firstlineno + 1
    for stage in ("stablehlo", "optimized_hlo"):
        (text,) = (p.read_text() for p in dumped if f"step.{stage}." in p.name)
        assert f"test_dumps.py:{line}" in text


def test_each_pass_has_its_own_file_and_repeats_no_graph(tmp_path):
    def program(x):
        unused = tg.exp(x)  # noqa: F841
        return tg.sin(x) + tg.sin(x)

    with tg.debugging.dump_graphs(tmp_path):
        tg.function(program)(tg.ones([2]))
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    names = [name for name in sorted(texts) if "-program." in name]
    assert [name.partition("-")[2] for name in names[:4]] == [
        "program.traced.tgir",
        "program.shared.tgir",
        "program.pruned.tgir",
        "program.specialised.unchanged",
    ]
    assert [texts[name].count(" = ") for name in names[:3]] == [4, 3, 2]
    assert texts[names[3]] == f"as in {names[2]}\n"


def test_checks_of_numbers_are_a_pass(tmp_path):
    with tg.debugging.dump_graphs(tmp_path):
        tg.function(lambda x: tg.math.log(x), check_numerics=True)(tg.ones([2]))
    (checked,) = tmp_path.glob("*.checked.tgir")
    assert "is_finite" in checked.read_text()


def test_a_directory_that_was_used_goes_on(tmp_path):
    (tmp_path / "0041-old.traced.tgir").write_text("kept")
    (tmp_path / "notes.txt").write_text("no number")
    with tg.debugging.dump_graphs(tmp_path):
        tg.function(lambda x: x * 7.0)(1.0)
    numbers = sorted(int(path.name[:4]) for path in tmp_path.glob("*-*"))
    assert numbers[:2] == [41, 42] and len(set(numbers)) == len(numbers)
    assert (tmp_path / "0041-old.traced.tgir").read_text() == "kept"


def test_two_that_write_to_one_directory_overwrite_nothing(tmp_path):
    with tg.debugging.dump_graphs(tmp_path), tg.debugging.dump_graphs(tmp_path):
        tg.function(lambda x: x * 11.0)(1.0)
    assert len(list(tmp_path.glob("*.traced.tgir"))) == 2


def test_a_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"dump_graphs: .*file cannot be a folder") as caught:
        tg.debugging.dump_graphs(tmp_path / "file")
    assert "fix: name a directory" in str(caught.value) and "test_dumps.py" in str(caught.value)
    environment = {**os.environ, "TRACEGRAPH_DUMP": str(tmp_path / "file" / "dump")}
    command = [sys.executable, "-c", "import tracegraph as tg; print(tg.ones([1]).numpy())"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[1.]\n")
    assert "RuntimeWarning: TRACEGRAPH_DUMP: " in done.stderr and "Traceback" not in done.stderr


def test_a_directory_that_goes_ends_the_dump(tmp_path):
    dump = tg.debugging.dump_graphs(tmp_path / "dump")
    (tmp_path / "dump").rmdir()
    with pytest.warns(RuntimeWarning, match="no more graphs are written to"):
        assert tg.function(lambda x: x * 13.0)(1.0).numpy() == 13.0
    assert not (tmp_path / "dump").exists()
    dump.stop()


def test_nothing_is_written_afterwards(dumped):
    tg.function(lambda x: x + 5.0)(tg.ones([7]))
    assert sorted(dumped[0].parent.iterdir()) == dumped


def test_dumps_from_the_start(tmp_path):
    code = "import tracegraph as tg; tg.function(lambda x: x * 3.0)(1.0)"
    environment = {**os.environ, "TRACEGRAPH_DUMP": str(tmp_path / "dump")}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
    assert len(list((tmp_path / "dump").glob("*lambda_.traced.tgir"))) == 1
