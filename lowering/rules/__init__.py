"""The table of lowering rules: for each op, a function of the op and JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracegraph.ir.op import Op

Rule = Callable[..., Any]
RULES: dict[type[Op], Rule] = {}


def lowers(*ops: type[Op]) -> Callable[[Rule], Rule]:
    """Registers `rule(op, *arrays)` for op classes; it returns an array, or a tuple of several."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            assert op not in RULES, f"two lowering rules for {op.name}"
            RULES[op] = rule
        return rule

    return register


def lowers_by(rules: Mapping[type[Op], Rule]) -> None:
    """Registers rules of one expression each."""
    for op, rule in rules.items():
        lowers(op)(rule)
