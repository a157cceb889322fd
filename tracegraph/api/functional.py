"""Transformations of functions: `tg.grad`, `tg.jacobian`, `tg.vmap` and the like, and loops.

They take and return functions of structures, and are built on the tape, the accumulator and the
parallel loop, with the same rules.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, overload

import numpy as np

from tracegraph import nest
from tracegraph.array.arguments import as_axis, as_count, rank_of
from tracegraph.array.creation import identity
from tracegraph.autograph.scope import as_iteration
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.shapes import same_size
from tracegraph.core.types import int32
from tracegraph.differentiation.accumulator import ForwardAccumulator, tangent_of
from tracegraph.differentiation.pfor import parallel_for
from tracegraph.differentiation.tape import GradientTape, structure_of
from tracegraph.eager.tensor_methods import BOOL, HOST_CALL
from tracegraph.errors import (
    DTypeError,
    GradientError,
    ShapeError,
    TraceError,
    fail,
    kind_of,
    shown,
)
from tracegraph.functions.function import Parameters, Result
from tracegraph.ir.builder import operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.operands.flags import as_flag
from tracegraph.ops.constant import Iota
from tracegraph.ops.shape import Reshape, Transpose
from tracegraph.state.variable import Variable
from tracegraph.typing import Leaf, Nest, Positional, Structure, TensorLike

if TYPE_CHECKING:
    from typing import ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

    Element = TypeVar("Element")
    #: An axis, or None; one for all arguments, or one for each.
    InAxes: TypeAlias = int | Sequence[int | None] | None
    Rest = ParamSpec("Rest")
    Output = TypeVar("Output", covariant=True)

    class OfTensor(Protocol[Rest, Output]):
        """A function of what becomes a tensor, and of more."""

        def __call__(
            self, x: TensorLike, /, *more: Rest.args, **keywords: Rest.kwargs
        ) -> Output: ...

    # To type checkers, the parameters of a lambda are tensors, and a function of several tensors
    # may be called with others by name. A function of one is named twice, for mypy: it does not
    # see in `grad(grad(lambda x: x))` that the lambda has no other parameters.
    One: TypeAlias = Callable[Concatenate[Tensor, Rest], Output]
    Two: TypeAlias = Callable[[Tensor, Tensor], Output]
    Three: TypeAlias = Callable[[Tensor, Tensor, Tensor], Output]

    class _DenseOptions(TypedDict, total=False):
        """Those of a Jacobian that is a tensor."""

        mode: str | None
        chunk_size: int | None
        sparse: Literal[False]

# Loops.


@api_boundary
def pfor(fn: Callable[[Tensor], Result], n: int | Tensor) -> Result:
    """Computes fn(0), ..., fn(n - 1) in parallel, and stacks the results along a new first axis.

    - `fn`: a function of the iteration number, an int32 scalar, that returns a structure of
      tensors. It may use any other tensors; values that do not depend on the iteration are computed
      once. Random numbers differ between iterations.
    - `n`: an integer that is known while tracing, or a symbolic size.

    Raises ValueError if `fn` assigns a Variable, and LookupError, naming the op and its line, for
    an op that cannot be vectorized over iterations.

    >>> tg.pfor(lambda i: i * i, 4).numpy()
    array([0, 1, 4, 9], dtype=int32)
    """
    _check_callable("pfor", fn)
    function = as_iteration("pfor", fn)
    count = as_count("pfor", "the number of iterations", n)
    return parallel_for(lambda elements: function(elements[0]), [Iota(count, int32)()], count)


@overload
def vectorized_map(
    fn: Callable[[Tensor], Result],
    elems: Leaf,
    fallback_to_while_loop: bool = ...,
    warn: bool = ...,
) -> Result: ...
@overload
def vectorized_map(
    fn: Callable[[Element], Result],
    elems: Element,
    fallback_to_while_loop: bool = ...,
    warn: bool = ...,
) -> Result: ...
@overload
def vectorized_map(
    fn: Callable[[Any], Result],
    elems: Structure,
    fallback_to_while_loop: bool = ...,
    warn: bool = ...,
) -> Result: ...
@api_boundary
def vectorized_map(
    fn: Callable[[Any], Result],
    elems: Any,
    fallback_to_while_loop: bool = True,
    warn: bool = True,
) -> Result:
    """Applies fn to each element along the first axis of `elems`, in parallel.

    - `fn`: a function of one element: the structure of `elems`, with each tensor lacking its first
      axis. Its results are stacked along a new first axis.
    - `elems`: a tensor or a nested structure of them. Their first sizes are equal, or 1 for values
      shared by all iterations, as Python numbers are.
    - `fallback_to_while_loop`, `warn`: accepted; there is no fallback to a loop.

    Raises ValueError for tensors without axes and for first sizes that differ; see `tg.pfor` for
    what `fn` may do.

    >>> x = tg.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> tg.vectorized_map(lambda row: tg.reduce_sum(row * row), x).numpy()
    array([ 5., 25.], dtype=float32)
    """
    _check_callable("vectorized_map", fn)
    function = as_iteration("vectorized_map", fn)
    leaves = nest.flatten(elems)
    tensors = {k: as_tensor(leaf) for k, leaf in enumerate(leaves) if not _is_plain(leaf)}
    count = _common_size("vectorized_map", list(tensors.values()))
    batched = [k for k, x in tensors.items() if count == 1 or x.type.shape[0] != 1]
    shared = {k: Reshape(x.type.shape[1:])(x) for k, x in tensors.items() if k not in batched}

    def iteration(elements: list[Tensor]) -> Any:
        own = {**shared, **dict(zip(batched, elements, strict=True))}
        values = [own.get(k, leaf) for k, leaf in enumerate(leaves)]
        return function(nest.pack_sequence_as(elems, values))

    return parallel_for(iteration, [tensors[k] for k in batched], count, "vectorized_map")


@overload
def vmap(
    fn: Three[Output], in_axes: InAxes = ..., out_axes: int = ...
) -> OfTensor[..., Output]: ...
@overload
def vmap(fn: Two[Output], in_axes: InAxes = ..., out_axes: int = ...) -> OfTensor[..., Output]: ...
@overload
def vmap(
    fn: One[Rest, Output], in_axes: InAxes = ..., out_axes: int = ...
) -> OfTensor[Rest, Output]: ...
@overload
def vmap(
    fn: Callable[[Tensor], Output], in_axes: InAxes = ..., out_axes: int = ...
) -> OfTensor[[], Output]: ...
@overload
def vmap(
    fn: Callable[Parameters, Result], in_axes: InAxes = ..., out_axes: int = ...
) -> Callable[Parameters, Result]: ...
@api_boundary
def vmap(fn: Callable[..., Any], in_axes: InAxes = 0, out_axes: int = 0) -> Callable[..., Any]:
    """Vectorizes `fn` over an axis of its arguments.

    - `in_axes`: the axis of every tensor to map over, or None for arguments shared by all calls:
      one value for all arguments, or a sequence with one per argument, which applies to all tensors
      of its structure.
    - `out_axes`: where the new axis of the results goes.

    Keyword arguments are mapped over their first axis. Raises ValueError if the sizes along the
    mapped axes differ; see `tg.pfor` for what `fn` may do.

    >>> dot = tg.vmap(lambda x, y: tg.reduce_sum(x * y), in_axes=(0, None))
    >>> dot(tg.constant([[1.0, 0.0], [0.0, 1.0]]), tg.constant([3.0, 4.0])).numpy()
    array([3., 4.], dtype=float32)
    """
    _check_callable("vmap", fn)

    @api_boundary
    @functools.wraps(fn)
    def mapped(*args: Any, **keywords: Any) -> Any:
        function = as_iteration("vmap", fn)
        given = [*args, keywords]
        axes = [*_argument_axes(in_axes, args), 0]
        leaves = nest.flatten(given)
        spread = [axis for axis, arg in zip(axes, given, strict=True) for _ in nest.flatten(arg)]
        moved = {
            k: _with_first_axis(as_tensor(leaf), axis)
            for k, (leaf, axis) in enumerate(zip(leaves, spread, strict=True))
            if axis is not None and leaf is not None
        }
        count = _common_size("vmap", list(moved.values()), broadcasts=False)

        def iteration(elements: list[Tensor]) -> Any:
            own = dict(zip(moved, elements, strict=True))
            values = [own.get(k, leaf) for k, leaf in enumerate(leaves)]
            *positional, named = nest.pack_sequence_as(given, values)
            return function(*positional, **named)

        found = parallel_for(iteration, list(moved.values()), count, "vmap")
        return nest.map_structure(
            lambda y: None if y is None else _with_axis_at(y, out_axes), found
        )

    return mapped


def _is_plain(leaf: Any) -> bool:
    """Whether a leaf is shared by all iterations."""
    return leaf is None or isinstance(leaf, (bool, int, float, complex))


def _argument_axes(in_axes: Any, args: tuple[Any, ...]) -> list[Any]:
    if not isinstance(in_axes, (list, tuple)):
        return [in_axes] * len(args)
    if len(in_axes) != len(args):
        fail(
            ShapeError,
            f"vmap: in_axes has {len(in_axes)} entries, and {len(args)} arguments were given",
            fix="give one axis for each argument, and None for an argument that all calls share",
        )
    return list(in_axes)


def _with_first_axis(x: Tensor, axis: Any) -> Tensor:
    rank = rank_of("vmap", x)
    place = as_axis("vmap", axis, rank, x)
    return Transpose((place, *(k for k in range(rank) if k != place)))(x)


def _with_axis_at(y: Tensor, axis: int) -> Tensor:
    rank = len(y.type.shape)
    place = as_axis("vmap", axis, rank, y)
    perm = list(range(1, rank))
    perm.insert(place, 0)
    return Transpose(tuple(perm))(y)


def _common_size(op: str, tensors: Sequence[Tensor], broadcasts: bool = True) -> Any:
    """The common first size of the tensors; if it `broadcasts`, 1 matches any size."""
    found: Tensor | None = None
    for x in tensors:
        if rank_of(op, x) == 0:
            fail(
                ShapeError,
                f"{op}: an operand is {x.type}, and has no first axis to map over",
                operands=[operand_text(x)],
                fix="use the tensor in the function without passing it, or give it an axis",
            )
        if found is None or (broadcasts and found.type.shape[0] == 1):
            found = x
        elif (
            not (broadcasts and x.type.shape[0] == 1)
            and same_size(x.type.shape[0], found.type.shape[0]) is None
        ):
            fail(
                ShapeError,
                f"{op}: the first sizes differ: {found.type} and {x.type}",
                operands=[operand_text(found), operand_text(x)],
                fix="pass tensors with equally many elements along their first axis",
            )
    if found is None:
        fail(ShapeError, f"{op}: there is no tensor to map over", fix="pass at least one tensor")
    return found.type.shape[0]


# Derivatives.


class _Whole:
    """Records a function that is differentiated as a whole, so nothing may bypass the record.

    A tape lets values go to NumPy, and then its gradient is with respect to the numbers that came
    back: the derivative would silently be that of another function.
    """

    def leave(self, tensor: Tensor, how: str) -> None:
        if how not in (BOOL, HOST_CALL) and self.depends_on([tensor]):  # type: ignore[attr-defined]
            fail(
                TraceError,
                f"{how} needs the value of a tensor {tensor.type} inside a function that is "
                "differentiated: the derivative would miss what is computed from it",
                operands=[operand_text(tensor)],
                fix="compute with tensors, or say that it is meant: tg.stop_gradient(x).numpy()",
            )
        super().leave(tensor, how)  # type: ignore[misc]


class _Tape(_Whole, GradientTape):
    """The tape for a function's own arguments: anything else it reads is constant."""

    def __init__(self, persistent: bool = False) -> None:
        super().__init__(persistent, watch_accessed_variables=False)


