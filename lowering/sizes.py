"""Sizes during lowering: ints, or JAX's symbolic sizes in a program for every size.

A body with open sizes is specialised to the arrays it is called with. If those have symbolic sizes,
each distinct one gets a name of ours, and the sizes in an op's attributes are computed from JAX's
sizes by that name.
"""

from __future__ import annotations

import contextlib
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jax import core, errors, export, lax

from tracegraph.core.shapes import Dim, Shape, ShapeVariable, substitute_size
from tracegraph.core.source import here
from tracegraph.core.types import TensorType
from tracegraph.errors import SignatureError, UnfitShape, fail
from tracegraph.ir.tensor import Graph
from tracegraph.passes.specialise import specialise

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "max": core.max_dim,
    "min": core.min_dim,
}


#: What the names of open sizes stand for.
Sizes = Mapping[str, Any]


class _SizeNames(threading.local):
    def __init__(self) -> None:
        self.sizes: Sizes = {}


#: The names of the body that this thread is lowering.
_names = _SizeNames()


@contextlib.contextmanager
def named(sizes: Sizes) -> Iterator[None]:
    """A context in which names of open sizes stand for JAX's sizes."""
    outer, _names.sizes = _names.sizes, sizes
    try:
        yield
    finally:
        _names.sizes = outer


def fix(shapes: Iterable[Any]) -> str:
    """The fix where an op on arrays of `shapes` is refused because of their open sizes; empty if
    the body being lowered has none."""
    sizes = (*(size for shape in shapes for size in shape), *_names.sizes.values())
    words = [word for size in sizes if is_open(size) for word in _WORD.findall(str(size))]
    names = [word for word in words if word not in _WORDS]
    if not names:
        return ""
    return (
        f"give the sizes as numbers, or state what holds of them: constraints=['{names[0]} >= 2']"
    )


def is_open(size: Any) -> bool:
    """Whether a size of an array is symbolic."""
    return not isinstance(size, int)


def differ(left: Any, right: Any) -> bool:
    """Whether two JAX sizes are known to differ; for symbolic ones an ordering may tell."""
    try:
        return bool(left < right) or bool(left > right)
    except errors.InconclusiveDimensionOperation:
        return False


def symbolic(names: Sequence[str], constraints: Sequence[str]) -> Mapping[str, Any]:
    """A symbolic JAX size for each name, subject to the constraints."""
    texts = list(map(jax_name, names))
    unknown = {word for text in constraints for word in _WORD.findall(text)}
    unknown -= {*texts, *_WORDS}
    if unknown:
        _refuse(constraints, texts, f"no size is called {', '.join(sorted(unknown))}")
    try:
        found = export.symbolic_shape(", ".join(texts), constraints=constraints) if names else ()
    except (ValueError, NotImplementedError) as error:
        _refuse(constraints, texts, str(error).split("\n")[0])
    return dict(zip(names, found, strict=True))


def jax_name(text: str) -> str:
    """A size name, or a text of such names, in JAX's syntax."""
    return text.replace(".", "_")


_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS = {*_FUNCTIONS, "mod"}


def _refuse(constraints: Sequence[str], names: Sequence[str], problem: str) -> NoReturn:
    fail(
        SignatureError,
        f"{list(constraints)} are not constraints of the sizes {list(names)}: {problem}",
        source=here(),
        fix='write them as "batch >= 2", "mod(batch, 2) == 0" or "rows == columns"',
    )


def size(size: Any) -> Any:
    """A size in an op's attributes, in JAX's form: an int, or a symbolic size."""
    return size if isinstance(size, int) else evaluated(size, _names.sizes)


def shape(shape: Any) -> tuple[Any, ...]:
    """A shape in an op's attributes, in JAX's form."""
    return tuple([size(x) for x in shape])


