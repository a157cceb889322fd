"""The error classes, and the single function that formats their messages.

Each of the six classes is also an instance of the class that TensorFlow users catch. Rules raise
`Mismatch`, which knows only the fact and the fix; the builder adds the location and operands.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tracegraph.core.source import here, user_line


class ShapeError(ValueError):
    """Shapes or sizes do not match."""


class SizeNeeded(ShapeError):
    """A ShapeError because an open size must be known: the function is then traced per size."""


class DTypeError(TypeError):
    """Data types do not match."""


class TraceError(TypeError):
    """A Python value was needed while tracing, or a call does not fit its signature."""


class GradientError(ValueError):
    """A requested derivative does not exist, or a tape was misused."""


class LoweringError(RuntimeError):
    """A graph could not be compiled, or failed while it ran."""


class LoadError(ValueError):
    """Text or files that should hold a graph do not."""


class SignatureError(TraceError, ValueError):
    """A TraceError where TensorFlow raises ValueError: an assumption of a trace no longer holds, a
    tensor is out of scope, or an argument is not an allowed value."""


class TapeError(GradientError, RuntimeError):
    """A GradientError about the life of a tape: used twice, or never entered."""


class MissingRuleError(GradientError, LookupError, NotImplementedError):
    """A GradientError about an op that has no derivative, or not the requested one."""


class RuleTypeError(GradientError, TypeError):
    """A GradientError about a custom gradient whose function did not return a pair."""


class RegistrationError(GradientError, KeyError):
    """A GradientError about a gradient that is registered twice."""

    __str__ = Exception.__str__  # KeyError shows the repr of its text


class InvalidArgumentError(LoweringError, ValueError, AssertionError):
    """A check of values failed: `tg.debugging.assert_*`, or an index out of range."""


class ResourceExhaustedError(LoweringError, MemoryError):
    """A program or an array does not fit in the memory of its device."""


class DistributedError(LoweringError):
    """Several processes do not connect, or do not run the same program."""


class MatchError(LoadError, AssertionError):
    """A LoadError where TensorFlow raises AssertionError: a checkpoint and the objects that it was
    restored into do not have the same variables."""


class NothingSavedError(LoadError, FileNotFoundError):
    """A LoadError where TensorFlow raises OSError: nothing was saved at the path."""


class NumericsError(LoweringError, FloatingPointError):
    """A function built with `check_numerics` computed nan or infinity from finite numbers."""


class VariableError(SignatureError, RuntimeError):
    """A misuse of a Variable for which TensorFlow raises RuntimeError."""


class HintError(SignatureError, NotImplementedError):
    """A ValueError where TensorFlow raises NotImplementedError: an operation that a linear operator
    does not allow, given the properties it is known or not known to have."""


class UnboundError(SignatureError, UnboundLocalError):
    """A name is read before it has a value. Python raises UnboundLocalError; TensorFlow raises
    ValueError if a tensor decides which statement sets it."""


class UnconvertedError(TraceError, NotImplementedError):
    """A TraceError where TensorFlow raises NotImplementedError: a tensor decides control flow in a
    function that runs as plain Python, since it has a statement that cannot be converted."""


class RangeError(DTypeError, ValueError):
    """A DTypeError where TensorFlow and NumPy raise ValueError: a number is out of range for its
    dtype."""


class ElementCountError(ShapeError, TypeError):
    """A ShapeError where TensorFlow raises TypeError: the number of elements of a constant does
    not fit the shape given for it."""


class UnrolledLoopWarning(UserWarning):
    """A Python loop over a tensor in a `@tg.function` was unrolled into very many nodes, or a loop
    whose state changes its size was compiled for very many sizes."""


class Mismatch(Exception):
    """A rule's error: the fact, with both values, and the fix."""

    kind: type[Exception] = ShapeError

    def __init__(self, fact: str, fix: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.fix = fix


class DTypeMismatch(Mismatch):
    """A Mismatch about data types."""

    kind = DTypeError


class LocatedMismatch(Mismatch):
    """A Mismatch that users may see directly: its text includes their line and the fix."""

    def __init__(self, fact: str, fix: str = "") -> None:
        super().__init__(fact, fix)
        self.args = (message(fact, source=here(), fix=fix),)


class UnfitShape(LocatedMismatch, ShapeError):
    """A Mismatch about the elements of a shape."""


class TooLarge(LocatedMismatch, InvalidArgumentError):
    """A Mismatch about a tensor too large for any machine."""

    kind = InvalidArgumentError


class UnknownValue(LocatedMismatch, TraceError):
    """A Mismatch because Python needs a value that is unknown while tracing, or has no order."""


def message(fact: str, *, source: Any = None, operands: Iterable[str] = (), fix: str = "") -> str:
    """Formats every message: the fact, the user's line, the operands, the fix. For a graph that was
    traced elsewhere, the fact names the line there, and the user's line is that of the call."""
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

    Without a `source`, the location is the user's line; `UNKNOWN` leaves it out.
    """
    place = here() if source is None else source
    error: Any = kind(message(fact, source=place, operands=operands, fix=fix))
    error.fact, error.fix = fact, fix
    try:
        raise error from cause
    finally:
        del error  # a cycle with this frame would keep the caller's tensors alive, and pending


def warn(
    text: str,
    kind: type[Warning] = UserWarning,
    place: Any = None,
    once: bool = False,
) -> None:
    """Warns at the user's line, or at another `place`; with `once`, once per line and text, unless
    Python's filters say otherwise."""
    place = here() if place is None else place
    registry = _given if once else None
    warnings.warn_explicit(text, kind, place.file, place.line, registry=registry)


#: The warnings given so far, as Python's filters keep them.
_given: dict[Any, Any] = {}


def is_too_large(error: BaseException) -> bool:
    """Whether an error is about a tensor too large for any machine."""
    return isinstance(getattr(error, "mismatch", error), TooLarge)


def tell_who_was_called(error: Any, name: str) -> None:
    """Prefixes an error about a too-large tensor with the function that the user called, instead of
    the op that it uses. The first name set wins."""
    if hasattr(error, "called"):
        return
    fact = getattr(error, "mismatch", error).fact
    _, _, rest = str(error).partition(fact)
    error.args = (f"{name}: {fact}{rest}",)
    error.fact, error.called = f"{name}: {fact}", name


def refused(error: OSError, fact: str, fix: str) -> NoReturn:
    """Reraises an OSError with a formatted message: the same class with the same `errno`, and a
    fact that ends in the system's reason."""
    fact = f"{fact}: {reason_of(error)}"
    text = message(fact, source=here(), fix=fix)
    again: Any = OSError(error.errno, text) if error.errno else OSError(text)
    again.fact, again.fix = fact, fix
    raise again from None


def way_out(error: OSError) -> str:
    """The fix for a file that the system did not let us write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on the disk, or give a path on another one"
    if error.errno == errno.EFBIG:
        return "raise the limit that the process has for files, `ulimit -f`"
    return "give a path that can be written to"


def fail_absent(name: str, fact: str, fix: str) -> NoReturn:
    """Raises AttributeError for a missing name, with the fix.

    Python would suggest a similar name of `obj`, and `tg.cond` looks like `tg.conj`.
    None has no similar name, and the fix is in the message.
    """
    error: Any = AttributeError(message(fact, source=here(), fix=fix), name=name, obj=None)
    error.fact, error.fix = fact, fix
    raise error


def fact_of(error: Exception) -> str:
    """The fact that an error states."""
    return getattr(error, "fact", None) or str(error).split("\n")[0]


#: How XLA's own errors begin: with the kind of a status.
_STATUS = re.compile(
    "(?:ABORTED|CANCELLED|DATA_LOSS|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|"
    "RESOURCE_EXHAUSTED|UNAVAILABLE|UNKNOWN): "
)


def is_of_run(error: BaseException) -> bool:
    """Whether XLA failed while it ran a program. JAX raises its own error then, or a ValueError if
    the program ran in the calling thread."""
    if type(error) is ValueError:
        return _STATUS.match(str(error)) is not None
    return type(error).__name__ == "JaxRuntimeError"  # by its name, which avoids importing JAX


def fix_of(error: Exception) -> str:
    """The fix that an error names."""
    return getattr(error, "fix", "")


def reason_of(error: OSError) -> str:
    """The system's reason, without the path, which messages name themselves."""
    return os.strerror(error.errno) if error.errno else str(error)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A count with its noun: '1 node', '1,200 nodes', and with a `plural` '2 axes'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def were(number: int) -> str:
    """The verb for a count: '1 was', '1,200 were'."""
    return f"{number:,} {'was' if number == 1 else 'were'}"


def first_few(names: Sequence[str], separator: str = ", ") -> str:
    """Names for a message: the first ten, and how many more there are."""
    more = f"{separator}and {len(names) - 10:,} more" if len(names) > 10 else ""
    return separator.join(names[:10]) + more


def shown(value: Any) -> str:
    """A value as shown in messages: on one line, shortened, and without addresses."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(value).split()))
    return text if len(text) <= 60 else text[:57] + "..."


def kind_of(value: Any) -> str:
    """The type of a value with its article: 'an int'."""
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
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
