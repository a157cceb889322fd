"""Our graphs for others: inside somebody else's JAX trace, and as StableHLO bytes."""
