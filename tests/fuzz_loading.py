"""A fuzzer of loading: small saved models, damaged at random, then loaded, used and saved again.

`python -m tests.fuzz_loading --seed 1 --count 1000` runs it, and `--only 1:17` one input of it;
`--known` runs those of tests/fuzz_seeds.txt, which have found a defect, or are one of each kind.

An input is made of its seed and number alone. Half of the inputs have the checksums and names of
files made right again behind the damage, so that it is seen by what lies deeper. For each of them

- nothing but LoadError is raised, soon and without much memory;
- what is loaded is saved, loaded and saved again to the same bytes, and its graphs hold together;
- its functions, called with arguments that fit, work or raise one of our errors.
"""

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import io
import json
import os
import random
import re
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

import tracegraph as tg
from tests import damage
from tracegraph import errors
from tracegraph.core.shapes import ShapeVariable, substitute_size
from tracegraph.core.types import TensorType
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function
from tracegraph.ir.op import OPS
from tracegraph.saved_model import LoadOptions, load, save
from tracegraph.signatures.signature import VariableKey
from tracegraph.text.parser import parse_module

SEEDS = Path(__file__).parent / "fuzz_seeds.txt"
#: What one input may take, in seconds and in bytes beyond what the process has before the first.
SECONDS, BYTES = 60, 6 * 2**30

OURS = (
    *(errors.ShapeError, errors.DTypeError, errors.TraceError, errors.GradientError),
    *(errors.LoweringError, errors.LoadError),
)


# Models.

Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def spec(*shape, dtype=tg.float32):
    return tg.TensorSpec(list(shape), dtype)


def declared(*specs):
    return lambda function: tg.function(function, input_signature=list(specs))


def trained():
    model = tg.Module("trained")
    model.dense = tg.layers.Dense(2, activation="tanh")
    optimizer = model.optimizer = tg.optimizers.Adam(0.1)

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((model.dense(x) - y) ** 2)
        weights = model.dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    step(tg.ones([2, 3]), tg.ones([2, 2]))
    model.step = step
    model.predict = declared(spec(None, 3))(lambda x: model.dense(x))
    return model, {"predict": model.predict}


def custom():
    model = tg.Module()
    model.w = tg.Variable([[0.5, 1.0], [2.0, -1.0]], name="w")

    @tg.custom_gradient
    def inner(x):
        return 1.0 - tg.tanh(x) ** 2, lambda g: g * (-3.0 * tg.tanh(x))

    @tg.custom_gradient
    def outer(x):
        return tg.tanh(x), lambda g: 2.0 * g * inner(x)

    once = tg.function(lambda x: outer(x) * x)
    rebuilt = tg.recompute_grad(lambda x: tg.exp(tg.sin(x)))
    model.f = declared(spec(None, 2))(lambda x: once(once(x) @ model.w) + rebuilt(x))
    return model, None


def shapes():
    many = declared(spec(None, None), spec(None, dtype=tg.int32))

    def f(x, i):
        y = tg.concat([x, tg.gather(x, tg.clip_by_value(i, 0, 0))], 0)[1:, ::-1]
        z = tg.pad(tg.transpose(y), [[0, 1], [1, 0]])
        return Pair(tg.sort(z, 0), [tg.cumsum(z, 1), tg.reshape(z, [-1])[:3], tg.argmax(z, 1)])

    def g(x):
        return tg.where(x > 0.0, x, tg.exp(x)) + tg.reduce_max(x) * tg.cast(tg.size(x), tg.float32)

    def h(x):
        return tg.einsum("bij,bjk->bik", x, x), tg.one_hot([1, 2], 3), tg.unstack(x)[0]

    any_rank = tg.function(g, input_signature=[tg.TensorSpec(None)])

    def linear(a, b):
        found = tg.linalg.solve(a, b), tg.linalg.det(a), tg.linalg.cholesky(a @ tg.transpose(a))
        return *found, tg.tensor_scatter_nd_update(b, [[0]], tg.ones([1, 1]))

    return {
        "f": many(f),
        "g": any_rank,
        "h": declared(spec(2, 2, 2))(h),
        "l": declared(spec(2, 2), spec(2, 1))(linear),
    }, None


