"""Turns repeated blocks of nodes into one loop; `roll.py` is the entry point."""
