"""The values of names that a control flow statement changes: the state that a graph carries.

A value is a nest. A graph can carry its leaves that are tensors and numbers; all other leaves must
remain the same objects.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CellType
from typing import Any, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.core.shapes import same_shape
from tracegraph.core.source import HOOKS
from tracegraph.core.types import TensorType, rank_fix, type_of_array
from tracegraph.eager.tensor_methods import is_symbolic
from tracegraph.errors import (
    DTypeError,
    ShapeError,
    SignatureError,
    UnboundError,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import refuse_leaked
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_array, as_tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.shape import may_take_rank_of, with_rank_of
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import current_trace

Values = tuple[Any, ...]
GetState = Callable[[], Values]
SetState = Callable[[Values], None]


class Undefined:
    """A name without a value: none yet, or for the reason `fact`."""

    def __init__(self, name: str, fact: str = "", fix: str = "") -> None:
        self.name = name
        self.fact = fact
        self.fix = fix

    def refuse(self) -> NoReturn:
        """Raises the error for using the name."""
        if self.fact:
            fail(SignatureError, self.fact, fix=self.fix)
        fail(
            UnboundError,
            f"cannot access local variable {self.name!r} where it is not associated with a value",
            fix=f"set {self.name!r} before the statement that may set it: where a tensor decides, "
            "every branch is traced",
        )

    def is_left_out(self, value: Any) -> bool:
        """Whether a loop does not carry the name, which has this value after a step."""
        return False


class Unknown(Undefined):
    """An item or an attribute that a graph cannot tell; it stands there and refuses to be read."""

    def is_left_out(self, value: Any) -> bool:
        return True


class UnfitState(ShapeError):
    """A ShapeError because two values of a statement's state have different shapes."""


class UndefinedReturnValue(Undefined):
    """The return value of a function that has not returned yet."""

    def __init__(self) -> None:
        super().__init__("the returned value")


