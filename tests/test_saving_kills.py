"""A process that is killed while it saves a model leaves the old one or the new one, no mix."""

import hashlib
import json
import os
import pathlib

import numpy as np
import pytest

import tracegraph as tg
from tests.killing import Kills


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Generation(tg.Module):
    """Has its number in two variables and in two constants of its graph: one that stands in the
    text, and one that is too large for it."""

    def __init__(self, number):
        super().__init__()
        self.small = tg.Variable(np.int64(number))
        self.large = tg.Variable(np.full(50_000, number, np.float32))
        self.number = number

    @tg.function(input_signature=[])
    def constants(self):
        inline = tg.constant(self.number, tg.int64)
        return inline, tg.constant(np.full(1000, self.number, np.int64))


class Saver:
    """Saves generation after generation to one path, and tells of each when it is there."""

    def run(self, tell):
        number = tg.saved_model.load("model").number if os.path.exists("model") else 0
        tell(number)
        while True:
            number += 1
            save(number, "model")
            tell(number)


def save(number, path):
    """A generation, which stands in a file of its own beside the model too."""
    extra = {"number.txt": str(number).encode(), "same.txt": b"same"}
    options = tg.saved_model.SaveOptions(extra=extra)
    tg.saved_model.save(Generation(number), path, options=options)


def extra_of(path):
    """The number beside a model: under its own name or, right behind a commit, where it waits."""
    listed = json.loads((pathlib.Path(path) / "tracegraph.json").read_text())["extra"]
    digest = listed["number.txt"]["sha256"]
    folder = pathlib.Path(path) / "extra"
    waiting = folder / f"{digest[:12]}-number.txt"
    data = (waiting if waiting.exists() else folder / "number.txt").read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    return int(data)


def generation_of(path):
    """The generation of a model, in all parts of which it must be the same."""
    loaded = tg.saved_model.load(path, options=tg.saved_model.LoadOptions(verify=True))
    inline, beside = loaded.constants()
    found = {loaded.number, int(loaded.small), *loaded.large.numpy()}
    found |= {int(inline), *beside.numpy()}
    found.add(extra_of(path))
    assert len(found) == 1, found
    return loaded.number


def test_a_kill_at_any_moment_leaves_one_generation():
    told = 0
    save(0, "model")
    with Kills(__file__) as kills:
        for _ in range(30):
            last = kills.strike()
            assert last >= told
            told = generation_of("model")
            assert told in (last, last + 1)
    assert told > 20
    for path in ("model", "other"):
        save(0, path)
    assert files("model") == files("other")


def files(path):
    """The names of the files, without those that safetensors writes to; see the next test."""
    return {file.relative_to(path) for file in pathlib.Path(path).rglob("*")}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_safetensors_was_writing_is_no_obstacle_and_goes(is_first):
    """What a kill inside of `save_file` leaves: it writes to such a name, and renames that."""
    if not is_first:
        tg.saved_model.save(Generation(0), "model")
    os.makedirs("model", exist_ok=True)
    pathlib.Path("model/.tmpwDoV6h").write_bytes(b"half")
    tg.saved_model.save(Generation(1), "model")
    assert not os.path.exists("model/.tmpwDoV6h")
