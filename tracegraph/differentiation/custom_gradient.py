"""Custom gradients: a Python function and its backward, traced together into one call node."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from tracegraph import nest
from tracegraph.autograph.scope import as_traced
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.calls.call import Call, as_tuple
from tracegraph.calls.custom_call import CustomCall
from tracegraph.calls.recompute import recomputed
from tracegraph.control_passes.hoist import Hoisted, hoisted
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import Source, caller_of
from tracegraph.core.types import TOKEN, TensorType
from tracegraph.effects.record import current_record, recorded_call
from tracegraph.errors import (
    DTypeError,
    GradientError,
    RuleTypeError,
    ShapeError,
    TraceError,
    counted,
    fact_of,
    fail,
    kind_of,
    shown,
)
from tracegraph.execution.execute import append_call, run_nested, run_recorded
from tracegraph.ir.builder import current
from tracegraph.ir.intern import interned
from tracegraph.ir.tensor import Graph, Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.ops.broadcast import full
from tracegraph.ops.shape import with_sizes
from tracegraph.passes.common_subexpressions import live_nodes
from tracegraph.passes.simplify import dead_code, simplify
from tracegraph.signatures.results import Results, result_leaves
from tracegraph.signatures.signature import Signature, parameters_of
from tracegraph.state.variable import ARRAYS, Variable, is_array
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import CallTrace, Trace, Traced, restored

if TYPE_CHECKING:
    from tracegraph.functions.function import Parameters, Result


class TracedAtCalls:
    """A function that is traced at every call, into one node with a backward graph."""

    def __init__(self, function: Callable[..., Any]) -> None:
        _check_callable(function)
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._place = caller_of(inspect.unwrap(function))
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else type(self)(self._function.__get__(instance, owner))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = _Arguments(self._function, self._name, args, kwargs)
        if not current().is_top_level:
            return self._call(arguments, run_nested)
        with recorded_call():
            return self._call(arguments, functools.partial(run_recorded, record=current_record()))

    def _call(self, arguments: _Arguments, call_with_effects: Callable[..., list[Tensor]]) -> Any:
        traced, results, op = restored(lambda: self._trace(arguments))
        given = traced, arguments.tensors, traced.variables
        if traced.graph.cuts_runs:
            return results.pack(call_with_effects(*given))
        return results.pack(append_call(lambda inputs: as_tuple(op(*inputs)), *given))

    def _new_trace(self) -> Trace:
        return CallTrace("lambda_" if self._name == "<lambda>" else self._name)

    def _called(self, trace: Trace, arguments: _Arguments) -> Any:
        """The function's result for arguments that belong to the trace."""
        pairs = zip(arguments.tensors, arguments.tensor_names, strict=True)
        given = [trace.argument(x.type, name) for x, name in pairs]
        trace.actual = arguments.tensors
        trace.copies.update(zip(given, arguments.tensors, strict=True))
        return arguments.called(as_traced(self._function, given), given)

    def _trace(self, arguments: _Arguments) -> tuple[Traced, Results, Call]:
        """The body, the structure of its results, and the op that computes them. A body with
        effects runs the effects first and then calls the op itself."""
        raise NotImplementedError


def _check_callable(function: Any) -> None:
    if not callable(function):
        fail(TraceError, f"{shown(function)} is not a callable object", fix="decorate a function")


