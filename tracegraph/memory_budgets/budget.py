"""Memory budgets for the programs of a function, as users write and read them."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from tracegraph.errors import SignatureError, fail, shown

_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")},
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")},
}
_BY_NAME = {name.lower(): size for name, size in _UNITS.items()}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def as_bytes(budget: Any) -> int:
    """The bytes of a `memory_budget`: a positive integer, or text such as "2GiB".

    Raises SignatureError for anything else.
    """
    if isinstance(budget, str):
        match = _SIZE.fullmatch(budget)
        unit = _BY_NAME.get(match[2].lower()) if match else None
        if match is None or unit is None:
            _refuse(budget)
        whole, _, part = match[1].partition(".")
        found = int(whole + part) * unit // 10 ** len(part)
    elif isinstance(budget, (int, np.integer)) and not isinstance(budget, bool):
        found = int(budget)
    else:
        _refuse(budget)
    if found <= 0:
        _refuse(budget)
    return found


def _refuse(budget: Any) -> NoReturn:
    fail(
        SignatureError,
        f"memory_budget is {shown(budget)}, which is not a size of memory",
        fix=f'give bytes, or a number with one of {", ".join(_UNITS)}: memory_budget="2GiB"',
    )


def size_text(size: int) -> str:
    """Bytes in human-readable form, rounded up: '1.3 GiB'."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scaled = -(-10 * size // _UNITS[unit])
        if scaled >= 10:
            return f"{scaled // 10}.{scaled % 10} {unit}"
    return f"{size} B"
