"""Conversion of Python's control flow: `if`, `while` and `for` on tensors become graph nodes."""
