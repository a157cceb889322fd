"""Inspecting checkpoints without the objects that were saved."""

from __future__ import annotations

import difflib
import os
from typing import Any

import numpy as np

from tracegraph.archive.directory import as_path
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.types import DType
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.train.checkpoint_files import Saved, open_checkpoint
from tracegraph.train.checkpoint_state import is_whole, latest_checkpoint

#: The suffix that TensorFlow adds to every name.
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class CheckpointReader:
    """The values of a checkpoint by name: the result of `tg.train.load_checkpoint`."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    def has_tensor(self, tensor_str: str) -> bool:
        """Whether there is a value with this name."""
        return _key(tensor_str) in self._saved.values

    @api_boundary
    def get_tensor(self, tensor_str: str) -> np.ndarray:
        """The value with this name, as an array. Raises ValueError for an unknown name."""
        key = _key(tensor_str)
        if key not in self._saved.values:
            _refuse_name(self._saved, tensor_str)
        return np.array(self._saved.values[key].read())

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes of the values by name."""
        rows = sorted(self._saved.values.items())
        return {key: [int(size) for size in stored.type.shape] for key, stored in rows}  # type: ignore[union-attr]

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """The dtypes of the values by name."""
        return {key: stored.type.dtype for key, stored in sorted(self._saved.values.items())}

    def __repr__(self) -> str:
        return f"<reader of the checkpoint {self._saved.path}: {len(self._saved.values)} values>"


@api_boundary
def load_checkpoint(ckpt_dir_or_file: str | os.PathLike[str]) -> CheckpointReader:
    """Opens a checkpoint, or the latest one of a directory, for inspection.

    >>> path = tg.train.Checkpoint(w=tg.Variable([1.0, 2.0])).write("only_w")
    >>> reader = tg.train.load_checkpoint(path)
    >>> reader.get_variable_to_shape_map(), reader.has_tensor("v")
    ({'w': [2]}, False)
    >>> reader.get_tensor("w")
    array([1., 2.], dtype=float32)
    """
    return _reader("load_checkpoint", ckpt_dir_or_file)


@api_boundary
def list_variables(ckpt_dir_or_file: str | os.PathLike[str]) -> list[tuple[str, list[int]]]:
    """The names and shapes of the values in a checkpoint, or in the latest one of a directory.

    >>> path = tg.train.Checkpoint(w=tg.Variable(tg.zeros([2, 3]))).write("only_w")
    >>> tg.train.list_variables(path)
    [('w', [2, 3])]
    """
    return [*_reader("list_variables", ckpt_dir_or_file).get_variable_to_shape_map().items()]


@api_boundary
def load_variable(ckpt_dir_or_file: str | os.PathLike[str], name: str) -> np.ndarray:
    """The value with this name in a checkpoint, or in the latest one of a directory, as an array.

    Raises ValueError for an unknown name.

    >>> path = tg.train.Checkpoint(w=tg.Variable([1.0, 2.0])).write("only_w")
    >>> tg.train.load_variable(path, "w")
    array([1., 2.], dtype=float32)
    """
    return _reader("load_variable", ckpt_dir_or_file).get_tensor(name)


def _reader(what: str, path: Any) -> CheckpointReader:
    found = as_path(what, path)
    latest = None if is_whole(found) else latest_checkpoint(found)
    return CheckpointReader(open_checkpoint(latest or found))


def _key(name: Any) -> Any:
    return name.removesuffix(_SUFFIX) if isinstance(name, str) else name


def _refuse_name(saved: Saved, name: Any) -> None:
    names = [*saved.values]
    near = difflib.get_close_matches(str(name), names, 3, 0.3) or sorted(names)[:3]
    fail(
        SignatureError,
        f"the checkpoint {saved.path} has no value {shown(name)}",
        fix=f"use a name of tg.train.list_variables, such as {', '.join(map(repr, near))}",
    )
