"""Views of graphs: each shows what the text shows, and is valid in its language for any graph."""

import itertools
import json
import pickle
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import ml_dtypes
import networkx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg
from tracegraph.calls.call import Call
from tracegraph.core.shapes import Dim, ShapeVariable
from tracegraph.core.source import UNKNOWN, Source
from tracegraph.core.types import TOKEN, TensorType, complex128, float32, int32
from tracegraph.ir.builder import Builder
from tracegraph.ir.tensor import Graph, Node, pending_tensor
from tracegraph.ops.broadcast import BroadcastTo, Sum
from tracegraph.ops.constant import Constant, DimSize
from tracegraph.ops.contract import Matmul
from tracegraph.ops.effect import READ
from tracegraph.ops.elementwise import Add, Cos, Exp, Mul, Neg, PreventGradient, Sin, Sub, Tanh
from tracegraph.ops.reduce import ArgMax, Max
from tracegraph.text import parse
from tracegraph.text.printer import value_names
from tracegraph.views.alignment import align
from tracegraph.views.outline import RETURN, outline

PLACE = Source.at("train.py", 7)
TEXTS = ("to_dot", "to_mermaid", "to_json", "to_model_explorer", "summary")

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


def f32(*shape):
    return TensorType(float32, shape)


def traced(name, arguments, body):
    """A graph of arguments given by name and type; `body(add, *inputs)` returns the outputs."""
    builder = Builder(name)
    inputs = [builder.input(type, key) for key, type in arguments.items()]

    def add(op, *operands, at=PLACE):
        outputs = builder.add(op, operands, at)
        return outputs[0] if len(outputs) == 1 else outputs

    found = body(add, *inputs)
    return builder.finish(found if isinstance(found, list) else [found])


def chain(count, at=-1, op=None, first=None):
    """Elementwise ops in a row. The one `at` a place is another `op`, or is missing."""
    ops = (Sin(), Tanh(), Exp(), Cos())

    def body(add, x):
        y = x if first is None else add(first, x)
        for i in range(count):
            made = op if i == at else ops[i % 4]
            y = y if made is None else add(made, y)
        return y

    return traced("chain", {"x": f32(2)}, body)


def layered():
    """A graph that calls others, with a custom gradient, Variables, open sizes and a print."""
    with tg.name_scope("encoder"):
        w = tg.Variable(tg.ones([4, 3]), name="w")

    @tg.custom_gradient
    def clipped(x):
        return x * 2.0, lambda g: tg.clip_by_value(g, -1.0, 1.0)

    @tg.function
    def layer(x):
        return tg.tanh(clipped(x @ w))

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(layer(x))
        w.assign_sub(tape.gradient(loss, w))
        tg.print("loss", loss)
        return loss, loss

    return step.get_concrete_function(tg.TensorSpec([None, 4])).graph


def controlled():
    """A loop with branches in it, a choice of three, a scan, and the gradient of them."""
    w = tg.Variable(tg.ones([3, 3]), name="w")

    @tg.function
    def walk(x, count):
        for _ in tg.range(count):
            if tg.reduce_sum(x) > 10.0:
                x = x / 2.0
            else:
                x = tg.tanh(x @ w)
        branches = [lambda: x, lambda: x * 2.0, lambda: tg.exp(x)]
        x = tg.switch_case(count % 3, branches)
        return tg.scan(lambda state, row: tg.tanh(state + row), x, tg.zeros([3]))

    @tg.function
    def step(x, count):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(walk(x, count))
        return tape.gradient(loss, w)

    return step.get_concrete_function(tg.TensorSpec([4, 3]), tg.TensorSpec([], tg.int32)).graph


def strange():
    """Every kind of type and constant, and texts that are syntax in some language."""

    def body(add, x, y, token):
        texts = '<script>alert("&quot;\\")</script> %%{x}%% `md` #35; |--> end]\n\\N\x07\ud800'
        z = add(PreventGradient(texts), x, at=Source.at('a "b"&<i>.py', 3, ("vjp",)))
        wide = add(Constant(np.arange(100).astype(ml_dtypes.bfloat16)))
        complex_ = add(Constant(np.array([1 + 2j, complex("nan")])), at=UNKNOWN)
        return [z, z, x, token, wide, complex_, add(DimSize(Dim.named("batch") * 2 + 1)), y]

    types = {
        'sco"pe/<script>&amp;\n\\N': TensorType(float32, ShapeVariable("s")),
        "λ %%{init} end\x00": TensorType(complex128, (Dim.named("batch") * 2 + 1, 0)),
        "token": TOKEN,
    }
    return traced('na"me <script>\n%% end', types, body)


def empty():
    return Graph("empty", (), (), ())


def without_outputs():
    return traced("effectless", {"x": f32()}, lambda add, x: [])


GRAPHS = {
    "layered": layered,
    "controlled": controlled,
    "strange": strange,
    "empty": empty,
    "without outputs": without_outputs,
    "constant": lambda: traced("c", {}, lambda add: add(Constant(np.float32(1)))),
    "input twice": lambda: traced("twice", {"x": f32(2)}, lambda add, x: [x, x]),
}


@pytest.fixture(params=list(GRAPHS))
def graph(request):
    return GRAPHS[request.param]()


def wrong_graph():
    """It reads and returns a value of another graph."""
    foreign = chain(1).outputs[0]
    node = Node(Sin(), (foreign,), PLACE, None)
    node.outputs = (pending_tensor(f32(2), node),)
    return Graph("wrong", (), (node,), (*node.outputs, foreign))


# The outline.


def test_the_outline_names_what_the_text_names(graph):
    found = outline(graph)
    text = graph.as_text()
    assert re.findall(r"^graph @([\w.]+)\(", text, re.MULTILINE) == [g.name for g in found]
    assert found.entry.name == found.graphs[-1].name
    for inner, shown in zip(graph.graphs(), found):
        names = value_names(inner)
        assert [x.name for x in shown.inputs] == [names[x] for x in inner.inputs]
        assert list(shown.outputs) == [names[y] for y in inner.outputs]
        for node, one in zip(inner.nodes, shown.nodes, strict=True):
            assert [y.name for y in one.outputs] == [names[y] for y in node.outputs]
            assert list(one.operands) == [names[x] for x in node.inputs]
            assert [y.type for y in one.outputs] == [str(y.type) for y in node.outputs]
            assert one.op == node.op.name
            if not any("..." in text for _, text in one.attributes):
                assert f" = {one.label}({', '.join(one.operands)})" in text


