"""The command line: what it prints, writes and returns, and what it says to a mistake."""

import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tracegraph as tg
from tests.project.test_docs import blocks
from tracegraph.commands import diff, main, show
from tracegraph.commands.check_derivatives import check_derivatives
from tracegraph.commands.contents import SavedVariable, open_path
from tracegraph.ops.contract import Matmul
from tracegraph.text import module_text, parse_module

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("show", "run", "diff", "verify", "export")
#: Whether programs can be exported here: jax.export writes them with flatbuffers.
CAN_EXPORT = all(map(importlib.util.find_spec, ("tracegraph.export", "flatbuffers")))


@tg.custom_gradient
def doubled(y):
    return y, lambda g: 2.0 * g


class Encoder(tg.Module):
    def __init__(self):
        super().__init__()
        self.w = tg.Variable(np.arange(12, dtype=np.float32).reshape(4, 3) / 12, name="w")

    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def __call__(self, x):
        return tg.tanh(doubled(x @ self.w))


class Model(tg.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.steps = tg.Variable(0, trainable=False)
        self.parts = {"square": tg.function(lambda x: x * x)}
        self.helper = print
        self.same = self.encoder

    @tg.function(input_signature=[tg.TensorSpec(["n", 4]), tg.TensorSpec(["n"], tg.int32)])
    def train(self, images, labels):
        with tg.GradientTape() as tape:
            logits = self.encoder(images)
            losses = tg.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tg.reduce_mean(losses)
        self.encoder.w.assign_sub(0.1 * tape.gradient(loss, self.encoder.w))
        self.steps.assign_add(1)
        return {"loss": loss, "parts": [losses, logits]}

    @tg.function
    def narrow(self, x, wide=False):
        return tg.cast(x, tg.float32 if wide else tg.bfloat16)

    @tg.function
    def never(self, x):
        return x


def save(directory, locations=False):
    model = Model()
    model.narrow(tg.ones([2]))
    model.narrow(tg.ones([2]), wide=True)
    model.parts["square"](tg.constant(3.0))
    signatures = {"serve": model.encoder.__call__}
    options = tg.saved_model.SaveOptions(locations=locations, extra={"notes.txt": b"hello"})
    tg.saved_model.save(model, directory, signatures, options)
    return str(directory)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def model(kept, tmp_path, monkeypatch):
    """A copy of the saved model, `model`, in the folder of the test, which is the present one."""
    shutil.copytree(kept, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return "model"


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Saves an object to the folder `other` and returns that."""
    monkeypatch.chdir(tmp_path)

    def save_as_other(value, **options):
        tg.saved_model.save(value, "other", **options)
        return "other"

    return save_as_other


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and errors."""

    def run_here(*arguments):
        code = main(list(map(str, arguments)))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_here


def specs(*shapes, dtype=tg.float32):
    return [tg.TensorSpec(shape, dtype) for shape in shapes]


def one(x_type="f32[2]"):
    return (
        f"graph @one(%x: {x_type}) -> ({x_type}) {{\n  %0 = tanh(%x) : {x_type}\n  return %0\n}}\n"
    )


# Help.


HELP = """\
usage: tracegraph [-h] [--version] [--json] COMMAND ...

Looks at saved graphs, runs and compares them, and checks them.

positional arguments:
  COMMAND
    show      what a path holds, or graphs of it
    run       run a function on arrays and numbers
    diff      what differs between two graphs or saved models
    verify    check files, graphs and derivatives
    export    write a function as a program for others
    launch    start several processes of one script or module, here

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit
  --json      print JSON, for programs

examples:
  tracegraph show model                       what is there
  tracegraph show model --entry train_step    one graph, as text
  tracegraph run model --entry predict --inputs x=x.npy --outdir results
  tracegraph verify model

`tracegraph COMMAND --help` has the options of a command, and more examples.

exit codes:
  0  done; diff: no difference; verify: everything is right
  1  diff: a difference; verify: something is wrong or damaged; the others: damaged data, or a
     graph that fails
  2  an option, a path or an entry that is not there; an output that cannot be written;
     diff: damaged data
launch: the exit code of a process that failed, 70 if it ended only because another one was lost
"""

HELP_VERIFY = """\
usage: tracegraph verify [-h] [--entry NAME] [--json] PATH

Compares every file and tensor with its checksum, infers all types anew, and tests the
derivatives of each graph: <Jv, w> by forward mode must be <v, J'w> by reverse mode, at
random arguments, with small numbers for open sizes. A custom gradient that is not
linear, such as one that clips, is run, and the rest of the graph is tested without it.

positional arguments:
  PATH          a directory that tg.saved_model.save wrote, or a file with graphs as text

options:
  -h, --help    show this help message and exit
  --entry NAME  check only this graph: a path such as encoder/__call__, with :0, :1 ... for one of
                several traces; a signature
  --json        print JSON, for programs

examples:
  tracegraph verify model
  tracegraph verify model --entry train_step
  tracegraph verify model --json > report.json

exit codes:
  0  done; diff: no difference; verify: everything is right
  1  diff: a difference; verify: something is wrong or damaged; the others: damaged data, or a
     graph that fails
  2  an option, a path or an entry that is not there; an output that cannot be written;
     diff: damaged data
launch: the exit code of a process that failed, 70 if it ended only because another one was lost
"""


def test_help(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run("--help") == (0, HELP, "")
    assert run("verify", "--help") == (0, HELP_VERIFY, "")
    for command in COMMANDS:
        code, text, _ = run(command, "--help")
        assert code == 0 and f"  tracegraph {command} " in text and "--json" in text
        assert "exit codes:" in text and max(map(len, text.splitlines())) <= 100


def test_version(run):
    assert run("--version") == (0, f"tracegraph {tg.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [[], ["dance"], ["show"], ["show", "x", "--format", "xml"], ["diff", "x"], ["-x"]]
)
def test_a_misuse_of_options(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("usage: tracegraph") and "error: " in err
    code, out, err = run("--json", *arguments)
    found = json.loads(out)
    assert code == 2 and set(found) == {"error", "fix"} and "--help" in found["fix"]
    assert err.endswith(f"error: {found['error']}\n")


@pytest.mark.parametrize(
    "arguments", [["show", "--json"], ["--json", "show"], ["show", "--js"], ["dance", "--json"]]
)
def test_a_misuse_of_options_for_programs(run, arguments):
    code, out, _ = run(*arguments)
    assert code == 2 and set(json.loads(out)) == {"error", "fix"}


def test_json_before_the_command(run, model):
    assert run("--json", "show", model) == run("show", model, "--json")
    code, out, _ = run("--json", "show", "net")
    assert code == 2 and "no file or directory net" in json.loads(out)["error"]


def test_the_script_is_what_is_tested():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    module, name = scripts["tracegraph"].split(":")
    assert getattr(import_module(module), name) is main


# What there is.


LISTING = """\
model: a saved model, format 1, 2 files of # kB, with 1 custom gradient

object   class    not saved
.        Model    helper (a builtin_function_or_method)
encoder  Encoder

function          arguments                             results                                          nodes  variables
narrow:0          x: f32[2], wide=False                 output_0: bf16[2]                                    1          0
narrow:1          x: f32[2], wide=True                  output_0: f32[2]                                     0          0
never             never traced before saving: no graph
train             images: f32[n,4], labels: i32[n]      loss: f32[], parts_0: f32[n], parts_1: f32[n,3]     ##          2
encoder/__call__  x: f32[d0,4]                          output_0: f32[d0,3]                                  6          1
parts/square      x: f32[]                              output_0: f32[]                                      1          0

signature         arguments     results              nodes  variables
signatures/serve  x: f32[d0,4]  output_0: f32[d0,3]      6          1

variable   type      bytes
encoder/w  f32[4,3]     48  trainable
steps      i32[]         4
total                   52  of which 48 trainable

custom gradient of  is                used in
doubled             doubled_backward  train, encoder/__call__, signatures/serve

file                                    bytes
graph-#.tgir                            #
weights-#.safetensors                   #
extra/notes.txt                   not checked
"""  # noqa: E501


def test_listing(run, model):
    code, out, err = run("show", model)
    out = re.sub(r"-[0-9a-f]{12}(\.\w+) +[\d,]+", lambda m: f"-#{m[1]:<30}#", out)
    out = re.sub(r"[\d.]+ kB", "# kB", re.sub(r"(parts_1: f32\[n,3\] +)\d+", r"\1##", out))
    wanted = re.sub(r"-#(\.\w+) +#", lambda m: f"-#{m[1]:<30}#", LISTING)
    assert (code, out, err) == (0, wanted, "")


def test_listing_as_data(run, model):
    code, out, err = run("show", model, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["kind"] == "saved model" and data["version"] == 1
    assert data["keeps_custom_gradients"] is True and data["extra"] == ["notes.txt"]
    assert [row["path"] for row in data["objects"]] == [".", "encoder"]
    functions = {row["path"]: row["traces"] for row in data["functions"]}
    assert functions["never"] == [] and len(functions["narrow"]) == 2
    (train,) = functions["train"]
    assert train["inputs"][1] == {"name": "labels", "type": "i32[n]", "is_variable": False}
    assert [row["name"] for row in train["outputs"]] == ["loss", "parts_0", "parts_1"]
    assert train["custom_gradients"] == [{"body": "doubled", "backward": "doubled_backward"}]
    assert data["variables"][0] == {
        "name": "encoder/w",
        "type": "f32[4,3]",
        "shape": [4, 3],
        "trainable": True,
        "bytes": 48,
    }
    for row in data["files"]:
        assert Path(model, row["name"]).stat().st_size == row["bytes"]


def test_listing_of_a_text(run, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(one() + "\n" + one().replace("@one", "@two"), "utf-8")
    assert run("show", path) == (
        0,
        f"{path}: 2 graphs as text, the entry last\n\n"
        "graph  arguments  results           nodes  variables\n"
        "one    x: f32[2]  output_0: f32[2]      1          0\n"
        "two    x: f32[2]  output_0: f32[2]      1          0\n",
        "",
    )
    data = json.loads(run("show", path, "--json")[1])
    assert data["kind"] == "text" and [row["entry"] for row in data["entries"]] == ["one", "two"]


def test_a_listing_moves_no_cursor(run, saved):
    path = saved(
        {"\x1b[31mred\u202e": tg.function(lambda x: x, input_signature=[tg.TensorSpec([])])}
    )
    code, out, _ = run("show", path)
    assert code == 0 and "\x1b" not in out and "\u202e" not in out and "[31mred" in out
    code, _, err = run("show", path, "--entry", "\x1b[31m")
    assert code == 2 and "\x1b" not in err


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda f: f, "<lambda>"),
        (lambda f: [f, {"inner": f}], "1/inner"),
        (lambda f: {"a": [f]}, "a/0"),
        (lambda f: f.get_concrete_function(), "<lambda>"),
    ],
)
def test_what_is_no_module(run, saved, make, name):
    function = tg.function(lambda x: x * 2.0, input_signature=[tg.TensorSpec([None])])
    path = saved(make(function))
    code, out, _ = run("run", path, "--entry", name, "--inputs", "x=[1,2]")
    assert code == 0 and "[2.0, 4.0]" in out
    assert name in run("show", path)[1]


# One graph.


@pytest.mark.parametrize(
    "name",
    ["encoder/__call__", "same/__call__", "signatures/serve", "serve", "__call__"],
)
def test_an_entry_has_several_names(run, model, name):
    code, out, err = run("show", model, "--entry", name)
    assert (code, err) == (0, "")
    assert tg.Graph.from_text(out).name == "__call__"


def test_one_of_several_traces(run, model):
    for number, dtype in enumerate(("bf16", "f32")):
        code, out, _ = run("show", model, "--entry", f"narrow:{number}")
        assert code == 0 and f"-> ({dtype}[2])" in out


@pytest.mark.parametrize("format", list(show.FORMATS))
def test_forms_of_a_graph(run, model, format, tmp_path):
    graph = tg.saved_model.load(model).train.get_concrete_function().graph
    methods = {
        "text": lambda: graph.as_text(locations=True),
        "summary": graph.summary,
        "dot": graph.to_dot,
        "mermaid": graph.to_mermaid,
        "html": graph.to_html,
        "json": lambda: graph.to_json(indent=1),
    }
    wanted = methods[format]().rstrip("\n") + "\n"
    assert run("show", model, "--entry", "train", "--format", format) == (0, wanted, "")
    file = tmp_path / "graph.out"
    code, out, err = run("show", model, "--entry", "train", "--format", format, "--output", file)
    assert (code, out, err) == (0, f"train as {format}: {file}\n", "")
    assert file.read_text("utf-8") == wanted
    data = json.loads(run("show", model, "--entry", "train", "--format", format, "--json")[1])
    known = {"json": json.loads(graph.to_json()), "summary": graph.summary().to_dict()}
    assert data["content"] == known.get(format, wanted.rstrip("\n"))
    assert (data["entry"], data["format"], data["variables"]) == ("train", format, 2)


def test_parts_of_a_graph(run, tmp_path):
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.sin(x) * x
        return tape.gradient(y, x)

    f = tg.function(slope, input_signature=[tg.TensorSpec([])])
    tg.saved_model.save({"slope": f, "plain": tg.function(lambda x: x)}, tmp_path / "m")
    graph = tg.saved_model.load(tmp_path / "m")["slope"].get_concrete_function().graph
    for part in ("forward", "backward"):
        wanted = getattr(graph, part)().as_text(locations=True) + "\n"
        assert run("show", tmp_path / "m", "--entry", "slope", "--part", part) == (0, wanted, "")
    text = tmp_path / "g.txt"
    text.write_text(graph.forward().as_text(), "utf-8")
    code, _, err = run("show", text, "--part", "backward")
    assert code == 1 and "has no backward part" in err


NAMES = ["narrow:0", "narrow:1", "train", "encoder/__call__", "parts/square"]


@pytest.mark.parametrize("format", list(show.FORMATS))
def test_forms_of_all_graphs(run, model, format, tmp_path):
    code, out, err = run("show", model, "--format", format)
    assert (code, err) == (0, "")
    file = tmp_path / "all.out"
    wanted = (0, f"5 graphs as {format}: {file}\n", "")
    assert run("show", model, "--format", format, "--output", file) == wanted
    assert file.read_text("utf-8") == out
    data = json.loads(run("show", model, "--format", format, "--json")[1])
    assert [row["entry"] for row in data["entries"]] == NAMES
    for row in data["entries"]:
        (alone,) = [run("show", model, "--entry", row["entry"], "--format", format, "--json")[1]]
        assert json.loads(alone)["content"] == row["content"]


def test_all_graphs_as_text_parse_back(run, model):
    graphs = parse_module(run("show", model, "--format", "text")[1])
    kept = [entry.graph for entry in open_path(Path(model)).distinct]
    assert len(graphs) == len({inner for graph in kept for inner in graph.graphs()})
    assert {"train", "narrow", "narrow.1"} <= set(graphs)


def test_all_graphs_are_one_picture(run, model):
    count = len(parse_module(run("show", model, "--format", "text")[1]))
    dot = run("show", model, "--format", "dot")[1]
    assert dot.count("digraph ") == 1 and dot.count("subgraph cluster_") == count
    mermaid = run("show", model, "--format", "mermaid")[1]
    assert mermaid.count("flowchart") == 1 and mermaid.count("  subgraph g") == count


def test_all_graphs_in_one_page(run, model):
    page = run("show", model, "--format", "html")[1]
    assert re.findall(r"<summary>(.*?)</summary><iframe", page) == NAMES
    assert page.count('<details name="graphs" open>') == 1 and "<script" not in page
    assert page.count('sandbox="allow-scripts') == 5


def test_all_summaries_and_outlines_have_their_names(run, model):
    table = run("show", model, "--format", "summary")[1]
    assert re.findall(r"^entry (.*)$", table, re.MULTILINE) == NAMES
    outlines = json.loads(run("show", model, "--format", "json")[1])
    assert list(outlines) == NAMES and outlines["train"]["entry"] == "train"


def test_all_traces_of_a_function(run, model):
    data = json.loads(run("show", model, "--entry", "narrow", "--json")[1])
    assert [row["entry"] for row in data["entries"]] == ["narrow:0", "narrow:1"]


def test_nothing_to_show(run, saved):
    path = saved(tg.function(lambda x: x))
    code, _, err = run("show", path, "--format", "text")
    assert code == 2 and "holds no graph" in err


def test_json_of_a_graph_without_a_format(run, model):
    data = json.loads(run("show", model, "--entry", "serve", "--json")[1])
    assert data["format"] == "json" and data["content"]["format"] == "tracegraph-outline"


def test_graphs_of_a_text(run, tmp_path):
    path = tmp_path / "two.tgir"
    text = one() + "\n" + one().replace("@one", "@two")
    path.write_text(text, "utf-8")
    assert run("show", path, "--format", "text") == (0, text, "")
    assert run("show", path, "--entry", "one")[1] == one()
    found = json.loads(run("run", path, "--inputs", "x=[0,0]", "--json")[1])
    assert found["entry"] == "two"  # the last is the entry


def test_what_a_text_calls_is_shown_with_its_caller(run, model, tmp_path):
    path = tmp_path / "train.tgir"
    text = run("show", model, "--entry", "train")[1]
    path.write_text(text, "utf-8")
    assert run("show", path, "--format", "text") == (0, text, "")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "nowhere"], 2, "there is no file or directory nowhere"),
        (["show", "model", "--entry", "trian"], 2, "did you mean train?"),
        (["show", "model", "--entry", "zzz"], 2, "`tracegraph show model` lists what is there"),
        (["show", "model", "--entry", "encoder"], 2, "did you mean encoder/__call__?"),
        (["show", "model", "--entry", "encoder/w"], 2, "there is no entry 'encoder/w'"),
        (["show", "model", "--entry", "never"], 2, "never was never traced before"),
        (["diff", "model", "x.txt", "--entry", "narrow"], 2, "there is no file or directory x.txt"),
        (["diff", "model", "model", "--entry", "narrow"], 2, "narrow:1  (x: f32[2], wide=True)"),
        (["export", "model", "--entry", "narrow"], 2, "choose one with --entry"),
        (["export", "model", "--platforms", "tpux"], 2, "fix: write --platforms cpu,cuda"),
        (["export", "model", "--platforms", ","], 2, "known ones are cpu, cuda"),
        (["show", "model", "--output", "x"], 2, "add --entry NAME"),
        (["show", "model", "--entry", "train", "--output", "no/x"], 2, "no/x cannot be written"),
        (["run", "model", "--entry", "serve"], 2, "needs a value for x"),
        (
            ["run", "model", "--entry", "serve", "--inputs", "x"],
            2,
            "value of the input 'x' is missing",
        ),
        (
            ["run", "model", "--entry", "serve", "--inputs", "x="],
            2,
            "fix: write --inputs x=file.npy",
        ),
        (["run", "model", "--entry", "serve", "--inputs", "=5"], 2, "the input '=5' has no name"),
        (["run", "model", "--entry", "serve", "--inputs", "x=1", "x=2"], 2, "fix: give x=... once"),
        (["run", "model", "--entry", "train", "--inputs", "lable=1"], 2, "did you mean labels?"),
        (["run", "model", "--entry", "serve", "--inputs", "x=y.npy"], 2, "fix: write it with np"),
        (
            ["run", "model", "--entry", "serve", "--inputs", "x=bad.npy"],
            1,
            "does not begin as a .npy",
        ),
        (["run", "model", "--entry", "serve", "--inputs", "x=none.npy"], 1, "it is empty"),
        (["run", "model", "--entry", "serve", "--inputs", "x=cut.npy"], 1, "its data is damaged"),
        (
            ["run", "model", "--entry", "serve", "--inputs", "x=object.npy"],
            1,
            "it holds Python objects",
        ),
        (["run", "model", "--entry", "serve", "--inputs", "x=[[1,2,3]]"], 2, "'x' is f32[1,3]"),
        (["run", "model", "--entry", "serve", "--inputs", "x=[[1],[2,3]]"], 2, "f32[d0,4] is exp"),
        (["run", "model", "--entry", "serve", "--inputs", "x=wide.npy"], 2, "save it as float32"),
        (
            ["run", "model", "--entry", "narrow", "--inputs", "x=[1]", "wide=true"],
            2,
            "none of the 2",
        ),
        (
            ["run", "model", "--entry", "narrow:0", "--inputs", "x=[1,2]", "wide=true"],
            2,
            "has False",
        ),
        (
            ["run", "model", "--entry", "train", "--inputs", "images=[[1,2,3,4]]", "labels=[0.5]"],
            2,
            "",
        ),
        (
            ["run", "model", "--entry", "train", "--inputs", "images=[[1,2,3,4]]", "labels=[0,1]"],
            2,
            "",
        ),
        (["run", "model", "--entry", "serve", "--inputs", "x=z.npy", "--outdir", "bad.npy"], 2, ""),
        (["diff", "model", "model", "--entry", "x"], 2, "there is no entry 'x'"),
        (["diff", "model", "model", *["--entry", "serve"] * 3], 2, "--entry was given 3 times"),
        (["verify", "empty"], 1, "empty holds no tracegraph.json"),
        (["show", "bad.npy"], 1, "a graph must begin here"),
        (["show", "object.npy"], 1, "is not text"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_a_mistake_gets_a_message(run, model, arguments, code, words):
    Path("empty").mkdir()
    Path("bad.npy").write_bytes(b"no array\n")
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("wide.npy", np.zeros([2, 4]))
    np.save("z.npy", np.zeros([2, 4], np.float32))
    Path("none.npy").touch()
    Path("cut.npy").write_bytes(Path("z.npy").read_bytes()[:-1])
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert err.startswith(f"tracegraph {arguments[0]}: ") and words in err
    assert "Traceback" not in err and "site-packages" not in err and "pickle" not in err
    again, out, _ = run(*arguments, "--json")
    assert again == code and json.loads(out).keys() >= {"error", "fix"}


def test_a_text_beside_its_arrays_points_to_the_directory(run, model):
    text = "graph @c() -> (f32[2]) {\n  %0 = constant<value=f32[2]{1.0, 2.0}>() : f32[2]\n"
    graph = tg.Graph.from_text(f"{text}  return %0\n}}\n")
    path = Path(model, "c.tgir")
    path.write_text(module_text([graph], keep=lambda array: "c1"), "utf-8")
    code, _, err = run("show", path)
    assert code == 1 and "fix: give the directory" in err


# Running.


def test_run_writes_files(run, model):
    images, labels = np.ones([5, 4], np.float32), np.zeros(5, np.int32)
    np.save("images.npy", images)
    np.save("labels.npy", labels)
    inputs = ["--inputs", "images=images.npy", "labels=labels.npy"]
    code, out, err = run("run", model, "--entry", "train", *inputs, "--outdir", "a/b")
    assert (code, err) == (0, "")
    assert out == (
        "output   dtype    shape   file\n"
        "loss     float32  []      a/b/loss.npy\n"
        "parts_0  float32  [5]     a/b/parts_0.npy\n"
        "parts_1  float32  [5, 3]  a/b/parts_1.npy\n"
    )
    wanted = tg.saved_model.load(model).train(images, labels)
    np.testing.assert_array_equal(np.load("a/b/loss.npy"), wanted["loss"].numpy())
    np.testing.assert_array_equal(np.load("a/b/parts_1.npy"), wanted["parts"][1].numpy())
    again = json.loads(run("run", model, "--entry", "train", *inputs, "--json")[1])
    assert again["outputs"][0]["value"] == float(wanted["loss"]), "a run must not train"


def test_numbers_that_files_lack(run, model):
    arguments = ["run", model, "--entry", "narrow", "--inputs", "x=[1.5,0.1]", "wide=false"]
    code, out, _ = run(*arguments, "--outdir", ".")
    assert code == 0
    assert "output_0.npy (as float32, which holds every bfloat16)" in out
    found = np.load("output_0.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array([1.5, 0.1]).astype(ml_dtypes.bfloat16))
    row = json.loads(run(*arguments, "--outdir", ".", "--json")[1])["outputs"][0]
    assert (row["dtype"], row["file_dtype"]) == ("bfloat16", "float32")


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("bfloat16", "[0.1,2]", [0.1, 2]),
        ("float16", "[1,2]", [1, 2]),
        ("float64", "[1,NaN]", [1, "nan"]),
        ("float32", "[nan, inf,-inf , Infinity,1e2]", ["nan", "inf", "-inf", "inf", 100]),
        ("float32", "[[],[]]", [[], []]),
        ("float32", str(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
        ("float16", "-inf", "-inf"),
        ("complex64", "1+2j", [1, 2]),
        ("complex64", "[[1+2j,3],[-1j,(2-nanj)]]", [[[1, 2], [3, 0]], [[0, -1], [2, "nan"]]]),
        ("complex128", "3", [3, 0]),
        ("int64", "[9007199254740993]", [9007199254740993]),
        ("uint8", "255", 255),
        ("bool", "[true,False]", [True, False]),
        ("int16", "[]", []),
    ],
)
def test_every_type_goes_in_and_out(run, saved, dtype, text, value):
    spec = tg.TensorSpec(None, tg.as_dtype(dtype))
    path = saved(tg.function(lambda x: tg.identity(x), input_signature=[spec]))
    code, out, err = run("run", path, "--inputs", f"x={text}", "--outdir", "out", "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["outputs"]
    assert row["dtype"] == dtype
    if dtype == "bfloat16":
        value = [float(ml_dtypes.bfloat16(number)) for number in value]
    assert row["value"] == value
    again = run("run", path, "--inputs", "x=out/output_0.npy", "--outdir", "two", "--json")
    assert json.loads(again[1])["outputs"][0]["value"] == value
    assert Path("out/output_0.npy").read_bytes() == Path("two/output_0.npy").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "text", "words"),
    [
        ("uint8", "256", "has 256, which is out of range: uint8 goes from 0 to 255"),
        ("uint8", "[1,-1]", "has -1, which is out of range"),
        ("int32", "99999999999999", "out of range: int32 goes from -2147483648 to 2147483647"),
        ("float16", "[1,65536]", "float16 goes from -65504.0 to 65504.0"),
        ("bfloat16", "1e39", "has 1e+39, which is out of range"),
        ("float32", "1e39", "has 1e+39, which is out of range"),
        ("complex64", "1+1e39j", "which is out of range: complex64"),
        ("float64", f"1{'0' * 400}", "which is out of range: float64"),
        ("int32", "1.5", "has 1.5, and i32[*s0] is expected\n  fix: give whole numbers"),
        ("int8", "nan", "fix: give whole numbers"),
        ("int8", "true", "has True, and i8[*s0] is expected"),
        ("bool", "1", "fix: give true or false"),
        ("float32", "1j", "has 1j, and f32[*s0] is expected\n  fix: give real numbers"),
        ("float32", "[[1],[2,3]]", "is '[[1],[2,3]]', whose lists differ in length"),
        ("float32", "[1,2", "is '[1,2', and f32[*s0] is expected\n  fix: give a file.npy, a num"),
        ("float32", "[1,,2]", "fix: give a file.npy, a number such as 1.5, 1+2j, nan or -inf"),
        ("float32", "one", "is 'one', and"),
        ("float32", "null", "is 'null', and"),
        ("float32", '"1"', "fix: give a file.npy"),
        ("float32", "[" * 100_000, "fix: give a file.npy"),
        ("float32", "a.npz", 'fix: save one: np.save("x.npy", np.load("a.npz")[name])'),
        (
            "float32",
            "other/tracegraph.json",
            'files are read as .npy\n  fix: write np.save("x.npy", array)',
        ),
    ],
    ids=lambda word: word[:20],
)
def test_numbers_that_do_not_fit(run, saved, dtype, text, words):
    spec = tg.TensorSpec(None, tg.as_dtype(dtype))
    path = saved(tg.function(lambda x: tg.identity(x), input_signature=[spec]))
    code, out, err = run("run", path, "--inputs", f"x={text}")
    assert (code, out) == (2, "") and words in err and "\n  fix: " in err
    assert err.startswith("tracegraph run: the input 'x' ")


def test_a_default_value_chooses_the_trace(run, saved):
    @tg.function
    def two(x, training=False, scales=(1, 2)):
        return x * scales[1] if training else x

    for training in (True, False):
        two.get_concrete_function(tg.TensorSpec([3]), training)
        two.get_concrete_function(tg.TensorSpec([3]), training, scales=(1, 5))
        two.get_concrete_function(tg.TensorSpec([2]), training, scales=(1, 5))
    path = saved({"two": two})

    def value(*inputs):
        code, out, err = run("run", path, "--entry", "two", "--inputs", *inputs, "--json")
        return json.loads(out)["outputs"][0]["value"] if code == 0 else err

    assert value("x=[1,2,3]") == [1, 2, 3]
    assert value("x=[1,2,3]", "training=true") == [2, 4, 6]
    assert value("x=[1,2,3]", "training=True", "scales_1=5") == [5, 10, 15]
    assert value("x=[1,2]", "scales_1=5", "scales_0=1") == [1, 2]
    err = value("x=[1,2]")
    assert "several traces of two take these inputs" in err, "no trace has the default scales"
    assert "fix: say which: add --inputs training=False; or choose one by --entry" in err


def test_an_array_as_a_default_value(run, saved):
    @tg.function
    def shifted(x, offset=np.float32([1, 2])):  # noqa: B008
        return x + offset

    shifted(tg.ones([2]))
    path = saved(shifted)
    code, out, _ = run("run", path, "--inputs", "x=[1,1]", "--json")
    assert code == 0 and json.loads(out)["outputs"][0]["value"] == [2.0, 3.0]
    code, out, _ = run("run", path, "--inputs", "x=[1,1]", "offset=[0,0]", "--json")
    assert code == 0 and json.loads(out)["outputs"][0]["value"] == [1.0, 1.0]


def test_results_stay_in_their_folder(run, saved):
    names = ["../../up", "/root", "", ".hidden", "a b", "a/b", "x" * 300]
    function = tg.function(
        lambda x: {name: x + i for i, name in enumerate(names)}, input_signature=[tg.TensorSpec([])]
    )
    path = saved(function)
    code, out, _ = run("run", path, "--inputs", "x=1", "--outdir", "deep/er", "--json")
    files = [Path(row["file"]) for row in json.loads(out)["outputs"]]
    assert code == 0 and len(set(files)) == len(names)
    assert {file.parent for file in files} == {Path("deep/er")}
    assert all(file.is_file() and file.name[0] != "." for file in files)
    assert sorted(map(str, Path().iterdir())) == ["deep", "other"]


def test_a_variable_as_an_argument(run, saved):
    @tg.function
    def scaled(v, x):
        return v * x

    scaled(tg.Variable(2.0), tg.constant(3.0))
    path = saved(scaled)
    code, out, _ = run("run", path, "--inputs", "v=5", "x=7", "--json")
    assert code == 0 and json.loads(out)["outputs"][0]["value"] == 35.0
    assert "right, by x, v" in run("verify", path)[1]


def test_a_text_is_run(run, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(one(), "utf-8")
    code, out, _ = run("run", path, "--inputs", "x=[0,0]")
    assert (code, out.splitlines()[1].split()) == (
        0,
        ["output_0", "float32", "[2]", "[0.0,", "0.0]"],
    )


def test_what_a_graph_prints_is_no_output(run, saved):
    def shout(x):
        tg.print("shouted", output_stream=sys.stdout)
        return x

    path = saved(tg.function(shout, input_signature=[tg.TensorSpec([])]))
    code, out, _ = run("run", path, "--inputs", "x=1", "--json")
    assert code == 0 and json.loads(out)["outputs"][0]["value"] == 1.0


def test_a_check_that_fails(run, saved):
    def checked(x):
        tg.debugging.assert_positive(x, "x must be positive")
        return x

    path = saved(tg.function(checked, input_signature=[tg.TensorSpec([])]))
    assert run("run", path, "--inputs", "x=1")[0] == 0
    code, out, err = run("run", path, "--inputs", "x=-1")
    assert (code, out) == (1, "") and "x must be positive" in err


# Comparing.


def test_the_same_has_no_difference(run, model):
    assert run("diff", model, model) == (0, "no difference in 6 graphs\n", "")
    assert run("diff", model, model, "--entry", "serve") == (0, "no difference in 1 graph\n", "")
    assert json.loads(run("diff", model, model, "--json")[1])["is_same"] is True


def test_difference_of_two_graphs(run, tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text(one(), "utf-8")
    b.write_text(one().replace("tanh", "sin"), "utf-8")
    code, out, err = run("diff", a, b)
    assert (code, err) == (1, "")
    assert out == (
        "entry one\n"
        "@one: 1 changed\n"
        "  ~ %0 = tanh(%x) : f32[2]\n"
        "    %0 = sin(%x) : f32[2]\n"
        "      op: tanh is now sin\n"
    )
    data = json.loads(run("diff", a, b, "--json")[1])
    assert data["is_same"] is False and data["entries"][0]["changes"]


def test_difference_of_two_entries(run, model):
    code, out, _ = run("diff", model, model, "--entry", "narrow:0", "--entry", "narrow:1")
    assert code == 1 and out.startswith("entry narrow:0 and narrow:1\n")


def test_difference_of_two_models(run, model):
    loaded = tg.saved_model.load(model)
    loaded.train(tg.ones([2, 4]), tg.constant([0, 1]))
    tg.saved_model.save(loaded, "trained")
    assert run("diff", model, "trained") == (
        1,
        "~ variable encoder/w: its values differ by up to 0.00648\n"
        "~ variable steps: its values differ by up to 1\n",
        "",
    )
    assert run("diff", model, "trained", "--no-values")[0] == 0
    del loaded.parts["square"]
    loaded.more = tg.Variable(1.0, trainable=False)
    tg.saved_model.save(loaded, "changed")
    code, out, _ = run("diff", "changed", "trained", "--no-values")
    assert (code, out) == (1, "+ entry parts/square\n- variable more: f32[]\n")
    data = json.loads(run("diff", "trained", "changed", "--json", "--no-values")[1])
    gone = {"kind": "removed", "what": "entry", "name": "parts/square"}
    new = {"kind": "added", "what": "variable", "name": "more", "after": "f32[]"}
    nothing = {"field": None, "before": None, "after": None}
    assert data["notes"] == [nothing | gone, nothing | new]
    data = json.loads(run("diff", model, "trained", "--json")[1])
    assert [(note["kind"], note["name"], note["field"]) for note in data["notes"]] == [
        ("changed", "encoder/w", "value"),
        ("changed", "steps", "value"),
    ]


def test_notes_of_a_variable():
    before = SavedVariable("w", "f32[2]", True, (2,), 8, "a", None)
    after = SavedVariable("w", "f32[n]", False, (2,), 8, "a", None)
    notes = list(diff._changes("w", before, after, no_values=False))
    assert list(map(str, notes)) == [
        "~ variable w: type: f32[2] is now f32[n]",
        "~ variable w: trainable: True is now False",
    ]
    assert (notes[1].before, notes[1].after) == (True, False)


@pytest.mark.parametrize("sides", [("model", "damaged"), ("damaged", "model")])
@pytest.mark.parametrize("damage", ["{", None])
def test_a_side_that_cannot_be_read_is_no_difference(run, model, sides, damage):
    shutil.copytree(model, "damaged")
    manifest = Path("damaged", "tracegraph.json")
    manifest.unlink() if damage is None else manifest.write_text(damage)
    code, out, err = run("diff", *sides)
    assert (code, out) == (2, "") and "damaged" in err
    assert run("diff", *sides, "--json")[0] == 2


# Verifying.


def test_all_is_right(run, model):
    code, out, err = run("verify", model)
    assert (code, err) == (0, "")
    assert out.endswith("\n\nmodel is right: 5 graphs, 5 with derivatives\n")
    assert len(re.findall(r"^encoder/__call__ .* right, by x, w$", out, re.MULTILINE)) == 1
    data = json.loads(run("verify", model, "--entry", "train", "--json")[1])
    assert data["is_right"] is True and all(row["is_right"] for row in data["files"])
    (row,) = data["derivatives"]
    assert (row["entry"], row["verdict"], row["by"]) == ("train", "right", ["images", "encoder.w"])
    assert row["error"] < row["limit"] < 1e-3 and row["reason"] is None
    assert abs(row["jvp"] - row["vjp"]) < 1e-3


def test_a_flipped_bit(run, model):
    (weights,) = Path(model).glob("weights-*")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, out, err = run("verify", model)
    assert (code, err) == (1, "")
    assert re.search(r"^weights-\S+ +\d+  CHANGED$", out, re.MULTILINE)
    assert re.search(r"^graph-\S+ +[\d,]+  right$", out, re.MULTILINE)
    assert out.endswith("model is DAMAGED\n")
    data = json.loads(run("verify", model, "--json")[1])
    assert data["is_right"] is False and data["graphs"] == data["derivatives"] == []
    assert data["error"] == f"model is damaged: {weights.name} differs from the checksum"
    assert [row["is_right"] for row in data["files"]] == [True, False]


@pytest.mark.parametrize("command", ["show", "verify"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "tracegraph.json").write_text("{"), "is not JSON"),
        (lambda path: (path / "tracegraph.json").write_text("{}"), "'format' is missing"),
        (lambda path: next(path.glob("*.tgir")).unlink(), "is missing"),
        (lambda path: next(path.glob("weights*")).write_bytes(b""), "has 0 bytes"),
    ],
)
def test_damage_is_named(run, model, command, damage, words):
    damage(Path(model))
    code, out, err = run(command, model)
    assert (code, out) == (1, "") and words in err and "model" in err


def test_every_answer_of_verify_has_the_same_fields(run, model, saved):
    path = saved({"f": tg.function(lambda x: x * 2, input_signature=specs([2], dtype=tg.int32))})
    right, none = (json.loads(run("verify", name, "--json")[1]) for name in (model, path))
    (Path(path) / "tracegraph.json").write_text("{")
    code, out, _ = run("verify", path, "--json")
    damaged = json.loads(out)
    assert code == 1 and damaged["is_right"] is False and "is not JSON" in damaged["error"]
    assert right.keys() == none.keys() == damaged.keys() and right["error"] is None
    rows = [*right["derivatives"], *none["derivatives"]]
    assert len({tuple(row) for row in rows}) == 1 and rows[-1]["jvp"] is None
    for row in rows[:-1]:
        assert all(type(row[name]) is float for name in ("jvp", "vjp", "error", "limit"))


def test_a_wrong_derivative_is_found(run, model, monkeypatch):
    right = Matmul.vjp
    monkeypatch.setattr(Matmul, "vjp", lambda self, g, *rest: right(self, g * 1.01, *rest))
    code, out, _ = run("verify", model, "--entry", "encoder/__call__")
    assert code == 1
    assert re.search(r"^encoder/__call__ .* WRONG, by x, w$", out, re.MULTILINE)
    assert out.endswith("model is WRONG\n")


sweep = pytest.mark.sweep


@tg.custom_gradient
def clipped(y):
    return y, lambda g: tg.clip_by_norm(g, 0.5)


@tg.custom_gradient
def opaque(y):
    return tg.sign(y), lambda g: tg.clip_by_norm(g, 0.5)


@tg.custom_gradient
def endless(y):
    return y, lambda g: g * g / 0.0


@pytest.mark.parametrize(
    ("function", "signature", "words"),
    [
        (lambda x: tg.math.log(x), specs([None]), "right, by x"),
        (lambda x: tg.sqrt(x - 0.1), specs([None]), "right, by x"),
        (lambda x: tg.norm(x), specs(None), "right, by x"),
        # The model of `test_all_is_right` has a product, and the small ones here have open sizes.
        pytest.param(
            lambda x: tg.reduce_sum(x @ x), specs([None, None]), "right, by x", marks=sweep
        ),
        pytest.param(
            lambda x, k: tg.nn.conv2d(x, k, 1, "VALID"),
            specs([None] * 4, [3, 3, 2, 2]),
            "right",
            marks=sweep,
        ),
        (lambda x: tg.math.real(tg.exp(x)), specs([None], dtype=tg.complex64), "right, by x"),
        (lambda x: tg.cast(x, tg.float16) * 3.0, specs([None]), "right, by x"),
        (lambda x: x * 0.0, specs([None]), "right, by x"),
        (lambda x: tg.argmax(x), specs([None]), "none: no result is a floating number"),
        (lambda x: tg.cast(x, tg.float32), specs([2], dtype=tg.int32), "none: no argument is a"),
        (
            lambda x: clipped(x),
            specs(None),
            "right, by x, but for the custom gradient of clipped, ",
        ),
        (lambda x: opaque(x), specs([2]), "none: all of it is the custom gradient of opaque"),
        (lambda x: endless(x), specs([2]), "not tested: at random arguments a custom gradient is"),
        (lambda x: tg.math.log(x - 9.0), specs([2]), "not tested: at random arguments something"),
    ],
)
def test_derivatives_of_all_kinds(run, saved, function, signature, words):
    path = saved(tg.function(function, input_signature=signature))
    code, out, err = run("verify", path)
    assert (code, err) == (0, "") and words in out


class Clipping(tg.Module):
    def __init__(self):
        super().__init__()
        self.w = tg.Variable(np.arange(12, dtype=np.float32).reshape(4, 3) / 12, name="w")
        self.optimizer = tg.optimizers.Adam(0.01)

    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def predict(self, x):
        return tg.vectorized_map(clipped, x) @ self.w

    @tg.function(input_signature=[tg.TensorSpec(["n", 4]), tg.TensorSpec(["n", 3])])
    def train_step(self, x, y):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((clipped(self.predict(x)) - y) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.w), self.w)])
        return loss


