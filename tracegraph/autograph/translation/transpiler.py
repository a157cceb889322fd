"""From the source of a Python function to code that calls our hooks: the adapter to malt.

Only `function_conversion.py` imports this module, when the first function is converted, since malt
takes a while to load. The generated code has the user's file, lines, columns and function names, so
that tracebacks, debuggers and the sources of nodes need no mapping back.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import importlib.util  # malt uses it without importing it
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, cast

from malt.converters import (
    break_statements,
    continue_statements,
    control_flow,
    functions,
    logical_expressions,
    return_statements,
    variables,
)
from malt.core import converter, unsupported_features_checker
from malt.lang import directives
from malt.pyct import anno, ast_util, cfg, errors, naming, qual_names, templates, transformer
from malt.pyct.static_analysis import (
    activity,
    annos,
    liveness,
    reaching_definitions,
    reaching_fndefs,
)

from tracegraph.autograph.function_conversion import NotConvertible
from tracegraph.autograph.statements.values import is_flag_of_loop
from tracegraph.autograph.translation.function_trees import tree_of
from tracegraph.autograph.translation.inner_functions import (
    base_of,
    bound_inside,
    read_by_values,
    set_by_calls,
)
from tracegraph.autograph.translation.preparation import (
    InnerNotConvertible,
    left_to_python,
    loop_options,
    prepared,
)
from tracegraph.autograph.translation.syntax_trees import IS_PART, parts_of, visit_parts, walk
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import HOOKS

assert importlib.util


_POSITION = ("lineno", "col_offset", "end_lineno", "end_col_offset")
#: Functions that inspect the frame that calls them.
_OF_FRAME = {"breakpoint", "dir", "eval", "exec", "globals", "locals", "super", "vars"}
#: Functions that pass an iterable through, item by item.
_OF_ITERABLES = {"enumerate", "zip"}
_FUTURE_FLAGS = __future__.annotations.compiler_flag


def converted_code(function: FunctionType) -> CodeType:
    """The converted code of a function. Besides the function's own free names it has `HOOKS`.

    Raises NotConvertible with the reason if there is none.
    """
    with _refusing():
        return _compiled(_transformed(function), function.__code__)


def converted_text(function: FunctionType) -> str:
    """The converted code as Python text. Raises NotConvertible."""
    with _refusing():
        return ast.unparse(ast.fix_missing_locations(_transformed(function)))


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """A context that turns malt's errors into refusals: on constructs that it does not know, malt
    fails in many ways, or generates invalid Python."""
    try:
        yield
    except NotConvertible:
        raise
    except errors.UnsupportedLanguageElementError as error:
        what = str(error).removesuffix(" not yet supported").removesuffix(" are not supported")
        raise NotConvertible(f"it contains {what}, which cannot be converted") from error
    except outside_interrupts(Exception) as error:
        text = f"{type(error).__name__} {error}".strip()
        raise NotConvertible(f"the converter, malt, failed on it: {text}") from error


def _transformed(function: FunctionType) -> Any:
    node, left, paths = _prepared(function)
    for x in left.values():
        _note_as_it_is(x)
    _note_origins(node)
    _note_loop_options(node)
    name = function.__code__.co_name if isinstance(node, ast.FunctionDef) else "lambda_"
    names = {**function.__globals__, **dict.fromkeys(function.__code__.co_freevars)}
    info = transformer.EntityInfo(name, "", function.__code__.co_filename, (), names)
    context = transformer.Context(info, _Namer(names), converter.ProgramContext(_Options()))
    made = _lowered(node, context, paths)
    left_to_python(made, left)
    return made


def _prepared(function: FunctionType) -> tuple[Any, dict[str, Any], Mapping[str, frozenset[str]]]:
    """The tree of a function for malt, what is to be put into it at last, and what inner functions
    set. Inner functions that cannot be converted stay as they are."""
    left_alone = set[tuple[int, int]]()
    while True:
        tree = tree_of(function)
        paths = set_by_calls(tree)
        try:
            return *prepared(tree, function.__code__, paths, left_alone), paths
        except InnerNotConvertible as error:
            left_alone.add(error.place)


class _Namer(naming.Namer):
    """Names for what malt adds. Its flags of `break`, `continue` and `return` get names that no
    user has, by which the hooks know them."""

    def new_symbol(self, name_root: str, reserved_locals: Any) -> str:
        root = f"{HOOKS}{name_root}" if name_root in _FLAGS else name_root
        return super().new_symbol(root, reserved_locals)


_FLAGS = frozenset(["break_", "continue_", "do_return"])


class _Options:
    """malt's options: convert everything that it can, except what is handled here."""

    def uses(self, feature: Any) -> bool:
        return feature is converter.Feature.BUILTIN_FUNCTIONS

    def call_options(self) -> _Options:
        return self

    def to_ast(self) -> ast.expr:
        return ast.Constant(None)


