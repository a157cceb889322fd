"""`tg.testing`: numerical checks of the derivatives of a user's own functions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tracegraph import nest
from tracegraph.api.absent import publish
from tracegraph.api.functional import grad, jvp
from tracegraph.array.creation import cast, identity
from tracegraph.core.source import here
from tracegraph.core.types import DType, complex128, float64
from tracegraph.errors import DTypeError, GradientError, TraceError, fail, message, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math import conj, real, reduce_sum
from tracegraph.operands.conversion import as_tensor
from tracegraph.signatures.signature import Signature

REVERSE, FORWARD = "reverse", "forward"
#: How many elements of a larger argument to test, drawn at random.
_ELEMENTS = 16
#: How close the two derivatives must be, relative to their size.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "float16": 0.15, "bfloat16": 0.4}
#: The share of the size up to which the numeric derivative's uncertainty is tolerated.
_NOISE = 1e-2
#: By how many roundings two calls of a function may differ: the first program may also have
#: computed values that the function takes from outside.
_ROUNDINGS = 16


@dataclass(frozen=True)
class Comparison:
    """The largest error of a derivative with respect to one argument, and its position."""

    #: 1 for the function's derivative, 2 for that of its derivative, and so on.
    order: int
    #: The mode of each derivative, the last one first: "forward over reverse".
    mode: str
    #: The tensor among the arguments, by the parameter's name and the path inside it.
    argument: str
    #: The element of that tensor, and whether it is moved along the imaginary axis.
    index: tuple[int, ...]
    is_imaginary: bool
    analytic: float
    numeric: float
    error: float
    #: The largest accepted error.
    limit: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.limit

    def __str__(self) -> str:
        element = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        part = " (imaginary part)" if self.is_imaginary else ""
        return (
            f"{'right' if self.is_right else 'WRONG'}  order {self.order}, {self.mode}, by "
            f"{self.argument}{element}{part}: analytic {self.analytic:.8g}, numeric "
            f"{self.numeric:.8g}, error {self.error:.2g}"
        )


@dataclass(frozen=True)
class GradientReport:
    """The result of `check_gradients`: the largest error for each order, mode and argument."""

    name: str
    dtype: str
    comparisons: tuple[Comparison, ...]

    @property
    def is_right(self) -> bool:
        return all(row.is_right for row in self.comparisons)

    @property
    def wrong(self) -> tuple[Comparison, ...]:
        """The comparisons whose error is too large."""
        return tuple(row for row in self.comparisons if not row.is_right)

    def __str__(self) -> str:
        count = len(self.comparisons)
        head = f"{self.name}: {count - len(self.wrong)} of {count} derivatives are right, "
        return "\n".join([f"{head}in {self.dtype}", *(f"  {row}" for row in self.comparisons)])


class WrongGradientError(GradientError, AssertionError):
    """A GradientError of `check_gradients`, with its findings as `report`."""

    report: GradientReport


def check_gradients(
    fn: Callable[..., Any],
    *args: Any,
    order: int = 2,
    modes: Sequence[str] = (REVERSE, FORWARD),
    tolerance: float | None = None,
) -> GradientReport:
    """Compares the derivatives of a function with finite differences.

    - `fn`: a function from structures of tensors to one, such as a function with a
      `tg.custom_gradient`. It is called many times, and must return the same values each time.
    - `args`: the point at which to differentiate; floating and complex tensors are varied.
    - `order`: checks derivatives up to this order, in every combination of `modes`: with both modes
      and order 2 these are reverse, forward, and each of the two over each.
    - `tolerance`: how close they must be, relative to their size; the default depends on the dtype.
      Computes in double precision if the function allows it.

    The results are combined with random weights, and one element after another is varied, at most
    16 per tensor. The numeric derivative is a central difference extrapolated from two step sizes
    (Richardson, "The approximate arithmetical solution by finite differences", 1911). Each order
    checks the analytic derivative of the previous one in the same way, like `check_grads` of HIPS
    autograd.

    Returns a report, which prints as a table. Raises GradientError (a ValueError, and here also an
    AssertionError), with the report as its attribute `report`, if a derivative is wrong, and for
    functions without floating arguments or results; LookupError, with the line, if a derivative
    does not exist.

    >>> @tg.custom_gradient
    ... def cube(x):
    ...     return x**3, lambda dy: dy * 3.0 * x**2
    >>> report = tg.testing.check_gradients(cube, tg.constant([1.0, 2.0]))
    >>> report.is_right, len(report.comparisons)
    (True, 6)
    >>> print(str(report).splitlines()[1])
      right  order 1, reverse, by x[...]: analytic ..., numeric ..., error ...
    """
    if not callable(fn):
        fact = f"check_gradients: {shown(fn)} is not callable"
        fail(TraceError, fact, fix="give a function, and then its arguments")
    _check_request(order, modes)
    point = _widened_point(fn, args)
    rows = tuple(row for k in range(1, order + 1) for row in point.compared(k, modes, tolerance))
    report = GradientReport(point.name, point.dtype.name, rows)
    if not report.is_right:
        _refuse_wrong(report)
    return report


def _check_request(order: Any, modes: Sequence[str]) -> None:
    if type(order) is not int or order < 1:
        _refuse(f"the order is {shown(order)}", "give a positive integer")
    if not modes or any(mode not in (REVERSE, FORWARD) for mode in modes):
        _refuse(f"the modes are {shown(modes)}", 'give ("reverse", "forward"), or one of them')


def _refuse(fact: str, fix: str) -> NoReturn:
    fail(GradientError, f"check_gradients: {fact}", fix=fix)


def _refuse_wrong(report: GradientReport) -> NoReturn:
    fact = (
        f"check_gradients: {len(report.wrong)} of {len(report.comparisons)} derivatives are wrong"
    )
    fix = "mend the rule; where the function itself has a kink, move the arguments away from it"
    error = WrongGradientError(f"{message(fact, source=here(), fix=fix)}\n{report}")
    error.report = report
    raise error


# The point of differentiation.


class _Point:
    """A function at its arguments, as a function from the varied tensors to a number."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], is_wide: bool) -> None:
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self._fn, self._args = fn, args
        leaves = nest.flatten(list(args))
        self._leaves = [_as_given(leaf) for leaf in leaves]
        moved = [_is_moved(leaf) for leaf in self._leaves]
        self._places = [i for i, flag in enumerate(moved) if flag]
        if not self._places:
            _refuse("no argument is a floating tensor", "pass floating numbers to differentiate by")
        self.xs = [_wide(self._leaves[i]) if is_wide else self._leaves[i] for i in self._places]
        self.names = _names(fn, self.name, args, self._places)
        results = self._results(self.xs)
        if not results:
            _refuse(
                "the function returned no floating tensor, so it has no derivative",
                "return what is to be differentiated",
            )
        #: The narrowest dtype of the varied tensors and the results.
        self.dtype = max((x.dtype for x in (*self.xs, *results)), key=_precision)
        rng = np.random.default_rng(0)
        self._weights = [_random(rng, y) for y in results]
        self._check_repeats()

    def _results(self, xs: Sequence[Tensor]) -> list[Tensor]:
        leaves = list(self._leaves)
        for place, x in zip(self._places, xs, strict=True):
            leaves[place] = x
        value = self._fn(*nest.pack_sequence_as(list(self._args), leaves))
        tensors = [as_tensor(y) for y in nest.flatten(value) if y is not None]
        return [y for y in tensors if y.dtype.is_differentiable]

    def value(self, *xs: Tensor) -> Tensor:
        """The results, combined with weights into one real number."""
        wide = self.dtype.real
        terms = [
            cast(reduce_sum(real(conj(w) * y)), wide)
            for w, y in zip(self._weights, self._results(xs), strict=True)
        ]
        return sum(terms[1:], terms[0])

    def _check_repeats(self) -> None:
        # Values still pending would be computed only in the first call, by a program that rounds
        # differently.
        for x in (*self._leaves, *self.xs, *self._weights):
            if isinstance(x, Tensor):
                x.numpy()  # type: ignore[attr-defined]
        calls = ([y.numpy() for y in self._results(self.xs)] for _ in range(2))  # type: ignore[attr-defined]
        for first, second in zip(*calls, strict=True):
            self._check_repeated(first, second)

    def _check_repeated(self, first: np.ndarray, second: np.ndarray) -> None:
        """Rejects values that differ by more than the rounding of the largest."""
        largest = np.max(np.abs(first), initial=0.0, where=np.isfinite(first))
        limit = _ROUNDINGS * _precision(self.dtype) * largest
        is_same = np.isclose(first, second, rtol=0.0, atol=limit, equal_nan=True)
        if not np.all(is_same):
            place = tuple(np.argwhere(~is_same)[0])
            _refuse(
                f"the function returned other values when it was called again: {first[place]}, "
                f"then {second[place]}",
                "fix the random numbers that it draws, and the Variables that it assigns",
            )

    def compared(
        self, order: int, modes: Sequence[str], tolerance: float | None
    ) -> Iterator[Comparison]:
        """The comparisons of one order, in all its modes."""
        checked = {
            chain: self._differentiated(chain)
            for chain in itertools.product(modes, repeat=order - 1)
        }
        # Both modes of one function are compared with the same differences.
        differences = {
            chain: functools.cache(functools.partial(self._numeric, function))
            for chain, function in checked.items()
        }
        for chain in itertools.product(modes, repeat=order):
            analytic = self._analytic(checked[chain[1:]], chain[0])
            for place in range(len(self.xs)):
                yield self._compared(analytic, differences[chain[1:]], chain, place, tolerance)

    def _differentiated(self, chain: Sequence[str]) -> Callable[..., Tensor]:
        """The function's derivative in the modes of a chain, the last one first."""
        function = self.value
        for k, mode in enumerate(reversed(chain)):
            function = self._derivative(function, mode, k)
        return function

    def _derivative(
        self, function: Callable[..., Tensor], mode: str, seed: int
    ) -> Callable[..., Tensor]:
        """The derivative of a number in a random direction, again a number."""
        rng = np.random.default_rng(seed + 1)
        direction = [_random(rng, x) for x in self.xs]
        if mode == FORWARD:
            return lambda *xs: jvp(function, xs, direction)[1]
        slope = grad(function, range(len(self.xs)))

        def derivative(*xs: Tensor) -> Tensor:
            pairs = zip(slope(*xs), direction, strict=True)
            terms = [cast(reduce_sum(real(conj(g) * d)), self.dtype.real) for g, d in pairs]
            return sum(terms[1:], terms[0])

        return derivative

    def _compared(
        self,
        analytic: Callable[[int, tuple[int, ...], complex], float],
        numeric: Callable[[int, tuple[int, ...], complex], tuple[float, float]],
        chain: Sequence[str],
        place: int,
        tolerance: float | None,
    ) -> Comparison:
        """The largest error with respect to the elements of one tensor."""
        measured = [
            (index, unit, analytic(place, index, unit), *numeric(place, index, unit))
            for index, unit in _units(self.xs[place])
        ]
        size = max([1e-3, *(abs(v) for row in measured for v in row[2:4] if math.isfinite(v))])
        near = _TOLERANCES[self.dtype.real.name] if tolerance is None else tolerance
        head = len(chain), " over ".join(chain), self.names[place]
        rows = [
            Comparison(
                *head,
                index,
                unit == 1j,
                a,
                n,
                _distance(a, n),
                (near + min(noise / size, _NOISE)) * size,
            )
            for index, unit, a, n, noise in measured
        ]
        nothing = Comparison(*head, (), False, 0.0, 0.0, 0.0, near)
        return max(rows, key=lambda row: row.error / row.limit, default=nothing)

    def _analytic(
        self, function: Callable[..., Tensor], mode: str
    ) -> Callable[[int, tuple[int, ...], complex], float]:
        """The derivative with respect to one element, as the library computes it."""
        if mode == REVERSE:
            found = [g.numpy() for g in grad(function, range(len(self.xs)))(*self.xs)]
            return lambda place, index, unit: float(np.real(np.conj(found[place][index]) * unit))

        def along(place: int, index: tuple[int, ...], unit: complex) -> float:
            def of_one(x: Tensor) -> Tensor:
                return function(*self.xs[:place], x, *self.xs[place + 1 :])

            step = _moved(np.zeros_like(self.xs[place].numpy()), index, unit)
            return float(jvp(of_one, (self.xs[place],), (as_tensor(step),))[1])

        return along

    def _numeric(
        self, function: Callable[..., Tensor], place: int, index: tuple[int, ...], unit: complex
    ) -> tuple[float, float]:
        """The derivative with respect to one element by differences, and its uncertainty."""
        array = self.xs[place].numpy()
        step = _precision(self.dtype) ** 0.2 * max(1.0, abs(complex(array[index])))

        def at(distance: float) -> float:
            x = as_tensor(_moved(array, index, distance * unit))
            return float(function(*self.xs[:place], x, *self.xs[place + 1 :]))

        near, far = ((at(h) - at(-h)) / (2 * h) for h in (step, 2 * step))
        return (4 * near - far) / 3, abs(near - far)


