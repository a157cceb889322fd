"""Reading a tensor's value: numpy, bool, float, printing. Installed on `Tensor` here."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from itertools import takewhile
from types import CodeType
from typing import Any

import numpy as np

from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import user_frames
from tracegraph.eager import backend
from tracegraph.eager.pending import device_buffer, host_value, materialise, run_failure
from tracegraph.errors import (
    DTypeError,
    ShapeError,
    SignatureError,
    TraceError,
    UnconvertedError,
    fail,
    shown,
)
from tracegraph.ir.builder import current, operand_text, refuse_value
from tracegraph.ir.tensor import Tensor, host_tensor


def is_symbolic(tensor: Tensor) -> bool:
    """Whether the tensor belongs to a graph, and so has no value now."""
    node = tensor.node
    return node is not None and (node.builder is None or not node.builder.is_top_level)


def host_array(tensor: Tensor) -> np.ndarray:
    """The value as a read-only NumPy array in row-major order."""
    materialise(tensor)
    buffer = getattr(tensor, "buffer", None)
    array = host_value(tensor) if buffer is None else _fetched(buffer, tensor)
    return array if array.flags.c_contiguous else np.array(array, order="C")


def gathered_array(tensor: Tensor) -> np.ndarray:
    """`host_array` of a tensor that may be sharded over processes: all of them must call this."""
    materialise(tensor)
    if not _parts_here(tensor):
        return host_array(tensor)
    return backend.gathered_on_host(device_buffer(tensor))


def _parts_here(tensor: Tensor) -> str:
    """What this process holds of a computed value: "4 parts of 8", or "" for all of it."""
    buffer = getattr(tensor, "buffer", None)
    if buffer is None or buffer.is_fully_addressable or buffer.is_fully_replicated:
        return ""
    return f"{len(buffer.addressable_shards)} parts of {len(buffer.sharding.device_set)}"


def _fetched(buffer: Any, tensor: Tensor) -> np.ndarray:
    parts = _parts_here(tensor)
    if parts:
        fail(
            TraceError,
            f"the value of a tensor {tensor.type} was asked for, of which this process holds "
            f"{parts}",
            fix="let each process have all of it: tg.distribute.with_layout(x, "
            f"tg.distribute.Layout(mesh, {[None] * tensor.ndim}))",
        )
    try:
        buffer.block_until_ready()  # JAX aborts the process if NumPy reads a failed buffer
        return np.asarray(buffer)
    except outside_interrupts(RuntimeError) as error:
        # The program that computes it was still running.
        raise run_failure(error, tensor.source) from None


def numpy(self: Tensor) -> Any:
    """The value as a new NumPy array; a NumPy scalar for a tensor without axes.

    Raises TraceError while tracing.
    """
    if is_symbolic(self):
        refuse_value(self, ".numpy()")
    tell_tapes(self, ".numpy()")
    array = host_array(self)
    return array[()] if array.ndim == 0 else np.array(array)


def item(self: Tensor) -> Any:
    """The only element as a Python number. Raises ValueError unless there is exactly one."""
    return _element(self, ".item()", "")


def _asked(tensor: Tensor, how: str, fix: str = "") -> np.ndarray:
    if is_symbolic(tensor):
        refuse_value(tensor, how, *([fix] if fix else []))
    tell_tapes(tensor, how)
    return host_array(tensor)


def tell_tapes(tensor: Tensor, how: str) -> None:
    """Tells recorders that a value leaves for NumPy or Python, and `how` it was read."""
    for recorder in current().recorders:
        recorder.leave(tensor, how)


#: How a Python `if` reads a value. It decides what is computed, and computes nothing itself.
BOOL = "a Python bool"
#: How `tg.numpy_function` reads one; its own message says that it has no gradient.
HOST_CALL = "tg.numpy_function"


_CONTROL_FIX = (
    "use tg.where(condition, x, y), or decide outside the @tg.function; "
    "a Python `if` or `while` on a tensor is decided while tracing"
)
_PLAIN = "runs as plain Python, like properties or do_not_convert: let a converted function decide"
_LIBRARY_FIX = (
    "use tg.where(condition, x, y), tg.boolean_mask, tg.sort or the like; `if` and `while` on "
    "tensors are converted here, but the `if` of a comprehension, `sorted` and so on are Python's"
)
_NUMBER_FIX = (
    "compute with the tensor itself, or pass the number to the @tg.function as a Python one"
)
_INDEX_FIX = "use tg.gather for an element, or pass the number to the @tg.function as a Python int"
_RANGE_FIX = (
    "; a `for` statement over range(n) becomes a loop of the graph and may append to a list, but a "
    "comprehension is Python's: use tg.map_fn(lambda i: ..., tg.range(n))"
)
LENGTH_FIX = (
    "compute with the whole tensor, or give the size in the TensorSpec; tg.shape(x)[0] is the size "
    "at run time"
)
_ITERATION_FIX = "use tg.map_fn(lambda row: ..., x), or give the size in the TensorSpec"
_COMPREHENSION_FIX = (
    "a comprehension is Python's: write a `for` statement, which becomes a loop of the graph and "
    f"may append to a list, or {_ITERATION_FIX}"
)
_NUMPY_FIX = "use the function of tg in place of NumPy's, or tg.numpy_function"


#: Functions that say why the user's code was not converted to branch on tensors, if it was not; the
#: converter is on a higher floor.
why_not_converted: list[Callable[[CodeType], str]] = []
#: Functions that say whether code was converted.
is_converted: list[Callable[[CodeType], bool]] = []


def _codes_around() -> Iterator[CodeType]:
    """The code of the user's function, and of those that enclose it."""
    name = None
    for code in (frame.f_code for frame in user_frames()):
        if name is None or name.startswith(f"{code.co_qualname}.<locals>."):
            name = code.co_qualname
            yield code


