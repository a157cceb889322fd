"""How a traced body runs: as a program or step, padded, rolled, searched for nan, or in JAX."""
