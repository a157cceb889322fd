"""Initial values of variables: functions of a shape and a dtype, also known by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tracegraph.api.absent import publish
from tracegraph.array.arguments import as_axes, as_choice, as_number, as_shape
from tracegraph.array.creation import (
    constant as constant_of,
    eye,
    ones as ones_of,
    zeros as zeros_of,
)
from tracegraph.array.shaping import reshape, transpose
from tracegraph.core.types import DType, as_dtype, float32
from tracegraph.errors import ShapeError, SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.linalg.decompositions import qr
from tracegraph.linalg.parts import diag_part
from tracegraph.math.elementwise.arithmetic import multiply
from tracegraph.math.elementwise.unary import sign
from tracegraph.operands.conversion import as_tensor, broadcast, broadcast_two, cast_to
from tracegraph.random.draws import draw_normal, draw_truncated_normal, draw_uniform
from tracegraph.random.generators import generator_of, key_of_seed
from tracegraph.state.module import WithSettings
from tracegraph.typing import Axis, DTypeLike, ShapeLike, TensorLike

#: The standard deviation of a standard normal distribution truncated at two.
_TRUNCATED_DEVIATION = 0.87962566103423978


class Initializer(WithSettings):
    """A function of a shape and a dtype, by default float32, that returns a tensor."""

    def __init__(self) -> None:
        pass  # that of `object` would raise Python's own errors for arguments

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None) -> Tensor:
        return self._values(shape, float32 if dtype is None else as_dtype(dtype))

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        raise NotImplementedError


class Zeros(Initializer):
    """Zeros.

    >>> tg.initializers.Zeros()([2]).numpy()
    array([0., 0.], dtype=float32)
    """

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        return zeros_of(shape, dtype)


class Ones(Initializer):
    """Ones.

    >>> tg.initializers.Ones()([2]).numpy()
    array([1., 1.], dtype=float32)
    """

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        return ones_of(shape, dtype)


class Constant(Initializer):
    """One value everywhere; or an array, which is broadcast to the shape, or reshaped to it if it
    has as many elements. Raises ShapeError for any other array.

    >>> tg.initializers.Constant(3.0)([2]).numpy()
    array([3., 3.], dtype=float32)
    """

    def __init__(self, value: TensorLike = 0.0) -> None:
        as_tensor(value)  # raises here if it is not a number
        self.value = value

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        value, sizes = as_tensor(self.value, dtype), as_shape("Constant", shape)
        if broadcast_two(value.type.shape, sizes) == sizes:
            return broadcast(value, sizes)
        return constant_of(value, shape=sizes)


def _key(seed: Any) -> Tensor:
    """A key of the global generator, or one that is the same at each call, as in TensorFlow."""
    return generator_of().next_key() if seed is None else as_tensor(key_of_seed(seed))


class RandomNormal(Initializer):
    """Normally distributed numbers. With a `seed`, those of each call are the same; so are those of
    the other random initializers.

    >>> tg.initializers.RandomNormal(stddev=0.1)([2, 3]).shape
    TensorShape([2, 3])
    """

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        self.mean = as_number(type(self).__name__, "mean", mean)
        self.stddev = as_number(type(self).__name__, "stddev", stddev)
        self.seed = seed

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        return draw_normal(_key(self.seed), shape, self.mean, self.stddev, dtype)


class TruncatedNormal(RandomNormal):
    """Normally distributed numbers, truncated at two standard deviations from the mean.

    >>> tg.initializers.TruncatedNormal()([2, 3]).shape
    TensorShape([2, 3])
    """

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        return draw_truncated_normal(_key(self.seed), shape, self.mean, self.stddev, dtype)


class RandomUniform(Initializer):
    """Uniformly distributed numbers between two bounds.

    >>> tg.initializers.RandomUniform()([2, 3]).shape
    TensorShape([2, 3])
    """

    def __init__(
        self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None
    ) -> None:
        self.minval = as_number(type(self).__name__, "minval", minval)
        self.maxval = as_number(type(self).__name__, "maxval", maxval)
        self.seed = seed

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        next_key = partial(_key, self.seed)
        return draw_uniform(next_key, shape, self.minval, self.maxval, dtype)


class VarianceScaling(Initializer):
    """Random numbers with variance scale / n, where n is the number of a unit's inputs ("fan_in"),
    of its outputs ("fan_out"), or their mean ("fan_avg").

    - `distribution`: "truncated_normal" (also "normal"), "untruncated_normal" or "uniform".
    - `input_axes`, `output_axes`: the axes whose sizes are multiplied to get these numbers, for a
      shape other than [*window, inputs, outputs]; give both or neither.

    >>> tg.initializers.VarianceScaling(2.0, "fan_in")([2, 3]).shape
    TensorShape([2, 3])
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        input_axes: Axis = None,
        output_axes: Axis = None,
    ) -> None:
        self.scale = as_number("VarianceScaling", "scale", scale, low=0)
        self.mode = as_choice("VarianceScaling", "mode", mode, ("fan_in", "fan_out", "fan_avg"))
        names = ("truncated_normal", "untruncated_normal", "uniform")
        self.distribution = as_choice(
            "VarianceScaling", "distribution", distribution, (*names, "normal")
        )
        self.seed = seed
        if (input_axes is None) != (output_axes is None):
            fact = f"{type(self).__name__}: input_axes is {input_axes}, output_axes {output_axes}"
            fail(SignatureError, fact, fix="give both or neither")
        self.input_axes, self.output_axes = input_axes, output_axes

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        inputs, outputs = self._fans(shape)
        count = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[self.mode]
        variance = self.scale / max(1.0, count)
        if self.distribution == "uniform":
            bound = math.sqrt(3 * variance)
            return draw_uniform(partial(_key, self.seed), shape, -bound, bound, dtype)
        deviation = math.sqrt(variance)
        if self.distribution == "untruncated_normal":
            return draw_normal(_key(self.seed), shape, 0.0, deviation, dtype)
        numbers = draw_truncated_normal(_key(self.seed), shape, 0.0, 1.0, dtype)
        return multiply(numbers, deviation / _TRUNCATED_DEVIATION)

    def _fans(self, shape: ShapeLike) -> tuple[int, int]:
        if self.input_axes is None:
            return fans(shape)
        sizes: Any = as_shape("fans", shape)
        given = (self.input_axes, self.output_axes)
        chosen = [as_axes(type(self).__name__, axes, len(sizes)) for axes in given]
        inputs, outputs = (math.prod(sizes[axis] for axis in axes) for axes in chosen)
        return inputs, outputs


