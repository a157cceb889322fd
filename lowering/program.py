"""Programs: a graph compiled as one XLA computation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from lowering import disk, memory, sizes
from lowering.device import (
    WIDE,
    chosen_device,
    in_device_memory,
    is_staging,
    memory_bytes,
    on_worker_thread_here,
    outside_of_traces,
    x64,
)
from lowering.distribution import layout, processes
from lowering.distribution.agreement import agree, is_of_all
from lowering.forms import for_this_process
from lowering.places import is_of_several_devices, on_one_device, usual_device
from lowering.rules import RULES, Rule
from tracegraph.core.interrupts import (
    COLLECTS_IN_C,
    Disturbed,
    call_uncollected,
    is_of_interrupt,
    outside_interrupts,
)
from tracegraph.core.recursion_limit import headroom, recursion_limit
from tracegraph.core.source import operation_name, place_of_thread
from tracegraph.core.types import TensorType, bytes_of_type, token
from tracegraph.core.worker_thread import is_undisturbed, may_be_left, on_worker_thread
from tracegraph.errors import (
    DTypeError,
    GradientError,
    InvalidArgumentError,
    LoweringError,
    ResourceExhaustedError,
    ShapeError,
    fail,
    is_of_run,
    message,
)
from tracegraph.ir import slow_compiles
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import Graph, Node, Tensor
from tracegraph.ops.barrier import Barrier
from tracegraph.ops.contract import Conv

#: Bodies with calls nested deeper than this are inlined: JAX traces a function inside a function by
#: recursion, which Python limits.
_DEEPEST = 16


#: The suffix that the text of graphs appends to a name already taken. It is not part of a program's
#: name, or a saved model's programs would differ from those compiled before it was saved.
_NUMBER = re.compile(r"(\.\d+)+$")


class Lowering:
    """How nodes become JAX operations: through the table of rules."""

    def opens(self, op: Op) -> bool:
        """Whether an op may be replaced by the nodes of its `inlined` graph."""
        return True

    def rule(self, node: Node) -> Rule | None:
        """The rule that lowers a node."""
        return RULES.get(type(node.op))


BY_TABLE = Lowering()

_exhaust = deque(maxlen=0).extend


def graph_function(graph: Graph, way: Lowering = BY_TABLE) -> Callable[..., tuple[Any, ...]]:
    """A JAX-traceable function of the graph's inputs that returns the tuple of its outputs."""

    def run(*arrays: Any) -> tuple[Any, ...]:
        place = place_of_thread()
        source = place.source
        try:
            on_device = [*map(in_device_memory, arrays)]
            with headroom():  # branches and loops inside run this again, far below JAX's frames
                return _lowered(graph, layout.on_mesh(graph, on_device), way)
        finally:
            place.source = source  # a plain store, which no interrupt can split

    run.__name__ = run.__qualname__ = _NUMBER.sub("", graph.name)
    return run


def _undisturbed(run: Callable[..., Any], is_sharded: bool) -> Callable[..., Any]:
    """The function, for JAX to trace where no handler can strike; elsewhere JAX gets an empty one.

    For each context of a thread, such as `jax.enable_x64(True)`, JAX traces a function again. The
    call that does so runs Python before and after it overwrites the donated buffers. A handler that
    struck there would find its Variables without values, or see its own assignments overwritten.
    The program that does nothing can be run at any time, and tells by its lack of outputs that the
    call must be made on another thread.
    """

    @functools.wraps(run)
    def traced(*arrays: Any) -> Any:
        if is_undisturbed():
            return run(*arrays)
        if is_sharded:  # JAX has shardings for outputs
            raise Disturbed
        return ()

    return traced


class _Body:
    """A graph being lowered: its remaining nodes, and the values so far."""

    def __init__(self, graph: Graph, arrays: Sequence[Any]) -> None:
        #: What the names of open sizes stand for, in a program for every size.
        graph, self.sizes = sizes.specialised(graph, arrays)
        self.outputs = graph.outputs
        self.nodes = iter(graph.nodes)
        self.env: dict[Tensor, Any] = dict(zip(graph.inputs, arrays, strict=True))


