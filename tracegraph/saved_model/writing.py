"""Saving: writes everything reachable from an object as a manifest, graph text, and tensors."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tracegraph.archive import limits, tensors
from tracegraph.archive.directory import Writer, as_path
from tracegraph.archive.layouts import written_layout
from tracegraph.archive.manifest import Entry
from tracegraph.archive.value_encoding import NoData, encoded
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.calls.undifferentiable import lacks_custom_gradients
from tracegraph.core.source import Source
from tracegraph.core.types import as_dtype
from tracegraph.eager.tensor_methods import host_array
from tracegraph.errors import (
    LoadError,
    Mismatch,
    SignatureError,
    fact_of,
    fail,
    kind_of,
    shown,
    warn,
)
from tracegraph.export import stablehlo
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.passes.specialise import bound_names, renamed
from tracegraph.saved_model.loaded_functions import SignatureFunction
from tracegraph.saved_model.loaded_modules import (
    CALLED_IN_PYTHON,
    attribute_problem,
    content_of,
    lost_attributes,
    python_class_name,
)
from tracegraph.saved_model.members import SIGNATURES, Members, is_called_in_python, members_of
from tracegraph.saved_model.names import check_label, is_special, joined, refuse_name
from tracegraph.saved_model.options import FORMAT, VERSION, Asset, SaveOptions, as_options
from tracegraph.saved_model.placeholders import PLAIN_ARRAYS, NotSaved, described, has_hash, opaque
from tracegraph.saved_model.reading import Loader
from tracegraph.saved_model.schema.checks import written_check
from tracegraph.saved_model.schema.functions import written_parameters, written_run_options
from tracegraph.saved_model.schema.open_sizes import SizeRow, name_sizes
from tracegraph.saved_model.schema.replicas import written_replicas
from tracegraph.saved_model.schema.source_lines import LINES, written_lines
from tracegraph.saved_model.schema.structures import written_arguments, written_results
from tracegraph.saved_model.signatures import (
    as_concrete,
    named_signatures,
    output_names,
    refuse_signature,
)
from tracegraph.saved_model.storage import in_memory, manifest_fields
from tracegraph.saved_model.traces import (
    check_readable,
    of_one_mesh,
    saved_graph,
    trace_as_declared,
)
from tracegraph.saved_model.values import write_values
from tracegraph.state.module import Module, variables_and_modules_in
from tracegraph.state.variable import Variable, VariableReference, values_now
from tracegraph.text.printer import Names, graph_symbols, module_text
from tracegraph.tracing.name_scopes import told_name
from tracegraph.version import PRODUCER

#: A function with traces.
Callee: TypeAlias = Function[..., Any] | ConcreteFunction

#: The size in bytes above which arrays in graphs are stored outside the text.
_INLINE_BYTES = 1024


@api_boundary
def save(
    obj: Module | Callee | dict[Any, Any] | list[Any],
    export_dir: str | os.PathLike[str],
    signatures: Callee | Mapping[str, Callee] | None = None,
    options: SaveOptions | None = None,
) -> None:
    """Saves an object to a directory, for `tg.saved_model.load`.

    - `obj`: a `tg.Module`, a `tg.function`, or a dict or list of them. Everything reachable through
      attributes, lists and dicts is saved: modules, Variables, tensors, plain values, and every
      function with all its traces. A function with an `input_signature` is traced if it has not
      been. Variables that a function uses are saved with it, wherever they belong.
    - `export_dir`: a directory that does not exist, is empty, or holds an earlier save. An
      interrupted save leaves either the old state or the new one.
    - `signatures`: a function, or a dict of functions by name, which take tensors by name and
      return a dict of tensors; a single one is named `serving_default`.
    - `options`: a `tg.saved_model.SaveOptions`.

    Python functions, and objects that are not data, are left out; a UserWarning tells of a layer,
    or another module with a call, that is saved without a function. A function that *calls* Python
    code when it runs, or whose trace depends on a Python object, is an error that names its line.
    Raises ValueError for other kinds of objects, and for anything that cannot be saved; OSError if
    the system cannot write, as with a full disk, which leaves the old state intact.

    >>> double = tg.function(lambda x: 2.0 * x, input_signature=[tg.TensorSpec([None])])
    >>> tg.saved_model.save(double, "double")
    >>> tg.saved_model.load("double")(tg.constant([1.5])).numpy()
    array([3.], dtype=float32)
    """
    path = as_path("tg.saved_model.save", export_dir)
    chosen = as_options(SaveOptions, options)
    if not isinstance(obj, (Module, Function, ConcreteFunction)) and type(obj) not in (dict, list):
        fail(
            SignatureError,
            f"{kind_of(obj)} cannot be saved: {shown(obj)}",
            fix="save a tg.Module, a @tg.function, or a dict or list of them",
        )
    saver = _Saver(chosen)
    try:
        content = saver.content(obj, signatures)
        text = saver.text(content)
    except RecursionError as error:
        fact = "what is saved is nested too deep: lists, dicts or modules in each other, or a list "
        fact += "that holds itself"
        fail(SignatureError, fact, fix="keep them side by side", cause=error)
    write_values(path, "weights", saver.values(), partial(saver.write, content, text))
    if isinstance(obj, Module) and is_called_in_python(obj) and not content["functions"]:
        _warn_of_values_alone(obj)


def _warn_of_values_alone(module: Module) -> None:
    name = type(module).__name__
    warn(
        f"the {name} was saved without a function, so it cannot be called once it is loaded: a "
        "call of it runs Python. Before saving, give it one: "
        "module.serve = tg.function(module.__call__, input_signature=[...]). "
        "For its values alone, use tg.train.Checkpoint"
    )


#: Names that safetensors reserves for itself in a file.
_RESERVED = ("__metadata__",)


class _Saver:
    """Walks the objects to save; objects that may occur twice are numbered when first met."""

    def __init__(self, options: SaveOptions) -> None:
        self._options = options
        self._objects = _Table()
        self._functions = _Table()
        self._variables = _Table()
        self._weights: dict[str, Variable] = {}
        self._weight_names = Names(_RESERVED)
        self._arrays: dict[str, np.ndarray] = {}
        self._graphs: list[Graph] = []
        #: Types of Variable arguments, with their manifest entries; names of the arguments' open
        #: sizes.
        self._stand_ins: list[SizeRow] = []
        self._taken: set[str] = set()
        self._assets: list[tuple[dict[str, Any], Path]] = []
        #: The signatures that are also written as programs, by name.
        self._programs: dict[str, ConcreteFunction] = {}

    # The manifest.

    def content(self, root: Any, signatures: Any) -> dict[str, Any]:
        """The manifest without file names."""
        named = named_signatures(root, signatures)
        root = content_of(root)
        self._members = _traced_members(root, named)
        content: dict[str, Any] = {
            "root": self._value(root),
            "signatures": {name: self._signature(name, f) for name, f in sorted(named.items())},
        }
        self._refuse_loss()
        self._order_variables()
        content["objects"] = self._objects.rows
        content["functions"] = self._functions.rows
        content["variables"] = self._variables.rows
        lines = written_lines(self._sources(), self._options.save_debug_info)
        if lines and self._options.locations:
            content[LINES] = lines
        return content

    def text(self, content: dict[str, Any]) -> bytes:
        """The text of all graphs, whose names are put in the manifest. Raises SignatureError if it
        could not be loaded."""
        graphs = self._with_sizes_named()
        symbols = graph_symbols(graphs.values())
        _name_graphs(content, {old: symbols[new] for old, new in graphs.items()})
        text = module_text(graphs.values(), self._options.locations, self._kept).encode() + b"\n"
        if len(text) > limits.TEXT_BYTES:
            fact = f"the graphs are {len(text)} bytes of text, more than {limits.TEXT_BYTES}"
            fail(SignatureError, fact, fix="save the functions in parts")
        try:
            check_readable(graphs.values())
            self._rehearse(content, {symbols[graph]: graph for graph in graphs.values()})
        except (LoadError, Mismatch) as error:
            fact = f"it could not be loaded: {fact_of(error)}"
            fail(SignatureError, fact, fix="save it in parts, or without this value")
        return text

    def _rehearse(self, content: dict[str, Any], graphs: dict[str, Graph]) -> None:
        """Rehearses loading: creates all objects as a reader would, so that nothing unreadable is
        written. Raises LoadError."""
        names = {"graphs": "", "weights": {}, "constants": {}, "files": {}}
        fields = manifest_fields(Entry({**self._head(), **content, **names}, "what is saved"))
        weights = {key: v.tensor_type for key, v in self._weights.items()}
        Loader(fields, in_memory(graphs, weights, self._arrays)).load()

    def _head(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "producer": PRODUCER,
            "custom_gradients": not any(map(lacks_custom_gradients, self._graphs)),
        }

    def values(self) -> dict[str, Tensor]:
        """A consistent snapshot of the values of all Variables."""
        return values_now(self._weights)

    def write(self, content: dict[str, Any], text: bytes, writer: Writer, weights: Any) -> None:
        """Writes the other files, and then the manifest that makes them valid; `weights` is its
        entry for the values of Variables."""
        for name, concrete in self._programs.items():
            data = stablehlo(concrete, platforms=self._options.stablehlo)
            content["signatures"][name]["program"] = writer.add_program(data)
        for place, path in self._assets:
            place["asset"] = writer.add_asset(path)
        for name, data in self._options.extra.items():
            writer.add_extra(name, data)
        writer.commit(
            {
                **self._head(),
                "graphs": writer.add("graph", "tgir", text),
                **content,
                "weights": weights,
                "constants": writer.add_arrays("constants", self._arrays),
            }
        )

    def _with_sizes_named(self) -> dict[Graph, Graph]:
        """The graphs as written, in which the open sizes of Variables have names that are the same
        in every process."""
        variables = zip(self._variables.rows, self._weights.values(), strict=True)
        rows = [*((row, v.tensor_type) for row, v in variables), *self._stand_ins]
        sizes = name_sizes(rows, self._taken)
        done: dict[Graph, Graph] = {}
        return {graph: renamed(graph, sizes, done) if sizes else graph for graph in self._graphs}

    def _sources(self) -> Iterator[Source]:
        """The source locations of all nodes."""
        for graph in dict.fromkeys(inner for x in self._graphs for inner in x.graphs()):
            yield from (node.source for node in graph.nodes)

    def _refuse_loss(self) -> None:
        """Raises SignatureError for a Variable that its Module lists, but that was left out along
        with its holder."""
        for module in self._objects.items():
            for variable in module.variables:
                if self._variables.row_of(variable) is None:
                    _refuse_loss(module, variable)

    def _order_variables(self) -> None:
        """Records the order in which the Variables were created, in which tapes list them."""
        pairs = zip(self._variables.rows, self._weights.values(), strict=True)
        rows = sorted(pairs, key=lambda pair: pair[1].number)
        for place, (entry, _) in enumerate(rows):
            entry["created"] = place

    # Values.

    def _value(self, value: Any) -> Any:
        return encoded(value, self._special, self._inside)

    def _inside(self, value: Any, is_key: bool) -> Any:
        """The JSON of a container's item. A value that is not data leaves a placeholder, and so
        does a dict key that would not be hashable after loading."""
        try:
            entry = self._value(value)
        except NoData as problem:
            return opaque(problem.args[0])
        return opaque(value) if is_key and not has_hash(entry) else entry

    def _special(self, value: Any) -> Any:
        if isinstance(value, Variable):
            return {"variable": self._variable(value)}
        if isinstance(value, VariableReference):
            return {"reference": self._variable(value.deref())}
        if isinstance(value, Module):
            return {"object": self._module(value)}
        if isinstance(value, SignatureFunction):
            return {"function": self._function(value.concrete)}
        if isinstance(value, (Function, ConcreteFunction)):
            return {"function": self._function(value)}
        if isinstance(value, Tensor):
            return {"tensor": self._array(host_array(value))}
        if isinstance(value, NotSaved):
            return opaque(value)
        if type(value) in PLAIN_ARRAYS:
            array = np.asarray(value, value.dtype.newbyteorder("="))
            try:
                as_dtype(array.dtype)
            except TypeError:
                raise NoData(value) from None
            return {"array": self._array(array)}
        if isinstance(value, Asset):
            place: dict[str, Any] = {"asset": ""}
            self._assets.append((place, Path(value.path)))
            return place
        raise NoData(value)

    def _array(self, array: np.ndarray) -> str:
        """The name of an array among the constants; equal bits share one name."""
        view = tensors.storage_view(array)
        head = f"{array.dtype.name}{array.shape}".encode()
        digest = hashlib.sha256(head + tensors.checksum(view).encode()).hexdigest()
        name = f"c{digest[:20]}"
        self._arrays.setdefault(name, np.array(array))
        return name

    def _kept(self, array: np.ndarray) -> str | None:
        return self._array(array) if array.nbytes > _INLINE_BYTES else None

    # Modules.

    def _module(self, module: Module) -> int:
        return self._objects.number(module, lambda: self._module_row(module))

    def _module_row(self, module: Module) -> dict[str, Any]:
        kept: list[list[Any]] = []
        omitted = [list(pair) for pair in lost_attributes(module).items()]
        if is_called_in_python(module):
            omitted.append(["__call__", CALLED_IN_PYTHON])
        for name, value in members_of(module):
            try:
                kept.append([name, self._attribute(module, name, value)])
            except NoData as problem:
                omitted.append([name, described(problem.args[0])])
        hidden = sorted(name for name, _ in kept if name in module._hidden)
        return {
            "class": python_class_name(module),
            "attributes": kept,
            "hidden": hidden,
            "omitted": sorted(omitted),
        }

    def _attribute(self, module: Module, name: str, value: Any) -> Any:
        """The JSON of an attribute. Raises NoData for one with a special meaning in Python."""
        is_call = name == "__call__" and isinstance(value, (Function, ConcreteFunction))
        if is_special(name) and not is_call:
            raise NoData(value)
        problem = attribute_problem(name)
        if problem:
            owner = type(module).__name__
            refuse_name(name, f"of an attribute of {owner}", problem)
        return self._value(value)

    # Variables.

    def _variable(self, variable: Variable, path: str = "") -> int:
        """The number of a Variable; `path` is its name if only a function holds it."""
        return self._variables.number(variable, lambda: self._variable_row(variable, path))

    def _variable_row(self, variable: Variable, path: str) -> dict[str, Any]:
        check_label(variable.base_name, "of a Variable")
        name = self._members.path_of(variable) or path or variable.base_name
        key = self._weight_names.new(name)
        self._weights[key] = variable
        return {
            "weight": key,
            "name": variable.base_name,
            "type": str(variable.tensor_type),
            "trainable": variable.trainable,
            "plain_name": variable.has_plain_name,
            "random_state": variable.is_random_state,
            **written_replicas(variable),
            **written_layout(variable.saved_layout),
        }

    # Functions.

    def _function(self, function: Callee, path: str = "") -> int:
        """The number of a function; `path` is its name if it was made for a signature."""
        return self._functions.number(function, lambda: self._function_row(function, path))

    def _function_row(self, function: Callee, path: str) -> dict[str, Any]:
        check_label(function.name, "of a function")
        path = self._members.path_of(function) or path
        if isinstance(function, ConcreteFunction):
            return self._one_trace(function, path)
        return self._all_traces(function, path)

    def _one_trace(self, concrete: ConcreteFunction, path: str) -> dict[str, Any]:
        return {
            "name": concrete.name,
            "parameters": self._parameters(concrete.request.signature.parameters),
            "traces": [self._trace(concrete, path)],
            "is_concrete": True,
            **written_run_options(concrete.run_options),
        }

    def _all_traces(self, function: Function, path: str) -> dict[str, Any]:
        declared = function.input_signature
        if declared is not None:
            trace_as_declared(function)
        traces = [self._trace(concrete, path) for concrete in self._in_order(of_one_mesh(function))]
        return {
            "name": function.name,
            "parameters": self._parameters(function.function_spec),
            "input_signature": None if declared is None else encoded(declared),
            "traces": traces,
            **written_run_options(function.run_options),
        }

    def _parameters(self, signature: inspect.Signature) -> list[Any]:
        return written_parameters(signature, self._special)

    def _trace(self, concrete: ConcreteFunction, path: str) -> dict[str, Any]:
        traced = concrete.traced
        graph = saved_graph(concrete, self._options.experimental_custom_gradients)
        self._graphs.append(graph)
        self._taken.update(*map(bound_names, concrete.request.types))
        own = joined(path, concrete.name)
        arguments, stand_ins = written_arguments(concrete)
        self._stand_ins += stand_ins
        return {
            "graph": graph,
            "arguments": arguments,
            "results": written_results(concrete, self._array),
            "variables": [self._traced_variable(concrete, v, own) for v in traced.variables],
            "assigned": list(traced.assigned),
            "captures": [self._array(host_array(x)) for x in traced.captures],
            "token": traced.has_token,
            "checks": [written_check(report) for report in traced.checks],
        }

    def _in_order(self, traces: Iterable[ConcreteFunction]) -> list[ConcreteFunction]:
        """The traces in an order that does not depend on how often each was called: sorted by their
        printed signatures, then by the JSON that is written."""
        return sorted(traces, key=lambda x: (x.pretty_printed_signature(), self._sort_key(x)))

    def _sort_key(self, concrete: ConcreteFunction) -> str:
        """The arguments as written, without open sizes, whose names differ."""
        entry, stand_ins = written_arguments(concrete)
        for row, _ in stand_ins:
            del row["type"]
        return json.dumps(entry)

    def _traced_variable(self, concrete: ConcreteFunction, variable: Variable, path: str) -> Any:
        place = concrete.argument_place(variable)
        if place is not None:
            return {"argument": place}
        return {"variable": self._variable(variable, joined(path, variable.base_name))}

    # Signatures.

    def _signature(self, name: str, function: Any) -> dict[str, Any]:
        concrete = as_concrete(name, function)
        outputs = output_names(name, concrete)
        inputs = concrete.request.tensor_keywords
        if len(set(inputs)) < len(inputs):
            refuse_signature(name, f"two of its inputs have one name: {', '.join(inputs)}")
        if self._options.stablehlo:
            self._programs[name] = concrete
        return {
            "function": self._function(concrete, joined(SIGNATURES, name)),
            "inputs": list(inputs),
            "outputs": outputs,
        }


class _Table:
    """Rows of the manifest, one for each object."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        #: Keeps objects alive while their identities are in use.
        self._alive: list[Any] = []

    def number(self, item: Any, describe: Callable[[], dict[str, Any]]) -> int:
        """The number of an object. A new object gets its row before it is described, since its
        contents may lead back to it."""
        number = self._numbers.get(id(item))
        if number is None:
            number = self._numbers[id(item)] = len(self.rows)
            self._alive.append(item)
            row: dict[str, Any] = {}
            self.rows.append(row)
            row.update(describe())
        return number

    def items(self) -> list[Any]:
        return list(self._alive)

    def row_of(self, item: Any) -> dict[str, Any] | None:
        number = self._numbers.get(id(item))
        return None if number is None else self.rows[number]


def _traced_members(root: Any, signatures: Mapping[str, Any]) -> Members:
    """The reachable objects, after tracing every function that has an `input_signature`: tracing
    creates Variables, and attributes that hold them."""
    done: set[int] = set()
    while True:
        members = Members(root, signatures)
        functions = [x for x in members.found if isinstance(x, Function) and id(x) not in done]
        if not functions:
            return members
        for function in functions:
            done.add(id(function))
            if function.input_signature is not None:
                trace_as_declared(function)


def _refuse_loss(module: Module, variable: Variable) -> NoReturn:
    holders = [
        f"{name}, {kind_of(value)}"
        for name, value in members_of(module)
        if any(variable is part for part in variables_and_modules_in(value))
    ]
    fail(
        SignatureError,
        f"the Variable {told_name(variable)!r} of {type(module).__name__} would be lost: it is "
        f"held by {' and '.join(holders) or 'what no file can hold'}",
        fix="keep it in an attribute, or in a plain list or dict, such as self.d = dict(d)",
    )


def _name_graphs(value: Any, symbols: Mapping[Graph, str]) -> None:
    """Replaces the graphs in a manifest by their names."""
    for function in value["functions"]:
        for trace in function["traces"]:
            trace["graph"] = symbols[trace["graph"]]
