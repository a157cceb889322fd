"""TensorArrays: the arrays themselves, and arrays as states of a loop."""
