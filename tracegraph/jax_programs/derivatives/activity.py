"""Which values of a JAX program have derivatives, as JAX decides it: by output, through loops,
branches and calls. Rules of other libraries raise for an operand that has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

#: Primitives whose tangents JAX takes to be zero, whatever their operands are.
_FLAT = ("ceil", "floor", "round", "sign", "stop_gradient")
#: Primitives that apply one inner program to their operands, and where this program is.
_CALLS = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "call"), "call_jaxpr"),
}

Flags = tuple[bool, ...]


class Activity:
    """Answers for one program, which keeps what was found of its inner programs."""

    def __init__(self, is_differentiable: Callable[[Any], bool]) -> None:
        self._is_differentiable = is_differentiable
        self._found: dict[tuple[Jaxpr, Flags], Flags] = {}

    def reached_by(self, eqn: JaxprEqn, has: Sequence[bool]) -> list[Any]:
        """The results of an equation that depend differentiably on those operands for which `has`
        holds."""
        flags = self._of_results(eqn, tuple(has)) if any(has) else ()
        differentiable = zip(eqn.outvars, flags)
        return [x for x, flag in differentiable if flag and self._is_differentiable(x.aval)]

    def of_outputs(self, program: ClosedJaxpr | Jaxpr, active: Sequence[bool]) -> Flags:
        """Which outputs of a program depend differentiably on its active inputs."""
        jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
        key = jaxpr, tuple(active)
        if key not in self._found:
            reached = {x for x, flag in zip(jaxpr.invars, active, strict=True) if flag}
            for eqn in jaxpr.eqns:
                reached.update(self.reached_by(eqn, _in(eqn.invars, reached)))
            self._found[key] = _in(jaxpr.outvars, reached)
        return self._found[key]

    def in_loop(
        self, program: ClosedJaxpr, active: Sequence[bool], constants: int, states: int
    ) -> Flags:
        """Which operands of a loop's body have derivatives in any step, given those that have them
        in the first: its constants, its states, and others."""
        flags, before = [*active], None
        while flags != before:
            before = [*flags]
            for place, flag in enumerate(self.of_outputs(program, flags)[:states], constants):
                flags[place] |= flag
        return tuple(flags)

    def _of_results(self, eqn: JaxprEqn, has: Flags) -> Iterable[bool]:
        name, params = eqn.primitive.name, eqn.params
        if name in _FLAT:
            return ()
        if name in _CALLS:
            return self.of_outputs(params[_CALLS[name]], has)
        if name == "cond":
            branches = [self.of_outputs(program, has[1:]) for program in params["branches"]]
            return map(any, zip(*branches, strict=True))
        if name == "while":
            step, own = params["body_jaxpr"], params["body_nconsts"]
            active = has[params["cond_nconsts"] :]
            return self.in_loop(step, active, own, len(eqn.outvars))[own:]
        if name == "scan":
            step = params["jaxpr"]
            return self.of_outputs(step, self.in_loop(step, has, *loop_counts(eqn)))
        return (True for _ in eqn.outvars)


def _in(variables: Iterable[Any], reached: set[Any]) -> Flags:
    return tuple(not isinstance(x, Literal) and x in reached for x in variables)


def loop_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """How many constants and states the body of a scan has."""
    jaxpr = eqn.params["jaxpr"].jaxpr
    rows = _with_rows(eqn.invars, jaxpr.invars)
    states = len(jaxpr.outvars) - _with_rows(eqn.outvars, jaxpr.outvars)
    return len(eqn.invars) - rows - states, states


def _with_rows(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """How many values of a scan have a row per step: one axis more than in its body."""
    pairs = zip(outside, inside, strict=True)
    return sum(len(x.aval.shape) > len(row.aval.shape) for x, row in pairs)
