"""The syntax tree of a function, found in its file."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from tracegraph.autograph.function_conversion import NotConvertible
from tracegraph.autograph.translation.syntax_trees import copied, walk


def tree_of(function: FunctionType) -> Any:
    """The tree of just the function, with its positions in the file."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines or code.co_firstlineno > len(lines):
        raise NotConvertible("it has no source to convert, like code from exec() or a prompt")
    found = list(_candidates(code, lines))
    if not found:
        raise NotConvertible("its file has changed since it was imported")
    # Parsed files are cached, and callers modify the nodes.
    return copied(min(found, key=_extent))


def _candidates(code: CodeType, lines: list[str]) -> Iterator[Any]:
    """The functions of the source that may have compiled to `code`."""
    if code.co_name == "<lambda>":
        positions = _positions(code)
        if not positions:  # for a constant Python 3.12 gives only its line
            raise NotConvertible("it returns a constant, in which there is nothing to convert")
        for node in _lambdas("".join(lines)).get(code.co_firstlineno, ()):
            if _holds(node.body, positions) and _takes(node, code):
                yield node
        return
    for node in walk(_definition(code.co_firstlineno, lines)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _takes(node, code):
            first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                yield node


def _definition(first: int, lines: list[str]) -> ast.Module:
    """The tree of the block of lines that starts at the line `first`."""
    try:
        text = "".join(inspect.getblock(lines[first - 1 :]))
        if text[:1].isspace():
            return ast.increment_lineno(ast.parse("if 1:\n" + text), first - 2)
        return ast.increment_lineno(ast.parse(text), first - 1)
    except SyntaxError:  # an incomplete block, such as one with odd indentation
        return _parsed("".join(lines))


@functools.lru_cache(8)
def _parsed_once(text: str) -> ast.Module:
    return ast.parse(text)


def _parsed(text: str) -> ast.Module:
    """The tree of a whole file; copy its nodes before changing them."""
    try:
        return _parsed_once(text)
    except SyntaxError as error:
        raise NotConvertible(f"its file is not valid Python: {error.msg}") from error


@functools.lru_cache(8)
def _lambdas(text: str) -> dict[int, list[ast.Lambda]]:
    """The lambdas of a file by the line on which they start. Walking a long file takes longer than
    converting one of its lambdas."""
    found: dict[int, list[ast.Lambda]] = {}
    for node in walk(_parsed(text)):
        if isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(node)
    return found


def _takes(node: Any, code: CodeType) -> bool:
    """Whether a function in the source has the parameters of the code."""
    own = node.args
    names = [x.arg for x in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    return len(names) == count


def _positions(code: CodeType) -> list[tuple[tuple[Any, Any], tuple[Any, Any]]]:
    """Where the instructions start and end, for those with a position in the source."""
    return [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column) and (column, end_column) != (0, 0)
    ]


def _holds(body: Any, positions: list[tuple[tuple[Any, Any], tuple[Any, Any]]]) -> bool:
    """Whether all instructions come from the expression `body`."""
    begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return all(begin <= first and last <= end for first, last in positions)


def _extent(node: Any) -> tuple[int, int]:
    return node.end_lineno - node.lineno, node.end_col_offset - node.col_offset