def test_edges_lead_from_where_a_value_is_made_to_where_it_is_read(graph):
    for inner in outline(graph):
        ids = [node.id for node in inner.nodes]
        assert len(set(ids)) == len(ids)
        makers = {x.name: [x] for x in inner.inputs} | {n.id: n.outputs for n in inner.nodes}
        readers = {n.id: n.operands for n in inner.nodes} | {RETURN: inner.outputs}
        assert len(inner.edges) == sum(map(len, readers.values()))
        for edge in inner.edges:
            assert makers[edge.producer][edge.output] == edge.value
            assert readers[edge.consumer][edge.operand] == edge.value.name
            assert inner.values[edge.value.name] == edge.value


def test_the_outline_of_a_traced_function():
    found = outline(layered())
    assert found.entry.name == "step"
    assert found["layer_forward"].inputs[1].given_name == "encoder/w"
    assert found["layer_forward"].inputs[1].scope == "encoder"
    assert found.entry.inputs[0].shape == ("d0", 4)
    assert found.entry.inputs[-1].dtype == "token"
    held = {(caller, attribute, callee) for caller, _, attribute, callee in found.calls}
    assert ("layer_forward", "body", "clipped") in held
    assert ("layer_forward", "backward", "clipped_backward") in held
    assert ("step", "body", "layer_vjp") in held
    node = found["layer_forward"].nodes[0]
    assert (node.op, node.place.short_file) == ("matmul", "test_views.py")
    assert node.place.code == "return tg.tanh(clipped(x @ w))"
    roles = {node.place.roles for node in found["layer_vjp"].nodes}
    assert roles == {("vjp",)}
    assert str(found["layer_vjp"].nodes[0].place).endswith(" vjp")


def test_unknown_shapes_and_places():
    found = outline(strange())
    assert found.entry.inputs[0].shape == ("*s",)
    assert found.entry.inputs[1].shape == ("2*batch+1", 0)
    places = [str(node.place) for node in found.entry.nodes]
    assert places[0] == 'a "b"&<i>.py:3 vjp'
    assert places[2] == ""


def test_a_large_constant_is_cut_short():
    node = outline(strange()).entry.nodes[1]
    shown = "bf16[100]{0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ...}"
    assert node.attributes == (("value", shown),)
    flat = traced("c", {}, lambda add: add(Constant(np.zeros((8, 8), bool))))
    text = outline(flat).entry.nodes[0].attributes[0][1]
    assert text == f"bool[8,8]{{{'false, ' * 8}...}}"


def test_every_view_of_a_wrong_graph():
    wrong = wrong_graph()
    assert outline(wrong).entry.outputs == ("%0", "%undefined")
    for view in TEXTS:
        assert getattr(wrong, view)()
    assert wrong.to_networkx().number_of_nodes() == 3


# NetworkX.


def test_networkx(graph):
    found = graph.to_networkx()
    assert isinstance(found, networkx.MultiDiGraph)
    assert networkx.is_directed_acyclic_graph(found)
    nodes = sum(len(g.inputs) + len(g.nodes) + len(g.outputs) for g in graph.graphs())
    assert found.number_of_nodes() == nodes
    kinds = [kind for *_, kind in found.edges(data="kind")]
    assert kinds.count("value") == sum(len(g.edges) for g in outline(graph))
    every = (
        (node.op, call) for inner in outline(graph) for node in inner.nodes for call in node.calls
    )
    called = [
        name for op, (attribute, name) in every if (op, attribute) != ("custom_call", "backward")
    ]
    assert kinds.count("call") == sum(len(outline(graph)[name].inputs) for name in called)
    assert len(kinds) == kinds.count("value") + kinds.count("call")
    for _, attributes in found.nodes(data=True):
        assert all(type(value) in (str, int) for value in attributes.values())
    alone = graph.to_networkx(nested=False)
    assert set(alone) == {name for name in found if found.nodes[name]["graph"] == alone.name}


def test_networkx_writes_its_formats(graph, tmp_path):
    found = graph.to_networkx()
    networkx.write_graphml(found, tmp_path / "graph.graphml")
    back = networkx.read_graphml(tmp_path / "graph.graphml", force_multigraph=True)
    assert dict(back.nodes(data=True)) == dict(found.nodes(data=True))
    data = json.loads(json.dumps(networkx.node_link_data(found, edges="edges")))
    assert networkx.utils.graphs_equal(networkx.node_link_graph(data, edges="edges"), found)


def test_attributes_for_networkx():
    found = layered().to_networkx()
    node = found.nodes["layer_forward/%0"]
    assert (node["op"], node["kind"], node["dtype"]) == ("matmul", "op", "float32")
    assert (node["shape"], node["types"]) == ("[d0,3]", "f32[d0,3]")
    assert node["line"] > 0 and node["file"].endswith("test_views.py")
    custom = found.nodes["layer_forward/%1"]
    assert custom["calls"] == "body=clipped backward=clipped_backward"
    assert found.nodes["step/return.1"]["kind"] == "output"
    (edge,) = found.get_edge_data("layer_forward/%encoder.w", "layer_forward/%0").values()
    assert (edge["operand"], edge["type"]) == (1, "f32[4,3]")
    assert len(networkx.descendants(found, "step/%x")) > 3


def test_what_depends_on_a_value_is_found_within_calls():
    found = layered().to_networkx()
    below = networkx.descendants(found, "step/%x")
    assert {"layer_forward/%0", "layer_vjp/%0", "clipped/%x"} <= below
    assert "backward" not in {attribute for *_, attribute in found.edges(data="attribute")}
    edges = found.get_edge_data("step/%0", "layer_forward/%x")
    assert edges["body.0"]["kind"] == "call" and edges["body.0"]["attribute"] == "body"
    alone = layered().to_networkx(nested=False)
    assert {kind for *_, kind in alone.edges(data="kind")} == {"value"}


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("while", ["body", "condition"]),
        ("cond", ["true", "false"]),
        ("switch", ["branches"] * 3),
        ("scan", ["body"]),
        ("while_gradient", ["body", "backward"]),
    ],
)
def test_branches_and_bodies_are_graphs_of_their_own(op, attributes):
    graph = controlled()
    found = outline(graph)
    inner, node = next((x, node) for x in found for node in x.nodes if node.op == op)
    assert [attribute for attribute, _ in node.calls] == attributes
    held = [name for _, name in node.calls]
    assert all(f"graph @{name}(" in graph.as_text() for name in held)
    dot, mermaid = graph.to_dot(), graph.to_mermaid()
    numbers = {x.name: number for number, x in enumerate(found)}
    for attribute, name in node.calls:
        assert f'label="@{name}"; style=rounded' in dot
        call = f'"{inner.name}/{node.id}" -> "{name}/.*" \\[label="{attribute}", '
        assert re.search(f"{call}lhead=cluster_{numbers[name]}", dot)
        assert f'subgraph g{numbers[name]}["@{name}"]' in mermaid
        assert f'-.->|"{attribute}"| g{numbers[name]}' in mermaid
    explored = {x["id"]: x for x in json.loads(graph.to_model_explorer())["graphs"]}
    (shown,) = [x for x in explored[inner.name]["nodes"] if x["id"] == node.id]
    assert shown["subgraphIds"] == list(dict.fromkeys(held))
    below = networkx.descendants(graph.to_networkx(), f"{inner.name}/{node.id}")
    for name in held:
        assert {f"{name}/{value.name}" for value in found[name].inputs} <= below


