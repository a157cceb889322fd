"""The builder of a function being traced, and everything specific to traces."""