def test_what_is_around_a_custom_gradient_is_tested(run, saved, monkeypatch):
    path = saved(Clipping())
    data = json.loads(run("verify", path, "--json")[1])
    rows = {row["entry"]: row for row in data["derivatives"]}
    assert data["is_right"] and rows.keys() == {"predict", "train_step"}
    for row in rows.values():
        assert row["verdict"] == "right" and row["error"] < row["limit"]
        assert row["vjp"] != 0.0 and row["without_custom_gradients"][0] == "clipped_pfor"
    assert rows["train_step"]["by"] == ["x", "y", "w"]
    assert rows["train_step"]["without_custom_gradients"] == ["clipped_pfor", "clipped"]
    right = Matmul.vjp
    monkeypatch.setattr(Matmul, "vjp", lambda self, g, *rest: right(self, g * 1.01, *rest))
    code, out, _ = run("verify", path)
    assert code == 1 and out.count("WRONG, by x, ") == 2


def test_derivatives_that_were_left_out(run, saved):
    options = tg.saved_model.SaveOptions(experimental_custom_gradients=False)
    path = saved(tg.function(lambda x: doubled(x), input_signature=specs([2])), options=options)
    code, out, _ = run("verify", path)
    assert code == 0 and "none: the custom gradient of @doubled was left out" in out
    assert "WITHOUT custom gradients" in run("show", path)[1]


