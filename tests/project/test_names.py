"""Names that code written for TensorFlow or the array API brings along, and what they do here."""

import copy
import math
import operator
import pickle
import re
import sys
import time
import traceback
import types

import jax
import numpy as np
import pytest

import tracegraph as tg
from tracegraph.api import absent, operators

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning")


# Order.


def test_control_dependencies_are_the_order_of_the_program(run):
    v = tg.Variable(1.0)

    def step():
        with tg.control_dependencies([v.assign_add(1.0), None]):
            y = v * 10.0
        with tg.control_dependencies(None):
            tg.group(v.assign(y), tg.group())
        return v.read_value()

    assert run(step).numpy() == 20.0
    with pytest.raises(tg.errors.DTypeError, match="group: it takes tensors"):
        tg.group(3)
    with pytest.raises(tg.errors.DTypeError, match="control_inputs is a list"):
        with tg.control_dependencies(v):
            pass


# Checks while tracing.


def test_assertions_that_hold(run):
    def check(x):
        tg.Assert(tg.reduce_all(x > 0.0), [x])
        tg.debugging.assert_rank_at_least(x, 1)
        tg.debugging.assert_rank_in(x, [0, 2])
        tg.debugging.assert_integer(tg.shape(x))
        assert tg.debugging.assert_same_float_dtype([x, None, 2 * x]) is tg.float32
        assert tg.debugging.assert_same_float_dtype([x], tg.float32) is tg.float32
        return tg.debugging.assert_scalar(tg.reduce_sum(tg.debugging.assert_all_finite(x, "x")))

    assert run(check, tg.ones([2, 3])).numpy() == 6.0
    for values in ([1, 2], (), {"a": 1}, range(3), iter([1])):
        tg.debugging.assert_proper_iterable(values)
    assert tg.debugging.assert_same_float_dtype() is tg.float32
    assert tg.debugging.assert_same_float_dtype(None, tg.float64) is tg.float64


def test_shapes_are_given_as_in_tensorflow():
    x, y = tg.ones([5, 2, 3]), tg.ones([2, 3])
    tg.debugging.assert_shapes([(x, (..., "N", "Q")), (y, "NQ"), (x, "5.Q"), (x, None)])
    tg.debugging.assert_shapes([(y, np.array(["N", "Q"])), (y, np.array([2, 3]))])
    tg.debugging.assert_shapes([(x, "*"), (y, ("*", 2, -1)), (1.0, ()), ([1.0], ()), (1.0, "1")])


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "words"),
    [
        ("assert_all_finite", ([1.0, math.nan], "weights"), "InvalidArgumentError", "weights: "),
        ("assert_rank_at_least", ([1.0], 2), "ShapeError", r"f32\[1\] is not of rank 2 or more"),
        ("assert_rank_in", ([1.0], [0, 2]), "ShapeError", r"is not of a rank in \[0, 2\]"),
        ("assert_rank_in", ([1.0], [1, 0.5]), "DTypeError", "a rank is .*0.5"),
        ("assert_shapes", ([([[1.0]], "32")],), "ShapeError", r"f32\[1,1\] is not \('3', '2'\)"),
        ("assert_shapes", ([([[1.0, 2.0]], ("*", "N")), ([1.0], "N")],), "ShapeError", "'N'"),
        ("assert_shapes", ([([[1.0]], ("N", ..., "Q"))],), "ShapeError", "after the first size"),
        ("assert_shapes", ([(1.0, ("*", 2))],), "ShapeError", r"f32\[\] is not \('\*', 2\)"),
        ("assert_shapes", ([([1.0], 2)],), "DTypeError", "2, which is an int"),
        ("assert_scalar", ([1.0],), "ShapeError", r"f32\[1\] is not a scalar"),
        ("assert_proper_iterable", (5,), "DTypeError", "given 5, which is an int"),
        ("assert_proper_iterable", ("ab",), "DTypeError", "given 'ab', which is a str"),
        ("assert_proper_iterable", (np.ones(2),), "DTypeError", "which is an? ndarray"),
        ("assert_proper_iterable", (tg.ones([2]),), "DTypeError", r"given a tensor f32\[2\]"),
        ("assert_integer", ([1.0],), "DTypeError", "float32 is not an integer"),
        ("assert_same_float_dtype", ([1.0, 2],), "DTypeError", "int32 is not float32"),
        ("assert_same_float_dtype", ([1],), "DTypeError", "int32 is not a floating type"),
        ("assert_same_float_dtype", ([1.0], tg.float64), "DTypeError", "float32 is not float64"),
    ],
)
def test_assertions_that_do_not_hold(name, arguments, kind, words):
    with pytest.raises(getattr(tg.errors, kind), match=words) as caught:
        getattr(tg.debugging, name)(*arguments)
    assert "test_names.py" in str(caught.value)
    assert "fix: " in str(caught.value) or name == "assert_all_finite"


