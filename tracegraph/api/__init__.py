"""Names of `tracegraph` itself: operators, transformations, callbacks, advice on absent names."""
