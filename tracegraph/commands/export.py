"""`tracegraph export`: an entry as a program for others."""

from __future__ import annotations

import argparse

from tracegraph.commands.answers import Answer, Misuse, size_text, write_file
from tracegraph.commands.contents import TraceEntry, open_path
from tracegraph.export import stablehlo


def export(options: argparse.Namespace) -> Answer:
    entry = open_path(options.path).one(options.entry)
    if not isinstance(entry, TraceEntry):
        raise Misuse(
            f"{options.path} is the text of a graph, and functions are exported",
            "give the directory of a saved model",
        )
    platforms = [name.strip() for name in options.platforms.split(",") if name.strip()]
    data = stablehlo(entry.concrete, gradient=options.gradient, platforms=platforms)
    write_file(options.output, data)
    kind = f"{entry.name}{' and its gradients' if options.gradient else ''} as {options.format}"
    return Answer(
        f"{kind} for {', '.join(platforms)}: {options.output}, {size_text(len(data))}",
        {
            "path": str(options.path),
            "entry": entry.name,
            "format": options.format,
            "platforms": platforms,
            "gradient": options.gradient,
            "output": str(options.output),
            "bytes": len(data),
        },
    )
