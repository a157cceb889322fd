"""The boundary of the public API: arguments that do not fit, tracebacks of the user's frames."""
