"""Loading: a manifest that is not trusted, a text of graphs, and tensors, as objects again."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.archive import limits
from tracegraph.archive.directory import EXTRA, Reader, read_extras
from tracegraph.archive.manifest import Entry, excerpt, label_problem
from tracegraph.archive.tensors import Stored, TensorFile, stored_arrays, unlisted
from tracegraph.archive.values import Decoder, Records, read_tensor_type
from tracegraph.control.numerics import Site
from tracegraph.control.sparse import Sparsity
from tracegraph.errors import LoadError, Mismatch, TraceError, fact_of, fail
from tracegraph.ir.tensor import Graph, Tensor, host_tensor
from tracegraph.passes.colouring import Colouring
from tracegraph.passes.specialise import bound_names, new_names, renamed, with_sizes
from tracegraph.runtime.concrete import ConcreteFunction, StandIn
from tracegraph.runtime.function import Function
from tracegraph.runtime.results import Results
from tracegraph.runtime.signature import Request, Signature, VariableKey, leaf_key
from tracegraph.runtime.sparse import SparseJacobian
from tracegraph.runtime.trace import CheckReport, Traced
from tracegraph.runtime.variable import Reference, Variable, names_of_sizes
from tracegraph.saved_model.options import (
    FORMAT,
    VERSION,
    Asset,
    LoadOptions,
    as_options,
)
from tracegraph.saved_model.restored import (
    LoadedModule,
    NotSaved,
    SavedConcreteFunction,
    SavedFunction,
    SignatureFunction,
    attribute_problem,
    functions_in,
    new_module,
    variables_of,
    with_captured,
    with_signatures,
    wrapped,
)
from tracegraph.shapes import Dim, ShapeVariable
from tracegraph.source import Source
from tracegraph.tensorshape import TensorShape, TensorSpec
from tracegraph.text.parser import parse_module
from tracegraph.types import TOKEN, DType, TensorType

#: The integers of a matrix's places, and the types of the leaves that a trace is made for.
_INDEX = np.dtype(np.int64)
_VALUES = (bool, int, float, complex, str, bytes, DType, TensorType, TensorShape)

_KINDS = {kind.name.lower(): kind for kind in inspect._ParameterKind}


def load(
    path: str | os.PathLike[str], tags: Any = None, options: LoadOptions | None = None
) -> LoadedModule:
    """What `tg.saved_model.save` saved, as a `tg.Module`.

    - `path`: the directory. It is not trusted: nothing in it is run or imported, and whatever is
      wrong with it is a LoadError.
    - `tags`: accepted, as in TensorFlow; there is one graph per directory.
    - `options`: a `tg.saved_model.LoadOptions`.

    Its functions are those that were traced; they have every derivative, and `variables`,
    `trainable_variables` and `submodules` are as they were. Values of Variables are read from the
    files at their first use: a later save to the same path does not change them.

    Raises LoadError (a ValueError) that names the file and the place in it.
    """
    chosen = as_options(LoadOptions, options)
    reader = Reader(path)
    reader.check_format(FORMAT, VERSION)
    fields = manifest_fields(reader.entry)
    return Loader(fields, _Files(reader, fields, chosen)).load()


def manifest_fields(entry: Entry) -> dict[str, Entry]:
    """The entries of a manifest. Raises LoadError if one is missing or not known."""
    names = (*_FIELDS, EXTRA)
    fields = dict(zip(names, entry.fields(*_FIELDS, optional=(EXTRA,)), strict=True))
    fields[EXTRA].optional(read_extras)
    return fields


class Files:
    """What stands beside a manifest: graphs and tensors by name, and files of the user's."""

    weights: Mapping[str, Any]
    constants: Mapping[str, Any]

    def graphs(self, entry: Entry) -> dict[str, Graph]:
        """The graphs of a file by their names."""
        raise NotImplementedError

    def fill(self, variable: Variable, stored: Any) -> None:
        """Gives a Variable its value."""
        raise NotImplementedError

    def asset(self, entry: Entry) -> str | os.PathLike[str]:
        raise NotImplementedError

    def program(self, entry: Entry) -> Path:
        raise NotImplementedError

    def check_all_used(self, entry: Entry) -> None:
        """Raises LoadError for a file that is listed in vain."""


