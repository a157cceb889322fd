"""Models of flax and equinox and solvers of diffrax: value and derivatives beside JAX's."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.without_libraries import printed

# One piece of code is decorated again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def agree(loss, leaves, tolerance=1e-3):
    """Value, gradient, tangent and Hessian times vector of a loss of many arrays are JAX's."""
    leaves = [np.asarray(x) for x in leaves]
    directions = [RNG.normal(size=x.shape).astype(x.dtype) for x in leaves]

    @jax.jit
    def theirs(xs, ts):
        value, tangent = jax.jvp(loss, (xs,), (ts,))
        gradient, product = jax.jvp(jax.grad(loss), (xs,), (ts,))
        return value, tangent, gradient, product

    converted = tg.from_jax(loss)

    @tg.function
    def ours(xs, ts):
        with tg.autodiff.ForwardAccumulator(xs, ts) as accumulator:
            with tg.GradientTape() as tape:
                tape.watch(xs)
                value = converted(xs)
            gradient = tape.gradient(value, xs, None, tg.UnconnectedGradients.ZERO)
        zero = tg.UnconnectedGradients.ZERO
        return value, accumulator.jvp(value), gradient, accumulator.jvp(gradient, zero)

    wanted = theirs(leaves, directions)
    found = ours([tg.constant(x) for x in leaves], [tg.constant(t) for t in directions])
    for name, one, other in zip(("value", "tangent", "gradient", "product"), found, wanted):
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        for x, y in pairs:
            scale = max(float(jnp.max(jnp.abs(y))), 1.0)
            np.testing.assert_allclose(x, y, tolerance, tolerance * scale, err_msg=name)


def loss_of(module, variables, x, **kwargs):
    """The loss of a module of flax as a function of the arrays of its parameters."""
    leaves, structure = jax.tree.flatten(variables["params"])
    rest = {k: v for k, v in variables.items() if k != "params"}

    def loss(leaves):
        params = jax.tree.unflatten(structure, leaves)
        return jnp.mean(module.apply({"params": params, **rest}, x, **kwargs) ** 2)

    return loss, leaves


def flax():
    return pytest.importorskip("flax.linen")


def residual_network(nn):
    class Block(nn.Module):
        features: int
        strides: int = 1

        @nn.compact
        def __call__(self, x):
            y = nn.Conv(self.features, (3, 3), self.strides, use_bias=False)(x)
            y = nn.relu(nn.GroupNorm(2)(y))
            y = nn.Conv(self.features, (3, 3), use_bias=False)(y)
            if x.shape != y.shape:
                x = nn.Conv(self.features, (1, 1), self.strides)(x)
            return nn.relu(x + nn.GroupNorm(2)(y))

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (3, 3), (2, 2), "SAME")
            x = Block(8, 2)(Block(4)(x))
            return nn.Dense(3)(nn.avg_pool(x, (2, 2)).reshape(x.shape[0], -1))

    return ResNet(), normal(2, 8, 8, 3)


def transformer(nn):
    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens, train=False):
            x = nn.Embed(11, 8)(tokens) + self.param("place", nn.initializers.normal(), (5, 8))
            mask = nn.make_causal_mask(tokens)
            for _ in range(2):
                y = nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=mask)
                x = x + nn.Dropout(0.3, deterministic=not train)(y)
                x = x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
            return nn.log_softmax(nn.Dense(11)(x))

    return Transformer(), RNG.integers(0, 11, (2, 5)).astype(np.int32)


def recurrent(nn):
    class Recurrent(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.RNN(nn.LSTMCell(4))(x))

    return Recurrent(), normal(2, 6, 3)


HEAVY = [pytest.param(make, marks=pytest.mark.slow) for make in (residual_network, transformer)]


@pytest.mark.parametrize("make", [*HEAVY, recurrent])
def test_models_of_flax(make):
    module, x = make(flax())
    variables = jax.jit(module.init)(jax.random.key(0), x)
    agree(*loss_of(module, variables, x))
    converted = tg.Module.from_flax(module, variables)
    np.testing.assert_allclose(converted(x), jax.jit(module.apply)(variables, x), 1e-5, 1e-5)


def test_dropout_of_flax_draws_the_same_numbers():
    module, x = transformer(flax())
    variables = jax.jit(module.init)(jax.random.key(0), x)
    rngs = {"dropout": jax.random.PRNGKey(4)}
    wanted = jax.jit(partial(module.apply, train=True))(variables, x, rngs=rngs)
    converted = tg.Module.from_flax(module, variables)
    np.testing.assert_allclose(converted(x, train=True, rngs=rngs), wanted, 1e-5, 1e-5)


