"""Several processes that run one program, through `jax.distributed`."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lowering.device import context_of, outside_of_traces
from tracegraph.core.source import here
from tracegraph.core.types import TensorType, type_of_array
from tracegraph.core.worker_thread import is_of_main_thread
from tracegraph.errors import (
    DistributedError,
    InvalidArgumentError,
    LoweringError,
    fact_of,
    fail,
    is_of_run,
)

#: The exit code of a process that ends because others are missing.
LOST = 70
#: What an exchange is known by among the programs that all processes run.
_EXCHANGE = "exchange"
#: Seconds after which JAX's service aborts where it hears nothing of a process.
_HEARTBEATS = 100


def _end(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
    os._exit(LOST)


@dataclasses.dataclass
class ProcessSettings:
    """The settings of `initialize`."""

    #: Seconds that a process waits for the others.
    timeout: float = 300
    #: Ends the process with a message, from any thread.
    end: Callable[[str], Any] = _end
    #: Waits until all processes agree to exit.
    leave_together: Callable[[], Any] = lambda: None
    #: A process that has reached the end of its program, if there is one.
    has_ended: Callable[[], int | None] = lambda: None
    #: Has what this process gives compared with what the others give, without waiting for them: a
    #: kind, and the kind with its line in words.
    give: Callable[[str, str], Any] = lambda kind, told: None
    #: Where this process notes what it runs together with all others; None if nobody reads it. See
    #: `tracegraph.distribute.order`.
    log: Any = None


settings = ProcessSettings()


def initialize(
    address: str | None,
    count: int | None,
    index: int | None,
    local_device_ids: Sequence[int] | None,
    timeout: int,
) -> None:
    """Joins the processes. CPUs exchange data through gloo, which JAX must know before it
    starts."""
    settings.timeout = timeout
    are_watched = None not in (address, count, index)  # and ended with an error of ours
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would catch SIGTERM, and the process go on: a save on this signal is CheckpointManager's.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        count,
        index,
        local_device_ids,
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=max(2 * timeout, _HEARTBEATS) if are_watched else _HEARTBEATS,
        shutdown_timeout_seconds=timeout,
    )


def is_initialized() -> bool:
    """Whether this process is joined to others."""
    return jax.distributed.is_initialized()


def noted_in(identity: str | None) -> Any:
    """The log in which a run of all processes is to be noted; None if it is not. Other threads
    run programs in an order of their own."""
    return None if identity is None or not is_of_main_thread() else settings.log


def count() -> int:
    """How many processes there are."""
    return jax.process_count()


def index() -> int:
    """The index of this process."""
    return jax.process_index()


def spans_processes(buffers: Sequence[Any]) -> bool:
    """Whether any array has parts in other processes, so that all must run the program."""
    return any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in buffers)


def has_devices_of_all(mesh: Any) -> bool:
    """Whether a JAX mesh has devices of every process, of which there are several."""
    return mesh is not None and count() > 1 and len(_processes_of(mesh.devices.flat)) == count()


def any_is_of_all(buffers: Sequence[Any]) -> bool:
    """Whether any array has devices of every process, of which there are several."""
    divided = (x for x in buffers if spans_processes((x,)))
    return any(len(_processes_of(x.sharding.device_set)) == count() for x in divided)


def _processes_of(devices: Iterable[Any]) -> set[int]:
    return {device.process_index for device in devices}


def check_is_here(mesh: Any) -> None:
    """Raises InvalidArgumentError for a JAX mesh without a device of this process."""
    if not mesh.local_devices:
        fail(
            InvalidArgumentError,
            f"process {index()} uses the mesh {_told(mesh)}, which has no device of this process",
            source=here(),
            fix="use a mesh of the devices of all processes, also around tg.saved_model.load, or "
            "this one in the processes of its devices alone",
        )


def _told(mesh: Any) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())


def told_with_devices(mesh: Any) -> str:
    """A mesh and the numbers of its devices, in words."""
    numbers = [device.id for device in mesh.devices.flat]
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    if numbers == [*range(numbers[0], numbers[-1] + 1)]:
        shown = f"{numbers[0]}-{numbers[-1]}"
    return f"{_told(mesh)} of the devices {shown}"


def told_layout(sharding: Any) -> str:
    """How a JAX sharding divides an array, in words."""
    mesh = getattr(sharding, "mesh", None)
    return "" if mesh is None else f"{list(sharding.spec)} over {told_with_devices(mesh)}"


def gathered(data: bytes, doing: str) -> list[bytes]:
    """Every process's data, in process order; every process must call this, for the same purpose,
    or all raise DistributedError."""
    head = f"{doing}\n{here()}\n"
    found = [each.split(b"\n", 2) for each in _gathered(head.encode() + data)]
    own = index()
    other = next((i for i, each in enumerate(found) if each[0] != found[own][0]), None)
    if other is not None:
        words = ((i, *map(bytes.decode, found[i][:2])) for i in (own, other))
        told = ["process {} is about to {} at {}".format(*each) for each in words]
        fail(
            DistributedError,
            f"processes do different things: {told[0]}, and {told[1]}",
            source=here(),
            fix="run the same code in every process, or use arrays of this process alone",
        )
    return [each[2] for each in found]


def _gathered(data: bytes) -> list[bytes]:
    sizes = _of_all(np.asarray(len(data), np.int32))
    wide = np.zeros(max(int(np.max(sizes)), 1), np.uint8)
    wide[: len(data)] = np.frombuffer(data, np.uint8)
    rows = _of_all(wide)
    return [bytes(row[:size]) for row, size in zip(rows, sizes, strict=True)]


def _of_all(array: Any, tiled: bool = False) -> np.ndarray:
    """The arrays of all processes, or one of which each has parts; every process must call this
    that has devices of it. Raises LoweringError if one of them is lost."""
    is_of_some = spans_processes((array,)) and not any_is_of_all((array,))
    log = None if is_of_some else noted_in(_EXCHANGE)
    if log is not None:
        log.note(_EXCHANGE, f"exchanges data at {here()}")
    try:
        return np.asarray(multihost_utils.process_allgather(array, tiled=tiled))
    except (RuntimeError, ValueError) as error:
        if not is_of_run(error):
            raise
        fail(
            LoweringError,
            f"the processes could not exchange data: {fact_of(error)}",
            source=here(),
            fix="see whether one of them was lost",
            cause=error,
        )


def common_number() -> int:
    """A random number common to all processes; each must call this."""
    return int.from_bytes(gathered(os.urandom(8), "choose a seed")[0], "little")


def on_host(buffer: Any) -> np.ndarray:
    """An array as a NumPy array; if it is sharded over processes, each of them must call this."""
    if spans_processes((buffer,)) and not buffer.is_fully_replicated:
        return _of_all(buffer, tiled=True)
    return np.asarray(buffer)


def held_whole(array: Any, mesh: Any) -> np.ndarray:
    """The value of an array of several processes that is about to move to other devices, those of
    `mesh`. Raises InvalidArgumentError where this process holds a part only: JAX moves none from
    one process to another."""
    if not array.is_fully_replicated:
        fail(
            InvalidArgumentError,
            f"a tensor {type_of_array(array)} of which each process holds parts cannot move to the "
            f"mesh {_told(mesh)} of other devices",
            source=here(),
            fix="first let each process have all of it, on its own mesh: "
            f"tg.distribute.with_layout(x, tg.distribute.Layout(mesh, {[None] * array.ndim}))",
        )
    return np.asarray(array)


def from_local(array: np.ndarray, sharding: Any) -> Any:
    """An array to which each process contributes its part."""
    check_is_here(sharding.mesh)
    with context_of(array.dtype), outside_of_traces():
        return jax.make_array_from_process_local_data(sharding, array)


@functools.lru_cache(maxsize=256)
def parts_of_processes(sharding: Any, shape: tuple[int, ...]) -> dict[int, frozenset[str]]:
    """For each process, the places of what its devices hold of an array with this sharding."""
    found: dict[int, set[str]] = {}
    for device, place in sharding.devices_indices_map(shape).items():
        found.setdefault(device.process_index, set()).add(str(place))
    return {process: frozenset(places) for process, places in found.items()}


def own_parts(buffer: Any) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """The parts of an array that this process writes, each with its start. If several devices hold
    a part, one of them counts as having the first copy."""
    return [
        (tuple(place.start or 0 for place in shard.index), np.asarray(shard.data))
        for shard in buffer.addressable_shards
        if shard.replica_id == 0
    ]


def from_parts(type: TensorType, sharding: Any, read: Callable[..., np.ndarray]) -> Any:
    """An array with this sharding; `read(begin, end)` returns what a device holds."""
    shape: Any = type.shape
    check_is_here(sharding.mesh)

    def part(index: Any) -> np.ndarray:
        places = [place.indices(size) for place, size in zip(index, shape, strict=True)]
        return read(tuple(x[0] for x in places), tuple(x[1] for x in places))

    with context_of(type.dtype), outside_of_traces():
        return jax.make_array_from_callback(shape, sharding, part)
