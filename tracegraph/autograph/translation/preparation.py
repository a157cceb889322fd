"""Rewrites syntax trees for malt: constructs that it does not know are rephrased, or refused."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Container, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from tracegraph.autograph.function_conversion import NotConvertible
from tracegraph.autograph.translation.inner_functions import names_from_outside, own_nodes, suspends
from tracegraph.autograph.translation.matching import as_ifs
from tracegraph.autograph.translation.syntax_trees import copied, parts_of, walk
from tracegraph.core.source import HOOKS


class InnerNotConvertible(NotConvertible):
    """A function inside another one, which cannot be converted."""

    def __init__(self, text: str, place: tuple[int, int]) -> None:
        super().__init__(text)
        #: Its line and column.
        self.place = place


def prepared(
    node: Any,
    code: CodeType,
    set_by_calls: Container[str],
    left_alone: Container[tuple[int, int]] = (),
) -> tuple[Any, dict[str, Any]]:
    """The tree of a function whose code is `code`, without its defaults and decorators, and what is
    to be put into it at last, see `left_to_python`. `set_by_calls` are the inner functions whose
    calls set something outside; those at the places `left_alone` stay as they are. Raises
    NotConvertible for a construct that malt would silently get wrong."""
    preparation = _Prepared(code, set_by_calls, left_alone)
    return preparation.visit(_without_defaults(node)), preparation.left


def _without_defaults(node: Any) -> Any:
    """The function without the expressions that Python evaluates when it defines it."""
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [x and ast.Constant(None) for x in node.args.kw_defaults]
    if isinstance(node, ast.FunctionDef):
        node.decorator_list, node.returns = [], None
    return node


class _Mangled(ast.NodeTransformer):
    """Names that are private to a class, in their mangled form."""

    def __init__(self, around: str) -> None:
        self._class = around

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        node.id = self._mangled(node.id)
        return node

    def _mangled(self, name: str) -> str:
        if not self._class or not name.startswith("__") or name.endswith("__"):
            return name
        return f"_{self._class.lstrip('_')}{name}"


class _LeftToPython(_Mangled):
    """A function that stays as it is, which reads the names that it has `outside` as converted code
    does."""

    def __init__(self, around: str, outside: Sequence[str]) -> None:
        super().__init__(around)
        self._outside = outside

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self._outside or not isinstance(node.ctx, ast.Load):
            return super().visit_Name(node)
        hook = ast.Attribute(ast.Name(HOOKS, ast.Load()), "ld", ast.Load())
        return _located(ast.Call(hook, [super().visit_Name(node)], []), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name):  # a function, or one that looks at its caller
            node.args, node.keywords = (
                [*map(self.visit, node.args)],
                [*map(self.visit, node.keywords)],
            )
            return node
        self.generic_visit(node)
        return node


class _Prepared(_Mangled):
    """Spells out what Python would derive from the position of the code, and refuses what malt
    would silently get wrong."""

    def __init__(
        self, code: CodeType, set_by_calls: Container[str], left_alone: Container[tuple[int, int]]
    ) -> None:
        super().__init__(_class_around(code.co_qualname))
        self._set_by_calls, self._left_alone = set_by_calls, left_alone
        self._first: list[str] = []
        #: For each enclosing function.
        self._lists: list[_Lists] = []
        self._is_in_class = False
        #: The functions in the function that are not converted, by what stands for them.
        self.left: dict[str, Any] = {}

    def visit(self, node: Any) -> Any:
        if self._first and (suspends(node) or _place(node) in self._left_alone):
            return self._visit_function(self._stand_in(node))
        refused = _REFUSED.get(type(node).__name__)
        if refused:
            what, fix = refused
            raise NotConvertible(_refusal(what, node, fix))
        if isinstance(node, ast.If) and _assigns_late(node.test):
            return [y for x in _one_by_one(node) for y in _listed(self.visit(x))]
        field = _EVALUATED.get(type(node))
        if field is not None and (made := _assignments(node, field)):
            return [y for x in (*made, node) for y in _listed(self.visit(x))]
        return super().visit(node)

    def visit_While(self, node: ast.While) -> Any:
        """A loop whose test assigns: moves the assignment before it, and to the end of each
        iteration; a test that sets something by a call goes to their beginning. Code after an
        infinite loop is never reached."""
        self._refuse_else(node)
        made = _assignments(node, "test")
        names = (x.id for x in walk(node.test) if isinstance(x, ast.Name))
        is_set_by_calls = any(x in self._set_by_calls for x in names) or _assigns_late(node.test)
        if not made and not is_set_by_calls:
            is_endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
            found = self.generic_visit(node)
            if is_endless and _has_own(node, ast.Return) and not _has_own(node, ast.Break):
                return [found, _located(_not_reached(), node)]
            return found
        if is_set_by_calls or _has_own(node, ast.Continue):
            end = ast.If(node.test, [ast.Pass()], [ast.Break()])
            options = node.body[:1] if loop_options(node) else []
            rest = node.body[len(options) :]
            node.body = [*options, *made, _located(end, node.test), *rest]
            node.test, made = _located(ast.Constant(True), node.test), []
        else:
            node.body += copied(made)
        return [y for x in (*made, node) for y in _listed(self.visit(x))]

    def visit_Try(self, node: ast.Try) -> Any:
        """A `try` with an `else` as an `if` after it, which asks whether its end was reached."""
        if not node.orelse:
            return self.generic_visit(node)
        flag = f"reached_{node.lineno}_{node.col_offset}"
        inner = ast.Try([*node.body, *_set(flag, True, node)], node.handlers, [], [])
        test = ast.Name(flag, ast.Load())
        made = [*_set(flag, False, node), inner, ast.If(test, node.orelse, [])]
        if node.finalbody:
            made = [ast.Try(made, [], [], node.finalbody)]
        return [y for x in made for y in _listed(self.visit(_located(x, node)))]

    def visit_For(self, node: ast.For) -> Any:
        self._refuse_else(node)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """An assignment without its annotation, which Python ignores inside functions but refuses
        where a branch sets the name. Those of classes are what dataclasses read."""
        if self._is_in_class:
            return self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        made = ast.copy_location(ast.Assign([node.target], node.value), node)
        return self.visit(made)

    def _refuse_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            word = "for" if isinstance(node, ast.For) else "while"
            fix = "set a flag where the loop breaks, and test it after the loop"
            raise NotConvertible(_refusal(f"a `{word} ... else`", node, fix))

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        around, self._is_in_class = self._is_in_class, True
        found = self.generic_visit(node)
        self._is_in_class = around
        return found

    def _visit_function(self, node: Any) -> Any:
        around, self._is_in_class = self._is_in_class, False
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Expr):
            node.body.append(ast.copy_location(ast.Pass(), node.body[-1]))  # after a docstring
        own = (*node.args.posonlyargs, *node.args.args)
        self._first.append(own[0].arg if own else "")
        self._lists.append(_lists_of(node))
        try:
            found = self.generic_visit(node)
        except InnerNotConvertible:
            raise
        except NotConvertible as error:
            if len(self._first) == 1 or not isinstance(node, ast.FunctionDef):
                raise
            raise InnerNotConvertible(str(error), _place(node)) from error
        self._lists.pop()
        self._first.pop()
        self._is_in_class = around
        return found

    visit_FunctionDef = visit_Lambda = _visit_function

    def _stand_in(self, node: Any) -> ast.FunctionDef:
        """A function in place of one in a function which is not converted, such as a generator, and
        which Python runs as it is. It reads the same names, so that the statements around keep
        them."""
        left = copied(node)
        left.decorator_list = []
        mark = f"{HOOKS}left_{len(self.left)}"
        read = sorted(names_from_outside(node))
        self.left[mark] = _LeftToPython(self._class, read).visit(left)
        declared = [x for x in own_nodes(node) if isinstance(x, (ast.Global, ast.Nonlocal))]
        names = [ast.Name(x, ast.Load()) for x in read]
        result = ast.Tuple([ast.Constant(mark), *names], ast.Load())
        body: list[ast.stmt] = [*copied(declared), ast.Return(result)]
        made = ast.FunctionDef(node.name, node.args, body, node.decorator_list, None)
        return _located(made, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        is_bare = isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args
        if is_bare and self._first and self._first[-1]:
            names = ("__class__", self._first[-1])
            node.args = [ast.copy_location(ast.Name(x, ast.Load()), node) for x in names]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """`x.append(y)`, and `extend` and `insert`, for a list of the function's own, as an
        assignment to `x`, so that a loop carries it; also for a list in its own list or dict."""
        self.generic_visit(node)
        match node.value:
            case ast.Call(
                ast.Attribute(target, "append" | "extend" | "insert" as method), args, []
            ) if self._lists and (is_stored := self._lists[-1].is_stored(target)) is not None:
                return _changed_list(method, target, args, node, is_stored, is_stored)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        """`x += y` and `x *= n` for a list of the function's own, or where y is a literal list."""
        self.generic_visit(node)
        method = {ast.Add: "add", ast.Mult: "repeat"}.get(type(node.op))
        if method is None or not self._lists:
            return node
        is_stored = self._lists[-1].is_stored(node.target)
        is_own = is_stored
        if is_stored is None:
            if not isinstance(node.target, ast.Name):
                return node
            is_own = False if isinstance(node.value, ast.List) else None
            if is_own is None and node.target.id not in self._lists[-1].own:
                return node
        # Python stores the sum in any case.
        return _changed_list(method, node.target, [node.value], node, is_own, True)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        """`except … as name` with the name bound in its body, where malt looks for it."""
        if node.name is not None:
            made = ast.parse(f"{node.name} = {HOOKS}.raised()\ntry: pass\nfinally: del {node.name}")
            made.body[1].body = node.body  # type: ignore[attr-defined]
            for x in (made.body[0], made.body[1].finalbody[0]):  # type: ignore[attr-defined]
                for y in walk(x):
                    ast.copy_location(y, node)
            node.name, node.body = None, [*(ast.copy_location(x, node) for x in made.body)]
        return self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> Any:
        return [y for x in as_ifs(node) for y in _listed(self.visit(x))]


