"""Elements by where they are: slices, arrays of indices, masks; and writing at indices."""
