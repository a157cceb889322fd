"""A process that is killed while it saves a model leaves the old one or the new one, no mix."""

import os
import pathlib

import pytest

import tracegraph as tg
from tests.generations import Generation, files, model_of, save_model
from tests.killing import Kills


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Saver:
    """Saves generation after generation to one path, and tells of each when it is there."""

    def run(self, tell):
        number = tg.saved_model.load("model").number if os.path.exists("model") else 0
        tell(number)
        while True:
            number += 1
            save_model(number, "model")
            tell(number)


def test_a_kill_at_any_moment_leaves_one_generation():
    told = 0
    save_model(0, "model")
    with Kills(__file__) as kills:
        for _ in range(30):
            last = kills.strike()
            assert last >= told
            told = model_of("model")
            assert told in (last, last + 1)
    assert told > 20
    for path in ("model", "other"):
        save_model(0, path)
    assert files("model") == files("other")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_safetensors_was_writing_is_no_obstacle_and_goes(is_first):
    """What a kill inside of safetensors left, with which earlier versions wrote: it writes to such
    a name, and renames that."""
    if not is_first:
        tg.saved_model.save(Generation(0), "model")
    os.makedirs("model", exist_ok=True)
    pathlib.Path("model/.tmpwDoV6h").write_bytes(b"half")
    tg.saved_model.save(Generation(1), "model")
    assert not os.path.exists("model/.tmpwDoV6h")
