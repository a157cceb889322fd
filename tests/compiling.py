"""How much effort XLA spends on the programs of tests.

Nearly all of the time of the tests is XLA's: LLVM optimisation, and kernels lowered through MLIR.
Most programs run once, on a few numbers, so tests compile them quickly. XLA's passes over the whole
program (its simplifier, fusion, buffer assignment) are the same in both modes.
"""

import functools
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

import jax
from jax.interpreters import mlir

#: Options for compiling one program quickly, which takes a third of the time.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # XLA would split a program's code among threads, which costs more than it saves if each core
    # runs a test worker.
    "xla_cpu_parallel_codegen_split_count": 1,
}
#: Options for compiling one program as for users, whatever the process default is.
OPTIMISED = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_parallel_codegen_split_count": 32,
}
if jax.__version_info__ < (0, 11):  # later XLA has no other way, and aborts on unknown flags
    QUICK["xla_cpu_use_fusion_emitters"] = False
    OPTIMISED["xla_cpu_use_fusion_emitters"] = True
#: Options for the fusions of users' programs, and so the buffers that they need.
PLANNED = {x: OPTIMISED[x] for x in ("xla_cpu_use_fusion_emitters",) if x in OPTIMISED}


def compile_quickly() -> None:
    """Makes quick compiles the default of this process and of its children. Existing XLA_FLAGS come
    last, so they win. XLA reads the variable when JAX first computes."""
    flags = [f"--{name}={str(value).lower()}" for name, value in QUICK.items()]
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*(x for x in flags if x not in given), *given])


class _Thread:
    """Stands for a thread, and goes with it."""


class _Contexts:
    """MLIR contexts for the modules that JAX lowers. Making a context and removing it takes 3 ms,
    a sixth of what a small program takes in all, so up to `_MODULES` modules share one: what a
    context has once held, it keeps. Only one thread at a time lowers into a context. From 0.11.2
    on JAX shares contexts within a thread, but our programs are lowered by a new thread each."""

    _MODULES = 32

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()
        #: Of each context: its thread, and how many more modules it may hold.
        self._open: dict[mlir.ir.Context, tuple[weakref.ref[_Thread], int]] = {}

    def context(self) -> mlir.ir.Context:
        """A context that no other live thread uses."""
        thread = self._local.__dict__.setdefault("thread", _Thread())
        with self._lock:
            context, left = self._found(thread) or (mlir.make_ir_context(), self._MODULES)
            self._open[context] = weakref.ref(thread), left - 1
            if left == 1:
                del self._open[context]
            return context

    def _found(self, thread: _Thread) -> tuple[mlir.ir.Context, int] | None:
        for context, (user, left) in self._open.items():
            if user() in (thread, None):
                return context, left
        return None


def share_contexts() -> None:
    """Makes several programs share one MLIR context, where JAX makes one for each."""
    contexts, create = _Contexts(), mlir.ModuleContext.__init__

    @functools.wraps(create)
    def created(self, *, context=None, **others):
        create(self, context=context or contexts.context(), **others)

    mlir.ModuleContext.__init__ = created


def compute_on_cpus() -> None:
    """Makes this process and its children compute on CPUs, whatever the machine has; a given
    JAX_PLATFORMS wins. What is for GPUs has tests of its own, which `-m gpu` selects."""
    jax.config.update("jax_platforms", os.environ.setdefault("JAX_PLATFORMS", "cpu"))


def share_gpus() -> None:
    """Makes this process and its children take GPU memory as they need it: JAX would reserve three
    quarters of a GPU for the first of several workers."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def keep_programs() -> Path | None:
    """Starts keeping this process's compiled programs on disk, in JAX's own cache: many tests
    compile the same programs. Returns the folder, or None if the caller has one.

    The folder is private to this process, since JAX writes entries in place: a concurrent reader
    would find half an entry. It starts with the programs in the folder TRACEGRAPH_TEST_CACHE.
    """
    if jax.config.jax_compilation_cache_dir:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tracegraph-programs."))
    for entry in _kept_entries():
        _link(entry, folder / entry.name)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def let_go_of_programs(folder: Path) -> None:
    """Passes the new programs on to the next run, each atomically, and removes the folder."""
    jax.config.update("jax_compilation_cache_dir", None)
    known = {entry.name for entry in _kept_entries()}
    for entry in folder.iterdir():
        if (kept := _kept_folder()) and entry.name not in known:
            part = kept / f".{os.getpid()}.part"
            shutil.copyfile(entry, part)
            part.replace(kept / entry.name)
    shutil.rmtree(folder)


def _kept_folder() -> Path | None:
    given = os.environ.get("TRACEGRAPH_TEST_CACHE")
    return Path(given) if given and Path(given).is_dir() else None


def _kept_entries() -> list[Path]:
    kept = _kept_folder()
    return [x for x in kept.iterdir() if not x.name.startswith(".")] if kept else []


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk
        shutil.copyfile(source, target)
