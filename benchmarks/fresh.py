"""Measurements of processes that start and end: imports, and one gradient."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: The environment for each device. TF32 would round the products of some peers only; the second of
#: its variables is for XLA's own kernels.
DEVICES = {
    "cpu": {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"},
    "gpu": {
        "JAX_PLATFORMS": "cuda,cpu",
        "NVIDIA_TF32_OVERRIDE": "0",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the peers share the memory of the device
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    },
}

#: All peers compute on the same device and load bytecode, so that they are comparable. Installed
#: packages have bytecode already; a checkout gets it at the first import, unless this variable
#: forbids it. Empty, it does not.
ENVIRONMENT = os.environ | {
    "PYTHONDONTWRITEBYTECODE": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def compute_on(device: str) -> str:
    """Makes processes started from now on compute on "cpu" or "gpu". Returns JAX's name for the
    device; raises ProcessError if JAX finds none."""
    ENVIRONMENT.update(DEVICES[device], BENCHMARKS_DEVICE=device)
    return run(f"import jax; print(jax.devices({device!r})[0].device_kind)")[1]


IMPORTS = {
    "tracegraph": "import tracegraph",
    "jax": "import jax, jax.numpy",
    "tensorflow": "import tensorflow",
    "torch": "import torch",
}

TIMED_IMPORT = """
import sys, time
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
from benchmarks.memory import peak
import json
of_jax = sum(name.partition(".")[0] in ("jax", "jaxlib") for name in sys.modules)
print(json.dumps({{"import": seconds, "peak memory": peak(), "jax modules": of_jax}}))
"""

ONE_GRADIENT = {
    "tracegraph": {
        "tracegraph": """
import tracegraph as tg
x = tg.Variable(3.0)
with tg.GradientTape() as tape:
    y = x**2
print(float(tape.gradient(y, x)))
""",
    },
    "jax": {
        "jax": """
import jax
print(float(jax.grad(lambda x: x**2)(3.0)))
""",
        "jax_jit": """
import jax
print(float(jax.jit(jax.grad(lambda x: x**2))(3.0)))
""",
    },
    "tensorflow": {
        "tf_eager": """
import tensorflow as tf
x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    y = x**2
print(float(tape.gradient(y, x)))
""",
    },
    "torch": {
        "torch": """
import torch
x = torch.tensor(3.0, requires_grad=True)
(x**2).backward()
print(float(x.grad))
""",
    },
}


class ProcessError(Exception):
    """A process failed; the message is its last line."""


def timed_import(peer: str) -> dict[str, float]:
    """Returns the seconds and the memory of importing `peer`, and what it loaded of JAX."""
    _, printed = run(TIMED_IMPORT.format(statement=IMPORTS[peer]))
    return json.loads(printed)


def timed_gradient(source: str) -> dict[str, float]:
    """Returns the seconds of a whole process, from its start to its end."""
    seconds, printed = run(source)
    if float(printed) != 6.0:
        raise ProcessError(f"the gradient is {printed}, not 6.0")
    return {"process": seconds}


def run(source: str) -> tuple[float, str]:
    """Runs `source` in a new interpreter; returns its seconds and the last line that it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise ProcessError(last_line(done.stderr))
    return seconds, last_line(done.stdout)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
