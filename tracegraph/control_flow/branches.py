"""Branches: `cond`, `case` and `switch_case`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.calls.call import appended
from tracegraph.control.branch import Cond, Switch, may_differ, of_one_type
from tracegraph.control_flow.regions import (
    SharedValues,
    TracedRegion,
    as_region,
    finished,
    makes_effects,
    one_element,
    take_on,
    telling,
    traced_region,
)
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.shapes import ShapeVariable, same_shape
from tracegraph.core.source import here, is_of_us
from tracegraph.core.types import bool_, int32, rank_fix
from tracegraph.eager.tensor_methods import host_array
from tracegraph.effects.checks_and_prints import check
from tracegraph.errors import (
    DTypeError,
    ShapeError,
    SignatureError,
    TraceError,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import Builder, current, operand_text
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.operands.conversion import as_tensor, to_int32
from tracegraph.operands.flags import refuse_kind
from tracegraph.ops.constant import constant
from tracegraph.ops.elementwise import SELECT, Cast, Equal, GreaterEqual, LessEqual, add_all
from tracegraph.ops.shape import may_take_rank_of, with_rank_of
from tracegraph.tensor_arrays.array_states import chosen_alike, common_needs, measured, supplied
from tracegraph.tracing.trace import notes_what_leaves

if TYPE_CHECKING:
    from typing import TypeVar

    from tracegraph.typing import Leaf, TensorLike

    Result = TypeVar("Result")
    Numbered = (
        Sequence[Callable[[], Result]]
        | Sequence[tuple[int, Callable[[], Result]]]
        | Mapping[int, Callable[[], Result]]
    )
    Pairs = (
        Sequence[tuple[TensorLike, Callable[[], Result]]] | Mapping[Tensor, Callable[[], Result]]
    )


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], Leaf],
    false_fn: Callable[[], Leaf],
    name: str | None = ...,
) -> Tensor: ...
@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], Result],
    false_fn: Callable[[], Result],
    name: str | None = ...,
) -> Result: ...
@api_boundary
@makes_effects
def cond(
    pred: TensorLike,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """The result of `true_fn` if `pred` holds, else of `false_fn`.

    - `pred`: a bool of shape (). For a tensor both functions are traced, and one node computes
      one of them when it runs; for a Python bool only that function is called.
    - `true_fn`, `false_fn`: functions without arguments that return the same structure of tensors,
      of the same types. They may use tensors and Variables, and assign Variables. Sizes may differ
      if they follow from values, as those of `tg.boolean_mask` do.

    Every derivative exists: with respect to values that only the other branch uses it is 0. In
    `tg.vectorized_map` with a `pred` for each element, a branch that any element takes is computed
    for all elements, and its results for the others are dropped.

    Raises DTypeError or ShapeError for a `pred` that is not one bool, TraceError (a TypeError) for
    functions that return different structures or dtypes, and ShapeError for different shapes.

    >>> int(tg.cond(tg.constant(2.0) > 1.0, lambda: tg.constant(1), lambda: tg.constant(0)))
    1
    """
    given = [("true_fn", true_fn), ("false_fn", false_fn)]
    named = [(which, as_region("cond", which, function)) for which, function in given]
    if isinstance(pred, (bool, np.bool_)):
        return named[not pred][1]()
    decider = _scalar("cond", "the predicate", pred, bool_, "tg.reduce_all(x > 0)")
    return _chosen("cond", lambda graphs: Cond(graphs[0], graphs[1]), decider, named)


@overload
def switch_case(
    branch_index: TensorLike,
    branch_fns: Numbered[Leaf],
    default: Callable[[], Leaf] | None = ...,
    name: str | None = ...,
) -> Tensor: ...
@overload
def switch_case(
    branch_index: TensorLike,
    branch_fns: Numbered[Result],
    default: Callable[[], Result] | None = ...,
    name: str | None = ...,
) -> Result: ...
@api_boundary
@makes_effects
def switch_case(
    branch_index: TensorLike,
    branch_fns: Numbered[Any],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """The result of the function with the number `branch_index`.

    - `branch_index`: an integer of shape ().
    - `branch_fns`: a list of functions without arguments, or a dict or pairs that number them. All
      return the same structure of tensors, of the same types.
    - `default`: the function for any other number; if None, the one with the largest number.

    Raises DTypeError or ShapeError for an index that is not one integer, TraceError (a TypeError)
    for functions that return different structures or dtypes, and ShapeError for different shapes.

    >>> functions = [lambda: tg.constant(10), lambda: tg.constant(20)]
    >>> int(tg.switch_case(tg.constant(1), functions))
    20
    """
    functions = _numbered(branch_fns)
    if default is not None:
        default = as_region("switch_case", "default", default)
    if isinstance(branch_index, (int, np.integer)) and not isinstance(branch_index, bool):
        last = default or functions[max(functions)]
        return functions.get(int(branch_index), last)()
    index = _scalar("switch_case", "the index", branch_index, int32, "tg.cast(index, tg.int32)")
    numbers = sorted(functions)
    ordered = [functions[number] for number in numbers] + ([default] if default else [])
    place = constant(len(ordered) - 1, int32)
    for k, number in enumerate(numbers):
        place = SELECT(Equal()(index, constant(number, int32)), constant(k, int32), place)
    names = [f"branch_{number}" for number in numbers] + (["default"] if default else [])
    named = [*zip(names, ordered, strict=True)]
    return _chosen("switch_case", lambda graphs: Switch(tuple(graphs)), place, named)


@overload
def case(
    pred_fn_pairs: Pairs[Leaf],
    default: Callable[[], Leaf] | None = ...,
    exclusive: bool = ...,
    strict: bool = ...,
    name: str | None = ...,
) -> Tensor: ...
@overload
def case(
    pred_fn_pairs: Pairs[Result],
    default: Callable[[], Result] | None = ...,
    exclusive: bool = ...,
    strict: bool = ...,
    name: str | None = ...,
) -> Result: ...
@api_boundary
@makes_effects
def case(
    pred_fn_pairs: Pairs[Any],
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str | None = None,
) -> Any:
    """The result of the function in the first pair whose predicate holds.

    - `pred_fn_pairs`: pairs of a bool of shape () and a function without arguments, or a dict of
      them. All functions return the same structure of tensors, of the same types.
    - `default`: the function to call if no predicate holds. Without one, that is a run-time error.
    - `exclusive`: whether it is a run-time error if two predicates hold.
    - `strict`: accepted; results are always packed as the functions return them.

    Raises what `tg.cond` raises, and InvalidArgumentError if a run finds no predicate that holds,
    or two with `exclusive`.

    >>> x = tg.constant(3.0)
    >>> float(tg.case([(x < 0.0, lambda: -x), (x < 5.0, lambda: x * 2.0)], default=lambda: x))
    6.0
    """
    pairs = [*pred_fn_pairs.items()] if isinstance(pred_fn_pairs, Mapping) else [*pred_fn_pairs]
    if not pairs:
        fail(
            SignatureError,
            "case: there are no pairs",
            fix="give pairs of a predicate and a function",
        )
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            rule = "the pairs have a predicate and a function each"
            refuse_kind("case", rule, pair, fix="give pairs such as (x > 0.0, lambda: x)")
    deciders = [_scalar("case", "a predicate", p, bool_, "tg.reduce_all(x > 0)") for p, _ in pairs]
    ordered = [function for _, function in pairs] + ([default] if default else [])
    ordered = [as_region("case", "a function", function) for function in ordered]
    one = constant(1, int32)
    count = add_all([Cast(int32)(decider) for decider in deciders])
    assert count is not None, pairs
    if default is None:
        fact = "case: no predicate holds, and there is no default"
        check(GreaterEqual()(count, one), fact, deciders, "give default=, a function for the rest")
    if exclusive:
        fact = "case: several predicates hold, and exclusive=True"
        fix = "make the predicates exclude each other, or leave out exclusive=True"
        check(LessEqual()(count, one), fact, deciders, fix)
    place = constant(len(ordered) - 1, int32)
    for k, decider in reversed([*enumerate(deciders)]):
        place = SELECT(decider, constant(k, int32), place)
    named = [(f"case_{k}", function) for k, function in enumerate(ordered)]
    return _chosen("case", lambda graphs: Switch(tuple(graphs)), place, named)


def _traced(form: str, functions: Sequence[tuple[str, Any]]) -> list[TracedRegion]:
    """The traces of the named functions. TensorArrays that they return get the same buffers, which
    may take a second trace."""
    results: list[Any] = [None] * len(functions)
    noting = notes_what_leaves(f"a branch of tg.{form}")
    told = [(which, noting(telling(form, function))) for which, function in functions]

    def noted(number: int, result: Any) -> Any:
        results[number] = chosen_alike(result)  # a function that creates a Variable is traced twice
        return results[number]

    regions = [traced_region(*x, convert=partial(noted, k)) for k, x in enumerate(told)]
    lacking = common_needs(results, [region.traced.graph for region in regions])
    if not any(map(any, lacking)):
        return regions
    return [
        traced_region(*pair, convert=lambda x, needs=needs: supplied(chosen_alike(x), needs))
        for pair, needs in zip(told, lacking, strict=True)
    ]


def _chosen(
    name: str,
    op: Callable[[Sequence[Graph]], Op],
    decider: Tensor,
    functions: Sequence[tuple[str, Callable[[], Any]]],
) -> Any:
    """The result of the function that the decider selects, as one node. At top level Python calls
    it where the functions return sizes that follow from values, and differ; and where one of them
    raises an exception of the user's, which is raised if it is the one."""

    def called() -> Any:
        known = host_array(decider)
        return functions[int(not known) if decider.dtype.is_bool else int(known)][1]()

    try:
        regions = _traced(name, functions)
    except outside_interrupts(Exception) as error:
        if is_of_us(type(error)) or not current().is_top_level:
            raise
        return called()
    reads_values = any(region.reads_values for region in regions)
    for other in regions[1:]:
        _check_alike(name, regions[0], other, reads_values)
    if current().is_top_level:
        columns = zip(*(region.result_types for region in regions), strict=True)
        if any(may_differ([x.shape for x in types], reads_values) for types in columns):
            return called()
    outputs = choice(op, decider, regions, [_with_known_ranks(regions)] * len(regions))
    return measured(regions[0].results.pack(outputs))


