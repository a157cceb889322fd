"""The operators and methods of tensors, installed in one loop; Variables get the same ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_size, refuse
from tracegraph.array.creation import ensure_shape
from tracegraph.array.indexing.slices import getitem
from tracegraph.array.shaping import transpose
from tracegraph.boundary.tracebacks import (
    api_boundary,
    asked,
    binary_operator,
    leave_out_our_frames_at_top_level,
    unary_operator,
)
from tracegraph.core.later import opened
from tracegraph.core.shapes import ShapeVariable, element_count
from tracegraph.core.tensorshape import IndexedSlices, TensorShape, asked_shape, shape_of
from tracegraph.core.types import TensorType
from tracegraph.differentiation.sparse_jacobian import SparseJacobian
from tracegraph.eager.tensor_methods import LENGTH_FIX, is_symbolic, iteration_fix
from tracegraph.effects.host_calls import declare_result
from tracegraph.errors import SignatureError, TraceError, fail, fail_absent, shown
from tracegraph.ir.builder import current, operand_text, refuse_value
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.parts import matrix_transpose
from tracegraph.math.elementwise.arithmetic import divide, floordiv, mod, multiply, pow
from tracegraph.math.elementwise.unary import abs, negative, round
from tracegraph.math.product import matmul, vector_product
from tracegraph.operands.conversion import (
    as_operands,
    as_tensor,
    cast_to,
    elementwise_operands,
    may_broadcast,
    require_rank,
)
from tracegraph.ops import elementwise as ops
from tracegraph.state.variable import Variable
from tracegraph.tracing.unrolled_loops import counted_items, over_tensor

Binary = Callable[[Any, Any], Any]


def _binary(op: Binary, name: str) -> Binary:
    """The operator for an op. It does what `binary` and `binary_operator` do, in one frame, since
    these operators are called most often."""

    def operator(x: Any, y: Any) -> Tensor:
        try:
            if type(x) is Tensor and type(y) is Tensor and x.type is y.type:
                return op(x, y)
            return op(*elementwise_operands(name, x, y))
        except BaseException as error:
            leave_out_our_frames_at_top_level(error)
            raise

    return operator


def _multiply(x: Any, y: Any) -> Any:
    """x * y elementwise, where y may be a sparse Jacobian and x a number."""
    try:
        if type(x) is Tensor and type(y) is Tensor and x.type is y.type:
            return ops.MUL(x, y)
        if type(y) is SparseJacobian:
            return y * x
        return ops.MUL(*elementwise_operands("multiply", x, y))
    except BaseException as error:
        leave_out_our_frames_at_top_level(error)
        raise


def _matmul(x: Any, y: Any) -> Any:
    """x @ y for matrices in the last two axes. A vector is a row on the left and a column on the
    right, while `tg.matmul` rejects vectors."""
    has_vector = 1 in (_rank_or_none(x), _rank_or_none(y))
    is_sparse = SparseJacobian in (type(x), type(y))
    return vector_product(x, y) if has_vector and not is_sparse else matmul(x, y)


def _rank_or_none(x: Any) -> int | None:
    return _type_of(x).rank if isinstance(x, Tensor | Variable) else getattr(x, "ndim", None)


#: The Python name of each operator with a reflected form, and its function.
ARITHMETIC: dict[str, Binary] = {
    "add": _binary(ops.ADD, "add"),
    "sub": _binary(ops.SUB, "subtract"),
    "mul": _multiply,
    "truediv": binary_operator(divide),
    "floordiv": binary_operator(floordiv),
    "mod": binary_operator(mod),
    "pow": binary_operator(pow),
    "matmul": binary_operator(_matmul),
    "and": _binary(ops.LogicalAnd(), "and"),
    "or": _binary(ops.LogicalOr(), "or"),
    "xor": _binary(ops.LogicalXor(), "xor"),
    "lshift": _binary(ops.ShiftLeft(), "left_shift"),
    "rshift": _binary(ops.ShiftRight(), "right_shift"),
    "divmod": binary_operator(lambda x, y: (floordiv(x, y), mod(x, y))),
}

COMPARISONS: dict[str, Binary] = {
    "lt": _binary(ops.LESS, "less"),
    "le": _binary(ops.LESS_EQUAL, "less_equal"),
    "gt": _binary(ops.GREATER, "greater"),
    "ge": _binary(ops.GREATER_EQUAL, "greater_equal"),
}


def _by_elements(op: Binary, name: str, otherwise: bool) -> Binary:
    """The operator == or !=, which returns the single value `otherwise` for shapes that do not
    broadcast. `tg.equal` and `tg.not_equal` reject them."""

    def compare(x: Any, y: Any) -> Tensor:
        if type(x) is Tensor and type(y) is Tensor and x.type is y.type:
            return op(x, y)
        x, y = as_operands(name, x, y)
        if not may_broadcast(x.type.shape, y.type.shape):
            return as_tensor(otherwise)
        return op(*elementwise_operands(name, x, y))

    return compare


_equal = _by_elements(ops.EQUAL, "equal", otherwise=False)
_not_equal = _by_elements(ops.NotEqual(), "not_equal", otherwise=True)


def _eq(x: Any, y: Any) -> Any:
    """x == y elementwise; nothing equals None, a value that cannot be a tensor, or a tensor whose
    shape does not broadcast."""
    return NotImplemented if _is_foreign(y) else _equal(x, y)


def _ne(x: Any, y: Any) -> Any:
    return NotImplemented if _is_foreign(y) else _not_equal(x, y)


def _is_foreign(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes, type))


#: The operators by the ufunc that NumPy calls with an array on the left.
_UFUNCS: dict[Any, Binary] = {
    np.add: ARITHMETIC["add"],
    np.subtract: ARITHMETIC["sub"],
    np.multiply: ARITHMETIC["mul"],
    np.divide: ARITHMETIC["truediv"],
    np.floor_divide: ARITHMETIC["floordiv"],
    np.remainder: ARITHMETIC["mod"],
    np.power: ARITHMETIC["pow"],
    np.matmul: ARITHMETIC["matmul"],
    np.bitwise_and: ARITHMETIC["and"],
    np.bitwise_or: ARITHMETIC["or"],
    np.bitwise_xor: ARITHMETIC["xor"],
    np.left_shift: ARITHMETIC["lshift"],
    np.right_shift: ARITHMETIC["rshift"],
    np.divmod: ARITHMETIC["divmod"],
    np.less: COMPARISONS["lt"],
    np.less_equal: COMPARISONS["le"],
    np.greater: COMPARISONS["gt"],
    np.greater_equal: COMPARISONS["ge"],
    np.equal: _equal,
    np.not_equal: _not_equal,
}


def _ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    """Handles NumPy's functions: an operator with an array on the left returns a tensor; any other
    function takes the values, as `np.asarray` does. `array += x` writes them into the array.

    Raises TraceError while tracing, and if `out` is a tensor.
    """
    function = _UFUNCS.get(ufunc) if method == "__call__" and not keywords else None
    if function is not None and isinstance(inputs[0], np.ndarray | np.generic):
        return function(*inputs)
    out = keywords.get("out", ())
    for x in out:
        if isinstance(x, Tensor | Variable):
            fail(
                TraceError,
                f"np.{ufunc.__name__} was told to write into a tensor {_type_of(x)}, and tensors "
                "never change",
                fix="take the result that is returned, or use v.assign(value) of a tg.Variable",
            )
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    name = _REDUCTIONS.get(name, name)
    own = name if name in _REDUCTIONS.values() else _own_ufuncs().get(ufunc)
    use = f"use tg.numpy.{own}" if own else "use a function of tg"
    values = [_value(x, name, use, bool(out)) for x in inputs]
    options = {key: x if key == "out" else _value(x, name, use) for key, x in keywords.items()}
    return getattr(ufunc, method)(*values, **options)


def _value(x: Any, name: str, use: str, is_written: bool = False) -> Any:
    """The value that NumPy's function `name` computes with; `is_written` if the result goes into an
    array. Raises TraceError with the fix `use` for a tensor without a value."""
    if not isinstance(x, Tensor | Variable):
        return x
    tensor = as_tensor(x)
    if is_symbolic(tensor) and is_written:
        fix = "write a = a + x in place of a += x: that gives a tensor"
        refuse_value(tensor, "writing into a NumPy array", fix)
    if is_symbolic(tensor):
        fix = f"{use}, or tg.numpy_function to call NumPy when the program runs"
        refuse_value(tensor, f"np.{name}", fix)
    return np.asarray(tensor)


#: The methods that NumPy's reductions call, by the name of the function.
_REDUCTIONS = {
    "add.reduce": "sum",
    "multiply.reduce": "prod",
    "maximum.reduce": "max",
    "minimum.reduce": "min",
    "logical_and.reduce": "all",
    "logical_or.reduce": "any",
}


@functools.cache
def _own_ufuncs() -> dict[Any, str]:
    """The names of NumPy's functions in `tg.numpy`."""
    names = dir(opened("tracegraph.numpy"))
    functions = {getattr(np, name, None): name for name in names}
    return {f: name for f, name in functions.items() if isinstance(f, np.ufunc)}