@pytest.mark.parametrize(
    "call",
    [
        lambda: tg.random.uniform([2], dtype=tg.int32),
        lambda: tg.norm([1.0], ord="nuclear"),
        lambda: tg.linalg.global_norm([]),
        lambda: tg.pad([1.0], [[1, 1]], "WRAP"),
        lambda: tg.nn.dropout(tg.ones([2]), 2.0),
        lambda: tg.layers.Dense(0),
    ],
)
def test_a_value_that_an_argument_cannot_have(call):
    with pytest.raises(tg.errors.TraceError) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert "test_names.py" in str(caught.value)
    assert "fix: " in str(caught.value)


# Names that are not here.


def test_names_that_are_not_here_say_what_to_use():
    with pytest.raises(AttributeError) as caught:
        _ = tg.lookup
    assert str(caught.value) == (
        "there is no tg.lookup: there are no tables\n"
        f"  at {__file__}:{caught.traceback[0].lineno + 1}:  _ = tg.lookup\n"
        "  fix: use tg.layers.IntegerLookup, or a dict in Python"
    )
    for path, (_, fix) in absent.ABSENT.items():
        *modules, name = path.split(".")
        module = operator.attrgetter(*modules)(tg) if modules else tg
        assert name not in vars(module), "the table is out of date"
        assert not hasattr(module, name)
        for named in re.findall(r"tg((?:\.\w+)+)", fix):
            assert operator.attrgetter(named[1:])(tg) is not None
        for method in re.findall(r"variable\.(\w+)", fix):
            assert callable(getattr(tg.Variable, method))
    with pytest.raises(AttributeError, match=r"^module 'tracegraph' has no attribute 'qwerty'$"):
        _ = tg.qwerty
    with pytest.raises(AttributeError, match=r"^module 'tracegraph.nn' has no attribute 'blah'$"):
        _ = tg.nn.blah
    with pytest.raises(
        AttributeError, match=r"there is no tg.data: [^\n]*\n  at .*\n  fix: loop over"
    ):
        _ = tg.data.Dataset
    for call in (lambda: tg.array([1.0]), lambda: tg.get_variable(1, 2)):
        with pytest.raises(AttributeError, match=r"fix: use tg\."):
            call()


def absent_names():
    """What is not there, and a function that asks for it: names of modules and of tensors."""
    for path in absent.ABSENT:
        yield path, lambda x, path=path: operator.attrgetter(path)(tg)
    yield "nn.qwerty", lambda x: tg.nn.qwerty(x)
    yield "matmul, which stands elsewhere", lambda x: tg.nn.matmul(x, x)
    for name in operators._FUNCTIONS:
        yield f"x.{name}", lambda x, name=name: getattr(x, name)
        yield f"v.{name}", lambda x, name=name: getattr(WEIGHT, name)


WEIGHT = tg.Variable([1.0, 2.0])
ABSENT_NAMES = dict(absent_names())


@pytest.mark.sampled(452)
@pytest.mark.parametrize("ask", ABSENT_NAMES.values(), ids=ABSENT_NAMES)
@pytest.mark.parametrize("mode", [tg.function, lambda f: f], ids=["function", "top level"])
def test_who_asks_for_an_absent_name_sees_their_own_frames(mode, ask, capsys):
    with pytest.raises(AttributeError) as caught:
        mode(ask)(tg.ones([2]))
    error = caught.value
    assert files_of(error) == {__file__}
    assert traceback.extract_tb(error.__traceback__)[-1].name == "<lambda>"
    sys.__excepthook__(type(error), error, error.__traceback__)  # as Python ends a program
    printed = capsys.readouterr().err
    assert str(error) in printed and "Did you mean" not in printed


def files_of(error):
    return {frame.filename for frame in traceback.extract_tb(error.__traceback__)}


@pytest.mark.parametrize("mode", [tg.function, lambda f: f], ids=["function", "top level"])
def test_a_name_of_nothing_at_all_has_no_frames_of_ours(mode):
    layer = tg.layers.Dense(2)
    asks = [lambda: tg.nonsense, lambda: tg.nn.nonsense, lambda: layer.nonsense]
    asks += [lambda: tg.optimizers.SGD().nonsense, lambda: tg.reduce_sum([1.0], nonsense=1)]
    for ask in asks:
        with pytest.raises((AttributeError, TypeError), match="nonsense") as caught:
            mode(ask)()
        assert files_of(caught.value) == {__file__}
        tg.debugging.disable_traceback_filtering()
        try:
            with pytest.raises((AttributeError, TypeError)) as caught:
                mode(ask)()
        finally:
            tg.debugging.enable_traceback_filtering()
        assert mode is not tg.function or files_of(caught.value) > {__file__}


