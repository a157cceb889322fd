"""`match` statements as chains of `if`, which malt knows.

Python finds how a subject is built, by the pattern without its values (PEP 634); what a value is
compared with is a condition of converted code, so that tensors decide about it in the graph.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tracegraph.autograph.function_conversion import NotConvertible
from tracegraph.autograph.translation.syntax_trees import copied, walk
from tracegraph.core.source import HOOKS


def as_ifs(node: ast.Match) -> list[ast.stmt]:
    """The statements that choose one of the cases. Raises NotConvertible for a case whose pattern
    may bind its names in several ways."""
    subject = f"subject_{node.lineno}_{node.col_offset}"
    made: list[ast.stmt] = [ast.Assign([ast.Name(subject, ast.Store())], node.subject)]
    ast.copy_location(made[0], node)
    chain: list[ast.stmt] = []
    for case in reversed([x for given in node.cases for x in _alternatives(given)]):
        pattern = _Pattern(case.pattern, subject)
        body = [*pattern.bound(), *case.body]
        tests = pattern.tests if case.guard is None else [*pattern.tests, pattern.read(case.guard)]
        is_named = case.guard is not None and not pattern.tests
        chosen = [ast.If(_all(tests), body, chain)] if tests else body
        # A name that stands for the subject is bound whether the guard holds or not.
        chain = [*pattern.found, *(pattern.bound() if is_named else ()), *chosen]
        for x in (*pattern.found, *(chosen if tests else ()), *body[: -len(case.body)]):
            ast.copy_location(x, case.pattern)
    return [*map(ast.fix_missing_locations, [*made, *chain])]


def _alternatives(case: ast.match_case) -> list[ast.match_case]:
    """A case for each alternative of its pattern, if these are more than values."""
    if not isinstance(case.pattern, ast.MatchOr) or _is_value(case.pattern):
        return [case]
    if case.guard is not None:
        _refuse("a `match` statement with a guard after alternatives", case.pattern)
    return [
        ast.match_case(x, None, case.body if k == 0 else copied(case.body))
        for k, x in enumerate(case.pattern.patterns)
    ]


def _is_value(pattern: ast.pattern) -> bool:
    """Whether a pattern compares the subject with values, and does nothing else."""
    if isinstance(pattern, ast.MatchOr):
        return all(map(_is_value, pattern.patterns))
    return isinstance(pattern, (ast.MatchValue, ast.MatchSingleton))


class _Pattern:
    """A pattern in terms of expressions of the subject, of which `found` are stored before."""

    def __init__(self, pattern: ast.pattern, subject: str) -> None:
        #: The conditions, in order.
        self.tests: list[ast.expr] = []
        self.found: list[ast.stmt] = []
        #: Where each name of the user's is.
        self._places: dict[str, ast.expr] = {}
        #: What the pattern names: classes, and keys that are not constants.
        self._named: list[ast.expr] = []
        self._captured: list[str] = []
        self._result = f"found_{pattern.lineno}_{pattern.col_offset}"
        whole = ast.Name(subject, ast.Load())
        if isinstance(pattern, ast.MatchAs) and pattern.name is not None:
            self._places[pattern.name] = whole
            pattern = pattern.pattern or ast.MatchAs()
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            return
        if _is_value(pattern):
            self.tests.append(_compared(pattern, whole))
            return
        inner = self._structure(pattern)
        arguments = (
            ast.Constant(ast.unparse(inner)),
            ast.Tuple([*map(ast.Constant, self._captured)], ast.Load()),
            whole,
            ast.Tuple(self._named, ast.Load()),
        )
        call = ast.Call(_hook("matched"), [*arguments], [])
        self.found.append(ast.Assign([ast.Name(self._result, ast.Store())], call))
        self.tests.insert(0, self._item(0))

    def bound(self) -> list[ast.stmt]:
        """Assigns the names of the user."""
        pairs = self._places.items()
        return [ast.Assign([ast.Name(x, ast.Store())], copied(y)) for x, y in pairs]

    def read(self, guard: ast.expr) -> ast.expr:
        """A guard, which reads the names before they are bound."""
        return _Substituted(self._places).visit(copied(guard))

    def _item(self, place: int) -> ast.expr:
        name = ast.Name(self._result, ast.Load())
        return ast.Subscript(name, ast.Constant(place), ast.Load())

    def _capture(self, name: str | None = None) -> str:
        found = name or f"value_{len(self._captured)}"
        self._captured.append(found)
        if name is not None:
            self._places[name] = self._item(len(self._captured))
        return found

    def _structure(self, pattern: ast.pattern) -> ast.pattern:
        """The pattern for Python, in which values are names. It has no names that Python would have
        to look up, but attributes of `given`."""
        if _is_value(pattern):
            captured = ast.MatchAs(None, self._capture())
            self.tests.append(_compared(pattern, self._item(len(self._captured))))
            return captured
        match pattern:
            case ast.MatchAs(None, name):
                return ast.MatchAs(None, name and self._capture(name))
            case ast.MatchAs(inner, name) if inner is not None:
                if _is_value(inner):
                    self._capture(name)
                    self.tests.append(_compared(inner, self._item(len(self._captured))))
                    return ast.MatchAs(None, name)
                return ast.MatchAs(self._structure(inner), self._capture(name))
            case ast.MatchStar(name):
                return ast.MatchStar(name and self._capture(name))
            case ast.MatchSequence(patterns):
                return ast.MatchSequence([*map(self._structure, patterns)])
            case ast.MatchMapping(keys, patterns, rest):
                named = [x if isinstance(x, ast.Constant) else self._given(x) for x in keys]
                inner_patterns = [*map(self._structure, patterns)]
                return ast.MatchMapping(named, inner_patterns, rest and self._capture(rest))
            case ast.MatchClass(cls, patterns, attributes, keyword_patterns):
                found = [[*map(self._structure, x)] for x in (patterns, keyword_patterns)]
                return ast.MatchClass(self._given(cls), found[0], attributes, found[1])
            case ast.MatchOr(patterns) if not any(map(_has_names_or_values, patterns)):
                return ast.MatchOr([*map(self._structure, patterns)])
        _refuse("a `match` statement with names or values among nested alternatives", pattern)

    def _given(self, value: ast.expr) -> ast.expr:
        self._named.append(value)
        attribute = f"x{len(self._named) - 1}"
        return ast.Attribute(ast.Name("given", ast.Load()), attribute, ast.Load())


def _has_names_or_values(pattern: ast.pattern) -> bool:
    inner = walk(pattern)
    return any(
        _is_value(x) or getattr(x, "name", None) for x in inner if isinstance(x, ast.pattern)
    )


class _Substituted(ast.NodeTransformer):
    def __init__(self, places: Mapping[str, ast.expr]) -> None:
        self._places = places

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self._places.get(node.id)
        return node if found is None else copied(found)


def _compared(pattern: ast.pattern, value: ast.expr) -> ast.expr:
    """Whether the value is one of those of the pattern."""
    match pattern:
        case ast.MatchValue(other):
            test: ast.expr = ast.Compare(value, [ast.Eq()], [other])
        case ast.MatchSingleton(other):
            test = ast.Call(_hook("is_"), [value, ast.Constant(other)], [])
        case ast.MatchOr(patterns):
            copies = [_compared(x, copied(value)) for x in patterns]
            test = ast.BoolOp(ast.Or(), copies)
        case _:
            raise AssertionError(pattern)
    return ast.copy_location(test, pattern)


def _hook(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(HOOKS, ast.Load()), name, ast.Load())


def _all(tests: Sequence[ast.expr]) -> ast.expr:
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), [*tests])


def _refuse(what: str, node: Any) -> NoReturn:
    raise NotConvertible(
        f"it has {what} in line {node.lineno}, which is not converted: compare with `if`"
    )
