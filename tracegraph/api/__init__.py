"""Names that `tracegraph` has itself: operators, transformations, callbacks, absent names."""
