"""Programs that find no memory, in processes that are allowed little of it."""

import subprocess
import sys
import textwrap

import jax
import pytest

import tracegraph as tg
from lowering.memory import exhausted

HEAD = """
import resource
import numpy as np
import tracegraph as tg

def allow(bytes):
    with open("/proc/self/status") as status:
        used = next(int(x.split()[1]) for x in status if x.startswith("VmSize")) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes, used + bytes))

x = tg.constant(np.ones(20_000, np.float32))
small = tg.function(lambda x: x + 1)
v = tg.Variable(np.ones(20_000, np.float32))

"""
TAIL = """
try:
    print("no error", run())
except tg.errors.ResourceExhaustedError as error:
    assert isinstance(error, MemoryError) and isinstance(error, tg.errors.LoweringError)
    print(error)
print("behind", float(small(v)[0]))
"""


def told(tmp_path, body, tail=TAIL):
    """What a program prints: the error, and what still works behind it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the limit of a process is that of Linux")
    path = tmp_path / "program.py"
    path.write_text(HEAD + textwrap.dedent(body) + tail)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_function_tells_its_largest_values_with_their_lines(tmp_path):
    text = told(
        tmp_path,
        """
        @tg.function
        def outer(x):
            table = x[:, None] * x[None, :]
            ordered = tg.sort(tg.reshape(table, [-1]))
            return tg.reduce_sum(ordered * ordered[::-1])

        outer.experimental_get_compiler_ir(x)("optimized_hlo")
        float(small(v)[0])
        def run():
            allow(600_000_000)
            return outer(x)
        """,
    )
    assert "@outer finds no memory on /job:localhost/replica:0/task:0/device:CPU:0: " in text
    assert "Out of memory allocating" in text
    assert "it takes 80,000 bytes of arguments, 4 of results and" in text
    assert "1,600,000,000 bytes 2 times: f32[400000000] at " in text
    assert "program.py:19: ordered = tg.sort(tg.reshape(table, [-1]))" in text
    assert "1,600,000,000 bytes 3 times: f32[20000,20000] at " in text
    assert " 4 bytes: " not in text  # the sum is small
    assert "fix: use a smaller batch, or have @tg.function(memory_budget=...)" in text
    assert "behind 2.0" in text


def test_a_step_that_finds_no_memory_keeps_its_variables(tmp_path):
    text = told(
        tmp_path,
        """
        @tg.function
        def step(x):
            table = tg.sort(tg.reshape(x[:, None] * x[None, :], [-1]))
            v.assign_add(table[-20_000:])

        @tg.function
        def light():
            v.assign_add(tg.ones([20_000]))

        light()
        float(small(v)[0])
        def run():
            allow(600_000_000)
            for _ in range(2):
                try:
                    step(x)
                except tg.errors.ResourceExhaustedError as error:
                    last = error
            light()
            raise last
        """,
    )
    assert "@step finds no memory" in text
    assert "behind 4.0" in text  # 1, and 1 of each `light`, and 1


def test_top_level_code_tells_the_line_of_the_value(tmp_path):
    text = told(
        tmp_path,
        """
        float(small(v)[0])
        def run():
            allow(600_000_000)
            table = x[:, None] * x[None, :]
            return float(tg.sort(tg.reshape(table, [-1]))[7])
        """,
    )
    assert "finds no memory on" in text
    assert "1,600,000,000 bytes 2 times: f32[400000000] at " in text
    assert "behind 2.0" in text


def test_a_gpu_that_other_processes_fill_is_told_by_the_fix():
    graph = tg.function(lambda x: x + 1).graph(tg.TensorSpec([2]))
    full = "RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    text = str(exhausted(jax.errors.JaxRuntimeError(full), graph))
    assert "0: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n" in text
    assert "fix: other processes may hold the memory" in text
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in text
    assert "batch" not in text
