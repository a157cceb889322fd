"""`tg.distribute`: several devices, over which programs and values are sharded.

>>> mesh = tg.distribute.Mesh({"data": 1})
>>> x = tg.distribute.with_layout(tg.ones([4, 2]), tg.distribute.Layout(mesh, ["data", None]))
>>> x.layout
Layout(Mesh({'data': 1}), ['data', None])
"""

from tracegraph.api.absent import publish
from tracegraph.distribute.layouts import Layout, Mesh, with_layout
from tracegraph.distribute.local import from_local
from tracegraph.distribute.processes import initialize

__all__ = ["Layout", "Mesh", "from_local", "initialize", "with_layout"]

publish(__name__)
