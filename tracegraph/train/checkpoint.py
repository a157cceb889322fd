"""Checkpoint: named objects whose Variables are saved and restored together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tracegraph.archive.directory import as_path, check_file_name
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.source import here
from tracegraph.core.types import int64
from tracegraph.errors import SignatureError, TraceError, fail, kind_of, shown, warn
from tracegraph.ir.builder import at_top_level
from tracegraph.state.deferred import announce
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import current_trace
from tracegraph.train.checkpoint_files import open_checkpoint, write_checkpoint
from tracegraph.train.checkpoint_state import CheckpointState
from tracegraph.train.object_graph import Group, ObjectGraph, parts
from tracegraph.train.restoring import (
    COUNTER,
    CheckpointLoadStatus,
    InitializationOnlyStatus,
    Restoration,
)

Container: TypeAlias = list[Any] | tuple[Any, ...] | Mapping[Any, Any]
#: What a checkpoint holds.
Part: TypeAlias = Module | Group | Variable | Container


class Checkpoint(Group):
    """Saves and restores the Variables of objects: `Checkpoint(model=model, optimizer=optimizer)`.

    - `root`: a Module, list or dict whose parts become those of the checkpoint itself.
    - `objects`: Modules, Variables, and lists, tuples and dicts of them, by name. They become
      attributes of the checkpoint; more may be assigned later.

    Only values are saved, under the names that lead to them from the checkpoint: attributes, list
    indices, and dict keys, which must be strings or integers. An optimizer's slots are saved with
    their Variables. To restore, the objects need parts with the same names.

    Raises ValueError for other kinds of objects.

    >>> model, optimizer = tg.layers.Dense(1), tg.optimizers.Adam(0.1)
    >>> checkpoint = tg.train.Checkpoint(model=model, optimizer=optimizer)
    >>> _ = model(tg.ones([1, 2]))
    >>> path = checkpoint.save("training/ckpt")
    >>> path
    'training/ckpt-1'
    >>> [name for name, shape in tg.train.list_variables(path) if name.startswith("model")]
    ['model/bias', 'model/kernel']
    """

    _root: Any
    #: Created on first use, once, even if several threads and signal handlers need it.
    _save_counter: Variable | None = None

    def __init__(self, root: Module | Group | Container | None = None, **objects: Part) -> None:
        if root is not None and not isinstance(root, (Module, Group, list, tuple, Mapping)):
            _refuse_object("root", root)
        vars(self)["_root"] = root
        for name, value in objects.items():
            setattr(self, name, value)
        parts(self)  # raises if two parts have the same name

    if TYPE_CHECKING:  # objects are attributes

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Part) -> None:
        if hasattr(Checkpoint, name) or name in ("_root", "_save_counter"):
            fail(
                SignatureError,
                f"Checkpoint: an object cannot have the name {name!r}, which has a meaning here",
                fix="give it another name",
            )
        if not isinstance(value, (Module, Group, Variable, list, tuple, Mapping)):
            _refuse_object(name, value)
        super().__setattr__(name, value)
        announce(self)

    def _group_root(self) -> Any:
        return self._root

    def _group_members(self) -> dict[str, Any]:
        own = {k: v for k, v in vars(self).items() if k not in ("_root", "_save_counter")}
        return own if self._save_counter is None else {**own, COUNTER: self._save_counter}

    @property
    def save_counter(self) -> Variable:
        """How often `save` was called; it is saved too, and created on first use."""
        counter = self._save_counter
        if counter is None:
            with at_top_level():
                made = Variable(0, trainable=False, name=COUNTER, dtype=int64)
            counter = vars(self).setdefault("_save_counter", made)
            announce(self)
        return counter

    # Writing.

    @api_boundary
    def write(self, file_prefix: str | os.PathLike[str], options: object = None) -> str:
        """Writes the values to the directory `file_prefix` and returns its path; see `read`.

        An existing checkpoint is replaced atomically: a reader, even after a process was killed,
        finds either the old one or the new one.

        Raises ValueError for objects and paths that cannot be saved, TraceError while tracing, and
        OSError if the system cannot write, which leaves the old checkpoint intact.
        """
        _refuse_while_tracing("write")
        check_options("write", options)
        path = as_path("Checkpoint.write", file_prefix)
        graph = ObjectGraph(self)
        if graph.strangers:
            _warn_of_strangers(graph.strangers)
        write_checkpoint(path, graph)
        return path

    @api_boundary
    def save(self, file_prefix: str | os.PathLike[str], options: object = None) -> str:
        """Writes the values to the directory `file_prefix-1`, the next time `file_prefix-2` and so
        on, and returns its path. It becomes the `tg.train.latest_checkpoint` of its directory.

        `tg.train.CheckpointManager` also removes old checkpoints.
        """
        _refuse_while_tracing("save")
        check_options("save", options)
        prefix = as_path("Checkpoint.save", file_prefix)
        directory, name = os.path.split(prefix)
        check_file_name(f"{name}-1")
        number = count_save(self)
        path = self.write(f"{prefix}-{number}")
        CheckpointState({f"{name}-{number}": time.time_ns()}).write(directory or ".")
        return path

    # Reading.

    @api_boundary
    def read(
        self, save_path: str | os.PathLike[str] | None, options: object = None
    ) -> CheckpointLoadStatus | InitializationOnlyStatus:
        """Restores values that `write` or `save` wrote; see `restore`."""
        _refuse_while_tracing("read")
        check_options("read", options)
        if save_path is None:
            return InitializationOnlyStatus()
        restoration = Restoration(open_checkpoint(as_path("Checkpoint.read", save_path)))
        restoration.begin(self, here())
        return CheckpointLoadStatus(self, restoration)

    @api_boundary
    def restore(
        self, save_path: str | os.PathLike[str] | None, options: object = None
    ) -> CheckpointLoadStatus | InitializationOnlyStatus:
        """Restores the Variables to their saved values.

        All values are checked before any is assigned, and all are assigned atomically. A value
        whose Variable does not exist yet waits for it: layers not called yet, optimizers that have
        taken no step, and attributes assigned later get their values when they create the
        Variable. A list that grows is examined when an attribute of its Module is next assigned.

        - `save_path`: the result of `save`, or None, which does nothing.
        - `options`: None, as in `save`, `read` and `write`: there are no options.

        The result reports the match: `assert_consumed()` raises AssertionError unless all values
        and Variables are matched, `assert_existing_objects_matched()` unless all existing
        Variables have a value, `assert_nontrivial_match()` unless any did. A warning lists the
        values that no Variable took by the time the objects are gone, or the program ends, unless
        `expect_partial()` was called.

        Raises LoadError (a ValueError) for damaged files, and ShapeError or DTypeError (both a
        ValueError here) if Variables differ from the saved ones; nothing is restored then.

        >>> layer = tg.layers.Dense(1)
        >>> _ = layer(tg.ones([1, 2]))
        >>> path = tg.train.Checkpoint(layer=layer).save("one/ckpt")
        >>> other = tg.layers.Dense(1)
        >>> status = tg.train.Checkpoint(layer=other).restore(path)
        >>> bool((other(tg.ones([1, 2])) == layer(tg.ones([1, 2]))).numpy().all())
        True
        >>> _ = status.assert_consumed()
        """
        if save_path is not None:
            _ = self.save_counter  # so that it is restored too
        return self.read(save_path, options)

    def __repr__(self) -> str:
        return f"<tg.train.Checkpoint of {', '.join(self._group_members()) or 'nothing'}>"


def count_save(checkpoint: Checkpoint) -> int:
    """Counts a save, and returns its number, which no other thread or signal handler gets."""
    _refuse_while_tracing("save")
    numbers: list[Any] = []

    def next_number(now: Any) -> Any:
        numbers.append(now + 1)
        return numbers[-1]

    checkpoint.save_counter.update(next_number)
    return int(numbers[-1])  # the last one requested is the one that was stored


def _refuse_object(name: str, value: Any) -> None:
    fail(
        SignatureError,
        f"Checkpoint: {name} is {kind_of(value)}, which holds no variables: {shown(value)}",
        fix="give tg.Modules and tg.Variables, or lists and dicts of them; wrap a number: "
        "tg.Variable(0)",
    )


def check_options(method: str, options: Any) -> None:
    """Raises SignatureError for options: TensorFlow's concern devices and formats."""
    if options is not None:
        fact = f"Checkpoint.{method}: options is {shown(options)}, and there are none"
        fail(SignatureError, fact, fix="leave it out")


def _refuse_while_tracing(method: str) -> None:
    if current_trace() is not None:
        fail(
            TraceError,
            f"Checkpoint.{method} was called while a function is traced, when variables have no "
            "values",
            fix=f"call {method} outside of the @tg.function",
        )


def _warn_of_strangers(strangers: list[Variable]) -> None:
    """Warns of state that is lost because its Variables are not saved."""
    count = len({id(variable) for variable in strangers})
    text = (
        f"what the optimizer keeps for {count} variables, such as {told_name(strangers[0])}, is "
        "not saved, since the variables are not part of the checkpoint. Give the model to the "
        "Checkpoint too: tg.train.Checkpoint(model=model, optimizer=optimizer)"
    )
    warn(text)
