"""Calls that are right: what makes, moves and selects elements."""

import tracegraph as tg
from tests.bad_calls.calls_math import B, N, V, X
from tests.bad_calls.harness import call

IMAGE = tg.ones([1, 4, 4, 3])
SCATTER = (tg.ones([4, 3]), tg.constant([[0], [2]]), tg.ones([2, 3]))

CALLS = {
    "batch_to_space": call(tg.ones([4, 1, 1, 1]), [2, 2], [[0, 0], [0, 0]]),
    "space_to_batch": call(IMAGE, [2, 2], [[0, 0], [0, 0]]),
    "boolean_mask": call(X, B),
    "broadcast_dynamic_shape": call([2, 3], [1, 3]),
    "broadcast_static_shape": call([2, 3], [1, 3]),
    "broadcast_to": call(X, [4, 2, 3]),
    "concat": call([X, X], axis=0),
    "stack": call([X, X], axis=0),
    "parallel_stack": call([X, X]),
    "constant": call(X, shape=[2, 3]),
    "convert_to_tensor": call(X),
    "ensure_shape": call(X, [2, 3]),
    "expand_dims": call(X, axis=0),
    "eye": call(2, 3, batch_shape=[2]),
    "fill": call([2, 3], tg.constant(1.0)),
    "gather": call(X, N, axis=1),
    "gather_nd": call(X, tg.constant([[0], [1]]), batch_dims=0),
    "identity_n": call([X, X]),
    "linspace": call(tg.constant(0.0), tg.constant(1.0), 5, axis=0),
    "meshgrid": call(V, V),
    "one_hot": call(N, 3, axis=-1),
    "ones": call([2, 3]),
    "zeros": call([2, 3]),
    "ones_like": call(X),
    "zeros_like": call(X),
    "pad": call(X, [[1, 1], [0, 0]], constant_values=0.0),
    "range": call(0.0, 5.0, 1.0),
    "rank": call(X),
    "shape": call(X),
    "shape_n": call([X, X]),
    "size": call(X),
    "repeat": call(X, 2, axis=0),
    "reshape": call(X, [3, 2]),
    "reverse": call(X, axis=[0]),
    "reverse_sequence": call(X, tg.constant([1, 2]), seq_axis=1, batch_axis=0),
    "roll": call(X, 1, axis=0),
    "scatter_nd": call(tg.constant([[0], [2]]), tg.ones([2, 3]), [4, 3]),
    **{f"tensor_scatter_nd_{k}": call(*SCATTER) for k in ("add", "max", "min", "sub", "update")},
    "sequence_mask": call(N, 3),
    "slice": call(X, [0, 0], [1, 2]),
    "strided_slice": call(X, [0, 0], [1, 2], [1, 1]),
    "split": call(X, 3, axis=1),
    "squeeze": call(tg.ones([1, 3]), axis=[0]),
    "tile": call(X, [2, 1]),
    "transpose": call(X, perm=[1, 0]),
    "unique": call(N),
    "unique_with_counts": call(N),
    "unravel_index": call(N, [2, 3]),
    "unstack": call(X, axis=0),
    "where": call(B, X, X),
    "signal.dct": call(X, axis=-1),
    "signal.idct": call(X, axis=-1),
    **{
        f"signal.{k}": call(tg.cast(tg.ones([2, 4, 4, 4]), tg.complex64))
        for k in ("fft", "fft2d", "fft3d", "ifft", "ifft2d", "ifft3d")
    },
    **{
        f"signal.{k}": call(tg.cast(tg.ones([2, 4, 4, 4]), dtype), [4] * n)
        for n, end in enumerate(("", "2d", "3d"), 1)
        for k, dtype in ((f"rfft{end}", tg.float32), (f"irfft{end}", tg.complex64))
    },
    **{
        f"signal.{k}nd": call(tg.cast(tg.ones([2, 4]), dtype), [4, 4], [0, 1])
        for k, dtype in (
            *(("fft", tg.complex64), ("ifft", tg.complex64)),
            *(("rfft", tg.float32), ("irfft", tg.complex64)),
        )
    },
    "signal.mdct": call(tg.ones([16]), 8),
    "signal.inverse_mdct": call(tg.ones([2, 4])),
    "signal.fftshift": call(X, axes=[0]),
    "signal.ifftshift": call(X, axes=[0]),
    "signal.frame": call(tg.ones([8]), 4, 2, pad_value=0.0, axis=-1),
    "signal.stft": call(tg.ones([8]), 4, 2, 4),
    "signal.inverse_stft": call(tg.cast(tg.ones([3, 3]), tg.complex64), 4, 2, 4),
    "signal.inverse_stft_window_fn": call(2),
    "signal.overlap_and_add": call(tg.ones([3, 4]), 2),
    "signal.linear_to_mel_weight_matrix": call(5, 9, 8000.0),
    "signal.mfccs_from_log_mel_spectrograms": call(X),
    **{f"signal.{k}_window": call(8) for k in ("hamming", "hann", "kaiser", "vorbis")},
    "signal.kaiser_bessel_derived_window": call(8),
    "raw_ops.Bucketize": call(input=X, boundaries=[0.1, 0.5]),
    "raw_ops.PreventGradient": call(input=X),
    "quantization.fake_quant_with_min_max_args": call(X, -6.0, 6.0),
    "quantization.fake_quant_with_min_max_args_gradient": call(X, X, -6.0, 6.0),
    "quantization.fake_quant_with_min_max_vars": call(X, tg.constant(-6.0), tg.constant(6.0)),
    "quantization.fake_quant_with_min_max_vars_gradient": call(
        X, X, tg.constant(-6.0), tg.constant(6.0)
    ),
    "quantization.fake_quant_with_min_max_vars_per_channel": call(X, V - 3.0, V + 3.0),
    "quantization.fake_quant_with_min_max_vars_per_channel_gradient": call(X, X, V - 3.0, V + 3.0),
    "quantization.quantize_and_dequantize": call(X, tg.constant(-6.0), tg.constant(6.0)),
}
