"""Profiles of runs, recorded by JAX's profiler."""
