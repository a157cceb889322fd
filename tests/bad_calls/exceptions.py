"""What looks wrong and is right, and functions that no call is wrong of: each with the reason."""

_AS_SLICES = ("absurd sizes",)  # a slice beyond the end ends there, as in Python
_ONE_AS_LIST = ("a number for a list",)  # one tensor counts as a list of one

#: By path and argument, or by argument alone: what is accepted.
ACCEPTED = {
    ("norm", "ord"): ("no string",),  # an order may be a number
    ("linalg.normalize", "ord"): ("no string",),
    ("accumulate_n", "inputs"): _ONE_AS_LIST,
    ("add_n", "inputs"): _ONE_AS_LIST,
    ("strided_slice", "begin"): _AS_SLICES,
    ("strided_slice", "end"): _AS_SLICES,
    ("strided_slice", "strides"): _AS_SLICES,
    ("random.set_seed", "seed"): ("an absurd int",),  # a seed is hashed, whatever its size
    # A size that is not asked of a machine yet.
    ("TensorArray", "size"): ("an absurd int",),
    ("TensorArray", "element_shape"): ("absurd sizes",),
    # Layers that hand on what they are given, whatever it is.
    ("layers.Identity()", "inputs"): ("a dict for a tensor",),
    ("layers.ActivityRegularization()", "inputs"): ("a dict for a tensor",),
    ("layers.Lambda()", "inputs"): ("a dict for a tensor",),
    # A factor may be complex: the result is then.
    ("layers.Rescaling", "scale"): ("a complex number",),
    ("layers.Rescaling", "offset"): ("a complex number",),
    ("initializers.Constant", "value"): ("a complex number",),
    ("optimizers.LossScaleOptimizer", "dynamic_growth_steps"): ("an absurd int",),
    # Which axes there are is known when a layer, a loss or a metric is called.
    # A metric has made its Variables then, which is the first that a function says.
    "axis": ("an axis too large", "an axis too small"),
    "axes": ("an axis too large", "an axis too small"),
    "shared_axes": ("an axis too large", "an axis too small"),
}

#: Whose errors keep our frames: contexts are entered by C, and a shape is made for each node, so a
#: wrapper around them would cost every program.
WITH_OUR_FRAMES = {"name_scope", "TensorShape"}

_STATE = "it takes no arguments, and tells or sets a state"
_MADE_INSIDE = "users are given it by what makes it, and do not call it"
_ENUM = "it is a set of names"

#: Functions and classes without three calls that must be refused.
WITHOUT_BAD_CALLS = {
    **dict.fromkeys(
        [
            *("executing_eagerly", "config.compilation_cache", "config.functions_run_eagerly"),
            *("config.get_soft_device_placement", "config.LogicalDevice", "config.PhysicalDevice"),
            *("config.get_compile_notes", "debugging.disable_traceback_filtering"),
            *("debugging.enable_traceback_filtering", "random.get_global_generator"),
            *("debugging.is_traceback_filtering_enabled", "init_scope", "constraints.NonNeg"),
            "debugging.explain_compiles",
            *("constraints.Constraint", "regularizers.Regularizer", "initializers.Initializer"),
            *(
                "optimizers.schedules.LearningRateSchedule",
                "linalg.LinearOperator",
                "saved_model.LoadedModule",
            ),
        ],
        _STATE,
    ),
    **dict.fromkeys(
        [
            *("ConcreteFunction", "DType", "Graph", "Node", "SparseJacobian", "Tensor"),
            *("debugging.GraphDump", "testing.Comparison", "testing.GradientReport", "Function"),
            "TensorType",
        ],
        _MADE_INSIDE,
    ),
    **dict.fromkeys(
        [
            *("UnconnectedGradients", "VariableAggregation", "VariableSynchronization"),
            "image.ResizeMethod",
        ],
        _ENUM,
    ),
    **dict.fromkeys(["is_tensor", "nest.is_nested", "nest.flatten", "print"], "it takes any value"),
}
