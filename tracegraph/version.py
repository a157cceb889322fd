"""The version of the package, which stands in the files that it writes."""

__version__ = "0.1.0"

#: How the files call what wrote them.
PRODUCER = f"tracegraph {__version__}"
