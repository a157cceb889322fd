"""Every example of the guides the project started from, with the values they print.

Each runs at top level and, where that makes sense, inside a `tg.function`: the fixture `run` calls
a function in one way or in the other. Variables are made outside, as a function requires.
"""

import os
import sys

import numpy as np
import pytest

import tracegraph as tg

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


@pytest.fixture(params=["top level", "function"])
def run(request):
    """Returns `run(fn)`: fn() as it is, or fn() compiled by `tg.function`."""
    if request.param == "function":
        return lambda fn: tg.function(fn)()
    return lambda fn: fn()


@pytest.fixture
def plt():
    """matplotlib.pyplot without a screen; its figures are closed at the end."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    yield pyplot
    pyplot.close("all")


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def here(number: int) -> str:
    """How an error names a line of this file."""
    return f"{os.path.basename(__file__)}:{number}"


# ---------------------------------------------------------------- guide: gradient tapes


def test_simple_example(run):
    x = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            y = x**2
        return tape.gradient(y, x)

    dy_dx = run(example)
    assert dy_dx.numpy() == 6.0
    assert str(dy_dx) == "tg.Tensor(6.0, shape=(), dtype=float32)"


@pytest.fixture
def linear():
    """The guide's w, b and x, and a function that gives y and the loss under a tape."""
    w = tg.Variable(tg.random.normal((3, 2)), name="w")
    b = tg.Variable(tg.zeros(2, dtype=tg.float32), name="b")
    x = [[1.0, 2.0, 3.0]]

    def forward():
        with tg.GradientTape(persistent=True) as tape:
            y = x @ w + b
            loss = tg.reduce_mean(y**2)
        return tape, y, loss

    return w, b, np.array(x, np.float32), forward


def test_list_of_sources_gives_a_list(run, linear):
    w, b, x, forward = linear

    def example():
        tape, _, loss = forward()
        [dl_dw, dl_db] = tape.gradient(loss, [w, b])
        return dl_dw, dl_db

    dl_dw, dl_db = run(example)
    y = x @ w.numpy() + b.numpy()
    np.testing.assert_allclose(dl_dw.numpy(), x.T @ y, rtol=1e-5)
    np.testing.assert_allclose(dl_db.numpy(), y[0], rtol=1e-5)


def test_gradient_has_the_shape_of_the_source(capsys, linear):
    w, b, _, forward = linear
    tape, _, loss = forward()
    [dl_dw, _] = tape.gradient(loss, [w, b])
    print(w.shape)
    print(dl_dw.shape)
    assert capsys.readouterr().out == "(3, 2)\n(3, 2)\n"


def test_dictionary_of_sources_gives_a_dictionary(run, linear):
    w, b, x, forward = linear

    def example():
        tape, _, loss = forward()
        my_vars = {"w": w, "b": b}
        return tape.gradient(loss, my_vars)

    grad = run(example)
    assert set(grad) == {"w", "b"}
    np.testing.assert_allclose(grad["b"].numpy(), (x @ w.numpy() + b.numpy())[0], 1e-5, 1e-6)


def test_gradient_prints_like_a_tensor(linear):
    _, b, _, forward = linear
    tape, _, loss = forward()
    text = repr(tape.gradient(loss, {"b": b})["b"])
    assert text.startswith("<tg.Tensor: shape=(2,), dtype=float32, numpy=array([")
    assert text.endswith("], dtype=float32)>")


def test_gradients_with_respect_to_a_model(run):
    layer = tg.layers.Dense(2, activation="relu")
    x = tg.constant([[1.0, 2.0, 3.0]])

    def example():
        with tg.GradientTape() as tape:
            y = layer(x)
            loss = tg.reduce_mean(y**2)
        return y, tape.gradient(loss, layer.trainable_variables)

    y, grad = run(example)
    assert [g.shape for g in grad] == [(3, 2), (2,)]
    np.testing.assert_allclose(grad[1].numpy(), y.numpy()[0], rtol=1e-6)
    np.testing.assert_allclose(grad[0].numpy(), x.numpy().T @ y.numpy(), rtol=1e-6)


def test_model_prints_names_and_shapes(capsys):
    layer = tg.layers.Dense(2, activation="relu")
    x = tg.constant([[1.0, 2.0, 3.0]])

    with tg.GradientTape() as tape:
        # Forward pass
        y = layer(x)
        loss = tg.reduce_mean(y**2)

    # Calculate gradients with respect to every trainable variable
    grad = tape.gradient(loss, layer.trainable_variables)
    for var, g in zip(layer.trainable_variables, grad, strict=True):
        print(f"{var.name}, shape: {g.shape}")
    assert capsys.readouterr().out == "kernel, shape: (3, 2)\nbias, shape: (2,)\n"


# ---------------------------------------------------------------- guide: what the tape watches