def test_a_name_of_another_module_is_found():
    with pytest.raises(AttributeError, match=r"no attribute 'matmul'\n.*\n  fix: use tg.matmul$"):
        tg.nn.matmul(1, 2)
    with pytest.raises(AttributeError, match=r"fix: use tg.layers.Dense$"):
        _ = tg.Dense


def test_python_may_suggest_where_no_repair_is_known(capsys):
    with pytest.raises(AttributeError) as caught:
        tg.function(lambda x: tg.reduxe_zum(x))(tg.ones([2]))
    sys.__excepthook__(caught.type, caught.value, caught.value.__traceback__)
    assert "Did you mean: 'reduce_sum'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "fix"),
    {
        "funtion": "use tg.function, if that is meant",
        "GradientTap": "use tg.GradientTape, if that is meant",
        "gradienttape": "use tg.GradientTape, if that is meant",
        "reduce_summ": "use tg.reduce_sum, if that is meant",
        "nn.relue": "use tg.nn.relu, if that is meant",
        "optimizers.adam": "use tg.optimizers.Adam, if that is meant",
        "math.sum": "use tg.reduce_sum",
        "nn.arctan": "use tg.atan",
        "linalg.matrix_inverse": "use tg.linalg.inv",
        "arcsin": "use tg.asin",
        "random_normal": "use tg.random.normal",
        "train.AdamOptimizer": "use tg.optimizers.Adam",
    }.items(),
)
def test_slips_and_names_of_other_libraries_have_a_repair_in_every_module(path, fix, capsys):
    with pytest.raises(AttributeError) as caught:
        operator.attrgetter(path)(tg)
    assert str(caught.value).endswith(f"\n  fix: {fix}")
    sys.__excepthook__(caught.type, caught.value, None)
    assert "Did you mean" not in capsys.readouterr().err


def test_names_that_resemble_nothing_have_no_repair():
    for path in ("foo", "nn.blah", "linalg.blah", "__wrapped__", "_reduce_sum"):
        with pytest.raises(AttributeError, match=r"^module 'tracegraph[.\w]*' has no [^\n]*$"):
            operator.attrgetter(path)(tg)


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda: tg.reduce_sum([1.0], reduction_indices=0), "use axis in place of reduction_ind"),
        (lambda: tg.squeeze([1.0], squeeze_dims=0), "use axis in place of squeeze_dims"),
        (lambda: tg.concat(concat_dim=0, values=[[1.0]]), "use axis in place of concat_dim"),
        (lambda: tg.split([1.0], 1, split_dim=0), "use axis in place of split_dim"),
        (lambda: tg.nn.dropout([1.0], keep_prob=0.9), "use rate, which is 1 - keep_prob"),
        (lambda: tg.print(1, file=sys.stderr), "use output_stream in place of file"),
        (lambda: tg.print(1, flush=True), "leave it out: what is printed is seen at once"),
        (lambda: tg.print(1, colour=1), "the options are output_stream, summarize, sep, end and"),
    ],
)
def test_arguments_of_tensorflow_1_and_of_python(call, fix):
    with pytest.raises(TypeError, match=f"\n  fix: {fix}") as caught:
        call()
    assert "print_tensors" not in str(caught.value)


#: What a hint may call `x` and `y`, of which one is meant.
MEANT = [
    {"x": tg.constant([[2.0, 1.0], [1.0, 3.0]]), "y": tg.ones([2, 2])},
    {"x": tg.constant([1.0, 2.0]), "y": tg.ones([3])},
    {"x": tg.constant([1, 2]), "y": tg.constant([3, 4])},
    {"x": tg.constant([True, False]), "y": tg.constant([True, True])},
]
NAMES = {
    "tg": tg,
    "np": np,
    "jax": jax,
    "time": time,
    "mode": "reverse",
    "perm": [1, 0],
    "axis": 0,
    "dtype": tg.float64,
    "shape": [2, 2],
    "low": 0.0,
    "high": 1.0,
    "mask": [[True, False], [False, True]],
    "value": 0.0,
    "indices": [[0]],
    "updates": [[5.0, 6.0]],
    "n": 1,
    "f": lambda x: x * x,
    "t": tg.ones([2]),
    "items": {2, 1},
}


