"""Loading: a manifest that is not trusted, a text of graphs, and tensors, as objects again."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from typing import Any

from tracegraph import nest
from tracegraph.archive.directory import Reader
from tracegraph.archive.manifest import Entry
from tracegraph.archive.tensors import Stored, TensorFile, stored_arrays, unlisted
from tracegraph.archive.values import Decoder, Records, read_tensor_type
from tracegraph.control.sparse import Sparsity
from tracegraph.errors import LoadError, Mismatch, TraceError, fact_of, fail
from tracegraph.ir.tensor import Graph, Tensor, host_tensor
from tracegraph.passes.colouring import Colouring
from tracegraph.runtime.concrete import ConcreteFunction, StandIn
from tracegraph.runtime.results import Results
from tracegraph.runtime.signature import Request, Signature, VariableKey, leaf_key
from tracegraph.runtime.sparse import SparseJacobian
from tracegraph.runtime.trace import CheckReport, Traced
from tracegraph.runtime.variable import Reference, Variable
from tracegraph.saved_model.options import FORMAT, VERSION, Asset, LoadOptions, as_options
from tracegraph.saved_model.restored import (
    LoadedModule,
    SavedFunction,
    SignatureFunction,
    new_module,
    with_signatures,
    wrapped,
)
from tracegraph.source import Source
from tracegraph.text.parser import parse_module
from tracegraph.types import TOKEN, TensorType

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
    return _Loader(reader, chosen).load()


class _Loader:
    """Makes the objects of a manifest; those that are named by numbers are made first, empty."""

    def __init__(self, reader: Reader, options: LoadOptions) -> None:
        self._reader = reader
        self._fields = dict(zip(_FIELDS, reader.entry.fields(*_FIELDS)))
        names = reader.check_files(self._fields["files"])
        if options.verify:
            reader.verify()
        self._tensors = {
            name: TensorFile(reader.root / name, str(reader.root / name))
            for name in names
            if name.endswith(".safetensors") and "/" not in name
        }
        self._weights = stored_arrays(self._fields["weights"], self._tensors)
        self._constants = stored_arrays(self._fields["constants"], self._tensors)
        extra = next(unlisted(self._tensors.values(), (self._weights, self._constants)), None)
        if extra is not None:
            reader.entry.fail(f"no table lists the tensor {extra}")
        self._records = Records()
        self._decoder = Decoder(
            self._records,
            {
                "object": lambda e: self._modules[e.count(len(self._modules))],
                "variable": self._variable_of,
                "reference": lambda e: Reference(self._variable_of(e)),
                "function": lambda e: self._functions[e.count(len(self._functions))],
                "tensor": lambda e: self._tensor_of(e),
                "array": lambda e: self._constant(e).read(),
                "asset": lambda e: Asset(self._reader.path(e)),
            },
        )

    def load(self) -> LoadedModule:
        fields = self._fields
        fields["producer"].text()
        fields["custom_gradients"].flag()
        self._graphs = self._read_graphs(fields["graphs"])
        self._variables = self._read_variables(fields["variables"])
        self._modules = fields["objects"].each(self._new_module)
        self._functions: list[Any] = []
        self._functions.extend(fields["functions"].each(self._function))
        for module, entry in zip(self._modules, fields["objects"].items(), strict=True):
            self._fill(module, entry)
        root = self._decoder.read(fields["root"])
        if not isinstance(root, LoadedModule):
            root = wrapped(root)
        signatures = {
            name: self._signature(name, entry)
            for name, entry in fields["signatures"].pairs().items()
        }
        return with_signatures(root, signatures)

    # Graphs and tensors.

    def _read_graphs(self, entry: Entry) -> dict[str, Graph]:
        data = self._reader.checked_bytes(entry)
        if not data.strip():
            return {}
        arrays = _Arrays(self._constants)
        try:
            return parse_module(data.decode(), arrays)
        except UnicodeDecodeError as error:
            fail(LoadError, f"{self._reader.path(entry)} is no text: {error}", cause=error)
        except LoadError as error:
            fail(LoadError, f"{self._reader.path(entry)}: {fact_of(error)}", cause=error)

    def _constant(self, entry: Entry) -> Stored:
        name = entry.text()
        if name not in self._constants:
            entry.fail(f"there is no constant {name[:60]!r}")
        return self._constants[name]

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
        made = {
            i: self._variable(items[i]) for i in sorted(range(len(items)), key=order.__getitem__)
        }
        return [made[i] for i in range(len(items))]

    def _variable(self, entry: Entry) -> Variable:
        weight, name, type_, trainable, plain, random, _ = entry.fields(*_VARIABLE_FIELDS)
        stored = self._weights.get(weight.text())
        if stored is None:
            weight.fail(f"there is no weight {weight.text()[:60]!r}")
        type = read_tensor_type(type_)
        _check_fits(type_, type, stored.type)
        variable = Variable.of_type(type, name.text(), trainable.flag())
        variable.has_plain_name = plain.flag()
        variable.is_random_state = random.flag()
        variable.keep_in_file(stored)
        return variable

    def _variable_of(self, entry: Entry) -> Variable:
        return self._variables[entry.count(len(self._variables))]

    # Modules.

    def _new_module(self, entry: Entry) -> Any:
        cls, attributes, hidden, omitted = entry.fields("class", "attributes", "hidden", "omitted")
        name = cls.text()
        if not name.isidentifier():
            cls.fail(f"{name[:60]!r} is no name of a class")
        names = [_pair(row)[0].text() for row in attributes.items()]
        if len(set(names)) < len(names):
            attributes.fail("an attribute is given twice")
        reasons = {_pair(row)[0].text(): _pair(row)[1].text() for row in omitted.items()}
        return new_module(name, "__call__" in names, hidden.each(Entry.text), reasons)

    def _fill(self, module: Any, entry: Entry) -> None:
        for row in entry.pairs()["attributes"].items():
            name, value = _pair(row)
            vars(module)[name.text()] = self._decoder.read(value)

    # Functions.

    def _function(self, entry: Entry) -> Any:
        name_, parameters_, traces, declared, concrete = entry.fields(
            "name", "parameters", "traces", optional=("input_signature", "is_concrete")
        )
        name = name_.text()
        parameters = self._parameters(parameters_)
        specs = self._decoder.read(declared)
        try:
            function = SavedFunction(name, parameters, self._records, input_signature=specs)
        except TraceError as error:
            declared.fail(fact_of(error), cause=error)
        found = [self._trace(trace, function) for trace in traces.items()]
        if concrete.optional(Entry.flag):
            if len(found) != 1:
                traces.fail(f"a concrete function has one trace, and this one has {len(found)}")
            return found[0]
        for trace in found:
            function.add(trace)
        return function

    def _parameters(self, entry: Entry) -> inspect.Signature:
        found = []
        for row in entry.items():
            name, kind, default = row.fields("name", "kind", optional=("default",))
            try:
                found.append(
                    inspect.Parameter(
                        name.text(),
                        kind.choice(_KINDS),
                        default=self._default(default, "default" in row.pairs()),
                    )
                )
            except ValueError as error:
                row.fail(str(error), cause=error)
        try:
            return inspect.Signature(found)
        except ValueError as error:
            entry.fail(str(error), cause=error)

    def _default(self, entry: Entry, is_given: bool) -> Any:
        if not is_given:
            return inspect.Parameter.empty
        if isinstance(entry.value, dict) and set(entry.value) == {"opaque"}:
            return _Opaque(entry.pairs()["opaque"].text())
        return self._decoder.read(entry)

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
        request = _Arguments(self._records).request(arguments, function.signature)
        stand_ins: dict[int, StandIn] = {}
        given = {}
        for place, key in enumerate(request.keys):
            if isinstance(key, VariableKey):
                given[place] = Variable.of_type(key.type, request.names[place], key.trainable)
        used = [self._traced_variable(row, given, stand_ins) for row in variables.items()]
        traced = Traced(
            graph=graph,
            argument_count=len(request.types),
            result_count=0,
            variables=tuple(used),
            assigned=tuple(assigned.each(lambda e: e.count(len(used)))),
            captures=tuple(captures.each(self._tensor_of)),
            has_token=token.flag(),
            checks=tuple(checks.each(_check_report)),
        )
        packed = _Results(self._records, self._constant).read(results)
        traced = _with_results(entry, traced, packed.count)
        _check_inputs(entry, traced, request)
        return ConcreteFunction(request, traced, packed.results, stand_ins)

    def _traced_variable(
        self, entry: Entry, given: Mapping[int, Variable], stand_ins: dict[int, StandIn]
    ) -> Variable:
        pairs = entry.pairs()
        if set(pairs) == {"argument"}:
            place = pairs["argument"].count()
            if place not in given:
                entry.fail(f"the argument {place} is no Variable")
            stand_ins[id(given[place])] = StandIn(place, _nothing)
            return given[place]
        (variable,) = entry.fields("variable")
        return self._variable_of(variable)

    # Signatures.

    def _signature(self, name: str, entry: Entry) -> SignatureFunction:
        function, inputs, outputs = entry.fields("function", "inputs", "outputs")
        concrete = self._functions[function.count(len(self._functions))]
        if not isinstance(concrete, ConcreteFunction):
            function.fail("a signature is a concrete function")
        found = SignatureFunction(name, concrete, inputs.each(Entry.text), outputs.each(Entry.text))
        if len(found.inputs) != len(concrete.argument_types) or len(set(found.inputs)) < len(
            found.inputs
        ):
            inputs.fail(f"they do not name the {len(concrete.argument_types)} inputs")
        if len(found.outputs) != len(concrete.outputs) or len(set(found.outputs)) < len(
            found.outputs
        ):
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


class _Opaque:
    """In place of a default value that was no data."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}, which was not saved>"


