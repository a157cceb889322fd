# ruff: noqa: E501 - messages stand here as they are printed
"""Bad input: the exact text of each error, its class, and that everything is usable afterwards.

A message says what is wrong with both facts, the user's line, the operands, and the repair:

    matmul: inner dimensions differ: f32[2,3] times f32[2,3]
      at /home/me/mlp.py:6:  return x @ w
      operand 0: f32[2,3]  (argument %x)
      operand 1: f32[2,3]  from /home/me/mlp.py:9
      fix: transpose an operand or check the layer width

Each case is a function whose first line raises, or the line that is marked `# here`; in operands
`{place}` stands for that line.
"""

import collections
import dataclasses
import functools
import gc
import inspect
import linecache
import operator
import os
import pickle
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.errors import (
    DTypeError,
    GradientError,
    InvalidArgumentError,
    ShapeError,
    TraceError,
)
from tracegraph.ops.shape import Transpose
from tracegraph.passes import registry

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


@dataclasses.dataclass(frozen=True)
class Case:
    """A call that raises `kind`, which TensorFlow's users catch as `base`, and its message."""

    call: Callable[..., Any]
    kind: type[Exception]
    base: type[Exception]
    fact: str
    fix: str
    operands: tuple[str, ...] = ()
    #: The function with the line that the message names, where it is not `call`.
    where: Callable[..., Any] | None = None

    def check(self, *given: Any) -> None:
        with pytest.raises(self.kind) as caught:
            self.call(*given)
        error = caught.value
        assert isinstance(error, self.base)
        assert str(error) == self.message()
        assert error.__cause__ is None, "the cause adds nothing"
        assert error.__context__ is None or error.__suppress_context__, "so does the context"

    def message(self) -> str:
        where = self.where or self.call
        number = marked(where, "# here") or where.__code__.co_firstlineno
        place = f"{__file__}:{number}"
        made = f"{__file__}:{vector.__code__.co_firstlineno + 1}"
        operands = [x.replace("{place}", place).replace("{vector}", made) for x in self.operands]
        rows = [
            self.fact,
            f"  at {place}:  {linecache.getline(__file__, number).strip()}",
            *(f"  operand {i}: {text}" for i, text in enumerate(operands)),
            f"  fix: {self.fix}",
        ]
        return "\n".join(rows)


def marked(function: Callable[..., Any], mark: str) -> int | None:
    """The line of a function that ends in a mark."""
    numbers = {number for *_, number in function.__code__.co_lines() if number}
    found = [n for n in numbers if linecache.getline(__file__, n).rstrip().endswith(mark)]
    return found[0] if found else None


def cases_of(kind: type[Exception], base: type[Exception]) -> Callable[..., Case]:
    """Makes cases of one class: `(call, fact, fix, operands=(), where=None)`."""
    return lambda call, *message, **where: Case(call, kind, base, *message, **where)


shape_error = cases_of(ShapeError, ValueError)
dtype_error = cases_of(DTypeError, TypeError)
trace_error = cases_of(TraceError, TypeError)
signature_error = cases_of(TraceError, ValueError)
source_error = cases_of(GradientError, TypeError)
gradient_error = cases_of(GradientError, ValueError)
tape_error = cases_of(GradientError, RuntimeError)
rule_error = cases_of(GradientError, LookupError)
value_error = cases_of(InvalidArgumentError, ValueError)


