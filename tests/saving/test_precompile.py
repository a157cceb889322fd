"""Programs that lie beside a saved model: they save compiling, and never change a result."""

import contextlib
import json
import os
import shutil
import stat
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import tracegraph as tg
from lowering import disk, precompiled
from tests.functions.test_compilation_cache import Hits
from tracegraph.core.settings import settings

# Each test decorates one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

X = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)


@contextlib.contextmanager
def counted_compiles():
    """Counts the programs that XLA is asked for, be they compiled or read."""
    names = []

    def listen(name, *_, **__):
        names.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: names.count("/jax/core/compile/backend_compile_duration")
    jax.monitoring.unregister_event_duration_listener(listen)


class Model(tg.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tg.Variable(X.T)
        self.count = tg.Variable(0)

    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def __call__(self, x):
        return tg.tanh(x @ self.kernel)

    @tg.function(input_signature=[tg.TensorSpec([3, 4])])
    def step(self, x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(tg.square(self(x)))
        self.kernel.assign_sub(0.1 * tape.gradient(loss, self.kernel))
        self.count.assign_add(1)
        return loss


@pytest.fixture
def hits():
    counter, was_on = Hits(), jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # that of the environment
    jax.monitoring.register_event_listener(counter)
    yield counter
    jax.monitoring.unregister_event_listener(counter)
    jax.config.update("jax_enable_compilation_cache", was_on)
    settings.compiled_folders = ()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A saved model whose two functions are compiled beside it."""
    model = Model()
    model.step.get_concrete_function()
    folder = tmp_path_factory.mktemp("kept") / "model"
    tg.saved_model.save(model, folder)
    model.step.precompile(None, folder)
    model.__call__.precompile([(tg.TensorSpec([3, 4]),)], folder)
    return folder


@pytest.fixture
def saved(kept, tmp_path):
    """A copy of it for one test."""
    return Path(shutil.copytree(kept, tmp_path / "model"))


def programs(folder):
    return [x for x in folder.rglob("compiled/*/*") if x.suffix != ".json"]


def expected():
    return np.tanh(X @ X.T)


def test_a_loaded_model_takes_its_programs(saved, hits):
    assert len(programs(saved)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = tg.saved_model.load(saved, compiled=True)
    np.testing.assert_allclose(loaded(tg.constant(X)), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 1
    losses = [float(loaded.step(tg.constant(X))) for _ in range(3)]
    assert hits.count == 2
    assert int(loaded.count) == 3
    plain = Model()
    np.testing.assert_allclose(losses, [float(plain.step(X)) for _ in range(3)], rtol=1e-5)
    np.testing.assert_allclose(loaded.kernel, plain.kernel, rtol=1e-5, atol=1e-6)


def test_what_was_taken_from_beside_the_model_is_told(saved, hits):
    loaded = tg.saved_model.load(saved, compiled=True)
    loaded(X)
    loaded(X[:2])
    found = loaded.__call__.explain_retraces()
    texts = ["__call__(x: f32[3,4]) from the saved programs", "__call__(x: f32[2,4])"]
    assert [text for text, _ in found.compiles] == texts
    assert f"  {texts[0]}, {found.compiles[0][1]:.3f} s" in str(found)
    plain = tg.saved_model.load(saved)
    settings.compiled_folders = ()
    plain(X)
    assert [text for text, _ in plain.__call__.explain_retraces().compiles] == [
        "__call__(x: f32[3,4])"
    ]


def test_without_the_flag_none_is_taken(saved, hits):
    np.testing.assert_allclose(tg.saved_model.load(saved)(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 0


def test_other_sizes_are_compiled(saved, hits):
    loaded = tg.saved_model.load(saved, compiled=True)
    np.testing.assert_allclose(loaded(X[:2]), expected()[:2], rtol=1e-6, atol=1e-6)
    assert hits.count == 0


def test_a_function_is_ready_after_it(tmp_path, hits):
    f = tg.function(lambda x: tg.tanh(x) * 3.0)
    for size in (5, 6):
        f.get_concrete_function(tg.TensorSpec([size]))
    tg.saved_model.save(f, tmp_path)
    f.precompile([(tg.TensorSpec([5]),), {"x": tg.TensorSpec([6])}], tmp_path)
    assert f.experimental_get_tracing_count() == 2
    with counted_compiles() as count:
        for size in (5, 6):
            y = f(np.ones(size, np.float32))
            np.testing.assert_allclose(y, np.tanh(np.ones(size)) * 3, rtol=1e-6)
    assert count() == 0
    with counted_compiles() as count:
        f(np.ones(7, np.float32))
    assert count() == 1


def test_a_loaded_function_takes_the_programs_of_all_its_traces(tmp_path, hits):
    """Also of functions with one name that call each other: in a model's text, names are unique."""
    inner = tg.function(lambda x: tg.tanh(x) * 3.0)
    f = tg.function(lambda x: inner(x) + inner(x[:2])[0])
    for size in (5, 6):
        f.get_concrete_function(tg.TensorSpec([size]))
    tg.saved_model.save(f, tmp_path)
    f.precompile([(tg.TensorSpec([5]),), (tg.TensorSpec([6]),)], tmp_path)
    loaded = tg.saved_model.load(tmp_path, compiled=True)
    for size in (5, 6):
        y = loaded(np.ones(size, np.float32))
        np.testing.assert_allclose(y, np.full(size, np.tanh(1) * 6), rtol=1e-6)
    assert hits.count == 2


def test_no_pickle_is_read_or_written(saved):
    assert all(not path.read_bytes().startswith(b"\x80") for path in programs(saved))
    (target,) = saved.rglob("target.json")
    assert json.loads(target.read_text()) == disk.target()


def refused(saved, hits, reason):
    """Loads, expects to be told the reason, and results all the same."""
    with pytest.warns(UserWarning, match=reason) as caught:
        loaded = tg.saved_model.load(saved, compiled=True)
    assert len(caught) == 1 and caught[0].filename == __file__
    np.testing.assert_allclose(loaded(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
@pytest.mark.parametrize("place", ["compiled", "target", "model", "around"])
def test_a_folder_that_others_can_write_to_is_not_trusted(saved, hits, mode, place):
    (target,) = (saved / "compiled").iterdir()
    folders = {
        "compiled": target.parent,
        "target": target,
        "model": saved,
        "around": saved.parent,
    }
    folders[place].chmod(mode)
    try:
        refused(saved, hits, f"other users can write to .*whose mode is {mode:o}.*chmod go-w")
    finally:
        folders[place].chmod(0o755)


def test_a_folder_in_which_nobody_replaces_what_is_not_theirs_may_stand_around(saved, hits):
    saved.parent.chmod(0o1777)  # as that of /tmp
    assert precompiled.untrusted(saved / "compiled") is None


def test_a_link_that_leads_elsewhere_after_loading_is_not_followed(saved, hits, tmp_path):
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(saved)
    loaded = tg.saved_model.load(link, compiled=True)
    shutil.copytree(saved, other)
    for path in programs(other):
        path.write_bytes(b"of somebody else")
    link.unlink()
    link.symlink_to(other)
    np.testing.assert_allclose(loaded(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 1


def test_a_folder_of_another_user_is_not_trusted(saved, hits, monkeypatch):
    own = os.getuid()
    monkeypatch.setattr(precompiled.os, "getuid", lambda: own + 1)
    if own == 0:  # what belongs to root is trusted
        for path in (saved, *saved.rglob("*")):
            os.chown(path, 12345, -1)
    refused(saved, hits, "belongs to user .*who can change them")


def test_a_program_file_that_others_can_write_to_is_not_trusted(saved, hits):
    for path in programs(saved):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o666)
    loaded = tg.saved_model.load(saved, compiled=True)
    with pytest.warns(UserWarning, match="other users can write to it"):
        np.testing.assert_allclose(loaded(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 0


def test_a_folder_that_is_opened_to_others_after_loading_is_not_trusted(saved, hits):
    loaded = tg.saved_model.load(saved, compiled=True)
    for folder in (saved / "compiled").iterdir():
        folder.chmod(0o777)
    with pytest.warns(UserWarning, match="other users can write to it"):
        np.testing.assert_allclose(loaded(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 0


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "garbage"])
def test_a_damaged_program_is_compiled_anew_and_named(saved, hits, damage):
    for path in programs(saved):
        whole = path.read_bytes()
        middle = len(whole) // 2
        cut = {"empty": b"", "cut": whole[:middle], "garbage": os.urandom(1000)}
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes(cut.get(damage, flipped))
    loaded = tg.saved_model.load(saved, compiled=True)
    with pytest.warns(
        UserWarning, match=r"the compiled program .* is compiled anew: it is damaged"
    ):
        np.testing.assert_allclose(loaded(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 0


def test_programs_for_something_else_are_refused_with_what_differs(saved, hits, monkeypatch):
    monkeypatch.setattr(disk, "_versions", lambda: "format-1-of-tomorrow")
    refused(saved, hits, "made with other versions: format-1-tracegraph-.*, and now format-1-of-to")


def test_flags_are_a_part_of_the_target(saved, hits, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    told = "XLA_FLAGS='--xla_cpu_enable_fast_math=false', XLA_PYTHON_CLIENT_MEM_FRACTION='0.5'"
    refused(saved, hits, f"made with other flags: .*, and now {told}. What")


def test_variables_of_other_programs_are_no_part_of_the_target(monkeypatch):
    before = disk.target()
    monkeypatch.setenv("TF_VAR_password", "a secret of Terraform's")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    assert disk.target() == before


def test_programs_in_a_folder_of_another_name_are_refused(saved, hits):
    (folder,) = (saved / "compiled").iterdir()
    folder.rename(folder.with_name("other"))
    refused(saved, hits, f"the folder .*/other was {folder.name} when they were made")


def test_there_may_be_none(tmp_path, hits):
    tg.saved_model.save(Model(), tmp_path / "model")
    model = tmp_path / "model"
    with pytest.warns(UserWarning, match=r"there are none. Make them with f.precompile"):
        tg.saved_model.load(model, compiled=True)


def replace_by(kind, path):
    """Puts something else in the place of a file."""
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        elsewhere = path.parents[3] / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / path.name).write_bytes(content)
        elsewhere.chmod(0o777)
        path.symlink_to(elsewhere / path.name)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_plain_file_is_not_read(saved, hits, kind):
    for path in programs(saved):
        replace_by(kind, path)
    loaded = tg.saved_model.load(saved, compiled=True)
    with pytest.warns(UserWarning, match="compiled anew: it is not a regular file") as caught:
        np.testing.assert_allclose(loaded(X), expected(), rtol=1e-6, atol=1e-6)
    assert hits.count == 0 and not any("kept in" in str(w.message) for w in caught)


@pytest.mark.parametrize("damage", ["cut", "deep", "pipe", "folder"])
def test_a_damaged_target_is_not_used(saved, hits, monkeypatch, damage):
    (target,) = saved.rglob("target.json")
    if damage in ("pipe", "folder"):
        replace_by(damage, target)
    else:
        target.write_text({"cut": "[1, 2", "deep": "[" * 200_000}[damage])
    monkeypatch.setattr(disk, "_versions", lambda: "another")
    refused(saved, hits, "there are none that can be read")


def test_a_save_over_a_model_leaves_programs_that_fit_no_more(saved, hits):
    model = Model()
    model.kernel.assign(X.T * 2.0)
    tg.saved_model.save(model, saved)
    loaded = tg.saved_model.load(saved, compiled=True)
    np.testing.assert_allclose(loaded(X), np.tanh(X @ X.T * 2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "signatures", "kind", "text"),
    [
        (lambda x: x, [(tg.TensorSpec([None]),)], ValueError, "precompile needs every size"),
        (lambda x: x, 5, ValueError, "signatures are an iterable of tuples"),
        (lambda x: x, tg.TensorSpec([3]), ValueError, "signatures are an iterable of tuples"),
        (lambda x: x, [5], ValueError, "a signature is a tuple of arguments"),
        (lambda x: x, None, ValueError, "signatures are an iterable of tuples"),
        (lambda x: x, [], ValueError, "there are no signatures, so there is nothing to compile"),
        (lambda x: x[x > 0.0], [(tg.TensorSpec([3]),)], TypeError, "only its runs know"),
        (lambda x: tg.print(x), [(tg.TensorSpec([3]),)], TypeError, "has effects"),
    ],
)
def test_what_cannot_be_precompiled(tmp_path, function, signatures, kind, text):
    with pytest.raises(kind, match=text):
        tg.function(function).precompile(signatures, tmp_path)
    assert not (tmp_path / "compiled").exists()


@pytest.mark.parametrize("place", ["", "absent", "file"])
def test_a_model_must_be_saved_before_its_programs(tmp_path, place):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileNotFoundError, match="precompile: ") as caught:
        tg.function(lambda x: x).precompile([(tg.TensorSpec([3]),)], tmp_path / place)
    assert isinstance(caught.value, tg.errors.LoadError)
    assert "fix: save the model, and then its programs" in str(caught.value)
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


class Other(tg.Module):
    @tg.function
    def __call__(self, x):
        return tg.sin(x)


def test_programs_that_the_model_would_never_use_are_refused(saved):
    before = programs(saved)
    other = tg.function(lambda x: tg.tanh(x))
    for function in (other, Other().__call__):
        with pytest.raises(ValueError, match=r"holds no trace that runs .*\(f32\[3,4\]\)"):
            function.precompile([(tg.TensorSpec([3, 4]),)], saved)
    assert programs(saved) == before


def test_a_signature_that_was_not_traced_when_the_model_was_saved_is_refused(tmp_path):
    model = Other()
    model(tg.ones([3]))
    tg.saved_model.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match=r"holds no trace that runs __call__\(f32\[4\]\)"):
        model.__call__.precompile(
            [(tg.TensorSpec([3]),), (tg.TensorSpec([4]),)], tmp_path / "model"
        )
    assert not (tmp_path / "model" / "compiled").exists()  # not that for 3 either
    model.__call__.precompile([(tg.TensorSpec([3]),)], tmp_path / "model")
    assert len(programs(tmp_path / "model")) == 1


def test_a_loaded_function_is_precompiled(saved, hits):
    tg.saved_model.load(saved).__call__.precompile([(tg.TensorSpec([2, 4]),)], saved)
    loaded = tg.saved_model.load(saved, compiled=True)
    np.testing.assert_allclose(loaded(X[:2]), expected()[:2], rtol=1e-6, atol=1e-6)
    assert hits.count == 1


class Blocks(tg.Module):
    """So many blocks of so much work that it pays to roll them."""

    def __init__(self):
        super().__init__()
        self.kernels = [tg.Variable(tg.eye(16) * 0.1) for _ in range(30)]

    @tg.function(input_signature=[tg.TensorSpec([8192, 16])])
    def __call__(self, x):
        with tg.GradientTape() as tape:
            y = x
            for kernel in self.kernels:
                y = y + tg.sin(tg.tanh(y @ kernel) * 0.5)
            loss = tg.reduce_sum(y)
        return tape.gradient(loss, self.kernels)


def test_a_rolled_function_is_precompiled(tmp_path, hits):
    model, x = Blocks(), tg.ones([8192, 16])
    wanted = model(x)  # at another line than what follows, and slices of stacks have these lines
    assert "# rolled: " in model.__call__.get_concrete_function().graph.as_text()
    tg.saved_model.save(model, tmp_path)
    model.__call__.precompile(None, tmp_path)
    loaded = tg.saved_model.load(tmp_path, compiled=True)
    for found, gradient in zip(loaded(x), wanted):
        np.testing.assert_array_equal(found, gradient)
    assert hits.count == 1


def test_buckets_paths_and_flags(tmp_path):
    padded = tg.function(lambda x: x, bucket_sizes=[8])
    with pytest.raises(TypeError, match="has bucket_sizes"):
        padded.precompile([(tg.TensorSpec([3]),)], tmp_path)
    f = tg.function(lambda x: x, input_signature=[tg.TensorSpec([None])])
    with pytest.raises(ValueError, match="5 is not a path"):
        f.precompile([(tg.TensorSpec([3]),)], 5)
    tg.saved_model.save(f, tmp_path)
    (tmp_path / "compiled").write_text("no folder")
    with pytest.raises(OSError, match="programs cannot be kept in"):
        f.precompile([(tg.TensorSpec([3]),)], tmp_path)
    with pytest.raises(TypeError, match="compiled"):
        tg.saved_model.load(tmp_path, compiled="yes")  # type: ignore[arg-type]
