"""What the functions given to `tg.cond`, `tg.while_loop` and the like set outside of themselves
happens once, while they are traced: that is told."""

import functools
import warnings
from collections import deque
from types import SimpleNamespace

import pytest

import tracegraph as tg
from tracegraph.errors import SignatureError

total = 0


def x(value=1.0):
    return tg.constant(value)


FORMS = {
    "cond": lambda f: tg.cond(x() > 0.0, lambda: f(x()), lambda: x()),
    "case": lambda f: tg.case([(x() > 0.0, lambda: f(x()))], default=lambda: x()),
    "switch_case": lambda f: tg.switch_case(tg.constant(1), [lambda: x(), lambda: f(x())]),
    "while_loop": lambda f: tg.while_loop(lambda y: y < 3.0, lambda y: [f(y) + 1.0], [x()])[0],
    "map_fn": lambda f: tg.map_fn(f, x([1.0, 2.0])),
    "scan": lambda f: tg.scan(lambda a, y: a + f(y), x([1.0, 2.0]), x()),
    "foldl": lambda f: tg.foldl(lambda a, y: a + f(y), x([1.0, 2.0]), x()),
    "foldr": lambda f: tg.foldr(lambda a, y: a + f(y), x([1.0, 2.0]), x()),
    "vectorized_map": lambda f: tg.vectorized_map(f, x([1.0, 2.0])),
    "vmap": lambda f: tg.vmap(f)(x([1.0, 2.0])),
    "pfor": lambda f: tg.pfor(lambda i: f(tg.cast(i, tg.float32)), 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_tells_of_a_counter(form):
    count = 0

    def counted(y):
        nonlocal count
        count += 1
        return y * 2.0

    for run in (FORMS[form], tg.function(FORMS[form])):
        with pytest.warns(UserWarning, match=rf"count was set .* given to tg\.{form} was") as told:
            run(counted)
        assert len(told) == 1
        assert f"{__file__}:" in str(told[0].message)
        is_parallel = form in ("pfor", "vectorized_map", "vmap")
        assert ("tg.Variable" in str(told[0].message)) != is_parallel


class Meter:
    def __init__(self):
        self.last, self.sum, self.inner = None, x(0.0), SimpleNamespace(ticks=0)

    def add(self, y):
        self.sum = self.sum + y
        return y

    def tick(self, y):
        self.inner.ticks += 1
        return y

    def show(self, y):
        self.last = y
        return y


def count_globally(y):
    global total
    total = total + 1
    return y


def by_helper(seen, y):
    seen["n"] += 1
    return y


def names(told):
    return {str(one.message).partition(" was set")[0] for one in told}


def test_places_of_all_kinds_are_told():
    meter, recent, sums, d = Meter(), deque([x(0.0)] * 3), [x(0.0)], {"n": 0, "p": None}

    def keep_recent(y):
        recent.append(y)
        return y - recent.popleft()

    def append_to_sums(y):
        sums.append(sums[-1] + y)
        return sums[-1]

    def set_item(y):
        d["n"] += 1
        return y

    cases = [
        (meter.add, "self.sum"),
        (lambda y: meter.tick(y), "meter.inner.ticks"),
        (count_globally, "total"),
        (lambda y: count_globally(y), "total"),
        (keep_recent, "recent[2]"),
        (append_to_sums, "sums[-1]"),
        (set_item, "d['n']"),
        (functools.partial(by_helper, {"n": 0}), "argument 0['n']"),
    ]
    for function, name in cases:
        with pytest.warns(UserWarning) as told:
            tg.map_fn(function, x([1.0, 2.0]))
        assert names(told) >= {name}, name


def test_a_previous_value_in_a_name_is_told_even_if_it_was_none():
    before = None

    def difference(total, y):
        nonlocal before
        change = y if before is None else y - before
        before = y
        return total + change

    with pytest.warns(UserWarning, match="before was set while a function given to tg.foldl"):
        tg.foldl(difference, x([1.0, 4.0, 9.0]), 0.0)


def test_what_is_only_looked_at_is_not_told():
    shapes, seen, meter = [], [], Meter()
    known = {"n": 1}

    def body(y):
        shapes.append(y.shape)
        seen.append(y)
        known[len(seen)] = y
        return meter.show(y) * known["n"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tg.map_fn(body, x([1.0, 2.0]))
        tg.cond(True, lambda: count_globally(x()), lambda: x())  # Python decides: it is a call
    assert len(seen) == len(shapes) == 1
    with pytest.raises(SignatureError, match=r"test_set_while_tracing\.py:\d+, and it was used"):
        seen[0] + 1.0


def test_what_a_parallel_loop_leaks_names_the_loop():
    seen = []
    tg.vectorized_map(lambda y: seen.append(y) or y, x([1.0, 2.0]))
    with pytest.raises(SignatureError, match=r"body of the loop at test_set_while_tracing\.py:"):
        seen[0] + 1.0


def test_a_repeated_loop_tells_once():
    count = 0

    def counted(y):
        nonlocal count
        count += 1
        return y

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            tg.map_fn(counted, x([1.0, 2.0]))
    assert len(told) == 1 and count == 3
