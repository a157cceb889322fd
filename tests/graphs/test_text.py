"""The text form: what is printed is parsed back to the bit, and what is not a graph is refused."""

import functools
import inspect
import io
import math
import random
import re
import sys
import time
import typing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg
from tests.derived_graphs import vjp_graph
from tracegraph.calls.call import Call
from tracegraph.core.shapes import Dim, ShapeVariable, floor_divide, maximum, minimum
from tracegraph.core.source import UNKNOWN, Source
from tracegraph.core.types import (
    DTYPES,
    TOKEN,
    TensorType,
    bfloat16,
    complex64,
    float32,
    float64,
    int32,
    token,
    uint64,
)
from tracegraph.effects.procedure import program_of
from tracegraph.errors import DTypeError, LoadError, ShapeError
from tracegraph.ir.builder import Builder
from tracegraph.ir.op import OPS, Op, attribute_key
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum
from tracegraph.ops.constant import Constant, DimSize
from tracegraph.ops.contract import Matmul
from tracegraph.ops.elementwise import Add, Cast, Mul, PreventGradient, Sin, Tanh
from tracegraph.ops.shape import Concatenate, Reshape, Slice, Transpose
from tracegraph.text import graph_text, module_text, parse, parse_module, verify
from tracegraph.text.literals import LiteralReader, value_text
from tracegraph.text.parser import _annotations

GRAPHS = Path(__file__).parents[1] / "graphs"
PLACE = Source.at("train.py", 7)
BATCH, WIDTH = Dim.named("batch"), Dim.named("width")


class Anything(Op, abstract=True):
    """An op of the tests that has attributes of every kind, and as many outputs as types."""

    name = "any"
    value: Any
    types: tuple[TensorType, ...] = ()
    options: Any = None

    def infer(self, *types):
        return self.types


@pytest.fixture(autouse=True)
def any_op(monkeypatch):
    monkeypatch.setitem(OPS, "any", Anything)


def f32(*shape: Any) -> TensorType:
    return TensorType(float32, shape)


def traced(name: str, arguments: dict[str | None, TensorType], function: Any) -> Graph:
    """The graph of `function(add, *inputs)`, where `add(op, *operands)` makes a node."""
    builder = Builder(name)
    inputs = [builder.input(type, argument) for argument, type in arguments.items()]

    def add(op: Op, *operands: Tensor, at: Source = PLACE) -> Any:
        outputs = builder.add(op, operands, at)
        return outputs[0] if len(outputs) == 1 else outputs

    outputs = function(add, *inputs)
    return builder.finish(outputs if isinstance(outputs, (tuple, list)) else (outputs,))


def graph_of_value(value: Any) -> Graph:
    return traced("holder", {}, lambda add: add(Anything(value, (f32(),))))


def check_round_trip(graph: Graph) -> Graph:
    """What is printed is parsed to a graph that prints the same, and is the same."""
    verify(graph)
    for locations in (False, True):
        text = graph_text(graph, locations)
        parsed = parse(text)
        assert graph_text(parsed, locations) == text
        verify(parsed)
    check_same(graph, parsed)
    return parsed


def check_same(left: Graph, right: Graph) -> None:
    """Equal but for the names of graphs; ops without graphs are one object when equal."""
    assert left.input_types == right.input_types
    assert left.output_types == right.output_types
    assert len(left.nodes) == len(right.nodes)
    for a, b in zip(left.nodes, right.nodes):
        assert type(a.op) is type(b.op)
        assert a.op is b.op or list(a.op.graphs()), (a.op, b.op)
        assert a.source.roles == b.source.roles


def layer_graph(name: str = "layer") -> Graph:
    def layer(add, x, w, b):
        product = add(Matmul(), x, w)
        return add(Tanh(), add(Add(), product, add(BroadcastTo((BATCH, 4), (1,)), b)))

    return traced(name, {"x": f32(BATCH, 4), "w": f32(4, 4), "b": f32(4)}, layer)


# Round trips.


def test_the_sample_dump():
    layer = traced(
        "layer",
        {"x": f32(16, 4), "b": f32(4)},
        lambda add, x, b: add(Tanh(), add(Add(), x, add(BroadcastTo((16, 4), (1,)), b))),
    )

    def loss(add, x, b):
        y = add(Call(layer), add(Call(layer), x, b), b, at=Source.at("a/mlp.py", 10))
        total = add(Sum(None), add(Mul(), y, y), at=Source.at("a/mlp.py", 11))
        half = add(Constant(np.float32(0.5)), at=Source.at("a/mlp.py", 12, ("vjp", "pfor")))
        return add(Mul(), total, half, at=UNKNOWN), y

    graph = traced("loss", {"x": f32(16, 4), "b": f32(4)}, loss)
    assert (
        str(graph)
        == """\
graph @layer(%x: f32[16,4], %b: f32[4]) -> (f32[16,4]) {
  %0 = broadcast_to<shape=[16,4], axes=[1]>(%b) : f32[16,4] at train.py:7
  %1 = add(%x, %0)                              : f32[16,4] at train.py:7
  %2 = tanh(%1)                                 : f32[16,4] at train.py:7
  return %2
}

graph @loss(%x: f32[16,4], %b: f32[4]) -> (f32[], f32[16,4]) {
  %0 = call<body=@layer>(%x, %b) : f32[16,4] at train.py:7
  %1 = call<body=@layer>(%0, %b) : f32[16,4] at mlp.py:10
  %2 = mul(%1, %1)               : f32[16,4] at train.py:7
  %3 = sum<axes=none>(%2)        : f32[]     at mlp.py:11
  %4 = constant<value=f32 0.5>() : f32[]     at mlp.py:12 vjp pfor
  %5 = mul(%3, %4)               : f32[]
  return %5, %1
}"""
    )
    assert graph.as_text() == graph_text(graph, locations=False)
    assert " at " not in graph.as_text()
    assert graph.as_text().splitlines()[1] == (
        "  %0 = broadcast_to<shape=[16,4], axes=[1]>(%b) : f32[16,4]"
    )
    check_round_trip(graph)


def test_a_stored_graph_prints_as_it_is_stored():
    text = (GRAPHS / "loss.txt").read_text("utf-8").rstrip("\n")
    graph = Graph.from_text(text)
    assert graph.as_text(locations=True) == text
    assert [inner.name for inner in graph.graphs()] == ["layer", "layer_vjp", "loss"]
    assert graph.nodes[0].op is graph.nodes[1].op  # one graph @layer, called twice
    assert str(graph.nodes[-1].source) == "mlp.py:10 vjp"


def test_graphs_without_inputs_nodes_or_outputs():
    check_round_trip(traced("empty", {}, lambda add: ()))
    check_round_trip(traced("same", {"x": f32(2)}, lambda add, x: (x, x)))
    silent = traced("silent", {}, lambda add: (add(Anything(1)), ())[1])
    assert silent.as_text().splitlines()[1] == "  () = any<value=1>() : ()"
    check_round_trip(silent)


