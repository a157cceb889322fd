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


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Functions that stay traced from one sequence to the next, also between tests."""
    return Pool(1, 6, tmp_path_factory.mktemp("states"))


def check(pool, pool_seed, count, strikes=0.0):
    """Runs `count` sequences over the functions of a pool. `strikes` is how many of the statements
    a signal or an interrupt strikes, at a random moment."""
    for number in range(count):
        author = Author(f"{pool_seed}-{number}")
        sequence = author.sequence(pool.functions, LENGTH, strikes)
        found = pool.difference(sequence)
        assert found is None, f"pool {pool_seed}, sequence {number}: {found}\n{sequence}"


def test_sequences_agree_with_the_model(pool):
    check(pool, 1, 100)


@pytest.mark.slow
@pytest.mark.parametrize("pool_seed", range(100, 150))
def test_many_sequences_agree_with_the_model(pool_seed, tmp_path):
    check(Pool(pool_seed, 10, tmp_path), pool_seed, 100)


# Python swallows an interrupt that falls into one of its callbacks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sequences_that_are_struck_agree_with_the_model(pool):
    check(pool, 1, 50, strikes=0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("pool_seed", range(200, 240))
def test_many_sequences_that_are_struck_agree_with_the_model(pool_seed, tmp_path):
    check(Pool(pool_seed, 6, tmp_path), pool_seed, 50, strikes=0.5)
