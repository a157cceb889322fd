"""`tg.optimizers.from_optax`: steps bit for bit as optax takes them, and state that lasts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tests.compiling import OPTIMISED
from tests.without_libraries import printed

optax = pytest.importorskip("optax")

STEPS = 10
RATE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 9)

#: Every optimizer of optax's public list, and what is wrapped around one.
OPTIMIZERS = {
    "adabelief": lambda: optax.adabelief(1e-2),
    "adadelta": lambda: optax.adadelta(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "adagrad": lambda: optax.adagrad(1e-2),
    "adam": lambda: optax.adam(1e-2),
    "adamax": lambda: optax.adamax(1e-2),
    "adamaxw": lambda: optax.adamaxw(1e-2),
    "adamw": lambda: optax.adamw(RATE),
    "adan": lambda: optax.adan(1e-2),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "fromage": lambda: optax.fromage(1e-2),
    "lamb": lambda: optax.lamb(1e-2),
    "lars": lambda: optax.lars(1e-2),
    "lbfgs": lambda: optax.lbfgs(1e-2, memory_size=3, linesearch=None),
    "lion": lambda: optax.lion(1e-2),
    "nadam": lambda: optax.nadam(1e-2),
    "nadamw": lambda: optax.nadamw(1e-2),
    "noisy_sgd": lambda: optax.noisy_sgd(1e-2, key=jax.random.key(2)),
    "novograd": lambda: optax.novograd(1e-2),
    "optimistic_adam": lambda: optax.optimistic_adam(1e-2),
    "optimistic_adam_v2": lambda: optax.optimistic_adam_v2(1e-2),
    "optimistic_gradient_descent": lambda: optax.optimistic_gradient_descent(1e-2),
    "polyak_sgd": lambda: optax.polyak_sgd(1e-2),
    "radam": lambda: optax.radam(1e-2),
    "rmsprop": lambda: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    "rprop": lambda: optax.rprop(1e-2),
    "signum": lambda: optax.signum(1e-2),
    "sgd": lambda: optax.sgd(1e-2, momentum=0.9, nesterov=True),
    "sign_sgd": lambda: optax.sign_sgd(1e-2),
    "sm3": lambda: optax.sm3(1e-2),
    "yogi": lambda: optax.yogi(1e-2),
    "muon": lambda: optax.contrib.muon(1e-2),
    "madgrad": lambda: optax.contrib.madgrad(1e-2),
    "ademamix": lambda: optax.contrib.ademamix(1e-2),
    "adopt": lambda: optax.contrib.adopt(1e-2),
    "cocob": lambda: optax.contrib.cocob(),
    "dog": lambda: optax.contrib.dog(),
    "galore": lambda: optax.contrib.galore(1e-2, rank=2, update_proj_gap=3),
    "mechanize": lambda: optax.contrib.mechanize(optax.sgd(1e-2)),
    "sam": lambda: optax.contrib.sam(optax.sgd(1e-2), optax.sgd(1e-1)),
    "dpsgd": lambda: optax.chain(
        optax.contrib.differentially_private_aggregate(1.0, 0.1, key=jax.random.key(1)),
        optax.sgd(1e-2),
    ),
    "backtracking": lambda: optax.chain(optax.sgd(1e-2), optax.scale_by_backtracking_linesearch(5)),
    "lbfgs with its line search": optax.lbfgs,
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(1e-2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(RATE)),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-2), 3).gradient_transformation(),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=RATE),
    "masked": lambda: optax.masked(
        optax.add_decayed_weights(0.1), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
    ),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(1e-2), 2),
    "partition": lambda: optax.partition(
        {"a": optax.adam(1e-2), "b": optax.sgd(1e-2)}, lambda p: {"bias": "a", "kernel": "b"}
    ),
}
#: Those that run every time; all others are slow.
FEW = (*("adafactor", "adamw", "lion", "MultiSteps", "noisy_sgd", "optimistic_adam", "signum"),)


def parameters():
    rng = np.random.default_rng(0)
    return {
        "bias": rng.normal(size=(3,)).astype(np.float32),
        "kernel": rng.normal(size=(4, 3)).astype(np.float32),
    }


def gradients(step):
    rng = np.random.default_rng(10 + step)
    return {k: rng.normal(size=v.shape).astype(np.float32) for k, v in parameters().items()}


def bowl(p):
    return sum(jnp.sum((x - 0.3) ** 2) for x in jax.tree.leaves(p))


SEARCHES = "backtracking", "lbfgs with its line search"


def extra(name, step):
    return {"value": np.float32(1 + step)} if name in ("polyak_sgd", *SEARCHES) else {}


def given(name, step):
    """The gradients of a step; with an axis of examples where the optimizer takes them."""
    found = gradients(step)
    if name != "dpsgd":
        return found
    return {k: np.stack([g, 2 * g, -g]) for k, g in found.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in OPTIMIZERS],
)
@pytest.mark.filterwarnings("ignore:.* calls of .* were traced")
@pytest.mark.filterwarnings("ignore:`optimistic_adam` is deprecated")  # it is public all the same
def test_steps_are_those_of_optax_bit_for_bit(name, optimised):
    transformation = OPTIMIZERS[name]()

    def settings(g):
        return {"grad": g, "value_fn": bowl} if name in SEARCHES else {}

    @functools.partial(jax.jit, compiler_options=OPTIMISED)
    def theirs(g, state, p, extra):
        updates, state = transformation.update(g, state, p, **extra, **settings(g))
        return optax.apply_updates(p, updates), state

    variables = {k: tg.Variable(v, name=k) for k, v in parameters().items()}
    optimizer = tg.optimizers.from_optax(transformation)

    @tg.function
    def ours(g, extra):
        pairs = [(g[k], v) for k, v in variables.items()]
        optimizer.apply_gradients(pairs, **extra, **settings(g))

    p = jax.tree.map(jnp.asarray, parameters())
    state = transformation.init(p)
    for step in range(STEPS):
        p, state = theirs(given(name, step), state, p, extra(name, step))
        ours(given(name, step), extra(name, step))
        leaves = [x if not is_key(x) else jax.random.key_data(x) for x in jax.tree.leaves(state)]
        kept = [*variables.values(), *optimizer.optax_state.values()]
        for wanted, found in zip([*p.values(), *leaves], kept, strict=True):
            assert same(wanted, found), f"step {step}: {found} is not {wanted}"
    assert int(optimizer.iterations) == STEPS


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def same(wanted, found):
    return np.asarray(wanted).tobytes() == found.numpy().tobytes()


def test_a_transformation_of_other_parameters_than_a_dict_is_refused():
    v = tg.Variable([1.0], name="w")
    optimizer = tg.optimizers.from_optax(optax.lookahead(optax.sgd(0.1), 3, 0.5))
    with pytest.raises(ValueError, match=r"no attribute 'fast'.*\n.*\n  fix: .*optax.lookahead"):
        optimizer.apply_gradients([(tg.ones([1]), v)])


def test_examples_that_the_transformation_does_not_sum_are_refused():
    v = tg.Variable([1.0, 2.0], name="w")
    optimizer = tg.optimizers.from_optax(optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"made a f32\[3,2\] of 'w'.*nothing was assigned"):
        optimizer.apply_gradients([(tg.ones([3, 2]), v)])
    with pytest.raises(ValueError, match=r"the gradient f32\[2,3\] of the variable w"):
        optimizer.apply_gradients([(tg.ones([2, 3]), v)])
    np.testing.assert_array_equal(v, [1.0, 2.0])


def test_the_state_is_named_after_fields_and_variables():
    v = tg.Variable([1.0], name="kernel")
    w = tg.Variable([[1.0]], name="kernel")
    optimizer = tg.optimizers.from_optax(optax.adam(0.1))
    optimizer.build([v, w])
    assert [x.base_name for x in optimizer.optax_state.values()] == [
        *("count", "kernel_mu", "kernel_1_mu", "kernel_nu", "kernel_1_nu")
    ]
    assert [*optimizer.optax_state][:3] == ["0/count", "0/mu/kernel", "0/mu/kernel_1"]
    assert len(optimizer.variables) == 6


def test_a_variable_may_be_called_like_a_field_or_a_number():
    variables = [tg.Variable([1.0], name=name) for name in ("count", "mu", "0")]
    optimizer = tg.optimizers.from_optax(optax.adam(0.1))
    optimizer.build(variables)
    assert [x.base_name for x in optimizer.optax_state.values()] == [
        *("count", "0_mu", "count_mu", "mu_mu", "0_nu", "count_nu", "mu_nu")
    ]


def test_keys_of_a_state_may_have_slashes():
    halving = optax.GradientTransformation(
        lambda p: {"a/b": jnp.zeros(()), "a": {"b": jnp.ones(())}},
        lambda g, s, p=None: (g, {"a/b": s["a/b"] + 1, "a": {"b": s["a"]["b"] * 5}}),
    )
    optimizer = tg.optimizers.from_optax(halving)
    optimizer.apply_gradients([(tg.constant([1.0]), tg.Variable([1.0]))])
    assert {k: float(v) for k, v in optimizer.optax_state.items()} == {"a/b": 5.0, "a/b_1": 1.0}


def test_variables_of_colliding_names_are_all_updated():
    variables = [tg.Variable([n], name=k) for n, k in ((1.0, "k"), (2.0, "k"), (3.0, "k_1"))]
    optimizer = tg.optimizers.from_optax(optax.sgd(0.5, momentum=0.9))
    optimizer.apply_gradients([(tg.constant([1.0]), v) for v in variables])
    assert [float(v[0]) for v in variables] == [0.5, 1.5, 2.5]
    assert [x.base_name for x in optimizer.optax_state.values()] == [
        *("k_trace", "k_1_trace", "k_2_trace")
    ]


def test_steps_outside_of_functions_minimize_and_apply():
    v = tg.Variable([1.0, 2.0])
    optimizer = tg.optimizers.from_optax(optax.sgd(0.25))
    optimizer.minimize(lambda: tg.reduce_sum(v * v), [v])
    np.testing.assert_array_equal(v.numpy(), [0.5, 1.0])
    optimizer.apply([tg.constant([2.0, 0.0])], [v])
    np.testing.assert_array_equal(v.numpy(), [0.0, 1.0])
    with pytest.raises(tg.errors.GradientError, match="there is no tape"):
        optimizer.minimize(tg.constant(1.0), [v])


def test_a_checkpoint_goes_on_where_it_was(tmp_path):
    def made():
        v = tg.Variable([1.0, 2.0], name="v")
        return v, tg.optimizers.from_optax(optax.adam(0.1))

    v, optimizer = made()
    optimizer.apply_gradients([(tg.constant([1.0, -1.0]), v)])
    tg.train.Checkpoint(v=v, optimizer=optimizer).write(str(tmp_path / "c"))
    optimizer.apply_gradients([(tg.constant([1.0, 3.0]), v)])
    w, other = made()
    other.build([w])
    tg.train.Checkpoint(v=w, optimizer=other).read(str(tmp_path / "c"))
    other.apply_gradients([(tg.constant([1.0, 3.0]), w)])
    assert v.numpy().tobytes() == w.numpy().tobytes() and int(other.iterations) == 2


def test_a_state_that_jax_makes_of_numbers_widens_nothing():
    halving = optax.GradientTransformation(
        lambda p: jnp.asarray(0.5), lambda g, s, p=None: (jax.tree.map(lambda g: g * s, g), s)
    )
    wide = optax.GradientTransformation(
        lambda p: jax.tree.map(jnp.zeros_like, p),
        lambda g, s, p=None: (g, jax.tree.map(jnp.add, s, g)),
    )
    v = tg.Variable([1.0], dtype=tg.bfloat16, name="v")
    optimizer = tg.optimizers.from_optax(optax.chain(halving, wide))
    for _ in range(2):
        optimizer.apply_gradients([(tg.constant([1.0], tg.bfloat16), v)])
    assert v.dtype is tg.bfloat16 and float(v[0]) == 2.0
    assert float(optimizer.optax_state["1/v"][0]) == 1.0


def test_complex_numbers_of_128_bits():
    start, gradient = np.array([1 + 2j, -3j]), np.array([0.5 - 1j, 2.0])
    v = tg.Variable(start, name="v")
    optimizer = tg.optimizers.from_optax(optax.adam(0.1))
    optimizer.apply_gradients([(tg.constant(gradient), v)])
    with jax.enable_x64(True):
        p = {"v": jnp.asarray(start)}
        updates, _ = optax.adam(0.1).update({"v": jnp.asarray(gradient)}, optax.adam(0.1).init(p))
        wanted = optax.apply_updates(p, updates)["v"]
    assert v.dtype is tg.complex128
    np.testing.assert_allclose(v, wanted, 1e-15)


class Model(tg.Module):
    def __init__(self, optimizer):
        super().__init__()
        self.kernel = tg.Variable(parameters()["kernel"], name="kernel")
        self.optimizer = optimizer

    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def __call__(self, x):
        return tg.from_jax(lambda w, x: jax.nn.gelu(x @ w))(self.kernel, x)

    @tg.function(input_signature=[tg.TensorSpec([None, 4])])
    def train(self, x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(self(x) ** 2)
        self.optimizer.minimize(loss, [self.kernel], tape)
        return loss


ELSEWHERE = """
model = tg.saved_model.load(sys.argv[1])
x = tg.ones([5, 4])
losses = [float(model.train(x)) for _ in range(3)]
hessian = tg.hessian(lambda x: tg.reduce_sum(model(x) ** 2))(x)
print(losses, hessian.shape, float(tg.reduce_sum(hessian)))
"""


def test_a_saved_step_trains_on_without_optax(tmp_path):
    model = Model(tg.optimizers.from_optax(optax.adamw(1e-2)))
    x = tg.ones([5, 4])
    model.train(x)
    tg.saved_model.save(model, str(tmp_path))
    found = printed(ELSEWHERE, tmp_path)
    losses = [float(model.train(x)) for _ in range(3)]
    hessian = tg.hessian(lambda x: tg.reduce_sum(model(x) ** 2))(x)
    total = float(tg.reduce_sum(hessian))
    first, rest = found.split("]", 1)
    np.testing.assert_allclose([float(n) for n in first.strip("[").split(",")], losses, 1e-6)
    assert rest.startswith(" (5, 4, 5, 4) ")
    np.testing.assert_allclose(float(rest.split()[-1]), total, 1e-5)


# What is refused.


def test_what_is_no_transformation_is_refused():
    with pytest.raises(tg.errors.TraceError, match="3 has no functions init and update"):
        tg.optimizers.from_optax(3)


def test_other_variables_than_those_of_the_first_step_are_refused():
    v, w = tg.Variable([1.0], name="v"), tg.Variable([1.0], name="w")
    optimizer = tg.optimizers.from_optax(optax.adam(0.1))
    g = tg.constant([1.0])
    optimizer.apply_gradients([(g, v)])
    before = [x.numpy() for x in optimizer.variables]
    with pytest.raises(tg.errors.SignatureError, match="of the variables v"):
        optimizer.apply_gradients([(g, v), (g, w)])
    assert [x.numpy() for x in optimizer.variables] == before and w.numpy() == [1.0]
    with pytest.raises(tg.errors.SignatureError, match="for v:0, which are others of the same"):
        optimizer.apply_gradients([(g, tg.Variable([1.0], name="v"))])


def test_a_state_that_changes_its_structure_is_refused():
    v = tg.Variable([1.0], name="v")
    growing = optax.GradientTransformation(
        lambda p: (jnp.zeros(()),), lambda g, s, p=None: (g, (*s, jnp.zeros(())))
    )
    optimizer = tg.optimizers.from_optax(growing)
    with pytest.raises(tg.errors.SignatureError, match="keeps its structure"):
        optimizer.apply_gradients([(tg.constant([1.0]), v)])
    assert v.numpy() == [1.0] and int(optimizer.iterations) == 0


@pytest.mark.parametrize("updates", [{}, None, {"v": None}, [1.0]])
def test_updates_that_leave_a_variable_out_are_refused(updates):
    v = tg.Variable([1.0], name="v")
    lacking = optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (updates, s))
    optimizer = tg.optimizers.from_optax(lacking)
    with pytest.raises(tg.errors.SignatureError, match="returns updates of the structure"):
        optimizer.apply_gradients([(tg.constant([1.0]), v)])
    assert v.numpy() == [1.0] and int(optimizer.iterations) == 0


@pytest.mark.parametrize("after", [jnp.zeros(2), jnp.zeros((), jnp.int32)])
def test_a_state_that_changes_its_type_is_refused_before_anything_is_assigned(after):
    v = tg.Variable([1.0], name="v")
    changing = optax.GradientTransformation(
        lambda p: (jnp.zeros(()), jnp.zeros(())), lambda g, s, p=None: (g, (s[0] + 1, after))
    )
    optimizer = tg.optimizers.from_optax(changing)
    optimizer.build([v])
    with pytest.raises(tg.errors.SignatureError, match=r"of '1', which is f32\[\]; nothing was"):
        optimizer.apply_gradients([(tg.constant([1.0]), v)])
    assert v.numpy() == [1.0] and [x.numpy() for x in optimizer.variables] == [0, 0.0, 0.0]


def test_a_constraint_that_changes_the_shape_is_refused_before_anything_is_assigned():
    v = tg.Variable([1.0, 2.0], name="v", constraint=lambda x: x[:1])
    optimizer = tg.optimizers.from_optax(optax.sgd(0.1, momentum=0.9))
    optimizer.build([v])
    with pytest.raises(tg.errors.SignatureError, match=r"f32\[1\] of 'v', which is f32\[2\]"):
        optimizer.apply_gradients([(tg.constant([1.0, 1.0]), v)])
    assert float(tg.reduce_sum(optimizer.optax_state["0/trace/v"])) == 0.0


@pytest.mark.parametrize("decorate", [lambda step: step, tg.function])
def test_a_first_step_that_is_refused_leaves_no_state(decorate):
    """It left the state of the refused variables, and then refused the right ones."""
    v, w = tg.Variable([1.0], name="v"), tg.Variable([1.0, 1.0], name="w")
    optimizer = tg.optimizers.from_optax(optax.polyak_sgd())
    pairs = [(tg.constant([1.0]), v), (tg.constant([1.0, 1.0]), w)]
    with pytest.raises(tg.errors.SignatureError, match="value=loss"):
        decorate(lambda: optimizer.apply_gradients(pairs))()
    assert not optimizer.optax_state and len(optimizer.variables) == 1
    optimizer.apply_gradients(pairs[:1], value=tg.constant(1.0))
    assert v.numpy() != [1.0] and int(optimizer.iterations) == 1


def test_a_state_that_cannot_be_variables_is_not_created_in_part():
    v = tg.Variable([1.0], name="v")
    odd = optax.GradientTransformation(
        lambda p: (jnp.zeros(()), object()), lambda g, s, p=None: (g, s)
    )
    optimizer = tg.optimizers.from_optax(odd)
    for take in (lambda: optimizer.build([v]), lambda: optimizer.apply([tg.ones([1])], [v])):
        with pytest.raises(tg.errors.DTypeError, match="object"):
            take()
        assert not optimizer.optax_state


def test_a_variable_that_is_given_twice_is_refused():
    v = tg.Variable([1.0], name="v")
    optimizer = tg.optimizers.from_optax(optax.sgd(0.1))
    with pytest.raises(tg.errors.SignatureError, match="variable v:0 was given 2 times in one"):
        optimizer.apply_gradients([(tg.constant([1.0]), v)] * 2)


def test_what_a_transformation_does_not_take_is_named():
    v = tg.Variable([1.0], name="v")
    plain = optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (g, s))
    with pytest.raises(tg.errors.SignatureError, match="transformation takes no 'value'"):
        tg.optimizers.from_optax(plain).apply_gradients([(tg.ones([1]), v)], value=1.0)
    wrapped = tg.optimizers.from_optax(optax.with_extra_args_support(plain))  # as the fix says
    wrapped.apply_gradients([(tg.ones([1]), v)], value=1.0)
    assert v.numpy() == [2.0]


def test_what_a_transformation_takes_besides_is_named():
    v = tg.Variable([1.0], name="v")
    optimizer = tg.optimizers.from_optax(optax.lbfgs())
    with pytest.raises(tg.errors.SignatureError, match="'value', 'grad', and 'value_fn'"):
        optimizer.apply_gradients([(tg.constant([1.0]), v)])