def test_several_outputs_and_tokens():
    types = (TOKEN, f32(2), f32(3))

    def body(add, before):
        after, x, y = add(Anything("print", types), before)
        return add(Anything(x.type, (TOKEN,)), after, x), y

    graph = traced("effects", {"before": TOKEN}, body)
    assert graph.as_text().splitlines()[1] == (
        '  %0, %1, %2 = any<value="print", types=[token,f32[2],f32[3]]>(%before)'
        " : token, f32[2], f32[3]"
    )
    check_round_trip(graph)


def test_symbolic_sizes():
    width = 2 * WIDTH + 1

    def body(add, x, y):
        joined = add(Concatenate(0), x, x)
        flat = add(Reshape((2 * BATCH * width,)), joined)
        half = floor_divide(BATCH, 2)
        part = add(Slice((0, 0), (half, width), (1, 1)), x)
        size = add(DimSize(maximum(BATCH, minimum(WIDTH, 7))))
        return flat, part, size, add(Sin(), y)

    arguments = {"x": f32(BATCH, width), "y": TensorType(float32, ShapeVariable("s"))}
    graph = traced("open", arguments, body)
    assert [" ".join(line.split()) for line in graph.as_text().splitlines()] == [
        "graph @open(",
        "%x: f32[batch,2*width+1],",
        "%y: f32[*s]",
        ") -> (f32[4*batch*width+2*batch], f32[floordiv(batch,2),2*width+1], i32[], f32[*s]) {",
        "%0 = concatenate<axis=0>(%x, %x) : f32[2*batch,2*width+1]",
        "%1 = reshape<shape=[4*batch*width+2*batch]>(%0) : f32[4*batch*width+2*batch]",
        "%2 = slice<start=[0,0], stop=[floordiv(batch,2),2*width+1], stride=[1,1]>(%x)"
        " : f32[floordiv(batch,2),2*width+1]",
        "%3 = dim_size<size=max(batch,min(7,width))>() : i32[]",
        "%4 = sin(%y) : f32[*s]",
        "return %1, %2, %3, %4",
        "}",
    ]
    check_round_trip(graph)


@given(st.data())
def test_every_size_expression(data):
    names = st.sampled_from([Dim.named(n) for n in ("a", "b.c", "inf", "f32", "true", "_x1")])
    sizes = st.recursive(
        st.one_of(names, st.integers(0, 9)),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
            st.tuples(inner, st.integers(1, 5)).map(lambda p: floor_divide(*p)),
            st.tuples(inner, inner).map(lambda p: maximum(*p)),
            st.tuples(inner, inner).map(lambda p: minimum(*p)),
        ),
        max_leaves=6,
    )
    size = data.draw(sizes)
    assert read(value_text(size, {})) == size
    assert type(read(value_text(size, {}))) is type(size)
    if isinstance(size, Dim):
        type_ = f32(size, 3)
        assert read(value_text(type_, {})) is type_


def read(text: str) -> Any:
    reader = LiteralReader(text, {})
    value = reader.value()
    assert reader.is_done, text
    return value


VALUES = [
    (None, "none"),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (-12, "-12"),
    (2**70, "1180591620717411303424"),
    (1.0, "1.0"),
    (0.1, "0.1"),
    (-0.0, "-0.0"),
    (1e-5, "1e-05"),
    (1e300, "1e+300"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (math.nan, "nan"),
    (-math.nan, "0xfff8000000000000"),
    (1 - 2j, "(1.0,-2.0)"),
    (complex(-0.0, math.inf), "(-0.0,inf)"),
    ("", '""'),
    ('a "quoted" <text>(%x) : @g\n\\', r'"a \"quoted\" <text>(%x) : @g\n\\"'),
    ("größe", '"größe"'),
    ("\u202edesrever", r'"\u202edesrever"'),
    ("\ud800", r'"\ud800"'),
    (b"", 'bytes""'),
    (b"\x00\xff", 'bytes"00ff"'),
    (float32, "f32"),
    (complex64, "c64"),
    (f32(2, 3), "f32[2,3]"),
    (TensorType(int32), "i32[]"),
    (TensorType(bfloat16, (2 * BATCH + 1, 4)), "bf16[2*batch+1,4]"),
    (TensorType(float32, ShapeVariable("s")), "f32[*s]"),
    (TOKEN, "token"),
    (BATCH, "batch"),
    (3 - BATCH, "-batch+3"),
    (Dim.named("inf"), "1*inf"),
    (-Dim.named("f32"), "-1*f32"),
    (ShapeVariable("s"), "*s"),
    ((), "[]"),
    ((1,), "[1]"),
    ((1, -2, 3), "[1,-2,3]"),
    ((1, BATCH, None), "[1,batch,none]"),
    (((1, 2), (), ("a, b]", 1.5, float32)), '[[1,2],[],["a, b]",1.5,f32]]'),
    ((True, 1, 1.0), "[true,1,1.0]"),
    (np.array(1.0, np.float32), "f32 1.0"),
    (np.array(0.1), "f64 0.1"),
    (np.array(0.1, ml_dtypes.bfloat16), "bf16 0.1"),
    (np.array(-7, np.int8), "i8 -7"),
    (np.array(True), "bool true"),
    (np.array(1 + 2j, np.complex64), "c64 (1.0,2.0)"),
    (np.array(2**64 - 1, np.uint64), "u64 18446744073709551615"),
    (np.array([1.5, -0.0, math.inf, math.nan], np.float16), "f16[4]{1.5, -0.0, inf, nan}"),
    (np.array([[1, 2], [3, 4]], np.int64), "i64[2,2]{1, 2, 3, 4}"),
    (np.array([[1, 2], [3, 4]], np.int64).T, "i64[2,2]{1, 3, 2, 4}"),
    (np.array([True, False]), "bool[2]{true, false}"),
    (np.array([1j, -0.0], np.complex128), "c128[2]{(0.0,1.0), (-0.0,0.0)}"),
    (np.zeros((0, 3), np.float32), "f32[0,3]{}"),
    (np.array([0x7FC00001], np.uint32).view(np.float32), "f32[1]{0x7fc00001}"),
    ((np.array(2.0, np.float32), np.array([1], np.uint8)), "[f32 2.0,u8[1]{1}]"),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_a_value(value, text):
    assert value_text(value, {}) == text
    assert type(read(text)) is type(value)
    assert value_text(read(text), {}) == text
    check_round_trip(graph_of_value(value))
    check_round_trip(graph_of_value((value, (value,))))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not token], ids=str)
