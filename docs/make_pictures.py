"""Takes the pictures of the HTML page that docs/gallery.md and the README show.

    pip install playwright && playwright install chromium
    python docs/make_pictures.py

Each picture is the page of a graph as a browser shows it, after what a reader might do there. The
pictures are kept in docs/images; the browser's fonts decide how letters look.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

import tracegraph as tg

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1440, "height": 900}
LAYERS = 58

SMALL = """\
import tracegraph as tg


def layer(x, w, b):
    return tg.tanh(x @ w + b)


@tg.function
def small(x, w, b):
    with tg.GradientTape() as tape:
        tape.watch(w)
        loss = tg.reduce_sum(layer(x, w, b))
    return loss, tape.gradient(loss, w)
"""

DEEP = """\
import tracegraph as tg


@tg.function
def deep(x, weights):
    with tg.GradientTape() as tape:
        tape.watch(weights)
        h = x
        for w in weights:
            z = h @ w
            s = tg.sigmoid(z)
            h = h + tg.nn.softmax(z * s) * tg.exp(-tg.square(z))
        loss = tg.reduce_mean(tg.square(h))
    gradients = tape.gradient(loss, weights)
    return loss, [w - 0.1 * g / (tg.norm(g) + 1e-6) for w, g in zip(weights, gradients)]
"""


def defined(source, folder, name):
    """The function of this name, of a file that is there to be quoted."""
    path = Path(folder) / f"{name}.py"
    path.write_text(source, "utf-8")
    names = {"__name__": name}
    exec(compile(source, str(path), "exec"), names)
    return names[name]


def small_graph(folder):
    specs = tg.TensorSpec([16, 4]), tg.TensorSpec([4, 4]), tg.TensorSpec([4])
    return defined(SMALL, folder, "small").get_concrete_function(*specs).graph


def deep_graph(folder):
    specs = tg.TensorSpec([32, 16]), [tg.TensorSpec([16, 16])] * LAYERS
    return defined(DEEP, folder, "deep").get_concrete_function(*specs).graph


def digits_graph(folder):
    """The train step of the digits example."""
    sys.path.insert(0, str(ROOT / "examples"))
    import train_digits

    tg.random.set_seed(0)
    model = train_digits.make_model("mlp")
    step, _ = train_digits.make_steps(model, tg.optimizers.Adam(learning_rate=0.001))
    return step.get_concrete_function().graph


def choose(op):
    """Finds the first node of an op, as a reader does."""

    def act(page):
        page.fill("#search", op)
        page.keyboard.press("Enter")
        page.evaluate("document.getElementById('search').blur()")

    return act


def leave_alone(page):
    """The first look."""


#: Per picture: the graph, light or dark, and what is done on the page.
PICTURES = {
    "graph_small": (small_graph, "light", choose("tanh")),
    "graph_train_step": (digits_graph, "light", leave_alone),
    "graph_large": (deep_graph, "dark", leave_alone),
}


def started(engine):
    """Playwright's own Chromium, or else the one of the system."""
    try:
        return engine.chromium.launch()
    except Error:
        names = ("chromium", "chromium-browser", "google-chrome")
        found = next(filter(None, map(shutil.which, names)), None)
        if found is None:
            raise
        return engine.chromium.launch(executable_path=found, args=["--no-sandbox"])


def take(browser, folder, name):
    graph, scheme, act = PICTURES[name]
    made = graph(folder)
    path = Path(folder) / f"{name}.html"
    made.to_html(path)
    page = browser.new_page(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    act(page)
    page.wait_for_timeout(600)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()
    print(f"{name}: {len(made.nodes):,} nodes", file=sys.stderr)


if __name__ == "__main__":
    with sync_playwright() as engine, tempfile.TemporaryDirectory() as folder:
        browser = started(engine)
        for name in sys.argv[1:] or PICTURES:
            take(browser, folder, name)
        browser.close()
