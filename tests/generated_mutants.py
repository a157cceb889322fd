"""Wrong rules made by machine: each rule of an op, of a branch or loop, and of the public
mathematics is changed in one place of its syntax tree.

Run with `python -m tests.generated_mutants`.

A change is a sign, an operator, two operands in the wrong order, a term or a conjugate left out, a
number one too large, a condition turned round. Which of all changes are tried is drawn once, and
the same each time.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import multiprocessing
import pkgutil
import random
import resource
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

import tracegraph as tg
import tracegraph.math
import tracegraph.nn
import tracegraph.ops
from tests.compiling import compile_quickly
from tests.control_flow import test_control_flow_mutants as control_flow
from tests.derived_graphs import jvp_graph, vjp_graph
from tests.function_table import ROWS, Row
from tests.mathematics import test_table_programs
from tests.mutants import _forget, problems_of_row
from tests.op_table import CASES, Case
from tests.ops import test_ops, test_widened_ops
from tracegraph.calls import call, custom_call, top_level_calls
from tracegraph.control import branch, scan, while_loop
from tracegraph.eager import pending
from tracegraph.ir import intern
from tracegraph.ops import constant
from tracegraph.passes.sparsity import pattern
from tracegraph.passes.vectorise import vectorise

#: How many mutants of each group are drawn.
DRAWN = {"ops": 150, "control": 40, "functions": 60}
#: What says types, errors, costs or texts and no rule.
NO_RULES = frozenset(
    ["infer", "numpy", "check", "flops", "result_dtype", "is_diagonal_on", "complete", "intern"]
)
#: A mutant that computes for longer, in seconds of the processor, does not end, which is noticed
#: too. Time on the clock would say little on a busy machine.
LONGEST = 100
#: How many rows that run a rule are tried.
ENOUGH = 6


# Changes of a syntax tree.

_OTHER: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_OTHER_NAME = {
    "SIN": "COS",
    "COS": "SIN",
    "SINH": "COSH",
    "COSH": "SINH",
    "ADD": "SUB",
    "SUB": "ADD",
    "MUL": "ADD",
    "DIV": "MUL",
    "GREATER": "LESS",
    "LESS": "GREATER",
    "EXP": "LOG",
    "GREATER_EQUAL": "LESS_EQUAL",
    "LESS_EQUAL": "GREATER_EQUAL",
    "MAXIMUM": "MINIMUM",
    "REAL": "IMAG",
    "IMAG": "REAL",
    "MINIMUM": "MAXIMUM",
    "Max": "Min",
    "Min": "Max",
    "True": "False",
    "reduce_sum": "reduce_mean",
    "reduce_max": "reduce_min",
}
#: Calls of one operand that may be left out.
_LEFT_OUT = frozenset(
    ["conjugated", "conjugate", "CONJ", "adjoint", "NEG", "Conj", "shifted", "ABS"]
)
#: Calls whose operands may be exchanged without a difference, or that are not mathematics.
_UNORDERED = frozenset(
    ["ADD", "MUL", "scale", "add", "multiply", "isinstance", "zip", "getattr", "EQUAL", "AND"]
)
#: What refuses arguments; other tests hold the messages.
_REFUSALS = frozenset(
    ["fail", "refuse", "as_flag", "Mismatch", "DTypeMismatch", "message", "check_kind"]
)

Change = Callable[[], None]


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", None) or getattr(function, "attr", "")


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes in order, without annotations, docstrings and refusals."""
    is_strict = isinstance(tree, ast.keyword) and tree.arg == "strict"
    if (
        is_strict
        or isinstance(tree, (ast.Raise, ast.Assert, ast.JoinedStr))
        or _called(tree) in _REFUSALS
    ):
        return
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "defaults"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not is_text:
                yield from nodes_of(child)