def _array_namespace(self: Any, /, *, api_version: str | None = None) -> Any:
    """The functions of the array API standard: `tg.numpy`. Raises ValueError for an unknown version
    of the standard."""
    if api_version is not None and api_version not in _ARRAY_API_VERSIONS:
        fact = f"version {shown(api_version)} of the array API was asked for"
        fail(SignatureError, fact, fix=f"use one of {', '.join(_ARRAY_API_VERSIONS)}")
    return opened("tracegraph.numpy")


_ARRAY_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


def _reflected(function: Binary) -> Binary:
    def operator(x: Any, y: Any) -> Any:
        try:
            return function(y, x)
        except BaseException as error:
            leave_out_our_frames_at_top_level(error)
            raise

    return operator


def _positive(x: Any) -> Tensor:
    return as_tensor(x)


def _inverted(x: Any) -> Tensor:
    return ops.LogicalNot()(as_tensor(x))


def _set_shape(self: Any, shape: Any) -> None:
    """Checks that the shape of a tensor matches `shape`, in which None matches any size. Raises
    ShapeError if it does not, or if a size is open that `shape` gives: use `tg.ensure_shape`, which
    returns a tensor of that shape. If a Python function's result has no rank in `Tout`, this
    declares it, before the first use.

    >>> tg.zeros([2, 3]).set_shape([None, 3])
    """
    x = as_tensor(self)
    if declare_result(x, TensorShape(shape)):
        return
    own, checked = x.type.shape, ensure_shape(x, shape)
    if checked.type.shape != own:
        fact = f"the sizes of {x.type} are open, and a tensor keeps its type"
        refuse("set_shape", fact, x, fix="use x = tg.ensure_shape(x, shape)")


