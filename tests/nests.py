"""Random nests of branches, loops and calls, which run staged and as plain Python.

A program takes a state, a vector, an integer and a truth value, to the next state. It is a tree of
blocks, each of which runs in a world: `Staged` builds branches and loops, `Plain` decides by Python
on numbers, and has JAX differentiate the steps that were really taken.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import tracegraph as tg

#: How far a value that decides must be from where the decision changes.
MARGIN = 1e-4


class State(NamedTuple):
    """What every block takes and returns: a vector of two numbers, an integer and a truth value."""

    x: Any
    k: Any
    b: Any


class Tie(Exception):
    """A value that decides is so close to the other decision that rounding may decide."""


# Worlds.


#: What the Variable of every program begins with.
START = np.array([0.7, -0.3])


class Staged:
    """Branches and loops become nodes."""

    def __init__(self) -> None:
        self.variable = tg.Variable(START)

    def read(self) -> Any:
        return self.variable.read_value()

    def assign(self, value: Any) -> None:
        self.variable.assign(value)

    sin, cos, tanh = staticmethod(tg.sin), staticmethod(tg.cos), staticmethod(tg.tanh)
    exp, sqrt, total = staticmethod(tg.exp), staticmethod(tg.sqrt), staticmethod(tg.reduce_sum)
    where, opposite = staticmethod(tg.where), staticmethod(tg.logical_not)
    both, cond = staticmethod(tg.logical_and), staticmethod(tg.cond)
    switch, scan = staticmethod(tg.switch_case), staticmethod(tg.scan)
    foldl, foldr, map_fn = staticmethod(tg.foldl), staticmethod(tg.foldr), staticmethod(tg.map_fn)

    @staticmethod
    def above(value: Any) -> Any:
        return value > 0.0

    @staticmethod
    def truncated(value: Any) -> Any:
        return tg.cast(value, tg.int32)

    @staticmethod
    def number(k: Any) -> Any:
        return tg.cast(k, tg.float64)

    @staticmethod
    def while_loop(test: Any, body: Any, state: Any, bound: int | None, slots: int | None) -> Any:
        return tg.while_loop(test, body, state, maximum_iterations=bound, checkpoints=slots)

    @staticmethod
    def call(function: Any, state: Any) -> Any:
        return tg.function(function)(state)

    @staticmethod
    def gradient(function: Any, x: Any) -> Any:
        # A tensor of its own: what the function captures may be the same, which would count too.
        x = tg.identity(x)
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, unconnected_gradients="zero")


class Plain:
    """Python decides. What it decided in a first run, on numbers, it decides again later, where
    JAX hides the numbers that it differentiates."""

    sin, cos, tanh = staticmethod(jnp.sin), staticmethod(jnp.cos), staticmethod(jnp.tanh)
    exp, sqrt, total = staticmethod(jnp.exp), staticmethod(jnp.sqrt), staticmethod(jnp.sum)
    number = staticmethod(float)
    opposite, both = staticmethod(operator.not_), staticmethod(lambda a, b: a and b)
    where = staticmethod(lambda b, x, y: x if b else y)

    def __init__(self) -> None:
        self.decisions: list[Any] = []
        self.start(START)

    def start(self, variable: Any) -> None:
        """Begins a run, with this for the Variable: all that is read counts towards it, and nothing
        towards what was assigned, as in TensorFlow."""
        self.next, self.variable, self.value = 0, variable, jax.lax.stop_gradient(variable)

    def read(self) -> Any:
        return self.value + (self.variable - jax.lax.stop_gradient(self.variable))

    def assign(self, value: Any) -> None:
        self.value = jax.lax.stop_gradient(value)

    def _decided(self, decide: Callable[[], Any]) -> Any:
        if self.next == len(self.decisions):
            self.decisions.append(decide())
        self.next += 1
        return self.decisions[self.next - 1]

    def above(self, value: Any) -> bool:
        return self._decided(lambda: _apart(float(value), 0.0) > 0.0)

    def truncated(self, value: Any) -> int:
        return self._decided(lambda: int(_apart(float(value), round(float(value)))))

    def gradient(self, function: Any, x: Any) -> Any:
        if self.next == len(self.decisions):
            start = self.next
            function(x)
            self.next = start
        return jax.grad(function)(x)

    @staticmethod
    def cond(pred: bool, true_fn: Any, false_fn: Any) -> State:
        return true_fn() if pred else false_fn()

    @staticmethod
    def switch(index: int, branches: list) -> State:
        return branches[index if 0 <= index < len(branches) else -1]()

    @staticmethod
    def while_loop(test: Any, body: Any, state: Any, bound: int | None, slots: int | None) -> Any:
        count = 0
        while test(*state) and (bound is None or count < bound):
            state, count = body(*state), count + 1
        return state

    @staticmethod
    def scan(step: Any, rows: Any, state: State, reverse: bool) -> State:
        found = []
        for row in reversed(list(rows)) if reverse else rows:
            state = step(state, row)
            found.append(state)
        if reverse:
            found.reverse()
        xs = jnp.stack([s.x for s in found]) if found else jnp.zeros((0, 2))
        return State(xs, np.array([s.k for s in found], int), np.array([s.b for s in found], bool))

    @staticmethod
    def foldl(step: Any, rows: Any, state: State) -> State:
        for row in rows:
            state = step(state, row)
        return state

    @staticmethod
    def foldr(step: Any, rows: Any, state: State) -> State:
        return Plain.foldl(step, list(rows)[::-1], state)

    @staticmethod
    def map_fn(function: Any, rows: Any) -> Any:
        return jnp.stack([function(row) for row in rows]) if len(rows) else jnp.zeros((0, 2))

    @staticmethod
    def call(function: Any, state: State) -> State:
        return function(state)


def _apart(value: float, edge: float) -> float:
    if not abs(value - edge) > MARGIN:
        raise Tie
    return value


# Blocks. `run(world, state, seen)` is the next state; `seen` are vectors of the places around.

Seen = tuple[Any, ...]

#: What a step makes of its vector, of one that it captures, and of its integer as a number.
FORMULAS: dict[str, Callable[..., Any]] = {
    "sine": lambda w, x, y, n: 0.8 * w.sin(x) + 0.3 * y,
    "product": lambda w, x, y, n: x * w.cos(y),
    "tanh": lambda w, x, y, n: w.tanh(x * y) + 0.5 * x,
    "quotient": lambda w, x, y, n: x / (1.0 + y * y),
    "crossed": lambda w, x, y, n: 0.7 * x[::-1] + 0.2 * y,
    "total": lambda w, x, y, n: 0.5 * y + 0.2 * w.total(x * x) - 0.1,
    "bell": lambda w, x, y, n: w.exp(-x * x) * y,
    "root": lambda w, x, y, n: w.sqrt(1.0 + x * x) - y,
    "captured": lambda w, x, y, n: w.sin(y) - 0.4,
    "constant": lambda w, x, y, n: 0.0 * y + 0.6,
    "counted": lambda w, x, y, n: 0.6 * x + 0.1 * n * w.cos(x + y),
}
INTEGERS: dict[str, Callable[..., Any]] = {
    "next": lambda w, s, y: s.k + 1,
    "modulo": lambda w, s, y: (2 * s.k + 1) % 5,
    "chosen": lambda w, s, y: w.where(s.b, s.k, s.k + 2),
    "of the vector": lambda w, s, y: w.truncated(2.0 + 1.9 * w.tanh(w.total(s.x + y))),
}
TRUTHS: dict[str, Callable[..., Any]] = {
    "negated": lambda w, s, y: w.opposite(s.b),
    "integer": lambda w, s, y: s.k % 2 > 0,
    "vector": lambda w, s, y: w.above(w.total(s.x) - 0.3),
    "captured": lambda w, s, y: w.above(w.total(y * y) - 0.7),
    "state": lambda w, s, y: s.b,
}


def _tested(w: Any, s: State, y: Any) -> Any:
    w.assign(0.9 * w.read() + 0.1 * y)
    return w.above(w.total(w.read()) - 0.4)


#: What decides by a Variable, or assigns it before it decides.
TESTS = {"variable": lambda w, s, y: w.above(w.total(w.read()) - 0.2), "assigned": _tested}


@dataclass(frozen=True)
class Step:
    """A smooth step of the vector."""

    formula: str
    capture: int

    def run(self, w: Any, s: State, seen: Seen) -> State:
        y = seen[self.capture % len(seen)]
        return s._replace(x=FORMULAS[self.formula](w, s.x, y, w.number(s.k)))


@dataclass(frozen=True)
class Decide:
    """A step of the integer or of the truth value."""

    kind: str
    formula: str
    capture: int

    def run(self, w: Any, s: State, seen: Seen) -> State:
        y = seen[self.capture % len(seen)]
        if self.kind == "k":
            return s._replace(k=INTEGERS[self.formula](w, s, y))
        return s._replace(b=TRUTHS[self.formula](w, s, y))


@dataclass(frozen=True)
class Store:
    """A step that reads the Variable, or assigns it."""

    kind: str
    capture: int

    def run(self, w: Any, s: State, seen: Seen) -> State:
        y = seen[self.capture % len(seen)]
        if self.kind == "read":
            return s._replace(x=0.5 * s.x + w.read() * w.cos(s.x + y))
        new = {"vector": lambda: w.sin(s.x) + 0.1 * y, "both": lambda: 0.6 * w.read() + 0.3 * s.x}
        w.assign(new[self.kind]())
        return s


@dataclass(frozen=True)
class Blocks:
    """One block after the other; perhaps none."""

    blocks: tuple[Any, ...]

    def run(self, w: Any, s: State, seen: Seen) -> State:
        for block in self.blocks:
            s = block.run(w, s, seen)
        return s


@dataclass(frozen=True)
class Branch:
    """One of two blocks, both of which see the vector from outside."""

    test: str
    capture: int
    true: Blocks
    false: Blocks

    def run(self, w: Any, s: State, seen: Seen) -> State:
        pred = (TRUTHS | TESTS)[self.test](w, s, seen[self.capture % len(seen)])
        sides = [lambda block=b: block.run(w, s, (*seen, s.x)) for b in (self.true, self.false)]
        return w.cond(pred, *sides)


@dataclass(frozen=True)
class Switch:
    """One of three blocks, by the integer, which may be out of range."""

    branches: tuple[Blocks, ...]

    def run(self, w: Any, s: State, seen: Seen) -> State:
        sides = [lambda block=b: block.run(w, s, (*seen, s.x)) for b in self.branches]
        return w.switch(s.k, sides)


@dataclass(frozen=True)
class While:
    """A block as long as a count is small and, perhaps, a vector is large."""

    limit: str
    body: Blocks
    also: str | None
    bound: int | None
    slots: int | None

    def run(self, w: Any, s: State, seen: Seen) -> State:
        outer = (*seen, s.x)
        limits = {
            "none": lambda: 0,
            "one": lambda: 1,
            "three": lambda: 3,
            "integer": lambda: s.k % 4,
            "vector": lambda: w.truncated(2.0 + 2.9 * w.sin(3.0 * w.total(s.x))),
        }
        limit = limits[self.limit]()

        def goes_on(n: Any, state: State) -> Any:
            short = n < limit
            if self.also is None:
                return short
            return w.both(short, (TRUTHS | TESTS)[self.also](w, state, seen[0]))

        def step(n: Any, state: State) -> Any:
            return n + 1, self.body.run(w, state, outer)

        _, found = w.while_loop(goes_on, step, (0, s), self.bound, self.slots)
        return found


@dataclass(frozen=True)
class Rows:
    """A block once for each of a few rows, which it adds to its vector; what it did is summed."""

    kind: str
    length: int
    capture: int
    body: Blocks

    def run(self, w: Any, s: State, seen: Seen) -> State:
        y = seen[self.capture % len(seen)]
        rows = y * np.array([[0.5, -0.4], [0.3, 0.7], [-0.6, 0.2]])[: self.length] + 0.1
        outer = (*seen, s.x)

        def step(state: State, row: Any) -> State:
            return self.body.run(w, state._replace(x=0.9 * state.x + row), outer)

        if self.kind == "map":
            mapped = w.map_fn(lambda row: self.body.run(w, s._replace(x=row), outer).x, rows)
            return s._replace(x=s.x + w.total(mapped, 0))
        if self.kind in ("foldl", "foldr"):
            return getattr(w, self.kind)(step, rows, s)
        found = w.scan(step, rows, s, reverse=self.kind == "reverse")
        return s._replace(x=0.5 * s.x + 0.4 * w.total(found.x, 0))


@dataclass(frozen=True)
class Called:
    """A block as a function of its own, which captures what it sees."""

    body: Blocks

    def run(self, w: Any, s: State, seen: Seen) -> State:
        return w.call(lambda state: self.body.run(w, state, seen), s)


@dataclass(frozen=True)
class Slope:
    """The gradient of what a block makes of the vector."""

    body: Blocks

    def run(self, w: Any, s: State, seen: Seen) -> State:
        def height(x: Any) -> Any:
            return w.total(w.sin(self.body.run(w, s._replace(x=x), seen).x))

        return s._replace(x=w.gradient(height, s.x))


# Strategies.

_captures = st.integers(0, 4)
_steps = st.builds(Step, st.sampled_from([*FORMULAS]), _captures)
_decisions = st.one_of(
    st.builds(Decide, st.just("k"), st.sampled_from([*INTEGERS]), _captures),
    st.builds(Decide, st.just("b"), st.sampled_from([*TRUTHS]), _captures),
)
_plain = st.builds(
    lambda *blocks: Blocks(tuple(b for b in blocks if b is not None)),
    _steps | st.none(),
    _decisions | st.none(),
)
_stateful = st.builds(
    lambda plain, store: Blocks((*plain.blocks, store)),
    _plain,
    st.builds(Store, st.sampled_from(["read", "vector", "both"]), _captures),
)


@st.composite
def _bodies(draw: Any, levels: int, kinds: tuple[str, ...]) -> Blocks:
    """A block with so many levels of nests below it, among plain steps."""
    plain = _stateful if "variable" in kinds else _plain
    if levels == 0:
        return draw(plain)
    return Blocks((draw(plain), draw(_nests(levels, kinds)), draw(plain)))


@st.composite
def _nests(draw: Any, levels: int, kinds: tuple[str, ...]) -> Any:
    deep, plain = _bodies(levels - 1, kinds), _bodies(0, kinds)
    tests = st.sampled_from([*TRUTHS, *(TESTS if "variable" in kinds else ())])
    kind = draw(st.sampled_from([kind for kind in kinds if kind != "variable"]))
    if kind == "branch":
        sides = draw(st.permutations([draw(deep), draw(plain)]))
        return Branch(draw(tests), draw(_captures), *sides)
    if kind == "switch":
        return Switch(tuple(draw(st.permutations([draw(deep), draw(plain), draw(plain)]))))
    if kind == "while":
        return While(
            draw(st.sampled_from(["none", "one", "three", "integer", "vector"])),
            draw(deep),
            draw(st.none() | tests),
            draw(st.none() | st.integers(0, 3)),
            draw(st.sampled_from([None, 2, 3])),
        )
    if kind == "rows":
        form = draw(st.sampled_from(["scan", "reverse", "foldl", "foldr", "map"]))
        return Rows(form, draw(st.integers(0, 3)), draw(_captures), draw(deep))
    return (Called if kind == "call" else Slope)(draw(deep))


_FIRST_ORDER = ("branch", "while", "rows", "call", "switch")

_levels = st.integers(2, 4)

#: Programs of 2 to 4 levels; those in which no gradient is taken; and those with a Variable.
programs = _levels.flatmap(lambda levels: _bodies(levels, (*_FIRST_ORDER, "slope")))
first_order_programs = _levels.flatmap(lambda levels: _bodies(levels, _FIRST_ORDER))
programs_with_variable = _levels.flatmap(lambda n: _bodies(n, (*_FIRST_ORDER, "variable")))
#: The same with 2 levels: a nest in a nest, whose derivatives compile in a fifth of the time.
shallow_programs = _bodies(2, (*_FIRST_ORDER, "slope"))
shallow_programs_with_variable = _bodies(2, (*_FIRST_ORDER, "variable"))


def in_python(program: Blocks) -> Callable[..., tuple[State, Any]]:
    """The last state of a program by Python, and the last value of the Variable, as a function of z
    and of what the Variable begins with. It is called with numbers first: whatever is called after
    that takes the same way. Raises Tie."""
    world = Plain()

    def last(z: Any, variable: Any = START) -> tuple[State, Any]:
        world.start(variable)
        state = program.run(world, State(z[:2], 2, True), (z[2:],))
        return state, world.value

    return last


def staged(program: Blocks, world: Staged | None = None) -> Callable[[Any], State]:
    """The last state of a program by branches and loops, as a function of z."""
    world = world or Staged()

    def last(z: Any) -> State:
        start = State(z[:2], tg.constant(2), tg.constant(True))
        return program.run(world, start, (z[2:],))

    return last
