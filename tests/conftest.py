"""Fixtures and hooks that several test files share."""

import gc
import itertools
import math
from collections import defaultdict
from types import SimpleNamespace

import hypothesis
import pytest
from xdist.scheduler import WorkStealingScheduling

import tracegraph as tg
from lowering import program as programs
from tests.bytecode import keep_bytecode
from tests.compiling import (
    OPTIMISED,
    PLANNED,
    compile_quickly,
    compute_on_cpus,
    keep_programs,
    let_go_of_programs,
    share_contexts,
    share_gpus,
)
from tests.sampling import divided
from tests.temporary_files import keep_temporary_files_in_memory
from tracegraph.eager import pending
from tracegraph.ir.builder import top_level

# What is read and collected stays, so looking for garbage in it would only take time: a fifth of
# all that the collection of the tests takes.
gc.disable()

compile_quickly()
share_contexts()

# On a machine shared with others, the duration of an example means nothing.
hypothesis.settings.register_profile("tracegraph", deadline=None)
hypothesis.settings.load_profile("tracegraph")

# A busy machine compiles slowly, and tests compare what is printed.
tg.config.set_compile_notes(False)


def pytest_configure(config):
    selected = config.getoption("markexpr")
    if "gpu" not in selected.replace("not gpu", ""):
        compute_on_cpus()
    else:
        share_gpus()
    keep_temporary_files_in_memory(config)
    keep_bytecode(config)
    # With several processes only the workers compile.
    if not getattr(config.option, "numprocesses", None):
        folder = keep_programs()
        if folder is not None:
            config.add_cleanup(lambda: let_go_of_programs(folder))


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects marked tests
def pytest_collection_modifyitems(items):
    """Marks as `sweep` all cases of a test except those that its mark `sampled` keeps."""
    families = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            families[item.nodeid.partition("[")[0]].append(item)
    for cases in families.values():
        (count,) = cases[0].get_closest_marker("sampled").args
        for item in divided(cases, count)[1]:
            item.add_marker("sweep")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    yield
    gc.enable()


def pytest_collection_finish(session):
    let_go_of_deselected(session.config)
    gc.collect()
    gc.freeze()
    # Tests create large trees, of nodes and of syntax, rather than many cycles.
    gc.set_threshold(20_000, 10, 10)


def let_go_of_deselected(config):
    """Forgets the tests that are left out, which are more than those that run: pytest keeps them
    only to count them, and each full collection would look through them."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (left_out := reporter.stats.get("deselected")):
        left_out[:] = [SimpleNamespace()] * len(left_out)


_files_begun = itertools.count(1)
#: Memory maps of the process after the last collection that left nothing out.
_maps_left = 0


@pytest.fixture(scope="module", autouse=True)
def others_stay_out_of_collections():
    """Hides imports, twenty thousand tests and the caches of earlier files from the collector:
    scanning them in each collection would take a tenth of a worker's time.
    Never scanning would be too rare: a garbage program holds nine memory maps, and a process is
    limited to 65,530. So every ten files all is scanned if the maps have grown by 10,000."""
    global _maps_left
    grown = next(_files_begun) % 10 == 0 and memory_maps() >= _maps_left + 10_000
    if grown:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if grown:
        _maps_left = memory_maps()


def memory_maps():
    """How many memory maps this process has; infinitely many where the system does not tell."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return math.inf


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Neighbouring tests run in one worker, where they share module fixtures and compiled programs:
    each worker starts with one block of the tests, and idle workers steal from the others."""
    if config.getvalue("dist") == "load":
        return WorkStealingScheduling(config, log)
    return None


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Returns `run(fn, *args)`: fn(*args) called directly, or compiled by `tg.function`."""
    if request.param == "function":
        return lambda fn, *args: tg.function(fn)(*args)
    return lambda fn, *args: fn(*args)


@pytest.fixture
def compiled_by():
    """Returns `compiled_by(action)`: how many programs an action compiles. What an earlier test
    left pending is computed first: it would be part of this test's first program, which no later
    call could then use."""
    top_level().evaluate()

    def count(action):
        before = pending.compiled_count()
        action()
        return pending.compiled_count() - before

    return count


@pytest.fixture
def optimised(monkeypatch):
    """Compiles our programs with all optimisations, as for users."""
    compile_with(monkeypatch, OPTIMISED)


@pytest.fixture
def planned(monkeypatch):
    """Compiles our programs to the same kernels and buffers as for users, whose code is not
    optimised: what a program takes is known before there is code."""
    compile_with(monkeypatch, PLANNED)


def compile_with(monkeypatch, options):
    usual = programs._compiler_options
    monkeypatch.setattr(programs, "_compiler_options", lambda graph: {**usual(graph), **options})
    # No quickly compiled program may be reused for one of these, and none of these may stay.
    monkeypatch.setattr(pending, "_programs", pending._Programs(pending._PROGRAM_LIMIT))
