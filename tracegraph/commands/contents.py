"""The contents of a path: entries to show, run and differentiate, and their surroundings."""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracegraph import nest
from tracegraph.archive.directory import MANIFEST, Reader
from tracegraph.archive.manifest import Entry
from tracegraph.archive.value_encoding import record_kind
from tracegraph.calls.call import Call, as_tuple
from tracegraph.commands.answers import Misuse, refuse_name
from tracegraph.core.source import UNKNOWN
from tracegraph.core.types import BY_SHORT, TOKEN, TensorType, bytes_of_type
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import LoadError, Mismatch, fact_of, fail
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.saved_model import LoadedModule, load
from tracegraph.saved_model.loaded_functions import SignatureFunction, traces_of
from tracegraph.saved_model.loaded_modules import content_of
from tracegraph.saved_model.options import FORMAT, VERSION, LoadOptions
from tracegraph.saved_model.placeholders import entries
from tracegraph.saved_model.storage import Storage, in_directory, manifest_fields
from tracegraph.signatures.signature import Signature, VariableKey, is_tensor_key, leaf_key
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable
from tracegraph.text.parser import parse_module
from tracegraph.text.printer import unique, value_names

#: The prefix of signatures among the entries, even if something else has that name.
SIGNATURES = "signatures"
ROOT = "."


class Input(NamedTuple):
    """An argument of an entry; one that is a Variable is passed as a Variable."""

    name: str
    type: TensorType
    is_variable: bool = False


class NamedGraph(abc.ABC):
    """A named graph: a trace of a function, a signature, or a graph of a text."""

    def __init__(self, name: str, graph: Graph) -> None:
        self.name = name
        self.graph = graph
        self.inputs: list[Input] = []
        #: The results by name, which are the first outputs of the graph.
        self.outputs: dict[str, TensorType] = {}
        #: The Python values that it was traced for, by the names of the arguments.
        self.fixed: dict[str, Any] = {}
        #: The default values of its parameters, by the names of the arguments.
        self.defaults: dict[str, Any] = {}
        #: The Variables that it reads or assigns, other than arguments, by their names in the
        #: graph.
        self.variables: dict[str, Variable] = {}

    def with_graph(self, graph: Graph) -> NamedGraph:
        """The same entry showing another graph."""
        entry = copy.copy(self)
        entry.graph = graph
        return entry

    def computed_by(self, graph: Graph) -> NamedGraph:
        """The same entry, run by another graph with the same inputs and outputs."""
        return self.with_graph(graph)

    def has_defaults_but_for(self, given: Container[str]) -> bool:
        """Whether every Python value that is not given equals the default, which the function uses
        if a call omits it."""
        rest = [(name, value) for name, value in self.fixed.items() if name not in given]
        return all(
            name in self.defaults and leaf_key(self.defaults[name]) == leaf_key(value)
            for name, value in rest
        )

    def default_array(self, name: str) -> np.ndarray | None:
        """An input's default array; a Python number as default belongs to other traces."""
        if name in self.defaults and isinstance(leaf_key(self.defaults[name]), TensorType):
            return host_array(as_tensor(self.defaults[name]))
        return None

    @abc.abstractmethod
    def run(self, arguments: Sequence[Any]) -> list[Tensor]:
        """The results for tensors, or Variables for inputs that are Variables, in input order."""

    def call(self, arguments: Sequence[Any]) -> list[Tensor]:
        """`run`, with the graph's prints sent to standard error: standard output is ours."""
        with contextlib.redirect_stdout(sys.stderr):
            return self.run(arguments)

    @property
    def arguments_text(self) -> str:
        fixed = [f"{name}={value!r}" for name, value in self.fixed.items()]
        return ", ".join([*(f"{x.name}: {x.type}" for x in self.inputs), *fixed])

    @property
    def custom_gradients(self) -> list[tuple[str, str]]:
        """The names of the bodies with custom gradients, and of those gradients."""
        pairs = (
            (op.regions[0].graph.name, op.chosen_gradient.name)
            for op in (node.op for node in self.graph.all_nodes())
            if op.chosen_gradient is not None
        )
        return list(dict.fromkeys(pairs))


