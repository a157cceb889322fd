"""Optimizers, with Keras' names and formulae: Modules whose state is in Variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tracegraph.api.absent import refuse_attribute
from tracegraph.array.arguments import as_flag, as_list, as_number, refuse, refuse_kind
from tracegraph.array.creation import zeros
from tracegraph.boundary.tracebacks import asked
from tracegraph.core.tensorshape import shape_of
from tracegraph.core.types import DType, float32, int32
from tracegraph.differentiation.tape import GradientTape
from tracegraph.errors import DTypeError, GradientError, SignatureError, counted, fail, kind_of
from tracegraph.ir.builder import at_top_level, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.arithmetic import add, clip_by_value, maximum, multiply, pow, subtract
from tracegraph.math.norms import clip_by_global_norm, clip_by_norm
from tracegraph.math.unary import sqrt, square
from tracegraph.operands.conversion import as_tensor, cast_to, has_dtype, promoted
from tracegraph.signatures.signature import parameters_of
from tracegraph.state.deferred import announce
from tracegraph.state.module import Module, settings_text
from tracegraph.state.variable import Reference, Variable
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import current_trace, init_scope

if TYPE_CHECKING:
    from tracegraph.typing import Rate, TensorLike


class Optimizer(Module):
    """The base class: clips gradients, decays weights, and asks `update_step` for each variable.

    - `learning_rate`: a float, a Variable, or a function of nothing or of `iterations`. A float
      is kept in a Variable, so `optimizer.learning_rate = 0.01` changes it without a new trace.
    - `weight_decay`: after each step w is w - w * weight_decay * learning_rate.
    - `clipnorm`, `clipvalue`, `global_clipnorm`: bounds of the norm of each gradient, of each of
      its elements, or of the norm of all of them together; at most one.

    `iterations` counts the steps. State is made when a variable is seen first.

    Raises DTypeError (a TypeError) for a setting that is no number, and SignatureError (a
    ValueError) for one that is out of its range: below zero, or a `beta` of 1 or more.
    """

    #: The names of the variables that go with each variable.
    slot_names: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        bounds = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
        given = [
            self._number(what, bound, low=0) for what, bound in bounds.items() if bound is not None
        ]
        if len(given) > 1 or 0 in given:
            fail(
                SignatureError,
                f"clipnorm is {clipnorm}, clipvalue {clipvalue}, global_clipnorm {global_clipnorm}",
                fix="give at most one of them, and a positive number",
            )
        is_decaying = weight_decay is not None
        self.weight_decay = (
            self._number("weight_decay", weight_decay, low=0) if is_decaying else None
        )
        self.clipnorm, self.clipvalue, self.global_clipnorm = clipnorm, clipvalue, global_clipnorm
        with at_top_level():
            self.iterations = _state(0, "iteration", int32)
            self._learning_rate = self._as_rate(learning_rate)
        self._slots: dict[Reference, tuple[Variable, ...]] = {}
        # Whoever has the slots without the class, as after loading, has their names so.
        self.slot_names = self.slot_names

    if not TYPE_CHECKING:

        @asked
        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, ("iterations", "_learning_rate", "_slots"))

    def _number(self, what: str, value: Any, **bounds: float) -> Any:
        return as_number(type(self).__name__, what, value, **bounds)

    def _ordered_attributes(self) -> list[tuple[str, Any]]:
        return list(vars(self).items())

    def __repr__(self) -> str:
        """The class, its settings that are no defaults, the steps taken, and whose state it has:
        `<Adam(learning_rate=0.01): 3 steps, state of 2 variables>`."""
        head = settings_text(self, f"learning_rate={self._rate_text()}")
        state = f"state of {counted(len(self._slots), 'variable')}"
        if current_trace() is not None:  # when nothing has a value
            return f"<{head}: {state}>"
        steps = counted(int(self.iterations.numpy()), "step")
        return f"<{head}: {steps}, {state}>"

    def _rate_text(self) -> str:
        rate = self._learning_rate
        if isinstance(rate, Variable):
            return "a Variable" if current_trace() is not None else f"{float(rate.numpy()):.6g}"
        return getattr(rate, "__name__", type(rate).__name__)

    @property
    def learning_rate(self) -> Any:
        """The learning rate now: a Variable, or what the function that was given returns."""
        return rate_at(self._learning_rate, self.iterations)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if isinstance(self._learning_rate, Variable) and not callable(value):
            self._learning_rate.assign(self._checked_rate(value))
        else:
            self._learning_rate = self._as_rate(value)

    def _as_rate(self, value: Any) -> Any:
        """What a rate is kept as: a Variable, or the function that was given."""
        if callable(value) and not isinstance(value, Variable):
            return value
        rate = self._checked_rate(value)
        return rate if isinstance(rate, Variable) else _state(rate, "learning_rate", float32)

    def _checked_rate(self, value: Any) -> Any:
        """A learning rate: a number of zero or more, or one in a tensor or Variable, whose value
        may not be known yet. Raises DTypeError or SignatureError for another."""
        if not hasattr(value, "dtype") or isinstance(value, np.generic):
            return self._number("the learning rate", value, low=0)
        rate = as_tensor(value)
        if rate.type.shape != () or not (rate.dtype.is_floating or rate.dtype.is_integer):
            rule = "the learning rate is one real number"
            refuse_kind(type(self).__name__, rule, value, fix="use a float, such as 0.001")
        if not isinstance(value, Variable) and current_trace() is None:
            self._number("the learning rate", float(rate.numpy()), low=0)
        return value

    def build(self, variables: Iterable[Variable]) -> None:
        """Makes the state of the variables now rather than at their first step."""
        for variable in as_list("build", "variables", variables):
            self._slots_of(_checked_variable(variable, "variables are tg.Variables"))

    def _slots_of(self, variable: Variable) -> tuple[Variable, ...]:
        variable = variable.actual()
        key = variable.ref()
        found = self._slots.get(key)
        if found is None:
            # They outlive the trace that asks first, and are no part of what it computes.
            with init_scope():
                start = zeros(variable.shape, variable.dtype)  # type: ignore[attr-defined]
                found = tuple(
                    _state(start, f"{variable.base_name}_{name}") for name in self.slot_names
                )
            self._slots[key] = found
            announce(self, kept_for=variable)
        return found

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Variable]], name: str | None = None
    ) -> Variable:
        """Takes one step: `optimizer.apply_gradients(zip(gradients, variables))`.

        A variable whose gradient is None is left as it is.
        Raises GradientError (a ValueError) if all gradients are None. Returns `iterations`.
        """
        pairs = _checked_pairs(grads_and_vars)
        connected = [(_checked_gradient(g, v), v) for g, v in pairs if g is not None]
        if not connected:
            fail(
                GradientError,
                "there is no gradient for any variable: "
                + (", ".join(told_name(v) for _, v in pairs) or "none was given"),
                fix="compute the loss from the variables, inside of the tape's block",
            )
        gradients = self._clipped([g for g, _ in connected])
        rate = as_tensor(self.learning_rate)
        factors: dict[DType, Any] = {}
        for gradient, (_, variable) in zip(gradients, connected):
            dtype = variable.dtype
            if dtype not in factors:
                factors[dtype] = self.step_factors(cast_to(rate, dtype), dtype)
            self._step(gradient, variable, cast_to(rate, dtype), factors[dtype])
        return self.iterations.assign_add(1)

    def minimize(
        self,
        loss: TensorLike | Callable[[], TensorLike],
        var_list: Iterable[Variable],
        tape: Any = None,
    ) -> Variable:
        """Takes one step down: the gradients of `loss`, and `apply_gradients`.

        - `loss`: a function of nothing that returns it, or what was computed inside of `tape`.

        Raises GradientError (a ValueError) for a computed loss without its tape. Returns
        `iterations`.

        >>> v = tg.Variable([1.0, 2.0])
        >>> _ = tg.optimizers.SGD(0.25).minimize(lambda: tg.reduce_sum(v * v), [v])
        >>> v.numpy()
        array([0.5, 1. ], dtype=float32)
        """
        variables = as_list("minimize", "var_list", var_list)
        if callable(loss):
            with tape or GradientTape() as tape:
                tape.watch([_checked_variable(v, "var_list has tg.Variables") for v in variables])
                loss = loss()
        elif tape is None:
            fail(
                GradientError,
                f"minimize: the loss is {kind_of(loss)}, and there is no tape that saw it",
                fix="give a function: minimize(lambda: loss_of(x), variables), or tape=tape",
            )
        return self.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def _clipped(self, gradients: list[Tensor]) -> Sequence[Tensor]:
        if self.clipnorm is not None:
            return [clip_by_norm(g, self.clipnorm) for g in gradients]
        if self.clipvalue is not None:
            return [clip_by_value(g, -self.clipvalue, self.clipvalue) for g in gradients]
        if self.global_clipnorm is not None:
            return clip_by_global_norm(gradients, self.global_clipnorm)[0]  # type: ignore[return-value]
        return gradients

    def _step(self, gradient: Tensor, variable: Variable, rate: Tensor, factors: Any) -> None:
        value = variable.read_value()
        if self.weight_decay:
            value = subtract(value, multiply(multiply(value, self.weight_decay), rate))
        new = self.update_step(gradient, value, self._slots_of(variable), factors)
        if variable.constraint is not None:
            new = variable.constraint(new)
        variable.assign(new)

    def step_factors(self, rate: Tensor, dtype: DType) -> Any:
        """What a step needs of the rate and the iterations, computed once for each dtype."""
        return rate

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: tuple[Variable, ...], factors: Any
    ) -> Tensor:
        """The new value of a variable; assigns the new values of its slots."""
        raise NotImplementedError


def is_optimizer(module: Module) -> bool:
    """Whether a module is an optimizer, or one that was loaded, which has its attributes alone."""
    return vars(module).keys() >= ATTRIBUTES


#: What every optimizer keeps, beside the `_learning_rate` if that is no Python function.
ATTRIBUTES = frozenset(("iterations", "_slots", "slot_names"))


def rate_at(rate: Any, iterations: Variable) -> Any:
    """A learning rate after so many steps: a Variable, or what a function returns."""
    if isinstance(rate, Variable):
        return rate
    return rate(iterations) if _takes_an_argument(rate) else rate()


def _checked_pairs(grads_and_vars: Any) -> list[tuple[Any, Variable]]:
    """The pairs of gradient and variable. Raises DTypeError for what is none."""
    rule = "grads_and_vars are pairs of a gradient and a tg.Variable"
    if isinstance(grads_and_vars, (str, bytes, dict)) or not isinstance(grads_and_vars, Iterable):
        refuse_kind("apply_gradients", rule, grads_and_vars, fix=_PAIRS)
    pairs = list(grads_and_vars)
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            refuse_kind("apply_gradients", rule, pair, fix=_PAIRS)
        _checked_variable(pair[1], "the second of a pair is a tg.Variable")
    return pairs


def _checked_variable(variable: Any, rule: str) -> Variable:
    if not isinstance(variable, Variable):
        refuse_kind("optimizer", rule, variable, fix=_PAIRS)
    return variable


_PAIRS = "give pairs of gradient and variable: zip(gradients, variables)"


def _checked_gradient(gradient: Any, variable: Variable) -> Tensor:
    """The gradient as a tensor of the variable's shape, whose dtype has room for it.

    Raises ShapeError or DTypeError for another.
    """
    own = variable.tensor_type
    is_typed = has_dtype(gradient)
    g = as_tensor(gradient, None if is_typed else own.dtype)
    fact = f"the gradient {g.type} of the variable {told_name(variable)} of {own}"
    if not shape_of(g.type.shape).is_compatible_with(shape_of(own.shape)):
        refuse("apply_gradients", fact, g, fix="give each variable its own gradient")
    if promoted(g.dtype, own.dtype) is not own.dtype:
        fail(
            DTypeError,
            f"apply_gradients: {fact}",
            operands=[operand_text(g)],
            fix=f"convert it: tg.cast(gradient, tg.{own.dtype.name})",
        )
    return g


def _state(value: Any, name: str, dtype: DType | None = None) -> Variable:
    """A variable of the optimizer's own, named as Keras names it."""
    variable = Variable(value, trainable=False, name=name, dtype=dtype)
    variable.has_plain_name = True
    return variable


