"""Errors for calls whose arguments do not fit, which suggest the argument that was meant.

Python refuses such a call before the function starts, so `tracebacks.api_boundary`, the wrapper
around everything public, catches the refusal.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracegraph.core.source import here
from tracegraph.errors import TraceError, counted, message, were

#: Names that NumPy, PyTorch, Keras, JAX and TensorFlow use for the same thing. A name may be in
#: several rows: the first row with a parameter of the function counts.
_SYNONYMS = (
    ("axis", "axes", "dim", "dims", "dimension", "dimensions", "reduction_indices", "squeeze_dims"),
    ("axis", "concat_dim", "split_dim"),
    ("keepdims", "keepdim", "keep_dims"),
    ("learning_rate", "lr", "step_size"),
    ("beta_1", "beta1", "b1", "betas"),
    ("beta_2", "beta2", "b2"),
    ("epsilon", "eps", "variance_epsilon"),
    ("weight_decay", "wd", "decay"),
    ("perm", "permutation", "axes", "dims"),
    ("shape", "size", "sizes", "newshape", "new_shape", "output_shape", "dims"),
    ("dtype", "out_type", "output_type", "Tout", "type"),
    ("clip_value_min", "minval", "min", "a_min", "low", "lo"),
    ("clip_value_max", "maxval", "max", "a_max", "high", "hi"),
    ("clip_norm", "max_norm", "clipnorm"),
    ("units", "out_features", "features", "output_dim"),
    ("filters", "filter", "weight", "weights", "kernel", "out_channels", "features"),
    ("kernel_size", "pool_size", "ksize", "window_shape", "filter_size"),
    ("strides", "stride"),
    ("paddings", "padding", "pad", "pad_width"),
    ("constant_values", "fill_value"),
    ("dilations", "dilation_rate", "dilation", "rate"),
    ("use_bias", "bias"),
    ("rate", "p", "prob"),
    ("depth", "num_classes", "n_classes"),
    ("num_or_size_splits", "indices_or_sections", "split_size_or_sections", "chunks", "sections"),
    ("multiples", "reps", "repeats", "dims"),
    ("repeats", "n", "reps"),
    ("shift", "shifts"),
    ("indices", "index", "indexes", "idx", "ids"),
    ("condition", "cond", "mask", "pred"),
    ("initial_value", "value", "data", "init", "initializer"),
    ("trainable", "requires_grad"),
    ("stddev", "std", "sigma", "scale"),
    ("mean", "loc", "mu"),
    ("equation", "subscripts"),
    ("labels", "target", "targets", "y_true"),
    ("logits", "input", "inputs", "pred", "preds", "y_pred"),
    ("target", "outputs", "ys", "loss", "y"),
    ("sources", "inputs", "xs", "variables", "params", "var_list"),
    ("var_list", "variables", "params", "parameters"),
    ("output_gradients", "grad_outputs", "grad_ys", "gradient"),
    ("argnums", "argnum", "wrt"),
    ("tensors", "arrays", "values", "inputs", "xs"),
    ("fn", "func", "function", "f", "fun", "callable"),
    ("input_signature", "signature"),
    ("output_stream", "file", "stream", "output"),
    ("inp", "args", "arguments", "inputs", "x"),
    ("Tout", "dtype", "result_shape_dtypes", "output_dtype"),
    ("limit", "stop", "end"),
    ("delta", "step"),
    ("k", "diagonal", "offset"),
    ("y", "b", "other", "rhs", "x2"),
    (
        *("x", "a", "tensor", "value", "values", "input", "inputs", "input_tensor", "input_"),
        *("data", "features", "images", "arr", "array", "object", "operand", "lhs", "x1", "elems"),
    ),
)

#: Features that do not exist here, and what to do instead.
_WITHOUT = {
    "keep_prob": "use rate, which is 1 - keep_prob",
    "flush": "leave it out: what is printed is seen at once",
    "out": "take the result that is returned",
    "inplace": "take the result that is returned",
    "device": "leave it out: devices are JAX's",
    "input_shape": "begin the Sequential with tg.layers.Input(shape)",
    "batch_input_shape": "begin the Sequential with tg.layers.Input(batch_shape=shape)",
    "input_dim": "begin the Sequential with tg.layers.Input([size])",
    "input_length": "leave it out: sequences may have any length",
    "requires_grad": "use a tg.Variable, or tape.watch(x)",
    "dtype": "convert with tg.cast",
}


def misfit(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Iterable[str], error: BaseException
) -> TraceError | None:
    """The TraceError, a TypeError, for a call that Python refused before it reached the function;
    None if `error` is another one."""
    if not isinstance(error, TypeError) or isinstance(error, TraceError):
        return None
    parameters = list(inspect.signature(function).parameters.values())
    label = label_of(function, args)
    if _is_method(parameters) and args:
        parameters, args = parameters[1:], args[1:]
    found = _explained(parameters, len(args), list(kwargs))
    if found is None:
        return None
    fact, fix = found
    refusal: Any = TraceError(message(f"{label}: {fact}", source=here(), fix=fix))
    refusal.fact, refusal.fix = f"{label}: {fact}", fix
    return refusal


def label_of(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """A function's name as users know it; for a constructor or `__call__`, that of the class."""
    path = function.__qualname__.rpartition("<locals>.")[2]
    if not args or not _is_method([*inspect.signature(function).parameters.values()]):
        return path
    if function.__name__ == "__new__":
        return args[0].__name__
    kind = type(args[0])
    if function.__name__ == "__call__":
        return kind.__name__
    if function.__name__ != "__init__":
        return path
    return kind.__name__ if kind.__init__ is function else path.rpartition(".")[0]


