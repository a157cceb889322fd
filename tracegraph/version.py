"""The version of the package, which is recorded in the files that it writes."""

__version__ = "0.1.0"

#: The name under which files record the program that wrote them.
PRODUCER = f"tracegraph {__version__}"
