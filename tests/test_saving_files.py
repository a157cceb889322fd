"""What a save does to its directory: files of the user's stay, nothing counts before all does."""

import json
from pathlib import Path

import pytest

import tracegraph as tg
from tests import damage

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
    with pytest.raises(ValueError, match=rf"1 other files, such as '{folder}/photo\.png'"):
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
