"""Layers, with Keras' names: Modules that make their variables when they are called first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tracegraph import initializers, nn
from tracegraph.api.absent import refuse_attribute
from tracegraph.array.arguments import (
    as_axis,
    as_choice,
    as_flag,
    as_number,
    as_shape,
    as_size,
    as_sizes,
    rank_of,
    refuse,
    refuse_kind,
    sizes_of,
)
from tracegraph.array.creation import is_tensor
from tracegraph.array.shaping import reshape
from tracegraph.autograph.scope import converted_here
from tracegraph.boundary.tracebacks import api_boundary, asked
from tracegraph.core.shapes import element_count
from tracegraph.core.tensorshape import shape_of
from tracegraph.core.types import as_dtype, float32
from tracegraph.errors import SignatureError, counted, fail, shown
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.math.arithmetic import add, multiply
from tracegraph.math.product import matmul
from tracegraph.math.unary import exp
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.signatures.signature import parameters_of
from tracegraph.state.deferred import announce
from tracegraph.state.module import Module, settings_text
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from tracegraph.typing import (
        ActivationLike,
        DTypeLike,
        InitializerLike,
        Nest,
        ShapeLike,
        Window,
    )

_ACTIVATIONS: dict[str, Callable[[Any], Tensor]] = {
    "elu": nn.elu,
    "exponential": exp,
    "gelu": nn.gelu,
    "leaky_relu": nn.leaky_relu,
    "linear": as_tensor,
    "log_softmax": nn.log_softmax,
    "relu": nn.relu,
    "relu6": nn.relu6,
    "selu": nn.selu,
    "sigmoid": nn.sigmoid,
    "silu": nn.silu,
    "softmax": nn.softmax,
    "softplus": nn.softplus,
    "softsign": nn.softsign,
    "swish": nn.silu,
    "tanh": nn.tanh,
}


def _activation(activation: Any) -> Callable[[Any], Any] | None:
    """The function of a name, or a function as it is; None for none."""
    if activation is None or callable(activation):
        return activation
    if isinstance(activation, str) and activation in _ACTIVATIONS:
        return _ACTIVATIONS[activation]
    fail(
        SignatureError,
        f"{shown(activation)} is not an activation",
        fix=f"use a function, or one of {', '.join(_ACTIVATIONS)}",
    )


class Layer(Module):
    """A function with variables, which `build` makes when the layer is called first.

    Subclasses define `build(input_shape)`, which calls `add_weight`, and `call(inputs)`. Variables
    are listed in the order in which they were made.
    """

    def __init__(self, name: str | None = None, dtype: DTypeLike = float32) -> None:
        super().__init__(name)
        self.dtype = as_dtype(dtype)
        self.built = False

    if not TYPE_CHECKING:

        @asked
        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, ("built", "dtype"))

    def build(self, input_shape: Any) -> None:
        """Makes the variables."""

    def call(self, inputs: Any) -> Any:
        """The layer's function."""
        raise NotImplementedError

    def __call__(self, inputs: Nest, **arguments: Any) -> Tensor:
        """The layer's function of the inputs; lists, and whatever is floating, take the layer's
        dtype. `training` goes to layers that take it."""
        x = self._as_inputs(inputs)
        if not self.built:
            # A value made while tracing is not there when the next trace needs it.
            with at_top_level():
                self.build(tree_shape(x))
            self.built = True
        if "training" in arguments and not _takes_training(self):
            del arguments["training"]
        call = converted_here(self.call)
        return api_boundary(call)(x, **arguments) if arguments else call(x)

    def _as_inputs(self, inputs: Any) -> Any:
        if isinstance(inputs, dict) or (isinstance(inputs, (list, tuple)) and _has_tensors(inputs)):
            return inputs
        if isinstance(inputs, (list, tuple)):
            return as_tensor(inputs, self.dtype)
        x = as_tensor(inputs)
        return cast_to(x, self.dtype) if x.dtype.is_floating else x

    def add_weight(
        self,
        shape: Sequence[int],
        initializer: InitializerLike = "glorot_uniform",
        name: str | None = None,
        trainable: bool = True,
        dtype: DTypeLike | None = None,
    ) -> Variable:
        """A new variable, with the initial value that `initializer` gives."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        value = initializers.get(initializer)(as_shape("add_weight", shape), kind)
        trainable = as_flag("add_weight", "trainable", trainable)
        variable = Variable(value, trainable=trainable, name=name, dtype=kind)
        variable.has_plain_name = True
        return variable

    @property
    def weights(self) -> list[Variable]:
        """All variables, as a list."""
        return list(self.variables)

    def _ordered_attributes(self) -> list[tuple[str, Any]]:
        return list(vars(self).items())

    def __repr__(self) -> str:
        """The class, its settings that are no defaults, and its variables:
        `<Dense(units=3): kernel f32[4,3], bias f32[3]>`."""
        head = settings_text(self)
        if not self.built:
            return f"<{head}, not built>"
        rows = [f"{v.base_name} {v.tensor_type}" for v in self.variables]
        more = [f"{len(rows) - _MOST_SHOWN} more"] if len(rows) > _MOST_SHOWN else []
        return f"<{head}{': ' if rows else ''}{', '.join([*rows[:_MOST_SHOWN], *more])}>"


#: How many variables, or layers at each end, a `repr` lists.
_MOST_SHOWN = 6


def _has_tensors(inputs: Any) -> bool:
    return any(map(is_tensor, inputs))


def tree_shape(inputs: Any) -> Any:
    """The shape of a tensor; a list or dict of shapes for several."""
    if isinstance(inputs, dict):
        return {key: tree_shape(value) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return [tree_shape(x) for x in inputs]
    # The inputs may belong to a trace, outside of which this runs, so they are not touched.
    return inputs.shape if hasattr(inputs, "shape") else shape_of(as_tensor(inputs).type.shape)


class _Affine(Layer):
    """A product with a kernel, a bias for each output, and an activation."""

    def __init__(
        self,
        activation: Any,
        use_bias: bool,
        kernel_initializer: Any,
        bias_initializer: Any,
        name: str | None,
        dtype: Any,
    ) -> None:
        super().__init__(name, dtype)
        self.activation = _activation(activation)
        self.use_bias = as_flag(type(self).__name__, "use_bias", use_bias)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)

    def _make_weights(self, kernel_shape: Sequence[int]) -> None:
        """Makes the kernel, whose last axis has the outputs, and the bias."""
        self.kernel = self.add_weight(kernel_shape, self.kernel_initializer, "kernel")
        if self.use_bias:
            self.bias = self.add_weight(kernel_shape[-1:], self.bias_initializer, "bias")

    def _finished(self, product: Tensor) -> Tensor:
        y = add(product, self.bias) if self.use_bias else product
        return y if self.activation is None else self.activation(y)


class Dense(_Affine):
    """activation(x @ kernel + bias)

    - `units`: the size of the last axis of the result.
    - `activation`: a function, or a name such as "relu".
    - `kernel_initializer`, `bias_initializer`: functions of shape and dtype, or names.

    Inputs have the shape [..., inputs], where the number of inputs must be known.

    >>> tg.layers.Dense(3, activation="relu")(tg.ones([2, 4])).shape
    TensorShape([2, 3])
    """

    def __init__(
        self,
        units: int,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(activation, use_bias, kernel_initializer, bias_initializer, name, dtype)
        self.units = _positive("units", units)

    def build(self, input_shape: Any) -> None:
        self._make_weights([_known_last(self, input_shape), self.units])

    def call(self, inputs: Any) -> Tensor:
        return self._finished(matmul(inputs, self.kernel))


class Conv2D(_Affine):
    """activation(conv2d(x, kernel) + bias)

    - `filters`: the number of outputs; `kernel_size`, `strides`, `dilation_rate`: one int, or one
      for height and width each; `padding`: "valid" or "same"; `groups`: channels fall into groups,
      each of which makes its part of the outputs.

    Inputs have the shape [examples, height, width, channels].

    >>> tg.layers.Conv2D(8, 3, padding="same")(tg.ones([1, 5, 5, 2])).shape
    TensorShape([1, 5, 5, 8])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Window,
        strides: Window = (1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Window = (1, 1),
        groups: int = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(activation, use_bias, kernel_initializer, bias_initializer, name, dtype)
        self.filters = _positive("filters", filters)
        self.kernel_size = _pair("kernel_size", kernel_size)
        self.strides = _pair("strides", strides)
        self.padding = _padding(padding)
        self.dilation_rate = _pair("dilation_rate", dilation_rate)
        self.groups = _positive("groups", groups)
        _refuse_channels_first(data_format)

    def build(self, input_shape: Any) -> None:
        channels = _known_last(self, input_shape)
        if channels % self.groups or self.filters % self.groups:
            fail(
                SignatureError,
                f"Conv2D: {channels} channels and {self.filters} filters do not fall into "
                f"{self.groups} groups",
                fix="use a number of groups that divides both",
            )
        self._make_weights([*self.kernel_size, channels // self.groups, self.filters])

    def call(self, inputs: Any) -> Tensor:
        gaps = self.dilation_rate
        y = nn.conv2d(inputs, self.kernel, self.strides, self.padding, dilations=gaps)
        return self._finished(y)


class MaxPool2D(Layer):
    """The maximum of each window of [examples, height, width, channels].

    - `pool_size`, `strides`: one int, or one for height and width each; strides are pool_size by
      default; `padding`: "valid" or "same".

    >>> tg.layers.MaxPool2D(2)(tg.ones([1, 4, 4, 3])).shape
    TensorShape([1, 2, 2, 3])
    """

    def __init__(
        self,
        pool_size: Window = (2, 2),
        strides: Window | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.pool_size = _pair("pool_size", pool_size)
        self.strides = self.pool_size if strides is None else _pair("strides", strides)
        self.padding = _padding(padding)
        _refuse_channels_first(data_format)

    def call(self, inputs: Any) -> Tensor:
        return nn.max_pool2d(inputs, self.pool_size, self.strides, self.padding)


class AveragePooling2D(MaxPool2D):
    """The mean of each window of [examples, height, width, channels]; see `MaxPool2D`.

    >>> tg.layers.AveragePooling2D(2)(tg.ones([1, 4, 4, 3])).shape
    TensorShape([1, 2, 2, 3])
    """

    def call(self, inputs: Any) -> Tensor:
        return nn.avg_pool2d(inputs, self.pool_size, self.strides, self.padding)


MaxPooling2D = MaxPool2D


class Flatten(Layer):
    """All axes but the first joined into one.

    >>> tg.layers.Flatten()(tg.ones([2, 3, 4])).shape
    TensorShape([2, 12])
    """

    def call(self, inputs: Any) -> Tensor:
        x = as_tensor(inputs)
        sizes = sizes_of("Flatten", x)
        if not sizes:
            refuse("Flatten", "a scalar has no axis", x, fix="give inputs with an axis of examples")
        return reshape(x, [sizes[0], element_count(sizes[1:])])


class Activation(Layer):
    """A function without variables, or its name.

    >>> tg.layers.Activation("relu")([-1.0, 2.0]).numpy()
    array([0., 2.], dtype=float32)
    """

    def __init__(self, activation: ActivationLike, name: str | None = None) -> None:
        super().__init__(name)
        self.activation = _activation(activation)

    def call(self, inputs: Any) -> Any:
        return inputs if self.activation is None else self.activation(inputs)


class Dropout(Layer):
    """In training, elements are set to 0 with probability `rate`, others grow by 1 / (1 - rate).

    - `noise_shape`, `seed`: as in `tg.nn.dropout`.

    >>> tg.layers.Dropout(0.5)(tg.ones([2]), training=False).numpy()
    array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        rate: float,
        noise_shape: ShapeLike | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.rate = as_number("Dropout", "rate", rate, low=0, below=1)
        self.noise_shape, self.seed = noise_shape, seed

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        x = as_tensor(inputs)
        is_training = as_flag("Dropout", "training", training)
        return nn.dropout(x, self.rate, self.noise_shape, self.seed) if is_training else x


class BatchNormalization(Layer):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, for each channel along `axis`.

    In training mean and variance are those of the batch, and the moving ones are updated:
    moving = moving * momentum + batch * (1 - momentum). Otherwise the moving ones are used.

    >>> layer = tg.layers.BatchNormalization()
    >>> layer(tg.constant([[1.0], [3.0]]), training=True).numpy().round(2).tolist()
    [[-1.0], [1.0]]
    >>> [v.name for v in layer.variables]
    ['gamma', 'beta', 'moving_mean', 'moving_variance']
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        moving_mean_initializer: InitializerLike = "zeros",
        moving_variance_initializer: InitializerLike = "ones",
        name: str | None = None,
        dtype: DTypeLike = float32,
    ) -> None:
        super().__init__(name, dtype)
        self.axis = as_size("BatchNormalization", "axis", axis)
        self.momentum = as_number("BatchNormalization", "momentum", momentum, low=0, high=1)
        self.epsilon = as_number("BatchNormalization", "epsilon", epsilon, low=0)
        self.center = as_flag("BatchNormalization", "center", center)
        self.scale = as_flag("BatchNormalization", "scale", scale)
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)

    def build(self, input_shape: Any) -> None:
        axis = as_axis("BatchNormalization", self.axis, len(input_shape))
        shape = [_known(self, input_shape, axis)]
        if self.scale:
            self.gamma = self.add_weight(shape, self.gamma_initializer, "gamma")
        if self.center:
            self.beta = self.add_weight(shape, self.beta_initializer, "beta")
        self.moving_mean = self.add_weight(
            shape, self.moving_mean_initializer, "moving_mean", trainable=False
        )
        self.moving_variance = self.add_weight(
            shape, self.moving_variance_initializer, "moving_variance", trainable=False
        )

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        x = as_tensor(inputs)
        rank = rank_of("BatchNormalization", x)
        axis = as_axis("BatchNormalization", self.axis, rank, x)
        if as_flag("BatchNormalization", "training", training):
            mean, variance = nn.moments(x, [k for k in range(rank) if k != axis])
            self._move(self.moving_mean, mean)
            self._move(self.moving_variance, variance)
        else:
            mean, variance = self.moving_mean, self.moving_variance
        beta = self.beta if self.center else None
        gamma = self.gamma if self.scale else None
        parts = (self._spread(part, rank - 1 - axis) for part in (mean, variance, beta, gamma))
        return nn.batch_normalization(x, *parts, variance_epsilon=self.epsilon)

    def _move(self, moving: Variable, batch: Tensor) -> None:
        moving.assign(add(multiply(moving, self.momentum), multiply(batch, 1 - self.momentum)))

    @staticmethod
    def _spread(value: Any, axes_after: int) -> Any:
        """A vector along the channels, with an axis of size 1 for each axis after them."""
        return (
            value if value is None or not axes_after else reshape(value, [-1, *(1,) * axes_after])
        )


class Sequential(Layer):
    """Layers one after the other; `training` goes to those that take it.

    >>> model = tg.layers.Sequential([tg.layers.Flatten(), tg.layers.Dense(2)])
    >>> model(tg.ones([3, 4, 4])).shape
    TensorShape([3, 2])
    """

    def __init__(self, layers: Iterable[Any] = (), name: str | None = None) -> None:
        if callable(name):
            refuse_kind("Sequential", "layers are one list", name, fix=_LAYERS)
        super().__init__(name)
        self.layers: list[Any] = []
        if not isinstance(layers, Iterable):
            refuse_kind("Sequential", "layers is a list", layers, fix=_LAYERS)
        for layer in layers:
            self.add(layer)

    def add(self, layer: Callable[..., Any]) -> None:
        """Appends a layer, or any function of tensors."""
        if not callable(layer):
            refuse_kind("Sequential", "a layer is a function of tensors", layer, fix=_LAYERS)
        if isinstance(layer, type):
            rule = "a layer is an object, and not its class"
            refuse_kind("Sequential", rule, layer, fix=f"make one: {layer.__name__}(...)")
        self.layers.append(layer)
        announce(self)

    def __repr__(self) -> str:
        """The layers, a line for each, and how many parameters they have together."""
        parameters = sum(element_count(v.tensor_type.shape) for v in self.variables)
        head = f"{settings_text(self)} of {counted(len(self.layers), 'layer')}"
        head += f", {parameters} parameters" if self.built else ", not built"
        rows = [f"  {i}: {_layer_text(layer)}" for i, layer in enumerate(self.layers)]
        if len(rows) > 2 * _MOST_SHOWN:
            hidden = f"  ... {len(rows) - 2 * _MOST_SHOWN} more"
            rows = [*rows[:_MOST_SHOWN], hidden, *rows[-_MOST_SHOWN:]]
        return "\n".join([f"<{head}", *rows]) + ">"

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = inputs
        for layer in self.layers:
            x = layer(x, training=training) if _takes_training(layer) else layer(x)
        return x


def _layer_text(layer: Any) -> str:
    text = repr(layer) if isinstance(layer, Module) else shown(layer)
    return text.replace("\n", "\n  ")


_LAYERS = "give a list of layers: tg.layers.Sequential([tg.layers.Dense(2)])"


def _takes_training(layer: Any) -> bool:
    function = layer.call if isinstance(layer, Layer) else layer
    return "training" in parameters_of(function)


# Checks of arguments.


def _positive(what: str, value: Any) -> int:
    numbers = as_sizes("layer", what, value)
    if len(numbers) == 1 and isinstance(numbers[0], int) and numbers[0] > 0:
        return numbers[0]
    fail(SignatureError, f"{what} is {shown(value)}", fix="use a positive int")


def _pair(what: str, value: Any) -> tuple[int, int]:
    numbers = as_sizes("layer", what, value)
    if len(numbers) == 1:
        numbers = numbers * 2
    if len(numbers) == 2 and all(isinstance(n, int) and n > 0 for n in numbers):
        return numbers
    fail(SignatureError, f"{what} is {shown(value)}", fix="use one positive int, or two")


def _padding(padding: Any) -> str:
    kind = padding.lower() if isinstance(padding, str) else padding
    return as_choice("layer", "padding", kind, ("valid", "same")).upper()


def _refuse_channels_first(data_format: Any) -> None:
    as_choice("layer", "data_format", data_format, (None, "channels_last"))


def _known_last(layer: Layer, input_shape: Any) -> int:
    if len(input_shape) < 2:
        refuse(
            type(layer).__name__,
            f"the inputs have the shape {input_shape}",
            fix="give at least two axes, the first for the examples",
        )
    return _known(layer, input_shape, len(input_shape) - 1)


def _known(layer: Layer, input_shape: Any, axis: int) -> int:
    if isinstance(input_shape, dict):
        names = ", ".join(map(str, input_shape))
        fact = f"one tensor is needed, and a dict of {names} was given"
        refuse(type(layer).__name__, fact, fix="call the layer with one of them")
    size = input_shape[axis]
    if not isinstance(size, int):
        refuse(
            type(layer).__name__,
            f"the size of axis {axis} of the inputs, of shape {input_shape}, is open",
            fix="give it in the TensorSpec: variables need a known size",
        )
    return size


__all__ = [
    "Activation",
    "AveragePooling2D",
    "BatchNormalization",
    "Conv2D",
    "Dense",
    "Dropout",
    "Flatten",
    "Layer",
    "MaxPool2D",
    "MaxPooling2D",
    "Sequential",
]
