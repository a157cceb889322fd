"""Integers as their places in a vocabulary, and back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from tracegraph.array.arguments import as_choice, as_flag, as_size, known_int, refuse, refuse_kind
from tracegraph.array.creation import ensure_shape
from tracegraph.array.indexing.selection import gather, where
from tracegraph.array.shaping import pad, reshape
from tracegraph.core.types import DType, as_dtype, int64
from tracegraph.effects.checks_and_prints import check
from tracegraph.errors import DTypeError, SignatureError, fail, shown
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, positive
from tracegraph.layers.features.batches import batches_of
from tracegraph.layers.features.categories import VECTORS, dense_only, encoded
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import add, clip_by_value, floormod, multiply, subtract
from tracegraph.math.elementwise.logic import equal, greater_equal, less, logical_and, logical_or
from tracegraph.math.reduction import reduce_all
from tracegraph.math.sorting import searchsorted
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.state.variable import Variable
from tracegraph.typing import DTypeLike, TensorLike

_OP = "IntegerLookup"


class IntegerLookup(Layer):
    """The place of each integer in a vocabulary, as int64.

    Place 0 is that of the `mask_token`, if there is one and `output_mode` is "int"; then come
    `num_oov_indices` places for all that is not in the vocabulary, then those of the vocabulary.

    - `max_tokens`: the most places that there are; None for any number.
    - `num_oov_indices`: if it is above 1, an unknown integer x has place x mod `num_oov_indices`
      among them; if it is 0, unknown integers are refused.
    - `mask_token`: an integer that stands for none. Vectors leave it out.
    - `oov_token`: what unknown places become with `invert`; `adapt` leaves it out.
    - `vocabulary`: distinct integers, which may begin with the mask and OOV tokens; or None, for
      those that `adapt` finds.
    - `invert`: whether to return the integers at the given places.
    - `output_mode`: "int" for the places, or "one_hot", "multi_hot" and "count" for what
      `CategoryEncoding` makes of them, of the dtype of the layer; or "tf_idf" for "count" times
      `idf_weights`.
    - `idf_weights`: a number for each of `vocabulary`; what is unknown has their mean, unless the
      vocabulary begins with it. Those that `adapt` finds are log(1 + n / (1 + k)), of n documents,
      which are rows or vectors, and the k that have an integer.
    - `pad_to_max_tokens`: whether these vectors have the length `max_tokens` in any case.
    - `vocabulary_dtype`, `sparse`, `oov_method`, `salt`: only the defaults.

    A call takes integers of any shape and dtype, and returns int64 of that shape; in the other
    modes vectors, of the shapes that `CategoryEncoding` gives.

    The vocabulary is a Variable, so that checkpoints and saved models have it. Functions are traced
    again for a vocabulary of another size; a concrete or a loaded function refuses one.

    Raises ValueError for arguments that do not fit each other, for a vocabulary with an integer
    twice or too many of them, and for a call before there is one; InvalidArgumentError for unknown
    integers if `num_oov_indices` is 0.

    >>> layer = tg.layers.IntegerLookup(vocabulary=[12, 36, 1138])
    >>> layer([[12, 1138], [7, 36]]).numpy()
    array([[1, 3],
           [0, 2]])
    >>> layer = tg.layers.IntegerLookup(output_mode="multi_hot")
    >>> layer.adapt(np.array([[12, 36, 12]]))
    >>> layer.get_vocabulary()
    [-1, 12, 36]
    >>> layer([[12, 36], [12, 7]]).numpy()
    array([[0., 1., 1.],
           [1., 1., 0.]], dtype=float32)
    """

    _computes_in_full = True

    @takes_options
    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int | None = -1,
        vocabulary: TensorLike | None = None,
        vocabulary_dtype: DTypeLike = int64,
        idf_weights: TensorLike | None = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**options)
        mode = {"binary": "multi_hot", "tf-idf": "tf_idf"}.get(output_mode, output_mode)
        self.output_mode = as_choice(_OP, "output_mode", mode, ("int", *VECTORS, "tf_idf"))
        _only_defaults(vocabulary_dtype, oov_method, salt)
        dense_only(_OP, sparse)
        self.sparse = False
        self.invert = as_flag(_OP, "invert", invert)
        self.num_oov_indices = _integer("num_oov_indices", num_oov_indices)
        self.mask_token = None if mask_token is None else _integer("mask_token", mask_token)
        self.oov_token = None if oov_token is None else _integer("oov_token", oov_token)
        self.max_tokens = None if max_tokens is None else positive(_OP, "max_tokens", max_tokens)
        self.pad_to_max_tokens = as_flag(_OP, "pad_to_max_tokens", pad_to_max_tokens)
        self._check_settings()
        with at_top_level():
            self.tokens = _open_variable("tokens")
            #: The order in which the tokens ascend, for the search.
            self.order = _open_variable("order")
            if self.output_mode == "tf_idf":
                self.idf_weights = _open_variable("idf_weights", np.float32)
        self._is_given = vocabulary is not None
        if vocabulary is not None or idf_weights is not None:
            self.set_vocabulary([] if vocabulary is None else vocabulary, idf_weights)

    def _check_settings(self) -> None:
        if self.invert and self.output_mode != "int":
            fact = f"invert is True, and output_mode is {self.output_mode!r}"
            fail(SignatureError, f"{_OP}: {fact}", fix='use output_mode="int"')
        if self.invert and self.oov_token is None:
            fact = f"{_OP}: invert is True, and oov_token is None"
            fail(SignatureError, fact, fix="give the integer that unknown places become")
        if self.num_oov_indices < 0:
            fact = f"{_OP}: num_oov_indices is {self.num_oov_indices}"
            fail(SignatureError, fact, fix="use 0 or more")
        if self.max_tokens is not None and self.max_tokens <= self._start:
            special = f"{self._start} for the mask and what is unknown"
            fact = f"{_OP}: max_tokens is {self.max_tokens}, of which {special}"
            fail(SignatureError, fact, fix="use a larger max_tokens, or None")
        if self.pad_to_max_tokens and self.max_tokens is None:
            fact = f"{_OP}: pad_to_max_tokens is True, and max_tokens is None"
            fail(SignatureError, fact, fix="give max_tokens, or leave out pad_to_max_tokens")

    @property
    def _has_mask_place(self) -> bool:
        return self.mask_token is not None and self.output_mode == "int"

    @property
    def _start(self) -> int:
        """The place of the first integer of the vocabulary."""
        return int(self._has_mask_place) + self.num_oov_indices

    @property
    def _special(self) -> list[int | None]:
        """What stands at the places before the vocabulary."""
        return [self.mask_token] * self._has_mask_place + [self.oov_token] * self.num_oov_indices

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[int | None]:
        """The integers in the order of their places: those of the mask and of unknown ones, then
        the vocabulary; or without the first ones."""
        has_special = as_flag(
            f"{_OP}.get_vocabulary", "include_special_tokens", include_special_tokens
        )
        return [*(self._special if has_special else []), *self.tokens.numpy().tolist()]

    def vocabulary_size(self) -> int:
        """The number of places, including those of the mask and of unknown integers."""
        return self._start + self.tokens.numpy().size

    def set_vocabulary(self, vocabulary: TensorLike, idf_weights: TensorLike | None = None) -> None:
        """Replaces the vocabulary and its weights, as the arguments of these names describe them.

        Raises SignatureError (a ValueError) for an empty vocabulary, one with an integer twice or
        with a special token after the beginning, and for more than `max_tokens`; DTypeError for
        anything but integers.
        """
        weights = self._weights(idf_weights)
        if isinstance(vocabulary, str):
            fact = f"{_OP}: the vocabulary is the name of a file, {vocabulary!r}"
            fail(DTypeError, fact, fix="give its integers: np.loadtxt(name, np.int64)")
        tokens = _integers(np.asarray(vocabulary))
        if tokens.ndim != 1 or not tokens.size:
            fact = f"{_OP}: the vocabulary has the shape {tokens.shape}"
            fail(SignatureError, fact, fix="give a list of one integer or more")
        if weights is not None and weights.shape != tokens.shape:
            shape = f"idf_weights have the shape {weights.shape}"
            fact = f"{_OP}: the vocabulary has {tokens.size} integers, and {shape}"
            fail(SignatureError, fact, fix="give a number for each of them")
        first = None
        if self._start and tokens[: self._start].tolist() == self._special:
            first, tokens = weights, tokens[self._start :]
        self._check_tokens(tokens)
        self._store(tokens, weights if first is None else first[self._start :], first)

    def _weights(self, idf_weights: Any) -> np.ndarray | None:
        is_weighted = self.output_mode == "tf_idf"
        if is_weighted and idf_weights is None:
            fact = f'{_OP}: output_mode is "tf_idf", and the vocabulary has no idf_weights'
            fail(SignatureError, fact, fix="give a number for each of the vocabulary")
        if not is_weighted and idf_weights is not None:
            fact = f"{_OP}: idf_weights were given, and output_mode is {self.output_mode!r}"
            fail(SignatureError, fact, fix='use output_mode="tf_idf"')
        return np.asarray(idf_weights, np.float32) if is_weighted else None

    def _check_tokens(self, tokens: np.ndarray) -> None:
        values, counts = np.unique(tokens, return_counts=True)
        if (counts > 1).any():
            fact = f"{_OP}: the vocabulary has {values[counts > 1][0]} twice"
            fail(
                SignatureError, fact, fix="give each integer once: list(dict.fromkeys(vocabulary))"
            )
        reserved = {"mask_token": self.mask_token}
        if self.invert:
            reserved["oov_token"] = self.oov_token
        for what, token in reserved.items():
            if token in values:
                at = int(np.flatnonzero(tokens == token)[0])
                fact = f"{_OP}: {what} is {token}, which is at place {at} of the vocabulary"
                fix = f"leave it out, or begin the vocabulary with {self._special}"
                fail(SignatureError, fact, fix=fix)
        count = self._start + tokens.size
        if self.max_tokens is not None and count > self.max_tokens:
            fact = f"{_OP}: there are {count} places, and max_tokens is {self.max_tokens}"
            fail(SignatureError, fact, fix="give fewer integers, or a larger max_tokens")

    def _store(self, tokens: np.ndarray, weights: Any, first: Any = None) -> None:
        """Stores the vocabulary and its weights; those of what is unknown begin with `first`."""
        self.tokens.assign(tokens)
        self.order.assign(np.argsort(tokens))
        if weights is not None:
            unknown = np.full(self._start, weights.mean()) if first is None else first
            self.idf_weights.assign(np.append(unknown[: self._start], weights).astype(np.float32))

    def adapt(self, data: TensorLike | Iterable[Any], steps: int | None = None) -> None:
        """Sets the vocabulary to the integers of the data, the most frequent ones first, and of
        equally frequent ones the larger: an array, a tensor or a list of integers, or an iterable
        of batches, of which the first one counts if a batch is a tuple. At most `max_tokens` places
        are used.

        - `steps`: the number of batches to read; None for all.

        Raises SignatureError (a ValueError) for no data, and if the vocabulary was given;
        DTypeError for data that are not whole numbers.
        """
        if self._is_given:
            fact = f"{_OP}: the vocabulary was given, so it is not adapted"
            fail(SignatureError, fact, fix="make the layer without vocabulary=")
        most = None if steps is None else positive(f"{_OP}.adapt", "steps", steps)
        values, counts = nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
        documents, count = nothing, 0
        for batch in itertools.islice(batches_of(_OP, data), most):
            tokens = _integers(batch)
            values, counts = _with_counts(values, counts, tokens)
            if self.output_mode == "tf_idf" and tokens.size:
                rows = tokens.reshape(len(tokens) if tokens.ndim > 1 else 1, -1)
                apart = np.concatenate([np.unique(row) for row in rows])
                documents, count = _with_counts(*documents, apart), count + len(rows)
        special = [token for token in (self.mask_token, self.oov_token) if token is not None]
        is_kept = ~np.isin(values, special)
        values, counts = values[is_kept], counts[is_kept]
        if not values.size:
            fact = f"{_OP}: there are no data, but for the mask and OOV tokens {special}"
            fail(SignatureError, fact, fix="give some integers")
        most = None if self.max_tokens is None else self.max_tokens - self._start
        tokens, weights = values[np.lexsort((values, counts))[::-1]][:most], None
        if self.output_mode == "tf_idf":
            having = documents[1][np.searchsorted(documents[0], tokens)]
            weights = np.log(1 + count / (1 + having))
        self._store(tokens, weights)

    @property
    def _input_dtype(self) -> DType:
        return int64  # lists and floating inputs lose no digits on the way

    def call(self, inputs: Tensor) -> Tensor:
        x = cast_to(as_tensor(inputs), int64)
        with at_top_level():
            count = self.tokens.read_value().shape[0]
        if not count:
            fact = f"{_OP}: it has no vocabulary yet"
            fail(SignatureError, fact, fix="call layer.adapt(data) first, or give vocabulary=")
        tokens, order = (ensure_shape(v.read_value(), [count]) for v in (self.tokens, self.order))
        if self.invert:
            return self._tokens_at(x, tokens)
        places = self._places_of(x, tokens, order)
        if self.output_mode == "int":
            return self._masked(x, places, 0)
        most = self.max_tokens if self.pad_to_max_tokens else None
        depth = self._start + count if most is None else most
        places = self._masked(x, places, depth)  # beyond all places, it is in no vector
        if self.output_mode != "tf_idf":
            return encoded(_OP, places, self.output_mode, depth, self.dtype)
        known = self._start + count
        weights = ensure_shape(self.idf_weights.read_value(), [known])
        weights = cast_to(pad(weights, [[0, depth - known]]), self.dtype)
        return multiply(encoded(_OP, places, "count", depth, self.dtype), weights)

    def _places_of(self, x: Tensor, tokens: Tensor, order: Tensor) -> Tensor:
        ascending = gather(tokens, order)
        flat = reshape(x, [-1])
        found = clip_by_value(searchsorted(ascending, flat), 0, tokens.type.shape[0] - 1)
        is_known = reshape(equal(gather(ascending, found), flat), x.type.shape)
        known = reshape(add(gather(order, found), self._start), x.type.shape)
        if self.num_oov_indices == 0:
            self._refuse_unknown(x, is_known)
            return known
        unknown = add(floormod(x, self.num_oov_indices), int(self._has_mask_place))
        return where(is_known, known, unknown)

    def _masked(self, x: Tensor, places: Tensor, place: int) -> Tensor:
        """The places, but for the mask token, which is at `place`."""
        if self.mask_token is None:
            return places
        return where(equal(x, self.mask_token), as_tensor(place, int64), places)

    def _refuse_unknown(self, x: Tensor, is_known: Tensor) -> None:
        if self.mask_token is not None:
            is_known = logical_or(is_known, equal(x, self.mask_token))
        message = f"{_OP}: num_oov_indices is 0, and the inputs have an integer that is unknown"
        fix = "use num_oov_indices=1, or a vocabulary with all integers"
        check(reduce_all(is_known), message, (x,), fix)

    def _tokens_at(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The integers at these places."""
        count = tokens.type.shape[0]
        at = subtract(x, self._start)
        is_inside = logical_and(greater_equal(at, 0), less(at, count))
        found = gather(tokens, clip_by_value(at, 0, count - 1))
        result = where(is_inside, found, as_tensor(self.oov_token, int64))
        if self._has_mask_place:
            result = where(equal(x, 0), as_tensor(self.mask_token, int64), result)
        return result


