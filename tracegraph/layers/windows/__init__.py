"""Layers that move a window over steps, pixels or voxels."""
