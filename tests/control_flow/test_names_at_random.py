"""Random programs of lists that have several names, beside plain Python: assignments, swaps, and
changes in place by statements, methods and functions, in branches and in loops."""

import importlib.util
import random

import pytest

import tracegraph as tg
from tracegraph.errors import SignatureError

NAMES = "abc"
HEAD = """
def poke(v, n):
    v[1] = v[0] * 2.0 + n

def program(n):
    a, b = [n, n + 1.0], [n * 2.0, n - 1.0]
    c, rows = a, [b, [n, n]]
"""


def a_statement(drawn, depth, indent):
    x, y, z = (drawn.choice(NAMES) for _ in range(3))
    i, number = drawn.randint(0, 1), drawn.randint(2, 9)
    condition = drawn.choice(["n > 1.0", "n > 2.0", "n < 0.8", f"{x}[0] > 4.0", f"{x}[1] > {y}[0]"])
    lines = [
        f"{x} = {y}",
        f"{x} = [n * {number}.0, {y}[{i}]]",
        f"{x}, {y} = {y}, {x}",
        f"{x}[{i}] = {y}[{1 - i}] + {number}.0",
        f"{x}[{i}] += n",
        f"{x}.reverse()",
        f"poke({x}, n)",
        f"{x} = {y} if {condition} else {z}",
        f"rows[{i}] = {x}",
        f"{x} = rows[{i}]",
        f"rows[{i}][{1 - i}] = n * {number}.0",
    ]
    space = "    " * indent
    kind = drawn.random()
    if not depth or kind < 0.75:
        return [space + drawn.choice(lines)]
    block = statements(drawn, depth - 1, indent + 1)
    if kind < 0.8:
        return [
            f"{space}for _ in {drawn.choice(['range', 'steps'])}({drawn.randint(1, 3)}):",
            *block,
        ]
    others = statements(drawn, depth - 1, indent + 1) if drawn.random() < 0.4 else []
    return [f"{space}if {condition}:", *block, *([f"{space}else:", *others] if others else [])]


def statements(drawn, depth, indent):
    return [x for _ in range(drawn.randint(1, 3)) for x in a_statement(drawn, depth, indent)]


def loaded(path, steps):
    """The program of a file, whose loops of unknown kind are over `steps`."""
    spec = importlib.util.spec_from_file_location("drawn", path)
    module = importlib.util.module_from_spec(spec)
    module.steps = steps
    spec.loader.exec_module(module)
    return module.program


@pytest.mark.filterwarnings("ignore::UserWarning")  # of keys and numbers that only one branch sets
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(300))
def test_all_names_hold_what_python_puts_there(seed, tmp_path):
    """Or reading what a graph cannot tell is refused."""
    drawn = random.Random(seed)
    body = [x for _ in range(4) for x in statements(drawn, 2, 1)]
    path = tmp_path / "drawn.py"
    path.write_text(HEAD + "\n".join([*body, "    return [*a, *b, *c, *rows[0], *rows[1]]\n"]))
    f, by_python = tg.function(loaded(path, tg.range)), loaded(path, range)
    for n in (0.5, 1.5, 3.0):
        try:
            found = f(tg.constant(n, tg.float64))
        except SignatureError:
            return
        assert [*map(float, found)] == pytest.approx(by_python(n)), path.read_text()