def table(**cases: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


def test_a_message_as_it_is_printed():
    @tg.function
    def layer(x, w):
        return x @ w  # here

    line = marked(layer.python_function, "# here")
    made = marked(test_a_message_as_it_is_printed, "# made")
    with pytest.raises(ShapeError) as caught:
        layer(tg.ones([2, 3]), tg.ones([2, 3]))
    assert str(caught.value) == (
        "matmul: inner dimensions differ: f32[2,3] times f32[2,3]\n"
        f"  at {__file__}:{line}:  return x @ w  # here\n"
        "  operand 0: f32[2,3]  (argument %x)\n"
        "  operand 1: f32[2,3]  (argument %w)\n"
        "  fix: transpose an operand or check the layer width"
    )
    with pytest.raises(ShapeError) as caught:
        tg.zeros([2, 3]) @ tg.ones([2, 3])  # made
    assert f"\n  operand 1: f32[2,3]  from {__file__}:{made}\n" in str(caught.value)
    assert layer(tg.ones([2, 3]), tg.ones([3, 1])).numpy().tolist() == [[3.0], [3.0]]


# ---------------------------------------------------------------- arguments and the input_signature

ROWS = "TensorSpec(shape=(None, 2), dtype=tg.float32, name='rows')"
NUMBER = "TensorSpec(shape=(), dtype=tg.int32, name=None)"
UNFIT = "double: the arguments do not fit the input_signature: "
SHAPE_FIX = "pass a tensor of the declared shape, or declare None for a size that varies"
VALUE_FIX = "pass values of the declared dtype and shape"
TENSOR_FIX = "pass a tensor, an array, a number or a list"
CALL_FIX = "give every parameter without a default one argument, and no others"


def make_double():
    @tg.function(input_signature=[tg.TensorSpec([None, 2], name="rows")])
    def double(rows):
        return rows * 2.0

    double(tg.zeros([1, 2]))
    return double


def check_double(double):
    """It still works, and the bad calls left no trace."""
    assert double(tg.ones([3, 2])).numpy().tolist() == [[2.0, 2.0]] * 3
    assert double([[1.0, 2.0]]).numpy().tolist() == [[2.0, 4.0]]
    assert double.experimental_get_tracing_count() == 1


def unfit(call, given, fix):
    return trace_error(call, f"{UNFIT}argument 'rows' is {given}, and {ROWS} is declared", fix)


def test_integer_outside_of_the_declared_range():
    @tg.function(input_signature=[tg.TensorSpec([], tg.int32)])
    def double(n):
        return n * 2

    trace_error(
        lambda: double(np.array(2**32 + 5)),
        f"{UNFIT}argument 'n' is declared {NUMBER}: "
        "the int 4294967301 is outside the range of int32",
        VALUE_FIX,
    ).check()
    v = tg.Variable([1], name="v")
    dtype_error(
        lambda: v.assign(np.array([2**40])),
        "the variable 'v:0' is i32[1]: the int 1099511627776 is outside the range of int32",
        "assign numbers of int32",
    ).check()
    assert v.numpy().tolist() == [1]


@table(
    rank=unfit(lambda f: f(tg.constant([1.0, 2.0])), "f32[2]", SHAPE_FIX),
    shape=unfit(lambda f: f(tg.ones([1, 3])), "f32[1,3]", SHAPE_FIX),
    list_of_another_shape=unfit(lambda f: f([1.0, 2.0]), "f32[2]", SHAPE_FIX),
    dtype=unfit(
        lambda f: f(tg.constant([[1, 2]])), "i32[1,2]", "convert it: tg.cast(x, tg.float32)"
    ),
    wider=unfit(
        lambda f: f(tg.ones([1, 2], tg.float64)), "f64[1,2]", "convert it: tg.cast(x, tg.float32)"
    ),
    variable=unfit(
        lambda f: f(tg.Variable([[1, 2]])), "i32[1,2]", "convert it: tg.cast(x, tg.float32)"
    ),
    complex_array=trace_error(
        lambda f: f(np.ones([1, 2], np.complex64)),
        f"{UNFIT}argument 'rows' is declared {ROWS}: an array of complex64 does not fit in float32",
        VALUE_FIX,
    ),
    ragged_list=trace_error(
        lambda f: f([[1.0, 2.0], [3.0]]),
        f"{UNFIT}argument 'rows' is declared {ROWS}: the rows of a list have different lengths: [[1.0, 2.0], [3.0]]",
        VALUE_FIX,
    ),
    string=unfit(lambda f: f("abc"), "'abc'", TENSOR_FIX),
    none=unfit(lambda f: f(None), "None", TENSOR_FIX),
    set=unfit(lambda f: f({1.0}), "{1.0}", TENSOR_FIX),
    generator=unfit(
        lambda f: f(row for row in [1.0]),
        "<generator object <lambda>.<locals>.<genexpr>>",
        TENSOR_FIX,
    ),
    object=unfit(lambda f: f(object()), "<object object>", TENSOR_FIX),
    dict=unfit(lambda f: f({"a": tg.ones([1, 2])}), "the structure {'a': '*'}", TENSOR_FIX),
    spec=unfit(
        lambda f: f.get_concrete_function(tg.TensorSpec([None, 3])),
        "TensorSpec(shape=(None, 3), dtype=tg.float32, name=None)",
        SHAPE_FIX,
    ),
    missing=trace_error(
        lambda f: f(),
        "double: the arguments (0 by position) do not fit the signature double(rows): missing a required argument: 'rows'",
        CALL_FIX,
    ),
    too_many=trace_error(
        lambda f: f(tg.ones([1, 2]), 3),
        "double: the arguments (2 by position) do not fit the signature double(rows): too many positional arguments",
        CALL_FIX,
    ),
    unknown_name=trace_error(
        lambda f: f(tg.ones([1, 2]), columns=3),
        "double: the arguments (1 by position, columns by name) do not fit the signature double(rows): got an unexpected keyword argument 'columns'",
        CALL_FIX,
    ),
)
def test_arguments_that_do_not_fit_the_input_signature(case):
    double = make_double()
    case.check(double)
    check_double(double)


PAIR = "pair: the arguments do not fit the input_signature: "
STRUCTURE_FIX = "pass the containers that are declared, with the same keys and lengths"


@table(
    another_container=trace_error(
        lambda f: f([1.0, 2.0], [1.0, 2.0]),
        f"{PAIR}argument 'd' is the structure ['*', '*'], and the structure {{'a': '*', 'b': '*'}} is declared",
        STRUCTURE_FIX,
    ),
    missing_key=trace_error(
        lambda f: f({"a": 1.0}, [1.0, 2.0]),
        f"{PAIR}argument 'd' is the structure {{'a': '*'}}, and the structure {{'a': '*', 'b': '*'}} is declared",
        STRUCTURE_FIX,
    ),
    tensor_for_a_dict=trace_error(
        lambda f: f(tg.ones([2]), [1.0, 2.0]),
        f"{PAIR}argument 'd' is f32[2], and the structure {{'a': '*', 'b': '*'}} is declared",
        STRUCTURE_FIX,
    ),
    short_list=trace_error(
        lambda f: f({"a": 1.0, "b": 2}, [tg.constant(1.0)]),
        f"{PAIR}argument 'rest' is the structure ['*'], and the structure ['*', '*'] is declared",
        STRUCTURE_FIX,
    ),
    float_for_an_int=trace_error(
        lambda f: f({"a": 1.0, "b": 1.5}, [1.0, 2.0]),
        f"{PAIR}argument 'd_b' is declared {NUMBER}: the float 1.5 does not fit in int32",
        VALUE_FIX,
    ),
    none_for_a_list=trace_error(
        lambda f: f({"a": 1.0, "b": 1}, None),
        f"{PAIR}argument 'rest' is None, and the structure ['*', '*'] is declared",
        STRUCTURE_FIX,
    ),
)
def test_structures_that_do_not_fit_the_input_signature(case):
    scalar = tg.TensorSpec([])

    @tg.function(input_signature=[{"a": scalar, "b": tg.TensorSpec([], tg.int32)}, [scalar] * 2])
    def pair(d, rest):
        return d["a"] + rest[1]

    case.check(pair)
    assert pair({"a": 1.0, "b": 2}, [3.0, 4.0]).numpy() == 5.0


@dataclasses.dataclass
class Point:
    x: Any


def test_a_dict_for_a_dataclass():
    @tg.function(input_signature=[Point(tg.TensorSpec([]))])
    def f(p):
        return p.x

    trace_error(
        lambda: f({"x": 1.0}),
        "f: the arguments do not fit the input_signature: argument 'p' is the structure {'x': '*'}, and the structure Point(x='*') is declared",
        STRUCTURE_FIX,
    ).check()
    assert f(Point(2.0)).numpy() == 2.0


def test_sizes_of_one_name_that_differ():
    @tg.function(input_signature=[tg.TensorSpec(["n"]), tg.TensorSpec(["n"])])
    def f(x, y):
        return x + y

    trace_error(
        lambda: f(tg.ones([2]), tg.ones([3])),
        "f: the arguments do not fit the input_signature: f32[n] was expected and f32[3] was given, where the other arguments make it f32[2]",
        "pass equal sizes where the names are equal",
    ).check()
    assert f(tg.ones([3]), tg.ones([3])).numpy().tolist() == [2.0] * 3


def test_open_sizes_that_were_taken_to_be_equal():
    @tg.function(input_signature=[tg.TensorSpec([None]), tg.TensorSpec([None])])
    def f(x, y):
        return x + y  # here

    shape_error(
        lambda: f(tg.ones([2]), tg.ones([3])),
        "add: the shapes do not broadcast: f32[2] and f32[3]",
        "reshape one of them: axes are matched from the last, and 1 is repeated",
        ("f32[2]  (argument %x)", "f32[3]  (argument %y)"),
        where=f.python_function,
    ).check()
    assert f(tg.ones([3]), tg.ones([3])).numpy().tolist() == [2.0] * 3


# ---------------------------------------------------------------- arguments without an input_signature


def nested(depth):
    """A list in a list in a list, and so on."""
    return functools.reduce(lambda inner, _: [inner], range(depth), 1.0)


def endless():
    """A list that contains itself."""
    found: list[Any] = [1.0]
    found.append(found)
    return found


class NoHash:
    """An object that neither hashes nor takes weak references."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other):
        return True


class CannotHash:
    __hash__ = None


class HashRaises:
    def __hash__(self):
        raise TypeError


class HashFails:
    def __init__(self):
        self.items = []

    def __eq__(self, other):
        return self.items == other.items

    def __hash__(self):
        return hash(self.items)


NO_KEY = "which cannot be the key of a trace"
HASH_FIX = "give its class a __hash__ that agrees with its __eq__, or pass tensors and numbers"
ARRAY_FIX = "convert it with .astype(...) to numbers or truth values"


@table(
    missing=trace_error(
        lambda f: f(),
        "scale: the arguments (0 by position) do not fit the signature scale(x, by=2.0): missing a required argument: 'x'",
        CALL_FIX,
    ),
    too_many=trace_error(
        lambda f: f(1.0, 2.0, 3.0),
        "scale: the arguments (3 by position) do not fit the signature scale(x, by=2.0): too many positional arguments",
        CALL_FIX,
    ),
    twice=trace_error(
        lambda f: f(1.0, x=2.0),
        "scale: the arguments (1 by position, x by name) do not fit the signature scale(x, by=2.0): multiple values for argument 'x'",
        CALL_FIX,
    ),
    generator=trace_error(
        lambda f: f(x for x in [1.0]),
        f"scale: argument 'x' is a generator, {NO_KEY}: <generator object <lambda>.<locals>.<genexpr>>",
        "pass what it runs over, such as list(items)",
    ),
    iterator=trace_error(
        lambda f: f(iter([1.0])),
        f"scale: argument 'x' is a list_iterator, {NO_KEY}: <list_iterator object>",
        "pass what it runs over, such as list(items)",
    ),
    set=trace_error(
        lambda f: f({1.0, 2.0}),
        f"scale: argument 'x' is a set, {NO_KEY}: {{1.0, 2.0}}",
        "pass a list, such as sorted(items)",
    ),
    frozenset=trace_error(
        lambda f: f(1.0, by=frozenset([1.0])),
        f"scale: argument 'by' is a frozenset, {NO_KEY}: frozenset({{1.0}})",
        "pass a list, such as sorted(items)",
    ),
    set_inside=trace_error(
        lambda f: f({"a": [1.0, {2.0}]}),
        f"scale: argument 'x_a_1' is a set, {NO_KEY}: {{2.0}}",
        "pass a list, such as sorted(items)",
    ),
    bytearray=trace_error(
        lambda f: f(bytearray(b"ab")),
        f"scale: argument 'x' is a bytearray, {NO_KEY}: bytearray(b'ab')",
        "pass bytes, or an array",
    ),
    weak_reference=trace_error(
        lambda f: f(weakref.ref(Case)),
        f"scale: argument 'x' is a ReferenceType, {NO_KEY}: <weakref; to 'type' (Case)>",
        "pass the object itself",
    ),
    unhashable=trace_error(
        lambda f: f(NoHash()),
        f"scale: argument 'x' is a NoHash, {NO_KEY}: <{__name__}.NoHash object>",
        HASH_FIX,
    ),
    unhashable_by_identity=trace_error(
        lambda f: f(CannotHash()),
        f"scale: argument 'x' is a CannotHash, {NO_KEY}: <{__name__}.CannotHash object>",
        HASH_FIX,
    ),
    hash_that_raises=trace_error(
        lambda f: f([HashRaises()]),
        f"scale: argument 'x_0' is a HashRaises, {NO_KEY}: <{__name__}.HashRaises object>",
        HASH_FIX,
    ),
    hash_that_fails=trace_error(
        lambda f: f(HashFails()),
        f"scale: argument 'x' is a HashFails, {NO_KEY}: <{__name__}.HashFails object>",
        HASH_FIX,
    ),
    array_of_strings=dtype_error(
        lambda f: f(np.array(["a"])),
        "scale: argument 'x' is an array of <U1, which is not a type of tensors",
        ARRAY_FIX,
    ),
    array_of_objects=dtype_error(
        lambda f: f([np.array([None])]),
        "scale: argument 'x_0' is an array of object, which is not a type of tensors",
        ARRAY_FIX,
    ),
    structure_that_is_too_deep=trace_error(
        lambda f: f.get_concrete_function(nested(199)),
        "scale: argument 'x': a structure is nested more than 200 deep",
        "make it flatter, such as one list",
    ),
    structure_that_contains_itself=trace_error(
        lambda f: f.get_concrete_function(endless()),
        "scale: argument 'x': a structure contains itself: [1.0, [...]]",
        "pass one that does not",
    ),
    spec=trace_error(
        lambda f: f(tg.TensorSpec([])),
        "TensorSpec(shape=(), dtype=tg.float32, name=None) was passed where a value is needed",
        "pass it to get_concrete_function, and a tensor to the function",
    ),
)
def test_arguments_that_no_function_takes(case):
    @tg.function
    def scale(x, by=2.0):
        return x * by

    scale(tg.constant(1.0))
    case.check(scale)
    assert scale(tg.constant(3.0)).numpy() == 6.0
    assert scale(tg.constant(3.0), by=3.0).numpy() == 9.0


TRANSFORMATIONS = {
    "grad": lambda fn: tg.grad(fn),
    "value_and_grad": lambda fn: tg.value_and_grad(fn),
    "jacobian": lambda fn: tg.jacobian(fn),
    "hessian": lambda fn: tg.hessian(fn),
    "vjp": lambda fn: tg.vjp(fn, 1.0),
    "jvp": lambda fn: tg.jvp(fn, (1.0,), (1.0,)),
    "linearize": lambda fn: tg.linearize(fn, 1.0),
    "hvp": lambda fn: tg.hvp(fn, 1.0, 1.0),
    "vmap": lambda fn: tg.vmap(fn),
    "vectorized_map": lambda fn: tg.vectorized_map(fn, tg.ones([2])),
    "pfor": lambda fn: tg.pfor(fn, 2),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_is_no_function_is_refused_at_once(name):
    transform = TRANSFORMATIONS[name]
    trace_error(
        transform, f"{name}: 5 is not callable", "pass a function of tensors", where=transform
    ).check(5)


@table(
    not_callable=trace_error(
        lambda: tg.function(3),
        "3 is not a callable object",
        "decorate a function, or pass one to tg.function",
    ),
    decorated_none=trace_error(
        lambda: tg.function(jit_compile=True)(None),
        "None is not a callable object",
        "decorate a function, or pass one to tg.function",
    ),
    property=trace_error(
        lambda: tg.function(property(len)),
        "<property object> is not a callable object",
        "decorate a function, or pass one to tg.function",
    ),
    dict_of_specs=trace_error(
        lambda: tg.function(lambda x: x, input_signature={"x": tg.TensorSpec([])}),
        "input_signature must be a tuple or a list, and it is a dict",
        "write input_signature=[tg.TensorSpec([None, 2])]",
    ),
    bare_spec=trace_error(
        lambda: tg.function(lambda x: x, input_signature=tg.TensorSpec([])),
        "input_signature must be a tuple or a list, and it is a TensorSpec",
        "write input_signature=[tg.TensorSpec([None, 2])]",
    ),
    value_for_a_spec=trace_error(
        lambda: tg.function(lambda x: x, input_signature=[3.0]),
        "input_signature must be a possibly nested sequence of TensorSpec objects, and it holds 3.0",
        "write tg.TensorSpec(shape, dtype) for each argument",
    ),
    set_of_specs=trace_error(
        lambda: tg.function(lambda x: x, input_signature=[{2.0}]),
        "input_signature must be a possibly nested sequence of TensorSpec objects, and it holds {2.0}",
        "write tg.TensorSpec(shape, dtype) for each argument",
    ),
    too_many_specs=trace_error(
        lambda: tg.function(lambda x: x, input_signature=[tg.TensorSpec([]), tg.TensorSpec([])]),
        "input_signature has 2 specs and <lambda> takes 1 arguments: 1 too many",
        "give one spec for each argument",
    ),
    keyword_without_a_default=trace_error(
        lambda: tg.function(lambda x, *, y: x, input_signature=[tg.TensorSpec([])]),
        "with an input_signature the keyword-only parameter 'y' must have a default value",
        "write y=..., or make it positional",
    ),
)
def test_bad_use_of_the_decorator(case):
    case.check()


def test_fewer_specs_than_arguments():
    f = tg.function(lambda x, y: x, input_signature=[tg.TensorSpec([])])
    trace_error(
        lambda: f(1.0),
        "<lambda>: the arguments (1 by position) do not fit the signature <lambda>(x, y): missing a required argument: 'y'",
        CALL_FIX,
    ).check()
    trace_error(
        lambda: f(1.0, 2.0),
        "<lambda>: the arguments do not fit the input_signature: "
        "'y' has neither a spec nor a default value",
        "give a spec for y, or write y=...",
    ).check()


# ---------------------------------------------------------------- shapes and data types as arguments

SIZE_FIX = "give an int of zero or more for each size"
ENTRY_FIX = "give an int, None for an open size, or its name"


def nan_size(call, op, shape):
    fact = f"{op}: a shape holds integers, and nan in {shape} is a float"
    return shape_error(call, fact, SIZE_FIX)


@table(
    zeros=nan_size(lambda: tg.zeros([float("nan")]), "zeros", "(nan,)"),
    ones=nan_size(lambda: tg.ones([2, float("nan")]), "ones", "(2, nan)"),
    fill=nan_size(lambda: tg.fill([float("nan")], 1.0), "fill", "(nan,)"),
    array=nan_size(lambda: tg.zeros(np.array([np.nan, 2.0])), "zeros", "(nan, 2.0)"),
    reshape=nan_size(lambda: tg.reshape(tg.ones([4]), [float("nan"), 2]), "reshape", "(nan, 2)"),
    broadcast_to=nan_size(
        lambda: tg.broadcast_to(tg.ones([2]), [float("nan"), 2]), "broadcast_to", "(nan, 2)"
    ),
    random=nan_size(lambda: tg.random.normal([float("nan")]), "normal", "(nan,)"),
    variable=shape_error(
        lambda: tg.Variable([1.0], shape=[float("nan")]),
        "a shape holds integers, and nan in (nan,) is a float",
        SIZE_FIX,
    ),
    spec=shape_error(
        lambda: tg.TensorSpec([None, float("nan")]),
        "TensorShape: an int of zero or more is needed, and nan was given",
        ENTRY_FIX,
    ),
    tensor_shape=shape_error(
        lambda: tg.TensorShape([float("nan")]),
        "TensorShape: an int of zero or more is needed, and nan was given",
        ENTRY_FIX,
    ),
)
def test_nan_in_a_shape(case):
    case.check()
    assert tg.zeros([2]).numpy().tolist() == [0.0, 0.0]


def test_nan_in_a_shape_while_tracing():
    @tg.function
    def f(x, size):
        return x + tg.zeros([size])  # here

    case = shape_error(
        lambda: f(tg.constant(1.0), float("nan")),
        "zeros: a shape holds integers, and nan in (nan,) is a float",
        SIZE_FIX,
        where=f.python_function,
    )
    case.check()
    assert f(tg.constant(1.0), 2).numpy().tolist() == [1.0, 1.0]


@table(
    negative=shape_error(
        lambda: tg.zeros([-1]),
        "zeros: a size is zero or more, and the shape (-1,) has -1",
        "give an int of zero or more for each size; -1 is for tg.reshape alone",
    ),
    float=shape_error(
        lambda: tg.zeros([2.0]),
        "zeros: a shape holds integers, and 2.0 in (2.0,) is a float",
        SIZE_FIX,
    ),
    string=dtype_error(
        lambda: tg.zeros("ab"),
        "zeros: a shape is an integer or a list of integers, and 'ab' is a str",
        "use ints, such as [2, 3]",
    ),
    none=dtype_error(
        lambda: tg.zeros(None),
        "zeros: a shape is an integer or a list of integers, and None is a NoneType",
        "use ints, such as [2, 3]",
    ),
    negative_in_a_spec=shape_error(
        lambda: tg.TensorSpec([-1]),
        "TensorShape: an int of zero or more is needed, and -1 was given",
        ENTRY_FIX,
    ),
    string_for_a_spec=shape_error(
        lambda: tg.TensorSpec("n"),
        "TensorShape: a list of sizes is needed, and 'n' was given",
        "write ['n'] for one size of that name",
    ),
    name_of_a_size=shape_error(
        lambda: tg.TensorSpec(["2nd"]),
        "a size cannot be called '2nd'",
        "use letters, digits, underscores and dots, not beginning with a digit",
    ),
)
def test_other_bad_shapes(case):
    case.check()


DTYPES = "use one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, complex64, complex128, float8_e4m3fn, float8_e5m2"


@table(
    name=dtype_error(
        lambda: tg.constant(1.0, "float23"),
        "'float23' is not a data type",
        DTYPES.replace("one", "float32, or another", 1),
    ),
    none=dtype_error(lambda: tg.cast(1.0, None), "None is not a data type", DTYPES),
    spec=dtype_error(lambda: tg.TensorSpec([2], {}), "{} is not a data type", DTYPES),
    order=dtype_error(
        lambda: tg.constant(np.ones(2, ">f4")),
        "dtype('>f4') is not a data type",
        "convert the array: x.astype('float32')",
    ),
    long=dtype_error(
        lambda: tg.constant(np.ones(2, np.clongdouble)),
        f"{np.dtype(np.clongdouble)!r} is not a data type",
        "convert the array: x.astype('complex128')",
    ),
)
def test_what_is_not_a_data_type(case):
    case.check()


# ---------------------------------------------------------------- what cannot be a tensor

PASS_TENSOR = "pass a tensor, a NumPy array, a number, or a list of numbers"
ELEMENTS = "tensors hold numbers and truth values: take out or convert what is neither"


@table(
    string=dtype_error(lambda: tg.constant("a"), "a str cannot be a tensor: 'a'", PASS_TENSOR),
    none=dtype_error(lambda: tg.constant(None), "a NoneType cannot be a tensor: None", PASS_TENSOR),
    dict=dtype_error(
        lambda: tg.exp({"a": 1.0}), "a dict cannot be a tensor: {'a': 1.0}", PASS_TENSOR
    ),
    set=dtype_error(lambda: tg.reduce_sum({1.0}), "a set cannot be a tensor: {1.0}", PASS_TENSOR),
    generator=dtype_error(
        lambda: tg.constant(x for x in [1.0]),
        "a generator cannot be a tensor: <generator object <lambda>.<locals>.<genexpr>>",
        PASS_TENSOR,
    ),
    strings=dtype_error(
        lambda: tg.constant(["a", "b"]),
        "a list with a str in it cannot be a tensor: ['a', 'b']",
        ELEMENTS,
    ),
    none_inside=dtype_error(
        lambda: tg.constant([1.0, None]),
        "a list with a NoneType in it cannot be a tensor: [1.0, None]",
        ELEMENTS,
    ),
    dates=dtype_error(
        lambda: tg.constant(np.array(["2020-01-01"], "M8[D]")),
        "an array of datetime64[D] cannot be a tensor: array(['2020-01-01'], dtype='datetime64[D]')",
        ELEMENTS,
    ),
    ragged=shape_error(
        lambda: tg.constant([[1.0], [1.0, 2.0]]),
        "the rows of a list have different lengths: [[1.0], [1.0, 2.0]]",
        "make all rows equally long, or pad them",
    ),
    ragged_tensors=shape_error(
        lambda: tg.constant([tg.ones([2]), tg.ones([3])]),
        "the elements of a list have different shapes: f32[2], f32[3]",
        "give all elements one shape",
    ),
    fraction=dtype_error(
        lambda: tg.constant(1.5, tg.int32),
        "the float 1.5 does not fit in int32",
        "use tg.float32 throughout: tg.cast(x, tg.float32)",
    ),
    large=dtype_error(
        lambda: tg.constant(300, tg.int8),
        "the int 300 is outside the range of int8",
        "use a wider type, such as tg.int64",
    ),
    large_in_a_list=dtype_error(
        lambda: tg.constant([[1, 300]], tg.int8),
        "the int 300 is outside the range of int8",
        "use a wider type, such as tg.int64",
    ),
    large_in_a_range=dtype_error(
        lambda: tg.constant(range(300), tg.uint8),
        "the int 299 is outside the range of uint8",
        "use a wider type, such as tg.int64",
    ),
    large_in_an_array=dtype_error(
        lambda: tg.constant(np.array([300, 2]), tg.uint8),
        "the int 300 is outside the range of uint8",
        "use a wider type, such as tg.int64",
    ),
    negative_in_an_array=dtype_error(
        lambda: tg.Variable(np.array([2, -1]), dtype=tg.uint8),
        "the int -1 is outside the range of uint8",
        "use a wider type, such as tg.int64",
    ),
    large_beside_a_tensor=dtype_error(
        lambda: tg.constant([1]) + np.array([2**32 + 5]),
        "add: the int 4294967301 is outside the range of int32",
        "use a wider type, such as tg.int64",
        ("i32[1]  from {place}", "array([4294967301])"),
    ),
    large_scalar_beside_a_tensor=dtype_error(
        lambda: tg.constant([1]) + np.int64(2**40),
        "add: the int 1099511627776 is outside the range of int32",
        "use a wider type, such as tg.int64",
        ("i32[1]  from {place}", "np.int64(1099511627776)"),
    ),
    large_unsigned=dtype_error(
        lambda: tg.constant(np.array([2**64 - 1], np.uint64), tg.int64),
        "the int 18446744073709551615 is outside the range of int64",
        "use a wider type, such as tg.uint64",
    ),
    huge=dtype_error(
        lambda: tg.constant([2**70]),
        "the int 1180591620717411303424 is outside the range of int64",
        "use a wider type, such as tg.float64",
    ),
    two_operands=dtype_error(
        lambda: tg.constant(1.0) + "a",
        "add: a str cannot be a tensor: 'a'",
        PASS_TENSOR,
        ("f32[]  from {place}", "'a'"),
    ),
    list_for_a_matrix=shape_error(
        lambda: [[1.0, 2.0], [3.0]] @ tg.ones([2, 2]),
        "matmul: the rows of a list have different lengths: [[1.0, 2.0], [3.0]]",
        "make all rows equally long, or pad them",
        ("[[1.0, 2.0], [3.0]]", "f32[2,2]  from {place}"),
    ),
    list_for_slices=dtype_error(
        lambda: tg.Variable([1.0]).scatter_add([1.0]),
        "scatter_add takes tg.IndexedSlices, and it was given [1.0], which is a list",
        "write tg.IndexedSlices(values, indices)",
    ),
)
def test_what_cannot_be_a_tensor(case):
    case.check()
    assert (tg.constant([1.0, 2.0]) + 1.0).numpy().tolist() == [2.0, 3.0]


# ---------------------------------------------------------------- kinds of data types

CAST_FLOAT = "convert one of them: tg.cast(x, tg.float32)"


@table(
    add=dtype_error(
        lambda: tg.constant(1) + tg.constant(1.0),
        "add: int32 and float32 do not mix",
        CAST_FLOAT,
        ("i32[]  from {place}", "f32[]  from {place}"),
    ),
    bool=dtype_error(
        lambda: tg.ones([2]) * tg.constant(True),
        "multiply: float32 and bool do not mix",
        CAST_FLOAT,
        ("f32[2]  from {place}", "bool[]  from {place}"),
    ),
    python_float=dtype_error(
        lambda: tg.constant(1) - 1.5,
        "subtract: the float 1.5 does not fit in int32",
        "use tg.float32 throughout: tg.cast(x, tg.float32)",
        ("i32[]  from {place}", "1.5"),
    ),
    array=dtype_error(
        lambda: np.ones(2) * tg.constant([1, 2]),
        "multiply: an array of float64 does not fit in int32",
        "use tg.float64 throughout: tg.cast(x, tg.float64)",
        ("array([1., 1.])", "i32[2]  from {place}"),
    ),
    compare=dtype_error(
        lambda: tg.constant(1) < tg.constant(1.0),
        "less: int32 and float32 do not mix",
        CAST_FLOAT,
        ("i32[]  from {place}", "f32[]  from {place}"),
    ),
    variable=dtype_error(
        lambda: tg.Variable(1) * tg.constant(2.0),
        "multiply: int32 and float32 do not mix",
        CAST_FLOAT,
        ("i32[]  (Variable 'Variable')", "f32[]  from {place}"),
    ),
    matmul=dtype_error(
        lambda: tg.ones([2, 2]) @ tg.ones([2, 2], tg.int32),
        "matmul: float32 and int32 do not mix",
        CAST_FLOAT,
        ("f32[2,2]  from {place}", "i32[2,2]  from {place}"),
    ),
    where=dtype_error(
        lambda: tg.where(True, tg.constant(1), tg.constant(1.0)),
        "where: int32 and float32 do not mix",
        CAST_FLOAT,
        ("i32[]  from {place}", "f32[]  from {place}"),
    ),
    concat=dtype_error(
        lambda: tg.concat([tg.ones([2]), tg.ones([2], tg.int32)], 0),
        "concat: float32 and int32 do not mix",
        CAST_FLOAT,
        ("f32[2]  from {place}", "i32[2]  from {place}"),
    ),
    sine_of_an_integer=dtype_error(
        lambda: tg.sin(tg.constant(1)),
        "sin: the operand is i32[], and only floating or complex types are allowed",
        "convert it: tg.cast(x, tg.float32)",
        ("i32[]  from {place}",),
    ),
)
def test_mixing_kinds_of_data_types(case):
    case.check()
    assert (tg.cast(1, tg.float32) + tg.constant(1.0)).numpy() == 2.0


def test_mixing_kinds_while_tracing():
    @tg.function
    def f(x, i):
        return x * i  # here

    dtype_error(
        lambda: f(tg.constant(1.5), tg.constant(2)),
        "multiply: float32 and int32 do not mix",
        CAST_FLOAT,
        ("f32[]  (argument %x)", "i32[]  (argument %i)"),
        where=f.python_function,
    ).check()
    assert f(tg.constant(1.5), tg.constant(2.0)).numpy() == 3.0


# ---------------------------------------------------------------- shapes of operands


@table(
    matmul=shape_error(
        lambda: tg.ones([2, 3]) @ tg.ones([2, 3]),
        "matmul: inner dimensions differ: f32[2,3] times f32[2,3]",
        "transpose an operand or check the layer width",
        ("f32[2,3]  from {place}", "f32[2,3]  from {place}"),
    ),
    matmul_of_stacks=shape_error(
        lambda: tg.ones([2, 3, 4]) @ tg.ones([5, 4, 3]),
        "matmul: the leading axes of f32[2,3,4] and f32[5,4,3] do not broadcast",
        "give both the same leading axes, or 1 for what repeats",
        ("f32[2,3,4]  from {place}", "f32[5,4,3]  from {place}"),
    ),
    reshape=shape_error(
        lambda: tg.reshape(tg.ones([4]), [3]),
        "reshape: f32[4] has 4 elements and the shape [3] needs 3",
        "give sizes whose product is the number of elements, or -1 for one of them",
        ("f32[4]  from {place}",),
    ),
    reshape_to_a_rest=shape_error(
        lambda: tg.reshape(tg.ones([4]), [3, -1]),
        "reshape: the 4 elements of f32[4] cannot fill the shape [3, -1]",
        "give sizes whose product divides the number of elements",
        ("f32[4]  from {place}",),
    ),
    broadcasting=shape_error(
        lambda: tg.ones([2, 3]) + tg.ones([2]),
        "add: the shapes do not broadcast: f32[2,3] and f32[2]",
        "reshape one of them: axes are matched from the last, and 1 is repeated",
        ("f32[2,3]  from {place}", "f32[2]  from {place}"),
    ),
    broadcast_to=shape_error(
        lambda: tg.broadcast_to(tg.ones([2]), [3]),
        "broadcast_to: f32[2] cannot be broadcast to [3]",
        "only axes of size 1 are repeated, and new axes come first",
        ("f32[2]  from {place}",),
    ),
    stack=shape_error(
        lambda: tg.stack([tg.ones([2]), tg.ones([3])]),
        "stack: the shapes differ: f32[2] and f32[3]",
        "give all tensors one shape",
        ("f32[2]  from {place}", "f32[3]  from {place}"),
    ),
    axis=shape_error(
        lambda: tg.reduce_sum(tg.ones([3]), axis=4),
        "reduce_sum: axis 4 is out of range for 1 axis",
        "use an axis from -1 to 0",
        ("f32[3]  from {place}",),
    ),
    channels=shape_error(
        lambda: tg.nn.conv2d(tg.ones([1, 4, 4, 3]), tg.ones([2, 2, 4, 5]), 1, "SAME"),
        "conv: f32[1,4,4,3] has 3 channels, and the kernel f32[2,2,4,5] takes 4",
        "give images as [batch, *spatial, channels], and kernels as [*window, channels / groups, "
        "outputs]",
        ("f32[1,4,4,3]  from {place}", "f32[2,2,4,5]  from {place}"),
    ),
    unbatched=shape_error(
        lambda: tg.nn.conv2d(tg.ones([4, 4, 3]), tg.ones([2, 2, 3, 5]), 1, "SAME"),
        "conv2d: the input f32[4,4,3] has fewer than 4 axes",
        "give [examples, ..., channels] and [..., channels, outputs]",
        ("f32[4,4,3]  from {place}", "f32[2,2,3,5]  from {place}"),
    ),
    channels_first=shape_error(
        lambda: tg.nn.conv2d(tg.ones([1, 3, 28, 28]), tg.ones([3, 3, 3, 8]), 1, "SAME"),
        "conv: f32[1,3,28,28] has 28 channels, and the kernel f32[3,3,3,8] takes 3",
        "give images as [batch, *spatial, channels], and kernels as [*window, channels / groups, "
        "outputs]",
        ("f32[1,3,28,28]  from {place}", "f32[3,3,3,8]  from {place}"),
    ),
    gather=value_error(
        lambda: tg.gather(tg.ones([3]), [0, 5]),
        "gather: index 5 is out of range for the size 3 of f32[3]",
        "use indices from 0 to 2",
        ("f32[3]  from {place}", "i32[2]"),
    ),
    index=value_error(
        lambda: tg.ones([3])[5],
        "getitem: index 5 is out of range for axis 0 of f32[3]",
        "use an index from -3 to 2",
        ("f32[3]  from {place}",),
    ),
    too_many_indices=shape_error(
        lambda: tg.ones([3])[0, 0],
        "getitem: 2 indices were given for the 1 axis of f32[3]",
        "give at most one index for each axis",
        ("f32[3]  from {place}",),
    ),
    fraction_as_index=dtype_error(
        lambda: tg.ones([3])[0.5],
        "getitem: 0.5 is a float, which is not an index",
        "use ints, slices, ..., None, or an integer tensor",
        ("f32[3]  from {place}",),
    ),
)
def test_shapes_that_do_not_fit(case):
    case.check()
    assert (tg.ones([1, 2]) @ tg.ones([2, 1])).numpy() == 2.0


@table(
    matmul=shape_error(
        lambda x: x @ x,
        "matmul: inner dimensions differ: f32[2,3] times f32[2,3]",
        "transpose an operand or check the layer width",
        ("f32[2,3]  (argument %x)", "f32[2,3]  (argument %x)"),
    ),
    made_inside=shape_error(
        lambda x: tg.transpose(x) + x,
        "add: the shapes do not broadcast: f32[3,2] and f32[2,3]",
        "reshape one of them: axes are matched from the last, and 1 is repeated",
        ("f32[3,2]  from {place}", "f32[2,3]  (argument %x)"),
    ),
    reshape=shape_error(
        lambda x: tg.reshape(x, [4]),
        "reshape: f32[2,3] has 6 elements and the shape [4] needs 4",
        "give sizes whose product is the number of elements, or -1 for one of them",
        ("f32[2,3]  (argument %x)",),
    ),
    gather=value_error(
        lambda x: tg.gather(x, [5]),
        "gather: index 5 is out of range for the size 2 of f32[2,3]",
        "use indices from 0 to 1",
        ("f32[2,3]  (argument %x)", "i32[1]  from {place}"),
    ),
)
def test_shapes_that_do_not_fit_while_tracing(case):
    f = tg.function(lambda x, is_bad: case.call(x) if is_bad else x * 2.0)
    dataclasses.replace(case, call=lambda: f(tg.ones([2, 3]), True), where=case.call).check()
    assert f(tg.ones([1]), False).numpy() == 2.0


@table(
    float=Case(
        lambda: float(tg.ones([2])),
        ShapeError,
        TypeError,
        "float() needs one element, and a tensor f32[2] has 2",
        "pick one element, such as x[0], or use tg.reduce_sum, tg.reduce_all or the like",
        ("f32[2]  from {place}",),
    ),
    bool=shape_error(
        lambda: bool(tg.ones([2]) > 0.0),
        "a Python bool needs one element, and a tensor bool[2] has 2",
        "pick one element, such as x[0], or use tg.reduce_sum, tg.reduce_all or the like",
        ("bool[2]  from {place}",),
    ),
    index=dtype_error(
        lambda: [1, 2][tg.constant(1.0)],
        "an index must be an integer, and a tensor of float32 was given",
        "convert it: tg.cast(x, tg.int32)",
        ("f32[]  from {place}",),
    ),
    loop=trace_error(
        lambda: list(tg.constant(1.0)),
        "a scalar f32[] has no length",
        "use the scalar itself, or give it an axis: x[None]",
        ("f32[]  from {place}",),
    ),
    item=trace_error(
        lambda: tg.constant([1.0]).__setitem__(0, 2.0),
        "an item of a tensor f32[1] was assigned or deleted, and tensors never change",
        "use tg.tensor_scatter_nd_update or tg.where, or v[...].assign(value) of a tg.Variable",
        ("f32[1]  from {place}",),
    ),
    slice_of_a_tensor=Case(
        lambda: tg.constant([1.0])[0:1].assign([2.0]),
        AttributeError,
        AttributeError,
        "a tensor f32[1] was assigned, and only Variables and slices of them can be",
        "make it a tg.Variable, and use v.assign(value) or v[1:3].assign(value)",
        ("f32[1]  from {place}",),
    ),
)
def test_python_values_of_tensors(case):
    case.check()


# ---------------------------------------------------------------- Python values while tracing

SCOPE_FIX = "return it from the function, and use the returned value"
BOOL_FIX = "use tg.where(condition, x, y), or decide outside the @tg.function; a Python `if` or `while` on a tensor is decided while tracing"
NUMBER_FIX = (
    "compute with the tensor itself, or pass the number to the @tg.function as a Python one"
)
LENGTH_FIX = "compute with the whole tensor, or give the size in the TensorSpec; tg.shape(x)[0] is the size at run time"
ITERATION_FIX = "use tg.map_fn(lambda row: ..., x), or give the size in the TensorSpec"
PRINT_FIX = "return it from the @tg.function, or print it there with tg.print"
NUMPY_FIX = "use the function of tg in place of NumPy's, or tg.numpy_function"
OWN_FIX = "use tg.numpy.{}, or tg.numpy_function to call NumPy when the program runs"


def asked(what, type="f32[]"):
    return f"{what} needs the value of a tensor {type}, which has none while tracing"


def python_if(x):
    if x > 0.0:  # here
        return x
    return -x


def python_while(x):
    while x > 0.0:  # here
        x = x - 1.0
    return x


def python_for(x):
    total = 0.0
    for row in x:  # here
        total = total + row
    return total


def symbolic(body, what, fix, operand="f32[]  (argument %x)", type="f32[]"):
    """A case of a body that is traced with one argument."""
    return trace_error(body, asked(what, type), fix, (operand,))


@table(
    python_if=symbolic(python_if, "a Python bool", BOOL_FIX, "bool[]  from {place}", "bool[]"),
    python_while=symbolic(
        python_while, "a Python bool", BOOL_FIX, "bool[]  from {place}", "bool[]"
    ),
    python_and=symbolic(
        lambda x: x > 0.0 and x, "a Python bool", BOOL_FIX, "bool[]  from {place}", "bool[]"
    ),
    python_not=symbolic(lambda x: not x, "a Python bool", BOOL_FIX),
    python_max=symbolic(
        lambda x: max(x, 1.0), "a Python bool", BOOL_FIX, "bool[]  from {place}", "bool[]"
    ),
    float=symbolic(lambda x: float(x), "float()", NUMBER_FIX),
    int=symbolic(lambda x: int(x), "int()", NUMBER_FIX),
    complex=symbolic(lambda x: complex(x), "complex()", NUMBER_FIX),
    item=symbolic(lambda x: x.item(), ".item()", PRINT_FIX),
    format=symbolic(lambda x: f"loss {x:.3f}", "the format '.3f'", PRINT_FIX),
    numpy=symbolic(lambda x: x.numpy(), ".numpy()", PRINT_FIX),
    np_sin=symbolic(lambda x: np.sin(x), "np.sin", OWN_FIX.format("sin")),
    np_sum=symbolic(lambda x: np.sum(x), "np.sum", OWN_FIX.format("sum")),
    np_array=symbolic(lambda x: np.array([x, x]), "a NumPy array", NUMPY_FIX),
)
def test_python_values_while_tracing(case):
    f = tg.function(lambda x, is_bad: case.call(x) if is_bad else x * 2.0, autograph=False)
    dataclasses.replace(case, call=lambda: f(tg.constant(3.0), True), where=case.call).check()
    assert f(tg.constant(3.0), False).numpy() == 6.0


READ_OF_V = "f32[]  (Variable 'v')"


@table(
    numpy=symbolic(lambda v: v.numpy(), ".numpy()", PRINT_FIX, READ_OF_V),
    float=symbolic(lambda v: float(v), "float()", NUMBER_FIX, READ_OF_V),
    format=symbolic(lambda v: f"{v:.3f}", "the format '.3f'", PRINT_FIX, READ_OF_V),
    python_if=symbolic(lambda v: 1.0 if v else 2.0, "a Python bool", BOOL_FIX, READ_OF_V),
)
def test_python_values_of_variables_while_tracing(case):
    v = tg.Variable(3.0)
    f = tg.function(lambda is_bad: case.call(v) if is_bad else v * 2.0, autograph=False)
    dataclasses.replace(case, call=lambda: f(True), where=case.call).check()
    assert f(False).numpy() == 6.0
    assert v.numpy() == 3.0


@table(
    python_range=symbolic(
        lambda n: list(range(n)),
        "a Python index",
        "use tg.gather for an element, or pass the number to the @tg.function as a Python int; a "
        "`for` statement over range(n) becomes a loop of the graph and may append to a list, but a "
        "comprehension is Python's: use tg.map_fn(lambda i: ..., tg.range(n))",
        "i32[]  (argument %n)",
        "i32[]",
    ),
    list_index=symbolic(
        lambda n: [1.0, 2.0][n],
        "a Python index",
        "use tg.gather for an element, or pass the number to the @tg.function as a Python int",
        "i32[]  (argument %n)",
        "i32[]",
    ),
)
def test_python_integers_while_tracing(case):
    f = tg.function(lambda n, is_bad: case.call(n) if is_bad else n * 2)
    dataclasses.replace(case, call=lambda: f(tg.constant(3), True), where=case.call).check()
    assert f(tg.constant(3), False).numpy() == 6


@table(
    python_for=trace_error(
        python_for,
        "the length of f32[d0] is not known while tracing",
        ITERATION_FIX,
        ("f32[d0]  (argument %x)",),
    ),
    length=trace_error(
        lambda x: len(x),
        "the length of f32[d0] is not known while tracing",
        LENGTH_FIX,
        ("f32[d0]  (argument %x)",),
    ),
    compared_size=trace_error(
        lambda x: x if x.shape[0] > 3 else -x,
        "the size d0 is not known while tracing, so it cannot be compared with 3",
        "give the size in the TensorSpec, or write the computation without the comparison",
    ),
    size_as_int=trace_error(
        lambda x: [x[i] for i in range(x.shape[0])],
        "the size d0 is not known while tracing, so it has no int value",
        "use tg.shape(x)[axis] for its value at run time, or give it in the TensorSpec",
    ),
)
def test_unknown_sizes_while_tracing(case):
    spec = [tg.TensorSpec([None], name="x")]
    f = tg.function(case.call, input_signature=spec, autograph=False)
    dataclasses.replace(case, call=lambda: f(tg.ones([2])), where=case.call).check()
    g = tg.function(case.call)
    assert np.sum([part.numpy() for part in tg.nest.flatten(g(tg.ones([5])))]) == 5.0


# ---------------------------------------------------------------- leaked tensors


@tg.function
def leak(x, box):
    y = x * 2.0  # made
    box.tensors.append(y)
    return y


class Box:
    """Something that a function may change without being told."""

    def __init__(self):
        self.tensors = []


SCALAR = tg.TensorSpec([])
LEAKED = (
    "a tensor f32[] is out of scope: it belongs to a @tg.function that was traced, and it was used "
    "outside"
)
LEAKED_FROM = f"{__file__}:{marked(leak.python_function, '# made')}"


def leaked(use):
    return trace_error(use, LEAKED, SCOPE_FIX, (f"f32[]  from {LEAKED_FROM}",))


def watch(tensor):
    with tg.GradientTape() as tape:
        tape.watch(tensor)  # here


def differentiate(tensor):
    v = tg.Variable(3.0)
    with tg.GradientTape(persistent=True) as tape:
        y = v * v
    try:
        tape.gradient(y, tensor)  # here
    finally:
        assert tape.gradient(y, v).numpy() == 6.0


def assign(tensor):
    v = tg.Variable(3.0)
    try:
        v.assign(tensor)  # here
    finally:
        assert v.numpy() == 3.0


@table(
    add=leaked(lambda t: t + 1.0),
    sum=leaked(lambda t: tg.reduce_sum(t)),
    numpy=leaked(lambda t: t.numpy()),
    bool=leaked(lambda t: bool(t)),
    print=leaked(lambda t: tg.print(t)),
    argument=leaked(lambda t: tg.function(lambda x: x)(t)),
    concrete=leaked(lambda t: tg.function(lambda x: x).get_concrete_function(SCALAR)(t)),
    another_trace=leaked(lambda t: tg.function(lambda x: x + t)(1.0)),
    returned=leaked(lambda t: tg.function(lambda x: t)(1.0)),
    variable=leaked(lambda t: tg.Variable(t)),
    assign=leaked(assign),
    watch=leaked(watch),
    source=leaked(differentiate),
)
def test_a_tensor_leaked_out_of_a_trace(case):
    box = Box()
    assert leak(tg.constant(2.0), box).numpy() == 4.0
    case.check(box.tensors[0])
    assert leak(tg.constant(3.0), box).numpy() == 6.0
    assert "float32" in repr(box.tensors[0])


def test_a_tensor_of_a_trace_that_failed():
    box = []

    @tg.function
    def f(x, is_bad):
        box.append(x)
        return x.nothing if is_bad else x + 1.0

    with pytest.raises(AttributeError):
        f(tg.constant(1.0), True)
    trace_error(lambda: box[0] + 1.0, LEAKED, SCOPE_FIX, ("f32[]  (argument %x)",)).check()
    assert f(tg.constant(1.0), False).numpy() == 2.0


def test_a_tape_leaked_out_of_a_trace():
    box = []

    @tg.function
    def f(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        box.append((tape, y, x))
        return y

    f(tg.constant(3.0))
    tape, y, x = box[0]
    source_error(
        lambda: tape.gradient(y, x),
        "the tape is out of scope: it was opened inside a @tg.function that was traced",
        "compute the gradient inside the function and return it",
    ).check()
    assert f(tg.constant(3.0)).numpy() == 9.0


# ---------------------------------------------------------------- Variables that are created


CREATED = "a @tg.function may create Variables on its first call only, and this one is created on later calls too"
CREATE_FIX = "create it outside of the function, or keep it and create it `if self.v is None`"


class Creator:
    """Creates a Variable on its first call, and again when it is told so."""

    v = None

    @tg.function
    def __call__(self, x, again=False):
        if self.v is None or again:
            self.v = tg.Variable(2.0)  # here
        return x * self.v


def test_a_variable_created_on_the_second_call():
    creator = Creator()
    assert creator(tg.constant(3.0)).numpy() == 6.0
    v = creator.v
    signature_error(
        lambda: creator(tg.constant(3.0), again=True),
        CREATED,
        CREATE_FIX,
        where=Creator.__dict__["__call__"].python_function,
    ).check()
    assert creator.v is v
    assert v.numpy() == 2.0
    assert creator(tg.constant(4.0)).numpy() == 8.0


def test_a_variable_created_on_every_call():
    f = tg.function(lambda x: x * tg.Variable(2.0))
    signature_error(
        lambda: f(tg.constant(3.0)), CREATED, CREATE_FIX, where=f.python_function
    ).check()
    signature_error(
        lambda: f(tg.constant(3.0)), CREATED, CREATE_FIX, where=f.python_function
    ).check()


def test_a_variable_that_nothing_keeps():
    """The line is that which creates it, and not that of the function."""

    @tg.function
    def f(n):
        for _ in tg.range(n):
            v = tg.Variable(1.0)  # here
        return v

    signature_error(lambda: f(tg.constant(3)), CREATED, CREATE_FIX, where=f.python_function).check()


def test_an_initial_value_from_an_argument():
    box = []

    @tg.function
    def f(x, is_bad):
        if is_bad:
            box.append(tg.Variable(x))  # here
        return x * 2.0

    signature_error(
        lambda: f.get_concrete_function(tg.TensorSpec([]), True),
        "the initial value of a Variable depends on an argument of the @tg.function that creates it, "
        "which has no value yet",
        "call the function with values first, or create the Variable outside of it",
        ("f32[]  (argument %x)",),
        where=f.python_function,
    ).check()
    assert f(tg.constant(3.0), False).numpy() == 6.0


@table(
    no_value=signature_error(
        lambda: tg.Variable(),
        "tg.Variable needs an initial_value, and it is None",
        "pass a value, such as tg.zeros([3])",
    ),
    string=dtype_error(lambda: tg.Variable("a"), "a str cannot be a tensor: 'a'", PASS_TENSOR),
    fraction=dtype_error(
        lambda: tg.Variable(1.5, dtype=tg.int32),
        "the float 1.5 does not fit in int32",
        "use tg.float32 throughout: tg.cast(x, tg.float32)",
    ),
    declared_shape=shape_error(
        lambda: tg.Variable([1.0], shape=[2]),
        "the initial value is f32[1] and the declared shape is (2,)",
        "declare the shape of the initial value, with None for sizes that may change",
    ),
    hash=trace_error(
        lambda: {tg.Variable(1.0, name="v")},
        "the variable 'v:0' has no hash, since == is elementwise",
        "use variable.ref(), which has one, and .deref() to get the variable back",
    ),
    name_of_a_module=signature_error(
        lambda: tg.Module(name="two words"),
        "'two words' is not a valid module name",
        "use letters, digits and underscores, not beginning with a digit",
    ),
)
def test_variables_and_modules_that_cannot_be_made(case):
    case.check()


# ---------------------------------------------------------------- Variables that are changed


def add(v):
    v += 1.0  # here


def subtract(v):
    v -= 1.0  # here


def multiply(v):
    v *= 2.0  # here


def divide(v):
    v /= 2.0  # here


def floor_divide(v):
    v //= 2.0  # here


def remainder(v):
    v %= 2.0  # here


def power(v):
    v **= 2.0  # here


def matrix_product(v):
    v @= v  # here


def set_item(v):
    v[0] = 1.0  # here


def in_place(call, operator, method):
    return Case(
        call,
        TraceError,
        RuntimeError,
        f"`variable {operator} value` would replace the variable 'v:0' by a tensor",
        f"use variable.{method}(value), or `variable = variable ...` if a tensor is meant",
    )


def shape_case(call, shape):
    return shape_error(
        call,
        f"a value of shape {shape} was assigned to the variable 'v:0' of shape (2,)",
        "assign a value of the variable's shape, or declare it with tg.Variable(..., shape=[None])",
    )


def dtype_case(call, dtype):
    return Case(
        call,
        DTypeError,
        ValueError,
        f"a value of {dtype} was assigned to the variable 'v:0' of float32",
        "convert it: tg.cast(value, tg.float32)",
    )


def value_case(call, fact):
    return dtype_error(call, f"the variable 'v:0' is f32[2]: {fact}", "assign numbers of float32")


@table(
    add=in_place(add, "+=", "assign_add"),
    subtract=in_place(subtract, "-=", "assign_sub"),
    multiply=in_place(multiply, "*=", "assign"),
    divide=in_place(divide, "/=", "assign"),
    floor_divide=in_place(floor_divide, "//=", "assign"),
    remainder=in_place(remainder, "%=", "assign"),
    power=in_place(power, "**=", "assign"),
    matrix_product=in_place(matrix_product, "@=", "assign"),
    item=Case(
        set_item,
        TraceError,
        RuntimeError,
        "an item of the variable 'v:0' was assigned with [...] =",
        "use v[1:3].assign(value), or v.scatter_update(...)",
    ),
    shape=shape_case(lambda v: v.assign([1.0]), "(1,)"),
    rank=shape_case(lambda v: v.assign(1.0), "()"),
    shape_of_a_summand=shape_case(lambda v: v.assign_add([1.0, 2.0, 3.0]), "(3,)"),
    dtype=dtype_case(lambda v: v.assign(tg.constant([1, 2])), "int32"),
    dtype_of_a_summand=dtype_case(lambda v: v.assign_sub(tg.ones([2], tg.float64)), "float64"),
    complex=value_case(
        lambda v: v.assign([1j, 2.0]), "an array of complex128 does not fit in float32"
    ),
    string=value_case(lambda v: v.assign("ab"), "a str cannot be a tensor: 'ab'"),
    none=value_case(lambda v: v.assign(None), "a NoneType cannot be a tensor: None"),
    set=value_case(lambda v: v.assign({1.0}), "a set cannot be a tensor: {1.0}"),
    ragged=shape_error(
        lambda v: v.assign([[1.0], [1.0, 2.0]]),
        "the variable 'v:0' is f32[2]: the rows of a list have different lengths: [[1.0], [1.0, 2.0]]",
        "make all rows equally long, or pad them",
    ),
    slice=shape_error(
        lambda v: v[0:1].assign([1.0, 2.0]),
        "a value f32[2] was assigned to a slice of shape (1,) of the variable 'v:0'",
        "assign a value of the slice's shape",
    ),
    index=value_error(
        lambda v: v[5].assign(1.0),
        "getitem: index 5 is out of range for axis 0 of f32[2]",
        "use an index from -2 to 1",
        ("f32[2]  (Variable 'v')",),
    ),
    scattered_dtype=Case(
        lambda v: v.scatter_add(tg.IndexedSlices(tg.constant([1]), [0])),
        DTypeError,
        ValueError,
        "updates of int32 were scattered into the variable 'v:0' of float32",
        "convert them: tg.cast(updates, tg.float32)",
        ("i32[1]  from {place}",),
    ),
    scattered_indices=dtype_error(
        lambda v: v.scatter_add(tg.IndexedSlices([1.0], [0.5])),
        "indices are f32[1], and they must be integers",
        "convert them: tg.cast(indices, tg.int32)",
    ),
    scattered_shape=shape_error(
        lambda v: v.scatter_nd_update([[0]], [1.0, 2.0]),
        "scatter_update: the updates are f32[2], and i32[1,1] as indices into f32[2] need the shape [1]",
        "give one update for each index vector",
        ("f32[2]", "i32[1,1]", "f32[2]"),
    ),
)
def test_a_variable_that_refuses_a_change(case):
    v = tg.Variable([1.0, 2.0], name="v")
    case.check(v)
    assert v.numpy().tolist() == [1.0, 2.0]
    assert v.assign_add([1.0, 1.0]).numpy().tolist() == [2.0, 3.0]


@table(
    add=in_place(add, "+=", "assign_add"),
    shape=shape_case(lambda v: v.assign(tg.ones([3])), "(3,)"),
    dtype=dtype_case(lambda v: v.assign(tg.ones([2], tg.int32)), "int32"),
)
def test_a_variable_that_refuses_a_change_while_tracing(case):
    v = tg.Variable([1.0, 2.0], name="v")

    @tg.function
    def f(is_bad):
        v.assign_add([1.0, 1.0])
        return case.call(v) if is_bad else v.read_value()

    dataclasses.replace(case, call=lambda: f(True), where=case.call).check()
    assert v.numpy().tolist() == [1.0, 2.0]
    assert f(False).numpy().tolist() == [2.0, 3.0]
    assert v.numpy().tolist() == [2.0, 3.0]


# ---------------------------------------------------------------- the life of a tape


def square():
    """A tape that recorded v * v, its result and v."""
    v = tg.Variable(3.0)
    with tg.GradientTape() as tape:
        y = v * v
    return tape, y, v


def stop(tape):
    with tape.stop_recording():  # here
        pass


def reenter(tape):
    with tape:
        v = tg.Variable(3.0)
        y = v * v
        with tape:  # here
            pass
    del y


NEVER = "the tape has recorded nothing: it was never entered"
ENTER_FIX = "compute the target inside `with tg.GradientTape() as tape:`"


@table(
    gradient=tape_error(
        lambda tape: tape.gradient(tg.constant(1.0), tg.constant(1.0)), NEVER, ENTER_FIX
    ),
    watch=tape_error(lambda tape: tape.watch(tg.constant(1.0)), NEVER, ENTER_FIX),
    reset=tape_error(lambda tape: tape.reset(), NEVER, ENTER_FIX),
    stop_recording=tape_error(
        stop,
        "recording cannot be stopped on a tape that is not recording: it was never entered",
        "use `with tg.GradientTape() as tape:` first",
    ),
)
def test_a_tape_that_was_never_entered(case):
    tape = tg.GradientTape()
    case.check(tape)
    v = tg.Variable(3.0)
    with tape:
        y = v * v
    assert tape.gradient(y, v).numpy() == 6.0


def use_twice():
    tape, y, v = square()
    tape.gradient(y, v)
    tape.gradient(y, v)  # here


@pytest.mark.parametrize(
    "run", [lambda f: f(), lambda f: tg.function(f)()], ids=["top", "function"]
)
def test_a_tape_used_twice(run):
    tape_error(
        lambda: run(use_twice),
        "a GradientTape that is not persistent computes one set of gradients, and this one was used already",
        "create it with tg.GradientTape(persistent=True), and `del` it after use",
        where=use_twice,
    ).check()


def test_a_tape_used_twice_can_be_entered_again():
    tape, y, v = square()
    tape.gradient(y, v)
    with pytest.raises(RuntimeError):
        tape.gradient(y, v)
    with tape:
        z = v * v * v
    assert tape.gradient(z, v).numpy() == 27.0
    assert v.numpy() == 3.0


def test_a_tape_entered_while_it_is_open():
    tape = tg.GradientTape()
    gradient_error(
        reenter,
        "the tape is still recording: it was entered again while it was active",
        "leave the first `with` block before entering it again, or use a second tape",
    ).check(tape)
    v = tg.Variable(3.0)
    with tape:
        y = v * v
    assert tape.gradient(y, v).numpy() == 6.0


@table(
    stop_recording=gradient_error(
        stop,
        "the tape is not recording: its `with` block was left",
        "call this inside the `with` block",
    ),
    reset=gradient_error(
        lambda tape: tape.reset(),
        "the tape is not recording: its `with` block was left",
        "call this inside the `with` block",
    ),
)
def test_a_tape_that_was_left(case):
    tape, y, v = square()
    case.check(tape)
    assert tape.gradient(y, v).numpy() == 6.0


# ---------------------------------------------------------------- what gradient is asked

SOURCE_FIX = "pass tg.Tensors or tg.Variables as sources"
TARGET_FIX = "pass a tg.Tensor, a tg.Variable, or a nested structure of them"
UNCONNECTED_FIX = "use tg.UnconnectedGradients.NONE or tg.UnconnectedGradients.ZERO"
COTANGENT_FIX = "give a cotangent of the shape and the dtype of the target"


def bad_source(call, fact):
    return source_error(call, f"a source of a gradient is {fact}", SOURCE_FIX)


def bad_target(call, fact):
    return source_error(call, f"the target of a gradient is {fact}", TARGET_FIX)


def cotangent(call, type, operand):
    fact = f"an output gradient is {type} and its target is f32[2]"
    operands = (operand, "f32[2]  from {recorded}")
    return gradient_error(call, fact, COTANGENT_FIX, operands)


@table(
    number=bad_source(lambda t, y, v: t.gradient(y, 3.0), "a float: 3.0"),
    none=bad_source(lambda t, y, v: t.gradient(y, None), "a NoneType: None"),
    string=bad_source(lambda t, y, v: t.gradient(y, "v"), "a str: 'v'"),
    array=bad_source(lambda t, y, v: t.gradient(y, np.ones(2)), "an ndarray: array([1., 1.])"),
    one_of_several=bad_source(lambda t, y, v: t.gradient(y, [v, {"a": 1}]), "an int: 1"),
    set=bad_source(lambda t, y, v: t.gradient(y, {1.0}), "a set: {1.0}"),
    module=bad_source(
        lambda t, y, v: t.gradient(y, tg.Module()),
        "a Module: <Module>",
    ),
    target_number=bad_target(lambda t, y, v: t.gradient(3.0, v), "a float: 3.0"),
    target_none=bad_target(lambda t, y, v: t.gradient(None, v), "a NoneType: None"),
    target_with_none=bad_target(lambda t, y, v: t.gradient([y, None], v), "a NoneType: None"),
    unconnected=gradient_error(
        lambda t, y, v: t.gradient(y, v, unconnected_gradients="bogus"),
        "unconnected_gradients is 'bogus', and it must be 'none', 'zero' or 'raise'",
        UNCONNECTED_FIX,
    ),
    unconnected_none=gradient_error(
        lambda t, y, v: t.gradient(y, v, unconnected_gradients=None),
        "unconnected_gradients is None, and it must be 'none', 'zero' or 'raise'",
        UNCONNECTED_FIX,
    ),
    cotangent_shape=cotangent(
        lambda t, y, v: t.gradient(y, v, tg.ones([3])), "f32[3]", "f32[3]  from {place}"
    ),
    cotangent_that_broadcasts=cotangent(
        lambda t, y, v: t.gradient(y, v, tg.constant(1.0)), "f32[]", "f32[]  from {place}"
    ),
    cotangent_dtype=cotangent(
        lambda t, y, v: t.gradient(y, v, tg.ones([2], tg.float64)), "f64[2]", "f64[2]  from {place}"
    ),
    cotangent_string=gradient_error(
        lambda t, y, v: t.gradient(y, v, "a"),
        "an output gradient does not fit its target f32[2]: a str cannot be a tensor: 'a'",
        COTANGENT_FIX,
    ),
    too_many_cotangents=gradient_error(
        lambda t, y, v: t.gradient([y], v, [None, None]),
        "output_gradients has the structure ['*', '*'], and the target ['*']",
        "give one cotangent for each target, None meaning ones",
    ),
    too_few_cotangents=gradient_error(
        lambda t, y, v: t.gradient([y, y], v, [None]),
        "output_gradients has the structure ['*'], and the target ['*', '*']",
        "give one cotangent for each target, None meaning ones",
    ),
    cotangents_of_other_keys=gradient_error(
        lambda t, y, v: t.gradient({"a": y}, v, {"b": None}),
        "output_gradients has the structure {'b': '*'}, and the target {'a': '*'}",
        "give one cotangent for each target, None meaning ones",
    ),
)
def test_bad_requests_of_a_gradient(case):
    v = tg.Variable([3.0, 4.0])
    with tg.GradientTape() as tape:
        y = v * v  # made
    made = f"{__file__}:{marked(test_bad_requests_of_a_gradient, '# made')}"
    operands = tuple(text.replace("{recorded}", made) for text in case.operands)
    dataclasses.replace(case, operands=operands).check(tape, y, v)
    assert tape.gradient(y, v).numpy().tolist() == [6.0, 8.0]
    assert v.numpy().tolist() == [3.0, 4.0]


def watch_number():
    with tg.GradientTape() as tape:
        tape.watch(3.0)  # here


def watch_array():
    with tg.GradientTape() as tape:
        tape.watch([tg.constant(1.0), np.ones(2)])  # here


@table(
    number=gradient_error(
        watch_number,
        "object 1 passed to watch is of type 'float', not a tg.Tensor or tg.Variable",
        "watch the tensor itself: x = tg.constant(...); tape.watch(x)",
    ),
    array=gradient_error(
        watch_array,
        "object 2 passed to watch is of type 'ndarray', not a tg.Tensor or tg.Variable",
        "watch the tensor itself: x = tg.constant(...); tape.watch(x)",
    ),
)
def test_watching_what_is_not_a_tensor(case):
    case.check()


# ---------------------------------------------------------------- ops without a gradient

RULE_FACT = "adjust_contrast: no gradient rule is registered for this op"
RULE_FIX = 'register one with @tg.RegisterGradient("adjust_contrast"), or write the computation with other ops'


def contrast(x):
    return tg.image.adjust_contrast(x, 0.5)  # here


def plain_gradient(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = contrast(x)
    return tape.gradient(y, x)


def gradient_through_a_function(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.function(contrast)(x)
    return tape.gradient(y, x)


def second_order(x):
    with tg.GradientTape() as outer:
        outer.watch(x)
        with tg.GradientTape() as inner:
            inner.watch(x)
            y = contrast(x) * x
        inner.gradient(y, x)
    return outer


@pytest.mark.parametrize(
    "compute",
    [
        plain_gradient,
        gradient_through_a_function,
        second_order,
        tg.function(plain_gradient),
        tg.function(gradient_through_a_function),
    ],
    ids=["plain", "of a function", "second order", "in a function", "in a function, of a function"],
)
def test_an_op_without_a_gradient(compute):
    image = tg.constant([[[1.0, 2.0, 3.0]]])
    Case(
        lambda: compute(image), GradientError, LookupError, RULE_FACT, RULE_FIX, where=contrast
    ).check()


def test_a_tape_survives_an_op_without_a_gradient():
    x, v = tg.constant([[[1.0, 2.0, 3.0]]]), tg.Variable(2.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y, z = contrast(x), v * v
    with pytest.raises(LookupError):
        tape.gradient(y, x)
    assert tape.gradient(z, v).numpy() == 4.0


@pytest.fixture
def register(monkeypatch):
    """`tg.RegisterGradient`, undone after the test."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_places", dict(registry._places))
    return tg.RegisterGradient


