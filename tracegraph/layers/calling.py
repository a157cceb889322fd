"""What a call of a layer takes from the call around it and from its inputs: `training`, masks, and
the dtype in which it reads its weights."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from tracegraph.core.types import DType
from tracegraph.ir.builder import current
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import cast_to
from tracegraph.operands.masks import mask_of
from tracegraph.signatures.signature import parameters_of
from tracegraph.state.module import Module, added_losses
from tracegraph.state.variable import Variable


class CallParameters:
    """The parameters of a layer's `call`."""

    def __init__(self, call: Any) -> None:
        self.all: Mapping[str, Parameter] = parameters_of(call)
        self.names = [*self.all]
        self.takes_training = "training" in self.all
        self.takes_mask = "mask" in self.all
        #: Those whose masks are parameters too.
        self.masked = [name for name in self.names if f"{name}_mask" in self.all]
        default = self.all["training"].default if self.takes_training else None
        self._default_training = None if default is Parameter.empty else default

    def _passed(self, name: str, more: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        """What is passed for this parameter, which is not the first one; None if nothing is."""
        if name in arguments:
            return arguments[name]
        place = self.names.index(name) - 1 if more and name in self.all else len(more)
        return more[place] if place < len(more) else None

    def take_training(self, more: Sequence[Any], arguments: dict[str, Any]) -> Any:
        """What `training` is in this call: what was passed, or that of the call around, which
        becomes an argument, or the default. If the layer does not take it, it is not passed."""
        if "training" in arguments:
            return arguments["training"] if self.takes_training else arguments.pop("training")
        if more and self.takes_training and self.names.index("training") <= len(more):
            return more[self.names.index("training") - 1]
        around = _thread.training_here()
        if self.takes_training and around is not None:
            arguments["training"] = around
        return self._default_training if around is None else around

    def take_masks(
        self, inputs: Any, more: Sequence[Any], arguments: dict[str, Any], *, takes_mask: bool
    ) -> Any:
        """The mask of the inputs. Masks that `call` takes and that were not passed become
        arguments: `mask`, that of the inputs, and `x_mask`, that of the argument `x`."""
        mask = mask_of(inputs)
        if takes_mask and self.takes_mask:
            given = self._passed("mask", more, arguments)
            if given is not None:
                return given
            if mask is not None:
                arguments["mask"] = mask
        for name in self.masked:
            value = inputs if name == self.names[0] else self._passed(name, more, arguments)
            if self._passed(f"{name}_mask", more, arguments) is None:
                own = mask_of(value)
                if own is not None:
                    arguments[f"{name}_mask"] = own
        return mask


_known: weakref.WeakKeyDictionary[Any, CallParameters] = weakref.WeakKeyDictionary()


def call_parameters(call: Any) -> CallParameters:
    """The parameters of a layer's bound `call`."""
    function = getattr(call, "__func__", call)
    try:
        return _known[function]
    except (KeyError, TypeError):  # TypeError: a callable without weak references
        found = CallParameters(call)
        with contextlib.suppress(TypeError):
            _known[function] = found
        return found


class _Nesting(threading.local):
    """The call of a layer that this thread is in."""

    def __init__(self) -> None:
        self.is_in_layer = False
        #: What `training` is there, and the function that is being traced.
        self.training: Any = None
        self.function: Any = None
        #: The dtype in which it computes.
        self.dtype: DType | None = None

    def training_here(self) -> Any:
        """What `training` is in the call around; None in a function that is traced inside of it,
        since other calls use the trace too."""
        is_here = self.training is not None and self.function is _traced_function()
        return self.training if is_here else None


_thread = _Nesting()


def _traced_function() -> Any:
    """What stands for the innermost function that is being traced, in its branches and loops too;
    None at top level."""
    trace: Any = current()
    while getattr(trace, "paths", trace) is None:
        trace = trace.outer
    return getattr(trace, "paths", None)


@contextlib.contextmanager
def nested(layer: Module, training: Any, dtype: DType) -> Iterator[None]:
    """A context for calling a layer. A call from outside any layer clears the previous losses."""
    was = _thread.is_in_layer, _thread.training, _thread.function, _thread.dtype
    _thread.is_in_layer, _thread.training, _thread.dtype = True, training, dtype
    _thread.function = None if training is None else _traced_function()
    if added_losses and not was[0]:
        for module in (layer, *layer.submodules):
            added_losses.pop(module, None)
    try:
        yield
    finally:
        _thread.is_in_layer, _thread.training, _thread.function, _thread.dtype = was


class Weight(Variable):
    """A weight of a layer that computes in another dtype than that of its variables: layers read it
    in the dtype in which they compute, and everything else in its own."""

    __slots__ = ()

    def __tracegraph_tensor__(self) -> Tensor:
        read = self.read_value()
        return read if _thread.dtype is None else cast_to(read, _thread.dtype)
