"""How a traced body runs: its program and step, padded, rolled, searched for a nan, or in JAX."""
