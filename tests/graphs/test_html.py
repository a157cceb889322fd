"""The HTML page of a graph: what is in it, that nothing leads out of it, and how it behaves."""

import base64
import dataclasses
import hashlib
import itertools
import json
import linecache
import re
import shutil
from html.parser import HTMLParser

import pytest

import tracegraph as tg
from tracegraph.views.html import _page, family, html_frame, to_html
from tracegraph.views.outline import Outline, outline

NASTY = "</script><script>alert(1)</script><!-- \"'&amp; \u2028 é 漢 \U0001f600"


@tg.function
def layer(x, w):
    return tg.tanh(x @ w)


@tg.function
def step(x, w):
    with tg.GradientTape() as tape:
        tape.watch(w)
        y = layer(x, w)
        loss = tg.reduce_sum(y * y)
    return loss, tape.gradient(loss, w)


def step_graph():
    return step.get_concrete_function(tg.TensorSpec([16, 4]), tg.TensorSpec([4, 3])).graph


def long_graph(rounds):
    @tg.function
    def long(x):
        for _ in range(rounds):
            y = tg.sin(x)
            x = tg.cos(y) + x
        return x

    return long.get_concrete_function(tg.TensorSpec([8])).graph


@tg.function
def affine(x, w, b):
    return tg.tanh(x @ w + b)


@tg.function
def nested(x, w, b):
    with tg.GradientTape() as tape:
        tape.watch(w)
        loss = tg.reduce_sum(affine(affine(x, w, b), w, b))
    return loss, tape.gradient(loss, w)


def nested_graph():
    specs = tg.TensorSpec([16, 4]), tg.TensorSpec([4, 4]), tg.TensorSpec([4])
    return nested.get_concrete_function(*specs).graph


def plain(x, w):
    return tg.tanh(x @ w)


@tg.function
def inlined(x, v, w):
    with tg.GradientTape() as tape:
        tape.watch([v, w])
        loss = tg.reduce_sum(plain(plain(x, v), w))
    return loss, tape.gradient(loss, [v, w])


def inlined_graph():
    specs = tg.TensorSpec([16, 4]), tg.TensorSpec([4, 4]), tg.TensorSpec([4, 4])
    return inlined.get_concrete_function(*specs).graph


def deep_graph(layers):
    """A tape over a loop, and an update of each weight: some 40 nodes for each layer."""

    @tg.function
    def deep(x, weights):
        with tg.GradientTape() as tape:
            tape.watch(weights)
            for w in weights:
                z = x @ w
                gate = tg.sigmoid(z)
                x = x + tg.nn.softmax(z * gate) * tg.exp(-tg.square(z))
            loss = tg.reduce_mean(tg.square(x))
        gradients = tape.gradient(loss, weights)
        return [w - 0.1 * g / (tg.norm(g) + 1e-6) for w, g in zip(weights, gradients)]

    specs = tg.TensorSpec([32, 16]), [tg.TensorSpec([16, 16])] * layers
    return deep.get_concrete_function(*specs).graph


def scoped_sum(x):
    with tg.name_scope("total"):
        return tg.reduce_sum(tg.exp(x))


def train_graph(hidden=1):
    """Layers, their Variables and an optimizer."""
    layers = [tg.layers.Dense(8, activation="relu") for _ in range(hidden)]
    model = tg.layers.Sequential([*layers, tg.layers.Dense(3)])
    optimizer = tg.optimizers.Adam(0.01)

    @tg.function
    def train(x, y):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return train.get_concrete_function(tg.TensorSpec([16, 4]), tg.TensorSpec([16, 3])).graph


def scoped_page(layers):
    """The page of a deep graph, with the scopes that a network of so many layers would have."""
    graph = deep_graph(layers)
    parts = {"z =": "product", "gat": "gate", "x =": "mix"}
    layer_of, reached = {}, [-1]

    def scoped(node):
        part = parts.get(node.place.code[:3])
        if part is None:
            return node
        if not node.place.roles:
            reached[0] += node.op == "matmul"
            layer_of.update({value.name: reached[0] for value in node.outputs})
        else:  # what is derived reads what it is derived of, or follows what does
            read = [layer_of[name] for name in node.operands if name in layer_of]
            reached[0] = max(read, default=reached[0])
        return dataclasses.replace(node, scope=f"net/layers/{reached[0]}/{part}")

    graphs = [dataclasses.replace(g, nodes=tuple(map(scoped, g.nodes))) for g in outline(graph)]
    return _page(Outline(tuple(graphs)), graph.as_text(locations=True))


def nasty_graph():
    """A graph whose file, line and argument would end the script if they were not escaped."""
    file = f"{NASTY}.py"
    text = f"def nasty(x):\n    return x + x  # {NASTY}\n"
    lines = [f"{line}\n" for line in text.split("\n")]
    linecache.cache[file] = (len(text), None, lines, file)
    names = {}
    exec(compile(text, file, "exec"), names)
    function = tg.function(names["nasty"], autograph=False)
    return function.get_concrete_function(tg.TensorSpec([2], name=NASTY)).graph


