"""From the source of a Python function to code that asks our hooks: the adapter to malt.

Only `conversion.py` opens this module, when the first function is converted, since malt takes a
while to load. The code that comes out has the user's file, lines and columns and the user's names
of functions, so that tracebacks, debuggers and sources of nodes need no table to find them.
"""

from __future__ import annotations

import __future__

import ast
import copy
import functools
import importlib.util  # malt uses it, and does not import it
import inspect
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from malt.converters import (
    break_statements,
    call_trees,
    conditional_expressions,
    continue_statements,
    control_flow,
    functions,
    logical_expressions,
    return_statements,
    variables,
)
from malt.core import converter, unsupported_features_checker
from malt.lang import directives
from malt.pyct import (
    anno,
    cfg,
    errors,
    naming,
    qual_names,
    templates,
    transformer,
)
from malt.pyct.static_analysis import (
    activity,
    liveness,
    reaching_definitions,
    reaching_fndefs,
)

from tracegraph.autograph.conversion import HOOKS, NotConvertible

assert importlib.util


_POSITION = ("lineno", "col_offset", "end_lineno", "end_col_offset")
#: What looks at the frame that calls it.
_OF_FRAME = {"breakpoint", "dir", "eval", "exec", "globals", "locals", "super", "vars"}
#: What passes an iterable on, item by item.
_OF_ITERABLES = {"enumerate", "zip"}
_FUTURE_FLAGS = __future__.annotations.compiler_flag


def converted_code(function: FunctionType) -> CodeType:
    """The converted code of a function. Besides its own free names it has `HOOKS`.

    Raises NotConvertible with the reason why there is none.
    """
    return _compiled(_transformed(function), function.__code__)


def converted_text(function: FunctionType) -> str:
    """The converted code as Python text."""
    node = _transformed(function)
    return ast.unparse(ast.fix_missing_locations(node))


def _transformed(function: FunctionType) -> Any:
    node = _Prepared(function.__code__).visit(_without_defaults(_node_of(function)))
    _note_origins(node)
    name = function.__code__.co_name if isinstance(node, ast.FunctionDef) else "lambda_"
    names = {**function.__globals__, **dict.fromkeys(function.__code__.co_freevars)}
    info = transformer.EntityInfo(name, "", function.__code__.co_filename, (), names)
    context = transformer.Context(
        info, naming.Namer(names), converter.ProgramContext(_Options())
    )
    try:
        return _lowered(node, context)
    except errors.UnsupportedLanguageElementError as error:
        raise NotConvertible(str(error)) from error
    except (AssertionError, AttributeError, KeyError, NotImplementedError, ValueError) as error:
        # What malt does not know makes it fail in many ways.
        raise NotConvertible(f"it has a construct that is not known: {error}") from error


def _without_defaults(node: Any) -> Any:
    """The function without what Python computes when it defines it."""
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [x and ast.Constant(None) for x in node.args.kw_defaults]
    if isinstance(node, ast.FunctionDef):
        node.decorator_list, node.returns = [], None
    return node


class _Options:
    """How malt shall convert: everything that it knows, but for what is done here."""

    def uses(self, feature: Any) -> bool:
        return feature is converter.Feature.BUILTIN_FUNCTIONS

    def call_options(self) -> _Options:
        return self

    def to_ast(self) -> ast.expr:
        return ast.Constant(None)


