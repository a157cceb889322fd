"""Moving averages of variables, kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import as_flag, as_list, as_number, refuse_kind
from tracegraph.core.types import DType, bfloat16, float16, float32
from tracegraph.errors import DTypeError, counted, fail, shown
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, divide, minimum, multiply, subtract
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.state.variable import Variable, VariableReference
from tracegraph.tracing.name_scopes import checked_name
from tracegraph.tracing.trace import init_scope
from tracegraph.typing import TensorLike


class ExponentialMovingAverage:
    """Keeps a moving average of each of some variables (Polyak and Juditsky 1992): at each `apply`,
    average = average - (1 - decay) * (average - variable), beginning with the variable's value.

    - `decay`: a number, a tensor or a Variable, from 0 to 1.
    - `num_updates`: a number, a tensor or a Variable that counts the steps of training, or None.
      If it is given, `decay` is at most (1 + num_updates) / (10 + num_updates), so that averages
      move faster at first.
    - `zero_debias`: accepted but has no effect: averages begin with values of variables.

    An average is a Variable that is not trained, `average(variable)`. It has the dtype and the
    layout of the variable. Give it to a `tg.train.Checkpoint`, or keep it in a Module, to save it:
    the object itself is not saved.

    Raises DTypeError (a TypeError) for a decay or a count that is not one real number, ValueError
    for a decay, given as a number, that is not from 0 to 1.

    >>> v = tg.Variable([0.0, 4.0])
    >>> ema = tg.train.ExponentialMovingAverage(0.75)
    >>> ema.apply([v])
    >>> _ = v.assign([1.0, 0.0])
    >>> ema.apply([v])
    >>> ema.average(v).numpy()
    array([0.25, 3.  ], dtype=float32)
    """

    def __init__(
        self,
        decay: TensorLike,
        num_updates: TensorLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        as_flag("ExponentialMovingAverage", "zero_debias", zero_debias)
        self._decay, self._num_updates = decay, num_updates
        if isinstance(decay, (int, float)):
            as_number("ExponentialMovingAverage", "decay", decay, low=0, high=1)
        _real_number("decay", decay)
        if num_updates is not None:
            _real_number("num_updates", num_updates)
        self._name = checked_name(name)
        self._averages: dict[VariableReference, Variable] = {}

    def __repr__(self) -> str:
        count = counted(len(self._averages), "variable")
        return f"<tg.train.ExponentialMovingAverage: decay {shown(self._decay)}, {count}>"

    @property
    def name(self) -> str:
        """The last part of the names of the averages."""
        return self._name

    def apply(self, var_list: Sequence[Variable]) -> None:
        """Moves the average of each variable towards its value. The first call makes the averages;
        it may be in a `tg.function`.

        Raises DTypeError (a TypeError) for what is not a floating `tg.Variable`.
        """
        variables = [_checked(v) for v in as_list("apply", "var_list", var_list)]
        averages = [self._average_of(v) for v in variables]
        shares: dict[DType, Tensor] = {}
        for variable, average in zip(variables, averages):
            dtype = variable.dtype
            if dtype not in shares:
                shares[dtype] = self._share(dtype)
            way = subtract(average, variable)
            average.assign_sub(multiply(way, shares[dtype]))

    def average(self, var: Variable) -> Variable | None:
        """The average of a variable; None before the first `apply` to it.

        >>> tg.train.ExponentialMovingAverage(0.9).average(tg.Variable(1.0)) is None
        True
        """
        return self._averages.get(_checked(var).ref())

    def average_name(self, var: Variable) -> str:
        """The name that the average of a variable has, or will have, without `:0`.

        >>> tg.train.ExponentialMovingAverage(0.9).average_name(tg.Variable(1.0, name="v"))
        'v/ExponentialMovingAverage'
        """
        return f"{_checked(var).base_name}/{self.name}"

    def _average_of(self, variable: Variable) -> Variable:
        found = self._averages.get(variable.ref())
        if found is None:
            # Averages outlive the trace that first needs them, and are not part of it.
            with init_scope():
                found = self._new_average(variable)
            self._averages[variable.ref()] = found
        return found

    def _new_average(self, variable: Variable) -> Variable:
        average = Variable(
            variable.read_value(),
            trainable=False,
            name=self.average_name(variable),
            layout=variable.declared_layout,
            shape=None if variable.tensor_type.is_static else variable.shape,
        )
        variable.share_layouts(average, range(variable.ndim))
        return average

    def _share(self, dtype: DType) -> Tensor:
        """How much of the way to its variable an average goes."""
        wide = float32 if dtype in (float16, bfloat16) else dtype  # 0.999 is not in 16 bits
        decay = _as(wide, self._decay)
        if self._num_updates is not None:
            count = _as(wide, self._num_updates)
            decay = minimum(decay, divide(add(count, 1), add(count, 10)))
        return cast_to(subtract(_as(wide, 1), decay), dtype)


def _as(dtype: DType, value: Any) -> Tensor:
    is_plain = isinstance(value, (int, float))
    return as_tensor(value, dtype) if is_plain else cast_to(as_tensor(value), dtype)


def _real_number(what: str, value: Any) -> None:
    x = as_tensor(value)
    if (x.ndim is not None and x.ndim > 0) or not (x.dtype.is_floating or x.dtype.is_integer):
        fact = f"ExponentialMovingAverage: {what} is {shown(value)}, and it is one real number"
        fail(DTypeError, fact, fix=f"give a number, such as {what}=0.999")


def _checked(variable: Any) -> Variable:
    if not isinstance(variable, Variable):
        what = "averages are those of tg.Variables"
        refuse_kind("ExponentialMovingAverage", what, variable, fix="give a list of them")
    if not variable.dtype.is_floating:
        fact = f"ExponentialMovingAverage: {variable.name!r} is of {variable.dtype.name}"
        fail(DTypeError, fact, fix="give floating Variables only")
    return variable.actual()


__all__ = ["ExponentialMovingAverage"]