def aligned(type: TensorType, array: Any) -> Any:
    """An array of this type with its sizes written as ours are. For ceil(n / 2) JAX produces
    floordiv(n - 1, 2) + 1 in one place and floordiv(n + 1, 2) in another, and considers them
    different; so the array is padded by their difference, which is 0."""
    if not _names.sizes or isinstance(type.shape, ShapeVariable):
        return array
    missing = [
        evaluated(size, _names.sizes) - actual if isinstance(size, Dim) else 0
        for size, actual in zip(type.shape, array.shape, strict=True)
    ]
    if all(isinstance(n, int) for n in missing):
        return array
    try:
        return lax.pad(array, lax.full((), 0, array.dtype), [(0, n, 0) for n in missing])
    except errors.InconclusiveDimensionOperation:  # none of our sizes is known to be positive
        return array


def evaluated(size: Dim, sizes: Sizes) -> Any:
    """The polynomial `size`, evaluated with JAX's sizes for its names."""
    total: Any = 0
    for monomial, coefficient in size.terms:
        product: Any = coefficient
        for atom, power in monomial:
            product = product * _atom(atom, sizes) ** power
        total = total + product
    return total


def _atom(atom: Any, sizes: Sizes) -> Any:
    if isinstance(atom, str):
        return sizes[atom]
    function, *operands = atom
    values = [x if isinstance(x, int) else evaluated(x, sizes) for x in operands]
    return _FUNCTIONS[function](*values)


class _SymbolicSizes:
    """Our names for the symbolic sizes of arrays, one for each distinct size."""

    def __init__(self) -> None:
        self._names: dict[Any, Dim] = {}
        #: What the names stand for.
        self.sizes: dict[str, Any] = {}

    def known(self, size: Any) -> Any:
        """An array's size as one of ours."""
        if not export.is_symbolic_dim(size):
            return size
        if size not in self._names:
            name = self._names[size] = _name(str(size), len(self._names))
            self.sizes[str(name)] = size
        return self._names[size]


def _name(text: str, number: int) -> Dim:
    """JAX's own name, which a message then shows; a number for a compound size."""
    try:
        return Dim.named(text)
    except UnfitShape:
        return Dim.named(f"size.{number}")


def types_of(dtypes: Sequence[Any], shapes: Sequence[Any]) -> list[TensorType]:
    """The types of arrays, with names for their symbolic sizes."""
    known = _SymbolicSizes().known
    pairs = zip(dtypes, shapes, strict=True)
    return [TensorType(dtype, tuple(map(known, shape))) for dtype, shape in pairs]


def specialised(graph: Graph, arrays: Sequence[Any]) -> tuple[Graph, Sizes]:
    """`graph` for the shapes of `arrays`, and what the names of its open sizes stand for."""
    if graph.is_static:
        return graph, {}
    names = _SymbolicSizes()
    bound: dict[str, Any] = {}
    for x, array in zip(graph.inputs, arrays, strict=True):
        if not isinstance(x.type.shape, ShapeVariable):
            for size, given in zip(x.type.shape, array.shape, strict=True):
                if isinstance(size, Dim) and size.name is not None:
                    bound.setdefault(size.name, names.known(given))
    pairs = zip(graph.inputs, arrays, strict=True)
    types = [x.type.with_shape(_sizes(x.type.shape, a.shape, names, bound)) for x, a in pairs]
    return specialise(graph, types), names.sizes


def _sizes(
    formal: Shape, given: Any, names: _SymbolicSizes, bound: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The sizes of an array as ours; a size that a graph states in terms of others stays so."""
    if isinstance(formal, ShapeVariable):
        return tuple(map(names.known, given))
    found = []
    for size, actual in zip(formal, given, strict=True):
        if isinstance(size, Dim) and size.name is None and export.is_symbolic_dim(actual):
            size = substitute_size(size, bound)
            wanted = size if isinstance(size, int) else evaluated(size, names.sizes)
            if wanted != actual:
                raise ValueError(f"the size {actual} is taken to be {wanted}")
            found.append(size)
        else:
            found.append(names.known(actual))
    return tuple(found)
