"""How much sooner a second process starts with compiled programs on disk.

    python -m benchmarks.compilation_cache --rounds 5

Fresh processes alternate: one without a folder of compiled programs, one with a folder that an
earlier process has filled. Each does what `examples/train_digits.py` does: it imports, sets the
seed, which also imports JAX, and loads the data. The measurement is the time from there to the end
of the first train step, which creates the model's Variables, traces, and compiles or loads. The
second number is the time since the process started, imports included.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

START = """
import time
began = time.perf_counter()
import sys
sys.path.insert(0, sys.argv[1])
import train_digits
train_digits.tg.random.set_seed(0)
training, _ = train_digits.load_splits(0)
ready = time.perf_counter()
model = train_digits.make_model(sys.argv[2])
step, _ = train_digits.make_steps(model, train_digits.tg.optimizers.Adam(learning_rate=0.001))
float(step(training.images[:32], training.labels[:32]))
done = time.perf_counter()
print(done - ready, done - began)
"""


def seconds(model, folder):
    """Seconds to the end of the first step: from loaded data, and from the start."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment["TRACEGRAPH_CACHE"] = folder
    environment["PYTHONPATH"] = str(EXAMPLES.parent)
    command = [sys.executable, "-c", START, str(EXAMPLES), model]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return tuple(map(float, out.stdout.split()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds(options.model, folder)  # fills the folder
        rounds = [
            (seconds(options.model, ""), seconds(options.model, folder))
            for _ in range(options.rounds)
        ]
    for place, name in enumerate(("from loaded data", "from the start of the process")):
        without, kept = ([variant[place] for variant in variants] for variants in zip(*rounds))
        ratio = statistics.median(a / b for a, b in zip(without, kept))
        print(
            f"first step {name}: {statistics.median(without):.2f} s without, "
            f"{statistics.median(kept):.2f} s with compiled programs on disk: "
            f"{ratio:.1f} times sooner"
        )


if __name__ == "__main__":
    main()
