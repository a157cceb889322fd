"""`tg.export.stablehlo`: programs for every size, read back by JAX.

The oracles are the traced function itself, JAX on the same function, and NumPy.
"""

import importlib.util
import inspect
import os
import re
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir

import tracegraph as tg
from lowering.export import stablehlo
from tests.derived_graphs import vjp_graph
from tests.functions import test_open_sizes as open_sizes
from tests.op_table import CASES
from tests.ops.test_ops import SYMBOLIC, has_derivative, symbolic_graph, traced
from tests.oracles import raises
from tracegraph.saved_model import LoadedModule

pytest.importorskip("flatbuffers")

# Parametrised tests decorate one piece of code again and again, which a user is warned of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*decorated again:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*were traced, which is slow:UserWarning"),
]

HERE = os.path.basename(__file__)
SIZES = (1, 3, 7)
W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def exported(*args, **kwargs):
    """What a program is, read back."""
    return jax.export.deserialize(bytearray(tg.export.stablehlo(*args, **kwargs)))


def close(found, wanted, tolerance=1e-5):
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=tolerance, atol=tolerance)


@tg.function
def hidden(x, w):
    return tg.tanh(x @ w)


@tg.function
def classify(x, labels):
    logits = hidden(x, W)
    losses = tg.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return {"loss": tg.reduce_mean(losses), "logits": logits, "pair": (losses, None, logits[:-1])}


def batch(n):
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, 4)).astype(np.float32), np.arange(n, dtype=np.int32) % 3


SPECS = tg.TensorSpec(["batch", 4]), tg.TensorSpec(["batch"], tg.int32)


def test_every_batch_size_on_several_devices():
    program = exported(classify, *SPECS)
    assert program.platforms == ("cpu", "cuda")
    assert [str(x) for x in program.in_avals] == ["int32[batch]", "float32[batch,4]"]
    for n in SIZES:
        x, labels = batch(n)
        found, wanted = program.call(x=x, labels=labels), classify(x, labels)
        assert set(found) == {"loss", "logits", "pair_0", "pair_2"}
        close(found["loss"], wanted["loss"])
        close(found["logits"], wanted["logits"])
        close(found["pair_0"], wanted["pair"][0])
        close(found["pair_2"], wanted["pair"][2])


