"""Calls that are wrong in a way of their own: files, models and what layers are derived from."""

import tracegraph as tg
from tests.bad_calls.row import DTYPE, TRACE, VALUE, Row, rows

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
        (lambda: tg.layers.Layer(name="1 a"), VALUE, "1 a"),
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
