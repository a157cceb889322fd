"""Makes the golden files: saved models that every later version must load, with what they give.

`python -m tests.golden.make NAME ...` adds those of new models to the folder of the present version
of the format. Files that are there stay as they are: they stand for what users have on their disks.
Lines of this file are in them, so add new models at the end.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np

import tracegraph as tg

FOLDER = Path(__file__).parent / "v1"


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def spec(*shape, dtype=tg.float32, name=None):
    return tg.TensorSpec(list(shape), dtype, name)


def slope(f, x, order=1):
    """The derivative of the sum of f, taken `order` times, each time of the sum of it."""
    if order == 0:
        return f(x)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(slope(f, x, order - 1))
    return tape.gradient(y, x)


# Layers and a step of training.


class Network(tg.Module):
    def __init__(self):
        super().__init__("network")
        self.hidden = tg.layers.Dense(4, activation="tanh")
        self.norm = tg.layers.BatchNormalization()
        self.out = tg.layers.Dense(2)
        self.optimizer = tg.optimizers.Adam(0.1)
        self.history = {"losses": [2.5, 1.25], "names": ("a", None)}

    @tg.function(input_signature=[spec(None, 3, name="features")])
    def __call__(self, x):
        return self.out(self.norm(self.hidden(x)))

    @tg.function(input_signature=[spec(None, 3), spec(None, 2)])
    def step(self, x, y):
        with tg.GradientTape() as tape:
            found = self.out(self.norm(self.hidden(x), training=True))
            loss = tg.reduce_mean((found - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def layers():
    model = Network()
    model.step.get_concrete_function()
    for seed, variable in enumerate(model.trainable_variables):
        variable.assign(numbers(*variable.shape, seed=seed))
    return model, {"signatures": {"predict": model.__call__}}


def layers_gives(model):
    x, y = tg.constant(numbers(5, 3)), tg.constant(numbers(5, 2, seed=1))
    found = {"one": model(x[:1]), "five": model(x)}
    found["served"] = model.signatures["predict"](features=x)["output_0"]
    found["slope"] = slope(model, x)
    for turn in range(3):
        found[f"loss {turn}"] = model.step(x, y)["loss"]
    for number, variable in enumerate(model.variables):
        found[f"variable {number}, {variable.name}"] = variable.value()
    return found


# Custom gradients, one inside the other.


def custom_gradients():
    model = tg.Module()
    model.w = tg.Variable(numbers(3, 3), name="w")

    @tg.custom_gradient
    def inner(x):
        return 1.0 - tg.tanh(x) ** 2, lambda g: g * (-3.0 * tg.tanh(x))

    @tg.custom_gradient
    def outer(x):
        return tg.tanh(x), lambda g: 2.0 * g * inner(x)

    once = tg.function(lambda x: outer(x @ model.w) * x)
    rebuilt = tg.recompute_grad(lambda x: tg.exp(tg.sin(x)))
    model.f = tg.function(
        lambda x: once(once(x)) + rebuilt(x),
        input_signature=[spec(None, 3)],
    )
    return model, {}


def custom_gradients_gives(model):
    x = tg.constant(numbers(2, 3, seed=2))
    found = {f"order {order}": slope(model.f, x, order) for order in range(4)}
    with tg.autodiff.ForwardAccumulator(x, tg.ones([2, 3])) as accumulator:
        y = model.f(x)
    with tg.GradientTape() as tape:
        z = model.f(x)
    return found | {"jvp": accumulator.jvp(y), "w": tape.gradient(z, model.w)}


# Open ranks and sizes.


def shapes():
    any_rank = [tg.TensorSpec(None)]

    @tg.function(input_signature=any_rank)
    def scaled(x):
        return tg.where(x > 0.0, x, tg.exp(x)) / tg.cast(tg.size(x), tg.float32)

    @tg.function(input_signature=[spec("n", None), spec("n"), spec(None, dtype=tg.int32)])
    def mixed(x, y, indices):
        z = tg.concat([x * y[:, None], tg.gather(x, indices)], 0)
        padded = tg.pad(tg.transpose(z), [[1, 0], [0, 2]])[:, ::2]
        return padded, [tg.reshape(z, [-1]), tg.cumsum(z, 1), tg.argmax(z, 0)], tg.shape(z)

    @tg.function
    def powers(x, n, mode="up"):
        return x**n if mode == "up" else x**-n

    for n, mode in ((2, "up"), (3, "down")):
        powers(spec_like(n), n, mode)
    return {"scaled": scaled, "mixed": mixed, "powers": powers}, {}


def spec_like(n):
    return tg.ones([n])


def shapes_gives(model):
    found = {}
    for shape in ((), (4,), (2, 3), (1, 2, 1, 2)):
        x = tg.constant(numbers(*shape))
        found[f"scaled {shape}"] = model["scaled"](x)
        found[f"slope {shape}"] = slope(model["scaled"], x)
    for rows, columns in ((1, 2), (3, 4)):
        x, y = numbers(rows, columns), numbers(rows, seed=1)
        results = tg.nest.flatten(model["mixed"](x, y, np.zeros(2, np.int32)))
        found.update({f"mixed {rows}, {i}": result for i, result in enumerate(results)})
    found["squares"] = model["powers"](tg.constant([3.0, 4.0]), 2)
    return found | {"inverse cubes": model["powers"](tg.constant([1.0, 2.0, 4.0]), 3, mode="down")}


# State, random numbers, prints and checks.


def effects():
    model = tg.Module("effects")
    model.total = tg.Variable(1.0, name="total")
    model.rows = tg.Variable(numbers(2, 3), shape=[None, 3], trainable=False, name="rows")
    model.generator = tg.random.Generator.from_seed(7)

    @tg.function(input_signature=[spec()])
    def add(x):
        tg.print("before", model.total, output_stream=sys.stdout)
        tg.debugging.assert_less(x, 10.0, message="too large")
        model.total.assign_add(x)
        tg.print("after", model.total, [x, "text"], output_stream=sys.stdout)
        return {"total": model.total, "sum": tg.reduce_sum(model.rows)}

    @tg.function(input_signature=[])
    def draw():
        normal, whole = model.generator.normal([2]), model.generator.uniform([3], 0, 9, tg.int32)
        return normal, whole

    @tg.function
    def move(a, b):
        a.assign_add(b)
        b.assign(-b)
        return a * b

    @tg.function(input_signature=[spec(None), spec(dtype=tg.int32)], check_bounds=True)
    def pick(x, i):
        return tg.gather(x, i)

    @tg.function(input_signature=[spec()], check_numerics=True)
    def root(x):
        return tg.sqrt(tg.sqrt(x) - 1.0)

    move(tg.Variable([1.0]), tg.Variable([2.0]))
    shared = tg.Variable([1.0])
    move(shared, shared)
    model.add, model.draw, model.move, model.pick, model.root = add, draw, move, pick, root
    return model, {}


def effects_gives(model):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found = {f"add {x}": model.add(x)["total"] for x in (2.0, 3.0)}
        found["picked"] = model.pick([1.0, 2.0], 1)
        for name, *given in (("add", 11.0), ("pick", [1.0], 5), ("root", -1.0), ("root", 0.0)):
            try:
                getattr(model, name)(*given)
            except tg.errors.LoweringError as error:
                found[f"{name} {given} failed"] = without_place(error)
        model.rows.assign(np.ones((4, 3), np.float32))
        found["sum"] = model.add(0.0)["sum"]
    found["printed"] = printed.getvalue()
    for turn in range(2):
        found[f"normal {turn}"], found[f"whole {turn}"] = model.draw()
    a, b = tg.Variable([3.0]), tg.Variable([5.0])
    found["moved"] = model.move(a, b)
    return found | {"a": a.value(), "b": b.value(), "both": model.move(a, a)}


# Every data type, and values of every kind.

NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def dtypes():
    model = tg.Module()
    for name in NAMES:
        dtype = tg.as_dtype(name).numpy_dtype
        values = (numbers(2, 3, dtype=np.float64) * 3).astype(dtype)
        setattr(model, f"v_{name}", tg.Variable(values, name=name))
        setattr(model, f"c_{name}", tg.constant(values[0]))
        setattr(model, f"e_{name}", np.zeros((0, 2), dtype))
    model.values = [1, 2**70, -0.5, float("nan"), 1j, b"\x00\xff", "\u20ac\n", None, True, (1, [2])]
    model.keys = {1: "a", "1": "b", None: 3, (1, 2): 4, 2.5: 5}
    model.types = [tg.float32, tg.TensorSpec([None, "n"], name="x"), tg.TensorShape([1, None])]
    odd = np.array([np.nan, -0.0, np.inf, 5e-324, 0.1], np.float64)
    odd.view(np.uint64)[0] = 0x7FF8000000000123

    @tg.function(input_signature=[spec(2, 3, dtype=tg.complex128)])
    def everything(x):
        real = tg.math.real(x)
        found = {
            name: tg.cast(getattr(model, f"v_{name}"), tg.complex128) * x for name in NAMES[1:]
        }
        kept = tg.where(model.v_bool, real, tg.zeros_like(real))
        return found | {"bool": kept, "odd": tg.constant(odd)}

    model.all = everything
    return model, {}


def dtypes_gives(model):
    found = dict(model.all(numbers(2, 3, seed=1, dtype=np.complex128)))
    for name in NAMES:
        for kind in "vce":
            found[f"{kind}_{name}"] = getattr(model, f"{kind}_{name}")
    return found | {"values": repr((model.values, model.keys, model.types))}


MODELS = {
    make.__name__: (make, gives)
    for make, gives in (
        (layers, layers_gives),
        (custom_gradients, custom_gradients_gives),
        (shapes, shapes_gives),
        (effects, effects_gives),
        (dtypes, dtypes_gives),
    )
}


# Files.


def save(name, path):
    """Saves a model as it is made today."""
    model, options = MODELS[name][0]()
    tg.saved_model.save(model, path, **options)


def values(name, model):
    """What a loaded model gives, as data: arrays as their dtype, shape and elements."""
    return {key: described(value) for key, value in MODELS[name][1](model).items()}


def described(value):
    if isinstance(value, str):
        return value
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    rows = array.reshape(-1)
    if array.dtype.kind == "c":
        elements = [[float(x.real), float(x.imag)] for x in rows]
    elif array.dtype.kind in "iub":
        elements = rows.tolist()
    else:
        elements = [float(x) for x in rows]
    shown = [repr(x) if isinstance(x, float) and not np.isfinite(x) else x for x in elements]
    return {"dtype": array.dtype.name, "shape": list(array.shape), "elements": shown}


def main():
    for name in sys.argv[1:] or MODELS:
        save(name, FOLDER / name)
        found = values(name, tg.saved_model.load(FOLDER / name))
        text = ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
        (FOLDER / f"{name}.json").write_text(f"{{\n {text}\n}}\n")


def without_place(error):
    """A message without the line of the call that failed, which is no matter of the files."""
    return "\n".join(x for x in str(error).split("\n") if not x.startswith("  at "))


if __name__ == "__main__":
    main()
