"""Random programs over five dtypes agree with JAX, which runs the same description by itself: at
top level, in a function, after saving and loading, and under `as_jax`; values and first gradients.

A row of the table has an op twice, for `tg` and for `jax.numpy`. JAX's side knows nothing of ours.
It says the types, and computes the values in float64, once as they are and many times with noise:
each step, forward and backward, is off by a few units in the last place of its type. What all of
that comes to in the end, through all steps, is what rounding may come to here.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    # What is checked is how each type rounds.
    pytest.mark.usefixtures("optimised"),
]

FLOATING = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATING, "int32", "bool", "complex64")
NUMBERS = (*FLOATING, "int32", "complex64")
ORDERED = (*FLOATING, "int32")
SMOOTH = (*FLOATING, "complex64")

#: How far a rounded value may be off, relatively, and what is left of the smallest numbers.
EPSILON = {name: float(jnp.finfo(name).eps) for name in SMOOTH}
TINY = {name: float(jnp.finfo(name).tiny) for name in SMOOTH}
#: A program keeps away from where a type overflows, also in what an op computes on the way.
LARGEST = dict.fromkeys(FLOATING[:2], 8.0) | dict.fromkeys(("float32", "float64"), 1e3)
LARGEST |= {"complex64": 1e3, "int32": 2.0**30, "bool": 1.0}
#: In these types JAX computes what is expected.
WIDE = {**dict.fromkeys(FLOATING, "float64"), "int32": "int32", "bool": "bool"}
WIDE["complex64"] = "complex128"
SAME = {name: name for name in DTYPES}

#: How many times with noise, and of how many units in the last place.
SAMPLES = 16
UNITS = 4.0

#: What takes and returns values of one dtype: the dtypes, how many operands, tg's way, JAX's way.
ARITHMETIC = [
    (NUMBERS, 2, lambda x, y: x + y, lambda x, y: x + y),
    (NUMBERS, 2, lambda x, y: x - y, lambda x, y: x - y),
    (SMOOTH, 2, lambda x, y: tg.tanh(x) * y, lambda x, y: jnp.tanh(x) * y),
    (SMOOTH, 2, lambda x, y: x / (y * y + 9.0), lambda x, y: x / (y * y + 9.0)),
    (("int32",), 2, lambda x, y: x * y % 11, lambda x, y: x * y % 11),
    (("int32",), 1, lambda x: x // 3, lambda x: x // 3),
    (SMOOTH, 1, lambda x: tg.sin(x * 0.3), lambda x: jnp.sin(x * 0.3)),
    (FLOATING, 1, tg.math.sigmoid, jax.nn.sigmoid),
    (FLOATING, 1, tg.nn.softmax, jax.nn.softmax),
    (FLOATING, 1, lambda x: tg.sqrt(x * x + 1.0), lambda x: jnp.sqrt(x * x + 1.0)),
    (ORDERED, 1, lambda x: tg.reduce_max(x, 0) + x, lambda x: jnp.max(x, 0) + x),
    (NUMBERS, 1, lambda x: tg.cumsum(x, 1), lambda x: jnp.cumsum(x, 1)),
    (SMOOTH, 1, lambda x: tg.reduce_mean(x, 1)[:, None] * x, lambda x: x.mean(1)[:, None] * x),
    (SMOOTH, 2, lambda x, y: x @ tg.transpose(y) @ x * 0.1, lambda x, y: x @ y.T @ x * 0.1),
]
#: The same for what does not round.
EXACT = [
    (NUMBERS, 1, lambda x: -x, lambda x: -x),
    # Where both are the same the derivative is that of the first, as in TensorFlow.
    (ORDERED, 2, tg.maximum, lambda x, y: jnp.where(x >= y, x, y)),
    (ORDERED, 2, tg.minimum, lambda x, y: jnp.where(x <= y, x, y)),
    (DTYPES, 1, lambda x: tg.reverse(x, [0]), lambda x: x[::-1]),
    (DTYPES, 1, lambda x: tg.gather(x, [1, 1]), lambda x: x[jnp.array([1, 1])]),
    (DTYPES, 1, lambda x: tg.roll(x, 1, 1), lambda x: jnp.roll(x, 1, 1)),
    (DTYPES, 1, lambda x: tg.reshape(tg.transpose(x), [2, 3]), lambda x: x.T.reshape(2, 3)),
    (
        DTYPES,
        2,
        lambda x, y: tg.concat([x[:1], y[1:]], 0),
        lambda x, y: jnp.concatenate([x[:1], y[1:]], 0),
    ),
    (("bool",), 2, tg.logical_and, jnp.logical_and),
    (("bool",), 2, tg.math.logical_xor, jnp.logical_xor),
    (("bool",), 1, tg.logical_not, jnp.logical_not),
]


class Step:
    """One op of a program. `cast_to` is the dtype that an op of JAX casts to, by name."""

    def __init__(self, dtype, ours, theirs, places, *, is_rounded=False, cast_to=None):
        self.dtype, self.ours, self.theirs, self.places = dtype, ours, theirs, places
        self.is_rounded, self.cast_to = is_rounded and dtype in EPSILON, cast_to

    def by_jax(self, values, types):
        if self.cast_to:
            return self.theirs(*values).astype(types[self.cast_to])
        return self.theirs(*values)


class Program:
    """A random list of steps over a pool of values of shape [2, 3]; five dtypes are given."""

    def __init__(self, seed):
        author = random.Random(seed)
        self.given = sorted(author.sample(DTYPES, 5), key=DTYPES.index)
        self.inputs = [numbers(np.random.default_rng([seed, 1]), x) for x in self.given]
        self.dtypes = [*self.given]
        self.steps = []
        length = author.randint(5, 40)
        with jax.enable_x64(True):
            values = [jnp.asarray(x).astype(WIDE[name]) for x, name in zip(self.inputs, self.given)]
            while len(self.steps) < length:
                step = self.step(author)
                value = step.by_jax([values[i] for i in step.places], WIDE)
                if jnp.abs(value).max() < LARGEST[step.dtype] or value.dtype == bool:
                    values.append(value)
                    self.steps.append(step)
                    self.dtypes.append(step.dtype)

    def step(self, author):
        kinds = ["row"] * 6 + ["cast", "less", "where", "magnitude", "complex"]
        while True:
            try:
                return getattr(self, author.choice(kinds))(author)
            except LookupError:
                pass  # there is no value of that type yet

    def pick(self, author, dtypes):
        places = [i for i, dtype in enumerate(self.dtypes) if dtype in dtypes]
        return author.choice([*places, *places[-2:]])

    def row(self, author):
        row = author.choice([*ARITHMETIC, *EXACT])
        dtypes, count, ours, theirs = row
        dtype = author.choice(dtypes)
        places = [self.pick(author, [dtype]) for _ in range(count)]
        return Step(dtype, ours, theirs, places, is_rounded=row in ARITHMETIC)

    def cast(self, author):
        source = self.pick(author, (*FLOATING, "int32", "bool"))
        real = self.dtypes[source] in ("int32", "bool")
        dtype = author.choice([*FLOATING, "int32", "complex64"] if real else FLOATING)
        is_rounded = EPSILON.get(dtype, 0) > EPSILON.get(self.dtypes[source], 0)
        return Step(
            dtype,
            lambda x: tg.cast(x, dtype),
            lambda x: x,
            [source],
            is_rounded=is_rounded,
            cast_to=dtype,
        )

    def less(self, author):
        first = self.pick(author, ORDERED)
        second = self.pick(author, [self.dtypes[first]])
        return Step("bool", lambda x, y: x < y, lambda x, y: x < y, [first, second])

    def where(self, author):
        condition, first = self.pick(author, ["bool"]), self.pick(author, DTYPES)
        second = self.pick(author, [self.dtypes[first]])
        return Step(self.dtypes[first], tg.where, jnp.where, [condition, first, second])

    def magnitude(self, author):
        def ours(x):
            return tg.math.real(x * tg.math.conj(x)) * 0.2 + tg.math.imag(x)

        def theirs(x):
            return jnp.real(x * jnp.conj(x)) * 0.2 + jnp.imag(x)

        places = [self.pick(author, ["complex64"])]
        return Step("float32", ours, theirs, places, is_rounded=True)

    def complex(self, author):
        places = [self.pick(author, ["float32"]) for _ in range(2)]
        return Step("complex64", tg.complex, jax.lax.complex, places)

    def is_floating(self):
        return [name in FLOATING for name in self.given]

    def run(self, *inputs):
        """The values of the steps, by tg."""
        values = [*inputs]
        for step in self.steps:
            values.append(step.ours(*(values[i] for i in step.places)))
        return values[len(inputs) :]

    def loss(self, values):
        """One number that every value of the program with a derivative counts in."""
        total = tg.constant(0.0, "float64")
        for step, y in zip(self.steps, values):
            if step.dtype in FLOATING:
                total = total + tg.reduce_sum(tg.cast(tg.sin(y), "float64"))
        return total

    def run_by_jax(self, *inputs):
        """The values of the steps, by JAX."""
        values = [*inputs]
        for step in self.steps:
            values.append(step.by_jax([values[i] for i in step.places], SAME))
        return values[len(inputs) :]

    def loss_by_jax(self, noise, *inputs):
        """The loss and the values in float64. `noise` has numbers from -1 to 1 for each step."""
        values, total = [*inputs], 0.0
        for step, (relative, absolute, last) in zip(self.steps, noise):
            operands = [values[i] for i in step.places]
            value = step.by_jax(operands, WIDE)
            if step.is_rounded:
                value = value * (1 + relative * UNITS * EPSILON[step.dtype])
                off = UNITS * (EPSILON[step.dtype] * size(step, operands) + TINY[step.dtype])
                value = value + jax.lax.stop_gradient(absolute * off)
            values.append(value)
            if step.dtype in FLOATING:
                off = last * UNITS * EPSILON[step.dtype]
                total = total + jnp.sin(value * (1 + off)).sum()
        return total, values[len(inputs) :]


def size(step, operands):
    """How large the numbers are that a step adds up."""
    whole = [*operands, step.theirs(*map(jnp.abs, operands))]
    return jnp.max(jnp.array([jnp.abs(x).max() for x in whole]))


def numbers(generator, dtype):
    if dtype == "bool":
        return generator.integers(0, 2, (2, 3)).astype(bool)
    if dtype == "int32":
        return generator.integers(-5, 6, (2, 3)).astype(np.int32)
    found = generator.standard_normal((2, 3))
    if dtype == "complex64":
        found = found + 1j * generator.standard_normal((2, 3))
    return found.astype(jnp.dtype(dtype))


def by_tg(program, *inputs):
    """The values, and the gradients of the loss by the inputs that are floating."""
    sources = [x for x, is_floating in zip(inputs, program.is_floating()) if is_floating]
    with tg.GradientTape() as tape:
        tape.watch(sources)
        values = program.run(*inputs)
        loss = program.loss(values)
    return [*values, *tape.gradient(loss, sources, unconnected_gradients="zero")]


def with_loss(program):
    def forward(*inputs):
        values = program.run(*inputs)
        return program.loss(values), values

    return forward


class Expected:
    """What JAX says of a program: the types, the values and how far rounding may take them. One
    program is quicker as a whole (`jax.jit`); many share what JAX compiles of single ops."""

    def __init__(self, program, seed, compiled):
        where = [i for i, is_floating in enumerate(program.is_floating()) if is_floating]

        def both(noise, *inputs):
            derive = jax.grad(program.loss_by_jax, [i + 1 for i in where], has_aux=True)
            gradients, values = derive(noise, *inputs)
            return [*values, *gradients]

        with jax.enable_x64(True):
            given = [*map(jnp.asarray, program.inputs)]
            self.types = [*jax.eval_shape(program.run_by_jax, *given), *(given[i] for i in where)]
            wide = [x.astype(WIDE[name]) for x, name in zip(given, program.given)]
            noise = np.random.default_rng([seed, 2]).uniform(
                -1, 1, (SAMPLES, len(program.steps), 3, 2, 3)
            )
            self.values = [*map(np.asarray, compiled(both)(np.zeros_like(noise[0]), *wide))]
            found = compiled(jax.vmap(both, (0, *(None for _ in wide))))(noise, *wide)
            self.samples = [*map(np.asarray, found)]

    def check(self, found, what):
        expected = [*zip(self.types, self.values, self.samples)]
        assert len(found) == len(expected)
        for i, (x, (typed, y, samples)) in enumerate(zip(found, expected)):
            x = np.asarray(x)
            assert (x.dtype, x.shape) == (typed.dtype, typed.shape), f"{what}, value {i}"
            if y.dtype.kind in "ib":  # where noise changes it, it may be either
                x = np.where((samples == y).all(0), x, y)
                np.testing.assert_array_equal(x, y, err_msg=f"{what}, value {i}")
                continue
            name = typed.dtype.name
            # The sums inside a rule may cancel, so the largest element counts too.
            allowed = 2 * np.abs(samples - y).max(0) + UNITS * EPSILON[name] * np.abs(y).max()
            off = np.abs(x.astype(y.dtype) - y)
            assert np.all(off <= allowed + UNITS * TINY[name]), (
                f"{what}, value {i} of {len(expected)}: {x} is off by {off}, allowed are {allowed}"
            )


def check(seed, folder, compiled=lambda function: function):
    program = Program(seed)
    expected = Expected(program, seed, compiled)
    tensors = [*map(tg.constant, program.inputs)]
    specs = [tg.TensorSpec([2, 3], dtype) for dtype in program.given]
    function = tg.function(lambda *xs: by_tg(program, *xs), input_signature=specs)
    expected.check(by_tg(program, *tensors), "top level")
    expected.check(function(*tensors), "function")
    forward = tg.function(with_loss(program), input_signature=specs).as_jax()
    where = [i for i, is_floating in enumerate(program.is_floating()) if is_floating]
    with jax.enable_x64(True):
        derive = jax.grad(lambda *xs: tuple(forward(*xs)), where, has_aux=True)
        gradients, values = derive(*map(jnp.asarray, program.inputs))
        expected.check([*values, *gradients], "as_jax")
    module = tg.Module()
    module.f = function
    tg.saved_model.save(module, folder / "m")
    expected.check(tg.saved_model.load(folder / "m").f(*tensors), "loaded")


@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (0, 1, 3))]
)
def test_programs_of_five_dtypes(seed, tmp_path):
    check(seed, tmp_path, jax.jit)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4, 8), *range(10_000, 12_000)])
def test_many_programs_of_five_dtypes(seed, tmp_path):
    check(seed, tmp_path)
