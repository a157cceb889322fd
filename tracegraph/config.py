"""`tg.config`: settings of the process."""

from tracegraph.runtime.function import functions_run_eagerly, run_functions_eagerly

__all__ = ["functions_run_eagerly", "run_functions_eagerly"]
