"""Names in saved models: valid in files, and unique."""

from __future__ import annotations

from typing import Any, NoReturn

from tracegraph.archive.manifest import label_problem
from tracegraph.errors import SignatureError, fail, shown


def check_label(name: str, what: str) -> None:
    """Raises SignatureError for a name that a manifest cannot hold."""
    problem = label_problem(name)
    if problem:
        refuse_name(name, what, problem)


def refuse_name(name: str, what: str, problem: str) -> NoReturn:
    fact = f"the name {shown(name)} {what} cannot be saved: it {problem}"
    fail(SignatureError, fact, fix="give it another name")


def joined(path: str, name: Any) -> str:
    return f"{path}/{name}" if path else str(name)


def is_special(name: str) -> bool:
    """Whether a name has a special meaning in Python."""
    return name.startswith("__") and name.endswith("__")
