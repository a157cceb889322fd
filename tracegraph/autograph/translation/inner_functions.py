"""What inner functions read and set of the functions around them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from tracegraph.autograph.translation.syntax_trees import parts_of, walk


def set_by_calls(tree: ast.AST) -> Mapping[str, frozenset[str]]:
    """What each inner function sets when it is called, itself or through others, by its name: names
    of the functions around it, by `nonlocal`, and attributes and items, as text."""
    trees = [x for x in walk(tree) if isinstance(x, ast.FunctionDef) and x is not tree]
    if not trees:
        return {}
    functions = [_Function(x) for x in trees]
    found = {f.name: frozenset(f.set) for f in functions}
    aliases = [*_aliases(tree)]
    found |= {name: frozenset() for name, _ in aliases if name not in found}
    before = None
    while found != before:
        before = dict(found)
        for f in functions:
            more = frozenset[str]().union(*(found[name] for name in f.read & found.keys()))
            found[f.name] |= {x for x in more if base_of(x) not in f.bound}
        for name, read in aliases:
            found[name] = found[name].union(*(found[x] for x in read & found.keys()))
    return {name: paths for name, paths in found.items() if paths}


def bound_inside(tree: ast.AST) -> frozenset[str]:
    """The names that the functions inside a tree bind."""
    inner = (x for x in walk(tree) if isinstance(x, ast.FunctionDef) and x is not tree)
    return frozenset().union(*(_Function(x).bound for x in inner))


def read_by_values(tree: ast.AST, known: Mapping[str, Any]) -> frozenset[str]:
    """The names of a function that lambdas, generator expressions and the methods of classes in it
    read: these are values, which may be called wherever they have got to. Left out are those that
    are given to a function which calls them at once; `known` are the names outside the function."""
    nodes = [x for x in walk(tree) if x is not tree]
    set_here = {x.id for x in nodes if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load)}
    calls = [x for x in nodes if isinstance(x, ast.Call) and _calls_at_once(x, known, set_here)]
    called = {id(y) for x in calls for y in _given(x)}
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            methods = (x for x in walk(node) if isinstance(x, ast.FunctionDef))
            found = found.union(*map(names_from_outside, methods))
        elif isinstance(node, ast.Lambda) and id(node) not in called:
            found |= names_from_outside(node)
        elif isinstance(node, ast.GeneratorExp) and id(node) not in called:
            found |= _names_in(node)
    return frozenset(found)


#: Where the functions are that call what they are given before they return.
_FUNCTIONAL = [f"tracegraph.api.functional.{name}." for name in ("pfor", "vectorized_map", "jvp")]
_CALL_AT_ONCE = ("tracegraph.control_flow.", "tracegraph.nest.", *_FUNCTIONAL)
_READ_AT_ONCE = (all, any, dict, frozenset, list, max, min, set, sorted, sum, tuple)


def _calls_at_once(call: ast.Call, known: Mapping[str, Any], unknown: set[str]) -> bool:
    def found(node: ast.expr) -> Any:
        match node:
            case ast.Name(name) if name not in unknown:
                return known.get(name, getattr(builtins, name, None))
            case ast.Attribute(value, name) if isinstance(owner := found(value), ModuleType):
                return getattr(owner, name, None)
        return None

    callee = found(call.func)
    if isinstance(callee, FunctionType):
        return f"{callee.__module__}.{callee.__name__}.".startswith(_CALL_AT_ONCE)
    is_sort = isinstance(call.func, ast.Attribute) and call.func.attr in ("assert_stmt", "sort")
    return is_sort or any(callee is x for x in _READ_AT_ONCE)


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call, and what literal lists, tuples and dicts among them hold."""
    waiting = [*call.args, *(x.value for x in call.keywords)]
    for x in waiting:
        if isinstance(x, (ast.List, ast.Tuple)):
            waiting += x.elts
        elif isinstance(x, ast.Dict):
            waiting += x.values
        yield x


def _aliases(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Names that are set to lambdas, partial functions or other names, and the names that these
    read."""
    for node in walk(tree):
        for target, value in _assignments(node):
            match target, value:
                case ast.Name(name), ast.Lambda() | ast.Name():
                    yield name, _names_in(value)
                case ast.Name(name), ast.Call(function):
                    if ast.unparse(function).rpartition(".")[2] == "partial":
                        yield name, _names_in(value)


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            yield from zip(targets, values, strict=False)
        case ast.Assign(targets, value):
            yield from ((target, value) for target in targets)


def _names_in(node: ast.AST) -> set[str]:
    return {x.id for x in walk(node) if isinstance(x, ast.Name)}


class _Function:
    """What a function does with names, apart from the functions inside it."""

    def __init__(self, tree: ast.AST) -> None:
        own = list(own_nodes(tree))
        names = [x for x in own if isinstance(x, ast.Name)]
        inner = {x.name for x in own if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))}
        declared = {n for x in own if isinstance(x, ast.Nonlocal) for n in x.names}
        outside = declared.union(*(x.names for x in own if isinstance(x, ast.Global)))
        stored = {x.id for x in names if not isinstance(x.ctx, ast.Load)}
        given = {x.arg for x in own if isinstance(x, ast.arg)}
        self.name = getattr(tree, "name", "")
        self.bound = (stored | given | inner) - outside
        self.read = {x.id for x in names if isinstance(x.ctx, ast.Load)} | inner
        self.set = declared | {
            ast.unparse(x)
            for x in own
            if isinstance(x, (ast.Attribute, ast.Subscript))
            and isinstance(x.ctx, ast.Store)
            and _is_path(x)
            and not self.bound & _names_in(x)
        }


def suspends(node: ast.AST) -> bool:
    """Whether it is a generator or a coroutine."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    waits = (ast.Yield, ast.YieldFrom)
    return isinstance(node, ast.FunctionDef) and any(isinstance(x, waits) for x in own_nodes(node))


def names_from_outside(tree: ast.AST) -> set[str]:
    """The names that a function, with those inside it, has from outside."""
    function = _Function(tree)
    found = set(function.read)
    for x in own_nodes(tree):
        if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found |= names_from_outside(x)
    return found - function.bound


def own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function; of those inside it, the definition alone."""
    found = list(parts_of(tree))
    while found:
        node = found.pop()
        yield node
        if isinstance(node, ast.Lambda):
            found.append(node.body)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.extend(parts_of(node))


def _is_path(node: ast.expr) -> bool:
    """Whether an expression is a name with attributes, and items of constant keys."""
    match node:
        case ast.Name():
            return True
        case ast.Attribute(value) | ast.Subscript(value, ast.Constant()):
            return _is_path(value)
    return False


def base_of(path: str) -> str:
    """The name with which a path begins."""
    return path.partition(".")[0].partition("[")[0]
