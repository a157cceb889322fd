"""Random programs of tapes, Variables and nested functions give one result in every mode.

A program is Python source. It runs undecorated, with its inner functions decorated, and decorated
as a whole; gradients and final values of the Variables must agree.
"""

import random

import numpy as np
import pytest

import tracegraph as tg

#: The same code is decorated again for each program.
pytestmark = pytest.mark.filterwarnings("ignore:5 of the last 5 calls")

UNARY = (
    *("tg.sin({0})", "tg.tanh({0})", "{0} * {0}", "tg.exp(-{0} * {0})", "-{0}", "{0} ** 3 * 0.1"),
    *("tg.reverse({0}, [0])", "{0} + tg.reduce_sum({0})", "tg.stop_gradient({0})", "{0}[0] * {0}"),
    *("tg.gather({0}, [1, 0])", "tg.concat([{0}[1:], {0}[:1]], 0)", "tg.sqrt({0} * {0} + 1.0)"),
    *("tg.identity({0})", "tg.reduce_max({0}) * {0}", "tg.cumsum({0})", "tg.math.sigmoid({0})"),
    *("tg.where({0} > 0.2, {0} * 3.0, tg.cos({0}))", "tg.nn.softmax({0})"),
    "tg.cast(tg.cast({0} * 2.0, tg.int32), tg.float64) * 0.5 + {0}",
    "tg.tensor_scatter_nd_update({0}, [[1]], tg.sin({0}[:1]))",
    "tg.stack([tg.reduce_prod({0}), {0}[1]])",
)
BINARY = (
    *("{0} + {1}", "{0} * {1}", "{0} - {1}", "{0} / ({1} * {1} + 1.0)", "tg.maximum({0}, {1})"),
    *("tg.where({0} > {1}, {0}, {1} * 2.0)", "tg.tensordot({0}, {1}, 1) * {0}"),
    "tg.linalg.matvec({0}[:, None] * {1}[None, :], {1}) * 0.3",
)


class Program:
    """The source of a random function `program(a, b)` of vectors of two numbers.

    It may read and assign the Variables v0 and v1, and hands its gradients to `record`.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.budget = self.random.randrange(8, 28)

    def source(self):
        lines = []
        while self.budget > 3 or not lines:
            lines += self.block(["a", "b"], [], 1, 0)
        return "\n".join(["def program(a, b):", *lines, "    return None"])

    def fresh(self, prefix="r"):
        self.count += 1
        return f"{prefix}{self.count}"

    def block(self, values, tapes, indent, depth):
        lines = []
        for _ in range(self.random.randrange(2, 6)):
            if self.budget <= 0:
                break
            self.budget -= 1
            choices = [self.expression] * 4 + [self.read, self.assignment]
            if depth < 3:
                choices += [self.tape] * 3 + [self.function]
            if tapes:
                choices.append(self.gradient)
            lines += self.random.choice(choices)(values, tapes, indent, depth)
        return lines

    def expression(self, values, tapes, indent, depth):
        recent, name = self.random.choice(values[-4:]), self.fresh()
        form = self.random.choice(UNARY + BINARY)
        text = form.format(recent, self.random.choice(values))
        values.append(name)
        return [f"{'    ' * indent}{name} = {text}"]

    def read(self, values, tapes, indent, depth):
        name = self.fresh()
        text = f"v{self.random.randrange(2)} * {self.random.choice(values)}"
        values.append(name)
        return [f"{'    ' * indent}{name} = {text}"]

    def assignment(self, values, tapes, indent, depth):
        method = self.random.choice(["assign", "assign_add", "assign_sub"])
        value = self.random.choice(values)
        return [f"{'    ' * indent}v{self.random.randrange(2)}.{method}(tg.tanh({value}))"]

    def tape(self, values, tapes, indent, depth):
        pad, name = "    " * indent, self.fresh("tape")
        watched = ", ".join(self.random.sample(values, min(len(values), 2)))
        tapes.append(name)
        return [
            f"{pad}with tg.GradientTape(persistent=True) as {name}:",
            f"{pad}    {name}.watch([{watched}])",
            *self.block(values, tapes, indent + 1, depth + 1),
            *self.gradient(values, [name], indent, depth),
        ]

    def gradient(self, values, tapes, indent, depth):
        pad, name = "    " * indent, self.fresh()
        sources = ", ".join(self.random.choice(["v0", "v1", *values]) for _ in range(3))
        call = f"{self.random.choice(tapes)}.gradient({values[-1]}, [{sources}])"
        values.append(name)
        return [f"{pad}{name} = record({call})"]

    def function(self, values, tapes, indent, depth):
        pad, name = "    " * indent, self.fresh("f")
        x, y = f"{name}_x", f"{name}_y"
        inner = [x, y]
        body = self.block(inner, [], indent + 1, depth + 1)
        body = [line.replace("record(", "total(") for line in body]
        results = [self.fresh(), self.fresh()]
        arguments = ", ".join(self.random.choice(values[-4:]) for _ in range(2))
        values += results
        return [
            f"{pad}@decorate",
            f"{pad}def {name}({x}, {y}):",
            *body,
            f"{pad}    return {inner[-1]}, {self.random.choice(inner)}",
            f"{pad}{', '.join(results)} = {name}({arguments})",
        ]


def total(gradients):
    """What a program goes on with: a value made of the gradients that are there."""
    found = [g for g in gradients if g is not None]
    return tg.tanh(tg.add_n(found)) if found else tg.zeros([2], tg.float64)


def apart(function):
    """An undecorated function, whose results are tensors of their own as a decorated one's are."""

    def call(*arguments):
        results = function(*(tg.identity(x) for x in arguments))
        return [tg.identity(y) for y in results]

    return call


def outcome(source, decorate, whole):
    """The gradients that the program recorded, zeros for None, and the final Variables."""
    recorded = []

    def record(gradients):
        recorded.extend(gradients)
        return total(gradients)

    v0 = tg.Variable(np.array([0.5, -0.2]))
    v1 = tg.Variable(np.array([-0.6, 0.9]))
    names = {"tg": tg, "v0": v0, "v1": v1, "record": record, "total": total}
    exec(source, names | {"decorate": decorate}, names)

    def run(a, b):
        recorded.clear()
        names["program"](a, b)
        return list(recorded)

    found = (tg.function(run) if whole else run)(
        tg.constant(np.array([0.3, -0.7])), tg.constant(np.array([1.1, 0.4]))
    )
    zeros = np.zeros(2)
    return [zeros if g is None else g.numpy() for g in found], v0.numpy(), v1.numpy()


def check(seed):
    source = Program(seed).source()
    expected = outcome(source, apart, whole=False)
    for whole in (False, True):
        found = outcome(source, tg.function, whole)
        assert len(found[0]) == len(expected[0])
        for x, y in zip((*found[0], *found[1:]), (*expected[0], *expected[1:]), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9, err_msg=source)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_random_programs(seed):
    check(seed)
