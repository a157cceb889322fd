"""How long a process takes to the first result of a saved model with compiled programs beside it.

    python -m benchmarks.compiled_start --rounds 5

Fresh processes alternate: one loads the model and its weights and computes nothing, one compiles,
and one loads the programs that `precompile` has stored beside the model. The model is a transformer
of 12 layers, 256 wide, with a batch of 8 x 64; its result is logits, or a loss with the gradients
by all weights. The target is 1.5 times the first.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS, WIDTH, WORDS, BATCH, LENGTH = 12, 256, 1000, 8, 64

SAVE = f"""
import sys
import tracegraph as tg

tokens = tg.TensorSpec([{BATCH}, {LENGTH}], tg.int32)


class Block(tg.Module):
    def __init__(self):
        super().__init__()
        self.attention = tg.layers.MultiHeadAttention(8, {WIDTH // 8})
        self.norms = [tg.layers.LayerNormalization() for _ in range(2)]
        self.up, self.down = tg.layers.Dense({4 * WIDTH}, "gelu"), tg.layers.Dense({WIDTH})

    def __call__(self, x):
        h = self.norms[0](x)
        x = x + self.attention(h, h)
        return x + self.down(self.up(self.norms[1](x)))


class Model(tg.Module):
    def __init__(self):
        super().__init__()
        self.embedding = tg.layers.Embedding({WORDS}, {WIDTH})
        self.blocks = [Block() for _ in range({LAYERS})]
        self.output = tg.layers.Dense({WORDS})

    @tg.function(input_signature=[tokens])
    def logits(self, x):
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        return self.output(h)

    @tg.function(input_signature=[tokens])
    def gradients(self, x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(
                tg.nn.sparse_softmax_cross_entropy_with_logits(x, self.logits(x))
            )
        return loss, tape.gradient(loss, self.trainable_variables)


model = Model()
for function in (model.logits, model.gradients):
    function(tg.zeros([{BATCH}, {LENGTH}], tg.int32))
tg.saved_model.save(model, sys.argv[1])
for function in (model.logits, model.gradients):
    function.precompile(None, sys.argv[1])
"""

START = f"""
import sys, time
began = time.perf_counter()
import numpy as np
import tracegraph as tg
folder, what, way = sys.argv[1:]
model = tg.saved_model.load(folder, compiled=way == "compiled")
weights = [v.numpy() for v in model.trainable_variables]
if way != "nothing":
    result = getattr(model, what)(np.zeros([{BATCH}, {LENGTH}], np.int32))
    (result[0] if what == "gradients" else result).numpy()
print(time.perf_counter() - began)
"""

WAYS = ("nothing", "anew", "compiled")


def run(program: str, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"PYTHONPATH": str(ROOT), "TRACEGRAPH_CACHE": ""}
    command = [sys.executable, "-c", program, *arguments]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return out.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(SAVE, folder)
        for what in ("logits", "gradients"):
            rounds = [
                [float(run(START, folder, what, way)) for way in WAYS]
                for _ in range(options.rounds)
            ]
            medians = [statistics.median(column) for column in zip(*rounds)]
            ratio = statistics.median(compiled / nothing for nothing, _, compiled in rounds)
            print(
                f"{what}: {medians[0]:.2f} s to load alone, {medians[1]:.2f} s compiled anew, "
                f"{medians[2]:.2f} s with programs: {ratio:.2f} times the load"
            )


if __name__ == "__main__":
    main()
