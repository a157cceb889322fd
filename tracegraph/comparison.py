"""`tg.debugging.compare` and `check_determinism`: where two runs diverge, node by node."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegraph import nest
from tracegraph.control_passes import locate_numerics as search
from tracegraph.core.source import Source, sourced
from tracegraph.core.types import DType, TensorType, as_dtype, float32
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer
from tracegraph.eager.slots import run_program
from tracegraph.effects.pieces import interpret
from tracegraph.errors import (
    DTypeError,
    InvalidArgumentError,
    SignatureError,
    TraceError,
    counted,
    fail,
    message,
    shown,
)
from tracegraph.execution.execute import input_types
from tracegraph.functions.function import Function
from tracegraph.ir.builder import Builder, current
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.elementwise import Cast
from tracegraph.passes.simplify import dead_code, inlined
from tracegraph.passes.specialise import specialise
from tracegraph.signatures.results import Results
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import steps_text
from tracegraph.views.alignment import align


class _Apart(NamedTuple):
    """How two arrays differ: the index and values of the largest difference, how many elements
    differ, out of how many, and the size of that difference."""

    index: tuple[int, ...]
    values: tuple[Any, Any]
    count: int
    size: int
    largest: float


def _told(found: Difference | _Apart) -> str:
    """Describes which elements differ."""
    mine, other = found.values
    place = f"[{', '.join(map(str, found.index))}]" if found.index else "its value"
    verb = "differs" if found.count == 1 else "differ"
    head = f"{found.count:,} of {counted(found.size, 'element')} {verb}"
    return f"{head}, the most at {place}: {mine} and {other}"


def _steps_told(steps: Sequence[tuple[int, Source]]) -> str:
    return steps_text([(np.array(step), source) for step, source in steps])


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where two functions diverge: the op, its line in both, and the largest difference."""

    op: str
    source: Source
    other_source: Source
    index: tuple[int, ...]
    values: tuple[Any, Any]
    #: How many elements differ by more than the tolerance, and out of how many.
    count: int
    size: int
    #: The steps of the loops around it, counted from 0, and their lines, the outermost first.
    steps: tuple[tuple[int, Source], ...] = ()

    def __str__(self) -> str:
        fact = f"{self.op}: {_told(self)}{_steps_told(self.steps)}"
        is_same = str(self.source) == str(self.other_source)
        there = "" if is_same else f"\n  and {self.other_source}:  {self.other_source.text}"
        return message(fact, source=self.source) + there


@dataclasses.dataclass(frozen=True)
class ResultDifference:
    """A result that differs: its name, the difference in words, and the largest difference in
    numbers, which is infinite if there are no two values to compare."""

    name: str
    fact: str
    largest: float

    def __str__(self) -> str:
        return f"{self.name}: {self.fact}"


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """What `tg.debugging.compare` found: the first pair of nodes that differ; the results that
    differ; how many nodes were compared, and how many nodes of each function depend on an input."""

    first: Difference | None
    results: tuple[ResultDifference, ...]
    compared: int
    nodes: tuple[int, int]

    @property
    def agrees(self) -> bool:
        """Whether no result and no pair of nodes differs."""
        return self.first is None and not self.results

    def __str__(self) -> str:
        mine, other = self.nodes
        count = f"nodes compared: {self.compared:,} of {mine:,} and {other:,}"
        if self.agrees:
            return f"no difference: {count}"
        node = "the results differ, and no pair of nodes does" if self.first is None else self.first
        return "\n  ".join([str(node), *self._result_lines(), count])

    def _result_lines(self) -> list[str]:
        """The lines for the results that differ the most."""
        if not self.results:
            return ["the results agree"]
        lines = [str(x) for x in sorted(self.results, key=lambda x: -x.largest)[:_SHOWN]]
        rest = len(self.results) - len(lines)
        return [*lines, f"and {counted(rest, 'more result')}"] if rest else lines

    __repr__ = __str__


#: How many differing results a text describes.
_SHOWN = 4


