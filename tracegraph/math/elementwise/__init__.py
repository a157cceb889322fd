"""Functions that work element by element, as most of the mathematics does."""
