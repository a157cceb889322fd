"""Branches and loops over tensors, as users have them."""
