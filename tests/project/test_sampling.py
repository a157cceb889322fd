"""Of the combinations of several parameters a sample has each value, then as many pairs as fit."""

import itertools
from types import SimpleNamespace

import pytest

from tests.sampling import divided

WORDS, NUMBERS, KINDS = ["a", "b", "c", "d"], [1, 2, 3], [int, float]


class Case:
    """What pytest tells of one case of a test."""

    def __init__(self, marks, **params):
        self.nodeid = f"test[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = marks

    def iter_markers(self, name):
        return iter(self.marks)


def combinations(**parameters):
    marks = [pytest.mark.parametrize(name, values).mark for name, values in parameters.items()]
    return [
        Case(marks, **dict(zip(parameters, values, strict=True)))
        for values in itertools.product(*parameters.values())
    ]


def values_of(cases):
    return [tuple(case.callspec.params.values()) for case in cases]


def test_each_value_is_in_as_few_cases_as_can_have_them():
    kept, left = divided(combinations(word=WORDS, number=NUMBERS, kind=KINDS), 4)
    words, numbers, kinds = zip(*values_of(kept), strict=True)
    assert (set(words), set(numbers), set(kinds)) == (set(WORDS), set(NUMBERS), set(KINDS))
    assert len(kept) == 4 and len(left) == 20


def test_pairs_come_next():
    kept, _ = divided(combinations(word=WORDS, number=NUMBERS, kind=KINDS), 14)
    pairs = {pair for case in values_of(kept) for pair in itertools.combinations(case, 2)}
    assert len(pairs) == 4 * 3 + 4 * 2 + 3 * 2


def test_the_same_cases_are_chosen_in_whatever_order_they_come():
    cases = combinations(word=WORDS)
    chosen = [values_of(divided(order, 2)[0]) for order in (cases, cases[::-1])]
    assert chosen[0] == chosen[1] and len(chosen[0]) == 2


def test_names_that_are_given_together_are_one_parameter():
    mark = pytest.mark.parametrize("x, y", [(1, 5), (2, 6)]).mark
    cases = [
        Case([mark], x=x, y=y, word=word)
        for (x, y), word in itertools.product([(1, 5), (2, 6)], WORDS)
    ]
    kept = divided(cases, 4)[0]
    assert {word for _, _, word in values_of(kept)} == set(WORDS)
    assert {x for x, _, _ in values_of(kept)} == {1, 2}


def test_a_file_that_moves_keeps_its_cases():
    chosen = []
    for folder in ("tests", "tests/a/b"):
        cases = combinations(word=WORDS)
        for case in cases:
            case.nodeid = f"{folder}/test_x.py::{case.nodeid}"
        chosen.append(values_of(divided(cases, 2)[0]))
    assert chosen[0] == chosen[1]