def _lowered(graph: Graph, arrays: Sequence[Any], way: Lowering) -> tuple[Any, ...]:
    """The outputs of `graph` for JAX's arrays."""
    open_bodies: list[tuple[_Body, Node | None]] = [(_Body(graph, arrays), None)]
    while True:
        body, caller = open_bodies[-1]
        with sizes.named(body.sizes):
            inner = _lower_nodes(body, way)
        if inner is not None:
            open_bodies.append(inner)
            continue
        outputs = tuple([body.env[y] for y in body.outputs])
        open_bodies.pop()
        if caller is None:
            return outputs
        open_bodies[-1][0].env.update(zip(caller.outputs, outputs, strict=True))


def _lower_nodes(body: _Body, way: Lowering) -> tuple[_Body, Node] | None:
    """Lowers the remaining nodes; stops at a call that must be inlined, and returns its body and
    its node."""
    place = place_of_thread()
    for node in body.nodes:
        place.source = node.source
        graph = node.op.inlined
        if graph is not None and way.opens(node.op) and _depth(graph) > _DEEPEST:
            return _Body(graph, [body.env[x] for x in node.inputs]), node
        _lower_node(node, body.env, way)
    return None


def _depth(graph: Graph) -> int:
    """How deep calls are nested in `graph`; cached on every graph that it calls."""
    if "depth" not in graph.cache:
        for inner in graph.graphs():  # callees first
            callees = [called for node in inner.nodes for called in node.op.graphs()]
            deepest = max((callee.cache["depth"] for callee in callees), default=-1)
            inner.cache["depth"] = deepest + 1
    return graph.cache["depth"]


class RecursionLoweringError(LoweringError, RecursionError):
    """A LoweringError where JAX raises RecursionError: branches and loops are nested too deeply."""


def _refuse_nest(graph: Graph, error: RecursionError) -> NoReturn:
    fail(
        RecursionLoweringError,
        f"{graph.name}: branches, loops and functions are nested {_depth(graph)} deep, and "
        f"Python's recursion limit of {recursion_limit()} was reached while JAX lowered them",
        fix="nest fewer of them: use one loop over the combinations of the indices, or call some "
        "of the functions outside the loops; a higher limit lets XLA overflow its own stack",
        cause=error,
    )


def _lower_node(node: Node, env: dict[Tensor, Any], way: Lowering) -> None:
    rule = way.rule(node)
    if rule is None:
        raise LoweringError(
            message(f"{node.op.name}: there is no lowering rule for this op", source=node.source)
        )
    try:
        with jax.named_scope(operation_name(node.source)):  # so that XLA names the user's line
            results = rule(node.op, *[env[x] for x in node.inputs])
    except (DTypeError, GradientError, LoweringError, RecursionError, ShapeError):
        raise  # our own: it already has its place; or about the nest of graphs around the node
    except outside_interrupts(Exception) as error:
        first = str(error).split("\n")[0]
        raise LoweringError(
            message(
                f"{node.op.name}: XLA refuses this op: {first}",
                source=node.source,
                operands=[str(x.type) for x in node.inputs],
                fix=sizes.fix([env[x].shape for x in node.inputs]),
            )
        ) from error
    if len(node.outputs) == 1 and not isinstance(results, tuple):
        results = (results,)
    for y, array in zip(node.outputs, results, strict=True):
        env[y] = sizes.aligned(y.type, array)


def _is_refusal(error: BaseException) -> bool:
    """Whether JAX may have refused a call for the kind or place of its arrays."""
    is_of_kind = isinstance(error, TypeError | ValueError)
    return is_of_kind and not is_of_run(error) and not is_of_interrupt(error)


