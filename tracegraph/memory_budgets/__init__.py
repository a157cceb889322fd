"""What a program keeps, and what it computes again, so that it fits into a budget of bytes."""