def code_in(hint):
    """The pieces of a hint that are code: calls to their last bracket, and operators."""
    end = 0
    while match := re.compile(r"\b(?:tg|np|jax|time|x)[.\w]*\(").search(hint, end):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(hint[end], 0)
            end += 1
        end = re.compile(r"(?:[.\w]+\([^()]*\))*").match(hint, end).end()
        yield hint[match.start() : end]
    yield from re.findall(r"~x|\bx (?:[-+*/@&|^]|\*\*|<<|>>) [yn]\b", hint)


FIXES = [*((path, fix) for path, (_, fix) in absent.ABSENT.items()), *operators._FUNCTIONS.items()]
HINTS = [(path, code) for path, fix in FIXES for code in code_in(fix)]


@pytest.mark.parametrize(("path", "code"), HINTS)
def test_the_code_of_every_hint_runs(path, code):
    errors = []
    for meant in MEANT:
        try:
            found = eval(code, {**NAMES, **meant})
            if isinstance(found, tg.optimizers.Optimizer):
                found.minimize(lambda: v * v, [v := tg.Variable(1.0)])
        except Exception as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def test_hints_with_code_are_found():
    assert {"kron", "timestamp"} <= {p.split(".")[-1] for p, _ in HINTS}
    assert list(code_in("as in x.numpy().view(np.int32), or x @ y")) == [
        *("x.numpy().view(np.int32)", "x @ y")
    ]


NAMESPACES = (
    *("autograph.experimental", "math.special", "nn.experimental", "optimizers.schedules"),
    *("numpy.fft", "numpy.linalg"),
)


def test_completion_shows_what_a_module_is_for():
    modules = {name for name in dir(tg) if isinstance(getattr(tg, name), types.ModuleType)}
    assert modules == {
        *(
            "autodiff",
            "autograph",
            "bitwise",
            "config",
            "debugging",
            "distribute",
            "errors",
            "export",
            "image",
            "initializers",
        ),
        *("layers", "linalg", "losses", "math", "metrics", "nest", "nn", "numpy", "optimizers"),
        *("quantization", "random", "raw_ops", "saved_model", "signal", "testing", "train"),
        *("activations", "constraints", "keras", "regularizers", "utils"),
    }
    for name in modules:
        module = getattr(tg, name)
        assert dir(module) == sorted(module.__all__)
        for own in dir(module):
            is_namespace = f"{name}.{own}" in NAMESPACES or (name == "keras" and own in modules)
            assert isinstance(getattr(module, own), types.ModuleType) == is_namespace
    assert {"Any", "NoReturn", "fail", "here"}.isdisjoint(dir(tg.layers) + dir(tg))


def test_no_object_is_shown_by_its_address():
    modules = [
        value for name in dir(tg) if isinstance(value := getattr(tg, name), types.ModuleType)
    ]
    public = [getattr(m, name) for m in [tg, tg.optimizers.schedules, *modules] for name in dir(m)]
    classes = {x for x in public if isinstance(x, type) and not issubclass(x, BaseException)}
    plain = {x for x in classes if x.__repr__ is object.__repr__}
    # Names of constants, and what is only entered or used to decorate.
    assert plain == {tg.image.ResizeMethod, tg.RegisterGradient, tg.init_scope}


def test_views_of_graphs_are_told_of_functions():
    f = tg.function(lambda x: x)
    with pytest.raises(
        AttributeError, match=r"no 'to_html': each.*\n  at .*\n  fix: use f.graph\(x\).to_html\(\)"
    ):
        f.to_html("f.html")
    with pytest.raises(AttributeError, match=r"^'Function' object has no attribute 'qwerty'$"):
        f.qwerty  # noqa: B018
    assert "to_html" not in dir(f)


@pytest.mark.parametrize("x", [tg.constant([1.0, 2.0]), tg.Variable([1.0, 2.0])], ids=["t", "v"])
def test_methods_of_other_arrays_are_told(x):
    for name in operators._FUNCTIONS:
        assert name not in dir(x) and not hasattr(x, name)
    with pytest.raises(
        AttributeError, match=r"has no attribute 'sum'\n  at .*\n  fix: use tg.reduce"
    ):
        x.sum()
    assert np.sum(x) == np.mean(x) * 2 == 3.0  # NumPy looks for the methods
    assert np.reshape(x, (2, 1)).shape == (2, 1)


# Values.


def test_numbers_of_several_types_are_joined_as_in_a_list():
    for joined in (tg.stack([1, 2.0]), tg.concat([[1], [2.0]], 0)):
        assert joined.dtype is tg.float32
        assert joined.numpy().tolist() == [1.0, 2.0]
    assert tg.stack([1, np.float64(2.0)]).dtype is tg.float64
    assert tg.stack([1, 2]).dtype is tg.int32
    assert tg.stack([tg.constant(1.0), 2]).dtype is tg.float32


