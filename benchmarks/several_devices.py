"""The cost of a call and a train step over 8 devices, beside plain JAX with the same shardings.

    python -m benchmarks.several_devices --rounds 20

The devices are virtual CPU devices, so the times show the cost of Python and of sharding, not the
speed of exchanges. The two take turns in one process. A call adds one to an array sharded over all
devices, and does not wait for the result; a step is that of an MLP 784-512-512-10 with momentum,
batch 128, whose first two layers are sharded along one axis of the mesh, and the batch along the
other, and it ends when its loss is ready.
"""

import argparse
import os
import statistics
import time

DEVICES = 8
WIDTHS, BATCH = (784, 512, 512, 10), 128
RATE, MOMENTUM = 0.1, 0.9
#: How the weights and biases of the layers are sharded.
LAYOUTS = (([None, "model"], ["model"]), (["model", None], [None]), ([None, None], [None]))


def start():
    """The libraries, in a process that has the devices."""
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    import jax
    import numpy as np

    import tracegraph as tg

    return jax, np, tg


jax, np, tg = start()
MESH = tg.distribute.Mesh({"data": 4, "model": 2})


def layout(axes):
    return tg.distribute.Layout(MESH, axes)


def start_values():
    """Weights and biases, with their layouts."""
    random = np.random.default_rng(0)
    for m, n, axes in zip(WIDTHS, WIDTHS[1:], LAYOUTS):
        yield (random.normal(size=(m, n)) / m**0.5).astype(np.float32), layout(axes[0])
        yield np.zeros(n, np.float32), layout(axes[1])


def batch():
    random = np.random.default_rng(1)
    x = random.normal(size=(BATCH, WIDTHS[0])).astype(np.float32)
    y = random.integers(0, WIDTHS[-1], BATCH).astype(np.int32)
    return jax.device_put(x, layout(["data", None]).sharding), y


def our_step():
    weights = [tg.Variable(value, layout=its) for value, its in start_values()]
    speeds = [tg.Variable(np.zeros(v.shape, np.float32), layout=v.layout) for v in weights]

    @tg.function
    def step(x, y):
        with tg.GradientTape() as tape:
            h = x
            for w, b in zip(weights[:-2:2], weights[1:-2:2]):
                h = tg.nn.relu(h @ w + b)
            logits = h @ weights[-2] + weights[-1]
            losses = tg.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tg.reduce_mean(losses)
        for v, speed, g in zip(weights, speeds, tape.gradient(loss, weights)):
            speed.assign(MOMENTUM * speed + g)
            v.assign_sub(RATE * speed)
        return loss

    x, y = map(tg.constant, batch())
    return lambda: float(step(x, y))


def jax_step():
    weights = [jax.device_put(value, its.sharding) for value, its in start_values()]
    speeds = [jax.device_put(np.zeros_like(w), w.sharding) for w in weights]
    kept = [w.sharding for w in weights]

    def loss_of(weights, x, y):
        h = x
        for w, b in zip(weights[:-2:2], weights[1:-2:2]):
            h = jax.nn.relu(h @ w + b)
        logits = h @ weights[-2] + weights[-1]
        picked = jax.numpy.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -picked.mean()

    def step(weights, speeds, x, y):
        loss, slopes = jax.value_and_grad(loss_of)(weights, x, y)
        speeds = [MOMENTUM * speed + g for speed, g in zip(speeds, slopes)]
        return loss, [w - RATE * speed for w, speed in zip(weights, speeds)], speeds

    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(None, kept, kept))
    x, y = batch()
    y = jax.numpy.asarray(y)
    state = [weights, speeds]

    def run():
        loss, *state[:] = jitted(*state, x, y)
        return float(loss)

    return run


def our_call():
    f = tg.function(lambda x: x + 1.0)
    x = tg.constant(jax.device_put(np.zeros((8, 8), np.float32), layout([EVERY, None]).sharding))
    return lambda: f(x)


def jax_call():
    f = jax.jit(lambda x: x + 1.0)
    x = jax.device_put(np.zeros((8, 8), np.float32), layout([EVERY, None]).sharding)
    return lambda: f(x)


EVERY = ("data", "model")
ROWS = {
    "call": (our_call, jax_call, 500, 1.25),
    "step": (our_step, jax_step, 20, 1.02),
}


def seconds(run, count):
    """Seconds of one of `count` calls."""
    began = time.perf_counter()
    for _ in range(count):
        last = run()
    np.asarray(last)
    return (time.perf_counter() - began) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    for name, (ours, theirs, count, target) in ROWS.items():
        pair = ours(), theirs()
        first = [run() for run in pair]
        if name == "step":
            np.testing.assert_allclose(*first, rtol=1e-4)
        rounds = [[seconds(run, count) for run in pair] for _ in range(1 + options.rounds)][1:]
        own, other = (statistics.median(column) for column in zip(*rounds))
        ratio = statistics.median(a / b for a, b in rounds)
        print(
            f"{name}: tracegraph {own * 1e6:,.1f} us, JAX {other * 1e6:,.1f} us, "
            f"ratio {ratio:.3f} (target {target})"
        )


if __name__ == "__main__":
    main()
