"""Saving and loading: what comes back is what was saved, in another process too."""

import collections
import copy
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import tracegraph as tg
from tests import damage, saving_uses
from tests.oracles import assert_near, numbers
from tracegraph.archive import manifest, tensors
from tracegraph.errors import LoadError, ShapeError, TraceError

pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

ROOT = Path(__file__).parents[2]
BATCH = [tg.TensorSpec([None, 3], tg.float64)]
ANY_RANK = [tg.TensorSpec(None, tg.float64)]
save, load = tg.saved_model.save, tg.saved_model.load


def run_python(*arguments):
    """Runs this interpreter in a process of its own, which fails with what it printed."""
    found = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


# Every derivative, in a process that has none of the source.


class Model(tg.Module):
    def __init__(self, body, signature):
        super().__init__()
        self.w = tg.Variable(numbers(3, 3) / 2, name="w")
        self.b = tg.Variable(numbers(3, seed=1) / 2, name="b")
        self.f = tg.function(lambda x: body(self, x), input_signature=signature)


@tg.custom_gradient
def doubled(x):
    return tg.sin(x) * x, lambda g: 2.0 * g * tg.cos(x)


@tg.custom_gradient
def twice_custom(x):
    @tg.custom_gradient
    def second(x):
        return 1.0 - tg.tanh(x) ** 2, lambda g: g * (-3.0 * tg.tanh(x))

    return tg.tanh(x), lambda g: 2.0 * g * second(x)


once = tg.function(lambda x: tg.sin(x) * x)
rebuilt = tg.recompute_grad(lambda x: tg.sin(tg.exp(tg.tanh(x))))

MODELS = {
    "plain": (lambda m, x: tg.sin(x @ m.w) * x, BATCH),
    "custom": (lambda m, x: doubled(x @ m.w), BATCH),
    "nested custom": (lambda m, x: twice_custom(x @ m.w) * x, BATCH),
    "variables": (lambda m, x: tg.tanh(x @ m.w + m.b) @ m.w * m.b, BATCH),
    "nested functions": (lambda m, x: once(once(x) @ m.w), BATCH),
    "recomputed": (lambda m, x: rebuilt(x @ m.w) @ m.w, BATCH),
    "unknown rank": (lambda m, x: tg.sin(x) * x * m.b[0], ANY_RANK),
    "unknown rank, custom": (lambda m, x: doubled(x) * m.b[0], ANY_RANK),
    "unknown rank, functions": (lambda m, x: once(rebuilt(x)) * m.b[0], ANY_RANK),
}


def uses_tried(session):
    """The uses of each model whose results this run compares."""
    tried = {("custom", "gradient"): None}
    for item in session.items:
        if item.name.startswith(test_every_derivative_after_loading_elsewhere.__name__):
            tried[item.callspec.params["name"], item.callspec.params["use"]] = None
        if item.name.startswith(test_the_derivatives_are_those_of_jax.__name__):
            for use in ("batch_jacobian", "hessian"):
                tried[item.callspec.params["name"], use] = None
    return {name: [use for model, use in tried if model == name] for name, _ in tried}


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory, request):
    """By model what each use gave before it was saved, and in another process after loading."""
    folder = tmp_path_factory.mktemp("models")
    uses, before = uses_tried(request.session), {}
    for name, names in uses.items():
        model = Model(*MODELS[name])
        before[name] = saving_uses.results(model.f, names)
        save(model, folder / name)
    run_python("-m", "tests.saving_uses", str(folder), json.dumps(uses))
    return {name: (before[name], np.load(folder / f"{name}.npz")) for name in uses}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("use", saving_uses.USES)
@pytest.mark.parametrize("name", MODELS)
def test_every_derivative_after_loading_elsewhere(reloaded, name, use):
    before, after = reloaded[name]
    assert np.all(np.isfinite(before[use]))
    np.testing.assert_allclose(after[use], before[use], rtol=1e-10, atol=1e-12)


def test_the_derivatives_are_those_of_the_custom_gradient(reloaded):
    (before, after), w = reloaded["custom"], numbers(3, 3) / 2
    y = np.sin(saving_uses.X @ w) * (saving_uses.X @ w)
    expected = 2 * y * 2 * np.cos(saving_uses.X @ w) @ w.T
    assert_near(after["gradient"], expected, 1e-10)
    assert_near(before["gradient"], expected, 1e-10)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["plain", "variables"])
def test_the_derivatives_are_those_of_jax(reloaded, name):
    w, b = numbers(3, 3) / 2, numbers(3, seed=1) / 2

    def by_jax(x):
        if name == "plain":
            return jax.numpy.sin(x @ w) * x
        return jax.numpy.tanh(x @ w + b) @ w * b

    with jax.enable_x64(True):
        rows = jax.jit(jax.vmap(jax.jacrev(lambda r: by_jax(r[None])[0])))(saving_uses.X)
        second = jax.jit(jax.hessian(lambda x: (by_jax(x) ** 3).sum()))(saving_uses.X)
    assert_near(reloaded[name][1]["batch_jacobian"], rows, 1e-10)
    assert_near(reloaded[name][1]["hessian"], second, 1e-9)


# What is loaded.


class Layered(tg.Module):
    def __init__(self):
        super().__init__("layered")
        self.hidden = tg.layers.Dense(8, activation="tanh")
        self.out = tg.layers.Dense(3)
        self.optimizer = tg.optimizers.Adam(0.01)
        self.options = {"rates": [1, 2.5, "x", None, True], "shape": (1, 2)}
        self.scale = tg.constant([1.0, 2.0])
        self.table = np.arange(6.0).reshape(2, 3)
        self.first = self.hidden.kernel if self.hidden.built else None
        self.function = len

    @tg.function(input_signature=[tg.TensorSpec([None, 4], name="inputs")])
    def __call__(self, x):
        return self.out(self.hidden(x))

    @tg.function
    def step(self, x, y):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((self(x) - y) ** 2)
        weights = self.hidden.trainable_variables + self.out.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.fixture
def trained():
    model = Layered()
    x, y = tg.constant(numbers(5, 4), tg.float32), tg.constant(numbers(5, 3), tg.float32)
    for _ in range(3):
        model.step(x, y)
    return model, x, y


def test_a_module_comes_back(tmp_path, trained):
    model = trained[0]
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert isinstance(loaded, tg.Module)
    assert type(loaded).__name__ == "Layered" and loaded.name == "layered"
    for kind in ("variables", "trainable_variables", "submodules"):
        names = [v.name for v in getattr(model, kind)]
        assert [v.name for v in getattr(loaded, kind)] == names and names
    for old, new in zip(model.variables, loaded.variables, strict=True):
        assert (new.dtype, new.shape, new.trainable) == (old.dtype, old.shape, old.trainable)
        np.testing.assert_array_equal(new.numpy(), old.numpy())
    assert loaded.options == model.options and type(loaded.options["shape"]) is tuple
    np.testing.assert_array_equal(loaded.scale.numpy(), [1.0, 2.0])
    np.testing.assert_array_equal(loaded.table, model.table)
    for rows in (1, 5, 7):
        given = tg.constant(numbers(rows, 4), tg.float32)
        np.testing.assert_array_equal(loaded(given).numpy(), model(given).numpy())


def test_training_goes_on(tmp_path, trained):
    model, x, y = trained
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    for _ in range(4):
        losses = [float(m.step(x, y)["loss"]) for m in (model, loaded)]
        assert losses[0] == losses[1]
    for old, new in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(new.numpy(), old.numpy())
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(loaded(x) ** 2)
    assert all(g is not None for g in tape.gradient(loss, list(loaded.hidden.variables)))


def test_what_was_left_out_says_so(tmp_path, trained):
    save(trained[0], tmp_path / "m")
    loaded = load(tmp_path / "m")
    with pytest.raises(AttributeError, match="'function' was a builtin_function_or_method"):
        loaded.function  # noqa: B018
    with pytest.raises(AttributeError, match="without an attribute 'other'"):
        loaded.other  # noqa: B018
    assert not hasattr(loaded.hidden, "activation")


