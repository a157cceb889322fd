"""Optimizers from optax's gradient transformations, with their state in Variables."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tracegraph.array.arguments import as_list
from tracegraph.core.interrupts import is_of_interrupt
from tracegraph.core.types import int32
from tracegraph.eager.pending import device_buffer
from tracegraph.errors import SignatureError, TraceError, fail, shown
from tracegraph.ir.builder import at_top_level
from tracegraph.ir.tensor import Tensor
from tracegraph.jax_programs.equations import is_key
from tracegraph.jax_programs.programs import WIDE, as_before, from_jax, is_weakly_typed
from tracegraph.operands.conversion import as_tensor
from tracegraph.optimizers.base import atomic_step, connected_pairs, pairs_of, recorded_loss, state
from tracegraph.optimizers.rows import dense
from tracegraph.state.module import Module, in_scope
from tracegraph.state.variable import Variable, VariableReference
from tracegraph.tracing.name_scopes import told_name
from tracegraph.tracing.trace import init_scope
from tracegraph.typing import TensorLike


class OptaxOptimizer(Module):
    """An optimizer that does what an optax transformation does; see
    `tg.optimizers.from_optax`.

    `optax_state` maps paths, such as "0/mu/kernel", to its Variables; it is created at the first
    step, or by `build`. `iterations` counts the calls of `apply_gradients`.
    """

    _hidden = frozenset(["_transformation", "_step", "_references", "_weak"])

    def __init__(self, transformation: Any, name: str | None = None) -> None:
        super().__init__(name)
        methods = (getattr(transformation, which, None) for which in ("init", "update"))
        if not all(map(callable, methods)):
            fail(
                TraceError,
                f"from_optax: {shown(transformation)} has no functions init and update",
                fix="give a transformation of optax, such as optax.adam(1e-3)",
            )
        self._transformation = transformation
        with at_top_level():
            self.iterations = state(0, "iteration", int32)
        self.optax_state: dict[str, Variable] = {}
        self._references: dict[VariableReference, str] = {}
        self._step: Callable[..., Any] | None = None
        self._weak: list[bool] = []

    def _ordered_attributes(self) -> list[tuple[str, Any]]:
        return list(vars(self).items())

    def build(self, var_list: Iterable[Variable]) -> None:
        """Creates the state for these variables now rather than at the first step. Raises
        SignatureError (a ValueError) if there is already one for others."""
        variables = [v.actual() for v in as_list("build", "var_list", var_list)]
        with self._without_state_if_refused():
            self._names_of(variables)

    @in_scope
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        **extra: Any,
    ) -> Variable:
        """Takes one step: `optimizer.apply_gradients(zip(gradients, variables))`.

        Every call must pass the variables of the first step. `extra` holds the transformation's
        further arguments, such as `value=loss`. A gradient may have an axis of examples in front,
        as `optax.contrib.dpsgd` takes it. Steps of several threads come one after the other.
        Raises GradientError (a ValueError) if all gradients are None, and SignatureError (a
        ValueError) for variables other than those of the first step. Returns `iterations`.
        """
        pairs = connected_pairs(grads_and_vars, takes_examples=True)
        with atomic_step():
            with self._without_state_if_refused():
                assigned = self._new_values(pairs, extra)
            for variable, value in assigned:
                variable.assign(value)
            return self.iterations.assign_add(1)

    def _new_values(
        self, pairs: Sequence[tuple[Any, Variable]], extra: dict[str, Any]
    ) -> list[tuple[Variable, Tensor]]:
        """The Variables that a step assigns, and what it assigns to them, which is checked."""
        names = self._names_of([v.actual() for _, v in pairs])
        gradients = {name: dense(g) for name, (g, _) in zip(names, pairs, strict=True)}
        variables = {name: v for name, (_, v) in zip(names, pairs, strict=True)}
        assert self._step is not None
        kept = [*self.optax_state.values()]
        given = [as_before(*pair) for pair in zip(kept, self._weak, strict=True)]
        values, states = self._step(gradients, given, variables, **extra)
        assigned: list[tuple[str, Variable, Tensor]] = [
            *zip(self.optax_state, kept, states, strict=True),
            *((k, v, _constrained(v, values[k])) for k, v in variables.items()),
        ]
        for name, variable, value in assigned:
            _check_type(name, variable, value)
        return [(variable, value) for _, variable, value in assigned]

    @contextlib.contextmanager
    def _without_state_if_refused(self) -> Iterator[None]:
        """Leaves no state behind where what creates it is refused."""
        if self._step is not None:
            yield
            return
        try:
            yield
        except BaseException:
            self._step = None
            self.optax_state.clear()
            self._references, self._weak = {}, []
            raise

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Variable]) -> None:
        """Takes one step: `apply_gradients` with two lists."""
        self.apply_gradients(pairs_of(grads, trainable_variables))

    def minimize(
        self,
        loss: TensorLike | Callable[[], TensorLike],
        var_list: Iterable[Variable],
        tape: Any = None,
    ) -> Variable:
        """Takes one step: computes the gradients of `loss`, and calls `apply_gradients`.

        - `loss`: a function of no arguments that returns it, or a tensor computed inside `tape`.

        Raises GradientError (a ValueError) for a loss tensor without its tape.
        """
        value, variables, tape = recorded_loss(loss, var_list, tape)
        gradients = tape.gradient(value, variables)
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def _names_of(self, variables: Sequence[Variable]) -> list[str]:
        """The names of variables in the state, which is created if there is none."""
        references = [v.ref() for v in variables]
        _check_once(variables, references)
        if self._step is None:
            self._references = dict(zip(references, _unique_names(variables), strict=True))
            with init_scope():
                self._make_state(variables)
        if {*references} != self._references.keys():
            known, given = (
                ", ".join(map(told_name, which))
                for which in ([x.deref() for x in self._references], variables)
            )
            others = ", which are others of the same names" if known == given else ""
            fail(
                SignatureError,
                f"the state of the optimizer is that of the variables {known}, and gradients were "
                f"given for {given}{others}",
                fix="give gradients for the same variables each time, or make another optimizer",
            )
        return [self._references[reference] for reference in references]

    def _make_state(self, variables: Sequence[Variable]) -> None:
        """Creates the Variables of the state, and the function that takes a step."""
        names = [*self._references.values()]
        wide = any(v.dtype.name in WIDE for v in variables)
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            values = [_array_of(v) for v in variables]
            made = self._transformation.init(dict(zip(names, values, strict=True)))
        pairs, structure = jax.tree_util.tree_flatten_with_path(made)
        kinds = [jax.random.key_impl(leaf) if is_key_leaf(leaf) else None for _, leaf in pairs]
        self._weak = [is_weakly_typed(leaf) for _, leaf in pairs]
        for path, (steps, leaf) in zip(paths_of(pairs), pairs, strict=True):
            data = jax.random.key_data(leaf) if is_key_leaf(leaf) else leaf
            place = _owner(steps, names)
            owner = None if place is None else variables[names.index(word_of(steps[place]))]
            self.optax_state[path] = _slot(data, _slot_name(steps, place), owner)
        self._step = from_jax(_step_of(self._transformation, structure, kinds))


def _check_once(variables: Sequence[Variable], references: Sequence[VariableReference]) -> None:
    """Raises SignatureError for a variable that is given twice."""
    for variable, reference in zip(variables, references, strict=True):
        count = references.count(reference)
        if count > 1:
            fail(
                SignatureError,
                f"the variable {told_name(variable)} was given {count} times in one step",
                fix="give each variable once, with the sum of its gradients",
            )


def _step_of(transformation: Any, structure: Any, kinds: Sequence[Any]) -> Callable[..., Any]:
    """One step as a JAX function of the gradients, the leaves of the state, and the parameters."""

    def step(gradients: Any, leaves: Any, parameters: Any, **extra: Any) -> Any:
        leaves = [
            leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind)
            for leaf, kind in zip(leaves, kinds, strict=True)
        ]
        before = jax.tree_util.tree_unflatten(structure, leaves)
        updates, after = _updated(transformation, gradients, before, parameters, extra)
        _check_updates(updates, parameters)
        new, found = jax.tree_util.tree_flatten(after)
        if found != structure:
            fail(
                SignatureError,
                f"the state of the transformation had the structure {structure}, and its update "
                f"returns {found}",
                fix="use a transformation whose state keeps its structure",
            )
        data = [leaf if not is_key_leaf(leaf) else jax.random.key_data(leaf) for leaf in new]
        return {k: _applied(parameters[k], updates[k]) for k in parameters}, data

    step.__name__ = "optax_step"
    return step


def _updated(transformation: Any, gradients: Any, state: Any, parameters: Any, extra: Any) -> Any:
    """What a transformation makes of gradients. Raises SignatureError where it takes more."""
    try:
        return transformation.update(gradients, state, parameters, **extra)
    except TypeError as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown and unknown[1] in extra:
            fail(
                SignatureError,
                f"the transformation takes no {unknown[1]!r}: {error}",
                fix="leave it out, or give optax.with_extra_args_support(transformation)",
                cause=error,
            )
        if is_of_interrupt(error) or not _MISSING.search(str(error)):
            raise
        fail(
            SignatureError,
            f"the transformation takes more than gradients and variables: {error}",
            fix="pass it by name: optimizer.apply_gradients(pairs, value=loss)",
            cause=error,
        )
    except AttributeError as error:
        if is_of_interrupt(error) or not isinstance(error.obj, dict):
            raise
        fail(
            SignatureError,
            f"the transformation takes other parameters than a dict of arrays: {error}",
            fix="use a transformation of any tree of arrays, which optax.lookahead is not",
            cause=error,
        )


#: What Python says of a function that is called without an argument that it must have.
_MISSING = re.compile(r"missing \d+ required .*argument")
#: What it says of an argument by name that a function does not have.
_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")


def _check_updates(updates: Any, parameters: Any) -> None:
    """Raises SignatureError unless there is one update for each parameter."""
    found, wanted = (jax.tree_util.tree_structure(tree) for tree in (updates, parameters))
    if found != wanted:
        fail(
            SignatureError,
            f"the transformation returns updates of the structure {found}, and the parameters have "
            f"the structure {wanted}",
            fix="use a transformation whose update returns one array for each parameter",
        )


def _constrained(variable: Variable, value: Tensor) -> Tensor:
    if variable.constraint is None:
        return value
    kept = variable.constraint(value)
    return kept if isinstance(kept, Tensor) else as_tensor(kept, variable.dtype)


def _check_type(name: str | None, variable: Variable, value: Tensor) -> None:
    """Raises SignatureError for a value that a Variable, of the state or trained, cannot take."""
    if value.dtype is variable.dtype and variable.shape.is_compatible_with(value.shape):
        return
    fail(
        SignatureError,
        f"the step made a {value.type} of {name!r}, which is {variable.tensor_type}; nothing was "
        "assigned",
        fix="use a transformation, and constraints of variables, that keep shapes and data types",
    )


def _applied(parameter: Any, update: Any) -> Any:
    """A parameter after its update, in its own dtype, as in `optax.apply_updates`."""
    return jnp.asarray(parameter + update).astype(parameter.dtype)


def is_key_leaf(leaf: Any) -> bool:
    """Whether a leaf of a pytree is an array of random-number keys."""
    return hasattr(leaf, "dtype") and is_key(leaf)


def _unique_names(variables: Sequence[Variable]) -> list[str]:
    """A name for each variable: its own, with a number where an earlier one has the same."""
    return _numbered([variable.base_name or "variable" for variable in variables])


def _numbered(own: Sequence[str]) -> list[str]:
    """The names, with a number where an earlier one is the same. No name with a number is one that
    another has of its own."""
    reserved, taken = {*own}, set[str]()
    names = []
    for name in own:
        if name in taken:
            numbered = (f"{name}_{count}" for count in itertools.count(1))
            name = next(new for new in numbered if new not in reserved | taken)
        taken.add(name)
        names.append(name)
    return names


def paths_of(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """A path for each leaf of a pytree with its steps, such as `mu/kernel`, each only once: a key
    may have a slash, too."""
    return _numbered(["/".join(map(word_of, steps)) for steps, _ in pairs])


def word_of(step: Any) -> str:
    """A component of a path through a pytree, as a word."""
    for attribute in ("name", "key", "idx"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


def _owner(steps: Sequence[Any], names: Sequence[str]) -> int | None:
    """Which step to a leaf of the state is the name of the variable that it is kept for, as the key
    of a dict."""
    keys = [i for i, step in enumerate(steps) if isinstance(step, jax.tree_util.DictKey)]
    return next((i for i in reversed(keys) if word_of(steps[i]) in names), None)


def _slot_name(steps: Sequence[Any], owner: int | None) -> str:
    """The name of a Variable of the state: from the variable it is kept for, and its field."""
    words = [word_of(step) for step in steps]
    fields = [x for i, x in enumerate(words) if i != owner and not x.isdigit()]
    field = fields[-1] if fields else "state"
    return field if owner is None else f"{words[owner]}_{field}"


def _array_of(variable: Variable) -> Any:
    """The value as an array of JAX's, which is divided as the Variable is."""
    tensor = variable.made_tensor()
    return jnp.asarray(variable.numpy()) if tensor.layout is None else device_buffer(tensor)


def _slot(data: Any, name: str, owner: Variable | None) -> Variable:
    """A Variable of the state. One with the shape of the variable that it is kept for has the
    layouts of that one."""
    if owner is None or data.shape != owner.shape:
        return state(np.asarray(data), name)
    layout = owner.declared_layout
    slot = state(np.asarray(data) if layout is None else data, name, layout=layout)
    owner.share_layouts(slot, range(data.ndim))
    return slot
