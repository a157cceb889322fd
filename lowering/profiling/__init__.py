"""Profiles of runs, by JAX's profiler."""