def fans(shape: ShapeLike) -> tuple[int, int]:
    """The numbers of inputs and outputs of a unit, for a kernel [*window, inputs, outputs]."""
    sizes: Any = as_shape("fans", shape)
    if len(sizes) < 2:
        size = sizes[0] if sizes else 1
        return size, size
    window = math.prod(sizes[:-2])
    return window * sizes[-2], window * sizes[-1]


def _scaling(scale: float, mode: str, distribution: str) -> type[VarianceScaling]:
    """A VarianceScaling that leaves only the seed and the axes open."""

    class Scaling(VarianceScaling):
        def __init__(
            self, seed: int | None = None, input_axes: Axis = None, output_axes: Axis = None
        ) -> None:
            super().__init__(scale, mode, distribution, seed, input_axes, output_axes)

    return Scaling


class GlorotUniform(_scaling(1.0, "fan_avg", "uniform")):
    """Uniform numbers with variance 2 / (inputs + outputs): the default for kernels.

    >>> tg.initializers.GlorotUniform()([2, 3]).shape
    TensorShape([2, 3])
    """


class GlorotNormal(_scaling(1.0, "fan_avg", "truncated_normal")):
    """Normal numbers with variance 2 / (inputs + outputs).

    >>> tg.initializers.GlorotNormal()([2, 3]).shape
    TensorShape([2, 3])
    """


class HeUniform(_scaling(2.0, "fan_in", "uniform")):
    """Uniform numbers with variance 2 / inputs, for relu.

    >>> tg.initializers.HeUniform()([2, 3]).shape
    TensorShape([2, 3])
    """


class HeNormal(_scaling(2.0, "fan_in", "truncated_normal")):
    """Normal numbers with variance 2 / inputs, for relu.

    >>> tg.initializers.HeNormal()([2, 3]).shape
    TensorShape([2, 3])
    """


class LecunUniform(_scaling(1.0, "fan_in", "uniform")):
    """Uniform numbers with variance 1 / inputs.

    >>> tg.initializers.LecunUniform()([2, 3]).shape
    TensorShape([2, 3])
    """


class LecunNormal(_scaling(1.0, "fan_in", "truncated_normal")):
    """Normal numbers with variance 1 / inputs, for selu.

    >>> tg.initializers.LecunNormal()([2, 3]).shape
    TensorShape([2, 3])
    """