def _changed_list(
    method: str,
    target: Any,
    args: list[ast.expr],
    node: ast.stmt,
    is_own: bool | None,
    is_assigned: bool,
) -> ast.stmt:
    """The statement that calls a hook to change a list. One that `is_own` is what its name, or its
    place in a table, stands for alone, so that the result may be another list; None if there is
    another name for it."""
    own = "" if is_own else f", is_own={is_own}"
    text = f"{HOOKS}.list_{method}({ast.unparse(target)}{own})"
    made = ast.parse(f"{ast.unparse(target)} = {text}" if is_assigned else text).body[0]
    for x in walk(made):
        if "lineno" in x._attributes:
            ast.copy_location(x, node)
    made.value.args += args  # type: ignore[attr-defined]
    return made


class _Lists(NamedTuple):
    """Which names of a function stand for lists."""

    #: Those that only this function sets, to lists that it creates.
    own: set[str]
    #: Those that it sets to nothing but literal lists and dicts, which may hold further lists.
    tables: set[str]
    #: Those that it sets to what is in such a table.
    items: set[str]
    #: Where each name is set to a new list, and where what it stands for gets another name, too.
    made: dict[str, list[int]]
    twice: dict[str, list[int]]

    def is_stored(self, target: ast.expr) -> bool | None:
        """Whether a list that a method changes is stored again; None if it is not the function's
        own, or has two names."""
        match target:
            case ast.Name(name) if name in self.own:
                return None if self._has_two_names(name, target.lineno) else True
            case ast.Name(name):
                return False if name in self.items else None
            case ast.Subscript(ast.Name(name), key) if name in self.tables:
                is_simple = isinstance(key, (ast.Name, ast.Constant))
                return is_simple or (False if isinstance(key, ast.UnaryOp) else None)
        return None

    def _has_two_names(self, name: str, line: int) -> bool:
        made = max((x for x in self.made.get(name, ()) if x <= line), default=0)
        return any(made <= x < line for x in self.twice.get(name, ()))