class Page(HTMLParser):
    """The elements of a page in their order, with their attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.elements = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in ("meta", "input", "br"):
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        if self.open:
            self.open[-1]["text"] += data

    def all(self, tag, **attributes):
        return [e for e in self.elements if e["tag"] == tag and attributes.items() <= e.items()]

    def one(self, tag, **attributes):
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def data(self):
        return json.loads(self.one("script", id="data")["text"])


# The file.


def test_the_page_holds_the_graph_as_data_and_as_text(tmp_path):
    graph = step_graph()
    path = tmp_path / "graph.html"
    text = graph.to_html(path)
    assert repr(text) == f"<{len(text):,} characters in {path}>"
    with pytest.raises(TypeError, match="give the name of a file"):
        graph.to_html(1)
    assert path.read_bytes() == text.encode("utf-8")
    page = Page(text)
    assert page.open == []
    assert page.one("title")["text"] == "step"
    assert page.one("pre")["text"] == graph.as_text(locations=True)
    assert "open" in page.one("details"), "without JavaScript the text is what there is"
    names = [inner.name for inner in graph.graphs()]
    assert len(names) > 1
    assert [len(g["nodes"]) for g in page.data["graphs"]] == [len(g.nodes) for g in graph.graphs()]
    assert page.data["graphs"][-1]["name"] == "step"


def test_the_data_reads_as_the_graph_does():
    graph = step_graph()
    data = Page(to_html(graph)).data
    entry = data["graphs"][-1]
    values = [*graph.inputs, *(y for node in graph.nodes for y in node.outputs)]
    assert [row[0] for row in entry["inputs"]] == ["%x", "%w"]
    assert [values[n] for n in entry["outputs"]] == list(graph.outputs)
    for row, node in zip(entry["nodes"], graph.nodes, strict=True):
        op, place, operands, outputs = row[:4]
        assert data["ops"][op][0] == node.op.name
        assert [values[n] for n in operands] == list(node.inputs)
        assert [data["types"][n][0] for n in outputs] == [str(y.type) for y in node.outputs]
        file, line, roles, code, _, instruction = data["places"][place]
        assert (line, tuple(roles), code, instruction) == (
            node.source.line,
            node.source.roles,
            node.source.text,
            node.source.offset,
        )
        assert file == "test_html.py"
    called = [row[4] for row in entry["nodes"] if len(row) > 4 and row[4]]
    names = [data["graphs"][number]["name"] for calls in called for _, number in calls]
    assert {name.partition("_")[0] for name in names} == {"layer"}


def test_the_places_of_a_line_are_told_apart():
    data = Page(nested_graph().to_html()).data
    (layer,) = [graph for graph in data["graphs"] if graph["name"] == "affine"]
    rows = {data["ops"][row[0]][0]: data["places"][row[1]] for row in layer["nodes"]}
    assert rows["matmul"][:2] == rows["tanh"][:2], "they are on one line"
    assert len({rows[op][5] for op in ("matmul", "add", "tanh")}) == 3
    backward = [graph for graph in data["graphs"] if "vjp" in graph["name"]]
    places = [data["places"][row[1]] for graph in backward for row in graph["nodes"]]
    assert rows["tanh"][5] in {place[5] for place in places if "vjp" in place[2]}


def test_results_have_the_names_that_are_known():
    names = Page(train_graph().to_html()).data["graphs"][-1]["resultNames"]
    assert names[0] == ""
    for ending in ("kernel", "bias", "kernel_momentum", "iteration"):
        assert any(name.startswith("new ") and name.endswith(ending) for name in names)
    assert len(set(names)) == len(names)


def test_scopes_are_in_the_data():
    rows = Page(scoped_page(3)).data["graphs"][-1]["nodes"]
    scopes = {row[5] for row in rows if len(row) > 5}
    assert {"net/layers/0/product", "net/layers/2/gate"} <= scopes


def test_nothing_is_loaded_from_outside():
    text = to_html(step_graph())
    page = Page(text)
    assert not page.all("link") and not page.all("img") and not page.all("iframe")
    for element in page.elements:
        assert not {"src", "href", "srcset", "action", "background"} & element.keys(), element
        assert not [name for name in element if name.startswith("on")], element
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
    namespace = "http://www.w3.org/2000/svg"  # a name, which is not loaded
    assert set(re.findall(r"https?://[^\"'\s<>`]+", text)) == {namespace}


def test_the_policy_allows_the_script_and_the_style_of_the_page_alone():
    page = Page(to_html(step_graph()))
    (policy,) = [e["content"] for e in page.all("meta") if "http-equiv" in e]
    assert "default-src 'none'" in policy
    (script,) = [e["text"] for e in page.all("script") if "type" not in e]
    for kind, text in (("script", script), ("style", page.one("style")["text"])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not [e for e in page.elements if "style" in e], "the policy forbids such attributes"


def test_what_the_user_wrote_is_escaped():
    graph = nasty_graph()
    page = Page(graph.to_html())
    assert len(page.all("script")) == 2
    assert page.data["graphs"][0]["inputs"][0][2] == NASTY
    place = page.data["places"][0]
    assert place[0] == f"{NASTY}.py".rpartition("/")[2]
    assert NASTY in place[3]
    assert page.one("pre")["text"] == graph.as_text(locations=True)
    (inner,) = Page(html_frame(graph)).elements
    assert inner["srcdoc"] == graph.to_html()


def test_a_notebook_gets_a_frame_of_bounded_height_that_is_closed_off():
    frame = Page(step_graph()._repr_html_()).one("iframe")
    concrete = step.get_concrete_function(tg.TensorSpec([16, 4]), tg.TensorSpec([4, 3]))
    assert concrete._repr_html_() == step_graph()._repr_html_()
    assert Page(frame["srcdoc"]).one("title")["text"] == "step"
    assert "allow-same-origin" not in frame["sandbox"] and "allow-scripts" in frame["sandbox"]
    assert int(frame["height"]) <= 600


def test_the_page_of_a_graph_is_always_the_same():
    graph = step_graph()
    assert graph.to_html() == graph.to_html()
    parsed = tg.Graph.from_text(graph.as_text(locations=True))
    assert parsed.to_html() == tg.Graph.from_text(graph.as_text(locations=True)).to_html()


def test_a_large_graph_makes_a_small_file():
    graph = long_graph(1000)
    assert len(graph.nodes) == 3000
    assert len(graph.to_html()) < 1_000_000


def test_every_op_has_a_family():
    families = {family(name) for name in tg.raw_ops.__all__}
    known = {"data", "elementwise", "contraction", "reduction", "movement", "call", "effect"}
    assert families <= known
    expected = {
        "constant": "data",
        "add": "elementwise",
        "matmul": "contraction",
        "sum": "reduction",
        "reduce_max": "reduction",
        "broadcast_to": "movement",
        "transpose": "movement",
        "call": "call",
        "custom_call": "call",
        "check": "effect",
    }
    assert {name: family(name) for name in expected} == expected


# The page in a browser, where there is one.


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        try:
            started = launched(engine, playwright.Error)
        except playwright.Error as error:
            pytest.skip(f"no browser starts: {str(error).splitlines()[0]}")
        yield started
        started.close()


def launched(engine, error):
    """Playwright's own Chromium, or else the one of the system."""
    try:
        return engine.chromium.launch(args=["--no-sandbox"])
    except error:
        names = ("chromium", "chromium-browser", "google-chrome")
        found = next(filter(None, map(shutil.which, names)), None)
        if found is None:
            raise
        return engine.chromium.launch(executable_path=found, args=["--no-sandbox"])


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the page of a graph; in the end it must have loaded nothing and complained of
    nothing."""
    faults = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")

    def open_page(graph):
        path = tmp_path / "graph.html"
        path.write_text(graph if isinstance(graph, str) else graph.to_html(), "utf-8")
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("window.tracegraph !== undefined")
        return page

    requests = []
    yield open_page
    context.close()
    assert faults == []
    assert all(url.startswith(("file:", "blob:")) for url in requests), requests


def click(page, name, times=1):
    at = page.evaluate("name => tracegraph.locate(name)", name)
    page.mouse.click(at["x"], at["y"], click_count=times)


def box_count(page):
    return page.evaluate("tracegraph.boxes().length")


def picked(page):
    return page.evaluate("tracegraph.selected() && tracegraph.selected().name")


def test_a_click_shows_the_line_and_what_belongs_to_it(opened):
    graph = step_graph()
    page = opened(graph)
    product = next(node for node in graph.nodes if node.op.name == "mul")
    click(page, page.evaluate("tracegraph.view.graph.nodes.find(n => n.op === 'mul').name"))
    details = page.locator("#details").inner_text()
    assert "loss = tg.reduce_sum(y * y)" in details
    assert f"test_html.py:{product.source.line}" in details
    assert "Backward of this" in details
    page.keyboard.press("Escape")
    assert picked(page) is None


def test_a_search_finds_by_op_name_line_and_type(opened):
    page = opened(step_graph())
    for query in ("tanh", "%0", "test_html.py", "float32", "f32[16,3]", "vjp", "reduce_sum(y"):
        page.keyboard.press("/")
        page.keyboard.type(query)
        assert page.locator("#results button").count() > 0, query
        page.keyboard.press("Enter")
        assert picked(page) is not None, query
        page.keyboard.press("Escape")
        assert page.locator("#results").is_hidden()
        page.keyboard.press("Escape")
    page.fill("#search", "no such node")
    assert page.locator("#results").inner_text() == "nothing found"


def test_calls_open_in_place_and_alone(opened):
    page = opened(step_graph())
    before = box_count(page)
    call = page.evaluate("tracegraph.view.graph.nodes.find(n => n.calls.length).name")
    click(page, call)
    page.get_by_role("button", name="open here").click()
    assert box_count(page) > before
    page.keyboard.press("Enter")
    page.locator("#canvas").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="show alone").first.click()
    assert page.evaluate("tracegraph.view.graph.name").startswith("layer")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="@step").click()
    assert page.evaluate("tracegraph.view.graph.name") == "step"


def loop_graph():
    @tg.function
    def walk(x, w, count):
        for _ in tg.range(count):
            if tg.reduce_sum(x) > 10.0:
                x = tg.sqrt(x)
            else:
                x = tg.tanh(x @ w)
        return x

    specs = tg.TensorSpec([4, 4]), tg.TensorSpec([4, 4]), tg.TensorSpec([], tg.int32)
    return walk.get_concrete_function(*specs).graph


FRAMES = """op => { const box = tracegraph.boxes().find(b => b.isOpen && b.node?.op === op);
  return box && box.frames.map(f => f.label); }"""
INSIDE = """op => { const box = tracegraph.boxes().find(b => b.isOpen && b.node?.op === op);
  return tracegraph.boxes().filter(b => b.path.startsWith(box.id + ":") && b.kind === "node")
    .map(b => [box.frames.findIndex(f => b.x >= box.x + f.x && b.x + b.w <= box.x + f.x + f.w
      && b.y >= box.y + f.y && b.y + b.h <= box.y + f.y + f.h), b.text]); }"""


def test_branches_and_bodies_open_side_by_side(opened):
    page = opened(loop_graph())
    at = page.evaluate("tracegraph.view.graph.nodes.find(n => n.op === 'while').name")
    click(page, at)
    assert page.get_by_role("button", name="show alone").count() == 2
    page.get_by_role("button", name="open here").click()
    assert page.evaluate(FRAMES, "while") == ["body @body", "condition @cond"]
    page.click("#open")
    assert page.evaluate(FRAMES, "cond") == ["true @true_fn", "false @false_fn"]
    assert page.evaluate(INSIDE, "cond") == [[0, "sqrt"], [1, "matmul"], [1, "tanh"]]
    assert [1, "less"] in page.evaluate(INSIDE, "while")
    assert page.evaluate(OVERLAPS) == []
    page.click("#close")
    assert page.evaluate(FRAMES, "while") is None


@pytest.mark.parametrize(("op", "number"), [("sqrt", 0), ("tanh", 1)])
def test_what_is_found_in_a_branch_is_opened_there(opened, op, number):
    page = opened(loop_graph())
    page.fill("#search", op)
    page.keyboard.press("Enter")
    assert page.evaluate("tracegraph.selected().op") == op
    path = page.evaluate("op => tracegraph.boxes().find(b => b.node?.op === op).path", op)
    assert path.endswith(f":{number}")


def test_a_small_graph_fills_the_window(opened):
    small = tg.function(lambda x: tg.tanh(x) * x).get_concrete_function(tg.TensorSpec([4])).graph
    page = opened(small)
    area = page.locator("#canvas").bounding_box()
    zoom, boxes = page.evaluate(
        "[tracegraph.camera.zoom, tracegraph.boxes().map(b => [b.x, b.y, b.w, b.h])]"
    )
    height = max(y + h for _, y, _, h in boxes) * zoom
    assert 0.5 * area["height"] < height < area["height"]


def test_cards_close_and_open(opened):
    page = opened(step_graph())
    page.click("#lines")
    whole = box_count(page)
    page.click("#close")
    cards = box_count(page)
    assert cards < whole / 2
    page.click("#open")
    assert box_count(page) >= whole
    page.click("#close")
    page.fill("#search", "mul")
    page.keyboard.press("Enter")
    assert picked(page) is not None, "what is found is shown, though its card was closed"


def test_arrows_walk_along_edges(opened):
    page = opened(step_graph())
    click(page, "%x")
    page.keyboard.press("ArrowDown")
    assert picked(page) not in ("%x", None)
    page.keyboard.press("ArrowUp")
    assert picked(page) in ("%x", "%w")


OVERLAPS = """() => {
  const boxes = tracegraph.boxes().filter(b => b.kind !== "card" && !b.isOpen);
  const strip = b => ({x: b.x, w: b.w, y: b.flip ? b.y - b.below : b.y, h: b.h + b.below});
  const meet = (a, b) => a.x < b.x + b.w - .1 && b.x < a.x + a.w - .1
    && a.y < b.y + b.h - .1 && b.y < a.y + a.h - .1;
  const found = [];
  const all = boxes.map(strip);
  for (let i = 0; i < all.length; i++)
    for (let j = 0; j < i; j++)
      if (meet(all[i], all[j])) found.push([boxes[i].id, boxes[j].id]);
  return found;
}"""


@pytest.mark.parametrize("mode", ["flow", "lines"])
def test_boxes_and_their_labels_do_not_overlap(opened, mode):
    page = opened(step_graph())
    page.click(f"#{mode}")
    page.click("#open")
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("mode", ["flow", "lines"])
def test_a_large_graph_is_laid_out_quickly(opened, mode):
    page = opened(long_graph(1000))
    seconds = page.evaluate(
        "mode => { const start = performance.now(); document.getElementById(mode).click();"
        " return (performance.now() - start) / 1000; }",
        mode,
    )
    assert seconds < 10
    assert page.evaluate(OVERLAPS) == []


LINKS = """([op, graph]) => {
  const found = tracegraph.model.graphs.find(g => g.name === graph);
  const linked = n => [...n.derived, ...n.primals].map(o => [o.graph.name, o.index]);
  return found.nodes.filter(n => n.op === op && !n.isBackward).map(linked);
}"""


def test_forward_and_backward_are_linked_across_functions(opened):
    page = opened(nested_graph())
    (linked,) = page.evaluate(LINKS, ["tanh", "affine"])
    assert linked and {name.partition(".")[0] for name, _ in linked} == {"affine_vjp"}
    back = page.evaluate(
        "([name, index]) => tracegraph.model.graphs.find(g => g.name === name)"
        ".nodes[index].primals.map(n => [n.graph.name, n.op])",
        linked[0],
    )
    assert ["affine", "tanh"] in back
    page.fill("#search", "tanh")
    page.keyboard.press("Enter")
    section = page.locator("#details .related")
    assert "Backward of this" in section.inner_text() and "@affine_vjp" in section.inner_text()
    section.locator("button").first.click()
    assert page.evaluate("tracegraph.selected().graph.name").startswith("affine_vjp")
    assert page.evaluate("tracegraph.view.graph.name") == "nested"
    assert "tanh @affine" in page.locator("#details .related").inner_text()


def test_each_use_of_a_line_has_its_own_backward(opened):
    page = opened(inlined_graph())
    first, second = page.evaluate(LINKS, ["matmul", "inlined"])
    assert first and second
    assert not {tuple(link) for link in first} & {tuple(link) for link in second}
    others = [tuple(x) for links in page.evaluate(LINKS, ["tanh", "inlined"]) for x in links]
    assert not {*map(tuple, first), *map(tuple, second)} & set(others)


def layer_graph():
    layer = tg.layers.Dense(4, activation=tg.nn.relu)

    @tg.function
    def dense(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(layer(x))
        return loss, tape.gradient(loss, layer.trainable_variables)

    return dense.graph(tg.TensorSpec([8, 3]))


def test_what_the_rules_of_a_node_made_is_linked_to_it_alone(opened):
    """All of the layer is one instruction; the graph knows which node each gradient is of."""
    page = opened(layer_graph())
    found = page.evaluate(
        "() => tracegraph.model.entry.nodes.filter(n => n.derived.length)"
        ".map(n => [n.op, n.derived.map(d => d.op)])"
    )
    assert found == [
        ["matmul", ["transpose", "matmul"]],
        ["broadcast_to", ["sum"]],
        ["maximum", ["less", "select"]],
        ["sum", ["broadcast_to"]],
    ]


def test_names_of_hits_do_not_squeeze_what_they_are(opened):
    page = opened(layer_graph())
    page.fill("#search", "kernel")
    heights = page.evaluate(
        "[...document.querySelectorAll('#results .node')]"
        ".map(row => row.getBoundingClientRect().height)"
    )
    assert heights and max(heights) < 60


def test_what_one_call_of_a_model_made_is_told_apart(opened):
    """All of the model is one instruction of the user's."""
    page = opened(train_graph())
    first, second = page.evaluate(LINKS, ["matmul", "train"])
    assert first and second and {*map(tuple, first)} != {*map(tuple, second)}
    assert page.evaluate("tracegraph.model.entry.nodes.every(n => n.derived.length < 14)")


