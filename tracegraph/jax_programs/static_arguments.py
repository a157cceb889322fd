"""Which arguments of a JAX function are static, checked against its signature as in `jax.jit`."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from tracegraph.errors import SignatureError, counted, fail, kind_of, shown

_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


class StaticArguments(NamedTuple):
    """The positions and names of static arguments. Negative positions count from the end of what a
    call gives by position."""

    numbers: frozenset[int]
    names: frozenset[str]

    def places(self, count: int) -> set[int]:
        """The positions among those of a call with `count` arguments by position."""
        every = {number + count if number < 0 else number for number in self.numbers}
        return {place for place in every if 0 <= place < count}


def static_arguments(
    name: str, signature: inspect.Signature | None, numbers: Any, names: Any
) -> StaticArguments:
    """The static arguments of the function `name`, from what a user gives. If only the positions or
    only the names are given, the others follow from the signature, if it is known. Raises
    SignatureError for anything else, and for arguments that the function does not take."""
    found = frozenset(_numbers(name, numbers)), frozenset(_names(name, names))
    if signature is None:
        return StaticArguments(*found)
    _check_numbers(name, signature, found[0])
    _check_names(name, signature, found[1])
    return _completed(signature, *found)


def _numbers(name: str, numbers: Any) -> Iterable[int]:
    try:
        is_several = isinstance(numbers, Iterable)
        given = [] if numbers is None else [*numbers] if is_several else [numbers]
        return [operator.index(number) for number in given]
    except TypeError:
        fail(
            SignatureError,
            f"{name}: static_argnums is {kind_of(numbers)}: {shown(numbers)}",
            fix="give the positions of arguments, as static_argnums=1 or static_argnums=(1, 2)",
        )


def _names(name: str, names: Any) -> Iterable[str]:
    is_several = isinstance(names, Iterable) and not isinstance(names, str)
    given: list[Any] = [] if names is None else [*names] if is_several else [names]
    if not all(isinstance(each, str) for each in given):
        fail(
            SignatureError,
            f"{name}: static_argnames is {kind_of(names)}: {shown(names)}",
            fix='give the names of arguments, as static_argnames="axis"',
        )
    return given


def _check_numbers(name: str, signature: inspect.Signature, numbers: Iterable[int]) -> None:
    parameters = signature.parameters.values()
    count = sum(x.kind in _BY_POSITION for x in parameters)
    takes_any = any(x.kind is inspect.Parameter.VAR_POSITIONAL for x in parameters)
    wrong = [number for number in sorted(numbers) if not -count <= number < count]
    if wrong and not takes_any:
        fail(
            SignatureError,
            f"{name}: static_argnums has {wrong[0]}, and the function takes "
            f"{counted(count, 'argument')} by position: {name}{signature}",
            fix=f"give positions from 0 to {count - 1}, or names in static_argnames"
            if count
            else "give names in static_argnames",
        )


def _check_names(name: str, signature: inspect.Signature, names: Iterable[str]) -> None:
    parameters = signature.parameters
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values()):
        return
    for each in sorted(names):
        if each not in parameters or parameters[each].kind not in _BY_NAME:
            is_unnamed = each in parameters
            what = "takes by position only" if is_unnamed else "does not take"
            fail(
                SignatureError,
                f"{name}: static_argnames has {each!r}, which the function {what}: "
                f"{name}{signature}",
                fix="give its position in static_argnums"
                if is_unnamed
                else "give names of its arguments",
            )


def _completed(
    signature: inspect.Signature, numbers: frozenset[int], names: frozenset[str]
) -> StaticArguments:
    """With the names that belong to the positions, or the positions that belong to the names."""
    places = [x for x in signature.parameters.values() if x.kind in _BY_POSITION]
    both = [(i, x.name) for i, x in enumerate(places) if x.kind in _BY_NAME]
    if not names:
        names = frozenset(word for i, word in both if i in numbers or i - len(places) in numbers)
    elif not numbers:
        numbers = frozenset(i for i, word in both if word in names)
    return StaticArguments(numbers, names)