class _Files(Files):
    """Those of a directory, which are not trusted."""

    def __init__(self, reader: Reader, fields: Mapping[str, Entry], options: LoadOptions) -> None:
        self._reader = reader
        names = reader.check_files(fields["files"])
        if options.verify:
            reader.verify()
        self._tensors = {
            name: TensorFile(reader.root / name, str(reader.root / name))
            for name in names
            if name.endswith(".safetensors") and "/" not in name
        }
        self.weights = stored_arrays(fields["weights"], self._tensors)
        self.constants = stored_arrays(fields["constants"], self._tensors)
        extra = next(unlisted(self._tensors.values(), (self.weights, self.constants)), None)
        if extra is not None:
            reader.entry.fail(f"no table lists the tensor {extra}")

    def graphs(self, entry: Entry) -> dict[str, Graph]:
        data = self._reader.checked_bytes(entry, limits.TEXT_BYTES)
        if not data.strip():
            return {}
        arrays = _Arrays(self.constants)
        try:
            return parse_module(data.decode(), arrays)
        except UnicodeDecodeError as error:
            fail(LoadError, f"{self._reader.path(entry)} is no text: {error}", cause=error)
        except LoadError as error:
            fail(LoadError, f"{self._reader.path(entry)}: {fact_of(error)}", cause=error)

    def fill(self, variable: Variable, stored: Any) -> None:
        variable.keep_in_file(stored)

    def asset(self, entry: Entry) -> Path:
        return self._reader.asset(entry)

    def program(self, entry: Entry) -> Path:
        return self._reader.program(entry)

    def check_all_used(self, entry: Entry) -> None:
        self._reader.check_all_used(entry, self._tensors)