def test_a_search_finds_forward_first_and_opens_it_in_its_caller(opened):
    page = opened(nested_graph())
    boxes = box_count(page)
    page.fill("#search", "matmul")
    page.keyboard.press("Enter")
    found = "[tracegraph.selected().graph.name, tracegraph.selected().isBackward]"
    assert page.evaluate(found) == ["affine", False]
    assert page.evaluate("tracegraph.view.graph.name") == "nested"
    assert box_count(page) > boxes, "the call was opened in place"


CARDS = """() => tracegraph.boxes().filter(b => b.kind === "card").map(b => ({
  title: b.title, code: b.code, isOpen: b.isOpen, isLeaf: !b.group.children.length,
  isArguments: !!b.group.isArguments,
  x: b.x * tracegraph.camera.zoom + tracegraph.camera.x, w: b.w * tracegraph.camera.zoom,
  y: b.y * tracegraph.camera.zoom + tracegraph.camera.y, h: b.h * tracegraph.camera.zoom,
}))"""


@pytest.mark.parametrize("mode", ["lines", "flow"])
def test_a_large_graph_begins_as_a_few_groups_that_can_be_read(opened, mode):
    graph = deep_graph(58)
    assert len(graph.nodes) > 2500
    page = opened(graph)
    page.click(f"#{mode}")
    cards = page.evaluate(CARDS)
    assert 4 <= len(cards) <= 40 and box_count(page) == len(cards)
    assert not [card for card in cards if card["isLeaf"] and card["isOpen"]]
    assert 14 * page.evaluate("tracegraph.camera.zoom") >= 12, "titles are set in 14"
    area = page.locator("#canvas").bounding_box()
    for card in cards:
        assert card["x"] >= 0 and card["x"] + card["w"] <= area["width"]
        assert card["y"] >= 0 and card["y"] + card["h"] <= area["height"]
        assert card["isArguments"] or "test_html.py:" in card["title"] + card["code"]
    assert any("z = x @ w" in card["code"] for card in cards)
    titles = [card["title"] for card in cards]
    assert len(set(titles)) == len(titles), "repeated blocks are numbered"


