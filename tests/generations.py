"""Models and checkpoints of a number that stands in all their parts: what is whole has one."""

import functools
import hashlib
import json
import pathlib

import numpy as np

import tracegraph as tg


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


@functools.cache
def _generation(number):
    return Generation(number)


def save_model(number, path="model"):
    """A generation, which stands in a file of its own beside the model too."""
    extra = {"number.txt": str(number).encode(), "same.txt": b"same"}
    options = tg.saved_model.SaveOptions(extra=extra)
    tg.saved_model.save(_generation(number), path, options=options)


def extra_of(path):
    """The number beside a model: under its own name or, right behind a commit, where it waits."""
    listed = json.loads((pathlib.Path(path) / "tracegraph.json").read_text())["extra"]
    digest = listed["number.txt"]["sha256"]
    folder = pathlib.Path(path) / "extra"
    waiting = folder / f"{digest[:12]}-number.txt"
    data = (waiting if waiting.exists() else folder / "number.txt").read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    return int(data)


def model_of(path="model"):
    """The generation of a model, in all parts of which it must be the same."""
    loaded = tg.saved_model.load(path, options=tg.saved_model.LoadOptions(verify=True))
    inline, beside = loaded.constants()
    found = {loaded.number, int(loaded.small), *loaded.large.numpy()}
    found |= {int(inline), *beside.numpy()}
    found.add(extra_of(path))
    assert len(found) == 1, found
    return loaded.number


def save_checkpoint(number, path="kept"):
    """A generation as the only checkpoint that a directory keeps."""
    one = tg.Variable(np.full(50_000, number, np.float32))
    two = tg.Variable(np.full(3, number, np.int64))
    checkpoint = tg.train.Checkpoint(one=one, two=two)
    tg.train.CheckpointManager(checkpoint, path, max_to_keep=1).save(checkpoint_number=number)


def checkpoint_of(path="kept"):
    """The generation of the latest checkpoint, in all values of which it must be the same."""
    latest = tg.train.latest_checkpoint(path)
    assert latest is not None
    found = {number for key in ("one", "two") for number in tg.train.load_variable(latest, key)}
    assert len(found) == 1, found
    return int(found.pop())


#: By the kind its path, what saves a generation there, and what reads it.
KINDS = {
    "model": ("model", save_model, model_of),
    "checkpoint": ("kept", save_checkpoint, checkpoint_of),
}


def files(path):
    """Files and folders below a path."""
    return {str(file.relative_to(path)) for file in pathlib.Path(path).rglob("*")}
