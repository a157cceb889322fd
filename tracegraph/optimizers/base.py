"""What all optimizers share: clipping, decay, running means, accumulation, and their state."""

from __future__ import annotations

import inspect
import math
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, Unpack

import numpy as np

from tracegraph.api.absent import refuse_attribute
from tracegraph.array.arguments import as_flag, as_list, as_number, refuse, refuse_kind
from tracegraph.array.creation import fill, ones_like, zeros_like
from tracegraph.array.indexing.selection import where
from tracegraph.boundary.tracebacks import api_boundary, asked
from tracegraph.control_flow.branches import cond
from tracegraph.core.interrupts import outside_interrupts
from tracegraph.core.source import here
from tracegraph.core.tensorshape import IndexedSlices, shape_of
from tracegraph.core.types import DType, bfloat16, float16, float32, int32
from tracegraph.differentiation.tape import GradientTape
from tracegraph.eager.slots import state_lock
from tracegraph.errors import (
    DTypeError,
    GradientError,
    HintError,
    SignatureError,
    counted,
    fail,
    first_few,
    kind_of,
    message,
    warn,
)
from tracegraph.ir.builder import at_top_level, operand_text
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import (
    add,
    clip_by_value,
    divide,
    floordiv,
    floormod,
    multiply,
    subtract,
)
from tracegraph.math.elementwise.logic import equal
from tracegraph.math.elementwise.unary import expm1, negative
from tracegraph.math.norms import clip_by_global_norm, clip_by_norm
from tracegraph.nest import map_structure
from tracegraph.operands.conversion import as_tensor, cast_to, has_dtype, promoted
from tracegraph.optimizers.rows import (
    Gradient,
    RowGradient,
    dense,
    dense_of,
    mapped,
    rows_of,
    updated_rows,
)
from tracegraph.optimizers.shared import DEFAULTS, Shared, takes_shared
from tracegraph.signatures.signature import parameters_of
from tracegraph.state.deferred import announce
from tracegraph.state.module import Module, WithSettings, in_scope, settings_text
from tracegraph.state.variable import Variable, VariableReference
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import current_trace, init_scope
from tracegraph.typing import LayoutLike, Rate, ShapeLike, TensorLike

#: What users give as a gradient.
Given: TypeAlias = TensorLike | IndexedSlices | None

#: The optimizers whose rate was read while a function was traced, which keeps reading it there.
_TRACED: weakref.WeakSet[Module] = weakref.WeakSet()
_KEPT = (
    "a traced step keeps the {} that it was traced with: {} is part of a trace. Set it before the "
    "first step, or decorate the step anew"
)

_OWN_STEP = (
    "write update_step(self, gradient, value, slots, factors), which returns the new values of the "
    "variable and of the slots that the class names in slot_names; factors is the learning rate"
)


