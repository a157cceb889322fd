"""tracegraph and JAX in one program: values lead from one to the other, and JAX's traces leave
what is ours alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.core.types import DTYPES, token
from tracegraph.errors import TraceError

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")

#: What makes JAX trace `h`, on an array of two elements.
TRACES = {
    "jit": lambda h: jax.jit(h)(jnp.ones(2)),
    "grad": lambda h: jax.grad(lambda a: jnp.sum(jax.jit(h)(a)))(jnp.ones(2)),
    "vmap": lambda h: jax.vmap(h)(jnp.ones(2)),
    "make_jaxpr": lambda h: jax.make_jaxpr(h)(jnp.ones(2)),
    "loop": lambda h: jax.lax.fori_loop(0, 2, lambda i, a: h(a), jnp.ones(2)),
}
traces = pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)


def while_jax_traces(trace, compute):
    """What `compute` returns in the middle of a trace of JAX's."""
    made = []

    def traced(a):
        if not made:  # a loop may trace twice
            made.append(compute())
        return a

    trace(traced)
    return made[0]


SIZES = {"small": (2, np.float32), "large": (1000, np.float32), "wide": (1000, np.float64)}


@pytest.mark.sampled(2)
@traces
@pytest.mark.parametrize(("size", "dtype"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("is_warm", [False, True])
def test_calls_while_jax_traces_have_values(trace, size, dtype, is_warm):
    double = tg.function(lambda x: x * 2)
    x = tg.constant(np.ones(size, dtype))
    if is_warm:
        double(x)
    y, z = while_jax_traces(trace, lambda: (double(x), double(np.ones(size, dtype))))
    for tensor, value in ((x, 1), (y, 2), (z, 2), (double(x), 2)):
        np.testing.assert_array_equal(tensor.numpy(), np.full(size, value, dtype))


@traces
def test_pending_values_asked_for_while_jax_traces(trace):
    x = tg.constant(np.ones(1000, np.float32))
    c = x + 1.0
    array, later = while_jax_traces(trace, lambda: (np.asarray(c), c * 3.0))
    assert array[0] == 2.0 and c.numpy()[0] == 2.0 and later.numpy()[0] == 6.0


@pytest.mark.sampled(5)
@traces
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_variables_while_jax_traces(trace, dtype):
    v = tg.Variable(np.ones(2, dtype))
    add = tg.function(lambda x: v.assign_add(x))

    def compute():
        v.assign_add([1.0, 1.0])
        add(np.ones(2, dtype))
        with tg.GradientTape() as tape:
            y = v * v
        return tg.Variable(np.ones(1000, dtype)), tape.gradient(y, v)

    made, gradient = while_jax_traces(trace, compute)
    add(np.ones(2, dtype))
    assert v.numpy().tolist() == [4.0, 4.0]
    assert made.numpy()[0] == 1.0 and made.assign_add(np.ones(1000)).numpy()[0] == 2.0
    assert gradient.numpy().tolist() == [6.0, 6.0]


def test_failure_while_jax_traces_is_the_own_one():
    def fail():
        raise KeyError("own")

    call = tg.function(lambda: tg.py_function(fail, [], tg.float32))
    with pytest.raises(KeyError, match="own"):
        while_jax_traces(TRACES["jit"], call)


X, V = tg.constant([1.0, 2.0]), tg.Variable([1.0, 2.0])
SPECS = [tg.TensorSpec([2])]
TAKERS = {
    "op": tg.sin,
    "operator": lambda a: X + a,
    "reflected operator": lambda a: a * X,
    "function": tg.function(lambda a: a * 2),
    "function with a signature": tg.function(lambda a: a * 2, input_signature=SPECS),
    "constant": tg.constant,
    "Variable": tg.Variable,
    "assignment": V.assign,
    "closure": lambda a: tg.function(lambda: X * a)(),
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_tracers_of_jax_are_refused(take):
    shown = []

    def traced(a):
        shown.append(repr(a))
        return take(a)

    with pytest.raises(TraceError) as caught:
        jax.jit(traced)(jnp.ones(2))
    fact, place, fix = str(caught.value).split("\n")[:3]
    # JAX's lines are not the user's; those of a function that is decorated here are.
    assert place.startswith(f"  at {__file__}:")
    assert fact == f"{shown[0]} has no value: JAX is tracing a function that computes with it"
    assert fix == (
        "  fix: pass the tensors that it meets to the function of JAX as arguments; or call "
        "f.as_jax() of a @tg.function f there, or leave jax.jit and its like"
    )
    assert V.numpy().tolist() == [1.0, 2.0]


def test_what_jax_calls_is_told_by_the_line_of_the_user():
    double = tg.function(lambda a: a * 2)
    with pytest.raises(TraceError, match=r"at .*test_beside_jax.py:\d+:  jax.jit\(double\)"):
        jax.jit(double)(1.0)


def test_tracer_in_a_list_is_refused():
    with pytest.raises(TraceError, match="JAX is tracing a function"):
        jax.jit(lambda a: tg.constant([a, 1.0]))(1.0)


def test_arrays_of_jax_fit_an_input_signature():
    double = tg.function(lambda a: a * 2, input_signature=SPECS)
    assert double(jnp.ones(2)).numpy().tolist() == [2.0, 2.0]


TYPES = [dtype for dtype in DTYPES if dtype is not token]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", TYPES, ids=repr)
def test_values_lead_to_jax_and_numpy_and_back(dtype):
    numbers = np.array([0, 1], dtype.numpy_dtype)
    x = tg.constant(numbers)
    pending, variable = tg.where([True, False], x, x), tg.Variable(x)
    for value in (x, pending, variable):
        array = jnp.asarray(value)
        assert array.dtype == jnp.asarray(numbers).dtype  # 64 bits are 32 to JAX
        assert array.tolist() == jnp.array(value).tolist() == [0, 1]
        assert tg.constant(array).numpy().tolist() == [0, 1]
        assert np.result_type(value, np.bool_) == np.dtype(value) == dtype.numpy_dtype
        with jax.enable_x64(True):
            assert jnp.asarray(value).dtype == dtype.numpy_dtype


def test_numpy_finds_the_dtype_of_a_tensor_that_has_no_value():
    found = []
    tg.function(lambda x: found.append(np.result_type(x, np.float32)))(tg.constant([1.0]))
    assert found == [np.float32]