def _lowered(node: Any, context: Any) -> Any:
    """The tree with control flow as calls of the hooks."""
    unsupported_features_checker.verify(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = _Functions(context).visit(node)
    if _has(node, ast.Break):
        node = break_statements.transform(node, context)
    if _has(node, ast.Assert):
        node = _Assertions(context).visit(node)
    if _has(node, ast.Continue):
        node = continue_statements.transform(node, context)
    if _returns_early(node):
        node = return_statements.transform(node, context)
    node = _Calls(context).visit(qual_names.resolve(node))
    if _has(node, ast.If, ast.While, ast.For):
        node = _with_staged_statements(node, context)
    node = conditional_expressions.transform(node, context)
    node = logical_expressions.transform(node, context)
    return variables.transform(node, context)


def _has(node: ast.AST, *kinds: type) -> bool:
    """Whether there is such a node below, so that what lowers them is needed: each pass takes as
    long as all others."""
    return any(isinstance(x, kinds) for x in ast.walk(node))


def _returns_early(node: ast.AST) -> bool:
    """Whether a function returns anywhere but at its end."""
    found = list(ast.walk(node))
    last = {id(_last(x)) for x in found if isinstance(x, ast.FunctionDef)}
    return any(isinstance(x, ast.Return) and id(x) not in last for x in found)


def _last(function: ast.FunctionDef) -> ast.stmt:
    """The last statement of a function, which malt has put in a `with`."""
    last = function.body[-1]
    return last.body[-1] if isinstance(last, ast.With) else last


# The source.


def _node_of(function: FunctionType) -> Any:
    """The tree of the function alone, with the positions that it has in its file."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines or code.co_firstlineno > len(lines):
        raise NotConvertible("its source is not there, as that of code from exec() or a prompt")
    found = list(_candidates(code, lines))
    if not found:
        raise NotConvertible("its source is no longer what was run: the file was changed since")
    # Parsed files are kept, and nodes are changed.
    return copy.deepcopy(min(found, key=_extent))


def _candidates(code: CodeType, lines: list[str]) -> Iterator[Any]:
    """The functions of the source that may have compiled to `code`."""
    if code.co_name == "<lambda>":
        for node in ast.walk(_parsed("".join(lines))):
            if isinstance(node, ast.Lambda) and _takes(node, code) and _holds(node.body, code):
                yield node
        return
    for node in ast.walk(_definition(code.co_firstlineno, lines)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _takes(node, code):
            first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                yield node


def _definition(first: int, lines: list[str]) -> ast.Module:
    """The tree of the block of lines that begins at the line `first`."""
    try:
        text = "".join(inspect.getblock(lines[first - 1 :]))
        if text[:1].isspace():
            return ast.increment_lineno(ast.parse("if 1:\n" + text), first - 2)
        return ast.increment_lineno(ast.parse(text), first - 1)
    except SyntaxError:  # a block that is not whole, such as one with odd indentation
        return _parsed("".join(lines))


@functools.lru_cache(8)
def _parsed_once(text: str) -> ast.Module:
    return ast.parse(text)


def _parsed(text: str) -> ast.Module:
    """The tree of a whole file; nodes of it are copied before they are changed."""
    try:
        return _parsed_once(text)
    except SyntaxError as error:
        raise NotConvertible(f"its file has no Python in it: {error.msg}") from error


def _takes(node: Any, code: CodeType) -> bool:
    """Whether a function of the source has the parameters of the code."""
    own = node.args
    names = [x.arg for x in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    return len(names) == count


def _holds(body: ast.expr, code: CodeType) -> bool:
    """Whether all instructions come from the expression `body`."""
    begin, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    for line, end_line, column, end_column in code.co_positions():
        if None in (line, end_line, column, end_column) or (column, end_column) == (0, 0):
            continue
        if (line, column) < begin or (end_line, end_column) > end:
            return False
    return True


def _extent(node: Any) -> tuple[int, int]:
    return node.end_lineno - node.lineno, node.end_col_offset - node.col_offset


# The tree before malt sees it.


class _Prepared(ast.NodeTransformer):
    """Writes out what Python would find by the place of the code, and refuses what malt would
    silently get wrong."""

    def __init__(self, code: CodeType) -> None:
        self._class = _class_around(code.co_qualname)
        self._first: list[str] = []

    def visit(self, node: Any) -> Any:
        refused = _REFUSED.get(type(node).__name__)
        if refused:
            raise NotConvertible(f"it has {refused}")
        return super().visit(node)

    def _visit_function(self, node: Any) -> Any:
        own = (*node.args.posonlyargs, *node.args.args)
        self._first.append(own[0].arg if own else "")
        found = self.generic_visit(node)
        self._first.pop()
        return found

    visit_FunctionDef = visit_Lambda = _visit_function

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        is_bare = isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args
        if is_bare and self._first and self._first[-1]:
            names = ("__class__", self._first[-1])
            node.args = [ast.copy_location(ast.Name(x, ast.Load()), node) for x in names]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        node.id = self._mangled(node.id)
        return node

    def _mangled(self, name: str) -> str:
        """The name as Python stores one that is private to a class."""
        if not self._class or not name.startswith("__") or name.endswith("__"):
            return name
        return f"_{self._class.lstrip('_')}{name}"

    def _visit_loop(self, node: Any) -> Any:
        options = _loop_options(node.body[0])
        if options:
            anno.setanno(node, anno.Basic.DIRECTIVES, {directives.set_loop_options: options})
        return self.generic_visit(node)

    visit_For = visit_While = _visit_loop


    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        """`except … as name` with the name in its body, since malt looks for it there."""
        if node.name is not None:
            made = ast.parse(f"{node.name} = {HOOKS}.raised()\ntry: pass\nfinally: del {node.name}")
            made.body[1].body = node.body  # type: ignore[attr-defined]
            for x in (made.body[0], made.body[1].finalbody[0]):  # type: ignore[attr-defined]
                for y in ast.walk(x):
                    ast.copy_location(y, node)
            node.name, node.body = None, [*map(lambda x: ast.copy_location(x, node), made.body)]
        return self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> Any:
        """A choice between values as an `if`."""
        subject = f"subject_{node.lineno}_{node.col_offset}"
        stored = ast.Assign([ast.Name(subject, ast.Store())], node.subject)
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            test = _test_of(case, subject)
            names = [case.pattern.name] if isinstance(case.pattern, ast.MatchAs) else []
            bound = [
                ast.Assign([ast.Name(name, ast.Store())], ast.Name(subject, ast.Load()))
                for name in names
                if name
            ]
            body = [*(ast.copy_location(x, case.pattern) for x in bound), *case.body]
            chain = body if test is None else [ast.If(test, body, chain)]
            if test is not None:
                ast.copy_location(chain[0], case.pattern)
        made = [ast.copy_location(stored, node), *chain]
        for x in made:
            ast.fix_missing_locations(x)
        return [y for x in made for y in _listed(self.visit(x))]


#: Constructs that stay Python's, by the names of their nodes.
_REFUSED = {
    "AsyncFor": "an `async for`",
    "AsyncFunctionDef": "an `async def`",
    "AsyncWith": "an `async with`",
    "Await": "an `await`",
    "NamedExpr": "an assignment expression, `:=`",
    "TryStar": "an `except*`",
    "TypeAlias": "a `type` statement",
}


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _test_of(case: ast.match_case, subject: str) -> ast.expr | None:
    """The condition of a case; None if it always holds."""
    test = _test_of_pattern(case.pattern, subject)
    if test is None or case.guard is None:
        if case.guard is not None and case.pattern.name is not None:  # type: ignore[attr-defined]
            raise NotConvertible("it has a `match` statement with a name and a guard in one case")
        return case.guard if test is None else test
    return ast.copy_location(ast.BoolOp(ast.And(), [test, case.guard]), case.pattern)


def _test_of_pattern(pattern: ast.pattern, subject: str) -> ast.expr | None:
    name = ast.Name(subject, ast.Load())
    match pattern:
        case ast.MatchAs(pattern=None):
            return None
        case ast.MatchValue(value):
            test: ast.expr = ast.Compare(name, [ast.Eq()], [value])
        case ast.MatchSingleton(value):
            test = ast.Compare(name, [ast.Is()], [ast.Constant(value)])
        case ast.MatchOr(patterns) if not any(isinstance(x, ast.MatchAs) for x in patterns):
            tests = [_test_of_pattern(x, subject) for x in patterns]
            test = ast.BoolOp(ast.Or(), [x for x in tests if x is not None])
        case _:
            raise NotConvertible("it has a `match` statement with patterns that are no values")
    return ast.copy_location(test, pattern)


def _class_around(qualified_name: str) -> str:
    """The class in which the code of a function stands; empty if it stands in none."""
    parts = qualified_name.split(".")
    inner = [x for x, y in zip(parts, parts[1:]) if "<locals>" not in (x, y)]
    return inner[-1] if inner else ""


def _loop_options(first: ast.stmt) -> dict[str, ast.expr]:
    """What `set_loop_options` says as the first statement of a loop."""
    match first:
        case ast.Expr(ast.Call(ast.Attribute(_, "set_loop_options") | ast.Name("set_loop_options"))):
            call: Any = first.value
            return {x.arg: x.value for x in call.keywords if x.arg}
    return {}


# What malt does in another way than we need.


class _Assertions(converter.Base):
    """`assert` statements as calls of a hook, whatever their messages are."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        text = node.msg or ast.Constant(None)
        made = templates.replace(
            f"{HOOKS}.assert_stmt(lambda: test, lambda: text)", test=node.test, text=text
        )
        return _derived(made, node)


class _Functions(functions.FunctionTransformer):
    """Bodies of functions in the context that malt needs; lambdas need none."""

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self.generic_visit(node)


class _Calls(call_trees.CallTreeTransformer):
    """Calls by way of a hook, which converts what is called; those that make what a `for` runs
    over by way of another, which does not make tensors of ranges."""

    def visit_Call(self, node: ast.Call) -> Any:
        is_users = anno.hasanno(node, anno.Basic.ORIGIN)
        is_of_frame = isinstance(node.func, ast.Name) and node.func.id in _OF_FRAME
        is_iterated = anno.getanno(node, _IS_ITERATED, default=False)
        self.generic_visit(node)
        if not is_users or is_of_frame:
            return node
        hook = "iterated_call" if is_iterated else "converted_call"
        made = templates.replace_as_expression(
            f"{HOOKS}.{hook}(called, args, kwargs)",
            called=node.func,
            args=self._args_to_tuple(node),
            kwargs=self._kwargs_to_dict(node),
        )
        return _derived(made, node)

    def _kwargs_to_dict(self, node: ast.Call) -> ast.expr:
        if not node.keywords:
            return ast.Constant(None)
        return ast.Call(ast.Name("dict", ast.Load()), [], node.keywords)  # malt gives a tuple

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> Any:
        _mark_iterated(node.iter)
        return self.generic_visit(node)


_IS_ITERATED = "is_iterated"


def _mark_iterated(node: ast.expr) -> None:
    """Marks the calls that make what a loop runs over, also inside of `enumerate` and `zip`."""
    if not isinstance(node, ast.Call):
        return
    anno.setanno(node, _IS_ITERATED, True)
    if isinstance(node.func, ast.Name) and node.func.id in _OF_ITERABLES:
        for argument in node.args:
            _mark_iterated(argument)


class _Statements(control_flow.ControlFlowTransformer):
    """Control flow by way of hooks. Attributes and items that a branch made are taken away again
    before the other branch is traced."""

    def visit_If(self, node: ast.If) -> Any:
        if not anno.hasanno(node.test, anno.Basic.ORIGIN):  # malt made it, around the user's lines
            _derived(node, next(_with_origin(node.body), node))
        return _derived(super().visit_If(node), node)

    def visit_While(self, node: ast.While) -> Any:
        return _derived(super().visit_While(node), node)

    def visit_For(self, node: ast.For) -> Any:
        return _derived(super().visit_For(node), node)

    def _create_loop_options(self, node: Any) -> Any:
        """The options of a loop, and which names may be read after it."""
        options = super()._create_loop_options(node)
        names = sorted(map(str, anno.getanno(node, anno.Static.LIVE_VARS_OUT)))
        options.keys.append(ast.Constant("read_after"))
        options.values.append(ast.Tuple([*map(ast.Constant, names)], ast.Load()))
        return options

    def _create_state_functions(
        self, block_vars: Any, nonlocal_declarations: Any, getter_name: Any, setter_name: Any
    ) -> Any:
        if not any(x.is_composite() for x in block_vars):
            return super()._create_state_functions(
                block_vars, nonlocal_declarations, getter_name, setter_name
            )
        return templates.replace(
            """
            def getter_name():
                return values,
            def setter_name(vars_):
                nonlocal_declarations
                targets, = vars_
                stores
            """,
            nonlocal_declarations=nonlocal_declarations,
            getter_name=getter_name,
            setter_name=setter_name,
            values=[_loaded(x) for x in block_vars],
            targets=tuple(_place_of(x, i) for i, x in enumerate(block_vars)),
            stores=[
                statement
                for i, x in enumerate(block_vars)
                if x.is_composite()
                for statement in _store(x, _place_of(x, i))
            ],
        )


def _place_of(name: Any, number: int) -> Any:
    """What takes the new value of a name; an attribute or item is set from a name of its own."""
    return f"{HOOKS}value_{number}" if name.is_composite() else name


def _loaded(name: Any) -> Any:
    if name.is_simple():
        return name
    text = ast.Constant(str(name))
    return templates.replace_as_expression(
        f"{HOOKS}.ldu(lambda: value, text)", value=name, text=text
    )


def _store(name: Any, value: str) -> Any:
    return templates.replace(
        f"""
        if {HOOKS}.is_undefined(value):
            if not {HOOKS}.is_undefined(loaded):
                del target
        else:
            target = value
        """,
        value=value,
        loaded=_loaded(name),
        target=name,
    )


def _with_staged_statements(node: Any, context: Any) -> Any:
    """The tree with statements of control flow as calls of the hooks."""
    graphs = cfg.build(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = reaching_definitions.resolve(node, context, graphs)
    node = reaching_fndefs.resolve(node, context, graphs)
    return _Statements(context).visit(liveness.resolve(node, context, graphs))


# The code.


def _note_origins(node: ast.AST) -> None:
    """Notes at each node where it stands in the file, which malt hands on to what it makes, and at
    each name that is set whether its reads are checked."""
    stored = set()
    for x in ast.walk(node):
        if hasattr(x, "lineno"):
            place = tuple(getattr(x, name) for name in _POSITION)
            is_block = isinstance(getattr(x, "body", None), list)
            anno.setanno(x, anno.Basic.ORIGIN, _first_line(place) if is_block else place)
        if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load):
            stored.add(x.id)
    for x in ast.walk(node):
        if isinstance(x, ast.Name) and x.id in stored:  # one that may have no value
            anno.setanno(x, anno.Static.ORIG_DEFINITIONS, ())


def _derived(made: Any, node: Any) -> Any:
    """What was made in the place of a node, with its origin."""
    origin = anno.getanno(node, anno.Basic.ORIGIN, default=None)
    if origin is not None:
        for x in made if isinstance(made, list) else [made]:
            anno.setanno(x, anno.Basic.ORIGIN, origin)
    return made


def _first_line(place: tuple[Any, ...]) -> tuple[Any, ...]:
    """A place without the lines behind its first: Python takes a call of `x.y` to be where y ends.
    """
    line, column, end_line, end_column = place
    return place if line == end_line else (line, column, line, column)


def _with_origin(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes that have an origin, in the order of the source."""
    for statement in statements:
        for node in ast.walk(statement):
            if anno.hasanno(node, anno.Basic.ORIGIN):
                yield node


def _compiled(node: Any, code: CodeType) -> CodeType:
    """The code of the tree, compiled where the free names of the function are free."""
    _place(node, tuple(getattr(node, name, 1) for name in _POSITION))
    generated = _generated_functions(node)
    body = [node]
    name = code.co_name
    if isinstance(node, ast.Lambda):
        body = [ast.Assign([ast.Name("function", ast.Store())], node)]
    else:
        # Its own name must stay what it is: a global one, or a free one.
        name = node.name = f"{HOOKS}function"
    free = (*code.co_freevars, HOOKS)
    defined = [ast.Assign([ast.Name(x, ast.Store())], ast.Constant(None)) for x in free]
    module = ast.parse("def maker():\n    pass")
    module.body[0].body = [*defined, *body]  # type: ignore[attr-defined]
    ast.fix_missing_locations(module)
    flags = code.co_flags & _FUTURE_FLAGS
    compiled = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    made = _inner(_inner(compiled, "maker"), name)
    return _renamed(made, code.co_name, code.co_qualname, generated)


def _place(node: ast.AST, place: tuple[Any, ...]) -> None:
    """Gives the nodes below `node` the positions of what they were made from."""
    open_nodes = [(node, place)]
    while open_nodes:
        node, place = open_nodes.pop()
        place = anno.getanno(node, anno.Basic.ORIGIN, default=None) or _first_line(place)
        if "lineno" in node._attributes:
            for name, value in zip(_POSITION, place, strict=True):
                setattr(node, name, value)
        open_nodes += ((child, place) for child in ast.iter_child_nodes(node))


def _generated_functions(node: ast.AST) -> set[str]:
    """The names of the functions that stand for branches and bodies."""
    return {
        x.name
        for x in ast.walk(node)
        if isinstance(x, ast.FunctionDef) and not anno.hasanno(x, "function_context_name")
    }


def _inner(code: CodeType, name: str) -> CodeType:
    """The code of a function that is defined in other code."""
    return next(x for x in code.co_consts if isinstance(x, CodeType) and x.co_name == name)


def _renamed(code: CodeType, name: str, path: str, generated: Iterable[str]) -> CodeType:
    """The code with the user's names: branches and bodies have that of their function."""

    def inner(x: Any) -> Any:
        if not isinstance(x, CodeType):
            return x
        if x.co_name in generated:
            return _renamed(x, name, path, generated)
        return _renamed(x, x.co_name, f"{path}.<locals>.{x.co_name}", generated)

    constants = tuple(map(inner, code.co_consts))
    return code.replace(co_name=name, co_qualname=path, co_consts=constants)
