"""Names that code sets unless `return`, `break` or `continue` left it: converted functions compute
what plain Python does, and refuse to read a name where Python might find it unset."""

import numpy as np
import pytest

import tracegraph as tg

INPUTS = [-4.0, -1.0, 0.5, 1.5, 3.0, 25.0, 300.0]


def after_try(x):
    try:
        if x > 2.0:
            return x * 10.0
        y = x * 2.0
    finally:
        _ = x + 100.0
    return y + 1.0


def after_nested_try(x):
    try:
        try:
            if x > 2.0:
                return x * 10.0
            y = x * 2.0
        finally:
            z = x
        w = y + z
    except ValueError:
        w = x
    return w


def after_with(x):
    with tg.name_scope("block"):
        if x > 2.0:
            return x * 10.0
        act, k, ys = abs, 3.0, [x, x * 2.0]
    ys[0] = ys[0] + 1.0
    return act(ys[0]) * k + ys[1]


def inside_a_branch(x):
    if x > 1.0:
        if x > 20.0:
            return x
        y = x * 2.0
    elif x < -2.0:
        return -x
    else:
        y = x * 3.0
    return y


def continued(x):
    total = 0.0
    for k in range(4):
        try:
            if x > k:
                continue
            y = x * k
        finally:
            total += 100.0
        total += y
    return total


def left(x):
    n = 0
    while n < 5:
        n += 1
        if x > 3.0:
            if x > 100.0:
                return x
            elif x > 20.0:
                continue
            else:
                y = x * 2.0
        elif x < -3.0:
            break
        else:
            z = x + 1.0
            y = z * 3.0
        x = x + y
    return x


def returned_from_a_loop(x):
    for k in range(3):
        if x < k:
            return x * 100.0
        y = x * k
    return y


@pytest.mark.parametrize(
    "body",
    [
        after_try,
        after_nested_try,
        after_with,
        inside_a_branch,
        continued,
        left,
        returned_from_a_loop,
    ],
)
def test_names_of_code_that_was_left(body):
    f = tg.function(body)
    found = [float(f(tg.constant(x, tg.float64))) for x in INPUTS]
    np.testing.assert_allclose(found, [body(x) for x in INPUTS], rtol=1e-14)


def test_a_loop_of_the_graph_returns():
    @tg.function
    def f(x):
        for k in tg.range(3):
            if x < tg.cast(k, tg.float64):
                return x * 100.0
            y = x * tg.cast(k, tg.float64)
        return y

    found = [float(f(tg.constant(x, tg.float64))) for x in INPUTS]
    np.testing.assert_allclose(found, [returned_from_a_loop(x) for x in INPUTS], rtol=1e-14)


def test_derivatives_of_what_was_set():
    @tg.function
    def slopes(x):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as inner:
                inner.watch(x)
                if x > 2.0:
                    return x, x
                y = x * x * x
            slope = inner.gradient(y, x)
        return slope, outer.gradient(slope, x)

    assert [float(d) for d in slopes(tg.constant(1.5))] == [6.75, 9.0]
    assert [float(d) for d in slopes(tg.constant(3.0))] == [3.0, 3.0]


def read_after_break(x):
    for k in range(3):
        if x > k:
            break
        y = x * k
    return y


def read_after_continue(x):
    for k in tg.range(3):
        if x > 1.0:
            continue
        y = x + tg.cast(k, tg.float32)
    return y


def read_in_finally(x):
    try:
        if x > 2.0:
            return x
        y = x
    finally:
        tg.print(y)
    return y


def read_by_a_function_in_finally(x):
    def shown():
        return y

    try:
        if x > 2.0:
            return x
        y = x
    finally:
        tg.print(shown())
    return y