def test_importing_does_not_load_networkx():
    code = (
        "import sys, tracegraph as tg\n"
        "g = tg.function(lambda x: x + 1.0).get_concrete_function(tg.TensorSpec([2])).graph\n"
        "assert 'add' in g.to_dot() + g.to_mermaid() + g.to_json() + g.summary()\n"
        "assert 'networkx' not in sys.modules\n"
        "g.to_networkx()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


# Graphviz and Mermaid.

STRING = r'"(?:[^"\\]|\\.)*"'
DOT_ATTRIBUTES = rf"\[\w+=(?:{STRING}|[\w.]+)(?:, \w+=(?:{STRING}|[\w.]+))*\]"
DOT_LINE = re.compile(
    rf"(?:digraph {STRING} \{{|\s*subgraph cluster_\d+(?:_\d+)? \{{|\s*\}}"
    rf"|\s*(?:node|edge) {DOT_ATTRIBUTES};"
    rf"|(?:\s*\w+=(?:{STRING}|\w+);)+"
    rf"|\s*{STRING}(?: -> {STRING})? {DOT_ATTRIBUTES};)"
)
LABEL = r'"(?:[\w .,:=%@()\[\]/+-]|#\d+;|<br/>)*"'
MERMAID_LINE = re.compile(
    rf"(?:flowchart TB|\s*subgraph g\d+(?:s\d+)?\[{LABEL}\]|\s*direction TB|\s*end"
    rf"|\s*g\d+n\d+(?:\[{LABEL}\]|\(\[{LABEL}\]\))(?::::derived)?"
    rf"|\s*g\d+n\d+ -->\|{LABEL}\| g\d+n\d+|\s*g\d+n\d+ -\.->\|{LABEL}\| g\d+"
    r"|\s*classDef derived [\w:#,]+)"
)


def test_dot_is_valid(graph):
    text = graph.to_dot()
    for line in text.splitlines():
        assert DOT_LINE.fullmatch(line), line
        for string in re.findall(STRING, line):
            assert string.isprintable()
            assert not re.search(r"&(?!amp;)", string)
    assert text.count("{") - text.count("}") == sum(
        string.count("{") - string.count("}") for string in re.findall(STRING, text)
    )
    declared = set(re.findall(rf"^\s*({STRING}) \[", text, re.MULTILINE))
    for ends in re.findall(rf"^\s*({STRING}) -> ({STRING})", text, re.MULTILINE):
        assert declared.issuperset(ends)
    functions = re.findall(r"subgraph cluster_\d+ ", text)
    assert len(functions) == len(outline(graph).graphs)
    assert len(set(re.findall(r"subgraph (\w+)", text))) == text.count("subgraph ")


def test_mermaid_is_valid(graph):
    lines = graph.to_mermaid().splitlines()
    for line in lines:
        assert MERMAID_LINE.fullmatch(line), line
    declared = {found[1] for line in lines if (found := re.match(r"\s*(g\d+n\d+)[\[(]", line))}
    used = {word for line in lines if "->|" in line for word in re.findall(r"\bg\d+n\d+\b", line)}
    assert used <= declared
    subgraphs = sum(line.strip().startswith("subgraph") for line in lines)
    assert subgraphs == sum(line.strip() == "end" for line in lines)


def test_pictures_show_shapes_calls_and_what_was_derived():
    dot, mermaid = layered().to_dot(), layered().to_mermaid()
    assert '"step/%x" [label="%x\\nf32[d0,4]"' in dot
    assert '"layer_forward/%x" -> "layer_forward/%0" [label="f32[d0,4]"];' in dot
    assert 'label="body", lhead=cluster_' in dot
    assert re.search(r'"layer_vjp/%0" \[.*fillcolor="#fdf0e6"', dot)
    assert not re.search(r'"layer_forward/%0" \[.*fillcolor', dot)
    assert '-->|"f32[d0,4]"|' in mermaid and '-.->|"backward"|' in mermaid
    assert ":::derived" in mermaid


def scoped():
    """Two layers in a network, a scope that no line of the code names, and what is derived."""

    def dense(x, w, name):
        with tg.name_scope(name):
            return tg.tanh(x @ w)

    @tg.function
    def step(x, w):
        with tg.GradientTape() as tape:
            tape.watch(w)
            with tg.name_scope('net "<1>"'):
                loss = tg.reduce_sum(dense(dense(x, w, "first"), w, "second"))
        return tape.gradient(loss, w)

    return step.get_concrete_function(tg.TensorSpec([2, 3]), tg.TensorSpec([3, 3])).graph


def dot_boxes(text):
    """Per node the labels of the clusters around it, outermost first."""
    boxes, around = {}, []
    for line in text.splitlines()[1:]:
        if "subgraph" in line:
            around.append(None)
        elif around and around[-1] is None:
            around[-1] = re.search(rf"label=({STRING})", line)[1][1:-1]
        elif line.strip() == "}" and around:
            around.pop()
        elif found := re.match(r'\s*"\w+/(%\d+)" \[', line):
            boxes[found[1]] = tuple(around)
    return boxes


def test_pictures_have_a_box_for_each_scope():
    graph = scoped()
    (found,) = outline(graph)
    boxes = dot_boxes(graph.to_dot())
    for node in found.nodes:
        scopes = [scope.replace('"', '\\"') for scope in node.scope.split("/") if scope]
        assert boxes[node.id] == ("@step", *scopes)
    roles = {bool(node.place.roles) for node in found.nodes if node.scope.endswith("/first")}
    assert roles == {False, True}, "forward and backward of a scope are in the one box"
    for text, end in ((graph.to_dot(), "}"), (graph.to_mermaid(), "end")):
        assert text.count('first"') == text.count('second"') == 1
        assert [line.strip() for line in text.splitlines()].count(end) >= 4
    mermaid = graph.to_mermaid()
    assert all(map(MERMAID_LINE.fullmatch, mermaid.splitlines()))
    assert re.findall(r"subgraph (\w+)", mermaid) == ["g0", "g0s0", "g0s1", "g0s2"]
    assert 'g0s0["net #34;#60;1#62;#34;"]' in mermaid


def test_a_scope_that_holds_a_scope_alone_is_joined_with_it():
    def body(add, x):
        y = add(Cos(), x, at=Source.at("a.py", 1, scope="a//b/c"))
        return add(Sin(), y, at=Source.at("a.py", 2, scope="d" * 99))

    graph = traced("joined", {"x": f32(2)}, body)
    assert dot_boxes(graph.to_dot()) == {
        "%0": ("@joined", "a/b/c"),
        "%1": ("@joined", "d" * 57 + "..."),
    }


@settings(max_examples=20, deadline=None)
@given(name=st.text(max_size=20), scope=st.text(max_size=20), message=st.text(max_size=40))
def test_any_text_is_escaped(name, scope, message):
    def body(add, x):
        return add(PreventGradient(message), x, at=Source.at(name or "a.py", 3, scope=scope))

    graph = traced(name, {scope: f32(2)}, body)
    assert all(map(DOT_LINE.fullmatch, graph.to_dot().splitlines()))
    assert all(map(MERMAID_LINE.fullmatch, graph.to_mermaid().splitlines()))
    xml = "\n".join(networkx.generate_graphml(graph.to_networkx()))
    assert ElementTree.fromstring(xml) is not None
    assert json.loads(graph.to_json())["graphs"][0]["inputs"][0].get("given_name", "") == scope
    assert json.loads(graph.to_model_explorer())["graphs"][0]["nodes"]


# JSON.


def test_json(graph):
    data = json.loads(graph.to_json())
    assert (data["format"], data["version"]) == ("tracegraph-outline", 1)
    assert data["entry"] == data["graphs"][-1]["name"]
    names = [inner["name"] for inner in data["graphs"]]
    for inner, found in zip(data["graphs"], outline(graph), strict=True):
        assert [node["op"] for node in inner["nodes"]] == [node.op for node in found.nodes]
        assert inner["outputs"] == list(found.outputs)
        for node in inner["nodes"]:
            assert all(call["graph"] in names for call in node["calls"])
    assert json.loads(graph.to_json(indent=1)) == data


def test_model_explorer(graph):
    data = json.loads(graph.to_model_explorer())
    assert set(data) == {"label", "graphs"}
    names = [inner["id"] for inner in data["graphs"]]
    assert names[0] == outline(graph).entry.name  # it is what the viewer opens with
    assert len(set(names)) == len(names)
    for inner in data["graphs"]:
        nodes = {node["id"]: node for node in inner["nodes"]}
        assert len(nodes) == len(inner["nodes"])
        for node in inner["nodes"]:
            assert set(node.get("subgraphIds", [])) <= set(names)
            assert isinstance(node["label"], str) and isinstance(node["namespace"], str)
            for edge in node["incomingEdges"]:
                made = nodes[edge["sourceNodeId"]]["outputsMetadata"]
                assert edge["sourceNodeOutputId"] in [output["id"] for output in made]
            for item in [*node.get("inputsMetadata", []), *node["outputsMetadata"]]:
                assert all(isinstance(pair["value"], str) for pair in item["attrs"])


# Files, and other ways to the views.


@pytest.mark.sampled(10)
@pytest.mark.parametrize("view", ["to_dot", "to_mermaid", "to_json", "to_model_explorer"])
def test_views_are_written_to_files(graph, view, tmp_path):
    path = tmp_path / "graph.out"
    assert getattr(graph, view)(path) == getattr(graph, view)() == path.read_text("utf-8")
    assert getattr(graph, view)(str(path)) == path.read_text("utf-8")
    with pytest.raises(tg.errors.TraceError, match=f"{view}: the path 1 is an int"):
        getattr(graph, view)(1)


def test_json_is_indented_in_a_file(tmp_path):
    text = empty().to_json(tmp_path / "o.json", indent=1)
    assert text == (tmp_path / "o.json").read_text("utf-8") and text.startswith('{\n "format"')


@pytest.mark.parametrize("locations", ["o.txt", 1, None])
def test_text_takes_no_path(locations):
    with pytest.raises(tg.errors.TraceError, match=r"as_text: locations=.* not a bool") as caught:
        empty().as_text(locations)
    assert "write_text(graph.as_text())" in str(caught.value)


def test_a_concrete_function_has_the_views_of_its_graph(tmp_path):
    concrete = tg.function(lambda x: tg.sin(x)).get_concrete_function(tg.TensorSpec([2]))
    for view in (*TEXTS, "as_text", "to_html", "_repr_html_"):
        assert getattr(concrete, view)() == getattr(concrete.graph, view)()
    assert concrete.as_text(locations=True) == concrete.graph.as_text(locations=True)
    assert concrete.to_dot(tmp_path / "f.dot") == (tmp_path / "f.dot").read_text("utf-8")
    assert concrete.to_networkx(nested=False).name == concrete.graph.name
    views = [name for name in vars(Graph) if name.startswith("to_")]
    assert all(hasattr(tg.ConcreteFunction, name) for name in [*views, "get_operations"])


def test_a_function_shows_its_traces():
    f = tg.function(lambda x: tg.sin(x))
    assert f._repr_html_() is None
    f(tg.ones([2]))
    assert f._repr_html_() == f.traces[0]._repr_html_()
    f(tg.ones([3]))
    shown = re.findall(r"<summary>(.*?)</summary>", f._repr_html_())
    assert shown == [f"&lt;lambda&gt;(x: f32[{n}]) -&gt; (f32[{n}])" for n in (2, 3)]


# The summary.


def rows_of(table, title):
    """The rows of one table of a summary by their first word, as lists of cells."""
    (part,) = [part for part in table.split("\n\n") if re.search(rf"^{title}\b", part, re.M)]
    return {line.split()[0]: line.split()[1:] for line in part.splitlines() if line.strip()}


def flops(op, *types):
    def body(add, *inputs):
        return add(op, *inputs)

    graph = traced("f", {f"x{i}": type for i, type in enumerate(types)}, body)
    return rows_of(graph.summary(), "op")["total"][2]


@pytest.mark.parametrize(
    ("op", "types", "expected"),
    [
        (Matmul(), (f32(3, 4), f32(4, 5)), "120"),
        (Matmul(), (f32(2, 3, 4), f32(2, 4, 5)), "240"),
        (Matmul(), (f32(Dim.named("n"), 4), f32(4, 5)), "40*n"),
        (Sum(None), (f32(3, 4),), "11"),
        (Sum((1,)), (f32(3, 4),), "9"),
        (Sum((0,)), (f32(0, 4),), "0"),
        (Max((0,)), (f32(Dim.named("n"), 4),), "4*n-4"),
        (ArgMax(0, int32), (f32(3, 4),), "8"),
        (Tanh(), (f32(3, 4),), "12"),
        (BroadcastTo((3, 4), (1,)), (f32(4),), "0"),
    ],
)
def test_flops(op, types, expected):
    assert flops(op, *types) == expected


def flops_of_convolution(x, kernel, **options):
    """Those of a convolution and of its two gradients."""

    @tg.function
    def f(x, kernel):
        with tg.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tg.reduce_sum(tg.nn.conv2d(x, kernel, **options))
        return y, tape.gradient(y, [x, kernel])

    rows = f.get_concrete_function(tg.TensorSpec(x), tg.TensorSpec(kernel)).graph.summary().rows
    (found,) = [row.costs for row in rows if row.by == "op" and row.name == "conv"]
    return found["forward"].flops, found["backward"].flops


@pytest.mark.parametrize(
    ("padding", "strides", "places"),
    [("SAME", 1, 64), ("VALID", 1, 36), ("SAME", 2, 16), ("VALID", 2, 9)],
)
def test_flops_of_a_convolution_and_its_gradients(padding, strides, places):
    """The count by hand: two for each place, element of the window, and pair of channels."""
    by_hand = 2 * 5 * places * (3 * 3) * 3 * 4
    forward, backward = flops_of_convolution(
        [5, 8, 8, 3], [3, 3, 3, 4], strides=strides, padding=padding
    )
    assert forward == by_hand and backward == 2 * by_hand


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [1, 2])
def test_flops_of_a_convolution_of_open_size_are_those_of_the_size(padding, strides):
    options = {"strides": strides, "padding": padding}
    open_sizes = flops_of_convolution([None, None, 8, 3], [3, 3, 3, 4], **options)
    known = flops_of_convolution([5, 9, 8, 3], [3, 3, 3, 4], **options)
    assert [flops.substitute({"d0": 5, "d1": 9}) for flops in open_sizes] == list(known)


