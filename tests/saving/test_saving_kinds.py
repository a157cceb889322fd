"""What is saved with a model, what is left out with a word, and what is refused before it is
written."""

import collections
import copy
import json
import sys

import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near
from tests.saving.test_saving import contents, run_python
from tracegraph.archive import directory
from tracegraph.passes import registry
from tracegraph.text.printer import Names

save, load = tg.saved_model.save, tg.saved_model.load
ONE = tg.TensorSpec([None])


@pytest.fixture
def again(tmp_path):
    """What is loaded of an object that is saved, and saved again as it was."""

    def round_trip(value, **given):
        save(value, tmp_path / "m", **given)
        loaded = load(tmp_path / "m")
        save(loaded, tmp_path / "n")
        assert contents(tmp_path / "n") == contents(tmp_path / "m")
        return loaded

    return round_trip


# Values.


SCALARS = [
    *(np.float32(0.1), np.float64("nan"), np.int64(-3), np.uint8(255), np.bool_(True)),
    *(np.complex64(1 - 2j), np.float16(np.inf), tg.bfloat16.numpy_dtype.type(1.5)),
]


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_numpy_scalars_stay_what_they_are(again, value):
    model = tg.Module()
    model.value, model.rows = value, {"inside": (value,), "zero": np.array(value)}
    loaded = again(model)
    for found in (loaded.value, loaded.rows["inside"][0]):
        assert type(found) is type(value) and found.tobytes() == value.tobytes()
    assert type(loaded.rows["zero"]) is np.ndarray


def test_keys_of_dicts(again):
    key = collections.namedtuple("Key", ["x"])
    model = tg.Module()
    model.rows = {np.int64(1): "one", np.float32(2.5): "two", key(np.int8(3)): "three", 4: "four"}
    loaded = again(model)
    assert loaded.rows == model.rows
    assert list(map(type, loaded.rows))[:2] == [np.int64, np.float32]


def test_what_stands_under_the_key_none(again):
    model = tg.Module()
    model.rows = {None: tg.Variable(2.0), "of it": {None: [3, np.ones(2)]}}
    loaded = again(model)
    assert loaded.rows[None] is loaded.variables[0] and loaded.rows[None].numpy() == 2
    (number, array), *_ = loaded.rows["of it"].values()
    assert number == 3 and (array == 1).all()


# What is not data leaves its place in a container.


def test_what_stands_beside_something_that_is_no_data(again):
    model = tg.Module()
    model.layers = [tg.layers.Dense(2), tg.nn.relu, tg.layers.Dense(1)]
    model.given = {"units": 3, "act": tg.nn.relu, "scale": tg.Variable(2.0), len: [4, (len,)]}
    for layer, size in zip(model.layers[::2], (3, 2), strict=True):
        layer(tg.ones([1, size]))
    loaded = again(model)
    assert len(loaded.variables) == len(model.variables) == 5
    assert loaded.layers[2].kernel.shape == (2, 1) and loaded.given["units"] == 3
    assert loaded.omitted == {
        "layers/1": "a function",
        "given/act": "a function",
        f"given/{list(loaded.given)[3]}/1/0": "a builtin_function_or_method",
    }
    assert repr(loaded.layers[1]) == "<a function, which was not saved>"
    with pytest.raises(TypeError, match="this was a function, which no file can hold"):
        loaded.layers[1](1.0)
    with pytest.raises(AttributeError, match="this was a function"):
        loaded.layers[1].name  # noqa: B018


def test_containers_that_are_saved_themselves(again):
    loaded = again({"act": tg.nn.relu, "v": tg.Variable(2.0)})
    assert loaded.omitted == {"act": "a function"} and float(loaded["v"]) == 2.0
    assert again([len, 1]).omitted == {"0": "a builtin_function_or_method"}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.ma.array([1.0, 2.0], mask=[False, True]), "a masked array of float64"),
        (np.array(["a"]), "an array of str32"),
        (np.array(["2020-01-01"], "M8[D]"), "an array of datetime64[D]"),
        (np.array([(1, 2.0)], [("a", int), ("b", float)]), "an array of void128"),
        (np.array([len]), "an array of object"),
        (np.datetime64("2020-01-01"), "a datetime64"),
    ],
)
def test_arrays_that_are_no_tensors(again, value, what):
    model = tg.Module()
    model.value, model.rows = value, [1, value]
    loaded = again(model)
    assert loaded.omitted == {"value": what, "rows/1": what} and loaded.rows[0] == 1


