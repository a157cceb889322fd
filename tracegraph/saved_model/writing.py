"""Saving: what can be reached from an object, as a manifest, a text of graphs, and tensors."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

import numpy as np

from tracegraph.archive import tensors
from tracegraph.archive.directory import Writer
from tracegraph.archive.manifest import label_problem
from tracegraph.archive.values import NoData, encoded
from tracegraph.control.undifferentiable import without_custom_gradients
from tracegraph.errors import ShapeError, SignatureError, TraceError, fact_of, fail, kind_of, shown
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
    LARGEST_TEXT,
    VERSION,
    Asset,
    SaveOptions,
    as_options,
)
from tracegraph.saved_model.restored import (
    CALLED_IN_PYTHON,
    LoadedModule,
    SignatureFunction,
    attribute_problem,
    content_of,
    is_special,
    omitted_of,
    python_class_name,
)
from tracegraph.shapes import Dim, ShapeVariable
from tracegraph.source import Source, here
from tracegraph.text.literals import Opaque
from tracegraph.text.printer import graph_symbols, module_text
from tracegraph.types import DType, TensorType, as_dtype
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
    content = saver.content(obj, signatures)
    writer = Writer(path)
    saver.write(writer, content)


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
        self._arrays: dict[str, np.ndarray] = {}
        self._graphs: list[Graph] = []
        #: Types of Variables that are arguments, with the entries that say them; names of the open
        #: sizes of arguments.
        self._stand_ins: list[tuple[dict[str, Any], TensorType]] = []
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

    def write(self, writer: Writer, content: dict[str, Any]) -> None:
        """Writes the files, and the manifest that makes them count."""
        graphs = self._with_names_of_their_own()
        symbols = graph_symbols(graphs.values())
        _name_graphs(content, {old: symbols[new] for old, new in graphs.items()})
        text = module_text(graphs.values(), self._options.locations, self._kept).encode() + b"\n"
        if len(text) > LARGEST_TEXT:
            fact = f"the graphs are {len(text)} bytes of text, more than {LARGEST_TEXT}"
            fail(SignatureError, fact, source=here(), fix="save the functions in parts")
        for name, concrete in self._programs.items():
            data = stablehlo(concrete, platforms=self._options.stablehlo)
            content["signatures"][name]["program"] = writer.add_program(data)
        for place, path in self._assets:
            place["asset"] = writer.add_asset(path)
        for name, data in self._options.extra.items():
            writer.add_extra(name, data)
        weights = values_now(self._weights)
        writer.commit(
            {
                "format": FORMAT,
                "version": VERSION,
                "producer": f"tracegraph {__version__}",
                "custom_gradients": self._options.experimental_custom_gradients,
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

        if type(value) in (list, tuple):
            name = "list" if type(value) is list else "tuple"
            items = enumerate(value)
            return {
                name: [self.value(item, f"{path}/{i}" if path else str(i)) for i, item in items]
            }
        if type(value) is dict:
            return {
                "dict": [
                    [encoded(key, special), self.value(item, _joined(path, self._key_name(key)))]
                    for key, item in value.items()
                ]
            }
        return encoded(value, special)

    def _key_name(self, key: Any) -> Any:
        """How paths name an entry of a dict; state that belongs to a Variable is named by it."""
        if not isinstance(key, Reference):
            return key
        variable = key.deref()
        number = self._variable_numbers.get(id(variable))
        return variable.base_name if number is None else self._variables[number]["weight"]

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
        if isinstance(value, np.ndarray | np.generic):
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
        omitted = [list(pair) for pair in omitted_of(module).items()]
        if _is_called_in_python(module):
            omitted.append(["__call__", CALLED_IN_PYTHON])
        for name, value in [*_own_attributes(module), *_methods(module)]:
            try:
                kept.append([name, self._attribute(module, name, value, path)])
            except NoData as problem:
                omitted.append([name, kind_of(problem.args[0])])
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
            key = _unused(path or variable.base_name, (*self._weights, *_RESERVED))
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
        traces = [self._trace(concrete, path) for concrete in _in_order(function.traces)]
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
                    row["default"] = {"opaque": kind_of(parameter.default)}
            found.append(row)
        return found

    def _trace(self, concrete: ConcreteFunction, path: str) -> dict[str, Any]:
        traced = concrete.traced
        graph = self._saved_graph(concrete)
        self._graphs.append(graph)
        self._taken.update(*map(bound_names, concrete.request.types))
        own = _joined(path, concrete.name)
        return {
            "graph": graph,
            "arguments": self._arguments(concrete),
            "results": self._results(concrete),
            "variables": [self._traced_variable(concrete, v, own) for v in traced.variables],
            "assigned": list(traced.assigned),
            "captures": [self._array(host_array(x)) for x in traced.captures],
            "token": traced.has_token,
            "checks": [_check(report) for report in traced.checks],
        }

    def _saved_graph(self, concrete: ConcreteFunction) -> Graph:
        graph = concrete.graph
        for inner in graph.graphs():
            for node in inner.nodes:
                _check_data(node, concrete.name)
        if self._options.experimental_custom_gradients:
            return graph
        return without_custom_gradients(graph)

    def _traced_variable(self, concrete: ConcreteFunction, variable: Variable, path: str) -> Any:
        place = concrete.argument_place(variable)
        if place is not None:
            return {"argument": place}
        return {"variable": self._variable(variable, _joined(path, variable.base_name))}

    def _arguments(self, concrete: ConcreteFunction) -> Any:
        """The structure of the arguments, with what each leaf was traced for."""
        request = concrete.request
        specs = iter(request.tensor_specs)
        rows = zip(request.keys, request.leaves, request.names, strict=True)
        leaves = [self._leaf(concrete, *row, specs) for row in rows]
        return self._structure(request.structure, leaves, concrete.name, _no_sparse)

    def _leaf(self, concrete: ConcreteFunction, key: Any, leaf: Any, name: str, specs: Any) -> Any:
        if is_tensor_key(key):
            spec = next(specs)
            return {"argument": {"type": str(key), "spec": None if spec is None else encoded(spec)}}
        if isinstance(key, VariableKey):
            entry = {"type": str(key.type), "trainable": key.trainable, "alias": key.alias}
            self._stand_ins.append((entry, key.type))
            return {"stand_in": entry}
        try:
            if isinstance(key, ObjectKey):
                raise NoData(leaf)
            return {"value": encoded(leaf)}
        except NoData:
            fail(
                TraceError,
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
                TraceError,
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


def _no_sparse(matrix: SparseJacobian, special: Any) -> NoReturn:
    """A sparse Jacobian as an argument: its trace is for this one, whose sparsity is an object."""
    raise NoData(matrix)


#: What safetensors keeps for itself among the names of a file.
_RESERVED = ("__metadata__",)


class _Place:
    """Marks the place of a leaf in a structure."""

    def __init__(self, number: int) -> None:
        self.number = number


def _joined(path: str, name: Any) -> str:
    return f"{path}/{name}" if path else str(name)


def _unused(name: str, taken: Iterable[str]) -> str:
    """`name`, or `name.1`, `name.2` and so on if it is taken."""
    taken = set(taken)
    if name not in taken:
        return name
    return next(new for i in range(1, len(taken) + 2) if (new := f"{name}.{i}") not in taken)


def _own_attributes(module: Module) -> list[tuple[str, Any]]:
    """The attributes of an instance, in the order in which its variables are listed."""
    return [(name, value) for name, value in module._ordered_attributes() if not _is_cache(name)]


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


def _is_cache(name: str) -> bool:
    """Whether an attribute is where a method keeps its traces; `_methods` finds those."""
    return name.startswith("_tg_function_")


def _methods(module: Module) -> list[tuple[str, Function]]:
    """The decorated methods of the class, bound to the instance, by name."""
    names = {
        name
        for cls in type(module).__mro__
        for name, value in vars(cls).items()
        if isinstance(value, Function) and name not in vars(module)
    }
    return [(name, getattr(module, name)) for name in sorted(names)]


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


def _in_order(traces: Iterable[ConcreteFunction]) -> list[ConcreteFunction]:
    """The traces in an order that does not depend on how often each was called."""
    return sorted(traces, key=lambda trace: trace.pretty_printed_signature())


def _check_data(node: Node, name: str) -> None:
    """Raises TraceError for a node that calls Python code, or writes to an object of Python's."""
    for value in _flat(node.op.attributes):
        if isinstance(value, _DATA):
            continue
        called = getattr(value, "__qualname__", type(value).__name__)
        does = "calls the Python function" if callable(value) else "writes to"
        is_text = isinstance(value, Opaque)
        fail(
            TraceError,
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