class Optimizer(Module):
    """The base class: what all optimizers do with gradients around their `update_step`.

    - `learning_rate`: a float, a Variable, or a function of no arguments or of `iterations`, such
      as one from `tg.optimizers.schedules`. A float is stored in a Variable, so
      `optimizer.learning_rate = 0.01` takes effect without retracing. A function is called within
      the step, which keeps other threads from Variables, so it must not wait for one of them.
    - `weight_decay`: before each step, w becomes w - w * weight_decay * learning_rate.
    - `clipnorm`, `clipvalue`, `global_clipnorm`: bounds on the norm of each gradient, on each of
      its elements, or on the norm of all gradients together; at most one may be given.
    - `use_ema`: whether to keep a running mean of each variable: after each step,
      average = ema_momentum * average + (1 - ema_momentum) * w, starting from w itself. Every
      `ema_overwrite_frequency` steps, and in `finalize_variable_values`, w is set to the average.
    - `loss_scale_factor`: divides gradients, to undo the factor by which `minimize` or `scale_loss`
      multiplied the loss.
    - `gradient_accumulation_steps`: how many calls, 2 or more, contribute to the mean gradient of
      one step. The other calls change no variable.
    - `sparse_updates`: whether a step skips rows without a gradient, along with their slots: rows
      that `tg.IndexedSlices` do not name, or that are all 0 in a dense gradient. By default such
      rows have gradient 0, with which running means still move.

    `iterations` counts the calls of `apply_gradients`. State is created at a variable's first step.

    Raises DTypeError (a TypeError) for a setting that is not a number, and SignatureError (a
    ValueError) for one that is out of range: below zero, or a `beta` of 1 or more.
    """

    _holds_weights, _is_named_as_in_keras = False, True

    #: The names of the slots, the variables that each variable has beside it.
    slot_names: tuple[str, ...] = ()
    #: Whether each row of a step depends only on the same row of the operands.
    has_steps_of_rows = True

    @classmethod
    @api_boundary
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("update_step")
        if own is not None:
            _check_step(cls.__name__, own)

    @takes_shared
    def __init__(self, learning_rate: Rate = 0.001, **shared: Unpack[Shared]) -> None:
        given: dict[str, Any] = {**DEFAULTS, **shared}
        super().__init__(given["name"])
        self._set_bounds(given["clipnorm"], given["clipvalue"], given["global_clipnorm"])
        self.weight_decay = self._optional("weight_decay", given["weight_decay"])
        self.use_ema = as_flag(type(self).__name__, "use_ema", given["use_ema"])
        self.ema_momentum = self._number("ema_momentum", given["ema_momentum"], low=0, high=1)
        self.ema_overwrite_frequency = self._count(
            "ema_overwrite_frequency", given["ema_overwrite_frequency"], 1
        )
        scale = given["loss_scale_factor"]
        self.loss_scale_factor = self._optional("loss_scale_factor", scale, above=0)
        self.gradient_accumulation_steps = self._count(
            "gradient_accumulation_steps", given["gradient_accumulation_steps"], 2
        )
        self.sparse_updates = as_flag(
            type(self).__name__, "sparse_updates", given["sparse_updates"]
        )
        with at_top_level():
            self.iterations = state(0, "iteration", int32)
            self._learning_rate = self._as_rate(learning_rate)
        self._slots: dict[VariableReference, tuple[Variable, ...]] = {}
        # For code that has the slots but not the class, as after loading.
        self.slot_names = self.slot_names
        self._shared_slots = (
            *(["average"] if self.use_ema else []),
            *(["gradient_accumulator"] if self.gradient_accumulation_steps else []),
        )
        self._undecayed: tuple[VariableReference, ...] = ()
        self._undecayed_names: tuple[str, ...] = ()

    def _set_bounds(self, clipnorm: Any, clipvalue: Any, global_clipnorm: Any) -> None:
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
        self.clipnorm, self.clipvalue, self.global_clipnorm = clipnorm, clipvalue, global_clipnorm

    if not TYPE_CHECKING:

        @asked
        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, ("iterations", "_learning_rate", "_slots"))

    @api_boundary
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "lr":  # which no step would read
            refuse_attribute(self, name, ())
        is_kept = self in _TRACED and name in parameters_of(type(self))
        if is_kept and vars(self).get(name, value) != value:
            warn(_KEPT.format(name, "a setting"))
        super().__setattr__(name, value)

    def _number(self, what: str, value: Any, **bounds: float) -> Any:
        return as_number(type(self).__name__, what, value, **bounds)

    def _optional(self, what: str, value: Any, above: float | None = None) -> Any:
        """A number of zero or more, or above a bound; None for None."""
        if value is not None and self._number(what, value, low=0) == above:
            fail(
                SignatureError,
                f"{type(self).__name__}: {what} is {value}",
                fix=f"use a number above {above}, or None",
            )
        return value

    def _count(self, what: str, value: Any, low: int) -> int | None:
        """An int of at least `low`; None for None."""
        if value is None or (type(value) is int and value >= low):
            return value
        self._number(what, value, low=low)
        fix = f"use an int of {low} or more, or None"
        refuse_kind(type(self).__name__, f"{what} is an int", value, fix=fix)

    def __repr__(self) -> str:
        """The class, its settings that differ from the defaults, the steps taken, and its state:
        `<Adam(learning_rate=0.01): 3 steps, state of 2 variables>`."""
        head = settings_text(self, f"learning_rate={self._rate_text()}")
        state = f"state of {counted(len(self._slots), 'variable')}"
        if current_trace() is not None:  # nothing has a value then
            return f"<{head}: {state}>"
        steps = counted(int(self.iterations.numpy()), "step")
        return f"<{head}: {steps}, {state}>"

    def _rate_text(self) -> str:
        rate = self._learning_rate
        if isinstance(rate, Variable):
            return "a Variable" if current_trace() is not None else f"{float(rate.numpy()):.6g}"
        if isinstance(rate, WithSettings):
            return settings_text(rate)
        return getattr(rate, "__name__", type(rate).__name__)

    # A schedule gives a Tensor, which a checker may take for a Variable: only a rate that is a
    # number is assigned to.
    @property
    def learning_rate(self) -> Variable:
        """The current learning rate: a Variable, or the result of the schedule or function."""
        if current_trace() is not None:
            _TRACED.add(self)
        return rate_at(self._learning_rate, self.iterations)

    @learning_rate.setter
    def learning_rate(self, value: Rate) -> None:
        if isinstance(self._learning_rate, Variable) and not callable(value):
            self._learning_rate.assign(self._checked_rate(value))
        else:
            if self in _TRACED:
                warn(_KEPT.format("learning rate", "a schedule or function"))
            self._learning_rate = self._as_rate(value)

    def _as_rate(self, value: Any) -> Any:
        """The form in which a rate is stored: a Variable, or the function given."""
        if callable(value) and not isinstance(value, Variable):
            return value
        rate = self._checked_rate(value)
        return rate if isinstance(rate, Variable) else state(rate, "learning_rate", float32)

    def _checked_rate(self, value: Any) -> Any:
        """A learning rate: a number of zero or more, or a tensor or Variable of one, whose value
        may not be known yet. Raises DTypeError or SignatureError for anything else."""
        if not hasattr(value, "dtype") or isinstance(value, np.generic):
            return self._number("the learning rate", value, low=0)
        rate = as_tensor(value)
        if rate.type.shape != () or not (rate.dtype.is_floating or rate.dtype.is_integer):
            rule = "the learning rate is one real number"
            refuse_kind(type(self).__name__, rule, value, fix="use a float, such as 0.001")
        if not isinstance(value, Variable) and current_trace() is None:
            self._number("the learning rate", float(rate.numpy()), low=0)
        return value

    def build(self, var_list: Iterable[Variable]) -> None:
        """Creates the state for the variables now rather than at their first step."""
        for variable in as_list("build", "var_list", var_list):
            self._slots_of(_checked_variable(variable, "variables are tg.Variables"))

    def _slots_of(self, variable: Variable) -> tuple[Variable, ...]:
        variable = variable.actual()
        key = variable.ref()
        found = self._slots.get(key)
        if found is None:
            # Slots outlive the trace that first needs them, and are not part of its computation.
            with init_scope():
                found = tuple(self._new_slot(name, variable) for name in slot_names(self))
            self._slots[key] = found
            announce(self, kept_for=variable)
        return found

    def _new_slot(self, name: str, variable: Variable) -> Variable:
        axes = self.slot_axes(name, variable)
        is_open = not variable.tensor_type.is_static
        sizes = variable.read_value().shape if is_open else variable.shape
        value = self._first_value(name, variable, [sizes[axis] for axis in axes])
        layout = variable.declared_layout
        own = None if layout is None else layout.of_axes(axes)
        shape = [variable.shape[axis] for axis in axes] if is_open else None
        slot = state(value, f"{variable.base_name}_{name}", layout=own, shape=shape)
        variable.share_layouts(slot, axes)
        return slot

    @in_scope
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Given, Variable]], name: str | None = None
    ) -> Variable:
        """Takes one step: `optimizer.apply_gradients(zip(gradients, variables))`.

        A variable whose gradient is None is left unchanged, and a UserWarning names it. A gradient
        of some rows may be `tg.IndexedSlices(values, indices)`: values for the same row add up, and
        all other rows are 0, or are skipped with `sparse_updates`. Steps of several threads come
        one after the other.
        Raises GradientError (a ValueError) if all gradients are None. Returns `iterations`.
        """
        connected = connected_pairs(grads_and_vars, self.sparse_updates)
        variables = [v for _, v in connected]
        with atomic_step():
            for variable in variables:  # state must outlive the branches below
                self._slots_of(variable)
            gradients = [g for g, _ in self._unscaled_pairs(connected)]
            if self.gradient_accumulation_steps is None:
                self._update(gradients, variables)
            else:
                self._accumulate(self.gradient_accumulation_steps, gradients, variables)
            return self.iterations.assign_add(1)

    def apply(
        self, grads: Sequence[Given], trainable_variables: Sequence[Variable] | None = None
    ) -> None:
        """Takes one step: `apply_gradients` with two lists. Without the second one, the variables
        are those of `build`, in their order.

        Raises SignatureError (a ValueError) for lists of different lengths.

        >>> v = tg.Variable([1.0, 2.0])
        >>> tg.optimizers.SGD(0.5).apply([tg.constant([1.0, 1.0])], [v])
        >>> v.numpy()
        array([0.5, 1.5], dtype=float32)
        """
        variables = trainable_variables
        if variables is None:
            variables = [reference.deref() for reference in self._slots]
        self.apply_gradients(pairs_of(grads, variables))

    def minimize(
        self,
        loss: TensorLike | Callable[[], TensorLike],
        var_list: Iterable[Variable],
        tape: GradientTape | None = None,
    ) -> Variable:
        """Takes one step: computes the gradients of `loss`, and calls `apply_gradients`.

        - `loss`: a function of no arguments that returns it, or a tensor computed inside `tape`.

        Raises GradientError (a ValueError) for a loss tensor without its tape. Returns
        `iterations`.

        >>> v = tg.Variable([1.0, 2.0])
        >>> _ = tg.optimizers.SGD(0.25).minimize(lambda: tg.reduce_sum(v * v), [v])
        >>> v.numpy()
        array([0.5, 1. ], dtype=float32)
        """
        seen, variables, recorded = recorded_loss(loss, var_list, tape)
        # The user sees the unscaled loss; the scale enters as its cotangent.
        scaled = self._scale() is not None
        start = cast_to(self.scale_loss(ones_like(seen)), as_tensor(seen).dtype) if scaled else None
        gradients = recorded.gradient(seen, variables, output_gradients=start)
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def scale_loss(self, loss: TensorLike) -> Tensor:
        """The loss times the factor by which `apply_gradients` divides, as float32 or wider, so
        that gradients do not underflow in float16; without a `loss_scale_factor`, the loss itself.

        >>> float(tg.optimizers.SGD(loss_scale_factor=8.0).scale_loss(0.5))
        4.0
        """
        x, scale = as_tensor(loss), self._scale()
        return x if scale is None else multiply(*self._wide(x, scale))

    def _scale(self) -> Any:
        return self.loss_scale_factor

    def _unscaled_pairs(
        self, pairs: Iterable[tuple[Gradient, Variable]]
    ) -> list[tuple[Gradient, Variable]]:
        return [(mapped(lambda x, v=v: self._unscaled(x, v), g), v) for g, v in pairs]

    def _unscaled(self, gradient: Tensor, variable: Variable) -> Tensor:
        scale = self._scale()
        if scale is None:
            return gradient
        return cast_to(divide(*self._wide(gradient, scale)), variable.dtype)

    def _wide(self, x: Tensor, scale: Any) -> tuple[Tensor, Tensor]:
        """Both in a dtype with the range for typical scales, which float16 lacks."""
        dtype = x.dtype if x.dtype.size > 4 else float32
        return cast_to(x, dtype), _as(dtype, scale)

    def exclude_from_weight_decay(
        self,
        var_list: Iterable[Variable] | None = None,
        var_names: Iterable[str] | None = None,
    ) -> None:
        """Excludes variables from `weight_decay`: those in `var_list`, and those in whose name one
        of the regular expressions `var_names` matches. Call it before the first step is traced.

        >>> optimizer = tg.optimizers.AdamW(0.1)
        >>> optimizer.exclude_from_weight_decay(var_names=["bias", "gamma"])
        """
        variables = as_list("exclude_from_weight_decay", "var_list", var_list or [])
        rule = "var_list has tg.Variables"
        self._undecayed = tuple(_checked_variable(v, rule).ref() for v in variables)
        self._undecayed_names = tuple(
            as_list("exclude_from_weight_decay", "var_names", var_names or [])
        )

    def _decay_of(self, variable: Variable) -> float | None:
        """The weight decay of a variable that is not excluded from it."""
        return self.weight_decay

    def _is_undecayed(self, variable: Variable) -> bool:
        return variable.actual().ref() in self._undecayed or any(
            re.search(name, variable.name) for name in self._undecayed_names
        )

    def finalize_variable_values(self, var_list: Iterable[Variable]) -> None:
        """Sets variables to their running means; does nothing without `use_ema`.

        >>> v = tg.Variable(0.0)
        >>> optimizer = tg.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
        >>> for _ in range(2):
        ...     _ = optimizer.apply_gradients([(tg.constant(-1.0), v)])
        >>> optimizer.finalize_variable_values([v])
        >>> float(v)
        1.5
        """
        for variable in as_list("finalize_variable_values", "var_list", var_list):
            if self.use_ema:
                variable.assign(self._shared(variable, "average"))

    def _shared(self, variable: Variable, name: str) -> Variable:
        return self._slots_of(variable)[slot_names(self).index(name)]

    def _accumulate(self, steps: int, gradients: list[Gradient], variables: list[Variable]) -> None:
        """Adds the gradients to the accumulated ones; every `steps` calls, takes a step with their
        mean."""
        waiting = [self._shared(v, "gradient_accumulator") for v in variables]
        sums = [add(old, dense(g)) for old, g in zip(waiting, gradients)]

        def update() -> None:
            self._update([divide(total, steps) for total in sums], variables)
            for accumulator in waiting:
                accumulator.assign(zeros_like(accumulator))

        def wait() -> None:
            for accumulator, total in zip(waiting, sums):
                accumulator.assign(total)

        cond(equal(floormod(add(self.iterations, 1), steps), 0), update, wait)

    def updates(self) -> Tensor:
        """The number of steps that changed variables, as an int32 scalar."""
        steps = self.gradient_accumulation_steps
        done = self.iterations.read_value()
        return done if steps is None else floordiv(done, steps)

    def _update(self, gradients: Sequence[Gradient], variables: list[Variable]) -> None:
        """Takes one step with fully accumulated gradients."""
        rate = as_tensor(self.learning_rate)
        factors: dict[DType, Any] = {}
        for gradient, variable in zip(self._clipped(gradients), variables):
            dtype = variable.dtype
            if dtype not in factors:
                factors[dtype] = self._factors_of(rate, dtype)
            self._step(gradient, variable, cast_to(rate, dtype), factors[dtype])

    def _factors_of(self, rate: Tensor, dtype: DType) -> Any:
        """The factors of a step, rounded once: 0.999, and the number of a step, are not in 16
        bits."""
        wide = float32 if dtype in (float16, bfloat16) else dtype
        factors = self.step_factors(cast_to(rate, wide), wide)
        return map_structure(lambda factor: cast_to(factor, dtype), factors)

    def _clipped(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """The clipped gradients; rows that are not named count as 0."""
        if self.clipnorm is not None:
            return [mapped(lambda x: clip_by_norm(x, self.clipnorm), g) for g in gradients]
        if self.clipvalue is not None:
            low, high = -self.clipvalue, self.clipvalue
            return [mapped(lambda x: clip_by_value(x, low, high), g) for g in gradients]
        if self.global_clipnorm is not None:
            values = [g.sums if isinstance(g, RowGradient) else g for g in gradients]
            clipped: Any = clip_by_global_norm(values, self.global_clipnorm)[0]
            return [mapped(lambda _, y=y: y, g) for g, y in zip(gradients, clipped)]
        return gradients

    def _step(self, gradient: Gradient, variable: Variable, rate: Tensor, factors: Any) -> None:
        slots = self._slots_of(variable)[: len(self.slot_names)]
        old = [x.read_value() for x in (variable, *slots)]
        decay = None if self._is_undecayed(variable) else self._decay_of(variable)

        def updated(gradient: Tensor, value: Tensor, *kept: Tensor) -> Sequence[Tensor]:
            if decay:
                value = subtract(value, multiply(multiply(value, decay), rate))
            return self._checked(self.update_step(gradient, value, kept, factors))

        if self.sparse_updates:
            new, *of_slots = updated_rows(updated, gradient, old, self.has_steps_of_rows)
        else:
            new, *of_slots = updated(dense(gradient), *old)
        for slot, state_of_slot in zip(slots, of_slots, strict=True):
            slot.assign(state_of_slot)
        if variable.constraint is not None:
            new = variable.constraint(new)
        variable.assign(self._averaged(new, variable) if self.use_ema else new)

    def _averaged(self, new: Tensor, variable: Variable) -> Tensor:
        """Moves the running mean of a variable towards its new value; returns the value to assign,
        which is the mean if an overwrite is due."""
        average, done = self._shared(variable, "average"), self.updates()
        kept = where(equal(done, 0), zeros_like(new), multiply(average, self.ema_momentum))
        share = where(equal(done, 0), _as(new.dtype, 1), _as(new.dtype, 1 - self.ema_momentum))
        mean = add(kept, multiply(share, new))
        average.assign(mean)
        if self.ema_overwrite_frequency is None:
            return new
        is_due = equal(floormod(add(done, 1), self.ema_overwrite_frequency), 0)
        return where(is_due, mean, new)

    def _checked(self, new: Any) -> Sequence[Tensor]:
        """What `update_step` returned."""
        own = self.slot_names
        if not isinstance(new, list | tuple) or len(new) != 1 + len(own):
            what = counted(len(new), "value") if isinstance(new, list | tuple) else kind_of(new)
            fail(
                SignatureError,
                f"{type(self).__name__}.update_step returned {what}, and its slot_names are {own}",
                fix="return a tuple: the new value of the variable, and then that of each slot",
            )
        return new

    def slot_axes(self, name: str, variable: Variable) -> Sequence[int]:
        """The axes that a new slot takes from the variable."""
        return range(variable.ndim)

    def _first_value(self, name: str, variable: Variable, shape: Sequence[Any]) -> Tensor:
        """What a new slot of this shape holds."""
        number = 0.0 if name in self._shared_slots else self.initial_slot(name)
        return fill(shape, as_tensor(number, variable.dtype))

    def initial_slot(self, name: str) -> float:
        """The initial value of a slot's elements."""
        return 0.0

    def corrections(self, dtype: DType, *betas: float) -> list[Tensor]:
        """1 - beta ** t at step t: the total weight in a running mean that started at 0."""
        step = cast_to(add(self.updates(), 1), dtype)
        # The plain formula loses the digits that 1 and a beta near 1 share.
        logarithms = (math.log(beta) if beta else -math.inf for beta in betas)
        return [negative(expm1(multiply(step, logarithm))) for logarithm in logarithms]

    def step_factors(self, rate: Tensor, dtype: DType) -> Any:
        """What a step needs from the rate and the iterations, computed once per dtype."""
        return rate

    def update_step(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], factors: Any
    ) -> Sequence[Tensor]:
        """The new values of a variable and of its slots, in order: all rows, or with sparse updates
        only those with a gradient."""
        name = type(self).__name__
        fail(HintError, f"the optimizer {name} defines no update_step", fix=_OWN_STEP)


