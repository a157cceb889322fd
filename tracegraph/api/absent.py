"""Names of TensorFlow, JAX, NumPy and PyTorch that do not exist here, and their replacements.

Also what makes a module public: what completion shows of it, its own names and not its imports.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Collection, Iterable
from types import ModuleType
from typing import Any, NoReturn

from tracegraph.api.renames import GONE, OTHER_NAMES, TENSORFLOW_1
from tracegraph.boundary import guarding
from tracegraph.boundary.tracebacks import asked
from tracegraph.core.later import opened
from tracegraph.errors import fail_absent, kind_of

_FIRST = "TensorFlow 1 is not supported"
_KINDS = "there are dense tensors of numbers and truth values only"
_FUNCTION = "decorate a Python function with @tg.function"
_NAMED = "it has TensorFlow's name here"
_RENAMED = "it is a name of TensorFlow 1"
_DEVICES = "devices are JAX's"
_APART = "nothing is set apart as experimental"
_PICTURES = "files are read, and pictures drawn, by Python"

#: For each absent name, in `tracegraph` or one of its modules, the reason and the fix.
ABSENT = {
    **{name: (_NAMED, f"use {other}") for name, other in OTHER_NAMES.items()},
    **{name: (_RENAMED, f"use {other}") for name, other in TENSORFLOW_1.items()},
    **dict.fromkeys(GONE, (_FIRST, "use Python, and tg.function for what is to be compiled")),
    **{
        f"config.{name}": (_DEVICES, f"use {other}")
        for name, other in {
            "experimental": "tg.config, or JAX's settings",
            "get_visible_devices": "tg.config.list_logical_devices()",
            "set_visible_devices": "JAX_PLATFORMS, or CUDA_VISIBLE_DEVICES",
            "threading": "JAX's settings",
        }.items()
    },
    "config.optimizer": ("every function is a program of XLA, which optimises it", "leave it out"),
    **dict.fromkeys(
        ["debugging.get_log_device_placement", "debugging.set_log_device_placement"],
        ("a tensor says where it is", "use x.device"),
    ),
    "dtypes": ("data types are in tg itself", "use tg.as_dtype, tg.DType, or such as tg.float32"),
    "experimental": (
        _APART,
        "use tg.numpy for its `numpy`, tg.numpy.from_dlpack and np.from_dlpack for its `dlpack`, "
        "tg.distribute for its `dtensor`, tg.float8_e4m3fn and its like for data types; subclasses "
        "of its ExtensionType are dataclasses",
    ),
    "distribute.experimental": (
        "there are no strategies: layouts say what is divided",
        "use tg.distribute.Mesh, and layout= of tg.Variable or tg.distribute.with_layout",
    ),
    "linalg.experimental": (_APART, "use tg.linalg.solve for its `conjugate_gradient`"),
    "saved_model.experimental": (_APART, "use tg.saved_model.SaveOptions"),
    "train.experimental": (_APART, "use tg.train.Checkpoint"),
    "math.sobol_sample": ("there are no quasi-random numbers", "use scipy.stats.qmc.Sobol"),
    "no_op": ("there are no ops that make nothing", "leave it out, or use tg.group()"),
    "np": ("tensors go to NumPy and back", "use NumPy, tg.numpy, or tg itself"),
    "fft": ("transforms are those of signals", "use tg.signal.fft"),
    "summary": (
        "there are no event files",
        "use tg.print, or log what x.numpy() gives; tg.profile(f, x) says where the time of a call "
        "goes, and f.graph(x) of a @tg.function has the graph",
    ),
    "test": ("tests are those of Python", "use np.testing, and tg.testing.check_gradients"),
    "timestamp": ("clocks are Python's", "use time.time(), outside of functions"),
    **dict.fromkeys(
        [
            *("image.decode_image", "image.decode_jpeg", "image.decode_png"),
            *("image.adjust_jpeg_quality", "image.draw_bounding_boxes"),
        ],
        (_PICTURES, "use a library of images, and give its array to the function"),
    ),
    **dict.fromkeys(
        ["nn.embedding_lookup_sparse", "nn.safe_embedding_lookup_sparse"],
        (_KINDS, "use tg.nn.embedding_lookup of padded rows, and a sum or mean with weights"),
    ),
    "edit_distance": (
        _KINDS,
        "compare the sequences in Python, outside of functions or in a tg.numpy_function",
    ),
    **dict.fromkeys(
        ["nn.ctc_greedy_decoder", "nn.ctc_beam_search_decoder"],
        (_KINDS, "use tg.argmax of the logits, and leave out repetitions and blanks in Python"),
    ),
    **dict.fromkeys(
        ["nn.fractional_avg_pool", "nn.fractional_max_pool"],
        ("the sizes of windows are whole numbers", "use tg.nn.pool, or tg.image.resize"),
    ),
    "nn.depthwise_conv2d_backprop_filter": (
        "derivatives by filters are those of a tape",
        "use tg.GradientTape around tg.nn.depthwise_conv2d",
    ),
    **dict.fromkeys(
        [
            *("image.combined_non_max_suppression", "image.generate_bounding_box_proposals"),
            *("image.non_max_suppression_overlaps", "image.non_max_suppression_with_scores"),
        ],
        ("boxes are selected by their scores", "use tg.image.non_max_suppression_padded"),
    ),
    "image.extract_glimpse": ("it is a crop", "use tg.image.crop_and_resize"),
    "image.sample_distorted_bounding_box": (
        "boxes at random are those of a crop",
        "use tg.image.random_crop, or tg.random.uniform and tg.image.crop_and_resize",
    ),
    **dict.fromkeys(
        [
            *("random.all_candidate_sampler", "random.fixed_unigram_candidate_sampler"),
            "random.learned_unigram_candidate_sampler",
        ],
        (
            "there are two samplers of candidates",
            "use tg.random.log_uniform_candidate_sampler or tg.random.uniform_candidate_sampler",
        ),
    ),
    "random.experimental": (
        _APART,
        "use tg.random.split for its `stateless_split`, tg.random.fold_in for its "
        "`stateless_fold_in`, tg.random.stateless_shuffle for its shuffles, and "
        "tg.random.Generator",
    ),
    "random.create_rng_state": ("a state is a key", "use tg.random.Generator.from_seed"),
    "layers.InputLayer": ("a type stands for the inputs", "use tg.layers.Input"),
    **dict.fromkeys(
        ["keras.Model", "keras.models"],
        (
            "a model is a layer of layers",
            "use tg.keras.Sequential, or a subclass of tg.keras.Layer with the same `call`; the "
            "loop of `fit` is your own, as in the guide to training",
        ),
    ),
    "keras.Function": ("a model is a function of Python", "decorate it with @tg.function"),
    "keras.config": (
        "each layer has its dtype, and its data format",
        "give them where you make it: tg.layers.Dense(4, dtype=tg.float16)",
    ),
    "losses.Reduction": ("a reduction is its name", 'use tg.losses.Huber(reduction="sum")'),
    "losses.get": ("objects are made by their classes", "use such as tg.losses.MeanSquaredError()"),
    "metrics.get": ("objects are made by their classes", "use such as tg.metrics.Mean()"),
    "optimizers.get": ("objects are made by their classes", "use such as tg.optimizers.Adam()"),
    **dict.fromkeys(
        ["initializers.STFT", "initializers.STFTInitializer", "initializers.stft"],
        ("there is no such initializer", "write a subclass of tg.initializers.Initializer"),
    ),
    "autograph.to_graph": (
        "a function is converted when it is traced",
        "use tg.function(f), or tg.autograph.to_code(f) to read what it becomes",
    ),
    "autograph.trace": ("what is traced runs Python", "use Python's print"),
    "keras.ops": ("functions of tensors are those of tg", "use tg, tg.math and tg.nn"),
    "keras.backend": (
        "functions of tensors are those of tg, and each layer has its dtype",
        "use tg, tg.math and tg.nn; in place of `set_floatx`, such as "
        'tg.layers.Dense(4, dtype="float64")',
    ),
    "keras.saving": (
        "objects are saved as data, so classes need no registration",
        "leave it out, and use tg.saved_model.save or tg.train.Checkpoint",
    ),
    "layers.experimental": (_APART, "use tg.layers, and tg.image for pictures"),
    "keras.datasets": ("there are no datasets", "use those of a package such as scikit-learn"),
    "keras.callbacks": (
        "training is a loop of your own",
        "do it in the loop, as with tg.train.CheckpointManager",
    ),
    "data": ("there are no datasets", "loop over NumPy arrays, or over any iterator of them"),
    **dict.fromkeys(["compat", "Session", "placeholder"], (_FIRST, _FUNCTION)),
    "get_variable": (_FIRST, "use tg.Variable"),
    **dict.fromkeys(["strings", "string"], (_KINDS, "keep strings in Python")),
    **dict.fromkeys(["ragged", "RaggedTensor"], (_KINDS, "pad the rows, and mask with tg.where")),
    **dict.fromkeys(["sparse", "SparseTensor"], (_KINDS, "use dense tensors and tg.gather")),
    "lookup": (
        "there are no tables",
        "use tg.layers.IntegerLookup, or a dict in Python",
    ),
    "version": ("there is one version, that of the package", "use tg.__version__"),
    "io": ("files are read and written by Python", "use NumPy's functions, or tg.saved_model"),
}


_LOOP = (
    "training is a loop of your own",
    "compute the loss under a tg.GradientTape in a @tg.function, and use optimizer.minimize",
)
_CALLED = ("it is called as a function", "call it: y = layer(x)")
_MODE = ("there is no mode to set", "say it where you call: layer(x, training=True)")
_FILES = ("files have functions of their own", "use tg.train.Checkpoint, or tg.saved_model.save")
_STEP = (
    "steps take gradients",
    "use optimizer.apply_gradients(zip(gradients, variables)), or optimizer.minimize",
)
_NO_GRAPH = (
    "there is no graph of layers",
    "call the layers one after the other in a function, as `for layer in model.layers`, and return "
    "what you need",
)
_CONFIG = ("objects are saved as data", "use tg.saved_model.save, or keep the arguments yourself")
_VARIABLES = ("it has variables", "use .variables, or .trainable_variables")

#: Attributes of Keras' and PyTorch's layers and optimizers, and their replacements.
_OF_LAYERS = {
    **dict.fromkeys(["fit", "train_on_batch"], _LOOP),
    "compile": ("layers are compiled with what calls them", _FUNCTION),
    **dict.fromkeys(["forward", "predict"], _CALLED),
    "evaluate": (
        "losses and metrics are functions",
        "compute them from what layer(x) returns, with tg.losses and tg.metrics",
    ),
    **dict.fromkeys(["eval", "train"], _MODE),
    **dict.fromkeys(["load_state_dict", "load_weights", "save", "save_weights"], _FILES),
    "state_dict": _FILES,
    "summary": (
        "models have summaries, and graphs",
        "use tg.layers.Sequential([...]).summary(), or f.graph(x).summary() of a @tg.function",
    ),
    "dtype_policy": ("a layer has two dtypes", "use layer.dtype and layer.compute_dtype"),
    **dict.fromkeys(["input", "inputs", "output", "outputs"], _NO_GRAPH),
    **dict.fromkeys(["from_config", "get_config", "to_json"], _CONFIG),
    "compute_output_shape": (
        "the shape of a result is that of a call",
        "use layer(tg.zeros(shape)).shape",
    ),
    **dict.fromkeys(
        ["reset_state", "reset_states"],
        (
            "only recurrent layers keep states between calls, if made with stateful=True",
            "call reset_state of these: for layer in model.layers: ...",
        ),
    ),
    **dict.fromkeys(["get_weights", "parameters", "set_weights", "weights"], _VARIABLES),
    "lr": ("it has Keras 3's name", "use .learning_rate"),
    "step": _STEP,
    "zero_grad": ("each tape begins without gradients", "leave it out"),
}
_MADE_LATER = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance")


def refuse_attribute(owner: Any, name: str, own: Collection[str]) -> NoReturn:
    """Raises the AttributeError for an attribute missing from a layer or an optimizer; `own` has
    those that the `__init__` of its base class sets."""
    found = inspect.getattr_static(type(owner), name, None)
    if isinstance(found, property):
        found.__get__(owner)  # a property that fails lands here, and its own error says more
    fact = f"{kind_of(owner)} has no attribute {name!r}"
    if name in own:
        reason = "its __init__ does not call that of its base class"
        fail_absent(name, f"{fact}: {reason}", "begin __init__ with super().__init__()")
    if name in _MADE_LATER and not getattr(owner, "built", True):
        reason, fix = "a layer makes its variables when it is called first", "call it before"
        fail_absent(name, f"{fact} yet: {reason}", fix)
    if name in _OF_LAYERS:
        reason, fix = _OF_LAYERS[name]
        fail_absent(name, f"{fact}: {reason}", fix)
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")


#: The public modules imported on first use, which keeps `import tracegraph` fast.
LATER = frozenset(
    [
        *("activations", "constraints", "distribute", "export", "image", "initializers", "keras"),
        *("layers", "losses", "metrics", "numpy", "optimizers", "quantization", "raw_ops"),
        *("regularizers", "saved_model", "signal", "testing", "train", "utils"),
    ]
)

#: The public modules imported so far, by their names without `tracegraph.`.
_modules: dict[str, ModuleType] = {}


def all_modules() -> Iterable[tuple[str, ModuleType]]:
    """All public modules with their names, after importing those left for later."""
    for name in LATER - _modules.keys():
        importlib.import_module(f"tracegraph.{name}")
    return sorted(_modules.items())


def refuse(name: str, module: str = "") -> NoReturn:
    """Raises the AttributeError for a name missing from `tracegraph`, or from one of its
    modules."""
    path = f"{module}.{name}" if module else name
    if path in ABSENT:
        reason, fix = ABSENT[path]
        fail_absent(name, f"there is no tg.{path}: {reason}", fix)
    whole = f"tracegraph.{module}" if module else "tracegraph"
    fact = f"module {whole!r} has no attribute {name!r}"
    if name.startswith("__"):  # the import system asks for `__path__`
        raise AttributeError(fact, name=name, obj=sys.modules[whole])
    # `from package import module` gets here during an import, which must not start another.
    is_import = _is_module(whole, name)
    modules = [*(sorted(_modules.items()) if is_import else all_modules())]
    found = [] if module == "raw_ops" else _paths_of(name, modules)
    if found:
        fail_absent(name, fact, f"use {', or '.join(found)}")
    if name in OTHER_NAMES or name in TENSORFLOW_1:  # even if another module has the name
        reason, fix = ABSENT[name]
        fail_absent(name, f"{fact}: {reason}", fix)
    if any(short == "numpy" and name in dir(found) for short, found in modules):
        fail_absent(name, fact, f"use tg.numpy.{name}")
    families = opened("tracegraph.api.families")  # only needed for errors
    told = families.advice(path, _plain_names(modules))
    if told is not None:
        reason, fix = told
        fail_absent(name, f"there is no tg.{path}: {reason}", fix)
    near = _near(name, module, modules)
    if near:
        fail_absent(name, fact, f"use {near}, if that is meant")
    told = families.advice_for_the_rest(path)
    if told is not None:
        reason, fix = told
        fail_absent(name, f"there is no tg.{path}: {reason}", fix)
    raise AttributeError(fact, name=name, obj=sys.modules[whole])


def _is_module(package: str, name: str) -> bool:
    """Whether a package has a module of that name."""
    is_package = "__path__" in vars(sys.modules[package])
    return is_package and importlib.util.find_spec(f"{package}.{name}") is not None


def _paths_of(name: str, modules: Iterable[tuple[str, ModuleType]]) -> list[str]:
    """Where a name is public: in `tg` itself, or else in its modules, except those of the array
    API, which repeat most names."""
    if name in dir(sys.modules["tracegraph"]):
        return [f"tg.{name}"]
    others = [(short, module) for short, module in modules if not short.startswith("numpy")]
    return [f"tg.{short}.{name}" for short, module in others if name in dir(module)]


def _plain_names(modules: Iterable[tuple[str, ModuleType]]) -> dict[str, str]:
    """The paths of all public functions, by their names without underscores."""
    homes = [("", sys.modules["tracegraph"]), *modules]
    found: dict[str, str] = {}
    for short, home in homes:
        for public in dir(home):
            if public[0].islower():  # a function, not a class
                found.setdefault(
                    _plain(public), f"tg.{short}.{public}" if short else f"tg.{public}"
                )
    return found


def _near(name: str, module: str, modules: Iterable[tuple[str, ModuleType]]) -> str | None:
    """The public name of which `name` may be a misspelling, if there is one, preferably in the same
    module."""
    if name.startswith("_"):
        return None
    homes = [("", sys.modules["tracegraph"]), *modules]
    homes.sort(key=lambda home: (home[0] != module, home[0].startswith("numpy")))
    plain: dict[str, str] = {}
    for short, home in homes:
        names = [x for x in dir(home) if not x.startswith("_")]
        for public in sorted(names, key=lambda x: x[0].isupper() != name[0].isupper()):
            path = f"tg.{short}.{public}" if short else f"tg.{public}"
            plain.setdefault(_plain(public), path)
    close = difflib.get_close_matches(_plain(name), plain, 1, _SLIP)
    return plain[close[0]] if close else None


#: The least similarity, from 0 to 1, at which one name may be a misspelling of another.
_SLIP = 0.85


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


#: What public modules import for themselves.
_TOOLS = frozenset(["TYPE_CHECKING", "Any", "annotations", "names_of", "publish"])


def names_of(module: dict[str, Any], *modules: str) -> list[str]:
    """The public names of a module that gathers those of others, from its `globals()`; of the
    modules among them only `modules`."""
    return [
        name
        for name, value in module.items()
        if not (name.startswith("_") or name in _TOOLS)
        and (name in modules or not isinstance(value, ModuleType))
    ]


def publish(*names: str) -> None:
    """Makes modules public: each lists its own names, and raises errors as the public API does. A
    module in `LATER` ends with this call, since programs may also import it without `tg`, as in
    `from tracegraph.layers import Dense`."""
    modules = [sys.modules[name] for name in names]
    for module in modules:
        show_names_of(module)
    guarding.guard(modules)


def show_names_of(module: ModuleType) -> None:
    """Makes a public module list only its own names, and give advice on missing ones."""
    short = module.__name__.removeprefix("tracegraph.")
    names = sorted(module.__all__)
    _modules[short] = module
    load = vars(module).get("__getattr__")

    @asked
    def __getattr__(name: str) -> Any:
        return load(name) if load is not None and name in names else refuse(name, short)

    vars(module)["__dir__"] = lambda: names
    vars(module)["__getattr__"] = __getattr__
