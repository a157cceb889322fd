"""Calls that are right: convolutions, pools, losses, pictures."""

import tracegraph as tg
from tests.bad_calls.calls_math import V, X
from tests.bad_calls.harness import call

I1, I2, I3 = tg.ones([1, 4, 3]), tg.ones([1, 4, 4, 3]), tg.ones([1, 4, 4, 4, 3])
F1, F2, F3 = tg.ones([2, 3, 5]), tg.ones([2, 2, 3, 5]), tg.ones([2, 2, 2, 3, 5])
T1, T2, T3 = tg.ones([2, 5, 3]), tg.ones([2, 2, 5, 3]), tg.ones([2, 2, 2, 5, 3])
BIG = tg.ones([1, 16, 16, 3])
SEED = tg.constant([1, 2])
LABELS = tg.constant([0, 2])
SEQUENCES, FRAMES = tg.constant([[1, 2], [1, 0]]), tg.ones([2, 4, 3])

CALLS = {
    "nn.atrous_conv2d": call(I2, F2, 2, "SAME"),
    "nn.atrous_conv2d_transpose": call(I2, T2, [1, 4, 4, 5], 1, "SAME"),
    **{f"nn.{k}_pool": call(I2, 2, 1, "SAME") for k in ("avg", "max")},
    **{
        f"nn.{k}_pool{n}d": call(x, 2, 1, "SAME")
        for k in ("avg", "max")
        for n, x in ((1, I1), (2, I2), (3, I3))
    },
    "nn.max_pool_with_argmax": call(I2, 2, 1, "SAME"),
    "nn.batch_norm_with_global_normalization": call(X, V, V, V, V, 0.001, True),
    "nn.batch_normalization": call(X, V, V, V, V, 0.001),
    "nn.bias_add": call(X, V),
    "nn.compute_average_loss": call(V),
    "nn.conv1d": call(I1, F1, 1, "SAME"),
    "nn.conv2d": call(I2, F2, 1, "SAME"),
    "nn.conv3d": call(I3, F3, [1, 1, 1, 1, 1], "SAME"),
    "nn.conv1d_transpose": call(I1, T1, [1, 4, 5], 1),
    "nn.conv2d_transpose": call(I2, T2, [1, 4, 4, 5], 1),
    "nn.conv3d_transpose": call(I3, T3, [1, 4, 4, 4, 5], 1),
    "nn.conv_transpose": call(I2, T2, [1, 4, 4, 5], 1),
    "nn.convolution": call(I2, F2),
    "nn.ctc_loss": call(
        tg.constant([[1, 2]]), tg.ones([4, 1, 3]), tg.constant([2]), tg.constant([4]), blank_index=0
    ),
    "nn.depth_to_space": call(tg.ones([1, 2, 2, 4]), 2),
    "nn.space_to_depth": call(I2, 2),
    "nn.depthwise_conv2d": call(I2, tg.ones([2, 2, 3, 1]), [1, 1, 1, 1], "SAME"),
    "nn.depthwise_conv2d_backprop_input": call(
        [1, 4, 4, 3], tg.ones([2, 2, 3, 1]), I2, [1, 1, 1, 1], "SAME"
    ),
    "nn.dilation2d": call(I2, tg.ones([2, 2, 3]), [1] * 4, "SAME", "NHWC", [1] * 4),
    "nn.erosion2d": call(I2, tg.ones([2, 2, 3]), [1] * 4, "SAME", "NHWC", [1] * 4),
    "nn.dropout": call(X, 0.5),
    "nn.embedding_lookup": call(X, tg.constant([0, 1])),
    "nn.fused_batch_norm": call(I2, V, V),
    "nn.isotonic_regression": call(X, axis=-1),
    "nn.local_response_normalization": call(I2, 5, 1.0, 1.0, 0.5),
    "nn.log_poisson_loss": call(X, X),
    "nn.moments": call(X, axes=[0]),
    "nn.sufficient_statistics": call(X, axes=[0]),
    "nn.weighted_moments": call(X, axes=[0], frequency_weights=X),
    "nn.normalize_moments": call(tg.constant(3.0), V, V, V),
    **{
        f"nn.{k}": call(tg.ones([5, 3]), tg.ones([5]), tg.constant([[0], [1]], tg.int64), X, 2, 5)
        for k in ("nce_loss", "sampled_softmax_loss")
    },
    "nn.pool": call(I2, [2, 2], "MAX"),
    "nn.scale_regularization_loss": call(V),
    "nn.separable_conv2d": call(
        I2, tg.ones([2, 2, 3, 1]), tg.ones([1, 1, 3, 5]), [1, 1, 1, 1], "SAME"
    ),
    "nn.sigmoid_cross_entropy_with_logits": call(X, X),
    "nn.softmax_cross_entropy_with_logits": call(X, X, axis=-1),
    "nn.sparse_softmax_cross_entropy_with_logits": call(LABELS, X),
    "nn.weighted_cross_entropy_with_logits": call(X, X, tg.constant(2.0)),
    **{
        f"losses.{k}": call(X, X)
        for k in dir(tg.losses)
        if k[0].islower() and k != "sparse_categorical_crossentropy"
    },
    "losses.categorical_generalized_cross_entropy": call(LABELS, X, 0.5),
    "losses.circle": call(LABELS, X),
    "losses.ctc": call(SEQUENCES, FRAMES),
    "losses.sparse_categorical_crossentropy": call(LABELS, X),
    **{f"metrics.{k}": call(X, X) for k in dir(tg.metrics) if k[0].islower()},
    "metrics.sparse_categorical_accuracy": call(LABELS, X),
    "metrics.sparse_top_k_categorical_accuracy": call(LABELS, X, 2),
    "metrics.top_k_categorical_accuracy": call(X, X, 2),
    "image.adjust_brightness": call(I2, tg.constant(0.1)),
    "image.adjust_contrast": call(I2, tg.constant(0.1)),
    "image.adjust_gamma": call(I2, 1.0, 1.0),
    "image.adjust_hue": call(I2, tg.constant(0.1)),
    "image.adjust_saturation": call(I2, tg.constant(0.1)),
    "image.central_crop": call(I2, 0.5),
    "image.convert_image_dtype": call(I2, dtype=tg.uint8),
    "image.crop_and_resize": call(I2, tg.ones([2, 4]), tg.constant([0, 0]), [2, 2]),
    "image.crop_to_bounding_box": call(I2, 1, 1, 2, 2),
    "image.pad_to_bounding_box": call(I2, 1, 1, 6, 6),
    "image.extract_patches": call(I2, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"),
    **{
        f"image.{k}": call(I2)
        for k in (
            *("flip_left_right", "flip_up_down", "hsv_to_rgb", "image_gradients"),
            *("per_image_standardization", "random_flip_left_right", "random_flip_up_down"),
            *("rgb_to_grayscale", "rgb_to_hsv", "rgb_to_yiq", "rgb_to_yuv", "rot90"),
            *("sobel_edges", "total_variation", "transpose", "yiq_to_rgb", "yuv_to_rgb"),
        )
    },
    "image.grayscale_to_rgb": call(tg.ones([1, 4, 4, 1])),
    **{
        f"image.non_max_suppression{k}": call(tg.ones([2, 4]), tg.ones([2]), 1)
        for k in ("", "_padded")
    },
    "image.psnr": call(I2, I2, 1.0),
    **{f"image.random_{k}": call(I2, 0.1) for k in ("brightness", "hue")},
    **{f"image.random_{k}": call(I2, 0.1, 0.2) for k in ("contrast", "saturation")},
    "image.random_crop": call(I2, [1, 2, 2, 3]),
    "image.stateless_random_crop": call(I2, [1, 2, 2, 3], SEED),
    **{f"image.stateless_random_{k}": call(I2, 0.1, SEED) for k in ("brightness", "hue")},
    **{f"image.stateless_random_{k}": call(I2, 0.1, 0.2, SEED) for k in ("contrast", "saturation")},
    **{f"image.stateless_random_flip_{k}": call(I2, SEED) for k in ("left_right", "up_down")},
    "image.resize": call(I2, [2, 2]),
    "image.resize_with_crop_or_pad": call(I2, 2, 2),
    "image.resize_with_pad": call(I2, 2, 2),
    "image.ssim": call(BIG, BIG, 1.0),
    "image.ssim_multiscale": call(BIG, BIG, 1.0, (0.5, 0.5), 3),
}
