"""Layers of images: of another size, cropped, flipped, turned, moved, zoomed."""
