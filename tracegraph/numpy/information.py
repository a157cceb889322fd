"""Information about the namespace."""

from __future__ import annotations

from typing import Any

from tracegraph.core.types import DTYPES, DType, complex64, float32, int32
from tracegraph.eager.tensor_methods import check_device, default_device
from tracegraph.numpy.data_types import isdtype


class NamespaceInfo:
    """The result of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Which optional parts of the standard are supported.

        >>> tg.numpy.__array_namespace_info__().capabilities()["boolean indexing"]
        True
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The device that values are on."""
        return default_device()

    def devices(self) -> list[str]:
        """All devices that values may be on."""
        return [default_device()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The default dtypes of numbers, and of indices."""
        check_device("default_dtypes", device)
        return {
            "real floating": float32,
            "complex floating": complex64,
            "integral": int32,
            "indexing": int32,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes of the standard, all or those of a kind; see `isdtype`.

        >>> sorted(tg.numpy.__array_namespace_info__().dtypes(kind="real floating"))
        ['float32', 'float64']
        """
        check_device("dtypes", device)
        own = [dtype for dtype in DTYPES if dtype.name not in _BEYOND]
        return {dtype.name: dtype for dtype in own if kind is None or isdtype(dtype, kind)}


#: Dtypes that the standard does not have.
_BEYOND = frozenset(["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "token"])


def __array_namespace_info__() -> NamespaceInfo:
    """Capabilities, devices and dtypes of the namespace."""
    return NamespaceInfo()