def effects():
    model = tg.Module("effects")
    model.v = tg.Variable(1.0, name="v")
    model.open = tg.Variable([1.0, 2.0], shape=[None], name="open")
    model.any = tg.Variable([[1.0]], shape=tg.TensorShape(None), name="any")
    model.generator = tg.random.Generator.from_seed(3)

    @declared(spec())
    def f(x):
        tg.print("before", model.v, output_stream=sys.stdout)
        model.v.assign(x)
        tg.debugging.assert_less(x, 10.0, message="too large")
        model.v.assign_add(tg.reduce_sum(model.open) * tg.reduce_sum(model.any))
        return {"x": x + model.generator.normal([2])}

    @tg.function
    def add(v, w, factor=2):
        v.assign_add(w * factor)
        return v + w

    @tg.function(input_signature=[spec(None), spec(dtype=tg.int32)], check_bounds=True)
    def pick(x, i):
        return tg.gather(x, i)

    @tg.function(input_signature=[spec()], check_numerics=True)
    def root(x):
        return tg.sqrt(tg.sqrt(x) - 1.0)

    add(tg.Variable([1.0]), tg.Variable([2.0]))
    shared = tg.Variable([1.0])
    add(shared, shared, 3)
    model.f, model.add, model.pick, model.root = f, add, pick, root
    return model, None


def values(folder):
    path = Path(folder) / "words.txt"
    path.write_text("one two")
    model = tg.Module("values")
    model.plain = [1, 2.5, "x", None, True, 2**70, 1j, b"\x00", (1, [2]), {"a": 1, 2: "b"}]
    model.records = [Point(1, 2), Pair("left", [tg.float32, tg.TensorSpec([None, 3], name="s")])]
    model.table, model.scale = np.arange(300.0), tg.constant([[1, 2]], tg.int64)
    model.narrow = [tg.constant([1.5], dtype) for dtype in (tg.bfloat16, tg.complex128)]
    model.words = tg.saved_model.Asset(path)
    model.inner = tg.Module()
    model.inner.outer, model.inner.v = model, tg.Variable(1.0)
    model.same = [model.inner.v, model.inner]

    @tg.function
    def f(a, *rest, scale=2.0, named=None, **others):
        return {"p": Point(a["p"] * scale, (rest[0],)), "none": None, "z": others["z"]}

    @declared(spec(3))
    def sparse(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * tg.constant(model.table[1:4], tg.float32)
        return tape.jacobian(y, x, sparse=True)

    @tg.function
    def __call__(x, n, mode="up"):
        return x * tg.reduce_sum(tg.constant(model.table, tg.float32)) * n

    f({"p": tg.constant([1.0])}, tg.constant(2), z=tg.constant(True))
    for n, mode in ((1, "up"), (2.0, "down")):
        __call__(tg.constant(1.0), n, mode)
    model.f, model.sparse = f, sparse
    model.__call__ = __call__
    return model, None


def save_models(folder):
    """Saves the models that are damaged, each to a folder of its own."""
    for make in (trained, custom, shapes, effects, lambda: values(folder)):
        model, signatures = make()
        name = make.__name__ if make.__name__ != "<lambda>" else "values"
        save(model, Path(folder) / name, signatures=signatures)
    return [Path(folder) / name for name in ("trained", "custom", "shapes", "effects", "values")]


# Damage to bytes, which no checksum hides.


def hurt_bytes(folder, draw):
    path = draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
    data = path.read_bytes()
    new = bytes_of(data, draw)
    if new == data:
        return False
    path.write_bytes(new)
    return True


def bytes_of(data, draw):
    at, length = draw.randrange(len(data) + 1), draw.choice((1, 1, 2, 8, 60, 4000))
    kind = draw.randrange(6)
    if kind == 0 and data:
        return data[: at - 1] + bytes([data[at - 1] ^ 1 << draw.randrange(8)]) + data[at:]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + draw.randbytes(length) + data[at:]
    if kind == 3:
        return data[:at] + draw.randbytes(length) + data[at + length :]
    other = draw.randrange(len(data) + 1)
    return data[:at] + data[other : other + length] + data[at + length * (kind == 4) :]


def hurt_files(folder, draw):
    """Files that are gone, or are something else."""
    path = draw.choice([path for path in sorted(folder.rglob("*")) if path.name != "extra"])
    kind = draw.randrange(4)
    if kind == 0:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif kind == 1:
        path.rename(path.with_name("aside"))
        path.symlink_to("aside")
    elif path.is_dir():
        return False
    elif kind == 2:
        path.unlink()
        path.mkdir()
    else:
        path.unlink()
        os.mkfifo(path)
    return True


# Damage to the trees of JSON.

NASTY = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 1.5, 1e400),
    *("", "x", "v", "none", "\ud800", "../x", "/etc/passwd", "a/b", "\x00", "__class__", "e\u0301"),
    *("\u202ex", "x\u200d", "\ufb01", "__dict__", "_name", "variables", "_tg_signatures", "class"),
    *("_hidden", "_ordered_attributes", "__call__", "content_", "content", "name", "__init__"),
    *("f32[]", "f32[n]", "f32[*s]", "f32[2,2]", "token", "bool[]", "f32[n*n]", "i32", "c128"),
    *("f32[max(n,m)]", "f32[4611686018427387904]", "c0", "args", "positional_only", "x" * 20_000),
    *([], {}, [0], [0, 1], ["x"], [[]], [["x", 1]], {"x": 1}, {"": []}, [0] * 1000),
    *({"list": []}, {"tuple": []}, {"dict": []}, {"dict": [["a", 1], ["a", 2]]}, {"int": "7"}),
    *({"float": "nan"}, {"float": "inf"}, {"float": "1.50"}, {"int": "9" * 5000}, {"bytes": "0"}),
    *({"complex": [{"float": "nan"}, 1]}, {"dtype": "f32"}, {"type": "f32[n]"}, {"shape": None}),
    {"spec": {"shape": [None, "n"], "dtype": "f32", "name": None}},
    {"spec": {"shape": None, "dtype": "bool", "name": "x"}},
    {"namedtuple": {"name": "P", "fields": [["x", 1], ["y", 2]]}},
    {"namedtuple": {"name": "P", "fields": [["ﬁ", 1], ["fi", 2]]}},
    {"dataclass": {"name": "D", "fields": [["__dataclass_fields__", 1]]}},
    {"dataclass": {"name": "D", "fields": [["self", None], ["x", {"list": [1]}]]}},
    {"tuple": [{"tuple": []}, {"dict": []}]},
    {"dict": [[{"tuple": [1]}, 2], [{"list": [1]}, 3]]},
    {"dict": [[1, 2], ["1", 3]]},
    *({"object": 0}, {"function": 0}, {"variable": 0}, {"reference": 0}, {"object": 5}),
    *({"argument": 0}, {"variable": 1}, {"result": 0}, {"result": 1}, {"asset": "x"}),
    {"argument": {"type": "f32[]", "spec": None}},
    {"stand_in": {"type": "f32[]", "trainable": True, "alias": 0}},
    *({"value": 1}, {"value": {"float": "1.5"}}, {"value": None}, {"opaque": "function"}),
]