@api_boundary
def _rounded(x: Any, digits: int | None = None) -> Tensor:
    """round(x) and round(x, digits), in the dtype of x; halves go to even."""
    x = as_tensor(x)
    count = 0 if digits is None else as_size("round", "the number of digits", digits)
    if count == 0 or (count > 0 and x.dtype.is_integer):
        return round(x)
    if count > 0:
        return divide(round(multiply(x, 10**count)), 10**count)
    return cast_to(multiply(round(divide(x, 10**-count)), 10**-count), x.dtype)


def _truncated(x: Any) -> int:
    """math.trunc(x): a Python int, like math.floor(x) and math.ceil(x), of a known value. Raises
    TraceError while tracing."""
    return int(x)


def _length(x: Any, fix: str = LENGTH_FIX) -> int:
    """The size of the first axis. Raises TraceError if it is open or there is none."""
    own = _type_of(x)
    shape = own.shape
    if isinstance(shape, tuple) and shape and type(shape[0]) is int:
        return shape[0]
    if isinstance(x, Tensor):
        require_rank(x)
    fact, fix = (
        (f"a scalar {own} has no length", "use the scalar itself, or give it an axis: x[None]")
        if shape == ()
        else (
            f"the length of {own} is not known while tracing",
            fix,
        )
    )
    operands = [operand_text(x)] if isinstance(x, Tensor) else []
    fail(TraceError, fact, operands=operands, fix=fix)


