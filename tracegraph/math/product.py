"""Products summed over axes: matmul, tensordot, and einsum."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

from tracegraph.array.arguments import (
    as_axes,
    as_axis,
    as_flag,
    as_sizes,
    known_int,
    rank_of,
    refuse,
    refuse_kind,
    refuse_mismatch,
    sizes_of,
)
from tracegraph.array.creation import eye
from tracegraph.array.joining import together
from tracegraph.array.shaping import cut, expand_dims, flattened, moved_axes, squeeze
from tracegraph.core.shapes import same_size
from tracegraph.core.types import DType, as_dtype, bool_
from tracegraph.differentiation.sparse_jacobian import SparseJacobian
from tracegraph.errors import DTypeError, Mismatch, ShapeError, SignatureError, fail, shown, were
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    broadcast,
    broadcast_shape,
    cast_to,
)
from tracegraph.ops.broadcast import BroadcastTo, Sum, zeros_of
from tracegraph.ops.contract import MATMUL, adjoint, check_inner_sizes, swap_last
from tracegraph.ops.elementwise import MUL, SELECT
from tracegraph.ops.shape import Reshape, Transpose
from tracegraph.typing import AxisPairs, DTypeLike, TensorLike


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: DTypeLike | None = None,
    grad_a: bool = False,
    grad_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """y[..., i, k] = sum_j a[..., i, j] * b[..., j, k]

    The leading axes broadcast. `transpose_a` first swaps the last two axes of `a`; `adjoint_a`
    also takes the complex conjugate; likewise for `b`.

    - `output_type`: a wider dtype of the same kind, in which products are accumulated, such as
      int32 for int8 and uint8. 8-bit and 16-bit integers require one: their sums would wrap.
    - `a_is_sparse`, `b_is_sparse`, `grad_a`, `grad_b`: hints for TensorFlow, with no effect here.

    Raises ShapeError if an operand has less than two axes or the inner sizes differ, DTypeError for
    a dtype without products or an `output_type` that cannot hold the operands' values.

    >>> tg.matmul([[1, 2], [3, 4]], [[1], [1]]).numpy()
    array([[3],
           [7]], dtype=int32)
    """
    if output_type is not None:
        a, b = _widened(a, b, as_dtype(output_type))
    if type(a) is not Tensor or type(b) is not Tensor or a.dtype is not b.dtype:
        if SparseJacobian in (type(a), type(b)):
            flags = (transpose_a, transpose_b, adjoint_a, adjoint_b)
            return _sparse_product(a, b, is_turned=any(flags))
        a, b = as_operands("matmul", a, b)
    if transpose_a or adjoint_a:
        a = _turned(a, "a", transpose_a, adjoint_a)
    if transpose_b or adjoint_b:
        b = _turned(b, "b", transpose_b, adjoint_b)
    ranks = len(sizes_of("matmul", a)), len(sizes_of("matmul", b))
    if min(ranks) == 0:
        _refuse_unfit(a, b)
    if ranks == (2, 2) or min(ranks) < 2:
        return MATMUL(a, b)
    if ranks[1] == 2:
        return _rows_times_matrix(a, b)
    return MATMUL(*with_common_batch("matmul", a, b))


def vector_product(a: Any, b: Any, output_type: DType | None = None) -> Tensor:
    """The product of matrices in the last two axes. A vector is a row on the left and a column on
    the right, and its extra axis is dropped."""
    a, b = as_operands("matmul", a, b)
    is_row, is_column = rank_of("matmul", a) == 1, rank_of("matmul", b) == 1
    _refuse_unfit(a, b)
    a, b = expand_dims(a, 0) if is_row else a, expand_dims(b, 1) if is_column else b
    product = matmul(a, b, output_type=output_type)
    dropped = [axis for axis, is_dropped in ((-2, is_row), (-1, is_column)) if is_dropped]
    return squeeze(product, dropped) if dropped else product


def _widened(a: Any, b: Any, dtype: DType) -> tuple[Tensor, Tensor]:
    """The operands in the dtype of the result. Raises DTypeError if it is narrower than theirs."""
    operands = as_tensor(a), as_tensor(b)
    for x in operands:
        is_wider = x.dtype.kind == dtype.kind and x.dtype.size < dtype.size
        is_wider = is_wider or (x.dtype.is_integer and dtype.is_floating)
        if x.dtype is not dtype and not is_wider:
            fail(
                DTypeError,
                f"matmul: the result of {x.type} was asked for in {dtype.name}, which is not wider",
                operands=[operand_text(x)],
                fix="convert the result: tg.cast(tg.matmul(a, b), dtype)",
            )
    return cast_to(operands[0], dtype), cast_to(operands[1], dtype)


def _sparse_product(a: Any, b: Any, is_turned: bool) -> Tensor:
    """The product of a sparse Jacobian with a dense factor, on either side."""
    if is_turned:
        fail(
            SignatureError,
            "matmul: a sparse Jacobian was given with a flag that transposes",
            fix="give j.T, and tg.transpose(x) of the dense factor",
        )
    return a @ b if type(a) is SparseJacobian else b.__rmatmul__(a)


def _turned(x: Tensor, letter: str, is_transposed: Any, is_adjoint: Any) -> Tensor:
    """x with its last two axes swapped; also conjugated if `is_adjoint`."""
    is_transposed = as_flag("matmul", f"transpose_{letter}", is_transposed)
    is_adjoint = as_flag("matmul", f"adjoint_{letter}", is_adjoint)
    if is_transposed and is_adjoint:
        refuse(
            "matmul",
            f"both transpose_{letter} and adjoint_{letter} are True",
            x,
            fix="give one of them: the adjoint is the transpose and the conjugate",
        )
    if rank_of("matmul", x) < 2:
        refuse("matmul", f"{x.type} is not a matrix", x, fix="use tg.linalg.matvec for vectors")
    return adjoint(x) if is_adjoint else swap_last(x)


def _rows_times_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies all rows of a by one matrix in a single product, not one per leading index."""
    _refuse_unfit(a, b)
    sizes = a.type.shape
    product = MATMUL(flattened(a, (len(sizes) - 1, 1)), b)
    return Reshape((*sizes[:-1], b.type.shape[-1]))(product)


