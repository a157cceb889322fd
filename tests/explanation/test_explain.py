"""A gradient that is None explains itself: the reason and the line, in every mode.

Each case plants one fault, on the line that is marked, and is asked at top level before and after
the values were computed, before and after the tape was used up, and inside a traced function.
"""

import gc
import inspect
import time
from pathlib import Path

import numpy as np
import pytest

import tracegraph as tg
from tracegraph.eager.provenance import Provenance, provenance_of
from tracegraph.passes import registry

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*decorated again:UserWarning", "ignore:the dtype of the:UserWarning"
)

CASES = {}


def case(reason, where="anywhere", gives_none=True):
    """Registers a case. It takes Variables x and w and a constant c, and returns the tape, the
    target and the source. `where` is "top level" or "function" where it makes sense there only."""

    def register(function):
        CASES[function.__name__] = (function, reason, where, gives_none)
        return function

    return register


# ---------------------------------------------------------------- not watched


@case("not_watched")
def constant_is_not_watched(x, w, c):
    with tg.GradientTape() as tape:
        y = c * 2.0  # break
        z = y * w
    return tape, z, c


@case("not_watched")
def variable_is_not_trainable(x, w, c):
    with tg.GradientTape() as tape:
        tape.watch(c)
        z = frozen * c  # break
    return tape, z, frozen


@case("not_watched")
def accessed_variables_are_not_watched(x, w, c):
    with tg.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(c)
        y = x * c  # break
        z = y + 1.0
    return tape, z, x


@case("not_watched")
def watched_after_its_use(x, w, c):
    with tg.GradientTape() as tape:
        y = c * 2.0  # break
        tape.watch(c)
        z = y + 1.0
    return tape, z, c


@case("not_watched")
def argument_of_a_function_is_not_watched(x, w, c):
    @tg.function
    def double(value):
        return value * 2.0

    with tg.GradientTape() as tape:
        z = double(c)  # break
    return tape, z, c


@case("not_watched")
def intermediate_of_unwatched(x, w, c):
    with tg.GradientTape() as tape:
        middle = c * 2.0
        z = tg.exp(middle)  # break
    return tape, z, middle


# ---------------------------------------------------------------- outside of the recording


@case("before_tape")
def variable_is_read_before_the_tape(x, w, c):
    y = x * 2.0  # break
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape")
def constant_is_used_before_the_tape(x, w, c):
    y = tg.sin(c)  # break
    with tg.GradientTape() as tape:
        tape.watch(c)
        z = y * 3.0
    return tape, z, c


@case("before_tape")
def two_lines_before_the_tape(x, w, c):
    first = x * 2.0
    second = first + 1.0  # break
    with tg.GradientTape() as tape:
        z = tg.exp(second)
    held.append(first)
    return tape, z, x


@case("before_tape", where="top level")
def value_was_computed_already(x, w, c):
    y = (x * 1.0) * 2.0  # break
    y.numpy()
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape", where="top level")
def value_was_computed_from_what_is_gone(x, w, c):
    first = tg.sin(x * 1.0)
    first.numpy()
    y = first * 2.0 + 1.0  # break
    y.numpy()
    del first
    gc.collect()
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape", where="top level")
def values_were_computed_in_a_row(x, w, c):
    y = x * 1.0
    for _ in range(100):
        y = tg.sin(y)  # break
        y.numpy()
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape", where="top level")
def value_was_computed_along_with_many(x, w, c):
    y = (x * 1.0) * 2.0  # break
    held.append([y * float(i) for i in range(40)])
    with tg.GradientTape() as tape:
        tape.watch(c)
        parts = [y * c for _ in range(20)]
        z = parts[0]
    held.append(parts)
    return tape, z, x


@case("unused", where="top level")
def value_was_assigned_before_it_was_read(x, w, c):
    own = tg.Variable(1.0)
    own.assign(x * 2.0)
    y = own * 3.0
    y.numpy()
    with tg.GradientTape() as tape:
        z = y * w  # break
    return tape, z, x


@tg.function
def product(a, b):
    return a * b


@tg.function
def doubled(a, b):
    return a * 2.0, b * 2.0


@case("before_tape")
def function_is_called_before_the_tape(x, w, c):
    y = product(x, w)  # break
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape")
def functions_are_called_before_the_tape(x, w, c):
    for _ in range(3):  # a call that was seen before takes another way
        y = product(doubled(x * 1.0, c)[0], c)  # break
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape")
def function_of_a_constant_is_called_before_the_tape(x, w, c):
    for _ in range(3):
        _, y = doubled(np.float32(1.0), c)  # break
    with tg.GradientTape() as tape:
        tape.watch(c)
        z = y * w
    return tape, z, c


