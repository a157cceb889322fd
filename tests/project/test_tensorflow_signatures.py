"""Functions that TensorFlow has take its arguments: by their names, at their positions, with their
defaults. `tensorflow_signatures.txt` states them for TensorFlow 2.21 and Keras 3.15: one function,
class or method on a line. Arguments of ours may follow."""

import ast
import enum
import inspect
from operator import attrgetter
from pathlib import Path

import tracegraph as tg

LINES = (Path(__file__).parents[1] / "tensorflow_signatures.txt").read_text().splitlines()
REQUIRED = "required"

#: What a default of None stands for, where TensorFlow has None and we the value, or the reverse.
MEANING_OF_NONE = {
    "aggregation": ["variableaggregation.none"],
    "axis": [-1],
    "dilations": [1],
    "dtype": ["float32"],
    "initializer": ["zeros"],
    "keepdims": [False],
    "shape": [[]],
    "synchronization": ["variablesynchronization.auto"],
}

#: Why an argument is not here, or not at TensorFlow's place; by "argument", "function(argument", or
#: "function" for all that is different in it.
DIFFERENT = {
    "autocast": "a layer computes in its dtype",
    "experimental_enable_variable_lifting": "it is of TensorFlow's own machinery",
    "gptq_unpacked_column_size": "there is no quantisation of weights",
    "layout": "a layout of DTensor; `tg.distribute.with_layout` has ours",
    "lora_alpha": "there are no low-rank updates",
    "lora_rank": "there are no low-rank updates",
    "quantization_config": "there is no quantisation of weights",
    "DType": "data types are made here alone",
    "image.stateless_random_saturation(seed": "TensorFlow fails without it too",
    "layers.Conv3DTranspose": "the arguments are in the order of Conv2DTranspose",
    "layers.Input": "inputs are dense; what follows `sparse` is for keywords",
    "layers.Layer.add_weight(aggregation": "there is one replica",
    "layers.Layer.add_weight(overwrite_with_gradient": "it is for training in 8 bits",
    "nn.sigmoid_cross_entropy_with_logits": "TensorFlow fails without labels and logits too",
    "optimizers.Optimizer.build": "Keras' name is `var_list` in most classes",
    "optimizers.Optimizer.update_step": "a step is a function of values",
    "saved_model.SaveOptions": "options are for keywords, since few of TensorFlow's are here",
}


def normal(default):
    """A default as it is compared: dtypes and functions by name, enumerations by value, and a tuple
    that has one item for each axis as this item."""
    if default is inspect.Parameter.empty:
        return REQUIRED
    if isinstance(default, (list, tuple)):
        items = [normal(item) for item in default]
        return items[0] if items and all(item == items[0] for item in items) else items
    if isinstance(default, tg.DType):
        return default.name
    if isinstance(default, enum.Enum):
        return normal(default.value)
    if callable(default):
        return default.__name__
    return default.lower() if isinstance(default, str) else default


def stated(default):
    """A default of the file; a name is that of a dtype, a function or an option."""
    if default is None:
        return REQUIRED
    is_name = isinstance(default, (ast.Name, ast.Attribute))
    return normal(ast.unparse(default) if is_name else ast.literal_eval(default))


def stated_arguments(line):
    """The path of a line, and its arguments as (name, position or None, default)."""
    path, _, rest = line.partition("(")
    given = ast.parse(f"def f({rest}: pass").body[0].args
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    found = [(x.arg, k, stated(d)) for k, (x, d) in enumerate(zip(given.args, defaults))]
    return path, found + [
        (x.arg, None, stated(d)) for x, d in zip(given.kwonlyargs, given.kw_defaults)
    ]


def own_arguments(path):
    """Ours by name, as (position or None, default), without the `self` of methods."""
    function = attrgetter(path)(tg)
    if inspect.isclass(function):
        function = function.__init__
    found = [*inspect.signature(function).parameters.values()]
    found = [x for x in found if x.name != "self"]
    by_position = [x for x in found if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    places = {x.name: k for k, x in enumerate(by_position)}
    takes_others = any(x.kind is x.VAR_KEYWORD for x in found)
    return {x.name: (places.get(x.name), normal(x.default)) for x in found}, takes_others


def mean_the_same(name, own, theirs):
    if name == "name" or own == theirs or (theirs == REQUIRED and own != REQUIRED):
        return True
    known = MEANING_OF_NONE.get(name, [])
    return (own is None and theirs in known) or (theirs is None and own in known)


def differences(line):
    """What is otherwise here, by "function(argument"."""
    path, theirs = stated_arguments(line)
    ours, takes_others = own_arguments(path)
    for name, position, default in theirs:
        if name not in ours:
            if not takes_others:
                yield f"{path}({name}", "is missing"
            continue
        place, own = ours[name]
        if position not in (None, place):
            yield f"{path}({name}", f"stands at {place}, not at {position}"
        if not mean_the_same(name, own, default):
            yield f"{path}({name}", f"is {own!r} by default, not {default!r}"


def test_signatures_tell_the_name_by_default():
    paths = [line.partition("(")[0] for line in LINES]
    own = {path: own_arguments(path)[0].get("name") for path in paths}
    assert [path for path, argument in own.items() if argument and argument[1] == ""] == []


def reason(place):
    path, _, argument = place.partition("(")
    return next((key for key in (place, path, argument) if key in DIFFERENT), None)


def test_arguments_are_those_of_tensorflow():
    found = [difference for line in LINES for difference in differences(line)]
    assert [x for x in found if reason(x[0]) is None] == []
    assert {reason(place) for place, _ in found} == {*DIFFERENT}, "a reason is out of date"
    assert len(LINES) > 900