def test_what_a_loaded_module_gets_back_is_not_missing(tmp_path):
    model = tg.Module()
    model.size = len
    save(model, tmp_path / "m")
    loaded = load(tmp_path / "m")
    loaded.size = 3
    assert loaded.omitted == {}


# What would not be loaded is not written.


def too_many_variables():
    model = tg.Module()
    model.rows = [tg.Variable(0.0) for _ in range(9)]
    return model


def too_many_records():
    return [collections.namedtuple(f"P{i}", ["x"])(i) for i in range(9)]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (too_many_variables, r"\$.variables: there are 9 variables, more than 8"),
        (too_many_records, "there are more than 8 kinds of namedtuples"),
    ],
)
def test_more_than_a_reader_takes(tmp_path, monkeypatch, make, match):
    for name in ("MOST_ROWS", "MOST_RECORDS"):
        monkeypatch.setattr(f"tracegraph.archive.limits.{name}", 8)
    with pytest.raises(ValueError, match=match):
        save(make(), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_time_goes_with_the_number_of_variables():
    """Every name of a weight is looked up once or twice, not compared with all others."""

    class Counted(dict):
        count = 0

        def __contains__(self, key):
            Counted.count += 1
            return super().__contains__(key)

    names = Names(())
    names._next = Counted()
    found = [names.new(name) for _ in range(300) for name in ("a", "b")]
    assert len(set(found)) == 600 and found[:4] == ["a", "b", "a.1", "b.1"]
    assert Counted.count <= 3 * 600


# Functions.


class Static(tg.Module):
    @staticmethod
    @tg.function(input_signature=[ONE])
    def double(x):
        return x * 2.0

    @classmethod
    @tg.function(input_signature=[ONE])
    def named(cls, x):
        return x * float(len(cls.__name__))


def test_static_methods_and_those_of_the_class(again):
    loaded = again(Static())
    assert_near(loaded.double([1.0]), [2.0])
    assert_near(loaded.named([1.0]), [6.0])


ORDERED = """
import sys
import tracegraph as tg

@tg.function
def f(x, k):
    return x * float(k[0])

for k in eval(sys.argv[2]):
    f(tg.ones([2]), k)
tg.saved_model.save(f, sys.argv[1])
"""


def test_traces_whose_signatures_look_the_same(tmp_path, monkeypatch):
    """k=(tensor,) and k=[tensor] are told apart by what is written of them."""
    run_python("-c", ORDERED, str(tmp_path / "a"), "[(1,), [1]]")
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path / "b"), "[[1], (1,)]"])
    exec(compile(ORDERED, "<string>", "exec"), {"__name__": "__main__"})
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    entry = json.loads((tmp_path / "a" / "tracegraph.json").read_text())["functions"][0]
    assert len(entry["traces"]) == 2


# Custom gradients that were left out.


@tg.custom_gradient
def tripled(x):
    return x * x, lambda g: 3.0 * g


@pytest.fixture
def without_gradients(tmp_path):
    f = tg.function(lambda x: (tripled(x), 5.0 * x), input_signature=[ONE])
    options = tg.saved_model.SaveOptions(experimental_custom_gradients=False)
    save(f, tmp_path / "m", options=options)
    return load(tmp_path / "m")


@pytest.mark.parametrize("is_nested", [False, True])
def test_the_error_comes_when_the_gradient_is_asked_for(without_gradients, is_nested):
    """Not when the function is called, and only for the outputs that have none."""
    loaded = tg.function(without_gradients) if is_nested else without_gradients
    x = tg.Variable([1.0, 2.0])
    with tg.GradientTape(persistent=True) as tape:
        y, z = loaded(x)
        stopped = tg.reduce_sum(tg.stop_gradient(y) * x)
    assert_near(y, [1.0, 4.0])
    assert_near(tape.gradient(stopped, x), [1.0, 4.0])
    assert_near(tape.gradient(z, x), [5.0, 5.0])
    with pytest.raises(LookupError, match="was left out when it was saved"):
        tape.gradient(y, x)
    derive = tg.function(lambda x: tg.grad(lambda x: tg.reduce_sum(loaded(x)[1]))(x))
    assert_near(derive(tg.constant([1.0])), [5.0])


# Variables that no attribute holds, and copies.

outside = tg.Variable([2.0], name="outside")


