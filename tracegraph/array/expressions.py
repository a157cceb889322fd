"""Integer scalars as expressions: linear combinations of values that are unknown while tracing.

They show that `o[0] + 8` is 8 more than `o[0]`, even though the two `o[0]` are different nodes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tracegraph.core.shapes import Dim, Size
from tracegraph.eager.tensor_methods import host_array
from tracegraph.ir.builder import INPUT
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import known_value
from tracegraph.ops.elementwise import Add, Cast, Identity, Mul, Neg, Sub
from tracegraph.ops.shape import Reshape, Slice

#: How deep to analyse expressions; anything deeper is treated as an opaque value.
_DEEPEST = 32
#: How deep to show them.
_DEEPEST_SHOWN = 4
#: The key of the constant term in a sum.
_KNOWN = None


def difference(x: Tensor, y: Tensor) -> Size | None:
    """x - y if it is known although x and y are not; None if that cannot be shown."""
    known = _Known()
    right = known.sum_of(y, 0)
    total = _plus(known.sum_of(x, 0), right, -1)
    number = total.pop(_KNOWN, 0)
    return None if any(factor != 0 for factor in total.values()) else number


class _Known:
    """The expressions compared so far, each of which is analysed once."""

    def __init__(self) -> None:
        self._sums: dict[Tensor, dict[Hashable, Size]] = {}
        self._keys: dict[Tensor, Hashable] = {}

    def sum_of(self, x: Tensor, depth: int) -> dict[Hashable, Size]:
        """x as a sum: the factor of each value, by keys that are equal for equal values."""
        if x not in self._sums:
            self._sums[x] = self._made_sum(x, depth)
        return self._sums[x]

    def _made_sum(self, x: Tensor, depth: int) -> dict[Hashable, Size]:
        number = _known_number(x)
        if number is not None:
            return {_KNOWN: number}
        op, inputs = (x.node.op, x.node.inputs) if x.node is not None else (None, ())
        terms = None
        is_sum = isinstance(op, (Add, Sub, Mul, Neg, Identity, Cast))
        if is_sum and depth < _DEEPEST and all(map(_is_integer, inputs)):
            terms = _combined(op, x, [self.sum_of(y, depth + 1) for y in inputs])
        return {self._key(x, depth): 1} if terms is None else terms

    def _key(self, x: Tensor, depth: int) -> Hashable:
        """Equal for tensors computed by the same ops from the same values."""
        if x not in self._keys:
            self._keys[x] = self._made_key(x, depth)
        return self._keys[x]

    def _made_key(self, x: Tensor, depth: int) -> Hashable:
        node = x.node
        if node is None and x.type.shape == ():
            return x.dtype.name, host_array(x).item()
        if node is None or node.op is INPUT or depth >= _DEEPEST:
            return id(x)
        places = [k for k, y in enumerate(node.outputs) if y is x]
        if not places:
            return id(x)
        return (id(node.op), places[0], *[self._key(y, depth + 1) for y in node.inputs])


def _is_integer(x: Tensor) -> bool:
    return x.type.shape == () and x.dtype.is_integer


def _combined(op: Any, x: Tensor, parts: list[dict[Hashable, Size]]) -> dict[Hashable, Size] | None:
    """The sum that results from an op on sums; None if it is not a sum."""
    first = parts[0]
    if isinstance(op, Mul):
        factor, other = parts if set(first) <= {_KNOWN} else parts[::-1]
        scale = factor.get(_KNOWN, 0)
        is_sum = set(factor) <= {_KNOWN}
        return {key: scale * n for key, n in other.items()} if is_sum else None
    if isinstance(op, (Add, Sub)):
        return _plus(first, parts[1], -1 if isinstance(op, Sub) else 1)
    if isinstance(op, Cast):
        (source,) = x.node.inputs  # type: ignore[union-attr]
        is_whole = source.dtype.min >= x.dtype.min and source.dtype.max <= x.dtype.max
        return first if is_whole else None
    return _plus({}, first, -1) if isinstance(op, Neg) else first


def _plus(x: dict[Hashable, Size], y: dict[Hashable, Size], sign: int) -> dict[Hashable, Size]:
    total = dict(x)
    for key, factor in y.items():
        total[key] = total.get(key, 0) + sign * factor
    return total


def _known_number(x: Tensor) -> Any:
    """The value of x, an int or a size, if it is known without evaluating anything."""
    node = x.node
    if node is not None and node.builder is not None and node.builder.is_top_level:
        return None
    value = host_array(x) if node is None else known_value(x)
    return None if value is None else as_known(value)


def as_known(value: Any) -> Any:
    """The only number of an array: an int, or a symbolic size."""
    number = np.asarray(value)[()]
    return number if isinstance(number, Dim) else int(number)


def text(x: Any, depth: int = 0) -> str:
    """An expression as shown in messages: `o[0] + 8`."""
    if not isinstance(x, Tensor):
        return str(x)
    known = _known_number(x)
    if known is not None:
        return str(known)
    node = x.node
    if x.name or node is None or node.op is INPUT:
        return x.name or str(x.type)
    if depth >= _DEEPEST_SHOWN:
        return "..."
    sign = _SIGNS.get(type(node.op))
    if sign is not None:
        left, right = (text(y, depth + 1) for y in node.inputs)
        return f"{left} {sign} {right}" if depth == 0 else f"({left} {sign} {right})"
    if isinstance(node.op, (Cast, Identity)):
        return text(node.inputs[0], depth)
    element = _element_text(node, depth)
    return element or f"{node.op.name}({', '.join(text(y, depth + 1) for y in node.inputs)})"


_SIGNS = {Add: "+", Sub: "-", Mul: "*"}


def _element_text(node: Any, depth: int) -> str | None:
    """`o[0]` for the pair of nodes that take an element."""
    inner = node.inputs[0].node if isinstance(node.op, Reshape) else None
    if inner is None or not isinstance(inner.op, Slice):
        return None
    starts = ", ".join(map(str, inner.op.start))
    return f"{text(inner.inputs[0], depth + 1)}[{starts}]"
