"""Calls that are wrong in a way of their own: files, models and what layers are derived from."""

import numpy as np

import tracegraph as tg
from tests.bad_calls.row import DTYPE, FAILED, SHAPE, TRACE, VALUE, Row, rows

AVERAGE, LOOKUP = tg.train.ExponentialMovingAverage(0.9), tg.layers.IntegerLookup()
VARIABLE, COUNT = tg.Variable(1.0), tg.Variable(1)
ONES = np.ones([2, 3])
NOWHERE = "/no/such/folder"
LOAD = tg.errors.LoadError

ROWS: list[Row] = [
    *rows(
        "layers.StackedRNNCells",
        (lambda: tg.layers.StackedRNNCells(5), (DTYPE, VALUE), "5"),
        (lambda: tg.layers.StackedRNNCells([5]), (DTYPE, VALUE), "5"),
        (lambda: tg.layers.StackedRNNCells([]), VALUE),
    ),
    *rows(
        "keras.Layer",
        (lambda: tg.layers.Layer(name=5), (DTYPE, VALUE), "5"),
        (lambda: tg.layers.Layer(name="1/a"), VALUE, "1/a"),
        (lambda: tg.layers.Layer(dtype="no"), DTYPE, "no"),
    ),
    *rows(
        "losses.Loss",
        (lambda: tg.losses.Loss(reduction="no"), VALUE, "no"),
        (lambda: tg.losses.Loss(reduction=5), VALUE, "5"),
        (lambda: tg.losses.Loss(dtype="no"), DTYPE, "no"),
    ),
    *rows(
        "metrics.Metric",
        (lambda: tg.metrics.Metric(dtype="no"), DTYPE, "no"),
        (lambda: tg.metrics.Metric(dtype=5), DTYPE, "5"),
        (lambda: tg.metrics.Metric(name=5), (DTYPE, VALUE), "5"),
    ),
    *rows(
        "saved_model.save",
        (lambda: tg.saved_model.save(5, NOWHERE), (DTYPE, VALUE), "5"),
        (lambda: tg.saved_model.save(tg.Module(), 5), (DTYPE, TRACE), "5"),
        (lambda: tg.saved_model.save(tg.Module(), NOWHERE, signatures=5), (DTYPE, VALUE), "5"),
        (lambda: tg.saved_model.save(tg.Module(), NOWHERE, options=5), VALUE, "5"),
    ),
    *rows(
        "saved_model.load",
        (lambda: tg.saved_model.load(NOWHERE), LOAD, NOWHERE),
        (lambda: tg.saved_model.load(5), (DTYPE, TRACE), "5"),
        (lambda: tg.saved_model.load(NOWHERE, options=5), VALUE, "5"),
    ),
    *rows(
        "saved_model.contains_saved_model",
        (lambda: tg.saved_model.contains_saved_model(5), VALUE, "5"),
        (lambda: tg.saved_model.contains_saved_model([]), VALUE, "[]"),
        (lambda: tg.saved_model.contains_saved_model({}), VALUE, "{}"),
    ),
    *rows(
        "saved_model.Asset",
        (lambda: tg.saved_model.Asset(5), VALUE, "5"),
        (lambda: tg.saved_model.Asset(None), VALUE, "None"),
        (lambda: tg.saved_model.Asset([]), VALUE, "[]"),
    ),
    *rows(
        "saved_model.SaveOptions",
        (lambda: tg.saved_model.SaveOptions(locations="text"), DTYPE, "text"),
        (lambda: tg.saved_model.SaveOptions(stablehlo=5), (DTYPE, VALUE), "5"),
        (lambda: tg.saved_model.SaveOptions(no_such_option=5), TRACE, "no_such_option"),
    ),
    *rows(
        "saved_model.LoadOptions",
        (lambda: tg.saved_model.LoadOptions(verify="text"), DTYPE, "text"),
        (lambda: tg.saved_model.LoadOptions(verify=5), DTYPE, "5"),
        (lambda: tg.saved_model.LoadOptions(no_such_option=5), TRACE, "no_such_option"),
    ),
    *rows(
        "train.Checkpoint",
        (lambda: tg.train.Checkpoint(5), (DTYPE, VALUE), "5"),
        (lambda: tg.train.Checkpoint(a=5), (DTYPE, VALUE), "5"),
        (lambda: tg.train.Checkpoint(a="text"), (DTYPE, VALUE), "text"),
    ),
    *rows(
        "train.CheckpointManager",
        (lambda: tg.train.CheckpointManager(5, NOWHERE, 3), VALUE, "5"),
        (
            lambda: tg.train.CheckpointManager(tg.train.Checkpoint(), NOWHERE, -7),
            VALUE,
            "-7",
        ),
        (lambda: tg.train.CheckpointManager(tg.train.Checkpoint(), 5, 3), VALUE, "5"),
    ),
    *rows(
        "train.ExponentialMovingAverage",
        (lambda: tg.train.ExponentialMovingAverage("no"), DTYPE, "no"),
        (lambda: tg.train.ExponentialMovingAverage([0.5, 0.9]), DTYPE, "[0.5, 0.9]"),
        (lambda: tg.train.ExponentialMovingAverage(99.9), VALUE, "99.9"),
        (lambda: tg.train.ExponentialMovingAverage(float("nan")), VALUE, "nan"),
        (lambda: tg.train.ExponentialMovingAverage(0.9, num_updates=1j), DTYPE, "1j"),
        (lambda: tg.train.ExponentialMovingAverage(0.9, zero_debias="no"), DTYPE, "no"),
        (lambda: tg.train.ExponentialMovingAverage(0.9, name=5), DTYPE, "5"),
    ),
    *rows(
        "train.ExponentialMovingAverage().apply",
        (lambda: AVERAGE.apply(VARIABLE), (DTYPE, VALUE), "Variable"),
        (lambda x: AVERAGE.apply([x]), DTYPE, "f32[2,3]"),
        (lambda: AVERAGE.apply([COUNT]), DTYPE, "int32"),
        (lambda x: AVERAGE.average(x), DTYPE, "f32[2,3]"),
    ),
    *rows(
        "utils.set_random_seed",
        (lambda: tg.utils.set_random_seed("no"), DTYPE, "no"),
        (lambda: tg.utils.set_random_seed(-1), VALUE, "-1"),
        (lambda: tg.utils.set_random_seed(2**32), VALUE, "4294967296"),
        (lambda: tg.utils.set_random_seed(True), DTYPE, "True"),
    ),
    *rows(
        "utils.to_categorical",
        (lambda: tg.utils.to_categorical([0, -1]), FAILED, "-1"),
        (lambda: tg.utils.to_categorical([0, 3], 3), FAILED, "3", "3 classes"),
        (lambda: tg.utils.to_categorical([0.5]), DTYPE, "0.5"),
        (lambda: tg.utils.to_categorical([float("nan")]), DTYPE, "nan"),
        (lambda: tg.utils.to_categorical(["no"]), DTYPE, "no"),
        (lambda: tg.utils.to_categorical([0], -2), SHAPE, "-2"),
        (lambda i: tg.utils.to_categorical(i), SHAPE, "i32[3]"),
    ),
    *rows(
        "utils.normalize",
        (lambda: tg.utils.normalize("no"), DTYPE, "no"),
        (lambda: tg.utils.normalize([1.0], axis=3), SHAPE, "3"),
        (lambda: tg.utils.normalize([1.0], order="no"), DTYPE, "no"),
        (lambda x: tg.utils.normalize(x, axis=3), SHAPE, "3"),
    ),
    *rows(
        "utils.pad_sequences",
        (lambda: tg.utils.pad_sequences(5), DTYPE, "5"),
        (lambda: tg.utils.pad_sequences([[1], 5]), DTYPE, "5"),
        (lambda: tg.utils.pad_sequences([[0.5]]), DTYPE, "0.5", "int32"),
        (lambda: tg.utils.pad_sequences([[1]], maxlen=-2), SHAPE, "-2"),
        (lambda: tg.utils.pad_sequences([[1]], padding="no"), VALUE, "no"),
        (lambda: tg.utils.pad_sequences([[[1, 2]], [[1]]]), SHAPE, "(2,)", "(1,)"),
    ),
    *rows(
        "layers.Normalization().adapt",
        (lambda: tg.layers.Normalization().adapt(5), DTYPE, "5"),
        (lambda: tg.layers.Normalization().adapt(iter([[1.0]])), DTYPE, "[1.0]"),
        (lambda: tg.layers.Normalization().adapt([]), VALUE),
        (lambda: tg.layers.Normalization().adapt(ONES[:0]), VALUE),
        (lambda: tg.layers.Normalization().adapt([ONES, ONES[:, :2]]), SHAPE, "(2, 2)", "3"),
        (lambda: tg.layers.Normalization(mean=0.0, variance=1.0).adapt(ONES), VALUE),
        (lambda: tg.layers.Normalization(mean=0.0), VALUE, "0.0", "None"),
        (lambda: tg.layers.Normalization(mean=[0.0], variance=1.0), SHAPE, "(1,)", "()"),
    ),
    *rows(
        "layers.IntegerLookup().adapt",
        (lambda: LOOKUP.adapt(5), DTYPE, "5"),
        (lambda: LOOKUP.adapt([1, 2.5]), DTYPE, "2.5", "float64"),
        (lambda: LOOKUP.adapt([1], steps=0), VALUE, "0"),
        (lambda: LOOKUP.set_vocabulary([1, 1]), VALUE, "1"),
    ),
    *rows(
        "train.latest_checkpoint",
        (lambda: tg.train.latest_checkpoint(5), VALUE, "5"),
        (lambda: tg.train.latest_checkpoint(None), VALUE, "None"),
        (lambda: tg.train.latest_checkpoint([]), VALUE, "[]"),
    ),
    *(
        row
        for name in ("list_variables", "load_checkpoint")
        for row in rows(
            f"train.{name}",
            (lambda name=name: getattr(tg.train, name)(NOWHERE), LOAD, NOWHERE),
            (lambda name=name: getattr(tg.train, name)(5), VALUE, "5"),
            (lambda name=name: getattr(tg.train, name)(None), VALUE, "None"),
        )
    ),
    *rows(
        "train.load_variable",
        (lambda: tg.train.load_variable(NOWHERE, "x"), LOAD, NOWHERE),
        (lambda: tg.train.load_variable(5, "x"), VALUE, "5"),
        (lambda: tg.train.load_variable(None, "x"), VALUE, "None"),
    ),
    *rows(
        "export.stablehlo",
        (lambda: tg.export.stablehlo(5), (DTYPE, TRACE), "5"),
        (lambda: tg.export.stablehlo(tg.function(lambda: 1.0), platforms=("no",)), VALUE, "no"),
        (lambda: tg.export.stablehlo(tg.function(lambda: 1.0), path=5), VALUE, "5"),
    ),
    *rows(
        "diff",
        (lambda: tg.diff(5, 5), TRACE, "5"),
        (lambda: tg.diff("text", "text"), TRACE, "text"),
        (lambda x: tg.diff(x, x), TRACE, "Tensor"),
    ),
    *rows(
        "debugging.compare",
        (lambda: tg.debugging.compare(5, tg.sin), TRACE, "5"),
        (lambda x: tg.debugging.compare(tg.sin, tg.cos, x, rtol=-1.0), VALUE, "-1.0"),
        (lambda x: tg.debugging.compare(tg.sin, "no type", x), (DTYPE, TRACE), "no type"),
    ),
    *rows(
        "debugging.check_determinism",
        (lambda: tg.debugging.check_determinism(5), TRACE, "5"),
        (lambda x: tg.debugging.check_determinism(tg.sin, x, runs=1), VALUE, "1"),
        (lambda x: tg.debugging.check_determinism(tg.sin, x, runs="2"), VALUE, "2"),
    ),
    *rows(
        "profile",
        (lambda: tg.profile(5), TRACE, "5"),
        (lambda x: tg.profile(x), TRACE, "Tensor"),
        (lambda: tg.profile(), TRACE, "f"),
    ),
]
