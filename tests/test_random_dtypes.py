"""Random programs over five dtypes agree with JAX, which runs the same description by itself: at
top level, in a function, after saving and loading, and under `as_jax`; values and first gradients.

A row of the table has an op twice, for `tg` and for `jax.numpy`. JAX's side knows nothing of ours.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

DTYPES = ("float32", "float64", "int32", "bool", "complex64")
FLOATING = ("float32", "float64")
NUMBERS = ("float32", "float64", "int32", "complex64")
ORDERED = ("float32", "float64", "int32")
SMOOTH = ("float32", "float64", "complex64")

#: What takes and returns values of one dtype: the dtypes, how many operands, tg's way, JAX's way.
SAME = [
    (NUMBERS, 2, lambda x, y: x + y, lambda x, y: x + y),
    (NUMBERS, 2, lambda x, y: x - y, lambda x, y: x - y),
    (SMOOTH, 2, lambda x, y: tg.tanh(x) * y, lambda x, y: jnp.tanh(x) * y),
    (SMOOTH, 2, lambda x, y: x / (y * y + 9.0), lambda x, y: x / (y * y + 9.0)),
    (("int32",), 2, lambda x, y: x * y % 11, lambda x, y: x * y % 11),
    (("int32",), 1, lambda x: x // 3, lambda x: x // 3),
    (NUMBERS, 1, lambda x: -x, lambda x: -x),
    (SMOOTH, 1, lambda x: tg.sin(x * 0.3), lambda x: jnp.sin(x * 0.3)),
    (FLOATING, 1, tg.math.sigmoid, jax.nn.sigmoid),
    (FLOATING, 1, tg.nn.softmax, jax.nn.softmax),
    (FLOATING, 1, lambda x: tg.sqrt(x * x + 1.0), lambda x: jnp.sqrt(x * x + 1.0)),
    (ORDERED, 2, tg.maximum, jnp.maximum),
    (ORDERED, 2, tg.minimum, jnp.minimum),
    (ORDERED, 1, lambda x: tg.reduce_max(x, 0) + x, lambda x: jnp.max(x, 0) + x),
    (NUMBERS, 1, lambda x: tg.cumsum(x, 1), lambda x: jnp.cumsum(x, 1)),
    (SMOOTH, 1, lambda x: tg.reduce_mean(x, 1)[:, None] * x, lambda x: x.mean(1)[:, None] * x),
    (SMOOTH, 2, lambda x, y: x @ tg.transpose(y) @ x * 0.1, lambda x, y: x @ y.T @ x * 0.1),
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


class Program:
    """A random list of steps over a pool of values of shape [2, 3], at least one of each dtype."""

    def __init__(self, seed):
        author = random.Random(seed)
        self.dtypes = [*DTYPES]
        self.steps = []
        for _ in range(author.randint(5, 40)):
            kind = author.choice(["same"] * 6 + ["cast", "less", "where", "magnitude", "complex"])
            dtype, *step = getattr(self, kind)(author)
            self.steps.append(step)
            self.dtypes.append(dtype)
        numbers = np.random.default_rng(seed)
        self.inputs = [
            numbers.standard_normal((2, 3)).astype(np.float32),
            numbers.standard_normal((2, 3)),
            numbers.integers(-5, 6, (2, 3)).astype(np.int32),
            numbers.integers(0, 2, (2, 3)).astype(bool),
            (numbers.standard_normal((2, 3)) + 1j * numbers.standard_normal((2, 3))).astype(
                np.complex64
            ),
        ]

    def pick(self, author, dtypes):
        places = [i for i, dtype in enumerate(self.dtypes) if dtype in dtypes]
        return author.choice([*places, *places[-2:]])

    def same(self, author):
        dtypes, count, ours, theirs = author.choice(SAME)
        dtype = author.choice(dtypes)
        return dtype, ours, theirs, [self.pick(author, [dtype]) for _ in range(count)]

    def cast(self, author):
        source = self.pick(author, ("float32", "float64", "int32", "bool"))
        real = self.dtypes[source] in ("int32", "bool")
        dtype = author.choice(["float32", "float64", "int32", "complex64"] if real else FLOATING)
        return dtype, lambda x: tg.cast(x, dtype), lambda x: x.astype(dtype), [source]

    def less(self, author):
        first = self.pick(author, ORDERED)
        second = self.pick(author, [self.dtypes[first]])
        return "bool", lambda x, y: x < y, lambda x, y: x < y, [first, second]

    def where(self, author):
        condition, first = self.pick(author, ["bool"]), self.pick(author, DTYPES)
        second = self.pick(author, [self.dtypes[first]])
        return self.dtypes[first], tg.where, jnp.where, [condition, first, second]

    def magnitude(self, author):
        source = self.pick(author, ["complex64"])

        def ours(x):
            return tg.math.real(x * tg.math.conj(x)) * 0.2 + tg.math.imag(x)

        def theirs(x):
            return jnp.real(x * jnp.conj(x)) * jnp.float32(0.2) + jnp.imag(x)

        return "float32", ours, theirs, [source]

    def complex(self, author):
        first, second = (self.pick(author, ["float32"]) for _ in range(2))
        return "complex64", tg.complex, jax.lax.complex, [first, second]

    def run(self, side, *inputs):
        """The values of the steps, by tg's way (0) or JAX's (1)."""
        values = [*inputs]
        for step in self.steps:
            values.append(step[side](*(values[i] for i in step[2])))
        return values[len(inputs) :]

    def loss(self, side, *inputs):
        """One number that every value of the program with a derivative counts in."""
        total = 0.0
        for dtype, y in zip(self.dtypes[len(DTYPES) :], self.run(side, *inputs)):
            if dtype in FLOATING:
                total = total + (
                    tg.reduce_sum(tg.cast(tg.sin(y), "float64"))
                    if side == 0
                    else jnp.sin(y).astype("float64").sum()
                )
        return total


def ours(program, *inputs):
    """The values, and the gradients of the loss by the two floating inputs."""
    with tg.GradientTape() as tape:
        tape.watch(inputs[:2])
        loss = tg.convert_to_tensor(program.loss(0, *inputs), "float64")
    gradients = tape.gradient(loss, inputs[:2], unconnected_gradients="zero")
    return [*program.run(0, *inputs), *gradients]


def theirs(program, inputs):
    """The same by JAX."""
    with jax.enable_x64(True):
        arrays = [*map(jnp.asarray, inputs)]
        derive = jax.grad(lambda x, y: program.loss(1, x, y, *arrays[2:]) + 0.0 * y.sum(), (0, 1))
        found = [*program.run(1, *arrays), *derive(*arrays[:2])]
        return [np.asarray(y) for y in found]


def agree(found, expected, what):
    assert len(found) == len(expected)
    for i, (x, y) in enumerate(zip(found, expected)):
        x = np.asarray(x)
        assert (x.dtype, x.shape) == (y.dtype, y.shape), f"{what}, value {i}"
        if y.dtype.kind in "ib":
            np.testing.assert_array_equal(x, y, err_msg=f"{what}, value {i}")
        else:
            # What cancels in float32 is compared with the largest number on the way.
            scale = max(1.0, *(float(np.abs(z).max()) for z in expected if z.dtype.kind in "fc"))
            np.testing.assert_allclose(
                x, y, rtol=1e-4, atol=2e-6 * scale, err_msg=f"{what}, value {i}"
            )


def check(seed, folder):
    program = Program(seed)
    expected = theirs(program, program.inputs)
    tensors = [*map(tg.constant, program.inputs)]
    specs = [tg.TensorSpec([2, 3], dtype) for dtype in DTYPES]
    function = tg.function(lambda *xs: ours(program, *xs), input_signature=specs)
    agree(ours(program, *tensors), expected, "top level")
    agree(function(*tensors), expected, "function")
    values = tg.function(lambda *xs: program.run(0, *xs), input_signature=specs)
    with jax.enable_x64(True):
        given = [*map(jnp.asarray, program.inputs)]
        agree(values.as_jax()(*given), expected[:-2], "as_jax")
        total = tg.function(
            lambda *xs: tg.convert_to_tensor(program.loss(0, *xs), "float64"),
            input_signature=specs,
        ).as_jax()
        derived = jax.grad(total, (0, 1))(*given)
        agree(derived, expected[-2:], "gradient under as_jax")
    module = tg.Module()
    module.f = function
    tg.saved_model.save(module, folder / "m")
    agree(tg.saved_model.load(folder / "m").f(*tensors), expected, "loaded")


@pytest.mark.parametrize("seed", range(8))
def test_programs_of_five_dtypes(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 12_000))
def test_many_programs_of_five_dtypes(seed, tmp_path):
    check(seed, tmp_path)