def places(tree):
    """All (container, key) of a tree of JSON."""
    found, stack = [], [tree]
    while stack:
        item = stack.pop()
        keys = item if isinstance(item, dict) else range(len(item))
        for key in keys:
            found.append((item, key))
            if isinstance(item[key], (dict, list)) and item[key]:
                stack.append(item[key])
    return found


def hurt_tree(tree, draw):
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        found = places(tree)
        if not found:
            return
        item, key = draw.choice(found)
        kind = draw.randrange(9)
        if kind == 0:
            del item[key]
        elif kind == 1 and isinstance(item, list):
            item.insert(key, copied(item[key]))
        elif kind == 1 and isinstance(item, dict):
            item[draw.choice([k for k in NASTY if isinstance(k, str)])] = copied(item[key])
        elif kind == 2:
            other, place = draw.choice(found)
            item[key] = copied(other[place])
        elif kind == 3:
            other, place = draw.choice(found)
            item[key], other[place] = copied(other[place]), copied(item[key])
        elif kind == 4 and type(item[key]) is int:
            item[key] += draw.choice((-1, 1, 2))
        elif kind == 5 and isinstance(item[key], str):
            item[key] = text_of(item[key], draw)
        elif kind == 6:
            for _ in range(draw.choice((1, 3, 60, 150))):
                item[key] = draw.choice(([item[key]], {"list": [item[key]]}))
        else:
            item[key] = copied(draw.choice(NASTY))


