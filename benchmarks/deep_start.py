"""The first step of transformers by their number of layers: ``python -m benchmarks.deep_start``.

Two steps of the row `transformer_step` run in a fresh process; peers and depths take turns. Prints
medians of processor time, which a busy machine disturbs less than time by the clock: of the first
step, and of what it takes beyond the second, which is tracing and compiling; both with their ratio
to those of the shallowest model.
"""

import argparse
import json
import statistics

from benchmarks import fresh

#: The module of each peer, and its variant of the row.
PEERS = {
    "tracegraph": ("peer_tracegraph", "tracegraph"),
    "jax": ("peer_jax", "jax"),
    "tensorflow": ("peer_tensorflow", "tf_graph"),
}

TWO_STEPS = """
import json, time
from benchmarks import inputs
from benchmarks.{module} import WORKLOADS
workload = WORKLOADS["transformer_step"]["{variant}"](inputs.transformer({layers}))
seconds = []
with workload.scope():
    for _ in range(2):
        start = time.process_time()
        workload.block(workload.step())
        seconds.append(time.process_time() - start)
print(json.dumps(seconds))
"""


def starts(peer: str, layers: int) -> tuple[float, float]:
    """The seconds of the first step, and of what it takes beyond the second."""
    module, variant = PEERS[peer]
    _, printed = fresh.run(TWO_STEPS.format(module=module, variant=variant, layers=layers))
    first, second = json.loads(printed)
    return first, first - second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--layers", nargs="+", type=int, default=[12, 48])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    fresh.compute_on("cpu")
    cases = [(peer, layers) for layers in options.layers for peer in options.peers]
    rounds = [[starts(*case) for case in cases] for _ in range(options.rounds)]
    medians = {
        case: [statistics.median(seconds) for seconds in zip(*column)]
        for case, column in zip(cases, zip(*rounds))
    }
    for (peer, layers), (first, beyond) in medians.items():
        shallowest = medians[peer, min(options.layers)]
        print(
            f"{peer:12}{layers:4} layers  first step {first:6.2f} s ({first / shallowest[0]:.2f})"
            f"  beyond a step {beyond:6.2f} s ({beyond / shallowest[1]:.2f})"
        )


if __name__ == "__main__":
    main()