def test_opening_a_group_lays_out_what_is_in_it(opened):
    page = opened(deep_graph(58))
    for _ in range(3):
        cards = [card for card in page.evaluate(CARDS) if not card["isArguments"]]
        area = page.locator("#canvas").bounding_box()
        closed = next(
            card
            for card in cards
            if not card["isOpen"] and card["x"] > 0 and 0 < card["y"] < area["height"] - 20
        )
        before = box_count(page)
        page.mouse.click(area["x"] + closed["x"] + 30, area["y"] + closed["y"] + 10)
        assert box_count(page) > before
        assert page.evaluate(OVERLAPS) == []
        (flipped,) = [
            card
            for card in page.evaluate(CARDS)
            if card["isOpen"] and card["title"] == closed["title"]
        ]
        assert 0 <= flipped["x"] < area["width"] / 2 and 0 <= flipped["y"] < area["height"] / 2
    assert page.evaluate("tracegraph.boxes().some(b => b.kind === 'node')")
    assert page.evaluate("tracegraph.camera.zoom") >= 0.6


def test_scopes_hold_each_other_and_what_was_derived_of_them(opened):
    page = opened(scoped_page(4))
    assert page.evaluate("tracegraph.view.mode") == "scopes"
    page.click("#open")
    titles = [card["title"] for card in page.evaluate(CARDS)]
    for title in ("net/layers", "layers/0", "layers/3", "product", "gate", "mix"):
        assert title in titles
    sides = page.evaluate(
        """() => {
          const homes = tracegraph.boxes().filter(b => b.kind === "node" && !b.path);
          const cards = tracegraph.boxes().filter(b => b.kind === "card" && b.group.scope);
          const leaves = cards.filter(b => b.isOpen && b.group.forward && b.group.derived
            && !b.group.children.length);
          return leaves.map(card => [false, true].map(isBackward => homes
            .filter(b => card.nodes.includes(b.node) && b.node.isBackward === isBackward)
            .map(b => isBackward ? b.x : b.x + b.w)));
        }"""
    )
    assert sides
    for forward, derived in sides:
        assert max(forward) < min(derived)


