"""Several graphs in one page: each is a page of its own in a frame that opens and closes."""

from __future__ import annotations

import html
from collections.abc import Iterable

from tracegraph.ir.tensor import Graph
from tracegraph.views.html import html_frame

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }}
body {{ margin: 1rem; }}
summary {{ cursor: pointer; padding: 0.3rem 0; font-weight: 600; }}
iframe {{ height: 82vh; }}
</style>
</head>
<body>
<h1>{title}</h1>
{frames}
</body>
</html>
"""


def html_frames(graphs: Iterable[tuple[str, Graph]]) -> str:
    """A list of graphs by name that shows the selected one; the first is open.

    Each is isolated from the page around it, as `html_frame` describes, and drawn when it is
    opened.
    """
    rows = []
    for place, (name, graph) in enumerate(graphs):
        is_open = "" if place else " open"
        head = f'<details name="graphs"{is_open}><summary>{html.escape(name)}</summary>'
        rows.append(f"{head}{html_frame(graph)}</details>")
    return "\n".join(rows)


def html_page(title: str, graphs: Iterable[tuple[str, Graph]]) -> str:
    """One page for several graphs, which needs no network and no script of its own."""
    return _PAGE.format(title=html.escape(title), frames=html_frames(graphs))
