"""The command line: `tracegraph show`, `run`, `diff`, `verify`, `export` and `launch`.

Each command is a function from its options to an `Answer`: a text for people, data for programs
and an exit code. Only `main` prints, and turns errors into messages.
"""

from tracegraph.commands.main import main

__all__ = ["main"]
