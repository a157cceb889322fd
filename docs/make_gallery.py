"""Writes docs/gallery.md: one small program in every form in which a graph can be seen.

    python docs/make_gallery.py

`docs/make_pictures.py` takes the pictures of the HTML page, in a browser; that of Graphviz is what
`dot -Tsvg` draws of the layer's `to_dot()`. All else is made here by running code, and tests
compare the page, and the names in the picture, with what the code makes now.
"""

import contextlib
import io
import linecache
import os
import re
import sys
import tempfile
from pathlib import Path

import tracegraph as tg
from tracegraph.commands import main as command

PAGE = Path(__file__).resolve().parent / "gallery.md"

MODEL = '''\
import tracegraph as tg


@tg.custom_gradient
def clipped(x):
    """The identity; no element of its gradient is larger than 1."""
    return x, lambda g: tg.clip_by_value(g, -1.0, 1.0)


class Layer(tg.Module):
    def __init__(self, inputs, units):
        super().__init__()
        self.w = tg.Variable(tg.ones([inputs, units]), name="w")

    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def __call__(self, x):
        return tg.tanh(clipped(x) @ self.w)


layer = Layer(4, 3)


@tg.function(input_signature=[tg.TensorSpec([None, 4]), tg.TensorSpec([None, 3])])
def train_step(x, y):
    with tg.GradientTape() as tape:
        loss = tg.reduce_mean((layer(x) - y) ** 2)
    layer.w.assign_sub(0.1 * tape.gradient(loss, layer.w))
    return loss
'''

TEXT = """\
# Gallery

One small program in every form in which a graph can be seen. `docs/make_gallery.py` generates this
page by running the program, so the page shows actual output.

```python
{model}```

## Text

`print(graph)`: one node per line, with its type and the line of `model.py` that it comes from.
`vjp` marks the nodes that the gradient pass derived. The layer's custom gradient is a separate
graph, and so is the layer's backward.

```text
{text}
```

## Table

`print(graph.summary())`: what a step costs, for each op and each line, most expensive first, with
the batch size left open.

```text
{summary}
```

## Difference

`print(tg.diff(before, after))`, where the layer has a `relu` in place of the `tanh`:

```text
{diff}
```

## Mermaid

The output of `graph.to_mermaid()` can be pasted into a page unchanged. This is the layer:

```mermaid
{mermaid}
```

## Graphviz

`graph.to_dot("layer.dot")`, drawn by `dot -Tsvg layer.dot`. Each function is a cluster, and so is
each name scope in it; a dashed edge leads from a call to the function that it calls:

![The layer as Graphviz draws it](images/layer.svg)

## What the passes do

`tg.debugging.dump_graphs("dump")` writes each graph after each pass; the file of a pass that
changed nothing says so. These are the files of `train_step`, without their numbers:

```text
{dump}
```

This is what they contain for a function that computes the same value twice:

```python
{repeated}```

`traced` shows what the code does:

```text
{traced}
```

`shared` computes equal values only once:

```text
{shared}
```

The operations of `stablehlo`, the input to XLA, name the lines of the program:

```text
{stablehlo}
```

## The page

`graph.to_html()` writes one file that needs no network; `docs/make_pictures.py` takes these
pictures of it. Here a node is selected: the page shows its line, its operands, and what the
gradient derived from it.

![A graph of eleven nodes with one chosen](images/graph_small.png)

Larger graphs fold, by name scopes if there are any and otherwise by the lines of the program:
forward is on the left, and what was derived from it on the right. This is the train step of
`examples/train_digits.py`, whose optimizer is one line and is folded at first:

![The train step of the digits example, by name scopes and lines](images/graph_train_step.png)

This is a network of 58 layers, with 2,968 nodes, as it first appears in dark mode. A box lays out
its contents when it is opened:

![A graph of 2,968 nodes, by the rounds of its loop](images/graph_large.png)

## On the command line

`tracegraph show model` lists what a saved model holds:

```text
{listing}
```
"""


def run_model(source):
    """The names that the model defines, with lines that count from its first one."""
    names = {"__name__": "model"}
    linecache.cache["model.py"] = len(source), None, source.splitlines(keepends=True), "model.py"
    exec(compile(source, "model.py", "exec"), names)
    return names


def listing(model):
    """What the command line says of the model and its train step, when they are saved."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            both = {"layer": model["layer"], "train_step": model["train_step"]}
            tg.saved_model.save(both, "model")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                command(["show", "model"])
        finally:
            os.chdir(before)
    return output.getvalue().rstrip("\n")


REPEATED = """\
@tg.function
def twice(x):
    return tg.sin(x) * tg.sin(x)
"""


def dumped(call):
    """The files that are written while `call` runs, by their names and in their order."""
    with tempfile.TemporaryDirectory() as folder:
        with tg.debugging.dump_graphs(folder):
            call()
        return {path.name: path.read_text("utf-8") for path in sorted(Path(folder).iterdir())}


def stage(files, function, stage):
    """The text of a function at a stage."""
    (text,) = [text for name, text in files.items() if f"-{function}.{stage}." in name]
    return text.rstrip("\n")


def operations(text):
    """The operations of a StableHLO program, each with its place, which stands in a table there."""
    places = dict(re.findall(r'^(#loc\d+) = loc\((".*?")', text, re.MULTILINE))
    lines = [line.strip() for line in text.splitlines() if "= stablehlo." in line]
    return "\n".join(re.sub(r"#loc\d+", lambda match: places[match[0]], line) for line in lines)


def passes():
    """What the passes do with the train step, and with a function that repeats itself."""
    train_step = run_model(MODEL)["train_step"]
    files = dumped(lambda: train_step(tg.ones([2, 4]), tg.zeros([2, 3])))
    twice = run_model(f"import tracegraph as tg\n\n\n{REPEATED}")["twice"]
    repeated = dumped(lambda: twice(tg.ones([2])))
    shown = [name for name in files if "-train_step." in name]
    return {
        "dump": "\n".join(name.partition("-")[2] for name in shown),
        "repeated": REPEATED,
        "traced": stage(repeated, "twice", "traced"),
        "shared": stage(repeated, "twice", "shared"),
        "stablehlo": operations(stage(repeated, "twice", "stablehlo")),
    }


def page():
    """The text of the page."""
    model = run_model(MODEL)
    graph = model["train_step"].get_concrete_function().graph
    layer = model["layer"].__call__.get_concrete_function()
    summary = graph.summary()  # while the lines of `model.py` are still those of this model
    changed = run_model(MODEL.replace("tg.tanh", "tg.nn.relu"))
    return TEXT.format(
        model=MODEL,
        text=graph.as_text(locations=True),
        summary=summary,
        diff=tg.diff(layer, changed["layer"].__call__.get_concrete_function()),
        mermaid=layer.graph.to_mermaid().rstrip("\n"),
        listing=listing(model),
        **passes(),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"written: {PAGE}", file=sys.stderr)