def choice(
    op: Callable[[Sequence[Graph]], Op],
    decider: Tensor,
    regions: Sequence[TracedRegion],
    completions: Sequence[Callable[[list[Tensor]], list[Tensor]]] | None = None,
) -> tuple[Tensor, ...]:
    """The results of the region that the decider selects, as one node. Once all regions are traced,
    completions turn the results of each into those that all have."""
    shared = SharedValues(regions)
    made = completions or [list] * len(regions)
    branches = [_branch(shared, *pair) for pair in zip(regions, made, strict=True)]
    count = branches[0][1]
    reads_values = any(region.reads_values for region in regions)
    sized = count + len(shared.assigned)  # a Variable of open shape may get another size
    graphs = of_one_type([graph for graph, _ in branches], sized, reads_values)
    given = [*shared.reads(shared.read_only), *shared.captures, *shared.states_before()]
    outputs = appended(op(graphs), [decider, *given]) if graphs[0].outputs else ()
    take_on(shared, outputs[count:])
    return outputs[:count]


def _branch(
    shared: SharedValues, region: TracedRegion, completion: Callable[[list[Tensor]], list[Tensor]]
) -> tuple[Graph, int]:
    """The graph of a branch, and its number of results."""
    with Builder(region.name) as builder:
        values = shared.placeholders(builder, shared.read_only)
        captured = shared.captured(builder)
        values |= shared.placeholders_of_states(builder)
        results, values, checks = shared.run(region, (), values, captured)
        results = completion(results)
        new = shared.states_of(values)
    return finished(builder, [*results, *new, *checks]), len(results)


