"""What statements change in place in the objects that they have from outside."""
