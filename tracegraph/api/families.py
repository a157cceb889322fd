"""Families of TensorFlow names that do not exist here: a rule for each, by the requested path.

A rule consists of a pattern for the whole path below `tg`, a reason and a fix; the first match
wins. Names found elsewhere, or under a new name, are handled before (`absent.py`).
"""

from __future__ import annotations

import re

_MESHES = "a program runs on one device, or on a mesh"
_DATA = ("there are no datasets", "loop over NumPy arrays, or over any iterator of them")
_PROTO = ("there are no protocol buffers", "use Python's own types, and tg.saved_model for models")
_ERRORS = "errors are Python's, and six classes of tg.errors"
_NUMBERS = "there are dense tensors of numbers and truth values only"
_TRAINING = ("training is a loop of your own", "write the loop, with tg.GradientTape")
_SERIAL = (
    "objects are not described by configurations",
    "use Python, and tg.saved_model.save for what is trained",
)
_SHORT = {
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "mse": "mean_squared_error",
    "msle": "mean_squared_logarithmic_error",
    "logcosh": "log_cosh",
}
_CODES = (
    *("ABORTED", "ALREADY_EXISTS", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "OUT_OF_RANGE"),
    *("FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "OK", "UNKNOWN"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"),
    "UNIMPLEMENTED",
)