def changes_of(tree: ast.AST) -> list[tuple[ast.AST, str, Change]]:
    """What may be changed: the node, in words, and what changes it in place."""
    found: list[tuple[ast.AST, str, Change]] = []
    for node in nodes_of(tree):
        for words, change in _changes(node):
            found.append((node, words, change))
    return found


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OTHER:
        yield "another operator", lambda: setattr(node, "op", _OTHER[type(node.op)]())
        if isinstance(node.op, ast.Add):
            yield "a term less", lambda: _become(node, node.left)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div, ast.MatMult)):
        yield "operands exchanged", lambda: _exchange(node, "left", "right")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield "without the sign", lambda: _become(node, node.operand)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        yield "another comparison", lambda: node.ops.__setitem__(0, _OTHER[type(node.ops[0])]())
    if isinstance(node, ast.BoolOp):
        yield "and for or", lambda: setattr(node, "op", _OTHER[type(node.op)]())
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield "another number", lambda: setattr(node, "value", _other_number(node.value))
    if isinstance(node, ast.Call):
        yield from _changes_of_call(node)
    if isinstance(node, ast.Name) and node.id in _OTHER_NAME and isinstance(node.ctx, ast.Load):
        yield "another function", lambda: setattr(node, "id", _OTHER_NAME[node.id])
    if isinstance(node, (ast.If, ast.IfExp)):
        yield "the condition turned round", lambda: _turn(node)
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and node.value.elts[1:]:
        yield "results in another order", lambda: node.value.elts.reverse()  # type: ignore


def _changes_of_call(node: ast.Call) -> Iterator[tuple[str, Change]]:
    name = _called(node)
    if name in _LEFT_OUT and node.args:
        yield "without the call", lambda: _become(node, node.args[0])
    is_plain = not any(isinstance(x, ast.Starred) for x in node.args[:2])
    if len(node.args) >= 2 and is_plain and name not in _UNORDERED:
        yield "operands exchanged", lambda: node.args.insert(0, node.args.pop(1))


def _other_number(value: Any) -> Any:
    return not value if isinstance(value, bool) else value * 2 if value % 1 else value + 1


def _exchange(node: Any, first: str, second: str) -> None:
    a, b = getattr(node, first), getattr(node, second)
    setattr(node, first, b)
    setattr(node, second, a)


def _turn(node: Any) -> None:
    node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)


def _become(node: Any, other: Any) -> None:
    """Makes a node of the tree what one of its operands is."""
    node.__class__ = other.__class__
    fields = dict(ast.iter_fields(other))
    for name in list(vars(node)):
        if name not in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            delattr(node, name)
    vars(node).update(fields)


# Rules and their mutants.


@dataclass(frozen=True)
class Site:
    """One change of one function."""

    group: str
    module: str
    #: The name of the function in the module, of a method behind its class.
    name: str
    number: int
    line: int
    words: str
    before: str
    after: str

    def __str__(self) -> str:
        place = f"{self.module.removeprefix('tracegraph.')}.{self.name}"
        return f"{place}, {self.words}: {self.before} -> {self.after}"


def function_of(module: str, name: str) -> FunctionType:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = found.__dict__[part]
    return inspect.unwrap(getattr(found, "__func__", found))