def _lowered(node: Any, context: Any, paths: Mapping[str, frozenset[str]]) -> Any:
    """The tree with control flow as calls of the hooks; `paths` is what inner functions set."""
    unsupported_features_checker.verify(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = _Functions(context).visit(node)
    if any(map(_changes_in_place, walk(node))):
        node = _Changes(context).visit(node)
    # A pass takes as long as any other, also where nothing is to be lowered.
    found = list(walk(node))
    kinds = {type(x) for x in found}
    unsure = read_by_values(node, context.info.namespace)
    if ast.Break in kinds:
        node = break_statements.transform(node, context)
    if ast.Assert in kinds:
        node = _Assertions(context).visit(node)
    if kinds & {ast.Break, ast.Continue}:  # a `break` becomes a `continue`
        node = continue_statements.transform(node, context)
    if _returns_early(found):
        node = return_statements.transform(node, context)
    node = _Calls(context).visit(qual_names.resolve(node))
    if kinds & {ast.If, ast.While, ast.For}:
        node = _with_staged_statements(node, context, paths, unsure)
    if kinds & {ast.Compare, ast.IfExp}:
        node = _Choices(context).visit(node)
    if kinds & {ast.BoolOp, ast.Compare, ast.If, ast.UnaryOp, ast.While, ast.For}:
        node = _Logic(context).visit(node)
    node = _Reads(context).visit(node)
    return _Finally(context).visit(node) if ast.Try in kinds else node


def _returns_early(found: Iterable[ast.AST]) -> bool:
    """Whether a function returns anywhere except at its end."""
    last = {id(_last(x)) for x in found if isinstance(x, ast.FunctionDef)}
    return any(isinstance(x, ast.Return) and id(x) not in last for x in found)


def _last(function: ast.FunctionDef) -> ast.stmt:
    """The last statement of a function, which malt has put in a `with`."""
    last = function.body[-1]
    return last.body[-1] if isinstance(last, ast.With) else last


# Overrides of malt's functions by faster ones that do the same.


def _visit_constant(self: Any, node: ast.Constant) -> ast.Constant:
    """A constant has no parts."""
    return node


for _visitor in (
    transformer.Base,
    qual_names.QnResolver,
    templates.ContextAdjuster,
    templates.ReplaceTransformer,
):
    _visitor.generic_visit = visit_parts
    _visitor.visit_Constant = _visit_constant

#: The field in which malt keeps the annotations of a node, a dict.
_ANNOTATIONS = "___pyct_anno"
_NONE: dict[Any, Any] = {}


def _has_annotation(node: Any, key: Any, field_name: str = _ANNOTATIONS) -> bool:
    return key in getattr(node, field_name, _NONE)


def _annotation(
    node: Any, key: Any, default: Any = anno.FAIL, field_name: str = _ANNOTATIONS
) -> Any:
    if default is anno.FAIL:
        return getattr(node, field_name)[key]
    return getattr(node, field_name, _NONE).get(key, default)


def _copied_clean(self: Any, node: Any) -> Any:
    """A copy of what replaces a name in a template: without positions, and with some of the
    annotations."""
    if isinstance(node, list | tuple):
        return type(node)([self.copy(x) for x in node])
    if not IS_PART[type(node)]:
        return node
    names = [x for x in node._fields if not x.startswith("__") and hasattr(node, x)]
    made = type(node)(**{name: self.copy(getattr(node, name)) for name in names})
    for key, value in getattr(node, _ANNOTATIONS, _NONE).items():
        if self.preserve_annos and key in self.preserve_annos:
            anno.setanno(made, key, value)
    return made


def _scope_copy(kind: Any, other: Any) -> Any:
    """A copy of a scope and those around it: malt's own copies each as often as it holds others."""
    made = kind(None if other.parent is None else kind.copy_of(other.parent))
    for name in ("isolated_names", "modified", "read", "deleted", "bound", "annotations"):
        getattr(made, name).update(getattr(other, name))
    made.params.update(other.params)
    return made


class _Activity(activity.ActivityAnalyzer):
    """malt's analysis of which names code sets; but a function's parameters are names of its own,
    which are not set where it is defined."""

    def __init__(self, context: Any, parent_scope: Any = None) -> None:
        transformer.Base.__init__(self, context)  # malt's own finds this class under its name
        self.allow_skips = False
        self.scope = activity.Scope(parent_scope, isolated=True)
        self._in_aug_assign = self._in_annotation = self._track_annotations_only = False

    def visit_arg(self, node: ast.arg) -> Any:
        is_own = not self._track_annotations_only
        return super().visit_arg(node) if is_own else self.generic_visit(node)


activity.ActivityAnalyzer = _Activity
activity.Scope.copy_of = classmethod(_scope_copy)  # type: ignore[assignment]
anno.hasanno, anno.getanno = _has_annotation, _annotation
ast_util.CleanCopier.copy = _copied_clean
# Python computes the hash of an Enum's member from its name, in Python.
anno.NoValue.__hash__ = object.__hash__  # type: ignore[method-assign]


# Overrides of malt's behaviour.


def _hook_of(name: str, value: ast.expr) -> ast.expr:
    """The call of a hook with a value, without the copies that a template makes."""
    hook = ast.Attribute(ast.Name(HOOKS, ast.Load()), name, ast.Load())
    return ast.Call(hook, [value], [])


def _changes_in_place(node: ast.AST) -> bool:
    """Whether it is what a statement sets in an object or a container, or a list that grows."""
    match node:
        case (
            ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del())
        ):
            return True
        case ast.Call(ast.Attribute(ast.Name(name), attribute)):
            return name == HOOKS and attribute.startswith("list_")
    return False


