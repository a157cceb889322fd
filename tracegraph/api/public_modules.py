"""Public modules: each lists what it is for, and raises errors as the public API does."""

from __future__ import annotations

import sys

from tracegraph.api import absent
from tracegraph.boundary import guarding


def publish(*names: str) -> None:
    """Makes modules public. One that `absent.LATER` names ends with it, since programs also reach
    it without `tg`, as by `from tracegraph.layers import Dense`."""
    modules = [sys.modules[name] for name in names]
    for module in modules:
        absent.show_names_of(module)
    guarding.guard(modules)