def _takes_an_argument(function: Any) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds and p.default is p.empty for p in parameters_of(function).values())


class SGD(Optimizer):
    """Gradient descent: w - learning_rate * g.

    With momentum, m = momentum * m - learning_rate * g, and w + m; with `nesterov` too,
    w + momentum * m - learning_rate * g.

    >>> v = tg.Variable([1.0, 2.0])
    >>> _ = tg.optimizers.SGD(0.5).apply_gradients([(tg.constant([1.0, 1.0]), v)])
    >>> v.numpy()
    array([0.5, 1.5], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay, clipnorm, clipvalue, global_clipnorm, name)
        self.momentum = self._number("momentum", momentum, low=0, high=1)
        self.nesterov = as_flag("SGD", "nesterov", nesterov)
        self.slot_names = ("momentum",) if momentum else ()

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: tuple[Variable, ...], factors: Tensor
    ) -> Tensor:
        step = multiply(gradient, factors)
        if not slots:
            return subtract(value, step)
        (momentum,) = slots
        moved = subtract(multiply(momentum, self.momentum), step)
        momentum.assign(moved)
        if self.nesterov:
            return add(value, subtract(multiply(moved, self.momentum), step))
        return add(value, moved)


class Adam(Optimizer):
    """Steps of running means: w - a * m / (sqrt(v) + epsilon), with

    m = m + (g - m) * (1 - beta_1), v = v + (g ** 2 - v) * (1 - beta_2), and
    a = learning_rate * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t) at step t.

    `amsgrad` takes the largest v so far.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014), in the form with
    the corrections inside of the rate.

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.Adam(0.5).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.5], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay, clipnorm, clipvalue, global_clipnorm, name)
        self.beta_1 = self._number("beta_1", beta_1, low=0, below=1)
        self.beta_2 = self._number("beta_2", beta_2, low=0, below=1)
        self.epsilon = self._number("epsilon", epsilon, low=0)
        self.amsgrad = as_flag("Adam", "amsgrad", amsgrad)
        hats = ("velocity_hat",) if self.amsgrad else ()
        self.slot_names = ("momentum", "velocity", *hats)

    def step_factors(self, rate: Tensor, dtype: DType) -> Tensor:
        step = cast_to(add(self.iterations, 1), dtype)
        first, second = (pow(as_tensor(beta, dtype), step) for beta in (self.beta_1, self.beta_2))
        return rate * sqrt(1 - second) / (1 - first)  # type: ignore[operator]

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: tuple[Variable, ...], factors: Tensor
    ) -> Tensor:
        momentum, velocity, *rest = slots
        m = _towards(momentum, gradient, 1 - self.beta_1)
        v = _towards(velocity, square(gradient), 1 - self.beta_2)
        if rest:
            v = maximum(rest[0], v)
            rest[0].assign(v)
        return subtract(value, multiply(m, factors) / add(sqrt(v), self.epsilon))  # type: ignore[operator]


def _towards(variable: Variable, target: Tensor, share: float) -> Tensor:
    """Moves the variable by a share of the way to the target; returns its new value."""
    old = variable.read_value()
    new = add(old, multiply(subtract(target, old), share))
    variable.assign(new)
    return new


class AdamW(Adam):
    """Adam with weight decay: w is w - w * weight_decay * learning_rate before each step.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).

    >>> v = tg.Variable([1.0])
    >>> _ = tg.optimizers.AdamW(0.5, weight_decay=0.1).apply_gradients([(tg.constant([2.0]), v)])
    >>> v.numpy().round(4)
    array([0.45], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float | None = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            amsgrad,
            weight_decay,
            clipnorm,
            clipvalue,
            global_clipnorm,
            name,
        )


__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
