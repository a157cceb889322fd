"""Sizes of JAX programs, which may be symbolic, as sizes of ours."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from jax import export

from tracegraph.core.shapes import Dim, Size, floor_divide, maximum, minimum
from tracegraph.errors import SizeNeeded, fail

#: The operators and functions of JAX's text of a size, such as `2*d0^2 - mod(d1, 3)`.
_MEANINGS: dict[Any, Callable[..., Size]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.USub: lambda size: -size,
    "floordiv": floor_divide,
    "mod": lambda left, right: left - floor_divide(left, right) * right,
    "max": maximum,
    "min": minimum,
}


def sizes_of(shape: Sequence[Any]) -> tuple[Size, ...]:
    """The sizes of a JAX shape."""
    return tuple(map(size_of, shape))


def size_of(size: Any) -> Size:
    """A size of JAX. Raises SizeNeeded for one that has no counterpart here."""
    if not export.is_symbolic_dim(size):
        return int(size)
    try:
        return _read(ast.parse(str(size).replace("^", "**"), mode="eval").body)
    except (KeyError, SyntaxError) as error:
        fail(
            SizeNeeded,
            f"from_jax: the size {size} of JAX has no counterpart here",
            fix="give the size in the TensorSpec, or let the function be traced for each size",
            cause=error,
        )


def _read(node: Any) -> Size:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name():
            return Dim.named(node.id)
        case ast.UnaryOp():
            return _MEANINGS[type(node.op)](_read(node.operand))
        case ast.BinOp():
            return _MEANINGS[type(node.op)](_read(node.left), _read(node.right))
        case ast.Call(func=ast.Name(name)):
            return _MEANINGS[name](*map(_read, node.args))
    raise KeyError(ast.dump(node))