class Loader:
    """Makes the objects of a manifest; those that are named by numbers are made first, empty."""

    def __init__(self, fields: Mapping[str, Entry], files: Files) -> None:
        self._fields = fields
        self._files = files
        self._records = Records()
        #: Names of open sizes in the graphs; what stands for those of Variables here; and the
        #: graphs with these.
        self._taken: set[str] = set()
        self._sizes: dict[str, Any] = {}
        self._own: dict[Graph, Graph] = {}
        #: Graphs all of whose open sizes have values.
        self._closed: set[Graph] = set()
        values = {
            "variable": self._variable_of,
            "reference": lambda e: Reference(self._variable_of(e)),
            "tensor": lambda e: self._tensor_of(e),
            "array": lambda e: self._constant(e).read(),
            "asset": lambda e: Asset(self._files.asset(e)),
            "opaque": lambda e: NotSaved(e.label()),
        }
        objects = {
            "object": lambda e: self._modules[e.count(len(self._modules))],
            "function": lambda e: self._functions[e.count(len(self._functions))],
        }
        #: Of plain data; of what defaults may be; of what modules hold.
        self._plain = Decoder(self._records)
        self._defaults = Decoder(self._records, values)
        held = {
            "variable": lambda e: self._held(self._variable_of(e)),
            "reference": lambda e: Reference(self._held(self._variable_of(e))),
        }
        self._decoder = Decoder(self._records, {**values, **objects, **held})
        #: Identities of Variables that some attribute holds.
        self._in_attributes: set[int] = set()

    def load(self) -> LoadedModule:
        fields = self._fields
        fields["producer"].text()
        fields["custom_gradients"].flag()
        for table in ("objects", "functions", "variables"):
            count = len(fields[table].items())
            if count > limits.MOST_ROWS:
                fields[table].fail(f"there are {count} {table}, more than {limits.MOST_ROWS}")
        self._graphs = self._files.graphs(fields["graphs"])
        self._variables = self._read_variables(fields["variables"])
        self._modules = fields["objects"].each(self._new_module)
        self._functions: list[Any] = []
        self._functions.extend(fields["functions"].each(self._function))
        for module, entry in zip(self._modules, fields["objects"].items(), strict=True):
            self._fill(module, entry)
        root = self._root(fields["root"])
        signatures = {
            name: self._signature(name, entry)
            for name, entry in fields["signatures"].pairs().items()
        }
        self._files.check_all_used(fields["files"])
        self._list_captured(with_signatures(root, signatures))
        return root

    def _root(self, entry: Entry) -> LoadedModule:
        root = self._decoder.read(entry)
        if isinstance(root, LoadedModule):
            return root
        if not isinstance(root, (Function, ConcreteFunction)) and type(root) not in (dict, list):
            entry.fail("what was saved is an object, a function, a dict or a list")
        return wrapped(root)

    def _held(self, variable: Variable) -> Variable:
        self._in_attributes.add(id(variable))
        return variable

    def _list_captured(self, root: LoadedModule) -> None:
        """Lets modules list the Variables that functions use and no attribute holds: each module
        those of its own functions, and the root all."""
        created = sorted(self._variables, key=lambda variable: variable.number)
        left = [v for v in created if id(v) not in self._in_attributes]
        if left:
            for module in self._modules:
                used = {id(v) for f in functions_in(module) for v in variables_of(f)}
                with_captured(module, [v for v in left if id(v) in used])
            with_captured(root, left)

    # Tensors.

    def _constant(self, entry: Entry) -> Any:
        name = entry.text()
        if name not in self._files.constants:
            entry.fail(f"there is no constant {excerpt(name)}")
        return self._files.constants[name]

    def _tensor_of(self, entry: Entry) -> Tensor:
        stored = self._constant(entry)
        return host_tensor(stored.type, stored)

    # Variables.

    def _read_variables(self, entry: Entry) -> list[Variable]:
        """The Variables by their numbers, created in the order in which they were once."""
        items = entry.items()
        places = [item.fields(*_VARIABLE_FIELDS)[-1] for item in items]
        order = [place.count(len(items)) for place in places]
        if len(set(order)) < len(order):
            entry.fail("two variables have one place in the order of creation")
        weights = [item.pairs()["weight"].text() for item in items]
        if len(set(weights)) < len(weights):
            entry.fail("two variables have one weight")
        if len(weights) < len(self._files.weights):
            unused = min(set(self._files.weights) - set(weights))
            self._fields["weights"].fail(f"the weight {excerpt(unused)} is of no variable")
        made = {
            i: self._variable(items[i]) for i in sorted(range(len(items)), key=order.__getitem__)
        }
        return [made[i] for i in range(len(items))]

    def _variable(self, entry: Entry) -> Variable:
        weight, name, type_, trainable, plain, random, _ = entry.fields(*_VARIABLE_FIELDS)
        stored = self._files.weights.get(weight.text())
        if stored is None:
            weight.fail(f"there is no weight {excerpt(weight.text())}")
        type = read_tensor_type(type_)
        _check_fits(type_, type, stored.type)
        variable = Variable.of_type(self._own_type(type_, type), name.label(), trainable.flag())
        variable.has_plain_name = plain.flag()
        variable.is_random_state = random.flag()
        self._files.fill(variable, stored)
        return variable

    def _own_type(self, entry: Entry, type: TensorType) -> TensorType:
        """The type of a saved Variable, no two of which have an open size of one name."""
        names = bound_names(type)
        if names & self._sizes.keys() or len(names) < _open_count(type):
            entry.fail("two open sizes of variables have one name")
        return self._named(entry, type)

    def _named(self, entry: Entry, type: TensorType) -> TensorType:
        """The type of a Variable with names of its own for the sizes that are open: those in the
        file may be the names of another Variable here."""
        if type.is_static:
            return type
        if not isinstance(type.shape, ShapeVariable):
            open_sizes = [size for size in type.shape if isinstance(size, Dim)]
            if any(size.name is None or "." in size.name for size in open_sizes):
                entry.fail("an open size of a variable is a name")
        if not self._taken:
            types = {type for graph in self._graphs.values() for type in graph.input_types}
            self._taken.update(*map(bound_names, types))
        if not bound_names(type) <= self._sizes.keys():
            self._sizes.update(new_names(type, names_of_sizes(self._taken)))
        return with_sizes(type, self._sizes)

    def _variable_of(self, entry: Entry) -> Variable:
        return self._variables[entry.count(len(self._variables))]

    # Modules.

    def _new_module(self, entry: Entry) -> Any:
        cls, attributes, hidden, omitted = entry.fields("class", "attributes", "hidden", "omitted")
        name = cls.label()
        if not name.isidentifier():
            cls.fail(f"{excerpt(name)} is no name of a class")
        names = [self._attribute_name(_pair(row)[0]) for row in attributes.items()]
        if len(set(names)) < len(names):
            attributes.fail("an attribute is given twice")
        reasons = {_pair(row)[0].label(): _pair(row)[1].label() for row in omitted.items()}
        return new_module(name, names, hidden.each(Entry.text), reasons)

    def _attribute_name(self, entry: Entry) -> str:
        name = entry.text()
        problem = attribute_problem(name)
        if problem:
            entry.fail(f"no attribute is called {excerpt(name)}, which {problem}")
        return name

    def _fill(self, module: Any, entry: Entry) -> None:
        for row in entry.pairs()["attributes"].items():
            name, given = _pair(row)
            value = self._decoder.read(given)
            if name.text() == "_name" and not _is_module_name(value):
                given.fail("the name of a module is a string, and an identifier")
            is_function = isinstance(value, (Function, ConcreteFunction))
            if name.text() == "__call__" and not is_function:
                given.fail("what is called is a function")
            vars(module)[name.text()] = value

    # Functions.

    def _function(self, entry: Entry) -> Any:
        name_, parameters_, traces, declared, concrete = entry.fields(
            "name", "parameters", "traces", optional=("input_signature", "is_concrete")
        )
        name = name_.label()
        parameters = self._parameters(parameters_)
        specs = self._plain.read(declared)
        if type(specs) not in (tuple, list, type(None)):
            declared.fail("an input_signature is a tuple or a list")
        try:
            function = SavedFunction(name, parameters, self._records, input_signature=specs)
        except TraceError as error:
            declared.fail(fact_of(error), cause=error)
        found = [self._trace(trace, function) for trace in traces.items()]
        if concrete.optional(Entry.flag):
            if len(found) != 1:
                traces.fail(f"a concrete function has one trace, and this one has {len(found)}")
            return found[0]
        if len({trace.request.key for trace in found}) < len(found):
            traces.fail("two traces are for the same arguments")
        for trace in found:
            function.add(trace)
        if specs is not None:
            try:
                function.get_concrete_function()
            except TraceError as error:
                traces.fail(f"none is for the input_signature: {fact_of(error)}", cause=error)
        return function

    def _parameters(self, entry: Entry) -> inspect.Signature:
        found = []
        for row in entry.items():
            name, kind, default = row.fields("name", "kind", optional=("default",))
            try:
                found.append(
                    inspect.Parameter(
                        name.label(),
                        kind.choice(_KINDS),
                        default=self._default(default, "default" in row.pairs()),
                    )
                )
            except ValueError as error:
                row.fail(str(error), cause=error)
        if any(unicodedata.normalize("NFKC", p.name) != p.name for p in found):
            entry.fail("the name of a parameter is written in several ways")
        try:
            return inspect.Signature(found)
        except ValueError as error:
            entry.fail(str(error), cause=error)

    def _default(self, entry: Entry, is_given: bool) -> Any:
        if not is_given:
            return inspect.Parameter.empty
        return self._defaults.read(entry)

    def _trace(self, entry: Entry, function: SavedFunction) -> ConcreteFunction:
        names = (
            "graph",
            "arguments",
            "results",
            "variables",
            "assigned",
            "captures",
            "token",
            "checks",
        )
        graph_, arguments, results, variables, assigned, captures, token, checks = entry.fields(
            *names
        )
        graph = graph_.choice(self._graphs)
        request = _Arguments(self._records, self._named).request(arguments, function.signature)
        if self._sizes:
            graph = renamed(graph, self._sizes, self._own)
        stand_ins: dict[int, StandIn] = {}
        given = {}
        for place, key in enumerate(request.keys):
            if isinstance(key, VariableKey) and key.alias == len(given):
                given[place] = Variable.of_type(key.type, request.names[place], key.trainable)
        used = [self._traced_variable(row, given, stand_ins) for row in variables.items()]
        if len(set(map(id, used))) < len(used):
            variables.fail("a variable is given twice")
        places = assigned.each(lambda e: e.count(len(used)))
        if sorted(set(places)) != places:
            assigned.fail("the variables that are assigned are not in their order")
        traced = Traced(
            graph=graph,
            argument_count=len(request.types),
            result_count=0,
            variables=tuple(used),
            assigned=tuple(places),
            captures=tuple(captures.each(self._tensor_of)),
            has_token=token.flag(),
            checks=tuple(checks.each(_check_report)),
        )
        packed = _Results(self._records, self._constant).read(results)
        traced = _with_results(entry, traced, packed.count)
        self._check_sizes(graph_, graph)
        _check_inputs(entry, traced, request)
        _check_outputs(entry, traced, packed)
        return SavedConcreteFunction(request, traced, packed.results, stand_ins)

    def _check_sizes(self, entry: Entry, graph: Graph) -> None:
        """Raises LoadError for an open size that no input of its graph gives a value."""
        for inner in graph.graphs():
            if inner not in self._closed:
                known = set().union(*map(bound_names, inner.input_types))
                shapes = [name[1:] for name in known if name.startswith("*")]
                known.update(f"{name}.{of}" for name in shapes for of in ("size", "rank"))
                unknown = sorted(_sizes_used(inner) - known)
                if unknown:
                    entry.fail(f"no input of @{inner.name} gives the size {unknown[0]} a value")
                self._closed.add(inner)

    def _traced_variable(
        self, entry: Entry, given: Mapping[int, Variable], stand_ins: dict[int, StandIn]
    ) -> Variable:
        pairs = entry.pairs()
        if set(pairs) == {"argument"}:
            place = pairs["argument"].count()
            if place not in given:
                entry.fail(f"the argument {place} is no Variable, or one that came before")
            stand_ins[id(given[place])] = StandIn(place, _nothing)
            return given[place]
        (variable,) = entry.fields("variable")
        return self._variable_of(variable)

    # Signatures.

    def _signature(self, name: str, entry: Entry) -> SignatureFunction:
        function, inputs, outputs, program = entry.fields(
            "function", "inputs", "outputs", optional=("program",)
        )
        problem = label_problem(name)
        if problem:
            entry.fail(f"the name of the signature {problem}")
        concrete = self._functions[function.count(len(self._functions))]
        if not isinstance(concrete, ConcreteFunction):
            function.fail("a signature is a concrete function")
        found = SignatureFunction(
            name,
            concrete,
            inputs.each(Entry.text),
            outputs.each(Entry.text),
            program.optional(self._files.program),
        )
        names = found.input_names
        if len(names) != len(concrete.argument_types) or len(set(names)) < len(names):
            inputs.fail(f"they do not name the {len(concrete.argument_types)} inputs")
        names = found.output_names
        if len(names) != len(concrete.outputs) or len(set(names)) < len(names):
            outputs.fail(f"they do not name the {len(concrete.outputs)} outputs")
        return found


