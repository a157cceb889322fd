"""Parts of the two larger examples: how train_transformer samples, what train_resnet resumes."""

import collections
import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import tracegraph as tg
from tests.example_scripts import EXAMPLES, imported, need

need("matplotlib", "skimage", "tqdm")

#: Tests train several times in one process.
pytestmark = pytest.mark.filterwarnings("ignore:.* calls of .* were traced, which is slow")


@pytest.fixture(scope="module")
def language():
    return imported("train_transformer")


@pytest.fixture(scope="module")
def transformer(language):
    tg.random.set_seed(0)
    model = language.Transformer(vocabulary=20, width=32)
    return model, np.random.default_rng(0).integers(0, 20, (2, 12)).astype(np.int32)


def flops(graph):
    total = re.search(r"^total .* ([\d,]+)$", graph.summary(), re.MULTILINE)[1]
    return int(total.replace(",", ""))


# train_transformer


def test_a_prefix_decides_alone(transformer):
    model, tokens = transformer
    changed = np.where(np.arange(12) < 7, tokens, (tokens + 1) % 20).astype(np.int32)
    before, after = model(tokens).numpy(), model(changed).numpy()
    np.testing.assert_allclose(after[:, :7], before[:, :7], rtol=1e-5, atol=1e-5)
    assert np.abs(after[:, 7:] - before[:, 7:]).min(axis=(1, 2)).max() > 1e-3


def test_cached_logits_are_those_of_the_whole(transformer):
    model, tokens = transformer
    whole = model(tokens).numpy()
    extend = tg.function(model.extend)
    logits, caches = extend(tokens[:, :5], model.make_caches(2), tg.constant(0))
    np.testing.assert_allclose(logits.numpy(), whole[:, 4], rtol=1e-4, atol=1e-4)
    for k in range(5, 12):
        logits, caches = extend(tokens[:, k : k + 1], caches, tg.constant(k))
        np.testing.assert_allclose(logits.numpy(), whole[:, k], rtol=1e-4, atol=1e-4)
    assert extend.experimental_get_tracing_count() == 2  # one for the prompt, one for all tokens


def test_a_token_costs_the_same_everywhere(language, transformer):
    model, _ = transformer
    token, caches = tg.TensorSpec([1, 1], tg.int32), model.make_caches(1)
    one = tg.function(model.extend).get_concrete_function(
        token, caches, tg.TensorSpec([], tg.int32)
    )
    assert any(str(x.type) == "i32[]" for x in one.graph.inputs), "the position is an input"
    context = tg.TensorSpec([1, language.CONTEXT], tg.int32)
    whole = tg.function(model.__call__).get_concrete_function(context)
    assert flops(one.graph) * 50 < flops(whole.graph)


def test_the_vocabulary_joins_what_is_frequent(language):
    text = "the cat sat on the mat, and the rat sat there; that is that.\n" * 3 + "a thin hat"
    vocabulary = language.Vocabulary(sorted(set(text)))
    characters = len(vocabulary.strings)
    vocabulary.learn(text, characters + 12)
    pieces = [list(piece) for piece in language.PIECE.findall(text)]
    for first, second in vocabulary.ranks:
        counts = collections.Counter(pair for p in pieces for pair in itertools.pairwise(p))
        assert counts[first, second] == max(counts.values())
        pieces = [language.joined(piece, (first, second)) for piece in pieces]
    assert vocabulary.strings[characters:] == ["".join(pair) for pair in vocabulary.ranks]
    strings = [string for piece in pieces for string in piece]
    assert [vocabulary.strings[k] for k in vocabulary.encode(text)] == strings
    assert vocabulary.decode(vocabulary.encode("a hat that sat")) == "a hat that sat"


# train_resnet


@pytest.fixture
def resnet(monkeypatch):
    """The example with a network and images so few that it trains in a moment."""
    module = imported("train_resnet")
    monkeypatch.setattr(module, "WIDTHS", (4,))
    monkeypatch.setattr(module, "SIDE", 8)
    monkeypatch.setattr(module, "BATCH", 8)
    images = {module.TRAINING: 5, module.VALIDATION: 2, module.TEST: 4}
    monkeypatch.setattr(module, "IMAGES", images)
    return module


