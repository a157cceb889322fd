"""The scripts of `examples/` as modules, which run in the process of the tests."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def need(*packages):
    """Skips the calling file where a package is missing. It imports none of them: most workers run
    none of these tests."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)


def imported(example):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.setattr(sys, "excepthook", sys.excepthook)  # which the examples replace
        return importlib.import_module(example)


def refusal(example, capsys, *arguments):
    """The exit code of an example that refuses its arguments, what it printed, and its errors."""
    with pytest.raises(SystemExit) as caught:
        imported(example).main(list(arguments))
    printed = capsys.readouterr()
    return caught.value.code, printed.out, printed.err