class Capturing(tg.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.own = tg.Variable([3.0], name="own")
        self.inner = inner

    @tg.function(input_signature=[ONE])
    def __call__(self, x):
        return x * outside * self.own


def names(variables):
    return [v.name for v in variables]


def test_variables_that_no_attribute_holds(again, tmp_path):
    f = tg.function(lambda x: x * outside, input_signature=[ONE])
    frozen = tg.Variable([1.0], trainable=False, name="frozen")
    g = tg.function(lambda x: x * frozen * outside, input_signature=[ONE])
    assert names(again(f).variables) == ["outside:0"]
    loaded = again({"f": f, "g": [g]}, signatures=f)
    assert names(loaded.variables) == ["outside:0", "frozen:0"]
    assert names(loaded.trainable_variables) == ["outside:0"]
    loaded = again(Capturing(Capturing()))
    assert names(loaded.variables) == ["own:0", "outside:0", "own:0"]
    assert names(loaded.inner.variables) == ["own:0", "outside:0"]
    path = tg.train.Checkpoint(model=loaded).write(tmp_path / "checkpoint")
    loaded.variables[1].assign([7.0])
    tg.train.Checkpoint(model=loaded).read(path).assert_consumed()
    assert_near(loaded.variables[1], [2.0])
    assert names(again(tg.Module(), signatures=f).variables) == ["outside:0"]


def test_hidden_variables_stay_hidden(again):
    """What an attribute holds that is not listed is not listed after loading."""
    model = tg.Module()
    model.optimizer = tg.optimizers.Adam(0.1)
    model.v = tg.Variable([1.0], name="v")
    model.step = tg.function(
        lambda g: model.optimizer.apply_gradients([(g, model.v)]), input_signature=[ONE]
    )
    model.step([1.0])
    assert names(again(model).variables) == names(model.variables)


def test_a_copy_has_functions_of_its_own(tmp_path):
    save(Capturing(Capturing()), tmp_path / "m", signatures={"s": Capturing().__call__})
    loaded = load(tmp_path / "m")
    other = copy.deepcopy(loaded)
    assert names(other.variables) == names(loaded.variables)
    assert not {id(v) for v in other.variables} & {id(v) for v in loaded.variables}
    for variable in other.variables:
        variable.assign([10.0])
    assert_near(loaded([1.0]), [6.0])
    assert_near(loaded.signatures["s"](x=[1.0])["output_0"], [6.0])
    for f in (other, other.inner, lambda x: other.signatures["s"](x=x)["output_0"]):
        x = tg.constant([1.0])
        assert_near(tg.nest.flatten(f(x))[0], [100.0])
    assert_near(copy.deepcopy(loaded.inner)([2.0]), [12.0])
    save(other, tmp_path / "n")
    assert_near(load(tmp_path / "n")([1.0]), [100.0])


def test_a_copy_with_variables_of_open_size(tmp_path):
    model = tg.Module()
    model.v = tg.Variable([1.0, 2.0], shape=[None], name="v")
    model.f = tg.function(lambda x: model.v * x, input_signature=[tg.TensorSpec([])])
    save(model, tmp_path / "m", signatures={"s": model.f})
    loaded = load(tmp_path / "m")
    assert_near(loaded.signatures["s"](x=tg.constant(1.0))["output_0"], [1.0, 2.0])
    other = copy.deepcopy(loaded)
    other.v.assign([1.0, 2.0, 3.0])
    two = tg.Module()
    two.one, two.other = loaded, other
    save(two, tmp_path / "n")  # the sizes are two, and those of their own graphs
    for both in (two, load(tmp_path / "n")):
        found = tg.function(lambda x, both=both: tg.concat([both.one.f(x), both.other.f(x)], 0))
        assert_near(found(2.0), [2.0, 4.0, 2.0, 4.0, 6.0])


def test_an_assignment_of_an_open_size(again):
    """A Variable of a known shape keeps it: every call checks, before saving and after loading."""
    model = tg.Module()
    model.v = tg.Variable([1.0, 2.0])
    model.f = tg.function(lambda x: model.v.assign(x), input_signature=[ONE])
    for module in (model, again(model)):
        module.f([3.0, 4.0])
        with pytest.raises(tg.errors.ShapeError, match="test_saving_kinds"):
            module.f([1.0, 2.0, 3.0])
        assert_near(module.v, [3.0, 4.0])


# Gradients that were registered for ops.

IMAGE = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
REGISTERED = """
import sys
import numpy as np
import tracegraph as tg

x = tg.constant(np.arange(12, dtype=np.float32).reshape(2, 3, 2))
f = tg.saved_model.load(sys.argv[1])

def slope(x, order):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(f(x) if order == 1 else slope(x, order - 1))
    return tape.gradient(y, x)

found = [slope(x, order).numpy() for order in (1, 2, 3)]
found.append(tg.jvp(f, (x,), (x,))[1].numpy())
np.save(sys.argv[2], found)
tg.saved_model.save(f, sys.argv[3])
"""


@pytest.fixture
def register(monkeypatch):
    """`tg.RegisterGradient`, undone after the test."""
    for name in ("_registered", "_places"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    return tg.RegisterGradient


def contrasted(**given):
    image = tg.TensorSpec([None, 3, 2])
    return tg.function(lambda x: tg.image.adjust_contrast(x, 2.0), input_signature=[image], **given)


def test_registered_gradients_go_along(register, tmp_path):
    """In a process that has no rule, to every order and in both modes."""
    register("adjust_contrast")(lambda op, g: (g * op.inputs[0] ** 3.0, None))
    f = contrasted()
    save(f, tmp_path / "m")
    run_python("-c", REGISTERED, *(str(tmp_path / name) for name in ("m", "found.npy", "n")))
    found = np.load(tmp_path / "found.npy")
    powers = [IMAGE**3, 3 * IMAGE**2, 6 * IMAGE, IMAGE**4]
    for value, expected in zip(found, powers, strict=True):
        assert_near(value, expected, 1e-4)
    assert contents(tmp_path / "n") == contents(tmp_path / "m")
    save(load(tmp_path / "m"), tmp_path / "n")  # where the rule is still there
    assert contents(tmp_path / "n") == contents(tmp_path / "m")


def test_an_op_that_is_declared_to_have_no_gradient(register, tmp_path):
    tg.no_gradient("adjust_contrast")
    save(contrasted(), tmp_path / "m")
    del registry._registered["adjust_contrast"]
    x = tg.constant(IMAGE)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = load(tmp_path / "m")(x) + x
    assert_near(tape.gradient(y, x), np.ones_like(IMAGE))


@pytest.mark.parametrize(
    "rule",
    [lambda op, g: (float(tg.reduce_sum(g)) * g, None), lambda op, g: (g * outside, None)],
    ids=["a number", "a variable"],
)
def test_a_registered_gradient_that_no_graph_holds(register, tmp_path, rule):
    register("adjust_contrast")(rule)
    with pytest.raises(ValueError, match="an op whose registered gradient cannot be saved: "):
        save(contrasted(), tmp_path / "m")
    options = tg.saved_model.SaveOptions(experimental_custom_gradients=False)
    save(contrasted(), tmp_path / "m", options=options)
    del registry._registered["adjust_contrast"]
    loaded, x = load(tmp_path / "m"), tg.Variable(IMAGE)
    with tg.GradientTape() as tape:
        y = loaded(x)
    with pytest.raises(LookupError, match="no gradient rule is registered"):
        tape.gradient(y, x)


# Errors are those that users of TensorFlow catch.


def nested(count):
    value = []
    for _ in range(count):
        value = [value]
    return value


def cyclic():
    value = [1]
    value.append(value)
    return value


def chain():
    module = root = tg.Module()
    for _ in range(2000):
        module.inner = tg.Module()
        module = module.inner
    return root


@pytest.mark.parametrize("make", [lambda: nested(2000), lambda: nested(150), cyclic, chain])
def test_what_is_nested_too_deep(tmp_path, make):
    with pytest.raises(ValueError, match="is nested"):
        save([make()] if make is not chain else make(), tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", [TypeError, ValueError, tg.errors.TraceError])
def test_calls_that_were_not_saved(tmp_path, kind):
    f, declared = tg.function(lambda x: x), tg.function(lambda x: x, input_signature=[ONE])
    g = tg.function(lambda x: tg.numpy_function(np.sin, [x], [tg.TensorSpec([2])]))
    f(tg.ones([2]))
    g(tg.ones([2]))
    save({"f": f, "declared": declared, "untraced": tg.function(lambda x: x)}, tmp_path / "m")
    loaded = load(tmp_path / "m")
    for call, match in (
        (lambda: loaded["f"](tg.ones([3])), "was not saved: it was saved as"),
        (lambda: loaded["f"](1, 2), "do not fit the signature"),
        (lambda: loaded["declared"](tg.ones([1, 2])), "do not fit the input_signature"),
        (lambda: loaded["untraced"](1), "it was never traced before saving"),
        (lambda: save(g, tmp_path / "n"), "calls the Python function sin"),
    ):
        with pytest.raises(kind, match=match):
            call()


@pytest.mark.parametrize(
    "given",
    [
        {"namespace_whitelist": ["Mine"], "extra_tags": ["serve"]},
        {"experimental_io_device": "/job:localhost", "experimental_image_format": True},
        {"function_aliases": {}, "experimental_variable_policy": None},
    ],
)
def test_options_of_tensorflow_that_change_nothing(again, given):
    assert_near(again([1.0], options=tg.saved_model.SaveOptions(**given))[0], 1.0)


@pytest.mark.parametrize(
    ("kind", "name", "value", "match"),
    [
        ("Save", "function_aliases", {"a": len}, "functions are found where they stand"),
        ("Save", "experimental_debug_stripper", True, "lines are kept apart"),
        ("Save", "experimental_variable_policy", "expand_distributed_variables", "on one device"),
        ("Save", "other", None, "there is no such option"),
        ("Load", "allow_partial_checkpoint", True, "a model holds all its values"),
        ("Load", "experimental_skip_checkpoint", True, "read when they are used first"),
    ],
)
def test_options_of_tensorflow_that_are_not_here(kind, name, value, match):
    with pytest.raises(ValueError, match=f"{kind}Options: {name}=.*{match}") as caught:
        getattr(tg.saved_model, f"{kind}Options")(**{name: value})
    assert isinstance(caught.value, TypeError) and "test_saving_kinds.py" in str(caught.value)
    assert tg.saved_model.LoadOptions(allow_partial_checkpoint=False, verify=True).verify


def test_shapes_that_are_too_long_to_be_read(tmp_path):
    def f(*parts):
        whole = tg.concat(parts, 0)
        return whole[:, None] * whole[None, :]

    specs = [tg.TensorSpec([f"n{i}"]) for i in range(23)]
    with pytest.raises(ValueError, match=r"it could not be loaded: the shape .* too long"):
        save(tg.function(f, input_signature=specs), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_steps_while_files_are_written_leave_the_snapshot(tmp_path, monkeypatch):
    """A save holds the values and does not copy them: a step may not overwrite what is held."""
    model = tg.Module()
    model.v = tg.Variable(np.zeros(1000, np.float32))
    step = tg.function(lambda: model.v.assign_add(tg.ones([1000])))
    step()
    add_arrays = directory.Writer.add_arrays

    def added_after_steps(*args):
        step()
        return add_arrays(*args)

    monkeypatch.setattr(directory.Writer, "add_arrays", added_after_steps)
    save(model, tmp_path / "m")
    assert_near(load(tmp_path / "m").v, np.ones(1000))
    assert float(model.v[0]) > 1.0


# Dicts of Variables as arguments.


class Line(tg.Module):
    def __init__(self):
        super().__init__()
        self.rows = {"w": tg.Variable([1.0, 2.0]), "b": tg.Variable(3.0)}

    @tg.function
    def at(self, rows, x):
        return rows["w"] * x + rows["b"]

    @tg.function
    def step(self, rows):
        for name, variable in rows.items():
            variable.assign_add(variable if name == "w" else 1.0)


@pytest.fixture
def line(tmp_path):
    model, x = Line(), tg.constant(2.0)
    model.at(model.rows, x)
    model.step(model.rows)
    tg.saved_model.save(model, tmp_path / "line")
    return tg.saved_model.load(tmp_path / "line")


def test_a_function_of_a_dict_of_variables_is_saved(line):
    x = tg.constant(2.0)
    assert line.at(line.rows, x).numpy().tolist() == [8.0, 12.0]
    line.step(line.rows)
    assert line.rows["w"].numpy().tolist() == [4.0, 8.0] and line.rows["b"].numpy() == 5.0
    others = {"b": tg.Variable(1.0), "w": tg.Variable([0.0, 1.0])}  # in another order
    assert line.at(others, x).numpy().tolist() == [1.0, 3.0]
    line.step(others)
    assert others["w"].numpy().tolist() == [0.0, 2.0] and others["b"].numpy() == 2.0
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(line.at(line.rows, x))
    gradients = tape.gradient(loss, line.rows)
    assert [*gradients] == ["w", "b"]
    assert gradients["w"].numpy().tolist() == [2.0, 2.0] and gradients["b"].numpy() == 2.0


def test_tensors_in_place_of_a_dict_of_variables_are_told_by_their_keys(line):
    rows = {"b": tg.constant(3.0), "w": line.rows["w"]}
    with pytest.raises(TypeError) as caught:
        line.at(rows, tg.constant(2.0))
    assert str(caught.value).endswith(
        "fix: pass Variables where Variables were saved: rows['b'], a tg.Variable of f32[]"
    )