class TraceEntry(NamedGraph):
    """A trace of a function, or a signature of one."""

    def __init__(self, name: str, concrete: ConcreteFunction) -> None:
        super().__init__(name, concrete.graph)
        self.concrete = concrete
        request = concrete.request
        keywords = request.tensor_keywords
        names = keywords if len(set(keywords)) == len(keywords) else request.tensor_names
        types = zip(names, concrete.argument_types, strict=True)
        self.inputs = [Input(*row) for row in types]
        for key, leaf, own in zip(request.keys, request.leaves, request.names, strict=True):
            if isinstance(key, VariableKey):
                self.inputs.append(Input(own, key.type, True))
            elif not is_tensor_key(key):
                self.fixed[own] = leaf
        keywords = dict(zip(request.tensor_names, names))
        for own, value in _default_leaves(request.signature):
            self.defaults[keywords.get(own, own)] = value
        self.outputs = dict(zip(_result_names(concrete), (y.type for y in concrete.outputs)))
        names = value_names(concrete.graph)
        handles = concrete.graph.inputs[len(concrete.argument_types) :]
        for handle, variable in zip(handles, concrete.traced.variables):
            if concrete.argument_place(variable) is None:
                self.variables[names[handle].removeprefix("%")] = variable

    def computed_by(self, graph: Graph) -> NamedGraph:
        entry = copy.copy(self)
        entry.graph, entry.concrete = graph, self.concrete.computed_by(graph)
        return entry

    def run(self, arguments: Sequence[Any]) -> list[Tensor]:
        concrete = self.concrete
        tensors = [x for x, own in zip(arguments, self.inputs) if not own.is_variable]
        given = {own.name: x for x, own in zip(arguments, self.inputs) if own.is_variable}
        variables = []
        for variable in concrete.traced.variables:
            place = concrete.argument_place(variable)
            variables.append(variable if place is None else given[concrete.request.names[place]])
        return concrete.results.tensors(concrete.run(tensors, variables))


class SignatureEntry(TraceEntry):
    """A signature: its inputs and outputs have their saved names."""

    def __init__(self, name: str, signature: SignatureFunction) -> None:
        super().__init__(name, signature.concrete)
        tensors = zip(signature.input_names, self.concrete.argument_types, strict=True)
        self.inputs = [
            *(Input(*row) for row in tensors),
            *(x for x in self.inputs if x.is_variable),
        ]
        self.outputs = dict(zip(signature.output_names, self.outputs.values(), strict=True))
        self.defaults = {}


class GraphEntry(NamedGraph):
    """A graph of a text: all its inputs are arguments."""

    def __init__(self, name: str, graph: Graph) -> None:
        super().__init__(name, graph)
        values = value_names(graph)
        names = [values[x].removeprefix("%") for x in graph.inputs]
        self.inputs = [Input(*row) for row in zip(names, graph.input_types, strict=True)]
        self.outputs = {f"output_{i}": y.type for i, y in enumerate(graph.outputs)}

    def run(self, arguments: Sequence[Any]) -> list[Tensor]:
        if TOKEN in self.graph.input_types:
            raise Misuse(
                f"@{self.graph.name} has effects in order, which a text alone cannot run",
                "run the saved model that it belongs to",
            )
        return list(as_tuple(Call(self.graph)(*arguments)))


class SavedVariable(NamedTuple):
    """A Variable of a saved model, as in the manifest: `key` is the name of its value."""

    key: str
    #: Its declared type, in which sizes may be open.
    type: str
    trainable: bool
    #: The type of the saved value.
    shape: tuple[int, ...]
    bytes: int
    digest: str
    #: Reads the saved value.
    read: Callable[[], Any]