def shared_with_another_function(x):
    def inner():
        nonlocal y
        if x > 2.0:
            return x
        y = x
        return x * 2.0

    if x is None:
        y = 1.0
    z = inner()
    return y + z


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        (read_after_break, "give 'y' a value before the loop"),
        (read_after_continue, "give 'y' a value before the loop"),
        (read_in_finally, "give 'y' a value before the `try`"),
        (read_by_a_function_in_finally, "give 'y' a value before the `try`"),
        (shared_with_another_function, "'y' must also be set in the main branch"),
    ],
)
def test_reads_that_python_might_refuse(body, fix):
    with pytest.raises(tg.errors.TraceError, match=f"'y' is set in only one branch.*\n.*\n.*{fix}"):
        tg.function(body)(tg.constant(1.0))


def test_an_unset_name_in_an_augmented_assignment():
    def f(x):
        total = 1.0
        if x > 2.0:
            y = x
        total += y
        return total

    with pytest.raises(tg.errors.TraceError, match="'y' must also be set in the else branch"):
        tg.function(f)(tg.constant(1.0))


def returned_before_it_changes(x):
    y = x
    if x > 0.0:
        return y
    y = tg.stack([y, y])
    return tg.reduce_sum(y)


def used_in_each_branch_alone(x):
    total = x
    for i in tg.range(3):
        y = x + tg.cast(i, tg.float32)
        if x > 0.0:
            total += y
        else:
            y = (y, tg.cast(y, tg.int32))
            total += y[0]
    return total


@pytest.mark.parametrize("body", [returned_before_it_changes, used_in_each_branch_alone])
def test_a_name_that_is_not_read_later_may_have_two_types(body):
    for x in (2.0, -2.0):
        assert tg.function(body)(tg.constant(x)).numpy() == body(tg.constant(x)).numpy()


def read_in_a_loop_that_is_traced_again(x):
    for row in tg.stack([[x, x + 1.0], [x * 2.0, x * 3.0]]):
        for y in row:  # what an iteration sets is not what the next one begins with
            if y > 20.0:
                return y
        last = y
        for k in range(2):
            if last < k - 2.0:
                return last
    return x


def read_behind_another_loop(x):
    total = x
    for _ in tg.range(3):
        for y in tg.stack([x, x * 2.0]):
            if y > 20.0:
                break
        total += y
    for y in tg.stack([x, x * 2.0]):
        if y == 3.0:
            return y
    return total + y


@pytest.mark.parametrize("body", [read_in_a_loop_that_is_traced_again, read_behind_another_loop])
def test_names_that_statements_before_have_used(body):
    run = tg.function(body)
    for x in INPUTS:
        assert run(tg.constant(x)).numpy() == body(tg.constant(x)).numpy()


@pytest.mark.filterwarnings("ignore:y was set while:UserWarning")
def test_a_tensor_that_left_a_branch_by_another_function_is_told():
    def f(x):
        y = x

        def keep():
            nonlocal y
            y = x + 1.0
            return x

        tg.cond(x > 0.0, keep, lambda: x)
        return y + 1.0 if x > 0.0 else x

    with pytest.raises(tg.errors.SignatureError, match="it belongs to the branch or the body"):
        tg.function(f)(tg.constant(1.0))


def set_before_a_loop_without_items(n):
    last = n * 0
    if n > 1:
        last = n * 7
    for last in tg.range(n - 2):  # noqa: B007
        pass
    return last


def set_by_a_loop_in_a_loop(n):
    last = total = n * 0
    for last in tg.range(n):
        total += last
        for last in tg.range(5):  # noqa: B007
            total += 1
    return 100 * total + last


def set_in_steps_before_a_loop_that_is_left(n):
    last = total = n * 0
    for k in tg.range(2):
        total += last
        last = k + 5
        for last in tg.range(n - 2):
            if last > 1:
                break
    return 100 * total + last


@pytest.mark.parametrize(
    "body",
    [
        set_before_a_loop_without_items,
        set_by_a_loop_in_a_loop,
        set_in_steps_before_a_loop_that_is_left,
    ],
)
def test_a_loop_that_ends_leaves_its_target_as_it_is(body):
    run = tg.function(body)
    for n in (1, 2, 3, 5):
        assert int(run(tg.constant(n))) == int(body(tg.constant(n))), n
