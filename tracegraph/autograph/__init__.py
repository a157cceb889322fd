"""Conversion of Python's control flow: `if`, `while` and `for` on tensors become graph nodes.

`tg.function` converts the functions it traces, and those that they call. A value that Python knows
decides as it would without conversion.
"""

from __future__ import annotations

from tracegraph.autograph import experimental as experimental
from tracegraph.autograph.public import do_not_convert as do_not_convert, to_code as to_code

__all__ = ["do_not_convert", "experimental", "to_code"]