class CustomGradient(TracedAtCalls):
    """A function with a user-defined gradient; see `tg.custom_gradient`."""

    #: The subject of error messages: the function, then the backward function it returned.
    _rule_place: Source

    def _trace(self, arguments: _Arguments) -> tuple[Traced, Results, Call]:
        with self._new_trace() as trace:
            value, backward = self._split(self._called(trace, arguments))
            leaves, structure = result_leaves(value, self._name, self._place)
            outputs = trace.admit_all(tuple(y for y in leaves if y is not None))
            trainable = [v for v in trace.variables if v.trainable]
            effects = _Effects(trace)
            seeds = _seeds(trace, outputs)
            trace.checks_bounds = False  # what computes gradients alone has no checks
            trace.actual = None  # there is no call yet that has these cotangents
            found = self._pulled(backward, outputs, seeds, trainable)
            self._check_pure(effects.next_place())
            sources = self._matched(*found, trace, arguments, trainable)
            gradients = trace.admit_all(tuple(sources.values()))
            traced = trace.traced(outputs)
        halves = hoisted(traced.graph, gradients)
        given_seeds = tuple(g for g in seeds if g is not None)
        pulled = Graph(
            f"{trace.name}_backward",
            (*halves.rest.inputs, *given_seeds),
            tuple(live_nodes(halves.others, gradients)),
            gradients,
        )
        body = interned(simplify(dead_code(halves.rest)))
        op = CustomCall(body, interned(simplify(pulled)), tuple(sources))
        return _called_in(traced, halves, op), Results(structure, leaves), op

    def _split(self, returned: Any) -> tuple[Any, Callable[..., Any]]:
        """The outputs and the backward function returned by the function."""
        self._rule_place = self._place
        is_pair = isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])
        if not is_pair:
            self._refuse(
                f"it returned {kind_of(returned)}, {shown(returned)}, and not a pair of outputs "
                "and a backward function",
                "return y, grad, where grad(dy) gives one gradient per argument",
                RuleTypeError,
            )
        rule = inspect.unwrap(returned[1])
        self._rule_place = caller_of(rule) if hasattr(rule, "__code__") else self._place
        return returned

    def _pulled(
        self,
        backward: Callable[..., Any],
        outputs: Sequence[Tensor],
        seeds: Sequence[Tensor | None],
        trainable: Sequence[Variable],
    ) -> tuple[list[Any], list[Any]]:
        """What the backward function returns: gradients of the arguments and of the variables."""
        upstream = [full(0, y.type) if g is None else g for g, y in zip(seeds, outputs)]
        if not trainable or not _accepts_variables(backward):
            self._check_takes(backward, upstream, {})
            return nest.flatten(backward(*upstream)), [None] * len(trainable)
        self._check_takes(backward, upstream, {"variables": list(trainable)})
        returned = backward(*upstream, variables=list(trainable))
        if not isinstance(returned, tuple) or len(returned) != 2:
            self._refuse(
                f"its backward function returned {kind_of(returned)}, and not a pair of "
                "gradients and variable gradients",
                "return (gradients, variable_gradients)",
            )
        return nest.flatten(returned[0]), nest.flatten(list(returned[1]))

    def _check_takes(
        self, backward: Callable[..., Any], upstream: Sequence[Tensor], keywords: dict[str, Any]
    ) -> None:
        try:
            inspect.signature(backward).bind(*upstream, **keywords)
        except outside_interrupts(ValueError):
            # A function written in C, which does not say what it takes.
            return
        except outside_interrupts(TypeError) as error:
            self._refuse(
                f"its backward function does not take {counted(len(upstream), 'cotangent')}, one "
                f"for each output: {error}",
                "let it take one argument for each output",
            )

    def _check_pure(self, place: Source | None) -> None:
        """Rejects a side effect: derivatives are graphs, which may be called anywhere and any
        number of times."""
        if place is not None:
            fail(
                GradientError,
                f"custom gradient {self._name}: its backward function prints, checks, calls Python "
                "or assigns a Variable",
                source=place,
                fix="let it compute gradients alone, and print or check the gradients outside",
            )

    def _matched(
        self,
        found: Sequence[Any],
        by_variable: Sequence[Any],
        trace: Trace,
        arguments: _Arguments,
        trainable: Sequence[Variable],
    ) -> dict[int, Tensor]:
        """The gradients, keyed by the position of the graph input that each belongs to."""
        aligned = arguments.aligned(found)
        if aligned is None:
            self._refuse(
                f"its backward function returned {counted(len(found), 'gradient')} for "
                f"{counted(arguments.count, 'argument')}",
                "return one gradient for each argument, None where there is none",
            )
        found = aligned
        if len(by_variable) != len(trainable):
            self._refuse(
                f"its backward function returned {counted(len(by_variable), 'variable gradient')} "
                f"for {counted(len(trainable), 'variable')}",
                "return one gradient for each of `variables`, None where there is none",
            )
        count = len(arguments.tensors)
        places = [count + _place_of(v, trace.variables) for v in trainable]
        types = [v.tensor_type for v in trainable]
        rows = [
            *zip(range(count), found, (x.type for x in arguments.tensors), arguments.tensor_names),
            *zip(places, by_variable, types, trainable),
        ]
        return {
            place: self._gradient(g, type, source)
            for place, g, type, source in rows
            if g is not None and type.dtype.is_differentiable
        }

    def _gradient(self, given: Any, type: TensorType, source: str | Variable) -> Tensor:
        """The gradient given for the argument of that name, or for a Variable."""
        try:
            g = as_tensor(given, None if isinstance(given, (Tensor, Variable)) else type.dtype)
        except (DTypeError, ShapeError) as error:
            name = _name_of(source)
            self._refuse(f"its gradient of {name!r} is not a tensor: {fact_of(error)}")
        if not g.type.fits(type):
            name = _name_of(source)
            self._refuse(f"its gradient of {name!r} is {g.type}, and the argument is {type}")
        return with_sizes(g, type.shape)

    def _refuse(
        self,
        fact: str,
        fix: str = "return a gradient of the shape and dtype of each argument",
        error: type[Exception] = GradientError,
    ) -> NoReturn:
        fail(error, f"custom gradient {self._name}: {fact}", source=self._rule_place, fix=fix)


