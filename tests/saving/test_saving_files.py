"""What a save does to its directory: files of the user's stay, nothing counts before all does."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import tracegraph as tg
from tests import damage
from tracegraph.archive import directory, tensors

save, load = tg.saved_model.save, tg.saved_model.load


def with_extra(**files):
    extra = {f"{name}.txt": data for name, data in files.items()}
    return tg.saved_model.SaveOptions(extra=extra)


def names(path):
    return sorted(str(p.relative_to(path)) for p in Path(path).rglob("*") if p.is_file())


class Labelled(tg.Module):
    def __init__(self, path):
        super().__init__()
        self.words = tg.saved_model.Asset(path)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "words.txt").write_text("one two")
    return Labelled(tmp_path / "words.txt")


# Files that were not written here.


def test_files_of_the_users_stay(tmp_path, model):
    """In the folders of a model only what a save wrote goes, by its name and by what it holds."""
    save(model, tmp_path / "m")
    foreign = ["assets/photo.png", "stablehlo/notes.txt", "assets/0123456789ab-mine.txt"]
    for name in foreign:
        (tmp_path / "m" / Path(name).parent).mkdir(exist_ok=True)
        (tmp_path / "m" / name).write_text("mine")
    (copy,) = (tmp_path / "m" / "assets").glob("*-words.txt")
    save(tg.Module(), tmp_path / "m")
    assert all((tmp_path / "m" / name).read_text() == "mine" for name in foreign)
    assert not copy.exists()


@pytest.mark.parametrize("folder", ["assets", "stablehlo", "extra"])
def test_folders_that_are_links_are_not_written_through(tmp_path, model, folder):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "photo.png").write_text("mine")
    save(tg.Module(), tmp_path / "m")
    (tmp_path / "m" / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{folder} is a symbolic link, which is not followed"):
        save(model, tmp_path / "m", options=with_extra(notes=b"1"))
    assert names(tmp_path / "elsewhere") == ["photo.png"]
    (tmp_path / "m" / folder).unlink()
    (tmp_path / "m" / folder).write_text("a file")
    with pytest.raises(ValueError, match=f"{folder} is a file, and a folder is written there"):
        save(model, tmp_path / "m")


@pytest.mark.parametrize("folder", ["assets", "stablehlo"])
def test_folders_of_somebody_else_are_refused(tmp_path, folder):
    (tmp_path / "m" / folder).mkdir(parents=True)
    (tmp_path / "m" / folder / "photo.png").write_text("mine")
    with pytest.raises(ValueError, match=rf"1 other file, such as '{folder}/photo\.png'"):
        save(tg.Module(), tmp_path / "m")
    assert names(tmp_path / "m") == [f"{folder}/photo.png"]


# Saves that are refused.


@pytest.mark.parametrize("is_first", [True, False])
def test_a_refused_save_leaves_what_was_there(tmp_path, model, is_first, monkeypatch):
    if not is_first:
        save(tg.Module(), tmp_path / "m", options=with_extra(notes=b"old"))
    before = names(tmp_path)
    monkeypatch.setattr("tracegraph.archive.limits.MOST_VALUES", 20)
    with pytest.raises(ValueError, match="more than 20 values"):
        save(model, tmp_path / "m", options=with_extra(notes=b"new"))
    assert names(tmp_path) == before and (tmp_path / "m").exists() != is_first
    if not is_first:
        assert (tmp_path / "m/extra/notes.txt").read_bytes() == b"old"


# Extra files.


def test_extra_files_belong_to_their_save(tmp_path):
    """Those of the save before go, and what the user put there, or changed, stays."""
    save(tg.Module(), tmp_path / "m", options=with_extra(notes=b"1", other=b"2", changed=b"3"))
    assert (tmp_path / "m/extra/notes.txt").read_bytes() == b"1"
    assert names(tmp_path / "m/extra") == ["changed.txt", "notes.txt", "other.txt"]
    (tmp_path / "m/extra/mine.bin").write_bytes(b"mine")
    (tmp_path / "m/extra/changed.txt").write_bytes(b"by hand")
    save(tg.Module(), tmp_path / "m", options=with_extra(notes=b"new"))
    assert names(tmp_path / "m/extra") == ["changed.txt", "mine.bin", "notes.txt"]
    assert (tmp_path / "m/extra/notes.txt").read_bytes() == b"new"
    save(tg.Module(), tmp_path / "m")
    assert names(tmp_path / "m/extra") == ["changed.txt", "mine.bin"]
    load(tmp_path / "m", options=tg.saved_model.LoadOptions(verify=True))


def test_extra_files_of_a_writer_that_was_killed_get_their_names(tmp_path):
    """Right behind the commit they wait under names by content; the next save goes on."""
    save(tg.Module(), tmp_path / "m", options=with_extra(notes=b"1"))
    digest = json.loads((tmp_path / "m/tracegraph.json").read_text())["extra"]["notes.txt"][
        "sha256"
    ]
    folder = tmp_path / "m" / "extra"
    (folder / "notes.txt").rename(folder / f"{digest[:12]}-notes.txt")
    (folder / "notes.txt").write_bytes(b"0")
    save(tg.Module(), tmp_path / "m", options=with_extra(more=b"2"))
    assert names(folder) == ["more.txt"]


@pytest.mark.parametrize("name", ["../../out.txt", "", "a\x00b"])
def test_names_of_extra_files_that_lead_elsewhere(tmp_path, name):
    (tmp_path / "out.txt").write_bytes(b"1")
    save(tg.Module(), tmp_path / "m", options=with_extra(notes=b"1"))
    content = damage.manifest(tmp_path / "m")
    content["extra"][name] = content["extra"]["notes.txt"]
    damage.set_manifest(tmp_path / "m", content)
    with pytest.raises(tg.errors.LoadError, match="the file name"):
        load(tmp_path / "m")
    save(tg.Module(), tmp_path / "m")
    assert (tmp_path / "out.txt").exists()


# Readers beside a writer.


def written(kind, path, value):
    """Saves a module of one variable."""
    module = tg.Module()
    module.v = tg.Variable([value] * 4)
    if kind == "model":
        module.f = tg.function(lambda x: value * x, input_signature=[tg.TensorSpec([])])
        save(module, path)
    else:
        tg.train.Checkpoint(m=module).write(path)


def read(kind, path):
    """The values of the variable."""
    if kind == "model":
        return [*load(path).v.numpy()]
    module = tg.Module()
    module.v = tg.Variable([0.0] * 4)
    tg.train.Checkpoint(m=module).restore(path).expect_partial()
    return [*module.v.numpy()]


@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        ("model", directory.Reader, "check_files"),
        ("model", directory.Reader, "checked_bytes"),
        ("model", tensors.TensorFile, "__init__"),
        ("checkpoint", directory.Reader, "check_files"),
        ("checkpoint", tensors.TensorFile, "__init__"),
    ],
)
def test_a_save_while_the_directory_is_read(tmp_path, monkeypatch, kind, place, name):
    path = tmp_path / "m"
    written(kind, path, 1.0)
    inner, saves = getattr(place, name), [2.0, 3.0]

    def after_a_save(*args):
        if saves:
            written(kind, path, saves.pop(0))
        return inner(*args)

    monkeypatch.setattr(place, name, after_a_save)
    assert read(kind, path) == [3.0] * 4


@pytest.mark.parametrize("size", [0, 1, 4, 10, 13])
def test_arrays_are_read_in_blocks(tmp_path, monkeypatch, size):
    monkeypatch.setattr(tensors, "_BLOCK", 16)
    array = np.arange(size, dtype=np.float32)
    save({"a": tg.Variable(array), "b": tg.Variable(-array)}, tmp_path / "m")
    loaded = load(tmp_path / "m")
    (file,) = (tmp_path / "m").glob("weights-*")
    written(*("model", tmp_path / "m", 1.0))  # removes the file, which is held open
    assert not file.exists()
    assert [*loaded["a"].numpy()] == [*array] and [*loaded["b"].numpy()] == [*-array]


def loaded_and_its_weights(path, kind):
    """What reads the value of a model or a checkpoint that was opened, and the file it reads."""
    values = np.arange(100, dtype=np.float32)
    if kind == "model":
        save({"a": tg.Variable(values)}, path)
        loaded = load(path)
        return lambda: loaded["a"].numpy(), next(path.glob("weights-*"))
    tg.train.Checkpoint(a=tg.Variable(values)).write(path)
    reader = tg.train.load_checkpoint(path)
    return lambda: reader.get_tensor("a"), next(path.glob("values-*"))


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
@pytest.mark.parametrize("length", [0, 1, 8, 9, 60, 100, "all but one byte"])
def test_a_file_that_is_cut_after_it_was_opened(tmp_path, kind, length):
    read, file = loaded_and_its_weights(tmp_path / "m", kind)
    whole = file.read_bytes()
    os.truncate(file, length if isinstance(length, int) else len(whole) - 1)
    name = f"{re.escape(str(file))}: the tensor 'a'"
    for _ in range(2):
        with pytest.raises(tg.errors.LoadError, match=f"{name} cannot be read: .* cut short\n"):
            read()
    file.write_bytes(whole)
    assert [*read()] == [*range(100)]


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_file_that_is_overwritten_after_it_was_opened(tmp_path, kind):
    """Be it by another head of the same size, or by other values."""
    read, file = loaded_and_its_weights(tmp_path / "m", kind)
    whole = file.read_bytes()
    file.write_bytes(b"\xff" * len(whole))
    with pytest.raises(tg.errors.LoadError, match=f"{file}: the tensor 'a' was changed"):
        read()
    head = 8 + int.from_bytes(whole[:8], "little")
    file.write_bytes(b"{" * head + whole[head:])
    assert [*read()] == [*range(100)]


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_file_that_is_removed_or_replaced_after_it_was_opened(tmp_path, kind):
    read, file = loaded_and_its_weights(tmp_path / "m", kind)
    (tmp_path / "other").write_bytes(b"other")
    os.replace(tmp_path / "other", file)
    assert [*read()] == [*range(100)]
    file.unlink()
    assert [*read()] == [*range(100)]


def test_what_a_device_refuses_to_read_is_told_with_the_tensor(tmp_path, monkeypatch):
    read, file = loaded_and_its_weights(tmp_path / "m", "model")

    def fill(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tensors.TensorFile, "_fill", fill)
    with pytest.raises(tg.errors.LoadError, match=f"{file}: the tensor 'a' cannot be read: Input"):
        read()


@pytest.mark.parametrize("count", [0, 1, 7])
def test_tensor_files_are_those_of_safetensors(tmp_path, count):
    """Byte for byte: the order by the size of elements, the head, what it is filled up with."""
    dtypes = sorted(tensors._FORMAT_NAMES)[: 2 * count]
    views = {
        f'{name} \u00e9\n"{number}': tensors.storage_view(np.ones(shape).astype(name))
        for name in dtypes
        for number, shape in enumerate([(), (3,), (0, 2), (2, 1, 3)])
    }
    tensors.Shard(views).save(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == safetensors.numpy.save(views)


def test_what_stays_damaged_is_read_once(tmp_path, monkeypatch):
    written("model", tmp_path / "m", 1.0)
    next((tmp_path / "m").glob("weights-*")).unlink()
    inner, reads = directory.Reader.check_files, []
    monkeypatch.setattr(directory.Reader, "check_files", lambda *a: reads.append(1) or inner(*a))
    with pytest.raises(tg.errors.LoadError, match="is missing"):
        load(tmp_path / "m")
    assert len(reads) == 1


WRITER = """
import sys
from tests.saving.test_saving_files import written
print("begins", flush=True)
for number in range(50):
    written(sys.argv[1], sys.argv[2], float(number))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_reader_beside_a_writer_sees_what_is_whole(tmp_path, kind):
    path = tmp_path / "m"
    written(kind, path, 0.0)
    command = [sys.executable, "-c", WRITER, kind, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout and writer.stdout.readline() == "begins\n"
        seen = set()
        while writer.poll() is None:
            values = read(kind, path)
            assert values == values[:1] * 4
            seen.add(values[0])
    assert writer.returncode == 0 and len(seen) > 3


# What is not a path, no bytes, and no file any more.


def test_what_is_no_path():
    for call in (load, lambda path: save(tg.Module(), path), tg.saved_model.contains_saved_model):
        for path in (None, 3, "", b"m"):
            with pytest.raises(ValueError, match=r" is not a path\n  at .*test_saving_files.py"):
                call(path)


@pytest.mark.parametrize("extra", [{"x": "text"}, {3: b""}, [("x", b"")], 3])
def test_extra_files_that_are_no_bytes(extra):
    with pytest.raises(ValueError, match=r"SaveOptions: extra.* not the bytes .*\n  at "):
        tg.saved_model.SaveOptions(extra=extra)


def test_an_asset_whose_file_is_gone(tmp_path, model):
    (tmp_path / "words.txt").unlink()
    with pytest.raises(ValueError, match=r"the asset .*words.txt cannot be saved: .*\n  at "):
        save(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_whether_a_model_was_saved(tmp_path):
    written("model", tmp_path / "m", 1.0)
    written("checkpoint", tmp_path / "c", 1.0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tracegraph.json").write_text("{}")
    found = {name: tg.saved_model.contains_saved_model(tmp_path / name) for name in ("m", "c", "x")}
    assert found == {"m": True, "c": False, "x": False}
    assert not tg.saved_model.contains_saved_model(tmp_path / "other")