def test_only_trainable_variables_are_watched(run):
    x0 = tg.Variable(3.0, name="x0")
    x1 = tg.Variable(3.0, name="x1", trainable=False)
    x2 = tg.Variable(2.0, name="x2") + 1.0
    x3 = tg.constant(3.0, name="x3")

    def example():
        with tg.GradientTape() as tape:
            y = (x0**2) + (x1**2) + (x2**2)
        return tape.gradient(y, [x0, x1, x2, x3])

    printed = [str(g) for g in run(example)]
    assert printed == ["tg.Tensor(6.0, shape=(), dtype=float32)", "None", "None", "None"]


def test_watched_variables_lists_the_trainable_one(run):
    x0 = tg.Variable(3.0, name="x0")
    x1 = tg.Variable(3.0, name="x1", trainable=False)
    names = []

    def example():
        with tg.GradientTape() as tape:
            y = (x0**2) + (x1**2)
        names.extend(var.name for var in tape.watched_variables())
        return y

    run(example)
    assert names == ["x0:0"]


def test_watch_a_tensor(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x**2
        return tape.gradient(y, x)

    assert run(example).numpy() == 6.0


def test_watch_accessed_variables_false(run):
    x0 = tg.Variable(0.0)
    x1 = tg.Variable(10.0)

    def example():
        with tg.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x1)
            y0 = tg.math.sin(x0)
            y1 = tg.nn.softplus(x1)
            y = y0 + y1
            ys = tg.reduce_sum(y)
        return tape.gradient(ys, {"x0": x0, "x1": x1})

    grad = run(example)
    assert grad["x0"] is None
    np.testing.assert_allclose(grad["x1"].numpy(), 0.9999546, rtol=1e-7)


