"""Calls of `tg.distribute` that are wrong; those for several devices are in `eight_devices`."""

import tracegraph as tg
from tests.bad_calls.row import SHAPE, VALUE, rows

MESH = tg.distribute.Mesh({"rows": 1})

ROWS = [
    *rows(
        "distribute.Mesh",
        (lambda: tg.distribute.Mesh({}), VALUE, "no axes"),
        (lambda: tg.distribute.Mesh({"rows": 0}), VALUE, "0"),
        (lambda: tg.distribute.Mesh({"rows": 1.5}), VALUE, "1.5"),
        (lambda: tg.distribute.Mesh({"a b": 1}), VALUE, "a b"),
        (lambda: tg.distribute.Mesh({3: 1}), VALUE, "3"),
        (lambda: tg.distribute.Mesh(["rows"]), VALUE, "rows"),
        (lambda: tg.distribute.Mesh(None), VALUE, "None"),
        (lambda: tg.distribute.Mesh({"rows": 1}, 5), VALUE, "5"),
        (lambda: tg.distribute.Mesh({"rows": 1}, ["abacus"]), VALUE, "abacus"),
        (lambda: tg.distribute.Mesh({"rows": 1}, []), VALUE, "0"),
    ),
    *rows(
        "distribute.Layout",
        (lambda: tg.distribute.Layout(5, ["rows"]), VALUE, "5"),
        (lambda: tg.distribute.Layout(MESH, "rows"), VALUE, "rows"),
        (lambda: tg.distribute.Layout(MESH, 5), VALUE, "5"),
        (lambda: tg.distribute.Layout(MESH, ["columns"]), VALUE, "columns"),
        (lambda: tg.distribute.Layout(MESH, ["rows", "rows"]), VALUE, "rows"),
        (lambda: tg.distribute.Layout(MESH, [5]), VALUE, "5"),
        (lambda: tg.distribute.Layout(MESH, [["rows", 5]]), VALUE, "5"),
    ),
    *rows(
        "distribute.with_layout",
        (lambda x: tg.distribute.with_layout(x, 5), VALUE, "5"),
        (lambda x: tg.distribute.with_layout(x, None), VALUE, "None"),
        (lambda x: tg.distribute.with_layout(x, ["rows", None]), VALUE, "rows"),
        (
            lambda x: tg.distribute.with_layout(x, tg.distribute.Layout(MESH, ["rows"])),
            SHAPE,
            "[2, 3]",
        ),
    ),
    *rows(
        "Variable",
        (lambda: tg.Variable([1.0], layout=5), VALUE, "5"),
        (
            lambda: tg.Variable([1.0], layout=tg.distribute.Layout(MESH, ["rows", None])),
            SHAPE,
            "[1]",
        ),
    ),
]
