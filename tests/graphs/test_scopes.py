"""What graphs call things: name scopes of nodes, and names of Variables, tensors and parts."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near, by_jax
from tracegraph.errors import GradientError

pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

SPEC = tg.TensorSpec([2, 4])


class Block(tg.Module):
    def __init__(self, name=None):
        super().__init__(name)
        self.w = tg.Variable(tg.ones([4, 4]) / 4.0)
        self.b = tg.Variable(tg.ones([4]), name="bias")

    def __call__(self, x):
        return tg.tanh(x @ self.w + self.b)


class Net(tg.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]
        self.head = Block("top")
        self.optimizer = tg.optimizers.SGD(0.1, momentum=0.9)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    @tg.function
    def predict(self, x):
        return self(x)

    @tg.function
    def step(self, x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(self(x) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def graph_of(function, *specs):
    return tg.function(function).get_concrete_function(*(specs or (SPEC,))).graph


def scopes(graph):
    """The scopes of the nodes, in the order in which they come."""
    return list(dict.fromkeys(node.source.scope for node in graph.nodes))


def names(graph):
    return [x.name for x in graph.inputs]


def test_scopes_are_the_ways_to_the_modules():
    net = Net()
    assert scopes(net.predict.get_concrete_function(SPEC).graph) == ["blocks/0", "blocks/1", "top"]
    graph = graph_of(lambda x: net(x))
    assert scopes(graph) == ["net/blocks/0", "net/blocks/1", "net/top"]


def test_gradients_keep_the_scopes():
    graph = Net().step.get_concrete_function(SPEC).graph
    derived = {n.source.scope for n in graph.nodes if n.source.roles and n.source.scope}
    assert derived == {"blocks/0", "blocks/1", "top"}


def test_a_module_has_one_scope_and_another_of_its_name_has_another():
    a, b = Block("same"), Block("same")
    assert scopes(graph_of(lambda x: a(b(a(x))))) == ["same", "same_1"]


def test_name_scopes():
    def function(x):
        with tg.name_scope("outer"):
            with tg.name_scope("inner"):
                x = tg.sin(x)
            x = tg.cos(x)
        with tg.name_scope("outer"):
            return tg.tanh(x) * tg.constant(2.0)

    assert scopes(graph_of(function)) == ["outer/inner", "outer", "outer_1"]
    x = tg.sin(tg.constant(1.0))
    assert x.source.scope == ""


def variable_name():
    return tg.Variable(0.0, name="v").name


def test_a_name_scope_that_was_left_names_again_what_is_made_inside_it():
    scope = tg.name_scope("again")
    for _ in range(2):
        with scope as prefix:
            assert (prefix, variable_name()) == ("again/", "again/v:0")
        assert variable_name() == "v:0"


def test_a_name_scope_that_is_open_refuses_to_be_entered_and_stays_open():
    scope = tg.name_scope("open")
    with scope:
        with pytest.raises(TypeError, match="entered again while it is open"):
            scope.__enter__()
        assert variable_name() == "open/v:0"
    assert variable_name() == "v:0"


def test_recording_is_stopped_again_by_the_same_context():
    x = tg.constant(3.0)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        stopped = tape.stop_recording()
        with stopped:
            first = x * x
        with stopped:
            second = x * x
        third = x * x
    assert tape.gradient(first, x) is None
    assert tape.gradient(second, x) is None
    assert tape.gradient(third, x).numpy() == 6.0


def test_name_scopes_of_tasks_and_generators_leave_nothing_in_any_order():
    def generator(name):
        with tg.name_scope(name):
            yield
        yield

    first, second = generator("first"), generator("second")
    next(first)
    next(second)
    next(first)
    assert variable_name() == "second/v:0"
    next(second)
    assert variable_name() == "v:0"

    async def task(name):
        with tg.name_scope(name):
            await asyncio.sleep(0)

    async def tasks():
        await asyncio.gather(*map(task, "abc"))

    asyncio.run(tasks())
    assert variable_name() == "v:0"


def test_scopes_of_what_is_traced_by_itself_begin_anew():
    inner = tg.function(lambda x: tg.sin(x) * 2.0)

    def function(x):
        with tg.name_scope("outer"):
            return inner(x)

    graph = graph_of(function)
    assert scopes(graph) == ["outer"]
    assert scopes(graph.nodes[0].op.body) == [""]


def test_with_name_scope_does_not_repeat_the_scope():
    class Scoped(tg.Module):
        @tg.Module.with_name_scope
        def __call__(self, x):
            self.v = tg.Variable(1.0, name="v")
            return x * self.v

    module = Scoped("mine")
    module(tg.ones([4]))
    assert module.v.name == "mine/v:0"

    class Twice(Scoped):
        @tg.Module.with_name_scope
        def __call__(self, x):
            return tg.sin(x)

    twice = Twice("mine")
    assert scopes(graph_of(lambda x: twice(x))) == ["mine"]


def test_an_error_closes_the_scopes():
    def function(x):
        try:
            with tg.name_scope("broken"):
                raise KeyError
        except KeyError:
            return tg.sin(x)

    assert scopes(graph_of(function)) == [""]


def test_scopes_are_in_the_text_and_come_back():
    net = Net()
    for scope in ("plain", 'a "quoted" one', "in", "vjp", "é/ü", "a:b", "x\ny"):

        def function(x, scope=scope):
            with tg.name_scope(scope):
                return tg.sin(net(x))

        graph = graph_of(lambda x: function(x))
        text = graph.as_text(locations=True)
        again = tg.Graph.from_text(text)
        assert (
            scopes(again)
            == scopes(graph)
            == [f"{scope}/net/{k}" for k in ("blocks/0", "blocks/1", "top")] + [scope]
        )
        assert again.as_text(locations=True) == text
    assert " in plain/net/blocks/0" in graph_text(net)


def graph_text(net):
    def function(x):
        with tg.name_scope("plain"):
            return net(x)

    return graph_of(function).as_text(locations=True)


def test_scopes_are_saved(tmp_path):
    net = Net()
    net.predict(tg.ones([2, 4]))
    tg.saved_model.save(net, tmp_path / "m")
    loaded = tg.saved_model.load(tmp_path / "m")
    graph = loaded.predict.get_concrete_function(SPEC).graph
    assert scopes(graph) == ["blocks/0", "blocks/1", "top"]


def test_views_have_the_scopes():
    graph = graph_of(Block("mine"))
    found = {data["scope"] for _, data in graph.to_networkx().nodes(data=True)}
    assert "mine" not in found  # it is the function itself
    block = Block("mine")
    graph = graph_of(lambda x: block(x))
    found = {d["scope"] for _, d in graph.to_networkx().nodes(data=True) if d["kind"] == "op"}
    assert found == {"mine"}
    assert '"namespace": "mine"' in graph.to_model_explorer()


def test_xla_is_told_the_scopes():
    block = Block("mine")
    function = tg.function(lambda x: block(x), jit_compile=True)
    text = function.experimental_get_compiler_ir(tg.ones([2, 4]))(stage="hlo")
    assert "mine/test_scopes.py:" in text


# Names.


def test_variables_are_called_by_the_way_to_them():
    net = Net()
    graph = net.step.get_concrete_function(SPEC).graph
    assert names(graph)[1:7] == [
        *("blocks/0/w", "blocks/0/bias", "blocks/1/w", "blocks/1/bias", "top/w", "top/bias")
    ]
    rest = set(names(graph)[7:])
    assert {"optimizer/learning_rate", "blocks/0/w_momentum", "top/bias_momentum"} <= rest
    assert "%blocks.0.w" in graph.as_text()


def test_other_names():
    free, named = tg.Variable(1.0), tg.Variable(1.0, name="mine")
    constant = tg.constant(np.ones([2, 4], np.float32)) * 1.0
    held = {"a": [tg.Variable(2.0)], "b": (tg.Variable(3.0, name="own"),)}

    def function(x, v):
        return x * free * named * constant * held["a"][0] * held["b"][0] * v

    graph = graph_of(function, SPEC, tg.Variable(4.0, name="given"))
    assert names(graph) == ["x", "free", "mine", "held/a/0", "held/b/own", "v", "constant"]


def test_residuals_are_called_after_their_ops():
    @tg.function
    def inner(x):
        return tg.tanh(x @ tg.ones([4, 4]))

    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = inner(inner(x))
        return tape.gradient(y, x)

    graph = graph_of(slope)
    backward = next(g for g in graph.graphs() if "vjp" in g.name)
    assert "tanh" in names(backward)
    assert not any(str(name).startswith("arg") for name in names(backward))


def test_inputs_know_that_they_are_variables():
    graph = Net().predict.get_concrete_function(SPEC).graph
    assert [x.is_variable for x in graph.inputs] == [False] + [True] * 6


# Parts.


def test_the_two_parts_are_the_whole():
    net = Net()

    def slopes(x, w):
        with tg.GradientTape() as tape:
            tape.watch([x, w])
            y = tg.reduce_sum(tg.tanh(net(x) @ w) ** 2)
        return y, *tape.gradient(y, [x, w])

    graph = graph_of(slopes, SPEC, tg.TensorSpec([4, 4]))
    forward, backward = graph.forward(), graph.backward()
    forward.verify()
    backward.verify()
    assert not any("vjp" in node.source.roles for node in forward.nodes)
    assert any("vjp" in node.source.roles for node in backward.nodes)
    assert len(forward.nodes) + len(backward.nodes) == len(graph.nodes)
    assert len(graph.outputs) == 3 and len(backward.outputs) == 2
    # What the forward part hands over stands first among the inputs of the backward part.
    handed = len(forward.outputs) - 1
    assert [y.type for y in forward.outputs[1:]] == [x.type for x in backward.inputs[:handed]]


def test_a_graph_without_gradients_has_one_part():
    graph = graph_of(lambda x: tg.sin(x))
    assert graph.forward() is graph
    with pytest.raises(GradientError, match="has no backward part"):
        graph.backward()


def test_parts_have_texts_and_pictures():
    graph = Net().step.get_concrete_function(SPEC).graph
    for part in (graph.forward(), graph.backward()):
        text = part.as_text(locations=True)
        assert tg.Graph.from_text(text).as_text(locations=True) == text
        assert part.to_dot() and part.to_html() and part.summary()


def test_the_parts_compute_what_the_whole_does():
    def loss(x):
        return jnp.sum(jnp.tanh(jnp.sin(x)) ** 2)

    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(tg.tanh(tg.sin(x)) ** 2)
        return y, tape.gradient(y, x)

    graph = graph_of(slope, tg.TensorSpec([3], tg.float64))
    x = np.array([0.3, -1.0, 2.0])
    value, *handed = run(graph.forward(), x)
    inputs = {y.name: x for y in graph.inputs}
    rest = [inputs[y.name] for y in graph.backward().inputs[len(handed) :]]
    (found,) = run(graph.backward(), *handed, *rest)
    assert_near(value, by_jax(loss, x))
    assert_near(found, by_jax(jax.grad(loss), x))


def run(graph, *arrays):
    """What a graph gives, node by node by NumPy's rules."""
    values = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        results = node.op.numpy(*(values[x] for x in node.inputs))
        results = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.outputs, results, strict=True))
    return [values[y] for y in graph.outputs]