def test_forward_and_backward_stand_beside_each_other():
    @tg.function
    def slope(x, w):
        with tg.GradientTape() as tape:
            tape.watch(w)
            y = tg.tanh(x @ w)
        return tape.gradient(y, w)

    graph = slope.get_concrete_function(tg.TensorSpec([16, 4]), tg.TensorSpec([4, 3])).graph
    table = graph.summary()
    rows = rows_of(table, "op")
    assert rows["forward"] == ["backward"]
    assert rows["op"] == ["nodes", "bytes", "FLOPs"] * 2
    assert rows["matmul"] == ["1", "192", "384", "1", "48", "384"]
    assert rows["tanh"] == ["1", "192", "48", "0", "0", "0"]
    assert rows["transpose"] == ["0", "0", "0", "1", "256", "0"]
    lines = rows_of(table, "line")
    derived = [row for name, row in lines.items() if name.startswith("test_views.py:")]
    assert ["2", "384", "432", "4"] in [row[:4] for row in derived]  # one row has both
    assert "together: 8 nodes" in table


def test_the_gradient_of_a_loop_of_open_size_is_counted():
    @tg.function
    def step(x, count):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tg.range(count):
                y = tg.tanh(y) * x
            loss = tg.reduce_sum(y)
        return tape.gradient(loss, x)

    specs = tg.TensorSpec(["n", 3]), tg.TensorSpec([], tg.int32)
    table = step.get_concrete_function(*specs).graph.summary()
    rows = {row.name: row.total for row in table.rows if row.by == "op"}
    # The state alone goes backwards: the first run counts, and the second computes it again.
    assert (rows["while"].nodes, rows["while_gradient"].nodes) == (1, 1)
    assert str(rows["tanh"].flops) == "6*n" and rows["tanh"].nodes == 2


