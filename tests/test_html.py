"""The HTML page of a graph: what is in it, that nothing leads out of it, and how it behaves."""

import base64
import hashlib
import json
import linecache
import re
import shutil
from html.parser import HTMLParser

import pytest

import tracegraph as tg
from tracegraph.views.html import family, html_frame, to_html

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
        file, line, roles, code, _ = data["places"][place]
        assert (line, tuple(roles), code) == (
            node.source.line,
            node.source.roles,
            node.source.text,
        )
        assert file == "test_html.py"
    called = [row[4] for row in entry["nodes"] if len(row) > 4 and row[4]]
    names = [data["graphs"][number]["name"] for calls in called for _, number in calls]
    assert {name.partition("_")[0] for name in names} == {"layer"}


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
        graph.to_html(path)
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
    assert "Backward of this line" in details
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
