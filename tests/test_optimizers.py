"""Optimizers against Keras' formulae written in NumPy, in both modes; options and errors."""

import copy

import numpy as np
import pytest

import tracegraph as tg

# The same lambda is decorated for every case.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(3)
START = [RANDOM.normal(size=(3, 2)).astype(np.float32), np.float32(0.5)]
GRADIENTS = [[RANDOM.normal(size=np.shape(w)).astype(np.float32) for w in START] for _ in range(5)]


# ---------------------------------------------------------------- the formulae


def sgd(lr=0.01, momentum=0.0, nesterov=False, weight_decay=None):
    slots = {}

    def step(t, key, w, g):
        if weight_decay:
            w = w - w * weight_decay * lr
        if not momentum:
            return w - lr * g
        m = slots[key] = momentum * slots.get(key, 0 * w) - lr * g
        return w + momentum * m - lr * g if nesterov else w + m

    return step


def adam(lr=0.001, b1=0.9, b2=0.999, epsilon=1e-7, amsgrad=False, weight_decay=None):
    slots = {}

    def step(t, key, w, g):
        if weight_decay:
            w = w - w * weight_decay * lr
        m, v, top = slots.get(key, (0 * w, 0 * w, 0 * w))
        m = m + (g - m) * (1 - b1)
        v = v + (g * g - v) * (1 - b2)
        top = np.maximum(top, v)
        slots[key] = m, v, top
        rate = lr * np.sqrt(1 - b2**t) / (1 - b1**t)
        return w - rate * m / (np.sqrt(top if amsgrad else v) + epsilon)

    return step


