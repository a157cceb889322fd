"""Generators, whose state is a Variable: the global one, and one per operation seed."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from typing import Any

import numpy as np

from tracegraph.array.arguments import as_count, as_integers, as_shape, refuse, refuse_kind
from tracegraph.array.joining import stack
from tracegraph.array.shaping import cut
from tracegraph.core.settings import settings
from tracegraph.core.types import as_dtype, float32, int32, int64, uint32, uint64
from tracegraph.eager.slots import take_off_mesh
from tracegraph.errors import DTypeError, fail, shown
from tracegraph.ir.builder import current, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.operands.conversion import cast_to
from tracegraph.ops.broadcast import full_like
from tracegraph.ops.elementwise import Cast, ShiftRight
from tracegraph.ops.random import RandomSplit
from tracegraph.ops.shape import Reshape
from tracegraph.random.draws import (
    draw_binomial,
    draw_full_int,
    draw_normal,
    draw_truncated_normal,
    draw_uniform,
)
from tracegraph.random.stateless import key_of_numbers
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import current_trace, init_scope
from tracegraph.typing import DTypeLike, ShapeLike, TensorLike

_MASK = 0xFFFFFFFF


def _key_of(seed: int) -> np.ndarray:
    """The key of an integer seed: its bits, or a digest of more than 64."""
    if not -(2**63) <= seed < 2**64:
        return _digest(seed)
    return np.array([seed >> 32 & _MASK, seed & _MASK], np.uint32)


def key_of_seed(seed: Any) -> Any:
    if not isinstance(seed, Tensor):
        return _key_of(_int_seed(seed))
    if not seed.dtype.is_integer or seed.type.shape != ():
        fix = "give one integer: tg.constant(1, tg.int64)"
        fail(DTypeError, f"a seed is {seed.type}", operands=[operand_text(seed)], fix=fix)
    wide = seed if seed.dtype is uint64 else cast_to(seed, int64)
    high = ShiftRight()(wide, full_like(wide, 32))
    return Cast(uint32)(stack([high, wide]))


def _digest(*seeds: int) -> np.ndarray:
    words = hashlib.sha256(repr(seeds).encode()).digest()
    return np.frombuffer(words[:8], "<u4").astype(np.uint32)


_drawn = itertools.count()


def _fresh_seed() -> int:
    """A random seed. Joined processes draw the same seeds in the same order."""
    if settings.common_seed is None:
        return int.from_bytes(os.urandom(8), "little")
    words = f"{settings.common_seed} {next(_drawn)}".encode()
    return int.from_bytes(hashlib.sha256(words).digest()[:8], "little")


class Generator(Module):
    """A source of random numbers; `state` is a Variable, a key of two uint32.

    Create one with `Generator.from_seed(1)` or `Generator.from_non_deterministic_state()`.
    `Generator(other)` continues where another one is, and `Generator(state=...)` from a state.

    >>> generator = tg.random.Generator.from_seed(1)
    >>> first = generator.normal([2]).numpy()
    >>> generator.reset_from_seed(1)
    >>> bool((generator.normal([2]).numpy() == first).all())
    True
    """

    _holds_weights = False

    def __init__(
        self,
        copy_from: Generator | None = None,
        state: TensorLike | None = None,
        alg: str | int | None = None,
    ) -> None:
        super().__init__("generator")
        if isinstance(copy_from, Generator) and state is None:
            state = copy_from.key
        elif copy_from is not None:
            given = "both" if isinstance(copy_from, Generator) else shown(copy_from)
            fact = f"Generator: it copies a generator or takes a state, and was given {given}"
            fail(DTypeError, fact, fix="use Generator.from_seed(1), or Generator(state=...)")
        start = _as_state(state)
        self._state_variable = Variable(start, trainable=False, name="state", dtype=uint32)
        self._state_variable.is_random_state = True

    @classmethod
    def from_seed(cls, seed: int | Tensor, alg: str | int | None = None) -> Generator:
        """Creates a generator that draws the same numbers for the same seed, an integer or a tensor
        of one."""
        return cls(state=key_of_seed(seed))

    @classmethod
    def from_non_deterministic_state(cls, alg: str | int | None = None) -> Generator:
        """Creates a generator that draws different numbers each time."""
        return cls(state=_key_of(_fresh_seed()))

    @classmethod
    def from_state(cls, state: TensorLike, alg: str | int | None = None) -> Generator:
        """Creates a generator that continues from the state of another."""
        return cls(state=state)

    def __repr__(self) -> str:
        """The state, if it has a value: `<Generator: state [0 1]>`."""
        if current_trace() is not None:
            return "<Generator>"
        return f"<Generator: state {self._state_variable.numpy()}>"

    @property
    def state(self) -> Variable:
        """The Variable that holds the state."""
        return self._state_variable

    @property
    def key(self) -> Tensor:
        """The present state as a tensor: the key for the next numbers."""
        self._take_off_mesh()
        return self._state_variable.read_value()

    @property
    def algorithm(self) -> int:
        """TensorFlow's number for the algorithm, which is Threefry."""
        return 2

    def reset_from_seed(self, seed: int | Tensor) -> None:
        """Restarts from a seed, as `from_seed` does."""
        self._state_variable.assign(key_of_seed(seed))

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
        return [type(self)(state=_row(keys, k)) for k in range(count)]

    def next_key(self) -> Tensor:
        """A key to use once; advances the state. No other thread gets the same key."""
        self._take_off_mesh()
        keys: list[Tensor] = []

        def advanced(state: Tensor) -> Tensor:
            keys.append(RandomSplit(2)(state))
            return _row(keys[-1], 0)

        self._state_variable.update(advanced)
        return _row(keys[-1], 1)

    def _take_off_mesh(self) -> None:
        # A function may have left the state on a mesh. Numbers drawn outside the function would
        # then be computed by all devices, including those of other processes.
        if current().is_top_level:
            take_off_mesh(self._state_variable)

    def normal(
        self,
        shape: ShapeLike,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = float32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.normal`."""
        return draw_normal(self.next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: ShapeLike,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = float32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.truncated_normal`."""
        return draw_truncated_normal(self.next_key(), shape, mean, stddev, dtype)

    def uniform(
        self,
        shape: ShapeLike,
        minval: TensorLike | None = 0,
        maxval: TensorLike | None = None,
        dtype: DTypeLike = float32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.uniform`."""
        return draw_uniform(self.next_key, shape, minval, maxval, dtype)

    def binomial(
        self,
        shape: ShapeLike,
        counts: TensorLike,
        probs: TensorLike,
        dtype: DTypeLike = int32,
        name: str | None = None,
    ) -> Tensor:
        """See `tg.random.stateless_binomial`."""
        return draw_binomial(self.next_key(), "binomial", shape, counts, probs, dtype)

    def uniform_full_int(
        self, shape: ShapeLike, dtype: DTypeLike = uint64, name: str | None = None
    ) -> Tensor:
        """Integers over the whole range of `dtype`."""
        return draw_full_int(self.next_key(), as_shape("uniform_full_int", shape), as_dtype(dtype))


def _as_state(state: Any) -> Any:
    """The state of a generator: two integers, or the Variable that holds another's."""
    x = as_integers("Generator", "the numbers of a state", state)
    if x.type.shape != (2,):
        refuse("Generator", f"a state is u32[2], and it was given {x.type}", x, fix=_STATES)
    return key_of_numbers(x)


_STATES = "use the state of another generator, or tg.random.Generator.from_seed(1)"


def _row(keys: Tensor, k: int) -> Tensor:
    return Reshape((2,))(cut(keys, 0, k, k + 1))


def _int_seed(seed: Any) -> int:
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return int(seed)
    fail(DTypeError, f"a seed is an int, not {shown(seed)}", fix="use an int")


# The global generator, and one for each operation seed.


class _Global:
    """The seed from `set_seed`, and the generators that depend on it."""

    lock = threading.RLock()
    seed: int | None = None
    generators: dict[int | None, Generator] = {}  # noqa: RUF012 - shared on purpose


def _key_for(op_seed: int | None) -> np.ndarray:
    """The initial state of the generator for an operation seed, or of the global one for None."""
    if op_seed is None:
        return _key_of(_fresh_seed() if _Global.seed is None else _Global.seed)
    # Without a global seed, an operation seed still determines the numbers, as in TensorFlow.
    seeds = _Global.seed or 0, op_seed
    if not all(-(2**31) <= seed < 2**32 for seed in seeds):
        return _digest(*seeds)
    return np.array([seed & _MASK for seed in seeds], np.uint32) ^ np.uint32(0x9E3779B9)


def generator_of(op_seed: Any = None) -> Generator:
    number = None if op_seed is None else _int_seed(op_seed)
    with _Global.lock:
        found = _Global.generators.get(number)
        if found is None:
            with init_scope():
                found = _Global.generators[number] = Generator(state=_key_for(number))
        return found


def own_generator(op_seed: int) -> Generator:
    """A generator for one layer with a seed: it starts as the one that functions with this seed
    share, and `set_seed` does not restart it."""
    with _Global.lock, init_scope():
        return Generator(state=_key_for(_int_seed(op_seed)))


def get_global_generator() -> Generator:
    """The generator that `normal`, `uniform` and the like draw from.

    >>> tg.random.get_global_generator() is tg.random.get_global_generator()
    True
    """
    return generator_of()


def set_global_generator(generator: Generator) -> None:
    """Makes `generator` the one that `normal`, `uniform` and the like draw from."""
    if not isinstance(generator, Generator):
        rule = "the global generator is a tg.random.Generator"
        refuse_kind("set_global_generator", rule, generator, fix="use Generator.from_seed(1)")
    _Global.generators[None] = generator


def set_seed(seed: int | None) -> None:
    """Restarts all random numbers of this program: the same seed gives the same sequence, and None
    one that differs in each run, as before any seed was set. A loaded model goes on from the state
    that was saved with it, whatever the seed, and a layer with a `seed` of its own from its state.

    >>> tg.random.set_seed(1)
    >>> first = tg.random.uniform([2]).numpy()
    >>> tg.random.set_seed(1)
    >>> bool((tg.random.uniform([2]).numpy() == first).all())
    True
    """
    with _Global.lock:
        _Global.seed = None if seed is None else _int_seed(seed)
        generator_of()
        for number, generator in _Global.generators.items():
            generator.reset(_key_for(number))


__all__ = ["Generator", "get_global_generator", "set_global_generator", "set_seed"]
