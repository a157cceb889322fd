"""The laws of the house: imports go down the floors, and the habits that keep files readable.

Every law is a function from one parsed file to its faults, `(line, what is wrong)`. The laws run
over all files of the two packages, and over planted faults, which show that they can fail.
"""

import ast
import functools
import gc
import itertools
import operator
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from tracegraph.api import absent

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tracegraph", "lowering")


def floors_of(table: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The floors from the ground up, as the layers of import-linter's table name them."""
    contracts = table["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return tuple(tuple(re.findall(r"\(?([\w.]+)\)?", layer)) for layer in reversed(layers))


FLOORS = floors_of(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")))
# What is not named is a part of the public surface, as the top floor is.
TOP = len(FLOORS) - 1
LOWERING = FLOORS.index(("lowering",))

# Lazy imports: the only places that import inside a function, and what each may import there.
# A name that ends in a slash stands for all files below it.
LAZY_IMPORTS = {
    "tracegraph/__init__.py": {"tracegraph"},
    "tracegraph/api/": {"tracegraph"},
    "tracegraph/array/runtime_sizes.py": {"tracegraph"},
    "tracegraph/autograph/hooks.py": {"tracegraph"},
    "tracegraph/autograph/statements/branches.py": {"tracegraph"},
    "tracegraph/config.py": {"tracegraph"},
    "tracegraph/control/scan.py": {"tracegraph"},
    "tracegraph/control_flow/regions.py": {"tracegraph"},
    "tracegraph/core/later.py": {"tracegraph"},
    "tracegraph/debugging.py": {"tracegraph"},
    "tracegraph/differentiation/tape.py": {"tracegraph"},
    "tracegraph/effects/pieces.py": {"tracegraph"},
    "tracegraph/execution/execute.py": {"tracegraph"},
    "tracegraph/execution/jax_function.py": {"tracegraph"},
    "tracegraph/execution/recompiling.py": {"tracegraph"},
    "tracegraph/functions/concrete.py": {"tracegraph"},
    "tracegraph/functions/function.py": {"tracegraph"},
    "tracegraph/nest.py": {"jax"},
    "tracegraph/optimizers/imported.py": {"tracegraph"},
    "tracegraph/autograph/function_conversion.py": {"tracegraph"},
    "tracegraph/eager/backend.py": {"lowering", "tracegraph"},
    "tracegraph/state/module.py": {"tracegraph"},
    "tracegraph/tensor_arrays/array_states.py": {"tracegraph"},
    "tracegraph/differentiation/sparse_jacobian.py": {"scipy"},
    "tracegraph/linalg/__init__.py": {"tracegraph"},
    "tracegraph/views/": {"networkx"},
}
BACKEND = "tracegraph/eager/backend.py"
CONVERSION = "tracegraph/autograph/function_conversion.py"
TRANSPILER = "tracegraph/autograph/translation/transpiler.py"
TRANSPILER_MODULE = "tracegraph.autograph.translation.transpiler"
LONGEST_FUNCTION = 60
LONGEST_FOLDER = 3000
MOST_FILES = 16
#: The folders that may be larger, and why.
LARGE_FOLDERS = {
    "tracegraph": "the roof: each file is a module that users import",
    "tracegraph/ops": "one file for each family, which a file of lowering/rules mirrors",
    "lowering/rules": "it mirrors tracegraph/ops, calls and control",
}
#: Where two classes may have one name, and why.
NAMESAKES = {
    ("tracegraph/losses/", "tracegraph/metrics/"): "TensorFlow names a metric after its loss",
    ("tracegraph/layers/", "tracegraph/ops/"): "Keras names a layer after what it computes",
    ("tracegraph/initializers.py", "tracegraph/layers/"): "Keras has both an Identity",
    (
        "tracegraph/initializers.py",
        "tracegraph/ops/",
    ): "Keras names an initializer by its values",
    ("tracegraph/metrics/", "tracegraph/ops/"): "Keras has a metric that is the Sum",
    ("tracegraph/numpy/", "tracegraph/ops/"): "the array API names a result after its function",
}
#: Where the classes of higher-order ops are known, and what else may know them.
HIGHER_ORDER_OPS = ("tracegraph/calls/", "tracegraph/control/", "lowering/")
RULES = "lowering/rules/sort.py"
LOADED_ON_DEMAND = ("jax", "jaxlib", "malt", "networkx", "scipy")
LOADED_LATER = ("tracegraph.archive", "tracegraph.text", "tracegraph.views", "safetensors")
#: How many modules of ours `import tracegraph` may load: each costs about half a millisecond.
MOST_MODULES = 220

Faults = Iterator[tuple[int, str]]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: The nodes that may import.
IMPORTS = (ast.Import, ast.ImportFrom, ast.Call)


@dataclass(frozen=True)
class Import:
    """One imported module: its absolute dotted name, and where the import stands."""

    name: str
    line: int
    in_function: bool
    for_types_alone: bool = False

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class File:
    """One Python file, parsed; `path` is relative to the root of the project."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, bool]]:
        """Every node of the tree, and whether it stands inside a function."""
        return [*walk(self.tree)]

    @cached_property
    def imports(self) -> list[Import]:
        typing = {id(x) for node, _ in self.nodes if asks_for_types(node) for x in node.body}
        return [
            Import(name, node.lineno, in_function, id(node) in typing)
            for node, in_function in self.nodes
            if isinstance(node, IMPORTS)
            for name in self.names_imported(node)
        ]

    def names_imported(self, node: ast.AST) -> list[str]:
        match node:
            case ast.Import(names):
                return [alias.name for alias in names]
            case ast.ImportFrom(module, names, level):
                base = ".".join([*self.parents(level), *filter(None, [module])])
                return [member(base, alias.name) for alias in names]
            case ast.Call(
                ast.Name("__import__" | "import_module" | "opened")
                | ast.Attribute(_, "import_module"),
                arguments,
            ):
                return [self.name_asked_for(arguments)]
        return []

    def name_asked_for(self, arguments: list[ast.expr]) -> str:
        """What such a function is asked for; a name made at run time counts as our own package."""
        match arguments:
            case [ast.Constant(str(name)), *_] if not name.startswith("."):
                return name
        return self.module

    def parents(self, level: int) -> list[str]:
        """The package that `level` leading dots stand for."""
        parts = self.path.split("/")
        return parts[: len(parts) - level] if level else []


def asks_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether it is `if TYPE_CHECKING:`, whose imports no run makes."""
    match node:
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
    return False


def walk(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node of the tree, and whether it stands inside a function."""
    open_nodes = [(tree, False)]
    while open_nodes:
        node, in_function = open_nodes.pop()
        yield node, in_function
        inside = in_function or isinstance(node, FUNCTIONS)
        open_nodes += ((child, inside) for child in ast.iter_child_nodes(node))


@functools.cache
def member(base: str, name: str) -> str:
    """`base.name` where that is a module of ours or stands on a floor, else `base`."""
    path = ROOT / base.replace(".", "/") / name
    is_module = path.is_dir() or path.with_suffix(".py").is_file()
    return f"{base}.{name}" if is_module or floor(f"{base}.{name}") != floor(base) else base


@functools.cache
def floor(module: str) -> int:
    """The floor of a module of ours."""
    for number, names in enumerate(FLOORS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    return TOP


@functools.cache
def files() -> list[File]:
    """All Python files of the two packages, parsed once for all laws. The garbage collector rests
    meanwhile: it would look through most of a million nodes again and again."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = [File(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]
    gc.disable()
    try:
        assert all(file.nodes for file in found if file.text)
    finally:
        gc.enable()
    gc.freeze()
    return found


@pytest.fixture(scope="module", autouse=True)
def the_parsed_files_go():
    """Later full collections would look through all their nodes."""
    yield
    files.cache_clear()


def imports_go_down(file: File) -> Faults:
    here = floor(file.module)
    for found in file.imports:
        if found.for_types_alone:
            continue
        if found.package in PACKAGES and floor(found.name) > here:
            yield found.line, f"floor {here} imports {found.name} of floor {floor(found.name)}"


def imports_stand_at_the_top(file: File) -> Faults:
    for found in file.imports:
        if found.in_function and found.package not in allowed_lazily(file.path):
            yield found.line, f"imports {found.name} inside a function"


def allowed_lazily(path: str) -> set[str]:
    """The packages that the functions of this file may import."""
    allowed = (names for place, names in LAZY_IMPORTS.items() if is_at(path, place))
    return set().union(*allowed)


def is_at(path: str, place: str) -> bool:
    return path.startswith(place) if place.endswith("/") else path == place


def only_the_lowering_knows_jax(file: File) -> Faults:
    for found in file.imports:
        if found.for_types_alone:
            continue
        is_lazy = found.in_function and "jax" in allowed_lazily(file.path)
        if found.package == "jax" and floor(file.module) < LOWERING and not is_lazy:
            yield found.line, f"floor {floor(file.module)} imports {found.name}"


def one_module_reaches_malt(file: File) -> Faults:
    for found in file.imports:
        if found.package == "malt" and file.path != TRANSPILER:
            yield found.line, f"imports {found.name}; only {TRANSPILER} does"
        if found.name == TRANSPILER_MODULE and file.path != CONVERSION:
            yield found.line, f"imports {found.name}; only {CONVERSION} does, when it converts"


def jax_is_public(file: File) -> Faults:
    for number, line in enumerate(file.text.splitlines(), 1):
        if name := re.search(r"\bjax\._src\b|\bjaxlib\b", line):
            yield number, f"names {name[0]}; use JAX's public API"


def one_module_reaches_the_lowering(file: File) -> Faults:
    for found in file.imports:
        if found.package == "lowering" != file.module.partition(".")[0] and file.path != BACKEND:
            yield found.line, f"imports {found.name}; only {BACKEND} does"


def functions_are_short(file: File) -> Faults:
    for node, _ in file.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield node.lineno, f"{node.name} has {length} lines, over {LONGEST_FUNCTION}"


def no_exception_is_swallowed(file: File) -> Faults:
    for node, _ in file.nodes:
        if isinstance(node, ast.ExceptHandler) and all(map(does_nothing, node.body)):
            yield node.lineno, "swallows an exception; handle it or let it pass on"


def does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()):
            return True
    return False


@functools.cache
def higher_order_ops() -> dict[str, str]:
    """The classes of ops with graphs among their attributes: the module of each."""
    found: dict[str, str] = {"Op": "tracegraph.ir.op"}
    homes = [file for file in files() if file.path.startswith(HIGHER_ORDER_OPS[:2])]
    while True:
        more = {
            node.name: file.module
            for file in homes
            for node in file.tree.body
            if isinstance(node, ast.ClassDef) and {*map(ast.unparse, node.bases)} & found.keys()
        }
        if more.keys() <= found.keys():
            return more
        found |= more


def higher_order_ops_answer_for_themselves(file: File) -> Faults:
    """Elsewhere they are only made: the name of such a class stands in imports, in annotations and
    in calls of its constructor, so nothing is decided by it."""
    if file.path.startswith(HIGHER_ORDER_OPS):
        return
    classes = higher_order_ops()
    names = {name for name in classes if classes[name] in {x.name for x in file.imports}}
    allowed = {id(x) for node, _ in file.nodes for x in annotations_and_functions(node)}
    for node, _ in file.nodes:
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) if name in names:
                if id(node) not in allowed:
                    yield node.lineno, f"tests for {name}; ask the op, which answers by a member"
            case ast.Compare(ast.Attribute(ast.Name("op") | ast.Attribute(attr="op"), "name")):
                asked = {x.value for x in node.comparators if isinstance(x, ast.Constant)}
                if asked & {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in classes}:
                    yield node.lineno, f"tests for {asked}; ask the op, which answers by a member"


def annotations_and_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node where a class is only named as a type, or called."""
    match node:
        case ast.Call(function):
            yield function
        case ast.arg(annotation=hint) | ast.AnnAssign(annotation=hint) if hint is not None:
            yield from ast.walk(hint)
        case ast.FunctionDef(returns=hint) | ast.AsyncFunctionDef(returns=hint) if hint is not None:
            yield from ast.walk(hint)


Law = Callable[[File], Faults]

LAWS: tuple[Law, ...] = (
    imports_go_down,
    imports_stand_at_the_top,
    only_the_lowering_knows_jax,
    jax_is_public,
    one_module_reaches_the_lowering,
    one_module_reaches_malt,
    functions_are_short,
    no_exception_is_swallowed,
    higher_order_ops_answer_for_themselves,
)

PLANTED = (
    (imports_go_down, "tracegraph/core/types.py", "from tracegraph.ir import op"),
    (imports_go_down, "tracegraph/ir/op.py", "from ..ops import shape"),
    (imports_go_down, "tracegraph/ops/shape.py", "from .. import control"),
    (imports_go_down, "tracegraph/ops/shape.py", "from tracegraph import zeros"),
    (imports_go_down, "tracegraph/calls/call.py", "import lowering.call"),
    (imports_go_down, RULES, "import tracegraph"),
    (
        imports_go_down,
        RULES,
        "from tracegraph.differentiation.tape import GradientTape",
    ),
    (
        imports_go_down,
        "tracegraph/differentiation/tape.py",
        "def late():\n    import tracegraph.math",
    ),
    (imports_stand_at_the_top, "tracegraph/ops/fft.py", "def late():\n    import math"),
    (imports_stand_at_the_top, "tracegraph/nest.py", "def lazily():\n    import networkx"),
    (imports_stand_at_the_top, "lowering/fft.py", "late = lambda: __import__('math')"),
    (
        imports_stand_at_the_top,
        "tracegraph/ir/op.py",
        "def late():\n    importlib.import_module('math')",
    ),
    (imports_stand_at_the_top, "tracegraph/ir/op.py", "late = lambda: opened('tracegraph.nn')"),
    (imports_go_down, "tracegraph/functions/function.py", "late = lambda: opened('tracegraph.nn')"),
    (only_the_lowering_knows_jax, "tracegraph/ir/op.py", "import jax.numpy as jnp"),
    (only_the_lowering_knows_jax, "tracegraph/nest.py", "import jax"),
    (jax_is_public, RULES, "from jax._src import core"),
    (jax_is_public, RULES, "import jaxlib.xla_client"),
    (
        one_module_reaches_the_lowering,
        "tracegraph/differentiation/tape.py",
        "from lowering import compile",
    ),
    (one_module_reaches_the_lowering, "tracegraph/math/__init__.py", "import lowering.rules.shape"),
    (
        one_module_reaches_malt,
        "tracegraph/autograph/hooks.py",
        "from malt.operators import py_builtins",
    ),
    (
        one_module_reaches_malt,
        "tracegraph/autograph/scope.py",
        "from tracegraph.autograph.translation import transpiler",
    ),
    (functions_are_short, "tracegraph/math/__init__.py", "def long():\n" + "    x = 1\n" * 60),
    (
        no_exception_is_swallowed,
        RULES,
        "try:\n    f()\nexcept ValueError:\n    pass",
    ),
    (
        no_exception_is_swallowed,
        RULES,
        "try:\n    f()\nexcept Exception:\n    ...",
    ),
    *(
        (higher_order_ops_answer_for_themselves, "tracegraph/padding/padded.py", text)
        for text in (
            "from tracegraph.control.scan import Loop, Scan\nx = isinstance(op, Loop | Scan)",
            "from tracegraph.control.while_loop import While\nx = type(op) is not While",
            "from tracegraph.control.branch import Cond\nRULES = {Cond: print}",
            "from tracegraph.calls.call import Call\nmatch op:\n    case Call(): pass",
            "from tracegraph.control import scan\nx = isinstance(op, (int, scan.Scan))",
            "x = node.op.name in 'scan' or node.op.name == 'while'",
        )
    ),
)

ALLOWED = (
    (
        "tracegraph/ir/op.py",
        "if TYPE_CHECKING:\n    from tracegraph.ops import shape\n    from jax import Array",
    ),
    ("tracegraph/__init__.py", "def __getattr__(name):\n    return importlib.import_module(name)"),
    ("tracegraph/ops/__init__.py", "import_module(f'{__name__}.{family}')"),
    ("tracegraph/ir/op.py", "from .builder import Builder\nfrom tracegraph.errors import fail"),
    ("tracegraph/nest.py", "def lazily():\n    import jax.tree_util"),
    ("tracegraph/eager/backend.py", "def lazily():\n    import lowering.compile"),
    (
        "tracegraph/autograph/function_conversion.py",
        "def lazily():\n    importlib.import_module('tracegraph.autograph.translation.transpiler')",
    ),
    ("tracegraph/autograph/translation/transpiler.py", "from malt.pyct import anno"),
    ("tracegraph/views/networkx.py", "def lazily():\n    import networkx"),
    (
        RULES,
        "import jax\nfrom tracegraph.ops import shape\nfrom lowering import x",
    ),
    (RULES, "def short():\n" + "    x = 1\n" * 59),
    ("tracegraph/math/__init__.py", "from tracegraph.differentiation.tape import GradientTape"),
    (
        "tracegraph/padding/padded.py",
        "from tracegraph.control.scan import Scan\ndef f(op: Scan) -> list[Scan]:\n"
        "    return Scan(op.body, 0, 1, 2)",
    ),
    ("tracegraph/control/branch.py", "from tracegraph.calls.call import Call\nassert Call"),
)


def law_name(law: object) -> str | None:
    return law.__name__ if callable(law) else None


@pytest.mark.parametrize("law", LAWS, ids=law_name)
def test_the_law_holds_in_every_file(law: Law):
    found = [f"{file.path}:{line}: {fault}" for file in files() for line, fault in law(file)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(("law", "path", "text"), PLANTED, ids=law_name)
def test_the_law_finds_a_planted_fault(law: Law, path: str, text: str):
    assert list(law(File(path, text)))


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_the_laws_allow_what_the_design_allows(path: str, text: str):
    assert [fault for law in LAWS for fault in law(File(path, text))] == []


def too_large(files: Iterable[File]) -> dict[str, tuple[int, int]]:
    """The folders with too many lines or files of their own: how many of both."""
    folders: dict[str, list[int]] = {}
    for file in files:
        folders.setdefault(file.path.rpartition("/")[0], []).append(len(file.text.splitlines()))
    sizes = {folder: (sum(lines), len(lines)) for folder, lines in folders.items()}
    most = (LONGEST_FOLDER, MOST_FILES)
    return {folder: size for folder, size in sizes.items() if any(map(operator.gt, size, most))}


def test_no_folder_is_too_large():
    """Split one that is: a folder within it, or a room on the floor below. An exception that is not
    needed any more goes."""
    assert too_large(files()).keys() == LARGE_FOLDERS.keys()


@pytest.mark.parametrize(("count", "lines"), [(1, LONGEST_FOLDER + 1), (MOST_FILES + 1, 0)])
def test_a_folder_that_is_too_large_is_found(count: int, lines: int):
    planted = [File(f"tracegraph/nn/part_{i}.py", "x = 1\n" * lines) for i in range(count)]
    assert too_large(planted) == {"tracegraph/nn": (lines, count)}


def namesakes(files: Iterable[File]) -> list[str]:
    """The classes of one name in two files, apart from `NAMESAKES`."""
    paths: dict[str, list[str]] = {}
    for file in files:
        for node, _ in file.nodes:
            if isinstance(node, ast.ClassDef):
                paths.setdefault(node.name, []).append(file.path)
    return [
        f"{name}: {one} and {other}"
        for name, found in paths.items()
        for one, other in itertools.combinations(sorted(found), 2)
        if not any(one.startswith(a) and other.startswith(b) for a, b in NAMESAKES)
    ]


def test_no_class_name_stands_for_two_things():
    assert namesakes(files()) == []


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("tracegraph/archive/a.py", "lowering/a.py", 1),
        ("tracegraph/nn/a.py", "tracegraph/nn/b.py", 1),
        ("tracegraph/ops/a.py", "tracegraph/layers/b.py", 0),
    ],
)
def test_a_name_for_two_things_is_found(one: str, other: str, count: int):
    text = "def f():\n    class Part: ..."
    assert len(namesakes([File(one, text), File(other, text)])) == count


def test_every_floor_is_read():
    assert {floor(file.module) for file in files()} == set(range(TOP + 1))


def loaded_by(statement: str) -> list[str]:
    """The modules that are there after a statement in a process of its own."""
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_importing_loads_nothing_heavy():
    loaded = loaded_by("import tracegraph")
    later = [f"tracegraph.{name}" for name in absent.LATER]
    rooms = {".".join(module.split(".")[:2]) for module in loaded}
    assert rooms.isdisjoint([*LOADED_ON_DEMAND, *later, *LOADED_LATER])
    assert sum(module.startswith("tracegraph") for module in loaded) <= MOST_MODULES


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted([*absent.LATER, "keras.layers", "optimizers.schedules"]))
@pytest.mark.parametrize("statement", ["import tracegraph.{}", "import tracegraph; tracegraph.{}"])
def test_a_module_that_is_left_for_later_can_be_the_first(name, statement):
    """Imported by itself or asked of `tg`. No import asks for a name that is not there: the answer
    would import all others."""
    loaded = loaded_by(f"{statement.format(name)}; assert tracegraph.{name}.__dir__")
    assert f"tracegraph.{name}".replace(".keras.layers", ".layers") in loaded
    assert "tracegraph.quantization" not in loaded or name == "quantization"


def test_modules_that_are_left_for_later_are_whole_for_threads_and_handlers():
    """Many threads ask at once, and a signal handler asks while the main thread imports."""
    statement = """
import signal, threading, time, tracegraph as tg
found, names = [], ["layers", "keras", "saved_model", "metrics"]
def ask(name):
    found.append(getattr(tg, name).__all__ and str(tg.diff))
threads = [threading.Thread(target=ask, args=(name,)) for name in names * 4]
def asks_again(*_):
    ask("keras")
    signal.setitimer(signal.ITIMER_REAL, 0.005)  # not before, or handlers pile up on busy cores
signal.signal(signal.SIGALRM, asks_again)
signal.setitimer(signal.ITIMER_REAL, 0.002)
[thread.start() for thread in threads]
ask("layers")
signal.signal(signal.SIGALRM, signal.SIG_IGN)
[thread.join() for thread in threads]
assert len(found) > len(threads)
assert tg.keras.layers is tg.layers
"""
    assert "tracegraph.keras" in loaded_by(statement)
