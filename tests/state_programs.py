"""Random sequences of what users do with Variables, and a plain Python model of what must come.

A sequence is data: statements that are run by tracegraph (`Machine`) and by NumPy on plain cells
(`Model`). Both keep a log of every value that is seen, and the logs must agree to the last bit,
which they can, since all numbers are small integers. The functions of a sequence come from a fixed
`Pool`, so that few programs are compiled. What Python functions called by programs
do, and signal handlers, is a script of the sequence: whoever comes next takes the next script.

A signal or an interrupt may also strike at any moment inside a statement, between two calls of
functions somewhere in tracegraph or JAX. Then the model has as many answers as there are moments
between the effects of the statement, and what is seen must be one of them.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tracegraph as tg

#: What bounds the numbers: sums of products stay exact in float32.
MODULUS = 97
VARIABLES = {
    "a": (np.float32, (2,)),
    "b": (np.float32, (2,)),
    "s": (np.float32, ()),
    "n": (np.int32, (2,)),
    "d": (np.float64, (2,)),
}
#: Variables that are arguments are of one type.
PARAMETERS = {"p": VARIABLES["a"], "q": VARIABLES["a"]}
FLOATS = ("a", "b", "d", "p", "q")
#: Scripts of what runs inside of so many others are empty.
DEPTH = 3

Statement = tuple[Any, ...]


class Oops(Exception):
    """What a sequence raises by itself."""


#: Statements that are one step: whatever strikes comes before, behind or between their effects.
STEPS = ("call", "assign", "slice", "scatter", "log", "hold", "later", "assert", "print", "save")
STEPS += ("forget",)

#: What may be raised, by name.
KINDS = {
    "oops": Oops,
    "interrupt": KeyboardInterrupt,
    "failed": tg.errors.InvalidArgumentError,
}


@dataclasses.dataclass(frozen=True)
class FunctionText:
    """A function of a pool: `f(x)` or `f(x, p, q)`, which returns what it read."""

    has_parameters: bool
    body: tuple[Statement, ...]
    results: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Sequence:
    """What the main program does, and the scripts of what interrupts it or is called by it."""

    initial: dict[str, list[int]]
    main: tuple[Statement, ...]
    scripts: tuple[tuple[Statement, ...], ...]

    def __str__(self) -> str:
        lines = [f"initial: {self.initial}", *(f"    {x}" for x in self.main)]
        lines += [f"script {i}: {x}" for i, x in enumerate(self.scripts)]
        return "\n".join(lines)


class Author:
    """Writes functions and sequences. `choices` makes all decisions: where hypothesis does, the
    first of several choices and the smallest numbers are the simplest."""

    def __init__(self, choices: random.Random) -> None:
        self._choices = choices

    def functions(self, count: int) -> tuple[FunctionText, ...]:
        written: list[FunctionText] = []
        for i in range(count):
            written.append(self.function(written, has_parameters=i % 3 == 0))
        return tuple(written)

    def function(self, known: list[FunctionText], has_parameters: bool) -> FunctionText:
        names = {**VARIABLES, **PARAMETERS}
        for name in ("a", "b") if has_parameters else ("p", "q"):
            del names[name]
        results: list[Any] = []
        body = self.body(names, known, has_parameters, results, self._choices.randint(3, 6), 0)
        return FunctionText(has_parameters, (*body, ("read", "s")), (*results, names["s"]))

    def body(
        self,
        names: dict[str, Any],
        known: list[FunctionText],
        has_parameters: bool,
        results: list[Any],
        length: int,
        depth: int,
    ) -> tuple[Statement, ...]:
        made: list[Statement] = []
        kinds = (
            ["plain"] * 5 + ["read"] * 2 + ["use", "python", "python", "assert", "hook", "print"]
        )
        kinds += ["call"] * 2 + ["tape"] * (depth == 0) + ["total"]
        while len(made) < length:
            kind = self._choices.choice(kinds)
            if kind == "plain":
                made.append(self.plain(list(names)))
            elif kind == "read":
                name = self._choices.choice(list(names))
                results.append(names[name])
                made.append(("read", name))
            elif kind == "use":
                pairs = [(v, i) for v in names for i, t in enumerate(results) if t == names[v]]
                if pairs:
                    made.append(("use", *self._choices.choice(pairs)))
            elif kind == "python":
                made.append(self.python(list(names)))
            elif kind == "assert":
                made.append(
                    (
                        "assert",
                        self._choices.choice(list(names)),
                        self._choices.choice([20, 90, 200, 400]),
                    )
                )
            elif kind == "print":
                made.append(("print", self._choices.choice(list(names))))
            elif kind == "call":
                fitting = [i for i, f in enumerate(known) if f.has_parameters >= has_parameters]
                if fitting:
                    index = self._choices.choice(fitting)
                    given = ["p", "q"] if has_parameters else ["a", "b"]
                    made.append(self.call(index, known[index], given))
                    results.extend(known[index].results)
            elif kind == "tape":
                inner = self.body(
                    names, known, has_parameters, results, self._choices.randint(0, 2), 1
                )
                made.append(self.tape(inner, list(names)))
                results.extend([names[x] for x in made[-1][3:5]])
            else:
                made.append((kind,) if kind == "hook" else (kind, "s"))
        return tuple(made)

    def plain(self, names: list[str]) -> Statement:
        """An assignment."""
        name, number = self._choices.choice(names), self._choices.randint(-9, 9)
        vectors = [x for x in names if x != "s"]
        form = self._choices.choice(["assign", "assign", "combine", "combine", "slice", "scatter"])
        if form == "assign":
            return (
                "assign",
                name,
                self._choices.choice(["assign", "assign_add", "assign_sub"]),
                number,
            )
        if form == "combine":
            return "combine", name, self._choices.choice(names), self._choices.randint(1, 3)
        if form == "slice":
            return "slice", self._choices.choice(vectors), self._choices.randint(0, 1), number
        method = self._choices.choice(["scatter_update", "scatter_add", "scatter_sub"])
        return "scatter", self._choices.choice(vectors), method, self._choices.randint(0, 1), number

    def python(self, names: list[str]) -> Statement:
        """A call of a Python function."""
        source = self._choices.choice(names)
        alike = [x for x in names if kind_of(x) == kind_of(source)]
        spec = self._choices.choice(["declared", "open", "sizes"])
        return (
            "python",
            self._choices.choice(["py", "numpy"]),
            spec,
            source,
            self._choices.choice(alike),
        )

    def tape(self, body: tuple[Statement, ...], names: list[str]) -> Statement:
        """A gradient by two Variables, behind a body that the tape sees."""
        v = self._choices.choice([x for x in names if x in FLOATS])
        u = self._choices.choice([x for x in names if kind_of(x) == kind_of(v)])
        via = self._choices.choice(["direct", "function", "callback"])
        return "tape", body, self._choices.randint(1, 2), v, u, via

    def call(self, index: int, function: FunctionText, given: list[str]) -> Statement:
        arguments = self._choices.choices(given, k=2) if function.has_parameters else ()
        return "call", index, self._choices.choice([(2,), (2,), ()]), tuple(arguments)

    def sequence(
        self, functions: tuple[FunctionText, ...], length: int, strikes: float = 0.0
    ) -> Sequence:
        """A sequence of at most `length` statements; `strikes` is how many of them are struck, as a
        fraction."""
        initial = {
            name: [self._choices.randint(0, 30) for _ in range(np.prod(shape, dtype=int))]
            for name, (_, shape) in VARIABLES.items()
        }
        main: list[Statement] = []
        # What ends a sequence is the simplest choice, so that failing ones are cut short.
        while len(main) < length and (not main or self._choices.randrange(64)):
            is_struck = strikes and self._choices.random() > 1 - strikes
            main.append(self.struck(functions) if is_struck else self.free(functions, 0))
        count = self._choices.randint(4, 24)
        scripts = (
            tuple(self.free(functions, 1) for _ in range(self._choices.choice([0, 1, 1, 2, 3])))
            for _ in range(count)
        )
        return Sequence(initial, tuple(main), tuple(scripts))

    def struck(self, functions: tuple[FunctionText, ...]) -> Statement:
        """A statement that is one step for its user, and what strikes inside it, and when."""
        while True:
            statement = self.free(functions, 0)
            if statement[0] in STEPS:
                kind = self._choices.choice(["signal", "signal", "interrupt"])
                return "strike", statement, kind, int(2 ** self._choices.uniform(0, 15))

    def free(self, functions: tuple[FunctionText, ...], depth: int) -> Statement:
        """A statement of the main program, or of a script."""
        names = list(VARIABLES)
        kinds = ["plain"] * 4 + ["log"] * 3 + ["hold"] * 3 + ["call"] * 5
        kinds += ["try", "tape", "tape", "hook", "hook", "assert", "print", "copy", "change"]
        kinds += ["inline", "forget", "python", "raise", "interrupt", "restore", "later"]
        kind = self._choices.choice([*kinds, "save"] if self._choices.random() < 0.3 else kinds)
        index = self._choices.randrange(len(functions))
        if kind == "plain":
            return self.plain(names)
        if kind in ("call", "inline"):
            return kind, *self.call(index, functions[index], ["a", "b"])[1:]
        if kind in ("try", "tape") and depth > 1:
            return "log", "a"
        if kind in ("try", "tape"):
            inner = tuple(
                self.free(functions, depth + 1) for _ in range(self._choices.randint(1, 3))
            )
            return (kind, inner) if kind == "try" else self.tape(inner, names)
        if kind == "assert":
            return kind, self._choices.choice(names), self._choices.choice([20, 90, 200, 400])
        if kind == "python":
            return self.python(names)
        if kind == "forget":
            return kind, index
        if kind in ("hook", "raise", "interrupt", "save", "restore"):
            return (kind,)
        return kind, self._choices.choice(names)


def kind_of(name: str) -> Any:
    """The dtype and the shape of a Variable."""
    return VARIABLES.get(name) or PARAMETERS[name]


class Interpreter:
    """What both sides share: the log and the scripts."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.scripts: tuple[tuple[Statement, ...], ...] = ()
        #: How many scripts were taken.
        self.taken = 0
        self.depth = 0
        #: How often the body of a function was run in order to trace it.
        self.traced: dict[int, int] = {}
        self.variables: dict[str, Any] = {}

    def run(self, statements: tuple[Statement, ...]) -> None:
        raise NotImplementedError

    def run_script(self) -> None:
        """Does what the next script says."""
        if self.depth >= DEPTH:
            return
        self.depth += 1
        self.taken += 1
        try:
            self.run(self.scripts[self.taken - 1] if self.taken <= len(self.scripts) else ())
        finally:
            self.depth -= 1

    def begin(self, sequence: Sequence) -> None:
        self.log, self.scripts, self.taken = [], sequence.scripts, 0

    def attempt(self, statements: tuple[Statement, ...]) -> bool:
        """Runs statements; what they raise is seen. Returns whether they came to their end."""
        try:
            try:
                self.run(statements)
            finally:
                self._point()
        except tuple(KINDS.values()) as error:
            found = [name for name, kind in KINDS.items() if isinstance(error, kind)]
            self.log.append(found[0])
            return False
        return True

    def _point(self) -> None:
        """One of the moments between two effects."""