def test_repeated_scopes_are_told_apart(opened):
    page = opened(scoped_page(46))
    cards = page.evaluate(CARDS)
    titles = [card["title"] for card in cards]
    assert any(title.startswith("layers/0") for title in titles)
    assert any(title.endswith("layers/45") for title in titles)
    assert len(set(titles)) == len(titles) <= 40
    page.click("#lines")
    assert any("test_html.py:" in card["title"] for card in page.evaluate(CARDS))


def test_nodes_without_a_scope_stand_by_their_lines(opened):
    page = opened(scoped_page(2))
    titles = [card["title"] for card in page.evaluate(CARDS)]
    assert "Arguments" in titles and any("test_html.py:" in title for title in titles)
    page = opened(step_graph())
    assert page.locator("#scopes").is_hidden()


# Of each wire that is led through gutters: whether a part of it lies within a card beside it.
UNDER = """() => {
  const cards = tracegraph.boxes().filter(b => b.kind === "card");
  const within = ([x0, y0], [x1, y1], c) =>
    Math.max(x0, x1) > c.x + 1 && Math.min(x0, x1) < c.x + c.w - 1 &&
    Math.max(y0, y1) > c.y + 1 && Math.min(y0, y1) < c.y + c.h - 1;
  const level = b => b.group.parent;
  return tracegraph.wires().flatMap(wire => cards
    .filter(c => level(c) === level(wire.from) && c.path === wire.from.path)
    .filter(c => wire.points.slice(1).some((p, i) => within(wire.points[i], p, c)))
    .map(c => [wire.from.title, wire.to.title, c.title]));
}"""


