"""The fuzzer of loading, run in a process of its own, whose memory is limited."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz_loading import known

ROOT = Path(__file__).parents[2]


def fuzz(*options):
    """How often each outcome was, among inputs of a seed. Fails with the input that has a defect:
    `python -m tests.fuzz_loading --only SEED:NUMBER` repeats it."""
    command = [sys.executable, "-m", "tests.fuzz_loading", *options]
    found = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    inputs = re.findall(r"^input (\S+)", found.stderr, re.M)
    assert found.returncode == 0, f"input {inputs[-1:]}\n{found.stderr[-5000:]}\n{found.stdout}"
    return json.loads(found.stdout.splitlines()[-1].partition("} in ")[0] + "}")


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 100), *(pytest.param(seed, 750, marks=pytest.mark.sweep) for seed in (0, 1))],
)
def test_damaged_directories(seed, count):
    """Those that found a defect before, and others."""
    outcomes = fuzz("--known", "--seed", seed, "--count", count)
    assert sum(outcomes.values()) == len(known()) + count
    for hurt in ("bytes", "files", "manifest", "manifest_text", "graphs", "tensors"):
        assert outcomes[f"hurt_{hurt} refused"] > count // 75
    assert outcomes["hurt_graphs accepted"] > count // 30
    assert outcomes["hurt_manifest accepted"] > count // 375


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_damaged_directories():
    fuzz("--seed", 8, "--count", 20_000)