#: Pattern of the path, reason, fix.
_RULES: list[tuple[str, str, str]] = [
    # Other than dense tensors of numbers.
    (
        r"q?u?int(8|16|32)_ref|(q|qu)int(8|16|32)",
        _NUMBERS,
        "use tg.quantization.fake_quant_with_min_max_vars",
    ),
    (r"(resource|variant)(_ref)?", _NUMBERS, "use tg.Variable, or tg.TensorArray"),
    (
        r"(Ragged|Sparse)\w*|ragged_\w+|sparse_\w+",
        _NUMBERS,
        "use dense tensors, padded, with tg.where",
    ),
    (
        r"as_string|string_\w+|substr|regex_\w+",
        _NUMBERS,
        "keep strings in Python, as str(x.numpy())",
    ),
    (
        r"(None|Optional|Ragged|Sparse|Type|TensorArray|IndexedSlices)\w*Spec|TypeSpec",
        _NUMBERS,
        "use tg.TensorSpec",
    ),
    (r"sets(\.\w+)?", _NUMBERS, "use tg.unique, or NumPy's functions of sets outside of functions"),
    (r"queue(\.\w+)?", "there are no queues", "use Python's queue, outside of functions"),
    # Data, files, messages.
    (r"data\.\w+|data\.experimental\.\w+", *_DATA),
    (r"feature_column(\.\w+)?", *_DATA),
    (
        r"audio(\.\w+)?|(image\.)?\w*(decode|encode)_\w+",
        "files are read by Python",
        "use a library of files, and give its array",
    ),
    (
        r"image\.(is_jpeg|extract_jpeg_shape|(stateless_)?random_jpeg_quality)",
        "files are read by Python",
        "use a library of images, and give its array",
    ),
    (
        r"(\w+\.)*(make_ndarray|make_tensor_proto)|train\.\w+(List|Features?|Example|Lists)|train\.(Feature|Features|Example)",
        *_PROTO,
    ),
    (r"train\.Coordinator", "threads are Python's", "use Python's threading"),
    (
        r"train\.(Cluster\w+|JobDef|ServerDef)",
        "processes are joined by a call",
        "use tg.distribute.initialize",
    ),
    (r"fingerprint", "bytes are hashed by Python", "use hashlib, outside of functions"),
    # Devices and TensorFlow's machinery.
    (
        r"distribute\.\w+(\.\w+)*",
        "there are no strategies: layouts say what is divided",
        "use tg.distribute.Mesh, and layout= of tg.Variable or tg.distribute.with_layout",
    ),
    (
        r"config\.\w*[dD]evice\w*|DeviceSpec|tpu(\.\w+)*|check_pinned",
        "devices are JAX's",
        "use JAX's settings, or leave it out",
    ),
    (
        r"profiler(\.\w+)*",
        "times are measured by the call",
        "use tg.profile(f, x), which says where the time of a call goes",
    ),
    (r"types(\.\w+)*", "types for checkers have a module", "use tg.typing"),
    (r"xla(\.\w+)*", "every function is a program of XLA", "use tg.function"),
    (
        r"(lite|sysconfig|mlir|graph_util|__internal__)(\.\w+)*",
        "it is of TensorFlow's own machinery",
        "leave it out, or use tg.config, tg.export and f.graph(x) of a @tg.function",
    ),
    (r"get_logger", "warnings are Python's", "use Python's warnings and logging"),
    (
        r"import_graph_def|Operation|load_library|load_op_library",
        "it is of TensorFlow's own machinery",
        "use tg.Graph.from_text, tg.saved_model.load, or tg.py_function",
    ),
    (
        r"register_tensor_conversion_function",
        "what is converted has a method of NumPy's",
        "give the class a method __array__, or convert where you call: tg.constant(x)",
    ),
    (
        r"nondifferentiable_batch_function|AggregationMethod|CriticalSection",
        "it is of TensorFlow's own machinery",
        "leave it out",
    ),
    (
        r"inside_function|is_symbolic_tensor",
        "it is the opposite of running eagerly",
        "use tg.executing_eagerly()",
    ),
    (
        r"variable_creator_scope",
        "what makes Variables is Python",
        "make them in a function of your own, with tg.Variable",
    ),
    (
        r"get_current_name_scope",
        "a scope gives its name",
        "use the name of `with tg.name_scope(name) as path`",
    ),
    (r"tuple", "results are Python's tuples", "use tg.group, or a tuple of Python"),
    (
        r"saved_model\.[A-Z_]+",
        "a saved model has a format of its own",
        "use tg.saved_model.save and tg.saved_model.load",
    ),
    (
        r"debugging\.(enable|disable)_check_numerics",
        "functions are checked one by one",
        "use tg.function(f, check_numerics=True)",
    ),
    (
        r"debugging\.is_numeric_tensor",
        "a tensor has a dtype",
        "use x.dtype.is_floating, or x.dtype.is_integer",
    ),
    (
        r"errors\.(" + "|".join(_CODES) + r")",
        _ERRORS,
        "catch a class of tg.errors, such as tg.errors.InvalidArgumentError",
    ),
    (
        r"errors\.OpError",
        _ERRORS,
        "catch those that you expect, such as tg.errors.InvalidArgumentError, or Exception",
    ),
    (
        r"errors\.(Resource|Internal|Aborted|Cancel|Unknown|Unimplemented|Unavail)\w*Error",
        _ERRORS,
        "catch tg.errors.LoweringError",
    ),
    (r"errors\.OperatorNotAllowedInGraphError", _ERRORS, "catch tg.errors.TraceError"),
    # Mathematics.
    (
        r"i?r?fftnd",
        "transforms are in tg.signal",
        "use tg.signal.fftnd, or ifftnd, rfftnd or irfftnd there",
    ),
    (r"matrix_square_root", "it is a name of an op", "use tg.linalg.sqrtm"),
    (r"approx_top_k", "it is a name of an op", "use tg.approx_max_k"),
    (
        r"conv|conv2d_backprop_\w+",
        "derivatives are those of a tape",
        "use tg.nn.convolution, and tg.GradientTape",
    ),
    (
        r"extract_volume_patches",
        "a patch is a convolution",
        "use tg.nn.conv3d with filters of tg.eye",
    ),
    (
        r"(nn\.)?(with_space_to_batch|required_space_to_batch_paddings)",
        "convolutions take dilations",
        "use tg.nn.convolution(x, filters, dilations=2)",
    ),
    (r"nn\.ctc_unique_labels", "labels are dense", "give them to tg.nn.ctc_loss as they are"),
    (
        r"nn\.collapse_repeated",
        "sequences are compared with themselves",
        "use tg.boolean_mask where x[1:] != x[:-1]",
    ),
    (
        r"nn\.compute_accidental_hits",
        "a loss leaves out what it hits",
        "use remove_accidental_hits=True of tg.nn.sampled_softmax_loss",
    ),
    (
        r"nn\.\w+_candidate_sampler",
        "there are two samplers",
        "use tg.random.uniform_candidate_sampler",
    ),
    (r"nn\.RNNCell\w+", "cells are layers", "use tg.layers.GRUCell(4, dropout=0.1)"),
    (r"random\.Algorithm", "there is one algorithm, Threefry's", "leave it out"),
    (
        r"random_index_shuffle",
        "indices are shuffled as tensors",
        "use tg.random.stateless_shuffle of tg.range",
    ),
    (
        r"image\.stateless_sample_distorted_bounding_box",
        "boxes at random are those of a crop",
        "use tg.image.stateless_random_crop",
    ),
    # Keras.
    (r"(\w+\.)*(de)?serialize", *_SERIAL),
    (
        r"keras\.(applications|datasets)",
        "there are no models or data to download",
        "use those of another package, and give its arrays",
    ),
    (r"keras\.preprocessing", "it stands elsewhere", "use tg.utils.pad_sequences, or tg.image"),
    (r"keras\.(callbacks|export|models|saving|wrappers)", *_TRAINING),
    (
        r"keras\.(config|mixed_precision|dtype_policies|\w*DTypePolicy)",
        "each layer has its dtype",
        'give each layer dtype="mixed_float16", and use tg.optimizers.LossScaleOptimizer',
    ),
    (r"keras\.distribution", _MESHES, "use tg.distribute.Mesh and tg.device"),
    (r"keras\.RematScope", "values are computed again by a function", "use tg.recompute_grad"),
    (
        r"keras\.(InputSpec|KerasTensor|Operation|StatelessScope|SymbolicScope|Variable)",
        "layers are called with tensors",
        "use tg.TensorSpec, tg.layers.Layer and tg.Variable",
    ),
    (
        r"keras\.(quantizers|Quantizer|legacy|version|visualization|distillation|Function|Model)",
        "there is no such part of Keras",
        "use tg.layers, tg.optimizers, tg.losses and tg.metrics",
    ),
    (
        r"layers\.(InputSpec|Wrapper)",
        "layers are called with tensors, and hold other layers as attributes",
        "leave input_spec out; a wrapper is a tg.layers.Layer with self.layer = layer",
    ),
    (r"layers\.Pipeline", "it calls other layers", "use tg.layers.Sequential"),
    (r"layers\.ThresholdedReLU", "there is no such layer", "use tg.layers.ReLU(threshold=1.0)"),
    (
        r"layers\.Hash\w*",
        "texts are not tensors",
        "use x % num_bins of integers, or zlib.crc32 of texts in Python, and tg.one_hot",
    ),
    (
        r"layers\.(TextVectorization|StringLookup)|utils\.FeatureSpace",
        "texts are not tensors",
        "number words by a dict in Python, or by np.unique(x, return_inverse=True), and use "
        "tg.utils.pad_sequences",
    ),
    (
        r"layers\.(Flax|Jax|Torch|TFSM)\w*",
        "layers are those of tg",
        "write a subclass of tg.layers.Layer, or use f.as_jax() of a @tg.function",
    ),
    (
        r"optimizers\.(MultiOptimizer|OptimizerMap)",
        "an optimizer treats all variables alike",
        "use an optimizer for each group of variables, and call apply_gradients of each",
    ),
    (r"optimizers\.legacy", "there is one family of optimizers", "use tg.optimizers.Adam"),
]
#: The advice for all other names of a module, if no name resembles them.
_REST: list[tuple[str, str, str]] = [
    (
        r"train\.\w+",
        "checkpoints have few functions",
        "use tg.train.Checkpoint and tg.train.latest_checkpoint",
    ),
    (
        r"autograph\.\w+(\.\w+)*",
        "conversion has no levels",
        "use tg.autograph.to_code and tg.autograph.do_not_convert",
    ),
    (
        r"debugging\.\w+",
        "graphs and values are shown by few functions",
        "use tg.debugging.dump_graphs, tg.debugging.compare, or f.graph(x) of a @tg.function",
    ),
    (r"errors\.\w+Error", _ERRORS, "catch OSError, ValueError, or tg.errors.InvalidArgumentError"),
    (
        r"random\.\w+",
        "random numbers have few distributions",
        "use tg.random.stateless_truncated_normal, or tg.random.stateless_uniform",
    ),
    (
        r"quantization\.\w+",
        "tensors have no quantized types",
        "use tg.quantization.quantize_and_dequantize",
    ),
    (
        r"layers\.[A-Z]\w+",
        "there is no such layer yet",
        "write a subclass of tg.layers.Layer, with tg.nn and tg.einsum",
    ),
    (
        r"losses\.[A-Z]\w+",
        "a loss is a function of two tensors",
        "write a function, or a subclass of tg.losses.Loss",
    ),
    (r"metrics\.[A-Z]\w+", "a metric holds Variables", "write a subclass of tg.metrics.Metric"),
    (
        r"optimizers\.[A-Z]\w+",
        "there is no such optimizer",
        "use tg.optimizers.AdamW, or a subclass of tg.optimizers.Optimizer",
    ),
    (
        r"initializers\.[A-Z]\w+",
        "there is no such initializer",
        "write a subclass of tg.initializers.Initializer",
    ),
    (r"config\.\w+(\.\w+)*", "devices are JAX's", "use JAX's settings, or leave it out"),
    (r"utils\.Progbar", "training is a loop of your own", "print in it what it has reached"),
    (
        r"utils\.(plot_model|model_to_dot)",
        "models have summaries, and graphs",
        "use model.summary(), or f.graph(x) of a @tg.function",
    ),
    (
        r"(keras\.)?utils\.\w+(\.\w+)*",
        "data are read and prepared by Python, and nothing is registered",
        "loop over NumPy arrays, or over any iterator of batches; leave registrations out",
    ),
]
_FIRST, _LAST = (
    [(re.compile(pattern), reason, fix) for pattern, reason, fix in rules]
    for rules in (_RULES, _REST)
)