def test_three_times_round(tmp_path, trained):
    save(trained[0], tmp_path / "0", signatures={"predict": trained[0].__call__})
    for turn in range(3):
        save(load(tmp_path / str(turn)), tmp_path / str(turn + 1))
    for turn in (1, 2, 3):
        assert contents(tmp_path / str(turn)) == contents(tmp_path / "0")
    x = tg.constant(numbers(2, 4), tg.float32)
    found = load(tmp_path / "3").signatures["predict"](inputs=x)
    np.testing.assert_array_equal(found["output_0"].numpy(), trained[0](x).numpy())


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


SAVED_TWICE = """
import sys
import numpy as np
import tracegraph as tg

class M(tg.Module):
    def __init__(self):
        super().__init__()
        self.v = [tg.Variable(np.arange(5.0) + i, name=f"v{i}") for i in range(4)]
        self.d = {"b": tg.Variable(1.0), "a": tg.Variable(2)}
        self.big = tg.constant(np.arange(2000.0))
    @tg.function(input_signature=[tg.TensorSpec([None])])
    def f(self, x):
        return tg.custom_gradient(lambda x: (x * 2.0, lambda g: g))(x) + self.d["b"]
    @tg.function
    def g(self, x, flag=True):
        return tg.reduce_sum(self.big) * x if flag else x

m = M()
for shape in eval(sys.argv[2]):
    m.g(tg.ones(shape))
    m.g(tg.ones(shape), flag=False)
tg.saved_model.save(m, sys.argv[1])
"""


def test_the_same_module_has_the_same_bytes(tmp_path, monkeypatch):
    # Neither the process nor how often a trace was used since shows in the files.
    run_python("-c", SAVED_TWICE, str(tmp_path / "a"), "[(2,), (3,), (2,)]")
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path / "b"), "[(3,), (2,), (3,), (3,)]"])
    exec(compile(SAVED_TWICE, "<string>", "exec"), {"__name__": "__main__"})
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_size_does_not_depend_on_orders(tmp_path):
    model = Model(*MODELS["nested custom"])
    save(model, tmp_path / "before")
    x = tg.constant(saving_uses.X)
    for order in range(1, 5):
        saving_uses.slope(model.f, x, order).numpy()
    save(model, tmp_path / "after")
    assert contents(tmp_path / "before") == contents(tmp_path / "after")


def test_models_of_one_name_do_not_meet(tmp_path):
    def named(k):
        model = tg.Module()
        model.v = tg.Variable(k, name="v")

        @tg.custom_gradient
        def scaled(x):
            return x * model.v, lambda g: g * 10.0 * model.v

        model.f = tg.function(scaled, input_signature=[tg.TensorSpec([])])
        return model

    for k in (1.0, 2.0):
        save(named(k), tmp_path / str(k))
    first, second = load(tmp_path / "1.0"), load(tmp_path / "2.0")
    again = load(tmp_path / "1.0")
    again.v.assign(7.0)
    x = tg.constant(3.0)
    for module, factor in ((first, 1.0), (second, 2.0), (again, 7.0)):
        assert float(module.f(x)) == 3.0 * factor
        assert float(tg.grad(module.f)(x)) == 10.0 * factor


# Structures, arguments and values.


Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def test_structures_in_and_out(tmp_path):
    @tg.function
    def f(a, *rest, scale=2.0, named=None, **others):
        point = a["p"]
        return {
            "pair": Pair(point.x * scale, [point.y, None]),
            "point": Point(rest[0], (others["z"],)),
            "none": None,
        }

    def call(function):
        p = Point(tg.constant([1.0]), tg.constant([2, 3]))
        return function({"p": p}, tg.constant(4.0), scale=3.0, z=tg.constant(5.0))

    expected = call(f)
    save({"f": f, "list": [f, 1]}, tmp_path / "m")
    loaded = load(tmp_path / "m")
    found = call(loaded["f"])
    assert loaded["list"][0] is loaded["f"] and loaded["list"][1] == 1
    assert type(found["pair"]).__name__ == "Pair" and type(found["point"]).__name__ == "Point"
    assert found["pair"].right[1] is None and found["none"] is None
    assert_near(found["pair"].left, expected["pair"].left)
    assert_near(found["point"].y[0], 5.0)
    with pytest.raises(TypeError, match=r" is 1 in place of a Point: it was saved as\n    f\("):
        loaded["f"]({"p": 1}, tg.constant(4.0), z=tg.constant(5.0))
    save(loaded, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "m")


class Ordered(dict):
    """A dict class of the user's."""


class Listed(list):
    """A list class of the user's."""


def test_dicts_and_lists_of_classes_of_the_user_are_saved(tmp_path):
    # Their order is kept, and a loaded function takes the class again.
    given = Listed([Ordered(w=tg.constant(1.0), b=collections.ChainMap({"x": tg.constant(2.0)}))])
    f = tg.function(lambda p: p)
    f(given)
    save({"f": f}, tmp_path / "m")
    found = load(tmp_path / "m")["f"](given)
    assert (type(found), type(found[0]), type(found[0]["b"])) == (list, dict, dict)
    assert list(found[0]) == ["w", "b"]
    assert (float(found[0]["w"]), float(found[0]["b"]["x"])) == (1.0, 2.0)


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.UserDict, dict])
def test_records_in_containers_of_any_kind_fit_those_that_were_saved(kind, tmp_path):
    @tg.function
    def f(p):
        return p["z"].x - p["a"][0].left

    def call(function):
        p = kind(z=Point(tg.constant(5.0), None), a=[Pair(tg.constant(2.0), None)])
        return float(function(p))

    f({"z": Point(tg.constant(0.0), None), "a": [Pair(tg.constant(0.0), None)]})
    save({"f": f}, tmp_path / "m")
    assert call(load(tmp_path / "m")["f"]) == 3.0


def test_a_structure_that_contains_itself_is_refused_after_loading_too(tmp_path):
    f = tg.function(lambda p: p[0] + 1.0)
    f([tg.constant(1.0)])
    save({"f": f}, tmp_path / "m")
    given = []
    given.append(given)
    with pytest.raises(TypeError, match="a structure contains itself"):
        load(tmp_path / "m")["f"](given)


def test_python_values_choose_the_trace(tmp_path):
    @tg.function
    def power(x, n, mode="up"):
        return x**n if mode == "up" else x**-n

    x = tg.constant(2.0)
    for n, mode in ((2, "up"), (3, "up"), (2, "down"), (2.0, "up")):
        power(x, n, mode)
    save(power, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert [float(loaded(x, 2)), float(loaded(x, 3)), float(loaded(x, 2, mode="down"))] == [
        4,
        8,
        0.25,
    ]
    assert float(loaded(x, 2.0)) == 4.0
    with pytest.raises(TypeError, match=r"power\(x: f32\[\], n=4, mode='up'\) was not saved"):
        loaded(x, 4)
    with pytest.raises(TypeError, match=r"power\(x: f32\[\], n=3.0, mode=b'up'\) was not saved"):
        loaded(x, 3.0, b"up")
    with pytest.raises(TypeError, match="fit the signature"):
        loaded(x, 2, 3, 4)


def test_variables_as_arguments(tmp_path):
    @tg.function
    def add(v, w):
        v.assign_add(w)
        return v * 2.0

    v, w = tg.Variable([1.0]), tg.Variable([2.0])
    add(v, w)
    add(v, v)
    save(add, tmp_path / "m")
    loaded = load(tmp_path / "m")
    a, b = tg.Variable([10.0]), tg.Variable([1.0])
    assert loaded(a, b).numpy() == 22.0 and a.numpy() == 11.0
    assert loaded(a, a).numpy() == 44.0


def test_aliases_and_cycles(tmp_path):
    model = tg.Module()
    model.v = model.same = tg.Variable(1.0)
    model.inner = tg.Module()
    model.inner.v, model.inner.outer = model.v, model
    model.inners = [model.inner, model.inner]
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.same is loaded.v is loaded.inner.v
    assert loaded.inner.outer is loaded and loaded.inners[0] is loaded.inners[1] is loaded.inner
    loaded.v.assign(5.0)
    assert loaded.inner.v.numpy() == 5.0 and len(loaded.variables) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    ],
)
def test_every_dtype(tmp_path, name):
    dtype = tg.as_dtype(name)
    model = tg.Module()
    for shape in ((), (0, 2), (3,), (2, 3)):
        values = np.asarray(numbers(*shape) * 3).astype(dtype.numpy_dtype)
        key = "x".join(map(str, shape)) or "scalar"
        setattr(model, f"v_{key}", tg.Variable(values))
        setattr(model, f"c_{key}", tg.constant(values))
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    for key, old in vars(model).items():
        if not key.startswith("_"):
            new = getattr(loaded, key)
            assert new.dtype is dtype and new.shape == old.shape
            assert np.asarray(new.numpy()).tobytes() == np.asarray(old.numpy()).tobytes()