def _iterated(x: Any) -> Iterator[Tensor]:
    """The parts along the first axis; a loop over them unrolls while tracing."""
    length = _length(x, iteration_fix())
    tensor, builder = as_tensor(x), current()
    parts = (getitem(tensor, k) for k in range(length))
    if builder.is_top_level:
        return parts
    return counted_items(over_tensor(tensor), parts, builder)


def _type_of(x: Any) -> TensorType:
    """The type of a tensor or a Variable, without reading it."""
    return x.type if type(x) is Tensor else x.tensor_type


def _shape(x: Any) -> TensorShape:
    """The sizes: ints, or symbolic sizes that become known when the graph runs."""
    type = _type_of(x)
    return shape_of(type.shape) if type.is_static else asked_shape(type.shape)


def _rank(x: Any) -> int | None:
    """The number of axes; None if it is unknown."""
    return _type_of(x).rank


def _size(x: Any) -> Any:
    """The number of elements: an int, or a symbolic size; None if the rank is unknown."""
    shape = _type_of(x).shape
    return None if isinstance(shape, ShapeVariable) else element_count(shape)


def _transposed(x: Any) -> Tensor:
    """The tensor with its axes in reverse order."""
    return transpose(x)


def _matrices_transposed(x: Any) -> Tensor:
    """The tensor with its last two axes swapped. Raises ShapeError if there are none."""
    return matrix_transpose(x)


def _methods() -> Iterator[tuple[str, Any]]:
    for name, function in ARITHMETIC.items():
        yield f"__{name}__", function
        yield f"__r{name}__", _reflected(function)
    for name, function in COMPARISONS.items():
        yield f"__{name}__", function
    yield from {
        "__eq__": binary_operator(_eq),
        "__ne__": binary_operator(_ne),
        "__neg__": unary_operator(negative),
        "__pos__": unary_operator(_positive),
        "__abs__": unary_operator(abs),
        "__invert__": unary_operator(_inverted),
        "__round__": _rounded,
        "__trunc__": unary_operator(_truncated),
        "__len__": unary_operator(_length),
        "__iter__": unary_operator(_iterated),
        "__getitem__": binary_operator(getitem),
        "__array_namespace__": _array_namespace,
        "__array_ufunc__": api_boundary(_ufunc),
        "get_shape": _shape,
        "set_shape": _set_shape,
        "shape": property(_shape),
        "rank": property(_rank),
        "size": property(_size),
        "T": property(_transposed),
        "mT": property(_matrices_transposed),
    }.items()


