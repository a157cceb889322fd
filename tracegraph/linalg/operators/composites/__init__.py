"""Operators that are made of other operators."""
