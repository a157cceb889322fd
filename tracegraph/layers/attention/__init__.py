"""Attention: each query's mean of values, weighted by how well the keys fit it."""
