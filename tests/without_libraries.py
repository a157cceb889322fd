"""Scripts in a process in which the libraries that stand on JAX cannot be imported."""

import subprocess
import sys

_MISSING = """
import sys

class Missing:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("optax", "flax", "equinox", "diffrax", "chex"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
import tracegraph as tg
"""


def printed(script, *args):
    """What the script prints; tracegraph is imported as `tg`, and `sys.argv` has the arguments."""
    run = [sys.executable, "-c", _MISSING + script, *map(str, args)]
    found = subprocess.run(run, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout
