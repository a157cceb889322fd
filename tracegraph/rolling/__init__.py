"""Blocks of nodes that repeat become one loop; `roll.py` is the way in."""