def _nothing() -> None:
    """In place of a weak reference to a Variable that is gone."""


class _Leaf:
    """What stands in the place of a leaf while a structure is read."""

    def __init__(self, entry: Entry, kind: str) -> None:
        self.entry = entry
        self.kind = kind


class _Arguments:
    """Reads the arguments of a trace: a structure whose leaves say what they were traced for."""

    def __init__(self, records: Records) -> None:
        kinds = ("argument", "stand_in", "value")
        self._decoder = Decoder(records, {kind: _leaf_reader(kind) for kind in kinds})
        self._plain = Decoder(records)

    def request(self, entry: Entry, signature: Signature) -> Request:
        value = self._decoder.read(entry)
        is_pair = isinstance(value, tuple) and len(value) == 2
        if not is_pair or not isinstance(value[0], tuple) or not isinstance(value[1], dict):
            entry.fail("the arguments are a pair of a tuple and a dict")
        try:
            leaves, structure = nest.flatten_structure(value)
        except Mismatch as mismatch:
            entry.fail(mismatch.fact, cause=mismatch)
        if any(not isinstance(leaf, _Leaf) for leaf in leaves):
            entry.fail("each leaf says what it was traced for")
        keys, values, specs = [], [], []
        for leaf in leaves:
            key, kept, spec = self._leaf(leaf)
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

    def _leaf(self, leaf: _Leaf) -> tuple[Any, Any, Any]:
        """The key of an argument, its value where it is a constant, and its spec."""
        if leaf.kind == "value":
            value = self._plain.read(leaf.entry)
            return leaf_key(value), value, None
        if leaf.kind == "argument":
            type_, spec = leaf.entry.fields("type", "spec")
            declared = self._plain.read(spec)
            return read_tensor_type(type_), None, declared
        type_, trainable, alias = leaf.entry.fields("type", "trainable", "alias")
        key = VariableKey(read_tensor_type(type_), trainable.flag(), alias.count())
        return key, None, None