def test_wires_join_the_arguments_and_lie_under_no_card(opened):
    page = opened(train_graph())
    arguments = [card for card in page.evaluate(CARDS) if card["isArguments"]]
    assert [card["title"] for card in arguments] == ["Arguments"]
    assert page.evaluate("tracegraph.wires().filter(w => w.from.group.isArguments).length") > 0
    for button in ("#open", "#close"):
        assert page.evaluate(UNDER) == []
        page.click(button)


def test_the_optimizer_is_grouped_by_variable(opened):
    page = opened(train_graph())
    titles = [row for row in page.locator("#tree .label").all_inner_texts() if " of " in row]
    assert len([title for title in titles if "kernel" in title]) == 2
    assert len([title for title in titles if "bias" in title]) == 2


def test_all_that_is_expanded_can_be_read(opened):
    page = opened(train_graph())
    page.click("#open")
    assert page.evaluate("tracegraph.boxes().filter(b => b.kind === 'card').every(b => b.isOpen)")
    assert page.evaluate("tracegraph.camera.zoom") >= 0.5, "labels are drawn from there on"


def test_all_is_expanded_at_once_and_quickly(opened):
    page = opened(train_graph(40))
    seconds = page.evaluate(
        "() => { const start = performance.now(); document.getElementById('open').click();"
        " return (performance.now() - start) / 1000; }"
    )
    assert seconds < 5
    shown = page.evaluate(
        "[tracegraph.boxes().filter(b => b.kind === 'node').length,"
        " tracegraph.boxes().every(b => b.kind !== 'card' || b.isOpen)]"
    )
    nodes = page.evaluate(
        "tracegraph.model.entry.nodes.filter(n => n.kind === 'node' && !n.isConstant).length"
    )
    assert shown == [nodes, True]
    page = opened(nested_graph())
    page.click("#open")
    assert page.evaluate("tracegraph.boxes().every(b => !b.node?.calls.length || b.isOpen)")


def test_a_network_opens_before_its_optimizer(opened):
    graph = train_graph(24)
    page = opened(graph)
    cards = {card["title"]: card for card in page.evaluate(CARDS)}
    assert cards["model/layers"]["isOpen"]
    (optimizer,) = [card for card in cards.values() if "apply_gradients" in card["code"]]
    assert not optimizer["isOpen"] and not cards["Arguments"]["isOpen"]
    page.click("#flow")
    open_cards = [card for card in page.evaluate(CARDS) if card["isOpen"]]
    assert not [card for card in open_cards if "apply_gradients" in card["code"]]


def test_cards_do_not_repeat_the_code_around_them(opened):
    page = opened(train_graph())
    page.click("#open")
    repeated = page.evaluate(
        "tracegraph.boxes().filter(b => b.kind === 'card' && b.code && tracegraph.boxes().some("
        " o => o.group === b.group.parent && o.code === b.code)).map(b => b.title)"
    )
    assert repeated == []
    codes = [card["code"] for card in page.evaluate(CARDS)]
    assert sum("apply_gradients" in code for code in codes) == 1


@pytest.mark.parametrize(
    "graph", [step_graph, nested_graph, train_graph, lambda: train_graph(24), lambda: deep_graph(9)]
)
def test_the_first_look_can_be_read(opened, graph):
    page = opened(graph())
    assert 10.5 * page.evaluate("tracegraph.camera.zoom") >= 8, "types are set in 10.5"


def test_small_graphs_open_as_a_flow_and_others_by_their_scopes(opened):
    mode = "tracegraph.view.mode"
    assert opened(step_graph()).evaluate(mode) == "flow"
    named = tg.function(scoped_sum)
    assert opened(named.get_concrete_function(tg.TensorSpec([4])).graph).evaluate(mode) == "flow"
    assert opened(scoped_page(3)).evaluate(mode) == "scopes"


def test_wires_and_constants_say_their_types(opened):
    page = opened(train_graph())
    for button in ("#close", "#open"):
        page.click(button)
        labels = page.evaluate("tracegraph.wires().map(w => w.label && w.label.text)")
        assert labels and all(labels)
        assert any(re.fullmatch(r"f32\[16,\d+\]", label) for label in labels)
    types = page.evaluate("tracegraph.boxes().filter(b => b.node?.isConstant).map(b => b.type)")
    assert types and all(types)


