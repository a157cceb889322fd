"""The fields of ops: what is declared, what the constructor takes, and that equal ops are one."""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar

import numpy as np
import pytest

from tracegraph.core.shapes import Dim
from tracegraph.core.types import float32
from tracegraph.ir.op import OPS, Op
from tracegraph.ops.constant import Constant
from tracegraph.ops.contract import Conv
from tracegraph.ops.elementwise import Add, Cast, PreventGradient


class Window(Op, abstract=True):
    """An op of the tests, with fields of every sort."""

    limit: ClassVar[int] = 3
    name = "window"
    size: int
    value: Any = 0


class Padded(Window, abstract=True):
    """One more field, and another default."""

    value: Any = None
    padding: tuple[int, ...] = ()


def test_fields_are_the_annotations_but_for_class_variables():
    assert Window.field_names == ("size", "value")
    assert Window.annotations == ("int", "Any")


def test_fields_are_inherited_and_keep_their_place():
    assert Padded.field_names == ("size", "value", "padding")
    assert Padded(2).attributes == (2, None, ())
    assert Window(2).attributes == (2, 0)


def test_an_op_without_fields():
    assert Add.field_names == () and Add().attributes == ()


def test_positions_keywords_and_defaults_give_one_op():
    assert Padded(2, 5) is Padded(2, value=5) is Padded(value=5, size=2) is Padded(2, 5, ())


@pytest.mark.parametrize(
    ("arguments", "keywords", "fault"),
    [
        ((), {}, "missing a required argument: 'size'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"size": 1}, "multiple values for argument 'size'"),
        ((1,), {"stride": 1}, "got an unexpected keyword argument 'stride'"),
    ],
)
def test_arguments_that_do_not_fit(arguments: tuple[Any, ...], keywords: Any, fault: str):
    with pytest.raises(TypeError, match=rf"^Window: {fault}"):
        Window(*arguments, **keywords)


@pytest.mark.parametrize("arguments", [(float32, float32), ()])
def test_arguments_that_do_not_fit_an_op_keyed_by_equality(arguments: tuple[Any, ...]):
    with pytest.raises(TypeError, match=r"^Cast: "):
        Cast(*arguments)


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0), ("1", 1), (b"", "")])
def test_values_differ_by_type_and_bits(one: Any, other: Any):
    assert Window(1, one) is not Window(1, other)
    assert Window(1, one) is Window(1, one)


def test_nan_equals_itself():
    assert Window(1, float("nan")) is Window(1, float("nan"))


def test_an_op_is_frozen():
    op = Cast(float32)
    with pytest.raises(AttributeError, match="cast is frozen"):
        op.dtype = None
    with pytest.raises(AttributeError, match="cast is frozen"):
        del op.dtype
    with pytest.raises(AttributeError, match="cast is frozen"):
        op.other = 1
    assert op.dtype is float32


def test_copies_are_the_op_itself():
    op = PreventGradient("no")
    assert copy.copy(op) is copy.deepcopy(op) is pickle.loads(pickle.dumps(op)) is op


def test_a_constant_keeps_a_copy_that_nobody_changes():
    array = np.ones(3, np.float32)
    op = Constant(array)
    array[0] = 2
    assert op.value.tolist() == [1, 1, 1] and not op.value.flags.writeable
    assert Constant(value=np.ones(3, np.float32)) is op


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "complex64"])
def test_a_constant_of_a_scalar_is_that_of_its_array(dtype: str):
    scalar = np.dtype(dtype).type(1)
    assert Constant(scalar) is Constant(np.array(scalar))


def test_constants_differ_by_their_bits():
    assert Constant(np.float32(0.0)) is not Constant(np.float32(-0.0))
    assert Constant(np.float32(np.nan)) is Constant(np.float32(np.nan))
    assert Constant(np.int32(1)) is not Constant(np.uint32(1))


def test_substituting_sizes_keeps_an_op_that_has_none():
    n = Dim.named("n")
    op = Conv((1,), ((0, 1),), (1,), (1,), n)
    assert op.substitute({"n": 4}) is Conv((1,), ((0, 1),), (1,), (1,), 4)
    assert op.substitute({"m": 4}) is op


def test_every_op_takes_its_fields_by_name():
    for cls in OPS.values():
        assert tuple(cls.fields.parameters) == cls.field_names
        assert len(cls.annotations) == len(cls.field_names)
