"""The hooks that converted code calls where Python would decide.

A value that Python knows decides as it would without conversion; one that a graph computes becomes
nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, ValuesView
from types import BuiltinMethodType, FunctionType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from tracegraph import nest
from tracegraph.autograph import function_conversion, iteration
from tracegraph.autograph.function_conversion import converted, directives, take_as_given
from tracegraph.autograph.statements.branches import (
    chosen,
    lists,
    names_and_attributes,
    negated,
    other_names,
    predicate,
    run_choice,
)
from tracegraph.autograph.statements.values import (
    GetState,
    SetState,
    Undefined,
    UndefinedReturnValue,
    UnfitState,
    Unknown,
    finally_,
    has_type_of,
    in_graph,
    is_carried,
    is_flag,
    is_number,
    is_undefined,
    leave_iteration,
    read,
    without_flags,
)
from tracegraph.control_flow.regions import SizeOfStepError, check_kept
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.later import opened
from tracegraph.core.source import stand_for_users
from tracegraph.effects.checks_and_prints import check, compared, print_tensors
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.builder import current
from tracegraph.operands.conversion import as_tensor, cast_to, has_dtype
from tracegraph.ops.constant import constant
from tracegraph.ops.elementwise import LogicalOr
from tracegraph.tensor_arrays.tensor_array import TensorList
from tracegraph.tracing.trace import effects_so_far, has_joined, tries
from tracegraph.tracing.unrolled_loops import (
    WHILE,
    Unrolled,
    counted_items,
    over_growing,
    over_range,
)

if TYPE_CHECKING:
    from tracegraph.autograph.statements.loops import LoopOptions

Run = Callable[[], None]


def loops() -> Any:
    """The module about loops that a value of the graph ends; the first such loop opens it."""
    return opened("tracegraph.autograph.statements.loops")


# Statements.


def if_stmt(
    cond: Any,
    body: Run,
    orelse: Run,
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    nouts: int,
    flag: str,
    shared: Sequence[str],
) -> None:
    """The code under `if not flag`, where malt says by a `flag` that it is to be left out, or an
    `if` of the user's. `shared` names are also read by other functions."""
    if _is_of_graph(cond):
        flags, unread = [flag] if flag else [], symbol_names[nouts:]
        state = get_state, set_state, symbol_names
        run_choice(predicate(cond), body, orelse, *state, flags, shared, unread=unread)
    elif cond:
        body()
    else:
        orelse()


def while_stmt(
    test: Callable[[], Any],
    body: Run,
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    opts: dict[str, Any],
) -> None:
    """Runs the loop in Python until its test is a value of the graph, and stages it from there."""
    before = effects_so_far()
    decides = _tested(test)
    done = 0  # iterations that Python ran
    for _ in _told(itertools.count(), WHILE):
        if _is_of_graph(decides):
            break
        if not decides:
            return
        body()
        done += 1
        leave_iteration(get_state, set_state, opts["exits"])
        before = effects_so_far()
        decides = _tested(test)
    most = opts.get("maximum_iterations")
    if most is not None and done:
        most = max(most - done, 0) if isinstance(most, int) else most - done
    options = loops().LoopOptions(
        most,
        opts["read_after"],
        opts["shared"],
        opts["exits"],
        opts["unsure"],
        invariants=opts.get("shape_invariants", ()),
    )
    staged = (test, body, get_state, set_state, symbol_names, options)
    if effects_so_far() != before:
        staged = _tested_once(predicate(decides), *staged)
    loops().run_loop(*staged)


def _tested(test: Callable[[], Any]) -> Any:
    """What the test of a `while` gives. Raises SignatureError if it sets attributes, and the graph
    decides."""
    objects = opened("tracegraph.autograph.changes.objects")
    with objects.objects_kept(test, (), is_loop=True) as attributes:
        decides = test()
    if _is_of_graph(decides):
        what = "a method or a function called in the test of a `while` sets"
        objects.refuse_set(attributes, what, "test it in the loop: while True: if not …: break")
    return decides


class _Extended:
    """The state of a statement with one more value, which comes first."""

    def __init__(self, value: Any, get_state: GetState, set_state: SetState) -> None:
        self.value, self._get_state, self._set_state = value, get_state, set_state

    def get(self) -> tuple[Any, ...]:
        return (self.value, *self._get_state())

    def set(self, values: tuple[Any, ...]) -> None:
        self.value = values[0]
        self._set_state(values[1:])


