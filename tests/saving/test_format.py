"""The page on the format: a reader that was written from it alone agrees with tracegraph.

`python -m tests.saving.test_format` writes the table of ops into the page.
"""

import hashlib
import inspect
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near, numbers
from tracegraph.ir.op import OPS
from tracegraph.text.verifier import operand_count

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


# The reader: of what follows up to the tests, nothing knows tracegraph.

DTYPES = {
    "bool": "?",
    **{f"{kind}{8 * n}": f"<{kind}{n}" for kind in "iu" for n in (1, 2, 4, 8)},
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "c64": "<c8",
    "c128": "<c16",
}
TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|0x[0-9a-f]+|-?(?:inf|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)(?![\w.])'
    r"|[^\W\d][\w.]*|[][(){},<>=@%*+-])"
)


def read_directory(folder):
    """The manifest of a saved model, its graphs by name, and its tables of arrays."""
    data = (folder / "tracegraph.json").read_bytes()
    manifest = json.loads(data)
    assert (manifest["format"], manifest["version"]) == ("tracegraph.saved_model", 1)
    above = data[: data.rindex(b' "checksum": ')]
    assert hashlib.sha256(above).hexdigest() == manifest["checksum"]
    for name, row in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (row["bytes"], row["sha256"])
    tables = {name: read_table(folder, manifest[name]) for name in ("weights", "constants")}
    text = (folder / manifest["graphs"]).read_text()
    return manifest, read_graphs(text, tables["constants"]), tables


def read_table(folder, table):
    return {name: read_tensor(folder / row["file"], name, row) for name, row in table.items()}


def read_tensor(path, name, row):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    start, stop = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    raw = data[8 + length + start : 8 + length + stop]
    assert hashlib.sha256(raw).hexdigest() == row["sha256"]
    return np.frombuffer(raw, DTYPES[row["dtype"]]).reshape(row["shape"])


class Text:
    """Reads the text of graphs word by word."""

    def __init__(self, text, arrays):
        self.words = TOKEN.findall(text)
        assert not TOKEN.sub("", text).strip()
        self.at = 0
        self.arrays = arrays

    def next(self):
        self.at += 1
        return self.words[self.at - 1]

    def skip(self, word):
        found = self.at < len(self.words) and self.words[self.at] == word
        self.at += found
        return found

    def list(self, read, end):
        """What `read` reads, divided by commas, up to a word."""
        found = []
        while not self.skip(end):
            found.append(read())
            self.skip(",")
        return found

    def size(self):
        """A size as words, up to a comma or bracket outside of parentheses."""
        words, depth = [], 0
        while self.at < len(self.words) and (depth or self.words[self.at] not in ",]"):
            words.append(self.next())
            depth += (words[-1] == "(") - (words[-1] == ")")
        return "".join(words)

    def value(self):
        word = self.words[self.at]
        if word in ("none", "true", "false"):
            return {"none": None, "true": True, "false": False}[self.next()]
        if self.skip("["):
            return self.list(self.value, "]")
        if self.skip("@"):
            return self.next()
        if word[0] == '"':
            return json.loads(self.next())
        if word == "array":
            self.next()
            return self.arrays[json.loads(self.next())]
        if word in DTYPES:
            return self.typed(self.next())
        return self.size()

    def typed(self, dtype):
        shape = self.list(self.size, "]") if self.skip("[") else None
        if shape is not None and not self.skip("{"):
            return dtype, shape
        if shape is None and (self.at == len(self.words) or self.words[self.at] in ",]"):
            return dtype
        elements = [self.next()] if shape is None else self.list(self.next, "}")
        array = np.array([element_of(dtype, word) for word in elements], DTYPES[dtype])
        return array.reshape([int(n) for n in shape or []])


def element_of(dtype, word):
    if word.startswith("0x"):
        size = np.dtype(DTYPES[dtype]).itemsize
        return np.array(int(word, 16), f"<u{size}").view(DTYPES[dtype])
    return {"true": True, "false": False}.get(word) if dtype == "bool" else float(word)


def read_graphs(text, arrays):
    """By name: the inputs with their types, the nodes, and the names of the outputs."""
    graphs = {}
    for part in text.strip().split("\n\n"):
        head, body = re.match(r"(.*?\) -> \(.*?\) \{)\n(.*)", part, re.DOTALL).groups()
        *lines, last, _ = body.split("\n")
        name, inputs = re.match(r"graph @([\w.]+)\((.*)\) -> \(", head, re.DOTALL).groups()
        inputs = [tuple(x.split(": ")) for x in re.split(r",\s+(?=%)", inputs.strip()) if x]
        outputs = last.removeprefix("  return").strip()
        graphs[name] = inputs, [read_node(x, arrays) for x in lines], names_in(outputs)
    return graphs


