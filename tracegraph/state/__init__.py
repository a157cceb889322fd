"""Variables and Modules, and the names users give them."""
