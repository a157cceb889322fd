"""Graphs of Jacobians, dense, sparse and of batches."""