def test_odd_numbers(tmp_path):
    model = tg.Module()
    model.values = [float("nan"), float("inf"), -0.0, 1e-320, 2**100, -(2**70), 1j, b"\x00\xff"]
    model.texts = ["", "\u202e", "a\nb", "\U0001f600", '"\\']
    model.keys = {1: "a", "1": "b", None: 3, (1, 2): 4, 2.5: 5}
    model.types = [tg.float32, tg.TensorSpec([None, 3], name="x"), tg.TensorShape([1, None])]
    model.types.append(tg.TensorShape(None))
    model.v = tg.Variable([np.nan, -0.0, np.inf])
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert list(map(repr, loaded.values)) == list(map(repr, model.values))
    assert loaded.texts == model.texts and loaded.keys == model.keys
    assert repr(loaded.types) == repr(model.types) and len(loaded.variables) == 1
    assert loaded.v.numpy().tobytes() == model.v.numpy().tobytes()


def test_large_constants_stand_beside_the_text(tmp_path):
    table = np.random.default_rng(0).standard_normal(5000)

    @tg.function(input_signature=[tg.TensorSpec([], tg.float64)])
    def f(x):
        return x * tg.reduce_sum(tg.constant(table)) + tg.constant(table)[7]

    save(f, tmp_path / "m")
    text = next((tmp_path / "m").glob("graph-*.tgir")).read_text()
    assert len(text) < 2000
    assert_near(load(tmp_path / "m")(2.0), 2 * table.sum() + table[7])


def test_variables_of_open_shape(tmp_path):
    model = tg.Module()
    model.v = tg.Variable(np.zeros((2, 3), np.float32), shape=[None, 3])
    model.f = tg.function(lambda x: model.v * x, input_signature=[tg.TensorSpec([])])
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    loaded.v.assign(np.ones((4, 3), np.float32))
    assert loaded.f(2.0).shape == (4, 3)


def open_model():
    model = tg.Module()
    model.v = tg.Variable(np.ones((2, 3), np.float32), shape=[None, 3], name="v")
    model.w = tg.Variable(np.ones(2, np.float32), shape=tg.TensorShape(None), name="w")
    inner = tg.function(lambda x: tg.reduce_sum(model.v * x, 0))
    one = [tg.TensorSpec(["v0"])]
    model.f = tg.function(lambda x: inner(2.0) + x[0] * tg.reduce_sum(model.w), input_signature=one)
    model.g = tg.function(lambda v, w: v * w)
    model.g(model.v, model.v)
    return model