class _Changes(converter.Base):
    """Statements that change something in place, each before a call of a hook."""

    def _visit_statement(self, node: Any) -> Any:
        if not any(map(_changes_in_place, walk(node))):
            return node
        return _derived([node, *templates.replace(f"{HOOKS}.changed()")], node)

    visit_Assign = visit_AugAssign = visit_Delete = _visit_statement


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
    """Function bodies in the context that malt needs; lambdas need none."""

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self.generic_visit(node)


class _Calls(converter.Base):
    """Calls of the converted form of a callee, which a hook looks up. Calls that create the
    iterable of a `for` use another hook, which does not build tensors for ranges. The call itself
    stays in the user's frame, for functions that inspect their caller.
    """

    def visit_Call(self, node: ast.Call) -> Any:
        is_users = anno.hasanno(node, anno.Basic.ORIGIN)
        is_of_frame = isinstance(node.func, ast.Name) and node.func.id in _OF_FRAME
        is_iterated = anno.getanno(node, _IS_ITERATED, default=False)
        self.generic_visit(node)
        if not is_users or is_of_frame:
            return node
        hook = "iterated" if is_iterated else "called"
        node.func = _derived(_hook_of(hook, node.func), node.func)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> Any:
        _mark_iterated(node.iter)
        return self.generic_visit(node)


_IS_ITERATED = "is_iterated"


def _mark_iterated(node: ast.expr) -> None:
    """Marks the calls that create the iterable of a loop, also inside `enumerate` and `zip`."""
    if not isinstance(node, ast.Call):
        return
    anno.setanno(node, _IS_ITERATED, True)
    if isinstance(node.func, ast.Name) and node.func.id in _OF_ITERABLES:
        for argument in node.args:
            _mark_iterated(argument)


