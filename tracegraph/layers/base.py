"""The base class of layers, and checks of their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

import numpy as np

from tracegraph import activations, constraints, initializers, nest, regularizers
from tracegraph.api.absent import refuse_attribute
from tracegraph.array.arguments import as_choice, as_flag, as_list, as_shape, as_sizes, refuse
from tracegraph.array.creation import identity, is_tensor, shape as shape_tensor
from tracegraph.array.shaping import reshape
from tracegraph.autograph.scope import converted_here
from tracegraph.boundary.argument_errors import SINGLE
from tracegraph.boundary.tracebacks import api_boundary, asked
from tracegraph.core.shapes import element_count
from tracegraph.core.tensorshape import shape_of
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.errors import ShapeError, SignatureError, TraceError, counted, fail, shown, were
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.calling import Weight, call_parameters, nested
from tracegraph.layers.shared import LayerOptions
from tracegraph.math.elementwise.arithmetic import add, divide
from tracegraph.math.elementwise.logic import not_equal
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.operands.masks import give_masks, mask_of, with_mask
from tracegraph.signatures.signature import parameters_of
from tracegraph.state.module import Module, added_losses, is_frozen, settings_text
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from typing import ParamSpec, Protocol, Self, TypeVar

    from numpy.typing import NDArray

    from tracegraph.typing import (
        ActivationLike,
        ConstraintLike,
        DTypeLike,
        InitializerLike,
        Nest,
        RegularizerLike,
        TensorLike,
    )

if TYPE_CHECKING:
    Arguments = ParamSpec("Arguments")
    Outputs = TypeVar("Outputs", covariant=True)

    # How calls of a layer are typed: as its `call` is, whose first argument is converted.

    class _OpenLayer(Protocol):
        """A layer of which only the base class is known: no `call` of a subclass fits."""

        def call(self, *inputs: object, **arguments: object) -> Any: ...

    class _Exact(Protocol[Arguments, Outputs]):
        """A layer called with what its `call` takes."""

        def call(self, *inputs: Arguments.args, **arguments: Arguments.kwargs) -> Outputs: ...

    class _Converted(Protocol[Arguments, Outputs]):
        """A layer called with arrays or numbers, of which it makes tensors."""

        def call(
            self, inputs: Any, /, *more: Arguments.args, **arguments: Arguments.kwargs
        ) -> Outputs: ...


#: The policies of variables of 32 bits, with the dtype in which the layer computes.
MIXED = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}

#: Marks missing inputs; None is a valid value.
_MISSING: Any = object()


class Layer(Module):
    """A function with variables, which `build` creates on the first call.

    Subclasses define `build(input_shape)`, which calls `add_weight`, and `call(inputs)`. Variables
    are listed in order of creation.

    - `dtype`: the dtype of the variables, to which floating inputs are cast; float32 by default.
      "mixed_float16" and "mixed_bfloat16" are Keras' policies: variables are float32, and the layer
      computes in 16 bits, which is its `compute_dtype`. Normalisations compute in float32.
    - `activity_regularizer`: a function of the layer's output, or its name; see `losses`.
    - `trainable`: whether its variables are to be trained; see the attribute of this name.
    """

    if TYPE_CHECKING:  # any Module has it, but one that is not a layer may have its own
        losses: list[Tensor]

    #: Whether `trainable` was set to False; only layers for which it was set have the attribute.
    _is_frozen: bool
    #: A regularizer of the layer's output; see `losses`.
    activity_regularizer: Any = None
    #: The dtype in which it computes, if that is not the one of its variables.
    _mixed_with: DType | None = None
    #: Whether it computes in the dtype of its variables, whatever that of the results is.
    _computes_in_full = False
    #: Whether the mask of the inputs is that of the outputs too, as where steps stay apart.
    supports_masking = False
    _is_named_as_in_keras = True
    #: Whether the `mask` of a call, if there is one, is about steps.
    _masks_steps = True

    def __init__(
        self,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        activity_regularizer: RegularizerLike = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name)
        is_mixed = isinstance(dtype, str) and dtype in MIXED
        self.dtype = float32 if dtype is None or is_mixed else as_dtype(dtype)
        if is_mixed:
            self._mixed_with = as_dtype(MIXED[dtype])  # type: ignore[index]
        self.built = False
        if not as_flag(type(self).__name__, "trainable", trainable):
            self.trainable = False
        if activity_regularizer is not None:
            self.activity_regularizer = regularizers.get(activity_regularizer)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        build = vars(cls).get("build")
        if isinstance(build, FunctionType):
            cls.build = _marking_built(build)  # type: ignore[method-assign]

    if not TYPE_CHECKING:

        @asked
        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, ("built", "dtype"))

    @property
    def compute_dtype(self) -> DType:
        """The dtype in which the layer computes, and of its results: that of its variables, or of
        16 bits with a mixed `dtype`."""
        return self._mixed_with or self.dtype

    @property
    def variable_dtype(self) -> DType:
        """The dtype of the variables: another name of `dtype`."""
        return self.dtype

    @property
    def _is_mixed(self) -> bool:
        return self._mixed_with is not None

    @property
    def _policy(self) -> DTypeLike:
        """What to give as `dtype` to a layer that computes as this one does."""
        return f"mixed_{self.compute_dtype.name}" if self._is_mixed else self.dtype

    @property
    def _input_dtype(self) -> DType:
        return self.dtype if self._computes_in_full else self.compute_dtype

    def build(self, input_shape: Any) -> None:
        """Creates the variables."""

    @property
    def _makes_variables(self) -> bool:
        """Whether the layer overrides `build`, which may create variables."""
        return type(self).build is not Layer.build

    def call(self, *inputs: Any, **arguments: Any) -> Any:
        """Computes the layer's outputs."""
        raise NotImplementedError

    def compute_mask(self, inputs: Nest, mask: TensorLike | None = None) -> TensorLike | None:
        """The mask of the outputs, given the inputs and their mask: true where a step counts. The
        next layer that takes a `mask` gets it with the outputs.

        By default it is the mask of the inputs if the layer has `supports_masking`, and else None.
        For several outputs, it may be a list.
        """
        return mask if self.supports_masking else None

    def _mask_of_call(self, inputs: Nest, mask: TensorLike | None) -> TensorLike | None:
        """The mask of what a call returned, which has none."""
        return self.compute_mask(inputs, mask)

    @overload
    def __call__(self: _OpenLayer, inputs: Nest, *more: Any, **arguments: Any) -> Tensor: ...
    @overload
    def __call__(
        self: _Exact[Arguments, Outputs], *inputs: Arguments.args, **arguments: Arguments.kwargs
    ) -> Outputs: ...
    @overload
    def __call__(
        self: _Converted[Arguments, Outputs],
        inputs: Nest,
        *more: Arguments.args,
        **arguments: Arguments.kwargs,
    ) -> Outputs: ...
    @overload
    def __call__(
        self: _Converted[..., Outputs], inputs: Nest, *, training: bool | None
    ) -> Outputs: ...
    def __call__(self, inputs: Nest = _MISSING, *more: Any, **arguments: Any) -> Any:
        """Calls the layer; lists, and all floating inputs, are converted to its dtype.

        A layer that takes `training` and is not given it gets that of the layer that calls it, and
        one that takes a `mask` gets the mask of its inputs: see `compute_mask`. Of several inputs,
        `x_mask` is the mask of `x`.
        """
        if inputs is _MISSING or more:
            inputs = self._first_of(inputs, more, arguments)
        return self._called(inputs, more, arguments)

    def _first_of(self, inputs: Any, more: Sequence[Any], arguments: dict[str, Any]) -> Any:
        """The inputs, which may be passed by the name of `call`'s first parameter."""
        parameters = parameters_of(self.call).values()
        names = [p.name for p in parameters if p.kind in SINGLE and p.kind is not p.KEYWORD_ONLY]
        fact = None
        if inputs is not _MISSING:
            takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters)
            if len(more) >= len(names) and not takes_all:
                most = counted(len(names), "argument")
                fact = f"it takes {most} by position, and {were(1 + len(more))} given"
        elif names and names[0] in arguments:
            inputs = arguments.pop(names[0])
        else:
            fact = f"the argument {(names or ['inputs'])[0]!r} is missing"
        if fact is not None:
            fail(TraceError, f"{type(self).__name__}: {fact}", fix=f"give {', '.join(names)}")
        return inputs

    def _called(self, inputs: Any, more: Sequence[Any], arguments: dict[str, Any]) -> Any:
        parameters = call_parameters(self.call)
        training = parameters.take_training(more, arguments)
        mask = parameters.take_masks(inputs, more, arguments, takes_mask=self._masks_steps)
        x = self._as_inputs(inputs)
        rest = [self._cast(value) for value in more]
        if arguments:
            arguments = {key: self._cast(value) for key, value in arguments.items()}
        if not self.built:
            # A value created while tracing would not exist when the next trace needs it.
            with at_top_level():
                self._build_for(x, rest, arguments)
            self.built = True
        call = converted_here(self.call)
        with nested(self, training, self._input_dtype):
            plain = not (rest or arguments)
            result = call(x) if plain else api_boundary(call)(x, *rest, **arguments)
            if self._is_mixed and self._computes_in_full:
                result = nest.map_structure(self._cast_result, result)
            if self.activity_regularizer is not None:
                self._regularize(result)
        if mask_of(result) is None:
            masks = self._mask_of_call(x, mask)
            if masks is not None:
                result = identity(result) if result is x else result  # x may be the caller's
                give_masks(result, masks)
        return result

    def _build_for(self, x: Any, more: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        """Builds the layer for a call with these arguments."""
        self.build(tree_shape(x))

    def _as_inputs(self, inputs: Any) -> Any:
        if isinstance(inputs, dict):
            return self._cast(inputs)
        if isinstance(inputs, (list, tuple)):
            is_structure = _has_tensors(inputs)
            return self._cast(inputs) if is_structure else as_tensor(inputs, self._input_dtype)
        return self._cast_leaf(as_tensor(inputs))

    def _cast(self, value: Any) -> Any:
        """The value with each floating tensor or array in it cast to the layer's dtype."""
        if value is None or isinstance(value, (bool, str)):
            return value
        return nest.map_structure(self._cast_leaf, value)

    def _cast_leaf(self, value: Any) -> Any:
        if not _is_array(value):
            return value
        x = as_tensor(value)
        if not x.dtype.is_floating:
            return x
        return with_mask(cast_to(x, self._input_dtype), mask_of(x))

    def _cast_result(self, y: Any) -> Any:
        return cast_to(y, self.compute_dtype) if y.dtype.is_floating else y

    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: InitializerLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        trainable: bool = True,
        regularizer: RegularizerLike = None,
        constraint: ConstraintLike = None,
        name: str | None = None,
    ) -> Variable:
        """Creates a variable of the layer's dtype, with the initial value from `initializer`.

        - `initializer`: a function of a shape and a dtype, or its name; by default
          "glorot_uniform", or "zeros" for a dtype that is not floating.
        - `regularizer`: a function of the variable, whose value `losses` lists, or its name.
        - `constraint`: a function that optimizers apply to the value after an update, or its name.
        """
        kind = self.dtype if dtype is None else as_dtype(dtype)
        if initializer is None:
            initializer = "glorot_uniform" if kind.is_floating else "zeros"
        value = initializers.get(initializer)(as_shape("add_weight", shape), kind)
        trainable = as_flag("add_weight", "trainable", trainable)
        limit = constraints.get(constraint)
        made = Weight if self._is_mixed and kind.is_floating else Variable
        variable = made(value, trainable=trainable, name=name, dtype=kind, constraint=limit)
        variable.regularizer = regularizers.get(regularizer)
        variable.has_plain_name = True
        return variable

    def add_loss(self, loss: TensorLike) -> None:
        """Adds a scalar to `losses`, until the layer, or one that contains it, is called again."""
        added_losses.setdefault(self, []).append(as_tensor(loss))

    def _regularize(self, result: Any) -> None:
        """Adds the regularizer of each output as a loss, divided by the number of examples."""
        for leaf in nest.flatten(result):
            y = as_tensor(leaf)
            loss = self.activity_regularizer(y)
            count = cast_to(shape_tensor(y)[0], loss.dtype) if y.ndim else 1.0
            self.add_loss(divide(loss, count))

    def _describe(
        self, weight: str, initializer: Any, regularizer: Any = None, constraint: Any = None
    ) -> None:
        """Stores the settings of a weight under Keras' names: `kernel_initializer`, ..."""
        setattr(self, f"{weight}_initializer", initializers.get(initializer))
        setattr(self, f"{weight}_regularizer", regularizers.get(regularizer))
        setattr(self, f"{weight}_constraint", constraints.get(constraint))

    def _make(
        self, weight: str, shape: Sequence[int], name: str | None = None, initializer: Any = None
    ) -> Variable:
        """Creates a weight from the settings in `_describe`, except for its name or initializer."""
        parts = (f"{weight}_{part}" for part in ("initializer", "regularizer", "constraint"))
        own, regularizer, constraint = (getattr(self, part) for part in parts)
        start = own if initializer is None else initializer
        made = {"regularizer": regularizer, "constraint": constraint}
        return self.add_weight(shape, start, name=name or weight, **made)

    # Lists as in Keras, so that programs can add other variables: layer.variables + [offset].
    @property
    def variables(self) -> list[Variable]:  # type: ignore[override]
        """All variables."""
        return [*super().variables]

    @property
    def trainable_variables(self) -> list[Variable]:  # type: ignore[override]
        """The variables to train: none of a layer that is not `trainable`."""
        return [*super().trainable_variables]

    @property
    def non_trainable_variables(self) -> list[Variable]:  # type: ignore[override]
        """The other variables."""
        return [*super().non_trainable_variables]

    @property
    def weights(self) -> list[Variable]:
        """The variables, but for those of metrics and optimizers that the layer holds."""
        return self._weights_of(self.variables)

    @property
    def trainable_weights(self) -> list[Variable]:
        """Those of `weights` that are to be trained."""
        return self._weights_of(self.trainable_variables)

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """The other ones of `weights`."""
        return self._weights_of(self.non_trainable_variables)

    def _weights_of(self, variables: list[Variable]) -> list[Variable]:
        holders = (module for module in self.submodules if not module._holds_weights)
        others = {id(v) for module in holders for v in module.variables}
        return [v for v in variables if id(v) not in others]

    @property
    def trainable(self) -> bool:
        """Whether `trainable_variables` lists the variables of the layer and of those that it
        contains; setting it sets it for each of them too.

        A function that was traced before keeps the variables that it trains, as in TensorFlow. A
        frozen `BatchNormalization` uses the moving statistics, in training too, as in Keras.

        >>> body, head = tg.layers.Dense(3), tg.layers.Dense(1)
        >>> model = tg.layers.Sequential([body, head])
        >>> model(tg.ones([1, 2])).shape
        TensorShape([1, 1])
        >>> body.trainable = False
        >>> len(model.trainable_variables), len(model.variables)
        (2, 4)
        """
        return not is_frozen(self)

    @trainable.setter
    def trainable(self, value: Any) -> None:
        freezes = not as_flag(type(self).__name__, "trainable", value)
        for module in (self, *self.submodules):
            if isinstance(module, Layer) and is_frozen(module) != freezes:
                module._is_frozen = freezes

    def count_params(self) -> int:
        """The total number of elements in the weights."""
        return parameter_count(self.weights)

    def get_weights(self) -> list[NDArray[Any]]:
        """The values of all weights, as arrays."""
        return [variable.numpy() for variable in self.weights]

    def set_weights(self, weights: Sequence[TensorLike]) -> None:
        """Assigns the weights, in their order.

        Raises ShapeError unless there is one value of the right shape for each weight.
        """
        values, own = as_list("set_weights", "weights", weights), self.weights
        if len(values) != len(own):
            fact = f"set_weights: {len(values)} values for {len(own)} variables"
            fail(ShapeError, fact, fix="give one for each of layer.weights, in their order")
        for variable, value in zip(own, values):
            variable.assign(value)

    @api_boundary
    def get_config(self) -> dict[str, Any]:
        """The `name`, the `trainable` and the `dtype` of a layer whose class has its own
        `get_config`, which adds the other arguments: what `from_config` takes.

        Raises AttributeError for a class that has none, as ours.

        >>> class Scale(tg.layers.Layer):
        ...     def __init__(self, by, **kwargs):
        ...         super().__init__(**kwargs)
        ...         self.by = by
        ...     def get_config(self):
        ...         return {**super().get_config(), "by": self.by}
        >>> Scale(2.0).get_config()
        {'name': 'scale', 'trainable': True, 'dtype': 'float32', 'by': 2.0}
        >>> Scale.from_config(Scale(2.0).get_config()).by
        2.0
        """
        if type(self).get_config is Layer.get_config:
            refuse_attribute(self, "get_config", ())
        policy = self._policy
        dtype = policy.name if isinstance(policy, DType) else policy
        return {"name": self.name, "trainable": self.trainable, "dtype": dtype}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The layer with these arguments: `cls(**config)`."""
        return cls(**config)

    def __repr__(self) -> str:
        """As that of any Module, but a layer may have no variables yet: `<Dense(units=3), not
        built>`."""
        return super().__repr__() if self.built else f"<{settings_text(self)}, not built>"


def _marking_built(build: Callable[..., Any]) -> Any:
    """`build`, after which the layer is built whoever called it: the first call of the layer must
    not create its variables again."""

    @functools.wraps(build)
    def marking(layer: Layer, *shapes: Any, **arguments: Any) -> None:
        build(layer, *shapes, **arguments)
        if inspect.unwrap(type(layer).build) is build:  # and not one that goes on after this one
            layer.built = True

    return marking


def _has_tensors(inputs: Sequence[Any]) -> bool:
    """Whether a list, or one inside it, has tensors or arrays: it is a structure, as in Keras.
    Otherwise it is a list of numbers, which stands for one tensor."""
    return any(_has_tensors(x) if isinstance(x, (list, tuple)) else _is_array(x) for x in inputs)


def _is_array(value: Any) -> bool:
    return is_tensor(value) or isinstance(value, np.ndarray)


def tree_shape(inputs: Any) -> Any:
    """The shape of a tensor, or a list or dict of shapes for several."""
    if isinstance(inputs, dict):
        return {key: tree_shape(value) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return [tree_shape(x) for x in inputs]
    # The inputs may belong to a trace, and this runs outside it, so do not operate on them.
    return inputs.shape if hasattr(inputs, "shape") else shape_of(as_tensor(inputs).type.shape)


def takes(layer: Any, argument: str) -> bool:
    """Whether a layer or a function has a parameter of this name."""
    if isinstance(layer, Layer):
        return argument in call_parameters(layer.call).all
    return argument in parameters_of(layer)


def parameter_count(variables: Sequence[Variable]) -> int:
    """The total number of elements in these variables; of an open one, those that it has now."""
    with at_top_level():
        types = [
            v.tensor_type if v.tensor_type.is_static else v.read_value().type for v in variables
        ]
    return sum(int(element_count(type.shape)) for type in types)  # type: ignore[arg-type]


def activation_of(activation: Any) -> Callable[[Any], Any] | None:
    """The activation function for a name, or a function unchanged; None for None."""
    return None if activation is None else activations.get(activation)


class Affine(Layer):
    """A product with a kernel, plus a bias for each output, then an activation."""

    def __init__(
        self,
        activation: ActivationLike,
        use_bias: bool,
        activity_regularizer: RegularizerLike,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.activation = activation_of(activation)
        self.use_bias = as_flag(type(self).__name__, "use_bias", use_bias)
        self.activity_regularizer = regularizers.get(activity_regularizer)

    def _make_bias(self, size: int) -> None:
        if self.use_bias:
            self.bias = self._make("bias", [size])

    def _finished(self, product: Tensor, is_channels_first: bool = False) -> Tensor:
        """Adds the bias and applies the activation; channels are the last axis, or axis 1."""
        y = product
        if self.use_bias:
            axes_after = product.ndim - 2 if is_channels_first else 0
            y = add(product, along_channels(self.bias, axes_after))
        return y if self.activation is None else self.activation(y)


def along_channels(value: Any, axes_after: int) -> Any:
    """A vector along the channel axis, with axes of size 1 for the axes after it."""
    return reshape(value, [-1, *(1,) * axes_after]) if axes_after else value


# Checks of arguments.


def flags_of(mask: Any) -> Tensor:
    """Where a mask is true; numbers count as true unless they are 0."""
    x = as_tensor(mask)
    return x if x.dtype.name == "bool" else not_equal(x, 0)


def positive(op: str, what: str, value: Any) -> int:
    """A positive int."""
    numbers = as_sizes(op, what, value)
    if len(numbers) == 1 and isinstance(numbers[0], int) and numbers[0] > 0:
        return numbers[0]
    fail(SignatureError, f"{op}: {what} is {shown(value)}", fix="use a positive int")


def window(op: str, what: str, value: Any, rank: int, low: int = 1) -> tuple[int, ...]:
    """One int for each of `rank` axes, from a single int or one per axis."""
    numbers = as_sizes(op, what, value)
    if len(numbers) == 1:
        numbers = numbers * rank
    if len(numbers) == rank and all(isinstance(n, int) and n >= low for n in numbers):
        return numbers
    kind = "positive int" if low else "int of 0 or more"
    several = f", or {rank}" if rank > 1 else ""
    fail(SignatureError, f"{op}: {what} is {shown(value)}", fix=f"use one {kind}{several}")


def padding_of(op: str, padding: Any, *more: str) -> str:
    """ "VALID" or "SAME", or one of `more`, case-insensitive."""
    kind = padding.lower() if isinstance(padding, str) else padding
    return as_choice(op, "padding", kind, ("valid", "same", *more)).upper()


def is_channels_first(op: str, data_format: Any) -> bool:
    """Whether the channels are axis 1 rather than the last one."""
    choices = (None, "channels_last", "channels_first")
    return as_choice(op, "data_format", data_format, choices) == "channels_first"


def format_of(data_format: Any) -> str:
    """The name of a data format in the functions of `tg.nn`."""
    return "NC..." if data_format == "channels_first" else "N...C"


def known_last(layer: Layer, input_shape: Any) -> int:
    """The size of the last axis, which must be known."""
    if len(input_shape) < 2:
        refuse(
            type(layer).__name__,
            f"the inputs have the shape {input_shape}",
            fix="give at least two axes, the first for the examples",
        )
    return known(layer, input_shape, len(input_shape) - 1)


def known(layer: Layer, input_shape: Any, axis: int) -> int:
    """The size of an axis, which must be known."""
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
