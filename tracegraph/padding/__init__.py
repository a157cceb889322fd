"""Graphs that compute on padded inputs what they compute on the inputs themselves."""
