"""`tg.function`: from a call to its trace, its program and its results."""
