"""What methods and functions from elsewhere set in the objects that a statement reaches: it is
state of the statement, too, as if it stood there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tracegraph import nest
from tracegraph.autograph.changes.attributes import is_users
from tracegraph.autograph.statements.values import Undefined, Unknown, is_undefined
from tracegraph.control_flow import set_while_tracing
from tracegraph.control_flow.set_while_tracing import Setting
from tracegraph.core.source import here
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor


@contextlib.contextmanager
def objects_kept(body: Any, names: Sequence[str], is_loop: bool) -> Iterator[list[SetElsewhere]]:
    """A context that gives, when it ends, the attributes that the code of a statement has set
    besides its own `names`. It warns of what a graph cannot carry."""
    found: list[SetElsewhere] = []
    with set_while_tracing.objects_kept(body, names, is_loop, is_users) as settings:
        yield found
    found += [SetElsewhere(x, _line_of(x.value)) for x in settings]


def refuse_set(attributes: Sequence[SetElsewhere], what: str, fix: str) -> None:
    """Raises SignatureError if a part that has no state has set attributes that had values."""
    for x in attributes:
        if not is_undefined(x.begun(x.setting.old)):
            x.put_back()
            fact = f"{what} {x.name!r}; this part is traced once, whatever value the tensor has"
            fail(SignatureError, fact, fix=fix)


class SetElsewhere(NamedTuple):
    """An attribute that a method or a function from elsewhere sets."""

    setting: Setting
    #: Where it gets its value.
    line: str

    @property
    def is_named(self) -> bool:
        """Whether values that do not fit are refused where they are read, not at once."""
        return not self.setting.has_value

    @property
    def name(self) -> str:
        return self.setting.path

    @property
    def state(self) -> Any:
        return self.setting.value if self.setting.is_there else Undefined(self.name)

    def set_state(self, value: Any) -> None:
        if not is_undefined(value) or value.fact:
            self.setting.put(value)
        elif self.setting.is_there:
            self.setting.remove()

    def put_back(self) -> None:
        self.setting.put_back()

    def begun(self, value: Any) -> Any:
        """What the steps of a loop begin with, which has this value before the loop."""
        is_set = self.setting.has_value and not is_undefined(value)
        return value if is_set else _SetByStep(self.name, self.line)


class _SetByStep(Unknown):
    """An attribute without a tensor before a loop, of which each step sets one: a step may set it,
    but not read what the one before has set, since there is none before the first."""

    def __init__(self, name: str, line: str) -> None:
        what = f"{name} has no tensor before the loop at {here()}, and a step sets it{line}"
        fact = f"{what}: only the first step begins without it, and the loop is traced once"
        super().__init__(name, fact, f"give {name} a tensor before the loop")

    def is_left_out(self, value: Any) -> bool:
        if value is self:  # it is set in the first step alone
            self.refuse()
        return True


def _line_of(value: Any) -> str:
    nodes = [x.node for x in nest.flatten(value) if isinstance(x, Tensor)]
    return next((f" at {node.source}" for node in nodes if node is not None), "")


__all__ = ["SetElsewhere", "objects_kept", "refuse_set"]