def _with_counts(values: Any, counts: Any, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often each value was counted, after it is counted in more data too."""
    more, times = np.unique(data, return_counts=True)
    values, places = np.unique(np.append(values, more), return_inverse=True)
    counts = np.bincount(places, np.append(counts, times), values.size)
    return values, counts.astype(np.int64)


def _open_variable(name: str, dtype: Any = np.int64) -> Variable:
    return Variable(np.zeros(0, dtype), trainable=False, name=name, shape=[None])


def _integer(what: str, value: Any) -> int:
    number = as_size(_OP, what, value)
    if not known_int(number):
        refuse(_OP, f"{what} is {shown(value)}", fix="use an int")
    return int(number)


def _integers(data: np.ndarray) -> np.ndarray:
    """The data as int64, in which they must be the same numbers."""
    if data.dtype.kind not in "biuf":
        refuse_kind(_OP, "tokens are integers", data.tolist(), fix="number other things first")
    with np.errstate(invalid="ignore"):
        wide = data.astype(np.int64)
    if not np.array_equal(wide, data):
        wrong = data[wide != data][0]
        fact = f"{_OP}: tokens are integers of 64 bits, and there is {wrong} of {data.dtype.name}"
        fail(DTypeError, fact, fix="round them, or use tg.layers.Discretization for ranges")
    return wide


def _only_defaults(
    vocabulary_dtype: Any = int64, oov_method: Any = "floormod", salt: Any = None
) -> None:
    """Refuses arguments of Keras for which only the default is supported."""
    if as_dtype(vocabulary_dtype) is not int64:
        fact = f"{_OP}: vocabulary_dtype is {shown(vocabulary_dtype)}, and only int64 is supported"
        fail(SignatureError, fact, fix="leave it out")
    if oov_method != "floormod" or salt is not None:
        fact = f"{_OP}: oov_method is {shown(oov_method)}, and salt {shown(salt)}"
        fix = 'use oov_method="floormod" without salt; strings have no hashes here'
        fail(SignatureError, fact, fix=fix)