def _lists_of(function: Any) -> _Lists:
    found: set[str] = set()
    shared: set[str] = set()
    set_to: list[tuple[str, ast.expr | None]] = []
    twice: dict[str, list[int]] = {}
    waiting: list[ast.AST] = [*_listed(function.body)]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.Lambda() | ast.ClassDef():
                inner = (x for x in walk(node) if isinstance(x, (ast.Global, ast.Nonlocal)))
                shared.update(name for x in inner for name in x.names)
                continue
            case ast.Assign(targets, value):
                pairs = [pair for x in targets for pair in _pairs(x, value)]
                set_to += pairs
                for x in (value, *(x for _, x in pairs), *(targets if len(targets) > 1 else ())):
                    if isinstance(x, ast.Name):
                        twice.setdefault(x.id, []).append(x.lineno)
            case ast.For(target, table):
                set_to += _pairs(target, ast.Subscript(table, ast.Slice()))
            case ast.AnnAssign(ast.Name(name), _, ast.List()):
                found.add(name)
            case ast.Global(names) | ast.Nonlocal(names):
                shared.update(names)
        waiting += parts_of(node)
    given = {x.arg for x in walk(function.args) if isinstance(x, ast.arg)}
    found |= {name for name, x in set_to if isinstance(x, ast.List)}
    tables = {name for name, x in set_to} - shared - given
    tables -= {name for name, x in set_to if not isinstance(x, _TABLES)}
    items = {
        name
        for name, x in set_to
        if isinstance(x, ast.Subscript) and isinstance(x.value, ast.Name) and x.value.id in tables
    }
    made: dict[str, list[int]] = {}
    for name, x in set_to:
        if isinstance(x, ast.List):
            made.setdefault(name, []).append(x.lineno)
    return _Lists(found - shared, tables, items - found - shared, made, twice)


