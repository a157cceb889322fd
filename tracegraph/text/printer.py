"""Prints graphs as text: one node per line, columns aligned, called graphs first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tracegraph.core.source import UNKNOWN, Source
from tracegraph.ir.op import Op
from tracegraph.ir.tensor import NOTES, Graph, Node, Tensor, get_type
from tracegraph.ops.constant import RuntimeSize
from tracegraph.text.literals import WORD, Keep, quoted, value_text

#: Lines, and types of several outputs, that are longer than this do not widen the column for the
#: others: one large constant, or one call, would otherwise pad every line.
_WIDEST_LEFT, _WIDEST_TYPES = 100, 60
#: Longer headers are broken: one argument, or one result type, per line. Stored text, for readers
#: of every version, has one-line headers, and all types aligned.
_WIDEST_HEADER = 100

_PLAIN = re.compile(r'[^\s":]+')


def graph_text(graph: Graph, locations: bool = False) -> str:
    """The text of `graph` and of all graphs that it calls, callees first.

    With `locations`, every node ends with the user's line and the roles of the passes that derived
    it, such as `at mlp.py:6 vjp`; without, only nodes that cut a run to find a size do. Linear in
    the
    number of nodes.
    """
    *called, text = module_text((graph,), locations).rsplit("\n\n", 1)
    notes = graph.cache[NOTES]() if NOTES in graph.cache else ()
    return "\n\n".join([*called, "\n".join([*(f"# {line}" for line in notes), text])])


def module_text(graphs: Iterable[Graph], locations: bool = False, keep: Keep | None = None) -> str:
    """The text of several graphs; shared ones are printed once, callees first.

    With `keep`, arrays that it accepts are named in the text instead of written.
    """
    symbols = graph_symbols(graphs)
    return "\n\n".join(map(_Printer(symbols, locations, keep).graph, symbols))


def graph_symbols(graphs: Iterable[Graph]) -> dict[Graph, str]:
    """The names that `module_text` gives to the graphs and to all that they hold, in its order."""
    ordered = list(dict.fromkeys(inner for graph in graphs for inner in graph.graphs()))
    return dict(zip(ordered, unique([legal(graph.name, "graph") for graph in ordered])))


def node_text(graph: Graph, node: Node) -> str:
    """One node of `graph` as a line, with the names used in the text of `graph`."""
    symbols = {inner: legal(inner.name, "graph") for inner in node.op.graphs()}
    left, types, place = _Printer(symbols, locations=True).row(node, value_names(graph))
    return f"{left.strip()} : {types}{place}"


def legal(name: str | None, default: str) -> str:
    """`name` as a word of letters, digits, `_` and `.` that starts with neither a digit nor a
    dot."""
    if name and WORD.fullmatch(name):
        return name
    word = re.sub(r"[^\w.]+", "_", (name or "").replace("/", ".")).strip("_.")
    if not word:
        return default
    return word if WORD.fullmatch(word) else f"_{word}"


class Names:
    """Generates unique names, each in constant time, however many there are."""

    def __init__(self, taken: Iterable[str]) -> None:
        #: For each name in use, the first number that may be free after it.
        self._next = dict.fromkeys(taken, 1)

    def new(self, name: str) -> str:
        """`name`, or `name.1`, `name.2` and so on if it is taken."""
        found = name
        while found in self._next:
            found = f"{name}.{self._next[name]}"
            self._next[name] += 1
        self._next[found] = 1
        return found


def unique(names: Iterable[str]) -> list[str]:
    """The names, with `.1`, `.2` and so on appended to repeated ones; stable if unique."""
    return list(map(Names(()).new, names))


class _AnyNames(dict[Tensor, str]):
    """Printing an invalid graph must not fail: values that it does not define have names too."""

    def __missing__(self, key: Tensor) -> str:
        return "%undefined"


def value_names(graph: Graph) -> dict[Tensor, str]:
    """`%name` for every input of the graph and `%number` for every value that its nodes compute."""
    arguments = unique([legal(x.name, f"arg{i}") for i, x in enumerate(graph.inputs)])
    names = _AnyNames(zip(graph.inputs, [f"%{name}" for name in arguments]))
    values = [value for node in graph.nodes for value in node.outputs]
    names.update(zip(values, map("%{}".format, range(len(values)))))
    return names


class _Printer:
    """Prints graphs whose names are `symbols`; caches the texts of ops, types and places."""

    def __init__(
        self, symbols: dict[Graph, str], locations: bool, keep: Keep | None = None
    ) -> None:
        self.symbols = symbols
        self.keep = keep
        self.locations = locations
        self.ops: dict[Op, str] = {}
        self.types: dict[tuple[Any, ...], str] = {}
        self.places: dict[Any, str] = {}

    def graph(self, graph: Graph) -> str:
        names = value_names(graph)
        rows = [self.row(node, names) for node in graph.nodes]
        left = _width((row[0] for row in rows), _WIDEST_LEFT)
        middle = _width(self.aligned_types(graph, rows), _WIDEST_TYPES) if self.locations else 0
        lines = [
            self.header(graph, names),
            *[f"{a:<{left}} : {b:<{middle}}{c}" if c else f"{a:<{left}} : {b}" for a, b, c in rows],
            f"  return {_listed(names[y] for y in graph.outputs)}".rstrip(),
            "}",
        ]
        return "\n".join(lines)

    def aligned_types(self, graph: Graph, rows: list[tuple[str, str, str]]) -> Iterator[str]:
        """The types that may widen their column."""
        for node, (_, types, _) in zip(graph.nodes, rows):
            if len(node.outputs) < 2 or self.keep is not None:
                yield types

    def header(self, graph: Graph, names: dict[Tensor, str]) -> str:
        head = f"graph @{self.symbols[graph]}("
        arguments = [f"{names[x]}: {x.type}" for x in graph.inputs]
        results = list(map(str, graph.output_types))
        line = f"{head}{_listed(arguments)}) -> ({_listed(results)}) {{"
        if len(line) <= _WIDEST_HEADER or self.keep is not None:
            return line
        end = f") -> ({_listed(results)}) {{"
        if len(end) > _WIDEST_HEADER:
            end = f") -> ({_broken(results)}) {{"
        return f"{head}{_broken(arguments)}{end}"

    def row(self, node: Node, names: dict[Tensor, str]) -> tuple[str, str, str]:
        """The columns of a node: its computation, the types of its outputs, its place."""
        op = self.ops.get(node.op) or self.op(node.op)
        outputs = node.outputs
        key = tuple(map(get_type, outputs))
        types = self.types.get(key) or self.listed_types(key)
        made = ", ".join([names[y] for y in outputs]) or "()"
        operands = ", ".join([names[x] for x in node.inputs])
        is_told = self.locations or (type(node.op) is RuntimeSize and self.keep is None)
        place = self.place(node.source) if is_told else ""
        return f"  {made} = {op}({operands})", types, place

    def listed_types(self, types: tuple[Any, ...]) -> str:
        text = self.types[types] = _listed(map(str, types)) or "()"
        return text

    def op(self, op: Op) -> str:
        attributes = ", ".join(
            f"{name}={value_text(value, self.symbols, self.keep)}"
            for name, value in op.given_attributes()
        )
        text = self.ops[op] = f"{op.name}<{attributes}>" if attributes else op.name
        return text

    def place(self, source: Source) -> str:
        """` at file:line role...`, or nothing if the place is unknown."""
        key = source.key
        text = self.places.get(key)
        if text is None:
            text = self.places[key] = _place_text(source)
        return text


def _place_text(source: Source) -> str:
    if (
        source.line == UNKNOWN.line
        and source.file == UNKNOWN.file
        and not (source.roles or source.scope)
    ):
        return ""
    file = re.split(r"[\\/]", source.file)[-1] or UNKNOWN.file
    scope = ("in", _word(source.scope)) if source.scope else ()
    return " ".join((f" at {_word(file)}:{source.line}", *scope, *source.roles))


def _word(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name.isprintable() else quoted(name)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _broken(words: list[str]) -> str:
    """The words in the form of `_listed`, but one per line."""
    return ",".join([f"\n  {word}" for word in words]) + "\n" if words else ""


def _width(texts: Iterable[str], widest: int) -> int:
    """The width of a column: that of its longest text within the limit."""
    return max((length for length in map(len, texts) if length <= widest), default=0)