class _OutOfScope(Undefined):
    """A name that stands for a tensor of a branch or body that was traced before."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        super().__init__(name)
        self._tensor = tensor

    def refuse(self) -> NoReturn:
        refuse_leaked(self._tensor)


def before_statement(names: Sequence[str], values: Sequence[Any]) -> tuple[Any, ...]:
    """The state before a statement. A name that is no state of the statements before, since nothing
    reads it after them, still stands for what they set while they were traced: it has no value."""
    trace, found = current_trace(), [*values]
    for number, name in enumerate(names):
        for x in flattened(without_flags(values[number]))[0] if name.isidentifier() else ():
            if isinstance(x, Tensor) and trace is not None and not trace.may_use(x):
                found[number] = _OutOfScope(name, x)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class SetUnlessLeft:
    """The value of a name that has none where a `return`, `break` or `continue` left the code.
    What follows is not reached there, so a graph has zeros for it."""

    name: str
    value: Any
    #: malt's names of the flags that say whether the code was left.
    flags: frozenset[str]
    #: How many `finally` blocks the code that set it is in.
    depth: int
    fact: str

    def refused(self, place: str) -> Undefined:
        """The name without its value, where code is reached that comes after `place`."""
        return Undefined(self.name, self.fact, f"give {self.name!r} a value before {place}")


def both_flagged(name: str, one: Any, other: Any) -> tuple[Any, Any]:
    """Two values of a name, both as `SetInLoop` if one of them is."""
    if isinstance(one, SetInLoop) or isinstance(other, SetInLoop):
        return SetInLoop.alike(name, one), SetInLoop.alike(name, other)
    return one, other


def is_flag(name: str) -> bool:
    """Whether malt made the name, for a flag that says whether the code was left."""
    return name.startswith(HOOKS)


def is_flag_of_loop(name: str) -> bool:
    return is_flag(name) and not name.startswith(f"{HOOKS}do_return")


@dataclasses.dataclass(frozen=True)
class SetInLoop:
    """The value of a name that only a loop sets, and whether an iteration has done so. Statements
    carry both, as the leaves of a nest."""

    name: str
    value: Any
    is_set: Any

    @staticmethod
    def alike(name: str, value: Any) -> Any:
        """A value in this form; unchanged if it has it, or if there is none."""
        is_plain = not isinstance(value, (SetInLoop, Undefined))
        return SetInLoop(name, value, True) if is_plain else value

    def read(self) -> Any:
        """The value, with a check that it is one."""
        check_set(self.name, self.is_set)
        return self.value


def check_set(name: str, is_set: Any) -> None:
    """Makes the run fail if no iteration has set a name."""
    if is_set is not True and (trace := current_trace()) is not None:
        fact, fix = f"{name!r} is set by a loop that ran 0 times", "give it a value before the loop"
        trace.check(is_set, fact, (), fix)


def where_reached(value: Any) -> Any:
    """The value of a name, for code that is not reached where the code before was left."""
    return value.value if isinstance(value, SetUnlessLeft) else value


def without_flags(value: Any) -> Any:
    """The value of a name, without what says whether it has one."""
    value = where_reached(value)
    return value.value if isinstance(value, SetInLoop) else value


def flags_of(value: Any) -> frozenset[str]:
    return value.flags if isinstance(value, SetUnlessLeft) else frozenset()


def after_iteration(value: Any, exits: Sequence[str]) -> Any:
    """The value of a name after an iteration of a loop, whose `break` and `continue` set the flags
    `exits`: what follows is reached after these too."""
    return value if flags_of(value).isdisjoint(exits) else value.refused("the loop")


def is_undefined(value: Any) -> bool:
    return isinstance(value, Undefined)


def in_graph(value: Any) -> bool:
    """Whether a graph computes the value, so that Python cannot read it."""
    if isinstance(value, Tensor):
        return is_symbolic(value)
    return isinstance(value, Variable) and current_trace() is not None


#: Python's number types, in promotion order.
_NUMBERS = (bool, int, float, complex)
CARRIED = (Tensor, Variable, np.ndarray, np.generic, *_NUMBERS)


def is_carried(leaf: Any) -> bool:
    """Whether a graph can carry a leaf."""
    return isinstance(leaf, CARRIED)


def is_number(leaf: Any) -> bool:
    return type(leaf) in _NUMBERS


def is_same(one: Any, other: Any) -> bool:
    """Whether two leaves are the same Python value, so that it is kept."""
    if one is other:
        return True
    if isinstance(one, (Tensor, Variable, np.ndarray)) or type(one) is not type(other):
        return False
    if isinstance(one, (str, bytes, *_NUMBERS)):
        return one == other and repr(one) == repr(other)
    return False


def flattened(value: Any) -> tuple[list[Any], nest.Structure]:
    return nest.flatten_structure(value, none_is_leaf=True)


@dataclasses.dataclass(frozen=True)
class StatePlace:
    """A place in the state, and how messages call the two values there."""

    name: str
    first: str
    second: str
    fix: str = ""

    def refuse(self, kind: type[Exception], one: Any, other: Any, fix: str) -> NoReturn:
        fail(
            kind,
            f"{self.label} is {described(one)} {self.first}, and {described(other)} {self.second}",
            fix=fix,
        )

    @property
    def label(self) -> str:
        if self.is_return:
            return "the returned value"
        return self.name if self.name.startswith("the ") else repr(self.name)

    @property
    def is_return(self) -> bool:
        return self.name.startswith("retval_")


def described(value: Any) -> str:
    """A value as messages of control flow show it."""
    if is_undefined(value):
        return "not set"
    if isinstance(value, (Tensor, Variable)):
        return f"a tensor {type_of(value)}"
    if value is None or is_number(value) or isinstance(value, str):
        return shown(value)
    if isinstance(value, (tuple, list, dict)):
        leaves, structure = flattened(value)
        return f"{kind_of(value)} {structure}" if leaves else f"{kind_of(value)}, {shown(value)}"
    return kind_of(value)


def type_of(leaf: Any) -> TensorType:
    """The type of a leaf that a graph can carry, as a tensor."""
    if isinstance(leaf, Variable):
        return leaf.tensor_type
    return leaf.type if isinstance(leaf, Tensor) else type_of_array(as_array(leaf, None))


def common_type(one: Any, other: Any, place: StatePlace) -> TensorType:
    """The tensor type to which both leaves convert. Numbers adapt to tensors, as in operations."""
    if is_number(one) and is_number(other):
        return type_of(_wider(one, other, place))
    if is_number(one):
        return _adapted(one, type_of(other), place, one, other)
    if is_number(other):
        return _adapted(other, type_of(one), place, one, other)
    first, second = type_of(one), type_of(other)
    if first.dtype is not second.dtype:
        place.refuse(DTypeError, one, other, f"convert one: tg.cast(…, tg.{first.dtype.name})")
    if may_take_rank_of(second.shape, first.shape):
        return first
    if may_take_rank_of(first.shape, second.shape):
        return second
    if same_shape(first.shape, second.shape) is None:
        place.refuse(UnfitState, one, other, rank_fix(first, second) or place.fix)
    return first


def _wider(one: Any, other: Any, place: StatePlace) -> Any:
    kinds = _NUMBERS.index(type(one)), _NUMBERS.index(type(other))
    if 0 in kinds and kinds != (0, 0):
        place.refuse(DTypeError, one, other, "give both the same type")
    return one if kinds[0] >= kinds[1] else other


def _adapted(number: Any, type: TensorType, place: StatePlace, one: Any, other: Any) -> TensorType:
    """The type of a tensor, if a number can also take it."""
    kind, dtype = _NUMBERS.index(number.__class__), type.dtype
    fits = (dtype.is_bool, dtype.is_integer or dtype.is_floating, dtype.is_floating, False)[kind]
    if kind and dtype.is_complex:
        fits = True
    if not fits:
        name, wider = dtype.name, type_of(number).dtype.name
        fix = f"convert one: tg.cast(…, tg.{wider}), or tg.constant(…, tg.{name})"
        place.refuse(DTypeError, one, other, fix)
    if type.shape != ():
        place.refuse(UnfitState, one, other, rank_fix(type) or place.fix)
    return type


#: How the name of state begins that is what a container holds.
ITEMS_OF = "the items of "


def has_type_of(one: Any, other: Any) -> bool:
    """Whether both can be carried as one type of tensors."""
    if not is_carried(other):
        return False
    try:
        common_type(one, other, StatePlace("", "", ""))
    except (DTypeError, ShapeError):
        return False
    return True


def as_type(leaf: Any, type: TensorType) -> Tensor:
    """A leaf as a tensor of a type returned by `common_type`."""
    if is_undefined(leaf):
        return full(0, type)
    if is_number(leaf):
        return as_tensor(leaf, type.dtype)
    return with_rank_of(as_tensor(leaf), type.shape)


# What bodies have from outside.


def content(cell: CellType) -> Any:
    """What a name of a body from outside stands for; None if it has no value yet."""
    found = raw_content(cell)
    return None if found is Undefined else without_flags(found)


def raw_content(cell: CellType) -> Any:
    """What is in a cell; Undefined if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return Undefined


