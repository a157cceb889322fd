"""From the source of a function to its converted code: the only part that knows malt."""
