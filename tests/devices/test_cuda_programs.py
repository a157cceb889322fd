"""Whole programs lowered for CUDA on a machine that has none: training steps, loops, Jacobians,
saved models, programs cut at callbacks.

`jax.export` writes what the program would run there, with the same donations. XLA's compiler for
GPUs does not run here: these tests say that each program has a lowering, and which rules it chose.
"""

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest

import tracegraph as tg
from lowering import forms
from lowering.program import shape_struct
from tracegraph.core.types import TensorType
from tracegraph.core.worker_thread import on_worker_thread

#: Calls into the libraries of CPUs, which no GPU makes.
OF_CPUS = re.compile(r"lapack_|cpu_|_cpu\b")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def imported(example, *packages):
    for package in packages:
        pytest.importorskip(package)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.setattr(sys, "excepthook", sys.excepthook)  # which the examples replace
        return importlib.import_module(example)


def programs_of(function, *specs):
    """The programs of a run: several where it is cut at an effect."""
    types = tuple(TensorType(spec.dtype, tuple(spec.shape)) for spec in specs)
    execution = function.get_concrete_function(*specs).execution(types)
    procedure = execution._procedure
    return [execution.program] if procedure is None else procedure.programs()


def for_platform(program, platform="cuda"):
    """The StableHLO of a program for a platform, by `jax.export`."""
    structs = [shape_struct(type) for type in program.graph.input_types]

    def export():
        with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
            patch.setattr(forms, "_has_only_cpus", lambda: False)
            return jax.export.export(program._new_jitted(), platforms=[platform])(*structs)

    exported = on_worker_thread(export)  # where programs are traced
    assert exported.platforms == (platform,)
    return exported.mlir_module()


def for_cuda(function, *specs):
    """The only program of a function, for CUDA."""
    (program,) = programs_of(function, *specs)
    return checked(for_platform(program))


def checked(text):
    """The text, if it calls nothing that CPUs alone have."""
    assert not [name for name in targets_in(text) if OF_CPUS.search(name)]
    return text


def targets_in(text):
    return set(re.findall(r"custom_call @([\w.$]+)", text))


def donated_in(text):
    """How many arguments the program may overwrite."""
    return len(re.findall(r"tf\.aliasing_output|jax\.buffer_donor", text))


# Training steps.


@pytest.mark.parametrize("kind", [pytest.param("mlp", marks=pytest.mark.sweep), "cnn"])
def test_the_steps_of_train_digits(kind):
    digits = imported("train_digits", "matplotlib", "sklearn", "tqdm")
    model = digits.make_model(kind)
    train_step, predict = digits.make_steps(model, tg.optimizers.Adam(0.001))
    images, labels = tg.TensorSpec([64, 8, 8, 1]), tg.TensorSpec([64], tg.int32)
    text = for_cuda(train_step, images, labels)
    assert donated_in(text) >= 3 * len(model.trainable_variables)  # with Adam's two means
    assert ("stablehlo.convolution" in text) == (kind == "cnn")
    assert "stablehlo.dot_general" in for_cuda(predict, images)


def test_the_functions_of_train_transformer(monkeypatch):
    language = imported("train_transformer", "matplotlib", "tqdm")
    monkeypatch.setattr(language, "LAYERS", 1)
    tokens = np.arange(1_000, dtype=np.int32) % 20
    text = language.Text(None, tokens, tokens, 0.5)
    model = language.Transformer(vocabulary=20, width=32)
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": 1}), [None, None])
    functions = language.make_functions(model, language.make_optimizer(10), text, 2, layout)
    train_step, held_out_loss, write = functions
    assert donated_in(for_cuda(train_step)) > 3 * len(model.trainable_variables)
    assert "stablehlo.dot_general" in for_cuda(held_out_loss)
    assert "stablehlo.while" in for_cuda(write, tg.TensorSpec([1, 4], tg.int32))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "short"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_a_step_of_attention_in_narrow_types(dtype, short):
    layer = tg.layers.MultiHeadAttention(2, 8, dtype=dtype)
    optimizer = tg.optimizers.SGD(0.1)

    @tg.function
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.square(layer(x, x, use_causal_mask=True)))
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    text = for_cuda(step, tg.TensorSpec([2, 6, 16], dtype))
    products = re.findall(r"stablehlo\.dot_general.* -> tensor<[\dx]*x(\w+)>", text)
    assert len(products) > 10 and set(products) == {short}


def test_a_gradient_that_recomputes():
    block = tg.recompute_grad(lambda x: tg.sin(tg.exp(x)))

    @tg.function
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.reduce_sum(block(x))
        return tape.gradient(y, x)

    text = for_cuda(slope, tg.TensorSpec([4]))
    assert "stablehlo.optimization_barrier" in text  # XLA may not merge what is computed again


# Loops and derivatives.