def test_open_sizes_of_variables_have_names_of_their_own(tmp_path):
    # Neither the files nor other models tell how many Variables there were before.
    save(open_model(), tmp_path / "a")
    save(open_model(), tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    first, second = load(tmp_path / "a"), load(tmp_path / "a")
    save(first, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "a")
    second.v.assign(np.ones((5, 3), np.float32))
    second.w.assign(np.ones((2, 2), np.float32))
    both = tg.function(lambda x: (first.f(x), second.f(x), tg.reduce_sum(second.v)))
    for f, total in ((first.f, 4.0 + 2.0), (second.f, 10.0 + 4.0)):
        assert_near(f(tg.ones([7])), np.full(3, total))
    found = both(tg.ones([1]))
    assert_near(found[0], np.full(3, 6.0))
    assert_near(found[1], np.full(3, 14.0))
    assert_near(found[2], 15.0)


def test_random_numbers(tmp_path):
    generator = tg.random.Generator.from_seed(3)
    model = tg.Module()
    model.generator = generator
    model.f = tg.function(lambda: generator.normal([3]), input_signature=[])
    model.f()
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    for _ in range(3):
        np.testing.assert_array_equal(loaded.f().numpy(), model.f().numpy())


def test_what_runs_in_order(tmp_path, capfd):
    model = tg.Module()
    model.v = tg.Variable(1.0)

    @tg.function(input_signature=[tg.TensorSpec([])])
    def f(x):
        tg.print("before", model.v)
        model.v.assign(x)
        tg.debugging.assert_less(x, 10.0, message="too large")
        model.v.assign_add(1.0)
        tg.print("after", model.v)
        return x

    model.f = f
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    loaded.f(2.0)
    assert capfd.readouterr().err.split() == ["before", "1", "after", "3"]
    with pytest.raises(tg.errors.InvalidArgumentError, match="too large") as caught:
        loaded.f(20.0)
    assert "test_saving.py" in str(caught.value)
    assert loaded.v.numpy() == 20.0  # what comes before the check holds, what comes after does not


# Shapes.


def test_every_shape_that_the_graph_allows(tmp_path):
    specs = [tg.TensorSpec(["n", None]), tg.TensorSpec(["n"])]
    f = tg.function(lambda x, y: x * y[:, None] + tg.reduce_mean(x), input_signature=specs)
    save(f, tmp_path / "m")
    loaded = load(tmp_path / "m")
    for shape in ((2, 3), (5, 1), (1, 4)):
        x, y = numbers(*shape).astype("f"), numbers(shape[0]).astype("f")
        assert_near(loaded(x, y), x * y[:, None] + x.mean(), 1e-5)
    assert loaded(np.zeros((0, 3), "f"), np.zeros(0, "f")).shape == (0, 3)
    with pytest.raises(TypeError, match="pass equal sizes where the names are equal"):
        loaded(np.zeros((2, 3), "f"), np.zeros(3, "f"))


def test_a_size_that_the_graph_took_to_be_equal(tmp_path):
    f = tg.function(
        lambda x, y: x + y, input_signature=[tg.TensorSpec([None]), tg.TensorSpec([None])]
    )
    save(f, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert_near(loaded(np.ones(3, "f"), np.ones(3, "f")), 2 * np.ones(3))
    with pytest.raises(ShapeError, match=r"test_saving\.py"):
        loaded(np.ones(3, "f"), np.ones(1, "f"))  # a live function would trace this again


def test_unknown_rank_that_an_op_needs(tmp_path):
    f = tg.function(lambda x: tg.reduce_sum(x, 0), input_signature=[tg.TensorSpec(None)])
    with pytest.raises(ShapeError, match="give the rank in the input_signature"):
        save(f, tmp_path / "m")
    f(tg.ones([2, 3]))
    f(tg.ones([2, 3, 4]))
    save(f, tmp_path / "m")
    save(load(tmp_path / "m"), tmp_path / "again")
    for path in (tmp_path / "m", tmp_path / "again"):
        loaded = load(path)
        assert loaded(tg.ones([5, 4])).numpy().tolist() == [5.0] * 4
        assert loaded(tg.ones([5, 4, 1])).shape == (4, 1)
        with pytest.raises(TypeError, match="it was saved as"):
            loaded(tg.ones([5]))


def test_an_error_in_a_function_that_a_save_traces_is_that_of_the_function(tmp_path):
    @tg.function(input_signature=[tg.TensorSpec([16, 4]), tg.TensorSpec([8, 4])])
    def product(x, w):
        return x @ w

    with pytest.raises(ShapeError) as caught:
        product.get_concrete_function()
    with pytest.raises(ShapeError) as saved:
        save(product, tmp_path / "m")
    assert str(saved.value) == str(caught.value) and "return x @ w" in str(saved.value)


def test_a_gradient_that_cannot_be_traced(tmp_path):
    @tg.custom_gradient
    def halved(x):
        return tg.sin(x), lambda g: g * float(g.numpy())

    f = tg.function(halved, input_signature=[tg.TensorSpec([])])
    with pytest.raises(
        ValueError, match=r"(?s)halved cannot be saved: \.numpy\(\) needs the value .*float\(g"
    ):
        save(f, tmp_path / "m")


def test_a_function_that_was_never_traced(tmp_path):
    save(tg.function(lambda x: x), tmp_path / "m")
    with pytest.raises(TypeError, match="it was never traced before saving"):
        load(tmp_path / "m")(1.0)


# Signatures, assets, options.


def test_signatures(tmp_path):
    @tg.function(input_signature=[tg.TensorSpec([None], name="a"), tg.TensorSpec([], name="b")])
    def scale(x, factor):
        return {"scaled": x * factor, "sum": tg.reduce_sum(x)}

    save(tg.Module(), tmp_path / "m", signatures=scale)
    loaded = load(tmp_path / "m")
    assert list(loaded.signatures) == ["serving_default"]
    found = loaded.signatures["serving_default"](a=tg.constant([1.0, 2.0]), b=3.0)
    assert_near(found["scaled"], [3.0, 6.0])
    assert float(found["sum"]) == 3.0
    with pytest.raises(TypeError, match="takes a, b by name, and was given a, c"):
        loaded.signatures["serving_default"](a=1.0, c=2.0)
    with pytest.raises(TypeError):
        loaded.signatures["other"] = None
    with tg.GradientTape() as tape:
        x = tg.constant([1.0, 2.0])
        tape.watch(x)
        y = loaded.signatures["serving_default"](a=x, b=3.0)["scaled"]
    assert_near(tape.gradient(y, x), [3.0, 3.0])


def test_signatures_are_concrete_functions(tmp_path):
    w = tg.Variable([2.0, 4.0], name="w")
    still = tg.Variable(1.0, name="still", trainable=False)

    @tg.function(input_signature=[tg.TensorSpec(["n", 2], name="z"), tg.TensorSpec([], name="a")])
    def served(x, factor):
        return {"scaled": x * w * factor + still, "first": tg.reduce_sum(x)}

    save(tg.Module(), tmp_path / "m", signatures=served)
    signature = load(tmp_path / "m").signatures["serving_default"]
    concrete = served.get_concrete_function()
    assert [v.name for v in signature.variables] == [v.name for v in concrete.variables]
    assert [v.name for v in signature.trainable_variables] == ["w:0"]
    assert len(signature.captured_inputs) == 2
    assert [x.type for x in signature.inputs] == [x.type for x in concrete.inputs]
    assert [y.type for y in signature.outputs] == [y.type for y in concrete.outputs]
    assert (signature.input_names, signature.output_names) == (("z", "a"), ("first", "scaled"))
    text = "serving_default(z: f32[n,2], a: f32[]) -> {first: f32[], scaled: f32[n,2]}"
    assert signature.pretty_printed_signature(verbose=False) == text
    assert repr(signature) == f"<signature {text}>"
    blocks = signature.pretty_printed_signature()
    assert str(signature) == f"signature serving_default\n{blocks}"
    assert "  a (KEYWORD_ONLY): TensorSpec(" in blocks and "Captures:\n  w:0: " in blocks
    assert signature.structured_input_signature == (
        (),
        {"z": tg.TensorSpec(["n", 2], name="z"), "a": tg.TensorSpec([], name="a")},
    )
    assert signature.structured_outputs["first"] == tg.TensorSpec([], name="first")
    assert (
        signature.output_shapes["first"] == [] and signature.output_dtypes["scaled"] is tg.float32
    )
    assert [*signature.function_type.parameters] == ["z", "a"]
    assert signature.graph.as_text() == signature.concrete.graph.as_text()
    x = np.ones([3, 2], np.float32)
    found = jax.jit(signature.as_jax())(z=x, a=np.float32(2.0))
    assert list(found) == ["first", "scaled"]  # JAX sorts what it returns
    assert_near(found["scaled"], [[5.0, 9.0]] * 3)
    assert list(signature(z=x, a=2.0)) == ["scaled", "first"]
    with pytest.raises(TypeError, match="serving_default: argument 'z' is f32"):
        signature(z=tg.ones([2]), a=1.0)
    save({"f": signature}, tmp_path / "again", signatures=signature)
    assert repr(load(tmp_path / "again").signatures["serving_default"]) == repr(signature)
    save(signature, tmp_path / "root")
    assert list(load(tmp_path / "root")(x, 2.0)) == ["scaled", "first"]


def test_a_signature_whose_names_python_does_not_write(tmp_path):
    spec = tg.TensorSpec([None], name="class")
    save(tg.Module(), tmp_path / "m", signatures=tg.function(lambda x: -x, input_signature=[spec]))
    signature = load(tmp_path / "m").signatures["serving_default"]
    assert signature(tg.ones([1]))["output_0"].numpy() == [-1.0]
    assert str(signature.function_type).startswith("(**inputs)")


def test_a_function_as_root_is_one(tmp_path):
    v = tg.Variable(3.0, name="v")
    cube = tg.function(lambda x: v * x**3, input_signature=[tg.TensorSpec([None])])
    for path, saved in (("f", cube), ("c", cube.get_concrete_function())):
        save(saved, tmp_path / path)
        loaded = load(tmp_path / path)
        x = tg.constant([2.0])
        assert loaded(x).numpy() == loaded.content(x).numpy() == [24.0]
        assert loaded.as_jax()(np.float32([2.0])).tolist() == [24.0]
        assert [v.name for v in loaded.trainable_variables] == ["v:0"]
        assert loaded.name == cube.name
        assert not hasattr(loaded, "other") and not hasattr(loaded, "keys")
        assert tg.train.list_variables(tg.train.Checkpoint(loaded).write(tmp_path / "w")) == []
    assert load(tmp_path / "c").graph.outputs[0].type is cube.graph().outputs[0].type
    loaded = load(tmp_path / "f")
    assert loaded.get_concrete_function().graph is loaded.graph()
    assert loaded.input_signature == cube.input_signature
    with pytest.raises(TypeError):
        len(loaded)
    assert copy.copy(loaded)(tg.constant([1.0])).numpy() == [3.0]


def test_dicts_and_lists_as_roots(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = tg.Variable(1.0), tg.Variable(2.0)
    save({"a": a, "b": [b], 3: "three"}, "dict")
    table = load("dict")
    assert list(table) == list(table.keys()) == ["a", "b", 3] and len(table) == 3
    assert dict(table.items()) == dict(table) and list(table.values())[2] == "three"
    assert "a" in table and "c" not in table and table.get("c", 5) == 5
    assert isinstance(table, Mapping) and table.a is table["a"] and next(reversed(table)) == 3
    with pytest.raises(AttributeError, match="without an attribute 'c'"):
        table.c  # noqa: B018
    save([a, "x", "x"], "list")
    row = load("list")
    assert isinstance(row, Sequence) and row[0].numpy() == 1.0 and row[1:] == ["x", "x"]
    assert "x" in row and "y" not in row and row.index("x") == 1 and row.count("x") == 2
    assert len(row) == 3 and next(reversed(row)) == "x" and not hasattr(row, "keys")
    path = tg.train.Checkpoint(m={"a": tg.Variable(7.0), "b": [tg.Variable(8.0)]}).write("saved")
    tg.train.Checkpoint(m=table).read(path).assert_consumed()
    assert table.a.numpy() == 7.0
    path = tg.train.Checkpoint(table).write("root")
    assert [name for name, _ in tg.train.list_variables(path)] == ["a", "b/0"]


def test_a_call_that_was_python_says_so(tmp_path):
    class Layer(tg.Module):
        def __call__(self, x):
            return x

    layer = Layer()
    for path in ("m", "again"):
        save({"layer": layer}, tmp_path / path)
        layer = load(tmp_path / path)["layer"]
        with pytest.raises(TypeError) as caught:
            layer(1.0)
        assert str(caught.value) == (
            "Layer.__call__ was not saved: it was not a @tg.function\n"
            f"  at {__file__}:{caught.traceback[0].lineno + 1}:  layer(1.0)\n"
            "  fix: decorate it with @tg.function and trace it before saving, or save and call a "
            "@tg.function that calls the module"
        )


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda: tg.function(lambda x: x), "has 0 traces"),
        (lambda: len, "builtin_function"),
        (lambda: tg.function(lambda x: [[x]], input_signature=[tg.TensorSpec([])]), "nested"),
        (
            lambda: tg.function(lambda x: {"a": [x]}, input_signature=[tg.TensorSpec([])]),
            "more than",
        ),
    ],
)
def test_bad_signatures(tmp_path, function, match):
    with pytest.raises(ValueError, match=match):
        save(tg.Module(), tmp_path / "m", signatures={"s": function()})
    assert not (tmp_path / "m").exists()