def _check_step(name: str, step: Any) -> None:
    """Raises SignatureError for an optimizer's own `update_step` that cannot be called as ours."""
    given = inspect.signature(step)
    try:
        given.bind(*[None] * 5)
    except outside_interrupts(TypeError):
        fact = f"{name}.update_step takes {given}, and a step passes 4 arguments"
        fail(SignatureError, fact, fix=_OWN_STEP)


def slot_names(optimizer: Module) -> Any:
    """The names of the slots of an optimizer, which may be a loaded one."""
    attributes = vars(optimizer)
    own, shared = attributes["slot_names"], attributes.get("_shared_slots", ())
    return (*own, *shared) if type(own) is type(shared) is tuple else None


def is_optimizer(module: Module) -> bool:
    """Whether a module is an optimizer, or a loaded one, which has just its attributes."""
    return vars(module).keys() >= ATTRIBUTES


#: The attributes of every optimizer, besides `_learning_rate` unless that is a Python function.
ATTRIBUTES = frozenset(("iterations", "_slots", "slot_names"))


def rate_at(rate: Any, iterations: Variable) -> Any:
    """The learning rate after `iterations` steps: a Variable, or the result of a function."""
    if isinstance(rate, Variable):
        return rate
    return rate(iterations) if _takes_an_argument(rate) else rate()


