"""Derivatives of a function of one structure of tensors, by a tape that watches it."""

import tracegraph as tg


def gradient(fn, x):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.gradient(y, x)


def jacobian(fn, x, **options):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.jacobian(y, x, **options)


def batch_jacobian(fn, x, **options):
    with tg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.batch_jacobian(y, x, **options)