def _tested_once(
    holds: Any,
    test: Callable[[], Any],
    body: Run,
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    options: LoopOptions,
) -> tuple[Callable[[], Any], Run, GetState, SetState, Sequence[str], LoopOptions]:
    """The loop that carries the outcome of its test, whose effects happen once for each: the first
    is what `holds` before the loop, and each iteration ends with the next test."""
    state = _Extended(holds, get_state, set_state)

    def run() -> None:
        body()
        leave_iteration(get_state, set_state, options.exits)
        state.value = predicate(test())

    options = dataclasses.replace(options, body=body)
    return lambda: state.value, run, state.get, state.set, ("holds", *names), options


def for_stmt(
    iterated: Any,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    opts: dict[str, Any],
) -> None:
    steps = iteration.staged_steps(iterated)
    lists().check_advance(iterated)
    if steps is not None:
        options = loops().LoopOptions(
            opts.get("maximum_iterations"),
            opts["read_after"],
            opts["shared"],
            opts["exits"],
            opts["unsure"],
            is_entered=bool(steps.bound),
            body=body,
            item=opts["iterate_names"],
            invariants=opts.get("shape_invariants", ()),
        )
        rows = None if extra_test or options.maximum_iterations is not None else steps.rows()
        if rows is None:
            _staged_for(steps, extra_test, body, get_state, set_state, symbol_names, options)
        elif "shape_invariants" not in opts:
            loops().run_fold(rows, body, get_state, set_state, symbol_names, options)
        elif not _folds(rows, body, get_state, set_state, symbol_names, options):
            before = get_state()
            for item in _told(steps, over_growing(steps.bound)):
                body(item)
                check_kept(options.invariants, before, get_state())
                leave_iteration(get_state, set_state, opts["exits"])
    elif extra_test is None:
        for item in _told_if_long(iterated):
            body(item)
            leave_iteration(get_state, set_state, opts["exits"])
    else:
        _guarded_for(iterated, extra_test, body, get_state, set_state, symbol_names, opts)


@tries()
def _folds(rows: Any, *arguments: Any) -> bool:
    """Makes one loop node over all rows. False if the state does not keep its shape, or a step
    computes a size, which a loop in a graph cannot do: each iteration is then traced separately.
    """
    try:
        loops().run_fold(rows, *arguments)
    except (SizeOfStepError, UnfitState):
        return False
    return True


def _told_if_long(iterated: Any) -> Iterable[Any]:
    """An iterable for Python; for a range, it warns if its iterations create many nodes. Other
    sequences hold items that genuinely differ, such as layers."""
    return _told(iterated, over_range(iterated)) if type(iterated) is range else iterated


def _told(items: Iterable[Any], loop: Unrolled) -> Iterable[Any]:
    builder = current()
    return items if builder.is_top_level else counted_items(loop, items, builder)


def _guarded_for(
    iterated: Any,
    extra_test: Callable[[], Any],
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    opts: dict[str, Any],
) -> None:
    """A loop over values that Python knows, which a value of the graph may leave: all iterations
    are traced, each guarded by whether the loop was left."""
    for item in _told_if_long(iterated):
        goes_on = extra_test()
        if in_graph(goes_on):
            run_choice(
                predicate(goes_on),
                lambda item=item: body(item),
                lambda: None,
                get_state,
                set_state,
                symbol_names,
                filter(is_flag, symbol_names),
                unread=opts["unsure"],
            )
        elif goes_on:
            body(item)
        else:
            break
        leave_iteration(get_state, set_state, opts["exits"])


def _staged_for(
    steps: iteration.Steps,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: Sequence[str],
    options: LoopOptions,
) -> None:
    state = _Extended(steps.first(), get_state, set_state)

    def goes_on() -> Any:
        has = steps.has(state.value)
        return has if extra_test is None else and_(lambda: has, extra_test)

    def run() -> None:
        at, state.value = state.value, steps.after(state.value)
        body(steps.item(at))

    most = steps.bound if options.maximum_iterations is None else options.maximum_iterations
    options = dataclasses.replace(options, maximum_iterations=most)
    # The counter of a range is what the user names as the item.
    counted = options.item if isinstance(steps, iteration.Range) else "counter"
    loops().run_loop(goes_on, run, state.get, state.set, (counted, *symbol_names), options)