def _name_of(source: str | Variable) -> str:
    return told_name(source) if isinstance(source, Variable) else source


class Recomputed(TracedAtCalls):
    """A function whose intermediate values are recomputed for its gradient; see
    `tg.recompute_grad`."""

    def _trace(self, arguments: _Arguments) -> tuple[Traced, Results, Call]:
        with self._new_trace() as trace:
            value = self._called(trace, arguments)
            leaves, structure = result_leaves(value, self._name, self._place)
            traced = trace.traced([y for y in leaves if y is not None])
        halves = hoisted(simplify(traced.graph), keeps_values=False)
        op = recomputed(interned(halves.rest), traced.result_count)
        return _called_in(traced, halves, op), Results(structure, leaves), op


def _called_in(traced: Traced, halves: Hoisted, op: Call) -> Traced:
    """The traced body, in which `op` computes everything but the effects. With effects, the graph
    calls the op after them; without, the body is the op's own."""
    graph = halves.around(op) if halves.effects else op.body
    return dataclasses.replace(traced, graph=interned(graph))


class _Arguments:
    """The arguments of a call: tensors, which have gradients, and values passed as they are."""

    def __init__(
        self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        signature = Signature(function, name)
        # Keywords that name positional parameters count as positional; defaults stay with the
        # function.
        args, self._kwargs = signature.bind_given(args, kwargs)
        self._leaves, self._structure = nest.flatten_structure((args, {}))
        self._places = [i for i, x in enumerate(self._leaves) if is_array(x)]
        names = signature.leaf_names(self._structure)
        #: The tensors passed only by name, in the order of the signature.
        ordered = dict.fromkeys((*signature.parameters.parameters, *self._kwargs))
        self._by_name = [x for x in ordered if isinstance(self._kwargs.get(x), Tensor)]
        last = [self._kwargs[name] for name in self._by_name]
        self.tensors = [*(as_tensor(self._leaves[i]) for i in self._places), *last]
        self.tensor_names = [*(names[i] for i in self._places), *self._by_name]
        self._is_last_followed = current().follows(last)
        everything = nest.flatten(list(args))
        numbers = [x for x in everything if _is_counted(x)]
        #: The number of arguments as a backward function may count them, numbers and arrays only or
        #: all of them; and the positions of the tensors among those.
        self._counts = {
            len(leaves): [i for i, x in enumerate(leaves) if is_array(x)]
            for leaves in (everything, numbers)
        }
        self.count = len(numbers) + len(last)

    def aligned(self, found: Sequence[Any]) -> list[Any] | None:
        """The gradients that belong to the tensors, out of those that a backward function returned;
        None if there are too many or too few. Those of keyword-only tensors come last, and may be
        omitted if no tape follows these tensors."""
        named = len(self._by_name)
        for count in (named,) if self._is_last_followed else (named, 0):
            first = len(found) - count
            if first in self._counts:
                rest = found[first:] or [None] * named
                return [*(found[i] for i in self._counts[first]), *rest]
        return list(found) if len(found) == len(self.tensors) else None

    def called(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """The function's result for these tensors."""
        leaves, count = list(self._leaves), len(self._places)
        for place, x in zip(self._places, tensors[:count], strict=True):
            leaves[place] = x
        args, _ = self._structure.pack(leaves)
        by_name = dict(zip(self._by_name, tensors[count:], strict=True))
        return function(*args, **{**self._kwargs, **by_name})


_NUMBERS = (bool, int, float, complex)


def _is_counted(leaf: Any) -> bool:
    """Whether a leaf of the arguments has a gradient, even if it is None."""
    return isinstance(leaf, (*ARRAYS, *_NUMBERS))


class _Effects:
    """The side effects of a trace so far, other than drawing random numbers."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._node_count, self._check_count = len(trace.nodes), len(trace.checks)
        self._token, self._assigned = trace.token, self._values()

    def _values(self) -> dict[int, Tensor | None]:
        """The values assigned to Variables."""
        states = {id(v): self._trace.states[id(v)] for v in self._trace.variables}
        random = {id(v) for v in self._trace.variables if v.is_random_state}
        return {k: x.value for k, x in states.items() if x.is_assigned and k not in random}

    def next_place(self) -> Source | None:
        """The source line of the next effect, if there was one."""
        trace = self._trace
        if trace.token is not self._token:
            new = trace.nodes[self._node_count :]
            return next(node.source for node in new if any(x.type is TOKEN for x in node.inputs))
        if len(trace.checks) > self._check_count:
            return trace.checks[self._check_count][0].source
        now = self._values()
        new = (x for k, x in now.items() if x is not None and x is not self._assigned.get(k))
        return next((x.source for x in new), None)


def _seeds(trace: Trace, outputs: Sequence[Tensor]) -> list[Tensor | None]:
    """An input for the cotangent of each differentiable output."""
    return [
        trace.input(y.type, f"g{i}") if y.dtype.is_differentiable else None
        for i, y in enumerate(outputs)
    ]


def _accepts_variables(backward: Callable[..., Any]) -> bool:
    parameters = parameters_of(backward).values()
    return any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters)


def _place_of(variable: Variable, variables: Sequence[Variable]) -> int:
    return next(i for i, other in enumerate(variables) if other is variable)


@overload
def custom_gradient(
    f: Callable[Parameters, tuple[Result, Callable[..., Any]]],
) -> Callable[Parameters, Result]: ...
@overload
def custom_gradient(
    f: None = None,
) -> Callable[
    [Callable[Parameters, tuple[Result, Callable[..., Any]]]], Callable[Parameters, Result]
]: ...
def custom_gradient(f: Callable[..., Any] | None = None) -> Any:
    """Decorates a function that defines its own gradient.

    `f(*args)` returns `(outputs, grad)`: a structure of tensors, and a function `grad(*upstream)`
    that takes one cotangent per output and returns one gradient per argument, in the order of the
    signature, or None for no gradient. If f reads trainable Variables, grad also takes
    `variables=`, a list of them, and returns `(gradients, variable_gradients)`.

    f and grad are traced together into one node with a backward graph; grad may use f's
    intermediate values directly. The same backward graph serves gradients of every order,
    Jacobians, `tg.vectorized_map` and, if it is linear in the cotangents, forward mode.

    - If f returns a dict, cotangents come in the order of sorted keys, as from `tg.nest.flatten`.
      The gradient of a dict argument is a dict with the same keys, in any order, or its values
      one after another in the order of sorted keys.
    - A gradient must have the shape and dtype of its argument; the gradient of a
      non-differentiable argument is ignored.
    - If grad does not take `variables`, the gradients of the Variables that f reads are None.
    - Arguments that are not arrays are passed through unchanged; numbers count as arguments, with
      gradient None.

    Raises GradientError (a ValueError) for mismatches, naming the line of the function.

    >>> @tg.custom_gradient
    ... def clip_gradient(x):
    ...     def grad(dy):
    ...         return tg.clip_by_value(dy, -1.0, 1.0)
    ...     return x, grad
    >>> x = tg.Variable(2.0)
    >>> with tg.GradientTape() as tape:
    ...     y = clip_gradient(x) * 10.0
    >>> tape.gradient(y, x).numpy()
    np.float32(1.0)
    """
    return custom_gradient if f is None else CustomGradient(f)


def recompute_grad(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wraps `f` so that it keeps no intermediate values for its gradient.

    They are recomputed when the gradient needs them, which saves memory at the cost of one more
    evaluation of f. Gradients flow to arguments, Variables and anything else f uses, in every
    order and mode.

    >>> layer = tg.recompute_grad(lambda x: tg.sin(tg.exp(x)))
    >>> float(tg.grad(layer)(0.0))
    0.5403...
    """
    return Recomputed(f)


def grad_pass_through(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wraps `f` with the gradient of the identity: the cotangent passes straight through.

    The result must have the shape and dtype of the first argument. Other arguments, and Variables
    that f reads, have no gradient.

    >>> step = tg.grad_pass_through(tg.sign)
    >>> float(tg.grad(step)(3.0))
    1.0
    """
    _check_callable(f)

    @functools.wraps(f)
    def passing(*args: Any, **kwargs: Any) -> Any:
        def backward(*upstream: Any, variables: Any = ()) -> Any:
            by_name = sum(isinstance(x, Tensor) for x in kwargs.values())
            count = sum(map(_is_counted, nest.flatten(list(args)))) + by_name
            gradients = [*upstream, *[None] * (count - len(upstream))]
            return (gradients, [None] * len(variables)) if variables else gradients

        return f(*args, **kwargs), backward

    return CustomGradient(passing)
