"""Shapes: tuples of sizes, where a size is an int or a `Dim`, or one variable for any shape.

A `Dim` is a polynomial with integer coefficients over names, closed under floor division, minimum
and maximum, so that every shape rule also works for sizes that become known only at run time.
Names stand for positive numbers, except those that may be 0: `?` begins that of a size that the run
computes, and `_` that of an argument with such a size. `$` begins those of the open sizes of
Variables.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from tracegraph.core.contexts import context
from tracegraph.errors import Mismatch, TooLarge, UnfitShape, UnknownValue, kind_of

#: A product of two sizes with more terms than this is refused.
_LARGEST_PRODUCT = 4096
_NAME = re.compile(r"[?$][0-9]+(\.[a-z]+)?|[A-Za-z_][A-Za-z0-9_.]*")


class Dim:
    """A size that is not known yet: a polynomial such as `2*batch + 1`.

    Immutable and canonical: equal expressions compare and hash equal. Arithmetic with ints and
    other `Dim`s gives an int where the unknowns cancel. Ordering comparisons raise `Mismatch`,
    since the answer depends on the value.
    """

    __slots__ = ("_hash", "terms")

    #: ((monomial, coefficient), ...), where a monomial is ((atom, power), ...); sorted.
    terms: tuple[tuple[tuple[tuple[Any, int], ...], int], ...]

    def __init__(self, terms: tuple) -> None:
        self.terms = terms
        self._hash = hash(terms)

    @staticmethod
    def named(name: str) -> Dim:
        """The size called `name`, an identifier with optional dots inside, or `?` or `$` and a
        number. Raises Mismatch for any other name."""
        if not _NAME.fullmatch(name):
            raise UnfitShape(
                f"a size cannot be called {name!r}",
                fix="use letters, digits, underscores and dots, not beginning with a digit",
            )
        return Dim(((((name, 1),), 1),))

    @property
    def name(self) -> str | None:
        """The name of a plain named size; None for a compound expression."""
        atom = self._single_atom()
        return atom if isinstance(atom, str) else None

    def plain(self) -> Dim:
        """The same size, which compares as expressions do."""
        return self

    def _single_atom(self) -> Any:
        if len(self.terms) == 1:
            monomial, coefficient = self.terms[0]
            if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                return monomial[0][0]
        return None

    def names(self) -> frozenset[str]:
        """All names in the expression."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    for operand in atom[1:]:
                        found |= dim_names(operand)
        return frozenset(found)

    def substitute(self, sizes: Mapping[str, Size]) -> Size:
        """The size with names replaced from `sizes`; names that are missing there stay."""
        total: Size = 0
        for monomial, coefficient in self.terms:
            product: Size = coefficient
            for atom, power in monomial:
                value = _substitute_atom(atom, sizes)
                for _ in range(power):
                    product = product * value
            total = total + product
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Any) -> Any:
        return _combine(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _combine(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __neg__(self) -> Any:
        return _from_terms({monomial: -coefficient for monomial, coefficient in self.terms})

    def __mul__(self, other: Any) -> Any:
        right = _terms_of(other)
        if right is None:
            return self._refuse_fraction(other)
        if len(self.terms) * len(right) > _LARGEST_PRODUCT:
            raise Mismatch(f"the product of the sizes {self} and {other} has too many terms")
        terms: dict[tuple, int] = {}
        for left_monomial, left in self.terms:
            for right_monomial, coefficient in right:
                monomial = _multiply(left_monomial, right_monomial)
                terms[monomial] = terms.get(monomial, 0) + left * coefficient
        return _from_terms(terms)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Any:
        if not (isinstance(exponent, int) and exponent >= 0):
            return self._refuse_fraction(exponent)
        return math.prod([self] * exponent)

    def __floordiv__(self, other: Any) -> Any:
        return floor_divide(self, other) if _is_size(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return floor_divide(other, self) if _is_size(other) else NotImplemented

    def _refuse_fraction(self, other: Any = None) -> Any:
        """A size is an integer, and Python's numbers have values: divide a tensor instead."""
        if other is not None and not (_is_size(other) or isinstance(other, (float, complex))):
            return NotImplemented
        raise UnknownValue(
            f"the size {self} is not known while tracing, so Python cannot compute with it but by "
            "+, -, *, // and %",
            fix="make a tensor of it: tg.cast(tg.shape(x)[0], x.dtype)",
        )

    __truediv__ = __rtruediv__ = __rpow__ = __divmod__ = __rdivmod__ = _refuse_fraction
    __abs__ = __round__ = __float__ = __complex__ = sqrt = _refuse_fraction

    def __mod__(self, other: Any) -> Any:
        return self - floor_divide(self, other) * other if _is_size(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other - floor_divide(other, self) * self if _is_size(other) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self._is_negative(self - other, other)

    def __gt__(self, other: Any) -> bool:
        return self._is_negative(other - self, other)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def _is_negative(self, difference: Any, other: Any) -> bool:
        lowest, highest = bounds(difference)
        if highest < 0 or lowest >= 0:
            return highest < 0
        raise UnknownValue(
            f"the size {self} is not known while tracing, so it cannot be compared with {other}",
            fix="give the size in the TensorSpec, or write the computation without the comparison",
        )

    def _refuse_int(self) -> int:
        raise UnknownValue(
            f"the size {self} is not known while tracing, so it has no int value",
            fix="use tg.shape(x)[axis] for its value at run time, or give it in the TensorSpec",
        )

    def __int__(self) -> int:
        return self._refuse_int()

    def __index__(self) -> int:
        return self._refuse_int()

    def __str__(self) -> str:
        text = "".join(_term_text(m, c) for m, c in self.terms)
        return text[1:] if text.startswith("+") else text

    def __repr__(self) -> str:
        return str(self)


def plain(value: Any) -> Any:
    """The value, with each AskedSize turned into a Dim, which compares as expressions do."""
    if isinstance(value, tuple) and any(isinstance(x, Dim) for x in value):
        return tuple([plain(x) for x in value])
    return value.plain() if isinstance(value, Dim) else value


class ShapeVariable:
    """The shape of a tensor of unknown rank, written `*s`; equal by name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeVariable) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("ShapeVariable", self.name))

    def rank_fix(self, dtype: str = "float32") -> str:
        """How to give the rank: of an argument, or of what a Python function returns."""
        if not self.name.startswith("?"):
            return "give the rank in the TensorSpec, such as tg.TensorSpec([None, None])"
        return (
            "declare the shape that the Python function returns: y.set_shape([…]), or "
            f"Tout=tg.TensorSpec(shape, tg.{dtype})"
        )

    def _unknown(self) -> Any:
        raise UnfitShape(
            f"the rank of a tensor of shape *{self.name} is not known while tracing",
            fix=self.rank_fix(),
        )

    def __len__(self) -> int:
        return self._unknown()

    def __iter__(self) -> Any:
        return self._unknown()

    def __getitem__(self, index: Any) -> Any:
        return self._unknown()

    def __str__(self) -> str:
        return f"*{self.name}"

    __repr__ = __str__


Size: TypeAlias = int | Dim
Shape: TypeAlias = tuple[Size, ...] | ShapeVariable

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "max": max,
    "min": min,
}


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, Dim)) and not isinstance(value, bool)


def _terms_of(value: Any) -> tuple | None:
    if isinstance(value, Dim):
        return value.terms
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    number = operator.index(value)
    return (((), number),) if number else ()


def _combine(left: Dim, right: Any, sign: int) -> Any:
    terms = _terms_of(right)
    if terms is None:
        return left._refuse_fraction(right)
    total = dict(left.terms)
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + sign * coefficient
    return _from_terms(total)


def _order_key(monomial: tuple) -> tuple:
    """Higher degree first, then alphabetical; the constant comes last."""
    return (-sum(power for _, power in monomial), str(monomial))


def _from_terms(terms: dict[tuple, int]) -> Size:
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(tuple((monomial, kept[monomial]) for monomial in sorted(kept, key=_order_key)))


def bounds(size: Any) -> tuple[float, float]:
    """Lower and upper bounds of a size, derived only from the least values of its names."""
    if not isinstance(size, Dim):
        return size, size
    ends = [_term_bounds(monomial, coefficient) for monomial, coefficient in size.terms]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _term_bounds(monomial: tuple, coefficient: int) -> tuple[float, float]:
    if not monomial:
        return coefficient, coefficient
    names_alone = all(isinstance(atom, str) for atom, _ in monomial)
    lowest = math.prod([_least_of_name(atom) for atom, _ in monomial]) if names_alone else -math.inf
    ends = (coefficient * lowest, math.inf * coefficient)
    return min(ends), max(ends)


def _least_of_name(name: str) -> int:
    return 0 if name.startswith(("?", "_")) else 1


def _multiply(left: tuple, right: tuple) -> tuple:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


def _substitute_atom(atom: Any, sizes: Mapping[str, Size]) -> Size:
    if isinstance(atom, str):
        return sizes.get(atom, Dim.named(atom))
    function, *operands = atom
    return _apply(function, *(substitute_size(operand, sizes) for operand in operands))


def _apply(function: str, left: Size, right: Size) -> Size:
    if function == "floordiv" and isinstance(right, int) and right == 0:
        raise Mismatch(
            f"{left} is divided by a size that is 0",
            fix="call it with sizes that are not 0, or name the size in its TensorSpec: '_n'",
        )
    if isinstance(left, int) and isinstance(right, int):
        return _FUNCTIONS[function](left, right)
    if function == "floordiv":
        return floor_divide(left, right)
    return _extreme(function, left, right)


def _atom(function: str, left: Size, right: Size) -> Dim:
    return Dim((((((function, left, right), 1),), 1),))


def floor_divide(left: Size, right: Size) -> Size:
    """left // right, dividing out the terms that are multiples of an int."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if left == right:
        return 1
    if isinstance(right, int):
        if right == 1:
            return left
        terms = left.terms if isinstance(left, Dim) else ()
        multiples = {m: c // right for m, c in terms if c % right == 0}
        rest = {m: c for m, c in terms if c % right}
        if set(rest) <= {()}:  # only a constant remains: (4n + 3) // 2 = 2n + 1
            return _from_terms(multiples) + rest.get((), 0) // right
        return _from_terms(multiples) + _atom("floordiv", _from_terms(rest), right)
    quotient = _exact_quotient(left, right)
    return _atom("floordiv", left, right) if quotient is None else quotient


def _exact_quotient(left: Size, right: Size) -> Size | None:
    """left / right where `right` is one monomial that divides every term of `left`."""
    if not isinstance(right, Dim) or len(right.terms) != 1 or not isinstance(left, Dim):
        return None
    ((divisor, factor),) = right.terms
    quotient: dict[tuple, int] = {}
    for monomial, coefficient in left.terms:
        powers = dict(monomial)
        for atom, power in divisor:
            powers[atom] = powers.get(atom, 0) - power
        if coefficient % factor or min(powers.values(), default=0) < 0:
            return None
        reduced = tuple((atom, power) for atom, power in powers.items() if power)
        quotient[tuple(sorted(reduced, key=lambda item: str(item[0])))] = coefficient // factor
    return _from_terms(quotient)


def _extreme(function: str, left: Size, right: Size) -> Size:
    difference = left - right
    if _is_at_least_zero(difference):
        return left if function == "max" else right
    if _is_at_least_zero(-difference):
        return right if function == "max" else left
    left, right = sorted((left, right), key=str)
    return _atom(function, left, right)


def _is_at_least_zero(size: Size) -> bool:
    bound = least(size)
    return bound is not None and bound >= 0


def least(size: Size) -> int | None:
    """A lower bound of a size, derived only from the least values of its names; None if none is
    evident."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms:
        product = 1
        for atom, power in monomial:
            bound = _least_of_name(atom) if isinstance(atom, str) else _least_of_atom(*atom)
            if bound is None or bound < 0 or coefficient < 0:
                return None
            product *= bound**power
        total += coefficient * product
    return total


def _least_of_atom(function: str, left: Size, right: Size) -> int | None:
    bounds = least(left), least(right)
    known = [bound for bound in bounds if bound is not None]
    if function == "max":
        return max(known, default=None)
    if len(known) < 2:
        return None
    if function == "min":
        return min(known)
    return known[0] // right if isinstance(right, int) and right > 0 else None


def minimum(left: Size, right: Size) -> Size:
    """The smaller of two sizes, as an expression where it depends on the unknowns."""
    return _extreme("min", left, right)


def maximum(left: Size, right: Size) -> Size:
    """The larger of two sizes, as an expression where it depends on the unknowns."""
    return _extreme("max", left, right)


def is_one(size: Size) -> bool:
    """Whether a size is 1 wherever the sizes that only the run knows are not 0, as that of the last
    row of such a tensor is."""
    names = dim_names(size)
    return substitute_size(size, {name: Dim.named(name) + 1 for name in names}) == 1


def ceiling_divide(left: Size, right: Size) -> Size:
    return floor_divide(left + right - 1, right)


def dim_names(size: Size) -> frozenset[str]:
    return size.names() if isinstance(size, Dim) else frozenset()


def substitute_size(size: Size, sizes: Mapping[str, Any]) -> Size:
    return size.substitute(sizes) if isinstance(size, Dim) else size


def substitute_shape(shape: Shape, sizes: Mapping[str, Any]) -> Shape:
    """`shape` with names replaced: sizes by `sizes[name]`, `*s` by the shape `sizes["*s"]`."""
    if isinstance(shape, ShapeVariable):
        return sizes.get(str(shape), shape)
    return tuple(substitute_size(size, sizes) for size in shape)


def same_size(left: Size, right: Size) -> Size | None:
    """The common size of two sizes assumed equal, or None if they cannot be equal.

    They cannot if they are different ints or differ by a constant. Otherwise an int wins, else the
    first is kept: each run checks the assumption when it specialises the graph.
    """
    difference = left - right
    if isinstance(difference, int):
        return left if difference == 0 else None
    if _taken.equal is not None:
        _taken.equal.append((left, right))
    return right if isinstance(right, int) else left


class _Taken(threading.local):
    def __init__(self) -> None:
        self.equal: list[tuple[Size, Size]] | None = None


#: Collects the sizes assumed equal on this thread, while a `taken_equal` context is open.
_taken = _Taken()


@context
def taken_equal() -> Generator[list[tuple[Size, Size]], None, None]:
    """A context that lists the pairs of sizes that `same_size` assumes equal within it."""
    outer = _taken.equal
    try:
        _taken.equal = []
        yield _taken.equal
    finally:
        _taken.equal = outer


def same_shape(left: Shape, right: Shape) -> Shape | None:
    """The common shape of two shapes assumed equal; None if they cannot be equal.

    Two shapes of open rank are assumed equal, as two open sizes are.
    """
    if isinstance(left, ShapeVariable) or isinstance(right, ShapeVariable):
        return left if type(left) is type(right) else None
    if left == right:
        return left
    if len(left) != len(right):
        return None
    sizes = [same_size(a, b) for a, b in zip(left, right, strict=True)]
    return None if None in sizes else tuple(sizes)  # type: ignore[arg-type]


def is_static(shape: Shape) -> bool:
    return not isinstance(shape, ShapeVariable) and all(type(size) is int for size in shape)


def static_shape(shape: Any) -> tuple[int, ...]:
    """A shape with only known sizes, as ints."""
    assert is_static(shape), f"{shape} has sizes that are not known"
    return shape


def checked_shape(shape: Any) -> Shape:
    """`shape` with its ints converted to plain int. Raises Mismatch for what cannot be a shape."""
    if isinstance(shape, ShapeVariable):
        return shape
    if len(shape) > MOST_AXES:
        raise UnfitShape(
            f"a tensor has at most {MOST_AXES} axes, and this shape has {len(shape)}",
            fix="merge axes by a reshape",
        )
    return tuple(_checked_size(size, shape) for size in shape)


def _checked_size(size: Any, shape: Any) -> Size:
    if isinstance(size, Dim):
        return plain(size)
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise UnfitShape(
            f"a shape holds integers, and {size!r} in {tuple(shape)!r} is {kind_of(size)}",
            fix="give an int of zero or more for each size",
        )
    number = operator.index(size)
    if number < 0:
        raise UnfitShape(
            f"a size is zero or more, and the shape {tuple(shape)!r} has {number}",
            fix="give an int of zero or more for each size; -1 is for tg.reshape alone",
        )
    if number >= SIZE_LIMIT:
        raise TooLarge(
            f"a size has at most 64 bits, and the shape {tuple(shape)!r} has {number}",
            fix="give smaller sizes",
        )
    return number


def check_bytes(short: str, shape: Any, element_bytes: int) -> None:
    """Raises InvalidArgumentError for a known shape whose elements no machine can address.

    A size of 0 counts as 1: XLA multiplies the strides of an empty array too.
    """
    held = math.prod([size or 1 for size in shape]) * element_bytes
    if held > MOST_BYTES:
        raise TooLarge(
            f"a tensor {short}[{dimensions_text(shape)}] takes {held:,} bytes, and no machine "
            f"addresses more than {MOST_BYTES:,}",
            fix="check the sizes: one of them is far too large",
        )


#: The most axes that a tensor may have: NumPy's limit.
MOST_AXES = 64
#: Sizes and positions are 64-bit integers.
SIZE_LIMIT = 2**63
#: The most bytes of a tensor: what a process can address on the largest machines (57 bits, half of
#: which the kernel takes). XLA counts bytes in 63 bits and aborts the process beyond; the margin
#: leaves room for wider intermediate arrays. A tensor below this limit that exceeds this machine's
#: memory is XLA's to refuse: not every value in a graph is ever stored.
MOST_BYTES = 2**56


def element_count(shape: Shape) -> Size:
    """The number of elements of a shape; for `*s` the size called `s.size`."""
    if isinstance(shape, ShapeVariable):
        return Dim.named(f"{shape.name}.size")
    return functools.reduce(operator.mul, shape, 1)


def axis_count(shape: Shape) -> Size:
    """The number of axes of a shape; for `*s` the size called `s.rank`."""
    return Dim.named(f"{shape.name}.rank") if isinstance(shape, ShapeVariable) else len(shape)


def dimensions_text(shape: Shape) -> str:
    return str(shape) if isinstance(shape, ShapeVariable) else ",".join(map(str, shape))


def _term_text(monomial: tuple, coefficient: int) -> str:
    sign = "-" if coefficient < 0 else "+"
    factors = [_atom_text(atom) for atom, power in monomial for _ in range(power)]
    if abs(coefficient) != 1 or not factors:
        factors.insert(0, str(abs(coefficient)))
    return sign + "*".join(factors)


def _atom_text(atom: Any) -> str:
    if isinstance(atom, str):
        return atom
    function, left, right = atom
    return f"{function}({left},{right})"


_TOKEN = re.compile(r"\s*(?:(\d+)|([?$]\d+(?:\.[a-z]+)?|[A-Za-z_][A-Za-z0-9_.]*)|([-+*(),]))")


def parse_size(text: str) -> Size:
    """The size whose `str` is `text`. Raises ValueError for any other text."""
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text!r} is not a size: unexpected {text[position:]!r}")
        tokens.append(match[0].strip())
        position = match.end()
    value, rest = _parse_sum(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"{text!r} is not a size: unexpected {tokens[rest]!r}")
    return value


def _parse_sum(tokens: list[str], at: int, depth: int = 0) -> tuple[Size, int]:
    if depth > 50:
        raise ValueError("a size is nested more than 50 deep")
    total: Size = 0
    sign = 1
    if at < len(tokens) and tokens[at] in "+-":
        sign, at = (-1 if tokens[at] == "-" else 1), at + 1
    while True:
        product, at = _parse_product(tokens, at, depth)
        total = total + sign * product
        if at >= len(tokens) or tokens[at] not in "+-":
            return total, at
        sign, at = (-1 if tokens[at] == "-" else 1), at + 1


def _parse_product(tokens: list[str], at: int, depth: int) -> tuple[Size, int]:
    product, at = _parse_atom(tokens, at, depth)
    while at < len(tokens) and tokens[at] == "*":
        factor, at = _parse_atom(tokens, at + 1, depth)
        product = product * factor
    return product, at


def _parse_atom(tokens: list[str], at: int, depth: int) -> tuple[Size, int]:
    if at >= len(tokens):
        raise ValueError("a size ends too early")
    word = tokens[at]
    if word.isdigit():
        return int(word), at + 1
    if word in _FUNCTIONS and tokens[at + 1 : at + 2] == ["("]:
        left, at = _parse_sum(tokens, at + 2, depth + 1)
        if tokens[at : at + 1] != [","]:
            raise ValueError(f"{word} of sizes takes two operands")
        right, at = _parse_sum(tokens, at + 1, depth + 1)
        if tokens[at : at + 1] != [")"]:
            raise ValueError(f"{word} of sizes is not closed")
        if word == "floordiv" and right == 0:
            raise ValueError("a size is divided by zero")
        return _apply(word, left, right), at + 1
    if not (word[0].isalpha() or word[0] in "_?$"):
        raise ValueError(f"unexpected {word!r} in a size")
    return Dim.named(word), at + 1
