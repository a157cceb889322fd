"""`tg.autograph.experimental`: the TensorFlow names that exist here."""

from __future__ import annotations

from tracegraph.autograph.public import (
    do_not_convert as do_not_convert,
    set_loop_options as set_loop_options,
)

__all__ = ["do_not_convert", "set_loop_options"]
