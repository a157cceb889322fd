"""`tg.device`: where values are created and programs run.

JAX's own context sets the device of each thread. The pending list runs as one program on one
device, so it is run when the device changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from tracegraph.core.contexts import context
from tracegraph.core.device_names import parsed
from tracegraph.core.settings import device_scope, settings
from tracegraph.eager import backend
from tracegraph.errors import InvalidArgumentError, SignatureError, fail, shown
from tracegraph.ir.builder import builder_of_thread


class PhysicalDevice(NamedTuple):
    """A device of this machine: `name`, such as "/physical_device:GPU:0", and `device_type`."""

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device that programs see: `name`, such as "/device:GPU:0", and `device_type`."""

    name: str
    device_type: str


def device(
    device_name: str | PhysicalDevice | LogicalDevice | None,
) -> contextlib.AbstractContextManager[None]:
    """A context that creates values and runs programs on a device, as in TensorFlow.

    - `device_name`: "cpu:0", "/GPU:1", "/device:GPU:1" or a full name; the number is 0 by default.
      An item of `tg.config.list_logical_devices` also works, and None leaves the choice to JAX.

    Tensors on other devices are copied as needed. A Variable created here stays here: programs that
    use it run on its device. A `tg.function` is one program, which runs on the device of the call:
    in a function that is being traced, `tg.device` affects only the initial values of Variables.

    Raises ValueError for an invalid name, and InvalidArgumentError for a device that does not
    exist; after `tg.config.set_soft_device_placement(True)` JAX's default takes its place.

    >>> with tg.device("cpu:0"):
    ...     x = tg.constant([1.0, 2.0])
    >>> x.device
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    return _on(device_named(device_name))


@context
def _on(place: Any) -> Generator[None, None, None]:
    outer = device_scope.device
    with _programs_on(place):
        try:
            device_scope.device = place
            yield
        finally:
            device_scope.device = outer


@contextlib.contextmanager
def _programs_on(place: Any) -> Iterator[None]:
    """A context in which programs run on a device, or on JAX's default."""
    pending: Any = builder_of_thread().top_level
    if place is backend.chosen_device() or place is backend.usual_device():
        yield
        return
    pending.evaluate()
    try:
        with backend.on_device(place):
            backend.device_changed()
            try:
                yield
            finally:
                pending.evaluate()
    finally:
        backend.device_changed()


def device_named(name: Any) -> Any:
    """The JAX device with that name; None for JAX's default."""
    if name is None:
        return None
    if isinstance(name, PhysicalDevice | LogicalDevice):
        name = name.name.replace("/physical_device:", "/device:")
    elif callable(name):
        fail(
            SignatureError,
            "tg.device was given a function, which TensorFlow 1 had for graphs",
            fix='give the name of a device, such as "gpu:0"',
        )
    wanted = parsed(name)
    own = backend.process_index()
    if wanted.task not in (None, 0, own):
        _refuse(f"the device {shown(name)} belongs to process {wanted.task}, and this is {own}")
    if wanted.kind is None:
        return device_scope.device
    devices = backend.local_devices().get(wanted.kind, [])
    number = wanted.number or 0
    if number < len(devices):
        return devices[number]
    if settings.soft_device_placement:
        return None
    _refuse(f"there is no device {shown(name)}")


def _refuse(fact: str) -> Any:
    names = ", ".join(x.name for x in list_logical_devices())
    fail(
        InvalidArgumentError,
        f"{fact}; those of this process are {names}",
        fix="name one of these, or call tg.config.set_soft_device_placement(True)",
    )


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of this process, or those of a kind: "CPU", "GPU", "TPU".

    >>> tg.config.list_physical_devices("CPU")
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    return [PhysicalDevice(f"/physical_device:{x}", x.split(":")[0]) for x in _listed(device_type)]


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """The devices that programs of this process run on, or those of a kind: "CPU", "GPU", "TPU".

    >>> tg.config.list_logical_devices("CPU")
    [LogicalDevice(name='/device:CPU:0', device_type='CPU')]
    """
    return [LogicalDevice(f"/device:{x}", x.split(":")[0]) for x in _listed(device_type)]


def _listed(kind: Any) -> Sequence[str]:
    if kind is not None and not isinstance(kind, str):
        fail(
            SignatureError,
            f"{shown(kind)} is not a kind of device",
            fix='give "CPU", "GPU" or "TPU", or None for all',
        )
    found = backend.local_devices().items()
    return [
        f"{each}:{i}"
        for each, devices in found
        if kind in (None, each)
        for i in range(len(devices))
    ]