def _is_method(parameters: Sequence[inspect.Parameter]) -> bool:
    return bool(parameters) and parameters[0].name in ("self", "cls", "_cls")


def _explained(
    parameters: Sequence[inspect.Parameter], count: int, names: Sequence[str]
) -> tuple[str, str] | None:
    """What is wrong with a call of `count` positional arguments and some named ones, and the
    fix."""
    kinds = {p.kind for p in parameters}
    positional = [p for p in parameters if p.kind in _BY_POSITION]
    by_name = [p.name for p in parameters if p.kind in _BY_NAME]
    given = [p.name for p in positional[:count]]
    unknown = [name for name in names if name not in by_name]
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in SINGLE and p.name not in (*given, *names)
    ]
    twice = [name for name in given if name in names]
    listed = _listed(parameters)
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        words = "there is no argument" if len(unknown) == 1 else "there are no arguments"
        left = [name for name in by_name if name not in (*given, *names)]
        return f"{words} {_joined(map(repr, unknown))}", renamed(unknown, left) or listed
    if count > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        most = counted(len(positional), "argument")
        return f"it takes {most} by position, and {were(count)} given", listed
    if twice:
        places = _joined(f"argument {given.index(name) + 1} is {name}" for name in twice)
        fact = f"the argument {_joined(map(repr, twice))} is given by position and by name"
        return fact, f"give it once: by position, {places}"
    if missing:
        is_one = len(missing) == 1
        words = "argument {} is missing" if is_one else "arguments {} are missing"
        return f"the {words.format(_joined(map(repr, missing)))}", listed
    return None


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
SINGLE = {*_BY_POSITION, *_BY_NAME}


def renamed(unknown: Iterable[str], names: Sequence[str]) -> str:
    """The fix for unknown arguments, if the meaning of each of them is known."""
    fixes = []
    for name in unknown:
        meant = _meant(name, names)
        if meant is None and name not in _WITHOUT:
            return ""
        fixes.append(_WITHOUT[name] if meant is None else f"use {meant} in place of {name}")
    return ", and ".join(fixes)


def _meant(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that an argument of another name means; None if none is likely."""
    for row in _SYNONYMS:
        if name in row:
            found = next((x for x in row if x in names), None)
            if found is not None:
                return found
    if name in _WITHOUT:
        return None
    plain = {x.replace("_", "").lower(): x for x in names}
    given = name.replace("_", "").lower()
    begun = [text for text in plain if text.startswith(given)] if len(given) >= 3 else []
    found = begun if len(begun) == 1 else difflib.get_close_matches(given, plain, 1, 0.75)
    return plain[found[0]] if found else None


def _listed(parameters: Sequence[inspect.Parameter]) -> str:
    single = [p for p in parameters if p.kind in SINGLE]
    needed = [p.name for p in single if p.default is p.empty]
    options = [p.name for p in single if p.default is not p.empty]
    rows = (("give", needed), ("the options are" if options[1:] else "the option is", options))
    fixes = [f"{words} {_joined(names)}" for words, names in rows if names]
    return "; ".join(fixes) or "leave it out"


def _joined(words: Iterable[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last