def compare(
    f: Callable[..., Any], g: Any, *args: Any, rtol: float = 1e-4, atol: float = 1e-6
) -> RunComparison:
    """See `tg.debugging.compare`."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            fact = f"compare: {name} is {shown(value)}"
            fail(SignatureError, fact, fix=f"give a number of at least 0: {name}=1e-4")
    one = _graph_of("compare", f, args)
    if callable(g) and not isinstance(g, (DType, type)):
        two = _graph_of("compare", g, args)
    else:
        two = one.widened(_floating_type(g))
    return _compared(one, two, lambda x, y: _apart(x, y, rtol, atol))


def _floating_type(g: Any) -> DType:
    fix = "give a second function, or a floating type: compare(f, tg.float64, x)"
    try:
        dtype = as_dtype(g)
    except DTypeError:
        fact = f"compare: {shown(g)} is neither a function nor a data type"
        fail(DTypeError, fact, fix=fix)
    if not dtype.is_floating:
        fail(DTypeError, f"compare: {dtype.name} cannot replace float32", fix=fix)
    return dtype


@dataclasses.dataclass(frozen=True)
class _Run:
    """A graph of first-order nodes, branches and loops, and the values of its inputs. Its outputs
    are the results, then the new values of the Variables in `assigned`."""

    graph: Graph
    values: tuple[Any, ...]
    results: Results
    assigned: tuple[Variable, ...]
    #: The original types of the outputs, whatever type they are computed in.
    types: tuple[TensorType, ...]

    def widened(self, dtype: DType) -> _Run:
        """The same run with `dtype` in place of float32."""
        graph = inlined(_widened(self.graph, dtype, {}))
        pairs = zip(graph.inputs, self.values, strict=True)
        values = tuple(np.asarray(v).astype(x.type.dtype.numpy_dtype) for x, v in pairs)
        return dataclasses.replace(self, graph=graph, values=values)

    def steps(self, wanted: set[Tensor]) -> Iterator[dict[Tensor, np.ndarray]]:
        """The values of the wanted tensors, one part at a time, in the order of the nodes."""
        known: dict[Tensor, Any] = dict(zip(self.graph.inputs, self.values, strict=True))
        for part in search.parts(self.graph):
            made = [y for node in part.nodes for y in node.outputs]
            handed_on = set(part.outputs)
            told = [y for y in made if y in wanted and y not in handed_on]
            whole = search.part_of(self.graph.name, part.nodes, (*part.outputs, *told), ())
            program = backend.program(dead_code(whole.graph))
            outputs = run_program(program, [known[x] for x in whole.inputs])
            known.update(zip(part.outputs, outputs))
            found = dict(zip(whole.outputs, outputs, strict=True))
            yield {y: np.asarray(found[y]) for y in made if y in wanted}

    def operands_of(self, node: Node) -> Sequence[Any]:
        """The values of the operands of a node, computed anew."""
        graph = dead_code(self.graph.with_outputs(node.inputs))
        return run_program(backend.program(graph), self.values)

    def inside(self, graph: Graph, values: Sequence[Any]) -> _Run:
        """The run of a region of this one."""
        return dataclasses.replace(self, graph=inlined(graph), values=tuple(values))


def _graph_of(who: str, f: Any, args: Sequence[Any]) -> _Run:
    """The trace of a function for these arguments, with known sizes and present values."""
    if not callable(f):
        fact = f"{who}: {shown(f)} is not a callable object"
        fail(TraceError, fact, fix=f"give functions, and then arguments: {who}(f, g, x)")
    function = f if isinstance(f, Function) else Function(f)
    concrete = function.get_concrete_function(*args)
    traced = concrete.traced
    if traced.has_effects:
        fact = f"{who}: {function.name} has effects, or finds sizes as it runs"
        fail(TraceError, fact, fix="compare a part of it that only computes")
    given = [as_tensor(x) for x in _tensors(concrete, args)]
    variables = concrete.variables
    values = [*given, *(v.read_value() for v in variables), *traced.captures]
    types = input_types(traced, [x.type for x in given], variables)
    graph = specialise(traced.graph, types)
    results = graph.outputs[: traced.result_count + len(traced.assigned)]
    graph = Graph(graph.name, graph.inputs, graph.nodes, results)
    return _Run(
        inlined(graph),
        tuple(map(device_buffer, values)),
        concrete.results,
        tuple(traced.variables[i] for i in traced.assigned),
        graph.output_types,
    )


def _tensors(concrete: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments that the graph takes, in its order."""
    bound, _ = nest.flatten_structure(concrete.request.signature.bind(args, {}))
    return [bound[i] for i in concrete.request.tensor_positions]