class Contents:
    """The contents of a path."""

    kind = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, NamedGraph] = {}

    def find(self, name: str) -> list[NamedGraph]:
        """The traces with this name. Raises Misuse if there are none."""
        found = self.entries.get(name)
        if found is not None:
            return [found]
        refuse_name(
            f"there is no entry {name!r} in {self.path}",
            name,
            list(self.entries),
            f"`tracegraph show {self.path}` lists what is there",
        )

    @property
    def distinct(self) -> list[NamedGraph]:
        """Each graph once, under its first name: a signature is often also a function's trace."""
        found: dict[int, NamedGraph] = {}
        for entry in self.entries.values():
            found.setdefault(id(entry.graph), entry)
        return list(found.values())

    def chosen(self, name: str | None) -> list[NamedGraph]:
        """The traces with this name, or all of them. Raises Misuse if there are none."""
        found = self.distinct if name is None else self.find(name)
        if not found:
            raise Misuse(f"{self.path} holds no graph: no function was traced before it was saved")
        return found

    def one(self, name: str | None) -> NamedGraph:
        """The only trace with this name, or the only one of all. Raises Misuse if there are
        several."""
        found = self.chosen(name)
        if len(found) == 1:
            return found[0]
        what = str(self.path) if name is None else name
        rows = "".join(f"\n    {x.name}  ({x.arguments_text})" for x in found[:20])
        more = f"\n    and {len(found) - 20} more" if len(found) > 20 else ""
        raise Misuse(f"{what} has {len(found)} graphs:{rows}{more}", "choose one with --entry")


class TextContents(Contents):
    """A file of graphs as text."""

    kind = "text"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            graphs = parse_module(path.read_bytes().decode())
        except UnicodeDecodeError as error:
            fail(LoadError, f"{path} is not text: {error}", source=UNKNOWN, cause=error)
        except LoadError as error:
            fix = getattr(error, "fix", "")
            if (path.parent / MANIFEST).is_file():
                fix = f"give the directory: arrays are stored beside the text, `{path.parent}`"
            fail(LoadError, f"{path}: {fact_of(error)}", source=UNKNOWN, fix=fix, cause=error)
        self.entries = {name: GraphEntry(name, graph) for name, graph in graphs.items()}

    def chosen(self, name: str | None) -> list[NamedGraph]:
        """The graph with this name, or the graphs that no other one uses."""
        if name is not None:
            return self.find(name)
        used = {
            id(inner)
            for entry in self.entries.values()
            for inner in entry.graph.graphs()
            if inner is not entry.graph
        }
        return [entry for entry in self.entries.values() if id(entry.graph) not in used]

    def one(self, name: str | None) -> NamedGraph:
        """The graph with this name; by default the last of the text, which is the entry."""
        return super().one(name) if name is not None else list(self.entries.values())[-1]


class SavedContents(Contents):
    """A directory that `tg.saved_model.save` wrote."""

    kind = "saved model"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader = Reader(path)
        self.root = load(path)
        self.manifest = self.reader.entry.pairs()
        self.objects: list[tuple[str, Module]] = []
        #: The functions by their paths, once for each occurrence.
        self.functions: list[tuple[str, Function | ConcreteFunction]] = []
        for found, value in _walk(self.root):
            if isinstance(value, Module):
                self.objects.append((found, value))
            else:
                self.functions.append((found, value))
        self.traces = {name: _traces(name, value) for name, value in self.functions}
        for traces in self.traces.values():
            self.entries.update((entry.name, entry) for entry in traces)
        self.signatures = [
            SignatureEntry(f"{SIGNATURES}/{name}", signature)
            for name, signature in self.root.signatures.items()
        ]
        self.entries.update((entry.name, entry) for entry in self.signatures)

    def find(self, name: str) -> list[NamedGraph]:
        if self.traces.get(name):
            return list(self.traces[name])
        if name in self.entries:
            return [self.entries[name]]
        under = self.entries.get(f"{SIGNATURES}/{name}")
        if under is not None:
            return [under]
        value = _at(self.root, name)
        if isinstance(value, (Function, ConcreteFunction)):
            traces = _traces(name, value)
            if traces:
                return list(traces)
            raise Misuse(
                f"{name} was never traced before {self.path} was saved, so it has no graph",
                "give it an input_signature, or call it before saving",
            )
        named = [own for own, value in self.functions if value.name == name and self.traces[own]]
        if len(named) == 1:
            return list(self.traces[named[0]])
        if named:
            raise Misuse(f"several functions are called {name}: {', '.join(named)}")
        return super().find(name)

    @property
    def files(self) -> dict[str, Entry]:
        return self.manifest["files"].pairs()

    @property
    def variables(self) -> list[SavedVariable]:
        """The Variables, in the order of the manifest."""
        weights = self.manifest["weights"].value
        found = []
        for row in self.manifest["variables"].value:
            weight = weights[row["weight"]]
            type = TensorType(BY_SHORT[weight["dtype"]], tuple(weight["shape"]))
            size = bytes_of_type(type)
            found.append(
                SavedVariable(
                    row["weight"],
                    row["type"],
                    row["trainable"],
                    tuple(weight["shape"]),
                    size,
                    weight["sha256"],
                    functools.partial(self._value, row["weight"]),
                )
            )
        return found

    def _value(self, key: str) -> Any:
        return self.storage.weights[key].read()

    @functools.cached_property
    def storage(self) -> Storage:
        self.reader.check_format(FORMAT, VERSION)
        return in_directory(self.reader, manifest_fields(self.reader.entry), LoadOptions())


