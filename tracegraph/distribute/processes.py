"""`tg.distribute.initialize`: several processes that run one program together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any

from tracegraph.core.settings import settings
from tracegraph.core.source import here
from tracegraph.distribute.watch import Watch, meet, port_of, reserved_port
from tracegraph.eager import backend
from tracegraph.errors import DistributedError, SignatureError, fact_of, fail, shown

#: Set by `python -m tracegraph launch` for each process.
ADDRESS, COUNT, INDEX = "TRACEGRAPH_COORDINATOR", "TRACEGRAPH_PROCESSES", "TRACEGRAPH_PROCESS"
#: The number of a pipe whose other end the launcher holds.
LAUNCHER = "TRACEGRAPH_LAUNCHER"

_LAST_PORT = 65535

_watches: list[Watch] = []


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Sequence[int] | None = None,
    timeout: float = 300,
    effects_everywhere: bool = False,
) -> None:
    """Joins this process to others, so that a Mesh may have the devices of all of them.

    Call it first, before anything is computed. Without arguments it uses the settings of
    `python -m tracegraph launch` or, failing that, what JAX finds in the environment of SLURM, Open
    MPI or Kubernetes.

    - `coordinator_address`: the host and port of process 0, "10.0.0.1:1234".
    - `num_processes`, `process_id`: the number of processes, and the index of this one, from 0.
    - `local_device_ids`: the GPUs of this process; all of the machine by default.
    - `timeout`: seconds within which all processes must connect, and within which all must call a
      function that they run together.
    - `effects_everywhere`: whether every process prints and calls Python functions that return
      nothing, rather than process 0 alone. Functions that return something run in every process.

    If a process is lost, all others exit with code 70 and one message, wherever they are.
    Raises DistributedError (a RuntimeError) if a coordinator or a process does not connect in time,
    or if something was computed before.

    >>> tg.distribute.initialize("127.0.0.1:0", num_processes=1, process_id=0)
    """
    _check_timeout(timeout)
    address = coordinator_address or os.environ.get(ADDRESS)
    count = _number("num_processes", num_processes, os.environ.get(COUNT))
    index = _number("process_id", process_id, os.environ.get(INDEX))
    if count == 1:
        return
    if backend.processes_joined():
        fail(
            DistributedError,
            "tg.distribute.initialize was called twice",
            fix="call it once, at the beginning of the program",
        )
    with contextlib.ExitStack() as reserved:
        if address is not None and count is not None and index is not None:
            _check_address(address, count, index)
            is_reserved = coordinator_address is None
            own_port = port_of(reserved.enter_context(reserved_port("")))
            watch, port = meet(address, count, index, timeout, own_port, is_reserved)
            _watches.append(watch)
            if is_reserved and LAUNCHER in os.environ:
                watch.end_with_launcher(int(os.environ[LAUNCHER]))
            backend.watched_by(watch)
            address = f"{address.rpartition(':')[0]}:{port}"
        _join(address, count, index, local_device_ids, max(int(timeout), 1))
    settings.process_index, settings.process_count = backend.joined_as()
    settings.effects_everywhere = effects_everywhere
    settings.common_seed = backend.common_number()


def _join(*arguments: Any) -> None:
    try:
        backend.join_processes(*arguments)
    except (RuntimeError, ValueError) as error:
        fail(
            DistributedError,
            f"the processes cannot be joined: {fact_of(error)}",
            source=here(),
            fix="call tg.distribute.initialize before anything is computed, with "
            "coordinator_address=, num_processes= and process_id=, or by `python -m tracegraph "
            "launch`",
        )


def _number(name: str, given: object, told: str | None) -> int | None:
    if given is None:
        return int(told) if told else None
    least = 1 if name == "num_processes" else 0
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        fail(
            SignatureError,
            f"initialize: {name} is {shown(given)}, not a count of processes",
            fix=f"give {name} as an int from {least} on",
        )
    return given


def _check_timeout(timeout: Any) -> None:
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < threading.TIMEOUT_MAX:
        fail(
            SignatureError,
            f"initialize: timeout is {shown(timeout)}, not a number of seconds",
            fix="give how long to wait for the others, as in timeout=300",
        )


def _check_address(address: str, count: int, index: int) -> None:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        fail(
            SignatureError,
            f"initialize: {shown(address)} is not an address of a coordinator",
            fix='write host and port, as "10.0.0.1:1234"',
        )
    if index >= count:
        fail(
            SignatureError,
            f"initialize: process_id is {index}, and num_processes is {count}",
            fix=f"number the processes from 0 to {count - 1}",
        )
