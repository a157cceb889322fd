"""The arguments and results of a trace: structures of tensors, Variables and constants, as JSON
and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from tracegraph import nest
from tracegraph.archive.manifest import Entry
from tracegraph.archive.value_encoding import (
    Decoder,
    NoData,
    Records,
    Special,
    encoded,
    read_tensor_type,
)
from tracegraph.core.shapes import ShapeVariable
from tracegraph.core.tensorshape import TensorShape, TensorSpec
from tracegraph.core.types import TOKEN, DType, TensorType
from tracegraph.differentiation.sparse_jacobian import SparseJacobian
from tracegraph.errors import SignatureError, fail, kind_of, shown
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.saved_model.schema.open_sizes import SizeRow
from tracegraph.saved_model.schema.sparse_jacobians import read_matrix, written_matrix
from tracegraph.signatures.results import Results
from tracegraph.signatures.signature import (
    ObjectKey,
    Request,
    Signature,
    VariableKey,
    is_tensor_key,
    leaf_key,
)

#: The types of constants that traces are specialized for.
_VALUES = (bool, int, float, complex, str, bytes, DType, TensorType, TensorShape)


def written_arguments(concrete: ConcreteFunction) -> tuple[Any, list[SizeRow]]:
    """The structure of the arguments, with what each leaf was traced for; and the arguments that
    are Variables, with their types. Raises SignatureError if no file can hold them."""
    request = concrete.request
    specs = iter(request.tensor_specs)
    rows = zip(request.keys, request.leaves, request.names, strict=True)
    leaves = [
        _written_tensor(key, next(specs))
        if is_tensor_key(key)
        else _written_leaf(concrete, key, *row)
        for key, *row in rows
    ]
    stand_ins = [
        (leaf["stand_in"], key.type)
        for leaf, key in zip(leaves, request.keys, strict=True)
        if isinstance(key, VariableKey)
    ]
    return _written_structure(request.structure, leaves, concrete.name, _refused_matrix), stand_ins


def written_results(concrete: ConcreteFunction, array: Callable[[np.ndarray], str]) -> Any:
    """The structure of the results, with their numbers; `array` names a constant."""
    counter = iter(range(concrete.traced.result_count))
    flags = concrete.results.flags
    leaves = [{"result": next(counter)} if flag else None for flag in flags]

    def matrix(item: SparseJacobian, special: Special) -> Any:
        return written_matrix(item, special, array)

    return _written_structure(concrete.results.structure, leaves, concrete.name, matrix)


def _written_tensor(key: Any, spec: TensorSpec | None) -> Any:
    return {"argument": {"type": str(key), "spec": None if spec is None else encoded(spec)}}


def _written_leaf(concrete: ConcreteFunction, key: Any, leaf: Any, name: str) -> Any:
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


def _refused_matrix(matrix: SparseJacobian, special: Special) -> NoReturn:
    """Rejects a sparse Jacobian as argument: its trace is specific to this object's sparsity."""
    raise NoData(matrix)


def _written_structure(
    structure: Any, leaves: list[Any], name: str, matrix: Callable[[SparseJacobian, Special], Any]
) -> Any:
    """A structure with JSON values in place of its leaves; `matrix` writes sparse Jacobians.
    Mappings and lists of the user's own classes become dicts and lists, in whose place a loaded
    function takes them."""

    def special(item: Any) -> Any:
        if isinstance(item, nest.LeafNumber):
            return leaves[item.number]
        if isinstance(item, SparseJacobian):
            return {"sparse_jacobian": matrix(item, special)}
        if isinstance(item, Mapping):
            return encoded(dict(cast("Mapping[Any, Any]", item)), special)
        if isinstance(item, list):
            return encoded(list(cast("list[Any]", item)), special)
        raise NoData(item)

    packed = structure.numbered()
    try:
        return encoded(packed, special)
    except NoData as problem:
        fail(
            SignatureError,
            f"{name} takes or returns {kind_of(problem.args[0])}, whose structure no file can hold",
            fix="use lists, tuples, dicts, namedtuples and dataclasses",
        )


class _LeafPlaceholder:
    """A placeholder for a leaf while a structure is read."""

    def __init__(self, entry: Entry, kind: str) -> None:
        self.entry = entry
        self.kind = kind


def _leaf_reader(kind: str) -> Any:
    return lambda entry: _LeafPlaceholder(entry, kind)


class ArgumentReader:
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
        leaves, structure = entry.tried(lambda: nest.flatten_structure(value))
        if any(not isinstance(leaf, _LeafPlaceholder) for leaf in leaves):
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

    def _leaf(self, leaf: _LeafPlaceholder, aliases: list[VariableKey]) -> tuple[Any, Any, Any]:
        """The key of an argument, its value if it is a constant, and its spec."""
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
        """The declared spec of an argument, which allows the type it was traced for."""
        spec = self._plain.read(entry)
        if spec is None:
            return None
        if not isinstance(spec, TensorSpec):
            entry.fail("it is not a spec")
        shape = None if isinstance(type.shape, ShapeVariable) else type.shape
        if spec.dtype is not type.dtype or not spec.shape.is_compatible_with(shape):
            entry.fail(f"{spec!r} does not allow {type}")
        return spec


def _tensor_type(entry: Entry) -> TensorType:
    type = read_tensor_type(entry)
    if type is TOKEN:
        entry.fail("no argument is a token")
    return type


class Packed(NamedTuple):
    """The results of a trace: their structure, the number of tensors, and the number of values in
    those that belong to sparse Jacobians."""

    results: Results
    count: int
    sparse: Mapping[int, int]


class ResultReader:
    """Reads the results of a trace: a structure with the numbers of its tensors."""

    def __init__(self, records: Records, constant: Callable[[Entry], np.ndarray]) -> None:
        self._constant = constant
        self._sizes: dict[int, int] = {}
        self._decoder = Decoder(
            records, {"result": _leaf_reader("result"), "sparse_jacobian": self._matrix}
        )

    def read(self, entry: Entry) -> Packed:
        value = self._decoder.read(entry)
        leaves, structure = entry.tried(lambda: nest.flatten_structure(value, none_is_leaf=True))
        tensors = [leaf for leaf in leaves if leaf is not None]
        for number, leaf in enumerate(tensors):
            if not isinstance(leaf, _LeafPlaceholder) or leaf.entry.count() != number:
                entry.fail("the results are numbered in their order")
        return Packed(Results(structure, leaves), len(tensors), self._sizes)

    def _matrix(self, entry: Entry) -> SparseJacobian:
        matrix = read_matrix(entry, self._values, self._constant)
        leaf: Any = matrix.values
        self._sizes[leaf.entry.count()] = matrix.nnz
        return matrix

    def _values(self, entry: Entry) -> Any:
        found = self._decoder.read(entry)
        if not isinstance(found, _LeafPlaceholder):
            entry.fail("the values of a matrix are one tensor")
        return found