def read_node(line, arrays):
    values, rest = line.strip().split(" = ", 1)
    op, rest = re.match(r"(\w+)(.*)", rest).groups()
    attributes = {}
    if rest[0] == "<":
        inside = re.match(r'<((?:[^"<>]|"(?:[^"\\]|\\.)*")*)>', rest)
        text = Text(inside[1], arrays)
        while text.at < len(text.words):
            name = text.next()
            assert text.skip("=")
            attributes[name] = text.value()
            text.skip(",")
        rest = rest[inside.end() :]
    return names_in(values), op, attributes, names_in(rest[1 : rest.index(")")])


def names_in(text):
    return [] if text in ("", "()") else text.split(", ")


def size_of(size, sizes):
    """The number that a size is, where open sizes have these."""
    names = {"floordiv": lambda a, b: a // b, "max": max, "min": min, **sizes}
    text = re.sub(r"[^\W\d][\w.]*", lambda m: f"n[{m[0]!r}]", size)
    return eval(text, {"__builtins__": {}}, {"n": names})


def evaluate(graphs, name, arrays):
    """The outputs of a graph for its inputs."""
    inputs, nodes, outputs = graphs[name]
    sizes = {}
    for (_, type), array in zip(inputs, arrays, strict=True):
        shape = re.fullmatch(r"\w+\[(.*)\]", type)
        for size, number in zip(shape[1].split(",") if shape[1] else (), np.shape(array)):
            sizes.setdefault(size, number)
    env = {name: array for (name, _), array in zip(inputs, arrays)}

    def numbers(attribute):
        return [size_of(size, sizes) for size in attribute]

    for results, op, a, operands in nodes:
        found = apply(graphs, op, a, [env[x] for x in operands], numbers)
        env.update(zip(results, found if isinstance(found, tuple) else (found,), strict=True))
    return [env[y] for y in outputs]


PLAIN = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    **{name: getattr(np, name) for name in ("sin", "cos", "exp", "tanh", "matmul", "sqrt", "log")},
    "maximum": np.maximum,
    "greater": np.greater,
    "less": np.less,
    "select": np.where,
    "read": lambda value, handle: value,
    "identity": lambda x: x,
}


def apply(graphs, op, a, x, numbers):
    if op in PLAIN:
        return PLAIN[op](*x)
    if op in ("call", "custom_call", "recomputed_call"):
        return tuple(evaluate(graphs, a["body"], x))
    if op == "constant":
        return a["value"]
    if op == "cast":
        return x[0].astype(DTYPES[a["dtype"]])
    if op == "integer_pow":
        return x[0] ** int(a["exponent"])
    if op == "reshape":
        return np.reshape(x[0], numbers(a["shape"]))
    if op == "transpose":
        return np.transpose(x[0], numbers(a["perm"]))
    if op == "sum":
        axes = None if a["axes"] is None else tuple(numbers(a["axes"]))
        return np.sum(x[0], axis=axes)
    if op == "broadcast_to":
        shape, places = numbers(a["shape"]), numbers(a["axes"])
        own = [n if i in places else 1 for i, n in enumerate(shape)]
        return np.broadcast_to(np.reshape(x[0], own), shape)
    raise ValueError(f"this reader does not know the op {op}")


def run(folder, function, *tensors):
    """The results of the first trace of a function, by its name, and the Variables afterwards."""
    manifest, graphs, tables = read_directory(folder)
    row = next(row for row in manifest["functions"] if row["name"] == function)
    trace = row["traces"][0]
    used = [manifest["variables"][place["variable"]] for place in trace["variables"]]
    state = [tables["weights"][variable["weight"]] for variable in used]
    captures = [tables["constants"][name] for name in trace["captures"]]
    outputs = evaluate(graphs, trace["graph"], [*tensors, *state, *captures])
    count = len(outputs) - len(trace["assigned"])
    new = {used[place]["name"]: y for place, y in zip(trace["assigned"], outputs[count:])}
    return outputs[:count], new


# What it reads.


@tg.custom_gradient
def squashed(x):
    return tg.tanh(x) * x, lambda g: g * tg.cos(x)


