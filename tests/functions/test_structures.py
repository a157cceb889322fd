"""Structures that are taken apart and built again: order of keys, classes, and who sees which."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import types
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracegraph as tg
from tracegraph import nest

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced")


class Params(dict):
    """A dict with a constructor of its own and an attribute."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __eq__(self, other):
        return dict.__eq__(self, other) and self.name == other.name

    __hash__ = None


class Fields(dict):
    """A dict whose items are its attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Settings(collections.UserDict):
    """A UserDict with a constructor of its own and an attribute."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class Frozen(collections.abc.Mapping):
    """A read-only Mapping, which is no dict."""

    def __init__(self, items: Any) -> None:
        self._items = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Any:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Rows(list):
    pass


class Point(NamedTuple):
    y: Any
    x: Any


@dataclasses.dataclass
class Record:
    second: Any
    first: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def params(items: Any) -> Params:
    made = Params("model")
    made.update(items)
    return made


def defaults(items: Any) -> collections.defaultdict:
    return collections.defaultdict(list, items)


def settings_of(items: Any) -> Settings:
    made = Settings("model")
    made.update(items)
    return made


#: What makes a dict of pairs, for each kind of dict.
DICTS = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "default": defaults,
    "counter": lambda items: collections.Counter(dict(items)),
    "own_constructor": params,
    "attributes": Fields,
    "read_only": lambda items: types.MappingProxyType(dict(items)),
    "user_dict": lambda items: collections.UserDict(items),
    "own_user_dict": settings_of,
    "own_mapping": Frozen,
}
#: Orders of keys that are not sorted, or have none.
KEYS = {
    "strings": ("w", "b", "k"),
    "mixed": ("w", 1, (2, "a")),
    "numbers": (3, 1.5, 2),
    "enums": (Colour.RED, None, Colour.BLUE),
}
VALUES = (2.0, 3.0, 5.0)


def order_of(value: Any) -> list[Any]:
    return list(value)


# ---------------------------------------------------------------- entry points

X = np.asarray([1.0, 2.0], np.float32)


def weighted(p: Any) -> Any:
    """A sum with another weight for each value, found by its key."""
    total = tg.zeros([])
    for weight, key in enumerate(sorted(p, key=repr), start=1):
        total = total + weight * tg.reduce_sum(p[key] * p[key])
    return total


def gradient(p):
    with tg.GradientTape() as tape:
        tape.watch(p)
        y = weighted(p)
    return tape.gradient(y, p)


def gradient_in_function(p):
    return tg.function(gradient)(p)


def jacobian_of_tape(p):
    with tg.GradientTape() as tape:
        tape.watch(p)
        y = weighted(p)
    return tape.jacobian(y, p)


def forward(p):
    with tg.autodiff.ForwardAccumulator(p, nest.map_structure(tg.ones_like, p)) as accumulator:
        y = nest.map_structure(lambda x: x * x, p)
    return accumulator.jvp(y)


def custom(p):
    @tg.custom_gradient
    def f(q):
        assert order_of(q) == order_of(p)

        def backward(*upstream):
            return nest.pack_sequence_as(q, upstream)

        return nest.map_structure(lambda x: x * x, q), backward

    return f(p)


def recomputed(p):
    return tg.recompute_grad(lambda q: nest.map_structure(lambda x: x * x, q))(p)


def keywords(p):
    names = {f"k{place}": x for place, x in enumerate(reversed(list(p.values())))}
    reversed_names = dict(reversed(names.items()))
    f = tg.function(lambda **named: named)
    assert order_of(f(**reversed_names)) == order_of(reversed_names)
    assert order_of(f(**names)) == order_of(names)
    return p


def linearized(p):
    y, linear = tg.linearize(lambda q: nest.map_structure(tg.sin, q), p)
    assert order_of(y) == order_of(p)
    return linear(p)


