"""Random sequences of assignments, functions, callbacks, tapes, exceptions, interrupts, signals and
checkpoints in any nesting give what a plain Python model gives, to the last bit.

hypothesis draws the sequences, and shrinks and prints one that fails. All of the long ones:

    pytest -m slow tests/state/test_state_programs.py
"""

import random
import signal
import threading
import time
import traceback

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.state_programs import Author, Pool

pytestmark = [
    pytest.mark.skipif(
        not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread(),
        reason="signals need the main thread",
    ),
    pytest.mark.filterwarnings("ignore:5 of the last"),
]

#: Statements of the main program of a sequence.
LENGTH = 12
#: For how long a sequence that fails is made shorter: each try compiles its functions.
SECONDS = 60.0

OPTIONS = hypothesis.settings(
    database=None,
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    suppress_health_check=list(hypothesis.HealthCheck),
)


class Differences:
    """Tells of each sequence what differs. One that failed is run once more where no function is
    traced, as all are that are made of it: whatever was before, it fails again."""

    def __init__(self, seed, size, folder):
        self.pool = Pool(Author(random.Random(seed)).functions(size), folder)
        self.folder = folder
        #: Those that were run.
        self.known = set()
        self.failed = {}
        self.until = 0.0

    def difference(self, sequence):
        key = str(sequence)
        if not self.failed:
            self.known.add(key)
            found = told(self.pool, sequence)
            if found is not None:
                self.until = time.monotonic() + SECONDS
                among = f"{found} (only behind the {len(self.known) - 1} sequences before it)"
                self.failed[key] = self.of_new_functions(sequence) or among
        elif key not in self.failed and time.monotonic() < self.until:
            found = self.of_new_functions(sequence)
            if found is not None:
                self.failed[key] = found
        return self.failed.get(key)

    def of_new_functions(self, sequence):
        pool = Pool(self.pool.functions, self.folder)
        return told(pool, sequence) or told(pool, sequence)  # the second time all are traced


def told(pool, sequence):
    """What differs, or an error that no sequence raises by itself; None if nothing does."""
    try:
        return pool.difference(sequence)
    except Exception as error:
        return "".join(traceback.format_exception(error))


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """The same functions for both tests of the ordinary suite."""
    return Differences(1, 6, tmp_path_factory.mktemp("states"))


def check(differences, count, strikes=0.0, seed=None):
    """Runs `count` different sequences. `strikes` is how many of the statements a signal or an
    interrupt strikes, at a random moment."""
    functions, known = differences.pool.functions, differences.known
    before = len(known)

    def written(choices):
        return Author(choices).sequence(functions, LENGTH, strikes)

    # hypothesis comes to some sequences more than once.
    @hypothesis.settings(OPTIONS, max_examples=3 * count, derandomize=seed is None)
    @hypothesis.given(st.randoms(use_true_random=False).map(written))
    def agrees(sequence):
        is_enough = str(sequence) in known or len(known) == before + count
        if is_enough and not differences.failed:
            return
        found = differences.difference(sequence)
        assert found is None, f"{found}\n{sequence}"

    (agrees if seed is None else hypothesis.seed(seed)(agrees))()
    assert len(known) == before + count


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.sweep)])
def test_sequences_agree_with_the_model(differences, count):
    check(differences, count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_many_sequences_agree_with_the_model(seed, tmp_path):
    check(Differences(seed, 10, tmp_path), 100, seed=seed)


# Python swallows an interrupt that falls into one of its callbacks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("count", [6, pytest.param(30, marks=pytest.mark.sweep)])
def test_sequences_that_are_struck_agree_with_the_model(differences, count):
    check(differences, count, strikes=0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(200, 240))
def test_many_sequences_that_are_struck_agree_with_the_model(seed, tmp_path):
    check(Differences(seed, 6, tmp_path), 50, strikes=0.5, seed=seed)