class Scope:
    """The Variables that a body can see, by name, and what it read."""

    def __init__(self, variables: dict[str, Any], x: Any) -> None:
        self.variables = variables
        self.x = x
        self.results: list[Any] = []


# The model.


class Cell:
    """A Variable of the model."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.value = np.zeros(shape, dtype)


class Model(Interpreter):
    """Plain Python: what is assigned is there at once, what is raised ends what is being done.

    A function that is traced runs its hooks while it is traced, and its effects behind that. It is
    cut where it calls a Python function whose shape is not declared, which tracing must wait for.

    What strikes does so at a *point*, between two effects; `strike` has how many points come before
    it and what it does.
    """

    def __init__(self, functions: tuple[FunctionText, ...]) -> None:
        super().__init__()
        self.strike: tuple[int, Callable[[], None]] | None = None
        self.functions = functions
        self.variables = {name: Cell(*kind) for name, kind in VARIABLES.items()}
        self._known: set[Any] = set()
        self._saved: dict[str, np.ndarray] | None = None

    def begin(self, sequence: Sequence) -> None:
        super().begin(sequence)
        self._saved = None
        for name, cell in self.variables.items():
            cell.value = np.array(sequence.initial[name], cell.value.dtype).reshape(
                cell.value.shape
            )

    def run(self, statements: tuple[Statement, ...]) -> None:
        scope = Scope(self.variables, None)
        for _, effect in self._effects(statements, scope, "inline"):
            self._make(effect)

    # What strikes.

    def state(self) -> Any:
        """All that tells what comes next, and what was seen."""
        values = {name: cell.value for name, cell in self.variables.items()}
        return list(self.log), self.taken, dict(self.traced), values, set(self._known), self._saved

    def set_state(self, state: Any) -> None:
        log, self.taken, traced, values, known, self._saved = state
        self.log, self.traced, self._known = list(log), dict(traced), set(known)
        for name, value in values.items():
            self.variables[name].value = value

    def _point(self) -> None:
        """One of the moments at which something may strike."""
        if self.strike is None or self.depth:
            return
        left, action = self.strike
        self.strike = (left - 1, action) if left else None
        if not left:
            action()

    def struck(self, state: Any, statement: Statement, kind: str) -> Iterator[Any]:
        """The states behind a statement, for each point of it: what strikes takes the next script,
        or is an interrupt. What it raises is lost where Python calls a finalizer."""

        def swallowed() -> None:
            try:
                self.run_script()
            except tuple(KINDS.values()):
                pass

        def interrupt() -> None:
            raise KeyboardInterrupt

        for action in (self.run_script, swallowed) if kind == "signal" else (interrupt,):
            for count in range(1000):
                self.set_state(state)
                self.strike = count, action
                self.attempt((statement,))
                is_over, self.strike = self.strike is not None, None
                if is_over and kind == "signal":
                    break
                yield self.state()
                if is_over:
                    break

    def forget(self, indices: set[int]) -> None:
        self._known = {key for key in self._known if key[0] not in indices}

    # Functions.

    def _call(
        self, outer: Scope, index: int, shape: tuple[int, ...], arguments: tuple[str, ...]
    ) -> None:
        scope = self._scope(index, shape, [outer.variables[x] for x in arguments])
        key = self._key(index, shape, scope)
        if key in self._known:
            self._point()
            for _, effect in self._effects(self.functions[index].body, scope, "run"):
                self._make(effect)
        else:
            waiting: list[Callable[[], None]] = []
            self._point()
            self._count(index)
            for is_open, effect in self._effects(self.functions[index].body, scope, "trace"):
                waiting.append(effect)
                if is_open:
                    now, waiting = waiting, []
                    for each in now:
                        self._make(each)
            self._point()
            self._known.add(key)
            for effect in waiting:
                self._make(effect)
        self._point()
        (self.log if outer.x is None else outer.results).extend(scope.results)

    def _make(self, effect: Callable[[], None]) -> None:
        self._point()
        effect()

    def _count(self, index: int) -> None:
        self.traced[index] = self.traced.get(index, 0) + 1

    def _scope(self, index: int, shape: tuple[int, ...], arguments: list[Cell]) -> Scope:
        variables = self.variables
        if self.functions[index].has_parameters:
            variables = {**variables, **dict(zip(PARAMETERS, arguments, strict=True))}
        return Scope(variables, np.ones(shape, np.float32))

    def may_trace(self, state: Any, statement: Statement) -> set[int]:
        """The functions that a statement may trace in a state."""
        if statement[0] != "call":
            return set()
        known, (_, index, shape, arguments) = state[4], statement
        scope = self._scope(index, shape, [self.variables[x] for x in arguments])
        return set() if self._key(index, shape, scope) in known else self._reached(index)

    def _reached(self, index: int) -> set[int]:
        body = self.functions[index].body
        inner = [x for it in body for x in ((it, *it[1]) if it[0] == "tape" else (it,))]
        called = [x[1] for x in inner if x[0] == "call"]
        return {index}.union(*map(self._reached, called))

    def _key(self, index: int, shape: tuple[int, ...], scope: Scope) -> Any:
        p, q = scope.variables.get("p"), scope.variables.get("q")
        return index, shape, self.functions[index].has_parameters and p is q

    def _inner(self, statement: Statement, outer: Scope, mode: str) -> Iterator[Any]:
        _, index, shape, arguments = statement
        scope = self._scope(index, shape, [outer.variables[x] for x in arguments])
        key = self._key(index, shape, scope)
        is_traced = mode == "trace" and key not in self._known
        if is_traced:
            self._point()
            self._count(index)
        body = self.functions[index].body
        yield from self._effects(body, scope, "trace" if is_traced else "run")
        if is_traced:
            self._point()
            self._known.add(key)
        yield False, lambda: outer.results.extend(scope.results)

    def _effects(
        self, statements: tuple[Statement, ...], scope: Scope, mode: str
    ) -> Iterator[tuple[bool, Callable[[], None]]]:
        """The effects of statements, each with whether tracing waits for it. Hooks are run on the
        way, as they are where Python runs."""
        for statement in statements:
            kind = statement[0]
            if mode == "trace":
                self._point()
            if kind == "hook":
                if mode != "run":
                    self.run_script()
            elif kind == "call" and mode != "inline":
                yield from self._inner(statement, scope, mode)
            elif kind == "tape":
                yield from self._effects(statement[1], scope, mode)
                yield False, lambda it=statement: self._gradient(*it[2:5], scope)
            elif kind == "python":
                # Tracing waits for the call, and not for what is done with its results.
                _, _, spec, source, target = statement
                results: list[np.ndarray] = []
                is_open = spec == "open" and mode == "trace"
                yield is_open, lambda x=source, to=results: self._python(scope.variables[x], to)
                yield False, lambda x=target, of=results: self._set(scope.variables[x], of.pop())
            else:
                yield False, lambda it=statement: self._do(it, scope)

    # Statements.

    def _gradient(self, k: int, v: str, u: str, scope: Scope) -> None:
        x, y = scope.variables[v].value, scope.variables[u].value
        by_v, by_u = 2 * k * x + y, x
        if scope.variables[v] is scope.variables[u]:
            by_v = by_u = by_v + by_u
        self._give(scope, by_v.astype(x.dtype))
        self._give(scope, by_u.astype(x.dtype))

    def _give(self, scope: Scope, value: np.ndarray) -> None:
        """What a body reads is a result of it; at top level it is seen at once."""
        self._point()
        (self.log if scope.x is None else scope.results).append(value)

    def _do(self, statement: Statement, scope: Scope) -> None:
        kind, *rest = statement
        if kind == "call":
            self._call(scope, *rest)
        elif kind == "inline":
            index, shape, arguments = rest
            inner = self._scope(index, shape, [self.variables[x] for x in arguments])
            for _, effect in self._effects(self.functions[index].body, inner, "inline"):
                effect()
            self.log.extend(inner.results)
        elif kind == "try":
            self.attempt(rest[0])
        elif kind == "raise":
            raise Oops
        elif kind == "interrupt":
            raise KeyboardInterrupt
        elif kind == "forget":
            self.forget({rest[0]})
        elif kind == "save":
            self._saved = {name: cell.value for name, cell in self.variables.items()}
        elif kind == "restore":
            for name, value in (self._saved or {}).items():
                self.variables[name].value = value
        elif kind == "use":
            cell = scope.variables[rest[0]]
            cell.value = self._bounded(cell.value + scope.results[rest[1]], cell)
        else:
            self._do_with(kind, scope.variables[rest[0]], rest, scope)

    def _do_with(self, kind: str, cell: Cell, rest: list[Any], scope: Scope) -> None:
        value = cell.value
        if kind == "assign":
            new = {
                "assign": lambda: np.full_like(value, rest[2]),
                "assign_add": lambda: value + rest[2],
                "assign_sub": lambda: value - rest[2],
            }[rest[1]]()
            cell.value = np.asarray(new, value.dtype)
        elif kind == "combine":
            source = scope.variables[rest[1]].value.astype(value.dtype)
            source = source.sum() if value.shape == () else source
            cell.value = self._bounded(source * rest[2] + value, cell)
        elif kind == "total":
            cell.value = self._bounded(value + scope.x.sum(), cell)
        elif kind in ("slice", "scatter"):
            new = value.copy()
            method, index, number = ("scatter_update", *rest[1:]) if kind == "slice" else rest[1:]
            if method == "scatter_update":
                new[index] = number
            else:
                new[index] += number if method == "scatter_add" else -number
            cell.value = new
        elif kind in ("read", "hold", "log"):
            self._give(scope, value)
        elif kind == "later":
            self._give(scope, value * 2 + 1)
        elif kind == "assert":
            self._point()
            if not value.sum() < rest[1]:
                raise tg.errors.InvalidArgumentError("a check failed")
        elif kind == "print":
            self._point()
            self.log.append(printed(value))
        else:
            assert kind in ("copy", "change")
            self.log.extend([value] * (3 if kind == "copy" else 1))

    def _python(self, source: Cell, results: list[np.ndarray]) -> None:
        given = source.value
        self._point()  # what is read for the function is its argument, whatever comes before it
        self.log.append(given)
        self._point()
        self.run_script()
        self._point()
        results.append(given * 2 + 1)

    def _set(self, cell: Cell, value: np.ndarray) -> None:
        cell.value = self._bounded(value, cell)

    @staticmethod
    def _bounded(value: Any, cell: Cell) -> np.ndarray:
        return np.asarray(np.mod(value, MODULUS), cell.value.dtype)


def printed(value: np.ndarray) -> str:
    numbers = " ".join(str(int(x)) for x in value.ravel())
    return f"[{numbers}]" if value.shape else numbers


# tracegraph.


@tg.function
def quadratic(k: Any, v: Any, u: Any) -> Any:
    return tg.reduce_sum(tg.cast(k, v.dtype) * v * v + u * v)


#: Where Python looks for signals: at the beginning of a function and behind a call of C.
_MOMENTS = ("call", "c_return")
_ROOT = pathlib.Path(__file__).parents[1]
_OURS = tuple(str(_ROOT / name) for name in ("tracegraph", "lowering"))


def _may_strike(frame: Any, kind: str) -> bool:
    """Whether a strike may fall into a frame: signals anywhere but in the test itself, interrupts
    in tracegraph, since those inside JAX are its own matter."""
    file = frame.f_code.co_filename
    return file.startswith(_OURS) if kind == "interrupt" else file != __file__


class Machine(Interpreter):
    """Runs sequences by tracegraph. `folder` is where checkpoints go."""

    def __init__(self, functions: tuple[FunctionText, ...], folder: Any) -> None:
        super().__init__()
        self._texts = functions
        self._folder = folder
        self._has_saved = False
        self.variables = {
            name: tg.Variable(np.zeros(shape, dtype), name=name)
            for name, (dtype, shape) in VARIABLES.items()
        }
        self._functions = [self._made(i, text) for i, text in enumerate(functions)]

    def begin(self, sequence: Sequence) -> None:
        super().begin(sequence)
        self._has_saved = False
        for name, variable in self.variables.items():
            dtype, shape = VARIABLES[name]
            variable.assign(np.array(sequence.initial[name], dtype).reshape(shape))

    def _made(self, index: int, text: FunctionText) -> Any:
        def body(x: Any, *arguments: Any) -> list[Any]:
            if not tg.executing_eagerly():
                self.traced[index] = self.traced.get(index, 0) + 1
            return self._body(index, x, arguments)

        if text.has_parameters:
            return tg.function(lambda x, p, q: body(x, p, q))
        return tg.function(lambda x: body(x))

    def _body(self, index: int, x: Any, arguments: tuple[Any, ...]) -> list[Any]:
        scope = Scope({**self.variables, **dict(zip(PARAMETERS, arguments))}, x)
        for statement in self._texts[index].body:
            self._do(statement, scope)
        return scope.results

    def run(self, statements: tuple[Statement, ...]) -> None:
        scope = Scope(self.variables, None)
        for statement in statements:
            self._do(statement, scope)

    def strike(self, statement: Statement, kind: str, moment: int) -> tuple[bool, bool]:
        """Attempts a statement, and lets a signal or an interrupt strike when as many functions as
        `moment` were called in it. Returns whether it did and whether the statement ended."""
        left = moment

        def observe(frame: Any, event: str, _: Any) -> None:
            nonlocal left
            if event in _MOMENTS and not self.depth and _may_strike(frame, kind):
                left -= 1
                if left < 0:
                    sys.setprofile(None)
                    signal.raise_signal(signal.SIGUSR1 if kind == "signal" else signal.SIGINT)

        sys.setprofile(observe)
        try:
            is_whole = self.attempt((statement,))
        finally:
            sys.setprofile(None)
        return left < 0, is_whole

    def forget(self, indices: set[int]) -> None:
        for index in indices:
            self._functions[index].clear_cache()

    def handle(self, number: Any, frame: Any) -> None:
        """The signal handler."""
        self.run_script()

    def write(self, text: str) -> None:
        """The stream that is printed to."""
        if text.strip():
            self.log.append(text.strip().replace("-0]", "0]").replace("-0 ", "0 "))

    def flush(self) -> None:
        pass

    def _give(self, scope: Scope, value: Any) -> None:
        (self.log if scope.x is None else scope.results).append(value)

    def _do(self, statement: Statement, scope: Scope) -> None:
        kind, *rest = statement
        if kind == "call":
            index, shape, arguments = rest
            given = [scope.variables[x] for x in arguments]
            found = self._functions[index](tg.ones(shape), *given)
            (self.log if scope.x is None else scope.results).extend(found)
        elif kind == "inline":
            index, shape, arguments = rest
            given = tuple(scope.variables[x] for x in arguments)
            self.log.extend(self._body(index, tg.ones(shape), given))
        elif kind == "tape":
            self._gradient(scope, *rest)
        elif kind == "python":
            self._python(scope, *rest)
        elif kind == "try":
            self.attempt(rest[0])
        elif kind == "raise":
            raise Oops
        elif kind == "interrupt":
            signal.raise_signal(signal.SIGINT)
        elif kind == "hook":
            signal.raise_signal(signal.SIGUSR1)
        elif kind == "forget":
            self.forget({rest[0]})
        elif kind == "save":
            tg.train.Checkpoint(**self.variables).write(str(self._folder / "state"))
            self._has_saved = True
        elif kind == "restore":
            if self._has_saved:
                tg.train.Checkpoint(**self.variables).read(str(self._folder / "state"))
        else:
            self._do_with(kind, scope.variables[rest[0]], rest, scope)

    def _do_with(self, kind: str, v: Any, rest: list[Any], scope: Scope) -> None:
        if kind == "assign":
            getattr(v, rest[1])(np.full(tuple(v.shape), rest[2], v.dtype.numpy_dtype))
        elif kind == "combine":
            source = tg.cast(scope.variables[rest[1]], v.dtype)
            source = tg.reduce_sum(source) if v.shape.rank == 0 else source
            v.assign(tg.math.floormod(source * rest[2] + v, MODULUS))
        elif kind == "total":
            v.assign(tg.math.floormod(v + tg.reduce_sum(scope.x), MODULUS))
        elif kind == "use":
            v.assign(tg.math.floormod(v + scope.results[rest[1]], MODULUS))
        elif kind == "slice":
            v[rest[1] : rest[1] + 1].assign(np.full([1], rest[2], v.dtype.numpy_dtype))
        elif kind == "scatter":
            number = np.full([1], rest[3], v.dtype.numpy_dtype)
            getattr(v, rest[1])(tg.IndexedSlices(tg.constant(number), tg.constant([rest[2]])))
        elif kind in ("read", "hold"):
            self._give(scope, v.read_value())
        elif kind == "log":
            self._give(scope, v.numpy())
        elif kind == "later":
            self._give(scope, v * 2 + 1)
        elif kind == "assert":
            total = tg.reduce_sum(v)
            tg.debugging.assert_less(total, tg.cast(rest[1], v.dtype))
        elif kind == "print":
            tg.print(v, output_stream=self)
        elif kind == "copy":
            copied, pickled = copy.deepcopy(v), pickle.loads(pickle.dumps(v))
            self.log.extend([v.read_value(), copied.read_value(), pickled.numpy()])
            copied.assign_add(tg.ones_like(v))
            pickled.assign(tg.zeros_like(v))
        else:
            assert kind == "change"
            self.log.append(v.read_value())
            array = np.asarray(v.numpy())
            if array.shape:
                array[...] = 55

    def _gradient(
        self, scope: Scope, body: tuple[Statement, ...], k: int, v: str, u: str, via: str
    ) -> None:
        x, y = scope.variables[v], scope.variables[u]
        with tg.GradientTape() as tape:
            for statement in body:
                self._do(statement, scope)
            if via == "direct":
                loss = quadratic.python_function(k, x, y)
            elif via == "function":
                loss = quadratic(k, x, y)
            else:
                loss = tg.py_function(
                    lambda p, q: quadratic.python_function(k, p, q),
                    [x, y],
                    tg.TensorSpec([], x.dtype),
                )
        for gradient in tape.gradient(loss, [x, y]):
            self._give(scope, gradient)

    def _python(self, scope: Scope, form: str, spec: str, source: str, target: str) -> None:
        given, v = scope.variables[source], scope.variables[target]

        def called(q: Any) -> Any:
            self.log.append(q)
            self.run_script()
            return q * 2 + 1

        function = tg.py_function if form == "py" else tg.numpy_function
        shape = {"declared": v.shape, "sizes": [None] * v.shape.rank, "open": None}[spec]
        declared = v.dtype if shape is None else tg.TensorSpec(shape, v.dtype)
        result = function(called, [given], declared)
        v.assign(tg.math.floormod(result, MODULUS))


# Comparing.


class Pool:
    """Functions, and the two that run sequences of them. They stay traced from one sequence to the
    next."""

    def __init__(self, functions: tuple[FunctionText, ...], folder: Any) -> None:
        self.functions = functions
        self.machine = Machine(functions, folder)
        self.model = Model(functions)

    def difference(self, sequence: Sequence) -> str | None:
        """Runs a sequence on both sides; what differs, or None."""
        for side in (self.machine, self.model):
            side.begin(sequence)
        handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGUSR1, self.machine.handle),
                (signal.SIGINT, signal.default_int_handler),
            )
        }
        states = [self.model.state()]
        try:
            for statement in sequence.main:
                if statement[0] != "strike":
                    self.machine.attempt((statement,))
                    states = [self._behind(state, statement) for state in states]
                    continue
                states, before = self._struck(states, *statement[1:]), states
                if not states:
                    return f"{statement}: no moment gives what was seen. " + self._closest(before)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        fitting = [x for x in states if _difference(self._seen(), self._modelled(x)) is None]
        if not fitting:
            return self._closest(states)
        self.model.set_state(fitting[0])
        if len(fitting) > 1:  # what is traced is not sure, and the next sequence begins with it
            for side in (self.machine, self.model):
                side.forget({*range(len(self.functions))})
        return None

    def _behind(self, state: Any, statement: Statement) -> Any:
        self.model.set_state(state)
        self.model.attempt((statement,))
        return self.model.state()

    def _struck(self, states: list[Any], statement: Statement, kind: str, moment: int) -> list[Any]:
        """The states behind a statement that was struck that agree with what is seen."""
        has_struck, is_whole = self.machine.strike(statement, kind, moment)
        found, seen = [], self._seen()
        for state in states:
            if has_struck:
                behind = self.model.struck(state, statement, kind)
            else:
                behind = iter((self._behind(state, statement),))
            found += [x for x in behind if _difference(seen, self._modelled(x)) is None]
        # A trace that was struck down may have been kept or not.
        unsure = (
            set()
            if is_whole
            else set().union(*(self.model.may_trace(state, statement) for state in states))
        )
        self.machine.forget(unsure)
        kept = {}
        for state in found:
            self.model.set_state(state)
            self.model.forget(unsure)
            state = self.model.state()
            known, saved = state[4:]  # the rest was seen
            values = [value.tolist() for value in (saved or {}).values()]
            kept[frozenset(known), str(values)] = state
        return list(kept.values())

    def _seen(self) -> list[Any]:
        machine = self.machine
        self.machine.log = [x if isinstance(x, str) else np.asarray(x) for x in machine.log]
        values = [np.asarray(v) for v in machine.variables.values()]
        return [*machine.log, *values, f"taken {machine.taken}", f"traced {machine.traced}"]

    def _modelled(self, state: Any) -> list[Any]:
        log, taken, traced, values, *_ = state
        return [*log, *values.values(), f"taken {taken}", f"traced {traced}"]

    def _closest(self, states: list[Any]) -> str:
        found = (_difference(self._seen(), self._modelled(state)) for state in states)
        return max(filter(None, found), default="no difference")


def _difference(found: list[Any], expected: list[Any]) -> str | None:
    for i, (x, y) in enumerate(zip(found, expected)):
        if isinstance(x, str) or isinstance(y, str):
            is_same = isinstance(x, str) and isinstance(y, str) and x == y
        else:
            is_same = x.dtype == y.dtype and x.shape == y.shape and bool(np.all(x == y))
        if not is_same:
            counts = f"{len(found)}, {len(expected)} in the model"
            return f"entry {i} of {counts}, is {x!r}, and the model has {y!r}; seen: {found}"
    if len(found) != len(expected):
        return f"{len(found)} entries, and the model has {len(expected)}"
    return None