class _Choices(converter.Base):
    """`x if c else y`, and `x in y`, as calls of hooks, also when nested."""

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        hook = {ast.In: "in_", ast.NotIn: "not_in"}.get(type(node.ops[0]))
        if hook is None or len(node.ops) > 1:
            return node
        made = templates.replace_as_expression(
            f"{HOOKS}.{hook}(value, items)", value=node.left, items=node.comparators[0]
        )
        return _derived(made, node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        text = _CALLED.sub(r"\1", ast.unparse(node.test))
        self.generic_visit(node)
        made = templates.replace_as_expression(
            f"{HOOKS}.if_exp(test, lambda: true, lambda: false, text)",
            test=node.test,
            true=node.body,
            false=node.orelse,
            text=ast.Constant(text),
        )
        return _derived(made, node)


def _is_checked(name: ast.Name) -> bool:
    return anno.hasanno(name, anno.Static.ORIG_DEFINITIONS)


#: The callee, in the text of an expression that calls it through the hook.
_CALLED = re.compile(rf"{HOOKS}\.called\(([\w.]+)\)")


class _Logic(logical_expressions.LogicalExpressionTransformer):
    """`and`, `or`, `not` and chains of comparisons as calls of hooks; one comparison stays."""

    def visit_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) == 1:
            return self.generic_visit(node)
        if all(isinstance(x, (ast.Name, ast.Constant)) for x in node.comparators[:-1]):
            return super().visit_Compare(node)
        self.generic_visit(node)
        return self._chain(node)

    def _chain(self, node: ast.Compare) -> Any:
        """A chain whose operands are computed once each, in the order of Python: malt's form has
        those in the middle twice."""
        operands = [node.left, *node.comparators]
        last = len(operands) - 1
        names = [f"{HOOKS}operand_{k}" for k in range(last)]
        made = self._comparison(node, last - 1, names, operands[last])
        for k in range(last - 1, 0, -1):
            first = self._comparison(node, k - 1, names, ast.Name(names[k], ast.Load()))
            both = self._as_binary_function(
                f"{HOOKS}.and_", self._as_lambda(first), self._as_lambda(made)
            )
            bound = range(k + 1) if k == 1 else [k]
            parameters = ", ".join(names[i] for i in bound)
            function = templates.replace_as_expression(f"lambda {parameters}: both", both=both)
            made = ast.Call(function, [operands[i] for i in bound], [])
        return _derived(made, node)

    def _comparison(self, node: ast.Compare, k: int, names: Sequence[str], right: Any) -> Any:
        return self._process_binop(node.ops[k], ast.Name(names[k], ast.Load()), right)


class _Reads(variables.VariableAccessTransformer):
    """Reads of names as calls of a hook, also in the value of an augmented assignment."""

    def visit_Name(self, node: ast.Name) -> Any:
        is_read = isinstance(node.ctx, ast.Load)
        return _hook_of("ld", node) if is_read and _is_checked(node) else node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if isinstance(node.target, ast.Name):
            node.value = self.visit(node.value)  # type: ignore[assignment]
        return super().visit_AugAssign(node)


class _Finally(converter.Base):
    """What `finally` runs, in a context of the hooks: it also runs after a `return`."""

    def visit_Try(self, node: ast.Try) -> Any:
        self.generic_visit(node)
        if node.finalbody:
            text = f"with {HOOKS}.finally_():\n  body"
            made = templates.replace(text, body=node.finalbody)
            node.finalbody = _derived(made, next(_with_origin(node.finalbody), node))
        return node


