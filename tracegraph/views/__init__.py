"""Views: graphs as pictures, tables and data, for people and for other programs.

Every picture is drawn from the same outline of a graph (`tracegraph.views.outline`), so all of them
use the names of the text form.
"""

from __future__ import annotations

from typing import Any

from tracegraph.passes.partition import backward_part as backward_part, forward_part as forward_part
from tracegraph.views.data import to_json as to_json
from tracegraph.views.dot import to_dot as to_dot
from tracegraph.views.graph_diff import GraphDiff as GraphDiff, diff as diff
from tracegraph.views.html import html_frame as html_frame, to_html as to_html
from tracegraph.views.mermaid import to_mermaid as to_mermaid
from tracegraph.views.model_explorer import to_model_explorer as to_model_explorer
from tracegraph.views.network import to_networkx as to_networkx
from tracegraph.views.outline import Outline as Outline, outline as outline
from tracegraph.views.summary import (
    Operation as Operation,
    get_operations as get_operations,
    summary as summary,
)

#: The graph methods that this floor provides, installed on first use.
GRAPH_METHODS: dict[str, Any] = {
    "_repr_html_": html_frame,
    "backward": backward_part,
    "forward": forward_part,
    "get_operations": get_operations,
    "summary": summary,
    "to_dot": to_dot,
    "to_html": to_html,
    "to_json": to_json,
    "to_mermaid": to_mermaid,
    "to_model_explorer": to_model_explorer,
    "to_networkx": to_networkx,
}