WRONG_RULE = "adjust_contrast: its registered gradient returned "
RETURN_FIX = "return one tensor of the type of each input, None where there is none"


@pytest.mark.parametrize(
    ("rule", "fact"),
    [
        (lambda op, g: g, "1 cotangents for 2 inputs"),
        (lambda op, g: (1.0, None), "a float for input 0: 1.0"),
        (lambda op, g: (tg.ones([2]), None), "f32[2] for input 0, which is f32[1,1,3]"),
        (
            lambda op, g: (tg.cast(g, tg.float64), None),
            "f64[1,1,3] for input 0, which is f32[1,1,3]",
        ),
    ],
    ids=["number", "python", "shape", "dtype"],
)
def test_a_registered_gradient_that_returns_what_does_not_fit(register, rule, fact):
    register("adjust_contrast")(rule)
    image = tg.constant([[[1.0, 2.0, 3.0]]])  # made
    made = marked(test_a_registered_gradient_that_returns_what_does_not_fit, "# made")
    gradient_error(
        lambda: plain_gradient(image),
        WRONG_RULE + fact,
        RETURN_FIX,
        (f"f32[1,1,3]  from {__file__}:{made}", "f32[]"),
        where=contrast,
    ).check()


def test_a_gradient_registered_twice(register):
    rule = register("op_of_these_tests")(lambda op, g: g)
    place = f"{__file__}:{rule.__code__.co_firstlineno}"
    Case(
        lambda: tg.RegisterGradient("op_of_these_tests")(rule),
        GradientError,
        KeyError,
        f"the op 'op_of_these_tests' was given a gradient, and it has one already: registered at {place}",
        "remove one of the registrations",
    ).check()