class Orthogonal(Initializer):
    """A random matrix with orthonormal rows, or columns if there are fewer, times `gain` (Saxe and
    others 2013).

    Shapes with more axes are read as [product of all but the last, last]. Raises ShapeError for
    fewer than two axes.

    >>> q = tg.initializers.Orthogonal(seed=1)([3, 3])
    >>> bool(tg.reduce_max(tg.abs(q @ tg.transpose(q) - tg.eye(3))) < 1e-5)
    True
    """

    def __init__(self, gain: float = 1.0, seed: int | None = None) -> None:
        self.gain = as_number("Orthogonal", "gain", gain)
        self.seed = seed

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        sizes = _axes("Orthogonal", shape, 2)
        rows, columns = math.prod(sizes[:-1]), sizes[-1]
        wide = max(rows, columns), min(rows, columns)
        computed = float32 if dtype.size < 4 else dtype  # 16 bits are too few to factor a matrix
        q, r = qr(draw_normal(_key(self.seed), wide, 0.0, 1.0, computed))
        # With the signs of the diagonal, all orthogonal matrices are equally probable.
        q = multiply(q, sign(diag_part(r)))
        q = transpose(q) if rows < columns else q
        return cast_to(multiply(reshape(q, sizes), self.gain), dtype)


class Identity(Initializer):
    """The identity matrix times `gain`. Raises ShapeError for shapes that are not matrices.

    >>> tg.initializers.Identity(2.0)([2, 2]).numpy()
    array([[2., 0.],
           [0., 2.]], dtype=float32)
    """

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = as_number("Identity", "gain", gain)

    def _values(self, shape: ShapeLike, dtype: DType) -> Tensor:
        rows, columns = _axes("Identity", shape, 2, 2)
        return multiply(eye(rows, columns, dtype=dtype), self.gain)


def _axes(op: str, shape: Any, fewest: int, most: float = math.inf) -> Any:
    """The sizes of a shape, which must have the given number of axes."""
    sizes: Any = as_shape(op, shape)
    if fewest <= len(sizes) <= most:
        return sizes
    kind = "a matrix" if most == fewest else f"{fewest} axes or more"
    fail(ShapeError, f"{op}: the shape is {list(sizes)}", fix=f"give the shape of {kind}")


#: Keras' names for the same classes.
constant, zeros, ones, identity, orthogonal = Constant, Zeros, Ones, Identity, Orthogonal
IdentityInitializer, OrthogonalInitializer = Identity, Orthogonal
random_normal, random_uniform = RandomNormal, RandomUniform
truncated_normal, variance_scaling = TruncatedNormal, VarianceScaling
glorot_normal, glorot_uniform = GlorotNormal, GlorotUniform
he_normal, he_uniform = HeNormal, HeUniform
lecun_normal, lecun_uniform = LecunNormal, LecunUniform

_BY_NAME: dict[str, type[Initializer]] = {
    "zeros": Zeros,
    "ones": Ones,
    "constant": Constant,
    "random_normal": RandomNormal,
    "random_uniform": RandomUniform,
    "truncated_normal": TruncatedNormal,
    "variance_scaling": VarianceScaling,
    "glorot_uniform": GlorotUniform,
    "glorot_normal": GlorotNormal,
    "he_uniform": HeUniform,
    "he_normal": HeNormal,
    "lecun_uniform": LecunUniform,
    "lecun_normal": LecunNormal,
    "identity": Identity,
    "orthogonal": Orthogonal,
}
#: Further names that Keras accepts: those of the classes, and three short ones.
_OTHER_NAMES = {
    **{kind.__name__: kind for kind in _BY_NAME.values()},
    "normal": RandomNormal,
    "uniform": RandomUniform,
    "one": Ones,
    "zero": Zeros,
}


def get(identifier: object) -> Callable[..., Tensor]:
    """The initializer of a name such as "glorot_uniform", or a function unchanged.

    >>> tg.initializers.get("zeros")([2]).numpy()
    array([0., 0.], dtype=float32)
    """
    if isinstance(identifier, str):
        found = _BY_NAME.get(identifier) or _OTHER_NAMES.get(identifier)
        if found is not None:
            return found()
    if isinstance(identifier, type):
        return identifier()
    if callable(identifier):
        return identifier  # type: ignore[return-value]
    fail(
        SignatureError,
        f"{shown(identifier)} is not an initializer",
        fix=f"use a function of shape and dtype, or one of {', '.join(_BY_NAME)}",
    )


__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "IdentityInitializer",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "OrthogonalInitializer",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "constant",
    "get",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    "variance_scaling",
    "zeros",
]

publish(__name__)