def test_arrays_of_any_bits(dtype):
    count = 1 << 16
    if dtype.is_bool:
        array = np.arange(count) % 3 == 0
    elif dtype.size <= 2:  # every pattern there is
        array = np.arange(count).astype(f"u{dtype.size}").view(dtype.numpy_dtype)
    else:
        raw = np.random.default_rng(0).bytes(count * dtype.size)
        array = np.frombuffer(raw, dtype.numpy_dtype)
    for shape in ((-1,), (256, 4, -1)):
        shaped = array.reshape(shape)
        back = read(value_text(shaped, {}))
        assert (back.dtype, back.shape) == (shaped.dtype, shaped.shape)
        assert back.tobytes() == shaped.tobytes()
    for scalar in array[:: count // 50].reshape(-1, 1):
        zero_d = scalar.reshape(())
        assert read(value_text(zero_d, {})).tobytes() == zero_d.tobytes()


@given(st.integers(0, 2**64 - 1))
def test_a_python_float_of_any_bits(bits):
    value = np.array(bits, np.uint64).view(np.float64).item()
    assert attribute_key(read(value_text(value, {}))) == attribute_key(value)


@given(st.text(st.characters(categories=None)))
def test_any_string(text):
    assert read(value_text(text, {})) == text
    graph = graph_of_value(text)
    assert graph_text(graph).count("\n") == 3
    check_round_trip(graph)


def test_numpy_scalars_print_as_numbers():
    values = (np.int64(3), np.bool_(True), np.float64(0.5), np.float32(0.5))
    assert value_text(values, {}) == "[3,true,0.5,f32 0.5]"


def test_attributes_with_their_default_are_left_out():
    text = graph_text(graph_of_value(1))
    assert "any<value=1, types=[f32[]]>()" in text
    assert parse(text).nodes[0].op.options is None


def test_python_objects_are_read_as_stand_ins():
    for value, name in ((len, "len"), (lambda x: x, ""), (object(), "object"), (token, "DType")):
        text = graph_text(graph_of_value((1, value)))
        assert 'opaque"' in text
        assert name in text
        graph = parse(text)
        assert graph_text(graph) == text
        with pytest.raises(LoadError, match="of which the text has the name alone: opaque"):
            graph.nodes[0].op.value[1]()


def test_a_stand_in_fits_where_a_function_does_and_nowhere_else():
    node = "  %0 = host_call<function=F, types=T>(%t) : token"
    text = f"graph @f(%t: token) -> () {{\n{node}\n  return\n}}"
    function = 'opaque"f"'
    assert parse(text.replace("F", function).replace("T", "[]"))
    with pytest.raises(LoadError, match="the attribute types of host_call is"):
        parse(text.replace("F", function).replace("T", function))


def effects(x):
    """Prints, calls Python, and differentiates a Python function."""
    tg.debugging.assert_positive(x)
    tg.print("x:\n", x, {"first": x[0]}, summarize=2, output_stream=sys.stdout)
    tg.print(x, output_stream=io.StringIO())
    tg.numpy_function(lambda: None, [], [])
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.py_function(lambda a: a * a, [x], tg.TensorSpec([2]))
    return tape.gradient(y, x)


def test_graphs_with_effects_print_what_was_parsed():
    graph = tg.function(effects).get_concrete_function(tg.TensorSpec([2])).graph
    text = str(graph)
    parsed = tg.Graph.from_text(text)
    assert str(parsed) == text
    parsed.verify()
    assert '["print",["x:\\n ' in text


def test_a_parsed_print_runs(capsys):
    f = tg.function(lambda x: tg.print("value", [x], output_stream=sys.stdout))
    parsed = parse(str(f.get_concrete_function(tg.TensorSpec([2])).graph))
    program_of(parsed)(np.array([1, 2], np.float32), np.zeros((), bool))
    assert capsys.readouterr().out == "value [[1 2]]\n"


def test_a_parsed_python_function_is_refused_when_it_is_run():
    f = tg.function(lambda x: tg.py_function(lambda a: a, [x], tg.TensorSpec([])))
    parsed = parse(str(f.get_concrete_function(tg.TensorSpec([])).graph))
    with pytest.raises(
        LoadError, match=r"(?s)the name alone.*\(traced at test_text.py.*fix: trace"
    ):
        program_of(parsed)(np.float32(1), np.zeros((), bool))
    with pytest.raises(LookupError, match=r"the derivative of opaque.* is not known"):
        vjp_graph(parsed)


@pytest.mark.parametrize("value", [5, None, b"graph"])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(TypeError, match="the text of a graph is a str, and"):
        tg.Graph.from_text(value)


def test_an_array_of_a_foreign_type_is_opaque():
    assert value_text(np.array("x"), {}) == 'opaque"ndarray"'
    assert value_text(np.array([1.0], ">f4"), {}) == 'opaque"ndarray"'


def test_locations():
    sources = [
        Source.at("/home/user/train.py", 3),
        Source.at("C:\\work\\train.py", 4, ("vjp",)),
        Source.at("my file.py", 5, ("jvp", "pfor")),
        Source.at('odd":1 at\n.py', 6),
        Source.at("<stdin>", 1),
        Source.at("<ipython-input-1-0fe>", 2),
        Source.at("größe.py", 8),
        Source.at("a\u202eb.py", 9),
        Source.at("folder/", 9),
        Source.at("?", 0, ("vjp",)),
        UNKNOWN,
    ]
    graph = traced(
        "places", {"x": f32()}, lambda add, x: [add(Sin(), x, at=source) for source in sources]
    )
    nodes = [line for line in str(graph).splitlines() if " = " in line]
    places = [line.partition("f32[]")[2] for line in nodes]
    assert places == [
        " at train.py:3",
        " at train.py:4 vjp",
        ' at "my file.py":5 jvp pfor',
        r' at "odd\":1 at\n.py":6',
        " at <stdin>:1",
        " at <ipython-input-1-0fe>:2",
        " at größe.py:8",
        r' at "a\u202eb.py":9',
        " at ?:9",
        " at ?:0 vjp",
        "",
    ]
    parsed = check_round_trip(graph)
    assert parsed.nodes[2].source.file == "my file.py"
    assert parsed.nodes[2].source.line == 5
    assert parsed.nodes[-1].source is UNKNOWN


def test_a_place_in_real_code():
    def body(add, x):
        return add(Sin(), x, at=None)  # the place is where the builder finds it

    graph = traced("here", {"x": f32()}, body)
    assert f" at test_text.py:{graph.nodes[0].source.line}" in str(graph)
    check_round_trip(graph)


def test_names_are_legal_unique_and_stable():
    given = ["<lambda>", "layer", "layer", "layer.1", "my graph!", "3d", "", "größe", "x/y:0"]
    inner = [traced(name, {"x": f32()}, lambda add, x: add(Sin(), x)) for name in given]
    inner.append(traced("layer", {"x": f32()}, lambda add, x: add(Sin(), x)))

    def body(add, x):
        for graph in inner:
            x = add(Call(graph), x)
        return x

    graph = traced("layer", {"x": f32()}, body)
    parsed = check_round_trip(graph)
    assert [inner.name for inner in parsed.graphs()] == [
        *("lambda", "layer", "layer.1", "layer.1.1", "my_graph", "_3d", "graph", "größe"),
        *("x.y_0", "layer.2", "layer.3"),
    ]


def test_argument_names_never_meet_values():
    names = ["0", "1", "x", "x", "kernel:0", "layers[0].w", None, "x.1", "%0", "a b", "arg6"]
    builder = Builder("f")
    inputs = [builder.input(f32(), name) for name in names]
    (y,) = builder.add(Add(), (inputs[0], inputs[1]), PLACE)
    graph = builder.finish([y, *inputs])
    parsed = check_round_trip(graph)
    assert [x.name for x in parsed.inputs] == [
        *("_0", "_1", "x", "x.1", "kernel_0", "layers_0_.w", "arg6", "x.1.1", "_0.1", "a_b"),
        "arg6.1",
    ]
    assert "%0 = add(%_0, %_1)" in str(parsed)


def test_ten_thousand_equal_names_are_quick():
    builder = Builder("f")
    inputs = [builder.input(f32(), "x") for _ in range(10_000)]
    graph = builder.finish(inputs[:1])
    assert parse(graph_text(graph)).inputs[-1].name == "x.9999"


def test_a_long_line_widens_no_column():
    def body(add, x):
        big = add(Constant(np.arange(1000, dtype=np.float32)))
        return add(Add(), x, x), big

    lines = traced("f", {"x": f32(2)}, body).as_text(locations=True).splitlines()
    assert lines[1].endswith("999.0}>() : f32[1000] at train.py:7")
    assert lines[2] == "  %1 = add(%x, %x) : f32[2]    at train.py:7"


def test_a_call_of_many_outputs_widens_no_column():
    def many(add, *inputs):
        return [add(Sin(), x) for x in inputs]

    arguments = {f"x{i}": f32(8, 8) for i in range(5)}
    inner = traced("many", arguments, many)
    graph = traced("f", arguments, lambda add, *inputs: add(Sin(), add(Call(inner), *inputs)[0]))
    entry = graph.as_text(locations=True).split("\n\n")[1].splitlines()
    assert entry[1].endswith(f" : {', '.join(['f32[8,8]'] * 5)} at train.py:7")
    assert entry[2].endswith(" : f32[8,8] at train.py:7")
    check_round_trip(graph)


# Long headers.


def sines(count, results=1):
    def body(add, *inputs):
        return [add(Sin(), x) for x in inputs[:results]]

    return traced("f", {f"argument_{i}": f32(2, 3) for i in range(count)}, body)


def test_a_long_header_has_one_argument_on_a_line():
    lines = sines(60).as_text().splitlines()
    assert lines[:2] == ["graph @f(", "  %argument_0: f32[2,3],"]
    assert lines[59:63] == [
        "  %argument_58: f32[2,3],",
        "  %argument_59: f32[2,3]",
        ") -> (f32[2,3]) {",
        "  %0 = sin(%argument_0) : f32[2,3]",
    ]
    many = sines(60, 20).as_text().splitlines()
    assert many[61:63] == [") -> (", "  f32[2,3],"] and many[81:83] == ["  f32[2,3]", ") {"][-2:]
    alone = traced("f" * 60, {}, lambda add: [add(Constant(np.float32(1)))] * 10)
    assert (
        alone.as_text().splitlines()[0]
        == f"graph @{'f' * 60}() -> ({', '.join(['f32[]'] * 10)}) {{"
    )


@pytest.mark.parametrize("count", [*range(4), 5, 60])
@pytest.mark.parametrize("results", [0, 1, 20])
def test_headers_of_all_lengths_are_read(count, results):
    check_round_trip(sines(count, results))
    text = sines(count, results).as_text()
    flat = re.sub(r"\n?(?<=[(,\]])\n(?=  [%f]|\))", "", text.partition(" {")[0]).replace("  ", " ")
    joined = f"{flat.replace('( ', '(')} {{{text.partition(' {')[2]}"
    assert parse(joined).as_text() == text  # a header on one line is read too


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "graph @f(\n  %x: f32[2],\n  y: f32[2]\n) -> () {",
            'line 2: "f32[2], y: f32[2]" is not a type',
        ),
        ("graph @f(\n  %x: f32[2],\n  %x: f32[2]\n) -> () {", "line 3: the value %x is defined tw"),
        ("graph @f(\n  %x: f32[2]\n", "a graph must begin here"),
        ("graph @f(\n" * 3, "a graph must begin here"),
        ("graph @f(\n  %x: f32[2],\n) -> () {\n  return\n}", "is not a type"),
        (
            "graph @f(\n  %x: f32[2]\n) -> () {\n  return %z\n}",
            "line 4: the value %z is not defined",
        ),
    ],
)
def test_what_is_wrong_with_a_long_header(text, words):
    with pytest.raises(LoadError, match=re.escape(words)):
        parse(text)