def atomic_step() -> AbstractContextManager[Any]:
    """Keeps other threads from all Variables between the reads and the assignments of a step, in
    which a schedule needs the number of the step, and a constraint the new value. A function that
    is traced needs no lock: its calls are atomic."""
    return state_lock if current_trace() is None else nullcontext()


def pairs_of(grads: Sequence[Any], variables: Sequence[Variable]) -> list[tuple[Any, Variable]]:
    """Pairs of gradient and variable. Raises SignatureError (a ValueError) for lists of different
    lengths."""
    gradients = as_list("apply", "grads", grads)
    if len(gradients) != len(variables):
        fail(
            SignatureError,
            f"apply: there are {counted(len(gradients), 'gradient')} for "
            f"{counted(len(variables), 'variable')}",
            fix="give a gradient, or None, for each variable",
        )
    return list(zip(gradients, variables))


def recorded_loss(
    loss: TensorLike | Callable[[], TensorLike], var_list: Iterable[Variable], tape: Any
) -> tuple[Any, Sequence[Variable], Any]:
    """The loss given to `minimize`, called if it is a function; the variables; and the tape that
    recorded it. Raises GradientError (a ValueError) for a loss tensor without its tape."""
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
    return loss, variables, tape


def connected_pairs(
    grads_and_vars: Any, keeps_rows: bool = False, takes_examples: bool = False
) -> list[tuple[Gradient, Variable]]:
    """The pairs whose gradient is not None, with a warning that names the other variables.
    IndexedSlices become dense, or Rows with `keeps_rows`; with `takes_examples`, a gradient may
    have an axis of examples in front.

    Raises GradientError if all are None, and DTypeError or ShapeError for an invalid pair.
    """
    pairs = _checked_pairs(grads_and_vars)
    how = keeps_rows, takes_examples
    connected = [(_checked_gradient(g, v, *how), v) for g, v in pairs if g is not None]
    if not connected:
        fail(
            GradientError,
            "there is no gradient for any variable: "
            + (first_few([told_name(v) for _, v in pairs]) or "none was given"),
            fix="compute the loss from the variables, inside the tape's block",
        )
    if len(connected) < len(pairs):
        _tell_of_missing([v for g, v in pairs if g is None])
    return connected


