"""What is done with a function before it is saved, and after it is loaded in a process of its own.

`python -m tests.saving_uses FOLDER USES` loads models in the folder, which have none of their
source here, and writes what their uses give to `FOLDER/<model>.npz`. USES has the names of the uses
by model, as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np

import tracegraph as tg
from tests.derivatives import batch_jacobian, jacobian

#: One row of three numbers for each example of a batch.
X = np.random.default_rng(7).standard_normal((4, 3))
T = np.random.default_rng(8).standard_normal((4, 3))


def slope(f, x, order=1):
    """The derivative of the sum of f, taken `order` times, each time of the sum of it."""
    if order == 0:
        return f(x)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.reduce_sum(slope(f, x, order - 1) ** 2)
    return tape.gradient(y, x)


def pushed(f, x):
    with tg.autodiff.ForwardAccumulator(x, tg.constant(T)) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


def by_variables(f, x):
    with tg.GradientTape() as tape:
        y = tg.reduce_sum(f(x) ** 2)
        variables = tape.watched_variables()
    found = tape.gradient(y, variables, unconnected_gradients="zero")
    return tg.concat([tg.reshape(g, [-1]) for g in [tg.reduce_sum(y)[None], *found]], 0)


USES = {
    "value": lambda f, x: f(x),
    "another batch": lambda f, x: f(tg.concat([x, x[:2]], 0)),
    "gradient": slope,
    "order 2": lambda f, x: slope(f, x, 2),
    "order 3": lambda f, x: slope(f, x, 3),
    "jvp": pushed,
    "jacobian": jacobian,
    "jacobian, forward": lambda f, x: jacobian(f, x, mode="forward"),
    "batch_jacobian": batch_jacobian,
    "hessian": lambda f, x: tg.hessian(lambda x: tg.reduce_sum(f(x) ** 3))(x),
    "vectorized_map": lambda f, x: tg.vectorized_map(lambda r: f(r[None])[0] * r[0], x),
    "slopes of examples": lambda f, x: tg.vectorized_map(lambda r: slope(f, r[None]), x),
    "sparse": lambda f, x: jacobian(f, x, sparse=True).to_dense(),
    "recompute_grad": lambda f, x: slope(tg.recompute_grad(f), x, 2),
    "inside a function": lambda f, x: tg.function(lambda x: slope(f, x, 2))(x),
    "variables": by_variables,
}


def results(f, names):
    """By name what each of these uses gives of f at X."""
    return {name: np.asarray(USES[name](f, tg.constant(X))) for name in names}


def main(folder, uses):
    for model, names in uses.items():
        found = results(tg.saved_model.load(folder / model).f, names)
        np.savez(folder / f"{model}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