def test_assets(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("one\ntwo")
    model = tg.Module()
    model.words = tg.saved_model.Asset(words)
    save(model, tmp_path / "m")
    words.unlink()
    os.rename(tmp_path / "m", tmp_path / "moved")
    assert Path(load(tmp_path / "moved").words.path).read_text() == "one\ntwo"
    save(load(tmp_path / "moved"), tmp_path / "again")
    assert Path(load(tmp_path / "again").words).read_text() == "one\ntwo"
    with pytest.raises(ValueError, match="there is no file"):
        tg.saved_model.Asset(words)


def test_without_custom_gradients(tmp_path):
    options = tg.saved_model.SaveOptions(experimental_custom_gradients=False)
    inner = tg.function(doubled)
    f = tg.function(lambda x: inner(x) * 2.0, input_signature=[tg.TensorSpec([], tg.float64)])
    save(f, tmp_path / "m", options=options)
    loaded = load(tmp_path / "m")
    x = tg.constant(1.0, tg.float64)
    assert_near(loaded(x), f(x))
    for derive in (lambda: tg.grad(loaded)(x), lambda: tg.jvp(loaded, (x,), (x,))):
        with pytest.raises(LookupError, match="was left out when it was saved") as caught:
            derive()
        assert "experimental_custom_gradients=True" in str(caught.value)
    assert float(tg.grad(f)(x)) != 0.0
    save(loaded, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "m")


def test_programs_of_signatures(tmp_path):
    """They run in a process that has JAX alone, and tell nobody where they were made."""
    model = Model(lambda m, x: doubled(x @ m.w), BATCH)
    options = tg.saved_model.SaveOptions(stablehlo=("cpu", "cuda"))
    for name in ("m", "again"):
        save(model, tmp_path / name, signatures={"a name / of mine": model.f}, options=options)
    program = load(tmp_path / "m").signatures["a name / of mine"].program
    assert program.parent == tmp_path / "m" / "stablehlo"
    again = load(tmp_path / "again").signatures["a name / of mine"].program
    assert program.name == again.name and program.read_bytes() == again.read_bytes()
    assert str(ROOT).encode() not in program.read_bytes()
    found = run_python(
        "-c",
        "import sys, jax, numpy as np\n"
        "import jax.export\n"
        "jax.config.update('jax_enable_x64', True)\n"
        "program = jax.export.deserialize(bytearray(open(sys.argv[1], 'rb').read()))\n"
        "assert program.platforms == ('cpu', 'cuda')\n"
        "print(float(program.call(x=np.ones((5, 3)))['output_0'].sum()))",
        program,
    )
    assert_near(float(found), tg.reduce_sum(model.f(tg.ones([5, 3], tg.float64))))
    save(load(tmp_path / "m"), tmp_path / "m")
    assert load(tmp_path / "m").signatures["a name / of mine"].program is None
    assert not list((tmp_path / "m" / "stablehlo").iterdir())


def test_what_is_loaded_is_exported_as_it_was(tmp_path):
    model = Model(lambda m, x: tg.reduce_sum(doubled(x @ m.w)), BATCH)
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    for gradient in (False, True):
        data = [
            tg.export.stablehlo(f.get_concrete_function(*BATCH), gradient=gradient)
            for f in (model.f, loaded.f)
        ]
        assert data[0] == data[1]
    x = numbers(4, 3)
    with jax.enable_x64(True):
        for derive in (lambda f: f, jax.grad, jax.hessian, lambda f: jax.jit(jax.jacfwd(f))):
            wanted, found = derive(model.f.as_jax())(x), derive(loaded.f.as_jax())(x)
            np.testing.assert_array_equal(found, wanted)


def test_large_weights_stand_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "SHARD_BYTES", 100)
    model = tg.Module()
    model.parts = [tg.Variable(numbers(n, seed=n)) for n in (4, 4, 30, 5, 5, 2, 1)]
    save(model, tmp_path / "m")
    names = sorted(path.name[:23] for path in (tmp_path / "m").glob("weights-*"))
    assert names == [f"weights-0000{n}-of-00004-"[:23] for n in (1, 2, 3, 4)]
    for options in (None, tg.saved_model.LoadOptions(verify=True)):
        for old, new in zip(model.parts, load(tmp_path / "m", options=options).parts, strict=True):
            np.testing.assert_array_equal(new.numpy(), old.numpy())
    next((tmp_path / "m").glob("weights-00003*")).unlink()
    with pytest.raises(LoadError, match="weights-00003-of-00004"):
        load(tmp_path / "m")


def test_without_locations(tmp_path):
    f = tg.function(lambda x: tg.sin(x), input_signature=[tg.TensorSpec([])])
    save(f, tmp_path / "m", options=tg.saved_model.SaveOptions(locations=False))
    assert "test_saving" not in next((tmp_path / "m").glob("*.tgir")).read_text()
    save(f, tmp_path / "m")
    assert "at test_saving.py:" in next((tmp_path / "m").glob("*.tgir")).read_text()
    assert str(ROOT) not in "".join(path.read_text() for path in (tmp_path / "m").iterdir())


def test_saving_over_an_older_save(tmp_path):
    model = tg.Module()
    model.v = tg.Variable([1.0, 2.0])
    save(model, tmp_path / "m")
    first = load(tmp_path / "m")
    model.v.assign([3.0, 4.0])
    save(model, tmp_path / "m")
    assert_near(load(tmp_path / "m").v, [3.0, 4.0])
    assert_near(first.v, [1.0, 2.0])  # read at its first use, from the file that was there
    assert len(list((tmp_path / "m").glob("weights-*"))) == 1


# What cannot be saved.


def refused_callback():
    def f(x):
        return tg.numpy_function(np.sin, [x], tg.float32)

    return tg.function(f, input_signature=[tg.TensorSpec([])])


def refused_object():
    class Thing:
        pass

    f = tg.function(lambda x, thing: x)
    f(tg.constant(1.0), Thing())
    return f


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: 5, ValueError, "an int cannot be saved"),
        (lambda: lambda x: x, ValueError, "cannot be saved"),
        (refused_callback, TraceError, "calls the Python function sin when it runs"),
        (refused_object, TraceError, "was traced for a Python object as its argument 'thing'"),
    ],
)
def test_what_cannot_be_saved(tmp_path, make, error, match):
    with pytest.raises(error, match=match) as caught:
        save(make(), tmp_path / "m")
    assert "test_saving.py" in str(caught.value) or error is ValueError
    assert not (tmp_path / "m").exists()


def test_a_path_that_holds_something_else(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"holds 1 other file, such as 'letter\.txt'"):
        save(tg.Module(), tmp_path)
    with pytest.raises(ValueError, match="is a file, and a directory is written there"):
        save(tg.Module(), tmp_path / "letter.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_captured_variables_go_along(tmp_path):
    outside = tg.Variable(3.0, name="outside")
    model = tg.Module()
    model.f = tg.function(lambda x: x * outside, input_signature=[tg.TensorSpec([])])
    model.f.get_concrete_function()
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    with tg.GradientTape() as tape:
        y = loaded.f(2.0)
        (variable,) = tape.watched_variables()
    assert variable.name == "outside:0" and float(tape.gradient(y, variable)) == 2.0


# What is not there, and versions.


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.update(version=2), "has version 2, written by tracegraph 0"),
        (lambda m: m.update(format="other"), "it is 'other', and not 'tracegraph.saved_model'"),
        (lambda m: m.pop("graphs"), "the field 'graphs' is missing"),
        (lambda m: m.update(more=1), "the field 'more' is not known"),
    ],
)
def test_manifests_of_others(tmp_path, change, match):
    save(tg.Module(), tmp_path / "m")
    content = damage.manifest(tmp_path / "m")
    change(content)
    damage.set_manifest(tmp_path / "m", content)
    with pytest.raises(LoadError, match=match):
        load(tmp_path / "m")