class _Statements(control_flow.ControlFlowTransformer):
    """Control flow through hooks. Attributes and items created by one branch are removed again
    before the other branch is traced."""

    def __init__(
        self,
        context: Any,
        shared: Iterable[str],
        set_by_calls: Mapping[str, frozenset[str]],
        read_by_values: frozenset[str],
        tree: ast.AST,
    ) -> None:
        super().__init__(context)
        #: The names that other functions may read too.
        self._shared = frozenset(shared)
        #: What a call of an inner function sets, by the name of that.
        self._set_by_calls = set_by_calls
        self._read_by_values = read_by_values
        self._bound_inside = bound_inside(tree) if set_by_calls else frozenset[str]()
        #: The blocks already lowered: templates copy their arguments, so a deeply nested block
        #: would be copied at every level.
        self._blocks: dict[str, list[ast.stmt]] = {}

    def generic_visit(self, node: Any) -> Any:
        node = super().generic_visit(node)
        if isinstance(node, (ast.If, ast.While, ast.For)):
            node.body = self._set_aside(node.body)
            if isinstance(node, ast.If) and node.orelse:
                node.orelse = self._set_aside(node.orelse)
        return node

    def _set_aside(self, block: list[ast.stmt]) -> list[ast.stmt]:
        name = f"{HOOKS}block_{len(self._blocks)}"
        self._blocks[name] = block
        return [ast.Expr(ast.Name(name, ast.Load()))]

    def _lowered(self, made: list[Any], node: Any) -> list[Any]:
        """The replacement of a statement, with its blocks and its origin."""
        for x in made:
            if isinstance(x, ast.FunctionDef):
                parts = [self._blocks.pop(_name_of(part), [part]) for part in x.body]
                x.body = [statement for part in parts for statement in part]
        return _derived(made, node)

    def visit_If(self, node: ast.If) -> Any:
        """An `if` as a call of a hook. That of malt's `if not flag:` around the user's lines also
        gets the name of the flag."""
        is_users = anno.hasanno(node.test, anno.Basic.ORIGIN)
        if not is_users:
            _derived(node, next(_with_origin(node.body), node))
        flag = "" if is_users else node.test.operand.id  # type: ignore[attr-defined]
        made = self._lowered(super().visit_If(node), node)
        call = made[-1].value
        names = sorted(x.value for x in call.args[5].elts if x.value in self._shared)
        call.args += [ast.Constant(flag), ast.Tuple([*map(ast.Constant, names)], ast.Load())]
        return made

    def visit_While(self, node: ast.While) -> Any:
        return self._lowered(super().visit_While(node), node)

    def visit_For(self, node: ast.For) -> Any:
        return self._lowered(super().visit_For(node), node)

    def _get_block_vars(self, node: Any, modified: Any) -> Any:
        """The names that a statement changes; also what the inner functions it calls change. What
        is declared `global` or `nonlocal` is read elsewhere."""
        scopes: list[Any] = [
            anno.getanno(node, key, default=None)
            for key in (annos.NodeAnno.BODY_SCOPE, annos.NodeAnno.ORELSE_SCOPE)
        ]
        read = {str(x) for scope in scopes if scope for x in scope.read}
        paths = {x for f in read & self._set_by_calls.keys() for x in self._set_by_calls[f]}
        found: Any = frozenset(map(qual_names.from_str, self._visible(paths)))
        own = self.state[control_flow._Function].scope
        declared = modified & (own.globals | own.nonlocals)
        if found or declared:
            bases = frozenset(y for x in found for y in x.support_set if y.is_symbol())
            for key, more in (
                (anno.Static.LIVE_VARS_IN, found | bases),
                (anno.Static.LIVE_VARS_OUT, found | declared),
                (anno.Static.DEFINED_VARS_IN, found - own.bound),
            ):
                known: Any = anno.getanno(node, key)
                anno.setanno(node, key, known | more)
        names, undefined, count = super()._get_block_vars(node, modified | found)
        unsure = self._unsure(node, modified)
        sure = [x for x in names if x not in unsure]
        count -= sum(x in unsure for x in names[:count])
        return [*sure, *unsure], undefined, count

    def _get_block_basic_vars(self, modified: Any, live_in: Any, live_out: Any) -> Any:
        found = super()._get_block_basic_vars(modified, live_in, live_out)
        return found | {x for x in modified if str(x) in self._read_by_values}

    def _unsure(self, node: Any, modified: Any) -> list[Any]:
        """The names that a statement changes and that nothing reads later, unless a function that
        is a value does."""
        keys = (anno.Static.LIVE_VARS_IN, anno.Static.LIVE_VARS_OUT)
        live: frozenset[Any] = frozenset().union(*(cast(Any, anno.getanno(node, x)) for x in keys))
        return sorted(x for x in modified - live if str(x) in self._read_by_values)

    def _visible(self, paths: set[str]) -> set[str]:
        """The paths without those of names that only functions inside this one bind."""
        scopes = [x.scope for x in self.state[control_flow._Function] if x.scope is not None]
        hidden = self._bound_inside.difference(*({str(y) for y in x.bound} for x in scopes))
        return {x for x in paths if base_of(x) not in hidden}

    def _create_loop_options(self, node: Any) -> Any:
        """The options of a loop, which names may be read after it, and which flags say that an
        iteration was left."""
        options = super()._create_loop_options(node)
        live: Any = anno.getanno(node, anno.Static.LIVE_VARS_OUT)
        body: Any = anno.getanno(node, annos.NodeAnno.BODY_SCOPE)
        flags = filter(is_flag_of_loop, map(str, body.bound))
        read_after = ("read_after", map(str, live))
        unsure = ("unsure", map(str, self._unsure(node, body.bound | _targets(node))))
        for key, names in (read_after, ("exits", flags), ("shared", self._shared), unsure):
            options.keys.append(ast.Constant(key))
            options.values.append(ast.Tuple([*map(ast.Constant, sorted(names))], ast.Load()))
        return options

    def _create_state_functions(
        self, block_vars: Any, nonlocal_declarations: Any, getter_name: Any, setter_name: Any
    ) -> Any:
        # A global name may have no value, as an attribute or item, and then must not get one.
        own = self.state[control_flow._Function].scope.globals
        apart = {x for x in block_vars if x.is_composite() or x in own}
        if not apart:
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
            values=[_loaded(x) if x in apart else x for x in block_vars],
            targets=tuple(_place_of(i) if x in apart else x for i, x in enumerate(block_vars)),
            stores=[
                statement
                for i, x in enumerate(block_vars)
                if x in apart
                for statement in _store(x, _place_of(i))
            ],
        )


