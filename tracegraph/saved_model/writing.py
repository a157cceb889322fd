"""Saving: what can be reached from an object, as a manifest, a text of graphs, and tensors."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tracegraph.archive import limits, tensors
from tracegraph.archive.directory import Writer
from tracegraph.archive.manifest import Entry, label_problem
from tracegraph.archive.values import NoData, encoded
from tracegraph.control.registered import with_registered_gradients
from tracegraph.control.undifferentiable import without_custom_gradients
from tracegraph.errors import (
    DTypeError,
    GradientError,
    LoadError,
    Mismatch,
    ShapeError,
    SignatureError,
    TraceError,
    fact_of,
    fail,
    kind_of,
    shown,
)
from tracegraph.export import stablehlo
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.passes.specialise import bound_names, new_names, renamed, with_sizes
from tracegraph.runtime.concrete import ConcreteFunction
from tracegraph.runtime.function import Function
from tracegraph.runtime.module import Module
from tracegraph.runtime.signature import ObjectKey, VariableKey, is_tensor_key
from tracegraph.runtime.sparse import SparseJacobian
from tracegraph.runtime.trace import CheckReport
from tracegraph.runtime.values import host_array
from tracegraph.runtime.variable import Reference, Variable, values_now
from tracegraph.saved_model.options import (
    FORMAT,
    VERSION,
    Asset,
    SaveOptions,
    as_options,
)
from tracegraph.saved_model.reading import Files, Loader, manifest_fields
from tracegraph.saved_model.restored import (
    CALLED_IN_PYTHON,
    LoadedModule,
    NotSaved,
    SignatureFunction,
    attribute_problem,
    content_of,
    is_special,
    lost_attributes,
    own_attributes,
    python_class_name,
)
from tracegraph.shapes import Dim, ShapeVariable
from tracegraph.source import Source, here
from tracegraph.text.literals import Opaque, read_size, read_type
from tracegraph.text.printer import graph_symbols, module_text
from tracegraph.types import DType, TensorType, as_dtype, type_of_array
from tracegraph.version import __version__

#: The signature that a single function has.
DEFAULT_SIGNATURE = "serving_default"
#: Arrays in graphs that are larger stand beside the text, in bytes.
_INLINE_BYTES = 1024


def save(
    obj: Any,
    path: str | os.PathLike[str],
    signatures: Any = None,
    options: SaveOptions | None = None,
) -> None:
    """Saves an object to a directory, from which `tg.saved_model.load` makes it anew.

    - `obj`: a `tg.Module`, a `tg.function`, or a dict or list of them. With it goes what can be
      reached through attributes, lists and dicts: modules, Variables, tensors, plain values, and
      every function with all its traces; one that has an `input_signature` is traced if it was
      not. Variables that a function uses are saved with it wherever they belong.
    - `path`: a directory that does not exist, is empty, or was saved to before. A save that is
      interrupted leaves what was there, or the new state.
    - `signatures`: a function, or a dict of functions by name, that are called with tensors by
      name and return a dict of tensors; a single one is called `serving_default`.
    - `options`: a `tg.saved_model.SaveOptions`.

    Python functions and objects that are no data are left out; a function that *calls* Python
    code when it runs, or whose trace depends on a Python object, is refused with its line.

    Raises ValueError for an object of another kind, and for what cannot be saved.

    >>> double = tg.function(lambda x: 2.0 * x, input_signature=[tg.TensorSpec([None])])
    >>> tg.saved_model.save(double, "double")
    >>> tg.saved_model.load("double")(tg.constant([1.5])).numpy()
    array([3.], dtype=float32)
    """
    chosen = as_options(SaveOptions, options)
    if not isinstance(obj, (Module, Function, ConcreteFunction)) and type(obj) not in (dict, list):
        fail(
            SignatureError,
            f"{kind_of(obj)} cannot be saved: {shown(obj)}",
            source=here(),
            fix="save a tg.Module, a @tg.function, or a dict or list of them",
        )
    saver = _Saver(chosen)
    try:
        content = saver.content(obj, signatures)
        text = saver.text(content)
    except RecursionError as error:
        fact = "what is saved is nested too deep: lists, dicts or modules in each other, or a list "
        fact += "that holds itself"
        fail(SignatureError, fact, source=here(), fix="keep them side by side", cause=error)
    with Writer(path) as writer:
        saver.write(writer, content, text)


#: What is written of an argument that is a Variable, and its type.
_StandInRow = tuple[dict[str, Any], TensorType]


class _Saver:
    """Walks what is saved; everything that may be met twice gets a number where it is met first."""

    def __init__(self, options: SaveOptions) -> None:
        self._options = options
        self._modules: dict[int, int] = {}
        self._objects: list[Any] = []
        self._functions: list[Any] = []
        self._function_numbers: dict[int, int] = {}
        self._variables: list[Any] = []
        self._variable_numbers: dict[int, int] = {}
        self._weights: dict[str, Variable] = {}
        self._weight_names = _Names(_RESERVED)
        self._arrays: dict[str, np.ndarray] = {}
        self._graphs: list[Graph] = []
        #: Types of Variables that are arguments, with the entries that say them; names of the open
        #: sizes of arguments.
        self._stand_ins: list[_StandInRow] = []
        self._taken: set[str] = set()
        self._assets: list[tuple[dict[str, Any], Path]] = []
        #: What is also written as a program, by the name of its signature.
        self._programs: dict[str, ConcreteFunction] = {}
        #: What must stay alive while identities stand for objects.
        self._alive: list[Any] = []

    # The manifest.

    def content(self, root: Any, signatures: Any) -> dict[str, Any]:
        """The manifest without the names of files."""
        named = _named_signatures(root, signatures)
        root = content_of(root)
        content: dict[str, Any] = {
            "root": self.value(root, ""),
            "signatures": {name: self._signature(name, f) for name, f in sorted(named.items())},
        }
        self._order_variables()
        content["objects"] = self._objects
        content["functions"] = self._functions
        content["variables"] = self._variables
        return content

    def text(self, content: dict[str, Any]) -> bytes:
        """The text of all graphs, whose names the manifest gets. Raises SignatureError where it
        could not be loaded."""
        graphs = self._with_names_of_their_own()
        symbols = graph_symbols(graphs.values())
        _name_graphs(content, {old: symbols[new] for old, new in graphs.items()})
        text = module_text(graphs.values(), self._options.locations, self._kept).encode() + b"\n"
        if len(text) > limits.TEXT_BYTES:
            fact = f"the graphs are {len(text)} bytes of text, more than {limits.TEXT_BYTES}"
            fail(SignatureError, fact, source=here(), fix="save the functions in parts")
        try:
            _check_sizes(graphs.values())
            self._rehearse(content, {symbols[graph]: graph for graph in graphs.values()})
        except (LoadError, Mismatch) as error:
            fact = f"it could not be loaded: {fact_of(error)}"
            fail(SignatureError, fact, source=here(), fix="save it in parts, or without this value")
        return text

    def _rehearse(self, content: dict[str, Any], graphs: Mapping[str, Graph]) -> None:
        """Makes all objects once as a reader will: whatever one refuses is not written at all.
        Raises LoadError."""
        names = {"graphs": "", "weights": {}, "constants": {}, "files": {}}
        fields = manifest_fields(Entry({**self._head(), **content, **names}, "what is saved"))
        weights = {key: v.tensor_type for key, v in self._weights.items()}
        Loader(fields, _Memory(graphs, weights, self._arrays)).load()

    def _head(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "producer": f"tracegraph {__version__}",
            "custom_gradients": self._options.experimental_custom_gradients,
        }

    def write(self, writer: Writer, content: dict[str, Any], text: bytes) -> None:
        """Writes the files, and the manifest that makes them count."""
        for name, concrete in self._programs.items():
            data = stablehlo(concrete, platforms=self._options.stablehlo)
            content["signatures"][name]["program"] = writer.add_program(data)
        for place, path in self._assets:
            place["asset"] = writer.add_asset(path)
        for name, data in self._options.extra.items():
            writer.add_extra(name, data)
        values = values_now(self._weights)
        weights = {key: host_array(value) for key, value in values.items()}
        writer.commit(
            {
                **self._head(),
                "graphs": writer.add_bytes("graph", "tgir", text),
                **content,
                "weights": writer.add_arrays("weights", weights),
                "constants": writer.add_arrays("constants", self._arrays),
            }
        )

    def _with_names_of_their_own(self) -> dict[Graph, Graph]:
        """The graphs with the open sizes of Variables called v0, v1 and so on, in manifest and
        text: in the process their names tell how many there were before."""
        variables = zip(self._variables, self._weights.values(), strict=True)
        rows = [*((entry, v.tensor_type) for entry, v in variables), *self._stand_ins]
        names = (name for i in itertools.count() if (name := f"v{i}") not in self._taken)
        sizes: dict[str, Any] = {}
        for _, type in rows:
            if not bound_names(type) <= sizes.keys():
                sizes.update(new_names(type, names))
        for entry, type in rows:
            entry["type"] = str(with_sizes(type, sizes))
        done: dict[Graph, Graph] = {}
        return {graph: renamed(graph, sizes, done) if sizes else graph for graph in self._graphs}

    def _order_variables(self) -> None:
        """Notes the order in which the Variables were created, in which tapes list them."""
        pairs = zip(self._variables, self._weights.values(), strict=True)
        rows = sorted(pairs, key=lambda pair: pair[1].number)
        for place, (entry, _) in enumerate(rows):
            entry["created"] = place

    # Values.

    def value(self, value: Any, path: str) -> Any:
        """The JSON of a value that was reached by `path`."""

        def special(item: Any) -> Any:
            return self._special(item, path)

        def inside(item: Any, name: Any) -> Any:
            if name is None:
                return self._key(item, path)
            return self._element(item, _joined(path, self._key_name(name)))

        return encoded(value, special, inside)

    def _element(self, value: Any, path: str) -> Any:
        """The JSON of what stands in a container: what is no data leaves its place."""
        try:
            return self.value(value, path)
        except NoData as problem:
            return _opaque(problem.args[0])

    def _key(self, key: Any, path: str) -> Any:
        """The JSON of a key of a dict: what would have no hash after loading is no data."""
        entry = self._element(key, path)
        return entry if _has_hash(entry) else _opaque(key)

    def _key_name(self, key: Any) -> str:
        """How paths name an entry of a dict; state that belongs to a Variable is named by it."""
        if isinstance(key, Reference):
            variable = key.deref()
            number = self._variable_numbers.get(id(variable))
            return variable.base_name if number is None else self._variables[number]["weight"]
        try:
            encoded(key)
        except NoData:  # its text may tell where it is in memory
            return _described(key)
        return str(key)

    def _special(self, value: Any, path: str) -> Any:
        if isinstance(value, Variable):
            return {"variable": self._variable(value, path)}
        if isinstance(value, Reference):
            return {"reference": self._variable(value.deref(), path)}
        if isinstance(value, Module):
            return {"object": self._module(value, path)}
        if isinstance(value, SignatureFunction):
            return {"function": self._function(value.concrete, path)}
        if isinstance(value, (Function, ConcreteFunction)):
            return {"function": self._function(value, path)}
        if isinstance(value, Tensor):
            return {"tensor": self._array(host_array(value))}
        if isinstance(value, NotSaved):
            return _opaque(value)
        if type(value) in _ARRAYS:
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
        """The name of an array among the constants: the same for the same bits."""
        view = tensors.storage_view(array)
        head = f"{array.dtype.name}{array.shape}".encode()
        digest = hashlib.sha256(head + tensors.checksum(view).encode()).hexdigest()
        name = f"c{digest[:20]}"
        self._arrays.setdefault(name, np.array(array))
        return name

    def _kept(self, array: np.ndarray) -> str | None:
        return self._array(array) if array.nbytes > _INLINE_BYTES else None

    # Modules.

    def _module(self, module: Module, path: str) -> int:
        number = self._modules.get(id(module))
        if number is None:
            number = self._modules[id(module)] = len(self._objects)
            self._alive.append(module)
            entry: dict[str, Any] = {"class": python_class_name(module)}
            self._objects.append(entry)
            entry.update(self._attributes(module, path))
        return number

    def _attributes(self, module: Module, path: str) -> dict[str, Any]:
        kept: list[list[Any]] = []
        omitted = [list(pair) for pair in lost_attributes(module).items()]
        if _is_called_in_python(module):
            omitted.append(["__call__", CALLED_IN_PYTHON])
        for name, value in [*_attributes_of(module), *_methods(module)]:
            try:
                kept.append([name, self._attribute(module, name, value, path)])
            except NoData as problem:
                omitted.append([name, _described(problem.args[0])])
        hidden = sorted(name for name, _ in kept if name in module._hidden)
        return {"attributes": kept, "hidden": hidden, "omitted": sorted(omitted)}

    def _attribute(self, module: Module, name: str, value: Any, path: str) -> Any:
        """The JSON of an attribute. Raises NoData for one that means something to Python."""
        is_call = name == "__call__" and isinstance(value, (Function, ConcreteFunction))
        if is_special(name) and not is_call:
            raise NoData(value)
        problem = attribute_problem(name)
        if problem:
            owner = type(module).__name__
            _refuse_name(name, f"of an attribute of {owner}", problem)
        return self.value(value, _joined(path, name))

    # Variables.

    def _variable(self, variable: Variable, path: str) -> int:
        number = self._variable_numbers.get(id(variable))
        if number is None:
            number = self._variable_numbers[id(variable)] = len(self._variables)
            self._alive.append(variable)
            _check_label(variable.base_name, "of a Variable")
            key = self._weight_names.new(path or variable.base_name)
            self._weights[key] = variable
            self._variables.append(
                {
                    "weight": key,
                    "name": variable.base_name,
                    "type": str(variable.tensor_type),
                    "trainable": variable.trainable,
                    "plain_name": variable.has_plain_name,
                    "random_state": variable.is_random_state,
                }
            )
        return number

    # Functions.

    def _function(self, function: Function | ConcreteFunction, path: str) -> int:
        number = self._function_numbers.get(id(function))
        if number is None:
            number = self._function_numbers[id(function)] = len(self._functions)
            self._alive.append(function)
            entry: dict[str, Any] = {}
            self._functions.append(entry)
            _check_label(function.name, "of a function")
            if isinstance(function, ConcreteFunction):
                entry.update(self._one_trace(function, path))
            else:
                entry.update(self._all_traces(function, path))
        return number

    def _one_trace(self, concrete: ConcreteFunction, path: str) -> dict[str, Any]:
        return {
            "name": concrete.name,
            "parameters": self._parameters(concrete.request.signature.parameters, concrete.name),
            "traces": [self._trace(concrete, path)],
            "is_concrete": True,
        }

    def _all_traces(self, function: Function, path: str) -> dict[str, Any]:
        declared = function.input_signature
        if declared is not None:
            _trace_as_declared(function)
        traces = [self._trace(concrete, path) for concrete in self._in_order(function.traces)]
        return {
            "name": function.name,
            "parameters": self._parameters(function.function_spec, function.name),
            "input_signature": None if declared is None else encoded(declared, self._no_data),
            "traces": traces,
        }

    def _default(self, value: Any) -> Any:
        """The JSON of a default value. Functions are made of theirs, and so they are none."""
        if isinstance(value, (Function, ConcreteFunction, SignatureFunction, Module)):
            raise NoData(value)
        return self._special(value, "")

    def _no_data(self, value: Any) -> NoReturn:
        raise NoData(value)

    def _parameters(self, signature: inspect.Signature, name: str) -> list[Any]:
        found = []
        for parameter in signature.parameters.values():
            row: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name.lower()}
            if parameter.default is not parameter.empty:
                try:
                    row["default"] = encoded(parameter.default, self._default)
                except NoData:
                    row["default"] = _opaque(parameter.default)
            found.append(row)
        return found

    def _trace(self, concrete: ConcreteFunction, path: str) -> dict[str, Any]:
        traced = concrete.traced
        graph = self._saved_graph(concrete)
        self._graphs.append(graph)
        self._taken.update(*map(bound_names, concrete.request.types))
        own = _joined(path, concrete.name)
        arguments, stand_ins = self._arguments(concrete)
        self._stand_ins += stand_ins
        return {
            "graph": graph,
            "arguments": arguments,
            "results": self._results(concrete),
            "variables": [self._traced_variable(concrete, v, own) for v in traced.variables],
            "assigned": list(traced.assigned),
            "captures": [self._array(host_array(x)) for x in traced.captures],
            "token": traced.has_token,
            "checks": [_check(report) for report in traced.checks],
        }

    def _in_order(self, traces: Iterable[ConcreteFunction]) -> list[ConcreteFunction]:
        """The traces in an order that does not depend on how often each was called: that of what
        is shown of them and, where that is the same, of what is written."""
        return sorted(traces, key=lambda x: (x.pretty_printed_signature(), self._sort_key(x)))

    def _sort_key(self, concrete: ConcreteFunction) -> str:
        """The arguments as they are written, but for open sizes, which have other names."""
        entry, stand_ins = self._arguments(concrete)
        for row, _ in stand_ins:
            del row["type"]
        return json.dumps(entry)

    def _saved_graph(self, concrete: ConcreteFunction) -> Graph:
        graph = concrete.graph
        for inner in graph.graphs():
            for node in inner.nodes:
                _check_data(node, concrete.name)
        if not self._options.experimental_custom_gradients:
            return without_custom_gradients(graph)
        try:
            return with_registered_gradients(graph)
        except (TraceError, GradientError, ShapeError, DTypeError) as error:
            fail(
                SignatureError,
                f"{concrete.name} uses an op whose registered gradient cannot be saved: "
                f"{fact_of(error)}",
                source=here(),
                fix="write the gradient with tg ops of op.inputs, op.outputs and the cotangents, "
                "or save with SaveOptions(experimental_custom_gradients=False)",
                cause=error,
            )

    def _traced_variable(self, concrete: ConcreteFunction, variable: Variable, path: str) -> Any:
        place = concrete.argument_place(variable)
        if place is not None:
            return {"argument": place}
        return {"variable": self._variable(variable, _joined(path, variable.base_name))}

    def _arguments(self, concrete: ConcreteFunction) -> tuple[Any, list[_StandInRow]]:
        """The structure of the arguments, with what each leaf was traced for; and those that are
        Variables, with their types."""
        request = concrete.request
        specs = iter(request.tensor_specs)
        rows = zip(request.keys, request.leaves, request.names, strict=True)
        leaves = [self._leaf(concrete, *row, specs) for row in rows]
        stand_ins = [
            (leaf["stand_in"], key.type)
            for leaf, key in zip(leaves, request.keys, strict=True)
            if isinstance(key, VariableKey)
        ]
        return self._structure(request.structure, leaves, concrete.name, _no_sparse), stand_ins

    def _leaf(self, concrete: ConcreteFunction, key: Any, leaf: Any, name: str, specs: Any) -> Any:
        if is_tensor_key(key):
            spec = next(specs)
            return {"argument": {"type": str(key), "spec": None if spec is None else encoded(spec)}}
        if isinstance(key, VariableKey):
            entry = {"type": str(key.type), "trainable": key.trainable, "alias": key.alias}
            return {"stand_in": entry}
        try:
            if isinstance(key, ObjectKey):
                raise NoData(leaf)
            return {"value": encoded(leaf)}
        except NoData:
            fail(
                SignatureError,
                f"{concrete.name} was traced for a Python object as its argument {name!r} "
                f"({key.text if isinstance(key, ObjectKey) else shown(leaf)}), which no file can "
                "hold",
                source=concrete.request.signature.place,
                fix="make it a method of the Module that is saved, or clear_cache() and trace it "
                "with tensors, numbers and strings",
            )

    def _results(self, concrete: ConcreteFunction) -> Any:
        counter = iter(range(concrete.traced.result_count))
        flags = concrete.results.flags
        leaves = [{"result": next(counter)} if flag else None for flag in flags]
        return self._structure(concrete.results.structure, leaves, concrete.name, self._sparse)

    def _structure(self, structure: Any, leaves: list[Any], name: str, sparse: Any) -> Any:
        """A structure with these JSON values in the places of its leaves; `sparse` writes sparse
        Jacobians."""

        def special(item: Any) -> Any:
            if isinstance(item, _Place):
                return leaves[item.number]
            if isinstance(item, SparseJacobian):
                return {"sparse_jacobian": sparse(item, special)}
            raise NoData(item)

        packed = structure.pack([_Place(i) for i in range(structure.count)])
        try:
            return encoded(packed, special)
        except NoData as problem:
            fail(
                SignatureError,
                f"{name} takes or returns {kind_of(problem.args[0])}, whose structure no file can "
                "hold",
                source=here(),
                fix="use lists, tuples, dicts, namedtuples and dataclasses",
            )

    def _sparse(self, matrix: SparseJacobian, special: Any) -> dict[str, Any]:
        sparsity, target, source = matrix._rest
        colouring = sparsity.colouring
        arrays = {
            "rows": sparsity.rows,
            "columns": sparsity.columns,
            "column_colours": colouring.column_colours,
            "row_colours": colouring.row_colours,
            "products": colouring.products,
            "places": colouring.places,
        }
        return {
            "values": encoded(matrix.values, special),
            "target": list(target),
            "source": list(source),
            **{name: self._array(np.asarray(array)) for name, array in arrays.items()},
        }

    # Signatures.

    def _signature(self, name: str, function: Any) -> dict[str, Any]:
        concrete = _as_concrete(name, function)
        outputs = _output_names(name, concrete)
        inputs = concrete.request.tensor_keywords
        if len(set(inputs)) < len(inputs):
            _refuse_signature(name, f"two of its inputs have one name: {', '.join(inputs)}")
        if self._options.stablehlo:
            self._programs[name] = concrete
        return {
            "function": self._function(concrete, f"signatures/{name}"),
            "inputs": list(inputs),
            "outputs": outputs,
        }


class _Memory(Files):
    """What will stand in the files, for the rehearsal of reading it."""

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        weights: Mapping[str, TensorType],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self._graphs = dict(graphs)
        self.weights = {key: _Held(type) for key, type in weights.items()}
        self.constants = {key: _Held(type_of_array(x), x) for key, x in arrays.items()}

    def graphs(self, entry: Entry) -> dict[str, Graph]:
        return self._graphs

    def fill(self, variable: Variable, stored: Any) -> None:
        """Its value would only be read."""

    def asset(self, entry: Entry) -> str:
        return __file__  # any that is there: what is meant is not copied yet


class _Held(NamedTuple):
    """An array that will stand in a file; of the values of Variables only their types count."""

    type: TensorType
    array: np.ndarray | None = None

    def read(self) -> Any:
        return self.array


def _no_sparse(matrix: SparseJacobian, special: Any) -> NoReturn:
    """A sparse Jacobian as an argument: its trace is for this one, whose sparsity is an object."""
    raise NoData(matrix)


#: What safetensors keeps for itself among the names of a file.
_RESERVED = ("__metadata__",)


class _Place:
    """Marks the place of a leaf in a structure."""

    def __init__(self, number: int) -> None:
        self.number = number


#: Classes of arrays that are nothing but arrays; others, such as those with a mask, hold more.
_ARRAYS = (np.ndarray, np.memmap)


def _opaque(value: Any) -> dict[str, str]:
    """What stands in the place of something that is no data."""
    return {"opaque": _described(value)}


def _described(value: Any) -> str:
    """What something is that is no data."""
    if isinstance(value, NotSaved):
        return vars(value)["_what"]
    if type(value) in (*_ARRAYS, np.ma.MaskedArray):
        kind = "a masked array" if isinstance(value, np.ma.MaskedArray) else "an array"
        return f"{kind} of {value.dtype.name or value.dtype.kind}"
    text = kind_of(value)
    return "an object" if label_problem(text) else text


def _has_hash(entry: Any) -> bool:
    """Whether what is made of the JSON of a value can be a key."""
    if not isinstance(entry, dict):
        return True
    ((kind, inner),) = entry.items()
    if kind in ("tuple", "namedtuple"):
        items = inner if kind == "tuple" else [item for _, item in inner["fields"]]
        return all(map(_has_hash, items))
    return kind not in ("list", "dict", "dataclass", "array", "variable")


def _joined(path: str, name: Any) -> str:
    return f"{path}/{name}" if path else str(name)


class _Names:
    """Gives names that nothing else has; each takes the same time, however many there are."""

    def __init__(self, taken: Iterable[str]) -> None:
        #: For each name that is taken, the first number that may be free behind it.
        self._next = dict.fromkeys(taken, 1)

    def new(self, name: str) -> str:
        """`name`, or `name.1`, `name.2` and so on if it is taken."""
        found = name
        while found in self._next:
            found = f"{name}.{self._next[name]}"
            self._next[name] += 1
        self._next[found] = 1
        return found


def _is_called_in_python(module: Module) -> bool:
    """Whether the class has a `__call__` that is no `tg.function`."""
    call = type(module).__call__ if callable(module) else None
    return not isinstance(module, LoadedModule) and inspect.isfunction(call)


def _check_label(name: str, what: str) -> None:
    """Raises SignatureError for a name that a manifest does not hold."""
    problem = label_problem(name)
    if problem:
        _refuse_name(name, what, problem)


def _refuse_name(name: str, what: str, problem: str) -> NoReturn:
    fact = f"the name {shown(name)} {what} cannot be saved: it {problem}"
    fail(SignatureError, fact, source=here(), fix="give it another name")


def _attributes_of(module: Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in own_attributes(module) if not _is_cache(name)]


def _is_cache(name: str) -> bool:
    """Whether an attribute is where a method keeps its traces; `_methods` finds those."""
    return name.startswith("_tg_function_")


def _methods(module: Module) -> list[tuple[str, Function]]:
    """The decorated methods of the class by name, bound to the instance or, where they are static
    or of the class, as calling them finds them."""
    names = {
        name
        for cls in type(module).__mro__
        for name, value in vars(cls).items()
        if isinstance(_undecorated(value), Function) and name not in vars(module)
    }
    return [(name, getattr(module, name)) for name in sorted(names) if not _is_cache(name)]


def _undecorated(member: Any) -> Any:
    """What a static method or one of the class stands around."""
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _trace_as_declared(function: Function) -> None:
    """Traces a function for its input signature. Raises ShapeError where that is too open."""
    try:
        concrete = function.get_concrete_function()
    except ShapeError as error:
        _refuse_rank(function, fact_of(error))
    declared = [spec for spec in concrete.request.tensor_specs if spec is not None]
    types = concrete.argument_types
    if any(s.shape.rank is None and isinstance(t.shape, tuple) for s, t in zip(declared, types)):
        _refuse_rank(function, "an op needs the rank of an argument")


def _refuse_rank(function: Function, fact: str) -> NoReturn:
    fail(
        ShapeError,
        f"{function.name} cannot be saved for every shape that its input_signature allows: {fact}",
        source=here(),
        fix="give the rank in the input_signature, such as tg.TensorSpec([None, None])",
    )


def _check_data(node: Node, name: str) -> None:
    """Raises SignatureError for a node that calls Python, or writes to an object of it."""
    for value in _flat(node.op.attributes):
        if isinstance(value, _DATA):
            continue
        called = getattr(value, "__qualname__", type(value).__name__)
        does = "calls the Python function" if callable(value) else "writes to"
        is_text = isinstance(value, Opaque)
        fail(
            SignatureError,
            f"{name} {does} {called} when it runs, and no file can hold "
            f"{'more than its name' if is_text else 'it'}",
            source=node.source,
            fix="write it with tg ops, print to sys.stdout or sys.stderr, or keep it outside of "
            "what is saved",
        )


#: What attributes of ops are, other than tuples.
_DATA = (
    *(NoneType, bool, int, float, complex, str, bytes, np.ndarray, np.generic),
    *(DType, TensorType, Dim, ShapeVariable, Graph),
)


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _check(report: CheckReport) -> dict[str, Any]:
    """What a failed check reports; what it does not say is left out."""
    entry = {"message": report.message, **_place(report.source), "operands": report.operand_count}
    if report.fix:
        entry["fix"] = report.fix
    if report.is_range:
        entry["is_range"] = True
    if report.sites:
        entry["sites"] = [
            {
                "fact": site.fact,
                **_place(site.source),
                "operands": [_FOLDERS.sub(r"\1", operand) for operand in site.operands],
            }
            for site in report.sites
        ]
    return entry


#: The folders of the file that an operand came from, which are no business of who loads it.
_FOLDERS = re.compile(r"(  from )[^\n]*[\\/]")


def _place(source: Source) -> dict[str, Any]:
    return {
        "file": os.path.basename(source.file),
        "line": source.line,
        "roles": list(source.roles),
    }


def _check_sizes(graphs: Iterable[Graph]) -> None:
    """Raises Mismatch for an open size or shape that is too long to be read."""
    inner = {inner for graph in graphs for inner in graph.graphs()}
    nodes = [node for graph in inner for node in graph.nodes]
    types = {x.type for graph in inner for x in graph.inputs}
    types.update(y.type for node in nodes for y in node.outputs)
    for type in types:
        if not type.is_static:
            read_type(str(type))
    for size in {x for node in nodes for x in _flat(node.op.attributes) if isinstance(x, Dim)}:
        read_size(str(size))


def _name_graphs(value: Any, symbols: Mapping[Graph, str]) -> None:
    """Replaces graphs in a manifest by their names."""
    for function in value["functions"]:
        for trace in function["traces"]:
            trace["graph"] = symbols[trace["graph"]]


def _named_signatures(root: Any, signatures: Any) -> dict[str, Any]:
    if signatures is None:
        given = getattr(root, "signatures", None) if isinstance(root, LoadedModule) else None
        return dict(given or {})
    if isinstance(signatures, Mapping):
        for name in signatures:
            if not isinstance(name, str):
                _refuse_signature(name, "its name is no string")
            _check_label(name, "of a signature")
        return dict(signatures)
    return {DEFAULT_SIGNATURE: signatures}


def _as_concrete(name: str, function: Any) -> ConcreteFunction:
    if isinstance(function, SignatureFunction):
        return function.concrete
    if isinstance(function, ConcreteFunction):
        return function
    if not isinstance(function, Function):
        _refuse_signature(name, f"it is {kind_of(function)}: {shown(function)}")
    if function.input_signature is not None:
        return function.get_concrete_function()
    traces = list(function.traces)
    if len(traces) != 1:
        _refuse_signature(name, f"{function.name} has {len(traces)} traces, and it must have one")
    return traces[0]


def _output_names(name: str, concrete: ConcreteFunction) -> list[str]:
    """The names of the results: the keys of a dict, or `output_0` and so on."""
    packed = concrete.results.pack(list(range(concrete.traced.result_count)))
    if isinstance(packed, dict) and all(isinstance(key, str) for key in packed):
        if sorted(packed.values(), key=str) == sorted(range(len(packed)), key=str):
            return sorted(packed, key=lambda key: packed[key])
        _refuse_signature(name, "the dict that it returns holds more than tensors")
    rows = [packed] if isinstance(packed, int) else packed
    if not isinstance(rows, (list, tuple)) or any(not isinstance(row, int) for row in rows):
        _refuse_signature(name, "it returns a nested structure")
    return [f"output_{i}" for i in range(len(rows))]


def _refuse_signature(name: Any, fact: str) -> NoReturn:
    fail(
        SignatureError,
        f"the signature {name!r} cannot be saved: {fact}",
        source=here(),
        fix="give a @tg.function with an input_signature, or one concrete function, that takes "
        "tensors and returns tensors or a dict of them",
    )
