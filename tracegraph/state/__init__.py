"""Variables and Modules, and what users call them."""
