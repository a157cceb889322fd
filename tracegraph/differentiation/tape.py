"""GradientTape: TensorFlow's conventions around the gradient pass, all of them in this module."""

from __future__ import annotations

import contextlib
import enum
import inspect
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from tracegraph import nest
from tracegraph.boundary.tracebacks import api_boundary
from tracegraph.calls.top_level_calls import cached_call, cached_call_with_note, cached_gradient
from tracegraph.core.contexts import Context, Exit, context
from tracegraph.core.later import opened
from tracegraph.core.shapes import same_size, static_shape
from tracegraph.core.source import UNKNOWN, Source, here
from tracegraph.differentiation.outer_tape import OuterTape, lost_inside
from tracegraph.differentiation.sparse_jacobian import SparseJacobian, known_value
from tracegraph.eager import backend
from tracegraph.eager.provenance import TOP_LEVEL_TAPES, Assignment
from tracegraph.eager.tensor_methods import BOOL
from tracegraph.errors import (
    DTypeError,
    GradientError,
    ShapeError,
    SizeNeeded,
    TapeError,
    TraceError,
    counted,
    fact_of,
    fail,
    kind_of,
    shown,
    warn,
)
from tracegraph.explanation.history import History
from tracegraph.ir.builder import Builder, current, operand_text, refuse_leaked
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Node, Tensor
from tracegraph.jacobians.jacobian import JacobianPlan, batch_jacobian, jacobian
from tracegraph.jacobians.row_independence import check_rows_independent
from tracegraph.jacobians.sparse_products import (
    Sparsity,
    is_whole_gradient,
    nothing,
    sparse_jacobian,
    sparsity,
)
from tracegraph.operands.conversion import as_tensor, is_divided
from tracegraph.operands.flags import as_flag
from tracegraph.ops.broadcast import full
from tracegraph.ops.layout import WithLayout
from tracegraph.passes.forward import jvp
from tracegraph.passes.gradient import gradient
from tracegraph.passes.subgraph import subgraph_between, with_integer_nodes
from tracegraph.state.variable import Variable
from tracegraph.tracing.trace import Trace

if TYPE_CHECKING:
    from typing import TypedDict, TypeVar, Unpack

    from tracegraph.differentiation.sparse_jacobian import SparseJacobian
    from tracegraph.explanation.explain import Explanation, TapeRecord
    from tracegraph.typing import Nest, Tensors

    Key = TypeVar("Key")

    class _JacobianOptions(TypedDict, total=False):
        parallel_iterations: int | None
        experimental_use_pfor: bool
        chunk_size: int | None
        mode: str | None


class UnconnectedGradients(enum.Enum):
    """The gradient where target and source are not connected: None, zeros, or an error."""

    NONE = "none"
    ZERO = "zero"
    RAISE = "raise"


def _divided_as(source: Tensor | Variable, g: Tensor | None) -> Tensor | None:
    """A gradient with the layout of its source. One that is whole on each device may move to
    another mesh, so it states nothing."""
    if g is None:
        return None
    if isinstance(source, Variable):
        layout = source.declared_layout
    elif is_divided(getattr(source, "buffer", None)) or isinstance(_op_of(source), WithLayout):
        layout = source.layout
    else:
        return g
    if layout is None or not any(layout.axes) or _op_of(g) is layout.op:
        return g
    return backend.layouts().laid_out(g, layout)


def _op_of(x: Tensor) -> Op | None:
    return None if x.node is None else x.node.op


def _explaining() -> Any:
    """The module that explains a None, imported on first use."""
    return opened("tracegraph.explanation.explain")


