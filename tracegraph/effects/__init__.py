"""Prints, checks and calls of Python: how a trace has them, and how a run makes them."""
