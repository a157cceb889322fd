"""examples/train_digits.py: what it writes and prints, its options, and what it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracegraph as tg
from tests.example_scripts import imported, need, refusal

need("matplotlib", "sklearn", "tqdm")

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "error", str(ROOT / "examples/train_digits.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.sweep)])
def test_results_are_written(tmp_path, capsys, model):
    """In this process, which has the libraries; `.ci/run` starts the script itself."""
    out = tmp_path / "a" / "b"
    arguments = ["--model", model, "--epochs", "2", "--seed", "3", "--out", str(out)]
    imported("train_digits").main(arguments)
    accuracy = float(re.match(r"test accuracy: ([\d.]+)%", capsys.readouterr().out)[1])
    assert accuracy > 60
    for name in ("learning_curve.png", "confusion_matrix.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    text = (out / "train_step.txt").read_text("utf-8")
    assert "at train_digits.py:" in text and "vjp" in text and "batch" in text
    graph = tg.Graph.from_text(text)
    assert graph.as_text(locations=True) == text.rstrip("\n")
    places = re.sub(r" in [\w/]+", "", text)  # name scopes, such as model/layers/0
    assert not re.search(r"\w/\w", places), "a path of this machine"


@pytest.mark.sweep
def test_a_seed_repeats_the_run(tmp_path):
    first, again, other = (
        run("--epochs", "1", "--seed", seed, "--out", str(tmp_path)).stdout for seed in "112"
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "rnn"], "rnn"),
        (["--epochs", "0"], "0 is not a positive number"),
        (["--epochs", "99999999999999999999"], "99999999999999999999 is more than 1000000"),
        (["--epochs", "many"], "many"),
        (["--seed", "-1"], "-1"),
        (["--seed", "x"], "x"),
        (["--device", "abacus"], "abacus"),
        (["--out", __file__], "cannot be a folder"),
        (["--colour"], "--colour"),
        (["--epochs"], "--epochs"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_a_bad_value_gets_one_line(tmp_path, capsys, arguments, words):
    code, out, err = refusal("train_digits", capsys, "--out", str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and words in err


@pytest.mark.slow
@pytest.mark.parametrize(("model", "target"), [("mlp", 97.0), ("cnn", 98.0)])
def test_mean_accuracy_of_three_seeds(tmp_path, model, target):
    found = [
        run("--model", model, "--seed", str(seed), "--out", str(tmp_path)).stdout
        for seed in range(3)
    ]
    accuracies = [float(re.match(r"test accuracy: ([\d.]+)%", text)[1]) for text in found]
    assert sum(accuracies) / 3 >= target
