"""From what users pass to tensors."""