CASES = {
    "sgd": (lambda: tg.optimizers.SGD(0.1), sgd(0.1)),
    "sgd by default": (tg.optimizers.SGD, sgd()),
    "momentum": (lambda: tg.optimizers.SGD(0.1, momentum=0.9), sgd(0.1, 0.9)),
    "nesterov": (lambda: tg.optimizers.SGD(0.1, 0.9, nesterov=True), sgd(0.1, 0.9, True)),
    "sgd with decay": (
        lambda: tg.optimizers.SGD(0.1, weight_decay=0.2),
        sgd(0.1, weight_decay=0.2),
    ),
    "adam": (lambda: tg.optimizers.Adam(0.1), adam(0.1)),
    "adam by default": (tg.optimizers.Adam, adam()),
    "adam with all arguments": (
        lambda: tg.optimizers.Adam(learning_rate=0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
        adam(0.1, 0.8, 0.9, 1e-3),
    ),
    "amsgrad": (lambda: tg.optimizers.Adam(0.1, amsgrad=True), adam(0.1, amsgrad=True)),
    "adamw": (lambda: tg.optimizers.AdamW(0.1), adam(0.1, weight_decay=0.004)),
    "adamw with decay": (
        lambda: tg.optimizers.AdamW(0.1, weight_decay=0.3),
        adam(0.1, weight_decay=0.3),
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["top level", "function"])
@pytest.mark.parametrize("name", CASES)
def test_steps_follow_the_formula(name, compiled):
    make, step = CASES[name]
    step = copy.deepcopy(step) if not hasattr(step, "__closure__") else fresh(name)
    optimizer = make()
    variables = [tg.Variable(w) for w in START]

    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    apply = tg.function(apply) if compiled else apply
    expected = [w.astype(np.float64) for w in START]
    for t, gradients in enumerate(GRADIENTS, 1):
        apply([tg.constant(g) for g in gradients])
        expected = [
            step(t, k, w, g) for k, (w, g) in enumerate(zip(expected, gradients, strict=True))
        ]
        for variable, w in zip(variables, expected, strict=True):
            np.testing.assert_allclose(variable.numpy(), w, rtol=2e-5, atol=1e-6)
    assert optimizer.iterations.numpy() == len(GRADIENTS)


def fresh(name):
    """The formula of a case without the memory of another test."""
    formula = CASES[name][1]
    cells = dict(
        zip(
            formula.__code__.co_freevars,
            (c.cell_contents for c in formula.__closure__),
            strict=True,
        )
    )
    cells["slots"] = {}
    make = sgd if "nesterov" in cells or "momentum" in cells else adam
    names = {
        "lr": "lr",
        "momentum": "momentum",
        "nesterov": "nesterov",
        "weight_decay": "weight_decay",
        "b1": "b1",
        "b2": "b2",
        "epsilon": "epsilon",
        "amsgrad": "amsgrad",
    }
    return make(**{k: v for k, v in cells.items() if k in names})


def one_step(optimizer, gradient, start=0.0):
    variable = tg.Variable(start)
    optimizer.apply_gradients([(tg.constant(gradient), variable)])
    return variable.numpy()


# ---------------------------------------------------------------- the learning rate


def test_learning_rate_may_be_a_number_a_variable_or_a_function():
    assert one_step(tg.optimizers.SGD(0.5), 1.0) == -0.5
    assert one_step(tg.optimizers.SGD(tg.Variable(0.5)), 1.0) == -0.5
    assert one_step(tg.optimizers.SGD(lambda: 0.5), 1.0) == -0.5
    schedule = tg.optimizers.SGD(lambda step: 1.0 / (1.0 + tg.cast(step, tg.float32)))
    variable = tg.Variable(0.0)
    step = tg.function(lambda g: schedule.apply_gradients([(g, variable)]))
    for _ in range(3):
        step(tg.constant(1.0))
    assert variable.numpy() == pytest.approx(-(1 + 1 / 2 + 1 / 3))


def test_changing_the_learning_rate_does_not_trace_again():
    optimizer, variable = tg.optimizers.SGD(1.0), tg.Variable(0.0)
    step = tg.function(lambda g: optimizer.apply_gradients([(g, variable)]))
    step(tg.constant(1.0))
    count = step.experimental_get_tracing_count()
    optimizer.learning_rate = 0.5
    step(tg.constant(1.0))
    optimizer.learning_rate.assign(0.25)
    step(tg.constant(1.0))
    assert variable.numpy() == -1.75
    assert step.experimental_get_tracing_count() == count
    assert float(optimizer.learning_rate) == 0.25


# ---------------------------------------------------------------- clipping


def test_clipping_of_each_gradient():
    assert one_step(tg.optimizers.SGD(1.0, clipvalue=0.5), [2.0, -0.1], [0.0, 0.0]).tolist() == [
        -0.5,
        pytest.approx(0.1),
    ]
    found = one_step(tg.optimizers.SGD(1.0, clipnorm=1.0), [3.0, 4.0], [0.0, 0.0])
    np.testing.assert_allclose(found, [-0.6, -0.8], rtol=1e-6)


def test_clipping_of_all_gradients_together():
    a, b = tg.Variable(0.0), tg.Variable(0.0)
    optimizer = tg.optimizers.SGD(1.0, global_clipnorm=1.0)
    optimizer.apply_gradients([(tg.constant(3.0), a), (tg.constant(4.0), b)])
    np.testing.assert_allclose([a.numpy(), b.numpy()], [-0.6, -0.8], rtol=1e-6)


# ---------------------------------------------------------------- gradients that are missing


def test_variable_without_gradient_stays():
    a, b = tg.Variable(1.0), tg.Variable(1.0)
    tg.optimizers.SGD(0.5).apply_gradients([(None, a), (tg.constant(1.0), b)])
    assert a.numpy() == 1.0 and b.numpy() == 0.5


def test_no_gradient_at_all_is_an_error():
    v = tg.Variable(1.0, name="weight")
    optimizer = tg.optimizers.Adam()
    with pytest.raises(ValueError, match="weight") as error:
        optimizer.apply_gradients([(None, v)])
    assert isinstance(error.value, tg.errors.GradientError)
    assert "test_optimizers.py" in str(error.value)
    with pytest.raises(ValueError, match="none was given"):
        optimizer.apply_gradients([])
    assert optimizer.iterations.numpy() == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tg.optimizers.SGD(momentum=2.0), "momentum"),
        (lambda: tg.optimizers.Adam(clipnorm=1.0, clipvalue=1.0), "at most one"),
        (lambda: tg.optimizers.Adam(clipnorm=-1.0), "positive"),
    ],
)
def test_bad_arguments_are_errors(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_gradient_of_another_shape_is_an_error_and_changes_nothing():
    v = tg.Variable([1.0, 2.0])
    with pytest.raises(ValueError, match=r"test_optimizers\.py"):
        tg.optimizers.SGD(1.0).apply_gradients([(tg.ones([3]), v)])
    assert v.numpy().tolist() == [1.0, 2.0]


# ---------------------------------------------------------------- state


def test_state_is_in_variables():
    optimizer, v = tg.optimizers.Adam(), tg.Variable([1.0, 2.0], name="w")
    optimizer.apply_gradients([(tg.ones([2]), v)])
    names = [variable.name for variable in optimizer.variables]
    assert names == ["iteration", "learning_rate", "w_momentum", "w_velocity"]
    assert optimizer.trainable_variables == ()


def test_state_is_made_in_a_function_on_its_first_call():
    optimizer, v = tg.optimizers.Adam(0.1), tg.Variable([1.0, 2.0])

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(v * v * x)
        optimizer.apply_gradients(zip(tape.gradient(loss, [v]), [v], strict=True))
        return loss

    losses = [float(step(tg.constant(1.0))) for _ in range(20)]
    assert losses[-1] < losses[0] / 2 and optimizer.iterations.numpy() == 20


def test_state_can_be_made_before_the_first_step():
    optimizer, v = tg.optimizers.SGD(0.1, momentum=0.9), tg.Variable([1.0])
    optimizer.build([v])
    assert len(optimizer.variables) == 3
    step = tg.function(lambda g: optimizer.apply_gradients([(g, v)]))
    step(tg.ones([1]))
    assert step.experimental_get_tracing_count() == 1


def test_the_state_of_an_argument_is_that_of_the_variable_of_the_call():
    optimizer, reference = (tg.optimizers.SGD(0.1, momentum=0.9) for _ in range(2))
    v, w, same = (tg.Variable([1.0, 2.0]) for _ in range(3))

    def step(variable):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(variable * variable)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    traced = tg.function(step)
    outer = tg.function(lambda variable: traced(variable))
    for number in range(3):
        traced(v)
        outer(v)
        for _ in range(2):
            reference.apply_gradients([(2.0 * same.read_value(), same)])
        if number == 0:
            count = traced.experimental_get_tracing_count()
    np.testing.assert_allclose(v.numpy(), same.numpy(), rtol=1e-5)
    assert traced.experimental_get_tracing_count() == count
    traced(w)  # on a later call, and with a state of its own
    np.testing.assert_allclose(w.numpy(), [0.8, 1.6], rtol=1e-5)
    assert len(optimizer.variables) == 2 + 2
    np.testing.assert_allclose(v.numpy(), same.numpy(), rtol=1e-5)


@pytest.mark.parametrize("is_traced", [False, True])
def test_minimize(is_traced):
    optimizer, v = tg.optimizers.SGD(0.25), tg.Variable([1.0, 2.0], trainable=False)

    def step():
        return optimizer.minimize(lambda: tg.reduce_sum(v * v), [v])

    (tg.function(step) if is_traced else step)()
    assert v.numpy().tolist() == [0.5, 1.0] and optimizer.iterations.numpy() == 1
    with tg.GradientTape() as tape:
        tape.watch(v)
        loss = tg.reduce_sum(v * v)
    optimizer.minimize(loss, [v], tape)
    assert v.numpy().tolist() == [0.25, 0.5]
    with pytest.raises(ValueError, match="the loss is a Tensor, and there is no tape") as caught:
        optimizer.minimize(loss, [v])
    assert "fix: give a function" in str(caught.value)


def test_variables_of_several_dtypes():
    optimizer = tg.optimizers.Adam(0.1)
    a, b = tg.Variable([1.0]), tg.Variable([1.0], dtype=tg.float64)
    optimizer.apply_gradients([(tg.ones([1]), a), (tg.ones([1], tg.float64), b)])
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [0.9, 0.9], rtol=1e-5)


