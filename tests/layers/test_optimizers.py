"""Optimizers against Keras' formulae written in NumPy, in both modes; options and errors."""

import copy
import itertools

import numpy as np
import pytest

import tracegraph as tg

# The same function is decorated for every case.
pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

RANDOM = np.random.default_rng(3)
START = [RANDOM.normal(size=(3, 2)).astype(np.float32), np.float32(0.5)]
GRADIENTS = [[RANDOM.normal(size=np.shape(w)).astype(np.float32) for w in START] for _ in range(5)]


# ---------------------------------------------------------------- the formulae
#
# Each is a function of the number of the step, from 1, of the variable's number, its value and its
# gradient, in float64, that returns the new value.


def sgd(lr=0.01, momentum=0.0, nesterov=False):
    slots = {}

    def step(t, key, w, g):
        if not momentum:
            return w - lr * g
        m = slots[key] = momentum * slots.get(key, 0 * w) - lr * g
        return w + momentum * m - lr * g if nesterov else w + m

    return step


def decayed(step, lr, decay):
    return lambda t, key, w, g: step(t, key, w - w * decay * lr, g)


def moments(b1, b2):
    """The running means of a gradient and of its square."""
    slots = {}

    def means(key, g):
        m, v = slots.get(key, (0 * g, 0 * g))
        slots[key] = m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        return m, v

    return means


def adam(lr=0.001, b1=0.9, b2=0.999, epsilon=1e-7, amsgrad=False):
    means, tops = moments(b1, b2), {}

    def step(t, key, w, g):
        m, v = means(key, g)
        tops[key] = np.maximum(tops.get(key, 0), v)
        rate = lr * np.sqrt(1 - b2**t) / (1 - b1**t)
        return w - rate * m / (np.sqrt(tops[key] if amsgrad else v) + epsilon)

    return step


def adamax(lr=0.001, b1=0.9, b2=0.999, epsilon=1e-7):
    means, norms = moments(b1, b2), {}

    def step(t, key, w, g):
        m, _ = means(key, g)
        norms[key] = np.maximum(b2 * norms.get(key, 0), np.abs(g))
        return w - lr / (1 - b1**t) * m / (norms[key] + epsilon)

    return step


def nadam(lr=0.001, b1=0.9, b2=0.999, epsilon=1e-7):
    means = moments(b1, b2)

    def step(t, key, w, g):
        m, v = means(key, g)
        u = [b1 * (1 - 0.5 * 0.96**k) for k in range(1, t + 2)]
        m_hat = u[-1] * m / (1 - np.prod(u)) + (1 - u[-2]) * g / (1 - np.prod(u[:-1]))
        return w - lr * m_hat / (np.sqrt(v / (1 - b2**t)) + epsilon)

    return step


def lamb(lr=0.001, b1=0.9, b2=0.999, epsilon=1e-7):
    means = moments(b1, b2)

    def step(t, key, w, g):
        m, v = means(key, g)
        d = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + epsilon)
        sizes = np.linalg.norm(w), np.linalg.norm(d)
        return w - lr * (sizes[0] / sizes[1] if min(sizes) > 0 else 1) * d

    return step


def schedule_free(lr, b1=0.9, b2=0.999, epsilon=1e-8, warmup=0, decay=0.0):
    kept = {}

    def step(t, k, w, g):
        z, v = kept.get(k, (w, 0.0))  # z begins as the variable, before it decays
        w = w - w * decay * lr
        x = (w - (1 - b1) * z) / b1
        v = b2 * v + (1 - b2) * g * g
        rate = lr * min(t / warmup, 1) if warmup else lr
        z = z - rate * g / (np.sqrt(v / (1 - b2**t)) + epsilon)
        kept[k] = z, v
        return (1 - b1) * z + b1 * (x + (z - x) / t)

    return step


def rmsprop(lr=0.001, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False):
    means, speeds = moments(rho, rho), {}

    def step(t, key, w, g):
        mean, square = means(key, g)
        d = lr * g / np.sqrt(square - (mean**2 if centered else 0) + epsilon)
        speeds[key] = momentum * speeds.get(key, 0) + d
        return w - speeds[key]

    return step


def adagrad(lr=0.001, start=0.1, epsilon=1e-7):
    totals = {}

    def step(t, key, w, g):
        totals[key] = totals.get(key, start) + g * g
        return w - lr * g / np.sqrt(totals[key] + epsilon)

    return step


def adadelta(lr=0.001, rho=0.95, epsilon=1e-7):
    slots = {}

    def step(t, key, w, g):
        s, v = slots.get(key, (0, 0))
        v = rho * v + (1 - rho) * g * g
        d = g * np.sqrt(s + epsilon) / np.sqrt(v + epsilon)
        slots[key] = rho * s + (1 - rho) * d * d, v
        return w - lr * d

    return step


def ftrl(lr=0.001, power=-0.5, start=0.1, l1=0.0, l2=0.0, shrinkage=0.0, beta=0.0):
    slots = {}

    def step(t, key, w, g):
        n, z = slots.get(key, (start, 0))
        new = n + g * g
        sigma = (new**-power - n**-power) / lr
        z = z + g + 2 * shrinkage * w - sigma * w
        slots[key] = new, z
        return (np.clip(z, -l1, l1) - z) / (new**-power / lr + 2 * (l2 + beta / (2 * lr)))

    return step


def lion(lr=0.001, b1=0.9, b2=0.99):
    slots = {}

    def step(t, key, w, g):
        m = slots.get(key, 0 * g)
        slots[key] = b2 * m + (1 - b2) * g
        return w - lr * np.sign(b1 * m + (1 - b1) * g)

    return step


def adafactor(lr=0.001, decay=-0.8, epsilon_1=1e-30, epsilon_2=1e-3, threshold=1.0):
    slots = {}

    def rms(x):
        return np.sqrt(np.mean(x**2))

    def step(t, key, w, g):
        b, s = 1 - t**decay, g * g + epsilon_1
        r, c = slots.get(key, (0, 0))
        if np.ndim(w) < 2:
            v = r = b * r + (1 - b) * s
        else:
            r, c = b * r + (1 - b) * s.mean(-1), b * c + (1 - b) * s.mean(-2)
            v = np.outer(r, c) / r.mean()
        slots[key] = r, c
        u = g / np.sqrt(v)
        u = u / max(1, rms(u) / threshold)
        return w - max(epsilon_2, rms(w)) * min(lr, t**-0.5) * u

    return step