_TABLES = (ast.List, ast.ListComp, ast.Dict, ast.DictComp)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr | None]]:
    """The names that an assignment binds, each with its value, if that is seen."""
    match target, value:
        case ast.Name(name), _:
            return [(name, value)]
        case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
            return [pair for x, y in zip(targets, values) for pair in _pairs(x, y)]
    stored = (x for x in walk(target) if isinstance(getattr(x, "ctx", None), ast.Store))
    return [(x.id, None) for x in stored if isinstance(x, ast.Name)]


_ASYNC = "compute in a plain function, and await outside of it"
#: Constructs that are left to Python, by node name, with the fix.
_REFUSED = {
    "AsyncFor": ("an `async for`", _ASYNC),
    "AsyncFunctionDef": ("an `async def`", _ASYNC),
    "AsyncWith": ("an `async with`", _ASYNC),
    "Await": ("an `await`", _ASYNC),
    "NamedExpr": (
        "a `:=` that is not evaluated first in its statement",
        "assign in a statement of its own",
    ),
    "TryStar": ("an `except*`", "use `except`"),
    "TypeAlias": ("a `type` statement", "move it out of the function"),
    "Yield": ("a `yield`", "append to a list, and return it"),
    "YieldFrom": ("a `yield from`", "append to a list, and return it"),
}


def _place(node: Any) -> tuple[int, int]:
    """The place of a function; that of no other node, which another one may have too."""
    return (node.lineno, node.col_offset) if isinstance(node, ast.FunctionDef) else (0, 0)


def _refusal(what: str, node: Any, fix: str) -> str:
    return f"it has {what} in line {node.lineno}, which is not converted: {fix}"


# Assignments in expressions.

#: The field that a statement evaluates first.
_EVALUATED: dict[type[ast.stmt], str] = {
    ast.AnnAssign: "value",
    ast.Assert: "test",
    ast.Assign: "value",
    ast.AugAssign: "value",
    ast.Expr: "value",
    ast.For: "iter",
    ast.If: "test",
    ast.Return: "value",
}


