"""The user's source as a tree: the statement that a place is in."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator

from tracegraph.source import Source

#: A line, and a column where it is known.
Position = tuple[int, int | None]


def position_of(source: Source) -> Position:
    """Where the expression of a place begins."""
    if source.code is not None:
        places = itertools.islice(source.code.co_positions(), source.offset // 2, None)
        line, _, column, _ = next(places, (None, None, None, None))
        if line is not None:
            return line, column
    return source.line, None


def statement_at(source: Source) -> ast.stmt | None:
    """The innermost statement that a place is in, if the source can be read."""
    tree = _tree_of(source.file)
    if tree is None:
        return None
    position = position_of(source)
    found = [x for x in _around(tree, position) if isinstance(x, ast.stmt)]
    return found[-1] if found else None


def is_inside(statement: ast.AST, source: Source) -> bool:
    """Whether a place of the same file is in a statement."""
    return _contains(statement, position_of(source))


def _around(tree: ast.AST, position: Position) -> Iterator[ast.AST]:
    """What is around a position, from the outside to the inside."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if not hasattr(child, "lineno"):  # what has no place of its own, such as arguments
                waiting.append(child)
            elif _contains(child, position):
                yield child
                waiting = [child]
                break


def _contains(node: ast.AST, position: Position) -> bool:
    line, column = position
    first, last = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    if column is None:
        return first[0] <= line <= last[0]
    return first <= (line, column) < last


def _tree_of(file: str) -> ast.Module | None:
    return _parsed("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None