def _with_known_ranks(
    regions: Sequence[TracedRegion],
) -> Callable[[list[Tensor]], list[Tensor]]:
    """Turns the results of a region into those with the shapes of other regions, where only the run
    knows a rank."""
    shapes = []
    for types in zip(*(region.result_types for region in regions), strict=True):
        ranked = [x.shape for x in types if not isinstance(x.shape, ShapeVariable)]
        shapes.append(ranked[0] if ranked else None)
    return lambda results: [
        x if shape is None else with_rank_of(x, shape)
        for x, shape in zip(results, shapes, strict=True)
    ]


def _check_alike(name: str, first: TracedRegion, other: TracedRegion, reads_values: bool) -> None:
    """Raises TraceError for two branches that return different structures or dtypes, and ShapeError
    for different shapes."""
    one, two = first.results, other.results
    if not one.structure.matches(two.structure) or one.flags != two.flags:
        fail(
            TraceError,
            f"{name}: {first.name} returns {one} and {other.name} {two}",
            source=here(),
            fix="let both return the same structure, with tensors in the same places",
        )
    for k, (x, y) in enumerate(zip(first.result_types, other.result_types, strict=True)):
        where = f"result {k} of " if len(first.result_types) > 1 else "the result of "
        if x.dtype is not y.dtype:
            fail(
                TraceError,
                f"{name}: {where}{first.name} is {x}, and of {other.name} {y}",
                source=here(),
                fix=f"convert one of them: tg.cast(x, tg.{x.dtype.name})",
            )
        if may_take_rank_of(x.shape, y.shape) or may_take_rank_of(y.shape, x.shape):
            continue
        if same_shape(x.shape, y.shape) is None and not may_differ(
            [x.shape, y.shape], reads_values
        ):
            fail(
                ShapeError,
                f"{name}: {where}{first.name} is {x}, and of {other.name} {y}",
                source=here(),
                fix=rank_fix(x, y) or "let both have the same shape: tg.broadcast_to(x, shape)",
            )


