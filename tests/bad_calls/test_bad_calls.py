"""Every public function refuses what its arguments cannot be: with the right class, both facts, the
user's line and the repair, at top level and inside of a function.

Each function has a call that is right, in a table `CALLS`; each of its arguments is then wrong in
every way that its value tells (`wrong.py`). What is special of a call stands in `rows.py`.
"""

import types

import pytest

import tracegraph as tg
from tests.bad_calls import (
    calls_array,
    calls_linalg,
    calls_math,
    calls_nn,
    calls_objects,
    calls_programs,
    harness,
    row,
    rows,
    rows_of_devices,
    rows_of_files,
)
from tests.bad_calls.exceptions import ACCEPTED, WITH_OUR_FRAMES, WITHOUT_BAD_CALLS

CALLS = {
    path: good
    for table in (calls_math, calls_array, calls_linalg, calls_nn, calls_objects, calls_programs)
    for path, good in table.CALLS.items()
}
ROWS = [*rows.ROWS, *rows_of_devices.ROWS, *rows_of_files.ROWS]


@pytest.mark.parametrize("is_traced", [False, True], ids=["top level", "function"])
@pytest.mark.parametrize("bad", ROWS, ids=[f"{row.path}-{k}" for k, row in enumerate(ROWS)])
def test_a_call_that_is_wrong_in_a_way_of_its_own(bad, is_traced):
    error = harness.outcome_of_row(bad, is_traced, row.OPERANDS)
    assert error is not None, "it was accepted"
    file = bad.call.__code__.co_filename
    found = harness.faults_of(error, bad.kind, bad.words, file)
    if bad.path in WITH_OUR_FRAMES:
        found = [fault for fault in found if not fault.startswith("frames")]
    assert found == [], str(error)


@pytest.mark.sampled(160)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("path", CALLS)
def test_a_call_with_one_argument_that_is_wrong(path):
    refused = 0
    for case in harness.cases_of(path, CALLS[path]):
        # Where a call may be right it is traced alone: nothing is compiled then.
        for is_traced in (True,) if case.wrong.may else (False, True):
            error = case.outcome(is_traced)
            if error is not None:
                assert harness.faults(case, error, harness.__file__) == [], f"{case}: {error}"
                refused += 1
            elif not case.wrong.may:
                accepted = ACCEPTED.get((path, case.parameter), ACCEPTED.get(case.parameter, ""))
                assert case.wrong.label in accepted, f"{case} was accepted"


def public_modules():
    """The modules of `tg`, by their names; the array API's has a suite of its own."""
    names = [x for x in dir(tg) if isinstance(getattr(tg, x), types.ModuleType) and x != "numpy"]
    modules = {"": tg, **{name: getattr(tg, name) for name in names}}
    inner = {"math.special": tg.math.special, "optimizers.schedules": tg.optimizers.schedules}
    return modules | inner


def public_functions():
    """The public paths of each function and class."""
    found = {}
    for short, module in public_modules().items():
        for name in dir(module):
            value = getattr(module, name)
            is_error = isinstance(value, type) and issubclass(value, BaseException)
            if name[0] != "_" and callable(value) and not is_error:
                _, paths = found.setdefault(id(value), (value, []))
                paths.append(f"{short}.{name}".removeprefix("."))
    return [paths for _, paths in found.values()]


def test_every_public_function_has_three_bad_calls():
    by_hand = {row.path for row in ROWS}
    missing, counts = [], {name: count_of(name, good) for name, good in CALLS.items()}
    for names in public_functions():
        count = max(total_of(name, counts) for name in names)
        count += sum(row.path in names for row in ROWS)
        if count < 3 and not WITHOUT_BAD_CALLS.keys() & set(names):
            missing.append((names[0], count))
    assert missing == []
    assert by_hand <= {name for names in public_functions() for name in names} | METHODS


def count_of(name, good):
    return sum(not case.wrong.may for case in harness.cases_of(name, good))


def total_of(path, counts):
    """How many calls of a function, or of what a class makes, must be refused."""
    made = f"{path}()"
    return sum(n for name, n in counts.items() if name == path or name.startswith(made))


METHODS = {row.path for row in ROWS if "()" in row.path}