def _widened(graph: Graph, dtype: DType, done: dict[Graph, Graph]) -> Graph:
    """The graph, including nested ones, with `dtype` in place of float32."""
    if graph not in done:
        with Builder(graph.name) as builder:
            env: dict[Tensor, Tensor] = {}
            for x in graph.inputs:
                env[x] = builder.input(_wide(x.type, dtype, done), x.name)
            for node in graph.nodes:
                with sourced(node.source):
                    env.update(zip(node.outputs, _wide_node(node, env, dtype, done), strict=True))
            done[graph] = builder.finish([env[y] for y in graph.outputs])
    return done[graph]


def _wide_node(
    node: Node, env: Mapping[Tensor, Tensor], dtype: DType, done: dict[Graph, Graph]
) -> Sequence[Tensor]:
    """The outputs of a node with `dtype` in place of float32. What it does with bits, such as to
    draw numbers, it does in float32: other bits would be other numbers."""
    inputs = [env[x] for x in node.inputs]
    if not node.op.counts_bits:
        return current().add(_wide_op(node.op, dtype, done), tuple(inputs), node.source)
    given = [
        Cast(float32)(new) if x.dtype is float32 else new
        for x, new in zip(node.inputs, inputs, strict=True)
    ]
    made = current().add(node.op, tuple(given), node.source)
    return [Cast(dtype)(y) if y.dtype is float32 else y for y in made]


def _wide_op(op: Op, dtype: DType, done: dict[Graph, Graph]) -> Op:
    new = tuple(_wide(value, dtype, done) for value in op.attributes)
    is_same = all(a is b for a, b in zip(new, op.attributes, strict=True))
    return op if is_same else type(op)(*new)


def _wide(value: Any, dtype: DType, done: dict[Graph, Graph]) -> Any:
    if value is float32:
        return dtype
    if isinstance(value, TensorType):
        return TensorType(dtype, value.shape) if value.dtype is float32 else value
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value.astype(dtype.numpy_dtype)
    if isinstance(value, Graph):
        return _widened(value, dtype, done)
    if isinstance(value, tuple):
        found = tuple(_wide(item, dtype, done) for item in value)
        return value if all(a is b for a, b in zip(found, value, strict=True)) else found
    return value


# Differences.

#: Says which elements of two arrays differ too much.
_Differ = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Values:
    """The values of a run's nodes and results, computed on demand, in the order of the nodes. The
    value of a node can be read once."""

    def __init__(self, run: _Run, nodes: Iterable[Tensor]) -> None:
        self._results = set(run.graph.outputs)
        self._wanted = {*nodes, *self._results}
        self._steps = run.steps(self._wanted)
        pairs = zip(run.graph.inputs, run.values, strict=True)
        self._known = {x: np.asarray(value) for x, value in pairs if x in self._results}

    def of(self, x: Tensor) -> np.ndarray:
        while x not in self._known:
            self._known.update(next(self._steps))
        return self._known[x] if x in self._results else self._known.pop(x)

    def leave_nodes_out(self) -> None:
        """Stops computing nodes: from now on only results are read."""
        self._wanted &= self._results