@case("before_tape")
def function_that_reads_is_called_before_the_tape(x, w, c):
    @tg.function
    def inner(value):
        return value * x

    for _ in range(3):
        y = inner(c)  # break
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("before_tape")
def function_is_called_in_another_tape(x, w, c):
    with tg.GradientTape() as other:
        y = product(x, w)  # break
    held.append(other)
    with tg.GradientTape() as tape:
        z = y * w
    return tape, z, x


@case("unused")
def other_result_of_a_function_before_the_tape(x, w, c):
    _, y = doubled(x, c)
    with tg.GradientTape() as tape:
        z = y * w  # break
    return tape, z, x


@case("after_tape")
def target_is_made_after_the_block(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
    z = y + 1.0  # break
    return tape, z, x


@case("after_tape")
def two_lines_after_the_block(x, w, c):
    with tg.GradientTape() as tape:
        tape.watch(c)
        y = c * 2.0
    z = y + 1.0
    z = tg.exp(z)  # break
    return tape, z, c


@case("after_tape")
def made_between_two_blocks(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
    y = y + 1.0  # break
    with tape:
        z = y * 3.0
    return tape, z, x


@case("recording_stopped")
def made_while_recording_was_stopped(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        with tape.stop_recording():
            y = y + 1.0  # break
        z = y * 3.0
    return tape, z, x


@case("recording_stopped")
def function_is_called_while_recording_was_stopped(x, w, c):
    with tg.GradientTape() as tape:
        with tape.stop_recording():
            y = product(x, w)  # break
        z = y * 3.0
    return tape, z, x


@case("recording_stopped")
def function_of_a_result_is_called_while_recording_was_stopped(x, w, c):
    with tg.GradientTape() as tape:
        with tape.stop_recording():
            y = product(x * 1.0, w)  # break
        z = y * 3.0
    return tape, z, x


@case("recording_stopped")
def read_while_recording_was_stopped(x, w, c):
    with tg.GradientTape() as tape:
        with tape.stop_recording():
            y = x * 2.0  # break
        z = y * 3.0
    return tape, z, x


@case("recording_stopped")
def target_made_while_recording_was_stopped(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        with tape.stop_recording():
            z = y + 1.0  # break
    return tape, z, x


# ---------------------------------------------------------------- stopped on purpose


@case("stop_gradient")
def stop_gradient(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        y = tg.stop_gradient(y)  # break
        z = y * w
    return tape, z, x


@case("stop_gradient")
def stop_gradient_inside_a_function(x, w, c):
    @tg.function
    def inner(value):
        value = value * 2.0
        return tg.stop_gradient(value) * 3.0  # break

    with tg.GradientTape() as tape:
        z = inner(x) * w
    return tape, z, x


@case("stop_gradient")
def stop_gradient_two_functions_deep(x, w, c):
    @tg.function
    def inner(value):
        value = tg.exp(value)
        value = tg.stop_gradient(value)  # break
        return value * 3.0

    @tg.function
    def outer(value):
        return inner(value * 2.0) + x * 0.0 + w

    with tg.GradientTape() as tape:
        tape.watch(c)
        z = outer(c)
    return tape, z, c


# ---------------------------------------------------------------- dtypes


@case("dtype")
def cast_to_integers(x, w, c):
    with tg.GradientTape() as tape:
        y = tg.cast(x, tg.int32)  # break
        z = tg.cast(y, tg.float32) * w
    return tape, z, x


@case("dtype")
def comparison(x, w, c):
    with tg.GradientTape() as tape:
        flag = x > 1.0  # break
        z = tg.where(flag, w, 0.0)
    return tape, z, x


@case("dtype")
def largest_position(x, w, c):
    with tg.GradientTape() as tape:
        y = tg.stack([x, w])
        place = tg.argmax(y)  # break
        z = tg.cast(place, tg.float32)
    return tape, z, x


@case("dtype")
def target_is_an_integer(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        z = tg.cast(y, tg.int32)  # break
    return tape, z, x


@case("dtype")
def source_is_an_integer(x, w, c):
    with tg.GradientTape() as tape:
        y = tg.cast(count, tg.float32)  # break
        z = y * x
    return tape, z, count


@case("dtype")
def cast_inside_a_function(x, w, c):
    @tg.function
    def inner(value):
        whole = tg.cast(value * 2.0, tg.int32)  # break
        return tg.cast(whole, tg.float32)

    with tg.GradientTape() as tape:
        z = inner(x) * w
    return tape, z, x


# ---------------------------------------------------------------- NumPy


@case("numpy", where="top level")
def detour_by_numpy(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        array = np.sin(y.numpy())
        y = tg.constant(array)  # break
        z = y * w
    return tape, z, x


@case("numpy", where="top level")
def detour_by_an_operand(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        array = np.sin(y)
        z = w * array  # break
    return tape, z, x


@case("numpy", where="top level")
def detour_of_a_variable(x, w, c):
    with tg.GradientTape() as tape:
        array = x.numpy() * np.ones(2, np.float32)
        z = tg.reduce_sum(tg.constant(array) * w)  # break
    return tape, z, x


@case("numpy", where="top level")
def detour_by_a_python_number(x, w, c):
    with tg.GradientTape() as tape:
        number = float(x * 2.0)
        z = w * number  # break
    return tape, z, x


@case("numpy")
def detour_by_a_function_of_numpy(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        y = tg.numpy_function(np.sin, [y], tg.float32)  # break
        z = y * w
    return tape, z, x


# ---------------------------------------------------------------- Variables


@case("overwritten")
def variable_is_overwritten(x, w, c):
    with tg.GradientTape() as tape:
        y = x * x
    held.append(y)
    x = x + 1.0  # break
    with tg.GradientTape() as tape:
        y = x * x
    return tape, y, x


@case("overwritten")
def variable_is_overwritten_after_the_block(x, w, c):
    with tg.GradientTape() as tape:
        y = x * x
    x = x - 0.1 * c  # break
    return tape, y, x


@case("overwritten")
def variable_is_overwritten_inside_the_block(x, w, c):
    with tg.GradientTape() as tape:
        y = x * x
        x = x * 0.5  # break
    return tape, y, x


class Holder:
    """A name with a dot."""


@case("overwritten")
def attribute_is_overwritten(x, w, c):
    holder = Holder()
    holder.x = x
    holder.x = tg.tanh(holder.x * 2.0) - 1.0  # break
    with tg.GradientTape() as tape:
        z = holder.x * w
    return tape, z, holder.x


@case("overwritten")
def item_of_a_list_is_overwritten(x, w, c):
    values = [x, w]
    for i in range(2):
        values[i] = values[i] * 2.0 - 0.1  # break
    with tg.GradientTape() as tape:
        z = values[0] * values[1]
    return tape, z, values[0]


@case("overwritten")
def two_statements_on_a_line(x, w, c):
    # fmt: off
    x = x * 2.0; w = c * 1.0  # noqa: E702 # break
    # fmt: on
    with tg.GradientTape() as tape:
        z = x * w
    return tape, z, x


@case("overwritten")
def statement_of_several_lines(x, w, c):
    x = (
        tg.sin(x)  # break
        - 0.1 * c
    )  # fmt: skip
    with tg.GradientTape() as tape:
        z = x * w
    return tape, z, x


@case("overwritten")
def several_names_are_overwritten(x, w, c):
    x, w = x * 2.0, w * 2.0  # break
    with tg.GradientTape() as tape:
        z = x * w
    return tape, z, w


@case("overwritten")
def overwritten_by_a_step(x, w, c):
    with tg.GradientTape() as other:
        y = x * x * w
    x = x - 0.1 * other.gradient(y, x)  # break
    with tg.GradientTape() as tape:
        z = x * w
    return tape, z, x


@case("overwritten")
def overwritten_by_a_function(x, w, c):
    x = product(x, c)  # break
    with tg.GradientTape() as tape:
        z = x * w
    return tape, z, x


@case("not_watched")
def tensor_of_a_variable_is_overwritten(x, w, c):
    y = x * 1.0
    y = y * 2.0
    with tg.GradientTape() as tape:
        z = y * w  # break
    return tape, z, y


@case("not_watched")
def attribute_of_what_is_read(x, w, c):
    holder = Holder()
    holder.x = x
    holder.y = holder.x * 2.0
    with tg.GradientTape() as tape:
        z = holder.y * w  # break
    return tape, z, holder.y


@case("assigned")
def value_is_assigned(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        w.assign(y)
        z = w * 3.0  # break
    return tape, z, x


@case("assigned")
def value_is_assigned_inside_a_function(x, w, c):
    @tg.function
    def inner(value):
        w.assign(value * 2.0)
        return w * 3.0  # break

    with tg.GradientTape() as tape:
        tape.watch(c)
        z = inner(c)
    return tape, z, c


@case("assigned", where="top level")
def made_value_is_assigned(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        y.numpy()
        w.assign(y)
        z = w * 3.0  # break
    return tape, z, x


@case("assigned")
def function_assigns_what_is_read_outside(x, w, c):
    @tg.function
    def inner(value):
        w.assign(value * 2.0)
        return value

    with tg.GradientTape() as tape:
        tape.watch(c)
        inner(c)
        z = w * 3.0  # break
    return tape, z, c


@case("assigned", where="top level")
def value_becomes_a_variable(x, w, c):
    with tg.GradientTape() as tape:
        v = tg.Variable(x * 2.0)
        z = v * 3.0  # break
    held.append(v)
    return tape, z, x


@case("assigned", where="top level")
def value_is_assigned_before_the_tape_is_opened(x, w, c):
    w.assign(c)
    with tg.GradientTape() as tape:
        tape.watch(c)
        z = w * 3.0  # break
    return tape, z, c


@case("numpy", where="top level")
def value_is_assigned_by_numpy(x, w, c):
    with tg.GradientTape() as tape:
        w.assign(x.numpy() * 2)  # break
        z = w * 1.0
    return tape, z, x


@case("assigned")
def value_is_assigned_that_a_function_reads(x, w, c):
    @tg.function
    def inner():
        return w * w  # break

    with tg.GradientTape() as tape:
        y = x * 2.0
        w.assign(y)
        z = inner()
    return tape, z, x


@case("assigned")
def function_reads_what_another_assigned(x, w, c):
    @tg.function
    def middle():
        return w * w  # break

    @tg.function
    def inner(value):
        w.assign(value * 2.0)
        return middle()

    with tg.GradientTape() as tape:
        tape.watch(c)
        z = inner(c)
    return tape, z, c


@case("not_watched")
def variable_is_read_two_functions_deep(x, w, c):
    @tg.function
    def inner():
        own = tg.sin(frozen)  # break
        return own * w

    @tg.function
    def outer():
        return inner() * 2.0

    with tg.GradientTape() as tape:
        z = outer()
    return tape, z, frozen


@case("not_watched")
def variable_is_read_in_a_function_of_constants(x, w, c):
    @tg.function
    def inner(value):
        return value * frozen  # break

    with tg.GradientTape() as tape:
        z = inner(c)
    return tape, z, frozen


# ---------------------------------------------------------------- rules


@case("no_derivative")
def floor_is_constant_between_jumps(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        y = tg.floor(y)  # break
        z = y * w
    return tape, z, x


@case("no_derivative")
def rounding_inside_a_function(x, w, c):
    @tg.function
    def inner(value):
        value = value * 2.0
        value = tg.round(value)  # break
        return value * 3.0

    with tg.GradientTape() as tape:
        z = inner(x) * w
    return tape, z, x


@case("no_gradient")
def registered_without_a_gradient(x, w, c):
    with tg.GradientTape() as tape:
        y = x * 2.0
        y = tg.identity(y)
        y = tg.image.adjust_contrast(tg.reshape(y, [1, 1, 1]), 2.0)  # break
        z = y * w
    return tape, z, x


@case("custom_gradient")
def custom_gradient_returns_none(x, w, c):
    @tg.custom_gradient
    def product(a, b):
        def grad(dy):
            return None, dy * a

        return a * b, grad

    with tg.GradientTape() as tape:
        y = x * 2.0
        z = product(y, w)  # break
    return tape, z, x


@case("custom_gradient")
def custom_gradient_inside_a_function(x, w, c):
    @tg.custom_gradient
    def product(a, b):
        def grad(dy):
            return dy * b, None

        return a * b, grad

    @tg.function
    def inner(a, b):
        b = b + 1.0
        return product(a, b)  # break

    with tg.GradientTape() as tape:
        z = inner(w, x)
    return tape, z, x


@case("stop_gradient")
def stop_gradient_in_a_recomputed_function(x, w, c):
    @tg.recompute_grad
    def inner(value):
        value = value * w
        value = tg.stop_gradient(value)  # break
        return value * w

    with tg.GradientTape() as tape:
        z = inner(x)
    return tape, z, x


# ---------------------------------------------------------------- never connected


@case("unused")
def source_is_never_used(x, w, c):
    with tg.GradientTape() as tape:
        tape.watch(c)
        y = w * 2.0
        z = tg.exp(y)  # break
    return tape, z, c


@case("unconnected")
def source_is_used_for_something_else(x, w, c):
    with tg.GradientTape() as tape:
        aside = x * w
        z = tg.exp(w)  # break
    held.append(aside)
    return tape, z, x


@case("unconnected")
def other_output_of_a_function(x, w, c):
    @tg.function
    def both(a, b):
        return a * 2.0, b * 3.0

    with tg.GradientTape() as tape:
        _, z = both(x, w)  # break
    return tape, z, x


@case("branch_not_taken", where="top level")
def branch_is_not_taken(x, w, c):
    with tg.GradientTape() as tape:
        if x > 100.0:  # break
            z = w * 2.0
        else:
            z = x * 2.0
    return tape, z, w


@case("branch_not_taken", where="top level")
def other_branch_is_not_taken(x, w, c):
    with tg.GradientTape() as tape:
        aside = w * 2.0
        if not x > 100.0:  # break
            z = x * 2.0
        else:
            z = x * aside
    held.append(aside)
    return tape, z, w


@case("branch_not_taken", where="top level")
def function_returns_early(x, w, c):
    def inner(value, other):
        if value < 100.0:  # break
            return value * 2.0
        return value * other

    with tg.GradientTape() as tape:
        z = inner(x, w)
    return tape, z, w


@case("branch_not_taken", where="top level")
def conditional_expression(x, w, c):
    holder = Holder()
    holder.w = w
    with tg.GradientTape() as tape:
        z = holder.w * 2.0 if x > 1.0 and x > 100.0 else x * 2.0  # break
    held.append(holder)
    return tape, z, w


@case("branch_not_taken", where="top level")
def loop_is_never_entered(x, w, c):
    with tg.GradientTape() as tape:
        z = x * 2.0
        while z > 100.0:  # break
            z = z * w
        z = z + 1.0
    return tape, z, w


@case("unused", where="top level")
def branch_is_taken_at_other_times(x, w, c):
    with tg.GradientTape() as tape:
        for i in range(2):
            if x > 100.0 * i:
                aside = w * 2.0
            else:
                z = x * 2.0  # break
    held.append(aside)
    return tape, z, c


@case("unconnected", where="top level")
def decided_by_the_source(x, w, c):
    with tg.GradientTape() as tape:
        if x > 100.0:
            z = w * 3.0
        else:
            z = w * 2.0  # break
    return tape, z, x


@case("branch_not_taken", where="top level")
def variable_of_the_other_branch(x, w, c):
    v = tg.Variable(3.0)
    with tg.GradientTape() as tape:
        if x > 0.0:  # break
            z = w
        else:
            z = v**2
    held.append(v)
    return tape, z, v


@case("branch_not_taken", where="top level")
def target_is_older_than_the_decision(x, w, c):
    with tg.GradientTape() as tape:
        z = x * 2.0
        if x < 0.0:  # break
            z = z + w
    return tape, z, w


@case("branch_not_taken", where="top level")
def bare_name_is_asked(x, w, c):
    with tg.GradientTape() as tape:
        is_small = x < 100.0
        if is_small:  # break
            z = x * 2.0
        else:
            z = w * 3.0
    return tape, z, w


@case("branch_not_taken", where="top level")
def call_is_asked(x, w, c):
    with tg.GradientTape() as tape:
        if tg.reduce_any(x > 100.0):  # break
            z = w * 3.0
        else:
            z = x * 2.0
    return tape, z, w


@case("branch_not_taken", where="top level")
def conditional_expression_of_a_bare_name(x, w, c):
    with tg.GradientTape() as tape:
        is_small = x < 100.0
        z = x * 2.0 if is_small else w * 3.0  # break
    return tape, z, w


@case("branch_not_taken", where="top level")
def decided_by_a_python_number(x, w, c):
    with tg.GradientTape() as tape:
        if float(x) > 100.0:  # break
            z = w * 3.0
        else:
            z = x * 2.0
    return tape, z, w


@case("branch_not_taken", where="top level")
def decided_by_a_numpy_number(x, w, c):
    with tg.GradientTape() as tape:
        z = x * 2.0
        if x.numpy() > 100.0:  # break
            z += w
    return tape, z, w


@case("unused", where="top level")
def decision_is_about_something_else(x, w, c):
    v = tg.Variable(3.0)
    with tg.GradientTape() as tape:
        if float(x) < 100.0:
            z = w * 3.0  # break
    held.append(v)
    return tape, z, v


@case("unused", where="top level")
def decision_comes_later(x, w, c):
    with tg.GradientTape() as tape:
        z = x * 2.0  # break
        if z > 100.0:
            held.append(w * 2.0)
    return tape, z, w


@case("connected", gives_none=False)
def connected(x, w, c):
    with tg.GradientTape() as tape:
        y = tg.stop_gradient(x) + tg.sin(x)
        z = y * w  # break
    return tape, z, x


# ---------------------------------------------------------------- all of them

frozen = tg.Variable(2.0, trainable=False)
count = tg.constant(3)
#: Keeps what the user of a case would keep.
held = []


def operands():
    return tg.Variable(3.0, name="x"), tg.Variable(1.5, name="w"), tg.constant(2.0)


def marked_line(function):
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, text in enumerate(lines) if text.rstrip().endswith("# break"))


def check(found, function, reason):
    assert (found.reason, found.line) == (reason, marked_line(function)), str(found)
    assert found.file == __file__
    assert found.is_connected == (reason == "connected")
    if reason != "connected":
        assert f"({reason})" in str(found)
        assert f"{found.file}:{found.line}:" in str(found)


def names(where):
    return [name for name, (_, _, place, _) in CASES.items() if place in ("anywhere", where)]


@pytest.fixture(autouse=True)
def no_gradient_of_adjust_contrast(monkeypatch):
    monkeypatch.setitem(registry._registered, "adjust_contrast", None)


def test_what_is_not_remembered_of_later_calls_is_said():
    with tg.GradientTape():
        pass  # from now on the first calls alone are remembered
    triple = tg.function(lambda x: x * 3.0)
    x, w = tg.constant(2.0), tg.Variable(1.0)
    for count in (3, 300):
        for _ in range(count):
            y = triple(x)
        with tg.GradientTape() as tape:
            tape.watch(x)
            z = y * w
        found = tape.explain(z, x)
        assert found.reason == ("before_tape" if count == 3 else "unused")
    assert "only the first calls are remembered" in str(found)
    assert "the target is not made of it" not in str(found)


def test_there_are_forty_cases():
    assert len(CASES) >= 40


@pytest.mark.sampled(28)
@pytest.mark.parametrize("when", ["pending", "computed before", "computed after"])
@pytest.mark.parametrize("name", names("top level"))
def test_at_top_level(name, when):
    function, reason, _, gives_none = CASES[name]
    tape, target, source = function(*operands())
    if when == "computed before":
        target.numpy()
    if gives_none:
        assert tape.gradient(target, source) is None
    if when == "computed after":
        target.numpy()
        gc.collect()
    check(tape.explain(target, source), function, reason)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("is_asked_first", [True, False])
@pytest.mark.parametrize("name", names("function"))
def test_inside_a_function(name, is_asked_first):
    function, reason, _, gives_none = CASES[name]
    given = operands()
    found = []

    @tg.function
    def traced():
        tape, target, source = function(*given)
        if gives_none and not is_asked_first:
            assert tape.gradient(target, source) is None
        found.append(tape.explain(target, source))
        return target

    traced.get_concrete_function()
    held.clear()
    check(found[0], function, reason)


# ---------------------------------------------------------------- the answer


def test_text_names_reason_line_path_and_repair():
    x = tg.Variable(2.0, name="x")
    with tg.GradientTape() as tape:
        y = x * 3.0
        y = tg.stop_gradient(y)
        z = tg.exp(y)
    found = tape.explain(z, x)
    first, second = (f"{place.file}:{place.line}" for place in found.path[-2:])
    assert second == f"{found.file}:{found.line}"
    assert first == f"{found.file}:{found.line - 1}"
    head, place, path, fix = str(found).split("\n")
    assert head == (
        "the gradient with respect to the variable 'x:0' is None (stop_gradient): "
        "tg.stop_gradient stops the gradient here"
    )
    assert place == f"  at {second}:  y = tg.stop_gradient(y)"
    assert path == f"  path: test_explain.py:{found.line - 1} -> test_explain.py:{found.line}"
    assert fix == "  fix: remove it"


def test_path_goes_into_called_functions():
    x = tg.Variable(2.0)

    @tg.function
    def inner(value):
        value = value * 2.0
        return tg.floor(value)

    with tg.GradientTape() as tape:
        z = inner(x)
    lines = [place.line for place in tape.explain(z, x).path]
    _, start = inspect.getsourcelines(test_path_goes_into_called_functions)
    assert [line - start for line in lines] == [9, 5, 6]


def test_branch_that_was_not_taken_is_named():
    x, w = tg.Variable(2.0), tg.Variable(3.0)
    with tg.GradientTape() as tape:
        if x > 100.0:
            y = x * 2.0
            y = y * w
        else:
            y = x * 2.0
    found = tape.explain(y, w)
    _, start = inspect.getsourcelines(test_branch_that_was_not_taken_is_named)
    assert [place.line - start for place in found.path] == [3, 5]
    assert f"the branch that uses it, at test_explain.py:{start + 5}, was not taken" in str(found)


def test_nearest_common_nodes_are_named():
    x = tg.Variable(2.0)
    with tg.GradientTape(persistent=True) as tape:
        both = x * 2.0
        left = tg.exp(both)
        right = tg.sin(both)
        total = left + right
    text = str(tape.explain(right, left))
    _, start = inspect.getsourcelines(test_nearest_common_nodes_are_named)
    assert f"both are made of what test_explain.py:{start + 3} computes" in text
    assert f"they meet at test_explain.py:{start + 6}" in text
    assert tape.explain(total, left).is_connected


def test_one_of_several_targets_is_enough():
    x, w = tg.Variable(2.0), tg.Variable(3.0)
    with tg.GradientTape() as tape:
        y, z = tg.stop_gradient(x), {"z": x * w}
    assert tape.explain([y, z], x).is_connected
    assert tape.explain([y, w], x).reason == "stop_gradient"


def test_variable_is_connected_with_itself():
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        pass
    assert tape.explain(x, x).is_connected


def test_used_tape_that_found_everything_has_nothing_to_explain():
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(RuntimeError, match="none of its gradients was None"):
        tape.explain(y, x)


def test_explained_again_after_another_use():
    x, w = tg.Variable(2.0), tg.Variable(2.0)
    tape = tg.GradientTape()
    for value in (x, w):
        with tape:
            y = tg.stop_gradient(value) * 2.0
        assert tape.gradient(y, value) is None
        assert tape.explain(y, value).reason == "stop_gradient"


def test_gradient_inside_the_block_ends_the_recording():
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = x * x
        assert tape.gradient(tg.stop_gradient(y), x) is None
        z = y * 2.0
    assert tape.explain(z, x).reason == "tape_used"


def test_reset_forgets():
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = x * x
        tape.reset()
        z = y * 2.0
    assert tape.explain(z, x).reason == "before_tape"


@pytest.mark.parametrize("wrong", [1.0, None, [tg.constant(1.0)]])
def test_source_must_be_one_tensor(wrong):
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = x * x
    with pytest.raises(TypeError, match="a source of a gradient is"):
        tape.explain(y, wrong)


@pytest.mark.parametrize("wrong", [1.0, None, []])
def test_target_must_be_tensors(wrong):
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        x * x
    with pytest.raises(TypeError, match="the target of a gradient is"):
        tape.explain(wrong, x)


def test_tape_that_was_never_entered():
    with pytest.raises(RuntimeError, match="never entered"):
        tg.GradientTape().explain(tg.constant(1.0), tg.constant(1.0))


def test_what_is_explained_is_not_held():
    x = tg.Variable(np.ones(1000, np.float32))
    with tg.GradientTape() as tape:
        y = tg.reduce_sum(tg.stop_gradient(tg.exp(x * 2.0) * 3.0))
    assert tape.gradient(y, x) is None
    y.numpy()
    gc.collect()
    alive = [t for t in gc.get_objects() if type(t) is tg.Tensor and t.type.shape == (1000,)]
    made = [t for t in alive if t.node is None and hasattr(t, "_source")]
    assert not made
    assert tape.explain(y, x).reason == "stop_gradient"


def test_what_values_were_made_of_is_bounded_and_not_held():
    x = tg.Variable(np.ones(1000, np.float32))
    step = tg.function(lambda value, other: value * other + x)
    y = step(x * 1.0, x * 2.0)
    counts = []
    for count in (10, 100):
        for _ in range(count):
            y = step(y, tg.sin(y) * 2.0)
            y = tg.cos(y) + 1.0
            y.numpy()
        gc.collect()
        counts.append(sum(type(x) in (tg.Tensor, Provenance) for x in gc.get_objects()))
    assert counts[1] <= counts[0] + 10  # what other tests left may go meanwhile
    assert len(provenance_of(y)) <= 32
    with tg.GradientTape() as tape:
        z = y * 2.0
    assert tape.explain(z, x).reason == "before_tape"


# ---------------------------------------------------------------- unconnected_gradients="raise"

CHOICES = ["raise", tg.UnconnectedGradients.RAISE]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("persistent", [False, True])
def test_gradient_raises(choice, persistent):
    x, w = tg.Variable(2.0), tg.Variable(3.0, name="w")
    with tg.GradientTape(persistent) as tape:
        y = x * tg.stop_gradient(w)
    with pytest.raises(ValueError, match=r"'w:0' is None \(stop_gradient\)") as caught:
        tape.gradient(y, {"x": x, "w": w}, unconnected_gradients=choice)
    assert type(caught.value) is tg.errors.GradientError
    assert str(caught.value) == str(tape.explain(y, w))


@pytest.mark.parametrize("choice", CHOICES)
def test_gradient_raises_nothing_where_all_is_connected(choice):
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = x * x
    assert tape.gradient(y, [x], unconnected_gradients=choice)[0].numpy() == 4.0


@pytest.mark.parametrize("is_sparse", [False, True])
def test_jacobian_raises(is_sparse):
    x = tg.Variable([2.0, 3.0])
    with tg.GradientTape() as tape:
        y = tg.floor(x)
    with pytest.raises(tg.errors.GradientError, match="no_derivative"):
        tape.jacobian(y, x, unconnected_gradients="raise", sparse=is_sparse)


def test_batch_jacobian_raises():
    x = tg.Variable([[2.0], [3.0]])
    with tg.GradientTape() as tape:
        y = tg.stop_gradient(x) * 2.0
    with pytest.raises(tg.errors.GradientError, match="stop_gradient"):
        tape.batch_jacobian(y, x, unconnected_gradients="raise")


def test_raises_inside_a_function():
    x = tg.Variable(2.0)

    @tg.function
    def traced():
        with tg.GradientTape() as tape:
            y = tg.stop_gradient(x)
        return tape.gradient(y, x, unconnected_gradients="raise")

    with pytest.raises(tg.errors.GradientError, match="stop_gradient"):
        traced()


# ---------------------------------------------------------------- large graphs


def long_chain(x, count):
    with tg.GradientTape() as tape:
        y = first = x * 1.0
        for _ in range(count // 2):
            y = tg.sin(y) + first
        z = tg.stop_gradient(y) * 2.0
    return tape, z


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_used", [False, True])
def test_ten_thousand_nodes_are_explained_at_once(is_used):
    x = tg.Variable(2.0)
    times = []

    @tg.function
    def traced():
        tape, z = long_chain(x, 10_000)
        if is_used:
            assert tape.gradient(z, x) is None
        for _ in range(5):
            start = time.process_time()
            found = str(tape.explain(z, x))
            times.append(time.process_time() - start)
            assert "(stop_gradient)" in found
        return z

    traced.get_concrete_function()
    assert min(times) < 0.1  # 0.03 on a quiet machine


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["connected", "unused", "no_derivative"])
def test_ten_thousand_nodes_are_explained_at_the_first_call(name):
    x, w = tg.Variable(2.0), tg.Variable(3.0)
    times = []
    for _ in range(3):
        with tg.GradientTape() as tape:
            y = tg.floor(x) * w
            for _ in range(5_000):
                y = tg.sin(y) * 1.01
            aside = x * 2.0
        source = {"connected": w, "unused": aside, "no_derivative": x}[name]
        start = time.process_time()
        found = tape.explain(y, source)
        times.append(time.process_time() - start)
        assert found.reason == name
    assert min(times) < 0.1  # 0.03 on a quiet machine


def test_text_of_a_long_path_shows_its_ends():
    x = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = x * 1.0
        for _ in range(50):
            y = tg.sin(y)
            y = tg.cos(y)
        z = tg.stop_gradient(y)
    found = tape.explain(z, x)
    assert len(found.path) == 102
    (text,) = [line for line in str(found).split("\n") if line.startswith("  path: ")]
    lines = text.removeprefix("  path: ").split(" -> ")
    shown = [str(place) for place in found.path]
    assert lines == [*shown[:10], "... 82 more ...", *shown[-10:]]


def test_the_line_of_the_assignment_is_told():
    x = tg.constant(1.0)
    v = tg.Variable(0.0)
    v.assign(x)
    assigned = inspect.currentframe().f_lineno - 1
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = v * 2.0
    found = tape.explain(y, x)
    assert found.reason == "assigned"
    assert f"assigned to a Variable at test_explain.py:{assigned}, which is read here" in str(found)
    assert found.path[0].line == assigned


def test_what_a_reset_forgot_is_told():
    x = tg.constant(1.0)
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = x * 2.0
        tape.reset()
        z = x * 3.0
    before, unwatched = tape.explain(y, x), tape.explain(z, x)
    assert (before.reason, unwatched.reason) == ("before_tape", "not_watched")
    assert "before tape.reset(), which forgets all" in str(before)
    assert "tape.reset() forgets all that was watched" in str(unwatched)


def test_a_lambda_is_called_as_python_calls_it():
    w = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        y = tg.grad_pass_through(lambda x: x * w)(tg.constant(1.0))
    assert "the custom gradient of <lambda> returns None" in str(tape.explain(y, w))


def test_a_variable_that_a_python_function_may_read_is_told():
    w = tg.Variable(2.0)

    @tg.function
    def scaled(x):
        return tg.py_function(lambda q: q * w, [x], tg.TensorSpec([]))  # the call

    with tg.GradientTape() as tape:
        y = scaled(tg.constant(3.0))
    found = tape.explain(y, w)
    assert found.reason == "unused"
    assert "pass it to tg.py_function in inp" in str(found)
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("  # the call"))
    assert f"test_explain.py:{line}" in str(found)
