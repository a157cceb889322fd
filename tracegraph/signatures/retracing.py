"""Why a function was traced again: the argument that differed, and both values."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracegraph import nest
from tracegraph.core.source import here
from tracegraph.core.types import TensorType
from tracegraph.errors import ShapeError, TraceError, shown, warn, with_article
from tracegraph.ops.layout import parsed_mesh, placement_around
from tracegraph.signatures.signature import ObjectKey, Request, VariableKey
from tracegraph.tracing.trace import innermost_trace

#: A warning appears when this many consecutive calls traced, up to a limit per function.
_WINDOW = 5
_WARNINGS = 2

#: What differed if there is no trace to compare with.
_FAILED = "the trace before it failed"

#: The keys of a dict, in their order.
Names = Sequence[Any]

#: The fix where sizes, structures, the order of keys or that of names vary.
_SIZES = (
    "leave the sizes open that vary, by reduce_retracing=True or None in an input_signature, and "
    "compile few of them with bucket_sizes"
)
_NEEDED = "pad to few sizes before the call, or do without the number in that line"
_EXCEPTION = "expect a trace for each such size: the trace for open sizes assumes other ones"
#: The fix where `reduce_retracing` opened the sizes.
_OPENED = "declare such sizes as None in an input_signature, which saves the trace before this one"
_STRUCTURE = "pass one structure in each call"
_KEY_ORDER = "build the dict in one order"
_NAME_ORDER = "give the arguments by name in one order"


@dataclasses.dataclass
class Retrace:
    """One trace after the first: where, what differed, the fix, how long it took, and why it failed
    if it did. For the first trace nothing differed."""

    place: str
    changes: tuple[str, ...] = ()
    fix: str = ""
    seconds: float = 0.0
    failure: str = ""

    def __str__(self) -> str:
        text = f"at {self.place}, {self.seconds:.3f} s: {'; '.join(self.changes) or 'first'}"
        text += f"\n    failed: {self.failure}" if self.failure else ""
        return f"{text}\n    fix: {self.fix}" if self.fix else text


class RetraceExplanation:
    """The traces of a function after the first, with what differed and what they cost; its text is
    for people. `compiles` are pairs of a signature with its sizes and the seconds that XLA took;
    the text ends in "from the saved programs" if `load(path, compiled=True)` provided the program.
    """

    def __init__(
        self,
        name: str,
        retraces: Sequence[Retrace],
        first: Retrace | None = None,
        compiles: Sequence[tuple[str, float]] = (),
    ) -> None:
        self.name = name
        self.retraces = tuple(retraces)
        self.first = first
        self.compiles = tuple(compiles)

    @property
    def seconds(self) -> float:
        """The cost of all these traces, except the first, which is necessary."""
        return sum(retrace.seconds for retrace in self.retraces)

    def __str__(self) -> str:
        if self.retraces:
            traces = [self.first, *self.retraces] if self.first else self.retraces
            rows = [f"{self.name} was retraced:", *(f"  {trace}" for trace in traces)]
        else:
            rows = [f"{self.name} was not retraced"]
        if self.compiles:
            rows.append(f"{self.name} is compiled for:")
            rows += [f"  {text}, {seconds:.3f} s" for text, seconds in self.compiles]
        return "\n".join(rows)

    __repr__ = __str__

    def __len__(self) -> int:
        return len(self.retraces)


class _Streak:
    """A series of calls that all traced."""

    def __init__(self) -> None:
        self.length = 0
        self.warnings = 0
        self.place: str | None = None

    def extend(self) -> bool:
        """Whether the streak is now long enough for a warning."""
        self.length += 1
        if self.length < _WINDOW or self.warnings >= _WARNINGS:
            return False
        self.length = 0
        self.warnings += 1
        return True


#: What a warning counts: any calls, or the first one of each function.
_CALLS = f"{_WINDOW} of the last {_WINDOW} calls of {{}}"
_FIRST = f"{_WINDOW} of the last {_WINDOW} calls of a newly made {{}}"

#: Per code object: consecutive first calls, at one place, of functions made from it.
_decorated: weakref.WeakKeyDictionary[Any, _Streak] = weakref.WeakKeyDictionary()


class Retracing:
    """Counts the calls of a function that traced, and warns when they are too many."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._code = getattr(inspect.unwrap(function), "__code__", None)
        #: The class of the instance that a method is bound to; a class method has none.
        owner = getattr(function, "__self__", None)
        self._class = None if owner is None or isinstance(owner, type) else type(owner).__name__
        self._has_traced = False
        self.streak = _Streak()
        #: The latest requests traced, with the mesh that enclosed each.
        self._known: list[tuple[Request, Any]] = []
        self._first: Retrace | None = None
        self._retraces: list[Retrace] = []
        #: Whether the function cannot be traced with open sizes.
        self._needs_sizes = False

    def seen(self, is_traced: bool) -> None:
        """Records a call, and warns if too many in a row traced. Calls inside a trace do not count:
        one call traces all functions that its function calls, however often it calls them."""
        if innermost_trace() is not None:
            self._has_traced |= is_traced
            return
        if not is_traced:
            self.streak.length = 0
            return
        if self.streak.extend():
            self._warn_of_last()
        if not self._has_traced:
            self._has_traced = True
            self._seen_decorated()

    def _seen_decorated(self) -> None:
        """Also warns about code decorated repeatedly at one place, as in a loop, or bound to one
        new instance after another."""
        if self._code is None:
            return
        streak = _decorated.setdefault(self._code, _Streak())
        place = str(here())
        if streak.place != place:
            streak.place, streak.length = place, 0
        if not streak.extend():
            return
        if self._class is None:
            self._warn(
                "the function was decorated again", "Decorate it once, outside of the loop", _FIRST
            )
            return
        self._warn(
            f"it was called on another {self._class}, and each instance has traces of its own",
            f"Make the {self._class} once, outside of the loop",
        )

    def _warn_of_last(self) -> None:
        last = self._retraces[-1]
        self._warn("; ".join(last.changes), f"{last.fix[:1].upper()}{last.fix[1:]}")

    def _warn(self, reason: str, fix: str, calls: str = _CALLS) -> None:
        count = calls.format(self._name)
        warn(f"{count} were traced, which is slow. The last time, {reason}. {fix}")

    def forget(self) -> None:
        """Starts afresh, as `clear_cache` does."""
        self.streak.length = 0
        self._known.clear()
        self._first = None
        self._needs_sizes = False

    @contextlib.contextmanager
    def trace(self, request: Request) -> Iterator[None]:
        """The context of a trace, which is recorded."""
        found = self._retrace(request)
        if self._first is None:
            self._first = found
        else:
            self._retraces.append(found)
        del self._retraces[:-256]
        entry = request, placement_around()
        self._known.append(entry)
        del self._known[:-8]
        start = time.perf_counter()
        try:
            yield
        except BaseException as error:  # later traces do not differ from one that failed
            self._known = [known for known in self._known if known is not entry]
            is_open = not all(type.is_static for type in request.types)
            if is_open and isinstance(error, (ShapeError, TraceError)):
                self._needs_sizes = True
                found.fix = found.fix.replace(_SIZES, _NEEDED).replace(_OPENED, _NEEDED)
            found.failure = _fact_and_place(error)
            raise
        finally:
            found.seconds = time.perf_counter() - start

    def explanation(self, compiles: Sequence[tuple[str, float]]) -> RetraceExplanation:
        return RetraceExplanation(self._name, self._retraces, self._first, compiles)

    def _retrace(self, request: Request) -> Retrace:
        """The differences from the most similar trace."""
        if not self._known:
            return Retrace(str(here()), () if self._first is None else (_FAILED,))
        found = [_differences(known, request) for known, _ in reversed(self._known)]
        changes = min(found, key=len) or [_mesh_difference(self._known[-1][1])]
        if self._needs_sizes:
            changes = [(text, _NEEDED if fix is _SIZES else fix) for text, fix in changes]
        fixes = dict.fromkeys(fix for _, fix in changes)
        return Retrace(str(here()), tuple(text for text, _ in changes), ", and ".join(fixes))


