"""Process-wide settings that more than one floor reads."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Settings:
    """The settings behind `tg.config`."""

    #: The folder that keeps compiled programs; None if they are not kept.
    compilation_cache: Path | None = None
    #: Whether that folder turned out to be unusable.
    compilation_cache_failed: bool = False
    #: Whether JAX's default replaces a device that does not exist.
    soft_device_placement: bool = False
    #: The index of this process among those that `tg.distribute.initialize` joined.
    process_index: int = 0
    #: The number of those processes.
    process_count: int = 1
    #: The default seed where the user set none, common to all processes; None for a random one.
    common_seed: int | None = None
    #: Whether every process prints and calls the host, and not only the first.
    effects_everywhere: bool = False

    @property
    def makes_effects(self) -> bool:
        """Whether this process performs the effects that only one process performs."""
        return self.process_index == 0 or self.effects_everywhere

    #: Folders of compiled programs stored beside models, which are only read.
    compiled_folders: tuple[Path, ...] = ()

    def set_compilation_cache(self, folder: Path | None) -> None:
        """Keeps compiled programs in `folder` from now on."""
        self.compilation_cache, self.compilation_cache_failed = folder, False


_folder = os.environ.get("TRACEGRAPH_CACHE", "")
settings = Settings(Path(_folder).expanduser() if _folder else None)


class _DeviceScope(threading.local):
    """The scope of `tg.device` on each thread."""

    #: The device of the innermost scope; None for the backend's choice.
    device: Any = None


device_scope = _DeviceScope()
