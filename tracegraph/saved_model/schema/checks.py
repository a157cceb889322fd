"""Reports of failed checks, as JSON and back."""

from __future__ import annotations

import os
import re
from typing import Any

from tracegraph.archive import limits
from tracegraph.archive.manifest import Entry, excerpt
from tracegraph.control_passes.check_numerics import Site
from tracegraph.core.source import Source
from tracegraph.saved_model.schema.source_lines import Lines
from tracegraph.tracing.trace import CheckReport


def written_check(report: CheckReport) -> dict[str, Any]:
    """The report of a failed check; fields that it lacks are omitted."""
    entry = {"message": report.message, **_place(report.source), "operands": report.operand_count}
    if report.fix:
        entry["fix"] = report.fix
    if report.is_range:
        entry["is_range"] = True
    if report.loops:
        entry["loops"] = [*map(_place, report.loops)]
    if report.sites:
        entry["sites"] = [
            {
                "fact": site.fact,
                **_place(site.source),
                "operands": [_FOLDERS.sub(r"\1", operand) for operand in site.operands],
                **({"loops": [*map(_place, site.loops)]} if site.loops else {}),
            }
            for site in report.sites
        ]
    return entry


#: The directories of an operand's source file, which do not concern whoever loads it.
_FOLDERS = re.compile(r"(  from )[^\n]*[\\/]")


def _place(source: Source) -> dict[str, Any]:
    return {
        "file": os.path.basename(source.file),
        "line": source.line,
        "roles": list(source.roles),
    }


def read_check(entry: Entry, lines: Lines) -> CheckReport:
    """The report of a failed check. Raises LoadError for operands that do not fit its kind."""
    message, file, line, roles, operands, fix, is_range, sites, loops = entry.fields(
        *("message", "file", "line", "roles", "operands"),
        optional=("fix", "is_range", "sites", "loops"),
    )
    report = CheckReport(
        message.text(),
        _read_place(file, line, roles, lines),
        operands.count(limits.MOST_OPERANDS),
        fix.optional(Entry.text) or "",
        is_range.optional(Entry.flag) or False,
        tuple(sites.optional(lambda e: e.each(lambda row: _site(row, lines))) or ()),
        _loops(loops, lines),
    )
    wanted = 4 if report.is_range else max(report.operand_count - len(report.loops), 0)
    if report.sites:
        wanted = 1 + max(len(site.loops) for site in report.sites)
    wanted += len(report.loops)
    if report.operand_count != wanted:
        operands.fail(f"a check of this kind has {wanted} operands")
    return report


def _site(entry: Entry, lines: Lines) -> Site:
    fact, file, line, roles, operands, loops = entry.fields(
        *("fact", "file", "line", "roles", "operands"), optional=("loops",)
    )
    return Site(
        fact.text(),
        _read_place(file, line, roles, lines),
        tuple(operands.each(Entry.text)),
        _loops(loops, lines),
    )


def _loops(entry: Entry, lines: Lines) -> tuple[Source, ...]:
    return tuple(entry.optional(lambda e: e.each(lambda row: _loop(row, lines))) or ())


def _loop(entry: Entry, lines: Lines) -> Source:
    file, line, roles = entry.fields("file", "line", "roles")
    return _read_place(file, line, roles, lines)


def _read_place(file: Entry, line: Entry, roles: Entry, lines: Lines) -> Source:
    """A source line of the user's, and the passes that derived nodes from it."""
    if "/" in file.label() or "\\" in file.label():
        file.fail(f"{excerpt(file.text())} names a folder")
    number = line.count(10**9)
    text = lines.get((file.text(), number), "")
    return Source.at(file.text(), number, tuple(roles.each(Entry.label)), text=text)
