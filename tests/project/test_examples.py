"""The examples in a short form: what they write and print. train_digits has its own tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracegraph as tg
from tests.example_scripts import EXAMPLES, imported, need, refusal

need("matplotlib", "scipy", "skimage", "sklearn", "statsmodels", "tqdm")

ROOT = Path(__file__).resolve().parents[2]
SHORT = {
    "reaction_diffusion": ["--steps", "3", "--every", "16"],
    "physics_informed": ["--steps", "20"],
    "newton_hessian": ["--steps", "3", "--hidden", "2"],
    "save_and_go_on": ["--epochs", "2"],
    "clip_gradients": [],
    "character_lstm": ["--steps", "60", "--width", "32"],
    "actor_critic": ["--episodes", "30"],
    "train_transformer": ["--steps", "25", "--width", "32"],
    "train_resnet": ["--epochs", "1"],
    "co2_ode": ["--steps", "12", "--every", "12"],
    "weak_scaling": ["--devices", "8", "--width", "128"],
}
#: What a machine that is busy makes of the compile of a large program.
NOTE = re.compile(r"^tracegraph: the first run of .* slow compile\n", re.MULTILINE)


def run(example, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


def run_short(example, out, *arguments):
    done = run(example, *SHORT[example], "--out", str(out), *arguments)
    assert (done.returncode, NOTE.sub("", done.stderr)) == (0, "")
    return done.stdout


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_reaction_diffusion(tmp_path, capsys):
    # In this process, which has imported what it draws with.
    imported("reaction_diffusion").main([*SHORT["reaction_diffusion"], "--out", str(tmp_path)])
    text = capsys.readouterr().out
    steps = re.findall(r"Newton iterations (\d+)  residual (\S+)  colours (\d+)  nnz (\d+)", text)
    assert len(steps) == 3
    points = 22 * 26
    entries = 2 * points + 2 * points + 2 * (4 * points - 2 * (22 + 26))
    for iterations, residual, colors, nnz in steps:
        assert int(iterations) <= 5 and float(residual) < 1e-8
        assert int(colors) <= 10 and int(nnz) == entries
    order = float(re.search(r"order ([\d.]+)", text)[1])
    assert 1.7 < order < 2.5
    assert is_picture(tmp_path / "reaction_diffusion.png") and is_picture(tmp_path / "newton.png")
    assert sorted(path.name for path in (tmp_path / "frames").iterdir()) == [
        "000.png",
        "001.png",
        "002.png",
    ]


@pytest.mark.sweep
def test_physics_informed(tmp_path):
    text = run_short("physics_informed", tmp_path)
    first, last = re.search(r"loss (\S+) after one step, (\S+) after 20", text).groups()
    assert float(last) < float(first)
    assert float(re.search(r"relative L2 error: ([\d.]+)%", text)[1]) < 100
    assert is_picture(tmp_path / "solution.png") and is_picture(tmp_path / "training.png")


@pytest.mark.sweep
def test_newton_hessian(tmp_path):
    text = run_short("newton_hessian", tmp_path)
    start = float(re.search(r"at the start: ([\d.]+)", text)[1])
    newton = float(re.search(r"Newton steps: ([\d.]+)", text)[1])
    descent = float(re.search(r"gradient steps of rate \S+: ([\d.]+)", text)[1])
    assert newton < descent < start
    for name in ("hessian.png", "losses.png", "examples.png"):
        assert is_picture(tmp_path / name)


@pytest.mark.sweep
def test_save_and_go_on(tmp_path):
    text = run_short("save_and_go_on", tmp_path)
    saved, loaded, last = map(float, re.findall(r"test accuracy ([\d.]+)%", text))
    assert saved == loaded > 60 and last > saved - 5
    before, after = map(float, re.findall(r"([\d.]+)% (?:of the digits|with a change)", text))
    assert before == pytest.approx(100 - last, abs=0.1) and after > before
    assert is_picture(tmp_path / "learning_curve.png") and is_picture(tmp_path / "adversarial.png")
    model = tg.saved_model.load(tmp_path / "model")
    assert len(model.accuracies) == 4 and int(model.optimizer.iterations) == 4 * (1437 // 32)
    graphs = next((tmp_path / "model").glob("*.tgir")).read_text("utf-8")
    assert "at save_and_go_on.py:" in graphs and str(ROOT) not in graphs


def test_a_second_process_that_fails(tmp_path):
    with pytest.raises(tg.errors.LoadError, match=str(tmp_path / "model")):
        imported("save_and_go_on").main(["--go-on", "--out", str(tmp_path)])


def test_clip_gradients(tmp_path):
    text = run_short("clip_gradients", tmp_path)
    gradients = re.findall(r"^gradient \w+ \w+: ([\d.]+)$", text, re.MULTILINE)
    assert gradients == ["4.0", "2.0", "2.0"]
    assert "the custom gradient of @clip_gradients was left out" in text
    files = list((tmp_path / "clip").iterdir())
    assert sum(file.stat().st_size for file in files) < 5000


@pytest.mark.sweep
def test_character_lstm(tmp_path):
    text = run_short("character_lstm", tmp_path)
    before, after = re.search(r"([\d.]+) bits each before training, ([\d.]+) after", text).groups()
    assert float(after) < 5.0 < float(before) < 6.5
    sentences = re.findall(r"^> (.*)$", text, re.MULTILINE)
    assert len(sentences) == 3
    for sentence in sentences:
        ends = sentence.endswith(".") and sentence.count(".") == 1
        assert sentence.startswith("the ") and (ends or len(sentence) == 304)
    assert is_picture(tmp_path / "loss.png")


@pytest.mark.sweep
def test_train_transformer(tmp_path):
    text = run_short("train_transformer", tmp_path)
    before = re.search(r"([\d.]+) bits per character before training", text)[1]
    after = re.search(r"([\d.]+) after 25 steps", text)[1]
    assert float(after) < 3.4 < float(before) < 4.0
    assert text.startswith("The ") and len(text.partition(" parameters, ")[0]) > 127
    assert is_picture(tmp_path / "loss.png")


ON_8_DEVICES = ["--mesh", "data=4,model=2", "--virtual-devices", "8"]


@pytest.mark.sweep
def test_weights_of_the_transformer_are_divided(tmp_path):
    plan = ["--costs-alone", "--plan", "zero", "--width", "32", "--out", str(tmp_path)]
    done = run("train_transformer", *plan, *ON_8_DEVICES)
    assert done.returncode == 0, done.stderr
    numbers = re.search(r"^variables +([\d,]+) +([\d,]+)$", done.stdout, re.MULTILINE).groups()
    own, whole = (int(number.replace(",", "")) for number in numbers)
    assert own <= whole / 8 * 1.05
    assert re.search(r"^all-gather +train_transformer\.py:\d+ ", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_two_processes_train_the_transformer(tmp_path):
    launch = ["-m", "tracegraph", "launch", "-n", "2", "examples/train_transformer.py"]
    short = ["--steps", "1", "--width", "64", "--batch", "4", "--out", str(tmp_path)]
    command = [sys.executable, *launch, *short, *ON_8_DEVICES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "[0] losses apart from those of one device: " in done.stdout
    assert re.search(r"^\[0\] all-reduce +train_transformer\.py:\d+", done.stdout, re.MULTILINE)
    assert not re.search(r"^\[1\] (?!\[Gloo\])\w", done.stdout, re.MULTILINE), "printed once"
    assert is_picture(tmp_path / "loss.png")


@pytest.mark.sweep
def test_train_resnet(tmp_path):
    text = run_short("train_resnet", tmp_path)
    assert text.startswith("best after epoch 1 of 1: validation accuracy ")
    right, images = map(int, re.search(r"\((\d+) of (\d+)\)", text).groups())
    assert images == 640 and right > 1.5 * images / 8
    assert is_picture(tmp_path / "learning_curve.png") and is_picture(tmp_path / "predictions.png")
    assert tg.train.latest_checkpoint(tmp_path / "checkpoints/last") is not None


@pytest.mark.sweep
def test_actor_critic(tmp_path):
    text = run_short("actor_critic", tmp_path)
    first, last = map(float, re.findall(r"episodes: ([\d.]+)$", text, re.MULTILINE))
    assert first == last > 8.0
    assert is_picture(tmp_path / "episodes.png")


@pytest.mark.sweep
def test_co2_ode(tmp_path):
    text = run_short("co2_ode", tmp_path)
    first, last = map(float, re.findall(r"([\d.]+) ppm (?:at first|after)", text))
    assert first > 10.0 and last < 1.0
    fewest, most = map(int, re.search(r"measurements: (\d+) to (\d+)", text).groups())
    assert 0 < fewest < most
    assert is_picture(tmp_path / "co2.png")


@pytest.mark.sweep
def test_weak_scaling(tmp_path):
    text = run_short("weak_scaling", tmp_path)
    found = re.findall(r"^(data|tensor|zero) +8  (.*?)  .* (\d+\.\d\d)$", text, re.MULTILINE)
    ratios = {(plan, purpose): float(ratio) for plan, purpose, ratio in found}
    assert len(ratios) == 5
    assert 1.0 <= ratios["data", "gradients"] < 1.4  # the embedding is summed twice
    assert 1.0 <= ratios["tensor", "activations"] < 1.4
    assert 2.0 <= ratios["zero", "gradients"] < 2.8  # also an all-reduce for a reduce-scatter
    assert 0.9 < ratios["zero", "weights, twice"] < 1.1


def bad_values(example):
    """Arguments that are refused, and the words that say so."""
    number = [([SHORT[example][0], "0"], "0 is not a positive number")] if SHORT[example] else []
    return [*number, (["--seed", "-1"], "-1"), (["--out", __file__], "cannot be a folder")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("example", SHORT)
def test_a_bad_value_gets_one_line(tmp_path, capsys, example):
    for arguments, words in bad_values(example):
        code, out, err = refusal(example, capsys, "--out", str(tmp_path), *arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and words in err


@pytest.mark.slow
def test_the_waves_are_found(tmp_path):
    text = run("physics_informed", "--out", str(tmp_path)).stdout
    assert float(re.search(r"relative L2 error: ([\d.]+)%", text)[1]) < 3


@pytest.mark.slow
def test_the_pattern_comes_to_rest(tmp_path):
    text = run("reaction_diffusion", "--out", str(tmp_path)).stdout
    assert float(re.findall(r"speed (\S+)", text)[-1]) < 1e-3


@pytest.mark.slow
def test_the_pole_is_balanced(tmp_path):
    text = run("actor_critic", "--out", str(tmp_path)).stdout
    first, last = map(float, re.findall(r"episodes: ([\d.]+)$", text, re.MULTILINE))
    assert last > 2 * first and last >= 475


@pytest.mark.slow
def test_the_text_is_learned(tmp_path):
    text = run("character_lstm", "--out", str(tmp_path)).stdout
    assert float(re.search(r"([\d.]+) after", text)[1]) < 2.5


@pytest.mark.slow
def test_the_manual_is_learned(tmp_path):
    text = run("train_transformer", "--out", str(tmp_path)).stdout
    assert float(re.search(r"([\d.]+) after", text)[1]) < 2.3


@pytest.mark.slow
def test_textures_are_told_apart(tmp_path):
    text = run("train_resnet", "--out", str(tmp_path)).stdout
    assert float(re.search(r"test accuracy: ([\d.]+)%", text)[1]) > 94


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "zero", "tensor"])
def test_devices_change_no_loss(plan, tmp_path):
    options = ["--steps", "10", "--width", "64", "--plan", plan, "--out", str(tmp_path)]
    text = run("train_transformer", *options, *ON_8_DEVICES).stdout
    assert float(re.search(r"one device: ([\d.e-]+) at most", text)[1]) < 1e-4
    assert re.search(r"^on each of 8 devices ", text, re.MULTILINE)
    assert is_picture(tmp_path / "loss.png")
