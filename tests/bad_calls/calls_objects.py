"""Calls that are right: layers, losses, metrics, optimizers and what they are made of."""

from __future__ import annotations

import tracegraph as tg
from tests.bad_calls.calls_math import V, X
from tests.bad_calls.calls_nn import FRAMES, I1, I2, I3, LABELS, SEQUENCES
from tests.bad_calls.harness import Call, call, on

IMAGES = {1: I1, 2: I2, 3: I3}


def made(
    path: str, *args: object, on_call: tuple[object, ...] = (), **kwargs: object
) -> dict[str, Call]:
    """The call of a class, and the call of what it makes."""
    found = {path: call(*args, **kwargs)}
    if on_call:
        kind = path.split(".")
        found[f"{path}()"] = on(
            lambda: getattr(getattr(tg, kind[0]), kind[1])(*args, **kwargs), *on_call
        )
    return found


def _layers() -> dict[str, Call]:
    found: dict[str, Call] = {}
    for n, image in IMAGES.items():
        for name in ("Conv{}D", "Conv{}DTranspose"):
            found |= made(f"layers.{name.format(n)}", 4, 2, on_call=(image,))
        for name in ("AveragePooling{}D", "MaxPool{}D", "UpSampling{}D", "ZeroPadding{}D"):
            found |= made(f"layers.{name.format(n)}", on_call=(image,))
        for name in ("GlobalAveragePooling{}D", "GlobalMaxPool{}D", "Cropping{}D"):
            found |= made(f"layers.{name.format(n)}", on_call=(image,))
        found |= made(f"layers.SpatialDropout{n}D", 0.5, on_call=(image,))
        for name in ("AdaptiveAveragePooling{}D", "AdaptiveMaxPooling{}D"):
            found |= made(f"layers.{name.format(n)}", 2, on_call=(image,))
        steps = tg.stack([image, image], 1)
        found |= made(f"layers.ConvLSTM{n}D", 2, 2, on_call=(steps,))
        if n < 3:
            found |= made(f"layers.SeparableConv{n}D", 4, 2, on_call=(image,))
            found |= made(f"layers.DepthwiseConv{n}D", 2, on_call=(image,))
    for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract", "Concatenate"):
        found |= made(f"layers.{name}", on_call=([X, X],))
    for name in ("add", "average", "maximum", "minimum", "multiply", "subtract", "concatenate"):
        found[f"layers.{name}"] = call([X, X])
    for name in ("BatchNormalization", "LayerNormalization", "RMSNormalization", "Flatten"):
        found |= made(f"layers.{name}", on_call=(X,))
    for name in ("ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax", "UnitNormalization", "Identity"):
        found |= made(f"layers.{name}", on_call=(X,))
    for name in ("GRU", "LSTM", "SimpleRNN"):
        found |= made(f"layers.{name}", 2, on_call=(I1,))
        found |= made(f"layers.{name}Cell", 2)
    for name in ("AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise"):
        found |= made(f"layers.{name}", 0.5, on_call=(X,))
    for name in ("Attention", "AdditiveAttention"):
        found |= made(f"layers.{name}", on_call=([I1, I1],))
    return {
        **found,
        **made("layers.Dense", 4, on_call=(X,)),
        **made("layers.Activation", "relu", on_call=(X,)),
        **made("layers.ActivityRegularization", 0.1, 0.1, on_call=(X,)),
        "layers.Bidirectional": call(tg.layers.GRU(2)),
        "layers.Bidirectional()": on(lambda: tg.layers.Bidirectional(tg.layers.GRU(2)), I1),
        **made("layers.Dot", axes=1, on_call=([X, X],)),
        **made("layers.EinsumDense", "ab,bc->ac", 4, on_call=(X,)),
        **made("layers.Embedding", 5, 4, on_call=(LABELS,)),
        **made("layers.GroupNormalization", 3, on_call=(I2,)),
        **made("layers.GroupQueryAttention", 3, 4, 2, on_call=(I1, I1)),
        **made("layers.Input", [3]),
        **made("layers.Lambda", lambda x: x, on_call=(X,)),
        **made("layers.MultiHeadAttention", 2, 3, on_call=(I1, I1)),
        **made("layers.Permute", [2, 1], on_call=(I1,)),
        **made("layers.RNN", tg.layers.GRUCell(2), on_call=(I1,)),
        **made("layers.RepeatVector", 2, on_call=(X,)),
        **made("layers.Masking", 0.5, on_call=(I1,)),
        **made("layers.Normalization", on_call=(X,)),
        **made("layers.CenterCrop", 2, 2, on_call=(I2,)),
        **made("layers.Resizing", 2, 2, on_call=(I2,)),
        **made("layers.CategoryEncoding", 4, on_call=(LABELS,)),
        **made("layers.Discretization", [0.0, 1.0], on_call=(X,)),
        **made("layers.MelSpectrogram", 4, 2, on_call=(tg.ones([2, 8]),)),
        **made("layers.ReversibleEmbedding", 5, 4, on_call=(LABELS,)),
        **made("layers.STFTSpectrogram", "log", 4, on_call=(I1,)),
        **made("layers.IntegerLookup", vocabulary=[1, 2], on_call=(LABELS,)),
        **made("layers.AugMix", on_call=(I2,)),
        **made("layers.AutoContrast", on_call=(I2,)),
        **made("layers.CutMix", 1.0, on_call=(I2,)),
        **made("layers.Equalization", on_call=(I2,)),
        **made("layers.MixUp", 0.2, on_call=(I2,)),
        **made("layers.RandAugment", on_call=(I2,)),
        **made("layers.RandomColorJitter", (0, 1), 0.1, on_call=(I2,)),
        **made("layers.RandomElasticTransform", 1.0, on_call=(I2,)),
        **made("layers.RandomErasing", 1.0, on_call=(I2,)),
        **made("layers.RandomGaussianBlur", 1.0, on_call=(I2,)),
        **made("layers.RandomPerspective", 1.0, on_call=(I2,)),
        **made("layers.RandomPosterization", 3, on_call=(I2,)),
        **made("layers.RandomShear", 0.1, 0.1, on_call=(I2,)),
        **made("layers.Solarization", 0.1, 0.1, on_call=(I2,)),
        **made("layers.RandomBrightness", 0.1, on_call=(I2,)),
        **made("layers.RandomColorDegeneration", 0.1, on_call=(I2,)),
        **made("layers.RandomContrast", 0.1, on_call=(I2,)),
        **made("layers.RandomCrop", 2, 2, on_call=(I2,)),
        **made("layers.RandomFlip", on_call=(I2,)),
        **made("layers.RandomGrayscale", 0.1, on_call=(I2,)),
        **made("layers.RandomHue", 0.1, on_call=(I2,)),
        **made("layers.RandomInvert", 0.1, on_call=(I2,)),
        **made("layers.RandomRotation", 0.1, on_call=(I2,)),
        **made("layers.RandomSaturation", 0.1, on_call=(I2,)),
        **made("layers.RandomSharpness", 0.1, on_call=(I2,)),
        **made("layers.RandomTranslation", 0.1, 0.1, on_call=(I2,)),
        **made("layers.RandomZoom", 0.1, on_call=(I2,)),
        **made("layers.Rescaling", 0.5, 0.5, on_call=(X,)),
        **made("layers.Reshape", [3, 1], on_call=(X,)),
        **made("layers.Sequential", [tg.layers.Dense(2)], on_call=(X,)),
        **made("layers.SpectralNormalization", tg.layers.Dense(2), on_call=(X,)),
        "layers.dot": call([X, X], 1),
        **made("layers.StackedRNNCells", [tg.layers.GRUCell(2)]),
        **made("layers.TimeDistributed", tg.layers.Dense(2), on_call=(I1,)),
    }


