"""Random numbers as functions of a key, a vector of two uint32; a key gives the same each time.

Leading axes of a key are batch axes: every key makes its own numbers. Nothing here has a
derivative.
"""

from __future__ import annotations

from typing import Any

from tracegraph.core.shapes import Dim, Shape, Size, same_shape, same_size
from tracegraph.core.sparsity_patterns import Pattern
from tracegraph.core.types import DType, TensorType, int32, uint32
from tracegraph.errors import DTypeMismatch, Mismatch
from tracegraph.ir.op import Batched, Derivative, Tangents, WithoutDerivative, rule
from tracegraph.ir.tensor import Tensor
from tracegraph.ops.broadcast import OverBatchAxes, batched_operands
from tracegraph.ops.elementwise import EXP, FLOATING, MUL, Elementwise, Factors, scale


class FromKey(WithoutDerivative, OverBatchAxes, abstract=True):
    """Numbers made from a key."""

    counts_bits = True

    def made(self) -> TensorType:
        """What one key makes."""
        raise NotImplementedError

    def infer(self, key: TensorType) -> TensorType:
        made = self.made()
        return made.with_shape((*key_batch(key), *made.shape))

    def depends(self, key: Pattern) -> Pattern:
        raise NotImplementedError("a key depends on nothing that is differentiated")


class RandomSplit(FromKey):
    """`count` new keys, none of which repeats the numbers of another"""

    count: Dim | int

    def made(self) -> TensorType:
        return TensorType(uint32, (self.count, 2))


class RandomBits(FromKey):
    """Uniform integers over the whole range of an unsigned type"""

    shape: Shape
    dtype: DType

    def made(self) -> TensorType:
        if not self.dtype.name.startswith("uint"):
            raise DTypeMismatch(
                f"random bits are unsigned integers, not {self.dtype.name}", fix="use tg.uint32"
            )
        return TensorType(self.dtype, self.shape)


class RandomUniform(FromKey):
    """Uniform numbers in [0, 1)"""

    shape: Shape
    dtype: DType

    def made(self) -> TensorType:
        return floating(self.name, self.dtype, self.shape)


class RandomNormal(FromKey):
    """Normal numbers with mean 0 and standard deviation 1"""

    shape: Shape
    dtype: DType

    def made(self) -> TensorType:
        return floating(self.name, self.dtype, self.shape)


class RandomPermutation(FromKey):
    """0, 1, ..., size - 1 in random order, as int32"""

    size: Dim | int

    def made(self) -> TensorType:
        return TensorType(int32, (self.size,))


class FromParameters(WithoutDerivative, OverBatchAxes, abstract=True):
    """Numbers made from a key, one for each element of the parameters of a distribution, whose
    axes begin with the batch axes of the key. At a fixed key whole numbers move in steps, so they
    have no derivative."""

    counts_bits = True

    @rule
    def infer(self, key: TensorType, *parameters: TensorType) -> TensorType:
        first = parameters[0]
        floating(self.name, first.dtype, first.shape)
        lead = key_batch(key)
        for other in parameters:
            if not other.fits(first):
                raise Mismatch(f"the parameters have different types: {first} and {other}")
        if same_shape(lead, first.shape[: len(lead)]) is None:
            raise Mismatch(f"the axes of {first} do not begin with those of the key {key}")
        return first

    @rule
    def depends(self, key: Pattern, *parameters: Pattern) -> Pattern:
        return parameters[0].emptied()


class RandomPoisson(FromParameters):
    """Numbers of the Poisson distribution, one for each `rate`, as floating numbers"""

    def infer(self, key: TensorType, rate: TensorType) -> TensorType:
        return super().infer(key, rate)


class RandomBinomial(FromParameters):
    """How many of `counts` trials succeed, each with the probability `chances`, as floating
    numbers"""

    def infer(self, key: TensorType, counts: TensorType, chances: TensorType) -> TensorType:
        return super().infer(key, counts, chances)


