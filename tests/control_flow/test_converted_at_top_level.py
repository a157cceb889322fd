"""Functions given to branches, loops and gradients at top level: their `if` may be on tensors, and
the results are those of plain Python on NumPy's numbers."""

import functools

import numpy as np
import pytest

import tracegraph as tg
from tests.oracles import assert_near

XS = np.array([1.5, -2.25, 3.0, -0.5])


def bent(x):
    if x > 0:
        y = x * x
    else:
        y = -3 * x
    return y


def slope_of_bent(x):
    return 2 * x if x > 0 else -3.0


def add(total, x):
    return total + x if x > 0 else total * x


def folded(xs, total):
    for x in xs:
        total = add(total, x)
    return total


class Bent:
    def __call__(self, x):
        return bent(x)

    def method(self, x):
        return bent(x)


@pytest.mark.parametrize(
    "function",
    [bent, lambda x: bent(x), Bent(), Bent().method, functools.partial(bent)],
    ids=["def", "lambda", "object", "method", "partial"],
)
@pytest.mark.parametrize("over", [tg.map_fn, tg.vectorized_map, lambda f, xs: tg.vmap(f)(xs)])
def test_maps(over, function):
    assert_near(over(function, tg.constant(XS)), [bent(x) for x in XS])


def test_folds_and_scans():
    xs = tg.constant(XS)
    one = tg.constant(1.0, tg.float64)
    assert_near(tg.foldl(add, xs, one), folded(XS, 1.0))
    assert_near(tg.foldr(add, xs, one), folded(XS[::-1], 1.0))
    assert_near(tg.scan(add, xs, one), [folded(XS[: k + 1], 1.0) for k in range(4)])


def test_a_loop():
    def step(n, count):
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        return n, count + 1

    def goes_on(n, count):
        return n != 1 and count < 200

    n, count = 27, 0
    while goes_on(n, count):
        n, count = step(n, count)
    found = tg.while_loop(goes_on, step, (tg.constant(27), tg.constant(0)))
    assert [int(x) for x in found] == [n, count] == [1, 111]


@pytest.mark.parametrize("x", XS)
def test_branches(x):
    given = tg.constant(x)
    assert_near(tg.cond(given < 2, lambda: bent(given), lambda: given), bent(x) if x < 2 else x)
    number = tg.cast(given > 0, tg.int32)
    assert_near(tg.switch_case(number, [lambda: bent(given), lambda: bent(-given)]), bent(-abs(x)))
    assert_near(tg.case([(given > 5, lambda: given)], default=lambda: bent(given)), bent(x))


@pytest.mark.parametrize("x", XS)
def test_gradients(x):
    @tg.custom_gradient
    def steep(x):
        def backward(g):
            return 100 * g if x > 0 else g

        y = bent(x)
        return y, backward

    given = tg.constant(x)
    assert_near(tg.grad(tg.recompute_grad(bent))(given), slope_of_bent(x))
    assert_near(steep(given), bent(x))
    assert_near(tg.grad(steep)(given), 100.0 if x > 0 else 1.0)


def test_a_layer_in_a_loop():
    class Steps(tg.layers.Layer):
        def call(self, x):
            while tg.reduce_sum(x) < 10:
                x = x * 2
            return x

    found = tg.map_fn(Steps(), tg.constant([[1.0], [20.0]]))
    assert_near(found, [[16.0], [20.0]])


def test_effects_and_assignments(capsys):
    total = tg.Variable(0.0, dtype=tg.float64)

    def step(x):
        if x > 0:
            tg.print("x", x)
            total.assign_add(x)
        return -x

    assert_near(tg.map_fn(step, tg.constant(XS)), -XS)
    assert_near(total, XS[XS > 0].sum())
    assert capsys.readouterr().err == "x 1.5\nx 3\n"


def test_what_is_not_to_be_converted_stays_as_it_is():
    excluded = tg.autograph.do_not_convert(lambda xs: tg.map_fn(bent, xs))
    for function in (
        lambda xs: tg.map_fn(tg.autograph.do_not_convert(bent), xs),
        tg.function(lambda xs: tg.map_fn(bent, xs), autograph=False),
        tg.function(lambda xs: excluded(xs)),
    ):
        with pytest.raises(tg.errors.TraceError, match="a Python bool needs the value of a tensor"):
            function(tg.constant(XS))