@table(
    own_rule=Case(
        lambda: tg.RegisterGradient("sin")(lambda op, g: g),
        GradientError,
        KeyError,
        "the op 'sin' was given a gradient, and it has one already: its own",
        "register gradients for ops without one",
    ),
    name=trace_error(
        lambda: tg.RegisterGradient(3),
        "an op is named by a string, and 3 is an int",
        'write the name that the dump of a graph shows, such as "adjust_contrast"',
    ),
    no_gradient=trace_error(
        lambda: tg.no_gradient(None),
        "an op is named by a string, and None is a NoneType",
        'write the name that the dump of a graph shows, such as "adjust_contrast"',
    ),
)
def test_gradients_that_cannot_be_registered(case):
    case.check()


# ---------------------------------------------------------------- what functions return and change

RESULT_FIX = "return tensors, numbers, arrays, None, or lists, tuples and dicts of them"


@pytest.mark.parametrize(
    ("result", "kind", "fact", "fix"),
    [
        ("text", TraceError, "f returned a str: 'text'", RESULT_FIX),
        ({"a": [1.0, "text"]}, TraceError, "f returned a str: 'text'", RESULT_FIX),
        (object(), TraceError, "f returned an object: <object object>", RESULT_FIX),
        ({1.0}, TraceError, "f returned a set: {1.0}", RESULT_FIX),
        (
            len,
            TraceError,
            "f returned a builtin_function_or_method: <built-in function len>",
            RESULT_FIX,
        ),
        (
            np.array(["a"]),
            DTypeError,
            "the result of f: an array of <U1 cannot be a tensor: array(['a'], dtype='<U1')",
            "return an array of numbers or truth values",
        ),
    ],
    ids=["string", "inside", "object", "set", "function", "array"],
)
def test_what_a_function_cannot_return(result, kind, fact, fix):
    @tg.function
    def f(x, is_bad):
        return result if is_bad else x * 2.0

    Case(lambda: f(1.0, True), kind, TypeError, fact, fix, where=f.python_function).check()
    assert f(tg.constant(3.0), False).numpy() == 6.0