class RandomGamma(FromParameters):
    """Numbers of the gamma distribution with scale 1, one for each `alpha`, its shape parameter;
    with `log_space` their logarithms, which small ones have too.

    The axes of alpha begin with the batch axes of the key. The derivative in alpha is that of the
    number at a fixed probability: it moves with alpha as the distribution does.
    """

    log_space: bool = False

    def infer(self, key: TensorType, alpha: TensorType) -> TensorType:
        return super().infer(key, alpha)

    def vjp(self, g: Tensor, y: Tensor, key: Tensor, alpha: Tensor) -> Derivative:
        return None, MUL(g, self._slope(alpha, y))

    def jvp(self, tangents: Tangents, y: Tensor, key: Tensor, alpha: Tensor) -> Derivative:
        return scale(tangents[1], self._slope(alpha, y))

    def _slope(self, alpha: Tensor, y: Tensor) -> Tensor:
        number = EXP(y) if self.log_space else y
        slope = GammaSlope()(alpha, number)
        return slope / number if self.log_space else slope

    def depends(self, key: Pattern, alpha: Pattern) -> Pattern:
        return alpha


class GammaSlope(Elementwise):
    """How a number of the gamma distribution moves with the shape parameter alpha, its first
    operand, at a fixed probability; that has no derivative itself"""

    kinds = FLOATING

    def partials(self, y: Tensor, alpha: Tensor, number: Tensor) -> Factors:
        raise Mismatch(
            "a second derivative of random numbers in their shape parameter does not exist here",
            fix="take tg.stop_gradient of alpha, or of the numbers",
        )


class RandomFold(WithoutDerivative, OverBatchAxes):
    """A new key made of a key and a number, a uint32 with the batch axes of the key"""

    def infer(self, key: TensorType, data: TensorType) -> TensorType:
        if data.dtype is not uint32:
            raise DTypeMismatch(
                f"the number is {data}, and it must be uint32", fix="use tg.cast(data, tg.uint32)"
            )
        if same_shape(key_batch(key), data.shape) is None:
            raise Mismatch(
                f"one number is needed for each key, not {data} for {key}",
                "give as many numbers as there are keys",
            )
        return key

    def depends(self, key: Pattern, data: Pattern) -> Pattern:
        raise NotImplementedError("a key depends on nothing that is differentiated")


class RngBitGenerator(WithoutDerivative):
    """The next state and random bits of a generator of XLA: "rng_default", "rng_three_fry" or
    "rng_philox"; the state is a vector of four uint32, and leading axes of it are batch axes"""

    output_count = 2
    shape: Shape
    dtype: DType
    algorithm: str

    def infer(self, state: TensorType) -> tuple[TensorType, ...]:
        if state.dtype is not uint32 or state.shape[-1:] != (4,):
            raise Mismatch(f"the state is {state}, and it must be made of four uint32")
        if not self.dtype.name.startswith("uint"):
            raise DTypeMismatch(f"random bits are unsigned integers, not {self.dtype.name}")
        return state, TensorType(self.dtype, (*state.shape[:-1], *self.shape))

    def batch(self, n: Size, batched: tuple[bool, ...], state: Tensor) -> Batched:
        return self(*batched_operands(n, batched, (state,))), (True, True)

    def depends(self, state: Pattern) -> Pattern:
        raise NotImplementedError("a state depends on nothing that is differentiated")


def key_batch(key: TensorType) -> Any:
    """The batch axes of a key. Raises Mismatch for what is not a key."""
    if key.dtype is not uint32:
        raise DTypeMismatch(f"a key is a vector of two uint32, not {key}")
    if not key.shape or same_size(key.shape[-1], 2) is None:
        raise Mismatch(f"a key is a vector of two uint32, not {key}")
    return key.shape[:-1]


def floating(op: str, dtype: DType, shape: Shape) -> TensorType:
    if not dtype.is_floating:
        raise DTypeMismatch(
            f"random numbers of {dtype.name} are not supported", fix="use a floating type"
        )
    return TensorType(dtype, shape)