class _Accumulator(_Whole, ForwardAccumulator):
    """The accumulator for a function's own arguments."""


@overload
def value_and_grad(
    fn: Three[Tensor], argnums: int = ..., has_aux: Literal[False] = ...
) -> OfTensor[..., tuple[Tensor, Tensor]]: ...
@overload
def value_and_grad(
    fn: Two[Tensor], argnums: int = ..., has_aux: Literal[False] = ...
) -> OfTensor[..., tuple[Tensor, Tensor]]: ...
@overload
def value_and_grad(
    fn: Three[Tensor], argnums: Sequence[int], has_aux: Literal[False] = ...
) -> OfTensor[..., tuple[Tensor, tuple[Tensor, ...]]]: ...
@overload
def value_and_grad(
    fn: Two[Tensor], argnums: Sequence[int], has_aux: Literal[False] = ...
) -> OfTensor[..., tuple[Tensor, tuple[Tensor, ...]]]: ...
@overload
def value_and_grad(
    fn: One[Rest, Tensor], argnums: Literal[0] = ..., has_aux: Literal[False] = ...
) -> OfTensor[Rest, tuple[Tensor, Tensor]]: ...
@overload
def value_and_grad(
    fn: Callable[[Tensor], Tensor], argnums: Literal[0] = ..., has_aux: Literal[False] = ...
) -> OfTensor[[], tuple[Tensor, Tensor]]: ...
@overload
def value_and_grad(
    fn: Callable[Parameters, Any], argnums: int | Sequence[int] = ..., has_aux: bool = ...
) -> Callable[Parameters, tuple[Any, Any]]: ...
@api_boundary
def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns fn's result, a floating scalar, and its gradient.

    The gradient is with respect to the argument at position `argnums`, which may be any structure;
    for a sequence of positions it is a tuple. It is zero for tensors on which the result does not
    depend. With `has_aux`, fn returns `(result, aux)`, and so does the new function in place of the
    result.

    Raises GradientError (a ValueError) unless the result is one floating scalar, and TypeError for
    arguments that cannot be differentiated.

    >>> value, slope = tg.value_and_grad(lambda x: x**2)(3.0)
    >>> float(value), float(slope)
    (9.0, 6.0)
    """
    _check_differentiated("value_and_grad", fn, argnums)
    as_flag("value_and_grad", "has_aux", has_aux)

    @api_boundary
    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return _value_and_slope(fn, *_with_tensors(args, argnums), kwargs, has_aux)

    return wrapped


def _value_and_slope(
    fn: Callable[..., Any], args: Any, sources: Any, kwargs: dict[str, Any], has_aux: bool = False
) -> tuple[Any, Any]:
    """fn's result, and its gradient with respect to the `sources` among its arguments."""
    with _Tape() as tape:
        tape.watch(_tensors(sources))
        value = fn(*args, **kwargs)
    y = _scalar(_first(value) if has_aux else value, has_aux)
    found = tape.gradient(y, _tensors(sources), unconnected_gradients="zero")
    return value, _packed_like(sources, found)


