"""`tg.debugging`: checks that run at top level and, at every call, in compiled functions.

A check in a function is an output of its program, so it costs next to nothing. If a check fails,
assignments before it take effect, and those after it do not.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tracegraph.array.arguments import as_count, as_list, refuse_kind
from tracegraph.boundary.tracebacks import (
    disable_traceback_filtering,
    enable_traceback_filtering,
    is_traceback_filtering_enabled,
)
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.later import opened
from tracegraph.core.shapes import same_shape
from tracegraph.core.tensorshape import TensorShape
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.effects.checks_and_prints import check
from tracegraph.errors import DTypeError, ShapeError, fact_of, fail, reason_of, refused
from tracegraph.ir import pass_observers
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.math.elementwise import logic
from tracegraph.math.elementwise.logic import is_finite
from tracegraph.math.elementwise.unary import abs as absolute
from tracegraph.math.reduction import reduce_all
from tracegraph.operands.conversion import as_operands, as_tensor
from tracegraph.state.variable import Variable
from tracegraph.typing import DTypeLike, TensorLike

if TYPE_CHECKING:
    from tracegraph.comparison import RunComparison
    from tracegraph.explanation.compiles import CompileExplanation


def _comparison(relation: str, compare: Callable[[Any, Any], Any]) -> Callable[..., None]:
    def assertion(
        x: TensorLike,
        y: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> None:
        _check_relation(assertion.__name__, relation, compare, x, y, message)

    assertion.__doc__ = _RELATION.format(relation)
    return assertion


_RELATION = """Checks that `x {} y` holds for all elements, broadcast to one shape.

Raises InvalidArgumentError (a ValueError and an AssertionError) with both values, and
`message` in front, if it does not."""


def _check_relation(
    op: str, relation: str, compare: Callable[[Any, Any], Any], x: Any, y: Any, message: str | None
) -> None:
    x, y = as_operands(op, x, y)
    text = f"{message}: " if message else ""
    check(reduce_all(compare(x, y)), f"{text}x {relation} y does not hold", (x, y))


def assert_none_equal(
    x: TensorLike,
    y: TensorLike,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    _check_relation("assert_none_equal", "!=", logic.not_equal, x, y, message)


assert_none_equal.__doc__ = _RELATION.format("!=")
assert_equal = _comparison("==", logic.equal)
assert_less = _comparison("<", logic.less)
assert_less_equal = _comparison("<=", logic.less_equal)
assert_greater = _comparison(">", logic.greater)
assert_greater_equal = _comparison(">=", logic.greater_equal)
_COMPARISONS = {
    "assert_equal": assert_equal,
    "assert_less": assert_less,
    "assert_less_equal": assert_less_equal,
    "assert_greater": assert_greater,
    "assert_greater_equal": assert_greater_equal,
}
for _name, _assertion in _COMPARISONS.items():
    _assertion.__name__ = _assertion.__qualname__ = _name


def _sign(relation: str, compare: Callable[[Any, Any], Any]) -> Callable[..., None]:
    def assertion(
        x: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> None:
        x = as_tensor(x)
        text = f"{message}: " if message else ""
        check(reduce_all(compare(x, 0)), f"{text}x {relation} 0 does not hold", (x,))

    assertion.__doc__ = f"Checks that `x {relation} 0` holds for all elements."
    return assertion


assert_positive = _sign(">", logic.greater)
assert_negative = _sign("<", logic.less)
assert_non_negative = _sign(">=", logic.greater_equal)
assert_non_positive = _sign("<=", logic.less_equal)


def assert_near(
    x: TensorLike,
    y: TensorLike,
    rtol: float | None = None,
    atol: float | None = None,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Checks that `|x - y| <= atol + rtol * |y|` for all elements.

    The tolerances default to ten times the precision of the dtype. Raises InvalidArgumentError.
    """
    x, y = as_operands("assert_near", x, y)
    default = 10 * _precision(x.dtype)
    bound = (default if atol is None else atol) + (default if rtol is None else rtol) * absolute(y)
    text = f"{message}: " if message else ""
    close = reduce_all(logic.less_equal(absolute(x - y), bound))
    check(close, f"{text}x and y are not near", (x, y))


def _precision(dtype: DType) -> float:
    return 2.0 ** -{"float16": 10, "bfloat16": 7, "float32": 23, "complex64": 23}.get(
        dtype.name, 52
    )