def muon(
    lr=0.001,
    momentum=0.95,
    steps=5,
    nesterov=True,
    abc=(3.4445, -4.7750, 2.0315),
    ratio=1.0,
    rms=0.2,
    decays=(0.004, 0.004),
):
    """Matrices by polynomials of their singular values; other variables by Adam."""
    speeds, other = {}, adam(ratio * lr)

    def step(t, key, w, g):
        w = w - lr * decays[np.ndim(w) == 2] * w
        if np.ndim(w) != 2:
            return other(t, key, w, g)
        m = speeds[key] = momentum * speeds.get(key, 0) + g
        u, s, v = np.linalg.svd(g + momentum * m if nesterov else m, full_matrices=False)
        s = s / (np.sqrt((s**2).sum()) + 1e-7)
        for _ in range(steps):
            s = abc[0] * s + abc[1] * s**3 + abc[2] * s**5
        size = 1 if rms is None else rms * max(w.shape) ** 0.5
        return w - lr * size * (u * s) @ v

    return step


opt = tg.optimizers
CASES = {
    "sgd": (lambda: opt.SGD(0.1), lambda: sgd(0.1)),
    "sgd by default": (opt.SGD, sgd),
    "momentum": (lambda: opt.SGD(0.1, momentum=0.9), lambda: sgd(0.1, 0.9)),
    "nesterov": (lambda: opt.SGD(0.1, 0.9, nesterov=True), lambda: sgd(0.1, 0.9, True)),
    "sgd with decay": (
        lambda: opt.SGD(0.1, weight_decay=0.2),
        lambda: decayed(sgd(0.1), 0.1, 0.2),
    ),
    "adam": (lambda: opt.Adam(0.1), lambda: adam(0.1)),
    "adam by default": (opt.Adam, adam),
    "adam with all arguments": (
        lambda: opt.Adam(learning_rate=0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
        lambda: adam(0.1, 0.8, 0.9, 1e-3),
    ),
    "amsgrad": (lambda: opt.Adam(0.1, amsgrad=True), lambda: adam(0.1, amsgrad=True)),
    "adamw": (lambda: opt.AdamW(0.1), lambda: decayed(adam(0.1), 0.1, 0.004)),
    "adamw with decay": (
        lambda: opt.AdamW(0.1, weight_decay=0.3),
        lambda: decayed(adam(0.1), 0.1, 0.3),
    ),
    "adamax": (lambda: opt.Adamax(0.1), lambda: adamax(0.1)),
    "adamax with all arguments": (
        lambda: opt.Adamax(0.1, 0.8, 0.7, 1e-2),
        lambda: adamax(0.1, 0.8, 0.7, 1e-2),
    ),
    "nadam": (lambda: opt.Nadam(0.1), lambda: nadam(0.1)),
    "nadam with all arguments": (
        lambda: opt.Nadam(0.1, 0.8, 0.9, 1e-2),
        lambda: nadam(0.1, 0.8, 0.9, 1e-2),
    ),
    "lamb": (lambda: opt.Lamb(0.1), lambda: lamb(0.1)),
    "lamb with decay": (
        lambda: opt.Lamb(0.1, 0.8, 0.9, 1e-2, weight_decay=0.1),
        lambda: decayed(lamb(0.1, 0.8, 0.9, 1e-2), 0.1, 0.1),
    ),
    "schedule-free": (lambda: opt.ScheduleFreeAdamW(0.1), lambda: schedule_free(0.1)),
    "schedule-free with all arguments": (
        lambda: opt.ScheduleFreeAdamW(0.1, 0.8, 0.9, 1e-2, 3, weight_decay=0.2),
        lambda: schedule_free(0.1, 0.8, 0.9, 1e-2, 3, decay=0.2),
    ),
    "rmsprop": (lambda: opt.RMSprop(0.1), lambda: rmsprop(0.1)),
    "rmsprop by default": (opt.RMSprop, rmsprop),
    "rmsprop with momentum": (
        lambda: opt.RMSprop(0.1, 0.8, 0.7, 1e-3),
        lambda: rmsprop(0.1, 0.8, 0.7, 1e-3),
    ),
    "rmsprop, centered": (
        lambda: opt.RMSprop(0.1, momentum=0.5, epsilon=1e-3, centered=True),
        lambda: rmsprop(0.1, 0.9, 0.5, 1e-3, True),
    ),
    "adagrad": (lambda: opt.Adagrad(0.1), lambda: adagrad(0.1)),
    "adagrad with all arguments": (
        lambda: opt.Adagrad(0.1, 0.0, 1e-2),
        lambda: adagrad(0.1, 0.0, 1e-2),
    ),
    "adadelta": (lambda: opt.Adadelta(0.5), lambda: adadelta(0.5)),
    "adadelta with all arguments": (
        lambda: opt.Adadelta(1.0, 0.5, 1e-2),
        lambda: adadelta(1.0, 0.5, 1e-2),
    ),
    "ftrl": (lambda: opt.Ftrl(0.1), lambda: ftrl(0.1)),
    "ftrl with all arguments": (
        lambda: opt.Ftrl(0.1, -0.7, 0.2, 0.05, 0.02, 0.03, 0.4),
        lambda: ftrl(0.1, -0.7, 0.2, 0.05, 0.02, 0.03, 0.4),
    ),
    "lion": (lambda: opt.Lion(0.1), lambda: lion(0.1)),
    "adafactor": (lambda: opt.Adafactor(0.6), lambda: adafactor(0.6)),
    "adafactor with all arguments": (
        lambda: opt.Adafactor(0.6, -0.5, 1e-2, 1.5, 0.5),
        lambda: adafactor(0.6, -0.5, 1e-2, 1.5, 0.5),
    ),
    "muon": (lambda: opt.Muon(0.1), lambda: muon(0.1)),
    "muon that decays": (
        lambda: opt.Muon(0.1, adam_weight_decay=0.2, weight_decay=0.3, rms_rate=None),
        lambda: muon(0.1, rms=None, decays=(0.2, 0.3)),
    ),
    "muon with all arguments": (
        lambda: opt.Muon(
            *(0.1, 0.9, 0.999, None, 1e-7, None),
            muon_a=3.0,
            muon_b=-3.2,
            muon_c=1.2,
            momentum=0.5,
            adam_lr_ratio=0.1,
            ns_steps=2,
            nesterov=False,
        ),
        lambda: muon(0.1, 0.5, 2, False, (3.0, -3.2, 1.2), 0.1, decays=(0.0, 0.0)),
    ),
    "lion with all arguments": (lambda: opt.Lion(0.1, 0.5, 0.7), lambda: lion(0.1, 0.5, 0.7)),
}


def values(variables):
    return [v.numpy() for v in variables]


def assert_close(variables, expected):
    for variable, w in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), w, rtol=2e-5, atol=1e-6)


