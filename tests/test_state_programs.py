"""Random sequences of assignments, functions, callbacks, tapes, exceptions, interrupts, signals and
checkpoints in any nesting give what a plain Python model gives, to the last bit."""

import signal
import threading

import pytest

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


def check(pool_seed, size, count, folder, strikes=0.0):
    """Runs `count` sequences over a pool of `size` functions, which stay traced from one to the
    next. `strikes` is how many of the statements a signal or an interrupt strikes, at a random
    moment."""
    pool = Pool(pool_seed, size, folder)
    for number in range(count):
        author = Author(f"{pool_seed}-{number}")
        sequence = author.sequence(pool.functions, LENGTH, strikes)
        found = pool.difference(sequence)
        assert found is None, f"pool {pool_seed}, sequence {number}: {found}\n{sequence}"


@pytest.mark.parametrize("pool_seed", [1, 2])
def test_sequences_agree_with_the_model(pool_seed, tmp_path):
    check(pool_seed, 6, 50, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pool_seed", range(100, 150))
def test_many_sequences_agree_with_the_model(pool_seed, tmp_path):
    check(pool_seed, 10, 100, tmp_path)


# Python swallows an interrupt that falls into one of its callbacks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("pool_seed", [3, 4])
def test_sequences_that_are_struck_agree_with_the_model(pool_seed, tmp_path):
    check(pool_seed, 6, 25, tmp_path, strikes=0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("pool_seed", range(200, 240))
def test_many_sequences_that_are_struck_agree_with_the_model(pool_seed, tmp_path):
    check(pool_seed, 6, 50, tmp_path, strikes=0.5)