# What is read.


class _OfThread(threading.local):
    """What is being traced."""

    def __init__(self) -> None:
        #: How many `finally` blocks are being traced.
        self.finally_depth = 0
        #: The branches and bodies that are being traced.
        self.entered: list[Any] = []
        #: How often code that is guarded has advanced an iterator.
        self.advanced = 0
        #: What the loops being traced begin with in place of items and attributes that only they
        #: set.
        self.unset: set[Tensor] = set()


thread = _OfThread()


@contextlib.contextmanager
def finally_() -> Iterator[None]:
    """The context of a `finally` block, which is reached wherever the code before was left."""
    thread.finally_depth += 1
    try:
        yield
    finally:
        thread.finally_depth -= 1


def read(value: Any) -> Any:
    """The value of a name that is being read."""
    if isinstance(value, SetUnlessLeft):
        if value.depth >= thread.finally_depth:
            return value.value
        value = value.refused("the `try`")
    if isinstance(value, Undefined):
        value.refuse()
    return value.read() if isinstance(value, SetInLoop) else value


def leave_iteration(get_state: GetState, set_state: SetState, exits: Sequence[str]) -> None:
    """Drops, after an iteration that Python ran, the values that a name has unless the iteration
    was left."""
    if exits:
        before = get_state()
        after = tuple(after_iteration(value, exits) for value in before)
        if any(x is not y for x, y in zip(before, after, strict=True)):
            set_state(after)