def apply_to(optimizer, variables, compiled):
    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tg.function(apply) if compiled else apply


@pytest.mark.sampled(11)
@pytest.mark.parametrize("compiled", [False, True], ids=["top level", "function"])
@pytest.mark.parametrize("name", CASES)
def test_steps_follow_the_formula(name, compiled, tmp_path):
    make, formula = CASES[name]
    optimizer, step = make(), formula()
    variables = [tg.Variable(w) for w in START]
    apply = apply_to(optimizer, variables, compiled)
    expected = [w.astype(np.float64) for w in START]
    for t, gradients in enumerate(GRADIENTS, 1):
        if t == 4:  # the rest is for others, which take over where these are
            path = tg.train.Checkpoint(o=optimizer, v=variables).write(str(tmp_path / "saved"))
            optimizer, variables = make(), [tg.Variable(0 * w) for w in START]
            status = tg.train.Checkpoint(o=optimizer, v=variables).read(path)
            apply = apply_to(optimizer, variables, compiled)
        apply([tg.constant(g) for g in gradients])
        expected = [
            step(t, k, w, g) for k, (w, g) in enumerate(zip(expected, gradients, strict=True))
        ]
        assert_close(variables, expected)
    status.assert_consumed()
    assert optimizer.iterations.numpy() == len(GRADIENTS)


F = np.float32
#: What is subtracted of a weight in one step, and the new slots, from the gradient, the number of
#: the step and the slots: in float32, operation by operation as the optimizer has them. Those that
#: add up many numbers (Lamb, Adafactor, Muon) or take powers (Ftrl, Nadam) are not among them: XLA
#: chooses the order of a sum, and its powers are not NumPy's.
ONE_STEP = {
    "sgd": (lambda: tg.optimizers.SGD(0.01), lambda g, t: (g * F(0.01),)),
    "momentum": (
        lambda: tg.optimizers.SGD(0.01, momentum=0.9),
        lambda g, t, m: (-(m * F(0.9) - g * F(0.01)), m * F(0.9) - g * F(0.01)),
    ),
    "nesterov": (
        lambda: tg.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        lambda g, t, m: nesterov32(g, m),
    ),
    "adam": (lambda: tg.optimizers.Adam(0.01), lambda g, t, m, v: adam32(g, t, m, v)),
    "amsgrad": (
        lambda: tg.optimizers.Adam(0.01, amsgrad=True),
        lambda g, t, m, v, top: adam32(g, t, m, v, top),
    ),
    "adamax": (lambda: tg.optimizers.Adamax(0.01), lambda g, t, m, u: adamax32(g, t, m, u)),
    "rmsprop": (lambda: tg.optimizers.RMSprop(0.01), lambda g, t, v: rmsprop32(g, v)),
    "adagrad": (
        lambda: tg.optimizers.Adagrad(0.01),
        lambda g, t, s: (F(0.01) * g / np.sqrt((s + g * g) + F(1e-7)), s + g * g),
    ),
    "adadelta": (lambda: tg.optimizers.Adadelta(0.01), lambda g, t, v, s: adadelta32(g, v, s)),
    "lion": (lambda: tg.optimizers.Lion(0.01), lambda g, t, m: lion32(g, m)),
}


def nesterov32(g, m):
    m = m * F(0.9) - g * F(0.01)
    return -(m * F(0.9) - g * F(0.01)), m


def adam32(g, t, m, v, *top):
    m = m + (g - m) * F(1 - 0.9)
    v = v + (g * g - v) * F(1 - 0.999)
    top = [np.maximum(hat, v) for hat in top]
    rate = F(0.01) * np.sqrt(F(1 - 0.999**t)) / F(1 - 0.9**t)
    return m * rate / (np.sqrt(top[0] if top else v) + F(1e-7)), m, v, *top


def adamax32(g, t, m, u):
    m = m + (g - m) * F(1 - 0.9)
    u = np.maximum(u * F(0.999), np.abs(g))
    return m * (F(0.01) / F(1 - 0.9**t)) / (u + F(1e-7)), m, u


def rmsprop32(g, v):
    v = v * F(0.9) + g * g * F(1 - 0.9)
    return F(0.01) * g / np.sqrt(v + F(1e-7)), v


def adadelta32(g, v, s):
    v_new = v * F(0.95) + g * g * F(1 - 0.95)
    d = np.sqrt(s + F(1e-7)) * g / np.sqrt(v_new + F(1e-7))
    return F(0.01) * d, v_new, s * F(0.95) + d * d * F(1 - 0.95)


def lion32(g, m):
    return F(0.01) * np.sign(m * F(0.9) + g * F(1 - 0.9)), m * F(0.99) + g * F(1 - 0.99)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["adam", "adamax", "nadam", "lamb"])
