"""What is measured, and tracegraph's targets."""

from dataclasses import dataclass
from typing import Literal

PEERS = ("tracegraph", "jax", "tensorflow", "torch")

Measure = Literal["steps", "phases", "import", "process", "peak", "growth"]


@dataclass(frozen=True)
class Row:
    """One workload and how it is measured.

    A sample of a row is a dict of figures: seconds, except for those in `UNITS`.
    `workload` names the peers' workload, if it is not the row's own name. `rounds` limits slow
    rows; `tolerance` is the relative difference allowed between the peers' results.
    """

    name: str
    title: str
    measure: Measure = "steps"
    of: str = ""
    rounds: int = 1_000
    tolerance: float = 1e-4

    @property
    def workload(self) -> str:
        return self.of or self.name


ROWS = (
    Row("scalar_call", "one call, x + 1 on a scalar"),
    Row("array_call", "one call, one positional array"),
    Row("array_call_after_tape", "one call, one positional array, once a tape was opened"),
    Row("array_call_64", "one call, one positional array of a 64-bit type"),
    Row("dict_call", "one call, 60 arrays in a nested dict in and out"),
    Row("train_step_12", "train step with 12 tiny variables"),
    Row("train_step_300", "train step with 300 tiny variables"),
    Row("mlp_step", "MLP 784-512-512-10, batch 128, Adam", tolerance=1e-3),
    Row("converted_step", "JAX's step of the same MLP, by tg.from_jax"),
    Row("convolution_step", "two convolutions, 28x28, batch 64, Adam", tolerance=1e-2),
    Row("resnet20_step", "ResNet-20, 32x32, batch 64, Adam", tolerance=1e-2),
    Row("undecorated_loop", "undecorated step, MLP 8-16-4, SGD"),
    Row("undecorated_loop_read", "undecorated step, its loss read each time"),
    Row("jacobian_network", "Jacobian of 32x10 outputs by a 64x64 kernel"),
    Row("batch_jacobian", "batch Jacobian, 256 x 32 x 32"),
    Row("hessian", "full Hessian by 500 parameters", tolerance=1e-3),
    Row("hessian_vector", "Hessian times a vector, MLP 256-256-256-10", tolerance=1e-3),
    Row("jacobian_tridiagonal", "Jacobian with three diagonals, n = 2,000"),
    Row("jacobian_bottleneck", "Jacobian R^1000 -> R^4 -> R^1000", tolerance=1e-3),
    Row("jacobian_again", "undecorated Jacobian of two outputs, read each time"),
    Row("lstm", "LSTM, 256 steps, batch 32, 128 units: loss and gradients", tolerance=1e-3),
    Row("gru_step", "character GRU, 48 steps, batch 32, 256 units: a step", tolerance=1e-3),
    Row("gru_start", "character GRU: the first step", "phases", rounds=5, tolerance=1e-3),
    Row("ode_start", "neural ODE, 100 steps of RK4, gradient: the first step", "phases", rounds=5),
    Row("transformer_step", "transformer of 4 layers, 256 wide, AdamW: a step", tolerance=1e-3),
    Row("bfloat16_step", "the same step in bfloat16, its weights in float32", tolerance=2e-2),
    Row("located_step", "the same step in float32, its numerics located", tolerance=1e-3),
    Row(
        "transformer_start",
        "transformer of 12 layers: the first step",
        "phases",
        rounds=3,
        tolerance=1e-3,
    ),
    Row(
        "rolled_step",
        "transformer of 12 layers, its equal blocks as one loop: a step",
        rounds=5,
        tolerance=1e-3,
    ),
    Row(
        "budget_step",
        "transformer of 24 layers, in a quarter of its memory: a step",
        rounds=9,
        tolerance=1e-3,
    ),
    Row("while_gradient", "a while of 100,000 steps, alone and with gradient", tolerance=1e-3),
    Row("scan_step", "scan of 10,000 steps with a tiny body"),
    Row("two_parts", "rows chosen by a mask, then work on as many as there are"),
    Row("pinn_sixth", "training step with a sixth derivative, MLP 1-32-32-1", tolerance=1e-3),
    Row("trace_order_7", "seven nested gradients", "phases", rounds=5, tolerance=1e-3),
    Row("brusselator", "sparse Jacobian by 20,000 unknowns, first call", "phases", rounds=5),
    Row("explain_10000", "why a gradient is None, 10,000 nodes", "phases", rounds=5),
    Row(
        "save_custom",
        "save, load, first call and first gradient of a model with a custom gradient",
        "phases",
        rounds=9,
    ),
    Row("load_gigabyte", "load of 1 GiB up to the first of 32 variables", "phases", rounds=5),
    Row("parse_100000", "text of a graph of 100,000 nodes, parsed", "phases", rounds=3),
    Row("chain_100", "chain of 100 operations and its gradient", "phases", rounds=5),
    Row("chain_1000", "chain of 1,000 and its gradient", "phases", rounds=3),
    Row("chain_5000", "chain of 5,000 and its gradient", "phases", rounds=3, tolerance=1e-3),
    Row("chain_50000", "chain of 50,000 and its gradient, not compiled", "phases", rounds=2),
    Row("import", "import in a fresh process", "import", rounds=9),
    Row("one_gradient", "a whole process that computes one gradient", "process", rounds=9),
    Row("peak_mlp", "memory of a process that trains the MLP", "peak", "mlp_step", 1),
    Row(
        "peak_convolution",
        "memory of a process that trains the convolutions",
        "peak",
        "convolution_step",
        1,
    ),
    Row("growth_train_step", "memory over many train steps", "growth", "train_step_12", 1),
    Row(
        "growth_undecorated", "memory over many undecorated steps", "growth", "undecorated_loop", 1
    ),
)

