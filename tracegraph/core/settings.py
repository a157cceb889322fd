"""Settings of the process that more than one floor reads."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Settings:
    """What `tg.config` sets."""

    #: The folder in which compiled programs are kept; None if they are not.
    compilation_cache: Path | None = None
    #: Whether it was found that nothing can be kept there.
    compilation_cache_failed: bool = False
    #: Whether a device that is not there is replaced by JAX's choice.
    soft_device_placement: bool = False
    #: The number of this process among those that `tg.distribute.initialize` has joined.
    process_index: int = 0
    #: How many there are.
    process_count: int = 1
    #: The seed of what nobody gave a seed, which all processes have; None for one by chance.
    common_seed: int | None = None
    #: Whether every process prints and calls, and not only the first one.
    effects_everywhere: bool = False

    @property
    def makes_effects(self) -> bool:
        """Whether this process makes the effects that one of all processes makes."""
        return self.process_index == 0 or self.effects_everywhere

    #: Folders of programs that lie beside models, from which programs are read.
    compiled_folders: tuple[Path, ...] = ()

    def set_compilation_cache(self, folder: Path | None) -> None:
        """Keeps compiled programs in `folder` from now on."""
        self.compilation_cache, self.compilation_cache_failed = folder, False


def _from_environment() -> Settings:
    folder = os.environ.get("TRACEGRAPH_CACHE", "")
    return Settings(Path(folder).expanduser() if folder else None)


settings = _from_environment()


class _DeviceScope(threading.local):
    """What `tg.device` says on each thread."""

    #: The device that the innermost scope names; None for the backend's choice.
    device: Any = None


device_scope = _DeviceScope()