def functions_in(module: ModuleType) -> Iterator[str]:
    """The functions that a module defines, and the methods of its classes."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            for method, rule in vars(value).items():
                if isinstance(rule, FunctionType) and not method.startswith("__"):
                    yield f"{name}.{method}"
        elif isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType):
            yield name


def tree_of(function: FunctionType) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tree.body[0].decorator_list = []  # type: ignore[attr-defined]
    return tree


def code_of(tree: ast.Module, function: FunctionType) -> CodeType:
    """The code of the one function in a tree, with the free variables of `function`."""
    free = ", ".join(function.__code__.co_freevars)
    outer = ast.parse(f"def make({free}):\n    pass")
    outer.body[0].body = [*tree.body]  # type: ignore[attr-defined]
    code = compile(ast.fix_missing_locations(outer), function.__code__.co_filename, "exec")
    (make,) = (x for x in code.co_consts if isinstance(x, CodeType))
    return next(x for x in make.co_consts if isinstance(x, CodeType))


def sites_in(group: str, module: ModuleType) -> Iterator[Site]:
    for name in functions_in(module):
        if name.rpartition(".")[2] in NO_RULES:
            continue
        function = function_of(module.__name__, name)
        for number in range(len(changes_of(tree_of(function)))):
            tree = tree_of(function)
            node, words, change = changes_of(tree)[number]
            before, line = ast.unparse(node), getattr(node, "lineno", 0)
            change()
            after = ast.unparse(node)
            has_same_variables = set(code_of(tree, function).co_freevars) == set(
                function.__code__.co_freevars
            )
            if before != after and has_same_variables:
                short = [text.splitlines()[0][:60] for text in (before, after)]
                yield Site(group, module.__name__, name, number, line, words, *short)


def modules_of(package: ModuleType) -> list[ModuleType]:
    """The modules of a package and of the folders in it, by the names of their files."""
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    names = sorted((x.name for x in found), key=lambda name: name.rpartition(".")[2])
    return [*map(importlib.import_module, names)]


GROUPS: dict[str, list[ModuleType]] = {
    "ops": [x for x in modules_of(tracegraph.ops) if x.__name__.split(".")[-1] != "effect"],
    "control": [branch, call, custom_call, scan, while_loop],
    "functions": [*modules_of(tracegraph.math), *modules_of(tracegraph.nn)],
}


@contextmanager
def broken(site: Site) -> Iterator[None]:
    """A context in which the function is the mutant's, wherever it was imported to."""
    function = function_of(site.module, site.name)
    usual, tree = function.__code__, tree_of(function)
    changes_of(tree)[site.number][2]()
    function.__code__ = code_of(tree, function)
    forget()
    try:
        yield
    finally:
        function.__code__ = usual
        forget()


def forget() -> None:
    """Drops what was derived by the rules as they were."""
    _forget()
    pending._programs = pending._Programs(pending._PROGRAM_LIMIT)
    for kept in (intern._kept, top_level_calls._gradients, top_level_calls._compositions):
        kept._kept.clear()
    constant._numbers.clear()
    for case in CASES:
        for graph in case.op.graphs():
            graph.cache.clear()


# What runs a function.


def codes_run(call: Callable[..., Any], *arguments: Any) -> frozenset[CodeType]:
    """The code of the functions that a call runs."""
    seen: set[CodeType] = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "/tracegraph/" in frame.f_code.co_filename:
            seen.add(frame.f_code)

    sys.setprofile(look)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return frozenset(seen)


def derive(case: Case) -> None:
    """All that is built of a row before anything is compiled."""
    graph = test_ops.traced(case)
    flags = (True,) * len(graph.inputs)
    vectorise(graph, flags, 2)
    pattern(graph)
    if case.order and test_ops.has_derivative(case, case.own_dtype):
        first = vjp_graph(graph)
        jvp_graph(graph)
        vectorise(first, (True,) * len(first.inputs), 2)


@functools.cache
def codes_of_cases() -> list[tuple[Case, frozenset[CodeType]]]:
    return [(case, codes_run(derive, case)) for case in CASES]


