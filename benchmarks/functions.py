"""Functions beside TensorFlow's, in one process: ``python -m benchmarks.functions``.

For each, the processor time of the quickest of some calls in turns: the values, and the gradients
by all floating-point operands of the sum of their squares. Names as arguments choose some of them.
"""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tracegraph as tg

CALLS = 7
_random = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return _random.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return abs(normal(*shape)) + np.float32(0.5)


def labels(count: int, classes: int) -> np.ndarray:
    return _random.integers(0, classes, count, dtype=np.int32)


#: A function of a library, named `t`, and of operands; and the operands.
CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "convolution of 3 x 3": (
        lambda t, x, k: t.nn.conv2d(x, k, 1, "SAME"),
        [normal(64, 28, 28, 32), normal(3, 3, 32, 64)],
    ),
    "first layer": (
        lambda t, x, k: t.nn.conv2d(x, k, 1, "SAME"),
        [normal(64, 28, 28, 1), normal(3, 3, 1, 32)],
    ),
    "patches": (
        lambda t, x, k: t.nn.conv2d(x, k, 16, "VALID"),
        [normal(8, 224, 224, 3), normal(16, 16, 3, 192)],
    ),
    "transposed": (
        lambda t, x, k: t.nn.conv2d_transpose(x, k, [16, 32, 32, 16], 2),
        [normal(16, 16, 16, 32), normal(3, 3, 16, 32)],
    ),
    "depthwise": (
        lambda t, x, k: t.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"),
        [normal(8, 56, 56, 64), normal(3, 3, 64, 1)],
    ),
    "three axes": (
        lambda t, x, k: t.nn.conv3d(x, k, [1] * 5, "SAME"),
        [normal(4, 16, 16, 16, 16), normal(3, 3, 3, 16, 16)],
    ),
    "sort": (lambda t, x: t.sort(x), [normal(200, 1000)]),
    "argsort": (lambda t, x: t.argsort(x), [normal(200, 1000)]),
    "confusion_matrix": (
        lambda t, x: t.math.confusion_matrix(x, x, 50),
        [labels(10_000, 50)],
    ),
    "gamma": (
        # Of an alpha that the graph knows, TensorFlow draws the numbers once.
        lambda t, x: t.random.stateless_gamma(x.shape, [1, 2], alpha=x),
        [positive(200, 200)],
    ),
    "poisson": (
        lambda t, x: t.random.stateless_poisson(x.shape, [1, 2], lam=5 * x),
        [positive(500, 500)],
    ),
    "binomial": (
        lambda t, x: t.random.stateless_binomial(x.shape, [1, 2], 100 * x, x / (x + 1)),
        [positive(500, 500)],
    ),
    "igamma": (lambda t, x: t.math.igamma(x, x + 1), [positive(300, 300)]),
    "betainc": (
        lambda t, x: t.math.betainc(t.stop_gradient(x), t.stop_gradient(x), x / (x + 1)),
        [positive(300, 300)],
    ),
    "asin": (lambda t, x: t.asin(x / 10), [normal(1000, 1000)]),
    "atan2": (lambda t, x, y: t.atan2(x, y), [normal(1000, 1000), normal(1000, 1000)]),
    **{
        name: (lambda t, x, name=name: getattr(t.math.special, name)(8 * x), [positive(500, 500)])
        for name in ("bessel_j0", "bessel_y1", "bessel_k0", "bessel_k1e", "expint")
    },
    "sin": (lambda t, x: t.sin(x), [normal(1000, 1000)]),
    "floordiv": (lambda t, x: x // 0.7, [normal(1000, 1000)]),
}


def calls_of(t: Any, function: Callable[..., Any], given: list[np.ndarray]) -> list[Callable]:
    """A call of the function in library `t`, and one of its gradients, if it has operands for
    them."""
    operands = [t.constant(x) for x in given]
    sources = [k for k, x in enumerate(given) if x.dtype == np.float32]

    def gradients(*operands: Any) -> Any:
        watched = [operands[k] for k in sources]
        with t.GradientTape() as tape:
            tape.watch(watched)
            y = function(t, *operands)
            y = t.reduce_sum(y * y) if y.dtype == t.float32 else y
        return [x for x in tape.gradient(y, watched) if x is not None]

    values = t.function(lambda *operands: function(t, *operands))
    has_gradients = sources and values(*operands).dtype == t.float32
    made = [values, t.function(gradients)] if has_gradients else [values]
    return [lambda f=f: t.nest.map_structure(lambda x: x.numpy(), f(*operands)) for f in made]


def milliseconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def main() -> None:
    warnings.filterwarnings("ignore", "5 of the last 5 calls")  # each case decorates anew
    for name in sys.argv[1:] or CASES:
        function, given = CASES[name]
        pairs = [*zip(*(calls_of(t, function, given) for t in (tg, tf)), strict=True)]
        texts = []
        for what, pair in zip(("values", "gradients"), pairs):
            rounds = [[milliseconds(call) for call in pair] for _ in range(CALLS + 1)]
            ours, other = map(min, zip(*rounds[1:], strict=True))
            texts.append(f"{what} {ours:.2f} ms, TensorFlow {other:.2f}: {ours / other:.2f}")
        print(f"{name}: {'; '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