def assert_stmt(test: Callable[[], Any], text: Callable[[], Any]) -> None:
    holds = test()
    if in_graph(holds):
        message = str(text() or "the assertion does not hold")
        check(predicate(holds), message, compared(holds))
    elif not holds:
        raise AssertionError(*filter(None, [text()]))


# Expressions.


def and_(left: Callable[[], Any], right: Callable[[], Any]) -> Any:
    value = left()
    return _operand(value, right, is_or=False) if _is_of_graph(value) else value and right()


def or_(left: Callable[[], Any], right: Callable[[], Any]) -> Any:
    value = left()
    return _operand(value, right, is_or=True) if _is_of_graph(value) else value or right()


def _operand(value: Any, right: Callable[[], Any], is_or: bool) -> Any:
    """What Python gives for `value or right()`, or `and`: the operand that decides. A bool beside a
    number is 0 or 1, which Python's equals. Operands of other types are whether they hold."""
    is_list = isinstance(value, TensorList)
    value = predicate(value) if is_list else value
    is_bool = as_tensor(value).dtype.is_bool
    #: Gives the left operand in a type that the right one has, too.
    lefts: list[Callable[[], Any]] = []

    def other() -> Any:
        found = right()
        is_truth = type(found) is bool or (has_dtype(found) and as_tensor(found).dtype.is_bool)
        if is_list and not is_truth:
            lists().refuse_operand("or" if is_or else "and")
        if not is_bool and has_type_of(value, found):
            lefts.append(lambda: value)
        elif (is_bool or not is_or) and _is_one_number(found):  # known where it decides
            dtype = None if is_number(found) else as_tensor(found).dtype
            known = is_or if dtype else type(found)(is_or)
            lefts.append(lambda: constant(known, dtype) if dtype else known)
        elif _is_one_number(value) and in_graph(found) and as_tensor(found).dtype.is_bool:
            lefts.append(lambda: value)
            return cast_to(predicate(found), as_tensor(value).dtype)
        else:
            lefts.append(lambda: is_or)
            return _truth(found)
        return found

    test = predicate(value)
    name = f"the value of `{'or' if is_or else 'and'}`"
    return _chosen(negated(test) if is_or else test, other, lambda: lefts[-1](), name)


def _is_one_number(value: Any) -> bool:
    """Whether a value, unlike a bool, is a number of Python or a scalar of numbers."""
    if is_number(value) or not has_dtype(value):
        return is_number(value) and type(value) is not bool
    x = as_tensor(value)
    return x.type.shape == () and not x.dtype.is_bool


def _truth(value: Any) -> Any:
    return predicate(value) if _is_of_graph(value) else bool(value)


def not_(value: Any) -> Any:
    return negated(predicate(value)) if _is_of_graph(value) else not value


def is_(value: Any, other: Any) -> Any:
    """Whether a matched value is True, False or None."""
    if in_graph(value) and other is not None:
        return predicate(value) if other else negated(predicate(value))
    return value is other


def matched(
    pattern: str, names: tuple[str, ...], subject: Any, given: Sequence[Any]
) -> tuple[Any, ...]:
    """Whether a pattern of a `match` fits how the subject is built, and what its names stand for.
    It refers to `given` as `given.x0`, `given.x1`, …"""
    values = SimpleNamespace(**{f"x{i}": x for i, x in enumerate(given)})
    return _matcher(pattern, names)(subject, values)