def test_scopes_of_nodes_that_are_left_in_any_order_leave_nothing():
    def opened(name):
        with tg.name_scope(name):
            yield

    first, second, third = map(opened, ("first", "second", "third"))
    for task in (first, second, third):
        next(task)
    for task in (second, first, third):
        task.close()
    assert tg.sin(tg.constant(1.0)).source.scope == ""


# ---------------------------------------------------------------- names of scopes


class Late(tg.Module):
    """A Module that makes another one in its first call."""

    inner = None

    @tg.Module.with_name_scope
    def __call__(self):
        if self.inner is None:
            self.inner = tg.Module("inner")
        with self.inner.name_scope as path:
            return path, tg.Variable(1.0, name="w").name


def test_a_name_scope_has_a_name():
    assert tg.name_scope("encoder").name == "encoder"
    with tg.name_scope("outer"):
        late = Late("late")
    assert late.name_scope.name == "outer/late/"
    # As in TensorFlow, the scope of a Module is where that was created.
    assert late() == ("outer/late/inner/", "outer/late/inner/w:0")
    with tg.name_scope("elsewhere"):
        assert late() == ("outer/late/inner/", "outer/late/inner/w:0")
    assert late.inner.name_scope.name == "outer/late/inner/"


def test_a_name_that_ends_with_a_slash_leaves_the_open_scopes():
    with tg.name_scope("outer") as outer, tg.name_scope("inner"):
        with tg.name_scope(outer) as again:
            assert again == outer == "outer/"
            assert tg.Variable(1.0, name="w").name == "outer/w:0"
        assert tg.Variable(1.0, name="w").name == "outer/inner/w:0"
