"""Reference counts: who holds a value, and whether Python's counts can tell."""

from __future__ import annotations

import sys
from sys import getrefcount

#: An interpreter without a global lock counts for each thread by itself, and defers counts: there
#: everything counts as held, so that nothing is dropped, and no buffer is given away.
COUNTS_ARE_TRUSTED: bool = getattr(sys, "_is_gil_enabled", lambda: True)()

__all__ = ["COUNTS_ARE_TRUSTED", "getrefcount"]
