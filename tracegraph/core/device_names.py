"""Names of devices, read and written in TensorFlow's format."""

from __future__ import annotations

from typing import NamedTuple

from tracegraph.errors import SignatureError, fail, kind_of, shown

_FIX = 'write a name such as "cpu:0", "/GPU:1" or "/job:localhost/replica:0/task:0/device:GPU:1"'
#: The parts of a name, other than the device itself, that take a number or a word.
_OTHER_PARTS = ("job", "replica", "task")
#: Kinds of devices that a name may use even if this machine has none.
_KINDS = ("CPU", "GPU", "TPU")


class DeviceName(NamedTuple):
    """The parts of a name; None for those it leaves open."""

    kind: str | None = None
    number: int | None = None
    task: int | None = None


def parsed(name: object) -> DeviceName:
    """The parts of a name. Raises SignatureError (a ValueError) if the text names no device."""
    if not isinstance(name, str):
        fail(SignatureError, f"a device has a name, and this is {kind_of(name)}", fix=_FIX)
    found = DeviceName()
    for part in filter(None, name.split("/")):
        found = _with_part(found, part, name)
    return found


def _with_part(found: DeviceName, part: str, name: str) -> DeviceName:
    word, *rest = part.split(":")
    if word.lower() == "device" and rest:
        word, *rest = rest
    elif word in _OTHER_PARTS and len(rest) == 1 and rest[0]:
        return found._replace(task=_number(rest[0], name)) if word == "task" else found
    if word.upper() not in _KINDS or len(rest) > 1:
        fail(
            SignatureError,
            f"{shown(name)} is not the name of a device"
            + ("" if part == name else f": {shown(part)} is not a part of one"),
            fix=_FIX,
        )
    number = _number(rest[0], name) if rest and rest[0] != "*" else None
    return found._replace(kind=word.upper(), number=number)


def _number(text: str, name: str) -> int:
    if not text.isdecimal():
        fail(
            SignatureError, f"{shown(text)} is not a number of a device in {shown(name)}", fix=_FIX
        )
    return int(text)


def full_name(kind: str, number: int, task: int = 0) -> str:
    """The name of a process's device, with every part."""
    return f"/job:localhost/replica:0/task:{task}/device:{kind}:{number}"