def test_shared_and_nested_graphs():
    layer = layer_graph()
    plain = traced("plain", {"x": f32()}, lambda add, x: add(Sin(), x))

    def middle_body(add, x, w, b):
        return add(Call(layer), add(Call(layer), x, w, b), w, b)

    middle = traced("middle", {"x": f32(5, 4), "w": f32(4, 4), "b": f32(4)}, middle_body)

    def body(add, x, w, b):
        y = add(Call(middle), x, w, b)
        held = add(Anything((1, 2), (f32(),), plain))
        return y, add(Call(layer), y, w, b), add(Call(plain), held)

    graph = traced("top", {"x": f32(5, 4), "w": f32(4, 4), "b": f32(4)}, body)
    parsed = check_round_trip(graph)
    text = str(graph)
    assert text.count("graph @layer(") == 1
    assert text.count("options=@plain") == 1
    names = [inner.name for inner in parsed.graphs()]
    assert names == ["layer", "middle", "plain", "top"]


def test_several_entries():
    layer = layer_graph()
    one, two = (
        traced(
            name,
            {"x": f32(3, 4), "w": f32(4, 4), "b": f32(4)},
            lambda add, *xs: add(Call(layer), *xs),
        )
        for name in ("one", "two")
    )
    text = module_text([one, layer, two], locations=True)
    graphs = parse_module(text)
    assert list(graphs) == ["layer", "one", "two"]
    assert graphs["one"].nodes[0].op is graphs["two"].nodes[0].op
    assert module_text(graphs.values(), locations=True) == text
    with pytest.raises(
        LoadError, match=r"line 9: the graph @one is not used by the last one, @two"
    ):
        parse(text)


def test_white_space_at_the_ends_of_lines():
    text = (GRAPHS / "loss.txt").read_text("utf-8")
    windows = "\r\n\r\n" + text.replace("\n", "  \r\n")
    assert graph_text(parse(windows), locations=True) == text.rstrip("\n")


def test_values_may_have_names_of_their_own():
    text = with_node("%y = sin(%x) : f32[2,3]\n%0 = sin(%y) : f32[2,3]")
    assert graph_text(parse(text)).splitlines()[2] == "  %1 = sin(%0) : f32[2,3]"


def test_the_fields_of_every_op_have_types_that_are_checked():
    for cls in OPS.values():
        assert set(cls.field_names) <= _annotations(cls).keys(), cls


# Graphs drawn at random over all ops there are.


@functools.cache
def _asked_of(cls: type[Op]) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """The annotations of an op's fields, and the parameters of its `infer`."""
    return typing.get_type_hints(cls), [*inspect.signature(cls.infer).parameters.values()][1:]


