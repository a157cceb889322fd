"""The user's source as a syntax tree: finds the statement at a place."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import Source

#: A line, and a column if it is known.
Position = tuple[int, int | None]


def position_of(source: Source) -> Position:
    """Where the expression of a place starts."""
    if source.code is not None:
        places = itertools.islice(source.code.co_positions(), source.offset // 2, None)
        line, _, column, _ = next(places, (None, None, None, None))
        if line is not None:
            return line, column
    return source.line, None


def statement_at(source: Source) -> ast.stmt | None:
    """The innermost statement that contains a place, if the source can be read."""
    tree = _tree_of(source.file)
    if tree is None:
        return None
    position = position_of(source)
    found = [x for x in _around(tree, position) if isinstance(x, ast.stmt)]
    return found[-1] if found else None


def is_inside(statement: ast.AST, source: Source) -> bool:
    """Whether a place in the same file is inside a statement."""
    return _contains(statement, position_of(source))


class BranchPoint(NamedTuple):
    """An `if`, a `while` or a conditional expression: the code skipped if its test is true, and if
    it is false, including what follows an `if` that returned or jumped."""

    node: ast.If | ast.While | ast.IfExp
    left_out_if_true: Sequence[ast.AST]
    left_out_if_false: Sequence[ast.AST]
    #: Where the test read the value of a tensor.
    asked_at: Position

    def left_out(self, outcome: bool) -> Sequence[ast.AST]:
        """The code that did not run, given that the expression that was read was `outcome`."""
        truth = _truth(self.node.test, self.asked_at, outcome)
        if truth is None:
            return ()
        return self.left_out_if_true if truth else self.left_out_if_false


def branch_point_at(source: Source) -> BranchPoint | None:
    """The decision made by the value that the code at a place read, if that is part of a test."""
    tree = _tree_of(source.file)
    if tree is None:
        return None
    position = _tested_position(source)
    outer: ast.AST = tree
    for node in _around(tree, position):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and _contains(node.test, position):
            return BranchPoint(node, *_left_out(node, outer), position)
        outer = node
    return None


def _tested_position(source: Source) -> Position:
    """Where the expression whose value was read starts. Python 3.11 attributes a jump to the whole
    statement; the instruction before it, which computes the value, is more precise."""
    if source.code is None:
        return position_of(source)
    before = None
    for instruction in dis.get_instructions(source.code):
        if instruction.offset == source.offset:
            if before is not None and "JUMP" in instruction.opname:
                return position_of(Source(source.code, before.offset))
            break
        if instruction.opname not in ("EXTENDED_ARG", "NOP"):
            before = instruction
    return position_of(source)


def _truth(test: ast.expr, position: Position, outcome: bool) -> bool | None:
    """The truth of a test, given that of the expression at a position; None if it continues to read
    more."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        truth = _truth(test.operand, position, outcome)
        return None if truth is None else not truth
    if isinstance(test, ast.BoolOp):
        place = next((i for i, x in enumerate(test.values) if _contains(x, position)), -1)
        truth = _truth(test.values[place], position, outcome)
        is_last = place in (-1, len(test.values) - 1)
        return truth if is_last or truth is isinstance(test.op, ast.Or) else None
    return outcome


def _left_out(
    node: ast.If | ast.While | ast.IfExp, outer: ast.AST
) -> tuple[Sequence[ast.AST], Sequence[ast.AST]]:
    """The code skipped if the test is true, and if it is false."""
    if isinstance(node, ast.IfExp):
        return [node.orelse], [node.body]
    if isinstance(node, ast.While):
        return [], node.body
    behind = _behind(node, outer)
    return tuple(
        [*other, *(behind if block and isinstance(block[-1], _LEAVING) else ())]
        for block, other in ((node.body, node.orelse), (node.orelse, node.body))
    )  # type: ignore[return-value]


#: Statements that leave a block.
_LEAVING = ast.Return | ast.Continue | ast.Break | ast.Raise


def _behind(statement: ast.stmt, outer: ast.AST) -> list[ast.stmt]:
    """The statements after one in its block."""
    blocks = (getattr(outer, name, None) for name in ("body", "orelse", "finalbody"))
    for block in blocks:
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []


def _around(tree: ast.AST, position: Position) -> Iterator[ast.AST]:
    """The nodes around a position, outermost first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if not hasattr(child, "lineno"):  # a node without its own position, such as arguments
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
    except outside_interrupts(SyntaxError, ValueError):
        return None
