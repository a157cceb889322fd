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


def check(pool_seed, size, count, folder):
    """Runs `count` sequences over a pool of `size` functions, which stay traced from one to the
    next."""
    pool = Pool(pool_seed, size, folder)
    for number in range(count):
        sequence = Author(f"{pool_seed}-{number}").sequence(pool.functions, LENGTH)
        found = pool.difference(sequence)
        assert found is None, f"pool {pool_seed}, sequence {number}: {found}\n{sequence}"


@pytest.mark.parametrize("pool_seed", [1, 2])
def test_sequences_agree_with_the_model(pool_seed, tmp_path):
    check(pool_seed, 6, 50, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pool_seed", range(100, 150))
def test_many_sequences_agree_with_the_model(pool_seed, tmp_path):
    check(pool_seed, 10, 100, tmp_path)
