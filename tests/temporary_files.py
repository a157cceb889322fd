"""Temporary files of tests: in memory, where the system has a folder for that.

A disk takes milliseconds to sync a file and to delete one, and a run writes tens of thousands:
saved models, checkpoints, and the programs that XLA compiled.
"""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
#: Bytes that must be free there: several times what a run of eight workers writes.
_ROOM = 8 << 30


def keep_temporary_files_in_memory(config) -> None:
    """Makes a folder of this run in memory, for its workers and their children too, and removes it
    with the run. A given TMPDIR wins, and is where to look at what a test has written."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free < _ROOM:
        return
    folder = tempfile.mkdtemp(prefix="tracegraph-tests.", dir=_MEMORY)
    os.environ["TMPDIR"] = tempfile.tempdir = folder

    def remove() -> None:
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(remove)