def advice(path: str, public: dict[str, str]) -> tuple[str, str] | None:
    """The reason and the fix for a path in a family; `public` has the paths of public functions, by
    their names without underscores."""
    module, _, name = path.rpartition(".")
    if module in ("losses", "metrics") and name.lower() in _SHORT:
        return "names are whole words here", f"use tg.losses.{_SHORT[name.lower()]}"
    if module == "raw_ops" and name[:1].isupper():
        return _raw_op(name, public)
    return _found(path, _FIRST)


def advice_for_the_rest(path: str) -> tuple[str, str] | None:
    """The reason and the fix for a name that resembles none in its module."""
    return _found(path, _LAST)


def _found(path: str, rules: list[tuple[re.Pattern[str], str, str]]) -> tuple[str, str] | None:
    return next(((why, fix) for pattern, why, fix in rules if pattern.fullmatch(path)), None)


def _raw_op(name: str, public: dict[str, str]) -> tuple[str, str]:
    """The replacement for a TensorFlow op, usually a function of the same name."""
    reason = "ops are called by functions"
    words = re.sub(r"(V\d+|ND)$", "", name)
    for known in (f"reduce{words.lower()}", words.lower()):
        if known in public and not public[known].startswith("tg.raw_ops."):
            return reason, f"use {public[known]}"
    if re.search(r"Grad(V\d+|WithArgmax)?$|Backprop", name):
        return "derivatives are those of a tape", "use tg.GradientTape"
    if re.search(r"Dataset|Iterator|Reader|Queue|Record|Csv|Example|Decode|Encode|File", name):
        return _DATA
    if re.search(r"String|Regex|Ragged|Sparse|Lookup|HashTable|Tensor(List|Map)|Stack", name):
        return _NUMBERS, "use dense tensors, and tg.TensorArray for lists"
    if re.search(r"Variable|Resource|Assign", name):
        return "state is kept by Variables", "use tg.Variable"
    return reason, "use the function of tg, tg.math, tg.nn or tg.linalg that computes it"
