"""ForwardAccumulator: forward-mode tangents, computed along with the primal values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from tracegraph import nest
from tracegraph.differentiation.tape import (
    UnconnectedGradients,
    as_unconnected,
    leaf_tensor,
    structure_of,
    zeros_like_leaf,
)
from tracegraph.eager.provenance import Assignment
from tracegraph.errors import (
    DTypeError,
    GradientError,
    ShapeError,
    counted,
    fact_of,
    fail,
    kind_of,
    shown,
)
from tracegraph.ir.builder import Builder, current, operand_text
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.operands.conversion import as_tensor
from tracegraph.passes.walk import push_forward
from tracegraph.state.variable import Variable

if TYPE_CHECKING:
    from tracegraph.typing import Nest, Tensors


class ForwardAccumulator:
    """Computes Jacobian-vector products alongside the computation in its `with` block.

    - `primals`: the tensors and Variables to differentiate with respect to, in any nested
      structure.
    - `tangents`: the direction, with the structure, shapes and dtypes of the primals.

    Tangents are ordinary tensors: tapes, and accumulators opened earlier, record how they are
    computed, so derivatives nest to any order.

    Raises GradientError (a ValueError) if structures, shapes or dtypes differ, or if a primal
    appears twice.

    >>> x = tg.constant([2.0, 3.0])
    >>> with tg.autodiff.ForwardAccumulator(x, tg.constant([1.0, 0.0])) as accumulator:
    ...     y = x * x
    >>> accumulator.jvp(y).numpy()
    array([4., 0.], dtype=float32)
    """

    def __init__(self, primals: Tensors, tangents: Nest) -> None:
        if not structure_of(primals).matches(structure_of(tangents)):
            _refuse(
                f"the primals have the structure {structure_of(primals)}, and the tangents "
                f"{structure_of(tangents)}",
                fix="give one tangent for each primal",
            )
        pairs = zip(nest.flatten(primals), nest.flatten(tangents), strict=True)
        self._pairs = [(x, tangent_of(x, t)) for x, t in pairs if x is not None]
        if len({id(x) for x, _ in self._pairs}) < len(self._pairs):
            _refuse("a primal is given several times", fix="add its tangents, and give it once")
        self._builder: Builder | None = None
        self._is_recording = False
        self._tangents: dict[Tensor, Tensor] = {}

    def __repr__(self) -> str:
        if self._builder is None:
            return "<ForwardAccumulator, never entered>"
        state = "recording" if self._is_recording else "stopped"
        primals, tangents = counted(len(self._pairs), "primal"), len(self._tangents)
        return f"<ForwardAccumulator, {state}: {primals}, {counted(tangents, 'tangent')}>"

    # The block.

    def __enter__(self) -> ForwardAccumulator:
        if self._is_recording:
            _refuse(
                "the accumulator is already recording: it was entered again while it was active",
                fix="leave the first `with` block before entering it again, or use a second one",
            )
        builder = self._builder = current()
        self._tangents.update((leaf_tensor(x, builder), t) for x, t in self._pairs)
        builder.recorders.append(self)
        self._is_recording = True
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._builder is not None
        self._builder.recorders.remove(self)
        self._is_recording = False

    # Called by builders.

    def record(self, node: Node) -> None:
        """Computes the tangents of the outputs of `node`.

        Tapes, and accumulators opened earlier, record how; accumulators opened later do not see
        the tangents.
        """
        if not self.depends_on(node.inputs):
            return
        builder = current()
        recorders = builder.recorders
        own_place = recorders.index(self)
        builder.recorders = [
            recorder
            for place, recorder in enumerate(recorders)
            if place < own_place or not isinstance(recorder, ForwardAccumulator)
        ]
        try:
            push_forward([node], self._tangents, "jvp")
        finally:
            builder.recorders = recorders

    def depends_on(self, tensors: Sequence[Tensor]) -> bool:
        """Whether any of the tensors has a tangent."""
        return any(x in self._tangents for x in tensors)

    def access(self, variable: Variable) -> None:
        """Variables are followed by their handles alone."""

    #: Whether numbers that come from Python are of interest.
    has_left = False

    def assign(self, handle: Tensor, assignment: Assignment) -> None:
        """An assignment carries no tangent into the Variable."""

    def decide(self, outcome: bool) -> None:
        """A decision has no tangent."""

    def leave(self, tensor: Tensor, how: str) -> None:
        """A value that goes to NumPy loses its tangent."""

    def arrive(self, tensor: Tensor) -> None:
        """A value that comes from NumPy has no tangent."""

    # Called by users.

    @overload
    def jvp(
        self,
        primals: Tensor | Variable,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> Tensor: ...
    @overload
    def jvp(
        self,
        primals: list[Tensor] | list[Variable] | list[Tensor | Variable],
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> list[Tensor]: ...
    @overload
    def jvp(
        self,
        primals: tuple[Tensor | Variable, ...],
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def jvp(
        self,
        primals: Tensors,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> Any: ...
    def jvp(
        self,
        primals: Tensors,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """The tangents of `primals`, in the same structure: each Jacobian times the direction.

        A tensor that does not depend on the accumulator's primals gets None, or zeros if
        `unconnected_gradients` is "zero". Works inside the block and after it.

        Raises TypeError for anything but a tensor or a Variable.
        """
        unconnected = as_unconnected(unconnected_gradients)
        leaves = nest.flatten(primals)
        found = [None if leaf is None else self._tangent_of(leaf) for leaf in leaves]
        if unconnected is UnconnectedGradients.ZERO:
            found = [
                zeros_like_leaf(leaf) if t is None and leaf is not None else t
                for t, leaf in zip(found, leaves, strict=True)
            ]
        return nest.pack_sequence_as(primals, found)

    def _tangent_of(self, leaf: Any) -> Tensor | None:
        if not isinstance(leaf, (Tensor, Variable)):
            fail(
                DTypeError,
                f"jvp was asked for {kind_of(leaf)}: {shown(leaf)}",
                fix="pass tg.Tensors or tg.Variables",
            )
        if self._builder is None:  # nothing was computed inside, and the primals are there already
            return next((t for x, t in self._pairs if x is leaf), None)
        return self._tangents.get(leaf_tensor(leaf, self._builder))


def tangent_of(primal: Any, given: Any) -> Tensor:
    """The tangent given for a primal, as a tensor. Raises GradientError if its shape or dtype
    differs from the primal's, and TypeError for a primal that has no tangents."""
    if not isinstance(primal, (Tensor, Variable)):
        fail(
            DTypeError,
            f"a primal is {kind_of(primal)}: {shown(primal)}",
            fix="pass tg.Tensors or tg.Variables as primals",
        )
    type = primal.handle.type if isinstance(primal, Variable) else primal.type
    if not type.dtype.is_differentiable:
        fail(
            DTypeError,
            f"a primal is {type}, which has no tangents",
            fix="convert it: tg.cast(x, tg.float32)",
        )
    try:
        is_typed = isinstance(given, (Tensor, Variable))
        tangent = as_tensor(given, None if is_typed else type.dtype)
    except (DTypeError, ShapeError) as error:
        _refuse(f"a tangent does not fit its primal {type}: {fact_of(error)}")
    if not tangent.type.fits(type):
        _refuse(f"a tangent is {tangent.type} and its primal is {type}", operands=[tangent])
    return tangent


def _refuse(
    fact: str,
    operands: Sequence[Tensor] = (),
    fix: str = "give a tangent of the shape and the dtype of its primal",
) -> Any:
    fail(GradientError, fact, operands=map(operand_text, operands), fix=fix)