class Draw:
    """Draws graphs; attributes are drawn by the annotation of their field."""

    def __init__(self, random: random.Random) -> None:
        self.random = random

    def graph(self, nodes: int) -> Graph:
        builder = Builder("drawn")
        types = [f32(), f32(2, 3), f32(3, 3), f32(BATCH, 3), TensorType(float64, (2, 3))]
        types += [
            TensorType(int32, (3,)),
            TensorType(complex64, (2, 3)),
            TensorType(DTYPES[0], (3,)),
        ]
        self.values = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
        self.names = sorted(OPS)
        tried = 0
        while len(builder.nodes) < nodes and tried < 30 * nodes:
            tried += 1
            self.node(builder)
        return builder.finish(self.random.sample(self.values, 3))

    def node(self, builder: Builder) -> None:
        cls = OPS[self.random.choice(self.names)]
        hints, parameters = _asked_of(cls)
        try:
            op = cls(**{name: self.attribute(hints[name]) for name in cls.field_names})
            many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
            count = self.random.randint(1, 3) if many else len(parameters)
            inputs = tuple(self.random.choices(self.values, k=count))
            types = op.output_types(inputs)
        except Exception:
            return  # what was drawn does not fit; draw again
        if all(len(str(type)) < 40 for type in types):
            place = Source.at(self.random.choice(["a.py", "b c.py"]), self.random.randint(1, 9))
            self.values += builder.add(op, inputs, place)

    def attribute(self, hint: Any) -> Any:
        choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
        can_be_none = type(None) in typing.get_args(hint)
        if hint == tuple[int, ...]:
            size = self.random.randint(0, 3)
            return tuple(self.random.sample(range(size), size))
        if ShapeVariable in choices:
            shape = self.random.choice(self.values).type.shape
            return tuple(self.random.sample(shape, len(shape)))
        if typing.get_origin(hint) is tuple:
            return tuple(self.attribute(h) for h in choices if h is not Ellipsis)
        if choices:
            is_none = can_be_none and self.random.random() < 0.2
            return None if is_none else self.attribute(self.random.choice(choices))
        simple: dict[Any, Any] = {
            int: lambda: self.random.randint(-2, 3),
            float: self.random.random,
            bool: lambda: self.random.random() < 0.5,
            str: lambda: self.random.choice(["", "a b", '"<>"']),
            Dim: lambda: self.random.choice([BATCH, 2 * BATCH + 1]),
            np.ndarray: lambda: np.array(self.random.choices([0.5, -0.0, 3.0], k=3), np.float32),
            type(float32): lambda: self.random.choice(DTYPES[:-1]),
            TensorType: lambda: self.random.choice(self.values).type,
            Graph: lambda: traced("inner", {"x": f32()}, lambda add, x: add(Sin(), x)),
        }
        return simple[hint]()


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=True), st.integers(1, 40))
def test_random_graphs(random, nodes):
    check_round_trip(Draw(random).graph(nodes))


def test_random_graphs_reach_the_ops():
    graph = Draw(random.Random(1)).graph(2000)
    used = {node.op.name for node in graph.nodes}
    assert len(used) > 0.7 * len(OPS), sorted(OPS.keys() - used)
    check_round_trip(graph)


# What is refused.

HEAD = "graph @f(%x: f32[2,3], %n: i32[]) -> (f32[2,3]) {"
TAIL = "  return %0\n}"


def with_node(line: str) -> str:
    return f"{HEAD}\n  {line}\n{TAIL}"


