"""The error classes and their one formatter.

Six classes, each also an instance of the class that users of TensorFlow catch. Rules raise
`Mismatch`, which knows only the fact and the repair; the builder adds place and operands.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

from tracegraph.core.source import here, user_line


class ShapeError(ValueError):
    """Shapes or sizes do not fit."""


class SizeNeeded(ShapeError):
    """A ShapeError because a size is open that must be known: a function is traced for each."""


class DTypeError(TypeError):
    """Data types do not fit."""


class TraceError(TypeError):
    """A Python value was needed while tracing, or a call does not fit its signature."""


class GradientError(ValueError):
    """A derivative was asked for that does not exist, or a tape was misused."""


class LoweringError(RuntimeError):
    """A graph could not be compiled, or failed while it ran."""


class LoadError(ValueError):
    """Text or files that should hold a graph do not."""


class SignatureError(TraceError, ValueError):
    """A TraceError where TensorFlow raises ValueError: what a trace assumed no longer holds, a
    tensor is out of its scope, or an argument is not one of the values that it may be."""


class TapeError(GradientError, RuntimeError):
    """A GradientError about the life of a tape: used twice, or never entered."""


class MissingRuleError(GradientError, LookupError, NotImplementedError):
    """A GradientError about an op that has no derivative, or none where it was asked for."""


class RuleTypeError(GradientError, TypeError):
    """A GradientError about a custom gradient whose function did not return a pair."""


class RegistrationError(GradientError, KeyError):
    """A GradientError about a gradient that is registered twice."""

    __str__ = Exception.__str__  # KeyError shows the repr of its text


class InvalidArgumentError(LoweringError, ValueError, AssertionError):
    """A check of values failed: `tg.debugging.assert_*`, or an index out of range."""


class ResourceExhaustedError(LoweringError, MemoryError):
    """A program, or an array, finds no memory on its device."""


class DistributedError(LoweringError):
    """Several processes do not come together, or do not run the same program."""


class MatchError(LoadError, AssertionError):
    """A LoadError where TensorFlow raises AssertionError: a checkpoint and the objects that it
    was restored to do not have the same variables."""


class NothingSavedError(LoadError, FileNotFoundError):
    """A LoadError where TensorFlow raises OSError: nothing was saved at the path."""


class NumericsError(LoweringError, FloatingPointError):
    """A function that is built with `check_numerics` made nan or infinity of finite numbers."""


class VariableError(SignatureError, RuntimeError):
    """A misuse of a Variable that TensorFlow answers with RuntimeError."""


class HintError(SignatureError, NotImplementedError):
    """A ValueError where TensorFlow raises NotImplementedError: what a linear operator is known to
    be, or not known to be, does not allow what was asked for."""


class UnboundError(SignatureError, UnboundLocalError):
    """A name is read that has no value yet. Python raises UnboundLocalError; TensorFlow raises
    ValueError where a tensor decides which statement sets it."""


class UnconvertedError(TraceError, NotImplementedError):
    """A TraceError where TensorFlow raises NotImplementedError: a tensor decides in a function that
    runs as Python, since conversion does not know a statement of it."""


class RangeError(DTypeError, ValueError):
    """A DTypeError where TensorFlow and NumPy raise ValueError: a number is outside of the range
    of its data type."""


class ElementCountError(ShapeError, TypeError):
    """A ShapeError where TensorFlow raises TypeError: a constant has another number of elements
    than the shape that it was given."""


class UnrolledLoopWarning(UserWarning):
    """A Python loop over a tensor in a `@tg.function` has become very many nodes."""


class Mismatch(Exception):
    """What a rule finds wrong: the fact with both values, and the repair."""

    kind: type[Exception] = ShapeError

    def __init__(self, fact: str, fix: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.fix = fix


class DTypeMismatch(Mismatch):
    """A Mismatch about data types."""

    kind = DTypeError


class LocatedMismatch(Mismatch):
    """A Mismatch that users may meet as it is: its text has their line and the repair."""

    def __init__(self, fact: str, fix: str = "") -> None:
        super().__init__(fact, fix)
        self.args = (message(fact, source=here(), fix=fix),)


class UnfitShape(LocatedMismatch, ShapeError):
    """A Mismatch about what a shape is made of."""


class TooLarge(LocatedMismatch, InvalidArgumentError):
    """A Mismatch about a tensor that no machine can hold."""

    kind = InvalidArgumentError


class UnknownValue(LocatedMismatch, TraceError):
    """A Mismatch because Python asks for what is not known while tracing, or has no order."""


def message(fact: str, *, source: Any = None, operands: Iterable[str] = (), fix: str = "") -> str:
    """The one form of every message: the fact, the user's line, the operands, the repair. Of a
    graph that was traced elsewhere the fact names the line, and the user's is that of the call."""
    if source is not None and source.is_by_name:
        head, *rest = fact.split("\n")
        text = f": {source.text}" if source.text else ""
        fact = "\n".join([f"{head} (traced at {source}{text})", *rest])
        source = user_line()
    lines = [fact]
    if source is not None and source.line:
        text = source.text
        lines.append(f"  at {source.file}:{source.line}:" + (f"  {text}" if text else ""))
    lines += [f"  operand {i}: {operand}" for i, operand in enumerate(operands)]
    if fix:
        lines.append(f"  fix: {fix}")
    return "\n".join(lines)


