"""Boolean arguments, and errors for Python values of the wrong kind."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tracegraph.errors import DTypeError, fail, kind_of, shown
from tracegraph.ir.tensor import Tensor


def as_flag(op: str, what: str, value: Any) -> bool:
    """A boolean that decides what is traced: a Python bool; None is False."""
    if value is True or value is False:
        return value
    if value is None or isinstance(value, np.bool_):
        return bool(value)
    refuse_kind(op, f"{what} is True or False", value, fix=f"use {what}=True or {what}=False")


def refuse_kind(op: str, rule: str, value: Any, *, fix: str) -> NoReturn:
    """Raises DTypeError for a Python value of the wrong kind: its purpose, and what was passed."""
    given = f"a tensor {value.type}" if isinstance(value, Tensor) else shown(value)
    kind = "" if isinstance(value, Tensor) else f", which is {kind_of(value)}"
    fail(DTypeError, f"{op}: {rule}, and it was given {given}{kind}", fix=fix)
