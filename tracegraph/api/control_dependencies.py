"""`tg.group` and `tg.control_dependencies`, which TensorFlow's graphs need. Here side effects run
in program order, at top level and in functions, so neither has to do anything."""

from __future__ import annotations

import contextlib
from typing import Any

from tracegraph import nest
from tracegraph.array.arguments import as_list, refuse_kind
from tracegraph.ir.tensor import Tensor
from tracegraph.state.variable import Variable


def group(*inputs: object, name: str | None = None) -> None:
    """Groups operations; does nothing, since they have already been called in order.

    >>> v = tg.Variable(1.0)
    >>> tg.group(v.assign_add(1.0), v.assign_add(1.0))
    >>> v.numpy()
    np.float32(3.0)
    """
    for leaf in nest.flatten(list(inputs)):
        _check_operation("group", leaf)


def control_dependencies(control_inputs: object) -> contextlib.AbstractContextManager[None]:
    """A context whose operations run after `control_inputs`, as all later operations do anyway.

    - `control_inputs`: a list of tensors, Variables and results of calls, or None.

    >>> v = tg.Variable(1.0)
    >>> with tg.control_dependencies([v.assign(2.0)]):
    ...     y = v + 1.0
    >>> y.numpy()
    np.float32(3.0)
    """
    if control_inputs is not None:
        for leaf in as_list("control_dependencies", "control_inputs", control_inputs):
            _check_operation("control_dependencies", leaf)
    return contextlib.nullcontext()


def _check_operation(op: str, value: Any) -> None:
    if not (value is None or isinstance(value, (Tensor, Variable))):
        rule = "it takes tensors, Variables, and what calls return"
        refuse_kind(op, rule, value, fix="leave it out: calls run in the order of the program")


__all__ = ["control_dependencies", "group"]
