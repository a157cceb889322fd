"""`python -m tracegraph`: the command line."""

import sys

from tracegraph.commands import main

if __name__ == "__main__":
    sys.exit(main())
