"""Branches: a value chooses which of several graphs of the same inputs computes the result.

Derivatives branch on the same value. The forward form returns the residuals of all branches;
those of a branch not taken are zeros, which nothing reads.

A branch may compute a size that only its run knows. Outputs may have such a size: the branch that
computes it names it, every other branch says that it is 0 there, or states its own size under that
name. Such a branch runs by itself, and its derivatives do, since the others do not fit its sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.calls.call import (
    Call,
    ResidualPlan,
    applied,
    as_tuple,
    backward_graph,
    depending_through,
    naming,
    own_size,
    places_of_effects,
    residual_plan,
    tangent_graph,
)
from tracegraph.control.without_prints import (
    calls_python,
    lengths_of_runs,
    without_prints,
    without_tokens,
)
from tracegraph.core.shapes import Dim, Shape, ShapeVariable, Size, same_shape
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import TOKEN, TensorType, bool_, int32, int64
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.builder import Builder, copy_inputs, current, inline, replay
from tracegraph.ir.op import (
    Batched,
    Derivative,
    Insertion,
    KnownValues,
    OnHost,
    Op,
    Region,
    RunRegion,
    Tangents,
)
from tracegraph.ir.pass_observers import passed
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import BroadcastTo, full, stack
from tracegraph.ops.constant import DimSize, RuntimeSize, constant
from tracegraph.ops.effect import FirstToken
from tracegraph.ops.elementwise import SELECT, Cast, Equal, LogicalNot, StopGradient
from tracegraph.ops.index import Gather
from tracegraph.ops.reduce import Any as AnyOf, ArgMax
from tracegraph.ops.shape import Reshape
from tracegraph.passes.simplify import dead_code
from tracegraph.passes.specialise import (
    bind_sizes,
    bound_names,
    names_chosen,
    names_in,
    renamed,
    unbound_names,
    with_sizes,
)
from tracegraph.passes.vectorise import stacked_outputs, vectorise
from tracegraph.passes.walk import at_places

#: The suffix in the name of a graph that stands for a branch which no row takes.
_SKIPPED = "_skipped"


class Branch(Op, abstract=True):
    """The outputs of one of `branches`, all of which take the same inputs: `(decider, *inputs)`."""

    takes_zero_cotangents = True
    can_prune = True
    can_interpret = True
    leaves_out_regions = True

    if TYPE_CHECKING:
        # A field of the one class, a property of the other.
        branches: Any = dataclasses.field(init=False)

    def with_branches(self, branches: Sequence[Graph], alone: bool = False) -> Branch:
        """The same choice between other graphs."""
        raise NotImplementedError

    @property
    def insertion(self) -> Insertion:
        one = self.branches[0]
        return Insertion(1, 1 + len(one.inputs), len(one.outputs))

    def with_regions(self, graphs: Sequence[Graph], shared: int = 0, carried: int = 0) -> Branch:
        return self.with_branches(graphs)

    @property
    def runs_alone(self) -> bool:
        """Whether the branch that is taken runs by itself: the others may not fit the sizes that
        only this run knows."""
        raise NotImplementedError

    @property
    def cuts_runs(self) -> bool:
        return self.runs_alone or super().cuts_runs

    @property
    def _sized(self) -> list[int]:
        """The outputs with sizes that only the run of the branch knows."""
        one = self.branches[0]
        opened = [(i, type) for i, type in enumerate(one.output_types) if not type.is_static]
        given = names_in(one.input_types) if opened else set[str]()
        return [i for i, type in opened if names_in(type) - given]

    def outputs_sized_by_run(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [outputs[i] for i in self._sized]

    def _derived(self, branches: Sequence[Graph]) -> Branch:
        """The choice between derivatives of the branches."""
        return self.with_branches(branches, alone=bool(self._sized))

    def check_decider(self, decider: TensorType) -> None:
        """Raises Mismatch for a type that cannot choose."""
        raise NotImplementedError

    def taken_by(self, decider: Tensor) -> list[Tensor]:
        """For each branch whether it is taken; per iteration, if the decider has a loop axis."""
        raise NotImplementedError

    def known_branch(self, decider: np.ndarray) -> Graph:
        """The branch that a known value selects."""
        raise NotImplementedError

    @property
    def regions(self) -> tuple[Region, ...]:
        inputs = tuple(range(1, 1 + len(self.branches[0].inputs)))
        outputs = tuple(range(len(self.branches[0].outputs)))
        return tuple(Region(branch, inputs, outputs) for branch in self.branches)

    def may_run(self, values: KnownValues) -> tuple[bool, ...]:
        if values[0] is None:
            return super().may_run(values)
        taken = self.known_branch(np.asarray(values[0]))
        return tuple(branch is taken for branch in self.branches)

    def interpret(self, values: Sequence[Any], run: RunRegion, on_host: OnHost) -> Sequence[Any]:
        return run(self.known_branch(np.asarray(values[0])), values[1:], 1)

    def how_often(self, region: Region) -> str:
        return f"one of {len(self.branches)}"

    def infer(self, decider: TensorType, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_decider(decider)
        result_types = _unchecked_result_types if self.runs_alone else _result_types
        first, *others = [result_types(branch, types) for branch in self.branches]
        for number, other in enumerate(others, 1):
            if len(first) != len(other):
                raise Mismatch(
                    f"branch 0 returns {len(first)} tensors and branch {number} {len(other)}"
                )
            first = tuple(_joined(a, b, number) for a, b in zip(first, other, strict=True))
        return first

    # Derivatives.

    def recorded(self) -> Branch:
        plans = [residual_plan(branch) for branch in self.branches]
        if all(plan.forward is branch for plan, branch in zip(plans, self.branches, strict=True)):
            return self
        graphs = _with_shared_residuals(self.branches, plans)
        return self.with_branches(graphs, alone=any(map(lengths_of_runs, self.branches)))

    def vjp(self, *values: Any) -> Derivative:
        count = len(self.branches[0].outputs)
        gs, ys = values[:count], values[count : 2 * count]
        decider, *xs = without_tokens(values[2 * count :])
        recorded = self.recorded()
        if recorded is not self:
            # It was recorded without a tape, hence without residuals: compute them now.
            recorded = self._without_prints().recorded()
            ys = as_tuple(recorded(decider, *xs))
            gs = (*gs, *(None,) * (len(ys) - count))
        present = tuple(g is not None for g in gs)
        branches, operands, places = recorded._backward(present)
        if not places:
            return (None,) * (1 + len(xs))
        given = [ys[i] if kind == "output" else xs[i] for kind, i in operands]
        given += [g for g in gs if g is not None]
        found = applied(recorded._derived(branches), (decider, *given))
        cotangents = dict(zip(places, found, strict=True))
        return (None, *(cotangents.get(i) for i in range(len(xs))))

    def _backward(
        self, present: tuple[bool, ...]
    ) -> tuple[list[Graph], list[tuple[str, int]], list[int]]:
        """The backward graphs of all branches on common operands, with these operands and the
        inputs that have cotangents."""
        found = [backward_graph(branch, present) for branch in self.branches]
        plans = [residual_plan(branch).places for branch in self.branches]
        places = sorted({place for _, of_one in found for place in of_one})
        operands = list(dict.fromkeys(place for plan in plans for place in plan))
        one = self.branches[0]
        values = {"input": one.inputs, "output": one.outputs}
        zeros = [one.inputs[i] for i in places]
        missing = set(naming(one.inputs, [values[kind][i] for kind, i in operands]))
        if missing and any(not x.type.is_static for x in zeros):
            operands += [("input", i) for i, x in enumerate(one.inputs) if x in missing]
        given = [values[kind][i] for kind, i in operands]
        given += [y for y, is_given in zip(one.outputs, present, strict=True) if is_given]
        graphs: list[Graph] = []
        for (graph, of_one), plan in zip(found, plans, strict=True):
            with Builder(graph.name) as builder:
                inputs = [builder.input_like(x) for x in given]
                by_place = dict(zip(operands, inputs))
                residuals = [by_place[place] for place in plan]
                outputs = inline(graph, [*residuals, *inputs[len(operands) :]])
                graphs.append(builder.finish(_filled(places, of_one, outputs, one.inputs)))
        return graphs, operands, places

    def _without_prints(self) -> Branch:
        """The op without its prints, for recomputation."""
        return self.with_branches([*map(without_prints, self.branches)]) if self.cuts_runs else self

    def jvp(self, tangents: Tangents, *values: Tensor) -> Derivative:
        count = len(self.branches[0].outputs)
        decider, *xs = without_tokens(values[count:])
        given = tuple(t is not None for t in tangents[1:])
        found = [_tangents(branch, given) for branch in self.branches]
        places = sorted({place for _, of_one, _ in found for place in of_one})
        # What the branches have found already; each of them takes what is its own. The others may
        # need the sizes.
        known = sorted({*self._sized, *(place for *_, of_one in found for place in of_one)})
        graphs: list[Graph] = []
        for (graph, of_one, takes), branch in zip(found, self.branches, strict=True):
            with Builder(graph.name) as builder:
                own = len(graph.inputs) - len(takes)
                env = {x: builder.input_like(x) for x in graph.inputs[:own]}
                outputs = {i: builder.input_like(branch.outputs[i]) for i in known}
                env.update(zip(graph.inputs[own:], (outputs[i] for i in takes), strict=True))
                replay(graph.nodes, env)
                made = [env[y] for y in graph.outputs]
                graphs.append(builder.finish(_filled(places, of_one, made, branch.outputs)))
        if not places:
            return (None,) * count
        ts = [t for t in tangents if t is not None]
        ys = [values[i] for i in known]
        pushed = applied(self._derived(graphs), (decider, *xs, *ts, *ys))
        return at_places(places, pushed, count)

    # Loops.

    def batch(self, n: Size, batched: tuple[bool, ...], decider: Tensor, *xs: Tensor) -> Batched:
        if batched[0] and self.cuts_runs:
            raise Mismatch(
                "a branch has effects, or computes a size that only the run knows, and in a "
                "parallel loop some iterations take it",
                fix="use tg.map_fn, which runs one iteration after the other",
            )
        if batched[0]:
            outputs = self._each_by_itself(n, batched[1:], decider, xs)
            return outputs, (True,) * len(outputs)
        wide = [vectorise(x, batched[1:], own_size(x, n)) for x in self.branches]
        flags = tuple(map(any, zip(*(flags for _, flags in wide), strict=True)))
        pairs = zip(wide, self.branches, strict=True)
        stacked = [stacked_outputs(*x, flags, own_size(branch, n)) for x, branch in pairs]
        return applied(self.with_branches(stacked), (decider, *xs)), flags

    def _each_by_itself(
        self, n: Any, batched: Sequence[bool], decider: Tensor, xs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Each iteration chooses its own branch: every branch that some iteration takes computes
        all rows, and results that were not selected are dropped."""
        results: Sequence[Tensor] = ()
        for branch, taken in zip(self.branches, self.taken_by(decider), strict=True):
            op = _where_taken(branch, batched, own_size(branch, n))
            found = applied(op, (AnyOf((0,))(taken), taken, *xs))
            pairs = zip(found, results or found, strict=True)
            results = [select_rows(taken, new, old) for new, old in pairs]
        return tuple(results)

    # Dependences.

    def depends(self, *patterns: Pattern) -> tuple[Pattern, ...]:
        return self.depends_given([None] * len(patterns), *patterns)

    def depends_given(
        self, values: KnownValues, decider: Pattern, *patterns: Pattern
    ) -> tuple[Pattern, ...]:
        branches = self.branches if values[0] is None else (self.known_branch(values[0]),)
        found = [Call(branch).depends_given(values[1:], *patterns) for branch in branches]
        return tuple(_union(each) for each in zip(*found, strict=True))

    def depending(self, inputs: tuple[bool, ...]) -> tuple[bool, ...]:
        found = [depending_through(branch, inputs[1:]) for branch in self.branches]
        return tuple(map(any, zip(*found, strict=True)))

    def pruned(self, used: tuple[bool, ...]) -> tuple[Op, tuple[bool, ...], tuple[bool, ...]]:
        if self._sized:
            used = self._with_sizes(used)
        branches, keep = narrowed(self.branches, used)
        if all(new is old for new, old in zip(branches, self.branches, strict=True)):
            return self, (True,) * (1 + len(keep)), used
        return self.with_branches(branches), (True, *keep), used

    def _with_sizes(self, used: tuple[bool, ...]) -> tuple[bool, ...]:
        """What is used, and the outputs that give the sizes of that their names."""
        inputs, outputs = self.branches[0].inputs, self.branches[0].outputs
        kept = [y for y, is_used in zip(outputs, used, strict=True) if is_used]
        needed = names_in(tuple(y.type for y in kept))
        more = [y for y in naming(outputs, [*inputs, *kept]) if needed & names_in(y.type)]
        return tuple(y in {*kept, *more} for y in outputs)


class Cond(Branch):
    """The outputs of `true` where the first input holds, else those of `false`."""

    true: Graph
    false: Graph
    alone: bool = False

    @property
    def branches(self) -> tuple[Graph, ...]:
        return self.true, self.false

    @property
    def runs_alone(self) -> bool:
        return self.alone

    def with_branches(self, branches: Sequence[Graph], alone: bool = False) -> Cond:
        return Cond(branches[0], branches[1], alone or self.alone)

    def check_decider(self, decider: TensorType) -> None:
        if decider.dtype is not bool_ or decider.shape != ():
            raise DTypeMismatch(
                f"the predicate is {decider}, and it must be one bool",
                fix="compare it, and reduce it: tg.reduce_all(x > 0)",
            )

    def taken_by(self, decider: Tensor) -> list[Tensor]:
        return [decider, LogicalNot()(decider)]

    def known_branch(self, decider: np.ndarray) -> Graph:
        return self.true if decider else self.false

    def how_often(self, region: Region) -> str:
        if _SKIPPED not in self.false.name:
            return super().how_often(region)
        return "for all rows, if one takes it" if region.graph is self.true else ""


class Switch(Branch):
    """The outputs of the branch whose number is the first input; of the last where none is."""

    branches: tuple[Graph, ...]
    alone: bool = False

    @property
    def runs_alone(self) -> bool:
        return self.alone

    def with_branches(self, branches: Sequence[Graph], alone: bool = False) -> Switch:
        return Switch(tuple(branches), alone or self.alone)

    def check_decider(self, decider: TensorType) -> None:
        if decider.dtype is not int32 or decider.shape != ():
            raise DTypeMismatch(
                f"the index is {decider}, and it must be one int32",
                fix="convert it: tg.cast(index, tg.int32)",
            )

    def taken_by(self, decider: Tensor) -> list[Tensor]:
        numbers = range(len(self.branches) - 1)
        masks = [Equal()(decider, full(i, decider.type)) for i in numbers]
        rest = constant(True, bool_)
        for mask in masks:
            rest = SELECT(mask, full(False, mask.type), spread(rest, mask.type))
        return [*masks, spread(rest, TensorType(bool_, decider.type.shape))]

    def known_branch(self, decider: np.ndarray) -> Graph:
        place = int(decider)
        return self.branches[place if 0 <= place < len(self.branches) else -1]


