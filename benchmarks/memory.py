"""The memory of this process, in megabytes."""

import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def resident() -> float:
    """Returns the megabytes that this process currently holds."""
    return from_status("VmRSS") if STATUS.exists() else peak()


def peak() -> float:
    """Returns the most megabytes that this process has held.

    `getrusage` is the second choice: on Linux it starts from what the parent held.
    """
    return from_status("VmHWM") if STATUS.exists() else from_resource_usage()


def from_status(field: str) -> float:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return float("nan")


def from_resource_usage() -> float:
    import resource  # not on every system

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1024**2
