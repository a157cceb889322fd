"""What pytest gives to tests of several files."""

import gc
import itertools
from collections import defaultdict

import hypothesis
import pytest
from xdist.scheduler import WorkStealingScheduling

import tracegraph as tg
from lowering import program as programs
from tests.compiling import OPTIMISED, compile_quickly, keep_programs, let_go_of_programs
from tests.sampling import divided
from tracegraph.eager import pending

compile_quickly()

# How long an example takes says nothing on a machine that others use too.
hypothesis.settings.register_profile("tracegraph", deadline=None)
hypothesis.settings.load_profile("tracegraph")

# A busy machine compiles slowly, and what tests print is compared.
tg.config.set_compile_notes(False)


def pytest_configure(config):
    # Of several processes only the workers compile.
    if not getattr(config.option, "numprocesses", None):
        folder = keep_programs()
        if folder is not None:
            config.add_cleanup(lambda: let_go_of_programs(folder))


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out what is marked
def pytest_collection_modifyitems(items):
    """Marks as `sweep` all cases of a test but those that its mark `sampled` keeps."""
    families = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            families[item.nodeid.partition("[")[0]].append(item)
    for cases in families.values():
        (count,) = cases[0].get_closest_marker("sampled").args
        for item in divided(cases, count)[1]:
            item.add_marker("sweep")


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    # What tests make is large trees, of nodes and of syntax, rather than many cycles.
    gc.set_threshold(20_000, 10, 10)


_files_begun = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def others_stay_out_of_collections():
    """What was imported, twenty thousand tests and what earlier files left in caches is looked at
    every ten files: in each collection it would be a tenth of the time of a worker. Never would
    be too rare: a program that is garbage holds nine memory maps, of which a process has 65,530."""
    if next(_files_begun) % 10 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Neighbours run in one worker, where they share fixtures of modules and compiled programs:
    each worker begins with one piece of the tests, and who is done takes from the others."""
    if config.getvalue("dist") == "load":
        return WorkStealingScheduling(config, log)
    return None


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Returns `run(fn, *args)`: fn(*args) as it is, or compiled by `tg.function`."""
    if request.param == "function":
        return lambda fn, *args: tg.function(fn)(*args)
    return lambda fn, *args: fn(*args)


@pytest.fixture
def optimised(monkeypatch):
    """Our programs are compiled with all optimisation, as users have it."""
    usual = programs._compiler_options
    monkeypatch.setattr(programs, "_compiler_options", lambda graph: {**usual(graph), **OPTIMISED})
    # No program that was compiled quickly is taken for one of these, and none of these stays.
    monkeypatch.setattr(pending, "_programs", pending._Programs(pending._PROGRAM_LIMIT))
