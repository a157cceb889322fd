"""Every op that is broken on purpose is noticed by the table."""

import pytest

from tests.mutants import MUTANTS, Mutant, caught_by


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_mutant_is_caught(mutant: Mutant):
    assert caught_by(mutant)


def test_there_are_many_mutants():
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS) >= 30
