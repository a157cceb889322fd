"""Options for saving and loading, and files that belong to a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tracegraph.archive.directory import as_path
from tracegraph.errors import LoadError, SignatureError, fail, shown
from tracegraph.operands.flags import as_flag, refuse_kind

#: The name of the format, and its newest version, which is written and read.
FORMAT = "tracegraph.saved_model"
VERSION = 1


class _Field(NamedTuple):
    """An option of TensorFlow's that is not supported: why, what to do instead, and the values
    that need no support."""

    reason: str
    fix: str
    harmless: tuple[Any, ...] = (None, False)


_ANY = object()  # every value is harmless
_IGNORED = _Field("", "", (_ANY,))
_POLICY = _Field("every Variable lies on one device", "leave it out")

#: TensorFlow's other options, by class.
_ELSEWHERE = {
    "SaveOptions": {
        "namespace_whitelist": _IGNORED,  # there are no third-party ops
        "function_aliases": _Field(
            "functions are found where they stand", "keep them as attributes", (None, {})
        ),
        "experimental_debug_stripper": _Field("lines are kept apart", "write locations=False"),
        "experimental_io_device": _IGNORED,
        "experimental_variable_policy": _POLICY,
        "experimental_image_format": _IGNORED,  # files of any size are written
        "experimental_skip_saver": _Field("a model holds its values", "leave it out"),
        "experimental_sharding_callback": _Field("files are divided at 5 GB", "leave it out"),
        "extra_tags": _IGNORED,  # as `tags` in load
    },
    "LoadOptions": {
        "allow_partial_checkpoint": _Field("a model holds all its values", "leave it out"),
        "experimental_io_device": _IGNORED,
        "experimental_skip_checkpoint": _Field(
            "values are read when they are used first", "leave it out, and assign others"
        ),
        "experimental_variable_policy": _POLICY,
        "experimental_load_function_aliases": _Field(
            "functions are found where they stand", "use the attributes"
        ),
    },
}


def _check_elsewhere(kind: type, given: Mapping[str, Any]) -> None:
    """Accepts options of TensorFlow's that change nothing. Raises SignatureError for others."""
    known = _ELSEWHERE[kind.__name__]
    for name, value in given.items():
        field = known.get(name, _Field("there is no such option", "leave it out", ()))
        if not any(harmless is _ANY or value == harmless for harmless in field.harmless):
            fail(
                SignatureError,
                f"{kind.__name__}: {name}={shown(value)} is not supported: {field.reason}",
                fix=field.fix,
            )


@dataclass(frozen=True, init=False)
class SaveOptions:
    """Options for saving a model.

    - `experimental_custom_gradients`: whether to save custom gradients, including those registered
      for ops, with their functions. Without them, a gradient through such a function raises
      LookupError after loading.
    - `locations`: whether to save, for each node, the file name and line that created it.
    - `save_debug_info`: whether to save the text of those lines too, so that dumps and pages of
      the loaded model can quote them. It is never run.
    - `stablehlo`: platforms, "cpu" or several as in `("cpu", "cuda")`, for which to also write each
      of the `signatures` as a program that runs without tracegraph; see `tg.export.stablehlo`.
      Variables become constants in it, with their present values.
    - `extra`: files for the folder `extra`, as bytes by name; they are never read here. A save
      replaces the files of the previous save, and leaves other files there alone.

    Options of TensorFlow's are accepted if they change nothing, such as `experimental_io_device`.
    Raises ValueError for any that have no meaning here.
    """

    experimental_custom_gradients: bool
    locations: bool
    save_debug_info: bool
    stablehlo: str | Sequence[str]
    extra: Mapping[str, bytes]

    def __init__(
        self,
        *,
        experimental_custom_gradients: bool = True,
        locations: bool = True,
        save_debug_info: bool = False,
        stablehlo: str | Sequence[str] = (),
        extra: Mapping[str, bytes] = MappingProxyType({}),
        **elsewhere: object,
    ) -> None:
        _check_elsewhere(SaveOptions, elsewhere)
        vars(self).update(
            experimental_custom_gradients=as_flag(
                "SaveOptions", "experimental_custom_gradients", experimental_custom_gradients
            ),
            locations=as_flag("SaveOptions", "locations", locations),
            save_debug_info=as_flag("SaveOptions", "save_debug_info", save_debug_info),
            stablehlo=_checked_devices(stablehlo),
            extra=_checked_extra(extra),
        )


def _checked_devices(devices: Any) -> str | Sequence[str]:
    """The platform names, which are validated when the model is saved."""
    names = (devices,) if isinstance(devices, str) else devices
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return devices
    rule = "stablehlo is a name of a device, or several"
    refuse_kind("SaveOptions", rule, devices, fix='give such as ("cpu", "cuda")')


def _checked_extra(extra: Any) -> dict[str, bytes]:
    """The extra files. Raises SignatureError unless they are bytes by name."""
    rows = extra.items() if isinstance(extra, Mapping) else [("", extra)]
    for name, data in rows:
        if not isinstance(name, str) or not isinstance(data, (bytes, bytearray, memoryview)):
            item = f"extra[{shown(name)}]" if isinstance(extra, Mapping) else "extra"
            fix = 'give bytes by name, such as extra={"notes.txt": text.encode()}'
            fact = f"SaveOptions: {item} is {shown(data)}, not the bytes of a file by its name"
            fail(SignatureError, fact, fix=fix)
    return {name: bytes(data) for name, data in rows}


@dataclass(frozen=True, init=False)
class LoadOptions:
    """Options for loading a model.

    - `verify`: whether to check every file against its checksum at once. Without it, graphs are
      checked at once, and each tensor on first use.

    Options of TensorFlow's are accepted if they change nothing. Raises ValueError for others.
    """

    verify: bool

    def __init__(self, *, verify: bool = False, **elsewhere: object) -> None:
        _check_elsewhere(LoadOptions, elsewhere)
        vars(self).update(verify=as_flag("LoadOptions", "verify", verify))


class Asset:
    """A file that is saved with a model; after loading, `path` is the path of the copy.

    Raises ValueError if the file does not exist.

    >>> with open("words.txt", "w") as file:
    ...     _ = file.write("one two")
    >>> tg.saved_model.Asset("words.txt").path
    'words.txt'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not Path(as_path("Asset", path)).is_file():
            fail(
                LoadError,
                f"there is no file {shown(os.fspath(path))} to be an asset",
                fix="give the path of a file that exists",
            )
        self._path = os.fspath(path)

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    asset_path = path

    def __fspath__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"<tg.saved_model.Asset {self._path!r}>"


def as_options(kind: type, given: Any) -> Any:
    """The options given, or the defaults. Raises ValueError for anything else."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        fail(
            SignatureError,
            f"the options are {shown(given)}, and not a tg.saved_model.{kind.__name__}",
            fix=f"write options=tg.saved_model.{kind.__name__}(...)",
        )
    return given