def arguments(folder, *more):
    return ["--out", str(folder), "--epochs", "2", *more]


def saved(folder):
    path = tg.train.latest_checkpoint(folder / "checkpoints/last")
    names = [name for name, _ in tg.train.list_variables(path) if name != "save_counter"]
    return {name: tg.train.load_variable(path, name) for name in names}


def interrupted_at(step):
    """A progress bar that presses Ctrl-C after a step."""

    class Bar(imported("train_resnet").tqdm):
        steps = 0

        def update(self, n=1):
            self.steps += n
            if self.steps == step:
                raise KeyboardInterrupt

    return Bar


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", [2, 7])
def test_what_was_interrupted_ends_where_it_would_have_ended(
    resnet, tmp_path, monkeypatch, capsys, step
):
    assert resnet.main(arguments(tmp_path / "whole")) == 0
    expected = capsys.readouterr().out
    for name in ("draw_learning_curve", "draw_predictions"):  # once is enough
        monkeypatch.setattr(resnet, name, lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(resnet, "tqdm", interrupted_at(step))
        assert resnet.main(arguments(tmp_path / "parts")) == 130
    assert f"saved after {step} steps; --resume goes on" in capsys.readouterr().err
    assert resnet.main(arguments(tmp_path / "parts", "--resume")) == 0
    assert capsys.readouterr().out.splitlines()[:2] == expected.splitlines()[:2]
    again = resnet.main(arguments(tmp_path / "parts", "--resume"))  # of what is complete
    assert again == 0 and capsys.readouterr().out.splitlines()[:2] == expected.splitlines()[:2]
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert whole.keys() == parts.keys() and len(whole) > 30
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_a_training_goes_on_as_it_began(resnet, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(resnet, "tqdm", interrupted_at(1))
    with pytest.raises(SystemExit, match="2"):
        resnet.main(arguments(tmp_path, "--resume"))
    assert f"--resume: there is no training in {tmp_path}" in capsys.readouterr().err
    assert resnet.main(arguments(tmp_path)) == 130
    for option, value, begun in (("epochs", "3", 2), ("blocks", "2", 1), ("seed", "1", 0)):
        capsys.readouterr()
        with pytest.raises(SystemExit, match="2"):
            resnet.main([*arguments(tmp_path, "--resume"), f"--{option}", value])
        assert f"--{option}: the training in {tmp_path} began with {begun}, not {value}" in (
            capsys.readouterr().err
        )


def test_training_stops_early_with_the_best_weights(resnet, tmp_path):
    options = resnet.parsed_arguments([*arguments(tmp_path), "--epochs", "9", "--patience", "2"])
    resnet.begin(options)
    training = resnet.Training(options)
    losses, kernels = iter([3.0, 1.0, 2.0, 1.5, 0.1]), []

    def predict(images, labels):
        training.model(images)
        kernels.append(training.model.classes.kernel.numpy())
        return None, tg.constant(next(losses)), tg.constant(0.5)

    training.predict = predict
    training.run()
    assert (int(training.progress.epoch), int(training.progress.best_epoch)) == (4, 2)
    np.testing.assert_array_equal(training.model.classes.kernel.numpy(), kernels[1])
    assert not np.array_equal(kernels[1], kernels[3])


def test_no_pixel_is_in_two_splits(resnet):
    parts = [resnet.TRAINING, resnet.VALIDATION, resnet.TEST]
    for load in resnet.PHOTOGRAPHS.values():
        photograph = load()
        whole = resnet.within(photograph, (0.0, 1.0))
        joined = np.hstack([resnet.within(photograph, part) for part in parts])
        np.testing.assert_array_equal(joined, whole)


def test_a_missing_package_is_told_in_one_line():
    hidden = "import runpy, sys; sys.modules['skimage'] = None; sys.argv = sys.argv[1:];"
    hidden += "sys.path.insert(0, 'examples'); runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", hidden, "examples/train_resnet.py"]
    root = str(EXAMPLES.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("train_resnet.py: import of skimage")
    assert "pip install -e '.[examples]'" in done.stderr
