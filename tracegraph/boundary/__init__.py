"""The boundary of the public API: argument errors, and tracebacks of only the user's frames."""