def _compared(one: _Run, two: _Run, differ: _Differ) -> RunComparison:
    """The first pair of nodes whose values differ, and the results that do."""
    mine, other = (_computing(run.graph) for run in (one, two))
    pairs = _paired_nodes(mine, other)
    partners = {x: y for a, b in pairs for x, y in zip(a.outputs, b.outputs, strict=True)}
    values = _Values(one, partners), _Values(two, partners.values())
    first = _first_apart(one, two, partners, values, differ)
    for found in values:
        found.leave_nodes_out()
    results = tuple(_results_apart(one, two, values, differ))
    return RunComparison(first, results, len(pairs), (len(mine), len(other)))


def _paired_nodes(mine: Sequence[Node], other: Sequence[Node]) -> list[tuple[Node, Node]]:
    places = align(list(map(_key, mine)), list(map(_key, other)))
    return [(mine[i], other[j]) for i, j in places]


def _first_apart(
    one: _Run,
    two: _Run,
    partners: Mapping[Tensor, Tensor],
    values: tuple[_Values, _Values],
    differ: _Differ,
) -> Difference | None:
    """The first pair of tensors that differs; of a branch or a loop the first inside of it."""
    for x, y in partners.items():
        found = _difference(x, values[0].of(x), y, values[1].of(y), differ)
        if found is not None:
            assert x.node is not None and y.node is not None
            return _first_inside(one, two, x.node, y.node, found, differ)
    return None


class _Step(NamedTuple):
    """A run of a region: which of its op, in which step, and what it took and made."""

    region: int
    number: int
    graph: Graph
    values: tuple[Any, ...]
    outputs: Sequence[Any]


class _Ended(Exception):
    """Ends a loop, in whose midst was found what was looked for, or where two part ways."""


def _first_inside(
    one: _Run, two: _Run, mine: Node, other: Node, outer: Difference, differ: _Differ
) -> Difference:
    """The first difference inside of a pair of branches or loops that differ; `outer`, which is
    that of the pair, where it is of other nodes or no pair inside of them differs."""
    if not (mine.op.can_interpret and type(mine.op) is type(other.op)):
        return outer
    # All steps of the first are kept until the second has come as far.
    steps: deque[_Step] = deque()
    found: list[Difference] = []

    def compare(theirs: _Step) -> None:
        if not steps or steps[0][:2] != theirs[:2]:  # another branch, or a loop that has ended
            raise _Ended
        ours = steps.popleft()
        if not _are_apart(ours, theirs, differ):
            return
        runs = one.inside(ours.graph, ours.values), two.inside(theirs.graph, theirs.values)
        inner = _first_of_step(*runs, differ)
        place = ((ours.number, mine.source),) if mine.op.is_loop else ()
        if inner is not None:
            found.append(dataclasses.replace(inner, steps=(*place, *inner.steps)))
        else:
            found.append(dataclasses.replace(outer, steps=place))
        raise _Ended

    with contextlib.suppress(_Ended):
        _run_steps(mine, one.operands_of(mine), steps.append)
        _run_steps(other, two.operands_of(other), compare)
    return found[0] if found else outer


def _are_apart(ours: _Step, theirs: _Step, differ: _Differ) -> bool:
    pairs = zip(ours.outputs, theirs.outputs, strict=True)
    return any(differ(np.asarray(x), np.asarray(y)).any() for x, y in pairs)


def _first_of_step(one: _Run, two: _Run, differ: _Differ) -> Difference | None:
    pairs = _paired_nodes(_computing(one.graph), _computing(two.graph))
    partners = {x: y for a, b in pairs for x, y in zip(a.outputs, b.outputs, strict=True)}
    values = _Values(one, partners), _Values(two, partners.values())
    return _first_apart(one, two, partners, values, differ)


def _run_steps(node: Node, operands: Sequence[Any], tell: Callable[[_Step], None]) -> None:
    """Runs a branch or a loop, one region after the other, and tells of each."""
    programs: dict[Graph, Callable[..., Any]] = {}
    regions = [*node.op.graphs()]
    number = 0

    def run(graph: Graph, values: Sequence[Any], place: int) -> Sequence[Any]:
        nonlocal number
        if graph not in programs:
            programs[graph] = backend.program(dead_code(graph))
        outputs = run_program(programs[graph], values)
        tell(_Step(regions.index(graph), number, graph, tuple(values), outputs))
        number += graph is getattr(node.op, "body", None)
        return outputs

    interpret(node.op, operands, run)


