"""Compiled Python for the processes that tests start.

Where Python may not write bytecode beside its sources, as in many container images, each of these
processes would compile the modules of tracegraph again, which is most of its import.
"""

import os
import shutil
import sys
import tempfile

#: Tells the test workers of a run the folder that they share.
_FOLDER = "TRACEGRAPH_TEST_BYTECODE"


def keep_bytecode(config) -> None:
    """Makes a folder of this run in which the children of its tests keep their bytecode, if they
    may not keep it beside the sources. pytest itself does not use it: it finds what was compiled
    when its libraries were installed."""
    if not sys.dont_write_bytecode:
        return
    if _FOLDER not in os.environ:
        folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="tracegraph-bytecode.")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.add_cleanup(lambda: os.environ.pop(_FOLDER))
    if not getattr(config.option, "numprocesses", None):  # in this process tests run
        os.environ["PYTHONPYCACHEPREFIX"] = os.environ[_FOLDER]
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
