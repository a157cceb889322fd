"""The builder of a function that is being traced, and what only traces do."""
