"""`tg.config`: settings of the process."""

from tracegraph.ir.slow_compiles import get_compile_notes, set_compile_notes
from tracegraph.runtime.function import functions_run_eagerly, run_functions_eagerly

__all__ = [
    "functions_run_eagerly",
    "get_compile_notes",
    "run_functions_eagerly",
    "set_compile_notes",
]