def _tell_of_missing(variables: list[Variable]) -> None:
    what = "variable" if len(variables) == 1 else "variables"
    text = message(
        f"there is no gradient for the {what} {first_few([told_name(v) for v in variables])}: "
        f"the step leaves {'it' if len(variables) == 1 else 'them'} unchanged",
        source=here(),
        fix="ask tape.explain(loss, variable) for the reason, or pass only pairs that have one",
    )
    warn(text, once=True)


def _checked_pairs(grads_and_vars: Any) -> list[tuple[Any, Variable]]:
    """The pairs of gradient and variable. Raises DTypeError for anything else."""
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


def _checked_gradient(
    gradient: Any, variable: Variable, keeps_rows: bool, takes_examples: bool
) -> Gradient:
    """The gradient as Rows, or as a tensor of the variable's shape in a compatible dtype.

    Raises ShapeError or DTypeError for anything else.
    """
    own = variable.tensor_type
    if isinstance(gradient, RowGradient):
        return gradient
    if isinstance(gradient, IndexedSlices):
        fact = f"the gradient of rows of the variable {told_name(variable)} of {own}"
        values = as_tensor(gradient.values, None if has_dtype(gradient.values) else own.dtype)
        slices = gradient._replace(values=_of_fitting_dtype(values, own.dtype, fact))
        return (rows_of if keeps_rows else dense_of)("apply_gradients", slices, own)
    is_typed = has_dtype(gradient)
    g = as_tensor(gradient, None if is_typed else own.dtype)
    fact = f"the gradient {g.type} of the variable {told_name(variable)} of {own}"
    shape = shape_of(g.type.shape)
    wanted = shape_of(own.shape)
    if takes_examples and None not in (shape.rank, wanted.rank) and len(shape) > len(wanted):
        shape = shape[1:]
    if not shape.is_compatible_with(wanted):
        refuse("apply_gradients", fact, g, fix="give each variable its own gradient")
    return _of_fitting_dtype(g, own.dtype, fact)