def test_an_lstm_with_its_gradient():
    layer = tg.layers.LSTM(4)

    @tg.function
    def gradients(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_sum(layer(x))
        return loss, tape.gradient(loss, layer.trainable_variables)

    text = for_cuda(gradients, tg.TensorSpec([2, 9, 3]))
    assert text.count("stablehlo.while") == 2  # forward, and back


def test_a_while_with_its_gradient():
    @tg.function
    def slope(x, count):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.while_loop(lambda i, y: i < count, lambda i, y: (i + 1, tg.sin(y)), (0, x))[1]
        return tape.gradient(y, x)

    text = for_cuda(slope, tg.TensorSpec([]), tg.TensorSpec([], tg.int32))
    assert "stablehlo.while" in text and "stablehlo.cosine" in text


def test_a_branch_with_its_gradient():
    @tg.function
    def slope(x):
        with tg.GradientTape() as tape:
            tape.watch(x)
            y = tg.cond(tg.reduce_sum(x) > 0, lambda: tg.exp(x), lambda: tg.tanh(x))
        return tape.gradient(y, x)

    text = for_cuda(slope, tg.TensorSpec([3]))
    assert "stablehlo.case" in text or "stablehlo.if" in text


def test_jacobian_and_hessian():
    kernel = tg.Variable(tg.ones([3, 3]))

    @tg.function
    def derivatives(x):
        with tg.GradientTape() as outer:
            with tg.GradientTape(persistent=True) as tape:
                y = tg.tanh(x @ kernel)
                loss = tg.reduce_sum(y * y)
            gradient = tape.gradient(loss, kernel)
        return tape.jacobian(y, kernel), outer.jacobian(gradient, kernel)

    text = for_cuda(derivatives, tg.TensorSpec([2, 3]))
    (results,) = re.findall(r"func public @main\(.*?\) -> \((.*)\) \{", text)
    assert "tensor<2x3x3x3xf32>" in results and "tensor<3x3x3x3xf32>" in results


# What is saved, and what is cut.


def test_a_saved_step_is_loaded_and_lowered(tmp_path):
    module = tg.Module()
    module.w = tg.Variable(tg.ones([3]))

    @tg.function(input_signature=[tg.TensorSpec([None, 3])])
    def step(x):
        with tg.GradientTape() as tape:
            loss = tg.reduce_mean(tg.square(tg.linalg.matvec(x, module.w)))
        module.w.assign_sub(0.1 * tape.gradient(loss, module.w))
        return loss

    module.step = step
    tg.saved_model.save(module, tmp_path / "model")
    loaded = tg.saved_model.load(tmp_path / "model")
    text = for_cuda(loaded.step, tg.TensorSpec([5, 3]))
    assert donated_in(text) == 1


def test_a_step_with_callbacks_is_lowered_in_parts():
    v = tg.Variable(tg.zeros([2]))

    @tg.function
    def step(x):
        v.assign_add(tg.sin(x))
        y = tg.py_function(lambda x: x, [tg.exp(x)], tg.TensorSpec([2]))
        v.assign_add(tg.cos(y))
        tg.print("v is", v)
        return tg.reduce_sum(v)

    texts = [checked(for_platform(x)) for x in programs_of(step, tg.TensorSpec([2]))]
    assert len(texts) > 1
    assert "stablehlo.sine" in texts[0] and "stablehlo.cosine" in texts[-1]
    assert not any("callback" in target for text in texts for target in targets_in(text))


# Rules that differ by device.


def test_a_convolution_is_the_library_s():
    """On CPUs it is computed by slices and products where that was measured to be faster."""
    f = tg.function(lambda x, y: tg.nn.conv2d(x, y, 1, "SAME"))
    shapes = [4, 28, 28, 16], [3, 3, 16, 16]
    (program,) = programs_of(f, *[tg.TensorSpec(shape, tg.float64) for shape in shapes])
    cuda, cpu = for_platform(program), for_platform(program, "cpu")
    assert "stablehlo.convolution" in cuda and "stablehlo.while" not in cuda
    assert "stablehlo.convolution" not in cpu and "stablehlo.while" in cpu


def test_a_running_logsumexp_is_a_tree():
    """On CPUs rows are added one after the other. (A sum is XLA's own scan since JAX 0.12.)"""
    f = tg.function(lambda x: tg.math.cumulative_logsumexp(x, axis=0))
    (program,) = programs_of(f, tg.TensorSpec([4, 256]))
    assert "stablehlo.while" not in for_platform(program)
    assert "stablehlo.while" in for_platform(program, "cpu")


def test_linear_algebra_calls_the_library_of_the_device():
    @tg.function
    def f(a):
        return tg.linalg.cholesky(a), tg.linalg.qr(a), tg.linalg.svd(a), tg.linalg.solve(a, a)

    (program,) = programs_of(f, tg.TensorSpec([4, 4]))
    assert any(OF_CPUS.search(name) for name in targets_in(for_platform(program, "cpu")))
    assert any("solver" in name for name in targets_in(checked(for_platform(program))))


def test_random_numbers_do_not_come_from_the_device():
    """A generator of XLA's may draw other numbers on other devices."""
    text = for_cuda(
        tg.function(lambda seed: tg.random.stateless_normal([4], seed)),
        tg.TensorSpec([2], tg.int32),
    )
    assert "stablehlo.xor" in text and "stablehlo.rng" not in text
