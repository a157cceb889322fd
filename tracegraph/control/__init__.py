"""Branches and loops, one op per file. Importing the package registers all of them, since graph
files refer to them by name."""

from tracegraph.control import branch, scan, while_loop

__all__ = ["branch", "scan", "while_loop"]