def open_path(path: Path) -> Contents:
    """The contents of a path. Raises Misuse if there is nothing, LoadError if it is damaged."""
    if not path.exists():
        raise Misuse(
            f"there is no file or directory {path}",
            "give a directory that tg.saved_model.save wrote, or a file with the text of a graph",
        )
    return SavedContents(path) if path.is_dir() else TextContents(path)


def _traces(name: str, value: Function | ConcreteFunction) -> list[NamedGraph]:
    """The entries of a function: under its own name for a single trace, else `name:0`, `name:1`,
    ..."""
    traces = traces_of(value)
    names = [name] if len(traces) == 1 else [f"{name}:{i}" for i in range(len(traces))]
    return [TraceEntry(*row) for row in zip(names, traces, strict=True)]


def _walk(root: LoadedModule) -> Iterator[tuple[str, Any]]:
    """Modules, each once, and functions, with their paths of attributes, keys and indices."""
    content = content_of(root)
    if content is not root:
        is_function = isinstance(content, (Function, ConcreteFunction))
        queue: list[tuple[str, Any]] = [(content.name if is_function else "", content)]
    else:
        queue = [("", root)]
    seen: set[int] = set()
    while queue:
        path, value = queue.pop(0)
        if isinstance(value, (Function, ConcreteFunction)):
            yield path, value
        elif isinstance(value, Module):
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield path or ROOT, value
        queue.extend((f"{path}/{name}" if path else name, x) for name, x in _children(value))


def _children(value: Any) -> list[tuple[str, Any]]:
    """The contents of a module or container, by the path components that lead to them."""
    if isinstance(value, Module):
        return value._ordered_attributes()
    return [(str(name), item) for name, item in entries(value) or []]


def _at(root: LoadedModule, path: str) -> Any:
    """The object at a path, or None. One object may have several paths."""
    value: Any = content_of(root)
    for step in path.split("/"):
        value = dict(_children(value)).get(step)
    return value


def _default_leaves(signature: Signature) -> list[tuple[str, Any]]:
    """The leaves of the default values, by their names as arguments."""
    parameters = signature.parameters.parameters.values()
    values = {p.name: p.default for p in parameters if p.default is not p.empty}
    try:
        leaves, structure = nest.flatten_structure(((), values))
    except Mismatch:  # not a structure of arguments: each call must pass another value
        return []
    return list(zip(signature.leaf_names(structure), leaves, strict=True))


def _result_names(concrete: ConcreteFunction) -> list[str]:
    """The unique names of the results: those of a dict, else `output_0` and so on."""
    packed = concrete.results.pack(range(concrete.traced.result_count))
    is_named = isinstance(packed, dict) or record_kind(packed) is not None
    return unique(
        "_".join(steps if is_named else ("output", *(steps or ("0",))))
        for steps in _leaf_paths(packed)
    )


def _leaf_paths(value: Any) -> list[tuple[str, ...]]:
    """The path components of each tensor of a result, in tensor order."""
    found: dict[int, tuple[str, ...]] = {}
    stack: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while stack:
        steps, item = stack.pop()
        if type(item) is int:
            found[item] = steps
        stack.extend(((*steps, step), inner) for step, inner in _children(item))
    return [found[number] for number in sorted(found)]
