"""Random programs of branches, loops, functions, checks and calls of Python over Variables do what
plain Python does: the same values, the same calls in the same order."""

import random

import pytest

import tracegraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:.*the function was decorated again")

#: What bounds the numbers, so that float32 holds them.
MODULUS = 9973.0
SCALAR = tg.TensorSpec([], tg.float32)
SIMPLE = ("assign", "python", "read", "check")
NESTING = ("cond", "switch", "while", "while python", "fold", "map", "call")


def written(choices, depth):
    """A list of statements: a kind, the numbers of two Variables, a small number and the bodies."""
    kinds = SIMPLE + SIMPLE[:2] + NESTING if depth else SIMPLE
    counts = {"cond": 2, "switch": 3}
    found = []
    for _ in range(choices.randint(1, 3)):
        kind = choices.choice(kinds)
        bodies = range(counts.get(kind, kind in NESTING))
        numbers = choices.randrange(3), choices.randrange(3), choices.randrange(4)
        found.append((kind, *numbers, [written(choices, depth - 1) for _ in bodies]))
    return found


class Model:
    """What plain Python does."""

    def __init__(self):
        self.values, self.log = [1.0, 2.0, 3.0], []

    def called(self, i, j, k, x):
        """The Python function that programs call."""
        self.log.append((x, self.values[i]))
        if k % 2:
            self.values[j] = (self.values[j] * 2 + k) % MODULUS
        return (x + self.values[i]) % MODULUS

    def run(self, statements, x):
        for statement in statements:
            x = self.step(statement, x)
        return x

    def step(self, statement, x):
        kind, i, j, k, bodies = statement
        values = self.values
        if kind == "assign":
            values[i] = (values[i] * 3 + x + k) % MODULUS
        elif kind == "python":
            return self.called(i, j, k, x)
        elif kind == "read":
            return (x + values[i]) % MODULUS
        elif kind in ("cond", "switch"):
            return self.run(bodies[int(x + values[i]) % len(bodies)], x)
        elif kind == "while":
            for _ in range(k):
                if values[i] % 5 == 0:
                    break
                x = self.run(bodies[0], x)
        elif kind == "while python":
            for _ in range(k):
                if self.called(i, j, 1, x) % 5 == 0:
                    break
                x = self.run(bodies[0], x)
        elif kind == "fold":
            for n in range(k):
                x = self.run(bodies[0], (x + n) % MODULUS)
        elif kind == "map":
            return sum(self.run(bodies[0], (x + n) % MODULUS) for n in range(k + 1)) % MODULUS
        elif kind == "call":
            return self.run(bodies[0], x)
        return x


class Machine(Model):
    """The same by tracegraph."""

    def __init__(self):
        super().__init__()
        self.variables = [tg.Variable(value) for value in self.values]
        self._functions = {}

    def python(self, i, j, k, x):
        def called(q):
            self.log.append((float(q), float(self.variables[i].numpy())))
            if k % 2:
                self.variables[j].assign((self.variables[j] * 2.0 + float(k)) % MODULUS)
            return (q + self.variables[i]) % MODULUS

        return tg.py_function(called, [x], SCALAR)

    def step(self, statement, x):
        kind, i, j, k, bodies = statement
        v = self.variables[i]
        run = [lambda x, body=body: self.run(body, x) for body in bodies]
        if kind == "assign":
            v.assign((v * 3.0 + x + float(k)) % MODULUS)
        elif kind == "python":
            return self.python(i, j, k, x)
        elif kind == "read":
            return (x + v) % MODULUS
        elif kind == "check":
            tg.debugging.assert_greater_equal(v, 0.0)
        elif kind == "cond":
            return tg.cond((x + v) % 2.0 == 0.0, lambda: run[0](x), lambda: run[1](x))
        elif kind == "switch":
            place = tg.cast((x + v) % float(len(run)), tg.int32)
            return tg.switch_case(place, [lambda f=f: f(x) for f in run])
        elif kind in ("while", "while python"):
            odd = lambda x: v % 5.0 != 0.0  # noqa: E731
            if kind == "while python":
                odd = lambda x: self.python(i, j, 1, x) % 5.0 != 0.0  # noqa: E731
            goes_on = lambda n, x: tg.cond(n < k, lambda: odd(x), lambda: False)  # noqa: E731
            return tg.while_loop(goes_on, lambda n, x: (n + 1, run[0](x)), (0, x))[1]
        elif kind == "fold":
            step = lambda x, n: run[0]((x + n) % MODULUS)  # noqa: E731
            return tg.foldl(step, tg.range(float(k)), x)
        elif kind == "map":
            rows = tg.map_fn(lambda n: run[0]((x + n) % MODULUS), tg.range(float(k + 1)))
            return tg.reduce_sum(rows) % MODULUS
        elif kind == "call":
            if id(statement) not in self._functions:
                self._functions[id(statement)] = tg.function(run[0])
            return self._functions[id(statement)](x)
        return x


def check(seed):
    program = written(random.Random(seed), 2)
    for is_decorated in (True, False):
        model, machine = Model(), Machine()
        run = lambda x, machine=machine: machine.run(program, x)  # noqa: E731
        run = tg.function(run) if is_decorated else run
        for x in (1.0, 4.0, 2.0):
            assert float(run(tg.constant(x))) == model.run(program, x), program
            assert [float(v) for v in machine.variables] == model.values, program
            assert machine.log == model.log, program


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
def test_programs_do_what_python_does(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_many_programs_do_what_python_does(seed):
    check(seed)
