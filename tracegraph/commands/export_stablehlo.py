"""`tracegraph export`: an entry as a program for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracegraph.commands.answers import Answer, Misuse, file_names, size_text, write_file
from tracegraph.commands.contents import Contents, NamedGraph, SavedContents, TraceEntry, open_path
from tracegraph.eager import backend
from tracegraph.export import stablehlo

_DEFAULT_PLATFORMS = "cpu,cuda"


def export(options: argparse.Namespace) -> Answer:
    platforms = _platforms(options.platforms)
    entry = _chosen(open_path(options.path), options.entry)
    if not isinstance(entry, TraceEntry):
        raise Misuse(
            f"{options.path} is the text of a graph, and functions are exported",
            "give the directory of a saved model",
        )
    output = options.output or Path(f"{_file_name(entry)}.{options.format}")
    data = stablehlo(entry.concrete, gradient=options.gradient, platforms=platforms)
    write_file(output, data)
    kind = f"{entry.name}{' and its gradients' if options.gradient else ''} as {options.format}"
    return Answer(
        f"{kind} for {', '.join(platforms)}: {output}, {size_text(len(data))}",
        {
            "path": str(options.path),
            "entry": entry.name,
            "format": options.format,
            "platforms": platforms,
            "gradient": options.gradient,
            "output": str(output),
            "bytes": len(data),
        },
    )


def _chosen(contents: Contents, name: str | None) -> NamedGraph:
    """The entry with this name; by default the only signature, since signatures are meant for other
    tools, or the only function."""
    if name is None and isinstance(contents, SavedContents) and len(contents.signatures) == 1:
        return contents.signatures[0]
    return contents.one(name)


def _file_name(entry: NamedGraph) -> str:
    """The last component of an entry's path, or all of them if that is a method's name."""
    steps = entry.name.split("/")
    return file_names([steps[-1] if not steps[-1].startswith("__") else entry.name])[0]


def _platforms(text: str) -> list[str]:
    """The platforms in a list. Raises Misuse for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = backend.platforms()
    if not names or not set(names).issubset(known):
        raise Misuse(
            f"--platforms is {text!r}, and known ones are {', '.join(known)}",
            f"write --platforms {_DEFAULT_PLATFORMS}",
        )
    return names
