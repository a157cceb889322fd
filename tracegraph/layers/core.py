"""Products with a kernel, tables of vectors, and functions as layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from tracegraph.array.arguments import as_flag, as_number, as_sizes, refuse_kind
from tracegraph.array.indexing.selection import gather, where
from tracegraph.core.types import as_dtype, int32
from tracegraph.errors import SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Affine, Layer, activation_of, known_last, positive, takes
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, divide, multiply
from tracegraph.math.elementwise.logic import not_equal
from tracegraph.math.elementwise.unary import tanh
from tracegraph.math.product import einsum, matmul
from tracegraph.math.reduction import reduce_any
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.operands.masks import with_mask
from tracegraph.typing import (
    ActivationLike,
    ConstraintLike,
    DTypeLike,
    InitializerLike,
    Nest,
    Positional,
    RegularizerLike,
    TensorLike,
)


class Dense(Affine):
    """activation(x @ kernel + bias)

    - `units`: the size of the last axis of the result.
    - `activation`: a function, or a name such as "relu".
    - `kernel_initializer`, `bias_initializer`: functions of shape and dtype, or names.
    - `kernel_regularizer`, `bias_regularizer`, `activity_regularizer`: terms that `losses` lists.
    - `kernel_constraint`, `bias_constraint`: functions that optimizers apply after an update.

    Inputs have shape [..., inputs]; the last size must be known.

    >>> tg.layers.Dense(3, activation="relu")(tg.ones([2, 4])).shape
    TensorShape([2, 3])
    """

    supports_masking = True

    @takes_options
    def __init__(
        self,
        units: int,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, **options)
        self.units = positive("Dense", "units", units)
        self._describe("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape: Any) -> None:
        self.kernel = self._make("kernel", [known_last(self, input_shape), self.units])
        self._make_bias(self.units)

    def call(self, inputs: Tensor) -> Tensor:
        return self._finished(matmul(inputs, self.kernel))


class EinsumDense(Layer):
    """activation(einsum(equation, x, kernel) + bias)

    - `equation`: such as "abc,cd->abd"; an ellipsis stands for further axes of the examples.
    - `output_shape`: the sizes after the first axis of the result, with None for those of the
      inputs. One int is the last size.
    - `bias_axes`: the letters of the result along which the bias varies; None for no bias.

    Raises ValueError for an invalid equation, or a size that cannot be inferred.

    >>> layer = tg.layers.EinsumDense("abc,cd->abd", output_shape=(None, 64), bias_axes="d")
    >>> layer(tg.ones([2, 3, 32])).shape
    TensorShape([2, 3, 64])
    """

    @takes_options
    def __init__(
        self,
        equation: str,
        output_shape: int | Sequence[int | None],
        activation: ActivationLike = None,
        bias_axes: str | None = None,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.equation = equation
        self._letters = _letters(equation)
        sizes = output_shape if isinstance(output_shape, (list, tuple)) else [output_shape]
        known = iter(as_sizes("EinsumDense", "output_shape", [n for n in sizes if n is not None]))
        self.partial_output_shape = [None if n is None else next(known) for n in sizes]
        self.bias_axes, self.activation = bias_axes, activation_of(activation)
        self._describe("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._describe("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape: Any) -> None:
        _, kernel, y = self._letters
        sizes = self._sizes(input_shape)
        missing = [letter for letter in kernel if not isinstance(sizes.get(letter), int)]
        if missing:
            fact = f"EinsumDense: nothing tells the size {missing[0]!r} of {self.equation!r}"
            fail(SignatureError, fact, fix="give it in output_shape, or in the TensorSpec")
        self.kernel = self._make("kernel", [sizes[letter] for letter in kernel])
        if self.bias_axes:
            if not set(self.bias_axes) <= set(y):
                fact = f"EinsumDense: bias_axes is {self.bias_axes!r}, and the result has {y!r}"
                fail(SignatureError, fact, fix="use letters of the result")
            first = min(map(y.index, self.bias_axes))
            varying = [sizes[c] if c in self.bias_axes else 1 for c in y[first:]]
            self.bias = self._make("bias", varying)

    def _sizes(self, input_shape: Any) -> dict[str, Any]:
        """The size of each letter; those of the result where they are given."""
        x, _, y = self._letters
        has_dots = "." in x
        rank = len(x) - has_dots
        shape = list(input_shape)
        if len(shape) < rank or (len(shape) > rank and not has_dots):
            fact = f"EinsumDense: inputs of the shape {input_shape} for {self.equation!r}"
            fail(SignatureError, fact, fix="give one axis for each letter")
        front, _, back = x.partition(".") if has_dots else (x, "", "")
        told = dict(zip(front, shape)) | dict(zip(reversed(back), reversed(shape)))
        result = y.replace(".", "")
        own = dict(zip(reversed(result), reversed(self.partial_output_shape)))
        return told | {letter: size for letter, size in own.items() if size is not None}

    def call(self, inputs: Tensor) -> Tensor:
        y = einsum(self.equation, inputs, self.kernel)
        if self.bias_axes:
            y = add(y, self.bias)
        return y if self.activation is None else self.activation(y)


def _letters(equation: Any) -> tuple[str, str, str]:
    """The letters of the inputs, the kernel and the result; a dot stands for an ellipsis."""
    parts = equation.replace(" ", "").replace("...", ".") if isinstance(equation, str) else ""
    given, arrow, result = parts.partition("->")
    terms = given.split(",")
    if not arrow or len(terms) != 2:
        fact = f"EinsumDense: {shown(equation)} is not an equation of inputs and a kernel"
        fail(SignatureError, fact, fix='use two terms and a result, such as "ab,bc->ac"')
    return terms[0], terms[1], result


class Embedding(Layer):
    """Looks up a row of a table for each integer.

    - `input_dim`: the number of rows; integers are below it. `output_dim`: the size of a row.
    - `mask_zero`: whether 0 is padding, which later layers leave out; see `Layer.compute_mask`.
    - `weights`: the table, or a list that holds it, instead of an initializer.

    Integers of shape [...] give [..., output_dim].

    >>> layer = tg.layers.Embedding(10, 4, mask_zero=True)
    >>> layer([[3, 0]]).shape
    TensorShape([1, 2, 4])
    >>> layer.compute_mask([[3, 0]]).numpy()
    array([[ True, False]])
    """

    @takes_options
    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: InitializerLike = "uniform",
        embeddings_regularizer: RegularizerLike = None,
        embeddings_constraint: ConstraintLike = None,
        mask_zero: bool = False,
        weights: TensorLike | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        self.input_dim = positive("Embedding", "input_dim", input_dim)
        self.output_dim = positive("Embedding", "output_dim", output_dim)
        self.mask_zero = as_flag("Embedding", "mask_zero", mask_zero)
        self._describe(
            "embeddings", embeddings_initializer, embeddings_regularizer, embeddings_constraint
        )
        if weights is not None:
            self.build(None)
            self.set_weights(weights if isinstance(weights, (list, tuple)) else [weights])

    def build(self, input_shape: Any) -> None:
        self.embeddings = self._make("embeddings", [self.input_dim, self.output_dim])

    def _as_inputs(self, inputs: Any) -> Any:
        x = as_tensor(inputs)
        return x if x.dtype.is_integer else cast_to(x, int32)

    def call(self, inputs: Tensor) -> Tensor:
        return gather(self.embeddings, inputs)

    def compute_mask(self, inputs: TensorLike, mask: object = None) -> Tensor | None:
        """Where the integers are not 0, whatever `mask` is; None without `mask_zero`."""
        return not_equal(inputs, 0) if self.mask_zero else None


class ReversibleEmbedding(Embedding):
    """An `Embedding` that also goes back, from vectors to one number for each integer.

    - `tie_weights`: whether the way back is the product with the transposed table; otherwise it has
      a kernel of its own, `reverse_embeddings`.
    - `reverse_dtype`: the dtype of this product; by default that in which the layer computes.
    - `logit_soft_cap`: with c, the results are c tanh(product / c), from -c to c.
    - The other arguments are those of `Embedding`, but for `weights`.

    Integers of shape [...] give [..., output_dim], and a call with `reverse=True` of vectors
    [..., output_dim] gives [..., input_dim]. From Press and Wolf, "Using the Output Embedding to
    Improve Language Models".

    >>> layer = tg.layers.ReversibleEmbedding(10, 4)
    >>> vectors = layer([[3, 0]])
    >>> vectors.shape, layer(vectors, reverse=True).shape
    (TensorShape([1, 2, 4]), TensorShape([1, 2, 10]))
    """

    embeddings_initializer: Any

    @takes_options
    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tie_weights: bool = True,
        embeddings_initializer: InitializerLike = "uniform",
        embeddings_regularizer: RegularizerLike = None,
        embeddings_constraint: ConstraintLike = None,
        mask_zero: bool = False,
        reverse_dtype: DTypeLike | None = None,
        logit_soft_cap: float | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            embeddings_regularizer,
            embeddings_constraint,
            mask_zero,
            **options,
        )
        op = "ReversibleEmbedding"
        self.tie_weights = as_flag(op, "tie_weights", tie_weights)
        self.reverse_dtype = None if reverse_dtype is None else as_dtype(reverse_dtype)
        self.logit_soft_cap = logit_soft_cap
        if logit_soft_cap is not None:
            as_number(op, "logit_soft_cap", logit_soft_cap)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        if not self.tie_weights:
            shape = [self.output_dim, self.input_dim]
            start = self.embeddings_initializer
            self.reverse_embeddings = self.add_weight(shape, start, name="reverse_embeddings")

    def _as_inputs(self, inputs: Any) -> Any:
        return as_tensor(inputs)  # integers or vectors

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if not as_flag("ReversibleEmbedding", "reverse", reverse):
            numbers = super()._as_inputs(inputs)
            return with_mask(super().call(numbers), super().compute_mask(numbers))
        kind = self.reverse_dtype or self.compute_dtype
        table = self.embeddings if self.tie_weights else self.reverse_embeddings
        kernel = cast_to(as_tensor(table), kind)
        y = matmul(cast_to(inputs, kind), kernel, transpose_b=self.tie_weights)
        cap = self.logit_soft_cap
        return y if cap is None else multiply(tanh(divide(y, cap)), cap)

    def compute_mask(self, inputs: TensorLike, mask: object = None) -> None:
        """None: the call itself gives vectors their mask, and numbers have none."""


class Lambda(Layer):
    """Wraps a function without variables of its own.

    - `arguments`: keyword arguments for the function.
    - `mask`: the mask of the outputs, or a function of the inputs and their mask that returns it.

    >>> tg.layers.Lambda(lambda x, power: x**power, arguments={"power": 2})([3.0]).numpy()
    array([9.], dtype=float32)
    """

    @takes_options
    def __init__(
        self,
        function: Positional[Any],
        output_shape: object = None,
        mask: TensorLike | Callable[..., TensorLike | None] | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        if not callable(function):
            refuse_kind("Lambda", "function is a function of tensors", function, fix="give one")
        self.function, self.arguments = function, dict(arguments or {})
        self.mask = mask

    def compute_mask(self, inputs: Nest, mask: TensorLike | None = None) -> TensorLike | None:
        """What `mask` of the constructor is, or returns for the inputs and their mask."""
        return self.mask(inputs, mask) if callable(self.mask) else self.mask

    def call(self, inputs: Nest, training: bool | None = None) -> Tensor:
        more = {"training": training} if takes(self.function, "training") else {}
        function: Callable[..., Any] = self.function
        return function(inputs, **{**more, **self.arguments})


class Masking(Layer):
    """Masks the steps of [examples, steps, numbers] at which all numbers are `mask_value`, and sets
    these to 0.

    Later layers leave masked steps out; see `Layer.compute_mask`.

    >>> layer = tg.layers.Masking(mask_value=-1.0)
    >>> x = tg.constant([[[2.0, -1.0], [-1.0, -1.0]]])
    >>> layer(x).numpy().tolist()
    [[[2.0, -1.0], [0.0, 0.0]]]
    >>> layer.compute_mask(x).numpy()
    array([[ True, False]])
    """

    @takes_options
    def __init__(self, mask_value: float = 0.0, **options: Unpack[LayerOptions]) -> None:
        super().__init__(**options)
        self.mask_value = as_number("Masking", "mask_value", mask_value)

    def call(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        return where(self._counts(x, True), x, cast_to(as_tensor(0.0), x.dtype))

    def compute_mask(self, inputs: TensorLike, mask: object = None) -> Tensor:
        """Where a step has a number that is not `mask_value`, whatever `mask` is."""
        return self._counts(as_tensor(self._as_inputs(inputs)), False)

    def _counts(self, x: Tensor, keepdims: bool) -> Tensor:
        return reduce_any(not_equal(x, cast_to(as_tensor(self.mask_value), x.dtype)), -1, keepdims)


class Identity(Layer):
    """Returns its inputs unchanged.

    >>> tg.layers.Identity()([1.0]).numpy()
    array([1.], dtype=float32)
    """

    supports_masking = True

    def call(self, inputs: Nest) -> Tensor:
        return inputs  # type: ignore[return-value]


class Rescaling(Layer):
    """x * scale + offset

    - `scale`, `offset`: numbers, or one per channel.

    >>> tg.layers.Rescaling(1 / 127.5, offset=-1.0)([[0.0, 255.0]]).numpy()
    array([[-1.,  1.]], dtype=float32)
    """

    supports_masking = True

    @takes_options
    def __init__(
        self, scale: TensorLike, offset: TensorLike = 0.0, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        for factor in (scale, offset):
            as_tensor(factor)  # raises here if it is not a number
        self.scale, self.offset = scale, offset

    def call(self, inputs: Tensor) -> Tensor:
        x = cast_to(as_tensor(inputs), self.compute_dtype)
        scale, offset = (
            as_tensor(value, self.compute_dtype) for value in (self.scale, self.offset)
        )
        return add(multiply(x, scale), offset)
