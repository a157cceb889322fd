"""From graphs to XLA, through JAX's public interface. Knows the IR; the IR never knows it."""

import importlib

# Importing a family registers its rules.
for _family in (
    *("constant", "broadcast", "elementwise", "shape", "contract"),
    *("reduce", "index", "sort", "random", "image", "effect", "control"),
):
    importlib.import_module(f"lowering.{_family}")