REFUSED = [
    ("", "the text holds no graph\n  fix: begin with a line such as: graph @name("),
    ("hello", 'line 1: a graph must begin here\n  text: "hello"\n  fix: write: graph @name('),
    (
        "graph @f(%x: f32[2]) -> (f32[2]) { return %y }",
        "line 1: more follows '{' on its line\n"
        '  text: "graph @f(%x: f32[2]) -> (f32[2]) { return %y }"\n'
        "  fix: end the line after '{'",
    ),
    ("graph f() -> () {\n  return\n}", "line 1: a graph must begin here"),
    ("graph @f(%x) -> () {\n  return\n}", 'line 1: "%x" is not an argument'),
    ("graph @f(x: f32[]) -> () {\n  return\n}", 'line 1: "x: f32[]" is not an argument'),
    (
        "graph @f(%x: f32[], %x: f32[]) -> () {\n  return\n}",
        "line 1: the value %x is defined twice",
    ),
    ("graph @f(%0: f32[]) -> () {\n  return\n}", "is not an argument"),
    ("graph @f(%x: f33[]) -> () {\n  return\n}", 'line 1: "f33[]" is not a type'),
    ("graph @f(%x: f32) -> () {\n  return\n}", 'line 1: "f32" is not a type'),
    ("graph @f(%x: token[]) -> () {\n  return\n}", 'line 1: "token[]" is not a type'),
    ("graph @f(%x: f32[-2]) -> () {\n  return\n}", "line 1: a size is zero or more"),
    ("graph @f(%x: f32[2 3]) -> () {\n  return\n}", 'line 1: "2 3" is not a size'),
    ("graph @f(%x: f32[a**b]) -> () {\n  return\n}", "line 1: unexpected '*' in a size"),
    ("graph @f(%x: f32[floordiv(a,0)]) -> () {\n  return\n}", "a size is divided by zero"),
    ("graph @f(%x: f32[*2]) -> () {\n  return\n}", 'line 1: "*2" is not a shape'),
    (f"graph @f(%x: f32[{'9' * 19}]) -> () {{\n  return\n}}", "is larger than any tensor"),
    (f"graph @f(%x: f32[{'a+' * 501}a]) -> () {{\n  return\n}}", "is not a size"),
    (
        f"graph @f(%x: f32[{','.join(f'a{i}+b{i}' for i in range(20))}]) -> () {{\n  return\n}}",
        "is too long a polynomial",
    ),
    (f"graph @f(%x: f32[{'max(' * 60}]) -> () {{\n  return\n}}", "nested more than 50 deep"),
    (HEAD, "line 1: the text ends inside of a graph"),
    (f"{HEAD}\n  %0 = sin(%x) : f32[2,3]", "line 2: the text ends inside of a graph"),
    (f"{HEAD}\n  return %x", "line 2: a graph must end here"),
    (f"{HEAD}\n}}", "line 2: a graph must return here"),
    (f"{HEAD}\n  return %x %n\n}}", "line 2: a graph must return here"),
    (f"{HEAD}\n  return %y\n}}", "line 2: the value %y is not defined above in this graph"),
    (f"{HEAD}\n  return %n\n}}", "line 2: @f returns (i32[]), and line 1 claims other types"),
    (f"{HEAD}\n  return\n}}", "line 2: @f returns (), and line 1 claims other types"),
    (f"{HEAD}\n  return %x\n}}\n\n{HEAD}\n  return %x\n}}", "line 5: there are two graphs @f"),
    (with_node(""), "line 2: expected values and ' = ' and found the end"),
    (with_node("sin(%x)"), "line 2: expected values and ' = ' and found \"  sin(%x)\""),
    (with_node("%0 = "), "line 2: expected the name of an op and found the end"),
    (
        with_node("%0 = sin"),
        "line 2: expected attributes in <> or operands in () and found the end",
    ),
    (with_node("%0 = sin<a=1(%x) : f32[2,3]"), "expected attributes in <> or operands in ()"),
    (with_node("%0 = sin(x) : f32[2,3]"), "line 2: expected attributes in <> or operands in ()"),
    (with_node("%0 = sin(%x)"), "line 2: expected ' : ' and the types of the outputs"),
    (with_node("%0 = sin(%x) : f32[2,3] by me"), "expected the end of the line, or ' at '"),
    (with_node("%0 = sin(%x) : f32[2,3] at a.py"), 'line 2: "a.py" is not a place'),
    (with_node('%0 = sin(%x) : f32[2,3] at "a.py:1'), "is not a place"),
    (with_node(r'%0 = sin(%x) : f32[2,3] at "\x":1'), "is not a file name"),
    (with_node("%0 = sin(%x) : f32[2,3] at /dev/zero:1"), "names a folder"),
    (with_node("%0 = sine(%x) : f32[2,3]"), "line 2: there is no op sine\n  text: "),
    (with_node("%0 = sine(%x) : f32[2,3]"), "  fix: did you mean "),
    (with_node("%0 = sin(%y) : f32[2,3]"), "line 2: the value %y is not defined above"),
    (with_node("%0 = sin(%0) : f32[2,3]"), "line 2: the value %0 is not defined above"),
    (with_node("%x = sin(%x) : f32[2,3]"), "line 2: the value %x is defined twice"),
    (with_node("%0, %1 = sin(%x) : f32[2,3]"), "line 2: there are 2 names for 1 values"),
    (with_node("() = sin(%x) : f32[2,3]"), "line 2: there are 0 names for 1 values"),
    (with_node("%0 = sin(%x) : f32[3,2]"), "sin makes (f32[2,3]), and the text claims f32[3,2]"),
    (with_node("%0 = sin(%x) : f33"), 'line 2: "f33" is not a type'),
    (with_node("%0 = sin(%n) : i32[]"), "line 2: sin: the operand is i32[], and only"),
    (with_node("%0 = matmul(%x, %x) : f32[2,3]"), "matmul: inner dimensions differ: f32[2,3]"),
    (with_node("%0 = matmul(%x) : f32[2,3]"), "line 2: matmul takes 2 operands, and 1 are given"),
    (with_node("%0 = concatenate<axis=9>(%x, %x) : f32[2,3]"), "concatenate"),
    (
        with_node("%0 = sin<axis=0>(%x) : f32[2,3]"),
        "sin has no attribute axis; its attributes: none",
    ),
    (
        with_node("%0 = sum<axis=0>(%x) : f32[2,3]"),
        "sum has no attribute axis; its attributes: axes",
    ),
    (with_node("%0 = sum(%x) : f32[]"), "line 2: sum lacks its attribute axes"),
    (with_node("%0 = sum<axes=[0], axes=[0]>(%x) : f32[]"), "the attribute axes is given twice"),
    (
        with_node("%0 = sum<axes=1.5>(%x) : f32[]"),
        'the attribute axes of sum is "1.5", not tuple[int',
    ),
    (with_node("%0 = sum<axes=[true]>(%x) : f32[]"), 'is "[true]", not tuple[int, ...] | None'),
    (with_node("%0 = cast<dtype=i32[]>(%x) : f32[]"), 'is "i32[]", not DType'),
    (with_node("%0 = cast<dtype=f33>(%x) : f32[]"), 'is "f33", not DType'),
    (with_node("%0 = sum<axes>(%x) : f32[]"), "expected an attribute such as axis=0"),
    (with_node("%0 = sum<axes=>(%x) : f32[]"), "expected a value and found"),
    (with_node("%0 = sum<axes=[0]axes=[1]>(%x) : f32[]"), "expected ', ' and found"),
    (with_node("%0 = any<value=[0, 1>(%x) : f32[]"), "expected ',' or ']'"),
    (
        with_node(f"%0 = any<value={'[' * 99}1{']' * 99}>() : f32[]"),
        "lists are nested more than 50",
    ),
    (with_node(r'%0 = any<value="\q">() : f32[]'), "a string is not in JSON's form"),
    (with_node('%0 = any<value=bytes"0g">() : f32[]'), 'bytes"0g" is not a value'),
    (with_node("%0 = any<value=@g>() : f32[]"), "line 2: the graph @g is not defined above"),
    (with_node("%0 = call<body=@f>(%x) : f32[]"), "line 2: the graph @f is not defined above"),
    (with_node("%0 = call<body=1>(%x) : f32[]"), 'the attribute body of call is "1", not Graph'),
    (with_node("%0 = any<value=0x12>() : f32[]"), "line 2: '0x12' is not a size"),
    (with_node("%0 = any<value=1e999>() : f32[]"), '"1e999" is out of the range of float64'),
    (with_node(f"%0 = any<value={'9' * 5000}>() : f32[]"), "Exceeds the limit"),
    (with_node("%0 = any<value=f32 x>() : f32[]"), '"x" is not an element of type float32'),
    (with_node("%0 = any<value=f32 1_0>() : f32[]"), '"1_0" is not an element of type float32'),
    (with_node("%0 = any<value=f32 1e39>() : f32[]"), '"1e39" is out of the range of float32'),
    (
        with_node("%0 = any<value=f32 0x7fc0>() : f32[]"),
        '"0x7fc0" are not the 32 bits of a float32',
    ),
    (with_node("%0 = any<value=i8 128>() : f32[]"), "an integer is out of the range of int8"),
    (with_node("%0 = any<value=u8 -1>() : f32[]"), "an integer is out of the range of uint8"),
    (with_node("%0 = any<value=i32 1.0>() : f32[]"), '"1.0" is not an element of type int32'),
    (with_node("%0 = any<value=bool 1>() : f32[]"), '"1" is not an element of type bool'),
    (with_node("%0 = any<value=c64 1.0>() : f32[]"), '"1.0" is not an element of type complex64'),
    (
        with_node("%0 = any<value=f32[3]{1.0}>() : f32[]"),
        "an array of type f32[3] is given 1 elements",
    ),
    (with_node("%0 = any<value=f32[n]{1.0}>() : f32[]"), "an array of type f32[n] is given 1"),
    (with_node("%0 = any<value=f32[2]{1.0, 2.0>() : f32[]"), "expected '}' further on"),
    (with_node("%0 = any<value=f32[9999999999]{1.0}>() : f32[]"), "is given 1 elements"),
    (with_node(f"%0 = any<value=f32[{'9' * 18}]{{1.0}}>() : f32[]"), "and no machine addresses"),
    (with_node(f"%0 = any<value=f32[{'1,' * 99}1]{{1.0}}>() : f32[]"), "has at most 64 axes, and"),
    (
        with_node(f"%0 = any<value=f32[{'9' * 18},{'9' * 18},0]{{}}>() : f32[]"),
        "999999999999999999,0] takes 3,999",
    ),
]


@pytest.mark.parametrize(("text", "fact"), REFUSED, ids=[fact[:50] for _, fact in REFUSED])
def test_wrong_text(text, fact):
    with pytest.raises(LoadError) as caught:
        Graph.from_text(text)
    assert fact in str(caught.value)


