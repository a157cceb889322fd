"""Calls that are right, and what happens if one argument of them is not."""

from __future__ import annotations

import inspect
import operator
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import tracegraph as tg
from tests.bad_calls.wrong import Wrong, wrong_values


class Call(NamedTuple):
    """A call that is right. `receiver` makes the object of a method."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    receiver: Callable[[], Any] | None = None


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def on(receiver: Callable[[], Any], *args: Any, **kwargs: Any) -> Call:
    """A call of what `receiver` makes, or of a method of it."""
    return Call(args, kwargs, receiver)


def function_of(path: str, good: Call) -> Callable[..., Any]:
    """What is called: a public function, or a method of what the call makes."""
    if good.receiver is None:
        return operator.attrgetter(path)(tg)
    made = good.receiver()
    method = path.partition("()")[2].removeprefix(".")
    return getattr(made, method) if method else made


class Case(NamedTuple):
    """A call of which one argument is wrong."""

    path: str
    parameter: str
    wrong: Wrong
    good: Call

    def __str__(self) -> str:
        return f"{self.path}: {self.parameter}: {self.wrong.label}"

    def outcome(self, is_traced: bool) -> Exception | None:
        """The error that the call raises, or None."""
        function = function_of(self.path, self.good)
        args, kwargs = list(self.good.args), dict(self.good.kwargs)
        names = _positional(function)
        if self.parameter in names[: len(args)]:
            args[names.index(self.parameter)] = self.wrong.value
        elif self.parameter.startswith("*"):
            args[int(self.parameter[1:])] = self.wrong.value
        else:
            kwargs[self.parameter] = self.wrong.value
        try:
            _traced(function, args, kwargs) if is_traced else function(*args, **kwargs)
        except Exception as error:
            return error
        return None


def _traced(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """Calls a function in a trace, with tensors as arguments of the trace."""
    given = {**dict(enumerate(args)), **kwargs}
    tensors = {k: x for k, x in given.items() if _is_operand(x)}
    rest = {k: x for k, x in given.items() if k not in tensors}
    made: list[Any] = []

    def step(**symbolic: Any) -> None:
        back = {int(k[1:]) if k[1:].isdigit() else k: x for k, x in symbolic.items()}
        both = {**rest, **back}
        positional = [both[k] for k in range(len(args))]
        if not made:  # where Variables are created, it is traced twice, and must keep them
            named = {k: x for k, x in both.items() if isinstance(k, str)}
            made.append(function(*positional, **named))

    signature = {f"_{k}" if isinstance(k, int) else k: x for k, x in tensors.items()}
    tg.function(step, autograph=False).get_concrete_function(**signature)


def _is_operand(x: Any) -> bool:
    return isinstance(x, (tg.Tensor, np.ndarray))


def _positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


#: Arguments of any value, or of none that counts.
_FREE = {
    *("name", "message", "summarize", "parallel_iterations", "back_prop", "swap_memory"),
    *(
        "a_is_sparse",
        "b_is_sparse",
        "grad_a",
        "grad_b",
        "alg",
        "validate_indices",
        "infer_shape",
        "gate_gradients",
    ),
    *("aggregation_method", "fallback_to_while_loop", "warn", "validate_args", "use_cudnn"),
    *("use_locking", "colocate_with_first_write_call", "read_value"),
}


def cases_of(path: str, good: Call) -> Iterator[Case]:
    """The call with each of its arguments wrong in every way."""
    function = function_of(path, good)
    names = _positional(function)
    given = dict(zip(names, good.args, strict=False)) | good.kwargs
    rest = {f"*{k}": good.args[k] for k in range(len(names), len(good.args))}
    defaults = {
        p.name: p.default
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty
    }
    for parameter, value in {**defaults, **given, **rest}.items():
        if parameter not in _FREE:
            for wrong in wrong_values(parameter, value):
                yield Case(path, parameter, wrong, good)


def outcome_of_row(row: Any, is_traced: bool, operands: dict[str, Any]) -> Exception | None:
    """The error that a row of `rows.py` raises, or None."""
    names = [p for p in inspect.signature(row.call).parameters if p in operands]
    given = {name: operands[name] for name in names}
    try:
        if is_traced:
            tg.function(row.call, autograph=False).get_concrete_function(**given)
        else:
            row.call(**given)
    except Exception as error:
        return error
    return None


def faults(case: Case, error: Exception, file: str) -> list[str]:
    """What the error of a case fails to say, or says beside the point."""
    return faults_of(error, case.wrong.kinds, case.wrong.words, file)


def faults_of(error: Exception, kinds: Any, words: Sequence[str], file: str) -> list[str]:
    """What the error of a bad call fails to say, or says beside the point."""
    text = str(error)
    found = []
    if not isinstance(error, kinds):
        found.append(f"it is a {type(error).__name__}")
    if not type(error).__module__.startswith("tracegraph."):
        found.append(f"it is not ours, but {type(error).__module__}'s")
    if not re.search(rf"\n  at {re.escape(file)}:\d+:", text):
        found.append("the user's line is not there")
    if "\n  fix: " not in text:
        found.append("there is no repair")
    lost = [word for word in words if word not in text]
    if lost:
        found.append(f"it does not say {lost}")
    if re.search(r"\bjax\b|\blax\b|XLA|jaxlib|object at 0x", text):
        found.append("it speaks of what is inside")
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if files - {file, __file__}:
        found.append(f"frames of {sorted(files - {file, __file__})}")
    return found