#: Attributes of NumPy's, PyTorch's and JAX's arrays, and their replacements here.
_FUNCTIONS = {
    "abs": "tg.abs(x)",
    "add": "x + y",
    "all": "tg.reduce_all(x)",
    "any": "tg.reduce_any(x)",
    "argmax": "tg.argmax(x)",
    "argmin": "tg.argmin(x)",
    "argsort": "tg.argsort(x)",
    "astype": "tg.cast(x, dtype)",
    "at": "tg.tensor_scatter_nd_update(x, indices, updates), or v[...].assign(value) of a Variable",
    "backward": "tg.GradientTape, whose tape.gradient(loss, variables) gives the gradients",
    "block_until_ready": "x.numpy(), which waits for the value",
    "bmm": "x @ y",
    "chunk": "tg.split(x, n, axis)",
    "clamp": "tg.clip_by_value(x, low, high)",
    "clip": "tg.clip_by_value(x, low, high)",
    "clone": "x itself, or tg.identity(x)",
    "conj": "tg.math.conj(x)",
    "contiguous": "x itself",
    "copy": "x itself, or x.numpy() for an array of its own",
    "cpu": "x.numpy()",
    "cumprod": "tg.math.cumprod(x)",
    "cumsum": "tg.cumsum(x)",
    "detach": "tg.stop_gradient(x)",
    "diagonal": "tg.linalg.diag_part(x)",
    "dim": "x.ndim",
    "div": "x / y",
    "dot": "x @ y, or tg.tensordot",
    "double": "tg.cast(x, tg.float64)",
    "eval": "x.numpy()",
    "exp": "tg.exp(x)",
    "expand": "tg.broadcast_to(x, shape)",
    "flatten": "tg.reshape(x, [-1])",
    "float": "tg.cast(x, tg.float32)",
    "grad": "tg.GradientTape, whose tape.gradient(y, x) gives the gradient",
    "half": "tg.cast(x, tg.float16)",
    "imag": "tg.math.imag(x)",
    "int": "tg.cast(x, tg.int32)",
    "log": "tg.math.log(x)",
    "long": "tg.cast(x, tg.int64)",
    "masked_fill": "tg.where(mask, value, x)",
    "matmul": "x @ y",
    "max": "tg.reduce_max(x)",
    "mean": "tg.reduce_mean(x)",
    "min": "tg.reduce_min(x)",
    "mm": "x @ y",
    "mul": "x * y",
    "norm": "tg.norm(x)",
    "numel": "x.size",
    "permute": "tg.transpose(x, perm)",
    "pow": "x ** y",
    "prod": "tg.reduce_prod(x)",
    "ravel": "tg.reshape(x, [-1])",
    "real": "tg.math.real(x)",
    "relu": "tg.nn.relu(x)",
    "repeat": "tg.repeat(x, n), or tg.tile",
    "requires_grad": "a tg.Variable, or tape.watch(x)",
    "reshape": "tg.reshape(x, shape)",
    "round": "tg.round(x)",
    "sigmoid": "tg.sigmoid(x)",
    "softmax": "tg.nn.softmax(x)",
    "sort": "tg.sort(x)",
    "split": "tg.split(x, n, axis)",
    "sqrt": "tg.sqrt(x)",
    "squeeze": "tg.squeeze(x)",
    "std": "tg.math.reduce_std(x)",
    "sub": "x - y",
    "sum": "tg.reduce_sum(x)",
    "swapaxes": "tg.transpose(x, perm)",
    "t": "x.T",
    "take": "tg.gather(x, indices)",
    "tanh": "tg.tanh(x)",
    "to": "tg.cast(x, dtype); devices are JAX's",
    "tolist": "x.numpy().tolist()",
    "trace": "tg.linalg.trace(x)",
    "transpose": "tg.transpose(x)",
    "unsqueeze": "tg.expand_dims(x, axis)",
    "var": "tg.math.reduce_variance(x)",
    "view": "tg.reshape(x, shape)",
}


class _NoMethod:
    """A missing attribute, which names its replacement. A `__getattr__` of tensors would cost time
    at every lookup of an empty slot."""

    def __init__(self, name: str) -> None:
        self._name = name

    @asked
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        name = self._name
        fact = f"a {(owner or type(instance)).__name__} has no attribute {name!r}"
        fail_absent(name, fact, f"use {_FUNCTIONS[name]}")


#: The methods without options that read a value.
_READING = ("__bool__", "__int__", "__float__", "__complex__", "__index__", "numpy")


def _listed(self: Any) -> list[str]:
    return [name for name in object.__dir__(self) if name not in _FUNCTIONS]


def install_operators() -> None:
    """Gives Tensor and Variable the operators and methods that they do not define themselves."""
    for name, method in _methods():
        for cls in (Tensor, Variable):
            own = cls.__dict__.get(name)
            if own is None or own is getattr(object, name, None):
                setattr(cls, name, method)
    for cls in (Tensor, Variable):
        for name in _READING:
            if name in cls.__dict__:
                setattr(cls, name, unary_operator(cls.__dict__[name]))
        for name in ("__array__", "__setitem__", "__delitem__"):
            if name in cls.__dict__:
                setattr(cls, name, api_boundary(cls.__dict__[name]))
        for name in _FUNCTIONS:
            setattr(cls, name, _NoMethod(name))
        setattr(cls, "__dir__", _listed)  # noqa: B010 - a checker takes it for an override
    setattr(Variable, "__hash__", unary_operator(Variable.__hash__))  # noqa: B010 - likewise
    setattr(IndexedSlices, "__new__", api_boundary(IndexedSlices.__new__))  # noqa: B010


install_operators()