def test_paths_without_a_model(tmp_path):
    with pytest.raises(OSError, match="there is no directory") as caught:  # as TensorFlow
        load(tmp_path / "nothing")
    assert isinstance(caught.value, LoadError) and caught.value.__cause__ is None
    assert f"\n  at {__file__}:" in str(caught.value) and caught.value.__suppress_context__
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(LoadError, match=r"holds no tracegraph.json"):
        load(tmp_path)


def test_values_are_read_at_their_first_use(tmp_path):
    model = tg.Module()
    model.v = tg.Variable(numbers(100))
    save(model, tmp_path / "m")
    (path,) = (tmp_path / "m").glob("weights-*")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    loaded = load(tmp_path / "m")  # the manifest and the graphs are as they were
    for _ in range(2):
        with pytest.raises(LoadError, match="the tensor 'v' was changed"):
            loaded.v.numpy()
    loaded.v.assign(np.zeros(100))
    assert not loaded.v.numpy().any()
    with pytest.raises(LoadError, match="was changed: its SHA-256"):
        load(tmp_path / "m", options=tg.saved_model.LoadOptions(verify=True))


def test_state_of_an_optimizer_is_named_by_its_variable(tmp_path):
    model = tg.Module()
    model.encoder = tg.Module()
    model.encoder.kernel = tg.Variable([1.0], name="kernel")
    model.optimizer = tg.optimizers.Adam(0.1)
    model.optimizer.build([model.encoder.kernel])
    save(model, tmp_path / "m")
    assert {"encoder/kernel", "optimizer/encoder/kernel_momentum"} <= weights_in(tmp_path / "m")


class Stepped(tg.Module):
    """A model whose optimizer comes before its weights, and that trains what nothing holds."""

    def __init__(self, outer):
        super().__init__()
        self.outer = (lambda: outer,)
        self.adam = tg.optimizers.Adam(0.1)
        self.weights = tg.Variable([1.0, 2.0], name="weights")

    @tg.function(input_signature=[tg.TensorSpec([None, 2])])
    def train(self, x):
        variables = (self.weights, self.outer[0]())
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(variables[1] * (x * self.weights) ** 2)
        self.adam.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def weights_in(path):
    return set(json.loads((path / "tracegraph.json").read_text())["weights"])


def test_weights_have_the_same_names_before_and_after_the_first_step(tmp_path):
    model = Stepped(tg.Variable(2.0, name="outer"))
    save(model, tmp_path / "before")
    model.train(tg.ones([1, 2]))
    save(model, tmp_path / "after")
    slots = {f"adam/{name}_{slot}" for name in ("weights", "outer") for slot in SLOTS}
    own = {"adam/iterations", "adam/_learning_rate", "weights", "outer"}
    assert weights_in(tmp_path / "before") == weights_in(tmp_path / "after") == own | slots


SLOTS = ("momentum", "velocity")


def test_what_an_optimizer_steps_and_nothing_holds_stays_trainable(tmp_path):
    model = Stepped(tg.Variable(2.0, name="outer"))
    for path in ("before", "after"):
        save(model, tmp_path / path)
        model.train(tg.ones([1, 2]))
        names = [v.name for v in load(tmp_path / path).trainable_variables]
        assert names == ["weights:0", "outer:0"]


def test_layers_that_are_built_while_a_function_is_traced_are_saved(tmp_path):
    model = tg.Module()
    model.layer = tg.layers.Dense(2)
    model.call = tg.function(lambda x: model.layer(x), input_signature=[tg.TensorSpec([None, 3])])
    save(model, tmp_path / "m")
    assert load(tmp_path / "m").layer.kernel.shape == (3, 2)


def test_dicts_of_pythons_own_classes_are_saved_as_such(tmp_path):
    model = tg.Module()
    model.heads = collections.defaultdict(list)
    model.heads["en"].append(tg.Variable([1.0]))
    model.other = collections.defaultdict(lambda: 5, b=1, a=2)
    model.blocks = collections.OrderedDict(w=tg.Variable(2.0), b=tg.Variable(3.0))
    model.counts = collections.Counter("aab")
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    save(loaded, tmp_path / "again")
    for found in (loaded, load(tmp_path / "again")):
        assert type(found.heads) is collections.defaultdict and found.heads["absent"] == []
        assert found.heads["en"][0].numpy() == [1.0] and found.counts == {"a": 2, "b": 1}
        assert list(found.other) == ["b", "a"] and found.other.default_factory is None
        assert type(found.blocks) is collections.OrderedDict and list(found.blocks) == ["w", "b"]
        assert len(found.variables) == 3


def test_loaded_functions_return_dicts_of_pythons_own_classes(tmp_path):
    def params(x):
        made = collections.defaultdict(float, w=x, b=2.0 * x)
        return collections.OrderedDict(z=made, y={"x": x})

    f = tg.function(lambda p: (p, params(p["z"]["w"])))
    given = params(tg.constant(1.0))
    f(given)
    save({"f": f}, tmp_path / "m")
    loaded = load(tmp_path / "m")["f"]
    plain = {key: dict(value) for key, value in given.items()}
    for found in (*loaded(given), *loaded(plain)):  # in place of its class, any dict is taken
        assert type(found) is collections.OrderedDict and list(found) == ["z", "y"]
        assert type(found["z"]) is collections.defaultdict and list(found["z"]) == ["w", "b"]
        assert found["z"].default_factory is float and type(found["y"]) is dict
        assert float(found["z"]["b"]) == 2.0


