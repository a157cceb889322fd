"""TraceCache: the traces of a function, keyed by what they were traced for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.tensorshape import TensorSpec
from tracegraph.core.types import TensorType
from tracegraph.errors import Mismatch, ShapeError, SizeNeeded, TraceError
from tracegraph.functions.body import Body
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.ops.layout import mesh_around
from tracegraph.passes.specialise import bind_sizes
from tracegraph.signatures.retracing import Retracing
from tracegraph.signatures.signature import InputSignature, Request, SpecTypes, canonical_keys
from tracegraph.tracing.trace import tracing, tries

#: Traces kept per function.
_TRACE_LIMIT = 256


class TraceCache:
    """Finds or creates the trace for a request. Evicts the least recently used beyond a limit."""

    def __init__(
        self,
        body: Body,
        retracing: Retracing,
        declared: InputSignature | None,
        reduces_retracing: bool,
        on_eviction: Callable[[], None],
    ) -> None:
        self._body = body
        self._retracing = retracing
        self._declared = declared
        self._reduces_retracing = reduces_retracing
        self._on_eviction = on_eviction
        self._traces: OrderedDict[Any, ConcreteFunction] = OrderedDict()
        #: Set once an op needed the rank of an argument of undeclared rank.
        self._traces_per_rank = False
        #: Set once something needed every size.
        self._traces_per_size = False
        #: The keys of requests of open sizes that could not be traced.
        self._refused: set[Any] = set()
        #: The keys of requests that need a separate trace for each of the Variables passed.
        self._of_one_variable: set[Any] = set()
        #: Whether any trace depends on the enclosing mesh.
        self._has_meshes = False
        #: Whether the traces were loaded, so that no new ones can be made.
        self._is_given = False

    def __iter__(self) -> Iterator[ConcreteFunction]:
        """A snapshot of the traces, the least recently used first."""
        while True:
            try:
                return iter(list(self._traces.values()))
            except outside_interrupts(RuntimeError, KeyError):  # an OrderedDict raises either
                continue  # a signal handler traced this function between two of these steps

    def clear(self) -> None:
        """Forgets all traces."""
        # A finalizer of a dropped trace may call this function, and must not find half a table.
        self._traces = OrderedDict()
        self._of_one_variable.clear()
        self._refused.clear()

    def add(self, concrete: ConcreteFunction) -> None:
        """Adds a trace that was made elsewhere. From then on open sizes may be 0: there is no
        source to trace for that case."""
        self._traces[concrete.request.key] = concrete
        self._is_given = True
        declared = () if self._declared is None else self._declared.types
        for type, wanted in zip(concrete.request.types, declared):
            if wanted is not type and type.is_static and 0 not in type.shape:
                self._traces_per_size = True
            elif isinstance(wanted.shape, ShapeVariable) and isinstance(type.shape, tuple):
                self._traces_per_rank = True

    def find(self, request: Request) -> tuple[ConcreteFunction, bool]:
        """The trace for a request, and whether it was just created."""
        if self._is_given:
            request = self._in_known_order(request)
        if self._is_given and not request.variables:  # a trace for a size 0, say, comes first
            exact = self._exact(request)
            if exact is not None:
                return exact, False
        wanted = self.traced_request(request)
        concrete = self._known(wanted)
        if concrete is not None:
            return concrete, False
        with tracing:
            concrete = self._known(wanted) or self._accepting(wanted)
            if concrete is not None:
                return concrete, False
            return self._trace_new(request, wanted), True

    def _in_known_order(self, request: Request) -> Request:
        """The request with its dict keys in the order of a trace: if no other trace can be made,
        one serves every order."""
        structures = [concrete.request.structure for concrete in self]
        if request.structure in structures:
            return request
        own = next((x for x in structures if x.matches(request.structure)), request.structure)
        return dataclasses.replace(request, structure=own)

    def _known(self, request: Request) -> ConcreteFunction | None:
        if request.key in self._of_one_variable:
            request = request.with_variables_by_identity()
        concrete = self._exact(request)
        if concrete is None:
            return None
        with tracing:
            with contextlib.suppress(KeyError):  # an interrupt removed it
                self._traces.move_to_end(concrete.request.key)
        given = request.variables
        if given and concrete.captures_one_of(given):
            # The body also captures one of the arguments: such a call needs its own trace.
            return self._exact(request.with_variables_by_identity())
        return concrete

    def _exact(self, request: Request) -> ConcreteFunction | None:
        """The trace for exactly these keys; for the enclosing mesh, if it depends on that."""
        concrete = self._traces.get(request.key)
        if concrete is None and self._has_meshes:
            concrete = self._traces.get(request.of_mesh().key)
        if concrete is None and self._is_given and not request.layouts:
            # No other can be made, and this one serves arguments of every layout.
            same = (request.structure, request.keys)
            concrete = next((x for x in self if x.request.key[:2] == same), None)
        if concrete is not None and concrete.request.mesh:
            mesh_around()  # marks the trace in progress as depending on the mesh too
        return concrete

    def _serves(self, known: Request, request: Request) -> bool:
        """Whether a trace's dependences other than its arguments match those of a request."""
        is_of_mesh = not known.mesh or known.mesh == request.of_mesh().mesh
        return is_of_mesh and known.layouts == request.layouts

    def _accepting(self, request: Request) -> ConcreteFunction | None:
        """A trace with open sizes that accepts the request."""
        for concrete in self:
            known = concrete.request
            if concrete.graph.is_static:
                continue
            if not self._serves(known, request):
                continue
            if known.structure == request.structure and self._accepts(known.keys, request.keys):
                return concrete
        return None

    def _accepts(self, known: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
        sizes = _sizes_of(known, given)
        if sizes is None:
            return False
        return self._is_given or 0 not in sizes.values()  # as in `_is_empty_where_open`

    def traced_request(self, request: Request) -> Request:
        """The request with the types to trace it at: specs, open sizes, names."""
        if self._declared is not None:
            return self._with_declared_types(request)
        if any(isinstance(key, TensorSpec) for key in request.keys):
            return _with_types_of_specs(request)
        return request

    def _with_declared_types(self, request: Request) -> Request:
        assert self._declared is not None
        declared = iter(self._declared.types)
        count = len(self._declared.types)
        keys = []
        for key in request.keys:
            is_declared = count > 0 and isinstance(key, (TensorType, TensorSpec))
            keys.append(self._declared_type(key, next(declared)) if is_declared else key)
            count -= is_declared
        return request.with_keys(keys)

    def _declared_type(self, key: Any, declared: TensorType) -> TensorType:
        if self._traces_per_size and isinstance(key, TensorType):
            return key
        if not self._is_given and _is_empty_where_open(declared, key):
            return key
        if not (isinstance(declared.shape, ShapeVariable) and self._traces_per_rank):
            return declared
        if not (isinstance(key, TensorType) and isinstance(key.shape, tuple)):
            return declared
        if 0 in key.shape:
            return key
        sizes = (Dim.named(f"{declared.shape.name}.{i}") for i in range(len(key.shape)))
        return TensorType(declared.dtype, tuple(sizes))

    @tries()
    def _trace_new(self, request: Request, wanted: Request) -> ConcreteFunction:
        if self._reduces_retracing and self._declared is None:
            general = self._generalised(wanted)
            if general is not None and general.key not in self._refused:
                try:
                    return self.trace(general)
                except (ShapeError, TraceError):
                    self._refused.add(general.key)
        try:
            return self.trace(wanted)
        except SizeNeeded:
            if self._traces_per_size or any(not type.is_static for type in request.types):
                raise
            # From now on there is one trace per size, unless that is refused as well.
            self._traces_per_size = True
            try:
                return self.find(request)[0]
            except BaseException:
                self._traces_per_size = False
                raise
        except ShapeError:
            if self._traces_per_rank or not _has_open_rank(wanted):
                raise
            # An op needs the rank: from here on there is one trace per rank.
            self._traces_per_rank = True
            return self.find(request)[0]

    def _generalised(self, request: Request) -> Request | None:
        """The request with sizes left open where it differs from an earlier trace."""
        for concrete in reversed(list(self)):
            known = concrete.request
            if known.structure != request.structure or len(known.keys) != len(request.keys):
                continue
            keys = _generalised_keys(known.keys, request.keys)
            if keys is not None:
                general = canonical_keys(keys)
                return request.with_keys(general) if self._accepts(general, request.keys) else None
        return None

    def trace(self, request: Request) -> ConcreteFunction:
        """The trace for exactly these keys, created if there is none."""
        with tracing:
            concrete = self._exact(request)
            if concrete is not None and concrete.graph.is_static:
                return concrete
            with self._retracing.trace(request.without_values()):
                return self._traced(request)

    def _traced(self, request: Request) -> ConcreteFunction:
        if request.key in self._of_one_variable:
            return self._trace_by_identity(request)
        concrete = self._body.trace(request)
        if concrete.is_of_one_variable:
            self._of_one_variable.add(request.key)
            return self._trace_by_identity(request)
        self._keep(concrete)
        if request.variables and concrete.captures_one_of(request.variables):
            return self._trace_by_identity(request)
        return concrete

    def trace_again(self, request: Request) -> ConcreteFunction:
        """The trace for a request whose sizes contradict its trace's assumptions: one for the rank,
        if that trace had open rank, else one for the sizes."""
        with tracing:
            if self._traces_per_rank or not _has_open_rank(self.traced_request(request)):
                return self.trace(request)
            self._traces_per_rank = True
            return self.find(request)[0]

    def trace_anew(self, request: Request, concrete: ConcreteFunction) -> ConcreteFunction:
        """A replacement for this request's trace, whose Python functions returned other shapes."""
        with tracing:
            for key, known in [*self._traces.items()]:
                if known is concrete:
                    self._traces.pop(key, None)
            return self.trace(request.with_keys(concrete.request.keys))

    def _trace_by_identity(self, request: Request) -> ConcreteFunction:
        """A trace that uses the Variables among the arguments by identity."""
        request = request.with_variables_by_identity()
        concrete = self._body.trace(request)
        self._keep(concrete)
        return concrete

    def _keep(self, concrete: ConcreteFunction) -> None:
        self._has_meshes |= bool(concrete.request.mesh)
        self._traces[concrete.request.key] = concrete
        if len(self._traces) > _TRACE_LIMIT:
            self._traces.popitem(last=False)
            self._on_eviction()


def _is_empty_where_open(declared: Any, key: Any) -> bool:
    """Whether a size that is declared open is 0. Tracing assumes that open sizes are positive, so
    such a call gets its own trace."""
    if not isinstance(key, TensorType) or isinstance(declared.shape, ShapeVariable):
        return False
    if declared.rank != key.rank or declared.dtype is not key.dtype:
        return False
    pairs = zip(declared.shape, key.shape, strict=True)
    return any(isinstance(size, Dim) and given == 0 for size, given in pairs)


def _with_types_of_specs(request: Request) -> Request:
    specs = [key for key in request.keys if isinstance(key, TensorSpec)]
    types = SpecTypes(specs)
    keys = [types.type_of(key) if isinstance(key, TensorSpec) else key for key in request.keys]
    declared = [request.keys[i] for i in request.tensor_positions]
    declared = [key if isinstance(key, TensorSpec) else None for key in declared]
    return dataclasses.replace(request, keys=tuple(keys), specs=tuple(declared))


def _has_open_rank(request: Request) -> bool:
    return any(isinstance(type.shape, ShapeVariable) for type in request.types)


def _sizes_of(known: tuple[Any, ...], given: tuple[Any, ...]) -> dict[str, Any] | None:
    """The values of the known keys' open sizes, if the given keys fit them; None otherwise."""
    for expected, key in zip(known, given, strict=True):
        if isinstance(expected, TensorType) != isinstance(key, TensorType):
            return None
        if not isinstance(expected, TensorType) and expected != key:
            return None
    types = [k for k in known if isinstance(k, TensorType)]
    values = [k for k in given if isinstance(k, TensorType)]
    try:
        return bind_sizes(types, values)
    except Mismatch:
        return None


def _generalised_keys(known: Sequence[Any], given: Sequence[Any]) -> list[Any] | None:
    keys: list[Any] = []
    for place, (old, new) in enumerate(zip(known, given, strict=True)):
        if not isinstance(old, TensorType) or not isinstance(new, TensorType):
            if old != new:
                return None
            keys.append(new)
            continue
        if old.dtype is not new.dtype:
            return None
        keys.append(new.with_shape(_generalised_shape(old.shape, new.shape, place)))
    return keys


def _generalised_shape(old: Any, new: Any, place: int) -> Any:
    if isinstance(old, ShapeVariable) or len(old) != len(new):
        return ShapeVariable(f"s{place}")
    return tuple(
        b if a == b else Dim.named(f"g{place}.{axis}") for axis, (a, b) in enumerate(zip(old, new))
    )