class _Packed:
    """The results of a trace: how they are packed, and how many tensors they are."""

    def __init__(self, results: Results, count: int) -> None:
        self.results = results
        self.count = count


class _Results:
    """Reads the results of a trace: a structure with the numbers of its tensors."""

    def __init__(self, records: Records, constant: Any) -> None:
        self._constant = constant
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
        return _Packed(Results(structure, leaves), len(tensors))

    def _sparse(self, entry: Entry) -> SparseJacobian:
        arrays = ("rows", "columns", "column_colours", "row_colours", "products", "places")
        values, target, source, *names = entry.fields("values", "target", "source", *arrays)
        found = [self._constant(name).read() for name in names]
        if any(array.ndim != 1 or array.dtype.kind != "i" for array in found):
            entry.fail("places in a matrix are lists of integers")
        shapes = [tuple(e.each(Entry.count)) for e in (target, source)]
        rows, columns, column_colours, row_colours, products, places = found
        height, width = len(row_colours), len(column_colours)
        for numbers, limit in ((rows, height), (columns, width)):
            if numbers.size and not 0 <= numbers.min() <= numbers.max() < limit:
                entry.fail("an entry stands outside of the matrix")
        shape = (height, width)
        colouring = Colouring(shape, column_colours, row_colours, products, places)
        return SparseJacobian(
            self._decoder.read(values), Sparsity(shape, rows, columns, colouring), *shapes
        )


def _leaf_reader(kind: str) -> Any:
    return lambda entry: _Leaf(entry, kind)


def _pair(entry: Entry) -> tuple[Entry, Entry]:
    items = entry.items()
    if len(items) != 2:
        entry.fail(f"it has {len(items)} entries, and it must have 2")
    return items[0], items[1]


def _check_fits(entry: Entry, type: TensorType, stored: TensorType) -> None:
    """Whether a stored value is one of a Variable's declared type, whose sizes may be open."""
    same_rank = isinstance(type.shape, tuple) and len(type.shape) == len(stored.shape)  # type: ignore[arg-type]
    if type.dtype is not stored.dtype or not same_rank:
        entry.fail(f"the weight is {stored}, and the variable is {type}")
    pairs = zip(type.shape, stored.shape, strict=True)  # type: ignore[arg-type]
    if any(isinstance(size, int) and size != given for size, given in pairs):
        entry.fail(f"the weight is {stored}, and the variable is {type}")


def _check_report(entry: Entry) -> CheckReport:
    message, file, line, operands = entry.fields("message", "file", "line", "operands")
    source = Source.at(file.text(), line.count(2**31))
    return CheckReport(message.text(), source, operands.count(2**16))


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
    outputs = traced.graph.output_types[traced.result_count :]
    for number, place in enumerate(traced.assigned):
        expected = traced.variables[place].tensor_type
        if outputs[number].dtype is not expected.dtype:
            entry.fail(f"a variable of type {expected} is assigned {outputs[number]}")
    if traced.has_token and outputs[len(traced.assigned)] is not TOKEN:
        entry.fail("the token is not where it is described")
    place = traced.first_check
    for report in traced.checks:
        flag = traced.graph.output_types[place]
        if flag.dtype.name != "bool" or flag.shape != ():
            entry.fail(f"the flag of a check is {flag}")
        place += 1 + report.operand_count
