"""The page of all primitive ops, which is made of the table that they are tested by.

`python -m tests.project.test_ops_page` writes it.
"""

import inspect
from collections import Counter
from pathlib import Path

import tracegraph as tg
from lowering.rules import RULES
from tests.op_table import CASES, ELSEWHERE, WITHOUT
from tracegraph.api import absent
from tracegraph.ir.op import OPS, Op
from tracegraph.ops.elementwise import Elementwise

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"

HEAD = """\
# Primitive ops

{primitives} ops are primitive: a graph is made of them, and each has the rules below. All other
functions, {names} public names in all, are compositions of them, so they have every derivative,
batch, sparsity and text. `python -m tests.project.test_ops_page` writes this page; the attributes
of the ops stand in [format.md](format.md).

- reverse: the cotangents of the inputs; *factors* are stated once for both modes.
- forward: the tangents; *derived* is the reverse rule transposed.
- loops: the op in a parallel loop, as one op; no op falls back to a Python loop.
- sparsity: which elements depend on which.
- NumPy: the value by NumPy, an oracle and what constants are folded by.
- XLA: the lowering.
- tried on: the rows of `tests/op_table.py`, each of which `tests/ops/test_ops.py` runs through:
  values in all data types; derivatives of orders 1 to 3 against JAX and differences; the
  dot-product identity; batches of every combination, of derivatives too; patterns against the
  numeric Jacobian; open sizes, sizes of 0, text. Ops with graphs among their attributes, and those
  that cut runs, are tried in `tests/control_flow/test_control_flow.py`,
  `tests/control_flow/test_nests.py`, `tests/state/test_callbacks.py` and
  `tests/control_flow/test_runtime_sizes.py`.

A dash is a rule that does not exist: an error with the user's line where somebody asks for it.

"""


def has(op, rule):
    return getattr(op, rule) is not getattr(Op, rule) and rule not in WITHOUT.get(op.name, ())


def row(op, count):
    is_elementwise = issubclass(op, Elementwise)
    reverse = "factors" if is_elementwise else "rule" if has(op, "vjp") else "-"
    forward = "rule" if has(op, "jvp") else "derived" if has(op, "vjp") else "-"
    tried = "tests of its own" if op.name in ELSEWHERE else f"{count} row{'s' * (count > 1)}"
    rest = ["rule" if has(op, rule) else "-" for rule in ("batch", "depends", "numpy")]
    lowered = "rule" if op in RULES else "-"
    cells = [f"`{op.name}`", reverse, "factors" if is_elementwise else forward, *rest, lowered]
    return f"| {' | '.join([*cells, tried])} |"


def public_names():
    """How many functions the modules have that users see."""
    modules = (tg, *(module for _, module in absent.all_modules()))
    names = {(getattr(m, name).__module__, name) for m in modules for name in functions_of(m)}
    return len(names)


def functions_of(module):
    return [name for name in dir(module) if inspect.isfunction(getattr(module, name, None))]


def page():
    counts = Counter(case.op.name for case in CASES)
    families = {}
    for name, op in sorted(OPS.items()):
        families.setdefault(op.__module__.removeprefix("tracegraph."), []).append((name, op))
    text = HEAD.format(primitives=len(OPS), names=public_names())
    for family, ops in sorted(families.items()):
        text += f"## {family}\n\n"
        text += "| op | reverse | forward | loops | sparsity | NumPy | XLA | tried on |\n"
        text += f"|{' --- |' * 8}\n"
        text += "\n".join(row(op, counts[name]) for name, op in ops) + "\n\n"
    return text.rstrip("\n") + "\n"


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text() == page(), "run: python -m tests.project.test_ops_page"


if __name__ == "__main__":
    PAGE.write_text(page())