def _fact_and_place(error: BaseException) -> str:
    fact, *lines = f"{type(error).__name__}: {error}".split("\n")
    return " ".join([fact, *(line.strip() for line in lines[:1] if line.startswith("  at "))])


def _differences(old: Request, new: Request) -> list[tuple[str, str]]:
    """What differs, with the fix: first each dict whose keys are in another order, then each leaf,
    or each argument whose structure differs in any other way."""
    before, after = arguments_of(old), arguments_of(new)
    orders: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for name in dict.fromkeys((*after, *before)):
        was, is_now = before.get(name, _MISSING), after.get(name, _MISSING)
        old_places, old_structure = nest.flatten_structure(was)
        new_places, new_structure = nest.flatten_structure(is_now)
        reordered = _reordered(old_structure, new_structure)
        is_new = was is _MISSING or is_now is _MISSING  # `==` may be the user's
        if is_new or (old_structure != new_structure and not reordered):
            texts = shown_argument(old, was), shown_argument(new, is_now)
            others.append((_difference(name, *texts), _STRUCTURE))
            continue
        for path, *keys in reordered or ():
            orders.append((_order(f"argument {name!r}{path} has the same keys", *keys), _KEY_ORDER))
        for i, j in zip(old_places, new_places, strict=True):
            if old.keys[i] != new.keys[j]:
                texts = _text(old.keys[i], old.leaves[i]), _text(new.keys[j], new.leaves[j])
                fix = _leaf_fix(new.names[j], old.keys[i], new.keys[j], new.leaves[j])
                others.append((_difference(new.names[j], *texts), fix))
    if old.layouts != new.layouts:
        texts = (shown([*x.layouts]) if x.layouts else "none" for x in (old, new))
        text = "the layouts of its arguments were {} and are now {}".format(*texts)
        others.append((text, "declare them once, in an input_signature"))
    was_given, is_given = ([*request.structure.pack(request.keys)[1]] for request in (old, new))
    if was_given != is_given and set(was_given) == set(is_given):  # a body may iterate over them
        text = _order("the call has the same arguments by name", was_given, is_given)
        orders.append((text, _NAME_ORDER))
    return orders + others