def _name_of(statement: ast.stmt) -> str:
    """The name that a statement consists of; empty for any other."""
    match statement:
        case ast.Expr(ast.Name(name)):
            return name
    return ""


def _place_of(number: int) -> str:
    """The target for the new value of a name that is set from there."""
    return f"{HOOKS}value_{number}"


def _loaded(name: Any) -> Any:
    text = ast.Constant(str(name))
    if name.is_simple():
        made = f"{HOOKS}.ldu(lambda: name, text)"
        return templates.replace_as_expression(made, text=text, name=name)
    if name.has_attr():
        made = f"{HOOKS}.ldu(lambda: {HOOKS}.attribute_state(owner, key), text)"
        return templates.replace_as_expression(made, text=text, **_attribute(name))
    made = f"{HOOKS}.ldu(lambda: {HOOKS}.item_state(owner, key), text)"
    node = _path(name)
    return templates.replace_as_expression(made, text=text, owner=node.value, key=node.slice)


class _Paths(ast.NodeTransformer):
    """Names in attributes and items as what they stand for where the code was not left."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return templates.replace_as_expression(f"{HOOKS}.without_flags(name)", name=node)


def _path(name: Any) -> Any:
    """An attribute or item as an expression, or as a target."""
    return _Paths().visit(name.ast())


def _store(name: Any, value: str) -> Any:
    is_attribute = name.has_attr()
    set_value = f"{HOOKS}.set_attribute(owner, key, value)" if is_attribute else "target = value"
    of_attribute = _attribute(name) if is_attribute else {}
    # Where a name is deleted, malt sets it to an object that stands for none.
    removed = f"globals()[{str(name)!r}]" if name.is_simple() else "target"
    return templates.replace(
        f"""
        if {HOOKS}.is_undefined(value):
            {HOOKS}.check_left_out(value)
            if not {HOOKS}.is_undefined(loaded):
                del {removed}
        else:
            {set_value}
        """,
        value=value,
        loaded=_loaded(name),
        target=name if name.is_simple() else _path(name),
        **of_attribute,
    )


def _attribute(name: Any) -> dict[str, Any]:
    """The object that has an attribute, and its name there."""
    return {"owner": _path(name.parent), "key": ast.Constant(name.qn[-1])}


def _visit_internal(self: Any, mode: Any) -> None:
    """Visits the nodes of a control flow graph until no visit changes anything, each at least once.

    malt's own walk puts a node in the queue once for each path to it: a million times after twenty
    `if` statements with an `else`. The analyses end at the same fixed point, since a node that
    waits is visited after all that queued it.
    """
    is_forward = mode == cfg._WalkMode.FORWARD
    queue = deque([self.graph.entry] if is_forward else self.graph.exit)
    waiting, visited = set(queue), set()
    while queue:
        node = queue.popleft()
        waiting.discard(node)
        visited.add(node)
        has_changed = self.visit_node(node)
        for following in node.next if is_forward else node.prev:
            if following not in waiting and (has_changed or following not in visited):
                waiting.add(following)
                queue.append(following)


cfg.GraphVisitor._visit_internal = _visit_internal


def _targets(loop: ast.stmt) -> Any:
    """What the items of a loop set."""
    scope: Any = anno.getanno(loop, annos.NodeAnno.ITERATE_SCOPE, default=None)
    return frozenset() if scope is None else scope.modified


class _Liveness(liveness.Analyzer):
    """malt's analysis of which names are read later, but a `for` that has no further item leaves
    its target as it is: what was set before may be read after it."""

    def __init__(self, graph: Any, include_annotations: bool) -> None:
        cfg.GraphVisitor.__init__(self, graph)  # malt's own finds this class under its name
        self.include_annotations = include_annotations
        #: By the node that heads a loop: what the loop sets there, and the nodes after it.
        self._loops = {
            graph.index[x.iter]: (_targets(x), behind)
            for x, behind in graph.stmt_next.items()
            if isinstance(x, ast.For)
        }

    def visit_node(self, node: Any) -> bool:
        before = self.in_[node]
        super().visit_node(node)
        targets, behind = self._loops.get(node, ((), ()))
        for each in behind:
            self.in_[node] = self.in_[node] | self.in_[each].intersection(targets)
        return bool(self.in_[node] != before)


liveness.Analyzer = _Liveness


def _with_staged_statements(
    node: Any, context: Any, paths: Mapping[str, frozenset[str]], unsure: frozenset[str]
) -> Any:
    """The tree with control flow statements as calls of the hooks. The names that are `unsure` are
    read by values, see `read_by_values`."""
    graphs = _control_flow(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = reaching_definitions.resolve(node, context, graphs)
    node = reaching_fndefs.resolve(node, context, graphs)
    declared = (x.names for x in walk(node) if isinstance(x, (ast.Global, ast.Nonlocal)))
    shared = itertools.chain.from_iterable(declared)
    statements = _Statements(context, shared, paths, unsure, node)
    return statements.visit(liveness.resolve(node, context, graphs))


def _control_flow(node: ast.AST) -> dict[Any, Any]:
    """The control flow graphs of a function and of those in it. malt leaves out a lambda that is
    all that another one returns."""
    graphs = cfg.build(node)
    for x in walk(node):
        if isinstance(x, ast.Lambda) and x not in graphs:
            graphs.update(cfg.build(x))
    return graphs


# Code generation.


def _note_origins(node: ast.AST) -> None:
    """Records on each node its place in the file, which malt copies to generated nodes, and on each
    name that is set whether its reads are checked."""
    stored = set()
    for x in walk(node):
        if hasattr(x, "lineno"):
            place = tuple(getattr(x, name) for name in _POSITION)
            is_block = isinstance(getattr(x, "body", None), list)
            anno.setanno(x, anno.Basic.ORIGIN, _first_line(place) if is_block else place)
        if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load):
            stored.add(x.id)
    for x in walk(node):
        if isinstance(x, ast.Name) and x.id in stored:  # it may have no value
            anno.setanno(x, anno.Static.ORIG_DEFINITIONS, ())


def _note_as_it_is(node: Any) -> None:
    """Records where the parts of a function are that stays as it is."""
    for x in ast.walk(node):
        if hasattr(x, "lineno"):
            anno.setanno(x, anno.Basic.ORIGIN, tuple(getattr(x, name) for name in _POSITION))
        if isinstance(x, ast.FunctionDef):
            anno.setanno(x, "function_context_name", x.name)


def _note_loop_options(node: ast.AST) -> None:
    for x in walk(node):
        options = loop_options(x)
        if options:
            anno.setanno(x, anno.Basic.DIRECTIVES, {directives.set_loop_options: options})
            first: Any = cast(Any, x).body[0]
            # What it reads is still read there.
            values = ast.copy_location(ast.Tuple([*options.values()], ast.Load()), first)
            anno.copyanno(first.value, values, anno.Basic.ORIGIN)
            first.value = values


def _derived(made: Any, node: Any) -> Any:
    """Gives a replacement for a node the node's origin."""
    origin = anno.getanno(node, anno.Basic.ORIGIN, default=None)
    if origin is not None:
        for x in made if isinstance(made, list) else [made]:
            anno.setanno(x, anno.Basic.ORIGIN, origin)
    return made


