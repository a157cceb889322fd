"""Compiled programs on disk: they save compiling, and never change a result."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import tracegraph as tg
from lowering import disk

# Each test decorates one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

X = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)


class Hits:
    """Counts the programs that JAX takes from a cache."""

    def __init__(self):
        self.count = 0

    def __call__(self, event, **_):
        self.count += event == "/jax/compilation_cache/cache_hits"


@pytest.fixture
def hits():
    counter = Hits()
    jax.monitoring.register_event_listener(counter)
    yield counter
    jax.monitoring.unregister_event_listener(counter)


@pytest.fixture
def folder(tmp_path):
    """A folder for compiled programs that is in force."""
    before = tg.config.compilation_cache()
    tg.config.set_compilation_cache(tmp_path / "programs")
    yield tmp_path / "programs"
    tg.config.set_compilation_cache(before)


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def new_function(number=2.0):
    """A function that was never compiled, with the same program each time."""
    return tg.function(lambda x: tg.tanh(x) * number + tg.reduce_sum(x))


def expected(number=2.0):
    return np.tanh(X) * np.float32(number) + X.sum()


def run(folder_or_none=None):
    y = new_function()(X).numpy()
    np.testing.assert_allclose(y, expected(), rtol=1e-6, atol=1e-6)
    return y


def test_nothing_is_kept_by_default(tmp_path):
    assert tg.config.compilation_cache() is None
    run()


def test_of_threads_that_call_a_program_first_one_compiles_it(folder):
    """JAX's cache is one for the process: two compiles at once would lose each other's folder."""
    for number in range(5):
        f = new_function(float(number))
        with ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(lambda i, f=f: f(X[: i % 4 + 1]).shape[0], range(8)))
        assert rows == [1, 2, 3, 3, 1, 2, 3, 3]
        assert len(f.explain_retraces().compiles) == 3
    assert len(files(folder)) == 15


def test_a_program_is_kept_and_taken_again(folder, hits):
    first = run()
    assert hits.count == 0
    assert len(files(folder)) == 1
    second = run()
    assert hits.count == 1
    assert len(files(folder)) == 1
    assert first.tobytes() == second.tobytes()


def test_none_switches_it_off(folder, hits):
    tg.config.set_compilation_cache(None)
    run()
    assert files(folder) == [] if folder.exists() else True
    assert tg.config.compilation_cache() is None


def test_a_path_must_be_one():
    with pytest.raises(tg.errors.TraceError, match="3 is not a path"):
        tg.config.set_compilation_cache(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "name", "magic", "garbage"])
def test_a_damaged_entry_is_compiled_anew_and_mended(folder, hits, damage):
    first = run()
    (path,) = files(folder)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "empty": b"",
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "name": whole[:60] + b"x" + whole[61:],
            "magic": b"T" + whole[1:],
            "garbage": os.urandom(1000),
        }[damage]
    )
    assert run().tobytes() == first.tobytes()
    assert hits.count == 0
    assert path.read_bytes()[: len(disk._MAGIC)] == disk._MAGIC
    run()
    assert hits.count == 1


def test_the_entry_of_another_program_is_not_taken(folder, hits):
    new_function(2.0)(X)
    (path,) = files(folder)
    new_function(3.0)(X)
    (other,) = set(files(folder)) - {path}
    path.write_bytes(other.read_bytes())
    np.testing.assert_allclose(new_function(2.0)(X).numpy(), expected(2.0), rtol=1e-6, atol=1e-6)
    assert hits.count == 0


def plus(table):
    return lambda x: x + table


def test_every_number_of_a_constant_is_part_of_the_key():
    keys = set()
    for place in (0, 1, 2500, 4999):
        table = np.arange(5000, dtype=np.float32)
        table[place] += 1
        keys.add(disk._key(jax.jit(plus(table)).lower(X[0, 0]), {}))
    assert len(keys) == 4


def test_versions_formats_and_flags_are_part_of_the_key(folder, hits, monkeypatch):
    run()
    disk._versions.cache_clear()
    monkeypatch.setattr(disk, "FORMAT", disk.FORMAT + 1)
    run()
    disk._versions.cache_clear()
    monkeypatch.setattr(disk, "__version__", "another")
    run()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    run()
    monkeypatch.setattr(disk, "_processor", lambda: "another")
    run()
    disk._versions.cache_clear()
    assert hits.count == 0
    assert len(files(folder)) == 5
    assert len({path.parent for path in files(folder)}) == 3


def test_options_of_the_compiler_are_part_of_the_key():
    lowered = jax.jit(lambda x: x + 1).lower(X)
    keys = {disk._key(lowered, {"xla_disable_hlo_passes": x}) for x in ("", "cse_barrier_expander")}
    assert len(keys) == 2


@pytest.mark.filterwarnings("ignore:5 of the last")
def test_a_folder_that_cannot_be_made_is_a_warning_and_no_more(tmp_path):
    (tmp_path / "file").write_text("no folder")
    tg.config.set_compilation_cache(tmp_path / "file")
    try:
        with pytest.warns(UserWarning, match="compiled programs cannot be kept in") as caught:
            run()
            run()
        told = [x for x in caught if "cannot be kept" in str(x.message)]
        assert len(told) == 1
        assert told[0].filename == __file__
    finally:
        tg.config.set_compilation_cache(None)


def test_a_full_disk_is_a_warning_and_leaves_nothing_behind(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device") as caught:
        run()
        run()
    assert len(caught) == 1
    assert files(folder) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    # Another process may still write the younger one, and the last one is not ours.
    old, young, other = (tmp_path / name for name in (".tracegraph-0", ".tracegraph-1", "tmp0"))
    for path in (old, young, other):
        path.write_bytes(b"half a prog")
    for path in (old, other):
        os.utime(path, (0, 0))
    disk.put(tmp_path / "program", b"whole")
    assert sorted(x.name for x in tmp_path.iterdir()) == [".tracegraph-1", "program", "tmp0"]


def test_an_entry_that_cannot_be_read_is_a_warning(folder):
    run()
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="compiled programs cannot be kept"):
        run()


def test_an_entry_that_another_user_can_write_is_not_run(folder, hits):
    """It is machine code."""
    first = run()
    (path,) = files(folder)
    path.chmod(0o666)
    with pytest.warns(UserWarning, match="another user can write to it"):
        assert run().tobytes() == first.tobytes()
    if os.getuid() == 0:
        path.chmod(0o644)
        os.chown(path, 12345, 12345)
        tg.config.set_compilation_cache(folder)  # anew
        with pytest.warns(UserWarning, match="another user can write to it"):
            run()
    assert hits.count == 0


def test_settings_of_jax_stay_as_they_are(folder, tmp_path):
    before = dict(jax.config.values)
    run()
    run()
    assert dict(jax.config.values) == before


def test_settings_of_jax_stay_where_compiling_fails(folder, monkeypatch):
    before = dict(jax.config.values)

    class Failing:
        def as_text(self):
            return "text"

        def compile(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        disk.compile_with_cache(Failing(), {})
    assert dict(jax.config.values) == before


def test_state_and_wide_types_are_kept_too(folder, hits):
    for _ in range(2):
        v = tg.Variable(np.arange(3.0))

        @tg.function
        def step(x):
            v.assign_add(x * 2.0)  # noqa: B023 - it is called in the same round
            return tg.reduce_sum(v)  # noqa: B023

        for count in (1, 2, 3):
            total = step(np.ones(3))
            assert float(total) == 3 + 6 * count
        np.testing.assert_array_equal(v.numpy(), np.arange(3.0) + 6)
    assert hits.count >= 1


def test_a_program_that_calls_python_is_not_kept(folder):
    f = tg.function(lambda x: tg.py_function(lambda y: y.numpy() + 1, [x], tg.float32))
    f(X)
    kept = len(files(folder))
    np.testing.assert_array_equal(f(X).numpy(), X + 1)
    assert len(files(folder)) == kept == 0


SCRIPT = """
    import jax, numpy as np, tracegraph as tg
    hits = []
    jax.monitoring.register_event_listener(lambda e, **_: hits.append(e.endswith("cache_hits")))
    tg.random.set_seed(1)
    model, optimizer = tg.layers.Dense(3), tg.optimizers.SGD(0.01)

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    x = np.linspace(0, 1, 20).astype(np.float32).reshape(5, 4)
    for _ in range(3):
        loss = step(x, np.arange(5, dtype=np.int32) % 3)
    print(sum(hits), loss.numpy().tobytes().hex(), model.trainable_variables[0].numpy().sum())
