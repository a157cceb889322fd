"""Public modules: each lists its own names, and raises errors as the public API does."""

from __future__ import annotations

import sys

from tracegraph.api import absent
from tracegraph.boundary import guarding


def publish(*names: str) -> None:
    """Makes modules public. A module in `absent.LATER` ends with this call, since programs may also
    import it without `tg`, as in `from tracegraph.layers import Dense`."""
    modules = [sys.modules[name] for name in names]
    for module in modules:
        absent.show_names_of(module)
    guarding.guard(modules)