def test_a_variable_of_unknown_rank(run):
    v = tg.Variable([1.0], shape=tg.TensorShape(None))
    assert v.shape.rank is None
    v.assign([[1.0, 2.0]])

    def double():
        v.assign(v * 2.0)
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(v * v)
        return loss, tape.gradient(loss, v)

    for value, expected in (([[1.0, 2.0]], 20.0), (3.0, 36.0)):
        v.assign(value)
        loss, gradient = run(double)
        assert loss.numpy() == expected
        np.testing.assert_array_equal(gradient.numpy(), 4.0 * np.array(value))
    for other in (copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        assert other.shape.rank is None
        assert other.assign([1.0, 2.0]).numpy().tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="int32 was assigned"):
        v.assign(tg.constant([1]))


def test_arrays_go_to_other_libraries_without_a_copy():
    x = tg.constant([[1.0, 2.0]])
    for y in (x, x + 1.0):
        for take in (jax.dlpack.from_dlpack, np.from_dlpack):
            np.testing.assert_array_equal(np.asarray(take(y)), y.numpy())
    assert tg.random.Generator.from_seed(1).algorithm == 2


# The array API.

X = np.array([[1.0, -2.0], [3.0, 4.5]], np.float32)


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    "use",
    [
        lambda xp, x: xp.abs(x) + xp.floor_divide(x, xp.full_like(x, 2.0)),
        lambda xp, x: xp.remainder(x, xp.asarray(2.0, dtype=xp.float32)),
        lambda xp, x: xp.permute_dims(x, (1, 0)),
        lambda xp, x: xp.matrix_transpose(x),
        lambda xp, x: xp.concat([x, xp.zeros_like(x)], axis=None),
        lambda xp, x: xp.concat([x, xp.ones_like(x)], axis=1),
        lambda xp, x: xp.flip(x),
        lambda xp, x: xp.flip(x, axis=1),
        lambda xp, x: xp.roll(x, 1),
        lambda xp, x: xp.roll(x, 1, axis=0),
        lambda xp, x: xp.take(x, xp.asarray([1, 0]), axis=1),
        lambda xp, x: xp.sum(x, axis=0, keepdims=True),
        lambda xp, x: xp.prod(x, axis=(0, 1)),
        lambda xp, x: xp.mean(x, axis=1) - xp.max(x, axis=1) + xp.min(x, axis=1),
        lambda xp, x: xp.any(x < 0.0, axis=0),
        lambda xp, x: xp.all(x, axis=1),
        lambda xp, x: xp.isfinite(x),
        lambda xp, x: xp.astype(x, xp.int32),
        lambda xp, x: xp.where(x > 0, x, xp.zeros(x.shape, dtype=x.dtype)),
        lambda xp, x: xp.meshgrid(xp.arange(2, dtype=xp.int32), xp.arange(3, dtype=xp.int32))[0],
        lambda xp, x: xp.linspace(0.0, 1.0, 3, dtype=xp.float32) * xp.pi,
        lambda xp, x: xp.full((2,), 3, dtype=xp.int64) + xp.ones((2,), dtype=xp.int64),
        lambda xp, x: xp.eye(2, 3, dtype=xp.float64),
    ],
)
def test_the_namespace_of_the_array_api(use):
    found = use(tg.constant(X).__array_namespace__(), tg.constant(X))
    wanted = np.asarray(use(np, X))
    assert (found.dtype.name, tuple(found.shape)) == (wanted.dtype.name, wanted.shape)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_types_of_the_array_api():
    xp = tg.zeros([]).__array_namespace__(api_version="2023.12")
    assert xp.bool is tg.bool and xp.uint8 is tg.uint8
    assert xp.result_type(tg.zeros([]), xp.float64) is tg.float64
    assert (xp.finfo(xp.float32).eps, xp.iinfo(tg.constant(1)).max) == (2**-23, 2**31 - 1)
    for dtype in (xp.bool, xp.int8, xp.uint8, xp.float32, xp.complex64):
        for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating"):
            assert xp.isdtype(dtype, kind) == np.isdtype(dtype.numpy_dtype, kind), (dtype, kind)
    assert xp.isdtype(xp.float32, ("integral", xp.float32))
    with pytest.raises(tg.errors.DTypeError, match="result_type: int32 and float32 do not mix"):
        xp.result_type(xp.int32, xp.float32)
    with pytest.raises(ValueError, match="isdtype: kind is 'number'"):
        xp.isdtype(xp.int32, "number")
