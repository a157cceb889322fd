"""Elementwise functions."""