@pytest.mark.parametrize(
    ("change", "argument", "fact", "fix"),
    [
        (
            lambda items: items.append(1.0),
            [tg.constant(3.0)],
            "it was ['*'] and is now ['*', '*'], where '*' is a value",
            "change a copy: items = list(items)",
        ),
        (
            lambda items: items.update(b=1.0),
            {"a": tg.constant(3.0)},
            "it was {'a': '*'} and is now {'a': '*', 'b': '*'}, where '*' is a value",
            "change a copy: items = dict(items)",
        ),
        (
            lambda items: items.reverse(),
            [tg.constant(3.0), tg.constant(4.0)],
            "an item of ['*', '*'] was replaced",
            "change a copy: items = list(items)",
        ),
        (
            lambda items: items["a"].clear(),
            {"a": [tg.constant(3.0)]},
            "it was {'a': ['*']} and is now {'a': []}, where '*' is a value",
            "change a copy: items = dict(items)",
        ),
        (
            lambda items: items["b"],
            collections.defaultdict(float, a=tg.constant(3.0)),
            "it was defaultdict(<class 'float'>, {'a': '*'}) and is now "
            "defaultdict(<class 'float'>, {'a': '*', 'b': '*'}), where '*' is a value",
            "change a copy: items = copy.copy(items)",
        ),
    ],
    ids=["append", "update", "reverse", "inside", "missing"],
)
def test_an_argument_that_is_changed_in_place(change, argument, fact, fix):
    @tg.function
    def f(x, items, is_bad):
        if is_bad:
            change(items)
        return x * 2.0

    before = tg.nest.flatten(argument)
    signature_error(
        lambda: f(1.0, argument, True),
        f"f changed its argument 'items' in place: {fact}",
        fix,
        where=f.python_function,
    ).check()
    assert all(a is b for a, b in zip(tg.nest.flatten(argument), before, strict=True))
    assert f(tg.constant(3.0), argument, False).numpy() == 6.0


def test_the_users_own_exception_passes_as_it_is():
    @tg.function
    def f(x, is_bad):
        if is_bad:
            raise KeyError("mine")
        return x * 2.0

    with pytest.raises(KeyError) as caught:
        f(tg.constant(3.0), True)
    assert caught.value.args == ("mine",)
    assert f(tg.constant(3.0), False).numpy() == 6.0


# ---------------------------------------------------------------- concrete functions

CONCRETE_FIX = "call it with double(rows: f32[d0,2]) -> (f32[d0,2])"


def concrete_case(call, fact, fix=CONCRETE_FIX):
    return trace_error(call, f"double: {fact}", fix)


@table(
    shape=concrete_case(
        lambda f: f(tg.ones([1, 3])), "argument 'rows' is f32[1,3], and f32[d0,2] is expected"
    ),
    rank=concrete_case(
        lambda f: f(tg.ones([2])), "argument 'rows' is f32[2], and f32[d0,2] is expected"
    ),
    dtype=concrete_case(
        lambda f: f(tg.ones([1, 2], tg.float64)),
        "argument 'rows' is f64[1,2], and f32[d0,2] is expected",
    ),
    array=concrete_case(
        lambda f: f(np.ones([1, 2], np.int32)),
        "argument 'rows' is i32[1,2], and f32[d0,2] is expected",
    ),
    by_name=concrete_case(
        lambda f: f(rows=tg.ones([1, 3])), "argument 'rows' is f32[1,3], and f32[d0,2] is expected"
    ),
    string=concrete_case(
        lambda f: f("a"),
        "argument 'rows' is expected to be f32[d0,2]: a str cannot be a tensor: 'a'",
    ),
    structure=concrete_case(
        lambda f: f([tg.ones([1, 2])]),
        "the arguments are ((['*'],), {}), and (('*',), {}) is expected",
    ),
    missing=concrete_case(
        lambda f: f(),
        "the arguments (0 by position) do not fit the signature double(rows): missing a required argument: 'rows'",
        CALL_FIX,
    ),
    too_many=concrete_case(
        lambda f: f(tg.ones([1, 2]), tg.ones([1, 2])),
        "the arguments (2 by position) do not fit the signature double(rows): too many positional arguments",
        CALL_FIX,
    ),
    set=concrete_case(
        lambda f: f({1.0}),
        f"argument 'rows' is a set, {NO_KEY}: {{1.0}}",
        "pass a list, such as sorted(items)",
    ),
    in_a_function=concrete_case(
        lambda f: tg.function(f)(tg.ones([2])) and None,
        "argument 'rows' is f32[2], and f32[d0,2] is expected",
    ),
)
def test_a_concrete_function_called_with_what_does_not_fit(case):
    concrete = make_double().get_concrete_function()
    case.check(concrete)
    assert concrete(tg.ones([3, 2])).numpy().tolist() == [[2.0, 2.0]] * 3


@table(
    another_value=trace_error(
        lambda f: f(tg.constant(1.0), True),
        "choose: argument 'flag' is True, and the trace has False",
        "call it with choose(x: f32[], flag=False) -> (f32[])",
    ),
    equal_value=trace_error(
        lambda f: f(tg.constant(1.0), 0),
        "choose: argument 'flag' is 0, and the trace has False",
        "call it with choose(x: f32[], flag=False) -> (f32[])",
    ),
    missing_value=trace_error(
        lambda f: f(x=tg.constant(1.0), other=False),
        "choose: the arguments (0 by position, x by name, other by name) do not fit the signature choose(x, flag): missing a required argument: 'flag'",
        CALL_FIX,
    ),
)
def test_a_concrete_function_called_with_another_python_value(case):
    @tg.function
    def choose(x, flag):
        return x if flag else -x

    concrete = choose.get_concrete_function(tg.TensorSpec([]), False)
    case.check(concrete)
    assert concrete(tg.constant(2.0), False).numpy() == -2.0
    assert concrete(tg.constant(2.0)).numpy() == -2.0


def test_a_concrete_function_with_sizes_that_differ():
    spec = tg.TensorSpec(["n"])
    concrete = tg.function(lambda x, y: x + y).get_concrete_function(spec, spec)
    trace_error(
        lambda: concrete(tg.ones([2]), tg.ones([3])),
        "<lambda>: f32[n] was expected and f32[3] was given, where the other arguments make it f32[2]",
        "call it with <lambda>(x: f32[n], y: f32[n]) -> (f32[n])",
    ).check()
    assert concrete(tg.ones([2]), tg.ones([2])).numpy().tolist() == [2.0, 2.0]


@table(
    open_size=shape_error(
        lambda f: f.experimental_get_compiler_ir(tg.TensorSpec([None, 2])),
        "double: the compiler needs every size, and an argument is f32[d0,2]",
        "give the sizes in the TensorSpec",
    ),
    stage=signature_error(
        lambda f: f.experimental_get_compiler_ir(tg.ones([1, 2]))(stage="bogus"),
        "'bogus' is not a stage of the compiler",
        "use one of stablehlo, stablehlo_serialized, hlo, hlo_no_metadata, hlo_serialized, optimized_hlo, optimized_hlo_serialized, optimized_hlo_proto_serialized, optimized_hlo_dot",
    ),
)
def test_bad_requests_of_the_compilers_text(case):
    double = make_double()
    case.check(double)
    check_double(double)


# ---------------------------------------------------------------- while a program runs


def test_a_python_function_that_returns_another_number():
    @tg.function
    def f(x, is_bad):
        if is_bad:
            return tg.py_function(lambda a: (a, a), [x], tg.float32)  # here
        return tg.py_function(lambda a: a * 2.0, [x], tg.float32)

    value_error(
        lambda: f(tg.constant(3.0), True),
        "tg.py_function of <lambda> returned 2 values and Tout declares 1",
        "give one dtype or TensorSpec in Tout for each returned value",
        where=f.python_function,
    ).check()
    assert f(tg.constant(3.0), False).numpy() == 6.0


def test_an_assertion_that_fails():
    v = tg.Variable(0.0)

    @tg.function
    def f(x):
        tg.debugging.assert_less(x, 3.0, message="too big")  # here
        return v.assign_add(x)

    place = marked(f.python_function, "# here")
    source = linecache.getline(__file__, place).strip()
    with pytest.raises(InvalidArgumentError) as caught:
        f(tg.constant(4.0))
    assert str(caught.value) == (
        "too big: x < y does not hold\n"
        f"  at {__file__}:{place}:  {source}\n"
        "  operand 0: 4.\n"
        "  operand 1: 3."
    )
    assert v.numpy() == 0.0
    assert f(tg.constant(2.0)).numpy() == 2.0


def test_a_value_that_cannot_be_computed():
    """Memory runs out. What does not depend on it is not lost, and the top level goes on."""
    good = tg.ones([2])
    bad = tg.zeros([1 << 50])  # 4 PiB
    line = marked(test_a_value_that_cannot_be_computed, "# 4 PiB")
    for value in (bad, bad + 1.0):
        with pytest.raises(InvalidArgumentError) as caught:
            value.numpy()
        fact, place, fix = str(caught.value).split("\n")
        assert fact.startswith("a result f32[1125899906842624] takes 4,503,599,627,370,496 bytes")
        assert place.startswith(f"  at {__file__}:{line if value is bad else ''}")
        assert fix == "  fix: compute with fewer or smaller tensors"
    assert (good + 1.0).numpy().tolist() == [2.0, 2.0]
    assert good.numpy().tolist() == [1.0, 1.0]


def test_an_op_of_wrong_attributes_does_not_stand_for_the_right_one():
    axes = (4, 2, 0, 3, 1)
    wrong = Transpose(tuple(map(float, axes)))
    assert wrong.perm == axes
    assert all(type(axis) is int for axis in Transpose(axes).perm)
    assert tg.transpose(tg.ones([1, 2, 3, 4, 5]), axes).numpy().shape == (5, 3, 1, 4, 2)


# ---------------------------------------------------------------- structures


@table(
    other_structure=signature_error(
        lambda: tg.nest.map_structure(max, [1], {"a": 1}),
        "the structures differ: ['*'] and {'a': '*'}",
        "make both of the same containers, keys and lengths",
    ),
    other_number=signature_error(
        lambda: tg.nest.pack_sequence_as([1, 2], [1]),
        "the structure has 2 leaves and 1 was given",
        "give one value for each leaf",
    ),
)
def test_structures_that_do_not_fit(case):
    case.check()


def test_an_error_keeps_nothing_alive():
    """Neither the function nor its arguments live on in the error that was shown."""
    f = tg.function(lambda x: x @ x)
    with pytest.raises(ShapeError) as caught:
        f(tg.ones([2, 3]))
    text, reference = str(caught.value), weakref.ref(f)
    del f, caught
    gc.collect()
    assert reference() is None
    assert "matmul" in text


# ---------------------------------------------------------------- arguments of functions


def vector():
    return tg.constant([1.0, 2.0])


W = tg.Variable([1.0, 2.0], name="w")


@table(
    flag_is_a_tensor=dtype_error(
        lambda: tg.reduce_sum(vector(), keepdims=tg.constant(True)),
        "reduce_sum: keepdims is True or False, and it was given a tensor bool[]",
        "use keepdims=True or keepdims=False",
    ),
    flag_is_a_string=dtype_error(
        lambda: tg.cumsum(vector(), reverse="no"),
        "cumsum: reverse is True or False, and it was given 'no', which is a str",
        "use reverse=True or reverse=False",
    ),
    axis_is_a_bool=shape_error(
        lambda: tg.reduce_sum(vector(), True),
        "reduce_sum: an axis must be made of integers, and True is a bool",
        "use ints",
    ),
    axis_is_a_float=dtype_error(
        lambda: tg.reduce_sum(vector(), 0.5),
        "reduce_sum: an axis is an integer or a list of integers, and 0.5 is a float",
        "use ints, such as [2, 3]",
    ),
    size_is_a_bool=shape_error(
        lambda: tg.zeros(True),
        "zeros: a shape holds integers, and True in (True,) is a bool",
        "give an int of zero or more for each size",
    ),
    shape_is_a_set=dtype_error(
        lambda: tg.zeros({3, 2}),
        "zeros: a shape is an integer or a list of integers, and {2, 3} is a set",
        "use ints, such as [2, 3]",
    ),
    size_is_too_large=value_error(
        lambda: tg.zeros([2**63]),
        "zeros: a size has at most 64 bits, and the shape (9223372036854775808,) has "
        "9223372036854775808",
        "give smaller sizes",
    ),
    axis_twice=shape_error(
        lambda: tg.tensordot(vector(), vector(), [[0, 0], [0, 0]]),
        "tensordot: the axes [0, 0] name one axis twice",
        "give each axis once",
        ("f32[2]  from {vector}",),
    ),
    unknown_direction=Case(
        lambda: tg.sort(vector(), direction="UP"),
        ValueError,
        ValueError,
        "sort: direction is 'UP'",
        'use "ASCENDING" or "DESCENDING"',
    ),
    unknown_format=Case(
        lambda: tg.nn.max_pool2d(tg.ones([1, 2, 2, 1]), 2, 2, "SAME", data_format=3),
        ValueError,
        ValueError,
        "max_pool2d: data_format is 3",
        'use None or "NHWC" or "NCHW" or "N...C" or "NC..."',
    ),
    windows_that_are_no_pairs=shape_error(
        lambda: tg.pad(tg.ones([2, 2]), [[1, 1, 1], [1]]),
        "pad: the paddings [[1, 1, 1], [1]] are not 2 pairs of sizes, as f32[2,2] needs",
        "give [before, after] for each axis, such as [[1, 1], [0, 0]]",
        ("f32[2,2]  from {place}",),
    ),
    masks_are_numbers=dtype_error(
        lambda: tg.strided_slice(vector(), [0], [1], begin_mask="a"),
        "strided_slice: a mask is an integer or a list of integers, and 'a' is a str",
        "use ints, such as [2, 3]",
    ),
    bounds_of_other_lengths=shape_error(
        lambda: tg.strided_slice(vector(), [0, 0], [1]),
        "strided_slice: 2 begins, 1 ends and 2 strides",
        "give as many of each",
        ("f32[2]  from {vector}",),
    ),
    equation_is_no_string=dtype_error(
        lambda: tg.einsum(3, vector()),
        "einsum: the equation is a string, and it was given 3, which is an int",
        'write it as "ij,jk->ik"',
    ),
    rate_is_a_string=dtype_error(
        lambda: tg.nn.dropout(vector(), "half"),
        "dropout: rate is a number, and it was given 'half', which is a str",
        "use a Python float",
    ),
    rate_is_too_large=Case(
        lambda: tg.nn.dropout(vector(), 1),
        ValueError,
        ValueError,
        "dropout: rate is 1",
        "use a number from 0 to below 1",
    ),
    indices_are_floats=dtype_error(
        lambda: tg.one_hot(vector(), 3),
        "one_hot: the indices are f32[2], and they must be integers",
        "convert them: tg.cast(indices, tg.int32)",
        ("f32[2]  from {vector}",),
    ),
    no_list_of_tensors=dtype_error(
        lambda: tg.clip_by_global_norm(1.0, 1.0),
        "clip_by_global_norm: t_list is a list, and it was given 1.0, which is a float",
        "put them in a list",
    ),
    numbers_below_zero=value_error(
        lambda: tg.math.segment_sum([1, 2], [-1, 0]),
        "segment_sum: the segment numbers count from 0, and there is -1",
        "use numbers of zero or more",
    ),
    other_type=dtype_error(
        lambda: tg.debugging.assert_type(tg.zeros([2]), tg.int32),
        "assert_type: float32 is not int32",
        "convert it: tg.cast(x, tg.int32), or correct the expectation",
        ("f32[2]  from {place}",),
    ),
    rank_is_a_list=shape_error(
        lambda: tg.debugging.assert_rank(vector(), [1, 2]),
        "assert_rank: the rank is [1, 2], and it must be one integer",
        "use an int",
    ),
    name_is_no_string=dtype_error(
        lambda: tg.Variable(1.0, name=3),
        "a name is a string, and 3 is an int",
        'use a string, such as name="w"',
    ),
    no_pair=dtype_error(
        lambda: tg.optimizers.SGD().apply_gradients([vector()]),
        "apply_gradients: grads_and_vars are pairs of a gradient and a tg.Variable, and it was "
        "given a tensor f32[2]",
        "give pairs of gradient and variable: zip(gradients, variables)",
    ),
    gradient_of_another_shape=shape_error(
        lambda: tg.optimizers.Adam().apply_gradients([(tg.ones([3]), W)]),
        "apply_gradients: the gradient f32[3] of the variable w:0 of f32[2]",
        "give each variable its own gradient",
        ("f32[3]  from {place}",),
    ),
    gradient_of_another_dtype=dtype_error(
        lambda: tg.optimizers.Adam().apply_gradients([(tg.ones([2], tg.float64), W)]),
        "apply_gradients: the gradient f64[2] of the variable w:0 of f32[2]",
        "convert it: tg.cast(gradient, tg.float32)",
        ("f64[2]  from {place}",),
    ),
    gradient_of_integers=dtype_error(
        lambda: tg.optimizers.SGD().apply_gradients([(tg.ones([2], tg.int32), W)]),
        "apply_gradients: the gradient i32[2] of the variable w:0 of f32[2]",
        "convert it: tg.cast(gradient, tg.float32)",
        ("i32[2]  from {place}",),
    ),
    unknown_mode=Case(
        lambda: tg.initializers.VarianceScaling(mode="fan"),
        ValueError,
        ValueError,
        "VarianceScaling: mode is 'fan'",
        'use "fan_in" or "fan_out" or "fan_avg"',
    ),
    state_of_another_length=shape_error(
        lambda: tg.random.Generator(state=[1, 2, 3]),
        "Generator: a state is u32[2], and it was given i32[3]",
        "use the state of another generator, or tg.random.Generator.from_seed(1)",
        ("i32[3]",),
    ),
)
def test_arguments_that_do_not_fit(case):
    case.check()


