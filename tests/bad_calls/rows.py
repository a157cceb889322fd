"""Calls that are wrong in a way of their own: operands that do not fit each other, functions that
return what they must not, state, names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tracegraph as tg
from tests.bad_calls.calls_programs import VARIABLE, array
from tests.bad_calls.row import DTYPE, GRADIENT, SHAPE, TRACE, VALUE, Row, rows


def square(x: Any) -> Any:
    return x * x


def total(x: Any) -> Any:
    return tg.reduce_sum(x * x)


def no_function(path: str, function: Callable[..., Any]) -> list[Row]:
    """What is not a function in the place of one."""
    return rows(
        path,
        (lambda: function(5), TRACE, "5"),
        (lambda: function("text"), TRACE, "text"),
        (lambda x: function(x), TRACE, "f32[2,3]"),
    )


def no_fit(path: str, function: Callable[..., Any]) -> list[Row]:
    """Two operands that do not broadcast, or do not mix."""
    return rows(
        path,
        (lambda x, y: function(x, y), SHAPE, "f32[2,3]", "f32[2,2]"),
        (lambda x, i: function(x, i), DTYPE, "float32", "int32"),
        (lambda x, b: function(x, b[:, None]), DTYPE, "bool"),
    )


BINARY = "add divide maximum minimum multiply pow squared_difference subtract less greater equal"
LOGICAL = "logical_and logical_or logical_xor"
SIGNS = "negative non_negative non_positive positive"

ROWS: list[Row] = [
    *(row for name in BINARY.split() for row in no_fit(name, getattr(tg, name))),
    *(
        row
        for name in ("grad", "value_and_grad", "hessian", "jacobian", "vmap")
        for row in no_function(name, getattr(tg, name))
    ),
    *no_function("custom_gradient", tg.custom_gradient),
    *no_function("grad_pass_through", tg.grad_pass_through),
    *no_function("recompute_grad", tg.recompute_grad),
    *no_function("from_jax", tg.from_jax),
    *no_function("optimizers.from_optax", tg.optimizers.from_optax),
    *no_function("function", tg.function),
    *no_function("autograph.do_not_convert", tg.autograph.do_not_convert),
    *no_function("autograph.to_code", tg.autograph.to_code),
    *rows(
        "grad",
        (lambda x: tg.grad(square)(x), GRADIENT, "f32[2,3]"),
        (lambda i: tg.grad(total)(i), DTYPE, "i32[3]"),
        (lambda x: tg.grad(total, argnums=3)(x), GRADIENT, "3"),
        (lambda x: tg.grad(total, has_aux=True)(x), GRADIENT, "has_aux"),
    ),
    *rows(
        "jvp",
        (lambda x, y: tg.jvp(square, [x], [y]), GRADIENT, "f32[2,3]", "f32[2,2]"),
        (lambda x: tg.jvp(square, [x], [x, x]), GRADIENT, "1", "2"),
        (lambda x: tg.jvp(5, [x], [x]), TRACE, "5"),
    ),
    *rows(
        "hvp",
        (lambda x, y: tg.hvp(total, [x], [y]), GRADIENT, "f32[2,3]", "f32[2,2]"),
        (lambda x: tg.hvp(square, [x], [x]), GRADIENT, "f32[2,3]"),
        (lambda x: tg.hvp(5, [x], [x]), TRACE, "5"),
    ),
    *rows(
        "vjp",
        (lambda x: tg.vjp(5, x), TRACE, "5"),
        (lambda x, y: tg.vjp(square, x)[1](y), GRADIENT, "f32[2,3]", "f32[2,2]"),
        (lambda x: tg.vjp(square, x)[1]("text"), GRADIENT, "text"),
    ),
    *rows(
        "linearize",
        (lambda x: tg.linearize(5, x), TRACE, "5"),
        (lambda x, y: tg.linearize(square, x)[1](y), GRADIENT, "f32[2,3]", "f32[2,2]"),
        (lambda x: tg.linearize(square, x)[1]("text"), GRADIENT, "text"),
    ),
    *rows(
        "gradients",
        (lambda x: tg.gradients(None, x), GRADIENT),
        (lambda x: tg.gradients(total(x), 5.0), GRADIENT),
        (lambda x, y: tg.gradients(total(x), x, grad_ys=y), VALUE),
        (lambda x: tg.gradients(total(x), x, unconnected_gradients="no"), VALUE),
    ),
    *rows(
        "hessians",
        (lambda x: tg.hessians(None, x), GRADIENT),
        (lambda x: tg.hessians(total(x), 5.0), GRADIENT),
        (lambda x: tg.hessians("text", x), GRADIENT),
    ),
    *rows(
        "GradientTape",
        (lambda: tg.GradientTape("text"), DTYPE, "persistent", "text"),
        (lambda: tg.GradientTape(watch_accessed_variables=5), DTYPE, "5"),
        (lambda: tg.GradientTape().watch(5.0), VALUE, "5.0"),
        (lambda x: tg.GradientTape().gradient(x, x), VALUE, "GradientTape"),
    ),
    *rows(
        "autodiff.ForwardAccumulator",
        (lambda x, y: tg.autodiff.ForwardAccumulator(x, y), VALUE, "f32[2,3]", "f32[2,2]"),
        (lambda x: tg.autodiff.ForwardAccumulator([x], [x, x]), VALUE, "structure"),
        (lambda x: tg.autodiff.ForwardAccumulator([x, x], [x, x]), VALUE, "twice"),
    ),
    *rows(
        "pfor",
        (lambda: tg.pfor(5, 2), TRACE, "5"),
        (lambda: tg.pfor(lambda i: i, -1), SHAPE, "-1"),
        (lambda: tg.pfor(lambda i: i, "text"), DTYPE, "text"),
    ),
    *rows(
        "vmap",
        (lambda x: tg.vmap(square, in_axes=5)(x), SHAPE, "5", "2 axes"),
        (lambda s: tg.vmap(square)(s), SHAPE, "f32[]"),
        (lambda x, v: tg.vmap(lambda a, b: a)(x, v), SHAPE, "2", "4"),
    ),
    *rows(
        "vectorized_map",
        (lambda x: tg.vectorized_map(5, x), TRACE, "5"),
        (lambda s: tg.vectorized_map(square, s), SHAPE, "f32[]"),
        (lambda x, v: tg.vectorized_map(lambda z: z, (x, v)), SHAPE, "2", "4"),
    ),
    *(
        row
        for name in ("map_fn", "foldl", "foldr", "scan")
        for row in rows(
            name,
            (lambda x, name=name: getattr(tg, name)(5, x), TRACE, "5"),
            (lambda s, name=name: getattr(tg, name)(lambda *z: z[0], s), SHAPE, "f32[]"),
            (
                lambda x, v, name=name: getattr(tg, name)(lambda *z: z[0], (x, v)),
                SHAPE,
                "2",
                "4",
            ),
        )
    ),
    *rows(
        "cond",
        (lambda x: tg.cond(x, lambda: x, lambda: x), DTYPE, "f32[2,3]", "bool"),
        (lambda b, x, y: tg.cond(b[0], 5, lambda: x), TRACE, "5"),
        (lambda b, x: tg.cond(b[0], lambda: x, lambda: [x, x]), TRACE, "*"),
        (lambda b, x, i: tg.cond(b[0], lambda: x, lambda: i), TRACE, "f32[2,3]", "i32[3]"),
    ),
    *rows(
        "case",
        (lambda: tg.case([]), VALUE, "case"),
        (lambda x: tg.case(x), DTYPE, "f32[2,3]"),
        (lambda b, x: tg.case([(b[0], 5)], default=lambda: x), TRACE, "5"),
    ),
    *rows(
        "switch_case",
        (lambda i, x: tg.switch_case(i[0], []), VALUE, "switch_case"),
        (lambda s, x: tg.switch_case(s, [lambda: x]), DTYPE, "f32[]"),
        (lambda i, x: tg.switch_case(i[0], [5]), TRACE, "5"),
    ),
    *rows(
        "while_loop",
        (lambda x: tg.while_loop(5, square, [x]), TRACE, "5"),
        (lambda x: tg.while_loop(lambda z: z, square, [x]), DTYPE, "f32[2,3]", "bool"),
        (lambda s: tg.while_loop(lambda z: z < 3, lambda z: [z, z], [s]), TRACE, "while_loop"),
        (
            lambda s: tg.while_loop(lambda z: z < 3, lambda z: tg.cast(z, tg.int32), [s]),
            DTYPE,
            "f32[]",
            "i32[]",
        ),
        (
            lambda s: tg.while_loop(lambda z: z < 3, square, [s], maximum_iterations="text"),
            DTYPE,
            "text",
        ),
    ),
    *(
        row
        for name in ("py_function", "numpy_function")
        for row in rows(
            name,
            (lambda x, name=name: getattr(tg, name)(5, [x], tg.float32), TRACE, "5"),
            (lambda x, name=name: getattr(tg, name)(square, [x], "no"), DTYPE, "no"),
            (lambda x, name=name: getattr(tg, name)(square, ["a"], tg.float32), DTYPE, "'a'"),
        )
    ),
    *rows(
        "group",
        (lambda: tg.group(5), DTYPE, "5"),
        (lambda: tg.group("text"), DTYPE, "text"),
        (lambda: tg.group(print), DTYPE, "print"),
    ),
    *rows(
        "control_dependencies",
        (lambda: entered(tg.control_dependencies(5)), DTYPE, "5"),
        (lambda: entered(tg.control_dependencies("text")), DTYPE, "text"),
        (lambda x: entered(tg.control_dependencies(x)), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "Assert",
        (lambda x: tg.Assert(x, [x]), DTYPE, "f32[2,3]"),
        (lambda s: tg.Assert(s, [s]), DTYPE, "f32[]"),
        (lambda: tg.Assert("text", []), DTYPE, "text"),
    ),
    *rows(
        "as_dtype",
        (lambda: tg.as_dtype("no"), DTYPE, "no"),
        (lambda: tg.as_dtype(5), DTYPE, "5"),
        (lambda: tg.as_dtype(None), DTYPE, "None"),
    ),
    *rows(
        "Module",
        (lambda: tg.Module("1a"), VALUE, "1a"),
        (lambda: tg.Module(5), VALUE, "5"),
        (lambda: tg.Module("a b"), VALUE, "a b"),
    ),
    *rows(
        "name_scope",
        (lambda: entered(tg.name_scope(5)), DTYPE, "5"),
        (lambda: entered(tg.name_scope(None)), DTYPE, "None"),
        (lambda x: entered(tg.name_scope(x)), DTYPE, "Tensor"),
    ),
    *rows(
        "RegisterGradient",
        (lambda: tg.RegisterGradient(5), TRACE, "5"),
        (lambda: tg.RegisterGradient(None), TRACE, "None"),
        (lambda: tg.RegisterGradient("OfNothing")(5), TRACE, "5"),
    ),
    *rows(
        "no_gradient",
        (lambda: tg.no_gradient(5), TRACE, "5"),
        (lambda: tg.no_gradient(None), TRACE, "None"),
        (lambda x: tg.no_gradient(x), TRACE, "Tensor"),
    ),
    *rows(
        "IndexedSlices",
        (lambda: VARIABLE.scatter_add(tg.IndexedSlices("text", [0])), DTYPE, "text"),
        (lambda x: VARIABLE.scatter_add(tg.IndexedSlices(x, [0.5, 1.5])), DTYPE, "f32[2]"),
        (lambda y: VARIABLE.scatter_add(tg.IndexedSlices(y, [0, 1])), SHAPE, "f32[2,2]"),
    ),
    *rows(
        "TensorShape",
        (lambda: tg.TensorShape("text"), SHAPE, "text"),
        (lambda: tg.TensorShape([-7]), SHAPE, "-7"),
        (lambda: tg.TensorShape([1.5]), SHAPE, "1.5"),
        (lambda: tg.TensorShape([2]).assert_is_compatible_with([3]), SHAPE, "2", "3"),
        (lambda: tg.TensorShape([2]).with_rank(2), SHAPE, "1", "2"),
    ),
    *rows(
        "TensorSpec",
        (lambda: tg.TensorSpec([-7]), SHAPE, "-7"),
        (lambda: tg.TensorSpec([1.5]), SHAPE, "1.5"),
        (lambda: tg.TensorSpec([2], "no"), DTYPE, "no"),
    ),
    *rows(
        "Variable",
        (lambda: tg.Variable(), VALUE, "initial_value"),
        (lambda: tg.Variable("text"), DTYPE, "text"),
        (lambda: tg.Variable([1.0, 2.0], shape=[3]), SHAPE, "[2]", "[3]"),
        (lambda: tg.Variable([1.5], dtype=tg.int32), DTYPE, "int32"),
        (lambda: tg.Variable([1.5], dtype="no"), DTYPE, "no"),
    ),
    *rows(
        "Variable().assign",
        (lambda y: VARIABLE.assign(y), SHAPE, "f32[2,2]", "f32[2,3]"),
        (lambda i: VARIABLE.assign(i), DTYPE, "int32", "float32"),
        (lambda v: VARIABLE[5:].assign(v), SHAPE, "f32[4]"),
        (lambda x: VARIABLE.assign_add(x[0]), SHAPE, "f32[3]", "f32[2,3]"),
    ),
    *rows(
        "TensorArray().write",
        (lambda v: array().write(0, v), SHAPE, "f32[4]", "f32[3]"),
        (lambda i: array().write(0, i), DTYPE, "int32", "float32"),
        (lambda v: array().write(7, v[:3]), VALUE, "7", "2"),
        (lambda: array().read(7), VALUE, "7", "2"),
        (lambda: array().read(-1), VALUE, "-1"),
    ),
    *rows(
        "get_static_value",
        (lambda: tg.get_static_value("text"), DTYPE, "text"),
        (lambda: tg.get_static_value(object), DTYPE, "object"),
        (lambda: tg.get_static_value({1}), DTYPE, "set"),
    ),
    *rows(
        "random.Generator",
        (lambda i: tg.random.Generator(state=i), SHAPE, "i32[3]"),
        (lambda: tg.random.Generator("text"), DTYPE, "text"),
        (lambda: tg.random.Generator(None), DTYPE, "None"),
        (lambda x: tg.random.Generator(x), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "random.set_global_generator",
        (lambda: tg.random.set_global_generator(5), DTYPE, "5"),
        (lambda: tg.random.set_global_generator(None), DTYPE, "None"),
        (lambda x: tg.random.set_global_generator(x), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "config.run_functions_eagerly",
        (lambda: tg.config.run_functions_eagerly("text"), DTYPE, "text"),
        (lambda: tg.config.run_functions_eagerly(5), DTYPE, "5"),
        (lambda x: tg.config.run_functions_eagerly(x), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "config.set_compile_notes",
        (lambda: tg.config.set_compile_notes("text"), DTYPE, "text"),
        (lambda: tg.config.set_compile_notes(5), DTYPE, "5"),
        (lambda x: tg.config.set_compile_notes(x), DTYPE, "Tensor"),
    ),
    *rows(
        "config.set_compilation_cache",
        (lambda: tg.config.set_compilation_cache(5), TRACE, "5"),
        (lambda: tg.config.set_compilation_cache([]), TRACE, "[]"),
        (lambda x: tg.config.set_compilation_cache(x), TRACE, "Tensor"),
    ),
    *rows(
        "config.set_soft_device_placement",
        (lambda: tg.config.set_soft_device_placement("text"), DTYPE, "text"),
        (lambda: tg.config.set_soft_device_placement(5), DTYPE, "5"),
        (lambda x: tg.config.set_soft_device_placement(x), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "config.list_physical_devices",
        (lambda: tg.config.list_physical_devices(5), VALUE, "5"),
        (lambda: tg.config.list_physical_devices(["GPU"]), VALUE, "['GPU']"),
        (lambda x: tg.config.list_physical_devices(x), VALUE, "Tensor"),
    ),
    *rows(
        "config.list_logical_devices",
        (lambda: tg.config.list_logical_devices(5), VALUE, "5"),
        (lambda: tg.config.list_logical_devices(["GPU"]), VALUE, "['GPU']"),
        (lambda x: tg.config.list_logical_devices(x), VALUE, "Tensor"),
    ),
    *rows(
        "device",
        (lambda: tg.device("abacus"), VALUE, "abacus"),
        (lambda: tg.device("cpu:99"), VALUE, "there is no device 'cpu:99'"),
        (lambda: tg.device(5), VALUE, "an int"),
        (lambda x: tg.device(x), VALUE, "Tensor"),
    ),
    *rows(
        "distribute.initialize",
        (lambda: tg.distribute.initialize("nowhere", 2, 0), VALUE, "nowhere"),
        (lambda: tg.distribute.initialize("a:1", 2, 2), VALUE, "process_id is 2"),
        (lambda: tg.distribute.initialize("a:1", "2", 0), VALUE, "num_processes is '2'"),
    ),
    *rows(
        "distribute.from_local",
        (lambda: tg.distribute.from_local([1.0], ["data"]), VALUE, "there is no mesh"),
        (lambda: tg.distribute.from_local([1.0], 5), VALUE, "5"),
        (lambda: tg.distribute.from_local(object, ["data"]), DTYPE, "object"),
    ),
    *(
        row
        for kind in ("activations", "constraints", "initializers", "regularizers")
        for row in rows(
            f"{kind}.get",
            (lambda kind=kind: getattr(tg, kind).get("no"), VALUE, "no"),
            (lambda kind=kind: getattr(tg, kind).get(5), (DTYPE, VALUE), "5"),
            (lambda kind=kind: getattr(tg, kind).get([1]), (DTYPE, VALUE), "[1]"),
        )
    ),
    *(
        row
        for name in SIGNS.split()
        for row in rows(
            f"debugging.assert_{name}",
            (lambda name=name: getattr(tg.debugging, f"assert_{name}")("text"), DTYPE, "text"),
            (lambda name=name: getattr(tg.debugging, f"assert_{name}")({1}), DTYPE, "set"),
            (lambda b, name=name: getattr(tg.debugging, f"assert_{name}")(b), DTYPE, "bool[2]"),
        )
    ),
    *(
        row
        for name in ("equal", "greater", "greater_equal", "less", "less_equal", "near")
        for row in rows(
            f"debugging.assert_{name}",
            (
                lambda x, y, name=name: getattr(tg.debugging, f"assert_{name}")(x, y),
                SHAPE,
                "f32[2,3]",
                "f32[2,2]",
            ),
            (
                lambda x, i, name=name: getattr(tg.debugging, f"assert_{name}")(x, i),
                DTYPE,
                "float32",
                "int32",
            ),
            (
                lambda x, name=name: getattr(tg.debugging, f"assert_{name}")(x, "text"),
                DTYPE,
                "text",
            ),
        )
    ),
    *rows(
        "debugging.assert_none_equal",
        (lambda x, y: tg.debugging.assert_none_equal(x, y), SHAPE, "f32[2,3]", "f32[2,2]"),
        (lambda x, i: tg.debugging.assert_none_equal(x, i), DTYPE, "float32", "int32"),
        (lambda x: tg.debugging.assert_none_equal(x, "text"), DTYPE, "text"),
    ),
    *(
        row
        for name in ("assert_all_finite", "check_numerics")
        for row in rows(
            f"debugging.{name}",
            (lambda name=name: getattr(tg.debugging, name)("text", "m"), DTYPE, "text"),
            (lambda i, name=name: getattr(tg.debugging, name)(i, "m"), DTYPE, "i32[3]"),
            (lambda b, name=name: getattr(tg.debugging, name)(b, "m"), DTYPE, "bool[2]"),
        )
    ),
    *rows(
        "debugging.assert_proper_iterable",
        (lambda: tg.debugging.assert_proper_iterable(5), DTYPE, "5"),
        (lambda: tg.debugging.assert_proper_iterable("text"), DTYPE, "text"),
        (lambda x: tg.debugging.assert_proper_iterable(x), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "debugging.assert_scalar",
        (lambda x: tg.debugging.assert_scalar(x), SHAPE, "f32[2,3]"),
        (lambda v: tg.debugging.assert_scalar(v), SHAPE, "f32[4]"),
        (lambda: tg.debugging.assert_scalar("text"), DTYPE, "text"),
    ),
    *rows(
        "debugging.assert_shapes",
        (lambda x: tg.debugging.assert_shapes([(x, (2, 2))]), SHAPE, "f32[2,3]", "2"),
        (lambda x: tg.debugging.assert_shapes([(x, (2,))]), SHAPE, "f32[2,3]"),
        (lambda x, v: tg.debugging.assert_shapes([(x, ("N", 3)), (v, ("N",))]), SHAPE, "4"),
        (lambda: tg.debugging.assert_shapes(5), DTYPE, "5"),
    ),
    *rows(
        "debugging.dump_graphs",
        (lambda: entered(tg.debugging.dump_graphs(5)), DTYPE, "5"),
        (lambda: entered(tg.debugging.dump_graphs(None)), DTYPE, "None"),
        (lambda x: entered(tg.debugging.dump_graphs(x)), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "nest.map_structure",
        (lambda x: tg.nest.map_structure(5, x), TRACE, "5"),
        (lambda x: tg.nest.map_structure(max, [x], [x, x]), VALUE, "1", "2"),
        (lambda: tg.nest.map_structure(max), VALUE, "map_structure"),
    ),
    *rows(
        "nest.pack_sequence_as",
        (lambda: tg.nest.pack_sequence_as([1, 2], [1]), VALUE, "2", "1"),
        (lambda: tg.nest.pack_sequence_as([1], [1, 2]), VALUE, "2", "1"),
        (lambda: tg.nest.pack_sequence_as([1], 5), DTYPE, "5"),
    ),
    *rows(
        "nest.assert_same_structure",
        (lambda: tg.nest.assert_same_structure([1], [1, 2]), VALUE, "1"),
        (lambda: tg.nest.assert_same_structure([1], 1), VALUE, "1"),
        (lambda: tg.nest.assert_same_structure([1], {"a": 1}), (DTYPE, VALUE), "a"),
    ),
    *rows(
        "testing.check_gradients",
        (lambda: tg.testing.check_gradients(5, 1.0), (DTYPE, TRACE), "5"),
        (lambda: tg.testing.check_gradients(square, "text"), GRADIENT, "no argument"),
        (lambda x: tg.testing.check_gradients(square, x, order="text"), GRADIENT, "text"),
    ),
    *rows(
        "concat",
        (lambda x, y: tg.concat([x, y], 0), SHAPE, "f32[2,3]", "f32[2,2]"),
        (lambda x, i: tg.concat([x[0], i], 0), DTYPE, "float32", "int32"),
        (lambda x, v: tg.concat([x, v], 0), SHAPE, "f32[2,3]", "f32[4]"),
        (lambda: tg.concat([], 0), SHAPE, "concat"),
    ),
    *rows(
        "matmul",
        (lambda x, y: tg.matmul(x, x), SHAPE, "f32[2,3]"),
        (lambda x, i: tg.matmul(x, i), (SHAPE, DTYPE), "i32[3]"),
        (lambda x, v: tg.matmul(x, v), SHAPE, "f32[4]"),
    ),
    *rows(
        "reshape",
        (lambda x: tg.reshape(x, [4]), SHAPE, "f32[2,3]", "4"),
        (lambda x: tg.reshape(x, [-1, -1]), SHAPE, "-1"),
        (lambda x: tg.reshape(x, [-1, 4]), SHAPE, "f32[2,3]", "4"),
    ),
    *rows(
        "einsum",
        (lambda x: tg.einsum("ij,jk", x, x), SHAPE, "2", "3"),
        (lambda x: tg.einsum("ijk->i", x), SHAPE, "ijk"),
        (lambda x: tg.einsum("ij->k", x), VALUE, "k"),
    ),
    *rows(
        "nn.conv2d",
        (lambda image: tg.nn.conv2d(image, np.ones([2, 2, 5, 4]), 1, "SAME"), SHAPE, "3", "5"),
        (lambda image: tg.nn.conv2d(image, np.ones([9, 9, 3, 4]), 1, "VALID"), SHAPE, "4", "9"),
        (lambda image: tg.nn.conv2d(image, np.ones([2, 2, 3, 4]), 0, "SAME"), VALUE, "0"),
        (lambda image: tg.nn.conv2d(image, np.ones([2, 2, 3, 4]), [1, 2, 3], "SAME"), VALUE, "3"),
    ),
    *rows(
        "nn.softmax_cross_entropy_with_logits",
        (lambda x, y: tg.nn.softmax_cross_entropy_with_logits(x, y), SHAPE, "f32[2,3]", "f32[2,2]"),
        (lambda i: tg.nn.softmax_cross_entropy_with_logits(i, i), DTYPE, "i32[3]"),
        (lambda s: tg.nn.softmax_cross_entropy_with_logits(s, s), SHAPE, "f32[]"),
    ),
]


def entered(context: Any) -> None:
    with context:
        pass