def fail(
    kind: type[Exception],
    fact: str,
    *,
    source: Any = None,
    operands: Iterable[str] = (),
    fix: str = "",
    cause: BaseException | None = None,
) -> NoReturn:
    """Raises `kind` with the message built from its parts, and `fact` and `fix` as attributes.

    Without a `source` the place is the user's line; `UNKNOWN` leaves the place out.
    """
    place = here() if source is None else source
    error: Any = kind(message(fact, source=place, operands=operands, fix=fix))
    error.fact, error.fix = fact, fix
    try:
        raise error from cause
    finally:
        del error  # a cycle with this frame would keep the caller's tensors alive, and pending


def warn(text: str, kind: type[Warning] = UserWarning, place: Any = None) -> None:
    """Warns at the user's line, or at another `place`."""
    place = here() if place is None else place
    warnings.warn_explicit(text, kind, place.file, place.line)


def is_too_large(error: Exception) -> bool:
    """Whether an error is about a tensor that no machine can hold."""
    return isinstance(getattr(error, "mismatch", error), TooLarge)


def tell_who_was_called(error: Any, name: str) -> None:
    """Puts what the user called before the fact of an error about a tensor that is too large, in
    place of an op that this is made of; what was called first is who made it."""
    if hasattr(error, "called"):
        return
    fact = getattr(error, "mismatch", error).fact
    _, _, rest = str(error).partition(fact)
    error.args = (f"{name}: {fact}{rest}",)
    error.fact, error.called = f"{name}: {fact}", name


def refused(error: OSError, fact: str, fix: str) -> NoReturn:
    """Raises what the system refused once more, in the one form: the same class of OSError with
    the same `errno`, whose fact ends in the reason of the system."""
    fact = f"{fact}: {reason_of(error)}"
    text = message(fact, source=here(), fix=fix)
    again: Any = OSError(error.errno, text) if error.errno else OSError(text)
    again.fact, again.fix = fact, fix
    raise again from None


def way_out(error: OSError) -> str:
    """What to do about a file that the system did not let us write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on the disk, or give a path on another one"
    if error.errno == errno.EFBIG:
        return "raise the limit that the process has for files, `ulimit -f`"
    return "give a path that can be written to"


def fail_absent(name: str, fact: str, fix: str) -> NoReturn:
    """Raises AttributeError for a name that is not there, with the repair.

    Python adds a name of `obj` that looks alike, and `tg.cond` looks like `tg.conj`.
    None has no such name, and the repair stands in the message.
    """
    error: Any = AttributeError(message(fact, source=here(), fix=fix), name=name, obj=None)
    error.fact, error.fix = fact, fix
    raise error


def fact_of(error: Exception) -> str:
    """The fact that an error states."""
    return getattr(error, "fact", None) or str(error).split("\n")[0]


def fix_of(error: Exception) -> str:
    """The repair that an error names."""
    return getattr(error, "fix", "")


def reason_of(error: OSError) -> str:
    """Why the system refused, without the path, which messages name themselves."""
    return os.strerror(error.errno) if error.errno else str(error)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and what it counts: '1 node', '1,200 nodes', and with a `plural` '2 axes'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def shown(value: Any) -> str:
    """A value as messages show it: on one line, not longer than that, without addresses."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(value).split()))
    return text if len(text) <= 60 else text[:57] + "..."


def kind_of(value: Any) -> str:
    """The type of a value with its article: 'an int'."""
    name = type(value).__name__
    return f"{'an' if name.startswith(_VOWELS) else 'a'} {name}"


_VOWELS = (*"aeioAEIO", "nd")

__all__ = [
    "DTypeError",
    "DistributedError",
    "ElementCountError",
    "GradientError",
    "HintError",
    "InvalidArgumentError",
    "LoadError",
    "LoweringError",
    "MatchError",
    "MissingRuleError",
    "NothingSavedError",
    "NumericsError",
    "RangeError",
    "RegistrationError",
    "ResourceExhaustedError",
    "RuleTypeError",
    "ShapeError",
    "SignatureError",
    "SizeNeeded",
    "TapeError",
    "TraceError",
    "UnboundError",
    "UnconvertedError",
    "UnrolledLoopWarning",
    "VariableError",
]