DIVISOR_FIX = "divide by what is not 0, or choose: tg.where(y == 0, 0, x // tg.where(y == 0, 1, y))"


@table(
    floordiv=value_error(
        lambda: tg.constant([1, 2]) // 0,
        "floordiv: i32[2] is divided by zero",
        DIVISOR_FIX,
        ("i32[2]  from {place}", "i32[]"),
    ),
    floormod=value_error(
        lambda: 7 % tg.constant([1, 0]),
        "floormod: i32[] is divided by zero",
        DIVISOR_FIX,
        ("i32[]", "i32[2]  from {place}"),
    ),
    truncatediv=value_error(
        lambda: tg.truncatediv([1, 2], 0),
        "truncatediv: i32[2] is divided by zero",
        DIVISOR_FIX,
        ("i32[2]", "i32[]"),
    ),
    truncatemod=value_error(
        lambda: tg.truncatemod([1, 2], [1, 0]),
        "truncatemod: i32[2] is divided by zero",
        DIVISOR_FIX,
        ("i32[2]", "i32[2]"),
    ),
    pending=value_error(
        lambda: tg.constant([1, 2]) // (tg.constant([1, 2]) - 1),
        "floordiv: i32[2] is divided by zero",
        DIVISOR_FIX,
        ("i32[2]  from {place}", "i32[2]  from {place}"),
    ),
    negative_power=dtype_error(
        lambda: tg.constant([7, -7]) ** tg.constant([2, -2]),
        "pow: an integer tensor i32[2] has no power -2",
        "convert it: tg.cast(x, tg.float32)",
        ("i32[2]  from {place}", "i32[2]  from {place}"),
    ),
    pending_negative_power=dtype_error(
        lambda: tg.constant([7, -7]) ** (tg.constant([2, -1]) - 1),
        "pow: an integer tensor i32[2] has no power -2",
        "convert it: tg.cast(x, tg.float32)",
        ("i32[2]  from {place}", "i32[2]  from {place}"),
    ),
)
def test_integers_divided_by_zero(case):
    case.check()


def test_integers_divided_by_zero_while_tracing():
    @tg.function
    def f(x, y):
        return x // y  # here

    case = value_error(
        lambda: f(tg.constant(5), 0),
        "floordiv: i32[] is divided by zero",
        DIVISOR_FIX,
        ("i32[]  (argument %x)", "i32[]  from {place}"),
        where=f.python_function,
    )
    case.check()
    assert f(tg.constant(5), 2).numpy() == 2
    f(tg.constant(5), tg.constant(0))  # what is not known is not looked for


