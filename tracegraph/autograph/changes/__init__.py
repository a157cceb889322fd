"""What statements change in the objects that they have from outside, and what code sets there."""
