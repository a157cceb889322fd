"""Public functions of tensors trace where all sizes of their operands are open."""

import pytest

import tracegraph as tg
from tests.bad_calls import calls_array, calls_linalg, calls_math, calls_nn
from tests.bad_calls.harness import Call, function_of

pytestmark = pytest.mark.filterwarnings("ignore:.*were traced:UserWarning")

CALLS = {
    path: good
    for module in (calls_array, calls_linalg, calls_math, calls_nn)
    for path, good in module.CALLS.items()
    if good.receiver is None and any(isinstance(x, tg.Tensor) and x.ndim for x in good.args)
}

_SEED = "a seed is two numbers"
_SEEDED = ("random.stateless", "random.fold_in", "random.split", "image.stateless_random")
_DEPTH = "the last size says how many axes an index stands for"
_DIAGONALS = "a size is the number of diagonals, which says what they mean"
_WINDOW = "the sizes of a window choose the form of the computation"

#: What needs the size of the last axis of each operand, and why.
LAST = {
    **{path: _SEED for path in CALLS if path.startswith(_SEEDED)},
    **{path: _DEPTH for path in CALLS if path.startswith("tensor_scatter_nd_")},
    **dict.fromkeys(["gather_nd", "scatter_nd"], _DEPTH),
    **dict.fromkeys(
        ["histogram_fixed_width", "histogram_fixed_width_bins"], "a range is two numbers"
    ),
    "signal.inverse_mdct": "a frame has an even number of elements",
}
#: What needs more sizes than that, and why.
WHOLE = {
    "unstack": "the number of tensors that it returns is that of Python's list",
    **dict.fromkeys(
        [
            "linalg.banded_triangular_solve",
            "linalg.tridiagonal_matmul",
            "linalg.tridiagonal_solve",
        ],
        _DIAGONALS,
    ),
    **dict.fromkeys(["nn.dilation2d", "nn.erosion2d", "nn.separable_conv2d"], _WINDOW),
}


def trace(path: str, good: Call, known: int) -> None:
    """Traces a call whose operands have open sizes, but for so many axes at the end."""
    function = function_of(path, good)
    places = [k for k, x in enumerate(good.args) if isinstance(x, tg.Tensor) and x.ndim]
    specs = []
    for x in (good.args[k] for k in places):
        count = max(x.ndim - known, 0)
        specs.append(tg.TensorSpec([None] * count + list(x.shape)[count:], x.dtype))

    def called(*tensors):
        args = list(good.args)
        for k, x in zip(places, tensors, strict=True):
            args[k] = x
        return function(*args, **good.kwargs)

    tg.function(called, input_signature=specs).get_concrete_function()


@pytest.mark.sampled(150)
@pytest.mark.parametrize("path", [path for path in CALLS if path not in WHOLE])
def test_calls_with_open_sizes(path: str):
    trace(path, CALLS[path], 1 if path in LAST else 0)


@pytest.mark.parametrize("path", [*LAST, *WHOLE])
def test_exceptions_say_what_they_need(path: str):
    """And are needed: whoever mends one takes it out of the list."""
    with pytest.raises((tg.errors.ShapeError, tg.errors.TraceError), match=r"\n  fix: "):
        trace(path, CALLS[path], 1 if path in WHOLE else 0)
