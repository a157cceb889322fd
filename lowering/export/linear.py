"""Linear maps with explicit transposes.

JAX's `linear_call` also takes one, but cannot be differentiated by its residuals: so it has no
second-order derivatives. Hence our own primitive, through the same interface as JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

#: A function of residuals and of the operands in which it is linear.
Map = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]

_linear = Primitive("linear_map")
_linear.multiple_results = True


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A map that is linear in its last operands, and its transpose; each can be differentiated
    separately. Neither runs where only the other is needed."""

    forward: Map
    backward: Map
    #: How many operands are residuals.
    count: int
    #: The types of the results, as JAX structs.
    results: Sequence[Any]

    def __call__(self, residuals: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
        return _linear.bind(*residuals, *map(jnp.asarray, xs), map=self)


def _run(*arrays: Any, map: LinearMap) -> list[Any]:
    return list(map.forward(arrays[: map.count], arrays[map.count :]))


def _types(*types: Any, map: LinearMap) -> list[Any]:
    return [jax.typeof(struct) for struct in map.results]


def _jvp(arrays: Sequence[Any], tangents: Sequence[Any], *, map: LinearMap) -> tuple[Any, Any]:
    """For tangents that are differentiated again: they are computed by `forward`, and no explicit
    transpose applies any more."""
    given = {i: t for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)}

    def forward(*values: Any) -> list[Any]:
        known = dict(zip(given, values, strict=True))
        return _run(*[known.get(i, x) for i, x in enumerate(arrays)], map=map)

    return jax.jvp(forward, [arrays[i] for i in given], list(given.values()))


def _transpose(cotangents: Sequence[Any], *arrays: Any, map: LinearMap) -> list[Any]:
    gs = [ad.instantiate_zeros(g) for g in cotangents]
    found = map.backward(arrays[: map.count], gs)
    pairs = zip(arrays[map.count :], found, strict=True)
    return [None] * map.count + [g if ad.is_undefined_primal(x) else None for x, g in pairs]


def _batch(arrays: Sequence[Any], axes: Sequence[Any], *, map: LinearMap) -> tuple[Any, list[int]]:
    """The map for n instances. Each has its own operands, so that the transpose adds nothing up."""
    count = map.count
    (n,) = {x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None}
    first = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(arrays, axes, strict=True)]
    pairs = list(zip(first, axes, strict=True))
    xs = [jnp.broadcast_to(x, (n, *x.shape)) if a is None else x for x, a in pairs[count:]]
    places = [None if axis is None else 0 for axis in axes[:count]]
    forward, backward = (_wide(f, places, n) for f in (map.forward, map.backward))
    results = [jax.ShapeDtypeStruct((n, *y.shape), y.dtype) for y in map.results]
    return LinearMap(forward, backward, count, results)(first[:count], xs), [0] * len(results)


def _wide(function: Map, places: Sequence[int | None], n: int) -> Map:
    """`function` for n instances: with residuals batched at these axes, and one operand for
    each."""

    def run(residuals: Sequence[Any], xs: Sequence[Any]) -> Sequence[Any]:
        count = len(residuals)
        mapped = jax.vmap(
            lambda *arrays: tuple(function(arrays[:count], arrays[count:])),
            in_axes=(*places, *[0] * len(xs)),
            axis_size=n,
        )
        return mapped(*residuals, *xs)

    return run


_linear.def_impl(_run)
_linear.def_abstract_eval(_types)
ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
mlir.register_lowering(_linear, mlir.lower_fun(_run, multiple_results=True))