def lines_run(call: Callable[..., Any], *arguments: Any) -> frozenset[tuple[str, int]]:
    """The files and lines of the public mathematics that a call runs."""
    seen: set[tuple[str, int]] = set()

    def look(frame: Any, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not ("/tracegraph/math/" in path or "/tracegraph/nn/" in path):
            return None
        seen.add((path, frame.f_lineno))
        return look

    sys.settrace(look)
    try:
        call(*arguments)
    finally:
        sys.settrace(None)
    return frozenset(seen)


@functools.cache
def lines_of_rows() -> list[tuple[Row, frozenset[tuple[str, int]]]]:
    xs = [tg.constant(np.asarray(x[0])) for x in test_table_programs.inputs(3)]
    return [(row, lines_run(row.ours, *xs[: row.count])) for row in ROWS]


def rows_that_run(site: Site) -> list[Case]:
    """The rows of the family first, and the others if there are not enough."""
    code, family = function_of(site.module, site.name).__code__, site.module.rpartition(".")[2]
    found = [case for case, codes in codes_of_cases() if code in codes]
    near = [case for case in found if case.family == family]
    return [*near[: 3 * ENOUGH], *(case for case in found if case.family != family)][: 3 * ENOUGH]


def calls_that_run(site: Site) -> list[Row]:
    code = function_of(site.module, site.name).__code__
    place = code.co_filename, code.co_firstlineno + site.line - 1
    return [row for row, lines in lines_of_rows() if place in lines]


# Looking for a test that notices.

CHECKS = ("first", "batch", "pattern", "values", "second")
WIDENED = ("batch", "open")


def problems_of_ops(rows: list[Case]) -> Iterator[str]:
    for check in CHECKS:
        for case in rows:
            yield from problems_of_row(check, case)
    for known in test_ops.KNOWN:
        yield from test_ops.wrong_known(known)
    for hiding in test_ops.HIDING:
        yield from test_ops.wrong_hiding(*hiding)
    for kink in test_ops.KINKS:
        yield from test_ops.wrong_kink(kink)
    for check in WIDENED:
        for case in rows:
            yield from test_ops.failures(test_widened_ops.WIDENED[check], [case])


def problems_of_control(rows: list[Case]) -> Iterator[str]:
    for program in control_flow.PROGRAMS:
        if not control_flow.is_right(*program):
            yield program[0].__name__
    yield from problems_of_ops(rows)


def problems_of_functions(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        step = test_table_programs.Step(row, tuple(range(row.count)))
        xs = test_table_programs.inputs(3)[: row.count]
        yield from test_table_programs.wrong([step], test_table_programs.in_lanes, xs)


def problems_of(site: Site) -> Iterator[str]:
    if site.group == "functions":
        return problems_of_functions(calls_that_run(site))
    rows = rows_that_run(site)
    return problems_of_ops(rows) if site.group == "ops" else problems_of_control(rows)


def caught_by(site: Site) -> str | None:
    """What notices the mutant; None if nothing does."""
    problems = problems_of(site)
    with broken(site):
        try:
            return next(problems, None)
        except Exception as error:  # a graph that does not hold together is noticed too
            return f"{type(error).__name__}: {error}"


# Drawing, and running in a process that may be ended.


def is_run(site: Site) -> bool:
    """Whether a table has a row that runs the function: others have tests of their own."""
    return bool(calls_that_run(site) if site.group == "functions" else rows_that_run(site))


def drawn(group: str) -> list[Site]:
    sites = [site for module in GROUPS[group] for site in sites_in(group, module)]
    author, chosen, run = random.Random(group), [], {}
    author.shuffle(sites)
    for site in sites:
        place = (site.module, site.name, site.line)
        if place not in run:
            run[place] = group == "control" or is_run(site)
        if run[place]:
            chosen.append(site)
        if len(chosen) == DRAWN[group]:
            break
    return chosen


def work(connection: Any) -> None:
    """Answers sites with what notices them. The system ends the process where a mutant computes
    for too long, even in compiled code, which no signal handler of Python would interrupt."""
    compile_quickly()
    codes_of_cases()
    while True:
        site = connection.recv()
        used = math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + LONGEST, resource.RLIM_INFINITY))
        connection.send(caught_by(site))


class Worker:
    """A process that tries mutants, and is started anew where one does not end."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=work, args=(other,), daemon=True)
        self.process.start()
        other.close()  # so that the end of the process is the end of the connection

    def caught_by(self, site: Site) -> str | None:
        self.connection.send(site)
        try:
            return self.connection.recv()
        except EOFError:
            self.__init__()
            return "it does not end"


def main() -> int:
    compile_quickly()
    groups, start, worker = sys.argv[1:] or [*DRAWN], time.monotonic(), Worker()
    survivors, count = [], 0
    for group in groups:
        for site in drawn(group):
            caught, count = worker.caught_by(site), count + 1
            print(f"{'caught  ' if caught else 'SURVIVED'} {site}", flush=True)
            if caught:
                print(f"           {caught.splitlines()[0][:100]}")
            survivors += [] if caught else [site]
    share = f"{count - len(survivors)} of {count} mutants caught"
    print(f"\n{share} in {time.monotonic() - start:.0f} s", *survivors, sep="\n")
    return 1 if len(survivors) * 100 > count else 0


if __name__ == "__main__":
    sys.exit(main())
