"""Which trace a call wants: arguments and their key, results, why a call traced again."""