_FIELDS = (
    *("format", "version", "producer", "custom_gradients", "graphs", "root", "signatures"),
    *("objects", "functions", "variables", "weights", "constants", "files"),
)


_VARIABLE_FIELDS = (
    *("weight", "name", "type", "trainable", "plain_name", "random_state", "created"),
)


class _Arrays(Mapping[str, Any]):
    """The arrays beside a text, each read where the text names it."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Any:
        return self._stored[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Any:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _nothing() -> None:
    """In place of a weak reference to a Variable that is gone."""


class _Leaf:
    """What stands in the place of a leaf while a structure is read."""

    def __init__(self, entry: Entry, kind: str) -> None:
        self.entry = entry
        self.kind = kind


class _Arguments:
    """Reads the arguments of a trace: a structure whose leaves say what they were traced for."""

    def __init__(self, records: Records, named: Callable[[Entry, TensorType], TensorType]) -> None:
        kinds = ("argument", "stand_in", "value")
        self._named = named
        self._decoder = Decoder(records, {kind: _leaf_reader(kind) for kind in kinds})
        self._plain = Decoder(records)

    def request(self, entry: Entry, signature: Signature) -> Request:
        value = self._decoder.read(entry)
        kinds = [type(item) for item in value] if type(value) is tuple else []
        if kinds != [tuple, dict]:
            entry.fail("the arguments are a pair of a tuple and a dict")
        try:
            leaves, structure = nest.flatten_structure(value)
        except Mismatch as mismatch:
            entry.fail(mismatch.fact, cause=mismatch)
        if any(not isinstance(leaf, _Leaf) for leaf in leaves):
            entry.fail("each leaf says what it was traced for")
        keys, values, specs = [], [], []
        aliases: list[VariableKey] = []
        for leaf in leaves:
            key, kept, spec = self._leaf(leaf, aliases)
            keys.append(key)
            values.append(kept)
            if leaf.kind == "argument":
                specs.append(spec)
        request = Request(tuple(values), structure, tuple(keys), signature, tuple(specs))
        self._check_names(entry, request)
        return request

    def _check_names(self, entry: Entry, request: Request) -> None:
        args, kwargs = request.structure.pack([None] * request.structure.count)
        try:
            request.signature.parameters.bind(*args, **kwargs)
        except TypeError as error:
            entry.fail(f"the arguments do not fit the parameters: {error}", cause=error)
        if not all(request.names):
            entry.fail("an argument has no name")

    def _leaf(self, leaf: _Leaf, aliases: list[VariableKey]) -> tuple[Any, Any, Any]:
        """The key of an argument, its value where it is a constant, and its spec."""
        if leaf.kind == "value":
            value = self._plain.read(leaf.entry)
            if type(value) not in _VALUES:
                leaf.entry.fail("no trace is made for a value of this kind")
            return leaf_key(value), value, None
        if leaf.kind == "argument":
            type_, spec = leaf.entry.fields("type", "spec")
            return _tensor_type(type_), None, self._spec(spec, _tensor_type(type_))
        type_, trainable, alias = leaf.entry.fields("type", "trainable", "alias")
        named = self._named(type_, _tensor_type(type_))
        key = VariableKey(named, trainable.flag(), alias.count(len(aliases) + 1))
        aliases[key.alias :] = aliases[key.alias :] or [key]
        if aliases[key.alias] != key:
            alias.fail("one variable has two types")
        return key, None, None

    def _spec(self, entry: Entry, type: TensorType) -> TensorSpec | None:
        """What an argument was declared with: it allows the type for which it was traced."""
        spec = self._plain.read(entry)
        if spec is None:
            return None
        if not isinstance(spec, TensorSpec):
            entry.fail("it is no spec")
        shape = None if isinstance(type.shape, ShapeVariable) else type.shape
        if spec.dtype is not type.dtype or not spec.shape.is_compatible_with(shape):
            entry.fail(f"{spec!r} does not allow {type}")
        return spec


def _tensor_type(entry: Entry) -> TensorType:
    type = read_tensor_type(entry)
    if type is TOKEN:
        entry.fail("no argument is a token")
    return type


class _Packed:
    """The results of a trace: how they are packed, how many tensors they are, and how many values
    those that belong to sparse Jacobians have."""

    def __init__(self, results: Results, count: int, sparse: Mapping[int, int]) -> None:
        self.results = results
        self.count = count
        self.sparse = sparse


class _Results:
    """Reads the results of a trace: a structure with the numbers of its tensors."""

    def __init__(self, records: Records, constant: Any) -> None:
        self._constant = constant
        self._sizes: dict[int, int] = {}
        self._decoder = Decoder(
            records, {"result": _leaf_reader("result"), "sparse_jacobian": self._sparse}
        )

    def read(self, entry: Entry) -> _Packed:
        value = self._decoder.read(entry)
        try:
            leaves, structure = nest.flatten_structure(value, none_is_leaf=True)
        except Mismatch as mismatch:
            entry.fail(mismatch.fact, cause=mismatch)
        tensors = [leaf for leaf in leaves if leaf is not None]
        for number, leaf in enumerate(tensors):
            if not isinstance(leaf, _Leaf) or leaf.entry.count() != number:
                entry.fail("the results are numbered in their order")
        return _Packed(Results(structure, leaves), len(tensors), self._sizes)

    def _sparse(self, entry: Entry) -> SparseJacobian:
        arrays = ("rows", "columns", "column_colours", "row_colours", "products", "places")
        values_, target_, source_, *names = entry.fields("values", "target", "source", *arrays)
        values = self._decoder.read(values_)
        if not isinstance(values, _Leaf):
            values_.fail("the values of a matrix are one tensor")
        found = [self._constant(name).read() for name in names]
        if any(array.ndim != 1 or array.dtype != _INDEX for array in found):
            entry.fail("places in a matrix are lists of integers of 64 bits")
        target, source = (tuple(e.each(Entry.count)) for e in (target_, source_))
        rows, columns, column_colours, row_colours, products, places = found
        shape = len(row_colours), len(column_colours)
        if shape != (math.prod(target), math.prod(source)):
            entry.fail(
                f"{target} and {source} are the shapes of another matrix than one of {shape}"
            )
        problem = _misfit(shape, found)
        if problem:
            entry.fail(problem)
        self._sizes[values.entry.count()] = len(rows)
        colouring = Colouring(shape, column_colours, row_colours, products, places)
        return SparseJacobian(
            values,  # type: ignore[arg-type]
            Sparsity(shape, rows, columns, colouring),
            target,
            source,
        )


def _misfit(shape: tuple[int, int], arrays: Sequence[np.ndarray]) -> str:
    """What of a sparse matrix is out of its range; nothing if all fits."""
    rows, columns, column_colours, row_colours, products, places = arrays
    if len({len(rows), len(columns), len(products), len(places)}) > 1:
        return "the entries of a matrix have each a row, a column, a product and a place"
    counts = [int(colours.max(initial=-1)) + 1 for colours in (column_colours, row_colours)]
    limits = (
        *((rows, 0, shape[0]), (columns, 0, shape[1])),
        *((column_colours, -1, shape[1]), (row_colours, -1, shape[0])),
        *((products, 0, sum(counts)), (places, 0, max(shape))),
    )
    for numbers, least, limit in limits:
        if numbers.size and not least <= numbers.min() <= numbers.max() < limit:
            return "an entry stands outside of the matrix"
    if shape[0] * shape[1] >= 2**63 or np.any(np.diff(rows * shape[1] + columns) <= 0):
        return "the entries of a matrix are not in their order"
    return ""


def _leaf_reader(kind: str) -> Any:
    return lambda entry: _Leaf(entry, kind)


def _sizes_used(graph: Graph) -> set[str]:
    """The names of all open sizes and shapes in a graph, without those of the graphs it calls."""
    types = {y.type for node in graph.nodes for y in node.outputs} | set(graph.input_types)
    found = set().union(*(_names_in(type) for type in types if not type.is_static))
    ops = {node.op for node in graph.nodes}
    return found.union(*(_names_in(op.attributes) for op in ops))


def _names_in(value: Any) -> set[str]:
    if isinstance(value, Dim):
        return set(value.names())
    if isinstance(value, ShapeVariable):
        return {str(value)}
    if isinstance(value, TensorType):
        return _names_in(value.shape)
    return set().union(*map(_names_in, value)) if isinstance(value, tuple) else set()


def _pair(entry: Entry) -> tuple[Entry, Entry]:
    items = entry.items()
    if len(items) != 2:
        entry.fail(f"it has {len(items)} entries, and it must have 2")
    return items[0], items[1]


def _check_fits(entry: Entry, type: TensorType, stored: TensorType) -> None:
    """Whether a stored value is one of a Variable's declared type, whose sizes may be open."""
    fits = type.dtype is stored.dtype
    if not isinstance(type.shape, ShapeVariable):
        pairs = list(zip(type.shape, stored.shape))  # type: ignore[arg-type]
        fits = fits and len(type.shape) == len(stored.shape)  # type: ignore[arg-type]
        fits = fits and all(size == given for size, given in pairs if isinstance(size, int))
    if not fits:
        entry.fail(f"the weight is {stored}, and the variable is {type}")


