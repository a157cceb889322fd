"""Layers that carry a state along the steps of a sequence."""