def test_the_repair_for_divisors_holds_for_negative_ones():
    x, y = tg.constant([7, 7, 7]), tg.constant([2, 0, -2])
    np.testing.assert_array_equal(tg.where(y == 0, 0, x // tg.where(y == 0, 1, y)), [3, 0, -4])


@table(
    pending_index=value_error(
        lambda: vector()[tg.constant(4) + 1],
        "getitem: index 5 is out of range for axis 0 of f32[2]",
        "use an index from -2 to 1",
        ("f32[2]  from {vector}",),
    ),
    pending_indices=value_error(
        lambda: tg.gather(vector(), tg.constant([1, 4]) + 1),
        "gather: index 2 is out of range for the size 2 of f32[2]",
        "use indices from 0 to 1",
        ("f32[2]  from {vector}", "i32[2]  from {place}"),
    ),
    many_indices=value_error(
        lambda: tg.gather(vector(), tg.constant(np.arange(-1000, 0))),
        "gather: index -1000 is out of range for the size 2 of f32[2]",
        "use indices from 0 to 1",
        ("f32[2]  from {vector}", "i64[1000]  from {place}"),
    ),
    pending_begin=shape_error(
        lambda: tg.slice(vector(), tg.constant([0]) + 1, [2]),
        "slice: 2 elements from 1 on are not in axis 0 of f32[2]",
        "check begin and size against the shape",
        ("f32[2]  from {vector}",),
    ),
    pending_scatter=value_error(
        lambda: tg.tensor_scatter_nd_add(vector(), tg.constant([[1]]) + 1, [1.0]),
        "tensor_scatter_nd_add: index 2 is out of range for the size 2 of f32[2]",
        "use indices from 0 to 1",
        ("f32[2]  from {vector}", "i32[1,1]  from {place}"),
    ),
    rows_of_a_batch=value_error(
        lambda: tg.vectorized_map(lambda i: tg.gather(vector(), i), tg.constant([1, 2])),
        "gather: index 2 is out of range for the size 2 of f32[2]",
        "use indices from 0 to 1",
    ),
)
def test_pending_values_are_known_at_top_level(case):
    case.check()


def checked(call, *arguments):
    """A call of a function that is built with checks, with arguments that it does not know."""
    return lambda: tg.function(call, check_bounds=True)(*arguments)


def in_function(*arguments, fact, fix, kind=value_error):
    """A row of the table below: the lambda in the line before is called with the arguments."""
    return lambda call: kind(checked(call, *arguments), fact, fix, where=call)


@table(
    gather=in_function(
        tg.constant([0, 7]),
        fact="gather: index 7 is out of range for the size 2 of f32[2]",
        fix="use indices from 0 to 1",
    )(lambda i: tg.gather(vector(), i)),
    gather_of_bytes=in_function(
        tg.constant([0, 200], tg.uint8),
        fact="gather: index 200 is out of range for the size 2 of f32[2]",
        fix="use indices from 0 to 1",
    )(lambda i: tg.gather(vector(), i)),
    gather_of_long=in_function(
        tg.constant([2**40, 0], tg.int64),
        fact="gather: index 1099511627776 is out of range for the size 2 of f32[2]",
        fix="use indices from 0 to 1",
    )(lambda i: tg.gather(vector(), i)),
    gather_nd=in_function(
        tg.constant([[1, 0], [0, -1]]),
        fact="gather_nd: index -1 is out of range for the size 3 of f32[2,3]",
        fix="use indices from 0 to 2",
    )(lambda i: tg.gather_nd(tg.ones([2, 3]), i)),
    element=in_function(
        tg.constant(-3),
        fact="getitem: index -3 is out of range for axis 0 of f32[2]",
        fix="use an index from -2 to 1",
    )(lambda i: vector()[i]),
    moving_slice=in_function(
        tg.constant(1),
        fact="getitem: 2 elements from 1 on are not in axis 0 of f32[2]",
        fix="check begin and size against the shape",
    )(lambda i: vector()[i : i + 2]),
    slice=in_function(
        tg.constant([1]),
        fact="slice: 2 elements from 1 on are not in axis 0 of f32[2]",
        fix="check begin and size against the shape",
    )(lambda i: tg.slice(vector(), i, [2])),
    scatter=in_function(
        tg.constant([[1], [2]]),
        fact="scatter_nd: index 2 is out of range for the size 2 of f32[2]",
        fix="use indices from 0 to 1",
    )(lambda i: tg.scatter_nd(i, [1.0, 2.0], [2])),
    embedding=in_function(
        tg.constant([2]),
        fact="gather: index 2 is out of range for the size 2 of f32[2]",
        fix="use indices from 0 to 1",
    )(lambda i: tg.nn.embedding_lookup(vector(), i)),
    label=in_function(
        tg.constant([5]),
        fact="sparse_softmax_cross_entropy_with_logits: label 5 is out of range for 2 classes",
        fix="use labels from 0 to 1",
    )(lambda i: tg.nn.sparse_softmax_cross_entropy_with_logits(i, [[1.0, 2.0]])),
    divisor=in_function(
        tg.constant([1, 0]),
        fact="floormod: i32[] is divided by zero",
        fix=DIVISOR_FIX,
    )(lambda y: 7 % y),
    power=in_function(
        tg.constant([1, -2]),
        fact="pow: an integer tensor i32[2] has no power -2",
        fix="convert it: tg.cast(x, tg.float32)",
    )(lambda y: tg.constant([3, 4]) ** y),
    rows_of_a_batch=in_function(
        tg.constant([0, 7]),
        fact="gather: index 7 is out of range for the size 2 of f32[2]",
        fix="use indices from 0 to 1",
    )(lambda i: tg.vectorized_map(lambda k: tg.gather(vector(), k), i)),
)
def test_a_function_that_checks_bounds(case):
    case.check()


def test_a_function_that_checks_bounds_checks_those_that_it_calls():
    @tg.function
    def inner(x, i):
        return tg.gather(x, i)  # here

    @tg.custom_gradient
    def custom(x, i):
        return inner(x, i), lambda dy: (tg.gather(x, i) * dy * tg.ones([2]), None)

    def outer(x, i):
        return custom(x, i)

    case = value_error(
        lambda: tg.function(outer, check_bounds=True)(vector(), tg.constant(3)),
        "gather: index 3 is out of range for the size 2 of f32[2]",
        "use indices from 0 to 1",
        where=inner.python_function,
    )
    case.check()
    tg.function(outer)(vector(), tg.constant(3))  # clamped, as it is without the option
    assert inner.experimental_get_tracing_count() == 1


def test_bounds_of_methods_and_of_open_sizes_are_checked():
    class Table(tg.Module):
        def __init__(self):
            self.rows = tg.Variable(tg.ones([2, 3]))

        @tg.function(check_bounds=True, input_signature=[tg.TensorSpec([None], tg.int32)])
        def put(self, i):
            self.rows.assign(2.0 * self.rows)
            self.rows.scatter_nd_update(i[:, None], tg.zeros([1, 3]))  # here
            self.rows.assign(2.0 * self.rows)

    rows = Table()
    case = value_error(
        lambda: rows.put(tg.constant([2])),
        "scatter_nd_update: index 2 is out of range for the size 2 of f32[2,3]",
        "use indices from 0 to 1",
        where=Table.put.python_function,
    )
    case.check()
    np.testing.assert_array_equal(rows.rows, np.full([2, 3], 2.0))
    rows.put(tg.constant([1]))
    np.testing.assert_array_equal(rows.rows, [[8.0] * 3, [0.0] * 3])


@table(
    index=value_error(
        lambda: vector()[tg.constant(5)],
        "getitem: index 5 is out of range for axis 0 of f32[2]",
        "use an index from -2 to 1",
        ("f32[2]  from {vector}",),
    ),
    begin=shape_error(
        lambda: tg.slice(vector(), tg.constant([1]), [2]),
        "slice: 2 elements from 1 on are not in axis 0 of f32[2]",
        "check begin and size against the shape",
        ("f32[2]  from {vector}",),
    ),
)
def test_tensors_as_indices_out_of_range(case):
    case.check()
    case_in_a_function = tg.function(case.call)
    with pytest.raises(case.kind):
        case_in_a_function()


# ---------------------------------------------------------------- nan and infinity


numerics_error = cases_of(tg.errors.NumericsError, FloatingPointError)
FINITE = "keep the operands where the result is finite; tg.print shows their values"
ZEROS = np.zeros(2, np.float32)


def watched(call, *arguments):
    """A call of a function that checks numerics; by default its argument is two zeros."""
    return lambda: tg.function(call, check_numerics=True)(*(arguments or (ZEROS,)))


def first_of_two(x):
    y = tg.exp(x) / x  # here
    return tg.math.log(x) - y


def in_the_gradient(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.sqrt(x)  # here
    return tape.gradient(y, x)  # there


def in_a_function(x):
    return tg.function(by_itself)(x) + 1.0


def by_itself(x):
    return x / (x * x)  # here


@tg.custom_gradient
def with_a_gradient(x):
    return tg.math.log(x), lambda dy: dy / x  # here


@table(
    first=numerics_error(
        watched(first_of_two),
        "div: f32[2] holds nan or infinity, and the operands are finite",
        FINITE,
        ("f32[2]  from {place}", "f32[2]  (argument %x)"),
        where=first_of_two,
    ),
    derived=numerics_error(
        watched(in_the_gradient),
        "div: f32[2] holds nan or infinity, and the operands are finite; vjp derived it from this "
        "line",
        FINITE,
        # The cotangent comes of the line that asks for the gradient.
        (f"f32[2]  from {__file__}:{marked(in_the_gradient, '# there')}", "f32[2]  from {place}"),
        where=in_the_gradient,
    ),
    called=numerics_error(
        watched(in_a_function),
        "div: f32[2] holds nan or infinity, and the operands are finite",
        FINITE,
        ("f32[2]  (argument %x)", "f32[2]  from {place}"),
        where=by_itself,
    ),
    custom=numerics_error(
        watched(lambda x: with_a_gradient(x)),
        "log: f32[2] holds nan or infinity, and the operands are finite",
        FINITE,
        ("f32[2]  (argument %x)",),
        where=with_a_gradient.__wrapped__,
    ),
    nested=numerics_error(
        lambda: tg.function(lambda x: watched(by_itself, x)())(ZEROS),
        "div: f32[2] holds nan or infinity, and the operands are finite",
        FINITE,
        ("f32[2]  (argument %x)", "f32[2]  from {place}"),
        where=by_itself,
    ),
    row=numerics_error(
        lambda: tg.vectorized_map(tg.function(by_itself, check_numerics=True), tg.constant(ZEROS)),
        "div: f32[] holds nan or infinity, and the operands are finite",
        FINITE,
        ("f32[]  (argument %x)", "f32[]  from {place}"),
        where=by_itself,
    ),
)
def test_a_function_that_checks_numerics(case):
    case.check()


def test_what_is_not_finite_from_the_start_is_no_failure():
    x = tg.constant([0.0, np.inf, np.nan])
    f = tg.function(lambda x: tg.nn.relu(x * 2.0) - np.inf, check_numerics=True)
    np.testing.assert_array_equal(f(x), [-np.inf, np.nan, np.nan])
    masked = tg.function(
        tg.grad(lambda x: tg.reduce_sum(tg.where(x > 0, tg.sqrt(x), 0.0))), check_numerics=True
    )
    np.testing.assert_array_equal(masked(tg.constant([0.0, 4.0])), [0.0, 0.25])
    assert tg.function(lambda x: x + 1, check_numerics=True)(tg.constant(1)).numpy() == 2


def test_no_variable_is_assigned_where_numerics_fail():
    v, steps = tg.Variable([1.0, 2.0]), tg.Variable(0)

    @tg.function(check_numerics=True, input_signature=[tg.TensorSpec([None])])
    def update(x):
        steps.assign_add(1)
        v.assign_sub(tg.reduce_mean(1.0 / x) * v)

    with pytest.raises(FloatingPointError, match="div"):
        update(tg.constant([1.0, 0.0, 2.0]))
    np.testing.assert_array_equal(v, [1.0, 2.0])
    assert steps.numpy() == 0
    update(tg.constant([2.0]))
    np.testing.assert_array_equal(v, [0.5, 1.0])
    assert steps.numpy() == 1


def test_watching_costs_two_outputs_and_keeps_derivatives():
    f = tg.function(lambda x: tg.reduce_sum(with_a_gradient(tg.exp(x)) ** 2), check_numerics=True)
    x = tg.constant([1.0, 2.0])
    assert len(f.graph(x).outputs) == 3
    np.testing.assert_allclose(tg.grad(f)(x), [2.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(tg.function(tg.grad(f))(x), [2.0, 4.0], rtol=1e-6)
    tg.Graph.from_text(f.graph(x).as_text(locations=True)).verify()


# ---------------------------------------------------------------- tracebacks


def inner(x):
    return x @ tg.ones([3])


def frames_of(call):
    with pytest.raises(Exception) as caught:
        call()
    error = caught.value
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return error, names[names.index("<lambda>") :]


def test_a_traceback_has_the_frames_of_the_user():
    f = tg.function(lambda x: inner(x))
    outer = tg.function(lambda x: f(x) * 2.0)
    call = lambda: outer(tg.ones([2, 2]))  # noqa: E731 - its name is looked for
    error, names = frames_of(call)
    assert names == ["<lambda>", "<lambda>", "<lambda>", "inner"]
    assert isinstance(error, ShapeError) and error.__cause__ is None
    assert is_filtering()
    tg.debugging.disable_traceback_filtering()
    try:
        assert not is_filtering() and len(frames_of(call)[1]) > 15
    finally:
        tg.debugging.enable_traceback_filtering()


def differentiated(x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(x)
    return tape.gradient(y, "x")


@pytest.mark.parametrize(
    "enter",
    [
        lambda f, x: f.get_concrete_function(x),
        lambda f, x: f.graph(x),
        lambda f, x: f.experimental_get_compiler_ir(x),
        lambda f, x: tg.grad(f)(x),
        lambda f, x: tg.value_and_grad(f)(x),
        lambda f, x: tg.jacobian(f)(x),
        lambda f, x: tg.hessian(f)(x),
        lambda f, x: tg.jvp(f, (x,), (x,)),
        lambda f, x: tg.vjp(f, x),
        lambda f, x: tg.hvp(f, (x,), (x,)),
        lambda f, x: tg.linearize(f, x),
        lambda f, x: tg.vmap(f)(x),
        lambda f, x: tg.vectorized_map(f, x),
        lambda f, x: tg.pfor(lambda i: f(x), 3),
        lambda f, x: tg.custom_gradient(lambda x: (f(x), lambda g: g))(x),
        lambda f, x: tg.recompute_grad(f)(x),
        lambda f, x: differentiated(x),
        lambda f, x: tg.function(tg.sin).get_concrete_function(x)("x"),
        lambda f, x: tg.saved_model.load("nothing"),
        lambda f, x: tg.saved_model.save(3, "nothing"),
        lambda f, x: tg.train.Checkpoint().restore("nothing"),
        lambda f, x: tg.train.list_variables("nothing"),
    ],
)
def test_all_entry_points_leave_our_frames_out(enter):
    f = tg.function(inner)
    error, _ = frames_of(lambda: enter(f, tg.ones([2, 2])))
    house = os.path.dirname(tg.__file__)
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert not any(file.startswith(house) for file in files)
    assert error.__cause__ is None and f"{__file__}:" in str(error)


class Dividing(tg.Module):
    def __call__(self, x):
        return x / self.nothing  # there is none

    @tg.Module.with_name_scope
    def ratio(self):
        return 1 / 0


class Saved(tg.Module):
    def __init__(self):
        super().__init__()
        self.weight = tg.Variable(1.0)

    @tg.function(input_signature=[tg.TensorSpec([2])])
    def __call__(self, x):
        return x * self.weight


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A loaded module, and one that stands for a dict."""
    path = tmp_path_factory.mktemp("saved")
    tg.saved_model.save(Saved(), path / "module")
    tg.saved_model.save({"a": tg.Variable(1.0)}, path / "dict")
    return tg.saved_model.load(path / "module"), tg.saved_model.load(path / "dict")


TOP_LEVEL = {
    "matmul": lambda m, d: tg.matmul(tg.ones([2]), tg.ones([3])),
    "tile": lambda m, d: tg.tile([1.0], [10**18]),
    "normal": lambda m, d: tg.random.normal([10**18]),
    "Variable": lambda m, d: tg.Variable("a"),
    "layer": lambda m, d: tg.layers.Dense(2)(tg.ones([])),
    "print": lambda m, d: tg.print(1, summarize="x"),
    "full disk": lambda m, d: tg.function(tg.sin).graph(tg.ones([])).to_html("/dev/full"),
    "no folder": lambda m, d: tg.function(tg.sin).graph(tg.ones([])).to_html("/no/folder/x.html"),
    "open sizes": lambda m, d: tg.function(tg.sin).experimental_get_compiler_ir(
        tg.TensorSpec([None])
    ),
    "optimizer": lambda m, d: setattr(tg.optimizers.SGD(0.1), "learning_rate", "0.1"),
    "former name": lambda m, d: setattr(tg.optimizers.SGD(0.1), "lr", 0.1),
    "module": lambda m, d: Dividing()(tg.ones([])),
    "method of a module": lambda m, d: Dividing().ratio(),
    "apply_layouts": lambda m, d: m.apply_layouts({"wight": []}),
    "set_weights": lambda m, d: tg.layers.Dense(2).set_weights([1.0]),
    "Sequential.add": lambda m, d: tg.Sequential().add(3),
    "optimizer.build": lambda m, d: tg.optimizers.SGD(0.1).build([3]),
    "with_rank": lambda m, d: tg.TensorShape([3]).with_rank(2),
    "loaded module": lambda m, d: m(tg.ones([3])),
    "loaded attribute": lambda m, d: m.nothing,
    "loaded dict": lambda m, d: d["b"],
    "assigned to a loaded dict": lambda m, d: d.__setitem__("b", 1),
}


@pytest.mark.parametrize("call", TOP_LEVEL.values(), ids=TOP_LEVEL)
def test_errors_at_top_level_have_the_frames_of_the_user(call, loaded):
    error, _ = frames_of(lambda: call(*loaded))
    assert {frame.filename for frame in traceback.extract_tb(error.__traceback__)} == {__file__}


VECTOR, MATRIX = tg.Variable([1.0, 2.0]), tg.ones([2, 2])
ESCAPED = []
tg.function(ESCAPED.append)(tg.ones([2]))
OPERATORS = {
    "+": lambda: MATRIX + tg.ones([3, 3]),
    "+ of a Variable": lambda: VECTOR + "a",
    "* of a list": lambda: [1.0, 2.0, 3.0] * MATRIX,
    "/": lambda: MATRIX / tg.ones([3]),
    "//": lambda: 2 // tg.constant(True),
    "**": lambda: MATRIX ** tg.ones([3]),
    "@": lambda: VECTOR @ tg.ones([3, 3]),
    "<": lambda: tg.ones([3]) > MATRIX,
    "==": lambda: tg.constant([1, 2]) == MATRIX,
    "&": lambda: MATRIX & MATRIX,
    "-x": lambda: -tg.constant(True),
    "~x": lambda: ~MATRIX,
    "abs": lambda: abs(tg.constant(True)),
    "round": lambda: round(MATRIX, "a"),
    "x[i]": lambda: MATRIX[7],
    "v[i]": lambda: VECTOR[5],
    "len": lambda: len(tg.constant(1.0)),
    "list": lambda: list(tg.constant(1.0)),
    "bool": lambda: bool(MATRIX),
    "float": lambda: float(VECTOR),
    "array @": lambda: np.ones([2, 3], np.float32) @ MATRIX,
    "np.asarray": lambda: np.asarray(ESCAPED[0]),
    "np.add(out)": lambda: np.add(MATRIX, 1.0, out=(MATRIX,)),
    "x.numpy": lambda: ESCAPED[0].numpy(),
    "x[i] =": lambda: operator.setitem(MATRIX, 0, 1.0),
    "del x[i]": lambda: operator.delitem(MATRIX, 0),
    "v[i] =": lambda: operator.setitem(VECTOR, 0, 1.0),
    "hash": lambda: hash(VECTOR),
    "decorator": lambda: tg.function(input_signature=3)(inner),
    "Graph.from_text": lambda: tg.Graph.from_text("no graph"),
}


@pytest.mark.parametrize("call", OPERATORS.values(), ids=OPERATORS)
def test_errors_of_operators_have_the_frames_of_the_user(call):
    error, _ = frames_of(lambda: call())
    assert {frame.filename for frame in traceback.extract_tb(error.__traceback__)} == {__file__}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_of_callbacks_have_the_frames_of_the_user(kind):
    is_armed = False

    def callback(x):
        if is_armed:
            raise kind()
        return x

    f = tg.function(lambda x: tg.py_function(callback, [x], tg.TensorSpec([])) + 1.0)
    x = tg.constant(1.0)
    for _ in range(2):
        assert f(x).numpy() == 2.0
    is_armed = True
    for call in (lambda: f(x), lambda: f(1.0), lambda: tg.py_function(callback, [x], tg.float32)):
        with pytest.raises(kind) as caught:
            call()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert {frame.filename for frame in frames} == {__file__}


def test_a_result_that_finds_no_memory_has_the_frames_of_the_user():
    f = tg.function(lambda: tg.zeros([1 << 45]))
    error, _ = frames_of(lambda: f())
    assert isinstance(error, tg.errors.LoweringError) and "memory" in str(error)
    assert {frame.filename for frame in traceback.extract_tb(error.__traceback__)} == {__file__}


def test_a_traceback_keeps_causes_and_notes_and_what_is_not_the_users_fault(monkeypatch):
    def body(x):
        try:
            raise KeyError("first")
        except KeyError as cause:
            error = RuntimeError("second")
            error.add_note("a note")
            raise error from cause

    error, names = frames_of(lambda: tg.function(body)(tg.ones([2])))
    assert names == ["<lambda>", "body"]
    assert isinstance(error.__cause__, KeyError) and error.__notes__ == ["a note"]
    f = tg.function(inner)
    monkeypatch.setattr(f, "_request", None)  # a mistake of ours
    assert frames_of(lambda: f(tg.ones([2])))[1][-1] == "_find_and_run"


is_filtering = tg.debugging.is_traceback_filtering_enabled


# ---------------------------------------------------------------- where operands are from


@pytest.mark.parametrize("is_traced", [False, True])
def test_operands_that_are_variables_have_names(is_traced):
    layer = tg.layers.Dense(2, name="head")
    layer(tg.ones([1, 3]))
    call = tg.function(layer.__call__) if is_traced else layer
    with pytest.raises(ShapeError) as caught:
        call(tg.ones([1, 4]))
    assert "operand 1: f32[3,2]  (Variable 'kernel')" in str(caught.value)


# ---------------------------------------------------------------- transformations of functions


ONE_EACH = "give one tangent for each primal"
POSITIONS = "give positions of arguments, counted from 0"
HAS_AUX = "return the loss alone, or (loss, aux) with has_aux=True"


def twice(p):
    return tg.nest.map_structure(lambda x: 2.0 * x, p)


@table(
    key_too_many=gradient_error(
        lambda: tg.jvp(twice, ({"a": vector()},), ({"a": vector(), "b": vector()},)),
        "the primals have the structure ({'a': '*'},), and the tangents ({'a': '*', 'b': '*'},)",
        ONE_EACH,
    ),
    other_key=gradient_error(
        lambda: tg.hvp(lambda p: p["a"][0], ({"a": vector()},), ({"b": vector()},)),
        "the primals have the structure ({'a': '*'},), and the tangents ({'b': '*'},)",
        ONE_EACH,
    ),
    dict_for_a_list=gradient_error(
        lambda: tg.linearize(twice, [vector()])[1]({"a": vector()}),
        "the primals have the structure (['*'],), and the tangents ({'a': '*'},)",
        ONE_EACH,
    ),
    dict_for_a_tensor=gradient_error(
        lambda: tg.jvp(twice, (vector(),), ({"a": vector()},)),
        "the primals have the structure ('*',), and the tangents ({'a': '*'},)",
        ONE_EACH,
    ),
    shape_of_a_direction=gradient_error(
        lambda: tg.linearize(tg.reduce_sum, vector())[1](tg.ones([3])),
        "a tangent is f32[3] and its primal is f32[2]",
        "give a tangent of the shape and the dtype of its primal",
        ("f32[3]  from {place}",),
    ),
    dtype_of_a_direction=gradient_error(
        lambda: tg.linearize(tg.reduce_sum, vector())[1](tg.ones([2], tg.float64)),
        "a tangent is f64[2] and its primal is f32[2]",
        "give a tangent of the shape and the dtype of its primal",
        ("f64[2]  from {place}",),
    ),
    structure_of_a_cotangent=gradient_error(
        lambda: tg.vjp(lambda x: {"a": x, "b": x}, vector())[1]({"a": vector()}),
        "the cotangent has the structure {'a': '*'}, and the result {'a': '*', 'b': '*'}",
        "give one cotangent for each tensor of the result, packed like it",
    ),
    tuple_of_results=gradient_error(
        lambda: tg.grad(lambda x: (x[0], x[1]))(vector()),
        "the function returned a tuple of 2, and a gradient needs one floating scalar",
        HAS_AUX,
    ),
    dict_of_results=gradient_error(
        lambda: tg.value_and_grad(lambda x: {"loss": x[0]})(vector()),
        "the function returned a dict of 1, and a gradient needs one floating scalar",
        HAS_AUX,
    ),
    no_result=gradient_error(
        lambda: tg.grad(lambda x: None)(vector()),
        "the function returned None, and a gradient needs one floating scalar",
        HAS_AUX,
    ),
    tuple_beside_aux=gradient_error(
        lambda: tg.grad(lambda x: ((x[0], x[1]), 1), has_aux=True)(vector()),
        "the function returned a tuple of 2 as the first of the pair, and a gradient needs one "
        "floating scalar",
        "return the loss alone as the first of the pair",
    ),
    integer_result=gradient_error(
        lambda: tg.grad(lambda x: tg.argmax(x))(vector()),
        "the function returned i64[], and a gradient needs one floating scalar",
        "compute the loss with floating numbers: there is no derivative of int64",
        ("i64[]  from {place}",),
    ),
    position_is_a_name=dtype_error(
        lambda: tg.grad(twice, argnums="x")(1.0),
        "argnums is 'x', and it must be an int or a sequence of ints",
        f"{POSITIONS}; the arguments go to the function that is returned: tg.grad(fn)(x)",
    ),
    position_is_a_truth_value=dtype_error(
        lambda: tg.grad(lambda x, y: x * y, argnums=True)(1.0, 2.0),
        "argnums is True, and it must be an int or a sequence of ints",
        f"{POSITIONS}; the arguments go to the function that is returned: tg.grad(fn)(x)",
    ),
)
def test_doors_of_derivatives(case):
    case.check()


def test_lists_stand_for_arrays_in_tangents_and_cotangents():
    primal = {"a": vector(), "b": [vector()]}
    tangent = {"a": [1.0, 0.0], "b": ([0.0, 1.0],)}
    _, found = tg.jvp(twice, (primal,), [tangent])
    _, pull = tg.vjp(twice, primal)
    for pushed in (found, pull(tangent)[0]):
        np.testing.assert_array_equal(pushed["a"], [2.0, 0.0])
        np.testing.assert_array_equal(pushed["b"][0], [0.0, 2.0])


# ---------------------------------------------------------------- custom gradients


def too_few(x, y):
    return x * y, lambda dy: dy  # here


def another_shape(x):
    return x * 1.0, lambda dy: tg.reduce_sum(dy)  # here


def another_dtype(x):
    return x * 1.0, lambda dy: tg.cast(dy, tg.float64)  # here


def no_gradient_at_all(x):
    return x * 1.0, lambda dy: "text"  # here


def no_function(x):
    return x * 2.0, 3


def no_pair(x):
    return x.shape[0]


def takes_more(x):
    return x * 1.0, lambda dy, more: dy  # here


def prints_gradient(dy):
    tg.print("back")  # here
    return dy


def prints_backwards(x):
    return x * 1.0, prints_gradient


def checks_gradient(dy):
    tg.debugging.assert_all_finite(dy, "not finite")  # here
    return dy


def checks_backwards(x):
    return x * 1.0, checks_gradient


def assigns_backwards(x):
    v = WEIGHT
    return x * 1.0, lambda dy: (v.assign(tg.reduce_sum(dy)), dy)[1]  # here


def no_pair_of_gradients(x):
    return x * WEIGHT, lambda dy, variables=None: dy  # here


def too_many_for_variables(x):
    return x * WEIGHT, lambda dy, variables=None: (dy, [None, None])  # here


def another_shape_for_a_variable(x):
    return x * WEIGHT, lambda dy, variables=None: (dy, [dy])  # here


def clips(x):
    return x * 1.0, lambda dy: tg.clip_by_value(dy, -1.0, 1.0)  # here


WEIGHT = tg.Variable(2.0, name="weight")
GRADIENT_FIX = "return a gradient of the shape and dtype of each argument"
COUNT_FIX = "return one gradient for each argument, None where there is none"


PURE_FIX = "let it compute gradients alone, and print or check the gradients outside"


def custom(function, count=1):
    """A call of the function with a custom gradient."""
    return lambda: tg.custom_gradient(function)(*[vector() for _ in range(count)])


@table(
    too_few=gradient_error(
        custom(too_few, 2),
        "custom gradient too_few: its backward function returned 1 gradient for 2 arguments",
        COUNT_FIX,
        where=too_few,
    ),
    shape=gradient_error(
        custom(another_shape),
        "custom gradient another_shape: its gradient of 'x' is f32[], and the argument is f32[2]",
        GRADIENT_FIX,
        where=another_shape,
    ),
    dtype=gradient_error(
        custom(another_dtype),
        "custom gradient another_dtype: its gradient of 'x' is f64[2], and the argument is f32[2]",
        GRADIENT_FIX,
        where=another_dtype,
    ),
    text=gradient_error(
        custom(no_gradient_at_all),
        "custom gradient no_gradient_at_all: its gradient of 'x' is not a tensor: a str cannot be a "
        "tensor: 'text'",
        GRADIENT_FIX,
        where=no_gradient_at_all,
    ),
    second_is_no_function=source_error(
        custom(no_function),
        "custom gradient no_function: it returned a tuple, (<tg.Tensor: shape=(2,), "
        "dtype=float32>, 3), and not a pair of outputs and a backward function",
        "return y, grad, where grad(dy) gives one gradient per argument",
        where=no_function,
    ),
    pair=source_error(
        custom(no_pair),
        "custom gradient no_pair: it returned an int, 2, and not a pair of outputs and a backward "
        "function",
        "return y, grad, where grad(dy) gives one gradient per argument",
        where=no_pair,
    ),
    takes_more=gradient_error(
        custom(takes_more),
        "custom gradient takes_more: its backward function does not take 1 cotangent, one for "
        "each output: missing a required argument: 'more'",
        "let it take one argument for each output",
        where=takes_more,
    ),
    prints=gradient_error(
        custom(prints_backwards),
        "custom gradient prints_backwards: its backward function prints, checks, calls Python or "
        "assigns a Variable",
        PURE_FIX,
        where=prints_gradient,
    ),
    checks=gradient_error(
        custom(checks_backwards),
        "custom gradient checks_backwards: its backward function prints, checks, calls Python or "
        "assigns a Variable",
        PURE_FIX,
        where=checks_gradient,
    ),
    assigns=gradient_error(
        custom(assigns_backwards),
        "custom gradient assigns_backwards: its backward function prints, checks, calls Python or "
        "assigns a Variable",
        PURE_FIX,
        where=assigns_backwards,
    ),
    pair_of_gradients=gradient_error(
        custom(no_pair_of_gradients),
        "custom gradient no_pair_of_gradients: its backward function returned a Tensor, and not a "
        "pair of gradients and variable gradients",
        "return (gradients, variable_gradients)",
        where=no_pair_of_gradients,
    ),
    variable_gradients=gradient_error(
        custom(too_many_for_variables),
        "custom gradient too_many_for_variables: its backward function returned 2 variable "
        "gradients for 1 variable",
        "return one gradient for each of `variables`, None where there is none",
        where=too_many_for_variables,
    ),
    shape_for_a_variable=gradient_error(
        custom(another_shape_for_a_variable),
        "custom gradient another_shape_for_a_variable: its gradient of 'weight:0' is f32[2], and "
        "the argument is f32[]",
        GRADIENT_FIX,
        where=another_shape_for_a_variable,
    ),
    forward_mode=rule_error(
        lambda: tg.jvp(tg.custom_gradient(clips), (vector(),), (vector(),)),
        "a custom gradient has no forward mode: minimum is not linear in the cotangent",
        "make the backward function linear in its cotangents, or use reverse mode",
        where=clips,
    ),
    no_function=trace_error(
        lambda: tg.custom_gradient(3),
        "3 is not a callable object",
        "decorate a function",
    ),
    recompute_no_function=trace_error(
        lambda: tg.recompute_grad("f"),
        "'f' is not a callable object",
        "decorate a function",
    ),
    pass_no_function=trace_error(
        lambda: tg.grad_pass_through(None),
        "None is not a callable object",
        "decorate a function",
    ),
)
def test_custom_gradients(case):
    case.check()
    assert float(tg.grad(tg.custom_gradient(lambda x: (x, lambda dy: dy * 2.0)))(1.0)) == 2.0
    assert WEIGHT.numpy() == 2.0


def prevented():
    x = tg.constant(1.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.raw_ops.PreventGradient(input=x, message="use the other loss")  # here
    return tape.gradient(y, x)


def test_prevented_gradient():
    rule_error(
        prevented,
        "prevent_gradient: the gradient is explicitly disabled here: use the other loss",
        "remove this op from the path, or wrap its input in tg.stop_gradient",
    ).check()


@table(
    nothing_to_differentiate=gradient_error(
        lambda: tg.testing.check_gradients(tg.sin, 1),
        "check_gradients: no argument is a floating tensor",
        "pass floating numbers to differentiate by",
    ),
    no_result=gradient_error(
        lambda: tg.testing.check_gradients(lambda x: tg.cast(x, tg.int32), 1.0),
        "check_gradients: the function returned no floating tensor, so it has no derivative",
        "return what is to be differentiated",
    ),
    order=gradient_error(
        lambda: tg.testing.check_gradients(tg.sin, 1.0, order=0),
        "check_gradients: the order is 0",
        "give a positive integer",
    ),
    modes=gradient_error(
        lambda: tg.testing.check_gradients(tg.sin, 1.0, modes=["sideways"]),
        "check_gradients: the modes are ['sideways']",
        'give ("reverse", "forward"), or one of them',
    ),
)
def test_check_gradients(case):
    case.check()


def sparse_jacobian():
    x = tg.constant([1.0, 2.0])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.jacobian(y, x, sparse=True)


def taken_for_an_array(call, op=""):
    return dtype_error(
        call,
        f"{op}a sparse Jacobian of shape (2, 2) with 2 entries was taken for an array",
        "use j.to_dense() or j.to_scipy(), or j.values for the entries alone",
        ("f32[2]  from {place}", "<tg.SparseJacobian: shape=(2, 2), nnz=2, colors=1, dtype=...")
        if op
        else (),
    )


@table(
    asarray=taken_for_an_array(lambda j: np.asarray(j)),
    norm=taken_for_an_array(lambda j: np.linalg.norm(j)),
    operand_of_an_array=taken_for_an_array(lambda j: np.ones((2, 2)) + j),
    operand_of_a_function=taken_for_an_array(lambda j: np.sin(j)),
    tensor=taken_for_an_array(lambda j: tg.reduce_sum(j)),
    operand_of_a_tensor=taken_for_an_array(lambda j: tg.ones([2]) + j, "add: "),
)
def test_sparse_jacobian_is_no_array(case):
    j = sparse_jacobian()
    case.check(j)
    assert (j @ np.ones(2)).numpy().tolist() == [2.0, 4.0]


def add_in_place(x):
    total = np.zeros(2)
    total += x  # here
    return total


@table(
    traced=trace_error(
        lambda: tg.function(add_in_place)(tg.ones([2])),
        "writing into a NumPy array needs the value of a tensor f32[2], which has none while "
        "tracing",
        "write a = a + x in place of a += x: that gives a tensor",
        ("f32[2]  (argument %x)",),
        add_in_place,
    ),
    tensor=trace_error(
        lambda: np.add(np.ones(2), 1.0, out=tg.ones([2])),
        "np.add was told to write into a tensor f32[2], and tensors never change",
        "take the result that is returned, or use v.assign(value) of a tg.Variable",
    ),
    variable=trace_error(
        lambda: np.negative(np.ones(2), out=tg.Variable([1.0, 2.0])),
        "np.negative was told to write into a tensor f32[2], and tensors never change",
        "take the result that is returned, or use v.assign(value) of a tg.Variable",
    ),
)
def test_what_numpy_cannot_write(case):
    case.check()
    assert add_in_place(tg.ones([2])).tolist() == [1.0, 1.0]


@table(
    several=shape_error(
        lambda: tg.linalg.diag([[1.0], [2.0]], k=(0, 2)),
        "diag: f32[2,1] has no rows for the 3 diagonals 0 to 2",
        "give 3 rows, or another k",
        ("f32[2,1]",),
    ),
    small=shape_error(
        lambda: tg.linalg.diag([1.0, 2.0], k=1, num_rows=2, num_cols=2),
        "diag: f32[2] cannot be diagonal 1 of 2 rows and 2 columns",
        "give num_rows=2 and num_cols=3, or more of one of the two",
        ("f32[2]",),
    ),
    large=shape_error(
        lambda: tg.linalg.diag([1.0, 2.0], num_rows=3, num_cols=3),
        "diag: f32[2] cannot be diagonal 0 of 3 rows and 3 columns",
        "give num_rows=2 and num_cols=2, or more of one of the two",
        ("f32[2]",),
    ),
    padding=shape_error(
        lambda: tg.linalg.diag([1.0, 2.0], padding_value=[1.0, 2.0]),
        "diag: the padding value is f32[2]",
        "give one number",
        ("f32[2]",),
    ),
)
def test_diagonals(case):
    case.check()


# ---------------------------------------------------------------- names of arguments


class OfTheUser(tg.layers.Dense):
    def __init__(self):
        super().__init__(2, bias=False)  # here


@pytest.mark.sampled(18)
@table(
    numpy=trace_error(
        lambda: tg.reduce_sum([1.0], dim=0),
        "reduce_sum: there is no argument 'dim'",
        "use axis in place of dim",
    ),
    several=trace_error(
        lambda: tg.reduce_max([1.0], dim=0, keepdim=True),
        "reduce_max: there are no arguments 'dim' and 'keepdim'",
        "use axis in place of dim, and use keepdims in place of keepdim",
    ),
    operand=trace_error(
        lambda: tg.exp(input=1.0),
        "exp: there is no argument 'input'",
        "use x in place of input",
    ),
    shape=trace_error(
        lambda: tg.zeros(size=[2]),
        "zeros: there is no argument 'size'",
        "use shape in place of size",
    ),
    optimizer=trace_error(
        lambda: tg.optimizers.Adam(lr=0.1),
        "Adam: there is no argument 'lr'",
        "use learning_rate in place of lr",
    ),
    inherited=trace_error(
        lambda: tg.layers.AveragePooling2D(kernel_size=3),
        "AveragePooling2D: there is no argument 'kernel_size'",
        "use pool_size in place of kernel_size",
    ),
    subclass=trace_error(
        lambda: OfTheUser(),
        "Dense: there is no argument 'bias'",
        "use use_bias in place of bias",
        where=OfTheUser.__init__,
    ),
    method=trace_error(
        lambda: tg.Variable(1.0).assign_add(1.0, use_lock=True),
        "Variable.assign_add: there is no argument 'use_lock'",
        "use use_locking in place of use_lock",
    ),
    tape=trace_error(
        lambda: tg.GradientTape().gradient(loss=1.0, variables=[]),
        "GradientTape.gradient: there are no arguments 'loss' and 'variables'",
        "use target in place of loss, and use sources in place of variables",
    ),
    context=trace_error(
        lambda: tg.name_scope(nme="a"),
        "name_scope: there is no argument 'nme'",
        "use name in place of nme",
    ),
    misspelt=trace_error(
        lambda: tg.matmul([[1.0]], [[1.0]], trans_b=True),
        "matmul: there is no argument 'trans_b'",
        "use transpose_b in place of trans_b",
    ),
    begun=trace_error(
        lambda: tg.Variable(1.0, train=False),
        "Variable: there is no argument 'train'",
        "use trainable in place of train",
    ),
    begun_like_another=trace_error(
        lambda: tg.layers.LSTM(3, return_seq=True),
        "LSTM: there is no argument 'return_seq'",
        "use return_sequences in place of return_seq",
    ),
    pair=trace_error(
        lambda: tg.IndexedSlices([[1.0]], indexes=[0]),
        "IndexedSlices: there is no argument 'indexes'",
        "use indices in place of indexes",
    ),
    not_here=trace_error(
        lambda: tg.sqrt(1.0, out=None),
        "sqrt: there is no argument 'out'",
        "take the result that is returned",
    ),
    unknown=trace_error(
        lambda: tg.reduce_sum([1.0], dim=0, qwerty=1),
        "reduce_sum: there are no arguments 'dim' and 'qwerty'",
        "give input_tensor; the options are axis, keepdims and name",
    ),
    missing=trace_error(
        lambda: tg.split([1.0, 2.0]),
        "split: the argument 'num_or_size_splits' is missing",
        "give value and num_or_size_splits; the options are axis, num and name",
    ),
    several_missing=trace_error(
        lambda: tg.where(name="a"),
        "where: the argument 'condition' is missing",
        "give condition; the options are x, y and name",
    ),
    too_many=trace_error(
        lambda: tg.exp(1.0, None, 2),
        "exp: it takes 2 arguments by position, and 3 were given",
        "give x; the option is name",
    ),
    none_of_a_layer=trace_error(
        lambda: tg.layers.LSTM(3)(), "LSTM: the argument 'sequences' is missing", "give sequences"
    ),
    twice_of_a_layer=trace_error(
        lambda: tg.layers.Dense(3)([[1.0]], inputs=[[1.0]]),
        "Dense: the argument 'inputs' is given by position and by name",
        "give it once: by position, argument 1 is inputs",
    ),
    name_of_a_weight=trace_error(
        lambda: tg.layers.Layer().add_weight("kernel", shape=[2, 4]),
        "Layer.add_weight: the argument 'shape' is given by position and by name",
        "give it once: by position, argument 1 is shape",
    ),
    none_of_an_optimizer=trace_error(
        lambda: tg.optimizers.SGD().apply_gradients(),
        "Optimizer.apply_gradients: the argument 'grads_and_vars' is missing",
        "give grads_and_vars; the option is name",
    ),
    too_many_of_a_class=trace_error(
        lambda: tg.initializers.Ones(3),
        "Ones: it takes 0 arguments by position, and 1 was given",
        "leave it out",
    ),
    twice=trace_error(
        lambda: tg.reduce_sum([1.0], 0, axis=0),
        "reduce_sum: the argument 'axis' is given by position and by name",
        "give it once: by position, argument 2 is axis",
    ),
)
@pytest.mark.parametrize("is_traced", [False, True], ids=["top level", "function"])
def test_arguments_by_other_names(case, is_traced):
    if not is_traced:
        case.check()
        return
    error, _ = frames_of(lambda: tg.function(lambda: case.call())())
    assert str(error) == case.message()
    assert our_frames(error) == []


def public_functions():
    modules = (tg, *(x for x in map(vars(tg).get, dir(tg)) if isinstance(x, types.ModuleType)))
    for module in modules:
        for name in dir(module):
            if not name.startswith("_") and isinstance(getattr(module, name), types.FunctionType):
                yield f"{module.__name__}.{name}", getattr(module, name)


PUBLIC = dict(public_functions())


def test_every_public_function_names_the_argument_that_is_meant():
    for path, function in PUBLIC.items():  # a test for each would mostly run pytest
        try:
            check_wrong_names_of(function)
        except BaseException as error:
            error.add_note(f"while calling {path}")
            raise


def check_wrong_names_of(function):
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    given = [1 for p in needed if p.kind is p.POSITIONAL_ONLY]
    required = {p.name: 1 for p in needed if p.kind is not p.POSITIONAL_ONLY}
    with pytest.raises(
        TypeError, match=r"there is no argument 'qwerty'\n  at .*\n  fix: "
    ) as caught:
        function(*given, **required, qwerty=1)
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 2  # ours, and one of the house
    options = [p for p in parameters if p.default is not p.empty and len(p.name) > 3]
    for name in [p.name for p in options if p.kind is not p.POSITIONAL_ONLY]:
        with pytest.raises(TypeError, match=f"fix: use .*{name} in place of {name}_$"):
            function(*given, **required, **{f"{name}_": 1})
    assert pickle.loads(pickle.dumps(function)) is function
    assert inspect.unwrap(function).__doc__ == function.__doc__


def test_a_type_error_of_the_users_own_is_left_as_it_is():
    def own(x, scale):
        return x * scale

    # Since Python 3.13 it also suggests the right name.
    fact = r"^[^\n]*own\(\) got an unexpected keyword argument 'scal'(\. Did you mean 'scale'\?)?$"
    with pytest.raises(TypeError, match=fact):
        tg.vectorized_map(lambda x: own(x, scal=1.0), tg.ones([2]))
    with pytest.raises(TypeError, match=r"^mine$"):
        tg.nest.map_structure(raises_mine, [1])


def raises_mine(x):
    raise TypeError("mine")


def test_arguments_of_a_function_by_other_names():
    @tg.function
    def scaled(x, axis=0):
        return x * axis

    with pytest.raises(TraceError, match=r"\n  fix: use axis in place of dim$"):
        scaled(tg.ones([2]), dim=1)
    with pytest.raises(TraceError, match=r"\n  fix: use x in place of input$"):
        scaled(input=tg.ones([2]))
    assert scaled(tg.ones([2]), axis=3).numpy().tolist() == [3.0, 3.0]


# ---------------------------------------------------------------- beginners


def attribute_error(call, *message, **where):
    return Case(call, AttributeError, AttributeError, *message, **where)


class WithoutBase(tg.layers.Layer):
    def __init__(self):
        self.inner = tg.layers.Dense(3)

    def call(self, inputs):
        return self.inner(inputs)


class OptimizerWithoutBase(tg.optimizers.Optimizer):
    def __init__(self):
        self.rate = 0.1


LAYERS_FIX = "give a list of layers: tg.layers.Sequential([tg.layers.Dense(2)])"
CONCAT_FIX = "give the tensors as one list, and then the axis: tg.concat([x, y], 0)"


@pytest.mark.sampled(15)
@table(
    no_super_init=attribute_error(
        lambda: WithoutBase()(tg.ones([2, 3])),
        "a WithoutBase has no attribute 'dtype': its __init__ does not call that of its base class",
        "begin __init__ with super().__init__()",
    ),
    no_super_init_of_an_optimizer=attribute_error(
        lambda: OptimizerWithoutBase().learning_rate,
        "an OptimizerWithoutBase has no attribute '_learning_rate': its __init__ does not call "
        "that of its base class",
        "begin __init__ with super().__init__()",
    ),
    weights_before_the_first_call=attribute_error(
        lambda: tg.layers.Dense(2).kernel,
        "a Dense has no attribute 'kernel' yet: a layer makes its variables when it is called "
        "first",
        "call it before",
    ),
    fit=attribute_error(
        lambda: tg.layers.Sequential([tg.layers.Dense(2)]).fit(1, 2),
        "a Sequential has no attribute 'fit': training is a loop of your own",
        "compute the loss under a tg.GradientTape in a @tg.function, and use optimizer.minimize",
    ),
    step=attribute_error(
        lambda: tg.optimizers.Adam(0.1).step(),
        "an Adam has no attribute 'step': steps take gradients",
        "use optimizer.apply_gradients(zip(gradients, variables)), or optimizer.minimize",
    ),
    method_of_torch=attribute_error(
        lambda: tg.ones([2]).unsqueeze(0),
        "a Tensor has no attribute 'unsqueeze'",
        "use tg.expand_dims(x, axis)",
    ),
    layers_without_a_list=dtype_error(
        lambda: tg.layers.Sequential(abs, max),
        "Sequential: layers are one list, and it was given <built-in function max>, which is a "
        "builtin_function_or_method",
        LAYERS_FIX,
    ),
    class_for_a_layer=dtype_error(
        lambda: tg.layers.Sequential([tg.layers.Flatten]),
        "Sequential: a layer is an object, and not its class, and it was given <class "
        "'tracegraph.layers.Flatten'>, which is a type",
        "make one: Flatten(...)",
    ),
    layer_without_inputs=trace_error(
        lambda: tg.layers.Dense(2)(),
        "Dense: the argument 'inputs' is missing",
        "give inputs",
    ),
    layer_of_two_inputs=trace_error(
        lambda: tg.layers.Dense(2)(1.0, 2.0),
        "Dense: it takes 1 argument by position, and 2 were given",
        "give inputs",
    ),
    option_of_a_layer=trace_error(
        lambda: tg.layers.Dropout(0.5)(tg.ones([2, 2]), traning=True),
        "Dropout.call: there is no argument 'traning'",
        "use training in place of traning",
    ),
    concat_with_the_axis_first=dtype_error(
        lambda: tg.concat(0, [1.0, 2.0]),
        "concat: an axis is one integer, and it was given [1.0, 2.0], which is a list",
        CONCAT_FIX,
    ),
    concat_without_a_list=dtype_error(
        lambda: tg.concat(tg.ones([2]), tg.ones([2])),
        "concat: an axis is one integer, and it was given a tensor f32[2]",
        CONCAT_FIX,
    ),
    sizes_without_a_list=dtype_error(
        lambda: tg.zeros(2, 3),
        "3 is not a data type",
        f"give all sizes as one list, such as tg.zeros([2, 3]), or {DTYPES}",
    ),
    condition_that_is_a_number=dtype_error(
        lambda: tg.reduce_all(tg.constant([1.0])),
        "reduce_all: the operand is f32[1], and it must be bool",
        "compare it: x != 0; bits of integers are combined by & | ^ ~",
        ("f32[1]  from {place}",),
    ),
)
@pytest.mark.parametrize("is_traced", [False, True], ids=["top level", "function"])
def test_mistakes_of_beginners(case, is_traced):
    if not is_traced:
        case.check()
        return
    error, _ = frames_of(lambda: tg.function(lambda: case.call())())
    assert str(error) == case.message()
    assert our_frames(error) == []


def our_frames(error):
    house = os.path.dirname(tg.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if frame.filename.startswith(house)]


class OfTwo(tg.layers.Layer):
    def call(self, x, y):
        return x


class ModuleOfOne(tg.Module):
    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tg.nest.map_structure(lambda a, b: a, [x]),
        lambda x: tg.vectorized_map(lambda: 1.0, x),
        lambda x: tg.pfor(lambda: 1.0, 3),
        lambda x: tg.optimizers.SGD(0.1).minimize(lambda y: y, [WEIGHT]),
        lambda x: tg.layers.Sequential([lambda: 1.0])(x),
        lambda x: tg.layers.Activation(lambda: 1.0)(x),
        lambda x: OfTwo()(x),
        lambda x: ModuleOfOne()(),
    ],
)
def test_a_function_of_the_users_that_takes_something_else(call):
    with pytest.raises(TypeError, match=r"\(\) (missing|takes) ") as caught:
        tg.function(lambda x: call(x))(tg.ones([2, 2]))
    assert our_frames(caught.value) == []


def test_a_layer_that_takes_no_training_is_called_with_it():
    layer, x = tg.layers.Dense(2), tg.ones([1, 3])
    assert np.array_equal(layer(x, training=True), layer(x))
    assert tg.function(lambda x: layer(x, training=False))(x).shape == [1, 2]


def test_a_property_that_fails_says_why():
    class Half(tg.layers.Layer):
        @property
        def half(self):
            return self.whole / 2

    with pytest.raises(AttributeError, match=r"^'Half' object has no attribute 'whole'$"):
        _ = Half().half
    assert not hasattr(Half(), "half") and getattr(Half(), "qwerty", 3) == 3