def iteration_fix() -> str:
    """The fix where Python goes through a tensor of open length."""
    return _COMPREHENSION_FIX if _runs_converted() else _with_reason(_ITERATION_FIX)


def _runs_converted() -> bool:
    """Whether the user's function runs with its control flow converted."""
    return any(ask(code) for code in _codes_around() for ask in is_converted)


def _with_reason(fix: str) -> str:
    """Why code, or what called it, was not converted, and the fix where Python decides."""
    own = [x.f_code for x in user_frames()]
    plain = [*takewhile(lambda x: not any(ask(x) for ask in is_converted), own)]
    for code in plain:
        for reason in filter(None, (why(code) for why in why_not_converted)):
            return f"{code.co_name} runs as plain Python, because {reason}; or {fix}"
    is_left = fix is _CONTROL_FIX and 0 < len(plain) < len(own) and not _runs_converted()
    if is_left and any(x.opname.startswith("POP_JUMP") for x in dis.get_instructions(plain[0])):
        return f"{plain[0].co_name} {_PLAIN}; or {fix}"
    return fix


def _bool(self: Tensor) -> bool:
    if is_symbolic(self):
        fix = _with_reason(_CONTROL_FIX)
        kind = TraceError if fix == _CONTROL_FIX else UnconvertedError
        fix = _LIBRARY_FIX if kind is TraceError and _runs_converted() else fix
        refuse_value(self, BOOL, fix, kind=kind)
    outcome = bool(_element(self, BOOL))
    for recorder in current().recorders:
        recorder.decide(outcome)
    return outcome


class OneElementError(ShapeError, TypeError):
    """A ShapeError where Python raises TypeError: many elements were read as one number."""


def _element(tensor: Tensor, how: str, fix: str = _NUMBER_FIX) -> Any:
    """The only element, as a Python scalar."""
    array = _asked(tensor, how, fix)
    if array.size != 1:
        fail(
            OneElementError,
            f"{how} needs one element, and a tensor {tensor.type} has {array.size}",
            operands=[operand_text(tensor)],
            fix="pick one element, such as x[0], or use tg.reduce_sum, tg.reduce_all or the like",
        )
    return array.item()


def _float(self: Tensor) -> float:
    return float(_element(self, "float()"))


def _int(self: Tensor) -> int:
    return int(_element(self, "int()"))


def _complex(self: Tensor) -> complex:
    return complex(_element(self, "complex()"))


def _index(self: Tensor) -> int:
    if not self.dtype.is_integer:
        fail(
            DTypeError,
            f"an index must be an integer, and a tensor of {self.dtype.name} was given",
            operands=[operand_text(self)],
            fix="convert it: tg.cast(x, tg.int32)",
        )
    fix = _with_reason(_INDEX_FIX) if is_symbolic(self) else ""
    if fix == _INDEX_FIX and _runs_converted():
        fix += _RANGE_FIX
    return int(_element(self, "a Python index", fix))


def _array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    array = _asked(self, "a NumPy array", _NUMPY_FIX)
    return np.array(array, dtype=dtype) if copy is not False else np.asarray(array, dtype=dtype)


def shape_text(tensor: Tensor) -> str:
    shape = tensor.type.shape
    if not isinstance(shape, tuple):
        return "<unknown>"
    inner = ", ".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def value_text(array: np.ndarray) -> str:
    """A value as TensorFlow prints it."""
    return str(array.item() if array.ndim == 0 and array.dtype == bool else array)