def _of_fitting_dtype(g: Tensor, dtype: DType, fact: str) -> Tensor:
    if promoted(g.dtype, dtype) is not dtype:
        fail(
            DTypeError,
            f"apply_gradients: {fact}",
            operands=[operand_text(g)],
            fix=f"convert it: tg.cast(gradient, tg.{dtype.name})",
        )
    return g


def _as(dtype: DType, value: Any) -> Tensor:
    """A number, or a Variable, in a dtype."""
    return cast_to(as_tensor(value), dtype) if has_dtype(value) else as_tensor(value, dtype)


def state(
    value: Any,
    name: str,
    dtype: DType | None = None,
    layout: LayoutLike | None = None,
    shape: ShapeLike | None = None,
) -> Variable:
    """Creates a variable for the optimizer's state, named as in Keras."""
    variable = Variable(value, False, name=name, dtype=dtype, layout=layout, shape=shape)
    variable.has_plain_name = True
    return variable


def _takes_an_argument(function: Any) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds and p.default is p.empty for p in parameters_of(function).values())


def towards(old: Tensor, target: Tensor, share: float) -> Tensor:
    """Moves from the old value a share of the way to the target."""
    return add(old, multiply(subtract(target, old), share))


def mixed(old: Tensor, target: Tensor, kept: float) -> Tensor:
    """kept * old + (1 - kept) * target."""
    return add(multiply(old, kept), multiply(target, 1 - kept))