class Model(tg.Module):
    def __init__(self):
        super().__init__()
        self.w = tg.Variable(numbers(3, 4), name="w")
        self.b = tg.Variable(numbers(4, seed=1), name="b")
        self.steps = tg.Variable(np.int64(0), name="steps")
        self.table = tg.constant(numbers(40, 4, seed=2))

    @tg.function(input_signature=[tg.TensorSpec([None, 3], tg.float64)])
    def predict(self, x):
        y = squashed(x @ self.w + self.b) / 2.0 - tg.exp(-tg.sin(x @ self.w))
        y = tg.recompute_grad(tg.exp)(tg.transpose(y)) @ (x @ self.w)
        large = tg.constant(numbers(20, 16, seed=3))
        total = tg.reduce_sum(y, 0) + tg.reduce_sum(self.table) + tg.reduce_sum(large)
        return {"y": y, "rest": (tg.reshape(total, [2, 2]) ** 3, tg.where(total > 0.0, total, 1.0))}

    @tg.function(input_signature=[tg.TensorSpec([None, 3], tg.float64)])
    def step(self, x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(squashed(x @ self.w + self.b) ** 2)
        for variable, g in zip((self.w, self.b), tape.gradient(loss, (self.w, self.b))):
            variable.assign_sub(0.1 * g)
        self.steps.assign_add(1)
        return loss


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("format") / "m"
    model = Model()
    tg.saved_model.save(model, path)
    return model, path


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_reader_that_knows_the_page_alone(saved, rows):
    model, path = saved
    x = numbers(rows, 3, seed=4)
    (rest, rest2, y), _ = run(path, "predict", x)
    expected = model.predict(x)
    assert_near(y, expected["y"], 1e-12)
    assert_near(rest, expected["rest"][0], 1e-10)
    assert_near(rest2, expected["rest"][1], 1e-12)


def test_a_step_of_training_by_the_reader(saved):
    _, path = saved
    x = numbers(4, 3, seed=5)
    (loss,), state = run(path, "step", x)
    loaded = tg.saved_model.load(path)
    assert_near(loss, loaded.step(x), 1e-12)
    assert state.keys() == {"w", "b", "steps"}
    for name, value in state.items():
        assert_near(value, getattr(loaded, name).numpy(), 1e-12)


def test_custom_gradients_are_graphs(saved):
    """The derivative that the user gave, by the backward graph in the text."""
    _, graphs, _ = read_directory(saved[1])
    calls = [node for _, nodes, _ in graphs.values() for node in nodes if node[1] == "custom_call"]
    backward, sources = calls[0][2]["backward"], calls[0][2]["sources"]
    x, g = numbers(2, 4), numbers(2, 4, seed=1)
    assert sources == ["0"]
    assert_near(evaluate(graphs, backward, [x, g])[0], g * np.cos(x), 1e-12)


def test_the_reader_reads_every_float():
    text = Text('f32[4]{1.5, -inf, nan, 0x7fc00001}, f64 5e-324, "a \\" b", [1,[n+1,2]], none', {})
    array = text.value()
    assert text.skip(",")
    assert array.view(np.uint32).tolist() == [0x3FC00000, 0xFF800000, 0x7FC00000, 0x7FC00001]
    assert text.value() == 5e-324 and text.skip(",")
    assert text.value() == 'a " b' and text.skip(",")
    assert text.value() == ["1", ["n+1", "2"]] and text.skip(",")
    assert text.value() is None and text.at == len(text.words)


# The table of ops.


def op_table():
    rows = []
    for name, cls in sorted(OPS.items()):
        least, most = operand_count(cls)
        count = str(least) if least == most else f"{least} or more" if least else "any number"
        attributes = "<br>".join(
            f"`{field.name}: {field.annotation}`".replace("|", "\\|")
            + ("" if field.default is field.empty else f" = {str(field.default).lower()}")
            for field in cls.fields.parameters.values()
        )
        text = " ".join(inspect.cleandoc(cls.__doc__ or "").split()).replace("|", "\\|")
        meaning = text.replace("*", "\\*").replace("_", "\\_").replace("<", "\\<")
        rows.append(f"| `{name}` | {count} | {attributes} | {meaning} |")
    return "\n".join(
        ["| op | operands | attributes | meaning |", "| --- | --- | --- | --- |", *rows]
    )


TABLE = re.compile(r"^\| op \|.*?(?=\n\n)", re.M | re.S)


def test_the_page_has_every_op():
    assert TABLE.search(PAGE.read_text())[0] == op_table(), (
        "run: python -m tests.saving.test_format"
    )


if __name__ == "__main__":
    table = op_table()
    PAGE.write_text(TABLE.sub(lambda _: table, PAGE.read_text()))