def test_it_is_read_by_a_process_without_the_source(tmp_path):
    path = tmp_path / "program.bin"
    data = tg.export.stablehlo(classify, *SPECS, path=path)
    assert path.read_bytes() == data
    code = (
        "import sys, jax.export, numpy as np\n"
        "program = jax.export.deserialize(bytearray(open(sys.argv[1], 'rb').read()))\n"
        "x = np.ones((5, 4), np.float32)\n"
        "print(float(program.call(x=x, labels=np.zeros(5, np.int32))['loss']))\n"
        "assert 'tracegraph' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    close(float(done.stdout), classify(np.ones((5, 4), np.float32), np.zeros(5, np.int32))["loss"])


def test_gradients_of_a_number():
    @tg.function
    def energy(x, params):
        return tg.reduce_sum(tg.tanh(x @ params["w"]) + params["b"]) * 0.5

    specs = tg.TensorSpec([None, 4]), {"w": tg.TensorSpec([4, 3]), "b": tg.TensorSpec([])}
    program = exported(energy, *specs, gradient=True)

    def energy_of_jax(x, w, b):
        return jnp.sum(jnp.tanh(x @ w) + b) * 0.5

    for n in SIZES:
        x, _ = batch(n)
        found = program.call(x=x, params_w=W, params_b=np.float32(2))
        value, gradients = jax.value_and_grad(energy_of_jax, argnums=(0, 1, 2))(x, W, 2.0)
        close(found["output_0"], value)
        for name, wanted in zip(("x", "params_w", "params_b"), gradients, strict=True):
            close(found[f"gradient_{name}"], wanted)


def test_gradients_of_several_results_take_cotangents():
    program = exported(classify, *SPECS, gradient=True)
    for n in SIZES:
        x, labels = batch(n)
        with tg.GradientTape() as tape:
            xs = tg.constant(x)
            tape.watch(xs)
            y = classify(xs, labels)
        losses, _, tail = y["pair"]
        gs = [2.0, np.cos(y["logits"]), np.sin(losses), np.sin(tail)]
        wanted = tape.gradient([y["loss"], y["logits"], losses, tail], xs, gs)
        names = ("loss", "logits", "pair_0", "pair_2")
        cotangents = {f"cotangent_{k}": np.float32(g) for k, g in zip(names, gs, strict=True)}
        found = program.call(x=x, labels=labels, **cotangents)
        close(found["gradient_x"], wanted)
        close(found["loss"], y["loss"])


def test_custom_gradients_are_in_force():
    @tg.custom_gradient
    def clipped(x):
        return tg.identity(x), lambda dy: tg.clip_by_value(dy, -0.5, 0.5)

    program = exported(
        lambda x: tg.reduce_sum(clipped(x) * x), tg.TensorSpec([None]), gradient=True
    )
    for n in SIZES:
        x = np.linspace(-2.0, 2.0, n, dtype=np.float32)
        close(program.call(x=x)["gradient_x"], x + np.clip(x, -0.5, 0.5))


def test_gradients_of_higher_order_are_written_as_functions():
    @tg.function
    def curvature(x):
        with tg.GradientTape() as outer:
            outer.watch(x)
            with tg.GradientTape() as inner:
                inner.watch(x)
                y = tg.reduce_sum(x**3)
            slope = inner.gradient(y, x)
        return outer.gradient(slope, x)

    program = exported(curvature, tg.TensorSpec([None]), gradient=True)
    x = np.float32([1, 2])
    found = program.call(x=x, cotangent_output_0=np.ones_like(x))
    close(found["output_0"], 6 * x)
    close(found["gradient_x"], 6 + 0 * x)


def test_gradients_that_are_not_connected_are_zeros():
    program = exported(
        lambda x, y: tg.reduce_sum(x * 2.0), *[tg.TensorSpec([None])] * 2, gradient=True
    )
    found = program.call(x=np.ones(2, np.float32), y=np.ones(3, np.float32))
    assert found["gradient_y"].tolist() == [0.0] * 3


def test_complex_gradients_are_those_of_tensorflow():
    program = exported(
        lambda z: tg.math.real(z * z), tg.TensorSpec([], tg.complex64), gradient=True
    )
    close(program.call(z=np.complex64(1 + 2j))["gradient_z"], 2 - 4j)


@pytest.mark.sweep
def test_a_scan_of_rows_of_open_size_and_its_gradient():
    def mixed(x, w):
        return tg.reduce_sum(tg.scan(lambda s, row: tg.tanh(w * s + row), x, x[0]))

    def mixed_of_jax(x, w):
        step = lambda s, row: (jnp.tanh(w * s + row),) * 2  # noqa: E731
        return jnp.sum(jax.lax.scan(step, x[0], x)[1])

    program = exported(mixed, tg.TensorSpec([3, None]), tg.TensorSpec([]), gradient=True)
    for n in SIZES:
        x = np.sin(np.arange(3 * n, dtype=np.float32)).reshape(3, n)
        found = program.call(x=x, w=np.float32(0.5))
        wanted = jax.value_and_grad(mixed_of_jax, argnums=(0, 1))(x, 0.5)
        close(found["output_0"], wanted[0])
        close(found["gradient_x"], wanted[1][0])
        close(found["gradient_w"], wanted[1][1])


def test_64_bits():
    program = exported(
        lambda x: tg.reduce_sum(tg.sin(x)), tg.TensorSpec([None], tg.float64), gradient=True
    )
    x = np.linspace(0.0, 1.0, 5)
    with jax.enable_x64(True):
        found = {name: np.asarray(y) for name, y in program.call(x=x).items()}
    assert found["gradient_x"].dtype == np.float64
    np.testing.assert_allclose(found["gradient_x"], np.cos(x), rtol=1e-15)
    assert not jax.config.jax_enable_x64


def test_variables_are_constants_of_now():
    v = tg.Variable([1.0, 2.0])
    scaled = tg.function(lambda x: x * v + tg.constant(1.0))
    program = exported(scaled, tg.TensorSpec([None, 2]))
    v.assign([5.0, 5.0])
    close(program.call(x=np.ones((3, 2), np.float32))["output_0"], [[2.0, 3.0]] * 3)


def test_concrete_functions_signatures_and_names():
    concrete = tg.function(lambda x, y: x + y).get_concrete_function(
        tg.TensorSpec([None], name="left"), tg.TensorSpec([1], name="left")
    )
    program = exported(concrete)
    assert (
        program.call(left=np.ones(3, np.float32), left_1=np.ones(1, np.float32))[
            "output_0"
        ].tolist()
        == [2.0] * 3
    )
    declared = tg.function(lambda x: -x, input_signature=[tg.TensorSpec([None])])
    assert exported(declared).call(x=np.ones(2, np.float32))["output_0"].tolist() == [-1.0, -1.0]


class Served(tg.Module):
    """Called as a function that has a trace, or is declared."""

    def __init__(self):
        super().__init__()
        self.w = tg.Variable([[1.0], [2.0]])

    @tg.function
    def __call__(self, x):
        return x @ self.w


def test_arguments_are_not_needed_where_they_are_known(tmp_path):
    module = Served()
    x = np.ones((3, 2), np.float32)
    for f, name in ((module, "__call__"), (tg.function(lambda x: x), "<lambda>")):
        words = f"no arguments are given for {name}, which has no trace yet"
        assert HERE in raises(tg.errors.TraceError, words, lambda f=f: exported(f))
    concrete = module.__call__.get_concrete_function(tg.TensorSpec([None, 2]))
    tg.saved_model.save(module, tmp_path / "m", signatures={"served": concrete})
    tg.saved_model.save(module.__call__, tmp_path / "f")
    loaded = tg.saved_model.load(tmp_path / "m")
    roots = [module, loaded, tg.saved_model.load(tmp_path / "f"), loaded.signatures["served"]]
    for f in (*roots, module.__call__, loaded.signatures["served"].concrete):
        assert exported(f).call(x=x)["output_0"].tolist() == [[3.0]] * 3
    several = tg.function(lambda x, y: x + y)
    several(tg.ones([5]), 1.0)
    several(tg.ones([5]), 2.0)
    words = r"several traces\n    <lambda>\(x: f32\[5\], y=1.0\).*\n    <lambda>\(x: f32\[5\]"
    assert HERE in raises(tg.errors.TraceError, words, lambda: exported(several))
    assert exported(several, tg.TensorSpec([5]), 2.0).in_avals[0].shape == (5,)


def test_a_signature_has_its_own_names(tmp_path):
    spec = tg.TensorSpec([], name="time")
    where = tg.function(lambda t: {"place": 2.0 * t}, input_signature=[spec])
    tg.saved_model.save(tg.Module(), tmp_path / "m", signatures=where)
    signature = tg.saved_model.load(tmp_path / "m").signatures["serving_default"]
    found = exported(signature, gradient=True).call(time=np.float32(3.0))
    assert {name: float(y) for name, y in found.items()} == {"place": 6.0, "gradient_time": 2.0}


def test_random_numbers_of_a_seed():
    noise = tg.function(lambda x, seed: x + tg.random.stateless_normal(tg.shape(x), seed))
    program = exported(noise, tg.TensorSpec([None]), tg.TensorSpec([2], tg.int32))
    seed = np.array([1, 2], np.int32)
    for n in SIZES:
        x = np.zeros(n, np.float32)
        close(program.call(x=x, seed=seed)["output_0"], noise(x, seed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_images_of_every_size(padding, gradient):
    kernel = np.random.default_rng(0).standard_normal((3, 3, 2, 4)).astype(np.float32)
    f = tg.function(lambda x: tg.reduce_sum(tg.sin(tg.nn.conv2d(x, kernel, 2, padding))))
    program = exported(f, tg.TensorSpec([None, None, None, 2]), gradient=gradient)
    for shape in ((1, 7, 6, 2), (3, 5, 9, 2)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        found = program.call(x=x)
        with tg.GradientTape() as tape:
            xs = tg.constant(x)
            tape.watch(xs)
            y = f(xs)
        close(found["output_0"], y, 1e-4)
        if gradient:
            close(found["gradient_x"], tape.gradient(y, xs), 1e-4)


OPS = {
    "cumsum": lambda x: tg.cumsum(x, 0) + tg.cumsum(x, 1, exclusive=True, reverse=True),
    "cumprod": lambda x: tg.math.cumprod(x, 0),
    "cumulative_logsumexp": lambda x: tg.math.cumulative_logsumexp(x, 0),
    "argmax": lambda x: (tg.argmax(x, 0), tg.argmax(x, 1)),
    "sort": lambda x: (tg.sort(x, 0), tg.argsort(x, 0)),
    "top_k": lambda x: tg.math.top_k(x, 2)[0],
    "softmax": lambda x: (tg.nn.softmax(x, 0), tg.nn.log_softmax(x)),
    "moments": lambda x: tg.nn.moments(x, [0, 1]),
    "einsum": lambda x: tg.einsum("ij,kj->ik", x, x),
    "shape": lambda x: (tg.shape(x), tg.size(x), tg.range(tg.shape(x)[0])),
    "scatter": lambda x: tg.tensor_scatter_nd_add(x, [[0]], tg.ones([1, 5])),
    "pad": lambda x: tg.pad(x, [[1, 2], [0, 1]]),
    "one_hot": lambda x: tg.one_hot(tg.argmax(x, 1), 5),
    "flatten": lambda x: tg.reshape(x, [-1]),
    "tile": lambda x: tg.tile(x, [2, 1]),
    "norm": lambda x: tg.norm(x),
    "eye": lambda x: tg.eye(x.shape[0]) @ x,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPS)
def test_ops_of_open_sizes(name):
    f = tg.function(OPS[name])
    program = exported(f, tg.TensorSpec([None, 5]))
    for n in SIZES:
        x = np.random.default_rng(n).uniform(0.5, 1.5, (n, 5)).astype(np.float32)
        with jax.enable_x64(True):
            found = program.call(x=x)
        for place, y in enumerate(tg.nest.flatten(f(x))):
            y = y.numpy()
            assert found[f"output_{place}"].dtype == y.dtype
            close(found[f"output_{place}"], y)


LINALG = {
    "cholesky": tg.linalg.cholesky,
    "solve": lambda a: tg.linalg.solve(a, a[..., :1]),
    "inv": tg.linalg.inv,
    "slogdet": lambda a: tuple(tg.linalg.slogdet(a)),
    "triangular_solve": lambda a: tg.linalg.triangular_solve(a, a),
    "det": tg.linalg.det,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_of_fixed_sizes(name, gradient):
    """JAX states how calls of LAPACK are divided among devices, in a dialect of its own."""
    f = tg.function(lambda x: LINALG[name](x))
    program = exported(f, tg.TensorSpec([3, 3]), gradient=gradient)
    x = np.float32([[4, 1, 0], [1, 3, 1], [0, 1, 2]])
    ys = tg.nest.flatten(f(x))
    gs = {f"cotangent_output_{i}": np.ones(y.shape, np.float32) for i, y in enumerate(ys)}
    found = program.call(x=x, **{k: g for k, g in gs.items() if k in str(program.in_tree)})
    for place, y in enumerate(ys):
        close(found[f"output_{place}"], y)


def bytes_of_graph(graph, platforms):
    names = [f"x{i}" for i in range(len(graph.inputs))]
    results = [f"y{i}" for i in range(len(graph.outputs))]
    return stablehlo.stablehlo(graph, names, [], results, platforms)


def with_gradients(graph):
    """A graph and its gradients, if it has some."""
    yield graph
    try:
        yield vjp_graph(graph)
    except (tg.errors.GradientError, tg.errors.MissingRuleError):
        return


def graphs_of_every_op():
    for case in CASES:
        graph = traced(case)
        yield from with_gradients(graph) if has_derivative(case, case.own_dtype) else [graph]
    for op, shapes in SYMBOLIC:
        yield from with_gradients(symbolic_graph(op, shapes))


@pytest.mark.slow
@pytest.mark.parametrize("platforms", [("cpu",), ("cuda",), ("cpu", "cuda")], ids=str)
def test_every_op_is_exported_and_read_back(platforms):
    """Of fixed and of open sizes."""
    for graph in graphs_of_every_op():
        data = bytes_of_graph(graph, platforms)
        jax.export.deserialize(bytearray(data))
        assert os.path.dirname(tg.__file__).encode() not in data
        assert b"lowering/" not in data


def ranked(x):
    @tg.function
    def inner(x):
        return tg.math.top_k(tg.tanh(x), 2)[0]

    return tg.math.top_k(x, 2), inner(x), tg.argsort(x, 0), tg.linalg.cholesky(tg.eye(3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gradient", [False, True])
def test_bytes_tell_nothing_of_where_they_were_made(tmp_path, gradient):
    f = tg.function(ranked, input_signature=[tg.TensorSpec([None, 5])])
    data = tg.export.stablehlo(f, gradient=gradient)
    again = tg.export.stablehlo(
        f,
        gradient=gradient,
    )
    tg.saved_model.save(f, tmp_path / "f")
    loaded = tg.export.stablehlo(tg.saved_model.load(tmp_path / "f"), gradient=gradient)
    assert data == again == loaded
    for package in (tg, jax, sys.modules[__name__]):
        assert os.path.dirname(package.__file__).encode() not in data
    paths = re.findall(rb"[\w./-]*/[\w.-]*\.py", data)  # `jit(f)/file.py:9` is a scope of ours
    assert paths and not [path for path in paths if b"/" in path.strip(b"/")]
    assert f"{HERE}:".encode() in data


SUITE = {
    **{
        f"vector: {k}": (f, open_sizes.VECTOR, [(n,) for n in range(1, 7)])
        for k, f in open_sizes.OF_VECTORS.items()
    },
    **{
        f"matrix: {k}": (f, open_sizes.MATRIX, [(3, 3), (2, 3), (1, 1), (4, 2), (5, 6)])
        for k, f in open_sizes.OF_MATRICES.items()
    },
    **{
        f"images: {k}": (f, open_sizes.IMAGES, [(2, 7, 6, 2), (1, 5, 5, 2), (1, 1, 2, 2)])
        for k, f in open_sizes.OF_IMAGES.items()
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SUITE)
def test_what_a_graph_assumes_of_sizes_is_checked_at_each_call(name):
    """A program takes the sizes that the saved graph takes, and refuses the others."""
    f, spec, shapes = SUITE[name]
    concrete = tg.function(f).get_concrete_function(spec)
    program = exported(concrete)
    for shape in shapes:
        x = open_sizes.numbers(shape)
        try:
            wanted = [y.numpy() for y in tg.nest.flatten(concrete(x))]
        except tg.errors.ShapeError:
            wanted = None
        with jax.enable_x64(True):
            if wanted is None:
                with pytest.raises((ValueError, ir.MLIRError)):
                    program.call(**{concrete.keywords[0]: x.numpy()})
                continue
            found = program.call(**{concrete.keywords[0]: x.numpy()})
        assert len(found) == len(wanted)
        for place, y in enumerate(wanted):
            np.testing.assert_allclose(found[f"output_{place}"], y, rtol=1e-6, atol=1e-9)


TWO = {
    "difference": (lambda x, y: tg.reduce_mean((x - y) ** 2), [None, 3], [None, 3], "(4,3) (4,3)"),
    "product": (lambda x, y: x @ y, [None, None], [None, 3], "(2,4) (4,3)"),
    "a call": (
        lambda x, y: tg.function(lambda a, b: tg.sin(a) * b)(x, y),
        *([None, 3], [None, 3], "(4,3) (4,3)"),
    ),
    "concat": (lambda x, y: tg.concat([x, x], 0) * y, [None, 3], [None, 3], "(2,3) (4,3)"),
    "shifted": (lambda x, y: x[1:] * y, [None, 3], [None, 3], "(5,3) (4,3)"),
    "halves": (lambda x, y: x[: tg.shape(x)[0] // 2] * y, [None], [None], "(9,) (4,)"),
    "a constant": (lambda x, y: x * tg.ones([5]) + y, [None], [None], "(5,) (5,)"),
    "a name": (lambda x, y: x + y, ["rows"], ["columns"], "(6,) (6,)"),
    "a square": (lambda x, y: tg.linalg.inv(x) @ y, [None, None], [None, 1], "(3,3) (3,1)"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", TWO)
def test_sizes_that_are_taken_to_be_equal(name, gradient):
    f, left, right, shapes = TWO[name]
    f = tg.function(f)
    program = exported(f, tg.TensorSpec(left), tg.TensorSpec(right), gradient=gradient)
    shapes = [tuple(map(int, re.findall(r"\d+", shape))) for shape in shapes.split()]
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.5, 1.5, shape).astype(np.float32) for shape in shapes)
    wanted = f(x, y).numpy()
    seed = {"cotangent_output_0": np.ones_like(wanted)} if gradient and wanted.ndim else {}
    close(program.call(x=x, y=y, **seed)["output_0"], wanted, 1e-4)
    with pytest.raises(ValueError):
        program.call(x=x, y=np.concatenate([y, y]), **seed)


@pytest.mark.sweep
def test_an_equality_that_is_assumed_goes_with_what_is_stated():
    specs = tg.TensorSpec(["rows"]), tg.TensorSpec(["columns"])
    f = lambda x, y: tg.split(x + y, 2)[0]  # noqa: E731
    for stated in (
        *([], ["columns == rows"], ["rows == columns"], ["columns >= 2"], ["rows >= 2"]),
        *(["mod(columns, 2) == 0"], ["mod(rows, 2) == 0", "columns == rows"]),
        *(["columns == 4"], ["rows == 4"], ["columns == 4", "rows == columns"]),
    ):
        program = exported(f, *specs, constraints=stated)
        x = np.arange(4, dtype=np.float32)
        assert program.call(x=x, y=x)["output_0"].tolist() == [0.0, 2.0]
        for sizes in ((5, 5), (4, 6)):
            with pytest.raises(ValueError):
                program.call(**{k: np.ones(n, np.float32) for k, n in zip("xy", sizes)})
    three = lambda x: x + tg.ones([3])  # noqa: E731
    more = lambda: exported(three, specs[0], constraints=["rows >= 4"])  # noqa: E731
    assert HERE in raises(tg.errors.SignatureError, "Unsatisfiable", more)
    four = lambda: exported(three, specs[0], constraints=["rows == 4"])  # noqa: E731
    assert HERE in raises(tg.errors.ShapeError, r"f32\[4\] and f32\[3\]", four)


LARGE = {
    "an element": lambda x: x[3],
    "top_k": lambda x: tg.math.top_k(x, 4)[0],
    "slice": lambda x: tg.slice(x, tg.cast(x[:1], tg.int32), [4]),
    "gather": lambda x: tg.gather(x, [0, 3]),
    "convolution": lambda x: tg.nn.conv1d(x[None, :, None], tg.ones([4, 1, 1]), 1, "VALID"),
    "head": lambda x: x[:4] * tg.ones([4]),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LARGE)
def test_sizes_that_must_be_large_enough(name):
    f = tg.function(lambda x: tg.reduce_sum(LARGE[name](x) ** 2))
    for gradient in (False, True):
        program = exported(f, tg.TensorSpec([None]), gradient=gradient)
        for n in (4, 6):
            x = np.arange(n, dtype=np.float32)
            close(program.call(x=x)["output_0"], f(x))
        with pytest.raises((ValueError, ir.MLIRError)):
            program.call(x=np.ones(3, np.float32))


def test_a_constant_whose_size_is_open():
    v = tg.Variable(np.ones(3, np.float32), shape=tg.TensorShape([None]))
    program = exported(lambda x: x * v, tg.TensorSpec([None]))
    v.assign([1.0, 2.0])
    assert [str(x) for x in program.in_avals] == ["float32[3]"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["difference", "product"])
def test_saving_writes_programs_of_two_open_sizes(tmp_path, name):
    f, left, right, _ = TWO[name]
    f = tg.function(f, input_signature=[tg.TensorSpec(left), tg.TensorSpec(right)])
    options = tg.saved_model.SaveOptions(stablehlo="cpu")
    tg.saved_model.save(tg.Module(), tmp_path / "m", signatures=f, options=options)
    (path,) = (tmp_path / "m").rglob("*.stablehlo")
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    x, y = np.ones((3, 3), np.float32), np.full((3, 3), 2.0, np.float32)
    (found,) = program.call(x=x, y=y).values()
    close(found, f(x, y))


def test_what_python_was_told_of_sizes_is_no_silent_assumption():
    f = tg.function(lambda x: x if x.shape[0] == 3 else -x)
    spec = tg.TensorSpec(["n"])
    message = raises(tg.errors.LoweringError, "taken to differ", lambda: exported(f, spec))
    assert HERE in message and "constraints=['n >= 2']" in message
    program = exported(f, spec, constraints=["n >= 4"])
    np.testing.assert_array_equal(program.call(x=np.ones(5, np.float32))["output_0"], -np.ones(5))
    for n in (3, 4):
        x = np.ones(n, np.float32)
        np.testing.assert_array_equal(jax.jit(f.as_jax())(x), x if n == 3 else -x)


def test_what_holds_of_sizes_can_be_stated():
    spec = tg.TensorSpec(["batch"])
    halves = exported(lambda x: tg.split(x, 2), spec, constraints="mod(batch, 2) == 0")
    found = halves.call(x=np.arange(4, dtype=np.float32))
    assert [y.tolist() for y in found.values()] == [[0.0, 1.0], [2.0, 3.0]]
    with pytest.raises(ValueError):
        halves.call(x=np.arange(5, dtype=np.float32))
    fourth = exported(lambda x: x[3], spec, constraints=["batch >= 4"], gradient=True)
    assert fourth.call(x=np.arange(6, dtype=np.float32))["gradient_x"].tolist() == [
        0,
        0,
        0,
        1,
        0,
        0,
    ]
    for constraint in ("columns >= 2", "batch is 3"):
        call = lambda c=constraint: exported(lambda x: x, spec, constraints=[c])  # noqa: E731
        assert HERE in raises(tg.errors.TraceError, "not constraints of the sizes", call)


def test_what_cannot_be_exported():
    v = tg.Variable(0.0, name="counter")
    number = tg.TensorSpec([])
    refused = [
        (tg.errors.TraceError, "assigns the Variable 'counter'", lambda x: v.assign_add(x)),
        (tg.errors.TraceError, "prints when it runs", lambda x: tg.print(x)),
        (tg.errors.TraceError, "checks values", lambda x: tg.debugging.assert_positive(x)),
        (
            tg.errors.TraceError,
            "calls Python",
            lambda x: tg.numpy_function(np.sin, [x], tg.float32),
        ),
    ]
    for kind, words, body in refused:
        assert HERE in raises(kind, words, lambda body=body: exported(body, number))
    rank = lambda: exported(lambda x: x + 1.0, tg.TensorSpec(None))  # noqa: E731
    assert HERE in raises(tg.errors.ShapeError, "the rank of 'x'", rank)
    none = lambda: exported(lambda x: tg.argmax(x), tg.TensorSpec([3]), gradient=True)  # noqa: E731
    assert HERE in raises(tg.errors.GradientError, "no result is a floating tensor", none)
    for platforms, words in (
        (("gpu",), r"\['gpu'\]"),
        ("gpu", r"\['gpu'\]"),
        ((), r"\[\]"),
        (True, "True"),
    ):
        where = lambda p=platforms: exported(lambda x: x, number, platforms=p)  # noqa: E731
        assert HERE in raises(tg.errors.TraceError, f"platforms are {words}", where)
    second = lambda: exported(lambda x: x, number, gradient=2)  # noqa: E731
    message = raises(tg.errors.SignatureError, "gradient is 2, and it is True or False", second)
    assert HERE in message and "tg.hessian" in message
    assert exported(lambda x: x, number, platforms="cpu").platforms == ("cpu",)


class Inner(tg.Module):
    """Has state that its owner changes."""

    def __init__(self):
        super().__init__()
        self.w = tg.Variable(1.0)
        self.noise = tg.random.Generator.from_seed(1)


class Stateful(tg.Module):
    """Functions that do more than return their results."""

    def __init__(self):
        super().__init__()
        self.blocks = [Inner(), Inner()]

    @tg.function(input_signature=[tg.TensorSpec([])])
    def step(self, x):
        return self.blocks[1].w.assign_add(2.0 * x)

    @tg.function(input_signature=[tg.TensorSpec([])])
    def outer(self, x):
        return 2.0 * self.step(x)

    @tg.function(input_signature=[tg.TensorSpec([])])
    def draw(self, x):
        return x + self.blocks[0].noise.normal([])

    @tg.function(input_signature=[tg.TensorSpec([])])
    def put(self, x):
        self.blocks[0].w.assign(x)
        return x


def test_what_assigns_is_named_by_its_line_also_after_loading(tmp_path):
    module = Stateful()
    tg.saved_model.save(module, tmp_path / "m")
    lines = inspect.getsource(Stateful).split("\n")
    start = inspect.getsourcelines(Stateful)[1]
    line = lambda text: start + next(i for i, x in enumerate(lines) if text in x)  # noqa: E731
    wanted = {
        "step": ("blocks.1.w", line("assign_add(")),
        "outer": ("blocks.1.w", line("assign_add(")),
        "draw": ("blocks.0.noise.state", line(".normal(")),
    }
    for owner in (module, tg.saved_model.load(tmp_path / "m")):
        for name, (variable, number) in wanted.items():
            f = getattr(owner, name)
            for call in (lambda f=f: exported(f), lambda f=f: f.as_jax()(1.0)):
                message = raises(tg.errors.TraceError, f"the Variable '{variable}'", call)
                end = ")" if isinstance(owner, LoadedModule) else ":"
                assert f"{HERE}:{number}{end}" in message
        message = raises(tg.errors.TraceError, "'blocks.0.w'", lambda o=owner: exported(o.put))
        assert f"{HERE}:" in message and "saved_model" not in message


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    call = lambda: exported(lambda x: x, tg.TensorSpec([3]))  # noqa: E731
    assert r"tracegraph[export]" in raises(tg.errors.LoweringError, "flatbuffers", call)


def test_an_independent_interpreter_agrees():
    compiler = pytest.importorskip("iree.compiler")
    runtime = pytest.importorskip("iree.runtime")
    f = tg.function(lambda x, w: tg.reduce_sum(tg.tanh(x @ w)))
    program = exported(
        f, tg.TensorSpec([3, 4]), tg.TensorSpec([4, 3]), gradient=True, platforms=("cpu",)
    )
    binary = compiler.compile_str(
        program.mlir_module(), input_type="stablehlo", target_backends=["llvm-cpu"]
    )
    module = runtime.load_vm_flatbuffer(binary, driver="local-task")
    x, _ = batch(3)
    found = [np.asarray(y) for y in module.main(W, x)]
    wanted = program.call(x=x, w=W)
    for a, name in zip(found, sorted(wanted), strict=True):
        close(a, wanted[name], 1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        lambda x: x[::2] * 2.0,
        lambda x: tg.sin(x[1::3]) * 3.0 + x[1::3],
        lambda x: tg.concat([x[::2], x[1::2]], 0) * 2.0,
        lambda x: tg.recompute_grad(tg.sin)(x[::2]) * tg.ones_like(x[::2]),
    ],
)
def test_quotients_of_open_sizes_are_one_size_however_jax_writes_them(body, gradient):
    f = tg.function(body, input_signature=[tg.TensorSpec([None])])
    program = exported(f, gradient=gradient)
    for size in (4, 7):
        x = np.linspace(0.1, 1.2, size, dtype=np.float32)
        y = f(tg.constant(x))
        seeds = {"cotangent_output_0": np.ones(y.shape, np.float32)} if gradient else {}
        found = program.call(x=x, **seeds)
        np.testing.assert_allclose(found["output_0"], y, rtol=1e-6)
        if gradient:
            expected = tg.grad(lambda x: tg.reduce_sum(body(x)))(tg.constant(x))
            np.testing.assert_allclose(found["gradient_x"], expected, rtol=1e-6)


def test_bytes_do_not_depend_on_the_line_that_exports():
    f = tg.function(lambda x: tg.math.lgamma(x) * -x, input_signature=[tg.TensorSpec([None])])
    first = tg.export.stablehlo(f, gradient=True)
    second = tg.export.stablehlo(f, gradient=True)
    assert first == second


def taken_twice(x):
    a, b = tg.split(x, 2)
    return a * x[::2] + b


EQUAL_BY_HALVES = {
    "reshape": lambda x, y: tg.reshape(x, [-1, 2]) + tg.reshape(y, [-1, 2]),
    "split": lambda x, y: tg.split(x, 2)[0] + tg.split(y, 2)[0],
    "once": lambda x, y: taken_twice(x),
}


@pytest.mark.parametrize("name", EQUAL_BY_HALVES)
def test_what_jax_cannot_state_is_exported_or_refused_with_its_line(name):
    f = tg.function(EQUAL_BY_HALVES[name], input_signature=[tg.TensorSpec([None])] * 2)
    x = np.arange(6, dtype=np.float32)
    try:
        program = exported(f)
    except tg.errors.LoweringError as error:
        assert f"at {__file__}" in str(error) and "fix: " in str(error)
    else:
        close(program.call(x=x, y=x)["output_0"], f(x, x))


def test_gradients_through_calls_that_take_sizes_to_be_equal():
    @tg.custom_gradient
    def squared(x):
        return x * x, lambda g: g * 3.0 * x

    f = tg.function(lambda x, y: tg.reduce_sum(squared(x[1:]) + squared(y)))
    program = exported(f, tg.TensorSpec([None]), tg.TensorSpec([None]), gradient=True)
    x, y = np.arange(4, dtype=np.float32), np.arange(3, dtype=np.float32)
    found = program.call(x=x, y=y)
    close(found["gradient_x"], [0.0, 3.0, 6.0, 9.0])
    close(found["gradient_y"], 3.0 * y)
