"""Names of TensorFlow that are not here: what to use in their place."""

from __future__ import annotations

import sys
from typing import NoReturn

from tracegraph.errors import fail
from tracegraph.source import here

_CONTROL = "control flow over tensors in graphs is not there yet"
_FIRST = "TensorFlow 1 is not supported"
_KINDS = "there are dense tensors of numbers and truth values only"
_FUNCTION = "decorate a Python function with @tg.function"

#: For each name why it is not here, and the repair.
ABSENT = {
    "keras": (
        "a few layers of Keras are here, under names of their own",
        "use tg.layers, tg.optimizers, tg.initializers and tg.nn",
    ),
    "losses": (
        "losses are functions of tg.nn, or a formula",
        "use tg.nn.softmax_cross_entropy_with_logits, or such as tg.reduce_mean((y - t) ** 2)",
    ),
    "metrics": ("there are no metrics", "compute them, as with tg.reduce_mean"),
    "data": ("there are no datasets", "loop over NumPy arrays, or over any iterator of them"),
    **dict.fromkeys(["cond", "case", "switch_case"], (_CONTROL, "use tg.where")),
    **dict.fromkeys(["while_loop", "scan", "foldl", "foldr"], (_CONTROL, "use a Python loop")),
    "map_fn": (_CONTROL, "use tg.vectorized_map, or a Python loop and tg.stack"),
    "TensorArray": (_CONTROL, "use a Python list and tg.stack"),
    "gradients": (_FIRST, "use tg.GradientTape, or tg.grad of a function"),
    **dict.fromkeys(["compat", "Session", "placeholder"], (_FIRST, _FUNCTION)),
    "get_variable": (_FIRST, "use tg.Variable"),
    **dict.fromkeys(["strings", "string"], (_KINDS, "keep strings in Python")),
    **dict.fromkeys(["ragged", "RaggedTensor"], (_KINDS, "pad the rows, and mask with tg.where")),
    **dict.fromkeys(["sparse", "SparseTensor"], (_KINDS, "use dense tensors and tg.gather")),
    "lookup": ("there are no tables", "look things up in a dict, outside of the function"),
    "io": ("files are read and written by Python", "use NumPy's functions, or tg.saved_model"),
    "distribute": ("there are no strategies: a program runs on one device", "leave the scope out"),
}


def refuse(name: str) -> NoReturn:
    """Raises the AttributeError for a name that `tracegraph` does not have."""
    if name not in ABSENT:
        text = f"module 'tracegraph' has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules["tracegraph"])
    reason, fix = ABSENT[name]
    fail(AttributeError, f"there is no tg.{name}: {reason}", source=here(), fix=fix)