def test_constraint_is_applied_after_the_step():
    v = tg.Variable([1.0, 1.0], constraint=lambda w: tg.clip_by_value(w, 0.9, 2.0))
    tg.optimizers.SGD(1.0).apply_gradients([(tg.constant([0.5, -0.5]), v)])
    np.testing.assert_allclose(v.numpy(), [0.9, 1.5])


def test_optimizer_is_a_module_that_can_be_copied():
    optimizer, v = tg.optimizers.SGD(0.1, momentum=0.5), tg.Variable([1.0])
    optimizer.apply_gradients([(tg.ones([1]), v)])
    pair = copy.deepcopy({"optimizer": optimizer, "v": v})
    pair["optimizer"].apply_gradients([(tg.ones([1]), pair["v"])])
    optimizer.apply_gradients([(tg.ones([1]), v)])
    assert pair["v"].numpy() == v.numpy() and len(pair["optimizer"].variables) == 3


def test_training_reaches_the_minimum():
    layer, optimizer = tg.layers.Dense(1), tg.optimizers.Adam(0.1)

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean((layer(x) - y) ** 2)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return loss

    x = RANDOM.normal(size=(64, 2)).astype(np.float32)
    y = x @ np.float32([[2.0], [-1.0]]) + 0.5
    for _ in range(200):
        loss = step(tg.constant(x), tg.constant(y))
    assert float(loss) < 1e-3


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda v: tg.optimizers.SGD("fast"), TypeError, "str"),
        (lambda v: tg.optimizers.SGD([0.1, 0.2]), TypeError, "learning rate"),
        (lambda v: tg.optimizers.SGD(momentum="much"), TypeError, "momentum"),
        (lambda v: tg.optimizers.SGD(momentum=2.0), ValueError, "momentum"),
        (lambda v: tg.optimizers.SGD(clipnorm="a"), TypeError, "clipnorm"),
        (lambda v: tg.optimizers.SGD(weight_decay=[1.0]), TypeError, "weight_decay"),
        (lambda v: tg.optimizers.Adam(beta_1=None), TypeError, "beta_1"),
        (lambda v: tg.optimizers.Adam(amsgrad="yes"), TypeError, "amsgrad"),
        (lambda v: tg.optimizers.Adam().build([1.0]), TypeError, "Variable"),
        (lambda v: tg.optimizers.Adam().build(v), TypeError, "variables is a list"),
        (lambda v: tg.optimizers.SGD().apply_gradients(None), TypeError, "pairs"),
        (lambda v: tg.optimizers.SGD().apply_gradients([(1.0, v)]), ValueError, "gradient"),
        (lambda v: tg.optimizers.SGD().apply_gradients([(tg.ones([3]), v)]), ValueError, "f32"),
    ],
)
def test_bad_arguments_of_optimizers_are_errors(make, kind, words):
    v = tg.Variable([1.0, 2.0])
    with pytest.raises(kind, match=words) as error:
        make(v)
    assert "test_optimizers.py" in str(error.value)
    assert "fix: " in str(error.value)
    assert v.numpy().tolist() == [1.0, 2.0]