def _assignments(node: ast.stmt, field: str) -> list[ast.stmt]:
    """Extracts the assignments that a statement makes before anything else, as statements of their
    own."""
    expression = getattr(node, field)
    if expression is None or not any(isinstance(x, ast.NamedExpr) for x in walk(expression)):
        return []
    is_read = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    extraction = _Extraction({node.target.id} if is_read else set())  # type: ignore[attr-defined]
    setattr(node, field, extraction.extracted(expression))
    return extraction.made


def _assigns_late(test: ast.expr) -> bool:
    """Whether a test assigns where its first operand leaves it open."""
    return isinstance(test, ast.BoolOp) and any(map(_has_assignment, test.values[1:]))


def _has_assignment(node: ast.expr) -> bool:
    return any(isinstance(x, ast.NamedExpr) for x in walk(node))


#: How many nodes of the syntax tree are copied at most to nest an `if`.
_MOST_COPIED = 500


def _one_by_one(node: ast.If) -> list[ast.stmt]:
    """An `if` whose operands of `and` or `or` are evaluated in statements of their own."""
    test = node.test
    assert isinstance(test, ast.BoolOp)
    is_and = isinstance(test.op, ast.And)
    if _is_copied(node.orelse if is_and else node.body):
        return [_nested(node, test, is_and)]
    name = f"holds_{test.lineno}_{test.col_offset}"
    holds = ast.Name(name, ast.Load())
    is_open = holds if is_and else ast.UnaryOp(ast.Not(), holds)
    made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], x) for x in test.values]
    made[1:] = [ast.If(copied(is_open), [x], []) for x in made[1:]]
    node.test = holds
    return [*(_located(x, test) for x in made), ast.fix_missing_locations(node)]


def _is_copied(block: list[ast.stmt]) -> bool:
    """Whether a block is short enough to stand in two places, also after what it nests itself."""
    nodes = [y for x in block for y in walk(x)]
    nested = [x for x in nodes if isinstance(x, ast.If) and _assigns_late(x.test)]
    return len(nodes) << len(nested) <= _MOST_COPIED


def _nested(node: ast.If, test: ast.BoolOp, is_and: bool) -> ast.If:
    """The `if` as one in another one, so that a name which an operand assigns has a value wherever
    this operand was evaluated."""
    late = next(k for k, x in enumerate(test.values) if k and _has_assignment(x))
    first, rest = _joined(test, test.values[:late]), _joined(test, test.values[late:])
    inner: list[ast.stmt] = [ast.copy_location(ast.If(rest, node.body, node.orelse), node)]
    body, orelse = (inner, copied(node.orelse)) if is_and else (copied(node.body), inner)
    return ast.copy_location(ast.If(first, body, orelse), node)