def test_a_variable_that_would_be_lost_is_refused(tmp_path):
    class Layers(list):
        """A list of someone's own: what it does besides is not known."""

    model = tg.Module()
    model.layers = Layers([tg.Variable(1.0, name="lost")])
    lost = r"'lost:0' of Module would be lost: it is held by layers(.|\n)* a plain list or dict"
    with pytest.raises(ValueError, match=lost):
        save(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("shape", [[4], None])
@pytest.mark.parametrize("place", ["arguments", "signature"])
def test_a_spec_that_does_not_fit_its_trace(tmp_path, place, shape):
    f = tg.function(lambda x: 2.0 * x, input_signature=[tg.TensorSpec([None, 4])])
    save({"f": f}, tmp_path / "m")
    path = tmp_path / "m" / "tracegraph.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    (argument,) = data["functions"][0]["traces"][0]["arguments"]["tuple"][0]["tuple"]
    declared = data["functions"][0]["input_signature"]["tuple"][0]
    spec = argument["argument"]["spec"] if place == "arguments" else declared
    spec["spec"]["shape"] = shape
    path.write_bytes(manifest.written(data))
    with pytest.raises(LoadError, match=r"tracegraph\.json: "):
        load(tmp_path / "m")


def test_checks_say_afterwards_what_they_said_before(tmp_path):
    model = tg.Module()
    model.bounds = tg.function(
        lambda x, i: tg.gather(x, i),
        input_signature=[tg.TensorSpec([None]), tg.TensorSpec([None], tg.int32)],
        check_bounds=True,
    )
    model.numerics = tg.function(
        lambda x: tg.sqrt(tg.math.log(x)), input_signature=[tg.TensorSpec([])], check_numerics=True
    )
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    calls = {
        "bounds": lambda m: m.bounds([1.0, 2.0, 3.0], [0, 7]),
        "numerics": lambda m: m.numerics(0.5),
    }
    for call in calls.values():
        errors = []
        for module in (model, loaded):
            with pytest.raises(tg.errors.LoweringError) as caught:
                call(module)
            errors.append((type(caught.value), str(caught.value).splitlines()))
        (kind, before), (kind_after, after) = errors
        line = before[1].split(":")[1]
        assert after[0] == f"{before[0]} (traced at test_saving.py:{line})"
        assert kind is kind_after and before[-1] == after[-1]
        assert f"  at {__file__}:" in after[1]
    assert_near(loaded.bounds([1.0, 2.0], [1]), [2.0])


def test_a_name_that_files_of_tensors_reserve(tmp_path):
    save({"__metadata__": tg.Variable([1.0, 2.0])}, tmp_path / "m")
    assert_near(load(tmp_path / "m")["__metadata__"], [1.0, 2.0])


def test_a_loaded_function_is_decorated_again(tmp_path):
    save(tg.function(lambda x: x * 2.0, input_signature=[tg.TensorSpec([None])]), tmp_path / "m")
    loaded = load(tmp_path / "m").content
    assert_near(tg.function(loaded)([1.0, 2.0]), [2.0, 4.0])
    assert_near(tg.function(lambda x: loaded(x) + 1.0, check_bounds=True)(tg.ones([3])), [3.0] * 3)


# Sizes that are derived of open ones.


@tg.custom_gradient
def bent(x):
    return tg.sin(x), lambda g: 3.0 * g * tg.cos(x)


@tg.custom_gradient
def bent_inside(x):
    return bent(x[1:]) * 2.0, lambda g: tg.pad(bent(g), [[1, 0]])


DERIVED = {
    "slice": lambda x: bent(x[1:]),
    "stride": lambda x: bent(x[::2]),
    "concat": lambda x: bent(tg.concat([x, x], 0)),
    "tile": lambda x: bent(tg.tile(x, [3])),
    "pad": lambda x: bent(tg.pad(x, [[1, 2]])),
    "outer": lambda x: bent(tg.reshape(x[:, None] * x[None, :], [-1])),
    "nested": lambda x: bent_inside(x[1:]),
    "twice": lambda x: bent(bent(x[1:])[1:]),
    "recomputed": lambda x: tg.recompute_grad(lambda y: bent(tg.sin(y[1:])))(x[1:]),
    "enclosed": lambda x: tg.recompute_grad(lambda y: tg.ones([x.shape[0] + 2]) * y)(tg.sin(x[:1])),
}


def first_and_second(f):
    """The values of f, and its derivatives of the first and the second order."""

    def slope(x):
        return tg.grad(lambda y: tg.reduce_sum(tg.square(f(y))))(x)

    def curve(x):
        return tg.grad(lambda y: tg.reduce_sum(tg.square(slope(y))))(x)

    return lambda x: (f(x), slope(x), curve(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DERIVED)
def test_custom_gradients_at_derived_sizes(tmp_path, name):
    f = tg.function(DERIVED[name], input_signature=[tg.TensorSpec([None])])
    save(f, tmp_path / "m")
    loaded = load(tmp_path / "m")

    @tg.function
    def found(x):
        rows = tg.vectorized_map(loaded, tg.stack([x, -x]))
        values = [first_and_second(form)(x) for form in (f, loaded)]
        return *values, (rows, tg.stack([loaded(x), loaded(-x)]))

    for size in (4, 7):
        x = tg.constant(np.linspace(0.1, 1.2, size, dtype=np.float32))
        expected = tg.function(first_and_second(DERIVED[name]))(x)
        *forms, (rows, one_by_one) = found(x)
        for values in forms:
            for value, wanted in zip(values, expected, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-5)
        np.testing.assert_allclose(rows, one_by_one, rtol=1e-5)


def test_a_save_does_not_tell_how_its_functions_were_traced(tmp_path):
    """The algebra of nodes puts new ones where the user wrote the old ones."""

    def turned():
        return tg.function(lambda x: -x * x, input_signature=[tg.TensorSpec([None])])

    called, only_saved = turned(), turned()
    called(tg.ones([2]))
    save(called, tmp_path / "called")
    save(only_saved, tmp_path / "saved")
    assert contents(tmp_path / "called") == contents(tmp_path / "saved")


# Lines of source.


def quoted():
    @tg.function(input_signature=[tg.TensorSpec([None])])
    def f(x):
        return tg.exp(x) * -x

    return f


def test_lines_of_source_are_saved_on_demand(tmp_path):
    options = tg.saved_model.SaveOptions(save_debug_info=True)
    save(quoted(), tmp_path / "plain")
    save(quoted(), tmp_path / "m", options=options)
    assert not any(b"tg.exp(x)" in data for data in contents(tmp_path / "plain").values())
    save(load(tmp_path / "m"), tmp_path / "again")  # what was saved so is kept
    assert contents(tmp_path / "again") == contents(tmp_path / "m")
    graph = load(tmp_path / "again").graph()
    assert {node.source.text for node in graph.nodes} == {"return tg.exp(x) * -x"}
    assert "return tg.exp(x) * -x" in graph.summary()
    assert "return tg.exp(x) * -x" in graph.to_html()
    backward = tg.function(tg.grad(lambda x: tg.reduce_sum(load(tmp_path / "m")(x))))
    inner = list(backward.graph(tg.TensorSpec([3])).graphs())
    texts = {n.source.text for g in inner for n in g.nodes if n.source.roles == ("vjp",)}
    assert "return tg.exp(x) * -x" in texts


def test_lines_of_two_files_of_one_name_are_left_out(tmp_path):
    found = []
    for folder, code in (("a", "tg.sin(x)"), ("b", "tg.cos(x)")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "model.py"
        path.write_text(
            f"import tracegraph as tg\ndef f(x):\n    y = 2.0 * x\n    return {code} * y\n"
        )
        names = {}
        exec(compile(path.read_text(), path, "exec"), names)
        found.append(tg.function(names["f"], input_signature=[tg.TensorSpec([])]))
    save(found, tmp_path / "m", options=tg.saved_model.SaveOptions(save_debug_info=True))
    for f in load(tmp_path / "m"):
        assert {node.source.text for node in f.graph().nodes} == {"y = 2.0 * x", ""}


@pytest.mark.parametrize(
    "lines",
    [
        5,
        {"a.py": 5},
        {"a.py": {"1": 5}},
        {"a.py": {"01": "x"}},
        {"a.py": {"-1": "x"}},
        {"a.py": {"\u0661": "x"}},
        {"a.py": {"9" * 20: "x"}},
        {"a.py": {"1": "x\ny"}},
        {"a.py": {"1": ""}},
        {"a.py": {"1": "x" * 2000}},
        {"a.py": {"1": "x\u202e"}},
        {"a.py": {"0": "x"}},
        {"": {"1": "x"}},
        {"../a.py": {"1": "x"}},
    ],
)
def test_strange_lines_are_refused(tmp_path, lines):
    save(quoted(), tmp_path / "m")
    path = tmp_path / "m" / "tracegraph.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    path.write_bytes(manifest.written({**data, "lines": lines}))
    with pytest.raises(LoadError, match=r"tracegraph\.json: \$\.lines"):
        load(tmp_path / "m")


# What things that were loaded say of themselves.


class Held(tg.Module):
    def __init__(self):
        super().__init__()
        self.factor = tg.Variable(3.0)
        self.names = ["a"]

    @tg.function(input_signature=[tg.TensorSpec([None])])
    def __call__(self, x):
        return self.factor * x


def test_what_is_loaded_shows_what_it_holds(tmp_path):
    model = Held()
    save([model, {"n": 1, 2: model}], tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert repr(loaded) == "<loaded list of 2>"
    assert repr(loaded[0]) == "<loaded Held with factor, names, __call__>"
    save({"n": 1, 2: model}, tmp_path / "d")
    assert repr(load(tmp_path / "d")) == "<loaded dict with 'n', 2>"
    save(tg.function(lambda x: x), tmp_path / "f")
    assert repr(load(tmp_path / "f")) == "<loaded tg.function <lambda>(x)>"
    many = tg.Module()
    vars(many).update({f"a{i}": i for i in range(10)})
    save(many, tmp_path / "many")
    assert repr(load(tmp_path / "many")).endswith(" a6, a7, 2 more>")


class Couple(NamedTuple):
    a: Any
    b: Any


ONES = tg.ones([3])


@pytest.mark.parametrize(
    ("saved", "call", "since", "fix"),
    [
        ({"l": [ONES]}, {"l": (ONES,)}, "d['l'] is a tuple in place of a list", "a list as d['l']"),
        ({"l": [ONES]}, {"l": [ONES] * 2}, "d['l'][1] is given", "as many items"),
        ({"l": [ONES]}, {"m": [ONES]}, "d['m'] is given", "as many items"),
        ({"l": [ONES]}, ONES, "d is f32[3] in place of a dict", "pass a dict as d"),
        (Couple(ONES, 1), Couple(ONES, None), "d.b is None in place of 1", "pass 1 as d.b"),
    ],
)
def test_calls_whose_structure_was_not_saved(tmp_path, saved, call, since, fix):
    f = tg.function(lambda d: tg.nest.flatten(d)[0] * 2.0)
    f(saved)
    save(f, tmp_path / "m")
    with pytest.raises(tg.errors.SignatureError) as caught:
        load(tmp_path / "m")(call)
    assert f" was not saved, since {since}: it was saved as\n" in str(caught.value)
    assert caught.value.fix.endswith(fix) and f"  at {__file__}:" in str(caught.value)


@pytest.mark.parametrize(
    ("args", "keywords", "given", "fix"),
    [
        ([ONES], {"rate": 1}, "x: f32[3], training=None, rate=1", r"pass rate=0\.5, or"),
        ([tg.ones([4])], {}, "x: f32[4], training=None, rate=0.5", "declare sizes that vary .*"),
        (
            *([tg.ones([3], tg.float64)], {}, "x: f64[3], training=None, rate=0.5"),
            r"convert what has another type: tg\.cast\(x, tg\.float32\)",
        ),
        ([2.0], {}, "x=2.0, training=None, rate=0.5", "pass tensors where tensors were saved"),
    ],
)
def test_calls_whose_values_were_not_saved(tmp_path, args, keywords, given, fix):
    f = tg.function(lambda x, training=None, rate=0.5: x * rate)
    f(ONES)
    save(f, tmp_path / "m")
    with pytest.raises(tg.errors.SignatureError) as caught:
        load(tmp_path / "m")(*args, **keywords)
    assert f"({given}) was not saved: it was saved as\n" in str(caught.value)
    assert "(x: f32[3], training=None, rate=0.5) -> (f32[3])" in str(caught.value)
    assert re.match(fix, caught.value.fix)


def test_variables_in_place_of_tensors_that_were_saved(tmp_path):
    f = tg.function(lambda p, x: p["a"] * x + p["b"][0])
    f({"a": ONES, "b": [ONES]}, ONES)
    save(f, tmp_path / "m")
    loaded, a, b = load(tmp_path / "m"), tg.Variable(3.0 * ONES), tg.Variable(4.0 * ONES)
    for _ in range(2):
        with tg.GradientTape() as tape:
            y = loaded({"b": [b], "a": a}, ONES)
        assert y.numpy().tolist() == [7.0] * 3
        assert [float(tg.reduce_sum(g)) for g in tape.gradient(y, [a, b])] == [3.0, 3.0]
    a.assign(5.0 * ONES)
    inside = tg.function(lambda v: loaded({"a": a, "b": [v]}, ONES))
    assert loaded({"a": a, "b": [ONES]}, ONES).numpy().tolist() == [6.0] * 3
    assert inside(b).numpy().tolist() == [9.0] * 3
    with pytest.raises(tg.errors.SignatureError, match="was not saved"):
        loaded({"a": tg.Variable(1.0), "b": [b]}, ONES)


def test_containers_say_how_they_are_changed(tmp_path):
    save({"n": 1}, tmp_path / "d")
    save([1], tmp_path / "l")
    loaded, items = load(tmp_path / "d"), load(tmp_path / "l")
    with pytest.raises(
        TypeError, match=r"loaded dict with 'n'(.|\n)*loaded.content\['n'\] = \.\.\."
    ):
        loaded["n"] = 2
    with pytest.raises(TypeError, match=r"fix: .*del loaded.content\[0\]"):
        del items[0]
    with pytest.raises(AttributeError, match=r"no 'append': call loaded.content.append\("):
        items.append(2)
    with pytest.raises(AttributeError, match="was saved without an attribute 'm'"):
        _ = loaded.m
    loaded.content["n"] = 2
    items.content.append(2)
    assert loaded["n"] == loaded.n == 2 and [*items] == [1, 2]


def test_signatures_convert_arrays_as_functions_do(tmp_path):
    double = tg.function(lambda x: 2.0 * x, input_signature=[tg.TensorSpec([None])])
    save(double, tmp_path / "m", signatures=double)
    loaded = load(tmp_path / "m")
    signature = loaded.signatures["serving_default"]
    for given in ([1.0, 2.0], np.array([1.0, 2.0]), np.array([1, 2])):
        assert_near(signature(x=given)["output_0"], loaded(given))
    for given in (tg.constant([1.0], tg.float64), np.array([1j])):
        for call in (signature, loaded):
            with pytest.raises(TypeError):
                call(given)


def test_a_method_of_an_optimizer_that_was_not_saved(tmp_path):
    model = tg.Module()
    model.opt = tg.optimizers.Adam(0.1)
    model.opt.build([tg.Variable(1.0)])
    save(model, tmp_path / "m")
    for name in ("apply_gradients", "minimize"):
        with pytest.raises(AttributeError, match=r"new tg\.optimizers\.Adam .*tg\.train\.Check"):
            getattr(load(tmp_path / "m").opt, name)


def test_a_trace_that_was_made_for_an_empty_batch_serves_it_after_loading(tmp_path):
    def h(x):
        return tg.constant([7.0]) if x.shape.is_fully_defined() else tg.reduce_sum(x, keepdims=True)

    for body in (h, lambda x: x[1:], lambda x: x[1:-1]):
        f = tg.function(body, input_signature=[tg.TensorSpec([None])])
        expected = [f(tg.zeros([size])).numpy().tolist() for size in (3, 0)]
        save(f, tmp_path / "m")
        loaded = load(tmp_path / "m")
        assert [loaded(tg.zeros([size])).numpy().tolist() for size in (3, 0)] == expected


@pytest.mark.parametrize(
    "body", [lambda x: x[1:], lambda x: tg.roll(x, 1, 0), tg.math.is_non_decreasing]
)
def test_a_size_that_is_declared_as_one_that_may_be_0_may_be_so_after_loading(tmp_path, body):
    f = tg.function(body, input_signature=[tg.TensorSpec(["_n"])])
    f(tg.zeros([3]))
    save(f, tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded(tg.zeros([0])).numpy().tolist() == body(tg.zeros([0])).numpy().tolist()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("aggregation", list(tg.VariableAggregation))
@pytest.mark.parametrize("synchronization", list(tg.VariableSynchronization))
def test_synchronization_and_aggregation_survive(synchronization, aggregation, tmp_path):
    given = {"synchronization": synchronization, "aggregation": aggregation}
    module = tg.Module()
    module.v = tg.Variable([1.0, 2.0], **given)
    tg.saved_model.save(module, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    tg.saved_model.save(loaded, tmp_path / "again")
    copies = [loaded, tg.saved_model.load(tmp_path / "again"), pickle.loads(pickle.dumps(module))]
    for other in copies:
        assert other.v.synchronization is synchronization
        assert other.v.aggregation is aggregation
        assert other.v.numpy().tolist() == [1.0, 2.0]
    (row,) = damage.manifest(tmp_path / "m")["variables"]
    assert ("aggregation" in row) == (aggregation is not tg.VariableAggregation.NONE)
    row["aggregation"] = "median"
    content = damage.manifest(tmp_path / "m")
    content["variables"] = [row]
    damage.set_manifest(tmp_path / "m", content)
    with pytest.raises(tg.errors.LoadError, match="'median', and it must be one of"):
        tg.saved_model.load(tmp_path / "m")


def test_a_layer_that_is_saved_without_a_function_is_told(tmp_path):
    layer = tg.layers.Dense(2)
    layer(tg.ones([1, 3]))
    with pytest.warns(UserWarning, match="the Dense was saved without a function, so it cannot be"):
        tg.saved_model.save(layer, tmp_path / "values")
    layer.serve = tg.function(layer.__call__, input_signature=[tg.TensorSpec([None, 3])])
    tg.saved_model.save(layer, tmp_path / "served")
    loaded = tg.saved_model.load(tmp_path / "served")
    np.testing.assert_array_equal(loaded.serve(tg.ones([2, 3])), layer(tg.ones([2, 3])))