def test_what_the_backward_calls_is_backward():
    rows = rows_of(layered().summary(), "op")
    assert rows["maximum"][:3] == ["0", "0", "0"]  # the custom gradient that the user wrote
    assert rows["maximum"][3] == "1"
    assert rows["tanh"][3] == "0"


def test_inputs_and_parameters():
    def body(add, x, w):
        return add(Mul(), x, add(READ.__class__(), w, w))

    table = traced("f", {"x": f32(6), "w": f32(6)}, body).summary()
    assert "parameters: 1 of them, 6 elements, 24 bytes" in table
    assert rows_of(table, "input")["%w"] == ["f32[6]", "6", "24"]
    assert "parameters" not in chain(2).summary()
    found = layered().summary()
    assert "arguments: 4*d0 elements, 16*d0 bytes" in found
    assert "parameters: 1 of them, 12 elements, 48 bytes" in found
    assert [row["role"] for row in found.to_dict()["inputs"]] == ["argument", "variable", "token"]
    assert "arguments: 0 elements, 0 bytes" in empty().summary()


def test_what_a_function_captured_is_no_argument():
    table, array = tg.ones([5]), np.full(200, 2.0, np.float32)

    @tg.function
    def f(x):
        return x + tg.reduce_sum(table) + tg.reduce_sum(array)

    found = f.graph(tg.TensorSpec([2, 3])).summary()
    assert "arguments: 6 elements, 24 bytes\ncaptured: 2 of them, 205 elements" in found
    rows = [(row["name"], row["role"]) for row in found.to_dict()["inputs"]]
    assert rows == [("%x", "argument"), ("%table", "captured"), ("%captured", "captured")]


T = tg.TensorSpec


def called():
    @tg.function(input_signature=[T([None, 4]), T([4, 3])])
    def layer(x, w):
        return tg.tanh(x @ w)

    return layer


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(2, 10, 27 * 12), (None, 10, "27*d0+270"), (None, None, "27*d0+27*d1")],
)
def test_a_graph_that_is_called_counts_at_the_sizes_of_each_call(first, second, expected):
    layer = called()
    f = tg.function(lambda a, b, w: (layer(a, w), layer(b, w)))
    table = f.graph(T([first, 4]), T([second, 4]), T([4, 3])).summary()
    (cost,) = table.totals.values()
    assert str(cost.flops) == str(expected)
    assert cost.nodes == 4  # each stands in the text once