@overload
def grad(
    fn: Three[Tensor], argnums: int = ..., has_aux: Literal[False] = ...
) -> OfTensor[..., Tensor]: ...
@overload
def grad(
    fn: Two[Tensor], argnums: int = ..., has_aux: Literal[False] = ...
) -> OfTensor[..., Tensor]: ...
@overload
def grad(
    fn: Three[Tensor], argnums: Sequence[int], has_aux: Literal[False] = ...
) -> OfTensor[..., tuple[Tensor, ...]]: ...
@overload
def grad(
    fn: Two[Tensor], argnums: Sequence[int], has_aux: Literal[False] = ...
) -> OfTensor[..., tuple[Tensor, ...]]: ...
@overload
def grad(
    fn: One[Rest, Tensor], argnums: Literal[0] = ..., has_aux: Literal[False] = ...
) -> OfTensor[Rest, Tensor]: ...
@overload
def grad(
    fn: Callable[[Tensor], Tensor], argnums: Literal[0] = ..., has_aux: Literal[False] = ...
) -> OfTensor[[], Tensor]: ...
@overload
def grad(
    fn: Callable[Parameters, Any], argnums: int | Sequence[int] = ..., has_aux: bool = ...
) -> Callable[Parameters, Any]: ...
@api_boundary
def grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of fn's result; see `tg.value_and_grad`.

    With `has_aux`, fn returns `(result, aux)`, and the new function `(gradient, aux)`.

    >>> float(tg.grad(tg.grad(tg.sin))(0.0))
    -0.0
    """
    _check_differentiated("grad", fn, argnums)
    both = value_and_grad(fn, argnums, has_aux)

    @api_boundary
    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapped


@overload
def jacobian(
    fn: Three[Tensor], argnums: int = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[..., Tensor]: ...
@overload
def jacobian(
    fn: Two[Tensor], argnums: int = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[..., Tensor]: ...
@overload
def jacobian(
    fn: Three[Tensor], argnums: Sequence[int], **options: Unpack[_DenseOptions]
) -> OfTensor[..., tuple[Tensor, ...]]: ...
@overload
def jacobian(
    fn: Two[Tensor], argnums: Sequence[int], **options: Unpack[_DenseOptions]
) -> OfTensor[..., tuple[Tensor, ...]]: ...
@overload
def jacobian(
    fn: One[Rest, Tensor], argnums: Literal[0] = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[Rest, Tensor]: ...
@overload
def jacobian(
    fn: Callable[[Tensor], Tensor], argnums: Literal[0] = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[[], Tensor]: ...
@overload
def jacobian(
    fn: Callable[Parameters, Any],
    argnums: int | Sequence[int] = ...,
    mode: str | None = ...,
    chunk_size: int | None = ...,
    sparse: bool = ...,
) -> Callable[Parameters, Any]: ...
@api_boundary
def jacobian(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    mode: str | None = None,
    chunk_size: int | None = None,
    sparse: bool = False,
) -> Callable[..., Any]:
    """A function that returns the Jacobian of fn's result, which may have any structure.

    The Jacobian has the structure of the result. In place of each of its tensors it has the
    structure of the argument, whose tensors have the shape of the result followed by that of the
    argument; with `sparse` they are `tg.SparseJacobian`s. The options are those of
    `GradientTape.jacobian`.

    >>> tg.jacobian(lambda x: x * x)(tg.constant([1.0, 2.0])).numpy()
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    _check_differentiated("jacobian", fn, argnums)
    as_flag("jacobian", "sparse", sparse)

    @api_boundary
    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, sources = _with_tensors(args, argnums)
        with _Tape(persistent=True) as tape:
            tape.watch(_tensors(sources))
            value = fn(*args, **kwargs)

        def of(y: Any) -> Any:
            if y is None:
                return None
            options = {"chunk_size": chunk_size, "mode": mode, "sparse": sparse}
            found = tape.jacobian(as_tensor(y), _tensors(sources), "zero", **options)
            return _packed_like(sources, found)

        return nest.map_structure(of, value)

    return wrapped