def test_a_test_leaves_variables_as_they_were(model):
    contents = open_path(Path(model))
    (entry,) = contents.find("train")
    before = [variable.numpy().copy() for variable in entry.variables.values()]
    assert check_derivatives(entry).verdict == "right"
    for variable, value in zip(entry.variables.values(), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_variable_without_finite_values_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tg.Module()
    model.scale = tg.Variable([np.nan, 1.0], name="scale")
    spec = [tg.TensorSpec([2])]
    model.f = tg.function(lambda x: x * model.scale, input_signature=spec)
    tg.saved_model.save(model, "strange")
    code, out, _ = run("verify", "strange")
    assert code == 0 and "scale held no finite numbers when it was saved" in out
    tg.saved_model.save(model, "again")
    assert run("diff", "strange", "again")[0] == 0
    model.scale.assign([2.0, 2.0])
    tg.saved_model.save(model, "again")
    assert run("diff", "strange", "again")[1] == "~ variable scale: its values differ\n"


def test_a_failed_check_is_told_with_its_line_and_values(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def positive(x):
        tg.debugging.assert_positive(x, message="no debts")
        return x

    options = tg.saved_model.SaveOptions(save_debug_info=True)
    tg.saved_model.save(positive, "checked", options=options)
    code, _, err = run("run", "checked", "--inputs", "x=[1,-3]")
    assert code == 1 and "no debts: x > 0 does not hold (traced at test_commands.py:" in err
    assert 'tg.debugging.assert_positive(x, message="no debts"))\n' in err
    assert "operand 0: [ 1. -3.]" in err
    assert "custom gradient" not in run("show", "checked")[1]


def test_a_text_is_verified(run, tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(one("f64[3]"), "utf-8")
    code, out, _ = run("verify", path)
    assert code == 0 and "right, by x" in out and "SHA-256" not in out


# The process.


def process(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-m", "tracegraph", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_as_a_module(model):
    done = process("show", model, "--entry", "serve")
    out, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (0, "") and "graph @__call__(" in out


def test_a_mistake(run, model):
    code, out, err = run("run", model, "--entry", "serve", "--inputs", "x=1")
    assert (code, out) == (2, "")
    assert err == (
        "tracegraph run: the input 'x' is f32[], and f32[d0,4] is expected\n"
        "  fix: give an array of the shape [d0,4]; d0 may be any size\n"
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arguments", [["--help"], ["show", "model", "--json"]])
def test_a_reader_who_goes_away(model, arguments):
    done = process(*arguments)
    done.stdout.close()
    assert (done.wait(timeout=120), done.stderr.read()) == (0, "")
    done.stderr.close()


def shell(line):
    """Runs a line of the shell, in which `tracegraph` is ours; its exit code and errors."""
    quoted = shlex.join([sys.executable, "-W", "error", "-m", "tracegraph"])
    line = re.sub(r"^tracegraph", quoted.replace("\\", r"\\"), line)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=environment, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


UNWRITABLE = [
    "--help",
    "verify --help",
    "--version",
    "show model",
    "show model --json",
    "show model --entry train --format html",
    "run model --entry serve --inputs x=[[1,2,3,4]]",
    "diff model model",
    "diff model model --entry narrow:0 --entry narrow:1",
    "verify model --entry serve",
]


HEAD = "tracegraph: the output cannot be written: "


@pytest.mark.sampled(6)
@pytest.mark.parametrize("arguments", UNWRITABLE)
def test_an_output_that_cannot_be_written(run, model, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdout", None)  # what Python has of `>&-`
    assert run(*arguments.split()) == (2, "", f"{HEAD}it is closed\n")


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full")


@pytest.mark.sampled(6)
@needs_full
@pytest.mark.parametrize("arguments", UNWRITABLE)
def test_a_full_disk(run, model, monkeypatch, arguments):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(*arguments.split()) == (2, "", f"{HEAD}No space left on device\n")


@needs_full
@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("--help >/dev/full", "No space left on device"),
        pytest.param("--help >&-", "it is closed", marks=sweep),  # as Python without an output
        *(
            pytest.param(f"show model --entry train --format html {end}", fact, marks=sweep)
            for end, fact in ((">/dev/full", "No space left on device"), (">&-", "it is closed"))
        ),
    ],
)
def test_a_process_ends_without_an_output(model, line, fact):
    assert shell(f"tracegraph {line}") == (2, "", f"{HEAD}{fact}\n")


def test_a_mistake_without_an_output(run, model, monkeypatch):
    wanted = run("show", "nowhere")
    monkeypatch.setattr(sys, "stdout", None)
    assert wanted[0] == 2 and run("show", "nowhere") == wanted
    code, out, err = run("show", "nowhere", "--json")
    assert (code, out) == (2, "") and len(err.splitlines()) == 3 and "it is closed" in err


@pytest.mark.sweep
def test_a_process_ends_with_a_mistake_without_an_output(run, model):
    assert shell("tracegraph show nowhere >&-") == run("show", "nowhere")


@pytest.mark.sampled(1)
@needs_full
@pytest.mark.parametrize("line", ["show nowhere 2>&-", "dance 2>/dev/full"])
def test_errors_that_cannot_be_written(line):
    assert shell(f"tracegraph {line}") == (2, "", "")


def test_an_output_without_unicode(run, model, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert run("show", model, "--entry", "train", "--format", "html") == (0, "", "")
    sys.stdout.flush()
    assert written.getvalue().startswith(b"<!doctype html>")


def test_an_interrupt(run, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "open_path", interrupted)
    assert run("show", "x") == (130, "", "tracegraph: interrupted\n")


# The guide.


def test_the_commands_of_the_guide(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/guide-to-saving.md"
    names = {"__name__": "page"}
    for _, code in blocks(page):
        if ">>>" not in code:
            exec(compile(code, str(page), "exec"), names)
    lines = re.findall(r"^tracegraph .*", page.read_text("utf-8"), re.MULTILINE)
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert {command[0] for command in commands} == set(COMMANDS)
    for command in commands:
        if command[0] != "export" or CAN_EXPORT:
            code, _, err = run(*command)
            assert (code, err) == (1 if command[0] == "diff" else 0, ""), command
    assert np.load("results/output_0.npy").shape == (3, 1)
    assert Path("step.html").read_text("utf-8").startswith("<!doctype html>")


# Exporting.


def test_export(run, model):
    arguments = ["export", model, "--entry", "serve", "--output", "serve.stablehlo"]
    code, out, err = run(*arguments)
    if not CAN_EXPORT:
        assert code in (1, 2) and out == "" and "\n  fix: " in err
        return
    assert (code, err) == (0, "") and Path("serve.stablehlo").stat().st_size > 0
    assert out.startswith("signatures/serve as stablehlo for cpu, cuda: serve.stablehlo, ")
    assert json.loads(run(*arguments, "--gradient", "--json")[1])["gradient"] is True
    assert run("export", model, "--entry", "train", "--output", "x")[0] == 1


@pytest.mark.skipif(not CAN_EXPORT, reason="flatbuffers is not installed")
def test_export_needs_no_options(run, model, saved):
    code, out, err = run("export", model, "--platforms", "cpu")  # its only signature
    assert (code, err) == (0, "") and Path("serve.stablehlo").is_file()
    assert out.startswith("signatures/serve as stablehlo for cpu: serve.stablehlo, ")
    path = saved({"deep": [tg.function(lambda x: x * 2.0, input_signature=specs([2]))]})
    code, out, _ = run("export", path, "--platforms", "cpu", "--json")
    assert code == 0 and json.loads(out)["output"] == "0.stablehlo"
    run("export", model, "--entry", "encoder/__call__", "--platforms", "cpu")
    assert Path("encoder___call__.stablehlo").is_file()
