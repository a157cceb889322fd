"""The foundation: types, shapes, the user's line, interrupts, bounded caches."""
