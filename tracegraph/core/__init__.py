"""What everything stands on: types, shapes, the line of the user, interrupts, bounded tables."""
