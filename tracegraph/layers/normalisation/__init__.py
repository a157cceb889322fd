"""Layers that normalize their inputs, or the weights of a layer."""