#: What is given a dict of tensors and returns one with its keys.
ENTRIES = {
    "flatten_and_pack": lambda p: nest.pack_sequence_as(p, nest.flatten(p)),
    "map_structure": lambda p: nest.map_structure(lambda x: x, p),
    "gradient": gradient,
    "gradient_in_function": gradient_in_function,
    "tape_jacobian": jacobian_of_tape,
    "accumulator": forward,
    "custom_gradient": custom,
    "recompute_grad": recomputed,
    "function": tg.function(lambda p: p),
    "comprehension": tg.function(lambda p: nest.map_structure(lambda x: x + 1.0, p)),
    "kwargs": keywords,
    "grad": lambda p: tg.grad(weighted)(p),
    "value_and_grad": lambda p: tg.value_and_grad(weighted)(p)[1],
    "jacobian": lambda p: tg.jacobian(weighted)(p),
    "jacobian_of_results": lambda p: tg.jacobian(lambda x: nest.map_structure(lambda y: y * x, p))(
        tg.constant(X)
    ),
    "hessian": lambda p: tg.hessian(weighted)(p),
    "hvp": lambda p: tg.hvp(weighted, p, p),
    "jvp": lambda p: tg.jvp(weighted_parts, (p,), (p,))[1],
    "vjp": lambda p: tg.vjp(weighted, p)[1](1.0)[0],
    "linearize": linearized,
    "vectorized_map": lambda p: tg.vectorized_map(lambda row: row, p),
    "vmap": lambda p: tg.vmap(lambda row: row)(p),
    "pfor": lambda p: tg.pfor(lambda i: nest.map_structure(lambda x: x[i], p), 2),
    "concrete": lambda p: tg.function(lambda q: q).get_concrete_function(p)(p),
    "as_jax": lambda p: tg.function(lambda q: q).as_jax()(arrays(p)),
    "nested_function": tg.function(lambda p: tg.function(lambda q: q)(p)),
}


def weighted_parts(p):
    return nest.map_structure(lambda x: x * x, p)


def arrays(p):
    return nest.map_structure(lambda x: jax.numpy.asarray(np.asarray(x)), p)


#: Attributes have names; one kind of keys is enough for what is built from a dict.
ONLY_KEYS = {
    "attributes": "strings",
    **dict.fromkeys(("read_only", "user_dict", "own_user_dict", "own_mapping"), "mixed"),
}
#: Every kind of dict with every kind of keys that it takes.
CASES = {
    f"{name}-{keys}": (make, KEYS[keys])
    for name, make in DICTS.items()
    for keys in KEYS
    if keys == ONLY_KEYS.get(name, keys)
}