def Assert(
    condition: TensorLike, data: TensorLike, summarize: int | None = None, name: str | None = None
) -> None:
    """Checks that all elements of `condition` are true; the error shows `data`."""
    shown = tuple(map(as_tensor, as_list("Assert", "data", data)))
    check(reduce_all(logic.truth("Assert", condition)), "the assertion does not hold", shown)


def check_numerics(tensor: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Returns the tensor. Raises InvalidArgumentError if an element is nan or infinite."""
    x = as_tensor(tensor)
    check(reduce_all(is_finite(x)), f"{message}: a tensor holds nan or infinity", (x,))
    return x


def assert_all_finite(x: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Returns the tensor; see `check_numerics`.

    >>> tg.debugging.assert_all_finite(tg.constant([1.0, 2.0]), "weights").numpy()
    array([1., 2.], dtype=float32)
    """
    return check_numerics(x, message)


def assert_shapes(
    shapes: Sequence[tuple[TensorLike, Sequence[Any] | TensorShape]] | Mapping[Tensor, Any],
    data: object = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Checks shapes while tracing: pairs of a tensor and a tuple of sizes.

    A size is an int, or a text of one; None, -1 or ".", which match any; or a symbol such as "N",
    which stands for the same size wherever it occurs. A first entry of `...` or "*" stands for any
    number of axes. A string is a tuple of its characters, and a shape of None matches any. As in
    TensorFlow, a scalar has a single axis of size 1 here. Raises ShapeError (a ValueError), with
    `message` in front. The other arguments are accepted but have no effect.

    >>> tg.debugging.assert_shapes([(tg.ones([2, 3]), ("N", 3)), (tg.ones([2]), ("N",))])
    >>> tg.debugging.assert_shapes([(tg.ones([5, 2, 3]), (..., "N", 3)), (tg.ones([2, 2]), "NN")])
    """
    symbols: dict[str, Any] = {}
    pairs = list(shapes.items()) if isinstance(shapes, dict) else shapes
    for pair in as_list("assert_shapes", "shapes", pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            refuse_kind("assert_shapes", _PAIRS, pair, fix='give pairs: [(x, ("N", 3))]')
        if pair[1] is None:
            continue
        x = as_tensor(pair[0])
        sizes = pair[1].tolist() if isinstance(pair[1], np.ndarray) else pair[1]
        if not isinstance(sizes, (list, tuple, str, TensorShape)):
            refuse_kind("assert_shapes", _PAIRS, sizes, fix='give sizes: [(x, ("N", 3))]')
        wanted, is_inner = _wanted_sizes(tuple(sizes))
        own = x.type.shape or (1,)
        own = own[max(len(own) - len(wanted), 0) :] if is_inner else own
        if len(own) != len(wanted) or not all(map(functools.partial(_fits, symbols), own, wanted)):
            _refuse_shape(x, tuple(sizes), message)


_PAIRS = "shapes are pairs of a tensor and a tuple of sizes"


def _wanted_sizes(wanted: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """The sizes that a tensor is to have, and whether there may be other axes before them."""
    if not wanted:
        return (1,), False
    is_inner = wanted[0] is Ellipsis or wanted[0] == "*"
    rest = wanted[1:] if is_inner else wanted
    if any(size is Ellipsis or size == "*" for size in rest):
        fail(
            ShapeError,
            f'assert_shapes: {wanted} has `...` or "*" after the first size',
            fix="put it first: the sizes after it are those of the last axes",
        )
    return rest, is_inner


def _fits(symbols: dict[str, Any], size: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        if wanted == ".":
            return True
        is_number = wanted.removeprefix("-").isdecimal()
        wanted = int(wanted) if is_number else symbols.setdefault(wanted, size)
    if wanted is None or wanted == -1:
        return True
    return same_shape((size,), (wanted,)) is not None


def assert_rank(
    x: TensorLike, rank: int | Tensor, message: str | None = None, name: str | None = None
) -> None:
    """Checks the number of axes while tracing. Raises ShapeError (a ValueError)."""
    tensor = as_tensor(x)
    wanted = as_count("assert_rank", "the rank", rank)
    if tensor.ndim != wanted:
        _refuse_shape(tensor, f"rank {wanted}", message)


def assert_rank_at_least(
    x: TensorLike, rank: int | Tensor, message: str | None = None, name: str | None = None
) -> None:
    """Checks while tracing that there are `rank` axes or more. Raises ShapeError."""
    tensor = as_tensor(x)
    wanted = as_count("assert_rank_at_least", "the rank", rank)
    if tensor.ndim < wanted:
        _refuse_shape(tensor, f"of rank {wanted} or more", message)


def assert_rank_in(
    x: TensorLike, ranks: Sequence[int], message: str | None = None, name: str | None = None
) -> None:
    """Checks while tracing that the number of axes is one of `ranks`. Raises ShapeError."""
    tensor = as_tensor(x)
    given = as_list("assert_rank_in", "the ranks", ranks)
    wanted = [as_count("assert_rank_in", "a rank", rank) for rank in given]
    if tensor.ndim not in wanted:
        _refuse_shape(tensor, f"of a rank in {wanted}", message)


def assert_scalar(
    tensor: TensorLike, message: str | None = None, name: str | None = None
) -> Tensor:
    """Returns the tensor, after checking while tracing that it is a scalar. Raises ShapeError."""
    x = as_tensor(tensor)
    if x.ndim:
        _refuse_shape(x, "a scalar", message)
    return x


def _refuse_shape(x: Any, wanted: Any, message: str | None) -> None:
    fail(
        ShapeError,
        f"{message}: {x.type} does not fit {wanted}" if message else f"{x.type} is not {wanted}",
        operands=[operand_text(x)],
        fix="reshape the tensor, or correct the expectation",
    )


def assert_type(
    tensor: TensorLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None
) -> None:
    """Checks the dtype while tracing. Raises DTypeError (a TypeError)."""
    x = as_tensor(tensor)
    wanted = as_dtype(tf_type)
    if x.dtype is not wanted:
        fail(
            DTypeError,
            f"{message or 'assert_type'}: {x.dtype.name} is not {wanted.name}",
            operands=[operand_text(x)],
            fix=f"convert it: tg.cast(x, tg.{wanted.name}), or correct the expectation",
        )


def assert_integer(x: TensorLike, message: str | None = None, name: str | None = None) -> None:
    """Checks while tracing that the dtype is an integer one. Raises DTypeError (a TypeError)."""
    tensor = as_tensor(x)
    if not tensor.dtype.is_integer:
        _refuse_dtype(
            tensor, f"{message or 'assert_integer'}: {tensor.dtype.name} is not an integer"
        )


def assert_proper_iterable(values: Iterable[Any]) -> None:
    """Checks that `values` is an iterable of several things, such as a list of tensors. Tensors,
    arrays and strings are rejected, though Python can iterate over them. Raises DTypeError (a
    TypeError).

    >>> tg.debugging.assert_proper_iterable([tg.ones([2]), 1.0])
    """
    is_one = isinstance(values, (Tensor, Variable, np.ndarray, np.generic, str, bytes))
    if is_one or not isinstance(values, Iterable):
        rule = "values are an iterable of several, such as a list"
        refuse_kind("assert_proper_iterable", rule, values, fix="put it in a list")


def assert_same_float_dtype(
    tensors: Iterable[TensorLike] | None = None, dtype: DTypeLike | None = None
) -> DType:
    """The floating dtype shared by all the tensors and `dtype`; float32 if there are neither.
    Raises DTypeError (a TypeError).

    >>> tg.debugging.assert_same_float_dtype([tg.ones([2]), tg.zeros([3])])
    tg.float32
    """
    given = [] if tensors is None else as_list("assert_same_float_dtype", "tensors", tensors)
    found = [as_tensor(x) for x in given if x is not None]
    wanted = as_dtype(dtype) if dtype is not None else found[0].dtype if found else float32
    if not wanted.is_floating:
        _refuse_dtype(None, f"assert_same_float_dtype: {wanted.name} is not a floating type")
    for x in found:
        if x.dtype is not wanted:
            fact = f"assert_same_float_dtype: {x.dtype.name} is not {wanted.name}"
            _refuse_dtype(x, fact, wanted)
    return wanted


def _refuse_dtype(x: Any, fact: str, wanted: DType | None = None) -> NoReturn:
    target = "the type that is expected" if wanted is None else f"tg.{wanted.name}"
    operands = [] if x is None else [operand_text(x)]
    fix = f"convert it to {target} with tg.cast, or correct the expectation"
    fail(DTypeError, fact, operands=operands, fix=fix)


# Comparing runs.


def compare(
    f: Callable[..., Any],
    g: Callable[..., Any] | DTypeLike,
    *args: Any,
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> RunComparison:
    """Compares two versions of a function on the same arguments, down to the first node at which
    they diverge.

    `f` and `g` are functions of tensors, decorated or not, such as an old and a new version. Or `g`
    is a dtype, as in `compare(f, tg.float64, x)`, which compares f with itself computed in that
    dtype instead of float32. Random numbers are those of float32 there too.

    Results are always compared: what the functions return, by structure, shapes, data types (but
    for those that `g` replaces) and values, and the new values of Variables. A Variable that both
    assign is paired with itself, others in their order. Nodes that depend on an argument or a
    Variable are paired too, in their order, by op and shapes, also inside of the functions that are
    called; a node that has no counterpart is left out. Where branches or loops differ, both are run
    step by step, and the first node inside is named, with its step. Values differ where
    `|x - y| > atol + rtol * |y|`: by default more than 1e-4 of the value and 1e-6. Two nan are
    equal. The graphs run as they are: Variables have their values of now, and nothing is assigned.

    Returns an object with `agrees`: whether no results and no paired nodes differ; `first`: the
    first pair of nodes that differs, or None; and `results`: a row for each result that differs,
    with its `name` and the `largest` difference. Printing it shows all of this. Raises TraceError
    (a TypeError) for functions with effects, DTypeError (a TypeError) if `g` is neither a function
    nor a floating dtype, ValueError for a tolerance below 0.

    >>> def exact(x):
    ...     return tg.math.log1p(x) * 2.0
    >>> def rough(x):
    ...     y = tg.math.log(x + 1.0) * 2.0
    ...     return y
    >>> tg.debugging.compare(exact, exact, tg.constant([1e-3])).agrees
    True
    >>> tg.debugging.compare(exact, rough, tg.constant([1e-5]), atol=0.0).first.op
    'mul'
    >>> found = tg.debugging.compare(lambda x: x, lambda x: x + 5.0, tg.ones([3]))
    >>> found.agrees, found.first, found.results[0].name, found.results[0].largest
    (False, None, 'the result', 5.0)
    """
    comparing = opened("tracegraph.comparison")
    return comparing.compare(f, g, *args, rtol=rtol, atol=atol)


def check_determinism(f: Callable[..., Any], *args: Any, runs: int = 3) -> None:
    """Checks that `f(*args)` gives the same bits in several runs. Each run starts from the same
    values of the Variables, which are restored afterwards. Python runs each time, too, unless f is
    a `tg.function`.

    Raises InvalidArgumentError that names the result and, if the function has no effects, the
    first node that differs; ValueError for fewer than 2 `runs`.

    >>> tg.debugging.check_determinism(lambda x: tg.reduce_sum(x), tg.ones([100]))
    """
    opened("tracegraph.comparison").check_determinism(f, *args, runs=runs)


def explain_compiles() -> CompileExplanation:
    """Lists the programs that this process has compiled, including those of undecorated loops.

    Programs with the same name and line form one row: how many, their total seconds, what differed,
    and a suggested fix; the most expensive first. The result has `rows` and prints as a table. It
    covers the last 1,000 programs.

    >>> _ = (tg.ones([3]) * 2.0).numpy()
    >>> len(tg.debugging.explain_compiles().rows) > 0
    True
    """
    return opened("tracegraph.explanation.compiles").explanation()


# Dumps.


class GraphDump:
    """Writes each graph that passes a stage to its own file; created by `dump_graphs`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._lock = threading.RLock()
        #: The last text of each graph, by name, and the file that has it.
        self._last: dict[str, tuple[str, str]] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._numbers = itertools.count(_highest_number(self.directory) + 1)
        except outside_interrupts(OSError) as error:
            fact = f"dump_graphs: {self.directory} cannot be a folder for graphs"
            refused(error, fact, "name a directory that can be made and written to")
        pass_observers.observers.append(self._write)

    def __repr__(self) -> str:
        return f"<GraphDump to {str(self.directory)!r}>"

    def stop(self) -> None:
        """Stops writing: later graphs are not written."""
        if self._write in pass_observers.observers:
            pass_observers.observers.remove(self._write)

    def __enter__(self) -> GraphDump:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _write(self, stage: str, graph: Graph, text: str | None) -> None:
        suffix = "tgir" if text is None else "txt"
        content = graph.as_text(locations=True) if text is None else text
        name = f"{re.sub('[^A-Za-z0-9_.]', '_', graph.name)[:80]}.{stage}"
        with self._lock:
            last, file = self._last.get(graph.name, ("", ""))
            try:
                if stage in pass_observers.MAY_KEEP and content == last:
                    self._create(f"{name}.unchanged", f"as in {file}")
                    return
                file = self._create(f"{name}.{suffix}", content)
            except outside_interrupts(OSError) as error:
                self._give_up(error)
                return
            if text is None:
                self._last[graph.name] = content, file

    def _create(self, name: str, content: str) -> str:
        """Writes a new file under the next free number, and returns its name; another process may
        write to the directory too."""
        while True:
            file = f"{next(self._numbers):04}-{name}"
            try:
                with open(self.directory / file, "x", encoding="utf-8") as created:
                    created.write(f"{content}\n")
            except FileExistsError:
                continue
            return file

    def _give_up(self, error: OSError) -> None:
        """Stops writing with a warning; the program goes on, for example when a disk is full."""
        self.stop()
        warnings.warn(
            f"no more graphs are written to {self.directory}: {reason_of(error)}",
            RuntimeWarning,
            stacklevel=2,
        )


def _highest_number(directory: Path) -> int:
    """The highest number among the files of a directory; 0 where there is none."""
    found = (re.match(r"(\d+)-", path.name) for path in directory.iterdir())
    return max((int(match[1]) for match in found if match), default=0)


def dump_graphs(directory: str | os.PathLike[str]) -> GraphDump:
    """Writes every graph created from now on to `directory`, one file per pass.

    Files are numbered in the order of the passes, after existing files, and named by function and
    stage: `traced` for a function; `forward`, `backward`, `tangents`, `derivative`, `transposed`
    and `vectorised` for graphs derived from it, `derived` for a gradient at top level; then
    `shared` after algebraic simplification of single nodes and common subexpression elimination,
    `pruned` after dead-code elimination, and `checked` with `check_numerics`; `specialised` for
    known sizes; `stablehlo` and `optimized_hlo` for XLA's input and output, with the user's lines
    in the metadata. A pass that left a graph unchanged has a file `.unchanged`, which names the
    previous one. Compiling takes longer meanwhile.

    Call `.stop()`, or use it in a `with` block, to stop. The environment variable `TRACEGRAPH_DUMP`
    names a directory from the start. Raises OSError if the directory cannot be created; if a file
    cannot be written, dumping stops with a warning.

    >>> with tg.debugging.dump_graphs("dump") as dump:
    ...     _ = tg.function(lambda x: tg.sin(x) + tg.sin(x))(1.0)
    >>> for path in sorted(dump.directory.iterdir()):
    ...     print(path.name)
    0001-lambda_.traced.tgir
    0002-lambda_.shared.tgir
    0003-lambda_.pruned.unchanged
    0004-lambda_.specialised.unchanged
    0005-lambda_.stablehlo.txt
    0006-lambda_.optimized_hlo.txt
    """
    if not isinstance(directory, (str, os.PathLike)):
        rule = "directory is a path"
        refuse_kind("dump_graphs", rule, directory, fix='give a string, such as "dump"')
    return GraphDump(directory)


def _dump_from_the_start() -> None:
    """Obeys `TRACEGRAPH_DUMP`. Failing to write dumps does not stop the program."""
    directory = os.environ.get("TRACEGRAPH_DUMP")
    try:
        if directory:
            dump_graphs(directory)
    except OSError as error:
        warnings.warn(
            f"TRACEGRAPH_DUMP: {fact_of(error).removeprefix('dump_graphs: ')}; none are written",
            RuntimeWarning,
            stacklevel=2,
        )


_dump_from_the_start()


__all__ = [
    *("assert_all_finite", "assert_integer", "assert_rank_at_least", "assert_rank_in"),
    *("assert_proper_iterable", "assert_same_float_dtype", "assert_scalar"),
    *("GraphDump", "assert_none_equal", "dump_graphs"),
    *("check_determinism", "compare", "explain_compiles"),
    "disable_traceback_filtering",
    "enable_traceback_filtering",
    "is_traceback_filtering_enabled",
    *("Assert", "assert_near", "assert_negative", "assert_non_negative"),
    *("assert_non_positive", "assert_positive", "assert_rank", "assert_shapes", "assert_type"),
    *("check_numerics", *_COMPARISONS),
]
