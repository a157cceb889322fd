"""Methods whose modules are imported on first use: the text and the views of graphs, and the
converters of other libraries' modules."""

from __future__ import annotations

from typing import Any, NoReturn

from tracegraph.boundary import guarding
from tracegraph.boundary.tracebacks import asked
from tracegraph.core.later import opened
from tracegraph.errors import fail_absent
from tracegraph.functions.function import Function
from tracegraph.ir.tensor import Graph
from tracegraph.state.module import Module


class _Method:
    """A method of graphs until its first use, which installs all methods of its module."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, graph: Graph | None, owner: type[Graph]) -> Any:
        for name, method in opened(self._module).GRAPH_METHODS.items():
            setattr(Graph, name, method)
        guarding.guard_methods(Graph)
        return getattr(owner if graph is None else graph, self._name)


_METHODS = {
    "tracegraph.text": ("__str__", "as_text", "from_text", "verify"),
    "tracegraph.views": (
        *("_repr_html_", "backward", "forward", "get_operations", "summary", "to_dot"),
        *("to_html", "to_json", "to_mermaid", "to_model_explorer", "to_networkx"),
    ),
}
for _module, _names in _METHODS.items():
    for _name in _names:
        setattr(Graph, _name, _Method(_module, _name))


@asked
def _absent(function: Function, name: str) -> NoReturn:
    """Refuses an attribute that a @tg.function lacks; the views belong to the graphs of its
    traces."""
    if name.startswith("_") or not any(name in names for names in _METHODS.values()):
        kind = type(function).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=function)
    fail_absent(
        name,
        f"a @tg.function has no {name!r}: each of its traces has a graph of its own",
        f"use f.graph(x).{name}(), where x stands for the arguments, or for TensorSpecs of them",
    )


setattr(Function, "__getattr__", _absent)  # noqa: B010 - a checker would allow every name


class _Maker:
    """A function of a class, imported on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Module | None, owner: type[Module]) -> Any:
        made = getattr(opened("tracegraph.jax_programs.libraries.modules"), self._name)
        return guarding.public(made, "tracegraph.Module", self._name)


def _saved_traces(folder: str) -> list[Any]:
    """The traces of a saved model, for `precompile`, which is on a floor below the reader."""
    return opened("tracegraph.saved_model.reading").saved_traces(folder)


Function._saved_traces = staticmethod(_saved_traces)

for _name in ("from_equinox", "from_flax"):
    setattr(Module, _name, _Maker(_name))