UNITS = {
    "peak memory": "MB",
    "after 100": "MB",
    "half way": "MB",
    "at the end": "MB",
    "growth": "MB",
    "jax modules": "",
    "colours": "",
    "to a tenth": "x",
    "bytes": "B",
}
LONE = {
    "growth",
    "jax modules",
    "colours",
    "to a tenth",
    "bytes",
}  # figures that are not divided by another peer's


@dataclass(frozen=True)
class Target:
    """A bound on tracegraph's figure in `row`.

    The figure is divided by that of `against`, another variant in the same row; without `against`
    it is absolute.
    """

    row: str
    figure: str
    against: str
    limit: float


TARGETS = (
    Target("scalar_call", "call", "jax", 1.25),
    Target("array_call", "call", "jax", 1.25),
    Target("array_call_after_tape", "call", "jax", 1.25),
    Target("array_call_64", "call", "jax", 1.25),
    Target("dict_call", "call", "jax", 1.3),
    Target("train_step_12", "call", "jax", 1.25),
    Target("train_step_300", "call", "jax", 1.25),
    Target("mlp_step", "call", "jax", 1.03),
    Target("converted_step", "call", "jax", 1.05),
    Target("undecorated_loop", "call", "tf_eager", 0.25),
    Target("undecorated_loop_read", "call", "tf_eager", 0.25),
    Target("jacobian_network", "call", "torch", 1.3),
    Target("jacobian_network", "call", "jax", 1.3),
    Target("jacobian_network", "call", "tf_xla", 1.3),
    Target("jacobian_network", "call", "torch_compile", 1.3),
    Target("batch_jacobian", "call", "jax", 1.05),
    Target("batch_jacobian", "call", "tf_xla", 1.05),
    Target("batch_jacobian", "call", "torch", 1.05),
    Target("batch_jacobian", "call", "torch_compile", 1.05),
    Target("hessian", "call", "jax", 1.05),
    Target("hessian_vector", "call", "jax", 1.05),
    Target("jacobian_tridiagonal", "call", "jax", 0.02),
    Target("jacobian_tridiagonal", "call", "tf_xla", 0.02),
    Target("jacobian_tridiagonal", "call", "torch", 0.02),
    Target("jacobian_tridiagonal", "call", "asdex", 1.0),
    Target("jacobian_bottleneck", "call", "jax", 0.05),
    Target("jacobian_bottleneck", "call", "jax_forward", 0.05),
    Target("jacobian_again", "call", "", 0.001),
    *(Target("lstm", "call", peer, 0.9) for peer in ("jax", "tf_graph", "tf_xla", "torch")),
    Target("gru_step", "call", "tf_graph", 1.0),
    Target("gru_start", "total", "tf_graph", 1.0),
    Target("ode_start", "total", "tf_graph", 1.5),
    *(
        Target(row, "call", peer, 1.0)
        for row in ("convolution_step", "resnet20_step", "transformer_step")
        for peer in ("tf_graph", "torch", "jax")
    ),
    Target("located_step", "call", "not_located", 1.03),
    Target("transformer_start", "total", "tf_graph", 1.0),
    Target("rolled_step", "call", "not_rolled", 1.03),
    Target("budget_step", "call", "all_kept", 1.35),
    Target("while_gradient", "call", "loop_alone", 5.0),
    Target("scan_step", "call", "jax", 1.0),
    Target("two_parts", "call", "jax", 1.1),
    Target("pinn_sixth", "call", "jax", 0.333),
    Target("trace_order_7", "trace", "", 0.1),
    Target("brusselator", "prepare", "", 1.0),
    Target("explain_10000", "explain", "", 0.05),
    Target("save_custom", "total", "tf_graph", 0.9),
    Target("save_custom", "bytes", "", 5_000),
    Target("load_gigabyte", "total", "", 0.3),
    Target("parse_100000", "parse", "", 5.0),
    Target("parse_100000", "to a tenth", "", 15.0),
    Target("chain_5000", "total", "jax", 1.25),
    Target("chain_5000", "trace", "jax", 1.5),
    Target("chain_50000", "to a tenth", "", 12.0),
    Target("import", "import", "", 0.2),
    Target("import", "jax modules", "", 0),
    Target("one_gradient", "process", "jax", 1.2),
    Target("growth_train_step", "growth", "", 2.0),
    Target("growth_undecorated", "growth", "", 2.0),
)