class Memory(NamedTuple):
    """Bytes that a program needs: for arguments, results, results stored in the buffers of
    arguments, and temporaries."""

    arguments: int
    results: int
    shared: int
    temporaries: int


@dataclasses.dataclass(frozen=True)
class Compile:
    """A program that was compiled, or read from disk: its graph, the line of its first node, the
    types of its inputs, its number of nodes, the time it took, and whether it was read: then its
    operations have the lines of the process that compiled it. `made` are the types of what its
    first nodes make."""

    name: str
    place: str
    types: tuple[TensorType, ...]
    nodes: int
    seconds: float
    is_read: bool
    made: tuple[TensorType, ...]

    @property
    def module(self) -> str:
        """The name of XLA's module, without underscores at the end."""
        return f"jit_{_NUMBER.sub('', self.name)}".rstrip("_")


#: Of how many nodes of a program the types are kept.
_TYPES_KEPT = 200
#: The latest programs that this process compiled.
compiles: deque[Compile] = deque(maxlen=1000)


class Program:
    """A compiled graph: called with a flat tuple of buffers, returns the tuple of outputs.

    `donated` are positions of inputs whose buffers the program may overwrite. 64-bit data types
    exist only inside JAX's x64 context, so a program that uses any runs in it; JAX's global
    settings never change. While JAX traces somebody else's function, programs run outside its
    trace, on values. Effects are not part of a program: see `tracegraph.effects.procedure`.
    """

    #: Whether calls may run on another device than the first did: then it keeps `jitted`, since the
    #: compiled form is for one device, to which JAX would silently move the arguments.
    takes_any_device = False

    def __init__(self, graph: Graph, donated: Sequence[int] = ()) -> None:
        assert graph.is_static, f"@{graph.name} has sizes that are not known"
        _check_memory(graph)
        self.graph = graph
        self.needs_x64 = _has_64_bits(graph)
        self.donated = tuple(donated)
        #: How long it took to compile; None if it is not compiled.
        self.compile_seconds: float | None = None
        #: Whether it was not compiled, but loaded from beside a saved model.
        self.is_of_saved_model = False
        #: Whether every run may be abandoned by an interrupt, and not only the first.
        self.may_be_left = graph.may_never_end
        self._is_kept = False
        self.has_run_in: object = None
        #: The kinds of calls that ran on a worker thread.
        self._known: set[tuple[Any, ...]] = set()
        self.renew()
        if _has(Barrier, graph) or _has(Conv, graph):
            _for_one_device.add(self)  # because of its compiler options

    def renew(self) -> None:
        """Resets the program. JAX refuses a function whose trace an interrupt left unfinished."""
        #: Identifies everything made since the reset: an abandoned run must not affect it.
        self.life = object()
        self._known = set()
        #: JAX's function for calls that must not wait for another entry: see `_called_apart`.
        self._spare: Any = None
        for inner in self.graph.graphs():
            inner.cache.pop("lowered", None)
        self._options = _compiler_options(self.graph)
        #: Whether `run` is the compiled form.
        self._runs_compiled = False
        #: The C++ entry point itself, with no Python frame between it and the execution; None
        #: before the first run, and once released.
        self.jitted: Any = None
        #: The compiled form, for arrays like those of the first call; None if that call was staged.
        self._compiled: Any = None
        #: The fastest entry, to be called while collection is off; None before it is prepared.
        self.run: Any = None
        #: Held during preparation, by a thread of this life.
        self._preparing = threading.RLock()
        #: JAX's mesh, if several devices run it, and whether it runs on no other.
        self.mesh: Any = None
        self.is_bound = False
        #: Whether all processes run it together, and what it is known by once they have agreed.
        self.is_of_all = False
        self.identity: str | None = None

    def _new_jitted(self, buffers: Sequence[Any] = ()) -> Any:
        """JAX's function; for buffers on several devices, one that keeps them there."""
        mesh = layout.home_of(self.graph, buffers)
        shardings = layout.output_shardings(self.graph, buffers, mesh)
        run = for_this_process(graph_function(self.graph))
        run = layout.with_outputs_in_order(run, shardings)
        return jax.jit(
            _undisturbed(run, any(shardings)) if self._is_atomic else run,
            donate_argnums=self.donated,
            compiler_options=self._options,
            out_shardings=shardings if any(shardings) else None,
        )

    def precompile(self, folder: Path) -> None:
        """Compiles for the types of the inputs and keeps the program in a folder."""
        self.renew()
        types = [shape_struct(x.type) for x in self.graph.inputs]
        on_worker_thread_here(lambda: self._prepare(types, folder))

    def _prepared(self, buffers: Sequence[Any]) -> Callable[..., Any]:
        """The callable that runs the program, read once: a failure in another thread may reset the
        program at any time. Of several threads that call it first, one compiles and the others
        wait."""
        if (run := self.run) is not None:
            return run
        with self._preparing:
            return self.run or self._prepare(buffers)

    def _prepare(self, buffers: Sequence[Any], folder: Path | None = None) -> Callable[..., Any]:
        """Compiles, through the folder of compiled programs if there is one, and returns the
        callable that runs the program. What is compiled during somebody else's trace is not
        kept."""
        life = self.life
        self.mesh = layout.home_of(self.graph, buffers)
        self.is_bound = any(layout.output_shardings(self.graph, buffers, self.mesh))
        self.is_of_all = is_of_all(buffers, self.mesh)
        jitted = self.jitted = self._new_jitted(buffers)
        run = self._entry_of(jitted)
        if not is_staging():
            self._compile(jitted, buffers, folder)
        if self.life is life:  # it was not reset meanwhile
            self.run = run
        return run

    def _compile(self, jitted: Any, buffers: Sequence[Any], folder: Path | None) -> None:
        start = time.perf_counter()
        with x64() if self.needs_x64 else contextlib.nullcontext():
            lowered = jitted.lower(*buffers)
            if self.is_of_all and folder is None:  # it is about to run
                self.identity = agree(self.graph, lowered, buffers, self.mesh)
            origin = disk.compile_with_cache(lowered, self._options, folder)
            self.is_of_saved_model = origin is disk.Origin.SAVED_MODEL
            self._compiled = lowered.compile()  # cached, so the next call finds it
        self.compile_seconds = time.perf_counter() - start
        is_read = origin is not disk.Origin.COMPILED
        compiles.append(_compile_of(self.graph, self.compile_seconds, is_read))
        _note_compiled(self)

    def _entry_of(self, jitted: Any) -> Callable[..., Any]:
        if self.needs_x64 and self.takes_any_device:  # another device may require a new trace

            def run(*buffers: Any) -> tuple[Any, ...]:
                with x64():
                    return jitted(*buffers)

            return self._bound(run)
        return self._bound(jitted)

    def _run_compiled(self) -> None:
        self.run, self._runs_compiled = self._bound(self.compiled()), True
        _for_one_device.add(self)

    def let_device_vary(self) -> None:
        """Makes calls run on the chosen device, whichever the first call ran on."""
        if self._runs_compiled or self._options != _compiler_options(self.graph):
            self.renew()
        self.takes_any_device = True

    @property
    def _is_atomic(self) -> bool:
        """Whether runs may overwrite buffers or Variables, so that no handler may strike in one."""
        return bool(self.donated) or self._is_kept

    def keep(self) -> None:
        """Keeps `jitted` for good, for callers that allow no Python frame between it and the
        run."""
        if self.jitted is None or not self._is_atomic:
            self.renew()
        self._is_kept = True

    def let_go(self) -> None:
        """Drops `jitted`, and with it JAX's trace and module, which are most of a small program's
        memory. The compiled form stays, and costs each call one more Python frame of JAX's."""
        is_needed = self._is_kept or self.takes_any_device
        if self._compiled is not None and self.has_run and not is_needed:
            self._run_compiled()
            self.jitted = None

    def __call__(self, *buffers: Any) -> tuple[Any, ...]:
        kind = self.kind(buffers)
        if not self.may_be_left and kind in self._known:
            return self._called_again(buffers)
        try:
            outputs = on_worker_thread_here(lambda: self._noted(buffers))
        except BaseException:
            if not self.has_run:
                self.renew()  # the thread may be stuck inside JAX's function
            raise
        self._known.add(kind)  # never asked for again if a handler has reset the program
        return outputs

    def _called_again(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        run = self.run  # None if an interrupt has reset the program
        if run is not None and not (self.needs_x64 or self._is_atomic):
            try:
                return call_uncollected(run, buffers)
            except Exception as error:
                if is_of_interrupt(error):
                    raise
        return self._called(buffers)

    def _noted(self, buffers: Sequence[Any]) -> tuple[Any, ...]:
        if self.has_run or slow_compiles.is_noted(self.graph):
            return self._called(buffers)
        with slow_compiles.noted(self.graph):
            return self._called(buffers)

    @property
    def has_run(self) -> bool:
        """Whether it has run since it was reset."""
        return self.has_run_in is self.life

    def kind(self, buffers: Sequence[Any]) -> tuple[Any, ...]:
        """What JAX distinguishes calls by, apart from settings of the thread: the chosen device,
        and which buffers are NumPy's arrays. The first call of each kind runs on a worker thread:
        JAX runs Python between its parts."""
        device = chosen_device() if self.takes_any_device else None
        return (self.life, device, *map(type, buffers))

    def _called(self, buffers: Sequence[Any]) -> tuple[Any, ...]:
        life = self.life
        try:
            if self.run is None:
                mesh = layout.home_of(self.graph, buffers)
                buffers = buffers if mesh is None else layout.moved(buffers, mesh)
            run = self._prepared(buffers)
            is_usual = self.has_run and not self.may_be_left
            with x64() if self.needs_x64 else contextlib.nullcontext():
                call = call_uncollected if is_usual else self._run_alone
                outputs = call(run, tuple(buffers))
            if self._is_atomic and not outputs:
                raise Disturbed
            self.has_run_in = life
            return outputs
        except BaseException as error:
            if memory.is_exhausted(error):
                raise self.exhausted(error) from None
            if self.is_disturbed(error):
                return self._called_apart(buffers, isinstance(error, RecursionError))
            if isinstance(error, RecursionError) and not is_of_interrupt(error):
                self.renew()
                _refuse_nest(self.graph, error)
            # The compiled form takes only arrays like those of the first call, `jitted` takes all.
            if self.is_movable(error, buffers):
                return self(*layout.moved(buffers, self.mesh))
            is_of_several = is_of_several_devices(error, buffers)
            is_other_kind = not is_of_several and self._is_of_other_kind(error, buffers)
            if not self.has_run or is_other_kind:
                self.renew()
            self.takes_any_device |= is_other_kind
            if not (is_other_kind or is_of_several or self.is_refused_by_a_trace(error)):
                raise
            buffers = on_one_device(buffers) if is_of_several else buffers
        with outside_of_traces():
            return self(*buffers)

    def is_disturbed(self, error: BaseException) -> bool:
        """Whether JAX refused a run because a signal handler might strike in it, or because it
        began in a handler that struck in the same one."""
        if isinstance(error, RecursionError):
            return not is_undisturbed() and not is_of_interrupt(error)
        return isinstance(error, Disturbed)

    def _called_apart(self, buffers: Sequence[Any], is_nested: bool) -> tuple[Any, ...]:
        """A call on a worker thread. If it is nested in another one of this program, it needs an
        entry that the main thread is not in: waiting for that would deadlock."""
        if not self._is_atomic:
            return on_worker_thread(lambda: self._called_by_spare(buffers))
        is_elsewhere = chosen_device() is not None and not self.takes_any_device
        if is_undisturbed() or (is_elsewhere and not is_nested):  # this entry is an empty program
            self.takes_any_device |= is_elsewhere
            self.renew()
            return self(*buffers)
        return on_worker_thread(lambda: self._called(buffers), takes_locks=False)

    def _called_by_spare(self, buffers: Sequence[Any]) -> tuple[Any, ...]:
        with x64() if self.needs_x64 else contextlib.nullcontext():
            if self._spare is None:
                self._spare = self._new_jitted(buffers)
            return self._spare(*buffers)

    def _is_of_other_kind(self, error: BaseException, buffers: Sequence[Any]) -> bool:
        """Whether a run failed because the buffers are on other devices, or sharded differently,
        than in the first run. Raises InvalidArgumentError if they are on two meshes."""
        if not _is_refusal(error):
            return False
        mesh = layout.home_of(self.graph, buffers)
        if "incompatible devices" in str(error):
            layout.refuse_devices(self.graph, buffers)
        is_moved = mesh != self.mesh or (mesh is not None and layout.is_elsewhere(buffers, mesh))
        return self.has_run and (self._runs_compiled or is_moved)

    def is_movable(self, error: BaseException, buffers: Sequence[Any]) -> bool:
        """Whether a run failed because some unsharded buffers are elsewhere, and can move to the
        program's mesh. Raises InvalidArgumentError if they are on two meshes."""
        if not _is_refusal(error):
            return False
        mesh = layout.home_of(self.graph, buffers)
        is_here = mesh is not None and mesh == self.mesh
        return is_here and any(layout.is_stray(x, mesh) for x in buffers)

    def brought(self, buffers: Sequence[Any]) -> list[Any]:
        """The buffers, with unsharded ones that are elsewhere moved to the program's mesh."""
        return layout.moved(buffers, self.mesh)

    def _bound(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The callable that runs the program; if that is on one mesh, it refuses arrays on another.
        JAX would move those that are on the same devices."""
        run = self._noting(run) if self.is_of_all else run
        if not self.is_bound:
            return run

        def checked(*buffers: Any) -> Any:
            if self.is_elsewhere(buffers):
                raise ValueError("arrays are on another mesh")  # `_called` handles it
            return run(*buffers)

        return checked

    def _noting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The callable that notes each run of all processes, before it may wait for ever."""

        def noted(*buffers: Any) -> Any:
            log = processes.noted_in(self.identity)
            if log is None:
                return run(*buffers)
            log.done.append(self.identity)
            try:
                return run(*buffers)
            except Exception:
                log.take_back()
                raise

        return noted

    def _log_of_steps(self) -> Any:
        """The log of runs that store Variables; the others go through `_noting`."""
        return processes.noted_in(self.identity) if self._is_atomic else None

    def with_note(self, arguments: Iterator[Any]) -> Iterator[Any]:
        """The iterator of arguments for `exhaust`, which notes a run of `jitted` as it gives
        them."""
        log = self._log_of_steps()
        if log is None:
            return arguments
        # Adding to a list in place returns the list, which is true.
        return compress(arguments, map(log.done.__iadd__, ((self.identity,),)))

    def is_elsewhere(self, buffers: Sequence[Any]) -> bool:
        """Whether any buffer is on another mesh than the program's."""
        return layout.is_elsewhere(buffers, self.mesh)

    def moves_to(self, buffers: Sequence[Any]) -> Any:
        """The JAX mesh on which these buffers make the program run, if there are several devices;
        resets the program if that is another mesh than before."""
        mesh = layout.home_of(self.graph, buffers)
        if self.run is not None and mesh != self.mesh:
            self.renew()
        return mesh

    def _run_alone(self, run: Callable[..., Any], buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """A run without donated buffers, which may be abandoned. The first one is awaited: if it
        runs out of memory it fails then, and no Variable gets its results."""
        slow_compiles.note_compiled()
        with may_be_left():
            outputs = call_uncollected(run, buffers)
            return outputs if self.has_run else jax.block_until_ready(outputs)

    def exhausted(self, error: BaseException) -> ResourceExhaustedError:
        """The error of a run that ran out of memory."""
        return memory.exhausted(error, self.graph, self._compiled)

    def is_refused_by_a_trace(self, error: BaseException) -> bool:
        """Whether a run failed because JAX is tracing somebody's function and would stage it."""
        return isinstance(error, ValueError) and is_staging() and _is_refusal(error)

    def exhaust(self, steps: Iterable[Any]) -> None:
        """Runs `steps`, C iterators that call `jitted`, in a single call into C: during it Python
        starts neither signal handlers nor finalizers."""
        was_collecting = COLLECTS_IN_C and gc.isenabled()
        try:
            if was_collecting:
                gc.disable()
            if self.needs_x64:
                with x64():
                    _exhaust(steps)
            else:
                _exhaust(steps)
        except Exception:
            if (log := self._log_of_steps()) is not None:  # `with_note` has noted the run
                log.take_back()
            raise
        finally:
            if was_collecting:
                gc.enable()

    def open_entry(self) -> None:
        """Makes `run` accept device arrays outside of any context. The program has already run, and
        donates nothing.

        It may raise a ValueError where a call would succeed: while somebody's `jax.jit` traces.
        Tracing 64-bit types needs JAX's x64 context; running a compiled program does not.
        """
        if self.needs_x64 and not self.takes_any_device:
            self._run_compiled()

    def compiled_for(self, buffers: Sequence[Any]) -> Any:
        """JAX's `Compiled`; before the first run, compiled for the devices of these buffers, where
        None stands for an argument that is not on a device yet."""
        if self._compiled is not None:
            return self._compiled

        def compiled() -> Any:
            with x64():
                given = self._input_structs(buffers)
                return self._new_jitted(buffers).lower(*given).compile()

        return on_worker_thread_here(compiled)

    def compiled(self) -> Any:
        """JAX's `Compiled` of this program."""
        if self._compiled is not None:
            return self._compiled
        return on_worker_thread_here(lambda: self._lowered(lambda lowered: lowered.compile()))

    def memory(self) -> Memory:
        """The memory that the program needs. Compiles it now, for later runs too."""
        if self.run is None:
            on_worker_thread_here(self._prepare_for_types)
        found = self.compiled().memory_analysis()
        if found is None:
            fail(
                LoweringError,
                f"{self.graph.name}: the compiler for this device does not say what memory a "
                "program needs",
                fix="leave memory_budget out",
            )
        return Memory(
            found.argument_size_in_bytes,
            found.output_size_in_bytes,
            found.alias_size_in_bytes,
            found.temp_size_in_bytes,
        )

    def _prepare_for_types(self) -> None:
        try:
            with slow_compiles.noted(self.graph):
                self._prepare(self._input_structs())
        except BaseException:
            self.renew()
            raise

    def lowered(self) -> Any:
        """JAX's `Lowered` of this program, for its texts and analyses."""
        return on_worker_thread_here(lambda: self._lowered(lambda lowered: lowered))

    def _lowered(self, use: Callable[[Any], Any]) -> Any:
        with x64():
            jitted = self.jitted or self._new_jitted()
            return use(jitted.lower(*self._input_structs()))

    def _input_structs(self, buffers: Sequence[Any] = ()) -> list[Any]:
        """JAX's structs of the inputs; if there are buffers already, structs that match them."""
        shardings = layout.input_shardings(self.graph, buffers)
        return [shape_struct(x.type, None, y) for x, y in zip(self.graph.inputs, shardings)]


def _compile_of(graph: Graph, seconds: float, is_read: bool) -> Compile:
    place = next((str(node.source) for node in graph.nodes if node.source.line), "")
    made = tuple(y.type for node in graph.nodes[:_TYPES_KEPT] for y in node.outputs)
    return Compile(graph.name, place, graph.input_types, graph.node_count(), seconds, is_read, made)


#: The programs bound to one device or, by their options, to one platform.
_for_one_device: weakref.WeakSet[Program] = weakref.WeakSet()


def device_changed() -> None:
    """Called when another device was chosen: from now on programs run on the device of each
    call."""
    Program.takes_any_device = True
    for program in [*_for_one_device]:
        program.let_device_vary()


#: How many programs keep JAX's trace and module, 1.2 MB each.
_LOWERED_KEPT = 16
_lowered_kept: deque[weakref.ref[Program]] = deque()


def _note_compiled(program: Program) -> None:
    """Releases all but the most recently compiled programs."""
    _lowered_kept.append(weakref.ref(program))
    while len(_lowered_kept) > _LOWERED_KEPT:
        oldest = _lowered_kept.popleft()()
        if oldest is not None:
            oldest.let_go()


def _check_memory(graph: Graph) -> None:
    """Raises InvalidArgumentError for results that exceed the memory of the device.

    XLA would only find out while the program runs, when all of its results are lost.
    """
    limit = memory_bytes(usual_device())
    results = {y: bytes_of_type(y.type) for y in graph.outputs}
    total = sum(results.values())
    if limit is None or total <= limit:
        return
    largest = max(results, key=results.__getitem__)
    fail(
        InvalidArgumentError,
        f"{_results(results, largest)} {total:,} bytes, and the device has {limit:,} bytes of "
        "memory",
        source=largest.source,
        fix="compute with fewer or smaller tensors",
    )


def _results(results: Mapping[Tensor, Any], largest: Tensor) -> str:
    if len(results) == 1:
        return f"a result {largest.type} takes"
    return f"{len(results):,} results, of which {largest.type} is the largest, take"


def _compiler_options(graph: Graph) -> dict[str, Any]:
    """The XLA passes to disable for a program, and which operations XLA leaves to a library.

    On CPUs one pass removes barriers early, so that what they keep apart is merged again; another
    emits small loops where no barrier can be compiled, which aborts the process. There are options
    even if no pass is disabled: JAX refuses functions with options while it traces another
    function, so no program ever returns tracers in place of values, and nothing need check for
    them.
    """
    is_on_cpu = usual_device().platform == "cpu"
    is_left_out = is_on_cpu and _has(Barrier, graph)
    passes = "cse_barrier_expander,small-while-loop-hoisting" if is_left_out else ""
    options = {"xla_disable_hlo_passes": passes}
    if is_on_cpu and _has(Conv, graph) and _is_known(*_OWN_CONVOLUTIONS):
        options.update([_OWN_CONVOLUTIONS])
    return options


#: On CPUs XLA leaves convolutions, products and sums to a library of kernels (YNN), whose
#: convolutions run on fewer cores than XLA's own. docs/performance.md says what that costs.
_OWN_CONVOLUTIONS = (
    "xla_cpu_experimental_ynn_fusion_type",
    "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE",
)


@functools.cache
def _is_known(option: str, value: str) -> bool:
    """Whether this XLA takes the option, which is experimental: it refuses what it does not
    know."""
    program = jax.jit(lambda: 0, compiler_options={option: value})
    try:
        on_worker_thread_here(lambda: program.lower().compile())
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _has(kind: type[Op], graph: Graph) -> bool:
    return any(isinstance(node.op, kind) for node in graph.all_nodes())


def shape_struct(type: TensorType, shape: Any = None, sharding: Any = None) -> Any:
    """JAX's struct of a type; `shape` holds its sizes as JAX knows them, if some are open."""
    dtype = jnp.bool_ if type.dtype is token else type.dtype.numpy_dtype
    return jax.ShapeDtypeStruct(type.shape if shape is None else shape, dtype, sharding=sharding)


def _has_64_bits(graph: Graph) -> bool:
    return any(
        x.type.dtype.name in WIDE
        for inner in graph.graphs()
        for x in (*inner.inputs, *(y for node in inner.nodes for y in node.outputs))
    )