WRITTEN = """() => new Promise(done => {
  const texts = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
    texts.push(text);
    draw.call(this, text, ...at);
  };
  document.getElementById("fit").click();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    CanvasRenderingContext2D.prototype.fillText = draw;
    done(texts);
  }));
})"""


def test_from_afar_titles_are_not_cut_within_numbers(opened):
    page = opened(scoped_page(46))
    page.click("#open")
    texts = page.evaluate(WRITTEN)
    assert page.evaluate("tracegraph.camera.zoom") < 0.3
    assert len(set(texts)) > 20
    assert not [text for text in texts if text.endswith("\u2026") and re.search(r"\d", text)]


def test_what_is_opened_leaves_its_surroundings_in_place(opened):
    page = opened(nested_graph())
    page.click("#lines")
    columns = "tracegraph.boxes().filter(b => b.kind === 'card').map(b => [b.title, b.column])"
    before = page.evaluate(columns)
    at = page.evaluate("name => tracegraph.locate(name)", "%0")
    click(page, "%0", times=2)
    assert page.evaluate("tracegraph.boxes().some(b => b.node?.calls.length && b.isOpen)")
    assert page.evaluate(columns) == before
    now = page.evaluate("name => tracegraph.locate(name)", "%0")
    assert abs(now["y"] - at["y"]) < 60
    area = page.locator("#canvas").bounding_box()
    assert area["x"] < now["x"] < area["x"] + area["width"]


def test_the_tools_and_the_picture_do_not_overlap(opened):
    page = opened(train_graph())
    tools, picture = (page.locator(at).bounding_box() for at in (".bars", "#canvas"))
    assert tools["y"] + tools["height"] <= picture["y"] + 0.5
    assert page.locator(".counts").inner_text().split()[1::2][:2] == ["nodes", "backward"]
    names = [box.bounding_box() for box in page.locator(".counts dt").all()]
    for one, following in itertools.pairwise(names):
        is_beside = one["x"] + one["width"] + 4 <= following["x"]
        assert is_beside or one["y"] + one["height"] <= following["y"]


def test_counters_are_words_of_their_number_and_say_what_they_count(opened):
    page = opened(long_graph(1))
    assert page.locator(".counts").inner_text().split() == [
        "3",
        "nodes",
        *["1", "argument", "1", "result"],
    ]
    assert page.locator(".panel header p").inner_text() == "3 nodes, 1 argument"
    page = opened(step_graph())
    assert page.locator(".panel header p").inner_text() == "14 nodes in 3 functions, 2 arguments"
    assert "In @step itself" in page.locator("#details").inner_text()
    assert page.locator(".counts").inner_text().split()[:2] == ["5", "nodes"]


def test_the_legend_explains_what_is_there(opened):
    page = opened(step_graph())
    assert "dotted" not in page.locator(".legend").inner_text()
    page.click("#lines")
    page.click("#open")
    assert "dotted" in page.locator(".legend").inner_text()


def test_keys_work_wherever_the_focus_is(opened):
    page = opened(step_graph())
    page.click("#open")
    zoom = page.evaluate("tracegraph.camera.zoom")
    page.keyboard.press("-")
    smaller = page.evaluate("tracegraph.camera.zoom")
    assert smaller < zoom
    page.click("#flow")
    page.keyboard.press("t")
    assert page.locator("#text").get_attribute("open") is not None
    page.keyboard.press("t")
    assert page.locator("#text").get_attribute("open") is None
    page.locator("#lines").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("tracegraph.view.mode") == "lines", "buttons keep the keys that press them"
    page.locator("#search").focus()
    page.keyboard.type("t+f")
    assert page.locator("#search").input_value() == "t+f"


def test_the_text_is_closed_by_a_button_and_leaves_the_search_free(opened):
    page = opened(step_graph())
    page.click("#show-text")
    text, search = (page.locator(at).bounding_box() for at in ("#text", "#search"))
    assert text["x"] + text["width"] <= search["x"]
    page.get_by_role("button", name="Close the text").click()
    assert page.locator("#text").get_attribute("open") is None


@pytest.mark.parametrize("width", [320, 390, 760])
def test_narrow_windows_show_all_and_do_not_scroll_sideways(opened, width):
    page = opened(train_graph())
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for button in ("#flow", "#lines", "#open", "#close", "#fit", "#show-text", "#save"):
        at = page.locator(button).bounding_box()
        assert at["x"] >= 0 and at["x"] + at["width"] <= width and at["height"] >= 24
    title, search = (page.locator(at).bounding_box() for at in (".panel h1", "#search"))
    assert title["y"] + title["height"] + 3 <= search["y"]
    assert page.locator(".panel header p").is_visible()


def test_results_of_a_search_name_their_scope(opened):
    page = opened(scoped_page(12))
    page.fill("#search", "matmul")
    rows = [row.inner_text() for row in page.locator("#results .where").all()]
    assert any("net/layers/11/product" in row for row in rows)


def test_focus_rings_are_not_cut(opened):
    page = opened(step_graph())
    for button in ("#open", ".breadcrumbs button"):
        ring = page.locator(button).evaluate(
            "button => { button.focus(); return [getComputedStyle(button.parentElement).overflow,"
            " parseFloat(getComputedStyle(button).borderRadius) > 0]; }"
        )
        assert ring == ["visible", True]