class GradientTape:
    """Records the operations inside its `with` block so they can be differentiated afterwards.

    - `persistent`: whether `gradient` may be called more than once.
    - `watch_accessed_variables`: whether trainable Variables are watched automatically when read.

    A tape records one thread and one trace. Gradients are ordinary tensors: any other open tape
    records how they are computed, so derivatives of any order work.

    >>> x = tg.Variable(3.0)
    >>> with tg.GradientTape() as tape:
    ...     y = x**2
    >>> tape.gradient(y, x).numpy()
    np.float32(6.0)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = as_flag("GradientTape", "persistent", persistent)
        self._watches_variables = as_flag(
            "GradientTape", "watch_accessed_variables", watch_accessed_variables
        )
        self._builder: Builder | None = None
        self._is_recording = False
        self._is_used = False
        #: The block that was entered most recently.
        self._entered: Context | None = None
        #: The record from before the tape was entered in its present trace.
        self._outside: OuterTape | None = None
        self._forget()

    def _forget(self) -> None:
        self._history = History()
        #: Whether any values went to NumPy or to Python.
        self.has_left = False
        #: Whether any gradient was None, so that the user may ask why.
        self._is_incomplete = False
        self._nodes: list[Node] = []
        #: The watched tensors, and everything that depends on them.
        self._tracked: set[Tensor] = set()
        self._variables: dict[int, Variable] = {}
        #: Operands of recorded nodes; the tape keeps their values alive.
        self._operands: list[Tensor] = []
        #: Nodes from outside, as nodes of the trace; they precede the trace's own.
        self._inherited: list[Node] = []
        #: Where the tape was entered in the present trace, if it was opened outside of that.
        self._line: Source | None = None
        #: Where it was last entered so in a trace that is left, which has what was recorded there.
        self._entered_inside: Source | None = None
        #: The Variables that it watched in such traces.
        self._watched_inside: dict[int, Variable] = {}
        #: How many nodes the present trace had when the tape was entered inside it.
        self._starts_inside: tuple[int, ...] = ()

    def __repr__(self) -> str:
        kind = "GradientTape(persistent=True)" if self._persistent else "GradientTape"
        if self._builder is None:
            return f"<{kind}, never entered>"
        if self._is_used and not self._persistent:
            return f"<{kind}, used>"
        state = "recording" if self._is_recording else "stopped"
        nodes, watched = len(self._nodes), len(self._variables)
        return f"<{kind}, {state}: {counted(nodes, 'operation')}, {counted(watched, 'variable')}>"

    # The block.

    def __enter__(self) -> GradientTape:
        if self._is_recording:
            fail(
                GradientError,
                "the tape is still recording: it was entered again while it was active",
                fix="leave the first `with` block before entering it again, or use a second tape",
            )
        for _ in self._entry().generator:
            return self
        raise AssertionError("a block begins once")

    def _entry(self) -> Context:
        """The context of the open block, or of the next one if none is open."""
        entry = self._entered
        if entry is not None:
            state = inspect.getgeneratorstate(entry.generator)
            if self._is_recording or state == inspect.GEN_CREATED:
                return entry
        entry = self._entered = Context(self._block())
        return entry

    __exit__ = Exit(_entry)

    def _block(self) -> Generator[None, None, None]:
        self._prepare(current())
        try:
            self._start()
            yield
        finally:
            assert self._builder is not None
            was_recording, recorders = self._is_recording, self._builder.recorders
            self._is_recording = False
            if self in recorders:
                recorders.remove(self)
            if was_recording and self._history.spans:
                self._history.stop("left")

    def _prepare(self, builder: Builder) -> None:
        """Resumes the record that applies in a builder, or starts a new one."""
        if builder.is_top_level:
            TOP_LEVEL_TAPES.open()
        self._come_back()
        is_over = self._is_used and not self._persistent
        if self._builder is not builder and not is_over and self._is_followed_in(builder):
            self._go_inside(builder)
        elif self._builder is not builder or is_over:
            if self._builder is not None:  # there is something to forget
                self._forget()
            self._builder = builder
            self._is_used = False

    def _is_followed_in(self, builder: Builder) -> bool:
        """Whether the record applies in a builder: in its own, or in a trace inside that."""
        return bool(self._tracked) and self._is_within(builder)

    def _go_inside(self, trace: Any) -> None:
        """Starts a record for a trace, which extends the present one."""
        record = {name: value for name, value in vars(self).items() if name != "_entered"}
        outside = OuterTape(
            record, self._nodes, self._tracked, self._variables, self._outside, trace
        )
        self._forget()
        self._outside, self._builder, self._line = outside, trace, here()

    def _come_back(self) -> None:
        """Returns to the record that applies here if the tape was entered inside a trace."""
        if self._is_recording:
            return
        while self._outside is not None and not self._is_within(current()):
            watched, line = {**self._watched_inside, **self._variables}, self._line
            start = self._outside.start
            vars(self).update(self._outside.record)
            self._watched_inside, self._entered_inside = self._watched_inside | watched, line
            self._starts_inside += (start,)

    def _follow_captures(self) -> None:
        """Follows the trace's captures of tensors that were followed outside."""
        if self._outside is not None:
            self._tracked.update(self._outside.new_captures())

    def _inherit(self, sources: Sequence[Tensor]) -> None:
        """Adds the nodes outside that lie between the sources and the trace's captures."""
        if self._outside is not None:
            self._follow_captures()
            self._outside.refuse_arguments_among(sources)
            inherited = self._outside.nodes_from(sources)
            self._nodes = [*inherited, *self._nodes[len(self._inherited) :]]
            self._inherited = inherited
            self._follow_captures()

    def _start(self) -> None:
        assert self._builder is not None
        self._is_recording = True
        self._builder.recorders.append(self)
        self._history.start(self._builder)

    def _stop(self, cause: str) -> None:
        assert self._builder is not None
        self._is_recording = False
        self._builder.recorders.remove(self)
        self._history.stop(cause)

    # Called by builders.

    def record(self, node: Node) -> None:
        """Keeps `node` if it depends on something watched."""
        if self._outside is not None:
            self._follow_captures()
        outputs = node.depending(self._tracked)
        if outputs:
            self._nodes.append(node)
            self._tracked.update(outputs)
            self._operands.extend(node.inputs)
            self._operands.extend(node.outputs)
        else:
            self._history.pass_by(node)

    def depends_on(self, tensors: Sequence[Tensor]) -> bool:
        """Whether any of the tensors depends on something watched."""
        self._follow_captures()
        return not self._tracked.isdisjoint(tensors)

    def leave(self, tensor: Tensor, how: str) -> None:
        """A value goes to NumPy or to Python; from now on, values coming from there matter."""
        if how != BOOL:  # computes nothing, and is reported as a decision
            self._history.leave(tensor)
            self.has_left = True

    def decide(self, outcome: bool) -> None:
        """A Python `if` or similar needs the truth value of a tensor."""
        self._history.decide(outcome)

    def arrive(self, tensor: Tensor) -> None:
        """A value comes from NumPy."""
        self._history.arrive(tensor)

    def assign(self, handle: Tensor, assignment: Assignment) -> None:
        """A Variable is assigned at top level, where no node records it."""
        self._history.assign(handle, assignment)

    def access(self, variable: Variable) -> None:
        """Watches a trainable variable that is read."""
        is_watched = self._outside is not None and self._outside.has_watched(variable)
        if is_watched or (self._watches_variables and variable.trainable):
            self._watch_variable(variable)

    def _watch_variable(self, variable: Variable) -> None:
        assert self._builder is not None
        if id(variable) not in self._variables:
            self._variables[id(variable)] = variable
            if variable.dtype.is_differentiable:
                self._tracked.add(variable.handle_in(self._builder))

    # Called by users.

    @api_boundary
    def watch(self, tensor: Tensors) -> None:
        """Watches a tensor, a Variable, or a nested structure of them, from now on.

        Raises GradientError (a ValueError) for anything else, RuntimeError if the tape was never
        entered. An integer tensor cannot be watched: a UserWarning names its dtype.
        """
        if self._builder is None:
            self._refuse_never_entered()
        self._come_back()
        for number, leaf in enumerate(nest.flatten(tensor), start=1):
            if not isinstance(leaf, (Tensor, Variable)):
                fail(
                    GradientError,
                    f"object {number} passed to watch is of type {type(leaf).__name__!r}, "
                    "not a tg.Tensor or tg.Variable",
                    fix="watch the tensor itself: x = tg.constant(...); tape.watch(x)",
                )
            if not leaf.dtype.is_differentiable:
                _warn_dtype("watched tensor", leaf.dtype.name)
            elif isinstance(leaf, Variable):
                self._watch_variable(leaf)
            else:
                assert self._builder is not None
                self._tracked.add(leaf_tensor(leaf, self._builder))

    def _check_sees_each_node(self) -> None:
        """Rejects pausing inside a body, which is a single node to this tape."""
        builder = current()
        if builder is not self._builder and not builder.is_top_level:
            fail(
                TapeError,
                "stop_recording inside a branch, loop or function: this tape was opened outside "
                "it and records all of it as one node",
                fix="apply tg.stop_gradient to the values to leave out, or stop recording around "
                "the whole branch, loop or call",
            )

    @context
    def stop_recording(self) -> Generator[None, None, None]:
        """A context in which the tape records nothing.

        Raises RuntimeError if the tape was never entered, or in the body of a branch, a loop or a
        function traced inside the tape's block; ValueError if the block has ended.
        """
        if self._builder is None:
            fail(
                TapeError,
                "recording cannot be stopped on a tape that is not recording: it was never entered",
                fix="use `with tg.GradientTape() as tape:` first",
            )
        self._check_recording()
        self._check_sees_each_node()
        try:
            self._stop("stopped")
            yield
        finally:
            self._is_recording = True
            if self not in self._builder.recorders:  # an interrupt may have hit the stop
                self._builder.recorders.append(self)
            self._history.start(self._builder)

    def reset(self) -> None:
        """Discards everything recorded and watched. Raises ValueError outside the block."""
        if self._builder is None:
            self._refuse_never_entered()
        self._check_recording()
        assert self._builder is not None
        self._forget()
        self._outside = None
        self._history.is_after_reset = True
        self._history.start(self._builder)

    def _check_recording(self) -> None:
        if not self._is_recording:
            fail(
                GradientError,
                "the tape is not recording: its `with` block was left",
                fix="call this inside the `with` block",
            )

    def watched_variables(self) -> tuple[Variable, ...]:
        """The watched Variables, in order of creation."""
        self._come_back()
        return tuple(sorted(self._variables.values(), key=lambda variable: variable.number))

    @overload
    def gradient(
        self,
        target: Nest,
        sources: Tensor | Variable,
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> Tensor | None: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: Tensor | Variable,
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> Tensor: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: list[Tensor] | list[Variable],
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> list[Tensor | None]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: list[Tensor | Variable],
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> list[Tensor | None]: ...
    # Those of a model's Variables are often assigned anew, as the list of clipped gradients.
    @overload
    def gradient(
        self,
        target: Nest,
        sources: tuple[Variable, ...],
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> Sequence[Tensor | None]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: tuple[Tensor | Variable, ...],
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> tuple[Tensor | None, ...]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: list[Tensor] | list[Variable],
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> list[Tensor]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: list[Tensor | Variable],
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> list[Tensor]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: tuple[Variable, ...],
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> Sequence[Tensor]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: tuple[Tensor | Variable, ...],
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: dict[Key, Tensor] | dict[Key, Variable],
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> dict[Key, Tensor | None]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: dict[Key, Tensor | Variable],
        output_gradients: Nest = ...,
        *,
        unconnected_gradients: Literal["none", UnconnectedGradients.NONE],
    ) -> dict[Key, Tensor | None]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: dict[Key, Tensor] | dict[Key, Variable],
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> dict[Key, Tensor]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: dict[Key, Tensor | Variable],
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> dict[Key, Tensor]: ...
    @overload
    def gradient(
        self,
        target: Nest,
        sources: Tensors,
        output_gradients: Nest = ...,
        unconnected_gradients: UnconnectedGradients | str = ...,
    ) -> Any: ...
    @api_boundary
    def gradient(
        self,
        target: Nest,
        sources: Tensors,
        output_gradients: Nest = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """The gradient of `target` with respect to `sources`, in the structure of `sources`.

        - `target`: a tensor, a Variable, or a nested structure of them; the gradient is that of the
          sum of all their elements.
        - `sources`: tensors and Variables in any nested structure. The gradient with respect to
          each has its shape and dtype.
        - `output_gradients`: cotangents in the structure of `target`; None means ones.
        - `unconnected_gradients`: "none" gives None where target and source are not connected,
          "zero" gives zeros, "raise" raises a GradientError that says why, as `explain` does.

        Complex: the result is the cotangent times the conjugate of the derivative.

        For type checkers each gradient is a Tensor. Code that expects None passes
        `unconnected_gradients="none"`, which makes it `Tensor | None`.

        Raises RuntimeError if a tape that is not persistent is used twice or the tape was never
        entered, LookupError for an op without a gradient on the path, TypeError for sources that
        are not tensors, and GradientError (a ValueError) for cotangents that do not match the
        target.
        """
        self._check_usable()
        unconnected = as_unconnected(unconnected_gradients, can_raise=True)
        if target is None:
            refuse_target(target)
        targets = nest.flatten(target)
        ys = [self._target(leaf) for leaf in targets]
        leaves = nest.flatten(sources)
        xs = [self._source(leaf) for leaf in leaves]
        gs = self._cotangents(output_gradients, target, ys)
        with self._use():
            differentiable = [i for i, y in enumerate(ys) if y.dtype.is_differentiable]
            seeds = [gs[i] for i in differentiable]
            derive = cached_gradient if self._is_plain() else gradient
            found = self._between(
                [ys[i] for i in differentiable],
                xs,
                lambda ys, xs: derive(self._nodes, ys, xs, seeds),
            )
            found = [_divided_as(leaf, g) for leaf, g in zip(leaves, found, strict=True)]
            if len(ys) == 1 and ys[0].type.shape == () and gs[0] is None:
                self._mark_gradients(found, ys[0], xs)
        self._check_connected(unconnected, found, targets, leaves)
        if unconnected is UnconnectedGradients.ZERO:
            found = [
                zeros_like_leaf(x) if g is None else g for g, x in zip(found, leaves, strict=True)
            ]
        return nest.pack_sequence_as(sources, found)

    @overload
    def jacobian(
        self,
        target: Tensor | Variable,
        sources: Tensor | Variable,
        unconnected_gradients: UnconnectedGradients | str = ...,
        *,
        sparse: Literal[True],
        **options: Unpack[_JacobianOptions],
    ) -> SparseJacobian: ...
    @overload
    def jacobian(
        self,
        target: Tensor | Variable,
        sources: Tensor | Variable,
        unconnected_gradients: UnconnectedGradients | str = ...,
        *,
        sparse: Literal[False] = ...,
        **options: Unpack[_JacobianOptions],
    ) -> Tensor: ...
    @overload
    def jacobian(
        self,
        target: Tensor | Variable,
        sources: list[Tensor] | list[Variable] | list[Tensor | Variable],
        unconnected_gradients: UnconnectedGradients | str = ...,
        *,
        sparse: Literal[False] = ...,
        **options: Unpack[_JacobianOptions],
    ) -> list[Tensor]: ...
    @overload
    def jacobian(
        self,
        target: Tensor | Variable,
        sources: tuple[Tensor | Variable, ...],
        unconnected_gradients: UnconnectedGradients | str = ...,
        *,
        sparse: Literal[False] = ...,
        **options: Unpack[_JacobianOptions],
    ) -> tuple[Tensor, ...]: ...
    @overload
    def jacobian(
        self,
        target: Tensor | Variable,
        sources: Tensors,
        unconnected_gradients: UnconnectedGradients | str = ...,
        *,
        sparse: bool = ...,
        **options: Unpack[_JacobianOptions],
    ) -> Any: ...
    @api_boundary
    def jacobian(
        self,
        target: Tensor | Variable,
        sources: Tensors,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
        chunk_size: int | None = None,
        mode: str | None = None,
        sparse: bool = False,
    ) -> Any:
        """The Jacobian of `target` with respect to `sources`, in the structure of `sources`.

        The shape of each is the target's followed by the source's: entry [i..., j...] is the
        derivative of target[i...] with respect to source[j...].

        - `target`: one tensor or Variable; `sources`: any nested structure of them.
        - `unconnected_gradients`: "none" gives None where target and source are not connected,
          "zero" gives zeros, "raise" raises a GradientError that says why, as `explain` does.
        - `mode`: "reverse", "forward", or None to choose the cheaper one by the sizes.
        - `chunk_size`: how many rows or columns to compute at once, which bounds the memory. By
          default as many as fit, with the result, in 1 GiB.
        - `parallel_iterations`: another name for `chunk_size`; without `experimental_use_pfor` it
          is 1.
        - `sparse`: whether to return `tg.SparseJacobian`s. The graph tells which entries can be
          nonzero; rows or columns that do not overlap share a product, so a banded Jacobian takes
          as many products as its bandwidth, whatever its size.

        Raises what `gradient` raises, and GradientError (a ValueError) for a chunk size that is not
        a positive integer.

        >>> x = tg.constant([1.0, 2.0])
        >>> with tg.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> tape.jacobian(y, x).numpy()
        array([[2., 0.],
               [0., 4.]], dtype=float32)
        """
        self._check_usable()
        unconnected = as_unconnected(unconnected_gradients, can_raise=True)
        plan = _plan(parallel_iterations, experimental_use_pfor, chunk_size, mode)
        y = self._target(target)
        if sparse:
            return self._sparse_jacobian(target, y, sources, unconnected)
        leaves = nest.flatten(sources)
        xs = [self._source(leaf) for leaf in leaves]
        with self._use():
            found = self._between([y], xs, lambda ys, xs: self._jacobian(ys[0], xs, plan))
        self._check_connected(unconnected, found, [target], leaves)
        if unconnected is UnconnectedGradients.ZERO:
            zeros = (zeros_like_leaf(x, y.type.shape) for x in leaves)
            found = [zero if m is None else m for m, zero in zip(found, zeros, strict=True)]
        return nest.pack_sequence_as(sources, found)

    def _jacobian(self, y: Tensor, xs: list[Tensor], plan: JacobianPlan) -> list[Tensor | None]:
        if not self._is_plain():
            return jacobian(self._nodes, y, xs, plan)
        return cached_call(
            ("jacobian", plan),
            self._nodes,
            (y, *xs),
            [],
            lambda _: jacobian(self._nodes, y, xs, plan),
        )

    def _sparse_jacobian(
        self, target: Any, y: Tensor, sources: Any, unconnected: UnconnectedGradients
    ) -> Any:
        leaves = nest.flatten(sources)
        xs = [self._source(leaf) for leaf in leaves]
        for tensor in (y, *xs):
            _check_static(tensor)
        patterns: dict[Tensor, Sparsity] = {}

        def derive(ys: list[Tensor], xs: list[Tensor]) -> list[Tensor | None]:
            return [self._sparse_entries(y, x, patterns) for x in xs]

        with self._use():
            found = self._between([y], xs, derive)
        self._check_connected(unconnected, found, [target], leaves)
        zero = unconnected is UnconnectedGradients.ZERO
        results = []
        for x, values in zip(xs, found, strict=True):
            if values is None and zero:
                patterns[x] = nothing(y, x)
                values = full(0, y.type.with_shape((0,)))
            shapes = static_shape(y.type.shape), static_shape(x.type.shape)
            known = None if values is None else SparseJacobian(values, patterns[x], *shapes)
            results.append(known)
        return nest.pack_sequence_as(sources, results)

    def _sparse_entries(
        self, y: Tensor, x: Tensor, patterns: dict[Tensor, Sparsity]
    ) -> Tensor | None:
        between, known = subgraph_between(self._nodes, x, y, known_value)
        is_symmetric = _has_symmetric_jacobian(self, y, x)

        def derive(_: Any = None) -> tuple[list[Tensor | None], Sparsity]:
            pattern = sparsity(between, known, is_symmetric)
            return sparse_jacobian(self._nodes, y, x, pattern), pattern

        if self._is_plain():
            values = tuple((place, value.tobytes()) for place, value in known.items())
            kind = ("sparse", is_symmetric, values)
            nodes = with_integer_nodes(between, self._nodes)
            (found,), patterns[x] = cached_call_with_note(kind, nodes, (y, x), derive)
        else:
            (found,), patterns[x] = derive()
        return found

    @api_boundary
    def batch_jacobian(
        self,
        target: Tensor | Variable,
        source: Tensor | Variable,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
        chunk_size: int | None = None,
        mode: str | None = None,
    ) -> Tensor:
        """The Jacobian of each row target[b] with respect to the row source[b].

        The shape is (b, *target.shape[1:], *source.shape[1:]). It is zero where target and source
        are not connected, or a GradientError if `unconnected_gradients` is "raise". Other
        arguments are those of `jacobian`.

        Raises GradientError (a ValueError) if the first sizes differ, if a rank is below 2, or if
        a row of the target depends on another row of the source.

        >>> x = tg.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> with tg.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> tape.batch_jacobian(y, x).numpy()[1]
        array([[6., 0.],
               [0., 8.]], dtype=float32)
        """
        self._check_usable()
        unconnected = as_unconnected(unconnected_gradients, can_raise=True)
        plan = _plan(parallel_iterations, experimental_use_pfor, chunk_size, mode)
        y, x = self._target(target), self._source(source)
        _check_rows(y, x)
        with self._use():
            (found,) = self._between(
                [y], [x], lambda ys, xs: self._batch_jacobian(ys[0], xs[0], plan)
            )
        self._check_connected(unconnected, [found], [target], [source])
        return zeros_like_leaf(source, y.type.shape, 1) if found is None else found

    def _batch_jacobian(self, y: Tensor, x: Tensor, plan: JacobianPlan) -> list[Tensor | None]:
        between, known = subgraph_between(self._nodes, x, y, known_value)

        def derive(_: Any = None) -> list[Tensor | None]:
            check_rows_independent(between, known)
            return batch_jacobian(self._nodes, y, x, plan)

        if not self._is_plain():
            return derive()
        values = tuple((place, value.tobytes()) for place, value in known.items())
        kind = ("batch_jacobian", plan, values)
        return cached_call(kind, with_integer_nodes(between, self._nodes), (y, x), [], derive)

    def pushed_forward(
        self, targets: Sequence[Any], sources: Sequence[Any], tangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """The derivatives of the targets along the direction `tangents` of the sources."""
        self._check_usable()
        ys, xs = [self._target(y) for y in targets], [self._source(x) for x in sources]
        with self._use():
            found = jvp(self._nodes, ys, xs, tangents)
        return [zeros_like_leaf(y) if t is None else t for y, t in zip(ys, found, strict=True)]

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        """A context for using the tape. It ends a non-persistent tape, which has one use."""
        if self._is_recording and not self._persistent:
            self._stop("used")
        yield
        if not self._persistent:
            variables, history = self._variables, self._history
            is_incomplete = self._is_incomplete
            if is_incomplete:
                history.keep(self._nodes, self._tracked)
            self._forget()
            self._variables, self._is_used, self._outside = variables, True, None
            if is_incomplete:
                self._history, self._is_incomplete = history, True

    def _between(
        self,
        ys: list[Tensor],
        xs: list[Tensor],
        derive: Callable[[list[Tensor], list[Tensor]], list[Tensor | None]],
    ) -> list[Tensor | None]:
        """The result of `derive` for targets and sources; None for sources that are not watched.

        A target is connected to itself, watched or not; a Variable, read or not.
        """
        self._inherit(xs)
        sources = [
            x
            for x in dict.fromkeys(xs)
            if x.dtype.is_differentiable and (x in self._tracked or self._is_own(x, ys))
        ]
        targets = [y for y in ys if y.dtype.is_differentiable]
        self._check_whole(targets, xs)
        found = derive(targets, sources) if sources and targets else []
        by_source = dict(zip(map(id, sources), found))
        by_leaf = [by_source.get(id(x)) for x in xs]
        self._is_incomplete = self._is_incomplete or any(g is None for g in by_leaf)
        return by_leaf

    def _is_own(self, x: Tensor, ys: list[Tensor]) -> bool:
        """Whether an unwatched tensor is itself a target. If another target was recorded along with
        it, their relation is unknown, and there is no gradient."""
        if all(x is not y for y in ys):
            return False
        is_alone = self._tracked.isdisjoint(ys)
        return is_alone or all(x is not operand for node in self._nodes for operand in node.inputs)

    # Why a gradient is None.

    @api_boundary
    def explain(self, target: Nest, source: Nest) -> Explanation:
        """Why the gradient of `target` with respect to `source` is None.

        `str()` of the result names the reason, the line and the fix; `reason`, `file`, `line` and
        `path` (the lines from the source to the break) are also attributes. If the two are
        connected, the result says so, and explains a gradient of 0 that is due to a branch not
        taken or a loop that ran 0 times.

        - `target`: a tensor, a Variable, or a nested structure of them.
        - `source`: one tensor or Variable.

        Works before and after `gradient`, even if that used up the tape.

        Raises RuntimeError if the tape was never entered, or is used up and found every gradient;
        TypeError for anything but tensors.

        >>> x = tg.Variable(2.0, name="x")
        >>> with tg.GradientTape() as tape:
        ...     y = tg.stop_gradient(x) * 3.0
        >>> tape.gradient(y, x)
        >>> tape.explain(y, x).reason
        'stop_gradient'
        """
        self._check_place()
        return self._explanation(nest.flatten(target), source)

    def _explanation(self, targets: Sequence[Any], source: Any) -> Explanation:
        assert self._builder is not None
        for leaf in targets:
            if not _is_tensor(leaf):
                refuse_target(leaf)
        if not _is_tensor(source):
            refuse_source(source)
        pairs = [(leaf, leaf_tensor(leaf, self._builder)) for leaf in targets]
        if not pairs:
            refuse_target(None)
        return _explaining().explain(
            self._known(), pairs, source, leaf_tensor(source, self._builder)
        )

    def _known(self) -> TapeRecord:
        """The tape's record, even after it is used up."""
        assert self._builder is not None
        record = _explaining().TapeRecord
        history, watches = self._history, self._watches_variables
        if self._persistent or not self._is_used:
            tracked = self._tracked.__contains__
            return record(history, self._nodes, tracked, watches, self._builder)
        if not self._is_incomplete:
            fail(
                TapeError,
                "the tape was used, and kept nothing to explain: none of its gradients was None",
                fix="create it with tg.GradientTape(persistent=True), or ask before the gradient",
            )
        return record(history, history.followed, history.had_tracked, watches, self._builder)

    def _check_connected(
        self,
        unconnected: UnconnectedGradients,
        found: Sequence[Any],
        targets: Sequence[Any],
        sources: Sequence[Any],
    ) -> None:
        """Raises GradientError for the first unconnected source, if the user asked for that, or if
        what connects it may have been recorded in a trace that is left."""
        if self._entered_inside is not None and self._persistent:
            self._check_not_inside(found, targets, sources)
        if unconnected is UnconnectedGradients.RAISE:
            for g, source in zip(found, sources, strict=True):
                if g is None:
                    fail(GradientError, self._explanation(targets, source).text, source=UNKNOWN)

    def _check_not_inside(
        self, found: Sequence[Any], targets: Sequence[Any], sources: Sequence[Any]
    ) -> None:
        assert self._builder is not None
        ys = [leaf_tensor(leaf, self._builder) for leaf in targets]
        for g, source in zip(found, sources, strict=True):
            if g is None and (id(source) in self._watched_inside or self._tracked.isdisjoint(ys)):
                self._refuse_lost()

    def _check_whole(self, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        """Refuses a gradient from which paths through a trace that is left would be missing."""
        if not (self._starts_inside and isinstance(self._builder, Trace)):
            return
        inside = {v.handle_in(self._builder) for v in self._watched_inside.values()}
        for x in self._tracked.union(inside).intersection(xs):
            for start in self._starts_inside:
                if not lost_inside(self._builder, start, x).isdisjoint(ys):
                    self._refuse_lost()

    def _refuse_lost(self) -> NoReturn:
        fail(
            LeakedTapeError,
            "the tape was entered again inside a branch, a loop or a function that was traced, and "
            "what it recorded there is out of scope",
            operands=[f"entered again at {self._entered_inside}"],
            fix="compute the gradient there and return it, or enter the tape around all of that "
            "branch, loop or call",
        )

    def _mark_gradients(
        self, gradients: Sequence[Tensor | None], y: Tensor, xs: Sequence[Tensor]
    ) -> None:
        """Marks, in open tapes, the gradients of a scalar, whose Jacobians are symmetric."""
        tapes = [tape for tape in current().recorders if isinstance(tape, GradientTape)]
        for g, x in zip(gradients, xs, strict=True):
            if tapes and g is not None and not x.dtype.is_complex:
                whole = [t for t in tapes if is_whole_gradient(self._nodes, t._nodes, y, x)]
                g._gradient_of = weakref.ref(x), weakref.WeakSet(whole)

    def _is_plain(self) -> bool:
        """Whether the derivative may be one call: if another tape is open, it must see every
        node."""
        builder = current()
        return builder.is_top_level and builder is self._builder and not builder.recorders

    def _check_usable(self) -> None:
        if self._builder is None:
            self._refuse_never_entered()
        self._come_back()
        if self._is_used and not self._persistent:
            fail(
                TapeError,
                "a GradientTape that is not persistent computes one set of gradients, and this "
                "one was used already",
                fix="create it with tg.GradientTape(persistent=True), and `del` it after use",
            )
        self._check_place()

    def _check_place(self) -> None:
        if self._builder is None:
            self._refuse_never_entered()
        self._come_back()
        builder = current()
        if isinstance(self._builder, Trace) and not self._is_within(builder):
            line = self._builder.region or self._builder.parallel
            of_region = f"the branch or the body of the loop at {line}"
            fail(
                LeakedTapeError,
                "the tape is out of scope: it was opened inside "
                f"{'a @tg.function that was traced' if line is None else of_region}",
                fix=f"compute the gradient inside {'the function' if line is None else 'it'} "
                "and return it",
            )

    def _is_within(self, builder: Any) -> bool:
        while builder is not self._builder and isinstance(builder, Trace):
            builder = builder.outer
        return builder is self._builder

    def _refuse_never_entered(self) -> None:
        fail(
            TapeError,
            "the tape has recorded nothing: it was never entered",
            fix="compute the target inside `with tg.GradientTape() as tape:`",
        )

    def _target(self, leaf: Any) -> Tensor:
        if not _is_tensor(leaf):
            refuse_target(leaf)
        return self._leaf("target", leaf)

    def _source(self, leaf: Any) -> Tensor:
        if not _is_tensor(leaf):
            refuse_source(leaf)
        return self._leaf("source", leaf)

    def _leaf(self, what: str, leaf: Any) -> Tensor:
        if not leaf.dtype.is_differentiable:
            _warn_dtype(what, leaf.dtype.name)
        assert self._builder is not None
        outside = self._outside
        if outside is not None and isinstance(leaf, Variable) and outside.has_watched(leaf):
            self._watch_variable(leaf)  # it may not have been read in this trace
        return leaf_tensor(leaf, self._builder)

    def _cotangents(self, given: Any, target: Any, ys: list[Tensor]) -> list[Tensor | None]:
        if given is None:
            return [None] * len(ys)
        leaves = nest.flatten(given) if nest.is_nested(target) else [given]
        own, wanted = structure_of(given), structure_of(target)
        is_flat = isinstance(given, (list, tuple)) and own.matches(structure_of(type(given)(ys)))
        if nest.is_nested(target) and not own.matches(wanted) and not is_flat:
            fail(
                GradientError,
                f"output_gradients has the structure {own}, and the target {wanted}",
                fix="give one cotangent for each target, None meaning ones",
            )
        return [cotangent_of(g, y) for g, y in zip(leaves, ys, strict=True)]


class LeakedTapeError(GradientError, TraceError):
    """A GradientError, where TensorFlow raises TypeError: the tape belongs to a finished trace."""


class SourceError(GradientError, TypeError):
    """A GradientError, where TensorFlow raises TypeError: a target or source is not a tensor."""


def leaf_tensor(leaf: Any, builder: Builder) -> Tensor:
    """The tensor in `builder` for a tensor or a Variable: its handle, or its capture."""
    if isinstance(leaf, Variable):
        return leaf.handle_in(builder)
    if isinstance(builder, Trace):
        return builder.admit_all((leaf,))[0]
    node = leaf.node
    if node is not None and isinstance(node.builder, Trace):
        refuse_leaked(leaf)
    return leaf


def structure_of(value: Any) -> nest.Structure:
    """The structure of a nest, counting None as a leaf."""
    return nest.flatten_structure(value, none_is_leaf=True)[1]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, Variable))


def refuse_target(target: Any) -> None:
    fail(
        SourceError,
        f"the target of a gradient is {kind_of(target)}: {shown(target)}",
        fix="pass one tensor: tg.concat the parts, or ask for each by itself"
        if isinstance(target, (list, tuple, dict))
        else "pass a tg.Tensor, a tg.Variable, or a nested structure of them",
    )


def refuse_source(source: Any) -> NoReturn:
    fail(
        SourceError,
        f"a source of a gradient is {kind_of(source)}: {shown(source)}",
        fix="pass tg.Tensors or tg.Variables as sources",
    )


def cotangent_of(given: Any, y: Tensor) -> Tensor | None:
    if given is None:
        return None
    try:
        g = as_tensor(given, None if _is_tensor(given) else y.dtype)
    except (DTypeError, ShapeError) as error:
        fail(
            GradientError,
            f"an output gradient does not fit its target {y.type}: {fact_of(error)}",
            fix="give a cotangent of the shape and the dtype of the target",
        )
    if not g.type.fits(y.type):
        fail(
            GradientError,
            f"an output gradient is {g.type} and its target is {y.type}",
            operands=[operand_text(g), operand_text(y)],
            fix="give a cotangent of the shape and the dtype of the target",
        )
    return g


def as_unconnected(value: Any, can_raise: bool = False) -> UnconnectedGradients:
    """The user's choice, checked; "raise" is only for tapes, which know the reason."""
    try:
        choice = UnconnectedGradients(value)
    except ValueError:
        choice = None
    if choice is None or (choice is UnconnectedGradients.RAISE and not can_raise):
        names = "'none', 'zero' or 'raise'" if can_raise else "'none' or 'zero'"
        fail(
            GradientError,
            f"unconnected_gradients is {value!r}, and it must be {names}",
            fix="use tg.UnconnectedGradients.NONE or tg.UnconnectedGradients.ZERO",
        )
    return choice


def zeros_like_leaf(source: Any, rows: Any = (), shared: int = 0) -> Tensor:
    """Zeros like a source, with `rows` for its first `shared` axes."""
    type = source.handle.type if isinstance(source, Variable) else source.type
    if not (rows or shared):
        return full(0, type)  # of any rank
    return full(0, type.with_shape((*rows, *type.shape[shared:])))


def _plan(
    parallel_iterations: Any, use_pfor: bool, chunk_size: Any, mode: str | None
) -> JacobianPlan:
    if mode not in (None, "reverse", "forward"):
        fail(
            GradientError,
            f"mode is {mode!r}, and it must be 'reverse', 'forward' or None",
            fix="leave it out: the cheaper one is chosen by the sizes",
        )
    for name, size in (
        ("chunk_size", chunk_size),
        ("parallel_iterations", parallel_iterations),
    ):
        if size is not None and (type(size) is not int or size < 1):
            fail(
                GradientError,
                f"{name} is {shown(size)}, and it must be a positive integer",
                fix="leave it out: as many rows are computed at once as memory allows",
            )
    if chunk_size is None:
        chunk_size = parallel_iterations if use_pfor or parallel_iterations else 1
    return JacobianPlan(mode, chunk_size)


def _has_symmetric_jacobian(tape: GradientTape, y: Tensor, x: Tensor) -> bool:
    """Whether y is known to be the gradient, with respect to x, of a scalar the tape has seen."""
    try:
        source, tapes = y._gradient_of
    except AttributeError:
        return False
    return source() is x and tape in tapes


def _check_static(tensor: Tensor) -> None:
    if not tensor.type.is_static:
        fail(
            SizeNeeded,
            f"a sparse Jacobian needs every size, and {tensor.type} has open ones",
            operands=[operand_text(tensor)],
            fix="give the sizes in the TensorSpec, or leave out sparse=True",
        )


def _check_rows(y: Tensor, x: Tensor) -> None:
    for what, tensor in (("target", y), ("source", x)):
        if len(tensor.type.shape) < 2:
            fail(
                GradientError,
                f"batch_jacobian: the {what} is {tensor.type}, and it must have a batch axis and "
                "at least one more",
                operands=[operand_text(tensor)],
                fix="give each row an axis of its own: x[:, tg.newaxis]",
            )
    if same_size(y.type.shape[0], x.type.shape[0]) is None:
        fail(
            GradientError,
            f"batch_jacobian: the target has {y.type.shape[0]} rows and the source "
            f"{x.type.shape[0]}",
            operands=[operand_text(y), operand_text(x)],
            fix="use tape.jacobian, which needs no rows in common",
        )


def _warn_dtype(what: str, name: str) -> None:
    warn(
        f"the dtype of the {what} must be floating, such as float32, and it is {name}: "
        "its gradient is None"
    )
