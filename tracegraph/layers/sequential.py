"""Stacks of layers, and the table that summarizes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tracegraph import nest
from tracegraph.array.arguments import as_shape, refuse_kind
from tracegraph.array.creation import identity
from tracegraph.core.tensorshape import TensorSpec
from tracegraph.core.types import float32
from tracegraph.errors import SignatureError, counted, fail, fail_absent, shown
from tracegraph.functions.function import function
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, parameter_count, takes, tree_shape
from tracegraph.operands.masks import mask_of, with_mask
from tracegraph.state.deferred import announce
from tracegraph.state.module import MOST_SHOWN, Module, settings_text
from tracegraph.typing import DTypeLike, Nest, ShapeLike, TensorLike


class Sequential(Layer):
    """Calls layers one after the other; `training` goes to those that take it.

    - `layers`: layers, or functions of tensors. A leading `Input` creates the variables of all
      layers at once, as `build` does.

    >>> model = tg.layers.Sequential([tg.layers.Flatten(), tg.layers.Dense(2)])
    >>> model(tg.ones([3, 4, 4])).shape
    TensorShape([3, 2])
    """

    def __init__(
        self,
        layers: Iterable[Layer | Callable[[Tensor], Any] | TensorSpec] = (),
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        if callable(name):
            refuse_kind("Sequential", "layers are one list", name, fix=_LAYERS)
        super().__init__(name, trainable=trainable)
        self.layers: list[Any] = []
        self._input: TensorSpec | None = None
        #: The shape of each layer's output at the first call.
        self._shapes: list[Any] = []
        #: The shape of the inputs then.
        self._shape_of_inputs: Any = None
        if not isinstance(layers, Iterable):
            refuse_kind("Sequential", "layers is a list", layers, fix=_LAYERS)
        for layer in layers:
            self._append(layer)
        self._build_known()

    def add(self, layer: Layer | Callable[[Tensor], Any] | TensorSpec) -> None:
        """Appends a layer, any function of tensors, or, as the first item, an `Input`."""
        self._append(layer)
        self._build_known()

    def _append(self, layer: Any) -> None:
        if isinstance(layer, TensorSpec):
            if self.layers or self._input is not None:
                fix = "give it as the first of the layers"
                refuse_kind("Sequential", "an Input stands at the beginning", layer, fix=fix)
            self._input = layer
            return
        if not callable(layer):
            refuse_kind("Sequential", "a layer is a function of tensors", layer, fix=_LAYERS)
        if isinstance(layer, type):
            rule = "a layer is an object, and not its class"
            refuse_kind("Sequential", rule, layer, fix=f"make one: {layer.__name__}(...)")
        self.layers.append(layer)
        self._shapes = []
        announce(self)

    def pop(self) -> Any:
        """Removes the last layer and returns it."""
        self._shapes = []
        return self.layers.pop()

    def get_layer(self, name: str | None = None, index: int | None = None) -> Callable[..., Any]:
        """The layer of this name, or at this index.

        Raises ValueError if there is none, or several have the name.

        >>> model = tg.layers.Sequential([tg.layers.Dense(2, name="first"), tg.layers.Dense(3)])
        >>> model.get_layer("first") is model.get_layer(index=0)
        True
        """
        if (name is None) == (index is None):
            fact = f"get_layer: name is {shown(name)}, and index is {shown(index)}"
            fail(SignatureError, fact, fix="give one of the two")
        if index is not None:
            places = range(-len(self.layers), len(self.layers))
            if index not in places:
                fact = (
                    f"index is {shown(index)}, and there are {counted(len(places) // 2, 'layer')}"
                )
                fail(SignatureError, f"get_layer: {fact}", fix="give a number of one of them")
            return self.layers[index]
        names = [layer.name if isinstance(layer, Module) else None for layer in self.layers]
        count = names.count(name)
        if count != 1:
            fact = f"get_layer: {count or 'no'} layers have the name {shown(name)}, of {names}"
            fix = "give each layer a name of its own" if count else "give the name of one of them"
            fail(SignatureError, fact, fix=f"{fix}, or an index")
        return self.layers[names.index(name)]

    @property
    def output_shape(self) -> tuple[int | None, ...] | list[tuple[int | None, ...]]:
        """The shape of the result at the first call, as a tuple with None for open sizes.

        >>> tg.layers.Sequential([tg.layers.Input([3]), tg.layers.Dense(2)]).output_shape
        (None, 2)
        """
        if not self._shapes:
            fact = "a Sequential has no output_shape before it is called"
            fail_absent("output_shape", fact, "begin it with tg.layers.Input, or call it first")
        return _plain_shape(self._shapes[-1])

    @property
    def input_shape(self) -> tuple[int | None, ...] | list[tuple[int | None, ...]]:
        """The shape of the inputs at the first call, as a tuple with None for open sizes."""
        if not self._shapes:
            fact = "a Sequential has no input_shape before it is called"
            fail_absent("input_shape", fact, "begin it with tg.layers.Input, or call it first")
        return _plain_shape(self._shape_of_inputs)

    def _build_known(self) -> None:
        if self._input is not None and self.layers:
            self._trace(self._input)

    def build(self, input_shape: Any) -> None:
        """Creates the variables of all layers for inputs of this shape, with None for open
        sizes."""
        self._trace(TensorSpec(input_shape, self.dtype))

    def _build_for(self, x: Any, more: Any, arguments: Any) -> None:
        """Does nothing: the layers are built when they are called."""

    def _trace(self, spec: TensorSpec) -> None:
        function(lambda inputs: self(inputs)).get_concrete_function(spec)

    def __repr__(self) -> str:
        """The layers, one per line, and their total number of parameters."""
        head = f"{settings_text(self)} of {counted(len(self.layers), 'layer')}"
        count = parameter_count(self.weights)
        head += f", {count} parameters" if self.built else ", not built"
        rows = [f"  {i}: {_layer_text(layer)}" for i, layer in enumerate(self.layers)]
        if len(rows) > 2 * MOST_SHOWN:
            hidden = f"  ... {len(rows) - 2 * MOST_SHOWN} more"
            rows = [*rows[:MOST_SHOWN], hidden, *rows[-MOST_SHOWN:]]
        return "\n".join([f"<{head}", *rows]) + ">"

    def summary(self, print_fn: Callable[[str], Any] | None = None) -> None:
        """Prints a table with each layer, the shape of its output at the first call, and its number
        of parameters.

        - `print_fn`: called with each line, instead of `print`.

        >>> model = tg.layers.Sequential([tg.layers.Dense(2, name="first"), tg.nn.relu])
        >>> model.build([None, 3])
        >>> model.summary()
        Sequential
        layer          output shape  parameters
        -------------  ------------  ----------
        first (Dense)  (None, 2)              8
        relu           (None, 2)              0
        -------------  ------------  ----------
        8 parameters, 8 of them trainable
        """
        shapes = [*map(_shape_text, self._shapes)] or ["?"] * len(self.layers)
        rows = [
            (_title(layer), shape, f"{_count(layer):,}")
            for layer, shape in zip(self.layers, shapes)
        ]
        head = ("layer", "output shape", "parameters")
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        line = tuple("-" * width for width in widths)
        write = print if print_fn is None else print_fn
        write(settings_text(self))
        for k, (name, shape, count) in enumerate([head, line, *rows, line]):
            last = count if k == 0 else count.rjust(widths[2])
            write(f"{name.ljust(widths[0])}  {shape.ljust(widths[1])}  {last}".rstrip())
        total, trained = map(parameter_count, (self.weights, self.trainable_weights))
        write(f"{counted(total, 'parameter')}, {trained:,} of them trainable")
        if not self._shapes and self.layers:
            write("not built yet: call the model, or begin it with tg.layers.Input(shape)")

    def call(
        self, inputs: Nest, training: bool | None = None, mask: TensorLike | None = None
    ) -> Tensor:
        x: Any = inputs
        if mask is not None and mask_of(x) is not mask:
            x = with_mask(identity(x), mask)
        shapes: list[Any] = []
        for layer in self.layers:
            is_function = not isinstance(layer, Layer) and takes(layer, "training")
            x = layer(x, training=training) if is_function else layer(x)
            if not self._shapes:
                shapes.append(nest.map_structure(tree_shape, x))
        if shapes:
            self._shapes, self._shape_of_inputs = shapes, tree_shape(inputs)
        return x

    def compute_mask(self, inputs: Nest, mask: TensorLike | None = None) -> TensorLike | None:
        """The mask of the outputs, given the inputs and their mask; it calls the layers."""
        return mask_of(self.call(inputs, mask=mask))  # type: ignore[no-any-return]

    def _mask_of_call(self, inputs: Nest, mask: TensorLike | None) -> TensorLike | None:
        """None: the last layer gave its result a mask, or not. To ask `compute_mask` would call all
        layers again, and what they change would change twice."""
        is_own = type(self).compute_mask is Sequential.compute_mask
        return None if is_own else self.compute_mask(inputs, mask)


def Input(
    shape: ShapeLike | None = None,
    batch_size: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    batch_shape: ShapeLike | None = None,
    name: str | None = None,
) -> TensorSpec:
    """The type of the inputs of a `Sequential`, given as its first item.

    - `shape`: the sizes of one example; None for open ones.
    - `batch_size`: the number of examples, or None for any.
    - `dtype`: float32 by default.
    - `batch_shape`: replaces both: the number of examples, then the sizes of one example.

    >>> model = tg.layers.Sequential([tg.layers.Input([3]), tg.layers.Dense(2)])
    >>> [v.shape for v in model.variables]
    [TensorShape([3, 2]), TensorShape([2])]
    """
    given = shape if batch_shape is None else batch_shape
    if given is None or (batch_shape is not None and (shape, batch_size) != (None, None)):
        fact = f"Input: shape is {shape}, batch_size {batch_size}, batch_shape {batch_shape}"
        fail(SignatureError, fact, fix="give either a shape or a batch_shape")
    sizes: list[Any] = [given] if isinstance(given, int) else [*given]  # type: ignore[misc]
    whole = [batch_size, *sizes] if batch_shape is None else sizes
    as_shape("Input", [size for size in whole if size is not None])  # rejects invalid sizes
    return TensorSpec(whole, float32 if dtype is None else dtype, name)


def _title(layer: Any) -> str:
    if not isinstance(layer, Module):
        return getattr(layer, "__name__", shown(layer))
    kind = type(layer).__name__
    return kind if layer.is_unnamed else f"{layer.name} ({kind})"


def _count(layer: Any) -> int:
    if isinstance(layer, Layer):
        return layer.count_params()
    return parameter_count(layer.variables) if isinstance(layer, Module) else 0


def _plain_shape(shapes: Any) -> Any:
    """The shape of one tensor as a tuple, or of several as a list, with None for open sizes."""
    if isinstance(shapes, (list, tuple)) and not hasattr(shapes, "rank"):
        return [_plain_shape(shape) for shape in shapes]
    return tuple(size if isinstance(size, int) else None for size in shapes)


def _shape_text(shapes: Any) -> str:
    plain = _plain_shape(shapes)
    each = plain if isinstance(plain, list) else [plain]
    return ", ".join(f"({', '.join(map(str, shape))})" for shape in each)


def _layer_text(layer: Any) -> str:
    text = repr(layer) if isinstance(layer, Module) else shown(layer)
    return text.replace("\n", "\n  ")


_LAYERS = "give a list of layers: tg.layers.Sequential([tg.layers.Dense(2)])"