def test_many_steps_in_32_and_16_bits_are_those_of_the_formula(name):
    """1 - 0.999 ** t in float32 would be wrong in the fifth digit, and 0.999 in bfloat16 is 1."""
    make, formula = CASES[name]
    signs = np.sign(RANDOM.normal(size=50))
    starts = {tg.float32: 2 * signs, tg.bfloat16: 3 * signs}
    for dtype, tolerance in ((tg.float32, 2e-7), (tg.bfloat16, 1 / 32)):
        variable = tg.Variable(tg.cast(starts[dtype], dtype))
        optimizer, step, w = make(), formula(), starts[dtype]
        for t in range(1, 9):
            g = np.float64(-signs if t % 4 else signs)  # far from 0, whatever the rounding
            optimizer.apply_gradients([(tg.cast(g, dtype), variable)])
            w = step(t, 0, w, g)
        found = tg.cast(variable, tg.float64).numpy()
        np.testing.assert_allclose(found, w, rtol=tolerance)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("compiled", [False, True], ids=["top level", "function"])
@pytest.mark.parametrize("name", ONE_STEP)
def test_steps_are_the_formula_to_the_last_bit(name, compiled):
    """Each step, from the state before it. Where XLA makes one instruction of a product and a sum,
    it rounds once and not twice: a few results are off by one unit of the last place, as the larger
    one of the numbers has it, and none by more."""
    make, formula = ONE_STEP[name]
    optimizer = make()
    variable = tg.Variable(START[0])
    apply = apply_to(optimizer, [variable], compiled)
    optimizer.build([variable])
    slots = optimizer._slots_of(variable)
    seen = []
    for t, (gradient, _) in enumerate(GRADIENTS, 1):
        w, before = variable.numpy(), [slot.numpy() for slot in slots]
        apply([tg.constant(gradient)])
        step, *after = formula(gradient, t, *before)
        largest = [np.maximum(np.abs(w), np.abs(step)), *map(np.abs, before)]
        found = [variable.numpy(), *(slot.numpy() for slot in slots)]
        for value, expected, size in zip(found, [w - step, *after], largest, strict=True):
            off = np.abs(value - expected) / np.spacing(np.maximum(size, np.abs(expected)))
            assert off.max() <= 1, (t, off)
            seen.append(off.mean())
    assert np.mean(seen) <= 0.2


SLOTS = {
    "momentum": ["momentum"],
    "adam": ["momentum", "velocity"],
    "amsgrad": ["momentum", "velocity", "velocity_hat"],
    "adamax": ["momentum", "norm"],
    "nadam": ["momentum", "velocity"],
    "lamb": ["momentum", "velocity"],
    "rmsprop, centered": ["average_gradient", "momentum", "velocity"],
    "adagrad": ["accumulator"],
    "adadelta": ["accumulated_delta_var", "accumulated_grad"],
    "ftrl": ["accumulator", "linear"],
    "lion": ["momentum"],
}


@pytest.mark.parametrize("name", SLOTS)
def test_slots_have_names_of_keras_in_checkpoints(name, tmp_path):
    optimizer, v = CASES[name][0](), tg.Variable([1.0])
    optimizer.build([v])
    path = tg.train.Checkpoint(o=optimizer, v=v).write(str(tmp_path / "saved"))
    names = [n for n, _ in tg.train.list_variables(path) if "SLOT" in n]
    assert names == [f"v/.OPTIMIZER_SLOT/o/{slot}" for slot in SLOTS[name]]


def test_a_step_is_one_program_that_is_never_built_again():
    """Of all optimizers at once."""
    pairs = [(make(), tg.Variable([1.0, 2.0])) for make, _ in CASES.values()]

    @tg.function
    def step(g):
        for optimizer, v in pairs:
            optimizer.apply_gradients([(g, v)])

    for rate in (0.1, 0.2, 0.3):
        for optimizer, _ in pairs:
            optimizer.learning_rate = rate
        step(tg.ones([2]))
    assert step.experimental_get_tracing_count() == 1
    for name, (_, v) in zip(CASES, pairs, strict=True):
        assert np.isfinite(v.numpy()).all(), name


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


# ---------------------------------------------------------------- what goes around a step

MODES = pytest.mark.parametrize("compiled", [False, True], ids=["top level", "function"])


@MODES
def test_running_means_of_variables(compiled):
    optimizer = tg.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3)
    v = tg.Variable(START[0])
    apply = apply_to(optimizer, [v], compiled)
    w = mean = START[0].astype(np.float64)
    for t, (gradient, _) in enumerate(GRADIENTS, 1):
        apply([tg.constant(gradient)])
        w = w - 0.1 * gradient
        mean = w if t == 1 else 0.7 * mean + 0.3 * w
        w = mean if t % 3 == 0 else w
        assert_close([v], [w])
    optimizer.finalize_variable_values([v])
    assert_close([v], [mean])
    assert [x.name for x in optimizer.variables][2:] == [f"{v.base_name}_average"]


def test_variables_without_running_means_are_final_as_they_are():
    v = tg.Variable(1.0)
    tg.optimizers.SGD(0.5).finalize_variable_values([v])
    assert v.numpy() == 1.0


