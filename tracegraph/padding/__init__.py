"""Graphs that compute on padded inputs what they would compute on the unpadded ones."""