def _losses_and_metrics() -> dict[str, Call]:
    found: dict[str, Call] = {}
    for module, base in ((tg.losses, "Loss"), (tg.metrics, "Metric")):
        kind = module.__name__.rpartition(".")[2]
        for name in dir(module):
            value = getattr(module, name)
            if not isinstance(value, type) or name in (base, "MeanMetricWrapper"):
                continue
            args: tuple[object, ...] = ()
            if "At" in name and name != "Attention":
                args = (0.5,)
            elif name in ("IoU", "BinaryIoU", "OneHotIoU"):
                args = ([0],) if name == "BinaryIoU" else (2, [0])
            elif name in ("MeanIoU", "OneHotMeanIoU"):
                args = (2,)
            operands: tuple[object, ...] = (LABELS, X) if name.startswith("Sparse") else (X, X)
            if name in ("Mean", "Sum"):
                operands = (X,)
            elif name == "CTC":
                operands = (SEQUENCES, FRAMES)
            elif name == "Circle":
                operands = (LABELS, X)
            elif name.startswith("OneHot"):
                operands = (X, X)
            elif "IoU" in name:
                operands = (LABELS, LABELS)
            found |= made(f"{kind}.{name}", *args, on_call=operands)
    return {**found, "metrics.MeanMetricWrapper": call(tg.losses.hinge)}


def _optimizers() -> dict[str, Call]:
    found: dict[str, Call] = {}
    schedules = tg.optimizers.schedules
    for name in dir(tg.optimizers):
        if isinstance(getattr(tg.optimizers, name), type) and name != "LossScaleOptimizer":
            found[f"optimizers.{name}"] = call(0.1)
    return {
        **found,
        "optimizers.LossScaleOptimizer": call(tg.optimizers.SGD(0.1)),
        "optimizers.schedules.CosineDecay": call(0.1, 10.0, warmup_steps=1.0),
        "optimizers.schedules.CosineDecayRestarts": call(0.1, 10.0),
        "optimizers.schedules.ExponentialDecay": call(0.1, 10.0, 0.9),
        "optimizers.schedules.InverseTimeDecay": call(0.1, 10.0, 0.9),
        "optimizers.schedules.PiecewiseConstantDecay": call([5, 10], [0.1, 0.2, 0.3]),
        "optimizers.schedules.PolynomialDecay": call(0.1, 10.0),
        "optimizers.schedules.CosineDecay()": on(
            lambda: schedules.CosineDecay(0.1, 10), tg.constant(1)
        ),
        "optimizers.SGD().apply_gradients": on(
            lambda: tg.optimizers.SGD(0.1), [(V, tg.Variable(V))]
        ),
    }


def _parts() -> dict[str, Call]:
    found: dict[str, Call] = {}
    for name in dir(tg.initializers):
        if name[0].isupper() and name != "Initializer":
            found |= made(f"initializers.{name}", on_call=([2, 3],))
    for name in dir(tg.constraints):
        if name[0].isupper() and name != "Constraint":
            args = (2.0,) if name == "MaxNorm" else ()
            found |= made(f"constraints.{name}", *args, on_call=(X,))
    for name in dir(tg.regularizers):
        if name[0].isupper() and name != "Regularizer":
            found |= made(f"regularizers.{name}", on_call=(X,))
    for kind in ("activations", "constraints", "initializers", "regularizers"):
        known = {"activations": "relu", "constraints": "non_neg", "initializers": "zeros"}
        found[f"{kind}.get"] = call(known.get(kind, "l2"))
    return found


CALLS = {**_layers(), **_losses_and_metrics(), **_optimizers(), **_parts()}
