"""Dumps: one file per pass, and the user's lines in what XLA makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracegraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")
ROOT = Path(__file__).parent.parent


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
    for stage in ("traced", "simplified", "specialised", "stablehlo", "optimized_hlo"):
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


def test_nothing_is_written_afterwards(dumped):
    tg.function(lambda x: x + 5.0)(tg.ones([7]))
    assert sorted(dumped[0].parent.iterdir()) == dumped


def test_dumps_from_the_start(tmp_path):
    code = "import tracegraph as tg; tg.function(lambda x: x * 3.0)(1.0)"
    environment = {**os.environ, "TRACEGRAPH_DUMP": str(tmp_path / "dump")}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
    assert len(list((tmp_path / "dump").glob("*lambda_.traced.tgir"))) == 1