def _open_count(type: TensorType) -> int:
    """How many sizes of a type are open; an open shape counts as one."""
    if isinstance(type.shape, ShapeVariable):
        return 1
    return sum(isinstance(size, Dim) for size in type.shape)


def _is_module_name(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.isidentifier())


def _check_report(entry: Entry) -> CheckReport:
    message, file, line, roles, operands, fix, is_range, sites = entry.fields(
        *("message", "file", "line", "roles", "operands"), optional=("fix", "is_range", "sites")
    )
    report = CheckReport(
        message.text(),
        _place(file, line, roles),
        operands.count(limits.MOST_OPERANDS),
        fix.optional(Entry.text) or "",
        is_range.optional(Entry.flag) or False,
        tuple(sites.optional(lambda e: e.each(_site)) or ()),
    )
    wanted = 4 if report.is_range else 1 if report.sites else report.operand_count
    if report.operand_count != wanted:
        operands.fail(f"a check of this kind has {wanted} operands")
    return report


def _site(entry: Entry) -> Site:
    fact, file, line, roles, operands = entry.fields("fact", "file", "line", "roles", "operands")
    return Site(fact.text(), _place(file, line, roles), tuple(operands.each(Entry.text)))


def _place(file: Entry, line: Entry, roles: Entry) -> Source:
    """A line of the user's, and the passes that derived something of it."""
    if "/" in file.label() or "\\" in file.label():
        file.fail(f"{excerpt(file.text())} names a folder")
    return Source.at(file.text(), line.count(10**9), tuple(roles.each(Entry.label)))