@overload
def hessian(
    fn: Three[Tensor], argnums: int = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[..., Tensor]: ...
@overload
def hessian(
    fn: Two[Tensor], argnums: int = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[..., Tensor]: ...
@overload
def hessian(
    fn: Three[Tensor], argnums: Sequence[int], **options: Unpack[_DenseOptions]
) -> OfTensor[..., tuple[tuple[Tensor, ...], ...]]: ...
@overload
def hessian(
    fn: Two[Tensor], argnums: Sequence[int], **options: Unpack[_DenseOptions]
) -> OfTensor[..., tuple[tuple[Tensor, ...], ...]]: ...
@overload
def hessian(
    fn: One[Rest, Tensor], argnums: Literal[0] = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[Rest, Tensor]: ...
@overload
def hessian(
    fn: Callable[[Tensor], Tensor], argnums: Literal[0] = ..., **options: Unpack[_DenseOptions]
) -> OfTensor[[], Tensor]: ...
@overload
def hessian(
    fn: Callable[Parameters, Any],
    argnums: int | Sequence[int] = ...,
    mode: str | None = ...,
    chunk_size: int | None = ...,
    sparse: bool = ...,
) -> Callable[Parameters, Any]: ...
@api_boundary
def hessian(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    mode: str | None = None,
    chunk_size: int | None = None,
    sparse: bool = False,
) -> Callable[..., Any]:
    """A function that returns the Hessian of fn's result, a floating scalar.

    The options are those of `tg.jacobian`, applied to the gradient. A sparse Hessian is known to be
    symmetric, which saves products.

    >>> tg.hessian(lambda x: x[0] ** 2 * x[1])(tg.constant([2.0, 3.0])).numpy()
    array([[6., 4.],
           [4., 0.]], dtype=float32)
    """
    _check_differentiated("hessian", fn, argnums)

    @api_boundary
    @functools.wraps(fn)
    def slope(*args: Any, **kwargs: Any) -> Any:
        # With the very tensors of the Jacobian: only then is the symmetry detected.
        return _value_and_slope(fn, args, _sources_among(args, argnums), kwargs)[1]

    return jacobian(slope, argnums, mode, chunk_size, sparse)


@api_boundary
def vjp(fn: Positional[Result], *primals: Nest) -> tuple[Result, Callable[[Any], tuple[Any, ...]]]:
    """Returns fn(*primals), and a function from a cotangent of the result to those of the primals.

    The cotangent has the structure of the result. The function returns a tuple with one entry per
    primal, zero for tensors on which the result does not depend, and None for integer tensors. It
    may be called any number of times.

    >>> y, pull = tg.vjp(lambda x, y: x * y, 3.0, 4.0)
    >>> [float(g) for g in pull(1.0)]
    [4.0, 3.0]
    """
    _check_callable("vjp", fn)
    primals, sources = _with_primals(primals)
    with _Tape(persistent=True) as tape:
        tape.watch(_tensors(sources))
        target: Any = fn(*primals)
    value: Result = target

    @api_boundary
    def pull(cotangent: Any) -> tuple[Any, ...]:
        if cotangent is not None:
            cotangent = _cotangent_like(value, cotangent)
        found = tape.gradient(target, _tensors(sources), cotangent, unconnected_gradients="zero")
        return _packed_like(sources, found)

    return value, pull


@api_boundary
def jvp(
    fn: Positional[Result], primals: Sequence[Nest], tangents: Sequence[Nest]
) -> tuple[Result, Result]:
    """Returns fn(*primals) and its derivative in the direction `tangents`, in the same structure.

    - `primals`: a sequence of arguments, of any structure; `tangents`: the same, with a tangent for
      each number and floating tensor, and None, or anything, for the others.

    The tangent is zero for results that do not depend on the primals.

    >>> y, slope = tg.jvp(tg.sin, (0.0,), (2.0,))
    >>> float(y), float(slope)
    (0.0, 2.0)
    """
    _check_callable("jvp", fn)
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (list, tuple)):
            fail(
                GradientError,
                f"the {what} are {kind_of(given)}, and they must be a tuple of arguments",
                fix="write tg.jvp(fn, (x,), (t,))",
            )
    values, sources = _with_primals(tuple(primals))
    with _Accumulator(_tensors(sources), _tangents_for(sources, tangents)) as accumulator:
        value = fn(*values)
    return value, accumulator.jvp(_as_tensors(value), "zero")


@api_boundary
def linearize(fn: Positional[Result], *primals: Nest) -> tuple[Result, Callable[..., Result]]:
    """Returns fn(*primals), and its derivative there as a function of tangents.

    Values that the derivative needs from the primals are computed once, however often it is called.

    >>> y, linear = tg.linearize(lambda x: x**2, 3.0)
    >>> [float(linear(t)) for t in (1.0, 10.0)]
    [6.0, 60.0]
    """
    _check_callable("linearize", fn)
    values, sources = _with_primals(primals)
    with _Tape(persistent=True) as tape:
        tape.watch(_tensors(sources))
        value = fn(*values)
    targets = _as_tensors(value)

    @api_boundary
    def linear(*tangents: Any) -> Any:
        given = _tangents_for(sources, tangents)
        found = tape.pushed_forward(_tensors(targets), _tensors(sources), given)
        return _packed_like(targets, found)

    return value, linear


@overload
def hvp(fn: Positional[Any], primals: Leaf, tangents: TensorLike) -> Tensor: ...
@overload
def hvp(
    fn: Positional[Any], primals: Sequence[Leaf], tangents: Sequence[Any]
) -> tuple[Tensor, ...]: ...
@overload
def hvp(fn: Positional[Any], primals: Nest, tangents: Nest) -> Any: ...
@api_boundary
def hvp(fn: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The Hessian of fn's result, a floating scalar, times `tangents`, in the structure of
    `primals`.

    It is the derivative of the gradient in one direction, at the cost of a few gradients, whatever
    the size. `primals` is a sequence of arguments, or the only one.

    >>> tg.hvp(lambda x: tg.reduce_sum(x**3), tg.constant([1.0, 2.0]), [1.0, 0.0]).numpy()
    array([6., 0.], dtype=float32)
    """
    _check_callable("hvp", fn)
    if not isinstance(primals, (list, tuple)):
        return hvp(fn, (primals,), (tangents,))[0]
    slope = grad(fn, range(len(primals)))
    return jvp(slope, primals, tangents)[1]


def _check_callable(op: str, fn: Any) -> None:
    if not callable(fn):
        fact = f"{op}: {shown(fn)} is not callable"
        fail(TraceError, fact, fix="pass a function of tensors")


def _check_differentiated(op: str, fn: Any, argnums: Any) -> None:
    _check_callable(op, fn)
    _positions(argnums, op)


def _tangents_for(sources: tuple[Any, ...], tangents: Any) -> list[Tensor]:
    """The tangents of the tensors in `sources`, in order."""
    given = _leaves_like(sources, tangents)
    if given is None:
        fail(
            GradientError,
            f"the primals have the structure {structure_of(sources)}, and the tangents "
            f"{structure_of(tangents)}",
            fix="give one tangent for each primal",
        )
    pairs = zip(nest.flatten(sources), given, strict=True)
    return [tangent_of(x, t) for x, t in pairs if x is not None]


def _cotangent_like(value: Any, cotangent: Any) -> Any:
    """The cotangent of the result `value`, in its structure."""
    given = _leaves_like(value, cotangent)
    if given is None:
        fail(
            GradientError,
            f"the cotangent has the structure {structure_of(cotangent)}, and the result "
            f"{structure_of(value)}",
            fix="give one cotangent for each tensor of the result, packed like it",
        )
    leaves = [as_tensor(g) if isinstance(g, (list, tuple)) else g for g in given]
    return nest.pack_sequence_as(value, leaves) if nest.is_nested(value) else cotangent


def _leaves_like(structure: Any, values: Any) -> list[Any] | None:
    """The values where `structure` has leaves, or None if the containers differ. A list may replace
    a tuple, or the array at a leaf; anything may replace None."""
    if structure is None:
        return [None]
    if not nest.is_nested(structure):
        return None if isinstance(values, Mapping) else [values]
    pairs = _paired_items(structure, values)
    leaves: list[Any] = []
    for pair in pairs or ():
        found = _leaves_like(*pair)
        if found is None:
            return None
        leaves += found
    return None if pairs is None else leaves


def _paired_items(structure: Any, values: Any) -> list[tuple[Any, Any]] | None:
    """Pairs of corresponding items of two containers, in leaf order."""
    if isinstance(structure, Mapping):
        if not isinstance(values, Mapping) or structure.keys() != values.keys():
            return None
        return [(structure[key], values[key]) for key in nest.ordered_keys(structure)]
    if isinstance(structure, (list, tuple)):
        if not isinstance(values, (list, tuple)) or len(values) != len(structure):
            return None
        return list(zip(structure, values, strict=True))
    if type(values) is not type(structure):
        return None
    opener = nest.opener_of(structure)
    (container, items), (other, found) = opener(structure), opener(values)  # type: ignore[misc]
    if not container.matches(other):
        return None
    pairs = list(zip(items, found, strict=True))
    return [pairs[place] for place in container.order or range(len(pairs))]


def _as_tensors(value: Any) -> Any:
    return nest.map_structure(lambda y: y if y is None else as_tensor(y), value)


def _with_tensors(args: tuple[Any, ...], argnums: Any) -> tuple[tuple[Any, ...], Any]:
    """The arguments with new tensors at the positions to differentiate, and those tensors."""
    positions = _positions(argnums)
    for k in positions:
        if not -len(args) <= k < len(args):
            fail(
                GradientError,
                f"argnums has {k}, and {len(args)} arguments were given",
                fix="give positions of arguments, counted from 0",
            )
    new = list(args)
    for k in positions:
        new[k] = nest.map_structure(_differentiable, args[k])
    return tuple(new), _sources_among(new, argnums)


def _sources_among(args: Sequence[Any], argnums: Any) -> Any:
    """The arguments to differentiate with respect to: one, or a tuple of several."""
    sources = tuple(args[k] for k in _positions(argnums))
    return sources if isinstance(argnums, (Sequence, range)) else sources[0]


def _positions(argnums: Any, op: str = "grad") -> list[int]:
    """The positions that `argnums` names: one, or several."""
    given = argnums if isinstance(argnums, (Sequence, range)) else [argnums]
    try:
        if isinstance(argnums, str) or any(isinstance(k, _NO_POSITIONS) for k in given):
            raise TypeError
        return [operator.index(k) for k in given]
    except TypeError:
        fail(
            DTypeError,
            f"argnums is {shown(argnums)}, and it must be an int or a sequence of ints",
            fix=f"give positions of arguments, counted from 0; the arguments go to the function "
            f"that is returned: tg.{op}(fn)(x)",
        )


#: Types that Python accepts as indices, but that are misplaced arguments.
_NO_POSITIONS = (bool, np.bool_, np.ndarray, Tensor, Variable)


def _with_primals(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments with new tensors, and those tensors, or None if not differentiable."""

    def primal(leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, Variable, np.ndarray)):
            leaf = leaf if isinstance(leaf, Variable) else as_tensor(leaf)
            if not leaf.dtype.is_differentiable:
                return leaf
        return _differentiable(leaf)

    values = nest.map_structure(primal, args)
    return values, nest.map_structure(_source, values)


def _source(leaf: Any) -> Any:
    return leaf if leaf is not None and leaf.dtype.is_differentiable else None


def _tensors(structure: Any) -> list[Any]:
    return [leaf for leaf in nest.flatten(structure) if leaf is not None]


def _packed_like(structure: Any, tensors: Sequence[Any]) -> Any:
    rest = iter(tensors)
    return nest.map_structure(lambda leaf: None if leaf is None else next(rest), structure)


def _differentiable(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, Variable):
        return leaf
    x = identity(as_tensor(float(leaf) if type(leaf) is int else leaf))
    if not x.dtype.is_differentiable:
        fail(
            DTypeError,
            f"an argument to differentiate by is {x.type}",
            operands=[operand_text(x)],
            fix="pass floating numbers: tg.cast(x, tg.float32)",
        )
    return x


def _first(value: Any) -> Any:
    """The result of a function that returns `(result, aux)`."""
    if not isinstance(value, tuple) or len(value) != 2:
        fail(
            GradientError,
            f"with has_aux the function must return (result, aux), and it returned "
            f"{kind_of(value)}: {shown(value)}",
            fix="return a pair, or leave out has_aux",
        )
    return value[0]


def _scalar(value: Any, has_aux: bool) -> Tensor:
    """The result to differentiate. Raises GradientError unless it is a floating scalar."""
    if value is None or nest.is_nested(value):
        count = f" of {len(value)}" if isinstance(value, (list, tuple, dict)) else ""
        what = "None" if value is None else f"{kind_of(value)}{count}"
        loss = " as the first of the pair" if has_aux else ""
        aux = "" if has_aux else ", or (loss, aux) with has_aux=True"
        fail(
            GradientError,
            f"the function returned {what}{loss}, and a gradient needs one floating scalar",
            fix=f"return the loss alone{loss}{aux}",
        )
    y = as_tensor(value)
    if y.type.shape != () or not y.dtype.is_differentiable:
        fix = "reduce it, such as with tg.reduce_sum, or use tg.jacobian"
        if not y.dtype.is_differentiable:
            kind = y.dtype.name
            fix = f"compute the loss with floating numbers: there is no derivative of {kind}"
        fail(
            GradientError,
            f"the function returned {y.type}, and a gradient needs one floating scalar",
            operands=[operand_text(y)],
            fix=fix,
        )
    return y


__all__ = [
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "linearize",
    "pfor",
    "value_and_grad",
    "vectorized_map",
    "vjp",
    "vmap",
]
