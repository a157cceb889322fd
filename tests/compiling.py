"""How much effort XLA takes over the programs of tests.

Nearly all of the time of the tests is XLA's: what LLVM optimises, and the kernels that it lowers
through MLIR. Most programs run once, on a few numbers, so tests compile them quickly. XLA's passes
over the whole program (its simplifier, fusion, the plan of buffers) are the same in both ways.
"""

import os
import shutil
import tempfile
from pathlib import Path

import jax

#: Options of one program that is compiled quickly, which takes a third of the time.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # XLA divides the code of a program among threads, which costs more than it saves where each
    # core has a worker of the tests.
    "xla_cpu_parallel_codegen_split_count": 1,
}
#: Options of one program that is compiled as users have it, whatever the process is told.
OPTIMISED = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_parallel_codegen_split_count": 32,
}
if jax.__version_info__ < (0, 12):  # since then XLA has no other way, and ends at unknown flags
    QUICK["xla_cpu_use_fusion_emitters"] = False
    OPTIMISED["xla_cpu_use_fusion_emitters"] = True


def compile_quickly() -> None:
    """Makes quick compiles the default of this process and of those that it starts. What stands
    in XLA_FLAGS already comes last, so it wins. XLA reads the variable when JAX first computes."""
    flags = [f"--{name}={str(value).lower()}" for name, value in QUICK.items()]
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*(x for x in flags if x not in given), *given])


def keep_programs() -> Path | None:
    """Begins to keep the compiled programs of this process on disk, by JAX's own cache: many tests
    compile what another has compiled. Returns the folder, or None where the caller has one.

    The folder belongs to this process, as JAX writes entries in place: whoever reads beside the
    writer would find a half. It begins with the programs of the folder TRACEGRAPH_TEST_CACHE.
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
    """Hands the new programs to the next run, each in one step, and removes the folder."""
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