def _numbered(functions: Any) -> dict[int, Callable[[], Any]]:
    if isinstance(functions, Mapping):
        pairs = [*functions.items()]
    else:
        pairs = [f if isinstance(f, tuple) else (k, f) for k, f in enumerate(functions)]
    found: dict[int, Callable[[], Any]] = {}
    for number, function in pairs:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            fail(
                TraceError,
                f"switch_case: a number of a branch is {kind_of(number)}: {shown(number)}",
                fix="number the branches by ints",
            )
        if int(number) in found:
            fail(
                SignatureError,
                f"switch_case: two branches have the number {number}",
                fix="give each branch a number of its own",
            )
        found[int(number)] = as_region("switch_case", f"branch {number}", function)
    if not found:
        fail(SignatureError, "switch_case: there are no branches", fix="give a list of functions")
    return found


def _scalar(name: str, what: str, value: Any, dtype: Any, fix: str) -> Tensor:
    tensor = as_tensor(value)
    if dtype is bool_:
        tensor = one_element(tensor)
    is_integer = dtype is int32 and tensor.dtype.is_integer
    if tensor.dtype is not dtype and not is_integer:
        fail(
            DTypeError,
            f"{name}: {what} is {tensor.type}, and it must be one {dtype.name}",
            operands=[operand_text(tensor)],
            fix=f"convert it: {fix}",
        )
    if tensor.type.shape != ():
        fail(
            ShapeError,
            f"{name}: {what} is {tensor.type}, and it must have the shape ()",
            operands=[operand_text(tensor)],
            fix=f"reduce it: {fix}",
        )
    return to_int32(tensor) if is_integer else tensor


__all__ = ["case", "cond", "switch_case"]
