"""What type checkers tell users: nothing of files that are right, each fault of one that is not.

pyright and mypy, both strict, read `tests/typing` in a folder outside of the repository, where
tracegraph is what the wheel holds. What is not installed is skipped: the `lint` extra has it all.
"""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tracegraph as tg
from tests.public_signatures import positions_of_any
from tests.untyped_positions import REASONS
from tracegraph.api import absent
from tracegraph.ir.methods import TensorMethods

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "typing"
NAMES = ("right.py", "wrong.py", "names.py")


def require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install 'tracegraph[lint]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder with the files, and beside it what the wheel installs."""
    require("hatchling")
    folder = tmp_path_factory.mktemp("user")
    for name in ("right.py", "wrong.py"):
        (folder / name).write_text((FILES / name).read_text("utf-8"), "utf-8")
    (folder / "names.py").write_text(every_name(), "utf-8")
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder


def every_name() -> str:
    """A file that reads each public name, which checkers take for private if a module imports it
    from another without saying that it exports it."""
    homes = [("tg", tg), *((f"tg.{short}", module) for short, module in absent.all_modules())]
    paths = [
        f"{path}.{name}"
        for path, home in homes
        for name in dir(home)
        if not name.startswith("_") and not isinstance(getattr(home, name), types.ModuleType)
    ]
    assert len(paths) > 1200
    rows = "".join(f"    {path},\n" for path in paths)
    return f"import tracegraph as tg\n\nnames: list[object] = [\n{rows}]\n"


def checked(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    environment.pop("MYPYPATH", None)
    run = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.stdout


def pyright(folder: Path) -> dict[str, set[tuple[int, str]]]:
    found = json.loads(checked(folder, "pyright", "--outputjson", "--pythonpath", sys.executable))
    assert found["summary"]["filesAnalyzed"] == len(NAMES)
    faults: dict[str, set[tuple[int, str]]] = {name: set() for name in NAMES}
    for fault in found["generalDiagnostics"]:
        line = fault["range"]["start"]["line"] + 1
        faults[Path(fault["file"]).name].add((line, fault["message"]))
    return faults


def mypy(folder: Path) -> dict[str, set[tuple[int, str]]]:
    options = ["--strict", "--python-version", "3.11", "--cache-dir", str(folder / "cache")]
    text = checked(folder, "mypy", *options, *NAMES)
    assert f"checked {len(NAMES)} source files" in text, text
    faults: dict[str, set[tuple[int, str]]] = {name: set() for name in NAMES}
    for name, line, message in re.findall(r"^(\w+\.py):(\d+): error: (.*)$", text, re.M):
        faults[name].add((int(line), message))
    return faults


@pytest.mark.parametrize("checker", [pyright, pytest.param(mypy, marks=pytest.mark.sweep)])
def test_checkers_find_every_fault_and_no_other(folder, checker):
    require(checker.__name__)
    faults = checker(folder)
    assert not faults["right.py"]
    assert not faults["names.py"]
    lines = (FILES / "wrong.py").read_text("utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# wrong: " in line}
    assert len(marked) > 20
    found = {line for line, _ in faults["wrong.py"]}
    assert found == marked, sorted(faults["wrong.py"])


def test_the_file_that_is_right_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FILES / "right.py"), run_name="__main__")


def test_the_wheel_says_that_it_is_typed(folder):
    assert (folder / "site" / "tracegraph" / "py.typed").is_file()


#: What every class has, and what a class has for itself.
_OF_EVERY_CLASS = {"__module__", "__doc__", "__slots__", "__firstlineno__", "__static_attributes__"}


def test_the_list_of_methods_is_what_is_installed():
    from tracegraph.api import operators

    listed = set(vars(TensorMethods)) - _OF_EVERY_CLASS
    installed = {name for name, _ in operators._methods()}
    assert listed == installed | {"__hash__"}
    for cls in (tg.Tensor, tg.Variable):
        for name in listed:
            assert name in vars(cls), (cls, name)


def test_any_stands_only_where_it_has_a_reason():
    """A parameter or result that becomes `Any` needs a line there; one that is typed leaves it."""
    listed = {
        f"{function} {position}"
        for lines in REASONS.values()
        for function, *positions in map(str.split, lines)
        for position in positions
    }
    found = positions_of_any()
    assert found == listed, (sorted(found - listed), sorted(listed - found))


def test_a_parameter_that_is_any_is_found(monkeypatch):
    def shrug(x: Any, y: int, z=None) -> Any: ...

    shrug.__module__, shrug.__qualname__ = "tracegraph.shrugs", "shrug"
    monkeypatch.setattr(tg, "shrug", shrug, raising=False)
    new = {position for position in positions_of_any() if "shrug" in position}
    assert new == {"shrugs:shrug x", "shrugs:shrug z", "shrugs:shrug ->"}