def normalised(nn):
    class Normalised(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            x = nn.Dense(4, name="hidden")(x)
            return nn.BatchNorm(use_running_average=not train)(x)

    module = Normalised()
    return module, jax.jit(module.init)(jax.random.key(0), jnp.ones((1, 3)))


def test_variables_are_named_by_their_paths_and_collections_assigned():
    module, variables = normalised(flax())
    converted = tg.Module.from_flax(module, variables)
    assert sorted(v.base_name for v in converted.trainable_variables) == [
        *("BatchNorm_0/bias", "BatchNorm_0/scale", "hidden/bias", "hidden/kernel")
    ]
    assert sorted(v.base_name for v in converted.non_trainable_variables) == [
        *("BatchNorm_0/mean", "BatchNorm_0/var")
    ]
    x = normal(5, 3)
    wanted, after = module.apply(variables, x, train=True, mutable=["batch_stats"])
    found = converted(x, train=True, mutable=["batch_stats"])
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
    mean = after["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(converted.parameters["batch_stats/BatchNorm_0/mean"], mean, 1e-6)


def test_mutable_is_what_flax_takes():
    module, variables = normalised(flax())
    converted = tg.Module.from_flax(module, variables)
    x = normal(5, 3)
    wanted, after = module.apply(variables, x, train=True, mutable=True)
    np.testing.assert_allclose(converted(x, mutable=False), module.apply(variables, x), 1e-5)
    np.testing.assert_allclose(converted(x, train=True, mutable=True), wanted, 1e-5, 1e-5)
    mean = after["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(converted.parameters["batch_stats/BatchNorm_0/mean"], mean, 1e-6)
    with pytest.raises(tg.errors.TraceError, match="from_flax: mutable is a float"):
        converted(x, mutable=1.5)


def test_leaves_of_any_kind_and_name_become_variables():
    nn = flax()

    class Odd(nn.Module):
        @nn.compact
        def __call__(self, x):
            key = self.variable("draws", "key", lambda: jax.random.key(3))
            slash = self.variable("draws", "a/b", lambda: jnp.zeros(()))
            nested = self.variable("draws", "a", lambda: {"b": jnp.ones(())})
            now, key.value = jax.random.split(key.value)
            slash.value, nested.value = slash.value + 1, {"b": nested.value["b"] * 2}
            kernel = nn.with_partitioning(nn.initializers.ones, ("x", "y"))
            return nn.Dense(2, kernel_init=kernel, name="layer")(x) * jax.random.uniform(now)

    module, x = Odd(), normal(5, 3)
    variables = module.init(jax.random.key(0), x)
    converted = tg.Module.from_flax(module, variables)
    assert [v.base_name for v in converted.trainable_variables] == ["layer/bias", "layer/kernel"]
    for _ in range(2):
        wanted, after = module.apply(variables, x, mutable=["draws"])
        variables |= after
        np.testing.assert_allclose(converted(x, mutable=["draws"]), wanted, 1e-5)
    states = converted.parameters
    assert float(states["draws/a/b"]) == float(variables["draws"]["a"]["b"])
    assert float(states["draws/a/b_1"]) == float(variables["draws"]["a/b"])
    np.testing.assert_array_equal(states["draws/key"], jax.random.key_data(after["draws"]["key"]))


def test_a_module_of_flax_trains_is_saved_and_loaded(tmp_path):
    optax = pytest.importorskip("optax")
    module, variables = normalised(flax())
    model = tg.Module.from_flax(module, variables)
    model.optimizer = tg.optimizers.from_optax(optax.adam(0.1))
    x = tg.constant(normal(5, 3))

    @tg.function
    def train(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.square(model(x)))
        model.optimizer.minimize(loss, model.trainable_variables, tape)
        return loss

    model.train = train
    first = float(model.train(x))
    names = {v.base_name for v in model.optimizer.variables}
    assert {"hidden/kernel_mu", "hidden/kernel_nu", "count"} <= names
    tg.saved_model.save(model, str(tmp_path))
    loaded = tg.saved_model.load(str(tmp_path))
    losses = [float(loaded.train(x)) for _ in range(3)]
    assert first > losses[0] > losses[1] > losses[2]
    assert losses == [float(model.train(x)) for _ in range(3)]
    np.testing.assert_array_equal(loaded(x), model(x))


class Trained(tg.Module):
    """A small transformer of flax with dropout, which an optimizer of optax trains on any batch."""

    def __init__(self, module, variables, optimizer):
        super().__init__()
        self.model = tg.Module.from_flax(module, variables)
        self.optimizer = tg.optimizers.from_optax(optimizer)
        self.optimizer.build(self.model.trainable_variables)

    @tg.function(
        input_signature=[tg.TensorSpec([None, 5], tg.int32), tg.TensorSpec([2], tg.uint32)]
    )
    def loss(self, tokens, key):
        return tg.reduce_mean(self.model(tokens, train=True, rngs={"dropout": key}) ** 2)

    @tg.function(
        input_signature=[tg.TensorSpec([None, 5], tg.int32), tg.TensorSpec([2], tg.uint32)]
    )
    def train(self, tokens, key):
        with tg.GradientTape() as tape:
            loss = self.loss(tokens, key)
        self.optimizer.minimize(loss, self.model.trainable_variables, tape)
        return loss


ELSEWHERE = """
import json

model = tg.saved_model.load(sys.argv[1])
tokens = tg.constant(json.loads(sys.argv[2]))
variables = [*model.model.trainable_variables]
with tg.autodiff.ForwardAccumulator(variables, [tg.ones_like(v) for v in variables]) as forward:
    with tg.GradientTape() as tape:
        loss = model.loss(tokens, tg.constant([0, 9], tg.uint32))
    gradients = tape.gradient(loss, variables)
products = [float(tg.reduce_sum(x)) for x in forward.jvp(gradients)]
losses = [float(model.train(tokens, tg.constant([0, k], tg.uint32))) for k in range(3)]
names = [v.base_name for v in variables]
print(json.dumps([dict(zip(names, products)), losses]))
"""


def test_a_transformer_with_dropout_trains_on_where_flax_and_optax_are_not(tmp_path):
    nn, optax = flax(), pytest.importorskip("optax")

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens, train=False):
            x = nn.Embed(7, 4)(tokens)
            mask = nn.make_causal_mask(tokens)
            y = nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dropout(0.3, deterministic=not train)(y)
            x = x + nn.Dense(4)(nn.gelu(nn.Dense(8)(nn.LayerNorm()(x))))
            return nn.log_softmax(nn.Dense(7)(nn.Dropout(0.3, deterministic=not train)(x)))

    module, tokens = Transformer(), RNG.integers(0, 7, (3, 5)).astype(np.int32)
    variables = jax.jit(module.init)(jax.random.key(0), tokens)
    tg.saved_model.save(Trained(module, variables, optax.adam(0.01)), str(tmp_path))
    products, losses = json.loads(printed(ELSEWHERE, tmp_path, json.dumps(tokens.tolist())))

    def loss(params, number):
        rngs = {"dropout": jnp.array([0, number], jnp.uint32)}
        return jnp.mean(module.apply({"params": params}, tokens, train=True, rngs=rngs) ** 2)

    @jax.jit
    def product(params):
        ones = jax.tree.map(jnp.ones_like, params)
        return jax.jvp(jax.grad(partial(loss, number=9)), (params,), (ones,))[1]

    @jax.jit
    def step(params, state, number):
        value, gradients = jax.value_and_grad(loss)(params, number)
        updates, state = optimizer.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    params, optimizer = variables["params"], optax.adam(0.01)
    rows = jax.tree_util.tree_flatten_with_path(product(params))[0]
    wanted = {"/".join(step.key for step in path): float(jnp.sum(x)) for path, x in rows}
    assert products.keys() == wanted.keys()
    np.testing.assert_allclose([products[k] for k in wanted], [*wanted.values()], 1e-3, 1e-3)
    state = optimizer.init(params)
    for number in range(3):
        value, params, state = step(params, state, number)
        np.testing.assert_allclose(losses[number], value, 1e-4)


def test_a_module_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(3, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(jax.nn.relu(self.norm(self.hidden(x))))

    module = Network(nnx.Rngs(0))
    converted = tg.Module.from_flax(module)
    assert [v.base_name for v in converted.trainable_variables] == [
        *("hidden/bias", "hidden/kernel", "norm/bias", "norm/scale")
    ]
    x = normal(5, 3)
    for _ in range(2):  # averages and the count of random numbers go on
        np.testing.assert_allclose(converted(x), module(jnp.asarray(x)), 1e-5, 1e-5)
    np.testing.assert_allclose(converted.parameters["norm/mean"], module.norm.mean[...], 1e-5)


def test_what_a_module_of_nnx_shares_is_one_variable():
    nnx = pytest.importorskip("flax.nnx")

    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.encoder = nnx.Linear(3, 3, rngs=rngs)
            self.decoder = self.encoder
            self.norms = nnx.List([nnx.BatchNorm(3, rngs=rngs)] * 2)

        def __call__(self, x):
            for norm in self.norms:  # the second one goes on with the averages of the first
                x = norm(x)
            return self.decoder(jnp.tanh(self.encoder(x)))

    module = Tied(nnx.Rngs(0))
    converted = tg.Module.from_flax(module)
    names = {v.base_name for v in converted.trainable_variables}
    assert names == {"decoder/bias", "decoder/kernel", "norms/0/bias", "norms/0/scale"}
    x = normal(4, 3)
    wanted = nnx.grad(lambda module: jnp.sum(module(x) ** 2))(module)["decoder"]["kernel"]
    with tg.GradientTape() as tape:
        loss = tg.reduce_sum(converted(x) ** 2)
    gradient = tape.gradient(loss, converted.parameters["decoder/kernel"])
    np.testing.assert_allclose(gradient, wanted[...], 1e-4, 1e-4)
    mean = module.norms[0].mean[...]
    np.testing.assert_allclose(converted.parameters["norms/0/mean"], mean, 1e-5, 1e-6)


def test_a_batch_norm_of_equinox_averages_over_the_mapped_examples():
    eqx = pytest.importorskip("equinox")
    module, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")

    def normalised(x, state):
        mapped = jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        return mapped(x, state)

    x = normal(5, 3)
    found, wanted = tg.from_jax(normalised)(x, state), jax.jit(normalised)(x, state)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_leaves_that_a_module_of_equinox_shares_are_one_variable():
    eqx = pytest.importorskip("equinox")

    class Tied(eqx.Module):
        layers: eqx.nn.Shared

        def __call__(self, i):
            embedding, last = self.layers()
            return last(embedding(i))

    first, second = jax.random.split(jax.random.key(0))
    layers = eqx.nn.Embedding(5, 3, key=first), eqx.nn.Linear(3, 5, use_bias=False, key=second)
    module = Tied(eqx.nn.Shared(layers, lambda x: x[1].weight, lambda x: x[0].weight))
    converted = tg.Module.from_equinox(module)
    assert len(converted.variables) == 1
    np.testing.assert_allclose(converted(tg.constant(2)), module(jnp.array(2)), 1e-5)


def test_a_module_of_equinox():
    eqx = pytest.importorskip("equinox")
    module = eqx.nn.MLP(3, 2, 4, 2, activation=jax.nn.softplus, key=jax.random.key(0))
    x = normal(3)
    leaves, structure = jax.tree.flatten(eqx.filter(module, eqx.is_array))
    rest = eqx.filter(module, eqx.is_array, inverse=True)

    def loss(leaves):
        model = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        return jnp.sum(model(x) ** 2)

    agree(loss, leaves)
    converted = tg.Module.from_equinox(module)
    np.testing.assert_allclose(converted(x), module(x), 1e-6)
    assert "layers/1/weight" in [v.base_name for v in converted.trainable_variables]
    rows = tg.vectorized_map(converted, tg.constant(normal(4, 3)))
    assert rows.shape == [4, 2]


def test_parameters_that_jax_makes_of_numbers_widen_nothing():
    eqx, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")

    class Scaled(eqx.Module):
        scale: jax.Array

        def __call__(self, x):
            return x * self.scale

    class Other(nnx.Module):
        def __init__(self, scale):
            self.scale = nnx.Param(scale)

        def __call__(self, x):
            return x * self.scale

    class Linen(flax().Module):
        def setup(self):
            self.scale = self.param("scale", lambda key: jnp.asarray(2.0))

        def __call__(self, x):
            return x * self.scale

    x = jnp.ones(3, jnp.bfloat16)
    for scale in (jnp.asarray(2.0), jnp.asarray(2), jnp.float32(2)):
        module, other = Scaled(scale), Other(scale)
        converted = tg.Module.from_equinox(module)
        assert converted(x).dtype.name == module(x).dtype.name
        assert tg.Module.from_flax(other)(x).dtype.name == other(x).dtype.name
        assert converted.variables[0].dtype.name == scale.dtype.name
    variables = Linen().init(jax.random.key(0), x)
    assert tg.Module.from_flax(Linen(), variables)(x).dtype is tg.bfloat16


@pytest.mark.slow
def test_a_solution_of_diffrax():
    diffrax = pytest.importorskip("diffrax")

    def loss(leaves):
        rate, start = leaves
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: -args * y + jnp.sin(t)),
            diffrax.Tsit5(),
            *(0.0, 1.0, 0.1, start),
            args=rate,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
            adjoint=diffrax.DirectAdjoint(),
            max_steps=16,
            throw=False,  # to raise errors it calls Python
        )
        return jnp.sum(solution.ys**2)

    with jax.enable_x64(True):  # adaptive steps magnify rounding
        agree(loss, [np.float64(1.5), RNG.normal(size=2)], 1e-8)


# What is refused.


def test_what_is_no_module_is_refused():
    with pytest.raises(tg.errors.TraceError, match="a Dense is given without its variables"):
        tg.Module.from_flax(flax().Dense(2))
    with pytest.raises(tg.errors.TraceError, match="from_flax: a dict is not such a module"):
        tg.Module.from_flax({}, {})
    with pytest.raises(tg.errors.TraceError, match="from_equinox: an int is not such a module"):
        tg.Module.from_equinox(3)
    with pytest.raises(
        tg.errors.TraceError, match="from_equinox: a PjitFunction is not such a module"
    ):
        tg.Module.from_equinox(jnp.sin)


def test_a_class_of_modules_is_refused():
    linen, eqx = flax(), pytest.importorskip("equinox")
    with pytest.raises(tg.errors.TraceError, match=r"Dense is a class.*\n.*\n  fix: .*: Dense\("):
        tg.Module.from_flax(linen.Dense, {})
    with pytest.raises(tg.errors.TraceError, match="Linear is a class of modules"):
        tg.Module.from_flax(pytest.importorskip("flax.nnx").Linear)
    with pytest.raises(tg.errors.TraceError, match="Linear is a class of modules"):
        tg.Module.from_equinox(eqx.nn.Linear)


def test_a_collection_without_variables_is_refused():
    module, variables = normalised(flax())
    converted = tg.Module.from_flax(module, {"params": variables["params"]})
    with pytest.raises(Exception, match="batch_stats"):
        converted(normal(5, 3), train=True, mutable=["batch_stats"])


@pytest.mark.sweep
def test_a_linear_solve_of_lineax_in_forward_mode(monkeypatch):
    """Its primitive has a rule for forward mode, and checks its results, which hides that they are
    linear in the right-hand side. The graph keeps that rule, also as text."""
    lineax = pytest.importorskip("lineax")
    # What the environment variable sets when equinox is imported.
    monkeypatch.setattr("equinox._errors.EQX_ON_ERROR", "nan")

    def fn(a, b):
        operator = lineax.MatrixLinearOperator(a)
        return lineax.linear_solve(operator, b, lineax.QR(), throw=False).value

    xs = [normal(2, 2) + 3 * np.eye(2, dtype=np.float32), normal(2)]
    ts = [normal(2, 2), normal(2)]
    wanted = jax.jit(lambda xs, ts: jax.jvp(fn, xs, ts))(tuple(xs), tuple(ts))
    graph = tg.function(tg.from_jax(fn)).graph(*xs)
    read = tg.Graph.from_text(graph.as_text(locations=True))

    @tg.function
    def pushed(xs, ts):
        with tg.autodiff.ForwardAccumulator(xs, ts) as forward:
            y = tg.from_jax(fn)(*xs)
        return y, forward.jvp(y)

    found = pushed([tg.constant(x) for x in xs], [tg.constant(t) for t in ts])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
    assert read.as_text(locations=True) == graph.as_text(locations=True)


def test_a_part_that_only_jax_can_leave_out_of_the_gradient_is_refused_with_what_to_write():
    """As for diffrax's ImplicitAdjoint: the gradient of some results of its solver is an error."""
    internal = pytest.importorskip("equinox.internal")

    @jax.custom_jvp
    def together(x, rest):
        return x, rest

    together.defjvp(lambda primals, tangents: (together(*primals), tangents))

    def fn(x):
        return together(x * 2.0, internal.nondifferentiable_backward(x))[0]

    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.from_jax(fn)(x)
    with pytest.raises(LookupError, match=r"Unexpected cotangent.*tg\.from_jax\(jax\.grad\(f\)\)"):
        tape.gradient(y, x)
    assert float(tg.from_jax(jax.grad(fn))(x)) == 2.0

    @tg.custom_gradient
    def with_gradient(x):
        return tg.from_jax(fn)(x), lambda g: tg.from_jax(lambda x, g: jax.vjp(fn, x)[1](g)[0])(x, g)

    with tg.GradientTape() as tape:
        tape.watch(x)
        y = with_gradient(x)
    assert float(tape.gradient(y, x)) == 2.0
