"""Random numbers, from generators whose state is a Variable.

A compiled function therefore draws fresh numbers at every call, and the same sequence for the same
seed. The `stateless_*` functions draw the same numbers for the same seed each time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegraph.array.arguments import (
    as_count,
    as_integers,
    as_shape,
    rank_of,
    refuse,
    refuse_kind,
    sizes_of,
)
from tracegraph.array.shaping import broadcast_to, cut, reshape
from tracegraph.core.types import DType, as_dtype, float32, int64, uint32, uint64
from tracegraph.errors import DTypeError, InvalidArgumentError, SignatureError, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.arithmetic import add, divide, floormod, maximum, minimum, multiply, subtract
from tracegraph.math.reduction import argmax
from tracegraph.math.unary import erfinv, log, negative
from tracegraph.operands.conversion import as_tensor, broadcast, cast_to, elementwise_operands
from tracegraph.ops.elementwise import Cast
from tracegraph.ops.index import Gather
from tracegraph.ops.random import (
    RandomBits,
    RandomFold,
    RandomGamma,
    RandomNormal,
    RandomPermutation,
    RandomSplit,
    RandomUniform,
)
from tracegraph.ops.shape import Reshape
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable
from tracegraph.tracing.index_checks import value_at_hand
from tracegraph.tracing.trace import init_scope

if TYPE_CHECKING:
    from tracegraph.typing import DTypeLike, ShapeLike, TensorLike

_MASK = 0xFFFFFFFF


def _key_of(seed: int) -> np.ndarray:
    """The key of an integer seed: its low 64 bits."""
    return np.array([seed >> 32 & _MASK, seed & _MASK], np.uint32)


def _fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


class Generator(Module):
    """A source of random numbers; `state` is a Variable, a key of two uint32.

    Make one with `Generator.from_seed(1)` or `Generator.from_non_deterministic_state()`.

    >>> generator = tg.random.Generator.from_seed(1)
    >>> first = generator.normal([2]).numpy()
    >>> generator.reset_from_seed(1)
    >>> bool((generator.normal([2]).numpy() == first).all())
    True
    """

    def __init__(self, state: TensorLike, alg: str | int | None = None) -> None:
        super().__init__("generator")
        start = _as_state(state)
        self._state_variable = Variable(start, trainable=False, name="state", dtype=uint32)
        self._state_variable.is_random_state = True

    @classmethod
    def from_seed(cls, seed: int, alg: str | int | None = None) -> Generator:
        """A generator that gives the same numbers for the same integer seed."""
        return cls(_key_of(_int_seed(seed)))

    @classmethod
    def from_non_deterministic_state(cls, alg: str | int | None = None) -> Generator:
        """A generator that gives other numbers each time."""
        return cls(_key_of(_fresh_seed()))

    @classmethod
    def from_state(cls, state: TensorLike, alg: str | int | None = None) -> Generator:
        """A generator that continues from the state of another."""
        return cls(state)

    @property
    def state(self) -> Variable:
        """The Variable that holds the state."""
        return self._state_variable

    @property
    def key(self) -> Tensor:
        """The state now, as a tensor: the key of which the next numbers are made."""
        return self._state_variable.read_value()

    @property
    def algorithm(self) -> int:
        """TensorFlow's number of the algorithm, which is Threefry."""
        return 2

    def reset_from_seed(self, seed: int) -> None:
        """Starts anew, as `from_seed` does."""
        self._state_variable.assign(_key_of(_int_seed(seed)))

    def reset(self, state: TensorLike) -> None:
        """Continues from the given state."""
        self._state_variable.assign(_as_state(state))

    def make_seeds(self, count: int = 1) -> Tensor:
        """Seeds for the `stateless_*` functions, one in each of the `count` columns, as int64.

        >>> tg.random.Generator.from_seed(1).make_seeds(3).shape
        TensorShape([2, 3])
        """
        keys = RandomSplit(as_count("make_seeds", "count", count))(self.next_key())
        return Cast(int64)(keys.T)  # type: ignore[attr-defined]

    def split(self, count: int = 1) -> list[Generator]:
        """`count` new generators, each independent of the others and of this one."""
        count = as_count("Generator.split", "count", count)
        keys = RandomSplit(count)(self.next_key())
        return [type(self)(_row(keys, k)) for k in range(count)]

    def next_key(self) -> Tensor:
        """A key that is used once; the state moves on."""
        keys = RandomSplit(2)(self._state_variable.read_value())
        self._state_variable.assign(_row(keys, 0))
        return _row(keys, 1)

    def normal(
        self,
        shape: ShapeLike,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = float32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.normal`."""
        return _normal(self.next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: ShapeLike,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = float32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.truncated_normal`."""
        return _truncated_normal(self.next_key(), shape, mean, stddev, dtype)

    def uniform(
        self,
        shape: ShapeLike,
        minval: TensorLike = 0,
        maxval: TensorLike | None = None,
        dtype: DTypeLike = float32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.uniform`."""
        return _uniform(self.next_key, shape, minval, maxval, dtype)

    def uniform_full_int(
        self, shape: ShapeLike, dtype: DTypeLike = uint64, name: str | None = None
    ) -> Tensor:
        """Integers over the whole range of `dtype`."""
        return _full_int(self.next_key(), as_shape("uniform_full_int", shape), as_dtype(dtype))


def _as_state(state: Any) -> Any:
    """The state of a generator: two integers, or the Variable that holds those of another."""
    x = as_integers("Generator", "the numbers of a state", state)
    if x.type.shape != (2,):
        refuse("Generator", f"a state is u32[2], and it was given {x.type}", x, fix=_STATES)
    return cast_to(x, uint32)


_STATES = "use the state of another generator, or tg.random.Generator.from_seed(1)"


def _row(keys: Tensor, k: int) -> Tensor:
    return Reshape((2,))(cut(keys, 0, k, k + 1))


def _int_seed(seed: Any) -> int:
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return int(seed)
    fail(DTypeError, f"a seed is an int, not {shown(seed)}", fix="use an int")


# The global generator, and one for each seed of an operation.


class _Global:
    """The seed of `set_seed`, and the generators that depend on it."""

    lock = threading.RLock()
    seed: int | None = None
    generators: dict[int | None, Generator] = {}  # noqa: RUF012 - shared on purpose


def _key_for(op_seed: int | None) -> np.ndarray:
    """The first state of the generator of an operation's seed, or of the global one for None."""
    if op_seed is None:
        return _key_of(_fresh_seed() if _Global.seed is None else _Global.seed)
    # Without a global seed an operation's seed still decides, as in TensorFlow.
    return np.array([(_Global.seed or 0) & _MASK, op_seed & _MASK], np.uint32) ^ np.uint32(
        0x9E3779B9
    )


def _generator(op_seed: Any = None) -> Generator:
    number = None if op_seed is None else _int_seed(op_seed)
    with _Global.lock:
        found = _Global.generators.get(number)
        if found is None:
            with init_scope():
                found = _Global.generators[number] = Generator(_key_for(number))
        return found


def get_global_generator() -> Generator:
    """The generator that `normal`, `uniform` and the like draw from.

    >>> tg.random.get_global_generator() is tg.random.get_global_generator()
    True
    """
    return _generator()


def set_global_generator(generator: Generator) -> None:
    """Makes `generator` the one that `normal`, `uniform` and the like draw from."""
    if not isinstance(generator, Generator):
        rule = "the global generator is a tg.random.Generator"
        refuse_kind("set_global_generator", rule, generator, fix="use Generator.from_seed(1)")
    _Global.generators[None] = generator


def set_seed(seed: int) -> None:
    """Starts all random numbers of this program anew: the same seed gives the same sequence.

    >>> tg.random.set_seed(1)
    >>> first = tg.random.uniform([2]).numpy()
    >>> tg.random.set_seed(1)
    >>> bool((tg.random.uniform([2]).numpy() == first).all())
    True
    """
    with _Global.lock:
        _Global.seed = _int_seed(seed)
        _generator()
        for number, generator in _Global.generators.items():
            generator.reset(_key_for(number))


def normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal numbers: mean + stddev * n, where n has mean 0 and standard deviation 1.

    - `mean`, `stddev`: numbers or tensors that broadcast to `shape`.
    - `seed`: draws from a sequence of its own, which this number decides.

    >>> tg.random.normal([2, 3]).shape
    TensorShape([2, 3])
    """
    return _normal(_generator(seed).next_key(), shape, mean, stddev, dtype)


def truncated_normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal numbers, none of which is more than two standard deviations from the mean.

    >>> bool(tg.reduce_all(tg.abs(tg.random.truncated_normal([100])) <= 2.0))
    True
    """
    return _truncated_normal(_generator(seed).next_key(), shape, mean, stddev, dtype)


def uniform(
    shape: ShapeLike,
    minval: TensorLike = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers from minval to below maxval, all equally probable; integers need a maxval.

    Raises ValueError for integers without maxval.

    >>> dice = tg.random.uniform([100], 1, 7, tg.int32)
    >>> sorted(set(dice.numpy().tolist()))
    [1, 2, 3, 4, 5, 6]
    """
    return _uniform(_generator(seed).next_key, shape, minval, maxval, dtype)


def shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """`value` with its parts along the first axis in random order.

    >>> sorted(tg.random.shuffle([1, 2, 3]).numpy().tolist())
    [1, 2, 3]
    """
    return _shuffled(_generator(seed).next_key(), value)


def categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    dtype: DTypeLike = int64,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """For each row of logits[batch, classes], `num_samples` classes with probability softmax(row).

    >>> tg.random.categorical([[0.0, -1e9]], 3).numpy()
    array([[0, 0, 0]])
    """
    return _categorical(_generator(seed).next_key(), logits, num_samples, dtype)


def gamma(
    shape: ShapeLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers of density x ** (alpha - 1) * e ** (-beta * x), `shape` for each alpha and beta.

    - `alpha`, `beta`: positive shape and inverse scale, which broadcast; beta is 1 by default. The
      result has the axes of `shape`, then theirs.

    The numbers have derivatives in alpha, of first order, and in beta.

    >>> tg.random.gamma([2], [0.5, 1.5]).shape
    TensorShape([2, 2])
    """
    a, b = _gamma_parameters("gamma", alpha, beta, dtype)
    sizes = as_shape("gamma", shape)
    return _gamma(_generator(seed).next_key(), (*sizes, *a.type.shape), a, b)  # type: ignore[misc]


def stateless_normal(
    shape: ShapeLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    alg: str | int | None = None,
    name: str | None = None,
) -> Tensor:
    """`normal` as a function of a seed, which is two integers.

    >>> a, b = (tg.random.stateless_normal([2], seed=[1, 2]) for _ in range(2))
    >>> bool(tg.reduce_all(a == b))
    True
    """
    return _normal(_stateless_key(seed), shape, mean, stddev, dtype)


def stateless_truncated_normal(
    shape: ShapeLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = float32,
    alg: str | int | None = None,
    name: str | None = None,
) -> Tensor:
    """`truncated_normal` as a function of a seed, which is two integers.

    >>> tg.random.stateless_truncated_normal([2], seed=[1, 2]).shape
    TensorShape([2])
    """
    return _truncated_normal(_stateless_key(seed), shape, mean, stddev, dtype)


def stateless_uniform(
    shape: ShapeLike,
    seed: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike | None = None,
    dtype: DTypeLike = float32,
    alg: str | int | None = None,
    name: str | None = None,
) -> Tensor:
    """`uniform` as a function of a seed, which is two integers.

    >>> tg.random.stateless_uniform([2], seed=[1, 2]).shape
    TensorShape([2])
    """
    return _uniform(lambda: _stateless_key(seed), shape, minval, maxval, dtype)


def stateless_gamma(
    shape: ShapeLike,
    seed: TensorLike,
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = float32,
    alg: str | int | None = None,
    name: str | None = None,
) -> Tensor:
    """`gamma` as a function of a seed, which is two integers; `shape` is that of the result, to
    which alpha and beta broadcast.

    >>> tg.random.stateless_gamma([3, 2], seed=[1, 2], alpha=[0.5, 1.5]).shape
    TensorShape([3, 2])
    """
    a, b = _gamma_parameters("stateless_gamma", alpha, beta, dtype)
    return _gamma(_stateless_key(seed), as_shape("stateless_gamma", shape), a, b)


def stateless_shuffle(
    value: TensorLike, seed: TensorLike, alg: str | int | None = None, name: str | None = None
) -> Tensor:
    """`shuffle` as a function of a seed, which is two integers.

    >>> sorted(tg.random.stateless_shuffle([1, 2, 3], seed=[1, 2]).numpy().tolist())
    [1, 2, 3]
    """
    return _shuffled(_stateless_key(seed), value)


def stateless_categorical(
    logits: TensorLike,
    num_samples: int | Tensor,
    seed: TensorLike,
    dtype: DTypeLike = int64,
    name: str | None = None,
) -> Tensor:
    """`categorical` as a function of a seed, which is two integers.

    >>> tg.random.stateless_categorical([[0.0, 0.0]], 3, seed=[1, 2]).shape
    TensorShape([1, 3])
    """
    return _categorical(_stateless_key(seed), logits, num_samples, dtype)


def split(seed: TensorLike, num: int = 2, alg: str | int | None = None) -> Tensor:
    """`num` new seeds for the `stateless_*` functions, made of one: a tensor [num, 2].

    >>> tg.random.split([1, 2]).shape
    TensorShape([2, 2])
    """
    return RandomSplit(as_count("split", "num", num))(_stateless_key(seed))


def fold_in(seed: TensorLike, data: TensorLike, alg: str | int | None = None) -> Tensor:
    """A new seed made of a seed and an integer.

    >>> tg.random.fold_in([1, 2], 3).shape
    TensorShape([2])
    """
    number = as_integers("fold_in", "the numbers", data)
    return RandomFold()(_stateless_key(seed), cast_to(number, uint32))


def _stateless_key(seed: Any) -> Tensor:
    key = as_tensor(seed)
    if not key.dtype.is_integer or key.type.shape != (2,):
        refuse("random", f"the seed is {key.type}", key, fix="give two integers: seed=[1, 2]")
    return cast_to(key, uint32)


# What a key makes.


def _floating(op: str, dtype: Any) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        fail(
            DTypeError,
            f"{op}: random numbers of {kind.name} are not made here",
            fix="use a floating type, or uniform for integers",
        )
    return kind


def _normal(key: Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
    kind = _floating("normal", dtype)
    n = RandomNormal(as_shape("normal", shape), kind)(key)
    return _moved(n, mean, stddev)


def _moved(n: Tensor, mean: Any, stddev: Any) -> Tensor:
    """mean + stddev * n"""
    if not (isinstance(stddev, (int, float)) and stddev == 1):
        n = multiply(n, as_tensor(stddev, n.dtype))
    is_plain = isinstance(mean, (int, float)) and mean == 0
    return n if is_plain else add(n, as_tensor(mean, n.dtype))


def _gamma_parameters(op: str, alpha: Any, beta: Any, dtype: Any) -> tuple[Tensor, Tensor]:
    """alpha and beta as tensors of one shape. Raises InvalidArgumentError if one is known to be
    negative or 0."""
    kind = _floating(op, dtype)
    a, b = as_tensor(alpha, kind), as_tensor(1.0 if beta is None else beta, kind)
    for what, x in (("alpha", a), ("beta", b)):
        value = value_at_hand(x)
        if value is not None and not (value > 0).all():
            fact = f"{op}: {what} is {shown(value.tolist())}"
            fail(InvalidArgumentError, fact, fix="use positive numbers")
    return elementwise_operands(op, a, b)


def _gamma(key: Tensor, sizes: Any, alpha: Tensor, beta: Tensor) -> Tensor:
    wide_alpha, wide_beta = (broadcast_to(x, sizes) for x in (alpha, beta))
    return divide(RandomGamma()(key, wide_alpha), wide_beta)


def _truncated_normal(key: Tensor, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
    kind = _floating("truncated_normal", dtype)
    u = RandomUniform(as_shape("truncated_normal", shape), kind)(key)
    bound = math.erf(2 / math.sqrt(2))
    n = multiply(erfinv(subtract(multiply(u, 2 * bound), bound)), math.sqrt(2))
    return _moved(maximum(minimum(n, 2.0), -2.0), mean, stddev)


def _uniform(
    next_key: Callable[[], Tensor], shape: Any, minval: Any, maxval: Any, dtype: Any
) -> Tensor:
    kind, sizes = as_dtype(dtype), as_shape("uniform", shape)
    minval = 0 if minval is None else minval
    if kind.is_integer:
        if maxval is None:
            fail(
                SignatureError,
                f"uniform: integers of {kind.name} need a maxval",
                fix="give maxval, such as tg.random.uniform([3], maxval=10, dtype=tg.int32)",
            )
        return _integers(next_key(), sizes, minval, maxval, kind)
    u = RandomUniform(sizes, _floating("uniform", kind))(next_key())
    maxval = 1.0 if maxval is None else maxval
    if isinstance(minval, (int, float)) and isinstance(maxval, (int, float)):
        u = u if maxval - minval == 1 else multiply(u, float(maxval - minval))
        return u if minval == 0 else add(u, float(minval))
    low, high = as_tensor(minval, kind), as_tensor(maxval, kind)
    return add(multiply(u, subtract(high, low)), low)


def _integers(key: Tensor, sizes: Any, minval: Any, maxval: Any, kind: DType) -> Tensor:
    """64 random bits modulo the range: the bias is below 1 in 2 ** 31 for ranges of 32 bits."""
    low, high = as_tensor(minval, kind), as_tensor(maxval, kind)
    _check_bounds(low, high)
    width = subtract(cast_to(high, uint64), cast_to(low, uint64))
    bits = RandomBits(sizes, uint64)(key)
    return add(cast_to(floormod(bits, width), kind), low)


def _check_bounds(low: Tensor, high: Tensor) -> None:
    """Refuses bounds that are known to hold no integer between them."""
    lowest, highest = value_at_hand(low), value_at_hand(high)
    if lowest is not None and highest is not None and (lowest >= highest).any():
        fail(
            SignatureError,
            f"uniform: minval {lowest} is not below maxval {highest}",
            fix="give a maxval above minval; it is not drawn itself",
        )


def _full_int(key: Tensor, sizes: Any, kind: DType) -> Tensor:
    if not kind.is_integer:
        fact, fix = f"uniform_full_int: {kind.name} is no type of integers", "use tg.uint32"
        fail(DTypeError, fact, fix=fix)
    unsigned = as_dtype(kind.name if kind.name.startswith("u") else f"u{kind.name}")
    return cast_to(RandomBits(sizes, unsigned)(key), kind)


def _shuffled(key: Tensor, value: Any) -> Tensor:
    x = as_tensor(value)
    sizes = sizes_of("shuffle", x)
    if not sizes:
        refuse("shuffle", "a scalar has no axis to shuffle", x, fix="give a tensor with an axis")
    return Gather(0, 0)(x, RandomPermutation(sizes[0])(key))


def _categorical(key: Tensor, logits: Any, num_samples: Any, dtype: Any) -> Tensor:
    x = as_tensor(logits)
    if rank_of("categorical", x) != 2:
        refuse("categorical", f"the logits are {x.type}", x, fix="give [batch, classes]")
    rows, classes = x.type.shape
    count = as_count("categorical", "num_samples", num_samples)
    u = RandomUniform((rows, count, classes), x.dtype)(key)
    # The largest of logits plus Gumbel numbers is distributed like softmax.
    gumbel = negative(log(negative(log(u))))
    wide = broadcast(reshape(x, [rows, 1, classes]), gumbel.type.shape)
    return argmax(add(wide, gumbel), axis=2, output_type=dtype)


__all__ = [
    "Generator",
    "categorical",
    "fold_in",
    "gamma",
    "get_global_generator",
    "normal",
    "set_global_generator",
    "set_seed",
    "shuffle",
    "split",
    "stateless_categorical",
    "stateless_gamma",
    "stateless_normal",
    "stateless_shuffle",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]
