"""`tg.export`: traced functions as programs for other tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracegraph.api.absent import publish
from tracegraph.archive.directory import as_path, write_output
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.shapes import ShapeVariable
from tracegraph.core.source import sourced
from tracegraph.eager import backend
from tracegraph.errors import GradientError, ShapeError, SignatureError, TraceError, fail, shown
from tracegraph.execution.jax_function import constants, pure_graph
from tracegraph.functions.concrete import ConcreteFunction
from tracegraph.functions.function import Function, function
from tracegraph.ir.builder import Builder, copy_inputs, replay
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.ops.broadcast import full
from tracegraph.passes.gradient import gradient as gradients_of
from tracegraph.passes.simplify import simplify
from tracegraph.signatures.signature import leaf_paths, told_apart
from tracegraph.state.module import Module

__all__ = ["stablehlo"]


@api_boundary
def stablehlo(
    f: Callable[..., Any] | Module,
    *args: Any,
    path: str | os.PathLike[str] | None = None,
    gradient: bool = False,
    platforms: str | Sequence[str] = ("cpu", "cuda"),
    constraints: str | Sequence[str] = (),
    **kwargs: Any,
) -> bytes:
    """Exports a traced function as StableHLO: the bytes that `jax.export.deserialize` reads.

    - `f`: a `tg.function`, a ConcreteFunction, a loaded signature, a Module whose `__call__` is one
      of these, or a Python function, which is traced.
    - `args`, `kwargs`: TensorSpecs or values, as for `get_concrete_function`. Sizes that are None
      or named stay open, and are at least 1. They may be omitted if `f` has an `input_signature`
      or a single trace.
    - `path`: a file to write the bytes to. If that fails with an OSError, the file is unchanged.
    - `gradient`: whether to also return the gradients with respect to the floating arguments, by
      our rules and in TensorFlow's convention for complex numbers. Unless the result is a single
      real number, the program takes a cotangent for each floating result.
    - `platforms`: the platforms it will run on, "cpu" or several. None of them needs to be present.
    - `constraints`: what open sizes satisfy, one or several in JAX's syntax: "batch >= 2",
      "mod(batch, 2) == 0", "rows == columns". Assumptions of the graph, such as that two sizes are
      equal, are added. A call that violates one is an error.

    The program takes its arguments by name and returns a dict. Arguments are named after the
    parameters, with the path inside a container ("params_weights"), or after their TensorSpecs.
    Results in a dict have its keys, others are "output_0" and so on. The gradient for the argument
    "x" is "gradient_x", and cotangents are "cotangent_output_0" etc. Other readers find both in the
    order of their sorted names.

    Variables and captured tensors become constants of the program, with their present values. JAX
    keeps exports readable for 6 months, and for 3 weeks for readers older than the writer: keep the
    graph, and export it again.

    Raises TraceError for a function that does more than return its results, ShapeError for an
    open rank, and LoweringError, with the user's line, for an op that must know an open size.

    >>> import jax.export
    >>> mean = tg.function(lambda x: tg.reduce_mean(x * x))
    >>> data = tg.export.stablehlo(mean, tg.TensorSpec([None]), gradient=True)
    >>> program = jax.export.deserialize(bytearray(data))
    >>> {name: y.tolist() for name, y in program.call(x=np.float32([1, 2])).items()}
    {'gradient_x': [1.0, 2.0], 'output_0': 2.5}
    """
    _check_gradient(gradient)
    concrete = _concrete(f, args, kwargs)
    graph = pure_graph(concrete, may_print=False)
    file = None if path is None else as_path("stablehlo", path)
    names = told_apart(concrete.keywords)
    _check_ranks(concrete, names)
    results = _result_names(concrete)
    if gradient:
        graph, names, results = _with_gradients(graph, concrete.name, names, results)
    held = constants(concrete, concrete.variables)
    kinds, known = ((x,) if isinstance(x, str) else x for x in (platforms, constraints))
    data = backend.stablehlo(graph, names, held, results, kinds, known)
    if file is not None:
        write_output(file, data)
    return data


def _check_gradient(gradient: Any) -> None:
    if not isinstance(gradient, (bool, np.bool_)):
        fail(
            SignatureError,
            f"stablehlo: gradient is {shown(gradient)}, and it is True or False",
            fix="export a derivative of higher order as the function that computes it, such as "
            "tg.hessian(f)",
        )


def _concrete(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConcreteFunction:
    called = _called(f)
    if isinstance(called, ConcreteFunction) and not args and not kwargs:
        return called
    traced = called if isinstance(called, Function) else function(called)
    if args or kwargs or traced.input_signature is not None or _takes_nothing(traced):
        return traced.get_concrete_function(*args, **kwargs)
    return _only_trace(traced)


def _called(f: Any) -> Any:
    """The object that runs when f is called: for a Module, its `__call__` function."""
    call = f.__call__ if isinstance(f, Module) and callable(f) else None
    return call if isinstance(call, (Function, ConcreteFunction)) else f


def _takes_nothing(traced: Function) -> bool:
    """Whether a function can be called without arguments."""
    try:
        traced.signature.parameters.bind()
    except outside_interrupts(TypeError):
        return False
    return True


def _only_trace(traced: Function) -> ConcreteFunction:
    """The only trace of a function. Raises TraceError if it has none, or several."""
    if len(traced.traces) == 1:
        return traced.traces[0]
    known = traced.pretty_printed_concrete_signatures(verbose=False).replace("\n\n", "\n    ")
    fail(
        TraceError,
        f"stablehlo: no arguments are given for {traced.name}, which has "
        + (f"several traces\n    {known}" if known else "no trace yet"),
        fix="give TensorSpecs after the function, or declare an input_signature",
    )


def _check_ranks(concrete: ConcreteFunction, names: Sequence[str]) -> None:
    for name, type in zip(names, concrete.argument_types, strict=True):
        if isinstance(type.shape, ShapeVariable):
            fail(
                ShapeError,
                f"{concrete.name}: the rank of {name!r}, {type}, is open, and a program needs it",
                fix="give the rank: tg.TensorSpec([None, None])",
            )


def _result_names(concrete: ConcreteFunction) -> list[str]:
    count = concrete.traced.result_count
    paths = leaf_paths(concrete.results.pack(range(count)))
    names = [""] * count
    for path, place in paths:
        is_named = path and not path[0].isdigit()
        names[place] = "_".join(path if is_named else ("output", *(path or ("0",))))
    return told_apart(names)


def _with_gradients(
    graph: Graph, name: str, names: Sequence[str], results: Sequence[str]
) -> tuple[Graph, list[str], list[str]]:
    """The graph with gradients among its outputs, and the names of arguments and results."""
    places = [i for i, x in enumerate(graph.inputs[: len(names)]) if _is_floating(x)]
    targets = [i for i, y in enumerate(graph.outputs) if _is_floating(y)]
    if not places or not targets:
        what = "argument" if not places else "result"
        fail(
            GradientError,
            f"{name}: no {what} is a floating tensor, so it has no gradient",
            fix="export it without gradient=True",
        )
    types = [y.type for y in graph.outputs]
    is_scalar = len(types) == 1 and types[0].shape == () and types[0].dtype.is_floating
    seeded = [] if is_scalar else targets
    with Builder(f"{graph.name}_gradient") as builder:
        env = copy_inputs(graph, builder)
        seeds = [builder.input(graph.outputs[i].type, f"g{i}") for i in seeded]
        replay(graph.nodes, env)
        ys = [env[y] for y in graph.outputs]
        xs = [env[graph.inputs[i]] for i in places]
        with sourced(graph.outputs[targets[0]].source):  # keeps bytes independent of the exporter
            found = gradients_of(builder.nodes, [ys[i] for i in targets], xs, seeds or None)
            found = [full(0, x.type) if g is None else g for g, x in zip(found, xs, strict=True)]
    arguments = builder.inputs[: len(names)]
    rest = builder.inputs[len(names) : len(graph.inputs)]
    inputs, outputs = (*arguments, *seeds, *rest), (*ys, *found)
    return (
        simplify(Graph(builder.name, inputs, tuple(builder.nodes), outputs)),
        [*names, *(f"cotangent_{results[i]}" for i in seeded)],
        [*results, *(f"gradient_{names[i]}" for i in places)],
    )


def _is_floating(x: Tensor) -> bool:
    return x.type.dtype.is_differentiable


publish(__name__)
