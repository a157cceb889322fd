"""Random programs of Python's statements, converted, compute what plain Python computes: with
break, continue, early return, attributes, items, helpers, lists that loops make longer, and inner
functions that set what is outside of them."""

import importlib.util
import random

import numpy as np
import pytest

import tracegraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

INPUTS = [(3, 2), (6, 4), (0, 1), (5, 3)]
ROWS = np.array([2, 5, 1], np.int32)
#: int32 holds what stays below.
LARGEST = 2**30

HELPER = """\
class Holder:
    pass

def helper(p, q):
    if p > q:
        return (p - q) % 13
    while q > p and q < 40:
        p += 3
        if p == 7:
            return 70
    return p

"""

INNER = """\
    def note(p):
        nonlocal a
        a = (a + p) % 19
        if p > c:
            holder.v = (holder.v + p) % 31
        return p % 7
    def count(p):
        nonlocal b
        while p > 5:
            p -= note(p) + 1
            b += 1
        d['q'] = (d['q'] + b) % 29
        return b % 11
    again = lambda p: count(p) + note(p)"""


class Writer:
    """Writes a program of a seed. Of a list that grows, loops that no branch is around append to
    it; such a program does not return early, which would make a branch of the rest."""

    def __init__(self, seed, kind):
        self.choices, self.has_list = random.Random(seed), kind == "lists"
        self.has_inner = kind == "inner functions"
        self.lines, self.loops = [], 0
        self.names = ["a", "b", "c"]

    def program(self):
        self.line(0, "def f(x, k, rows):")
        self.line(1, "a, b, c = x, k + 0, x * 2")
        self.line(1, "holder = Holder()")
        self.line(1, "holder.v = x")
        self.line(1, "d = {'q': k + 1}")
        self.line(1, "items = [x]" if self.has_list else "items = None")
        if self.has_inner:
            self.line(0, INNER)
        for _ in range(3):
            self.statement(1, 3, in_loop=False, may_append=self.has_list)
        self.line(1, "return a, b, holder.v, d['q']" + (", ended(items)" if self.has_list else ""))
        return HELPER + "\n".join(self.lines) + "\n"

    def line(self, indent, text):
        self.lines.append("    " * indent + text)

    def expression(self):
        one = self.choices.choice(self.names)
        other = self.choices.choice([*self.names, "1", "2", "3", "x", "k"])
        forms = [
            "{0} + {1}",
            "({0} * {1}) % 17",
            "{0} - {1}",
            "{1}",
            "max({0}, {1})",
            "{0} // 3",
        ]
        forms.append("({0} if " + self.condition() + " else {1})")
        return self.choices.choice(forms).format(one, other)

    def condition(self):
        one = self.choices.choice(self.names)
        other = self.choices.choice([*self.names, "2", "5", "x"])
        forms = ["{0} > {1}", "{0} % 3 == 1", "{0} < {1}", "{0} % 2 == 0 and {1} < 7"]
        forms += ["{0} != {1} or {0} > 4", "not {0} < {1}", "0 < {0} < {1}"]
        return self.choices.choice(forms).format(one, other)

    def block(self, indent, depth, **place):
        for _ in range(self.choices.randint(1, 3)):
            self.statement(indent, depth, **place)

    def statement(self, indent, depth, in_loop, may_append):
        kinds = ["assign"] * 3 + ["augment"] * 2 + ["attribute", "item", "tuple"]
        if depth:
            kinds += ["branch"] * 5 + ["repeat"] * 2 + ["iterate"] * 2 + ["call"]
        if self.has_inner:
            kinds += ["inner"] * 4
        if in_loop:
            kinds += ["leave"] * 2 + ["append"] * 2 * may_append
        if not self.has_list and self.choices.random() < 0.3:
            kinds.append("early")
        kind, name = self.choices.choice(kinds), self.choices.choice(self.names)
        if kind in ("branch", "repeat", "iterate"):
            getattr(self, kind)(indent, depth, name, in_loop, may_append)
        elif kind in ("leave", "early"):
            self.line(indent, f"if {self.condition()}:")
            leaves = self.choices.choice(["break", "continue"])
            early = f"return {name} * 100, b, holder.v, d['q']"
            self.line(indent + 1, leaves if kind == "leave" else early)
        else:
            self.line(indent, self.simple(kind, name))

    def simple(self, kind, name):
        value = self.expression()
        return {
            "assign": f"{name} = {value}",
            "augment": f"{name} += {value}",
            "attribute": f"holder.v = (holder.v + {value}) % 31",
            "item": f"d['q'] = (d['q'] + holder.v + {value}) % 29",
            "tuple": f"a, b = b, {value}",
            "call": f"{name} = helper({name}, {value})",
            "inner": f"{self.called()}({value})",
            "append": f"items.append({value})",
        }[kind]

    def called(self):
        return self.choices.choice(["note", "count", "again", "c = note"]).replace("= ", "= 1 + ")

    def branch(self, indent, depth, name, in_loop, may_append):
        place = {"in_loop": in_loop, "may_append": may_append and in_loop}
        self.line(indent, f"if {self.condition()}:")
        self.block(indent + 1, depth - 1, **place)
        if self.choices.random() < 0.3:
            self.line(indent, f"elif {self.condition()}:")
            self.block(indent + 1, depth - 1, **place)
        if self.choices.random() < 0.5:
            self.line(indent, "else:")
            self.block(indent + 1, depth - 1, **place)

    def repeat(self, indent, depth, name, in_loop, may_append):
        self.loops += 1
        counter = f"t{self.loops}"
        # What Python decides is traced step by step, where a list is in no loop of the graph.
        bounds = ["x % 4", "k"] if self.has_list else ["x % 4", "k", "3", "5"]
        also = f" and ({self.condition()})" if self.choices.random() < 0.4 else ""
        test = f"{counter} < {self.choices.choice(bounds)}{also}"
        if self.has_inner and self.choices.random() < 0.3:
            test = f"note(x) + 3 * {counter} < 12"
        self.line(indent, f"{counter} = 0")
        self.line(indent, f"while {test}:")
        self.line(indent + 1, f"{counter} += 1")
        self.block(indent + 1, depth - 1, in_loop=True, may_append=may_append)

    def iterate(self, indent, depth, name, in_loop, may_append):
        self.loops += 1
        item = f"i{self.loops}"
        forms = ["steps(x % 4)", "steps(k)", "steps(1, x % 5)", "rows", "enumerate(rows)"]
        over = self.choices.choice(forms if self.has_list else [*forms, "range(3)"])
        target = f"{item}, e{self.loops}" if over.startswith("enumerate") else item
        self.line(indent, f"for {target} in {over}:")
        self.line(indent + 1, f"{name} = ({name} + {item}) % 101")
        self.block(indent + 1, depth - 1, in_loop=True, may_append=may_append)


def ended(items):
    return items[-1] * 100 + len(items)


def loaded(path, **names):
    """The function of a program in a file, which has its source, with these names in it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names, ended=ended)
    spec.loader.exec_module(module)
    return module.f


def check(path, seed, kind):
    path.write_text(Writer(seed, kind).program())
    plain = loaded(path, steps=range)
    expected = [plain(x, k, ROWS.tolist()) for x, k in INPUTS]
    if max(abs(value) for values in expected for value in values) > LARGEST:
        return
    f = tg.function(loaded(path, steps=tg.range))
    rows = tg.constant(ROWS)
    found = [f(tg.constant(x), tg.constant(k), rows) for x, k in INPUTS]
    assert [tuple(map(int, values)) for values in found] == expected, path.read_text()


KINDS = ["names", "lists", "inner functions"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_converted_programs(tmp_path, seed, kind):
    check(tmp_path / "program.py", seed, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", range(100, 250, 10))
def test_many_converted_programs(tmp_path, start, kind):
    for seed in range(start, start + 10):
        check(tmp_path / f"program_{seed}.py", seed, kind)
