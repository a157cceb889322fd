"""Our graphs for others: inside of somebody else's trace of JAX, and as bytes of StableHLO."""
