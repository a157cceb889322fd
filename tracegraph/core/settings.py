"""Settings of the process that more than one floor reads."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass
class Settings:
    """What `tg.config` sets."""

    #: The folder in which compiled programs are kept; None if they are not.
    compilation_cache: Path | None = None
    #: Whether it was found that nothing can be kept there.
    compilation_cache_failed: bool = False

    #: Folders of programs that lie beside models, from which programs are read.
    compiled_folders: tuple[Path, ...] = ()

    def set_compilation_cache(self, folder: Path | None) -> None:
        """Keeps compiled programs in `folder` from now on."""
        self.compilation_cache, self.compilation_cache_failed = folder, False


def _from_environment() -> Settings:
    folder = os.environ.get("TRACEGRAPH_CACHE", "")
    return Settings(Path(folder).expanduser() if folder else None)


settings = _from_environment()
