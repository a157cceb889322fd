"""Passes after which scans and their gradients need less memory, for memory budgets."""