def copied(value):
    return json.loads(json.dumps(value)) if isinstance(value, (dict, list)) else value


def hurt_manifest(folder, draw):
    content = damage.manifest(folder)
    with contextlib.suppress(RecursionError):
        hurt_tree(content, draw)
    damage.set_manifest(folder, content)
    return True


def hurt_manifest_text(folder, draw):
    data = damage.head((folder / damage.MANIFEST).read_bytes())
    data = bytes_of(data, draw) if draw.random() < 0.5 else text_of(data.decode(), draw).encode()
    (folder / damage.MANIFEST).write_bytes(damage.resealed(data))
    return True


# Damage to the text of graphs.

BITS = [
    *'%@<>()[]{}=,:"\\*+-.0123456789aefnx_ \n\té\u2028\x00',
    *(", ", " = ", " : ", " at ", "->", "%0", "%x", "f32[2]", "none", "inf", "true", "0x7fc00001"),
    *("graph @g(", "return", "}", "99999999999999999999", "floordiv(d0,2)", "max(d0,", "*s", "d0"),
    *("f64 ", "opaque", 'bytes"', 'array"', "token", "1e999", "axes=[9]", "-1", "i64[1]{1}", "c64"),
]
NUMBERS = ["0", "1", "2", "-1", "3", "64", "65537", "2147483648", "9223372036854775808", "1.5"]
SHAPES = ["", "1", "2", "3", "2,2", "0", "2,3", "d0", "d0,2", "d0+1", "2*d0", "*s0", "1,1,1"]
TYPES = ["f32", "f64", "i32", "bool", "c64", "bf16", "u8", "i64"]


def text_of(text, draw):
    at, length = draw.randrange(len(text) + 1), draw.choice((1, 1, 2, 5, 40))
    kind = draw.randrange(4)
    if kind == 0:
        return text[:at] + text[at + length :]
    if kind == 3:
        other = draw.randrange(len(text) + 1)
        return text[:at] + text[other : other + length] + text[at + length :]
    return text[:at] + draw.choice(BITS) + text[at + length * (kind == 2) :]


def swapped(pattern, options):
    """A change of one place of a text where `pattern` matches."""

    def change(text, draw):
        found = list(re.finditer(pattern, text))
        if not found:
            return text
        match = draw.choice(found)
        others = [m[1] for m in found] if options is None else options
        return text[: match.start(1)] + draw.choice(others) + text[match.end(1) :]

    return change


def lines_of(text, draw):
    lines = text.split("\n")
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    if draw.random() < 0.5:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines.insert(i, lines.pop(j) if draw.random() < 0.5 else lines[j])
    return "\n".join(lines)


CHANGES = [
    text_of,
    lines_of,
    swapped(r"= ([a-z_0-9]+)[<(]", sorted(OPS)),
    swapped(r"= ([a-z_0-9]+)[<(]", sorted(OPS)),
    swapped(r"= ([a-z_0-9]+(?:<[^>]*>)?)\(", None),
    swapped(r"(%[\w.]+)", None),
    swapped(r"(%[\w.]+)", None),
    swapped(r"[^\w](-?\d+)\b", NUMBERS),
    swapped(r"[^\w](-?\d+)\b", NUMBERS),
    swapped(r"\b[a-z]+\d+\[([^\]]*)\]", SHAPES),
    swapped(r"\[([^\]]*)\]", None),
    swapped(r"\b([a-z]+\d+)[\[ >]", TYPES),
    swapped(r"[<,] ?(\w+=[^,>]*)[,>]", None),
    swapped(r"(@\w+)", None),
    swapped(r" : (.+) at ", None),
]


def hurt_graphs(folder, draw):
    text = damage.find(folder, "graph").read_text()
    for _ in range(draw.choice((1, 1, 2, 4))):
        text = draw.choice(CHANGES)(text, draw)
    if draw.random() < 0.7:
        text = with_right_types(text)
    damage.set_text(folder, lambda _: text)
    return True


