"""Graphs of Jacobians: dense, sparse and per example."""
