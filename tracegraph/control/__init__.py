"""Branches and loops, one op per file. Importing the package registers them all, since files of
graphs name them."""

from tracegraph.control import branch, scan, while_loop

__all__ = ["branch", "scan", "while_loop"]
