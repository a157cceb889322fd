"""Loading: rebuilds objects from an untrusted manifest, a text of graphs, and tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tracegraph import nest
from tracegraph.archive import limits, manifest
from tracegraph.archive.directory import Reader, as_path, read_whole
from tracegraph.archive.layouts import LAYOUT_FIELDS, read_layout
from tracegraph.archive.manifest import Entry, excerpt, label_problem
from tracegraph.archive.value_encoding import Decoder, Records, read_tensor_type
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.eager import backend
from tracegraph.errors import LoadError, TraceError, fact_of
from tracegraph.functions.concrete import ConcreteFunction, StandIn
from tracegraph.functions.function import Function
from tracegraph.ir.tensor import Tensor, host_tensor
from tracegraph.operands.flags import as_flag
from tracegraph.saved_model.loaded_functions import (
    SavedFunction,
    SignatureFunction,
    traces_of,
    variables_of,
)
from tracegraph.saved_model.loaded_modules import (
    LoadedModule,
    attribute_problem,
    functions_in,
    new_module,
    with_captured,
    with_signatures,
    wrapped,
)
from tracegraph.saved_model.options import FORMAT, VERSION, Asset, LoadOptions, as_options
from tracegraph.saved_model.placeholders import NotSaved
from tracegraph.saved_model.schema.checks import read_check
from tracegraph.saved_model.schema.functions import RUN_OPTIONS, read_parameters, read_run_options
from tracegraph.saved_model.schema.open_sizes import LoadedSizes
from tracegraph.saved_model.schema.replicas import REPLICA_FIELDS, read_replicas
from tracegraph.saved_model.schema.structures import ArgumentReader, ResultReader
from tracegraph.saved_model.storage import Storage, in_directory, manifest_fields
from tracegraph.saved_model.traces import check_inputs, check_outputs, with_results
from tracegraph.signatures.signature import VariableKey
from tracegraph.state.module import is_name
from tracegraph.state.variable import Variable, VariableReference, has_room_for
from tracegraph.tracing.trace import Traced


@api_boundary
def load(
    export_dir: str | os.PathLike[str],
    tags: object = None,
    options: LoadOptions | None = None,
    compiled: bool = False,
) -> LoadedModule:
    """Loads an object saved by `tg.saved_model.save`, as a `tg.Module`.

    - `export_dir`: the directory. It is not trusted: nothing in it is run or imported, and any
      defect raises a LoadError.
    - `tags`: accepted, as in TensorFlow; there is one graph per directory.
    - `options`: a `tg.saved_model.LoadOptions`.
    - `compiled`: whether to use the compiled programs that `f.precompile` put beside the model.
      They are machine code, so they are read only if no other user can write to the folder or its
      parents. Programs that do not fit this version, device or flags, or are damaged, are
      recompiled; a UserWarning says why.

    Functions have the traces that were saved, with every derivative; `variables`,
    `trainable_variables` and `submodules` are as they were. Variables read their values from the
    files on first use: a later save to the same path does not change them.

    Raises LoadError (a ValueError) that names the file and the position in it.
    """
    folder = as_path("tg.saved_model.load", export_dir)
    chosen = as_options(LoadOptions, options)
    takes_programs = as_flag("load", "compiled", compiled)

    model = read_whole(folder, lambda: _loader(folder, chosen).load())
    if takes_programs:
        backend.use_programs_of(Path(folder))
    return model


def _loader(folder: str, options: LoadOptions) -> Loader:
    reader = Reader(folder)
    reader.check_format(FORMAT, VERSION)
    fields = manifest_fields(reader.entry)
    return Loader(fields, in_directory(reader, fields, options))


def saved_traces(folder: str) -> list[ConcreteFunction]:
    """The traces of all functions of a saved model. Raises LoadError as `load` does."""

    def traces() -> list[ConcreteFunction]:
        loader = _loader(folder, as_options(LoadOptions, None))
        loader.load()
        return loader.traces()

    return read_whole(folder, traces)


@api_boundary
def contains_saved_model(export_dir: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a saved model. The contents of its files are not checked.

    >>> tg.saved_model.save(tg.Module(), "empty")
    >>> tg.saved_model.contains_saved_model("empty"), tg.saved_model.contains_saved_model(".")
    (True, False)
    """
    try:
        head = manifest.head(Reader(as_path("contains_saved_model", export_dir)).entry)
    except LoadError:
        return False
    return head["format"].value == FORMAT


