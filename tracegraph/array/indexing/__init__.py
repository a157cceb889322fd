"""Elements by position: slices, index arrays, masks; and writing at indices."""