def with_right_types(text):
    """The text with the types that its ops make in place of those that it claims."""
    for _ in range(12):
        try:
            parse_module(text)
        except errors.LoadError as error:
            fact = errors.fact_of(error)
            match = re.match(r"line (\d+): \w+ makes \((.*)\), and the text claims", fact)
            if match is None:
                return text
            lines = text.split("\n")
            number = int(match[1]) - 1
            claim = re.compile(r" : [^\"]*?( at .*)?$")
            lines[number] = claim.sub(
                lambda m, types=match[2]: f" : {types or '()'}{m[1] or ''}", lines[number]
            )
            text = "\n".join(lines)
        else:
            return text
    return text


# Damage to tensors.


def hurt_tensors(folder, draw):
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        return False
    path = draw.choice(paths)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head, rest = data[8 : 8 + length], data[8 + length :]
    if draw.random() < 0.3:
        damage.set_file(folder, path, bytes_of(data, draw))
        return True
    tree = json.loads(head)
    hurt_tree(tree, draw) if tree else tree.update(x=draw.choice(NASTY))
    head = json.dumps(tree).encode()
    size = draw.choice((len(head),) * 8 + (0, 2**63, 10**8))
    damage.set_file(folder, path, struct.pack("<Q", size) + head + rest)
    return True


HURTS = [
    *((hurt_bytes, False), (hurt_bytes, False), (hurt_files, False)),
    *((hurt_manifest, True),) * 7,
    *((hurt_manifest_text, True),),
    *((hurt_graphs, True),) * 8,
    *((hurt_tensors, True),) * 2,
]


# What is asked of each input.


def contents(folder):
    """The files of a directory, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check(folder, is_resealed, draw):
    """What became of an input. Raises an error, of any class, for a defect."""
    options = LoadOptions(verify=not is_resealed or draw.random() < 0.5)
    try:
        loaded = load(folder, options=options)
        for variable in loaded.variables:
            variable.numpy()
    except errors.LoadError as error:
        assert str(folder) in str(error), f"the error names no file: {error}"
        return "refused"
    assert is_resealed, "damage was not seen"
    try:
        check_saving(loaded, folder)
    except errors.LoadError as error:
        assert "the tensor" in str(error)  # constants are read at their first use
        return "refused later"
    functions = list(functions_of(loaded))
    for function in functions:
        for trace in traces_of(function):
            trace.graph.verify()
    for function in functions:
        for trace in traces_of(function):
            check_call(function, trace, draw)
    return "accepted"


def check_saving(loaded, folder):
    again, twice = folder.with_name("again"), folder.with_name("twice")
    for path in (again, twice):
        shutil.rmtree(path, ignore_errors=True)
    save(loaded, again)
    save(load(again), twice)
    first, second = contents(again), contents(twice)
    assert first.keys() == second.keys(), "saving again makes other files"
    assert first == second, "saving again makes other bytes"


def functions_of(root):
    """The functions that can be reached from a loaded module."""
    seen, stack = set(), [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (Function, ConcreteFunction)):
            yield item
        elif isinstance(item, tg.Module):
            stack.extend(vars(item).values())
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)) and not isinstance(item, tg.TensorShape):
            stack.extend(item)


def traces_of(function):
    return [function] if isinstance(function, ConcreteFunction) else list(function.traces)


def small(trace, sizes):
    """Whether running a trace takes little, where open sizes are these."""
    total = 0
    for graph in trace.graph.graphs():
        for node in graph.nodes:
            for y in node.outputs:
                shape = y.type.shape
                if isinstance(shape, ShapeVariable):
                    continue
                known = [substitute_size(n, sizes) for n in shape]
                total += np.prod([float(n) if isinstance(n, int) else 1e9 for n in known]) + 1
    return total < 50_000


class Sizes(dict):
    """Every open size is the same small number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def get(self, name, default=None):
        return self.number


def argument(type, sizes):
    shape = (2, 2) if isinstance(type.shape, ShapeVariable) else type.shape
    known = [substitute_size(n, sizes) for n in shape]
    return np.ones(known, type.dtype.numpy_dtype)