_VARIABLE_FIELDS = (
    *("weight", "name", "type", "trainable", "plain_name", "random_state", "created"),
)
_OPTIONAL_FIELDS = (*LAYOUT_FIELDS, *REPLICA_FIELDS)
_TRACE_FIELDS = (
    *("graph", "arguments", "results", "variables", "assigned", "captures", "token", "checks"),
)


class Loader:
    """Creates the objects of a manifest; numbered ones are first created empty."""

    def __init__(self, fields: Mapping[str, Entry], files: Storage) -> None:
        self._fields = fields
        self._files = files
        self._records = Records()
        values = {
            "variable": self._variable_of,
            "reference": lambda e: VariableReference(self._variable_of(e)),
            "tensor": self._tensor_of,
            "array": self._array_of,
            "asset": lambda e: Asset(self._files.asset(e)),
            "opaque": lambda e: NotSaved(e.label()),
        }
        objects = {
            "object": lambda e: self._modules[e.count(len(self._modules))],
            "function": lambda e: self._functions[e.count(len(self._functions))],
        }
        #: Decoders of plain data, of default values, and of a module's contents.
        self._plain = Decoder(self._records)
        self._defaults = Decoder(self._records, values)
        held = {"variable": lambda e: self._held(self._variable_of(e))}
        self._decoder = Decoder(self._records, {**values, **objects, **held})
        #: Identities of the Variables that attributes hold.
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
        self._sizes = LoadedSizes(self._graphs.values())
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

    def traces(self) -> list[ConcreteFunction]:
        """The traces of all loaded functions."""
        return [trace for function in self._functions for trace in traces_of(function)]

    def _root(self, entry: Entry) -> LoadedModule:
        root = self._decoder.read(entry)
        if isinstance(root, LoadedModule):
            return root
        if not isinstance(root, (Function, ConcreteFunction)) and type(root) not in (dict, list):
            entry.fail("the root must be an object, a function, a dict or a list")
        return wrapped(root)

    def _held(self, variable: Variable) -> Variable:
        self._in_attributes.add(id(variable))
        return variable

    def _list_captured(self, root: LoadedModule) -> None:
        """Makes modules list the Variables that functions use but no attribute holds: each module
        those of its own functions, and the root all of them."""
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

    def _array_of(self, entry: Entry) -> np.ndarray:
        return self._constant(entry).read()

    def _tensor_of(self, entry: Entry) -> Tensor:
        stored = self._constant(entry)
        return host_tensor(stored.type, stored)

    # Variables.

    def _read_variables(self, entry: Entry) -> list[Variable]:
        """The Variables by number, created in their original order."""
        rows = [item.fields(*_VARIABLE_FIELDS, optional=_OPTIONAL_FIELDS) for item in entry.items()]
        order = [row[_VARIABLE_FIELDS.index("created")].count(len(rows)) for row in rows]
        if len(set(order)) < len(order):
            entry.fail("two variables have the same place in the order of creation")
        weights = [row[_VARIABLE_FIELDS.index("weight")].text() for row in rows]
        if len(set(weights)) < len(weights):
            entry.fail("two variables share one weight")
        if len(weights) < len(self._files.weights):
            unused = min(set(self._files.weights) - set(weights))
            self._fields["weights"].fail(f"the weight {excerpt(unused)} belongs to no variable")
        pairs = sorted(zip(order, rows, strict=True), key=itemgetter(0))
        created = [self._variable(row) for _, row in pairs]
        return [created[place] for place in order]

    def _variable(self, row: list[Entry]) -> Variable:
        weight, name, type_, trainable, plain, random, _, layout, *replicas = row
        stored = self._files.weights.get(weight.text())
        if stored is None:
            weight.fail(f"there is no weight {excerpt(weight.text())}")
        type = read_tensor_type(type_)
        variable = Variable.of_type(
            self._sizes.of_variable(type_, type), name.label(), trainable.flag()
        )
        if not has_room_for(variable, stored.type):
            type_.fail(f"the weight is {stored.type}, and the variable is {type}")
        variable.has_plain_name = plain.flag()
        variable.is_random_state = random.flag()
        read_replicas(variable, replicas)
        self._files.fill(variable, stored, read_layout(layout, variable.tensor_type))
        return variable

    def _variable_of(self, entry: Entry) -> Variable:
        return self._variables[entry.count(len(self._variables))]

    # Modules.

    def _new_module(self, entry: Entry) -> Any:
        cls, attributes, hidden, omitted = entry.fields("class", "attributes", "hidden", "omitted")
        name = cls.label()
        if not name.isidentifier():
            cls.fail(f"{excerpt(name)} is not a name of a class")
        names = [self._attribute_name(row.items(2)[0]) for row in attributes.items()]
        if len(set(names)) < len(names):
            attributes.fail("an attribute is given twice")
        reasons = [[x.label() for x in row.items(2)] for row in omitted.items()]
        return new_module(name, names, hidden.each(Entry.text), dict(reasons))

    def _attribute_name(self, entry: Entry) -> str:
        name = entry.text()
        problem = attribute_problem(name)
        if problem:
            entry.fail(f"no attribute is called {excerpt(name)}, which {problem}")
        return name

    def _fill(self, module: Any, entry: Entry) -> None:
        for row in entry.pairs()["attributes"].items():
            name, given = row.items(2)
            value = self._decoder.read(given)
            if name.text() == "_name" and not (value is None or is_name(value)):
                given.fail("the name of a module must be a string without a slash")
            is_function = isinstance(value, (Function, ConcreteFunction))
            if name.text() == "__call__" and not is_function:
                given.fail("a `__call__` must be a function")
            vars(module)[name.text()] = value

    # Functions.

    def _function(self, entry: Entry) -> Any:
        name_, parameters_, traces, declared, concrete, run = entry.fields(
            *("name", "parameters", "traces"),
            optional=("input_signature", "is_concrete", RUN_OPTIONS),
        )
        name = name_.label()
        parameters = read_parameters(parameters_, self._defaults)
        specs = self._plain.read(declared)
        if type(specs) not in (tuple, list, type(None)):
            declared.fail("an input_signature is a tuple or a list")
        options = {"input_signature": specs, **read_run_options(run)}
        try:
            function = SavedFunction(name, parameters, self._records, **options)
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
            _check_declared(traces, nest.flatten(specs), found)
        return function

    def _trace(self, entry: Entry, function: SavedFunction) -> ConcreteFunction:
        graph_, arguments, results, variables, assigned, captures, token, checks = entry.fields(
            *_TRACE_FIELDS
        )
        reader = ArgumentReader(self._records, self._sizes.named)
        request = reader.request(arguments, function.signature)
        graph = self._sizes.renamed(graph_.choice(self._graphs))
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
            checks=tuple(checks.each(lambda row: read_check(row, self._files.lines))),
        )
        packed = ResultReader(self._records, self._array_of).read(results)
        traced = with_results(entry, traced, packed.count)
        self._sizes.check(graph_, graph)
        check_inputs(entry, traced, request)
        check_outputs(entry, traced, packed)
        options = function.run_options.of_trace(traced)
        return ConcreteFunction(request, traced, packed.results, stand_ins, options)

    def _traced_variable(
        self, entry: Entry, given: Mapping[int, Variable], stand_ins: dict[int, StandIn]
    ) -> Variable:
        pairs = entry.pairs()
        if set(pairs) == {"argument"}:
            place = pairs["argument"].count()
            if place not in given:
                entry.fail(f"the argument {place} is not a Variable, or is one that came before")
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
            function.fail("a signature must be a concrete function")
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


def _check_declared(entry: Entry, specs: list[Any], traces: Sequence[ConcreteFunction]) -> None:
    """Raises LoadError if the traces do not match the input signature."""
    if not traces or any(x.request.tensor_specs[: len(specs)] != specs for x in traces):
        entry.fail("none was made for the input_signature, or one for another")


def _nothing() -> None:
    """Replaces a weak reference to a Variable that no longer exists."""