def test_sizes_of_calls_in_calls_are_those_of_the_caller():
    layer = called()
    twice = tg.function(lambda a, w: layer(tg.concat([a, a], 0), w))
    for size, expected in ((5, str(6 * 27 * 5)), (None, f"{6 * 27}*d0")):
        f = tg.function(lambda a, w: twice(tg.concat([a, a, a], 0), w))
        (cost,) = f.graph(T([size, 4]), T([4, 3])).summary().totals.values()
        assert str(cost.flops) == expected


def test_sizes_of_a_call_of_unknown_rank():
    square = tg.function(lambda x: x * x, input_signature=[T(None)])
    f = tg.function(lambda a, b: (square(a), square(b)))
    (cost,) = f.graph(T([2, 3]), T([5])).summary().totals.values()
    assert cost.flops == 11


def test_forward_in_the_summary_is_the_forward_part():
    model, optimizer = tg.layers.Dense(4), tg.optimizers.Adam(0.1)

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(tg.square(model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    graph = step.graph(T([8, 3]))
    whole = graph.summary().totals
    assert set(whole) == {"forward", "backward", "after"}
    assert graph.forward().summary().totals == {"forward": whole["forward"]}
    assert graph.backward().summary().totals == {x: whole[x] for x in ("backward", "after")}


def costs_of_regions(function, *specs):
    rows = function.get_concrete_function(*specs).graph.summary().rows
    return {row.name: (row.runs, row.total.flops) for row in rows if row.by == "region"}


def test_one_run_of_each_branch_and_body():
    @tg.function
    def walk(x, count):
        for _ in tg.range(count):
            if x[0] > 10.0:
                x = tg.sqrt(x)
            else:
                x = tg.tanh(x) * 2.0
        return tg.scan(lambda state, row: tg.exp(state + row), x)

    found = costs_of_regions(walk, tg.TensorSpec([5]), tg.TensorSpec([], tg.int32))
    inside = {name: runs for name, (runs, _) in found.items()}
    assert inside == {
        "while @body": "until it ends",
        "while @cond": "until it ends",
        "cond @true_fn": "one of 2",
        "cond @false_fn": "one of 2",
        "scan @scan": "4 times",
    }
    assert found["cond @true_fn"][1] == 5 and found["cond @false_fn"][1] == 10
    assert found["while @body"][1] == 5 + 10 + 2  # both branches, the test and the counter
    assert found["scan @scan"][1] == 2


def test_what_a_parallel_loop_computes_of_branches_is_told():
    w = tg.Variable(tg.ones([8, 8]), name="w")

    def one(x):
        return tg.cond(tg.reduce_sum(x) > 0.0, lambda: tg.linalg.matvec(w, x), lambda: x * 2.0)

    together = tg.function(lambda xs: tg.vectorized_map(one, xs))
    graph = together.get_concrete_function(tg.TensorSpec([5, 8])).graph
    found = costs_of_regions(together, tg.TensorSpec([5, 8]))
    words = "for all rows, if one takes it"
    assert {name: runs for name, (runs, _) in found.items()} == {
        "cond @true_fn_pfor": words,
        "cond @false_fn_pfor": words,
    }
    assert found["cond @true_fn_pfor"][1] >= 2 * 5 * 8 * 8
    assert "cond @true_fn_pfor   for all rows, if one takes it" in graph.summary()
    row = next(x for x in graph.summary().to_dict()["rows"] if x["by"] == "region")
    assert row["runs"] == words
    # What all rows share is there once.
    assert "f32[5,8,8]" not in graph.as_text()


def test_lines_of_files_of_one_name_are_told_apart():
    places = [Source.at(f"/src/{name}/model.py", 7) for name in "ab"]
    other = Source.at("/src/train.py", 7)

    def body(add, x):
        return add(Sin(), add(Sin(), add(Sin(), x, at=places[0]), at=places[1]), at=other)

    rows = [row for row in traced("f", {"x": f32(2)}, body).summary().rows if row.by == "line"]
    assert sorted(row.name for row in rows) == ["a/model.py:7", "b/model.py:7", "train.py:7"]
    assert {row.file for row in rows} == {place.file for place in (*places, other)}


def test_rows_stand_in_the_order_of_their_cost():
    n = Dim.named("n")

    def body(add, x, y):
        for _ in range(5):
            add(Constant(np.float32(0)))
        return add(Sin(), add(Matmul(), x, y))

    table = traced("f", {"x": f32(n, 4), "y": f32(4, 3)}, body).summary()
    rows = [row for row in table.rows if row.by == "op"]
    assert [row.name for row in rows] == ["matmul", "sin", "constant"]
    assert list(rows_of(table, "op"))[1:] == ["matmul", "sin", "constant", "total"]


def test_the_summary_shows_the_code_of_a_line():
    graph = tg.function(activated).get_concrete_function(tg.TensorSpec([2])).graph
    table = graph.summary()
    line = activated.__code__.co_firstlineno + 1
    assert re.search(rf"^test_views.py:{line} .* return tg.tanh\(x\)$", table, re.MULTILINE)
    (row,) = [row for row in table.rows if row.by == "line"]
    assert (row.line, row.code) == (line, "return tg.tanh(x)")
    assert "code" not in parse(graph.as_text(locations=True)).summary()


def activated(x):
    return tg.tanh(x)


def test_the_summary_has_numbers():
    graph = layered()
    table = graph.summary()
    assert isinstance(table, str) and repr(table) == str(table) == f"{table}"
    data = table.to_dict()
    assert json.loads(json.dumps(data)) == data
    by_op = [row for row in table.rows if row.by == "op"]
    matmul = next(row for row in by_op if row.name == "matmul")
    assert matmul.costs["forward"].nodes == 1 and str(matmul.total.flops) == "48*d0"
    total = sum(row.total.nodes for row in by_op)
    assert total == data["total"]["nodes"] > matmul.total.nodes
    assert {part: cost.nodes for part, cost in table.totals.items()} == {
        part: cost["nodes"] for part, cost in data["total"]["parts"].items()
    }
    assert data["inputs"][0] == {
        "name": "%x",
        "type": "f32[d0,4]",
        "role": "argument",
        "elements": "4*d0",
        "bytes": "16*d0",
    }
    again = pickle.loads(pickle.dumps(table))
    assert again == table and again.rows == table.rows


def test_rows_by_scope():
    assert "scope" not in chain(3).summary()
    within = Source.at("train.py", 8, (), "encoder/dense")

    def body(add, x):
        return add(Sin(), add(Tanh(), add(Sin(), x), at=within))

    table = traced("f", {"x": f32(2)}, body).summary()
    rows = rows_of(table, "scope")
    assert rows["encoder/dense"] == ["1", "8", "2"] and rows["total"][0] == "3"
    assert "(no scope)" in table
    assert [row.total.nodes for row in table.rows if row.by == "scope"] == [2, 1]


def test_tangents_have_columns_of_their_own():
    double = Source.at("a.py", 1, ("jvp",))
    graph = traced("f", {"x": f32(2)}, lambda add, x: add(Sin(), add(Cos(), x), at=double))
    assert rows_of(graph.summary(), "op")["forward"] == ["tangents"]


# What differs.


def changes(a, b):
    """The changes in short: kind, what, and the details."""
    return [(change.kind, change.what, change.details) for change in tg.diff(a, b)]


def test_a_graph_does_not_differ_from_itself(graph):
    assert not tg.diff(graph, graph)
    assert str(tg.diff(graph, graph)) == "no difference"
    if graph.name != 'na"me <script>\n%% end':  # its lone surrogate is not text
        again = parse(graph.as_text(locations=True))
        assert not tg.diff(graph, again), str(tg.diff(graph, again))


def test_two_traces_of_the_same_code_do_not_differ():
    assert not tg.diff(layered(), layered())


@pytest.mark.parametrize("count", [5, 3000])
def test_what_is_inserted_at_the_top_is_one_addition(count):
    found = tg.diff(chain(count), chain(count, first=Neg()))
    assert [change.kind for change in found] == ["added", "changed"]
    assert str(found).splitlines() == [
        "@chain: 1 added, 1 changed",
        "  + %0 = neg(%x) : f32[2] at train.py:7",
        "  ~ %0 = sin(%x) : f32[2] at train.py:7",
        "    %1 = sin(%0) : f32[2] at train.py:7",
        "      operand 0: %x is now %0 (neg)",
    ]


def test_a_constant_at_the_top_moves_the_numbers_and_nothing_else():
    def body(add, x, extra):
        for value in range(extra):
            add(Constant(np.float32(value)))
        half = add(BroadcastTo((2,), ()), add(Constant(np.float32(0.5))))
        return add(Mul(), add(Sin(), x), half)

    a, b = (traced("f", {"x": f32(2)}, lambda add, x, n=n: body(add, x, n)) for n in (0, 3))
    assert [change.after for change in tg.diff(a, b)] == [
        f"%{n} = constant<value=f32 {n}.0>() : f32[] at train.py:7" for n in range(3)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", [None, Neg()])
def test_a_node_in_the_middle(op):
    found = tg.diff(chain(3000), chain(3000, at=1500, op=op))
    kinds = ["removed", "changed"] if op is None else ["changed"]
    assert [change.kind for change in found] == kinds
    assert found.changes[0].before == "%1500 = sin(%1499) : f32[2] at train.py:7"
    details = "operand 0: %1500 (sin) is now %1499 (cos)" if op is None else "op: sin is now neg"
    assert found.changes[-1].details == (details,)


def test_changes_at_both_ends_leave_the_middle():
    found = tg.diff(chain(200), chain(200, at=199, op=Neg(), first=Neg()))
    assert [change.kind for change in found] == ["added", "changed", "changed"]  # and the last op


def test_order_and_lines_do_not_count():
    def body(add, x, y, first):
        a, b = (add(Sin(), x), add(Cos(), y)) if first else (add(Cos(), y), add(Sin(), x))[::-1]
        return add(Add(), a, b, at=Source.at("a.py", 1 + first))

    a, b = (
        traced("f", {"x": f32(), "y": f32()}, lambda add, x, y, k=k: body(add, x, y, k))
        for k in (True, False)
    )
    assert not tg.diff(a, b)


def test_attributes_and_types():
    def summed(axes):
        return traced("f", {"x": f32(2, 3)}, lambda add, x: add(Sum(axes), add(Sin(), x)))

    assert changes(summed((0,)), summed((1,))) == [
        ("changed", "node", ("axes: [0] is now [1]", "type: f32[3] is now f32[2]")),
        ("changed", "output", ()),
    ]
    assert "at train.py:7" in str(tg.diff(summed((0,)), summed((1,))))


def test_a_type_that_changes_is_followed():
    def wide(n):
        return traced("f", {"x": f32(n)}, lambda add, x: add(Sin(), x))

    kinds = [kind for _, kind, _ in changes(wide(2), wide(3))]
    assert kinds == ["input", "node", "output"]
    assert changes(wide(2), wide(3))[1][2] == ("type: f32[2] is now f32[3]",)


def test_inputs_and_outputs():
    def built(arguments, outputs):
        def body(add, *inputs):
            values = dict(zip(arguments, inputs))
            return [add(Sin(), values[name]) if name in "xy" else values[name] for name in outputs]

        return traced("f", dict.fromkeys(arguments, f32()), body)

    assert changes(built("xy", "xy"), built("xyz", "xy")) == [("added", "input", ())]
    assert changes(built("xyz", "xy"), built("xy", "xy")) == [("removed", "input", ())]
    assert changes(built("xy", "xy"), built("yx", "xy")) == [
        ("changed", "input", ("position: 1 is now 0",)),
        ("changed", "input", ("position: 0 is now 1",)),
    ]
    assert changes(built("xa", "x"), built("xb", "x")) == []
    assert [kind for kind, *_ in changes(built("xy", "xy"), built("xy", "yx"))] == ["changed"] * 2
    assert changes(built("xy", "xx"), built("xy", "xxx"))[-1][:2] == ("added", "output")
    assert changes(built("xy", "xyx"), built("xy", "xy"))[-1][:2] == ("removed", "output")


def test_names_of_inputs_do_not_count():
    def of(arguments, op=Sub):
        def body(add, a, b):
            return add(op(), a, b)

        return traced("f", dict.fromkeys(arguments, f32(2)), body)

    assert not tg.diff(of("xy"), of("yx"))
    assert not tg.diff(of("xy"), of("ab"))
    found = tg.diff(of("xy"), of("yx", Add))  # inputs are paired as it leaves fewer changes
    assert {change.what for change in found} == {"node"}


def test_a_name_is_told_beside_another_change():
    def of(name, *sizes):
        return traced("f", {name: f32(*sizes)}, lambda add, x: add(Sin(), x))

    details = ("name: %a is now %b", "type: f32[2] is now f32[3]")
    assert changes(of("a", 2), of("b", 3))[0] == ("changed", "input", details)


def test_nested_graphs_are_compared_under_their_names():
    def outer(value, name="layer", calls=2):
        inner = traced(
            name,
            {"x": f32()},
            lambda add, x: add(Mul(), x, add(Constant(np.float32(value)))),
        )

        def body(add, x):
            for _ in range(calls):
                x = add(Call(inner), x)
            return x

        return traced("outer", {"x": f32()}, body)

    assert not tg.diff(outer(2.0), outer(2.0, name="renamed"))
    (change,) = tg.diff(outer(2.0), outer(3.0))
    assert (change.graph, change.details) == ("layer", ("value: f32 2.0 is now f32 3.0",))
    found = tg.diff(outer(2.0), outer(3.0, name="other"))
    assert {(change.kind, change.what) for change in found} >= {
        ("removed", "graph"),
        ("added", "graph"),
    }
    assert tg.diff(outer(2.0), outer(2.0, calls=3)).changes[0].kind == "added"


def test_a_change_that_is_too_long_to_show():
    def held(last):
        array = np.zeros(1000, np.float32)
        array[-1] = last
        return traced("f", {}, lambda add: add(Constant(array)))

    (change,) = tg.diff(held(0.0), held(1.0))
    assert change.details == ("attributes: they differ where they are too long to show",)
    assert len(str(change)) < 1000


def test_many_changes_are_counted_and_not_all_shown():
    found = tg.diff(chain(0), chain(500))
    assert len(found) == 501
    assert "  ... and 401 more" in str(found)
    assert repr(found) == "<GraphDiff: 501 changes>"


def test_diff_takes_concrete_functions_and_refuses_the_rest():
    concrete = tg.function(lambda x: tg.sin(x)).get_concrete_function(tg.TensorSpec([2]))
    assert not tg.diff(concrete, concrete.graph)
    with pytest.raises(tg.errors.TraceError, match="diff: 3 is an int, not a graph") as caught:
        tg.diff(concrete, 3)
    assert "test_views.py" in str(caught.value) and "fix: " in str(caught.value)


def test_diff_takes_functions_with_one_trace():
    f, g = tg.function(lambda x: tg.sin(x)), tg.function(lambda y: tg.sin(y))
    with pytest.raises(tg.errors.TraceError, match="diff: <lambda> was not traced yet"):
        tg.diff(f, g)
    f(tg.ones([2])), g(tg.ones([2]))
    assert not tg.diff(f, g) and not tg.diff(f, g.traces[0])
    g(tg.ones([3]))
    with pytest.raises(tg.errors.TraceError) as caught:
        tg.diff(f, g)
    assert str(caught.value).startswith(
        "diff: <lambda> has 2 traces\n"
        "    <lambda>(y: f32[2]) -> (f32[2])\n"
        "    <lambda>(y: f32[3]) -> (f32[3])\n"
    )
    assert "fix: choose one: f.get_concrete_function(x)" in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(a=st.lists(st.integers(0, 3), max_size=30), b=st.lists(st.integers(0, 3), max_size=30))
def test_alignment_is_increasing_and_as_long_as_can_be(a, b):
    pairs = align(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    for (i, j), (k, m) in itertools.pairwise(pairs):
        assert i < k and j < m
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best = max(longest[i][j + 1], longest[i + 1][j])
            longest[i + 1][j + 1] = longest[i][j] + 1 if x == y else best
    assert len(pairs) == longest[-1][-1]


OPS = (Sin(), Tanh(), Neg(), Add(), Mul())
PROGRAMS = st.lists(
    st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 99), st.integers(0, 99)), max_size=25
)


def program(rows):
    def body(add, x, y):
        values = [x, y]
        for op, i, j in rows:
            operands = [values[i % len(values)], values[j % len(values)]]
            values.append(add(OPS[op], *operands[: 1 if op < 3 else 2]))
        return values[-2:]

    return traced("f", {"x": f32(2), "y": f32(2)}, body)


@settings(max_examples=100, deadline=None)
@given(a=PROGRAMS, b=PROGRAMS)
def test_what_is_left_over_and_what_is_new_explain_the_counts(a, b):
    one, two = program(a), program(b)
    found = tg.diff(one, two)
    kinds = [change.kind for change in found if change.what == "node"]
    assert len(one.nodes) - kinds.count("removed") == len(two.nodes) - kinds.count("added")
    assert not tg.diff(one, program(a))
    back = [change.kind for change in tg.diff(two, one)]
    assert bool(found) == bool(back)
    assert str(found)


# Size.


@pytest.mark.parametrize("count", [3000, pytest.param(20_000, marks=pytest.mark.sweep)])
def test_long_chains(count):
    graph = chain(count)
    for view in TEXTS:
        assert getattr(graph, view)()
    assert networkx.dag_longest_path_length(graph.to_networkx(), weight="none") == count + 1


def test_views_are_quick():
    one, two = chain(3000), chain(3000, at=1500, op=Neg(), first=Neg())
    for view in (*TEXTS, "to_networkx", lambda graph: tg.diff(graph, two)):
        start = time.perf_counter()
        view(one) if callable(view) else getattr(one, view)()
        assert time.perf_counter() - start < 5, view  # 0.1 to 0.4 s on a machine of its own


@pytest.mark.slow
def test_a_comparison_of_what_has_nothing_in_common():
    rng = np.random.default_rng(0)
    rows = [(int(op), 99, 99) for op in rng.integers(0, 3, 20_000)]
    start = time.perf_counter()
    assert tg.diff(chain(20_000), program(rows))
    assert time.perf_counter() - start < 60


def test_one_op_in_the_place_of_another_is_one_change():
    def network(activation):
        f = tg.function(lambda x, w: tg.reduce_sum(activation(x @ w) * 2.0))
        return f.get_concrete_function(tg.TensorSpec([4, 4]), tg.TensorSpec([4, 4]))

    found = tg.diff(network(tg.tanh), network(tg.sigmoid))
    assert [change.details for change in found.changes] == [("op: tanh is now sigmoid",)]
    assert len(tg.diff(network(tg.tanh), network(lambda x: tg.exp(tg.sin(x)))).changes) > 1


def test_a_summary_has_what_a_graph_costs_before_what_it_takes():
    graph = tg.function(lambda x: tg.tanh(x)).get_concrete_function(tg.TensorSpec([3])).graph
    titles = [block.split()[0] for block in graph.summary().split("\n\n")]
    assert titles[1:] == ["op", "line", "input"]
