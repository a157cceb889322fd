"""Which trace a call needs: arguments and their key, results, and why a call was traced again."""