def test_many_values_are_one_cable(opened):
    @tg.function
    def block(x, w):
        for _ in range(5):
            x = tg.tanh(x @ w) * tg.sigmoid(x)
        return x

    @tg.function
    def caller(x, w):
        with tg.GradientTape() as tape:
            tape.watch(w)
            loss = tg.reduce_sum(block(x, w))
        return tape.gradient(loss, w)

    specs = tg.TensorSpec([8, 4]), tg.TensorSpec([4, 4])
    page = opened(caller.get_concrete_function(*specs).graph)
    chips, width = page.evaluate(
        "(() => { const box = tracegraph.boxes().find(b => b.node.outputs.length > 4);"
        " return [box.chips.map(c => c.text), box.w]; })()"
    )
    assert len(chips) == 1 and re.fullmatch(r"\d+ values", chips[0])
    assert width < 300


def test_arguments_keep_their_order_in_the_flow(opened):
    page = opened(nested_graph())
    page.fill("#search", "tanh")
    page.keyboard.press("Enter")
    places = page.evaluate(
        "tracegraph.boxes().filter(b => b.kind === 'argument').map(b => [b.path, b.y, b.rank, b.x])"
    )
    rows = {}
    for path, y, rank, x in places:
        rows.setdefault((path, y), []).append((rank, x))
    assert any(len(row) > 2 for row in rows.values())
    for row in rows.values():
        assert [x for _, x in sorted(row)] == sorted(x for _, x in row)


def test_edges_and_backward_nodes_are_seen_in_the_dark(browser, tmp_path):
    path = tmp_path / "graph.html"
    step_graph().to_html(path)
    page = browser.new_page(color_scheme="dark")
    page.goto(path.as_uri())
    far = "Number(getComputedStyle(document.documentElement).getPropertyValue('--far'))"
    assert page.evaluate(far) > 0.5
    page.close()


# The tree of nodes.


def test_every_node_is_an_item_of_the_tree(opened):
    graph = nested_graph()
    page = opened(graph)
    tree = page.get_by_role("tree")
    assert tree.get_attribute("aria-labelledby") == "tree-title"
    count = sum(len(inner.nodes) for inner in graph.graphs())
    assert page.locator("#tree [data-node][data-op]").count() >= count
    item = page.locator("#tree [data-graph=affine][data-op=tanh]")
    assert item.get_attribute("role") == "treeitem"
    assert "tanh" in item.inner_text() and "tanh" in item.get_attribute("aria-label")
    item.click()
    assert page.evaluate("[tracegraph.selected().op, tracegraph.selected().graph.name]") == [
        "tanh",
        "affine",
    ]
    assert item.get_attribute("aria-selected") == "true"
    click(page, "%x")
    assert page.locator('#tree [aria-selected="true"]').get_attribute("data-node") == "%x"


def test_the_tree_is_walked_by_keys(opened):
    page = opened(nested_graph())
    page.locator("#tree [tabindex='0']").focus()
    here = "document.activeElement.getAttribute('aria-level')"
    level = page.evaluate(here)
    page.keyboard.press("Home")
    assert page.evaluate(here) == level == "1"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(here) == "1", "what is folded is passed over"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(here) == "2"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert picked(page) is not None
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "treeitem"


def test_the_tree_has_scopes(opened):
    page = opened(scoped_page(3))
    page.wait_for_selector('#tree [data-scope="net/layers/2/gate"]', state="attached")
    page.wait_for_selector('#tree [data-node][data-op="matmul"]', state="attached")


def test_the_tree_of_a_large_graph_fills_when_there_is_time(opened):
    graph = deep_graph(58)
    page = opened(graph)
    at_once = page.evaluate("performance.now()")
    assert at_once < 20_000
    last = page.locator("#tree [data-node]").nth(len(graph.nodes) - 1)
    last.wait_for(state="attached", timeout=60_000)
    hidden = page.locator("#tree [hidden]").first
    assert hidden.get_attribute("hidden") == "until-found", "the browser's search unfolds it"


def test_results_are_called_by_the_variables_that_they_become(opened):
    page = opened(train_graph())
    names = page.evaluate(
        "tracegraph.model.entry.nodes.filter(n => n.kind === 'result').map(n => n.name)"
    )
    assert any(name.startswith("new ") for name in names) and "result 0" in names


def test_user_text_is_shown_and_not_run(opened):
    page = opened(nasty_graph())
    click(page, "%0")
    assert f"return x + x  # {NASTY}" in page.locator("#details pre").text_content()
    assert page.locator("script").count() == 2


def test_the_picture_is_saved_and_printed(opened):
    page = opened(nasty_graph())
    with page.expect_download() as download:
        page.click("#save")
    svg = download.value.path().read_text("utf-8")
    assert svg.startswith("<svg ") and "<script" not in svg
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#print svg").count() == 1
    assert page.locator("#text").get_attribute("open") is not None


def test_the_frame_shows_the_whole_graph(browser, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{html_frame(step_graph())}", "utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.goto(path.as_uri())
    frame = page.frames[1]
    frame.wait_for_function("window.tracegraph && document.getElementById('canvas').width > 300")
    page.wait_for_timeout(100)
    for name in ("%x", "result 0"):
        at = frame.evaluate("name => tracegraph.locate(name)", name)
        assert 0 < at["x"] < 560 and 0 < at["y"] < 560
    page.close()


def test_without_scripts_the_text_is_there(browser, tmp_path):
    graph = step_graph()
    path = tmp_path / "graph.html"
    graph.to_html(path)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("pre").is_visible() and not page.locator("canvas").first.is_visible()
    context.close()
