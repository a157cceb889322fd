"""Gradients that users register for ops by name, as `tg.RegisterGradient` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from tracegraph.errors import GradientError, RegistrationError, TraceError, fail, kind_of, shown
from tracegraph.ir.builder import operand_text
from tracegraph.ir.op import OPS, Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.effect import HostCall
from tracegraph.ops.shape import with_sizes

_registered: dict[str, Callable[..., Any] | None] = {}
_places: dict[str, str] = {}


class RegisterGradient:
    """A decorator that registers the gradient of the op called `op_type`.

    The function takes `(op, *grads)`, one cotangent per output, where `op.inputs` and
    `op.outputs` are tensors, and returns one cotangent per input or None. Any name is accepted,
    also that of an op that does not exist yet.

    Raises KeyError if the op has a gradient already, TypeError if the name is not a string.
    What the function returns is checked when a gradient is computed: GradientError (a ValueError).
    """

    def __init__(self, op_type: str) -> None:
        self._op_type = _checked_name(op_type)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            fact = f"the gradient of {self._op_type!r} is {kind_of(function)}: {shown(function)}"
            fail(TraceError, fact, fix="decorate a function of the op and its cotangents")
        register(self._op_type, function)
        return function


def registry_version() -> int:
    """Increases whenever a gradient is registered: earlier derivations may be stale then."""
    return len(_registered)


def register(name: str, function: Callable[..., Any] | None) -> None:
    if name in _registered:
        _refuse_second(name, f"registered at {_places[name]}", "remove one of the registrations")
    op = OPS.get(name)
    if op is not None and op.vjp is not Op.vjp and function is not None:
        _refuse_second(name, "its own", "register gradients for ops without one")
    code = getattr(function, "__code__", None)
    _registered[name] = function
    _places[name] = f"{code.co_filename}:{code.co_firstlineno}" if code else "no_gradient"


def _refuse_second(name: str, first: str, fix: str) -> None:
    fact = f"the op {name!r} was given a gradient, and it has one already: {first}"
    fail(RegistrationError, fact, fix=fix)


def no_gradient(op_type: str) -> None:
    """Declares that the op called `op_type` has no derivative: gradients through it are None.

    Raises KeyError if a gradient was registered for it, TypeError if the name is not a string.
    """
    register(_checked_name(op_type), None)


def _checked_name(op_type: Any) -> str:
    if not isinstance(op_type, str):
        fail(
            TraceError,
            f"an op is named by a string, and {shown(op_type)} is {kind_of(op_type)}",
            fix='write the name that the dump of a graph shows, such as "adjust_contrast"',
        )
    return op_type


class _OpView:
    """A node as a registered gradient sees it."""

    def __init__(self, node: Node) -> None:
        self.type = self.name = node.op.name
        self.inputs = node.inputs
        self.outputs = node.outputs
        self._op = node.op

    def get_attr(self, name: str) -> Any:
        return getattr(self._op, name)


def cotangents_of(node: Node, seeds: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The cotangents of the inputs of `node`, by the registered rule or the op's own."""
    if node.op.name in _registered:
        function = _registered[node.op.name]
        if function is None:
            return (None,) * len(node.inputs)
        return _checked(node, _as_tuple(function(_OpView(node), *seeds)))
    found = _as_tuple(node.op.vjp(*seeds, *node.outputs, *node.inputs))
    assert len(found) == len(node.inputs), node
    return found


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return tuple(cast("Iterable[Any]", found)) if isinstance(found, (tuple, list)) else (found,)


def _checked(node: Node, found: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The results of a registered gradient. Raises GradientError where they do not fit."""
    if len(found) != len(node.inputs):
        _refuse(node, f"{len(found)} cotangents for {len(node.inputs)} inputs")
    for place, (g, x) in enumerate(zip(found, node.inputs)):
        if g is not None and not isinstance(g, Tensor):
            _refuse(node, f"{kind_of(g)} for input {place}: {shown(g)}")
        if g is not None and not g.type.fits(x.type):
            _refuse(node, f"{g.type} for input {place}, which is {x.type}")
    pairs = zip(found, node.inputs, strict=True)
    return tuple(g if g is None else with_sizes(g, x.type.shape) for g, x in pairs)


def _refuse(node: Node, what: str) -> None:
    fail(
        GradientError,
        f"{node.op.name}: its registered gradient returned {what}",
        source=node.source,
        operands=map(operand_text, node.inputs),
        fix="return one tensor of the type of each input, None where there is none",
    )


def is_registered(op: Op) -> bool:
    return op.name in _registered


def user_rules(nodes: Iterable[Node]) -> Iterator[Op]:
    """The ops in the nodes, and in the bodies they call, whose derivative is a user's rule."""
    seen: set[Graph] = set()
    waiting = [iter(nodes)]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
        elif _is_of_user(node.op):
            yield node.op
        else:
            bodies = [body for body in node.op.graphs() if body not in seen]
            seen.update(bodies)
            waiting += [iter(body.nodes) for body in bodies]


def _is_of_user(op: Op) -> bool:
    return op.chosen_gradient is not None or isinstance(op, HostCall) or is_registered(op)