def check_call(function, trace, draw):
    sizes = Sizes(draw.choice((1, 2, 2, 3)))
    if not small(trace, sizes):
        return
    request = trace.request
    leaves, shared = [], {}
    for key, leaf in zip(request.keys, request.leaves, strict=True):
        if isinstance(key, TensorType):
            if not all(isinstance(substitute_size(n, sizes), int) for n in shape_of(key)):
                return
            leaf = tg.constant(argument(key, sizes))
        elif isinstance(key, VariableKey):
            if key.alias not in shared:
                shared[key.alias] = tg.Variable(argument(key.type, sizes), trainable=key.trainable)
            leaf = shared[key.alias]
        leaves.append(leaf)
    args, kwargs = request.structure.pack(leaves)
    with contextlib.suppress(*OURS):
        tensors = [x for x in leaves if isinstance(x, tg.Tensor) and x.dtype.is_differentiable]
        if tensors and draw.random() < 0.3:
            with tg.GradientTape() as tape:
                tape.watch(tensors)
                result = function(*args, **kwargs)
            results = [y for y in tg.nest.flatten(result) if isinstance(y, tg.Tensor)]
            results = [y for y in results if y.dtype.is_differentiable]
            found = tape.gradient(results, tensors, unconnected_gradients="zero") if results else []
        else:
            found = tg.nest.flatten(function(*args, **kwargs))
        for y in found:
            if isinstance(y, tg.Tensor):
                y.numpy()


def shape_of(type):
    return () if isinstance(type.shape, ShapeVariable) else type.shape


# Running.


def run_one(models, work, seed, number):
    """What becomes of one input."""
    draw = random.Random(f"{seed}:{number}")
    folder = work / "input"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(draw.choice(models), folder)
    hurt, is_resealed = draw.choice(HURTS)
    if not hurt(folder, draw):
        return "unchanged"
    outcome = check(folder, is_resealed, draw)
    return f"{hurt.__name__} {outcome}"


def run(inputs, limit_memory=True):
    """Runs inputs, each a seed and a number. Raises for the first defect; returns how often each
    outcome was."""
    warnings.simplefilter("ignore")
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        models = save_models(folder)
        work = Path(folder) / "work"
        work.mkdir()
        for model in models:
            check(Path(shutil.copytree(model, work / "whole")), True, random.Random(0))
            shutil.rmtree(work / "whole")
        if limit_memory:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, resource.RLIM_INFINITY))
        for seed, number in inputs:
            faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
            print(f"input {seed}:{number}", file=sys.__stderr__, flush=True)
            with contextlib.redirect_stdout(io.StringIO()):
                outcome = run_one(models, work, seed, number)
            assert outcome != "unchanged" or (seed, number) not in known()
            found[outcome] += 1
        faulthandler.cancel_dump_traceback_later()
    return found


def survey(inputs):
    """Runs inputs and lists their defects, each kind once."""
    kinds = collections.Counter()

    def checked(models, work, seed, number, inner=run_one):
        try:
            return inner(models, work, seed, number)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            kind = f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
            kinds[kind] += 1
            if kinds[kind] == 1:
                rows = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-9:]]
                print(
                    f"--- {seed}:{number}: {error!r}"[:700], *rows, sep="\n  ", file=sys.__stdout__
                )
                sys.__stdout__.flush()
            return "defect"

    globals()["run_one"] = checked
    print(run(inputs), *kinds.most_common(), sep="\n")


def as_input(text):
    """The seed and the number of "1:17"."""
    seed, _, number = text.partition(":")
    return int(seed), int(number)


def known():
    """The inputs of the file of seeds, whose lines hold one each, and what is wrong with it."""
    lines = SEEDS.read_text().splitlines()
    return [as_input(line.split()[0]) for line in lines if line and not line.startswith("#")]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=None, help="1000, or 0 with --known")
    parser.add_argument("--only", default=None, help="one input, as seed:number")
    parser.add_argument("--known", action="store_true", help="the inputs of tests/fuzz_seeds.txt")
    parser.add_argument("--go-on", action="store_true", help="list defects and go on")
    options = parser.parse_args()
    start = time.time()
    if options.only is not None:
        print(run([as_input(options.only)], limit_memory=False))
        return
    count = (0 if options.known else 1000) if options.count is None else options.count
    numbers = range(options.first, options.first + count)
    inputs = [*(known() if options.known else ()), *((options.seed, number) for number in numbers)]
    if options.go_on:
        survey(inputs)
    else:
        found = run(inputs)
        print(json.dumps(dict(sorted(found.items()))), f"in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