@MODES
def test_gradients_that_accumulate(compiled):
    optimizer = tg.optimizers.Adam(
        0.1, weight_decay=0.2, clipnorm=0.5, gradient_accumulation_steps=2
    )
    v, step = tg.Variable(START[0]), decayed(adam(0.1), 0.1, 0.2)
    apply = apply_to(optimizer, [v], compiled)
    w, waiting = START[0].astype(np.float64), 0
    for t, (gradient, _) in enumerate(GRADIENTS, 1):
        apply([tg.constant(gradient)])
        waiting = waiting + gradient
        if t % 2 == 0:
            mean, waiting = waiting / 2, 0
            w = step(t // 2, 0, w, mean * min(1, 0.5 / np.linalg.norm(mean)))
        assert_close([v], [w])
    assert optimizer.iterations.numpy() == 5


def test_accumulated_gradients_go_through_checkpoints(tmp_path):
    def pair():
        return tg.Variable(0.0), tg.optimizers.SGD(1.0, gradient_accumulation_steps=2)

    (v, optimizer), (w, other) = pair(), pair()
    optimizer.apply_gradients([(tg.constant(2.0), v)])
    path = tg.train.Checkpoint(v=v, optimizer=optimizer).write(str(tmp_path / "saved"))
    tg.train.Checkpoint(v=w, optimizer=other).read(path).assert_consumed()
    other.apply_gradients([(tg.constant(4.0), w)])
    assert v.numpy() == 0.0 and w.numpy() == -3.0


class FromOne(tg.optimizers.SGD):
    """Has slots that start at 1."""

    def initial_slot(self, name):
        return 1.0


@pytest.mark.parametrize("make", [tg.optimizers.Adagrad, FromOne])
def test_accumulated_gradients_start_at_0_whatever_slots_start_at(make):
    plain, (v, w) = make(0.5), (tg.Variable([1.0, 2.0]) for _ in range(2))
    optimizer = make(0.5, gradient_accumulation_steps=2)
    for part in ([8.0, -4.0], [16.0, 2.0]):
        optimizer.apply_gradients([(tg.constant(part), v)])
    plain.apply_gradients([(tg.constant([12.0, -1.0]), w)])
    assert_close([v], [w.numpy()])


def test_accumulation_does_not_trace_again():
    optimizer, v = tg.optimizers.SGD(1.0, gradient_accumulation_steps=3), tg.Variable(0.0)
    step = tg.function(lambda g: optimizer.apply_gradients([(g, v)]))
    found = []
    for k in range(7):
        step(tg.constant(float(k)))
        found.append(float(v.numpy()))
    assert found == [0, 0, -1, -1, -1, -5, -5]
    assert step.experimental_get_tracing_count() == 1


def test_a_scaled_loss_takes_the_same_step():
    v, w = tg.Variable([1.0, 2.0]), tg.Variable([1.0, 2.0])
    optimizer = tg.optimizers.SGD(0.25, loss_scale_factor=2.0**20)
    optimizer.minimize(lambda: tg.reduce_sum(v * v), [v])
    with tg.GradientTape() as tape:
        loss = optimizer.scale_loss(tg.reduce_sum(w * w))
    assert loss.numpy() == 5.0 * 2**20
    optimizer.apply([tape.gradient(loss, w)], [w])
    assert v.numpy().tolist() == w.numpy().tolist() == [0.5, 1.0]


def test_gradients_that_would_vanish_in_float16():
    def small(x):
        return tg.cast(tg.cast(x, tg.float16) * 1e-4 * 1e-4, tg.float32)

    found = []
    for scale in (None, 2.0**15):
        v = tg.Variable(0.0)
        tg.optimizers.SGD(1.0, loss_scale_factor=scale).minimize(lambda v=v: small(v), [v])
        found.append(float(v.numpy()))
    assert found[0] == 0.0
    assert found[1] == pytest.approx(-1e-8, rel=1e-2)


def test_variables_without_decay():
    kernel, bias, gamma = (tg.Variable(1.0, name=n) for n in ("kernel", "bias", "gamma"))
    optimizer = tg.optimizers.SGD(1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[gamma], var_names=["^bi"])
    optimizer.apply([tg.constant(0.0)] * 3, [kernel, bias, gamma])
    assert values([kernel, bias, gamma]) == [0.5, 1.0, 1.0]


def test_apply_takes_the_variables_of_build():
    a, b = tg.Variable(1.0), tg.Variable(1.0)
    optimizer = tg.optimizers.SGD(1.0)
    optimizer.build([b, a])
    optimizer.apply([tg.constant(0.5), tg.constant(0.25)])
    assert values([a, b]) == [0.75, 0.5]
    with pytest.raises(ValueError, match="1 gradient for 2 variables"):
        optimizer.apply([tg.constant(0.5)])


# ---------------------------------------------------------------- schedules

pi = np.pi
SCHEDULES = {
    "exponential": (
        lambda s: s.ExponentialDecay(0.5, 3, 0.3),
        lambda t: 0.5 * 0.3 ** (t / 3),
    ),
    "exponential, staircase": (
        lambda s: s.ExponentialDecay(0.5, 3, 0.3, staircase=True),
        lambda t: 0.5 * 0.3 ** (t // 3),
    ),
    "inverse time": (
        lambda s: s.InverseTimeDecay(0.5, 3, 0.7),
        lambda t: 0.5 / (1 + 0.7 * t / 3),
    ),
    "inverse time, staircase": (
        lambda s: s.InverseTimeDecay(0.5, 3, 0.7, staircase=True),
        lambda t: 0.5 / (1 + 0.7 * (t // 3)),
    ),
    "piecewise": (
        lambda s: s.PiecewiseConstantDecay([2, 4], [0.5, 0.3, 0.1]),
        lambda t: 0.5 if t <= 2 else 0.3 if t <= 4 else 0.1,
    ),
    "one piece": (lambda s: s.PiecewiseConstantDecay([], [0.5]), lambda t: 0.5),
    "polynomial": (
        lambda s: s.PolynomialDecay(0.5, 4, 0.1, 2.0),
        lambda t: 0.4 * (1 - min(t, 4) / 4) ** 2 + 0.1,
    ),
    "polynomial, cycle": (
        lambda s: s.PolynomialDecay(0.5, 4, 0.1, 0.5, cycle=True),
        lambda t: 0.4 * (1 - t / (4 * max(1, np.ceil(t / 4)))) ** 0.5 + 0.1,
    ),
    "cosine": (
        lambda s: s.CosineDecay(0.5, 5, 0.1),
        lambda t: 0.5 * (0.9 * (1 + np.cos(pi * min(t, 5) / 5)) / 2 + 0.1),
    ),
    "cosine with warm-up": (
        lambda s: s.CosineDecay(0.1, 4, 0.2, warmup_target=0.5, warmup_steps=2),
        lambda t: (
            0.1 + 0.4 * t / 2
            if t < 2
            else 0.5 * (0.8 * (1 + np.cos(pi * min(t - 2, 4) / 4)) / 2 + 0.2)
        ),
    ),
    "restarts": (
        lambda s: s.CosineDecayRestarts(0.5, 2, 2.0, 0.8, 0.1),
        lambda t: wave(t, [0, 2, 6, 14, 30, 62]),
    ),
    "restarts of one length": (
        lambda s: s.CosineDecayRestarts(0.5, 3, 1.0, 0.8, 0.1),
        lambda t: wave(t, range(0, 63, 3)),
    ),
}


def wave(t, starts):
    number, start, end = next(
        (k, a, b) for k, (a, b) in enumerate(itertools.pairwise(starts)) if t < b
    )
    height = 0.8**number * (1 + np.cos(pi * (t - start) / (end - start))) / 2
    return 0.5 * (0.9 * height + 0.1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_follow_the_formula(name):
    make, formula = SCHEDULES[name]
    schedule = make(tg.optimizers.schedules)
    expected = [formula(t) for t in range(31)]
    traced = tg.function(schedule)
    for call in (schedule, lambda t: traced(tg.constant(t))):
        found = [float(call(t)) for t in range(31)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert traced.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("t_mul", "first", "step", "number"),
    [(1.1, 100, 331, 3), (1.1, 1000, 3310, 3), (1.1, 1000, 4641, 4), (2.5, 4096, 10414250, 9)],
)
def test_restarts_are_at_their_step(t_mul, first, step, number):
    schedule = tg.optimizers.schedules.CosineDecayRestarts(1.0, first, t_mul, 0.5)
    assert float(schedule(step)) == pytest.approx(0.5**number, rel=1e-4)
    assert float(schedule(step - first // 50)) < 0.01


def test_an_optimizer_follows_its_schedule_without_a_new_trace():
    schedule = tg.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.25])
    optimizer, v = tg.optimizers.SGD(schedule), tg.Variable(0.0)
    step = tg.function(lambda g: optimizer.apply_gradients([(g, v)]))
    found = [float((step(tg.constant(1.0)), v.numpy())[1]) for _ in range(4)]
    assert found == [-1.0, -2.0, -2.25, -2.5]
    assert step.experimental_get_tracing_count() == 1
    assert float(optimizer.learning_rate) == 0.25
    assert "PiecewiseConstantDecay" in repr(optimizer)


# ---------------------------------------------------------------- scales that adapt


@MODES
def test_a_loss_scale_halves_at_infinity_and_grows_after_it(compiled):
    inner, v = tg.optimizers.SGD(1.0, momentum=0.5), tg.Variable(0.0)
    optimizer = tg.optimizers.LossScaleOptimizer(inner, 8.0, dynamic_growth_steps=2)
    apply = apply_to(optimizer, [v], compiled)
    rows = []
    for gradient in (8.0, np.inf, 4.0, 4.0, 8.0, np.nan):
        apply([tg.constant(np.float32(gradient))])
        rows.append([float(x.numpy()) for x in (v, optimizer.dynamic_scale)])
    # the momentum is that of finite gradients alone: -1, -1.5, -1.75, -1.875
    assert rows == [[-1, 8], [-1, 4], [-2.5, 4], [-4.25, 8], [-6.125, 8], [-6.125, 4]]
    assert optimizer.iterations.numpy() == inner.iterations.numpy() == 4
    optimizer.learning_rate = 0.5
    assert inner.learning_rate.numpy() == 0.5


def test_a_loss_scale_in_minimize_and_in_checkpoints(tmp_path):
    def pair():
        inner = tg.optimizers.Adam(0.1)
        return tg.Variable([1.0, 2.0]), tg.optimizers.LossScaleOptimizer(inner)

    (v, optimizer), (w, other), (x, plain) = pair(), pair(), pair()
    optimizer.minimize(lambda: tg.reduce_sum(v * v), [v])
    path = tg.train.Checkpoint(v=v, optimizer=optimizer).write(str(tmp_path / "saved"))
    tg.train.Checkpoint(v=w, optimizer=other).read(path).assert_consumed()
    for variable, one in ((v, optimizer), (w, other)):
        one.minimize(lambda y=variable: tg.reduce_sum(y * y), [variable])
    for _ in range(2):
        plain.inner_optimizer.minimize(lambda: tg.reduce_sum(x * x), [x])
    assert v.numpy().tolist() == w.numpy().tolist()
    np.testing.assert_allclose(v.numpy(), x.numpy(), rtol=1e-6)
    names = [n for n, _ in tg.train.list_variables(path)]
    assert "v/.OPTIMIZER_SLOT/optimizer/inner_optimizer/velocity" in names


def test_a_step_in_float16_survives_a_scale_that_float16_cannot_hold():
    v = tg.Variable(np.float16(1.0))
    optimizer = tg.optimizers.LossScaleOptimizer(tg.optimizers.SGD(1.0), initial_scale=2.0**17)
    optimizer.apply([tg.constant(np.float16(2.0**15))], [v])
    assert v.numpy() == 0.75


def test_accumulation_inside_of_a_loss_scale():
    inner, v = tg.optimizers.SGD(1.0, gradient_accumulation_steps=2), tg.Variable(0.0)
    optimizer = tg.optimizers.LossScaleOptimizer(inner, 1.0, dynamic_growth_steps=99)
    step = tg.function(lambda g: optimizer.apply_gradients([(g, v)]))
    found = []
    for gradient in (2.0, 4.0, np.inf, 2.0, 8.0):
        step(tg.constant(np.float32(gradient)))
        found.append(float(v.numpy()))
    assert found == [0, -3, -3, -3, -5 * 2 - 3]


# ---------------------------------------------------------------- gradients that are missing


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("get_scaled_loss", "use optimizer.scale_loss"),
        ("get_unscaled_gradients", "leave it out"),
        ("loss_scale", "use optimizer.dynamic_scale"),
    ],
)
def test_what_keras_2_called_otherwise_in_a_scaling_optimizer(name, fix):
    optimizer = tg.optimizers.LossScaleOptimizer(tg.optimizers.SGD(1.0))
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'.*\n.*\n  fix: {fix}"):
        getattr(optimizer, name)
    assert not hasattr(optimizer, "nothing")


@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.optimizers.SGD(0.5),
        lambda: tg.optimizers.LossScaleOptimizer(tg.optimizers.SGD(0.5), initial_scale=1.0),
    ],
)
def test_variable_without_gradient_stays_with_a_warning(make):
    a, b, optimizer = tg.Variable(1.0, name="a"), tg.Variable(1.0, name="b"), make()
    reasons = []

    @tg.function
    def step():
        with tg.GradientTape() as tape:
            loss = b + tg.stop_gradient(a)
        optimizer.apply_gradients(zip(tape.gradient(loss, [a, b]), [a, b]))
        reasons.append(tape.explain(loss, a).reason)

    with pytest.warns(UserWarning, match="no gradient for the variable a:0: the step") as told:
        step()
        step()
    assert len(told) == 1 and told[0].filename == __file__ and reasons == ["stop_gradient"]
    assert a.numpy() == 1.0 and b.numpy() == 0.0


def test_a_warning_of_missing_gradients_stays_short():
    variables = [tg.Variable(1.0, name=f"v{k}") for k in range(14)]
    gradients = [tg.constant(1.0)] + [None] * 13
    with pytest.warns(UserWarning, match="variables v1:0, .* v10:0, and 3 more: the step") as told:
        tg.optimizers.SGD(0.5).apply(gradients, variables)
    assert len(told) == 1


@pytest.mark.parametrize("wrap", [lambda x: x, tg.optimizers.LossScaleOptimizer])
def test_the_former_name_of_the_rate_cannot_be_set(wrap):
    optimizer = wrap(tg.optimizers.SGD(0.5))
    with pytest.raises(AttributeError, match=r"'lr'.*\n.*lr = 0\.1\n  fix: use \.learning_rate"):
        optimizer.lr = 0.1
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == 0.25


def test_a_setting_that_a_traced_step_keeps_is_told():
    v, optimizer = tg.Variable(0.0), tg.optimizers.SGD(1.0, momentum=0.5)

    @tg.function
    def step():
        optimizer.apply_gradients([(tg.constant(1.0), v)])

    optimizer.momentum = 0.75  # before the first step
    step()
    optimizer.momentum = 0.75  # as it was
    optimizer.learning_rate = 2.0  # a Variable
    with pytest.warns(UserWarning, match="keeps the momentum that .*: a setting is") as told:
        optimizer.momentum = 0.0
    assert len(told) == 1 and told[0].filename == __file__
    step()
    assert float(v) == -1.0 - (2.0 + 0.75)


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


schedules = tg.optimizers.schedules


def plain():
    return tg.optimizers.SGD(0.1)


def scaling():
    return tg.optimizers.SGD(0.1, loss_scale_factor=2.0)


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
        (lambda v: tg.optimizers.SGD(use_ema=1), TypeError, "use_ema"),
        (lambda v: tg.optimizers.SGD(use_ema=True, ema_momentum=2.0), ValueError, "ema_momentum"),
        (lambda v: tg.optimizers.SGD(ema_overwrite_frequency=0), ValueError, "overwrite_freq"),
        (lambda v: tg.optimizers.SGD(ema_overwrite_frequency=1.5), TypeError, "overwrite_freq"),
        (lambda v: tg.optimizers.SGD(gradient_accumulation_steps=1), ValueError, "accumulation"),
        (lambda v: tg.optimizers.SGD(gradient_accumulation_steps="2"), TypeError, "accumulation"),
        (lambda v: tg.optimizers.SGD(loss_scale_factor=0.0), ValueError, "loss_scale_factor is 0"),
        (lambda v: tg.optimizers.RMSprop(rho=1.5), ValueError, "rho is 1.5"),
        (lambda v: tg.optimizers.RMSprop(centered=2), TypeError, "centered"),
        (lambda v: tg.optimizers.Adagrad(initial_accumulator_value=-1.0), ValueError, "initial_a"),
        (lambda v: tg.optimizers.Adadelta(epsilon="a"), TypeError, "epsilon"),
        (lambda v: tg.optimizers.Ftrl(learning_rate_power=0.5), ValueError, "learning_rate_power"),
        (lambda v: tg.optimizers.Ftrl(l1_regularization_strength=-1.0), ValueError, "l1_regul"),
        (lambda v: tg.optimizers.Lion(beta_1=1.5), ValueError, "Lion: beta_1 is 1.5"),
        (lambda v: tg.optimizers.Nadam(beta_2=1.0), ValueError, "Nadam: beta_2 is 1.0"),
        (lambda v: tg.optimizers.LossScaleOptimizer("adam"), TypeError, "is an optimizer"),
        (lambda v: tg.optimizers.LossScaleOptimizer(scaling()), ValueError, "scales losses itself"),
        (lambda v: tg.optimizers.LossScaleOptimizer(plain(), 0.0), ValueError, "initial_scale"),
        (lambda v: tg.optimizers.LossScaleOptimizer(plain(), 1.0, 0), ValueError, "growth_steps"),
        (lambda v: plain().apply(v), TypeError, "grads is a list"),
        (lambda v: plain().finalize_variable_values(v), TypeError, "var_list is a list"),
        (lambda v: plain().exclude_from_weight_decay([1.0]), TypeError, "var_list has"),
        (lambda v: schedules.ExponentialDecay(0.1, 0, 0.5), ValueError, "decay_steps is 0"),
        (lambda v: schedules.ExponentialDecay("a", 1, 0.5), TypeError, "initial_learning_rate"),
        (lambda v: schedules.CosineDecay(0.1, -1), ValueError, "decay_steps is -1"),
        (lambda v: schedules.CosineDecay(0.1, 9, warmup_target=1.0), ValueError, "warmup_steps is"),
        (lambda v: schedules.CosineDecayRestarts(0.1, 9, 0.5), ValueError, "t_mul is 0.5"),
        (lambda v: schedules.PolynomialDecay(0.1, 9, cycle="a"), TypeError, "cycle"),
        (lambda v: schedules.PiecewiseConstantDecay([1], [1.0]), ValueError, "1 value, and the b"),
        (lambda v: schedules.PiecewiseConstantDecay([2, 1], [1.0] * 3), ValueError, "do not incr"),
        (lambda v: schedules.PiecewiseConstantDecay(1, [1.0]), TypeError, "boundaries is a list"),
        (lambda v: tg.optimizers.Adam().build(v), TypeError, "var_list is a list"),
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
    moved = []  # all in one program
    for make in kinds if name not in ("momentum", "nesterov") else kinds[:1]:
        if make is kinds[0] and name in ("beta_1", "beta_2", "epsilon", "amsgrad"):
            continue
        for value in right:
            v = tg.Variable([1.0])
            make(**{name: value}).minimize(lambda v=v: tg.reduce_sum(v * v), [v])
            moved.append(v)
        for kind, values in ((ValueError, out_of_range), (TypeError, other)):
            for value in values:
                with pytest.raises(kind, match=name.replace("learning_rate", "learning rate")):
                    make(**{name: value})
    for v in moved:
        assert np.isfinite(v.numpy()).all()


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


def test_a_variable_of_open_size_has_slots_of_open_size():
    variables = [tg.Variable([1.0, 2.0], shape=[None]), tg.Variable([1.0, 2.0])]
    optimizers = [tg.optimizers.Adam(0.1), tg.optimizers.Adam(0.1)]

    @tg.function
    def step():
        for v, optimizer in zip(variables, optimizers):
            optimizer.apply_gradients([(v * v, v)])

    step()
    step()
    assert variables[0].numpy().tolist() == variables[1].numpy().tolist()
    slots = [v for v in optimizers[0].variables if v.shape.rank == 1]
    assert len(slots) == 2 and not any(v.shape.is_fully_defined() for v in slots)


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
    decay = tg.optimizers.schedules.PiecewiseConstantDecay([10], [1.0, 0.5])
    assert repr(decay) == "<PiecewiseConstantDecay(boundaries=[10], values=[1.0, 0.5])>"
    assert repr(tg.optimizers.SGD(decay)).startswith(
        "<SGD(learning_rate=PiecewiseConstantDecay(boundaries=[10], values=[1.0, 0.5])): 0 steps"
    )
    shown = []
    tg.function(lambda: shown.append(repr(optimizer)))()
    assert shown == ["<Adam(learning_rate=a Variable, beta_1=0.8): state of 1 variable>"]


def test_muon_leaves_embeddings_and_what_is_named_to_adam():
    gradient = tg.constant([[1.0, 2.0], [3.0, 4.0]])
    for name, settings in (("embeddings", {}), ("head", {"exclude_layers": ["^he"]})):
        v = tg.Variable(tg.zeros([2, 2]), name=name)
        opt.Muon(0.1, **settings).apply_gradients([(gradient, v)])
        np.testing.assert_allclose(v.numpy(), -0.1, rtol=1e-4)
    v = tg.Variable(tg.zeros([2, 2]), name="embeddings")
    opt.Muon(0.1, exclude_embeddings=False).apply_gradients([(gradient, v)])
    assert (abs(v.numpy() + 0.1) > 1e-3).all()


def test_adafactor_and_muon_keep_no_more_than_they_need():
    matrix, vector = tg.Variable(tg.zeros([3, 5])), tg.Variable(tg.zeros([4]))
    shapes = {}
    for make in (opt.Adafactor, opt.Muon):
        optimizer = make()
        optimizer.build([matrix, vector])
        shapes[make] = [tuple(s.shape) for v in (matrix, vector) for s in optimizer._slots_of(v)]
    assert shapes[opt.Adafactor] == [(3,), (5,), (4,), ()]
    assert shapes[opt.Muon] == [(3, 5), (), (4,), (4,)]


def test_nodes_of_a_step_are_in_the_scope_of_the_optimizer():
    v = tg.Variable([1.0, 2.0])
    optimizer = tg.optimizers.Adam()

    @tg.function
    def step(x):
        optimizer.apply_gradients([(v * x, v)])
        with tg.name_scope("outer"):
            optimizer.apply([x], [v])

    graph = step.get_concrete_function(tg.TensorSpec([2])).graph
    scopes = {node.source.scope for node in graph.nodes if node.op.name == "sqrt"}
    assert scopes == {"optimizer", "outer/optimizer"}


def test_a_schedule_that_a_traced_step_cannot_see_is_told():
    v, optimizer = tg.Variable(1.0), tg.optimizers.SGD(0.5)
    optimizer.learning_rate = lambda: 0.25  # nothing is traced

    @tg.function
    def step():
        optimizer.apply_gradients([(tg.ones([]), v)])

    step()
    with pytest.warns(UserWarning, match="a traced step keeps the learning rate"):
        optimizer.learning_rate = lambda: 0.5
    step()
    assert float(v) == 0.5


def test_an_update_step_as_in_keras_is_refused_where_it_is_defined():
    with pytest.raises(tg.errors.SignatureError) as caught:

        class AsInKeras(tg.optimizers.Optimizer):
            def update_step(self, gradient, variable, learning_rate):
                variable.assign_sub(learning_rate * gradient)

    assert "AsInKeras.update_step takes (self, gradient, variable, learning_rate)" in str(
        caught.value
    )
    assert "fix: write update_step(self, gradient, value, slots, factors)" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda value: value, "a Tensor"),
        (lambda value: (value, value), "2 values"),
        (lambda value: None, "a NoneType"),
    ],
)
def test_an_update_step_returns_a_value_for_the_variable_and_each_slot(returned, words):
    class Own(tg.optimizers.Optimizer):
        def update_step(self, gradient, value, slots, factors):
            return returned(value)

    variable = tg.Variable([1.0, 2.0])
    with pytest.raises(tg.errors.SignatureError, match=f"Own.update_step returned {words}, and"):
        Own(0.1).apply_gradients([(tg.ones([2]), variable)])
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_an_optimizer_without_an_update_step():
    class Nothing(tg.optimizers.Optimizer):
        pass

    with pytest.raises(NotImplementedError, match="the optimizer Nothing defines no update_step"):
        Nothing(0.1).apply_gradients([(1.0, tg.Variable(1.0))])