def test_intermediate_result(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        return tape.gradient(z, y)

    assert run(example).numpy() == 18.0


def test_persistent_tape(run):
    x = tg.constant([1, 3.0])

    def example():
        with tg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        grads = tape.gradient(z, x), tape.gradient(y, x)
        del tape  # Drop the reference to the tape
        return grads

    dz_dx, dy_dx = run(example)
    np.testing.assert_array_equal(dz_dx.numpy(), [4.0, 108.0])
    np.testing.assert_array_equal(dy_dx.numpy(), [2.0, 6.0])


# ---------------------------------------------------------------- guide: non-scalar targets


def test_two_targets_one_by_one(run):
    x = tg.Variable(2.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            y0 = x**2
            y1 = 1 / x
        return tape.gradient(y0, x), tape.gradient(y1, x)

    assert [g.numpy() for g in run(example)] == [4.0, -0.25]


def test_dictionary_of_targets_is_summed(run):
    x = tg.Variable(2.0)

    def example():
        with tg.GradientTape() as tape:
            y0 = x**2
            y1 = 1 / x
        return tape.gradient({"y0": y0, "y1": y1}, x)

    assert run(example).numpy() == 3.75


def test_vector_target_is_summed(run):
    x = tg.Variable(2.0)

    def example():
        with tg.GradientTape() as tape:
            y = x * [3.0, 4.0]
        return tape.gradient(y, x)

    assert run(example).numpy() == 7.0


def test_elementwise_derivative(run):
    x = tg.linspace(-10.0, 10.0, 200 + 1)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.nn.sigmoid(x)
        return y, tape.gradient(y, x)

    y, dy_dx = run(example)
    sigmoid = 1 / (1 + np.exp(-np.linspace(-10.0, 10.0, 201)))
    np.testing.assert_allclose(y.numpy(), sigmoid, rtol=1e-5)
    np.testing.assert_allclose(dy_dx.numpy(), sigmoid * (1 - sigmoid), rtol=1e-4, atol=1e-7)


def test_tensors_are_plotted(plt):
    x = tg.linspace(-10.0, 10.0, 200 + 1)

    with tg.GradientTape() as tape:
        tape.watch(x)
        y = tg.nn.sigmoid(x)

    dy_dx = tape.gradient(y, x)
    plt.plot(x, y, label="y")
    plt.plot(x, dy_dx, label="dy/dx")
    plt.legend()
    _ = plt.xlabel("x")
    drawn = [curve.get_ydata() for curve in plt.gca().lines]
    np.testing.assert_array_equal(drawn[0], y.numpy())
    np.testing.assert_array_equal(drawn[1], dy_dx.numpy())


# ---------------------------------------------------------------- guide: control flow


@pytest.fixture
def branches():
    """The guide's example of a Python `if` on a value."""
    x = tg.constant(1.0)
    v0 = tg.Variable(2.0)
    v1 = tg.Variable(2.0)
    with tg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        if x > 0.0:
            result = v0
        else:
            result = v1**2
    return tape, result, x, v0, v1


def test_gradient_connects_to_the_branch_taken(capsys, branches):
    tape, result, _, v0, v1 = branches
    dv0, dv1 = tape.gradient(result, [v0, v1])
    print(dv0)
    print(dv1)
    assert capsys.readouterr().out == "tg.Tensor(1.0, shape=(), dtype=float32)\nNone\n"


def test_control_statements_are_not_differentiable(branches):
    tape, result, x, _, _ = branches
    dx = tape.gradient(result, x)
    assert dx is None


# ---------------------------------------------------------------- guide: cases of None


def test_unconnected_target_gives_none(run):
    x = tg.Variable(2.0)
    y = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            z = y * y
        return tape.gradient(z, x)

    assert run(example) is None


def test_variable_replaced_by_a_tensor(capsys):
    x = tg.Variable(2.0)

    for _ in range(2):
        with tg.GradientTape() as tape:
            y = x + 1

        print(type(x).__name__, ":", tape.gradient(y, x))
        x = x + 1  # This should be `x.assign_add(1)`

    assert capsys.readouterr().out == (
        "Variable : tg.Tensor(1.0, shape=(), dtype=float32)\nTensor : None\n"
    )


def test_variable_replaced_by_a_tensor_in_a_function():
    variable = tg.Variable(2.0)

    @tg.function
    def example():
        x, names, grads = variable, [], []
        for _ in range(2):
            with tg.GradientTape() as tape:
                y = x + 1
            names.append(type(x).__name__)
            grads.append(tape.gradient(y, x))
            x = x + 1
        assert names == ["Variable", "Tensor"]
        return grads

    first, second = example()
    assert first.numpy() == 1.0
    assert second is None


def test_calculation_in_numpy_gives_none():
    x = tg.Variable([[1.0, 2.0], [3.0, 4.0]], dtype=tg.float32)

    with tg.GradientTape() as tape:
        x2 = x**2

        # This step is calculated with NumPy
        y = np.mean(x2, axis=0)

        # reduce_mean turns the NumPy array into a constant tensor.
        y = tg.reduce_mean(y, axis=0)

    assert y.numpy() == 7.5
    assert tape.gradient(y, x) is None


def test_integer_source_gives_none_and_a_warning(run):
    x = tg.constant(10)

    def example():
        with tg.GradientTape() as g:
            g.watch(x)
            y = x * x
        return g.gradient(y, x)

    with pytest.warns(UserWarning, match="int32"):
        dy_dx = run(example)
    assert dy_dx is None


def test_state_stops_gradients(run):
    x0 = tg.Variable(3.0)
    x1 = tg.Variable(0.0)

    def example():
        with tg.GradientTape() as tape:
            # Update x1 = x1 + x0.
            x1.assign_add(x0)
            # The tape starts recording from x1.
            y = x1**2  # y = (x1 + x0)**2
        # This doesn't work.
        return y, tape.gradient(y, x0)  # dy/dx0 = 2*(x1 + x0)

    y, dy_dx0 = run(example)
    assert y.numpy() == 9.0
    assert dy_dx0 is None


def test_op_without_a_gradient_names_itself_and_its_line(run):
    image = tg.Variable([[[0.5, 0.0, 0.0]]])
    delta = tg.Variable(0.1)
    op_line = line() + 4

    def example():
        with tg.GradientTape() as tape:
            new_image = tg.image.adjust_contrast(image, delta)
        return tape.gradient(new_image, [image, delta])

    with pytest.raises(LookupError) as error:
        run(example)
    assert "adjust" in str(error.value).lower() and "contrast" in str(error.value).lower()
    assert here(op_line) in str(error.value)


def test_op_without_a_gradient_has_a_value(run):
    image = tg.Variable([[[0.5, 0.0, 0.0]]])

    def example():
        return tg.image.adjust_contrast(image, 0.1)

    np.testing.assert_allclose(run(example).numpy(), [[[0.5, 0.0, 0.0]]], atol=1e-7)


def test_zeros_instead_of_none(run):
    x = tg.Variable([2.0, 2.0])
    y = tg.Variable(3.0)

    def example():
        with tg.GradientTape() as tape:
            z = y**2
        return tape.gradient(z, x, unconnected_gradients=tg.UnconnectedGradients.ZERO)

    assert str(run(example)) == "tg.Tensor([0. 0.], shape=(2,), dtype=float32)"


# ---------------------------------------------------------------- tutorial


def test_float_variable_prints_as_in_the_tutorial(capsys):
    x = tg.Variable(20.0)
    print(x)
    with tg.GradientTape() as tape:
        y = x**2
    # dy = 2x * dx = 2*20.0 = 40.0
    dy_dx = tape.gradient(y, x)
    print(dy_dx)
    assert capsys.readouterr().out == (
        "<tg.Variable 'Variable:0' shape=() dtype=float32, numpy=20.0>\n"
        "tg.Tensor(40.0, shape=(), dtype=float32)\n"
    )


def test_integer_variable_prints_as_in_the_tutorial(capsys):
    x = tg.Variable(30)
    print(x)
    with tg.GradientTape() as tape:
        y = x**3
    print(y)
    with pytest.warns(UserWarning, match="int32"):
        dy_dx = tape.gradient(y, x)
    print(dy_dx)
    assert capsys.readouterr().out == (
        "<tg.Variable 'Variable:0' shape=() dtype=int32, numpy=30>\n"
        "tg.Tensor(27000, shape=(), dtype=int32)\n"
        "None\n"
    )


def test_integer_variable_in_a_function():
    x = tg.Variable(30)

    @tg.function
    def example():
        with tg.GradientTape() as tape:
            y = x**3
        return y, tape.gradient(y, x)

    with pytest.warns(UserWarning, match="int32"):
        y, dy_dx = example()
    assert y.numpy() == 27000 and y.dtype == tg.int32
    assert dy_dx is None


def test_dtype_given_to_an_integer_value(run):
    x = tg.Variable(30, dtype=tg.float32)
    assert repr(x) == "<tg.Variable 'Variable:0' shape=() dtype=float32, numpy=30.0>"

    def example():
        with tg.GradientTape() as tape:
            y = x**3
        return tape.gradient(y, x)

    dy_dx = run(example)
    assert dy_dx.dtype == tg.float32
    np.testing.assert_allclose(dy_dx.numpy(), 2699.9998, rtol=1e-6)


def test_vector_variable(run):
    x = tg.Variable([1.0, 2.0, 3.0], dtype=tg.float32)

    def example():
        with tg.GradientTape() as tape:
            y = x**3
        return y, tape.gradient(y, x)

    y, dy_dx = run(example)
    assert str(y) == "tg.Tensor([ 1.  8. 27.], shape=(3,), dtype=float32)"
    assert str(dy_dx) == "tg.Tensor([ 3. 12. 27.], shape=(3,), dtype=float32)"


def test_constant_is_not_watched(run):
    x = tg.constant(3.0)
    assert str(x) == "tg.Tensor(3.0, shape=(), dtype=float32)"

    def example():
        with tg.GradientTape() as tape:
            y = x**2
        return tape.gradient(y, x)

    assert run(example) is None


def test_watched_constant(run):
    x = tg.constant(3.0)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x**2
        return tape.gradient(y, x)

    assert str(run(example)) == "tg.Tensor(6.0, shape=(), dtype=float32)"


def test_variable_that_is_not_trainable(run):
    x = tg.Variable(5.0, trainable=False)

    def example():
        with tg.GradientTape() as tape:
            y = x**3
        return tape.gradient(y, x)

    assert run(example) is None


def test_watched_variable_that_is_not_trainable(run):
    x = tg.Variable(5.0, trainable=False)

    def example():
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = x**3
        return tape.gradient(y, x)

    np.testing.assert_allclose(run(example).numpy(), 74.99999, rtol=1e-6)


@pytest.mark.parametrize(("watch_accessed", "expected"), [(True, 10.0), (False, None)])
def test_watch_accessed_variables_argument(run, watch_accessed, expected):
    x0 = tg.Variable(5.0)

    def example():
        with tg.GradientTape(watch_accessed_variables=watch_accessed) as tape:
            y0 = x0**2
        return tape.gradient(y0, x0)

    dy_dx0 = run(example)
    assert (dy_dx0 if dy_dx0 is None else dy_dx0.numpy()) == expected


def test_chosen_variable(run):
    x0 = tg.Variable(5.0)

    def example():
        with tg.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x0)
            y0 = x0**2
        return tape.gradient(y0, x0)

    assert str(run(example)) == "tg.Tensor(10.0, shape=(), dtype=float32)"


def test_second_gradient_of_a_plain_tape_is_an_error(run):
    x0 = tg.Variable(5.0)
    x1 = tg.Variable(10.0)

    def example():
        with tg.GradientTape() as tape:
            y0 = x0**2
            y1 = x1**2
        tape.gradient(y0, x0)
        return tape.gradient(y1, x1)

    with pytest.raises(RuntimeError, match="persistent"):
        run(example)


def test_two_gradients_of_a_persistent_tape(run):
    x0 = tg.Variable(5.0)
    x1 = tg.Variable(10.0)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            y0 = x0**2
            y1 = x1**2
        return tape.gradient(y0, x0), tape.gradient(y1, x1)

    dy_dx0, dy_dx1 = run(example)
    assert str(dy_dx0) == "tg.Tensor(10.0, shape=(), dtype=float32)"
    assert str(dy_dx1) == "tg.Tensor(20.0, shape=(), dtype=float32)"


@pytest.mark.filterwarnings("ignore:.*int32:UserWarning")
def test_whole_tutorial_prints(capsys):
    # GradientTape on a floating variable
    x = tg.Variable(20.0, dtype=tg.float32)
    print(x)
    with tg.GradientTape() as tape:
        y = x**2
    # dy = 2x * dx = 2*20.0 = 40.0
    dy_dx = tape.gradient(y, x)
    print(f"GradientTape on a floating variable: {dy_dx}\n")

    # GradientTape on an integer value
    x = tg.Variable(30)
    print(x)
    with tg.GradientTape() as tape:
        y = x**3
    # resulting `y` will be `int32` as well
    print(y)
    dy_dx = tape.gradient(y, x)
    print(f"GradientTape on an integer variable: {dy_dx}\n")

    # GradientTape on a 1D tensor variable
    x = tg.Variable([1.0, 2.0, 3.0], dtype=tg.float32)
    with tg.GradientTape() as tape:
        y = x**3
    print(y)
    dy_dx = tape.gradient(y, x)
    print(f"GradientTape on a 1D tensor variable: {dy_dx}\n")

    # GradientTape on a constant tensor
    x = tg.constant(3.0)
    with tg.GradientTape() as tape:
        # tell the GradientTape() API to watch the tensor `x` explicitly
        tape.watch(x)
        y = x**2
    # dy = 2x * dx
    dy_dx = tape.gradient(y, x)
    print(f"GradientTape on a constant tensor: {dy_dx}\n")

    # Controlling trainable variables
    x = tg.Variable(5.0, trainable=False)
    # GradientTape() does not watch non-trainable variables
    with tg.GradientTape() as tape:
        y = x**3
    dy_dx = tape.gradient(y, x)
    print(f"GradientTape does not watch non-trainable variables: {dy_dx}")
    x = tg.Variable(5.0, trainable=False)
    # We need to watch non-trainable variables
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = x**3
    dy_dx = tape.gradient(y, x)
    print(f"We need to tell GradientTape to watch non-trainable variables: {dy_dx}\n\n")

    # GradientTape on more than one variable with `persistent=True`
    x0 = tg.Variable(5.0)
    x1 = tg.Variable(10.0)
    with tg.GradientTape(persistent=True) as tape:
        y0 = x0**2
        y1 = x1**2
    dy_dx0 = tape.gradient(y0, x0)
    dy_dx1 = tape.gradient(y1, x1)
    print(dy_dx0)
    print(dy_dx1)

    assert capsys.readouterr().out.splitlines() == [
        "<tg.Variable 'Variable:0' shape=() dtype=float32, numpy=20.0>",
        "GradientTape on a floating variable: 40.0",
        "",
        "<tg.Variable 'Variable:0' shape=() dtype=int32, numpy=30>",
        "tg.Tensor(27000, shape=(), dtype=int32)",
        "GradientTape on an integer variable: None",
        "",
        "tg.Tensor([ 1.  8. 27.], shape=(3,), dtype=float32)",
        "GradientTape on a 1D tensor variable: [ 3. 12. 27.]",
        "",
        "GradientTape on a constant tensor: 6.0",
        "",
        "GradientTape does not watch non-trainable variables: None",
        "We need to tell GradientTape to watch non-trainable variables: 75.0",
        "",
        "",
        "tg.Tensor(10.0, shape=(), dtype=float32)",
        "tg.Tensor(20.0, shape=(), dtype=float32)",
    ]


# ---------------------------------------------------------------- advanced guide: recording


@pytest.fixture
def x_and_y():
    """The advanced guide's two variables."""
    return tg.Variable(2.0), tg.Variable(3.0)


def check_only_x(grad):
    """dz/dx is 2*x = 4 and dz/dy is None, printed as in the guide."""
    assert f"dz/dx: {grad['x']!s}" == "dz/dx: tg.Tensor(4.0, shape=(), dtype=float32)"
    assert f"dz/dy: {grad['y']!s}" == "dz/dy: None"


def test_stop_recording(run, x_and_y):
    x, y = x_and_y

    def example():
        with tg.GradientTape() as t:
            x_sq = x * x
            with t.stop_recording():
                y_sq = y * y
            z = x_sq + y_sq
        return t.gradient(z, {"x": x, "y": y})

    check_only_x(run(example))


def test_reset(run, x_and_y):
    x, y = x_and_y
    reset = True

    def example():
        with tg.GradientTape() as t:
            y_sq = y * y
            if reset:
                # Throw out all the tape recorded so far.
                t.reset()
            z = x * x + y_sq
        return t.gradient(z, {"x": x, "y": y})

    check_only_x(run(example))


def test_stop_gradient(run, x_and_y):
    x, y = x_and_y

    def example():
        with tg.GradientTape() as t:
            y_sq = y**2
            z = x**2 + tg.stop_gradient(y_sq)
        return t.gradient(z, {"x": x, "y": y})

    check_only_x(run(example))


# ---------------------------------------------------------------- advanced guide: several tapes


def test_two_tapes_watch_different_tensors(run):
    x0 = tg.constant(0.0)
    x1 = tg.constant(0.0)

    def example():
        with tg.GradientTape() as tape0, tg.GradientTape() as tape1:
            tape0.watch(x0)
            tape1.watch(x1)
            y0 = tg.math.sin(x0)
            y1 = tg.nn.sigmoid(x1)
            y = y0 + y1
            ys = tg.reduce_sum(y)
        return tape0.gradient(ys, x0), tape1.gradient(ys, x1)

    dys_dx0, dys_dx1 = run(example)
    assert dys_dx0.numpy() == 1.0  # cos(x)
    assert dys_dx1.numpy() == 0.25  # sigmoid(x1)*(1-sigmoid(x1))


def test_second_derivative(run):
    x = tg.Variable(1.0)

    def example():
        with tg.GradientTape() as t2:
            with tg.GradientTape() as t1:
                y = x * x * x

            # Compute the gradient inside the outer `t2` context manager
            # which means the gradient computation is differentiable as well.
            dy_dx = t1.gradient(y, x)
        return dy_dx, t2.gradient(dy_dx, x)

    dy_dx, d2y_dx2 = run(example)
    assert f"dy_dx: {dy_dx.numpy()}" == "dy_dx: 3.0"  # 3 * x**2
    assert f"d2y_dx2: {d2y_dx2.numpy()}" == "d2y_dx2: 6.0"  # 6 * x


def input_gradient_penalty(layer, x):
    """The guide's naive input gradient regularisation: dg1_mag for every variable."""
    with tg.GradientTape() as t2:
        # The inner tape only takes the gradient with respect to the input,
        # not the variables.
        with tg.GradientTape(watch_accessed_variables=False) as t1:
            t1.watch(x)
            layer(x)
            out = tg.reduce_sum(layer(x) ** 2)
        # 1. Calculate the input gradient.
        g1 = t1.gradient(out, x)
        # 2. Calculate the magnitude of the input gradient.
        g1_mag = tg.norm(g1)

    # 3. Calculate the gradient of the magnitude with respect to the model.
    return t2.gradient(g1_mag, layer.trainable_variables)


@pytest.mark.sampled(1)
def test_input_gradient_regularisation_shapes(run):
    x = tg.random.normal([7, 5])
    layer = tg.layers.Dense(10, activation=tg.nn.relu)

    dg1_mag = run(lambda: input_gradient_penalty(layer, x))
    assert [var.shape for var in dg1_mag] == [tg.TensorShape([5, 10]), tg.TensorShape([10])]
    assert repr([var.shape for var in dg1_mag]) == "[TensorShape([5, 10]), TensorShape([10])]"


def penalty_in_numpy(kernel, bias, x):
    """The magnitude of the gradient of sum(relu(x @ kernel + bias) ** 2) by x, in NumPy."""
    hidden = np.maximum(x @ kernel + bias, 0)
    return np.linalg.norm(2 * hidden @ kernel.T)


def test_input_gradient_regularisation_values(run):
    x = tg.random.normal([7, 5])
    layer = tg.layers.Dense(10, activation=tg.nn.relu)

    _, d_bias = run(lambda: input_gradient_penalty(layer, x))
    kernel, bias = (var.numpy().astype(np.float64) for var in layer.trainable_variables)
    step = 1e-6 * np.eye(10)
    up = [penalty_in_numpy(kernel, bias + s, x.numpy()) for s in step]
    down = [penalty_in_numpy(kernel, bias - s, x.numpy()) for s in step]
    np.testing.assert_allclose(d_bias.numpy(), (np.array(up) - down) / 2e-6, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------- advanced guide: custom gradients


# Establish an identity operation, but clip during the gradient pass.
@tg.custom_gradient
def clip_gradients(y):
    def backward(dy):
        return tg.clip_by_norm(dy, 0.5)

    return y, backward


def test_custom_gradient_that_clips(run):
    v = tg.Variable(2.0)

    def example():
        with tg.GradientTape() as t:
            output = clip_gradients(v * v)
        return t.gradient(output, v)  # calls "backward", which clips 4 to 2

    assert str(run(example)) == "tg.Tensor(2.0, shape=(), dtype=float32)"


def test_custom_gradient_in_a_module_with_an_open_shape():
    class MyModule(tg.Module):
        @tg.function(input_signature=[tg.TensorSpec(None)])
        def call_custom_grad(self, x):
            return clip_gradients(x)

    model = MyModule()
    v = tg.Variable(2.0)
    with tg.GradientTape() as t:
        output = model.call_custom_grad(v * v)
    assert str(t.gradient(output, v)) == "tg.Tensor(2.0, shape=(), dtype=float32)"


# ---------------------------------------------------------------- advanced guide: Jacobians


def test_jacobian_by_a_scalar(run):
    x = tg.linspace(-10.0, 10.0, 200 + 1)
    delta = tg.Variable(0.0)

    def example():
        with tg.GradientTape() as tape:
            y = tg.nn.sigmoid(x + delta)
        return y, tape.jacobian(y, delta)

    y, dy_dx = run(example)
    assert (str(y.shape), str(dy_dx.shape)) == ("(201,)", "(201,)")
    sigmoid = 1 / (1 + np.exp(-np.linspace(-10.0, 10.0, 201)))
    np.testing.assert_allclose(dy_dx.numpy(), sigmoid * (1 - sigmoid), rtol=1e-3, atol=1e-7)


def test_jacobian_is_plotted(plt):
    x = tg.linspace(-10.0, 10.0, 200 + 1)
    delta = tg.Variable(0.0)
    with tg.GradientTape() as tape:
        y = tg.nn.sigmoid(x + delta)
    dy_dx = tape.jacobian(y, delta)

    plt.plot(x.numpy(), y, label="y")
    plt.plot(x.numpy(), dy_dx, label="dy/dx")
    plt.legend()
    _ = plt.xlabel("x")
    assert np.max(np.asarray(plt.gca().lines[1].get_ydata())) == 0.25


def test_jacobian_by_a_tensor(run):
    x = tg.random.normal([7, 5])
    layer = tg.layers.Dense(10, activation=tg.nn.relu)
    layer(x)

    def example():
        with tg.GradientTape(persistent=True) as tape:
            y = layer(x)
        j = tape.jacobian(y, layer.kernel)
        g = tape.gradient(y, layer.kernel)
        j_sum = tg.reduce_sum(j, axis=[0, 1])
        delta = tg.reduce_max(abs(g - j_sum))
        return y, j, g, delta

    y, j, g, delta = run(example)
    assert repr(y.shape) == "TensorShape([7, 10])"
    assert repr(layer.kernel.shape) == "TensorShape([5, 10])"
    assert repr(j.shape) == "TensorShape([7, 10, 5, 10])"
    assert f"g.shape: {g.shape}" == "g.shape: (5, 10)"
    assert delta.numpy() < 1e-3
    active = (x.numpy() @ layer.kernel.numpy() + layer.bias.numpy()) > 0
    expected = np.einsum("bi,bo,op->boip", x.numpy(), active, np.eye(10))
    np.testing.assert_allclose(j.numpy(), expected, rtol=1e-6)


@pytest.fixture
def two_layers():
    """The guide's input and layers, and a function that gives the loss's gradient and Hessian."""
    tg.random.set_seed(0)
    x0 = tg.random.normal([7, 5])
    layer1 = tg.layers.Dense(8, activation=tg.nn.relu)
    layer2 = tg.layers.Dense(6, activation=tg.nn.relu)
    layer2(layer1(x0))

    def derivatives():
        with tg.GradientTape() as t2:
            with tg.GradientTape() as t1:
                x = layer1(x0)
                x = layer2(x)
                loss = tg.reduce_mean(x**2)

            g = t1.gradient(loss, layer1.kernel)

        h = t2.jacobian(g, layer1.kernel)
        return loss, g, h

    return x0, layer1, layer2, derivatives


@pytest.mark.sampled(1)
def test_hessian(run, two_layers):
    _, layer1, _, derivatives = two_layers
    _, g, h = run(derivatives)
    assert f"layer.kernel.shape: {layer1.kernel.shape}" == "layer.kernel.shape: (5, 8)"
    assert f"h.shape: {h.shape}" == "h.shape: (5, 8, 5, 8)"
    h_mat = tg.reshape(h, [40, 40]).numpy()
    np.testing.assert_allclose(h_mat, h_mat.T, atol=1e-6)
    # Where no unit changes sides the loss is quadratic in the kernel: one step of any length.
    kernel, step = layer1.kernel.numpy(), 1e-3
    layer1.kernel.assign_add(np.full((5, 8), step, np.float32))
    _, moved, _ = derivatives()
    layer1.kernel.assign(kernel)
    difference = (moved.numpy() - g.numpy()) / step
    np.testing.assert_allclose(h_mat.sum(1).reshape(5, 8), difference, rtol=0.1, atol=2e-2)


@pytest.mark.sampled(1)
def test_newton_step(run, two_layers):
    _, layer1, _, derivatives = two_layers
    before = derivatives()[0].numpy()

    def example():
        _, g, h = derivatives()
        n_params = tg.reduce_prod(layer1.kernel.shape)
        assert isinstance(n_params, tg.Tensor)
        g_vec = tg.reshape(g, [40, 1])
        h_mat = tg.reshape(h, [40, 40])
        eps = 1e-3
        eye_eps = tg.eye(h_mat.shape[0]) * eps
        # X(k+1) = X(k) - (∇²f(X(k)))^-1 @ ∇f(X(k))
        update = tg.linalg.solve(h_mat + eye_eps, g_vec)
        # Reshape the update and apply it to the variable.
        _ = layer1.kernel.assign_sub(tg.reshape(update, layer1.kernel.shape))
        return n_params, g_vec, h_mat + eye_eps, update

    n_params, g_vec, regular, update = run(example)
    assert n_params.numpy() == 40
    np.testing.assert_allclose(regular.numpy() @ update.numpy(), g_vec.numpy(), atol=1e-4)
    assert derivatives()[0].numpy() < before


def imshow_zero_center(plt, image, **kwargs):
    lim = tg.reduce_max(abs(image))
    plt.imshow(image, vmin=-lim, vmax=lim, cmap="seismic", **kwargs)
    plt.colorbar()


def test_hessian_is_shown(plt, two_layers):
    _, _, h = two_layers[3]()
    h_mat = tg.reshape(h, [40, 40])
    imshow_zero_center(plt, h_mat)
    np.testing.assert_array_equal(plt.gci().get_array(), h_mat.numpy())


# ---------------------------------------------------------------- advanced guide: batch Jacobian


@pytest.fixture
def batch():
    """The guide's input and layers, and a function that gives a tape and the result."""
    x = tg.random.normal([7, 5])
    layer1 = tg.layers.Dense(8, activation=tg.nn.elu)
    layer2 = tg.layers.Dense(6, activation=tg.nn.elu)
    layer2(layer1(x))

    def forward():
        with tg.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(x)
            y = layer1(x)
            y = layer2(y)
        return tape, y

    return x, forward


def test_batch_jacobian(run, batch):
    x, forward = batch

    def example():
        tape, y = forward()
        j = tape.jacobian(y, x)
        j_sum = tg.reduce_sum(j, axis=2)
        j_select = tg.einsum("bxby->bxy", j)
        jb = tape.batch_jacobian(y, x)
        error = tg.reduce_max(abs(jb - j_sum))
        return y, j, j_sum, j_select, jb, error

    y, j, j_sum, j_select, jb, error = run(example)
    assert repr(y.shape) == "TensorShape([7, 6])"
    assert repr(j.shape) == "TensorShape([7, 6, 7, 5])"
    assert (str(j_sum.shape), str(j_select.shape)) == ("(7, 6, 5)", "(7, 6, 5)")
    assert repr(jb.shape) == "TensorShape([7, 6, 5])"
    assert error.numpy() < 1e-6
    np.testing.assert_allclose(j_select.numpy(), jb.numpy(), atol=1e-6)
    slices = j.numpy()[:, 0, :, 0]
    np.testing.assert_array_equal(slices, np.diag(np.diag(slices)))


def plot_as_patches(plt, j):
    # Reorder axes so the diagonals will each form a contiguous patch.
    j = tg.transpose(j, [1, 0, 3, 2])
    # Pad in between each patch.
    lim = tg.reduce_max(abs(j))
    j = tg.pad(j, [[0, 0], [1, 1], [0, 0], [1, 1]], constant_values=-lim)
    # Reshape to form a single image.
    s = j.shape
    j = tg.reshape(j, [s[0] * s[1], s[2] * s[3]])
    imshow_zero_center(plt, j, extent=[-0.5, s[2] - 0.5, s[0] - 0.5, -0.5])


def test_batch_jacobian_is_shown(plt, batch):
    x, forward = batch
    tape, y = forward()
    j = tape.jacobian(y, x)
    imshow_zero_center(plt, j[:, 0, :, 0])
    _ = plt.title("A (batch, batch) slice")
    plot_as_patches(plt, j)
    _ = plt.title("All (batch, batch) slices are diagonal")
    assert plt.gci().get_array().shape == (6 * 9, 5 * 9)


@pytest.mark.sampled(1)
def test_batch_normalisation_mixes_the_batch(run):
    x = tg.random.normal([7, 5])
    layer1 = tg.layers.Dense(8, activation=tg.nn.elu)
    bn = tg.layers.BatchNormalization()
    layer2 = tg.layers.Dense(6, activation=tg.nn.elu)
    layer2(bn(layer1(x), training=True))

    def forward():
        with tg.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(x)
            y = layer1(x)
            y = bn(y, training=True)
            y = layer2(y)
        return tape, y

    def example():
        tape, y = forward()
        return tape.jacobian(y, x)

    j = run(example)
    assert f"j.shape: {j.shape}" == "j.shape: (7, 6, 7, 5)"
    slices = j.numpy()[:, 0, :, 0]
    assert (abs(slices - np.diag(np.diag(slices))) > 1e-6).any()  # these are not diagonal

    def refused():
        tape, y = forward()
        return tape.batch_jacobian(y, x)

    # TensorFlow returns "something with the expected shape, but its contents have an unclear
    # meaning"; here it is refused.
    with pytest.raises(ValueError, match="the rows are not independent"):
        run(refused)
