"""Operators composed of other operators."""
