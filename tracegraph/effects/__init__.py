"""Prints, checks and calls of Python: how a trace represents them, and how a run performs them."""