def test_a_whole_message():
    with pytest.raises(LoadError) as caught:
        parse(with_node("%0 = transposed(%x, %x) : f32[2,3] at train.py:7"))
    assert str(caught.value) == (
        "line 2: there is no op transposed\n"
        '  text: "%0 = transposed(%x, %x) : f32[2,3] at train.py:7"\n'
        "  fix: did you mean transpose?"
    )


def test_a_message_is_short_however_long_the_line():
    with pytest.raises(LoadError) as caught:
        parse(with_node("%0 = " + "x" * 1_000_000))
    assert len(str(caught.value)) < 1000


def test_a_wrong_text_reads_no_file(tmp_path, monkeypatch):
    (tmp_path / "secret.py").write_text("the secret")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError) as caught:
        parse(with_node("%0 = matmul(%x, %x) : f32[2,3] at secret.py:1"))
    assert "the secret" not in str(caught.value)


LONG = 200_000
HOSTILE = [
    "graph @f(" * LONG,
    "graph @f(" + ") -> (" * LONG + ") {",
    "graph @f() -> (" + "f32[" * LONG + ") {",
    with_node("%0, " * LONG),
    with_node("%0 = any<" + "[" * LONG),
    with_node("%0 = any<value=" + "[" * LONG + ">() : f32[]"),
    with_node('%0 = any<value="' + '\\"' * LONG + ">() : f32[]"),
    with_node("%0 = any<value=" + "(" * LONG + ">() : f32[]"),
    with_node("%0 = any<value=" + "1," * LONG + ">() : f32[]"),
    with_node("%0 = any(" + "%x, " * LONG),
    with_node("%0 = any(%x) : " + "f32[2], " * LONG),
    with_node("%0 = any(%x) : f32[2] at " + "a" * LONG + " b" * LONG),
    with_node("%0 = any<value=f32[" + "1," * LONG + "1]{1.0}>() : f32[]"),
    with_node("%0 = any<value=f32[" + "(" * LONG + "]>() : f32[]"),
    with_node("%0 = sin(%x)" + " " * LONG + "x"),
    with_node("%0 = sin(%x) : f32[2,3]" + " " * LONG + "x"),
    "\n" * LONG + "}",
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_ends_soon(number):
    start = time.process_time()
    with pytest.raises(LoadError):
        parse(HOSTILE[number])
    assert time.process_time() - start < 5


# Mutations.


def rich_text() -> str:
    """A text that has nearly everything in it."""
    layer = layer_graph()
    values = tuple(value for value, _ in VALUES)

    def body(add, x, w, b):
        y = add(Call(layer), x, w, b, at=Source.at("a b.py", 3, ("vjp", "pfor")))
        mid = add(Slice((0, 0), (floor_divide(BATCH, 2), 4), (1, 1)), y)
        held = [add(Anything(value, (f32(),), "options")) for value in values]
        cast = add(Cast(uint64), add(PreventGradient('no "<x>"'), mid))
        return add(Transpose((1, 0)), cast), held[-1], add(Call(layer), y, w, b)

    graph = traced("rich", {"x": f32(BATCH, 4), "w": f32(4, 4), "b": f32(4)}, body)
    return graph_text(graph, locations=True)


BITS = [
    *'%@<>()[]{}=,:"\\*+-.0123456789aefnx_ \n\té\u2028\x00',
    *(
        ", ",
        " = ",
        " : ",
        " at ",
        "->",
        "%0",
        "%x",
        "@layer",
        "f32[2]",
        "none",
        "inf",
        "0x7fc00001",
    ),
    *("graph @g(", "return", "}", "call<body=@layer>", "floordiv(batch,0)", "99999999999999999999"),
    *("max(", "*s", "batch", "f64 ", "opaque", 'bytes"', "token", "1e999", "sum<axes=[9]>", "-1"),
]


def mutated(text: str, random: random.Random) -> str:
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        kind = random.randrange(6)
        at = random.randrange(len(text) + 1)
        length = random.choice((1, 1, 2, 5, 40))
        if kind == 0:
            text = text[:at] + text[at + length :]
        elif kind == 1:
            text = text[:at] + random.choice(BITS) + text[at:]
        elif kind == 2:
            text = text[:at] + random.choice(BITS) + text[at + length :]
        elif kind == 3:
            other = random.randrange(len(text) + 1)
            text = text[:at] + text[other : other + length] + text[at + length :]
        else:
            lines = text.split("\n")
            i, j = random.randrange(len(lines)), random.randrange(len(lines))
            if kind == 4:
                lines[i], lines[j] = lines[j], lines[i]
            else:
                lines.insert(i, lines.pop(j) if random.random() < 0.5 else lines[j])
            text = "\n".join(lines)
    return text


def check_mutants(seed: int, count: int) -> tuple[int, int]:
    """How many mutants are refused and accepted; what is accepted is a graph that holds."""
    draw = random.Random(seed)
    texts = [rich_text(), (GRAPHS / "loss.txt").read_text("utf-8")]
    any_node = "%0 = any<value={}, types=[f32[2,3]], options={}>() : f32[2,3]".format
    texts += [with_node(any_node(text, text)) for _, text in VALUES]
    refused = accepted = 0
    for _ in range(count):
        text = mutated(draw.choice(texts), draw)
        try:
            graph = parse(text)
        except LoadError as error:
            refused += 1
            assert str(error).startswith(("line ", "the text holds no graph"))
            continue
        accepted += 1
        verify(graph)
        printed = graph_text(graph, locations=True)
        assert graph_text(parse(printed), locations=True) == printed
    return refused, accepted


def test_mutated_texts_are_refused_or_hold():
    refused, accepted = check_mutants(seed=0, count=4000)
    assert refused > 2000
    assert accepted > 100


@pytest.mark.slow
def test_many_mutated_texts():
    for seed in range(1, 11):
        check_mutants(seed, 20_000)


# Verifying.


def test_verify_accepts_what_is_right():
    assert layer_graph().verify() is None


def nodes_of_layer() -> tuple[Graph, list[Node]]:
    graph = layer_graph()
    return graph, list(graph.nodes)


def test_verify_finds_a_value_that_is_used_too_early():
    graph, nodes = nodes_of_layer()
    wrong = Graph("f", graph.inputs, (*nodes[1:], nodes[0]), graph.outputs)
    with pytest.raises(LoadError) as caught:
        verify(wrong)
    assert str(caught.value).startswith(
        "graph @f: operand 0 is not defined above in this graph (traced at train.py:7)\n"
        "  node: %1 = add(%3, %0) : f32[batch,4] at train.py:7\n"
    )


def test_verify_finds_foreign_values():
    graph, nodes = nodes_of_layer()
    with pytest.raises(
        LoadError, match=r"operand 0 is not defined above.*\n.*matmul\(%undefined, %w\)"
    ):
        verify(Graph("f", graph.inputs[1:], tuple(nodes), graph.outputs))
    with pytest.raises(
        LoadError, match=r"output 0, a f32\[batch,4\], is not defined in this graph"
    ):
        verify(Graph("f", graph.inputs, tuple(nodes[:-1]), graph.outputs))
    assert "return %undefined" in str(Graph("f", graph.inputs, tuple(nodes[:-1]), graph.outputs))


def test_verify_finds_repetitions():
    graph, nodes = nodes_of_layer()
    with pytest.raises(LoadError, match="a node occurs twice"):
        verify(Graph("f", graph.inputs, (*nodes, nodes[-1]), graph.outputs))
    with pytest.raises(LoadError, match=r"the value %x\.1 is defined twice"):
        verify(Graph("f", (graph.inputs[0], *graph.inputs), tuple(nodes), graph.outputs))
    copy = Node(nodes[-1].op, nodes[-1].inputs, PLACE, None)
    copy.outputs = nodes[-1].outputs
    with pytest.raises(LoadError, match=r"the value %\d is defined twice .*\n  node: "):
        verify(Graph("f", graph.inputs, (*nodes, copy), graph.outputs))


def graph_of_node(op: Op, *types: TensorType, makes: TensorType) -> Graph:
    builder = Builder("f")
    node = Node(op, tuple(builder.input(type) for type in types), PLACE, builder)
    y = Tensor.__new__(Tensor)
    y.type, y.node = makes, node
    node.outputs = (y,)
    return Graph("f", tuple(builder.inputs), (node,), (y,))


def test_verify_infers_again():
    with pytest.raises(LoadError, match=r"sin makes \(f32\[2\]\), and the node has other types"):
        verify(graph_of_node(Sin(), f32(2), makes=f32(3)))
    with pytest.raises(ShapeError, match="inner dimensions differ"):
        verify(graph_of_node(Matmul(), f32(2, 3), f32(2, 3), makes=f32(2, 3)))
    with pytest.raises(DTypeError, match="only floating"):
        verify(graph_of_node(Sin(), TensorType(int32), makes=f32()))
    with pytest.raises(LoadError, match="matmul does not fit its operands"):
        verify(graph_of_node(Matmul(), f32(2, 3), makes=f32(2, 3)))


def test_verify_looks_into_nested_graphs():
    wrong = graph_of_node(Sin(), f32(2), makes=f32(3))
    outer = traced("outer", {"x": f32(2)}, lambda add, x: add(Call(wrong), x))
    with pytest.raises(LoadError, match="graph @f: sin makes"):
        verify(outer)


# Operations and the summary.


def test_operations():
    layer = layer_graph()

    def body(add, x, w, b):
        once = add(Call(layer), x, w, b)
        return add(Sin(), add(Sin(), add(Call(layer), once, w, b)))

    graph = traced("f", {"x": f32(2, 4), "w": f32(4, 4), "b": f32(4)}, body)
    operations = graph.get_operations()
    assert str(operations[1]) == "<Operation call_1: call>"
    assert [operation.name for operation in operations] == ["call", "call_1", "sin", "sin_1"]
    assert [operation.type for operation in operations] == ["call", "call", "sin", "sin"]
    assert operations[0].inputs == graph.inputs
    assert operations[1].inputs[0] is operations[0].outputs[0]
    assert operations[1].control_inputs == ()


def test_summary():
    layer = traced("layer", {"x": f32(16, 4)}, lambda add, x: add(Tanh(), add(Mul(), x, x)))

    def body(add, x):
        half = add(Constant(np.float32(0.5)), at=Source.at("b.py", 9))
        wide = add(BroadcastTo((16, 4), ()), half, at=Source.at("b.py", 9))
        return add(Mul(), add(Call(layer), add(Call(layer), x)), wide, at=Source.at("b.py", 10))

    graph = traced("loss", {"x": f32(16, 4)}, body)
    table = graph.summary().splitlines()
    assert table[:3] == [
        "@loss: 1 input, 1 output, 2 graphs",
        "arguments: 64 elements, 256 bytes",
        "",
    ]
    rows = {line.split()[0]: line.split()[1:] for line in table[3:] if line}
    assert rows["op"] == ["nodes", "bytes", "FLOPs"]
    assert rows["tanh"] == ["1", "512", "128"]  # the layer runs twice
    assert rows["mul"] == ["2", "768", "192"]
    assert rows["constant"] == ["1", "4", "0"]
    assert rows["b.py:10"] == ["1", "256", "64"]
    assert rows["train.py:7"][0] == "4"
    assert rows["total"][0] == "7"


def test_summary_of_open_sizes():
    table = layer_graph().summary()
    assert "arguments: 4*batch+20 elements, 16*batch+80 bytes" in table
    unknown = TensorType(float32, ShapeVariable("s"))
    graph = traced("f", {"x": unknown}, lambda add, x: add(Sin(), x))
    assert "arguments: s.size elements, 4*s.size bytes" in graph.summary()


def test_summary_asks_the_op(monkeypatch):
    monkeypatch.setattr(Matmul, "flops", lambda self, x, y: 1234, raising=False)
    assert "1,234" in layer_graph().summary()


# Size.


def chain(count: int) -> Graph:
    builder = Builder("chain")
    x = y = builder.input(f32(16, 4), "x")
    ops = [Add(), Mul(), Sin(), Tanh()]
    for i in range(count):
        if i % 4 == 3:
            (c,) = builder.add(
                Constant(np.full((16, 4), i, np.float32)[:1, :1].reshape(())), (), PLACE
            )
            (c,) = builder.add(BroadcastTo((16, 4), ()), (c,), Source.at("a.py", i % 997 + 1))
            (y,) = builder.add(ops[i % 2], (y, c), PLACE)
        else:
            op = ops[i % 4]
            (y,) = builder.add(op, (y, x) if i % 4 < 2 else (y,), Source.at("b.py", i % 1009 + 1))
    return builder.finish([y])


def seconds(function: Any, *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


@pytest.mark.slow
def test_a_hundred_thousand_nodes():
    graph = chain(66_000)
    assert len(graph.nodes) > 98_000
    printing, text = seconds(graph_text, graph, True)
    parsing, parsed = seconds(parse, text)
    assert graph_text(parsed, locations=True) == text
    verifying, _ = seconds(verify, parsed)
    assert printing < 2
    assert parsing < 5
    assert verifying < 2


@pytest.mark.slow
def test_a_large_constant():
    array = np.random.default_rng(0).normal(size=(1000, 1000)).astype(np.float32)
    graph = traced("f", {}, lambda add: add(Constant(array)))
    printing, text = seconds(graph_text, graph)
    parsing, parsed = seconds(parse, text)
    assert parsed.nodes[0].op is graph.nodes[0].op
    assert printing + parsing < 20


@pytest.mark.slow
def test_ten_thousand_nested_graphs():
    graph = traced("g", {"x": f32()}, lambda add, x: add(Sin(), x))
    for _ in range(10_000):
        inner = graph
        graph = traced("g", {"x": f32()}, lambda add, x, inner=inner: add(Call(inner), x))
    assert graph_text(parse(graph_text(graph))) == graph_text(graph)
    assert "total" in graph.summary()
