"""Modules of flax and equinox as Modules whose parameters are Variables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from tracegraph.errors import SignatureError, TraceError, fail, kind_of, shown
from tracegraph.functions.function import function
from tracegraph.ir.builder import at_top_level
from tracegraph.jax_programs.libraries.optimizer import is_key_leaf, paths_of, word_of
from tracegraph.jax_programs.programs import as_before, from_jax, is_weakly_typed
from tracegraph.operands.conversion import as_tensor
from tracegraph.state.module import Module
from tracegraph.state.variable import Variable


class JaxModule(Module):
    """A flax or equinox module. `parameters` maps paths to its Variables.

    Call it like the original module. The call is a `tg.function`, so it is saved with the Module;
    Python values among the arguments are static.
    """

    _hidden = frozenset(["_run", "_weak"])

    def __init__(
        self, run: Callable[..., Any], leaves: Mapping[str, Any], variable: Callable[..., Variable]
    ) -> None:
        super().__init__()
        self._run: Callable[..., Any] = from_jax(run)
        self._weak = {path for path, leaf in leaves.items() if is_weakly_typed(leaf)}
        with at_top_level():
            self.parameters = {path: variable(path, leaf) for path, leaf in leaves.items()}

    @function
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kept = [as_before(v, path in self._weak) for path, v in self.parameters.items()]
        result, changed = self._run(kept, *args, **kwargs)
        for path, value in changed.items():
            self.parameters[path].assign(value)
        return result


def _variable(name: str, leaf: Any, is_trained: bool = True) -> Variable:
    value = as_tensor(np.asarray(leaf))
    return Variable(value, trainable=is_trained and value.dtype.is_differentiable, name=name)


def _of_collection(path: str, leaf: Any) -> Variable:
    """The Variable at a path that begins with its collection."""
    collection, _, name = path.partition("/")
    return _variable(name, leaf, collection == "params")


def from_flax(module: Any, variables: Any = None) -> JaxModule:
    """Converts a flax.linen module and its variables to a Module: `m(x)` is
    `module.apply(variables, x)`. For a flax.nnx module, which holds its own variables, `m(x)` is
    `module(x)`.

    - `variables`: the result of `module.init(key, x)`: collections, of which "params" is trainable.
      They become Variables with the same values, named after their paths, such as `hidden/kernel`;
      a random-number key becomes its two uint32.

    A call takes the arguments of the module, and those of `apply`: `rngs={"dropout": key}`, with
    keys as arrays of uint32, `method=`, and `mutable=["batch_stats"]`, with which the Variables of
    that collection are assigned; the result is that of the module alone. `mutable=True` stands for
    every collection, and False for none.

    For nnx, everything that a call changes, such as averages and counts, is assigned, and `Param`s
    are trainable. The module trains or not as it was last set before by `module.train()` or
    `module.eval()`.

    Raises TraceError for anything but a flax module, such as a class of modules, and for a linen
    module without variables.

    >>> import jax, flax.linen as nn
    >>> dense = nn.Dense(2)
    >>> m = tg.Module.from_flax(dense, dense.init(jax.random.key(0), jax.numpy.ones([1, 3])))
    >>> m(tg.ones([4, 3])).shape, [v.name for v in m.variables]
    (TensorShape([4, 2]), ['bias:0', 'kernel:0'])
    """
    if _is_nnx(module) and variables is None and not _is_class(module):
        return _from_nnx(module)
    if not callable(getattr(module, "apply", None)) or _is_class(module):
        _refuse("from_flax", module, "give a module of flax.linen, and its variables")
    if variables is None:
        fact = f"from_flax: {kind_of(module)} is given without its variables"
        fail(TraceError, fact, fix="give what module.init(key, x) returns, too")
    leaves, kinds = _by_path(variables)
    structure = jax.tree_util.tree_structure(variables)
    known = {path.split("/")[0] for path in leaves}

    def run(given: Any, *args: Any, mutable: Any = (), **kwargs: Any) -> Any:
        names = _collections(mutable, known)
        pairs = zip(given, kinds, strict=True)
        every = [x if kind is None else jax.random.wrap_key_data(x, impl=kind) for x, kind in pairs]
        values = jax.tree_util.tree_unflatten(structure, every)
        if not names:
            return module.apply(values, *args, **kwargs), {}
        result, after = module.apply(values, *args, mutable=names, **kwargs)
        changed, _ = _by_path(after)
        missing = sorted({path.split("/")[0] for path in changed} - known)
        if missing:
            fail(
                SignatureError,
                f"from_flax: a call makes the collection {missing[0]!r}, which has no Variables",
                fix="give the variables of that collection too, or leave it out of mutable",
            )
        return result, changed

    run.__name__ = type(module).__name__
    return JaxModule(run, leaves, _of_collection)


def _collections(mutable: Any, known: Iterable[str]) -> list[str]:
    """The collections that `mutable` names, as flax has it. Raises TraceError for another value."""
    if isinstance(mutable, bool) or mutable is None:
        return sorted(known) if mutable else []
    names = [mutable] if isinstance(mutable, str) else mutable
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        fail(
            TraceError,
            f"from_flax: mutable is {kind_of(mutable)}: {shown(mutable)}",
            fix='name the collections: mutable=["batch_stats"]',
        )
    return [*names]


def _is_nnx(module: Any) -> bool:
    return any(kind.__module__.startswith("flax.nnx") for kind in type(module).__mro__)


def _is_variable(x: Any) -> bool:
    return _is_nnx(x) and hasattr(x, "get_value")


def _from_nnx(module: Any) -> JaxModule:
    """A module of flax.nnx, which is a graph: what two places share is one Variable, as it is one
    parameter of nnx, under the first of its paths."""
    nnx = sys.modules["flax.nnx"]  # which made the module
    definition, state = nnx.split(module, graph=True)
    found = _leaves_of_state(state)
    structure = jax.tree_util.tree_structure(state)
    names = [name for name, leaf, _ in found if _is_array(leaf)]

    def run(values: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        every = [given.get(name, leaf) for name, leaf, _ in found]
        called = nnx.merge(definition, jax.tree_util.tree_unflatten(structure, every))
        result = called(*args, **kwargs)
        after = {name: leaf for name, leaf, _ in _leaves_of_state(nnx.state(called, graph=True))}
        return result, {k: after[k] for k, x in given.items() if k in after and after[k] is not x}

    run.__name__ = type(module).__name__
    is_trained = {name: trained for name, _, trained in found}
    return JaxModule(
        run,
        {name: leaf for name, leaf, _ in found if name in {*names}},
        lambda name, leaf: _variable(name, leaf, is_trained[name]),
    )


def _leaves_of_state(state: Any) -> list[tuple[str, Any, bool]]:
    """The leaves of a state of nnx, in which variables are nodes around their arrays: path, leaf,
    and whether it is trained."""
    found = []
    for path, variable in jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_variable)[0]:
        is_trained = any(kind.__name__ == "Param" for kind in type(variable).__mro__)
        pairs, _ = jax.tree_util.tree_flatten_with_path(variable)
        for inner, leaf in pairs:
            whole = (*path, *inner) if len(pairs) > 1 else path
            found.append(("/".join(map(word_of, whole)), leaf, is_trained))
    return found


def from_equinox(module: Any) -> JaxModule:
    """Converts an equinox module to a Module: `m(x)` is `module(x)`.

    Its arrays become Variables, named after their paths, such as `layers/0/weight`; floating-point
    ones are trainable. Pass random-number keys as arrays of uint32.

    Raises TraceError for an object that is not callable, and for a class or function.

    >>> import jax, equinox as eqx
    >>> m = tg.Module.from_equinox(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
    >>> m(tg.ones([3])).shape, [v.name for v in m.variables]
    (TensorShape([2]), ['bias:0', 'weight:0'])
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(module)
    if not callable(module) or not pairs or jax.tree_util.treedef_is_leaf(structure):
        _refuse("from_equinox", module, "give a module of equinox that has parameters")
    paths = paths_of(pairs)
    leaves = [leaf for _, leaf in pairs]
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def run(values: Any, *args: Any, **kwargs: Any) -> Any:
        every = list(leaves)
        for place, value in zip(places, values, strict=True):
            every[place] = value
        return jax.tree_util.tree_unflatten(structure, every)(*args, **kwargs), {}

    run.__name__ = type(module).__name__
    return JaxModule(run, {paths[i]: leaves[i] for i in places}, _variable)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and not is_key_leaf(leaf)


def _by_path(tree: Any) -> tuple[dict[str, Any], list[Any]]:
    """The leaves of collections of flax.linen by their paths, with the data of keys in the place of
    these; and for each leaf the generator of its keys. What flax puts around a parameter, such as
    `nn.Partitioned`, is not a part of its path."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    kinds = [jax.random.key_impl(leaf) if is_key_leaf(leaf) else None for _, leaf in pairs]
    data = [jax.random.key_data(leaf) if is_key_leaf(leaf) else leaf for _, leaf in pairs]
    paths = paths_of((steps[:-1] if _is_box(steps[-1:]) else steps, leaf) for steps, leaf in pairs)
    return dict(zip(paths, data, strict=True)), kinds


def _is_box(steps: Any) -> bool:
    return steps == (jax.tree_util.GetAttrKey("value"),)


def _is_class(module: Any) -> bool:
    return isinstance(module, type)


def _refuse(name: str, module: Any, fix: str) -> NoReturn:
    if _is_class(module):
        fact = f"{name}: {module.__name__} is a class of modules"
        fail(TraceError, fact, fix=f"give a module of this class: {module.__name__}(...)")
    fail(TraceError, f"{name}: {kind_of(module)} is not such a module", fix=fix)