def spread(flag: Tensor, type: TensorType) -> Tensor:
    """A flag, or one for each element of a type."""
    return flag if flag.type.shape == type.shape else BroadcastTo(type.shape, ())(flag)


def _result_types(branch: Graph, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return Call(branch).infer(*types)


def _unchecked_result_types(branch: Graph, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The types of the results, where the branch need not fit: another one runs."""
    sizes = bind_sizes(branch.input_types, types, assumes=True)
    return tuple(with_sizes(type, sizes) for type in branch.output_types)


def _joined(first: TensorType, other: TensorType, number: int) -> TensorType:
    shape = same_shape(first.shape, other.shape)
    if first.dtype is not other.dtype or shape is None:
        raise Mismatch(f"branch 0 returns {first} where branch {number} returns {other}")
    return first.with_shape(shape)


def _union(patterns: Sequence[Pattern]) -> Pattern:
    found, *others = patterns
    for other in others:
        found = found | other
    return found


def _filled(
    places: Sequence[int],
    of_one: Sequence[int],
    outputs: Sequence[Tensor],
    like: Sequence[Tensor],
) -> list[Tensor]:
    """The outputs of one branch at all `places`, with zeros where it has none."""
    found = dict(zip(of_one, outputs, strict=True))
    return [found[i] if i in found else full(0, like[i].type) for i in places]


def _with_shared_residuals(branches: Sequence[Graph], plans: Sequence[ResidualPlan]) -> list[Graph]:
    """The forward forms of all branches, with the same outputs: residuals of one type share a
    position, since only one branch computes any."""
    count = len(branches[0].outputs)
    extras = [plan.forward.outputs[count:] for plan in plans]
    slots: list[TensorType] = []
    chosen: list[list[int]] = []
    for of_one in extras:
        free = list(range(len(slots)))
        mine: list[int] = []
        for y in of_one:
            place = next((i for i in free if slots[i] is y.type), None)
            if place is None:
                place = len(slots)
                slots.append(y.type)
            else:
                free.remove(place)
            mine.append(place)
        chosen.append(mine)
    return [_with_slots(plan, count, slots, mine) for plan, mine in zip(plans, chosen, strict=True)]


def _tangents(
    branch: Graph, given: tuple[bool, ...]
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    """The tangents of a branch, which take what its Python functions returned from its outputs."""
    is_known = calls_python(branch) and places_of_effects(branch)
    found = tangent_graph(branch if is_known else without_prints(branch), given)
    if found[0].has_effects:
        without_prints(branch)  # raises the error that says what is wrong
    return found


def _nothing(type: TensorType) -> Tensor:
    return FirstToken()() if type is TOKEN else full(0, type)


def _with_slots(
    plan: ResidualPlan, count: int, slots: Sequence[TensorType], mine: Sequence[int]
) -> Graph:
    forward = plan.forward
    moved = {count + k: count + place for k, place in enumerate(mine)}
    with Builder(forward.name) as builder:
        env = copy_inputs(forward, builder)
        state_no_sizes(names_in(tuple(slots)) - names_in(forward.input_types), forward)
        replay(forward.nodes, env)
        outputs = [env[y] for y in forward.outputs[:count]]
        extras = {moved[count + k]: env[y] for k, y in enumerate(forward.outputs[count:])}
        outputs += [
            extras[count + i] if count + i in extras else _nothing(type)
            for i, type in enumerate(slots)
        ]
        graph = builder.finish(outputs)
    places = tuple((kind, moved.get(i, i) if kind == "output" else i) for kind, i in plan.places)
    residuals = tuple(env[x] for x in plan.residuals)
    again = frozenset(env[x] for x in plan.again)
    graph.cache["residuals"] = ResidualPlan(graph, places, residuals, again)
    passed("forward", graph)
    return graph


def state_no_sizes(names: Iterable[str], branch: Graph) -> None:
    """States that sizes which only other branches compute are 0, for the zeros that stand for their
    values."""
    chosen = set[str]().union(*map(names_chosen, branch.nodes))
    for name in sorted(set(names) - chosen):
        RuntimeSize(Dim.named(name))(constant(0, int64))


def may_differ(shapes: Sequence[Shape], reads_values: bool) -> bool:
    """Whether branches may return these different shapes: a size in them is one that only the run
    knows; or it is known, but follows from values, which a branch `reads_values` of."""
    if len(set(shapes)) == 1 or any(isinstance(shape, ShapeVariable) for shape in shapes):
        return False
    of_runs = (name for shape in shapes for name in names_in(shape) if name.startswith("?"))
    return len(set(map(len, shapes))) == 1 and (reads_values or any(of_runs))


def of_one_type(graphs: Sequence[Graph], count: int, reads_values: bool) -> list[Graph]:
    """The branches with the same types for the first `count` outputs: where these may differ, the
    size is a new one, that of the branch which runs. So is one that follows from sizes which the
    branches keep to themselves."""
    new: dict[tuple[Size, ...], Size] = {}
    inner = _inner_names(graphs, count)

    def common(*sizes: Size) -> Size:
        if len(set(sizes)) > 1 or names_in(sizes) & inner:
            new.setdefault(sizes, Dim.named(current().new_size_name()))
        return new.get(sizes, sizes[0])

    rows: list[tuple[TensorType, ...]] = []
    for types in zip(*(graph.output_types[:count] for graph in graphs), strict=True):
        shapes = [type.shape for type in types]
        if may_differ(shapes, reads_values) or inner & names_in(tuple(shapes)):
            shape = tuple(map(common, *shapes))
            types = tuple(type.with_shape(shape) for type in types)
        rows.append(types)
    columns = [*zip(*rows, strict=True)] or [()] * len(graphs)
    return [with_sizes_stated(*pair) for pair in zip(graphs, columns, strict=True)]


def _inner_names(graphs: Sequence[Graph], count: int) -> set[str]:
    """The sizes that branches find and that no output is whole of, such as ?0 where they return a
    tensor of ?0-1 rows: nothing after the branch would know them."""
    found = set[str]().union(*(names_chosen(node) for graph in graphs for node in graph.nodes))
    handed_on = (bound_names(type) for graph in graphs for type in graph.output_types[:count])
    return found.difference(*handed_on)


def with_sizes_stated(branch: Graph, types: Sequence[TensorType]) -> Graph:
    """The branch whose first outputs have these types: where a size has another name there, the
    branch states its own under that name."""
    branch = renamed(branch, _new_names(branch, types), {})
    missing = [x for x in unbound_names(branch.inputs, branch.nodes) if x.startswith("?")]
    if not missing and all(own is new for own, new in zip(branch.output_types, types)):
        return branch
    with Builder(branch.name) as builder:
        env = copy_inputs(branch, builder)
        state_no_sizes(missing, branch)
        replay(branch.nodes, env)
        stated: set[Size] = set()
        outputs = [env[y] for y in branch.outputs]
        outputs[: len(types)] = [_as_sized(y, new, stated) for y, new in zip(outputs, types)]
        return builder.finish(outputs)


def _new_names(branch: Graph, types: Sequence[TensorType]) -> dict[str, Size]:
    """The names in these types for sizes that the branch itself finds, by the names so far."""
    found: dict[str, Size] = {}
    chosen = set[str]().union(*map(names_chosen, branch.nodes))
    for own, new in zip(branch.output_types, types):
        for size, wanted in zip(own.shape, new.shape, strict=True) if own is not new else ():
            if size != wanted and isinstance(size, Dim) and size.name in chosen:
                found.setdefault(size.name, wanted)
    return found


def _as_sized(y: Tensor, type: TensorType, stated: set[Size]) -> Tensor:
    if y.type is type:
        return y
    for own, new in zip(y.type.shape, type.shape, strict=True):
        if own != new and isinstance(new, Dim) and new not in stated:
            n = constant(own, int64) if isinstance(own, int) else Cast(int64)(DimSize(own)())
            RuntimeSize(new)(n)
            stated.add(new)
    return Reshape(type.shape)(y)


# Rows of a loop, each of which takes its own branch.


def all_rows(graph: Graph, batched: Sequence[bool], n: Any) -> Graph:
    """The graph of n iterations, each with its own outputs, for these inputs."""
    wide, flags = vectorise(graph, tuple(batched), n)
    return stacked_outputs(wide, flags, (True,) * len(flags), n)


def select_rows(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The rows of x where `mask` holds, else those of y."""
    if x is y:
        return x
    return SELECT(_along_rows(mask, x), x, y)


def harmless_rows(mask: Tensor, xs: Sequence[Tensor], batched: Sequence[bool]) -> list[Tensor]:
    """The rows of the batched `xs` where `mask` holds, with all other rows replaced by the first
    row that does.

    A value computed from an unselected row may be infinite, and 0 times infinity is nan in the
    derivative of what all rows share. A selected row is as safe as its own result.
    """
    if mask.type.shape == (0,):
        return [*xs]
    first = ArgMax(0, int32)(Cast(int32)(mask))
    pairs = zip(xs, batched, strict=True)
    return [select_rows(mask, x, _repeated_row(x, first)) if has else x for x, has in pairs]


def _repeated_row(x: Tensor, place: Tensor) -> Tensor:
    row = Gather(0, 0)(x, place)
    return stack(StopGradient()(row) if row.type.dtype.is_differentiable else row, x.type.shape[0])


def _along_rows(mask: Tensor, x: Tensor) -> Tensor:
    return mask if x.ndim == 1 else BroadcastTo(x.type.shape, (0,))(mask)


def _where_taken(branch: Graph, batched: Sequence[bool], n: Any) -> Cond:
    """The branch on harmless rows if some row takes it, else zeros: `(is_taken, mask, *xs)`."""
    wide, mask = all_rows(branch, batched, n), TensorType(bool_, (n,))
    with Builder(wide.name) as builder:
        taken, *xs = [builder.input(type) for type in (mask, *wide.input_types)]
        taking = builder.finish(inline(wide, harmless_rows(taken, xs, batched)))
    with Builder(wide.name + _SKIPPED) as builder:
        for type in (mask, *wide.input_types):
            builder.input(type)
        skipping = builder.finish([full(0, type) for type in wide.output_types])
    return Cond(taking, skipping)


def narrowed(
    graphs: Sequence[Graph], used: tuple[bool, ...], kept_anyway: Sequence[bool] = ()
) -> tuple[list[Graph], tuple[bool, ...]]:
    """The graphs with only the used outputs, and only inputs that one of them reads or that are
    kept anyway."""
    small = [_with_outputs(graph, used) for graph in graphs]
    read = [_read(graph) for graph in small]
    flags = [tuple(x in found for x in graph.inputs) for graph, found in zip(small, read)]
    flags += [tuple(kept_anyway)] if kept_anyway else []
    keep = tuple(map(any, zip(*flags, strict=True)))
    one = small[0]
    kept = [x for x, is_kept in zip(one.inputs, keep, strict=True) if is_kept]
    named = set(naming(one.inputs, kept))
    keep = tuple(is_kept or x in named for x, is_kept in zip(one.inputs, keep, strict=True))
    if all(keep) and all(used) and all(a is b for a, b in zip(small, graphs, strict=True)):
        return list(graphs), keep
    return [with_inputs(graph, keep) for graph in small], keep


def _with_outputs(graph: Graph, used: tuple[bool, ...]) -> Graph:
    """The graph with only the used outputs. A loop asks for the same ones several times, and so
    does each loop around it."""
    outputs = tuple(y for y, is_used in zip(graph.outputs, used, strict=True) if is_used)
    kept = graph if all(used) else graph.with_outputs(outputs)
    return graph.cached(("with outputs", used), lambda: dead_code(kept))


def with_inputs(graph: Graph, keep: Iterable[bool]) -> Graph:
    inputs = tuple(x for x, is_kept in zip(graph.inputs, keep, strict=True) if is_kept)
    return Graph(graph.name, inputs, graph.nodes, graph.outputs)


def _read(graph: Graph) -> set[Tensor]:
    return {x for node in graph.nodes for x in node.inputs}.union(graph.outputs)