def _joined(test: ast.BoolOp, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else ast.copy_location(ast.BoolOp(test.op, values), test)


class _Extraction:
    """Extracts assignments from an expression, in evaluation order, as long as nothing else was
    computed before and the name was not read."""

    def __init__(self, read: set[str]) -> None:
        self.made: list[ast.stmt] = []
        self._read = read
        self._is_first = True

    def extracted(self, node: ast.expr) -> ast.expr:
        """The expression without the extracted assignments."""
        match node:
            case ast.NamedExpr(target, value):
                return self._assignment(node, target, value)
            case ast.Name(name):
                self._read.add(name)
                return node
            case ast.Constant():
                return node
            case ast.Tuple(elts) | ast.List(elts):
                node.elts = [*map(self.extracted, elts)]
                return node
        for name in _OPERANDS.get(type(node), ()):
            self._extract(node, name)
        self._is_first = False
        return node

    def _extract(self, node: ast.expr, field: str) -> None:
        """Extracts from an operand; from several, if all of them are always evaluated."""
        found = getattr(node, field)
        if isinstance(found, list):
            is_partly = isinstance(node, (ast.BoolOp, ast.Compare))
            found[:] = [x if is_partly and k else self._operand(x) for k, x in enumerate(found)]
        elif field != "func" or not _is_path(found):
            setattr(node, field, self.extracted(found))

    def _operand(self, node: Any) -> Any:
        if isinstance(node, ast.keyword):
            node.value = self.extracted(node.value)
            return node
        return self.extracted(node)

    def _assignment(self, node: ast.expr, target: ast.Name, value: ast.expr) -> ast.expr:
        if not self._is_first or target.id in self._read:
            self._is_first = False
            return node
        before = {*self._read, target.id}
        made = ast.Assign([ast.Name(target.id, ast.Store())], self.extracted(value))
        self.made.append(_located(made, node))
        # What the value reads and computes was extracted with it.
        self._read, self._is_first = before, True
        return _located(ast.Name(target.id, ast.Load()), node)


#: The operands that expressions always evaluate, in order: for `and`, `or` and comparison chains
#: only the first.
_OPERANDS: dict[type[ast.expr], tuple[str, ...]] = {
    ast.Attribute: ("value",),
    ast.BinOp: ("left", "right"),
    ast.BoolOp: ("values",),
    ast.Call: ("func", "args", "keywords"),
    ast.Compare: ("left", "comparators"),
    ast.IfExp: ("test",),
    ast.Subscript: ("value", "slice"),
    ast.UnaryOp: ("operand",),
}


def _is_path(node: ast.expr) -> bool:
    """Whether an expression is a name, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _has_own(loop: ast.While, kind: type[ast.stmt]) -> bool:
    """Whether a loop has its own `continue` or `break`, or a `return`."""
    functions = (ast.FunctionDef, ast.Lambda)
    others = functions if kind is ast.Return else (*functions, ast.For, ast.While)
    waiting: list[ast.AST] = [*loop.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            return True
        if not isinstance(node, others):
            waiting += parts_of(node)
    return False


def _not_reached() -> ast.stmt:
    """An unreachable `return`, so that a function that returns inside an infinite loop returns on
    every path."""
    return ast.parse(f"def _(): return {HOOKS}.UndefinedReturnValue()").body[0].body[0]  # type: ignore


def left_to_python(node: ast.AST, left: Mapping[str, Any]) -> None:
    """Puts the bodies of functions that are not converted in place of what stands for them."""
    for x in [*ast.walk(node)]:
        for block in (getattr(x, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list):
                block[:] = [_left(y, left) if isinstance(y, ast.FunctionDef) else y for y in block]


def _left(stand_in: ast.FunctionDef, left: Mapping[str, Any]) -> Any:
    marks = (x.value for x in own_nodes(stand_in) if isinstance(x, ast.Constant))
    found = next((left[x] for x in marks if isinstance(x, str) and x in left), None)
    if found is None:
        return stand_in
    found.args, found.decorator_list = stand_in.args, stand_in.decorator_list
    return found


def _set(name: str, value: bool, node: ast.AST) -> list[ast.stmt]:
    return [_located(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), node)]


def _located(made: Any, node: ast.AST) -> Any:
    """Gives a replacement for a node, and everything in it, the node's position."""
    return ast.fix_missing_locations(ast.copy_location(made, node))


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _class_around(qualified_name: str) -> str:
    """The class in which a function's code is defined; empty if there is none."""
    parts = qualified_name.split(".")
    inner = [x for x, y in itertools.pairwise(parts) if "<locals>" not in (x, y)]
    return inner[-1] if inner else ""


def loop_options(node: ast.AST) -> dict[str, ast.expr]:
    """The options that `set_loop_options`, as the first statement of a loop, sets."""
    if not isinstance(node, (ast.For, ast.While)):
        return {}
    match node.body[0]:
        case ast.Expr(ast.Call(ast.Attribute(attr=name) | ast.Name(id=name)) as call):
            options = call.keywords if name == "set_loop_options" else []
            return {x.arg: x.value for x in options if x.arg}
    return {}
