"""Layers that prepare features: their categories, and the ranges in which they are."""