def _refuse_unfit(a: Tensor, b: Tensor) -> None:
    """Refuses operands that do not fit, in the shapes that the user gave."""
    if min(a.ndim, b.ndim) == 0:
        fact = f"a scalar has no axis to sum over: {a.type} times {b.type}"
        refuse("matmul", fact, a, b, fix="use x * y")
    try:
        check_inner_sizes(a.type, b.type)
    except Mismatch as mismatch:
        refuse_mismatch("matmul", mismatch, a, b)


def with_common_batch(op: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices of `a` and `b` with their leading axes broadcast to a common shape."""
    lead_a, lead_b = a.type.shape[:-2], b.type.shape[:-2]
    if lead_a == lead_b:
        return a, b
    # The last two axes are given as 1, so that only the leading ones are compared.
    try:
        lead = broadcast_shape(op, *(_leading(x) for x in (a, b)))[:-2]
    except ShapeError:
        fact = f"the leading axes of {a.type} and {b.type} do not broadcast"
        refuse(op, fact, a, b, fix="give both the same leading axes, or 1 for what repeats")
    return tuple(broadcast(x, (*lead, *x.type.shape[-2:])) for x in (a, b))  # type: ignore[return-value]


def _leading(x: Tensor) -> Tensor:
    return Tensor(x.type.with_shape((*x.type.shape[:-2], 1, 1)), None)


def tensordot(a: TensorLike, b: TensorLike, axes: AxisPairs, name: str | None = None) -> Tensor:
    """The sum of products over pairs of axes; the remaining axes of a, then those of b, are kept.

    - `axes`: a number n, to pair the last n axes of a with the first n of b; or a pair of lists.

    >>> tg.tensordot([[1, 2], [3, 4]], [1, 1], axes=1).numpy()
    array([3, 7], dtype=int32)
    """
    x, y = as_operands("tensordot", a, b)
    x_axes, y_axes = _paired_axes(x, y, axes)
    for i, j in zip(x_axes, y_axes):
        if same_size(x.type.shape[i], y.type.shape[j]) is None:
            refuse(
                "tensordot",
                f"axis {i} of {x.type} and axis {j} of {y.type} differ in size",
                x,
                y,
                fix="check the pairs of axes",
            )
    return _contracted(x, y, x_axes, y_axes)


def _paired_axes(x: Tensor, y: Tensor, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ranks = rank_of("tensordot", x), rank_of("tensordot", y)
    if isinstance(axes, int) and not isinstance(axes, bool):
        if not 0 <= axes <= min(ranks):
            refuse("tensordot", f"{axes} axes of {x.type} and {y.type}", x, y, fix="use fewer axes")
        return tuple(range(ranks[0] - axes, ranks[0])), tuple(range(axes))
    pairs = axes if isinstance(axes, (list, tuple)) else ()
    if len(pairs) != 2:
        refuse("tensordot", f"the axes are {shown(axes)}", x, y, fix="give an int, or two lists")
    first, second = (as_sizes("tensordot", "axes", one) for one in pairs)
    if len(first) != len(second):
        fact = f"the axes {list(first)} and {list(second)} do not pair up"
        refuse("tensordot", fact, x, y, fix="give equally many")
    return _each_once(first, x), _each_once(second, y)


def _each_once(axes: tuple[Any, ...], x: Tensor) -> tuple[int, ...]:
    """Axes in the given order. Raises ShapeError if one is named twice."""
    as_axes("tensordot", axes, x.ndim, x)
    return tuple(as_axis("tensordot", axis, x.ndim, x) for axis in axes)


def _contracted(x: Tensor, y: Tensor, x_axes: tuple[int, ...], y_axes: tuple[int, ...]) -> Tensor:
    """The sum over pairs of axes, as a product of two matrices."""
    x_kept = tuple(k for k in range(x.ndim) if k not in x_axes)
    y_kept = tuple(k for k in range(y.ndim) if k not in y_axes)
    rows = flattened(moved_axes(x, (*x_kept, *x_axes)), (len(x_kept), len(x_axes)))
    columns = flattened(moved_axes(y, (*y_axes, *y_kept)), (len(y_axes), len(y_kept)))
    sizes = (*(x.type.shape[k] for k in x_kept), *(y.type.shape[k] for k in y_kept))
    product = MATMUL(rows, columns)
    return product if product.type.shape == sizes else Reshape(sizes)(product)


# einsum. A term is a tensor with a label for each axis.


class Term:
    """A tensor and the labels of its axes, all distinct."""

    __slots__ = ("labels", "tensor")

    def __init__(self, tensor: Tensor, labels: tuple[str, ...]) -> None:
        self.tensor = tensor
        self.labels = labels

    def size(self, label: str) -> Any:
        return self.tensor.type.shape[self.labels.index(label)]

    def ordered(self, labels: tuple[str, ...]) -> Tensor:
        """The tensor with its axes in the order of `labels`, a permutation of its own."""
        order = tuple(self.labels.index(label) for label in labels)
        return self.tensor if order == tuple(range(len(order))) else Transpose(order)(self.tensor)

    def summed(self, labels: set[str]) -> Term:
        """The term summed over some labels."""
        axes = tuple(k for k, label in enumerate(self.labels) if label in labels)
        if not axes:
            return self
        kept = tuple(label for label in self.labels if label not in labels)
        return Term(Sum(axes)(self.tensor), kept)


def einsum(equation: str, *inputs: TensorLike, name: str | None = None) -> Tensor:
    """A sum of products in Einstein notation, with one letter per axis.

    Letters that are not in the output are summed over. Without "->" the output has the letters
    that occur once, in alphabetical order. "..." stands for axes that broadcast, and must then be
    in the output too. A letter repeated within an operand takes the diagonal.
    Raises ShapeError if the letters do not fit the operands.

    >>> tg.einsum("ij,j->i", [[1, 2], [3, 4]], [1, 1]).numpy()
    array([3, 7], dtype=int32)
    >>> tg.einsum("ii", [[1, 2], [3, 4]]).numpy()
    np.int32(5)
    """
    tensors = together("einsum", list(inputs))
    subscripts, output = _parsed(equation, tensors)
    terms = [_diagonal(Term(x, labels)) for x, labels in zip(tensors, subscripts)]
    terms = _without_broadcast(equation, terms)
    while len(terms) > 1:
        i, j = _cheapest_pair(terms, output)
        x, y = terms.pop(j), terms.pop(i)
        terms.append(_product(y, x, {*output, *_labels(terms)}))
    (last,) = terms
    last = last.summed(set(last.labels) - set(output))
    return last.ordered(output)


def _parsed(equation: str, tensors: list[Tensor]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each operand and of the output, with the ellipsis expanded."""
    if not isinstance(equation, str):
        refuse_kind("einsum", "the equation is a string", equation, fix='write it as "ij,jk->ik"')
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        refuse(
            "einsum",
            f"{equation!r} has {len(parts)} operands, and {were(len(tensors))} given",
            *tensors,
            fix="separate the letters of the operands by commas",
        )
    ranks = [rank_of("einsum", x) for x in tensors]
    hidden = [rank - len(part.replace("...", "")) for rank, part in zip(ranks, parts)]
    for part, count, x in zip(parts, hidden, tensors):
        if count < 0 or (count and "..." not in part):
            refuse(
                "einsum",
                f"{part!r} does not fit {x.type}, in {equation!r}",
                *tensors,
                fix="give one letter for each axis, or ... for the rest",
            )
    width = max((n for n, part in zip(hidden, parts) if "..." in part), default=0)
    subscripts = [_expanded(equation, part, n) for part, n in zip(parts, hidden)]
    if arrow and width and "..." not in right:
        axes = "1 axis" if width == 1 else f"{width} axes"
        refuse(
            "einsum",
            f"... stands for {axes} in the operands of {equation!r}, and the output has no ...",
            *tensors,
            fix=f'keep them: "{left}->...{right}", and sum over them by tg.reduce_sum',
        )
    if arrow:
        return subscripts, _checked_output(equation, _expanded(equation, right, width), subscripts)
    counts = Counter(itertools.chain.from_iterable(subscripts))
    letters = sorted(label for label, n in counts.items() if n == 1 and len(label) == 1)
    return subscripts, (*(f".{k}" for k in reversed(range(width))), *letters)


def _expanded(equation: str, part: str, hidden: int) -> tuple[str, ...]:
    """The labels of an operand; axes of the ellipsis are numbered from the last: ".1", ".0"."""
    before, dots, after = part.partition("...")
    for letter in before + after:
        if not letter.isalpha():
            refuse("einsum", f"{letter!r} in {equation!r} is not a letter", fix="use letters")
    middle = [f".{k}" for k in reversed(range(hidden))] if dots else []
    return (*before, *middle, *after)


def _checked_output(
    equation: str, output: tuple[str, ...], subscripts: list[tuple[str, ...]]
) -> tuple[str, ...]:
    known = set(itertools.chain.from_iterable(subscripts))
    for label, count in Counter(output).items():
        if count > 1 or (len(label) == 1 and label not in known):
            fact = "stands twice in the output" if count > 1 else "is in no operand"
            refuse("einsum", f"{label!r} of {equation!r} {fact}", fix="correct the equation")
    return output


def _diagonal(term: Term) -> Term:
    """The term with distinct labels: the diagonal of axes that share one."""
    for label, count in Counter(term.labels).items():
        for _ in range(count - 1):
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            x = moved_axes(term.tensor, (first, second))
            others = tuple(b for k, b in enumerate(term.labels) if k not in (first, second))
            term = Term(_first_diagonal(x), (label, *others))
    return term


def _first_diagonal(x: Tensor) -> Tensor:
    """x[k, k, ...]"""
    n, m, *rest = x.type.shape
    if same_size(n, m) is None:
        refuse("einsum", f"a diagonal of sizes {n} and {m}", x, fix="check the repeated letter")
    if known_int(n):
        flat = Reshape((n * n, *rest))(x)
        return cut(flat, 0, 0, n * n, n + 1) if n else Reshape((0, *rest))(flat)
    is_diagonal = BroadcastTo(x.type.shape, (0, 1))(eye(n, dtype=bool_))
    return Sum((1,))(SELECT(is_diagonal, x, zeros_of(x)))


def _without_broadcast(equation: str, terms: list[Term]) -> list[Term]:
    """Drops axes of size 1 that broadcast to a larger one. Raises ShapeError on a mismatch."""
    result = []
    sizes: dict[str, Any] = {}
    for term in terms:
        for label, size in zip(term.labels, term.tensor.type.shape):
            old = sizes.get(label, 1)
            both = size if old == 1 else old if size == 1 else same_size(old, size)
            if both is None:
                refuse(
                    "einsum",
                    f"{label!r} of {equation!r} has the sizes {old} and {size}",
                    *(t.tensor for t in terms),
                    fix="check the shapes of the operands",
                )
            sizes[label] = both
    for term in terms:
        own = term.tensor.type.shape
        kept = [k for k, b in enumerate(term.labels) if not (own[k] == 1 and sizes[b] != 1)]
        if len(kept) < len(own):
            small = Reshape(tuple(own[k] for k in kept))(term.tensor)
            term = Term(small, tuple(term.labels[k] for k in kept))
        result.append(term)
    return result


def _labels(terms: list[Term]) -> set[str]:
    return set(itertools.chain.from_iterable(term.labels for term in terms))


def _cheapest_pair(terms: list[Term], output: tuple[str, ...]) -> tuple[int, int]:
    """The two terms with the smallest product; open sizes count as 32."""

    def size(pair: tuple[int, int]) -> int:
        others = [term for k, term in enumerate(terms) if k not in pair]
        needed = {*output, *_labels(others)}
        labels = {b: terms[k].size(b) for k in pair for b in terms[k].labels if b in needed}
        return math.prod(n if known_int(n) else 32 for n in labels.values())

    return min(itertools.combinations(range(len(terms)), 2), key=size)


def _product(x: Term, y: Term, needed: set[str]) -> Term:
    """x times y, summed over the labels that are no longer needed."""
    x = x.summed({b for b in x.labels if b not in needed and b not in y.labels})
    y = y.summed({b for b in y.labels if b not in needed and b not in x.labels})
    shared = [b for b in x.labels if b in y.labels]
    summed = tuple(b for b in shared if b not in needed)
    batch = tuple(b for b in shared if b in needed)
    rows = tuple(b for b in x.labels if b not in shared)
    columns = tuple(b for b in y.labels if b not in shared)
    labels = (*batch, *rows, *columns)
    if not summed:
        return Term(MUL(*(_spread(term, labels, x, y) for term in (x, y))), labels)
    counts = (*(1 for _ in batch), len(rows), len(summed))
    left = flattened(x.ordered((*batch, *rows, *summed)), counts)
    counts = (*(1 for _ in batch), len(summed), len(columns))
    right = flattened(y.ordered((*batch, *summed, *columns)), counts)
    sizes = tuple(x.size(b) if b in x.labels else y.size(b) for b in labels)
    product = MATMUL(left, right)
    return Term(product if product.type.shape == sizes else Reshape(sizes)(product), labels)


def _spread(term: Term, labels: tuple[str, ...], x: Term, y: Term) -> Tensor:
    """The term with axes for all of `labels`."""
    shape = tuple(x.size(b) if b in x.labels else y.size(b) for b in labels)
    own = tuple(b for b in labels if b in term.labels)
    tensor = term.ordered(own)
    if len(own) == len(labels):
        return tensor
    return BroadcastTo(shape, tuple(labels.index(b) for b in own))(tensor)


__all__ = ["einsum", "matmul", "tensordot"]