def _with_results(entry: Entry, traced: Traced, count: int) -> Traced:
    """The traced body with its number of results, which must be what the graph has room for."""
    traced = dataclasses.replace(traced, result_count=count)
    flags = sum(1 + report.operand_count for report in traced.checks)
    wanted = count + len(traced.assigned) + traced.has_token + flags
    if wanted != len(traced.graph.outputs):
        entry.fail(f"the graph has {len(traced.graph.outputs)} outputs, and {wanted} are described")
    return traced


def _check_inputs(entry: Entry, traced: Traced, request: Request) -> None:
    """Raises LoadError where the inputs and outputs of a graph are not what is said of them."""
    wanted = [
        *request.types,
        *(v.tensor_type for v in traced.variables),
        *(x.type for x in traced.captures),
        *([TOKEN] if traced.has_token else []),
    ]
    found = traced.graph.input_types
    if len(found) != len(wanted):
        entry.fail(f"the graph has {len(found)} inputs, and {len(wanted)} are described")
    for number, (type, described) in enumerate(zip(found, wanted)):
        if type is not described:
            entry.fail(f"input {number} of the graph is {type}, and {described} is described")


def _check_outputs(entry: Entry, traced: Traced, packed: _Packed) -> None:
    """Raises LoadError where the outputs of a graph are not what is said of them."""
    results = traced.graph.output_types[: traced.result_count]
    outputs = traced.graph.output_types[traced.result_count :]
    for number, count in packed.sparse.items():
        if results[number].shape != (count,):
            entry.fail(f"a matrix of {count} values has those of type {results[number]}")
    for number, place in enumerate(traced.assigned):
        expected = traced.variables[place].tensor_type
        if not _may_hold(expected, outputs[number]):
            entry.fail(f"a variable of type {expected} is assigned {outputs[number]}")
    if traced.has_token and outputs[len(traced.assigned)] is not TOKEN:
        entry.fail("the token is not where it is described")
    if traced.graph.output_types.count(TOKEN) > traced.has_token:
        entry.fail("a token is no result")
    place = traced.first_check
    for report in traced.checks:
        flag = traced.graph.output_types[place]
        if flag.dtype.name != "bool" or flag.shape != ():
            entry.fail(f"the flag of a check is {flag}")
        operands = traced.graph.output_types[place + 1 : place + 1 + report.operand_count]
        if (report.is_range or report.sites) and not _are_numbers(operands):
            entry.fail("the operands of a check of this kind are integers, one for each")
        place += 1 + report.operand_count


def _are_numbers(operands: Sequence[TensorType]) -> bool:
    """Whether operands are integers, alone or one for each iteration of a loop."""
    shapes = {operand.shape for operand in operands if operand.shape != ()}
    return all(operand.dtype.is_integer for operand in operands) and len(shapes) <= 1


def _may_hold(variable: TensorType, value: TensorType) -> bool:
    """Whether a variable may be assigned a value of this type, at any sizes that are open."""
    if variable.dtype is not value.dtype:
        return False
    if variable.is_static or isinstance(variable.shape, ShapeVariable):
        return variable is value or isinstance(variable.shape, ShapeVariable)
    if isinstance(value.shape, ShapeVariable) or len(value.shape) != len(variable.shape):
        return False
    pairs = zip(variable.shape, value.shape, strict=True)
    return all(size == given for size, given in pairs if isinstance(size, int))
