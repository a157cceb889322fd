r"""The text form of graphs: for people to read and for files to store.

Printing and parsing derive from the fields of the ops: no op knows that text exists, and nothing
here knows an op. Printing what was parsed gives the same text. The grammar:

    module ::= graph ("\n\n" graph)*                   called graphs first, the entry last
    graph  ::= "graph @" name "(" [arg (", " arg)*] ") -> (" types ") {" node* "return" values "}"
    arg    ::= "%" name ": " type                       type  ::= dtype "[" sizes "]" | "token"
    node   ::= values " = " op ["<" attr (", " attr)* ">"] "(" values ")" " : " types [" at " place]
    attr   ::= name "=" value                           value ::= see `tracegraph.text.literals`
    place  ::= file ":" line [" in " scope] (" " role)*

Each node is on one line, and so is each argument of a long header. Attributes that have their
default are omitted.
"""

from __future__ import annotations

from typing import Any

from tracegraph.errors import TraceError, fail, kind_of, shown
from tracegraph.ir.tensor import Graph
from tracegraph.text.parser import parse as parse, parse_module as parse_module
from tracegraph.text.printer import (
    graph_symbols as graph_symbols,
    graph_text as graph_text,
    module_text as module_text,
    node_text as node_text,
)
from tracegraph.text.verifier import verify as verify


def _str(graph: Graph) -> str:
    return graph_text(graph, locations=True)


def _as_text(graph: Graph, locations: bool = False) -> str:
    """The text of the graph and of all graphs that it calls, callees first.

    With `locations`, every node ends in the user's line and the roles of the passes that derived
    it, such as `at mlp.py:6 vjp`. Raises TraceError (a TypeError) for what is not a truth value.
    """
    _check_flag(locations)
    return graph_text(graph, locations)


def _check_flag(locations: Any) -> None:
    """Refuses a path, which would count as true and never be written to."""
    if not isinstance(locations, bool):
        fail(
            TraceError,
            f"as_text: locations={shown(locations)} is {kind_of(locations)}, not a bool",
            fix="write as_text(locations=True); for a file: Path(name).write_text(graph.as_text())",
        )


#: The graph methods that this floor provides, installed on first use.
GRAPH_METHODS: dict[str, Any] = {
    "__str__": _str,
    "as_text": _as_text,
    "from_text": staticmethod(parse),
    "verify": verify,
}