@functools.lru_cache(maxsize=1024)
def _matcher(pattern: str, names: tuple[str, ...]) -> Callable[[Any, Any], tuple[Any, ...]]:
    found = "".join(f"{name}, " for name in names)
    lines = ["def match(subject, given):", " match subject:", f"  case {pattern}:"]
    lines += [f"   return True, {found}", " return (False,)"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["match"]


def in_(value: Any, items: Any) -> Any:
    """`value in items`. Values of a graph are compared with each item, also with those of a set or
    the keys of a dict: Python would look up the tensor itself there."""
    if isinstance(items, TensorList):
        return in_(value, [*items]) if items.has_known_length else items.contains(value)
    if not isinstance(items, (list, tuple, set, frozenset, dict)):
        return value in items
    compared = [x for x in items if is_carried(x)]
    has_plain = not isinstance(items, (list, tuple)) and not all(map(is_number, compared))
    is_known = has_plain or not any(map(in_graph, (value, *compared)))
    if is_known or not is_carried(value) or any(x is value for x in compared):
        return value in items
    return any_(value == x for x in compared)


def not_in(value: Any, items: Any) -> Any:
    return not_(in_(value, items))


def any_(values: Iterable[Any]) -> Any:
    """`any`, of which values of a graph are truth values."""
    found = False
    for value in values:
        if in_graph(value):
            found = LogicalOr()(as_tensor(found), predicate(value))
        elif value:
            return True
    return found


def all_(values: Iterable[Any]) -> Any:
    """`all`, of which values of a graph are truth values."""
    return not_(any_(map(not_, values)))


def if_exp(
    cond: Any, if_true: Callable[[], Any], if_false: Callable[[], Any], expr_repr: str
) -> Any:
    if _is_of_graph(cond):
        return _chosen(cond, if_true, if_false, f"the value of `… if {expr_repr} else …`")
    return if_true() if cond else if_false()


def _chosen(cond: Any, first: Callable[[], Any], second: Callable[[], Any], name: str) -> Any:
    def traced(part: Callable[[], Any]) -> tuple[tuple[Any], tuple[Any]]:
        with names_and_attributes().names_kept(part, name), lists().changes_kept(part, ()):
            value = (part(),)
        return value, value

    (value,) = chosen(predicate(cond), lambda: traced(first), lambda: traced(second), (name,))
    return value


# Calls.


def called(f: Any) -> Any:
    """What converted code calls in place of `f`: its converted form, if it has one."""
    found = _called(f)
    return other_names().watching(found) if has_joined() else found


def _called(f: Any) -> Any:
    if type(f) is BuiltinMethodType:
        if type(f.__self__) is list and f.__name__ in ("append", "extend", "insert"):
            return functools.partial(_grow, f)
        return _OF_TENSORS.get(f, f) if f.__module__ == "builtins" else f
    if isinstance(f, type):
        # Types of other metaclasses need not be hashable.
        return _OF_TENSORS.get(f, f) if type(f) is type else f
    if type(f) is MethodType and type(f.__self__) is TensorList:
        if f.__name__ in ("append", "extend", "pop"):
            lists().refuse_change(f)
        return f
    inner = converted(f)
    if inner is f and _is_ours(f):
        function = inspect.unwrap(f)
        if function in directives:
            fact = f"{f.__name__} is not the first statement of a loop, so no loop has its options"
            fail(SignatureError, fact, fix="call it first in its loop, by name and with keywords")
        if function not in take_as_given:
            return _with_converted_arguments(f)
    return inner


def _grow(method: Any, *args: Any) -> Any:
    """A call of a method that extends a list."""
    if any(map(in_graph, nest.flatten(args))):
        lists().check_growth(method)
    return method(*args)


def _is_ours(f: Any) -> bool:
    return str(getattr(f, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _with_converted_arguments(f: Any) -> Any:
    """A function of tracegraph that converts its function arguments."""

    def entered(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_converted_argument, args))
        if kwargs:
            kwargs = {name: _converted_argument(x) for name, x in kwargs.items()}
        return f(*args, **kwargs)

    return entered


def _converted_argument(value: Any) -> Any:
    return converted(value) if isinstance(value, (FunctionType, MethodType)) else value


def iterated(f: Any) -> Any:
    """What to call in place of `f` to create the iterable of a `for`."""
    make = iteration.maker(f)
    function = called(f)
    if make is None:
        return function

    def made(*args: Any, **kwargs: Any) -> Any:
        for x in args:
            lists().check_advance(x)
        steps = make(*args, **kwargs)
        return function(*args, **kwargs) if steps is None else steps

    return made


def _next(iterated: Any, *default: Any) -> Any:
    lists().check_advance(iterated)
    return next(iterated, *default)


def _print(*values: Any, **options: Any) -> None:
    if any(map(in_graph, values)) and not options.keys() - {"sep", "end"}:
        print_tensors(*values, output_stream=sys.stdout, **options)
    else:
        print(*values, **options)


def _by_graph(function: Callable[..., Any], of_items: bool = False) -> Callable[..., Any]:
    """A function of Python that the graph computes if it is given a value of one, or, `of_items`,
    several items with one among them."""

    def computed(*args: Any, **options: Any) -> Any:
        if of_items and args and isinstance(args[0], (Iterator, ValuesView)):
            args = ([*args[0]], *args[1:])
        is_list = of_items and bool(args) and isinstance(args[0], (list, tuple))
        if any(map(_is_of_graph, args[0] if is_list else args)):
            functions = opened("tracegraph.autograph.python_functions")  # few programs need them
            return functions.computed(function, *args, **options)
        return function(*args, **options)

    return computed


def _is_of_graph(value: Any) -> bool:
    """Whether only the run knows a value, or the length of a list."""
    return in_graph(value) or (isinstance(value, TensorList) and not value.has_known_length)


def _as_python(value: Any) -> Any:
    """A list in place of one that a loop has made grow."""
    return [] if isinstance(value, TensorList) else value


#: Replacements for Python's functions in converted code.
_OF_TENSORS: dict[Any, Callable[..., Any]] = {
    all: all_,
    any: any_,
    isinstance: lambda x, kinds: isinstance(x, kinds) or isinstance(_as_python(x), kinds),
    next: _next,
    print: _print,
    type: lambda x, *more, **options: type(_as_python(x), *more, **options),
    **{f: _by_graph(f) for f in (bool, float, int, len)},
    **{f: _by_graph(f, of_items=True) for f in (max, min, sum)},
}


# Functions.


class FunctionScope:
    """The context of a converted function's body."""

    def __init__(self, name: str, scope_name: str, options: Any) -> None:
        self._name = name

    def __enter__(self) -> FunctionScope:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def ret(self, value: Any, did_return: Any) -> Any:
        """The value that the function returns. Raises SignatureError if it returns one only on some
        paths."""
        if is_undefined(value):
            return None
        if in_graph(did_return) and value is not None:
            fail(
                SignatureError,
                f"{self._name} returns a value on one path that a tensor decides about, and "
                "nothing on another",
                fix="return a value on every path",
            )
        return value


def ldu(load: Callable[[], Any], name: str) -> Any:
    """The value of an attribute or item, which may not exist."""
    try:
        return load()
    except outside_interrupts(AttributeError, LookupError, NameError):
        return Undefined(name)


def check_left_out(value: Undefined) -> None:
    """Raises SignatureError for an attribute or item that only one branch sets: it cannot be left
    undefined, since other holders of the object may read it."""
    if value.fact:
        value.refuse()


def autograph_artifact(function: Any) -> Any:
    """A function defined in converted code, which is itself converted code."""
    return function


# Decisions that Python makes in this file are the user's.
stand_for_users.add(__file__)

function_conversion.hooks.cell_contents = SimpleNamespace(
    Undefined=Undefined,
    UndefinedReturnValue=UndefinedReturnValue,
    FunctionScope=FunctionScope,
    and_=and_,
    assert_stmt=assert_stmt,
    attribute_state=lambda owner, name: names_and_attributes().state_of(owner, name),
    autograph_artifact=autograph_artifact,
    list_add=lambda *args, **options: lists().list_add(*args, **options),
    list_append=lambda *args, **options: lists().list_append(*args, **options),
    list_extend=lambda *args, **options: lists().list_extend(*args, **options),
    list_repeat=lambda *args, **options: lists().list_repeat(*args, **options),
    list_insert=lambda *args, **options: lists().list_insert(*args, **options),
    called=called,
    changed=lambda: other_names().carry_over() if has_joined() else None,
    check_left_out=check_left_out,
    finally_=finally_,
    for_stmt=for_stmt,
    if_exp=if_exp,
    if_stmt=if_stmt,
    in_=in_,
    is_=is_,
    is_undefined=lambda x: is_undefined(x) and not isinstance(x, Unknown),
    item_state=lambda *args: opened("tracegraph.autograph.changes.setters").item_of(*args),
    iterated=iterated,
    ld=read,
    ldu=ldu,
    matched=matched,
    not_=not_,
    not_in=not_in,
    or_=or_,
    raised=lambda: sys.exc_info()[1],  # the exception being handled
    set_attribute=lambda owner, name, state: names_and_attributes().set_state(owner, name, state),
    while_stmt=while_stmt,
    without_flags=without_flags,
)
