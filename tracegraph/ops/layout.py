"""Layouts: how a value is divided among the devices of a mesh."""

from __future__ import annotations

from tracegraph.core.mesh_axes import Entry, check_axes, check_division, parsed_mesh
from tracegraph.errors import Mismatch
from tracegraph.ops.movement import Movement


class WithLayout(Movement):
    """x, whose axes are divided among the devices of a mesh as `axes` says.

    `mesh` is its text, such as `data=4,model=2`. `devices` are the numbers of its devices, where
    they are not the first ones: which devices those are is found when a program is compiled.
    """

    mesh: str
    axes: tuple[Entry, ...]
    devices: tuple[int, ...] | None = None
    is_linear = True

    def infer(self, x):
        shape = parsed_mesh(self.mesh)
        check_axes(shape, self.axes)
        if x.rank is None:
            raise Mismatch(
                "a layout was given to a tensor whose rank is not known",
                fix="declare the rank, as in TensorSpec([None, 4])",
            )
        check_division(shape, self.axes, x.shape)
        return x

    def vjp(self, g, y, x):
        return (self(g),)

    def jvp(self, tangents, y, x):
        return self(tangents[0])

    def batch(self, n, batched, x):
        return WithLayout(self.mesh, (None, *self.axes), self.devices)(x), True

    def numpy(self, x):
        return x

    def is_diagonal_on(self, type):
        return True