def _first_line(place: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first line of a place, without columns: Python places a call of `x.y` where y ends."""
    line, _, end_line, _ = place
    return place if line == end_line else (line, -1, line, -1)


def _with_origin(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes that have an origin, in source order."""
    for statement in statements:
        for node in walk(statement):
            if anno.hasanno(node, anno.Basic.ORIGIN):
                yield node


def _compiled(node: Any, code: CodeType) -> CodeType:
    """The code of the tree, compiled with the function's free names as free variables."""
    _place(node, tuple(getattr(node, name, 1) for name in _POSITION))
    generated = _generated_functions(node)
    name = code.co_name
    if isinstance(node, ast.Lambda):
        node = ast.copy_location(ast.Assign([ast.Name("function", ast.Store())], node), node)
        ast.copy_location(node.targets[0], node)
    else:
        # Its own name must keep its meaning: a global one, or a free one.
        name = node.name = f"{HOOKS}function"
    free = (*code.co_freevars, HOOKS)
    defined = [ast.Assign([ast.Name(x, ast.Store())], ast.Constant(None)) for x in free]
    module = ast.parse("def maker():\n    pass")
    module.body[0].body = defined  # type: ignore[attr-defined]
    ast.fix_missing_locations(module)
    defined.append(node)  # which has all of its places
    flags = code.co_flags & _FUTURE_FLAGS
    compiled = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    made = _inner(_inner(compiled, "maker"), name)
    return _renamed(made, code.co_name, code.co_qualname, generated)


def _place(node: ast.AST, place: tuple[Any, ...]) -> None:
    """Gives the nodes below `node` the positions of the nodes they were derived from."""
    open_nodes: list[tuple[ast.AST, Any]] = [(node, place)]
    while open_nodes:
        node, place = open_nodes.pop()
        origin: Any = anno.getanno(node, anno.Basic.ORIGIN, default=None)
        place = origin or _first_line(place)
        if "lineno" in node._attributes:
            for name, value in zip(_POSITION, place, strict=True):
                setattr(node, name, value)
        open_nodes += ((child, place) for child in parts_of(node))


def _generated_functions(node: ast.AST) -> set[str]:
    """The names of the functions generated for branches and bodies."""
    return {
        x.name
        for x in walk(node)
        if isinstance(x, ast.FunctionDef) and not anno.hasanno(x, "function_context_name")
    }


def _inner(code: CodeType, name: str) -> CodeType:
    """The code of a function that is defined in other code."""
    return next(x for x in code.co_consts if isinstance(x, CodeType) and x.co_name == name)


def _renamed(code: CodeType, name: str, path: str, generated: Iterable[str]) -> CodeType:
    """The code with the user's names: branches and bodies are named after their function."""

    def inner(x: Any) -> Any:
        if not isinstance(x, CodeType):
            return x
        if x.co_name in generated:
            return _renamed(x, name, path, generated)
        return _renamed(x, x.co_name, f"{path}.<locals>.{x.co_name}", generated)

    constants = tuple(map(inner, code.co_consts))
    return code.replace(co_name=name, co_qualname=path, co_consts=constants)