def _str(self: Tensor) -> str:
    suffix = f"shape={shape_text(self)}, dtype={self.dtype.name})"
    if is_symbolic(self):
        name = f'"{self.name}", ' if self.name else ""
        return f"tg.Tensor({name}{suffix}"
    materialise(self)
    parts = _parts_here(self)
    text = f"<{parts}>" if parts else value_text(host_array(self))
    return f"tg.Tensor({text}, {suffix}"


def _repr(self: Tensor) -> str:
    own = f"shape={shape_text(self)}, dtype={self.dtype.name}"
    if is_symbolic(self):
        name = f" '{self.name}'" if self.name else ""
        return f"<tg.Tensor{name}: {own}>"
    return f"<tg.Tensor: {own}, {value_repr(self)}>"


def value_repr(tensor: Tensor) -> str:
    """The value in the text of a tensor or Variable; where other processes hold parts of it, how
    many parts are here."""
    materialise(tensor)
    parts = _parts_here(tensor)
    if parts:
        return f"<{parts}>"
    array = host_array(tensor)
    return f"numpy={array[()] if array.ndim == 0 else np.array_repr(array)}"


def _format(self: Tensor, spec: str) -> str:
    if is_symbolic(self):
        return refuse_value(self, f"the format {spec!r}") if spec else str(self)
    array = host_array(self)
    return format(array[()] if array.ndim == 0 else array, spec)


def device(self: Tensor) -> str:
    """The device that holds the value, such as '/job:localhost/replica:0/task:0/device:CPU:0';
    several are separated by commas. While tracing, the default device."""
    return default_device() if is_symbolic(self) else device_of(device_buffer(self))


def default_device() -> str:
    """The device on which values are created."""
    return device_of(backend.put(np.zeros((), np.float32)))


def device_of(buffer: Any) -> str:
    """The names of the devices that hold a buffer, separated by commas."""
    return ", ".join(backend.device_names(buffer))


def memory_kind(self: Tensor) -> str | None:
    """The memory that holds the value, in JAX's terms: "device" or "pinned_host"; None while
    tracing, and where JAX does not know."""
    return None if is_symbolic(self) else backend.memory_kind(device_buffer(self))


def layout(self: Tensor) -> Any:
    """How the value is sharded over the devices of a mesh; None if it is on one device."""
    return backend.layouts().layout_of(self)


def _to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """The tensor itself if it is on that device; otherwise raises ValueError."""
    check_device("to_device", device)
    return self


def check_device(op: str, device: Any) -> None:
    """Raises ValueError for a device that tensors cannot be moved to; None stands for any."""
    if device is None or device == default_device():
        return
    fail(
        SignatureError,
        f"{op}: the device is {shown(device)}, and tensors are on {default_device()!r}",
        fix="leave it out; tg.device and JAX_PLATFORMS decide",
    )


def _dlpack(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    _asked(self, "a DLPack capsule")
    return device_buffer(self).__dlpack__(
        stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
    )


def _dlpack_device(self: Tensor) -> Any:
    _asked(self, "a DLPack device")
    return device_buffer(self).__dlpack_device__()


def _copy(self: Tensor, memo: Any = None) -> Tensor:
    return self  # a tensor never changes


def _reduce(self: Tensor) -> Any:
    value = np.array(_asked(self, "pickling"))
    layouts = backend.layouts()
    layout = layouts.layout_of(self)
    if layout is None:
        return host_tensor, (self.type, value)
    return layouts.divided_again, (self.type, value, layout)


def _setitem(self: Tensor, index: Any, value: Any = None) -> None:
    fail(
        TraceError,
        f"an item of a tensor {self.type} was assigned or deleted, and tensors never change",
        operands=[operand_text(self)],
        fix="use tg.tensor_scatter_nd_update or tg.where, or v[...].assign(value) of a tg.Variable",
    )


_METHODS = {
    "__setitem__": _setitem,
    "__delitem__": _setitem,
    "numpy": numpy,
    "item": item,
    "__bool__": _bool,
    "__float__": _float,
    "__int__": _int,
    "__complex__": _complex,
    "__index__": _index,
    "__array__": _array,
    "__str__": _str,
    "__repr__": _repr,
    "__format__": _format,
    "__dlpack__": _dlpack,
    "__dlpack_device__": _dlpack_device,
    "__copy__": _copy,
    "__deepcopy__": _copy,
    "__reduce__": _reduce,
    "device": property(device),
    "layout": property(layout),
    "memory_kind": property(memory_kind),
    "to_device": _to_device,
}

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
