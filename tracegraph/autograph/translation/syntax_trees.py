"""Walks, visits and copies of syntax trees.

They do what the functions of `ast` and `copy` do, in less time: converting a function is little
else. None of them looks at contexts of names and at operators, nearly half of a tree, since no pass
changes those.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

#: Parts of a tree that no pass changes.
_SIGNS = (ast.expr_context, ast.boolop, ast.cmpop, ast.operator, ast.unaryop)


class _Kinds(dict[type, bool]):
    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, ast.AST) and not issubclass(kind, _SIGNS)
        return found


#: Whether the nodes of a type are parts of a tree, other than signs.
IS_PART = _Kinds()


def parts_of(node: ast.AST) -> list[ast.AST]:
    """The parts of a node, without signs."""
    found: list[ast.AST] = []
    for name in node._fields:
        part = getattr(node, name, None)
        if type(part) is list:
            found += [x for x in part if IS_PART[type(x)]]
        elif IS_PART[type(part)]:
            found.append(part)  # type: ignore[arg-type]
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that is in it, without signs, in the order of `ast.walk`."""
    waiting = [node]
    for x in waiting:
        waiting += parts_of(x)
        yield x


def copied(tree: Any) -> Any:
    """A deep copy of a tree that Python has parsed, or of a part of it."""
    if type(tree) is list:
        return [copied(x) for x in tree]
    if not IS_PART[type(tree)]:
        return tree
    return type(tree)(**{name: copied(part) for name, part in tree.__dict__.items()})


def visit_parts(self: Any, node: Any) -> Any:
    """What an ast.NodeTransformer does at a node for which it has no method."""
    for name in node._fields:
        part = getattr(node, name, None)
        if type(part) is list:
            part[:] = _visited(self.visit, part)
        elif IS_PART[type(part)]:
            made = self.visit(part)
            if made is None:
                delattr(node, name)
            elif made is not part:
                setattr(node, name, made)
    return node


def _visited(visit: Any, parts: list[Any]) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        made = visit(part) if IS_PART[type(part)] else [part]
        if isinstance(made, ast.AST):
            found.append(made)
        elif made is not None:
            found += made
    return found