def _results_apart(
    one: _Run, two: _Run, values: tuple[_Values, _Values], differ: _Differ
) -> Iterator[ResultDifference]:
    """The differences between what two functions return and assign."""
    rows: list[tuple[str, int, int]] = []
    count, other_count = (sum(run.results.flags) for run in (one, two))
    mine, other = one.results, two.results
    if mine.flags == other.flags and mine.structure.matches(other.structure):
        rows += [(_result_name(mine, i), i, i) for i in range(count)]
    else:
        fact = f"{mine.pack('*' * count)} and {other.pack('*' * other_count)}"
        yield ResultDifference("the structure of the results", fact, np.inf)
    variables, alone = _paired(one.assigned, two.assigned)
    for variable in alone:
        fact = "only one of the functions assigns it"
        yield ResultDifference(f"the Variable {variable.base_name!r}", fact, np.inf)
    for i, j in variables:
        name = f"the Variable {one.assigned[i].base_name!r}"
        rows.append((name, count + i, other_count + j))
    for name, i, j in rows:
        if one.types[i] is not two.types[j]:
            yield ResultDifference(name, f"{one.types[i]} and {two.types[j]}", np.inf)
            continue
        x, y = one.graph.outputs[i], two.graph.outputs[j]
        found = _most_apart(values[0].of(x), values[1].of(y), differ)
        if found is not None:
            fact = f"{_told(found)}, {found.largest:.3g} apart"
            yield ResultDifference(name, fact, found.largest)


def _result_name(results: Results, number: int) -> str:
    if results.is_one_tensor:
        return "the result"
    return f"result {number} of {shown(results.pack(range(len(results.flags))))}"


def _paired(
    mine: Sequence[Variable], others: Sequence[Variable]
) -> tuple[list[tuple[int, int]], list[Variable]]:
    """The positions of corresponding Variables, and the Variables left over. A Variable that both
    assign corresponds to itself; others by order, since two models have Variables of their own."""
    places = {id(v): j for j, v in enumerate(others)}
    pairs = [(i, places[id(v)]) for i, v in enumerate(mine) if id(v) in places]
    taken = [set(column) for column in zip(*pairs)] or [set(), set()]
    left, right = (
        [k for k in range(len(found)) if k not in used]
        for found, used in zip((mine, others), taken, strict=True)
    )
    pairs += zip(left, right)
    count = min(len(left), len(right))
    return pairs, [*(mine[i] for i in left[count:]), *(others[j] for j in right[count:])]


def _computing(graph: Graph) -> list[Node]:
    """The nodes that depend on an input. A difference between constants shows where they are used,
    and many constants do not correspond."""
    reached: set[Tensor] = set(graph.inputs)
    nodes = []
    for node in graph.nodes:
        if any(x in reached for x in node.inputs):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def _key(node: Node) -> Any:
    """Equal for nodes that may belong together: they do the same, to tensors of these shapes. Loops
    and branches are compared inside, whatever they use from outside."""
    used = () if node.op.can_interpret else node.inputs
    return node.op.name, *(y.type.shape for y in node.outputs), *(x.type.shape for x in used)


def _difference(
    x: Tensor, value: np.ndarray, y: Tensor, other: np.ndarray, differ: _Differ
) -> Difference | None:
    found = _most_apart(value, other, differ)
    if found is None:
        return None
    assert x.node is not None and y.node is not None
    return Difference(x.node.op.name, x.node.source, y.node.source, *found[:-1])


