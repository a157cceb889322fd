"""Converts what users pass to tensors."""