def _widened_point(fn: Callable[..., Any], args: tuple[Any, ...]) -> _Point:
    """In double precision, unless the function refuses it."""
    try:
        return _Point(fn, args, is_wide=True)
    except (DTypeError, TraceError):
        return _Point(fn, args, is_wide=False)


def _as_given(leaf: Any) -> Any:
    """A leaf as passed on: a new tensor if it holds numbers that may be varied."""
    if leaf is None or isinstance(leaf, (bool, int, str)):
        return leaf
    try:
        return identity(as_tensor(leaf))
    except DTypeError:
        return leaf


def _is_moved(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_differentiable


def _wide(x: Tensor) -> Tensor:
    return identity(cast(x, complex128 if x.dtype.is_complex else float64))


def _distance(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


def _precision(dtype: DType) -> float:
    """The distance from 1 to the next number."""
    return _EPSILONS[dtype.real.name]


_EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _random(rng: np.random.Generator, x: Tensor) -> Tensor:
    """Normally distributed numbers of x's type."""
    values = rng.normal(size=x.shape)
    if x.dtype.is_complex:
        values = values + 1j * rng.normal(size=x.shape)
    return as_tensor(np.asarray(values, x.dtype.numpy_dtype))


def _units(x: Tensor) -> Iterator[tuple[tuple[int, ...], complex]]:
    """The elements of x to vary, with the directions for each."""
    size = math.prod(x.shape)
    numbers = np.arange(size)
    if size > _ELEMENTS:
        numbers = np.sort(np.random.default_rng(size).choice(size, _ELEMENTS, replace=False))
    for number in numbers:
        index = tuple(map(int, np.unravel_index(number, tuple(x.shape))))
        yield index, 1
        if x.dtype.is_complex:
            yield index, 1j


def _moved(array: np.ndarray, index: tuple[int, ...], step: complex) -> np.ndarray:
    array = np.array(array)
    array[index] += step if array.dtype.kind == "c" else step.real
    return array


def _names(
    fn: Callable[..., Any], name: str, args: tuple[Any, ...], places: Sequence[int]
) -> list[str]:
    """The tensors at `places`, by the parameter and the path to them."""
    signature = Signature(fn, name)
    _, structure = nest.flatten_structure((args, {}), none_is_leaf=True)
    names = signature.leaf_names(structure)
    return [names[place] for place in places]


__all__ = ["Comparison", "GradientReport", "WrongGradientError", "check_gradients"]

publish(__name__)