def _most_apart(value: np.ndarray, other: np.ndarray, differ: _Differ) -> _Apart | None:
    """The difference between two arrays; None if there is none."""
    wrong = differ(value, other)
    if not wrong.any():
        return None
    far = _distance(value, other)
    far = np.where(wrong, np.nan_to_num(far, nan=np.inf, posinf=np.inf), -1.0)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(far), far.shape))
    values = value[index], other[index]
    return _Apart(index, values, int(wrong.sum()), wrong.size, float(far[index]))


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far apart elements are, as float64: of integers the rounded number of their exact
    difference, which modular arithmetic of 64 bits has where the larger one comes first."""
    if x.dtype == y.dtype and x.dtype.kind in "iu":
        larger, smaller = (choose(x, y).astype(np.uint64) for choose in (np.maximum, np.minimum))
        return np.subtract(larger, smaller).astype(np.float64)
    with np.errstate(all="ignore"):
        return np.abs(np.subtract(_wide_array(x), _wide_array(y)))


def _apart(x: np.ndarray, y: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    if x.dtype == y.dtype and x.dtype.kind in "iu":
        return _distance(x, y) > atol + rtol * np.abs(_wide_array(y))
    return ~np.isclose(_wide_array(x), _wide_array(y), rtol=rtol, atol=atol, equal_nan=True)


def _wide_array(x: np.ndarray) -> np.ndarray:
    """The array in the widest type, since NumPy does not support all the narrow ones."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _bits_apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.shape != y.shape:
        return np.array(True)
    bytes_of = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (x, y)]
    differ = np.not_equal(*bytes_of).reshape(x.size, -1) if x.size else np.zeros((0, 1), bool)
    return np.reshape(differ.any(axis=1), x.shape)


# Determinism.


def check_determinism(f: Callable[..., Any], *args: Any, runs: int = 3) -> None:
    """See `tg.debugging.check_determinism`."""
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 2:
        fact = f"check_determinism: runs is {shown(runs)}"
        fail(SignatureError, fact, fix="give an int of at least 2: runs=3")
    if not callable(f):
        fact = f"check_determinism: {shown(f)} is not a callable object"
        fail(TraceError, fact, fix="give a function, and then its arguments")
    function = f if isinstance(f, Function) else Function(f)
    variables = function.get_concrete_function(*args).variables
    before = [v.read_value() for v in variables]
    results: list[list[np.ndarray]] = []
    try:
        for _ in range(runs):
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            results.append(_results_of(f, args, variables))
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
    for number, again in enumerate(results[1:], 2):
        types = [[(x.dtype, x.shape) for x in found] for found in (results[0], again)]
        if types[0] != types[1]:
            fact = f"run {number} of {function.name} returns other types than the first"
            fail(InvalidArgumentError, f"check_determinism: {fact}", fix=_FIX)
        for place, (x, y) in enumerate(zip(results[0], again, strict=True)):
            wrong = _bits_apart(x, y)
            if wrong.any():
                _refuse_difference(function, args, variables, number, place, wrong)


_FIX = "draw random numbers from tg.random, and return the same from Python"


def _results_of(f: Any, args: Any, variables: Sequence[Variable]) -> list[np.ndarray]:
    """What a call as the user makes it returns, and the values of Variables after it: Python itself
    runs again in a function that is not decorated."""
    leaves, _ = nest.flatten_structure(f(*args))
    tensors = [*(x for x in leaves if x is not None), *variables]
    return [np.asarray(as_tensor(x)) for x in tensors]


def _refuse_difference(
    function: Function,
    args: Any,
    variables: Sequence[Variable],
    number: int,
    place: int,
    wrong: np.ndarray,
) -> None:
    concrete = function.get_concrete_function(*args)
    count = concrete.traced.result_count
    what = (
        f"result {place}"
        if place < count
        else f"the Variable {variables[place - count].base_name!r}"
    )
    fact = (
        f"check_determinism: run {number} of {function.name} differs from the first in {what}, in "
        f"{wrong.sum():,} of {counted(wrong.size, 'element')}"
    )
    source = None
    if not concrete.traced.has_effects:
        run = _graph_of("check_determinism", function, args)
        first = _compared(run, run, _bits_apart).first
        if first is not None:
            fact, source = f"{fact}; the first node that differs is {first.op}", first.source
    fail(InvalidArgumentError, fact, source=source, fix=_FIX)