@pytest.mark.sampled(32)
@pytest.mark.parametrize(("make", "keys"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_dict_comes_back_as_it_was(entry, make, keys):
    given = make([(key, tg.constant(X * value)) for key, value in zip(keys, VALUES)])
    for p in (given, make(list(reversed([*given.items()])))):
        found = entry(p)
        assert type(found) is type(p) and order_of(found) == order_of(p)
        assert [*map(type, found)] == [*map(type, p)]
        if make in (params, settings_of):
            assert found.name == "model"
        if make is defaults:
            assert found.default_factory is list
        if make is Fields:
            assert all(getattr(found, key) is found[key] for key in keys)


def test_gradients_zip_with_values():
    """What TensorFlow's guides write: the values of a dict beside those of its gradient."""
    p = {"w": tg.Variable([1.0, 2.0]), "b": tg.Variable([10.0, 20.0])}

    @tg.function
    def step():
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(3.0 * p["w"] + 5.0 * p["b"])
        for v, g in zip(p.values(), tape.gradient(loss, p).values(), strict=True):
            v.assign_sub(g)

    step()
    np.testing.assert_array_equal(p["w"].numpy(), [-2.0, -1.0])
    np.testing.assert_array_equal(p["b"].numpy(), [5.0, 15.0])


def test_tangents_belong_to_primals_by_key():
    p = {"w": tg.constant(2.0), "b": tg.constant(3.0)}
    tangents = {"b": tg.constant(1.0), "w": tg.constant(0.0)}
    with tg.autodiff.ForwardAccumulator(p, tangents) as accumulator:
        y = {"z": p["w"] * p["b"], "a": p["b"]}
    found = accumulator.jvp(y)
    assert list(found) == ["z", "a"]
    assert (float(found["z"]), float(found["a"])) == (2.0, 1.0)


def test_each_order_sees_its_own():
    """The order in which a body goes through its argument is part of what it computes."""

    @tg.function
    def first_less_rest(p):
        first, *rest = p.values()
        return {"kept": first - tg.add_n(rest), **p}

    a, b = tg.constant(5.0), tg.constant(3.0)
    for _ in range(3):  # traced, then by the second path, then by the shortest
        one, other = first_less_rest({"a": a, "b": b}), first_less_rest({"b": b, "a": a})
        assert (one["kept"].numpy(), other["kept"].numpy()) == (2.0, -2.0)
        assert (order_of(one), order_of(other)) == (["kept", "a", "b"], ["kept", "b", "a"])
        a, b = tg.identity(a), tg.identity(b)
        np.testing.assert_array_equal([a.numpy(), b.numpy()], [5.0, 3.0])
    assert first_less_rest.experimental_get_tracing_count() == 2


@pytest.mark.parametrize("given", [(1, True), (1, 1.0), (2.0, 2), ("a", np.str_("a"))])
def test_equal_keys_of_other_types_are_other_keys(given):
    f = tg.function(lambda p: p)
    for _ in range(3):
        for key in given:
            assert [*map(type, f({key: made(2.0)}))] == [type(key)]


def made(value):
    """A tensor that has a buffer, as results of functions do."""
    return tg.function(lambda: tg.ones([]) * value)()


def test_names_of_arguments_are_not_mixed_up_after_one_tensor_was_given_twice():
    f = tg.function(lambda b, a: b - a)
    x = made(1.0)
    for _ in range(3):
        assert f(b=x, a=x).numpy() == 0.0
    assert f(b=made(5.0), a=made(3.0)).numpy() == 2.0
    assert f(a=made(3.0), b=made(5.0)).numpy() == 2.0


def test_arguments_and_keywords_are_not_mixed_up():
    f = tg.function(lambda x, k=None: x[0] if k is None else x[0] - k["k"])
    g = tg.function(lambda *args, **kwargs: len(args) + 10 * len(kwargs) + 0.0 * tg.ones([]))
    x = made(1.0)
    for _ in range(3):
        assert g((x,), {"k": x}).numpy() == 2.0 and g(x, k=x).numpy() == 11.0
        assert f((x,), {"k": x}).numpy() == 0.0 and f((x,)).numpy() == 1.0


def test_other_containers_come_back_as_themselves():
    entry = tg.function(lambda p: p)
    x = made(1.0)
    rows = Rows([x, (x, None)])
    rows.note = "kept"
    for value in (rows, Point(x, {"b": x, "a": Record(x, [])}), Record(Point(x, x), Rows())):
        for _ in range(3):
            found = entry(value)
            assert nest_shape(found) == nest_shape(value)
    assert entry(rows).note == "kept"


def nest_shape(value):
    """A structure by types, names and order."""
    if isinstance(value, dict):
        return type(value), [(key, nest_shape(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [*map(nest_shape, value)]
    if dataclasses.is_dataclass(value):
        return type(value), [(k, nest_shape(x)) for k, x in vars(value).items()]
    return None if value is None else "leaf"


@pytest.mark.parametrize("kind", [list, collections.deque, collections.UserList])
def test_leaves_of_sequences_of_any_class_have_names(kind):
    f = tg.function(lambda q: q[0] - q[1])
    concrete = f.get_concrete_function(kind([made(5.0), made(2.0)]))
    assert [x.name for x in concrete.graph.inputs] == ["q_0", "q_1"]
    assert float(concrete(q_0=made(7.0), q_1=made(2.0))) == 5.0


def test_a_dict_whose_attributes_are_its_items_is_an_argument():
    """Its look-ups of attributes that are none raise a KeyError."""

    class Config(dict):
        __getattr__ = dict.__getitem__

    f = tg.function(lambda p, scale=1.0: p.z * scale - p["a"])
    assert float(f(Config(z=made(5.0), a=made(2.0)))) == 3.0
    assert float(f(Config(z=made(5.0), a=made(2.0)), scale=made(2.0))) == 8.0
    assert float(f(Config(a=made(1.0), z=made(2.0)))) == 1.0


def test_an_attribute_that_is_an_item_follows_the_item():
    class Output(collections.OrderedDict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            object.__setattr__(self, key, value)

    p = Output()
    p["z"], p["a"] = made(2.0), made(3.0)
    found = tg.function(lambda q: nest.map_structure(lambda x: x + 1.0, q))(p)
    assert found.z is found["z"] and found.a.numpy() == 4.0 and order_of(found) == ["z", "a"]


def test_structures_match_by_key():
    one = {"b": 1, "a": [2, None]}
    other = collections.OrderedDict(a=Rows([20, None]), b=10)
    nest.assert_same_structure(one, other)
    found = nest.map_structure(lambda x, y: x if x is None else x + y, one, other)
    assert found == {"b": 11, "a": [22, None]} and order_of(found) == ["b", "a"]
    with pytest.raises(ValueError, match="the structures differ"):
        nest.assert_same_structure(one, {"b": 1, "c": [2, None]})


def test_what_jax_knows_as_a_tree_is_opened():
    class Pair:
        def __init__(self, one, other):
            self.one, self.other = one, other

    jax.tree_util.register_pytree_node(
        Pair, lambda p: ((p.one, p.other), None), lambda _, items: Pair(*items)
    )
    found = tg.function(lambda p: {"z": p, "a": p.one})(Pair({"b": made(1.0), "a": made(2.0)}, []))
    assert order_of(found) == ["z", "a"] and order_of(found["z"].one) == ["b", "a"]
    assert found["z"].other == []
    for one, other in [([1], Pair(1, 2)), (Pair(1, 2), [1, 2]), (Pair(1, 2), {"a": 1})]:
        with pytest.raises(ValueError, match="the structures differ"):
            nest.assert_same_structure(one, other)
    nest.assert_same_structure(Pair(1, {"b": 2, "a": 3}), Pair(1, {"a": 2, "b": 3}))
    x = Pair(made(2.0), made(3.0))
    _, tangent = tg.jvp(lambda p: p.one * p.other, (x,), (Pair(made(1.0), made(0.0)),))
    assert tangent.numpy() == 3.0
    _, pull = tg.vjp(lambda p: Pair(p.one, p.one * p.other), x)
    assert pull(Pair(made(1.0), made(1.0)))[0].one.numpy() == 4.0


def test_a_concrete_function_takes_every_order():
    p = {"w": made(5.0), "b": made(3.0)}
    concrete = tg.function(lambda q: q["w"] - q["b"]).get_concrete_function(p)
    assert concrete({"b": made(1.0), "w": made(9.0)}).numpy() == 8.0


def test_a_loaded_function_keeps_the_order_of_keys(tmp_path):
    module = tg.Module()
    module.f = tg.function(lambda p: {"z": p["w"] - p[1], **p})
    p = {"w": tg.constant(5.0), 1: tg.constant(3.0)}
    module.f(p)
    tg.saved_model.save(module, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    for q in (p, dict(reversed(p.items())), collections.OrderedDict(p)):
        for _ in range(3):
            found = loaded.f(q)
            assert order_of(found) == ["z", "w", 1] and found["z"].numpy() == 2.0


# ---------------------------------------------------------------- random structures

SCALARS = st.sampled_from([None, *[float(k) for k in range(1, 10)]])
NAMES = st.one_of(
    st.text("abz", min_size=1, max_size=2), st.integers(-2, 2), st.tuples(st.integers(0, 2))
)


def containers(inside):
    pairs = st.lists(st.tuples(NAMES, inside), max_size=4)
    return st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(tuple),
        st.lists(inside, max_size=3).map(Rows),
        st.builds(Point, inside, inside),
        st.builds(Record, inside, inside),
        *(pairs.map(lambda rows, make=make: make(dict(rows))) for make in (dict, params, defaults)),
        pairs.map(collections.OrderedDict),
    )


STRUCTURES = st.recursive(SCALARS, containers, max_leaves=12)


def doubled(value):
    """The structure with twice its numbers, by nothing but Python."""
    if value is None or isinstance(value, float):
        return None if value is None else 2.0 * value
    if isinstance(value, Record):
        return Record(doubled(value.second), doubled(value.first))
    if isinstance(value, Point):
        return Point(*map(doubled, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(doubled, value))
    make = {Params: params, collections.defaultdict: defaults}.get(type(value), type(value))
    return make([(key, doubled(item)) for key, item in value.items()])


def numbers(value):
    """The structure with numbers in place of tensors, by nothing but Python."""
    if isinstance(value, tg.Tensor):
        return float(value)
    if value is None:
        return None
    if isinstance(value, Record):
        return Record(numbers(value.second), numbers(value.first))
    if isinstance(value, Point):
        return Point(*map(numbers, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(numbers, value))
    make = {Params: params, collections.defaultdict: defaults}.get(type(value), type(value))
    return make([(key, numbers(item)) for key, item in value.items()])


def assert_alike(found, wanted):
    assert nest_shape(found) == nest_shape(wanted)
    assert found == wanted


def some_of(count, check):
    """Checks random structures."""
    settings(max_examples=count, deadline=None)(given(STRUCTURES)(check))()


@pytest.mark.parametrize("count", [20, pytest.param(60, marks=pytest.mark.sweep)])
def test_random_structures_come_back(count):
    some_of(count, comes_back)


def comes_back(structure):
    assert_alike(nest.map_structure(lambda x: x and 2.0 * x, structure), doubled(structure))
    for none_is_leaf in (True, False):
        leaves, packing = nest.flatten_structure(structure, none_is_leaf)
        assert_alike(packing.pack(leaves), structure)
        assert_alike(packing.packer()(leaves), structure)
    tensors = nest.map_structure(lambda x: None if x is None else tg.constant(x), structure)
    assert_alike(numbers(tensors), structure)
    with tg.GradientTape() as tape:
        watched = [x for x in nest.flatten(tensors) if x is not None]
        tape.watch(watched)
        y = tg.add_n([x * x for x in watched]) if watched else tg.constant(0.0)
    if watched and all(x is not None for x in nest.flatten(structure)):
        assert_alike(numbers(tape.gradient(y, tensors)), doubled(structure))


@pytest.mark.parametrize("count", [6, pytest.param(25, marks=pytest.mark.sweep)])
def test_random_structures_go_through_functions(count):
    some_of(count, goes_through_a_function)


def goes_through_a_function(structure):
    f = tg.function(lambda p: nest.map_structure(lambda x: None if x is None else 2.0 * x, p))
    tensors = nest.map_structure(lambda x: None if x is None else made(x), structure)
    for _ in range(2):
        assert_alike(numbers(f(tensors)), doubled(structure))


@pytest.mark.parametrize(
    "make", [collections.deque, collections.UserList, lambda items: dict(enumerate(items)).values()]
)
def test_other_sequences_are_structures(make):
    """As in TensorFlow, where a view of a dict comes back as a list too."""
    p = {"w": tg.Variable([1.0, 2.0]), "b": tg.Variable(3.0)}
    with tg.GradientTape() as tape:
        y = tg.reduce_sum(p["w"]) * p["b"]
    w, b = tape.gradient(y, make(p.values()))
    np.testing.assert_array_equal(w.numpy(), [3.0, 3.0])
    assert b.numpy() == 3.0
    given = make([made(2.0), made(5.0)])
    f = tg.function(lambda rows: nest.map_structure(lambda x: x + 1.0, rows))
    for _ in range(3):
        found = f(given)
        assert [x.numpy() for x in found] == [3.0, 6.0]
        assert type(found) is (type(given) if hasattr(given, "append") else list)
    assert f.experimental_get_tracing_count() == 1


def test_a_deque_keeps_its_limit():
    found = tg.function(lambda rows: rows)(collections.deque([made(2.0)], 4))
    assert found.maxlen == 4


def test_a_mapping_that_no_dict_builds_is_refused_with_advice():
    class Table(Frozen):
        def __init__(self, one, other):
            super().__init__({"one": one, "other": other})

    with pytest.raises(TypeError, match=r"fix: pass dict\(\.\.\.\) of it") as caught:
        tg.function(lambda p: p["one"])(Table(made(1.0), made(2.0)))
    assert "Table cannot be built again from a dict of its items" in str(caught.value)


@pytest.mark.parametrize("make", [types.MappingProxyType, collections.UserDict, Frozen])
def test_a_module_has_the_variables_in_any_mapping(make, tmp_path):
    class Model(tg.Module):
        def __init__(self, *values):
            super().__init__()
            w, b = map(tg.Variable, values)
            self.weights = make({"w": w, "parts": [make({"b": b})]})

    model, other = Model(2.0, 3.0), Model(0.0, 0.0)
    assert len(model.trainable_variables) == 2
    path = tg.train.Checkpoint(model=model).save(tmp_path / "c")
    tg.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert [v.numpy() for v in other.variables] == [v.numpy() for v in model.variables]


@pytest.mark.parametrize("make", [types.MappingProxyType, collections.UserDict])
def test_a_mapping_is_saved_as_a_dict(make, tmp_path):
    module = tg.Module()
    module.weights = make({"w": tg.Variable(5.0), "b": tg.Variable(3.0)})
    module.f = tg.function(lambda p: make({"z": p["w"] - p["b"], **p}))
    p = make({"w": tg.constant(5.0), "b": tg.constant(3.0)})
    module.f(p)
    tg.saved_model.save(module, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    assert order_of(loaded.weights) == ["w", "b"] and loaded.weights["b"].numpy() == 3.0
    for q in (p, dict(p), make(dict(reversed([*p.items()])))):
        found = loaded.f(q)
        assert order_of(found) == ["z", "w", "b"] and found["z"].numpy() == 2.0


def test_a_signature_of_a_dict_takes_other_mappings():
    spec = tg.TensorSpec([], tg.float32)
    f = tg.function(lambda p: p["w"] - p["b"], input_signature=[{"w": spec, "b": spec}])
    p = {"b": tg.constant(3.0), "w": tg.constant(5.0)}
    for q in (p, types.MappingProxyType(p), collections.UserDict(p)):
        assert f(q).numpy() == 2.0