def _mesh_difference(was: Any) -> tuple[str, str]:
    """What differs if the arguments do not."""
    texts = (mesh and f"Mesh({parsed_mesh(mesh[0])})" for mesh in (was, placement_around()))
    was_text, is_now = (text or "no mesh" for text in texts)
    if was_text == is_now:
        is_now = "another one of other devices"
    fix = "give the layouts as tg.distribute.Layout(mesh, axes), and not by axes alone"
    return f"the mesh around was {was_text} and is now {is_now}", fix


def _leaf_fix(name: str, old: Any, new: Any, leaf: Any) -> str:
    """The fix for a leaf of the arguments whose key was `old` and is now `new`."""
    if isinstance(old, TensorType) and isinstance(new, TensorType):
        if old.dtype is not new.dtype:
            return f"pass {name!r} as one dtype: tg.cast({name}, tg.{old.dtype.name})"
        if old.rank != new.rank:
            return f"leave the rank open, with tg.TensorSpec(None) for {name!r}, or reshape it"
        if old.is_static and not new.is_static:
            return _OPENED
        return _EXCEPTION if new.is_static and not old.is_static else _SIZES
    if isinstance(new, VariableKey) or isinstance(old, VariableKey):
        return "pass the same Variables in the same places, or use them from outside"
    is_number = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)
    if is_number and not isinstance(old, TensorType):
        return f"pass {name!r} as a tensor, such as tg.constant({shown(leaf)})"
    if isinstance(old, TensorType) or isinstance(new, TensorType):
        return f"pass {name!r} as a tensor in each call"
    if isinstance(new, ObjectKey):
        return f"pass the same object as {name!r} in each call"
    return f"pass few values as {name!r}, each of which has a trace of its own, or a tensor"


def _reordered(
    old: nest.Structure, new: nest.Structure, path: str = ""
) -> list[tuple[str, Names, Names]] | None:
    """The dicts whose keys are in another order: where, and both orders. None if the structures
    also differ in any other way."""
    before, after = old.container, new.container
    if before is None or after is None:
        return [] if before is after else None
    if before.kind != after.kind or not before.matches(after):
        return None
    found: list[tuple[str, Names, Names]] = []
    if before.names != after.names:
        found.append((path, before.names, after.names))
    names = before.names if before.order is None else [before.names[i] for i in before.order]
    for name, one, two in zip(names, old.ordered_parts, new.ordered_parts, strict=True):
        inner = _reordered(one, two, f"{path}[{name!r}]")
        if inner is None:
            return None
        found += inner
    return found


#: Up to this many keys in another order are all shown, otherwise those from the first difference
#: on.
_KEYS = 6


def _order(what: str, was: Names, is_now: Names) -> str:
    """Two orders of the same names as text."""
    same = next(i for i, pair in enumerate(zip(was, is_now, strict=True)) if pair[0] != pair[1])
    start = same if len(was) > _KEYS else 0
    texts = (
        ("..., " if start else "")
        + ", ".join(map(shown, names[start : start + _KEYS]))
        + (", ..." if len(names) > start + _KEYS else "")
        for names in (was, is_now)
    )
    return "{} in another order: they were {} and are now {}".format(what, *texts)


def _difference(name: str, was: str, is_now: str) -> str:
    return f"argument {name!r} was {was} and is now {'another' if was == is_now else is_now}"


#: Stands for an argument that a call lacks.
_MISSING = object()


def arguments_of(request: Request) -> dict[str, Any]:
    """The arguments by name, with leaves replaced by their positions."""
    args, kwargs = request.structure.pack(list(range(request.structure.count)))
    return {**dict(zip(request.signature.positional(len(args)), args, strict=True)), **kwargs}


def shown_argument(request: Request, argument: Any) -> str:
    """An argument with its structure, and what its leaves contribute to the key."""
    if argument is _MISSING:
        return "not given"
    positions, structure = nest.flatten_structure(argument)
    leaves = [_LeafText(_text(request.keys[i], request.leaves[i])) for i in positions]
    text = str(structure.pack(leaves))
    return text if len(text) <= 60 else f"{text[:57]}... ({len(leaves)} leaves)"


class _LeafText:
    """A leaf as text, which a structure shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _text(key: Any, leaf: Any) -> str:
    if isinstance(key, TensorType):
        return str(key)
    if isinstance(key, VariableKey):
        return f"Variable {key.alias + 1} of the call, {key.type}"
    if isinstance(key, ObjectKey):
        return with_article(key.text)
    return shown(leaf)