NAN = float("nan")
SETTINGS = {
    "learning_rate": (
        [0, 0.0, 1, np.float32(0.5), np.array(0.5), tg.constant(0.5), tg.Variable(0.5), lambda: 1],
        [-0.1, NAN, float("inf"), np.array(-0.5), tg.constant(-0.5)],
        ["0.1", b"1", True, None, 1j, [0.1], np.ones(2), tg.constant(True), tg.Variable([0.5])],
    ),
    "weight_decay": ([None, 0.0, 0.5, 2], [-0.1, NAN], ["0.1", True, tg.constant(0.5)]),
    "beta_1": ([0, 0.0, 0.5], [-0.1, 1, 1.0, NAN], ["0.1", True, None]),
    "beta_2": ([0, 0.0, 0.5], [-0.1, 1, 1.0, NAN], ["0.1", True, None]),
    "epsilon": ([0, 0.0, 0.5], [-1e-7, NAN], ["0.1", True, None]),
    "clipnorm": ([None, 0.5, 2], [-0.1, 0, NAN], ["0.1", True]),
    "clipvalue": ([None, 0.5, 2], [-0.1, 0, NAN], ["0.1", True]),
    "global_clipnorm": ([None, 0.5, 2], [-0.1, 0, NAN], ["0.1", True]),
    "amsgrad": ([True, False], [], ["0.1", 1, 0.5]),
    "momentum": ([0, 0.5, 1], [-0.1, 1.5, NAN], ["0.1", True, None]),
    "nesterov": ([True, False], [], ["0.1", 1, 0.5]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_optimizers_are_numbers_in_their_range(name):
    right, out_of_range, other = SETTINGS[name]
    kinds = (tg.optimizers.SGD, tg.optimizers.Adam, tg.optimizers.AdamW)
    for make in kinds if name not in ("momentum", "nesterov") else kinds[:1]:
        if make is kinds[0] and name in ("beta_1", "beta_2", "epsilon", "amsgrad"):
            continue
        for value in right:
            v = tg.Variable([1.0])
            make(**{name: value}).minimize(lambda v=v: tg.reduce_sum(v * v), [v])
            assert np.isfinite(v.numpy()).all()
        for kind, values in ((ValueError, out_of_range), (TypeError, other)):
            for value in values:
                with pytest.raises(kind, match=name.replace("learning_rate", "learning rate")):
                    make(**{name: value})


def test_a_learning_rate_that_is_assigned_is_checked():
    optimizer = tg.optimizers.Adam(0.5)
    for value, kind in ((-0.1, ValueError), (NAN, ValueError), ("0.1", TypeError)):
        with pytest.raises(kind, match="Adam: the learning rate is"):
            optimizer.learning_rate = value
    assert optimizer.learning_rate.numpy() == 0.5

    @tg.function
    def halve(rate):
        optimizer.learning_rate = rate / 2.0

    halve(tg.constant(0.5))
    assert optimizer.learning_rate.numpy() == 0.25


def test_gradients_adapt_to_the_variable():
    v = tg.Variable([1.0, 2.0])
    wide = tg.Variable([1.0, 2.0], dtype=tg.float64)
    rows = [(np.ones(2), v), ([1.0, 1.0], v), (tg.ones([2]), wide), (np.ones(2, np.float32), wide)]
    tg.optimizers.SGD(0.25).apply_gradients(rows)
    assert v.numpy().tolist() == wide.numpy().tolist() == [0.5, 1.5]


# What a prompt shows.


def test_an_optimizer_shows_its_settings_its_steps_and_whose_state_it_has():
    optimizer = tg.optimizers.Adam(0.01, beta_1=0.8)
    assert repr(optimizer) == (
        "<Adam(learning_rate=0.01, beta_1=0.8): 0 steps, state of 0 variables>"
    )
    v = tg.Variable(1.0)
    optimizer.apply_gradients([(tg.constant(1.0), v)])
    optimizer.learning_rate = 0.5
    assert repr(optimizer) == ("<Adam(learning_rate=0.5, beta_1=0.8): 1 step, state of 1 variable>")

    def slower(step):
        raise AssertionError("a repr computes no rate")

    assert repr(tg.optimizers.SGD(slower, momentum=0.9)) == (
        "<SGD(learning_rate=slower, momentum=0.9): 0 steps, state of 0 variables>"
    )
    shown = []
    tg.function(lambda: shown.append(repr(optimizer)))()
    assert shown == ["<Adam(learning_rate=a Variable, beta_1=0.8): state of 1 variable>"]