"""


def start(folder, **environment):
    environment = {**os.environ, "TRACEGRAPH_CACHE": str(folder), **environment}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    cwd = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, env=environment, cwd=cwd, stdout=subprocess.PIPE, text=True)


def result(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    hits, *values = out.split()
    return int(hits), values


def test_processes_share_a_folder_at_once_and_a_later_one_compiles_nothing(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    found = [result(process)[1] for process in processes]
    assert found[0] == found[1]
    kept = files(tmp_path)
    assert len(kept) == 2  # of the first weights, and of the step
    for path in kept:
        assert disk._read(path) is not None, path
    assert result(start(tmp_path)) == (len(kept), found[0])
    assert files(tmp_path) == kept


def test_jax_keeps_a_cache_of_its_own_beside_ours(tmp_path):
    script = f"""
        import jax, numpy as np, tracegraph as tg
        from pathlib import Path
        jax.config.update("jax_compilation_cache_dir", {str(tmp_path / "jax")!r})
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        tg.config.set_compilation_cache({str(tmp_path / "ours")!r})
        def count(name):
            return len([p for p in Path({str(tmp_path)!r}, name).rglob("*") if p.is_file()])
        x = np.ones(4, np.float32)
        jax.jit(lambda x: x * 3 + 1)(x)
        kept = count("jax")
        assert kept >= 1, kept
        tg.function(lambda x: tg.sin(x) * 3 + 1)(x).numpy()
        assert (count("jax"), count("ours")) == (kept, 1), (count("jax"), count("ours"))
        jax.jit(lambda x: x * 5 + 2)(x)
        assert count("jax") > kept and count("ours") == 1
    """
    cwd = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=cwd, check=True)
