"""How many bytes of tensors are read from files."""

from collections.abc import Callable
from typing import Any

from tracegraph.archive import tensors


def bytes_of_reads(set_attribute: Callable[[Any, str, Any], None] = setattr) -> list[int]:
    """The bytes of each tensor that is read from now on. A test gives `monkeypatch.setattr`."""
    counts: list[int] = []
    usual = tensors.TensorFile.read

    def read(self: tensors.TensorFile, key: str) -> Any:
        found = usual(self, key)
        counts.append(found[0].nbytes)
        return found

    set_attribute(tensors.TensorFile, "read", read)
    return counts
