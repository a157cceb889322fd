"""Differentiation: tapes, accumulators, custom gradients, parallel loops."""
