"""A layer that bounds how fast another layer's outputs change."""

from __future__ import annotations

from typing import Any, Unpack

from tracegraph import initializers
from tracegraph.array.arguments import as_flag, refuse_kind
from tracegraph.array.creation import ones_like, stop_gradient
from tracegraph.array.indexing.selection import where
from tracegraph.array.shaping import reshape
from tracegraph.errors import SignatureError, fail
from tracegraph.ir.tensor import Tensor
from tracegraph.layers.base import Layer, positive
from tracegraph.layers.shared import LayerOptions, takes_options
from tracegraph.math.elementwise.arithmetic import divide
from tracegraph.math.elementwise.logic import equal
from tracegraph.math.norms import l2_normalize
from tracegraph.math.product import matmul
from tracegraph.math.reduction import reduce_all, reduce_euclidean_norm
from tracegraph.state.variable import Variable
from tracegraph.typing import Nest


class SpectralNormalization(Layer):
    """Divides a layer's kernel by its largest singular value at each call in training (Miyato and
    others 2018), which bounds how fast the layer's outputs change.

    - `layer`: one with a `kernel` or `embeddings`, seen as a matrix whose rows combine all axes but
      the last.
    - `power_iterations`: how many steps of power iteration a call takes towards the singular
      vectors; the right one is kept in the variable `vector_u`.

    A kernel of zeros stays unchanged. Raises SignatureError (a ValueError) for a layer that
    creates neither.

    >>> layer = tg.layers.SpectralNormalization(tg.layers.Dense(3), power_iterations=50)
    >>> y = layer(tg.ones([2, 4]), training=True)
    >>> round(float(tg.linalg.svd(layer.layer.kernel, compute_uv=False)[0]), 3)
    1.0
    """

    _computes_in_full = True

    @takes_options
    def __init__(
        self, layer: Layer, power_iterations: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**options)
        if not isinstance(layer, Layer):
            fix = "give one such as tg.layers.Dense(3)"
            refuse_kind("SpectralNormalization", "it takes a layer", layer, fix=fix)
        self.layer = layer
        count = positive("SpectralNormalization", "power_iterations", power_iterations)
        self.power_iterations = count

    def build(self, input_shape: Any) -> None:
        if not self.layer.built:
            self.layer.build(input_shape)
        # Keras lists them in this order, before the layer's other weights.
        self.kernel = self._kernel_of_layer()
        start = initializers.TruncatedNormal(stddev=0.02)
        shape, kind = [1, self.kernel.shape[-1]], self.kernel.dtype
        self.vector_u = self.add_weight(shape, start, kind, name="vector_u", trainable=False)

    def _kernel_of_layer(self) -> Variable:
        for name in ("kernel", "embeddings"):
            found = vars(self.layer).get(name)
            if isinstance(found, Variable):
                return found
        kind = type(self.layer).__name__
        fact = f"SpectralNormalization: a {kind} makes no kernel and no embeddings"
        fail(SignatureError, fact, fix="give a layer such as tg.layers.Dense or tg.layers.Conv2D")

    def call(self, inputs: Nest, training: bool | None = None) -> Tensor:
        if as_flag("SpectralNormalization", "training", training):
            self._normalize(self.kernel)
        return self.layer(inputs, training=training)

    def _normalize(self, kernel: Variable) -> None:
        value = stop_gradient(kernel.read_value())
        matrix = reshape(value, [-1, kernel.shape[-1]])
        u, largest = self.vector_u.read_value(), ones_like(matrix[0, 0])
        for _ in range(self.power_iterations):
            product = matmul(l2_normalize(matmul(u, matrix, transpose_b=True)), matrix)
            u, largest = l2_normalize(product), reduce_euclidean_norm(product)
        is_zero = reduce_all(equal(value, 0.0))
        self.vector_u.assign(where(is_zero, self.vector_u, u))
        kernel.assign(where(is_zero, value, divide(value, where(is_zero, 1.0, largest))))
