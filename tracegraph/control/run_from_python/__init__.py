"""Loops that call Python, which runs them step by step."""
